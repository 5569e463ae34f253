"""Find, watch and end the processes of a slot's workload: signals, time limit, orphans."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import StoreError
from joulelab.core.process_identity import find_process, read_run_folder
from joulelab.run.signal_forwarding import ENDING_SIGNALS, ArrivedSignal, SignalBox
from joulelab.store.documents import read_json
from joulelab.store.run_folder import list_runs
from joulelab.store.safe_files import read_regular
from joulelab.study.slots import CLAIM, note_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


PROC = Path("/proc")
ENDING_S = 10.0
KILLING_S = 5.0
PR_SET_CHILD_SUBREAPER = 36
# Commands of a slot's process, and of what it starts beside its workload.
SLOT = b"joulelab.study.slot"
HELPERS = (b"joulelab.recorder", b"joulelab.control", b"joulelab.run.node_task", b"joulelab-witness")


def adopt_orphans() -> None:
    """Become the parent of orphans among our descendants, in place of the system's first process."""
    with contextlib.suppress(OSError, AttributeError):  # without it, only the variable identifies them
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def list_processes(slot: Path, proc: Path = PROC) -> list[int]:
    """Return the visible processes of a slot's runs.

    They are known by an inherited variable; those that dropped it as descendants of the slot's process while it lives.
    """
    runs = {run.name.encode() for run in list_runs(slot)}
    if not runs:
        return []
    pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    family = _list_descendants(_find_slot_process(slot, proc), pids, proc)
    return [
        pid
        for pid in pids
        if pid != os.getpid() and (pid in family or read_run_folder(pid, proc).rpartition(b"/")[2] in runs)
    ]


def list_zombies(proc: Path = PROC) -> set[int]:
    """Return our children that have ended and were not waited for."""
    found = ((int(entry.name), _read_stat(int(entry.name), proc)) for entry in proc.iterdir() if entry.name.isdigit())
    return {pid for pid, (state, parent) in found if state == "Z" and parent == os.getpid()}


def _find_slot_process(slot: Path, proc: Path) -> int:
    """Return the process that runs a slot, 0 if it has ended or is of another machine or container."""
    try:
        claim = read_json(slot / CLAIM)
    except StoreError:
        return 0
    pid = claim.get("pid")
    if not isinstance(pid, int) or find_process(claim) != "alive":
        return 0
    return pid if SLOT in _read_command(pid, proc) else 0


def _list_descendants(root: int, pids: Sequence[int], proc: Path) -> set[int]:
    """Return the descendants of a slot's process that belong to its workload."""
    if not root:
        return set()
    children: dict[int, list[int]] = {}
    for pid in pids:
        state, parent = _read_stat(pid, proc)
        if state not in "?ZX":
            children.setdefault(parent, []).append(pid)
    own = _read_command(root, proc)
    found: set[int] = set()
    left = [pid for pid in children.get(root, ()) if not _is_helper(_read_command(pid, proc), own)]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += children.get(pid, ())
    return found


def _is_helper(command: Sequence[bytes], own: Sequence[bytes]) -> bool:
    """Return whether a process is a recorder, keeper or witness, or is just being started and looks like its parent.

    A keeper is never ended from here: it restores caps.
    """
    named = any(word in HELPERS for word in command)
    return named or list(command) == list(own)


def _read_command(pid: int, proc: Path) -> list[bytes]:
    try:
        return (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _read_stat(pid: int, proc: Path) -> tuple[str, int]:
    """Return a process's state and parent, `?` and 0 for one that is gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        state, parent = text[text.rfind(")") + 1 :].split()[:2]
    except (OSError, ValueError):
        return "?", 0
    return state, int(parent)


def end_processes(slot: Path, grace_s: float = ENDING_S, *, wait: Callable[[float], None] = time.sleep) -> bool:
    """End the processes of a slot: ask, wait a bounded time, then kill. Return whether none is left."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILLING_S)):
        signalled: set[int] = set()
        until = time.monotonic() + patience_s
        while True:
            there = list_processes(slot)
            if not there:
                return True
            for pid in there:
                if pid not in signalled:
                    signalled.add(pid)
                    _send_signal(pid, number, slot)
            if time.monotonic() >= until:
                break
            wait(0.05)
    return not list_processes(slot)


def _send_signal(pid: int, number: int, slot: Path) -> None:
    """Send a signal to a process of the slot, and to no other that got its number meanwhile."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if pid in list_processes(slot):
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


START_POLL_S = 0.5
REAP_S = 5.0


class SlotSignals(SignalBox):
    """Take signals as a run does, and record a stop in the slot before the workload gets the signal."""

    def __init__(self) -> None:
        self.stopped_by: int | None = None
        self.slot: Path | None = None

    def take(self) -> list[ArrivedSignal]:
        """Return the signals that have arrived."""
        arrived = super().take()
        ending = next((signal.number for signal in arrived if signal.number in ENDING_SIGNALS), None)
        if ending is not None and self.stopped_by is None:
            self.stopped_by = ending
            if self.slot is not None:
                note_stop(self.slot, "interrupted", signal=ending)
        return arrived

    def pause(self, seconds: float) -> bool:
        """Wait this time (s); return False if we are stopped."""
        until = time.monotonic() + seconds
        while self.stopped_by is None:
            left = until - time.monotonic()
            if left <= 0:
                return True
            select.select([self.fd], (), (), left)
            self.take()
        return False


class WorkloadGuard:
    """End the workload when its time limit, counted from its start, is over; wait for its ended orphans.

    This process is the parent of orphans, which would stay zombies. The workload itself is not waited for, and other
    children are left for REAP_S to the code that started them.
    """

    def __init__(self, slot: Path, timeout_s: float | None = None) -> None:
        self._slot, self._timeout_s = slot, timeout_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="workload-guard", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        timeout_s, before, start = self._timeout_s, set[int](), None
        pause_s = REAP_S if timeout_s is None else START_POLL_S
        while not self._over.wait(pause_s):
            start = start or _read_workload_start(self._slot)
            if start is None:
                continue
            if pause_s >= REAP_S:
                before = _reap_children(before, int(start["pid"]))
            pause_s = REAP_S
            if timeout_s is not None:
                left_s = (int(start["start_ns"]) - monotonic_ns()) / NS + timeout_s
                pause_s = min(max(left_s, 0.0), REAP_S)
                if left_s <= 0:
                    note_stop(self._slot, "timeout", after_s=timeout_s)
                    end_processes(self._slot)
                    timeout_s, pause_s = None, REAP_S


def _reap_children(before: set[int], workload: int) -> set[int]:
    """Wait for children that were zombies before and still are; return those that are now."""
    dead = list_zombies() - {workload}
    for pid in dead & before:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return dead


def _read_workload_start(slot: Path) -> dict[str, Any] | None:
    """Return the event of the workload's start, None if it has not started."""
    for file in (file for run in list_runs(slot) for file in run.glob("*/events.run.jsonl")):
        for line in read_regular(file).splitlines():
            with contextlib.suppress(ValueError):
                event: dict[str, Any] = json.loads(line)
                if event.get("event") == "workload":
                    return event
    return None
