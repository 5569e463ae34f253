"""Lay one grid of time over a run, and coarser ones over it: buckets whose extremes never get lost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats

COARSER = 4  # so many buckets of a level are one of the next
FEW = 500  # buckets from which the coarsest level has fewer


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """Hold `count` buckets of `step_s` from `from_s` on, and how many levels are made of them.

    Times are in s from the workload's start.
    """

    from_s: float
    step_s: float
    count: int
    levels: int = 1

    @property
    def to_s(self) -> float:
        """Return where it ends."""
        return self.from_s + self.count * self.step_s

    def edges(self) -> Floats:
        """Return where buckets begin, and where the last one ends."""
        edges: Floats = self.from_s + np.arange(self.count + 1, dtype=np.float64) * self.step_s
        return edges


@dataclass(frozen=True)
class Buckets:
    """Hold mean, lowest and highest value of each bucket; NaN = no reading there.

    `seen` is the share of each that was read; without it, all of those that have a mean.
    """

    mean: Floats
    low: Floats
    high: Floats
    seen: Floats | None = None

    def coarser(self) -> Buckets:
        """Return buckets of four each: the mean over what was read, the lowest low, the highest high.

        What was read has the same integral as before: mean x share.
        """
        seen = (~np.isnan(self.mean)).astype(np.float64) if self.seen is None else self.seen
        mean, low, high, share = (a.reshape(-1, COARSER) for a in (self.mean, self.low, self.high, seen))
        weight = share.sum(axis=1)
        sums = np.where(share > 0, mean * share, 0.0).sum(axis=1)
        means = np.divide(sums, weight, out=np.full(weight.size, np.nan), where=weight > 0)
        return Buckets(means, np.fmin.reduce(low, axis=1), np.fmax.reduce(high, axis=1), weight / COARSER)


def make_grid(first_s: float, last_s: float, duration_s: float, *, raw_s: float, most: int) -> TimeGrid:
    """Return a grid over [first, last] of at most about `most` buckets, none shorter than the meters' step `raw_s`.

    The workload, from 0 to `duration_s`, begins and ends at edges of every level, unless it is shorter than a bucket of
    the coarsest.
    """
    span = max(last_s - first_s, raw_s)
    step = max(raw_s, span / max(most, 1))
    levels = 1
    while span / step / COARSER ** (levels - 1) >= FEW:
        levels += 1
    block = step * COARSER ** (levels - 1)
    if duration_s >= block:
        block = duration_s / math.floor(duration_s / block * (1 + 1e-9))
    before, after = math.ceil(-first_s / block - 1e-6), math.ceil(last_s / block - 1e-6)
    blocks = max(before + after, 1)
    return TimeGrid(-before * block, block / COARSER ** (levels - 1), blocks * COARSER ** (levels - 1), levels)


def make_levels(finest: Buckets, levels: int) -> tuple[Buckets, ...]:
    """Return a level and so many coarser ones that there are `levels`."""
    found = [finest]
    for _ in range(levels - 1):
        found.append(found[-1].coarser())
    return tuple(found)
