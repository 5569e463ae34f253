"""Measure when to run a job: time and gain over a week of quarter hours with ten caps, and the price of an idle node.

Speed is a ratio to one pass of the same problem through a plain bisection on the price of work (which knows nothing of
windows, and so does not solve it), in the same run. Gains are on a series made up here, or on a CSV of your own:
`python -m benchmarks.plan_when --intensity FILE.csv`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from joulelab.plan.rates.find import rate_of
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.steps import Steps
from joulelab.plan.when.baselines import Terms, gain, idling, ways_of
from joulelab.plan.when.blocks import Restart, fill_blocks
from joulelab.plan.when.job import Wanted, job_given
from joulelab.plan.when.optimum import Modes, fill
from joulelab.plan.when.slots import slots_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.analysis.readings import Floats
    from joulelab.plan.when.slots import Slots

SINCE_S = 1_794_787_200.0  # a Monday, 2026-11-16
DAY_S, HOUR_S = 86_400.0, 3_600.0
POWER_W, IDLE_W, RATED_W = 6_980.0, 2_200.0, 10_200.0  # single 8xH100 nodes of public logs; DGX H100's nameplate
REPEATS = 5


def made_up(days: int, seed: int = 1) -> Steps:
    """Return hourly intensities: two humps a day, a dip at noon, slow weather, noise that remembers."""
    draw = np.random.default_rng(seed)
    hours = np.arange(24.0 * days)
    noise = np.zeros(len(hours))
    for k in range(1, len(hours)):
        noise[k] = 0.9 * noise[k - 1] + draw.normal(0, 12)
    sun = 110 * np.exp(-(((hours % 24 - 12) / 3.5) ** 2))
    values = 380 - 36 * np.cos((hours - 19) / 6 * np.pi) - sun + 40 * np.sin(hours / 60 * np.pi) + noise
    label = Label("average", "g/kWh", "made up", resolution_s=HOUR_S)
    return Steps(label, SINCE_S + HOUR_S * hours, np.maximum(values, 20.0), SINCE_S + days * DAY_S)


def bisected(rates: Floats, lengths_s: Floats, work_s: float, modes: Modes) -> float:
    """Return the cost of the cheapest filling without windows: pauses cost nothing anywhere."""
    speeds, powers = np.append(modes.speeds, 0.0), np.append(modes.powers_w, 0.0)
    low, high = 0.0, 10 * float(np.abs(rates).max()) * float(powers.max())
    chosen = np.zeros(len(rates), dtype=int)
    for _ in range(60):
        price = (low + high) / 2
        chosen = np.argmin(rates[:, None] * powers - price * speeds, axis=1)
        low, high = (price, high) if speeds[chosen] @ lengths_s < work_s else (low, price)
    return float(rates * powers[chosen] @ lengths_s)


def least(call: Callable[[], object]) -> float:
    """Return the least time of some calls, in s."""
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return min(times)


def speed() -> bool:
    """Print how long a week of quarter hours with ten caps takes; return whether costs are as low as by bisecting."""
    slots = slots_of(made_up(8), SINCE_S, SINCE_S + 7 * DAY_S)
    speeds = np.linspace(0.55, 1.0, 10)
    powers = IDLE_W + (POWER_W - IDLE_W) * (0.35 * speeds + 0.65 * speeds**3)
    rates, lengths, work_s = slots.per_j, slots.lengths_s, 60 * HOUR_S
    off, idle, never = (Modes(speeds, powers, pause_w) for pause_w in (0.0, IDLE_W, None))
    plain = least(lambda: bisected(rates, lengths, work_s, off))
    print(f"{len(rates)} slots x {len(speeds)} caps; bisecting on the price once: {plain * 1e3:.1f} ms")
    for name, call in {
        "node off in pauses (exact, one problem)": lambda: fill(rates, lengths, work_s, off),
        "node idles in pauses (exact, all windows)": lambda: fill(rates, lengths, work_s, idle),
        "never paused (exact, all windows)": lambda: fill(rates, lengths, work_s, never),
        "pauses that cost 10 min (exact on the grid, no caps)": lambda: fill_blocks(
            rates, lengths, work_s, POWER_W, IDLE_W, Restart(600.0)
        ),
    }.items():
        took = least(call)
        print(f"  {name:<54} {took * 1e3:7.1f} ms  {took / plain:6.1f} x bisecting")
    ratio = fill(rates, lengths, work_s, off).cost / bisected(rates, lengths, work_s, off)
    print(f"  cost where both can solve it: {ratio:.5f} of bisecting (which may do up to a slot of work too much)")
    return 0.98 < ratio <= 1 + 1e-9


def gains(slots: Slots, hours: float) -> None:
    """Print what each way saves, for a node that idles as measured, less or not at all in pauses."""
    wanted = Wanted(hours * HOUR_S, POWER_W, IDLE_W, RATED_W, gpus=8, gpu_w=700.0)
    print(f"\n{slots.label.name}: a job of {hours:g} h in {len(slots.values)} slots; caps by a model")
    for terms in (Terms(), Terms(Restart(600.0))):
        job = job_given(wanted)
        ways = ways_of(job, slots, terms)
        again = f", a pause costs {terms.restart.time_s / 60:g} min" if terms.restart else ""
        print(f"  idle {100 * IDLE_W / POWER_W:.1f} % of the power at work{again}")
        for way in ways[1:]:
            share = gain(way, ways[0])
            assert share is not None
            print(f"    {way.title:<20} {-100 * share.value:+6.1f} % against now, {way.restarts} pauses")
        off = next(way for way in ways if way.name == "pauses-off")
        eaten = (off.cost.value + idling(off, job, slots, terms)) / ways[0].cost.value - 1
        print(f"    the pauses of `{off.title}` with a node that idles: {100 * eaten:+.1f} %")


def main() -> int:
    """Print speed and gains; return 1 where the optimum is none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--intensity", type=Path, help="CSV of your own")
    parser.add_argument("--hours", type=float, default=40.0)
    options = parser.parse_args()
    right = speed()
    gains(slots_of(made_up(8), SINCE_S, SINCE_S + 7 * DAY_S), options.hours)
    if options.intensity is not None:
        rate = rate_of(str(options.intensity), want="carbon")
        assert isinstance(rate, Steps)
        gains(slots_of(rate, rate.since_s, min(rate.end_s, rate.since_s + 7 * DAY_S)), options.hours)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
