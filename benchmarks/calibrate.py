"""Calibrate simulated GPUs against a simulated wall meter, and judge the calibration on another load.

    python -m benchmarks calibrate                      100 draws with each reference, and 8 GPUs behind one meter
    python -m benchmarks calibrate --first 2000         the same with fresh draws: the fit was developed on 0 to 119
    python -m benchmarks calibrate --recordings         recorded GPUs beside a meter, where ../shared is there

Each draw is a node with 1 to 8 GPUs: gains within 10 %, offsets within 10 W, noise, gains that drift with temperature,
supplies of a drawn class and curve, fans at a fixed or a measured speed, a rest that drifts, a reference with its own
errors and an unknown lag. A staircase of loads is recorded and fitted; then another load is recorded on the same node,
and the energy of its GPUs is compared with the truth: without calibration, with it, and with a run of the node without
its GPUs (`--zero`), which shows offsets. Energies above idle (net) need no offset. Steps have the length that the
command chooses for burn, whose loads start some seconds late. All in virtual time, through run folders and the analysis
of every run.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.loads import make_curve
from benchmarks.wall_scenarios import HOST, Recorder
from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.calibration_fit import FitRefusal, FittedDevice, LoadSteps, ReferenceMeter, fit_calibration
from joulelab.calibration.calibration_record import BETTER, CLASSES, FULL_DROP, LOW_DROP, fit_run, parse_supply
from joulelab.calibration.recorded_steps import FitOptions
from joulelab.calibration.staircase import PHASE, choose_step_s, plan_steps
from joulelab.core.errors import Refused
from joulelab.core.mark_lines import format_begin, format_end
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.analyzer.accuracy import MODELS, Ranges, Signal, compute_power_errors
from joulelab.instruments.nvml.generations import find_sensor, power_specs
from joulelab.store.run_folder import create_run, end_run
from joulelab.store.run_reader import open_run
from joulelab.twin import readings
from joulelab.twin.flaws import HOPPER, PanelFlaws
from joulelab.twin.model import H100

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.twin.power_curves import Curve

    Floats = np.ndarray[Any, np.dtype[np.float64]]

NS = 1_000_000_000
START = 1_000 * NS
GRID_S = 0.05  # of the true powers
SEED = 28
GAIN, OFFSET_W = 0.10, 10.0  # that are drawn, and that the meter states as its largest errors
HEAT = 0.0003  # drift of a sensor per K, largest
LEAD_S, TAIL_S = 8.0, 3.0
COOLING_S = 20.0
IDLE_S = (1.0, LEAD_S - 0.5)  # whose power counts as idle
BURN_SHARE = (0.08, 0.22)  # of a step, until its load starts: 3 to 9 s of 40 s
UPDATES_S = {"analyzer": 0.1, "pdu": 1.0}
UTC = 1_763_400_000 * NS
WALL_METERS = ("analyzer", "pdu")
MOST_U = {"analyzer": 0.02, "pdu": 0.03}
LEAST_INSIDE = 0.95
RECORDED_PART, RECORDED_STEP_S = 0.5, 0.5  # share of a recording that is fitted, in windows of this length


@dataclass(frozen=True)
class DrawnNode:
    """Hold a drawn node: its GPUs' errors, its supplies, and the errors of its other meters."""

    gains: Floats
    offsets_w: Floats
    heats: Floats
    noises_w: Floats
    idle_w: Floats
    max_w: Floats
    supply_class: str
    efficiencies: tuple[float, float, float]
    ripple: float
    rated_w: float
    fans: str
    fan_w: float
    follow: float
    rest_w: float
    cpu_gain: float
    wall_gain: float
    wall_offset_w: float
    wall_lag_s: float

    @property
    def count(self) -> int:
        """Return the number of GPUs."""
        return len(self.gains)


