"""Write readings from archives: as a new run (`import_run`), or as another host of a closed run (`attach_host`).

The stamps of archives are UTC in ns. They are used as the monotonic time, with clock pairs that map it to UTC, by which
readers join an added host with the others. An added folder is prepared under another name and renamed: it is complete
or absent, of two with the same name one succeeds, and existing files are not changed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import json
import os
import re
import shutil
import struct
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import ClockPair
from joulelab.core.errors import StoreError, WriteFailed
from joulelab.core.mark_lines import make_fact_line
from joulelab.store.journal import NAME, HeaderFields, JournalWriter, make_journal_path
from joulelab.store.manifest import RESULTS
from joulelab.store.run_folder import (
    ATTACHED,
    RunState,
    create_run,
    end_run,
    find_host_dir,
    make_host_dir,
    read_run_state,
)
from joulelab.store.safe_files import replace_file, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.spec import Fetched

IMPORTED = "imported"
NO_HOST = "imported"  # the host of streams that name none, and the boot id of a clock that is UTC
BATCH_ROWS = 20_000
LARGEST_VALUE = 1e30  # in any unit; squares and sums of larger numbers do not fit into a float


@dataclass(frozen=True, slots=True)
class ImportedMeter:
    """Hold the streams of one archive, under the name of its meter."""

    meter: str
    streams: Sequence[Fetched]


@dataclass(frozen=True, slots=True)
class ImportedPhase:
    """Name a time span (UTC, ns), and the amounts of work that were done in it."""

    name: str
    start_ns: int
    end_ns: int
    work: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunImport:
    """Describe a run to be written: its parts, its time span (UTC, ns), the idle time span and phases, and labels.

    `about` goes into `run.json` as `imported`: source, file, hash. `host` is the node of streams that name none.
    `unsure_s` are the largest errors of begin and end of the time span, in both directions. `facts` are properties of
    the run that its source states.
    """

    parts: Sequence[ImportedMeter]
    start_ns: int
    end_ns: int
    about: Mapping[str, Any]
    command: Sequence[str]
    host: str = ""
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    idle: tuple[int, int] | None = None
    phases: Sequence[ImportedPhase] = ()
    version: str | None = None
    unsure_s: tuple[float, float] = (0.0, 0.0)
    facts: Mapping[str, object] = field(default_factory=dict)


def import_run(runs: Path, what: RunImport) -> Path:
    """Write a closed run folder and return its path; if that fails, nothing is left behind.

    Raises StoreError.
    """
    if not what.start_ns < what.end_ns:
        then = "give --from and --to, or more than one row"
        raise StoreError("the run would end before it starts", next=then, code="store.no-interval")
    host = what.host or _find_host(what.parts) or NO_HOST
    started = asdict(make_utc_pair(what.start_ns))
    meta = {"host": host, "command": list(what.command), "name": what.name, "labels": dict(what.labels)}
    run = create_run(runs, {**meta, "started": started, "imported": dict(what.about), "joulelab": what.version})
    try:
        _write_import(run, what, host)
        ended = {"outcome": IMPORTED, "start_ns": what.start_ns, "end_ns": what.end_ns}
        end_run(run, {**ended, "ended": asdict(make_utc_pair(what.end_ns))})
    except BaseException:
        shutil.rmtree(run, ignore_errors=True)
        raise
    return run


def name_meters(labels: Iterable[str]) -> list[str]:
    """Turn labels into unique names of meters that are valid in file names."""
    names: list[str] = []
    for label in labels:
        base = name = re.sub(r"[^A-Za-z0-9_-]+", "-", label).strip("-") or "file"
        name = base = name if NAME.fullmatch(name) else f"m{name}"
        number = 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names


def make_utc_pair(utc_ns: int) -> ClockPair:
    """Return the clock pair of a host whose monotonic time is UTC itself."""
    return ClockPair(utc_ns, utc_ns, 0, None, NO_HOST)


def _find_host(parts: Sequence[ImportedMeter]) -> str:
    """Return the host that all streams name, or the first of several."""
    return next((f.host for part in parts for f in part.streams if f.host), "")


def _write_import(run: Path, what: RunImport, host: str) -> None:
    tables: dict[tuple[str, str, str], list[Fetched]] = {}
    events: dict[str, list[dict[str, Any]]] = {host: [*_list_opening_events(what)]}
    for part in what.parts:
        for fetched in part.streams:
            there = fetched.host or host
            tables.setdefault((there, part.meter, fetched.stream.table), []).append(fetched)
            own = events.setdefault(there, [])
            own += [{**event, "meter": part.meter} for event in fetched.events]
        events[host].append({"t": what.start_ns, "event": "meter", "meter": part.meter, "status": "open"})
    for name, lines in events.items():
        folder = make_host_dir(run, name)
        clocks = [{"t": t, "event": "clock", **asdict(make_utc_pair(t))} for t in (what.start_ns, what.end_ns)]
        write_lines(folder / "events.0.jsonl", sorted([*lines, *clocks], key=lambda e: int(e["t"])))
    marks = [*_make_marks(what.phases), *([make_fact_line(what.end_ns, what.facts, 0)] if what.facts else [])]
    if marks:
        write_lines(make_host_dir(run, host) / "marks" / "imported.jsonl", marks)
    for (there, meter, table), members in tables.items():
        write_journal(make_host_dir(run, there), meter, table, members)


def _list_opening_events(what: RunImport) -> Iterator[dict[str, Any]]:
    if what.idle is not None:
        since, to = what.idle
        yield {"t": since, "event": "idle", "from": since, "to": to}
    if any(what.unsure_s):
        begin_s, end_s = what.unsure_s
        yield {"t": what.start_ns, "event": "interval-unsure", "begin_s": begin_s, "end_s": end_s}


def _make_marks(phases: Sequence[ImportedPhase]) -> list[dict[str, Any]]:
    lines = []
    for k, phase in enumerate(phases):
        identity = f"imported-{k + 1}"
        begin = {"t": phase.start_ns, "mark": "begin", "id": identity, "name": phase.name, "n": None, "labels": {}}
        lines += [{**begin, "parent": None, "thread": 0, "rank": 0}]
        lines += [{"t": phase.end_ns, "mark": "end", "id": identity}]
        if phase.work:
            done = {"phase": identity, "amounts": dict(phase.work), "count": 1, "at": [phase.end_ns], "rank": 0}
            lines += [{"t": phase.end_ns, "mark": "work", "from": phase.start_ns, **done}]
    return sorted(lines, key=lambda line: int(str(line["t"])))


def write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write events or marks, one line of JSON each. Raises WriteFailed."""
    text = "".join(json.dumps(line, separators=(",", ":"), default=str) + "\n" for line in lines)
    try:
        replace_file(path, text.encode(errors="backslashreplace"), sync=False)
    except OSError as error:
        raise WriteFailed(f"cannot write {path.name}", where=str(path.parent), error=error, rows_written=0) from error


