"""Draw when to run a job: the rate over time, and below it the power of the plan beside that of running now."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from joulelab.plan.rates.time_zones import find_time_zone
from joulelab.plan.when.when_output import name_way
from joulelab.plan.when.when_ways import compute_saving
from joulelab.report import format as fmt
from joulelab.report.charts.print_painter import COLOURS, STYLE, add_note, load_matplotlib, render_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joulelab.plan.when.when_output import WhenAnswer
    from joulelab.plan.when.when_ways import Way

WIDTH_IN, HEIGHT_IN = 7.0, 4.6
RATE, NOW, CHOSEN = COLOURS[:3]


def draw_plan(answer: WhenAnswer, kind: str) -> bytes:
    """Return the picture of a plan as a file of that format. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.0, 1.3))
        label, zone = answer.slots.label, find_time_zone(answer.slots.label.time_zone)
        dates: Any = [dt.datetime.fromtimestamp(t, zone) for t in answer.slots.edges_s]
        above.stairs(answer.slots.values, dates, baseline=None, color=RATE, linewidth=1.3)
        above.set_ylabel(f"{'price' if label.kind == 'price' else f'{label.kind} intensity'}, {label.unit}")
        above.set_title(fmt.shorten_end(label.name, 80), loc="left", fontsize=9)
        _draw_power(below, answer)
        _draw_times(below, answer)
        simulated = f"Simulated: twin {answer.job.twin}. " if answer.job.twin else ""
        nodes = "of the node" if answer.job.nodes == 1 else f"of {answer.job.nodes} nodes together"
        add_note(figure, f"{simulated}Power is the mean of each stretch, {nodes}; times are {label.time_zone}.")
        return render_figure(figure, kind)


def _draw_power(axes: Axes, answer: WhenAnswer) -> None:
    zone = find_time_zone(answer.slots.label.time_zone)
    highest = max(one.power_w for way in (answer.now, answer.chosen) for one in way.stretches)
    factor, unit = fmt.choose_scale([highest], "W")
    styles: dict[str, dict[str, Any]] = {
        "plan": {"fill": True, "color": CHOSEN, "alpha": 0.55}, "now": {"color": NOW, "linewidth": 1.2},
    }  # fmt: skip
    for way in dict.fromkeys((answer.chosen.name, "now")):
        drawn = answer.chosen if way == answer.chosen.name else answer.now
        edges: Any = [dt.datetime.fromtimestamp(one.start_s, zone) for one in drawn.stretches]
        edges.append(dt.datetime.fromtimestamp(drawn.stretches[-1].end_s, zone))
        powers = [one.power_w / factor for one in drawn.stretches]
        style = styles["plan" if drawn is answer.chosen else "now"]
        axes.stairs(powers, edges, label=_name_line(drawn, answer), **style)
    axes.set_ylabel(f"power, {unit}")
    axes.set_ylim(0, highest / factor * 1.35)  # room for the legend
    axes.legend(fontsize=8, framealpha=0.8, loc="upper right", ncols=2)


def _name_line(way: Way, answer: WhenAnswer) -> str:
    saving = compute_saving(way, answer.now)
    if way is answer.now or saving is None:
        return "run now" if way is answer.now else name_way(way, answer)
    return f"{name_way(way, answer)}: {fmt.format_change(-saving.value, saving.expanded)}"


def _draw_times(axes: Axes, answer: WhenAnswer) -> None:
    from matplotlib import dates as mpl_dates

    dates: Any = mpl_dates  # it has no types
    zone = find_time_zone(answer.slots.label.time_zone)
    place = dates.AutoDateLocator(tz=zone)
    axes.xaxis.set_major_locator(place)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(place, tz=zone))
    ends: Any = [dt.datetime.fromtimestamp(t, zone) for t in (answer.slots.start_s, answer.slots.deadline_s)]
    axes.set_xlim(*ends)
