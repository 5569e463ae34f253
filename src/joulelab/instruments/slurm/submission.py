"""Submit, watch and cancel jobs by Slurm's own programs: sbatch, sacct, squeue, scancel; every call bounded."""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, ReadFailed, Refused, Unavailable
from joulelab.instruments.slurm.client import Answer, failure, parse_pairs, parse_settings, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

# Conditions that a job ends with; after all others it goes on, or is put back into the queue.
FINAL = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
))  # fmt: skip
ROW_FIELDS = ("JobID", "JobIDRaw", "State", "ExitCode", "NodeList")
QUEUE_FORMAT = "%i|%A|%T|%N|%r"
# What an outer job, or the user, sets for these programs must not become options of our jobs.
FOREIGN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SACCT_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SINFO_")
KEPT = ("SLURM_CONF",)
# Of an outer job's own tasks and devices.
OUTER = ("PMI_", "PMIX_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
# Unlimited lists of array indices, times in UTC, the same words in every language.
ASKING = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard", "TZ": "UTC", "LC_ALL": "C"}
# The controller did not answer, or not now; whether a job was submitted is not known.
UNCLEAR = ("contact", "timed out", "temporarily", "communication", "connection", "zero bytes", "try again", "standby")
# A limit on how many jobs one may have: there will be room later, or for fewer at once.
LIMITED = ("accounting/qos policy", "submit limit", "submitjob", "maximum number of jobs", "job count")
MARGIN_S = 3600  # clocks of two machines, when a job is looked for by its name
_NEXT = "look at the node type's options in the study file, and at sinfo"


@dataclass(frozen=True, slots=True)
class JobState:
    """Hold what is known of a job: `job` is 12, 12_3 (of an array) or 12_[4-7] (tasks that wait), `raw` its number."""

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


class Jobs:
    """Run Slurm's client programs for jobs; `run(words, timeout_s, keep)` is how, `keep` are descriptors to inherit."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        timeout_s: float = 60.0,
        where: str = "slurm",
        run: Callable[[Sequence[str], float, Sequence[int]], Answer] | None = None,
    ) -> None:
        self._environ = clean(environ)
        self._timeout_s, self._where = timeout_s, where
        self._run = run or self._start

    def submit(self, words: Sequence[str], where: str, keep: Sequence[int] = ()) -> str:
        """Submit by sbatch's options and script; return the job's number.

        Raises ConfigError where it is refused, Refused where there are too many, ReadFailed where it is not known
        whether it was submitted.
        """
        answer = self._run(("sbatch", "--parsable", *words), self._timeout_s, keep)
        number = answer.out.strip().rpartition("\n")[2].partition(";")[0]
        if answer.code == 0 and number.isdecimal():
            return number
        said = _words(answer)
        if answer.code == 0 or answer.code < 0 or _has(said, UNCLEAR):
            raise ReadFailed("sbatch did not say whether it submitted", where=where, why=said, next="it is looked for")
        raise _refused(said, where)

    def test(self, words: Sequence[str], where: str) -> str:
        """Have sbatch judge options and a script, no more; return what it says. Raises ConfigError, ReadFailed."""
        answer = self._run(("sbatch", "--test-only", *words), self._timeout_s, ())
        said = _words(answer)
        if answer.code == 0:
            return said
        if _has(said, UNCLEAR):
            raise ReadFailed("sbatch failed", where=where, why=said, next="it is tried again")
        raise _refused(said, where)

    def accounted(self, jobs: Iterable[str]) -> list[JobState]:
        """Return what the database says of jobs; tasks of their arrays are rows. Raises ReadFailed, Unavailable."""
        words = ("sacct", "-X", "--parsable2", "--noheader", "-o", ",".join(ROW_FIELDS), "-j", ",".join(jobs))
        return [_accounted(line) for line in self._ask(words).splitlines() if line.count("|") == len(ROW_FIELDS) - 1]

    def queued(self, jobs: Iterable[str]) -> list[JobState]:
        """Return what the controller says of jobs, also of those that ended before. Raises ReadFailed, Unavailable."""
        words = (
            "squeue",
            "--noheader",
            "--array",
            "--states=all",
            f"--format={QUEUE_FORMAT}",
            f"--jobs={','.join(jobs)}",
        )
        return [_queued(line) for line in self._ask_known(words).splitlines() if line.count("|") >= 4]

    def named(self, names: Sequence[str], since_utc_ns: int) -> dict[str, str]:
        """Return the numbers of jobs by name that were submitted since. Raises ReadFailed, Unavailable."""
        found = {}
        since = dt.datetime.fromtimestamp(since_utc_ns // NS - MARGIN_S, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
        listed = ",".join(names)
        asked = ("sacct", "-X", "--parsable2", "--noheader", "-o", "JobID,JobName", f"--name={listed}", "-S", since)
        queue = ("squeue", "--noheader", "--states=all", "--format=%F|%j", f"--name={listed}")
        texts = [self._ask_known(queue)]
        with contextlib.suppress(Unavailable):  # no database
            texts.append(self._ask(asked))
        for line in "\n".join(texts).splitlines():
            job, _, name = line.partition("|")
            if name in names:
                found[name] = job.partition("_")[0]
        return found

    def cancel(self, tasks: Sequence[str], *, kill: bool = False) -> None:
        """End jobs, or tasks of arrays: in good order, or at once. Raises ReadFailed."""
        answer = self._run(("scancel", *(("--signal=KILL", "--full") if kill else ()), *tasks), self._timeout_s, ())
        said = _words(answer)
        if answer.code and _has(said, UNCLEAR):
            raise ReadFailed("scancel failed", where=self._where, why=said, next="it is tried again")

    def settings(self) -> dict[str, str]:
        """Return the controller's configuration. Raises ReadFailed, Unavailable."""
        return parse_settings(self._ask(("scontrol", "show", "config")))

    def partitions(self) -> dict[str, dict[str, str]]:
        """Return the partitions by name, as scontrol shows them. Raises ReadFailed, Unavailable."""
        rows = [parse_pairs(line) for line in self._ask(("scontrol", "-o", "show", "partition")).splitlines()]
        return {row["PartitionName"]: row for row in rows if "PartitionName" in row}

    def features(self, partition: str | None) -> set[str]:
        """Return the features of all nodes, or of those of a partition. Raises ReadFailed, Unavailable."""
        words = ["sinfo", "--noheader", "--format=%f", *([f"--partition={partition}"] if partition else [])]
        shown = self._ask(words).replace("(null)", "").split()
        return {feature for line in shown for feature in line.split(",") if feature}

    def _ask(self, words: Sequence[str]) -> str:
        answer = self._run(words, self._timeout_s, ())
        if answer.code or (not answer.out.strip() and "error" in answer.err):
            raise failure(words[0], answer, self._where)
        return answer.out

    def _ask_known(self, words: Sequence[str]) -> str:
        """Return the answer, nothing where the controller knows no such job."""
        answer = self._run(words, self._timeout_s, ())
        if answer.code and "invalid job id" in _words(answer).lower():
            return ""
        if answer.code:
            raise failure(words[0], answer, self._where)
        return answer.out

    def _start(self, words: Sequence[str], timeout_s: float, keep: Sequence[int]) -> Answer:
        env = self._environ | ({} if words[0] == "sbatch" else ASKING)
        return run_program(words, env, timeout_s, self._where, keep)


def clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what an outer job left in it: its options, its tasks, its devices."""
    dropped = FOREIGN + (OUTER if "SLURM_JOB_ID" in environ else ())
    return {key: value for key, value in environ.items() if key in KEPT or not key.startswith(dropped)}


def _accounted(line: str) -> JobState:
    job, raw, state, code, nodes = line.split("|")
    return JobState(job, raw, state.partition(" ")[0], code, "" if nodes == "None assigned" else nodes)


def _queued(line: str) -> JobState:
    job, raw, state, nodes, reason = line.split("|", 4)
    return JobState(job, raw, state, "", nodes, "" if reason == "None" else reason)


def _refused(said: str, where: str) -> ConfigError:
    if _has(said, LIMITED):
        return Refused("the cluster takes no more jobs", where=where, why=said, next="it is tried again")
    return ConfigError("sbatch refuses the job", where=where, why=said, next=_NEXT)


def _words(answer: Answer) -> str:
    said = [line.strip() for line in (answer.err + "\n" + answer.out).splitlines() if line.strip()]
    return (
        "; ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in said)[:500]
        or f"it ended with {answer.code}"
    )


def _has(said: str, marks: Sequence[str]) -> bool:
    return any(mark in said.lower() for mark in marks)
