"""Set up the maps of a study over two knobs: energy, time and their product, with the best cells marked. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import AXES, GROUP_KNOBS, format_knob, format_knobs, rank_value
from joulelab.analysis.choice import choose_best
from joulelab.analysis.goals import Goal
from joulelab.report import format as fmt
from joulelab.report.charts.heat import Heat, Tile
from joulelab.report.study_curves import AXIS_NAMES
from joulelab.report.study_tables import ESTIMATE, UNCAPPED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.analysis.cell_metrics import CellMetrics, StudySummary
    from joulelab.analysis.choice import BestCell
    from joulelab.core.quantity import Quantity

    Pick = Callable[[CellMetrics], Quantity | None]

FEWEST = 2  # values that a knob must have for a map over it
MOST_MAPS = 6  # sets of the other knobs that have maps of their own
MARKS = "Star: best. Ring: no significant difference from it. Square: reference."
DIGITS, WHOLE = 3, 1000.0  # digits of a tile; what is larger is written whole


def heats_of(summary: StudySummary) -> list[Heat]:
    """Return maps of energy, time and energy-delay product over two knobs, for each set of the others.

    None where fewer than two knobs vary, or where cells are not compared by one kind of work.
    """
    found: list[Heat] = []
    groups = _groups(summary)
    for cells in groups:
        knobs = _two(cells)
        if knobs is None or len({_per(summary, c) for c in cells}) > 1:
            continue
        planes = _planes(cells, knobs)
        for other, of in list(planes.items())[:MOST_MAPS]:
            left = len(planes) - MOST_MAPS
            title = other if len(planes) > 1 or len(groups) > 1 else ""
            note = f"{left} more sets of the other knobs have no map here." if left > 0 else ""
            found += [h for each in _figures(summary, of) if (h := _heat(summary, of, knobs, title, each, note))]
    return found


def _groups(summary: StudySummary) -> list[list[CellMetrics]]:
    """Return the cells that have run, of each workload and phase."""
    found: dict[str, list[CellMetrics]] = {}
    for cell in summary.cells:
        if cell.compared is not None:
            found.setdefault(repr([cell.knobs.get(name) for name in GROUP_KNOBS]), []).append(cell)
    return list(found.values())


def _per(summary: StudySummary, cell: CellMetrics) -> str | None:
    return next((line.per for line in summary.lines if line.key == cell.line), None)


def _two(cells: Sequence[CellMetrics]) -> tuple[str, str] | None:
    """Return the two knobs with most values, a cap or clock along the bottom; None where fewer vary in all cells."""
    names = [name for name in cells[0].knobs if name not in GROUP_KNOBS and all(name in c.knobs for c in cells)]
    counts = {name: len({repr(c.knobs.get(name)) for c in cells}) for name in names}
    varying = sorted((n for n in names if counts[n] >= FEWEST), key=lambda n: -counts[n])
    if len(varying) < FEWEST:
        return None
    x, y = sorted(varying[:2], key=lambda n: (n not in AXES, -counts[n]))
    return x, y


def _planes(cells: Sequence[CellMetrics], knobs: tuple[str, str]) -> dict[str, list[CellMetrics]]:
    """Return the cells by what the two knobs do not say."""
    found: dict[str, list[CellMetrics]] = {}
    for cell in cells:
        others = {n: v for n, v in cell.knobs.items() if n not in knobs}
        found.setdefault(format_knobs(others), []).append(cell)
    return found


def _figures(summary: StudySummary, cells: Sequence[CellMetrics]) -> list[tuple[str, str, str, Goal, Pick]]:
    """Return what is mapped: name, words, unit, goal, and how it is found in a cell."""
    per = _per(summary, cells[0])
    unit = f" per {per.removesuffix('s')}" if per else ""
    squared = " squared" if per else ""
    return [
        ("energy", f"energy{unit}", "J", Goal("energy"), lambda c: c.compared.energy if c.compared else None),
        ("time", f"time{unit}", "s", Goal("time"), lambda c: c.compared.time if c.compared else None),
        ("edp", f"energy-delay product{unit}{squared}", "J s", Goal("edp"), lambda c: c.edp),
    ]


def _heat(
    summary: StudySummary,
    cells: Sequence[CellMetrics],
    knobs: tuple[str, str],
    other: str,
    figure: tuple[str, str, str, Goal, Pick],
    note: str,
) -> Heat | None:
    name, words, unit, goal, pick = figure
    x, y = knobs
    columns, rows = _values(cells, x), _values(cells, y)
    there = {(repr(c.knobs.get(y)), repr(c.knobs.get(x))): c for c in cells if pick(c) is not None}
    if len(columns) < FEWEST or len(rows) < FEWEST or not there:
        return None
    known = [q.value for c in there.values() if (q := pick(c)) is not None]
    factor, prefixed = (1.0, "s") if unit == "s" else fmt.choose_scale([_middle(known)], unit)
    free = {c.key: c.compared for c in there.values() if c.compared is not None and not c.uncapped}
    best = choose_best(goal, None, free, None)
    tiles = [[there.get((repr(b), repr(a))) for a in columns] for b in rows]
    made = tuple(
        tuple(None if c is None else _tile(summary, c, pick, (factor, prefixed), known, best) for c in row)
        for row in tiles
    )
    title = f"{words[:1].upper()}{words[1:]}, {prefixed}{f': {other}' if other else ''}"
    low, high = (f"{_number(v / factor)} {prefixed}" for v in (min(known), max(known)))
    return Heat(
        name,
        title,
        _axis(x),
        _axis(y),
        tuple(format_knob(x, v) for v in columns),
        tuple(format_knob(y, v) for v in rows),
        made,
        low,
        high,
        " ".join(part for part in (MARKS, note) if part),
    )


def _number(value: float) -> str:
    return fmt.format_number(value, DIGITS + 1 if abs(value) >= WHOLE else DIGITS)


def _axis(name: str) -> str:
    return AXIS_NAMES.get(name, name)


def _values(cells: Sequence[CellMetrics], name: str) -> list[Any]:
    """Return the values of a knob in order: numbers by size, what is not a number after them."""
    values: Mapping[str, Any] = {repr(c.knobs.get(name)): c.knobs.get(name) for c in cells}
    return sorted(values.values(), key=lambda v: (rank_value(v), str(v)))


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _tile(
    summary: StudySummary,
    cell: CellMetrics,
    pick: Pick,
    scale: tuple[float, str],
    known: Sequence[float],
    best: BestCell | None,
) -> Tile:
    q = pick(cell)
    assert q is not None
    factor, unit = scale
    references = {line.reference for line in summary.lines} | {summary.reference}
    mark = ""
    if best is not None and cell.key == best.cell:
        mark = "best"
    elif best is not None and cell.key in best.tied:
        mark = "tied"
    elif cell.key in references:
        mark = "reference"
    flaws = UNCAPPED if cell.uncapped else ""
    estimate = ESTIMATE if cell.estimate and unit != "s" else ""
    expanded = None if q.expanded is None else q.expanded / factor
    told = f"{format_knobs(cell.knobs)}: {estimate}{fmt.format_interval(q.value / factor, expanded)} {unit}{flaws}"
    return Tile(f"{estimate}{_number(q.value / factor)}{flaws}", told, _share(q.value, known), mark)


def _share(value: float, known: Sequence[float]) -> float:
    """Return where a value lies between the least and the largest, by ratios: twice as much is as far anywhere."""
    least, most = min(known), max(known)
    if least <= 0 or most <= least:
        return 0.0
    return math.log(value / least) / math.log(most / least)
