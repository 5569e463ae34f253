"""Draw a rack: the nodes that fit by each rule against its limits, and how long a node drew how much."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.charts.print_painter import COLOURS, STYLE, add_note, load_matplotlib, render_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from joulelab.plan.rack.decide import Decision
    from joulelab.plan.rack.rules import Row

GREY, DARK = "#777777", "#222222"
KINDS = {"nameplate": 1, "maximum": 0, "percentile": 2, "caps": 3}
BESIDE_IN, ALONE_IN, HIGH_IN = 8.6, 6.4, 4.2
KW = 1000.0
CLOSE = 0.05  # of the highest line


def draw_rack(decision: Decision, kind: str) -> bytes:
    """Return the picture of a rack as a file of a format: pdf, svg or png. Raises MissingDependency."""
    mpl, Figure = load_matplotlib()  # noqa: N806 - a class
    with mpl.rc_context({**STYLE, "axes.titlesize": 10}):
        wide = ALONE_IN if decision.curve is None else BESIDE_IN
        figure = Figure(figsize=(wide, HIGH_IN), layout="constrained")
        if decision.curve is None:
            _bars(figure.subplots(), decision)
        else:
            left, right = figure.subplots(1, 2, width_ratios=(3, 2))
            _bars(left, decision)
            _curve(right, decision)
        add_note(figure, note(decision))
        return render_figure(figure, kind)


def note(decision: Decision) -> str:
    """Return what stands below the picture."""
    found = []
    if decision.twins:
        said = fmt.name_twins(decision.twins)
        found.append(f"{said[:1].upper()}{said[1:]}.")
    found.append("Each box is a node that fits by the rule, at the wall.")
    if any(_more(row) for row in decision.rows):
        found.append("Bars: up to what is known of meters (k = 2), hidden peaks and other nodes allows for so many.")
    lacks = dict.fromkeys(text for row in decision.rows if _more(row) for text in row.lacks)
    if lacks:
        found.append(f"Without {', '.join(lacks)}: nobody states it.")
    if decision.held is not None:
        found.append(f"Every run was under {decision.held.said}.")
    refused = [row.rule for row in decision.rows if row.nodes is None]
    if refused:
        found.append(f"No answer by {', '.join(refused)}: see the table.")
    return " ".join(found)


def _more(row: Row) -> float:
    """Return how much more so many nodes may draw than the rule says, in W."""
    if row.nodes is None or row.upper_w is None or row.node_w is None:
        return 0.0
    return row.nodes * (row.upper_w - row.node_w)


def _at(row: Row) -> str:
    return f"\nunder {row.held}" if row.held else ""


def _bars(axes: Axes, decision: Decision) -> None:
    rows = [row for row in decision.rows if row.nodes is not None and row.node_w is not None]
    for k, row in enumerate(rows):
        assert row.nodes is not None
        assert row.node_w is not None
        colour = COLOURS[KINDS[row.kind]]
        for n in range(row.nodes):
            axes.bar(
                k, row.node_w / KW, bottom=n * row.node_w / KW, width=0.6, color=colour, alpha=0.85, edgecolor="white",
                linewidth=1.0,
            )  # fmt: skip
        whole, more = row.nodes * row.node_w / KW, _more(row) / KW
        if more > 0:
            axes.errorbar(k, whole, yerr=[[0.0], [more]], color=DARK, capsize=3, linewidth=1.0)
        middle = (row.nodes // 2 + 0.5) * row.node_w / KW  # of a box, not on the line between two
        axes.annotate(
            str(row.nodes), (k, middle if row.nodes else 0.0), ha="center", va="center" if row.nodes else "bottom",
            color="white" if row.nodes else DARK, fontsize=13, fontweight="bold",
        )  # fmt: skip
    names = [f"{row.rule}\n{fmt.format_number((row.node_w or 0.0) / KW)} kW{_at(row)}" for row in rows]
    axes.set_xticks(range(len(rows)), [name.replace(" maximum", "\nmaximum") for name in names])
    axes.set_ylabel("power of all nodes, kW")
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, len(rows) - 0.4)
    _limits(axes, decision)
    axes.set_title(decision.title or "Nodes that fit, by rule", loc="left")


def _limits(axes: Axes, decision: Decision) -> None:
    """Draw the limits, and what there is before a margin is kept."""
    capacity = decision.rack.capacity_w / KW
    lines = {"supply" if decision.rack.supply_w else "feeds": capacity} if decision.rack.margin else {}
    for limit in decision.limits:
        if limit.room is None:
            less = " less margin" if decision.rack.margin and limit.name != "cooling" else ""
            lines[f"{limit.name}{less}"] = limit.watts / KW
    top = max(lines.values())
    near: list[list[tuple[str, float]]] = []
    for number, (name, kilowatts) in enumerate(sorted(lines.items(), key=lambda item: item[1])):
        axes.axhline(kilowatts, color=DARK, linewidth=1.1, linestyle=("-", "--", "-.", ":")[number % 4])
        if near and kilowatts - near[-1][-1][1] < CLOSE * top:
            near[-1].append((name, kilowatts))
        else:
            near.append([(name, kilowatts)])
    for group in near:  # lines that lie close together have one name
        _named(axes, ", ".join(f"{name} {fmt.format_number(kilowatts)} kW" for name, kilowatts in group), group[-1][1])
    tallest = max((row.nodes * row.node_w + _more(row) for row in decision.rows if row.nodes and row.node_w), default=0)
    axes.set_ylim(0, 1.08 * max(top, tallest / KW))


def _named(axes: Axes, name: str, at: float) -> None:
    """Write a line's name above its right end; it may lie on the curve."""
    axes.annotate(
        name, (1.0, at), xycoords=("axes fraction", "data"), xytext=(-2, 2), textcoords="offset points", ha="right",
        va="bottom", fontsize=7, color=DARK, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
    )  # fmt: skip


def _curve(axes: Axes, decision: Decision) -> None:
    assert decision.curve is not None
    shares, watts = decision.curve
    axes.step(shares, watts / KW, where="pre", color=COLOURS[0], linewidth=1.4, zorder=5)
    axes.set_xscale("log")
    axes.set_xlim(max(min(shares[0], 1.0) * 0.8, 1e-4), 100.0)
    ticks = [t for t in (0.001, 0.01, 0.1, 1.0, 10.0, 100.0) if t >= axes.get_xlim()[0]]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("share of the time at or above, %")
    axes.set_ylabel("power of a node, kW")
    axes.set_title("How long a node drew how much", loc="left")
    best, rated = decision.best, decision.row("nameplate")
    marks = [] if best.allowed_w is None else [(best.allowed_w, f"{best.nodes} nodes may draw", "--")]
    more = [t for t in decision.targets if best.nodes is not None and t.nodes == best.nodes + 1 and t.room]
    marks += [(t.allowed_w, f"{t.nodes} nodes may draw", ":") for t in more]
    if rated is not None and rated.node_w is not None:
        marks.append((rated.node_w, "nameplate", "-"))
    for value, name, dashes in marks:
        axes.axhline(value / KW, color=GREY, linewidth=1.0, linestyle=dashes)
        _named(axes, f"{name} {fmt.format_number(value / KW)} kW", value / KW)
    axes.set_ylim(0, 1.1 * max([float(watts.max()), *(value for value, _, _ in marks)]) / KW)
