"""Combine slow meters with fast ones: find the lag of the slow meters, and let fast meters fill in between readings."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings, count_independent
from joulelab.analysis.statistics import t_975
from joulelab.analysis.unseen import PowerBounds
from joulelab.core.quantity import COVERAGE_FACTOR, Quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from joulelab.analysis.channels import EnergyChannel
    from joulelab.analysis.readings import Floats, Ints

MOST_SUM_POINTS = 1_000_000  # points of a sum of channels over time
# Lag of a slow meter.
LONGEST_LAG_S = 15.0  # no meter that is read during a run lags further behind
LAG_REACH = 1 / 8  # share of the record within which lags are searched
FEWEST_LAG_READINGS = 10  # readings needed to estimate a lag
MOST_LAG_READINGS = 4_000  # readings that are used, from the middle of the record
ROUGH_READINGS = 500  # readings, spread over those, that find about where the lag lies
CLOSE_READINGS = 2_000  # readings, spread over those, that find the lag itself
LAGS_PER_PASS = 240  # lags tried to each side in the first pass, and in the second pass
LAG_CELLS = 1 << 15  # lags times readings that are computed at once: they fit into a processor's cache
SAME_LOAD = 0.8  # correlation from which two meters see the same load
RIVAL_FACTOR = 2.0  # another lag is as good if it leaves at most twice as much variance unexplained,
RIVAL_SHARE = 0.05  # or at most this share of the explained variance more
WIDEST_LAG_S = 0.2  # half-width of possible lags that is always narrow enough; else the slow meter's step
# Whether a meter follows a load can be judged only if the load moved: from idle to the workload, or in its means over
# one reading of either meter. The latter need fast meters that see the whole load, or another meter around that follows
# them: single readings of a load that changes faster than they are taken show movement that is not there.
RISE_SHARE = 0.2  # of the power in the workload: change at its begin and end that a meter around must show,
FOLLOWED_SHARE = 0.2  # and the part of it that it must show: a dead meter shows none
FEWEST_OUTSIDE = 5  # readings outside of the workload needed to judge by its begin and end
MOVES_SHARE = 0.05  # relative standard deviation of means above which the load moved
SHORTEST_MEAN_S = 1.0  # shortest time over which these means are taken
KEPT_MOVEMENT = 0.6  # share of the fast meters' standard deviation that these means must keep; fast steps keep less
LASTING_CORRELATION = 0.6  # autocorrelation of neighbours: a wrong reading has 0.5, a sine of 7 means 0.62
LASTING_CHANCE = 3.5  # the same, in standard deviations of the autocorrelation of scatter
# A meter that shows the movement of a load, even three quarters of it, correlates with it by 0.5 or more unless it
# scatters by more than this factor times the movement.
MOST_SCATTER = 1.5
# Guide of a slow meter by fast ones.
FEWEST_GUIDED = 6  # readings of the workload needed for a fit
EXPLAINED_SHARE = 0.8  # share of the slow readings' variance that the fast meters must explain
FITTED_NUMBERS = 5  # offset, slope, and a lag that was searched: it costs more than one reading
SLOPE_DRIFT = 0.1  # relative change of the ratio of slow to fast from one moment to the next
# Slow readings are a fair sample if their spread is about that of the load, and their mean differs by chance only.
FAIR_SPREAD = (0.6, 1.6)  # ratio of the two standard deviations
FAIR_MEAN = 1.5  # difference of the means, in standard errors
LEAST_SAMPLED = 0.2  # smallest share of the true energy that readings at the wrong moments may show
FULL_VIEW = 0.95  # share of the time that a meter must see so that no load is in step with its readings
SAMPLE_OFFSETS = 9  # moments within a step at which slow readings may have been taken
# Kinds of terms of the fast meters that the fit removes, because the slow readings set the level.
LEVEL_TERMS = ("gain", "offset", "unseen", "in-step")


@dataclass(frozen=True)
class WindowMeans:
    """Hold mean powers (W) of a channel over windows: their middles and widths in s from `base_ns`."""

    middle: Floats
    width: Floats
    value: Floats


@dataclass(frozen=True)
class CumulativeEnergy:
    """Hold the energy (J) that a reference had used up to each time (s from `base_ns`), and its usual step (s)."""

    base_ns: int
    t: Floats
    energy: Floats
    step_s: float

    def at(self, t: Floats) -> Floats:
        """Return the energy (J) used up to each time."""
        found: Floats = np.interp(t, self.t, self.energy)
        return found

    def find_means(self, middle: Floats, width: Floats) -> Floats:
        """Return the mean power (W) over windows."""
        wide = np.maximum(width, self.step_s)
        return (self.at(middle + wide / 2) - self.at(middle - wide / 2)) / wide


def accumulate_energy(channel: EnergyChannel, base_ns: int) -> CumulativeEnergy:
    """Return the energy of a channel over time; each reading is placed at the middle of the time that it covers."""
    curve, readings = channel.curve, channel.readings
    t = find_middles(readings, base_ns)
    t -= find_shift_s(channel)
    if isinstance(curve, CounterCurve):
        energy = curve.unwrap_values() + curve.missing_w * t
        return CumulativeEnergy(base_ns, t, energy, _find_step_s(channel))
    steps = np.diff(t) * (readings.value[1:] + readings.value[:-1]) / 2
    return CumulativeEnergy(base_ns, t, np.concatenate(([0.0], np.cumsum(steps))), _find_step_s(channel))


class ChannelSums:
    """Add up channels over time, and cache each sum: lags, guides and the rest of a node need the same ones."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, ...], tuple[list[EnergyChannel], CumulativeEnergy]] = {}

    def add_up(self, channels: list[EnergyChannel]) -> CumulativeEnergy:
        """Return the sum of channels over the time in which all of them were read."""
        key = tuple(sorted(map(id, channels)))  # the channels are held here, so that no other object gets their id
        if key not in self._found:
            base = min(int(c.readings.t0_ns[0]) for c in channels)
            self._found[key] = channels, sum_channels(channels, base)
        return self._found[key][1]


