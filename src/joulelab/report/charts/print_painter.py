"""Draw charts for print with matplotlib.

matplotlib is imported when something is drawn; pyplot never is, so that there are no windows and no global state.
"""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.profile_buckets import COARSER
from joulelab.core.errors import MissingDependency
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.charts.chart_model import (
    FAMILY_COLOURS,
    BarChart,
    CurveChart,
    HeatMap,
    HistogramChart,
    OverlayChart,
    PowerChart,
    StackChart,
    get_lower_end,
)
from joulelab.report.tables import HARD_BLANK
from joulelab.store.safe_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.analysis.readings import Floats
    from joulelab.report.charts.chart_model import Chart, ChartCurve

# The colours of Okabe and Ito, which people with any kind of colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY, DARK, STAR = "#777777", "#222222", "#FFDD55"
FILLS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#D9C91E", "#9AA1AB")  # as in page.css
MARKERS = ("o", "^", "D", "v", "P", "X", "<")
DASHES = ("-", "--", "-.", ":")
FORMATS = ("svg", "png")
STYLE: Any = {
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "joulelab",  # the same data gives the same file
    "pdf.fonttype": 42,
}
MAKER = "joulelab"  # in the metadata of every file
WIDTH_IN, POWER_HEIGHT_IN, CURVE_HEIGHT_IN, UPRIGHT_HEIGHT_IN = 6.4, 4.4, 4.0, 3.4
ROW_IN, TILE_IN, MARGINS_IN = 0.28, 0.4, 1.3
KEY_IN, KEY_HEIGHT_IN = 1.6, 0.16  # room for an entry of a legend
SIGN_LETTERS = 7  # width of the sign before an entry and of the gap after it, in letters
NOTE_LINE_IN = 0.13
NOTE_LETTERS_PER_IN, TITLE_LETTERS_PER_IN, KEY_LETTERS_PER_IN, PHASE_LETTERS_PER_IN = 18.5, 7, 16, 12
LEAST_PHASE_LETTERS, MOST_PHASE_NAMES = 4, 12
MOST_TICKS, MOST_FRONT_NAMES = 24, 12
NAME_SIZE_PT, LETTER_SHARE = 7.0, 0.56  # of names at a Pareto front: font size, mean width of a letter as a share
# Where a name may stand beside its point, in points, the best place first.
NAME_PLACES = ((5, 3, "left"), (6, -3, "left"), (-5, 3, "right"), (-5, -9, "right"), (5, -9, "left"))
POINT_PT, BAR_PT = 4.0, 1.0  # half of the room that a point and an error bar take
TICK_STEPS = (1, 2, 5, 10)
LETTER_IN, TILE_TEXT_PT = 0.065, 6.5  # of numbers in tiles
MOST_POINTS = 1500  # of a line of power over time
# Marks of cells: shape, size in points and width of the edge; shapes differ, so that they can be read in grey.
MARKS = {"best": ("*", 14.0, 0.8), "tied": ("o", 9.0, 1.1), "reference": ("s", 8.5, 1.3), "uncapped": ("D", 4.6, 1.1)}
TILE_SIGNS = {"best": " ★", "tied": " ○", "reference": " □"}
POWER_LINES = {"rated": ("#D55E00", "--"), "mean": (DARK, ":"), "idle": (GREY, "-.")}


