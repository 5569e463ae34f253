"""Open a run folder for reading, whether it is live, killed, closed, or being sealed by somebody else."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from joulelab.core.clock import ClockPair
from joulelab.core.errors import StoreError
from joulelab.store.folder import RunState, host_dirs, read_end, read_meta, run_state
from joulelab.store.lines import Line, read_lines
from joulelab.store.table import (
    RETRIES,
    Problem,
    Segment,
    Table,
    chunks,
    connect,
    load_table,
    named,
    quoted,
    table_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import duckdb

    from joulelab.core.spec import Stream

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Name a table of a run and describe its streams; `rows` counts all of them together."""

    host: str
    meter: str
    table: str
    streams: tuple[Stream, ...]
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Hold the samples of one stream in order of `t0_ns`; NaN = not read. Rows of one recorder share a `segment`."""

    t0_ns: Integers
    t1_ns: Integers
    values: dict[str, Floats]
    segment: npt.NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.t0_ns)


def open_run(path: Path) -> Run:
    """Open a run folder; raise NotARun, NewerSchema or StoreError."""
    return Run(path, read_meta(path))


class Run:
    """Read a run. Nothing is written: sealing is `seal()`'s business."""

    def __init__(self, path: Path, meta: Mapping[str, Any]) -> None:
        """Take what `run.json` says; everything else is read when asked for."""
        self.path = path
        self.meta = dict(meta)

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Release what readers hold; a run that is used again opens it again."""
        if "_con" in self.__dict__:
            self._con.close()
            del self._con

    @property
    def end(self) -> dict[str, Any] | None:
        """Return `end.json`, None while there is none."""
        return read_end(self.path)

    @property
    def state(self) -> RunState:
        """Return live, closed or killed, as of now."""
        return run_state(self.path, self.meta)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts that recorded, the one that started the run first."""
        first = self.meta.get("host")
        return tuple(sorted((p.name for p in host_dirs(self.path)), key=lambda name: (name != first, name)))

    def tables(self) -> list[TableInfo]:
        """Return every table of every host; those whose headers are torn are left out (see `problems`)."""
        return [TableInfo(t.host, t.meter, t.table, t.streams, t.rows) for t in self._tables() if t.segments]

    def series(self, info: TableInfo, stream: str, *, channels: Sequence[str] | None = None) -> Series:
        """Read one stream in time order, all its channels or those named; raise StoreError for unknown names."""
        wanted = _wanted(info, stream, channels)
        return self._retry(
            lambda: read_series(self._table(info.host, info.meter, info.table), stream, wanted, self._con)
        )

    def events(self) -> list[Line]:
        """Return what recorder and supervisor noted, in order of `t` per host, with `host` and `source` (the file)."""
        return [line for line, _ in self._lines("events.*.jsonl")]

    def marks(self) -> list[Line]:
        """Return the marks of all processes, in order of `t` per host, with `host` and `source` (the file)."""
        return [line for line, _ in self._lines("marks/*.jsonl")]

    def clock_pairs(self, host: str | None = None) -> list[ClockPair]:
        """Return the clock pairs of a host (of the first one unless named) in order of monotonic time."""
        name = host or self.meta.get("host")
        found = [e for e in self.events() if e.get("event") == "clock" and e["host"] == name]
        if name == self.meta.get("host"):
            found += [self.meta["started"], *([self.end["ended"]] if self.end else [])]
        keys = [f.name for f in fields(ClockPair)]
        pairs = {ClockPair(**{k: pair[k] for k in keys}) for pair in found if all(k in pair for k in keys)}
        return sorted(pairs, key=lambda pair: pair.mono_ns)

    def problems(self) -> list[Problem]:
        """Return what is torn or damaged in this folder; reading has left it out."""
        found = [problem for table in self._tables() for problem in table.problems]
        found += [problem for table in self._tables() for s in table.journals for problem in _damage(s)]
        for pattern in ("events.*.jsonl", "marks/*.jsonl"):
            damaged = dict.fromkeys(p for _, p in self._lines(pattern, damaged=True))
            found += [Problem(path, "lines are damaged and left out") for path in damaged]
        return found

    @cached_property
    def _con(self) -> duckdb.DuckDBPyConnection:
        return connect()

    def _tables(self) -> Iterator[Table]:
        for folder in sorted(host_dirs(self.path), key=lambda p: self.hosts.index(p.name)):
            for meter, table in table_names(folder):
                yield self._table(folder.name, meter, table)

    def _table(self, host: str, meter: str, table: str) -> Table:
        return load_table(self.path / host, meter, table, self._con)

    def _retry(self, read: Callable[[], T]) -> T:
        for _ in range(RETRIES):
            try:
                return read()
            except FileNotFoundError:
                continue  # Sealed while we read the journals: look again, the rows are in the Parquet file now.
        raise StoreError("files vanish while they are read", where=str(self.path))

    def _lines(self, pattern: str, *, damaged: bool = False) -> Iterator[tuple[Line, Path]]:
        for host in self.hosts:
            found: list[tuple[Line, Path]] = []
            for path in sorted((self.path / host).glob(pattern)):
                lines, bad = read_lines(path)
                if damaged:
                    found += [({"t": 0}, path)] if bad else []
                    continue
                source = path.name.removesuffix(".jsonl")
                found += [({**line, "host": line.get("host", host), "source": source}, path) for line in lines]
            yield from sorted(found, key=lambda pair: pair[0]["t"])


