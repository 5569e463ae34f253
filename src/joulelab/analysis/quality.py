"""Tell what runs of a study worked on and how well: facts that the workloads told. Pure.

A workload names the facts by which it is to be judged in its fact `quality`, several with commas between them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.analysis.cell_lines import name_cells
from joulelab.analysis.study_cells import Note
from joulelab.core.text import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.result import Fact
    from joulelab.analysis.study_cells import Cell, Trial

DATA_FACT, QUALITY_FACT = "data", "quality"
MOST_NAMED = 4
UNTOLD = "(not told)"


def read_quality(facts: Mapping[str, Fact]) -> dict[str, float]:
    """Return the figures of quality that a run told, in its order; NaN where one is not finite.

    What was not told, or is no number, is left out.
    """
    named = facts.get(QUALITY_FACT, "")
    names = [name.strip() for name in named.split(",")] if isinstance(named, str) else [QUALITY_FACT]
    found = {}
    for name in (n for n in names if n in facts):
        try:
            value = float(facts[name])
        except ValueError:
            continue
        found[name] = value if math.isfinite(value) else math.nan
    return found


def format_quality(facts: Mapping[str, Fact]) -> str:
    """Return the figures of quality in one line, empty where there are none: `accuracy 0.91, loss nan`."""
    return ", ".join(f"{escape_unprintable(name)} {value:.4g}" for name, value in read_quality(facts).items())


def list_quality_figures(trials: Sequence[Trial]) -> dict[str, list[float]]:
    """Return the figures of quality that every one of some runs told, a value for each run."""
    told = [read_quality(t.facts) for t in trials]
    names = [name for name in (told[0] if told else ()) if all(name in each for each in told)]
    return {name: [each[name] for each in told] for name in names}


def name_data(trials: Sequence[Trial]) -> str:
    """Return what runs worked on; where they differ all of it, and nothing where none tells."""
    return " / ".join(dict.fromkeys(str(t.facts[DATA_FACT]) for t in trials if DATA_FACT in t.facts))


def note_different_data(cells: Sequence[Cell], lines: Sequence[CellLine]) -> list[Note]:
    """Note the data where runs that are compared did not use the same."""
    by_key = {c.key: c for c in cells}
    doubtful: dict[str, list[Cell]] = {}
    for line in lines:
        keys = dict.fromkeys((*line.cells, *([line.reference] if line.reference else [])))
        of = [by_key[key] for key in keys if by_key[key].trials]
        told = {c.key: escape_unprintable(name_data(c.trials)) or UNTOLD for c in of}
        if len(set(told.values())) > 1 or any(len(_each(c)) > 1 for c in of):
            for cell in of:
                among = doubtful.setdefault(told[cell.key], [])
                among += [cell] if cell not in among else []
    if not doubtful:
        return []
    data = tuple(f"{name}: {', '.join(name_cells(where, most=MOST_NAMED))}" for name, where in doubtful.items())
    return [Note("different-data", {"data": len(doubtful)}, {"data": data})]


def data_doubt(a: str, b: str) -> str:
    """Return the doubt about a comparison of what worked on different data, empty where it is the same."""
    return "" if a == b else f"different data: {a or UNTOLD}, {b or UNTOLD}"


def _each(cell: Cell) -> set[str]:
    return {str(t.facts.get(DATA_FACT, "")) for t in cell.trials}

