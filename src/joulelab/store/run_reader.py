"""Open a run folder for reading, whether it is live, killed, closed, or being sealed by another process."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import duckdb
import numpy as np

from joulelab.core.clock import ClockPair
from joulelab.core.errors import NewerSchema, StoreError
from joulelab.store.clock_joining import ClockJoint, choose_joint
from joulelab.store.damage import find_damage, word_damage
from joulelab.store.documents import Line, find_wrong_value, read_lines
from joulelab.store.manifest import FILE, FileCheck, Verifier, check_files
from joulelab.store.run_folder import ATTACHED, RunState, list_host_dirs, read_end, read_meta, read_run_state
from joulelab.store.sample_tables import (
    RETRIES,
    FileProblem,
    LateDatabase,
    SampleTable,
    TableSegment,
    list_table_names,
    load_table,
    read_chunks,
)
from joulelab.store.series import SampleSeries, read_series, read_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.spec import Stream

T = TypeVar("T")
# A table of up to this many values (32 MB) is read as a whole and stays in memory.
WHOLE_VALUES = 4_000_000


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Name a table of a run and describe its streams; `rows` counts all of them together."""

    host: str
    meter: str
    table: str
    streams: tuple[Stream, ...]
    rows: int


def open_run(path: Path) -> Run:
    """Open a run folder; raise NotARun, NewerSchema or StoreError."""
    return Run(path, read_meta(path))


