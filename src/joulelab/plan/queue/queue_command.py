"""Run a stream of jobs under a power budget in virtual time: `joulelab plan schedule`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json, print_notice
from joulelab.cli.parameters import Duration, format_examples, json_option
from joulelab.plan.options import (
    Number,
    Percent,
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
    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.queue.jobs import Stream
    from joulelab.plan.queue.outcome import Comparison
    from joulelab.plan.queue.site import Schedule
    from joulelab.plan.rates.rate import Rate

# Options that stand for keys of [schedule], by the names of the keys.
KEYS = (
    "nodes", "budget_w", "margin", "idle_w", "unused", "rated_w", "node_w", "accuracy", "count", "slowdown", "pue",
    "zone", "tariff", "intensity", "repeat", "every_s",
)  # fmt: skip
RATES = ("tariff", "intensity")
DAY_S = 86_400.0
EXAMPLES = format_examples(
    "joulelab plan schedule --plan examples/plans/schedule.toml",
    "joulelab plan schedule --jobs jobs.csv --nodes 24 --budget 100kW",
    "joulelab plan schedule STUDY --repeat 200 --every 10m --budget 40kW",
)


@click.command("schedule", epilog=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[RUN|STUDY]...")
@add_plan_option("the stream of jobs and the site, [schedule]")
@click.option("--jobs", type=click.Path(path_type=Path), metavar="FILE", help="Jobs: CSV, or the output of `sacct -P`.")
@click.option("--repeat", type=click.IntRange(min=1), metavar="N", help="Number of jobs to make from the runs.")
@click.option("--every", "every_s", type=Duration(), help="Time between these jobs.")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the site.")
@click.option("--budget", "budget_w", type=Watts(), help="Highest power of all nodes, idle ones included.")
@click.option("--margin", type=Percent(), help="Share of the budget to keep free.")
@click.option("--idle", "idle_w", type=Watts(zero=True), help="Power of an unused node.  [default: measured]")
@click.option("--unused", type=click.Choice(("idle", "off")), help="State of unused nodes.  [default: idle]")
@click.option("--rated", "rated_w", type=Watts(), help="Nameplate of a node.")
@click.option("--count", type=click.Choice(("mean", "highest")), help="Power of a job that counts against the budget.")
@click.option("--slowdown", type=Percent(), help="Largest slowdown by a cap.  [default: 10%]")
@click.option("--node-w", "node_w", type=Watts(), help="Mean power of a node, for jobs without power.")
@click.option("--accuracy", type=Percent(), help="Common error of all powers in --jobs (k = 2).")
@click.option("--zone", metavar="ZONE", help="Time zone of --jobs: Europe/Berlin.")
@click.option("--pue", type=Number(min=1.0), metavar="N", help="Power of the site divided by the power of its nodes.")
@click.option("--tariff", metavar="RATE", help="Price of a kWh: 0.32EUR, FILE.")
@click.option("--intensity", metavar="RATE", help="Carbon of a kWh: 380, table:DE, FILE.csv.")
@click.option("--draws", type=click.IntRange(min=0), metavar="N", help="Number of Monte Carlo draws.")
@click.option("--seed", type=int, default=9, show_default=True, metavar="N", help="Seed of the draws.")
@add_picture_option
@json_option
@add_run_options
def command(
    words: tuple[str, ...],
    plan: Path | None,
    jobs: Path | None,
    draws: int | None,
    seed: int,
    picture: Path | None,
    force: bool,
    as_json: bool,
    runs: Path,
    studies: Path,
    only: tuple[tuple[str, str], ...],
    **given: Any,
) -> None:
    """Simulate a queue of jobs under a power budget, with caps per job.

    Jobs come from a file, or are the named runs, submitted when they started. Runs of a workload at several caps show
    the effect of caps. Compares policies: first come first served without caps (ignores the budget), waiting for
    power, admission by nameplate, backfill, and backfill with caps.
    """
    from joulelab.cli.output import measure_terminal, print_blocks
    from joulelab.plan.queue.queue_output import lay_out_schedule, schedule_json

    kind = check_picture(picture, force=force)
    schedule, folder = _given(plan, given)
    # What is typed is looked for from here, what the plan file names from its folder.
    folders = {key: Path() if given[key] is not None else folder for key in RATES}
    measured, named = _measured(words, schedule, folder, RunFolders(runs, studies, only))
    stream = _stream(schedule, folder, jobs, measured)
    rates = _rates(schedule, folders, stream)
    comparison, responses, notes = _compared(schedule, stream, rates, measured, named, (draws, seed))
    if picture is not None:
        from joulelab.plan.queue.queue_picture import draw_schedule

        write_picture(picture, draw_schedule(comparison, kind))
        print_notice(f"wrote {picture}")
    if as_json:
        print_json(schedule_json(comparison, responses, notes))
    else:
        print_blocks(lay_out_schedule(comparison, responses, notes, width=measure_terminal()))


def _given(plan: Path | None, given: dict[str, Any]) -> tuple[Schedule, Path]:
    """Return the table of the plan file with what was typed in its place, and the folder its paths are from."""
    from dataclasses import replace

    from joulelab.plan.plan_file import read_plan_file
    from joulelab.plan.queue.site import Schedule

    scenario = read_plan_file(plan, need="schedule")
    schedule = scenario.schedule or Schedule()
    return replace(schedule, **{key: given[key] for key in KEYS if given[key] is not None}), scenario.folder


def _measured(
    words: tuple[str, ...], schedule: Schedule, folder: Path, stores: RunFolders
) -> tuple[list[MeasuredRun], dict[str, list[MeasuredRun]]]:
    """Return what the named runs measured, and those of the workloads of the plan file."""

    def near(named: tuple[str, ...]) -> list[str]:
        return [str(folder / word) if (folder / word).exists() else word for word in named]

    asked = list(words) or near(schedule.runs)
    measured = read_named_runs(asked, stores) if asked else []
    return measured, {w.name: read_named_runs(near(w.runs), stores) for w in schedule.workloads if w.runs}


def _compared(
    schedule: Schedule, stream: Stream, rates: dict[str, Rate], measured: list[MeasuredRun],
    named: dict[str, list[MeasuredRun]], drawing: tuple[int | None, int],
) -> tuple[Comparison, dict[str, CapResponse], tuple[str, ...]]:  # fmt: skip
    from joulelab.cli.output import show_progress
    from joulelab.plan.queue.caps import curve_of
    from joulelab.plan.queue.outcome import compare
    from joulelab.plan.queue.prepare import responses_of, site_of
    from joulelab.plan.queue.site import SLOWDOWN

    everyone = [*measured, *(each for several in named.values() for each in several)]
    site, said = site_of(schedule, stream, everyone)
    responses, never = responses_of(schedule, stream, measured, named)
    slowdown = SLOWDOWN if schedule.slowdown is None else schedule.slowdown
    curves = {name: curve_of(response, slowdown) for name, response in responses.items()}
    with show_progress(f"scheduling {len(stream.jobs)} jobs"):
        found = compare(stream, site, curves, rates=rates, draws=drawing[0], seed=drawing[1])
    return found, responses, (*stream.notes, *said, *never)


def _stream(schedule: Schedule, folder: Path, jobs: Path | None, measured: list[MeasuredRun]) -> Stream:
    from joulelab.core.errors import ConfigError
    from joulelab.plan.queue.jobs import repeated, stream_of_runs
    from joulelab.plan.queue.past import read_jobs

    path = jobs if jobs is not None else folder / schedule.jobs if schedule.jobs else None
    if path is not None:
        if schedule.repeat is not None:
            raise ConfigError("--repeat is for runs, not for a file of jobs", next="leave one of them out")
        return read_jobs(path, zone=schedule.zone, node_w=schedule.node_w, accuracy=schedule.accuracy)
    stream = stream_of_runs(measured)
    if schedule.repeat is None and schedule.every_s is None:
        return stream
    if schedule.repeat is None or schedule.every_s is None:
        raise ConfigError("--repeat and --every belong together", next="give both")
    return repeated(stream, schedule.repeat, schedule.every_s)


def _rates(schedule: Schedule, folders: dict[str, Path], stream: Stream) -> dict[str, Rate]:
    """Return price and carbon as they were asked for. Raises ConfigError."""
    from joulelab.core.errors import ConfigError
    from joulelab.plan.rates.find import rate_of

    found: dict[str, Rate] = {}
    if schedule.tariff:
        found["cost"] = rate_of(schedule.tariff, want="price", folder=folders["tariff"])
    if schedule.intensity:
        found["carbon_g"] = rate_of(schedule.intensity, want="carbon", folder=folders["intensity"])
    if not (stream.dated and stream.zoned) and (varying := [rate for rate in found.values() if _varies(rate, stream)]):
        lack = "have no zone" if stream.dated else "are s from a start of their own, no dates"
        raise ConfigError(
            f"{varying[0].label.name} changes by the hour, and the times of the jobs {lack}",
            next="give --zone Europe/Berlin" if stream.dated else "write `submit` as 2026-01-05T08:00:00Z",
        )
    return found


def _varies(rate: Rate, stream: Stream) -> bool:
    """Return whether a rate changes while jobs run. A series has no dates of jobs without any: it is not asked."""
    from joulelab.plan.rates.constant import Constant
    from joulelab.plan.rates.tariff import Tariff

    if not stream.dated and not isinstance(rate, Constant | Tariff):
        return True
    first, last = stream.jobs[0].submit_s, stream.jobs[-1].submit_s
    return bool(len(rate.changes(first - DAY_S, last + 7 * DAY_S)))
