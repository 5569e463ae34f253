"""Carry rows from a sampling thread to the writer thread: one list per table, no locks, no disk."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from joulelab.store.journal import list_columns, make_row_struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.core.spec import Stream


class RowQueue:
    """Hold the rows of one table until they are written.

    The sampling thread appends packed rows at the end of `rows`, the writer thread takes them from its beginning:
    each is one operation of the interpreter, so no row is lost or torn and neither waits for the other.
    """

    __slots__ = ("backlog", "dropped", "meter", "name", "pack", "row_bytes", "rows", "streams")

    def __init__(self, meter: str, name: str, streams: Sequence[Stream]) -> None:
        """Prepare a table; raise StoreError if its streams have different channels."""
        row = make_row_struct(len(list_columns(streams)))
        self.meter = meter
        self.name = name
        self.streams = tuple(streams)
        self.pack = row.pack
        self.row_bytes = row.size
        self.rows: list[bytes] = []
        self.backlog = bytearray()
        self.dropped = 0

    def collect(self) -> int:
        """Move sampled rows into the backlog and return the size of the backlog in bytes."""
        rows = self.rows
        count = len(rows)
        if count:
            self.backlog += b"".join(rows[:count])
            del rows[:count]
        return len(self.backlog)

    def drop_oldest(self, size: int) -> int:
        """Drop at least `size` bytes of the oldest rows, or all rows; return the number of dropped rows."""
        count = min(-(-size // self.row_bytes), len(self.backlog) // self.row_bytes)
        del self.backlog[: count * self.row_bytes]
        self.dropped += count
        return count


def make_row_tables(meter: str, streams: Sequence[Stream]) -> list[RowQueue]:
    """Return the tables that a meter's streams need, in the order of their names."""
    ordered = sorted(streams, key=lambda s: s.table)
    return [RowQueue(meter, name, list(group)) for name, group in groupby(ordered, key=lambda s: s.table)]
