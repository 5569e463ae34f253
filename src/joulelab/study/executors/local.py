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
from joulelab.study.executors import SlotEnd, SlotWait
from joulelab.study.slot_processes import end_processes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.study.matrix import NodeType

SUMMARY = "this machine, one slot after another"
GRACE_S = 10.0  # from cancelling a slot to killing its workload; twice as long again to killing the slot itself
MOST_TEXT = 2000  # characters of answers and errors that are read at once


@dataclass(slots=True)
class _SlotProcess:
    slot: Path
    process: subprocess.Popen[bytes]
    answers: IO[bytes]
    errors: IO[bytes]
    pidfd: int
    bytes_read: int = 0
    cancelled: float | None = None
    killed: bool = False


def open_executor(environ: Mapping[str, str], nodes: Mapping[str, NodeType], study: Path) -> LocalExecutor:  # noqa: ARG001
    """Open the executor."""
    return LocalExecutor(environ)


class LocalExecutor:
    """Start slots as processes; their answers come by files in memory, so that a full disk does not stop them."""

    at_once = 1

    def __init__(self, environ: Mapping[str, str], *, grace_s: float = GRACE_S) -> None:
        self._environ = dict(environ)
        self._grace_s = grace_s
        self._running: list[_SlotProcess] = []

    def submit(self, slot: Path) -> None:
        """Start a slot. Raises RecorderError if no process can be started."""
        command = [sys.executable, "-P", "-W", "ignore", "-m", "joulelab.study.slot", str(slot)]
        answers, errors = (open(os.memfd_create(name), "r+b", buffering=0) for name in ("answers", "errors"))  # noqa: SIM115
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=answers,
                stderr=errors,
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            raise RecorderError("a slot's process cannot be started", where=str(slot), why=str(error)) from error
        self._running.append(_SlotProcess(slot, process, answers, errors, os.pidfd_open(process.pid)))

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd | SlotWait]:
        """Return the slots that have ended or that wait for their turn, after at most this time."""
        with contextlib.suppress(InterruptedError):
            select.select([*(running.pidfd for running in self._running), *also], (), (), timeout_s)
        news: list[SlotEnd | SlotWait] = []
        for running in list(self._running):
            if running.process.poll() is None:
                news += self._read_waits(running)
                self._kill_late(running)
            else:
                self._running.remove(running)
                news.append(self._report_end(running))
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
        """Return None: claims of this machine are judged by their process."""
        return None

    def list_open_jobs(self) -> list[str]:
        """Return none: the drive waits for all slots."""
        return []

    def close(self) -> None:
        """Release all resources; running slots continue."""
        for running in self._running:
            self._close_files(running)
        self._running.clear()

    def _read_waits(self, running: _SlotProcess) -> list[SlotWait]:
        """Return what a running slot waits for."""
        # Read without a seek: the place in the file is the slot's, too.
        data = os.pread(running.answers.fileno(), MOST_TEXT, running.bytes_read)
        whole = data[: data.rfind(b"\n") + 1]
        running.bytes_read += len(whole)
        answers = [_parse_last_line(line) or {} for line in whole.splitlines()]
        return [SlotWait(running.slot, str(each.get("for"))) for each in answers if each.get("is") == "waits"]

    def _kill_late(self, running: _SlotProcess) -> None:
        """Kill a cancelled slot that is late: first the workload, so that the slot can restore everything."""
        waited = 0.0 if running.cancelled is None else time.monotonic() - running.cancelled
        if waited > self._grace_s and not running.killed:
            running.killed = True
            end_processes(running.slot, 0.0)
        elif waited > 3 * self._grace_s:
            running.process.kill()

    def _report_end(self, running: _SlotProcess) -> SlotEnd:
        running.answers.seek(0)
        running.errors.seek(0)
        text = running.errors.read().decode(errors="replace").strip()
        answer = _parse_last_line(running.answers.read())
        if answer is not None and answer.get("is") == "waits":
            answer = None  # not its end
        self._close_files(running)
        code = running.process.returncode
        ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return SlotEnd(running.slot, answer, f"{ending}: {text[-MOST_TEXT:]}" if text else ending)

    def _close_files(self, running: _SlotProcess) -> None:
        running.answers.close()
        running.errors.close()
        os.close(running.pidfd)


def _parse_last_line(data: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(data.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return answer if isinstance(answer, dict) else None
