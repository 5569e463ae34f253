"""List the simulated jobs of a twin, and let its leaves draw their power: one note per job, one lock for all.

A job that was killed leaves its note behind; whoever comes next (another job, the server) finds it gone and lets its
GPUs idle. So do the GPUs of a job that is stopped (SIGSTOP), until it is continued.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.core.process_identity import find_process, identify_process, is_stopped
from joulelab.core.text import suggest_name
from joulelab.twin.truth_file import Process
from joulelab.twin.workload_progress import WorkloadModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from joulelab.twin.model import Node
    from joulelab.twin.truth import Truth

# A segment begins this much later than it is written, so that no reader has seen that time before.
LEAD_S: Final = 0.02
# The load that a full GPU is for the CPU package that feeds it, and the memory that a job takes on it.
CPU_SHARE: Final = 0.35
MEMORY_BYTES: Final = 4 << 30
NOTE_BYTES: Final = 4096
_PACKAGE: Final = ("cpu", "core")


@dataclass(frozen=True, slots=True)
class JobDemand:
    """Hold the demand of a job: `watts` of its GPUs without caps, and loads (0 to 1) of the rest of the node.

    `packages` are the share of time that each is awake, the load of its cores, and that of its memory.
    """

    watts: Mapping[int, float]
    host: float = 0.0
    packages: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """Hold the result of a job: steps, and from when to when (ns) it worked; `signal` ended it early."""

    steps: int
    begin_ns: int
    end_ns: int
    signal: int | None = None


def feed_gpus(node: Node, watts: Mapping[int, float]) -> JobDemand:
    """Return the demand of a job whose host only feeds its GPUs (W): `CPU_SHARE` of their load."""
    count = len(node.gpus)
    loads = [0.0] * count
    for gpu, wanted_w in watts.items():
        idle_w, max_w = node.range_w(f"gpu:{gpu}")
        loads[gpu] = max(wanted_w - idle_w, 0.0) / (max_w - idle_w)
    packages = {}
    for package in range(node.packages):
        mine = [loads[gpu] for gpu in range(count) if gpu * node.packages // count == package]
        load = CPU_SHARE * sum(mine) / max(len(mine), 1)
        packages[package] = (float(load > 0), load, load)
    return JobDemand(watts, sum(loads) / max(count, 1), packages)


def find_jobs_folder(truth: Truth) -> Path:
    """Return where the notes of a twin's jobs are; a twin that something else moves has none."""
    return truth.path.with_name("jobs")


def write_models(truth: Path, workloads: Mapping[str, WorkloadModel]) -> None:
    """Write the workloads of a node beside its truth file, where jobs find them."""
    _name_file(truth).write_bytes(msgspec.json.encode(dict(workloads)))


def find_model(truth: Path, name: str) -> WorkloadModel:
    """Return how a workload gets on here. Raises ConfigError for one that the node's file does not model."""
    try:
        known = msgspec.json.decode(_name_file(truth).read_bytes(), type=dict[str, WorkloadModel])
    except FileNotFoundError:
        known = {}
    if name not in known:
        advice = (
            suggest_name(name, known)
            if known
            else "serve a node whose file has [workloads.NAME], without a load: joulelab twin NODE --idle"
        )
        raise ConfigError(f"this node models no workload {name!r}", where="job", next=advice)
    return known[name]


def _name_file(truth: Path) -> Path:
    return truth.with_name("workloads.json")