def load_matplotlib() -> tuple[Any, type[Figure]]:
    """Import matplotlib and its Figure. Raises MissingDependency."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        install = 'pip install "joulelab[figures]"'
        raise MissingDependency("figures need matplotlib, which is not installed", next=install) from None
    return mpl, Figure


def render_figure(figure: Figure, kind: str) -> bytes:
    """Render a figure as svg, png or pdf. The file names joulelab as its maker, and no date."""
    metadata = {
        "svg": {"Date": None, "Creator": MAKER},
        "pdf": {"CreationDate": None, "Creator": MAKER},
        "png": {"Software": MAKER},
    }
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=200, metadata=metadata.get(kind))
    return file.getvalue()


def save_figure(figure: Figure, note: str, stem: Path, formats: Sequence[str]) -> list[Path]:
    """Write a figure with a note below it, one file per format; return the files."""
    add_note(figure, note)
    files = []
    for kind in formats:
        file = stem.with_name(f"{stem.name}.{kind}")
        replace_file(file, render_figure(figure, kind), sync=False)
        files.append(file)
    return files


def add_note(figure: Figure, note: str) -> None:
    """Put a note below a figure, as part of the picture, which grows by its height."""
    text = _wrap_text(note, figure.get_figwidth() * NOTE_LETTERS_PER_IN)
    if text:
        figure.set_figheight(figure.get_figheight() + NOTE_LINE_IN * text.count("\n"))
        figure.supxlabel(text, fontsize=7, color="#444444", x=0.01, ha="left")


def _wrap_text(text: str, letters: float) -> str:
    whole = text.replace("k = 2", "k = 2".replace(" ", HARD_BLANK)).replace(" %", f"{HARD_BLANK}%")
    return "\n".join(textwrap.wrap(whole, round(letters))).replace(HARD_BLANK, " ")


def measure_height(chart: Chart, width_in: float) -> float:
    """Return the height in inches that a chart of this width needs."""
    match chart:
        case PowerChart():
            return POWER_HEIGHT_IN + (0.6 if _list_loads(chart.profile) else 0.0)
        case StackChart():
            key_lines = -(-len(chart.keys) // _count_key_columns(width_in))
            return MARGINS_IN + ROW_IN * len(chart.bars) + KEY_HEIGHT_IN * key_lines
        case HeatMap():
            return MARGINS_IN + TILE_IN * len(chart.rows)
        case BarChart(is_upright=False):
            return MARGINS_IN + ROW_IN * len(chart.bars)
        case HistogramChart() | BarChart():
            return UPRIGHT_HEIGHT_IN
    return CURVE_HEIGHT_IN * (0.8 if is_narrow(width_in) else 1.0)


def is_narrow(width_in: float) -> bool:
    """Return whether a picture is meant for one column of a paper."""
    return width_in < 0.7 * WIDTH_IN


def render_chart(
    chart: Chart, formats: Sequence[str], *, width_in: float = WIDTH_IN, remark: str = "", has_caption: bool = True
) -> tuple[dict[str, bytes], str]:
    """Render a chart in each format; return the files and the caption. Raises MissingDependency.

    Without `has_caption`, the picture has no title and only `remark` below it.
    """
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    sizes = {"font.size": 8, "axes.titlesize": 9} if is_narrow(width_in) else {"axes.titlesize": 10}
    with mpl.rc_context({**STYLE, **sizes}):
        figure = Figure(figsize=(width_in, measure_height(chart, width_in)), layout="constrained")
        caption = f"{remark} {paint_figure(figure, chart, has_title=has_caption)}".strip()
        add_note(figure, caption if has_caption else remark)
        if isinstance(chart, CurveChart):
            place_front_names(figure, [chart])
        return {kind: render_figure(figure, kind) for kind in formats}, caption


def paint_figure(figure: Figure, chart: Chart, *, has_title: bool = True) -> str:
    """Draw a chart into an empty figure; return the note that belongs below it."""
    match chart:
        case PowerChart():
            return _paint_power(figure, chart)
        case OverlayChart():
            return _paint_overlay(figure.subplots(), chart)
        case CurveChart():
            paint_curves(figure.subplots(), chart)
            add_curve_legend(figure, chart, chart.full_title if has_title else "")
            return chart.caption
    axes = figure.subplots()
    if chart.title and has_title:
        axes.set_title(_wrap_text(chart.title, figure.get_figwidth() * TITLE_LETTERS_PER_IN), loc="left")
    match chart:
        case HeatMap():
            _paint_heat_map(axes, chart)
        case HistogramChart():
            _paint_histogram(axes, chart)
        case StackChart():
            _paint_stack(axes, chart)
        case BarChart():
            _paint_bars(axes, chart)
    return chart.note


def _paint_bars(axes: Axes, chart: BarChart) -> None:
    for k, bar in enumerate(chart.bars):
        colour = FILLS[bar.colour % len(FILLS)]
        ends = _get_error_ends([bar.value], [bar.expanded or 0.0], signed=chart.is_signed) if bar.expanded else None
        style: Any = {"color": DARK, "capsize": 2, "linewidth": 0.9, "linestyle": "none"}
        if chart.is_upright:
            axes.bar(k, bar.value, color=colour, width=0.8)
            axes.errorbar(k, bar.value, yerr=ends, **style)
            continue
        if chart.is_dotted:
            axes.plot([bar.value], [k], marker="o", color=colour, linestyle="none")
        else:
            axes.barh(k, bar.value, color=colour, height=0.7)
        axes.errorbar(bar.value, k, xerr=ends, **style)
        if bar.mark:
            axes.plot([bar.value], [k], linestyle="none", **_style_mark(bar.mark, DARK))
        _write_beside(axes, bar.value + (bar.expanded or 0.0), k, bar.text)
    if marks := chart.list_marks():
        _add_keys_above(axes.figure, _make_mark_handles(marks))
    if chart.is_upright:
        _set_names(axes, [bar.label for bar in chart.bars])
        axes.set_ylabel(chart.label)
    else:
        _set_row_labels(axes, [bar.label for bar in chart.bars], chart.label, 0.25)
    if chart.level is not None:
        draw_level = axes.axhline if chart.is_upright else axes.axvline
        draw_level(chart.level, color=GREY, linewidth=0.8, zorder=1)


def _paint_stack(axes: Axes, chart: StackChart) -> None:
    labelled: set[int] = set()
    for k, bar in enumerate(chart.bars):
        left = 0.0
        for part in bar.parts:
            colour = chart.get_colour(part.key)
            label = None if part.key in labelled else chart.keys[part.key]
            hatch = "//" if colour >= len(FILLS) else None  # more keys than colours
            labelled.add(part.key)
            axes.barh(k, part.value, left=left, height=0.7, color=FILLS[colour % len(FILLS)], label=label, hatch=hatch)
            left += part.value
        if bar.expanded:
            ends = _get_error_ends([left], [bar.expanded])
            axes.errorbar(left, k, xerr=ends, color=DARK, capsize=2, linewidth=0.9)
        _write_beside(axes, left + (bar.expanded or 0.0), k, bar.text)
    _set_row_labels(axes, [bar.label for bar in chart.bars], chart.label, 0.2)
    _add_legend_above(axes.figure)


def _paint_histogram(axes: Axes, chart: HistogramChart) -> None:
    axes.stairs(chart.shares, chart.edges, fill=True, color=FILLS[0], alpha=0.7)
    highest = max(chart.shares, default=1.0)
    for k, (name, value) in enumerate(chart.marks):
        axes.axvline(value, color=DARK, linewidth=0.9, linestyle=("-", "--", ":")[k % 3])
        axes.annotate(name, (value, highest * (1.0 - 0.08 * k)), xytext=(3, 0), textcoords="offset points", fontsize=7)
    axes.set_xlabel(chart.label)
    axes.set_ylabel("share of time, %")


def _paint_heat_map(axes: Axes, chart: HeatMap) -> None:
    shares = [[float("nan") if tile is None else tile.share for tile in row] for row in chart.tiles]
    axes.imshow(shares, cmap="cividis_r", aspect="auto", vmin=0.0, vmax=1.0)
    figure: Any = axes.figure
    tile_in = (figure.get_figwidth() - 0.8) / max(len(chart.columns), 1)
    longest = max((len(tile.text) for row in chart.tiles for tile in row if tile is not None), default=0)
    is_turned = longest * LETTER_IN > tile_in
    for y, row in enumerate(chart.tiles):
        for x, tile in enumerate(row):
            if tile is not None:
                colour = "white" if tile.share > 0.55 else "black"
                sign = TILE_SIGNS.get(tile.mark, "")
                text = tile.text + (sign if is_turned else sign.replace(" ", "\n"))
                turn = 90 if is_turned else 0
                axes.text(x, y, text, ha="center", va="center", fontsize=TILE_TEXT_PT, color=colour, rotation=turn)
    names, x_label = _move_unit(chart.columns, chart.x_label)
    is_wide = max(map(len, names), default=0) * LETTER_IN * 1.4 > tile_in
    axes.set_xticks(range(len(names)), names, rotation=90 if is_wide else 0)
    axes.set_yticks(range(len(chart.rows)), chart.rows)
    axes.set_xlabel(x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(visible=False)


def _move_unit(names: Sequence[str], label: str) -> tuple[list[str], str]:
    """Move a unit that all names have (`100 W`) to the label of the axis."""
    units = {name.partition(" ")[2] for name in names}
    unit = units.pop() if len(units) == 1 else ""
    return ([name.removesuffix(f" {unit}") for name in names], f"{label}, {unit}") if unit else (list(names), label)


def paint_curves(axes: Axes, chart: CurveChart) -> None:
    """Draw curves with error bars and marks, and the Pareto front; legend and names follow when the layout is known."""
    from matplotlib.ticker import MaxNLocator

    for k, curve in enumerate(chart.curves):
        _paint_curve(axes, chart, curve, k)
    if chart.is_pareto:
        for front in chart.list_fronts():
            axes.plot([p[0] for p in front], [p[1] for p in front], color="black", linewidth=1.4, zorder=1.5)
    if chart.level is not None:
        axes.axhline(chart.level, color=GREY, linewidth=0.8, zorder=1)
    counts = chart.list_counts()
    if chart.name == "speed-up":
        axes.plot(counts, [x / counts[0] for x in counts], color=GREY, linewidth=0.8, linestyle=":", label="ideal")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.ticks is not None:
        _set_names(axes, chart.ticks, most=len(chart.ticks), room=80)
    elif counts:
        axes.set_xticks(counts)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=TICK_STEPS))


def _paint_curve(axes: Axes, chart: CurveChart, curve: ChartCurve, k: int) -> None:
    style = _style_curve(chart, k)
    axes.errorbar(
        curve.x,
        curve.y,
        yerr=_get_error_ends(curve.y, curve.expanded, signed=chart.is_signed),
        xerr=_get_error_ends(curve.x, curve.x_expanded),
        capsize=2.5,
        elinewidth=0.9,
        color=style["color"],
        linestyle="none",
    )
    joined = [i for i in range(len(curve.x)) if i not in curve.uncapped]
    axes.plot([curve.x[i] for i in joined], [curve.y[i] for i in joined], zorder=2, **style)
    places = {"uncapped": curve.uncapped, "tied": curve.tied, "reference": [curve.reference], "best": [curve.best]}
    for mark, indices in places.items():
        for i in indices:
            if i is not None:  # behind the error bars, so that these can be compared
                style_mark = _style_mark(mark, style["color"])
                axes.plot([curve.x[i]], [curve.y[i]], linestyle="none", zorder=1.8, **style_mark)


def _style_curve(chart: CurveChart, k: int) -> dict[str, Any]:
    """Return colour, dash and point of a curve; curves differ in all three."""
    dash = DASHES[k % len(DASHES)] if chart.is_joined else "none"
    point: Any = {"marker": MARKERS[k % len(MARKERS)], "markersize": 3.6}
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": dash, "linewidth": 1.2, **point}


def _style_mark(mark: str, colour: str) -> dict[str, Any]:
    marker, size, width = MARKS[mark]
    fill, edge = (STAR, "black") if mark == "best" else ("none", colour)
    return {"marker": marker, "ms": size, "mfc": fill, "mec": edge, "mew": width}


def _make_mark_handles(marks: Mapping[str, str]) -> list[Any]:
    """Make the entries of marks in a legend, in a colour that no curve has."""
    from matplotlib.lines import Line2D

    return [Line2D([], [], linestyle="none", label=name, **_style_mark(mark, DARK)) for mark, name in marks.items()]


def add_curve_legend(figure: Figure, chart: CurveChart, title: str) -> None:
    """Put title and legend above a picture: curves, unless the title names the only one, and marks."""
    from matplotlib.lines import Line2D

    curves = chart.curves if len(chart.curves) > 1 else ()
    handles: list[Any] = [
        Line2D([], [], label=c.label, **_style_curve(chart, k)) for k, c in enumerate(curves) if c.label and c.x
    ]
    found, names = figure.axes[0].get_legend_handles_labels()
    handles += [handle for handle, name in zip(found, names, strict=True) if name == "ideal"]
    _add_keys_above(figure, [*handles, *_make_mark_handles(chart.list_marks())], title)


def _add_keys_above(figure: Any, handles: Sequence[Any], title: str = "") -> None:
    """Put a legend above a picture, below its title, in as many columns as fit; the picture grows by its height."""
    width = figure.get_figwidth()
    title = _wrap_text(title, width * TITLE_LETTERS_PER_IN * 1.6)
    columns = _count_columns([len(str(handle.get_label())) for handle in handles], width * KEY_LETTERS_PER_IN)
    lines = -(-len(handles) // columns) + (title.count("\n") + 1 if title else 0)
    figure.set_figheight(figure.get_figheight() + KEY_HEIGHT_IN * max(lines - 2, 0))
    if handles or title:
        figure.legend(
            handles=list(handles),
            loc="outside upper left",
            ncols=columns,
            fontsize=7.5,
            frameon=False,
            title=title or None,
            title_fontproperties={"size": 9, "weight": "bold"},
            alignment="left",
            borderaxespad=0.2,
            columnspacing=1.2,
            handletextpad=0.5,
        )


def _count_columns(letters: Sequence[int], room: float) -> int:
    """Return the number of columns of a legend that fit into a room in letters; a legend is filled column by column."""
    for count in range(len(letters), 1, -1):
        longer, rest = divmod(len(letters), count)
        sizes = [longer + (k < rest) for k in range(count)]
        starts = [sum(sizes[:k]) for k in range(count)]
        widths = (max(letters[at : at + size]) + SIGN_LETTERS for at, size in zip(starts, sizes, strict=True))
        if sum(widths) <= room:
            return count
    return 1


def place_front_names(figure: Figure, charts: Sequence[CurveChart]) -> None:
    """Name points of Pareto fronts where there is free room; the ends of a front have precedence."""
    for axes, chart in zip(figure.axes, charts, strict=True):
        if not chart.is_pareto:
            continue
        figure.draw_without_rendering()  # from here on places are known
        points_per_pixel = 72 / figure.dpi
        box = axes.get_window_extent()
        inside = [v * points_per_pixel for v in (box.x0, box.y0, box.x1, box.y1)]
        to_pixels = axes.transData.transform
        taken: list[tuple[float, ...]] = []
        for c in chart.curves:
            wide, high = (each or [0.0] * len(c.x) for each in (c.x_expanded, c.expanded))
            for x, y, dx, dy in zip(c.x, c.y, wide, high, strict=True):
                for reach, room in (((0.0, 0.0), POINT_PT), ((dx, 0.0), BAR_PT), ((0.0, dy), BAR_PT)):
                    ends = [to_pixels((x + s * reach[0], y + s * reach[1])) * points_per_pixel for s in (-1, 1)]
                    taken.append((*map(float, ends[0] - room), *map(float, ends[1] + room)))
        for front in chart.list_fronts():
            for x, y, name in _order_names(front)[:MOST_FRONT_NAMES]:
                at = [float(v) * points_per_pixel for v in to_pixels((x, y))]
                if (place := _find_room(at, name, taken, inside)) is not None:
                    axes.annotate(
                        name, (x, y), place[:2], textcoords="offset points", ha=place[2], fontsize=NAME_SIZE_PT
                    )


def _order_names(front: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Return the ends of a front first; names after the first leave out the line if it is the same everywhere."""
    lines = {name.rpartition(", ")[0] for _, _, name in front}
    short = [(x, y, name.rpartition(", ")[2] if len(lines) == 1 else name) for x, y, name in front[1:]]
    return [*front[:1], *short[-1:], *short[:-1]]


