"""Run a command with every combination of caps and settings, and find the best: `joulelab sweep`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from joulelab.cli.output import load_current_site, print_notice, show_progress
from joulelab.cli.parameters import (
    METER_OPTIONS,
    UNTIL_OPTIONS,
    Duration,
    GroupedCommand,
    KeyValue,
    UsageError,
    add_format_option,
    add_options,
    format_examples,
    hide_options,
    json_option,
    read_until,
    studies_option,
)
from joulelab.cli.study_report import show_study
from joulelab.core.errors import ConfigError
from joulelab.report.tables import DOCUMENT_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.folder import Plan, Study
    from joulelab.study.knobs import Value
    from joulelab.study.matrix import Workload


EXAMPLES = format_examples(
    "joulelab sweep --cap 100:260:10 --goal edp -- python train.py",
    "joulelab sweep --cap 60%:100%:10% --gpus 1,2,4 -- ./train --gpus {gpus}",
    "joulelab sweep --set batch=256,512 --repeat 5 -- ./serve --batch {batch}",
)


class CoolingLimit(click.ParamType[tuple[str, float]]):
    """Take a temperature of the GPUs (`45C`) or a time (`60s`)."""

    name = "45C|60s"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return `cool_c` with degC, or `cool_s` with s."""
        if isinstance(value, tuple):
            return value
        from joulelab.study.knobs import read_cooling

        try:
            return read_cooling(value)
        except ConfigError as error:
            self.fail(f"{error.what}; {error.next}", param, ctx)


# Options that belong in a study file, hidden, with the key that has their place there.
STUDY_KEYS = {
    "cpu_cap": ("--cpu-cap", "cpu_cap in [knobs]"),
    "reference": ("--reference", "reference"),
    "scope": ("--scope", "scope"),
    "per": ("--per", "per"),
    "work_sum": ("--work-sum", "work_sum"),
    "idle": ("--idle", "idle"),
    "warmup": ("--warmup", "warmup"),
    "cool": ("--cool", "cool"),
    "cool_limit": ("--cool-limit", "cool_limit"),
    "timeout": ("--timeout", "timeout"),
    "seed": ("--seed", "seed"),
    "period": ("--period", "period"),
    "without": ("--no-meter", "no_meters"),
    "estimate": ("--estimate", "estimate"),
    "rated_cpu": ("--rated-cpu", "rated_cpu"),
}
GROUPS = {
    "What to vary": ("cap", "gpus", "clock", "knobs"),
    "How often": ("repeat", "until", "repeat_max"),
    "What to compare": ("goals", "work", "phase"),
    "Measuring": ("meters",),
    "The study": ("name", "written", "dry_run", "only_report", "retry"),
    "Output": ("every", "form", "as_json"),
}
METERS, *OTHER_METER_OPTIONS = METER_OPTIONS
HIDDEN_OPTIONS = hide_options(
    click.option("--cpu-cap", metavar="W|%"),
    click.option("--reference", multiple=True, type=KeyValue(), metavar="KNOB=V"),
    click.option("--scope", metavar="SCOPE"),
    click.option("--per", metavar="NAME"),
    click.option("--work-sum", is_flag=True),
    click.option("--idle", type=Duration()),
    click.option("--warmup", type=click.IntRange(min=0), default=0),
    click.option("--cool", type=CoolingLimit()),
    click.option("--cool-limit", type=Duration(), default="10m"),
    click.option("--timeout", type=Duration(0.001)),
    click.option("--seed", type=int),
    click.option("--period", type=Duration(0.001)),
    *OTHER_METER_OPTIONS,
    studies_option,
    click.option("--figures/--no-figures", default=None),
    click.option("-y", "--yes", is_flag=True),
)


@click.command(
    "sweep",
    cls=GroupedCommand,
    groups=GROUPS,
    epilog=EXAMPLES,
    context_settings={"allow_interspersed_args": False},
)
@click.option("--cap", metavar="W|%", help="Power caps per GPU: 100:260:10, 150,200 or 60%:100%:10% of the default.")
@click.option("--gpus", metavar="N,...", help="Numbers of GPUs that the command may use: 1,2,4,8.")
@click.option("--clock", metavar="MHZ", help="Highest GPU clocks: 900:1980:120.")
@click.option(
    "--set",
    "knobs",
    multiple=True,
    type=KeyValue(),
    metavar="NAME=V,...",
    help="Values of another setting: batch=256,512; repeatable.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Runs per cell.")
