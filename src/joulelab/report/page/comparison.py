"""Set up the page that compares two runs: verdict, profiles over each other, figures with intervals, phases. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from joulelab.report import comparison_rows as rows
from joulelab.report import format as fmt
from joulelab.report.charts.model import Bar, Bars
from joulelab.report.messages import COMPARISON, word_notes
from joulelab.report.page.blocks import Block, Commands, Drawing, Lines, Part, Table, Text
from joulelab.report.page.overlay import doubted, estimate_part, live, power_part, run_link
from joulelab.report.page.tables import Grid, Row
from joulelab.report.page.written import Report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.report.comparison import RunComparison
    from joulelab.report.page.make import Link

LABELS = ("A", "B")
ENERGY_UNIT = "J"
WHISKERS = "Whiskers: expanded uncertainty, k = 2."
COLOURED, GREY = 5, 7
CHANGED = (
    "Whiskers: expanded uncertainty of the ratio, k = 2, without what both meters share. In colour: A and B differ by "
    "more than that."
)


def comparison_report(
    found: RunComparison, paths: Sequence[Path], profiles: Sequence[PowerProfile | None], *, link: Link | None = None
) -> Report:
    """Return the report on two runs; `paths` are their folders, `link` gives addresses of their own pages."""
    results = (found.a, found.b)
    power, data = power_part(results, profiles, LABELS)
    doubts, notes = (word_notes(some, COMPARISON) for some in (found.doubts(), found.notes()))
    parts = [
        Part(
            "verdict",
            "Verdict",
            (Text(f"{found.verdict()}.", "verdict"), *doubted(doubts), _runs(found, paths, link)),
        ),
        power,
        Part("figures", "Figures", (_figures(found), *_energies(found), *_changes(found))),
        *_phases(found),
        estimate_part(results, LABELS),
        *_facts(found),
        Part("notes", "What to know beside the figures", (Lines(tuple(("note", n) for n in notes), "notes"),)),
        Part("again", "How to work it out again", (_again(found),)),
    ]
    twins = list(dict.fromkeys(run.twin for run in results if run.twin))
    about = [f"{found.a.run} and {found.b.run}", *([fmt.name_twins(twins)] if twins else [])]
    return Report(f"{rows.title_runs(results)} compared", " · ".join(about), tuple(parts), data, live(results))


def _runs(found: RunComparison, paths: Sequence[Path], link: Link | None) -> Block:
    made = []
    runs = (found.a, found.b)
    for label, run, path, told in zip(LABELS, runs, paths, rows.list_differing_labels(runs), strict=True):
        what = fmt.name_twins([run.twin]) if run.twin else ""
        cells = (label, run_link(run, path, link), told, rows.title_run(run), run.host, _when(run.start_utc), what)
        made.append(Row(cells))
    heads = ("", "run", "labels", "command", "host", "start", "")
    heads = heads if any(row.cells[2] for row in made) else (*heads[:2], "", *heads[3:])
    return Table(Grid(heads, tuple(made), frozenset(range(len(heads)))), "The runs")


def _when(start_utc: str) -> str:
    return f"{start_utc[:19].replace('T', ' ')} UTC" if start_utc else fmt.NOTHING


def _figures(found: RunComparison) -> Block:
    made = []
    for row in rows.list_figure_rows(found):
        name = row.name.lstrip(" ")
        depth = (len(row.name) - len(name)) // 2
        made.append(Row((name, row.a, row.b, row.change, row.verdict), depth=depth))
    return Table(Grid(("", "A", "B", "B / A - 1", ""), tuple(made), frozenset({0, 4})), "A and B side by side")


def _energies(found: RunComparison) -> list[Block]:
    """Return the energies as bars: A above B, each with its interval."""
    shown = [line for line in found.lines if line.unit == ENERGY_UNIT and not line.name.startswith("per ")]
    parts = [line for line in shown if line.name.startswith(" ")]
    shown = [line for line in shown if line not in parts] if len(parts) == 1 else shown  # the whole says it
    if not shown:
        return []
    factor, unit = fmt.choose_scale([q.value for line in shown for q in (line.a, line.b)], ENERGY_UNIT)
    bars = []
    for line in shown:
        texts = rows.format_figure_values(line)
        for k, (label, q) in enumerate(zip(LABELS, (line.a, line.b), strict=True)):
            expanded = None if q.expanded is None else q.expanded / factor
            bars.append(Bar(f"{line.name.strip()} {label}", q.value / factor, expanded, texts[k], k))
    chart = Bars("Energy of A and B", _told(bars), f"energy, {unit}", tuple(bars), keys=LABELS)
    return [Drawing(chart, WHISKERS)]


def _changes(found: RunComparison) -> list[Block]:
    """Return the changes as points with intervals: those whose interval holds 0 cannot be told apart."""
    bars = []
    for line in found.lines:
        if line.ratio is not None:
            expanded = None if line.ratio.expanded is None else line.ratio.expanded * 100
            colour = COLOURED if line.difference else GREY
            change = (line.ratio.value - 1) * 100
            bars.append(Bar(line.name.strip(), change, expanded, rows.format_figure_change(line), colour))
    if not bars:
        return []
    chart = Bars("Change from A to B", _told(bars), "B / A - 1, %", tuple(bars), dots=True, level=0.0)
    return [Drawing(chart, CHANGED)]


def _told(bars: Sequence[Bar]) -> str:
    return "; ".join(f"{bar.label}: {bar.text}" for bar in bars)


def _phases(found: RunComparison) -> list[Part]:
    pairs = rows.pair_phases(found)
    if not pairs:
        return []
    made = tuple(Row((p.label, *p.time, *p.energy, p.change, p.verdict), depth=p.depth) for p in pairs)
    heads = ("phase", "time A", "time B", "energy A", "energy B", "B / A - 1", "")
    shown = Table(Grid(heads, made, frozenset({0, 6})), "Phases of A and B side by side")
    return [Part("phases", "Phases", (shown,))]


def _facts(found: RunComparison) -> list[Part]:
    told = rows.list_compared_facts(found)
    if not told:
        return []
    grid = Grid(("fact", "A", "B"), tuple(Row(row) for row in told), frozenset(range(3)))
    return [Part("facts", "What the workloads told", (Table(grid, "Facts of A and B"),))]


def _again(found: RunComparison) -> Block:
    a, b = (shlex.quote(run.run) for run in (found.a, found.b))
    return Commands((f"joulelab compare {a} {b}", f"joulelab report {a} {b}", f"joulelab show {a} --budget"))
