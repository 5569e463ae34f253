"""Make the charts of a study: metrics over a knob, Pareto front, heat maps over two knobs, scaling. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import (
    AXES,
    GROUP_KNOBS,
    choose_knob_unit,
    format_knob,
    format_knobs,
    rank_value,
)
from joulelab.analysis.goals import Goal, choose_best
from joulelab.analysis.study_cells import ASSUMED_SPREAD
from joulelab.core.quantity import ONE
from joulelab.core.text import name_one
from joulelab.report import format as fmt
from joulelab.report.charts.chart_model import (
    COMPARED_NOTE,
    EXPANDED_NOTE,
    MARK_NAMES,
    MARKS_NOTE,
    UNSHARED_NOTE,
    BarChart,
    ChartBar,
    ChartCurve,
    CurveChart,
    HeatMap,
    HeatTile,
    format_point,
)
from joulelab.report.study_tables import ESTIMATE, UNCAPPED, choose_scalings, name_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import CellMetrics, ScalingPoint, StudySummary
    from joulelab.analysis.goals import BestCell
    from joulelab.core.quantity import Quantity

NO_BARS_NOTE = "No error bars: each cell has one run, or the accuracy of the meter is unknown."
OWN_BARS_NOTE = "Error bars: the 95 % intervals (k = 2) of the cells, because no cell can be the best."
SOME_OWN_NOTE = "Lines without a best cell have the intervals of their cells."
ASSUMED_NOTE = f"Where a cell has one run, it is assumed to be off by up to {ASSUMED_SPREAD * 100:g} %."
FRONT_NOTE = "Line: Pareto front."
HALF_NOTE = "The gain by EDS(2) is by algebra half of gain minus loss."
AXIS_NAMES = {"cap": "power cap", "cpu_cap": "CPU power cap", "clock": "GPU clock", "gpus": "GPUs"}
MOST_SCALINGS = 6
LEAST_VALUES = 2  # of a knob, for a heat map over it
MOST_PLANES = 6  # sets of the other knobs that have heat maps
TILE_DIGITS, WHOLE_FROM = 3, 1000.0  # larger figures are written as whole numbers
ZOOM_MARGIN = 0.5  # beyond the front, as a share of its extent
LEAST_ZOOMED, MOST_ZOOMED_SHARE = 3, 0.7  # points near the front, for a picture of their own


@dataclass(frozen=True, slots=True)
class ChartedMetric:
    """Hold a metric of a cell: name, words, unit, the goal it serves, and the function that finds it in a cell.

    `find_whole` finds the figure of the reference that a share is a part of; None if bars are in the metric's unit.
    """

    name: str
    title: str
    unit: str
    goal: Goal
    find: Callable[[CellMetrics], Quantity | None]
    find_whole: Callable[[CellMetrics], Quantity | None] | None = None

    def choose_scale(self, values: Sequence[float]) -> tuple[float, str]:
        """Choose factor and prefixed unit for values; shares are in percent, times always in seconds."""
        if self.unit == "%":
            return 0.01, "%"
        return (1.0, "s") if self.unit == "s" else fmt.choose_scale(values, self.unit)

    @property
    def heading(self) -> str:
        """Return the title with a capital letter."""
        return f"{self.title[:1].upper()}{self.title[1:]}"


def _list_main_metrics(per: str | None) -> list[ChartedMetric]:
    """List energy, time and energy-delay product, per unit of work if cells are compared by work."""
    unit, squared = (f" per {name_one(per)}", " squared") if per else ("", "")
    return [
        ChartedMetric("energy", f"energy{unit}", "J", Goal("energy"), _find_energy),
        ChartedMetric("time", f"time{unit}", "s", Goal("time"), _find_time),
        ChartedMetric("edp", f"energy-delay product{unit}{squared}", "J s", Goal("edp"), lambda c: c.edp),
    ]


def _find_energy(cell: CellMetrics) -> Quantity | None:
    return cell.compared.energy if cell.compared else None


def _find_time(cell: CellMetrics) -> Quantity | None:
    return cell.compared.time if cell.compared else None


def make_metric_charts(summary: StudySummary) -> list[CurveChart]:
    """Make a chart of each metric that the study has data for: energy, time, EDP, their gains, EDS(k), gain - loss."""
    metrics = _list_main_metrics(summary.lines[0].per if summary.lines else None)
    metrics += [
        ChartedMetric("energy-gain", "energy gain", "%", Goal("energy"), lambda c: c.gain, _find_energy),
        ChartedMetric("time-loss", "time loss", "%", Goal("time"), lambda c: c.loss, _find_time),
        ChartedMetric("edp-gain", "gain by EDP", "%", Goal("edp"), lambda c: c.edp_gain, lambda c: c.edp),
    ]
    for k in summary.ks:
        metrics.append(
            ChartedMetric(f"eds-{k:g}", f"gain by EDS({k:g})", "%", Goal("eds", k), lambda c, k=k: c.eds_gain.get(k))  # type: ignore[misc]
        )
    metrics.append(
        ChartedMetric("gain-minus-loss", "gain minus loss", "%", Goal("gain-loss"), lambda c: c.gain_minus_loss)
    )
    charts = [_make_metric_chart(summary, metric) for metric in metrics]
    return [chart for chart in charts if chart.curves]


def _make_metric_chart(summary: StudySummary, metric: ChartedMetric) -> CurveChart:
    factor, unit = metric.choose_scale([q.value for c in summary.cells if (q := metric.find(c)) is not None])
    places, x_label, ticks = _place_cells(summary)
    curves = [_make_metric_curve(summary, line, metric, factor, places) for line in summary.lines]
    curves = [curve for curve in curves if curve.x]
    is_halved = metric.name == "gain-minus-loss" or metric.goal.k == 2.0
    return CurveChart(
        metric.name,
        metric.heading,
        x_label,
        f"{metric.title}, {unit}",
        tuple(curves),
        HALF_NOTE if is_halved else "",
        ticks,
        is_joined=all(line.axis is not None for line in summary.lines),
        level=0.0 if unit == "%" else None,
        bars=_word_bars(summary, curves, metric),
        goal="" if (goal := _choose_goal(summary, metric.goal)) == metric.goal else goal.text,
    )


def _make_metric_curve(
    summary: StudySummary, line: CellLine, metric: ChartedMetric, factor: float, places: dict[str, float]
) -> ChartCurve:
    points = [(c.key, q) for c in summary.list_line_cells(line) if (q := metric.find(c)) is not None]
    keys, quantities = [key for key, _ in points], [q for _, q in points]
    reference = summary.cell(line.reference) if line.reference else None
    goal, qualities = _choose_goal(summary, metric.goal), {c.key: c.quality for c in summary.list_line_cells(line)}
    against = reference.compared if reference else None
    best = choose_best(goal, line.key, summary.list_choosable(line), against, qualities)
    whole = 1.0
    if metric.find_whole is not None and reference is not None:
        whole = (metric.find_whole(reference) or ONE).value
    return ChartCurve(
        format_knobs(line.knobs),
        tuple(places[key] for key in keys),
        tuple(q.value / factor for q in quantities),
        _list_bars(best, keys, whole * factor)
        if _is_compared(summary) and best is not None
        else _list_expanded(quantities, factor),
        best=keys.index(best.cell) if best and best.cell in keys else None,
        tied=tuple(keys.index(key) for key in best.tied if key in keys) if best else (),
        reference=keys.index(line.reference) if line.reference in keys else None,
        uncapped=tuple(i for i, key in enumerate(keys) if summary.cell(key).uncapped),
    )


def _choose_goal(summary: StudySummary, plain: Goal) -> Goal:
    """Return the goal that chooses the best points of a metric; with limits if the study has it only with limits."""
    alike = [goal for goal in summary.goals if (goal.name, goal.k) == (plain.name, plain.k)]
    return alike[0] if alike and plain not in alike else plain


def _is_compared(summary: StudySummary) -> bool:
    """Return whether a line has cells that bars can compare; otherwise each bar is the interval of its cell."""
    return any(len(line.cells) > 1 for line in summary.lines)


def _list_bars(best: BestCell | None, keys: Sequence[str], factor: float) -> tuple[float, ...] | None:
    """List the half widths of bars that agree with the verdict on the best; None if nothing can be compared."""
    bars = tuple(best.bars.get(key, 0.0) / factor for key in keys) if best else ()
    return bars if any(bars) else None


def _place_cells(summary: StudySummary) -> tuple[dict[str, float], str, tuple[str, ...] | None]:
    """Return the position of each cell on the axis, the label of the axis, and names if the knob is not a number."""
    axis = summary.lines[0].axis if summary.lines else None
    if axis is None:
        names = [format_knobs(c.knobs) or c.key for c in summary.cells]
        return {c.key: float(k) for k, c in enumerate(summary.cells)}, "", tuple(names)
    values = {c.key: c.knobs.get(axis) for c in summary.cells}
    label = AXIS_NAMES.get(axis, axis)
    if all(math.isfinite(rank_value(v)) for v in values.values()):
        factor, unit = choose_knob_unit(axis, [rank_value(v) for v in values.values()])
        return {key: rank_value(v) / factor for key, v in values.items()}, f"{label}, {unit}" if unit else label, None
    ordered = sorted(dict.fromkeys(values.values()), key=rank_value)
    places = {key: float(ordered.index(v)) for key, v in values.items()}
    return places, label, tuple(format_knob(axis, v) for v in ordered)


def _list_expanded(quantities: Sequence[Quantity], factor: float) -> tuple[float, ...] | None:
    """List the expanded uncertainties; None if no point has one."""
    expanded = tuple((q.expanded or 0.0) / factor for q in quantities)
    return expanded if any(expanded) else None


def _word_bars(summary: StudySummary, curves: Sequence[ChartCurve], metric: ChartedMetric) -> str:
    """Explain bars that compare cells, and the assumption that they contain."""
    if not any(curve.expanded for curve in curves):
        return NO_BARS_NOTE
    if not _is_compared(summary):
        return EXPANDED_NOTE
    own = [curve.best is None and not curve.names for curve in curves if curve.expanded]
    if all(own):
        return OWN_BARS_NOTE
    compared = [cell.compared for cell in summary.cells if cell.compared is not None]
    is_assumed = any(not m.time.known for m in compared) if metric.goal.name != "energy" else False
    is_assumed |= metric.goal.needs_energy and any(m.energy is not None and not m.spread for m in compared)
    return " ".join((COMPARED_NOTE, *([ASSUMED_NOTE] if is_assumed else []), *([SOME_OWN_NOTE] if any(own) else [])))


def make_pareto_chart(summary: StudySummary) -> CurveChart | None:
    """Make a chart of energy over time with the Pareto front of comparable cells; None without energies."""
    overall = summary.front_for()
    known = {c.key: c.compared for c in summary.cells if c.compared is not None and c.compared.energy is not None}
    if not known:
        return None
    energies = {key: compared.energy for key, compared in known.items() if compared.energy is not None}
    factor, unit = fmt.choose_scale([q.value for q in energies.values()], "J")
    energy, time, _ = _list_main_metrics(None)
    curves = []
    for line in summary.lines:
        keys = [c.key for c in summary.list_line_cells(line) if c.key in known]
        front = overall or summary.front_for(line.key)
        if not keys or front is None:
            continue
        choosable = summary.list_choosable(line)
        curves.append(
            ChartCurve(
                format_knobs(line.knobs),
                tuple(known[key].time.value for key in keys),
                tuple(energies[key].value / factor for key in keys),
                _list_bars(choose_best(energy.goal, line.key, choosable, None), keys, factor),
                _list_bars(choose_best(time.goal, line.key, choosable, None), keys, 1.0),
                tuple(_name_front_cell(summary, key, line) for key in keys),
                tied=tuple(keys.index(key) for key in front.unsure if key in keys),
                reference=keys.index(line.reference) if line.reference in keys else None,
                front=tuple(keys.index(key) for key in front.cells if key in keys),
                uncapped=tuple(i for i, key in enumerate(keys) if summary.cell(key).uncapped),
            )
        )
    per = summary.lines[0].per
    work = f" per {name_one(per)}" if per else ""
    return CurveChart(
        "pareto",
        "Time and energy",
        f"time{work}, s",
        f"energy{work}, {unit}",
        tuple(curves),
        FRONT_NOTE,
        is_joined=False,
        has_one_front=overall is not None,
        bars=_word_bars(summary, curves, energy).replace(COMPARED_NOTE, UNSHARED_NOTE),
    )


def _name_front_cell(summary: StudySummary, key: str, line: CellLine) -> str:
    name = name_cell(summary, key, line) + (UNCAPPED if summary.cell(key).uncapped else "")
    return f"{format_knobs(line.knobs)}, {name}" if len(summary.lines) > 1 else name


def zoom_front(chart: CurveChart) -> CurveChart | None:
    """Return a chart of the region around the Pareto front; None if that is most of the picture anyway."""
    front = [(c.x[i], c.y[i]) for c in chart.curves for i in c.front]
    if not front:
        return None
    (low_x, high_x), (low_y, high_y) = ((min(v), max(v)) for v in zip(*front, strict=True))
    right, top = high_x + ZOOM_MARGIN * (high_x - low_x), high_y + ZOOM_MARGIN * (high_y - low_y)
    curves = tuple(
        _choose_points(c, [i for i in range(len(c.x)) if c.x[i] <= right and c.y[i] <= top]) for c in chart.curves
    )
    shown, all_points = (sum(len(c.x) for c in each) for each in (curves, chart.curves))
    if not LEAST_ZOOMED <= shown <= MOST_ZOOMED_SHARE * all_points:
        return None
    return replace(chart, title="Pareto front, enlarged", curves=curves)  # empty curves stay, so that colours do


def _choose_points(curve: ChartCurve, chosen: list[int]) -> ChartCurve:
    new = {old: k for k, old in enumerate(chosen)}

    def choose(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(values[i] for i in chosen)

    return replace(
        curve,
        x=choose(curve.x),
        y=choose(curve.y),
        expanded=None if curve.expanded is None else choose(curve.expanded),
        x_expanded=None if curve.x_expanded is None else choose(curve.x_expanded),
        names=choose(curve.names),
        best=None if curve.best is None else new.get(curve.best),
        tied=tuple(new[i] for i in curve.tied if i in new),
        reference=None if curve.reference is None else new.get(curve.reference),
        front=tuple(new[i] for i in curve.front if i in new),
        uncapped=tuple(new[i] for i in curve.uncapped if i in new),
    )


def make_scaling_charts(summary: StudySummary) -> list[CurveChart]:
    """Make charts of speed-up, efficiency and energy over the number of GPUs; none if this number does not vary."""
    scalings = (choose_scalings(summary) or list(summary.scaling))[:MOST_SCALINGS]
    metrics: list[tuple[str, str, float, Callable[[ScalingPoint], Quantity | None]]] = [
        ("speed-up", "speed-up", 1.0, lambda p: p.speedup),
        ("efficiency", "efficiency, %", 0.01, lambda p: p.efficiency),
        ("energy", "energy ratio", 1.0, lambda p: p.energy_ratio),
    ]
    is_cut = len(summary.scaling) > len(scalings)
    note = f"{len(scalings)} of {len(summary.scaling)} sets of the other knobs are shown." if is_cut else ""
    charts = []
    for name, label, factor, find in metrics:
        curves = []
        for scaling in scalings:
            points = [(p.gpus, q) for p in scaling.points if (q := find(p)) is not None]
            if points:
                gpus, quantities = zip(*points, strict=True)
                y = tuple(q.value / factor for q in quantities)
                curves.append(ChartCurve(scaling.key, tuple(gpus), y, _list_expanded(quantities, factor)))
        if curves:
            bars = EXPANDED_NOTE if any(curve.expanded for curve in curves) else NO_BARS_NOTE
            charts.append(CurveChart(name, "", "GPUs", label, tuple(curves), note, bars=bars))
    return charts


def group_cells(summary: StudySummary) -> list[tuple[str, StudySummary]]:
    """Split a study by workload and phase, whose figures cannot be compared."""
    keys_of: dict[str, list[str]] = {}
    for cell in summary.cells:
        name = format_knobs({n: cell.knobs[n] for n in GROUP_KNOBS if n in cell.knobs})
        keys_of.setdefault(name, []).append(cell.key)
    groups = []
    for name, keys in keys_of.items():
        lines = tuple(line for line in summary.lines if line.cells[0] in keys)
        cells = tuple(cell for cell in summary.cells if cell.key in keys)
        fronts = tuple(f for f in summary.fronts if f.line is None or any(f.line == line.key for line in lines))
        groups.append((name, replace(summary, cells=cells, lines=lines, fronts=fronts)))
    return groups


def shorten_labels(chart: CurveChart, group: str) -> CurveChart:
    """Remove the workload and phase of a group, which its heading shows, from the labels of a chart."""

    def shorten(name: str) -> str:
        return name.removeprefix(group).lstrip(" ,") if group else name

    curves = (replace(c, label=shorten(c.label), names=tuple(map(shorten, c.names))) for c in chart.curves)
    ticks = None if chart.ticks is None else tuple(map(shorten, chart.ticks))
    return replace(chart, curves=tuple(curves), ticks=ticks)


def convert_to_bars(chart: CurveChart) -> CurveChart | BarChart:
    """Turn a chart of named cells, which have no numeric order, into bars; other charts stay curves."""
    is_knob = chart.x_label in AXIS_NAMES.values()  # in order, with `no cap` at its end
    if chart.ticks is None or (chart.is_joined and (len(chart.curves) > 1 or is_knob)):
        return chart
    bars = []
    for curve in chart.curves:
        for i, (x, y) in enumerate(zip(curve.x, curve.y, strict=True)):
            is_reference = i == curve.reference
            mark = "best" if i == curve.best else "tied" if i in curve.tied else "reference" if is_reference else ""
            label = chart.ticks[round(x)] + (" (reference)" if is_reference and mark != "reference" else "")
            label += f" ({MARK_NAMES['uncapped']})" if i in curve.uncapped else ""
            expanded = curve.expanded[i] if curve.expanded else None
            text = format_point(y, expanded)
            bars.append(ChartBar(label, y, expanded, text, 0, mark))
    description = "; ".join(f"{bar.label}: {bar.text}{f' ({bar.mark})' if bar.mark else ''}" for bar in bars)
    return BarChart(chart.full_title, description, chart.y_label, tuple(bars), chart.note, level=chart.level)


def make_heat_maps(summary: StudySummary) -> list[HeatMap]:
    """Make heat maps of energy, time and EDP over two knobs, for each set of the other knobs.

    Empty if fewer than two knobs vary, or if cells are compared by different kinds of work.
    """
    groups: dict[str, list[CellMetrics]] = {}
    for cell in summary.cells:
        if cell.compared is not None:
            groups.setdefault(repr([cell.knobs.get(name) for name in GROUP_KNOBS]), []).append(cell)
    work_of = {line.key: line.per for line in summary.lines}
    maps = []
    for cells in groups.values():
        knobs = _choose_two_knobs(cells)
        works = {work_of.get(cell.line) for cell in cells}
        if knobs is None or len(works) > 1:
            continue
        planes: dict[str, list[CellMetrics]] = {}
        for cell in cells:
            name = format_knobs({knob: value for knob, value in cell.knobs.items() if knob not in knobs})
            planes.setdefault(name, []).append(cell)
        left_out = len(planes) - MOST_PLANES
        note = f"{MARKS_NOTE} {left_out} more sets of the other knobs have no map here." if left_out > 0 else MARKS_NOTE
        for name, plane in list(planes.items())[:MOST_PLANES]:
            suffix = f": {name}" if name and (len(planes) > 1 or len(groups) > 1) else ""
            for metric in _list_main_metrics(next(iter(works))):
                chart = _make_heat_map(summary, plane, knobs, metric)
                if chart is not None:
                    maps.append(replace(chart, title=chart.title + suffix, note=note))
    return maps


def _choose_two_knobs(cells: Sequence[CellMetrics]) -> tuple[str, str] | None:
    """Choose the two knobs with most values, a cap or clock along the bottom; None if fewer vary in all cells."""
    names = [name for name in cells[0].knobs if name not in GROUP_KNOBS and all(name in c.knobs for c in cells)]
    counts = {name: len({repr(c.knobs.get(name)) for c in cells}) for name in names}
    varying = sorted((n for n in names if counts[n] >= LEAST_VALUES), key=lambda n: -counts[n])
    if len(varying) < 2:
        return None
    x, y = sorted(varying[:2], key=lambda n: (n not in AXES, -counts[n]))
    return x, y


def _make_heat_map(
    summary: StudySummary, cells: Sequence[CellMetrics], knobs: tuple[str, str], metric: ChartedMetric
) -> HeatMap | None:
    columns, rows = (_list_values(cells, name) for name in knobs)
    x, y = knobs
    measured = {(repr(c.knobs.get(y)), repr(c.knobs.get(x))): c for c in cells if metric.find(c) is not None}
    if len(columns) < LEAST_VALUES or len(rows) < LEAST_VALUES or not measured:
        return None
    values = sorted(q.value for c in measured.values() if (q := metric.find(c)) is not None)
    scale = metric.choose_scale([values[len(values) // 2]])
    choosable = {c.key: c.compared for c in measured.values() if c.compared is not None and not c.uncapped}
    best = choose_best(metric.goal, None, choosable, None)

    def make_tile(row: Any, column: Any) -> HeatTile | None:
        cell = measured.get((repr(row), repr(column)))
        return None if cell is None else _make_tile(summary, cell, metric, scale, values, best)

    low, high = (f"{_format_tile(v / scale[0])} {scale[1]}" for v in (values[0], values[-1]))
    return HeatMap(
        metric.name,
        f"{metric.heading}, {scale[1]}",
        AXIS_NAMES.get(x, x),
        AXIS_NAMES.get(y, y),
        tuple(format_knob(x, v) for v in columns),
        tuple(format_knob(y, v) for v in rows),
        tuple(tuple(make_tile(row, column) for column in columns) for row in rows),
        low,
        high,
    )


def _list_values(cells: Sequence[CellMetrics], knob: str) -> list[Any]:
    """List the values of a knob: numbers by size, then the others."""
    values = {repr(c.knobs.get(knob)): c.knobs.get(knob) for c in cells}
    return sorted(values.values(), key=lambda v: (rank_value(v), str(v)))


def _make_tile(
    summary: StudySummary,
    cell: CellMetrics,
    metric: ChartedMetric,
    scale: tuple[float, str],
    values: Sequence[float],
    best: BestCell | None,
) -> HeatTile:
    q = metric.find(cell)
    assert q is not None
    factor, unit = scale
    mark = ""
    if best is not None and cell.key == best.cell:
        mark = "best"
    elif best is not None and cell.key in best.tied:
        mark = "tied"
    elif cell.key in {summary.reference, *(line.reference for line in summary.lines)}:
        mark = "reference"
    flaw = UNCAPPED if cell.uncapped else ""
    estimate = ESTIMATE if cell.estimate and unit != "s" else ""
    shown = fmt.format_scaled(q, factor, unit, estimate=bool(estimate))
    tooltip = f"{format_knobs(cell.knobs)}: {shown}{flaw}"
    least, most = values[0], values[-1]
    # By ratios: a factor of two is the same step of colour anywhere.
    share = math.log(q.value / least) / math.log(most / least) if 0 < least < most else 0.0
    text = f"{estimate}{_format_tile(q.value / factor)}{flaw}" if q.is_resolved else fmt.TOO_SHORT_CELL
    return HeatTile(text, tooltip, share, mark)


def _format_tile(value: float) -> str:
    return fmt.format_number(value, TILE_DIGITS + 1 if abs(value) >= WHOLE_FROM else TILE_DIGITS)
