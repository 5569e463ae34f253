"""Know which Slurm jobs are on this node: from their control groups each second, and from squeue what they are."""

from __future__ import annotations

import datetime as dt
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.errors import JoulelabError, Unavailable
from joulelab.core.text import escape_unprintable
from joulelab.instruments.slurm.client import PLAIN_OUTPUT, clean_environment, explain_failure, run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.instruments.slurm.client import Answer

CGROUPS = Path("/sys/fs/cgroup")
# Where slurmstepd puts jobs: version 2 (also with several slurmd on one host), then version 1.
GROUPS = ("system.slice/*slurmstepd.scope", "*/slurm*/uid_*")
FORMAT = "%A|%u|%a|%P|%S|%C|%D"
ASK_S = 10.0
# One thousand nodes that ask every half a minute are 33 questions a second to the controller: it is asked only where
# there are no control groups, and else once for each new job.
POLL_S = 30.0
AGAIN_S = 15.0
# Control groups are looked at each second, and what is found is shown a second later at most.
SEEN_S = 3.0
_JOB = re.compile(r"job_([1-9]\d{0,9})", re.ASCII)
_LONGEST = 64


@dataclass(frozen=True, slots=True)
class Job:
    """Hold a job on this node: its number as Slurm counts (of an array's task its own), and whose it is.

    `cpus` are its reserved CPUs on each of its nodes.
    """

    number: str
    user: str = ""
    account: str = ""
    partition: str = ""
    start_utc_ns: int | None = None
    cpus: float | None = None


@dataclass(slots=True)
class Groups:
    """Read the numbers of jobs from the control groups; `is_there` says whether Slurm keeps jobs in them here."""

    root: Path = CGROUPS
    is_there: bool = False
    _folders: list[Path] = field(default_factory=list)

    def look(self) -> None:
        """Find where the jobs' groups are; it changes when slurmd starts, or under version 1 with each user."""
        self._folders = [f for pattern in GROUPS for f in self.root.glob(pattern) if f.is_dir()]
        empty = (f for f in self.root.glob("*/slurm*") if f.suffix not in (".service", ".scope", ".slice"))
        self.is_there = bool(self._folders) or any(f.is_dir() for f in empty)

    def numbers(self) -> set[str]:
        """Return the numbers of the jobs that are on the node now."""
        found = set()
        for folder in self._folders:
            try:
                names = os.listdir(folder)  # noqa: PTH208 quick
            except OSError:
                continue
            found |= {match[1] for name in names if (match := _JOB.fullmatch(name))}
        return found


class Queue:
    """Ask squeue for the jobs of one node; `run(words, timeout_s)` is how."""

    def __init__(self, node: str, *, run: Callable[[Sequence[str], float], Answer] | None = None) -> None:
        self.node = node
        self._run = run or _start

    def jobs(self) -> list[Job]:
        """Return the node's jobs. Raises MeterError; Unavailable where there is no Slurm, or no such node."""
        words = ("squeue", "--noheader", f"--nodelist={self.node}", "--states=R,CG,S", f"--format={FORMAT}")
        answer = self._run(words, ASK_S)
        if "Invalid node name" in answer.err:
            why = f"it has no node {self.node}"
            raise Unavailable("Slurm does not know this node", where="slurm", why=why, next="name it: --slurm-node")
        if answer.code or (not answer.out.strip() and "error" in answer.err):
            raise explain_failure("squeue", answer, "slurm")
        return [job for job in map(_job, answer.out.splitlines()) if job is not None]


class Jobs:
    """Follow the node's jobs; `look` may take as long as squeue does, and is called from a thread of its own.

    `problem` is what Slurm last said instead of an answer.
    """

    def __init__(self, groups: Groups, queue: Queue) -> None:
        self.now: dict[str, Job] = {}
        self.problem = ""
        self._groups, self._queue = groups, queue
        self._known: dict[str, Job] = {}
        self._next_s = self._looked_s = float("-inf")
        self._told_s: float | None = None
        self._is_here = True

    @property
    def by(self) -> str:
        """Return how jobs are found: `cgroup`, `squeue`, or nothing where there is no Slurm."""
        if self._groups.is_there:
            return "cgroup"
        return "squeue" if self._is_here else ""

    def lag_s(self, now_s: float) -> float | None:
        """Return how late a job that comes or goes may be noticed, in s; None where nothing is known of jobs."""
        if self._groups.is_there:
            return SEEN_S
        if not self._is_here or self._told_s is None:
            return None
        return max(POLL_S, now_s - self._told_s) + SEEN_S

    def look(self, now_s: float) -> None:
        """Bring `now` up to date; what cannot be asked now is asked again later."""
        if now_s - self._looked_s >= POLL_S or (self._groups.is_there and now_s - self._looked_s >= 1):
            self._groups.look()
            self._looked_s = now_s
        if self._groups.is_there:
            numbers = self._groups.numbers()
            if any(number not in self._known for number in numbers) and now_s >= self._next_s:
                self._ask(now_s, AGAIN_S)
            self._known = {number: job for number, job in self._known.items() if number in numbers}
            self.now = {number: self._known.get(number, Job(number)) for number in numbers}
        elif now_s >= self._next_s:
            self._ask(now_s, POLL_S if self._is_here else 10 * POLL_S)
            self.now = dict(self._known)

    def _ask(self, now_s: float, again_s: float) -> None:
        self._next_s = now_s + again_s
        try:
            self._known = {job.number: job for job in self._queue.jobs()}
            self._is_here, self.problem, self._told_s = True, "", now_s
        except Unavailable as error:
            self._known, self._is_here, self.problem = {}, False, str(error)
            self._next_s = now_s + 10 * POLL_S
        except JoulelabError as error:  # the controller is busy: what was known stands
            self.problem = str(error)


def _job(line: str) -> Job | None:
    fields = [escape_unprintable(part)[:_LONGEST] for part in line.strip().split("|")]
    if len(fields) != 7 or not re.fullmatch(r"[1-9]\d{0,9}", fields[0], re.ASCII):
        return None
    cpus, nodes = (int(text) if text.isdecimal() else 0 for text in fields[5:])
    per_node = cpus / nodes if cpus and nodes else None
    return Job(fields[0], fields[1], fields[2], fields[3], _utc_ns(fields[4]), per_node)


def _utc_ns(text: str) -> int | None:
    try:
        return int(dt.datetime.fromisoformat(f"{text}+00:00").timestamp()) * NS
    except ValueError:
        return None


def _start(words: Sequence[str], timeout_s: float) -> Answer:
    return run_program(words, clean_environment(os.environ) | PLAIN_OUTPUT, timeout_s, "slurm")
