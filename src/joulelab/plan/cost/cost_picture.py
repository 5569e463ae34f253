"""Draw money and carbon of jobs as bars, one panel for each, with rated power x time beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from joulelab.plan.cost.cost_output import COVERAGE, scale_amounts
from joulelab.report import format as fmt
from joulelab.report.charts.print_painter import COLOURS, STYLE, add_note, load_matplotlib, render_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joulelab.plan.cost.cost_books import CostBooks
    from joulelab.plan.cost.sites import Purpose

WIDTH_IN, ROW_IN, LEAST_IN = 6.4, 0.34, 1.0
NAME_WIDTH = 34
TITLES: dict[Purpose, str] = {"cost": "Cost", "carbon": "Carbon"}


def draw_books(books: CostBooks, file_format: str, title: str = "") -> bytes:
    """Return the picture as a file of this format. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    purposes = books.purposes
    height = max(ROW_IN * len(books.entries), LEAST_IN) + 0.8
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, height * len(purposes)), layout="constrained")
        panels = figure.subplots(len(purposes), 1, squeeze=False)
        for purpose, axes in zip(purposes, panels[:, 0], strict=True):
            _draw_bars(axes, books, purpose, f"{title}: {TITLES[purpose].lower()}" if title else TITLES[purpose])
        twins = f"{fmt.name_twins(books.twins).capitalize()}. " if books.twins else ""
        add_note(figure, f"{twins}{COVERAGE} Diamonds: rated power x time.")
        return render_figure(figure, file_format)


def _draw_bars(axes: Axes, books: CostBooks, purpose: Purpose, title: str) -> None:
    entries = books.entries
    totals = [e.get_total(purpose) for e in entries]
    factor, unit = scale_amounts((q.value for q in totals), books.units[purpose])
    places = list(range(len(entries)))[::-1]
    amounts = [e.amounts[purpose].amount.value / factor for e in entries]
    shares = [e.shares[purpose].amount.value / factor if purpose in e.shares else 0.0 for e in entries]
    axes.barh(places, amounts, color=COLOURS[0], height=0.6, label="energy")
    if any(shares):
        axes.barh(places, shares, left=amounts, color=COLOURS[5], height=0.6, hatch="//", label="nodes")
    # There is no bar if the accuracy is unknown.
    widths = [math.nan if q.expanded is None else q.expanded / factor for q in totals]
    axes.errorbar([q.value / factor for q in totals], places, xerr=widths, fmt="none", ecolor="black", capsize=3)
    rated = [(e.amounts[purpose].rated, at) for e, at in zip(entries, places, strict=True)]
    known = [(value / factor, at) for value, at in rated if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "D", color=COLOURS[1], markersize=5, label="rated power x time")
    names = [e.name if len(books.sites) > 1 else e.job.name for e in entries]
    axes.set_yticks(places, [fmt.shorten_middle(name, NAME_WIDTH) for name in names])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{unit} CO2e" if purpose == "carbon" else unit)
    axes.set_title(title, loc="left", fontsize=10)
    if known or any(shares):
        axes.legend(fontsize=8, framealpha=0.8)
