"""Start a keeper's process, and know it beyond its number."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING

from joulelab.control.leftover import DEFAULT, STATE
from joulelab.core.errors import JoulelabError
from joulelab.core.process import start_ticks
from joulelab.core.spawn import above_standard, findable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# These ask a keeper to put back and end; they wait until it has its handlers.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def readable(fds: Sequence[int], within_s: float) -> bool:
    """Return whether one of some files becomes readable in time. `select` would fail in a program with many files."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


class Watched:
    """Watch a process by a pidfd; on kernels without, by its number and start time. `fds` are readable at its end."""

    def __init__(self, pid: int, ticks: int | None = None, *, opened: Callable[[int], int] = os.pidfd_open) -> None:
        self.pid = pid
        self.fds: list[int] = []
        with contextlib.suppress(OSError):
            self.fds = [opened(pid)]
        # Compared after the pidfd is open: if the number was reused before, the start time tells.
        self._ticks = start_ticks(pid) if ticks is None else ticks
        if self.fds and start_ticks(pid) != self._ticks:
            self.close()

    def ended(self) -> bool:
        """Return whether the process has ended."""
        if self.fds:
            return readable(self.fds, 0.0)
        return self._ticks is None or start_ticks(self.pid) != self._ticks

    def close(self) -> None:
        """Close the pidfd; twice is harmless."""
        while self.fds:
            os.close(self.fds.pop())


def start(environ: Mapping[str, str]) -> tuple[socket.socket, int]:
    """Start a keeper for this process; return our end of its socket, and its pid. Raises JoulelabError."""
    command = [sys.executable, "-P", "-W", "ignore", "-m", "joulelab.control", str(os.getpid()), str(start_ticks())]
    opened: list[int] = []
    try:
        opened = [end.detach() for end in socket.socketpair()]
        opened.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        opened = [above_standard(fd) for fd in opened]
        ours, theirs, null = opened
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((theirs, null, null))]
        pid = os.posix_spawn(command[0], command, _environment(environ), file_actions=actions, setsigmask=ENDING)
    except OSError as error:
        for fd in opened:
            os.close(fd)
        raise JoulelabError("the keeper of caps cannot be started", where="caps", why=str(error)) from error
    os.close(theirs)
    os.close(null)
    return socket.socket(fileno=ours), pid


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a keeper finds the joulelab that started it, and the same state."""
    return findable({**environ, STATE: os.path.abspath(environ.get(STATE) or DEFAULT)})  # noqa: PTH100
