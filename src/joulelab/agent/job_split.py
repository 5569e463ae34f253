"""Divide the energy of the node's devices among its Slurm jobs and containers, by their use, in blocks of cells."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.clock import NS
from joulelab.core.scope import find_family
from joulelab.instruments.job_use import OTHER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from joulelab.agent.ledger import Key
    from joulelab.analysis.job_shares import DeviceUse, IdleRule, JobShare
    from joulelab.analysis.readings import Floats
    from joulelab.instruments.job_use import UseReading

BLOCK_CELLS = 30
LONGEST_CELL_S = 30.0  # after a longer pause, the energy of the pause is not divided
LONGEST_CELLS = 3  # the same in cells, if they are long
DUE = 0.9  # a reading comes up to this share of a cell early
MOST_OWNERS = 256  # whose shares are kept
LINGER_NS = 300 * NS  # for so long shares are shown after the end of a job or container


class SplitReading(NamedTuple):
    """Hold one moment: totals (J) by scope and meter, use, and the jobs and containers that were there."""

    now_ns: int
    totals: Mapping[Key, float]
    use: UseReading
    owners: frozenset[str]


@dataclass(slots=True)
class SplitCell:
    """Hold the time between two readings (s): energy (J) by scope and meter, CPU time (s) and loads (0 to 1) by owner.

    Owners are the jobs and containers that were there at its begin or end; those in `on_gpu` had a process on a GPU.
    """

    seconds: float
    energy_j: dict[Key, float]
    cpu_s: dict[str, float]
    gpu_loads: dict[str, dict[str, float]]
    on_gpu: dict[str, frozenset[str]]
    owners: frozenset[str]
    containers: frozenset[str]


@dataclass(slots=True)
class JobSplit:
    """Add up the shares of jobs and containers in each scope; shares of `other` processes and `nobody` are among them.

    `cell_s` is the time between two readings of the meters. With the rule `reserved`, idle power of CPUs and memory is
    divided by reserved CPUs.
    """

    cell_s: float = 1.0
    rule: IdleRule = "equal"
    shares: dict[tuple[str, Key], JobShare] = field(default_factory=dict)
    _cells: list[SplitCell] = field(default_factory=list)
    _last: SplitReading | None = None
    _seen_ns: dict[str, int] = field(default_factory=dict)
    _rest_w: dict[Key, float] = field(default_factory=dict)
    _limits: dict[str, float] = field(default_factory=dict)
    _reserved: dict[str, float] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Return whether somebody was there at the last reading."""
        return self._last is not None

    def is_due(self, now_ns: int) -> bool:
        """Return whether meters were read again since the last reading: else energy and use do not match."""
        return self._last is None or now_ns - self._last.now_ns >= DUE * self.cell_s * NS

    def take(
        self,
        now_ns: int,
        totals: Mapping[Key, float],
        limits: Mapping[str, float],
        use: UseReading,
        jobs: Mapping[str, float | None],
    ) -> None:
        """Take the totals (J) and the use of this moment; divide a block when it is full, or somebody comes or goes.

        `jobs` are the Slurm jobs with their reserved CPUs, None if unknown; `limits` are power caps (W).
        """
        now = SplitReading(now_ns, dict(totals), use, frozenset(jobs) | use.containers)
        before, self._last = self._last, now if now.owners else None
        self._seen_ns |= dict.fromkeys(now.owners, now_ns)
        self._reserved |= {job: cpus / use.cpus for job, cpus in jobs.items() if cpus is not None}
        longest_s = max(LONGEST_CELL_S, LONGEST_CELLS * self.cell_s)
        if before is None:
            return
        if not 0 < now_ns - before.now_ns <= longest_s * NS:
            self._divide_block(use.cpus)
            return
        cell = _make_cell(before, now)
        if self._cells and cell.owners != self._cells[-1].owners:
            self._divide_block(use.cpus)
        # A cap that was lowered a moment ago did not hold all the time.
        self._limits |= {scope: max(limit, self._limits.get(scope, 0.0)) for scope, limit in limits.items()}
        self._cells.append(cell)
        if len(self._cells) >= BLOCK_CELLS or not now.owners:
            self._divide_block(use.cpus)

    def forget_owners(self, now_ns: int) -> None:
        """Drop the shares of jobs and containers that ended long ago, or are too many."""
        if not self._seen_ns:
            return
        from joulelab.analysis.job_shares import NOBODY

        kept = sorted(self._seen_ns, key=lambda owner: -self._seen_ns[owner])[:MOST_OWNERS]
        self._seen_ns = {owner: self._seen_ns[owner] for owner in kept if now_ns - self._seen_ns[owner] <= LINGER_NS}
        self._reserved = {owner: share for owner, share in self._reserved.items() if owner in self._seen_ns}
        names = {*self._seen_ns, OTHER, NOBODY}
        self.shares = {key: share for key, share in self.shares.items() if key[0] in names}

    def _divide_block(self, cpus: int) -> None:
        from joulelab.analysis.job_shares import split_device

        cells, self._cells = self._cells, []
        limits, self._limits = self._limits, {}
        keys = {key for cell in cells for key in cell.energy_j}
        devices = [self._make_gpu(key, cells, limits.get(key[0], math.inf)) for key in keys]
        for family in ("cpu", "dram"):
            # Which package a process used is not known: all packages of a meter are one device.
            for meter in {key[1] for key in keys if find_family(key[0]) == family}:
                members = {key for key in keys if find_family(key[0]) == family and key[1] == meter}
                devices.append(self._make_cpus((family, meter), members, cells, cpus))
        for key, device in filter(None, devices):
            for share in split_device(device, "equal" if key[0] not in ("cpu", "dram") else self.rule):
                known = self.shares.get((share.job, key))
                self.shares[share.job, key] = share if known is None else known + share

    def _make_gpu(self, key: Key, block: list[SplitCell], most_w: float) -> tuple[Key, DeviceUse] | None:
        import numpy as np

        from joulelab.analysis.run_shares import MOST_IDLE, USE_ERROR

        scope = key[0]
        cells = [cell for cell in block if key in cell.energy_j]
        if find_family(scope) != "gpu" or "/" in scope or not any(scope in cell.gpu_loads for cell in cells):
            return None
        seen = {owner for cell in cells for owner in (*cell.gpu_loads.get(scope, ()), *cell.on_gpu.get(scope, ()))}
        # A job without the GPU has a share of 0 J; the many containers without it have none.
        owners = [*sorted(cells[0].owners - cells[0].containers | seen - {OTHER}), OTHER]
        use = {
            owner: np.array(
                [c.seconds * c.gpu_loads[scope].get(owner, 0.0) if scope in c.gpu_loads else math.nan for c in cells]
            )
            for owner in owners
        }
        present = {
            owner: np.array([owner in c.on_gpu.get(scope, ()) for c in cells]) | (np.nan_to_num(use[owner]) > 0)
            for owner in owners
        }
        energy_j = np.array([cell.energy_j[key] for cell in cells])
        most_idle_w, error = MOST_IDLE["gpu"] * most_w, USE_ERROR["gpu"]
        return key, self._describe_device(
            key, cells, energy_j, use, present, most_idle_w, most_w=most_w, use_error=error
        )

    def _make_cpus(
        self, key: Key, members: Iterable[Key], block: list[SplitCell], cpus: int
    ) -> tuple[Key, DeviceUse] | None:
        import numpy as np

        from joulelab.analysis.run_shares import CPU_RATIO, PRESENT_CPUS, TICK_ERROR

        cells = [cell for cell in block if all(member in cell.energy_j for member in members)]
        if not cells:
            return None
        seconds, owners = np.array([cell.seconds for cell in cells]), cells[0].owners
        use = {owner: np.array([cell.cpu_s[owner] for cell in cells]) for owner in (*sorted(owners), OTHER)}
        # Containers that do nothing (there may be hundreds) get no part of the idle power: they count as other.
        for owner in cells[0].containers:
            if np.nansum(use[owner]) < PRESENT_CPUS * seconds.sum():
                use[OTHER] = use[OTHER] + use.pop(owner)
        present = {owner: np.ones(seconds.size, dtype=bool) for owner in use}
        present[OTHER] = ~(use[OTHER] < PRESENT_CPUS * seconds)
        use[OTHER] = np.where(present[OTHER], use[OTHER], 0.0)
        energy_j = np.sum([[cell.energy_j[member] for cell in cells] for member in members], axis=0)
        total = max(sum(self._reserved.get(owner, 0.0) for owner in use), 1.0)
        return key, self._describe_device(
            key, cells, energy_j, use, present, math.inf,
            # The limit of a package is not exported: without it CPUs are bounded by the ratio of two jobs alone.
            capacity=float(cpus), ratio=CPU_RATIO if key[0] == "cpu" else math.inf, use_error=TICK_ERROR,
            reserved={owner: self._reserved.get(owner, 0.0) / total for owner in use},
        )  # fmt: skip

    def _describe_device(
        self, key: Key, cells: list[SplitCell], energy_j: Floats, use: Mapping[str, Floats], present: Mapping[str, Any],
        most_idle_w: float, **limits: Any,
    ) -> DeviceUse:  # fmt: skip
        import numpy as np

        from joulelab.analysis.job_shares import DeviceUse, find_idle_power

        seconds = np.array([cell.seconds for cell in cells])
        idle = find_idle_power(seconds, energy_j, use, present, most_idle_w, self._rest_w.get(key, 0.0))
        if idle.seen_w is not None:
            self._rest_w[key] = idle.seen_w
        return DeviceUse(key[0], seconds, energy_j, use, present, idle, **limits)


