"""Let simulated jobs run in virtual time: what they wait for comes at once, and what happens meanwhile is planned."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.twin.job import JobStop

if TYPE_CHECKING:
    from collections.abc import Callable

START = 50 * NS


class VirtualStop(JobStop):
    """A clock (`now`, ns) that moves when a job waits; `plan` does something at a time, such as a signal.

    `late_ns` holds by how much a busy machine makes each wait longer, in turn.
    """

    def __init__(self, *late_ns: int, t_ns: int = START) -> None:
        super().__init__()
        self.t_ns = t_ns
        self._late_ns = itertools.cycle(late_ns or (0,))
        self._planned: list[tuple[int, Callable[[], object]]] = []

    def now(self) -> int:
        return self.t_ns

    def plan(self, at_ns: int, action: Callable[[], object]) -> None:
        self._planned.append((at_ns, action))
        self._planned.sort(key=lambda item: item[0])

    def wait_until(self, t_ns: int) -> bool:
        end_ns = max(t_ns + next(self._late_ns), self.t_ns)
        while self._planned and self._planned[0][0] <= end_ns and self.signal is None:
            at_ns, action = self._planned.pop(0)
            self.t_ns = max(at_ns, self.t_ns)
            action()
        if self.signal is None:
            self.t_ns = end_ns
        return self.signal is not None
