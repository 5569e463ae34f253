"""Show that something takes long: `with busy("reading 10,000 runs", total=10_000) as step:`, on a terminal only."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from joulelab.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress, TaskID

AFTER_S = 2.0  # what takes less is not worth a bar
EACH_S = 0.2  # how often the bar is drawn
LEFT_FROM = 0.02  # the share that has to be done before a time left is said
BAR = 20
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("busy", default=False)


class ProgressCounter:
    """Count what is done; call it once for each part, from any thread. It costs next to nothing."""

    def __init__(self, what: str, total: float | None) -> None:
        self.what, self.total, self.done = what, total, 0.0

    def __call__(self, count: float = 1) -> None:
        """Add what was done."""
        self.done += count

    def of(self, total: float | None, what: str | None = None) -> None:
        """Begin to count anew: the whole is known now, or another part has begun that has its own."""
        self.done, self.total = 0.0, total
        self.what = what or self.what

    def left(self, seconds: float) -> str:
        """Return how far it is after so many seconds, in words: `12 s left`, or the time it took so far."""
        if not self.total or not LEFT_FROM <= self.done / self.total < 1:
            return fmt.format_rough_duration(seconds)
        return f"{fmt.format_rough_duration(seconds * (self.total - self.done) / self.done)} left"


@contextlib.contextmanager
def show_progress(
    what: str, total: float | None = None, *, file: TextIO | None = None, after_s: float = AFTER_S
) -> Iterator[ProgressCounter]:
    """Show a bar for a block that takes longer than `after_s` seconds; one that moves where no total is known.

    Only where `file` (standard error) is a terminal, and gone when the block ends: print results after it. A block
    inside another shows nothing of its own. Nothing that goes wrong with the bar stops the block.
    """
    step, target = ProgressCounter(what, total), file or sys.stderr
    if _inside.get() or not _is_terminal(target):
        yield step
        return
    token, ended = _inside.set(True), threading.Event()
    shown = threading.Thread(target=_draw_bar, args=(step, target, after_s, ended), name="busy", daemon=True)
    shown.start()
    try:
        yield step
    finally:
        _inside.reset(token)
        ended.set()
        shown.join()


def _is_terminal(file: TextIO | None) -> bool:
    try:
        return file is not None and file.isatty()
    except ValueError:  # closed
        return False


def _draw_bar(step: ProgressCounter, file: TextIO, after_s: float, ended: threading.Event) -> None:
    began = time.monotonic()
    if ended.wait(after_s):
        return
    with contextlib.suppress(OSError, ValueError):  # a terminal that is gone stops nothing
        bar, task = _make_bar(file)
        if bar.console.is_dumb_terminal:
            bar.console.print(f"{fmt.shorten_end(step.what, bar.console.width - 4)} ...", soft_wrap=True)
            return
        what, since = step.what, began
        bar.start()
        bar.console.show_cursor(show=True)  # who is killed now leaves a terminal as it was
        try:
            while True:
                if step.what is not what:
                    what, since = step.what, time.monotonic()
                _update_bar(bar, task, step, time.monotonic() - since)
                if ended.wait(EACH_S):
                    return
        finally:
            bar.stop()


def _make_bar(file: TextIO) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(BAR), TextColumn("{task.description}", markup=False), TextColumn("{task.fields[told]}"))
    console = Console(file=file, markup=False, highlight=False, emoji=False)
    # What is printed meanwhile goes above the bar; but what goes into a pipe must stay there.
    same = _is_terminal(sys.stdout)
    bar = Progress(*columns, console=console, auto_refresh=False, transient=True, redirect_stdout=same)
    return bar, bar.add_task("", total=None, told="")


def _update_bar(bar: Progress, task: TaskID, step: ProgressCounter, seconds: float) -> None:
    done, total = step.done, step.total
    told = [f"{fmt.format_amount(round(done))}/{fmt.format_amount(round(total))}" if total else "", step.left(seconds)]
    text = ", ".join(part for part in told if part)
    room = max(bar.console.width - BAR - len(text) - 3, 8)
    title = fmt.shorten_end(step.what, room)
    bar.update(task, description=title, completed=done, total=total or None, told=text, refresh=True)
