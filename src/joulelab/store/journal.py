"""Write and describe journals: a JSON header, then fixed-width binary rows; `kill -9` can tear only the last row.

Layout: b"JLJ1", u32 little-endian length of the header, header JSON padded with spaces so that rows start at a
multiple of 8, then rows `<qqq` (index of the stream in the header, t0_ns, t1_ns: CLOCK_MONOTONIC before and after
the read) and one `<d` per channel; NaN = not read. The recorder imports this module: standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from joulelab.core.errors import StoreError, WriteFailed
from joulelab.core.spec import Stream
from joulelab.store.documents import decode_json
from joulelab.store.safe_files import NEW_FLAGS, open_regular, sync_directory
from joulelab.store.upgrade import SCHEMA, upgrade_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

if sys.platform != "win32":  # Windows reads runs, it does not record them.
    import fcntl

MAGIC = b"JLJ1"
PREFIX = struct.Struct("<4sI")
HEADER_LIMIT = 64 << 20
# Columns that every sealed table has; no channel may take their names.
RESERVED = ("stream", "scope", "segment", "t0_ns", "t1_ns", "run", "host")
LOCK_TRIES = 5
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class HeaderFields(TypedDict):
    """Name host, meter and table of a journal; the writer adds streams, columns and schema."""

    meter: str
    table: str
    segment: int
    host: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """Hold a journal's header; rows start at `data_offset` and are `row_bytes` long."""

    meter: str
    table: str
    segment: int
    host: str
    boot_id: str
    columns: tuple[str, ...]
    streams: tuple[Stream, ...]
    data_offset: int

    @property
    def row_bytes(self) -> int:
        """Return the length of one row."""
        return 24 + 8 * len(self.columns)

    def to_json(self) -> dict[str, Any]:
        """Return the header as plain data, as in the file."""
        fields: HeaderFields = {
            "meter": self.meter,
            "table": self.table,
            "segment": self.segment,
            "host": self.host,
            "boot_id": self.boot_id,
        }
        return make_header_json(fields, self.streams)


def make_journal_path(host_dir: Path, meter: str, table: str, segment: int) -> Path:
    """Return the path of a journal; raise StoreError for a name that cannot be part of a file name."""
    for name in (meter, table):
        if not NAME.fullmatch(name):
            what, why = f"{name!r} cannot name a meter or a table", "allowed: letters, digits, _ and -"
            raise StoreError(what, why=why, code="store.bad-name")
    return host_dir / f"{meter}.{table}.{segment}.journal"


def make_row_struct(channels: int) -> struct.Struct:
    """Return the layout of a row with that many channels."""
    return struct.Struct(f"<qqq{channels}d")


def pack_row(row: struct.Struct, index: int, t0_ns: int, t1_ns: int, values: Iterable[float]) -> bytes:
    """Return one row as bytes; raise struct.error if the number of values is wrong."""
    return row.pack(index, t0_ns, t1_ns, *values)


def list_columns(streams: Sequence[Stream]) -> tuple[str, ...]:
    """Return the channel names of a table; raise StoreError if its streams have different ones."""
    if not streams:
        raise StoreError("a journal needs at least one stream", code="store.no-streams")
    columns = tuple(c.name for c in streams[0].channels)
    if any(tuple(c.name for c in s.channels) != columns for s in streams):
        raise StoreError(
            f"streams of table {streams[0].table!r} differ in their channels",
            next="give them tables of their own",
            code="store.channels-differ",
        )
    if len({s.name for s in streams}) != len(streams):
        raise StoreError(f"two streams of table {streams[0].table!r} have the same name", code="store.name-clash")
    # DuckDB's column names ignore case.
    taken = [*RESERVED, *(c.lower() for c in columns)]
    if len(set(taken)) != len(taken):
        what, why = f"channel names of table {streams[0].table!r} clash", f"reserved: {', '.join(RESERVED)}"
        raise StoreError(what, why=why, code="store.name-clash")
    return columns


def make_header_json(fields: HeaderFields, streams: Sequence[Stream]) -> dict[str, Any]:
    """Return the header of a journal as plain data."""
    return {
        "schema": SCHEMA,
        **fields,
        "columns": list(list_columns(streams)),
        "streams": [s.to_json() for s in streams],
    }


def pack_header(fields: HeaderFields, streams: Sequence[Stream]) -> bytes:
    """Return the bytes before the rows."""
    text = json.dumps(make_header_json(fields, streams), separators=(",", ":")).encode()
    text += b" " * (-(PREFIX.size + len(text)) % 8)
    return PREFIX.pack(MAGIC, len(text)) + text


