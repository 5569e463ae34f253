"""Split the energy of shared devices among simulated jobs of known shares, and look for the truth in the bounds.

    python -m benchmarks.job_shares [--cases NUMBER] [--seed NUMBER] [--kind rough|plain]

A case is a node in virtual time: a GPU of the twin's models, a CPU package and its memory, shared by two to four jobs.
Each job has a start, an end and a pattern of load of its own, and draws its own power per unit of use. Truth does not
keep to the assumptions of the split: idle power rises with heat and while a process has the GPU open, clocks stay up
after kernels, power follows load late, copies draw power without load, a cap holds power down, the wake-up power of a
package is divided by cores or equally, and power per use changes while a job runs. `--kind` switches these off (plain).

The true energy of a job is known exactly: the power that it causes, and an equal part of the idle power while it is
there. The split sees what meters show: an energy counter with a drawn gain, loads of processes as whole percents that
are read late and sometimes not at all, CPU time in ticks. It is compared with a division by use alone (`use only`), and
with one by use of what is above a known idle power (`above idle`). `exact` is the width that the definition of the
bounds leaves if idle power and use are known exactly at each moment: no split can be narrower.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.job_shares import (
    NOBODY,
    DeviceUse,
    JobShare,
    add_device_shares,
    find_idle_power,
    split_by_use,
    split_device,
)
from joulelab.analysis.run_shares import CPU_RATIO, MOST_IDLE, TICK_ERROR, USE_ERROR
from joulelab.core.quantity import Quantity
from joulelab.twin.model import PRESETS, Cpu, Dram

if TYPE_CHECKING:
    import numpy.typing as npt

    from joulelab.twin.model import Gpu

    Floats = npt.NDArray[np.float64]
    Bools = npt.NDArray[np.bool_]

SEED, CASES = 27, 100
STEP_S = 0.05  # of the truth
GAIN_SD = 0.01  # of the meters; their interval says so
TICK_S = 0.01  # of CPU time
CORES = 32
AWAKE_W = 110.0  # of a package that does not sleep


@dataclass(frozen=True)
class Truth:
    """Hold one device: powers (W) in steps of STEP_S: idle, and caused by each job; the use and presence of each."""

    scope: str
    idle_w: Floats
    most_w: float
    capacity: float
    ratio: float
    caused_w: dict[str, Floats]
    use: dict[str, Floats]
    present: dict[str, Bools]

    def find_energies(self) -> dict[str, float]:
        """Return the true energy (J) of each job and of nobody, idle power divided equally."""
        count = np.sum(list(self.present.values()), axis=0)
        equal = self.idle_w / np.maximum(count, 1)
        found = {job: float((self.caused_w[job] + equal * there).sum() * STEP_S) for job, there in self.present.items()}
        return found | {NOBODY: float((self.idle_w * (count == 0)).sum() * STEP_S)}

    def measure_exact_width(self, job: str) -> float:
        """Return the distance of the bounds of a job (J), if idle power and use were known at each moment."""
        caused_w = sum(self.caused_w.values())
        own, others = self.use[job], sum(use for name, use in self.use.items() if name != job)
        others = np.minimum(others, self.capacity)
        low, high = np.zeros_like(own), np.where(own > 0, caused_w, 0.0)
        if math.isfinite(self.most_w):
            unit_w = (self.most_w - self.idle_w) / self.capacity
            low, high = np.maximum(caused_w - others * unit_w, 0.0), np.minimum(caused_w, own * unit_w)
        if math.isfinite(self.ratio):
            low = caused_w * own / np.maximum(own + self.ratio * others, 1e-12)
            high = caused_w * self.ratio * own / np.maximum(self.ratio * own + others, 1e-12)
        return max(float((high - low).sum() * STEP_S), 0.0)


@dataclass(frozen=True)
class Score:
    """Hold one job of one case: true energy, share with bounds, and two plain divisions (J)."""

    case: int
    scope: str
    true_j: float
    share: JobShare
    by_use_j: float
    above_idle_j: float
    total_j: float
    exact_j: float

    @property
    def is_inside(self) -> bool:
        """Return whether the true energy is within the bounds."""
        return self.share.low_j <= self.true_j <= self.share.high_j

    @property
    def width(self) -> float:
        """Return half the distance of the bounds, as a share of the energy."""
        return (self.share.high_j - self.share.low_j) / 2 / max(self.share.energy_j, 1e-9)


def draw_load(rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
    """Return wanted load and intensity (0 to 1) of a job over time: steady, in steps, with pauses, or wandering."""
    t = np.arange(count) * STEP_S
    level, depth = rng.uniform(0.1, 0.95), rng.uniform(0.25, 1.0)
    kind = rng.choice(["steady", "steps", "pauses", "wandering"])
    load = np.full(count, level)
    if kind == "steps":
        period, duty = rng.uniform(0.3, 30), rng.uniform(0.3, 0.9)
        load = np.where((t + rng.uniform(0, period)) % period < duty * period, level, level * rng.uniform(0, 0.5))
    elif kind == "pauses":
        period = rng.uniform(20, 120)
        load = np.where((t + rng.uniform(0, period)) % period < rng.uniform(0.5, 0.9) * period, level, 0.0)
    elif kind == "wandering":
        knots = rng.uniform(0.3, 1.3, max(int(t[-1] / 15), 2))
        load = np.clip(level * np.interp(t, np.linspace(0, t[-1], knots.size), knots), 0, 1)
    slow = np.interp(t, np.linspace(0, t[-1], 5), rng.normal(1, 0.08, 5))
    if rng.random() < 0.25:  # another kind of work in turn: train and validate
        period = rng.uniform(10, 90)
        slow = slow * np.where((t + rng.uniform(0, period)) % period < 0.7 * period, 1.0, rng.uniform(0.3, 1.0))
    return load, np.clip(depth * slow, 0.05, 1.0)


def follow_slowly(values: Floats, tau_s: float) -> Floats:
    """Return values that follow others with a time constant (s)."""
    keep = math.exp(-STEP_S / tau_s)
    found, level = np.empty_like(values), 0.0
    for k, value in enumerate(values.tolist()):
        level = keep * level + (1 - keep) * value
        found[k] = level
    return found


def draw_truth(rng: np.random.Generator, *, rough: bool) -> list[Truth]:
    """Draw the jobs of a case and return what they do to GPU, CPU and memory."""
    seconds = float(rng.uniform(60, 600))
    count = round(seconds / STEP_S)
    t = np.arange(count) * STEP_S
    jobs = [f"job{k}" for k in range(rng.integers(2, 5))]
    present = {}
    for job in jobs:
        start = rng.uniform(0, 0.4 * seconds) if rng.random() < 0.5 else 0.0
        end = rng.uniform(0.6 * seconds, seconds) if rng.random() < 0.5 else seconds
        present[job] = (t >= start) & (t < end)
    gpu = PRESETS[rng.choice(list(PRESETS))]
    gpu = replace(gpu, active_w=gpu.idle_w + rng.uniform(0.1, 0.3) * (gpu.max_w - gpu.idle_w))
    drawn = {job: draw_load(rng, count) for job in jobs}
    busy = {job: load * present[job] for job, (load, _) in drawn.items()}
    scale = np.maximum(sum(busy.values()), 1.0)  # kernels of several processes take turns
    busy = {job: load / scale for job, load in busy.items()}
    gpu_w = {job: np.asarray(gpu.draws_w(busy[job], drawn[job][1])) - gpu.idle_w for job in jobs}
    idle_w = np.full(count, gpu.idle_w)
    if rough:
        idle_w, gpu_w = roughen_gpu(rng, gpu, busy, present, gpu_w)
    cores = {job: draw_load(rng, count)[0] * present[job] * rng.uniform(0.5, 8) for job in jobs}
    crowd = np.maximum(sum(cores.values()) / CORES, 1.0)
    cores = {job: some / crowd for job, some in cores.items()}
    cpu, dram = Cpu(awake_w=AWAKE_W), Dram()
    mix = {job: rng.uniform(0.4, 1.0) * (draw_load(rng, count)[1] ** 0.3 if rough else 1.0) for job in jobs}
    all_cores = np.maximum(sum(cores.values()), 1e-9)
    awake = np.minimum(all_cores, 1.0) * (AWAKE_W - cpu.idle_w)
    runs = {job: some > 0 for job, some in cores.items()}
    if rough and rng.random() < 0.5:
        parts = {job: there / np.maximum(sum(runs.values()), 1) for job, there in runs.items()}
    else:
        parts = {job: some / all_cores for job, some in cores.items()}
    core_w = (cpu.max_w - AWAKE_W) / CORES
    cpu_w = {job: some * core_w * mix[job] + awake * parts[job] for job, some in cores.items()}
    bandwidth = {job: rng.uniform(0.05, 1.0) * (draw_load(rng, count)[1] if rough else 1.0) for job in jobs}
    dram_w = {job: some / CORES * bandwidth[job] * (dram.max_w - dram.idle_w) for job, some in cores.items()}
    warm = 1 + (rng.uniform(0, 0.1) * follow_slowly(all_cores / CORES, 60.0) if rough else np.zeros(count))
    return [
        Truth("gpu", idle_w, gpu.default_cap_w, 1.0, math.inf, gpu_w, busy, present),
        Truth("cpu", cpu.idle_w * warm, math.inf, CORES, CPU_RATIO, cpu_w, cores, present),
        Truth("dram", dram.idle_w * warm, math.inf, CORES, math.inf, dram_w, cores, present),
    ]


def roughen_gpu(
    rng: np.random.Generator, gpu: Gpu, busy: dict[str, Floats], present: dict[str, Bools], caused_w: dict[str, Floats]
) -> tuple[Floats, dict[str, Floats]]:
    """Return the idle power (W) and the powers that jobs cause, with the effects that the split does not know."""
    total, span_w = np.sum(list(busy.values()), axis=0), gpu.max_w - gpu.idle_w
    is_open = np.any(list(present.values()), axis=0)
    idle_w = gpu.idle_w * (1 + rng.uniform(0, 0.1) * follow_slowly(total, 60.0))
    idle_w = idle_w + (rng.uniform(0.0, 0.1) * gpu.default_cap_w if rng.random() < 0.5 else 0.0) * is_open
    if rng.random() < 0.5:  # clocks stay up for a while after kernels, because of all who used it
        up_w, tau_s = rng.uniform(0.01, 0.06) * span_w, rng.uniform(0.3, 3.0)
        recent = {job: follow_slowly((load > 0).astype(float), tau_s) > 0.05 for job, load in busy.items()}
        users = np.maximum(sum(recent.values()), 1)
        caused_w = {job: watts + up_w * recent[job] / users for job, watts in caused_w.items()}
    if rng.random() < 0.5:  # power follows load late
        tau_s = rng.uniform(0.05, 0.5)
        caused_w = {job: follow_slowly(watts, tau_s) for job, watts in caused_w.items()}
    copies = {job: rng.uniform(0.002, 0.02) * span_w if rng.random() < 0.3 else 0.0 for job in busy}
    caused_w = {job: watts + copies[job] * present[job] for job, watts in caused_w.items()}
    room_w, wanted_w = gpu.default_cap_w - idle_w, np.maximum(sum(caused_w.values()), 1e-9)
    return idle_w, {job: watts * np.minimum(room_w / wanted_w, 1.0) for job, watts in caused_w.items()}


def read_device(truth: Truth, rng: np.random.Generator, *, rough: bool) -> tuple[DeviceUse, Quantity]:
    """Return what meters and the system show of a device in cells of 1 s, and its energy with the meter's interval."""
    per = round(1 / STEP_S)
    cells = len(next(iter(truth.use.values()))) // per
    power_w = truth.idle_w + sum(truth.caused_w.values())
    gain = 1 + GAIN_SD * rng.standard_normal()
    edges = np.arange(cells + 1) * per
    jitter = np.append(0, np.append(np.clip(edges[1:-1] + rng.integers(-2, 3, cells - 1), 1, None), edges[-1]))
    total = np.append(0.0, np.cumsum(power_w) * STEP_S)
    energy_j = np.diff(total[jitter]) * gain
    late = int(rng.integers(0, 7))  # steps by which the loads of processes are older than the powers
    use, present = {}, {}
    for job, load in truth.use.items():
        shifted = np.append(np.full(late, load[0]), load)[: load.size]
        mean = shifted[: cells * per].reshape(cells, per).mean(axis=1)
        if truth.capacity == 1:
            use[job] = np.clip(np.round(100 * (mean + rng.normal(0, 0.005, cells) * (mean > 0))), 0, 100) / 100
        else:
            use[job] = np.diff(np.floor(np.append(0.0, np.cumsum(mean)) / TICK_S) * TICK_S)
        present[job] = np.asarray(truth.present[job][: cells * per].reshape(cells, per).any(axis=1))
    if rough and truth.capacity == 1:  # the driver had no new sample
        missed = rng.random(cells) < 0.01
        use = {job: np.where(missed, np.nan, load) for job, load in use.items()}
    seconds = np.ones(cells)
    idle = find_idle_power(seconds, energy_j, use, present, MOST_IDLE.get(truth.scope, math.inf) * truth.most_w)
    device = DeviceUse(
        truth.scope, seconds, energy_j, use, present, idle, truth.most_w, truth.capacity, truth.ratio,
        USE_ERROR.get(truth.scope, TICK_ERROR),
    )  # fmt: skip
    return device, Quantity(float(energy_j.sum()), {"gain": GAIN_SD * float(energy_j.sum())})


