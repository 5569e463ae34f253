"""Run a command under every cap, GPU count and setting, and find the best: `joulelab sweep`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import print_notice
from joulelab.cli.parameters import Duration, KeyValue, UsageError, config_option, json_option, studies_option
from joulelab.cli.study_report import show_study
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.folder import Plan, Study
    from joulelab.study.matrix import Workload
    from joulelab.study.values import Value


class Cooling(click.ParamType[tuple[str, float]]):
    """Take a temperature of the GPUs (`45C`) or a time (`60s`)."""

    name = "45C|60s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return `cool_c` with degC, or `cool_s` with s."""
        if isinstance(value, tuple):
            return value
        from joulelab.study.values import cooling

        try:
            return cooling(value)
        except ConfigError as error:
            self.fail(f"{error.what}; {error.next}", param, ctx)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Hold what is asked for beside the plan."""

    folder: Path
    name: str
    seed: int | None
    dry_run: bool
    retry: bool
    yes: bool
    as_json: bool
    figures: bool | None


@click.command("sweep", context_settings={"allow_interspersed_args": False})
@click.option("--cap", metavar="W|%", help="GPU caps: 100:260:10, 150,200 or 60%:100%:10% of the default.")
@click.option("--gpus", metavar="N,...", help="How many of the visible GPUs the command uses: 1,2,4,8.")
@click.option("--clock", metavar="MHZ", help="Lock GPU clocks at most here: 900:1980:120.")
@click.option("--cpu-cap", metavar="W|%", help="Caps of every CPU package.")
@click.option(
    "--set", "knobs", multiple=True, type=KeyValue(), metavar="NAME=V,...", help="Any other knob: batch=256,512."
)
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each cell.")
@click.option("--goal", "goals", multiple=True, help="energy, time, edp, ed2p, eds:K, gain-loss, energy@slowdown=5%.")
@click.option(
    "--reference", multiple=True, type=KeyValue(), metavar="KNOB=V", help="What others are compared with: cap=260."
)
@click.option("--scope", metavar="SCOPE", help="Whose energy counts: node.ac, gpu.  [default: everything measured]")
@click.option(
    "--work", multiple=True, metavar="REGEX", help="Work done, in the output: 'tokens: (\\d+)'; the last counts."
)
@click.option("--per", metavar="NAME", help="Compare per unit of this work: samples.  [default: that of --work]")
@click.option("--work-sum", is_flag=True, help="Add all matches of --work instead.")
@click.option("--idle", type=Duration(), help="Measure idle power this long before each run.")
@click.option("--warmup", type=click.IntRange(min=0), default=0, help="Runs of the first cell that are not counted.")
@click.option("--cool", type=Cooling(), help="Before each run, wait for the GPUs to be no warmer, or for a time.")
@click.option("--cool-limit", type=Duration(), default="10m", show_default=True, help="Wait so long at most.")
@click.option("--timeout", type=Duration(0.001), help="End a run that takes longer; it counts as failed.")
@click.option("--seed", type=int, help="Seed of the random order; drawn and stored unless given.")
@click.option("--name", metavar="NAME", help="Name of the study.  [default: from the command]")
@studies_option
@click.option("--period", type=Duration(0.001), show_default="0.1", help="Time between readings of power.")
@click.option("--meter", "meters", multiple=True, metavar="NAME", help="Read only these: entries or kinds of meters.")
@click.option("--no-meter", "without", multiple=True, metavar="NAME", help="Leave these meters out.")
@config_option
@click.option("--estimate", is_flag=True, help="Add an estimate (load x rated power); it is marked as such.")
@click.option("--rated-cpu", type=click.FloatRange(min=0, min_open=True), metavar="W", help="Rated power of all CPUs.")
@click.option(
    "--write", "written", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Only write this sweep as a study file, to go on from there: joulelab study run FILE.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show every slot in order.")
@click.option("--report", "only_report", is_flag=True, help="Only show the results of what is there.")
@click.option("--retry", is_flag=True, help="Run slots that failed again.")
@click.option("--figures/--no-figures", default=None, help="Draw figures.  [default: if matplotlib is installed]")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **given: Any) -> None:
    r"""Run a command under every cap, GPU count and setting; tell the best.

    joulelab sweep --cap 100:260:10 --gpus 1,2,4,8 --repeat 10 --goal edp -- python train.py --gpus {gpus}

    joulelab sweep --cap 60%:100%:10% --set batch=256,512 --work 'tokens: (\d+)' -- ./serve --batch {batch}

    Every combination is a cell, every repeat of a cell a slot; their order is random within each repeat. Interrupted,
    the same command goes on; more caps or repeats add to what is there. {name} is a placeholder, {{name}} a literal
    {name}; other braces stay as they are.
    """
    if given["only_report"]:
        ctx.exit(_report(words, given))
    if not words:
        raise UsageError("no-command", "there is no command to sweep; type `joulelab sweep --cap 100:260:10 -- CMD`")
    if given["rated_cpu"] is not None and not given["estimate"]:
        raise UsageError("needs-estimate", "--rated-cpu is for an estimate; add --estimate")
    plan = _plan(words, given)
    if given["written"] is not None:
        ctx.exit(_write(plan, given))
    ctx.exit(_sweep(plan, _wanted(plan, given)))


def _plan(words: tuple[str, ...], given: Mapping[str, Any]) -> Plan:
    """Return what is asked for. Raises ConfigError."""
    from joulelab.analysis.goals import Goal
    from joulelab.study.folder import Plan
    from joulelab.study.matrix import Knob, cells, find_reference
    from joulelab.study.work import WorkPattern

    named = [(name, given[name], f"--{name.replace('_', '-')}") for name in ("cap", "gpus", "clock", "cpu_cap")]
    knobs = [Knob.parse(name, text, where) for name, text, where in named if text is not None]
    for name, text in given["knobs"]:
        own = next((where for own, _, where in named if own == name), None)
        if own is not None:
            raise ConfigError(
                f"{name} is not set by --set",
                where=f"--set {name}",
                next=f"type {own} {text}",
                code="config.own-option",
            )
        knobs.append(Knob.parse(name, text))
    workload = _workload(words)
    return Plan(
        cells=cells(workload, knobs, given["repeat"]),
        repeats=given["repeat"],
        warmup=given["warmup"],
        settings=_settings(given),
        goals=tuple(Goal.parse(text).text for text in given["goals"] or ("energy", "edp")),
        reference=find_reference(dict(given["reference"]), knobs),
        work=tuple(WorkPattern.parse(text, add=given["work_sum"]).to_json() for text in given["work"]),
        scope=given["scope"],
        per=given["per"],
    )


def _workload(words: tuple[str, ...]) -> Workload:
    from joulelab.study.matrix import Workload

    return Workload(words, kind="notebook" if words[0].endswith(".ipynb") else "")


def _settings(given: Mapping[str, Any]) -> Any:
    from joulelab.study.folder import Settings

    cooling = {} if given["cool"] is None else {given["cool"][0]: given["cool"][1]}
    config = given["config"]
    return Settings(
        idle_s=given["idle"],
        period_s=given["period"],
        meters=given["meters"],
        without=given["without"],
        config=None if config is None else str(config.absolute()),
        cool_limit_s=given["cool_limit"],
        timeout_s=given["timeout"],
        estimate=given["estimate"],
        rated_cpu_w=given["rated_cpu"],
        **cooling,
    )


def _wanted(plan: Plan, given: Mapping[str, Any]) -> Wanted:
    from joulelab.study.folder import check_name, default_name

    name = given["name"] or default_name(plan.cells[0].workload)
    check_name(name)
    kept = {key: given[key] for key in ("seed", "dry_run", "retry", "yes", "as_json", "figures")}
    return Wanted(folder=given["studies"].absolute() / name, name=name, **kept)


def _write(plan: Plan, given: Mapping[str, Any]) -> int:
    """Write a sweep as a study file, and say how to go on. Raises ConfigError where there is a file already."""
    from joulelab.study.file.toml import to_toml
    from joulelab.study.folder import default_name

    file: Path = given["written"]
    text = to_toml(plan, given["name"] or default_name(plan.cells[0].workload))
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        then = "name another, or remove it" if isinstance(error, FileExistsError) else None
        raise ConfigError(
            "cannot write the study file", where=str(file), why=error.strerror, next=then, code="config.write"
        ) from error
    print_notice(f"written: {file}; joulelab study plan {file}")
    return 0


def _sweep(plan: Plan, wanted: Wanted) -> int:
    from joulelab.cli.output import show_progress
    from joulelab.cli.study_driver import FAILED_CODE, confirm_plan, report_failures, report_stop, run_slots
    from joulelab.report.study_summary import summarised
    from joulelab.study.check import check_plan
    from joulelab.study.folder import join_study

    for warning in check_plan(plan, os.environ):
        print_notice(warning)
    if wanted.dry_run:
        from joulelab.cli.study_overview import show_plan

        return show_plan(wanted.folder, wanted.name, plan, seed=wanted.seed, as_json=wanted.as_json)
    if not confirm_plan(plan, yes=wanted.yes):
        return FAILED_CODE
    study = join_study(wanted.folder, wanted.name, plan, wanted.seed)
    outcome = run_slots(study, plan, retry=wanted.retry)
    code = report_stop(outcome)
    if code is not None:
        return code
    with show_progress(f"reading the runs of {study.name}"):
        results, summary = summarised(study, plan)
    show_study(study, results, summary, as_json=wanted.as_json, figures=wanted.figures)
    return report_failures(outcome)


def _report(words: tuple[str, ...], given: Mapping[str, Any]) -> int:
    from joulelab.cli.output import show_progress
    from joulelab.report.study_summary import summarised
    from joulelab.study.folder import check_name, default_name, open_study

    if not words and not given["name"]:
        raise UsageError("no-name", "--report needs the study's --name, or its command")
    name = given["name"] or default_name(_workload(words))
    check_name(name)
    study = open_study(given["studies"].absolute() / name)
    chosen = {"goals": list(given["goals"]), "scope": given["scope"], "reference": _values(study, given["reference"])}
    chosen |= {"per": given["per"]}
    if given["work"]:
        from joulelab.study.work import WorkPattern

        chosen["work"] = [WorkPattern.parse(text, add=given["work_sum"]).to_json() for text in given["work"]]
    study.data |= {key: value for key, value in chosen.items() if value}
    with show_progress(f"reading the runs of {study.name}"):
        results, summary = summarised(study)
    show_study(study, results, summary, as_json=given["as_json"], figures=given["figures"])
    return 0


def _values(study: Study, pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return the reference that is asked for, as values of the study's knobs. Raises ConfigError."""
    from joulelab.analysis.cell_lines import rank_value
    from joulelab.study.matrix import Knob, find_reference

    there: dict[str, dict[str, Value]] = {}
    for cell in study.cells().values():
        for name, value in cell.knobs.items():
            there.setdefault(name, {})[value.text] = value
    ordered = {
        name: sorted(values.values(), key=lambda v: (rank_value(v.value), v.text)) for name, values in there.items()
    }
    return find_reference(dict(pairs), [Knob(name, tuple(values)) for name, values in ordered.items()])
