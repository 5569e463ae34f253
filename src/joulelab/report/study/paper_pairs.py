"""Set up the tables that compare cells two by two: ratio, difference, p, verdict, more repeats. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_comparison import MOST_REPEATS, UNITS
from joulelab.analysis.cell_lines import AXES, format_knob, format_knobs
from joulelab.report import format as fmt
from joulelab.report.paper_tables import TABLE
from joulelab.report.study_tables import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_comparison import CellPair
    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import StudySummary

NAMES = {"energy": "energy", "time": "time", "power": "mean power"}
SHOWN = ("energy", "time")  # the others where every pair is asked for
VERDICTS = {"no significant difference": "not significant"}  # shorter, so that a table fits
BARE = ("phase", "node")  # their values say what they are
SMALLEST = 0.001  # smaller chances are printed as below this
PAIRS_NOTE = (
    "Intervals are 95 %, each pair by itself (Welch; ratios by Fieller). p is two-sided and corrected for all "
    "comparisons of the study by Holm; the verdict is by it at 5 %. More repeats of both cells would settle it with a "
    "chance of 80 % if the difference is what it seems."
)
ASSUMED = "* one cell has one run only: it is taken to scatter as the other does."
METERS = "meters: no number of repeats settles it, for the meters may be off by as much as the difference."


def list_pair_tables(summary: StudySummary, *, every: bool = False) -> list[tuple[str, list[Column]]]:
    """Return a titled table per workload and figure, the difference in the last column.

    Energy and time of each cell against the reference of its line; `every` pair, and mean power too.
    """
    tables_of: dict[tuple[str, str, str], list[CellLine]] = {}
    for line in summary.lines:
        of = str(summary.cell(line.cells[0]).knobs.get(TABLE, ""))
        for figure in NAMES:
            if every or figure in SHOWN:
                per = f" per {line.per.removesuffix('s')}" if line.per and figure != "power" else ""
                tables_of.setdefault((of, figure, per), []).append(line)
    pairs = _by_line(summary)
    knobs = {c.key: c.knobs for c in summary.cells}
    tables = []
    for (of, figure, per), lines in tables_of.items():
        title = f"{_whose(summary, of, lines)}{NAMES[figure]}{per}"
        rows = [p for line in lines for p in pairs.get((line.key, figure), ()) if every or p.against == line.reference]
        if rows:
            tables.append((title, _columns(rows, knobs)))
    return tables


def _whose(summary: StudySummary, workload: str, lines: Sequence[CellLine]) -> str:
    """Return the workload of a table, and the phase where all its rows are of one: their names then leave it out."""
    phases = {str(summary.cell(line.cells[0]).knobs.get("phase", "")) for line in lines}
    parts = [workload, *(phases if len(phases) == 1 else ())]
    told = ", ".join(part for part in parts if part)
    return f"{told}: " if told else ""


def _by_line(summary: StudySummary) -> dict[tuple[str, str], list[CellPair]]:
    of = {key: line.key for line in summary.lines for key in line.cells}
    found: dict[tuple[str, str], list[CellPair]] = {}
    for pair in summary.pairs:
        found.setdefault((of[pair.cell], pair.figure), []).append(pair)
    return found


def list_pair_notes(summary: StudySummary) -> list[str]:
    """Return how the tables of pairs are to be read; nothing where there is none."""
    if not summary.pairs:
        return []
    further = [(ASSUMED, any(p.assumed for p in summary.pairs)), (METERS, any(p.by_meters for p in summary.pairs))]
    return [PAIRS_NOTE, *(text for text, holds in further if holds)]


def _columns(pairs: Sequence[CellPair], knobs: Mapping[str, Mapping[str, Any]]) -> list[Column]:
    columns = [
        Column("", name_pairs(pairs, knobs)),
        Column("ratio", tuple(_ratio(p) for p in pairs)),
        Column("p", tuple(_chance(p.p_corrected) for p in pairs)),
        Column("verdict", tuple(VERDICTS.get(p.verdict, p.verdict) + ("*" if p.assumed else "") for p in pairs)),
    ]
    more = tuple(format_more_repeats(p) for p in pairs)
    columns += [Column("more\nrepeats", more)] if any(more) else []
    return [*columns, Column("difference", tuple(_difference(p) for p in pairs))]


def name_pairs(pairs: Sequence[CellPair], knobs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the pairs by what tells them apart: `batch=2 cpu-mix : gpu`.

    Knobs that are the same in all rows are left out, those of both cells stand before, once.
    """
    cells = [knobs[key] for p in pairs for key in (p.cell, p.against)]
    names = dict.fromkeys(n for own in cells for n in own)
    ordered = [*(n for n in BARE if n in names), *(n for n in names if n not in (*BARE, TABLE))]
    varying = [n for n in ordered if len({repr(own.get(n)) for own in cells}) > 1]
    return tuple(_pair_name(p, knobs[p.cell], knobs[p.against], varying) for p in pairs)


def _pair_name(pair: CellPair, own: Mapping[str, Any], other: Mapping[str, Any], names: Sequence[str]) -> str:
    both = [n for n in names if n in own and n in other and own[n] == other[n]]
    apart = [n for n in names if n not in both]
    # That a cell has no cap is left unsaid where it differs in something else.
    apart = [n for n in apart if n not in AXES or None not in (own.get(n), other.get(n))] or apart
    first, second = _values(own, apart), _values(other, apart)
    if len(apart) == 1 and first and second:
        second = format_knob(apart[0], other[apart[0]])  # its name is said
    lacks = f"without {' '.join(apart)}"  # a knob that only the other cell has
    first, second = (first or lacks, second or lacks) if apart else (pair.cell, pair.against)
    return f"{_values(own, both)} {first} : {second}".strip()


def _values(knobs: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return some knobs of a cell, without their names where the value says what it is: `gpu 300 W batch=2`."""
    there = [n for n in names if n in knobs]
    return " ".join(format_knob(n, knobs[n]) if n in (*BARE, *AXES) else format_knobs({n: knobs[n]}) for n in there)


def format_more_repeats(pair: CellPair) -> str:
    """Return how many more repeats would settle it, empty where it is settled or not known."""
    if pair.more_than_100:
        return "meters" if pair.by_meters else f"> {MOST_REPEATS}"
    return "" if pair.more_repeats is None else f"{pair.more_repeats}"


def _ratio(pair: CellPair) -> str:
    return _with_interval(pair.ratio, pair.ratio_interval)


def _difference(pair: CellPair) -> str:
    bounds = pair.difference_interval
    value, unit = pair.difference or 0.0, UNITS[pair.figure]
    factor, prefixed = fmt.choose_scale([value, *(bounds or ())], unit)
    if unit == "s" and factor > 1:  # kiloseconds nobody reads
        factor, prefixed = 1.0, unit
    return f"{_with_interval(value / factor, bounds and (bounds[0] / factor, bounds[1] / factor))} {prefixed}"


def _with_interval(value: float | None, bounds: tuple[float, float] | None) -> str:
    if value is None:
        return fmt.NOTHING
    return fmt.format_number(value, 3) + (
        f" ({fmt.format_number(bounds[0], 3)} to {fmt.format_number(bounds[1], 3)})" if bounds else ""
    )


def _chance(p: float | None) -> str:
    return fmt.NOTHING if p is None else f"< {SMALLEST}" if p < SMALLEST else f"{p:.3f}"
