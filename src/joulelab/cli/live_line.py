"""Show power and energy while `joulelab run` runs: in the title of the terminal, and as a line now and then.

The workload owns the screen. Without a pty in between, the position of its cursor is unknown, so a line that is drawn
in place could overwrite its output (docs/decisions/0027). A title changes no cell of the screen, and tmux shows it in
its status line; a whole line in a row of its own overwrites nothing. Both are written only while

- our process group has the terminal: a shell or another job keeps its own title;
- the terminal echoes lines: editors, debuggers, password prompts and full-screen programs are not disturbed;
- the terminal takes output at once: it is neither stopped by Ctrl-S nor behind with the output of the workload.

A workload that splits a letter or an escape sequence over two writes may get a title between them (limits.md).
The original title is restored at the end and while the command is stopped. A failure here ends the title, not the run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from joulelab.cli.watch_terminal import can_write_unicode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from joulelab.report.watch.watched_energy import EnergySoFar
    from joulelab.report.watch.watched_run import RunWatch, WatchView

# Terminals that are known to take a title; another one might print it. Names of TERM begin with these.
TITLED_TERMINALS = (
    "alacritty", "contour", "foot", "ghostty", "gnome", "iterm", "kitty", "konsole", "mintty", "mlterm", "putty", "rio",
    "rxvt", "screen", "st-", "tmux", "vte", "wezterm", "xterm",
)  # fmt: skip
# XTWINOPS: save and restore the titles of window and tab. A terminal without this gets an empty title: its own one.
SET_TITLE, SAVE_TITLE, RESTORE_TITLE = b"\x1b]0;%b\x07", b"\x1b[22;0t", b"\x1b]0;\x07\x1b[23;0t"
FIRST_S = 2.0  # the modules that this needs are being imported before
EVERY_S = 3.0
FIRST_LINE_S, EVERY_LINE_S = 10.0, 60.0  # of lines on a terminal that are not asked for
DUMB_TERMINALS = ("dumb", "unknown", "")  # cannot begin a row of its own
ENERGY_SHARE = 0.0005  # of one core, for the energies; between two of them, power is integrated
SHARE = 0.003  # of one core, for the rest: on a node with very many meters, the title changes less often
TRIES = 3  # a file that is just being created may fail to be read once or twice
MOST_NAME = 30  # letters of the command after the figures
LOCK_S = 0.2  # longest wait for a terminal that does not take a title just now
MODULES = ("joulelab.report.watch.watched_energy", "joulelab.analysis.live_energy")


class TerminalTitle:
    """Own the title of a terminal: `show` a text, `restore` the original one. Neither raises."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._is_saved = self._is_closed = False
        self._lock = threading.Lock()

    def show(self, text: bytes) -> None:
        """Set the title, if this disturbs nobody now."""
        with self._lock:
            if not self._is_closed and is_terminal_free(self._fd):
                start = b"" if self._is_saved else SAVE_TITLE
                self._is_saved = True
                self._write(start + SET_TITLE % text)

    def restore(self) -> None:
        """Restore the original title for good."""
        self._is_closed = True
        with self.set_aside():
            pass

    @contextlib.contextmanager
    def set_aside(self) -> Iterator[None]:
        """Restore the original title in a block, such as the time for which this process is stopped."""
        has_lock = self._lock.acquire(timeout=LOCK_S)
        try:
            if has_lock and self._is_saved and _is_writable(self._fd, LOCK_S):
                self._is_saved = False
                self._write(RESTORE_TITLE)
            yield
        finally:
            if has_lock:
                self._lock.release()

    def _write(self, text: bytes) -> None:
        # One write: the kernel lets no other process write to the terminal in the middle of it.
        with contextlib.suppress(OSError), _block_background_stop():
            os.write(self._fd, text)


