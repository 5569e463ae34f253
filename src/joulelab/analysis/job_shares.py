"""Split the energy of a shared device among the jobs that used it, with bounds.

A device draws an idle power, and above it the power that its jobs cause. Idle energy is divided by a stated rule. The
caused energy is divided by use (time of a GPU, CPU time), weighted with a power per unit of use that is fitted for
each job. The bounds need no such fit: a job causes nothing while it does not use the device, and never more than the
device can draw in the time that the job uses it. So the lower end is the energy that others cannot have caused, and
the upper end the energy that cannot be assigned to others. Energy that belongs to no job is a row of its own: the rows
always add up to the measured energy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 results.json is decoded by the types of fields
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.core.quantity import Quantity

    Bools = npt.NDArray[np.bool_]

IdleRule = Literal["equal", "reserved"]
NOBODY = "nobody"
BLOCK_S = 5.0  # bounds are computed over blocks of this length: use and energy are not read at the same instant
IDLE_DRIFT = 0.1  # share by which the idle power of a warm device may differ from the one that was seen
LEAST_USE = 0.005  # share of the device; less use in a cell is none
IDLE_LEVELS = 9  # idle powers between the lowest and the highest possible one for which bounds are computed
# Standard deviation of the powers per unit of use of jobs around their mean, before anything is fitted: kernels that
# use all of a GPU's time draw between a third and all of its power.
PRIOR_SPREAD = 0.5
LEAST_NOISE = 0.03  # of the mean caused power: the fit follows no finer differences
FIT_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class IdlePower:
    """Hold the lowest and highest possible idle power of a device, and the one that was seen, if any (W)."""

    low_w: float
    high_w: float
    seen_w: float | None = None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Hold the energy (J) of one device in cells of time (s), and how each job used it.

    `use` is the time that a job used the device or, of CPUs, its CPU time, in s for each cell (NaN: not known);
    `present` tells in which cells it could have used it. `most_w` is the highest power that the device can draw,
    `capacity` the largest use in one second, `ratio` the largest ratio of the powers per unit of use of two jobs,
    `use_error` the error of a use, as a share of the capacity, `late_s` the longest time (s) between the reading of use
    and that of energy, one cell at most. `reserved` is the share of the device that each job has
    reserved, for the rule of that name.
    """

    scope: str
    seconds: Floats
    energy_j: Floats
    use: Mapping[str, Floats]
    present: Mapping[str, Bools]
    idle: IdlePower
    most_w: float = math.inf
    capacity: float = 1.0
    ratio: float = math.inf
    use_error: float = 0.01
    late_s: float = math.inf
    reserved: Mapping[str, float] = field(default_factory=dict)

    @property
    def jobs(self) -> list[str]:
        """Return the names of the jobs."""
        return list(self.use)


@dataclass(frozen=True, slots=True)
class JobShare:
    """Hold the energy of one job (J) with its bounds, and the idle energy in it; `job` may be NOBODY."""

    job: str
    energy_j: float
    low_j: float
    high_j: float
    idle_j: float

    def __add__(self, other: JobShare) -> JobShare:
        """Add the share of the same job of another device; bounds add up, because all may be off the same way."""
        return JobShare(
            self.job,
            self.energy_j + other.energy_j,
            self.low_j + other.low_j,
            self.high_j + other.high_j,
            self.idle_j + other.idle_j,
        )

    def widen_for_meter(self, measured: Quantity) -> JobShare:
        """Return the share with the interval of the meter on top of its bounds; the energy stays."""
        error = measured.relative or 0.0
        return replace(self, low_j=self.low_j * max(1 - error, 0.0), high_j=self.high_j * (1 + error))


