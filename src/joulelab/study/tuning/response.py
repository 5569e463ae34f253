"""Model how time and power respond to caps and locked clocks: physical curves, departures from them, and goals.

Settings are given by two arrays: caps in W (infinite: not capped), and clocks as shares of the highest one. The last
setting is the reference, with the highest cap and the highest clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from joulelab.analysis.goals import USUAL_K

if TYPE_CHECKING:
    from joulelab.analysis.goals import Goal

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

CURVES, PAIR_CURVES = 1536, 4096  # curves of the family: of caps, and where clocks are locked
FOREIGN = 1.1  # times the highest cap: a higher mean power is not that of one capped device
PEAKS = 2.0  # times the mean power: higher caps cut no peaks
NOISE = np.array([0.003, 0.008, 0.02, 0.05, 0.12])  # possible relative deviations from run to run
NOISE_PRIOR = np.log(np.array([0.25, 0.40, 0.25, 0.09, 0.01]))
BREAKS = 16  # caps below which the family may cease to hold, besides those tried
CUTS = 1.2  # times the mean power: a break below a much higher cap is unlikely
BREAK_SIZES = ((0.35, 0.35), (0.0, 0.1))  # logarithm of time, and of power, below a break: mean and deviation
ODD_SIZES = (0.2, 0.1)  # deviation of the logarithm of time, and of power, of a setting that is unlike the others
ROUNDING = 1e-9  # a slowdown that exceeds the limit by rounding is within it
K = 2.0  # coverage factor: settings that differ by fewer standard deviations have no significant difference
LEAST_NOISE, MOST_NOISE = 0.01, 0.03  # relative noise from run to run that is assumed until there are repeats
LEAST_KNOWN_NOISE = 0.003  # the least where all trials state their uncertainty
NOISE_WEIGHT = 2.0  # repeats that the assumed noise counts
DRAWS = 512  # Monte Carlo draws of the means


@dataclass(frozen=True, slots=True)
class ResponsePrior:
    """Hold how far data may depart from the family, in logarithms, before any trial.

    `lone` is the part that comes again with a setting, in units of the noise from run to run.
    """

    level: float = 0.10
    misfit: float = 0.015
    stretch: float = 0.04  # misfit as a share of the change, where clocks are locked
    reach: float = 0.25
    lone: float = 0.3
    direct: float = 0.8  # share of the family in which the measured power is that of the capped device alone
    breaks: float = 0.15  # share in which the family does not hold below some cap
    odd: float = 0.10  # share in which one setting, or all, depart from the family


@dataclass(frozen=True, slots=True)
class TrialData:
    """Hold trials: index of the setting, logarithms of time and power, their relative standard uncertainties."""

    at: Ints
    log_t: Floats
    log_p: Floats
    u_t: Floats
    u_p: Floats


@dataclass(frozen=True, slots=True)
class CurveDraws:
    """Hold equally likely curves: logarithms of time and power (draw, setting), noise and break of each draw."""

    log_t: Floats
    log_p: Floats
    noise_t: Floats
    noise_p: Floats
    start: Ints  # number of settings below the break: 0 without one


def compute_objective(
    goal: Goal, energy: Floats, time: Floats, ref_energy: Floats | float, ref_time: Floats | float
) -> Floats:
    """Return the figure to minimise, by ratios to the reference (1 there); the goal's limit is left aside."""
    e, t = energy / ref_energy, time / ref_time
    if goal.name == "energy":
        return e
    if goal.name == "time":
        return t
    if goal.name == "edp":
        return e * t
    if goal.name == "ed2p":
        return e * t**2
    if goal.name == "gain-loss":
        return e + t - 1
    k = goal.k or USUAL_K
    return ((k - 1) * e + t) / k


def compute_excess(goal: Goal, time: Floats) -> Floats:
    """Return by how much each setting (last axis) is slower than the limit allows."""
    if goal.slowdown is None:
        return np.full_like(time, -np.inf)
    slower: Floats = time / time[..., -1:] - 1 - goal.slowdown
    return slower


