"""Say when to run a job: `joulelab plan when RUN --intensity FILE.csv --deadline 48h`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_json
from joulelab.cli.parameters import format_examples, json_option
from joulelab.plan.options import (
    Hours,
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
    from collections.abc import Mapping

    from joulelab.plan.rates.rate import Rate
    from joulelab.plan.when.baselines import Way
    from joulelab.plan.when.errors import Scatter
    from joulelab.plan.when.job import Job
    from joulelab.plan.when.kept_plan import Plan
    from joulelab.plan.when.slots import Slots

WAYS = ("now", "now-cap", "start", "pauses-idle", "pauses-off", "caps", "caps-idle", "caps-off")
LEAST_S = 60.0
EXAMPLES = format_examples(
    "joulelab plan when last --intensity forecast.csv --deadline 48h",
    "joulelab plan when STUDY --tariff tariff.toml --deadline 2026-11-20T08:00",
    "joulelab plan when RUN --intensity kept:NAME --deadline 7d --keep",
    "joulelab plan when --power 6.9kW --duration 40h --tariff p.csv --deadline 7d",
)


@click.command("when", epilog=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[RUN]...")
@add_plan_option("the kind of node")
@click.option(
    "--intensity", metavar="SPEC", help="Minimise carbon with this intensity: FILE.csv, kept:NAME, em:DE, ..."
)
@click.option("--tariff", metavar="SPEC", help="Minimise cost with this price: FILE.toml, FILE.csv, 0.32EUR.")
@click.option("--deadline", required=True, metavar="TIME", help="Latest end: 2026-11-20T08:00, 48h, 7d.")
@click.option("--from", "since", metavar="TIME", help="Earliest start.  [default: now]")
@click.option("--zone", metavar="NAME", help="Time zone of the times.  [default: of the rate]")
@click.option("--duration", type=Hours(LEAST_S), help="Time of the job without caps.  [default: the run's]")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes of the job.  [default: the run's]")
@click.option("--power", type=Watts(), metavar="W", help="Power of a node at work.  [default: measured]")
@click.option(
    "--idle", type=Watts(zero=True), metavar="W", help="Power of a node in pauses.  [default: measured, else 31 %]"
)
@click.option("--rated", type=Watts(), metavar="W", help="Nameplate of a node, shown beside.  [default: the run's]")
@click.option(
    "--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of a node, to model caps.  [default: the run's]"
)
@click.option(
    "--gpu-power", "gpu_w", type=Watts(), metavar="W", help="Highest cap of a GPU, to model caps.  [default: the run's]"
)
@click.option(
    "--cap", "caps", type=Watts(), multiple=True, metavar="W", help="Cap to choose from.  [default: those known]"
)
@click.option("--slot", type=Hours(LEAST_S), default="15m", show_default=True, help="Length of a slot.")
@click.option("--pause-cost", type=Hours(), default="0", help="Time to resume after a pause, at full power.")
@click.option("--pause-energy", type=Number(min=0), default=0.0, metavar="KWH", help="Further energy of a pause.")
@click.option("--waits", is_flag=True, help="Count the idle node from now, not from the start of the job.")
@click.option(
    "--pue", metavar="N", default="1", show_default=True, help="Overhead of the building: 1.3, or 1.3±0.05 (k = 2)."
)
@click.option("--choose", type=click.Choice(WAYS), help="Plan of this kind.  [default: the cheapest with an idle node]")
@click.option("--keep", is_flag=True, help="Save the plan as JSON in the folder of plans.")
@add_picture_option
@click.option(
    "--plans", type=click.Path(path_type=Path), envvar="JOULELAB_PLANS", default="joulelab-plans",
    show_default=True, metavar="DIR", help="Folder of the plans; also set by JOULELAB_PLANS.",
)  # fmt: skip
@json_option
@add_run_options
def command(words: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Find the start, pauses and caps of a job with least carbon or cost.

    RUN is the job; runs at several caps (or a study, a sweep) show the effect of caps. Compares running now with the
    best cap, the best start, pauses with an idle or switched-off node, and caps per slot.
    """
    kind = check_picture(given["picture"], force=given["force"])
    plan = _plan(words, given)
    files = {}
    if given["keep"]:
        from joulelab.plan.when.kept_plan import keep

        files["kept"] = str(keep(plan, given["plans"]))
    if given["picture"] is not None:
        from joulelab.plan.when.when_picture import picture

        write_picture(given["picture"], picture(plan, kind))
        files["picture"] = str(given["picture"])
    _show(plan, files, as_json=as_json)


