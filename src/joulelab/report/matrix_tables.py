"""Show a study in one table of at most 80 columns: knobs as columns, the best cells first. Plans too.

`study_tables` and `paper_tables` have the rest: every metric of every cell, comparisons, tables for papers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import choose_knob_unit, format_knob, format_knobs, rank_value
from joulelab.core.text import name_one
from joulelab.report import format as fmt
from joulelab.report.messages import set_command_apart, word_note
from joulelab.report.messages.catalogue import STUDY, find_message
from joulelab.report.study_tables import (
    ESTIMATE,
    UNCAPPED,
    describe_best,
    has_one_cell,
    list_footprint_columns,
    list_line_bests,
    list_load_columns,
    list_quality_columns,
    name_plain_cell,
    title_line,
    uses_estimate,
    word_study_sites,
)
from joulelab.report.tables import Column, MarkedCell, join_columns, scale_column
from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_metrics import CellMetrics, StudySummary
    from joulelab.analysis.goals import BestCell
    from joulelab.analysis.study_cells import Note
    from joulelab.core.quantity import Quantity
    from joulelab.report.tables import FilledColumn, Table
    from joulelab.report.terminal import TextBlock

MOST_ROWS, MOST_BESTS, MOST_NOTES = 24, 6, 3  # more are shown on request
MOST_VALUES = 6  # of a knob that are written out
CONVENTION = (
    "± is a 95 % interval (k = 2). Gains and best cells leave out errors that the cells share. * is the reference, ~ "
    "no significant difference from the best."
)
# Notes that explain figures but change no conclusion: shown last.
BACKGROUND = ("pooled.all", "pooled.lines", "pooled.rest", "warm-up", "executor")
REQUESTED = "precision-missed"  # notes on what the user asked for (--until): shown first
ABOUT_COLUMNS = ("eds-is-half",)  # notes about columns that the table does not have


def lay_out_matrix(summary: StudySummary, notes: Sequence[str] = (), *, more: str = "--all") -> list[TextBlock]:
    """Return the answer, one table and at most three notes for a terminal; `more` is the option that shows the rest.

    `notes` are those of the study's folder, in words.
    """
    rows = choose_rows(summary)
    bests = _list_main_bests(summary)
    blocks: list[TextBlock] = [BLANK_LINE, TextLine(_word_title(summary), "bold")]
    if bests:
        facts = [(f"best for {name}", text) for name, text in bests[:MOST_BESTS]]
        blocks.append(list_facts(facts, label_width=max(len(label) for label, _ in facts) + 1))
    if rows:
        blocks += [BLANK_LINE, make_matrix_table(summary, rows), BLANK_LINE, TextLine(CONVENTION, "dim")]
        blocks += [TextLine(text, "dim") for text in word_study_sites(summary)]
    own = [note for note in summary.notes if note.code not in ABOUT_COLUMNS]
    asked = [note for note in own if note.code.startswith(REQUESTED)]
    rest = sorted((note for note in own if note not in asked), key=_rank_note)
    every_note = [*map(word_note, asked), *notes, *map(word_note, rest)]
    hidden = [
        (len(summary.cells) - len(rows), "cell"),
        (len(bests) - MOST_BESTS, "best cell"),
        (len(every_note) - MOST_NOTES, "note"),
    ]
    counts = [f"{n} more {noun}{'' if n == 1 else 's'}" for n, noun in hidden if n > 0]
    shown = [("note", set_command_apart(note)) for note in every_note[:MOST_NOTES]]
    shown.append(("more", f"{more} shows {', '.join([*counts, 'comparisons with the reference, tables for papers'])}"))
    return [*blocks, BLANK_LINE, list_facts(shown)]


def _rank_note(note: Note) -> tuple[bool, bool]:
    """Rank warnings first, and notes that change no conclusion last."""
    message = find_message(STUDY, note.code)
    return note.code in BACKGROUND, message is None or message.status == "note"


def _word_title(summary: StudySummary) -> str:
    if len(summary.lines) == 1:
        return f"{title_line(summary, summary.lines[0])} · {_count_runs(summary)}"
    shared = format_knobs(_find_shared_knobs(summary.cells))
    return " · ".join(filter(None, (shared, _count_runs(summary))))


def _count_runs(summary: StudySummary) -> str:
    counts = sorted({cell.n for cell in summary.cells})
    cells = "1 cell" if len(summary.cells) == 1 else f"{len(summary.cells)} cells"
    if not counts:
        return cells
    each = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{cells} x {each} run{'' if counts == [1] else 's'}"


def _find_shared_knobs(cells: Sequence[CellMetrics]) -> dict[str, Any]:
    """Return the knobs that all cells have in common."""
    first = cells[0].knobs if cells else {}
    return {n: v for n, v in first.items() if all(repr(c.knobs.get(n)) == repr(v) for c in cells)}


def _list_main_bests(summary: StudySummary) -> list[tuple[str, str]]:
    """List goal and best cell: of all lines together if they can be compared, else of each line."""
    shared = f"{format_knobs(_find_shared_knobs(summary.cells))} ".lstrip()  # the title has it
    overall = list_line_bests(summary, None)
    if overall and len(summary.lines) > 1:
        return [(b.goal.text, describe_best(summary, b).replace(shared, "")) for b in overall]
    found = []
    for line in summary.lines:
        of = f" of {line.key}" if len(summary.lines) > 1 and line.key else ""
        found += [(f"{b.goal.text}{of}", describe_best(summary, b)) for b in list_line_bests(summary, line)]
    return found


def choose_rows(summary: StudySummary) -> list[CellMetrics]:
    """Choose the cells to show: all if they are few, else the best ones and the references."""
    ordered = [cell for line in summary.lines for cell in summary.list_line_cells(line)]
    if len(ordered) <= MOST_ROWS:
        return ordered
    marked = {b.cell for b in summary.best} | {line.reference for line in summary.lines}
    return [cell for cell in ordered if cell.key in marked][:MOST_ROWS]


def make_matrix_table(summary: StudySummary, cells: Sequence[CellMetrics]) -> Table:
    """Return a row per cell: knobs, energy, time, gain over the reference, quality, and the goals it is best for."""
    line_of = {key: line for line in summary.lines for key in line.cells}
    units = {line.per for line in summary.lines}
    per = units.pop() if len(units) == 1 else None
    unit = f" per {name_one(per)}" if per else ""
    means = [(c.compared.energy, c.compared.time) if per and c.compared else (c.energy, c.time) for c in cells]
    is_several = any(not has_one_cell(summary, line) for line in summary.lines)
    references = {line.reference for line in summary.lines} if is_several else set()
    columns: list[FilledColumn] = [*_list_knob_columns(summary, cells, references)]
    label_count = len(columns)
    if len({c.n for c in summary.cells}) > 1:
        columns.append((Column("n"), tuple(c.n for c in cells)))
    energies = [energy for energy, _ in means]
    if any(q is not None for q in energies):
        marked = tuple(_mark_energy(c, q) for c, q in zip(cells, energies, strict=True))
        columns.append((scale_column(f"energy{unit}", "J", energies), marked))
    columns.append((Column(f"time{unit}", "s"), tuple(time for _, time in means)))
    if is_several and any(c.gain is not None for c in cells):
        estimated = [uses_estimate(summary, c.key, line_of[c.key].reference) for c in cells]
        gains = tuple(
            MarkedCell(c.gain, ESTIMATE) if e and c.gain is not None and c.gain.value else c.gain
            for c, e in zip(cells, estimated, strict=True)
        )
        columns.append((Column("energy\ngain", "%", is_share=True), gains))
    whole = "\nof a run" if per else ""  # the energy is per unit of work then
    for column, values in list_footprint_columns(cells):
        columns.append((replace(column, name=f"{column.name}{whole}"), values))
    limited = {limit.name for goal in summary.goals for limit in goal.quality}
    columns += [
        (replace(column, is_optional=column.name not in limited), values)
        for column, values in list_quality_columns(cells, summary.goals)
    ]
    columns += list_load_columns(cells)
    bests = {key: list_line_bests(summary, line) for key, line in line_of.items()}
    if any(bests[c.key] for c in cells):
        columns.append((Column("best for", align="left"), tuple(_name_goals(bests[c.key], c.key) for c in cells)))
    styles = ["best" if any(b.cell == c.key for b in bests[c.key]) else "" for c in cells]
    return replace(join_columns(columns, styles=styles), label_count=label_count)


def _list_knob_columns(
    summary: StudySummary, cells: Sequence[CellMetrics], references: set[str | None]
) -> list[FilledColumn]:
    """Return a column for each knob that differs; `*` marks references, `!` a cap that was not in force."""
    shared = _find_shared_knobs(summary.cells)
    names = [n for n in dict.fromkeys(n for c in summary.cells for n in c.knobs) if n not in shared]
    marks = [(UNCAPPED if c.uncapped else "") + ("*" if c.key in references else "") for c in cells]
    if not names:
        return [(Column("cell", align="left"), tuple(name_plain_cell(summary, c.key) for c in cells))]
    axes = {line.axis for line in summary.lines}
    marked = next((name for name in names if axes == {name}), names[0])
    columns: list[FilledColumn] = []
    for name in names:
        column, known = format_knob_column(name, [c.knobs[name] for c in cells if name in c.knobs])
        found = iter(known)
        texts = [next(found) if name in c.knobs else fmt.NOTHING for c in cells]
        if name == marked:
            texts = [f"{text}{mark}" for text, mark in zip(texts, marks, strict=True)]
        columns.append((column, tuple(texts)))
    return columns


def format_knob_column(name: str, values: Sequence[Any]) -> tuple[Column, list[str]]:
    """Return the column of a knob, with the unit that all its values have, and the values as texts."""
    texts = [format_knob(name, value) for value in values]
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if not numbers or len(numbers) < sum(v is not None for v in values):
        return Column(name, align="left"), texts
    unit = choose_knob_unit(name, numbers)[1]
    return Column(name, unit), [text.removesuffix(f" {unit}") if unit else text for text in texts]


def _mark_energy(cell: CellMetrics, q: Quantity | None) -> Quantity | MarkedCell | None:
    return MarkedCell(q, ESTIMATE) if cell.estimate and q is not None else q


def _name_goals(bests: Sequence[BestCell], key: str) -> str:
    """Return the goals for which a cell is the best, and after ~ those without a significant difference."""
    own = [b.goal.text for b in bests if b.cell == key]
    return " ".join([*own, *(f"~{b.goal.text}" for b in bests if key in b.tied)])


def word_knob(name: str, values: Sequence[Any]) -> str:
    """Write the values of a knob: `1, 2, 4, 8`, or `100 W to 260 W (17 values)` if there are many."""
    known = {repr(value): value for value in values}
    ordered = sorted(known.values(), key=lambda value: (rank_value(value), str(value)))
    texts = [format_knob(name, value) for value in ordered]
    if len(texts) <= MOST_VALUES:
        return ", ".join(texts)
    return f"{texts[0]} to {texts[-1]} ({len(texts)} values)"


def make_plan_table(cells: Sequence[Mapping[str, Any]], counts: Sequence[Mapping[str, int]]) -> Table:
    """Return a row per planned cell: the knobs that differ, and its numbers of runs by state (in words)."""
    names = dict.fromkeys(name for knobs in cells for name in knobs)
    varying = [name for name in names if len({repr(knobs.get(name)) for knobs in cells}) > 1] or list(names)
    columns: list[FilledColumn] = []
    for name in varying:
        column, texts = format_knob_column(name, [knobs[name] for knobs in cells if name in knobs])
        found = iter(texts)
        columns.append((column, tuple(next(found) if name in knobs else fmt.NOTHING for knobs in cells)))
    states = dict.fromkeys(state for each in counts for state in each)
    columns += [(Column(state), tuple(each.get(state, "") for each in counts)) for state in states]
    return join_columns(columns)
