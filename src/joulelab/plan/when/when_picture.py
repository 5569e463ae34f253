"""Draw when to run a job: the rate over time, and below it the power by slot of the plan, with run now beside it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.plan.when.baselines import gain
from joulelab.plan.when.slots import zone_of
from joulelab.plan.when.when_output import COVERAGE, named
from joulelab.report import format as fmt
from joulelab.report.charts.print_painter import COLOURS, STYLE, add_note, load_matplotlib, render_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joulelab.plan.when.baselines import Way
    from joulelab.plan.when.kept_plan import Plan

WIDTH_IN, HEIGHT_IN = 7.0, 4.6
RATE, NOW, CHOSEN = COLOURS[0], COLOURS[1], COLOURS[2]


def picture(plan: Plan, kind: str) -> bytes:
    """Return the picture of a plan as a file of that format. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.0, 1.3))
        _rate(above, plan)
        _power(below, plan)
        _times(below, plan)
        add_note(figure, _note(plan))
        return render_figure(figure, kind)


def _dates(plan: Plan) -> list[Any]:
    zone = zone_of(plan.slots.label.time_zone)
    return [dt.datetime.fromtimestamp(t, zone) for t in plan.slots.edges_s]


def _rate(axes: Axes, plan: Plan) -> None:
    label = plan.slots.label
    dates = _dates(plan)
    axes.stairs(plan.slots.values, dates, baseline=None, color=RATE, linewidth=1.3)
    what = "price" if label.kind == "price" else f"{label.kind} intensity"
    axes.set_ylabel(f"{what}, {label.unit}")
    axes.set_title(
        fmt.shorten_end(f"{label.name}{', simulated job' if plan.job.twin else ''}", 80), loc="left", fontsize=9
    )


def _power(axes: Axes, plan: Plan) -> None:
    dates = _dates(plan)
    way, now = plan.way, plan.now
    highest = [float(_watts(one, plan).max()) for one in (way, now)]
    factor, unit = fmt.choose_scale([*highest, plan.job.rated_w or 0.0], "W")
    axes.stairs(_watts(way, plan) / factor, dates, fill=True, color=CHOSEN, alpha=0.55, label=_named(way, plan))
    if way is not now:
        axes.stairs(_watts(now, plan) / factor, dates, color=NOW, linewidth=1.2, label=_named(now, plan))
    if plan.job.rated_w is not None:
        rated: Any = {"color": "#777777", "linewidth": 0.9, "linestyle": ":"}
        axes.axhline(plan.job.rated_w / factor, label=fmt.shorten_end(plan.job.rated_by, 40), **rated)
    axes.set_ylabel(f"power, {unit}")
    axes.set_ylim(bottom=0)
    top = axes.get_ylim()[1]
    axes.set_ylim(top=top * 1.28)  # room for the legend
    axes.legend(fontsize=8, framealpha=0.8, loc="upper right", ncols=3)


def _watts(way: Way, plan: Plan) -> Any:
    return way.energy_j / np.maximum(plan.slots.lengths_s, 1e-9)


def _named(way: Way, plan: Plan) -> str:
    share = gain(way, plan.now)
    if way is plan.now or share is None:
        return "run now" if way is plan.now else named(way, plan)
    return f"{named(way, plan)}: {fmt.format_change(-share.value, share.expanded)}"


def _times(axes: Axes, plan: Plan) -> None:
    from matplotlib import dates as mpl_dates

    dates: Any = mpl_dates  # it has no types

    zone = zone_of(plan.slots.label.time_zone)
    place = dates.AutoDateLocator(tz=zone)
    axes.xaxis.set_major_locator(place)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(place, tz=zone))
    ends = _dates(plan)
    axes.set_xlim(ends[0], ends[-1])


def _note(plan: Plan) -> str:
    said = f"Simulated: twin {plan.job.twin}. " if plan.job.twin else ""
    caps = " Caps by a model, not measured." if plan.job.caps_from == "model" and "cap" in plan.chosen else ""
    zone, many = plan.slots.label.time_zone, plan.job.nodes
    nodes = "of the node" if many == 1 else f"of {many} nodes together"
    return f"{said}Power is the mean of each slot, {nodes}; times are {zone}.{caps} {COVERAGE}."
