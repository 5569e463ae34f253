"""Add up the jobs of a rack: nodes of one job move together, different jobs do not know of each other.

The distribution of the sum is found by convolution of the jobs' histograms, each rounded up to the grid's next step, so
that the sum is never too low.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.plan.rack.blocks import Pool, pool_of, seen_share, share_limits, side_of
from joulelab.plan.rack.extremes import HOUR_S, SEED, Exceeding, Percentile, Refusal, check_wider, known_gain, refused
from joulelab.plan.rack.spread import Spread, spread_of
from joulelab.plan.rack.steps import sum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.measured_runs import HostTrace
    from joulelab.plan.plan_tables import TomlTable

KEYS = ("name", "nodes", "runs", "node", "count", "share", "idle_w")
LEAST_BINS = 1 << 14
MOST_BINS = 1 << 18
RESAMPLES = 200
CAVEATS = (
    "jobs are taken as independent: several that start together, or work by the time of day, are not",
    "nodes of one job are taken to draw the same at the same time",
)


@dataclass(frozen=True, slots=True)
class Job:
    """Hold a kind of job in a rack: `count` of them at once, each on so many `nodes`, as measured in `runs`.

    `share` is the share of time that it runs; its nodes draw `idle_w` each in the rest (None: as measured). `node` is
    the kind of node whose runs are taken where the job names none.
    """

    name: str
    nodes: int
    runs: tuple[str, ...] = ()
    node: str = ""
    count: int = 1
    share: float = 1.0
    idle_w: float | None = None


def read_mix(tables: Sequence[TomlTable]) -> tuple[Job, ...]:
    """Read [[mix]] tables; what is wrong is noted with the tables' problems."""
    found = []
    for n, one in enumerate(tables, 1):
        one.allow(KEYS)
        nodes, share = one.whole("nodes", 1), one.positive("share")
        runs, node = one.texts("runs") or (), one.text("node") or ""
        if "nodes" not in one:
            one.wrong("", "a job of [[mix]] has no nodes", next="say on how many nodes it runs: nodes = 4")
        if not runs and not node:
            one.wrong("", "a job of [[mix]] has no runs", next='name runs that measured it: runs = ["last"]')
        if share is not None and share > 1:
            one.wrong("share", f"share is {share:g}", next="give the share of time that it runs, at most 1")
        job = Job(
            one.text("name") or f"job {n}", nodes or 1, runs, node,
            count=one.whole("count", 1) or 1, share=min(share or 1.0, 1.0), idle_w=one.positive("idle_w"),
        )  # fmt: skip
        found.append(job)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Coincidence:
    """Hold how far hosts of one run peak together: the peak of their sum over the sum of their peaks (W)."""

    run: str
    hosts: int
    peak_of_sum_w: float
    sum_of_peaks_w: float

    @property
    def ratio(self) -> float:
        """Return the ratio: 1 where all peak at once."""
        return self.peak_of_sum_w / self.sum_of_peaks_w

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"ratio": self.ratio}


def coincidence(draws: Sequence[HostTrace]) -> Coincidence | None:
    """Return how far hosts of one run peak together, None where there are not two that were read at once.

    Raises ConfigError where they are of several runs, or sides differ.
    """
    if len(draws) < 2:
        return None
    side_of(draws)
    if len({d.run for d in draws}) > 1:
        raise ConfigError("hosts of different runs do not peak together", next="give the hosts of one run")
    _, total = sum_of(draws)
    if not np.isfinite(total).any():
        return None
    return Coincidence(draws[0].run, len(draws), float(np.nanmax(total)), sum(d.highest_w for d in draws))


