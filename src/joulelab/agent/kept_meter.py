"""Keep one meter open for as long as the agent runs: what is not there yet, or was lost, is tried again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.recorder.meter_thread import MeterThread
from joulelab.recorder.requests import Request

if TYPE_CHECKING:
    from collections import deque

    from joulelab.recorder.plan import MeterPlan, Plan
    from joulelab.recorder.rows import RowQueue
    from joulelab.recorder.sampling import Event

# A meter of which every stream fails for so long is opened anew; what refused to open is asked again after so long.
ANEW_NS = 60 * NS
LAST_NS = 600 * NS


class Kept:
    """Own the thread of one meter, and the next one after it; `tables` takes what the threads give."""

    def __init__(
        self, plan: Plan, wanted: MeterPlan, events: list[Event], tables: deque[tuple[str, list[RowQueue]]]
    ) -> None:
        self.name = wanted.name
        self.wanted = wanted
        self.opened = 0
        self._plan, self._events, self._tables = plan, events, tables
        self._delay_ns, self._due_ns, self._failing_ns = ANEW_NS, 0, 0
        self._stopping = False
        self.thread = self._started()

    @property
    def status(self) -> dict[str, Any]:
        """Return what the last attempt to open it said; empty before the first has ended."""
        return self.thread.status or {}

    @property
    def is_expected(self) -> bool:
        """Return whether it should give readings: it is configured, or there and refuses, or was open before."""
        return not self.wanted.paced or self.opened > 0 or self.status.get("status") in ("open", "denied", "failed")

    def look(self, now_ns: int) -> None:
        """Open it anew where that may help; called about once a second."""
        if self.thread.ended:
            self._due_ns = self._due_ns or now_ns + (0 if self._stopping else self._delay_ns)
            if now_ns >= self._due_ns:
                self._delay_ns = min(2 * self._delay_ns, LAST_NS)
                self._due_ns, self._failing_ns, self._stopping = 0, 0, False
                self.thread = self._started()
            return
        sampler = self.thread.sampler
        if sampler is None or self._stopping:
            return
        failing = bool(sampler.readings) and all(r.retry_ns for r in sampler.readings)
        self._failing_ns = (self._failing_ns or now_ns) if failing else 0
        if not failing:
            self._delay_ns = ANEW_NS
        elif now_ns - self._failing_ns >= self._delay_ns:
            self._stopping = True
            self.thread.inbox.put(Request("stop"))

    def stop(self) -> None:
        """Ask it to close; `thread.ended` tells when it has."""
        self.thread.inbox.put(Request("stop"))

    def _started(self) -> MeterThread:
        thread = MeterThread(
            self._plan, self.wanted, self._events, add_tables=self._add_tables, done=lambda _answer: None
        )
        thread.start()
        return thread

    def _add_tables(self, tables: list[RowQueue]) -> None:
        self.opened += 1
        self._tables.append((self.name, tables))
