"""Describe the repeats of a cell as a paper does: number, mean, deviation, Student's interval, median, outliers. Pure.

Each cell stands by its own repeats: nothing is pooled. What the meters get wrong in every repeat alike (gain, offset)
is no scatter and is told beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from joulelab.analysis.statistics import FEWEST_TO_MARK, compute_deviation, compute_mean, find_outliers, t_quantile
from joulelab.analysis.study_cells import average_lasting, divide_trials
from joulelab.core.quantity import COVERAGE_FACTOR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.study_cells import Cell

FIGURES = ("energy", "power", "time")
UNITS = {"energy": "J", "power": "W", "time": "s"}
INTERVAL_LEVEL = 0.05  # intervals hold the mean in all but this share of cases


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