def draw_node(rng: np.random.Generator, reference: str, count: int | None = None) -> DrawnNode:
    """Draw a node and its meters; `count` is the number of GPUs."""
    n = int(rng.choice([1, 2, 4, 8])) if count is None else count
    name = str(rng.choice(["gold", "platinum", "titanium"]))
    middle = CLASSES[name] + rng.uniform(0, BETTER)
    drops = [rng.uniform(m - half, m + half) for m, half in (LOW_DROP, FULL_DROP)]
    factor = rng.normal(1.0, 0.02, n)
    gain, offset_w = state_wall_errors(reference, n)
    return DrawnNode(
        gains=rng.uniform(-GAIN, GAIN, n),
        offsets_w=rng.uniform(-OFFSET_W, OFFSET_W, n),
        heats=rng.uniform(-HEAT, HEAT, n),
        noises_w=rng.uniform(0.3, 3.0, n),
        idle_w=H100.idle_w * factor,
        max_w=H100.max_w * factor,
        supply_class=name,
        efficiencies=(middle - drops[0], middle, middle - drops[1]),
        ripple=float(rng.uniform(-0.001, 0.001)),
        rated_w=(800 + 800 * n) * float(rng.uniform(1.1, 2.2)),
        fans=str(rng.choice(["fixed", "measured"])),
        fan_w=80.0 + 100.0 * n,
        follow=float(rng.uniform(0.0, 0.01)),
        rest_w=float(rng.uniform(150, 300)) + 20 * n,
        cpu_gain=float(rng.uniform(-0.05, 0.05)),
        wall_gain=float(rng.uniform(-gain, gain)),
        wall_offset_w=float(rng.uniform(-offset_w, offset_w)),
        wall_lag_s=float(rng.uniform(0.0, 0.3 if reference == "analyzer" else 2.0)),
    )


def state_wall_errors(reference: str, count: int) -> tuple[float, float]:
    """Return the largest errors of the reference, relative and in W: WT310E (WT333E from 4 GPUs on), PDU of 1 %."""
    if reference == "pdu":
        return 0.01, 0.0
    model, elements = ("WT310E", 1) if count < 4 else ("WT333E", 3)
    amperes = next(a for a in MODELS[model].amperes if a * 230 * elements > 1.3 * (1000 + 900 * count) or a == 20.0)
    gain, offset_w = compute_power_errors(MODELS[model], Ranges(300.0, amperes), Signal(50.0, 0.95))
    return gain, offset_w * elements


@dataclass(frozen=True)
class DrawnPowers:
    """Hold true powers (W) of a node over time (s): of each GPU, its CPUs, fans, and at the wall."""

    t: Floats
    gpus: Floats
    cpu: Floats
    fans: Floats
    wall: Floats
    celsius: Floats

    def find_energy(self, gpu: int, a_s: float, b_s: float) -> float:
        """Return the true energy (J) of a GPU."""
        joules = np.concatenate(([0.0], np.cumsum((self.gpus[gpu][1:] + self.gpus[gpu][:-1]) / 2 * np.diff(self.t))))
        return float(np.diff(np.interp([a_s, b_s], self.t, joules))[0])


def make_powers(
    rng: np.random.Generator, node: DrawnNode, loads: Floats, room_c: float, *, has_gpus: bool = True
) -> DrawnPowers:
    """Return the powers of a node for loads (0 to 1) of its GPUs on the grid, in a room of some temperature."""
    t = GRID_S * np.arange(loads.shape[1])
    gpus = node.idle_w[:, None] + loads * (node.max_w - node.idle_w)[:, None]
    gpus = gpus * (1 + 0.004 * _smooth(rng.normal(size=loads.shape), 6))
    celsius = room_c + 8 + 45 * _delay(loads, COOLING_S)
    cpu = 90.0 + 6.0 * (loads > 0).sum(axis=0) + 4.0 * _smooth(rng.normal(size=(1, t.size)), 20)[0]
    tau = np.linspace(-1, 1, t.size)
    drift = rng.uniform(-8, 8) * tau + rng.uniform(-3, 3) * tau**2
    inside = gpus.sum(axis=0) if has_gpus else np.zeros(t.size)
    moved = node.follow * (gpus - node.idle_w[:, None]).sum(axis=0) if has_gpus else 0.0
    # Without GPUs it is another start of the node, somewhere on its drift.
    drift = drift if has_gpus else np.full(t.size, rng.choice(drift) + rng.normal(0, 2.0))
    dc = inside + moved + cpu + node.rest_w + drift
    full = float(node.max_w.sum()) + 300 + node.rest_w
    speed = (
        np.ones(t.size)
        if node.fans == "fixed"
        else np.clip(0.55 + 0.6 * (_delay(dc[None], 10.0)[0] / full - 0.3), 0.55, 1.0)
    )
    fans = node.fan_w * speed**3
    if not has_gpus and node.fans != "fixed":
        fans = np.full(t.size, node.fan_w * 0.55**3)
    dc = dc + fans
    loads3 = np.array([0.2, 0.5, 1.0])
    c = np.linalg.solve(np.vander(loads3, 3), loads3 / np.array(node.efficiencies))
    q = dc / node.rated_w
    wall = node.rated_w * (np.polyval(c, q) + node.ripple * np.sin(4 * q))
    return DrawnPowers(t, gpus, cpu, speed, wall, celsius)


