"""Find and end the processes of a slot's workload: after a timeout, or when the slot that watched them was killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import StoreError
from joulelab.core.process_identity import find_process
from joulelab.run.run_options import RUN_VARIABLE
from joulelab.store.documents import read_json
from joulelab.store.run_folder import list_runs
from joulelab.study.slots import CLAIM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROC = Path("/proc")
ENDING_S = 10.0
KILLING_S = 5.0
PR_SET_CHILD_SUBREAPER = 36
# A slot's process by its command, and by theirs what it starts beside its workload.
SLOT = b"joulelab.study.slot"
HELPERS = (b"joulelab.recorder", b"joulelab.control", b"joulelab.run.node_task", b"joulelab-witness")


def adopt_orphans() -> None:
    """Become the parent of what our descendants leave behind, instead of the system's first process."""
    with contextlib.suppress(OSError, AttributeError):  # without it, the variable alone tells
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def list_processes(slot: Path, proc: Path = PROC) -> list[int]:
    """Return the processes that belong to a slot's runs; only those we may see.

    They are known by a variable that they inherited, and those which dropped it as descendants of the slot's process,
    as long as that lives.
    """
    runs = {run.name.encode() for run in list_runs(slot)}
    if not runs:
        return []
    pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    family = _descendants(_owner(slot, proc), pids, proc)
    return [pid for pid in pids if pid != os.getpid() and (pid in family or _run_of(pid, proc) in runs)]


def list_zombies(proc: Path = PROC) -> set[int]:
    """Return our children that have ended and that nobody has waited for."""
    found = ((int(entry.name), _stat(int(entry.name), proc)) for entry in proc.iterdir() if entry.name.isdigit())
    return {pid for pid, (state, parent) in found if state == "Z" and parent == os.getpid()}


def _owner(slot: Path, proc: Path) -> int:
    """Return the process that runs a slot, 0 where it has ended or is not of this machine or container."""
    try:
        claim = read_json(slot / CLAIM)
    except StoreError:
        return 0
    pid = claim.get("pid")
    if not isinstance(pid, int) or find_process(claim) != "alive":
        return 0
    return pid if SLOT in _command(pid, proc) else 0


def _descendants(root: int, pids: Sequence[int], proc: Path) -> set[int]:
    """Return what a slot's process started, or took over from what it started: its workload, not what measures it."""
    if not root:
        return set()
    children: dict[int, list[int]] = {}
    for pid in pids:
        state, parent = _stat(pid, proc)
        if state not in "?ZX":
            children.setdefault(parent, []).append(pid)
    own = _command(root, proc)
    found: set[int] = set()
    left = [pid for pid in children.get(root, ()) if not _is_helper(_command(pid, proc), own)]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, ())
    return found


def _is_helper(command: Sequence[bytes], own: Sequence[bytes]) -> bool:
    """Tell a recorder, a keeper, a witness, and a process that is just being started and still looks like its parent.

    A keeper is never ended from here: it puts caps back.
    """
    named = any(word in HELPERS for word in command)
    return named or list(command) == list(own)


def _command(pid: int, proc: Path) -> list[bytes]:
    try:
        return (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _stat(pid: int, proc: Path) -> tuple[str, int]:
    """Return a process's state and parent, `?` and 0 for one that is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        state, parent = text[text.rfind(")") + 1 :].split()[:2]
    except (OSError, ValueError):
        return "?", 0
    return state, int(parent)


def _run_of(pid: int, proc: Path) -> bytes:
    """Return the id of the run that a process belongs to, empty for none; one that has ended belongs to none."""
    try:
        variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    prefix = f"{RUN_VARIABLE}=".encode()
    found = next((v.removeprefix(prefix) for v in variables if v.startswith(prefix)), b"")
    return found.rpartition(b"/")[2]


def end_processes(slot: Path, grace_s: float = ENDING_S, *, wait: Callable[[float], None] = time.sleep) -> bool:
    """End the processes of a slot: ask, wait a bounded time, then kill. Return whether none is left."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILLING_S)):
        told: set[int] = set()
        until = time.monotonic() + patience_s
        while True:
            there = list_processes(slot)
            if not there:
                return True
            for pid in there:
                if pid not in told:
                    told.add(pid)
                    _send(pid, number, slot)
            if time.monotonic() >= until:
                break
            wait(0.05)
    return not list_processes(slot)


def _send(pid: int, number: int, slot: Path) -> None:
    """Send a signal to a process of the slot, and to no other that got its number meanwhile."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if pid in list_processes(slot):
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)
