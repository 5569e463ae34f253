"""Keep a witness in the process group: what pends there was sent to the whole group."""

from __future__ import annotations

import contextlib
import os
import signal

from joulelab.core.process import is_pending
from joulelab.recorder.signals import REPORTED

MASK = (*REPORTED, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# It reads a pipe that nobody writes to: it ends with us, however we end.
COMMAND = ("sh", "-c", "read _", "joulelab-witness")


class Witness:
    """Own a process that does nothing and takes no signal; it answers where there is no recorder to ask."""

    def __init__(self) -> None:
        self.pid = 0
        self._pipe = -1

    def renew(self) -> None:
        """Start it, or replace it by one to which nothing was sent yet; without one, `saw` is always False."""
        old, pipe = self.pid, self._pipe
        try:
            self.pid, self._pipe = _spawn()
        except OSError:
            self.pid, self._pipe = 0, -1
        _end(old, pipe)

    def saw(self, number: int) -> bool:
        """Return whether a signal was sent to the group since the witness was started."""
        return bool(self.pid) and is_pending(self.pid, number)

    def close(self) -> None:
        """End it."""
        _end(self.pid, self._pipe)
        self.pid, self._pipe = 0, -1


def _spawn() -> tuple[int, int]:
    reader, writer = os.pipe()
    try:
        # Numbers below 3 may be closed in us, and then be the pipe's: 0 is set first and from wherever it is.
        actions = [
            (os.POSIX_SPAWN_DUP2, reader, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        pid = os.posix_spawn("/bin/sh", COMMAND, {}, file_actions=actions, setsigmask=MASK)
    except OSError:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    return pid, writer


def _end(pid: int, pipe: int) -> None:
    if pid:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(pipe)
