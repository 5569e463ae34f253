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
from joulelab.study.nodes import DEFAULT_OPTIONS
from joulelab.study.slurm import sent
from joulelab.study.slurm.check import check  # noqa: F401 - the lead asks the executor
from joulelab.study.slurm.job_queue import JobQueue
from joulelab.study.slurm.job_watch import JobWatch
from joulelab.study.slurm.queued import is_stuck, list_open_tasks, sort_tasks
from joulelab.study.slurm.sender import Sender
from joulelab.study.slurm.task import FATES, SlotTask, advise_on_silence, describe_task, list_names, write_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.study.nodes import NodeType
    from joulelab.study.slurm.job_watch import TaskState
    from joulelab.study.slurm.sent import SubmittedJob

SUMMARY = "jobs of a cluster, by Slurm"
# Slurm is asked again after so long, at first, at last, and at last while it does not answer.
FIRST_S, LAST_S, TROUBLE_S = 1.0, 30.0, 8.0
CLOSING_S = 30.0  # a slot that told its end is over soon
# What is told once, until it works again.
SUBMITTING, CANCELLING, ASKING, QUEUED = "waits to submit", "waits to cancel", "waits for Slurm", "waits in the queue"
MOST_CANCELS = 3
# What a node has written may be seen here only later: files and folders are looked at again for so long.
VISIBLE_S = 60.0


def open_executor(environ: Mapping[str, str], nodes: Mapping[str, NodeType], study: Path) -> SlurmExecutor:
    """Open it for the node types of a study; jobs of an earlier driver are found again."""
    return SlurmExecutor(JobQueue(environ), nodes, study.absolute())


