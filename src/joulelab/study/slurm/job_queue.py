"""Talk to Slurm: options and script of a job, submission, states, cancelling, and checks before anything runs."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Refused, Unavailable
from joulelab.instruments.slurm.client import SlurmClient, explain_failure, parse_pairs
from joulelab.study.matrix import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.instruments.slurm.client import Answer
    from joulelab.study.matrix import NodeType


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
# Options of a node type and their names in sbatch.
SBATCH_NAMES = {
    "partition": "--partition",
    "constraint": "--constraint",
    "nodes": "--nodes",
    "tasks": "--ntasks-per-node",
    "cpus": "--cpus-per-task",
    "account": "--account",
    "qos": "--qos",
}
SCRIPT = """\
#!/bin/bash
# Run slots of a study, each in a task of its own. Written by joulelab; Slurm keeps a copy of its own.
# Output of the setup lines goes to the errors, not among the slot's answers.
exec 3>&1 1>&2
# srun does not take it from the job by itself.
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi
{setup}
study={study}
slot=$(sed -n "$((${{SLURM_ARRAY_TASK_ID:-0}} + 1))p" "$study"/jobs/{token}/slots.txt)
# Signals of Slurm reach the slot itself.
exec {python} -P -W ignore -m joulelab.study.slot "$study/$slot" 1>&3 3>&-
"""
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
_FEATURE = re.compile(r"[A-Za-z_][\w.-]*")


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
        lines = self._get_output(*words).replace("(null)", "").split()
        return {feature for line in lines for feature in line.split(",") if feature}

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


def list_sbatch_options(node: NodeType) -> list[str]:
    """Return sbatch's options for a node type; options of the study file come last and so take precedence."""
    given: Mapping[str, Any] = {**DEFAULT_OPTIONS, **node.options}
    found = [f"{option}={given[key]}" for key, option in SBATCH_NAMES.items() if given.get(key) is not None]
    if given.get("gpus"):
        found.append(f"--gres=gpu:{given['gpus']}")
    if given.get("time") is not None:
        found.append(f"--time={format_time_limit(given['time'])}")
    if given["exclusive"]:
        found.append("--exclusive")
    return [*found, *(str(word) for word in given.get("options") or ())]


def format_time_limit(time: float | str) -> str:
    """Return a time (s) in Slurm's format, rounded up: hours:minutes:seconds."""
    if isinstance(time, str):
        return time
    minutes, seconds = divmod(math.ceil(time), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def make_script(node: NodeType, study: Path, token: str) -> str:
    """Return the script of a job."""
    setup = "\n".join(str(line) for line in node.options.get("setup") or ())
    return SCRIPT.format(setup=setup, study=shlex.quote(str(study)), token=token, python=shlex.quote(sys.executable))


def escape_percent(file: Path) -> str:
    """Escape a file's name for sbatch, which replaces patterns that begin with %."""
    return str(file).replace("%", "%%")


def check(nodes: Mapping[str, NodeType], environ: Mapping[str, str]) -> list[str]:
    """Check the node types that run on Slurm before anything is submitted; return warnings. Raises ConfigError."""
    wanted = {name: node for name, node in nodes.items() if node.executor == "slurm"}
    if not wanted:
        return []
    jobs = JobQueue(environ)
    try:
        settings, partitions = jobs.read_settings(), jobs.read_partitions()
        notes = [note for name, node in wanted.items() for note in _check_node(jobs, name, node, partitions)]
    except ConfigError:
        raise
    except MeterError as error:
        then = "run it on a login node of the cluster, when Slurm answers"
        raise ConfigError(
            "Slurm cannot be used", where=error.where, why=f"{error.what}: {error.why}", next=then
        ) from error
    return notes + _check_settings(settings)


def _check_node(jobs: JobQueue, name: str, node: NodeType, partitions: Mapping[str, Mapping[str, str]]) -> list[str]:
    where = f"node type {name}"
    partition = node.options.get("partition")
    for each in str(partition).split(",") if partition else []:
        if each not in partitions:
            there = ", ".join(sorted(partitions))
            raise ConfigError(
                f"there is no partition {each!r}",
                where=where,
                why=f"there are {there}",
                next="list the partitions: sinfo -s",
            )
        _check_time(where, node, each, partitions[each])
    constraint = node.options.get("constraint")
    if constraint:
        known = jobs.list_features(partition)
        for feature in _FEATURE.findall(str(constraint)):
            if feature not in known:
                why = f"there are {', '.join(sorted(known))}" if known else "its nodes have no features"
                raise ConfigError(
                    f"no node has the feature {feature!r}", where=where, why=why, next="see sinfo -o '%P %f'"
                )
    with tempfile.TemporaryDirectory(prefix="joulelab-") as folder:
        script = Path(folder) / "script.sh"
        script.write_text(make_script(node, Path(folder), "test"))
        jobs.test_options([*list_sbatch_options(node), str(script)], where)
    notes = []
    if not node.options.get("exclusive", True):
        notes.append(f"{where}: not exclusive: the measured energy includes other jobs on its nodes")
    if node.options.get("time") is None:
        notes.append(f"{where}: no time limit is given: that of the partition applies")
    return notes


def _check_time(where: str, node: NodeType, partition: str, row: Mapping[str, str]) -> None:
    limit = _parse_time_limit(row.get("MaxTime", ""))
    wanted = node.options.get("time")
    if limit is not None and isinstance(wanted, (int, float)) and wanted > limit:
        what = f"the time {format_time_limit(wanted)} is more than the partition allows"
        raise ConfigError(what, where=where, why=f"MaxTime of {partition} is {row['MaxTime']}", next="give less time")


def _check_settings(settings: Mapping[str, str]) -> list[str]:
    notes = []
    wait = re.match(r"\d+", settings.get("KillWait", ""))
    if wait and int(wait[0]) < 15:
        notes.append(
            f"slurm: KillWait is {wait[0]} s: a job that is cancelled may be killed before its caps are put back"
        )
    if settings.get("AccountingStorageType", "").endswith(("/none", "(null)")):
        notes.append(
            "slurm: this cluster keeps no accounting: what became of jobs is known by squeue only, for a while"
        )
    return notes


def _parse_time_limit(text: str) -> int | None:
    """Return a time limit in s, None if there is none."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
