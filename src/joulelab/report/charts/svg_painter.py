"""Draw charts as SVG for pages. Pure.

Colours are CSS classes, so that the style sheet decides on light and dark. Every picture has a title and a description
for people who do not see it, and needs no script. Power over time is drawn in the browser (page/assets/profile.js).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from joulelab.core.quantity import format_decimals
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.charts.chart_model import (
    BarChart,
    CurveChart,
    HeatMap,
    HistogramChart,
    StackChart,
    format_point,
    get_lower_end,
)
from joulelab.report.html import Html, join_html, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.report.charts.chart_model import ChartCurve, HeatTile, StaticChart

    Place = tuple[float, float]
    Box = tuple[float, float, float, float]  # left, top, right, bottom

WIDTH, HEIGHT = 720.0, 320.0
PHONE_WIDTH, PHONE_HEIGHT = 360.0, 340.0  # of the drawing for narrow pages, whose letters are as large as elsewhere
COLOUR_COUNT = 8  # classes fill0 to fill7, line0 to line7
LETTER = 7.1  # mean width of a letter in the wider of the usual fonts, at 12 pixels
MARGIN, SWATCH, LINE = 8.0, 11.0, 17.0  # LINE: height of a line of text in a legend
ROW, BAR = 26.0, 16.0  # height of a row of bars, and of the bar in it
BAR_LABEL_LETTERS = 26
CURVE_HEIGHT, LEAST_CURVE_BOX = 380.0, 260.0
MARK_SIZE = 15.0
CAP = 4.0  # half width of the end of an error bar
SHIFT, LONG_BAR = 4.0, 6.0  # shift between curves with error bars that are longer than LONG_BAR
DASHES = (None, "6 3", "8 3 2 3", "2 3")
FRONT_LABELS = 12
DESCRIBED_CURVES = 8
TILE, TILE_HEIGHT, WIDE_TILES = 44.0, 34.0, 24  # more columns than WIDE_TILES: half as wide
SCALE_WIDTH, LEAST_SCALE, SCALE_STEPS = 160.0, 60.0, 10
NUMBER = re.compile(r"[-\d.,]+")
MARK_SHAPES = {"best": "star", "tied": "ring", "reference": "square", "uncapped": "open"}
# Where a name may stand beside its point, the best place first.
NAME_PLACES = ((9, -5, "start"), (12, 4, "start"), (-9, 13, "end"), (9, 14, "start"), (-9, -5, "end"), (-12, 4, "end"))
# Corners of the points of curves, in half widths from the centre; a circle has none.
POINT_CORNERS: dict[str, tuple[tuple[float, float], ...]] = {
    "circle": (),
    "triangle": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "cube": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "turned": ((0, 1.2), (1.1, -0.9), (-1.1, -0.9)),
}
POINT_SHAPES = tuple(POINT_CORNERS)


def paint_svg(chart: StaticChart, width: float = WIDTH, height: float = CURVE_HEIGHT) -> Html:
    """Draw a chart as SVG. `height` (pixels) applies to curves only; other charts take the height that they need.

    Up to PHONE_WIDTH, names of bars stand above them, and a wide heat map is turned.
    """
    match chart:
        case BarChart():
            return _draw_upright_bars(chart, width) if chart.is_upright else _draw_bars(chart, width)
        case StackChart():
            return _draw_stack(chart, width)
        case HistogramChart():
            return _draw_histogram(chart, width)
        case CurveChart():
            return _draw_curves(chart, width, height)
        case HeatMap():
            return _draw_heat_map(chart, width)


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """Hold an axis: its label, its range, and its ticks as places with texts."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    has_grid: bool = True


@dataclass(frozen=True, slots=True)
class LegendKey:
    """Hold one entry of a legend; `shape` is box, line, star, ring, square or a shape of points."""

    label: str
    colour: int = 0
    shape: str = "box"


def make_axis(
    label: str, values: Iterable[float], *, from_zero: bool = False, most_ticks: int = 6, room: float = 0.04
) -> ChartAxis:
    """Make an axis that covers all finite values, with some room at its ends."""
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        width = abs(high) * 0.1 or 1.0
        low, high = (low - width, high + width) if not from_zero or low else (low, high + width)
    spare = (high - low) * room
    low = low if from_zero and low == 0 else low - spare
    high = high if from_zero and high == 0 else high + spare
    step = choose_step(high - low, most_ticks)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return ChartAxis(label, low, high, tuple((k * step, _format_tick(k * step, step)) for k in range(first, last + 1)))


