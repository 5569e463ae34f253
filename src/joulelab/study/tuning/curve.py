"""Hold what is believed of time and power against the cap: a family of physical curves, and what departs from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

CURVES = 1536  # members of the family
ALIEN = 1.1  # times the highest cap: a mean power above it is not that of one capped device
PEAKS = 2.0  # times the mean power: caps above cut no peaks
NOISE = np.array([0.003, 0.008, 0.02, 0.05, 0.12])  # relative deviations from run to run that are thought possible
LIKELY = np.log(np.array([0.25, 0.40, 0.25, 0.09, 0.01]))
BREAKS = 16  # caps at which the family may cease to hold, besides those tried
CUTS = 1.2  # times the mean power: a break below a cap much above is unlikely
BREAK = ((0.35, 0.35), (0.0, 0.1))  # logarithm of time, and of power, below a break: mean and deviation
ODD = (0.2, 0.1)  # deviation of the logarithm of time, and of power, of a cap that is unlike the others


@dataclass(frozen=True, slots=True)
class Prior:
    """Hold how far data may depart from the family, in logarithms, before anything is known.

    `lone` is what comes again with a cap, in units of what changes from run to run.
    """

    level: float = 0.10
    misfit: float = 0.015
    reach: float = 0.25
    lone: float = 0.3
    direct: float = 0.8  # share of the family in which the power measured is that of the capped device alone
    breaks: float = 0.15  # share in which the family does not hold below some cap
    odd: float = 0.10  # share in which one cap, or all, give what the family does not


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold the trials: index of the cap, logarithms of time and power, and their relative standard uncertainties."""

    at: Ints
    log_t: Floats
    log_p: Floats
    u_t: Floats
    u_p: Floats


@dataclass(frozen=True, slots=True)
class Draws:
    """Hold equally likely curves: logarithms of time and power (draw, cap), noise and break of each draw."""

    log_t: Floats
    log_p: Floats
    noise_t: Floats
    noise_p: Floats
    start: Ints  # index of the lowest cap for which the family holds: 0 without a break


def _spread(count: int, dimensions: int) -> Floats:
    """Return points that fill the unit cube evenly: an additive recurrence, the same every time."""
    root = 2.0
    for _ in range(40):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = (1 / root) ** np.arange(1, dimensions + 1)
    filled: Floats = (0.5 + np.arange(1, count + 1)[:, None] * steps) % 1.0
    return filled


def family(caps: Floats, power_w: float, direct: float) -> tuple[Floats, Floats]:
    """Return logarithms of time and power against the highest cap, one curve per row.

    `power_w` is the mean power under the highest cap. Power is a soft minimum of what the workload would draw and of
    what the cap lets through; time is 1 + a (((p - s) / (1 - s))^-k - 1) in the share p of power left, with a floor s.
    A part of the family doubts that the power measured is the device's: a node's host, or more devices, may add to it.
    """
    x = _spread(CURVES, 7)
    top = float(caps[-1])
    sharp = 2.0 * 15.0 ** x[:, 0]  # of the soft minimum: a steady load has a corner, a varying one a bend
    passes = 0.88 + 0.14 * x[:, 1]  # mean power per cap where the cap rules
    slope = 0.01 * 60.0 ** x[:, 2]  # relative slow-down per relative loss of power, where it begins
    steep = 1.0 + 6.0 * x[:, 3]
    alone = (x[:, 5] < direct) & (power_w <= ALIEN * top)
    draw = np.where(alone, power_w / top, 0.25 * 4.0 ** x[:, 6])
    host = np.where(alone, 0.0, 0.5 * x[:, 5])
    bent = np.minimum((draw / passes) ** sharp, 0.97)
    free = draw * (1 - bent) ** (-1 / sharp)  # what it would draw without any cap
    asked = (free / passes)[:, None] * top / caps
    left = (1 + asked ** sharp[:, None]) ** (-1 / sharp[:, None])
    floor = np.minimum(0.25 * x[:, 4] / free, 0.6)[:, None]
    moving = np.maximum((left - floor) / (1 - floor), 0.02)
    time = 1 + (slope / steep)[:, None] * (moving ** -steep[:, None] - 1)
    power = host[:, None] + (1 - host)[:, None] * left / left[:, -1:]
    return np.log(np.minimum(time / time[:, -1:], 50.0)), np.log(power)