def _wanted(info: TableInfo, stream: str, channels: Sequence[str] | None) -> list[str]:
    by_name = {s.name: s for s in info.streams}
    if stream not in by_name:
        raise StoreError(f"{info.meter}.{info.table} has no stream {stream!r}", why=f"it has {', '.join(by_name)}")
    known = [c.name for c in by_name[stream].channels]
    unknown = [c for c in channels or () if c not in known]
    if unknown:
        raise StoreError(f"stream {stream!r} has no channel {', '.join(unknown)}", why=f"it has {', '.join(known)}")
    return known if channels is None else list(channels)


def _damage(segment: Segment) -> Iterator[Problem]:
    damaged = sum(int((~sound).sum()) for _, sound in chunks(segment))
    if damaged and segment.path is not None:
        yield Problem(segment.path, f"{damaged} rows are damaged and left out")


def read_series(table: Table, stream: str, columns: Sequence[str], con: duckdb.DuckDBPyConnection) -> Series:
    """Read one stream from everything that holds rows of it; raise FileNotFoundError where a journal was sealed."""
    parts = [_from_parquet(table, stream, columns, con)] if table.parquet else []
    parts += [_from_journal(segment, stream, columns) for segment in table.journals]
    if len(parts) == 1:
        return _in_order(parts[0])
    return _in_order(
        Series(
            _joined([p.t0_ns for p in parts], np.int64),
            _joined([p.t1_ns for p in parts], np.int64),
            {c: _joined([p.values[c] for p in parts], np.float64) for c in columns},
            _joined([p.segment for p in parts], np.int32),
        )
    )


def _joined(parts: list[Any], kind: Any) -> Any:
    return np.concatenate(parts, dtype=kind) if parts else np.empty(0, kind)


def _in_order(series: Series) -> Series:
    t0 = series.t0_ns
    if len(t0) < 2 or bool((t0[1:] >= t0[:-1]).all()):
        return series
    order = np.argsort(t0, kind="stable")
    values = {name: column[order] for name, column in series.values.items()}
    return Series(t0[order], series.t1_ns[order], values, series.segment[order])


def _from_parquet(table: Table, stream: str, columns: Sequence[str], con: duckdb.DuckDBPyConnection) -> Series:
    assert table.parquet is not None
    numbers = [s.header.segment for s in table.segments if s.path is None]
    stored = dict.fromkeys(c for s in table.segments if s.path is None for c in s.header.columns)
    present = [c for c in columns if c in stored]
    picked = ", ".join(["t0_ns", "t1_ns", *(["segment"] if len(numbers) > 1 else []), *map(named, present)])
    # Only the segments we know of: a reader that sealed one more meanwhile must not make us count it twice.
    which = f" AND segment IN ({', '.join(map(str, numbers))})" if table.journals else ""
    sql = f"SELECT {picked} FROM read_parquet({quoted(table.parquet)}) WHERE stream = $stream{which}"  # noqa: S608 (quoted)
    data = con.execute(sql, {"stream": stream}).fetchnumpy()
    count = len(data["t0_ns"])
    # NULL = not read; numpy would show what happens to lie under the mask.
    values = {c: np.ma.filled(data[c], np.nan) if c in data else np.full(count, np.nan) for c in columns}
    one = np.full(count, numbers[0], np.int32) if len(numbers) == 1 else None
    segment = np.asarray(data["segment"], np.int32) if one is None else one
    return Series(np.asarray(data["t0_ns"], np.int64), np.asarray(data["t1_ns"], np.int64), values, segment)


def _from_journal(segment: Segment, stream: str, columns: Sequence[str]) -> Series:
    names = [s.name for s in segment.header.streams]
    index = names.index(stream) if stream in names else -1
    present = [c for c in columns if c in segment.header.columns]
    pieces: dict[str, list[Any]] = {c: [] for c in ("t0_ns", "t1_ns", *present)}
    for rows, sound in chunks(segment):
        mine = np.flatnonzero(sound & (rows["stream"] == index))
        for column, found in pieces.items():
            found.append(rows[column][mine])
    t0 = _joined(pieces["t0_ns"], np.int64)
    count = len(t0)
    values = {c: _joined(pieces[c], np.float64) if c in pieces else np.full(count, np.nan) for c in columns}
    return Series(t0, _joined(pieces["t1_ns"], np.int64), values, np.full(count, segment.header.segment, np.int32))
