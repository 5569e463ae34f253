"""Compute statistics of repeats: Student's t and F, outliers, and the spread of cells, pooled.

Two repeats of one cell say almost nothing about the spread; repeats of seventeen cells do. Deviations are relative to
each cell's mean; a cell that scatters significantly more than the others keeps its own spread. Lines are pooled
separately if they have enough runs: a start that takes a tenth of a second more or less matters for eight GPUs and
hardly for one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist, median
from typing import TYPE_CHECKING

from joulelab.core.quantity import COVERAGE_FACTOR

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

# t(0.975) for 1 to 11 degrees of freedom; above, the expansion in `t_975` is right to five digits.
T_975_TABLE = (
    12.70620,
    4.302653,
    3.182446,
    2.776445,
    2.570582,
    2.446912,
    2.364624,
    2.306004,
    2.262157,
    2.228139,
    2.200985,
)
NORMAL_975 = 1.9599640  # the same quantile of the normal distribution
SERIES_PRECISION = 1e-12  # a series ends at a term below this share of its sum
NORMAL_FREEDOM = 200  # degrees of freedom above which a normal deviate is precise enough, and the series slow
QUANTILE_NODES = 14  # nodes in 1 / freedom: the quantile is right to seven digits, to five at a level of 1e-5
OUTLIER_LEVEL = 0.02  # share of cells without any odd repeat in which one is marked nevertheless
# Limits from 4 repeats on, in median distances from the median: OUTLIER_LEVEL of all cells of normally distributed
# repeats exceed them (six million draws each up to 8 repeats, two million above).
OUTLIER_LIMITS = (
    *(16.60, 19.17, 11.61, 12.30, 9.66, 9.97, 8.63, 8.82),
    *(8.02, 8.14, 7.60, 7.71, 7.33, 7.39, 7.11, 7.16, 6.94),
)
# Repeats needed to mark one: two of three are close to each other by chance so often that a third, ten deviations off,
# would be marked in one cell of fourteen.
FEWEST_TO_MARK = 4
OUTLIER_LIMITS_OF_MANY = ((30, 6.48), (50, 6.18), (100, 6.04))  # limits up to a number of repeats, beyond the table
FEWEST_FREEDOM = 4  # degrees of freedom needed for a pool: t(0.975) is 2.8, and an F test has some power
ALONE_FREEDOM = 9  # degrees of freedom from which a cell needs no pool: t(0.975) is 2.26
SCATTER_LEVEL = 0.01  # probability that a cell like the others looks as if it scattered more
NO_SPREAD = 1e-6  # smallest relative difference that a clock or meter can show; smaller ones are rounding


def t_975(freedom: int) -> float:
    """Return t(0.975) by degrees of freedom (n - 1 for n repeats)."""
    if freedom < 1:
        raise ValueError("a spread needs two repeats")
    if freedom <= len(T_975_TABLE):
        return T_975_TABLE[freedom - 1]
    z = NORMAL_975
    # Cornish and Fisher's expansion in 1 / degrees of freedom.
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(each / float(freedom) ** (k + 1) for k, each in enumerate(terms))


def t_tail(t: float, freedom: float) -> float:
    """Return the two-sided p value of t."""
    if math.isinf(freedom):
        return math.erfc(abs(t) / math.sqrt(2))
    if freedom > NORMAL_FREEDOM:
        # Wallace's transformation to a normal deviate: p of one per cent is right to four digits.
        normal = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
        return math.erfc(normal / math.sqrt(2))
    return f_tail(t * t, 1, freedom)


def t_quantile(level: float, freedom: float) -> float:
    """Return the t whose two-sided p value is `level`; at least one degree of freedom is needed.

    As t is smooth in 1 / freedom, it is computed once per level at a few nodes, and interpolated between them.
    """
    if freedom < 1:
        raise ValueError("a spread needs two repeats")
    u, log = 1.0 / freedom, 0.0
    for place, coefficient in _compute_nodes(level):
        log = log * (u - place) + coefficient
    return math.exp(log)


@lru_cache(maxsize=256)
def _compute_nodes(level: float) -> tuple[tuple[float, float], ...]:
    """Return nodes in 1 / freedom from 0 to 1, denser at the ends, with Newton's coefficients, the last first."""
    places = [(1 - math.cos(math.pi * k / (QUANTILE_NODES - 1))) / 2 for k in range(QUANTILE_NODES)]
    rest = [math.log(_solve_quantile(level, math.inf if u == 0 else 1 / u)) for u in places]
    for step in range(1, QUANTILE_NODES):
        for k in range(QUANTILE_NODES - 1, step - 1, -1):
            rest[k] = (rest[k] - rest[k - 1]) / (places[k] - places[k - step])
    return tuple(reversed(list(zip(places, rest, strict=True))))