def compute_regret(goal: Goal, energy: Floats, time: Floats) -> Floats:
    """Return the cost of choosing each setting (last axis) instead of the best one.

    It is objective / best objective - 1, with the best among those within the limit. Beyond the limit it is the excess
    slowdown: 0.02 for 7 % where 5 % are allowed.
    """
    value = compute_objective(goal, energy, time, energy[..., -1:], time[..., -1:])
    beyond = compute_excess(goal, time)
    within = beyond <= ROUNDING
    best = np.where(within, value, np.inf).min(axis=-1, keepdims=True)
    return np.where(within, value / best - 1, beyond)


@dataclass(frozen=True, slots=True)
class TrialMeans:
    """Hold mean energy and time of each setting tried (the highest last), and draws of them (draw, setting)."""

    at: Ints
    energy: Floats
    time: Floats
    drawn_energy: Floats
    drawn_time: Floats

    def find_contenders(self, goal: Goal) -> Bools:
        """Find the settings that may be the best: within the limit, and not significantly worse than the best."""
        best = int(compute_regret(goal, self.energy, self.time).argmin())
        return np.array([n == best or self._compare(goal, n, best) <= K for n in range(len(self.at))])

    def is_tied(self, goal: Goal, n: int, best: int) -> bool:
        """Return whether two settings have no significant difference."""
        return abs(self._compare(goal, n, best)) <= K

    def is_flat(self) -> bool:
        """Return whether no setting changes energy or time by more than the noise."""
        ratios = [drawn / drawn[:, -1:] for drawn in (self.drawn_energy, self.drawn_time)]
        log = np.log(np.stack(ratios))[..., :-1]
        return bool(log.size) and bool((np.abs(log.mean(axis=1)) <= K * log.std(axis=1)).all())

    def _compare(self, goal: Goal, n: int, best: int) -> float:
        """Return by how many standard deviations a setting is worse; infinite if it surely breaks the limit."""
        beyond = compute_excess(goal, self.drawn_time)[:, n]
        if goal.slowdown is not None and beyond.mean() - K * beyond.std() > ROUNDING:
            return float("inf")
        energy, time = self.drawn_energy, self.drawn_time
        value = np.maximum(compute_objective(goal, energy, time, energy[:, -1:], time[:, -1:]), 1e-6)
        worse = np.log(value[:, n]) - np.log(value[:, best])
        return float(worse.mean() / max(worse.std(), 1e-12))


def average_trials(
    at: Ints, energy: Floats, time: Floats, u_energy: Floats, u_time: Floats, noise: tuple[float, float]
) -> TrialMeans:
    """Return means per setting; `noise` of time and power is assumed until there are repeats."""
    tried, of = np.unique(at, return_inverse=True)
    own = (of.ravel()[:, None] == np.arange(len(tried))).astype(float)
    count = own.sum(axis=0)
    mean_e, mean_t = energy @ own / count, time @ own / count
    u_t, u_e = u_time / time, u_energy / energy
    normal = np.random.default_rng(2).standard_normal((2, DRAWS, len(tried)))
    normal -= normal.mean(axis=1, keepdims=True)
    deviations = [
        _estimate_deviation(log_y, u, assumed, of.ravel(), own)
        for log_y, u, assumed in ((np.log(time), u_t, noise[0]), (np.log(energy / time), np.hypot(u_e, u_t), noise[1]))
    ]
    drawn_t = mean_t * np.exp(deviations[0] * normal[0])
    drawn_p = mean_e / mean_t * np.exp(deviations[1] * normal[1])
    return TrialMeans(tried, mean_e, mean_t, drawn_t * drawn_p, drawn_t)


def _estimate_deviation(log_y: Floats, u: Floats, assumed: float, of: Ints, own: Floats) -> Floats:
    """Return the relative standard uncertainty of each setting's mean."""
    count = own.sum(axis=0)
    least, most = LEAST_NOISE, MOST_NOISE
    if (u > 0).all():
        least, most = LEAST_KNOWN_NOISE, min(MOST_NOISE, LEAST_NOISE + 3 * float(u.mean()))
    apart = float(((log_y - (log_y @ own / count)[of]) ** 2).sum())
    spread = (NOISE_WEIGHT * min(max(assumed, least), most) ** 2 + apart) / (NOISE_WEIGHT + len(of) - len(count))
    return np.asarray(np.sqrt((spread + (u**2) @ own / count) / count))


