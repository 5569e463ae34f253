"""Measure a command or a notebook: `joulelab run -- CMD`, `joulelab run train.ipynb`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from joulelab.cli.output import describe_error, measure_terminal, print_blocks, shorten_path, write_file
from joulelab.cli.parameters import Duration, UsageError, add_run_options, format_examples, name_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from joulelab.cli.live_line import LiveLine
    from joulelab.control.client import CapRequest
    from joulelab.integrations.opentelemetry_export import RunExport
    from joulelab.run.child_process import ChildProcess
    from joulelab.run.energy_limit import LimitGuard, LimitNews
    from joulelab.run.run_caps import Companion
    from joulelab.run.run_command import RunOutcome
    from joulelab.run.run_options import RunOptions

EXAMPLES = format_examples(
    "joulelab run -- python train.py",
    "joulelab run --idle 10s --name baseline -- python train.py --epochs 3",
    "joulelab run --stop-at 2kWh -- python train.py",
    "joulelab run train.ipynb epochs=3 --pause 10s",
)
# Modules that print the result; loaded while the command runs.
PRINTING_MODULES = ("joulelab.analysis.results_file", "joulelab.report.run_summary")


class LiveInterval(Duration):
    """Take a time between lines of figures, or `off`, whose value is 0."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a text such as `30s` to seconds."""
        return 0.0 if value == "off" else super().convert(value, param, ctx)


class ResultExtra(Protocol):
    """Add to the printed result of a run; `needs` are modules that this takes."""

    needs: Sequence[str]

    def to_json(self, outcome: RunOutcome) -> Mapping[str, Any]:
        """Return keys to add to the JSON."""

    def print(self, outcome: RunOutcome) -> None:
        """Print lines below the table, to standard error."""


