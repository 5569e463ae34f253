"""Say how high the power of a node goes: the highest reading, and percentiles with what they are worth.

A percentile is an observation, not a guarantee: it holds for the work of the runs that it is from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.plan.rack.blocks import LEAST_BLOCK_S, pool_of, seen_share, share_limits, side_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.plan.measured_runs import HostTrace
    from joulelab.plan.rack.blocks import Pool

SEED = 20_241_116
HOUR_S = 3600.0
DIFFER = "how much runs of the same work differ is not known"


@dataclass(frozen=True, slots=True)
class Peak:
    """Hold the highest reading of a node (W), when and where it was, and how it was read.

    `upper_w` is what it may be by the meter's gain (k = 2), None where nobody knows it. `hours` are of nodes: of two
    side by side both count.
    """

    value_w: float
    upper_w: float | None
    run: str
    host: str
    at_s: float
    at_utc_s: float
    raw_s: float
    window_s: float
    readings: int
    hours: float
    simulated: bool

    @property
    def plan_w(self) -> float:
        """Return the power to plan with, in W: the upper figure where it is known."""
        return self.value_w if self.upper_w is None else self.upper_w

    @property
    def said(self) -> str:
        """Return how it was read, for people."""
        how = f"means over {self.window_s:g} s" if self.window_s else f"moments {self.raw_s:.3g} s apart"
        simulated = ", simulated" if self.simulated else ""
        return f"highest of {self.readings:,} readings ({how}) in {shown(self.hours)} node-hours{simulated}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        names = self.__dataclass_fields__
        return {name: getattr(self, name) for name in names} | {"plan_w": self.plan_w, "said": self.said}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Say that the data cannot support a percentile, and how much would."""

    p: float
    blocks: int
    needed: int
    block_s: float
    hours: float
    hours_needed: float
    runs: int = 0
    works: int = 1

    @property
    def said(self) -> str:
        """Return the refusal for people."""
        text = (
            f"{percent(self.p)} needs {self.needed:,} independent blocks; there {_are(self.blocks)} of "
            f"{up_to(self.works)}{shown(self.block_s)} s in {shown(self.hours)} h: measure {shown(self.hours_needed)} h"
        )
        if self.runs > 1 and self.blocks < 2 * self.runs and self.block_s > LEAST_BLOCK_S:
            text += f", in {math.ceil(self.needed * self.runs / self.blocks):,} runs: power differs between runs"
        return text

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"refused": self.said}


