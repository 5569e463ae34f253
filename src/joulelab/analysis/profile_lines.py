"""Work out channels over a grid of times: energy up to each edge, and the extremes of what was read between edges.

Energies are those of the channels' own curves, for all edges at once: exact for powers; for counters, lines between
their steps. What that leaves of the workload's energy is spread over it, so that the buckets add up to what is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.alignment import means, middles
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.guided import DoubtedCurve, GuidedCurve, WatchedCurve
from joulelab.analysis.power import GAP_FACTOR, PowerCurve
from joulelab.analysis.profile_grid import Buckets
from joulelab.analysis.series import usual_step
from joulelab.analysis.statistics import TICKS_PER_POWER

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from joulelab.analysis.channels import Channel, Curve, ScopeChannels
    from joulelab.analysis.series import Floats, Readings


@dataclass(frozen=True)
class Shown:
    """Hold values and the times (s from the workload's start) of the middle of what each stands for."""

    t: Floats
    value: Floats

    @classmethod
    def none(cls) -> Shown:
        """Return no values."""
        return cls(np.empty(0), np.empty(0))


@dataclass(frozen=True)
class Edges:
    """Hold the edges of buckets (s from `zero_ns`, the workload's start) and when the workload ended."""

    zero_ns: int
    end_ns: int
    t: Floats

    @property
    def duration_s(self) -> float:
        """Return how long the workload took."""
        return (self.end_ns - self.zero_ns) * 1e-9

    def energy(self, channel: Channel) -> Floats:
        """Return the energy (J) of each bucket by a channel's curve, NaN where there is no reading."""
        a, b = self.zero_ns, self.end_ns
        at = np.append(self.t, (0.0, self.duration_s))
        found = self._up_to(channel.curve, at)
        if b > a:  # what the shape between the readings leaves of the workload's energy
            off = channel.energy(a, b).value - float(found[-1] - found[-2])
            found = found + off * np.clip(at / self.duration_s, 0.0, 1.0)
        energy: Floats = np.diff(found[:-2])
        longest = GAP_FACTOR * max(channel.step_s, channel.update_s)
        return np.where(self._seen(_times(channel, a), longest), energy, np.nan)

    def _up_to(self, curve: Curve, at: Floats) -> Floats:
        """Return C (J), less a constant, at times in s."""
        if isinstance(curve, GuidedCurve):
            fast = curve.guide.curve
            back = (self.zero_ns - fast.base_ns) * 1e-9
            guided: Floats = curve.offset_w * at + curve.slope * fast.at(at + back) + self._up_to(curve.rest, at)
            return guided
        if isinstance(curve, WatchedCurve):
            return self._up_to(curve.slow, at)
        if isinstance(curve, DoubtedCurve):
            return self._up_to(curve.plain, at)
        if isinstance(curve, CounterCurve):
            return _counted(curve, at, self.zero_ns, self.end_ns)
        if isinstance(curve, PowerCurve):
            return integrated(middles(curve.readings, self.zero_ns) - curve.shift_s, curve.readings.value, at)
        parts: Floats = np.sum([self._up_to(part.curve, at) for part in curve.parts], axis=0)
        return parts

    def _seen(self, t: Floats, longest_s: float) -> npt.NDArray[np.bool_]:
        """Return which buckets were read, or lie between readings that are no more than so many seconds apart."""
        before, after = np.searchsorted(t, self.t[:-1]), np.searchsorted(t, self.t[1:])
        pause = np.concatenate(([np.inf], np.diff(t), [np.inf]))
        seen = (after > before) | (pause[before] <= longest_s)
        # The workload's ends count as read where a reading is near.
        begin, end = self.t[:-1], self.t[1:]
        inside = (end > 0) & (begin < self.duration_s)
        near = (begin > t[0] - longest_s) & (end < t[-1] + longest_s)
        outside = (before == 0) | (before == t.size)
        found: npt.NDArray[np.bool_] = seen | (inside & near & outside)
        return found

    def extremes(self, shown: Sequence[Shown]) -> tuple[Floats, Floats]:
        """Return the lowest and highest value of each bucket, NaN where none is in it.

        Several are added, at the times of the one that was read most often.
        """
        parts = [s for s in shown if s.t.size]
        if len(parts) < len(shown) or not parts:
            empty = np.full(self.t.size - 1, np.nan)
            return empty, empty
        base = max(parts, key=lambda s: s.t.size)
        value = base.value
        for part in parts:
            if part is not base:
                value = value + np.interp(base.t, part.t, part.value)
        return self.of(Shown(base.t, value))

    def of(self, shown: Shown) -> tuple[Floats, Floats]:
        """Return the lowest and highest of the values whose time lies in each bucket, NaN where there is none."""
        ends = np.searchsorted(shown.t, self.t)
        full = np.flatnonzero(np.diff(ends))
        low, high = np.full(self.t.size - 1, np.nan), np.full(self.t.size - 1, np.nan)
        if full.size:
            inside = shown.value[: ends[-1]]
            low[full] = np.minimum.reduceat(inside, ends[full])
            high[full] = np.maximum.reduceat(inside, ends[full])
        return low, high

    def state(self, readings: Readings, factor: float = 1.0) -> Buckets:
        """Return what was read of a device, times a factor, as means over buckets with its extremes."""
        t, value = middles(readings, self.zero_ns), readings.value * factor
        mean = np.diff(integrated(t, value, self.t)) / np.diff(self.t)
        longest = GAP_FACTOR * usual_step(np.diff(t)) if t.size > 1 else 0.0
        mean = np.where(self._seen(t, longest), mean, np.nan)
        return within_extremes(mean, *self.of(Shown(t, value)))


def within_extremes(mean: Floats, low: Floats, high: Floats) -> Buckets:
    """Return buckets whose mean lies between the extremes; where nothing was read in one, they are its mean."""
    there = np.where(np.isnan(mean), np.nan, 0.0)
    return Buckets(mean, np.fmin(low, mean) + there, np.fmax(high, mean) + there)


def integrated(t: Floats, value: Floats, at: Floats) -> Floats:
    """Return the integral of readings, joined by lines, up to each time; beyond them the nearest one stays."""
    if t.size == 1:
        constant: Floats = value[0] * at
        return constant
    step = np.diff(t)
    sums = np.concatenate(([0.0], np.cumsum(step * (value[1:] + value[:-1]) / 2)))
    i = np.clip(np.searchsorted(t, at, side="right") - 1, 0, t.size - 2)
    since = at - t[i]
    slope = (value[i + 1] - value[i]) / step[i]
    inside = sums[i] + since * (value[i] + slope * since / 2)
    after = sums[-1] + (at - t[-1]) * value[-1]
    before = (at - t[0]) * value[0]
    return np.where(at < t[0], before, np.where(at > t[-1], after, inside))


def _counted(curve: CounterCurve, at: Floats, a_ns: int, b_ns: int) -> Floats:
    """Return a counter's energy (J) at times, on lines between its steps and what it is at the workload's ends."""
    energy = curve.unwrapped()
    rises = np.concatenate(([0], np.flatnonzero(np.diff(energy) > 0) + 1))
    tick = curve.spec.update_s or 0.0
    t, steps = middles(curve.readings, a_ns)[rises] - tick / 2, energy[rises]
    ends = np.array((0.0, (b_ns - a_ns) * 1e-9))
    known = np.array([curve.at(ns)[0] for ns in (a_ns, b_ns)])
    near = np.searchsorted(t, ends)
    # A step so near that it may as well have been on the other side says less than what is known of the end itself.
    close = [k for n, end in zip(near, ends, strict=True) for k in (n - 1, n)
             if 0 <= k < t.size and abs(t[k] - end) < tick / 2]  # fmt: skip
    t, steps = np.delete(t, close), np.delete(steps, close)
    place = np.searchsorted(t, ends)
    t, steps = np.insert(t, place, ends), np.insert(steps, place, known)
    steps = np.maximum.accumulate(steps)
    inside = np.interp(at, t, steps)
    first, last = (steps[1] - steps[0]) / (t[1] - t[0]), (steps[-1] - steps[-2]) / (t[-1] - t[-2])
    found: Floats = inside + first * np.minimum(at - t[0], 0.0) + last * np.maximum(at - t[-1], 0.0)
    return found


def _times(channel: Channel, base_ns: int) -> Floats:
    """Return the middles of what a channel's readings stand for, in s."""
    curve = channel.curve
    if isinstance(curve, (CounterCurve, DoubtedCurve)):
        return middles(channel.readings, base_ns)
    return means(channel, base_ns).middle


def shown_of(channel: Channel, base_ns: int) -> Shown:
    """Return a channel as powers (W): as read, or the rises of its counter over several of its steps."""
    curve = channel.curve.plain if isinstance(channel.curve, DoubtedCurve) else channel.curve
    if isinstance(curve, CounterCurve):
        every = max(channel.step_s, TICKS_PER_POWER * (channel.spec.update_s or channel.step_s))
        powers = curve.powers(every)
        return Shown(middles(powers, base_ns) + every / 2, powers.value)
    if channel.members and channel.spec.kind == "counter":
        return Shown.none()
    shown = means(channel, base_ns)
    return Shown(shown.middle, shown.value)


def power_of(scope: ScopeChannels, base_ns: int) -> Shown:
    """Return a scope's power as its statistics show it: by the channel that shows it best."""
    return shown_of(scope.power() or scope.best, base_ns)
