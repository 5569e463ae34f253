"""Set up the tables of a study's page: as papers print them, cells two by two, every line of cells. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report import study_tables
from joulelab.report.page.blocks import Block, Fold, Heading, Lines, Part, Table, Text
from joulelab.report.page.tables import Grid, Row
from joulelab.report.paper_tables import list_paper_tables
from joulelab.report.study.paper import columns_of
from joulelab.report.study.paper_pairs import list_pair_notes, list_pair_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.report.study_tables import Column

MOST_LINES = 8  # lines of cells whose tables stand open
TWO_WAYS = (
    "Here each cell counts by its own repeats, and p is corrected for the number of pairs; the best cells go by the "
    "scatter of their whole line, each by itself. So a difference may be significant there and not here."
)


def grid_of_columns(columns: Sequence[Column], *, left: int = 1, bold: Collection[int] = ()) -> Grid:
    """Return columns as a table of a page; the first `left` are words, rows in `bold` are marked."""
    heads = tuple(column.head.replace("\n", " ") for column in columns)
    made = []
    for k, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        made.append(Row(tuple(text.replace("\n", " ") for text in cells), "total" if k in bold else ""))
    return Grid(heads, tuple(made), frozenset(range(left)))


def paper_part(summary: StudySummary, scope: str | None) -> Part | None:
    """Return the tables as papers print them, with their captions, and how cells compare with the reference."""
    blocks: list[Block] = []
    for table in list_paper_tables(summary, scope=scope):
        grid = grid_of_columns(columns_of(table), left=len(table.labels))
        blocks += [Table(grid, table.title), Text(table.caption, "muted")]
    pairs = [Table(grid_of_columns(columns), title) for title, columns in list_pair_tables(summary)]
    if pairs:
        notes = Lines(tuple(("note", note) for note in list_pair_notes(summary)), "notes")
        blocks += [Heading("Cells against their reference"), *pairs, notes, Text(TWO_WAYS, "muted")]
    return Part("paper", "Tables as papers print them", tuple(blocks)) if blocks else None


def cell_part(summary: StudySummary) -> Part | None:
    """Return a table of every line of cells with all its metrics."""
    made = [block for line in summary.lines if (block := _line(summary, line))]
    if not made:
        return None
    if len(made) > MOST_LINES:
        return Part("cells", "Every cell", (Fold(f"{len(made)} lines of cells", tuple(b for of in made for b in of)),))
    return Part("cells", "Every cell", tuple(block for of in made for block in of))


def _line(summary: StudySummary, line: CellLine) -> list[Block]:
    label = study_tables.make_label_column(summary, line)
    best = {b.cell for b in study_tables.list_line_bests(summary, line)}
    bold = [k for k, key in enumerate(line.cells) if key in best]
    title = study_tables.title_line(summary, line)
    mark = study_tables.make_best_column(summary, line)
    measured = [label, *study_tables.list_measured_columns(summary, line), *([mark] if any(mark.cells) else [])]
    blocks: list[Block] = [
        Heading(title),
        Table(grid_of_columns(measured, bold=bold), f"{title}: measured", hidden=True),
    ]
    compared = study_tables.list_compared_columns(summary, line)
    if compared:
        grid = grid_of_columns([label, *compared], bold=bold)
        blocks.append(Table(grid, "gains and losses against the reference, in percent"))
    return blocks
