"""Write rows and events to the disk in one thread, survive a full disk, and watch for meters that do not answer."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import StoreError, WriteFailed
from joulelab.store.journal import HeaderFields, JournalWriter, make_journal_path
from joulelab.store.safe_files import open_append

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from joulelab.recorder.rows import RowQueue
    from joulelab.recorder.sampling import Event, Reading, Sampler

# Rows are in their file within half a second. A sync guards against a power loss; one each second would cost an eighth
# of the CPU of a recorder of eight GPUs.
WRITE_NS = NS // 2
SYNC_NS = 5 * NS
CHUNK = 1 << 20
EVENTS_LIMIT = 4 << 20
# What an event is and of which meter: words of joulelab and of the configuration, by which events are found again.
NAMES = ("is", "event", "meter", "stream", "status", "code")


class Writer:
    """Write tables and events of one segment; while the disk is full, rows wait in memory, up to `limit` bytes."""

    def __init__(
        self,
        folder: Path,
        header: Mapping[str, Any],
        events: list[Event],
        *,
        limit: int = 64 << 20,
        hidden: Sequence[str] = (),
        now: Callable[[], int] = monotonic_ns,
        open_journal: Callable[[Path, HeaderFields, Any], JournalWriter] = JournalWriter,
    ) -> None:
        self.folder = folder
        self.header = header
        self.events = events
        self.limit = limit
        self._hidden = tuple(sorted(filter(None, hidden), key=len, reverse=True))
        self.tables: list[RowQueue] = []
        self._now, self._open_journal = now, open_journal
        self._journals: dict[RowQueue, JournalWriter] = {}
        self._unsynced: set[RowQueue] = set()
        self._events_path = folder / f"events.{header['segment']}.jsonl"
        self._events_fd = -1
        self._lines = bytearray()
        self._lines_unsynced = False
        self._error: str | None = None
        self._dropped_before = 0
        self._synced_ns = 0

    def line(self, event: Event) -> bytes:
        """Return an event or message as one line, without secrets that a meter may have reported."""
        told = _told(event, self._hidden) if self._hidden else event
        plain = json.dumps(told, separators=(",", ":"), default=lambda value: _cleaned(str(value), self._hidden))
        return plain.encode() + b"\n"

    @property
    def dropped(self) -> int:
        """Return how many rows were lost to a full disk."""
        return sum(t.dropped for t in self.tables)

    @property
    def waiting(self) -> int:
        """Return how many rows wait for the disk."""
        return sum(len(t.backlog) // t.row_bytes for t in self.tables)

    def write(self, *, sync: bool = False) -> None:
        """Write everything that was sampled since the last time; sync every five seconds, or now."""
        error = self._write_rows()
        now = self._now()
        sync = sync or now - self._synced_ns >= SYNC_NS
        if sync:
            self._synced_ns = now
            error = self._sync() or error
        self._tell(error, now)
        self._write_events(sync)

    def _tell(self, error: str | None, now: int) -> None:
        before, self._error = self._error, error
        if error is not None and before is None:
            self._dropped_before = self.dropped
            self.events.append({"t": now, "event": "disk", "error": error, "dropped_rows": 0})
        elif error is None and before is not None:
            dropped = self.dropped - self._dropped_before
            if dropped:
                self.events.append({"t": now, "event": "disk", "error": before, "dropped_rows": dropped})
            self.events.append({"t": now, "event": "disk-end", "dropped_rows": dropped})

    def _write_rows(self) -> str | None:
        error: str | None = None
        size = 0
        for table in self.tables:
            if table.collect():
                try:
                    self._append(table)
                except StoreError as problem:
                    error = str(problem)
            size += len(table.backlog)
        while size > self.limit:
            fullest = max(self.tables, key=lambda t: len(t.backlog))
            size -= fullest.drop_oldest(min(size - self.limit, len(fullest.backlog))) * fullest.row_bytes
        return error

    def _append(self, table: RowQueue) -> None:
        journal = self._journals.get(table)
        if journal is None:
            fields: HeaderFields = {"meter": table.meter, "table": table.name, **self.header}  # type: ignore[typeddict-item]
            path = make_journal_path(self.folder, table.meter, table.name, self.header["segment"])
            journal = self._journals[table] = self._open_journal(path, fields, table.streams)
        step = CHUNK - CHUNK % table.row_bytes
        self._unsynced.add(table)
        while table.backlog:
            part = bytes(table.backlog[:step])
            try:
                journal.append_rows(part)
            except WriteFailed as problem:
                del table.backlog[: problem.rows_written * table.row_bytes]
                raise
            del table.backlog[: len(part)]

    def _sync(self) -> str | None:
        error: str | None = None
        for table in list(self._unsynced):
            try:
                if table in self._journals:
                    self._journals[table].sync()
                self._unsynced.discard(table)
            except StoreError as problem:
                error = str(problem)
        return error

    def _write_events(self, sync: bool) -> None:
        events = self.events
        count = len(events)
        if count:
            if len(self._lines) < EVENTS_LIMIT:
                self._lines += b"".join(map(self.line, events[:count]))
            del events[:count]
        with contextlib.suppress(OSError):
            if self._events_fd < 0:
                self._events_fd = open_append(self._events_path)
            while self._lines:
                # After a short write the rest follows when there is room: no line is lost or torn for good.
                del self._lines[: os.write(self._events_fd, self._lines)]
                self._lines_unsynced = True
            if self._lines_unsynced and sync:
                os.fdatasync(self._events_fd)
                self._lines_unsynced = False

    def close(self) -> None:
        """Write and sync the remaining rows, and close all files."""
        self.write(sync=True)
        if self._error is not None:
            lost = self.dropped - self._dropped_before + self.waiting
            self.events.append({"t": self._now(), "event": "disk", "error": self._error, "dropped_rows": lost})
            self._write_events(sync=True)
        for journal in self._journals.values():
            with contextlib.suppress(StoreError):
                journal.close()
        self._journals.clear()
        if self._events_fd >= 0:
            fd, self._events_fd = self._events_fd, -1
            os.close(fd)


def _told(event: Event, hidden: Sequence[str]) -> Event:
    """Return an event, or a message with `meters`, without secrets; keys stay unchanged."""
    clean = {k: v if k in NAMES else _cleaned(v, hidden) for k, v in event.items() if k != "meters"}
    return clean | ({"meters": [_told(item, hidden) for item in event["meters"]]} if "meters" in event else {})


def _cleaned(data: Any, hidden: Sequence[str]) -> Any:
    """Return plain data with secrets taken out of every text in it."""
    if isinstance(data, dict):
        return {k: _cleaned(v, hidden) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [_cleaned(item, hidden) for item in data]
    if isinstance(data, str):
        for secret in hidden:
            data = data.replace(secret, "***")
    return data


class Watchdog:
    """Report meters whose reading has not returned for five periods, at least `least_s`, and when it returns."""

    def __init__(self, events: list[Event], *, least_s: float = 2.0, now: Callable[[], int] = monotonic_ns) -> None:
        self.events = events
        self._least_ns = round(least_s * NS)
        self._now = now
        self._stuck: dict[Sampler, tuple[int, Reading]] = {}

    def look(self, samplers: Iterable[Sampler]) -> None:
        """Report each sampler whose current reading takes longer than its period allows."""
        now = self._now()
        for sampler in samplers:
            since, reading = sampler.busy_ns, sampler.busy
            known = self._stuck.get(sampler)
            if known is not None and known[0] != since:
                del self._stuck[sampler]
                self._end(sampler, *known)
            elif known is not None or not since or reading is None:
                continue
            elif now - since > max(5 * sampler.period_ns, self._least_ns):
                self._stuck[sampler] = (since, reading)
                self._begin(sampler, reading.stream.name, since, now)

    def _begin(self, sampler: Sampler, stream: str, since: int, now: int) -> None:
        where = {"meter": sampler.name, "stream": stream, "from": since}
        self.events.append({"t": now, "event": "stuck", **where})
        reason = f"no answer for {(now - since) / NS:.1f} s"
        self.events.append({"t": now, "event": "gap", **where, "reason": reason, "error": "Stuck"})

    def _end(self, sampler: Sampler, since: int, reading: Reading) -> None:
        if not reading.retry_ns:  # else it failed in the end: the sampler tells when that gap is over
            where = {"meter": sampler.name, "stream": reading.stream.name, "from": since}
            self.events.append({"t": self._now(), "event": "gap-end", **where, "to": reading.good_ns})
