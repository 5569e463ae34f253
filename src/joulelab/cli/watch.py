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
from joulelab.cli.output import print_notice
from joulelab.cli.parameters import Duration, json_option, name_run, runs_option
from joulelab.core.errors import StoreError

if TYPE_CHECKING:
    from joulelab.analysis.result import Result
    from joulelab.cli.watch_terminal import Waiter
    from joulelab.report.watch.watched_run import View, Watched

MOST_NAMED, MOST_OF_NAME = 3, 20
PREFIX = "joulelab-watch-"
FIRST_S = 1.3  # readings reach the disk within half a second, and a counter has to step twice


@click.command("watch")
@click.argument("run", required=False)
@click.option("--every", type=Duration(0.2), default=1.0, show_default=True, help="How often to look.")
@click.option("--once", is_flag=True, help="Show it once and leave.")
@click.option("--keep", is_flag=True, help="Where it measures on its own: keep the run.")
@json_option
@runs_option
def command(run: str | None, every: float, once: bool, keep: bool, as_json: bool, runs: Path) -> None:
    """Watch a run that goes on, or this node: power, energy so far, GPUs, meters.

    RUN is an id, the beginning of one, a name, a path, or `last`; the newest run that goes on unless given. Where none
    does, it measures this node until you leave. q or Ctrl-C leaves; a run that is watched goes on.
    """
    from joulelab.cli.watch_terminal import Waiter

    shown = _Shown(every, once=once, as_json=as_json)
    with Waiter() as waiter:
        path, others = _found(runs, run)
        if path is not None:
            _attached(path, others, shown, waiter)
        else:
            _alone(runs, shown, waiter, keep=keep)
    if shown.interrupted:
        click.get_current_context().exit(INTERRUPTED_CODE)


def _found(runs: Path, wanted: str | None) -> tuple[Path | None, list[Path]]:
    """Return the run to watch, None where none goes on, and others that go on."""
    from joulelab.store.folder import find_run

    if wanted is not None:
        return find_run(runs, wanted), []
    live = live_runs(runs)
    return (live[0], live[1:]) if live else (None, [])


def live_runs(runs: Path) -> list[Path]:
    """Return the runs of a store that go on, the newest first."""
    from joulelab.store.folder import RunState, list_runs, run_state

    live = []
    for path in reversed(list_runs(runs)):
        with contextlib.suppress(StoreError, OSError):
            if not (path / "end.json").exists() and run_state(path) is RunState.LIVE:
                live.append(path)
    return live


def _attached(path: Path, others: list[Path], shown: _Shown, waiter: Waiter) -> None:
    from joulelab.report.watch.watched_run import Watched

    if others:
        names = ", ".join(map(_named, others[:MOST_NAMED]))
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        shown.note(f"also live: {names}{more}; choose one with `joulelab watch RUN`")
    with contextlib.closing(Watched(path, shown.every)) as watched:
        last = shown.follow(watched, waiter)
    if last.state == "live":
        shown.left(last, path)
    else:
        shown.ended(last, _result(path), path)


def _named(path: Path) -> str:
    from joulelab.report.format import format_fact
    from joulelab.store.folder import read_meta

    try:
        name = read_meta(path).get("name")
    except StoreError:
        return path.name
    return f"{path.name} ({format_fact(str(name), MOST_OF_NAME)})" if name else path.name


def _alone(runs: Path, shown: _Shown, waiter: Waiter, *, keep: bool) -> None:
    """Measure this node until the user leaves; what was recorded goes away unless it is kept."""
    from tempfile import TemporaryDirectory

    from joulelab.report.watch.watched_run import Watched
    from joulelab.run.measure import measure

    shown.note(f"no run is live in {runs}: measuring this node")
    with contextlib.ExitStack() as stack:
        store = (
            runs if keep else Path(stack.enter_context(TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)))
        )
        with measure("watch", runs=store) as m:
            if m.run is None:
                raise StoreError(
                    "nothing can be recorded", where=str(store), next="joulelab doctor", code="store.no-recorder"
                )
            with contextlib.closing(Watched(m.run, shown.every, own=True)) as watched:
                last = shown.follow(watched, waiter)
        if m.result is not None and not shown.once:
            shown.ended(last, m.result, m.run if keep else None)


