"""Keep the jobs of a study in its folder (`STUDY/jobs/TOKEN/`), so that every driver finds them; submit more.

Only the driver that submitted a job cancels it; others do if that driver is gone.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_clock_pair
from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed, StoreError
from joulelab.core.process_identity import identify_process
from joulelab.store.documents import read_json
from joulelab.store.run_folder import write_json_atomic
from joulelab.store.safe_files import open_file, open_regular, read_regular, replace_file
from joulelab.study.slots import CLAIM, JOB, is_claim_stale
from joulelab.study.slurm.job_queue import JobQueue, escape_percent, list_sbatch_options, make_script
from joulelab.study.slurm.job_watch import COMPLETING, UNKNOWN, index_jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.study.executors import Fate
    from joulelab.study.matrix import NodeType
    from joulelab.study.slurm.job_queue import JobState
    from joulelab.study.slurm.job_watch import TaskState

FOLDER, FILE, SLOTS, SCRIPT = "jobs", "job.json", "slots.txt", "script.sh"
DRIVER, CANCELLED, LOCK = "driver", "ended", "lock"  # keys of job.json
MOST_ANSWER, MOST_ERRORS = 64 * 1024, 2000  # bytes that are read of a slot's answers and errors
ANSWER_S = 10.0  # a status does not wait longer for Slurm
# Effect of a job's state on its slot; for all other states the slot's folder decides.
FATES: dict[str, Fate] = {
    "NODE_FAIL": "again",
    "BOOT_FAIL": "again",
    "PREEMPTED": "again",
    "REVOKED": "again",
    UNKNOWN: "again",
    "CANCELLED": "cancelled",
    "TIMEOUT": "failed",
    "DEADLINE": "failed",
    "OUT_OF_MEMORY": "failed",
}
# Reasons for which a job will not start by itself; a job that Slurm requeued itself has a sentence for a reason.
_STUCK = re.compile(
    r"held|JobHold|special.exit|NeverSatisfied|NotAllowed|ReservationDeleted|PerJob|^(Bad|Partition|ReqNode|Invalid)",
    re.IGNORECASE,
)


@dataclass(slots=True)
class SubmittedJob:
    """Hold a job or an array of jobs: a task for each slot. `number` is None while it is not known."""

    folder: Path
    slots: tuple[Path, ...]
    data: dict[str, Any]

    @property
    def number(self) -> str | None:
        """Return the job's number."""
        job = self.data.get("job")
        return None if job is None else str(job)

    @property
    def name(self) -> str:
        """Return the job's name, by which it is found if its number could not be stored."""
        return str(self.data["name"])

    @property
    def utc_ns(self) -> int:
        """Return when it was prepared."""
        return int(self.data["utc_ns"])

    def name_task(self, index: int) -> str:
        """Return the name of a task in Slurm."""
        return f"{self.number}_{index}" if len(self.slots) > 1 else str(self.number)

    def out(self, index: int) -> Path:
        """Return the file of a slot's answers."""
        return self.folder / f"out.{index}"

    def err(self, index: int) -> Path:
        """Return the file of all other output of a slot's process."""
        return self.folder / f"err.{index}"

    def write_file(self, name: str, text: bytes) -> Path:
        """Write a file of the job. Raises StoreError."""
        try:
            replace_file(self.folder / name, text, sync=False)
        except OSError as error:
            raise StoreError("cannot store a job", where=str(self.folder), why=error.strerror) from error
        return self.folder / name

    def update_record(self, **changes: Any) -> None:
        """Change the job's record on disk. Raises StoreError."""
        self.data |= changes
        write_json_atomic(self.folder / FILE, self.data)


@dataclass(slots=True)
class SlotTask:
    """Hold a slot's task. `old` until it is known whether a task of an earlier driver has ended.

    `cancels` counts requests to cancel it, `cancelled` those that Slurm got; `answered` and `ended` are in s.
    """

    slot: Path
    job: SubmittedJob
    index: int
    old: bool = False
    bytes_read: int = 0
    cancels: int = 0
    cancelled: int = 0
    answered: float | None = None
    ended: float | None = None

    @property
    def name(self) -> str:
        """Return its name in Slurm."""
        return self.job.name_task(self.index)


