"""Account for runs and planned work at sites: what `plan cost` and `plan carbon` share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import Amount, json_option
from joulelab.core.errors import ConfigError
from joulelab.plan.options import (
    Number,
    RunFolders,
    Watts,
    add_picture_option,
    add_plan_option,
    add_run_options,
    check_picture,
    read_named_runs,
    write_picture,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.plan.cost.entries import Books, Job
    from joulelab.plan.cost.sites import Purpose, Site
    from joulelab.plan.cost.work import Work
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.plan_file import PlanFile
    from joulelab.plan.plan_tables import NodeKind

F = TypeVar("F", bound="Callable[..., Any]")
HERE = "here"  # the site that is given by options


@dataclass(frozen=True, slots=True)
class Given:
    """Hold what was typed, but for the rate."""

    words: tuple[str, ...]
    plan: Path | None
    pue: str | None
    at: str | None
    only: tuple[tuple[str, str], ...]
    works: tuple[tuple[str, float], ...]
    nodes: int | None
    cap_w: float | None
    batch: float | None
    gpus: int | None
    gpu_w: float | None
    rated_w: float | None
    statement: bool
    picture: Path | None
    force: bool
    as_json: bool
    runs: Path
    studies: Path


def account_options(function: F) -> F:
    """Add the options that both commands have."""
    positive = Number(min=0, min_open=True)
    for option in reversed(
        [
            click.argument("words", nargs=-1, metavar="[RUN]..."),
            add_plan_option("sites, work, kinds of nodes"),
            click.option("--pue", metavar="N", help="Overhead of the building: 1.3, or 1.3±0.05 (k = 2)."),
            click.option("--at", metavar="TIME", help="Assume this start: 2026-11-17T08:00+01:00."),
            click.option(
                "--work", "works", type=Amount(), multiple=True, metavar="UNIT=N",
                help="Planned work: tokens=1e9, gpu_hours=5000, node_hours=100, runs=3.",
            ),
            click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the planned work."),
            click.option("--cap", "cap_w", type=Watts(), metavar="W", help="Cap of each GPU in the planned work."),
            click.option("--batch", type=positive, metavar="N", help="Batch size of the planned work."),
            click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs per node, if runs lack it."),
            click.option("--gpu-power", "gpu_w", type=Watts(), metavar="W", help="Highest cap of a GPU, for --cap."),
            click.option("--rated", "rated_w", type=Watts(), metavar="W", help="Nameplate of a node."),
            click.option("--statement", is_flag=True, help="Print a statement for a paper, as text and LaTeX."),
            add_picture_option,
            json_option,
            add_run_options,
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def answer(purpose: Purpose, spec: str | None, given: Given) -> None:
    """Account for what was typed, and print it. Raises ConfigError, NotARun, MissingDependency."""
    from joulelab.plan.cost.entries import books_of
    from joulelab.plan.cost.sites import rates_of
    from joulelab.plan.cost.start import start_of
    from joulelab.plan.plan_file import read_plan_file

    kind = check_picture(given.picture, force=given.force)
    plan = read_plan_file(given.plan)
    sites = _sites(plan, purpose, spec, given.pue)
    rates = rates_of(sites, purpose)
    start = None if given.at is None else start_of(given.at, rates)
    jobs = _jobs(plan, given, None if start is None else start.at_s)
    books = books_of(jobs, sites, purpose, start=start, rates=rates)
    if given.picture is not None:
        from joulelab.plan.cost.cost_picture import books_picture

        write_picture(given.picture, books_picture(books, kind, plan.title))
    _print(books, given, plan.title)


def _print(books: Books, given: Given, title: str) -> None:
    from joulelab.cli.output import print_blocks
    from joulelab.plan.cost.cost_output import lay_out_books

    said = _statements(books) if given.statement else []
    if given.as_json:
        from joulelab.plan.cost.cost_json import books_data

        data = books_data(books) | {"title": title, "statements": [data for _, _, data in said]}
        print_json(data | ({"picture": str(given.picture)} if given.picture is not None else {}))
        return
    if not said:
        print_blocks(lay_out_books(books, title))
    for text, latex, _ in said:
        click.echo(f"{_wrapped(text)}\n\nLaTeX:\n\n{_wrapped(latex)}\n")
    if given.picture is not None:
        click.echo(str(given.picture))


def _statements(books: Books) -> list[tuple[str, str, dict[str, Any]]]:
    from joulelab.plan.cost.cost_json import statement_data
    from joulelab.plan.cost.statement import statements_of
    from joulelab.plan.cost.statement_text import statement_latex, statement_text

    found = []
    for one in statements_of(books):
        text, latex = statement_text(one), statement_latex(one)
        found.append((text, latex, statement_data(one, text, latex)))
    return found


def _wrapped(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 79, break_long_words=False, break_on_hyphens=False)


def _sites(plan: PlanFile, purpose: Purpose, spec: str | None, pue: str | None) -> list[Site]:
    """Return the sites of the plan, with what was typed instead of what it says; one of what was typed otherwise."""
    from joulelab.plan.cost.entries import pue_of
    from joulelab.plan.cost.sites import Site

    sites = list(plan.sites) or [Site(HERE)]
    if spec is not None:
        key = "tariff" if purpose == "cost" else "intensity"
        sites = [replace(site, **{key: spec, "folder": Path()}) for site in sites]  # type: ignore[arg-type]
    if pue is not None:
        given = pue_of(pue)
        sites = [replace(site, pue=given.value, pue_u=given.u or None) for site in sites]
    return sites


def _jobs(plan: PlanFile, given: Given, at_s: float | None) -> list[Job]:
    """Return what is accounted for: planned work where there is any, else the runs that were named."""
    from joulelab.plan.cost.energy import RunProfile
    from joulelab.plan.cost.entries import Job

    works = [*plan.work, *_typed(given)]
    kinds = {name: (kind, _measured(plan.near(kind.runs), given)) for name, kind in plan.nodes.items() if kind.runs}
    needed = not kinds and (not works or any(not work.runs for work in works))
    words = given.words or (("last",) if needed else ())
    named = _measured(words, given) if words else []
    if works:
        return [job for work in works for job in _planned(work, named, kinds, plan, given, at_s)]
    if not named:
        named = [one for _, measured in kinds.values() for one in measured]
    return [Job(RunProfile(one, _rated(kind, given)), kind) for one in named for kind in [_kind(one, kinds, plan)]]


def _measured(words: Sequence[str], given: Given) -> list[MeasuredRun]:
    return read_named_runs(words, RunFolders(given.runs, given.studies, given.only))


def _typed(given: Given) -> list[Work]:
    """Return the planned work that was typed; one run of it where only nodes, cap or batch were."""
    from joulelab.plan.cost.work import Work

    other = given.nodes, given.cap_w, given.batch, given.gpus
    works = given.works or ((("runs", 1.0),) if any(one is not None for one in other[:3]) else ())
    for unit, amount in works:
        if amount <= 0:
            raise ConfigError(f"{unit}={amount:g} is no work", next="give an amount above 0")
    return [Work(f"{amount:g} {unit}", unit, amount, (), *other) for unit, amount in works]


def _planned(
    work: Work,
    named: Sequence[MeasuredRun],
    kinds: dict[str, tuple[NodeKind, list[MeasuredRun]]],
    plan: PlanFile,
    given: Given,
    at_s: float | None,
) -> list[Job]:
    """Return work as planned from its own runs, from those that were named, or on each kind of node."""
    from joulelab.plan.cost.entries import Job
    from joulelab.plan.cost.work import check_one_workload, plan_work

    own = _measured(plan.near(work.runs), given) if work.runs else list(named)
    bases: list[tuple[NodeKind | None, list[MeasuredRun]]] = list(kinds.values()) if not own else []
    if own:
        bases = [(_kind(own[0], kinds, plan), own)]
    _check_imported([one for _, measured in bases for one in measured])
    check_one_workload(work, {kind.name: measured for kind, measured in bases if kind is not None and not own})
    jobs = []
    for kind, measured in bases:
        gpu_w = given.gpu_w if given.gpu_w is not None or kind is None else kind.gpu_w
        gpus = None if kind is None else kind.gpus
        planned = plan_work(work, measured, at_s=at_s, rated_w=_rated(kind, given), gpus=gpus, gpu_w=gpu_w)
        jobs.append(Job(planned, kind))
    return jobs


def _check_imported(measured: Sequence[MeasuredRun]) -> None:
    """Refuse imported runs together that do not say their workload: how they were imported does not tell it."""
    from joulelab.plan.measured_runs import name_workload, states_workload

    results = [one.result for one in measured]
    silent = [result for result in results if not states_workload(result)]
    if silent and len({name_workload(result) for result in results}) > 1:
        first = silent[0].name or silent[0].run
        raise ConfigError(
            "whether the runs are of one workload is not known", where=first, why="it was imported without saying so",
            next="import them with -l workload=NAME",
        )  # fmt: skip


def _kind(one: MeasuredRun, kinds: dict[str, tuple[NodeKind, list[MeasuredRun]]], plan: PlanFile) -> NodeKind | None:
    """Return the kind of node that a run was on: the one that names it, or the only one there is."""
    for kind, measured in kinds.values():
        if any(other.result.run == one.result.run for other in measured):
            return kind
    return next(iter(plan.nodes.values())) if len(plan.nodes) == 1 else None


def _rated(kind: NodeKind | None, given: Given) -> float | None:
    return given.rated_w if given.rated_w is not None or kind is None else kind.rated_w