def _show(plan: Plan, files: Mapping[str, str], *, as_json: bool) -> None:
    from joulelab.plan.when.when_output import lay_out_plan, plan_json

    if as_json:
        print_json({**plan_json(plan), "files": dict(files)})
        return
    from joulelab.cli.output import print_blocks
    from joulelab.report.terminal import list_facts

    print_blocks([*lay_out_plan(plan), list_facts(files.items())])


def _plan(words: tuple[str, ...], given: Mapping[str, Any]) -> Plan:
    """Return the plan that is asked for. Raises ConfigError."""
    import datetime as dt
    from dataclasses import replace

    from joulelab.plan.cost.entries import pue_of
    from joulelab.plan.when.baselines import Terms, best_of, ways_of
    from joulelab.plan.when.blocks import Restart
    from joulelab.plan.when.kept_plan import Plan, new_id
    from joulelab.plan.when.slots import J_PER_KWH, slots_of

    now_s = dt.datetime.now(dt.UTC).timestamp()
    rate = _rate(given)
    zone = given["zone"] or rate.label.time_zone or "UTC"
    start_s, deadline_s = _times(given, zone, now_s)
    slots = slots_of(rate, start_s, deadline_s, given["slot"])
    slots = replace(slots, label=replace(slots.label, time_zone=zone))  # times are shown as they are read
    job = _job(words, given)
    pue = pue_of(given["pue"])
    again = Restart(given["pause_cost"], given["pause_energy"] * J_PER_KWH)
    terms = Terms(again, given["waits"], pue.value, pue.u)
    ways = ways_of(job, slots, terms)
    chosen = best_of(ways, job, given["choose"] or "")
    made = dt.datetime.fromtimestamp(now_s, dt.UTC).isoformat(timespec="seconds")
    spec = given["intensity"] or given["tariff"]
    scatter = _scatter(spec, slots, chosen, ways[0])
    return Plan(new_id(now_s), made, job, slots, terms, ways, chosen.name, scatter=scatter)


def _rate(given: Mapping[str, Any]) -> Rate:
    from joulelab.plan.rates.find import rate_of

    if (given["intensity"] is None) == (given["tariff"] is None):
        raise click.UsageError("give --intensity for least carbon, or --tariff for least cost: one of them")
    if given["tariff"] is not None:
        return rate_of(given["tariff"], want="price", zone=given["zone"])
    return rate_of(given["intensity"], want="carbon", zone=given["zone"])


def _times(given: Mapping[str, Any], zone: str, now_s: float) -> tuple[float, float]:
    from joulelab.plan.when.slots import moment

    start_s = now_s if given["since"] is None else moment(given["since"], now_s, zone)
    return start_s, moment(given["deadline"], start_s, zone)


def _job(words: tuple[str, ...], given: Mapping[str, Any]) -> Job:
    from joulelab.plan.plan_file import read_plan_file
    from joulelab.plan.when.job import Wanted, job_of

    plan = read_plan_file(given["plan"])
    kind = plan.kind
    idle_w = kind.idle_w if given["idle"] is None else given["idle"]
    wanted = Wanted(
        given["duration"], given["power"], idle_w, given["rated"] or kind.rated_w, given["nodes"],
        given["gpus"] or kind.gpus, given["gpu_w"] or kind.gpu_w, given["caps"],
    )  # fmt: skip
    words = words or tuple(plan.near(kind.runs))
    if not words:
        return job_of([], wanted)
    return job_of(read_named_runs(words, RunFolders(given["runs"], given["studies"], given["only"])), wanted)


def _scatter(spec: str, slots: Slots, way: Way, against: Way) -> Scatter | None:
    """Return how the gain comes out under the errors of earlier forecasts, where they are kept with what came."""
    series, issued_s = _series(spec), slots.label.issued_utc_s
    if not series or issued_s is None:
        return None
    from joulelab.plan.rates.kept import pairs
    from joulelab.plan.when.errors import scatter_of

    earlier = [(was, came) for _, was, came in pairs(series) if was.label.issued_utc_s != issued_s]
    return scatter_of(way, against, slots, earlier, issued_s=issued_s)


def _series(spec: str) -> str:
    """Return the name under which series of a rate are kept, empty where none are."""
    from joulelab.plan.rates.asked import is_service
    from joulelab.plan.rates.services import series_of

    word, *rest = spec.split(":")
    if word == "kept":
        return rest[0].partition("/")[0] if rest else ""
    if not is_service(word):
        return ""
    zone, covers = [*rest, "", ""][:2]
    return series_of(word, zone, covers)
