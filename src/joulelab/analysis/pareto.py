"""Find the cells of which no other is both faster and thriftier. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.study_cells import CellMeans, divide_energies, divide_times
from joulelab.core.quantity import COVERAGE_FACTOR, ONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.core.quantity import Quantity

ROUNDING = 1e-9  # what is so near to being told apart is worked out in full


@dataclass(frozen=True, slots=True)
class ParetoFront:
    """Hold the Pareto front of a line (None: of all), by time; `unsure` are behind it only within the uncertainty."""

    line: str | None
    cells: tuple[str, ...]
    unsure: tuple[str, ...]


def find_front(line: str | None, cells: Mapping[str, CellMeans]) -> ParetoFront:
    """Return the front of time and energy, and the dominated cells that may be on it for all that is known."""
    points = {k: (m.time.value, m.energy.value) for k, m in cells.items() if m.energy is not None}
    judged = {k: cells[k].judged(k) for k in points}
    keys, place = list(points), np.array(list(points.values())).reshape(-1, 2)
    front, unsure = [], []
    for k, own in zip(keys, place, strict=True):
        better = np.flatnonzero((place <= own).all(axis=1) & (place != own).any(axis=1))
        if better.size == 0:
            front.append(k)
            continue
        # Who is furthest ahead in what it is least ahead in is surely better if anybody is: most need one look.
        shares = np.divide(place[better], own, out=np.ones((better.size, 2)), where=own > 0)
        ranked = better[np.argsort(shares.max(axis=1), kind="stable")]
        if not any(_is_surely_better(judged[keys[d]], judged[k]) for d in ranked):
            unsure.append(k)
    return ParetoFront(line, tuple(sorted(front, key=lambda k: points[k])), tuple(unsure))


def _is_surely_better(a: CellMeans, b: CellMeans) -> bool:
    """Return whether a is better than b in time and in energy, both beyond their uncertainty."""
    if a.energy is None or b.energy is None or not (_is_below(a.time, b.time) and _is_below(a.energy, b.energy)):
        return False
    ratios = divide_times(a, b), divide_energies(a, b)
    return all(r is not None and (ONE - r).is_positive for r in ratios)


def _is_below(a: Quantity, b: Quantity) -> bool:
    """Return whether a is below b by about the uncertainty of their ratio; cheap, as it is asked of most pairs."""
    if a.value >= b.value:
        return False
    share = a.value / b.value
    mine, other = a.terms, b.terms
    squares = sum((u - share * other.get(source, 0.0)) ** 2 for source, u in mine.items())
    squares += sum((share * u) ** 2 for source, u in other.items() if source not in mine)
    return (b.value - a.value) * (1 + ROUNDING) > COVERAGE_FACTOR * math.sqrt(squares)
