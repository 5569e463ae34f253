"""Seal runs: turn journals into one Parquet file per table; a journal is removed only after its copy is checked.

A manifest then records what all files of the run hold.

Rows of one stream lie together (per two million rows), so that reading a stream skips the others. The Parquet file is
written under another name, synced, checked and renamed; then the journals are removed. An interrupted seal leaves a run
that can be read as before, and the next seal continues.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from joulelab.core.errors import StoreError
from joulelab.store import manifest
from joulelab.store.journal import make_journal_path
from joulelab.store.run_folder import RunState, list_host_dirs, read_meta, read_run_state
from joulelab.store.safe_files import NO_FOLLOW, check_regular, is_being_written, is_own, sync_directory
from joulelab.store.sample_tables import (
    CHUNK_ROWS,
    METADATA_KEY,
    Mask,
    Rows,
    SampleTable,
    TableSegment,
    connect_database,
    list_table_names,
    load_table,
    quote_name,
    quote_text,
    read_chunks,
    read_sealed_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.store.run_reader import Run

if sys.platform != "win32":
    import fcntl

LOCK = ".seal.lock"
TEMPORARY = ".seal-"
# v2 packs times as differences and splits doubles by byte: half the size of v1, and faster both ways (measured).
FORMAT = "FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2"


@dataclass(frozen=True, slots=True)
class SealReport:
    """List the tables (`host/meter.table`) that were sealed now, and the tables that were not, with the reason."""

    sealed: tuple[str, ...]
    left: tuple[tuple[str, str], ...]


def seal_run(run: Path | Run, *, wait: bool = False, chunk_rows: int = CHUNK_ROWS) -> SealReport:
    """Seal every table of a run that is closed or killed; safe to call twice, and by two processes at once.

    If the run is live, the folder read-only, the disk full, or (unless `wait`) another process seals it, journals stay,
    which can be read as well; the report lists them. Raises NotARun or NewerSchema.
    """
    path = run if isinstance(run, Path) else run.path
    state = read_run_state(path, read_meta(path))
    if state is RunState.LIVE:
        return SealReport((), ((path.name, "still recording"),))
    folders = [f for f in list_host_dirs(path) if any(f.glob("*.journal")) or any(f.glob(f"{TEMPORARY}*"))]
    work = _SealWork(chunk_rows)
    if folders:
        _seal_hosts(path, folders, work, wait=wait)
    elif not any(path.glob("*/*.parquet")) and not os.path.lexists(path / manifest.FILE):
        work.write_manifest(path)  # no meter was read: there are marks and events all the same
    return SealReport(tuple(work.sealed), tuple(work.left))


class _SealWork:
    """Collect the tables of one run that were sealed, and those that were not."""

    def __init__(self, chunk_rows: int) -> None:
        self.chunk_rows = chunk_rows
        self.sealed: list[str] = []
        self.left: list[tuple[str, str]] = []
        self.rows: dict[str, int] = {}
        self.replaced: list[str] = []
        self.unfinished: list[str] = []

    def note_table(self, table: SampleTable) -> None:
        """Record a table whose journals are now in its Parquet file."""
        stem = f"{table.host}/{table.meter}.{table.table}"
        self.rows[f"{stem}.parquet"] = table.rows
        self.replaced += [f"{stem}.parquet", *(f"{stem}.{s.header.segment}.journal" for s in table.segments)]

    def write_manifest(self, run: Path) -> None:
        """Record the content of all files; a full disk or a folder of another user costs only the manifest."""
        try:
            manifest.write_manifest(run, self.rows, self.replaced, self.unfinished)
        except OSError as error:
            self.left.append((manifest.FILE, str(error.strerror)))


def _seal_hosts(run: Path, folders: Sequence[Path], work: _SealWork, *, wait: bool) -> None:
    # One database for all: on a run of many nodes it is most of the time. All locks are held until the manifest is
    # written, so that it never names a journal that another process removes meanwhile.
    with connect_database(memory_limit="2GB", threads=2) as con, contextlib.ExitStack() as locks:
        is_ours = False
        for k, folder in enumerate(folders):
            try:
                locks.enter_context(_lock_host(folder, wait=wait))
                is_ours = True
                _seal_host(folder, con, work)
            except BlockingIOError:
                work.left += [(each.name, "being sealed by another process") for each in folders[k:]]
                return
            except OSError as error:
                work.left.append((folder.name, str(error.strerror)))
        if is_ours:
            work.write_manifest(run)


@contextlib.contextmanager
def _lock_host(folder: Path, *, wait: bool) -> Iterator[None]:
    fd = _open_lock(folder)
    try:
        if sys.platform != "win32":
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise
            except OSError:
                pass  # No locks on this file system: two sealers write the same file twice, and both renames are whole.
        yield
    finally:
        os.close(fd)


def _open_lock(folder: Path) -> int:
    """Open the lock of a host folder that is ours; raise OSError for the folder of another user, and for a link.

    Its name is fixed, because processes that seal the same run must find it; nothing is ever written to it.
    """
    for path in (folder.parent, folder):
        if not is_own(path.lstat()):
            raise PermissionError(errno.EPERM, "it belongs to another user")
    flags = os.O_RDWR | NO_FOLLOW | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(folder / LOCK, flags)
    except FileNotFoundError:
        try:
            return os.open(folder / LOCK, flags | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            fd = os.open(folder / LOCK, flags)  # another process has just made it; a link leads nowhere
    try:
        check_regular(folder / LOCK, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def _seal_host(folder: Path, con: duckdb.DuckDBPyConnection, work: _SealWork) -> None:
    for rest in folder.glob(f"{TEMPORARY}*"):
        rest.unlink(missing_ok=True)
    records = manifest.read_records(folder.parent)  # before the first Parquet file replaces its journal
    for meter, name in list_table_names(folder):
        label = f"{folder.name}/{meter}.{name}"
        table = load_table(folder, meter, name, con)
        names = [path.relative_to(folder.parent).as_posix() for path in table.paths]
        checks = [manifest.check_file(folder.parent, n, records[n], hashes=True) for n in names if n in records]
        if damaged := [check.name for check in checks if check.status != "whole"]:
            work.left.append((label, f"{damaged[0]} is damaged"))
            continue
        torn = [p.what for p in table.problems if p.path.suffix == ".journal"]
        work.left += [(label, what) for what in torn]
        written = [s for s in table.journals if s.path is not None and is_being_written(s.path)]
        if written:
            work.left.append((label, "still being written"))
            work.unfinished += [f"{folder.name}/{s.path.name}" for s in written if s.path is not None]
            continue
        try:
            if table.journals:
                _seal_table(folder, table, con, work.chunk_rows)
                work.sealed.append(label)
            after = load_table(folder, meter, name, con)
            _remove_sealed(folder, after)
            if after.parquet is not None and table.journals:
                work.note_table(after)
        except (OSError, duckdb.Error, StoreError) as error:
            work.left.append((label, str(error).splitlines()[0]))


def _seal_table(folder: Path, table: SampleTable, con: duckdb.DuckDBPyConnection, chunk_rows: int) -> None:
    target = folder / f"{table.meter}.{table.table}.parquet"
    if target.exists() and table.parquet is None:
        raise StoreError(f"{target.name} is damaged; its journals are still beside it", code="store.damaged")
    with open_temporary_files(folder) as temporary:
        finished = write_table(table, temporary, con, chunk_rows)
        with finished.open("rb") as file:
            os.fsync(file.fileno())
        finished.replace(target)
    sync_directory(folder)


class TemporaryFiles:
    """Hand out names of temporary files in one folder."""

    def __init__(self, folder: Path) -> None:
        """Take the folder."""
        self.folder = folder
        self.paths: list[Path] = []

    def new(self) -> Path:
        """Return a unique name that cannot be guessed from earlier names."""
        self.paths.append(self.folder / f"{TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}")
        return self.paths[-1]


@contextlib.contextmanager
def open_temporary_files(folder: Path) -> Iterator[TemporaryFiles]:
    """Create temporary files and remove them when the block ends."""
    temporary = TemporaryFiles(folder)
    try:
        yield temporary
    finally:
        for path in temporary.paths:
            path.unlink(missing_ok=True)


def write_table(
    table: SampleTable, temporary: TemporaryFiles, con: duckdb.DuckDBPyConnection, chunk_rows: int = CHUNK_ROWS
) -> Path:
    """Write all rows of a table as one checked Parquet file and return it; memory is bounded by `chunk_rows`.

    Raises StoreError if the file differs from its sources, OSError or duckdb.Error if writing fails.
    """
    tally = _RowTally()
    if not table.parquet and len(table.journals) == 1 and table.rows <= chunk_rows:
        segment = table.journals[0]
        rows, sound = next(read_chunks(segment, chunk_rows))
        good = tally.add(segment, rows, sound)
        final = temporary.new()
        _copy_rows(con, good, segment, table.columns, final, tally.described(table))
    else:
        parts = list(_write_parts(table, temporary, con, chunk_rows, tally))
        files = f"read_parquet([{', '.join(map(quote_text, parts))}])"
        final = temporary.new()
        _copy_parts(con, f"SELECT * FROM {files}", final, tally.described(table))  # noqa: S608 (quoted)
    if _sum_rows(con, final, table.columns) != tally.sums:
        what = f"{table.meter}.{table.table}: the Parquet file does not hold what the journals hold"
        raise StoreError(what, code="store.seal-differs")
    return final


class _RowTally:
    """Count the rows written to a file, to compare them with those read back."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = {}
        self._rows: dict[int, int] = {}
        self._damaged: dict[int, int] = {}

    def add(self, segment: TableSegment, rows: Rows, sound: Mask) -> Rows:
        """Count a piece of a journal and return its sound rows."""
        good = rows if sound.all() else rows[sound]
        number = segment.header.segment
        self._rows[number] = self._rows.get(number, 0) + len(good)
        self._damaged[number] = self._damaged.get(number, 0) + len(rows) - len(good)
        read = {c: len(good) - int(np.count_nonzero(np.isnan(good[c]))) for c in segment.header.columns}
        times = {c: int(good[c].sum(dtype=np.int64)) for c in ("t0_ns", "t1_ns")}
        self.add_sums({"rows": len(good), **times, **read})
        return good

    def add_sums(self, sums: Mapping[str, int]) -> None:
        """Count rows whose sums are known."""
        for name, value in sums.items():
            # Sums of 64-bit integers wrap in numpy and do not in DuckDB.
            self.sums[name] = (self.sums.get(name, 0) + value) % 2**64

    def described(self, table: SampleTable) -> dict[str, Any]:
        """Return the document for the file, with the counted rows."""
        segments = tuple(
            replace(s, rows=self._rows[s.header.segment], damaged_rows=self._damaged[s.header.segment]) if s.path else s
            for s in table.segments
        )
        return read_sealed_header(replace(table, segments=segments))


