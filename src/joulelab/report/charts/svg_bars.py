"""Draw bars, stacked bars and histograms as SVG. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.charts.model import lower_end
from joulelab.report.charts.svg import (
    LINE,
    WIDTH,
    Axis,
    Frame,
    Key,
    axis_of,
    colour,
    line,
    mark,
    named_axis,
    rect,
    text,
    width_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.report.charts.model import Bar, Bars, Histogram, Stack
    from joulelab.report.html import Html

ROW, THICK = 26.0, 16.0  # height of a line of bars, and of the bar in it
MOST_OF_LABEL = 26  # letters of a name beside its bar
MARKS = {"best": "star", "tied": "ring", "reference": "square"}


def draw_bars(chart: Bars, width: float = WIDTH) -> Html:
    """Return bars with their intervals as whiskers, and what is written at each."""
    return _upright(chart, width) if chart.upright else _lying(chart, width)


def _reach(chart: Bars) -> list[float]:
    return [v for r in chart.rows for v in (_low(chart, r), r.value + (r.expanded or 0.0))]


def _low(chart: Bars, row: Bar) -> float:
    return lower_end(row.value, row.expanded or 0.0, signed=chart.is_signed)


def _names(labels: Sequence[str]) -> Axis:
    """Return an axis with the first name on top."""
    last = len(labels) - 1
    ticks = tuple((float(last - k), fmt.shorten_middle(label, MOST_OF_LABEL)) for k, label in enumerate(labels))
    return Axis("", -0.5, last + 0.5, ticks, grid=False)


def _keys(names: Sequence[str]) -> list[Key]:
    return [Key(name, colour(k)) for k, name in enumerate(names)]


def _lying_frame(
    title: str, about: str, x: Axis, labels: Sequence[str], texts: Sequence[str], keys: Sequence[Key], width: float
) -> Frame:
    """Return a frame as high as its lines need, with room at the right for what is written there."""
    right = max(map(width_of, texts), default=0.0) + 18
    lines = Frame(title, about, x, _names(labels), width=width, right=right, keys=keys).top
    height = lines + ROW * len(labels) + LINE + 12 + (LINE if x.label else 0)
    return Frame(title, about, x, _names(labels), width=width, height=height, right=right, keys=keys, lying=True)


def _lying(chart: Bars, width: float) -> Html:
    rows = chart.rows
    ends = [*_reach(chart), *([chart.level] if chart.level is not None else [])]
    x = axis_of(chart.label, ends, zero=not chart.dots, most=round(width / 110))
    texts = [r.text for r in rows]
    frame = _lying_frame(chart.title, chart.about, x, [r.label for r in rows], texts, _keys(chart.keys), width)
    shapes: list[Html] = []
    if chart.level is not None:
        at = frame.x(chart.level)
        shapes.append(line(at, frame.top, at, frame.bottom, "axis"))
    for k, row in enumerate(rows):
        y = frame.y(len(rows) - 1 - k)
        said = f"{row.label}: {row.text}"
        if chart.dots:
            shapes.append(mark("dot", frame.x(row.value), y, row.colour, 9))
        else:
            zero, end = frame.x(0.0), frame.x(row.value)
            shapes.append(rect(min(zero, end), y - THICK / 2, abs(end - zero), THICK, _fill(row.colour), said))
        if row.expanded:
            low, high = frame.x(_low(chart, row)), frame.x(row.value + row.expanded)
            shapes += _whisker(low, y, high, y)
        if row.mark:
            shapes.append(mark(MARKS[row.mark], frame.x(row.value), y, row.colour, 14))
        shapes.append(text(frame.right + 8, y + 4, row.text))
    return frame.drawn(*shapes)


def _upright(chart: Bars, width: float) -> Html:
    rows = chart.rows
    y = axis_of(chart.label, [*_reach(chart), *([chart.level] if chart.level is not None else [])], zero=True)
    names = named_axis("", [fmt.shorten_middle(r.label, MOST_OF_LABEL) for r in rows])
    frame = Frame(chart.title, chart.about, names, y, keys=_keys(chart.keys), width=width, height=280)
    apart = (frame.right - frame.left) / max(len(rows), 1)
    thick = min(max(apart * 0.7, 1.0), 56.0)
    shapes: list[Html] = []
    for k, row in enumerate(rows):
        x, zero, end = frame.x(k), frame.y(0.0), frame.y(row.value)
        said = f"{row.label}: {row.text}"
        shapes.append(rect(x - thick / 2, min(zero, end), thick, abs(end - zero), _fill(row.colour), said))
        if row.expanded and apart >= 5:  # closer ones would be a grey cloud; the table has all of them
            shapes += _whisker(x, frame.y(_low(chart, row)), x, frame.y(row.value + row.expanded))
    if chart.level is not None:
        shapes.append(line(frame.left, frame.y(chart.level), frame.right, frame.y(chart.level), "axis"))
    return frame.drawn(*shapes)


def draw_stack(chart: Stack, width: float = WIDTH) -> Html:
    """Return bars of parts below each other, the sum of each written at its end; parts below 0 have no length."""
    longest = [sum(max(p.value, 0.0) for p in row.parts) for row in chart.rows]
    x = axis_of(chart.label, longest, zero=True, most=round(width / 110))
    keys = [Key(name, chart.colour(k)) for k, name in enumerate(chart.keys)]
    labels, texts = [row.label for row in chart.rows], [row.text for row in chart.rows]
    frame = _lying_frame(chart.title, chart.about, x, labels, texts, keys, width)
    shapes: list[Html] = []
    for k, row in enumerate(chart.rows):
        y, at = frame.y(len(chart.rows) - 1 - k), 0.0
        for part in row.parts:
            length = max(part.value, 0.0)
            said = f"{row.label}, {chart.keys[part.key]}: {part.text}"
            start, end = frame.x(at), frame.x(at + length)
            shapes.append(rect(start, y - THICK / 2, end - start, THICK, _fill(chart.colour(part.key)), said))
            at += length
        if row.expanded:
            shapes += _whisker(frame.x(lower_end(at, row.expanded)), y, min(frame.x(at + row.expanded), frame.right), y)
        shapes.append(text(frame.right + 8, y + 4, row.text))
    return frame.drawn(*shapes)


def draw_histogram(chart: Histogram, width: float = WIDTH) -> Html:
    """Return a histogram, with lines at its marks and their names in lines above it."""
    x = axis_of(chart.label, [*chart.edges, *(v for _, v in chart.marks)], room=0.02, most=round(width / 80))
    y = axis_of("time, %", chart.shares, zero=True, most=5)
    keys = [Key(name, colour(k + 1), "line") for k, (name, _) in enumerate(chart.marks)]
    frame = Frame(chart.title, chart.about, x, y, keys=keys, width=width, height=260)
    shapes: list[Html] = []
    for low, high, share in zip(chart.edges, chart.edges[1:], chart.shares, strict=False):
        if share > 0:
            left, wide = frame.x(low), frame.x(high) - frame.x(low)
            top = min(frame.y(share), frame.bottom - 1)
            shapes.append(rect(left, top, max(wide - 0.5, 0.5), frame.bottom - top, _fill(0)))
    for k, (_, value) in enumerate(chart.marks):
        shapes.append(line(frame.x(value), frame.top, frame.x(value), frame.bottom, f"line{colour(k + 1)}"))
    return frame.drawn(*shapes)


def _fill(k: int) -> str:
    return f"fill{colour(k)}"


def _whisker(x1: float, y1: float, x2: float, y2: float) -> list[Html]:
    """Return a line with a cap at each end, lying or upright."""
    dx, dy = (0.0, 4.0) if y1 == y2 else (4.0, 0.0)
    ends = [line(x - dx, y - dy, x + dx, y + dy, "bar-interval") for x, y in ((x1, y1), (x2, y2))]
    return [line(x1, y1, x2, y2, "bar-interval"), *ends]
