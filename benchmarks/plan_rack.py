"""Print how often true percentiles of node power lie in the intervals that the rack planner gives, by kind of load.

Loads are drawn with known distributions: steady with memory, square waves, on and off at random, bursts. `upper` is
how often the truth is below the upper end where the data support one (97.5 % is promised); `few` the same where they
do not, beside the confidence that the planner owns up to; a percentile below 1/(1-p) blocks is refused. Loads whose
level is another in each run have to be refused where there are few runs; of one run nobody can tell, which is said.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from joulelab.plan.measured_runs import HostTrace
from joulelab.plan.rack.peaks import PercentileRefusal, compute_exceedance, compute_percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.analysis.readings import Floats

STEP_S = 2.0
IDLE_W, BUSY_W, NOISE_W = 2200.0, 7000.0, 60.0
NORMAL = NormalDist()


@dataclass(frozen=True)
class Load:
    """Hold a kind of load: how to draw a series, and the true share of time above a power (W)."""

    name: str
    series: Callable[[int, np.random.Generator], Floats]
    above: Callable[[float], float]

    def percentile(self, p: float) -> float:
        """Return the true percentile (W), by halving."""
        low, high = 0.0, 20_000.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.above(middle) > 1 - p else (low, middle)
        return high


def autoregressive(size: int, rng: np.random.Generator, memory: float) -> Floats:
    """Return a series of spread 1 that forgets by a factor per step."""
    noise = rng.normal(size=size) * math.sqrt(1 - memory**2)
    noise[0] = rng.normal()
    if not memory:
        return noise
    found = np.empty(size)
    last = 0.0
    for n, value in enumerate(noise):
        last = memory * last + value
        found[n] = last
    return found


def steady(memory: float) -> Load:
    """Return a load that wanders about its mean."""
    return Load(
        f"steady, memory {memory:g} a step",
        lambda size, rng: BUSY_W + NOISE_W * autoregressive(size, rng, memory),
        lambda watts: 1 - NORMAL.cdf((watts - BUSY_W) / NOISE_W),
    )


def levels_by_run(spread_w: float) -> Load:
    """Return a load whose level is another in each run; the truth is that of all runs there could be."""
    whole_w = math.hypot(spread_w, NOISE_W)
    return Load(
        f"levels by run, {spread_w:g} W",
        lambda size, rng: BUSY_W + spread_w * rng.normal() + NOISE_W * rng.normal(size=size),
        lambda watts: 1 - NORMAL.cdf((watts - BUSY_W) / whole_w),
    )


def two_levels(name: str, duty: float, busy: Callable[[int, np.random.Generator], Floats]) -> Load:
    """Return a load of two levels with noise on both; `busy` says where it is on the high one, a share of the time."""

    def series(size: int, rng: np.random.Generator) -> Floats:
        level = np.where(busy(size, rng) > 0, BUSY_W, IDLE_W)
        found: Floats = level + NOISE_W * rng.normal(size=size)
        return found

    def above(watts: float) -> float:
        high, low = (1 - NORMAL.cdf((watts - level) / NOISE_W) for level in (BUSY_W, IDLE_W))
        return duty * high + (1 - duty) * low

    return Load(name, series, above)


def square(period: int, duty: float) -> Load:
    """Return a load that repeats, its start anywhere in the period."""

    def busy(size: int, rng: np.random.Generator) -> Floats:
        phase = (np.arange(size) + rng.uniform(0, period)) % period
        return (phase < duty * period).astype(float)

    return two_levels(f"square, {period * STEP_S:g} s, {duty:.0%} on", duty, busy)


def telegraph(on: float, off: float, name: str) -> Load:
    """Return a load that switches at random, with mean stays in steps."""

    def busy(size: int, rng: np.random.Generator) -> Floats:
        found = np.empty(size)
        state, place = rng.random() < on / (on + off), 0
        while place < size:
            stay = rng.geometric(1 / (on if state else off))
            found[place : place + stay] = state
            state, place = not state, place + stay
        return found

    return two_levels(f"{name}, {on * STEP_S:g} s on, {off * STEP_S:g} s off", on / (on + off), busy)


LOADS = (
    steady(0.0),
    steady(0.9),
    steady(0.98),
    square(30, 0.5),
    square(100, 0.02),
    telegraph(20, 20, "on/off"),
    telegraph(100, 20, "on/off"),
    telegraph(5, 500, "bursts"),
    telegraph(10, 190, "bursts"),
)

# What intervals of one run do not promise: they are about its work, not about runs that nobody measured.
BEYOND = (levels_by_run(60.0), levels_by_run(150.0))


def draw_of(watts: Floats, run: str, step_s: float = STEP_S) -> HostTrace:
    """Return a series as what a host drew, by a meter without error."""
    return HostTrace(
        run=run, name=run, host="node", side="ac", scopes=("node.ac",), start_utc_s=0.0,
        duration_s=watts.size * step_s, step_s=step_s, raw_s=step_s, window_s=0.0, mean_w=watts, high_w=watts, gain=0.0,
    )  # fmt: skip


@dataclass
class Tally:
    """Count what came of intervals."""

    refused: int = 0
    inside: int = 0
    supported: int = 0
    upper: int = 0
    few: int = 0
    few_upper: int = 0
    owned: float = 0.0
    width: float = 0.0

    def add(self, draws: Sequence[HostTrace], p: float, truth: float, seed: int) -> None:
        """Judge one set of runs."""
        found = compute_percentile(draws, p, seed=seed)
        if isinstance(found, PercentileRefusal):
            self.refused += 1
            return
        self.inside += found.low_w <= truth <= found.high_w
        self.width += (found.high_w - found.low_w) / truth
        if found.is_supported:
            self.supported += 1
            self.upper += truth <= found.high_w
        else:
            self.few += 1
            self.few_upper += truth <= found.high_w
            self.owned += found.reached

    def line(self, name: str) -> str:
        """Return one row."""
        given = self.supported + self.few
        share = [
            f"{top / of:8.1%}" if of else f"{'-':>8s}"
            for top, of in (
                (self.inside, given), (self.upper, self.supported), (self.few_upper, self.few), (self.owned, self.few),
                (self.width, given),
            )
        ]  # fmt: skip
        return f"{name:32s} {given:6d} {self.refused:7d} {' '.join(share)}"


def campaign(load: Load, p: float, *, count: int, runs: int, size: int, seed: int) -> tuple[Tally, float]:
    """Return what came of a load, and how often the interval of its exceeding held the truth."""
    rng = np.random.default_rng(seed)
    truth = load.percentile(p)
    tally, held = Tally(), 0
    for n in range(count):
        draws = [draw_of(load.series(size, rng), f"run {k}") for k in range(runs)]
        tally.add(draws, p, truth, seed + n)
        found = compute_exceedance(draws, truth)
        held += found.low <= 1 - p <= found.high
    return tally, held / count


def main() -> None:
    """Run the campaign and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=9)
    options = parser.parse_args()
    started = time.perf_counter()
    for runs, size, p in ((5, 600, 0.95), (5, 600, 0.99), (5, 6000, 0.99), (1, 6000, 0.95)):
        long = f"{runs} run(s) of {size * STEP_S / 60:.0f} min read every {STEP_S:g} s"
        print(f"\np{100 * p:g}, {long}, {options.count} sets, seed {options.seed}")
        head = ("inside", "upper", "few", "owned up", "width", "exceeds")
        print(f"{'':32s} {'given':>6s} {'refused':>7s} {' '.join(f'{h:>8s}' for h in head)}")
        for load in (*LOADS, *BEYOND):
            tally, held = campaign(load, p, count=options.count, runs=runs, size=size, seed=options.seed)
            print(f"{tally.line(load.name)} {held:8.1%}", flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
