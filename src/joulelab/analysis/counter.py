"""Subtract an energy counter: unwrap it, find when it stepped, and bound what lies between a step and an edge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.periodic import unseen_share
from joulelab.analysis.power import Bounds, PowerCurve, unseen_u
from joulelab.analysis.terms import Quantity

if TYPE_CHECKING:
    from joulelab.analysis.series import Floats, Ints, Readings
    from joulelab.core.spec import Spec

TICK_DRIFT = 0.02  # an instrument keeps its own step within 2 %
CLEAN = 0.15  # a step known to within 15 % of its period gives a usable power of its own


@dataclass(frozen=True)
class Knots:
    """Hold the steps of a counter near an edge: time (s from base), half-width (s) and energy (J) at each."""

    t: Floats
    half: Floats
    energy: Floats

    def slope(self, i: int, j: int) -> float | None:
        """Return the mean power between two knots in W, None where they are not both there."""
        if i < 0 or j >= self.t.size or j <= i or self.t[j] <= self.t[i]:
            return None
        return float((self.energy[j] - self.energy[i]) / (self.t[j] - self.t[i]))


class CounterCurve:
    """Answer C(t), and the energy of any interval as C(b) - C(a), for one energy counter.

    `power` is a power channel of the same device: it tells what happened inside a tick and what a sensor that sees
    only part of the time may have missed.
    """

    def __init__(
        self,
        readings: Readings,
        spec: Spec,
        *,
        name: str,
        power: PowerCurve | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.readings = readings
        self.spec = spec
        self.name = name
        self.power = power
        self.base_ns = int(readings.t0_ns[0]) if len(readings) else 0
        self.bounds = bounds or (power.bounds if power else Bounds(*(spec.limits or (0.0, math.inf))))
        self.resets: list[tuple[int, int]] = []
        self.doubtful_wraps = 0
        self._fall_at, self._fall_add, self._fall_var = self._falls()

    def _falls(self) -> tuple[Ints, Floats, Floats]:
        """Find wraps and resets; return the reading after each, and what to add from there (J, J2)."""
        value = self.readings.value
        after = np.flatnonzero(value[1:] < value[:-1]) + 1
        add, var = np.zeros(after.size), np.zeros(after.size)
        for k, i in enumerate(after):
            add[k], var[k] = self._wrap(int(i)) if self.spec.modulus else self._reset(int(i))
        return after, np.cumsum(add), np.cumsum(var)

    def _wrap(self, i: int) -> tuple[float, float]:
        """Return joules to add for a wrap before reading i; more than one where a gap was long enough for it."""
        modulus = float(self.spec.modulus or 0.0)
        value, span = self.readings.value, self._span(i)
        rise = float(value[i] - value[i - 1]) + modulus
        high = self.bounds.high if math.isfinite(self.bounds.high) else 4 * self._usual_power()
        if high * span < modulus:
            return modulus, 0.0
        more = max(0, round((self._usual_power() * span - rise) / modulus))
        self.doubtful_wraps += 1
        return modulus * (1 + more), modulus**2 / 3

    def _reset(self, i: int) -> tuple[float, float]:
        """Return joules to add for a reset: what was counted before, and the usual power over the pause."""
        value, span = self.readings.value, self._span(i)
        self.resets.append((int(self.readings.t0_ns[i - 1]), int(self.readings.t1_ns[i])))
        usual = self._usual_power() * span
        return float(value[i - 1] - value[i]) + usual, usual**2 / 3

    def _span(self, i: int) -> float:
        return float(self.readings.t1_ns[i] - self.readings.t0_ns[i - 1]) * 1e-9

    def _usual_power(self) -> float:
        """Return the mean power (W) over the rises, leaving falls out."""
        value = self.readings.value[:100_000]
        rise = np.diff(value)
        step = np.diff(self.readings.t0_ns[: value.size]) * 1e-9
        up = rise >= 0
        time = float(step[up].sum())
        return float(rise[up].sum()) / time if time > 0 else 0.0

    def _unwrapped(self, sel: slice) -> Floats:
        value = self.readings.value[sel]
        if self._fall_at.size == 0:
            return value
        k = np.searchsorted(self._fall_at, np.arange(sel.start, sel.start + value.size), side="right")
        return value + np.concatenate(([0.0], self._fall_add))[k]

    def knots(self, t_ns: int) -> Knots:
        """Return the counter's steps around t, refined by the instrument's own period where one of them is sharp."""
        r = self.readings
        tick = self.spec.update_s or 0.0
        reach = max(5 * tick, 0.5)
        near, wide = r.between(t_ns - int(reach * 1e9), t_ns + int(reach * 1e9)), r.around(t_ns, 4, 4)
        sel = slice(min(near.start, wide.start), max(near.stop, wide.stop))
        before = (r.t0_ns[sel] - self.base_ns) * 1e-9
        after = (r.t1_ns[sel] - self.base_ns) * 1e-9
        energy = self._unwrapped(sel)
        last = np.concatenate(([-np.inf], before[:-1]))
        low = np.maximum(last, before - tick) if self.spec.update_s is not None else np.maximum(last, before)
        keep = np.concatenate(([True], energy[1:] > energy[:-1]))
        low, high, energy = low[keep], after[keep], energy[keep]
        return _refined((low + high) / 2, (high - low) / 2, energy, tick)

    def at(self, t_ns: int) -> tuple[float, float]:
        """Return C(t) in J and its standard uncertainty from the edge alone."""
        knots = self.knots(t_ns)
        s = (t_ns - self.base_ns) * 1e-9
        k = int(np.searchsorted(knots.t, s, side="right")) - 1
        quantum = self.spec.accuracy.quantum / math.sqrt(12)
        if k < 0 or k + 1 >= knots.t.size:
            value, u = self._outside(knots, s, t_ns, after=k >= 0)
        else:
            value, u = self._inside(knots, s, k, t_ns)
        return value, math.hypot(u, quantum)

    def _outside(self, knots: Knots, s: float, t_ns: int, *, after: bool) -> tuple[float, float]:
        """Extrapolate where no step was seen beyond the edge: from idle to the power near it."""
        i = knots.t.size - 1 if after else 0
        low, high = self._near(t_ns, knots, i)
        if not after or t_ns > int(self.readings.t1_ns[-1]):
            low = min(low, self.bounds.low)
        span = s - float(knots.t[i])
        value = float(knots.energy[i]) + span * (low + high) / 2
        u = abs(span) * (high - low) / math.sqrt(12)
        return value, math.hypot(u, (low + high) / 2 * float(knots.half[i]) / math.sqrt(3))

    def _inside(self, knots: Knots, s: float, k: int, t_ns: int) -> tuple[float, float]:
        """Interpolate within a tick: what the steps on both sides and the powers seen near them allow."""
        span = float(knots.t[k + 1] - knots.t[k])
        x, mean = s - float(knots.t[k]), float(knots.energy[k + 1] - knots.energy[k]) / span
        sharp = float(knots.half[k : k + 2].max()) < CLEAN * span
        low, high = self._near(t_ns, knots, k)
        if sharp:
            low, high = min(low, mean), max(high, mean)
        floor, ceiling = _allowed(knots, k, x, span, low, high)
        if floor > ceiling:  # the powers seen do not explain the rise, so something went unseen
            floor, ceiling = _allowed(knots, k, x, span, min(low, mean), max(high, mean))
            floor, ceiling = min(floor, ceiling), max(floor, ceiling)
        guess = float(knots.energy[k]) + self._shape(knots, k, x, span, mean) if sharp else (floor + ceiling) / 2
        return min(max(guess, floor), ceiling), (ceiling - floor) / math.sqrt(12)

    @staticmethod
    def _shape(knots: Knots, k: int, x: float, span: float, mean: float) -> float:
        """Return the energy x seconds into a tick: one step from the power before to the power after, else linear."""
        before, after = knots.slope(k - 1, k), knots.slope(k + 1, k + 2)
        sharp = float(knots.half[max(k - 1, 0) : k + 3].max()) < CLEAN * span
        if not sharp or before is None or after is None or not min(before, after) < mean < max(before, after):
            return mean * x
        turn = span * (mean - after) / (before - after)
        return before * min(x, turn) + after * max(x - turn, 0.0)

    def _near(self, t_ns: int, knots: Knots, k: int) -> tuple[float, float]:
        """Return lowest and highest power (W) seen near an edge: by the power channel, and by sharp ticks."""
        seen: list[float] = []
        for i in range(max(k - 4, 0), min(k + 5, knots.t.size - 1)):
            slope = knots.slope(i, i + 1)
            sharp = max(knots.half[i], knots.half[i + 1]) < CLEAN * (knots.t[i + 1] - knots.t[i])
            if slope is not None and sharp:
                seen.append(slope)
        whole = knots.slope(0, knots.t.size - 1)
        if whole is not None:
            seen.append(whole)
        if self.power is not None and len(self.power.readings):
            seen.extend(self.power.near(t_ns)[:2])
        if not seen:
            high = self.bounds.high if math.isfinite(self.bounds.high) else self._usual_power()
            return self.bounds.low, high
        return self.bounds.widened(min(seen), max(seen))

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms; `steps_ns` are times of work done (see `periodic`)."""
        ca, ua = self.at(a_ns)
        cb, ub = self.at(b_ns)
        value, span = cb - ca, (b_ns - a_ns) * 1e-9
        accuracy = self.spec.accuracy
        terms = {
            f"gain:{accuracy.shared or self.name}": value * accuracy.gain / math.sqrt(3),
            f"edge:{self.name}:{a_ns}": -ua,
            f"edge:{self.name}:{b_ns}": ub,
            f"break:{self.name}:{a_ns}": math.sqrt(max(self._break_var(b_ns) - self._break_var(a_ns), 0.0)),
        }
        if self.spec.seen < 1:
            grid = self.power.update_s if self.power else self.spec.update_s or 0.1
            share = unseen_share(self.spec.seen, grid, steps_ns)
            terms["unseen"] = unseen_u(value, span, share, self.bounds)
            if self.power is not None and len(self.power.readings):
                terms[f"sampling:{self.name}:{a_ns}"] = self.power.jump_u(a_ns, b_ns)
        return Quantity(value, {s: u for s, u in terms.items() if u}, accuracy.source != "unknown")

    def _break_var(self, t_ns: int) -> float:
        """Return the variance (J2) of resets and doubtful wraps up to t."""
        if self._fall_at.size == 0:
            return 0.0
        k = int(np.searchsorted(self.readings.t0_ns[self._fall_at], t_ns, side="right"))
        return float(self._fall_var[k - 1]) if k else 0.0


