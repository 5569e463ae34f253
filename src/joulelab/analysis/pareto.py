"""Find the cells of which no other is both faster and thriftier. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.analysis.cells import Means, energy_ratio, time_ratio
from joulelab.analysis.products import ONE, surely_more
from joulelab.analysis.terms import COVERAGE_FACTOR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.analysis.terms import Quantity

ROUNDING = 1e-9  # what is so near to being told apart is worked out in full


@dataclass(frozen=True, slots=True)
class Front:
    """Hold the Pareto front of a line (None: of all), by time; `unsure` are behind it only within the uncertainty."""

    line: str | None
    cells: tuple[str, ...]
    unsure: tuple[str, ...]


def front_of(line: str | None, cells: Mapping[str, Means]) -> Front:
    """Return the front of time and energy, and the dominated cells that may be on it for all that is known."""
    points = {k: (m.time.value, m.energy.value) for k, m in cells.items() if m.energy is not None}
    behind = {k for k, p in points.items() if any(_dominates(q, p) for q in points.values())}
    judged = {k: cells[k].judged(k) for k in points}
    front = sorted((k for k in points if k not in behind), key=lambda k: points[k])
    # Who is surely better is better: the best of all are looked at first, and most cells are behind them.
    ranked = sorted(points, key=lambda k: points[k][0] * points[k][1])
    unsure = [
        k
        for k in points
        if k in behind and not any(_dominates(points[d], points[k]) and _surely(judged[d], judged[k]) for d in ranked)
    ]
    return Front(line, tuple(front), tuple(unsure))


def _dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a != b and a[0] <= b[0] and a[1] <= b[1]


def _surely(a: Means, b: Means) -> bool:
    """Return whether a is better than b in time and in energy, both beyond their uncertainty."""
    if a.energy is None or b.energy is None or not (_below(a.time, b.time) and _below(a.energy, b.energy)):
        return False
    ratios = time_ratio(a, b), energy_ratio(a, b)
    return all(r is not None and surely_more(ONE - r) for r in ratios)


def _below(a: Quantity, b: Quantity) -> bool:
    """Return whether a is below b by about the uncertainty of their ratio; cheap, as it is asked of most pairs."""
    if a.value >= b.value:
        return False
    share = a.value / b.value
    squares = sum((u - share * b.terms.get(source, 0.0)) ** 2 for source, u in a.terms.items())
    squares += sum((share * u) ** 2 for source, u in b.terms.items() if source not in a.terms)
    return (b.value - a.value) * (1 + ROUNDING) > COVERAGE_FACTOR * math.sqrt(squares)
