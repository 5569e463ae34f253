"""Tell what runs of a study worked on and how well: facts that the workloads told. Pure.

A workload names the facts by which it is to be judged in its fact `quality`, several with commas between them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.analysis.lines import knob_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cells import Cell, Trial
    from joulelab.analysis.lines import Line
    from joulelab.analysis.phases import Fact

DATA, QUALITY = "data", "quality"
MOST_NAMED = 4


def quality_of(facts: Mapping[str, Fact]) -> dict[str, float]:
    """Return the figures of quality that a run told, in its order; what is no number is left out."""
    names = [name.strip() for name in str(facts.get(QUALITY, "")).split(",")]
    told = {name: facts[name] for name in names if name in facts}
    return {n: float(v) for n, v in told.items() if isinstance(v, (int, float)) and math.isfinite(v)}


def figures_of(trials: Sequence[Trial]) -> dict[str, list[float]]:
    """Return the figures of quality that every one of some runs told, a value for each run."""
    told = [quality_of(t.facts) for t in trials]
    names = [name for name in (told[0] if told else ()) if all(name in each for each in told)]
    return {name: [each[name] for each in told] for name in names}


def data_of(trials: Sequence[Trial]) -> str:
    """Return what runs worked on; where they differ all of it, and nothing where none tells."""
    return " / ".join(dict.fromkeys(str(t.facts[DATA]) for t in trials if DATA in t.facts))


def data_notes(cells: Sequence[Cell], lines: Sequence[Line]) -> list[str]:
    """Doubt comparisons between runs that did not work on the same data."""
    by_key = {c.key: c for c in cells}
    doubtful: dict[str, list[Cell]] = {}
    for line in lines:
        keys = dict.fromkeys((*line.cells, *([line.reference] if line.reference else [])))
        of = [by_key[key] for key in keys if by_key[key].trials]
        told = {c.key: data_of(c.trials) or "what it does not tell" for c in of}
        if len(set(told.values())) > 1 or any(len(_each(c)) > 1 for c in of):
            for cell in of:
                among = doubtful.setdefault(told[cell.key], [])
                among += [cell] if cell not in among else []
    if not doubtful:
        return []
    said = "; ".join(f"{data} in {_named(of)}" for data, of in doubtful.items())
    return [f"! What is compared worked on different data: {said}. Differences may come from that."]


def _each(cell: Cell) -> set[str]:
    return {str(t.facts.get(DATA, "")) for t in cell.trials}


def _named(cells: Sequence[Cell]) -> str:
    names = [knob_text(c.knobs) or "the only cell" for c in cells[:MOST_NAMED]]
    more = len(cells) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
