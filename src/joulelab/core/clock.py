"""Read clocks: monotonic nanoseconds, and pairs that join them to UTC."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NS = 1_000_000_000
monotonic_ns: Callable[[], int] = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class ClockPair:
    """Join monotonic time to UTC: `utc_ns` was read between two monotonic readings `width_ns` apart."""

    mono_ns: int
    utc_ns: int
    width_ns: int
    kernel_error_ns: int | None
    boot_id: str


def boot_id() -> str:
    """Return the kernel's id of this boot, empty where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def utc_now_ns() -> int:
    """Return UTC in ns; only clock pairs use it."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


def clock_pair(mono: Callable[[], int] = time.monotonic_ns, utc: Callable[[], int] = utc_now_ns) -> ClockPair:
    """Take the tightest of five mono-UTC-mono readings."""
    best: tuple[int, int, int] | None = None
    for _ in range(5):
        before, wall, after = mono(), utc(), mono()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, wall)
    assert best is not None
    return ClockPair(best[1], best[2], best[0], kernel_error_ns(), boot_id())


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


def kernel_error_ns() -> int | None:
    """Return the kernel's own bound on the UTC clock's error in ns, None where it does not tell."""
    try:
        timex = _Timex()
        if ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0:
            return None
        return int(timex.maxerror) * 1000
    except (OSError, AttributeError):
        return None
