"""Find the best cap for a command with few trials: `joulelab tune --goal edp -- CMD`."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.group import OWN_FAILURE, RUNS_WORKLOAD
from joulelab.cli.output import print_json, write_file
from joulelab.cli.parameters import Duration, UsageError, add_run_options
from joulelab.cli.run import execute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

    from joulelab.analysis.goals import Goal
    from joulelab.run.run_command import RunOutcome
    from joulelab.run.spawn import Spawned
    from joulelab.study.drive import Told
    from joulelab.study.executors import Executor
    from joulelab.study.tuning.grid import Grid
    from joulelab.study.tuning.online import Online
    from joulelab.study.tuning.runs import Tuning
    from joulelab.study.tuning.tuned import Tuned

FAILED_CODE = 1
# What belongs to one of the two ways only; each may be given with the other only by mistake.
RUNS_ONLY = ("repeat_max", "studies", "patterns", "retry", "apply", "timeout", "scope")
WINDOWS = ("window", "settle", "per")
ONLINE_ONLY = (*WINDOWS, "runs", "labels", "tail", "estimate", "rated_cpu", "capture")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Hold what is tuned: the command, the goal and the caps."""

    words: tuple[str, ...]
    goal: Goal
    grid: Grid
    trials: int | None

    @property
    def typed(self) -> str:
        """Return the command as it is typed, without secrets."""
        from joulelab.store.redact import redact

        return shlex.join(redact(self.words))


class OnlineUsageError(click.UsageError):
    """Say what was typed wrongly, with an exit code that is seldom a command's."""

    exit_code = OWN_FAILURE

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(error.format_message(), error.ctx)
        self.code = str(getattr(error, "code", "usage"))


class Tune(click.Command):
    """Leave with a code that is no command's where --online cannot begin: then the exit code is the command's."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        """Read the words."""
        before = args[: args.index("--")] if "--" in args else args
        with _own_code(online="--online" in before):
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Call the command."""
        with _own_code(online=ctx.params["online"]):
            return super().invoke(ctx)


@contextlib.contextmanager
def _own_code(*, online: bool) -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if online:
            raise OnlineUsageError(error) from error
        raise


@click.command("tune", cls=Tune, context_settings={"allow_interspersed_args": False})
@click.option(
    "--goal", "goal_text", required=True, metavar="GOAL", help="energy, edp, ed2p, eds:K, energy@slowdown=5%, ..."
)
@click.option("--cap", metavar="W|%", help="Caps to choose from: 100:260:10.  [default: the GPUs' whole range]")
@click.option(
    "--gpu", "which", metavar="0,1", help="Tune these GPUs: numbers, UUIDs or `all`.  [default: those visible]"
)
@click.option(
    "--trials", type=click.IntRange(min=1), help="Try so many times at most.  [default: by the number of caps]"
)
@click.option("--online", is_flag=True, help="Try caps inside one run, between its reports of work.")
@click.option("--window", type=Duration(0.1), default="5s", show_default=True, help="Length of a window at least.")
@click.option("--settle", type=Duration(), default="1s", show_default=True, help="Wait so long after each new cap.")
@click.option("--per", metavar="NAME", help="Count this kind of work in windows.  [default: the first reported]")
@click.option("--repeat-max", type=click.IntRange(min=1), default=5, show_default=True, help="Runs of one cap at most.")
@click.option("--work", "patterns", multiple=True, metavar="REGEX", help="Work done, in the output: 'tokens: (\\d+)'.")
@click.option("--scope", metavar="SCOPE", help="Whose energy counts: node.ac, gpu.  [default: everything measured]")
@click.option("--timeout", type=Duration(0.001), help="End a run that takes longer; its cap is left out.")
@click.option("--retry", is_flag=True, help="Run again what failed.")
@click.option("--apply", is_flag=True, help="In the end, run the command under the best cap.")
@click.option(
    "--studies", type=click.Path(path_type=Path), envvar="JOULELAB_STUDIES", default="joulelab-studies",
    show_default=True, metavar="DIR", help="Store of studies (JOULELAB_STUDIES).",
)  # fmt: skip
@add_run_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    goal_text: str,
    cap: str | None,
    which: str | None,
    trials: int | None,
    online: bool,
    **given: Any,
) -> None:
    """Find the best cap for a command with few trials, and say what it saves and what finding it cost.

    joulelab tune --goal edp -- python train.py

    joulelab tune --goal energy@slowdown=5% --online -- python train.py

    Each trial is a run of the command; what an earlier tune or sweep of the same command ran counts, and an interrupted
    tune goes on. With --online there is one run, which reports its work (joulelab.work): caps are tried while it runs,
    and the best stays for the rest of it. In the end all caps are what they were before.
    """
    if not words:
        raise UsageError("no-command", "there is no command to tune; type `joulelab tune --goal edp -- CMD`")
    _check_options(ctx, online=online)
    ctx.meta[RUNS_WORKLOAD] = online
    wanted = _wanted(words, goal_text, cap, which, trials)
    if online:
        _online(wanted, given, ctx.obj)
    code = _runs(wanted, which, given)
    ctx.exit(code)