def find_idle_power(
    seconds: Floats,
    energy_j: Floats,
    use: Mapping[str, Floats],
    present: Mapping[str, Bools],
    most_idle_w: float = math.inf,
    known_w: float = 0.0,
) -> IdlePower:
    """Bound the idle power (W) of a device by its lowest power, times without use, and an idle power that is known.

    A device that nobody has open may sleep deeper: then its power at rest bounds the idle power from below only, and so
    does `known_w`, that of another time. `most_idle_w` is more than such a device draws at rest. Blocks of a few cells
    are used: short readings scatter.
    """
    groups = _group_cells(seconds)
    times = _sum_blocks(seconds, groups)
    block_w = _sum_blocks(energy_j, groups) / times
    total = np.sum(list(use.values()), axis=0) if use else np.zeros_like(seconds)
    there = np.any(list(present.values()), axis=0) if present else np.zeros(seconds.size, dtype=bool)
    is_read, is_open = np.isfinite(block_w), _sum_blocks(there.astype(float), groups) > 0
    is_unused = is_read & (_sum_blocks(total, groups) <= LEAST_USE * times)
    is_resting = is_unused & (_sum_blocks((~there).astype(float), groups) == 0)
    judged = is_read & is_open if (is_read & is_open).any() else is_read
    rest_w, high_w = known_w, float(block_w[judged].min()) if judged.any() else 0.0
    if is_unused.any():
        rest_w = max(float(block_w[is_resting if is_resting.any() else is_unused].min()), 0.0)
    if is_resting.any():
        high_w = (1 + IDLE_DRIFT) * float(block_w[is_resting].max())
    high_w = max(min(high_w, most_idle_w), 0.0)
    if not rest_w:
        return IdlePower(0.0, high_w)
    return IdlePower(min((1 - IDLE_DRIFT) * rest_w, high_w), high_w, min(rest_w, high_w))


def split_device(device: DeviceUse, rule: IdleRule = "equal") -> tuple[JobShare, ...]:
    """Split the energy of a device among its jobs; the last row is the energy of nobody. The rows add up to it."""
    known = _find_known(device)
    idle_w, powers_w = fit_use_powers(device, known)
    idle_shares = _share_idle(device, rule)
    cells = _split_cells(device, known, idle_w, powers_w, idle_shares)
    energies, idles = ({job: math.fsum(pair[k]) for job, pair in cells.items()} for k in (0, 1))
    bounds = _bound_jobs(device, known, idle_shares)
    energies = _keep_within_bounds(energies, bounds)
    rows = [
        JobShare(job, energies[job], min(bounds[job][0], energies[job]), max(bounds[job][1], energies[job]), idles[job])
        for job in device.jobs
    ]
    total = math.fsum(device.energy_j[np.isfinite(device.energy_j)])
    rest = total - math.fsum(row.energy_j for row in rows)
    taken = math.fsum(device.energy_j[known & (_count_present(device) > 0)])
    least = max(total - taken - math.fsum(device.energy_j[~known & np.isfinite(device.energy_j)]), 0.0)
    nobody_idle = math.fsum((idle_w * device.seconds)[known]) - math.fsum(idles.values())
    return (*rows, JobShare(NOBODY, rest, min(least, rest), max(rest, least), max(min(nobody_idle, rest), 0.0)))


