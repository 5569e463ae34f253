"""Find how high the power of a node goes: highest reading, percentiles, hidden peaks, differences between nodes.

A percentile is an observation, not a guarantee: it holds for the work of its runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulelab.analysis.statistics import t_quantile
from joulelab.core.errors import ConfigError
from joulelab.plan.rack.independent_blocks import (
    LEAST_BLOCK_S,
    bound_share,
    check_side,
    find_seen_share,
    pool_readings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.measured_runs import HostTrace
    from joulelab.plan.rack.independent_blocks import ReadingPool

SEED = 20_241_116
HOUR_S = 3600.0
# Hidden peaks.
FINER = 5.0  # a run is finer if it was read this many times as often
# Power logs of H100 nodes that Sustainable Metal Cloud published with MLPerf Training v4.0: the highest 1-minute means
# were 97 to 99 % of the highest 2 s values.
PUBLISHED_S = (2.0, 60.0)
PUBLISHED = (1.01, 1.03)
SLACK = 1.1  # meters are a little slower than they state
# Differences between nodes: twice the 1.0 % (k = 2) by which one of eight H100 nodes in one job of the same logs may
# differ from their mean.
ASSUMED_SPREAD = 0.02
LEAST_HOSTS = 3  # the spread of two is hardly known
TWO_SIGMA = math.erfc(math.sqrt(2))  # the probability outside of k = 2


@dataclass(frozen=True, slots=True)
class Peak:
    """Hold the highest reading of a node (W), its place, and how it was read; `hours` are node-hours.

    `upper_w` includes the meter's gain (k = 2), None if that is unknown.
    """

    value_w: float
    upper_w: float | None
    run: str
    host: str
    at_s: float
    raw_s: float
    window_s: float
    readings: int
    hours: float
    runs: int
    is_simulated: bool

    @property
    def plan_w(self) -> float:
        """Return the power to plan with, in W: the upper figure if it is known."""
        return self.value_w if self.upper_w is None else self.upper_w


def find_peak(traces: Sequence[HostTrace]) -> Peak:
    """Return the highest reading of any node. Raises ConfigError if there is none, or if sides differ."""
    check_side(traces)
    read = [t for t in traces if np.isfinite(t.high_w).any()]
    if not read:
        raise ConfigError(
            "no power to plan with", why="the runs have no readings", next=f"joulelab show {traces[0].run}"
        )
    hot = max(read, key=lambda t: t.highest_w)
    upper_w = max(t.highest_w * (1 + (t.gain or 0.0)) for t in read)
    counts = [int(np.isfinite(t.high_w).sum()) for t in read]
    return Peak(
        value_w=hot.highest_w,
        upper_w=None if find_known_gain(read) is None else upper_w,
        run=hot.run,
        host=hot.host,
        at_s=(int(np.nanargmax(hot.high_w)) + 0.5) * hot.step_s,
        raw_s=hot.raw_s,
        window_s=hot.window_s,
        readings=sum(counts),
        hours=sum(count * t.step_s for count, t in zip(counts, read, strict=True)) / HOUR_S,
        runs=len({t.run for t in read}),
        is_simulated=any(t.twin for t in read),
    )


def find_known_gain(traces: Sequence[HostTrace]) -> float | None:
    """Return the largest error of the meters whose accuracy is stated, as a share (k = 2); None if none is."""
    return max((t.gain for t in traces if t.gain is not None), default=None)


# Percentiles


@dataclass(frozen=True, slots=True)
class PercentileRefusal:
    """Hold why the data cannot support a percentile: blocks there are and needed, hours and runs needed."""

    p: float
    blocks: int
    needed: int
    block_s: float
    hours: float
    hours_needed: float
    runs_needed: int | None = None


@dataclass(frozen=True, slots=True)
class Percentile:
    """Hold the power (W) that is exceeded in a share 1 - p of the time, and its confidence interval.

    `upper_w` adds the meter's gain to the upper end, None if that is unknown. `reached` is the one-sided confidence of
    the upper end: below that asked for if there are too few blocks; the upper end is the highest reading then.
    `spread` is the difference between nodes (k = 2) where other nodes than the measured ones are meant.
    """

    p: float
    value_w: float
    low_w: float
    high_w: float
    upper_w: float | None
    confidence: float
    reached: float
    blocks: int
    block_s: float
    hours: float
    hours_needed: float
    runs: int = 0
    works: int = 0
    spread: float = 0.0

    @property
    def plan_w(self) -> float:
        """Return the power to plan with, in W: the upper end, with gain (if known) and spread."""
        if self.upper_w is not None:
            return self.upper_w
        return self.value_w + math.hypot(self.high_w - self.value_w, self.spread * self.value_w)

    @property
    def is_supported(self) -> bool:
        """Return whether the upper end has the confidence that was asked for."""
        return self.reached >= (1 + self.confidence) / 2 - 1e-9


def refuse_percentile(p: float, pool: ReadingPool) -> PercentileRefusal | None:
    """Return the refusal of a percentile if there are fewer blocks than it takes to see one beyond it."""
    needed = math.ceil(1 / (1 - p) - 1e-9)
    if pool.blocks >= needed:
        return None
    hours = pool.observed_s / HOUR_S
    # Runs that are shorter than a block make short blocks; longer runs would not.
    more = max(hours / pool.blocks, LEAST_BLOCK_S / HOUR_S) * needed
    differ = pool.runs > 1 and pool.blocks < 2 * pool.runs and pool.block_s > LEAST_BLOCK_S
    runs = math.ceil(needed * pool.runs / pool.blocks) if differ else None
    return PercentileRefusal(p, pool.blocks, needed, pool.block_s, hours, more, runs)


def compute_percentile(
    traces: Sequence[HostTrace], p: float, *, confidence: float = 0.95, seed: int = SEED
) -> Percentile | PercentileRefusal:
    """Return a percentile (p of 0.999: exceeded in 0.1 % of the time) of a node's power over runs, or its refusal.

    The interval is from resampled blocks of time, and no narrower than that of the binomial of as many independent
    blocks. Raises ConfigError if nothing was read.
    """
    pool = pool_readings(traces)
    refusal = refuse_percentile(p, pool)
    if refusal is not None:
        return refusal
    rare = 1 - p
    drawn = pool.resample_power(rare, np.random.default_rng(seed))
    return bound_percentile(p, confidence, pool, pool.find_power, drawn, find_known_gain(traces))


def bound_percentile(
    p: float,
    confidence: float,
    pool: ReadingPool,
    find_power: Callable[[float], float],
    drawn: Floats,
    gain: float | None,
    *,
    spread: float = 0.0,
) -> Percentile:
    """Return a percentile of a distribution: `find_power` gives the power exceeded in a share of the time.

    `drawn` are resampled values of it; `pool` has the blocks that limit what is known.
    """
    rare, tail = 1 - p, (1 - confidence) / 2
    low_w, high_w = (float(w) for w in np.quantile(drawn, (tail, 1 - tail)))
    seen = find_seen_share(rare, pool.blocks, tail, is_upper=True)
    often = find_seen_share(rare, pool.blocks, tail, is_upper=False)
    value_w = find_power(rare)
    high_w = find_power(0.0) if seen is None else min(max(high_w, find_power(seen)), find_power(0.0))
    wide_w = math.hypot(high_w - value_w, (gain or 0.0) * value_w, spread * value_w)
    enough = math.ceil(math.log(tail) / math.log(p))
    hours = pool.observed_s / HOUR_S
    return Percentile(
        p=p,
        value_w=value_w,
        low_w=min(low_w, find_power(often or 1.0)),
        high_w=high_w,
        upper_w=None if gain is None else value_w + wide_w,
        confidence=confidence,
        reached=1 - tail if seen is not None else 1 - p**pool.blocks,
        blocks=pool.blocks,
        block_s=pool.block_s,
        hours=hours,
        hours_needed=hours * enough / pool.blocks,
        runs=pool.runs,
        works=pool.works,
        spread=spread,
    )


# The chance of exceeding


@dataclass(frozen=True, slots=True)
class Exceedance:
    """Hold the share of time above a power (W), and its confidence interval; a share of 0 seen is not 0.

    If it was never seen, the interval is one-sided: three over the number of blocks at 95 %. `wider` is the factor by
    which power may be above the readings; the upper end includes it.
    """

    limit_w: float
    share: float
    low: float
    high: float
    confidence: float
    blocks: int
    block_s: float
    hours: float
    wider: float = 1.0


def compute_exceedance(
    traces: Sequence[HostTrace], limit_w: float, *, confidence: float = 0.95, wider: float = 1.0
) -> Exceedance:
    """Return how often a node is above a power, with its interval by the binomial of independent blocks.

    `wider` is the factor by which power may be above the readings (gain, hidden peaks, spread); it raises the upper
    end. Raises ConfigError if nothing was read.
    """
    pool = pool_readings(traces, limit_w=limit_w)
    share = min(pool.find_share_above(limit_w), 1.0)
    low, high = bound_share(share, pool.blocks, (1 - confidence) / 2 if share else 1 - confidence)
    if wider > 1:
        raised = pool_readings(traces, limit_w=limit_w / wider)
        more = min(raised.find_share_above(limit_w / wider), 1.0)
        tail = (1 - confidence) / 2 if more else 1 - confidence
        high = max(high, bound_share(more, min(raised.blocks, pool.blocks), tail)[1])
    hours = pool.observed_s / HOUR_S
    return Exceedance(limit_w, share, low, high, confidence, pool.blocks, pool.block_s, hours, wider)


# Hidden peaks


@dataclass(frozen=True, slots=True)
class HiddenPeak:
    """Hold the factor (lowest, highest) between the highest power over `to_s` and the highest reading over `from_s`.

    `high` is None if it is unknown. `source` is the runs' own finer readings, published logs, or none. If it is no
    bound (`is_bound`), peaks may be higher.
    """

    from_s: float
    to_s: float
    is_averaged: bool
    low: float
    high: float | None
    source: Literal["measured", "published", "none"]
    is_bound: bool = True


@dataclass(frozen=True, slots=True)
class HiddenPeaks:
    """Hold the highest power (W) with hidden peaks: `factor` times the highest reading, None if that is unknown."""

    value_w: float
    high_w: float | None
    ways: tuple[HiddenPeak, ...]

    @property
    def factor(self) -> float | None:
        """Return the factor by which the highest reading is raised."""
        return None if self.high_w is None else self.high_w / self.value_w


def find_resolution(trace: HostTrace) -> float:
    """Return the shortest peak (s) that readings of a host show in full: their distance, or the time they average."""
    return max(trace.raw_s, trace.window_s)


def _is_averaged(trace: HostTrace) -> bool:
    """Return whether readings are means that leave nothing out: over as long as they are apart."""
    return bool(trace.window_s) and trace.window_s * SLACK >= trace.raw_s


def find_hidden_peaks(traces: Sequence[HostTrace]) -> HiddenPeaks:
    """Return the highest power with hidden peaks; finer runs among the traces give the factor for coarser ones.

    Raises ConfigError if there is no trace, or if sides differ.
    """
    check_side(traces)
    read = [t for t in traces if np.isfinite(t.high_w).any()]
    ways: dict[tuple[float, bool], HiddenPeak] = {}
    highs = []
    for t in read:
        kind = (round(find_resolution(t), 1), _is_averaged(t))
        if kind not in ways:
            ways[kind] = find_hidden_peak(find_resolution(t), is_averaged=kind[1], traces=read)
        high = ways[kind].high
        highs.append(None if high is None else t.highest_w * high)
    known = [h for h in highs if h is not None]
    high_w = max(known) if len(known) == len(highs) else None
    return HiddenPeaks(max(t.highest_w for t in read), high_w, tuple(ways.values()))


def find_hidden_peak(from_s: float, *, is_averaged: bool, traces: Sequence[HostTrace]) -> HiddenPeak:
    """Return the factor for readings of a resolution, means over it or moments, from finer traces or as published."""
    finer = [t for t in traces if find_resolution(t) * FINER <= from_s]
    pairs = [(t, _compute_ratios(t, from_s, is_averaged=is_averaged)) for t in finer]
    pairs = [(t, ratios) for t, ratios in pairs if ratios.size]
    if pairs:
        ratios = np.concatenate([ratios for _, ratios in pairs])
        to_s = min(find_resolution(t) for t, _ in pairs)
        # The finer runs show every way that coarse moments could fall, so it bounds the same work.
        return HiddenPeak(from_s, to_s, is_averaged, float(ratios.min()), float(ratios.max()), "measured")
    fine_s, coarse_s = PUBLISHED_S
    if from_s <= fine_s * SLACK:
        return HiddenPeak(from_s, from_s, is_averaged, 1.0, 1.0, "none")
    if from_s <= coarse_s * SLACK:
        # A moment may be the peak itself; a mean over a minute never is.
        low = PUBLISHED[0] if is_averaged and from_s >= coarse_s / SLACK else 1.0
        return HiddenPeak(from_s, fine_s, is_averaged, low, PUBLISHED[1], "published", is_bound=is_averaged)
    return HiddenPeak(from_s, from_s, is_averaged, 1.0, None, "none")


def _compute_ratios(trace: HostTrace, coarse_s: float, *, is_averaged: bool) -> Floats:
    """Return the highest fine reading over the highest coarse one, for each way that the coarse ones could fall."""
    times = round(coarse_s / trace.step_s)
    if times < 2 or trace.high_w.size < 2 * times:
        return np.empty(0)
    coarse = _average_sliding(trace.mean_w, times) if is_averaged else trace.high_w
    size = coarse.size // times * times
    if not size:
        return np.empty(0)
    highest: Floats = np.fmax.reduce(coarse[:size].reshape(-1, times), axis=0)
    highest = highest[np.isfinite(highest) & (highest > 0)]
    return np.asarray(np.maximum(trace.highest_w / highest, 1.0))


def _average_sliding(watts: Floats, times: int) -> Floats:
    """Return the mean of every `times` readings in a row, NaN if one of them is missing."""
    summed = np.concatenate([[0.0], np.cumsum(np.nan_to_num(watts))])
    missing = np.concatenate([[0], np.cumsum(~np.isfinite(watts))])
    means = (summed[times:] - summed[:-times]) / times
    return np.where(missing[times:] > missing[:-times], np.nan, means)


# Differences between nodes


@dataclass(frozen=True, slots=True)
class NodeSpread:
    """Hold how much nodes differ in their highest power (share, k = 2), by `hosts` hosts at the same work.

    `value` is how far one node may be from the mean of the measured ones, `above` how far above the highest of them.
    """

    value: float
    above: float
    hosts: int
    source: Literal["measured", "two hosts", "assumed"]


def find_node_spread(traces: Sequence[HostTrace]) -> NodeSpread:
    """Return how much nodes differ: hosts of one run, else hosts of runs with the same name.

    If fewer than three hosts can be compared, an assumed figure is used, or the difference of two if it is larger.
    """
    groups = _group_peaks(traces)
    hosts = max((g.size for g in groups), default=1)
    if hosts < LEAST_HOSTS:
        seen = max((float(np.ptp(g) / g.mean()) for g in groups), default=0.0)
        value = max(ASSUMED_SPREAD, seen)
        return NodeSpread(value, value, hosts, "two hosts" if seen > ASSUMED_SPREAD else "assumed")
    # Hosts of a second run are the same ones again: they add no degree of freedom.
    variance = sum(float(((g / g.mean() - 1) ** 2).sum()) for g in groups) / sum(g.size - 1 for g in groups)
    value = t_quantile(TWO_SIGMA, hosts - 1) * math.sqrt(variance * (1 + 1 / hosts))
    largest = max(groups, key=lambda g: g.size)
    above = max(float(largest.mean() / largest.max()) * (1 + value) - 1, 0.0)
    return NodeSpread(value, above, hosts, "measured")


def _group_peaks(traces: Sequence[HostTrace]) -> list[np.ndarray]:
    """Return the highest powers (W) of hosts at the same work, for each work of two and more hosts."""
    for key in ("run", "name"):
        found: dict[str, dict[str, float]] = {}
        for t in traces:
            work = getattr(t, key)
            if work and np.isfinite(t.high_w).any():
                peaks = found.setdefault(work, {})
                peaks[t.host] = max(peaks.get(t.host, 0.0), t.highest_w)
        groups = [np.array(list(peaks.values())) for peaks in found.values() if len(peaks) > 1]
        if groups:
            return groups
    return []


@dataclass(frozen=True, slots=True)
class JointPeak:
    """Hold how far hosts of one run peak together: the peak of their sum, and the sum of their peaks (W)."""

    run: str
    hosts: int
    peak_of_sum_w: float
    sum_of_peaks_w: float

    @property
    def ratio(self) -> float:
        """Return the ratio: 1 if all peak at once."""
        return self.peak_of_sum_w / self.sum_of_peaks_w


def find_joint_peak(traces: Sequence[HostTrace]) -> JointPeak | None:
    """Return how far hosts of one run peak together, None if no two of them were read at the same time."""
    if len(traces) < 2:
        return None
    total = add_hosts(traces)
    if not np.isfinite(total).any():
        return None
    return JointPeak(traces[0].run, len(traces), float(np.nanmax(total)), sum(t.highest_w for t in traces))


def add_hosts(traces: Sequence[HostTrace]) -> Floats:
    """Return the sum (W) of hosts of one run on the coarsest of their steps, NaN if one is missing."""
    coarsest = max(traces, key=lambda t: t.step_s)
    size = coarsest.high_w.size
    total = np.zeros(size)
    for t in traces:
        found = t.high_w
        if found.size != size:
            found = np.full(size, np.nan)
            middle_s = (np.arange(t.high_w.size) + 0.5) * t.step_s
            np.fmax.at(found, np.minimum((middle_s / coarsest.step_s).astype(np.int64), size - 1), t.high_w)
        total += found
    return total
