"""Write marks: phases, steps, work and facts of one process, one file per process, one write per line.

Lines are those of the run folder's schema: "begin" and "end" of a phase, "switch" to the next of a script, "work",
"fact". Frequent work reports are summed and written at most twice a second, and whenever a phase begins or ends.
Calls in every step of a training only append to a queue: between steps the caches are cold, so even short code is slow.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import threading
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.mark_lines import (
    encode_json,
    format_begin,
    format_end,
    make_fact_line,
    open_marks,
    read_amount,
    write_lines,
)
from joulelab.core.process_identity import read_start_ticks
from joulelab.core.step_blocks import StepBlock, StepGrouper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

WORK_INTERVAL_NS = NS // 2
CLOSE_S = 1.0  # longest wait of `close` for another thread that writes
MOST_NOTED = 1000  # reports in the queue before they are summed
STAMPS = 16
# Variables that launchers set to the number of a process on its node, the nearest launcher first.
RANK_VARIABLES = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
# The same for the number of a process among all.
GLOBAL_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
# And for the number of processes on a node.
COUNT_VARIABLES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
STEP = "step"

# The innermost open phase of this thread or task; other threads and processes have their own.
_phase: ContextVar[str | None] = ContextVar("joulelab_phase", default=None)


def read_local_rank(environ: Mapping[str, str]) -> int:
    """Return the number of this process on its node from the launcher's variables, else 0."""
    return _read_number(environ, RANK_VARIABLES)


def read_global_rank(environ: Mapping[str, str]) -> int:
    """Return the number of this process in its job from the launcher's variables, else 0."""
    return _read_number(environ, GLOBAL_VARIABLES)


def count_local_ranks(environ: Mapping[str, str]) -> int:
    """Return the number of processes on this node from the launcher's variables, else 1."""
    return max(_read_number(environ, COUNT_VARIABLES), 1)


def _read_number(environ: Mapping[str, str], names: Iterable[str]) -> int:
    for name in names:
        with contextlib.suppress(KeyError, ValueError):
            return int(environ[name])
    return 0


@dataclass(slots=True)
class _WorkSum:
    """Sum work reports of one phase until they are written."""

    from_ns: int
    last_ns: int = 0
    amounts: dict[str, float] = field(default_factory=dict)
    count: int = 0
    stride: int = 1
    at: list[int] = field(default_factory=list)

    def add(self, t_ns: int, amounts: Mapping[str, float]) -> None:
        for name, amount in amounts.items():
            self.amounts[name] = self.amounts.get(name, 0.0) + amount
        if self.count % self.stride == 0:
            if len(self.at) == STAMPS:
                # Drop every second stamp, so that the others are spread over the whole line. STAMPS is even, so
                # this one is due by the new stride as well.
                del self.at[1::2]
                self.stride *= 2
            self.at.append(t_ns)
        self.count += 1
        self.last_ns = t_ns


