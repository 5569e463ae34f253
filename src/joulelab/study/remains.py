"""Find and end the processes of a slot's workload: after a timeout, or when the slot that watched them was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.store.folder import list_runs
from joulelab.supervisor.options import RUN

if TYPE_CHECKING:
    from collections.abc import Callable

PROC = Path("/proc")
GRACE_S = 10.0
KILL_S = 5.0


def processes(slot: Path, proc: Path = PROC) -> list[int]:
    """Return the processes that belong to a slot's runs, by the variable that they inherited; only those we may see."""
    runs = {run.name.encode() for run in list_runs(slot)}
    if not runs:
        return []
    pids = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and _run_of(pid, proc) in runs]


def _run_of(pid: int, proc: Path) -> bytes:
    """Return the id of the run that a process belongs to, empty for none; one that has ended belongs to none."""
    try:
        variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    prefix = f"{RUN}=".encode()
    found = next((v.removeprefix(prefix) for v in variables if v.startswith(prefix)), b"")
    return found.rpartition(b"/")[2]


def end(slot: Path, grace_s: float = GRACE_S, *, wait: Callable[[float], None] = time.sleep) -> bool:
    """End the processes of a slot: ask, wait a bounded time, then kill. Return whether none is left."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_S)):
        told: set[int] = set()
        until = time.monotonic() + patience_s
        while True:
            there = processes(slot)
            if not there:
                return True
            for pid in there:
                if pid not in told:
                    told.add(pid)
                    _send(pid, number, slot)
            if time.monotonic() >= until:
                break
            wait(0.05)
    return not processes(slot)


def _send(pid: int, number: int, slot: Path) -> None:
    """Send a signal to a process of the slot, and to no other that got its number meanwhile."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if pid in processes(slot):
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)
