"""Draw a rack: the nodes that fit by each rule, beside its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.plan.rack.rack_output import format_power, list_sentences
from joulelab.report import format as fmt
from joulelab.report.charts.print_painter import COLOURS, STYLE, add_note, load_matplotlib, render_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joulelab.plan.rack.rack_plan import RackPlan, RuleRow

DARK = "#222222"
KINDS = {"nameplate": 1, "maximum": 0, "percentile": 2, "caps": 3}
SIZE_IN = (6.4, 4.2)
KW = 1000.0
CLOSE = 0.05  # of the highest line: lines that lie closer have one name


def draw_rack(plan: RackPlan, file_format: str) -> bytes:
    """Return the picture of a rack as a file: pdf, svg or png. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    with mpl.rc_context({**STYLE, "axes.titlesize": 10}):
        figure = Figure(figsize=SIZE_IN, layout="constrained")
        axes = figure.subplots()
        rows = [row for row in plan.rows if row.nodes is not None and row.node_w is not None]
        for place, row in enumerate(rows):
            _draw_nodes(axes, place, row)
        names = [f"{row.rule}\n{fmt.format_number((row.node_w or 0.0) / KW)} kW" for row in rows]
        axes.set_xticks(range(len(rows)), [name.replace(" maximum", "\nmaximum") for name in names])
        axes.set_ylabel("power of all nodes, kW")
        axes.grid(visible=False, axis="x")
        axes.set_xlim(-0.6, len(rows) - 0.4)
        _draw_limits(axes, plan, rows)
        axes.set_title(plan.title or "Nodes that fit, by rule", loc="left")
        twins = f"{fmt.name_twins(plan.twins).capitalize()}. " if plan.twins else ""
        errors = " Bars: with all known errors." if any(_find_error(row) for row in rows) else ""
        add_note(figure, f"{twins}{list_sentences(plan)[0]} Each box is a node.{errors}")
        return render_figure(figure, file_format)


def _find_error(row: RuleRow) -> float:
    """Return how much more the nodes of a row may draw, in W."""
    return (row.nodes or 0) * ((row.upper_w or row.node_w or 0.0) - (row.node_w or 0.0))


def _draw_nodes(axes: Axes, place: int, row: RuleRow) -> None:
    nodes, node_kw = row.nodes or 0, (row.node_w or 0.0) / KW
    for n in range(nodes):
        axes.bar(
            place, node_kw, bottom=n * node_kw, width=0.6, color=COLOURS[KINDS[row.kind]], alpha=0.85,
            edgecolor="white", linewidth=1.0,
        )  # fmt: skip
    if _find_error(row) > 0:
        axes.errorbar(place, nodes * node_kw, yerr=[[0.0], [_find_error(row) / KW]], color=DARK, capsize=3, linewidth=1)
    middle = (nodes // 2 + 0.5) * node_kw if nodes else 0.0  # of a box, not on the line between two
    colour = "white" if nodes else DARK
    axes.annotate(str(nodes), (place, middle), ha="center", va="center", color=colour, fontsize=13, fontweight="bold")


def _draw_limits(axes: Axes, plan: RackPlan, rows: list[RuleRow]) -> None:
    """Draw the limits, and the power before a margin is kept."""
    margin = " less margin" if plan.rack.margin else ""
    lines = {"supply" if plan.rack.supply_w else "feeds": plan.rack.capacity_w} if margin else {}
    for limit in plan.limits:
        if limit.room is None:
            lines[f"{limit.name}{margin if limit.name != 'cooling' else ''}"] = limit.watts
    top = max(lines.values())
    groups: list[list[tuple[str, float]]] = []
    for number, (name, watts) in enumerate(sorted(lines.items(), key=lambda item: item[1])):
        axes.axhline(watts / KW, color=DARK, linewidth=1.1, linestyle=("-", "--", "-.", ":")[number % 4])
        if groups and watts - groups[-1][-1][1] < CLOSE * top:
            groups[-1].append((name, watts))
        else:
            groups.append([(name, watts)])
    for group in groups:
        text = ", ".join(f"{name} {format_power(watts)}" for name, watts in group)
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
        axes.annotate(
            text, (1.0, group[-1][1] / KW), xycoords=("axes fraction", "data"), xytext=(-2, 2),
            textcoords="offset points", ha="right", va="bottom", fontsize=7, color=DARK, bbox=box,
        )  # fmt: skip
    tallest = max((row.nodes or 0) * (row.node_w or 0.0) + _find_error(row) for row in rows)
    axes.set_ylim(0, 1.08 * max(top, tallest) / KW)
