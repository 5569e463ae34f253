"""Keep which simulated jobs run on a twin, and let its leaves draw what they want: one note per job, one lock for all.

A job that was killed leaves its note behind; whoever comes next (another job, the server) finds it gone and lets its
GPUs idle.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import TYPE_CHECKING, Any, Final

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.twins.owner import is_gone, owner
from joulelab.twins.records import Process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from joulelab.twins.truth import Truth

# A segment begins this much later than it is written, so that nobody has already read the time it changes.
LEAD_S: Final = 0.02
# The load that a full GPU is for the CPU package that feeds it, and the memory that a job takes on it.
CPU_SHARE: Final = 0.35
MEMORY_BYTES: Final = 4 << 30


def folder_of(truth: Truth) -> Path:
    """Return where the notes of a twin's jobs are; a twin that something else moves has none."""
    return truth.path.with_name("jobs")


class Board:
    """Write and clear this process's note, and settle the power of the node after every change."""

    def __init__(self, truth: Truth) -> None:
        """Take a truth file. Raises ConfigError where its twin takes no jobs."""
        self._truth = truth
        self._folder = folder_of(truth)
        self._note = self._folder / f"{os.getpid()}.json"
        if not self._folder.is_dir():
            raise ConfigError(
                "this twin takes no jobs", where=str(truth.path), why="a load or profiles move it",
                next="serve it idle: joulelab twin 8xrtx6000 --idle -- CMD",
            )  # fmt: skip

    def put(self, watts: Mapping[int, float], at_ns: int) -> None:
        """Let this job's GPUs want some power (W, without their caps) from `at_ns` on."""
        with self._locked():
            self._note.write_text(json.dumps({"owner": owner(os.getpid()), "watts": watts}))
            self._settle(at_ns)

    def clear(self, at_ns: int) -> None:
        """Let this job want nothing any more from `at_ns` on."""
        with self._locked():
            self._note.unlink(missing_ok=True)
            self._settle(at_ns)

    def sweep(self) -> None:
        """Clear the notes of jobs that are gone."""
        gone = [note for note in self._folder.glob("*.json") if self._read(note) is None]
        if gone:
            with self._locked():
                self._settle(monotonic_ns() + round(LEAD_S * NS))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self, note: Path) -> dict[str, Any] | None:
        """Return a note whose job runs, None for any other."""
        try:
            told: dict[str, Any] = json.loads(note.read_text())
            return None if is_gone(told["owner"]) else told
        except (OSError, ValueError):
            return None  # a job that was killed while it wrote

    def _settle(self, at_ns: int) -> None:
        """Append what has changed; nothing can be changed before what another job has already announced."""
        jobs = []
        for note in sorted(self._folder.glob("*.json")):
            told = self._read(note)
            if told is None:
                note.unlink(missing_ok=True)
            else:
                jobs.append(told)
        self._list_processes(jobs)
        for leaf, watts in self._wanted(jobs).items():
            since_ns, last_w = self._truth.last(leaf)
            if abs(last_w - watts) > 1e-9:
                self._truth.append(leaf, max(at_ns, since_ns), watts, watts)

    def _wanted(self, jobs: list[dict[str, Any]]) -> dict[str, float]:
        """Return the power that every leaf wants (W)."""
        node = self._truth.node
        ranges = {leaf: node.range_w(leaf) for leaf in node.leaves()}
        count = len(node.gpus)
        loads = [0.0] * count
        for gpu in range(count):
            idle_w, max_w = ranges[f"gpu:{gpu}"]
            asked = sum(max(job["watts"].get(str(gpu), idle_w) - idle_w, 0.0) for job in jobs)
            loads[gpu] = min(asked / (max_w - idle_w), 1.0)
        wanted = {f"gpu:{gpu}": load for gpu, load in enumerate(loads)} | {"host": sum(loads) / max(count, 1)}
        for package in range(node.packages):
            fed = [loads[gpu] for gpu in range(count) if gpu * node.packages // count == package]
            load = CPU_SHARE * sum(fed) / max(len(fed), 1)
            wanted |= {f"{kind}:{package}": load for kind in ("cpu", "core", "dram")}
        return {leaf: low + wanted[leaf] * (high - low) for leaf, (low, high) in ranges.items()}

    def _list_processes(self, jobs: list[dict[str, Any]]) -> None:
        """Let NVML list the jobs on their GPUs."""
        for gpu in range(len(self._truth.node.gpus)):
            pids = [job["owner"]["pid"] for job in jobs if str(gpu) in job["watts"]]
            self._truth.set_processes(gpu, [Process(pid=pid, memory_bytes=MEMORY_BYTES) for pid in pids])
