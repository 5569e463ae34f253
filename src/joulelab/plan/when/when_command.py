"""Find when to run a job, and run it: `joulelab plan when RUN --intensity FILE.csv --deadline 48h`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_blocks, print_json
from joulelab.cli.parameters import format_examples, json_option
from joulelab.core.errors import ConfigError, join_errors
from joulelab.plan.options import (
    Hours,
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
from joulelab.plan.when.plan_submit import add_start_options, check_start_options, start_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.plan.rates.rate import Rate
    from joulelab.plan.when.when_job import ShiftableJob
    from joulelab.plan.when.when_output import WhenAnswer

WAYS = ("now", "now-cap", "start", "pauses", "pauses-off", "caps")  # a test compares it with the titles
LEAST_SLOT_S, LEAST_JOB_S = 1.0, 1.0
COMMAND = "joulelab.plan.when.command"
EXAMPLES = format_examples(
    "joulelab plan when last --intensity forecast.csv --deadline 48h",
    "joulelab plan when SWEEP --tariff tariff.toml --deadline 2026-11-20T08:00",
    "joulelab plan when --power 6.9kW --duration 40h --tariff p.csv --deadline 7d",
    "joulelab plan when last --intensity f.csv --deadline 12h --run -- ./train.sh",
)


class TimeWithUnit(Hours):
    """Take a time with its unit: `5` could be seconds or hours."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        text = str(value).strip()
        if text.replace(".", "", 1).isdigit() and float(text):
            self.fail(f"{text!r} has no unit; write {text}s, {text}m or {text}h", param, ctx)
        return super().convert(value, param, ctx)


class JobCommand(click.Command):
    """Keep the words after `--` apart: they are the command of the job, those before it are runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before `--`."""
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])