def _result(path: Path) -> Result:
    """Return the result of a run that has ended; nothing is written there."""
    from joulelab.analysis.analyse import analyse_run
    from joulelab.store.run import open_run

    with open_run(path) as opened:
        return analyse_run(opened)


class _Shown:
    """Show views of a run: on the whole terminal, as lines, or as JSON; once or until it ends."""

    def __init__(self, every: float, *, once: bool, as_json: bool) -> None:
        self.every, self.once, self.as_json = every, once, as_json
        self.notes: list[str] = []
        self.interrupted = False
        self._last: View | None = None
        from joulelab.cli.watch_terminal import is_screen, is_unicode

        self._whole = is_screen(sys.stdout) and not (once or as_json)
        self._ascii = not is_unicode(sys.stdout)
        if self._ascii:
            with contextlib.suppress(AttributeError):
                sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]

    def note(self, text: str) -> None:
        """Say something: on the screen, or beside the lines."""
        if self._whole:
            self.notes.append(text)
        elif not self.as_json:
            print_notice(text)

    def follow(self, watched: Watched, waiter: Waiter) -> View:
        """Show a run until it ends or the user leaves, by Ctrl-C too; return what was seen last."""
        try:
            return self._screen(watched, waiter) if self._whole else self._lines(watched, waiter)
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

    def _lines(self, watched: Watched, waiter: Waiter) -> View:
        due = time.monotonic()
        if self.once and watched.own:
            waiter.until(due + max(self.every, FIRST_S))
        soon = not self.once  # the first look is quick, the first energy may take seconds
        while True:
            view = self._last = watched.look(self.notes, energy=not soon)
            soon = False
            if view.state == "live":  # of one that has ended its result says all
                self._print(view)
            if view.state != "live" or self.once or waiter.quit:
                return view
            due = max(due + self.every, time.monotonic())
            while time.monotonic() < due and not waiter.quit:
                waiter.until(due)

    def _screen(self, watched: Watched, waiter: Waiter) -> View:
        from joulelab.cli.watch_terminal import Screen
        from joulelab.report.watch.watch_screen import screen

        with waiter.keys(), Screen(sys.stdout) as drawn:
            due, soon = time.monotonic(), True
            while True:
                view = self._last = watched.look(self.notes, energy=not soon)
                soon = False
                due = max(due + self.every, time.monotonic())
                while True:
                    size, waiter.resized = drawn.size, False
                    drawn.draw(screen(view, *size, ascii_only=self._ascii), size)
                    while time.monotonic() < due and not (waiter.quit or waiter.resized):
                        waiter.until(due)
                    if not waiter.resized:
                        break
                if view.state != "live" or waiter.quit:
                    return view

    def _print(self, view: View) -> None:
        from joulelab.report.watch.watch_screen import line, screen

        if self.as_json:
            self._json(view.to_json())
        elif self.once:
            from joulelab.report.console import make_console

            console = make_console(sys.stdout)
            for text in screen(view, console.width, ascii_only=self._ascii):
                console.print(text, soft_wrap=True)
        else:
            click.echo(line(view))

    def _json(self, data: dict[str, Any]) -> None:
        json.dump(data, sys.stdout, ensure_ascii=self._ascii, default=str, allow_nan=False)
        sys.stdout.write("\n")
        sys.stdout.flush()

    def left(self, view: View, path: Path) -> None:
        """Tell what was seen last of a run that goes on without us."""
        from joulelab.report.watch.watch_screen import summary

        if not self.as_json and not self.once:
            click.echo(f"{summary(view)}; {name_run(path)} goes on")

    def ended(self, view: View, result: Result, path: Path | None) -> None:
        """Tell how a run ended: the figures that `joulelab show` prints."""
        from joulelab.report.run_tables import describe_command, write_headline

        if self.as_json:
            keys = ("state", "outcome", "exit_code", "signal", "duration_s", "energy")
            whole = result.to_json()
            self._json(view.to_json() | {"state": result.state, "final": {key: whole[key] for key in keys}})
            return
        click.echo(write_headline(result))
        if not view.own:
            click.echo(describe_command(result, 80))
        if path is not None:
            click.echo(f"-> joulelab show {name_run(path)}")