class MarkWriter:
    """Write the marks of this process; in a forked child it begins a file of the child's own.

    Safe in threads, signal handlers and finalizers, which may run at any line: every call appends to a queue, and the
    thread that gets the lock writes the whole queue. No call waits for another.

    A mark that cannot be written is dropped and counted in `lost`: no workload fails because of its marks. Ranks other
    than the first of a node write work, but no phases and facts. A step of all ranks is counted by the `first` rank.
    """

    def __init__(
        self, folder: Path, *, rank: int = 0, first: bool = True, now: Callable[[], int] = monotonic_ns
    ) -> None:
        self.folder = folder
        self.rank = rank
        self.first = first and not rank
        self.lost = 0
        self._now = now
        self._fd = -1
        self._adopt()

    def begin(
        self, name: str, n: int | None = None, labels: Mapping[str, object] | None = None, *, at_ns: int | None = None
    ) -> str | None:
        """Begin a phase inside the current one and return its id; None on ranks that write no phases."""
        if self._pid != os.getpid():
            self._adopt()
        t = self._now() if at_ns is None else at_ns
        if self.rank:
            self._do(self._edge, t)
            return None
        identity, parent = f"{self._pid}-{next(self._count)}", _phase.get()
        self._do(self._begin, t, identity, name, n, labels and dict(labels), parent, threading.get_native_id())
        _phase.set(identity)
        return identity

    def end(self, identity: str | None, parent: str | None = None, *, at_ns: int | None = None) -> None:
        """End a phase; `parent` becomes the current one."""
        if self._pid != os.getpid():
            self._adopt()
        t = self._now() if at_ns is None else at_ns
        if identity is None:
            self._do(self._edge, t)
            return
        _phase.set(parent)
        if identity.startswith(f"{self._pid}-"):  # else a forked child left a phase of its parent, which will end it
            self._do(self._end, t, identity, parent)

    def past(self, name: str, n: int | None, since_ns: int, amounts: Mapping[str, float]) -> None:
        """Mark a phase that has just ended, with the work done in it; other ranks only report the work for its time."""
        if self.rank:
            if self._pid != os.getpid():
                self._adopt()
            self._do(self._past, since_ns, self._now(), dict(amounts))
            return
        parent = _phase.get()
        identity = self.begin(name, n, at_ns=since_ns)
        if amounts:
            self.work(amounts)
        self.end(identity, parent)

    def switch(self, name: str | None, n: int | None = None) -> None:
        """End the phase that the last switch began, and begin the next one; with None only end it."""
        if not self.rank:
            if self._pid != os.getpid():
                self._adopt()
            self._do(self._switch, self._now(), name, n)

    def work(self, amounts: Mapping[str, float]) -> None:
        """Report work that was done since the last report: amounts by name."""
        self._note(amounts, step=False)

    def correct_work(self, amounts: Mapping[str, float]) -> None:
        """Report by how much the work reported so far was wrong; amounts may be below zero."""
        self._note(amounts, step=False, least=-math.inf)

    def step(self, amounts: Mapping[str, float]) -> None:
        """Report a step that has ended, with the work done in it; steps become blocks (`step_blocks.py`)."""
        self._note(amounts, step=True)

    def fact(self, facts: Mapping[str, object]) -> None:
        """Report facts of the run by name: text, numbers, true or false; None removes one."""
        if not self.rank:
            if self._pid != os.getpid():
                self._adopt()
            self._do(self._fact, self._now(), dict(facts))

    def flush(self) -> None:
        """Write pending work and unfinished blocks of steps."""
        if self._pid == os.getpid():  # in a forked child the queue is that of the parent
            self._do(self._rest, self._now())

    def close(self) -> None:
        """Flush and close the file; a later mark opens it again."""
        self.flush()
        if self._pid == os.getpid() and self._lock.acquire(timeout=CLOSE_S):
            try:
                if self._fd >= 0:
                    fd, self._fd = self._fd, -1
                    os.close(fd)
            finally:
                self._lock.release()

    def _adopt(self) -> None:
        # Also in a forked child: the lock may have been held at the fork, pending work belongs to the parent.
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._fd = -1
        self._count = itertools.count(1)
        self._refused: set[str] = set()
        self._noted: deque[tuple[Any, ...]] = deque()
        self._work: dict[str | None, _WorkSum] = {}
        self._reported: dict[str | None, int] = {}
        self._flushed_ns = 0
        self._steps = StepGrouper()

    def _note(self, amounts: Mapping[str, float], *, step: bool, least: float = 0.0) -> None:
        if self._pid != os.getpid():
            self._adopt()
        t = self._now()
        self._noted.append((self._sum_up, t, _phase.get(), amounts, step, least))
        if t - self._flushed_ns >= WORK_INTERVAL_NS or len(self._noted) >= MOST_NOTED:
            self._serve()

    def _do(self, *call: Any) -> None:
        self._noted.append(call)
        self._serve()

    def _serve(self) -> None:
        """Run the queued calls; if another thread holds the lock, that thread runs them before it releases the lock."""
        while self._noted and self._lock.acquire(blocking=False):
            try:
                while self._noted:
                    call, *given = self._noted.popleft()
                    try:
                        call(*given)
                    except Exception:  # noqa: BLE001 - no error of a mark may reach the workload
                        self.lost += 1
            finally:
                self._lock.release()

    def _begin(
        self,
        t: int,
        identity: str,
        name: str,
        n: int | None,
        labels: Mapping[str, object] | None,
        parent: str | None,
        thread: int,
    ) -> None:
        if whole := self._steps.begin(name, identity, parent, t):
            self._write_steps(parent, whole)
        self._flush(t)
        self._reported[identity] = t
        self._write(format_begin(t, identity, name, n, labels, parent, thread, self.rank))

    def _end(self, t: int, identity: str, parent: str | None) -> None:
        if whole := self._steps.end(identity, parent, t):
            self._write_steps(identity, whole)
        self._flush(t)
        self._reported.pop(identity, None)
        self._write(format_end(t, identity))

    def _edge(self, t: int) -> None:
        """Write pending work, so that no report crosses from one phase of the first rank into the next."""
        self._flush(t)
        self._reported[None] = t

    def _past(self, since_ns: int, t: int, amounts: Mapping[str, float]) -> None:
        self._flush(since_ns)
        self._reported[None] = since_ns
        self._sum_up(t, None, amounts, step=False)
        self._edge(t)

    def _switch(self, t: int, name: str | None, n: int | None) -> None:
        self._write_steps(None, self._steps.switch(t))
        self._flush(t)
        self._write(encode_json({"t": t, "mark": "switch", "name": name, "n": n}))

    def _fact(self, t: int, facts: Mapping[str, object]) -> None:
        self._write(encode_json(make_fact_line(t, facts, self.rank)))

    def _rest(self, t: int) -> None:
        for phase, block in self._steps.rest():
            self._write_steps(phase, (block,))
        self._flush(t)

    def _sum_up(self, t: int, phase: str | None, amounts: Mapping[str, float], step: bool, least: float = 0.0) -> None:
        """Add a report of work to the pending ones, which are written twice a second."""
        done = {"steps": 1.0} if step and self.first else {}
        for name, amount in amounts.items():
            number = read_amount(amount)
            if number is None or number < least:
                self._refuse(name, amount, "work that is no number" if number is None else "work below zero")
            else:
                done[name] = number
        if done:
            self._report(phase, t, done)
        if step and not self.rank and (whole := self._steps.step(phase, t, done)):
            self._write_steps(phase, whole)
        if t - self._flushed_ns >= WORK_INTERVAL_NS:
            self._flush(t)

    def _refuse(self, name: str, amount: object, what: str) -> None:
        """Count an amount that cannot be work as lost, and log a warning once per name."""
        self.lost += 1
        if name not in self._refused:
            self._refused.add(name)
            import logging

            logging.getLogger("joulelab").warning("%s is not counted: %s=%.50r", what, name, amount)

    def _report(self, phase: str | None, t: int, amounts: Mapping[str, float]) -> None:
        pending = self._work.get(phase)
        if pending is None:
            pending = self._work[phase] = _WorkSum(self._reported.get(phase, t))
        pending.add(t, amounts)

    def _flush(self, t: int) -> None:
        self._flushed_ns = t
        if not self._work:
            return
        work, self._work = self._work, {}
        for phase, done in work.items():
            self._reported[phase] = done.last_ns
            line = {"t": done.last_ns, "mark": "work", "from": done.from_ns, "phase": phase, "amounts": done.amounts}
            self._write(encode_json(line | {"count": done.count, "at": done.at, "rank": self.rank}))

    def _write_steps(self, phase: str | None, blocks: Iterable[StepBlock]) -> None:
        """Write steps as ended phases with their work, which the work lines contain as well."""
        for block in blocks:
            identity = f"{self._pid}-{next(self._count)}"
            labels = {"to": block.last} if block.last > block.first else None
            own = (threading.get_native_id(), self.rank)
            begin = format_begin(block.start_ns, identity, STEP, block.first, labels, phase, *own, block.amounts)
            self._write(f"{begin}\n{format_end(block.end_ns, identity)}")

    def _write(self, lines: str) -> None:
        try:
            if self._fd < 0:
                self._fd = open_marks(self.folder / f"{self._pid}-{read_start_ticks() or 0}.jsonl")
                _flush_when_workers_end(self.flush)
            write_lines(self._fd, lines)
        except OSError:
            self.lost += 1


