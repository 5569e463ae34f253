"""Read how much each Slurm job of this node uses it: CPU time by control group, load of each GPU by process.

A process belongs to the job that its control group names (`job_123` in /proc/PID/cgroup, both versions of cgroups).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import MeterError
from joulelab.instruments.host import CpuLoad
from joulelab.instruments.nvml.client import Nvml
from joulelab.instruments.nvml.read import ProcessLoad

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
OTHER = "other"  # processes that belong to no job
# Where the CPU time of a job is, by version: microseconds in a list, or nanoseconds alone.
CPU_FILES = (("system.slice/*slurmstepd.scope/job_{job}", "cpu.stat"), ("cpu*/slurm*/uid_*/job_{job}", "cpuacct.usage"))
_JOB = re.compile(rb"/job_([1-9]\d{0,9})(?:/|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class UseReading:
    """Hold the use of a node: CPU time (s) by job and of all processes, and loads of GPUs (0 to 1) by scope and job.

    A job without a known CPU time, and a GPU whose loads are not known, are left out.
    """

    cpu_s: Mapping[str, float]
    machine_s: float
    cpus: int
    gpu_loads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class GpuProcesses:
    """Read the load of each process on each GPU; NVML is opened with the first reading."""

    def __init__(self) -> None:
        self._readers: list[tuple[str, Any, ProcessLoad]] | None = None

    def read_loads(self) -> dict[str, dict[int, float]]:
        """Return the loads (0 to 1) since the last reading by scope and process; an unknown one is left out."""
        if self._readers is None:
            self._readers = self._open_readers()
        found = {scope: load.read_loads(handle, is_used=False) for scope, handle, load in self._readers}
        return {scope: loads for scope, loads in found.items() if loads is not None}

    def _open_readers(self) -> list[tuple[str, Any, ProcessLoad]]:
        try:
            nvml = Nvml()
            gpus, _ = nvml.list_gpus()
        except MeterError:  # the meter `nvml` reports it
            return []
        return [(f"gpu:{gpu.index}", gpu.handle, ProcessLoad(nvml)) for gpu in gpus]


class JobUseReader:
    """Read the use of the node by its jobs; all files are below `proc` and `cgroups`."""

    def __init__(self, gpus: GpuProcesses | None = None, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        """Open /proc/stat. Raises MeterError."""
        self._gpus, self._proc, self._cgroups = gpus, proc, cgroups
        self._load = CpuLoad(proc)
        self._files: dict[str, Path] = {}

    def read_use(self, jobs: Iterable[str]) -> UseReading:
        """Return the use of the node by these jobs. Raises ReadFailed."""
        self._load.read_share()
        cpu_s = {job: used for job in jobs if (used := self._read_cpu_s(job)) is not None}
        loads = {} if self._gpus is None else self._gpus.read_loads()
        by_job: dict[str, dict[str, float]] = {}
        for scope, processes in loads.items():
            sums = by_job.setdefault(scope, {})
            for pid, load in processes.items():
                job = self._find_job(pid)
                sums[job] = min(sums.get(job, 0.0) + load, 1.0)
        return UseReading(cpu_s, self._load.busy_s, os.cpu_count() or 1, by_job)

    def _find_job(self, pid: int) -> str:
        try:
            match = _JOB.search((self._proc / str(pid) / "cgroup").read_bytes())
        except OSError:  # it has ended
            return OTHER
        return OTHER if match is None else match[1].decode()

    def _read_cpu_s(self, job: str) -> float | None:
        for pattern, name in () if job in self._files else CPU_FILES:
            found = next(iter(sorted(self._cgroups.glob(f"{pattern.format(job=job)}/{name}"))), None)
            if found is not None:
                self._files[job] = found
                break
        try:
            text = self._files[job].read_text()
        except (KeyError, OSError):  # it has ended, or this version keeps no CPU time
            self._files.pop(job, None)
            return None
        if self._files[job].name == "cpuacct.usage":
            return int(text) / 1e9
        used = re.search(r"^usage_usec (\d+)$", text, re.MULTILINE)
        return None if used is None else int(used[1]) / 1e6