class LiveLine:
    """Show the figures of a run in a thread while its workload runs; `problem` is the reason why it ended early.

    `has_title` sets the title of the terminal; `every_s` is the time between lines on standard error, None for none;
    the first line comes after `first_s`.
    """

    def __init__(
        self, *, has_title: bool, every_s: float | None = None, first_s: float | None = None, fd: int = 2
    ) -> None:
        self.problem = ""
        self._title = TerminalTitle(fd) if has_title else None
        self._fd, self._every_s = fd, every_s
        self._first_s = first_s if first_s is not None else every_s or 0.0
        self._over = threading.Event()
        self._due_s = 0.0
        self._so_far: EnergySoFar | None = None

    @property
    def is_shown(self) -> bool:
        """Return whether there is anything to show."""
        return self._title is not None or self._every_s is not None

    def begin(self, run: Path) -> None:
        """Start the thread, just after the start of the workload."""
        if self.is_shown:
            threading.Thread(target=self._show_figures, args=(run,), name="joulelab-live-line", daemon=True).start()

    def set_aside(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which the terminal has its original title."""
        return contextlib.nullcontext() if self._title is None else self._title.set_aside()

    def end(self) -> None:
        """Show nothing any more, and restore the title."""
        self._over.set()
        if self._title is not None:
            self._title.restore()

    def _show_figures(self, run: Path) -> None:
        if self._over.wait(FIRST_S):
            return
        try:
            from joulelab.report.watch.watched_run import RunWatch

            self._due_s = time.monotonic() + self._first_s - FIRST_S
            with contextlib.closing(RunWatch(run, EVERY_S, share=ENERGY_SHARE, with_phases=False)) as watched:
                self._follow(watched)
        except Exception as error:  # noqa: BLE001 - the command goes on
            self.problem = f"{type(error).__name__}: {error}"
            self.end()

    def _follow(self, watched: RunWatch) -> None:
        failed, is_first, is_measured = 0, True, False  # the first read takes everything from the start
        every_s = min(EVERY_S, self._every_s or EVERY_S)
        while not self._over.is_set():
            began, energies_s = time.thread_time(), watched.energies.spent_s
            try:
                view = watched.read(energy=is_measured)
                is_measured = bool(view.rows)
                self._show(view)
                failed = 0
            except Exception:
                failed += 1
                if failed == TRIES:
                    raise
            cost_s = time.thread_time() - began
            cost_s -= watched.energies.spent_s - energies_s  # they have a limit of their own
            self._over.wait(every_s if is_first else self._choose_wait(every_s, cost_s))
            is_first = False

    def _choose_wait(self, every_s: float, cost_s: float) -> float:
        """Return the time until the next figures: longer where they cost much, but not beyond the next line."""
        wait_s = max(every_s, cost_s / SHARE)
        if self._every_s is None:
            return wait_s
        return min(wait_s, max(self._due_s - time.monotonic(), every_s))

    def _show(self, view: WatchView) -> None:
        from joulelab.report.run_summary import write_live_figures
        from joulelab.report.watch.watched_energy import EnergySoFar

        if not view.rows or view.elapsed_s is None:
            return  # nothing is measured, or not yet
        self._so_far = self._so_far or EnergySoFar()
        energy = self._so_far.add_view(view, view.elapsed_s)
        figures = write_live_figures(view.now_w, energy, view.elapsed_s, estimate=view.estimate)
        if self._title is not None:
            self._title.show(_encode_text(f"{figures} - {_name_run(view)}"))
        if self._every_s is not None and time.monotonic() >= self._due_s:
            self._due_s = max(self._due_s + self._every_s, time.monotonic())
            write_own_line(self._fd, _encode_text(f"joulelab: {figures}"))


def _name_run(view: WatchView) -> str:
    from joulelab.report.format import shorten_end

    program, _, words = view.command.partition(" ")
    return shorten_end(view.name or f"{program.rpartition('/')[2]} {words}", MOST_NAME)


def _encode_text(text: str) -> bytes:
    """Encode a text for the terminal: without UTF-8 in ASCII, because other bytes might be control characters."""
    if can_write_unicode(sys.stderr):
        return text.encode(errors="replace")
    return text.replace(" · ", ", ").encode("ascii", "replace")


def can_show_title(fd: int, environ: Mapping[str, str]) -> bool:
    """Return whether a file is our own terminal, of a kind that takes a title."""
    return _is_own_terminal(fd) and environ.get("TERM", "").startswith(TITLED_TERMINALS)


def choose_line_times(
    live: float | None, fd: int, environ: Mapping[str, str], *, is_quiet: bool
) -> tuple[float | None, float | None]:
    """Return the times of the first line and between lines, in s; None for no lines.

    `live` is the time between lines that was asked for, 0 for none, None for the default: lines on our own terminal.
    """
    if live is not None:
        return (live, live) if live else (None, None)
    is_able = _is_own_terminal(fd) and environ.get("TERM", "") not in DUMB_TERMINALS
    return (FIRST_LINE_S, EVERY_LINE_S) if is_able and not is_quiet else (None, None)


def _is_own_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd) and os.get_blocking(fd) and os.tcgetpgrp(fd) > 0
    except OSError:
        return False


def is_terminal_free(fd: int) -> bool:
    """Return whether nobody else needs the terminal: we are in the foreground, no program edits, nothing is queued."""
    import termios

    try:
        modes = termios.tcgetattr(fd)[3]
        is_plain = bool(modes & termios.ICANON) and bool(modes & termios.ECHO)
        return is_plain and os.tcgetpgrp(fd) == os.getpgrp() and _is_writable(fd, 0.0)
    except (OSError, termios.error):
        return False


def write_own_line(fd: int, text: bytes) -> None:
    """Write a line that begins in the first column, wherever the cursor is. Raises OSError if the file is gone.

    Blanks up to the last column wrap to the next row unless the cursor is in the first column; the text overwrites
    them. So a progress bar stays as it is, and goes on below.
    """
    if os.isatty(fd):
        if not is_terminal_free(fd):
            return
        if os.environ.get("TERM", "") not in DUMB_TERMINALS:
            text = b" " * (os.get_terminal_size(fd).columns - 1) + b"\r" + text
    with _block_background_stop():
        os.write(fd, text + b"\n")


def _is_writable(fd: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return any(found & select.POLLOUT for _, found in poll.poll(round(within_s * 1000)))


@contextlib.contextmanager
def _block_background_stop() -> Iterator[None]:
    """Block the signal that stops a process which writes in the background (`stty tostop`)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
