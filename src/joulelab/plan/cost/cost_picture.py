"""Draw what jobs cost or emit: bars by job and site with what rated power x time says, and rate and power over time."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING

from joulelab.plan.cost.cost_output import COVERAGE, headline, scale_of
from joulelab.report import format as fmt
from joulelab.report.charts.print_painter import COLOURS, STYLE, add_note, load_matplotlib, render_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joulelab.plan.cost.entries import Books, Entry

WIDTH_IN, ROW_IN, LEAST_IN, MORE_IN = 6.4, 0.34, 1.7, 2.2
NAME = 34


def books_picture(books: Books, kind: str, title: str = "") -> bytes:
    """Return the picture as a file of that format. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    changing = [entry for entry in books.entries if len(entry.account.slots) > 1]
    height = max(ROW_IN * len(books.entries) + 1.0, LEAST_IN)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, height + (MORE_IN if changing else 0.0)), layout="constrained")
        if changing:
            upper, lower = figure.subplots(2, 1, height_ratios=[height, MORE_IN])
            _over_time(lower, changing[0], site=len(books.sites) > 1)
        else:
            upper = figure.subplots()
        _bars(upper, books, title)
        said = fmt.name_twins(books.twins) + ". " if books.twins else ""
        add_note(figure, f"{said[:1].upper()}{said[1:]}Bars: {COVERAGE}. Diamonds: rated power x time.")
        return render_figure(figure, kind)


def _bars(axes: Axes, books: Books, title: str) -> None:
    entries = books.entries
    factor, unit = scale_of([e.whole.value for e in entries], books.unit)
    places = list(range(len(entries)))[::-1]
    amounts = [e.account.amount.value / factor for e in entries]
    shares = [e.share.amount.value / factor if e.share else 0.0 for e in entries]
    # No bar where nobody knows the accuracy: nothing is made up.
    widths = [math.nan if e.whole.expanded is None else e.whole.expanded / factor for e in entries]
    axes.barh(places, amounts, color=COLOURS[0], height=0.6, label="energy")
    if any(shares):
        axes.barh(places, shares, left=amounts, color=COLOURS[5], height=0.6, hatch="//", label="nodes")
    ends = [a + b for a, b in zip(amounts, shares, strict=True)]
    axes.errorbar(ends, places, xerr=widths, fmt="none", ecolor="black", capsize=3, elinewidth=0.9)
    rated = [(e.account.rated_amount, at) for e, at in zip(entries, places, strict=True)]
    known = [(value / factor, at) for value, at in rated if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "D", color=COLOURS[1], markersize=5, label="rated x time")
    several = len(books.sites) > 1
    names = [f"{e.job.name}, {e.site.name}" if several else e.job.name for e in entries]
    axes.set_yticks(places, [fmt.shorten_middle(name, NAME) for name in names])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"{unit} CO2e" if books.unit == "g" else unit)
    axes.set_title(headline(books, title), loc="left", fontsize=10)
    if known or any(shares):
        axes.legend(fontsize=8, framealpha=0.8)


def _over_time(axes: Axes, entry: Entry, *, site: bool) -> None:
    """Draw the mean power of each slot, and the rate over it."""
    slots = entry.account.slots
    edges = [dt.datetime.fromtimestamp(s.since_s, dt.UTC) for s in slots]
    edges.append(dt.datetime.fromtimestamp(slots[-1].until_s, dt.UTC))
    spans = [max(s.until_s - s.since_s, 1e-9) for s in slots]
    watts = [s.energy.value / span for s, span in zip(slots, spans, strict=True)]
    factor, unit = fmt.choose_scale(watts, "W")
    axes.stairs([w / factor for w in watts], edges, color=COLOURS[0], fill=True, alpha=0.5)  # type: ignore[arg-type]
    axes.set_ylabel(f"power, {unit}")
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    other.stairs([s.rate for s in slots], edges, color=COLOURS[1], baseline=None)  # type: ignore[arg-type]
    if min(s.rate for s in slots) >= 0:
        other.set_ylim(bottom=0)
    other.set_ylabel(entry.account.label.unit, color=COLOURS[1])
    other.grid(visible=False)
    other.spines["right"].set_visible(True)
    where = f" at {entry.site.name}" if site else ""
    axes.set_title(f"{fmt.shorten_middle(entry.job.name, NAME)}{where} (UTC)", loc="left", fontsize=9)
    axes.tick_params(axis="x", labelsize=7)
