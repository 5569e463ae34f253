"""Sample scopes over one grid of time: the energy of each bucket, and the lowest and highest power read in it.

The shown channel of a scope gives the course of its power, the believed channel gives the energy of the whole
workload. The difference of the two is spread over the workload, so that the buckets add up to the printed energy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.channels import SumCurve
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import GAP_STEPS
from joulelab.analysis.readings import TICKS_PER_POWER, find_usual_step
from joulelab.analysis.slow_meters import DoubtedCurve, GuidedCurve, find_middles, find_window_means

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from joulelab.analysis.channels import EnergyChannel, ScopeChannels
    from joulelab.analysis.readings import Floats, Readings

COARSER = 4  # buckets of a level that make one of the next
FEW = 500  # the coarsest level has fewer buckets
AT_ONCE = 2_000_000  # readings of a sum that are sorted at once: it bounds the memory
ALIKE = 2.0  # the shown energy is scaled to the believed one up to this factor, else the difference is spread


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """Hold a grid: `count` buckets of `step_s` that begin at `from_s` (s after the workload's start), and levels."""

    from_s: float
    step_s: float
    count: int
    levels: int = 1

    @property
    def to_s(self) -> float:
        """Return the end of the last bucket, in s."""
        return self.from_s + self.count * self.step_s

    def list_edges(self) -> Floats:
        """Return the start of every bucket and the end of the last one, in s."""
        edges: Floats = self.from_s + np.arange(self.count + 1, dtype=np.float64) * self.step_s
        return edges


@dataclass(frozen=True)
class Buckets:
    """Hold mean, lowest and highest value of each bucket; NaN = no reading.

    `seen` is the share of each bucket that has readings; None: buckets with a mean have them throughout.
    """

    mean: Floats
    low: Floats
    high: Floats
    seen: Floats | None = None

    def merge_buckets(self) -> Buckets:
        """Merge four buckets into one: the mean over the time with readings, the lowest low, the highest high."""
        seen = (~np.isnan(self.mean)).astype(np.float64) if self.seen is None else self.seen
        mean, low, high, share = (a.reshape(-1, COARSER) for a in (self.mean, self.low, self.high, seen))
        weight = share.sum(axis=1)
        sums = np.where(share > 0, mean * share, 0.0).sum(axis=1)
        means = np.divide(sums, weight, out=np.full(weight.size, np.nan), where=weight > 0)
        return Buckets(means, np.fmin.reduce(low, axis=1), np.fmax.reduce(high, axis=1), weight / COARSER)


def make_grid(first_s: float, last_s: float, duration_s: float, *, raw_s: float, most: int) -> TimeGrid:
    """Make a grid over [first, last] of about `most` buckets or fewer; none is shorter than `raw_s`, the meters' step.

    The workload, from 0 to `duration_s`, begins and ends at edges of every level, unless it is shorter than a bucket
    of the coarsest level.
    """
    span = max(last_s - first_s, raw_s)
    step = max(raw_s, span / max(most, 1))
    levels = 1
    while span / step / COARSER ** (levels - 1) >= FEW:
        levels += 1
    block = step * COARSER ** (levels - 1)
    if duration_s >= block:
        block = duration_s / math.floor(duration_s / block * (1 + 1e-9))
    before, after = math.ceil(-first_s / block - 1e-6), math.ceil(last_s / block - 1e-6)
    blocks = max(before + after, 1)
    return TimeGrid(-before * block, block / COARSER ** (levels - 1), blocks * COARSER ** (levels - 1), levels)


def make_levels(finest: Buckets, levels: int) -> tuple[Buckets, ...]:
    """Make this number of levels, each coarser than the one before."""
    found = [finest]
    for _ in range(levels - 1):
        found.append(found[-1].merge_buckets())
    return tuple(found)


@dataclass(frozen=True)
class ShownPower:
    """Hold powers (W) and the middles of their windows (s from the workload's start).

    The powers of a counter have `knots`: power k is the mean from knot k to knot k + 1.
    """

    t: Floats
    value: Floats
    knots: Floats | None = None

    @property
    def begins(self) -> Floats:
        """Return the time from which each power holds."""
        return self.t if self.knots is None else self.knots[:-1]

    @cached_property
    def _sums(self) -> Floats:
        if self.knots is not None:
            return np.concatenate(([0.0], np.cumsum(np.diff(self.knots) * self.value)))
        return np.concatenate(([0.0], np.cumsum(np.diff(self.t) * (self.value[1:] + self.value[:-1]) / 2)))

    def integrate(self, at: Floats) -> Floats:
        """Integrate up to each time. Readings are joined by lines, rises are steps; outside, the nearest power holds.

        There must be at least one power.
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
    """Return the powers of a channel: readings, or rises of a counter; a sum of counters has an entry for each.

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
    """Return mean powers of a counter, each over many steps, as the statistics of power have them.

    The record and the workload begin and end at a knot, where the energy is known, so that idle time stays idle.
    A stretch that this would make too short is merged with its neighbour, or dropped outside the workload.
    """
    every = max(step_s, TICKS_PER_POWER * (curve.spec.update_s or step_s))
    r, late = curve.readings, (curve.spec.update_s or 0.0) / 2
    begun = np.searchsorted(r.t0_ns, curve.find_powers(every).t0_ns)
    at = np.concatenate(([0], begun[1:], [len(r) - 1]))
    t: Floats = (r.t0_ns[at] - a_ns).astype(np.float64) * 1e-9 - late
    energy = curve.unwrap_values()[at]
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
        return ShownPower(np.empty(0), np.empty(0))
    return ShownPower((t[1:] + t[:-1]) / 2, np.diff(energy) / np.diff(t) + curve.missing_w, t)


def find_extremes(shown: Sequence[ShownPower], edges: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and highest sum of powers in each bucket, NaN where there is no reading.

    Each power holds until its next reading; the sum is taken at the times of all readings.
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
    """Return the times in [start, end) at which a member was read, and the sum of all members at each time."""
    level, times, jumps = 0.0, [], []
    for part in parts:
        first, last = np.searchsorted(part.begins, (start, end))
        before = max(first - 1, 0)
        level += float(part.value[before])
        times.append(part.begins[first:last])
        jumps.append(np.diff(part.value[before:last], prepend=part.value[0] if first == 0 < last else ()))
    t = np.concatenate(times)
    order = np.argsort(t, kind="stable")
    t, value = t[order], level + np.cumsum(np.concatenate(jumps)[order])
    together = np.append(t[1:] > t[:-1], np.ones(min(t.size, 1), bool))  # readings of one time count together
    return t[together], value[together]


def find_bucket_extremes(t: Floats, value: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and highest value in each bucket, NaN where there is none."""
    ends = np.searchsorted(t, edges)
    full = np.flatnonzero(np.diff(ends))
    low, high = np.full(edges.size - 1, np.nan), np.full(edges.size - 1, np.nan)
    if full.size:
        inside = value[: ends[-1]]
        low[full] = np.minimum.reduceat(inside, ends[full])
        high[full] = np.maximum.reduceat(inside, ends[full])
    return low, high


@dataclass(frozen=True)
class ScopeEnergies:
    """Hold the energy (J) of a scope in each bucket, believed (NaN = no reading) and as shown (`plain`)."""

    energy: Floats
    plain: Floats
    shown: tuple[ShownPower, ...]


class BucketBuilder:
    """Sample scopes over buckets with the edges `t` (s from `zero_ns`); the workload ran from `zero_ns` to `end_ns`.

    `fast` are the scopes of each host that guide the slow meters around them.
    """

    def __init__(
        self, zero_ns: int, end_ns: int, t: Floats, fast: Mapping[str, Sequence[ScopeChannels]] | None = None
    ) -> None:
        self.zero_ns = zero_ns
        self.end_ns = end_ns
        self.t = t
        self.duration_s = (end_ns - zero_ns) * 1e-9
        self._fast = fast or {}
        self._at: Floats = np.append(t, (0.0, self.duration_s))
        self._guides: dict[str, Floats] = {}
        self._shown: dict[int, tuple[EnergyChannel, tuple[ShownPower, ...]]] = {}

    def compute_scope(self, scope: ScopeChannels) -> ScopeEnergies:
        """Return the energy (J) of a scope in each bucket, from the believed and from the shown channel."""
        best, shown = scope.best, scope.find_power() or scope.best
        up_to = self.integrate(shown, self._at)
        seen = self._find_seen(best) & ~self._find_beyond(shown)
        plain, believed = np.diff(up_to[:-2]), np.diff(self._match_energy(best, shown, up_to)[:-2])
        if (shown.meter, shown.stream.name) != (best.meter, best.stream.name):
            # Where only the believed channel has readings, its own course is shown.
            alone = seen & ~self._find_seen(shown)
            own = np.diff(self.integrate(best, self.t)) if alone.any() else plain
            plain, believed = np.where(alone, own, plain), np.where(alone, own, believed)
        return ScopeEnergies(np.where(seen, believed, np.nan), plain, self.shown(shown))

    def shown(self, channel: EnergyChannel) -> tuple[ShownPower, ...]:
        """Return the powers of a channel, computed once."""
        if id(channel) not in self._shown:  # the channel is held too, so that its id is not used again
            self._shown[id(channel)] = channel, list_shown_powers(channel, self.zero_ns, self.end_ns)
        return self._shown[id(channel)][1]

    def integrate(self, channel: EnergyChannel, at: Floats) -> Floats:
        """Return the energy (J) that a channel shows up to each time (s), plus an unknown constant."""
        curve = channel.curve
        if isinstance(curve, GuidedCurve):
            rest = ShownPower(
                find_middles(curve.readings, self.zero_ns) - curve.slow.shift_s, curve.rest.readings.value
            )
            guided: Floats = (
                curve.offset_w * at + curve.slope * self._integrate_guide(channel.host, at) + rest.integrate(at)
            )
            return guided
        parts = [shown for shown in self.shown(channel) if shown.t.size]
        if not parts:  # only its total is known
            flat: Floats = channel.energy(self.zero_ns, self.end_ns).value / max(self.duration_s, 1e-9) * at
            return flat
        found: Floats = np.sum([shown.integrate(at) for shown in parts], axis=0)
        return found

    def _integrate_guide(self, host: str, at: Floats) -> Floats:
        """Return the energy (J) of the scopes that guide the slow meters of a host; cached at the edges of buckets."""
        if at is self._at and host in self._guides:
            return self._guides[host]
        found = np.zeros(at.size)
        for scope in self._fast[host]:
            found += self.integrate(scope.find_power() or scope.best, at)
        if at is self._at:
            self._guides[host] = found
        return found

    def _match_energy(self, best: EnergyChannel, shown: EnergyChannel, up_to: Floats) -> Floats:
        """Change the shown energies so that the workload has its believed energy: by a factor, or else by a constant.

        In proportion, idle stretches stay idle. Energy used during pauses in the readings is left out of both.
        """
        since, until = self._find_read_span(best)
        if until <= since:
            return up_to
        first, last = (
            up_to[-2:] if until - since == self.duration_s else self.integrate(shown, np.array((since, until)))
        )
        a_ns, b_ns = (self.zero_ns + round(s * 1e9) for s in (since, until))
        energy, seen = best.energy(a_ns, b_ns).value, float(last - first)
        pauses = _find_pauses(np.clip(_list_times(shown, self.zero_ns), since, until), _find_longest_step(shown))
        if shown is not best and pauses.size:
            energy -= float(np.diff(self.integrate(best, pauses))[::2].sum())
            seen -= float(np.diff(self.integrate(shown, pauses))[::2].sum())
        if seen > 0 and 1 / ALIKE <= energy / seen <= ALIKE:
            inside = np.where(self._at < since, first, np.where(self._at > until, last, up_to))
            scaled: Floats = up_to + (energy / seen - 1) * (inside - first)
            return scaled
        spread: Floats = up_to + (energy - seen) * np.clip((self._at - since) / (until - since), 0.0, 1.0)
        return spread

    def _find_read_span(self, channel: EnergyChannel) -> tuple[float, float]:
        """Return the part of the workload (s) in which a channel was read; a reading near an end reaches this end."""
        t, longest = _list_times(channel, self.zero_ns), _find_longest_step(channel)
        since = 0.0 if t[0] <= longest else float(t[0])
        return since, self.duration_s if t[-1] >= self.duration_s - longest else float(t[-1])

    def _find_seen(self, channel: EnergyChannel) -> npt.NDArray[np.bool_]:
        return self._mark_seen(_list_times(channel, self.zero_ns), _find_longest_step(channel))

    def _find_beyond(self, channel: EnergyChannel) -> npt.NDArray[np.bool_]:
        """Mark buckets outside the workload and before the first or after the last rise of a counter."""
        knots = [shown.knots for shown in self.shown(channel) if shown.knots is not None]
        first = max((k[0] for k in knots), default=-np.inf)
        last = min((k[-1] for k in knots), default=np.inf)
        found: npt.NDArray[np.bool_] = (self.t[1:] <= min(first, 0.0)) | (self.t[:-1] >= max(last, self.duration_s))
        return found

    def _mark_seen(self, t: Floats, longest_s: float) -> npt.NDArray[np.bool_]:
        """Mark buckets that hold a reading, or lie between readings at most `longest_s` apart."""
        before, after = np.searchsorted(t, self.t[:-1]), np.searchsorted(t, self.t[1:])
        pause = np.concatenate(([np.inf], np.diff(t), [np.inf]))
        seen = (after > before) | (pause[before] <= longest_s)
        # The ends of the workload count as read if a reading is near.
        begin, end = self.t[:-1], self.t[1:]
        inside = (end > 0) & (begin < self.duration_s)
        near = (begin > t[0] - longest_s) & (end < t[-1] + longest_s)
        outside = (before == 0) | (before == t.size)
        found: npt.NDArray[np.bool_] = seen | (inside & near & outside)
        return found

    def add_scopes(self, courses: Sequence[ScopeEnergies]) -> Buckets:
        """Add scopes and return powers (W). A scope without shown powers adds its mean to the extremes."""
        silent = [c.plain for c in courses if not any(s.t.size for s in c.shown)]
        aside = np.sum(silent, axis=0) / np.diff(self.t) if silent else 0.0
        low, high = find_extremes([s for c in courses for s in c.shown], self.t)
        energy, plain = (np.sum(e, axis=0) for e in zip(*((c.energy, c.plain) for c in courses), strict=True))
        return self.make_powers(energy, plain, low + aside, high + aside)

    def make_powers(self, energy: Floats, plain: Floats, low: Floats, high: Floats) -> Buckets:
        """Turn the energies (J) of buckets into powers (W), with the extremes of the readings."""
        return make_buckets(energy / np.diff(self.t), plain / np.diff(self.t), low, high)

    def subtract_parts(self, whole: ScopeChannels, inner: Sequence[ScopeChannels]) -> ShownPower:
        """Return the power (W) of a scope minus the power of its parts over the same windows."""
        channel = whole.find_power() or whole.best
        shown = self.shown(channel)
        if len(shown) > 1 or shown[0].t.size == 0:
            return ShownPower(np.empty(0), np.empty(0))
        (own,) = shown
        parts = [s.find_power() or s.best for s in inner]
        wide = max(channel.spec.window_s or 0.0, channel.step_s, *(c.step_s for c in parts))
        begin, end = (own.t - wide / 2, own.t + wide / 2) if own.knots is None else (own.knots[:-1], own.knots[1:])
        used = np.zeros(own.t.size)
        for part in parts:
            used += self.integrate(part, end) - self.integrate(part, begin)
        return ShownPower(own.t, own.value - used / (end - begin), own.knots)

    def compute_state(self, readings: Readings, factor: float = 1.0) -> Buckets:
        """Return means and extremes over buckets of a device's state, times a factor."""
        shown = ShownPower(find_middles(readings, self.zero_ns), readings.value * factor)
        mean = np.diff(shown.integrate(self.t)) / np.diff(self.t)
        longest = GAP_STEPS * find_usual_step(np.diff(shown.t)) if shown.t.size > 1 else 0.0
        seen = np.where(self._mark_seen(shown.t, longest), mean, np.nan)
        return make_buckets(seen, mean, *find_bucket_extremes(shown.t, shown.value, self.t))


def make_buckets(mean: Floats, plain: Floats, low: Floats, high: Floats) -> Buckets:
    """Make buckets whose extremes are those of the readings (`low`, `high`) and of the shown mean `plain`."""
    there = np.where(np.isnan(mean), np.nan, 0.0)
    return Buckets(mean, np.fmin(low, plain) + there, np.fmax(high, plain) + there)


def _find_longest_step(channel: EnergyChannel) -> float:
    """Return the longest time (s) between readings that does not count as a gap."""
    return GAP_STEPS * max(channel.step_s, channel.update_s)


def _find_pauses(t: Floats, longest_s: float) -> Floats:
    """Return start and end of each pause in the readings, in s."""
    long = np.flatnonzero(np.diff(t) > longest_s)
    return np.stack((t[long], t[long + 1]), axis=1).ravel()


def _list_times(channel: EnergyChannel, base_ns: int) -> Floats:
    """Return the middles of the windows of a channel's readings, in s."""
    if isinstance(channel.curve, (CounterCurve, DoubtedCurve)):
        return find_middles(channel.readings, base_ns)
    return find_window_means(channel, base_ns).middle
