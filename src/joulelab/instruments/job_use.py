"""Read how much Slurm jobs and containers of this node use it: CPU time by control group, load of GPUs by process.

A process belongs to the job or container that its control group names (/proc/PID/cgroup, both versions of cgroups): a
job of Slurm (`123`), else a pod of Kubernetes (`pod-UID`), else a container (`docker-ID`, `podman-ID`, `nerdctl-ID`,
with the first 12 digits).
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.errors import MeterError
from joulelab.instruments.host import CpuLoad
from joulelab.instruments.nvml.client import SUCCESS, Nvml
from joulelab.instruments.nvml.read import ProcessList, ProcessLoad

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
OTHER = "other"  # processes that belong to no job and to no container
# Where the CPU time of a job is, by version: microseconds in a list, or nanoseconds alone.
CPU_FILES = (("system.slice/*slurmstepd.scope/job_{job}", "cpu.stat"), ("cpu*/slurm*/uid_*/job_{job}", "cpuacct.usage"))
# Where pods and containers are, with systemd and without it; under version 1 below `cpuacct`.
CONTAINERS = (
    "kubepods.slice/kubepods-pod*.slice",
    "kubepods.slice/kubepods-*.slice/kubepods-*-pod*.slice",
    "kubepods/pod*",
    "kubepods/*/pod*",
    "system.slice/docker-*.scope",
    "docker/*",
    "system.slice/nerdctl-*.scope",
    "machine.slice/libpod-*.scope",
    "libpod_parent/libpod-*",
    "user.slice/user-*.slice/user@*.service/user.slice/libpod-*.scope",
)
_JOB = re.compile(rb"slurm[^/\n]*/(?:uid_\d+/)?job_([1-9]\d{0,9})(?:/|$)", re.MULTILINE)
# 8-4-4-4-12 digits, with `_` in names of systemd; a static pod has 32 digits.
_POD = re.compile(rb"[/-]pod([0-9a-f](?:[0-9a-f_-]{30}|[0-9a-f_-]{34})[0-9a-f])(?:\.slice)?(?:/|$)", re.MULTILINE)
_CONTAINER = re.compile(
    rb"/(?:(docker|nerdctl|libpod)-|(docker)/)([0-9a-f]{12})[0-9a-f]{52}(?:\.scope)?(?:/|$)", re.MULTILINE
)


def find_owner(path: bytes) -> str:
    """Return the job, pod or container that the path of a control group names, else OTHER."""
    if (found := _JOB.search(path)) is not None:
        return found[1].decode()
    if (found := _POD.search(path)) is not None:
        return f"pod-{found[1].decode().replace('_', '-')}"
    if (found := _CONTAINER.search(path)) is not None:
        engine = (found[1] or found[2]).decode().replace("libpod", "podman")
        return f"{engine}-{found[3].decode()}"
    return OTHER


@dataclass(frozen=True, slots=True)
class UseReading:
    """Hold the use of a node: CPU time (s) by owner and of all processes, loads of GPUs (0 to 1) by scope and owner.

    Owners are jobs, containers and OTHER. `on_gpu` lists by scope who has a process there. An owner without a known CPU
    time, and a GPU whose loads are not known, are left out.
    """

    cpu_s: Mapping[str, float]
    machine_s: float
    cpus: int
    gpu_loads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    on_gpu: Mapping[str, frozenset[str]] = field(default_factory=dict)
    containers: frozenset[str] = frozenset()


class GpuUse(NamedTuple):
    """Hold the load (0 to 1) of each process on a GPU since the last reading, and the processes that have opened it."""

    loads: Mapping[int, float]
    pids: tuple[int, ...]


class GpuProcesses:
    """Read the load of each process on each GPU; NVML is opened with the first reading."""

    def __init__(self) -> None:
        self._readers: list[tuple[str, GpuUseReader]] | None = None

    def read_gpus(self) -> dict[str, GpuUse]:
        """Return the use of each GPU by scope; one whose loads are not known is left out."""
        if self._readers is None:
            self._readers = self._open_readers()
        found = {scope: reader.read_use() for scope, reader in self._readers}
        return {scope: use for scope, use in found.items() if use is not None}

    def _open_readers(self) -> list[tuple[str, GpuUseReader]]:
        try:
            nvml = Nvml()
            gpus, _ = nvml.list_gpus()
        except MeterError:  # the meter `nvml` reports it
            return []
        return [(f"gpu:{gpu.index}", GpuUseReader(nvml, gpu.handle)) for gpu in gpus]


class GpuUseReader:
    """Read the processes of one GPU and their loads."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._handle = handle
        self._processes, self._load = ProcessList(nvml), ProcessLoad(nvml)
        self._rates_function = nvml.find_function("nvmlDeviceGetUtilizationRates")
        self._rates = nvml.binding.c_nvmlUtilization_t()

    def read_use(self) -> GpuUse | None:
        """Return the loads since the last reading, None if they are not known."""
        pids = self._processes.read_pids(self._handle)
        loads = self._load.read_loads(self._handle, is_used=pids != () and not self._is_at_rest())
        return None if loads is None else GpuUse(loads, pids or ())

    def _is_at_rest(self) -> bool:
        """Return whether the whole GPU has no load: then no sample of its processes means that they rest."""
        function, rates = self._rates_function, self._rates
        return function is not None and function(self._handle, ctypes.byref(rates)) == SUCCESS and rates.gpu == 0