def _solve_quantile(level: float, freedom: float) -> float:
    """Return the quantile by bisection: exact and slow."""
    if math.isinf(freedom):
        return -NormalDist().inv_cdf(level / 2)
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > level:
        low, high = high, high * 2
    while high - low > SERIES_PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > level else (low, middle)
    return (low + high) / 2


def f_tail(f: float, above: float, below: float) -> float:
    """Return the p value of a ratio f of two variances, by their degrees of freedom."""
    x = below / (below + above * f)
    return _integrate_beta(x, below / 2, above / 2)


def _integrate_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function by its continued fraction."""
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _integrate_beta(1.0 - x, b, a)  # on this side the fraction converges quickly
    if x <= 0:
        return 0.0
    whole = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    d = 1.0 / (1.0 - x * (a + b) / (a + 1))
    c, value, k, change = 1.0, d, 1, math.inf
    while abs(change - 1.0) > SERIES_PRECISION:
        even = x * k * (b - k) / ((a + 2 * k - 1) * (a + 2 * k))
        odd = -x * (a + k) * (a + b + k) / ((a + 2 * k) * (a + 2 * k + 1))
        d, c = 1.0 / (1.0 + even * d), 1.0 + even / c
        value *= d * c
        d, c = 1.0 / (1.0 + odd * d), 1.0 + odd / c
        change = d * c
        value *= change
        k += 1
    return math.exp(a * math.log(x) + b * math.log1p(-x) - whole) / a * value


def find_outliers(values: Sequence[float]) -> tuple[int, ...]:
    """Return the indices of outliers, none below FEWEST_TO_MARK values.

    A value is an outlier if it is many median distances away from the median: up to nearly half of the
    values may be odd without hiding themselves.
    """
    if len(values) < FEWEST_TO_MARK or not all(math.isfinite(v) for v in values):
        return ()
    middle = median(values)
    distances = [abs(v - middle) for v in values]
    usual = max(median(distances), NO_SPREAD * abs(middle))
    limit = find_outlier_limit(len(values)) * usual
    return tuple(k for k, d in enumerate(distances) if d > limit)


def find_outlier_limit(n: int) -> float:
    """Return the limit of an outlier, in median distances, by the number of repeats (four or more)."""
    if n - FEWEST_TO_MARK < len(OUTLIER_LIMITS):
        return OUTLIER_LIMITS[n - FEWEST_TO_MARK]
    return next((limit for most, limit in OUTLIER_LIMITS_OF_MANY if n <= most), OUTLIER_LIMITS_OF_MANY[-1][1])


@dataclass(frozen=True, slots=True)
class RepeatScatter:
    """Hold sums of squares and products of relative deviations from the mean of a cell, and degrees of freedom.

    `energy`, `matching` (times of runs with an energy) and `both` (their products) have `energy_freedom`.
    """

    energy: float = 0.0
    matching: float = 0.0
    both: float = 0.0
    energy_freedom: int = 0
    time: float = 0.0
    time_freedom: int = 0


@dataclass(frozen=True, slots=True)
class PooledDeviation:
    """Hold a relative standard deviation and its degrees of freedom."""

    deviation: float
    freedom: int


@dataclass(frozen=True, slots=True)
class SpreadPool:
    """Hold the pooled spreads of energy and time of a study (None: too few repeats), and their correlation.

    `apart` are keys of cells that scatter significantly more: the pool does not hold for them. `blind`: enough of the
    pool comes from runs whose sensors measure part of the time, so that the spread covers what those miss. `lines` are
    pools of cells, by key, whose line has its own; `alone` are cells that need no pool.
    """

    energy: PooledDeviation | None = None
    time: PooledDeviation | None = None
    correlation: float = 0.0
    apart: frozenset[str] = frozenset()
    blind: bool = False
    lines: Mapping[str, SpreadPool] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()

    def get_pool(self, key: str) -> SpreadPool:
        """Return the pool that holds for a cell: the one of its line if there is one.

        It is empty for cells that scatter more, or have enough runs of their own.
        """
        own = self.lines.get(key, self)
        return NO_POOL if key in own.apart or key in self.alone else own

    def is_apart(self, key: str) -> bool:
        """Return whether a cell scatters significantly more than the others of its pool."""
        return key in self.lines.get(key, self).apart


NO_POOL = SpreadPool()


def measure_scatter(pairs: Sequence[tuple[float | None, float]]) -> RepeatScatter:
    """Return the scatter of the (energy, time) pairs of a cell; values without a mean above zero do not count."""
    measured = [(e, t) for e, t in pairs if e is not None]
    energies, matching = _divide_by_mean([e for e, _ in measured]), _divide_by_mean([t for _, t in measured])
    times = _divide_by_mean([t for _, t in pairs])
    if not energies or not matching:
        energies = matching = []
    return RepeatScatter(
        energy=math.fsum(e * e for e in energies),
        matching=math.fsum(t * t for t in matching),
        both=math.fsum(e * t for e, t in zip(energies, matching, strict=True)),
        energy_freedom=max(len(energies) - 1, 0),
        time=math.fsum(t * t for t in times),
        time_freedom=max(len(times) - 1, 0),
    )


def pool_scatters(
    scatters: Mapping[str, RepeatScatter], blind: Collection[str] = (), lines: Iterable[Collection[str]] = ()
) -> SpreadPool:
    """Pool the scatters of cells by key, without cells that scatter significantly more; `blind`: see SpreadPool.

    `lines` are the keys of each line: a line with enough repeats has a pool of its own, the others have that of all.
    """
    whole = _pool_group(scatters, blind)
    pools: dict[str, SpreadPool] = {}
    apart = set(whole.apart)
    groups = [{key: scatters[key] for key in line} for line in lines]
    every = _ScatterSum.add_up(scatters.values())
    for group in groups if len(groups) > 1 else ():
        own = _pool_group(group, blind)
        if own.time is not None and (own.energy is not None or whole.energy is None):
            pools |= dict.fromkeys(group, own)
        elif _test_scatter(together := _add_scatters(group.values()), every.without(together)) < SCATTER_LEVEL:
            apart |= set(group)
    alone = frozenset(key for key, s in scatters.items() if s.time_freedom >= ALONE_FREEDOM)
    return replace(whole, apart=frozenset(apart), lines=pools, alone=alone)


def _pool_group(scatters: Mapping[str, RepeatScatter], blind: Collection[str]) -> SpreadPool:
    inside = dict(scatters)
    # Leaving out every large scatter would make the pool too small: only those that chance cannot explain go.
    while inside and (worst := _find_worst(inside))[0] < SCATTER_LEVEL / len(scatters):
        del inside[worst[1]]
    whole = _add_scatters(inside.values())
    alone = math.sqrt(whole.energy * whole.matching)
    return SpreadPool(
        energy=_make_deviation(whole.energy, whole.energy_freedom),
        time=_make_deviation(whole.time, whole.time_freedom),
        correlation=max(-1.0, min(1.0, whole.both / alone)) if alone > 0 else 0.0,
        apart=frozenset(_list_apart(scatters, inside)),
        blind=sum(s.energy_freedom for key, s in inside.items() if key in blind) >= FEWEST_FREEDOM,
    )


def compute_mean(values: Sequence[float]) -> float:
    """Return the mean, exact if all values are equal."""
    return values[0] + math.fsum(v - values[0] for v in values) / len(values)


def compute_deviation(values: Sequence[float]) -> float | None:
    """Return the sample's standard deviation, None below two values."""
    if len(values) < 2:
        return None
    mean = compute_mean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def compute_type_a(values: Sequence[float], pooled: PooledDeviation | None = None) -> float:
    """Return the standard uncertainty of a mean, widened so that k = 2 gives the interval of Student's t.

    It uses the pooled spread if there is one, else the spread of the values; it is 0 for a single value.
    """
    mean = compute_mean(values)
    if pooled is not None and mean > 0:
        spread, freedom = pooled.deviation * mean, pooled.freedom
    else:
        spread, freedom = compute_deviation(values) or 0.0, max(len(values) - 1, 1)
    return t_975(freedom) * spread / math.sqrt(len(values)) / COVERAGE_FACTOR


