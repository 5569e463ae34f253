"""Write tables, labelled lines and what folds, for all pages. Pure.

A page shows the very cells that the terminal's tables have (`grid_of`): no figure is made or rounded twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.core.text import escape_unprintable
from joulelab.report.html import Html, tag
from joulelab.report.tables import HARD_BLANK, format_cell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.report.tables import Table

MOST_ROWS = 40  # a longer table is folded: it is there, and the page stays one that can be read


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one line of a table. `kind` is its class: total, dim, or a word of a page's own; `apart`: a rule below it.

    Cells that are `Html` (links) are taken as they are, all others are text.
    """

    cells: tuple[str, ...]
    kind: str = ""
    apart: bool = False
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Grid:
    """Hold a table as text: heads, rows, and which columns are words (`left`); all others are numbers."""

    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    left: frozenset[int] = field(default_factory=lambda: frozenset({0}))


def grid_of(table: Table) -> Grid:
    """Return the cells of a table that the terminal prints."""
    rows = []
    for row in table.rows:
        cells = tuple(format_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True))
        rows.append(Row(cells, row.style, row.has_rule_below, row.depth))
    left = frozenset(k for k, column in enumerate(table.columns) if column.align == "left")
    return Grid(tuple(column.heading for column in table.columns), tuple(rows), left)


def shown(text: str) -> str:
    """Return a text of somebody else's as one that does nothing: no control or direction characters."""
    return text if isinstance(text, Html) else escape_unprintable(text.replace(HARD_BLANK, " "))


def table(grid: Grid, caption: str, *, hidden: bool = False, most: int = MOST_ROWS) -> Html:
    """Return a table with a caption (`hidden`: for those who do not see it only), which scrolls if it is wide.

    Columns without anything are left out. More rows than `most` are folded.
    """
    grid = _without_empty(grid)
    head = tag("thead", tag("tr", *(_head(grid, k, text) for k, text in enumerate(grid.heads))))
    body = tag("tbody", *(_row(grid, row) for row in grid.rows))
    named = tag("caption", shown(caption), class_="sr-only" if hidden else None)
    made = scrolled(caption, tag("table", named, head, body))
    if len(grid.rows) <= most:
        return made
    return folded(f"{caption} ({len(grid.rows)} rows)", made)


def scrolled(label: str, *children: object) -> Html:
    """Return a region that scrolls sideways where its contents are wider than the page, also by keyboard."""
    return tag("div", *children, class_="scroll", tabindex="0", role="region", aria_label=shown(label))


def folded(summary: str, *children: object, opened: bool = False) -> Html:
    """Return contents that are opened by a click on their summary."""
    return tag("details", tag("summary", shown(summary)), *children, open=opened)


def lines(rows: Iterable[tuple[str, str]], class_: str = "facts") -> Html | None:
    """Return labelled lines; what begins with `->` is a command to type. None where there are none.

    Equal labels that follow each other are written once.
    """
    parts: list[Html] = []
    last = None
    for label, text in rows:
        if label != last:
            word = re.sub(r"[^a-z]", "", label.lower())
            parts.append(tag("dt", shown(label), class_=f"is-{word}" if class_ == "checks" and word else None))
        parts.append(tag("dd", *_pieces(text)))
        last = label
    return tag("dl", *parts, class_=class_) if parts else None


def commands(*typed: str) -> Html:
    """Return commands to type, each in a line of its own."""
    return tag("pre", tag("code", "\n".join(shown(line) for line in typed)), tabindex="0")


def paragraph(text: str, class_: str | None = None) -> Html:
    """Return a paragraph; what stands between backquotes is code."""
    return tag("p", *_words(text), class_=class_)


def figure(chart: Html, note: str = "", *, title: str = "") -> Html:
    """Return a chart with its title and what is said below it; it scrolls where the page is too narrow for it."""
    named = tag("strong", shown(f"{title}. ")) if title else None
    caption = tag("figcaption", named, *_words(note)) if note or title else None
    return tag("figure", scrolled(f"Chart: {title}", chart), caption)


def markdown(grid: Grid) -> str:
    """Return a table as Markdown: pipes, and numbers to the right. Text of others cannot end a cell or a table."""
    grid = _without_empty(grid)
    heads = [in_markdown(h) or " " for h in grid.heads]
    rule = [":---" if k in grid.left else "---:" for k in range(len(grid.heads))]
    body = [_markdown_row(row) for row in grid.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [heads, rule, *body]) + "\n"


def in_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", shown(text))


def _markdown_row(row: Row) -> list[str]:
    first = "\N{NO-BREAK SPACE}" * 2 * row.depth
    cells = [in_markdown(cell) for cell in row.cells]
    if row.kind == "total":
        cells = [f"**{cell}**" if cell.strip() else cell for cell in cells]
    return [first + cells[0], *cells[1:]] if cells else []


def _without_empty(grid: Grid) -> Grid:
    """Return a grid without columns that have neither head nor any cell."""
    kept = [k for k, head in enumerate(grid.heads) if head or any(row.cells[k] for row in grid.rows)]
    if len(kept) == len(grid.heads):
        return grid
    rows = tuple(Row(tuple(r.cells[k] for k in kept), r.kind, r.apart, r.depth) for r in grid.rows)
    return Grid(tuple(grid.heads[k] for k in kept), rows, frozenset(i for i, k in enumerate(kept) if k in grid.left))


def _head(grid: Grid, k: int, text: str) -> Html:
    kind = None if k in grid.left else "number"
    return tag("th", shown(text), scope="col", class_=kind) if text else tag("td", class_=kind)


def _row(grid: Grid, row: Row) -> Html:
    kinds = " ".join(word for word in (row.kind, "apart" if row.apart else "") if word)
    return tag("tr", *(_cell(grid, row, k) for k in range(len(row.cells))), class_=kinds or None)


def _cell(grid: Grid, row: Row, k: int) -> Html:
    text = shown(row.cells[k])
    if k == 0 and text:
        return tag("th", text, scope="row", class_=f"depth{min(row.depth, 6)}" if row.depth else None)
    return tag("td", text, class_=None if k in grid.left else "number")


def _pieces(text: str) -> list[Html]:
    """Return a text line by line, commands as code."""
    found: list[Html] = []
    for said in text.splitlines() or [""]:
        if said.startswith("-> "):
            found.append(tag("span", tag("code", shown(said.removeprefix("-> "))), class_="next"))
        else:
            found.append(tag("span", *_words(said), class_="said"))
    return found


def _words(text: str) -> Sequence[object]:
    parts = re.split(r"`([^`]+)`", text)
    return [tag("code", shown(p)) if k % 2 else shown(p) for k, p in enumerate(parts) if p]
