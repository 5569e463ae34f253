"""Hold what the analysis found against what a twin knows: how often the true energy lies within the uncertainty."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.scope import rank_scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.core.quantity import Quantity


ENOUGH = 0.95  # the share of a cell's slots that an interval of k = 2 shall hold the truth in


@dataclass(frozen=True, slots=True)
class Covered:
    """Count intervals (k = 2) that the true energy lies in: of what each slot is judged by, and of every scope.

    `widest` is the largest half-width among the former as a share of the energy, `farthest` the largest error. Of
    `cells`, `cells_inside` have the true energy in the interval in at least ENOUGH of their slots; `worst` is the one
    with the smallest share, with that many of its slots inside and in all.
    """

    slots: int = 0
    inside: int = 0
    scopes: int = 0
    scopes_inside: int = 0
    widest: float = 0.0
    farthest: float = 0.0
    cells: int = 0
    cells_inside: int = 0
    worst: tuple[str, int, int] = ("", 0, 0)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        counts = {"slots": self.slots, "inside": self.inside, "scopes": self.scopes}
        of_runs = {"scopes_inside": self.scopes_inside, "widest": self.widest, "farthest": self.farthest}
        name, inside, slots = self.worst
        worst = {"cell": name, "inside": inside, "slots": slots}
        return counts | of_runs | {"cells": self.cells, "cells_inside": self.cells_inside, "worst_cell": worst}


def covered(
    slots: Iterable[tuple[str, Mapping[str, Quantity], Mapping[str, float]]], scope: str | None = None
) -> Covered:
    """Compare the energies (J) of slots with the true ones, both by scope, behind the name of the slot's cell.

    Each slot is judged by `scope`; where that is not known, by the scope that is nearest to the wall. Scopes without a
    true energy or with an unknown accuracy do not count.
    """
    found = Covered()
    cells: dict[str, list[bool]] = defaultdict(list)
    for cell, energies, true in slots:
        known = {name: q for name, q in energies.items() if name in true and q.expanded is not None}
        if not known:
            continue
        lies = {name: abs(q.value - true[name]) <= (q.expanded or 0.0) for name, q in known.items()}
        judged = scope if scope in known else max(known, key=rank_scope)
        chosen = known[judged]
        size = true[judged] or math.inf
        cells[cell].append(lies[judged])
        found = Covered(
            slots=found.slots + 1,
            inside=found.inside + lies[judged],
            scopes=found.scopes + len(known),
            scopes_inside=found.scopes_inside + sum(lies.values()),
            widest=max(found.widest, (chosen.expanded or 0.0) / size),
            farthest=max(found.farthest, abs(chosen.value - true[judged]) / size),
        )
    return _by_cell(found, cells)


def _by_cell(found: Covered, cells: Mapping[str, list[bool]]) -> Covered:
    """Return the counts with those of cells, so that a few short runs are not hidden by many long ones."""
    shares = {cell: sum(lies) / len(lies) for cell, lies in cells.items()}
    if not shares:
        return found
    worst = min(shares, key=lambda cell: shares[cell])
    enough = sum(share >= ENOUGH for share in shares.values())
    told = worst, sum(cells[worst]), len(cells[worst])
    return replace(found, cells=len(cells), cells_inside=enough, worst=told)
