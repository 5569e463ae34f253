"""Read the streams of a table from its journals and its sealed file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from joulelab.store.sample_tables import Database, SampleTable, TableSegment, quote_name, quote_text, read_chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class SampleSeries:
    """Hold the samples of one stream in order of `t0_ns`; NaN = not read. Rows of one recorder share a `segment`."""

    t0_ns: Integers
    t1_ns: Integers
    values: dict[str, Floats]
    segment: npt.NDArray[np.int32]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.t0_ns)


def read_series(table: SampleTable, stream: str, columns: Sequence[str], con: Database) -> SampleSeries:
    """Read one stream from all files with its rows; raise FileNotFoundError if a journal was sealed meanwhile."""
    parts = [_read_parquet(table, stream, columns, con)] if table.parquet else []
    parts += [_read_journal(segment, stream, columns) for segment in table.journals]
    if len(parts) == 1:
        return _sort_rows(parts[0])
    return _sort_rows(
        SampleSeries(
            _join_parts([p.t0_ns for p in parts], np.int64),
            _join_parts([p.t1_ns for p in parts], np.int64),
            {c: _join_parts([p.values[c] for p in parts], np.float64) for c in columns},
            _join_parts([p.segment for p in parts], np.int32),
        )
    )


def read_streams(table: SampleTable, con: Database) -> dict[str, SampleSeries]:
    """Read all streams of a table with all channels; raise FileNotFoundError if a journal was sealed meanwhile."""
    columns = list(table.columns)
    names = [s.name for s in table.streams]
    parts = _read_sealed_rows(table, names, con) if table.parquet is not None else []
    for segment in table.journals:
        own = np.array([names.index(s.name) for s in segment.header.streams], np.int64)
        for rows, sound in read_chunks(segment):
            copied = {column: rows[column][sound] for column in rows.dtype.names or ()}
            copied["stream"] = own[copied["stream"]]
            parts.append((copied, segment.header.segment))
    return {name: _read_stream(parts, index, columns) for index, name in enumerate(names)}


def _read_sealed_rows(table: SampleTable, names: Sequence[str], con: Database) -> list[tuple[dict[str, Any], int]]:
    """Return the columns of each sealed segment, with streams by number."""
    assert table.parquet is not None
    found = []
    for sealed in (s for s in table.segments if s.path is None):
        picked = ", ".join(["t0_ns", "t1_ns", *map(quote_name, sealed.header.columns)])
        what = f"list_position($names, stream) AS number, {picked} FROM read_parquet({quote_text(table.parquet)})"
        sql = f"SELECT {what} WHERE segment = $segment"
        data = con.sql(sql, params={"names": list(names), "segment": sealed.header.segment}).fetchnumpy()
        # NULL = not read; numpy would show what happens to lie under the mask.
        columns = {column: np.ma.filled(data[column], np.nan) for column in sealed.header.columns}
        times = {"t0_ns": np.asarray(data["t0_ns"], np.int64), "t1_ns": np.asarray(data["t1_ns"], np.int64)}
        number = np.asarray(data["number"], np.int64) - 1
        found.append(({"stream": number, **times, **columns}, sealed.header.segment))
    return found


def _read_stream(parts: Sequence[tuple[dict[str, Any], int]], index: int, columns: Sequence[str]) -> SampleSeries:
    mine = [(rows, np.flatnonzero(rows["stream"] == index), segment) for rows, segment in parts]
    numbers = [np.full(at.size, segment, np.int32) for _, at, segment in mine]

    def column(name: str) -> list[Any]:
        return [rows[name][at] if name in rows else np.full(at.size, np.nan) for rows, at, _ in mine]

    return _sort_rows(
        SampleSeries(
            _join_parts(column("t0_ns"), np.int64),
            _join_parts(column("t1_ns"), np.int64),
            {c: _join_parts(column(c), np.float64) for c in columns},
            _join_parts(numbers, np.int32),
        )
    )


def _join_parts(parts: list[Any], kind: Any) -> Any:
    return np.concatenate(parts, dtype=kind) if parts else np.empty(0, kind)


def _sort_rows(series: SampleSeries) -> SampleSeries:
    t0 = series.t0_ns
    if len(t0) < 2 or bool((t0[1:] >= t0[:-1]).all()):
        return series
    order = np.argsort(t0, kind="stable")
    values = {name: column[order] for name, column in series.values.items()}
    return SampleSeries(t0[order], series.t1_ns[order], values, series.segment[order])


def _read_parquet(table: SampleTable, stream: str, columns: Sequence[str], con: Database) -> SampleSeries:
    assert table.parquet is not None
    numbers = [s.header.segment for s in table.segments if s.path is None]
    stored = dict.fromkeys(c for s in table.segments if s.path is None for c in s.header.columns)
    present = [c for c in columns if c in stored]
    picked = ", ".join(["t0_ns", "t1_ns", *(["segment"] if len(numbers) > 1 else []), *map(quote_name, present)])
    # Only the segments we know of: a reader that sealed one more meanwhile must not make us count it twice.
    which = f" AND segment IN ({', '.join(map(str, numbers))})" if table.journals else ""
    sql = f"SELECT {picked} FROM read_parquet({quote_text(table.parquet)}) WHERE stream = $stream{which}"  # noqa: S608 (quoted)
    data = con.sql(sql, params={"stream": stream}).fetchnumpy()
    count = len(data["t0_ns"])
    # NULL = not read; numpy would show what happens to lie under the mask.
    values = {c: np.ma.filled(data[c], np.nan) if c in data else np.full(count, np.nan) for c in columns}
    one = np.full(count, numbers[0], np.int32) if len(numbers) == 1 else None
    segment = np.asarray(data["segment"], np.int32) if one is None else one
    return SampleSeries(np.asarray(data["t0_ns"], np.int64), np.asarray(data["t1_ns"], np.int64), values, segment)


def _read_journal(segment: TableSegment, stream: str, columns: Sequence[str]) -> SampleSeries:
    names = [s.name for s in segment.header.streams]
    index = names.index(stream) if stream in names else -1
    present = [c for c in columns if c in segment.header.columns]
    pieces: dict[str, list[Any]] = {c: [] for c in ("t0_ns", "t1_ns", *present)}
    for rows, sound in read_chunks(segment):
        mine = np.flatnonzero(sound & (rows["stream"] == index))
        for column, found in pieces.items():
            found.append(rows[column][mine])
    t0 = _join_parts(pieces["t0_ns"], np.int64)
    count = len(t0)
    values = {c: _join_parts(pieces[c], np.float64) if c in pieces else np.full(count, np.nan) for c in columns}
    return SampleSeries(
        t0, _join_parts(pieces["t1_ns"], np.int64), values, np.full(count, segment.header.segment, np.int32)
    )
