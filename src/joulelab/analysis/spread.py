"""Tell how much repeats differ by themselves: of one cell, and pooled over the cells of a line or study. Pure.

Two repeats of one cell say next to nothing of their spread, those of seventeen cells do. What is pooled is relative to
each cell's mean; a cell that scatters significantly more than the others stays out and keeps its own spread. Lines are
pooled each by itself where they have runs enough: a start that takes now a tenth of a second more, now less, is much
to eight GPUs and little to one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.analysis.student import f_tail, t_975
from joulelab.core.quantity import COVERAGE_FACTOR

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

FEWEST_FREEDOM = (
    4  # degrees of freedom from which on a pool is believed: t(0.975) is 2.8 and an F test can find something
)
ALONE_FREEDOM = (
    9  # degrees of freedom from which on a cell needs no others: t(0.975) is 2.26, and nothing is assumed of it
)
SCATTER_LEVEL = 0.01  # so seldom does a cell that is like the others look as if it scattered more
NO_SPREAD = 1e-6  # no clock and no meter tells smaller relative differences: those are rounding


@dataclass(frozen=True, slots=True)
class RepeatScatter:
    """Hold sums of squares and products of relative deviations from the mean of a cell, and degrees of freedom.

    `energy`, `matching` (times of the runs that have an energy) and `both` have `energy_freedom`, `time` has its own.
    """

    energy: float = 0.0
    matching: float = 0.0
    both: float = 0.0
    energy_freedom: int = 0
    time: float = 0.0
    time_freedom: int = 0


@dataclass(frozen=True, slots=True)
class PooledDeviation:
    """Hold a relative standard deviation and how many degrees of freedom it rests on."""

    deviation: float
    freedom: int


@dataclass(frozen=True, slots=True)
class SpreadPool:
    """Hold what the cells of a study say together: spreads (None: too little is known) and how energy goes with time.

    `apart` are the cells that scatter significantly more, by key: the pool is not for them. `blind` tells that enough
    of it comes from runs whose sensors may have missed something, so that their spread shows what those hide.
    `lines` are the pools of those cells, by key, whose line has one of its own; `alone` those that need no pool.
    """

    energy: PooledDeviation | None = None
    time: PooledDeviation | None = None
    correlation: float = 0.0
    apart: frozenset[str] = frozenset()
    blind: bool = False
    lines: Mapping[str, SpreadPool] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()

    def of(self, key: str) -> SpreadPool:
        """Return what of the pool holds for a cell: that of its line if there is one.

        Nothing if it scatters more, or has runs enough to stand by itself.
        """
        own = self.lines.get(key, self)
        return NO_POOL if key in own.apart or key in self.alone else own

    def is_apart(self, key: str) -> bool:
        """Return whether a cell scatters significantly more than those it is pooled with."""
        return key in self.lines.get(key, self).apart


NO_POOL = SpreadPool()


def measure_scatter(pairs: Sequence[tuple[float | None, float]]) -> RepeatScatter:
    """Return how the (energy, time) pairs of a cell scatter; what has no mean above zero counts for nothing."""
    measured = [(e, t) for e, t in pairs if e is not None]
    energies, matching = _relative([e for e, _ in measured]), _relative([t for _, t in measured])
    times = _relative([t for _, t in pairs])
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
    """Return the pool of cells by key, without those that scatter significantly more; `blind`: see Pool.

    `lines` are the keys of each line: one that is enough for a pool has its own, the others have that of all.
    """
    whole = _pool_of(scatters, blind)
    pools: dict[str, SpreadPool] = {}
    apart = set(whole.apart)
    groups = [{key: scatters[key] for key in line} for line in lines]
    every = _Sum.of(scatters.values())
    for group in groups if len(groups) > 1 else ():
        own = _pool_of(group, blind)
        if own.time is not None and (own.energy is not None or whole.energy is None):
            pools |= dict.fromkeys(group, own)
        elif _chance(together := _total(group.values()), every.without(together)) < SCATTER_LEVEL:
            apart |= set(group)
    alone = frozenset(key for key, s in scatters.items() if s.time_freedom >= ALONE_FREEDOM)
    return replace(whole, apart=frozenset(apart), lines=pools, alone=alone)


def _pool_of(scatters: Mapping[str, RepeatScatter], blind: Collection[str]) -> SpreadPool:
    inside = dict(scatters)
    # To leave out whatever looks large would make the pool too small: only what no chance among so many explains.
    while inside and (worst := _worst(inside))[0] < SCATTER_LEVEL / len(scatters):
        del inside[worst[1]]
    whole = _total(inside.values())
    alone = math.sqrt(whole.energy * whole.matching)
    return SpreadPool(
        energy=_pooled(whole.energy, whole.energy_freedom),
        time=_pooled(whole.time, whole.time_freedom),
        correlation=max(-1.0, min(1.0, whole.both / alone)) if alone > 0 else 0.0,
        apart=frozenset(_scattering_more(scatters, inside)),
        blind=sum(s.energy_freedom for key, s in inside.items() if key in blind) >= FEWEST_FREEDOM,
    )


def compute_mean(values: Sequence[float]) -> float:
    """Return the mean, exact where all values are the same."""
    return values[0] + math.fsum(v - values[0] for v in values) / len(values)


def compute_deviation(values: Sequence[float]) -> float | None:
    """Return the sample's standard deviation, None below two values."""
    if len(values) < 2:
        return None
    mean = compute_mean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def compute_type_a(values: Sequence[float], pooled: PooledDeviation | None = None) -> float:
    """Return the standard uncertainty of a mean such that k = 2 reaches as far as Student's t.

    By the pooled spread where there is one, else by the values' own; 0 for one value alone.
    """
    mean = compute_mean(values)
    if pooled is not None and mean > 0:
        spread, freedom = pooled.deviation * mean, pooled.freedom
    else:
        spread, freedom = compute_deviation(values) or 0.0, max(len(values) - 1, 1)
    return t_975(freedom) * spread / math.sqrt(len(values)) / COVERAGE_FACTOR