def write_journal(folder: Path, meter: str, table: str, members: Sequence[Fetched], *, host: str | None = None) -> None:
    """Write fetched streams as one journal of a host (default: the folder's name). Raises StoreError."""
    there = folder.name if host is None else host
    header: HeaderFields = {"meter": meter, "table": table, "segment": 0, "host": there, "boot_id": NO_HOST}
    with JournalWriter(make_journal_path(folder, meter, table, 0), header, [f.stream for f in members]) as journal:
        for index, fetched in enumerate(members):
            rows = iter(fetched.rows)
            while batch := list(islice(rows, BATCH_ROWS)):
                journal.append_rows(_pack_rows(journal.row, index, batch, f"{meter} {fetched.stream.name}"))
        journal.sync()


def _pack_rows(row: struct.Struct, index: int, batch: Sequence[tuple[int, int, Sequence[float]]], where: str) -> bytes:
    if any(t1 < t0 for t0, t1, _ in batch):
        raise StoreError("a reading ends before it begins", where=where, code="store.bad-times")
    for t0, _, values in batch:
        if any(abs(value) > LARGEST_VALUE for value in values):
            at = dt.datetime.fromtimestamp(t0 // 10**9, dt.UTC).isoformat()
            what = f"{max(values, key=abs):g} at {at} is no reading"
            then = "correct or remove it in the source, and import it again"
            raise StoreError(what, where=where, why="no device has such a value", next=then, code="store.bad-value")
    try:
        return b"".join([row.pack(index, t0, t1, *values) for t0, t1, values in batch])
    except (struct.error, TypeError) as error:
        raise StoreError("a row does not fit its channels", where=where, why=str(error), code="store.bad-row") from None


def is_attached(run: Path, name: str) -> bool:
    """Return whether a run has a host folder of that name. Raises StoreError for an invalid name."""
    return find_host_dir(run, name).is_dir()


def attach_host(
    run: Path,
    name: str,
    parts: Sequence[ImportedMeter],
    facts: Mapping[str, Any],
    times: tuple[int, int],
    *,
    marks: Sequence[Mapping[str, Any]] = (),
    clocks: Sequence[ClockPair] = (),
) -> None:
    """Add `parts` and `marks` to a run as the host `name`, with `facts` in its events.

    `times` (ns) are its begin and end: UTC, unless it has the `clocks` of another host. Raises StoreError where the run
    is not closed, or has a host of that name.
    """
    if read_run_state(run) is not RunState.CLOSED:
        why = "recorded data could be lost"
        raise StoreError("the run is not closed", where=str(run), why=why, next="wait", code="store.not-closed")
    if is_attached(run, name):
        raise _refuse_existing(run, name)
    prepared = f".{name}.{os.getpid()}-{os.urandom(3).hex()}"
    folder = run / prepared
    try:
        (folder / "marks").mkdir(parents=True)
        _write_host(folder, name, parts, facts, times, clocks or [make_utc_pair(t) for t in times])
        if marks:
            write_lines(folder / "marks" / f"{name}.jsonl", marks)
        sync_directory(folder)
        folder.rename(run / name)
        sync_directory(run)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise _refuse_existing(run, name) from None
        raise StoreError("cannot add to the run", where=str(run), why=error.strerror, code="store.attach") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for cache in RESULTS:
        with contextlib.suppress(OSError):
            (run / cache).unlink(missing_ok=True)


def _refuse_existing(run: Path, name: str) -> StoreError:
    why = "raw data is never changed"
    what, then = f"the run has {name} already", "give another name: --name NAME"
    return StoreError(what, where=str(run), why=why, next=then, code="store.exists")


def _write_host(
    folder: Path,
    host: str,
    parts: Iterable[ImportedMeter],
    facts: Mapping[str, Any],
    times: tuple[int, int],
    clocks: Sequence[ClockPair],
) -> None:
    start = times[0]
    events: list[dict[str, Any]] = [{"t": start, "event": ATTACHED, **facts}]
    events += [{"t": pair.mono_ns, "event": "clock", **asdict(pair)} for pair in clocks]
    tables: dict[tuple[str, str], list[Fetched]] = {}
    for part in parts:
        events.append({"t": start, "event": "meter", "meter": part.meter, "status": "open"})
        for fetched in part.streams:
            tables.setdefault((part.meter, fetched.stream.table), []).append(fetched)
            events += [{**event, "meter": part.meter} for event in fetched.events]
    write_lines(folder / "events.0.jsonl", sorted(events, key=lambda event: int(event["t"])))
    for (meter, table), members in tables.items():
        write_journal(folder, meter, table, members, host=host)
