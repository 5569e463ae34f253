"""Integrate power readings into one cumulative curve with its variance.

A reading at poll time t is the mean over `window_s` before the instrument's last update, which lies up to `update_s`
back. So the curve is shifted by half of both, and what happened between the windows was not seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.periodic import repeat_period_s, unseen_share
from joulelab.analysis.terms import Quantity

if TYPE_CHECKING:
    from joulelab.analysis.series import Floats, Ints, Readings
    from joulelab.core.spec import Spec

BLOCK = 4096
GAP_FACTOR = 3.0  # a pause of more than three usual steps is a gap
BEYOND_MEANS = 0.25  # share of the range of means by which true powers may lie beyond them
RIPPLE = 0.1  # share of the power by which it may vary inside a tick without showing in the means
NEAR = 3  # readings on each side whose powers bound what happened at an edge


@dataclass(frozen=True)
class Bounds:
    """Bound any true power of a scope in watts: nothing below `low`, nothing above `high`."""

    low: float
    high: float

    def widened(self, low: float, high: float) -> tuple[float, float]:
        """Widen a range of means on each side: what was averaged went further; the bounds stay."""
        room = max((high - low) * BEYOND_MEANS, (high + low) / 2 * RIPPLE)
        return max(low - room, min(low, self.low)), min(high + room, max(high, self.high))


class PowerCurve:
    """Answer C(t), and the energy of any interval as C(b) - C(a), for one power channel."""

    def __init__(self, readings: Readings, spec: Spec, *, name: str, bounds: Bounds | None = None) -> None:
        self.readings = readings
        self.spec = spec
        self.name = name
        self.base_ns = int(readings.t0_ns[0]) if len(readings) else 0
        self.step_s = self._usual_step()
        self.update_s = spec.update_s if spec.update_s is not None else self.step_s
        self.window_s = spec.window_s or 0.0
        self.shift_s = self.update_s / 2 + self.window_s / 2
        self.bounds = bounds if bounds is not None else self._default_bounds()
        self._energy, self._jumps, self._gaps = self._prefixes()
        self.period_s = repeat_period_s(readings.value, self.step_s)

    def _usual_step(self) -> float:
        t = self.readings.t0_ns
        if t.size < 2:
            return self.spec.update_s or 1.0
        sample = t[: min(t.size, 100_001)]
        steps = np.diff(sample) * 1e-9
        # Edges are polled quickly on purpose; the usual step is that of most of the time, not of most readings.
        order = np.argsort(steps)
        weight = np.cumsum(steps[order])
        return float(steps[order][np.searchsorted(weight, weight[-1] / 2)])

    def _default_bounds(self) -> Bounds:
        value = self.readings.value
        seen_low, seen_high = (float(value.min()), float(value.max())) if value.size else (0.0, 0.0)
        low, high = self.spec.limits or (seen_low, seen_high)
        return Bounds(min(low, seen_low), max(high, seen_high))

    def seconds(self, sel: slice) -> Floats:
        """Return mid-read times of a slice, in seconds from the base."""
        r = self.readings
        doubled: Floats = ((r.t0_ns[sel] - self.base_ns) + (r.t1_ns[sel] - self.base_ns)).astype(np.float64)
        doubled *= 0.5e-9
        return doubled

    def _prefixes(self) -> tuple[Floats, Floats, Floats]:
        """Sum energy, squared jumps and gap variance by block, so that C(t) needs one block only."""
        n = len(self.readings)
        starts = range(0, max(n - 1, 0), BLOCK)
        sums = np.zeros((3, len(starts) + 1))
        for k, i in enumerate(starts):
            sums[:, k + 1] = self._block(slice(i, min(i + BLOCK, n - 1) + 1))
        reached: Floats = sums.cumsum(axis=1)
        return reached[0], reached[1], reached[2]

    def _block(self, sel: slice) -> tuple[float, float, float]:
        """Return energy (J), jump variance (J2) and gap variance (J2) over the readings of a slice."""
        if sel.stop - sel.start < 2:
            return 0.0, 0.0, 0.0
        t, p = self.seconds(sel), self.readings.value[sel]
        step, jump = np.diff(t), np.diff(p)
        energy = float(np.dot(step, p[1:] + p[:-1])) / 2
        usual = np.minimum(step, GAP_FACTOR * self.step_s)
        hidden = np.maximum(np.maximum(usual, self.update_s) - self.window_s, 0.2 * np.minimum(usual, self.update_s))
        jumps = float(np.sum((hidden * jump) ** 2)) * self._jump_factor(jump)
        gaps = 0.0
        if (step > GAP_FACTOR * self.step_s).any():
            spread = float(np.percentile(p, 95) - np.percentile(p, 5))
            long = step[step > GAP_FACTOR * self.step_s]
            gaps = float(np.sum((long * spread) ** 2)) / 12
        return energy, jumps, gaps

    @staticmethod
    def _jump_factor(jump: Floats) -> float:
        """Return 1/12 for loads that step and stay, up to 1/2 for readings that scatter without memory."""
        if jump.size < 3:
            return 0.5
        square = float(np.dot(jump, jump))
        if square == 0.0:
            return 1 / 12
        memory = float(np.dot(jump[1:], jump[:-1])) / square
        return 1 / 12 + 5 / 12 * min(1.0, max(0.0, -2 * memory))

    def at(self, t_ns: int) -> tuple[float, float, float]:
        """Return C(t) in J and the variances of jumps and gaps up to there, extrapolated where nothing was read."""
        n = len(self.readings)
        s = (t_ns - self.base_ns) * 1e-9 + self.shift_s
        i = int(np.searchsorted(self.readings.t0_ns, t_ns + int(self.shift_s * 1e9), side="right")) - 1
        if i < 0:
            first = float(self.seconds(slice(0, 1))[0])
            return (s - first) * float(self.readings.value[0]), 0.0, 0.0
        block = min(i // BLOCK, len(self._energy) - 1)
        energy, jumps, gaps = self._block(slice(block * BLOCK, i + 1))
        energy += self._energy[block]
        jumps += self._jumps[block]
        gaps += self._gaps[block]
        here = float(self.seconds(slice(i, i + 1))[0])
        p = float(self.readings.value[i])
        if i + 1 < n:
            there = float(self.seconds(slice(i + 1, i + 2))[0])
            share = (s - here) / max(there - here, 1e-12)
            p += (float(self.readings.value[i + 1]) - p) * share / 2
        return energy + (s - here) * p, jumps, gaps

    def near(self, t_ns: int) -> tuple[float, float, float]:
        """Return lowest and highest power seen near t, and the local step in s; idle counts where a side is unread."""
        reach = self.update_s + self.window_s + self.step_s
        at = t_ns + int(self.shift_s * 1e9)
        r = self.readings
        sel = r.between(at - int(reach * 1e9), at + int(reach * 1e9))
        wide = r.around(at, NEAR, NEAR)
        sel = slice(min(sel.start, wide.start), max(sel.stop, wide.stop))
        values = r.value[sel]
        if values.size == 0:
            return self.bounds.low, self.bounds.high, self.step_s
        low, high = float(values.min()), float(values.max())
        inside = int(np.searchsorted(r.t0_ns, at, side="right"))
        step = self.step_s
        if inside in (0, len(r)):
            low = min(low, self.bounds.low)
            edge = r.t0_ns[0] if inside == 0 else r.t1_ns[-1]
            step = max(step, 2 * abs(int(edge) - at) * 1e-9)
        else:
            step = max(step, float(r.t0_ns[inside] - r.t0_ns[inside - 1]) * 1e-9)
        return low, high, step

    def edge_u(self, t_ns: int) -> float:
        """Return the standard uncertainty (J) of where the load changed around t."""
        low, high, step = self.near(t_ns)
        low, high = self.bounds.widened(low, high)
        return (high - low) * (self.update_s / 2 + step / 2 + self.window_s / 4) / math.sqrt(3)

    def _lag_u(self, t_ns: int) -> float:
        """Return what an unknown age of the readings is worth at t (J): the same age at both edges, so it subtracts."""
        i = int(np.searchsorted(self.readings.t0_ns, t_ns + int(self.shift_s * 1e9)))
        return float(self.readings.value[min(i, len(self.readings) - 1)]) * self.update_s / 2 / math.sqrt(3)

    def jump_u(self, a_ns: int, b_ns: int, *, between: tuple[float, float] | None = None) -> float:
        """Return the interior standard uncertainty (J): unseen jumps, repeats added linearly, and gaps."""
        ja, jb = between if between is not None else (self.at(a_ns)[1], self.at(b_ns)[1])
        repeats = max(1.0, (b_ns - a_ns) * 1e-9 / self.period_s) if self.period_s else 1.0
        return math.sqrt(max(jb - ja, 0.0) * repeats)

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms; `steps_ns` are times of work done (see `periodic`)."""
        ca, ja, ga = self.at(a_ns)
        cb, jb, gb = self.at(b_ns)
        value = cb - ca
        span = (b_ns - a_ns) * 1e-9
        accuracy = self.spec.accuracy
        terms = {
            f"gain:{accuracy.shared or self.name}": value * accuracy.gain / math.sqrt(3),
            f"offset:{accuracy.shared or self.name}": span * accuracy.offset / math.sqrt(3),
            f"edge:{self.name}:{a_ns}": -self.edge_u(a_ns),
            f"edge:{self.name}:{b_ns}": self.edge_u(b_ns),
            f"lag:{self.name}": self._lag_u(b_ns) - self._lag_u(a_ns),
            f"sampling:{self.name}:{a_ns}": self.jump_u(a_ns, b_ns, between=(ja, jb)),
            f"gap:{self.name}:{a_ns}": math.sqrt(max(gb - ga, 0.0)),
            f"quantum:{self.name}:{a_ns}": self._quantum_u(a_ns, b_ns, span),
            "unseen": unseen_u(value, span, self.hidden_share(steps_ns), self.bounds),
        }
        return Quantity(value, {s: u for s, u in terms.items() if u}, accuracy.source != "unknown")

    def hidden_share(self, steps_ns: Ints | None = None) -> float:
        """Return the share of a load's cycle that no reading may have seen, 0 where the sensor sees all the time."""
        grid = max(self.update_s, self.step_s)
        seen = min(1.0, self.window_s / grid) if grid else 1.0
        return unseen_share(seen, grid, steps_ns)

    def _quantum_u(self, a_ns: int, b_ns: int, span: float) -> float:
        quantum = self.spec.accuracy.quantum
        if not quantum:
            return 0.0
        sel = self.readings.between(a_ns, b_ns)
        count = max(sel.stop - sel.start, 1)
        part = self.readings.value[sel]
        one_code = part.size < 2 or float(np.ptp(part[: 10 * BLOCK])) < quantum / 2
        return span * quantum / math.sqrt(12) / (1.0 if one_code else math.sqrt(count))


def unseen_u(energy_j: float, span_s: float, share: float, bounds: Bounds) -> float:
    """Return the standard uncertainty (J) of the hidden share, in which power may have been anything within bounds."""
    if share <= 0 or span_s <= 0:
        return 0.0
    mean = energy_j / span_s
    return share * span_s * max(mean - bounds.low, bounds.high - mean, 0.0) / math.sqrt(3)
