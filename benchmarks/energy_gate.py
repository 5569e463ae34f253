"""Count wrong answers of `joulelab gate`: false alarms without a rise, and rises of 5 % that pass or stay undecided.

    python -m benchmarks.energy_gate [--trials NUMBER] [--drawn NUMBER] [--seed NUMBER]

In a trial, a baseline of five runs and up to ten repeats are recorded in virtual time on one simulated H100 (60 s each,
with the flaws of its sensor and a gain and offset that are drawn for each trial), analysed, and judged after each
repeat from the third on by the code behind `joulelab gate BASELINE -- CMD`. Runs of one program scatter.
The second table has many more trials, of drawn energies without readings: the rule by itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.plain_runs import draw_flaws, make_load, measure_run
from joulelab.analysis.cell_comparison import make_sample
from joulelab.analysis.energy_gate import FEWEST_REPEATS, find_look_level, judge_rise
from joulelab.report.gate_output import judge_groups
from joulelab.report.group_comparison import RunGroup

if TYPE_CHECKING:
    from joulelab.analysis.result import Result

SEED, LIMIT, AT_MOST, BASELINE = 27, 0.05, 10, 5
SCATTERS = (0.005, 0.01, 0.015)  # standard deviation of the energy of one program's runs
RISES = (0.0, 0.025, 0.05, 0.1)
DEVICE = "H100"


def judge_trial(number: int, *, rise: float, scatter: float, seed: int) -> tuple[str, int]:
    """Return the answer about one simulated program, and how often it was run."""
    rng = np.random.default_rng((seed, number, round(1e4 * rise), round(1e4 * scatter)))
    flaws, watts = draw_flaws(rng, DEVICE), float(rng.uniform(250, 650))

    def record(factor: float) -> Result:
        drawn = watts * factor * float(rng.normal(1.0, scatter))
        with tempfile.TemporaryDirectory() as folder:
            return measure_run(Path(folder), rng, DEVICE, make_load(rng, False, drawn, 1.0), flaws)  # noqa: FBT003

    baseline = RunGroup("A", "baseline", tuple(record(1.0) for _ in range(BASELINE)))
    runs: list[Result] = []
    while True:
        runs.append(record(1 + rise))
        if len(runs) < FEWEST_REPEATS:
            continue
        level = find_look_level(len(runs), AT_MOST)
        verdict = judge_groups(baseline, RunGroup("B", "now", tuple(runs)), LIMIT, level).verdict
        if not verdict.needs_repeats or len(runs) == AT_MOST:
            return verdict.decision, len(runs)


def judge_drawn(number: int, *, rise: float, scatter: float, seed: int) -> tuple[str, int]:
    """Return the answer about energies that are drawn directly."""
    rng = np.random.default_rng((seed, number, round(1e4 * rise), round(1e4 * scatter), 1))
    baseline = make_sample(rng.normal(1.0, scatter, BASELINE).tolist(), 0.0)
    values = rng.normal(1 + rise, (1 + rise) * scatter, AT_MOST).tolist()
    for count in range(FEWEST_REPEATS, AT_MOST + 1):
        verdict = judge_rise(make_sample(values[:count], 0.0), baseline, LIMIT, find_look_level(count, AT_MOST))
        if not verdict.needs_repeats:
            break
    return verdict.decision, count


def main() -> int:
    """Print both tables; return 1 if a promise is missed on the twin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="on the twin, for each row")
    parser.add_argument("--drawn", type=int, default=2000, help="of drawn energies, for each row")
    parser.add_argument("--seed", type=int, default=SEED, help="of all that is drawn")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    missed = 0
    with ProcessPoolExecutor(options.workers) as pool:
        for name, judge, trials in (("twin", judge_trial, options.trials), ("drawn", judge_drawn, options.drawn)):
            print(f"{name:8s} {'scatter':>8s} {'rise':>6s} {'trials':>7s} {'above':>12s} {'not above':>10s}"
                  f" {'undecided':>10s} {'runs':>5s}")  # fmt: skip
            for scatter in SCATTERS:
                for rise in RISES:
                    ask = partial(judge, rise=rise, scatter=scatter, seed=options.seed)
                    found = list(pool.map(ask, range(trials), chunksize=10))
                    counts, runs = Counter(decision for decision, _ in found), np.mean([n for _, n in found])
                    above = counts["above"]
                    print(f"{'':8s} {scatter:8.1%} {rise:6.1%} {trials:7d} {above:5d} {above / trials:6.1%}"
                          f" {counts['not above']:10d} {counts['undecided']:10d} {runs:5.1f}", flush=True)  # fmt: skip
                    if name == "twin":
                        missed += (rise == 0 and above > 0.05 * trials) or (rise >= 0.05 and above < 0.95 * trials)
    print("a promise is missed" if missed else "false alarms at most 5 %, rises of 5 % found in at least 95 %")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
