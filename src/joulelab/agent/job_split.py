"""Divide the energy of the node's devices among its Slurm jobs, by their use, in blocks of half a minute."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.scope import find_family
from joulelab.instruments.job_use import OTHER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.agent.ledger import Key
    from joulelab.analysis.job_shares import DeviceUse, JobShare
    from joulelab.instruments.job_use import UseReading

BLOCK_CELLS = 30
LONGEST_CELL_S = 30.0  # after a longer pause, the energy of the pause is not divided


@dataclass(slots=True)
class SplitCell:
    """Hold the time between two readings (s): energy (J) by scope and meter, use (s) by scope and job."""

    seconds: float
    energy_j: dict[Key, float]
    cpu_s: dict[str, float]
    gpu_s: dict[str, dict[str, float]]
    jobs: frozenset[str]


@dataclass(slots=True)
class JobSplit:
    """Add up the shares of jobs in each scope; the shares of `other` processes and of `nobody` are among them."""

    shares: dict[tuple[str, Key], JobShare] = field(default_factory=dict)
    _cells: list[SplitCell] = field(default_factory=list)
    _last: tuple[int, dict[Key, float], UseReading] | None = None
    _rest_w: dict[Key, float] = field(default_factory=dict)
    _on_gpu: set[tuple[str, str]] = field(default_factory=set)
    _cpus: int = 1

    @property
    def is_open(self) -> bool:
        """Return whether a block has begun."""
        return bool(self._cells)

    def take(
        self,
        now_ns: int,
        totals: Mapping[Key, float],
        limits: Mapping[str, float],
        use: UseReading,
        jobs: Iterable[str],
    ) -> None:
        """Take the totals (J) and the use of this moment; divide a block when it is full, or a job comes or goes."""
        present = frozenset(jobs)
        before, self._last, self._cpus = self._last, (now_ns, dict(totals), use), use.cpus
        if before is None or not 0 < now_ns - before[0] <= LONGEST_CELL_S * NS:
            return
        if self._cells and present != self._cells[-1].jobs:
            self._divide_block(limits)
        if present:
            self._cells.append(self._make_cell(before, now_ns, totals, use, present))
        if len(self._cells) >= BLOCK_CELLS:
            self._divide_block(limits)

    def forget_jobs(self, kept: Iterable[str]) -> None:
        """Drop the shares of all jobs but these; those of other processes and of nobody stay."""
        from joulelab.analysis.job_shares import NOBODY

        names = {*kept, OTHER, NOBODY}
        self.shares = {key: share for key, share in self.shares.items() if key[0] in names}
        self._on_gpu = {pair for pair in self._on_gpu if pair[1] in names}

    def _make_cell(
        self, before: tuple[int, dict[Key, float], UseReading], now_ns: int, totals: Mapping[Key, float],
        use: UseReading, jobs: frozenset[str],
    ) -> SplitCell:  # fmt: skip
        then_ns, old, old_use = before
        seconds = (now_ns - then_ns) / NS
        energy_j = {key: total - old[key] for key, total in totals.items() if key in old and total >= old[key]}
        # The CPU time of a job that was not read before is not known for this cell.
        both = {job for job in jobs if job in use.cpu_s and job in old_use.cpu_s}
        cpu_s = {job: max(use.cpu_s[job] - old_use.cpu_s[job], 0.0) for job in both}
        cpu_s[OTHER] = max(use.machine_s - old_use.machine_s - sum(cpu_s.values()), 0.0)
        cpu_s |= dict.fromkeys(jobs - both, math.nan)
        gpu_s: dict[str, dict[str, float]] = {}
        for scope, loads in use.gpu_loads.items():
            times = gpu_s.setdefault(scope, {})
            for job, load in loads.items():
                known = job if job in jobs else OTHER
                times[known] = times.get(known, 0.0) + seconds * load
                self._on_gpu |= {(scope, known)} if load > 0 else set()
        return SplitCell(seconds, energy_j, cpu_s, gpu_s, jobs)

    def _divide_block(self, limits: Mapping[str, float]) -> None:
        from joulelab.analysis.job_shares import split_device

        cells, self._cells = self._cells, []
        for key in {key for cell in cells for key in cell.energy_j}:
            device = self._make_device(key, [cell for cell in cells if key in cell.energy_j], limits)
            for share in () if device is None else split_device(device):
                known = self.shares.get((share.job, key))
                self.shares[share.job, key] = share if known is None else known + share

    def _make_device(self, key: Key, cells: list[SplitCell], limits: Mapping[str, float]) -> DeviceUse | None:
        import numpy as np

        from joulelab.analysis.job_shares import DeviceUse, find_idle_power
        from joulelab.analysis.run_shares import CPU_RATIO, MOST_IDLE, PRESENT_CPUS, TICK_ERROR, USE_ERROR

        scope, family = key[0], find_family(key[0])
        jobs = [*sorted(cells[0].jobs), OTHER]
        seconds = np.array([cell.seconds for cell in cells])
        if family == "gpu" and "/" not in scope and any(scope in cell.gpu_s for cell in cells):
            gpus = [cell.gpu_s.get(scope) for cell in cells]
            use = {job: np.array([math.nan if gpu is None else gpu.get(job, 0.0) for gpu in gpus]) for job in jobs}
            present = {job: np.full(seconds.size, (scope, job) in self._on_gpu) for job in jobs}
        elif family in ("cpu", "dram"):
            use = {job: np.array([cell.cpu_s[job] for cell in cells]) for job in jobs}
            present = {job: np.ones(seconds.size, dtype=bool) for job in jobs}
            present[OTHER] = use[OTHER] >= PRESENT_CPUS * seconds
            use[OTHER] = np.where(present[OTHER], use[OTHER], 0.0)
        else:
            return None
        energy_j, most_w = np.array([cell.energy_j[key] for cell in cells]), limits.get(scope, math.inf)
        idle = find_idle_power(
            seconds, energy_j, use, MOST_IDLE.get(family, math.inf) * most_w, self._rest_w.get(key, 0.0)
        )
        if idle.seen_w is not None:
            self._rest_w[key] = idle.seen_w
        device = DeviceUse(
            scope, seconds, energy_j, use, present, idle, most_w, use_error=USE_ERROR.get(family, TICK_ERROR)
        )
        if family == "gpu":
            return device
        # The limit of a package is not exported: without it CPUs are bounded by the ratio of two jobs alone.
        ratio = CPU_RATIO if family == "cpu" else math.inf
        return replace(device, capacity=float(self._cpus), ratio=ratio, most_w=math.inf)