def _bites(caps: Floats, power_w: float) -> Floats:
    """Return how much a cap can matter, 0 to 1: one far above the power that is drawn changes nothing."""
    if power_w > ALIEN * caps[-1]:
        return np.ones(len(caps))
    return np.minimum(1.0, PEAKS * power_w / caps) ** 4


@dataclass(frozen=True, slots=True)
class _Local:
    """Hold ways to depart from the family (way, cap): where, 0 none, 1 below a break or 2 by odd caps, how likely."""

    where: Bools
    kinds: Ints
    likely: Floats


@dataclass(frozen=True, slots=True)
class _Fit:
    """Hold log likelihoods of one quantity, and what draws it: gains and covariances (way, noise)."""

    likely: Floats  # noise, curve, kind of way: some ways do the same to the caps that were tried
    kind: Ints  # of each way
    curves: Floats
    shift: Floats
    rest: Floats
    tried: Ints
    gain: Floats
    left: Floats

    def total(self) -> Floats:
        """Return log likelihoods (curve, way), whatever the noise."""
        top = self.likely.max(axis=0)
        summed: Floats = top + np.log(np.exp(self.likely - top).sum(axis=0))
        return summed[:, self.kind]

    def drawn(self, curve: Ints, way: Ints, even: Floats, normal: Floats) -> tuple[Floats, Floats]:
        """Return curves, and the noise of each, for members and ways that are given."""
        each = self.likely[:, curve, self.kind[way]].T
        ends = np.cumsum(np.exp(each - each.max(axis=1, keepdims=True)), axis=1)
        noise = np.minimum((even[:, None] * ends[:, -1:] > ends).sum(axis=1), len(NOISE) - 1)
        groups, mine = np.unique(way * len(NOISE) + noise, return_inverse=True)
        ways, levels = np.divmod(groups, len(NOISE))
        root = np.linalg.cholesky(self.left[ways, levels] + 1e-10 * np.eye(self.left.shape[-1]))
        gain = self.gain[ways, levels]
        rest = self.rest[curve, noise] - self.shift[way][:, self.tried]
        out = self.curves[curve] + self.shift[way]
        for group in range(len(groups)):
            here = mine.ravel() == group
            out[here] += rest[here] @ gain[group].T + normal[here] @ root[group].T
        return out, NOISE[noise]


def _per_cap(at: Ints, log_y: Floats, u: Floats) -> tuple[Ints, Floats, Floats, Floats]:
    """Return the caps tried, mean and variance (noise, cap), and the log likelihood of how repeats differ (noise)."""
    tried, of = np.unique(at, return_inverse=True)
    weight = 1 / (u**2 + NOISE[:, None] ** 2)
    mine = (of.ravel()[:, None] == np.arange(len(tried))).astype(float)
    total = weight @ mine
    mean = (weight * log_y) @ mine / total
    rest = weight * (log_y - mean[:, of.ravel()]) ** 2
    within = -0.5 * (rest - np.log(weight)).sum(axis=1) - 0.5 * np.log(total).sum(axis=1)
    return tried, mean, 1 / total, within


