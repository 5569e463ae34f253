"""Make the report of a study: best cells, charts of every metric, tables, slots with their runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import format_knobs
from joulelab.core.quantity import Quantity
from joulelab.report import format as fmt
from joulelab.report import study_tables
from joulelab.report.charts import study_charts
from joulelab.report.html import tag
from joulelab.report.messages import word_notes
from joulelab.report.page.page_blocks import (
    ChartBlock,
    CommandBlock,
    FactList,
    FigureCards,
    FoldedBlocks,
    Paragraph,
    Report,
    ReportSection,
    SideBySide,
    Subheading,
    TableBlock,
    arrange_charts,
)
from joulelab.report.page.run_page import list_footprint_cards
from joulelab.report.paper_tables import list_pair_notes, list_pair_tables, list_paper_tables, make_paper_table
from joulelab.report.study_summary import (
    ESTIMATE_NOTE,
    describe_estimates,
    list_estimates,
    make_estimate_table,
    name_study_twins,
    summarise_study,
)
from joulelab.report.tables import clean_text, make_table
from joulelab.site.footprint import compute_footprint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.report.charts.chart_model import CurveChart, StaticChart
    from joulelab.report.page.comparison_page import Link
    from joulelab.report.page.page_blocks import PageBlock
    from joulelab.report.study_summary import CellEstimate
    from joulelab.site.footprint import Site
    from joulelab.study.folder import Plan, Study
    from joulelab.study.results import Results

MAIN_METRICS = ("energy", "time", "edp")  # the others are folded, except for goals
METRIC_OF_GOAL = {"gain-loss": "gain-minus-loss"}
FEW_GROUPS = 2  # of workloads and phases; with more, only energy is not folded
MOST_BEST, MOST_LINES, MOST_MAPS, MOST_FAILED = 12, 8, 6, 40  # more are folded, or left out
LEAST_FRONT_CELLS = 3
STATE_WORDS = {"live": "running", "free": "to run"}
FAILED_STATES = ("failed", "refused", "interrupted")
KNOB_PREFIX = "knob_"
PAIRS_NOTE = (
    "Here each cell counts by its own repeats, and p is corrected for the number of pairs. The best cells above use "
    "the scatter of their whole line, each cell by itself. So a difference may be significant there and not here."
)


def open_study_report(folder: Path, *, link: Link | None = None, site: Site | None = None) -> Report:
    """Make the report of a study, finished or not, from its folder; `site` as below. Raises JoulelabError."""
    from joulelab.study.folder import open_study

    return report_study(open_study(folder), link=link, site=site)


def report_study(
    study: Study, plan: Plan | None = None, *, link: Link | None = None, site: Site | None = None
) -> Report:
    """Make the report of an open study; with a `plan` only of the cells of its study file. Raises JoulelabError.

    `site` is the one that is set now, for runs that recorded none.
    """
    results, summary = summarise_study(study, plan, site)
    return make_study_report(study, results, summary, link=link)


def make_study_report(study: Study, results: Results, summary: StudySummary, *, link: Link | None = None) -> Report:
    """Make the report of a study; `link` gives the addresses of the pages of its runs."""
    estimates = list_estimates(results, summary)
    sites = study_tables.word_study_sites(summary)
    notes = (study_tables.COVERAGE, *sites, *word_notes((*summary.notes, *results.notes)))
    sections = [
        ReportSection("best", "Best cells", tuple(_show_best(study, results, summary, estimates))),
        ReportSection("metrics", "Metrics over the knobs", tuple(_show_metrics(summary))),
        ReportSection("front", "Time and energy: Pareto front", tuple(_show_front(summary))),
        ReportSection("maps", "Heat maps over two knobs", tuple(_show_heat_maps(summary))),
        ReportSection("scaling", "Scaling", tuple(_show_scaling(summary))),
        ReportSection("paper", "Tables for papers", tuple(_show_paper_tables(summary, study.data["scope"]))),
        ReportSection("cells", "Every cell", tuple(_show_cells(summary))),
        ReportSection("estimate", "Runtime x rated power", tuple(_show_estimates(estimates, summary))),
        ReportSection("slots", "Slots and their runs", tuple(_show_slots(study, results.rows, link))),
        ReportSection("notes", "Notes", (FactList(tuple(("note", note) for note in notes), "notes"),)),
        ReportSection("again", "Configuration, and how to recompute", tuple(_show_configuration(study))),
    ]
    subtitle = " · ".join(filter(None, (count_states(results.rows), name_study_twins(study))))
    live = any(row["state"] == "live" for row in results.rows)
    return Report(f"Study {study.name}", subtitle, tuple(s for s in sections if s.blocks), live)


def _show_best(
    study: Study, results: Results, summary: StudySummary, estimates: Sequence[CellEstimate]
) -> list[PageBlock]:
    blocks: list[PageBlock] = [FigureCards(tuple(_list_cards(study, results, summary)))]
    groups = study_charts.group_cells(summary)
    shared = f"{groups[0][0]} " if len(groups) == 1 and groups[0][0] else ""  # it is the same for every cell
    texts = [
        (best.goal.text, best.line, study_tables.describe_best(summary, best).replace(shared, ""))
        for best in summary.best
    ]
    alone = {line.key for line in summary.lines if study_tables.has_one_cell(summary, line)}
    overall = tuple((goal, text) for goal, line, text in texts if line is None or len(summary.lines) == 1)
    lined = [(goal, line, text) for goal, line, text in texts if line and line not in alone]
    each = tuple((f"{goal}, {line.replace(shared, '')}", text) for goal, line, text in lined)
    if overall:
        blocks += [Subheading("Best for"), FactList(overall)]
    if len(summary.lines) > 1 and each:
        heading = "Best of each line" if overall else "Best for"
        if len(each) <= MOST_BEST:
            blocks += [Subheading(heading), FactList(each)]
        else:
            blocks.append(FoldedBlocks(f"{heading} ({len(each)})", (FactList(each),)))
    if not summary.best:
        blocks.append(Paragraph("No cells have run from which a best one can be chosen."))
    return [*blocks, Subheading("Runtime x rated power"), Paragraph(describe_estimates(estimates, summary))]


def _list_cards(study: Study, results: Results, summary: StudySummary) -> list[tuple[str, str, str]]:
    """List the main figures: the best cell for the first goal, cells, runs, energy, cost and CO2e."""
    cells = [c for c in summary.cells if c.compared is not None]
    counts = sorted({c.n for c in cells})
    repeats = f"{counts[0]} to {counts[-1]} repeats" if len(counts) > 1 else f"{counts[0]} each" if counts else ""
    energies = [r["energy_j"] for r in results.rows if r.get("energy_j") is not None]
    times = [r["time_s"] for r in results.rows if r.get("time_s") is not None]
    total_time = f"{fmt.format_duration(sum(times))} together" if times else ""
    cards = _list_best_cards(summary)
    cards += [("cells", fmt.format_amount(len(cells)), repeats), ("runs", fmt.format_amount(len(times)), total_time)]
    if energies:
        scope = study.data["scope"] or "everything measured"
        cards.append(("energy of all runs", fmt.format_rough(sum(energies), "J"), f"of {scope}"))
        cards += _list_cost_cards(results, sum(energies))
    return cards


def _list_best_cards(summary: StudySummary) -> list[tuple[str, str, str]]:
    """List the best cell for the first goal, if there is one for the whole study."""
    overall = [b for b in summary.best if b.line is None] or [b for b in summary.best if len(summary.lines) == 1]
    if not overall:
        return []
    best, group = overall[0], study_charts.group_cells(summary)[0][0]
    name = study_tables.name_cell(summary, best.cell, None).removeprefix(group).strip()
    gain = best.improvement
    about = "" if gain is None else f"gain {fmt.format_change(gain.value, gain.expanded)}"
    return [(f"best for {best.goal.text}", name, about)]


def _list_cost_cards(results: Results, energy_j: float) -> list[tuple[str, str, str]]:
    """List cost and CO2e of all runs, if they have one site."""
    trials = [trial for cell in results.cells for trial in cell.trials]
    sites = {trial.site for trial in trials}
    footprint = compute_footprint(Quantity(energy_j, known=False), sites.pop()) if len(sites) == 1 else None
    cards = list_footprint_cards(footprint, is_estimate=any(trial.estimate for trial in trials))
    return [(f"{name} of all runs", figure, about) for name, figure, about in cards]


def _show_metrics(summary: StudySummary) -> list[PageBlock]:
    """Show the main metrics and the first goal; the others are folded."""
    blocks: list[PageBlock] = []
    groups = study_charts.group_cells(summary)
    shown = {METRIC_OF_GOAL.get(goal.name, goal.name) for goal in summary.goals[:1]}
    shown |= set(MAIN_METRICS if len(groups) <= FEW_GROUPS else MAIN_METRICS[:1])
    for name, group in groups:
        # A single cell is in the tables.
        charts = study_charts.make_metric_charts(group) if len(group.cells) > 1 else []
        if charts and not blocks:
            blocks.append(Paragraph(charts[0].bars))
        charts = [_add_own_bars(chart, charts[0].bars) for chart in charts]
        if name and len(groups) > 1 and charts:
            blocks.append(Subheading(name))
        blocks += arrange_charts([_fit_labels(chart, name) for chart in charts if chart.name in shown])
        folded = [_fit_labels(chart, name) for chart in charts if chart.name not in shown]
        if folded:
            title = f"{len(folded)} more charts: gains against the reference"
            blocks.append(FoldedBlocks(title, tuple(arrange_charts(folded))))
    return blocks


def _add_own_bars(chart: CurveChart, bars: str) -> CurveChart:
    """Explain bars below a chart, if they are intervals of cells while others compare cells, or the reverse."""
    differs = chart.bars != bars and study_charts.OWN_BARS_NOTE in (chart.bars, bars)
    return replace(chart, note=chart.caption) if differs else chart


def _fit_labels(chart: CurveChart, group: str) -> StaticChart:
    return study_charts.convert_to_bars(study_charts.shorten_labels(chart, group))


def _show_front(summary: StudySummary) -> list[PageBlock]:
    """Show time and energy of all cells; a front of a single cell is left out if there are few cells."""
    blocks: list[PageBlock] = []
    groups = study_charts.group_cells(summary)
    for name, group in groups:
        chart = study_charts.make_pareto_chart(group)
        if chart is None:
            continue
        cells, in_front = sum(len(c.x) for c in chart.curves), sum(len(c.front) for c in chart.curves)
        if cells <= LEAST_FRONT_CELLS and in_front < 2:
            continue
        blocks += [] if blocks else [Paragraph(chart.bars)]
        blocks += [Subheading(name)] if name and len(groups) > 1 else []
        charts = filter(None, (chart, study_charts.zoom_front(chart)))
        blocks += arrange_charts([_fit_labels(each, name) for each in charts])
    return blocks


def _show_heat_maps(summary: StudySummary) -> list[PageBlock]:
    maps = tuple(ChartBlock(chart) for chart in study_charts.make_heat_maps(summary))
    shown, more = maps[:MOST_MAPS], maps[MOST_MAPS:]
    blocks: list[PageBlock] = [SideBySide(shown)] if shown else []
    return [*blocks, FoldedBlocks(f"{len(more)} more maps", (SideBySide(more),))] if more else blocks


def _show_scaling(summary: StudySummary) -> list[PageBlock]:
    charts = study_charts.make_scaling_charts(summary)
    if not charts:
        return []
    groups = study_charts.group_cells(summary)
    group = groups[0][0] if len(groups) == 1 else ""
    pictures = SideBySide(tuple(ChartBlock(study_charts.shorten_labels(chart, group), "small") for chart in charts))
    blocks: list[PageBlock] = [pictures, Paragraph(charts[0].caption, "muted")]
    if shown := study_tables.choose_scalings(summary):
        table = study_tables.make_scaling_table(summary, shown)
        blocks.append(TableBlock(replace(table, title=study_tables.title_scaling(summary, shown))))
    return blocks


def _show_paper_tables(summary: StudySummary, scope: str | None) -> list[PageBlock]:
    """Show the tables for papers, and how the cells compare with the reference."""
    blocks: list[PageBlock] = []
    for paper in list_paper_tables(summary, spread="expanded", scope=scope):
        blocks += [TableBlock(make_paper_table(paper)), Paragraph(paper.caption, "muted")]
    pairs = [TableBlock(table) for table in list_pair_tables(summary)]
    if pairs:
        notes = FactList(tuple(("note", note) for note in list_pair_notes(summary)), "notes")
        blocks += [Subheading("Cells against their reference"), *pairs, notes, Paragraph(PAIRS_NOTE, "muted")]
    return blocks


def _show_cells(summary: StudySummary) -> list[PageBlock]:
    """Show every line of cells with all metrics; many lines are folded."""
    blocks = [block for line in summary.lines for block in _show_line(summary, line)]
    if len(summary.lines) > MOST_LINES:
        return [FoldedBlocks(f"{len(summary.lines)} lines of cells", tuple(blocks))]
    return blocks


def _show_line(summary: StudySummary, line: CellLine) -> list[PageBlock]:
    title = study_tables.title_line(summary, line)
    measured = study_tables.make_measured_table(summary, line, names_best=True)
    table = TableBlock(replace(measured, title=f"{title}: measured"), is_caption_hidden=True)
    blocks: list[PageBlock] = [Subheading(title), table]
    if compared := study_tables.make_compared_table(summary, line):
        blocks.append(TableBlock(replace(compared, title="Gains and losses against the reference, in percent")))
    return blocks


def _show_estimates(estimates: Sequence[CellEstimate], summary: StudySummary) -> list[PageBlock]:
    text = Paragraph(describe_estimates(estimates, summary))
    if not estimates:
        return [text]
    table = replace(make_estimate_table(estimates, summary), title="Estimate of each cell")
    return [text, TableBlock(table), Paragraph(ESTIMATE_NOTE)]


def count_states(slots: Sequence[Mapping[str, Any]]) -> str:
    """Count the slots by state: `680 slots: 680 done`."""
    counts = Counter(str(row["state"]) for row in slots)
    states = ", ".join(f"{count} {STATE_WORDS.get(state, state)}" for state, count in counts.items())
    return f"{len(slots)} slot{'' if len(slots) == 1 else 's'}{f': {states}' if states else ''}"


def _show_slots(study: Study, slots: Sequence[Mapping[str, Any]], link: Link | None) -> list[PageBlock]:
    """Show every slot with its run; failed ones come first, with the reason."""
    blocks: list[PageBlock] = [Paragraph(f"{count_states(slots)}.")]
    failed = [row for row in slots if row["state"] in FAILED_STATES][:MOST_FAILED]
    if failed:
        facts = ((str(r["state"]), f"{_name_cell(r)} {r['slot']}: {r['why'] or 'it was cut off'}") for r in failed)
        blocks.append(FactList(tuple(facts), "checks"))
    if not slots:
        return blocks
    factor, unit = fmt.choose_scale([row.get("energy_j") for row in slots], "J")
    rows = []
    for row in slots:
        joules, expanded = row.get("energy_j"), row.get("energy_j_expanded")
        wide = None if expanded is None else expanded / factor
        energy = fmt.NOTHING if joules is None else fmt.format_interval(joules / factor, wide)
        time = fmt.NOTHING if row.get("time_s") is None else fmt.format_duration(row["time_s"])
        start = str(row.get("start_utc") or "")[:19].replace("T", " ")
        state, run = STATE_WORDS.get(row["state"], row["state"]), _link_slot(study, row, link)
        rows.append((_name_cell(row), row["slot"], state, run, start, time, energy, row.get("doubts") or ""))
    heads = ("cell", "slot", "state", "run", "start", "time", f"energy, {unit}", "warnings")
    return [*blocks, TableBlock(make_table(heads, rows, left=(0, 1, 2, 3, 4, 7), title="Slots"))]


def _name_cell(row: Mapping[str, Any]) -> str:
    """Name a slot's cell by workload, node type and knobs."""
    names = [str(row[name]) for name in ("workload", "node") if row.get(name)]
    knobs = {k.removeprefix(KNOB_PREFIX).removesuffix("_hz"): v for k, v in row.items() if k.startswith(KNOB_PREFIX)}
    return " ".join([*names, format_knobs(knobs)]).strip() or str(row["cell"])