def compute_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return how far two series go together (-1 to 1), 0 where one does not vary."""
    mean_a, mean_b = compute_mean(a), compute_mean(b)
    both = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    alone = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return max(-1.0, min(1.0, both / alone)) if alone > 0 else 0.0


def _relative(values: Sequence[float]) -> list[float]:
    """Return relative deviations from the mean, none where there is no such mean."""
    mean = compute_mean(values) if values else 0.0
    return [(v - mean) / mean for v in values] if mean > 0 and math.isfinite(mean) else []


@dataclass(frozen=True, slots=True)
class _Sum:
    """Hold sums over cells, each in two parts (the second is what rounding took from the first), to take parts off."""

    energy: tuple[float, float]
    energy_freedom: int
    time: tuple[float, float]
    time_freedom: int

    @classmethod
    def of(cls, scatters: Collection[RepeatScatter]) -> _Sum:
        """Add cells up."""
        energy, time = _split([s.energy for s in scatters]), _split([s.time for s in scatters])
        return cls(energy, sum(s.energy_freedom for s in scatters), time, sum(s.time_freedom for s in scatters))

    def without(self, own: RepeatScatter) -> RepeatScatter:
        """Return the sum over all others; adding those up for each cell of a thousand would take a minute."""
        return RepeatScatter(
            energy=math.fsum((*self.energy, -own.energy)),
            energy_freedom=self.energy_freedom - own.energy_freedom,
            time=math.fsum((*self.time, -own.time)),
            time_freedom=self.time_freedom - own.time_freedom,
        )


def _split(values: Sequence[float]) -> tuple[float, float]:
    whole = math.fsum(values)
    return whole, math.fsum((*values, -whole))


def _worst(inside: Mapping[str, RepeatScatter]) -> tuple[float, str]:
    """Return the cell of a pool that is least like the others, after the chance that it is.

    Of cells with the same degrees of freedom that is one with the largest squares: only those are asked.
    """
    largest: dict[tuple[str, int], tuple[float, str]] = {}
    for key, s in sorted(inside.items()):
        for kind, squares in ((("energy", s.energy_freedom), s.energy), (("time", s.time_freedom), s.time)):
            if kind not in largest or squares > largest[kind][0]:
                largest[kind] = squares, key
    every = _Sum.of(inside.values())
    return min((_chance(inside[key], every.without(inside[key])), key) for _, key in largest.values())


def _scattering_more(scatters: Mapping[str, RepeatScatter], inside: Collection[str]) -> Iterator[str]:
    """Give the cells that scatter significantly more than the others in a pool, whether they are in it or not."""
    every = _Sum.of([scatters[key] for key in inside])
    for key, s in scatters.items():
        if _chance(s, every.without(s if key in inside else RepeatScatter())) < SCATTER_LEVEL:
            yield key


def _chance(own: RepeatScatter, rest: RepeatScatter) -> float:
    """Return how probable it is that cells like the rest scatter so much more than it."""
    return min(
        _tail(own.energy, own.energy_freedom, rest.energy, rest.energy_freedom),
        _tail(own.time, own.time_freedom, rest.time, rest.time_freedom),
    )


def _tail(own: float, freedom: int, rest: float, rest_freedom: int) -> float:
    """Return how probable so large a ratio of squares is among equals; 1 where nothing can be said."""
    if freedom < 1 or rest_freedom < FEWEST_FREEDOM or own <= NO_SPREAD**2 * freedom:
        return 1.0
    return f_tail(own / freedom * rest_freedom / rest, freedom, rest_freedom) if rest > 0 else 0.0


def _total(scatters: Iterable[RepeatScatter]) -> RepeatScatter:
    every = list(scatters)
    return RepeatScatter(
        energy=math.fsum(s.energy for s in every),
        matching=math.fsum(s.matching for s in every),
        both=math.fsum(s.both for s in every),
        energy_freedom=sum(s.energy_freedom for s in every),
        time=math.fsum(s.time for s in every),
        time_freedom=sum(s.time_freedom for s in every),
    )


def _pooled(squares: float, freedom: int) -> PooledDeviation | None:
    return PooledDeviation(math.sqrt(squares / freedom), freedom) if freedom >= FEWEST_FREEDOM else None
