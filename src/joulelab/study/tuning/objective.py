"""Compute what a goal wants small over arrays of caps, and the regret of each cap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.goal import USUAL_K

if TYPE_CHECKING:
    from joulelab.analysis.goal import Goal
    from joulelab.study.tuning.curve import Floats

TOUCHES = 1e-9  # a slowdown that is the limit but for rounding is within it


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
