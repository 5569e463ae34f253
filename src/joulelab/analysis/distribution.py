"""Say how long a power was how high: a histogram weighted by time, from buckets of equal length. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.statistics import compute_percentiles

if TYPE_CHECKING:
    from joulelab.analysis.series import Floats

DISTRIBUTION_BINS = 48
SAME_VALUE = 1e-6  # what differs by less than this share is one value


@dataclass(frozen=True, slots=True)
class PowerDistribution:
    """Hold shares of time (of one) between edges (W), and the median, 95th percentile and maximum (W).

    `step_s` is what each value is a mean over.
    """

    edges: tuple[float, ...]
    shares: tuple[float, ...]
    median: float
    p95: float
    maximum: float
    step_s: float


def make_distribution(mean: Floats, high: Floats, step_s: float) -> PowerDistribution | None:
    """Return how means over buckets of `step_s` are distributed, NaN left out; `high` are the highest readings in them.

    None where there is nothing.
    """
    there = np.isfinite(mean)
    values = mean[there]
    if values.size == 0:
        return None
    low, top = float(values.min()), float(values.max())
    room = 0.5 if top - low <= SAME_VALUE * abs(top) else 0.0
    counts, edges = np.histogram(values, bins=1 if room else DISTRIBUTION_BINS, range=(low - room, top + room))
    median, p95 = compute_percentiles(values, np.ones(values.size), (50, 95))
    peaks = high[there]
    highest = float(np.nanmax(peaks)) if np.isfinite(peaks).any() else top
    shares = tuple(float(c) / values.size for c in counts)
    return PowerDistribution(tuple(map(float, edges)), shares, median, p95, max(highest, top), step_s)
