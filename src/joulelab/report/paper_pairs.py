"""Set up the tables that compare cells two by two: ratio, difference, p, verdict, more repeats. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.analysis.lines import knob_text, knob_value
from joulelab.analysis.pairs import MOST_REPEATS
from joulelab.analysis.repeats import UNITS
from joulelab.report import format as fmt
from joulelab.report.paper_rows import TABLE
from joulelab.report.study_rows import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.lines import Line
    from joulelab.analysis.metrics import Summary
    from joulelab.analysis.pairs import Pair

NAMES = {"energy": "energy", "power": "mean power", "time": "time"}
SMALLEST = 0.001  # chances below this are not told apart
NOTE = (
    "Intervals are 95 %, each pair by itself (Welch; ratios by Fieller). p is two-sided and corrected for all "
    "comparisons of the study by Holm; the verdict is by it at 5 %. More repeats of both cells would settle it with a "
    "chance of 80 % if the difference is what it seems."
)
ASSUMED = "* one cell has one run only: it is taken to scatter as the other does."


def pair_tables(summary: Summary, *, every: bool = False) -> list[tuple[str, list[Column]]]:
    """Return a titled table per workload and figure: each cell against the reference of its line, or `every` pair."""
    titles: dict[str, list[Line]] = {}
    for line in summary.lines:
        of = str(line.knobs.get(TABLE, ""))
        per = f" per {line.per.removesuffix('s')}" if line.per else ""
        for figure, name in NAMES.items():
            title = f"{of}: {name}" if of else name
            titles.setdefault(f"{figure}|{title}{'' if figure == 'power' else per}", []).append(line)
    pairs = _by_line(summary)
    tables = []
    for mark, lines in titles.items():
        figure, _, title = mark.partition("|")
        rows = [
            (line, p)
            for line in lines
            for p in pairs.get((line.key, figure), ())
            if every or p.against == line.reference
        ]
        if rows:
            tables.append((title, _columns(summary, rows, named=len(lines) > 1)))
    return tables


def _by_line(summary: Summary) -> dict[tuple[str, str], list[Pair]]:
    of = {key: line.key for line in summary.lines for key in line.cells}
    found: dict[tuple[str, str], list[Pair]] = {}
    for pair in summary.pairs:
        found.setdefault((of[pair.cell], pair.figure), []).append(pair)
    return found


def pair_notes(summary: Summary) -> list[str]:
    """Return how the tables of pairs are to be read; nothing where there is none."""
    if not summary.pairs:
        return []
    return [NOTE, ASSUMED] if any(p.assumed for p in summary.pairs) else [NOTE]


def _columns(summary: Summary, rows: Sequence[tuple[Line, Pair]], *, named: bool) -> list[Column]:
    pairs = [p for _, p in rows]
    knobs = {c.key: c.knobs for c in summary.cells}
    names = (f"{_name(knobs, line, p.cell)} : {_name(knobs, line, p.against)}" for line, p in rows)
    lines = (f"{_line_name(line)} " if named else "" for line, _ in rows)
    columns = [
        Column("", tuple(f"{line}{name}".strip() for line, name in zip(lines, names, strict=True))),
        Column("ratio", tuple(_with_interval(p.ratio, p.ratio_interval) for p in pairs)),
        Column("p", tuple(_chance(p.p_corrected) for p in pairs)),
        Column("verdict", tuple(p.verdict + ("*" if p.assumed else "") for p in pairs)),
    ]
    more = tuple(more_text(p) for p in pairs)
    columns += [Column("more\nrepeats", more)] if any(more) else []
    return [*columns, Column("difference", tuple(_difference(p) for p in pairs))]


def _line_name(line: Line) -> str:
    """Return what tells a line from the others of its workload; a phase by its name alone."""
    others = knob_text({n: v for n, v in line.knobs.items() if n not in (TABLE, "phase")})
    return f"{line.knobs.get('phase', '')} {others}".strip()


def more_text(pair: Pair) -> str:
    """Return how many more repeats would settle it, empty where it is settled or not known."""
    if pair.more_repeats is None:
        return ""
    if pair.by_meters:
        return "none: meters"
    return f"> {MOST_REPEATS}" if pair.more_repeats > MOST_REPEATS else f"{pair.more_repeats}"


def _name(knobs: Mapping[str, Mapping[str, Any]], line: Line, key: str) -> str:
    """Return a cell by what its line does not say already."""
    own = knobs[key]
    if line.axis is not None and key in line.cells:
        return knob_value(line.axis, own.get(line.axis))
    return knob_text({k: v for k, v in own.items() if k not in line.knobs or line.knobs[k] != v}) or key


def _difference(pair: Pair) -> str:
    bounds = pair.difference_interval
    value, unit = pair.difference or 0.0, UNITS[pair.figure]
    factor, prefixed = (1.0, unit) if unit == "s" else fmt.column([value, *(bounds or ())], unit)
    return f"{_with_interval(value / factor, bounds and (bounds[0] / factor, bounds[1] / factor))} {prefixed}"


def _with_interval(value: float | None, bounds: tuple[float, float] | None) -> str:
    if value is None:
        return fmt.NOTHING
    return fmt.plain(value, 3) + (f" ({fmt.plain(bounds[0], 3)} to {fmt.plain(bounds[1], 3)})" if bounds else "")


def _chance(p: float | None) -> str:
    return fmt.NOTHING if p is None else f"< {SMALLEST}" if p < SMALLEST else f"{p:.3f}"
