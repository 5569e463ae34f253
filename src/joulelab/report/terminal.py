"""Lay out what commands print: lines, labelled facts and tables, wrapped to the width of a terminal.

Functions of report return blocks; `cli.output.print_blocks` prints them.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.report.tables import HARD_BLANK, Table, clean_text, measure_text, style_text, write_terminal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LABEL_WIDTH = 8
LEAST_ROOM = 30  # cells beside a label, however narrow the terminal is
STATUS_STYLES = {"failed": "bold red", "problem": "bold red", "warning": "yellow", "note": "dim"}


@dataclass(frozen=True, slots=True)
class TextLine:
    """Hold a line of text. Lines that are meant to be copied (paths, commands) are not wrapped (`is_wrapped`)."""

    text: str = ""
    style: str = ""
    is_wrapped: bool = True


@dataclass(frozen=True, slots=True)
class FactLines:
    """Hold lines of text, each with a label at its left. Lines that begin with `->` are commands.

    `styles` maps labels to the style of their lines.
    """

    rows: tuple[tuple[str, str], ...]
    label_width: int = LABEL_WIDTH
    styles: Mapping[str, str] = field(default_factory=dict)


TextBlock = Table | TextLine | FactLines
BLANK_LINE = TextLine()


def list_facts(
    rows: Iterable[tuple[str, str]], *, label_width: int = LABEL_WIDTH, styles: Mapping[str, str] | None = None
) -> FactLines:
    """Return labelled lines as a block; the column of labels is as wide as the longest label, or `label_width`."""
    found = tuple(rows)
    return FactLines(found, max([label_width, *(measure_text(label) for label, _ in found)]), styles or {})


def write_blocks(blocks: Iterable[TextBlock], width: int, *, is_styled: bool = False) -> str:
    """Return blocks as text for a terminal, one below the other; every line ends with a line feed."""
    lines = [line for block in blocks for line in _write_block(block, width, is_styled=is_styled)]
    return "".join(f"{line}\n" for line in lines)


def _write_block(block: TextBlock, width: int, *, is_styled: bool) -> list[str]:
    match block:
        case Table():
            return write_terminal(block, width, is_styled=is_styled).split("\n")
        case TextLine(text, style, is_wrapped):
            found = [part for line in text.split("\n") for part in (_wrap_line(line, width) if is_wrapped else [line])]
            return [style_text(clean_text(line), style if is_styled else "") for line in found]
        case FactLines(rows, label_width, styles):
            return [
                style_text(line, styles.get(label, "") if is_styled else "")
                for label, text in rows
                for line in _write_fact(label, text, label_width, width)
            ]


def _write_fact(label: str, text: str, label_width: int, width: int) -> list[str]:
    room = max(width - label_width - 1, LEAST_ROOM)
    lines = text.splitlines()
    parts = [
        part
        for line in lines
        for part in (wrap_command(line, room) if line.startswith("-> ") else _wrap_line(line, room))
    ]
    heads = [clean_text(label), *[""] * len(parts)]
    return [f"{head:<{label_width}} {clean_text(part)}".rstrip() for head, part in zip(heads, parts, strict=False)]


def wrap_command(line: str, room: int) -> list[str]:
    """Wrap a command between its words, with a backslash at the end of each line, so that it can be pasted."""
    whole = re.sub(r"""'[^']*'|"[^"]*"|^-> """, lambda found: found[0].replace(" ", HARD_BLANK), line)
    lines = [line] if measure_text(line) <= room else _wrap_line(whole, room - 2, "     ")
    return [f"{part} \\" for part in lines[:-1]] + lines[-1:]


def _wrap_line(line: str, room: int, indent: str = "") -> list[str]:
    if measure_text(line) <= room:
        return [line]
    return textwrap.wrap(line, room, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False) or [""]
