"""Draw the panels and maps of studies as SVG: curves with bars, best cells, Pareto fronts, maps of two knobs. Pure."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.charts.model import lower_end
from joulelab.report.charts.svg import (
    FONT,
    MARGIN,
    POINTS,
    SWATCH,
    Axis,
    Frame,
    Key,
    axis_of,
    colour,
    line,
    mark,
    n,
    named_axis,
    path,
    point,
    rect,
    svg,
    text,
    width_of,
)
from joulelab.report.html import Html, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.report.charts.heat import Heat, Tile
    from joulelab.report.study_curves import Curve, Panel

    Box = tuple[float, float, float, float]  # left, top, right, bottom

WIDTH, HEIGHT = 720.0, 380.0
LEAST_HEIGHT = 260.0  # of the box that curves are in, whatever stands around it
DASHES = (None, "6 3", "8 3 2 3", "2 3")
SHAPES = tuple(POINTS)
MARK = 15.0  # width of what is around a point
CAP, APART, LONG = 3.5, 4.0, 6.0  # half width of the ends of bars; how far apart they stand if longer than that
MOST_LABELS = 12
# Where a name may stand beside its point, the best place first.
BESIDE = ((9, -5, "start"), (12, 4, "start"), (-9, 13, "end"), (9, 14, "start"), (-9, -5, "end"), (-12, 4, "end"))
MOST_TOLD = 8  # curves that a description tells one by one
TILE, TILE_HEIGHT, MOST_TILES = 44.0, 34.0, 24
STEPS = 10  # colours of a map
SCALE = 160.0  # width of the scale of a map


def draw_panel(panel: Panel, *, width: float = WIDTH, height: float = HEIGHT) -> Html:
    """Return a panel as SVG."""
    x, y = _axes(panel)
    keys = [
        Key(curve.label, k, SHAPES[k % len(SHAPES)]) for k, curve in enumerate(panel.curves) if curve.label and curve.x
    ]
    keys += _mark_keys(panel)
    title = panel.title or panel.y_label
    frame = Frame(title, _told(panel), x, y, width=width, height=height, keys=keys)
    short = LEAST_HEIGHT - (frame.bottom - frame.top)
    if short > 0:  # a long legend takes its room from the page, not from the curves
        frame = Frame(title, _told(panel), x, y, width=width, height=height + short, keys=keys)
    shapes: list[Html] = []
    if panel.level is not None:
        shapes.append(line(frame.left, frame.y(panel.level), frame.right, frame.y(panel.level), "axis"))
    shapes += _ideal(frame, panel)
    placed = [(k, curve, _places(frame, panel, k)) for k, curve in enumerate(panel.curves)]
    # What is around a point would hide other curves: it lies below all of them.
    shapes += [shape for k, curve, places in placed for shape in _around(curve, places, k)]
    shapes += [shape for k, curve, places in placed for shape in _curve(frame, panel, curve, places, k)]
    shapes += [mark("star", *places[curve.best], k, MARK) for k, curve, places in placed if curve.best is not None]
    if panel.name == "pareto":
        shapes += _front(frame, panel)
    return frame.drawn(*shapes)


def _axes(panel: Panel) -> tuple[Axis, Axis]:
    xs = [v for c in panel.curves for v in _reach(c.x, c.x_bars)]
    ys = [v for c in panel.curves for v in _reach(c.y, c.bars, signed=panel.level is not None)]
    if panel.level is not None:
        ys.append(panel.level)
    if panel.ticks is not None:
        return named_axis(panel.x_label, panel.ticks), axis_of(panel.y_label, ys)
    counts = sorted({v for c in panel.curves for v in c.x})
    if panel.x_label == "GPUs" and counts:
        spare = max((counts[-1] - counts[0]) * 0.05, 0.5)
        ticks = tuple((v, fmt.format_amount(v)) for v in counts)
        ys += [counts[-1] / counts[0]] if panel.name == "speed-up" else []
        return Axis(panel.x_label, counts[0] - spare, counts[-1] + spare, ticks), axis_of(panel.y_label, ys)
    return axis_of(panel.x_label, xs, most=10), axis_of(panel.y_label, ys)


def _reach(values: Sequence[float], bars: Sequence[float] | None, *, signed: bool = False) -> list[float]:
    pairs = list(zip(values, bars or [0.0] * len(values), strict=True))
    return [end for v, b in pairs for end in (lower_end(v, b, signed=signed), v + b)]


def _mark_keys(panel: Panel) -> list[Key]:
    """Return what marks stand for, of those that are there."""
    star, ring = ("", "behind the front only within the uncertainty") if panel.name == "pareto" else ("best", "")
    keys = []
    if star and any(c.best is not None for c in panel.curves):
        keys.append(Key(star, 0, "star"))
    if any(c.tied for c in panel.curves):
        keys.append(Key(ring or "no significant difference from it", 0, "ring"))
    if any(c.reference is not None for c in panel.curves):
        keys.append(Key("reference", 0, "square"))
    return keys


def _told(panel: Panel) -> str:
    """Return a panel in words, for those who do not see it."""
    said = [f"{panel.y_label} against {panel.x_label or 'cells'}."]
    there = [curve for curve in panel.curves if curve.x]
    for curve in there[:MOST_TOLD]:
        low, high = (fmt.format_number(pick(curve.y)) for pick in (min, max))
        best = "" if curve.best is None else f", best at {_place(panel, curve.x[curve.best])}"
        said.append(f"{curve.label or 'Cells'}: {low} to {high}{best}.")
    more = len(there) - MOST_TOLD
    if more > 0:
        said.append(f"And {more} more.")
    return " ".join([*said, panel.note])


def _place(panel: Panel, x: float) -> str:
    if panel.ticks is not None and 0 <= x < len(panel.ticks):
        return panel.ticks[round(x)]
    return fmt.format_number(x)


def _places(frame: Frame, panel: Panel, k: int) -> list[tuple[float, float]]:
    """Return where the points of a curve lie; long bars at one place stand a little apart, where there is room."""
    curve, many = panel.curves[k], len(panel.curves)
    along = sorted({frame.x(x) for c in panel.curves for x in c.x})
    nearest = min((b - a for a, b in pairwise(along)), default=frame.right - frame.left)
    longest = max((frame.y(0) - frame.y(b) for c in panel.curves for b in c.bars or ()), default=0.0)
    apart = APART if panel.joined and longest > LONG and nearest >= 2 * APART * many else 0.0
    shift = (k - (many - 1) / 2) * apart
    return [(frame.x(x) + shift, frame.y(y)) for x, y in zip(curve.x, curve.y, strict=True)]


def _around(curve: Curve, places: Sequence[tuple[float, float]], k: int) -> list[Html]:
    shapes = [mark("ring", *places[i], k, MARK) for i in curve.tied]
    return shapes if curve.reference is None else [*shapes, mark("square", *places[curve.reference], k, MARK)]


def _curve(frame: Frame, panel: Panel, curve: Curve, places: Sequence[tuple[float, float]], k: int) -> list[Html]:
    number, signed = colour(k), panel.level is not None
    shapes: list[Html] = []
    if panel.joined:
        along = "".join(f"{'L' if i else 'M'}{n(x)} {n(y)}" for i, (x, y) in enumerate(places))
        dash = DASHES[(k + k // len(SHAPES)) % len(DASHES)]
        shapes.append(tag("path", class_=f"line{number}", d=along, fill="none", stroke_dasharray=dash))
    for i, (x, y) in enumerate(places):
        if curve.bars:
            low, high = (frame.y(end) for end in _reach(curve.y[i : i + 1], curve.bars[i : i + 1], signed=signed))
            shapes += _bar(number, (x, low), (x, high), (CAP, 0.0))
        if curve.x_bars:
            left, right = (frame.x(end) for end in _reach(curve.x[i : i + 1], curve.x_bars[i : i + 1]))
            shapes += _bar(number, (left, y), (right, y), (0.0, CAP))
    drawn = [point(SHAPES[k % len(SHAPES)], *at, number, _said(panel, curve, i)) for i, at in enumerate(places)]
    return [*shapes, *drawn]


def _bar(number: int, a: tuple[float, float], b: tuple[float, float], end: tuple[float, float]) -> list[Html]:
    dx, dy = end
    ends = [line(x - dx, y - dy, x + dx, y + dy, f"line{number}") for x, y in (a, b)]
    return [line(*a, *b, f"line{number}"), *ends]


def _said(panel: Panel, curve: Curve, i: int) -> str:
    """Return what a point tells when it is pointed at."""
    name = curve.names[i] if curve.names else _place(panel, curve.x[i])
    wide = curve.bars[i] if curve.bars else 0.0
    value = (
        fmt.format_interval(curve.y[i], wide, signed=panel.level is not None) if wide else fmt.format_number(curve.y[i])
    )
    whose = f"{curve.label}, " if curve.label and not curve.names else ""
    return f"{whose}{panel.x_label + ' ' if panel.x_label and not curve.names else ''}{name}: {panel.y_label} {value}"


def _ideal(frame: Frame, panel: Panel) -> list[Html]:
    """Return the line of a speed-up by as much as there are more GPUs."""
    counts = sorted({x for curve in panel.curves for x in curve.x})
    if panel.name != "speed-up" or len(counts) < 2:
        return []
    (x1, y1), (x2, y2) = [(frame.x(x), frame.y(x / counts[0])) for x in (counts[0], counts[-1])]
    return [line(x1, y1, x2, y2, "rule-reference"), text(x2 - 8, y2 + 2, "ideal", anchor="end")]


def _front(frame: Frame, panel: Panel) -> list[Html]:
    """Join the front and name its cells, as many of them as can be read."""
    each = [[(curve.x[i], curve.y[i], curve.names[i]) for i in curve.front] for curve in panel.curves]
    shapes: list[Html] = []
    places = [(frame.x(x), frame.y(y)) for c in panel.curves for x, y in zip(c.x, c.y, strict=True)]
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    for points in [list(chain.from_iterable(each))] if panel.one_front else each:
        ordered = [(frame.x(x), frame.y(y), name) for x, y, name in sorted(points)]
        shapes.append(path([(x, y) for x, y, _ in ordered], "bar-interval"))
        some = ordered[:: max(-(-len(ordered) // MOST_LABELS), 1)]
        for x, y, name in dict.fromkeys([*some[:1], *ordered[-1:], *some]):  # its ends before all others
            shapes += _name(frame, (x, y), name, taken)
    return shapes


def _name(frame: Frame, at: tuple[float, float], name: str, taken: list[Box]) -> list[Html]:
    """Return a name beside its point, where nothing else stands; nothing where there is no such place."""
    wide = width_of(name, FONT)
    for dx, dy, anchor in BESIDE:
        x, y = at[0] + dx, at[1] + dy
        left = x if anchor == "start" else x - wide
        box = (left, y - 10, left + wide, y + 2)
        free = not any(_overlap(box, other) for other in taken)
        if free and frame.left <= box[0] and box[2] <= frame.right and frame.top <= box[1] and box[3] <= frame.bottom:
            taken.append(box)
            return [text(x, y, name, anchor=anchor)]
    return []


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def draw_heat(heat: Heat) -> Html:
    """Return a map as SVG: a tile per cell with its figure; what stands there is said when it is pointed at."""
    many = max(len(heat.columns), 1)
    widest = max((len(t.text) for row in heat.tiles for t in row if t is not None), default=0)
    tile = max(TILE if many <= MOST_TILES else TILE / 2, width_of("0" * widest) + 8)
    left = MARGIN + max(map(width_of, heat.rows), default=0.0) + 8 + (SWATCH + 8 if heat.y_label else 0)
    wide = max(map(width_of, heat.columns), default=0.0)
    turned = wide + 6 > tile
    under = 0.6 * wide + 18 if turned else 22
    top, width = MARGIN + 22, max(left + many * tile + MARGIN, left + SCALE + 200)
    bottom = top + len(heat.rows) * TILE_HEIGHT
    height = bottom + under + (18 if heat.x_label else 0) + MARGIN
    shapes = _scale(heat, left)
    # The first row is at the bottom, as on an axis.
    for k, (name, row) in enumerate(zip(heat.rows, heat.tiles, strict=True)):
        y = bottom - (k + 1) * TILE_HEIGHT
        shapes.append(text(left - 6, y + TILE_HEIGHT / 2 + 4, name, anchor="end"))
        for j, each in enumerate(row):
            shapes += _tile(each, left + j * tile, y, tile)
    for j, name in enumerate(heat.columns):
        x = left + (j + 0.5) * tile
        if turned:
            shapes.append(text(x + 4, bottom + 14, name, anchor="end", turn=-35))
        else:
            shapes.append(text(x, bottom + 16, name, anchor="middle"))
    if heat.x_label:
        shapes.append(text(left + many * tile / 2, height - MARGIN, heat.x_label, anchor="middle"))
    if heat.y_label:
        shapes.append(text(MARGIN + 10, (top + bottom) / 2, heat.y_label, anchor="middle", turn=-90))
    return svg(heat.title, _heat_told(heat), width, height, *shapes)


def _tile(tile: Tile | None, x: float, y: float, width: float) -> list[Html]:
    if tile is None:
        return [rect(x + 1, y + 1, width - 2, TILE_HEIGHT - 2, "empty-tile", "has not run")]
    shapes = [rect(x, y, width, TILE_HEIGHT, _step(tile.share), tile.told)]
    if tile.mark:
        shape = {"best": "star", "tied": "ring", "reference": "square"}[tile.mark]
        shapes.append(mark(shape, x + width - 8, y + 8, 0, 7.0))
    base = y + TILE_HEIGHT / 2 + (8 if tile.mark else 4)
    return [*shapes, text(x + width / 2, base, tile.text, anchor="middle")]


def _step(share: float) -> str:
    """Return the class of a colour; there are ten."""
    return f"heat heat{min(max(round(share * (STEPS - 1)), 0), STEPS - 1)}"


def _scale(heat: Heat, left: float) -> list[Html]:
    """Return what the colours stand for."""
    start, wide = left + width_of(heat.low) + 8, SCALE / STEPS
    steps = [rect(start + k * wide, MARGIN, wide, 12, _step(k / (STEPS - 1))) for k in range(STEPS)]
    return [text(left, MARGIN + 10, heat.low), *steps, text(start + SCALE + 8, MARGIN + 10, heat.high)]


def _heat_told(heat: Heat) -> str:
    best = [t.told for row in heat.tiles for t in row if t is not None and t.mark == "best"]
    said = f"{heat.title} over {heat.x_label} and {heat.y_label}, from {heat.low} to {heat.high}."
    return " ".join([said, *(f"Best: {told}." for told in best)])
