"""Make the console that tables are printed on: plain where it is not a terminal, so that a paste stays readable."""

from __future__ import annotations

import io
import re
import textwrap
from typing import IO, TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LABEL = 8
BLANK = "\N{NO-BREAK SPACE}"  # where a line must not be wrapped; printed as any other blank
STYLE = {"failed": "bold red", "problem": "bold red", "warning": "yellow", "note": "dim"}


class _Trimmed(io.TextIOBase):
    """Drop the blanks at the ends of lines, which tables are padded with."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._file, "encoding", None) or "utf-8"

    def write(self, text: str, /) -> int:
        self._file.write(re.sub(r"[ \t]+(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        self._file.flush()


def make_console(file: IO[str], width: int | None = None) -> Console:
    """Return a console that writes to a file, with colours and the terminal's width only if it is a terminal."""
    target: IO[str] = file if file.isatty() else _Trimmed(file)  # type: ignore[assignment]
    return Console(file=target, width=width, highlight=False, markup=False, emoji=False)


def make_table(*columns: str, left: Iterable[int] = (0,)) -> Table:
    """Return a table without frames: a line under the head, numbers to the right; `left` columns to the left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    aligned = set(left)
    for k, name in enumerate(columns):
        table.add_column(name, justify="left" if k in aligned else "right", no_wrap=True, header_style="bold")
    return table


def print_facts(
    console: Console, rows: Iterable[tuple[str, str]], *, styles: Mapping[str, str] | None = None, label: int = LABEL
) -> None:
    """Print labelled lines, wrapped beside their label; lines that begin with `->` are advice (`wrap_advice`)."""
    room = max(console.width - label - 1, 30)
    for name, text in rows:
        first = True
        for line in text.splitlines():
            for part in wrap_advice(line, room) if line.startswith("-> ") else _wrap(line, room):
                head = name if first else ""
                shown = f"{head:<{label}} {part.replace(BLANK, ' ')}"
                console.print(Text(shown, style=(styles or {}).get(name, "")), soft_wrap=True)
                first = False


def wrap_advice(line: str, room: int) -> list[str]:
    """Wrap advice after commas, colons and semicolons that are not in quotes, so that the commands in it stay whole."""
    held = re.sub(r"""'[^']*'|"[^"]*"|(?<![,:;]) """, lambda found: found[0].replace(" ", BLANK), line)
    return _wrap(held, room, "   ")


def _wrap(line: str, room: int, indent: str = "") -> list[str]:
    wrapped = textwrap.wrap(line, room, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return wrapped or [""]
