"""Read clocks: monotonic nanoseconds, and pairs that join them to UTC."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NS = 1_000_000_000
NEVER_NS = 1 << 62  # a time that is never reached
monotonic_ns: Callable[[], int] = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class ClockPair:
    """Join monotonic time to UTC: `utc_ns` was read between two monotonic readings `width_ns` apart."""

    mono_ns: int
    utc_ns: int
    width_ns: int
    kernel_error_ns: int | None
    boot_id: str


def read_boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return the kernel's id of this boot, empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def read_utc_ns() -> int:
    """Return UTC in ns; only clock pairs use it."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


def read_clock_pair(mono: Callable[[], int] = time.monotonic_ns, utc: Callable[[], int] = read_utc_ns) -> ClockPair:
    """Read monotonic time, UTC and monotonic time five times; return the pair with the shortest reading."""
    readings = [(mono(), utc(), mono()) for _ in range(5)]
    before, wall, after = min(readings, key=lambda r: r[2] - r[0])
    return ClockPair((before + after) // 2, wall, after - before, read_clock_error_ns(), read_boot_id())


class _Timex(ctypes.Structure):
    # struct timex of 64-bit Linux; only the fields up to maxerror are read, the rest is room for the kernel to write.
    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("room", ctypes.c_long * 28),
    ]


def read_clock_error_ns(adjtimex: Callable[[Any], int] | None = None) -> int | None:
    """Return the largest error (ns) of the UTC clock as the kernel states it, None if it states none."""
    timex = _Timex()
    try:
        status = (adjtimex or ctypes.CDLL(None).adjtimex)(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    return None if status < 0 else int(timex.maxerror) * 1000
