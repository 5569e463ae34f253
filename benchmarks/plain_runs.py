"""Measure plain runs of 60 s on simulated GPUs, and compare pairs of them: how wide, how often right, what is resolved.

    python -m benchmarks.plain_runs [--count RUNS] [--seed NUMBER]

Each run is a folder in virtual time, analysed and compared by the code behind `joulelab show` and `joulelab compare`,
without marks of the workload. A device has the same drawn gain and offset in both runs of a pair.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.loads import NS, START, draw_load, draw_log_uniform, list_kinds, make_curve
from benchmarks.wall_scenarios import HOST, Recorder
from joulelab.analysis.analyse import analyse_run
from joulelab.core.spec import Stream
from joulelab.instruments.nvml.generations import Sensor, find_sensor, power_specs
from joulelab.report.comparison import compare_runs
from joulelab.store.run_folder import create_run, end_run
from joulelab.store.run_reader import open_run
from joulelab.twin.flaws import GA100, HOPPER, TURING, Counter, Flaws
from joulelab.twin.readings import read_average_w, read_counter_j, read_instant_w

if TYPE_CHECKING:
    from joulelab.analysis.result import Result
    from joulelab.twin.power_curves import Curve

LEAD_S, TAIL_S, SPAN_S, PERIOD_S = 3.0, 2.0, 60.0, 0.1
SEED = 19
DEVICES: dict[str, tuple[Sensor, Flaws, tuple[float, float]]] = {
    "H100": (find_sensor(9, (9, 0), "NVIDIA H100 80GB HBM3"), HOPPER, (60.0, 700.0)),
    "A100": (find_sensor(7, (8, 0), "NVIDIA A100-SXM4-80GB"), GA100, (50.0, 400.0)),
    "RTX 6000": (find_sensor(6, (7, 5), "Quadro RTX 6000"), replace(TURING, power_window_s=0.02), (20.0, 260.0)),
}


def measure_run(folder: Path, rng: np.random.Generator, device: str, curve: Curve, flaws: Flaws) -> Result:
    """Record one GPU while a load runs, as `joulelab run` does, and analyse the run."""
    found, _, limits = DEVICES[device]
    specs = power_specs(found, device, limits)
    a, b = START + round(LEAD_S * NS), START + round((LEAD_S + SPAN_S) * NS)
    phases = {f"{kind}_phase_s": float(rng.uniform(0, 0.1)) for kind in ("power", "counter")}
    flaws = replace(flaws, **phases)
    usual = np.arange(rng.uniform(0, PERIOD_S), LEAD_S + SPAN_S + TAIL_S, PERIOD_S)
    quick = [np.arange(edge - 0.1, edge + 0.12, 0.002) for edge in (LEAD_S, LEAD_S + SPAN_S)]
    at = np.sort(np.concatenate((usual, *quick)))
    t = START + np.unique(np.rint((at + np.abs(rng.normal(0, 2e-4, at.size))) * NS).astype(np.int64))
    stamp = {"mono_ns": START, "utc_ns": START, "width_ns": 400, "kernel_error_ns": None, "boot_id": "b"}
    run = create_run(folder, {"host": HOST, "command": ["python", "train.py"], "started": stamp, "owner": {}})
    stream = Stream("gpu:0.power", "power", "gpu:0", PERIOD_S, specs, device="GPU-0", model=device)
    columns = [f(curve, flaws, t, start_ns=START) for f in (read_counter_j, read_instant_w, read_average_w)]
    Recorder(run).write("nvml", "power", [(stream, t, columns)])
    (run / HOST / "events.run.jsonl").write_text(json.dumps({"t": a, "event": "workload", "start_ns": a}) + "\n")
    end_run(run, {"outcome": "exit", "exit_code": 0, "ended": stamp, "start_ns": a, "end_ns": b})
    return analyse_run(open_run(run))


def draw_flaws(rng: np.random.Generator, device: str) -> Flaws:
    """Draw a board: gain and offset within what is assumed, a counter of all power or of what the sensor saw."""
    found, flaws, _ = DEVICES[device]
    return replace(
        flaws,
        gain_error=float(rng.uniform(-found.gain, found.gain)),
        offset_w=float(rng.uniform(-found.offset_w, found.offset_w)),
        counter=Counter(str(rng.choice(["true", "seen"]))),
        noise_w=1.0,
    )


def measure_width(device: str, count: int, seed: int = SEED) -> tuple[float, float, float]:
    """Return share inside, median and largest relative U of plain runs of all kinds of load."""
    rng, rows = np.random.default_rng((seed, list(DEVICES).index(device))), []
    scale = DEVICES[device][2][1] / 700.0
    for kind in list_kinds():
        for _ in range(count):
            curve = draw_load(rng, kind, LEAD_S, SPAN_S, TAIL_S, scale)
            with tempfile.TemporaryDirectory() as folder:
                result = measure_run(Path(folder), rng, device, curve, draw_flaws(rng, device))
            assert result.energy is not None
            a, b = result.start_ns, result.end_ns
            true = float(np.diff(curve.joules(np.array([a, b])))[0])
            expanded = 2 * result.energy.u
            rows.append((abs(result.energy.value - true) <= expanded, expanded / result.energy.value))
    inside, width = np.array(rows, dtype=float).T
    return float(inside.mean()), float(np.median(width)), float(np.percentile(width, 90))


def make_load(rng: np.random.Generator, wave: bool, watts: float, period_s: float) -> Curve:
    """Make a constant load, or a square wave down to 30 % of it."""
    end = LEAD_S + SPAN_S + TAIL_S
    if not wave:
        return make_curve(np.array([0.0, LEAD_S, LEAD_S, end]), np.array([0.15, 0.15, 1.0, 1.0]) * watts)
    rises = LEAD_S - rng.uniform(0, period_s) + period_s * np.arange(int(end / period_s) + 1)
    at = np.maximum(np.stack((rises, rises, rises + period_s / 2, rises + period_s / 2), axis=1).ravel(), LEAD_S)
    level = np.tile([0.3, 1.0, 1.0, 0.3], rises.size) * watts
    return make_curve(np.concatenate(([0.0, LEAD_S], at)), np.concatenate(([0.15 * watts] * 2, level)))


def compare_pairs(device: str, difference: float, count: int, *, wave: bool, seed: int = SEED) -> tuple[float, float]:
    """Return the share of pairs with a significant difference, and the median U of the ratio."""
    drawn = (seed, list(DEVICES).index(device), round(1e4 * difference), wave)
    rng, rows = np.random.default_rng(drawn), []
    for _ in range(count):
        flaws, watts = draw_flaws(rng, device), rng.uniform(0.4, 0.95) * DEVICES[device][2][1]
        period = draw_log_uniform(rng, 0.005, 10.0)
        with tempfile.TemporaryDirectory() as folder:
            runs = [
                measure_run(Path(folder), rng, device, make_load(rng, wave, watts * factor, period), flaws)
                for factor in (1.0, 1 + difference)
            ]
        line = compare_runs(*runs).lines[0]
        assert line.ratio is not None
        rows.append((bool(line.is_different), 2 * line.ratio.u))
    found = np.array(rows, dtype=float)
    return float(found[:, 0].mean()), float(np.median(found[:, 1]))


def main() -> int:
    """Print both tables; return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="runs of each kind of load (pairs: five times as many)")
    parser.add_argument("--seed", type=int, default=SEED, help="of all that is drawn")
    options = parser.parse_args()
    missed = 0
    print(f"{'run of 60 s':12s} {'gain':>6s} {'inside':>8s} {'median U':>9s} {'90 % of U':>9s}")
    for device, (found, _, _) in DEVICES.items():
        inside, width, wide = measure_width(device, options.count, options.seed)
        missed += inside < 0.95 or (found.gain <= 0.06 and width > 0.08)
        print(f"{device:12s} {found.gain:6.0%} {inside:8.1%} {width:9.2%} {wide:9.2%}", flush=True)
    print(f"\n{'pairs':12s} {'load':12s} {'difference':>10s} {'significant':>11s} {'median U':>9s}")
    for device in DEVICES:
        for wave in (False, True):
            for difference in (0.0, 0.01):
                share, width = compare_pairs(device, difference, 5 * options.count, wave=wave, seed=options.seed)
                missed += not wave and (share < 0.95 if difference else share > 0.05)
                load = "square wave" if wave else "constant"
                print(f"{device:12s} {load:12s} {difference:10.0%} {share:11.1%} {width:9.2%}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
