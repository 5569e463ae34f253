"""Measure `plan when` over a week of 15-minute slots with ten caps: time, and gap to the optimum.

The times of the processor are printed beside those of the clock, because a solver shares its machine. Bounds are those
of HiGHS. `--only NAME` solves one of the problems, `--limit S` sets the time limit of the solver.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from joulelab.plan.when.when_program import JobModes, RestartCost, find_cheapest_slots

SLOT_S, HOUR_S = 900.0, 3_600.0
POWER_W, IDLE_W = 6_980.0, 2_200.0  # single 8xH100 nodes of public logs
WORK_S = 60 * HOUR_S


def make_week(seed: int = 1) -> np.ndarray:
    """Return intensities (g/J) of a week of quarters: two humps a day, a dip at noon, slow weather, noise."""
    draw = np.random.default_rng(seed)
    hours = np.arange(0.0, 168.0, 0.25)
    noise = np.zeros(len(hours))
    for k in range(1, len(hours)):
        noise[k] = 0.97 * noise[k - 1] + draw.normal(0, 8)
    sun = 110 * np.exp(-(((hours % 24 - 12) / 3.5) ** 2))
    values = 380 - 36 * np.cos((hours - 19) / 6 * np.pi) - sun + 40 * np.sin(hours / 60 * np.pi) + noise
    return np.maximum(values, 20.0) / 3.6e6


def make_modes(caps: int) -> JobModes:
    """Return a job with so many caps, of which the last is none."""
    speeds = np.linspace(0.55, 1.0, caps) if caps > 1 else np.ones(1)
    return JobModes(speeds, IDLE_W + (POWER_W - IDLE_W) * (0.35 * speeds + 0.65 * speeds**3))


PROBLEMS = {
    "off": ("node off in pauses, ten caps", 10, 0.0, RestartCost()),
    "pauses": ("node idles in pauses, no caps", 1, IDLE_W, RestartCost()),
    "caps": ("node idles in pauses, ten caps", 10, IDLE_W, RestartCost()),
    "restarts": ("a restart takes 10 min, no caps", 1, IDLE_W, RestartCost(600.0)),
    "restart-caps": ("a restart takes 10 min, ten caps", 10, IDLE_W, RestartCost(600.0)),
}


def main() -> int:
    """Print time and gap of each problem; return 1 if a gap is above 1 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PROBLEMS, action="append")
    parser.add_argument("--limit", type=float, default=60.0)
    options = parser.parse_args()
    rates, widest = make_week(), 0.0
    print(f"{len(rates)} slots of 15 min, {WORK_S / HOUR_S:g} h of work, one thread")
    for name in options.only or PROBLEMS:
        title, caps, pause_w, restart = PROBLEMS[name]
        clock_s, processor_s = time.perf_counter(), time.process_time()
        found = find_cheapest_slots(
            rates, np.full(len(rates), SLOT_S), WORK_S, make_modes(caps), pause_w, restart=restart,
            time_limit_s=options.limit,
        )  # fmt: skip
        clock_s, processor_s = time.perf_counter() - clock_s, time.process_time() - processor_s
        times = f"{clock_s:6.1f} s of the clock, {processor_s:6.1f} s of the processor"
        print(f"  {title:<34} {times}, gap {found.gap:.4%}, {found.cost / 1e3:.3f} kg", flush=True)
        widest = max(widest, found.gap)
    return 0 if widest <= 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