@contextlib.contextmanager
def lock_jobs(study: Path) -> Iterator[int]:
    """Hold the lock on the jobs of a study while submitting; sbatch inherits it. Raises StoreError."""
    folder = study / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        fd = open_file(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise StoreError("cannot store jobs", where=str(folder), why=error.strerror) from error
    try:
        with contextlib.suppress(OSError):  # a file system without locks costs a job too many, which ends at once
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def prepare_job(study: Path, slots: Sequence[Path], about: Mapping[str, Any]) -> SubmittedJob:
    """Make the folder of a job that will be submitted. Raises StoreError."""
    now = read_clock_pair().utc_ns
    stamp = dt.datetime.fromtimestamp(now // NS, dt.UTC).strftime("%Y%m%d-%H%M%S")
    token = f"{stamp}-{os.urandom(4).hex()}"
    folder = study / FOLDER / token
    data = {"job": None, "name": f"joulelab-{study.name}-{token}", "utc_ns": now, "over": False, **about}
    job = SubmittedJob(folder, tuple(slots), data)
    try:
        folder.mkdir()
    except OSError as error:
        raise StoreError("cannot store a job", where=str(folder), why=error.strerror) from error
    names = "".join(f"{slot.relative_to(study)}\n" for slot in slots)
    job.write_file(SLOTS, names.encode(errors="surrogateescape"))
    job.update_record()
    return job


def read_open_jobs(study: Path, known: Mapping[str, SubmittedJob]) -> list[SubmittedJob]:
    """Return the jobs that are not over and not known yet, the oldest first; unreadable ones are left out."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted(Path(entry.path) for entry in os.scandir(study / FOLDER) if entry.is_dir()):
            if folder.name in known:
                continue
            with contextlib.suppress(StoreError, OSError, KeyError, ValueError, TypeError):
                data = read_json(folder / FILE)
                if data.get("over"):
                    continue
                slots = tuple(study / line for line in read_regular(folder / SLOTS).decode().splitlines())
                job = SubmittedJob(folder, slots, data)
                if job.name and job.utc_ns:
                    found.append(job)
    return found


class JobSubmitter:
    """Submit jobs of a study for this driver, and find the jobs of others.

    `problem` is set while it is not known whether the last job was submitted. A lock file shows other containers, which
    cannot see this process, that it lives.
    """

    def __init__(self, queue: JobQueue, nodes: Mapping[str, NodeType], study: Path) -> None:
        self._queue, self._nodes, self._study = queue, nodes, study
        self._known: dict[str, SubmittedJob] = {}  # by token
        self._array_limit: int | None = None
        self._own = identify_process()
        self._lock = -1
        self.problem: ReadFailed | None = None

    def read_array_limit(self) -> int:
        """Return how many tasks an array may have. Raises MeterError."""
        if self._array_limit is None:
            text = self._queue.read_settings().get("MaxArraySize", "")
            self._array_limit = max(int(text), 1) if text.isdecimal() else 1
        return self._array_limit

    def submit_slots(self, node: str, slots: Sequence[Path], lock: int) -> SubmittedJob:
        """Submit slots of a node type as one job. sbatch inherits the lock: its holder knows that none is under way.

        The job has no number if it is not known whether it was submitted. Raises ConfigError, StoreError.
        """
        kind = self._nodes[node]
        words = list_sbatch_options(kind)
        about = {"node": node, "options": dict(kind.options), "words": words, **self.identify_driver()}
        job = prepare_job(self._study, slots, about)
        self._known[job.folder.name] = job
        script = job.write_file(SCRIPT, make_script(kind, self._study, job.folder.name).encode())
        mark = "%a" if len(slots) > 1 else "0"
        whole = [f"--job-name={job.name}", "--open-mode=append", "--export=ALL", *words]
        whole += [f"--{key}={escape_percent(job.folder / key[:3])}.{mark}" for key in ("output", "error")]
        whole += [f"--array=0-{len(slots) - 1}"] if len(slots) > 1 else []
        self.problem = None
        try:
            job.update_record(job=self._queue.submit_job([*whole, str(script)], f"node type {node}", [lock]))
        except ReadFailed as error:
            self.problem = error
        except ConfigError:
            job.update_record(over=True, refused=True)
            raise
        return job

    def read_new_jobs(self) -> list[SubmittedJob]:
        """Return the jobs that other drivers have submitted since."""
        new = read_open_jobs(self._study, self._known)
        self._known |= {job.folder.name: job for job in new}
        return new

    def find_lost_jobs(self) -> list[SubmittedJob]:
        """Find jobs without a number by their name; return those that were never submitted. Raises MeterError."""
        lost = [job for job in self._known.values() if job.number is None and not job.data["over"]]
        found = self._queue.find_named([job.name for job in lost], min(job.utc_ns for job in lost)) if lost else {}
        for job in lost:
            job.update_record(**({"job": found[job.name]} if job.name in found else {"over": True}))
        return [job for job in lost if job.number is None]

    def identify_driver(self) -> dict[str, Any]:
        """Return the identity of this driver for the record of a job; the folder of jobs exists."""
        if self._lock < 0:
            name = f".driver-{os.urandom(4).hex()}"
            with contextlib.suppress(OSError):  # without locks only those in the same container know of us
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._lock = os.open(self._study / FOLDER / name, flags, 0o666)
                self._own[LOCK] = name
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return {DRIVER: dict(self._own)}

    def describe_other_driver(self, job: SubmittedJob) -> str:
        """Return in words the other driver that a job belongs to, empty if there is none that may still live."""
        driver = self._find_other_driver(job)
        if driver is None or is_claim_stale(driver, self._study / FOLDER / str(driver.get(LOCK))):
            return ""
        return f"process {driver.get('pid')} on {driver.get('host')}"

    def note_cancelled(self, tasks: Iterable[SlotTask]) -> None:
        """Record which tasks this driver is about to cancel: for other drivers they are still to be run."""
        for task in tasks:
            with contextlib.suppress(StoreError):
                task.job.update_record(**{CANCELLED: sorted({*task.job.data.get(CANCELLED, ()), task.index})})

    def was_cancelled_by_other(self, task: SlotTask) -> bool:
        """Return whether the other driver that submitted a task cancelled it as it was stopped."""
        if self._find_other_driver(task.job) is None:
            return False
        with contextlib.suppress(StoreError):
            return task.index in read_json(task.job.folder / FILE).get(CANCELLED, ())
        return False

    def close(self) -> None:
        """Release the lock of this driver."""
        if self._lock >= 0:
            with contextlib.suppress(OSError):
                (self._study / FOLDER / str(self._own[LOCK])).unlink()
            os.close(self._lock)
            self._lock = -1

    def _find_other_driver(self, job: SubmittedJob) -> dict[str, Any] | None:
        driver = job.data.get(DRIVER)
        if not isinstance(driver, dict):
            return None
        same = all(driver.get(key) == self._own[key] for key in ("pid", "ticks", "boot", "space"))
        return None if same else driver


def list_queued_slots(study: Path, environ: Mapping[str, str]) -> dict[Path, str]:
    """Return the slots whose jobs wait or run, with number and state: `5_3 PENDING`; none if Slurm does not answer."""
    try:
        found = read_queue(JobQueue(environ, timeout_s=ANSWER_S), study)
    except JoulelabError:
        return {}
    return {
        slot: f"{name} {state.state}" + (f" ({state.reason})" if is_stuck(state) else "")
        for slot, (name, state) in found.items()
    }


def read_queue(queue: JobQueue, study: Path) -> dict[Path, tuple[str, JobState]]:
    """Return the slots whose jobs wait or run, with their tasks. Raises MeterError."""
    jobs = [job for job in read_open_jobs(study, {}) if job.number is not None]
    rows = index_jobs(queue.read_queued([str(job.number) for job in jobs])) if jobs else {}
    tasks = {slot: job.name_task(index) for job in jobs for index, slot in enumerate(job.slots)}
    return {slot: (name, rows[name]) for slot, name in tasks.items() if name in rows and not rows[name].is_final}


def list_open_tasks(queue: JobQueue, study: Path) -> list[str]:
    """Return the tasks that wait or run, in order. Raises MeterError."""
    return sort_tasks(name for name, state in read_queue(queue, study).values() if state.state != COMPLETING)


def sort_tasks(names: Iterable[str]) -> list[str]:
    """Return tasks by their numbers."""
    return sorted(set(names), key=lambda name: [int(part) for part in name.split("_")])


def is_stuck(state: JobState) -> bool:
    """Return whether a job will not start by itself."""
    return bool(_STUCK.search(state.reason))


def write_job(slot: Path, task: TaskState) -> None:
    """Write the end of its job into a slot's folder, if the slot is of that job."""
    state = task.state
    with contextlib.suppress(StoreError):
        if read_json(slot / CLAIM).get("job") not in (state.raw, None) and state.raw:
            return
        data = {"job": state.job, "raw": state.raw, "state": state.state, "exit_code": state.exit_code}
        write_json_atomic(slot / JOB, {**data, "nodes": state.nodes, "why": describe_end(task)})


def describe_end(task: TaskState) -> str:
    """Return in words how a job ended."""
    state = task.state
    if state.state == UNKNOWN:
        return "ended; Slurm has no record of its result"
    code = f", exit code {state.exit_code}" if state.exit_code not in ("", "0:0") else ""
    reason = f" ({state.reason})" if state.reason else ""
    return f"ended as {state.state}{reason}{code}" + (f" on {state.nodes}" if state.nodes else "")


def describe_task(task: SlotTask, state: TaskState) -> str:
    """Return in words how a task ended, with the end of its errors."""
    text = _read_tail(task.job.err(task.index), MOST_ERRORS).decode(errors="replace").strip()
    return f"job {task.name} {describe_end(state)}" + (f": {text}" if text else "")


def advise_on_silence(task: SlotTask, *, began: bool) -> str:
    """Return where to look if a task gave no answer though nothing from outside ended it."""
    err = task.job.err(task.index)
    if not err.exists():
        return f"there is no {err}: see whether its node can write there"
    if began or err.stat().st_size:
        return f"see {err}"
    look = "look at the node type's setup lines: one that fails after `set -e`, or `exit`, ends the job"
    script = task.job.folder / SCRIPT
    return f"it ended before its slot began, and {err} is empty; {look}; its script is {script}"


def read_answer(file: Path) -> dict[str, Any] | None:
    """Return the last answer of a slot, None if that was not its end."""
    for line in reversed(_read_tail(file, MOST_ANSWER).splitlines()):
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and "is" in answer:
                return None if answer["is"] == "waits" else answer
    return None


def _read_tail(file: Path, most: int) -> bytes:
    try:
        with open_regular(file) as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - most))
            return opened.read()
    except OSError:
        return b""