def _find_room(
    at: Sequence[float], name: str, taken: list[tuple[float, ...]], inside: Sequence[float]
) -> tuple[float, float, str] | None:
    """Return where a name beside a point covers nothing, and mark the place as taken; all in points."""
    wide = len(name) * NAME_SIZE_PT * LETTER_SHARE
    for dx, dy, align in NAME_PLACES:
        left, low = at[0] + dx - (wide if align == "right" else 0.0), at[1] + dy
        a = (left, low, left + wide, low + NAME_SIZE_PT)
        is_free = not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in taken)
        if is_free and inside[0] <= a[0] and a[2] <= inside[2] and inside[1] <= a[1] and a[3] <= inside[3]:
            taken.append(a)
            return dx, dy, align
    return None


def _paint_power(figure: Figure, chart: PowerChart) -> str:
    """Draw the stacked scopes with lines and phases, and the load below them; return the note."""
    profile, loads = chart.profile, _list_loads(chart.profile)
    if loads:
        axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    else:
        axes = below = figure.subplots()
    level, (unit_s, unit) = _choose_level(profile), _choose_time_unit(profile.duration_s)
    edges_s = _make_edges(profile, level)
    edges, whole = edges_s / unit_s, profile.everything.levels[level]
    factor, power_unit = fmt.choose_scale([float(np.nanmax(whole.high, initial=0.0))], "W")
    lower = np.zeros(edges.size - 1)
    for k, trace in enumerate(t for t in profile.traces if t.role == "stack"):
        upper = lower + np.nan_to_num(trace.levels[level].mean) / factor
        colour = FILLS[FAMILY_COLOURS.get(trace.id, k) % len(FILLS)]
        axes.stairs(upper, edges, baseline=lower, fill=True, color=colour, alpha=0.75, label=trace.label)
        lower = upper
    ends: Any = {"facecolor": "none", "edgecolor": DARK, "hatch": "/////", "linewidth": 0, "alpha": 0.5}
    axes.stairs(whole.high / factor, edges, baseline=whole.low / factor, fill=True, **ends)
    for line in chart.lines:
        colour, dash = POWER_LINES[line.kind]
        axes.axhline(line.watts / factor, color=colour, linestyle=dash, linewidth=1.1, label=line.label)
    _paint_phases(axes, chart, unit_s)
    axes.set_ylabel(f"power, {power_unit}")
    axes.set_ylim(bottom=0)
    for k, trace in enumerate(loads):
        below.stairs(trace.levels[level].mean, edges, color=COLOURS[k], label=trace.label, baseline=None)
    if loads:
        below.set_ylabel("load, %")
        below.set_ylim(0, 105)
    _add_legend_above(figure)
    below.set_xlabel(f"time, {unit}")
    below.set_xlim(edges[0], edges[-1])
    step = fmt.format_period(round(float(edges_s[1] - edges_s[0]), 6))
    return f"Each point is a mean over {step}. {chart.note}"


