"""Hold what is shown of a power over time: readings, or a counter's rises, with their integral and their sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.channels import SumCurve
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.readings import TICKS_PER_POWER
from joulelab.analysis.slow_meters import DoubtedCurve, find_window_means

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.channels import EnergyChannel
    from joulelab.analysis.readings import Floats

AT_ONCE = 2_000_000  # readings of all members of a sum that are put in order at once


@dataclass(frozen=True)
class ShownPower:
    """Hold values and the times (s from the workload's start) of the middle of what each stands for.

    `knots` are there for the rises of a counter: rise k is the mean from knot k to knot k + 1.
    """

    t: Floats
    value: Floats
    knots: Floats | None = None

    @classmethod
    def none(cls) -> ShownPower:
        """Return no values."""
        return cls(np.empty(0), np.empty(0))

    @property
    def since(self) -> Floats:
        """Return from when on each value holds."""
        return self.t if self.knots is None else self.knots[:-1]

    @cached_property
    def _sums(self) -> Floats:
        if self.knots is not None:
            return np.concatenate(([0.0], np.cumsum(np.diff(self.knots) * self.value)))
        return np.concatenate(([0.0], np.cumsum(np.diff(self.t) * (self.value[1:] + self.value[:-1]) / 2)))

    def up_to(self, at: Floats) -> Floats:
        """Return the integral up to each time: readings are joined by lines, rises hold; beyond them the nearest stays.

        It is that of a value at least.
        """
        t = self.t if self.knots is None else self.knots
        if self.knots is not None:
            inside = np.interp(at, t, self._sums)
        elif t.size == 1:
            inside = np.zeros(at.size)
        else:
            i = np.clip(np.searchsorted(t, at, side="right") - 1, 0, t.size - 2)
            since = np.clip(at, t[0], t[-1]) - t[i]
            slope = (self.value[i + 1] - self.value[i]) / (t[i + 1] - t[i])
            inside = self._sums[i] + since * (self.value[i] + slope * since / 2)
        before, after = np.minimum(at - t[0], 0.0) * self.value[0], np.maximum(at - t[-1], 0.0) * self.value[-1]
        found: Floats = inside + before + after
        return found


def list_shown_powers(channel: EnergyChannel, a_ns: int, b_ns: int) -> tuple[ShownPower, ...]:
    """Return a channel as powers (W): as read, or the rises of its counter; of counters that are added, those of each.

    [a, b] is the workload.
    """
    curve = channel.curve.plain if isinstance(channel.curve, DoubtedCurve) else channel.curve
    if isinstance(curve, CounterCurve):
        return (_list_rises(curve, channel.step_s, a_ns, b_ns),)
    if isinstance(curve, SumCurve) and channel.spec.kind == "counter":
        return tuple(shown for part in curve.parts for shown in list_shown_powers(part, a_ns, b_ns))
    shown = find_window_means(channel, a_ns)
    return (ShownPower(shown.middle, shown.value),)


def _list_rises(curve: CounterCurve, step_s: float, a_ns: int, b_ns: int) -> ShownPower:
    """Return a counter's mean powers over stretches of many of its steps, as statistics have them.

    They begin and end with the record and with the workload, where what was used so far is known: idle stays idle. Of
    stretches that this would make too short two are one; a little of the record before or after it is not shown.
    """
    every = max(step_s, TICKS_PER_POWER * (curve.spec.update_s or step_s))
    r, late = curve.readings, (curve.spec.update_s or 0.0) / 2
    begun = np.searchsorted(r.t0_ns, curve.powers(every).t0_ns)
    at = np.concatenate(([0], begun[1:], [len(r) - 1]))
    t: Floats = (r.t0_ns[at] - a_ns).astype(np.float64) * 1e-9 - late
    energy = curve.unwrapped()[at]
    known = [ns for ns in dict.fromkeys((a_ns, b_ns)) if t[0] < (ns - a_ns) * 1e-9 < t[-1]]
    ends = np.array([(ns - a_ns) * 1e-9 for ns in known])
    keep = np.ones(t.size, bool)
    keep[1:-1] = (t[-1] - t[1:-1] >= every / 2) & (np.diff(t[:-1]) >= every / 2)
    for end in ends:
        keep[1:-1] &= np.abs(t[1:-1] - end) >= every / 2
        keep[[0, -1]] &= np.abs(t[[0, -1]] - end) >= every / 4
    place = np.searchsorted(t[keep], ends)
    t = np.insert(t[keep], place, ends)
    energy = np.maximum.accumulate(np.insert(energy[keep], place, [curve.at(ns)[0] for ns in known]))
    if t.size < 2:
        return ShownPower.none()
    return ShownPower((t[1:] + t[:-1]) / 2, np.diff(energy) / np.diff(t), t)


def find_extremes(shown: Sequence[ShownPower], edges: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and highest value of each bucket between edges, NaN where none is in it.

    Several are added at the times of all their readings: each is held as it was read last.
    """
    parts = [s for s in shown if s.t.size]
    if len(parts) == 1:
        return find_bucket_extremes(parts[0].t, parts[0].value, edges)
    low, high = np.full(edges.size - 1, np.nan), np.full(edges.size - 1, np.nan)
    turns = min(sum(s.t.size for s in parts) // AT_ONCE + 1, edges.size - 1)
    ends = np.linspace(0, edges.size - 1, turns + 1).astype(int)
    for first, last in pairwise(ends.tolist()) if parts else ():
        some = edges[first : last + 1]
        low[first:last], high[first:last] = find_bucket_extremes(*_add_powers(parts, some[0], some[-1]), some)
    return low, high


def _add_powers(parts: Sequence[ShownPower], start: float, end: float) -> tuple[Floats, Floats]:
    """Return the sum of all members at every time of [start, end) at which one of them was read."""
    level, times, jumps = 0.0, [], []
    for part in parts:
        first, last = np.searchsorted(part.since, (start, end))
        before = max(first - 1, 0)
        level += float(part.value[before])
        times.append(part.since[first:last])
        jumps.append(np.diff(part.value[before:last], prepend=part.value[0] if first == 0 < last else ()))
    t = np.concatenate(times)
    order = np.argsort(t, kind="stable")
    t, value = t[order], level + np.cumsum(np.concatenate(jumps)[order])
    together = np.append(t[1:] > t[:-1], np.ones(min(t.size, 1), bool))  # what was read at one time jumps at once
    return t[together], value[together]


def find_bucket_extremes(t: Floats, value: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and highest of the values whose time lies in each bucket, NaN where there is none."""
    ends = np.searchsorted(t, edges)
    full = np.flatnonzero(np.diff(ends))
    low, high = np.full(edges.size - 1, np.nan), np.full(edges.size - 1, np.nan)
    if full.size:
        inside = value[: ends[-1]]
        low[full] = np.minimum.reduceat(inside, ends[full])
        high[full] = np.maximum.reduceat(inside, ends[full])
    return low, high