def fill_cube(count: int, dimensions: int) -> Floats:
    """Return points that fill the unit cube evenly: an additive recurrence, the same every time."""
    root = 2.0
    for _ in range(40):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = (1 / root) ** np.arange(1, dimensions + 1)
    filled: Floats = (0.5 + np.arange(1, count + 1)[:, None] * steps) % 1.0
    return filled


def make_family(caps: Floats, clocks: Floats, power_w: float, direct: float) -> tuple[Floats, Floats]:
    """Return logarithms of time and power against the reference, one curve per row.

    `power_w` is the mean power at the reference. Power is a soft minimum of the workload's demand and of the power that
    the cap allows; time is 1 + a (((p - s) / (1 - s))^-k - 1) in the share p of the power, with a floor s.
    A part of the family doubts that the measured power is the device's: a node's host, or more devices, may add to it.
    """
    if (clocks < 1).any():
        return _make_clocked_family(caps, clocks, power_w, direct)
    x = fill_cube(CURVES, 7)
    top = float(caps[-1])
    sharp = 2.0 * 15.0 ** x[:, 0]  # of the soft minimum: a steady load has a corner, a varying one a bend
    passes = 0.88 + 0.14 * x[:, 1]  # mean power per cap where the cap binds
    slope = 0.01 * 60.0 ** x[:, 2]  # relative slowdown per relative loss of power, at its beginning
    steep = 1.0 + 6.0 * x[:, 3]
    alone = (x[:, 5] < direct) & (power_w <= FOREIGN * top)
    draw = np.where(alone, power_w / top, 0.25 * 4.0 ** x[:, 6])
    host = np.where(alone, 0.0, 0.5 * x[:, 5])
    bent = np.minimum((draw / passes) ** sharp, 0.97)
    free = draw * (1 - bent) ** (-1 / sharp)  # demand without any cap
    asked = (free / passes)[:, None] * top / caps
    left = (1 + asked ** sharp[:, None]) ** (-1 / sharp[:, None])
    floor = np.minimum(0.25 * x[:, 4] / free, 0.6)[:, None]
    time = _slow_down(left, slope[:, None], steep[:, None], floor)
    power = host[:, None] + (1 - host)[:, None] * left / left[:, -1:]
    return np.log(np.minimum(time / time[:, -1:], 50.0)), np.log(power)


def _slow_down(share: Floats, slope: Floats, steep: Floats, floor: Floats) -> Floats:
    """Return the factor by which work takes longer at a share of its power."""
    moving = np.maximum((share - floor) / (1 - floor), 0.02)
    return np.asarray(1 + slope / steep * (moving**-steep - 1))