def _write_parts(
    table: SampleTable, temporary: TemporaryFiles, con: duckdb.DuckDBPyConnection, chunk_rows: int, tally: _RowTally
) -> Iterator[Path]:
    if table.parquet:
        part = temporary.new()
        stored = {c for s in table.segments if s.path is None for c in s.header.columns}
        columns = [quote_name(c) if c in stored else f"NULL::DOUBLE AS {quote_name(c)}" for c in table.columns]
        picked = ", ".join(["stream", "scope", "segment", "t0_ns", "t1_ns", *columns])
        _copy_parts(con, f"SELECT {picked} FROM {quote_text(table.parquet)}", part, None)  # noqa: S608 (quoted)
        tally.add_sums(_sum_rows(con, part, table.columns))
        yield part
    for segment in table.journals:
        for rows, sound in read_chunks(segment, chunk_rows):
            part = temporary.new()
            _copy_rows(con, tally.add(segment, rows, sound), segment, table.columns, part, None)
            yield part


def _copy_rows(
    con: duckdb.DuckDBPyConnection,
    rows: Rows,
    segment: TableSegment,
    columns: Sequence[str],
    target: Path,
    document: dict[str, Any] | None,
) -> None:
    streams = segment.header.streams
    # 16-bit keys sort in linear time; within a stream the order of the journal stays.
    key = rows["stream"].astype(np.int16 if len(streams) < 2**15 else np.int64)
    ordered = rows[np.argsort(key, kind="stable")] if len(streams) > 1 else rows
    present = segment.header.columns
    names, scopes = (
        ", ".join(quote_text(t) for t in texts) for texts in ([s.name for s in streams], [s.scope for s in streams])
    )
    # NULL = not read: so averages in SQL are right, and no reader takes it for a number.
    values = [f"{_count_values(c) if c in present else 'NULL'}::DOUBLE AS {quote_name(c)}" for c in columns]
    picked = [
        f"[{names}][stream + 1] AS stream",
        f"[{scopes}][stream + 1] AS scope",
        f"{segment.header.segment}::INTEGER AS segment",
        "t0_ns",
        "t1_ns",
        *values,
    ]
    con.register("journal", {c: ordered[c] for c in ("stream", "t0_ns", "t1_ns", *present)})
    try:
        _copy_parts(con, f"SELECT {', '.join(picked)} FROM journal", target, document)  # noqa: S608 (quoted)
    finally:
        con.unregister("journal")