@dataclass(frozen=True, slots=True)
class Percentile:
    """Hold the power (W) that is exceeded in a share 1 - p of the time, and its confidence interval.

    `upper_w` adds the meter's gain to the upper end, None where nobody knows it. `reached` is the confidence
    (one-sided) at which the upper end bounds the percentile: below that asked for where there are too few blocks, and
    the upper end then is the highest reading. `by_run` is the percentile of each run alone. `spread` is by how much
    nodes differ (k = 2) where this is of other nodes than those measured, counted in the upper figures.
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
    seed: int
    simulated: bool
    by_run: Mapping[str, float] = field(default_factory=dict)
    runs: int = 0
    works: int = 0
    spread: float = 0.0

    @property
    def plan_w(self) -> float:
        """Return the power to plan with, in W: the upper end, with the gain where it is known, and the spread."""
        if self.upper_w is not None:
            return self.upper_w
        return self.value_w + math.hypot(self.high_w - self.value_w, self.spread * self.value_w)

    @property
    def supported(self) -> bool:
        """Return whether the upper end has the confidence that was asked for."""
        return self.reached >= (1 + self.confidence) / 2 - 1e-9

    @property
    def said(self) -> str:
        """Return what it is worth, for people."""
        text = f"{independent(self.blocks)} of {up_to(self.works)}{shown(self.block_s)} s in {shown(self.hours)} h"
        if not self.supported:
            hours = self.hours * blocks_for(self.p, self.confidence) / self.blocks
            text += (
                f"; the upper end is the highest reading and bounds {percent(self.p)} at {self.reached:.0%} only: "
                f"{shown(hours)} h would support it"
            )
        hottest = max(self.by_run, key=self.by_run.__getitem__, default="")
        if len(self.by_run) > 1 and self.by_run[hottest] > self.plan_w:
            text += f"; run {hottest} alone has {self.by_run[hottest]:.0f} W"
        return text + _once(self.runs, self.works)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {
            "by_run": dict(self.by_run),
            "plan_w": self.plan_w,
            "supported": self.supported,
            "said": self.said,
        }


@dataclass(frozen=True, slots=True)
class Exceeding:
    """Hold the share of time above a power (W), and its confidence interval; 0 seen is not 0.

    Where it was never seen, the interval is one-sided: three over the number of blocks at 95 %. `wider` is the factor
    by which power may be above what was read, which the upper end counts.
    """

    limit_w: float
    share: float
    low: float
    high: float
    confidence: float
    blocks: int
    block_s: float
    hours: float
    simulated: bool = False
    wider: float = 1.0
    runs: int = 0
    works: int = 0

    @property
    def said(self) -> str:
        """Return it for people."""
        seen = "never seen" if self.share == 0 else f"seen {self.share:.2%} of the time"
        blocks = f"{independent(self.blocks)} of {up_to(self.works)}{shown(self.block_s)} s"
        text = f"{seen} in {blocks}; at most {self.high:.2g}"
        if self.wider > 1:
            text += f" with power up to {100 * (self.wider - 1):.2g} % above what was read"
        return text + _once(self.runs, self.works)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"said": self.said}


def percent(p: float) -> str:
    """Return how a percentile is called: p99.9."""
    return f"p{100 * p:.10g}"


def shown(number: float) -> str:
    """Return hours or seconds in two digits, and whole from ten on."""
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"


def independent(blocks: int) -> str:
    """Return how many independent blocks there are, for people."""
    return f"{blocks:,} independent block{'' if blocks == 1 else 's'}"


def up_to(works: int) -> str:
    """Return what stands before the length of blocks: each work has its own, and the longest is told."""
    return "up to " if works > 1 else ""


def _once(runs: int, works: int) -> str:
    """Return what has to be said where no work was repeated."""
    if not runs or runs > works:
        return ""
    return f"; one run {'only' if runs == 1 else 'of each work'}: {DIFFER}"


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count:,}"


def refused(p: float, pool: Pool) -> Refusal | None:
    """Return the refusal of a percentile where there are fewer blocks than it takes to see one beyond it."""
    needed = math.ceil(1 / (1 - p) - 1e-9)
    if pool.blocks >= needed:
        return None
    hours = pool.observed_s / HOUR_S
    # Runs that are shorter than a block make short ones, which longer runs would not have.
    more = max(hours / pool.blocks, LEAST_BLOCK_S / HOUR_S) * needed
    return Refusal(p, pool.blocks, needed, pool.block_s, hours, more, pool.runs, pool.works)


def blocks_for(p: float, confidence: float) -> int:
    """Return how many independent blocks give a percentile an upper end with a confidence."""
    return math.ceil(math.log((1 - confidence) / 2) / math.log(p))


def maximum_of(draws: Sequence[HostTrace]) -> Peak:
    """Return the highest reading of any node. Raises ConfigError where there is none, or sides differ."""
    side_of(draws)
    read = [d for d in draws if np.isfinite(d.high_w).any()]
    if not read:
        raise ConfigError("no power to plan with", why="nothing was read in the runs", next="joulelab show RUN")
    hot = max(read, key=lambda d: d.highest_w)
    at_s = (int(np.nanargmax(hot.high_w)) + 0.5) * hot.step_s
    upper_w = max(d.highest_w * (1 + (d.gain or 0.0)) for d in read)
    return Peak(
        value_w=hot.highest_w, upper_w=None if known_gain(read) is None else upper_w, run=hot.run, host=hot.host,
        at_s=at_s, at_utc_s=hot.start_utc_s + at_s, raw_s=hot.raw_s, window_s=hot.window_s,
        readings=sum(int(np.isfinite(d.high_w).sum()) for d in read),
        hours=sum(float(np.isfinite(d.high_w).sum()) * d.step_s for d in read) / HOUR_S,
        simulated=any(d.twin for d in read),
    )  # fmt: skip


def known_gain(draws: Sequence[HostTrace]) -> float | None:
    """Return by which share the worst of those meters may be wrong whose accuracy is stated, None where none is."""
    return max((d.gain for d in draws if d.gain is not None), default=None)


def percentile_of(
    draws: Sequence[HostTrace],
    p: float,
    *,
    confidence: float = 0.95,
    seed: int = SEED,
    weights: Mapping[str, float] | None = None,
) -> Percentile | Refusal:
    """Return a percentile (p of 0.999: exceeded in 0.1 % of the time) of a node's power over runs, or why not.

    Runs are weighted by time, or by weights. The interval is from blocks of time that were drawn again and again, and
    no narrower than that of the binomial of as many independent blocks. Raises ConfigError for a p or a confidence
    that is none, and where nothing was read.
    """
    _check(p, confidence)
    rare = 1 - p
    pool = pool_of(draws, weights=weights)
    refusal = refused(p, pool)
    if refusal is not None:
        return refusal
    tail = (1 - confidence) / 2
    drawn = pool.drawn(rare, np.random.default_rng(seed))
    low_w, high_w = (float(w) for w in np.quantile(drawn, (tail, 1 - tail)))
    seen = seen_share(rare, pool.blocks, tail, upper=True)
    high_w = float(pool.watts[0]) if seen is None else max(high_w, pool.at(seen))
    often = seen_share(rare, pool.blocks, tail, upper=False)
    low_w = min(low_w, pool.at(often or 1.0))
    value_w = pool.at(rare)
    gain = known_gain(draws)
    return Percentile(
        p=p, value_w=value_w, low_w=low_w, high_w=high_w,
        upper_w=None if gain is None else value_w + math.hypot(high_w - value_w, gain * value_w),
        confidence=confidence, reached=1 - tail if seen is not None else 1 - p**pool.blocks,
        blocks=pool.blocks, block_s=pool.block_s, hours=pool.observed_s / HOUR_S, seed=seed,
        simulated=any(d.twin for d in draws), by_run=_by_run(draws, rare), runs=pool.runs, works=pool.works,
    )  # fmt: skip


def exceeding(
    draws: Sequence[HostTrace],
    limit_w: float,
    *,
    confidence: float = 0.95,
    weights: Mapping[str, float] | None = None,
    wider: float = 1.0,
) -> Exceeding:
    """Return how often a node is above a power, with its interval by the binomial of independent blocks.

    `wider` is the factor by which power may be above what was read (gain, hidden peaks); it raises the upper end.
    Raises ConfigError for a confidence or a factor that is none, and where nothing was read.
    """
    _check(0.5, confidence)
    check_wider(wider)
    pool = pool_of(draws, limit_w=limit_w, weights=weights)
    share = min(pool.above(limit_w), 1.0)
    low, high = share_limits(share, pool.blocks, (1 - confidence) / 2 if share else 1 - confidence)
    if wider > 1:
        raised = pool_of(draws, limit_w=limit_w / wider, weights=weights)
        more = min(raised.above(limit_w / wider), 1.0)
        tail = (1 - confidence) / 2 if more else 1 - confidence
        high = max(high, share_limits(more, min(raised.blocks, pool.blocks), tail)[1])
    return Exceeding(
        limit_w, share, low, high, confidence, pool.blocks, pool.block_s, pool.observed_s / HOUR_S,
        any(d.twin for d in draws), wider, pool.runs, pool.works,
    )  # fmt: skip


def check_wider(wider: float) -> None:
    """Raise ConfigError where a factor by which power may be above what was read is none."""
    if not 1 <= wider < math.inf:
        raise ConfigError(
            f"power cannot be above what was read by a factor of {wider:g}", next="give a factor of 1 or more"
        )


def _check(p: float, confidence: float) -> None:
    for name, value in (("percentile", p), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ConfigError(f"a {name} of {100 * value:g} % is none", next=f"give a {name} between 0 and 100 %")


def _by_run(draws: Sequence[HostTrace], rare: float) -> dict[str, float]:
    """Return the percentile of each run alone."""
    found = {}
    for run in dict.fromkeys(d.run for d in draws):
        watts = np.concatenate([d.high_w[np.isfinite(d.high_w)] for d in draws if d.run == run])
        if watts.size:
            ordered = np.sort(watts)
            found[run] = float(ordered[max(watts.size - 1 - int(rare * watts.size), 0)])
    return found
