"""Read the node's meters by the recorder's own threads, and keep what a scrape shows; no scrape waits for a meter."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, Self

from joulelab.agent.job_split import JobSplit
from joulelab.agent.kept_meter import Kept
from joulelab.agent.ledger import Ledger
from joulelab.agent.traps import Board
from joulelab.agent.watched import find_place, list_sums
from joulelab.analysis.live_state import NOW_S, LiveState
from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.recorder.requests import Inbox, Request
from joulelab.store.journal import make_row_struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from struct import Struct

    from joulelab.agent.ledger import Account, Key
    from joulelab.agent.slurm_jobs import Jobs
    from joulelab.analysis.job_shares import IdleRule, JobShare
    from joulelab.analysis.live_state import CordSum, StreamState
    from joulelab.instruments.job_use import JobUseReader
    from joulelab.recorder.plan import Plan
    from joulelab.recorder.rows import RowQueue
    from joulelab.recorder.sampling import Event

TICK_NS = NS
# How long meters may take to close at the end.
CLOSE_NS = 2 * NS
# A second without a row of words from one meter: a meter that fails and returns must not fill the log.
TOLD_NS = 60 * NS
TOLD = ("meter", "gap", "stuck", "problem")


@dataclass(frozen=True, slots=True)
class Health:
    """Say how a meter is: whether all of its streams are read, when one was last (UTC s), how often it failed."""

    meter: str
    up: bool
    last_s: float | None
    errors: int
    streams: int
    silent: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold one moment of the node, for a scrape."""

    now_ns: int
    streams: list[StreamState]
    sums: list[CordSum]
    health: list[Health]
    accounts: list[Account] = field(default_factory=list)
    shares: dict[tuple[str, Key], JobShare] = field(default_factory=dict)