def compute_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the correlation of two series, 0 if one does not vary."""
    mean_a, mean_b = compute_mean(a), compute_mean(b)
    both = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    alone = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return max(-1.0, min(1.0, both / alone)) if alone > 0 else 0.0


def _divide_by_mean(values: Sequence[float]) -> list[float]:
    """Return relative deviations from the mean, an empty list without a mean above zero."""
    mean = compute_mean(values) if values else 0.0
    return [(v - mean) / mean for v in values] if mean > 0 and math.isfinite(mean) else []


@dataclass(frozen=True, slots=True)
class _ScatterSum:
    """Hold sums over cells, each as value and rounding error, so that a cell can be subtracted exactly."""

    energy: tuple[float, float]
    energy_freedom: int
    time: tuple[float, float]
    time_freedom: int

    @classmethod
    def add_up(cls, scatters: Collection[RepeatScatter]) -> _ScatterSum:
        """Add up the scatters of cells."""
        energy, time = _sum_exactly([s.energy for s in scatters]), _sum_exactly([s.time for s in scatters])
        return cls(energy, sum(s.energy_freedom for s in scatters), time, sum(s.time_freedom for s in scatters))

    def without(self, own: RepeatScatter) -> RepeatScatter:
        """Return the sum over all other cells; to add them up again for each of a thousand cells takes a minute."""
        return RepeatScatter(
            energy=math.fsum((*self.energy, -own.energy)),
            energy_freedom=self.energy_freedom - own.energy_freedom,
            time=math.fsum((*self.time, -own.time)),
            time_freedom=self.time_freedom - own.time_freedom,
        )


def _sum_exactly(values: Sequence[float]) -> tuple[float, float]:
    whole = math.fsum(values)
    return whole, math.fsum((*values, -whole))


def _find_worst(inside: Mapping[str, RepeatScatter]) -> tuple[float, str]:
    """Return the smallest p value of the cells of a pool, and the key of its cell.

    Of cells with the same degrees of freedom only the one with the largest squares is tested.
    """
    largest: dict[tuple[str, int], tuple[float, str]] = {}
    for key, s in sorted(inside.items()):
        for kind, squares in ((("energy", s.energy_freedom), s.energy), (("time", s.time_freedom), s.time)):
            if kind not in largest or squares > largest[kind][0]:
                largest[kind] = squares, key
    every = _ScatterSum.add_up(inside.values())
    return min((_test_scatter(inside[key], every.without(inside[key])), key) for _, key in largest.values())


def _list_apart(scatters: Mapping[str, RepeatScatter], inside: Collection[str]) -> Iterator[str]:
    """List the cells that scatter significantly more than a pool, whether they are part of it or not."""
    every = _ScatterSum.add_up([scatters[key] for key in inside])
    for key, s in scatters.items():
        if _test_scatter(s, every.without(s if key in inside else RepeatScatter())) < SCATTER_LEVEL:
            yield key


def _test_scatter(own: RepeatScatter, rest: RepeatScatter) -> float:
    """Return the p value of the hypothesis that a cell scatters like the rest: the smaller of energy and time."""
    return min(
        _test_squares(own.energy, own.energy_freedom, rest.energy, rest.energy_freedom),
        _test_squares(own.time, own.time_freedom, rest.time, rest.time_freedom),
    )


def _test_squares(own: float, freedom: int, rest: float, rest_freedom: int) -> float:
    """Return the p value of an F test, 1 with too few degrees of freedom."""
    if freedom < 1 or rest_freedom < FEWEST_FREEDOM or own <= NO_SPREAD**2 * freedom:
        return 1.0
    return f_tail(own / freedom * rest_freedom / rest, freedom, rest_freedom) if rest > 0 else 0.0


def _add_scatters(scatters: Iterable[RepeatScatter]) -> RepeatScatter:
    every = list(scatters)
    return RepeatScatter(
        energy=math.fsum(s.energy for s in every),
        matching=math.fsum(s.matching for s in every),
        both=math.fsum(s.both for s in every),
        energy_freedom=sum(s.energy_freedom for s in every),
        time=math.fsum(s.time for s in every),
        time_freedom=sum(s.time_freedom for s in every),
    )


def _make_deviation(squares: float, freedom: int) -> PooledDeviation | None:
    return PooledDeviation(math.sqrt(squares / freedom), freedom) if freedom >= FEWEST_FREEDOM else None
