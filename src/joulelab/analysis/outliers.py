"""Mark the repeats that do not look like the others; all of them stay in every figure. Pure.

A value is marked if it is far from the median, by the median of such distances: one odd value, or nearly half of
them, do not hide themselves in that. How far is far depends on the number of repeats: the limits are those that
LEVEL of all cells of normally distributed repeats pass, drawn six million times (up to 8 repeats; above two million).
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from joulelab.analysis.spread import NO_SPREAD

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTLIER_LEVEL = 0.02  # the share of cells in which a repeat is marked although nothing is odd
# Limits from 4 repeats on.
OUTLIER_LIMITS = (
    *(16.60, 19.17, 11.61, 12.30, 9.66, 9.97, 8.63, 8.82),
    *(8.02, 8.14, 7.60, 7.71, 7.33, 7.39, 7.11, 7.16, 6.94),
)
# Below this none is marked: of two, neither is nearer the truth; two of three are near each other by chance so often
# that a third which is ten deviations off would be marked in one cell of fourteen.
FEWEST_TO_MARK = 4
OUTLIER_LIMITS_OF_MANY = ((30, 6.48), (50, 6.18), (100, 6.04))  # limits by the number of repeats beyond the table


def find_outliers(values: Sequence[float]) -> tuple[int, ...]:
    """Return the places of the values that do not look like the others; none below four values."""
    if len(values) < FEWEST_TO_MARK or not all(math.isfinite(v) for v in values):
        return ()
    middle = median(values)
    distances = [abs(v - middle) for v in values]
    usual = max(median(distances), NO_SPREAD * abs(middle))
    limit = find_outlier_limit(len(values)) * usual
    return tuple(k for k, d in enumerate(distances) if d > limit)


def find_outlier_limit(n: int) -> float:
    """Return from how many usual distances on a value is marked, by the number of repeats (four or more)."""
    if n - FEWEST_TO_MARK < len(OUTLIER_LIMITS):
        return OUTLIER_LIMITS[n - FEWEST_TO_MARK]
    return next((limit for most, limit in OUTLIER_LIMITS_OF_MANY if n <= most), OUTLIER_LIMITS_OF_MANY[-1][1])
