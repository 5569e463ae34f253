"""Hold what is believed of time and power against the cap: a family of physical curves, and what departs from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

CURVES = 1536  # members of the family
ALIEN = 1.1  # times the highest cap: a mean power above it is not that of one capped device
PEAKS = 2.0  # times the mean power: caps above cut no peaks
NOISE = np.array([0.003, 0.008, 0.02, 0.05, 0.12])  # relative deviations from run to run that are thought possible
LIKELY = np.log(np.array([0.25, 0.40, 0.25, 0.09, 0.01]))


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
    """Hold equally likely curves: logarithms of time and power (draw, cap), and the noise of each draw."""

    log_t: Floats
    log_p: Floats
    noise_t: Floats
    noise_p: Floats


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


class Belief:
    """Draw curves of time and power that agree with the trials.

    A curve is a member of the family plus a departure that is normal in the logarithm: a level, smooth along the caps,
    and cap by cap. Given the noise, all members share one covariance, so that the posterior is exact and cheap.
    """

    def __init__(self, caps: Floats, power_w: float, prior: Prior) -> None:
        self.power_w = power_w
        self._time, self._power = family(caps, power_w, prior.direct)
        apart = np.log(caps)[:, None] - np.log(caps)
        misfit = prior.misfit * _bites(caps, power_w)
        self._smooth: Floats = prior.level**2 + np.outer(misfit, misfit) * np.exp(-0.5 * (apart / prior.reach) ** 2)
        self._lone = prior.lone
        self._caps = len(caps)

    def draws(self, seen: Seen, count: int) -> Draws:
        """Return so many equally likely curves given the trials; the same trials give the same curves."""
        time = [self._fit(seen.at, seen.log_t, seen.u_t, noise, self._time) for noise in NOISE]
        power = [self._fit(seen.at, seen.log_p, seen.u_p, noise, self._power) for noise in NOISE]
        weight_t, weight_p = (np.stack([fit for fit, _, _ in fits], 1) + LIKELY for fits in (time, power))
        weight = weight_t[:, :, None] + weight_p[:, None, :]
        ends = np.cumsum(np.exp(weight - weight.max()).ravel())
        chosen = np.searchsorted(ends, (np.arange(count) + 0.5) / count * ends[-1])
        curve, i, j = np.unravel_index(chosen, weight.shape)
        log_t, log_p = np.empty((2, count, self._caps))
        normals = np.random.default_rng(0).standard_normal((2, count, self._caps))
        for out, fits, level, normal in ((log_t, time, i, normals[0]), (log_p, power, j, normals[1])):
            for k, (_, shape, root) in enumerate(fits):
                mine = level == k
                out[mine] = shape[curve[mine]] + normal[mine] @ root.T
        return Draws(log_t, log_p, NOISE[i], NOISE[j])

    def _fit(self, at: Ints, log_y: Floats, u: Floats, noise: float, curves: Floats) -> tuple[Floats, Floats, Floats]:
        """Return each curve's log likelihood and shape given the trials, and the root of the covariance they share."""
        prior = self._smooth + (self._lone * noise) ** 2 * np.eye(len(self._smooth))
        cross = prior[:, at]
        within = cross[at] + np.diag(u**2 + noise**2)
        inverse = np.linalg.inv(within)
        gain = cross @ inverse
        rest = log_y - curves[:, at]
        fit: Floats = -0.5 * ((rest @ inverse) * rest).sum(axis=1) - 0.5 * float(np.linalg.slogdet(within)[1])
        root = np.linalg.cholesky(prior - gain @ cross.T + 1e-10 * np.eye(len(prior))).astype(np.float64)
        return fit, curves + rest @ gain.T, root