def read_header(path: Path) -> JournalHeader:
    """Read the header of a journal; raise StoreError if it is torn, NewerSchema if it is newer, or OSError."""
    with open_regular(path) as file:
        prefix = file.read(PREFIX.size)
        magic, length = PREFIX.unpack(prefix) if len(prefix) == PREFIX.size else (b"", 0)
        if magic != MAGIC or length > HEADER_LIMIT:
            raise _make_torn_error(path, "no journal header")
        text = file.read(length)
    if len(text) < length:
        raise _make_torn_error(path, "header ends early")
    try:
        data = decode_json(text)
    except ValueError as error:
        raise _make_torn_error(path, f"header is {error}") from None
    if not isinstance(data, dict):
        raise _make_torn_error(path, "header is not an object")
    data = upgrade_document("journal", data, where=str(path))
    try:
        fields = {k: data[k] for k in HeaderFields.__annotations__}
        streams = tuple(Stream.from_json(s) for s in data["streams"])
        return JournalHeader(
            **fields, columns=tuple(data["columns"]), streams=streams, data_offset=PREFIX.size + length
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _make_torn_error(path, f"header lacks {error}") from None


def _make_torn_error(path: Path, why: str) -> StoreError:
    return StoreError(f"journal {path.name} cannot be read", where=str(path.parent), why=why, code="store.bad-journal")


class JournalWriter:
    """Append rows to a new journal, which is locked until it is closed, so that no process seals it before."""

    def __init__(self, path: Path, header: HeaderFields, streams: Sequence[Stream]) -> None:
        """Create the file with its header, and sync it; if the disk is full, raise WriteFailed and leave no file."""
        self.path = path
        self.row = make_row_struct(len(list_columns(streams)))
        self.rows = 0
        head = pack_header(header, streams)
        try:
            self._fd = os.open(path, NEW_FLAGS, 0o644)
        except OSError as error:
            raise WriteFailed(
                f"cannot create {path.name}", where=str(path.parent), error=error, rows_written=0
            ) from error
        self._open = True
        self._data_offset = self._end = 0
        try:
            self._lock()
            self._write(head, whole=len(head))
            self._data_offset = len(head)
            self.sync()
            sync_directory(path.parent)
        except WriteFailed:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append_rows(self, data: bytes | bytearray | memoryview) -> int:
        """Append whole rows and return their number; on failure cut the file back to its last whole row.

        Raises WriteFailed with `rows_written`: that many rows of this batch are in the file, the rest may be
        appended again. Raises StoreError for a part of a row.
        """
        if len(data) % self.row.size:
            what = f"{len(data)} bytes are not whole rows of {self.row.size}"
            raise StoreError(what, where=self.path.name, code="store.torn-rows")
        before = self.rows
        self._write(data, whole=self.row.size)
        return self.rows - before

    def sync(self) -> None:
        """Sync the rows to the disk. Raises WriteFailed."""
        try:
            getattr(os, "fdatasync", os.fsync)(self._fd)
        except OSError as error:
            raise self._failed("cannot sync", error, 0) from error

    def close(self) -> None:
        """Close the file without a sync; closing twice is harmless. Raises WriteFailed."""
        if not self._open:
            return
        self._open = False
        try:
            os.close(self._fd)
        except OSError as error:
            raise self._failed("cannot close", error, 0) from error

    def __enter__(self) -> JournalWriter:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _lock(self) -> None:
        # A file system without locks still records; sealing then goes by the owner of the run alone.
        if sys.platform != "win32":
            for _ in range(LOCK_TRIES):
                with contextlib.suppress(OSError):
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                time.sleep(0.001)  # A reader may be looking at this very moment whether the file is held.

    def _write(self, data: bytes | bytearray | memoryview, *, whole: int) -> None:
        # Positions are explicit: if even the cut fails, the next batch overwrites the torn part.
        view, done = memoryview(data).cast("B"), 0
        try:
            while done < len(view):
                done += os.pwrite(self._fd, view[done:], self._end + done)
        except OSError as error:
            written = done - done % whole
            self._advance(written)
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise self._failed("cannot write", error, written // whole) from error
        self._advance(done)

    def _advance(self, count: int) -> None:
        self._end += count
        if self._data_offset:
            self.rows += count // self.row.size

    def _failed(self, what: str, error: OSError, rows: int) -> WriteFailed:
        return WriteFailed(f"{what} {self.path.name}", where=str(self.path.parent), error=error, rows_written=rows)
