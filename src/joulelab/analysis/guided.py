"""Let fast meters beside a slow one say what happened between its readings.

The slow readings S are fitted by a + b F, F being the mean power of the fast ones over the same windows. Energy is
then a T + b E(F) + E(residual): the residual alone is sampled slowly. An error of b matters only as far as the slow
readings sample F badly, and the gain of F not at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.power import Bounds, PowerCurve
from joulelab.analysis.readings import Readings, count_independent
from joulelab.core.quantity import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from joulelab.analysis.alignment import CumulativeEnergy
    from joulelab.analysis.counter import CounterCurve
    from joulelab.analysis.readings import Floats, Ints

FEWEST_GUIDED = 6  # readings of the workload from which a fit is made
EXPLAINED_SHARE = 0.8  # share of the slow readings' variance that the fast ones must explain
SLOPE_DRIFT = 0.1  # how far the ratio of slow to fast may differ from one moment to the next
# Slow readings represent a load that the fast ones saw if their spread is about the same, and their mean by chance.
FAIR_SPREAD, FAIR_MEAN = (0.6, 1.6), 1.5
LEAST_SAMPLED = 0.2  # share of the true energy that readings at the wrong moments may make of it
FULL_VIEW = 0.95  # share of the time that a meter must see so that no load is in step with its readings
SAMPLE_OFFSETS = 9  # moments within a step at which slow readings may really have been taken
# Kinds of terms of the fast meters that the fit takes out, since the slow readings set its level.
LEVEL_TERMS = ("gain", "offset", "unseen", "in-step")


@dataclass(frozen=True)
class Guide:
    """Hold the fast meters inside a slow one: together over time, and their energy with terms."""

    curve: CumulativeEnergy
    energy: Callable[[int, int], Quantity]

    def means(self, slow: PowerCurve, late_s: float = 0.0) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Return the fast mean power (W) over the window of each slow reading, and where both were read."""
        t = slow.seconds(slice(0, len(slow.readings))) + (slow.base_ns - self.curve.base_ns) * 1e-9 - slow.shift_s
        t = t - late_s
        inside = (t - slow.window_s / 2 >= self.curve.t[0]) & (t + slow.window_s / 2 <= self.curve.t[-1])
        return self.curve.means(t, np.full(t.size, slow.window_s)), inside

    def sampled(self, slow: PowerCurve, late_s: float = 0.0) -> PowerCurve:
        """Return what the fast ones would be by readings at the slow ones' times."""
        return _like(slow, self.means(slow, late_s)[0])

    def is_represented(self, slow: PowerCurve, a_ns: int, b_ns: int) -> bool:
        """Return whether the slow readings of [a, b] are a fair sample of what the fast ones saw then."""
        values, inside = self.means(slow)
        during = inside & (slow.readings.t0_ns >= a_ns) & (slow.readings.t0_ns <= b_ns)
        count = int(during.sum())
        if count < FEWEST_GUIDED:
            return False
        base = self.curve.base_ns
        t = np.arange((a_ns - base) * 1e-9, (b_ns - base) * 1e-9, max(self.curve.step_s, (b_ns - a_ns) * 1e-9 / 20_000))
        dense = self.curve.means(t, np.full(t.size, slow.window_s))
        spread = float(dense.std())
        if spread <= 1e-3 * abs(float(dense.mean())):
            return True
        low, high = FAIR_SPREAD
        off = abs(float(values[during].mean() - dense.mean()))
        return low <= float(values[during].std()) / spread <= high and off <= FAIR_MEAN * spread / math.sqrt(count)


