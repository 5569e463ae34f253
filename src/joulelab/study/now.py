"""Tell the power that a run takes now, from the ends of its journals: quick, and rough."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.errors import StoreError
from joulelab.core.scope import find_family, find_parent, find_roots
from joulelab.store.journal import JournalHeader, make_row_struct, read_header
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from joulelab.core.spec import Spec, Stream

Row = tuple[int, list[float]]  # time of the reading (ns), channels
LAST_S = 3.0  # readings of so long a stretch tell the power now
MOST_ROWS = 2000
LEFT_OUT = ("job", "host", "workload")


def read_power_now(run: Path) -> float | None:
    """Return the power (W) of everything that is measured, without counting anything twice; None where nothing is."""
    found = 0.0
    hosts: dict[Path, dict[str, float]] = {}
    parents: dict[Path, dict[str, str | None]] = {}
    for journal in sorted(run.glob("*/*.journal")):
        for stream, watts in _streams(journal):
            if find_family(stream.scope) not in LEFT_OUT and not stream.sums:
                hosts.setdefault(journal.parent, {}).setdefault(stream.scope, watts)
                parents.setdefault(journal.parent, {})[stream.scope] = find_parent(stream.scope, stream.parent)
    for host, scopes in hosts.items():
        found += sum(scopes[scope] for scope in find_roots(scopes, parents[host]))
    return found if hosts else None


def _streams(journal: Path) -> Iterator[tuple[Stream, float]]:
    """Yield the power of each stream of a journal, of those that tell it."""
    with contextlib.suppress(OSError, StoreError):
        header = read_header(journal)
        rows = _last_rows(journal, header)
        newest = max((t for of in rows.values() for t, _ in of), default=0)
        for index, of in rows.items():
            recent = [row for row in of if newest - row[0] <= LAST_S * NS]
            stream = header.streams[index]
            told = (_watts(spec, k, recent) for k, spec in enumerate(stream.channels) if not spec.estimate)
            watts = next((w for w in told if w is not None), None)
            if watts is not None:
                yield stream, watts


def _last_rows(journal: Path, header: JournalHeader) -> dict[int, list[Row]]:
    """Return the last rows of each stream, in the order of their times."""
    layout = make_row_struct(len(header.columns))
    rows: dict[int, list[Row]] = {}
    with open_regular(journal) as file:
        whole = (file.seek(0, 2) - header.data_offset) // layout.size
        file.seek(header.data_offset + max(whole - MOST_ROWS, 0) * layout.size)
        data = file.read(min(whole, MOST_ROWS) * layout.size)
    for index, t0, _, *values in layout.iter_unpack(data[: len(data) // layout.size * layout.size]):
        if index < len(header.streams):
            rows.setdefault(index, []).append((t0, values))
    return rows


def _watts(spec: Spec, k: int, rows: Sequence[Row]) -> float | None:
    """Return the mean of a power, or what a counter rose in its time; None where neither can be told."""
    values = [(t, row[k]) for t, row in rows if not math.isnan(row[k])]
    if spec.kind == "power" and values:
        return sum(value for _, value in values) / len(values)
    if spec.kind != "counter" or spec.unit != "J" or len(values) < 2:
        return None
    (t0, first), (t1, last) = values[0], values[-1]
    return (last - first) * NS / (t1 - t0) if t1 > t0 and last >= first else None
