"""Run studies from files: `joulelab study plan|run|status|report FILE`."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import load_current_site, print_json, print_notice, show_progress
from joulelab.cli.parameters import (
    UNTIL_OPTIONS,
    GroupedCommand,
    add_options,
    format_examples,
    hide_options,
    json_option,
    read_until,
    store_format,
    studies_option,
)
from joulelab.report.tables import DOCUMENT_FORMATS
from joulelab.study.matrix import LOCAL, list_simulated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.report.paper_tables import Spread
    from joulelab.study.folder import Study
    from joulelab.study.slots import Slot
    from joulelab.study.study_file import StudyFile

ACCOUNTING_WAIT_S = 15.0  # a cluster accounts the energy of a job some seconds after its end
FORMATS = ("text", *DOCUMENT_FORMATS, "csv", "json")
EXAMPLES = format_examples(
    "joulelab study plan study.toml",
    "joulelab study run study.toml",
    "joulelab study report study.toml --format latex",
)
FILE_OPTIONS = (
    click.argument("file", type=click.Path(path_type=Path, dir_okay=False)),
    click.option(
        "--twin",
        "twins",
        multiple=True,
        metavar="NODE",
        help="Run on this simulated node instead of real ones: a name of `joulelab twin --list` or a file; "
        "NODETYPE=NODE for one node type. The study is then called NAME-NODE.",
    ),
    studies_option,
    json_option,
)
ALL_OPTION = click.option("--all", "every", is_flag=True, help="Show every table and note.")
GROUPS = {
    "The study": ("twins", "studies", "no_check", "retry", "yes"),
    "How often": ("until", "repeat_max"),
    "Output": ("every", "form", "deviation", "figures", "as_json"),
}
FIGURES_OPTION = click.option(
    "--figures/--no-figures", default=None, help="Draw figures.  [default: if matplotlib is installed]"
)


@click.group("study", epilog=EXAMPLES)
def command() -> None:
    """Run a study from a file: workloads x node types x settings.

    A study that was interrupted continues with the same command.
    """


@command.command("plan", cls=GroupedCommand, groups=GROUPS, epilog=format_examples("joulelab study plan study.toml"))
@add_options(FILE_OPTIONS)
@add_options(UNTIL_OPTIONS)
@click.option("--no-check", is_flag=True, help="Do not check whether this machine or cluster can run it.")
@click.option("--all", "every", is_flag=True, help="List every run in its order.")
def plan_command(
    file: Path,
    twins: tuple[str, ...],
    studies: Path,
    as_json: bool,
    until: float | None,
    repeat_max: int | None,
    no_check: bool,
    every: bool,
) -> None:
    """Show the runs of a study before they start.

    Shows the time and energy expected from earlier runs, and what prevents the study. Runs and writes nothing.
    """
    from joulelab.cli.study_overview import show_plan
    from joulelab.core.errors import JoulelabError
    from joulelab.study.folder import FILE

    found = _change_target(read_named_study(file, twins, studies), until, repeat_max)
    folder = studies.absolute() / found.name
    if (folder / FILE).exists():  # refuses the folder of another study file
        _print_other_twins(open_named_study(found, studies, twins), found)
    problem: JoulelabError | None = None
    try:
        if not no_check:
            _check_plan(found)
    except JoulelabError as error:
        problem = error
    show_plan(folder, found.name, found.plan, seed=found.default_seed, as_json=as_json, error=problem, every=every)
    if problem is not None:
        separator = "\n" if "\n" in str(problem) else " "
        print_notice(f"this study cannot run:{separator}{problem}")
        raise SystemExit(2)


@command.command(
    "run",
    cls=GroupedCommand,
    groups=GROUPS,
    epilog=format_examples("joulelab study run study.toml", "joulelab study run study.toml --retry"),
)
@add_options(FILE_OPTIONS)
@add_options(UNTIL_OPTIONS)
@click.option("--retry", is_flag=True, help="Repeat runs that failed.")
@FIGURES_OPTION
@ALL_OPTION
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a long study.")
@click.pass_context
def run_command(
    ctx: click.Context,
    file: Path,
    twins: tuple[str, ...],
    studies: Path,
    as_json: bool,
    until: float | None,
    repeat_max: int | None,
    retry: bool,
    figures: bool | None,
    every: bool,
    yes: bool,
) -> None:
    """Run everything that is not done yet, then print the results.

    If it is interrupted, the same command continues; finished runs are not repeated.
    """
    from joulelab.cli.study_driver import FAILED_CODE, confirm_plan, report_failures, report_stop, run_slots
    from joulelab.cli.study_report import print_report, write_study_files
    from joulelab.report.study_summary import summarise_study
    from joulelab.study.folder import FILE, join_study

    found = _change_target(read_named_study(file, twins, studies), until, repeat_max)
    _check_plan(found)
    if not confirm_plan(found.plan, yes=yes):
        ctx.exit(FAILED_CODE)
    folder = studies.absolute() / found.name
    # A study keeps its first seed; a file that asks for another is refused.
    study = join_study(folder, found.name, found.plan, found.seed if (folder / FILE).exists() else found.default_seed)
    outcome = run_slots(study, found.plan, retry=retry)
    _fetch_accounting(_list_slots(study, found), ACCOUNTING_WAIT_S)
    code = report_stop(outcome)
    if code is not None:
        ctx.exit(code)
    with show_progress(f"reading the runs of {study.name}"):
        results, summary = summarise_study(study, found.plan, load_current_site())
        files = write_study_files(study, results, summary, figures=figures)
    print_report(study, results, summary, form="json" if as_json else "text", files=files, every=every)
    ctx.exit(report_failures(outcome))


@command.command(
    "status", cls=GroupedCommand, groups=GROUPS, epilog=format_examples("joulelab study status study.toml")
)
@add_options(FILE_OPTIONS)
def status_command(file: Path, twins: tuple[str, ...], studies: Path, as_json: bool) -> None:
    """Show the progress of a study: done, running, failed.

    Running slots show their power, failed ones their reason.
    """
    from joulelab.cli.study_overview import collect_status, print_status

    found = read_named_study(file, twins, studies)
    study = open_named_study(found, studies, twins)
    _print_other_twins(study, found)
    with show_progress(f"reading the runs of {study.name}"):
        status = collect_status(study, found.plan, _list_slots(study, found))
    if as_json:
        print_json(status)
    else:
        print_status(status)


@command.command(
    "report",
    cls=GroupedCommand,
    groups=GROUPS,
    epilog=format_examples("joulelab study report study.toml --format markdown"),
)
@add_options(FILE_OPTIONS)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    is_eager=True,
    callback=store_format,
    metavar="FORM",
    help=f"Format of the results: {', '.join(FORMATS)}.",
)
@click.option(
    "--deviation", is_flag=True, help="Print standard deviations after ± in tables for papers, not 95 % intervals."
)
@add_options(hide_options(click.option("--interval", is_flag=True)))  # Student's interval, for one release
@FIGURES_OPTION
@ALL_OPTION
def report_command(
    file: Path,
    twins: tuple[str, ...],
    studies: Path,
    as_json: bool,
    form: str,
    deviation: bool,
    interval: bool,
    figures: bool | None,
    every: bool,
) -> None:
    """Print the results of a study so far.

    Prints the best cells and one table; --all, Markdown and LaTeX have every table and comparison. Also writes CSV
    files and figures into the folder of the study. Runs nothing.
    """
    from joulelab.analysis.cell_metrics import refuse_unreported_quality
    from joulelab.cli.study_report import print_report, write_study_files
    from joulelab.report.study_summary import summarise_study

    found = read_named_study(file, twins, studies)
    study = open_named_study(found, studies, twins)
    with show_progress(f"reading the runs of {study.name}"):
        _fetch_accounting(_list_slots(study, found))
        results, summary = summarise_study(study, found.plan, load_current_site())
        refuse_unreported_quality(summary)
        files = write_study_files(study, results, summary, figures=figures)
    spread: Spread = "deviation" if deviation else "interval" if interval else "expanded"
    form = "json" if as_json else form
    every = every or deviation or interval  # the tables for papers have these
    print_report(study, results, summary, form=form, files=files, spread=spread, every=every)
    sys.stdout.flush()


def read_named_study(file: Path, twins: tuple[str, ...], studies: Path) -> StudyFile:
    """Read a study file; with twins, place its node types on them and add them to its name. Raises ConfigError."""
    from joulelab.study.study_file import read_study

    found = read_study(file)
    if not twins:
        return found
    from joulelab.study import executors
    from joulelab.study.matrix import TWIN

    pairs = [text.rpartition("=") for text in twins]
    alone = [node for name, _, node in pairs if not name]
    given = {name: node for name, _, node in pairs if name}
    every = dict.fromkeys(found.plan.nodes, alone[-1]) if alone else {}
    plan = executors.require_hook(TWIN, "place_plan")(found.plan, {**every, **given})
    named = list_simulated({name: plan.nodes[name] for name in {**every, **given}})
    name = "-".join([found.name, *dict.fromkeys(named.values())])
    if not (studies / name).exists() and _is_on_twins(studies / f"{found.name}-twin", list_simulated(plan.nodes)):
        name = f"{found.name}-twin"
    return replace(found, name=name, plan=plan)


def _change_target(found: StudyFile, until: float | None, repeat_max: int | None) -> StudyFile:
    """Return a study with the precision that options ask for. Raises ConfigError, UsageError."""
    changed = read_until(until, repeat_max, found.plan.until)
    return replace(found, plan=replace(found.plan, **changed)) if changed else found


def _print_other_twins(study: Study, found: StudyFile) -> None:
    """Tell of runs that no longer count, because the description of their twin has changed."""
    from joulelab.report.messages import word_notes
    from joulelab.report.study_summary import note_other_twins

    for text in word_notes(note_other_twins(study, {cell.key: cell for cell in found.plan.cells})):
        print_notice(text)


def _is_on_twins(folder: Path, twins: Mapping[str, str]) -> bool:
    """Return whether a folder holds a study on these twins; `joulelab reproduce` names such folders its own way."""
    from joulelab.study.folder import FILE, open_study

    return (folder / FILE).exists() and list_simulated(open_study(folder).nodes) == twins


def open_named_study(found: StudyFile, studies: Path, twins: tuple[str, ...]) -> Study:
    """Open the study of a file, with the goals that the file has now. Raises StoreError if it has not run."""
    from joulelab.core.errors import StoreError
    from joulelab.study.folder import FILE, check_same_study, describe_plan, open_study

    folder = studies.absolute() / found.name
    if not (folder / FILE).exists():
        words = ["joulelab", "study", "run", str(found.path), *(w for twin in twins for w in ("--twin", twin))]
        raise StoreError(
            "the study has not run yet", where=str(folder), next=shlex.join(words), code="store.not-run-yet"
        )
    study = open_study(folder)
    check_same_study(folder, study.data, found.plan, None)
    study.data |= describe_plan(found.name, found.plan, None, study.data)
    return study


def _check_plan(found: StudyFile) -> None:
    from joulelab.report.format import name_twins
    from joulelab.study.plan_check import check_plan

    twins = list_simulated(found.plan.nodes)
    if twins:
        print_notice(name_twins(list(dict.fromkeys(twins.values()))))
    for warning in check_plan(found.plan, os.environ):
        print_notice(warning)


def _fetch_accounting(slots: list[Slot], wait_s: float = 0.0) -> None:
    """Add the energy that the cluster accounted for each job to the records of its run."""
    if any(slot.claim.get("job") for slot in slots):
        from joulelab.study.accounting import attach_accounting

        for problem in attach_accounting(slots, os.environ, wait_s=wait_s):
            print_notice(problem)


def _list_slots(study: Study, found: StudyFile) -> list[Slot]:
    """Return the state of every slot; jobs on other machines are looked up if their executor can be reached."""
    from joulelab.cli.study_driver import open_executors
    from joulelab.core.errors import JoulelabError
    from joulelab.study.drive import list_planned_slots as list_slots

    def is_over(claim: Mapping[str, Any]) -> bool:
        return any(executor.is_over(claim) for executor in opened)

    keys = list(dict.fromkeys(cell.key for cell in found.plan.cells))
    most = max(found.plan.max_repeats, study.target.max_repeats if study.target else 0)
    with ExitStack() as stack:
        if all(node.executor == LOCAL for node in found.plan.nodes.values()):
            return list_slots(study, keys, found.plan.repeats, None, max_repeats=most)
        try:
            opened = open_executors(study, found.plan, stack).values()
        except JoulelabError as error:
            print_notice(f"the state of jobs on other machines is unknown: {error}")
            return list_slots(study, keys, found.plan.repeats, None, max_repeats=most)
        return list_slots(study, keys, found.plan.repeats, is_over, max_repeats=most)