@dataclass(frozen=True)
class Load:
    """Hold the distribution of a rack's power: how probable each power is, in steps of `step_w`.

    `maximum_w` is the sum of all jobs' maxima, which nothing seen exceeds. `gain` is that of the meters, None where
    nobody knows it; `spread` how far other nodes may be above those measured. `draw` gives the distribution of blocks
    drawn again, for the intervals; `fewest` are the readings of the job with the fewest independent blocks: no more is
    known of the sum.
    """

    step_w: float
    chance: Floats
    draw: Callable[[np.random.Generator], Floats]
    fewest: Pool
    maximum_w: float
    nodes: int
    gain: float | None
    spread: Spread
    simulated: bool
    notes: tuple[str, ...] = CAVEATS
    seed: int = SEED

    @property
    def plan_w(self) -> float:
        """Return the maximum to plan with, in W: with the nodes' spread, and the gain where it is known."""
        return self.maximum_w * (1 + math.hypot(self.gain or 0.0, self.spread.above))

    @property
    def mean_w(self) -> float:
        """Return the mean power, in W."""
        return float(self.chance @ np.arange(self.chance.size)) * self.step_w

    @cached_property
    def drawn(self) -> Floats:
        """Return how probable it is to be at each power or above, a row for each set of blocks drawn again."""
        rng = np.random.default_rng(self.seed)
        return np.array([_above(self.draw(rng)) for _ in range(RESAMPLES)])

    def percentile(self, p: float, *, confidence: float = 0.95) -> Percentile | Refusal:
        """Return a percentile (p of 0.99) of the rack's power, or why not, by the job with the fewest blocks.

        Raises ConfigError for a p or a confidence that is none.
        """
        if not (0 < p < 1 and 0 < confidence < 1):
            raise ConfigError("a percentile and a confidence are between 0 and 100 %", next="give one of 99 %")
        rare, tail = 1 - p, (1 - confidence) / 2
        pool = self.fewest
        blocks = pool.blocks
        refusal = refused(p, pool)
        if refusal is not None:
            return refusal
        above = _above(self.chance)
        value_w = self._at(above, rare)
        low_w, high_w = np.quantile([self._at(one, rare) for one in self.drawn], (tail, 1 - tail))
        seen = seen_share(rare, blocks, tail, upper=True)
        often = seen_share(rare, blocks, tail, upper=False) or 1.0
        high = self.maximum_w if seen is None else min(max(float(high_w), self._at(above, seen)), self.maximum_w)
        spread = self.spread.value
        wide_w = math.hypot(high - value_w, (self.gain or 0.0) * value_w, spread * value_w)
        return Percentile(
            p, value_w, min(float(low_w), self._at(above, often)), high,
            None if self.gain is None else value_w + wide_w, confidence,
            1 - tail if seen is not None else 1 - p**blocks,
            blocks, pool.block_s, pool.observed_s / HOUR_S, self.seed, self.simulated, runs=pool.runs, works=pool.works,
            spread=spread,
        )  # fmt: skip

    def exceeding(self, limit_w: float, *, confidence: float = 0.95, wider: float = 1.0) -> Exceeding:
        """Return how often the rack is above a power, with its interval; 0 seen is not 0.

        `wider` is the factor by which power may be above what was read (gain, hidden peaks, spread of nodes); it raises
        the upper end. Raises ConfigError for a factor that is none.
        """
        check_wider(wider)
        share, low, high = self._shares(limit_w, confidence)
        high = max(high, self._shares(limit_w / wider, confidence)[2])
        pool = self.fewest
        return Exceeding(
            limit_w, share, low, high, confidence, pool.blocks, pool.block_s, pool.observed_s / HOUR_S, self.simulated,
            wider, pool.runs, pool.works,
        )  # fmt: skip

    def _shares(self, limit_w: float, confidence: float) -> tuple[float, float, float]:
        """Return the share of time above a power, and between what it may be."""
        first = self._first(limit_w)
        share = float(self.chance[first:].sum())
        share = 0.0 if limit_w >= self.maximum_w or share < 1e-12 else min(share, 1.0)
        tail = (1 - confidence) / 2 if share else 1 - confidence
        low, high = share_limits(share, self.fewest.blocks, tail)
        ends = np.quantile(self.drawn[:, first], (tail, 1 - tail)) if share else (low, high)
        return share, min(low, float(ends[0])), min(max(high, float(ends[1])), 1.0)

    def _first(self, limit_w: float) -> int:
        return max(math.floor(limit_w / self.step_w + 1e-9) + 1, 0)

    def _at(self, above: Floats, share: float) -> float:
        """Return the lowest power exceeded in no more than a share of the time."""
        place = int(np.searchsorted(-above, -(share + 1e-12)))
        return min(max(place - 1, 0) * self.step_w, self.maximum_w)


