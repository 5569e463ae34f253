"""Make reports from folders: of a run, of several runs, of a study. `joulelab report` and `joulelab serve` call these.

A page links to runs where `link` gives an address for a run's folder; one that stands alone links to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from joulelab.analysis.power_profile import PowerProfile
    from joulelab.analysis.result import Result
    from joulelab.report.page.parts import Page
    from joulelab.report.page.written import Report
    from joulelab.study.folder import Plan, Study

    Link = Callable[[Path], str | None]
    Looked = tuple[Result, PowerProfile | None]


def page_of_run(path: Path, *, handle: str | None = None, raw: str | None = None, live: str | None = None) -> Page:
    """Return the page of a run, live or ended, by its folder. Raises JoulelabError.

    `handle` is how commands name the run; `raw` and `live` are addresses of finer data and, while the run goes on, of
    the newest.
    """
    from joulelab.report.page.run import run_page

    result, profile = looked_at(path)
    newest = live if result.state == "live" else None
    return run_page(result, path, profile, handle=handle, raw=raw, live=newest)


def markdown_of_run(path: Path, *, handle: str | None = None) -> str:
    """Return the same as Markdown. Raises JoulelabError."""
    from joulelab.report.page.markdown_run import run_markdown

    result, profile = looked_at(path)
    return run_markdown(result, path, profile, handle=handle)


def page_of_runs(paths: Sequence[Path], *, link: Link | None = None) -> Page:
    """Return the page that compares two runs, or sets more of them beside each other. Raises JoulelabError."""
    return report_of_runs(paths, link=link).page()


def page_of_study(folder: Path, plan: Plan | None = None, *, link: Link | None = None) -> Page:
    """Return the page of a study, as far as it has run; with the `plan` of a study file of its cells only.

    Raises JoulelabError.
    """
    from joulelab.study.folder import open_study

    return report_of_study(open_study(folder), plan, link=link).page()


def report_of_runs(paths: Sequence[Path], *, link: Link | None = None) -> Report:
    """Return the report that compares two runs, or sets more of them beside each other. Raises JoulelabError."""
    return report_on([looked_at(path) for path in paths], paths, link=link)


def report_on(looked: Sequence[Looked], paths: Sequence[Path], *, link: Link | None = None) -> Report:
    """Return the same of runs that were looked at."""
    from joulelab.report.comparison import compare_runs
    from joulelab.report.page.comparison import comparison_report
    from joulelab.report.page.several import several_report

    results, profiles = [result for result, _ in looked], [profile for _, profile in looked]
    if len(results) == 2:
        return comparison_report(compare_runs(*results), paths, profiles, link=link)
    return several_report(results, paths, profiles, link=link)


def report_of_study(study: Study, plan: Plan | None = None, *, link: Link | None = None) -> Report:
    """Return the report on a study that is open. Raises JoulelabError."""
    from joulelab.report.page.study import study_report
    from joulelab.report.study_summary import summarise_study

    results, summary = summarise_study(study, plan)
    return study_report(study, results, summary, link=link)


def looked_at(path: Path) -> Looked:
    """Return the result of a run and its power over time, None where there is none. Raises JoulelabError."""
    from joulelab.analysis.analyse import analyse_run
    from joulelab.analysis.power_profile import make_profile
    from joulelab.analysis.results_file import read_inputs, read_result, seal_ended, write_result
    from joulelab.store.run import open_run

    seal_ended(path)
    inputs = read_inputs(path)
    with open_run(path) as opened:
        result = read_result(path)
        if result is None:
            result = analyse_run(opened)
            write_result(path, result, inputs)
        return result, make_profile(opened)