class SlurmExecutor:
    """Collect slots, send them as jobs, and tell what becomes of them. `now` is in s."""

    def __init__(
        self, jobs: JobQueue, nodes: Mapping[str, NodeType], study: Path, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._jobs, self._nodes, self._study, self._now = jobs, nodes, study, now
        self._watch, self._sender = JobWatch(jobs, now), Sender(jobs, nodes, study)
        self._collected: dict[Path, str] = {}  # slot to node type
        self._followed: dict[Path, SlotTask] = {}
        self._earlier: dict[Path, SlotTask] = {}  # sent by other drivers, not followed
        self._claims: dict[str, TaskState] = {}  # by the job's own number
        self._news: list[SlotEnd | SlotWait] = []
        self._last: dict[Path, SlotEnd] = {}
        self._said: set[str] = set()
        self._cluster: str | None = None
        self._pause_s, self._due, self._send_due = FIRST_S, 0.0, 0.0
        self.at_once = sum(self._room(name) for name, node in nodes.items() if node.executor == "slurm") or 1

    def submit(self, slot: Path) -> None:
        """Collect a slot; it is sent at the next poll, unless there is a job for it. Raises ConfigError, StoreError."""
        name = read_cell(slot.parent).workload.node_type
        if name not in self._nodes:
            raise ConfigError(
                f"there is no node type {name!r}", where="study", next=f"there are {', '.join(self._nodes)}"
            )
        self._collected[slot] = name
        self._send_due = 0.0

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> list[SlotEnd | SlotWait]:
        """Return the slots that have ended, or what is waited for. Raises ConfigError where sbatch refuses a job."""
        until = self._now() + timeout_s
        self._step()
        while not self._news:
            left = min(until, self._due if self._followed or self._claims else until) - self._now()
            if self._wait(max(left, 0.0), also) or self._now() >= until:
                break
            self._step()
        news, self._news = self._news, []
        return news

    def cancel(self, slot: Path) -> None:
        """End a slot's job, at the next poll; called again, at once; and again, leave it.

        A job that another driver sent, and that may still live, is left to it.
        """
        if self._collected.pop(slot, None) is not None:
            self._news.append(SlotEnd(slot, None, "it was not submitted", "cancelled"))
        elif slot in self._followed:
            task = self._followed[slot]
            keeper = self._sender.driver.keeper(task.sent)
            if keeper:
                self._leave(task, f"job {task.name} is left to the driver that sent it, {keeper}")
                return
            task.cancels += 1
            self._soon()
        else:  # who cancels it has not heard that it ended
            self._news.append(self._last.get(slot, SlotEnd(slot, None, "there is no job for it", "cancelled")))

    def is_over(self, claim: Mapping[str, Any]) -> bool | None:
        """Return whether the job of a claim has ended; asked once for all jobs of the study, then at polls."""
        number = str(claim.get("job") or "")
        if not number.isdecimal() or not self._is_ours(claim):
            return None
        if number not in self._claims:
            self._learn()
            seen = self._watch.ask([number, *self._earlier_tasks()])
            self._claims[number] = seen[number]
            self._take_earlier(seen)
        return self._claims[number].over

    def going_on(self) -> list[str]:
        """Return the jobs of this study, as Slurm names them, that wait or run and are not followed here."""
        own = {task.name for task in self._followed.values()}
        try:
            return [name for name in list_open_tasks(self._jobs, self._study) if name not in own]
        except MeterError:  # as far as is known
            return sort_tasks(self._earlier_tasks())

    def close(self) -> None:
        """Leave the jobs in the queue: the next driver finds them again."""
        self._sender.driver.close()

    def _is_ours(self, claim: Mapping[str, Any]) -> bool:
        cluster = claim.get("cluster")
        if self._cluster is None and cluster:
            with contextlib.suppress(MeterError):
                self._cluster = self._jobs.read_settings().get("ClusterName")
        return bool(cluster) and str(cluster).lower() == (self._cluster or "").lower()

    def _room(self, node: str) -> int:
        return int(self._nodes[node].options.get("at_once", DEFAULT_OPTIONS["at_once"]))

    def _soon(self) -> None:
        self._pause_s, self._due = FIRST_S, 0.0

    def _wait(self, seconds: float, also: Sequence[int]) -> bool:
        """Wait; return whether somebody else has something to read."""
        with contextlib.suppress(InterruptedError):
            return bool(select.select(also, (), (), seconds)[0])
        return True

    def _step(self) -> None:
        """Send what is collected, cancel what shall be, hear what slots tell, ask what became of them if it is time."""
        if self._collected and self._now() >= self._send_due:
            self._send()
        if self._now() >= self._due and any(task.cancels > task.cancelled for task in self._followed.values()):
            self._end()
        self._hear()
        if (self._followed or self._claims) and self._now() >= self._due:
            self._ask()

    # Sending

    def _send(self) -> None:
        """Send the slots that there is room for; what cannot be sent now is tried again."""
        self._send_due = self._now() + LAST_S
        try:
            with sent.lock_jobs(self._study) as lock:
                self._learn()
                self._find_lost()
                for slot in [slot for slot in self._collected if slot in self._earlier]:
                    del self._collected[slot]
                    self._followed[slot] = self._earlier.pop(slot)
                for node in sorted(set(self._collected.values())):
                    self._send_alike(node, lock)
        except (Refused, MeterError) as error:
            if isinstance(error, Refused) and not self._followed:
                raise
            self._tell(SUBMITTING, error, next(iter(self._collected or self._followed)))
        else:
            self._said.discard(SUBMITTING)
        self._soon()

    def _send_alike(self, node: str, lock: int) -> None:
        """Send slots of a node type as arrays, as long as there is room. Raises ConfigError, MeterError, StoreError."""
        slots = [slot for slot, name in self._collected.items() if name == node]
        room = self._room(node) - sum(task.sent.data.get("node") == node for task in self._followed.values())
        chunk = self._sender.largest()
        while slots and room > 0:
            some = slots[: min(chunk, room)]
            try:
                self._follow(self._sender.send(node, some, lock))
            except Refused:
                if len(some) == 1:
                    raise
                chunk = len(some) // 2  # a limit on jobs; fewer at once may be taken
                continue
            slots, room = slots[len(some) :], room - len(some)
            if self._sender.problem is not None:
                raise self._sender.problem

    def _follow(self, job: SubmittedJob) -> None:
        for index, slot in enumerate(job.slots):
            self._collected.pop(slot, None)
            self._followed[slot] = SlotTask(slot, job, index)

    def _learn(self) -> None:
        """Read what other drivers have sent."""
        for job in self._sender.learn():
            for index, slot in enumerate(job.slots):
                self._earlier[slot] = SlotTask(slot, job, index, old=True)

    def _find_lost(self) -> None:
        """Find jobs whose numbers are not known; slots of those that were never submitted are sent anew."""
        for job in self._sender.find_lost():
            self._earlier = {slot: task for slot, task in self._earlier.items() if task.sent is not job}
            for task in [task for task in self._followed.values() if task.sent is job]:
                self._again(task)

    def _again(self, task: SlotTask) -> None:
        """Send a slot anew."""
        del self._followed[task.slot]
        if task.cancels:
            self._news.append(SlotEnd(task.slot, None, "it was not submitted", "cancelled"))
        else:
            self._collected[task.slot] = str(task.sent.data["node"])
            self._send_due = 0.0

    def _end(self) -> None:
        """Cancel tasks, in one call for all that are to be asked, and one for those to be killed."""
        for level, kill in ((1, False), (2, True)):
            tasks = [
                task for task in self._followed.values() if task.cancels >= level > task.cancelled and task.sent.job
            ]
            try:
                if tasks:
                    self._sender.driver.note_end(tasks)
                    self._jobs.cancel_tasks([task.name for task in tasks], kill=kill)
            except MeterError as error:
                self._tell(CANCELLING, error, tasks[0].slot)
                break
            for task in tasks:
                task.cancelled = level
        for task in [task for task in self._followed.values() if task.cancels >= MOST_CANCELS]:
            self._leave(task, f"job {task.name} was left as it is")

    def _leave(self, task: SlotTask, words: str) -> None:
        """Follow a task no more; it goes on."""
        self._earlier[task.slot] = self._followed.pop(task.slot)
        self._news.append(SlotEnd(task.slot, None, words, "cancelled"))

    # Watching

    def _hear(self) -> None:
        """Read what slots have told since; who tells its end is asked about soon."""
        for task in self._followed.values():
            with contextlib.suppress(OSError):
                if task.sent.out(task.index).stat().st_size <= task.heard:
                    continue
                with open_regular(task.sent.out(task.index)) as file:
                    file.seek(task.heard)
                    data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                task.heard += len(whole)
                for line in whole.splitlines():
                    self._hear_line(task, line)

    def _hear_line(self, task: SlotTask, line: bytes) -> None:
        told: Any = None
        with contextlib.suppress(ValueError):
            told = json.loads(line)
        if isinstance(told, dict) and told.get("is") == "waits":
            self._news.append(SlotWait(task.slot, str(told.get("for"))))
        else:
            task.told = self._now()
            self._pause_s, self._due = FIRST_S, min(self._due, self._now() + FIRST_S / 2)

    def _ask(self) -> None:
        """Ask what became of all that is followed, and of claims; wait longer each time that nothing changes."""
        if any(task.sent.job is None for task in self._followed.values()):
            self._look_for_lost()
        tasks = {task.name: task for task in self._followed.values() if task.sent.job is not None}
        claims = [number for number, seen in self._claims.items() if not seen.over]
        ending = [name for name, task in tasks.items() if task.cancelled]
        seen = self._watch.ask([*tasks, *claims, *self._earlier_tasks()], ending) if tasks or claims else {}
        before = len(self._news)
        if self._watch.problem and self._followed:
            self._tell(ASKING, self._watch.problem, next(iter(self._followed)))
        elif not self._watch.problem:
            self._said.discard(ASKING)
        self._claims |= {number: seen[number] for number in claims}
        self._take_earlier(seen)
        for name, task in tasks.items():
            self._take(task, seen[name])
        soon = self._now() - CLOSING_S
        unsettled = not self._watch.problem and any(
            seen[name].over is None or (task.told or soon) > soon for name, task in tasks.items()
        )
        last_s = TROUBLE_S if self._watch.problem else LAST_S
        self._pause_s = FIRST_S if len(self._news) > before or unsettled else min(2 * self._pause_s, last_s)
        self._due = self._now() + self._pause_s

    def _look_for_lost(self) -> None:
        try:
            with sent.lock_jobs(self._study):
                self._find_lost()
        except MeterError as error:
            self._tell(SUBMITTING, error, next(iter(self._followed)))

    def _take(self, task: SlotTask, seen: TaskState) -> None:
        """Take what is known of a task."""
        if seen.over is False:
            task.old = False
            if is_stuck(seen.state):
                then = f"`scontrol show job {task.name}` tells more"
                self._tell(QUEUED, f"job {task.name} does not start: {seen.state.reason}; {then}", task.slot)
        if not seen.over:
            return
        told = sent.read_answer(task.sent.out(task.index))
        there = task.slot.name in list_names(task.slot.parent)
        if task.old and not there:
            self._close(task)
            self._again(task)  # it ended before this driver came
            return
        task.ended = self._now() if task.ended is None else task.ended
        missing = told is None or (told.get("is") == "ended" and not there)
        if seen.state.state == "COMPLETED" and missing and self._now() - task.ended < VISIBLE_S:
            return
        write_job(task.slot, seen)
        fate, words = FATES.get(seen.state.state, ""), describe_task(task, seen)
        if told is None and not fate:
            words += f"; {advise_on_silence(task, began=there)}"
        if fate == "cancelled" and not task.cancels and self._sender.driver.was_ended(task):
            fate = "again"  # that driver was told to stop, this one was not
            words += "; another driver of the study cancelled it"
        del self._followed[task.slot]
        self._send_due = 0.0  # there is room for another
        self._close(task)
        self._last[task.slot] = SlotEnd(task.slot, told, words, fate)
        self._news.append(self._last[task.slot])

    def _close(self, task: SlotTask) -> None:
        """Note that a job is over when nothing of it is watched any more."""
        watched = (*self._followed.values(), *self._earlier.values())
        if not any(other.sent is task.sent and other is not task for other in watched):
            with contextlib.suppress(StoreError):
                task.sent.note(over=True)

    def _earlier_tasks(self) -> dict[str, SlotTask]:
        return {task.name: task for task in self._earlier.values() if task.sent.job is not None}

    def _take_earlier(self, seen: Mapping[str, TaskState]) -> None:
        """Take what is known of jobs of other drivers: for who asks by claims, and for their slots."""
        for name, task in self._earlier_tasks().items():
            found = seen.get(name)
            if found is None:
                continue
            if found.state.raw and found.state.nodes:  # it runs or ran: there may be a claim
                self._claims.setdefault(found.state.raw, found)
            if found.over:
                write_job(task.slot, found)
                del self._earlier[task.slot]
                self._close(task)

    def _tell(self, what: str, why: JoulelabError | str, slot: Path) -> None:
        """Tell once what is waited for."""
        if what not in self._said:
            self._said.add(what)
            self._news.append(SlotWait(slot, str(why), what))
