"""Watch a run that goes on, or this node: `joulelab watch [RUN]`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli import INTERRUPTED_CODE
from joulelab.cli.output import measure_terminal, print_blocks, print_notice
from joulelab.cli.parameters import Duration, format_examples, json_option, name_run, runs_option
from joulelab.core.errors import StoreError

if TYPE_CHECKING:
    from joulelab.analysis.result import Result
    from joulelab.cli.watch_terminal import KeyWaiter
    from joulelab.report.watch.watched_run import RunWatch, WatchView

MOST_NAMED, MOST_LETTERS = 3, 20
PREFIX = "joulelab-watch-"
FIRST_S = 1.3  # readings need half a second to reach the disk, and a counter has to step twice


@click.command("watch", epilog=format_examples("joulelab watch", "joulelab watch baseline --every 5s"))
@click.argument("run", required=False)
@click.option("--every", type=Duration(0.2), default="1s", show_default=True, help="Time between updates.")
@click.option("--once", is_flag=True, help="Print one view and exit.")
@click.option("--keep", is_flag=True, help="Save the measurement of this node as a run (otherwise it is deleted).")
@json_option
@runs_option
def command(run: str | None, every: float, once: bool, keep: bool, as_json: bool, runs: Path) -> None:
    """Watch power and energy live, of a run or of this node.

    RUN is an id or its beginning, a name, a path, or `last`; by default the newest run that is still recording. Without
    one, this node is measured until you quit. Quit with q or Ctrl-C; the run continues.
    """
    from joulelab.cli.watch_terminal import KeyWaiter

    printer = WatchPrinter(every, once=once, as_json=as_json)
    with KeyWaiter() as waiter:
        path, others = _choose_run(runs, run)
        if path is not None:
            _watch_run(path, others, printer, waiter)
        else:
            _watch_node(runs, printer, waiter, keep=keep)
    if printer.interrupted:
        click.get_current_context().exit(INTERRUPTED_CODE)


def _choose_run(runs: Path, wanted: str | None) -> tuple[Path | None, list[Path]]:
    """Return the run to watch (None: no run is live), and the other live runs."""
    from joulelab.store.run_folder import find_run

    if wanted is not None:
        return find_run(runs, wanted), []
    live = list_live_runs(runs)
    return (live[0], live[1:]) if live else (None, [])


def list_live_runs(runs: Path) -> list[Path]:
    """Return the live runs of a store, the newest first."""
    from joulelab.store.run_folder import RunState, list_runs, read_run_state

    live = []
    for path in reversed(list_runs(runs)):
        with contextlib.suppress(StoreError, OSError):
            if not (path / "end.json").exists() and read_run_state(path) is RunState.LIVE:
                live.append(path)
    return live


def _watch_run(path: Path, others: list[Path], printer: WatchPrinter, waiter: KeyWaiter) -> None:
    from joulelab.report.watch.watched_run import RunWatch

    if others:
        names = ", ".join(map(_name_with_title, others[:MOST_NAMED]))
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        printer.add_note(f"also live: {names}{more}; choose one with `joulelab watch RUN`")
    with contextlib.closing(RunWatch(path, printer.every)) as watched:
        last = printer.follow(watched, waiter)
    if last.state == "live":
        printer.print_left(last, path)
    else:
        printer.print_end(last, _analyse_ended(path), path)


def _name_with_title(path: Path) -> str:
    from joulelab.report.format import format_fact
    from joulelab.store.run_folder import read_meta

    try:
        name = read_meta(path).get("name")
    except StoreError:
        return path.name
    return f"{path.name} ({format_fact(str(name), MOST_LETTERS)})" if name else path.name


def _watch_node(runs: Path, printer: WatchPrinter, waiter: KeyWaiter, *, keep: bool) -> None:
    """Measure this node until the user leaves; the run is deleted unless `keep` is set."""
    from tempfile import TemporaryDirectory

    from joulelab.report.watch.watched_run import RunWatch
    from joulelab.run.measure import measure

    printer.add_note(f"no run is live in {runs}: measuring this node")
    with contextlib.ExitStack() as stack:
        store = (
            runs if keep else Path(stack.enter_context(TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)))
        )
        with measure("watch", runs=store) as m:
            if m.run is None:
                raise StoreError(
                    "nothing can be recorded", where=str(store), next="joulelab doctor", code="store.no-recorder"
                )
            with contextlib.closing(RunWatch(m.run, printer.every, own=True)) as watched:
                last = printer.follow(watched, waiter)
        if m.result is not None and not printer.once:
            printer.print_end(last, m.result, m.run if keep else None)


def _analyse_ended(path: Path) -> Result:
    """Return the result of a run that has ended, without writing it into the folder."""
    from joulelab.analysis.analyse import analyse_run
    from joulelab.store.run_reader import open_run

    with open_run(path) as opened:
        return analyse_run(opened)


class WatchPrinter:
    """Print views of a run: on the whole terminal, as lines, or as JSON; once or until it ends."""

    def __init__(self, every: float, *, once: bool, as_json: bool) -> None:
        self.every, self.once, self.as_json = every, once, as_json
        self.notes: list[str] = []
        self.interrupted = False
        self._last: WatchView | None = None
        self._covers = ""
        from joulelab.cli.watch_terminal import can_draw_screen, can_write_unicode

        self._is_screen = can_draw_screen(sys.stdout) and not (once or as_json)
        self._ascii = not can_write_unicode(sys.stdout)
        if self._ascii:
            with contextlib.suppress(AttributeError):
                sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]

    def add_note(self, text: str) -> None:
        """Print a note on the screen, or on standard error."""
        if self._is_screen:
            self.notes.append(text)
        elif not self.as_json:
            print_notice(text)

    def follow(self, watched: RunWatch, waiter: KeyWaiter) -> WatchView:
        """Show a run until it ends or the user leaves, by Ctrl-C too; return the last view."""
        try:
            return self._show_screen(watched, waiter) if self._is_screen else self._show_lines(watched, waiter)
        except KeyboardInterrupt:
            self.interrupted = True
            if self._last is None:
                raise
            return self._last
        except (OSError, StoreError):
            if (watched.run / "run.json").exists():
                raise
            why = "moved or deleted while it was watched"
            raise StoreError(
                "the run folder is gone", where=str(watched.run), why=why, next="joulelab ls", code="store.gone"
            ) from None

    def _show_lines(self, watched: RunWatch, waiter: KeyWaiter) -> WatchView:
        due = time.monotonic()
        if self.once and watched.own:
            waiter.wait_until(due + max(self.every, FIRST_S))
        is_first = not self.once  # the first view comes at once; the first energy may take seconds
        while True:
            view = self._last = watched.read(self.notes, energy=not is_first)
            is_first = False
            if view.state == "live":  # the result of an ended run is printed instead
                self._mention_coverage(view)
                self._print_view(view)
            if view.state != "live" or self.once or waiter.quit:
                return view
            due = max(due + self.every, time.monotonic())
            while time.monotonic() < due and not waiter.quit:
                waiter.wait_until(due)

    def _show_screen(self, watched: RunWatch, waiter: KeyWaiter) -> WatchView:
        from joulelab.cli.watch_terminal import TerminalScreen
        from joulelab.report.watch.watch_screen import draw_screen

        with waiter.read_keys(), TerminalScreen(sys.stdout) as drawn:
            due, is_first = time.monotonic(), True
            while True:
                view = self._last = watched.read(self.notes, energy=not is_first)
                is_first = False
                due = max(due + self.every, time.monotonic())
                while True:
                    size, waiter.resized = drawn.size, False
                    drawn.draw(draw_screen(view, *size, ascii_only=self._ascii), size)
                    while time.monotonic() < due and not (waiter.quit or waiter.resized):
                        waiter.wait_until(due)
                    if not waiter.resized:
                        break
                if view.state != "live" or waiter.quit:
                    return view

    def _mention_coverage(self, view: WatchView) -> None:
        """Print once what the lines cover; a whole view and JSON have it themselves."""
        from joulelab.report.watch.watch_screen import describe_view_coverage

        covers = "" if self.once or self.as_json else describe_view_coverage(view)
        if covers and covers != self._covers:
            print_notice(covers)
            self._covers = covers

    def _print_view(self, view: WatchView) -> None:
        from joulelab.report.watch.watch_screen import draw_screen, write_line

        if self.as_json:
            self._print_json(view.to_json())
        elif self.once:
            from rich.console import Console

            console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
            for text in draw_screen(view, console.width, ascii_only=self._ascii):
                text.rstrip()
                console.print(text, soft_wrap=True)
        else:
            click.echo(write_line(view))

    def _print_json(self, data: dict[str, Any]) -> None:
        json.dump(data, sys.stdout, ensure_ascii=self._ascii, default=str, allow_nan=False)
        sys.stdout.write("\n")
        sys.stdout.flush()

    def print_left(self, view: WatchView, path: Path) -> None:
        """Print the last figures of a run that goes on."""
        from joulelab.report.watch.watch_screen import write_summary

        if not self.as_json and not self.once:
            click.echo(f"{write_summary(view)}; {name_run(path)} goes on")

    def print_end(self, view: WatchView, result: Result, path: Path | None) -> None:
        """Print the answer of a run that has ended, as `joulelab show` does."""
        if self.as_json:
            from joulelab.report.result_json import describe_result

            keys = ("state", "outcome", "exit_code", "signal", "duration_s", "energy")
            whole = describe_result(result)
            self._print_json(view.to_json() | {"state": result.state, "final": {key: whole[key] for key in keys}})
            return
        from joulelab.report.format import format_duration
        from joulelab.report.run_summary import LABEL_WIDTH, avoid_breaks, list_answer_facts
        from joulelab.report.terminal import TextBlock, TextLine, list_facts

        facts = list_answer_facts(result, measure_terminal(), has_hint=False)
        if view.own:
            facts[0] = ("joulelab", f"this node · {format_duration(result.duration_s)}")
        blocks: list[TextBlock] = [list_facts(avoid_breaks(facts), label_width=LABEL_WIDTH)]
        if path is not None:
            blocks.append(TextLine(f"{'next':<{LABEL_WIDTH}} joulelab show {name_run(path)}", is_wrapped=False))
        print_blocks(blocks)