def sum_channels(channels: list[EnergyChannel], base_ns: int) -> CumulativeEnergy:
    """Return the sum of channels over the time in which all of them were read."""
    ends = np.array([find_middles(c.readings.select_ends(), base_ns) - find_shift_s(c) for c in channels])
    first, last = float(ends[:, 0].max()), float(ends[:, 1].min())
    step = max(map(_find_step_s, channels))
    count = int(min(max((last - first) / max(step / 2, 0.02), 2), MOST_SUM_POINTS))
    t = np.linspace(first, max(last, first), count)
    energy = np.zeros(count)
    for channel in channels:  # one after the other: a day of each is 14 MB
        energy += accumulate_energy(channel, base_ns).at(t)
    return CumulativeEnergy(base_ns, t, energy, step)


def find_middles(readings: Readings, base_ns: int) -> Floats:
    """Return the middle of each read, in s from the base."""
    doubled: Floats = ((readings.t0_ns - base_ns) + (readings.t1_ns - base_ns)).astype(np.float64)
    doubled *= 0.5e-9
    return doubled


def find_shift_s(channel: EnergyChannel) -> float:
    """Return how much earlier (s) than the reading the middle of its measured time is."""
    if isinstance(channel.curve, CounterCurve):
        return (channel.curve.spec.update_s or 0.0) / 2
    return (channel.update_s + (channel.spec.window_s or 0.0) + channel.spec.lag_s) / 2


def _find_step_s(channel: EnergyChannel) -> float:
    """Return the time (s) between new values of a channel; every reading of a power is new."""
    counted = channel.curve.spec.update_s or 0.0 if isinstance(channel.curve, CounterCurve) else 0.0
    return max(counted, channel.step_s)


