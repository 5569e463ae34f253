"""Take signals from a file descriptor; name those that the recorder shares with the workload's process group.

Handlers would run on whatever stack a thread has: several signals at once overflow the small one that Python's own
crash reporter sets up, which ends the process. Blocked signals that are read never interrupt anything.
"""

from __future__ import annotations

import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Seen here, they were sent to the whole group: the supervisor is told, and does not pass them on a second time.
REPORTED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGWINCH,
)
IGNORED = (
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGXCPU,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
)
_SIGINFO = struct.Struct("=IiiI112x")
SI_KERNEL = 0x80


def open_signals(numbers: Iterable[int]) -> int:
    """Return a file descriptor from which blocked signals are read; raise OSError if the system cannot do that."""
    import ctypes

    mask = sum(1 << (number - 1) for number in numbers).to_bytes(128, "little")
    fd: int = ctypes.CDLL(None, use_errno=True).signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return fd


def read_signals(fd: int) -> list[tuple[int, bool, int]]:
    """Return the signals that have arrived: number, whether the kernel sent it, the sender's pid otherwise."""
    arrived: list[tuple[int, bool, int]] = []
    while True:
        try:
            data = os.read(fd, _SIGINFO.size * 16)
        except BlockingIOError:
            return arrived
        arrived += [(number, code == SI_KERNEL, sender) for number, _, code, sender in _SIGINFO.iter_unpack(data)]