def _smooth(values: Floats, width: int) -> Floats:
    kernel = np.ones(width) / np.sqrt(width)
    return np.array([np.convolve(row, kernel, mode="same") for row in values])


def _delay(loads: Floats, tau_s: float) -> Floats:
    """Return loads that follow with a time constant."""
    out, share = np.empty_like(loads), 1 - np.exp(-GRID_S / tau_s)
    state = loads[:, 0]
    for k in range(loads.shape[1]):
        state = state + share * (loads[:, k] - state)
        out[:, k] = state
    return out


def record_run(
    folder: Path,
    rng: np.random.Generator,
    node: DrawnNode,
    powers: DrawnPowers,
    reference: str,
    *,
    phases: Sequence[tuple[float, float]] = (),
    has_gpus: bool = True,
    record: dict[str, Any] | None = None,
) -> Path:
    """Write the run of a load as all meters show it; `phases` are steps (s), `record` a calibration that it stores."""
    end_s = float(powers.t[-1])
    a, b = START + round(LEAD_S * NS), START + round((end_s - TAIL_S) * NS)
    started = {"mono_ns": START, "utc_ns": UTC, "width_ns": 400, "kernel_error_ns": None, "boot_id": "b"}
    run = create_run(folder, {"host": HOST, "command": ["virtual"], "started": started, "owner": {}})
    recorder = Recorder(run)
    if has_gpus:
        _write_gpus(recorder, rng, node, powers)
    t = _draw_polls(rng, end_s, 0.1)
    accuracy = Accuracy("assumed", 0.05, quantum=6e-5, shared="rapl", reference="virtual")
    spec = Spec("energy_j", "energy", "J", "counter", 0.001, accuracy=accuracy)
    cpu = make_curve(powers.t, powers.cpu)
    joules = (1 + node.cpu_gain) * (cpu.joules(t) - cpu.joules(np.array([START]))[0])
    recorder.write("rapl", "energy", [(Stream("cpu:0", "energy", "cpu:0", 0.1, (spec,)), t, (joules,))])
    slow = _draw_polls(rng, end_s, 5.0)
    fans = Spec("fan1_rpm", "fan speed", "rpm")
    rpm = np.rint(13_000 * np.interp((slow - START) / NS, powers.t, powers.fans) / 100) * 100
    recorder.write("bmc", "cooling", [(Stream("cooling", "cooling", "node.dc", 5.0, (fans,)), slow, (rpm,))])
    _write_wall(recorder, rng, node, powers, reference)
    first, last = (START + round(s * NS) for s in IDLE_S)
    events = [{"t": a, "event": "workload", "start_ns": a}, {"t": last, "event": "idle", "from": first, "to": last}]
    events += [{"t": START, "event": "calibration", **record}] if record else []
    import json

    (run / HOST / "events.run.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    lines = []
    for k, (begin, end) in enumerate(phases):
        lines += [format_begin(START + round(begin * NS), f"1-{k}", PHASE, k, None, None, 1, 0)]
        lines += [format_end(START + round(end * NS), f"1-{k}")]
    (run / HOST / "marks").mkdir(exist_ok=True)
    (run / HOST / "marks" / "1.jsonl").write_text("".join(f"{line}\n" for line in lines))
    end_run(run, {"outcome": "exit", "exit_code": 0, "ended": started, "start_ns": a, "end_ns": b})
    return run


def _draw_polls(rng: np.random.Generator, end_s: float, period_s: float) -> Any:
    t = np.arange(rng.uniform(0, period_s), end_s, period_s)
    return START + np.rint((t + rng.exponential(0.0005, t.size)) * NS).astype(np.int64)


def _write_gpus(recorder: Recorder, rng: np.random.Generator, node: DrawnNode, powers: DrawnPowers) -> None:
    specs = power_specs(find_sensor(9, (9, 0), H100.name), H100.name, (0.0, 750.0))
    specs = tuple(replace(s, accuracy=replace(s.accuracy, gain=GAIN, offset=OFFSET_W)) for s in specs)  # type: ignore[assignment]
    t, slow = _draw_polls(rng, float(powers.t[-1]), 0.1), _draw_polls(rng, float(powers.t[-1]), 1.0)
    heat = Spec("temperature_c", "temperature", "degC")
    rows, states = [], []
    for k in range(node.count):
        flaws = replace(
            HOPPER, gain_error=float(node.gains[k]), offset_w=float(node.offsets_w[k]), noise_w=float(node.noises_w[k]),
            power_phase_s=rng.uniform(0, 0.1), counter_phase_s=rng.uniform(0, 0.1),
        )  # fmt: skip
        # A gain that drifts is a power that drifts.
        shown: Curve = make_curve(powers.t, powers.gpus[k] * (1 + node.heats[k] * (powers.celsius[k] - 60.0)))
        scope, about = f"gpu:{k}", {"device": f"GPU-{k}", "model": H100.name}
        seed = int(rng.integers(1 << 30))
        columns = (
            readings.read_counter_j(shown, flaws, t, start_ns=START),
            readings.read_instant_w(shown, flaws, t, start_ns=START, seed=seed, gpu=k),
            readings.read_average_w(shown, flaws, t, start_ns=START),
        )
        rows.append((Stream(f"{scope}.power", "power", scope, 0.1, specs, **about), t, columns))
        celsius = np.rint(np.interp((slow - START) / NS, powers.t, powers.celsius[k]))
        states.append((Stream(f"{scope}.state", "state", scope, 1.0, (heat,), **about), slow, (celsius,)))
    recorder.write("nvml", "power", rows)
    recorder.write("nvml", "state", states)


def _write_wall(
    recorder: Recorder, rng: np.random.Generator, node: DrawnNode, powers: DrawnPowers, reference: str
) -> None:
    gain, offset_w = state_wall_errors(reference, node.count)
    update_s, quantum = UPDATES_S[reference], 0.1 if reference == "analyzer" else 1.0
    flaws = PanelFlaws(
        period_s=update_s, window_s=update_s, phase_s=float(rng.uniform(0, update_s)), gain_error=node.wall_gain,
        offset_w=node.wall_offset_w, noise_w=0.3 if reference == "analyzer" else 1.0, quantum_w=quantum,
    )  # fmt: skip
    t = _draw_polls(rng, float(powers.t[-1]), update_s)
    late = np.maximum(t - round(node.wall_lag_s * NS), START)
    curve = make_curve(powers.t, powers.wall)
    shown = readings.read_panel_w((1.0, curve), flaws, late, start_ns=START, seed=int(rng.integers(1 << 30)))
    accuracy = Accuracy("datasheet", gain, offset_w, quantum, reference, "virtual")
    spec = Spec("power_w", "power", "W", "power", update_s, update_s, accuracy=accuracy, lag_s=0.0)
    stream = Stream("node.ac", "power", "node.ac", update_s, (spec,), device="S1", model=reference)
    recorder.write(reference, "power", [(stream, t, (shown,))])


def draw_other_load(rng: np.random.Generator, count: int, seconds: float) -> Floats:
    """Draw the load of a training or a server: stretches of different loads, idle before and after."""
    size = round((LEAD_S + seconds + TAIL_S) / GRID_S)
    loads = np.zeros((count, size))
    begin, end = round(LEAD_S / GRID_S), size - round(TAIL_S / GRID_S)
    high = rng.uniform(0.4, 1.0)
    together = rng.random() < 0.5
    for k in range(count):
        at = begin
        while at < end:
            stretch = round(rng.uniform(0.5, 12.0) / GRID_S)
            loads[k, at : min(at + stretch, end)] = high * rng.uniform(0.3, 1.0)
            at += stretch
        if together:
            loads[k] = loads[0]
    return loads


@dataclass(frozen=True)
class Judged:
    """Hold one energy of a judged run: relative error and half-width (k = 2), by way of calibration."""

    way: str
    name: str
    error: float
    width: float
    count: int

    @property
    def is_inside(self) -> bool:
        """Return whether the truth lies in the interval."""
        return abs(self.error) <= self.width


def record_staircase(
    folder: Path,
    rng: np.random.Generator,
    node: DrawnNode,
    reference: str,
    *,
    repeats: int = 3,
    step_s: float | None = None,
) -> tuple[Path, Path, float]:
    """Record a staircase, and the idle node without its GPUs; return both runs and the length of the staircase (s)."""
    step_s = step_s or choose_step_s(UPDATES_S[reference], has_command=False)
    plan = np.array(plan_steps(node.count, repeats, int(rng.integers(1 << 30)))).T
    level = plan * rng.uniform(0.9, 1.0, plan.shape)
    size = round(step_s / GRID_S)
    late = np.rint(rng.uniform(*BURN_SHARE, plan.shape) * size)
    loads = np.repeat(level, size, axis=1) * (np.arange(plan.shape[1] * size) % size >= np.repeat(late, size, axis=1))
    lead, tail = np.zeros((node.count, round(LEAD_S / GRID_S))), np.zeros((node.count, round(TAIL_S / GRID_S)))
    powers = make_powers(rng, node, np.hstack((lead, loads, tail)), rng.uniform(20, 30))
    phases = [(LEAD_S + k * step_s, LEAD_S + (k + 1) * step_s) for k in range(plan.shape[1])]
    run = record_run(folder, rng, node, powers, reference, phases=phases)
    empty = make_powers(rng, node, np.zeros((node.count, round(60 / GRID_S))), 25.0, has_gpus=False)
    zero = record_run(folder, rng, node, empty, reference, has_gpus=False)
    return run, zero, step_s * plan.shape[1]


def calibrate_node(
    folder: Path, rng: np.random.Generator, node: DrawnNode, reference: str
) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Record a staircase and fit it, without and with a run of the node without GPUs; also return its length (s)."""
    run, zero, seconds = record_staircase(folder, rng, node, reference)
    supply = parse_supply(f"{node.supply_class}:{node.rated_w:.0f}")
    devices = tuple(f"gpu:{k}" for k in range(node.count))
    options = FitOptions(reference, devices, supply, has_fixed_fans=node.fans == "fixed")
    with open_run(run) as opened, open_run(zero) as without:
        plain, full = fit_run(opened, options), fit_run(opened, replace(options, zero=without))
    return plain.record, full.record, seconds


def judge_draw(seed: int, reference: str, count: int | None = None) -> list[Judged]:
    """Draw a node, calibrate it, and judge all ways on another load."""
    rng = np.random.default_rng((SEED, seed, WALL_METERS.index(reference), count or 0))
    node = draw_node(rng, reference, count)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            plain, full, _ = calibrate_node(folder, rng, node, reference)
        except Refused as error:
            return [Judged("refused", error.code, 0.0, 0.0, node.count)]
        seconds = float(rng.uniform(20, 60))
        powers = make_powers(rng, node, draw_other_load(rng, node.count, seconds), rng.uniform(20, 30))
        run = record_run(folder, rng, node, powers, reference)
        found = []
        with open_run(run) as opened:
            for way, record in (("none", {}), ("calibrated", plain), ("with zero", full)):
                result = analyse_run(opened, calibration=record)
                true = [powers.find_energy(k, LEAD_S, LEAD_S + seconds) for k in range(node.count)]
                for k, scope in enumerate(s for s in result.scopes if s.scope.startswith("gpu")):
                    found.append(Judged(way, "each", *_compare(scope.energy, true[k]), node.count))
                group = result.group("gpu")
                assert group is not None and group.net is not None  # noqa: PT018
                found.append(Judged(way, "sum", *_compare(group.energy, sum(true)), node.count))
                rest = [powers.find_energy(k, *IDLE_S) / (IDLE_S[1] - IDLE_S[0]) for k in range(node.count)]
                found.append(Judged(way, "net", *_compare(group.net, sum(true) - seconds * sum(rest)), node.count))
        # No more than this can be known where nothing shows the offsets.
        least = 2 * OFFSET_W / np.sqrt(3) * np.sqrt(node.count) * seconds / sum(true)
        found.append(Judged("offset", "sum", 0.0, float(least), node.count))
        return found


def _compare(energy: Quantity, true_j: float) -> tuple[float, float]:
    return energy.value / true_j - 1, 2 * energy.u / true_j


def print_table(reference: str, judged: Sequence[Judged]) -> bool:
    """Print share inside, median half-width and errors by way.

    Return whether the truth is inside often enough, and U small enough with `--zero`.
    """
    refused = [one.name for one in judged if one.way == "refused"]
    print(f"\n{reference}: {len(refused)} draws refused {sorted(set(refused)) or ''}")
    print(f"{'':31s} {'energies':>8s} {'inside':>8s} {'median U':>9s} {'rms error':>10s} {'worst':>8s}")
    kept = True
    names = {"each": "each GPU", "sum": "all GPUs of a node", "net": "the same above idle"}
    for way in ("none", "calibrated", "with zero"):
        for name, what in names.items():
            rows = [one for one in judged if (one.way, one.name) == (way, name)]
            if not rows:
                continue
            inside = float(np.mean([one.is_inside for one in rows]))
            width = float(np.median([one.width for one in rows]))
            rms = float(np.sqrt(np.mean([one.error**2 for one in rows])))
            worst = max(abs(one.error) for one in rows)
            print(f"{way:10s} {what:20s} {len(rows):8d} {inside:8.1%} {width:9.2%} {rms:10.2%} {worst:8.2%}")
            if way != "none" and name == "sum":
                is_met = inside >= LEAST_INSIDE and width <= MOST_U[reference]
                verdict = "met" if is_met else "MISSED"
                print(f"    {verdict}: {LEAST_INSIDE:.0%} inside, median U of {MOST_U[reference]:.0%}")
                kept &= inside >= LEAST_INSIDE and (is_met or way == "calibrated")
    least = float(np.median([one.width for one in judged if one.way == "offset"]))
    print(f"    offsets within {OFFSET_W:g} W alone: median U of all GPUs of a node {least:.2%}")
    return kept


def print_eight(seed: int = 1) -> None:
    """Print how long 8 GPUs behind one wall meter take, and U of each and of the sum under full load."""
    for reference in WALL_METERS:
        rng = np.random.default_rng((SEED, seed, 8))
        node = draw_node(rng, reference, 8)
        with tempfile.TemporaryDirectory() as name:
            plain, full, seconds = calibrate_node(Path(name), rng, node, reference)
        print(f"\n8 GPUs, {reference}: the staircase takes {seconds / 60:.0f} min")
        for way, record in (("calibrated", plain), ("with zero", full)):
            rows = [np.array(d["factors"]) for d in record["devices"]]
            watts = [d["high_w"] for d in record["devices"]]
            effect = [row[:, 0] * w + row[:, 1] for row, w in zip(rows, watts, strict=True)]
            bends = [d["bend_w"] / np.sqrt(3) for d in record["devices"]]
            each = [2 * np.hypot(np.linalg.norm(e), b) / w for e, b, w in zip(effect, bends, watts, strict=True)]
            whole = 2 * float(np.hypot(np.linalg.norm(sum(effect)), np.linalg.norm(bends))) / sum(watts)
            print(f"    {way:10s} U at full load: each GPU {min(each):.2%} to {max(each):.2%}, sum {whole:.2%}")


def print_recordings() -> None:
    """Calibrate recorded GPUs on the first part of each recording, and judge the rest against the same meter.

    The meter is on the GPU itself, so there are neither supplies nor a rest of a node. Its own error is in both parts.
    """
    from tests.analysis.recordings import BASE_S, CHANNELS, DATA, read_recording

    if not DATA.is_dir():
        print(f"no {DATA}: recordings are not part of the project")
        return
    print(f"{'':22s} {'s':>5s} {'gain':>14s} {'offset, W':>14s} {'judged':>8s} {'none':>16s} {'calibrated':>16s}")
    for name, kind in (pair for pair in CHANNELS if pair[1] == "instant"):
        found = read_recording(name)
        curve = found.make_curve(kind, found.find_lag())
        first, last = max(found.t[0], found.meter.t[0]) + 1.1, min(found.t[-1], found.meter.t[-1]) - 0.3
        split = first + RECORDED_PART * (last - first)
        ends = np.arange(first - 1.0, split, RECORDED_STEP_S)
        spans = list(itertools.pairwise(ends))
        means = [
            (curve.energy(*(round((BASE_S + s) * NS) for s in span)).value / RECORDED_STEP_S, found.meter.energy(*span))
            for span in spans
        ]
        shown, true = np.array([m for m, _ in means]), np.array([e for _, e in means]) / RECORDED_STEP_S
        count = len(spans)
        steps = LoadSteps(
            np.arange(count), np.array([(a + b) / 2 for a, b in spans]), np.full(count, RECORDED_STEP_S),
            true, np.full(count, 1.0), shown[:, None], np.full((count, 1), 2.0), np.full((count, 1), np.nan),
            np.ones((count, 1), bool), np.empty((count, 0)),
        )  # fmt: skip
        accuracy = curve.spec.accuracy
        device = FittedDevice("gpu:0", accuracy.gain, accuracy.offset)
        fit = fit_calibration(steps, [device], ReferenceMeter(0.0, 0.0, 0.001, is_around=False))
        if isinstance(fit, FitRefusal):
            print(f"{name + ' ' + kind:22s} {split - first:5.1f} refused: {fit.code} {dict(fit.numbers)}")
            continue
        one = fit.devices[0]
        a, b = (round((BASE_S + s) * NS) for s in (split, last))
        plain, seconds = curve.energy(a, b), last - split
        other = plain.without("gain", "offset")
        value = one.gain * plain.value + one.offset_w * seconds
        wide = np.hypot(2 * other.u, one.compute_expanded(plain.value / seconds) * seconds)
        energy = found.meter.energy(split, last)
        fitted = f"{one.gain:6.3f} ± {2 * one.gain_u:5.3f} {one.offset_w:6.1f} ± {2 * one.offset_u_w:5.1f}"
        errors = [(plain.value, 2 * plain.u), (value, wide)]
        judged = " ".join(f"{joules / energy - 1:+7.2%} ± {width / energy:5.2%}" for joules, width in errors)
        print(f"{name + ' ' + kind:22s} {split - first:5.1f} {fitted} {seconds:6.1f} s {judged}")


def main() -> int:
    """Run all draws and print the tables; return 1 if the promise is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="draws with each reference")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw")
    parser.add_argument("--reference", choices=WALL_METERS, action="append")
    parser.add_argument("--gpus", type=int, help="GPUs of each node; drawn by default")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--recordings", action="store_true", help="only recorded GPUs")
    options = parser.parse_args()
    if options.recordings:
        print_recordings()
        return 0
    began, kept = time.monotonic(), []
    with ProcessPoolExecutor(options.workers) as pool:
        for reference in options.reference or WALL_METERS:
            draw = partial(judge_draw, reference=reference, count=options.gpus)
            seeds = range(options.first, options.first + options.count)
            judged = [one for some in pool.map(draw, seeds) for one in some]
            kept.append(print_table(reference, judged))
    print_eight()
    print(f"\n{time.monotonic() - began:.0f} s")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
