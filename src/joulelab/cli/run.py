"""Measure a command or a notebook: `joulelab run -- CMD`, `joulelab run train.ipynb`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from joulelab.cli.output import describe_error, measure_terminal, print_blocks, shorten_path, write_file
from joulelab.cli.parameters import UsageError, add_run_options, format_examples, name_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from joulelab.control.client import CapRequest
    from joulelab.run.child_process import ChildProcess
    from joulelab.run.config.meter_choice import MeterChoice
    from joulelab.run.run_caps import Companion
    from joulelab.run.run_command import RunOutcome
    from joulelab.run.run_options import RunOptions

EXAMPLES = format_examples(
    "joulelab run -- python train.py",
    "joulelab run --idle 10s --name baseline -- python train.py --epochs 3",
    "joulelab run train.ipynb epochs=3 --pause 10s",
)
# What prints the table; loaded while the command runs.
NEEDED = ("joulelab.analysis.results_file", "joulelab.report.run_tables")


class After(Protocol):
    """Add to what is told of a run: to its JSON, and below its table; `needs` are modules for that."""

    needs: Sequence[str]

    def to_json(self, outcome: RunOutcome) -> Mapping[str, Any]:
        """Return what is added to the JSON."""

    def print(self, outcome: RunOutcome) -> None:
        """Print what comes below the table, to standard error."""


@click.command("run", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@add_run_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] CMD...")
@click.pass_obj
def command(early: list[ChildProcess] | None, /, words: tuple[str, ...], **given: Any) -> None:
    """Measure the energy of a command or a notebook.

    The command's input, output, signals and exit code stay the same. The result is printed on standard error.
    """
    if not words:
        raise UsageError("no-command", "there is no command to measure; type `joulelab run -- CMD`")
    execute(words, early, **given)


def execute(
    words: tuple[str, ...],
    early: list[ChildProcess] | None,
    *,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    caps: Sequence[CapRequest] = (),
    companion: Companion | None = None,
    after: After | None = None,
    **given: Any,
) -> NoReturn:
    """Run a command by the options of `add_run_options`, print what it used, and leave as it did."""
    if given["rated_cpu"] is not None and not given["estimate"]:
        raise UsageError("needs-estimate", "--rated-cpu is for an estimate; add --estimate")
    from joulelab.core.marks import read_local_rank
    from joulelab.run.run_command import run_command
    from joulelab.run.signal_forwarding import SignalBox
    from joulelab.run.workload_process import exit_like_workload, strip_own_locale

    words, labels = _of_notebook(words)
    if read_local_rank(os.environ):
        _become(words, early)
    options = _options(**given)
    needs = NEEDED if after is None else (*NEEDED, *after.needs)
    options = replace(options, caps=tuple(caps), labels={**labels, **options.labels}, preload=needs)
    with SignalBox() as signals:  # left only where the command could not even be tried; else leave() ends us inside
        spawned = early.pop() if early else None
        outcome = run_command(
            words,
            options,
            strip_own_locale(os.environ),
            say=_say,
            signals=signals,
            spawned=spawned,
            companion=companion,
        )
        try:
            with signals.interruptible():
                _show(outcome, as_json=as_json, output=output, quiet=quiet, after=after)
        except BaseException as error:  # noqa: BLE001 the command's outcome is returned, whatever becomes of the table
            _say(f"the result cannot be shown ({type(error).__name__}: {error}); joulelab show {outcome.run or ''}")
        finally:
            exit_like_workload(outcome.exit_code, outcome.signal)


def _become(words: Sequence[str], early: Sequence[ChildProcess] | None) -> NoReturn:
    """Run the command without recording: the first rank of a node records for all of them."""
    from joulelab.core.errors import WorkloadError
    from joulelab.run.workload_process import become_workload, exit_like_workload, strip_own_locale

    for spawned in early or ():  # reaped, so that the command does not meet a child that it never had
        with contextlib.suppress(OSError):
            os.kill(spawned.pid, signal.SIGKILL)
            os.waitpid(spawned.pid, 0)
    try:
        become_workload(words, strip_own_locale(os.environ))
    except WorkloadError as error:
        _say(str(error))
        exit_like_workload(error.exit_code)


def _of_notebook(words: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command that runs a notebook where one is named, with a label that tells; all else as it is."""
    if not words[0].endswith(".ipynb"):
        return words, {}
    from joulelab.run import notebook

    if notebook.is_program(Path(words[0])):
        return words, {}
    asked = notebook.read_notebook_words(words)
    argv = notebook.make_notebook_command(
        asked.file, asked.parameters, out=asked.out, pause_s=asked.pause_s, kernel=asked.kernel
    )
    return tuple(argv), {"notebook": words[0]}


