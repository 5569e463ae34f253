"""Start the recorder as a process, send it commands and hear what it says, without ever waiting for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import RecorderError
from joulelab.run.spawn import Spawned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KILL_S = 1.0
PLAN_S = 5.0
PIPE = 4096  # what a pipe that select() calls writable takes without fail


class RecorderProcess:
    """Own one recorder process. `fds` become readable when it says something or ends."""

    def __init__(
        self, plan: Mapping[str, Any], environ: Mapping[str, str], log: Path, spawned: Spawned | None = None
    ) -> None:
        """Start it, unless one was `spawned` already, and send the plan; raise RecorderError where that fails."""
        self.status: int | None = None
        self._input = b""
        try:
            process = spawned or Spawned(environ, log=log)
        except OSError as error:
            raise RecorderError("the recorder cannot be started", why=error.strerror or str(error)) from error
        self.pid, self._commands, self._said = process.pid, process.commands, process.said
        self.fds = [self._said]
        with contextlib.suppress(OSError, AttributeError):  # an old kernel: the end of the pipe has to do
            self.fds.append(os.pidfd_open(self.pid))
        self._send_plan({**plan, "log": str(log)})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; a recorder that does not listen any more is noticed by its end."""
        with contextlib.suppress(OSError):
            os.write(self._commands, json.dumps(message).encode() + b"\n")

    def _send_plan(self, plan: Mapping[str, Any]) -> None:
        """Send the plan; that of hundreds of meters does not fit into the pipe at once."""
        data = memoryview(json.dumps(plan).encode() + b"\n")
        until = time.monotonic() + PLAN_S
        with contextlib.suppress(BrokenPipeError):  # it is gone, which is noticed elsewhere
            while data and (left := until - time.monotonic()) > 0:
                if select.select([], [self._commands], [], left)[1]:
                    data = data[os.write(self._commands, data[:PIPE]) :]

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