def judge_case(case: int, seed: int, *, rough: bool = True) -> list[Score]:
    """Return the scores of all jobs of a case, by device and for the node."""
    rng = np.random.default_rng((seed, case))
    scores: list[Score] = []
    parts = []
    for truth in draw_truth(rng, rough=rough):
        device, measured = read_device(truth, rng, rough=rough)
        shares = split_device(device)
        assert math.isclose(math.fsum(s.energy_j for s in shares), measured.value, rel_tol=1e-12), "the sum is wrong"
        true_j, by_use = truth.find_energies(), split_by_use(device)
        idle_j = truth.idle_w[: device.seconds.size * round(1 / STEP_S)].reshape(device.seconds.size, -1).mean(axis=1)
        rest = replace(device, energy_j=np.maximum(device.energy_j - idle_j, 0.0))
        above, count = split_by_use(rest), np.maximum(np.sum(list(device.present.values()), axis=0), 1)
        wide = [share.widen_for_meter(measured) for share in shares]
        parts.append((truth, wide, by_use, above))
        for share in wide:
            if share.job != NOBODY:
                plain = above[share.job] + float((idle_j / count * device.present[share.job]).sum())
                scores.append(
                    Score(
                        case, truth.scope, true_j[share.job], share, by_use[share.job], plain, measured.value,
                        truth.measure_exact_width(share.job),
                    )
                )  # fmt: skip
    for share in add_device_shares(wide for _, wide, _, _ in parts):
        if share.job != NOBODY:
            mine = [s for s in scores if s.share.job == share.job]
            scores.append(
                Score(
                    case,
                    "node",
                    sum(s.true_j for s in mine),
                    share,
                    sum(s.by_use_j for s in mine),
                    sum(s.above_idle_j for s in mine),
                    sum(s.total_j for s in mine),
                    sum(s.exact_j for s in mine),
                )
            )
    return scores


