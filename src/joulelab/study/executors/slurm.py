"""Run slots as jobs of Slurm: alike ones as one array; one question to the database serves all of them."""

from __future__ import annotations

import contextlib
import json
import select
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, JoulelabError, MeterError, Refused, StoreError
from joulelab.store.safe_files import open_regular
from joulelab.study.executors import SlotEnd, SlotWait
from joulelab.study.folder import read_cell
from joulelab.study.matrix import DEFAULT_OPTIONS
from joulelab.study.slurm.job_queue import JobQueue, check  # noqa: F401 - `check` is a hook of executors
from joulelab.study.slurm.job_watch import JobWatch
from joulelab.study.slurm.submitted_jobs import (
    FATES,
    JobSubmitter,
    SlotTask,
    advise_on_silence,
    describe_task,
    is_stuck,
    list_open_tasks,
    lock_jobs,
    read_answer,
    sort_tasks,
    write_job,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.study.matrix import NodeType
    from joulelab.study.slurm.job_watch import TaskState
    from joulelab.study.slurm.submitted_jobs import SubmittedJob

SUMMARY = "jobs of a cluster, by Slurm"
# Pauses between questions to Slurm: the first, the longest, the longest while it does not answer.
FIRST_S, LAST_S, TROUBLE_S = 1.0, 30.0, 8.0
CLOSING_S = 30.0  # a slot that answered its end is over soon
# Announced once, until it works again.
SUBMITTING, CANCELLING, ASKING, QUEUED = "waits to submit", "waits to cancel", "waits for Slurm", "waits in the queue"
MOST_CANCELS = 3
# What a node has written may be states here only later: files and folders are looked at again for so long.
VISIBLE_S = 60.0


def open_executor(environ: Mapping[str, str], nodes: Mapping[str, NodeType], study: Path) -> SlurmExecutor:
    """Open it for the node types of a study; jobs of an earlier driver are found again."""
    return SlurmExecutor(JobQueue(environ), nodes, study.absolute())


class SlurmExecutor:
    """Collect slots, submit them as jobs, and watch the jobs. `now` is in s."""

    def __init__(
        self, jobs: JobQueue, nodes: Mapping[str, NodeType], study: Path, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._jobs, self._nodes, self._study, self._now = jobs, nodes, study, now
        self._watch, self._submitter = JobWatch(jobs, now), JobSubmitter(jobs, nodes, study)
        self._collected: dict[Path, str] = {}  # slot to node type
        self._followed: dict[Path, SlotTask] = {}
        self._earlier: dict[Path, SlotTask] = {}  # submitted by other drivers, not followed
        self._claims: dict[str, TaskState] = {}  # by the job's own number
        self._news: list[SlotEnd | SlotWait] = []
        self._last: dict[Path, SlotEnd] = {}
        self._announced: set[str] = set()
        self._cluster: str | None = None
        self._pause_s, self._due, self._submit_due = FIRST_S, 0.0, 0.0
        self.at_once = sum(self._count_room(name) for name, node in nodes.items() if node.executor == "slurm") or 1

    def submit(self, slot: Path) -> None:
        """Collect a slot; it is submitted at the next poll, unless it has a job. Raises ConfigError, StoreError."""
        name = read_cell(slot.parent).workload.node_type
        if name not in self._nodes:
            raise ConfigError(
                f"there is no node type {name!r}", where="study", next=f"there are {', '.join(self._nodes)}"
            )
        self._collected[slot] = name
        self._submit_due = 0.0

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd | SlotWait]:
        """Return the slots that have ended or wait. Raises ConfigError if sbatch refuses a job."""
        until = self._now() + timeout_s
        self._make_progress()
        while not self._news:
            left = min(until, self._due if self._followed or self._claims else until) - self._now()
            if self._wait_for_input(max(left, 0.0), also) or self._now() >= until:
                break
            self._make_progress()
        news, self._news = self._news, []
        return news

    def cancel(self, slot: Path) -> None:
        """End a slot's job, at the next poll; called again, at once; and again, leave it.

        A job of another driver that may still live is left to it.
        """
        if self._collected.pop(slot, None) is not None:
            self._news.append(SlotEnd(slot, None, "it was not submitted", "cancelled"))
        elif slot in self._followed:
            task = self._followed[slot]
            driver = self._submitter.describe_other_driver(task.job)
            if driver:
                self._leave_task(task, f"job {task.name} is left to the driver that sent it, {driver}")
                return
            task.cancels += 1
            self._poll_soon()
        else:  # the caller does not know yet that it ended
            self._news.append(self._last.get(slot, SlotEnd(slot, None, "there is no job for it", "cancelled")))

    def is_over(self, claim: Mapping[str, Any]) -> bool | None:
        """Return whether the job of a claim has ended; asked once for all jobs of the study, then at polls."""
        number = str(claim.get("job") or "")
        if not number.isdecimal() or not self._is_own_cluster(claim):
            return None
        if number not in self._claims:
            self._read_new_jobs()
            states = self._watch.read_states([number, *self._index_earlier()])
            self._claims[number] = states[number]
            self._update_earlier(states)
        return self._claims[number].over

    def list_open_jobs(self) -> list[str]:
        """Return the jobs of this study, as Slurm names them, that wait or run and are not followed here."""
        own = {task.name for task in self._followed.values()}
        try:
            return [name for name in list_open_tasks(self._jobs, self._study) if name not in own]
        except MeterError:  # as far as is known
            return sort_tasks(self._index_earlier())

    def close(self) -> None:
        """Leave the jobs in the queue: the next driver finds them again."""
        self._submitter.close()

    def _is_own_cluster(self, claim: Mapping[str, Any]) -> bool:
        cluster = claim.get("cluster")
        if self._cluster is None and cluster:
            with contextlib.suppress(MeterError):
                self._cluster = self._jobs.read_settings().get("ClusterName")
        return bool(cluster) and str(cluster).lower() == (self._cluster or "").lower()

    def _count_room(self, node: str) -> int:
        return int(self._nodes[node].options.get("at_once", DEFAULT_OPTIONS["at_once"]))

    def _poll_soon(self) -> None:
        self._pause_s, self._due = FIRST_S, 0.0

    def _wait_for_input(self, seconds: float, also: Sequence[int]) -> bool:
        """Wait; return whether somebody else has something to read."""
        with contextlib.suppress(InterruptedError):
            return bool(select.select(also, (), (), seconds)[0])
        return True

    def _make_progress(self) -> None:
        """Submit collected slots, cancel, read answers, and ask Slurm for states if it is time."""
        if self._collected and self._now() >= self._submit_due:
            self._submit_collected()
        if self._now() >= self._due and any(task.cancels > task.cancelled for task in self._followed.values()):
            self._cancel_tasks()
        self._read_answers()
        if (self._followed or self._claims) and self._now() >= self._due:
            self._watch_tasks()

    # Sending

    def _submit_collected(self) -> None:
        """Submit the slots that there is room for; a failed submission is tried again."""
        self._submit_due = self._now() + LAST_S
        try:
            with lock_jobs(self._study) as lock:
                self._read_new_jobs()
                self._find_lost_jobs()
                for slot in [slot for slot in self._collected if slot in self._earlier]:
                    del self._collected[slot]
                    self._followed[slot] = self._earlier.pop(slot)
                for node in sorted(set(self._collected.values())):
                    self._submit_node_type(node, lock)
        except (Refused, MeterError) as error:
            if isinstance(error, Refused) and not self._followed:
                raise
            self._announce(SUBMITTING, error, next(iter(self._collected or self._followed)))
        else:
            self._announced.discard(SUBMITTING)
        self._poll_soon()

    def _submit_node_type(self, node: str, lock: int) -> None:
        """Submit slots of a node type as arrays while there is room. Raises ConfigError, MeterError, StoreError."""
        slots = [slot for slot, name in self._collected.items() if name == node]
        room = self._count_room(node) - sum(task.job.data.get("node") == node for task in self._followed.values())
        chunk = self._submitter.read_array_limit()
        while slots and room > 0:
            some = slots[: min(chunk, room)]
            try:
                self._follow_job(self._submitter.submit_slots(node, some, lock))
            except Refused:
                if len(some) == 1:
                    raise
                chunk = len(some) // 2  # a limit on jobs; fewer at once may be taken
                continue
            slots, room = slots[len(some) :], room - len(some)
            if self._submitter.problem is not None:
                raise self._submitter.problem

    def _follow_job(self, job: SubmittedJob) -> None:
        for index, slot in enumerate(job.slots):
            self._collected.pop(slot, None)
            self._followed[slot] = SlotTask(slot, job, index)

    def _read_new_jobs(self) -> None:
        """Read the jobs that other drivers have submitted."""
        for job in self._submitter.read_new_jobs():
            for index, slot in enumerate(job.slots):
                self._earlier[slot] = SlotTask(slot, job, index, old=True)

    def _find_lost_jobs(self) -> None:
        """Find jobs whose numbers are not known; slots of those that were never submitted are submitted again."""
        for job in self._submitter.find_lost_jobs():
            self._earlier = {slot: task for slot, task in self._earlier.items() if task.job is not job}
            for task in [task for task in self._followed.values() if task.job is job]:
                self._resubmit(task)

    def _resubmit(self, task: SlotTask) -> None:
        """Submit a slot again."""
        del self._followed[task.slot]
        if task.cancels:
            self._news.append(SlotEnd(task.slot, None, "it was not submitted", "cancelled"))
        else:
            self._collected[task.slot] = str(task.job.data["node"])
            self._submit_due = 0.0

    def _cancel_tasks(self) -> None:
        """Cancel tasks, in one call for all that are to be asked, and one for those to be killed."""
        for level, kill in ((1, False), (2, True)):
            tasks = [
                task for task in self._followed.values() if task.cancels >= level > task.cancelled and task.job.number
            ]
            try:
                if tasks:
                    self._submitter.note_cancelled(tasks)
                    self._jobs.cancel_tasks([task.name for task in tasks], kill=kill)
            except MeterError as error:
                self._announce(CANCELLING, error, tasks[0].slot)
                break
            for task in tasks:
                task.cancelled = level
        for task in [task for task in self._followed.values() if task.cancels >= MOST_CANCELS]:
            self._leave_task(task, f"job {task.name} was left as it is")

    def _leave_task(self, task: SlotTask, words: str) -> None:
        """Stop following a task; its job continues."""
        self._earlier[task.slot] = self._followed.pop(task.slot)
        self._news.append(SlotEnd(task.slot, None, words, "cancelled"))

    # Watching

    def _read_answers(self) -> None:
        """Read new answers of slots; Slurm is soon asked about a slot that has answered its end."""
        for task in self._followed.values():
            with contextlib.suppress(OSError):
                if task.job.out(task.index).stat().st_size <= task.bytes_read:
                    continue
                with open_regular(task.job.out(task.index)) as file:
                    file.seek(task.bytes_read)
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                task.bytes_read += len(whole)
                for line in whole.splitlines():
                    self._read_line(task, line)

    def _read_line(self, task: SlotTask, line: bytes) -> None:
        answer: Any = None
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
        if isinstance(answer, dict) and answer.get("is") == "waits":
            self._news.append(SlotWait(task.slot, str(answer.get("for"))))
        else:
            task.answered = self._now()
            self._pause_s, self._due = FIRST_S, min(self._due, self._now() + FIRST_S / 2)

    def _watch_tasks(self) -> None:
        """Ask for the states of tasks and claims; wait longer each time that nothing changes."""
        if any(task.job.number is None for task in self._followed.values()):
            self._find_lost_jobs_again()
        tasks = {task.name: task for task in self._followed.values() if task.job.number is not None}
        claims = [number for number, state in self._claims.items() if not state.over]
        ending = [name for name, task in tasks.items() if task.cancelled]
        states = self._watch.read_states([*tasks, *claims, *self._index_earlier()], ending) if tasks or claims else {}
        before = len(self._news)
        if self._watch.problem and self._followed:
            self._announce(ASKING, self._watch.problem, next(iter(self._followed)))
        elif not self._watch.problem:
            self._announced.discard(ASKING)
        self._claims |= {number: states[number] for number in claims}
        self._update_earlier(states)
        for name, task in tasks.items():
            self._update_task(task, states[name])
        soon = self._now() - CLOSING_S
        unsettled = not self._watch.problem and any(
            states[name].over is None or (task.answered or soon) > soon for name, task in tasks.items()
        )
        last_s = TROUBLE_S if self._watch.problem else LAST_S
        self._pause_s = FIRST_S if len(self._news) > before or unsettled else min(2 * self._pause_s, last_s)
        self._due = self._now() + self._pause_s

    def _find_lost_jobs_again(self) -> None:
        try:
            with lock_jobs(self._study):
                self._find_lost_jobs()
        except MeterError as error:
            self._announce(SUBMITTING, error, next(iter(self._followed)))

    def _update_task(self, task: SlotTask, found: TaskState) -> None:
        """Take the state of a task; report the slot if it has ended."""
        if found.over is False:
            task.old = False
            if is_stuck(found.state):
                then = f"for the reason: scontrol show job {task.name}"
                self._announce(QUEUED, f"job {task.name} does not start: {found.state.reason}; {then}", task.slot)
        if not found.over:
            return
        answer = read_answer(task.job.out(task.index))
        began = _is_listed(task.slot)
        if task.old and not began:
            self._close_job(task)
            self._resubmit(task)  # it ended before this driver came
            return
        task.ended = self._now() if task.ended is None else task.ended
        missing = answer is None or (answer.get("is") == "ended" and not began)
        if found.state.state == "COMPLETED" and missing and self._now() - task.ended < VISIBLE_S:
            return
        write_job(task.slot, found)
        fate, words = FATES.get(found.state.state, ""), describe_task(task, found)
        if answer is None and not fate:
            words += f"; {advise_on_silence(task, began=began)}"
        if fate == "cancelled" and not task.cancels and self._submitter.was_cancelled_by_other(task):
            fate = "again"  # that driver was stopped, this one was not
            words += "; another driver of the study cancelled it"
        del self._followed[task.slot]
        self._submit_due = 0.0  # there is room for another
        self._close_job(task)
        self._last[task.slot] = SlotEnd(task.slot, answer, words, fate)
        self._news.append(self._last[task.slot])

    def _close_job(self, task: SlotTask) -> None:
        """Record that a job is over if none of its tasks is watched any more."""
        watched = (*self._followed.values(), *self._earlier.values())
        if not any(other.job is task.job and other is not task for other in watched):
            with contextlib.suppress(StoreError):
                task.job.update_record(over=True)

    def _index_earlier(self) -> dict[str, SlotTask]:
        return {task.name: task for task in self._earlier.values() if task.job.number is not None}

    def _update_earlier(self, states: Mapping[str, TaskState]) -> None:
        """Take the states of jobs of other drivers: for their claims and for their slots."""
        for name, task in self._index_earlier().items():
            found = states.get(name)
            if found is None:
                continue
            if found.state.raw and found.state.nodes:  # it runs or ran: there may be a claim
                self._claims.setdefault(found.state.raw, found)
            if found.over:
                write_job(task.slot, found)
                del self._earlier[task.slot]
                self._close_job(task)

    def _announce(self, what: str, why: JoulelabError | str, slot: Path) -> None:
        """Report once what a slot waits for."""
        if what not in self._announced:
            self._announced.add(what)
            self._news.append(SlotWait(slot, str(why), what))


def _is_listed(folder: Path) -> bool:
    """Return whether a folder exists. Its parent is listed, which asks the file server; a look-up may be cached."""
    try:
        return any(file.name == folder.name for file in folder.parent.iterdir())
    except OSError:
        return False
