"""Make the curves that figures show from a study: what lies where, with which bars and marks. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import choose_knob_unit, format_knob, format_knobs, rank_value
from joulelab.analysis.choice import choose_best
from joulelab.analysis.goals import Goal
from joulelab.report import format as fmt
from joulelab.report.study_tables import UNCAPPED, choose_scalings, name_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import ScalingPoint, StudySummary
    from joulelab.core.quantity import Quantity

BARS = "Bars: expanded uncertainty, k = 2."
NO_BARS = "No bars: one run each, or a meter of unknown accuracy, so nothing is known of it."
MARKS = "Star: best. Ring: no significant difference from it. Square: reference."
FRONT_MARKS = "Pareto front. Ring: behind it only within the uncertainty. Square: reference."
HALF = "The gain by EDS(2) is by algebra half of gain minus loss."
AXIS_NAMES = {"cap": "power cap", "cpu_cap": "CPU power cap", "clock": "GPU clock", "gpus": "GPUs"}
MOST_SCALINGS = 6


@dataclass(frozen=True, slots=True)
class Curve:
    """Hold the points of one line of cells; `best`, `tied`, `reference` and `front` are positions in them."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    bars: tuple[float, ...] | None
    x_bars: tuple[float, ...] | None = None
    names: tuple[str, ...] = ()
    best: int | None = None
    tied: tuple[int, ...] = ()
    reference: int | None = None
    front: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """Hold one pair of axes: `ticks` are names in place of numbers; `level` is a line across, where nothing changes."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    note: str
    ticks: tuple[str, ...] | None = None
    joined: bool = True
    level: float | None = None
    one_front: bool = True

    @property
    def crowded(self) -> bool:
        """Return whether the names under the axis need room."""
        return self.ticks is not None and sum(len(t) + 2 for t in self.ticks) > 80


def panels_of(summary: StudySummary) -> list[Panel]:
    """Return energy, time, EDP, their gains, EDS(k) and gain minus loss, as far as there is data for them."""
    per = summary.lines[0].per if summary.lines else None
    unit = f" per {per.removesuffix('s')}" if per else ""
    wanted: list[tuple[str, str, str, Goal, Any]] = [
        ("energy", f"energy{unit}", "J", Goal("energy"), lambda c: c.compared and c.compared.energy),
        ("time", f"time{unit}", "s", Goal("time"), lambda c: c.compared and c.compared.time),
        ("edp", f"energy-delay product{unit}{' squared' if per else ''}", "J s", Goal("edp"), lambda c: c.edp),
    ]
    wanted += [
        ("energy-gain", "energy gain", "%", Goal("energy"), lambda c: c.gain),
        ("time-loss", "time loss", "%", Goal("time"), lambda c: c.loss),
        ("edp-gain", "gain by EDP", "%", Goal("edp"), lambda c: c.edp_gain),
    ]
    wanted += [
        (f"eds-{k:g}", f"gain by EDS({k:g})", "%", Goal("eds", k), lambda c, k=k: c.eds_gain.get(k)) for k in summary.ks
    ]
    wanted.append(("gain-minus-loss", "gain minus loss", "%", Goal("gain-loss"), lambda c: c.gain_minus_loss))
    panels = [_panel(summary, *each) for each in wanted]
    return [p for p in panels if p.curves]


def pareto_of(summary: StudySummary, line_name: str = "Black line") -> Panel | None:
    """Return energy over time, with the front of all cells that can be compared; None without energies.

    `line_name` is what the note calls the front's line: black on paper.
    """
    overall = summary.front_for()
    fronts = {line.key: overall or summary.front_for(line.key) for line in summary.lines}
    rows = [c for c in summary.cells if c.compared is not None and c.compared.energy is not None]
    if not rows:
        return None
    factor, unit = fmt.choose_scale([c.compared.energy.value for c in rows if c.compared and c.compared.energy], "J")
    curves = []
    for line in summary.lines:
        of = [c for c in summary.of_line(line) if c in rows]
        front = fronts[line.key]
        if not of or front is None:
            continue
        keys = [c.key for c in of]
        energies = [c.compared.energy for c in of if c.compared is not None and c.compared.energy is not None]
        times = [c.compared.time for c in of if c.compared is not None]
        curves.append(
            Curve(
                format_knobs(line.knobs),
                tuple(q.value for q in times),
                tuple(q.value / factor for q in energies),
                _bars(energies, factor),
                _bars(times, 1.0),
                tuple(_front_name(summary, key, line) for key in keys),
                tied=tuple(keys.index(k) for k in front.unsure if k in keys),
                reference=keys.index(line.reference) if line.reference in keys else None,
                front=tuple(keys.index(k) for k in front.cells if k in keys),
            )
        )
    per = summary.lines[0].per
    of_work = f" per {per.removesuffix('s')}" if per else ""
    labels = f"time{of_work}, s", f"energy{of_work}, {unit}"
    note, one = f"{_said(curves)} {line_name}: {FRONT_MARKS}", overall is not None
    return Panel("pareto", "Time and energy", *labels, tuple(curves), note, joined=False, one_front=one)


def _front_name(summary: StudySummary, key: str, line: CellLine) -> str:
    """Return a cell by its line, where there are several, and its place in it."""
    name = name_cell(summary, key, line) + (UNCAPPED if summary.cell(key).uncapped else "")
    return f"{format_knobs(line.knobs)}, {name}" if len(summary.lines) > 1 else name


def scaling_panels(summary: StudySummary) -> list[Panel]:
    """Return speed-up, efficiency and energy over GPU counts, at the caps that matter; none without counts."""
    scalings = (choose_scalings(summary) or list(summary.scaling))[:MOST_SCALINGS]
    if not scalings:
        return []
    wanted: list[tuple[str, str, float, Callable[[ScalingPoint], Quantity | None]]] = [
        ("speed-up", "speed-up", 1.0, lambda p: p.speedup),
        ("efficiency", "efficiency, %", 0.01, lambda p: p.efficiency),
        ("energy", "energy ratio", 1.0, lambda p: p.energy_ratio),
    ]
    panels = []
    left_out = len(summary.scaling) - len(scalings)
    which = (
        f" {len(scalings)} of {len(summary.scaling)} sets of the other knobs are shown: " if left_out else " Shown: "
    )
    note = which + ", ".join(s.key or "all" for s in scalings) + "."
    for name, label, factor, pick in wanted:
        curves = []
        for s in scalings:
            points = [(p.gpus, q) for p in s.points if (q := pick(p)) is not None]
            if points:
                x, quantities = zip(*points, strict=True)
                y = tuple(q.value / factor for q in quantities)
                curves.append(Curve(s.key, tuple(x), y, _bars(quantities, factor)))
        if curves:
            panels.append(Panel(name, "", "GPUs", label, tuple(curves), _said(curves) + note))
    return panels


def _panel(summary: StudySummary, name: str, title: str, unit: str, goal: Goal, pick: Any) -> Panel:
    share = unit == "%"
    values = [q.value for c in summary.cells if (q := pick(c)) is not None]
    factor, prefixed = (0.01, "%") if share else (1.0, "s") if unit == "s" else fmt.choose_scale(values, unit)
    places, x_label, ticks = _places(summary)
    made = [_curve(summary, line, goal, pick, factor, places) for line in summary.lines]
    curves = tuple(c for c in made if c.x)
    note = f"{_said(curves)} {MARKS}"
    if name == "gain-minus-loss" or goal.k == 2.0:
        note += f" {HALF}"
    heading = f"{title[:1].upper()}{title[1:]}"
    joined = all(line.axis is not None for line in summary.lines)
    level = 0.0 if share else None
    return Panel(name, heading, x_label, f"{title}, {prefixed}", curves, note, ticks, joined=joined, level=level)


def _curve(
    summary: StudySummary, line: CellLine, goal: Goal, pick: Any, factor: float, places: dict[str, float]
) -> Curve:
    rows = [(c.key, q) for c in summary.of_line(line) if (q := pick(c)) is not None]
    keys, quantities = [key for key, _ in rows], [q for _, q in rows]
    reference = summary.cell(line.reference).compared if line.reference else None
    best = choose_best(goal, line.key, summary.choosable(line), reference)
    return Curve(
        format_knobs(line.knobs),
        tuple(places[key] for key in keys),
        tuple(q.value / factor for q in quantities),
        _bars(quantities, factor),
        best=keys.index(best.cell) if best and best.cell in keys else None,
        tied=tuple(keys.index(key) for key in best.tied if key in keys) if best else (),
        reference=keys.index(line.reference) if line.reference in keys else None,
    )


def _places(summary: StudySummary) -> tuple[dict[str, float], str, tuple[str, ...] | None]:
    """Return where each cell lies along the axis, the axis' label, and names where the knob is not a number."""
    axis = summary.lines[0].axis if summary.lines else None
    if axis is None:
        names = [format_knobs(c.knobs) or c.key for c in summary.cells]
        return {c.key: float(k) for k, c in enumerate(summary.cells)}, "", tuple(names)
    values = {c.key: c.knobs.get(axis) for c in summary.cells}
    title = AXIS_NAMES.get(axis, axis)
    if all(math.isfinite(rank_value(v)) for v in values.values()):
        factor, unit = choose_knob_unit(axis, [rank_value(v) for v in values.values()])
        label = f"{title}, {unit}" if unit else title
        return {key: rank_value(v) / factor for key, v in values.items()}, label, None
    ordered = sorted(dict.fromkeys(values.values()), key=rank_value)
    return (
        {key: float(ordered.index(v)) for key, v in values.items()},
        title,
        tuple(format_knob(axis, v) for v in ordered),
    )


def _bars(quantities: Sequence[Quantity], factor: float) -> tuple[float, ...] | None:
    """Return the expanded uncertainties, None where no point has one."""
    reach = tuple((q.expanded or 0.0) / factor for q in quantities)
    return reach if any(reach) else None


def _said(curves: Sequence[Curve]) -> str:
    return BARS if any(c.bars for c in curves) else NO_BARS
