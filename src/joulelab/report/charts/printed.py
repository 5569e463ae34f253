"""Draw charts for papers with matplotlib: bars, stacks, histograms and maps, as pages show them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from joulelab.report import format as fmt
from joulelab.report.charts.heat import Heat
from joulelab.report.charts.model import Bars, Histogram, Stack, lower_end
from joulelab.report.figures import COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

Chart = Bars | Stack | Histogram | Heat
GREY, DARK = "#777777", "#222222"
MARKS = {"best": ("*", 10.0), "tied": ("o", 6.0), "reference": ("s", 6.0)}
ROW_IN, AROUND_IN, UPRIGHT_IN = 0.28, 1.3, 3.4  # height of a row, of what is around them, of charts without rows
MOST_TICKS = 24
KEY_IN, KEY_HIGH_IN = 1.6, 0.16  # that a key of a legend takes
KEY_LETTERS_PER_IN, LETTERS_PER_IN = 16, 7  # of keys, of titles
BARS_SAY = "Bars: expanded uncertainty, k = 2."


def height_of(chart: Chart, width_in: float) -> float:
    """Return how high (inches) a chart of that width has to be."""
    if isinstance(chart, Stack):
        keyed = -(-len(chart.keys) // _columns(width_in))
        return AROUND_IN + ROW_IN * len(chart.rows) + KEY_HIGH_IN * keyed
    if isinstance(chart, Heat):
        return AROUND_IN + 0.36 * len(chart.rows)
    if isinstance(chart, Histogram) or (isinstance(chart, Bars) and chart.upright):
        return UPRIGHT_IN
    return AROUND_IN + ROW_IN * len(chart.rows)


def draw(axes: Axes, chart: Chart) -> str:
    """Draw a chart; return the note that belongs below it."""
    if chart.title:
        letters = int(axes.figure.get_window_extent().width / axes.figure.dpi * LETTERS_PER_IN)
        axes.set_title("\n".join(textwrap.wrap(chart.title, letters)), loc="left")
    if isinstance(chart, Heat):
        return _heat(axes, chart)
    if isinstance(chart, Histogram):
        return _histogram(axes, chart)
    if isinstance(chart, Stack):
        return _stack(axes, chart)
    return _upright(axes, chart) if chart.upright else _lying(axes, chart)


def _ends(value: float, expanded: float, chart: Bars | None = None) -> list[list[float]]:
    """Return how far an error bar reaches down and up."""
    return [[value - lower_end(value, expanded, signed=chart is not None and chart.is_signed)], [expanded]]


def _upright(axes: Axes, chart: Bars) -> str:
    for k, bar in enumerate(chart.rows):
        axes.bar(k, bar.value, color=_colour(bar.colour), width=0.8)
        if bar.expanded:
            axes.errorbar(
                k, bar.value, yerr=_ends(bar.value, bar.expanded, chart), color=DARK, capsize=2, linewidth=0.9
            )
    _names(axes.set_xticks, [bar.label for bar in chart.rows])
    axes.set_ylabel(chart.label)
    _level(axes.axhline, chart)
    return _said(chart)


def _lying(axes: Axes, chart: Bars) -> str:
    for k, bar in enumerate(chart.rows):
        colour = _colour(bar.colour)
        if chart.dots:
            axes.plot([bar.value], [k], marker="o", color=colour, linestyle="none")
        else:
            axes.barh(k, bar.value, color=colour, height=0.7)
        if bar.expanded:
            ends = _ends(bar.value, bar.expanded, chart)
            axes.errorbar(bar.value, k, xerr=ends, color=DARK, capsize=2, linewidth=0.9, linestyle="none")
        if bar.mark:
            marker, size = MARKS[bar.mark]
            axes.plot([bar.value], [k], marker=marker, ms=size, mfc="none", mec=DARK, linestyle="none")
        _beside(axes, bar.value + max(bar.expanded or 0.0, 0.0), k, bar.text)
    axes.set_yticks(range(len(chart.rows)), [bar.label for bar in chart.rows])
    axes.invert_yaxis()
    axes.set_xlabel(chart.label)
    axes.margins(x=0.25)
    _level(axes.axvline, chart)
    return _said(chart)


def _stack(axes: Axes, chart: Stack) -> str:
    keyed: set[int] = set()
    for k, row in enumerate(chart.rows):
        left = 0.0
        for part in row.parts:
            label = None if part.key in keyed else chart.keys[part.key]
            keyed.add(part.key)
            axes.barh(
                k, part.value, left=left, height=0.7, color=_colour(part.key), label=label, hatch=_hatch(part.key)
            )
            left += part.value
        if row.expanded:
            axes.errorbar(left, k, xerr=_ends(left, row.expanded), color=DARK, capsize=2, linewidth=0.9)
        _beside(axes, left + (row.expanded or 0.0), k, row.text)
    axes.set_yticks(range(len(chart.rows)), [row.label for row in chart.rows])
    axes.invert_yaxis()
    axes.set_xlabel(chart.label)
    axes.margins(x=0.2)
    keys(axes.figure)
    return BARS_SAY if any(row.expanded for row in chart.rows) else ""


def _histogram(axes: Axes, chart: Histogram) -> str:
    axes.stairs(chart.shares, chart.edges, fill=True, color=COLOURS[0], alpha=0.7)
    highest = max(chart.shares, default=1.0)
    for k, (name, value) in enumerate(chart.marks):
        axes.axvline(value, color=DARK, linewidth=0.9, linestyle=("-", "--", ":")[k % 3])
        axes.annotate(name, (value, highest * (1.0 - 0.08 * k)), xytext=(3, 0), textcoords="offset points", fontsize=7)
    axes.set_xlabel(chart.label)
    axes.set_ylabel("share of time, %")
    return "How long power was how high, by the readings within the workload."


def _heat(axes: Axes, chart: Heat) -> str:
    shares = [[float("nan") if tile is None else tile.share for tile in row] for row in chart.tiles]
    axes.imshow(shares, cmap="cividis_r", aspect="auto", vmin=0.0, vmax=1.0)
    for y, row in enumerate(chart.tiles):
        for x, tile in enumerate(row):
            if tile is None:
                continue
            colour = "white" if tile.share > 0.55 else "black"
            sign = {"best": "\n★", "tied": "\n○", "reference": "\n□"}.get(tile.mark, "")
            axes.text(x, y, tile.text + sign, ha="center", va="center", fontsize=6.5, color=colour)
    _names(axes.set_xticks, chart.columns)
    axes.set_yticks(range(len(chart.rows)), chart.rows)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(visible=False)
    return f"{chart.note} Star: best. Ring: no significant difference from it. Square: reference.".strip()


def keys(figure: Any) -> None:
    """Name everything that is drawn above the picture, in as many columns as there is room for."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles, labels = ([each for pair in found for each in pair[k]] for k in (0, 1))
    columns = _columns(figure.get_figwidth())
    labels = [fmt.shorten_end(label, int(figure.get_figwidth() / columns * KEY_LETTERS_PER_IN)) for label in labels]
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=7, frameon=False)


def _columns(width_in: float) -> int:
    return max(int(width_in / KEY_IN), 1)


def _names(place: Any, names: Sequence[str]) -> None:
    every = -(-len(names) // MOST_TICKS)
    shown = range(0, len(names), max(every, 1))
    turn: Any = {"rotation": 30, "ha": "right"} if sum(len(names[k]) + 2 for k in shown) > 60 else {}
    place(list(shown), [names[k] for k in shown], **turn)


def _beside(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)


def _level(line: Any, chart: Bars) -> None:
    if chart.level is not None:
        line(chart.level, color=GREY, linewidth=0.8, zorder=1)


def _said(chart: Bars) -> str:
    return BARS_SAY if any(bar.expanded for bar in chart.rows) else ""


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _hatch(number: int) -> str | None:
    """Return what tells parts of one colour apart, where there are more than colours."""
    return "//" if number >= len(COLOURS) else None
