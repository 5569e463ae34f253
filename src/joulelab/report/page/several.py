"""Set up the page of more than two runs beside each other: profiles, energies, each against the first. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.charts.model import Bar, Bars
from joulelab.report.comparison import ONE_RUN_EACH, compare_runs
from joulelab.report.comparison_rows import list_differing_labels, title_run
from joulelab.report.messages import COMPARISON, word_note, word_notes
from joulelab.report.page.blocks import Block, Commands, Drawing, Part, Table, Text
from joulelab.report.page.overlay import doubted, estimate_part, live, power_part, run_link
from joulelab.report.page.tables import Grid, Row
from joulelab.report.page.written import Report
from joulelab.report.several_rows import label_runs, several_columns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.analysis.result import Result
    from joulelab.report.page.make import Link


def several_report(
    results: Sequence[Result],
    paths: Sequence[Path],
    profiles: Sequence[PowerProfile | None],
    *,
    link: Link | None = None,
) -> Report:
    """Return the report on several runs; `paths` are their folders, `link` gives addresses of their own pages."""
    labels = label_runs(results)
    power, data = power_part(results, profiles, labels)
    others = zip(labels[1:], results[1:], strict=True)
    doubts = [note for label, run in others for note in compare_runs(results[0], run).doubts(labels[0], label)]
    doubtful, alone = doubted(word_notes(doubts, COMPARISON)), Text(word_note(ONE_RUN_EACH, COMPARISON))
    parts = (
        Part("runs", "Runs", (*doubtful, _table(results, paths, labels, link), alone)),
        power,
        Part("energy", "Energy", (_energies(results, labels),)),
        estimate_part(results, labels),
        Part("again", "How to work it out again", (_again(results),)),
    )
    twins = list(dict.fromkeys(run.twin for run in results if run.twin))
    about = [", ".join(run.run for run in results), *([fmt.name_twins(twins)] if twins else [])]
    return Report(f"{len(results)} runs beside each other", " · ".join(about), parts, data, live(results))


def _table(results: Sequence[Result], paths: Sequence[Path], labels: Sequence[str], link: Link | None) -> Block:
    columns, told = several_columns(results), list_differing_labels(results)
    made = []
    for k, (run, path) in enumerate(zip(results, paths, strict=True)):
        what = fmt.name_twins([run.twin]) if run.twin else ""
        cells = (labels[k], run_link(run, path, link), told[k], *(c.cells[k] for c in columns), title_run(run), what)
        made.append(Row(cells))
    heads = ("", "run", "labels" if any(told) else "", *(c.head for c in columns), "command", "")
    return Table(Grid(heads, tuple(made), frozenset({0, 1, 2, len(heads) - 1, len(heads) - 2})), "The runs")


def _energies(results: Sequence[Result], labels: Sequence[str]) -> Block:
    bars = []
    factor, unit = fmt.choose_scale([None if run.energy is None else run.energy.value for run in results], "J")
    for k, (label, run) in enumerate(zip(labels, results, strict=True)):
        if run.energy is not None:
            value, wide = run.energy.value / factor, run.energy.expanded
            expanded = None if wide is None else wide / factor
            bars.append(Bar(label, value, expanded, f"{fmt.format_interval(value, expanded)} {unit}", k))
    if not bars:
        return Text("No power meter was read in any of them.")
    about = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    chart = Bars("Energy of each run", about, f"energy, {unit}", tuple(bars))
    return Drawing(chart, "Whiskers: expanded uncertainty, k = 2. What was measured may differ between runs.")


def _again(results: Sequence[Result]) -> Block:
    names = [shlex.quote(run.run) for run in results]
    return Commands((f"joulelab report {' '.join(names)}", f"joulelab compare {names[0]} {names[1]}"))
