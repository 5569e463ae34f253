"""Choose what of a study is shown and in which words: columns of metrics, the best cells, scaling. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import AXES, choose_knob_unit, format_knob, format_knobs
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import CellMetrics, Scaling, StudySummary
    from joulelab.analysis.choice import BestCell
    from joulelab.core.quantity import Quantity

ESTIMATE = "~"  # before figures that rest on an estimate
UNCAPPED = "!"  # after cells whose cap was not in force
FEW_SCALINGS = 4  # so many sets of the other knobs are all shown
ALL_RUNS = "all runs"  # a cell that nothing but its workload names
HALVED = 2.0  # EDS of this k is half of gain minus loss: shown once, by its name


@dataclass(frozen=True, slots=True)
class Column:
    """Hold one metric of the cells of a line: heading (of up to three lines) with its unit, and what is in each row."""

    head: str
    cells: tuple[str, ...]


def title_line(summary: StudySummary, line: CellLine) -> str:
    """Return which cells these are, and what they are compared with."""
    title = format_knobs(line.knobs) or "all cells"
    data = {r.data for r in summary.of_line(line)}
    if len(data) == 1 and data != {""}:
        title += f" · {_told_as(summary.of_line(line))} {fmt.format_data_name(next(iter(data)))}"
    idle = set(_idle(summary, line).cells)
    if len(idle) == 1 and idle != {fmt.NOTHING}:
        title += f" · idle GPUs: {idle.pop()} % of the GPUs' energy"
    if line.reference is None or has_one_cell(summary, line):
        return title
    others = _unsaid(summary.cell(line.reference).knobs, line)
    unit = f", per {line.per.removesuffix('s')}" if line.per else ""
    return f"{title} · compared with {format_knobs(others) or name_plain_cell(summary, line.reference)}{unit}"


def has_one_cell(summary: StudySummary, line: CellLine) -> bool:
    """Return whether a line is one cell that its title names: there is nothing to compare or choose."""
    return len(line.cells) == 1 and not _unsaid(summary.cell(line.cells[0]).knobs, line)


def name_plain_cell(summary: StudySummary, key: str) -> str:
    """Return what stands for a cell that no knob names; its key only where another has the same knobs."""
    knobs = summary.cell(key).knobs
    return key if sum(c.knobs == knobs for c in summary.cells) > 1 else ALL_RUNS


def _unsaid(knobs: Mapping[str, Any], line: CellLine) -> dict[str, Any]:
    """Return the knobs that the title of a line does not say already."""
    return {n: v for n, v in knobs.items() if n not in line.knobs or line.knobs[n] != v}


def make_label_column(summary: StudySummary, line: CellLine) -> Column:
    """Return what tells the cells of a line apart; the reference has a star, a cap that was not in force a `!`."""
    rows, alone = summary.of_line(line), has_one_cell(summary, line)
    if line.axis is None:
        names, head = [format_knobs(_unsaid(r.knobs, line)) or name_plain_cell(summary, r.key) for r in rows], ""
    else:
        values = [r.knobs.get(line.axis) for r in rows]
        names = [format_knob(line.axis, v) for v in values]
        numbers = [v for v in values if isinstance(v, (int, float))]
        alike = numbers and len(numbers) == len([v for v in values if v is not None])
        unit = choose_knob_unit(line.axis, numbers)[1] if alike else ""
        names = [n.removesuffix(f" {unit}") for n in names] if unit else names
        head = f"{line.axis}, {unit}" if unit else line.axis
    marks = [(UNCAPPED if r.uncapped else "") + ("*" if r.key == line.reference and not alone else "") for r in rows]
    return Column(head, tuple(f"{n}{mark}" for n, mark in zip(names, marks, strict=True)))


def list_measured_columns(summary: StudySummary, line: CellLine) -> list[Column]:
    """Return repeats, energy, time and mean power, energy per unit of work, and quality; estimates with their mark."""
    rows = summary.of_line(line)
    estimates = [r.estimate for r in rows]
    columns = [
        Column("n", tuple(str(r.n) for r in rows)),
        _marked(_absolute("energy", "J", [r.energy for r in rows]), estimates),
        _absolute("time", "s", [r.time for r in rows]),
        _marked(_absolute("mean", "W", [r.mean_w for r in rows]), estimates),
    ]
    kinds = dict.fromkeys(kind for r in rows for kind in r.per_work)
    for kind in kinds:
        column = _absolute(f"per {kind.removesuffix('s')}", "J", [r.per_work.get(kind) for r in rows])
        columns.append(_marked(column, estimates))
    columns += list_quality_columns(rows)
    if any(r.idle_energy is not None and r.idle_energy.value > 0 for r in rows):
        columns.append(_absolute("idle devices", "J", [r.idle_energy for r in rows]))
    idle = _idle(summary, line)
    return [*columns, idle] if len(set(idle.cells)) > 1 else columns


def list_quality_columns(rows: Sequence[CellMetrics]) -> list[Column]:
    """Return what the workloads told of themselves: by what they are to be judged, and the data where it differs."""
    names = dict.fromkeys(name for r in rows for name in r.quality)
    columns = [Column(escape_unprintable(name), tuple(_quality(r.quality.get(name)) for r in rows)) for name in names]
    if len({r.data for r in rows}) < 2:
        return columns
    return [*columns, Column(_told_as(rows), tuple(fmt.format_data_name(r.data) or fmt.NOTHING for r in rows))]


def _told_as(rows: Sequence[CellMetrics]) -> str:
    """Return what data is called that workloads told of: not as a knob that says where it is."""
    return "worked on" if any("data" in r.knobs for r in rows) else "data"


def _quality(q: Quantity | None) -> str:
    # Of one run no interval is known, as for its time.
    if q is None:
        return fmt.NOTHING
    return (
        _interval(q, 1.0, signed=True)
        if q.expanded is not None and math.isfinite(q.value)
        else fmt.format_quality(q.value)
    )


def list_compared_columns(summary: StudySummary, line: CellLine) -> list[Column]:
    """Return gain, loss, gain minus loss and the gains by EDP, EDS and ED2P, in percent; EDS(2) is half the third."""
    if has_one_cell(summary, line):
        return []
    rows = summary.of_line(line)
    half = " =\n2 x EDS(2)\ngain" if HALVED in summary.ks else ""
    picks: list[tuple[str, Callable[[CellMetrics], Quantity | None]]] = [
        ("gain, %", lambda r: r.gain),
        ("loss, %", lambda r: r.loss),
        (f"gain-loss{half}", lambda r: r.gain_minus_loss),
        ("EDP gain", lambda r: r.edp_gain),
    ]
    picks += [(f"EDS({k:g})\ngain", lambda r, k=k: r.eds_gain.get(k)) for k in summary.ks if k != HALVED]  # type: ignore[misc]
    if any(goal.name == "ed2p" for goal in summary.goals):
        picks.append(("ED2P gain", lambda r: r.ed2p_gain))
    estimates = [uses_estimate(summary, r.key, line.reference) for r in rows]
    columns = [_percent(head, [pick(r) for r in rows]) for head, pick in picks]
    columns = [c if c.head.startswith("loss") else _marked(c, estimates) for c in columns]
    return [c for c in columns if any(cell != fmt.NOTHING for cell in c.cells)]


def uses_estimate(summary: StudySummary, *keys: str | None) -> bool:
    """Return whether the energy of one of some cells is an estimate."""
    return any(summary.cell(key).estimate for key in keys if key is not None)


def make_best_column(summary: StudySummary, line: CellLine) -> Column:
    """Return for which goals a cell is the best, or no worse by a significant difference (~); none if it is alone."""
    written = []
    for key in line.cells:
        of = list_line_bests(summary, line)
        words = [b.goal.text for b in of if b.cell == key] + [f"~{b.goal.text}" for b in of if key in b.tied]
        written.append(" ".join(words))
    return Column("best for\n(~ no significant difference)", tuple(written))


def list_line_bests(summary: StudySummary, line: CellLine | None) -> list[BestCell]:
    """Return the best cells of a line for each goal, or of all lines together; none where a cell is alone."""
    if line is None:
        return [b for b in summary.best if b.line is None]
    return [] if has_one_cell(summary, line) else [b for b in summary.best if b.line == line.key]


def describe_best(summary: StudySummary, best: BestCell) -> str:
    """Return the best cell for a goal in a sentence: how much better than the reference, and what is as good."""
    line = next((each for each in summary.lines if each.key == best.line), None)
    text = name_cell(summary, best.cell, line)
    against = summary.reference if line is None else line.reference
    if best.improvement is not None and against is not None and best.cell != against:
        word = "gain minus loss" if best.goal.name == "gain-loss" else "gain"
        change = fmt.format_change(best.improvement.value, best.improvement.expanded)
        mark = ESTIMATE if best.goal.needs_energy and uses_estimate(summary, best.cell, against) else ""
        flaw = UNCAPPED if summary.cell(against).uncapped else ""
        text += f", {word} {mark}{change} against {name_cell(summary, against, line)}{flaw}"
    elif best.cell == against:
        text += ", the reference itself"
    if best.within.get(best.cell) == "possibly":
        text += "; its slowdown may be above the limit"
    if best.tied:
        text += f"; no significant difference: {name_cells(summary, best.tied, line, also=best.cell)}"
    if best.goal.k == HALVED and any(goal.name == "gain-loss" for goal in summary.goals):
        text += " (the same as gain-loss, halved)"
    return text


def name_cell(summary: StudySummary, key: str, line: CellLine | None) -> str:
    """Return a cell by what tells it apart in its line, or by all its knobs."""
    knobs = summary.cell(key).knobs
    if line is None:
        return format_knobs(knobs) or name_plain_cell(summary, key)
    if line.axis is None or line.axis not in knobs or key not in line.cells:
        return format_knobs(_unsaid(knobs, line)) or name_plain_cell(summary, key)
    value = format_knob(line.axis, knobs[line.axis])
    return value if line.axis in AXES else f"{line.axis}={value}"


def name_cells(summary: StudySummary, keys: Sequence[str], line: CellLine | None, *, also: str | None = None) -> str:
    """Return cells by name, neighbours as a range: `140 W to 190 W, 260 W`; `also` does not break a range."""
    if line is None:
        lines = [each for each in summary.lines if set(each.cells) & set(keys)]
        of = [[key for key in each.cells if key in keys] for each in lines]
        return "; ".join(
            f"{each.key} {name_cells(summary, o, each, also=also)}" for each, o in zip(lines, of, strict=True)
        )
    runs: list[list[str]] = [[]]
    for key in line.cells:
        if key in keys:
            runs[-1].append(key)
        elif key != also and runs[-1]:
            runs.append([])
    written = []
    for run in runs:
        names = [name_cell(summary, key, line) for key in run]
        written += [f"{names[0]} to {names[-1]}"] if len(names) > 2 else names
    return ", ".join(written)


def describe_front(summary: StudySummary, line: CellLine | None) -> str:
    """Return the Pareto front in words, empty where there is none."""
    front = summary.front_for(None if line is None else line.key)
    if front is None or not front.cells or (line is not None and has_one_cell(summary, line)):
        return ""
    text = name_cells(summary, front.cells, line)
    return f"{text}; perhaps also {name_cells(summary, front.unsure, line)}" if front.unsure else text


def choose_scalings(summary: StudySummary, *, every: bool = False) -> list[Scaling]:
    """Return the scalings worth showing: all if few, else those of a reference or of a best cell for the first goal."""
    marked = {line.reference for line in summary.lines}
    marked |= {b.cell for b in summary.best if b.goal == summary.goals[0]}
    every = every or len(summary.scaling) <= FEW_SCALINGS
    return [s for s in summary.scaling if every or any(p.cell in marked for p in s.points)]


def title_scaling(summary: StudySummary, shown: Sequence[Scaling]) -> str:
    """Return what the table of scaling shows, and what it leaves out."""
    title = "Scaling, compared with the fewest GPUs"
    if len(shown) == len(summary.scaling):
        return title
    goal = f" and the best for {summary.goals[0].text}" if summary.goals else ""
    return f"{title}: {len(shown)} of {len(summary.scaling)} shown, the references{goal}"


def scaling_columns(summary: StudySummary, scalings: Sequence[Scaling]) -> list[Column]:
    """Return GPU count, speed-up, efficiency and energy against the fewest GPUs, for each set of the other knobs."""
    points = [p for s in scalings for p in s.points]
    # What is compared with itself is 1 and no estimate.
    firsts = [s.points[0] for s in scalings for _ in s.points]
    estimates = [p != f and uses_estimate(summary, f.cell, p.cell) for p, f in zip(points, firsts, strict=True)]
    return [
        Column("gpus", tuple(f"{s.key} {p.gpus:g}".strip() for s in scalings for p in s.points)),
        Column("speed-up", tuple(_interval(p.speedup, 1.0) for p in points)),
        _percent("efficiency, %", [p.efficiency for p in points]),
        _marked(Column("energy ratio", tuple(_interval(p.energy_ratio, 1.0) for p in points)), estimates),
    ]


def _idle(summary: StudySummary, line: CellLine) -> Column:
    return _percent("idle GPUs'\nenergy, %", [r.idle_energy_share for r in summary.of_line(line)])


def _marked(column: Column, estimates: Sequence[bool]) -> Column:
    """Mark what rests on an estimate; nothing and the reference's own 0 are none."""
    pairs = zip(column.cells, estimates, strict=True)
    return Column(column.head, tuple(ESTIMATE + c if e and c not in (fmt.NOTHING, "0") else c for c, e in pairs))


def _absolute(name: str, unit: str, values: Sequence[Quantity | None]) -> Column:
    # Seconds are what the papers print; kiloseconds nobody reads.
    sizes = [None if v is None else v.value for v in values]
    factor, prefixed = (1.0, unit) if unit == "s" else fmt.choose_scale(sizes, unit)
    return Column(f"{name}, {prefixed}", tuple(_interval(v, factor) for v in values))


def _percent(head: str, values: Iterable[Quantity | None]) -> Column:
    return Column(head, tuple(_share(v) for v in values))


def _share(q: Quantity | None) -> str:
    if q is None:
        return fmt.NOTHING
    if q.value == 0 and not q.expanded:
        return "0"
    return fmt.format_change(q.value, q.expanded).replace(" %", "").removeprefix("+")


def _interval(q: Quantity | None, factor: float, *, signed: bool = False) -> str:
    if q is None:
        return fmt.NOTHING
    if q.expanded == 0:
        return fmt.format_number(q.value / factor)
    return fmt.format_interval(q.value / factor, None if q.expanded is None else q.expanded / factor, signed=signed)