def _allowed(knots: Knots, k: int, x: float, span: float, low: float, high: float) -> tuple[float, float]:
    """Return the range of C (J) x seconds after knot k, reached from either side at powers between low and high (W)."""
    blur, blur_after = high * float(knots.half[k]), high * float(knots.half[k + 1])
    here, there, rest = float(knots.energy[k]), float(knots.energy[k + 1]), span - x
    floor = max(here + low * x - blur, there - high * rest - blur_after)
    ceiling = min(here + high * x + blur, there - low * rest + blur_after)
    return floor, ceiling


def _refined(t: Floats, half: Floats, energy: Floats, tick: float) -> Knots:
    """Move blurred knots onto the grid of the sharpest one where that is consistent with what was seen of them."""
    if tick <= 0 or t.size < 2:
        return Knots(t, half, energy)
    best = int(np.argmin(half))
    count = np.round((t - t[best]) / tick)
    guess = t[best] + count * tick
    width = half[best] + np.abs(count) * TICK_DRIFT * tick
    off = np.abs(guess - t)
    only = tick - off > half + width  # the next grid point lies outside of what was seen, so there is no other choice
    fits = (off <= half + width) & only & (width < half)
    t, half = np.where(fits, guess, t), np.where(fits, width, half)
    if (np.diff(t) <= 0).any():
        order = np.maximum.accumulate(t)
        return Knots(order, half, energy)
    return Knots(t, half, energy)
