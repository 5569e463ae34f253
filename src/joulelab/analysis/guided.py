"""Let fast meters beside a slow one say what happened between its readings.

The slow readings S are fitted by a + b F, F being the mean power of the fast ones over the same windows. Energy is
then a T + b E(F) + E(residual): the residual alone is sampled slowly. An error of b matters only as far as the slow
readings sample F badly, and the gain of F not at all.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.power import PowerCurve
from joulelab.analysis.series import Readings, independent
from joulelab.analysis.terms import Quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.analysis.alignment import Cumulative
    from joulelab.analysis.series import Floats, Ints

FEWEST = 8  # readings from which a fit is made
EXPLAINED = 0.8  # share of the slow readings' variance that the fast ones must explain
# Kinds of terms of the fast meters that the fit takes out, since the slow readings set its level.
LEVEL = ("gain", "offset", "unseen", "break")


class GuidedCurve:
    """Answer energies of a slow power channel, guided by `fast`: a cumulative energy and its energy with terms."""

    def __init__(self, slow: PowerCurve, fast: Cumulative, energy: Callable[[int, int], Quantity]) -> None:
        """Fit; raise ValueError where the fast ones do not explain the slow readings."""
        self.slow = slow
        self.readings = slow.readings
        self._fast_energy = energy
        t = slow.seconds(slice(0, len(slow.readings))) + (slow.base_ns - fast.base_ns) * 1e-9 - slow.shift_s
        inside = (t - slow.window_s / 2 >= fast.t[0]) & (t + slow.window_s / 2 <= fast.t[-1])
        if inside.sum() < FEWEST:
            raise ValueError(f"only {inside.sum()} readings beside the fast ones")
        guide = fast.means(t, np.full(t.size, slow.window_s))
        self.offset_w, self.slope, self.slope_u = _fit(guide[inside], slow.readings.value[inside])
        self._guide = self._like(guide)
        self._rest = self._like(slow.readings.value - self.offset_w - self.slope * guide)

    def _like(self, value: Floats) -> PowerCurve:
        r, spec = self.readings, replace(self.slow.spec, limits=None)
        return PowerCurve(Readings(r.t0_ns, r.t1_ns, value), spec, name=self.slow.name, step_s=self.slow.step_s)

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms."""
        span, shared = (b_ns - a_ns) * 1e-9, self.slow.spec.accuracy.shared or self.slow.name
        fast = self._fast_energy(a_ns, b_ns)
        rest = self._rest.energy(a_ns, b_ns, steps_ns=steps_ns).without("gain", "offset", "quantum", "unseen")
        plain = self.slow.energy(a_ns, b_ns, steps_ns=steps_ns)
        between = fast.value - float(self._guide.at(b_ns)[0] - self._guide.at(a_ns)[0])
        value = self.offset_w * span + self.slope * fast.value + rest.value
        terms = {s: u for s, u in plain.terms.items() if s.startswith(("gain:", "offset:", "quantum:", "unseen:"))}
        terms = {s: u * value / plain.value if s.startswith("gain:") and plain.value else u for s, u in terms.items()}
        terms |= rest.terms
        terms[f"guide:{shared}"] = self.slope_u * abs(between)
        for source, u in fast.without(*LEVEL).terms.items():
            terms[source] = terms.get(source, 0.0) + self.slope * u
        return Quantity(value, {s: u for s, u in terms.items() if u}, plain.known)


def _fit(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Return offset (W), slope and its standard uncertainty; raise ValueError where too little is explained."""
    dx, dy = x - x.mean(), y - y.mean()
    xx, yy, xy = float(np.dot(dx, dx)), float(np.dot(dy, dy)), float(np.dot(dx, dy))
    if xx <= 0 or yy <= 0 or xy <= 0 or xy * xy < EXPLAINED * xx * yy:
        raise ValueError("the fast meters do not explain the slow readings")
    slope = xy / xx
    residual = dy - slope * dx
    left, free = float(np.dot(residual, residual)), max(independent(residual) - 2, 1.0)
    return float(y.mean() - slope * x.mean()), slope, math.sqrt(left / free / xx)
