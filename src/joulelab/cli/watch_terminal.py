"""Show something again and again: on a whole terminal that is put back afterwards, or line by line."""

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
USUAL = (80, 24)


class Waiter:
    """Wait for a time, a key or another size of the terminal. `quit` is set by q, or when the terminal is gone."""

    def __init__(self) -> None:
        self.quit = self.resized = False
        self._keys: int | None = None
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._undo: list[Any] = []

    def __enter__(self) -> Self:
        """Take signals; those that end us raise SystemExit, so that everything is put back."""
        if threading.current_thread() is threading.main_thread():
            self._woken = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._undo.append(lambda: signal.set_wakeup_fd(self._woken))
            taken: dict[signal.Signals, Any] = {
                signal.SIGTERM: _leave,
                signal.SIGHUP: _leave,
                signal.SIGWINCH: self._resize,
            }
            for number, handler in taken.items():
                if signal.getsignal(number) is not signal.SIG_IGN:
                    found = signal.signal(number, handler)
                    self._undo.append(lambda number=number, found=found: signal.signal(number, found))
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what was found."""
        for undo in reversed(self._undo):
            undo()
        os.close(self._read)
        os.close(self._write)

    @contextlib.contextmanager
    def keys(self) -> Iterator[None]:
        """Hear single keys in a block, where standard input is our terminal."""
        fd = _own_terminal()
        if fd is None:
            yield
            return
        import termios

        found = termios.tcgetattr(fd)
        single = termios.tcgetattr(fd)
        single[3] &= ~(termios.ICANON | termios.ECHO)
        single[6][termios.VSUSP] = b"\0"  # stopped, we would leave the terminal as we made it
        termios.tcsetattr(fd, termios.TCSADRAIN, single)
        self._keys = fd
        try:
            yield
        finally:
            self._keys = None
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(fd, termios.TCSADRAIN, found)

    def until(self, at_s: float) -> None:
        """Wait until a time (monotonic s), at most until something else happens."""
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


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _own_terminal() -> int | None:
    """Return standard input where it is a terminal that we are in the foreground of."""
    try:
        fd = sys.stdin.fileno()
        return fd if os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):
        return None


class Screen:
    """Own a terminal: the screen and the cursor are what they were when the block ends, however it ends."""

    def __init__(self, file: TextIO) -> None:
        from rich.console import Console

        self.file = file
        self._console = Console(file=file, highlight=False, markup=False, emoji=False)
        self._last = (0, 0)

    def __enter__(self) -> Self:
        """Take the screen."""
        self._write(ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        """Put it back."""
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            self._write(LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """Return columns and lines as they are now."""
        try:
            columns, lines = os.get_terminal_size(self.file.fileno())
        except (OSError, ValueError):
            return USUAL
        return columns or USUAL[0], lines or USUAL[1]

    def draw(self, lines: Sequence[Text], size: tuple[int, int]) -> None:
        """Draw lines that fit, in one write. Raises OSError where the terminal is gone."""
        from rich.console import ConsoleDimensions
        from rich.text import Text

        self._console.size = ConsoleDimensions(*size)
        with self._console.capture() as drawn:
            self._console.print(Text("\n").join(lines), no_wrap=True, crop=True, overflow="crop")
        # Lines are cleared before they are written: behind a full one, the last letter would be cleared.
        shown = [f"{CLEAR_LINE}{line}" for line in drawn.get().rstrip("\n").split("\n")]
        shown += [CLEAR_REST] if len(shown) < size[1] else []
        start = HOME if size == self._last else CLEAR + HOME
        self._last = size
        self._write(start + "\r\n".join(shown))

    def _write(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()


def is_screen(file: TextIO) -> bool:
    """Return whether a file is a terminal that a whole screen can be drawn on."""
    try:
        return file.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    except ValueError:
        return False


def is_unicode(file: TextIO) -> bool:
    """Return whether a file takes bars that are not ASCII."""
    return (getattr(file, "encoding", None) or "").lower().replace("-", "") in ("utf8", "utf16")