class Run:
    """Read a run. Nothing is written: `seal_run` seals.

    `tables()` lists the folder again; `series()` reads what the last list contains. All times are in the first host's
    monotonic time, except times of hosts in `unjoined()`; files and `clock_pairs()` have the time of their own host.
    """

    def __init__(self, path: Path, meta: Mapping[str, Any]) -> None:
        """Take the content of `run.json`; all other files are read when needed."""
        self.path = path
        self.meta = dict(meta)
        self._loaded: dict[tuple[str, str, str], SampleTable] = {}
        self._whole: dict[tuple[str, str, str], dict[str, SampleSeries]] = {}
        self._unread: dict[Path, FileProblem] = {}
        self._look: list[tuple[str, int, int]] = []
        self._joints: dict[str, ClockJoint | None] | None = None
        self._remembered: tuple[object, Any] | None = None
        self._con = LateDatabase()
        self._verifier = Verifier(path)

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the database and drop all data in memory; a later call opens it again."""
        self._remembered = None
        self._con.close()

    @property
    def end(self) -> dict[str, Any] | None:
        """Return the content of `end.json`, None if it does not exist."""
        return read_end(self.path)

    @property
    def state(self) -> RunState:
        """Return live, closed or killed, as of now."""
        return read_run_state(self.path, self.meta)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that recorded, the one that started the run first."""
        first = self.meta.get("host")
        return tuple(sorted((p.name for p in list_host_dirs(self.path)), key=lambda name: (name != first, name)))

    def tables(self) -> list[TableInfo]:
        """Return every table of every host, except those with torn headers (see `problems`)."""
        look = sorted(_describe_file(f) for p in list_host_dirs(self.path) for f in os.scandir(p))
        if look != self._look:
            self._look = look
            self._unread = {path: problem for path, problem in self._unread.items() if path.suffix == ".jsonl"}
            self._loaded.clear()
            self._whole.clear()
            self._joints = None
            self._remembered = None
            self._verifier.refresh()
        return [TableInfo(t.host, t.meter, t.table, t.streams, t.rows) for t in self._tables() if t.segments]

    def series(self, info: TableInfo, stream: str, *, channels: Sequence[str] | None = None) -> SampleSeries:
        """Read one stream in time order, all its channels or those named; raise StoreError for unknown names.

        A stream whose file turns out to be damaged has no samples; `problems` names the file.
        """
        wanted = _select_channels(info, stream, channels)
        key = (info.host, info.meter, info.table)
        try:
            return self._retry(lambda: self._read(key, stream, wanted))
        except duckdb.Error as error:
            path = self._table(*key).parquet or self.path / info.host / f"{info.meter}.{info.table}"
            what = f"{path.name} cannot be read ({str(error).splitlines()[0]})"
            self._unread[path] = FileProblem(path, what, lost=True)
            nothing = np.empty(0, np.int64)
            return SampleSeries(nothing, nothing, {c: np.empty(0) for c in wanted}, np.empty(0, np.int32))

    def remember(self, key: object, make: Callable[[], T]) -> T:
        """Return the cached value of this key if no file has changed since, else compute and cache it."""
        self.tables()
        if self._remembered is None or self._remembered[0] != key:
            self._remembered = key, make()
        found: T = self._remembered[1]
        return found

    def events(self) -> list[Line]:
        """Return the events of recorder and supervisor, in order of `t` per host, with `host` and `source` (file)."""
        return self._joined_lines("events.*.jsonl")

    def marks(self) -> list[Line]:
        """Return the marks of all processes, in order of `t` per host, with `host` and `source` (the file)."""
        return self._joined_lines("marks/*.jsonl")

    def clock_pairs(self, host: str | None = None) -> list[ClockPair]:
        """Return the clock pairs of a host (of the first one unless named) in order of its own monotonic time."""
        name = str(host or self.meta.get("host"))
        return self._pairs_among(name, (line for line, _ in self._lines("events.*.jsonl") if line["host"] == name))

    def clock_error_ns(self, host: str) -> int | None:
        """Return the largest error of a host's times (ns), None if they cannot be joined with the first host."""
        return None if host in self.unjoined() else joint.error_ns if (joint := self._joint(host)) else 0

    def unjoined(self) -> list[str]:
        """Return the hosts whose times cannot be converted to those of the first host: they stay unchanged."""
        self._joint("")
        assert self._joints is not None
        return [host for host, joint in self._joints.items() if joint is None]

    def _pairs_among(self, name: str, events: Iterable[Line]) -> list[ClockPair]:
        found = [e for e in events if e.get("event") == "clock"]
        if name == self.meta.get("host"):
            found += [self.meta["started"], *([self.end["ended"]] if self.end else [])]
        keys = [f.name for f in fields(ClockPair)]
        pairs = {ClockPair(**{k: pair[k] for k in keys}) for pair in found if all(k in pair for k in keys)}
        return sorted(pairs, key=lambda pair: pair.mono_ns)

    def problems(self) -> list[FileProblem]:
        """Return the torn or damaged files of this folder, which readers leave out."""
        self._loaded.clear()
        found = [problem for table in self._tables() for problem in table.problems]
        found += [problem for table in self._tables() for s in table.journals for problem in _list_problems(s)]
        for pattern in ("events.*.jsonl", "marks/*.jsonl"):
            list(self._lines(pattern))
        return [*found, *self._unread.values()]

    def damage(self, events: Sequence[Line]) -> list[FileProblem]:
        """Return unreadable and missing files, after everything was read; `events` are the events of this run."""
        tables = list(self._tables())
        known = [*(problem for table in tables for problem in table.problems), *self._unread.values()]
        listed = {problem.path for problem in known}
        known += [p for p in (*self._verify_documents(), *self._find_added(events)) if p.path not in listed]
        folders = [self.path / host for host in dict.fromkeys((self.meta["host"], *self.hosts)) if host]
        sizes = (self.end or {}).get("files")
        files = {name: record.size for name, record in self._verifier.records.items()}
        files |= {name: size for name, size in sizes.items() if type(size) is int} if isinstance(sizes, dict) else {}
        return find_damage(
            known, run=self.path, state=self.state, folders=folders, tables=tables, events=events, files=files
        )

    def find_unusable(self) -> str:
        """Return the first event or mark with a value that readers cannot use, and its fault; empty if none."""
        lines = (pair for pattern in ("events.*.jsonl", "marks/*.jsonl") for pair in self._lines(pattern))
        faults = ((path, line, find_wrong_value(line)) for line, path in lines)
        return next(
            (f"{path.parent.name}/{path.name}, t {line['t']}: {fault}" for path, line, fault in faults if fault), ""
        )

    @property
    def lists_files(self) -> bool:
        """Return whether the folder lists the files of the run, in a manifest or by their sizes at its end.

        Runs of joulelab 0.1.0 do not: files of lines that were deleted, or cut off after a line, are not found.
        """
        return bool(self._verifier.records) or isinstance((self.end or {}).get("files"), dict)

    def check_files(self) -> tuple[list[FileCheck], bool]:
        """Compare the content of all files with the manifest; the second value is whether there is a manifest.

        Before a run is sealed, the hashes in its `end.json` serve as one. Raises NewerSchema.
        """
        records = self._verifier.records
        if isinstance(self._verifier.error, NewerSchema):
            raise self._verifier.error
        return list(check_files(self.path, records, hashes=True)), bool(records)

    def _verify_documents(self) -> Iterator[FileProblem]:
        """Find damaged documents, and files and folders of the manifest that are missing."""
        for path in (self.path / "run.json", self.path / "end.json"):
            if os.path.lexists(path) and (wrong := self._verify(path)):
                yield wrong
        gone = [name for name in self._verifier.records if not os.path.lexists(self.path / name)]
        for path in dict.fromkeys(_find_missing(self.path, name) for name in gone):
            is_host = path.parent == self.path and path.suffix != ".json"
            what, code = (
                ("the folder of the host is missing", "missing-host") if is_host else ("it is missing", "missing")
            )
            yield FileProblem(path, what, lost=True, code=code)
        if self._verifier.error is not None:
            why = self._verifier.error.why or self._verifier.error.what
            what = f"{FILE} cannot be used ({why}), so nothing is verified"
            yield FileProblem(self.path / FILE, what, code="no-manifest")

    def _find_added(self, events: Sequence[Line]) -> Iterator[FileProblem]:
        """Find folders, samples and marks that the manifest does not list: they would count as data of the run.

        A host that was attached from an archive is listed by the next seal.
        """
        records = self._verifier.records
        if not records or not self._verifier.is_sealed or self.state is not RunState.CLOSED:
            return
        attached = {str(e.get("host")) for e in events if e.get("event") == ATTACHED}
        listed = {name.partition("/")[0] for name in records if "/" in name}
        what = "it was added after the run was sealed"
        for host in (host for host in self.hosts if host not in attached):
            folder = self.path / host
            files = sorted((*folder.glob("*.parquet"), *folder.glob("marks/*.jsonl")))
            if host not in listed:
                files = [folder] if self._has_times(host) else []
            for path in (p for p in files if p == folder or p.relative_to(self.path).as_posix() not in records):
                yield FileProblem(path, what, lost=True, code="added")

    def _joint(self, host: str) -> ClockJoint | None:
        """Return the conversion of a host's time to that of the first host, None if it is not needed or unknown."""
        if self._joints is None:
            self._joints = {}
            first, others = str(self.meta.get("host")), [h for h in self.hosts if h != self.meta.get("host")]
            if others:
                self._join(first, others)
        return self._joints.get(host)

    def _join(self, first: str, others: Sequence[str]) -> None:
        assert self._joints is not None
        by_host: dict[str, list[Line]] = {}
        for line, _ in self._lines("events.*.jsonl"):
            if line.get("event") in ("clock", "clock-node"):
                by_host.setdefault(line["host"], []).append(line)
        own = self._pairs_among(first, by_host.get(first, ()))
        boot = self._boot(first, own)
        for host in others:
            pairs = self._pairs_among(host, by_host.get(host, ()))
            if self._has_times(host) and (not boot or self._boot(host, pairs) != boot):
                answers = (e for e in by_host.get(first, ()) if e.get("node") == host)
                self._joints[host] = choose_joint(own, pairs, answers)

    def _has_times(self, host: str) -> bool:
        folder = self.path / host
        return any(any(folder.glob(kind)) for kind in ("*.journal", "*.parquet", "*.jsonl", "marks/*.jsonl"))

    def _boot(self, host: str, pairs: Sequence[ClockPair]) -> str:
        """Return the boot id of a host: times of one boot belong to one clock."""
        if pairs:
            return pairs[0].boot_id
        tables = (self._table(host, *names) for names in list_table_names(self.path / host))
        return next((s.header.boot_id for table in tables for s in table.segments), "")

    def _joined_lines(self, pattern: str) -> list[Line]:
        found: list[Line] = []
        for host in self.hosts:
            lines = [line for line, _ in self._lines(pattern, (host,))]
            joint = self._joint(host)
            found += lines if joint is None else joint.lines(lines)
        return found

    def _joined(self, host: str, series: SampleSeries) -> SampleSeries:
        joint = self._joint(host)
        if joint is None:
            return series
        return replace(series, t0_ns=joint.moved(series.t0_ns), t1_ns=joint.moved(series.t1_ns))

    def _tables(self) -> Iterator[SampleTable]:
        first = self.meta.get("host")
        for folder in sorted(list_host_dirs(self.path), key=lambda p: (p.name != first, p.name)):
            for meter, table in list_table_names(folder):
                yield self._table(folder.name, meter, table)

    def _table(self, host: str, meter: str, table: str) -> SampleTable:
        key = (host, meter, table)
        if key not in self._loaded:
            found = load_table(self.path / host, meter, table, self._con)
            damaged = [problem for path in found.paths if (problem := self._verify(path))]
            if damaged:  # rows that are not the recorded ones are not read
                found = replace(found, parquet=None, segments=(), problems=(*found.problems, *damaged))
            self._loaded[key] = found
        return self._loaded[key]

    def _verify(self, path: Path) -> FileProblem | None:
        """Return the difference of a file from the manifest, in size or in content."""
        check = self._verifier.find_damage(path, hashes=True)
        return None if check is None else word_damage(self.path, check)

    def _read(self, key: tuple[str, str, str], stream: str, wanted: Sequence[str]) -> SampleSeries:
        """Read a stream; of a small table read all streams at once, because each access to a file is expensive."""
        table = self._table(*key)
        if table.rows * (len(table.columns) + 2) > WHOLE_VALUES:
            return self._joined(key[0], read_series(table, stream, wanted, self._con))
        if key not in self._whole:
            whole = read_streams(table, self._con)
            self._whole[key] = {name: self._joined(key[0], series) for name, series in whole.items()}
        found = self._whole[key][stream]
        return SampleSeries(found.t0_ns, found.t1_ns, {c: found.values[c] for c in wanted}, found.segment)

    def _retry(self, read: Callable[[], T]) -> T:
        for _ in range(RETRIES):
            try:
                return read()
            except FileNotFoundError:
                # Sealed while we read the journals: look again, the rows are in the Parquet file now.
                self._loaded.clear()
        raise StoreError("files vanish while they are read", where=str(self.path), code="store.vanishing")

    def _lines(self, pattern: str, hosts: Sequence[str] | None = None) -> Iterator[tuple[Line, Path]]:
        for host in self.hosts if hosts is None else hosts:
            found: list[tuple[Line, Path]] = []
            for path in sorted((self.path / host).glob(pattern)):
                self._unread.pop(path, None)
                if wrong := self._verify(path):
                    self._unread[path] = wrong
                    continue
                try:
                    lines, damaged = read_lines(path)
                except OSError as error:
                    lines, damaged = [], 0
                    self._unread[path] = FileProblem(path, f"{path.name} cannot be read ({error.strerror})", lost=True)
                if damaged:
                    self._unread[path] = FileProblem(path, "lines are damaged and left out", code="bad-lines")
                source = path.name.removesuffix(".jsonl")
                for line in lines:
                    line.setdefault("host", host)
                    line["source"] = source
                found += [(line, path) for line in lines]
            yield from sorted(found, key=lambda pair: pair[0]["t"])