def current_phase() -> str | None:
    """Return the id of the innermost phase that is open in this thread or task."""
    return _phase.get()


def write_shell_mark(folder: Path, name: str | None, n: int | None = None, *, shell: int | None = None) -> None:
    """Switch the phase of the shell script that called this process. Raises OSError."""
    _write_shell(folder, {"mark": "switch", "name": name, "n": n}, shell)


def write_shell_work(folder: Path, amounts: Mapping[str, float], *, rank: int = 0, shell: int | None = None) -> None:
    """Report work of the shell script that called this process. Raises OSError."""
    now = monotonic_ns()
    line = {"mark": "work", "from": now, "phase": None, "amounts": dict(amounts), "count": 1, "at": [now], "rank": rank}
    _write_shell(folder, line, shell)


def write_shell_fact(folder: Path, facts: Mapping[str, object], *, shell: int | None = None) -> None:
    """Report facts of the shell script that called this process. Raises OSError."""
    _write_shell(folder, make_fact_line(monotonic_ns(), facts, 0), shell)


def _write_shell(folder: Path, line: Mapping[str, object], shell: int | None) -> None:
    pid = os.getppid() if shell is None else shell
    fd = open_marks(folder / f"sh-{pid}-{read_start_ticks(pid) or 0}.jsonl")
    try:
        write_lines(fd, encode_json({"t": monotonic_ns(), **line}))
    finally:
        os.close(fd)


def _flush_when_workers_end(flush: Callable[[], None]) -> None:
    # Workers of multiprocessing leave by os._exit and run nothing but multiprocessing's own finalizers.
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, flush, exitpriority=0)
