"""Pool the readings of all runs, in blocks of time that are long enough to count as independent.

Readings 2 s apart are not as many observations as there are readings: a node that is hot now is hot in 2 s. The length
of a block is found from the data; every statement about rare power counts blocks of that length.
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
MOST_UNITS = 5000  # with more blocks than these, longer ones are as good for resampling
BURST_FACTOR = 2.0  # correlation times in a block of rare power: one does not suffice (benchmarks/plan_rack.py)
LEVELS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)  # shares of time above, up to the highest readings
RARE = LEVELS[0]  # power above which a node is for no more than this share of time comes in bursts
LEAST_BLOCK_S = 60.0  # assumed: readings without any burst do not show how long one lasts
MOST_LAGS = 1 << 17  # finer steps than these are combined where only lengths of blocks are searched
TAIL = 4.0  # times the tail that is looked at first in a resampled set
TINY = 1e-12  # rounding in sums of weights


@dataclass(frozen=True)
class ReadingPool:
    """Hold the readings of all runs (W), the highest first, with weights (sum 1) and the unit each is resampled with.

    `blocks` are independent blocks of up to `block_s`; hosts of one run share blocks. `observed_s` is the time with
    readings, in `runs` runs of `works` different works.
    """

    watts: Floats
    weight: Floats
    unit: Ints
    blocks: int
    block_s: float
    observed_s: float
    runs: int = 1
    works: int = 1

    def find_share_above(self, limit_w: float) -> float:
        """Return the share of time above a power (W)."""
        return float(self.weight[: np.searchsorted(-self.watts, -limit_w)].sum())

    def find_power(self, share: float) -> float:
        """Return the lowest power (W) that is exceeded in at most a share of the time."""
        return float(self.watts[_find_place(np.cumsum(self.weight), share)])

    def count_unit_draws(self, rng: np.random.Generator) -> Ints:
        """Return how often each unit is in a resampled set of as many units."""
        units = int(self.unit.max()) + 1
        return np.bincount(rng.integers(units, size=units), minlength=units)

    def resample_power(self, share: float, rng: np.random.Generator, times: int = RESAMPLES) -> Floats:
        """Return the power (W) exceeded in a share of the time, in resampled sets of units."""
        unit_weight = np.bincount(self.unit, self.weight)
        tail = min(int(np.searchsorted(np.cumsum(self.weight), TAIL * share)) + 1, self.watts.size)
        found = np.empty(times)
        for n in range(times):
            count = self.count_unit_draws(rng)
            whole = float(count @ unit_weight)
            summed = np.cumsum(self.weight[:tail] * count[self.unit[:tail]])
            if summed[-1] <= share * whole:
                summed = np.cumsum(self.weight * count[self.unit])
            found[n] = self.watts[_find_place(summed, share * whole)]
        return found


def _find_place(summed: Floats, share: float) -> int:
    return min(int(np.searchsorted(summed, share + TINY, side="right")), summed.size - 1)


def check_side(traces: Sequence[HostTrace]) -> Side:
    """Return where all of them were measured. Raises ConfigError if there is none, or if they differ."""
    sides = sorted({t.side for t in traces})
    if not sides:
        raise ConfigError("no power to plan with", why="no run was given", next="name runs: joulelab ls")
    if len(sides) > 1:
        listed = ", ".join(f"{t.run} {t.host}: {t.side}" for t in traces[:6])
        then = "name runs that were measured alike"
        raise ConfigError("power at the wall is mixed with power behind the supplies", why=listed, next=then)
    return traces[0].side


def pool_readings(traces: Sequence[HostTrace], *, limit_w: float | None = None) -> ReadingPool:
    """Pool the readings of hosts, weighted by time.

    Blocks of each work are long enough for power, for being above each of several high levels, and above `limit_w`.
    They are the same for every percentile, so that a higher one never needs less data than a lower one. Raises
    ConfigError if nothing was read, or if sides differ.
    """
    check_side(traces)
    known = [np.isfinite(t.high_w) for t in traces]
    whole_s = sum(t.step_s * int(k.sum()) for t, k in zip(traces, known, strict=True))
    if not whole_s:
        raise ConfigError(
            "no power to plan with", why="the runs have no readings", next=f"joulelab show {traces[0].run}"
        )
    scale = [t.step_s / whole_s for t in traces]
    watts = np.concatenate([t.high_w[k] for t, k in zip(traces, known, strict=True)])
    weight = np.concatenate([np.full(int(k.sum()), s) for k, s in zip(known, scale, strict=True)])
    order = np.argsort(-watts, kind="stable")
    watts, weight = watts[order], weight[order]
    summed = np.cumsum(weight)
    limits = {float(watts[_find_place(summed, share)]): share for share in reversed(LEVELS)}
    if limit_w is not None:
        limits.setdefault(limit_w, float(weight[: np.searchsorted(-watts, -limit_w)].sum()))
    observed: dict[str, float] = {}
    for t, k in zip(traces, known, strict=True):  # of hosts side by side the longest counts
        observed[t.run] = max(observed.get(t.run, 0.0), t.step_s * int(k.sum()))
    observed = {run: seconds for run, seconds in observed.items() if seconds}
    lengths = _find_block_lengths(traces, limits, observed)
    blocks = _count_blocks(traces, known, scale, observed, lengths)
    least_s = sum(observed.values()) / MOST_UNITS
    unit = _number_units(traces, known, {work: max(block_s, least_s) for work, block_s in lengths.items()})
    return ReadingPool(
        watts, weight, unit[order], blocks, max(lengths.values()), sum(observed.values()), len(observed), len(lengths)
    )


def _count_blocks(
    traces: Sequence[HostTrace],
    known: Sequence[np.ndarray],
    scale: Sequence[float],
    observed: Mapping[str, float],
    lengths: Mapping[str, float],
) -> int:
    """Return the number of blocks of all of the time: as the work has that is known worst for its share of it.

    The highest powers may all be of that work.
    """
    run_shares: dict[str, dict[str, float]] = {work: {} for work in lengths}
    for t, k, s in zip(traces, known, scale, strict=True):
        if t.run in observed:
            run_shares[t.work][t.run] = run_shares[t.work].get(t.run, 0.0) + s * int(k.sum())
    found = []
    for work, shares in run_shares.items():
        variance = sum(w**2 / max(observed[run] / lengths[work], 1.0) for run, w in shares.items())
        if variance:
            found.append(sum(shares.values()) / variance)
    return max(int(min(found) + 1e-6), 1)


def _number_units(traces: Sequence[HostTrace], known: Sequence[np.ndarray], lengths: Mapping[str, float]) -> Ints:
    """Return the unit of each reading: a block of one run with all of its hosts."""
    runs = {run: n for n, run in enumerate(dict.fromkeys(t.run for t in traces))}
    apart = int(max(t.high_w.size * t.step_s / lengths.get(t.work, np.inf) for t in traces)) + 2
    raw = [
        runs[t.run] * apart + (np.flatnonzero(k) * t.step_s / lengths.get(t.work, np.inf)).astype(np.int64)
        for t, k in zip(traces, known, strict=True)
    ]
    _, unit = np.unique(np.concatenate(raw), return_inverse=True)
    return unit.astype(np.int64)


def _find_block_lengths(
    traces: Sequence[HostTrace], limits_w: Mapping[float, float], observed: Mapping[str, float]
) -> dict[str, float]:
    """Return the length (s) of a block of each work: at most its longest run, at least its step.

    Works are kept apart: that different work draws differently is no chance.
    """
    found = {}
    for work in dict.fromkeys(t.work for t in traces if t.run in observed):
        own = [t for t in traces if t.work == work and t.run in observed]
        long_s = max(find_correlation_time(own), find_burst_time(own, limits_w), LEAST_BLOCK_S)
        found[work] = max(min(long_s, max(observed[t.run] for t in own)), *(t.step_s for t in own))
    return found


def find_correlation_time(traces: Sequence[HostTrace]) -> float:
    """Return how long (s) readings depend on each other, at least the coarsest step.

    It is the integrated autocorrelation time of all hosts about the mean of all runs, without gaps: if repeats have
    levels of their own, a run is one observation, not many that agree.
    """
    step_s, series = _align_steps(traces)
    return _integrate_correlation(_centre_series(series)) * step_s


def find_burst_time(traces: Sequence[HostTrace], limits_w: Mapping[float, float]) -> float:
    """Return how long (s) being above any of some limits depends on itself; twice that for rare ones.

    Limits (W) are given with the share of time above each.
    """
    step_s, series = _align_steps(traces)
    found = 1.0
    for limit_w, share in limits_w.items():
        over = [np.where(np.isfinite(s), s > limit_w, np.nan) for s in series]
        factor = BURST_FACTOR if share <= RARE else 1.0
        found = max(found, factor * _integrate_correlation(_centre_series(over)))
    return found * step_s


def _centre_series(series: Sequence[Floats]) -> list[Floats]:
    mean = float(np.mean(np.concatenate([s[np.isfinite(s)] for s in series])))
    return [s - mean for s in series]


def _align_steps(traces: Sequence[HostTrace]) -> tuple[float, list[Floats]]:
    """Return the readings of all hosts on one step (s), the highest where several are combined."""
    longest_s = max(t.high_w.size * t.step_s for t in traces)
    step_s = max(longest_s / MOST_LAGS, *(t.step_s for t in traces))
    found: list[Floats] = []
    for t in traces:
        times = max(round(step_s / t.step_s), 1)
        size = math.ceil(t.high_w.size / times) * times
        padded = np.concatenate([t.high_w, np.full(size - t.high_w.size, np.nan)])
        found.append(t.high_w if times == 1 else np.fmax.reduce(padded.reshape(-1, times), axis=1))
    return step_s, found


def _integrate_correlation(series: Sequence[Floats]) -> float:
    """Return the integrated autocorrelation time of series about 0, in steps, up to where it is lost in noise."""
    size = 1 << (2 * max(s.size for s in series) - 1).bit_length()
    summed = np.zeros(size // 2 + 1)
    for s in series:
        summed += np.abs(np.fft.rfft(np.nan_to_num(s), size)) ** 2
    products = np.fft.irfft(summed, size)[: max(s.size for s in series)]
    if products[0] <= 0:
        return 1.0  # constant power
    ratio = products[1:] / products[0]
    pairs = ratio[: ratio.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    lost = np.flatnonzero(pairs <= 0)
    end = 2 * int(lost[0]) if lost.size else ratio.size
    return max(1.0 + 2.0 * float(ratio[:end].sum()), 1.0)


def bound_share(share: float, blocks: int, tail: float) -> tuple[float, float]:
    """Return the limits of the true share, by the binomial of blocks, with `tail` left out at each end."""
    seen = share * blocks
    low = _halve_until(lambda x: _integrate_beta(x, seen, blocks - seen + 1) < tail) if seen > 0 else 0.0
    high = _halve_until(lambda x: _integrate_beta(x, seen + 1, blocks - seen) < 1 - tail) if seen < blocks else 1.0
    return low, high


def find_seen_share(share: float, blocks: int, tail: float, *, is_upper: bool) -> float | None:
    """Return the observed share at which a true one is just still possible; None if even 0 may be observed.

    `is_upper`: the true share is the largest that is possible, else the smallest.
    """
    if not is_upper:
        return _halve_until(lambda s: _integrate_beta(share, s * blocks, blocks - s * blocks + 1) > tail)
    if _integrate_beta(share, 1.0, blocks) < 1 - tail:
        return None
    return _halve_until(lambda s: _integrate_beta(share, s * blocks + 1, blocks - s * blocks) > 1 - tail)


def _halve_until(holds: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def _integrate_beta(x: float, a: float, b: float) -> float:
    return f_tail((1 - x) / x * a / b, 2 * b, 2 * a)