class Collector:
    """Read meters and jobs from the beginning of the block to its end; `tell` takes lines for the log."""

    def __init__(
        self,
        plan: Plan,
        *,
        jobs: Jobs | None = None,
        use: JobUseReader | None = None,
        idle_rule: IdleRule = "equal",
        board: Board | None = None,
        tell: Callable[[str], None] = lambda _line: None,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.plan = plan
        self._clock = clock
        self.jobs, self.board = jobs, board or Board()
        self.kept: list[Kept] = []
        self._tell = tell
        self._hidden = plan.hidden()
        self._events: list[Event] = []
        self._new: deque[tuple[str, list[RowQueue]]] = deque()
        self._tables: dict[str, list[tuple[RowQueue, Struct, list[StreamState]]]] = {}
        self._state = LiveState()
        self._errors: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._said: dict[str, str] = {}
        self._ledger = Ledger()
        self._use, self._split = use, JobSplit(max(plan.period_s, TICK_NS / NS), idle_rule)
        self._lock = threading.Lock()
        self._inboxes = {name: Inbox() for name in ("collect", "jobs")}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self.kept = [Kept(self.plan, wanted, self._events, self._new) for wanted in self.plan.all_meters()]
        loops = [("collect", self._tick)] + ([("jobs", self._look)] if self.jobs is not None else [])
        for name, work in loops:
            thread = threading.Thread(target=self._loop, args=(self._inboxes[name], work), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for inbox in self._inboxes.values():
            inbox.put(Request("stop"))
        for kept in self.kept:
            kept.stop()
        until, waiting = monotonic_ns() + CLOSE_NS, Inbox()
        while monotonic_ns() < until and not all(k.thread.ended for k in self.kept):
            waiting.sleep_until(monotonic_ns() + NS // 100)
        for thread in self._threads:
            thread.join(max(until - monotonic_ns(), NS // 10) / NS)

    def seen(self) -> Seen:
        """Return the node as it is now; takes what was read since the last time."""
        with self._lock:
            self._drain()
            now = self._clock()
            streams = list(self._state.streams.values())
            shown = [k for k in self.kept if k.is_expected]
            accounts = list(self._ledger.accounts.values())
            shares = dict(self._split.shares)
            return Seen(now, streams, list_sums(self._state), [self._health(k, now) for k in shown], accounts, shares)

    def _loop(self, inbox: Inbox, work: Callable[[], None]) -> None:
        due = monotonic_ns()
        while True:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - to the log; the next round may work
                self._tell(f"{type(error).__name__}: {error}")
            due = max(due + TICK_NS, monotonic_ns())
            if inbox.sleep_until(due) is not None:
                return

    def _look(self) -> None:
        assert self.jobs is not None
        before = self.jobs.problem
        self.jobs.look(monotonic_ns() / NS)
        if self.jobs.problem not in ("", before):
            self._tell(f"jobs: {self.jobs.problem}")
        if self._use is not None and self._split.is_due(self._clock()):
            self._divide_energy(self.jobs, self._use)
        with self._lock:
            self._split.forget_owners(self._clock())

    def _divide_energy(self, jobs: Jobs, reader: JobUseReader) -> None:
        """Give jobs and containers their part of the energy since the last time."""
        # Only a control group names the processes of a job.
        found = {number: job.cpus for number, job in jobs.now.items()} if jobs.by == "cgroup" else {}
        containers = reader.list_containers()
        if found or containers or self._split.is_open:
            use = reader.read_use(found, containers)
            with self._lock:
                self._drain()
                self._split.take(self._clock(), self._totals(), self._limits(), use, found)

    def _tick(self) -> None:
        with self._lock:
            self._drain()
            now = self._clock()
            self._state.forget(now - round(NOW_S * NS))
            for kept in self.kept:
                kept.look(now)
            if self.jobs is not None:
                self._ledger.take(now, read_utc_ns(), self._totals(), self.jobs.now)

    def _totals(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        known: list[StreamState | CordSum] = [*self._state.streams.values(), *list_sums(self._state)]
        for one in known:
            if isfinite(energy_j := one.energy_j):
                found.setdefault((find_place(one).scope, one.meter), energy_j)
        return found

    def _limits(self) -> dict[str, float]:
        """Return the power caps (W) that devices enforce, by scope."""
        found: dict[str, float] = {}
        for one in self._state.streams.values():
            for channel, value in zip(one.stream.channels, one.row, strict=False):
                if channel.name == "cap_enforced_w" and isfinite(value):
                    found[one.stream.scope] = value
        return found

    def _drain(self) -> None:
        while self._new:
            self._take_tables(*self._new.popleft())
        for tables in self._tables.values():
            for table, row, streams in tables:
                count = len(table.rows)
                rows = table.rows[:count]
                del table.rows[:count]  # one operation of the interpreter each: the meter's thread appends meanwhile
                for packed in rows:
                    index, t0, t1, *values = row.unpack(packed)
                    streams[index].add(t0, t1, values)
        count = len(self._events)
        events = self._events[:count]
        del self._events[:count]
        for event in events:
            self._hear(event)

    def _take_tables(self, meter: str, tables: list[RowQueue]) -> None:
        """Follow the streams of a meter that was opened: those that were there before go on where they were."""
        opened = []
        gone = {key for key in self._state.streams if key[0] == meter}
        for table in tables:
            streams = [self._state.add_stream(meter, stream) for stream in table.streams]
            gone -= {(meter, stream.name) for stream in table.streams}
            opened.append((table, make_row_struct(len(table.streams[0].channels)), streams))
        for key in gone:
            del self._state.streams[key]
        self._tables[meter] = opened

    def _hear(self, event: Mapping[str, Any]) -> None:
        what, meter = str(event.get("event")), str(event.get("meter", ""))
        if what in ("gap", "problem"):
            self._errors[meter] = self._errors.get(meter, 0) + 1
        if what not in TOLD:
            return
        now, line = self._clock(), _clean(_line(event), self._hidden)
        if what == "meter":  # what was lost and is tried again says the same each time
            new, self._said[meter] = self._said.get(meter) != line, line
        else:
            new = now - self._told.get(meter, -TOLD_NS) >= TOLD_NS
            self._told[meter] = now if new else self._told[meter]
        if new:
            self._tell(line)

    def _health(self, kept: Kept, now_ns: int) -> Health:
        mine = [one for (meter, _), one in self._state.streams.items() if meter == kept.name]
        silent = sum(not one.is_fresh(now_ns) for one in mine)
        last = max((one.last_ns for one in mine), default=0)
        last_s = (read_utc_ns() - (now_ns - last)) / NS if last else None
        return Health(kept.name, bool(mine) and not silent, last_s, self._errors.get(kept.name, 0), len(mine), silent)


def _line(event: Mapping[str, Any]) -> str:
    meter = event.get("meter", "")
    if event.get("event") == "meter":
        words = [str(event.get("status", "")), str(event.get("what") or "")]
        why = f" ({event['why']})" if event.get("why") else ""
        then = f"; {event['next']}" if event.get("next") else ""
        return f"{meter}: {': '.join(filter(None, words))}{why}{then}"
    told = event.get("reason") or event.get("what") or event.get("event")
    return f"{meter} {event.get('stream', '')}: {told}"


def _clean(text: str, hidden: tuple[str, ...]) -> str:
    for secret in hidden:
        text = text.replace(secret, "***")
    return text
