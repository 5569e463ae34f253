"""Open one meter and sample it, in a thread of its own: whatever hangs or fails there stays there."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, JoulelabError, MissingDependency, Unavailable
from joulelab.instruments.hooks import HasMissing
from joulelab.recorder.plan import MeterPlan, Plan, explain_exception, open_meter
from joulelab.recorder.requests import Answer, Inbox
from joulelab.recorder.rows import RowQueue, make_row_tables
from joulelab.recorder.sampling import Event, Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.core.spec import Meter, Stream

REOPEN_FIRST_S = 1.0
# What is configured and not there now may be starting; it is waited for more patiently.
ABSENT_FIRST_S = 2.0
REOPEN_LAST_S = 60.0


def _has_energy(stream: Stream) -> bool:
    return any(c.kind == "power" or (c.kind == "counter" and c.unit == "J") for c in stream.channels)


class MeterThread:
    """Own a meter from opening to closing. `status` is None until the first attempt to open it has ended."""

    def __init__(
        self,
        plan: Plan,
        wanted: MeterPlan,
        events: list[Event],
        *,
        add_tables: Callable[[list[RowQueue]], None],
        done: Callable[[Answer], None],
    ) -> None:
        self.name = wanted.name
        self.inbox = Inbox()
        self.sampler: Sampler | None = None
        self.status: dict[str, Any] | None = None
        self.ended = False
        self._may_pass, self._first_s = True, REOPEN_FIRST_S
        self._plan, self._wanted, self._events = plan, wanted, events
        self._add_tables, self._done = add_tables, done
        self._thread = threading.Thread(target=self._main, name=wanted.name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _main(self) -> None:
        try:
            delay_s = 0.0
            while not self._open() and self._may_pass:
                delay_s = min(max(2 * delay_s, self._first_s), REOPEN_LAST_S)
                if not self._pause(delay_s):
                    break
            if self.sampler is not None:
                try:
                    self.sampler.run()
                finally:
                    with contextlib.suppress(Exception):
                        self.sampler.meter.close()
        finally:
            self.ended = True
            self._done(Answer())

    def _open(self) -> bool:
        try:
            meter = open_meter(self._plan, self._wanted)
        except Exception as error:  # noqa: BLE001 - meters of any make: what one raises is its status
            self._report(error)
            return False
        return self._prepare(meter)

    def _pause(self, delay_s: float) -> bool:
        """Wait before opening the meter again; return False where the recording ends meanwhile."""
        until = monotonic_ns() + round(delay_s * NS)
        while (request := self.inbox.sleep_until(until)) is not None:
            self._done(Answer(request))
            if request.what in ("stop", "finish"):
                return False
        return True

    def _prepare(self, meter: Meter) -> bool:
        try:
            streams = meter.streams()
            tables = make_row_tables(self.name, streams)
            missing = [asdict(m) for m in meter.missing()] if isinstance(meter, HasMissing) else []
        except Exception as error:  # noqa: BLE001
            self._report(error)
            with contextlib.suppress(Exception):
                meter.close()
            return False
        sampler = Sampler(self.name, meter, tables, self._events, sleep_until=self.inbox.sleep_until, done=self._done)
        self._add_tables(tables)
        self.sampler = sampler
        status = {"meter": self.name, "status": "open", "streams": len(streams), "what": "", "why": "", "next": ""}
        # If it is never read there is no table, and this is all that tells what it should have measured.
        self._say(status, missing=missing, scopes={s.name: s.scope for s in streams if _has_energy(s)})
        return True

    def _report(self, error: Exception) -> None:
        """Record why a meter is not open, and whether that may pass."""
        absent = isinstance(error, Unavailable)
        final = isinstance(error, (Denied, ConfigError, MissingDependency, ImportError))
        # What a run tries by itself is not there for good; what somebody configured may come yet.
        self._may_pass = not final and not (absent and self._wanted.paced)
        self._first_s = ABSENT_FIRST_S if absent else REOPEN_FIRST_S
        status = "failed"
        if isinstance(error, Denied):
            status = "denied"
        elif isinstance(error, (Unavailable, MissingDependency, ImportError)):
            status = "unavailable"
        worded = error if isinstance(error, JoulelabError) else explain_exception(error, self._wanted)
        said = {"what": worded.what, "why": worded.why or "", "next": worded.next or "", "code": worded.code}
        self._say({"meter": self.name, "status": status, "streams": 0, **said})

    def _say(self, status: dict[str, Any], **more: Any) -> None:
        before, self.status = self.status, status
        if before != status:
            self._events.append({"t": monotonic_ns(), "event": "meter", **status, **more})
        self._done(Answer())