@add_options(UNTIL_OPTIONS)
@click.option(
    "--goal",
    "goals",
    multiple=True,
    metavar="GOAL",
    help="Find the best cell for this goal: energy, time, edp, ed2p, eds:K, gain-loss, energy@slowdown=5%, "
    "'energy@accuracy>=0.98'; repeatable.",
)
@click.option(
    "--work",
    multiple=True,
    metavar="REGEX",
    help="Compare per unit of the work in the output: 'tokens: (\\d+)'; the group is the number, the last match "
    "counts.",
)
@click.option("--phase", metavar="NAME", help="Compare this phase of the runs, not the whole of them: steady.")
@METERS
@click.option("--name", metavar="NAME", help="Name of the study.  [default: from the command]")
@click.option(
    "--write",
    "written",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Only write a study file, to edit and to run with `joulelab study run FILE`.",
)
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@click.option("--report", "only_report", is_flag=True, help="Only print the results so far.")
@click.option("--retry", is_flag=True, help="Repeat runs that failed.")
@click.option("--all", "every", is_flag=True, help="Show every run of a plan, every table and note of the results.")
@add_format_option("csv", metavar="FORM", text=f"Format of the results: text, {', '.join(DOCUMENT_FORMATS)} or csv.")
@json_option
@add_options(HIDDEN_OPTIONS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **given: Any) -> None:
    """Measure a command at every cap and setting, and find the best.

    Each combination is a cell and is run several times, in random order. {name} in the command is replaced by the value
    of that setting, {{name}} by {name}. If the sweep is interrupted, the same command
    continues; with more caps or repeats it adds to the runs that are done. Study files (--write) can do more: idle
    power, cooling, warm-up, time limits, CPU caps, node types, several workloads. The options --studies, --figures
    and -y of `joulelab study run` work here too.
    """
    if given["only_report"]:
        ctx.exit(_report_sweep(words, given))
    if given["written"] is None:
        _advise_study_file(ctx)
    if not words:
        raise UsageError("no-command", "no command to run; type `joulelab sweep --cap 100:260:10 -- CMD`")
    if given["rated_cpu"] is not None and not given["estimate"]:
        raise UsageError("needs-estimate", "--rated-cpu is only for --estimate; add --estimate")
    from joulelab.study.folder import check_name, make_default_name

    plan = _make_plan(words, given)
    name = given["name"] or make_default_name(plan.cells[0].workload)
    if given["written"] is not None:
        ctx.exit(_write_study_file(plan, name, given))
    check_name(name)
    ctx.exit(_run_sweep(plan, name, given))


