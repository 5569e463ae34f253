"""Compute energy from a counter: undo wraps, find the times of steps, bound the energy between a step and an edge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.calibrations import get_missing_power, make_level_terms
from joulelab.analysis.power import GAP_STEPS, PowerCurve, name_error_source
from joulelab.analysis.readings import Readings, find_usual_step
from joulelab.analysis.unseen import (
    BEYOND_MEANS,
    GRID_DRIFT,
    RIPPLE,
    PowerBounds,
    bound_unseen,
    find_unseen_share,
    is_in_step,
    place_unseen,
    select_steps,
)
from joulelab.core.quantity import COVERAGE_FACTOR, Quantity, make_edge_terms

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from joulelab.analysis.readings import Floats, Ints
    from joulelab.core.spec import Spec

TICK_DRIFT = 0.02  # an instrument keeps its own step within 2 %
SHORTEST_RECORD_S = 2.0  # a shorter record may have missed the states of a load: no power in it is its highest
COARSE_SHARE = 0.3  # a counter is coarse if one count is more than this share of the energy of one update
REFINING_KNOTS = 8  # steps on each side that may refine the time of a step
NEAR_KNOTS = 4  # steps on each side over which the power around an edge is found
AGREEING_SHARE = 0.3  # of the uncertainty of a power: a counter that differs by less may see no more than the power
RATE_COUNTS = 8  # counts, or readings, before and after an edge from which the power there is found
STEADY_SHARE = 0.05  # a power that changes by no more than 5 % counts as steady


@dataclass(frozen=True)
class Knots:
    """Hold the steps of a counter near an edge: time (s from base), half-width (s) and energy (J) at each."""

    t: Floats
    half: Floats
    energy: Floats

    def find_slope(self, i: int, j: int) -> float | None:
        """Return the mean power (W) between two knots, None if one does not exist."""
        if i < 0 or j >= self.t.size or j <= i or self.t[j] <= self.t[i]:
            return None
        return float((self.energy[j] - self.energy[i]) / (self.t[j] - self.t[i]))

    def find_slope_around(self, k: int) -> float | None:
        """Return the mean power (W) over up to NEAR_KNOTS knots on each side of one, None if there are no others."""
        return self.find_slope(max(k - NEAR_KNOTS, 0), min(k + NEAR_KNOTS, self.t.size - 1))


class CounterCurve:
    """Compute C(t), and the energy of any time span as C(b) - C(a), for one energy counter.

    `power` is a power channel of the same device: it shows the power inside a tick, and how much a sensor that measures
    part of the time may have missed. `lag_u_s` is the standard uncertainty of the lag of the stamps, if the lag was
    found; else the stamps are moved back by half of the lag in the `Spec`. `moved_s`: they were moved back so far.
    """

    def __init__(
        self,
        readings: Readings,
        spec: Spec,
        *,
        name: str,
        power: PowerCurve | None = None,
        bounds: PowerBounds | None = None,
        lag_u_s: float | None = None,
        moved_s: float = 0.0,
    ) -> None:
        if not len(readings):
            raise ValueError(f"{name}: no readings")
        if lag_u_s is None:
            moved_s, lag_u_s = spec.lag_s / 2, spec.lag_s / math.sqrt(12)
            readings = readings.shift_back(moved_s)
        self.readings = readings
        self.spec = spec
        self.name = name
        self.source = name_error_source(spec, name)
        self.missing_w = get_missing_power(spec)
        self.power = power
        self.lag_u_s = lag_u_s
        self.moved_s = moved_s
        self.base_ns = int(readings.t0_ns[0])
        self.bounds = bounds or (power.bounds if power else PowerBounds(*(spec.limits or (0.0, math.inf))))
        self.resets: list[tuple[int, int]] = []
        self.doubtful_wraps: list[tuple[int, int]] = []
        self._break_at, self._break_add, self._break_var = self._find_breaks()
        self._found: dict[int, tuple[float, float, float]] = {}

    def shift_back(self, lag_s: float, lag_u_s: float) -> CounterCurve:
        """Return the curve with stamps moved back by a lag whose standard uncertainty is known."""
        return CounterCurve(
            self.readings.shift_back(lag_s),
            self.spec,
            name=self.name,
            power=self.power and self.power.shift_back(lag_s, lag_u_s),
            bounds=self.bounds,
            lag_u_s=lag_u_s,
            moved_s=self.moved_s + lag_s,
        )

    def _find_breaks(self) -> tuple[Ints, Floats, Floats]:
        """Find wraps and resets; return the reading after each, the energy to add from there (J) and its variance."""
        r, modulus = self.readings, self.spec.modulus
        broken = r.value[1:] < r.value[:-1]
        if modulus:
            # After a pause that is long enough a counter may have wrapped and still stand higher than before.
            broken |= (r.t1_ns[1:] - r.t0_ns[:-1]) * 1e-9 * self._highest_w >= modulus
        after = np.flatnonzero(broken) + 1
        add, var = np.zeros(after.size), np.zeros(after.size)
        for k, i in enumerate(after):
            add[k], var[k] = self._undo_wrap(int(i), modulus) if modulus else self._undo_reset(int(i))
        return after, np.cumsum(add), np.cumsum(var)

    def _undo_wrap(self, i: int, modulus: float) -> tuple[float, float]:
        """Return the energy (J) to add for the wraps before reading i: as many wraps as the bounds of power allow."""
        since, until = int(self.readings.t0_ns[i - 1]), int(self.readings.t1_ns[i])
        rise = float(self.readings.value[i] - self.readings.value[i - 1])
        tick, span = self.spec.update_s or 0.0, (until - since) * 1e-9
        least = max(math.ceil((self.bounds.low * (span - tick) - rise) / modulus), 1 if rise < 0 else 0)
        most = max(math.floor((self._highest_w * (span + tick) - rise) / modulus), least)
        if most == least:
            return modulus * least, 0.0
        self.doubtful_wraps.append((since, until))
        wraps = min(max(round((self._usual_w * span - rise) / modulus), least), most)
        return modulus * wraps, (modulus * max(wraps - least, most - wraps)) ** 2 / 3

    def _undo_reset(self, i: int) -> tuple[float, float]:
        """Return the energy (J) to add for a reset: the count before it, and the usual power during the pause."""
        since, until = int(self.readings.t0_ns[i - 1]), int(self.readings.t1_ns[i])
        self.resets.append((since, until))
        span, usual = (until - since) * 1e-9, self._usual_w
        half = span * max(usual - self.bounds.low, self._highest_w - usual)
        return float(self.readings.value[i - 1] - self.readings.value[i]) + usual * span, half**2 / 3

    @cached_property
    def _usual_w(self) -> float:
        """Return the mean power (W), without falls of the counter and without pauses in which it may have wrapped."""
        rise, time = np.diff(self.readings.value[:100_000]), np.diff(self.readings.t0_ns[:100_000]) * 1e-9
        up = rise >= 0
        up &= time <= GAP_STEPS * find_usual_step(time) if time.size else up
        return float(rise[up].sum() / time[up].sum()) if up.any() else 0.0

    @cached_property
    def _highest_w(self) -> float:
        """Return the power (W) that this scope never exceeds: its limit, or four times the highest mean power."""
        if math.isfinite(self.bounds.high):
            return self.bounds.high
        r, tick = self.readings, max(self.spec.update_s or 0.0, 0.1)
        since = r.t0_ns[-1] - r.t0_ns[0]
        count = min(int(since * 1e-9 / (10 * tick)) + 1, 10_000)
        # Relative to the first: after months of uptime a float does not hold a stamp to the nanosecond.
        when = np.minimum(np.linspace(0, since, count + 1).astype(np.int64), since)
        at = np.unique(np.searchsorted(r.t0_ns, r.t0_ns[0] + when))
        means = np.diff(r.value[at]) / (np.diff(r.t0_ns[at]) * 1e-9)
        return 4 * max(self._usual_w, float(means.max(initial=0.0)))

    def unwrap_slice(self, sel: slice) -> Floats:
        """Return the values (J) of a slice with wraps and resets undone."""
        value = self.readings.value[sel]
        if self._break_at.size == 0:
            return value
        stop = sel.start + value.size
        first, last = np.searchsorted(self._break_at, (sel.start, stop), side="right")
        ends = np.concatenate(([sel.start], self._break_at[first:last], [stop]))
        added = np.concatenate(([0.0], self._break_add))[first : last + 1]
        unwrapped: Floats = value + np.repeat(added, np.diff(ends))
        return unwrapped

    def unwrap_values(self) -> Floats:
        """Return all values (J) with wraps and resets undone."""
        return self.unwrap_slice(slice(0, len(self.readings)))

    def find_powers(self, every_s: float) -> Readings:
        """Return mean powers (W) between readings about `every_s` apart, each stamped with its start.

        Readings less than half of `every_s` after the previous one are left out: one step more or less would
        show as a peak.
        """
        every_ns = max(round(every_s * 1e9), 1)
        turn = (self.readings.t0_ns - self.base_ns) // every_ns
        first = np.concatenate(([0], np.flatnonzero(turn[1:] != turn[:-1]) + 1))
        first = first[np.diff(self.readings.t0_ns[first], prepend=self.readings.t0_ns[0] - every_ns) >= every_ns / 2]
        t0, energy = self.readings.t0_ns[first], self.unwrap_values()[first]
        watts = np.diff(energy) / (np.diff(t0) * 1e-9) + self.missing_w
        return Readings(t0[:-1], self.readings.t1_ns[first][:-1], watts)

    def find_knots(self, t_ns: int) -> Knots:
        """Return the steps of the counter around t; if one is sharp, the period of the instrument refines the others.

        A reading shows the counter as of its last step. This step lies at most one tick back, and after the reading
        before if the value rose since; if the length of a tick is unknown, only the latter holds.
        """
        r, tick = self.readings, self.spec.update_s
        # All steps that refine those around t: edges near each other find the same knots, so C(t) never falls.
        count = REFINING_KNOTS + 4
        reach = round(count * (tick or 0.0) * 1e9)
        near, wide = r.between(t_ns - reach, t_ns + reach), r.around(t_ns, count, count)
        sel = slice(min(near.start, wide.start), max(near.stop, wide.stop))
        before = (r.t0_ns[sel] - self.base_ns).astype(np.float64) * 1e-9
        after = (r.t1_ns[sel] - self.base_ns).astype(np.float64) * 1e-9
        energy = self.unwrap_slice(sel)
        back = float(np.diff(before).max(initial=0.0)) if tick is None else tick
        last = np.concatenate(([before[0] - back], before[:-1]))
        low = last if tick is None else np.maximum(last, before - tick)
        keep = np.concatenate(([True], energy[1:] > energy[:-1]))
        if tick is not None:
            # A slow read may have got its value as late as its end: only from there on it stood still for certain.
            rest = before - after[np.maximum.accumulate(np.where(keep, np.arange(keep.size), 0))]
            # It stood still for more than a tick, and long enough for its quantum to show: no energy was used.
            still = (rest > 1.5 * tick) & (rest * self._highest_w > 100 * self.spec.accuracy.quantum)
            keep |= still & np.append(keep[1:], [True])
            low, after = _tighten_steps(low, before, after, np.flatnonzero(keep), tick)
        return _refine_knots((low + after)[keep] / 2, (after - low)[keep] / 2, energy[keep], tick or 0.0)

    def at(self, t_ns: int) -> tuple[float, float, float]:
        """Return C(t) in J and its standard uncertainties: from the power within a step, from the time of the steps."""
        if t_ns not in self._found:  # the end of a phase is the start of the next
            self._found[t_ns] = self._find_coarse(t_ns) if self.is_coarse else self._find_between_steps(t_ns)
        return self._found[t_ns]

    def _find_coarse(self, t_ns: int) -> tuple[float, float, float]:
        unread_s = abs(t_ns - self._clip_to_record(t_ns)) * 1e-9
        return *self._coarse.at(t_ns, self._find_unread_w(unread_s) if unread_s else None), 0.0

    def _find_between_steps(self, t_ns: int) -> tuple[float, float, float]:
        knots = self.find_knots(t_ns)
        s = (t_ns - self.base_ns) * 1e-9
        k = int(np.searchsorted(knots.t, s, side="right")) - 1
        if k < 0 or k + 1 >= knots.t.size:
            value, u, age_u = self._extrapolate(knots, s, t_ns, after=k >= 0)
        else:
            value, u, age_u = self._interpolate(knots, s, k)
        return value, math.hypot(u, self.spec.accuracy.quantum / math.sqrt(12)), age_u

    @cached_property
    def is_coarse(self) -> bool:
        """Return whether one count is so large that the counter stays the same for several updates."""
        tick, quantum = self.spec.update_s or 0.0, self.spec.accuracy.quantum
        watts = self._usual_w
        if self.power is not None:
            watts = max(watts, float(self.power.readings.value.mean()))
        return quantum > COARSE_SHARE * max(watts * tick, 1e-9) and quantum > 1.0

    @cached_property
    def _coarse(self) -> CoarseCounter:
        return CoarseCounter(self.readings, self.spec, self.bounds, self.unwrap_slice, self._highest_w)

    def _clip_to_record(self, t_ns: int) -> int:
        """Return t, or the first or last time with readings if t lies beyond them."""
        first_ns, last_ns = int(self.readings.t0_ns[0]), int(self.readings.t1_ns[-1]) + round(self.moved_s * 1e9)
        return min(max(t_ns, first_ns), last_ns)

    def _find_unread_w(self, unread_s: float) -> float:
        """Return the highest power (W) that a time without readings, at begin or end of the record, may have had.

        It is the limit of the device. Without one, a time of a few steps may have any power that the record shows, if
        that is long enough to show the states of its load; a longer time may have any possible power.
        """
        record_s = float(self.readings.t1_ns[-1] - self.readings.t0_ns[0]) * 1e-9
        is_long = unread_s > GAP_STEPS * max(self._usual_step_s, self.spec.update_s or 0.0)
        if math.isfinite(self.bounds.high) or is_long or record_s < SHORTEST_RECORD_S:
            return self._highest_w
        return min(self._seen_w, self._highest_w)

    @cached_property
    def _seen_w(self) -> float:
        """Return the highest power (W) of the record, and as much more as its means may hide."""
        watts = self.find_powers(NEAR_KNOTS * max(self._usual_step_s, self.spec.update_s or 0.0)).value - self.missing_w
        low, high = float(watts.min(initial=self._usual_w)), float(watts.max(initial=self._usual_w))
        return high + max((high - low) * BEYOND_MEANS, high * RIPPLE)

    def _extrapolate(self, knots: Knots, s: float, t_ns: int, *, after: bool) -> tuple[float, float, float]:
        """Return C(t) and its uncertainties outside of the known steps: power is that near t.

        Before the first and after the last reading it may be anything from idle to the highest possible power: a
        counter that stopped or began late says nothing of the load there.
        """
        i = knots.t.size - 1 if after else 0
        span = s - float(knots.t[i])
        slopes = [w for w in (knots.find_slope_around(i), knots.find_slope(i - 1, i + 1)) if w is not None]
        read_ns = self._clip_to_record(t_ns)
        near = [*slopes, *(self.power.find_range_near(read_ns)[:2] if self.power is not None else ())]
        low, high = (min(near), max(near)) if near else (self.bounds.low, self._highest_w)
        if not after or (self.moved_s > 0 and t_ns > int(self.readings.t1_ns[-1])):
            low = min(low, self.bounds.low)
        unread_s = min(abs(t_ns - read_ns) * 1e-9, abs(span))
        read_s, steps = abs(span) - unread_s, np.diff(knots.t)
        if steps.size and read_s > GAP_STEPS * max(find_usual_step(steps), self.spec.update_s or 0.0):
            high = max(high, self._highest_w)
        watts = (low + high) / 2
        joules, u = read_s * watts, read_s * max(high - low, RIPPLE * watts) / math.sqrt(12)
        if unread_s:
            watts = (min(slopes) + max(slopes)) / 2 if slopes else watts
            most_off = max(watts - min(low, self.bounds.low), max(high, self._find_unread_w(unread_s)) - watts)
            joules, u = joules + unread_s * watts, u + unread_s * most_off / math.sqrt(3)
        value = float(knots.energy[i]) + math.copysign(joules, span)
        return value, u, watts * float(knots.half[i]) / math.sqrt(3)

    def _interpolate(self, knots: Knots, s: float, k: int) -> tuple[float, float, float]:
        """Return C(t) and its uncertainties inside a tick, from the steps on both sides and the powers of neighbours.

        A power that changes once, anywhere in the tick, leaves x (1 - x) / sqrt(3) of the change at its part x; an
        event whose mean the neighbours do not explain leaves sqrt(x (1 - x)).
        """
        span = float(knots.t[k + 1] - knots.t[k])
        since, mean = s - float(knots.t[k]), float(knots.energy[k + 1] - knots.energy[k]) / span
        value = self._guess_energy(knots, k, since, span, mean)
        beside = [w for w in (knots.find_slope(k - 1, k), knots.find_slope(k + 1, k + 2)) if w is not None]
        room = 2 * max(min(mean - self.bounds.low, self._highest_w - mean), 0.0)
        change = max(*beside, mean) - min(*beside, mean) if beside else room
        event = max(mean - max(beside), min(beside) - mean, 0.0) if beside else 0.0
        x = min(max(since / span, 0.0), 1.0)
        left = x * (1 - x)
        u = span * math.hypot(left / math.sqrt(3) * max(change, RIPPLE * mean), math.sqrt(left) * event)
        half = (1 - x) * float(knots.half[k]) + x * float(knots.half[k + 1])
        return float(knots.energy[k]) + value, u, mean * half / math.sqrt(3)

    @staticmethod
    def _guess_energy(knots: Knots, k: int, x: float, span: float, mean: float) -> float:
        """Return the energy x seconds into a tick: power changes once, to the power after the tick, or is constant.

        A straight line would be too low for every workload: its begin and end are where power changes. But a change
        that blurred steps alone may cause (k = 2) is none.
        """
        before, after = knots.find_slope(k - 1, k), knots.find_slope(k + 1, k + 2)
        if before is None or after is None or not min(before, after) < mean < max(before, after):
            return mean * x
        sides = ((before, k - 1), (after, k + 1))
        blur = [w * math.hypot(*knots.half[i : i + 2]) / (knots.t[i + 1] - knots.t[i]) for w, i in sides]
        if abs(after - before) <= COVERAGE_FACTOR / math.sqrt(3) * math.hypot(*blur):
            return mean * x
        turn = span * (mean - after) / (before - after)
        return before * min(x, turn) + after * max(x - turn, 0.0)

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms; `steps_ns`: reported steps (see `unseen`)."""
        ends = {t: self.at(t) for t in (a_ns, b_ns)}
        span = (b_ns - a_ns) * 1e-9
        value = ends[b_ns][0] - ends[a_ns][0] + self.missing_w * span
        accuracy = self.spec.accuracy
        shared = accuracy.shared or self.name
        terms = {
            **make_level_terms(accuracy, self.name, value, span),
            f"break:{self.name}:{a_ns}": math.sqrt(
                max(self._sum_break_variance(b_ns) - self._sum_break_variance(a_ns), 0.0)
            ),
            f"lag:{self.name}": self.lag_u_s * (self._find_slope(b_ns) - self._find_slope(a_ns))
            if self.lag_u_s
            else 0.0,
        }
        alike = self._find_alike(span)
        terms[f"lag:{self.name}:step"] = alike * (ends[b_ns][2] - ends[a_ns][2])
        apart = math.sqrt(1 - alike * alike)
        terms |= make_edge_terms(self.source, a_ns, b_ns, lambda t: math.hypot(ends[t][1], apart * ends[t][2]))
        bounds: dict[str, float] = {}
        if self.spec.seen < 1:
            grid = self.power.update_s if self.power else self.spec.update_s or 0.1
            steps = select_steps(steps_ns, a_ns, b_ns)
            share = find_unseen_share(self.spec.seen, grid, steps)
            hidden = bound_unseen(value, span, share, PowerBounds(self.bounds.low, self._highest_w))
            bounds = place_unseen(hidden, shared, terms, is_in_step(self.spec.seen, grid, steps))
            if self.power is not None:
                terms |= self._compute_sampling_terms(self.power, a_ns, b_ns, value)
        return Quantity(value, {s: u for s, u in terms.items() if u}, accuracy.source != "unknown", bounds)

    @staticmethod
    def _compute_sampling_terms(power: PowerCurve, a_ns: int, b_ns: int, value: float) -> dict[str, float]:
        """Return the sampling terms of a counter that may see no more than the power of its sensor.

        If readings keep time with the load, a counter that agrees with the power may have missed as much.
        """
        same = power.compute_sampling_terms(a_ns, b_ns, locked=power.locked_s)
        missed = float(power.at(b_ns)[0] - power.at(a_ns)[0]) - value
        agrees = abs(missed) <= AGREEING_SHARE * math.hypot(*same.values())
        return same if agrees else power.compute_sampling_terms(a_ns, b_ns)

    def _find_alike(self, span_s: float) -> float:
        """Return how far (0 to 1) readings at both ends of a span are equally old.

        They are if the counter is read once in a whole number of its steps, as far as both clocks agree.
        """
        tick = self.spec.update_s
        if not tick:
            return 0.0
        steps = self._usual_step_s / tick
        if abs(steps - round(steps)) > GRID_DRIFT * max(steps, 1.0) or steps < 1 - GRID_DRIFT:
            return 0.0
        return max(0.0, 1 - GRID_DRIFT * abs(span_s) / tick)

    @cached_property
    def _usual_step_s(self) -> float:
        steps = np.diff(self.readings.t0_ns[:100_001]) * 1e-9
        return find_usual_step(steps) if steps.size else 0.0

    def _find_slope(self, t_ns: int) -> float:
        """Return the power (W) around t."""
        knots = self.find_knots(t_ns)
        return knots.find_slope_around(int(np.searchsorted(knots.t, (t_ns - self.base_ns) * 1e-9))) or 0.0

    def _sum_break_variance(self, t_ns: int) -> float:
        """Return the variance (J2) of resets and doubtful wraps up to t."""
        k = int(np.searchsorted(self.readings.t0_ns[self._break_at], t_ns, side="right"))
        return float(self._break_var[k - 1]) if k else 0.0


