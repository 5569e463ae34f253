"""Run the slots of a study from the command line: ask first, show progress, report the end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Self, TextIO

import click

from joulelab.cli.output import NO_TERMINAL_WIDTH, print_notice, shorten_path
from joulelab.cli.study_overview import describe_cell
from joulelab.report import format as fmt
from joulelab.study.slots import ERR, read_last_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.progress import Progress

    from joulelab.study.drive import Outcome, SlotEvent
    from joulelab.study.executors import Executor
    from joulelab.study.folder import Plan, Study

ASK_FROM_SLOTS = 20
FAILED_CODE = 1
POWER_EVERY_S, LINE_EVERY_S = 1.0, 60.0  # power in the bar; a line where there is no bar
MAX_RUNS_READ = 8


def confirm_plan(plan: Plan, *, yes: bool) -> bool:
    """Ask before a study of many slots, on a terminal only."""
    slots = len(plan.cells) * plan.repeats
    if yes or slots < ASK_FROM_SLOTS or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    return click.confirm(f"{describe_size(plan)}; continue?", default=True, err=True)


def describe_size(plan: Plan) -> str:
    """Return the number of cells and slots in words."""
    cells, slots = len(plan.cells), len(plan.cells) * plan.repeats
    size = f"{cells} {'cell' if cells == 1 else 'cells'} x {plan.repeats} = {slots} {'slot' if slots == 1 else 'slots'}"
    if plan.until is None:
        return size
    return f"{size} or more, up to {plan.max_repeats} per cell, until ± {100 * plan.until:g} %"


def run_slots(study: Study, plan: Plan, *, retry: bool) -> Outcome:
    """Run the slots that are not done, and restore all caps. Raises JoulelabError if an executor cannot be opened."""
    from joulelab.control.leftovers import restore_at_start
    from joulelab.study.drive import Driver, StopRequest

    cells = {cell.key: cell for cell in plan.cells}
    print_notice(f"{describe_size(plan)} in {shorten_path(study.folder)}, seed {study.seed}")
    prepare_data(plan)
    with ExitStack() as stack:
        stack.callback(restore_at_start, os.environ, print_notice)
        executors = open_executors(study, plan, stack)
        stop = stack.enter_context(StopRequest())
        shown = stack.enter_context(StudyProgress(sys.stderr, len(cells) * plan.repeats, scope=plan.scope))
        more: Any = {"warmup": plan.warmup, "retry": retry, "tick": shown.tick, "target": plan.target}
        driver = Driver(study, cells, plan.repeats, executors, shown, **more)
        outcome = driver.run(stop)
        if outcome.stopped_by is not None or outcome.error is not None:
            jobs = [job for place in dict.fromkeys(executors.values()) for job in place.list_open_jobs()]
            if jobs:
                print_notice(f"these jobs continue: {', '.join(jobs)}; scancel {' '.join(jobs)} ends them")
        return outcome


def prepare_data(plan: Plan) -> None:
    """Make the stand-in data of reference workloads once, before a slot is measured. Raises ConfigError.

    Jobs find it where the cache folder of this user is shared with the nodes.
    """
    from joulelab.run.workload_process import strip_own_locale
    from joulelab.run.workload_registry import prepare_workload
    from joulelab.study.matrix import TWIN

    measured = [cell for cell in plan.cells if cell.workload.kind == "reference"]
    simulated = {name for name, node in plan.nodes.items() if node.executor == TWIN}
    for words in dict.fromkeys(tuple(c.make_argv()) for c in measured if c.workload.node_type not in simulated):
        prepare_workload(words, strip_own_locale(os.environ))


def open_executors(study: Study, plan: Plan, stack: ExitStack) -> dict[str, Executor]:
    """Return the executor of each node type; node types of one executor share it. Raises JoulelabError."""
    from joulelab.run.workload_process import strip_own_locale
    from joulelab.study.executors import open_executor
    from joulelab.study.matrix import LOCAL

    environ = strip_own_locale(os.environ)
    names = {name: node.executor for name, node in plan.nodes.items()} or {LOCAL: LOCAL}
    opened: dict[str, Executor] = {}
    for name in dict.fromkeys(names.values()):
        opened[name] = stack.enter_context(closing(open_executor(name, environ, plan.nodes, study.folder)))
    return {node: opened[name] for node, name in names.items()}


def report_stop(outcome: Outcome) -> int | None:
    """Print what stopped a study and return the exit code, None if all slots were tried."""
    again = "type the same command to continue"
    if outcome.stopped_by is not None:
        print_notice(f"interrupted: {outcome.done} of {outcome.total} slots are done; {again}")
        return 128 + outcome.stopped_by
    if outcome.error is not None:
        print_notice(str(outcome.error))
        then = "" if outcome.error.next else f"; {again}"
        print_notice(f"stopped: {outcome.done} of {outcome.total} slots are done{then}")
        return FAILED_CODE
    return None


def report_failures(outcome: Outcome) -> int:
    """Print how many slots failed or were cancelled, and return the exit code."""
    if outcome.failed:
        print_notice(f"{outcome.failed} of {outcome.total} slots failed; add --retry to run them again")
    if outcome.cancelled:
        again = "type the same command to run them"
        print_notice(f"{outcome.cancelled} of {outcome.total} slots were cancelled; {again}")
    return FAILED_CODE if outcome.failed or outcome.cancelled else 0


class StudyProgress:
    """Print a line per slot on standard error, and a bar below on a terminal."""

    def __init__(self, file: TextIO, total: int, *, scope: str | None = None) -> None:
        self._file, self._total, self._scope = file, total, scope
        self._bar: Progress | None = None
        self._task: Any = None
        self._power_read_s = self._line_printed_s = time.monotonic()
        self._count = ""

    def __enter__(self) -> Self:
        """Start the bar."""
        if self._file.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
            )
            console = Console(file=self._file, markup=False, highlight=False)
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("slots", total=self._total, left="")
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: SlotEvent) -> None:
        """Print what happened to a slot."""
        left = "" if event.left_s is None else f"{fmt.format_rough_duration(event.left_s)} left"
        self._count = f"[{event.finished}/{event.total}]"
        self._line_printed_s = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=event.finished, total=event.total, left=left)
        self._print_line(describe_event(event, self._scope))

    def tick(self, running: Sequence[Path]) -> None:
        """Show the running slots and their power: in the bar, or once a minute in a line."""
        now = time.monotonic()
        if now - self._power_read_s < POWER_EVERY_S:
            return
        if self._bar is None and now - self._line_printed_s < LINE_EVERY_S:
            return
        self._power_read_s = now
        text = describe_running(running)
        if self._bar is not None:
            self._bar.update(self._task, description=text or "slots")
        elif text:
            self._line_printed_s = now
            self._print_line(f"{self._count} {text}".strip())

    def _print_line(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal was closed: the study goes on
            if self._bar is not None:
                self._bar.console.print(text, soft_wrap=True)
            else:
                click.echo(text, file=self._file)


def describe_running(slots: Sequence[Path]) -> str:
    """Return the number of running and of queued slots and their power now, in words; empty if there are none."""
    from joulelab.store.run_folder import list_runs
    from joulelab.study.results import read_power_now

    runs = [run for slot in slots for run in list_runs(slot)[-1:]]
    powers = [read_power_now(run) for run in runs[:MAX_RUNS_READ]]
    known = [watts for watts in powers if watts is not None]
    parts = []
    if runs:
        watts = f", {fmt.format_rough(sum(known), 'W')} now" if known else ""
        parts.append(("running" if len(runs) == 1 else f"{len(runs)} running") + watts)
    if len(slots) > len(runs):
        parts.append(f"{len(slots) - len(runs)} waiting")
    return "; ".join(parts)


def describe_event(event: SlotEvent, scope: str | None = None) -> str:
    """Return what happened to a slot in one line: cell, time, energy; the time left if 80 columns have room for it."""
    width = len(str(event.total))
    cell = f"[{event.finished:>{width}}/{event.total}] {describe_cell(event.cell)} ({event.slot.name})"
    if event.trial is not None:
        energy = event.trial.get_energy(scope)
        used = "no energy" if energy is None else fmt.format_quantity(energy, "J")
        state = "" if event.what == "done" else f"{event.what}: "
        head = f"{cell}: {state}{fmt.format_duration(event.trial.time_s)}, {used}"
    else:
        what = f"{event.what}, but not analysed" if event.what.endswith("done") else event.what
        head = f"{cell}: {what}" + (f" ({event.why})" if event.why else "")
    parts = []
    if event.what.startswith("failed") and (last_line := read_last_error(event.slot)):
        parts.append(f"{last_line} ({event.slot / ERR})")
    cooled = event.details.get("cooled", {})
    if cooled.get("reason") == "limit":
        parts.append(f"still at {cooled.get('to_c')} degC after {fmt.format_duration(cooled['took_s'])} of cooling")
    if event.details.get("outlived"):
        parts.append(_describe_outlived(event.details["outlived"], event.details.get("unended", 0)))
    parts += [str(problem) for problem in event.details.get("problems", ())]
    line = "; ".join([head, *parts])
    if event.left_s is not None and event.what in ("done", "failed", "interrupted"):
        whole = f"{line}; {fmt.format_rough_duration(event.left_s)} left"
        return whole if len(whole) <= NO_TERMINAL_WIDTH else line
    return line


def _describe_outlived(count: int, unended: int) -> str:
    ended = "was ended" if count == 1 else "were ended"
    if unended:
        ended = f"{unended} of them cannot be ended" if count > 1 else "cannot be ended"
    return f"{'1 process' if count == 1 else f'{count} processes'} outlived the command and {ended}"
