"""Make the report of two or more runs: their power in one picture, figures with intervals, phases, facts."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.report import format as fmt
from joulelab.report.charts.power_chart import make_overlay_chart
from joulelab.report.charts.run_charts import list_comparison_charts
from joulelab.report.comparison import (
    ONE_RUN_EACH,
    compare_runs,
    compare_with_first,
    label_runs,
    list_differing_labels,
    make_fact_table,
    make_figure_table,
    make_phase_pair_table,
    title_run,
    title_runs,
    word_sites,
)
from joulelab.report.html import Html, tag
from joulelab.report.messages import COMPARISON, word_note, word_notes
from joulelab.report.page.page_blocks import (
    ChartBlock,
    CommandBlock,
    FactList,
    Paragraph,
    PowerBlock,
    Report,
    ReportSection,
    SideBySide,
    SwappableBlocks,
    TableBlock,
)
from joulelab.report.page.run_page import load_result_and_profile
from joulelab.report.run_tables import describe_rated
from joulelab.report.tables import Table, clean_text, make_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.analysis.result import Result
    from joulelab.report.comparison import RunComparison
    from joulelab.report.page.page_blocks import PageBlock
    from joulelab.site.footprint import Site

    Link = Callable[[Path], str | None]  # the address of the page of a run, by its folder

MOST_OVERLAID = 6  # more profiles cannot be told apart
MOST_OF_COMMAND = 100  # letters of a name and command in a table; the page of the run has all
RATED_TEXT = "Runtime x rated power of each run, compared with the measured energy."
RECOMPUTE = "How to recompute"


def open_comparison_report(paths: Sequence[Path], *, link: Link | None = None, site: Site | None = None) -> Report:
    """Make the report of two or more runs from their folders, `site` for those without one. Raises JoulelabError."""
    loaded = [load_result_and_profile(path) for path in paths]
    results, profiles = [result.with_site(site) for result, _ in loaded], [profile for _, profile in loaded]
    return make_comparison_report(results, paths, profiles, link=link)


def make_comparison_report(
    results: Sequence[Result],
    paths: Sequence[Path],
    profiles: Sequence[PowerProfile | None],
    *,
    link: Link | None = None,
) -> Report:
    """Make the report of two runs with a verdict, or of more runs beside each other.

    `paths` are their folders, `link` gives the addresses of their own pages.
    """
    labels = label_runs(results)
    if len(results) == 2:
        title = f"{title_runs(results)} compared"
        sections = _compare_both_ways(results, paths, profiles, link)
        subtitle = f"{results[0].run} and {results[1].run}"
    else:
        title = f"{len(results)} runs beside each other"
        sections = _compare_several(results, paths, _show_power(results, profiles, labels), labels, link)
        subtitle = ", ".join(run.run for run in results)
    twins = list(dict.fromkeys(run.twin for run in results if run.twin))
    if twins:
        subtitle = f"{subtitle} · {fmt.name_twins(twins)}"
    live = any(run.state == "live" for run in results)
    return Report(title, subtitle, tuple(s for s in sections if s.blocks), live)


def _compare_both_ways(
    results: Sequence[Result], paths: Sequence[Path], profiles: Sequence[PowerProfile | None], link: Link | None
) -> list[ReportSection]:
    """Compare B with A, and A with B: a button of the page exchanges them, also without a server."""
    sections = _compare_two(results, paths, profiles, link)
    others = _compare_two(results[::-1], paths[::-1], profiles[::-1], link, is_swapped=True)
    pairs = [
        (one, SwappableBlocks(one.blocks, other.blocks, has_button=one.id == "verdict"))
        for one, other in zip(sections, others, strict=True)
    ]
    return [replace(section, blocks=(pair,) if pair.blocks else ()) for section, pair in pairs]


def _compare_two(
    results: Sequence[Result],
    paths: Sequence[Path],
    profiles: Sequence[PowerProfile | None],
    link: Link | None,
    *,
    is_swapped: bool = False,
) -> list[ReportSection]:
    found, labels = compare_runs(*results), label_runs(results)
    doubts, notes = (word_notes(some, COMPARISON) for some in (found.list_doubts(), found.list_notes()))
    verdict = Paragraph(f"{found.word_verdict()}.", "verdict")
    a, b = (shlex.quote(run.run) for run in results)
    commands = (f"joulelab compare {a} {b}", f"joulelab report {a} {b}", f"joulelab show {a} --budget")
    first = (_name_runs(results), verdict, *_warn(doubts), _list_two_runs(found, paths, labels, link))
    table, charts = TableBlock(make_figure_table(found)), list_comparison_charts(results, labels)
    beside = SideBySide((table, *(ChartBlock(chart, "narrow") for _, chart in charts[:1])))
    below = tuple(ChartBlock(chart) for _, chart in charts[1:])
    sites = tuple(Paragraph(text, "muted") for text in word_sites(results, found))
    power = _show_power(results, profiles, labels, is_swapped=is_swapped)
    return [
        ReportSection("verdict", "Verdict", first),
        power,
        ReportSection("figures", "Figures", (beside, *below, *sites)),
        ReportSection("phases", "Phases", _show_table(make_phase_pair_table(found))),
        _show_rated_power(results, labels),
        ReportSection("facts", "Facts that the workloads reported", _show_table(make_fact_table(found))),
        ReportSection("notes", "Notes", (FactList(tuple(("note", n) for n in notes), "notes"),)),
        ReportSection("again", RECOMPUTE, (CommandBlock(commands),)),
    ]


def _name_runs(results: Sequence[Result]) -> PageBlock:
    """Say which run is A, which is B, and which way they are compared."""
    names = [f"{letter} is {_shorten_title(run)} ({run.run})" for letter, run in zip("AB", results, strict=True)]
    return Paragraph(f"{'; '.join(names)}. Differences are those of B from A.")


def _shorten_title(run: Result) -> str:
    return fmt.shorten_end(title_run(run), MOST_OF_COMMAND)


def _compare_several(
    results: Sequence[Result],
    paths: Sequence[Path],
    power: ReportSection,
    labels: Sequence[str],
    link: Link | None,
) -> list[ReportSection]:
    others = zip(labels[1:], results[1:], strict=True)
    doubts = [note for label, run in others for note in compare_runs(results[0], run).list_doubts(labels[0], label)]
    charts: tuple[PageBlock, ...] = tuple(ChartBlock(chart) for _, chart in list_comparison_charts(results, labels))
    charts = charts or (Paragraph("No power meter was read in any of them."),)
    names = [shlex.quote(run.run) for run in results]
    commands = (f"joulelab report {' '.join(names)}", f"joulelab compare {names[0]} {names[1]}")
    runs: tuple[PageBlock, ...] = (
        *_warn(word_notes(doubts, COMPARISON)),
        _list_several_runs(results, paths, labels, link),
        Paragraph(word_note(ONE_RUN_EACH, COMPARISON)),
    )
    return [
        ReportSection("runs", "Runs", runs),
        power,
        ReportSection("energy", "Energy", charts),
        _show_rated_power(results, labels),
        ReportSection("again", RECOMPUTE, (CommandBlock(commands),)),
    ]


def _show_power(
    results: Sequence[Result],
    profiles: Sequence[PowerProfile | None],
    labels: Sequence[str],
    *,
    is_swapped: bool = False,
) -> ReportSection:
    """Show the power of the runs in one picture, and name the runs that are missing in it."""
    known = [(r, p, label) for r, p, label in zip(results, profiles, labels, strict=True) if p is not None]
    without = [label for p, label in zip(profiles, labels, strict=True) if p is None]
    blocks: list[PageBlock] = []
    if known:
        shown, of, names = zip(*known[:MOST_OVERLAID], strict=True)
        blocks.append(PowerBlock(make_overlay_chart(shown, of, names), is_swapped=is_swapped))
    if len(known) > MOST_OVERLAID:
        blocks.append(Paragraph(f"The first {MOST_OVERLAID} of {len(known)} runs are drawn."))
    if without:
        blocks.append(Paragraph(f"No power was read in {', '.join(without)}."))
    return ReportSection("power", "Power over time", tuple(blocks))


def _warn(texts: Iterable[str]) -> list[PageBlock]:
    return [Paragraph(text, "note warn") for text in dict.fromkeys(texts)]


def link_run(run: Result, path: Path, link: Link | None) -> Html | str:
    """Return the id of a run, as a link if it has a page of its own."""
    address = link(path) if link else None
    return tag("a", clean_text(run.run), href=address) if address else run.run


def _list_two_runs(found: RunComparison, paths: Sequence[Path], labels: Sequence[str], link: Link | None) -> PageBlock:
    runs = (found.a, found.b)
    differing = list_differing_labels(runs)
    rows = []
    for label, run, path, differs in zip(labels, runs, paths, differing, strict=True):
        start = f"{run.start_utc[:19].replace('T', ' ')} UTC" if run.start_utc else fmt.NOTHING
        twin = fmt.name_twins([run.twin]) if run.twin else ""
        rows.append((label, link_run(run, path, link), differs, _shorten_title(run), run.host, start, twin))
    heads = ("", "run", "labels" if any(differing) else "", "command", "host", "start", "")
    return TableBlock(make_table(heads, rows, left=range(len(heads)), title="The runs"))


def _list_several_runs(
    results: Sequence[Result], paths: Sequence[Path], labels: Sequence[str], link: Link | None
) -> PageBlock:
    columns, differing = compare_with_first(results), list_differing_labels(results)
    rows = []
    for k, (run, path) in enumerate(zip(results, paths, strict=True)):
        twin = fmt.name_twins([run.twin]) if run.twin else ""
        figures = (cells[k] for _, cells in columns)
        rows.append((labels[k], link_run(run, path, link), differing[k], *figures, _shorten_title(run), twin))
    heads = ("", "run", "labels" if any(differing) else "", *(column for column, _ in columns), "command", "")
    left = (0, 1, 2, len(heads) - 2, len(heads) - 1)
    return TableBlock(make_table(heads, rows, left=left, title="The runs"))


def _show_rated_power(results: Sequence[Result], labels: Sequence[str]) -> ReportSection:
    facts = tuple((label, describe_rated(run.rated)) for label, run in zip(labels, results, strict=True))
    return ReportSection("estimate", "Runtime x rated power", (Paragraph(RATED_TEXT), FactList(facts)))


def _show_table(table: Table | None) -> tuple[PageBlock, ...]:
    return () if table is None else (TableBlock(table),)
