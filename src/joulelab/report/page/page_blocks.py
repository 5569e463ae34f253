"""Hold a report as blocks, and write it as a page or as Markdown: texts, facts, tables, charts, commands. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.report.charts.chart_model import CurveChart, HeatMap, OverlayChart, PowerChart
from joulelab.report.charts.power_chart import encode_overlay_chart, encode_power_chart
from joulelab.report.charts.svg_painter import CURVE_HEIGHT, PHONE_HEIGHT, PHONE_WIDTH, paint_svg
from joulelab.report.html import Html, join_html, tag
from joulelab.report.page.document import Page, Section, write_profile_figure
from joulelab.report.tables import Table, clean_text, escape_markdown, write_html, write_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.report.charts.chart_model import StaticChart

# Pixels of a chart that has a row of the page, of one of two, of one of three.
CHART_SIZES = {"wide": (900.0, CURVE_HEIGHT), "narrow": (520.0, CURVE_HEIGHT), "small": (PHONE_WIDTH, 300.0)}
POWER_DATA, OVERLAY_DATA, SWAPPED_DATA = "power-data", "profiles", "profiles-swapped"  # ids of power over time
FOLDED_ROWS = 40  # a table with more rows is folded


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Hold a paragraph; text between backquotes is code. `style` is a CSS class: note, muted, note warn."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class FigureCards:
    """Hold the first figures of a page: name, figure, explanation."""

    cards: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class FactList:
    """Hold labelled lines, as the terminal shows them; `style` is facts, checks or notes."""

    facts: tuple[tuple[str, str], ...]
    style: str = "facts"


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Hold a table whose title is the caption; if `is_caption_hidden`, only screen readers get the caption."""

    table: Table
    is_caption_hidden: bool = False


@dataclass(frozen=True, slots=True)
class ChartBlock:
    """Hold a chart that is drawn as SVG; `size` is one of CHART_SIZES. Markdown has no charts."""

    chart: StaticChart
    size: str = "wide"


@dataclass(frozen=True, slots=True)
class PowerBlock:
    """Hold power over time, which the browser draws; Markdown has its description.

    `raw` and `live` are addresses of finer and of the newest data. A block that `is_swapped` has two runs in the
    other order, and takes their readings from the first one.
    """

    chart: PowerChart | OverlayChart
    raw: str | None = None
    live: str | None = None
    is_swapped: bool = False

    @property
    def data_id(self) -> str:
        """Return the id of the chart's data in the page."""
        if isinstance(self.chart, PowerChart):
            return POWER_DATA
        return SWAPPED_DATA if self.is_swapped else OVERLAY_DATA

    def encode_data(self) -> dict[str, Any]:
        """Return the data for the browser."""
        if isinstance(self.chart, PowerChart):
            return encode_power_chart(self.chart)
        data = encode_overlay_chart(self.chart)
        return {**data, "profiles": OVERLAY_DATA} if self.is_swapped else data


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Hold blocks that stand side by side if there is room."""

    blocks: tuple[PageBlock, ...]


def arrange_charts(charts: Sequence[StaticChart]) -> list[PageBlock]:
    """Put charts into rows of two; the first one of an odd number has a row of its own."""
    sizes = ["wide" if k < len(charts) % 2 else "narrow" for k in range(len(charts))]
    blocks = tuple(ChartBlock(chart, size) for chart, size in zip(charts, sizes, strict=True))
    return [SideBySide(blocks)] if len(blocks) > 1 else list(blocks)


@dataclass(frozen=True, slots=True)
class CommandBlock:
    """Hold commands to type, or other text that stays as it is."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoldedBlocks:
    """Hold blocks that a click opens."""

    summary: str
    blocks: tuple[PageBlock, ...]


@dataclass(frozen=True, slots=True)
class SwappableBlocks:
    """Hold blocks about run A and run B, and the same blocks with A and B exchanged.

    A button exchanges A and B in all of them; it stands above the blocks that have it.
    """

    blocks: tuple[PageBlock, ...]
    swapped: tuple[PageBlock, ...]
    has_button: bool = False


@dataclass(frozen=True, slots=True)
class Subheading:
    """Hold a heading within a section."""

    text: str


PageBlock = (
    Paragraph
    | FigureCards
    | FactList
    | TableBlock
    | ChartBlock
    | PowerBlock
    | SideBySide
    | CommandBlock
    | FoldedBlocks
    | SwappableBlocks
    | Subheading
)


