"""Read the rows of a CSV or Parquet file as cells of text, with the line that each row is from."""

from __future__ import annotations

import codecs
import csv
import hashlib
from collections import Counter
from dataclasses import dataclass, field
from io import TextIOWrapper
from typing import TYPE_CHECKING, BinaryIO

from joulelab.core.errors import ConfigError, Denied, ReadFailed, Unavailable
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

DELIMITERS = (",", ";", "\t", "|")
_BATCH = 100_000
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass(slots=True)
class Faults:
    """Count rows that were left out since they have too few or too many cells, and say what else is odd."""

    shape: int = 0
    first_line: int = 0
    unended: bool = False


@dataclass(slots=True)
class CsvSource:
    """Read delimited text; a row with another number of cells than the header is counted and left out.

    `header` is the line of the column names, 0 where there are none (then they are called 1, 2, ...), None for the
    first line that is neither empty nor a comment.
    """

    path: Path
    delimiter: str | None = None
    header: int | None = None
    comment: str = "#"
    encoding: str | None = None
    decimal: str = "."
    names: list[str] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    _begin: int = 0

    def __post_init__(self) -> None:
        """Read as far as the header."""
        self.encoding = self.encoding or _encoding(self.path)
        for number, line in self._lines():
            if self.header is not None and self.header > 0 and number < self.header:
                continue
            if self.header != number and self._skipped(line):
                continue
            self.delimiter = self.delimiter or _guess_delimiter(line, self.decimal)
            cells = self._split(line)
            unnamed = self.header == 0
            self.names = [str(k + 1) if unnamed else c.strip() for k, c in enumerate(cells)]
            self._begin = number if unnamed else number + 1
            return
        raise Unavailable("the file has no header and no rows", where=str(self.path), why="it is empty, or ends before")

    def rows(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield line number and cells of each row. Raises MeterError."""
        self.faults = Faults()
        wanted, line = len(self.names), "\n"
        for number, line in self._lines():
            if number < self._begin or self._skipped(line):
                continue
            cells = self._split(line)
            if len(cells) == wanted + 1 and not cells[-1].strip():
                cells.pop()  # a delimiter at the end of the line
            if len(cells) != wanted:
                self.faults.shape += 1
                self.faults.first_line = self.faults.first_line or number
                continue
            yield number, cells
        self.faults.unended = not line.endswith("\n")

    def _skipped(self, line: str) -> bool:
        return not line.strip() or bool(self.comment and line.lstrip().startswith(self.comment))

    def _split(self, line: str) -> list[str]:
        # One line is one row: a lost quote must not swallow those that follow.
        text = line.rstrip("\n")
        delimiter = self.delimiter or ","
        if '"' not in text:
            return text.split(delimiter)
        try:
            return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])
        except csv.Error:
            return []

    def _lines(self) -> Iterator[tuple[int, str]]:
        return read_lines(self.path, self.encoding)


def read_lines(path: Path, encoding: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line. Raises ReadFailed, ConfigError, Unavailable, Denied."""
    with _opened(path, encoding or _encoding(path)) as file:
        try:
            yield from enumerate(file, 1)
        except OSError as error:
            raise ReadFailed("the file cannot be read", where=str(path), why=error.strerror) from error
        except UnicodeError as error:
            advice = "type encoding=utf-8, encoding=utf-16-le or encoding=latin-1"
            raise ConfigError(f"it is not {encoding}", where=str(path), why=str(error), next=advice) from None


class ParquetSource:
    """Read a Parquet file through DuckDB; every value becomes the text that a CSV file would hold."""

    def __init__(self, path: Path) -> None:
        """Read the names of the columns."""
        self.path = path
        self.faults = Faults()
        with _bytes_of(path):
            pass
        self._columns = self._describe()
        self.names = [name for name, _ in self._columns]

    def rows(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yield row number and cells of each row. Raises MeterError."""
        import duckdb

        from joulelab.store.sample_tables import connect_database

        picked = ", ".join(_as_text(name, kind) for name, kind in self._columns)
        try:
            with connect_database() as con:
                answer = con.execute(f"SELECT {picked} FROM read_parquet($path)", {"path": str(self.path)})  # noqa: S608 (quoted)
                number = 0
                while batch := answer.fetchmany(_BATCH):
                    for cells in batch:
                        number += 1
                        yield number, cells
        except duckdb.Error as error:
            raise _damaged(self.path, error) from None

    def _describe(self) -> list[tuple[str, str]]:
        import duckdb

        from joulelab.store.sample_tables import connect_database

        try:
            with connect_database() as con:
                found = con.execute("DESCRIBE SELECT * FROM read_parquet($path)", {"path": str(self.path)}).fetchall()
        except duckdb.Error as error:
            raise _damaged(self.path, error) from None
        return [(str(row[0]), str(row[1])) for row in found]


def sha256(path: Path) -> str:
    """Return the hash of a file. Raises MeterError."""
    digest = hashlib.sha256()
    with _bytes_of(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _damaged(path: Path, error: Exception) -> Unavailable:
    return Unavailable("it is no whole Parquet file", where=str(path), why=str(error).splitlines()[0])


def _as_text(name: str, kind: str) -> str:
    column = '"' + name.replace('"', '""') + '"'
    if kind == "TIMESTAMP WITH TIME ZONE":  # its text would be in the zone of whoever reads it
        return f"coalesce(strftime(make_timestamp(epoch_us({column})), '%Y-%m-%d %H:%M:%S.%fZ'), '')"
    return f"coalesce({column}::VARCHAR, '')"


def _guess_delimiter(line: str, decimal: str) -> str:
    counts = Counter({d: line.count(d) for d in DELIMITERS if d != decimal})
    best, count = counts.most_common(1)[0]
    return best if count else ";" if decimal == "," else ","


def _encoding(path: Path) -> str:
    with _bytes_of(path) as file:
        head = file.read(4)
    return next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")


def _opened(path: Path, encoding: str) -> TextIOWrapper:
    file = _bytes_of(path)
    try:
        # Bytes that are no text make a cell that is no number, and not an end of the whole file.
        return TextIOWrapper(file, encoding=encoding, errors="backslashreplace", newline=None)
    except LookupError:
        file.close()
        raise ConfigError(
            f"there is no encoding {encoding!r}", where=str(path), next="utf-8, utf-16, latin-1 or cp1252"
        ) from None


def _bytes_of(path: Path) -> BinaryIO:
    """Open a regular file, which is read several times: a FIFO would wait for a writer for ever."""
    try:
        return open_regular(path)
    except OSError as error:
        kind = Denied if isinstance(error, PermissionError) else Unavailable
        advice = "give the path of a regular file; save what comes through a pipe first"
        raise kind("the file cannot be opened", where=str(path), why=error.strerror, next=advice) from error
