"""Start a child process that takes commands and answers in JSON lines: the recorder, a Slurm step, a witness.

This module imports almost nothing, because `joulelab run` starts the recorder before it loads anything else.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from joulelab.core.spawn import add_import_path, move_above_standard
from joulelab.recorder.signals import REPORTED
from joulelab.store.safe_files import open_append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

KILL_S = 1.0


class ChildProcess:
    """Own a child process and the pipes to its standard input and output; its errors go to a log.

    `fds` become readable when the child answers or ends. No call waits for it without a time limit. It can notice
    the end of this process in any case, because its standard input is closed then.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        log: str | os.PathLike[str] = os.devnull,
        **spawn_options: Any,
    ) -> None:
        """Start the command with these options of posix_spawn(). Raises OSError."""
        self.status: int | None = None
        self.is_silent = False  # its output has ended
        self._unsent = b""
        self._received = b""
        opened: list[int] = []
        try:
            opened += (*os.pipe(), *os.pipe())
            opened.append(_open_log(log))
            opened = [move_above_standard(fd) for fd in opened]
            reader, self._input, self._output, writer, errors = opened
            actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((reader, writer, errors))]
            self.pid = os.posix_spawn(command[0], list(command), environ, file_actions=actions, **spawn_options)
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        for fd in (reader, writer, errors):
            os.close(fd)
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._end = -1
        with contextlib.suppress(OSError, AttributeError):  # an old kernel: the end of the output shows its end
            self._end = os.pidfd_open(self.pid)

    @property
    def fds(self) -> list[int]:
        """Return the file descriptors to poll."""
        output = [] if self.is_silent else [self._output]
        return [fd for fd in (*output, self._end) if fd >= 0]

    @property
    def is_behind(self) -> bool:
        """Return whether the child needs attention soon even if nothing becomes readable."""
        return bool(self._unsent) or (self.is_silent and self._end < 0)

    def send(self, message: Mapping[str, Any], *, within_s: float = 0.0) -> None:
        """Send one line, waiting at most `within_s` for room in the pipe; `flush()` sends the rest."""
        import json

        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()
        until = time.monotonic() + within_s
        while self._unsent and (left := until - time.monotonic()) > 0:
            select.select([], [self._input], [], left)
            self.flush()

    def flush(self) -> None:
        """Send the lines that are not sent yet, as far as there is room in the pipe."""
        try:
            while self._unsent and self._input >= 0:
                self._unsent = self._unsent[os.write(self._input, self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = b""  # it has ended, which `has_ended()` finds out

    def read_messages(self) -> list[dict[str, Any]]:
        """Return the messages since the last call; lines that are not JSON objects are left out."""
        import json

        with contextlib.suppress(BlockingIOError):
            while not self.is_silent:
                data = os.read(self._output, 65536)
                self._received += data
                self.is_silent = not data
        *lines, self._received = self._received.split(b"\n")
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    found.append(message)
        return found

    def has_ended(self) -> bool:
        """Return whether the child has ended; `status` is then its wait status, -1 if it is unknown."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # our parent ignored SIGCHLD, so the system reaped it
                pid, status = self.pid, -1
            if pid:
                self.status = status
        return self.status is not None

    def send_signal(self, number: int) -> None:
        """Send the child a signal, unless it has ended."""
        if not self.has_ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end_input(self) -> None:
        """Close the standard input of the child."""
        self.flush()
        self._input = _close(self._input)

    def kill(self) -> None:
        """Kill the child and wait a moment for its end; a child that hangs in a driver is left to the system."""
        self.send_signal(signal.SIGKILL)
        until = time.monotonic() + KILL_S
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(0.001)

    def close(self) -> None:
        """Close the pipes."""
        self.is_silent = True
        self._input, self._output, self._end = _close(self._input), _close(self._output), _close(self._end)


def start_recorder(
    environ: Mapping[str, str],
    *,
    log: str | os.PathLike[str] = os.devnull,
    warm: bool = False,
    own_group: bool = False,
) -> ChildProcess:
    """Start a recorder that waits for its plan; without one it ends when its input is closed. Raises OSError.

    `warm` lets it load the usual meters meanwhile, `own_group` gives it a process group of its own.
    """
    if not sys.executable:
        raise OSError("sys.executable is empty")
    command = [sys.executable, "-P", "-W", "ignore", "-m", "joulelab.recorder", *(["--warm"] if warm else [])]
    # Blocked until it handles them: a signal to the group in its first moments must not end it.
    options: dict[str, Any] = {"setsigmask": [*REPORTED, signal.SIGTSTP]} | ({"setpgroup": 0} if own_group else {})
    return ChildProcess(command, add_import_path(environ), log=log, **options)


def _open_log(log: str | os.PathLike[str]) -> int:
    try:
        return open_append(os.fspath(log))
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _close(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1