def _make_clocked_family(caps: Floats, clocks: Floats, power_w: float, direct: float) -> tuple[Floats, Floats]:
    """Return the family where clocks are locked, with or without caps.

    A workload has two stages of different power. A clock f lowers the demand of a stage to s + (1 - s) f^g. Where the
    cap binds, it sets the clock: time follows the law of power above. Where the clock binds, time follows the same law,
    but is not longer than 1 + b (1/f - 1); or it is 1 + b (f^-h - 1).
    """
    x = fill_cube(PAIR_CURVES, 16).T[:, :, None]
    is_capped = bool(np.isfinite(caps).all())
    top = float(caps[-1]) if is_capped else power_w
    passes = 0.88 + 0.14 * x[1]
    sharp = 5.0 * 12.0 ** x[0]
    slope, steep = 0.01 * 60.0 ** x[2], 1.0 + 6.0 * x[3]
    exponent, static = 1.0 + 2.0 * x[7], 0.03 + 0.4 * x[8]
    lower, weight = 0.1 + 0.9 * x[12], 0.9 * x[13]
    alone = (x[5] < direct) & (power_w <= FOREIGN * top)
    mean = np.where(alone, power_w / top, 0.25 * 4.0 ** x[6])
    host = np.where(alone, 0.0, 0.8 * x[6])
    demand = mean / (1 - weight + weight * lower)
    demand = np.where(is_capped & (demand > 0.97 * passes), passes * (1 + 0.4 * x[4]), demand)
    time = energy = np.zeros((1, 1))
    for share, draw, rate, bound in (
        (1 - weight, demand, slope, x[10]),
        (weight, demand * lower, slope * 2 * x[14], x[15]),
    ):
        asked = static + (1 - static) * clocks**exponent
        floor = np.minimum(0.25 * x[4] / np.maximum(draw, 0.05), 0.6)
        by_power = np.minimum(_slow_down(asked, rate, steep, floor), 1 + bound * (1 / clocks - 1))
        by_clock = 1 + bound * (clocks ** -(0.8 + 0.4 * x[11]) - 1)
        log_t = np.log(np.where(x[9] < 0.6, by_power, by_clock))
        left = asked
        if is_capped:
            below = (1 + (asked * draw / passes * top / caps) ** sharp) ** (-1 / sharp)
            left, binds = asked * below, 1 - below**sharp
            log_t = binds * np.log(np.minimum(_slow_down(left, rate, steep, floor), 50.0)) + (1 - binds) * log_t
        time = time + share * np.exp(log_t)
        energy = energy + share * np.exp(log_t) * draw * left
    power = energy / time
    return np.log(np.minimum(time / time[:, -1:], 50.0)), np.log(host + (1 - host) * power / power[:, -1:])


@dataclass(frozen=True, slots=True)
class _Departures:
    """Hold local departures (way, setting): where, 0 none, 1 below a break or 2 odd settings, and log priors."""

    where: Floats
    kinds: Ints
    log_prior: Floats


@dataclass(frozen=True, slots=True)
class _Fit:
    """Hold log likelihoods of one quantity, and gains to draw it (way, noise, setting, tried setting)."""

    likely: Floats  # noise, curve, kind of way: some ways have the same effect on the settings tried
    kind: Ints  # of each way
    curves: Floats
    shift: Floats
    rest: Floats
    tried: Ints
    gain: Floats
    cross: Floats

    def sum_likelihoods(self) -> Floats:
        """Return log likelihoods (curve, way), summed over the noise."""
        top = self.likely.max(axis=0)
        summed: Floats = top + np.log(np.exp(self.likely - top).sum(axis=0))
        return summed[:, self.kind]


