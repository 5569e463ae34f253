"""Thin the logs of real nodes to one reading in 20 to 120 s, and look for the energy of the full log in the interval.

    python -m benchmarks.thinned_logs            by job: cases, share inside, median half-width, errors

Every offset that the rows allow; three ways in which a log may be described; the timed part of each log, and the time
between the first and the last reading that is left. Needs `../shared/data/h100-node-power`.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.loads import NS, REAL_LOGS, START, read_real_logs
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.core.spec import Accuracy, Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.loads import Floats

STEPS_S = (20.0, 30.0, 45.0, 60.0, 90.0, 120.0)
ROW_S = 2.0  # of the logs
# How a log may be described: every property, only its point readings, or nothing at all.
DESCRIBED = {
    "limits": (2.0, 0.0, (0.0, 10_200.0)),
    "points": (2.0, 0.0, None),
    "nothing": (None, None, None),
}


@dataclass(frozen=True)
class Case:
    """Hold one thinned log: job, step (s), description, part, and relative error and half-width (k = 2)."""

    job: str
    step_s: float
    described: str
    part: str
    error: float
    width: float

    @property
    def is_inside(self) -> bool:
        """Return whether the energy of the full log lies in the interval."""
        return abs(self.error) <= self.width


def stamp_second(second: float) -> int:
    """Return a second of a log as a stamp (ns); logs begin before second 0."""
    return START + round((second + 100.0) * NS)


def make_log_curve(t: Floats, watts: Floats, described: str, step_s: float | None) -> PowerCurve:
    """Make the curve of a log that is described in one of the ways of `DESCRIBED`."""
    update, window, limits = DESCRIBED[described]
    accuracy = Accuracy("assumed", shared="log")
    spec = Spec("power_w", "power", "W", "power", update, window, limits=limits, accuracy=accuracy)
    at = np.array([stamp_second(second) for second in t])
    return PowerCurve(Readings.from_rows(at, at + 1_000, watts), spec, name="node", step_s=step_s)


def _integrate(t: Floats, watts: Floats, a: float, b: float) -> float:
    """Return the energy (J) of the full log between two times."""
    ends = np.concatenate(([a], t[(t > a) & (t < b)], [b]))
    return float(np.trapezoid(np.interp(ends, t, watts), ends))


def list_cases(steps_s: tuple[float, ...] = STEPS_S, described: tuple[str, ...] = tuple(DESCRIBED)) -> Iterator[Case]:
    """Thin every log in every way."""
    for name, t, watts in read_real_logs():
        job = re.sub(r"_\d+$", "", name.split()[0])
        for step in steps_s:
            for offset in np.arange(0.0, step, ROW_S):
                at = np.unique(np.searchsorted(t, np.arange(t[0] + offset, t[-1] + 1e-6, step)))
                if at.size < 3:
                    continue
                parts = {"timed": (max(0.0, float(t[0])), float(t[-1])), "read": (float(t[at[0]]), float(t[at[-1]]))}
                for how in described:
                    curve = make_log_curve(t[at], watts[at], how, step)
                    for part, (a, b) in parts.items():
                        shift_s = curve.shift_s  # the log is taken to be true at its stamps
                        ends = [stamp_second(x - shift_s) for x in (a, b)]
                        energy, true = curve.energy(ends[0], ends[1]), _integrate(t, watts, a, b)
                        yield Case(job, step, how, part, energy.value / true - 1, 2 * energy.u / true)


def format_row(name: str, cases: list[Case]) -> str:
    """Return one row of the table."""
    inside = np.mean([c.is_inside for c in cases])
    width, error = np.median([c.width for c in cases]), np.array([c.error for c in cases])
    rms, worst = np.sqrt(np.mean(error**2)), np.abs(error).max()
    return f"{name:34s} {len(cases):7d} {inside:8.1%} {width:9.2%} {rms:9.2%} {width / rms:6.1f} {worst:8.1%}"


def main() -> int:
    """Print the tables; return 1 below 95 % inside over all, or 90 % of a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    if not REAL_LOGS.is_dir():
        print(f"no {REAL_LOGS}: nothing to measure")
        return 0
    cases = list(list_cases())
    print(f"{'':34s} {'cases':>7s} {'inside':>8s} {'median U':>9s} {'rms':>9s} {'ratio':>6s} {'worst':>8s}")
    print(format_row("all", cases))
    jobs = sorted({c.job for c in cases})
    for field in ("job", "step_s", "described", "part"):
        for value in sorted({getattr(c, field) for c in cases}):
            print(format_row(f"  {field} {value}", [c for c in cases if getattr(c, field) == value]))
    for job in jobs:
        for step in STEPS_S:
            print(format_row(f"    {job} every {step:.0f} s", [c for c in cases if (c.job, c.step_s) == (job, step)]))
    shares = [np.mean([c.is_inside for c in cases if c.job == job]) for job in jobs]
    return 0 if np.mean([c.is_inside for c in cases]) >= 0.95 and min(shares) >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