def _advise_study_file(ctx: click.Context) -> None:
    """Print the keys of a study file that replace the options that were typed and are no longer in the help."""
    typed = [name for name in STUDY_KEYS if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if typed:
        options, keys = (", ".join(STUDY_KEYS[name][k] for name in typed) for k in (0, 1))
        print_notice(f"{options}: these move to study files ({keys}); --write FILE makes one of this command")


def _make_plan(words: tuple[str, ...], given: Mapping[str, Any]) -> Plan:
    """Return the plan of a sweep from its options. Raises ConfigError."""
    from joulelab.analysis.goals import Goal
    from joulelab.study.folder import Plan
    from joulelab.study.knobs import Knob, find_reference
    from joulelab.study.matrix import make_cells

    named = [(name, given[name], f"--{name.replace('_', '-')}") for name in ("cap", "gpus", "clock", "cpu_cap")]
    knobs = [Knob.parse(name, text, where) for name, text, where in named if text is not None]
    for name, text in given["knobs"]:
        option = next((where for own, _, where in named if own == name), None)
        if option is not None:
            raise ConfigError(
                f"{name} is not set by --set",
                where=f"--set {name}",
                next=f"type {option} {text}",
                code="config.own-option",
            )
        knobs.append(Knob.parse(name, text))
    return Plan(
        cells=make_cells(_make_workload(words, given["phase"]), knobs, given["repeat"]),
        repeats=given["repeat"],
        warmup=given["warmup"],
        settings=_make_settings(given),
        goals=tuple(Goal.parse(text).text for text in given["goals"] or ("energy", "edp")),
        reference=find_reference(dict(given["reference"]), knobs),
        work=tuple(_read_patterns(given)),
        scope=given["scope"],
        per=given["per"],
        **read_until(given["until"], given["repeat_max"]),
    )


def _make_workload(words: tuple[str, ...], phase: str | None = None) -> Workload:
    from joulelab.study.matrix import Workload

    phases = () if phase is None else (phase,)
    return Workload(words, phases=phases, kind="notebook" if words[0].endswith(".ipynb") else "")


def _read_patterns(given: Mapping[str, Any]) -> list[Any]:
    from joulelab.study.results import WorkPattern

    return [WorkPattern.parse(text, add=given["work_sum"]).to_json() for text in given["work"]]


def _make_settings(given: Mapping[str, Any]) -> Any:
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


def _write_study_file(plan: Plan, name: str, given: Mapping[str, Any]) -> int:
    """Write a sweep as a study file. Raises ConfigError if the file exists."""
    from joulelab.study.study_file import write_sweep

    file, text = given["written"], write_sweep(plan, name, given["seed"])
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        then = "choose another file, or remove it" if isinstance(error, FileExistsError) else None
        raise ConfigError(
            "cannot write the study file", where=str(file), why=error.strerror, next=then, code="config.write"
        ) from error
    print_notice(f"written: {file}; joulelab study plan {file}")
    return 0


def _run_sweep(plan: Plan, name: str, given: Mapping[str, Any]) -> int:
    from joulelab.cli.study_driver import FAILED_CODE, confirm_plan, report_failures, report_stop, run_slots
    from joulelab.report.study_summary import summarise_study
    from joulelab.study.folder import join_study
    from joulelab.study.plan_check import check_plan

    folder = given["studies"].absolute() / name
    for warning in check_plan(plan, os.environ):
        print_notice(warning)
    if given["dry_run"]:
        from joulelab.cli.study_overview import show_plan

        return show_plan(folder, name, plan, seed=given["seed"], as_json=given["as_json"], every=given["every"])
    if not confirm_plan(plan, yes=given["yes"]):
        return FAILED_CODE
    study = join_study(folder, name, plan, given["seed"])
    outcome = run_slots(study, plan, retry=given["retry"])
    code = report_stop(outcome)
    if code is not None:
        return code
    with show_progress(f"reading the runs of {study.name}"):
        results, summary = summarise_study(study, plan, load_current_site())
    show_study(study, results, summary, **{name: given[name] for name in ("as_json", "figures", "form", "every")})
    return report_failures(outcome)


def _report_sweep(words: tuple[str, ...], given: Mapping[str, Any]) -> int:
    """Print the results of a sweep so far, with the goals, scope, reference and work of this command."""
    from joulelab.analysis.cell_metrics import refuse_unreported_quality
    from joulelab.analysis.goals import Goal
    from joulelab.report.study_summary import summarise_study
    from joulelab.study.folder import check_name, make_default_name, open_study

    if not words and not given["name"]:
        raise UsageError("no-name", "--report needs the --name of the sweep, or its command")
    name = given["name"] or make_default_name(_make_workload(words, given["phase"]))
    check_name(name)
    study = open_study(given["studies"].absolute() / name)
    chosen = {
        "goals": [Goal.parse(text).text for text in given["goals"]],
        "scope": given["scope"],
        "reference": _read_reference(study, given["reference"]),
        "per": given["per"],
        "work": _read_patterns(given),
    }
    own = dict(study.data)
    study.data |= {key: value for key, value in chosen.items() if value}
    with show_progress(f"reading the runs of {study.name}"):
        results, summary = summarise_study(study, site=load_current_site())
    refuse_unreported_quality(summary)
    shown = {name: given[name] for name in ("as_json", "figures", "form", "every")}
    if study.data != own and given["figures"] is None and (study.folder / "figures").exists():
        print_notice("the figures stay as they are, with the goals of the sweep; --figures draws them with these")
        shown["figures"] = False
    show_study(study, results, summary, **shown)
    return 0


def _read_reference(study: Study, pairs: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """Return the values of the reference cell among those of the study. Raises ConfigError."""
    from joulelab.analysis.cell_lines import rank_value
    from joulelab.study.knobs import Knob, find_reference

    known: dict[str, dict[str, Value]] = {}
    for cell in study.read_cells().values():
        for name, value in cell.knobs.items():
            known.setdefault(name, {})[value.text] = value
    ordered = {
        name: sorted(values.values(), key=lambda v: (rank_value(v.value), v.text)) for name, values in known.items()
    }
    return find_reference(dict(pairs), [Knob(name, tuple(values)) for name, values in ordered.items()])
