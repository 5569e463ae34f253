"""Start the recorder as a process, send it commands and hear what it says, without ever waiting for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joulelab
from joulelab.core.errors import RecorderError
from joulelab.recorder.signals import REPORTED

if TYPE_CHECKING:
    from collections.abc import Mapping

KILL_S = 1.0


class RecorderProcess:
    """Own one recorder process. `fds` become readable when it says something or ends."""

    def __init__(self, plan: Mapping[str, Any], environ: Mapping[str, str], log: Path) -> None:
        """Start it and send the plan; raise RecorderError where it cannot be started."""
        self.status: int | None = None
        self._input = b""
        if not sys.executable:
            raise RecorderError("there is no Python to start the recorder with", why="sys.executable is empty")
        command = [sys.executable, "-P", "-W", "ignore", "-m", "joulelab.recorder"]
        try:
            self.pid, self._commands, self._said = _spawn(command, _environment(environ), log)
        except OSError as error:
            raise RecorderError("the recorder cannot be started", why=error.strerror) from error
        self.fds = [self._said]
        with contextlib.suppress(OSError, AttributeError):  # an old kernel: the end of the pipe has to do
            self.fds.append(os.pidfd_open(self.pid))
        self.send(plan)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; a recorder that does not listen any more is noticed by its end."""
        with contextlib.suppress(OSError):
            os.write(self._commands, json.dumps(message).encode() + b"\n")

    def messages(self) -> list[dict[str, Any]]:
        """Return what it has said since the last call."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._said, 65536):
                self._input += data
        *lines, self._input = self._input.split(b"\n")
        said = []
        for line in lines:
            with contextlib.suppress(ValueError):
                said.append(json.loads(line))
        return said

    def ended(self) -> bool:
        """Return whether it has ended; then `status` is its wait status, -1 where somebody else took it."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, -1
            if pid:
                self.status = status
        return self.status is not None

    def kill(self) -> None:
        """End it at once."""
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            until = time.monotonic() + KILL_S
            # A process that hangs in a driver cannot be killed: it is left to the system after a while.
            while not self.ended() and time.monotonic() < until:
                time.sleep(0.001)

    def close(self) -> None:
        """Close the pipes."""
        for fd in (self._commands, *self.fds):
            os.close(fd)
        self.fds = []


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a recorder finds the joulelab that started it, wherever that was found."""
    root = Path(joulelab.__file__).resolve().parent.parent
    if root.name in ("site-packages", "dist-packages"):
        return dict(environ)
    paths = [p for p in environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return {**environ, "PYTHONPATH": os.pathsep.join([*paths, str(root)])}


def _spawn(command: list[str], environ: Mapping[str, str], log: Path) -> tuple[int, int, int]:
    """Start a process with pipes as 0 and 1 and a log as 2; return its pid, the commands' and the status' end."""
    opened: list[int] = []
    try:
        opened += os.pipe()
        opened += os.pipe()
        try:
            opened.append(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
        except OSError:
            opened.append(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        # Where 0, 1 or 2 were closed, the pipes took their place: move them out of the way.
        opened = [_above_standard(fd) for fd in opened]
        commands_out, commands, said, said_in, errors = opened
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((commands_out, said_in, errors))]
        # Blocked until it handles them: a signal to the group in its first moments must not end it.
        mask = [*REPORTED, signal.SIGTSTP]
        pid = os.posix_spawn(command[0], command, environ, file_actions=actions, setsigmask=mask)
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    for fd in (commands_out, said_in, errors):
        os.close(fd)
    os.set_blocking(commands, False)
    os.set_blocking(said, False)
    return pid, commands, said


def _above_standard(fd: int) -> int:
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved
