"""Hold what a section says, once for HTML and for Markdown: text, lines, tables, charts, commands. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.report.charts.draw import draw
from joulelab.report.charts.svg import WIDTH
from joulelab.report.html import Html, joined, tag
from joulelab.report.page.tables import (
    commands,
    figure,
    folded,
    in_markdown,
    lines,
    markdown,
    paragraph,
    shown,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.report.charts.model import Chart
    from joulelab.report.page.tables import Grid

NARROW = 520.0  # pixels of a chart beside another


@dataclass(frozen=True, slots=True)
class Text:
    """Hold a paragraph; what stands between backquotes is code. `kind` is a class: note, muted, note warn."""

    said: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Cards:
    """Hold the figures that come first: name, figure, what is to be known about it."""

    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Hold labelled lines, as the terminal has them."""

    rows: tuple[tuple[str, str], ...]
    kind: str = "facts"


@dataclass(frozen=True, slots=True)
class Table:
    """Hold a table with its caption; `hidden` captions are for those who do not see the page."""

    grid: Grid
    caption: str
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """Hold a chart and what is said below it; not `wide` beside another. Markdown has the table beside it only."""

    chart: Chart
    note: str = ""
    wide: bool = True


@dataclass(frozen=True, slots=True)
class Columns:
    """Hold blocks that stand side by side where there is room."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """Hold commands to type, or other text that is kept as it is."""

    typed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Hold blocks that are opened by a click."""

    summary: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    """Hold a heading within a section."""

    said: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """Hold what only a page can show, with what is said in its place in Markdown."""

    html: Html
    instead: str = ""


Block = Text | Cards | Lines | Table | Drawing | Columns | Commands | Fold | Heading | Drawn


@dataclass(frozen=True, slots=True)
class Part:
    """Hold a section before it is written: `id` is its place in the page."""

    id: str
    title: str
    blocks: tuple[Block, ...]


def html_of(blocks: Iterable[Block]) -> Html:
    """Return blocks as HTML."""
    return joined(_html(block) for block in blocks)


def _html(block: Block) -> Html | None:
    match block:
        case Text(said, kind):
            return paragraph(said, kind or None)
        case Cards(rows):
            return tag("div", *(_card(*row) for row in rows), class_="cards")
        case Lines(rows, kind):
            return lines(rows, kind)
        case Table(grid, caption, hidden):
            return table(grid, caption, hidden=hidden)
        case Drawing(chart, note, wide):
            return figure(draw(chart, WIDTH if wide else NARROW), note, title=chart.title)
        case Columns(inner):
            return tag("div", *(tag("div", _html(b)) for b in inner), class_="columns")
        case Commands(typed):
            return commands(*typed)
        case Fold(summary, inner):
            return folded(summary, html_of(inner))
        case Heading(said):
            return tag("h3", shown(said))
        case Drawn(html, _):
            return html


def _card(name: str, value: str, about: str) -> Html:
    said = tag("span", shown(about), class_="about") if about else None
    return tag(
        "div", tag("span", shown(name), class_="name"), tag("span", shown(value), class_="value"), said, class_="card"
    )


def markdown_of(blocks: Iterable[Block]) -> str:
    """Return blocks as Markdown, a blank line between them; headings of what only a page can show are left out."""
    texts: list[str] = []
    heading = ""
    for block in blocks:
        text = _markdown(block)
        if isinstance(block, Heading):
            heading = text
        elif text:
            texts += [heading, text] if heading else [text]
            heading = ""
    return "\n".join(texts)


def _markdown(block: Block) -> str:
    match block:
        case Text(said, _):
            return f"{_worded(said)}\n"
        case Cards(rows):
            return "".join(f"- {in_markdown(n)}: **{in_markdown(v)}**{_about(a)}\n" for n, v, a in rows)
        case Lines(rows, _):
            return "".join(_line(label, text) for label, text in rows)
        case Table(grid, caption, hidden):
            return ("" if hidden else f"{in_markdown(caption)}\n\n") + markdown(grid)
        case Columns(inner):
            return markdown_of(inner)
        case Commands(typed):
            return _fenced(typed)
        case Fold(summary, inner):
            inside = markdown_of(inner)
            return f"{in_markdown(summary)}:\n\n{inside}" if inside else ""
        case Heading(said):
            return f"### {in_markdown(said)}\n"
        case Drawing() | Drawn(_, ""):
            return ""
        case Drawn(_, instead):
            return f"{_worded(instead)}\n"


def _about(said: str) -> str:
    return f" ({in_markdown(said)})" if said else ""


def _line(label: str, text: str) -> str:
    parts = [_code(line.removeprefix("-> ")) if line.startswith("-> ") else _worded(line) for line in text.splitlines()]
    return f"- {in_markdown(label)}: {'; '.join(parts)}\n"


def _worded(text: str) -> str:
    """Return our own words, in which code stands between backquotes."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(_code(p) if k % 2 else in_markdown(p) for k, p in enumerate(parts))


def _code(text: str) -> str:
    """Return code in a line; its fence is longer than any in it."""
    said = shown(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", said)), default=0))
    return f"{fence} {said} {fence}" if "`" in said else f"{fence}{said}{fence}"


def _fenced(typed: Sequence[str]) -> str:
    said = "\n".join(shown(line) for line in typed)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", said)), default=0))
    return f"{fence}\n{said}\n{fence}\n"
