"""Watch over a slot while its workload runs: signals that tell it to end, its time limit, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.run.signal_forwarding import ENDING_SIGNALS, ArrivedSignal, SignalBox
from joulelab.store.run_folder import list_runs
from joulelab.store.safe_files import read_regular
from joulelab.study import remains
from joulelab.study.slots import note_stop

if TYPE_CHECKING:
    from pathlib import Path

START_POLL_S = 0.5
REAP_S = 5.0


class SlotSignals(SignalBox):
    """Take signals as a run does, and note in the slot that it was told to end, before anybody else is."""

    def __init__(self) -> None:
        self.told: int | None = None
        self.slot: Path | None = None

    def take(self) -> list[ArrivedSignal]:
        """Return the signals that have arrived."""
        arrived = super().take()
        ending = next((signal.number for signal in arrived if signal.number in ENDING_SIGNALS), None)
        if ending is not None and self.told is None:
            self.told = ending
            if self.slot is not None:
                note_stop(self.slot, "interrupted", signal=ending)
        return arrived

    def pause(self, seconds: float) -> bool:
        """Wait so many s; return False where we are told to end."""
        until = time.monotonic() + seconds
        while self.told is None:
            left = until - time.monotonic()
            if left <= 0:
                return True
            select.select([self.fd], (), (), left)
            self.take()
        return False


class Watchdog:
    """End the workload when it has taken too long; counted from its start."""

    def __init__(self, slot: Path, timeout_s: float | None) -> None:
        self._slot, self._timeout_s = slot, timeout_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> None:
        if self._timeout_s is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        assert self._timeout_s is not None
        start = self._started_ns()
        while start is None:
            if self._over.wait(START_POLL_S):
                return
            start = self._started_ns()
        left_s = (start - monotonic_ns()) / NS + self._timeout_s
        if not self._over.wait(max(left_s, 0.0)):
            note_stop(self._slot, "timeout", after_s=self._timeout_s)
            remains.end_processes(self._slot)

    def _started_ns(self) -> int | None:
        event = _workload(self._slot)
        return None if event is None else int(event["start_ns"])


class Reaper:
    """Bury what the workload left behind and what ended since: we are its parent now, and it would be a zombie.

    Our own processes are waited for by those who started them, the workload is never touched, others have REAP_S.
    """

    def __init__(self, slot: Path) -> None:
        self._slot = slot
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reaper", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        workload: int | None = None
        before: set[int] = set()
        while not self._over.wait(REAP_S):
            if workload is None:
                workload = int((_workload(self._slot) or {"pid": 0})["pid"]) or None
                continue
            dead = remains.list_zombies() - {workload}
            for pid in dead & before:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            before = dead


def _workload(slot: Path) -> dict[str, Any] | None:
    """Return the event that tells of the workload's start, None where it has not started."""
    for file in (file for run in list_runs(slot) for file in run.glob("*/events.run.jsonl")):
        for line in read_regular(file).splitlines():
            with contextlib.suppress(ValueError):
                event: dict[str, Any] = json.loads(line)
                if event.get("event") == "workload":
                    return event
    return None
