"""Read one table of one host: its journals as numpy rows, its sealed Parquet file through DuckDB, or both."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import duckdb
import numpy as np
import numpy.typing as npt

from joulelab.core.errors import NewerSchema, StoreError
from joulelab.core.spec import Stream
from joulelab.store.journal import JournalHeader, read_header
from joulelab.store.safe_files import check_regular, open_regular
from joulelab.store.upgrade import upgrade_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

Rows = npt.NDArray[np.void]
Mask = npt.NDArray[np.bool_]
# Rows that are looked at together: bounds the memory of readers and of the seal (a row of four channels is 56 bytes).
CHUNK_ROWS = 1_000_000
RETRIES = 8
METADATA_KEY = "joulelab"
_JOURNAL = re.compile(r"([^.]+)\.([^.]+)\.(\d+)\.journal")
_PARQUET = re.compile(r"([^.]+)\.([^.]+)\.parquet")


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Describe the defect of one file of a run, in words for the user; `lost`: nothing of the file can be used.

    `code` does not change when the words do; `numbers` are those of the words.
    """

    path: Path
    what: str
    lost: bool = False
    code: str = "unreadable"
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableSegment:
    """Describe the rows of one recorder process: complete rows, bytes of a torn last row, rows damaged by a power loss.

    `path` is the journal, or None where the rows are sealed; `journal_bytes` is its size, or was when it was sealed
    (None: sealed by joulelab 0.1.0).
    """

    header: JournalHeader
    path: Path | None
    rows: int
    torn_bytes: int
    damaged_rows: int = 0
    journal_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Hold the headers and files of one table, without its rows."""

    host: str
    meter: str
    table: str
    parquet: Path | None
    segments: tuple[TableSegment, ...]
    problems: tuple[FileProblem, ...]

    @property
    def journals(self) -> tuple[TableSegment, ...]:
        """Return the segments that are not sealed."""
        return tuple(s for s in self.segments if s.path is not None)

    @property
    def paths(self) -> list[Path]:
        """Return the files that hold its rows."""
        return [*([self.parquet] if self.parquet else []), *(s.path for s in self.segments if s.path is not None)]

    @property
    def rows(self) -> int:
        """Return the number of rows in all segments."""
        return sum(s.rows for s in self.segments)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the channels of all segments: a restarted recorder may have found other channels."""
        return tuple(dict.fromkeys(c for s in self.segments for c in s.header.columns))

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Return the streams of all segments; the first description of a stream or channel counts."""
        merged: dict[str, Stream] = {}
        for stream in (stream for s in self.segments for stream in s.header.streams):
            old = merged.setdefault(stream.name, stream)
            known = {c.name for c in old.channels}
            added = tuple(c for c in stream.channels if c.name not in known)
            merged[stream.name] = replace(old, channels=old.channels + added)
        return tuple(merged.values())


class Database(Protocol):
    """Define what runs SQL: a DuckDB connection, or one that is opened when it is first used."""

    def execute(self, query: str, parameters: object = None) -> Any:
        """Run a statement and return the connection, from which rows are fetched one after the other."""

    def sql(self, query: str, *, params: object = None) -> Any:
        """Return the whole result of a query: for columns this is twice as fast as row by row."""


class LateDatabase:
    """Connect to DuckDB on first use: a run that is not sealed does not need it."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None

    def execute(self, query: str, parameters: object = None) -> Any:
        """Run a statement, on a connection of our own."""
        return self._connected().execute(query, parameters)

    def sql(self, query: str, *, params: object = None) -> Any:
        """Return the whole result of a query, on a connection of our own."""
        return self._connected().sql(query, params=params)

    def _connected(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = connect_database()
        return self._connection

    def close(self) -> None:
        """Close the connection; a later query opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def connect_database(**config: str | bool | int | float | list[str]) -> duckdb.DuckDBPyConnection:
    """Return a private in-memory database that downloads nothing and leaves no files behind."""
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": min(4, os.cpu_count() or 1),
        "temp_directory": "",
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    return duckdb.connect(":memory:", config={**settings, **config})


def quote_text(text: str | Path) -> str:
    """Return an SQL string literal."""
    return "'" + str(text).replace("'", "''") + "'"


def quote_name(column: str) -> str:
    """Return an SQL identifier."""
    return '"' + column.replace('"', '""') + '"'


def list_table_names(host_dir: Path) -> list[tuple[str, str]]:
    """Return (meter, table) of every table in a host folder, sorted."""
    names = [*_list_names(host_dir), *_list_names(host_dir)]
    found = [m.group(1, 2) for m in (_JOURNAL.fullmatch(n) or _PARQUET.fullmatch(n) for n in names) if m]
    return sorted({(str(meter), str(table)) for meter, table in found})


def load_table(host_dir: Path, meter: str, table: str, con: Database) -> SampleTable:
    """Read the headers of a table; a torn header becomes a problem. Raises NewerSchema."""
    for _ in range(RETRIES):
        # Sealed between the listing and the look inside: the next listing finds the Parquet file.
        with contextlib.suppress(FileNotFoundError):
            return _load_segments(host_dir, meter, table, con)
    what = f"the files of {meter}.{table} vanish while they are read"
    raise StoreError(what, where=str(host_dir), code="store.vanishing")


def _load_segments(host_dir: Path, meter: str, table: str, con: Database) -> SampleTable:
    # Journals are listed before the Parquet file, which is there before they go: one of the two is always seen.
    journals = sorted(
        (int(m[3]), host_dir / m[0])
        for m in map(_JOURNAL.fullmatch, _list_names(host_dir))
        if m and m.group(1, 2) == (meter, table)
    )
    parquet = host_dir / f"{meter}.{table}.parquet"
    segments: dict[int, TableSegment] = {}
    problems: list[FileProblem] = []
    sealed = os.path.lexists(parquet)
    if sealed:
        try:
            segments = {s.header.segment: s for s in read_sealed(parquet, con)}
        except NewerSchema:
            raise
        except (StoreError, OSError) as error:
            problems.append(_wrap_error(parquet, error))
            sealed = False
    for number, path in journals:
        if number in segments:
            continue
        try:
            segments[number] = open_segment(path)
        except NewerSchema:
            raise
        except (StoreError, OSError) as error:
            problems.append(_wrap_error(path, error))
    problems += [p for s in segments.values() for p in _list_complaints(s, host_dir / f"{meter}.{table}")]
    ordered = tuple(segments[n] for n in sorted(segments))
    return SampleTable(host_dir.name, meter, table, parquet if sealed else None, ordered, tuple(problems))


def _wrap_error(path: Path, error: StoreError | OSError) -> FileProblem:
    """Return the problem of a file that could not be read; its code `store.other-file` becomes `other-file`.

    Raises FileNotFoundError where the file is gone; a link that leads nowhere is a problem.
    """
    if isinstance(error, OSError):
        if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
            raise error
        return FileProblem(path, f"{path.name} cannot be read ({error.strerror})", lost=True)
    return FileProblem(path, str(error), lost=True, code=error.code.partition(".")[2] or "unreadable")


def _list_names(host_dir: Path) -> list[str]:
    return [entry.name for entry in os.scandir(host_dir)]


def _list_complaints(segment: TableSegment, path: Path) -> Iterator[FileProblem]:
    name, torn, damaged = f"segment {segment.header.segment}", segment.torn_bytes, segment.damaged_rows
    if torn:
        what = f"{name}: the last row is torn ({torn} bytes ignored)"
        yield FileProblem(path, what, code="torn-row", numbers={"bytes": torn})
    if damaged:
        what = f"{name}: {damaged} rows are damaged and left out"
        yield FileProblem(path, what, code="bad-rows", numbers={"rows": damaged})


def open_segment(path: Path) -> TableSegment:
    """Describe a journal; raise StoreError for a torn header, NewerSchema, FileNotFoundError where it was sealed."""
    header = read_header(path)
    size = path.stat().st_size
    rows, torn = divmod(max(0, size - header.data_offset), header.row_bytes)
    return TableSegment(header, path, rows, torn, journal_bytes=size)


def read_sealed(path: Path, con: Database) -> list[TableSegment]:
    """Return the segments that a Parquet file holds; raise StoreError where it is damaged or not joulelab's."""
    query = f"SELECT decode(value) FROM parquet_kv_metadata({quote_text(path)}) WHERE decode(key) = $key"  # noqa: S608 (quoted)
    count = f"SELECT sum(num_rows) FROM parquet_file_metadata({quote_text(path)})"  # noqa: S608 (quoted)
    try:
        check_regular(path, path.stat())  # DuckDB would wait for a FIFO
        found = con.execute(query, {"key": METADATA_KEY}).fetchall()
        data = upgrade_document("table", json.loads(found[0][0]), where=str(path)) if found else {}
        segments = [_sealed_segment(data, s) for s in data["segments"]]
        ((rows,),) = con.execute(count).fetchall()
    except FileNotFoundError:
        raise
    except (duckdb.Error, OSError, ValueError, KeyError, TypeError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise StoreError(
            f"{path.name} cannot be read", where=str(path.parent), why=what, code="store.unreadable"
        ) from None
    written = sum(s.rows for s in segments)
    if rows != written or (data["meter"], data["table"]) != tuple(path.name.split(".")[:2]):
        why = f"it holds {rows} rows, but was written as {data['meter']}.{data['table']}.parquet with {written}"
        what = f"{path.name} is not the file that was recorded"
        raise StoreError(what, where=str(path.parent), why=why, code="store.other-file")
    return segments


def _sealed_segment(data: Mapping[str, Any], segment: Mapping[str, Any]) -> TableSegment:
    header = JournalHeader(
        meter=data["meter"],
        table=data["table"],
        segment=segment["segment"],
        host=data["host"],
        boot_id=segment["boot_id"],
        columns=tuple(segment["columns"]),
        streams=tuple(Stream.from_json(s) for s in segment["streams"]),
        data_offset=0,
    )
    size = segment.get("journal_bytes")
    return TableSegment(header, None, segment["rows"], segment["torn_bytes"], segment["damaged_rows"], size)


def read_sealed_header(table: SampleTable) -> dict[str, Any]:
    """Return the headers of the journals that a Parquet file stores."""
    segments = [
        {
            **{
                k: v
                for k, v in s.header.to_json().items()
                if k in ("schema", "segment", "boot_id", "columns", "streams")
            },
            "rows": s.rows,
            "torn_bytes": s.torn_bytes,
            "damaged_rows": s.damaged_rows,
            "journal_bytes": s.journal_bytes,
        }
        for s in table.segments
    ]
    schema = segments[0]["schema"]
    return {"schema": schema, "host": table.host, "meter": table.meter, "table": table.table, "segments": segments}


def make_row_type(columns: Sequence[str]) -> np.dtype[np.void]:
    """Return the layout of a journal's rows; `stream` is the index of the stream in the header."""
    return np.dtype([("stream", "<i8"), ("t0_ns", "<i8"), ("t1_ns", "<i8"), *((c, "<f8") for c in columns)])


def read_chunks(segment: TableSegment, size: int = CHUNK_ROWS) -> Iterator[tuple[Rows, Mask]]:
    """Yield the rows of a journal in pieces, each with a mask of its sound rows; one empty piece if there are no rows.

    Raises FileNotFoundError where the journal was sealed meanwhile.
    """
    assert segment.path is not None
    layout = make_row_type(segment.header.columns)
    with open_regular(segment.path) as file:
        for start in range(0, max(segment.rows, 1), size):
            count = min(size, segment.rows - start)
            # A row once whole is never cut off again (the writer only removes torn ones), so the map cannot fault.
            where = segment.header.data_offset + start * layout.itemsize
            rows = np.memmap(file, layout, "r", where, (count,)) if count else np.empty(0, layout)
            yield rows, find_sound_rows(rows, len(segment.header.streams))


def find_sound_rows(rows: Rows, streams: int) -> Mask:
    """Mark sound rows: a power loss may leave zeros or parts of blocks in a file.

    A block boundary can lie within a row, so the neighbours of a damaged row are not believed either.
    """
    index, t0, t1 = rows["stream"], rows["t0_ns"], rows["t1_ns"]
    sound: Mask = (index >= 0) & (index < streams) & (t1 >= t0)
    for k in np.flatnonzero(sound & (t0 == 0) & (t1 == 0) & (index == 0)):
        sound[k] = any(rows[k].tobytes())
    if not sound.all():
        damaged = ~sound
        sound[:-1] &= ~damaged[1:]
        sound[1:] &= ~damaged[:-1]
    return sound
