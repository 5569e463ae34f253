"""Compute energy, cost and carbon of runs or planned work: `joulelab plan cost [RUN...] --tariff 0.32EUR`."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import Amount, format_examples, json_option
from joulelab.core.errors import ConfigError, join_errors
from joulelab.core.text import name_one
from joulelab.plan.options import (
    Number,
    RunFolders,
    Watts,
    add_picture_option,
    add_plan_option,
    add_run_options,
    add_why_option,
    check_picture,
    read_named_runs,
    write_picture,
)
from joulelab.report.format import format_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.cost.cost_books import CostBooks, CostJob
    from joulelab.plan.cost.sites import PlanSite
    from joulelab.plan.cost.work import Work
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.plan_file import PlanFile
    from joulelab.plan.plan_tables import NodeKind
    from joulelab.site.footprint import Site

POSITIVE = Number(min=0, min_open=True)
EXAMPLES = format_examples(
    "joulelab plan cost last --tariff 0.32EUR --intensity table:DE --pue 1.3",
    "joulelab plan cost STUDY --work tokens=1e9 --nodes 8",
    "joulelab plan cost last --intensity table:DE --statement",
    "joulelab plan cost --plan sites.toml --picture cost.pdf",
)


@dataclass(frozen=True, slots=True)
class CostOptions:
    """Hold the options of the command."""

    words: tuple[str, ...]
    plan: Path | None
    tariff: str | None
    intensity: str | None
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
    node_price: float | None
    embodied_kg: float | None
    lifetime_years: float | None
    statement: bool
    is_explained: bool
    picture: Path | None
    force: bool
    as_json: bool
    runs: Path
    studies: Path


@click.command("cost", epilog=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[RUN]...")
@click.option("--tariff", metavar="RATE", help="Price of a kWh: 0.32EUR, TARIFF.toml, PRICES.csv.")
@click.option("--intensity", metavar="RATE", help="Carbon of a kWh: 380 (g), table:DE, SERIES.csv, em:DE.")
@click.option("--pue", metavar="N", help="Overhead of the building: 1.3, or 1.3±0.05 (k = 2).")
@click.option("--at", metavar="TIME", help="Assume this start: 2026-11-17T08:00+01:00.")
@click.option(
    "--work", "works", type=Amount(), multiple=True, metavar="UNIT=N",
    help="Planned work: tokens=1e9, gpu_hours=5000, node_hours=100, runs=3.",
)  # fmt: skip
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the planned work.")
@click.option("--cap", "cap_w", type=Watts(), metavar="W", help="Cap of each GPU in the planned work.")
@click.option("--batch", type=POSITIVE, metavar="N", help="Batch size of the planned work.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs per node, if runs lack it.")
@click.option("--gpu-power", "gpu_w", type=Watts(), metavar="W", help="Highest cap of a GPU, for --cap.")
@click.option("--rated", "rated_w", type=Watts(), metavar="W", help="Nameplate of a node.")
@click.option("--node-price", type=POSITIVE, metavar="N", help="Price of a node, in the currency of the tariff.")
@click.option("--embodied", "embodied_kg", type=POSITIVE, metavar="KG", help="CO2e of making a node, in kg.")
@click.option("--lifetime", "lifetime_years", type=POSITIVE, metavar="YEARS", help="Lifetime of a node.")
@add_plan_option("sites, work, kinds of nodes")
@click.option("--statement", is_flag=True, help="Print a statement for a paper, as text and LaTeX.")
@add_why_option
@add_picture_option
@json_option
@add_run_options
def command(**given: Any) -> None:
    """Compute energy, cost and carbon of runs or planned work, per site.

    RUN is a run by id, name, path or `last`, or a study. Rates may change over time. Without --tariff,
    --intensity and --pue those of `joulelab site` are used. With --work, --nodes, --cap or --batch the work
    is planned, scaled from the runs.
    """
    from joulelab.plan.cost.cost_books import make_books
    from joulelab.plan.cost.sites import find_site_rates, read_start
    from joulelab.plan.plan_file import read_plan_file

    options = CostOptions(**given)
    file_format = check_picture(options.picture, force=options.force)
    plan = read_plan_file(options.plan)
    sites, configured = _choose_sites(plan, options)
    rates = find_site_rates(sites)
    start = None
    if options.at is not None:
        start = read_start(options.at, [rate for found in rates.values() for rate in found])
    jobs = _list_jobs(plan, options, None if start is None else start[0])
    books = make_books(jobs, sites, start=start, rates=rates, configured=configured)
    if options.picture is not None:
        from joulelab.plan.cost.cost_picture import draw_books

        if not books.purposes:
            raise ConfigError("there is nothing to draw", why="no rate is set", next="add --tariff or --intensity")
        write_picture(options.picture, draw_books(books, file_format, plan.title))
    _print_books(books, options, plan.title)


def _print_books(books: CostBooks, options: CostOptions, title: str) -> None:
    from joulelab.cli.output import print_blocks
    from joulelab.plan.cost.cost_output import describe_books, lay_out_books
    from joulelab.plan.cost.statement import make_statements

    statements = make_statements(books) if options.statement else []
    if options.as_json:
        data = describe_books(books) | {"title": title, "statements": statements}
        print_json(data | ({"picture": str(options.picture)} if options.picture is not None else {}))
        return
    if not statements:
        print_blocks(lay_out_books(books, title, is_explained=options.is_explained))
    for one in statements:
        click.echo(f"{_wrap_text(one['text'])}\n\nLaTeX:\n\n{_wrap_text(one['latex'])}\n")
    if options.picture is not None:
        click.echo(str(options.picture))


def _wrap_text(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 79, break_long_words=False, break_on_hyphens=False)


def _choose_sites(plan: PlanFile, options: CostOptions) -> tuple[list[PlanSite], Site | None]:
    """Return the sites of the plan, else the configured one, with the rates of options; and that one if it is used."""
    from joulelab.plan.cost.sites import HERE, PlanSite, make_configured_site, read_pue

    sites, configured = list(plan.sites), None
    if not sites:
        site = PlanSite(HERE)
        if options.tariff is None or options.intensity is None or options.pue is None:
            from joulelab.run.config.configuration import load_site

            found = load_site(os.environ)
            if found.problems:
                raise join_errors(found.problems)
            site = site if found.site is None else make_configured_site(found.site)
            unused = {"cost": options.tariff is None, "carbon": options.intensity is None}
            has_pue = site.pue is not None and options.pue is None
            is_used = has_pue or any(unused[purpose] for purpose in site.defaults)
            configured = found.site if is_used else None
        sites = [site]
    given: dict[str, Any] = {}
    if options.tariff is not None:
        given["tariff"] = _make_absolute(options.tariff)
    if options.intensity is not None:
        given["intensity"] = _make_absolute(options.intensity)
    if options.pue is not None:
        pue = read_pue(options.pue)
        given |= {"pue": pue.value, "pue_u": pue.u or None}
    return [replace(site, **given) for site in sites], configured


def _make_absolute(text: str) -> str:
    """Return a rate of an option whose file is found from every folder; paths of a plan file are from its folder."""
    from joulelab.plan.rates.find_rate import is_file

    table, *words = text.split(":")
    if table == "table" and words and words[0].lower().endswith(".toml"):
        return ":".join([table, str(Path(words[0]).resolve()), *words[1:]])
    return str(Path(text).resolve()) if is_file(Path(text)) else text


def _list_jobs(plan: PlanFile, options: CostOptions, at_s: float | None) -> list[CostJob]:
    """Return planned work if there is any, else the named runs."""
    from joulelab.plan.cost.cost_books import CostJob
    from joulelab.plan.cost.job_energy import RunEnergy

    works = [*plan.work, *_make_works(options)]
    kinds = {name: (kind, _read_runs(plan.near(kind.runs), options)) for name, kind in plan.nodes.items() if kind.runs}
    needed = not kinds and (not works or any(not work.runs for work in works))
    words = options.words or (("last",) if needed else ())
    named = _read_runs(words, options) if words else []
    if works:
        return [job for work in works for job in _plan_jobs(work, named, kinds, plan, options, at_s)]
    if not named:
        named = [one for _, measured in kinds.values() for one in measured]
    found = [(one, _find_kind(one, kinds, plan, options)) for one in named]
    return [CostJob(RunEnergy(one, _find_rated(kind, options)), kind) for one, kind in found]


def _read_runs(words: Sequence[str], options: CostOptions) -> list[MeasuredRun]:
    return read_named_runs(words, RunFolders(options.runs, options.studies, options.only))


def _make_works(options: CostOptions) -> list[Work]:
    """Return the planned work of the options; one run if only nodes, cap or batch are given."""
    from joulelab.plan.cost.work import Work

    other = options.nodes, options.cap_w, options.batch, options.gpus
    works = options.works or ((("runs", 1.0),) if any(one is not None for one in other[:3]) else ())
    for unit, amount in works:
        if amount <= 0:
            raise ConfigError(f"{unit}={amount:g} is not work", next="give an amount above 0")
    nouns = [name_one(unit) if amount == 1 else unit for unit, amount in works]
    named = zip(nouns, works, strict=True)
    return [Work(f"{format_amount(amount)} {noun}", unit, amount, (), *other) for noun, (unit, amount) in named]


def _plan_jobs(
    work: Work,
    named: Sequence[MeasuredRun],
    kinds: dict[str, tuple[NodeKind, list[MeasuredRun]]],
    plan: PlanFile,
    options: CostOptions,
    at_s: float | None,
) -> list[CostJob]:
    """Return work planned from its own runs, else from the named runs, else on each kind of node."""
    from joulelab.plan.cost.cost_books import CostJob
    from joulelab.plan.cost.work import check_one_workload, plan_work

    own = _read_runs(plan.near(work.runs), options) if work.runs else list(named)
    bases: list[tuple[NodeKind | None, list[MeasuredRun]]] = list(kinds.values()) if not own else []
    if own:
        bases = [(_find_kind(own[0], kinds, plan, options), own)]
    _check_imported([one for _, measured in bases for one in measured])
    check_one_workload(work, {kind.name: measured for kind, measured in bases if kind is not None and not own})
    jobs = []
    for kind, measured in bases:
        gpu_w = options.gpu_w if options.gpu_w is not None or kind is None else kind.gpu_w
        gpus = None if kind is None else kind.gpus
        rated_w = _find_rated(kind, options)
        jobs.append(CostJob(plan_work(work, measured, at_s=at_s, rated_w=rated_w, gpus=gpus, gpu_w=gpu_w), kind))
    return jobs


def _check_imported(measured: Sequence[MeasuredRun]) -> None:
    """Refuse several imported runs without a workload: their command only tells how they were imported."""
    from joulelab.plan.measured_runs import name_workload, states_workload

    results = [one.result for one in measured]
    silent = [result for result in results if not states_workload(result)]
    if silent and len({name_workload(result) for result in results}) > 1:
        what, first = "it is unknown whether the runs are of one workload", silent[0].name or silent[0].run
        raise ConfigError(what, where=first, why="it was imported without it", next="import it with -l workload=NAME")


def _find_kind(
    one: MeasuredRun, kinds: dict[str, tuple[NodeKind, list[MeasuredRun]]], plan: PlanFile, options: CostOptions
) -> NodeKind | None:
    """Return the kind of node of a run: the one that names it, the only one of the plan, or that of the options."""
    found = next(iter(plan.nodes.values())) if len(plan.nodes) == 1 else None
    for kind, measured in kinds.values():
        if any(other.result.run == one.result.run for other in measured):
            found = kind
    given = {"price": options.node_price, "embodied_kg": options.embodied_kg, "lifetime_years": options.lifetime_years}
    typed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if not typed:
        return found
    from joulelab.plan.plan_tables import NodeKind

    kind = replace(found or NodeKind("node"), **typed)
    if kind.lifetime_years is None or (kind.price is None and kind.embodied_kg is None):
        what = "the share of a node needs its lifetime, and its price or embodied carbon"
        raise ConfigError(what, next="give --lifetime 5 with --node-price 300000 or --embodied 1500")
    return kind


def _find_rated(kind: NodeKind | None, options: CostOptions) -> float | None:
    return options.rated_w if options.rated_w is not None or kind is None else kind.rated_w
