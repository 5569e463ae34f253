"""Set up the pictures of a study's page: metrics against knobs, Pareto front, maps over two knobs, scaling. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.analysis.cell_lines import GROUP_KNOBS, format_knobs
from joulelab.report import format as fmt
from joulelab.report.charts.model import Bar, Bars
from joulelab.report.charts.svg_panels import draw_heat, draw_panel
from joulelab.report.page.blocks import Block, Columns, Drawing, Drawn, Fold, Heading, Part, Table, Text
from joulelab.report.page.study_tables import grid_of_columns
from joulelab.report.page.tables import figure
from joulelab.report.study.heat import heats_of
from joulelab.report.study_curves import AXIS_NAMES, panels_of, pareto_of, scaling_panels
from joulelab.report.study_tables import choose_scalings, scaling_columns, title_scaling

if TYPE_CHECKING:
    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.report.charts.heat import Heat
    from joulelab.report.study_curves import Curve, Panel

FEW = 2  # so many workloads and phases show more than their energy at once
OPEN = ("energy", "time", "edp")  # the others are opened by a click, but for those that are goals
SMALL = (420.0, 300.0)  # of pictures that stand side by side
GOALS = {"gain-loss": "gain-minus-loss"}
MOST_OPEN = 6  # maps that stand open
AROUND = 0.5  # so far beyond the front its neighbourhood goes, of the front's own extent
FEWEST, MOST_OF_ALL = 3, 0.7  # points of a neighbourhood, and share of all that is no neighbourhood any more


def groups_of(summary: StudySummary) -> list[tuple[str, StudySummary]]:
    """Return the study workload by workload and phase by phase: their figures have nothing in common."""
    found: dict[str, list[str]] = {}
    for cell in summary.cells:
        name = format_knobs({n: cell.knobs[n] for n in GROUP_KNOBS if n in cell.knobs})
        found.setdefault(name, []).append(cell.key)
    groups = []
    for name, keys in found.items():
        lines = tuple(line for line in summary.lines if line.cells[0] in keys)
        cells = tuple(cell for cell in summary.cells if cell.key in keys)
        fronts = tuple(f for f in summary.fronts if f.line is None or any(f.line == line.key for line in lines))
        groups.append((name, replace(summary, cells=cells, lines=lines, fronts=fronts)))
    return groups


def drawn_panel(panel: Panel, group: str) -> Block:
    """Return a panel as what a page shows; what its heading says of all curves is left out of their names.

    Cells that no number orders are bars below each other, with their names beside them.
    """
    shown = named_within(panel, group)
    along_cap = panel.x_label in AXIS_NAMES.values()  # in order, with `no cap` at its end
    if panel.ticks is not None and (not panel.joined or (len(panel.curves) == 1 and not along_cap)):
        return Drawing(bars_of(shown), panel.note)
    return Drawn(figure(draw_panel(shown), panel.note, title=panel.title or panel.y_label))


def bars_of(panel: Panel) -> Bars:
    """Return a panel of named cells as bars."""
    ticks = panel.ticks or ()
    bars = []
    for curve in panel.curves:
        for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
            mark = "reference" if i == curve.reference else "tied" if i in curve.tied else ""
            expanded = curve.bars[i] if curve.bars else None
            text = (
                fmt.format_interval(y, expanded, signed=panel.level is not None) if expanded else fmt.format_number(y)
            )
            bars.append(Bar(ticks[round(x)], y, expanded, text, 0, "best" if i == curve.best else mark))
    about = "; ".join(f"{bar.label}: {bar.text}{f' ({bar.mark})' if bar.mark else ''}" for bar in bars)
    return Bars(panel.title, about, panel.y_label, tuple(bars), level=panel.level)


def named_within(panel: Panel, group: str) -> Panel:
    """Return a panel whose curves are named without what is the same in all of them: workload and phase."""

    def short(name: str) -> str:
        return name.removeprefix(group).lstrip(" ,") if group else name

    curves = (replace(c, label=short(c.label), names=tuple(map(short, c.names))) for c in panel.curves)
    ticks = None if panel.ticks is None else tuple(map(short, panel.ticks))
    return replace(panel, curves=tuple(curves), ticks=ticks)


def metric_part(summary: StudySummary) -> Part | None:
    """Return every metric against the knob of the lines, with best and indistinguishable cells; the rest folded."""
    blocks: list[Block] = []
    groups = groups_of(summary)
    usual = OPEN if len(groups) <= FEW else OPEN[:1]
    wanted = {*usual, *(GOALS.get(goal.name, goal.name) for goal in summary.goals[:1])}
    for name, group in groups:
        panels = panels_of(group) if len(group.cells) > 1 else []  # one alone is in the tables
        first, rest = [p for p in panels if p.name in wanted], [p for p in panels if p.name not in wanted]
        if name and len(groups) > 1 and panels:
            blocks.append(Heading(name))
        blocks += [drawn_panel(panel, name) for panel in first]
        if rest:
            inner = tuple(drawn_panel(panel, name) for panel in rest)
            blocks.append(Fold(f"{len(rest)} more pictures, of gains against the reference", inner))
    return Part("metrics", "Metrics against knobs", tuple(blocks)) if blocks else None


def front_part(summary: StudySummary) -> Part | None:
    """Return time and energy of all cells with the Pareto front."""
    blocks: list[Block] = []
    groups = groups_of(summary)
    for name, group in groups:
        panel = pareto_of(group, "Line")  # its colour is that of the theme
        if panel is None or not _is_telling(panel):
            continue
        blocks += [Heading(name)] if name and len(groups) > 1 else []
        blocks.append(drawn_panel(panel, name))
        near = zoomed(panel)
        if near is not None:
            blocks.append(drawn_panel(near, name))
    return Part("front", "Time and energy: Pareto front", tuple(blocks)) if blocks else None


def _is_telling(panel: Panel) -> bool:
    """Return whether a front is worth a picture: it has two cells, or is chosen among several."""
    front, cells = (sum(map(len, of)) for of in ([c.front for c in panel.curves], [c.x for c in panel.curves]))
    return cells > FEWEST or (front > 1 and cells > 1)


def zoomed(panel: Panel) -> Panel | None:
    """Return the neighbourhood of the front alone; None where that is most of the picture."""
    front = [(c.x[i], c.y[i]) for c in panel.curves for i in c.front]
    if not front:
        return None
    (low_x, high_x), (low_y, high_y) = ((min(v), max(v)) for v in zip(*front, strict=True))
    right, top = high_x + AROUND * (high_x - low_x), high_y + AROUND * (high_y - low_y)
    curves = [_kept(c, [i for i in range(len(c.x)) if c.x[i] <= right and c.y[i] <= top]) for c in panel.curves]
    shown, there = (sum(len(c.x) for c in of) for of in (curves, panel.curves))
    if not FEWEST <= shown <= MOST_OF_ALL * there:
        return None
    return replace(panel, title="The front from near by", curves=tuple(curves))  # without points a colour stays


def _kept(curve: Curve, kept: list[int]) -> Curve:
    """Return a curve with some of its points only."""
    places = {old: new for new, old in enumerate(kept)}

    def of(values: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return None if values is None else tuple(values[i] for i in kept)

    def moved(marks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(places[i] for i in marks if i in places)

    return replace(
        curve,
        x=tuple(curve.x[i] for i in kept),
        y=tuple(curve.y[i] for i in kept),
        bars=of(curve.bars),
        x_bars=of(curve.x_bars),
        names=tuple(curve.names[i] for i in kept),
        best=None if curve.best is None else places.get(curve.best),
        tied=moved(curve.tied),
        reference=None if curve.reference is None else places.get(curve.reference),
        front=moved(curve.front),
    )


def map_part(summary: StudySummary) -> Part | None:
    """Return maps over two knobs, where two vary."""
    heats = heats_of(summary)
    if not heats:
        return None
    blocks = [block for heat in heats[:MOST_OPEN] for block in _map(heat)]
    rest = heats[MOST_OPEN:]
    if rest:
        blocks.append(Fold(f"{len(rest)} more maps", tuple(block for heat in rest for block in _map(heat))))
    return Part("maps", "Maps over two knobs", tuple(blocks))


def _map(heat: Heat) -> list[Block]:
    return [Drawn(figure(draw_heat(heat), heat.note, title=heat.title))]


def scaling_part(summary: StudySummary) -> Part | None:
    """Return speed-up, efficiency and energy over GPU counts, with the table."""
    panels = scaling_panels(summary)
    if not panels:
        return None
    groups = [name for name, _ in groups_of(summary)]
    group = groups[0] if len(groups) == 1 else ""
    width, height = SMALL
    made = (draw_panel(named_within(panel, group), width=width, height=height) for panel in panels)
    pictures = Columns(tuple(Drawn(figure(each, title=p.y_label)) for each, p in zip(made, panels, strict=True)))
    shown = choose_scalings(summary)
    tables: list[Block] = []
    if shown:
        grid = grid_of_columns(scaling_columns(summary, shown))
        tables.append(Table(grid, title_scaling(summary, shown)))
    return Part("scaling", "Scaling", (pictures, Text(panels[0].note, "muted"), *tables))
