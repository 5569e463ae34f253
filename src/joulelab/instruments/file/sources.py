"""Read the rows of a CSV or Parquet file as cells of text, with the line that each row is from."""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import zlib
from dataclasses import dataclass, field
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from joulelab.core.errors import Denied, ReadFailed, Unavailable
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

DELIMITERS = (",", ";", "\t", "|")
_BATCH = 100_000
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_GZIP, PARQUET = b"\x1f\x8b", b"PAR1"  # first bytes
# First bytes of files that hold a table in a form that is not read.
_PACKED = {
    b"PK\x03\x04": "a spreadsheet or a zip archive",
    b"\xd0\xcf\x11\xe0": "an old spreadsheet",
    b"(\xb5/\xfd": "compressed by zstd",
    b"\xfd7zXZ": "compressed by xz",
    b"BZh": "compressed by bzip2",
    b"{": "JSON",
}


@dataclass(slots=True)
class Faults:
    """Count rows that were left out because of their number of cells; `is_cut`: the last line has no end."""

    shape: int = 0
    first_line: int = 0
    is_cut: bool = False

    def add_row(self, line: int) -> None:
        """Count a row that does not fit."""
        self.shape += 1
        self.first_line = self.first_line or line


@dataclass(slots=True)
class CsvSource:
    """Read delimited text; a row with another number of cells than the header is counted and left out.

    `header` is the line of the column names, 0 where there are none (then they are called 1, 2, ...), None for the
    first line that is neither empty nor a comment.
    """

    path: Path
    delimiter: str | None = None
    header: int | None = None
    decimal: str = "."
    names: list[str] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    _begin: int = 0

    def __post_init__(self) -> None:
        """Read as far as the header."""
        for number, line in read_lines(self.path):
            if (self.header or 0) > number or (self.header != number and self._is_skipped(line)):
                continue
            if not self.delimiter:
                counts = {d: line.count(d) for d in DELIMITERS if d != self.decimal}
                best = max(counts, key=lambda d: counts[d])
                self.delimiter = best if counts[best] else ";" if self.decimal == "," else ","
            is_unnamed = self.header == 0
            self.names = [str(k + 1) if is_unnamed else c.strip() for k, c in enumerate(self._split_line(line))]
            self._begin = number if is_unnamed else number + 1
            return
        why = "it is empty, or ends before"
        raise Unavailable(
            "the file has no header and no rows", where=str(self.path), why=why, code="unavailable.empty-file"
        )

    def read_rows(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield line number and cells of each row. Raises MeterError."""
        self.faults = Faults()
        wanted, line = len(self.names), "\n"
        for number, line in read_lines(self.path):
            if number < self._begin or self._is_skipped(line):
                continue
            cells = self._split_line(line)
            if len(cells) == wanted + 1 and not cells[-1].strip():
                cells.pop()  # a delimiter at the end of the line
            if len(cells) == wanted:
                yield number, cells
            else:
                self.faults.add_row(number)
        self.faults.is_cut = not line.endswith("\n")

    def _is_skipped(self, line: str) -> bool:
        return not line.strip() or line.lstrip().startswith("#")

    def _split_line(self, line: str) -> list[str]:
        # One line is one row: a lost quote must not swallow those that follow.
        text, delimiter = line.rstrip("\n"), self.delimiter or ","
        if '"' not in text:
            return text.split(delimiter)
        try:
            return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])
        except csv.Error:
            return []


class ParquetSource:
    """Read a Parquet file through DuckDB; every value becomes the text that a CSV file would hold."""

    decimal = "."

    def __init__(self, path: Path) -> None:
        """Read the names of the columns."""
        self.path = path
        self.faults = Faults()
        open_bytes(path).close()
        self._columns = [(str(row[0]), str(row[1])) for row in self._query_file("DESCRIBE SELECT * FROM")]
        self.names = [name for name, _ in self._columns]

    def read_rows(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield row number and cells of each row. Raises MeterError."""
        picked = []
        for name, kind in self._columns:
            column = '"' + name.replace('"', '""') + '"'
            text = f"{column}::VARCHAR"
            if kind == "TIMESTAMP WITH TIME ZONE":  # its text would be in the zone of the reader
                text = f"strftime(make_timestamp(epoch_us({column})), '%Y-%m-%d %H:%M:%S.%fZ')"
            picked.append(f"coalesce({text}, '')")
        yield from enumerate(self._query_file(f"SELECT {', '.join(picked)} FROM"), 1)

    def _query_file(self, query: str) -> Iterator[Any]:
        import duckdb

        from joulelab.store.sample_tables import connect_database

        try:
            with connect_database() as con:
                answer = con.execute(f"{query} read_parquet($path)", {"path": str(self.path)})
                while batch := answer.fetchmany(_BATCH):
                    yield from batch
        except duckdb.Error as error:
            what, why = "it is no whole Parquet file", str(error).splitlines()[0]
            raise Unavailable(what, where=str(self.path), why=why, code="unavailable.no-parquet") from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, UTF-8 or UTF-16 with its mark. Raises ReadFailed, Unavailable, Denied."""
    with open_bytes(path) as file:
        head = file.read(4)
    encoding = next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")
    try:
        # Bytes that are no text make a cell that is no number, and not an end of the whole file.
        with TextIOWrapper(open_bytes(path), encoding=encoding, errors="backslashreplace", newline=None) as text:
            yield from enumerate(text, 1)
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        code = "read-failed.damaged-file"
        raise ReadFailed("the file cannot be read", where=str(path), why=str(error), code=code) from error


def describe_file(path: Path) -> dict[str, Any]:
    """Return name, size and hash of the content of a file. Raises MeterError."""
    with open_bytes(path, may_be_json=True) as file:
        digest = hashlib.file_digest(cast("Any", file), "sha256")
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def open_bytes(path: Path, *, may_be_json: bool = False) -> BinaryIO:
    """Open a regular file, one by gzip as its content. Raises Unavailable, Denied.

    A file is read several times, and a FIFO would wait for a writer for ever. JSON is refused unless it is asked for.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        kind = Denied if isinstance(error, PermissionError) else Unavailable
        advice = "give the path of a regular file; save what comes through a pipe first"
        raise kind(
            "the file cannot be opened", where=str(path), why=error.strerror, next=advice, code=f"{kind.code}.file"
        ) from error
    head = file.read(6)
    file.seek(0)
    if head.startswith(_GZIP):
        unpacked = gzip.GzipFile(fileobj=file)
        unpacked.myfileobj = cast("Any", file)  # closes with it
        return cast("BinaryIO", unpacked)
    packed = next((name for mark, name in _PACKED.items() if head.startswith(mark)), None)
    if packed is not None and not (may_be_json and packed == "JSON"):
        file.close()
        advice = "save it as CSV, or decompress it; gzip is read as it is"
        raise Unavailable(f"it is {packed}", where=str(path), next=advice, code="unavailable.packed-file")
    return file