class JobBoard:
    """Write and clear this process's note, and settle the power of the node after every change."""

    def __init__(self, truth: Truth) -> None:
        """Take a truth file. Raises ConfigError where its twin takes no jobs."""
        self._truth = truth
        self._folder = find_jobs_folder(truth)
        self._note = self._folder / f"{os.getpid()}.json"
        self._stopped: set[int] = set()
        if not self._folder.is_dir():
            raise ConfigError(
                "this twin takes no jobs", where=str(truth.path), why="a load or profiles move it",
                next="serve it idle: joulelab twin 8xrtx6000 --idle -- CMD",
            )  # fmt: skip

    def put_demand(self, asked: JobDemand, at_ns: int) -> None:
        """Replace the demand of this job from `at_ns` on."""
        with self._lock_notes():
            self._write_note({"owner": identify_process(), **asdict(asked)})
            self._settle_power(at_ns)

    def clear_demand(self, at_ns: int) -> None:
        """End the demand of this job from `at_ns` on."""
        with self._lock_notes():
            self._note.unlink(missing_ok=True)
            self._settle_power(at_ns)

    def sweep_notes(self) -> None:
        """Clear the notes of jobs that are gone, and let the GPUs of jobs idle that were stopped meanwhile."""
        notes = [self._read_note(file) for file in self._folder.glob("*.json")]
        pids = [int(note["owner"]["pid"]) for note in notes if note is not None]
        before, self._stopped = self._stopped, {pid for pid in pids if is_stopped(pid)}
        if None in notes or before != self._stopped:
            with self._lock_notes():
                self._settle_power(monotonic_ns() + round(LEAD_S * NS))

    def _write_note(self, note: Mapping[str, Any]) -> None:
        """Write this process's note over the last one: a file that is emptied first may have to wait for the disk."""
        text = json.dumps(note).encode().ljust(NOTE_BYTES)
        fd = os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(fd, text, 0)
            os.ftruncate(fd, len(text))
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _lock_notes(self) -> Iterator[None]:
        with (self._folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read_note(self, file: Path) -> dict[str, Any] | None:
        """Return a note whose job runs, None for any other."""
        try:
            note: dict[str, Any] = json.loads(file.read_text())
            return None if find_process(note["owner"]) in ("ended", "elsewhere") else note
        except (OSError, ValueError):
            return None  # a job that was killed while it wrote

    def _settle_power(self, at_ns: int) -> None:
        """Append what has changed; nothing can be changed before what another job has already announced."""
        jobs = []
        for file in sorted(self._folder.glob("*.json")):
            note = self._read_note(file)
            if note is None:
                file.unlink(missing_ok=True)
            else:
                jobs.append(note)
        self._list_processes(jobs)
        working = [job for job in jobs if not is_stopped(job["owner"]["pid"])]
        for leaf, watts in self._sum_demands(working).items():
            since_ns, last_w = self._truth.read_last(leaf)
            if abs(last_w - watts) > 1e-9:
                self._truth.append(leaf, max(at_ns, since_ns), watts, watts)

    def _sum_demands(self, jobs: list[dict[str, Any]]) -> dict[str, float]:
        """Return the power that every leaf wants (W): that of all jobs together, at most that of its full load."""
        node = self._truth.node
        wanted = {"host": float(node.draws_w("host", min(sum(job["host"] for job in jobs), 1.0)))}
        for gpu in range(len(node.gpus)):
            idle_w, max_w = node.range_w(f"gpu:{gpu}")
            more_w = sum(max(job["watts"].get(str(gpu), idle_w) - idle_w, 0.0) for job in jobs)
            wanted[f"gpu:{gpu}"] = min(idle_w + more_w, max_w)
        for package in range(node.packages):
            asked = [job["packages"].get(str(package), (0.0, 0.0, 0.0)) for job in jobs]
            awake = max((each[0] for each in asked), default=0.0)
            cpu, memory = (min(sum(each[k] for each in asked), 1.0) for k in (1, 2))
            wanted |= {f"{kind}:{package}": float(node.draws_w(f"{kind}:{package}", cpu, awake)) for kind in _PACKAGE}
            wanted[f"dram:{package}"] = float(node.draws_w(f"dram:{package}", memory))
        return wanted

    def _list_processes(self, jobs: list[dict[str, Any]]) -> None:
        """Let NVML list the jobs on their GPUs; jobs that share a GPU each with the load of their own power."""
        for gpu in range(len(self._truth.node.gpus)):
            here = [job for job in jobs if str(gpu) in job["watts"]]
            idle_w, max_w = self._truth.node.range_w(f"gpu:{gpu}")
            processes = []
            for job in here:
                share = (job["watts"][str(gpu)] - idle_w) / (max_w - idle_w)
                load = round(100 * min(max(share, 0.0), 1.0)) if len(here) > 1 else None
                processes.append(Process(pid=job["owner"]["pid"], memory_bytes=MEMORY_BYTES, load=load))
            self._truth.set_processes(gpu, processes)
