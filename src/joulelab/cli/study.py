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

from joulelab.cli.output import print_json, print_notice
from joulelab.cli.parameters import json_option, studies_option
from joulelab.study.nodes import LOCAL, list_simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.study.file import StudyFile
    from joulelab.study.folder import Study
    from joulelab.study.slots import Slot

ACCOUNTED_S = 15.0  # so long the accounting of jobs that have just ended is waited for
FORMATS = ("text", "markdown", "latex", "csv", "json")


@click.group("study")
def command() -> None:
    """Run studies from files: workloads x node types x knobs, repeated.

    joulelab study plan FILE, then joulelab study run FILE; interrupted at any point, the same command goes on.
    """


def file_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add FILE, the twins that it runs on, the store of studies, and --json."""
    named = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
    twins = click.option(
        "--twin",
        "twins",
        multiple=True,
        metavar="NODE",
        help="Run on a node's twin in virtual time: its name or file; NODETYPE=NODE for one node type. The study is "
        "NAME-NODE then.",
    )
    return named(twins(studies_option(json_option(function))))


@command.command("plan")
@file_argument
@click.option("--no-check", is_flag=True, help="Do not ask this machine or the cluster whether it can be run.")
def plan_command(file: Path, twins: tuple[str, ...], studies: Path, as_json: bool, no_check: bool) -> None:
    """Show every cell in order.

    With the time and energy expected from earlier runs where there are any, and what is missing. Nothing is run or
    written.
    """
    from joulelab.cli.study_overview import show_plan
    from joulelab.core.errors import JoulelabError
    from joulelab.study.folder import FILE

    found = read_named(file, twins, studies)
    if (studies.absolute() / found.name / FILE).exists():
        open_named(found, studies, twins)  # that of another file is refused
    problem: JoulelabError | None = None
    try:
        if not no_check:
            _check(found)
    except JoulelabError as error:
        problem = error
    folder = studies.absolute() / found.name
    show_plan(folder, found.name, found.plan, seed=found.drawn, as_json=as_json, error=problem)
    if problem is not None:
        several = "\n" if "\n" in str(problem) else " "
        print_notice(f"it cannot be run as it is:{several}{problem}")
        raise SystemExit(2)


@command.command("run")
@file_argument
@click.option("--retry", is_flag=True, help="Run slots that failed again.")
@click.option("--figures/--no-figures", default=None, help="Draw figures.  [default: if matplotlib is installed]")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def run_command(
    ctx: click.Context,
    file: Path,
    twins: tuple[str, ...],
    studies: Path,
    as_json: bool,
    retry: bool,
    figures: bool | None,
    yes: bool,
) -> None:
    """Run what is not done yet, and report.

    Interrupted at any point it continues at the next call; slots that are done are never run again.
    """
    from joulelab.cli.output import show_progress
    from joulelab.cli.study_driver import FAILED_CODE, confirm_plan, report_failures, report_stop, run_slots
    from joulelab.cli.study_report import print_report, write_study_files
    from joulelab.report.study_summary import summarised
    from joulelab.study.folder import FILE, join_study

    found = read_named(file, twins, studies)
    _check(found)
    if not confirm_plan(found.plan, yes=yes):
        ctx.exit(FAILED_CODE)
    folder = studies.absolute() / found.name
    # A study keeps the seed it began with, unless the file asks for another: that is refused.
    study = join_study(folder, found.name, found.plan, found.seed if (folder / FILE).exists() else found.drawn)
    outcome = run_slots(study, found.plan, retry=retry)
    _account(_slots(study, found), ACCOUNTED_S)
    code = report_stop(outcome)
    if code is not None:
        ctx.exit(code)
    with show_progress(f"reading the runs of {study.name}"):
        results, summary = summarised(study, found.plan)
        files = write_study_files(study, results, summary, figures=figures)
    print_report(study, results, summary, form="json" if as_json else "text", interval=False, files=files)
    ctx.exit(report_failures(outcome))


@command.command("status")
@file_argument
def status_command(file: Path, twins: tuple[str, ...], studies: Path, as_json: bool) -> None:
    """Show what is done, what runs and with which power, what failed and why, and what is left."""
    from joulelab.cli.output import show_progress
    from joulelab.cli.study_overview import collect_status, print_status

    found = read_named(file, twins, studies)
    study = open_named(found, studies, twins)
    with show_progress(f"reading the runs of {study.name}"):
        told = collect_status(study, found.plan, _slots(study, found))
    if as_json:
        print_json(told)
    else:
        print_status(told)


@command.command("report")
@file_argument
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True, help="How to print.")
@click.option("--interval", is_flag=True, help="Print 95 % intervals behind ± instead of standard deviations.")
@click.option("--figures/--no-figures", default=None, help="Draw figures.  [default: if matplotlib is installed]")
def report_command(
    file: Path,
    twins: tuple[str, ...],
    studies: Path,
    as_json: bool,
    form: str,
    interval: bool,
    figures: bool | None,
) -> None:
    """Show the results of what is there.

    Tables as papers print them, statistics, comparisons; files are written beside the cells. Nothing is run.
    """
    from joulelab.cli.output import show_progress
    from joulelab.cli.study_report import print_report, write_study_files
    from joulelab.report.study_summary import summarised

    found = read_named(file, twins, studies)
    study = open_named(found, studies, twins)
    with show_progress(f"reading the runs of {study.name}"):
        _account(_slots(study, found))
        results, summary = summarised(study, found.plan)
        files = write_study_files(study, results, summary, figures=figures)
    print_report(study, results, summary, form="json" if as_json else form, interval=interval, files=files)
    sys.stdout.flush()


def read_named(file: Path, twins: tuple[str, ...], studies: Path) -> StudyFile:
    """Read a study file, with its node types on twins where that is asked for: then they are in the study's name.

    Raises ConfigError.
    """
    from joulelab.study.file import read_study

    found = read_study(file)
    if not twins:
        return found
    from joulelab.study import executors
    from joulelab.study.nodes import TWIN

    pairs = [text.rpartition("=") for text in twins]
    alone = [node for name, _, node in pairs if not name]
    given = {name: node for name, _, node in pairs if name}
    every = dict.fromkeys(found.plan.nodes, alone[-1]) if alone else {}
    plan = executors.require_hook(TWIN, "place_plan")(found.plan, {**every, **given})
    named = list_simulated({name: plan.nodes[name] for name in {**every, **given}})
    name = "-".join([found.name, *dict.fromkeys(named.values())])
    if not (studies / name).exists() and _is_on(studies / f"{found.name}-twin", list_simulated(plan.nodes)):
        name = f"{found.name}-twin"
    return replace(found, name=name, plan=plan)


def _is_on(folder: Path, twins: Mapping[str, str]) -> bool:
    """Return whether a folder is a study on these twins: one of `joulelab reproduce`, which has its own name for it."""
    from joulelab.study.folder import FILE, open_study

    return (folder / FILE).exists() and list_simulated(open_study(folder).nodes) == twins


def _typed(found: StudyFile, twins: tuple[str, ...]) -> str:
    """Return the command that runs a study, as it is typed."""
    return shlex.join(["joulelab", "study", "run", str(found.path), *(w for twin in twins for w in ("--twin", twin))])


def _check(found: StudyFile) -> None:
    from joulelab.report.format import name_twins
    from joulelab.study.check import check_plan

    twins = list_simulated(found.plan.nodes)
    if twins:
        print_notice(name_twins(list(dict.fromkeys(twins.values()))))
    for warning in check_plan(found.plan, os.environ):
        print_notice(warning)


def open_named(found: StudyFile, studies: Path, twins: tuple[str, ...]) -> Study:
    """Open the study of a file, judged as the file says now. Raises StoreError where it has not run."""
    from joulelab.core.errors import StoreError
    from joulelab.study.folder import FILE, check_same, described, open_study

    folder = studies.absolute() / found.name
    if not (folder / FILE).exists():
        raise StoreError(
            "the study has not run yet", where=str(folder), next=_typed(found, twins), code="store.not-run-yet"
        )
    study = open_study(folder)
    check_same(folder, study.data, found.plan, None)
    study.data |= described(found.name, found.plan, None, study.data)
    return study


def _account(slots: list[Slot], wait_s: float = 0.0) -> None:
    """Put the energy that a cluster accounts for jobs into the records of their runs; it comes seconds after them."""
    if any(slot.claim.get("job") for slot in slots):
        from joulelab.study.accounting import fill_in

        for problem in fill_in(slots, os.environ, wait_s=wait_s):
            print_notice(problem)


def _slots(study: Study, found: StudyFile) -> list[Slot]:
    """Return every slot as it is now; of jobs elsewhere as far as their executor can be asked from here."""
    from joulelab.cli.study_driver import open_executors
    from joulelab.core.errors import JoulelabError
    from joulelab.study.drive import plan

    keys = list(dict.fromkeys(cell.key for cell in found.plan.cells))
    with ExitStack() as stack:
        is_over = None
        if any(node.executor != LOCAL for node in found.plan.nodes.values()):
            try:
                opened = open_executors(study, found.plan, stack).values()
                is_over = lambda claim: any(executor.is_over(claim) for executor in opened)  # noqa: E731
            except JoulelabError as error:
                print_notice(f"what became of jobs elsewhere cannot be asked: {error}")
        return plan(study, keys, found.plan.repeats, is_over)
