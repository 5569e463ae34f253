"""Tell how far the readings of a run that goes on have reached the disk."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import StoreError
from joulelab.store.journal import read_header
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.core.spec import Stream

# Slower streams are not waited for.
FAST_S = 1.0
# How long a stretch that has ended may have to wait until its last readings are on the disk.
COVER_S = 1.2
_STAMPS = struct.Struct("<qqq")


def covered(run: Path, t_ns: int) -> bool:
    """Return whether every fast table of energy or power has a reading that began at or after a time."""
    # The recorder writes events after rows: where there are some, every table has been begun.
    begun = any(path.stat().st_size for path in run.glob("*/events.[0-9]*.jsonl"))
    return begun and all(_reaches(path, t_ns) for path in _last_segments(run))


def wait_until_covered(run: Path, end_ns: int) -> None:
    """Wait until the readings on the disk reach beyond a time, at most until COVER_S after it."""
    until = end_ns + round(COVER_S * NS)
    while not covered(run, end_ns) and monotonic_ns() < until:
        time.sleep(0.02)


def _last_segments(run: Path) -> list[Path]:
    newest: dict[tuple[Path, str], Path] = {}
    for path in sorted(run.glob("*/*.journal"), key=lambda p: int(p.name.split(".")[-2])):
        newest[path.parent, path.name.rsplit(".", 2)[0]] = path
    return list(newest.values())


def _reaches(path: Path, t_ns: int) -> bool:
    try:
        header = read_header(path)
        if not any(map(_matters, header.streams)):
            return True
        rows = (path.stat().st_size - header.data_offset) // header.row_bytes
        if rows < 1:
            return False
        with open_regular(path) as file:
            file.seek(header.data_offset + (rows - 1) * header.row_bytes)
            return int(_STAMPS.unpack(file.read(_STAMPS.size))[1]) >= t_ns
    except FileNotFoundError:
        return True  # sealed meanwhile: the run has ended
    except (OSError, StoreError, struct.error):
        return False  # being begun


def _matters(stream: Stream) -> bool:
    return stream.period_s <= FAST_S and any(c.kind == "power" or c.unit == "J" for c in stream.channels)
