"""Work out scopes over a grid of times: energy of each bucket, and the extremes of what was read in it.

How power goes is told by what is shown of a scope; how much it is in all, by the channel that is believed. What that
leaves of the workload's energy is spread over it, so that the buckets add up to what is printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import GAP_STEPS
from joulelab.analysis.profile_grid import Buckets
from joulelab.analysis.profile_shown import ShownPower, find_bucket_extremes, find_extremes, list_shown_powers
from joulelab.analysis.readings import find_usual_step
from joulelab.analysis.slow_meters import DoubtedCurve, GuidedCurve, find_middles, find_window_means

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from joulelab.analysis.channels import EnergyChannel, ScopeChannels
    from joulelab.analysis.readings import Floats, Readings

ALIKE = 2.0  # factor by which what is shown may differ from what is believed and still be scaled to it


@dataclass(frozen=True)
class ScopeEnergies:
    """Hold a scope over buckets: energy (J) by what is believed, and as shown; NaN where nothing was read."""

    energy: Floats
    plain: Floats
    shown: tuple[ShownPower, ...]


class BucketBuilder:
    """Hold the edges of buckets (s from `zero_ns`, the workload's start) and when the workload ended.

    `fast` are the scopes of each host by which slow meters around them are guided.
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

    def course(self, scope: ScopeChannels) -> ScopeEnergies:
        """Return a scope over the buckets."""
        best, shown = scope.best, scope.power() or scope.best
        up_to = self.up_to(shown, self._at)
        seen = self._seen_of(best) & ~self._beyond(shown)
        plain, believed = np.diff(up_to[:-2]), np.diff(self._levelled(best, shown, up_to)[:-2])
        if (shown.meter, shown.stream.name) != (best.meter, best.stream.name):
            # Where only the one that is believed was read it stands for itself.
            alone = seen & ~self._seen_of(shown)
            own = np.diff(self.up_to(best, self.t)) if alone.any() else plain
            plain, believed = np.where(alone, own, plain), np.where(alone, own, believed)
        return ScopeEnergies(np.where(seen, believed, np.nan), plain, self.shown(shown))

    def shown(self, channel: EnergyChannel) -> tuple[ShownPower, ...]:
        """Return what is shown of a channel."""
        if id(channel) not in self._shown:  # held here, so that no other gets its number
            self._shown[id(channel)] = channel, list_shown_powers(channel, self.zero_ns, self.end_ns)
        return self._shown[id(channel)][1]

    def up_to(self, channel: EnergyChannel, at: Floats) -> Floats:
        """Return the energy (J), less a constant, that a channel shows up to times in s."""
        curve = channel.curve
        if isinstance(curve, GuidedCurve):
            rest = ShownPower(
                find_middles(curve.readings, self.zero_ns) - curve.slow.shift_s, curve.rest.readings.value
            )
            guided: Floats = curve.offset_w * at + curve.slope * self._guide(channel.host, at) + rest.up_to(at)
            return guided
        parts = [shown for shown in self.shown(channel) if shown.t.size]
        if not parts:  # nothing but what it is in all
            flat: Floats = channel.energy(self.zero_ns, self.end_ns).value / max(self.duration_s, 1e-9) * at
            return flat
        found: Floats = np.sum([shown.up_to(at) for shown in parts], axis=0)
        return found

    def _guide(self, host: str, at: Floats) -> Floats:
        """Return the energy (J) of what guides the slow meters of a host; most of these ask for the same times."""
        if at is self._at and host in self._guides:
            return self._guides[host]
        found = np.zeros(at.size)
        for scope in self._fast[host]:
            found += self.up_to(scope.power() or scope.best, at)
        if at is self._at:
            self._guides[host] = found
        return found

    def _levelled(self, best: EnergyChannel, shown: EnergyChannel, up_to: Floats) -> Floats:
        """Return what is shown up to each time with the workload's energy as believed: in proportion, else spread.

        In proportion, idle stretches stay idle. What was used while nothing was read is left out on both sides.
        """
        since, until = self._read(best)
        if until <= since:
            return up_to
        first, last = up_to[-2:] if until - since == self.duration_s else self.up_to(shown, np.array((since, until)))
        a_ns, b_ns = (self.zero_ns + round(s * 1e9) for s in (since, until))
        energy, seen = best.energy(a_ns, b_ns).value, float(last - first)
        pauses = _find_pauses(np.clip(_list_times(shown, self.zero_ns), since, until), _find_longest_step(shown))
        if shown is not best and pauses.size:
            energy -= float(np.diff(self.up_to(best, pauses))[::2].sum())
            seen -= float(np.diff(self.up_to(shown, pauses))[::2].sum())
        if seen > 0 and 1 / ALIKE <= energy / seen <= ALIKE:
            inside = np.where(self._at < since, first, np.where(self._at > until, last, up_to))
            scaled: Floats = up_to + (energy / seen - 1) * (inside - first)
            return scaled
        spread: Floats = up_to + (energy - seen) * np.clip((self._at - since) / (until - since), 0.0, 1.0)
        return spread

    def _read(self, channel: EnergyChannel) -> tuple[float, float]:
        """Return from when to when (s) of the workload a channel was read; its ends count where a reading is near."""
        t, longest = _list_times(channel, self.zero_ns), _find_longest_step(channel)
        since = 0.0 if t[0] <= longest else float(t[0])
        return since, self.duration_s if t[-1] >= self.duration_s - longest else float(t[-1])

    def _seen_of(self, channel: EnergyChannel) -> npt.NDArray[np.bool_]:
        return self._seen(_list_times(channel, self.zero_ns), _find_longest_step(channel))

    def _beyond(self, channel: EnergyChannel) -> npt.NDArray[np.bool_]:
        """Return which buckets lie before the first or after the last rise of a counter, the workload's left out."""
        knots = [shown.knots for shown in self.shown(channel) if shown.knots is not None]
        first = max((k[0] for k in knots), default=-np.inf)
        last = min((k[-1] for k in knots), default=np.inf)
        found: npt.NDArray[np.bool_] = (self.t[1:] <= min(first, 0.0)) | (self.t[:-1] >= max(last, self.duration_s))
        return found

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

    def added(self, courses: Sequence[ScopeEnergies]) -> Buckets:
        """Return scopes together as powers (W). One of which no power is shown is in the extremes with its means."""
        silent = [c.plain for c in courses if not any(s.t.size for s in c.shown)]
        aside = np.sum(silent, axis=0) / np.diff(self.t) if silent else 0.0
        low, high = find_extremes([s for c in courses for s in c.shown], self.t)
        energy, plain = (np.sum(e, axis=0) for e in zip(*((c.energy, c.plain) for c in courses), strict=True))
        return self.powers(energy, plain, low + aside, high + aside)

    def powers(self, energy: Floats, plain: Floats, low: Floats, high: Floats) -> Buckets:
        """Return energies (J) of buckets as powers (W), with the extremes of what was read in each."""
        return make_buckets(energy / np.diff(self.t), plain / np.diff(self.t), low, high)

    def less(self, whole: ScopeChannels, inner: Sequence[ScopeChannels]) -> ShownPower:
        """Return a scope's readings less what its parts show over the same time (W)."""
        channel = whole.power() or whole.best
        shown = self.shown(channel)
        if len(shown) > 1 or shown[0].t.size == 0:
            return ShownPower.none()
        (own,) = shown
        parts = [s.power() or s.best for s in inner]
        wide = max(channel.spec.window_s or 0.0, channel.step_s, *(c.step_s for c in parts))
        begin, end = (own.t - wide / 2, own.t + wide / 2) if own.knots is None else (own.knots[:-1], own.knots[1:])
        used = np.zeros(own.t.size)
        for part in parts:
            used += self.up_to(part, end) - self.up_to(part, begin)
        return ShownPower(own.t, own.value - used / (end - begin), own.knots)

    def state(self, readings: Readings, factor: float = 1.0) -> Buckets:
        """Return what was read of a device, times a factor, as means over buckets with its extremes."""
        shown = ShownPower(find_middles(readings, self.zero_ns), readings.value * factor)
        mean = np.diff(shown.up_to(self.t)) / np.diff(self.t)
        longest = GAP_STEPS * find_usual_step(np.diff(shown.t)) if shown.t.size > 1 else 0.0
        seen = np.where(self._seen(shown.t, longest), mean, np.nan)
        return make_buckets(seen, mean, *find_bucket_extremes(shown.t, shown.value, self.t))


def make_buckets(mean: Floats, plain: Floats, low: Floats, high: Floats) -> Buckets:
    """Return buckets with the lowest and highest of their readings and of what these are in the mean, `plain`."""
    there = np.where(np.isnan(mean), np.nan, 0.0)
    return Buckets(mean, np.fmin(low, plain) + there, np.fmax(high, plain) + there)


def _find_longest_step(channel: EnergyChannel) -> float:
    """Return the longest pause (s) between readings that is no gap."""
    return GAP_STEPS * max(channel.step_s, channel.update_s)


def _find_pauses(t: Floats, longest_s: float) -> Floats:
    """Return from when to when nothing was read, one after the other, in s."""
    long = np.flatnonzero(np.diff(t) > longest_s)
    return np.stack((t[long], t[long + 1]), axis=1).ravel()


def _list_times(channel: EnergyChannel, base_ns: int) -> Floats:
    """Return the middles of what a channel's readings stand for, in s."""
    if isinstance(channel.curve, (CounterCurve, DoubtedCurve)):
        return find_middles(channel.readings, base_ns)
    return find_window_means(channel, base_ns).middle
