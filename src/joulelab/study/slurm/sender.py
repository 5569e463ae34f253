"""Send slots to Slurm as jobs, and find again what was sent: by this driver or another, its number known or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.study.slurm import options, sent
from joulelab.study.slurm.driver import JobDriver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.study.nodes import NodeType
    from joulelab.study.slurm.job_queue import JobQueue
    from joulelab.study.slurm.sent import SubmittedJob


class Sender:
    """Submit jobs of a study; `problem` is why it is not known whether the last one was submitted, if so."""

    def __init__(self, jobs: JobQueue, nodes: Mapping[str, NodeType], study: Path) -> None:
        self._jobs, self._nodes, self._study = jobs, nodes, study
        self.driver = JobDriver(study)
        self._known: dict[str, SubmittedJob] = {}  # by token
        self._largest: int | None = None
        self.problem: ReadFailed | None = None

    def largest(self) -> int:
        """Return how many tasks an array may have. Raises MeterError."""
        if self._largest is None:
            text = self._jobs.read_settings().get("MaxArraySize", "")
            self._largest = max(int(text), 1) if text.isdecimal() else 1
        return self._largest

    def send(self, node: str, slots: Sequence[Path], lock: int) -> SubmittedJob:
        """Send slots of a node type as one job; sbatch inherits the lock: who has it knows that none is under way.

        The job has no number where it is not known whether it was submitted. Raises ConfigError, StoreError.
        """
        kind = self._nodes[node]
        words = options.list_sbatch_options(kind)
        about = {"node": node, "options": dict(kind.options), "words": words, **self.driver.about()}
        job = sent.prepare_job(self._study, slots, about)
        self._known[job.folder.name] = job
        script = job.write_script(options.make_script(kind, self._study, job.folder.name))
        mark = "%a" if len(slots) > 1 else "0"
        whole = [f"--job-name={job.name}", "--open-mode=append", "--export=ALL", *words]
        whole += [f"--{key}={options.escape_percent(job.folder / key[:3])}.{mark}" for key in ("output", "error")]
        whole += [f"--array=0-{len(slots) - 1}"] if len(slots) > 1 else []
        self.problem = None
        try:
            job.note(job=self._jobs.submit_job([*whole, str(script)], f"node type {node}", [lock]))
        except ReadFailed as error:
            self.problem = error
        except ConfigError:
            job.note(over=True, refused=True)
            raise
        return job

    def learn(self) -> list[SubmittedJob]:
        """Return what other drivers have sent since."""
        new = sent.read_open_jobs(self._study, self._known)
        self._known |= {job.folder.name: job for job in new}
        return new

    def find_lost(self) -> list[SubmittedJob]:
        """Find jobs by name whose numbers nobody could write down; return those that were never submitted.

        Raises MeterError.
        """
        lost = [job for job in self._known.values() if job.job is None and not job.data["over"]]
        found = self._jobs.find_named([job.name for job in lost], min(job.utc_ns for job in lost)) if lost else {}
        for job in lost:
            job.note(**({"job": found[job.name]} if job.name in found else {"over": True}))
        return [job for job in lost if job.job is None]
