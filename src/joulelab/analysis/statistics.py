"""Describe power over time: median, percentiles and maximum, weighted by time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.result import PowerStatistics

if TYPE_CHECKING:
    from joulelab.analysis.series import Floats, Readings

TICKS_PER_POWER = 50  # steps of a counter over which its rise is taken as a power: one step more or less is 2 %
MOST_SORTED, SORT_PARTS = (
    20_000,
    4096,
)  # readings beyond which not all are sorted, and the parts that they are put into then
LONGEST_HOLD = 3.0  # a reading stands for at most three usual steps; what is longer is a gap and counts for nothing


def compute_percentiles(value: Floats, weight: Floats, percent: tuple[float, ...]) -> list[float]:
    """Return the values below which the given percentages of the weight lie."""
    if value.size <= MOST_SORTED:
        order = np.argsort(value, kind="stable")
        reached = np.cumsum(weight[order])
        at = np.searchsorted(reached, np.array(percent) / 100 * reached[-1])
        return [float(value[order[min(int(i), value.size - 1)]]) for i in at]
    return _percentiles_of_many(value, weight, percent)


def _percentiles_of_many(value: Floats, weight: Floats, percent: tuple[float, ...]) -> list[float]:
    """Return the same, sorting only the parts in which the wanted values lie: sorting all takes ten times as long."""
    low, high = float(value.min()), float(value.max())
    scale = SORT_PARTS / (high - low) if high > low else 0.0
    part = np.minimum(((value - low) * scale).astype(np.int64), SORT_PARTS - 1)
    reached = np.cumsum(np.bincount(part, weight, SORT_PARTS))
    found = []
    ordered: dict[int, tuple[Floats, Floats]] = {}  # of a power that rests all lie in one part
    for wanted in np.array(percent) / 100 * reached[-1]:
        k = int(np.searchsorted(reached, wanted))
        if k not in ordered:
            inside = part == k
            some, own = value[inside], weight[inside]
            order = np.argsort(some, kind="stable")
            ordered[k] = some[order], np.cumsum(own[order]) + (reached[k - 1] if k else 0.0)
        values, within = ordered[k]
        found.append(float(values[min(int(np.searchsorted(within, wanted)), values.size - 1)]))
    return found


def describe_power(
    readings: Readings, a_ns: int, b_ns: int, *, window_s: float | None, step_s: float
) -> PowerStatistics | None:
    """Return statistics of the readings in [a, b], which come every `step_s`; None where there is none."""
    sel = readings.between(a_ns, b_ns)
    value = readings.value[sel]
    if value.size == 0:
        return None
    t = readings.t0_ns[sel]
    hold = np.diff(np.append(t, max(b_ns, int(t[-1]) + 1))) * 1e-9
    p5, median, p95, p99 = compute_percentiles(value, np.minimum(hold, LONGEST_HOLD * step_s), (5, 50, 95, 99))
    return PowerStatistics(median, p5, p95, p99, float(value.max()), float(value.min()), window_s)


def compute_coverage(readings: Readings, a_ns: int, b_ns: int, step_s: float) -> float:
    """Return the share of [a, b] that lies within three steps of a reading on both sides."""
    if b_ns <= a_ns:
        return 1.0
    sel = readings.between(a_ns, b_ns)
    t = np.concatenate(([a_ns], readings.t0_ns[sel], [b_ns])).astype(np.int64)
    pause = np.diff(t) * 1e-9
    lost = pause[pause > LONGEST_HOLD * step_s].sum()
    return float(1.0 - min(1.0, lost / ((b_ns - a_ns) * 1e-9)))
