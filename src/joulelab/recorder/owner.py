"""Notice the end of the process that a recording belongs to."""

from __future__ import annotations

import os
import select

from joulelab.core.clock import NS
from joulelab.core.process_identity import read_start_ticks


class Owner:
    """Watch a process by a pidfd; on kernels without, by its number and start time twice a second.

    The parent-death signal would follow a thread, and end of file alone is held up by forked workers.
    """

    def __init__(self, pid: int, ticks: int | None = None) -> None:
        self.pid = pid
        self.fds: list[int] = []
        try:
            self.fds = [os.pidfd_open(pid)]
        except ProcessLookupError:
            self._ticks: int | None = -1
            return
        except (OSError, AttributeError):
            pass
        # Compared after the pidfd is open: if the number was reused before, the start time tells.
        self._ticks = read_start_ticks(pid) if ticks is None else ticks
        if self.fds and read_start_ticks(pid) != self._ticks:
            os.close(self.fds.pop())

    @property
    def patience_ns(self) -> int:
        """Return how long the owner may go unwatched: a minute with a pidfd, which wakes the poll anyway."""
        return 60 * NS if self.fds else NS // 2

    def ended(self) -> bool:
        """Return whether the owner has ended."""
        if self.fds and select.select(self.fds, (), (), 0)[0]:
            return True
        return not self.fds and read_start_ticks(self.pid) != self._ticks
