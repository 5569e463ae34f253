"""Describe the repeats of cells, and compare cells two by two."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from joulelab.analysis.statistics import (
    FEWEST_TO_MARK,
    NO_SPREAD,
    compute_deviation,
    compute_mean,
    find_outliers,
    t_quantile,
    t_tail,
)
from joulelab.analysis.study_cells import average_lasting, divide_trials
from joulelab.core.quantity import COVERAGE_FACTOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.study_cells import Cell

FIGURES = ("energy", "power", "time")
UNITS = {"energy": "J", "power": "W", "time": "s"}
INTERVAL_LEVEL = 0.05  # intervals hold the mean in all but this share of cases
Verdict = Literal["more", "less", "no significant difference", "not known"]
SETTLING_POWER = 0.8  # with this probability the repeats that are named settle it, if the difference is what it seems
MOST_REPEATS = 100  # more are not counted
FIELLER_ROUNDS = 8  # so often the degrees of freedom at a bound of a ratio are worked out anew; they move little
FIELLER_PRECISION = 1e-8  # bounds that move by less do not move


@dataclass(frozen=True, slots=True)
class RepeatSample:
    """Hold one figure (J, W or s) of a cell by its repeats; `deviation` is None for one repeat, or if nobody tells it.

    `meter` is the expanded relative uncertainty by the meters that repeating does not make smaller, None if it is not
    known; `terms` are its parts by source, as standard uncertainties relative to the mean. `devices` name what
    measured it: between samples of the same devices the terms of one source cancel.
    """

    n: int
    mean: float
    deviation: float | None = None
    median: float | None = None
    values: tuple[float, ...] = ()
    meter: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    devices: frozenset[str] = frozenset()

    @property
    def half_width(self) -> float | None:
        """Return half of Student's 95 % interval of the mean, None where the scatter is not known."""
        if self.deviation is None or self.n < 2:
            return None
        return t_quantile(INTERVAL_LEVEL, self.n - 1) * self.deviation / math.sqrt(self.n)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return Student's 95 % interval of the mean, None where the scatter is not known."""
        half = self.half_width
        return None if half is None else (self.mean - half, self.mean + half)

    @property
    def outliers(self) -> tuple[int, ...]:
        """Return the places of the repeats that do not look like the others; they are in every figure all the same."""
        return find_outliers(self.values)

    @property
    def outliers_seen(self) -> bool:
        """Return whether there are repeats enough, with values, to see one that is odd."""
        return len(self.values) >= FEWEST_TO_MARK

    def to_json(self) -> dict[str, Any]:
        """Return plain data with the interval and the outliers."""
        told: dict[str, Any] = {"n": self.n, "mean": self.mean, "deviation": self.deviation, "interval": self.interval}
        told |= {"median": self.median, "meter": self.meter, "values": self.values, "devices": sorted(self.devices)}
        return told | {"outliers": self.outliers, "outliers_seen": self.outliers_seen}


def make_sample(
    values: Sequence[float],
    meter: float | None = None,
    *,
    terms: Mapping[str, float] | None = None,
    devices: frozenset[str] = frozenset(),
) -> RepeatSample:
    """Return the sample of some repeats. Raises ValueError without any."""
    if not values:
        raise ValueError("a sample needs a value")
    return RepeatSample(
        n=len(values),
        mean=compute_mean(values),
        deviation=compute_deviation(values),
        median=median(values),
        values=tuple(values),
        meter=meter,
        terms=terms or {},
        devices=devices,
    )


def make_samples(cell: Cell, per: str | None = None) -> dict[str, RepeatSample]:
    """Return energy (J), mean power (W) and time (s) of a cell, per unit of a kind of work where named.

    What is not known of it is not there. Where a cell has moments and no trials, those are given.
    """
    if not cell.trials:
        return dict(cell.moments) if per is None else {}  # moments tell no work
    trials = divide_trials(cell, per)
    times = [t.time_s for t in trials]
    found = {"time": make_sample(times, 0.0)}
    measured = [(t.energy.value, t.time_s) for t in trials if t.energy is not None]
    if not measured:
        return found
    whole = average_lasting(cell)
    size = abs(whole.value)
    terms = {source: u / size for source, u in whole.terms.items()} if size > 0 else {}
    meter = COVERAGE_FACTOR * math.hypot(*terms.values()) if whole.known and size > 0 else None
    devices = frozenset(t.meter for t in trials if t.energy is not None)
    energy = make_sample([e for e, _ in measured], meter, terms=terms, devices=devices)
    powers = [e / t for e, t in measured if t > 0]
    both = {"energy": energy}
    if len(powers) == len(measured):
        both["power"] = make_sample(powers, meter, terms=terms, devices=devices)
    return both | found


