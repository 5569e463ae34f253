"""Run slots on a node's twin in virtual time, in a worker for each core of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from joulelab.core.errors import RecorderError
from joulelab.study.executors import SlotEnd

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.study.executors import SlotWait
    from joulelab.study.folder import Plan
    from joulelab.study.matrix import NodeType, PlannedCell
    from joulelab.study.plan_check import Refusals

SUMMARY = "a node's twin in virtual time: nothing is measured"
WORKER = "joulelab.twin.virtual.slot"
AHEAD = 2  # slots that a worker has: the one that it runs, and the next
END_S = 20.0
MOST_LETTERS = 2000
# One worker is one core's work.
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def open_executor(environ: Mapping[str, str], nodes: Mapping[str, NodeType], study: Path) -> TwinExecutor:  # noqa: ARG001
    """Open it; workers are started when there is something to do."""
    return TwinExecutor(environ)


def check(nodes: Mapping[str, NodeType], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """Warn of nothing: twins are looked at together with their cells."""
    return []


def read_options(name: str, folder: Path) -> dict[str, Any]:
    """Return the options of a node type by a twin's name, or by the path of a node file. Raises ConfigError."""
    from joulelab.twin.virtual.cells import make_options

    return make_options(str(folder / name) if name.endswith(".toml") else name)


def place_plan(plan: Plan, names: Mapping[str, str]) -> Plan:
    """Return a plan with the named node types on twins. Raises ConfigError."""
    from joulelab.twin.virtual.cells import place_on_twins

    return place_on_twins(plan, names)


def check_cells(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> list[str]:
    """Refuse cells that the twins cannot run; return warnings."""
    from joulelab.twin.virtual.cells import check_cells

    return check_cells(plan, cells, refusals)


def list_remarks(plan: Plan) -> list[str]:
    """List what twins leave out of a study."""
    from joulelab.twin.virtual.cells import list_remarks

    return list_remarks(plan)


class _SlotWorker:
    """Hold one worker process, and the slots that it has been given, in their order."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        command = [sys.executable, "-P", "-m", WORKER]
        self._errors: IO[bytes] = open(os.memfd_create("errors"), "r+b", buffering=0)  # noqa: SIM115
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._errors, env=environ, start_new_session=True
            )
        except OSError as error:
            self._errors.close()
            raise RecorderError("a worker cannot be started", where="twin", why=str(error)) from error
        self.slots: deque[Path] = deque()
        self._rest = b""

    @property
    def answers_fd(self) -> int:
        """Return where answers come from."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def give_slot(self, slot: Path) -> None:
        """Hand a slot over; one that cannot be, because the worker is gone, is found out at the next poll."""
        self.slots.append(slot)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{slot}\n".encode())
            self.process.stdin.flush()

    def read_answers(self) -> list[dict[str, Any]] | None:
        """Return the answers that have come, None where there will be no more."""
        data = os.read(self.answers_fd, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end_process(self) -> str:
        """End it, and return in words how it ended."""
        self.process.kill()
        code = self.process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()[-MOST_LETTERS:]
        self.close_files()
        ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"its worker died, {ending}{f': {text}' if text else ''}"

    def close_files(self) -> None:
        """Close its pipes."""
        for file in (self.process.stdin, self.process.stdout, self._errors):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()


class TwinExecutor:
    """Give slots to workers, two to each, so that none waits for its next."""

    def __init__(self, environ: Mapping[str, str], *, workers: int | None = None) -> None:
        self._environ = {**environ, **THREADS}
        self._most = workers or len(os.sched_getaffinity(0))
        self.at_once = AHEAD * self._most
        self._workers: list[_SlotWorker] = []
        self._queue: deque[Path] = deque()
        self._ended: list[SlotEnd] = []

    def submit(self, slot: Path) -> None:
        """Hand a slot to a worker, or keep it for the next that is free. Raises RecorderError."""
        self._queue.append(slot)
        self._deal_slots()

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd | SlotWait]:
        """Return the slots that have ended, waiting for `timeout_s` (s) at most."""
        if not self._ended:
            with contextlib.suppress(InterruptedError):
                ready, _, _ = select.select([*(w.answers_fd for w in self._workers), *also], (), (), timeout_s)
                for worker in [w for w in self._workers if w.answers_fd in ready]:
                    self._take_answers(worker)
                self._deal_slots()
        ended, self._ended = self._ended, []
        return list(ended)

    def cancel(self, slot: Path) -> None:
        """Take a slot back that no worker has; one that runs ends soon, called again at once."""
        if slot in self._queue:
            self._queue.remove(slot)
            self._ended.append(SlotEnd(slot, None, "it was not begun", "cancelled"))
            return
        for worker in [w for w in self._workers if slot in w.slots]:
            if worker.process.stdin is not None and not worker.process.stdin.closed:
                worker.process.stdin.close()  # it ends with the slots that it has
            else:
                worker.process.kill()

    def is_over(self, claim: Mapping[str, Any]) -> bool | None:  # noqa: ARG002
        """Return None: claims of this machine are checked by their process."""
        return None

    def list_open_jobs(self) -> list[str]:
        """Return none: every worker ends with the executor."""
        return []

    def close(self) -> None:
        """End all workers; slots that run are ended in good order, or cut off."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                if worker.process.stdin is not None:
                    worker.process.stdin.close()
        for worker in self._workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(END_S)
            worker.end_process()
        self._workers.clear()

    def _deal_slots(self) -> None:
        """Give queued slots to the workers with the fewest; start another one where all are busy."""
        while self._queue:
            open_ = [w for w in self._workers if w.process.stdin is not None and not w.process.stdin.closed]
            least = min(open_, key=lambda w: len(w.slots), default=None)
            if (least is None or least.slots) and len(self._workers) < self._most:
                least = _SlotWorker(self._environ)
                self._workers.append(least)
            if least is None or len(least.slots) >= AHEAD:
                return
            least.give_slot(self._queue.popleft())

    def _take_answers(self, worker: _SlotWorker) -> None:
        answers = worker.read_answers()
        if answers is None:
            self._workers.remove(worker)
            ending = worker.end_process()
            slots = list(worker.slots)
            self._ended += [SlotEnd(slot, None, ending) for slot in slots[:1]]
            self._queue.extendleft(reversed(slots[1:]))  # it did not get to these
            return
        for answer in answers:
            slot = Path(answer["slot"])
            worker.slots.remove(slot)
            self._ended.append(SlotEnd(slot, answer["outcome"]))
