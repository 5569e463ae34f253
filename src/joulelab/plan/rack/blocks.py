"""Pool what nodes drew over all runs, in blocks of time that are long enough to count as independent.

Readings 2 s apart are not as many observations as there are readings: a node that is hot now is hot in 2 s. How long
that lasts is found from the data, and everything that is said about rare power counts blocks of that length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.statistics import f_tail
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.analysis.readings import Floats, Ints
    from joulelab.plan.measured_runs import HostTrace, Side

RESAMPLES = 1000
MOST_UNITS = 5000  # more blocks than these are drawn together: longer blocks are as good
OVER = 2.0  # correlation times of being above in a block: bursts are few, and one does not do (benchmarks/plan_rack.py)
LEVELS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)  # shares of time above: rare ones, up to the highest readings
RARE = LEVELS[0]  # what is above in no more than this comes in bursts
LEAST_BLOCK_S = 60.0  # assumed: readings without any burst do not tell how long one lasts
MOST_LAGS = 1 << 17  # finer steps than these are taken together where only lengths of blocks are sought
TAIL = 4.0  # how much more than the tail itself is looked at first in a drawn set
TINY = 1e-12  # rounding in sums of weights


@dataclass(frozen=True)
class Pool:
    """Hold readings of all runs, the highest first, each with its weight (all are 1) and the unit it is drawn with.

    `blocks` are independent blocks of `block_s`, or less where works differ in that; hosts of one run are one
    observation at a time, so they share blocks.
    `observed_s` is the time in which anything was read, in so many `runs` of so many different `works`.
    """

    watts: Floats
    weight: Floats
    unit: Ints
    blocks: int
    block_s: float
    observed_s: float
    runs: int = 1
    works: int = 1

    def above(self, limit_w: float) -> float:
        """Return the share of time above a power (W)."""
        return float(self.weight[: np.searchsorted(-self.watts, -limit_w)].sum())

    def at(self, share: float) -> float:
        """Return the lowest power (W) that is exceeded in no more than a share of the time."""
        return float(self.watts[_last(np.cumsum(self.weight), share)])

    def drawn(self, share: float, rng: np.random.Generator, times: int = RESAMPLES) -> Floats:
        """Return the power exceeded in a share of the time in sets of units drawn again and again."""
        units = int(self.unit.max()) + 1
        of_unit = np.bincount(self.unit, self.weight, units)
        tail = min(int(np.searchsorted(np.cumsum(self.weight), TAIL * share)) + 1, self.watts.size)
        found = np.empty(times)
        for n in range(times):
            count = np.bincount(rng.integers(units, size=units), minlength=units)
            whole = float(count @ of_unit)
            summed = np.cumsum(self.weight[:tail] * count[self.unit[:tail]])
            if summed[-1] <= share * whole:
                summed = np.cumsum(self.weight * count[self.unit])
            found[n] = self.watts[_last(summed, share * whole)]
        return found


def _last(summed: Floats, share: float) -> int:
    """Return the last place before which there is no more than a share."""
    return min(int(np.searchsorted(summed, share + TINY, side="right")), summed.size - 1)


def side_of(draws: Sequence[HostTrace]) -> Side:
    """Return where all of them were measured. Raises ConfigError where there is none, or they differ."""
    sides = sorted({d.side for d in draws})
    if not sides:
        raise ConfigError("no power to plan with", why="no run was given", next="name runs: joulelab runs")
    if len(sides) > 1:
        told = ", ".join(f"{d.run} {d.host}: {d.side}" for d in draws[:6])
        raise ConfigError(
            "powers of different sides of the supply cannot be taken together",
            why=told,
            next="name runs that were measured alike",
        )
    return draws[0].side


def pool_of(
    draws: Sequence[HostTrace],
    *,
    limit_w: float | None = None,
    weights: Mapping[str, float] | None = None,
) -> Pool:
    """Pool what nodes drew, weighted by time, or by weights of runs.

    Blocks of each work are long enough for power, for being above each of several high levels, and above `limit_w`.
    They are the same for every percentile, so that a higher one never needs less data than a lower one: of the rarest
    power too little is seen to tell how long it lasts. Raises ConfigError where nothing was read, sides differ, or a
    run has no weight.
    """
    side_of(draws)
    known = [np.isfinite(d.high_w) for d in draws]
    scale = _scales(draws, known, weights)
    watts = np.concatenate([d.high_w[k] for d, k in zip(draws, known, strict=True)])
    weight = np.concatenate([np.full(int(k.sum()), s) for k, s in zip(known, scale, strict=True)])
    order = np.argsort(-watts, kind="stable")
    watts, weight = watts[order], weight[order]
    summed = np.cumsum(weight)
    limits = {float(watts[_last(summed, share)]): share for share in reversed(LEVELS)}
    if limit_w is not None:
        limits.setdefault(limit_w, float(weight[: np.searchsorted(-watts, -limit_w)].sum()))
    observed = _observed(draws, known)
    lengths = _lengths(draws, limits, observed)
    blocks = _blocks(draws, known, scale, observed, lengths)
    least_s = sum(observed.values()) / MOST_UNITS
    unit = _units(draws, known, {work: max(block_s, least_s) for work, block_s in lengths.items()})
    return Pool(
        watts, weight, unit[order], blocks, max(lengths.values()), sum(observed.values()), len(observed), len(lengths)
    )


def _blocks(
    draws: Sequence[HostTrace],
    known: Sequence[np.ndarray],
    scale: Sequence[float],
    observed: Mapping[str, float],
    lengths: Mapping[str, float],
) -> int:
    """Return as how many blocks all of the time counts: as the work does that is known worst for its share of it.

    The highest powers may all be of that work. A run of it that counts little adds little.
    """
    of_run: dict[str, dict[str, float]] = {work: {} for work in lengths}
    for d, k, s in zip(draws, known, scale, strict=True):
        if d.run in observed:
            of_run[d.work][d.run] = of_run[d.work].get(d.run, 0.0) + s * int(k.sum())
    found = []
    for work, shares in of_run.items():
        doubt = sum(w**2 / max(observed[run] / lengths[work], 1.0) for run, w in shares.items())
        if doubt:
            found.append(sum(shares.values()) / doubt)
    return max(int(min(found) + 1e-6), 1)


def _scales(
    draws: Sequence[HostTrace], known: Sequence[np.ndarray], weights: Mapping[str, float] | None
) -> list[float]:
    """Return the weight of each reading by draw."""
    seconds = [d.step_s * int(k.sum()) for d, k in zip(draws, known, strict=True)]
    if not sum(seconds):
        raise ConfigError("no power to plan with", why="nothing was read in the runs", next="joulelab show RUN")
    if weights is None:
        return [d.step_s / sum(seconds) for d in draws]
    left = sorted({d.run for d in draws} - set(weights))
    if left or any(w < 0 for w in weights.values()):
        raise ConfigError("each run needs a weight of 0 and more", why=f"without: {', '.join(left)}" if left else None)
    of_run: dict[str, float] = {}
    for d, s in zip(draws, seconds, strict=True):
        of_run[d.run] = of_run.get(d.run, 0.0) + s
    whole = sum(weights[run] for run, s in of_run.items() if s)
    if not whole:
        raise ConfigError("the weights of all runs are 0", next="give one of them a weight above 0")
    return [weights[d.run] / whole * d.step_s / of_run[d.run] if of_run[d.run] else 0.0 for d in draws]


def _observed(draws: Sequence[HostTrace], known: Sequence[np.ndarray]) -> dict[str, float]:
    """Return for how long (s) each run was read; of hosts side by side the longest counts."""
    found: dict[str, float] = {}
    for d, k in zip(draws, known, strict=True):
        found[d.run] = max(found.get(d.run, 0.0), d.step_s * int(k.sum()))
    return {run: seconds for run, seconds in found.items() if seconds}


def _units(draws: Sequence[HostTrace], known: Sequence[np.ndarray], lengths: Mapping[str, float]) -> Ints:
    """Return the unit of each reading: a stretch of one run with all of its hosts, as long as its work asks for."""
    runs = {run: n for n, run in enumerate(dict.fromkeys(d.run for d in draws))}
    apart = int(max(d.high_w.size * d.step_s / lengths.get(d.work, np.inf) for d in draws)) + 2
    raw = [
        runs[d.run] * apart + (np.flatnonzero(k) * d.step_s / lengths.get(d.work, np.inf)).astype(np.int64)
        for d, k in zip(draws, known, strict=True)
    ]
    _, unit = np.unique(np.concatenate(raw), return_inverse=True)
    return unit.astype(np.int64)


def _lengths(
    draws: Sequence[HostTrace], limits_w: Mapping[float, float], observed: Mapping[str, float]
) -> dict[str, float]:
    """Return how long a block of each work is, in s: no longer than its longest run, no shorter than its steps.

    That different work draws differently is no chance: which work is done, and for how long, is what the runs were
    chosen for.
    """
    found = {}
    for work in dict.fromkeys(d.work for d in draws if d.run in observed):
        own = [d for d in draws if d.work == work and d.run in observed]
        long_s = max(correlation_s(own), above_s(own, limits_w), LEAST_BLOCK_S)
        found[work] = max(min(long_s, max(observed[d.run] for d in own)), *(d.step_s for d in own))
    return found


def correlation_s(draws: Sequence[HostTrace]) -> float:
    """Return for how long (s) the power of readings depends on each other, never shorter than the coarsest step.

    It is the integrated autocorrelation time of all hosts together about the mean of all runs, gaps left out: where
    repeats have levels of their own, a run is one observation, not many that agree.
    """
    step_s, series = _alike(draws)
    return _lags(_centred(series)) * step_s


def above_s(draws: Sequence[HostTrace], limits_w: Mapping[float, float]) -> float:
    """Return for how long (s) being above any of some limits depends on itself; of rare ones twice that.

    Limits come with the share of time above each.
    """
    step_s, series = _alike(draws)
    found = 1.0
    for limit_w, share in limits_w.items():
        over = [np.where(np.isfinite(s), s > limit_w, np.nan) for s in series]
        found = max(found, (OVER if share <= RARE else 1.0) * _lags(_centred(over)))
    return found * step_s


def _centred(series: Sequence[Floats]) -> list[Floats]:
    mean = float(np.mean(np.concatenate([s[np.isfinite(s)] for s in series])))
    return [s - mean for s in series]


def _alike(draws: Sequence[HostTrace]) -> tuple[float, list[Floats]]:
    """Return the readings of all hosts on one step (s)."""
    longest_s = max(d.high_w.size * d.step_s for d in draws)
    step_s = max(longest_s / MOST_LAGS, *(d.step_s for d in draws))
    return step_s, [_coarse(d, step_s) for d in draws]


def _coarse(draw: HostTrace, step_s: float) -> Floats:
    """Return the highest readings over longer steps."""
    times = max(round(step_s / draw.step_s), 1)
    if times == 1:
        return draw.high_w
    size = math.ceil(draw.high_w.size / times) * times
    padded = np.concatenate([draw.high_w, np.full(size - draw.high_w.size, np.nan)])
    found: Floats = np.fmax.reduce(padded.reshape(-1, times), axis=1)
    return found


def _lags(series: Sequence[Floats]) -> float:
    """Return the integrated autocorrelation time of series about 0, in steps, up to where it is lost in noise."""
    size = 1 << (2 * max(s.size for s in series) - 1).bit_length()
    summed = np.zeros(size // 2 + 1)
    for s in series:
        summed += np.abs(np.fft.rfft(np.nan_to_num(s), size)) ** 2
    products = np.fft.irfft(summed, size)[: max(s.size for s in series)]
    if products[0] <= 0:
        return 1.0  # nothing moves
    ratio = products[1:] / products[0]
    pairs = ratio[: ratio.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    lost = np.flatnonzero(pairs <= 0)
    end = 2 * int(lost[0]) if lost.size else ratio.size
    return max(1.0 + 2.0 * float(ratio[:end].sum()), 1.0)


def share_limits(share: float, blocks: int, tail: float) -> tuple[float, float]:
    """Return between which shares the true one is, by the binomial of blocks, `tail` left out at each end."""
    seen = share * blocks
    low = _root(lambda x: _beta(x, seen, blocks - seen + 1) < tail) if seen > 0 else 0.0
    high = _root(lambda x: _beta(x, seen + 1, blocks - seen) < 1 - tail) if seen < blocks else 1.0
    return low, high


def seen_share(share: float, blocks: int, tail: float, *, upper: bool) -> float | None:
    """Return the share that may be seen where a true one is just still possible; None where even 0 may be.

    `upper`: the true share is the largest that is possible, else the smallest.
    """
    if not upper:
        return _root(lambda s: _beta(share, s * blocks, blocks - s * blocks + 1) > tail)
    if _beta(share, 1.0, blocks) < 1 - tail:
        return None
    return _root(lambda s: _beta(share, s * blocks + 1, blocks - s * blocks) > 1 - tail)


def _root(below: Callable[[float], bool]) -> float:
    """Return the place between 0 and 1 up to which something holds, by halving."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """Return how probable a value of a beta distribution is below x."""
    return f_tail((1 - x) / x * a / b, 2 * b, 2 * a)
