"""Submit, watch and cancel jobs by Slurm's own programs: sbatch, sacct, squeue, scancel; every call bounded."""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, ReadFailed, Refused, Unavailable
from joulelab.instruments.slurm.client import SlurmClient, explain_failure, parse_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.instruments.slurm.client import Answer

# States in which a job ends; after all others it goes on, or is put back into the queue.
FINAL = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
))  # fmt: skip
ROW_FIELDS = ("JobID", "JobIDRaw", "State", "ExitCode", "NodeList")
QUEUE_FORMAT = "%i|%A|%T|%N|%r"
SACCT = ("sacct", "-X", "--parsable2", "--noheader", "-o")
SQUEUE = ("squeue", "--noheader", "--states=all")
# The controller did not answer, or not now: the job may have been submitted or not.
UNCLEAR = ("contact", "timed out", "temporarily", "communication", "connection", "zero bytes", "try again", "standby")
# A limit on the number of jobs: there will be room later, or for fewer at once.
LIMITED = ("accounting/qos policy", "submit limit", "submitjob", "maximum number of jobs", "job count")
MARGIN_S = 3600  # clocks of two machines, when a job is searched by its name


@dataclass(frozen=True, slots=True)
class JobState:
    """Hold the state of a job: `job` is 12, 12_3 (of an array) or 12_[4-7] (tasks that wait), `raw` its number."""

    job: str
    raw: str
    state: str
    exit_code: str = ""
    nodes: str = ""
    reason: str = ""

    @property
    def is_final(self) -> bool:
        """Return whether it has ended, as far as this answer goes."""
        return self.state in FINAL


class JobQueue(SlurmClient):
    """Submit and watch jobs; `run(words, timeout_s, keep)` runs a program, `keep` are descriptors to inherit."""

    TIMEOUT_S = 60.0

    def submit_job(self, words: Sequence[str], where: str, keep: Sequence[int] = ()) -> str:
        """Submit by sbatch's options and script; return the job's number.

        Raises ConfigError if it is refused, Refused if there are too many, ReadFailed if it is not known whether it was
        submitted.
        """
        answer = self._run(("sbatch", "--parsable", *words), self._timeout_s, keep)
        number = answer.out.strip().rpartition("\n")[2].partition(";")[0]
        if answer.code == 0 and number.isdecimal():
            return number
        message = _join_message(answer)
        if answer.code <= 0 or _has_mark(message, UNCLEAR):
            what, code = "sbatch did not confirm the submission", "read-failed.unclear"
            raise ReadFailed(what, where=where, why=message, next="the job is searched by its name", code=code)
        raise _explain_refusal(message, where)

    def test_options(self, words: Sequence[str], where: str) -> str:
        """Let sbatch judge options and a script, no more; return its message. Raises ConfigError, ReadFailed."""
        answer = self._run(("sbatch", "--test-only", *words), self._timeout_s)
        message = _join_message(answer)
        if answer.code == 0:
            return message
        if _has_mark(message, UNCLEAR):
            code = "read-failed.program"
            raise ReadFailed("sbatch failed", where=where, why=message, next="it is tried again", code=code)
        raise _explain_refusal(message, where)

    def read_accounted(self, jobs: Iterable[str]) -> list[JobState]:
        """Return the states of jobs in the database; tasks of their arrays are rows. Raises ReadFailed, Unavailable."""
        found = []
        for line in self._get_output(*SACCT, ",".join(ROW_FIELDS), "-j", ",".join(jobs)).splitlines():
            if line.count("|") == len(ROW_FIELDS) - 1:
                job, raw, state, code, nodes = line.split("|")
                nodes = "" if nodes == "None assigned" else nodes
                found.append(JobState(job, raw, state.partition(" ")[0], code, nodes))
        return found

    def read_queued(self, jobs: Iterable[str]) -> list[JobState]:
        """Return the states of jobs at the controller, ended ones included. Raises ReadFailed, Unavailable."""
        found = []
        words = (*SQUEUE, "--array", f"--format={QUEUE_FORMAT}", f"--jobs={','.join(jobs)}")
        for line in self._get_known(*words).splitlines():
            if line.count("|") >= 4:
                job, raw, state, nodes, reason = line.split("|", 4)
                found.append(JobState(job, raw, state, "", nodes, "" if reason == "None" else reason))
        return found

    def find_named(self, names: Sequence[str], since_utc_ns: int) -> dict[str, str]:
        """Return the numbers of jobs by name that were submitted since. Raises ReadFailed, Unavailable."""
        since = dt.datetime.fromtimestamp(since_utc_ns // NS - MARGIN_S, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
        named = f"--name={','.join(names)}"
        texts = [self._get_known(*SQUEUE, "--format=%F|%j", named)]
        with contextlib.suppress(Unavailable):  # no database
            texts.append(self._get_output(*SACCT, "JobID,JobName", named, "-S", since))
        found = {}
        for line in "\n".join(texts).splitlines():
            job, _, name = line.partition("|")
            if name in names:
                found[name] = job.partition("_")[0]
        return found

    def cancel_tasks(self, tasks: Sequence[str], *, kill: bool = False) -> None:
        """End jobs, or tasks of arrays: in good order, or at once. Raises ReadFailed."""
        answer = self._run(("scancel", *(("--signal=KILL", "--full") if kill else ()), *tasks), self._timeout_s)
        message = _join_message(answer)
        if answer.code and _has_mark(message, UNCLEAR):
            code = "read-failed.program"
            raise ReadFailed("scancel failed", where=self._where, why=message, next="it is tried again", code=code)

    def read_partitions(self) -> dict[str, dict[str, str]]:
        """Return the partitions by name, as scontrol shows them. Raises ReadFailed, Unavailable."""
        rows = [parse_pairs(line) for line in self._get_output("scontrol", "-o", "show", "partition").splitlines()]
        return {row["PartitionName"]: row for row in rows if "PartitionName" in row}

    def list_features(self, partition: str | None) -> set[str]:
        """Return the features of all nodes, or of those of a partition. Raises ReadFailed, Unavailable."""
        words = ("sinfo", "--noheader", "--format=%f", *([f"--partition={partition}"] if partition else []))
        shown = self._get_output(*words).replace("(null)", "").split()
        return {feature for line in shown for feature in line.split(",") if feature}

    def _get_known(self, *words: str) -> str:
        """Return the answer of a program, nothing if the controller knows no such job."""
        answer = self._run(words, self._timeout_s)
        if answer.code and "invalid job id" in _join_message(answer).lower():
            return ""
        if answer.code:
            raise explain_failure(words[0], answer, self._where)
        return answer.out


def _explain_refusal(message: str, where: str) -> ConfigError:
    if _has_mark(message, LIMITED):
        what, code = "the cluster takes no more jobs", "refused.too-many-jobs"
        return Refused(what, where=where, why=message, next="it is tried again", code=code)
    advice = "look at the node type's options in the study file, and at sinfo"
    return ConfigError("sbatch refuses the job", where=where, why=message, next=advice, code="config.refused-job")


def _join_message(answer: Answer) -> str:
    lines = [line.strip() for line in (answer.err + "\n" + answer.out).splitlines() if line.strip()]
    joined = "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines)
    return joined[:500] or f"it ended with {answer.code}"


def _has_mark(message: str, marks: Sequence[str]) -> bool:
    return any(mark in message.lower() for mark in marks)
