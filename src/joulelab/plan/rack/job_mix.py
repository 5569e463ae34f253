"""Add up the jobs of a rack by Monte Carlo: nodes of one job move together, different jobs are independent.

Each draw takes one reading of each job, times its nodes. The sum of the highest readings is the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import TEXTS, declare_key, read_table, read_texts
from joulelab.plan.rack.independent_blocks import ReadingPool, bound_share, check_side, pool_readings
from joulelab.plan.rack.limits import EXACT, find_tightest
from joulelab.plan.rack.peaks import (
    HOUR_S,
    SEED,
    Exceedance,
    bound_percentile,
    find_hidden_peaks,
    find_known_gain,
    find_node_spread,
    refuse_percentile,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.measured_runs import HostTrace
    from joulelab.plan.plan_tables import TomlTable
    from joulelab.plan.rack.limits import Limit, Rack
    from joulelab.plan.rack.peaks import Percentile, PercentileRefusal

DRAWS = 100_000  # of the distribution
RESAMPLES = 100  # sets of blocks, for intervals
RESAMPLE_DRAWS = 10_000  # of each set
MOST_JOBS = 200  # at the same time; more would take minutes


@dataclass(frozen=True, slots=True)
class MixJob:
    """Hold a kind of job in a rack: `count` of them at once, each on `nodes` nodes, as measured in `runs`.

    It runs for a `share` of the time; its nodes draw `idle_w` each in the rest (None: as measured). `node` is the kind
    of node whose runs are taken if the job names none.
    """

    name: str = declare_key("", "name")
    nodes: int = declare_key(0, "nodes of one job", least=1, most=10_000)
    runs: tuple[str, ...] = declare_key((), "runs that measured it", read=read_texts, advice=TEXTS)
    node: str = declare_key("", "kind of node whose runs are taken")
    count: int = declare_key(1, "jobs at once", least=1, most=MOST_JOBS, advice=f"give a number from 1 to {MOST_JOBS}")
    share: float = declare_key(
        1.0, "share of the time that it runs", above=0, most=1, advice="give a share above 0 and up to 1: 0.9"
    )
    idle_w: float | None = declare_key(None, "power of an idle node, W", above=0)


def read_mix(tables: Sequence[TomlTable]) -> tuple[MixJob, ...]:
    """Read [[mix]] tables; mistakes are added to those of the tables."""
    found = []
    for number, one in enumerate(tables, 1):
        job = read_table(MixJob, one.values, one.problems, one.at) or MixJob()
        if "nodes" not in one:
            one.wrong("", "a job of [[mix]] has no nodes", next="add the number of its nodes: nodes = 4")
        if "runs" not in one and "node" not in one:
            one.wrong("", "a job of [[mix]] has no runs", next='name runs that measured it: runs = ["last"]')
        found.append(job if job.name else replace(job, name=f"job {number}"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class MixPart:
    """Hold one kind of job with its readings and the idle power of its nodes (W)."""

    job: MixJob
    pool: ReadingPool
    idle_w: float

    @property
    def highest_w(self) -> float:
        """Return the highest power of all jobs of this kind, in W."""
        return self.job.count * self.job.nodes * max(float(self.pool.watts[0]), self.idle_w)

    def draw_power(self, rng: np.random.Generator, size: int, weight: Floats) -> Floats:
        """Return draws of the power (W) of all jobs of this kind, from readings with weights."""
        summed = np.cumsum(weight)
        total = np.zeros(size)
        for _ in range(self.job.count):
            place = np.searchsorted(summed, rng.random(size) * summed[-1], side="right")
            watts = self.pool.watts[np.minimum(place, self.pool.watts.size - 1)]
            if self.job.share < 1:
                watts = np.where(rng.random(size) < self.job.share, watts, self.idle_w)
            total += self.job.nodes * watts
        return total


@dataclass(frozen=True)
class MixLoad:
    """Hold the distribution of a rack's power (W): sorted draws, and draws of resampled sets of blocks.

    `fewest` are the readings of the job with the fewest independent blocks: no more is known of the sum. `maximum_w` is
    the sum of the highest readings; `gain` is that of the meters, None if unknown; `above` how far other nodes may be
    above the measured ones, `spread` how far they differ.
    """

    watts: Floats
    resampled: Floats
    fewest: ReadingPool
    maximum_w: float
    nodes: int
    gain: float | None
    above: float
    spread: float

    @property
    def plan_w(self) -> float:
        """Return the maximum to plan with, in W: with the spread of nodes, and the gain if it is known."""
        return self.maximum_w * (1 + math.hypot(self.gain or 0.0, self.above))

    @property
    def mean_w(self) -> float:
        """Return the mean power, in W."""
        return float(self.watts.mean())

    def find_power(self, share: float) -> float:
        """Return the power (W) that is exceeded in at most a share of the time."""
        return self.maximum_w if share <= 0 else float(_find_exceeded(self.watts, share))

    def compute_percentile(self, p: float, *, confidence: float = 0.95) -> Percentile | PercentileRefusal:
        """Return a percentile (p of 0.99) of the rack's power, or its refusal, by the job with the fewest blocks."""
        refusal = refuse_percentile(p, self.fewest)
        if refusal is not None:
            return refusal
        drawn = _find_exceeded(self.resampled, 1 - p)
        return bound_percentile(p, confidence, self.fewest, self.find_power, drawn, self.gain, spread=self.spread)

    def compute_exceedance(self, limit_w: float, *, confidence: float = 0.95, wider: float = 1.0) -> Exceedance:
        """Return how often the rack is above a power, with its interval; a share of 0 seen is not 0.

        `wider` is the factor by which power may be above the readings; it raises the upper end.
        """
        share, low, high = self._bound_share_above(limit_w, confidence)
        high = max(high, self._bound_share_above(limit_w / wider, confidence)[2])
        pool = self.fewest
        hours = pool.observed_s / HOUR_S
        return Exceedance(limit_w, share, low, high, confidence, pool.blocks, pool.block_s, hours, wider)

    def _bound_share_above(self, limit_w: float, confidence: float) -> tuple[float, float, float]:
        share = float(np.mean(self.watts > limit_w * (1 + EXACT)))
        tail = (1 - confidence) / 2 if share else 1 - confidence
        low, high = bound_share(share, self.fewest.blocks, tail)
        if not share:
            return share, low, high
        ends = np.quantile(np.mean(self.resampled > limit_w * (1 + EXACT), axis=1), (tail, 1 - tail))
        return share, min(low, float(ends[0])), min(max(high, float(ends[1])), 1.0)


