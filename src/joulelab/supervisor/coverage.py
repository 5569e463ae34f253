"""Tell how far the readings of a run that goes on have reached the disk."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from joulelab.core.errors import StoreError
from joulelab.store.journal import read_header

if TYPE_CHECKING:
    from pathlib import Path

# Slower streams are not waited for.
FAST_S = 1.0
_STAMPS = struct.Struct("<qqq")


def covered(run: Path, t_ns: int) -> bool:
    """Return whether every fast table has a reading that began at or after a time, or none is being written."""
    return all(_last_ns(path) >= t_ns for path in _last_segments(run))


def _last_segments(run: Path) -> list[Path]:
    newest: dict[tuple[Path, str], Path] = {}
    for path in sorted(run.glob("*/*.journal"), key=lambda p: int(p.name.split(".")[-2])):
        newest[path.parent, path.name.rsplit(".", 2)[0]] = path
    return list(newest.values())


def _last_ns(path: Path) -> int:
    """Return when the last reading in a journal began; far in the future where there is nothing to wait for."""
    never = 1 << 62
    try:
        header = read_header(path)
        if min(s.period_s for s in header.streams) > FAST_S:
            return never
        rows = (path.stat().st_size - header.data_offset) // header.row_bytes
        if rows < 1:
            return 0
        with path.open("rb") as file:
            file.seek(header.data_offset + (rows - 1) * header.row_bytes)
            return int(_STAMPS.unpack(file.read(_STAMPS.size))[1])
    except (OSError, StoreError, ValueError):
        return never
