"""Read between the readings of a counter whose count is so much energy that it rests for several of its updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.analysis.power import Bounds
    from joulelab.analysis.readings import Floats, Readings
    from joulelab.core.spec import Spec

RATE_COUNTS = 8  # so many counts, or readings, before and after an edge tell the power there
STEADY_SHARE = 0.05  # a power that changes by no more than 5 % lasts


@dataclass(frozen=True)
class CoarseCounter:
    """Hold a coarse counter: its readings, their values (J) with wraps undone, and the powers (W) that bound it."""

    readings: Readings
    spec: Spec
    bounds: Bounds
    unwrapped: Callable[[slice], Floats]
    highest_w: float

    def at(self, t_ns: int) -> tuple[float, float]:
        """Return C(t) of a coarse counter: anything from what it shows to one count more, as old as its update.

        Between two readings power lies between that before them and that after, unless their rise says otherwise; where
        one of those was not read, it may have been as low as it ever is.
        """
        r, quantum, tick = self.readings, self.spec.accuracy.quantum, self.spec.update_s or 0.0
        k = max(int(np.searchsorted(r.t1_ns, t_ns, side="right")) - 1, 0)
        late = (t_ns - self._middle_ns(k)) * 1e-9 + tick / 2
        both = self._rate(k, -1), self._rate(min(k + 1, len(r) - 1), 1)
        known = [rate for rate in both if rate is not None]
        low, high = self.bounds.low, self.bounds.high
        if known and all(steady for _, _, steady in known):
            high = min(max(w * (1 + STEADY_SHARE) + blur for w, blur, _ in known), high)
            if len(known) > 1:
                low = max(min(w * (1 - STEADY_SHARE) - blur for w, blur, _ in known), low)
        if late >= 0 and k + 1 < len(r):
            value, unsure = self._on_the_way(k, late, (low, high), [w for w, _, _ in known])
        else:
            high = min(high, self.highest_w)
            value, unsure = late * (low + high) / 2, abs(late) * (high - low)
        # So that the interval of two edges reaches just as far as they can be off: by one count, and by these powers.
        u = math.hypot(quantum, unsure + min(high, self.highest_w) * tick) / math.sqrt(8)
        return float(self.unwrapped(slice(k, k + 1))[0]) + quantum / 2 + value, u

    def _middle_ns(self, k: int) -> float:
        return (int(self.readings.t0_ns[k]) + int(self.readings.t1_ns[k])) / 2

    def _rate(self, k: int, step: int) -> tuple[float, float, bool] | None:
        """Return the power (W) before or after a reading of a coarse counter, how far it may be off, and if it lasts.

        None where nothing was read on that side.
        """
        first = self._rise(k, step)
        if first is None:
            return None
        (watts, blur), then = first[:2], self._rise(first[2], step)
        lasts = then is None or abs(then[0] - watts) <= blur + then[1] + STEADY_SHARE * watts
        return watts, blur, lasts

    def _rise(self, k: int, step: int) -> tuple[float, float, int] | None:
        """Return power (W) and its bound from reading k on until several counts have passed, and where that is."""
        last = min(max(k + RATE_COUNTS * step, 0), len(self.readings) - 1)
        if last == k:
            return None
        quantum, found = self.spec.accuracy.quantum, (0.0, 0.0, k)
        values = self.unwrapped(slice(min(k, last), max(k, last) + 1))[::step]
        for n in range(1, values.size):
            rise = abs(float(values[n] - values[0]))
            span = abs(self._middle_ns(k + n * step) - self._middle_ns(k)) * 1e-9
            found = rise / span, quantum / span, k + n * step
            if rise >= RATE_COUNTS * quantum:
                break
        return found

    def _on_the_way(self, k: int, late: float, powers: tuple[float, float], rates: list[float]) -> tuple[float, float]:
        """Return the energy (J) since reading k, and the width of what it may be, from this and the next reading."""
        quantum, (low, high), tick = self.spec.accuracy.quantum, powers, self.spec.update_s or 0.0
        span = (self._middle_ns(k + 1) - self._middle_ns(k)) * 1e-9
        here, there = self.unwrapped(slice(k, k + 2))
        rise, rest = float(there - here), max(span - late, 0.0)
        if not low * span - quantum <= rise <= high * span + quantum:
            low, high, rates = self.bounds.low, self.bounds.high, []  # something short, which may have gone anywhere
        floor = max(low * late, rise - quantum - high * rest) if rest else rise - quantum
        ceiling = max(min(high * late, rise + quantum - low * rest) if late > tick / 2 else 0.0, floor)
        guess = (floor + ceiling) / 2
        if len(rates) > 1 and min(rates) < rise / span < max(rates):
            turn = span * (rise / span - rates[1]) / (rates[0] - rates[1])
            guess = rates[0] * min(late, turn) + rates[1] * max(late - turn, 0.0)
        value = min(max(guess, floor), ceiling)
        return value, 2 * max(ceiling - value, value - floor)
