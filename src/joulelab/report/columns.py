"""Print long tables, line by line: what lays tables out for terminals takes a millisecond a row."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import click
from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

GAP = 2


def widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column is, in cells of a terminal; a head may have several lines."""
    columns = zip(heads, *rows, strict=True)
    return [max(map(cell_len, (*(head.splitlines() or [""]), *cells))) for head, *cells in columns]


def print_columns(
    file: IO[str],
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    bold: Sequence[bool] = (),
) -> None:
    """Print heads, a line under them, and the rows, some of them bold; `left` columns to the left, others right."""
    wide = widths(heads, rows)

    def line(cells: Sequence[str]) -> str:
        placed = []
        for k, (text, width) in enumerate(zip(cells, wide, strict=True)):
            blanks = " " * (width - cell_len(text))
            placed.append(text + blanks if k in left else blanks + text)
        return (" " * GAP).join(placed).rstrip()

    lines = [head.splitlines() for head in heads]
    most = max((len(of) for of in lines), default=1)
    above = [line(cells) for cells in zip(*([""] * (most - len(of)) + of for of in lines), strict=True)]
    rule = "─" * (sum(wide) + GAP * (len(wide) - 1))
    below = [line(row) for row in rows]
    marked = [click.style(text, bold=True) if bold and bold[k] else text for k, text in enumerate(below)]
    click.echo("\n".join([*(click.style(text, bold=True) for text in above), rule, *marked]), file=file)