@click.command("run", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@add_run_options
@click.option(
    "--live",
    type=LiveInterval(1.0),
    metavar="TIME|off",
    help="Print power and energy so far this often, on standard error; off: never.  [default: 1m on a terminal]",
)
@click.option(
    "--stop-at",
    multiple=True,
    metavar="LIMIT",
    help="Stop the command at 2kWh, 5EUR or 300g CO2e; train=1kWh: in this phase; repeatable.",
)
@click.option(
    "--then",
    metavar="SIGNAL|CMD",
    help="Send this signal at the limit, or run this shell command instead.  [default: SIGTERM]",
)
@click.option("--grace", type=Duration(), help="Send SIGKILL this long after the limit; without it, never.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] CMD...")
def command(words: tuple[str, ...], **given: Any) -> None:
    """Measure the energy of a command or a notebook.

    The command's input, output, signals and exit code stay the same. While it runs, the title of the terminal shows
    power and energy so far, and so does a line after 10 s and then every minute (not with -q). The result is printed
    on standard error.

    Options of a notebook follow its name: NAME=VALUE sets a parameter, --pause TIME waits between cells, --out FILE
    writes a copy with outputs, --kernel NAME chooses the kernel.
    """
    if not words:
        raise UsageError("no-command", "no command to measure; type `joulelab run -- CMD`")
    run_and_exit(words, **given)


def run_and_exit(
    words: tuple[str, ...],
    *,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    live: float | None = 0.0,
    stop_at: Sequence[str] = (),
    then: str | None = None,
    grace: float | None = None,
    caps: Sequence[CapRequest] = (),
    companion: Companion | None = None,
    extra: ResultExtra | None = None,
    **given: Any,
) -> NoReturn:
    """Run a command by the options of `add_run_options`, print its result, and exit as it did.

    `live` is the time between lines of figures in s, 0 for none, None for the default of a terminal.
    """
    from joulelab.core.marks import read_local_rank

    if given["rated_cpu"] is not None and not given["estimate"]:
        raise UsageError("needs-estimate", "--rated-cpu is only for --estimate; add --estimate")
    if given["period"] is not None and given["period"] < 0.001:
        raise UsageError("period", "--period is shorter than 1 ms; no meter can be read that fast")
    if (then is not None or grace is not None) and not stop_at:
        raise UsageError("needs-stop-at", "--then and --grace are only for --stop-at; add --stop-at 2kWh")
    words, labels = _read_notebook(words)
    if read_local_rank(os.environ):
        _become_command(words)
    recorder = _start_recorder()
    try:
        from joulelab.cli.live_line import MODULES, LiveLine, can_show_title, choose_line_times
        from joulelab.run.run_command import run_command
        from joulelab.run.signal_forwarding import SignalBox
        from joulelab.run.workload_process import exit_like_workload, strip_own_locale

        options = _make_options(**given)
        limit = _make_guard(stop_at, then, grace, options, quiet=quiet) if stop_at else None
        needs = PRINTING_MODULES if extra is None else (*PRINTING_MODULES, *extra.needs)
        first_s, every_s = choose_line_times(live, 2, os.environ, is_quiet=quiet)
        has_title = not quiet and can_show_title(2, os.environ)
        display = LiveLine(has_title=has_title, every_s=every_s, first_s=first_s)
        needs = (*needs, *MODULES) if display.is_shown or limit is not None else needs
        export = _make_export(display) if any(n.startswith("OTEL_EXPORTER_OTLP_") for n in os.environ) else None
        needs = needs if export is None else (*needs, *export.needs)
        options = replace(options, caps=tuple(caps), labels={**labels, **options.labels}, preload=needs)
        environ = strip_own_locale(os.environ)
        with SignalBox() as signals:
            outcome = run_command(
                words,
                options,
                environ,
                warn=_warn,
                signals=signals,
                recorder=recorder,
                companion=companion,
                display=export or display,
                limit=limit,
            )
            try:
                with (
                    signals.interruptible(),
                    contextlib.nullcontext() if export is None else export.send_result(outcome),
                ):
                    if display.problem:
                        _warn(f"power and energy were not shown while it ran ({display.problem})")
                    _print_outcome(outcome, as_json=as_json, output=output, quiet=quiet, extra=extra)
            except KeyboardInterrupt:
                _warn(f"interrupted; the record is complete: joulelab show {outcome.run or ''}")
            except BaseException as error:  # noqa: BLE001 the outcome is returned, whatever happens to the table
                reason = f"{type(error).__name__}: {error}"
                _warn(f"the result cannot be shown ({reason}); joulelab show {outcome.run or ''}")
            finally:
                display.end()  # once more: a terminal that was stopped by Ctrl-S takes its title now
                exit_like_workload(outcome.exit_code, outcome.signal)
    finally:  # reached only if the command could not be tried
        if recorder is not None:
            recorder.kill()
            recorder.close()


def _start_recorder() -> ChildProcess | None:
    """Start the recorder before the rest is loaded, so that both load at the same time."""
    from joulelab.run.child_process import start_recorder

    try:
        return start_recorder(os.environ, warm=True)
    except OSError:
        return None  # the recording tries it again, and reports the reason


def _become_command(words: Sequence[str]) -> NoReturn:
    """Run the command without recording: the first rank of a node records for all of them."""
    from joulelab.core.errors import WorkloadError
    from joulelab.run.workload_process import become_workload, exit_like_workload, strip_own_locale

    try:
        become_workload(words, strip_own_locale(os.environ))
    except WorkloadError as error:
        _warn(str(error))
        exit_like_workload(error.exit_code)


def _read_notebook(words: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command that runs a notebook and a label with its name; other commands as they are."""
    if not words[0].endswith(".ipynb"):
        return words, {}
    from joulelab.run.notebook import is_program, make_notebook_command, read_notebook_words

    if is_program(Path(words[0])):
        return words, {}
    return tuple(make_notebook_command(read_notebook_words(words))), {"notebook": words[0]}


def _make_options(
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
    """Return the options of the run, and warn of a wrong configuration. Raises ConfigError for an unknown meter."""
    from joulelab.run.run_command import prepare_run
    from joulelab.run.run_options import RunOptions

    rated = {} if rated_cpu is None else {"cpu_w": rated_cpu}
    also = [{"meter": "estimate", "config": rated}] if estimate else []
    options = RunOptions(runs=runs, name=name, labels=dict(labels), also=also, capture=capture)
    times = {"period_s": period, "idle_s": idle, "tail_s": tail}
    return prepare_run(options, os.environ, times=times, file=config, wanted=meters, without=without, warn=_warn)


def _make_export(display: LiveLine) -> RunExport | None:
    """Return the export by OTLP that the standard variables ask for, None if they do not."""
    from joulelab.integrations.opentelemetry_export import RunExport, read_export_settings

    settings = read_export_settings(os.environ)
    return None if settings is None else RunExport(settings, display, os.environ, _warn)


def _make_guard(
    stop_at: Sequence[str], then: str | None, grace: float | None, options: RunOptions, *, quiet: bool
) -> LimitGuard:
    """Return the guard of the limits. Raises ConfigError: nothing is started with a limit that cannot be watched."""
    from joulelab.cli.live_line import write_own_line
    from joulelab.run.energy_limit import EnergySource, LimitGuard, parse_limit, read_action
    from joulelab.site.footprint import restore_site

    site, action = restore_site(options.site), read_action(then, grace)
    limits = [parse_limit(text, site) for text in stop_at]

    def follow(run: Path, folder: Path, start_ns: int, phases: Sequence[str]) -> EnergySource:
        from joulelab.report.watch.watched_energy import WatchedEnergy

        return WatchedEnergy(run, folder, start_ns, phases)

    def report(news: LimitNews) -> None:
        from joulelab.report.limit_text import word_limit_news

        if not (quiet and news.code == "watching"):
            write_own_line(2, f"joulelab: {word_limit_news(news, action)}".encode(errors="replace"))

    return LimitGuard(limits, action, follow=follow, report=report)


def _print_outcome(
    outcome: RunOutcome, *, as_json: bool, output: Path | None, quiet: bool, extra: ResultExtra | None
) -> None:
    if as_json or output is not None:
        _write_json(outcome, output, {} if extra is None else extra.to_json(outcome))
    if not quiet and (output is not None or not as_json):
        _print_tables(outcome)
        if extra is not None and outcome.error is None:
            extra.print(outcome)
    elif outcome.error is not None:
        _warn(str(outcome.error))
    elif not as_json or output is not None:
        _print_problems(outcome)
    if outcome.result is not None and outcome.run is not None:
        from joulelab.analysis.results_file import write_result

        write_result(outcome.run, outcome.result)  # `ls` and `query` need not compute it again


def _warn(text: str) -> None:
    # A message that cannot be printed must not stop or replace the command.
    with contextlib.suppress(OSError, ValueError):
        click.echo(f"joulelab: {text}", err=True)


def _print_problems(outcome: RunOutcome) -> None:
    # The problem that prevented the recording was printed when the command started.
    for problem in outcome.problems if outcome.run is not None else outcome.problems[1:]:
        _warn(problem)


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


def _print_tables(outcome: RunOutcome) -> None:
    if outcome.error is not None:
        _warn(str(outcome.error))
        return
    if outcome.result is None or outcome.run is None:
        _print_problems(outcome)
        if outcome.run is not None:
            folder = shorten_path(outcome.run)
            _warn(f"the run is recorded in {folder}; joulelab show {name_run(folder)}")
        return
    from joulelab.report.run_summary import lay_out_summary

    folder = shorten_path(outcome.run)
    width, named = measure_terminal(), name_run(folder)
    blocks = lay_out_summary(outcome.result, folder, width=width, problems=outcome.problems, handle=named)
    print_blocks(blocks, file=sys.stderr)
