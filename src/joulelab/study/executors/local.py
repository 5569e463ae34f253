"""Run slots on this machine, one after another, each in a process and a session of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from joulelab.core.errors import RecorderError
from joulelab.study import remains
from joulelab.study.executors import SlotEnd, SlotWait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.study.nodes import NodeType

SUMMARY = "this machine, one slot after another"
# A cancelled slot has so long before its workload is killed, and so long again before it is killed itself.
GRACE_S = 10.0
SAID_MOST = 2000


@dataclass(slots=True)
class _Running:
    slot: Path
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    errors: IO[bytes]
    pidfd: int
    heard: int = 0
    cancelled: float | None = None
    killed: bool = False


def open_executor(environ: Mapping[str, str], nodes: Mapping[str, NodeType], study: Path) -> LocalExecutor:  # noqa: ARG001
    """Open it; it runs whatever there is."""
    return LocalExecutor(environ)


class LocalExecutor:
    """Start slots as processes; what they tell comes by files in memory: a full disk does not silence them."""

    at_once = 1

    def __init__(self, environ: Mapping[str, str], *, grace_s: float = GRACE_S) -> None:
        self._environ = dict(environ)
        self._grace_s = grace_s
        self._running: list[_Running] = []

    def submit(self, slot: Path) -> None:
        """Start a slot. Raises RecorderError where no process can be started."""
        command = [sys.executable, "-P", "-W", "ignore", "-m", "joulelab.study.slot", str(slot)]
        said, errors = (open(os.memfd_create(name), "r+b", buffering=0) for name in ("said", "errors"))  # noqa: SIM115
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, env=self._environ, start_new_session=True
            )
        except OSError as error:
            raise RecorderError("a slot's process cannot be started", where=str(slot), why=str(error)) from error
        self._running.append(_Running(slot, process, said, errors, os.pidfd_open(process.pid)))

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd | SlotWait]:
        """Return the slots that have ended or that wait for their turn, waiting so long at most."""
        with contextlib.suppress(InterruptedError):
            select.select([*(running.pidfd for running in self._running), *also], (), (), timeout_s)
        news: list[SlotEnd | SlotWait] = []
        for running in list(self._running):
            if running.process.poll() is None:
                news += self._hear(running)
                self._press(running)
            else:
                self._running.remove(running)
                news.append(self._bury(running))
        return news

    def cancel(self, slot: Path) -> None:
        """End a slot: ask it; the second time, kill its workload at once."""
        for running in (running for running in self._running if running.slot == slot):
            if running.cancelled is None:
                running.cancelled = time.monotonic()
                running.process.send_signal(signal.SIGTERM)
            else:
                running.cancelled = min(running.cancelled, time.monotonic() - self._grace_s)

    def is_over(self, claim: Mapping[str, Any]) -> bool | None:  # noqa: ARG002
        """Know nothing: of this machine the claim itself tells."""
        return None

    def going_on(self) -> list[str]:
        """Leave nothing: what was started is waited for."""
        return []

    def close(self) -> None:
        """Release what is held; slots that run go on."""
        for running in self._running:
            self._release(running)
        self._running.clear()

    def _hear(self, running: _Running) -> list[SlotWait]:
        """Return what a slot says while it runs."""
        # Read without a seek: the place in the file is the slot's, too.
        data = os.pread(running.said.fileno(), SAID_MOST, running.heard)
        whole = data[: data.rfind(b"\n") + 1]
        running.heard += len(whole)
        told = [_last_line(line) or {} for line in whole.splitlines()]
        return [SlotWait(running.slot, str(each.get("for"))) for each in told if each.get("is") == "waits"]

    def _press(self, running: _Running) -> None:
        """Kill what has not ended in its time: first the workload, so that its slot can put everything back."""
        waited = 0.0 if running.cancelled is None else time.monotonic() - running.cancelled
        if waited > self._grace_s and not running.killed:
            running.killed = True
            remains.end_processes(running.slot, 0.0)
        elif waited > 3 * self._grace_s:
            running.process.kill()

    def _bury(self, running: _Running) -> SlotEnd:
        running.said.seek(0)
        running.errors.seek(0)
        text = running.errors.read().decode(errors="replace").strip()
        told = _last_line(running.said.read())
        if told is not None and told.get("is") == "waits":
            told = None  # the last it said, but not its end
        self._release(running)
        code = running.process.returncode
        ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return SlotEnd(running.slot, told, f"{ending}: {text[-SAID_MOST:]}" if text else ending)

    def _release(self, running: _Running) -> None:
        running.said.close()
        running.errors.close()
        os.close(running.pidfd)


def _last_line(data: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(data.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return told if isinstance(told, dict) else None