def _keep_within_bounds(energies: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Move energies (J) into their bounds, and let the other jobs take the difference; the sum stays.

    Readings of use and energy that do not match mislead the fit, not the bounds.
    """
    kept = {job: min(max(energy, bounds[job][0]), bounds[job][1]) for job, energy in energies.items()}
    missing = math.fsum(energies.values()) - math.fsum(kept.values())
    room = {job: bounds[job][1] - kept[job] if missing > 0 else kept[job] - bounds[job][0] for job in kept}
    total = math.fsum(room.values())
    if abs(missing) > total:
        return dict(energies)
    return {job: energy + (missing * room[job] / total if total else 0.0) for job, energy in kept.items()}


def divide_cells(device: DeviceUse, rule: IdleRule = "equal") -> dict[str, Floats]:
    """Return the energy (J) of each job in each cell; the rest of a cell is nobody's."""
    known = _find_known(device)
    cells = _split_cells(device, known, *fit_use_powers(device, known), _share_idle(device, rule))
    return {job: energy_j for job, (energy_j, _) in cells.items()}


def add_device_shares(parts: Iterable[Sequence[JobShare]]) -> tuple[JobShare, ...]:
    """Add the shares of several devices by job; the energy of nobody comes last."""
    sums: dict[str, JobShare] = {}
    for share in (share for part in parts for share in part):
        sums[share.job] = sums[share.job] + share if share.job in sums else share
    return tuple(sorted(sums.values(), key=lambda share: share.job == NOBODY))


def split_by_use(device: DeviceUse) -> dict[str, float]:
    """Split the energy (J) by use alone, as most tools do: idle energy goes where the use is. For comparisons."""
    uses = {job: float(np.nansum(use)) for job, use in device.use.items()}
    total, energy = sum(uses.values()), float(np.nansum(device.energy_j))
    return {job: energy * use / total if total else 0.0 for job, use in uses.items()}


# The estimate.


def fit_use_powers(device: DeviceUse, known: Bools) -> tuple[float, dict[str, float]]:
    """Fit the idle power (W) and the caused power per unit of use (W) of each job to the powers of all cells.

    Times in which one job uses more and another less tell their powers apart. Without them the fit stays at equal
    powers: a division by use.
    """
    jobs, idle = device.jobs, device.idle
    start_w = (idle.low_w + idle.high_w) / 2 if idle.seen_w is None else idle.seen_w
    seconds = device.seconds[known]
    uses = np.array([device.use[job][known] / seconds for job in jobs]).reshape(len(jobs), -1)
    power_w = device.energy_j[known] / seconds
    total = uses.sum()
    if total <= 0:
        return start_w, dict.fromkeys(jobs, 0.0)
    mean_w = max(float((power_w - start_w).sum() / total), 0.0)
    unit_w = max(mean_w, 1e-9)
    columns = np.vstack([np.ones(power_w.size), uses]).T
    center = np.array([start_w, *([unit_w] * len(jobs))])
    spread = np.array([max((idle.high_w - idle.low_w) / 4, 1e-9), *([PRIOR_SPREAD * unit_w] * len(jobs))])
    fitted = center
    for _ in range(FIT_ROUNDS):
        noise_w = max(float(np.std(power_w - columns @ fitted)), LEAST_NOISE * unit_w)
        weights = columns.T @ columns / noise_w**2 + np.diag(1 / spread**2)
        fitted = np.linalg.solve(weights, columns.T @ power_w / noise_w**2 + center / spread**2)
        if not idle.low_w <= fitted[0] <= idle.high_w:  # it stays at this end; the powers are fitted again
            center[0], spread[0] = min(max(fitted[0], idle.low_w), idle.high_w), 1e-9
    idle_w = float(min(max(fitted[0], idle.low_w), idle.high_w))
    limit_w = max((device.most_w - idle_w) / device.capacity, unit_w)
    return idle_w, {job: float(min(max(w, 0.05 * unit_w), limit_w)) for job, w in zip(jobs, fitted[1:], strict=True)}


def _share_idle(device: DeviceUse, rule: IdleRule) -> dict[str, Floats]:
    """Return the share of the idle energy of each cell that each job gets; the rest is nobody's."""
    if rule == "reserved":
        return {job: np.where(there, device.reserved.get(job, 0.0), 0.0) for job, there in device.present.items()}
    count = np.maximum(_count_present(device), 1)
    return {job: there / count for job, there in device.present.items()}


def _split_cells(
    device: DeviceUse, known: Bools, idle_w: float, powers_w: Mapping[str, float], idle_shares: Mapping[str, Floats]
) -> dict[str, tuple[Floats, Floats]]:
    """Return energy and idle energy (J) of each job in each cell."""
    energy_j = np.where(known, device.energy_j, 0.0)
    idle_j = np.minimum(idle_w * device.seconds, energy_j)
    weights = {job: np.where(known, device.use[job], 0.0) * powers_w[job] for job in device.jobs}
    total = np.sum(list(weights.values()), axis=0)
    is_used = total > 0
    # Power above idle that no use explains (copies, clocks that stay up) is divided equally among those present.
    count = np.maximum(_count_present(device), 1)
    found = {}
    for job in device.jobs:
        share = np.where(is_used, weights[job] / np.where(is_used, total, 1.0), device.present[job] / count)
        found[job] = (energy_j - idle_j) * share + idle_j * idle_shares[job], idle_j * idle_shares[job]
    return found


# The bounds.


def _bound_jobs(device: DeviceUse, known: Bools, idle_shares: Mapping[str, Floats]) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest energy (J) of each job, over all possible idle powers."""
    groups = _group_cells(device.seconds)
    energy_j = np.where(known, device.energy_j, 0.0)
    blocks_j, blocks_s = _sum_blocks(energy_j, groups), _sum_blocks(np.where(known, device.seconds, 0.0), groups)
    unknown_j = math.fsum(device.energy_j[~known & np.isfinite(device.energy_j)])
    uses = {job: _bound_use(device, job, known, groups) for job in device.jobs}
    levels = np.linspace(device.idle.low_w, device.idle.high_w, IDLE_LEVELS)
    found = {}
    for job in device.jobs:
        others = [uses[other] for other in device.jobs if other != job]
        other_low, other_high = (np.sum([pair[k] for pair in others], axis=0) if others else 0.0 for k in (0, 1))
        limit = device.capacity * blocks_s
        other_low, other_high = np.minimum(other_low, limit), np.minimum(other_high, limit)
        ends = []
        for level_w in levels:
            idle_cells = np.minimum(level_w * device.seconds, energy_j) * np.where(known, 1.0, 0.0)
            idle_j = _sum_blocks(idle_cells * idle_shares[job], groups)
            above_j = blocks_j - _sum_blocks(idle_cells, groups)
            low, high = _bound_caused(device, np.maximum(above_j, 0.0), level_w, uses[job], (other_low, other_high))
            ends.append((idle_j + low, idle_j + high))
        # The idle power may change: in each block it may be any of the levels.
        low_j, high_j = np.min([low for low, _ in ends], axis=0).sum(), np.max([high for _, high in ends], axis=0).sum()
        found[job] = float(low_j) * _find_net_share(blocks_j), float(high_j) + unknown_j
    return found


def _bound_caused(
    device: DeviceUse, caused_j: Floats, idle_w: float, own: tuple[Floats, Floats], others: tuple[Floats, Floats]
) -> tuple[Floats, Floats]:
    """Return the lowest and highest energy above idle (J) that a job caused in each block, by the use of all jobs."""
    (own_low, own_high), (other_low, other_high) = own, others
    low, high = np.zeros_like(caused_j), caused_j.copy()
    if math.isfinite(device.most_w):
        unit_w = max(device.most_w - idle_w, 0.0) / device.capacity
        unexplained_j = np.maximum(caused_j - (own_high + other_high) * unit_w, 0.0)
        # Where power is above all that use explains, the job need not have caused any of it.
        low = np.where(unexplained_j > 0, 0.0, np.maximum(caused_j - other_high * unit_w, 0.0))
        high = np.minimum(caused_j, own_high * unit_w + unexplained_j)
    if math.isfinite(device.ratio):
        low = np.maximum(low, caused_j * _divide(own_low, own_low + device.ratio * other_high))
        high = np.minimum(high, caused_j * _divide(device.ratio * own_high, device.ratio * own_high + other_low))
    low = np.where((other_high <= 0) & (own_high > 0), caused_j, low)  # nobody else was there
    high = np.where((own_high <= 0) & (other_high > 0), 0.0, high)
    nobody = (own_high <= 0) & (other_high <= 0)
    return np.where(nobody, 0.0, low), np.where(nobody, 0.0, high)


def _find_net_share(blocks_j: Floats) -> float:
    """Return the sum of the blocks as a share of those above 0 J.

    A difference of two meters that are not read at the same time is below 0 J in one block and too high in the next.
    """
    above_j = float(blocks_j[blocks_j > 0].sum())
    return max(float(blocks_j.sum()) / above_j, 0.0) if above_j > 0 else 0.0


def _bound_use(device: DeviceUse, job: str, known: Bools, groups: npt.NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Return the lowest and highest use (s) of a job in each block; 0 where it was not there.

    Use may be read earlier or later than energy: the use of a block is that of its cells, or of cells that are moved by
    up to one step.
    """
    use, there = np.where(known, device.use[job], 0.0), device.present[job]
    part = np.minimum(device.late_s / device.seconds, 1.0)
    moved = (np.append(use[:1], use[:-1]), np.append(use[1:], use[-1:]))
    sums = [_sum_blocks(cells, groups) for cells in (use, *(use + part * (near - use) for near in moved))]
    times = _sum_blocks(np.where(known & there, device.seconds, 0.0), groups)
    error = device.use_error * device.capacity * times
    high = np.where(times > 0, np.minimum(np.max(sums, axis=0) + error, device.capacity * times), 0.0)
    return np.maximum(np.min(sums, axis=0) - error, 0.0), high


def _find_known(device: DeviceUse) -> Bools:
    """Return the cells whose energy and use by every job are known."""
    known = np.isfinite(device.energy_j)
    for use in device.use.values():
        known &= np.isfinite(use)
    return known


def _count_present(device: DeviceUse) -> npt.NDArray[np.int64]:
    """Return how many jobs could have used the device in each cell."""
    count = np.zeros(device.seconds.size, dtype=np.int64)
    for there in device.present.values():
        count += there
    return count


def _group_cells(seconds: Floats) -> npt.NDArray[np.intp]:
    """Return the first cell of each block of about BLOCK_S."""
    block = np.floor(np.append(0.0, np.cumsum(seconds)[:-1]) / BLOCK_S + 1e-9)
    return np.flatnonzero(np.append(True, np.diff(block) > 0))


def _sum_blocks(values: Floats, groups: npt.NDArray[np.intp]) -> Floats:
    return np.add.reduceat(values, groups)


def _divide(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
