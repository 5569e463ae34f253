"""Print long tables, line by line: what lays tables out for terminals takes a millisecond a row."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import click
from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

GAP = 2


def widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column is, in cells of a terminal."""
    return [max(map(cell_len, column)) for column in zip(heads, *rows, strict=True)]


def print_columns(
    file: IO[str], heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,)
) -> None:
    """Print a head, a line under it, and the rows; `left` columns to the left, the others to the right."""
    wide = widths(heads, rows)

    def line(cells: Sequence[str]) -> str:
        placed = []
        for k, (text, width) in enumerate(zip(cells, wide, strict=True)):
            blanks = " " * (width - cell_len(text))
            placed.append(text + blanks if k in left else blanks + text)
        return (" " * GAP).join(placed).rstrip()

    rule = "─" * (sum(wide) + GAP * (len(wide) - 1))
    click.echo(click.style(line(heads), bold=True), file=file)
    click.echo("\n".join([rule, *map(line, rows)]), file=file)
