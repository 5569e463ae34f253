"""Integrate power readings into one cumulative curve with its variance.

A reading at poll time t is the mean over `window_s` before the instrument's last update, which lies up to `update_s`
before t. So the curve is shifted by half of both. Power between the windows is not measured.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.readings import find_usual_step
from joulelab.analysis.unseen import (
    BEYOND_MEANS,
    REPEAT_READINGS,
    RIPPLE,
    PowerBounds,
    bound_unseen,
    find_repeat_period,
    find_unseen_share,
    is_in_step,
    place_unseen,
    select_steps,
)
from joulelab.core.quantity import Quantity, make_edge_terms

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats, Ints, Readings
    from joulelab.core.spec import Spec

SUM_BLOCK = 4096  # readings per stored prefix sum
GAP_STEPS = 3.0  # a pause longer than this many usual steps (of reading and of the instrument) is a gap
GAP_LIKE_REST = 0.25  # share of a record up to which gaps are taken to be like the rest
GAP_UNKNOWN = 0.5  # share of a record from which anything within the bounds may have happened in gaps
FEW_READINGS = 10  # readings that may be too few to show rare changes of the load
# Factor by which few readings of a time span may understate how the load varies: Student's t at 95 %, over 2.
FEW_READINGS_FACTOR = {2: 6.4, 3: 2.15, 4: 1.59, 5: 1.39, 6: 1.29, 7: 1.22, 8: 1.18, 9: 1.15, 10: 1.13}
EDGE_READINGS = 3  # readings on each side whose powers bound the power at an edge


class PowerCurve:
    """Compute C(t), and the energy of any time span as C(b) - C(a), for one power channel.

    `step_s` is the requested time between readings; by default it is found from the readings. `lag_u_s` is the standard
    uncertainty of the lag of the stamps, if the lag was found. Raises ValueError without readings.
    """

    def __init__(
        self,
        readings: Readings,
        spec: Spec,
        *,
        name: str,
        bounds: PowerBounds | None = None,
        step_s: float | None = None,
        lag_u_s: float | None = None,
    ) -> None:
        if not len(readings):
            raise ValueError(f"{name}: no readings")
        self.readings = readings
        self.spec = spec
        self.name = name
        self.lag_u_s = spec.lag_s / math.sqrt(12) if lag_u_s is None else lag_u_s
        self.source = name_error_source(spec, name)
        self.base_ns = int(readings.t0_ns[0])
        self.step_s = step_s or self._find_step()
        self.update_s = spec.update_s if spec.update_s is not None else self.step_s
        self.window_s = spec.window_s or 0.0
        self.shift_s = (self.update_s + self.window_s + spec.lag_s) / 2
        self.bounded = bounds is not None or spec.limits is not None
        self.aligned = lag_u_s is not None
        self.bounds = bounds if bounds is not None else self._default_bounds()
        self._prefix = self._sum_blocks()
        self._found: dict[int, Floats] = {}
        self._edges: dict[int, float] = {}
        self.period_s = self._find_period()

    def shift_back(self, lag_s: float, lag_u_s: float) -> PowerCurve:
        """Return the curve with stamps moved back by a lag whose standard uncertainty is known."""
        readings, bounds = self.readings.shift_back(lag_s), self.bounds
        return PowerCurve(readings, self.spec, name=self.name, bounds=bounds, step_s=self.step_s, lag_u_s=lag_u_s)

    def _find_step(self) -> float:
        steps = np.diff(self.readings.t0_ns[:100_001]) * 1e-9
        return find_usual_step(steps) if steps.size else self.spec.update_s or 1.0

    def _default_bounds(self) -> PowerBounds:
        seen_low, seen_high = float(self.readings.value.min()), float(self.readings.value.max())
        low, high = self.spec.limits or (seen_low, seen_high)
        return PowerBounds(min(low, seen_low), max(high, seen_high))

    def _find_period(self) -> float | None:
        middle = len(self.readings) // 2
        sel = slice(max(middle - REPEAT_READINGS // 2, 0), middle + REPEAT_READINGS // 2)
        return find_repeat_period(self.find_seconds(sel), self.readings.value[sel], self.step_s)

    @cached_property
    def _gap_w(self) -> float:
        """Return the range of power (W) that is possible in a gap: the widened range of nearly all readings.

        Where much of the record is missing, the rest is no evidence for the gaps: anything within the bounds.
        """
        seen = self.readings.value[:: len(self.readings) // 100_000 + 1]
        low, high = float(np.percentile(seen, 5)), float(np.percentile(seen, 95))
        if self.bounded:
            low, high = self.bounds.widen_range(low, high)
        else:
            low, high = self._open_range(low, high)
        usual, middle = high - low, float(np.median(seen))
        # As a range, such that the interval reaches just to the bound that is further away.
        most = math.sqrt(3) * max(middle - min(self.bounds.low, low), max(self.bounds.high, high) - middle)
        record_s = float(self.readings.t0_ns[-1] - self.readings.t0_ns[0]) * 1e-9
        lost = math.sqrt(float(self._prefix[3, -1])) / max(record_s, self.step_s)
        way = min(max((lost - GAP_LIKE_REST) / (GAP_UNKNOWN - GAP_LIKE_REST), 0.0), 1.0)
        return usual + way * max(most - usual, 0.0)

    @staticmethod
    def _open_range(low: float, high: float) -> tuple[float, float]:
        """Return the range of power (W) without stated limits: from zero to above the readings, which are means."""
        return min(low, 0.0), high + max((high - low) * BEYOND_MEANS, high * RIPPLE)

    def find_seconds(self, sel: slice) -> Floats:
        """Return mid-read times of a slice, in seconds from the base."""
        r = self.readings
        doubled: Floats = ((r.t0_ns[sel] - self.base_ns) + (r.t1_ns[sel] - self.base_ns)).astype(np.float64)
        doubled *= 0.5e-9
        return doubled

    def _find_second(self, i: int) -> float:
        return (int(self.readings.t0_ns[i]) + int(self.readings.t1_ns[i]) - 2 * self.base_ns) * 0.5e-9

    @cached_property
    def _squares_per_s(self) -> float:
        """Return the squares of hidden jumps (J2) per second of the whole record."""
        record_s = float(self.readings.t0_ns[-1] - self.readings.t0_ns[0]) * 1e-9
        return float(self._prefix[1, -1]) / max(record_s, self.step_s)

    def _sum_blocks(self) -> Floats:
        """Return the results of `_sum_steps` up to each block, so that C(t) needs one block only."""
        n = len(self.readings)
        starts = range(0, n - 1, SUM_BLOCK)
        sums = np.zeros((4, len(starts) + 1))
        for k, i in enumerate(starts):
            sums[:, k + 1] = self._sum_steps(slice(i, min(i + SUM_BLOCK, n - 1) + 1))
        return sums.cumsum(axis=1)

    def _sum_steps(self, sel: slice) -> Floats:
        """Return energy (J), squares of hidden jumps and products of neighbours (J2), squares of gaps (s2).

        All four are plain sums over the steps between readings, so that any time span is a difference of two prefixes.
        """
        t, p = self.find_seconds(sel), self.readings.value[sel]
        step, jump = t[1:] - t[:-1], p[1:] - p[:-1]
        longest = GAP_STEPS * max(self.step_s, self.update_s)
        usual = np.minimum(step, longest)
        hidden = np.maximum(np.maximum(usual, self.update_s) - self.window_s, 0.2 * np.minimum(usual, self.update_s))
        hidden *= jump
        energy = np.dot(step, p[1:] + p[:-1]) / 2
        gaps = step[step > longest]
        return np.array((energy, np.dot(hidden, hidden), np.dot(hidden[1:], hidden[:-1]), np.dot(gaps, gaps)))

    def _find_reading_before(self, t_ns: int) -> int:
        """Return the index of the last reading whose middle lies at or before t (shifted), -1 for none."""
        r, at = self.readings, t_ns + round(self.shift_s * 1e9)
        i = int(r.t0_ns.searchsorted(at, side="right")) - 1
        return i - 1 if i >= 0 and r.t0_ns[i] + r.t1_ns[i] > 2 * at else i

    def at(self, t_ns: int) -> Floats:
        """Return C(t) in J, and the other sums of `_sum_steps` up to t; extrapolated beyond the readings."""
        if t_ns not in self._found:  # the end of a phase is the start of the next
            self._found[t_ns] = self._sum_up_to(t_ns)
        return self._found[t_ns]

    def _sum_up_to(self, t_ns: int) -> Floats:
        i = max(self._find_reading_before(t_ns), 0)
        block = min(i // SUM_BLOCK, self._prefix.shape[1] - 1)
        sums: Floats = self._prefix[:, block] + self._sum_steps(slice(block * SUM_BLOCK, i + 1))
        here, p = self._find_second(i), float(self.readings.value[i])
        since = (t_ns - self.base_ns) * 1e-9 + self.shift_s - here
        if i + 1 < len(self.readings) and since > 0:
            p += (float(self.readings.value[i + 1]) - p) * since / (self._find_second(i + 1) - here) / 2
        sums[0] += since * p
        return sums

    def find_range_near(self, t_ns: int) -> tuple[float, float, float]:
        """Return the lowest and highest power (W) read near t, and the local step (s).

        If one side has no readings, idle power counts as well.
        """
        reach = self.update_s + self.window_s + self.step_s
        at = t_ns + int(self.shift_s * 1e9)
        r = self.readings
        sel = r.between(at - int(reach * 1e9), at + int(reach * 1e9))
        inside = int(r.t0_ns.searchsorted(at, side="right"))
        values = r.value[max(min(sel.start, inside - EDGE_READINGS), 0) : max(sel.stop, inside + EDGE_READINGS)]
        low, high = float(values.min()), float(values.max())
        step = self.step_s
        if inside in (0, len(r)):
            low = min(low, self.bounds.low)
            edge = r.t0_ns[0] if inside == 0 else r.t1_ns[-1]
            beyond_s = abs(int(edge) - at) * 1e-9
            step = max(step, 2 * beyond_s)
            if beyond_s > GAP_STEPS * max(self.step_s, self.update_s):  # the meter stopped, or began late
                low, high = (low, max(high, self.bounds.high)) if self.bounded else self._open_range(low, high)
        else:
            step = max(step, float(r.t0_ns[inside] - r.t0_ns[inside - 1]) * 1e-9)
        return low, high, step

    def edge_u(self, t_ns: int) -> float:
        """Return the standard uncertainty (J) of an edge at t: the load may change at any time between readings."""
        if t_ns not in self._edges:
            low, high, step = self.find_range_near(t_ns)
            low, high = self.bounds.widen_range(low, high)
            self._edges[t_ns] = (high - low) * (self.update_s / 2 + step / 2 + self.window_s / 4) / math.sqrt(3)
        return self._edges[t_ns]

    def _compute_lag_term(self, a_ns: int, b_ns: int) -> float:
        """Return the uncertainty (J) from the unknown age of readings, the same at both edges.

        A lag of seconds may move a whole short run: then the powers around both edges bound it.
        """
        if self.aligned or self.spec.lag_s <= 0:
            return self._lag_u(b_ns) - self._lag_u(a_ns)
        reach = round((self.spec.lag_s / 2 + self.update_s + self.step_s) * 1e9)
        shift, r = round(self.shift_s * 1e9), self.readings
        ends = [r.value[r.between(t + shift - reach, t + shift + reach)] for t in (a_ns, b_ns)]
        if not all(part.size for part in ends):
            ends = [r.value, r.value]
        a, b = ends
        most = max(float(b.max() - a.min()), float(a.max() - b.min()))
        return most * math.hypot(self.update_s / 2 / math.sqrt(3), self.lag_u_s)

    def _lag_u(self, t_ns: int) -> float:
        """Return the uncertainty (J) from the unknown age of the readings at one edge."""
        i = int(np.searchsorted(self.readings.t0_ns, t_ns + int(self.shift_s * 1e9)))
        age_u = math.hypot(self.update_s / 2 / math.sqrt(3), self.lag_u_s)
        return float(self.readings.value[min(i, len(self.readings) - 1)]) * age_u

    def compute_sampling_term(self, a_ns: int, b_ns: int, in_step: float = 1.0) -> tuple[str, float]:
        """Return source and standard uncertainty (J) from changes of the load between readings.

        Loads that step and stay hide 1/12 of the squares, readings that scatter without memory up to 1/2. A few
        readings may all have missed changes that are seen elsewhere in the record. A load that repeats in step with the
        sensor causes the same error each time: to the degree that this is possible (`in_step`, 0 to 1), errors of
        repeats add linearly.
        """
        _, squares, products, _ = self.at(b_ns) - self.at(a_ns)
        elsewhere = self._squares_per_s * min((b_ns - a_ns) * 1e-9, FEW_READINGS * max(self.step_s, self.update_s)) / 2
        variance = max(squares / 12 + 5 / 12 * min(squares, max(0.0, -2 * products)), elsewhere, 0.0)
        if self.window_s < self.step_s:
            variance *= FEW_READINGS_FACTOR.get(max(self._count_readings(a_ns, b_ns), 2), 1.0) ** 2
        # Devices that are read together miss the same changes; sensors with their own updates miss different ones.
        source = f"sampling:{self.source if self.step_s > 1.5 * self.update_s else self.name}"
        if self.period_s is None or in_step == 0:
            return f"{source}:{a_ns}", math.sqrt(variance)
        repeats = max(1.0, in_step * (b_ns - a_ns) * 1e-9 / self.period_s)
        return source, math.sqrt(variance * repeats)

    def _count_readings(self, a_ns: int, b_ns: int) -> int:
        inside = self.readings.between(a_ns, b_ns)
        return int(inside.stop - inside.start)

    def is_known(self, a_ns: int, b_ns: int) -> bool:
        """Return whether the uncertainty of [a, b] is known: it needs two readings or limits, and an accuracy."""
        has_range = self.spec.limits is not None or self.window_s >= self.step_s
        return (has_range or self._count_readings(a_ns, b_ns) >= 2) and self.spec.accuracy.source != "unknown"

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms; `steps_ns`: reported steps (see `unseen`)."""
        value, _, _, gaps = (float(x) for x in self.at(b_ns) - self.at(a_ns))
        span = (b_ns - a_ns) * 1e-9
        accuracy = self.spec.accuracy
        shared = accuracy.shared or self.name
        steps = select_steps(steps_ns, a_ns, b_ns)
        terms = {
            f"gain:{shared}": value * accuracy.gain / math.sqrt(3),
            f"offset:{shared}": span * accuracy.offset / math.sqrt(3),
            f"lag:{self.name}": self._compute_lag_term(a_ns, b_ns),
            f"gap:{self.source}:{a_ns}": self._gap_w * math.sqrt(gaps / 12) if gaps > 0 else 0.0,
        }
        hidden = bound_unseen(value, span, self.find_hidden_share(steps), self.bounds)
        bounds = place_unseen(hidden, shared, terms, is_in_step(*self.view, steps))
        sampling = self.compute_sampling_term(a_ns, b_ns, self.find_share_in_step(steps))
        terms |= dict((sampling, self._compute_quantum_term(a_ns, b_ns, span)))
        terms |= make_edge_terms(self.source, a_ns, b_ns, self.edge_u)
        return Quantity(value, {s: u for s, u in terms.items() if u}, self.is_known(a_ns, b_ns), bounds)

    def find_hidden_share(self, steps_ns: Ints | None = None) -> float:
        """Return the share of a load's cycle that the sensor may never measure, 0 if it measures all the time.

        Rare readings hide nothing in this sense: the sampling term covers them.
        """
        return find_unseen_share(*self.view, steps_ns)

    @property
    def view(self) -> tuple[float, float]:
        """Return the share of the time in which the sensor measures, and the period (s) of the sensor."""
        if 0 < self.window_s < self.update_s:
            return self.window_s / self.update_s, self.update_s
        # A mean over several updates may itself be one of parts.
        return self.spec.seen, self.update_s or self.step_s

    def find_share_in_step(self, steps_ns: Ints | None = None) -> float:
        """Return how far a load may repeat at the rate of the readings, from 0 (excluded) to 1 (not excluded)."""
        grid = max(self.update_s, self.step_s)
        seen = min(1.0, self.window_s / grid) if grid > 0 else 1.0
        hidden = max(1.0 - seen, self.find_hidden_share())
        between = find_unseen_share(seen, grid, steps_ns)
        return max(between, self.find_hidden_share(steps_ns)) / hidden if hidden > 1e-9 else 0.0

    def _compute_quantum_term(self, a_ns: int, b_ns: int, span: float) -> tuple[str, float]:
        """Return source and standard uncertainty (J) from the resolution; linear if all readings are equal."""
        quantum = self.spec.accuracy.quantum
        part = self.readings.value[self.readings.between(a_ns, b_ns)]
        if part.size < 2 or float(np.ptp(part[: 10 * SUM_BLOCK])) < quantum / 2:
            return f"quantum:{self.name}", span * quantum / math.sqrt(12)
        return f"quantum:{self.name}:{a_ns}", span * quantum / math.sqrt(12 * part.size)


def name_error_source(spec: Spec, name: str) -> str:
    """Name the source of errors that depend on the load: devices of one kind share it, so their errors add linearly."""
    return f"{spec.accuracy.shared}/{spec.name}" if spec.accuracy.shared else name