class GuidedCurve:
    """Answer energies of a slow power channel, guided by the fast ones inside it; fitted for the workload in [a, b]."""

    def __init__(self, slow: PowerCurve, guide: Guide, a_ns: int, b_ns: int) -> None:
        """Fit; raise ValueError where the fast ones do not explain the slow readings, or these sample them unfairly."""
        self.slow = slow
        self.readings = slow.readings
        self.guide = guide
        values, inside = guide.means(slow)
        if inside.sum() < FEWEST_GUIDED:
            raise ValueError(f"only {inside.sum()} readings beside the fast ones")
        # Windows that follow each other without a pause see all there is; others may be in step with the load.
        if slow.window_s < FULL_VIEW * slow.step_s and not guide.is_represented(slow, a_ns, b_ns):
            raise ValueError("the slow readings are no fair sample of what the fast ones saw")
        self.offset_w, self.slope, slope_u = _fit(values[inside], slow.readings.value[inside])
        self.slope_u = math.hypot(slope_u, SLOPE_DRIFT * self.slope)
        self.rest = _like(slow, slow.readings.value - self.offset_w - self.slope * values)
        self._sampled = _like(slow, values)

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms."""
        span, shared = (b_ns - a_ns) * 1e-9, self.slow.spec.accuracy.shared or self.slow.name
        fast = self.guide.energy(a_ns, b_ns)
        rest = self.rest.energy(a_ns, b_ns, steps_ns=steps_ns).without(*LEVEL_TERMS, "quantum")
        plain = self.slow.energy(a_ns, b_ns, steps_ns=steps_ns)
        value = self.offset_w * span + self.slope * fast.value + rest.value
        level = tuple(f"{kind}:" for kind in (*LEVEL_TERMS, "quantum"))
        terms = {s: u for s, u in plain.terms.items() if s.startswith(level)}
        terms = {s: u * value / plain.value if s.startswith("gain:") and plain.value else u for s, u in terms.items()}
        terms |= rest.terms
        terms[f"guide:{shared}"] = self.slope_u * abs(fast.value - _rise(self._sampled, a_ns, b_ns))
        for source, u in fast.without(*LEVEL_TERMS).terms.items():
            terms[source] = terms.get(source, 0.0) + self.slope * u
        return Quantity(value, {s: u for s, u in terms.items() if u}, plain.known, plain.bounds)


class WatchedCurve:
    """Answer energies of a slow power channel as they are, with what the fast ones show that its readings miss.

    It is not guided: a load in step with the readings, or an unknown lag, would make a fit wrong and sure of itself.
    """

    def __init__(self, slow: PowerCurve, guide: Guide) -> None:
        self.slow = slow
        self.readings = slow.readings
        self._guide = guide

    @cached_property
    def _sampled(self) -> list[PowerCurve]:
        reach = self.slow.step_s / 2
        return [self._guide.sampled(self.slow, float(late)) for late in np.linspace(-reach, reach, SAMPLE_OFFSETS)]

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms."""
        plain, fast = self.slow.energy(a_ns, b_ns, steps_ns=steps_ns), self._guide.energy(a_ns, b_ns)
        bound = 0.0
        for other in self._sampled if fast.value > 0 else ():
            missed = fast.value - _rise(other, a_ns, b_ns)
            # What such readings make of the fast ones' energy, these may make of their own: in proportion.
            sampled = max(fast.value - missed, LEAST_SAMPLED * fast.value)
            bound = max(bound, abs(plain.value * missed / sampled))
        terms = {**plain.terms, f"alias:{self.slow.name}": bound / math.sqrt(3)}
        return replace(plain, terms={s: u for s, u in terms.items() if u})


class DoubtedCurve:
    """Answer energies of a meter that does not follow the load inside it: as it reads, without an interval."""

    def __init__(self, curve: PowerCurve | CounterCurve) -> None:
        self.plain = curve
        self.readings = curve.readings

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J; its accuracy is not known."""
        found = self.plain.energy(a_ns, b_ns, steps_ns=steps_ns)
        return replace(found, known=False)


def _rise(curve: PowerCurve, a_ns: int, b_ns: int) -> float:
    return float(curve.at(b_ns)[0] - curve.at(a_ns)[0])


def _like(slow: PowerCurve, value: Floats) -> PowerCurve:
    """Return a curve of other values at the times of the slow readings."""
    r, spec = slow.readings, replace(slow.spec, limits=None)
    bounds = Bounds(float(value.min()), float(value.max()))
    return PowerCurve(Readings(r.t0_ns, r.t1_ns, value), spec, name=slow.name, bounds=bounds, step_s=slow.step_s)


def _fit(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Return offset (W), slope and its standard uncertainty; raise ValueError where too little is explained."""
    dx, dy = x - x.mean(), y - y.mean()
    xx, yy, xy = float(np.dot(dx, dx)), float(np.dot(dy, dy)), float(np.dot(dx, dy))
    if xx <= 0 or yy <= 0 or xy <= 0 or xy * xy < EXPLAINED_SHARE * xx * yy:
        raise ValueError("the fast meters do not explain the slow readings")
    slope = xy / xx
    residual = dy - slope * dx
    left, free = float(np.dot(residual, residual)), max(count_independent(residual) - 2, 1.0)
    return float(y.mean() - slope * x.mean()), slope, math.sqrt(left / free / xx)
