"""Print the summary of a study: a table per line of cells, the best per goal, the Pareto front, scaling, notes."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.text import Text

from joulelab.report import study_tables
from joulelab.report.columns import print_columns
from joulelab.report.console import print_facts
from joulelab.report.messages import word_notes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console

    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.report.study_tables import Column

COVERAGE = "Intervals are expanded uncertainties (k = 2). * is what the others are compared with."
GAP = 2


def print_study(console: Console, summary: StudySummary, *, every: bool = False) -> None:
    """Print everything that a summary says; `every` shows the scaling at all caps."""
    for line in summary.lines:
        _print_line(console, summary, line)
    if len(summary.lines) > 1:
        facts = [
            (b.goal.text, study_tables.describe_best(summary, b)) for b in study_tables.list_line_bests(summary, None)
        ]
        front = study_tables.describe_front(summary, None)
        _print_best(console, "All lines together, best for", facts + ([("Pareto", front)] if front else []))
    scalings = study_tables.choose_scalings(summary, every=every)
    if scalings:
        console.print()
        console.print(Text(study_tables.title_scaling(summary, scalings), style="bold"))
        label, *columns = study_tables.scaling_columns(summary, scalings)
        for fit in fitting(label, columns, console.width):
            console.print()
            print_table(console, [label, *fit])
    console.print()
    print_facts(console, [("note", note) for note in (COVERAGE, *word_notes(summary.notes))])


def _print_line(console: Console, summary: StudySummary, line: CellLine) -> None:
    label = study_tables.make_label_column(summary, line)
    best = study_tables.list_line_bests(summary, line)
    bold = [any(b.cell == key for b in best) for key in line.cells]
    console.print()
    console.print(Text(study_tables.title_line(summary, line), style="bold"))
    measured, compared = (
        study_tables.list_measured_columns(summary, line),
        study_tables.list_compared_columns(summary, line),
    )
    for columns in fitting(label, measured, console.width) + fitting(label, compared, console.width):
        console.print()
        print_table(console, [label, *columns], bold)
    facts = [(b.goal.text, study_tables.describe_best(summary, b)) for b in best]
    front = study_tables.describe_front(summary, line)
    _print_best(console, "Best for", facts + ([("Pareto", front)] if front else []))


def _print_best(console: Console, title: str, facts: Sequence[tuple[str, str]]) -> None:
    if not facts:
        return
    console.print()
    console.print(Text(f"{title}:"))
    print_facts(console, facts, label=max(len(name) for name, _ in facts))


def fitting(label: Column, columns: Sequence[Column], width: int) -> list[list[Column]]:
    """Return the columns in as many tables as the width asks for: nothing is cut off."""
    tables: list[list[Column]] = []
    left = 0
    for column in columns:
        need = _width(column) + GAP
        if not tables or need > left:
            tables.append([])
            left = width - _width(label)
        tables[-1].append(column)
        left -= need
    return tables


def fits(columns: Sequence[Column], width: int) -> bool:
    """Return whether columns are one table of that width."""
    return sum(_width(column) + GAP for column in columns) - GAP <= width


def _width(column: Column) -> int:
    return max(len(line) for text in (column.head, *column.cells) for line in text.splitlines() or [""])


def print_table(
    console: Console, columns: Sequence[Column], bold: Sequence[bool] = (), left: Collection[int] = ()
) -> None:
    """Print the columns as a table, some rows bold; numbers and names to the right, `left` columns to the left."""
    texts: list[tuple[str, ...]] = []
    marks: list[bool] = []
    for k, cells in enumerate(zip(*(c.cells for c in columns), strict=True)):
        # A name may have several lines: figures stand in the first.
        lines = list(zip_longest(*(text.splitlines() or [""] for text in cells), fillvalue=""))
        texts += lines
        marks += [bool(bold) and bold[k]] * len(lines)
    print_columns(console.file, [c.head for c in columns], texts, left=left, bold=marks)