def _tighten_steps(
    low: Floats, before: Floats, after: Floats, kept: npt.NDArray[np.intp], tick: float
) -> tuple[Floats, Floats]:
    """Return more exact times of steps: steps are one tick apart, and none lies between two equal readings."""
    low, high = low.copy(), after.copy()
    last = np.append(kept[1:], [low.size]) - 1
    earliest = np.maximum(low[kept], before[last] - tick * (1 + TICK_DRIFT))
    low[kept] = np.where(earliest < after[kept], earliest, low[kept])  # else the counter rested
    latest = np.minimum(after[kept[:-1]], after[kept[1:]] - tick * (1 - TICK_DRIFT))
    high[kept[:-1]] = np.where(latest > low[kept[:-1]], latest, after[kept[:-1]])  # else it steps faster than stated
    return low, high


def _refine_knots(t: Floats, half: Floats, energy: Floats, tick: float) -> Knots:
    """Move blurred knots onto the grid of a sharp one nearby where the readings allow it."""
    if tick <= 0 or t.size < 2:
        return Knots(t, half, energy)
    apart = np.abs(np.subtract.outer(np.arange(t.size), np.arange(t.size)))
    best = np.argmin(np.where(apart > REFINING_KNOTS, math.inf, half + apart * TICK_DRIFT * tick), axis=1)
    count = np.round((t - t[best]) / tick)
    guess = t[best] + count * tick
    width = half[best] + np.abs(count) * TICK_DRIFT * tick
    off = np.abs(guess - t)
    only = tick - off > half + width  # the next grid point lies outside of the possible times: there is no other choice
    fits = (off <= half + width) & only & (width < half)
    t, half = np.where(fits, guess, t), np.where(fits, width, half)
    return Knots(np.maximum.accumulate(t), half, energy)