def load_of(jobs: Sequence[tuple[Job, Sequence[HostTrace]]], *, seed: int = SEED, spread: Spread | None = None) -> Load:
    """Return the distribution of the power of jobs side by side, each with what its nodes drew.

    How much nodes differ is that of the job whose nodes may differ most, or as given in `spread`.
    Raises ConfigError where there is no job, sides differ, or a job rests and nobody knows what its nodes draw then.
    """
    side_of([d for _, draws in jobs for d in draws])
    pools = [pool_of(draws) for _, draws in jobs]
    idles = [_idle_w(job, draws) for job, draws in jobs]
    most = [j.nodes * max(float(p.watts[0]), i) for (j, _), p, i in zip(jobs, pools, idles, strict=True)]
    maximum_w = sum(m * job.count for m, (job, _) in zip(most, jobs, strict=True))
    count = sum(job.count for job, _ in jobs)
    bins = min(max(LEAST_BINS, 1 << (1024 * count).bit_length()), MOST_BINS)
    step_w = maximum_w / (bins - 2 * count - 2)
    parts = [_Part(j, p, i, step_w, bins) for (j, _), p, i in zip(jobs, pools, idles, strict=True)]
    gain = known_gain([d for _, draws in jobs for d in draws])
    spread = spread or max((spread_of(draws) for _, draws in jobs), key=lambda s: s.above)
    return Load(
        step_w=step_w, chance=_sum([p.chance() for p in parts], jobs, bins),
        draw=lambda rng: _sum([p.chance(rng) for p in parts], jobs, bins),
        maximum_w=maximum_w, nodes=sum(job.nodes * job.count for job, _ in jobs),
        fewest=min(pools, key=lambda p: p.blocks), gain=gain,
        spread=spread, simulated=any(d.twin for _, draws in jobs for d in draws), notes=(*_notes(jobs), spread.said),
        seed=seed,
    )  # fmt: skip


def _above(chance: Floats) -> Floats:
    """Return how probable each power or more is."""
    return np.cumsum(chance[::-1])[::-1]


class _Part:
    """Hold one kind of job on the grid."""

    def __init__(self, job: Job, pool: Pool, idle_w: float, step_w: float, bins: int) -> None:
        self._share = job.share
        self._bins = bins
        self._idle = math.ceil(job.nodes * idle_w / step_w - 1e-9)
        self._unit, self._weight = pool.unit, pool.weight
        self._units = int(pool.unit.max()) + 1
        self._place = np.ceil(job.nodes * pool.watts / step_w - 1e-9).astype(np.int64)

    def chance(self, rng: np.random.Generator | None = None) -> Floats:
        """Return how probable each power of one such job is, of units drawn again where there is a generator."""
        weight = self._weight
        if rng is not None:
            drawn = np.bincount(rng.integers(self._units, size=self._units), minlength=self._units)
            weight = weight * drawn[self._unit]
            weight = weight / weight.sum()
        found = np.bincount(self._place, self._share * weight, self._bins).astype(np.float64)
        found[self._idle] += 1 - self._share
        return found


def _sum(chances: Sequence[Floats], jobs: Sequence[tuple[Job, Sequence[HostTrace]]], bins: int) -> Floats:
    """Return the distribution of the sum of independent jobs."""
    if len(chances) == 1 and jobs[0][0].count == 1:
        return chances[0]
    whole = np.ones(bins // 2 + 1, dtype=complex)
    for chance, (job, _) in zip(chances, jobs, strict=True):
        whole *= np.fft.rfft(chance, bins) ** job.count
    found: Floats = np.maximum(np.fft.irfft(whole, bins), 0.0)
    return found


def _idle_w(job: Job, draws: Sequence[HostTrace]) -> float:
    """Return what a node of a job draws while it rests (W); 0 where it never does."""
    if job.share >= 1:
        return 0.0
    if job.idle_w is not None:
        return job.idle_w
    idle = [d.idle_w.value for d in draws if d.idle_w is not None]
    if len(idle) < len(draws):
        raise ConfigError(
            f"nobody knows what nodes of {job.name} draw while it rests",
            why="no idle power was measured in its runs",
            next="give idle_w in its [[mix]]",
        )
    return max(idle)


def _notes(jobs: Sequence[tuple[Job, Sequence[HostTrace]]]) -> tuple[str, ...]:
    """Return what was taken, and how far hosts of one run really peaked together."""
    notes = list(CAVEATS)
    for run in dict.fromkeys(d.run for _, draws in jobs for d in draws):
        of_run = {d.host: d for _, draws in jobs for d in draws if d.run == run}
        found = coincidence(list(of_run.values()))
        if found is not None:
            notes.append(f"run {run}: peak of the sum of {found.hosts} hosts is {found.ratio:.1%} of the sum of peaks")
    return tuple(notes)