class ResponseBelief:
    """Draw curves of time and power that agree with the trials.

    A curve is a member of the family plus a departure that is normal in the logarithm: a level, a smooth part, and one
    of each setting. In addition there may be a local departure: a break (below some cap the family does not hold), one
    odd setting, or odd settings everywhere. What it explains does not count as noise of the other settings. Given the
    departure and the noise all members share one covariance, so that the posterior is exact and cheap.
    """

    def __init__(self, caps: Floats, clocks: Floats, power_w: float, prior: ResponsePrior) -> None:
        self.power_w = power_w
        self._caps, self._clocks, self._prior = caps, clocks, prior
        self._time, self._power = make_family(caps, clocks, power_w, prior.direct)
        self._is_clocked = bool((clocks < 1).any())
        curves = (self._time, self._power)
        if self._is_clocked:
            # Settings between which nothing changes, as those with an idle cap, depart from the family alike.
            product = sum(one.T @ one for one in curves) / PAIR_CURVES
            squares = np.diag(product)[:, None] + np.diag(product) - 2 * product
            # A law that holds for a small change need not hold for a large one.
            misfit = [np.hypot(prior.misfit, prior.stretch * np.sqrt((one**2).mean(axis=0))) for one in curves]
        else:
            squares = (np.log(caps)[:, None] - np.log(caps)) ** 2
            misfit = [prior.misfit * self._weigh_caps(PEAKS, 4)] * 2
        self._near: Floats = np.exp(-0.5 * squares / prior.reach**2)
        self._smooth = [prior.level**2 + np.outer(own, own) * self._near for own in misfit]

    def draw_curves(self, trials: TrialData, count: int) -> CurveDraws:
        """Return equally likely curves given the trials; the same trials give the same curves."""
        ways = self._list_departures(np.unique(trials.at))
        quantities = ((trials.log_t, trials.u_t, self._time), (trials.log_p, trials.u_p, self._power))
        fits = [self._fit(trials.at, *own, ways, n) for n, own in enumerate(quantities)]
        weight = fits[0].sum_likelihoods() + fits[1].sum_likelihoods() + ways.log_prior  # curve, way
        ends = np.cumsum(np.exp(weight - weight.max()).ravel())
        chosen = np.searchsorted(ends, (np.arange(count) + 0.5) / count * ends[-1])
        curve, way = np.unravel_index(np.minimum(chosen, ends.size - 1), weight.shape)
        even, normals = fill_cube(count, 2), np.random.default_rng(0).standard_normal((2, count, len(self._caps)))
        (log_t, noise_t), (log_p, noise_p) = (
            self._draw(fit, ways, n, (curve, way), even[:, n], normals[n]) for n, fit in enumerate(fits)
        )
        start = np.where(ways.kinds == 1, ways.where.sum(axis=1), 0).astype(np.intp)[way]
        return CurveDraws(log_t, log_p, noise_t, noise_p, start)

    def _weigh_caps(self, times: float, exponent: int) -> Floats:
        """Return how much each cap can matter, 0 to 1: one far above the power draw changes nothing."""
        if self.power_w > FOREIGN * self._caps[-1] or not np.isfinite(self._caps[-1]):
            return np.ones(len(self._caps))
        return np.minimum(1.0, times * self.power_w / self._caps) ** exponent

    def _list_departures(self, tried: Ints) -> _Departures:
        """List the departures: none, below each of some settings, each one tried, all."""
        count, prior = len(self._caps), self._prior
        odd = tried[tried < count - 1]  # the reference is what all are compared with: it is never the odd one
        if self._is_clocked and np.isfinite(self._caps).all():
            below, share = self._list_capped_breaks()
        else:
            some = np.linspace(1, count - 1, min(BREAKS, count - 1)).round().astype(np.intp)
            starts = np.union1d(some, tried[tried > 0])
            below = np.arange(count) < starts[:, None]
            at = np.log(self._clocks if self._is_clocked else self._caps)
            gap = np.diff(np.concatenate([at[:1], at[starts]])) if len(starts) else starts
            share = self._weigh_caps(CUTS, 8)[starts - 1] * gap / max(float(np.sum(gap)), 1e-9)
        shares = (
            [1 - prior.breaks - prior.odd],
            prior.breaks * share,
            np.full(len(odd), 0.8 * prior.odd / max(len(odd), 1)),
            [0.2 * prior.odd],
        )
        kinds = np.repeat([0, 1, 2, 2], [1, len(below), len(odd), 1])
        alone, every = np.arange(count) == odd[:, None], np.arange(count)[None] < count - 1
        where = np.concatenate([np.zeros((1, count), bool), below, alone, every]).astype(float)
        return _Departures(where, kinds, np.log(np.maximum(np.concatenate(shares), 1e-12)))

    def _list_capped_breaks(self) -> tuple[Bools, Floats]:
        """Return the settings below each cap that a high clock lets bind, and the share of each break."""
        binds = self._caps < CUTS * self.power_w * self._clocks**2
        limits = np.unique(self._caps)[1:]
        below = binds & (self._caps < limits[:, None])
        below = below[below.any(axis=1)]
        return below, np.full(len(below), 1 / max(len(below), 1))

    def _spread_departures(self, ways: _Departures, n: int, way: Ints, columns: Ints) -> Floats:
        """Return prior covariances (way, setting, column) without noise; n is 0 for time, 1 for power."""
        where, kinds = ways.where[way], ways.kinds[way]
        broken, single = where * (kinds == 1)[:, None], where * (kinds == 2)[:, None]
        unit = np.eye(len(self._caps))[:, columns]
        shared = BREAK_SIZES[n][1] ** 2 * (0.9 + 0.1 * self._near[:, columns])
        apart = shared * broken[:, :, None] * broken[:, None, columns] + ODD_SIZES[n] ** 2 * single[:, :, None] * unit
        return np.asarray(self._smooth[n][:, columns] + apart)

    def _fit(self, at: Ints, log_y: Floats, u: Floats, curves: Floats, ways: _Departures, n: int) -> _Fit:
        """Return each curve's log likelihood per departure and noise, and the gains to draw it."""
        tried, y, variance, within = _average_per_noise(at, log_y, u)
        shift: Floats = BREAK_SIZES[n][0] * ways.where * (ways.kinds == 1)[:, None]
        unit = np.eye(len(self._caps))[:, tried]
        lone = ((self._prior.lone * NOISE) ** 2)[:, None, None] * unit
        cross = self._spread_departures(ways, n, np.arange(len(ways.kinds)), tried)[:, None] + lone
        inside = cross[..., tried, :] + variance[:, :, None] * np.eye(len(tried))
        inverse = np.linalg.inv(inside)
        rest = y[None] - curves[:, None, tried]  # curve, noise, setting tried
        here = ways.where[:, tried]
        _, first, same = np.unique(
            np.column_stack([ways.kinds * here.any(axis=1), here]), axis=0, return_index=True, return_inverse=True
        )
        likely = np.empty((len(NOISE), len(curves), len(first)))
        white, log_det = np.linalg.cholesky(inverse[first]), np.linalg.slogdet(inside[first])[1]
        for k in range(len(NOISE)):
            flat = np.moveaxis(white[:, k], 0, 1).reshape(len(tried), -1)
            moved = np.einsum("dk,dkl->dl", shift[first][:, tried], white[:, k])
            turned = (rest[:, k] @ flat).reshape(len(curves), *moved.shape) - moved
            fixed = within[k] + NOISE_PRIOR[k] - 0.5 * log_det[:, k]
            likely[k] = -0.5 * np.einsum("cdl,cdl->cd", turned, turned) + fixed
        return _Fit(likely, same.ravel(), curves, shift, rest, tried, cross @ inverse, cross)

    def _draw(
        self, fit: _Fit, ways: _Departures, n: int, chosen: tuple[Ints, Ints], even: Floats, normal: Floats
    ) -> tuple[Floats, Floats]:
        """Return curves, and the noise of each, for members and departures that are given."""
        curve, way = chosen
        each = fit.likely[:, curve, fit.kind[way]].T
        ends = np.cumsum(np.exp(each - each.max(axis=1, keepdims=True)), axis=1)
        noise = np.minimum((even[:, None] * ends[:, -1:] > ends).sum(axis=1), len(NOISE) - 1)
        groups, own = np.unique(way * len(NOISE) + noise, return_inverse=True)
        rest = fit.rest[curve, noise] - fit.shift[way][:, fit.tried]
        out = fit.curves[curve] + fit.shift[way]
        unit, every = np.eye(len(self._caps)), np.arange(len(self._caps))
        for number, group in enumerate(groups):
            k, level = divmod(int(group), len(NOISE))
            gain = fit.gain[k, level]
            prior = self._spread_departures(ways, n, np.array([k]), every)[0]
            left = prior + (self._prior.lone * NOISE[level]) ** 2 * unit - gain @ fit.cross[k, level].T
            here = own.ravel() == number
            out[here] += rest[here] @ gain.T + normal[here] @ np.linalg.cholesky(left + 1e-10 * unit).T
        return out, NOISE[noise]


def _average_per_noise(at: Ints, log_y: Floats, u: Floats) -> tuple[Ints, Floats, Floats, Floats]:
    """Return the settings tried, mean and variance (noise, setting), and log likelihoods of the repeats (noise)."""
    tried, of = np.unique(at, return_inverse=True)
    weight = 1 / (u**2 + NOISE[:, None] ** 2)
    own = (of.ravel()[:, None] == np.arange(len(tried))).astype(float)
    total = weight @ own
    mean = (weight * log_y) @ own / total
    rest = weight * (log_y - mean[:, of.ravel()]) ** 2
    within = -0.5 * (rest - np.log(weight)).sum(axis=1) - 0.5 * np.log(total).sum(axis=1)
    return tried, mean, 1 / total, within
