"""Hold what the analysis found against what a twin knows: how often the true energy lies within the uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.scope import order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.analysis.terms import Quantity


@dataclass(frozen=True, slots=True)
class Covered:
    """Count intervals (k = 2) that the true energy lies in: of what each slot is judged by, and of every scope.

    `widest` is the largest half-width among the former as a share of the energy, `farthest` the largest error.
    """

    slots: int = 0
    inside: int = 0
    scopes: int = 0
    scopes_inside: int = 0
    widest: float = 0.0
    farthest: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        counts = {"slots": self.slots, "inside": self.inside, "scopes": self.scopes}
        return counts | {"scopes_inside": self.scopes_inside, "widest": self.widest, "farthest": self.farthest}


def covered(slots: Iterable[tuple[Mapping[str, Quantity], Mapping[str, float]]], scope: str | None = None) -> Covered:
    """Compare the energies (J) of slots with the true ones, both by scope; each slot is judged by `scope`.

    Where that is not known, it is judged by the scope that is nearest to the wall. Scopes without a true energy or
    with an unknown accuracy do not count.
    """
    found = Covered()
    for energies, true in slots:
        known = {name: q for name, q in energies.items() if name in true and q.expanded is not None}
        if not known:
            continue
        lies = {name: abs(q.value - true[name]) <= (q.expanded or 0.0) for name, q in known.items()}
        judged = scope if scope in known else max(known, key=order)
        chosen = known[judged]
        size = true[judged] or math.inf
        found = Covered(
            slots=found.slots + 1,
            inside=found.inside + lies[judged],
            scopes=found.scopes + len(known),
            scopes_inside=found.scopes_inside + sum(lies.values()),
            widest=max(found.widest, (chosen.expanded or 0.0) / size),
            farthest=max(found.farthest, abs(chosen.value - true[judged]) / size),
        )
    return found
