"""Describe the repeats of cells as a paper does, and compare cells two by two.

A sample has number, mean, deviation, Student's interval, median and outliers, from its own repeats only: nothing is
pooled. Errors of the meters that are the same in every repeat (gain, offset) are stated beside the scatter.

Pairs use Welch's test: each cell has its own scatter, with fractional degrees of freedom. The interval of a ratio r is
Fieller's, all r for which `a - r b` may be zero: it contains 1 exactly if the interval of the difference contains 0 and
p is above the level, so all three lead to the same decision. Energy, time and power are not negative: the interval of
a ratio ends at 0.
"""

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
INTERVAL_LEVEL = 0.05  # share of cases in which an interval does not contain the mean
Verdict = Literal["more", "less", "no significant difference", "not known"]
SETTLING_POWER = 0.8  # probability that the suggested repeats settle a difference of the present size
MOST_REPEATS = 100  # more repeats are not suggested
FIELLER_ROUNDS = 8  # rounds in which the degrees of freedom at a bound of a ratio are computed again
FIELLER_PRECISION = 1e-8  # relative change of a bound at which the rounds end


@dataclass(frozen=True, slots=True)
class RepeatSample:
    """Hold one figure (J, W or s) of a cell by its repeats; `deviation` is None for one repeat, or if unknown.

    `meter` is the expanded relative uncertainty from errors of the meters that repeats do not reduce, None if unknown;
    `terms` are its parts by source, as standard uncertainties relative to the mean. `devices` are the measuring
    devices: between samples of the same devices, terms of one source cancel.
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
        """Return half of Student's 95 % interval of the mean, None if the scatter is unknown."""
        if self.deviation is None or self.n < 2:
            return None
        return t_quantile(INTERVAL_LEVEL, self.n - 1) * self.deviation / math.sqrt(self.n)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return Student's 95 % interval of the mean, None if the scatter is unknown."""
        half = self.half_width
        return None if half is None else (self.mean - half, self.mean + half)

    @property
    def outliers(self) -> tuple[int, ...]:
        """Return the indices of odd repeats; they are part of every figure nevertheless."""
        return find_outliers(self.values)

    @property
    def outliers_seen(self) -> bool:
        """Return whether there are enough repeats to recognise an odd one."""
        return len(self.values) >= FEWEST_TO_MARK

    def to_json(self) -> dict[str, Any]:
        """Return plain data with the interval and the outliers."""
        figures = {
            name: getattr(self, name) for name in ("n", "mean", "deviation", "interval", "median", "meter", "values")
        }
        more = {"devices": sorted(self.devices), "outliers": self.outliers, "outliers_seen": self.outliers_seen}
        return figures | more


