"""Set up the page of a study: best cells, every metric against its knob, front, maps, scaling, tables, slots. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.analysis.cell_lines import format_knobs
from joulelab.report import format as fmt
from joulelab.report import study_tables
from joulelab.report.messages import word_notes
from joulelab.report.page.blocks import Block, Cards, Columns, Commands, Fold, Heading, Lines, Part, Table, Text
from joulelab.report.page.study_charts import front_part, groups_of, map_part, metric_part, scaling_part
from joulelab.report.page.study_slots import slot_part, states_text
from joulelab.report.page.study_tables import cell_part, paper_part
from joulelab.report.page.tables import Grid, Row
from joulelab.report.page.written import Report
from joulelab.report.study.rated import ESTIMATE_NOTE, describe_estimates, estimate_columns, list_estimates
from joulelab.report.study.table import COVERAGE
from joulelab.report.study_summary import name_study_twins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.report.page.make import Link
    from joulelab.report.study.rated import CellEstimate
    from joulelab.study.folder import Study
    from joulelab.study.results import Results

MOST_BEST = 12  # sentences on best cells that stand open


def study_report(study: Study, results: Results, summary: StudySummary, *, link: Link | None = None) -> Report:
    """Return the report on a study; `link` gives addresses of the pages of its runs."""
    estimates = list_estimates(results, summary)
    scope = study.data["scope"]
    parts = [
        Part("best", "Best cells", tuple(_best(study, results, summary, estimates))),
        metric_part(summary),
        front_part(summary),
        map_part(summary),
        scaling_part(summary),
        paper_part(summary, scope),
        cell_part(summary),
        Part("estimate", "Runtime x rated power", tuple(_estimates(estimates, summary))),
        slot_part(study, results, link),
        Part("notes", "What to know beside the figures", (_notes(results, summary),)),
        Part("again", "Configuration, and how to work it out again", tuple(_again(study))),
    ]
    said = name_study_twins(study)
    about = [states_text(results.rows), *([said] if said else [])]
    live = any(row["state"] == "live" for row in results.rows)
    kept = tuple(part for part in parts if part is not None)
    return Report(f"Study {study.name}", " · ".join(about), kept, {}, live)


def _best(study: Study, results: Results, summary: StudySummary, estimates: Sequence[CellEstimate]) -> list[Block]:
    blocks: list[Block] = [Cards(tuple(_cards(study, results, summary)))]
    told = [(best.goal.text, best.line, study_tables.describe_best(summary, best)) for best in summary.best]
    alone = {line.key for line in summary.lines if study_tables.has_one_cell(summary, line)}
    overall = [(goal, text) for goal, line, text in told if line is None or len(summary.lines) == 1]
    each = [(f"{goal}, {line}", text) for goal, line, text in told if line and line not in alone]
    if overall:
        blocks += [Heading("Best for"), Lines(tuple(overall))]
    if len(summary.lines) > 1 and each:
        lines = Lines(tuple(each))
        named = "Best of each line" if overall else "Best for"
        blocks += [Heading(named), lines] if len(each) <= MOST_BEST else [Fold(f"{named} ({len(each)})", (lines,))]
    if not summary.best:
        blocks.append(Text("No cell has run that can be chosen from others."))
    return [*blocks, Heading("Runtime x rated power"), Text(describe_estimates(estimates, summary))]


def _cards(study: Study, results: Results, summary: StudySummary) -> list[tuple[str, str, str]]:
    """Return the figures that come first: cells, runs, and the best cell for the first goal."""
    ran = [c for c in summary.cells if c.compared is not None]
    repeats = sorted({c.n for c in ran})
    many = "" if not repeats else f"{repeats[0]} to {repeats[-1]} repeats" if len(repeats) > 1 else f"{repeats[0]} each"
    energies = [r["energy_j"] for r in results.rows if r.get("energy_j") is not None]
    times = [r["time_s"] for r in results.rows if r.get("time_s") is not None]
    cards = [("cells", fmt.format_amount(len(ran)), many), ("runs", fmt.format_amount(len(times)), _took(times))]
    if energies:
        cards.append(("energy of all runs", fmt.format_rough(sum(energies), "J"), _whose(study)))
    overall = [b for b in summary.best if b.line is None] or [b for b in summary.best if len(summary.lines) == 1]
    if overall:
        group = groups_of(summary)[0][0]
        name = study_tables.name_cell(summary, overall[0].cell, None).removeprefix(group).strip()
        gain = overall[0].improvement
        about = "" if gain is None else f"gain {fmt.format_change(gain.value, gain.expanded)}"
        cards.append((f"best for {overall[0].goal.text}", name, about))
    return cards


def _took(times: Sequence[float]) -> str:
    return f"{fmt.format_duration(sum(times))} together" if times else ""


def _whose(study: Study) -> str:
    scope = study.data["scope"]
    return f"of {scope}" if scope else "of everything measured"


def _estimates(estimates: Sequence[CellEstimate], summary: StudySummary) -> list[Block]:
    blocks: list[Block] = [Text(describe_estimates(estimates, summary))]
    if not estimates:
        return blocks
    columns = estimate_columns(estimates, summary)
    made = tuple(Row(cells) for cells in zip(*(c.cells for c in columns), strict=True))
    grid = Grid(tuple(c.head for c in columns), made, frozenset({0, len(columns) - 1}))
    return [*blocks, Table(grid, "Estimate of each cell"), Text(ESTIMATE_NOTE)]


def _notes(results: Results, summary: StudySummary) -> Block:
    return Lines(tuple(("note", note) for note in (COVERAGE, *word_notes(summary.notes), *results.notes)), "notes")


def _again(study: Study) -> list[Block]:
    """Return how the study was run, and the commands that work its figures out again."""
    data = study.data
    told = [("folder", study.folder.name), ("seed", str(study.seed)), ("joulelab", str(data.get("joulelab", "")))]
    if data.get("file"):
        told.append(("study file", str(data["file"])))
    if data["command"]:
        from joulelab.store.redact import redact

        told.append(("command", " ".join(redact(data["command"]))))
    told += [("repeats", str(data.get("repeats", ""))), ("goals", ", ".join(data["goals"]))]
    told += [("reference", format_knobs(data["reference"]))] if data["reference"] else []
    told += [("knob", f"{name}: {', '.join(str(v.get('text', v)) for v in of)}") for name, of in _knobs(study)]
    told += [("node type", _node(name, node.executor, node.options)) for name, node in study.nodes.items()]
    told += [("setting", f"{name} {value}") for name, value in study.settings.to_json().items() if value]
    again = ["joulelab report " + study.folder.name]
    again += [f"joulelab study report {data['file']}"] if data.get("file") else []
    return [Columns((Lines(tuple(told)),)), Commands(tuple(again))]


def _knobs(study: Study) -> list[tuple[str, list[dict[str, object]]]]:
    return list(study.data.get("knobs", {}).items())


def _node(name: str, executor: str, options: object) -> str:
    twin = options.get("twin") if isinstance(options, dict) else None
    return f"{name}: {executor}{f' {twin}' if isinstance(twin, str) else ''}"