def find_window_means(channel: EnergyChannel, base_ns: int) -> WindowMeans:
    """Return mean powers of a channel over windows: its readings, or the rises of its counter."""
    curve, readings = channel.curve, channel.readings
    t = find_middles(readings, base_ns)
    if not isinstance(curve, CounterCurve):
        return WindowMeans(t - find_shift_s(channel), np.full(t.size, channel.spec.window_s or 0.0), readings.value)
    energy, back = curve.unwrap_values(), find_shift_s(channel)
    rises = np.concatenate(([0], np.flatnonzero(np.diff(energy) > 0) + 1))
    width = np.diff(t[rises])
    return WindowMeans(
        (t[rises][1:] + t[rises][:-1]) / 2 - back, width, np.diff(energy[rises]) / width + curve.missing_w
    )


@dataclass(frozen=True, slots=True)
class LagEstimate:
    """Hold the lag (s) of a slow meter behind a fast one, its standard uncertainty, and the correlation at this lag.

    `why` is a code for a poor estimate, empty for a good one: `few-readings`, `constant-power`, `other-load`,
    `open-end`, `wide`, `load-repeats`. `numbers` belong to it.
    """

    lag_s: float
    u_s: float
    correlation: float
    why: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


def estimate_lag(
    slow: WindowMeans, fast: CumulativeEnergy, least_s: float = 0.0, reach_s: float = LONGEST_LAG_S
) -> LagEstimate:
    """Estimate the lag of a slow meter behind a fast one, by correlation.

    For each lag the slow readings are fitted by the fast means over their own windows; lags whose residuals are not
    significantly larger than the smallest are all possible. A load that repeats leaves several: then the estimate is
    poor. Lags are searched within an eighth of the record, at least `least_s`, at most `reach_s`.
    """
    whole = float(fast.t[-1] - fast.t[0])
    first = _estimate_within(slow, fast, _find_reach_s(fast, least_s, reach_s))
    if not first.why:
        return first
    # The only step of a short record may lie where a long reach does not look.
    second = _estimate_within(slow, fast, min(reach_s, max(whole * LAG_REACH / 4, least_s)))
    return first if second.why else second


def _find_reach_s(fast: CumulativeEnergy, least_s: float, reach_s: float = LONGEST_LAG_S) -> float:
    """Return the largest lag (s), to either side, that is tried."""
    return min(reach_s, max(float(fast.t[-1] - fast.t[0]) * LAG_REACH, least_s))


def _estimate_within(slow: WindowMeans, fast: CumulativeEnergy, reach: float) -> LagEstimate:
    fit = _LagFit(slow, fast, reach)
    if fit.value.size < FEWEST_LAG_READINGS:  # too few to see whether it follows the load
        return LagEstimate(0.0, math.inf, math.nan, "few-readings", {"readings": fit.value.size})
    if float(np.ptp(fit.value)) <= 1e-9 * max(float(np.abs(fit.value).max()), 1e-9):
        return LagEstimate(0.0, math.inf, 0.0, "constant-power")
    lags = np.linspace(-reach, reach, 2 * LAGS_PER_PASS + 1)
    between_s = float(np.median(np.diff(fit.middle)))
    rough, fit = fit.thin_out(ROUGH_READINGS), fit.thin_out(CLOSE_READINGS)
    left = rough.find_unexplained(lags)
    rival = _find_rival(lags, left)
    possible = rough.select_possible(lags, left)
    step = float(lags[1] - lags[0])
    fine = np.linspace(possible[0] - 2 * step, possible[-1] + 2 * step, LAGS_PER_PASS + 1)
    left = fit.find_unexplained(fine)
    possible = fit.select_possible(fine, left)
    lag, half = float(possible[0] + possible[-1]) / 2, float(possible[-1] - possible[0]) / 2
    u = math.hypot(half / 2, math.hypot(float(fine[1] - fine[0]), fast.step_s) / math.sqrt(12))
    correlation = math.sqrt(max(0.0, 1.0 - float(left.min())))
    if correlation < SAME_LOAD:
        return LagEstimate(lag, u, correlation, "other-load", {"correlation": correlation})
    if abs(lag) + 2 * u >= reach:
        return LagEstimate(lag, u, correlation, "open-end", {"reach_s": reach})
    if 2 * u > max(between_s, WIDEST_LAG_S):
        return LagEstimate(lag, u, correlation, "wide", {"half_width_s": 2 * u})
    if rival is not None:
        return LagEstimate(lag, u, correlation, "load-repeats", {"rival_s": rival})
    return LagEstimate(lag, u, correlation)


