"""Read one meter at fixed times: late readings are counted, missed ones are skipped, failed ones are gaps.

The loop touches neither disk nor locks: rows are packed into lists (`rows.Table`), events appended to one.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.instruments.hooks import FollowsWorkload, HasEvents
from joulelab.recorder.requests import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.core.spec import Meter, Stream
    from joulelab.recorder.requests import Request
    from joulelab.recorder.rows import RowQueue

Event = dict[str, Any]

FAST_POLL_NS = 2_000_000
BACKOFF_FIRST_NS = NS // 10
BACKOFF_LAST_NS = 10 * NS
# A counter that steps or is read more slowly than this is not waited for at the start, and never polled quickly.
FAST_S = 1.0
# A counter that has not stepped for so many of its own periods, and so long, stands still: it is not waited for.
STILL_PERIODS, STILL_S = 4, 0.1
# Rows of one table that may wait for the writer thread.
ROWS_LIMIT = 400_000


class Reading:
    """Hold the state of one stream between readings."""

    __slots__ = (
        "append", "backoff_ns", "base", "counters", "error", "fast", "gap_ns", "good_ns", "index", "pack", "poll_ns",
        "retry_ns", "still_ns", "stream", "update_s",
    )  # fmt: skip

    def __init__(self, stream: Stream, index: int, table: RowQueue) -> None:
        energies = [i for i, c in enumerate(stream.channels) if c.kind == "counter" and c.unit == "J"]
        powers = [i for i, c in enumerate(stream.channels) if c.kind == "power"]
        self.stream = stream
        self.index = index
        self.pack = table.pack
        self.append = table.rows.append
        self.counters = energies
        # How often the values that matter change, None where none does; unknown is taken as fast.
        self.update_s = max((stream.channels[i].update_s or 0.0 for i in energies or powers), default=None)
        self.fast = self.update_s is not None and max(self.update_s, stream.period_s) <= FAST_S
        self.good_ns = 0
        self.gap_ns = 0
        self.error = ""
        self.retry_ns = 0
        self.backoff_ns = 0
        self.base: list[float] = []
        self.poll_ns = self.still_ns = 0

    def stepped(self, values: Sequence[float]) -> bool:
        """Return whether every readable counter has changed since the base was taken."""
        return all(values[i] != b for i, b in zip(self.counters, self.base, strict=True) if not isnan(b))


class Group:
    """Hold the streams that are read at the same deadlines."""

    __slots__ = ("due_ns", "instrument", "period_ns", "readings", "rows", "slack_ns")

    def __init__(self, period_ns: int, instrument: bool, due_ns: int) -> None:
        self.period_ns = period_ns
        self.instrument = instrument
        self.due_ns = due_ns
        self.slack_ns = max(period_ns // 10, 1_000_000)
        self.readings: list[Reading] = []
        self.rows: list[bytes] = []


class Sampler:
    """Read the streams of one meter from one thread.

    `now` and `sleep_until` are the clock: tests run the loop in virtual time. `busy_ns` and `busy` tell a watchdog in
    another thread since when which stream is being read (0 = not reading).
    """

    def __init__(
        self,
        name: str,
        meter: Meter,
        tables: Sequence[RowQueue],
        events: list[Event],
        *,
        now: Callable[[], int] = monotonic_ns,
        sleep_until: Callable[[int], Request | None],
        done: Callable[[Answer], None],
    ) -> None:
        self.name = name
        self.meter = meter
        self.tables = tuple(tables)
        self.events = events
        self.ticks = self.late = self.missed = self.worst_ns = 0
        self.busy_ns = 0
        self.busy: Reading | None = None
        self._now, self._sleep_until, self._done = now, sleep_until, done
        self._meter_events = meter.events if isinstance(meter, HasEvents) else None
        start = now()
        groups: dict[tuple[int, bool], Group] = {}
        for table in tables:
            for index, stream in enumerate(table.streams):
                key = (max(round(stream.period_s * NS), 1_000_000), stream.pace == "instrument")
                group = groups.setdefault(key, Group(*key, start))
                group.readings.append(Reading(stream, index, table))
                group.rows = table.rows
        self.groups = [groups[key] for key in sorted(groups)]
        self.readings = [r for g in self.groups for r in g.readings]
        self._polled: list[Reading] = []
        self._poll_ns = 0
        self._complete = True
        self._request: Request | None = None

    @property
    def period_ns(self) -> int:
        """Return the shortest period."""
        return self.groups[0].period_ns if self.groups else NS

    def take_counts(self) -> dict[str, int]:
        """Return the numbers of readings due, late and missed, and the longest delay (ns), since the last call."""
        counts = {"count": self.late, "missed": self.missed, "worst_ns": self.worst_ns, "ticks": self.ticks}
        self.ticks = self.late = self.missed = self.worst_ns = 0
        return counts

    def run(self) -> None:
        """Read until asked to stop."""
        while True:
            group = min(self.groups, key=_due, default=None)
            wake = group.due_ns if group else self._now() + 60 * NS
            request = self._sleep_until(min(wake, self._poll_ns) if self._request else wake)
            if request is not None and not self._accept(request):
                return
            now = self._now()
            if self._request is not None and now >= self._poll_ns and not self._poll(now):
                return
            if group is not None and now >= group.due_ns:
                self._tick(group, now)

    def _tick(self, group: Group, now: int) -> None:
        self.ticks += 1
        behind = now - group.due_ns
        period = group.period_ns
        if not group.instrument:
            if behind >= period:
                self.missed += behind // period
                group.due_ns += behind // period * period
            if behind > group.slack_ns:
                self.late += 1
                self.worst_ns = max(self.worst_ns, behind)
        if len(group.rows) > ROWS_LIMIT:
            self.missed += 1  # a disk that hangs for hours: what was read is kept, memory is not without end
        else:
            for reading in group.readings:
                if not reading.retry_ns or now >= reading.retry_ns:
                    self._read(reading)
        self.busy_ns = 0
        if self._meter_events is not None:
            self._drain(self._meter_events)
        if group.instrument:
            # The instrument paces its readings itself; this only bounds one that answers at once.
            group.due_ns = now + period // 2
            return
        group.due_ns += period
        behind = self._now() - group.due_ns
        if behind >= 0:
            skipped = behind // period + 1
            self.missed += skipped
            group.due_ns += skipped * period

    def _read(self, reading: Reading) -> Sequence[float] | None:
        t0 = self._now()
        self.busy = reading
        self.busy_ns = t0
        try:
            values = self.meter.read(reading.stream)
            t1 = self._now()
            reading.append(reading.pack(reading.index, t0, t1, *values))
        except Exception as error:  # noqa: BLE001 - whatever a meter does wrong is a gap, not the end of the recording
            self._failed(reading, t0, error)
            return None
        if reading.retry_ns:
            self._recovered(reading, t0)
        reading.good_ns = t1
        return values

    def _failed(self, reading: Reading, t0: int, error: Exception) -> None:
        kind = type(error).__name__
        if not reading.retry_ns:
            reading.gap_ns = reading.good_ns or t0
            reading.backoff_ns = BACKOFF_FIRST_NS
        else:
            reading.backoff_ns = min(2 * reading.backoff_ns, BACKOFF_LAST_NS)
        if not reading.retry_ns or kind != reading.error:
            event = {"t": t0, "event": "gap", "meter": self.name, "stream": reading.stream.name}
            self.events.append(event | {"reason": str(error) or kind, "error": kind, "from": reading.gap_ns})
        reading.error = kind
        reading.retry_ns = t0 + reading.backoff_ns

    def _recovered(self, reading: Reading, t0: int) -> None:
        event = {"t": t0, "event": "gap-end", "meter": self.name, "stream": reading.stream.name}
        self.events.append(event | {"from": reading.gap_ns, "to": t0})
        reading.retry_ns = 0

    def _accept(self, request: Request) -> bool:
        """Begin a request; return False to stop."""
        if self._request is not None:
            self._settle(stepped=False)  # the newer request takes over
        if request.what == "stop":
            self._done(Answer(request))
            return False
        if request.what == "follow" and isinstance(self.meter, FollowsWorkload):
            self._tell_workload(self.meter, request.pid)
        self._request, self._complete = request, True
        now = self._now()
        self._polled = [r for r in self.readings if self._begin_edge(r, request, now)]
        return self._poll_again(request)

    def _begin_edge(self, reading: Reading, request: Request, now: int) -> bool:
        """Take a reading at the edge; return whether more are needed."""
        finish = request.what == "finish"
        if not (finish or reading.fast) or now < reading.retry_ns:
            return False
        values = self._read(reading)
        if values is None or reading.update_s is None:
            return False
        if finish and reading.update_s > request.tail_s:
            return False
        reading.base = [values[i] for i in reading.counters]
        if not all(map(isnan, reading.base)):
            reading.poll_ns = now
            reading.still_ns = now + round(max(STILL_PERIODS * reading.update_s, STILL_S) * NS)
            return True
        # A power covers the end only once it was updated after it; before the start any reading will do.
        reading.poll_ns = reading.still_ns = now + round(reading.update_s * NS)
        return finish

    def _poll(self, now: int) -> bool:
        """Poll the counters that have not stepped yet; return False to stop."""
        request = self._request
        assert request is not None
        waiting: list[Reading] = []
        for reading in self._polled:
            if now < reading.poll_ns:
                waiting.append(reading)
                continue
            values = self._read(reading)
            if values is None or (now >= reading.still_ns and not reading.stepped(values)):
                self._complete = False
            elif not reading.stepped(values):
                reading.poll_ns = now + (FAST_POLL_NS if reading.fast else round(reading.stream.period_s * NS))
                waiting.append(reading)
        self._polled = waiting
        return self._poll_again(request)

    def _poll_again(self, request: Request) -> bool:
        self.busy_ns = 0
        now = self._now()
        if self._polled and now < request.until_ns:
            self._poll_ns = max(min(r.poll_ns for r in self._polled), now + FAST_POLL_NS)
            return True
        self._settle(stepped=self._complete and not self._polled)
        return request.what != "finish"

    def _settle(self, *, stepped: bool) -> None:
        request, self._request, self._polled = self._request, None, []
        if request is not None:
            self._done(Answer(request, stepped))

    def _drain(self, meter_events: Callable[[], list[Event]]) -> None:
        try:
            self.events += meter_events()
        except Exception as error:  # noqa: BLE001
            self._meter_events = None
            self._tell(error)

    def _tell_workload(self, meter: FollowsWorkload, pid: int) -> None:
        try:
            meter.set_workload(pid)
        except Exception as error:  # noqa: BLE001
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}"
        self.events.append({"t": self._now(), "event": "problem", "meter": self.name, "what": what})


def _due(group: Group) -> int:
    return group.due_ns
