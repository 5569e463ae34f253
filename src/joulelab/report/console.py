"""Make the console that tables are printed on: plain where it is not a terminal, so that a paste stays readable."""

from __future__ import annotations

from typing import IO

from rich import box
from rich.console import Console
from rich.table import Table

INDENT = 1
LABEL = 8
STYLE = {"failed": "bold red", "warning": "yellow", "note": "dim"}


def make_console(file: IO[str], width: int | None = None) -> Console:
    """Return a console that writes to a file, with colours and the terminal's width only if it is a terminal."""
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def make_table(*columns: str, left: tuple[int, ...] = (0,), title: str | None = None) -> Table:
    """Return a table without frames: a line under the head, numbers to the right; `left` columns to the left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title=title, title_justify="left", title_style="")
    table.show_edge = False
    for k, name in enumerate(columns):
        table.add_column(name, justify="left" if k in left else "right", no_wrap=True, header_style="bold")
    return table


def facts(rows: list[tuple[str, str]], *, styles: dict[str, str] | None = None) -> Table:
    """Return labelled lines: the label in a column of its own, the text wrapped beside it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=LABEL, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, text, style=(styles or {}).get(label, ""))
    return grid