class Belief:
    """Draw curves of time and power that agree with the trials.

    A curve is a member of the family plus a departure that is normal in the logarithm: a level, smooth along the caps,
    and cap by cap. On top of it a departure that is local: none, a break (below some cap the family does not hold), one
    odd cap, or odd caps everywhere. What a break or an odd cap explains does not count as noise for the other caps.
    Given the departure and the noise all members share one covariance, so that the posterior is exact and cheap.
    """

    def __init__(self, caps: Floats, power_w: float, prior: Prior) -> None:
        self.power_w = power_w
        self._caps, self._prior = caps, prior
        self._time, self._power = family(caps, power_w, prior.direct)
        self._near: Floats = np.exp(-0.5 * ((np.log(caps)[:, None] - np.log(caps)) / prior.reach) ** 2)
        misfit = prior.misfit * _bites(caps, power_w)
        self._smooth: Floats = prior.level**2 + np.outer(misfit, misfit) * self._near

    def draws(self, seen: Seen, count: int) -> Draws:
        """Return so many equally likely curves given the trials; the same trials give the same curves."""
        local = self._local(np.unique(seen.at))
        time = self._fit(seen.at, seen.log_t, seen.u_t, self._time, local, (BREAK[0], ODD[0]))
        power = self._fit(seen.at, seen.log_p, seen.u_p, self._power, local, (BREAK[1], ODD[1]))
        weight = time.total() + power.total() + local.likely  # curve, way
        ends = np.cumsum(np.exp(weight - weight.max()).ravel())
        chosen = np.searchsorted(ends, (np.arange(count) + 0.5) / count * ends[-1])
        curve, way = np.unravel_index(np.minimum(chosen, ends.size - 1), weight.shape)
        even, normals = _spread(count, 2), np.random.default_rng(0).standard_normal((2, count, len(self._caps)))
        log_t, noise_t = time.drawn(curve, way, even[:, 0], normals[0])
        log_p, noise_p = power.drawn(curve, way, even[:, 1], normals[1])
        start = np.where(local.kinds == 1, local.where.sum(axis=1), 0)[way]
        return Draws(log_t, log_p, noise_t, noise_p, start)

    def _local(self, tried: Ints) -> _Local:
        """Return the ways to depart from the family: none, below each of some caps, one of those tried, all."""
        count, prior = len(self._caps), self._prior
        some = np.linspace(1, count - 1, min(BREAKS, count - 1)).round().astype(np.intp)
        starts = np.union1d(some, tried[tried > 0])
        odd = tried[tried < count - 1]  # the reference is what all are compared to: it is never the odd one
        below = np.arange(count) < starts[:, None]
        alone = np.arange(count) == odd[:, None]
        every = np.arange(count)[None] < count - 1
        gap = np.diff(np.concatenate([np.log(self._caps[:1]), np.log(self._caps[starts])])) if len(starts) else starts
        far = np.minimum(1.0, CUTS * self.power_w / self._caps) ** 8
        matters = far if self.power_w <= ALIEN * self._caps[-1] else np.ones(count)
        likely = np.concatenate(
            [
                [1 - prior.breaks - prior.odd],
                prior.breaks * matters[starts - 1] * gap / max(float(np.sum(gap)), 1e-9),
                np.full(len(odd), 0.8 * prior.odd / max(len(odd), 1)),
                [0.2 * prior.odd],
            ]
        )
        kinds = np.repeat([0, 1, 2, 2], [1, len(starts), len(odd), 1])
        where = np.concatenate([np.zeros((1, count), bool), below, alone, every])
        return _Local(where, kinds, np.log(np.maximum(likely, 1e-12)))

    def _fit(
        self,
        at: Ints,
        log_y: Floats,
        u: Floats,
        curves: Floats,
        local: _Local,
        sizes: tuple[tuple[float, float], float],
    ) -> _Fit:
        """Return each curve's log likelihood per departure and noise, and what is needed to draw."""
        (mean, spread), odd = sizes
        where = local.where.astype(float)
        broken, single = where * (local.kinds == 1)[:, None], where * (local.kinds == 2)[:, None]
        shift: Floats = mean * broken
        unit = np.eye(len(self._caps))
        apart = (spread**2 * (0.9 + 0.1 * self._near)) * broken[:, :, None] * broken[:, None] + odd**2 * single[
            :, :, None
        ] * unit
        prior = (self._smooth + apart)[:, None] + ((self._prior.lone * NOISE) ** 2)[:, None, None] * unit
        tried, y, variance, within = _per_cap(at, log_y, u)
        cross = prior[..., tried]
        inside = cross[..., tried, :] + variance[:, :, None] * np.eye(len(tried))
        inverse = np.linalg.inv(inside)
        gain = cross @ inverse
        rest = y[None] - curves[:, None, tried]  # curve, noise, tried cap
        _, first, same = np.unique(
            np.column_stack([local.kinds * where[:, tried].any(axis=1), where[:, tried]]),
            axis=0,
            return_index=True,
            return_inverse=True,
        )
        likely = np.empty((len(NOISE), len(curves), len(first)))
        white, log_det = np.linalg.cholesky(inverse[first]), np.linalg.slogdet(inside[first])[1]
        for n in range(len(NOISE)):
            flat = np.moveaxis(white[:, n], 0, 1).reshape(len(tried), -1)
            moved = np.einsum("dk,dkl->dl", shift[first][:, tried], white[:, n])
            turned = (rest[:, n] @ flat).reshape(len(curves), *moved.shape) - moved
            likely[n] = -0.5 * np.einsum("cdl,cdl->cd", turned, turned) + (within[n] + LIKELY[n] - 0.5 * log_det[:, n])
        return _Fit(likely, same.ravel(), curves, shift, rest, tried, gain, prior - gain @ np.swapaxes(cross, -1, -2))