def _count_values(column: str) -> str:
    return f"nullif({quote_name(column)}, 'nan'::DOUBLE)"


def _copy_parts(con: duckdb.DuckDBPyConnection, select: str, target: Path, document: dict[str, Any] | None) -> None:
    text = json.dumps(document, separators=(",", ":"))
    metadata = "" if document is None else f", KV_METADATA {{{METADATA_KEY}: {quote_text(text)}}}"
    # Our names are temporary already; DuckDB's own temporary name would only be one more to clean up.
    con.execute(f"COPY ({select}) TO {quote_text(target)} ({FORMAT}, USE_TMP_FILE false{metadata})")


def _sum_rows(con: duckdb.DuckDBPyConnection, path: Path, columns: Sequence[str]) -> dict[str, int]:
    counts = ["count(*)", "sum(t0_ns)", "sum(t1_ns)", *(f"count({quote_name(c)})" for c in columns)]
    select = f"SELECT {', '.join(counts)} FROM read_parquet({quote_text(path)})"  # noqa: S608 (quoted)
    (found,) = con.execute(select).fetchall()
    return {n: int(v or 0) % 2**64 for n, v in zip(("rows", "t0_ns", "t1_ns", *columns), found, strict=True)}


def _remove_sealed(folder: Path, table: SampleTable) -> None:
    for segment in table.segments:
        path = make_journal_path(folder, table.meter, table.table, segment.header.segment)
        if segment.path is not None or not path.exists():
            continue
        if segment.damaged_rows:
            # Raw data is never thrown away, be it garbage.
            path.replace(path.with_suffix(".damaged"))
        else:
            path.unlink(missing_ok=True)
