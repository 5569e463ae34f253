"""Append the supervisor's events to a run folder."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.store.safe_files import open_append

if TYPE_CHECKING:
    from pathlib import Path

# Kept free for the last events: how the workload ended is written even on a disk that is full by then.
RESERVED = 32 << 10
FALLOC_FL_KEEP_SIZE = 1


class EventLog:
    """Write one event per line; what a full disk refuses is tried again with the next event, and at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._lines = bytearray()
        self._lock = threading.Lock()

    def add(self, event: str, *, t: int | None = None, **fields: Any) -> None:
        """Append an event; `t` is monotonic ns, now unless given."""
        data = {"t": monotonic_ns() if t is None else t, "event": event, **fields}
        line = json.dumps(data, separators=(",", ":"), default=str).encode() + b"\n"
        with self._lock:
            self._lines += line
            self._flush()

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = open_append(self._path)
                _reserve_space(self._fd)
            while self._lines:
                del self._lines[: os.write(self._fd, self._lines)]

    def close(self) -> None:
        """Flush and close."""
        with self._lock:
            self._flush()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size)  # gives back what was reserved
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1


def _reserve_space(fd: int) -> None:
    with contextlib.suppress(AttributeError):
        call = ctypes.CDLL(None).fallocate
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        call(fd, FALLOC_FL_KEEP_SIZE, 0, RESERVED)  # where it fails, there is no reserve
