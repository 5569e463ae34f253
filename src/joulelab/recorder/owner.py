"""Notice the end of the process that a recording belongs to."""

from __future__ import annotations

import os
import select

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.process_identity import read_start_ticks


class Owner:
    """Watch a process by a pidfd; on kernels without pidfds, check its pid and start time twice a second.

    The parent-death signal depends on one thread of the parent, and forked workers keep our input open. `alive_ns` is
    the last time at which it was seen to be alive: it ended after that.
    """

    def __init__(self, pid: int, ticks: int | None = None) -> None:
        self.pid = pid
        self.alive_ns = 0
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
        """Return the longest time (ns) between two checks: the end of a killed run is known as well as that.

        A pidfd wakes the poll at once; but on a busy machine readings go on until this process runs.
        """
        return NS // 10 if self.fds else NS // 2

    def ended(self) -> bool:
        """Return whether the owner has ended; note the time if it has not."""
        now = monotonic_ns()
        if self.fds:
            has_ended = bool(select.select(self.fds, (), (), 0)[0])
        else:
            has_ended = read_start_ticks(self.pid) != self._ticks
        if not has_ended:
            self.alive_ns = now
        return has_ended
