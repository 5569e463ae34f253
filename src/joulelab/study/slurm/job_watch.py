"""Find the states of jobs: the database answers for all at once, the controller for those that seem to have ended.

The database lags behind: a job just submitted is not there yet, one that is put back into the queue may look as if it
had ended, and one that is cancelled has "ended" while its processes still do. So the controller is asked before an end
is believed. While either does not answer, nothing is decided.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.errors import MeterError, Unavailable
from joulelab.study.slurm.job_queue import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from joulelab.study.slurm.job_queue import JobQueue

# Time for the database to record the end of a job that the controller has seen, or does not know.
SETTLE_S, LOST_S = 5.0, 60.0
# A node that does not come back from ending a job must not hold up a study.
COMPLETING, COMPLETING_S = "COMPLETING", 600.0
UNKNOWN, CANCELLED, PENDING = "UNKNOWN", "CANCELLED", "PENDING"
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
# Every so many questions the controller is asked for all jobs: the database may miss an end for ever.
EVERY = 10


@dataclass(frozen=True, slots=True)
class TaskState:
    """Hold what is known of a task; `over` is None where that is not known now."""

    state: JobState
    over: bool | None


class JobWatch:
    """Ask for jobs; `problem` says in words what did not answer the last time, empty where all did."""

    def __init__(self, jobs: JobQueue, now: Callable[[], float] = time.monotonic) -> None:
        self._jobs, self._now = jobs, now
        self._database = True
        self._asked = 0
        self._since: dict[tuple[str, str], float] = {}
        self.problem = ""

    def read_states(self, tasks: Iterable[str], ending: Iterable[str] = ()) -> dict[str, TaskState]:
        """Return what is known of each task (12, 12_3), or of a job by its own number.

        The controller is asked for the tasks in `ending` each time: the database may still have them as waiting.
        """
        wanted = sorted(set(tasks))
        self.problem = ""
        database = self._read_database(wanted) if self._database else {}
        rows = {task: (database or {}).get(task) for task in wanted}
        self._asked += 1
        every = self._asked % EVERY == 0
        doubted = {*ending, *(task for task, what in self._since if what != COMPLETING)}
        unclear = [task for task, row in rows.items() if every or row is None or row.is_final or task in doubted]
        queue = self._read_queue(unclear) if unclear else {}
        found = {}
        for task, row in rows.items():
            if task not in unclear and row is not None:
                found[task] = TaskState(row, over=False)
            elif queue is None:
                found[task] = TaskState(row or JobState(task, "", UNKNOWN), over=None)
            else:
                waits = row is not None and row.state == PENDING  # then only the controller can say that it is gone
                others = queue if waits else (*(database or {}), *queue)
                known = (row is None or waits) and any(_find_base(other) == _find_base(task) for other in others)
                found[task] = self._judge(task, row, queue.get(task), answered=database is not None, known=known)
                if found[task].over is False:
                    self._forget(task)
        return found

    def _judge(
        self, task: str, row: JobState | None, queued: JobState | None, *, answered: bool, known: bool
    ) -> TaskState:
        """Decide by both answers; `answered` is whether the database answered, if there is one.

        `known` is whether its array is known of a task that did not start.
        """
        ended = row if row is not None and row.is_final else None
        if queued is None:
            if ended is not None:
                return TaskState(ended, over=True)
            # The controller knows it no more. Who has no database, and asks too late, knows only that; but of an array
            # with a database a task is not among the others only if it was cancelled while it waited.
            gone = known and "_" in task and self._database
            patient = self._database and (
                not answered or self._measure_wait(task, "lost") < (SETTLE_S if gone else LOST_S)
            )
            state = JobState(task, "" if row is None else row.raw, CANCELLED if gone else UNKNOWN)
            return TaskState(state, over=None if patient else True)
        if not queued.is_final:
            if queued.state == COMPLETING and self._measure_wait(task, COMPLETING) > COMPLETING_S:
                return TaskState(ended or queued, over=True)
            return TaskState(queued, over=False)
        if ended is not None:
            return TaskState(replace(ended, state=queued.state, reason=queued.reason), over=True)
        patient = self._database and answered and self._measure_wait(task, "settle") < SETTLE_S
        return TaskState(queued, over=None if patient else True)

    def _measure_wait(self, task: str, what: str) -> float:
        return self._now() - self._since.setdefault((task, what), self._now())

    def _forget(self, task: str) -> None:
        for what in ("lost", "settle"):
            self._since.pop((task, what), None)

    def _read_database(self, tasks: list[str]) -> dict[str, JobState] | None:
        try:
            return index_jobs(self._jobs.read_accounted(_list_numbers(tasks)))
        except Unavailable as error:
            if "accounting" in error.what:
                self._database = False
                return {}
            self.problem = str(error)
        except MeterError as error:
            self.problem = str(error)
        return None

    def _read_queue(self, tasks: list[str]) -> dict[str, JobState] | None:
        try:
            return index_jobs(self._jobs.read_queued(_list_numbers(tasks)))
        except MeterError as error:
            self.problem = str(error)
            return None


def index_jobs(rows: Iterable[JobState]) -> dict[str, JobState]:
    """Return rows by task and by number; tasks that wait are one row, `12_[4-7]`, and answered apart here."""
    found: dict[str, JobState] = {}
    numbers: dict[str, JobState] = {}
    for row in rows:
        base, bracket, listed = row.job.partition("_[")
        numbers[row.raw] = row
        found |= {f"{base}_{index}": row for index in _expand_indices(listed)} if bracket else {base: row}
    return numbers | found


def _expand_indices(text: str) -> Iterator[int]:
    """Give the indices of `1-3,5,8-12:2%4]`."""
    for match in _RANGE.finditer(text.partition("%")[0]):
        first, last, step = (int(part) if part else None for part in match.groups())
        assert first is not None
        yield from range(first, (first if last is None else last) + 1, step or 1)


def _find_base(task: str) -> str:
    return task.partition("_")[0]


def _list_numbers(tasks: Iterable[str]) -> list[str]:
    return sorted({_find_base(task) for task in tasks}, key=int)
