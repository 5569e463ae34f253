"""Draw the figures of a study: energy, time, EDP, EDS(k) and gain minus loss against the cap; Pareto front; scaling.

matplotlib is imported when called, and nothing of pyplot: no window, no state that outlives the call.
"""

from __future__ import annotations

import io
import textwrap
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import MissingDependency
from joulelab.report.charts.model import lower_end
from joulelab.report.study_curves import panels_of, pareto_of, scaling_panels
from joulelab.store.safe_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.report.study_curves import Curve, Panel

# Okabe and Ito's colours, told apart by people with any kind of colour vision; markers and dashes say it again.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
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
    "svg.hashsalt": "joulelab",  # the same study gives the same file
    "pdf.fonttype": 42,
}
NOTE_WIDTH = 105
MAKER = "joulelab"  # in every file
MOST_LABELS = 12
LABEL_WIDE, LABEL_HIGH = 0.2, 0.045  # room that a name takes, as a share of the axes


def draw(summary: StudySummary, folder: Path, *, formats: Sequence[str] = FORMATS, said: str = "") -> list[Path]:
    """Write every figure that the study has data for into a folder, `said` below each; return the files.

    Raises MissingDependency.
    """
    pareto = pareto_of(summary)
    panels, scaling = (
        [replace(panel, note=f"{said} {panel.note}".strip()) for panel in of]
        for of in ([*panels_of(summary), *([pareto] if pareto else [])], scaling_panels(summary))
    )
    written = draw_panels(panels, folder, formats=formats)
    if scaling:
        written += draw_panels(scaling, folder, formats=formats, together="scaling")
    return written


def plotting() -> tuple[Any, type[Figure]]:
    """Return matplotlib and its Figure, loaded when first drawn with. Raises MissingDependency."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        install = 'pip install "joulelab[figures]"'
        raise MissingDependency("figures need matplotlib, which is not installed", next=install) from None
    return mpl, Figure


def draw_panels(
    panels: Sequence[Panel], folder: Path, *, formats: Sequence[str] = FORMATS, together: str = ""
) -> list[Path]:
    """Write a file for each panel, named after it, or one with all of them, named `together`; return the files.

    Raises MissingDependency.
    """
    mpl, Figure = plotting()  # noqa: N806 - a class
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with mpl.rc_context(STYLE):
        if together:
            figure = Figure(figsize=(3.4 * len(panels), 3.6), layout="constrained")
            for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
                draw_panel(axes, panel)
            return save(figure, panels[0].note, folder / together, formats)
        for panel in panels:
            figure = Figure(figsize=(6.4, 4.4), layout="constrained")
            draw_panel(figure.subplots(), panel)
            written += save(figure, panel.note, folder / panel.name, formats)
    return written


def save(figure: Figure, note: str, stem: Path, formats: Sequence[str]) -> list[Path]:
    """Write a figure with its note below it, in each format; return the files."""
    paths = []
    annotate(figure, note)
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        replace_file(path, rendered(figure, kind), sync=False)
        paths.append(path)
    return paths


def annotate(figure: Figure, note: str) -> None:
    """Put a note below a figure, as a part of it: a bar without its coverage factor says nothing."""
    width = round(NOTE_WIDTH * figure.get_figwidth() / 6.4)
    figure.supxlabel("\n".join(textwrap.wrap(note, width)), fontsize=7, color="#444444", x=0.01, ha="left")


def rendered(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of that format, which says that it is ours and not when it was made."""
    about = {
        "svg": {"Date": None, "Creator": MAKER},
        "pdf": {"CreationDate": None, "Creator": MAKER},
        "png": {"Software": MAKER},
    }
    held = io.BytesIO()
    figure.savefig(held, format=kind, dpi=200, metadata=about.get(kind))
    return held.getvalue()


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw curves, marks and a front over one pair of axes."""
    for k, curve in enumerate(panel.curves):
        _draw_curve(axes, curve, k, joined=panel.joined, signed=panel.level is not None)
    if panel.name == "pareto":
        _draw_front(axes, panel)
    if panel.level is not None:
        axes.axhline(panel.level, color="#777777", linewidth=0.8, zorder=1)
    if panel.name == "speed-up":
        counts = sorted({x for curve in panel.curves for x in curve.x})
        axes.plot(counts, [x / counts[0] for x in counts], color="#777777", linewidth=0.8, linestyle=":", label="ideal")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.title, loc="left", fontsize=10)
    if panel.ticks is not None:
        turn: Any = {"rotation": 30, "ha": "right"} if panel.crowded else {}
        axes.set_xticks(range(len(panel.ticks)), panel.ticks, **turn)
    if panel.x_label == "GPUs":
        axes.set_xticks(sorted({x for curve in panel.curves for x in curve.x}))
    if any(curve.label for curve in panel.curves):
        axes.legend(fontsize=8, framealpha=0.8, ncols=1 + len(panel.curves) // 6)


def _error_bars(
    values: Sequence[float], bars: Sequence[float] | None, *, signed: bool = False
) -> tuple[list[float], list[float]] | None:
    """Return how far error bars reach down and up, None where there are none."""
    if bars is None:
        return None
    return [v - lower_end(v, b, signed=signed) for v, b in zip(values, bars, strict=True)], list(bars)


def _draw_curve(axes: Axes, curve: Curve, k: int, *, joined: bool, signed: bool) -> None:
    colour = COLOURS[k % len(COLOURS)]
    axes.errorbar(
        curve.x,
        curve.y,
        yerr=_error_bars(curve.y, curve.bars, signed=signed),
        xerr=_error_bars(curve.x, curve.x_bars),
        label=curve.label or None,
        color=colour,
        linestyle=DASHES[k % len(DASHES)] if joined else "none",
        marker=MARKERS[k % len(MARKERS)],
        markersize=4,
        linewidth=1.2,
        capsize=2,
        elinewidth=0.9,
    )
    marks: list[tuple[int, Any]] = [(i, {"marker": "o", "mfc": "none", "mec": colour, "ms": 10}) for i in curve.tied]
    if curve.reference is not None:
        marks.append((curve.reference, {"marker": "s", "mfc": "none", "mec": colour, "ms": 9, "mew": 1.4}))
    if curve.best is not None:
        marks.append((curve.best, {"marker": "*", "mfc": colour, "mec": "black", "ms": 13, "mew": 0.7, "zorder": 5}))
    for at, how in marks:
        axes.plot([curve.x[at]], [curve.y[at]], linestyle="none", **how)


def _draw_front(axes: Axes, panel: Panel) -> None:
    """Join the front and name its cells, not more of them than can be read."""
    each = [[(curve.x[i], curve.y[i], curve.names[i]) for i in curve.front] for curve in panel.curves]
    for points in [list(chain.from_iterable(each))] if panel.one_front else each:
        ordered = sorted(points)
        axes.plot([p[0] for p in ordered], [p[1] for p in ordered], color="black", linewidth=1.4, zorder=1.5)
        for x, y, name in _apart(axes, ordered)[:MOST_LABELS]:
            axes.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)


def _apart(axes: Axes, points: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """Return the points whose names do not lie on each other: the ends of the front first."""
    axes.autoscale_view()
    kept: list[tuple[float, float, str]] = []
    places: list[tuple[float, float]] = []
    for point in [*points[:1], *points[-1:], *points[1:-1]]:
        x, y = axes.transAxes.inverted().transform(axes.transData.transform(point[:2]))
        if all(abs(x - a) > LABEL_WIDE or abs(y - b) > LABEL_HIGH for a, b in places):
            kept.append(point)
            places.append((x, y))
    return kept