def _check_options(ctx: click.Context, *, online: bool) -> None:
    """Refuse options of the other way: they would do nothing."""
    # What --apply runs in the end is recorded like any run.
    wrong = RUNS_ONLY if online else WINDOWS if ctx.params["apply"] else ONLINE_ONLY
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if source is None or source.name != "COMMANDLINE" or param.name not in wrong:
            continue
        raise UsageError(
            "other-mode", f"{param.opts[-1]} is for {'whole runs, not for' if online else 'tuning with'} --online"
        )


def _wanted(words: tuple[str, ...], goal_text: str, cap: str | None, which: str | None, trials: int | None) -> Wanted:
    """Return what is asked for. Raises JoulelabError."""
    from joulelab.analysis.goals import Goal
    from joulelab.control.client import Caps
    from joulelab.run.run_caps import choose_gpus
    from joulelab.study.tuning.grid import make_grid

    goal = Goal.parse(goal_text)
    with Caps(os.environ) as caps:
        status = caps.status()
    return Wanted(words, goal, make_grid(status, choose_gpus(status, os.environ, which), cap), trials)


def _runs(wanted: Wanted, which: str | None, given: Mapping[str, Any]) -> int:
    """Tune by whole runs; return the exit code. Raises JoulelabError."""
    from joulelab.control.leftovers import restore_at_start
    from joulelab.run.workload_process import strip_own_locale
    from joulelab.study.executors import open_executor
    from joulelab.study.stopping import Stop

    environ = _visible(wanted.grid) if which is not None else dict(os.environ)
    executor = open_executor("local", strip_own_locale(environ), {}, given["studies"])
    tuning = _tuning(wanted, which, given, executor)
    try:
        with Stop() as stop:
            tuning.run(stop)
    finally:
        executor.close()
        restore_at_start(os.environ, _say)
    tuned = tuning.tuned(wanted.typed)
    _show(tuned, as_json=given["as_json"], output=given["output"], quiet=given["quiet"])
    if tuning.stopped_by is not None:
        return 128 + tuning.stopped_by
    if tuned.choice is None:
        return FAILED_CODE
    if given["apply"]:
        options = {name: given[name] for name in given if name not in (*RUNS_ONLY, *WINDOWS)}
        execute(wanted.words, None, caps=wanted.grid.wishes(tuned.choice), **options)
    return 0


def _visible(grid: Grid) -> dict[str, str]:
    """Return an environment in which a command sees the GPUs that are tuned, and no other."""
    numbers = [scope.partition(":")[2] for scope in grid.scopes]
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(numbers)}