def _make_cell(before: SplitReading, now: SplitReading) -> SplitCell:
    seconds, owners = (now.now_ns - before.now_ns) / NS, before.owners | now.owners
    energy_j = {
        key: total - before.totals[key]
        for key, total in now.totals.items()
        if key in before.totals and total >= before.totals[key]
    }
    most_s = seconds * now.use.cpus
    cpu_s: dict[str, float] = {}
    for owner in owners:
        # The CPU time of a new control group begins at 0; of one that has ended, the last part is not known.
        first_s = before.use.cpu_s.get(owner, math.nan if owner in before.owners else 0.0)
        used_s = now.use.cpu_s.get(owner, math.nan) - first_s
        cpu_s[owner] = max(used_s, 0.0) if used_s <= 2 * most_s else math.nan  # more: it is older than it seemed
    known_s = sum(cpu_s.values())
    cpu_s[OTHER] = max(now.use.machine_s - before.use.machine_s - known_s, 0.0) if math.isfinite(known_s) else math.nan
    gpu_loads: dict[str, dict[str, float]] = {}
    on_gpu: dict[str, frozenset[str]] = {}
    for scope, loads in now.use.gpu_loads.items():
        sums = gpu_loads.setdefault(scope, {})
        for owner, load in loads.items():
            known = owner if owner in owners else OTHER
            sums[known] = min(sums.get(known, 0.0) + load, 1.0)
        there = now.use.on_gpu.get(scope, frozenset()) | before.use.on_gpu.get(scope, frozenset())
        on_gpu[scope] = frozenset(owner if owner in owners else OTHER for owner in there)
    containers = (before.use.containers | now.use.containers) & owners
    return SplitCell(seconds, energy_j, cpu_s, gpu_loads, on_gpu, owners, containers)
