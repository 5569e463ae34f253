"""Hold the task of a slot in a job, and say in words and in the slot's folder what became of it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.errors import StoreError
from joulelab.store.documents import read_json
from joulelab.store.run_folder import write_json_atomic
from joulelab.study.slots import CLAIM, JOB
from joulelab.study.slurm.job_watch import UNKNOWN
from joulelab.study.slurm.sent import read_tail

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.study.executors import Fate
    from joulelab.study.slurm.job_watch import TaskState
    from joulelab.study.slurm.sent import SubmittedJob

MOST_ERRORS = 2000
# What a job's condition means for its slot; after the others its folder tells.
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


@dataclass(slots=True)
class SlotTask:
    """Hold a slot's task. `old` until it is known whether one that an earlier driver sent has ended."""

    slot: Path
    sent: SubmittedJob
    index: int
    old: bool = False
    heard: int = 0
    cancels: int = 0
    cancelled: int = 0
    told: float | None = None
    ended: float | None = None

    @property
    def name(self) -> str:
        """Return it as Slurm does."""
        return self.sent.task(self.index)


def write_job(slot: Path, seen: TaskState) -> None:
    """Write down in a slot what became of its job, if the slot is of that job."""
    state = seen.state
    with contextlib.suppress(StoreError):
        if read_json(slot / CLAIM).get("job") not in (state.raw, None) and state.raw:
            return
        data = {"job": state.job, "raw": state.raw, "state": state.state, "exit_code": state.exit_code}
        write_json_atomic(slot / JOB, {**data, "nodes": state.nodes, "why": describe_end(seen)})


def describe_end(seen: TaskState) -> str:
    """Return in words how a job ended."""
    state = seen.state
    if state.state == UNKNOWN:
        return "ended; Slurm knows no more of it"
    code = f", exit code {state.exit_code}" if state.exit_code not in ("", "0:0") else ""
    reason = f" ({state.reason})" if state.reason else ""
    return f"ended as {state.state}{reason}{code}" + (f" on {state.nodes}" if state.nodes else "")


def describe_task(task: SlotTask, seen: TaskState) -> str:
    """Return in words how a task ended, with the last that it wrote."""
    text = read_tail(task.sent.err(task.index), MOST_ERRORS)
    return f"job {task.name} {describe_end(seen)}" + (f": {text}" if text else "")


def advise_on_silence(task: SlotTask, *, began: bool) -> str:
    """Return what to look at where a task told nothing though nothing from outside ended it."""
    err = task.sent.err(task.index)
    if not err.exists():
        return f"there is no {err}: see whether its node can write there"
    if began or err.stat().st_size:
        return f"see {err}"
    look = "look at the node type's setup lines: one that fails after `set -e`, or `exit`, ends the job"
    return f"it ended before its slot began, and {err} is empty; {look}; its script is {task.sent.script}"


def list_names(folder: Path) -> set[str]:
    """Return the names in a folder; to list it asks the file server, to look for one name may not."""
    try:
        return {file.name for file in folder.iterdir()}
    except OSError:
        return set()