def make_sample(
    values: Sequence[float],
    meter: float | None = None,
    *,
    terms: Mapping[str, float] | None = None,
    devices: frozenset[str] = frozenset(),
) -> RepeatSample:
    """Make the sample of some repeats; raise ValueError without any."""
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
    """Make the samples of energy (J), mean power (W) and time (s) of a cell, per unit of the work `per` if given.

    Unknown figures are left out. A cell with published moments and no trials has those.
    """
    if not cell.trials:
        return dict(cell.moments) if per is None else {}  # moments include no work
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
    """Hold a comparison of two cells: ratio and difference (95 % intervals of this pair alone), p, verdict.

    `p_corrected` is by Holm over all pairs of the family; the verdict follows from it. `more_repeats` of both cells
    would settle the pair with SETTLING_POWER if the difference is real; None if it is settled or unknown, or needs more
    than MOST_REPEATS (`more_than_100`). `by_meters`: no number of repeats settles it, because errors of the meters are
    as large as the difference. `assumed`: one cell has a single run, which is assumed to scatter like the other cell.
    `unit` is that of the difference, per unit of the work `per` if given.
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
    """Compare the first of each pair with the second, corrected for the number of pairs."""
    contrasts = [_make_contrast(samples.get(a), samples.get(b)) for a, b in pairs]
    found = [_make_pair(a, b, figure, samples, c) for (a, b), c in zip(pairs, contrasts, strict=True)]
    corrected = correct_p_values([pair.p for pair in found])
    open_pairs = sum(p is not None and p > INTERVAL_LEVEL for p in corrected)
    judged = []
    for pair, p, contrast in zip(found, corrected, contrasts, strict=True):
        if p is None or contrast is None:
            judged.append(pair)
            continue
        verdict: Verdict = (
            "no significant difference" if p > INTERVAL_LEVEL else "more" if (pair.difference or 0) > 0 else "less"
        )
        pair = replace(pair, p_corrected=p, verdict=verdict)  # noqa: PLW2901
        judged.append(pair if p <= INTERVAL_LEVEL else _count_repeats(pair, contrast, INTERVAL_LEVEL / open_pairs))
    return judged


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """Hold a ratio of means, its interval (None if the second mean may be zero), and the error of the meters in it.

    `meters` is relative, one standard deviation; repeats do not reduce it.
    """

    ratio: float
    interval: tuple[float, float] | None
    meters: float


def find_ratio(a: RepeatSample, b: RepeatSample, level: float = INTERVAL_LEVEL) -> RatioInterval | None:
    """Divide the mean of a by that of b; None if scatter or meter errors are unknown, or b is not positive."""
    contrast = _make_contrast(a, b)
    if contrast is None or b.mean <= 0:
        return None
    return RatioInterval(a.mean / b.mean, _find_ratio_interval(contrast, level), contrast.meters)


def correct_p_values(values: Sequence[float | None]) -> list[float | None]:
    """Correct p values for their number (Holm): all below a level hold together with this level."""
    known = sorted((p, k) for k, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    least = 0.0
    for rank, (p, k) in enumerate(known):
        least = max(least, min(1.0, p * (len(known) - rank)))
        corrected[k] = least
    return corrected


@dataclass(frozen=True, slots=True)
class _Contrast:
    """Hold two means, the variance of one repeat of each, and the error of the meters in their ratio (1 sd)."""

    a: float
    b: float
    n_a: int
    n_b: int
    var_a: float
    var_b: float
    meters: float
    shared: float
    assumed: bool

    def compute_error(self, ratio: float = 1.0, more: int = 0) -> float:
        """Return the standard uncertainty of a - ratio x b, with `more` repeats of each."""
        return math.sqrt(
            self.var_a / (self.n_a + more)
            + ratio**2 * self.var_b / (self.n_b + more)
            + (ratio * self.b * self.meters) ** 2
        )

    def compute_freedom(self, ratio: float = 1.0, more: int = 0) -> float:
        """Return Welch's degrees of freedom of a - ratio x b; errors of the meters have infinitely many."""
        own = self.var_a / (self.n_a + more), ratio**2 * self.var_b / (self.n_b + more)
        if self.assumed and more == 0:  # both have the same scatter
            squares = (own[0] + own[1]) ** 2 / (max(self.n_a, self.n_b) - 1)
        else:
            squares = own[0] ** 2 / (self.n_a + more - 1) + own[1] ** 2 / (self.n_b + more - 1)
        return max(self.compute_error(ratio, more) ** 4 / squares, 1.0) if squares > 0 else math.inf


def _make_contrast(a: RepeatSample | None, b: RepeatSample | None) -> _Contrast | None:
    """Return the contrast of two samples, None if the scatter or the error of the meters is unknown."""
    if a is None or b is None:
        return None
    meters = _find_meter_errors(a, b)
    scatter = [None if s.n < 2 else s.deviation for s in (a, b)]
    known = [s for s, d in zip((a, b), scatter, strict=True) if d is not None]
    alone = [s for s, d in zip((a, b), scatter, strict=True) if d is None]
    if meters is None or not known or any(s.n > 1 for s in alone):
        return None
    # A single run is assumed to have the relative scatter of the repeats that it is compared with.
    share = max((s.deviation or 0.0) / abs(s.mean) if s.mean else 0.0 for s in known)
    spreads = [share * abs(s.mean) if d is None else d for s, d in zip((a, b), scatter, strict=True)]
    least = [max(d, NO_SPREAD * abs(s.mean)) for s, d in zip((a, b), spreads, strict=True)]
    return _Contrast(a.mean, b.mean, a.n, b.n, least[0] ** 2, least[1] ** 2, *meters, bool(alone))