def _paint_phases(axes: Axes, chart: PowerChart, unit_s: float) -> None:
    """Shade every other outer phase, and write its name where there is room."""
    phases = [p for p in chart.phases if p.depth == 0 and p.to_s > p.from_s]
    figure: Any = axes.figure
    letters_per_s = figure.get_figwidth() * PHASE_LETTERS_PER_IN / chart.profile.duration_s
    above: Any = axes.get_xaxis_transform()
    for k, phase in enumerate(phases):
        alpha = 0.08 if k % 2 else 0.03
        axes.axvspan(phase.from_s / unit_s, phase.to_s / unit_s, color="#000000", alpha=alpha, linewidth=0, zorder=0)
        letters = int(letters_per_s * (phase.to_s - phase.from_s))
        if letters >= LEAST_PHASE_LETTERS and len(phases) <= MOST_PHASE_NAMES:
            middle = (phase.from_s + phase.to_s) / 2 / unit_s
            name = fmt.shorten_end(phase.label, letters)
            axes.text(middle, 1.01, name, transform=above, ha="center", va="bottom", fontsize=7)


def _paint_overlay(axes: Axes, chart: OverlayChart) -> str:
    """Draw the first scope that all runs have in common, else everything measured of each run; return the note."""
    profiles = [each.profile for each in chart.charts]
    unit_s, unit = _choose_time_unit(max(p.duration_s for p in profiles))
    common = chart.common[0] if chart.common else None
    traces = common.traces if common else tuple(p.everything for p in profiles)
    wholes = [trace.levels[_choose_level(p)] for trace, p in zip(traces, profiles, strict=True)]
    factor, power_unit = fmt.choose_scale([float(np.nanmax(b.high, initial=0.0)) for b in wholes], "W")
    for k, (profile, whole) in enumerate(zip(profiles, wholes, strict=True)):
        edges = _make_edges(profile, _choose_level(profile))
        first, last = 0, edges.size - 2
        if chart.by_fraction:
            first, last = np.flatnonzero((edges[1:] > 0) & (edges[:-1] < profile.duration_s))[[0, -1]]
        x = edges[first : last + 2] / (profile.duration_s if chart.by_fraction else unit_s)
        low, mean, high = (values[first : last + 1] / factor for values in (whole.low, whole.mean, whole.high))
        colour, label = COLOURS[k % len(COLOURS)], fmt.shorten_end(f"{chart.labels[k]}: {chart.names[k]}", 40)
        axes.stairs(high, x, baseline=low, fill=True, color=colour, alpha=0.2)
        axes.stairs(mean, x, baseline=None, color=colour, linestyle=DASHES[k % len(DASHES)], label=label)
    axes.set_xlabel("fraction of runtime" if chart.by_fraction else f"time, {unit}")
    axes.set_ylabel(f"power, {power_unit}")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, framealpha=0.8)
    scope = common.label if common else "everything measured of each run, which is not the same scope"
    return f"{escape_unprintable(scope[0].upper() + scope[1:])}; shaded: lowest and highest reading."