@dataclass(frozen=True, slots=True)
class ReportSection:
    """Hold a section of a report; `id` is its anchor in the page."""

    id: str
    title: str
    blocks: tuple[PageBlock, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Hold a report; `live` if its run or study is still going on."""

    title: str
    subtitle: str
    sections: tuple[ReportSection, ...]
    live: bool = False

    def make_page(self) -> Page:
        """Make the page of the report, with the data of its charts."""
        sections = tuple(Section(s.id, s.title, write_blocks_html(s.blocks)) for s in self.sections)
        blocks = [block for section in self.sections for block in section.blocks]
        for pair in [block for block in blocks if isinstance(block, SwappableBlocks)]:
            blocks += [*pair.blocks, *pair.swapped]
        data = {block.data_id: block.encode_data() for block in blocks if isinstance(block, PowerBlock)}
        return Page(self.title, self.subtitle, sections, data, self.live)

    def write_markdown(self) -> str:
        """Write the report as Markdown; sections with nothing but charts are left out."""
        texts = [f"# {escape_markdown(self.title)}\n", f"{escape_markdown(self.subtitle)}\n"]
        bodies = [(escape_markdown(s.title), write_blocks_markdown(s.blocks)) for s in self.sections]
        return "\n".join([*texts, *(f"## {title}\n\n{body}" for title, body in bodies if body)])


# HTML


def write_blocks_html(blocks: Iterable[PageBlock]) -> Html:
    """Write blocks as HTML."""
    return join_html(_write_html(block) for block in blocks)


def _write_html(block: PageBlock) -> Html | None:
    match block:
        case Paragraph(text, style):
            return tag("p", *_mark_code(text), class_=style or None)
        case FigureCards(cards):
            return tag("div", *(_write_card(*card) for card in cards), class_="cards")
        case FactList(facts, style):
            return _write_facts(facts, style)
        case TableBlock(table, is_caption_hidden):
            return _write_table(table, is_caption_hidden=is_caption_hidden)
        case ChartBlock(chart, size):
            return _write_chart(chart, size)
        case PowerBlock(chart, raw, live):
            overlay = isinstance(chart, OverlayChart)
            caption = clean_text(chart.description)
            return write_profile_figure(block.data_id, caption, overlay=overlay, raw=raw, live=live)
        case SideBySide(blocks):
            return tag("div", *(tag("div", _write_html(b)) for b in blocks), class_=_choose_columns(blocks))
        case CommandBlock(lines):
            return tag("pre", tag("code", "\n".join(map(clean_text, lines))), tabindex="0")
        case FoldedBlocks(summary, blocks):
            return _fold(summary, write_blocks_html(blocks))
        case SwappableBlocks():
            return _write_both_orders(block)
        case Subheading(text):
            return tag("h3", clean_text(text))


def _write_both_orders(pair: SwappableBlocks) -> Html:
    """Write both orders, of which the style sheet shows one; the button appears if scripts run."""
    orders = ((pair.blocks, "order-ab"), (pair.swapped, "order-ba"))
    written = [tag("div", write_blocks_html(blocks), class_=order) for blocks, order in orders]
    button = tag("button", "Swap A and B", type="button", class_="swap no-print", hidden="", aria_pressed="false")
    return join_html([button if pair.has_button else None, *written])


def _write_card(name: str, value: str, about: str) -> Html:
    spans = [("name", name), ("value", value), *([("about", about)] if about else [])]
    return tag("div", *(tag("span", clean_text(text), class_=class_) for class_, text in spans), class_="card")


def _write_facts(facts: Sequence[tuple[str, str]], style: str) -> Html | None:
    """Write labelled lines; a label that repeats is written once, lines with `->` are commands."""
    parts: list[Html] = []
    last = None
    for label, text in facts:
        if label != last:
            word = re.sub(r"[^a-z]", "", label.lower())
            parts.append(tag("dt", clean_text(label), class_=f"is-{word}" if style == "checks" and word else None))
            last = label
        spans = []
        for line in text.splitlines() or [""]:
            if line.startswith("-> "):
                spans.append(tag("span", tag("code", clean_text(line.removeprefix("-> "))), class_="next"))
            else:
                spans.append(tag("span", *_mark_code(line), class_="said"))
        parts.append(tag("dd", *spans))
    return tag("dl", *parts, class_=style) if parts else None


def _write_table(table: Table, *, is_caption_hidden: bool) -> Html:
    """Write a table that scrolls if it is wide, and is folded if it is long."""
    written = _scroll(table.title, write_html(table, is_caption_hidden=is_caption_hidden))
    notes = [tag("p", *_mark_code(note), class_="muted") for note in table.notes]
    if len(table.rows) > FOLDED_ROWS:
        return _fold(f"{table.title} ({len(table.rows)} rows)", written, *notes)
    return join_html([written, *notes])


def _write_chart(chart: StaticChart, size: str) -> Html:
    title = (chart.full_title or chart.y_label) if isinstance(chart, CurveChart) else chart.title
    named = tag("strong", clean_text(f"{title[:1].upper()}{title[1:]}. ")) if title else None
    note = "" if size == "small" else chart.note
    caption = tag("figcaption", named, *_mark_code(note)) if note or title else None
    kind = "map" if isinstance(chart, HeatMap) else size
    return tag("figure", *_paint_chart(chart, size), caption, class_=f"chart-{kind}")


def _paint_chart(chart: StaticChart, size: str) -> list[Html]:
    """Paint a chart for a screen and, if that is too wide for a telephone, for a telephone; the style shows one."""
    for_screen, for_phone = paint_svg(chart, *CHART_SIZES[size]), paint_svg(chart, PHONE_WIDTH, PHONE_HEIGHT)
    if size == "small" or for_phone == for_screen:
        return [for_screen]
    return [tag("div", for_screen, class_="for-screen"), tag("div", for_phone, class_="for-phone")]


def _choose_columns(blocks: Sequence[PageBlock]) -> str:
    """Choose the style of blocks beside each other: charts in rows of two or three, others as they fit."""
    sizes = [block.size if isinstance(block, ChartBlock) else "" for block in blocks]
    if all(size == "small" for size in sizes):
        return "columns thirds"
    return "columns halves" if "narrow" in sizes and all(sizes) else "columns"


def _scroll(label: str, content: Html) -> Html:
    """Put content into a region that scrolls sideways if the page is too narrow, also by keyboard."""
    return tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=clean_text(label))


def _fold(summary: str, *content: Html) -> Html:
    return tag("details", tag("summary", clean_text(summary)), *content)


def _mark_code(text: str) -> list[object]:
    parts = re.split(r"`([^`]+)`", text)
    return [tag("code", clean_text(p)) if k % 2 else clean_text(p) for k, p in enumerate(parts) if p]


# Markdown


def write_blocks_markdown(blocks: Iterable[PageBlock]) -> str:
    """Write blocks as Markdown with a blank line between them; headings without content are left out."""
    texts: list[str] = []
    heading = ""
    for block in blocks:
        if isinstance(block, Subheading):
            heading = f"### {escape_markdown(block.text)}\n"
        elif text := _write_markdown(block):
            texts += [heading, text] if heading else [text]
            heading = ""
    return "\n".join(texts)


def _write_markdown(block: PageBlock) -> str:
    match block:
        case Paragraph(text, _):
            return f"{_escape_words(text)}\n"
        case PowerBlock(chart):
            return f"{_escape_words(chart.description)}\n"
        case FigureCards(cards):
            return "".join(_write_markdown_card(*card) for card in cards)
        case FactList(facts, _):
            return "".join(_write_markdown_fact(label, text) for label, text in facts)
        case TableBlock(table, _):
            return write_markdown(table)
        case SideBySide(blocks):
            return write_blocks_markdown(blocks)
        case SwappableBlocks(blocks):
            return write_blocks_markdown(blocks)
        case CommandBlock(lines):
            text = "\n".join(map(clean_text, lines))
            fence = _make_fence(text, 3)
            return f"{fence}\n{text}\n{fence}\n"
        case FoldedBlocks(summary, blocks):
            body = write_blocks_markdown(blocks)
            return f"{escape_markdown(summary)}:\n\n{body}" if body else ""
    return ""


def _write_markdown_card(name: str, value: str, about: str) -> str:
    more = f" ({escape_markdown(about)})" if about else ""
    return f"- {escape_markdown(name)}: **{escape_markdown(value)}**{more}\n"


def _write_markdown_fact(label: str, text: str) -> str:
    parts = []
    for line in text.splitlines():
        is_command = line.startswith("-> ")
        parts.append(_write_code(line.removeprefix("-> ")) if is_command else _escape_words(line))
    return f"- {escape_markdown(label)}: {'; '.join(parts)}\n"


def _escape_words(text: str) -> str:
    parts = re.split(r"`([^`]+)`", text)
    return "".join(_write_code(p) if k % 2 else escape_markdown(p) for k, p in enumerate(parts))


def _write_code(text: str) -> str:
    text = clean_text(text)
    fence, blank = _make_fence(text, 1), " " if "`" in text else ""
    return f"{fence}{blank}{text}{blank}{fence}"


def _make_fence(text: str, least: int) -> str:
    """Return a fence with more backquotes than the text has in a row."""
    return "`" * max(least, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
