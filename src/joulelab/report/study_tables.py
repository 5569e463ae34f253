"""Show a study: tables of cells, best cells, Pareto front and scaling, for terminal, Markdown and LaTeX."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import AXES, choose_knob_unit, format_knob, format_knobs
from joulelab.analysis.goals import REACHED
from joulelab.core.text import name_one
from joulelab.report import format as fmt
from joulelab.report.footprint_text import scale_co2e, word_basis
from joulelab.report.messages import word_notes
from joulelab.report.tables import (
    DOCUMENT_FORMATS,
    Column,
    FilledColumn,
    MarkedCell,
    Table,
    TableCell,
    format_cell,
    join_columns,
    scale_column,
)
from joulelab.report.terminal import BLANK_LINE, TextBlock, TextLine, list_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import CellMetrics, Scaling, StudySummary
    from joulelab.analysis.goals import BestCell, Goal, QualityLimit
    from joulelab.core.quantity import Quantity

ESTIMATE = "~"  # before figures that rest on an estimate
UNCAPPED = "!"  # after cells whose cap was not in force
UNKNOWN = "?"  # in place of a quality that a goal limits and a repeat does not report, and after NaN
MISSED = "‡"  # after a quality that misses the limit of a goal
FEW_SCALINGS = 4  # up to this many sets of the other knobs are all shown
ALL_RUNS = "all runs"  # a cell that only its workload names
HALVED = 2.0  # EDS of this k is half of gain minus loss: shown once, by its name
COVERAGE = "± is a 95 % interval (k = 2). * is the cell that the others are compared with."
BEST_HEADING = "best for\n(~ no significant difference)"


def lay_out_study(summary: StudySummary, *, every: bool = False) -> list[TextBlock]:
    """Return a whole summary for the terminal; `every` shows the scaling at all caps."""
    blocks: list[TextBlock] = []
    for line in summary.lines:
        blocks += [BLANK_LINE, TextLine(title_line(summary, line), "bold")]
        compared = make_compared_table(summary, line)
        for table in (make_measured_table(summary, line), *([compared] if compared else [])):
            blocks += [BLANK_LINE, table]
        blocks += _lay_out_best(summary, line, "Best for")
    if len(summary.lines) > 1:
        blocks += _lay_out_best(summary, None, "All lines together, best for")
    if scalings := choose_scalings(summary, every=every):
        title = TextLine(title_scaling(summary, scalings), "bold")
        blocks += [BLANK_LINE, title, BLANK_LINE, make_scaling_table(summary, scalings)]
    notes = [("note", note) for note in (COVERAGE, *word_study_sites(summary), *word_notes(summary.notes))]
    return [*blocks, BLANK_LINE, list_facts(notes)]


def _lay_out_best(summary: StudySummary, line: CellLine | None, title: str) -> list[TextBlock]:
    facts = [(b.goal.text, describe_best(summary, b)) for b in list_line_bests(summary, line)]
    if front := describe_front(summary, line):
        facts.append(("Pareto", front))
    if not facts:
        return []
    return [BLANK_LINE, TextLine(f"{title}:"), list_facts(facts, label_width=max(len(name) for name, _ in facts))]


def write_study_document(summary: StudySummary, form: str) -> str:
    """Return the tables, best cells and notes of a study in a format of DOCUMENT_FORMATS."""
    document = DOCUMENT_FORMATS[form]
    notes = [COVERAGE, *word_study_sites(summary), *word_notes(summary.notes)]
    lists = [[f"{name}: {text}" for name, text in _list_bests(summary)], notes]
    written = [document.write_list(lines) for lines in lists if lines]
    return document.write_document([*list_study_tables(summary), *written])


def list_study_tables(summary: StudySummary) -> list[Table]:
    """List all tables of a study with their titles, best cells named in a column."""
    tables = []
    for line in summary.lines:
        title = title_line(summary, line)
        tables.append(replace(make_measured_table(summary, line, names_best=True), title=title))
        if compared := make_compared_table(summary, line):
            tables.append(replace(compared, title=f"{title}: gains in percent"))
    if summary.scaling:
        scaling = make_scaling_table(summary, summary.scaling)
        tables.append(replace(scaling, title="scaling, compared with the fewest GPUs"))
    return tables


def _list_bests(summary: StudySummary) -> list[tuple[str, str]]:
    """List the best cells of all lines that have a choice: the goal in words, and the cell."""
    single = {line.key for line in summary.lines if has_one_cell(summary, line)}
    found = []
    for best in summary.best:
        if best.line not in single:
            of = "" if len(summary.lines) == 1 else " of all lines" if best.line is None else f" of {best.line}"
            found.append((f"best for {best.goal.text}{of}", describe_best(summary, best)))
    return found


def title_line(summary: StudySummary, line: CellLine) -> str:
    """Return the knobs that the cells of a line share, and the cell that they are compared with."""
    rows = summary.list_line_cells(line)
    title = format_knobs(line.knobs) or "all cells"
    data = {r.data for r in rows}
    if len(data) == 1 and data != {""}:
        title += f" · {_head_data(rows)} {fmt.format_data_name(next(iter(data)))}"
    idle = _format_idle_shares(rows)
    if len(idle) == 1 and idle != {fmt.NOTHING}:
        title += f" · idle GPUs: {idle.pop()} % of the GPUs' energy"
    if line.reference is None or has_one_cell(summary, line):
        return title
    others = _list_own_knobs(summary.cell(line.reference).knobs, line)
    unit = f", per {name_one(line.per)}" if line.per else ""
    return f"{title} · compared with {format_knobs(others) or name_plain_cell(summary, line.reference)}{unit}"


def has_one_cell(summary: StudySummary, line: CellLine) -> bool:
    """Return whether a line has only one cell, which its title names: there is nothing to compare or choose."""
    return len(line.cells) == 1 and not _list_own_knobs(summary.cell(line.cells[0]).knobs, line)


def name_plain_cell(summary: StudySummary, key: str) -> str:
    """Return the name of a cell without knobs; it includes the key if another cell has the same knobs."""
    knobs = summary.cell(key).knobs
    return key if sum(c.knobs == knobs for c in summary.cells) > 1 else ALL_RUNS


def _list_own_knobs(knobs: Mapping[str, Any], line: CellLine) -> dict[str, Any]:
    """Return the knobs that are not in the title of a line."""
    return {n: v for n, v in knobs.items() if n not in line.knobs or line.knobs[n] != v}


def _make_label_column(summary: StudySummary, line: CellLine) -> FilledColumn:
    """Return a column with the names of cells: `*` marks the reference, `!` a cap that was not in force."""
    rows, is_single = summary.list_line_cells(line), has_one_cell(summary, line)
    if line.axis is None:
        names = [format_knobs(_list_own_knobs(r.knobs, line)) or name_plain_cell(summary, r.key) for r in rows]
        column = Column("")
    else:
        values = [r.knobs.get(line.axis) for r in rows]
        names = [format_knob(line.axis, v) for v in values]
        numbers = [v for v in values if isinstance(v, (int, float))]
        alike = numbers and len(numbers) == len([v for v in values if v is not None])
        unit = choose_knob_unit(line.axis, numbers)[1] if alike else ""
        names = [n.removesuffix(f" {unit}") for n in names] if unit else names
        column = Column(line.axis, unit)
    marks = [
        (UNCAPPED if r.uncapped else "") + ("*" if r.key == line.reference and not is_single else "") for r in rows
    ]
    return column, tuple(f"{name}{mark}" for name, mark in zip(names, marks, strict=True))


def make_measured_table(summary: StudySummary, line: CellLine, *, names_best: bool = False) -> Table:
    """Return repeats, energy, time, mean power, energy per unit of work and quality of the cells of a line.

    Estimates have a mark. Rows of the best cells are marked, with `names_best` also in a column.
    """
    rows = summary.list_line_cells(line)
    estimates = [r.estimate for r in rows]
    columns = [
        _make_label_column(summary, line),
        (Column("n"), tuple(r.n for r in rows)),
        _mark_estimates(_fill_scaled("energy", "J", [r.energy for r in rows]), estimates),
        (Column("time", "s"), tuple(r.time for r in rows)),  # papers print seconds, and no kiloseconds
        _mark_estimates(_fill_scaled("mean", "W", [r.mean_w for r in rows]), estimates),
    ]
    for kind in dict.fromkeys(kind for r in rows for kind in r.per_work):
        column = _fill_scaled(f"per {name_one(kind)}", "J", [r.per_work.get(kind) for r in rows])
        columns.append(_mark_estimates(column, estimates))
    columns += list_footprint_columns(rows)
    columns += list_quality_columns(rows, summary.goals)
    columns += list_load_columns(rows)
    if any(r.idle_energy is not None and r.idle_energy.value > 0 for r in rows):
        columns.append(_fill_scaled("idle devices", "J", [r.idle_energy for r in rows]))
    if len(_format_idle_shares(rows)) > 1:
        columns.append((IDLE_COLUMN, tuple(r.idle_energy_share for r in rows)))
    bests = list_line_bests(summary, line)
    if names_best and bests:
        columns.append((Column(BEST_HEADING), tuple(_name_goals(bests, key) for key in line.cells)))
    return join_columns(columns, styles=_list_styles(bests, line))


def list_footprint_columns(rows: Sequence[CellMetrics]) -> list[FilledColumn]:
    """Return cost and CO2e of the cells, as far as the site is known; their intervals are those of the energy."""
    found = [r.footprint for r in rows]
    estimates, columns = [r.estimate for r in rows], []
    currencies = {f.site.currency for f in found if f is not None and f.site is not None and f.cost is not None}
    costs = [None if f is None else f.cost for f in found]
    masses = [None if f is None else f.co2e_kg for f in found]
    if len(currencies) == 1:
        columns.append(_mark_estimates((Column("cost", currencies.pop(), bare=True, is_amount=True), costs), estimates))
    if any(q is not None for q in masses):
        factor, unit = scale_co2e(masses)
        columns.append(
            _mark_estimates((Column("CO2e", unit, factor=factor, bare=True, is_amount=True), masses), estimates)
        )
    return columns


def word_study_sites(summary: StudySummary) -> list[str]:
    """Return price, carbon intensity and source in a line for each site of a study."""
    sites = [r.footprint.site for r in summary.cells if r.footprint is not None]
    return list(dict.fromkeys(word_basis(site) for site in sites if site is not None and not site.is_empty))


LOAD_COLUMN = Column("GPU\nload", "%", factor=0.01, digits=3, is_optional=True)
IDLE_COLUMN = Column("idle GPUs'\nenergy", "%", is_share=True)


def _format_idle_shares(rows: Sequence[CellMetrics]) -> set[str]:
    return {format_cell(r.idle_energy_share, IDLE_COLUMN) for r in rows}


def list_load_columns(rows: Sequence[CellMetrics]) -> list[FilledColumn]:
    """Return the mean load of the GPUs that worked, if it is known of a cell; of one run, as it was read."""
    loads = [r.gpu_load if r.gpu_load is None or r.gpu_load.known else r.gpu_load.value for r in rows]
    return [(LOAD_COLUMN, tuple(loads))] if any(load is not None for load in loads) else []


def list_quality_columns(rows: Sequence[CellMetrics], goals: Sequence[Goal]) -> list[FilledColumn]:
    """Return the quality that the workloads reported, marked if it misses a goal, and their data where it differs."""
    columns: list[FilledColumn] = []
    for name in dict.fromkeys(name for r in rows for name in r.quality):
        limits = [limit for goal in goals for limit in goal.quality if limit.name == name]
        cells = tuple(_show_quality(r.quality.get(name), limits) for r in rows)
        columns.append((Column(name, signed=True), cells))
    if len({r.data for r in rows}) < 2:
        return columns
    data = tuple(fmt.format_data_name(r.data) or fmt.NOTHING for r in rows)
    return [*columns, (Column(_head_data(rows)), data)]


def _head_data(rows: Sequence[CellMetrics]) -> str:
    """Return the heading of the data that workloads reported; a knob may be called `data` too."""
    return "worked on" if any("data" in r.knobs for r in rows) else "data"


def _show_quality(q: Quantity | None, limits: Sequence[QualityLimit]) -> TableCell:
    verdicts = {limit.judge(q) for limit in limits}
    mark = UNKNOWN if "unknown" in verdicts else "" if verdicts <= set(REACHED) else MISSED
    if q is None:
        return mark or None
    # Of one run no interval is known, as for its time.
    is_figure = q.known and math.isfinite(q.value)
    return MarkedCell(q, after=mark) if is_figure else f"{fmt.format_quality(q.value)}{mark}"


def make_compared_table(summary: StudySummary, line: CellLine) -> Table | None:
    """Return gain, loss, gain minus loss and the gains by EDP, EDS and ED2P, in percent; EDS(2) is half the third.

    None where there is nothing to compare.
    """
    if has_one_cell(summary, line):
        return None
    rows = summary.list_line_cells(line)
    half = " =\n2 x EDS(2)\ngain" if HALVED in summary.ks else ""
    picks: list[tuple[Column, Callable[[CellMetrics], Quantity | None]]] = [
        (Column("gain", "%", is_share=True), lambda r: r.gain),
        (Column("loss", "%", is_share=True), lambda r: r.loss),
        (Column(f"gain-loss{half}", is_share=True), lambda r: r.gain_minus_loss),
        (Column("EDP gain", is_share=True), lambda r: r.edp_gain),
    ]
    picks += [
        (Column(f"EDS({k:g})\ngain", is_share=True), lambda r, k=k: r.eds_gain.get(k))  # type: ignore[misc]
        for k in summary.ks
        if k != HALVED
    ]
    if any(goal.name == "ed2p" for goal in summary.goals):
        picks.append((Column("ED2P gain", is_share=True), lambda r: r.ed2p_gain))
    estimates = [uses_estimate(summary, r.key, line.reference) for r in rows]
    columns = [_make_label_column(summary, line)]
    for column, pick in picks:
        filled = column, tuple(pick(r) for r in rows)
        if any(q is not None for q in filled[1]):
            columns.append(filled if column.name == "loss" else _mark_estimates(filled, estimates))
    if len(columns) == 1:
        return None
    return join_columns(columns, styles=_list_styles(list_line_bests(summary, line), line))


def _list_styles(bests: Sequence[BestCell], line: CellLine) -> list[str]:
    return ["best" if any(b.cell == key for b in bests) else "" for key in line.cells]


def uses_estimate(summary: StudySummary, *keys: str | None) -> bool:
    """Return whether the energy of at least one of these cells is an estimate."""
    return any(summary.cell(key).estimate for key in keys if key is not None)


def _name_goals(bests: Sequence[BestCell], key: str) -> str:
    """Return the goals for which a cell is the best, and the goals (~) for which it is not significantly worse."""
    words = [b.goal.text for b in bests if b.cell == key] + [f"~{b.goal.text}" for b in bests if key in b.tied]
    return " ".join(words)


def list_line_bests(summary: StudySummary, line: CellLine | None) -> list[BestCell]:
    """Return the best cell of a line, or of all lines, for each goal; none if there is only one cell."""
    if line is None:
        return [b for b in summary.best if b.line is None]
    return [] if has_one_cell(summary, line) else [b for b in summary.best if b.line == line.key]


def describe_best(summary: StudySummary, best: BestCell) -> str:
    """Return the best cell for a goal: its gain over the reference, and the cells that are as good."""
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
    if best.reached.get(best.cell) == "possibly":
        text += f"; {_describe_quality(summary, best)}"
    if best.tied:
        text += f"; no significant difference: {name_cells(summary, best.tied, line, also=best.cell)}"
    if best.goal.k == HALVED and any(goal.name == "gain-loss" for goal in summary.goals):
        text += " (the same as gain-loss, halved)"
    return text


def _describe_quality(summary: StudySummary, best: BestCell) -> str:
    """Return that a best cell may miss limits of quality: its interval contains them, or it has a single run."""
    cell = summary.cell(best.cell)
    names = " and ".join(
        limit.name for limit in best.goal.quality if limit.judge(cell.quality.get(limit.name)) == "possibly"
    )
    if cell.n < 2:
        return f"how {names} varies between runs is not known from one run"
    return f"the interval of its {names} over {cell.n} runs contains the limit"


def name_cell(summary: StudySummary, key: str, line: CellLine | None) -> str:
    """Return the name of a cell: the knobs that it does not share with its line, or all its knobs."""
    knobs = summary.cell(key).knobs
    if line is None:
        return format_knobs(knobs) or name_plain_cell(summary, key)
    if line.axis is None or line.axis not in knobs or key not in line.cells:
        return format_knobs(_list_own_knobs(knobs, line)) or name_plain_cell(summary, key)
    value = format_knob(line.axis, knobs[line.axis])
    return value if line.axis in AXES else f"{line.axis}={value}"


def name_cells(summary: StudySummary, keys: Sequence[str], line: CellLine | None, *, also: str | None = None) -> str:
    """Return the names of cells, neighbours as a range: `140 W to 190 W, 260 W`; cells `also` may be inside a range."""
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
    """Return the Pareto front in words, empty without one."""
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
    """Return the title of the table of scaling; if it does not show all sets of knobs, how many it shows."""
    title = "Scaling, compared with the fewest GPUs"
    if len(shown) == len(summary.scaling):
        return title
    goal = f" and the best for {summary.goals[0].text}" if summary.goals else ""
    return f"{title}: {len(shown)} of {len(summary.scaling)} shown, the references{goal}"


def make_scaling_table(summary: StudySummary, scalings: Sequence[Scaling]) -> Table:
    """Return speed-up, efficiency and energy against the fewest GPUs, for each set of the other knobs."""
    points = [p for s in scalings for p in s.points]
    # A cell that is compared with itself has 1, which is no estimate.
    firsts = [s.points[0] for s in scalings for _ in s.points]
    estimates = [p != f and uses_estimate(summary, f.cell, p.cell) for p, f in zip(points, firsts, strict=True)]
    ratios = Column("energy ratio", is_derived=True), tuple(p.energy_ratio for p in points)
    columns: list[FilledColumn] = [
        (Column("gpus"), tuple(f"{s.key} {p.gpus:g}".strip() for s in scalings for p in s.points)),
        (Column("speed-up", is_derived=True), tuple(p.speedup for p in points)),
        (Column("efficiency", "%", is_share=True), tuple(p.efficiency for p in points)),
        _mark_estimates(ratios, estimates),
    ]
    return join_columns(columns)


def _fill_scaled(name: str, unit: str, values: Sequence[Quantity | None]) -> tuple[Column, tuple[Quantity | None, ...]]:
    return scale_column(name, unit, values), tuple(values)


def _mark_estimates(filled: tuple[Column, Sequence[Quantity | None]], estimates: Sequence[bool]) -> FilledColumn:
    """Mark figures that are based on an estimate, except the 0 of the reference itself."""
    column, values = filled
    pairs = zip(values, estimates, strict=True)
    return column, tuple(
        MarkedCell(q, ESTIMATE) if e and q is not None and (q.value or q.expanded) else q for q, e in pairs
    )
