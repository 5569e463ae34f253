"""Lay a way to run a job out over finer slots: what came may change more often than what was forecast."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from joulelab.analysis.series import Floats, Ints
    from joulelab.planner.shifting.baselines import Way
    from joulelab.planner.shifting.job import Job


def finer(way: Way, job: Job, coarse_s: Floats, fine_s: Floats) -> Way:
    """Return a way by slots with finer edges (s since 1970), among which are all of those that it has.

    The job starts late in its first slot and ends early in its last; a node that waits for it idles before. A job as it
    ran has its own course. Where a slot between them is divided, its parts are spread evenly: exact for all others.
    """
    if len(coarse_s) == len(fine_s):
        return way
    inside = np.searchsorted(coarse_s, fine_s[:-1], side="right") - 1
    whole = _shares(coarse_s, fine_s, inside, float(coarse_s[0]), float(coarse_s[-1]))
    held = _shares(coarse_s, fine_s, inside, way.start_s, way.end_s)
    before = _shares(coarse_s, fine_s, inside, float(coarse_s[0]), way.start_s)
    waited = np.where(coarse_s[:-1][inside] < way.start_s, before, whole)
    modes, paused = way.modes_s[inside] * held[:, np.newaxis], way.paused_s[inside] * waited
    if way.name in ("now", "start"):
        ran = np.diff(job.energy_to(fine_s - way.start_s))
    else:
        powers = np.array([mode.power.value for mode in job.modes])
        again = way.energy_j - way.modes_s @ powers - way.paused_s * job.idle.value  # what restarts take
        ran = modes @ powers + again[inside] * held
    return replace(
        way, energy_j=ran + paused * job.idle.value, running_s=way.running_s[inside] * held, paused_s=paused,
        modes_s=modes,
    )  # fmt: skip


def _shares(coarse_s: Floats, fine_s: Floats, inside: Ints, since_s: float, until_s: float) -> Floats:
    """Return which share of the part of its coarse slot that is between two times each fine slot has."""
    part = np.diff(np.clip(fine_s, since_s, until_s))
    whole = np.diff(np.clip(coarse_s, since_s, until_s))[inside]
    found: Floats = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return found