def _select_channels(info: TableInfo, stream: str, channels: Sequence[str] | None) -> list[str]:
    by_name = {s.name: s for s in info.streams}
    if stream not in by_name:
        what, why = f"{info.meter}.{info.table} has no stream {stream!r}", f"it has {', '.join(by_name)}"
        raise StoreError(what, why=why, code="store.unknown-stream")
    known = [c.name for c in by_name[stream].channels]
    unknown = [c for c in channels or () if c not in known]
    if unknown:
        what, why = f"stream {stream!r} has no channel {', '.join(unknown)}", f"it has {', '.join(known)}"
        raise StoreError(what, why=why, code="store.unknown-channel")
    return known if channels is None else list(channels)


def _find_missing(run: Path, name: str) -> Path:
    """Return the outermost folder of a missing file that is missing as well, or the file itself."""
    parts = name.split("/")
    paths = [run.joinpath(*parts[: k + 1]) for k in range(len(parts))]
    return next((path for path in paths if not os.path.lexists(path)), paths[-1])


def _describe_file(file: os.DirEntry[str]) -> tuple[str, int, int]:
    """Return name, size and time of a file (of a broken link: those of the link), so that changes are noticed."""
    try:
        found = file.stat()
    except OSError:
        return file.path, -1, -1
    return file.path, found.st_size, found.st_mtime_ns


def _list_problems(segment: TableSegment) -> Iterator[FileProblem]:
    damaged = sum(int((~sound).sum()) for _, sound in read_chunks(segment))
    if damaged and segment.path is not None:
        what = f"{damaged} rows are damaged and left out"
        yield FileProblem(segment.path, what, code="bad-rows", numbers={"rows": damaged})
