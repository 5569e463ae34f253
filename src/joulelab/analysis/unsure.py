"""Add the uncertainty of begin and end of a run: a job was seen at scrapes, not when it began."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.core.quantity import Quantity


def read_edge_offsets(events: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return how far begin and end may be off to either side (ns), as the events tell."""
    told = next((e for e in events if e.get("event") == "interval-unsure"), {})
    return math.ceil(float(told.get("begin_s", 0.0)) * 1e9), math.ceil(float(told.get("end_s", 0.0)) * 1e9)


def add_interval_terms(
    energy: Quantity, edge_u: Callable[[int, int], float], a_ns: int, b_ns: int, unsure: tuple[int, int]
) -> Quantity:
    """Return the energy of [a, b] with what its ends are worth; `edge_u(t, off)` gives that of one (J).

    All scopes of a run begin and end together: their terms have one source each, and add.
    """
    if unsure == (0, 0):
        return energy
    ends = {f"interval:{a_ns}": -edge_u(a_ns, unsure[0]), f"interval:{b_ns}": edge_u(b_ns, unsure[1])}
    return replace(energy, terms={**energy.terms, **ends})
