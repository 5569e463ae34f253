"""Draw charts as SVG that a page holds: scales, axes, legends. Pure.

Colours are classes, so that light and dark are for the style sheet to say. A chart has a title and a description for
those who do not see it, and needs no script.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.text import escape_unprintable
from joulelab.report.html import Html, joined, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

COLOURS = 8  # fill0 to fill7, line0 to line7
FONT = 12.0
LETTER = 7.1  # mean width of a letter at that size, in the wider of the usual fonts
WIDTH, HEIGHT = 720.0, 320.0
MARGIN = 8.0
SWATCH = 11.0
LINE = 17.0  # height of a line of a legend
# Corners of the points of curves, in half widths from the middle; a circle has none.
POINTS: dict[str, tuple[tuple[float, float], ...]] = {
    "circle": (),
    "triangle": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    "cube": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "turned": ((0, 1.2), (1.1, -0.9), (-1.1, -0.9)),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """Hold one axis: its range, and where ticks stand with what is written at them."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    grid: bool = True


@dataclass(frozen=True, slots=True)
class Key:
    """Hold one line of a legend: what a colour or a mark stands for; `shape` is box, line, star, ring or square."""

    label: str
    colour: int = 0
    shape: str = "box"


def axis_of(label: str, values: Iterable[float], *, zero: bool = False, most: int = 6, room: float = 0.04) -> Axis:
    """Return an axis of numbers that holds all finite values, with room at its ends; from or through 0 on request."""
    given = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(given), max(given)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        width = abs(high) * 0.1 or 1.0
        low, high = (low - width, high + width) if not zero or low else (low, high + width)
    spare = (high - low) * room
    low, high = (low if zero and low == 0 else low - spare), (high if zero and high == 0 else high + spare)
    step = step_of(high - low, most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(label, low, high, tuple((k * step, tick_text(k * step, step)) for k in range(first, last + 1)))


def named_axis(label: str, names: Sequence[str]) -> Axis:
    """Return an axis with a name at each whole number from 0."""
    return Axis(label, -0.5, len(names) - 0.5, tuple((float(k), n) for k, n in enumerate(names)), grid=False)


def step_of(width: float, most: int) -> float:
    """Return the step of 1, 2 or 5 times a power of ten that gives at most so many ticks over a width."""
    least = width / max(most, 1)
    power = 10.0 ** math.floor(math.log10(least))
    return next((m * power for m in (1, 2, 5) if m * power >= least * (1 - 1e-9)), 10 * power)


def tick_text(value: float, step: float) -> str:
    """Return what is written at a tick: as many decimals as its step has."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    text = f"{value:.{min(decimals, 12)}f}"
    return text.lstrip("-") if float(text) == 0 else text


def width_of(text: str, size: float = FONT) -> float:
    """Return about how wide a text is drawn."""
    return len(text) * LETTER * size / FONT


def n(value: float) -> str:
    """Return a coordinate with a tenth of a pixel, 0 for what is not finite."""
    return f"{value if math.isfinite(value) else 0.0:.1f}".removesuffix(".0")


def text(x: float, y: float, said: str, *, anchor: str = "start", class_: str = "label", turn: float = 0.0) -> Html:
    """Return a text at a place; anchor is start, middle or end; turned by degrees around its place."""
    turned = f"rotate({n(turn)} {n(x)} {n(y)})" if turn else None
    shown = escape_unprintable(said)
    return tag("text", shown, class_=class_, x=n(x), y=n(y), text_anchor=anchor, transform=turned)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    """Return a straight line."""
    return tag("line", class_=class_, x1=n(x1), y1=n(y1), x2=n(x2), y2=n(y2))


def rect(x: float, y: float, width: float, height: float, class_: str, said: str = "") -> Html:
    """Return a box; `said` is shown by browsers when it is pointed at."""
    about = tag("title", escape_unprintable(said)) if said else None
    size = {"width": n(max(width, 0.0)), "height": n(max(height, 0.0))}
    return tag("rect", about, class_=class_, x=n(x), y=n(y), **size)


def path(points: Sequence[tuple[float, float]], class_: str, *, closed: bool = False) -> Html:
    """Return a line through points; where one is not finite it is interrupted."""
    pieces, pen = [], "M"
    for x, y in points:
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        pieces.append(f"{pen}{n(x)} {n(y)}")
        pen = "L"
    end = "Z" if closed and pieces else ""
    return tag("path", class_=class_, d="".join(pieces) + end)


def colour(k: int) -> int:
    """Return the number of the colour of the k-th thing."""
    return k % COLOURS


class Frame:
    """Hold the box that a chart is drawn in: `x()` and `y()` turn values into places, `drawn()` makes the SVG.

    Margins are made from the texts that stand there, so that none is cut off; the right one is at least `right` pixels
    wide. Names under the axis are turned where they do not fit beside each other. `lying` ones have bars that lie.
    """

    def __init__(
        self,
        title: str,
        about: str,
        x: Axis,
        y: Axis,
        *,
        width: float = WIDTH,
        height: float = HEIGHT,
        keys: Sequence[Key] = (),
        right: float = 0.0,
        lying: bool = False,
    ) -> None:
        self.title, self.about, self.axes, self.keys = title, about, (x, y), tuple(keys)
        self.width, self.height, self.lying = width, height, lying
        widest = max((width_of(t) for _, t in y.ticks), default=0.0)
        self.left = MARGIN + widest + 6 + (LINE if y.label else 0)
        self.right = width - max(MARGIN + 8, right)
        self._lines = _legend_lines(self.keys, self.right - self.left)
        self.top = MARGIN + LINE * len(self._lines) + (4 if self._lines else 0)
        names = [t for _, t in x.ticks]
        apart = (self.right - self.left) / max(len(names), 1)
        self.turned = bool(names) and max(map(width_of, names)) + 6 > apart
        if self.turned:
            self.axes = (replace(x, ticks=_thinned(x.ticks, self.right - self.left)), y)
        under = 0.6 * max(map(width_of, names)) + LINE if self.turned else LINE + 4 if names else MARGIN
        self.bottom = height - MARGIN - under - (LINE if x.label else 0)

    def x(self, value: float) -> float:
        """Return where a value lies from left to right."""
        axis = self.axes[0]
        return self.left + (value - axis.low) / (axis.high - axis.low) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return where a value lies from top to bottom: larger ones are higher."""
        axis = self.axes[1]
        return self.bottom - (value - axis.low) / (axis.high - axis.low) * (self.bottom - self.top)

    def drawn(self, *shapes: object) -> Html:
        """Return the chart: grid below the shapes, axes and legend above them."""
        parts = [*self._grid(), *shapes, *self._axes(), *legend(self._lines, self.left)]
        return svg(self.title, self.about, self.width, self.height, *parts)

    def _grid(self) -> list[Html]:
        x, y = self.axes
        upright = [line(self.x(v), self.top, self.x(v), self.bottom, "grid") for v, _ in x.ticks if x.grid]
        return upright + [line(self.left, self.y(v), self.right, self.y(v), "grid") for v, _ in y.ticks if y.grid]

    def _base(self) -> Html:
        """Return the line that bars stand on: at 0 where that is in sight."""
        x, y = self.axes
        if self.lying:
            base = self.x(0.0) if x.low <= 0 <= x.high else self.left
            return line(base, self.top, base, self.bottom, "axis")
        base = self.y(0.0) if y.low <= 0 <= y.high else self.bottom
        return line(self.left, base, self.right, base, "axis")

    def _axes(self) -> list[Html]:
        x, y = self.axes
        shapes = [self._base()]
        for value, name in x.ticks:
            at = self.x(value)
            if self.turned:
                shapes.append(text(at + 4, self.bottom + 14, name, anchor="end", turn=-35))
            else:
                shapes.append(text(at, self.bottom + 16, name, anchor="middle"))
        shapes += [text(self.left - 6, self.y(v) + 4, name, anchor="end") for v, name in y.ticks]
        if x.label:
            shapes.append(text((self.left + self.right) / 2, self.height - MARGIN, x.label, anchor="middle"))
        if y.label:
            shapes.append(text(MARGIN + 10, (self.top + self.bottom) / 2, y.label, anchor="middle", turn=-90))
        return shapes


def svg(title: str, about: str, width: float, height: float, *shapes: object) -> Html:
    """Return an SVG image with its title and description."""
    inner = joined([tag("title", escape_unprintable(title)), tag("desc", escape_unprintable(about)), *shapes])
    box = f"0 0 {n(width)} {n(height)}"
    return tag("svg", inner, class_="chart", role="img", viewBox=box, width=n(width), height=n(height))


def legend(lines: Sequence[Sequence[tuple[float, Key]]], left: float, top: float = MARGIN) -> list[Html]:
    """Return a legend of lines of keys, each at its distance from the left."""
    shapes: list[Html] = []
    for k, keys in enumerate(lines):
        y = top + k * LINE
        for offset, key in keys:
            shapes.append(mark(key.shape, left + offset + SWATCH / 2, y + SWATCH / 2, key.colour))
            shapes.append(text(left + offset + SWATCH + 5, y + SWATCH - 1, key.label))
    return shapes


def mark(shape: str, x: float, y: float, k: int, size: float = SWATCH) -> Html:
    """Return a mark around a place: box, line, dot, star (best), ring (tied) or square (reference)."""
    half, number = size / 2, colour(k)
    if shape in POINTS:
        return joined([line(x - half, y, x + half, y, f"line{number}"), point(shape, x, y, k)])
    if shape == "line":
        return line(x - half, y, x + half, y, f"line{number}")
    if shape == "dot":
        return tag("circle", class_=f"fill{number}", cx=n(x), cy=n(y), r=n(half))
    if shape == "ring":
        return tag("circle", class_=f"mark-tied line{number}", cx=n(x), cy=n(y), r=n(half))
    if shape == "square":
        return rect(x - half, y - half, size, size, f"mark-reference line{number}")
    if shape == "star":
        return path(_star(x, y, half * 1.3), f"mark-best fill{number}", closed=True)
    return rect(x - half, y - half, size, size, f"fill{number}")


def point(shape: str, x: float, y: float, k: int, said: str = "", r: float = 3.6) -> Html:
    """Return a point of a curve: a circle, or one of the shapes by which curves are told apart without colours."""
    about, filled = tag("title", escape_unprintable(said)) if said else None, f"fill{colour(k)}"
    if shape not in POINTS or not POINTS[shape]:
        return tag("circle", about, class_=filled, cx=n(x), cy=n(y), r=n(r))
    corners = " ".join(f"{n(x + dx * r)},{n(y + dy * r)}" for dx, dy in POINTS[shape])
    return tag("polygon", about, class_=filled, points=corners)


def _star(x: float, y: float, radius: float) -> list[tuple[float, float]]:
    reach = [radius if k % 2 == 0 else radius * 0.45 for k in range(10)]
    turns = [math.pi * k / 5 - math.pi / 2 for k in range(10)]
    return [(x + r * math.cos(a), y + r * math.sin(a)) for r, a in zip(reach, turns, strict=True)]


def _legend_lines(keys: Sequence[Key], room: float) -> list[list[tuple[float, Key]]]:
    """Return the keys in lines that fit, each with its distance from the left."""
    lines: list[list[tuple[float, Key]]] = []
    at = 0.0
    for key in keys:
        wide = SWATCH + 5 + width_of(escape_unprintable(key.label)) + 16
        if not lines or at + wide > room:
            lines.append([])
            at = 0.0
        lines[-1].append((at, key))
        at += wide
    return lines


def _thinned(ticks: tuple[tuple[float, str], ...], room: float) -> tuple[tuple[float, str], ...]:
    """Return as many of the ticks as can be written turned, evenly."""
    every = math.ceil(len(ticks) * LINE / max(room, LINE))
    return ticks[::every]
