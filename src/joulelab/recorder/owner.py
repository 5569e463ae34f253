"""Notice the end of the process that a recording belongs to."""

from __future__ import annotations

import os
import select

from joulelab.core.clock import NS
from joulelab.core.process_identity import read_start_ticks


class Owner:
    """Watch a process by a pidfd; on kernels without pidfds, check its pid and start time twice a second.

    The parent-death signal depends on one thread of the parent, and forked workers keep our input open.
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
        """Return the longest time (ns) between two checks: a minute with a pidfd, which wakes the poll anyway."""
        return 60 * NS if self.fds else NS // 2

    def ended(self) -> bool:
        """Return whether the owner has ended."""
        if self.fds and select.select(self.fds, (), (), 0)[0]:
            return True
        return not self.fds and read_start_ticks(self.pid) != self._ticks
