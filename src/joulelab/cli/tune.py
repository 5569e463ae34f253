"""Find the best cap and clock for a command with few trials: `joulelab tune --goal edp -- CMD`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.group import RUNS_WORKLOAD
from joulelab.cli.output import measure_terminal, print_blocks, print_json, print_notice, write_file
from joulelab.cli.parameters import (
    Duration,
    GroupedCommand,
    UsageError,
    add_run_options,
    format_examples,
    studies_option,
)
from joulelab.cli.run import run_and_exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import NoReturn

    from joulelab.analysis.goals import Goal
    from joulelab.run.run_command import RunOutcome
    from joulelab.study.drive import SlotEvent
    from joulelab.study.executors import Executor
    from joulelab.study.tuning.grid import Grid
    from joulelab.study.tuning.online import OnlineTuning
    from joulelab.study.tuning.tuning_result import TuningResult
    from joulelab.study.tuning.whole_runs import RunTuning

FAILED_CODE = 1
EXAMPLES = format_examples(
    "joulelab tune --goal edp -- python train.py",
    "joulelab tune --goal edp --cap 200:700:50 --clock 900:1980:120 -- ./train",
    "joulelab tune --goal energy@slowdown=5% --online -- python train.py",
)
# Options of one of the two modes; with the other they would have no effect.
RUNS_ONLY = ("repeat_max", "studies", "patterns", "retry", "apply", "timeout", "scope")
WINDOWS = ("window", "settle", "per")
ONLINE_ONLY = (*WINDOWS, "runs", "labels", "tail", "estimate", "rated_cpu", "capture")
GROUPS = {
    "What to find": ("goal_text", "cap", "clock", "which", "trials"),
    "By whole runs": ("repeat_max", "patterns", "scope", "timeout", "retry", "apply", "studies"),
    "Inside one run": ("online", "window", "settle", "per", "labels", "tail", "capture", "runs"),
    "Measuring": ("period", "idle", "meters", "without", "config", "estimate", "rated_cpu"),
    "Output": ("name", "output", "quiet", "as_json"),
}


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """Hold the command to tune, the goal and the caps to choose from."""

    words: tuple[str, ...]
    goal: Goal
    grid: Grid
    trials: int | None

    @property
    def typed(self) -> str:
        """Return the command as typed, without secrets."""
        from joulelab.store.redact import redact_command

        return shlex.join(redact_command(self.words))


@click.command(
    "tune",
    cls=GroupedCommand,
    groups=GROUPS,
    epilog=EXAMPLES,
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--goal",
    "goal_text",
    required=True,
    metavar="GOAL",
    help="Goal of the search: energy, edp, ed2p, eds:K, energy@slowdown=5%, energy@accuracy>=0.98, ...",
)
@click.option("--cap", metavar="W|%", help="Caps to choose from: 100:260:10.  [default: the whole range of the GPUs]")
@click.option("--clock", metavar="MHZ", help="Clocks to lock, instead of caps or with --cap: 900:1980:120.")
@click.option("--gpu", "which", metavar="0,1", help="GPUs to tune: numbers, UUIDs or `all`.  [default: visible GPUs]")
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Highest number of trials.  [default: below half of the caps, a quarter of the pairs; with --online 10]",
)
@click.option("--online", is_flag=True, help="Try settings within one run, while it reports its work.")
@click.option("--window", type=Duration(0.1), default="5s", show_default=True, help="Shortest trial with --online.")
@click.option(
    "--settle", type=Duration(), default="1s", show_default=True, help="Wait this long after each new setting."
)
@click.option("--per", metavar="NAME", help="Kind of work that counts, with --online.  [default: the first reported]")
@click.option(
    "--repeat-max",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="Most runs of one setting.",
)
@click.option(
    "--work",
    "patterns",
    multiple=True,
    metavar="REGEX",
    help=r"Read the work done from the output: 'tokens: (\d+)'; the group is the number, the last match counts.",
)
@click.option("--scope", metavar="SCOPE", help="Compare the energy of node.ac, gpu, ...  [default: all measured]")
@click.option("--timeout", type=Duration(0.001), help="Stop a run after this time; its setting is left out.")
@click.option("--retry", is_flag=True, help="Repeat runs that failed.")
@click.option("--apply", is_flag=True, help="Then run the command with the best setting.")
@studies_option
@partial(add_run_options, name_help="Name the study, or with --online the run.  [default: from the command]")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    goal_text: str,
    cap: str | None,
    clock: str | None,
    which: str | None,
    trials: int | None,
    online: bool,
    **given: Any,
) -> None:
    """Find the best power cap for a command with few trials.

    With --clock it finds the best locked clock, with both the best pair. Prints the saving and the cost of the search.
    Each trial is a run of the command; runs of an earlier tune or sweep count, and an interrupted tune continues with
    the same command. With --online there is one run, which reports its work (joulelab.work): settings are tried while
    it runs, and the best one stays to its end. In the end the original caps are restored.
    """
    if not words:
        raise UsageError("no-command", "no command to tune; type `joulelab tune --goal edp -- CMD`")
    _check_options(ctx, online=online)
    ctx.meta[RUNS_WORKLOAD] = online
    request = _read_request(words, goal_text, (cap, clock), which, trials, online=online)
    if online:
        _tune_online(request, given)
    code = _tune_by_runs(request, which, given)
    ctx.exit(code)


def _check_options(ctx: click.Context, *, online: bool) -> None:
    """Refuse options of the other mode: they would have no effect."""
    # With --apply, the last run takes all options of a run.
    wrong = RUNS_ONLY if online else WINDOWS if ctx.params["apply"] else ONLINE_ONLY
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if source is None or source.name != "COMMANDLINE" or param.name not in wrong:
            continue
        text = "cannot be used with --online" if online else "needs --online"
        raise UsageError("other-mode", f"{param.opts[-1]} {text}")


def _read_request(
    words: tuple[str, ...],
    goal_text: str,
    knobs: tuple[str | None, str | None],
    which: str | None,
    trials: int | None,
    *,
    online: bool,
) -> TuneRequest:
    """Return the request from its options. Raises JoulelabError."""
    from joulelab.analysis.goals import Goal, refuse_work_goal
    from joulelab.control.client import Caps
    from joulelab.run.run_caps import choose_gpus
    from joulelab.run.signal_forwarding import hold_signals

    with hold_signals():  # it imports numpy, and a run may follow in this process
        from joulelab.study.tuning.grid import make_grid

    goal = Goal.parse(goal_text)
    refuse_work_goal(goal)
    if goal.quality and online:
        raise UsageError(
            "no-quality", f"no {goal.quality[0].name} is known while a run lasts; use whole runs, without --online"
        )
    with Caps(os.environ) as caps:
        status = caps.status()
    return TuneRequest(words, goal, make_grid(status, choose_gpus(status, os.environ, which), *knobs), trials)


def _tune_by_runs(request: TuneRequest, which: str | None, given: Mapping[str, Any]) -> int:
    """Tune with one run per trial; return the exit code. Raises JoulelabError."""
    from joulelab.control.leftovers import restore_at_start
    from joulelab.instruments.visible import read_node_gpus
    from joulelab.run.workload_process import strip_own_locale
    from joulelab.study.drive import StopRequest
    from joulelab.study.executors import open_executor

    environ = dict(os.environ)
    if which is not None:
        environ = read_node_gpus().show_only(request.grid.scopes, environ)
    executor = open_executor("local", strip_own_locale(environ), {}, given["studies"])
    tuning = _open_tuning(request, which, given, executor)
    try:
        with StopRequest() as stop:
            tuning.run(stop)
    finally:
        executor.close()
        restore_at_start(os.environ, print_notice)
    result = tuning.make_result(request.typed)
    _print_result(result, as_json=given["as_json"], output=given["output"], quiet=given["quiet"])
    if tuning.stopped_by is not None:
        return 128 + tuning.stopped_by
    if result.to_apply is None:
        return FAILED_CODE
    if given["apply"]:
        options = {name: given[name] for name in given if name not in (*RUNS_ONLY, *WINDOWS)}
        run_and_exit(request.words, caps=request.grid.make_requests(result.to_apply), **options)
    return 0


def _open_tuning(request: TuneRequest, which: str | None, given: Mapping[str, Any], executor: Executor) -> RunTuning:
    from joulelab.study.folder import make_default_name
    from joulelab.study.matrix import Workload
    from joulelab.study.results import WorkPattern
    from joulelab.study.tuning.whole_runs import RunTuning, open_tuning_study

    workload = Workload(request.words)
    # Runs on other GPUs belong to another study.
    on = "" if which is None else "-gpu" + "-".join(scope.partition(":")[2] for scope in request.grid.scopes)
    name = given["name"] or make_default_name(workload) + on
    folder = given["studies"].absolute() / name
    work = [WorkPattern.parse(text) for text in given["patterns"]]
    settings = _make_settings(given)
    study, cells, plan = open_tuning_study(folder, name, workload, request.grid, settings, request.goal, work)
    return RunTuning(
        study, cells, plan, request.grid, request.goal, executor=executor, notify=print_notice,
        on_event=partial(_print_trial, given["scope"]), trials=request.trials, repeat_max=given["repeat_max"],
        work=work, scope=given["scope"], retry=given["retry"],
    )  # fmt: skip


def _make_settings(given: Mapping[str, Any]) -> dict[str, object]:
    config = given["config"]
    settings = {
        "idle_s": given["idle"],
        "period_s": given["period"],
        "meters": given["meters"] or None,
        "without": given["without"] or None,
        "config": None if config is None else str(config.absolute()),
        "timeout_s": given.get("timeout"),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _print_result(result: TuningResult, *, as_json: bool, output: Path | None, quiet: bool) -> None:
    from joulelab.report.result_json import describe_tuning

    if output is not None:
        text = json.dumps(describe_tuning(result), indent=1, ensure_ascii=False, default=str) + "\n"
        write_file(output, text.encode(errors="backslashreplace"), what="JSON")
    if as_json:
        print_json(describe_tuning(result))
    elif not quiet:
        _print_tables(result, sys.stdout)


def _print_tables(result: TuningResult, file: Any) -> None:
    from joulelab.report.tuning_tables import lay_out_tuning

    print_blocks(lay_out_tuning(result, width=measure_terminal()), file=file)


class TuningReport:
    """Add the result of tuning to the result of a run."""

    needs: Sequence[str] = ("joulelab.report.tuning_tables", "joulelab.study.tuning.online")

    def __init__(self, online: OnlineTuning, typed: str) -> None:
        self._online, self._typed = online, typed

    def to_json(self, outcome: RunOutcome) -> dict[str, Any]:
        """Return the result of tuning as plain data."""
        from joulelab.report.result_json import describe_tuning

        return {"tune": describe_tuning(self._summarise(outcome))}

    def print(self, outcome: RunOutcome) -> None:
        """Print the result of tuning."""
        _print_tables(self._summarise(outcome), sys.stderr)

    def _summarise(self, outcome: RunOutcome) -> TuningResult:
        from joulelab.study.tuning.online import summarise_online

        return summarise_online(self._online, outcome.run, self._typed)


def _tune_online(request: TuneRequest, given: Mapping[str, Any]) -> NoReturn:
    """Tune within one run and exit with its code. Raises JoulelabError before the run starts."""
    from joulelab.study.tuning.online import OnlineTuning

    times = {"window_s": given["window"], "settle_s": given["settle"]}
    online = OnlineTuning(request.grid, request.goal, trials=request.trials, kind=given["per"], **times)
    options = {name: given[name] for name in given if name not in (*RUNS_ONLY, *WINDOWS)}
    run_and_exit(request.words, companion=online, extra=TuningReport(online, request.typed), **options)


def _print_trial(scope: str | None, event: SlotEvent) -> None:
    """Print the time and energy of a trial."""
    from joulelab.cli.study_driver import describe_event
    from joulelab.report import format as fmt

    energy = None if event.trial is None else event.trial.get_energy(scope)
    if event.trial is None or energy is None:
        print_notice(f"  {describe_event(event, scope)}")
    else:
        used = fmt.format_quantity(energy, "J")
        print_notice(f"  {fmt.format_duration(event.trial.time_s)}, {used}{'' if scope is None else ' by ' + scope}")