@dataclass(frozen=True)
class CoarseCounter:
    """Hold a coarse counter: its readings, their values (J) with wraps undone, and the powers (W) that bound it."""

    readings: Readings
    spec: Spec
    bounds: PowerBounds
    unwrap_slice: Callable[[slice], Floats]
    highest_w: float

    def at(self, t_ns: int, unread_w: float | None = None) -> tuple[float, float]:
        """Return C(t) and its standard uncertainty: between the shown value and one count more, up to one update old.

        Between two readings, power lies between the power before and the power after them, unless their rise excludes
        that. If one of the two is not known, power may have been as low as the lower bound. `unread_w` is the highest
        power (W) beyond the readings, None if t lies between them.
        """
        r, quantum, tick = self.readings, self.spec.accuracy.quantum, self.spec.update_s or 0.0
        k = max(int(np.searchsorted(r.t1_ns, t_ns, side="right")) - 1, 0)
        late = (t_ns - self._middle_ns(k)) * 1e-9 + tick / 2
        both = self._find_rate(k, -1), self._find_rate(min(k + 1, len(r) - 1), 1)
        known = [rate for rate in both if rate is not None]
        low, high = self.bounds.low, self.bounds.high
        if unread_w is not None:
            high = unread_w
        elif known and all(steady for _, _, steady in known):
            high = min(max(w * (1 + STEADY_SHARE) + blur for w, blur, _ in known), high)
            if len(known) > 1:
                low = max(min(w * (1 - STEADY_SHARE) - blur for w, blur, _ in known), low)
        if late >= 0 and k + 1 < len(r):
            value, unsure = self._interpolate(k, late, (low, high), [w for w, _, _ in known])
        else:
            high = min(high, self.highest_w)
            value, unsure = late * (low + high) / 2, abs(late) * (high - low)
        # The interval of two edges reaches exactly as far as their possible error: one count, and these powers.
        u = math.hypot(quantum, unsure + min(high, self.highest_w) * tick) / math.sqrt(8)
        return float(self.unwrap_slice(slice(k, k + 1))[0]) + quantum / 2 + value, u

    def _middle_ns(self, k: int) -> float:
        return (int(self.readings.t0_ns[k]) + int(self.readings.t1_ns[k])) / 2

    def _find_rate(self, k: int, step: int) -> tuple[float, float, bool] | None:
        """Return power (W) before or after a reading, its largest error, and whether it is steady; None if unknown."""
        first = self._find_rise(k, step)
        if first is None:
            return None
        (watts, blur), then = first[:2], self._find_rise(first[2], step)
        lasts = then is None or abs(then[0] - watts) <= blur + then[1] + STEADY_SHARE * watts
        return watts, blur, lasts

    def _find_rise(self, k: int, step: int) -> tuple[float, float, int] | None:
        """Return the power (W) after reading k, its largest error, and the reading RATE_COUNTS counts later."""
        last = min(max(k + RATE_COUNTS * step, 0), len(self.readings) - 1)
        if last == k:
            return None
        quantum, found = self.spec.accuracy.quantum, (0.0, 0.0, k)
        values = self.unwrap_slice(slice(min(k, last), max(k, last) + 1))[::step]
        for n in range(1, values.size):
            rise = abs(float(values[n] - values[0]))
            span = abs(self._middle_ns(k + n * step) - self._middle_ns(k)) * 1e-9
            found = rise / span, quantum / span, k + n * step
            if rise >= RATE_COUNTS * quantum:
                break
        return found

    def _interpolate(self, k: int, late: float, powers: tuple[float, float], rates: list[float]) -> tuple[float, float]:
        """Return the energy (J) since reading k, and the width of its range, from this and the next reading."""
        quantum, (low, high), tick = self.spec.accuracy.quantum, powers, self.spec.update_s or 0.0
        span = (self._middle_ns(k + 1) - self._middle_ns(k)) * 1e-9
        here, there = self.unwrap_slice(slice(k, k + 2))
        rise, rest = float(there - here), max(span - late, 0.0)
        if not low * span - quantum <= rise <= high * span + quantum:
            low, high, rates = self.bounds.low, self.bounds.high, []  # a short event, which may have reached any bound
        floor = max(low * min(late, span), rise - quantum - high * rest)
        ceiling = max(min(high * late, rise + quantum - low * rest) if late > tick / 2 else 0.0, floor)
        guess = (floor + ceiling) / 2
        if len(rates) > 1 and min(rates) < rise / span < max(rates):
            turn = span * (rise / span - rates[1]) / (rates[0] - rates[1])
            guess = rates[0] * min(late, turn) + rates[1] * max(late - turn, 0.0)
        # Half a count above the value at both readings: so C(t) never falls.
        value = min(max(guess, floor, 0.0), ceiling, rise)
        return value, 2 * max(ceiling - value, value - floor)
