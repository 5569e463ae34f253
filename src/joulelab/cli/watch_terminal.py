"""Own a terminal for a while: draw on the whole screen, wait for keys, restore everything at the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text

HOME, CLEAR_LINE, CLEAR_REST, CLEAR = "\x1b[H", "\x1b[2K", "\x1b[J", "\x1b[2J"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
QUIT = b"qQ\x04"
USUAL_SIZE = (80, 24)


class KeyWaiter:
    """Wait for a time, a key or a new size of the terminal; `quit` is set by q, or when the terminal is gone."""

    def __init__(self) -> None:
        self.quit = self.resized = False
        self._keys: int | None = None
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._undo: list[Any] = []

    def __enter__(self) -> Self:
        """Handle signals: those that end the program raise SystemExit, so that everything is restored."""
        if threading.current_thread() is threading.main_thread():
            self._woken = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._undo.append(lambda: signal.set_wakeup_fd(self._woken))
            taken: dict[signal.Signals, Any] = {
                signal.SIGTERM: _exit_by_signal,
                signal.SIGHUP: _exit_by_signal,
                signal.SIGWINCH: self._resize,
            }
            for number, handler in taken.items():
                if signal.getsignal(number) is not signal.SIG_IGN:
                    found = signal.signal(number, handler)
                    self._undo.append(lambda number=number, found=found: signal.signal(number, found))
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the signal handlers."""
        for undo in reversed(self._undo):
            undo()
        os.close(self._read)
        os.close(self._write)

    @contextlib.contextmanager
    def read_keys(self) -> Iterator[None]:
        """Read single keys in a block if standard input is our terminal."""
        fd = _find_foreground_input()
        if fd is None:
            yield
            return
        import termios

        found = termios.tcgetattr(fd)
        single = termios.tcgetattr(fd)
        single[3] &= ~(termios.ICANON | termios.ECHO)
        single[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the terminal in this mode
        termios.tcsetattr(fd, termios.TCSADRAIN, single)
        self._keys = fd
        try:
            yield
        finally:
            self._keys = None
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(fd, termios.TCSADRAIN, found)

    def wait_until(self, at_s: float) -> None:
        """Wait until a time (monotonic s), a signal or a key."""
        fds = [self._read, *([self._keys] if self._keys is not None else [])]
        ready, _, _ = select.select(fds, (), (), max(at_s - time.monotonic(), 0.0))
        if self._read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 512)
        if self._keys in ready and self._keys is not None:
            try:
                pressed = os.read(self._keys, 64)
            except OSError:
                pressed = b""
            self.quit = not pressed or any(key in QUIT for key in pressed)

    def _resize(self, *_: object) -> None:
        self.resized = True


def _exit_by_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _find_foreground_input() -> int | None:
    """Return standard input if it is a terminal and this process is in its foreground."""
    try:
        fd = sys.stdin.fileno()
        return fd if os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):
        return None


class TerminalScreen:
    """Draw on the whole terminal in a `with` block; screen and cursor are restored however it ends."""

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console

        self.file = file
        self._console = Console(file=file, highlight=False, markup=False, emoji=False)
        self._last = (0, 0)

    def __enter__(self) -> Self:
        """Switch to the alternate screen."""
        self._write(ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the screen."""
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            self._write(LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """Return columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self.file.fileno())
        except (OSError, ValueError):
            return USUAL_SIZE
        return columns or USUAL_SIZE[0], lines or USUAL_SIZE[1]

    def draw(self, lines: Sequence[Text], size: tuple[int, int]) -> None:
        """Draw lines that fit, in one write. Raises OSError if the terminal is gone."""
        from rich.console import ConsoleDimensions
        from rich.text import Text

        self._console.size = ConsoleDimensions(*size)
        with self._console.capture() as drawn:
            self._console.print(Text("\n").join(lines), no_wrap=True, crop=True, overflow="crop")
        # Clear lines before they are written: after a full line, clearing would remove its last letter.
        shown = [f"{CLEAR_LINE}{line}" for line in drawn.get().rstrip("\n").split("\n")]
        shown += [CLEAR_REST] if len(shown) < size[1] else []
        start = HOME if size == self._last else CLEAR + HOME
        self._last = size
        self._write(start + "\r\n".join(shown))

    def _write(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()


def can_draw_screen(file: TextIO) -> bool:
    """Return whether a file is a terminal with a whole screen."""
    try:
        return file.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    except ValueError:
        return False


def can_write_unicode(file: TextIO) -> bool:
    """Return whether a file takes characters outside ASCII."""
    return (getattr(file, "encoding", None) or "").lower().replace("-", "") in ("utf8", "utf16")
