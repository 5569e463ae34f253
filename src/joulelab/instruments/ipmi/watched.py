"""Carry commands to a BMC and remember that it did not answer: its streams then fail together, not one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import MeterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.instruments.ipmi.client import Link


class Watched:
    """Hold a link; `failed` is why the BMC gave no answer last, None where it gave one."""

    def __init__(self, link: Link, period_s: float, *, now: Callable[[], int] = monotonic_ns) -> None:
        self.where = link.where
        self._now = now
        self.failed: MeterError | None = None
        self._link, self._shared_ns = link, round(period_s * NS)
        self._failed_ns = 0
        self._told: set[str] = set()

    def raw(self, netfn: int, command: int, data: bytes, until_ns: int) -> tuple[int, bytes]:
        """Return completion code and data. Raises ReadFailed, Denied, Unavailable."""
        try:
            answer = self._link.raw(netfn, command, data, until_ns)
        except MeterError as error:
            self.failed, self._failed_ns, self._told = error, self._now(), set()
            raise
        self.failed = None
        return answer

    def close(self) -> None:
        """Let go of the BMC."""
        self._link.close()

    def begin(self, stream: str) -> None:
        """Begin a reading; raise at once what another stream has just waited for in vain, once for each stream."""
        down = self.failed
        if down is None or stream in self._told or self._now() - self._failed_ns > self._shared_ns:
            return
        self._told.add(stream)
        raise type(down)(down.what, where=down.where, why=down.why, next=down.next)

    def end(self, stream: str) -> None:
        """End a reading that failed: this stream has waited itself."""
        self._told.add(stream)