@click.command("when", cls=JobCommand, epilog=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[RUN]... [-- CMD]")
@add_plan_option("the kind of node")
@click.option("--intensity", metavar="SPEC", help="Least carbon by this intensity: FILE.csv, table:DE, em:DE.")
@click.option("--tariff", metavar="SPEC", help="Least cost by this price: FILE.toml, FILE.csv, 0.32EUR.")
@click.option("--by", type=click.Choice(["carbon", "cost"]), help="What to minimise, if both rates are given.")
@click.option("--deadline", required=True, metavar="TIME", help="Latest end: 2026-11-20T08:00, 48h, 7d.")
@click.option("--from", "since", metavar="TIME", help="Earliest start.  [default: now]")
@click.option("--zone", metavar="NAME", help="Time zone of the times.  [default: of the rate]")
@click.option("--duration", type=TimeWithUnit(LEAST_JOB_S), help="Time of the job without caps.  [default: the run's]")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the job.  [default: the run's]")
@click.option("--power", type=Watts(), metavar="W", help="Power of a node at work.  [default: measured]")
@click.option("--idle", type=Watts(zero=True), metavar="W", help="Power of a node in pauses.  [default: measured]")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of a node, to model caps.")
@click.option("--gpu-power", "gpu_w", type=Watts(), metavar="W", help="Highest cap of a GPU, to model caps.")
@click.option("--cap", "caps", type=Watts(), multiple=True, metavar="W", help="Cap to choose from; repeatable.")
@click.option("--slot", type=TimeWithUnit(LEAST_SLOT_S), default="15m", show_default=True, help="Length of a slot.")
@click.option("--pause-cost", type=TimeWithUnit(), default="0", help="Time to resume after a pause, at full power.")
@click.option("--pause-energy", type=Number(min=0), default=0.0, metavar="KWH", help="Further energy of a pause.")
@click.option("--waits", is_flag=True, help="Count the idle node from now, not from the start of the job.")
@click.option("--pue", metavar="N", help="Overhead: 1.3, or 1.3±0.05 (k = 2).  [default: of joulelab site, else 1]")
@click.option("--choose", type=click.Choice(WAYS), help="Choose this way.  [default: the cheapest with an idle node]")
@add_start_options
@click.option(
    "--plans", type=click.Path(path_type=Path), default="joulelab-plans", metavar="DIR",
    help="Folder of the files of --submit.  [default: joulelab-plans]",
)  # fmt: skip
@add_picture_option
@add_why_option
@json_option
@add_run_options
def command(words: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Find the start, pauses and caps of a job with least carbon or cost.

    RUN is the job; runs at several caps (a sweep) show the effect of caps. Compares running now with the best cap, the
    best start, pauses and caps by the slot. --run starts CMD by the plan, measured; --submit gives it to Slurm.
    """
    given["as_json"] = as_json
    job_words: tuple[str, ...] = click.get_current_context().meta[COMMAND]
    starts = check_start_options(job_words, given)
    kind = check_picture(given["picture"], force=given["force"])
    rates = _find_rates(given)
    answer = _compute_answer(words, given, rates[0])
    from joulelab.plan.when.when_output import describe_plan, lay_out_plan
    from joulelab.plan.when.when_ways import make_plan

    if given["picture"] is not None:
        from joulelab.plan.when.when_picture import draw_plan

        write_picture(given["picture"], draw_plan(answer, kind))
    if not as_json:
        # Standard output is the job's own.
        blocks = lay_out_plan(answer, is_explained=given["is_explained"], is_started=starts)
        print_blocks(blocks, file=sys.stderr if starts else None)
    elif not starts:
        files = {"picture": str(given["picture"])} if given["picture"] is not None else {}
        print_json({**describe_plan(answer), "files": files})
    if starts:
        plan = make_plan(answer.chosen, answer.now, answer.job, answer.slots, answer.terms)
        start_job(plan, job_words, given, also=rates[1:])


def _find_rates(given: Mapping[str, Any]) -> list[Rate]:
    """Return the rate to minimise, then the other one if it is given."""
    from joulelab.plan.rates.find_rate import find_rate

    intensity, tariff = given["intensity"], given["tariff"]
    if intensity is None and tariff is None:
        raise click.UsageError("no rate; give --intensity FILE.csv for least carbon, or --tariff for least cost")
    if intensity is not None and tariff is not None and given["by"] is None:
        raise click.UsageError("two rates; give --by carbon or --by cost to choose what to minimise")
    if (given["by"] == "carbon" and intensity is None) or (given["by"] == "cost" and tariff is None):
        missing = "--intensity" if given["by"] == "carbon" else "--tariff"
        raise click.UsageError(f"--by {given['by']} needs {missing}")
    found = []
    if intensity is not None:
        found.append(find_rate(intensity, want="carbon", zone=given["zone"]))
    if tariff is not None:
        found.append(find_rate(tariff, want="price", zone=given["zone"]))
    return found[::-1] if given["by"] == "cost" else found


def _compute_answer(words: tuple[str, ...], given: Mapping[str, Any], rate: Rate) -> WhenAnswer:
    """Return what was asked. Raises ConfigError."""
    import datetime as dt
    from dataclasses import replace

    from joulelab.core.quantity import J_PER_KWH
    from joulelab.plan.cost.sites import read_pue
    from joulelab.plan.when.when_output import WhenAnswer
    from joulelab.plan.when.when_program import RestartCost
    from joulelab.plan.when.when_slots import cut_slots, read_time
    from joulelab.plan.when.when_ways import PlanTerms, choose_way, list_ways

    pue = read_pue(given["pue"] or _find_site_pue())
    zone = given["zone"] or rate.label.time_zone or "UTC"
    now_s = dt.datetime.now(dt.UTC).timestamp()
    start_s = now_s if given["since"] is None else read_time(given["since"], now_s, zone)
    if start_s < now_s and (given["runs_job"] or given["submits_job"]):
        then = "leave out --from, or give a later one"
        raise ConfigError("a plan that begins in the past cannot be run", where="--from", next=then, code="config.past")
    slots = cut_slots(rate, start_s, read_time(given["deadline"], start_s, zone), given["slot"])
    slots = replace(slots, label=replace(slots.label, time_zone=zone))  # times are shown as they are read
    job = _read_job(words, given)
    restart = RestartCost(given["pause_cost"], given["pause_energy"] * J_PER_KWH)
    terms = PlanTerms(restart, given["waits"], pue)
    ways = list_ways(job, slots, terms)
    return WhenAnswer(job, slots, terms, ways, choose_way(ways, job, given["choose"] or ""))


def _find_site_pue() -> str:
    from joulelab.run.config.configuration import load_site

    found = load_site(os.environ)
    if found.problems:
        raise join_errors(found.problems)
    return "1" if found.site is None else f"{found.site.pue:g}"


def _read_job(words: tuple[str, ...], given: Mapping[str, Any]) -> ShiftableJob:
    from joulelab.plan.plan_file import read_plan_file
    from joulelab.plan.when.when_job import JobFigures, make_job

    plan = read_plan_file(given["plan"])
    kind = plan.kind
    figures = JobFigures(
        given["duration"], given["power"], kind.idle_w if given["idle"] is None else given["idle"], given["nodes"],
        given["gpus"] or kind.gpus, given["gpu_w"] or kind.gpu_w, given["caps"],
    )  # fmt: skip
    words = words or tuple(plan.near(kind.runs))
    folders = RunFolders(given["runs"], given["studies"], given["only"])
    return make_job(read_named_runs(words, folders) if words else [], figures)