@dataclass(frozen=True, slots=True)
class CellPair:
    """Hold how a cell compares with another: ratio and difference (both 95 %, each pair by itself), p, verdict.

    `p_corrected` is by Holm over all pairs of the family, and the verdict is by it. `more_repeats` of both cells would
    settle it with POWER if the difference is real: None where it is settled, or not known, or where MOST_REPEATS do
    not do (`more_than_100`). `by_meters` tells that no number of repeats does: what the meters may be off by is as
    large as the difference. `assumed` tells that one cell has one run, taken to scatter as the other's do. `unit` is
    that of the difference, per unit of the work that `per` names, where it does.
    """

    cell: str
    against: str
    figure: str
    verdict: Verdict
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    freedom: float | None = None
    p: float | None = None
    p_corrected: float | None = None
    more_repeats: int | None = None
    more_than_100: bool = False
    by_meters: bool = False
    assumed: bool = False
    unit: str = ""
    per: str | None = None


def compare_cells(
    samples: Mapping[str, RepeatSample], pairs: Sequence[tuple[str, str]], figure: str = ""
) -> list[CellPair]:
    """Return how the first of each pair compares with the second, corrected over all these pairs together."""
    contrasts = [_contrast(samples.get(a), samples.get(b)) for a, b in pairs]
    found = [_judged(a, b, figure, samples, c) for (a, b), c in zip(pairs, contrasts, strict=True)]
    corrected = correct_p_values([pair.p for pair in found])
    open_pairs = sum(p is not None and p > INTERVAL_LEVEL for p in corrected)
    told = []
    for pair, p, contrast in zip(found, corrected, contrasts, strict=True):
        if p is None or contrast is None:
            told.append(pair)
            continue
        verdict: Verdict = (
            "no significant difference" if p > INTERVAL_LEVEL else "more" if (pair.difference or 0) > 0 else "less"
        )
        pair = replace(pair, p_corrected=p, verdict=verdict)  # noqa: PLW2901
        told.append(pair if p <= INTERVAL_LEVEL else _open(pair, contrast, INTERVAL_LEVEL / open_pairs))
    return told


def correct_p_values(values: Sequence[float | None]) -> list[float | None]:
    """Return each p corrected for how many there are (Holm): below the level, all of them together are that sure."""
    known = sorted((p, k) for k, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, k) in enumerate(known):
        least = max(least, min(1.0, p * (len(known) - rank)))
        corrected[k] = least
    return corrected


@dataclass(frozen=True, slots=True)
class _Contrast:
    """Hold two means, the variance of one repeat of each, and what the meters may be off by in their ratio (1 sd)."""

    a: float
    b: float
    n_a: int
    n_b: int
    var_a: float
    var_b: float
    meters: float
    shared: float
    assumed: bool

    def error(self, ratio: float = 1.0, more: int = 0) -> float:
        """Return the standard uncertainty of a - ratio x b, with so many more repeats of each."""
        return math.sqrt(
            self.var_a / (self.n_a + more)
            + ratio**2 * self.var_b / (self.n_b + more)
            + (ratio * self.b * self.meters) ** 2
        )

    def freedom(self, ratio: float = 1.0, more: int = 0) -> float:
        """Return Welch's degrees of freedom of that; what the meters add has no end of them."""
        own = self.var_a / (self.n_a + more), ratio**2 * self.var_b / (self.n_b + more)
        if self.assumed and more == 0:  # both scatters are one and the same
            squares = (own[0] + own[1]) ** 2 / (max(self.n_a, self.n_b) - 1)
        else:
            squares = own[0] ** 2 / (self.n_a + more - 1) + own[1] ** 2 / (self.n_b + more - 1)
        return max(self.error(ratio, more) ** 4 / squares, 1.0) if squares > 0 else math.inf


def _contrast(a: RepeatSample | None, b: RepeatSample | None) -> _Contrast | None:
    """Return what is to be compared; None where it is not known how much repeats scatter, or how far meters agree."""
    if a is None or b is None:
        return None
    meters = _meters(a, b)
    scatter = [None if s.n < 2 else s.deviation for s in (a, b)]
    known = [s for s, d in zip((a, b), scatter, strict=True) if d is not None]
    alone = [s for s, d in zip((a, b), scatter, strict=True) if d is None]
    if meters is None or not known or any(s.n > 1 for s in alone):
        return None
    # One run beside repeats is taken to scatter, relatively, as they do.
    share = max((s.deviation or 0.0) / abs(s.mean) if s.mean else 0.0 for s in known)
    spreads = [share * abs(s.mean) if d is None else d for s, d in zip((a, b), scatter, strict=True)]
    least = [max(d, NO_SPREAD * abs(s.mean)) for s, d in zip((a, b), spreads, strict=True)]
    return _Contrast(a.mean, b.mean, a.n, b.n, least[0] ** 2, least[1] ** 2, *meters, bool(alone))


