"""Compute what a goal wants small over arrays of caps, the regret of each cap, and what measured values tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.goals import USUAL_K

if TYPE_CHECKING:
    from joulelab.analysis.goals import Goal
    from joulelab.study.tuning.curve import Bools, Floats, Ints

TOUCHES = 1e-9  # a slowdown that is the limit but for rounding is within it
K = 2.0  # coverage factor: caps closer than this many standard deviations cannot be told apart
LEAST, MOST = 0.01, 0.03  # relative noise from run to run that is believed until repeats tell
SURE = 0.003  # the least where all trials tell their uncertainty
WEIGHT = 2.0  # repeats that the noise believed beforehand counts
DRAWS = 512  # of what the means may be by noise


def objective(goal: Goal, energy: Floats, time: Floats, ref_energy: Floats | float, ref_time: Floats | float) -> Floats:
    """Return what the goal wants small, from ratios to the reference: 1 there, lower is better; without its limit."""
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


def excess(goal: Goal, time: Floats) -> Floats:
    """Return how much slower each cap (last axis, the reference last) is than the limit allows."""
    if goal.slowdown is None:
        return np.full_like(time, -np.inf)
    slower: Floats = time / time[..., -1:] - 1 - goal.slowdown
    return slower


def regret(goal: Goal, energy: Floats, time: Floats) -> Floats:
    """Return what choosing each cap (last axis, the reference last) costs against choosing the best one.

    It is objective / best objective - 1, the best taken among the caps within the limit. For a cap beyond the limit it
    is the excess slowdown: 0.02 for 7 % where 5 % are allowed.
    """
    value = objective(goal, energy, time, energy[..., -1:], time[..., -1:])
    beyond = excess(goal, time)
    within = beyond <= TOUCHES
    best = np.where(within, value, np.inf).min(axis=-1, keepdims=True)
    return np.where(within, value / best - 1, beyond)


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold mean energy and time of each cap tried (the highest last), and what they may be by noise (draw, cap)."""

    at: Ints
    energy: Floats
    time: Floats
    may_e: Floats
    may_t: Floats

    def contenders(self, goal: Goal) -> Bools:
        """Return which caps may be the best: they may keep the limit, and are not measurably worse than the best."""
        best = int(regret(goal, self.energy, self.time).argmin())
        return np.array([n == best or self._rivals(goal, n, best) <= K for n in range(len(self.at))])

    def tied(self, goal: Goal, n: int, best: int) -> bool:
        """Return whether a cap cannot be told apart from another."""
        return abs(self._rivals(goal, n, best)) <= K

    def is_flat(self) -> bool:
        """Return whether no cap changes energy or time by more than the noise."""
        log = np.log(np.stack([self.may_e / self.may_e[:, -1:], self.may_t / self.may_t[:, -1:]]))[..., :-1]
        return bool(log.size) and bool((np.abs(log.mean(axis=1)) <= K * log.std(axis=1)).all())

    def _rivals(self, goal: Goal, n: int, best: int) -> float:
        """Return how much worse a cap is in standard deviations; infinite where it breaks the limit for sure."""
        beyond = excess(goal, self.may_t)[:, n]
        if goal.slowdown is not None and beyond.mean() - K * beyond.std() > TOUCHES:
            return float("inf")
        value = objective(goal, self.may_e, self.may_t, self.may_e[:, -1:], self.may_t[:, -1:])
        worse = np.log(np.maximum(value[:, n], 1e-6)) - np.log(np.maximum(value[:, best], 1e-6))
        return float(worse.mean() / max(worse.std(), 1e-12))


def measured(
    at: Ints, energy: Floats, time: Floats, u_energy: Floats, u_time: Floats, noise: tuple[float, float]
) -> Measured:
    """Return means per cap; `noise` of time and power is what is believed until repeats tell."""
    caps, of = np.unique(at, return_inverse=True)
    mine = (of.ravel()[:, None] == np.arange(len(caps))).astype(float)
    count = mine.sum(axis=0)
    mean_e, mean_t = energy @ mine / count, time @ mine / count
    u_t, u_e = u_time / time, u_energy / energy
    luck = np.random.default_rng(2).standard_normal((2, DRAWS, len(caps)))
    luck -= luck.mean(axis=1, keepdims=True)
    deviations = [
        _deviation(log_y, u, believed, of.ravel(), mine)
        for log_y, u, believed in ((np.log(time), u_t, noise[0]), (np.log(energy / time), np.hypot(u_e, u_t), noise[1]))
    ]
    may_t = mean_t * np.exp(deviations[0] * luck[0])
    may_p = mean_e / mean_t * np.exp(deviations[1] * luck[1])
    return Measured(caps, mean_e, mean_t, may_t * may_p, may_t)


def _deviation(log_y: Floats, u: Floats, believed: float, of: Ints, mine: Floats) -> Floats:
    """Return the relative standard uncertainty of each cap's mean."""
    count = mine.sum(axis=0)
    least, most = (SURE, min(MOST, LEAST + 3 * float(u.mean()))) if (u > 0).all() else (LEAST, MOST)
    apart = float(((log_y - (log_y @ mine / count)[of]) ** 2).sum())
    spread = (WEIGHT * min(max(believed, least), most) ** 2 + apart) / (WEIGHT + len(of) - len(count))
    return np.asarray(np.sqrt((spread + (u**2) @ mine / count) / count))