def _link_slot(study: Study, row: Mapping[str, Any], link: Link | None) -> str:
    """Return the run of a slot, as a link if it has a page of its own."""
    run = str(row["run"])
    if not run or link is None:
        return run
    address = link(study.folder / "cells" / str(row["cell"]) / str(row["slot"]) / run)
    return tag("a", clean_text(run), href=address) if address else run


def _format_setting(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return fmt.format_plain(value) if isinstance(value, float) else str(value)


def _show_configuration(study: Study) -> list[PageBlock]:
    """Show how the study was run, and the commands that compute its figures again."""
    data = study.data
    facts = [("folder", study.folder.name), ("seed", str(study.seed)), ("joulelab", str(data.get("joulelab", "")))]
    if data.get("file"):
        facts.append(("study file", str(data["file"])))
    if data["command"]:
        from joulelab.store.redact import redact_command

        facts.append(("command", " ".join(redact_command(data["command"]))))
    until = f" to {data['repeat_max']}, until ± {100 * data['until']:g} %" if data.get("until") else ""
    facts += [("repeats", f"{data.get('repeats', '')}{until}"), ("goals", ", ".join(data["goals"]))]
    facts += [("reference", format_knobs(data["reference"]))] if data["reference"] else []
    for name, values in data.get("knobs", {}).items():
        facts.append(("knob", f"{name}: {', '.join(str(v.get('text', v)) for v in values)}"))
    for name, node in study.nodes.items():
        twin = node.options.get("twin") if isinstance(node.options, dict) else None
        facts.append(("node type", f"{name}: {node.executor}{f' {twin}' if isinstance(twin, str) else ''}"))
    facts += [
        ("setting", f"{name} {_format_setting(value)}") for name, value in study.settings.to_json().items() if value
    ]
    commands = ["joulelab report " + study.folder.name]
    commands += [f"joulelab study report {data['file']}"] if data.get("file") else []
    return [FactList(tuple(facts)), CommandBlock(tuple(commands))]