def _meters(a: RepeatSample, b: RepeatSample) -> tuple[float, float] | None:
    """Return what the meters may be off by in the ratio (relative, 1 sd), and in both alike; None if nobody knows.

    On the same devices what nobody knows of them is the same in both, and cancels.
    """
    same = a.devices == b.devices and len(a.devices) <= 1
    if a.meter is None or b.meter is None:
        return (math.hypot(*_apart(a, b)), 0.0) if same else None
    if not (a.terms or b.terms):
        alike = min(a.meter, b.meter) / COVERAGE_FACTOR
        apart = abs(a.meter - b.meter) if same else math.hypot(a.meter, b.meter)
        return apart / COVERAGE_FACTOR, alike if same else 0.0
    common = set(a.terms) & set(b.terms)
    return math.hypot(*_apart(a, b)), math.hypot(*((a.terms[s] + b.terms[s]) / 2 for s in common))


def _apart(a: RepeatSample, b: RepeatSample) -> list[float]:
    """Return the terms of the ratio, by source: those of one source take each other away."""
    return [a.terms.get(s, 0.0) - b.terms.get(s, 0.0) for s in {*a.terms, *b.terms}]


def _judged(a: str, b: str, figure: str, samples: Mapping[str, RepeatSample], contrast: _Contrast | None) -> CellPair:
    """Return the pair with all but what the others of its family decide."""
    first, second = samples.get(a), samples.get(b)
    if first is None or second is None:
        return CellPair(a, b, figure, "not known")
    plain = CellPair(a, b, figure, "not known", ratio=first.mean / second.mean if second.mean > 0 else None)
    plain = replace(plain, difference=first.mean - second.mean)
    if contrast is None:
        return plain
    difference, error, freedom = first.mean - second.mean, contrast.error(), contrast.freedom()
    if error == 0:  # both are nothing at all
        return plain
    half, off = t_quantile(INTERVAL_LEVEL, freedom) * error, COVERAGE_FACTOR * contrast.shared
    low, high = difference - half, difference + half
    return replace(
        plain,
        ratio_interval=None if plain.ratio is None else _fieller(contrast),
        # A gain that both share stretches the difference: its bounds move away from zero or to it, never across.
        difference_interval=(low - off * abs(low), high + off * abs(high)),
        freedom=freedom,
        p=t_tail(difference / error, freedom),
        assumed=contrast.assumed,
    )


def _fieller(of: _Contrast) -> tuple[float, float] | None:
    """Return the interval of the ratio, None where the second mean may be zero, so that there is no end to it."""
    of_a, of_b = of.var_a / of.n_a, of.var_b / of.n_b + (of.b * of.meters) ** 2
    bounds = []
    for side in (-1.0, 1.0):
        bound = of.a / of.b
        for _ in range(FIELLER_ROUNDS):
            # Degrees of freedom as they are at the bound itself, so that 1 is inside exactly if p says so.
            reach = t_quantile(INTERVAL_LEVEL, of.freedom(bound)) ** 2
            lead = of.b**2 - reach * of_b
            if lead <= 0:
                return None
            root = math.sqrt(reach * (of_a * lead + of.a**2 * of_b))
            last, bound = bound, (of.a * of.b + side * root) / lead
            if abs(bound - last) <= FIELLER_PRECISION * abs(bound):
                break
        bounds.append(bound)
    return max(bounds[0], 0.0), bounds[1]


def _open(pair: CellPair, contrast: _Contrast, level: float) -> CellPair:
    """Return a pair that is not told apart with the number of repeats that would do it.

    `level` is that of the pairs that are still open: what is below it is told apart by Holm, whatever the others give.
    """
    difference = abs(contrast.a - contrast.b)
    if difference <= t_quantile(level, math.inf) * abs(contrast.b) * contrast.meters:
        return replace(pair, more_than_100=True, by_meters=contrast.meters > 0)
    low, high = 0, MOST_REPEATS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _settles(contrast, difference, middle, level) else (middle, high)
    return replace(pair, more_than_100=True) if high > MOST_REPEATS else replace(pair, more_repeats=high)


def _settles(contrast: _Contrast, difference: float, more: int, level: float) -> bool:
    """Return whether so many more repeats of both tell the difference with POWER."""
    freedom = contrast.freedom(more=more)
    reach = t_quantile(level, freedom) + t_quantile(2 * (1 - SETTLING_POWER), freedom)
    return difference >= reach * contrast.error(more=more)