def _find_rival(lags: Floats, left: Floats) -> float | None:
    """Return another lag (s) that fits about as well, with worse lags in between; None if there is none."""
    best = int(np.argmin(left))
    good = float(left[best])
    enough = max(RIVAL_FACTOR * good, good + (1 - good) * RIVAL_SHARE)
    hump = good + (1 - good) / 4
    for step in (1, -1):
        far = left[best:] if step > 0 else left[best::-1]
        over = np.flatnonzero(far > max(hump, enough))
        if over.size and (back := np.flatnonzero(far[over[0] :] <= enough)).size:
            return float(lags[best + step * int(over[0] + back[0])])
    return None


def has_moved(slow: WindowMeans, fast: CumulativeEnergy, least_s: float, quantum_w: float) -> bool:
    """Return whether the means of the fast meters changed enough to judge whether a slow meter follows them.

    Only the readings that `estimate_lag` correlates count, at least FEWEST_LAG_READINGS: a flat load has its idle edges
    elsewhere. Neighbouring means must be alike: scatter and wrong readings are no movement. `quantum_w` is the coarser
    of both meters' steps.
    """
    fit = _LagFit(slow, fast, _find_reach_s(fast, least_s))
    if fit.value.size < FEWEST_LAG_READINGS:
        return False
    if float(fit.value.std()) > MOST_SCATTER * float(fast.find_means(fit.middle, fit.width).std()):
        return False
    every_s = max(SHORTEST_MEAN_S, fast.step_s, float(np.median(np.diff(fit.middle))), float(np.median(fit.width)))
    count = int((fit.middle[-1] - fit.middle[0]) / every_s)
    if count < FEWEST_LAG_READINGS:
        return False
    watts = np.diff(fast.at(fit.middle[0] + every_s * np.arange(count + 1))) / every_s
    off = watts - watts.mean()
    least = max(LASTING_CORRELATION, LASTING_CHANCE / math.sqrt(count)) * float(np.dot(off, off))
    single = np.diff(fast.at(np.arange(fit.middle[0], fit.middle[-1], fast.step_s))) / fast.step_s
    moves = float(watts.std()) > max(MOVES_SHARE * abs(watts.mean()), KEPT_MOVEMENT * float(single.std()), quantum_w)
    return moves and float(np.dot(off[1:], off[:-1])) > least


def shows_workload(
    slow: WindowMeans, fast: CumulativeEnergy, workload_s: tuple[float, float], late_s: float, quantum_w: float
) -> bool | None:
    """Return whether a slow meter shows more power in the workload (s from the base) than outside, as fast meters do.

    None if too few readings lie outside, more than `late_s` away from its begin and end, or scatter too much.
    """
    begin, end = workload_s
    first, last = slow.middle - slow.width / 2, slow.middle + slow.width / 2
    inside = (first >= begin + late_s) & (last <= end)
    outside = ((last <= begin) | (first >= end + late_s)) & (first >= fast.t[0]) & (last <= fast.t[-1])
    if outside.sum() < FEWEST_OUTSIDE or inside.sum() < FEWEST_OUTSIDE:
        return None
    watts = fast.find_means(slow.middle, slow.width)
    rise_w = float(watts[inside].mean() - watts[outside].mean())
    scatter_w = math.hypot(*(float(slow.value[some].std()) / math.sqrt(some.sum()) for some in (inside, outside)))
    if rise_w < max(RISE_SHARE * float(watts[inside].mean()), 2 * quantum_w, scatter_w / FOLLOWED_SHARE):
        return None
    return float(slow.value[inside].mean() - slow.value[outside].mean()) > FOLLOWED_SHARE * rise_w