def _list_loads(profile: PowerProfile) -> list[Any]:
    return [trace for trace in profile.traces if trace.role == "load"]


def _choose_level(profile: PowerProfile) -> int:
    """Choose the finest level with no more points than a printed line can show."""
    levels = profile.traces[0].levels
    return next((k for k, level in enumerate(levels) if level.mean.size <= MOST_POINTS), len(levels) - 1)


def _make_edges(profile: PowerProfile, level: int) -> Floats:
    count = profile.traces[0].levels[level].mean.size
    edges: Floats = profile.grid.from_s + np.arange(count + 1) * profile.grid.step_s * COARSER**level
    return edges


def _choose_time_unit(duration_s: float) -> tuple[float, str]:
    return (1.0, "s") if duration_s < 300 else (60.0, "min") if duration_s < 3 * 3600 else (3600.0, "h")


def _get_error_ends(
    values: Sequence[float], expanded: Sequence[float] | None, *, signed: bool = False
) -> tuple[list[float], list[float]] | None:
    """Return the lengths of error bars downwards and upwards."""
    if expanded is None:
        return None
    nothing = float("nan")  # no bar at all
    below = [v - get_lower_end(v, u, signed=signed) for v, u in zip(values, expanded, strict=True)]
    return [d if u else nothing for d, u in zip(below, expanded, strict=True)], [u or nothing for u in expanded]


def _count_key_columns(width_in: float) -> int:
    return max(int(width_in / KEY_IN), 1)


def _add_legend_above(figure: Any) -> None:
    """Put one legend for all axes above the picture."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles, labels = ([entry for pair in found for entry in pair[k]] for k in (0, 1))
    columns = _count_key_columns(figure.get_figwidth())
    letters = int(figure.get_figwidth() / columns * KEY_LETTERS_PER_IN)
    labels = [fmt.shorten_end(label, letters) for label in labels]
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=7, frameon=False)


def _set_names(axes: Axes, names: Sequence[str], *, most: int = MOST_TICKS, room: int = 60) -> None:
    """Write names below the axis; turn them if they need more than `room` letters."""
    places = range(0, len(names), max(-(-len(names) // max(most, 1)), 1))
    turn: Any = {"rotation": 30, "ha": "right"} if sum(len(names[k]) + 2 for k in places) > room else {}
    axes.set_xticks(list(places), [names[k] for k in places], **turn)


def _set_row_labels(axes: Axes, labels: Sequence[str], x_label: str, margin: float) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    axes.margins(x=margin)


def _write_beside(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7)