class JobUseReader:
    """Read the use of the node by its jobs and containers; all files are below `proc` and `cgroups`."""

    def __init__(self, gpus: GpuProcesses | None = None, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        """Open /proc/stat. Raises MeterError."""
        self._gpus, self._proc, self._cgroups = gpus, proc, cgroups
        self._load = CpuLoad(proc)
        self._files: dict[str, Path] = {}
        self._owners: dict[int, str] = {}

    def list_containers(self) -> dict[str, Path]:
        """Return the folders of the pods and containers that are on the node now."""
        found: dict[str, Path] = {}
        for base in (self._cgroups, self._cgroups / "cpuacct"):
            for folder in (folder for pattern in CONTAINERS for folder in base.glob(pattern)):
                owner = find_owner(f"/{folder.relative_to(base)}".encode())
                if owner != OTHER:
                    found.setdefault(owner, folder)
        return found

    def read_use(self, jobs: Iterable[str], containers: Mapping[str, Path]) -> UseReading:
        """Return the use of the node by these jobs and containers. Raises ReadFailed."""
        self._load.read_share()
        known = {job: self._read_job_s(job) for job in jobs}
        known |= {owner: _read_cpu_s(folder) for owner, folder in containers.items()}
        cpu_s = {owner: used for owner, used in known.items() if used is not None}
        loads: dict[str, dict[str, float]] = {}
        on_gpu: dict[str, frozenset[str]] = {}
        gpus = {} if self._gpus is None else self._gpus.read_gpus()
        owners = {pid: self._find_owner(pid) for gpu in gpus.values() for pid in (*gpu.loads, *gpu.pids)}
        for scope, gpu in gpus.items():
            if any(load > 0 and owners[pid] is None for pid, load in gpu.loads.items()):
                continue  # somebody used it, and who it was is not known
            sums = loads.setdefault(scope, {})
            for pid, load in gpu.loads.items():
                owner = owners[pid] or OTHER
                sums[owner] = min(sums.get(owner, 0.0) + load, 1.0)
            on_gpu[scope] = frozenset(owners[pid] or OTHER for pid in gpu.pids)
        self._owners = {pid: owner for pid, owner in owners.items() if owner is not None}
        return UseReading(cpu_s, self._load.busy_s, os.cpu_count() or 1, loads, on_gpu, frozenset(containers))

    def _find_owner(self, pid: int) -> str | None:
        """Return who owns a process; if it has ended, who owned it at the last reading; None if it was never seen."""
        try:
            return find_owner((self._proc / str(pid) / "cgroup").read_bytes())
        except OSError:
            return self._owners.get(pid)

    def _read_job_s(self, job: str) -> float | None:
        for pattern, name in () if job in self._files else CPU_FILES:
            found = next(iter(sorted(self._cgroups.glob(f"{pattern.format(job=job)}/{name}"))), None)
            if found is not None:
                self._files[job] = found.parent
                break
        used = _read_cpu_s(self._files[job]) if job in self._files else None
        if used is None:  # it has ended, or this version keeps no CPU time
            self._files.pop(job, None)
        return used


def _read_cpu_s(folder: Path) -> float | None:
    """Return the CPU time (s) of a control group of either version, None if it is not there."""
    for name, pattern, units in (("cpu.stat", r"^usage_usec (\d+)$", 1e6), ("cpuacct.usage", r"(\d+)", 1e9)):
        try:
            used = re.search(pattern, (folder / name).read_text(), re.MULTILINE)
        except OSError:  # it has ended, or the file is one of the other version
            continue
        if used is not None:
            return int(used[1]) / units
    return None
