"""Start the recorder's process. Imports next to nothing: `joulelab run` starts it before it loads anything else."""

from __future__ import annotations

import os
import signal
import sys

from joulelab.core.spawn import add_import_path, move_above_standard
from joulelab.recorder.signals import REPORTED
from joulelab.store.safe_files import open_append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Spawned:
    """Hold a recorder process that waits for its plan: its pid, and our ends of its pipes.

    One that never gets a plan ends when the pipes are closed, at the latest with this process.
    """

    __slots__ = ("commands", "pid", "said")

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        log: str | os.PathLike[str] = os.devnull,
        warm: bool = False,
        own_group: bool = False,
    ) -> None:
        """Start it; `warm` lets it load the usual meters meanwhile, `own_group` gives it a process group of its own.

        Raises OSError where it cannot be started.
        """
        if not sys.executable:
            raise OSError("sys.executable is empty")
        command = [sys.executable, "-P", "-W", "ignore", "-m", "joulelab.recorder", *(["--warm"] if warm else [])]
        opened: list[int] = []
        try:
            opened += os.pipe()
            opened += os.pipe()
            opened.append(_open_log(log))
            opened = [move_above_standard(fd) for fd in opened]
            commands, self.commands, self.said, said, errors = opened
            actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((commands, said, errors))]
            # Blocked until it handles them: a signal to the group in its first moments must not end it.
            mask = [*REPORTED, signal.SIGTSTP]
            group: dict[str, Any] = {"setpgroup": 0} if own_group else {}
            self.pid = os.posix_spawn(
                command[0], command, add_import_path(environ), file_actions=actions, setsigmask=mask, **group
            )
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        for fd in (commands, said, errors):
            os.close(fd)
        os.set_blocking(self.commands, False)
        os.set_blocking(self.said, False)

    def dismiss(self) -> None:
        """Let it end without a plan."""
        os.close(self.commands)
        os.close(self.said)


def _open_log(log: str | os.PathLike[str]) -> int:
    try:
        return open_append(os.fspath(log))
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