def _tuning(wanted: Wanted, which: str | None, given: Mapping[str, Any], executor: Executor) -> Tuning:
    from joulelab.study.folder import default_name
    from joulelab.study.matrix import Workload
    from joulelab.study.tuning.runs import Tuning, open_plan
    from joulelab.study.work import WorkPattern

    workload = Workload(wanted.words)
    # Runs on other GPUs are not trials of the same.
    on = "" if which is None else "-gpu" + "-".join(scope.partition(":")[2] for scope in wanted.grid.scopes)
    name = given["name"] or default_name(workload) + on
    folder = given["studies"].absolute() / name
    work = [WorkPattern.parse(text) for text in given["patterns"]]
    study, cells = open_plan(folder, name, workload, wanted.grid, _settings(given), wanted.goal, work)
    return Tuning(
        study, cells, wanted.grid, wanted.goal, executor=executor, tell=partial(_tell, given["scope"]),
        say=_say, trials=wanted.trials, repeat_max=given["repeat_max"], work=work, scope=given["scope"],
        retry=given["retry"],
    )  # fmt: skip


def _settings(given: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings that were asked for."""
    config = given["config"]
    asked = {
        "idle_s": given["idle"],
        "period_s": given["period"],
        "meters": given["meters"] or None,
        "without": given["without"] or None,
        "config": None if config is None else str(config.absolute()),
        "timeout_s": given.get("timeout"),
    }
    return {name: value for name, value in asked.items() if value is not None}


def _show(tuned: Tuned, *, as_json: bool, output: Path | None, quiet: bool) -> None:
    if output is not None:
        text = json.dumps(tuned.to_json(), indent=1, ensure_ascii=False, default=str) + "\n"
        write_file(output, text.encode(errors="backslashreplace"), what="JSON")
    if as_json:
        print_json(tuned.to_json())
    elif not quiet:
        _print(tuned, sys.stdout)


def _print(tuned: Tuned, file: Any) -> None:
    from joulelab.report.console import make_console
    from joulelab.report.tuning_tables import print_tuned

    print_tuned(make_console(file), tuned)
    file.flush()


class Conclusion:
    """Tell what tuning found inside a run, below what the run used."""

    needs: Sequence[str] = ("joulelab.report.tuning_tables", "joulelab.study.tuning.account")

    def __init__(self, online: Online, typed: str) -> None:
        self._online, self._typed = online, typed

    def to_json(self, outcome: RunOutcome) -> dict[str, Any]:
        """Return what was found as plain data."""
        return {"tune": self._tuned(outcome).to_json()}

    def print(self, outcome: RunOutcome) -> None:
        """Print what was found."""
        _print(self._tuned(outcome), sys.stderr)

    def _tuned(self, outcome: RunOutcome) -> Tuned:
        from joulelab.study.tuning.account import account

        return account(self._online, outcome.run, self._typed)


def _online(wanted: Wanted, given: Mapping[str, Any], early: list[Spawned] | None) -> NoReturn:
    """Tune inside one run, and leave as the command did. Raises JoulelabError before it is started."""
    from joulelab.study.tuning.online import Online

    times = {"window_s": given["window"], "settle_s": given["settle"]}
    online = Online(wanted.grid, wanted.goal, trials=wanted.trials, kind=given["per"], **times)
    options = {name: given[name] for name in given if name not in (*RUNS_ONLY, *WINDOWS)}
    execute(wanted.words, early, companion=online, after=Conclusion(online, wanted.typed), **options)


def _tell(scope: str | None, told: Told) -> None:
    """Tell what became of a trial, by the energy of the scope that counts."""
    from joulelab.cli.study_driver import describe_event
    from joulelab.report import format as fmt

    energy = None if told.trial is None else told.trial.energy(scope)
    if told.trial is None or energy is None:
        _say(f"  {describe_event(told, scope)}")
    else:
        used = fmt.format_quantity(energy.value, energy.expanded, "J")
        _say(f"  {fmt.format_duration(told.trial.time_s)}, {used}{'' if scope is None else ' by ' + scope}")


def _say(text: str) -> None:
    click.echo(f"joulelab: {text}", err=True)