def main() -> int:
    """Print a row per kind of device; return 1 if a promise is missed for the node."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--kind", choices=["rough", "plain"], default="rough")
    options = parser.parse_args()
    scores = [
        score
        for case in range(options.cases)
        for score in judge_case(case, options.seed, rough=options.kind == "rough")
    ]
    print(
        f"{options.cases} cases, {len(scores) // 4} jobs. Errors: mean distance from the true energy, of the device's"
    )
    print("energy. Width: median half distance of the bounds, of the job's energy.")
    columns = f"{'inside':>7s} {'width':>7s} {'exact':>7s} {'error':>7s} {'use only':>9s} {'above idle':>11s}"
    print(f"{'scope':6s} {'jobs':>5s} {columns}")
    promises = []
    for scope in ("gpu", "cpu", "dram", "node"):
        mine = [s for s in scores if s.scope == scope]
        inside = sum(s.is_inside for s in mine) / len(mine)
        width = float(np.median([s.width for s in mine]))
        exact = float(np.median([s.exact_j / 2 / max(s.share.energy_j, 1e-9) for s in mine]))
        error, plain, above = (
            float(np.mean([abs(value - s.true_j) / s.total_j for s, value in zip(mine, values, strict=True)]))
            for values in (
                [s.share.energy_j for s in mine],
                [s.by_use_j for s in mine],
                [s.above_idle_j for s in mine],
            )
        )
        print(
            f"{scope:6s} {len(mine):5d} {inside:7.1%} {width:7.1%} {exact:7.1%} {error:7.2%} {plain:9.2%} {above:11.2%}"
        )
        promises.append(inside >= 0.95 and error <= plain / 2)
    print("the rows add up to the measured energy in every case")
    print("inside in 95 % and half the error of `use only`:", "met" if all(promises) else "missed")
    return 0 if all(promises) else 1


if __name__ == "__main__":
    sys.exit(main())