def _find_exceeded(watts: Floats, share: float) -> Floats:
    """Return the lowest power exceeded in at most a share of the draws, which are sorted along the last axis."""
    size = watts.shape[-1]
    place = size - 1 - min(int(share * size + 1e-9), size - 1)
    found: Floats = watts[..., place]
    return found


def simulate_mix(jobs: Sequence[tuple[MixJob, Sequence[HostTrace]]], *, seed: int = SEED) -> MixLoad:
    """Return the distribution of the power of jobs side by side, each with the traces of its nodes.

    Raises ConfigError if there is no job, if sides differ, or if the power of idle nodes is unknown.
    """
    every = [trace for _, traces in jobs for trace in traces]
    check_side(every)
    parts = [MixPart(job, pool_readings(traces), _find_idle_power(job, traces)) for job, traces in jobs]
    rng = np.random.default_rng(seed)
    watts = np.sort(sum(part.draw_power(rng, DRAWS, part.pool.weight) for part in parts))
    resampled = np.empty((RESAMPLES, RESAMPLE_DRAWS))
    for row in resampled:
        row[:] = sum(
            part.draw_power(rng, row.size, part.pool.weight * part.pool.count_unit_draws(rng)[part.pool.unit])
            for part in parts
        )
    resampled.sort(axis=1)
    spreads = [find_node_spread(traces) for _, traces in jobs]
    widest = max(spreads, key=lambda spread: spread.above)
    return MixLoad(
        watts=watts,
        resampled=resampled,
        fewest=min((part.pool for part in parts), key=lambda pool: pool.blocks),
        maximum_w=sum(part.highest_w for part in parts),
        nodes=sum(job.nodes * job.count for job, _ in jobs),
        gain=find_known_gain(every),
        above=widest.above,
        spread=widest.value,
    )


def _find_idle_power(job: MixJob, traces: Sequence[HostTrace]) -> float:
    if job.share >= 1:
        return 0.0
    if job.idle_w is not None:
        return job.idle_w
    idle = [t.idle_w.value for t in traces if t.idle_w is not None]
    if len(idle) < len(traces):
        raise ConfigError(
            f"the idle power of the nodes of {job.name} is unknown",
            why="it runs for a share of the time, and its runs measured no idle power",
            next="give idle_w in its [[mix]]",
        )
    return max(idle)


@dataclass(frozen=True, slots=True)
class MixFit:
    """Hold the power of a mix (W, all nodes together) beside the power that the rack allows them.

    `maximum_w` is the sum of the highest readings, `upper_w` adds the errors of meters, hidden peaks and other nodes;
    `lacks` are the errors that are unknown. `binding` is the tightest limit.
    """

    names: tuple[str, ...]
    nodes: int
    allowed_w: float
    binding: str
    mean_w: float
    maximum_w: float
    upper_w: float
    has_unknown_error: bool
    exceed: Exceedance
    percentiles: Mapping[float, Percentile | PercentileRefusal] = field(default_factory=dict)
    draws: int = DRAWS
    seed: int = SEED

    @property
    def fits(self) -> bool:
        """Return whether the upper end fits."""
        return self.upper_w <= self.allowed_w * (1 + EXACT)

    @property
    def fits_as_read(self) -> bool:
        """Return whether the sum of the highest readings fits."""
        return self.maximum_w <= self.allowed_w * (1 + EXACT)


def fit_mix(rack: Rack, limits: Sequence[Limit], jobs: Sequence[tuple[MixJob, Sequence[HostTrace]]]) -> MixFit | None:
    """Compare a mix of jobs with a rack; None without jobs. Raises ConfigError."""
    if not jobs:
        return None
    load = simulate_mix(jobs)
    binding = find_tightest(limits, load.nodes)
    allowed_w = load.nodes * binding.allow_node_power(load.nodes)
    confidence = rack.rules.confidence
    hidden = [find_hidden_peaks(traces).factor for _, traces in jobs]
    upper_w = load.plan_w * max((one for one in hidden if one is not None), default=1.0)
    return MixFit(
        names=tuple(f"{job.count} x {job.name} on {job.nodes}" for job, _ in jobs),
        nodes=load.nodes,
        allowed_w=allowed_w,
        binding=binding.name,
        mean_w=load.mean_w,
        maximum_w=load.maximum_w,
        upper_w=upper_w,
        has_unknown_error=None in hidden or any(t.gain is None for _, traces in jobs for t in traces),
        exceed=load.compute_exceedance(allowed_w, confidence=confidence, wider=upper_w / load.maximum_w),
        percentiles={p: load.compute_percentile(p / 100, confidence=confidence) for p in rack.rules.percentiles},
    )