class _LagFit:
    """Fit slow readings by a straight line of the fast means, at any lag."""

    def __init__(self, slow: WindowMeans, fast: CumulativeEnergy, reach_s: float) -> None:
        inside = slow.middle - slow.width / 2 - reach_s >= fast.t[0]
        inside &= slow.middle + slow.width / 2 + reach_s <= fast.t[-1]
        found = np.flatnonzero(inside)
        begin = max((found.size - MOST_LAG_READINGS) // 2, 0)
        sel = found[begin : begin + MOST_LAG_READINGS]
        self.middle, self.width, self.value = slow.middle[sel], slow.width[sel], slow.value[sel]
        self._fast = fast

    def thin_out(self, most: int) -> _LagFit:
        """Return a fit of at most `most` readings, spread over the same time."""
        every = -(-self.value.size // most)
        if every == 1:
            return self
        fewer = copy(self)
        fewer.middle, fewer.width, fewer.value = self.middle[::every], self.width[::every], self.value[::every]
        return fewer

    def find_unexplained(self, lags: Floats) -> Floats:
        """Return the share of the slow readings' variance that the fit leaves at each lag; 1 for a falling line."""
        rows = max(LAG_CELLS // max(self.value.size, 1), 1)
        return np.concatenate([self._find_unexplained(lags[i : i + rows]) for i in range(0, lags.size, rows)])

    def select_possible(self, lags: Floats, left: Floats) -> Floats:
        """Return the lags around the best that fit about as well."""
        best = int(np.argmin(left))
        bad = left > left[best] * (1 + 4 / self._count_freedom(float(lags[best])))
        first = best - int(np.argmax(np.append(bad[best::-1], [True]))) + 1
        last = best + int(np.argmax(np.append(bad[best:], [True])))
        return lags[first:last]

    def _center_means(self, lags: Floats) -> Floats:
        """Return the fast means minus their mean, one column per lag."""
        # Neighbours in memory are neighbours in time: numpy finds them without a search.
        x = self._fast.find_means(self.middle[:, np.newaxis] - lags, self.width[:, np.newaxis])
        x -= x.mean(axis=0)
        return x

    def _find_unexplained(self, lags: Floats) -> Floats:
        x, y = self._center_means(lags), self.value - self.value.mean()
        xx, xy = np.einsum("ij,ij->j", x, x), y @ x
        rising = (xx > 0) & (xy > 0)
        explained = np.divide(xy * xy, xx * float(np.dot(y, y)), out=np.zeros(lags.size), where=rising)
        left: Floats = np.clip(1.0 - explained, 0.0, 1.0)
        return left

    def _count_freedom(self, lag: float) -> float:
        """Return the degrees of freedom of the residuals; correlated ones count less."""
        x, y = self._center_means(np.array([lag]))[:, 0], self.value - self.value.mean()
        residual = y - x * (float(np.dot(x, y)) / max(float(np.dot(x, x)), 1e-12))
        return max(count_independent(residual) - 3, 1.0)


@dataclass(frozen=True)
class Guide:
    """Hold the fast meters inside a slow one: their sum over time, and their energy with terms."""

    curve: CumulativeEnergy
    energy: Callable[[int, int], Quantity]

    def find_means(self, slow: PowerCurve, late_s: float = 0.0) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the fast meters' mean power (W) in the window of each slow reading, and whether both were read."""
        t = slow.find_seconds(slice(0, len(slow.readings))) + (slow.base_ns - self.curve.base_ns) * 1e-9 - slow.shift_s
        t = t - late_s
        inside = (t - slow.window_s / 2 >= self.curve.t[0]) & (t + slow.window_s / 2 <= self.curve.t[-1])
        return self.curve.find_means(t, np.full(t.size, slow.window_s)), inside

    def sample_like(self, slow: PowerCurve, late_s: float = 0.0) -> PowerCurve:
        """Return the power of the fast meters at the times of the slow readings."""
        return _replace_values(slow, self.find_means(slow, late_s)[0])

    def is_represented(self, slow: PowerCurve, a_ns: int, b_ns: int) -> bool:
        """Return whether the slow readings of [a, b] are a fair sample of the load that the fast meters saw."""
        values, inside = self.find_means(slow)
        during = inside & (slow.readings.t0_ns >= a_ns) & (slow.readings.t0_ns <= b_ns)
        count = int(during.sum())
        if count < FEWEST_GUIDED:
            return False
        base = self.curve.base_ns
        t = np.arange((a_ns - base) * 1e-9, (b_ns - base) * 1e-9, max(self.curve.step_s, (b_ns - a_ns) * 1e-9 / 20_000))
        dense = self.curve.find_means(t, np.full(t.size, slow.window_s))
        spread = float(dense.std())
        if spread <= 1e-3 * abs(float(dense.mean())):
            return True
        low, high = FAIR_SPREAD
        off = abs(float(values[during].mean() - dense.mean()))
        return low <= float(values[during].std()) / spread <= high and off <= FAIR_MEAN * spread / math.sqrt(count)


class GuidedCurve:
    """Compute energies of a slow power channel, guided by the fast meters inside its scope.

    The slow readings S are fitted by a + b F, F being the mean power of the fast meters over the same windows. Energy
    is then a T + b E(F) + E(residual): only the residual is sampled slowly. An error of b matters only as far as the
    slow readings sample F badly, and the gain of F not at all.
    """

    def __init__(self, slow: PowerCurve, guide: Guide, a_ns: int, b_ns: int) -> None:
        """Fit for the workload in [a, b]; raise ValueError if the fast meters do not explain the slow readings."""
        self.slow = slow
        self.readings = slow.readings
        self.guide = guide
        values, inside = guide.find_means(slow)
        if inside.sum() < FEWEST_GUIDED:
            raise ValueError(f"only {inside.sum()} readings beside the fast meters")
        # Windows without a pause between them see the whole load; others may be in step with it.
        if slow.window_s < FULL_VIEW * slow.step_s and not guide.is_represented(slow, a_ns, b_ns):
            raise ValueError("the slow readings are no fair sample of the load that the fast meters saw")
        self.offset_w, self.slope, slope_u = _fit_line(values[inside], slow.readings.value[inside])
        # Readings may be younger or older by half an update: a slope that depends on it is not well known.
        late = min(slow.update_s, slow.step_s) / 2
        aged = map(partial(guide.find_means, slow), (-late, late))
        others = [_find_slope(x[both], slow.readings.value[both]) for x, both in aged]
        aged_u = max(abs(other - self.slope) for other in others) / math.sqrt(3)
        self.slope_u = math.hypot(slope_u, aged_u, SLOPE_DRIFT * self.slope)
        self.rest = _replace_values(slow, slow.readings.value - self.offset_w - self.slope * values)
        self._sampled = _replace_values(slow, values)
        freedom = max(int(inside.sum()) - FITTED_NUMBERS, 1)
        # The fit explains some of the scatter, and the spread of few residuals may be too small by chance.
        self._few = t_975(freedom) / COVERAGE_FACTOR * math.sqrt((freedom + FITTED_NUMBERS) / freedom)

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms."""
        span, shared = (b_ns - a_ns) * 1e-9, self.slow.spec.accuracy.shared or self.slow.name
        fast = self.guide.energy(a_ns, b_ns)
        rest = self.rest.energy(a_ns, b_ns, steps_ns=steps_ns).without(*LEVEL_TERMS, "quantum")
        plain = self.slow.energy(a_ns, b_ns, steps_ns=steps_ns)
        value = self.offset_w * span + self.slope * fast.value + rest.value
        level = tuple(f"{kind}:" for kind in (*LEVEL_TERMS, "quantum"))
        terms = {s: u for s, u in plain.terms.items() if s.startswith(level)}
        terms = {s: u * value / plain.value if s.startswith("gain:") and plain.value else u for s, u in terms.items()}
        terms |= {s: u * self._few if s.startswith("sampling:") else u for s, u in rest.terms.items()}
        terms[f"guide:{shared}"] = self.slope_u * abs(fast.value - _subtract_ends(self._sampled, a_ns, b_ns))
        for source, u in fast.without(*LEVEL_TERMS).terms.items():
            terms[source] = terms.get(source, 0.0) + self.slope * u
        return Quantity(value, {s: u for s, u in terms.items() if u}, plain.known, plain.bounds)


class WatchedCurve:
    """Compute energies of a slow power channel as read, with a term for changes that only the fast meters show.

    It is not guided: if the load repeats like the readings, or the lag is unknown, a fit would be wrong with a small
    uncertainty.
    """

    def __init__(self, slow: PowerCurve, guide: Guide) -> None:
        self.slow = slow
        self.readings = slow.readings
        self._guide = guide

    @cached_property
    def _sampled(self) -> list[PowerCurve]:
        reach = self.slow.step_s / 2
        return [self._guide.sample_like(self.slow, float(late)) for late in np.linspace(-reach, reach, SAMPLE_OFFSETS)]

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms."""
        plain, fast = self.slow.energy(a_ns, b_ns, steps_ns=steps_ns), self._guide.energy(a_ns, b_ns)
        bound = 0.0
        for other in self._sampled if fast.value > 0 else ():
            missed = fast.value - _subtract_ends(other, a_ns, b_ns)
            # Such readings change the energy of the fast meters; these may change their own in proportion.
            sampled = max(fast.value - missed, LEAST_SAMPLED * fast.value)
            bound = max(bound, abs(plain.value * missed / sampled))
        # The fast meters would have shown states that the readings missed, except in the rest of the scope.
        rest = min(max(1 - fast.value / plain.value, 0.0), 1.0) if plain.value > 0 else 1.0
        terms = {s: u * rest if s.startswith("missed:") else u for s, u in plain.terms.items()}
        terms[f"alias:{self.slow.name}"] = bound / math.sqrt(3)
        return replace(plain, terms={s: u for s, u in terms.items() if u})


class DoubtedCurve:
    """Compute energies of a meter that does not follow the load in its scope: as read, with unknown uncertainty."""

    def __init__(self, curve: PowerCurve | CounterCurve) -> None:
        self.plain = curve
        self.readings = curve.readings

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J; its accuracy is not known."""
        return replace(self.plain.energy(a_ns, b_ns, steps_ns=steps_ns), known=False)


def _subtract_ends(curve: PowerCurve, a_ns: int, b_ns: int) -> float:
    return float(curve.at(b_ns)[0] - curve.at(a_ns)[0])


def _replace_values(slow: PowerCurve, value: Floats) -> PowerCurve:
    """Return a curve with other values at the times of the slow readings."""
    r, spec = slow.readings, replace(slow.spec, limits=None)
    bounds = PowerBounds(float(value.min()), float(value.max()))
    return PowerCurve(Readings(r.t0_ns, r.t1_ns, value), spec, name=slow.name, bounds=bounds, step_s=slow.step_s)


def _find_slope(x: Floats, y: Floats) -> float:
    dx = x - x.mean()
    return float(np.dot(dx, y - y.mean())) / max(float(np.dot(dx, dx)), 1e-12)


def _fit_line(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Return offset (W), slope and its standard uncertainty; raise ValueError if too little variance is explained."""
    dx, dy = x - x.mean(), y - y.mean()
    xx, yy, xy = float(np.dot(dx, dx)), float(np.dot(dy, dy)), float(np.dot(dx, dy))
    if xx <= 0 or yy <= 0 or xy <= 0 or xy * xy < EXPLAINED_SHARE * xx * yy:
        raise ValueError("the fast meters do not explain the slow readings")
    slope = xy / xx
    residual = dy - slope * dx
    left, free = float(np.dot(residual, residual)), max(count_independent(residual) - 2, 1.0)
    return float(y.mean() - slope * x.mean()), slope, math.sqrt(left / free / xx)
