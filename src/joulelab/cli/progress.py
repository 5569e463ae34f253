"""Show how a study gets on: a line per slot on standard error, and a bar below where that is a terminal."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Self, TextIO

import click

from joulelab.cli.study_overview import describe
from joulelab.report import format as fmt
from joulelab.study.slots import ERR, last_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.progress import Progress

    from joulelab.study.drive import Told

# How often the power of what runs is looked up for the bar, and told in a line where there is none (s).
LOOK_S, LINE_S = 1.0, 60.0
MOST_SUMMED = 8


class Shown:
    """Print news of slots; a bar only on a terminal."""

    def __init__(self, file: TextIO, total: int, *, scope: str | None = None) -> None:
        self._file, self._total, self._scope = file, total, scope
        self._bar: Progress | None = None
        self._task: Any = None
        self._looked = self._lined = time.monotonic()
        self._last = ""

    def __enter__(self) -> Self:
        """Begin the bar."""
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
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, told: Told) -> None:
        """Print one piece of news."""
        left = "" if told.left_s is None else f"{fmt.format_rough_duration(told.left_s)} left"
        self._last = f"[{told.finished}/{told.total}]"
        self._lined = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=told.finished, total=told.total, left=left)
        self.say(news(told, self._scope))

    def tick(self, running: Sequence[Path]) -> None:
        """Show what runs and the power it takes now: in the bar, or in a line now and then."""
        now = time.monotonic()
        if now - self._looked < LOOK_S or (self._bar is None and now - self._lined < LINE_S):
            return
        self._looked = now
        text = running_now(running)
        if self._bar is not None:
            self._bar.update(self._task, description=text or "slots")
        elif text:
            self._lined = now
            self.say(f"{self._last} {text}".strip())

    def say(self, text: str) -> None:
        """Print a line."""
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone stops nothing
            if self._bar is not None:
                self._bar.console.print(text, soft_wrap=True)
            else:
                click.echo(text, file=self._file)


def running_now(slots: Sequence[Path]) -> str:
    """Return what runs and what waits in a queue, and the power of what runs, in words; empty where nothing does."""
    from joulelab.store.folder import list_runs
    from joulelab.study.now import power_now

    runs = [run for slot in slots for run in list_runs(slot)[-1:]]
    powers = [power_now(run) for run in runs[:MOST_SUMMED]]
    known = [watts for watts in powers if watts is not None]
    parts = []
    if runs:
        watts = f", {fmt.format_rough(sum(known), 'W')} now" if known else ""
        parts.append(("running" if len(runs) == 1 else f"{len(runs)} running") + watts)
    if len(slots) > len(runs):
        parts.append(f"{len(slots) - len(runs)} waiting")
    return "; ".join(parts)


def news(told: Told, scope: str | None = None) -> str:
    """Return what happened to a slot in one line: cell, time, energy, time left."""
    width = len(str(told.total))
    parts = [f"[{told.finished:>{width}}/{told.total}] {describe(told.cell)} ({told.slot.name})"]
    if told.trial is not None:
        energy = told.trial.energy(scope)
        used = "no energy" if energy is None else fmt.format_quantity(energy.value, energy.expanded, "J")
        parts.append(
            f"{'' if told.what == 'done' else told.what + ': '}{fmt.format_duration(told.trial.time_s)}, {used}"
        )
    else:
        parts.append(told.what + (f" ({told.why})" if told.why else ""))
    if told.what.startswith("failed") and (said := last_words(told.slot)):
        parts.append(f"{said} ({told.slot / ERR})")
    cooled = told.details.get("cooled", {})
    if cooled.get("reason") == "limit":
        parts.append(f"still at {cooled.get('to_c')} degC after {fmt.format_duration(cooled['took_s'])} of cooling")
    if told.details.get("outlived"):
        parts.append(_outlived(told.details["outlived"], told.details.get("unended", 0)))
    parts += [str(problem) for problem in told.details.get("problems", ())]
    if told.left_s is not None and told.what in ("done", "failed", "interrupted"):
        parts.append(f"{fmt.format_rough_duration(told.left_s)} left")
    return ": ".join(parts[:2]) + "".join(f"; {part}" for part in parts[2:])


def _outlived(count: int, unended: int) -> str:
    ended = "was ended" if count == 1 else "were ended"
    if unended:
        ended = f"{unended} of them cannot be ended" if count > 1 else "cannot be ended"
    return f"{'1 process' if count == 1 else f'{count} processes'} outlived the command and {ended}"