def _find_meter_errors(a: RepeatSample, b: RepeatSample) -> tuple[float, float] | None:
    """Return the error of the meters in the ratio (relative, 1 sd), and the one shared by both; None if unknown.

    With the same device in both, unknown errors are the same and cancel.
    """
    same = a.devices == b.devices and len(a.devices) <= 1
    apart = [a.terms.get(s, 0.0) - b.terms.get(s, 0.0) for s in {*a.terms, *b.terms}]  # terms of one source cancel
    if a.meter is None or b.meter is None:
        return (math.hypot(*apart), 0.0) if same else None
    if not (a.terms or b.terms):
        alike = min(a.meter, b.meter) / COVERAGE_FACTOR
        left = abs(a.meter - b.meter) if same else math.hypot(a.meter, b.meter)
        return left / COVERAGE_FACTOR, alike if same else 0.0
    common = set(a.terms) & set(b.terms)
    return math.hypot(*apart), math.hypot(*((a.terms[s] + b.terms[s]) / 2 for s in common))


def _make_pair(
    a: str, b: str, figure: str, samples: Mapping[str, RepeatSample], contrast: _Contrast | None
) -> CellPair:
    """Return the pair without corrected p and verdict, which depend on the other pairs."""
    first, second = samples.get(a), samples.get(b)
    if first is None or second is None:
        return CellPair(a, b, figure, "not known")
    plain = CellPair(a, b, figure, "not known", ratio=first.mean / second.mean if second.mean > 0 else None)
    plain = replace(plain, difference=first.mean - second.mean)
    if contrast is None:
        return plain
    difference, error, freedom = first.mean - second.mean, contrast.compute_error(), contrast.compute_freedom()
    if error == 0:  # both are zero
        return plain
    half, off = t_quantile(INTERVAL_LEVEL, freedom) * error, COVERAGE_FACTOR * contrast.shared
    low, high = difference - half, difference + half
    return replace(
        plain,
        ratio_interval=None if plain.ratio is None else _find_ratio_interval(contrast),
        # A gain error shared by both stretches the difference: its bounds move away from zero or to it, never across.
        difference_interval=(low - off * abs(low), high + off * abs(high)),
        freedom=freedom,
        p=t_tail(difference / error, freedom),
        assumed=contrast.assumed,
    )


def _find_ratio_interval(pair: _Contrast, level: float = INTERVAL_LEVEL) -> tuple[float, float] | None:
    """Return Fieller's interval of the ratio, None if the second mean may be zero: then it has no end."""
    var_a, var_b = pair.var_a / pair.n_a, pair.var_b / pair.n_b + (pair.b * pair.meters) ** 2
    bounds = []
    for side in (-1.0, 1.0):
        bound = pair.a / pair.b
        for _ in range(FIELLER_ROUNDS):
            # Degrees of freedom at the bound itself, so that 1 is inside exactly if p is above the level.
            reach = t_quantile(level, pair.compute_freedom(bound)) ** 2
            lead = pair.b**2 - reach * var_b
            if lead <= 0:
                return None
            root = math.sqrt(reach * (var_a * lead + pair.a**2 * var_b))
            last, bound = bound, (pair.a * pair.b + side * root) / lead
            if abs(bound - last) <= FIELLER_PRECISION * abs(bound):
                break
        bounds.append(bound)
    return max(bounds[0], 0.0), bounds[1]


def _count_repeats(pair: CellPair, contrast: _Contrast, level: float) -> CellPair:
    """Return a pair without significant difference with the number of repeats that would show one.

    `level` is the one that Holm applies to the pairs that are still open.
    """
    difference = abs(contrast.a - contrast.b)
    if difference <= t_quantile(level, math.inf) * abs(contrast.b) * contrast.meters:
        return replace(pair, more_than_100=True, by_meters=contrast.meters > 0)
    low, high = 0, MOST_REPEATS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_settled(contrast, difference, middle, level) else (middle, high)
    return replace(pair, more_than_100=True) if high > MOST_REPEATS else replace(pair, more_repeats=high)


def _is_settled(contrast: _Contrast, difference: float, more: int, level: float) -> bool:
    """Return whether `more` repeats of both show the difference with SETTLING_POWER."""
    freedom = contrast.compute_freedom(more=more)
    reach = t_quantile(level, freedom) + t_quantile(2 * (1 - SETTLING_POWER), freedom)
    return difference >= reach * contrast.compute_error(more=more)