def make_named_axis(label: str, names: Sequence[str]) -> ChartAxis:
    """Make an axis with a name at 0, 1, 2, ..."""
    ticks = tuple((float(k), name) for k, name in enumerate(names))
    return ChartAxis(label, -0.5, len(names) - 0.5, ticks, has_grid=False)


def choose_step(width: float, most_ticks: int) -> float:
    """Choose the step of 1, 2 or 5 times a power of ten that gives at most this many ticks."""
    least = width / max(most_ticks, 1)
    power = 10.0 ** math.floor(math.log10(least))
    return next((m * power for m in (1, 2, 5) if m * power >= least * (1 - 1e-9)), 10 * power)


def _format_tick(value: float, step: float) -> str:
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return format_decimals(value, min(decimals, 12))


class ChartFrame:
    """Hold the box around a chart: `x()` and `y()` turn values into pixels, `draw()` makes the SVG.

    Margins follow from the texts in them, so that no text is cut off. Names under the axis are turned if they do not
    fit beside each other; of numbers, some are left out. `extra_top` and `right` reserve room; `is_lying`: the bars are
    horizontal, and `row_names` stand above them.
    """

    def __init__(
        self,
        title: str,
        description: str,
        x: ChartAxis,
        y: ChartAxis,
        *,
        width: float = WIDTH,
        height: float = HEIGHT,
        keys: Sequence[LegendKey] = (),
        right: float = 0.0,
        extra_top: float = 0.0,
        is_lying: bool = False,
        row_names: Sequence[str] = (),
    ) -> None:
        self.title, self.description, self.axes = title, description, (x, y)
        self.width, self.height, self.is_lying, self.row_names = width, height, is_lying, row_names
        self.left = measure_left(y)
        self.right = width - max(MARGIN + 8, right)
        room = self.right - self.left
        self._legend = _lay_out_legend(keys, room)
        self.top = MARGIN + LINE * len(self._legend) + (4 if self._legend else 0) + extra_top
        names = [text for _, text in x.ticks]
        widest = max(map(measure_text, names), default=0.0)
        is_crowded = bool(names) and widest + 6 > room / len(names)
        self.is_turned = is_crowded and not all(NUMBER.fullmatch(name) for name in names)
        if is_crowded:  # as many numbers as fit beside each other, or names as fit when they are turned
            every = math.ceil(len(names) * (LINE if self.is_turned else widest + 6) / max(room, LINE))
            self.axes = (replace(x, ticks=x.ticks[::every]), y)
        below = 0.6 * widest + LINE if self.is_turned else LINE + 4 if names else MARGIN
        self.bottom = height - MARGIN - below - (LINE if x.label else 0)

    def x(self, value: float) -> float:
        """Return the pixel of a value from left to right."""
        axis = self.axes[0]
        return self.left + (value - axis.low) / (axis.high - axis.low) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the pixel of a value from top to bottom; larger values are higher up."""
        axis = self.axes[1]
        return self.bottom - (value - axis.low) / (axis.high - axis.low) * (self.bottom - self.top)

    def draw(self, *shapes: object) -> Html:
        """Draw the picture: grid below the shapes, axes and legend above them."""
        x, y = self.axes
        grid = [draw_line(self.x(v), self.top, self.x(v), self.bottom, "grid") for v, _ in x.ticks if x.has_grid]
        grid += [draw_line(self.left, self.y(v), self.right, self.y(v), "grid") for v, _ in y.ticks if y.has_grid]
        inner = join_html(
            [
                tag("title", escape_unprintable(self.title)),
                tag("desc", escape_unprintable(self.description)),
                *grid,
                *shapes,
                *self._draw_axes(),
                *self._draw_legend(),
            ]
        )
        size = {"width": format_pixel(self.width), "height": format_pixel(self.height)}
        box = f"0 0 {size['width']} {size['height']}"
        return tag("svg", inner, class_="chart", role="img", viewBox=box, **size)

    def _draw_axes(self) -> list[Html]:
        """Draw names and labels, and the line that bars stand on: at 0 if the axis covers it."""
        x, y = self.axes
        if self.is_lying:
            base = self.x(0.0) if x.low <= 0 <= x.high else self.left
            shapes = [draw_line(base, self.top, base, self.bottom, "axis")]
            for k, name in enumerate(self.row_names):
                above = self.y(len(self.row_names) - 1 - k) - BAR / 2 - 4
                shapes.append(draw_text(self.left + 4, above, name, class_="label halo"))
        else:
            base = self.y(0.0) if y.has_grid and y.low <= 0 <= y.high else self.bottom
            shapes = [draw_line(self.left, base, self.right, base, "axis")]
        for value, name in x.ticks:
            if self.is_turned:
                shapes.append(draw_text(self.x(value) + 4, self.bottom + 14, name, anchor="end", turn=-35))
            else:
                shapes.append(draw_text(self.x(value), self.bottom + 16, name, anchor="middle"))
        shapes += [draw_text(self.left - 6, self.y(v) + 4, name, anchor="end") for v, name in y.ticks]
        if x.label:
            shapes.append(draw_text((self.left + self.right) / 2, self.height - MARGIN, x.label, anchor="middle"))
        if y.label:
            shapes.append(draw_text(MARGIN + 10, (self.top + self.bottom) / 2, y.label, anchor="middle", turn=-90))
        return shapes

    def _draw_legend(self) -> list[Html]:
        shapes: list[Html] = []
        for k, line in enumerate(self._legend):
            y = MARGIN + k * LINE
            for offset, key in line:
                x = self.left + offset
                shapes.append(draw_mark(key.shape, x + SWATCH / 2, y + SWATCH / 2, key.colour))
                shapes.append(draw_text(x + SWATCH + 5, y + SWATCH - 1, key.label))
        return shapes


def _lay_out_legend(keys: Sequence[LegendKey], room: float) -> list[list[tuple[float, LegendKey]]]:
    """Arrange keys in lines that fit, each with its offset from the left."""
    lines: list[list[tuple[float, LegendKey]]] = []
    offset = 0.0
    most_letters = max(int((room - SWATCH - 5) / LETTER), 8)
    for each in keys:
        key = replace(each, label=fmt.shorten_middle(escape_unprintable(each.label), most_letters))
        width = SWATCH + 5 + measure_text(key.label) + 16
        if not lines or offset + width > room:
            lines.append([])
            offset = 0.0
        lines[-1].append((offset, key))
        offset += width
    return lines


def measure_text(text: str) -> float:
    """Estimate the width of a text in pixels."""
    return len(text) * LETTER


def measure_left(y: ChartAxis) -> float:
    """Return the left margin that the texts of an axis need, in pixels."""
    widest = max((measure_text(text) for _, text in y.ticks), default=0.0)
    return MARGIN + widest + 6 + (LINE + 4 if y.label else 0)


def format_pixel(value: float) -> str:
    """Write a coordinate with a tenth of a pixel; 0 if it is not finite."""
    return f"{value if math.isfinite(value) else 0.0:.1f}".removesuffix(".0")


def draw_shape(name: str, class_: str, tooltip: str = "", **places: float) -> Html:
    """Draw an SVG element at places in pixels, with an optional tooltip."""
    title = tag("title", escape_unprintable(tooltip)) if tooltip else None
    return tag(name, title, class_=class_, **{key: format_pixel(value) for key, value in places.items()})


def draw_text(
    x: float, y: float, text: str, *, anchor: str = "start", turn: float = 0.0, class_: str = "label"
) -> Html:
    """Draw a text; `anchor` is start, middle or end, `turn` an angle in degrees."""
    at = {"x": format_pixel(x), "y": format_pixel(y), "text_anchor": anchor}
    rotation = f"rotate({format_pixel(turn)} {at['x']} {at['y']})" if turn else None
    return tag("text", escape_unprintable(text), class_=class_, **at, transform=rotation)


def draw_line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    """Draw a straight line."""
    return draw_shape("line", class_, x1=x1, y1=y1, x2=x2, y2=y2)


def draw_rect(x: float, y: float, width: float, height: float, class_: str, tooltip: str = "") -> Html:
    """Draw a box with an optional tooltip."""
    return draw_shape("rect", class_, tooltip, x=x, y=y, width=max(width, 0.0), height=max(height, 0.0))


def draw_path(points: Sequence[Place], class_: str, *, is_closed: bool = False, dash: str | None = None) -> Html:
    """Draw a line through points; it is interrupted at points that are not finite."""
    pieces, pen = [], "M"
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        pieces.append(f"{pen}{format_pixel(x)} {format_pixel(y)}")
        pen = "L"
    end = "Z" if is_closed and pieces else ""
    return tag("path", class_=class_, d="".join(pieces) + end, stroke_dasharray=dash)


def draw_mark(shape: str, x: float, y: float, colour: int, size: float = SWATCH) -> Html:
    """Draw a mark: box, line, dot, star (best), ring (tied), square (reference), open (uncapped), point on a line."""
    half, number = size / 2, colour % COLOUR_COUNT
    if shape in POINT_CORNERS:
        return join_html([draw_line(x - half, y, x + half, y, f"line{number}"), draw_point(shape, x, y, colour)])
    if shape == "line":
        return draw_line(x - half, y, x + half, y, f"line{number}")
    if shape == "dot":
        return draw_shape("circle", f"fill{number}", cx=x, cy=y, r=half)
    if shape == "ring":
        return draw_shape("circle", f"mark-tied line{number}", cx=x, cy=y, r=half)
    if shape == "square":
        return draw_rect(x - half, y - half, size, size, f"mark-reference line{number}")
    if shape == "open":
        corners = [(x - half, y), (x, y - half), (x + half, y), (x, y + half)]
        return draw_path(corners, f"mark-reference line{number}", is_closed=True)
    if shape == "star":
        radii = [half * 1.3 * (1.0 if k % 2 == 0 else 0.45) for k in range(10)]
        angles = [math.pi * k / 5 - math.pi / 2 for k in range(10)]
        corners = [(x + r * math.cos(a), y + r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]
        return draw_path(corners, f"mark-best fill{number}", is_closed=True)
    return draw_rect(x - half, y - half, size, size, f"fill{number}")


def draw_point(shape: str, x: float, y: float, colour: int, tooltip: str = "", radius: float = 3.6) -> Html:
    """Draw a point of a curve; curves differ by shape as well as by colour."""
    class_ = f"fill{colour % COLOUR_COUNT}"
    if not POINT_CORNERS.get(shape):
        return draw_shape("circle", class_, tooltip, cx=x, cy=y, r=radius)
    corners = ((format_pixel(x + dx * radius), format_pixel(y + dy * radius)) for dx, dy in POINT_CORNERS[shape])
    title = tag("title", escape_unprintable(tooltip)) if tooltip else None
    return tag("polygon", title, class_=class_, points=" ".join(map(",".join, corners)))


def _draw_whisker(a: Place, b: Place, class_: str = "bar-interval") -> list[Html]:
    """Draw an error bar: a horizontal or upright line with a cap at each end."""
    dx, dy = (0.0, CAP) if a[1] == b[1] else (CAP, 0.0)
    caps = [draw_line(x - dx, y - dy, x + dx, y + dy, class_) for x, y in (a, b)]
    return [draw_line(*a, *b, class_), *caps]


def _list_ends(
    values: Sequence[float], expanded: Sequence[float | None] | None, *, signed: bool = False
) -> list[float]:
    """List the lower and upper ends of all intervals."""
    pairs = zip(values, expanded or [0.0] * len(values), strict=True)
    return [end for v, u in pairs for end in (get_lower_end(v, u or 0.0, signed=signed), v + (u or 0.0))]


def _list_bar_ends(chart: BarChart) -> list[float]:
    ends = _list_ends([b.value for b in chart.bars], [b.expanded for b in chart.bars], signed=chart.is_signed)
    return [*ends, *([chart.level] if chart.level is not None else [])]


def _make_lying_frame(
    chart: BarChart | StackChart, x: ChartAxis, keys: Sequence[LegendKey], width: float
) -> ChartFrame:
    """Make a frame that is as high as its bars need, with room at the right for their texts.

    The names of the bars are at the left, or above the bars if the picture is narrow.
    """
    last = len(chart.bars) - 1  # the first bar is on top
    is_narrow = width <= PHONE_WIDTH
    letters = int((width - 3 * MARGIN) / LETTER) if is_narrow else BAR_LABEL_LETTERS
    labels = [fmt.shorten_middle(bar.label, letters) for bar in chart.bars]
    ticks = () if is_narrow else tuple((float(last - k), label) for k, label in enumerate(labels))
    y = ChartAxis("", -0.5, last + 0.5, ticks, has_grid=False)
    right = max((measure_text(b.text) for b in chart.bars), default=0.0) + 18
    top = ChartFrame("", "", x, y, width=width, right=right, keys=keys).top
    height = top + (ROW + (LINE if is_narrow else 0)) * len(chart.bars) + LINE + 12 + (LINE if x.label else 0)
    names = labels if is_narrow else ()
    layout: Any = {"width": width, "height": height, "right": right, "keys": keys, "row_names": names}
    return ChartFrame(chart.title, chart.description, x, y, is_lying=True, **layout)


def _make_colour_keys(names: Sequence[str]) -> list[LegendKey]:
    return [LegendKey(name, k) for k, name in enumerate(names)]


def _draw_bars(chart: BarChart, width: float) -> Html:
    x = make_axis(chart.label, _list_bar_ends(chart), from_zero=not chart.is_dotted, most_ticks=round(width / 110))
    frame = _make_lying_frame(chart, x, [*_make_colour_keys(chart.keys), *_list_mark_keys(chart)], width)
    shapes: list[Html] = []
    if chart.level is not None:
        level = frame.x(chart.level)
        shapes.append(draw_line(level, frame.top, level, frame.bottom, "axis"))
    for k, bar in enumerate(chart.bars):
        y, end = frame.y(len(chart.bars) - 1 - k), frame.x(bar.value)
        if chart.is_dotted:
            shapes.append(draw_mark("dot", end, y, bar.colour, 9))
        else:
            shapes.append(_draw_bar(frame.x(0.0), end, y, bar.colour, f"{bar.label}: {bar.text}"))
        if bar.expanded:
            low, high = _list_ends([bar.value], [bar.expanded], signed=chart.is_signed)
            shapes += _draw_whisker((frame.x(low), y), (frame.x(high), y))
        if bar.mark:
            shapes.append(draw_mark(MARK_SHAPES[bar.mark], end, y, bar.colour, 14))
        shapes.append(draw_text(frame.right + 8, y + 4, bar.text))
    return frame.draw(*shapes)


def _draw_bar(start: float, end: float, y: float, colour: int, tooltip: str) -> Html:
    fill = f"fill{colour % COLOUR_COUNT}"
    return draw_rect(min(start, end), y - BAR / 2, abs(end - start), BAR, fill, tooltip)


def _draw_upright_bars(chart: BarChart, width: float) -> Html:
    y = make_axis(chart.label, _list_bar_ends(chart), from_zero=True)
    names = make_named_axis("", [fmt.shorten_middle(b.label, BAR_LABEL_LETTERS) for b in chart.bars])
    keys = _make_colour_keys(chart.keys)
    frame = ChartFrame(chart.title, chart.description, names, y, keys=keys, width=width, height=280)
    room = (frame.right - frame.left) / max(len(chart.bars), 1)
    thick = min(max(room * 0.7, 1.0), 56.0)
    shapes: list[Html] = []
    for k, bar in enumerate(chart.bars):
        x, zero, end = frame.x(k), frame.y(0.0), frame.y(bar.value)
        box = (x - thick / 2, min(zero, end), thick, abs(end - zero))
        shapes.append(draw_rect(*box, f"fill{bar.colour % COLOUR_COUNT}", f"{bar.label}: {bar.text}"))
        if bar.expanded and room >= 5:  # closer ones would be a grey cloud; the table has all intervals
            low, high = _list_ends([bar.value], [bar.expanded], signed=chart.is_signed)
            shapes += _draw_whisker((x, frame.y(low)), (x, frame.y(high)))
    if chart.level is not None:
        level = frame.y(chart.level)
        shapes.append(draw_line(frame.left, level, frame.right, level, "axis"))
    return frame.draw(*shapes)


def _draw_stack(chart: StackChart, width: float) -> Html:
    """Draw stacked bars; parts below 0 have no length."""
    sums = [sum(max(p.value, 0.0) for p in bar.parts) for bar in chart.bars]
    x = make_axis(chart.label, sums, from_zero=True, most_ticks=round(width / 110))
    keys = [LegendKey(name, chart.get_colour(k)) for k, name in enumerate(chart.keys)]
    frame = _make_lying_frame(chart, x, keys, width)
    shapes: list[Html] = []
    for k, bar in enumerate(chart.bars):
        y, at = frame.y(len(chart.bars) - 1 - k), 0.0
        for part in bar.parts:
            end = at + max(part.value, 0.0)
            tooltip = f"{bar.label}, {chart.keys[part.key]}: {part.text}"
            shapes.append(_draw_bar(frame.x(at), frame.x(end), y, chart.get_colour(part.key), tooltip))
            at = end
        if bar.expanded:
            high = min(frame.x(at + bar.expanded), frame.right)
            shapes += _draw_whisker((frame.x(get_lower_end(at, bar.expanded)), y), (high, y))
        shapes.append(draw_text(frame.right + 8, y + 4, bar.text))
    return frame.draw(*shapes)


def _draw_histogram(chart: HistogramChart, width: float) -> Html:
    values = [*chart.edges, *(v for _, v in chart.marks)]
    x = make_axis(chart.label, values, room=0.02, most_ticks=round(width / 80))
    y = make_axis("share of time, %", chart.shares, from_zero=True, most_ticks=5)
    keys = [LegendKey(name, k + 1, "line") for k, (name, _) in enumerate(chart.marks)]
    frame = ChartFrame(chart.title, chart.description, x, y, keys=keys, width=width, height=260)
    shapes: list[Html] = []
    for low, high, share in zip(chart.edges, chart.edges[1:], chart.shares, strict=False):
        if share > 0:
            top = min(frame.y(share), frame.bottom - 1)
            wide = max(frame.x(high) - frame.x(low) - 0.5, 0.5)
            shapes.append(draw_rect(frame.x(low), top, wide, frame.bottom - top, "fill0"))
    for k, (_, value) in enumerate(chart.marks):
        at = frame.x(value)
        shapes.append(draw_line(at, frame.top, at, frame.bottom, f"line{(k + 1) % COLOUR_COUNT}"))
    return frame.draw(*shapes)


def _draw_curves(chart: CurveChart, width: float, height: float) -> Html:
    x, y = _make_curve_axes(chart, most_ticks=min(round(width / 50), 10))
    shapes_of = [POINT_SHAPES[k % len(POINT_SHAPES)] for k in range(len(chart.curves))]
    keys = [LegendKey(c.label, k, shapes_of[k]) for k, c in enumerate(chart.curves) if c.label and c.x]
    keys = [*(keys if len(chart.curves) > 1 else []), *_list_mark_keys(chart)]  # a single curve is named by the title
    title, description = chart.full_title or chart.y_label, describe_curves(chart)
    frame = ChartFrame(title, description, x, y, width=width, height=height, keys=keys)
    missing = LEAST_CURVE_BOX - (frame.bottom - frame.top)
    if missing > 0:  # a long legend makes the picture higher, not the curves flatter
        frame = ChartFrame(title, description, x, y, width=width, height=height + missing, keys=keys)
    shapes: list[Html] = []
    if chart.level is not None:
        shapes.append(draw_line(frame.left, frame.y(chart.level), frame.right, frame.y(chart.level), "axis"))
    counts = chart.list_counts()
    if chart.name == "speed-up" and len(counts) > 1:
        (x1, y1), (x2, y2) = [(frame.x(n), frame.y(n / counts[0])) for n in (counts[0], counts[-1])]
        shapes += [draw_line(x1, y1, x2, y2, "rule-reference"), draw_text(x2 - 8, y2 + 2, "ideal", anchor="end")]
    placed = [(k, curve, _place_points(frame, chart, k)) for k, curve in enumerate(chart.curves)]
    for k, curve, places in placed:  # marks around points would hide curves: they lie below all of them
        shapes += [draw_mark("ring", *places[i], k, MARK_SIZE) for i in curve.tied]
        if curve.reference is not None:
            shapes.append(draw_mark("square", *places[curve.reference], k, MARK_SIZE))
    for k, curve, places in placed:
        shapes += _draw_curve(frame, chart, curve, places, k)
    for k, curve, places in placed:
        if curve.best is not None:
            shapes.append(draw_mark("star", *places[curve.best], k, MARK_SIZE))
    if chart.is_pareto:
        shapes += _draw_fronts(frame, chart)
    return frame.draw(*shapes)


def _make_curve_axes(chart: CurveChart, most_ticks: int) -> tuple[ChartAxis, ChartAxis]:
    ys = [v for c in chart.curves for v in _list_ends(c.y, c.expanded, signed=chart.is_signed)]
    if chart.level is not None:
        ys.append(chart.level)
    counts = chart.list_counts()
    if chart.ticks is not None:
        x = make_named_axis(chart.x_label, chart.ticks)
    elif counts:
        spare = max((counts[-1] - counts[0]) * 0.05, 0.5)
        ticks = tuple((v, fmt.format_amount(v)) for v in counts)
        ys += [counts[-1] / counts[0]] if chart.name == "speed-up" else []
        x = ChartAxis(chart.x_label, counts[0] - spare, counts[-1] + spare, ticks)
    else:
        xs = [v for c in chart.curves for v in _list_ends(c.x, c.x_expanded)]
        x = make_axis(chart.x_label, xs, most_ticks=most_ticks)
    return x, make_axis(chart.y_label, ys)


def _list_mark_keys(chart: CurveChart | BarChart) -> list[LegendKey]:
    """List the legend of the marks that occur."""
    return [LegendKey(name, 0, MARK_SHAPES[mark]) for mark, name in chart.list_marks().items()]


def describe_curves(chart: CurveChart) -> str:
    """Describe a chart in words for people who do not see it."""
    sentences = [f"{chart.y_label} against {chart.x_label or 'cells'}."]
    curves = [curve for curve in chart.curves if curve.x]
    for curve in curves[:DESCRIBED_CURVES]:
        low, high = (fmt.format_number(pick(curve.y)) for pick in (min, max))
        best = "" if curve.best is None else f", best at {_name_place(chart, curve.x[curve.best])}"
        sentences.append(f"{curve.label or 'Cells'}: {low} to {high}{best}.")
    if len(curves) > DESCRIBED_CURVES:
        sentences.append(f"And {len(curves) - DESCRIBED_CURVES} more.")
    return " ".join(filter(None, [*sentences, chart.caption]))


def _name_place(chart: CurveChart, x: float) -> str:
    if chart.ticks is not None and 0 <= x < len(chart.ticks):
        return chart.ticks[round(x)]
    return fmt.format_number(x)


def _place_points(frame: ChartFrame, chart: CurveChart, k: int) -> list[Place]:
    """Return the pixels of the points of a curve. Curves with long error bars are shifted, if there is room."""
    curve, count = chart.curves[k], len(chart.curves)
    xs = sorted({frame.x(x) for c in chart.curves for x in c.x})
    nearest = min((b - a for a, b in pairwise(xs)), default=frame.right - frame.left)
    longest = max((frame.y(0) - frame.y(u) for c in chart.curves for u in c.expanded or ()), default=0.0)
    shifts = chart.is_joined and longest > LONG_BAR and nearest >= 2 * SHIFT * count
    shift = (k - (count - 1) / 2) * SHIFT if shifts else 0.0
    return [(frame.x(x) + shift, frame.y(y)) for x, y in zip(curve.x, curve.y, strict=True)]


def _draw_curve(frame: ChartFrame, chart: CurveChart, curve: ChartCurve, places: list[Place], k: int) -> list[Html]:
    class_, shape = f"line{k % COLOUR_COUNT}", POINT_SHAPES[k % len(POINT_SHAPES)]
    shapes: list[Html] = []
    if chart.is_joined:
        dash = DASHES[(k + k // len(POINT_SHAPES)) % len(DASHES)]
        joined = [place for i, place in enumerate(places) if i not in curve.uncapped]
        shapes.append(draw_path(joined, class_, dash=dash))
    for i, (x, y) in enumerate(places):
        if curve.expanded:
            low, high = _list_ends(curve.y[i : i + 1], curve.expanded[i : i + 1], signed=chart.is_signed)
            shapes += _draw_whisker((x, frame.y(low)), (x, frame.y(high)), class_)
        if curve.x_expanded:
            low, high = _list_ends(curve.x[i : i + 1], curve.x_expanded[i : i + 1])
            shapes += _draw_whisker((frame.x(low), y), (frame.x(high), y), class_)
    for i in curve.uncapped:
        title = tag("title", escape_unprintable(_word_point(chart, curve, i)))
        shapes.append(tag("g", title, draw_mark("open", *places[i], k)))
    filled = [(i, at) for i, at in enumerate(places) if i not in curve.uncapped]
    return [*shapes, *(draw_point(shape, *at, k, _word_point(chart, curve, i)) for i, at in filled)]


def _word_point(chart: CurveChart, curve: ChartCurve, i: int) -> str:
    """Word the tooltip of a point."""
    wide = curve.expanded[i] if curve.expanded else 0.0
    y = curve.y[i]
    value = format_point(y, wide)
    if curve.names:
        return f"{curve.names[i]}: {chart.y_label} {value}"
    place = " ".join(filter(None, (chart.x_label, _name_place(chart, curve.x[i]))))
    return f"{', '.join(filter(None, (curve.label, place)))}: {chart.y_label} {value}"


def _draw_fronts(frame: ChartFrame, chart: CurveChart) -> list[Html]:
    """Draw the Pareto fronts and name their points, as many as can be read."""
    shapes: list[Html] = []
    places = [(frame.x(x), frame.y(y)) for c in chart.curves for x, y in zip(c.x, c.y, strict=True)]
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    for front in chart.list_fronts():
        points = [(frame.x(x), frame.y(y), name) for x, y, name in front]
        shapes.append(draw_path([(x, y) for x, y, _ in points], "bar-interval"))
        some = points[:: max(-(-len(points) // FRONT_LABELS), 1)]
        for x, y, name in dict.fromkeys([*some[:1], *points[-1:], *some]):  # the ends come first
            shapes += _draw_name(frame, (x, y), name, taken)
    return shapes


def _draw_name(frame: ChartFrame, at: Place, name: str, taken: list[Box]) -> list[Html]:
    """Draw a name beside its point where there is free room; nothing if there is none."""
    wide = measure_text(name)
    for dx, dy, anchor in NAME_PLACES:
        x, y = at[0] + dx, at[1] + dy
        left = x if anchor == "start" else x - wide
        a = (left, y - 10, left + wide, y + 2)
        is_free = not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in taken)
        if is_free and frame.left <= a[0] and a[2] <= frame.right and frame.top <= a[1] and a[3] <= frame.bottom:
            taken.append(a)
            return [draw_text(x, y, name, anchor=anchor)]
    return []


def _draw_heat_map(chart: HeatMap, most_width: float) -> Html:
    tiles = [tile for row in chart.tiles for tile in row if tile is not None]
    widest = max((measure_text(tile.text) for tile in tiles), default=0.0)
    if most_width <= PHONE_WIDTH and len(chart.columns) > len(chart.rows):
        chart = _turn_map(chart)
    count = max(len(chart.columns), 1)
    tile_width = max(TILE if count <= WIDE_TILES else TILE / 2, widest + 8)
    x, y = make_named_axis(chart.x_label, chart.columns), make_named_axis(chart.y_label, chart.rows)
    left = measure_left(y)
    beside_scale = measure_text(chart.low) + measure_text(chart.high) + 16
    scale_width = max(min(SCALE_WIDTH, most_width - left - beside_scale - 2 * MARGIN), LEAST_SCALE)
    width = left + max(count * tile_width, scale_width + beside_scale) + 2 * MARGIN
    description = f"{chart.title} over {chart.x_label} and {chart.y_label}, from {chart.low} to {chart.high}."
    description = " ".join([description, *(f"Best: {t.tooltip}." for t in tiles if t.mark == "best")])
    layout: Any = {"width": width, "right": width - left - count * tile_width, "extra_top": 22.0}
    around = ChartFrame("", "", x, y, height=0.0, **layout)  # bottom: minus the room that the names need
    height = around.top + len(chart.rows) * TILE_HEIGHT - around.bottom
    frame = ChartFrame(chart.title, description, x, y, height=height, **layout)
    start, step = left + measure_text(chart.low) + 8, scale_width / SCALE_STEPS
    shapes = [draw_text(left, MARGIN + 10, chart.low), draw_text(start + scale_width + 8, MARGIN + 10, chart.high)]
    for k, class_ in enumerate(_get_heat_class(k / (SCALE_STEPS - 1)) for k in range(SCALE_STEPS)):
        shapes.append(draw_rect(start + k * step, MARGIN, step, 12, class_))
    for k, row in enumerate(chart.tiles):
        for j, tile in enumerate(row):
            shapes += _draw_tile(tile, frame.x(j - 0.5), frame.y(k + 0.5), tile_width)
    return frame.draw(*shapes)


def _turn_map(chart: HeatMap) -> HeatMap:
    """Exchange the axes of a heat map."""
    return replace(
        chart,
        x_label=chart.y_label,
        y_label=chart.x_label,
        columns=chart.rows,
        rows=chart.columns,
        tiles=tuple(zip(*chart.tiles, strict=True)),
    )


def _get_heat_class(share: float) -> str:
    return f"heat heat{min(max(round(share * (SCALE_STEPS - 1)), 0), SCALE_STEPS - 1)}"


def _draw_tile(tile: HeatTile | None, x: float, y: float, width: float) -> list[Html]:
    if tile is None:
        return [draw_rect(x + 1, y + 1, width - 2, TILE_HEIGHT - 2, "empty-tile", "has not run")]
    shapes = [draw_rect(x, y, width, TILE_HEIGHT, _get_heat_class(tile.share), tile.tooltip)]
    if tile.mark:
        shapes.append(draw_mark(MARK_SHAPES[tile.mark], x + width - 8, y + 8, 0, 7.0))
    base = y + TILE_HEIGHT / 2 + (8 if tile.mark else 4)
    return [*shapes, draw_text(x + width / 2, base, tile.text, anchor="middle")]
