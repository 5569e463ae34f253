"""Tell which jobs of a study are in the queue, or run: by what was sent and by one question to the controller."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError
from joulelab.study.slurm.job_queue import JobQueue
from joulelab.study.slurm.job_watch import COMPLETING, index_jobs
from joulelab.study.slurm.sent import read_open_jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from joulelab.study.slurm.job_queue import JobState

# Who only wants to look does not wait long.
ANSWER_S = 10.0
# Reasons for which a job will not start by itself; a job that Slurm put back itself has a sentence for a reason.
_STUCK = re.compile(
    r"held|JobHold|special.exit|NeverSatisfied|NotAllowed|ReservationDeleted|PerJob|^(Bad|Partition|ReqNode|Invalid)",
    re.IGNORECASE,
)


def list_queued_slots(study: Path, environ: Mapping[str, str]) -> dict[Path, str]:
    """Return the slots whose jobs wait or run, with number and state: `5_3 PENDING`; nothing where Slurm is silent."""
    try:
        found = read_queue(JobQueue(environ, timeout_s=ANSWER_S), study)
    except JoulelabError:
        return {}
    return {slot: f"{name} {_state(state)}" for slot, (name, state) in found.items()}


def read_queue(jobs: JobQueue, study: Path) -> dict[Path, tuple[str, JobState]]:
    """Return the slots whose jobs wait or run, with their tasks. Raises MeterError."""
    sent = [job for job in read_open_jobs(study, {}) if job.job is not None]
    rows = index_jobs(jobs.read_queued([str(job.job) for job in sent])) if sent else {}
    tasks = {slot: job.task(index) for job in sent for index, slot in enumerate(job.slots)}
    return {slot: (name, rows[name]) for slot, name in tasks.items() if name in rows and not rows[name].is_final}


def list_open_tasks(jobs: JobQueue, study: Path) -> list[str]:
    """Return the tasks that wait or run, in order. Raises MeterError."""
    return sort_tasks(name for name, state in read_queue(jobs, study).values() if state.state != COMPLETING)


def sort_tasks(names: Iterable[str]) -> list[str]:
    """Return tasks by their numbers."""
    return sorted(set(names), key=lambda name: [int(part) for part in name.split("_")])


def is_stuck(state: JobState) -> bool:
    """Return whether a job will not start by itself."""
    return bool(_STUCK.search(state.reason))


def _state(state: JobState) -> str:
    return f"{state.state} ({state.reason})" if is_stuck(state) else state.state