def _show(outcome: RunOutcome, *, as_json: bool, output: Path | None, quiet: bool, after: After | None) -> None:
    if as_json or output is not None:
        _write_json(outcome, output, {} if after is None else after.to_json(outcome))
    if not quiet and (output is not None or not as_json):
        _print(outcome)
        if after is not None and outcome.error is None:
            after.print(outcome)
    elif outcome.error is not None:
        _say(str(outcome.error))
    elif not as_json or output is not None:
        _print_problems(outcome)
    _keep(outcome)


def _say(text: str) -> None:
    # Nothing that cannot be printed may stop or replace the command.
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"joulelab: {text}", err=True)


def _print_problems(outcome: RunOutcome) -> None:
    # What kept the run from being recorded has been said when the command started.
    for problem in outcome.problems if outcome.run is not None else outcome.problems[1:]:
        _say(problem)


def _options(
    runs: Path,
    name: str | None,
    labels: tuple[tuple[str, str], ...],
    period: float | None,
    idle: float | None,
    tail: float | None,
    meters: tuple[str, ...],
    without: tuple[str, ...],
    estimate: bool,
    rated_cpu: float | None,
    capture: Path | None,
    config: Path | None = None,
) -> RunOptions:
    """Return what is asked for, and warn of a wrong configuration. Raises ConfigError for a name that no meter has."""
    from joulelab.run.run_options import RunOptions

    if period is not None and period < 0.001:
        raise UsageError("period", "--period is shorter than 1 ms; no meter here is read that fast")
    chosen, defaults = _configured(config, meters, without)
    rated = {} if rated_cpu is None else {"cpu_w": rated_cpu}
    period_s = period if period is not None else defaults.get("period_s", 0.1)
    options = RunOptions(
        runs=runs,
        name=name,
        labels=dict(labels),
        also=[{"meter": "estimate", "config": rated}] if estimate else [],
        period_s=period_s,
        slow_period_s=max(1.0, period_s),
        idle_s=idle if idle is not None else defaults.get("idle_s", 0.0),
        tail_s=tail if tail is not None else defaults.get("tail_s", 0.3),
        capture=capture,
        preload=NEEDED,
    )
    return options if chosen is None else options.reading(chosen, file=config, wanted=meters, without=without)


def _configured(
    file: Path | None, wanted: tuple[str, ...], without: tuple[str, ...]
) -> tuple[MeterChoice | None, dict[str, float]]:
    """Return the meters to read (None: the usual ones) and the configured times; most runs have nothing to load."""
    from joulelab.run.config.config_files import list_config_files

    files, warnings = list_config_files(os.environ, named=file)
    for warning in warnings:
        _say(warning)
    if not files and not wanted and not without:
        return None, {}
    from joulelab.run.config.configuration import load_config
    from joulelab.run.config.meter_choice import choose_meters
    from joulelab.run.run_options import get_host_name

    config = load_config(os.environ, get_host_name(), named=file)
    chosen = choose_meters(config, os.environ, wanted, without)
    for warning in (*map(str, chosen.lost), *config.warnings, *chosen.warnings):
        if warning not in warnings:
            _say(warning)
    return chosen, config.run


def _write_json(outcome: RunOutcome, output: Path | None, more: Mapping[str, Any]) -> None:
    from joulelab.report.result_json import describe_result

    data: dict[str, Any] = {} if outcome.result is None else describe_result(outcome.result)
    data |= more
    data |= {"folder": None if outcome.run is None else str(outcome.run), "problems": outcome.problems}
    if outcome.result is None:
        data |= {"outcome": outcome.kind, "exit_code": outcome.exit_code, "signal": outcome.signal}
    if outcome.error is not None:
        data["error"] = describe_error(outcome.error)
    text = json.dumps(data, indent=1, ensure_ascii=False, default=str) + "\n"
    if output is None or str(output) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_file(output, text.encode(errors="backslashreplace"), what="JSON")


def _print(outcome: RunOutcome) -> None:
    if outcome.error is not None:
        _say(str(outcome.error))
        return
    if outcome.result is None or outcome.run is None:
        _print_problems(outcome)
        if outcome.run is not None:
            folder = shorten_path(outcome.run)
            _say(f"the run is recorded in {folder}; joulelab show {name_run(folder)}")
        return
    from joulelab.report.run_tables import lay_out_run

    folder = shorten_path(outcome.run)
    width, named = measure_terminal(), name_run(folder)
    blocks = lay_out_run(outcome.result, folder, width=width, problems=outcome.problems, handle=named)
    print_blocks(blocks, file=sys.stderr)


def _keep(outcome: RunOutcome) -> None:
    """Keep the result beside the run, so that `ls` and `query` need not work it out again."""
    from joulelab.analysis.results_file import write_result

    if outcome.result is not None and outcome.run is not None:
        write_result(outcome.run, outcome.result)
