"""Print what commands share: notices, JSON, errors as JSON, a progress bar; and write files for the user."""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.progress import Progress, TaskID

    from joulelab.report.terminal import TextBlock
    from joulelab.site.footprint import Site

NO_TERMINAL_WIDTH = 80
PLAIN_SIGNS = str.maketrans({"±": "+-", "µ": "u", "─": "-", "·": "-", "…": "~", "†": "+", "‡": "#", "²": "2", "°": " "})
# The last words of a line, where they are a command that can be pasted.
NEXT_COMMAND = re.compile(r"(?:; |(?<=:) )(?=(?:joulelab|pip install|python|sudo|keyring) [^;`]+\Z)")
BAR_AFTER_S = 2.0  # shorter work needs no bar
REDRAW_S = 0.2
LEAST_SHARE_DONE = 0.02  # below it, a time left would be a guess
BAR_WIDTH = 20
MAX_BYTES_SEARCHED = 32_000_000  # of a file, for joulelab's mark
_is_bar_shown: contextvars.ContextVar[bool] = contextvars.ContextVar("is_bar_shown", default=False)


def print_notice(text: str) -> None:
    """Print a message on standard error, beside the result; a command at the end of a line gets a line of its own.

    On a terminal it is wrapped between words; a log has one line for each message.
    """
    import textwrap

    wrap = textwrap.TextWrapper(measure_terminal(), break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for line in f"joulelab: {text}".split("\n"):
        sentence, *commands = NEXT_COMMAND.split(line, maxsplit=1)
        lines += (wrap.wrap(sentence) or [""]) if sys.stderr.isatty() else [sentence]
        lines += [f"-> {command}" for command in commands]
    click.echo("\n".join(lines), err=True)


def print_json(data: Any, *, one_line: bool = False) -> None:
    """Print plain data as JSON on standard output, whole or not at all."""
    text = json.dumps(data, indent=None if one_line else 1, ensure_ascii=False, default=str, allow_nan=False)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def measure_terminal() -> int:
    """Return the number of columns of the terminal, 80 without a terminal; COLUMNS overrides it."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    for descriptor in (0, 1, 2):  # output may be a pipe to a pager
        with contextlib.suppress(OSError):
            return os.get_terminal_size(descriptor).columns or NO_TERMINAL_WIDTH
    return NO_TERMINAL_WIDTH


def print_blocks(blocks: Iterable[TextBlock], *, file: TextIO | None = None) -> None:
    """Print blocks of a report: on a terminal in its width and with bold and colours, elsewhere as plain text."""
    from joulelab.report.terminal import write_blocks

    target = file or sys.stdout
    is_plain = not _is_terminal(target) or os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    text = write_blocks(blocks, measure_terminal(), is_styled=not is_plain)
    encoding = getattr(target, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:  # such as Latin-1, which has no lines
        text = text.translate(PLAIN_SIGNS).encode(encoding, "backslashreplace").decode(encoding)
    target.write(text)
    target.flush()


def describe_error(error: JoulelabError | click.ClickException | OSError) -> dict[str, Any]:
    """Return code, what, where, why and next of an error as `--json` prints them; `mistakes` lists its parts."""
    if not isinstance(error, JoulelabError) and isinstance(error.__cause__, JoulelabError):
        error = error.__cause__
    if isinstance(error, JoulelabError):
        parts = [describe_error(part) for part in getattr(error, "mistakes", ())]
        fields = {key: getattr(error, key) for key in ("code", "what", "where", "why", "next")}
        return fields | ({"mistakes": parts} if parts else {})
    if isinstance(error, OSError):
        where = str(error.filename) if error.filename else None
        return {"code": "system", "what": "a system call failed", "where": where, "why": error.strerror, "next": None}
    where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "joulelab"
    code = getattr(error, "code", "usage")
    return {"code": code, "what": error.format_message(), "where": where, "why": None, "next": f"{where} --help"}


def shorten_path(path: Path) -> Path:
    """Return a path relative to the current folder if it lies below it."""
    try:
        here = Path.cwd()
    except OSError:  # deleted while we run
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path


def check_overwrite(file: Path, mark: bytes, *, what: str, force: bool, option: str = "-o") -> None:
    """Refuse to overwrite a file that does not contain joulelab's mark, unless forced.

    `what` is the kind of file ("report"), `option` the option that names it. Raises ConfigError.
    """
    if force or not os.path.lexists(file):
        return
    why = f"the file exists and is not a {what} by joulelab"
    try:
        with file.open("rb") as opened:
            if mark in opened.read(MAX_BYTES_SEARCHED):
                return
    except OSError as error:
        why = error.strerror or type(error).__name__
    raise ConfigError(
        f"the {what} is not written",
        where=str(file),
        why=why,
        next=f"choose another file with {option}, or add --force",
        code="config.foreign-file",
    )


def write_file(file: Path, data: bytes, *, what: str, option: str = "-o") -> None:
    """Write a file whole or not at all; a device or a pipe is written to as it is. Raises ConfigError."""
    from joulelab.store.safe_files import replace_file

    file = file.resolve()  # a link stays a link: its target is written
    try:
        if file.exists() and not file.is_file() and not file.is_dir():
            file.write_bytes(data)
            return
        replace_file(file, data, sync=False)
    except OSError as error:
        raise ConfigError(
            f"the {what} cannot be written",
            where=str(file),
            why=error.strerror,
            next=f"choose another file with {option}",
            code="config.write",
        ) from error


def load_current_site() -> Site | None:
    """Return the site that is set now, for runs that recorded none; print the problems of [site]."""
    from joulelab.run.config.configuration import load_site

    found = load_site(os.environ)
    for problem in found.problems:
        print_notice(f"[site] is not used: {problem}")
    return found.site


class ProgressCounter:
    """Count finished parts of some work; call it once per part, from any thread."""

    def __init__(self, what: str, total: float | None) -> None:
        self.what, self.total, self.done = what, total, 0.0

    def __call__(self, count: float = 1) -> None:
        """Add finished parts."""
        self.done += count

    def restart(self, total: float | None, what: str | None = None) -> None:
        """Count from 0 again: the total is known now, or the next step of the work begins."""
        self.done, self.total = 0.0, total
        self.what = what or self.what

    def describe_time(self, seconds: float) -> str:
        """Return the time left (`12 s left`) after this many seconds, or the time so far if that is unknown."""
        from joulelab.report.format import format_rough_duration

        if not self.total or not LEAST_SHARE_DONE <= self.done / self.total < 1:
            return format_rough_duration(seconds)
        return f"{format_rough_duration(seconds * (self.total - self.done) / self.done)} left"


@contextlib.contextmanager
def show_progress(
    what: str, total: float | None = None, *, file: TextIO | None = None, after_s: float = BAR_AFTER_S
) -> Iterator[ProgressCounter]:
    """Show a bar while a block runs, from `after_s` seconds on; the block calls the counter it gets once per part.

    Only if `file` (standard error) is a terminal, and removed when the block ends: print results after it. Of nested
    blocks only the outer one has a bar. A failing terminal never stops the block.
    """
    step, target = ProgressCounter(what, total), file or sys.stderr
    if _is_bar_shown.get() or not _is_terminal(target):
        yield step
        return
    token, ended = _is_bar_shown.set(True), threading.Event()
    drawing = threading.Thread(target=_draw_bar, args=(step, target, after_s, ended), name="progress", daemon=True)
    drawing.start()
    try:
        yield step
    finally:
        _is_bar_shown.reset(token)
        ended.set()
        drawing.join()


def _is_terminal(file: TextIO | None) -> bool:
    try:
        return file is not None and file.isatty()
    except ValueError:  # closed
        return False


def _draw_bar(step: ProgressCounter, file: TextIO, after_s: float, ended: threading.Event) -> None:
    began = time.monotonic()
    if ended.wait(after_s):
        return
    from joulelab.report.format import shorten_end

    with contextlib.suppress(OSError, ValueError):  # the terminal was closed: the work goes on
        bar, task = _make_bar(file)
        if bar.console.is_dumb_terminal:
            bar.console.print(f"{shorten_end(step.what, bar.console.width - 4)} ...", soft_wrap=True)
            return
        what, since = step.what, began
        bar.start()
        bar.console.show_cursor(show=True)  # so that a killed process leaves the terminal with its cursor
        try:
            while True:
                if step.what is not what:
                    what, since = step.what, time.monotonic()
                _update_bar(bar, task, step, time.monotonic() - since)
                if ended.wait(REDRAW_S):
                    return
        finally:
            bar.stop()


def _make_bar(file: TextIO) -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(BAR_WIDTH), TextColumn("{task.description}", markup=False), TextColumn("{task.fields[state]}"))
    console = Console(file=file, markup=False, highlight=False, emoji=False)
    # Text printed meanwhile goes above the bar, unless standard output is a pipe.
    same = _is_terminal(sys.stdout)
    bar = Progress(*columns, console=console, auto_refresh=False, transient=True, redirect_stdout=same)
    return bar, bar.add_task("", total=None, state="")


def _update_bar(bar: Progress, task: TaskID, step: ProgressCounter, seconds: float) -> None:
    from joulelab.report.format import format_amount, shorten_end

    done, total = step.done, step.total
    count = f"{format_amount(round(done))}/{format_amount(round(total))}, " if total else ""
    state = count + step.describe_time(seconds)
    title = shorten_end(step.what, max(bar.console.width - BAR_WIDTH - len(state) - 3, 8))
    bar.update(task, description=title, completed=done, total=total or None, state=state, refresh=True)
