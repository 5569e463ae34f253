"""Integrate power readings into one cumulative curve with its variance.

A reading at poll time t is the mean over `window_s` before the instrument's last update, which lies up to `update_s`
back. So the curve is shifted by half of both, and what happened between the windows was not seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.readings import find_usual_step
from joulelab.analysis.unseen import REPEAT_READINGS, find_repeat_period, find_unseen_share, is_in_step, select_steps
from joulelab.core.quantity import COVERAGE_FACTOR, IN_STEP, Quantity, edges

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats, Ints, Readings
    from joulelab.core.spec import Spec

SUM_BLOCK = 4096
GAP_STEPS = 3.0  # a pause of more than three usual steps, of ours and of the instrument, is a gap
GAP_LIKE_REST, GAP_UNKNOWN = 0.25, 0.5  # share of a record up to which a gap is like the rest, from which it is unknown
BEYOND_MEANS = 0.25  # share of the range of means by which true powers may lie beyond them
RIPPLE = 0.1  # share of the power by which it may vary inside a tick without showing in the means
FEW_READINGS = 10  # readings that may be too few to show what a load does now and then
# By how much the few readings of an interval may understate how the load varies: Student's t at 95 %, over 2.
FEW_READINGS_FACTOR = {2: 6.4, 3: 2.15, 4: 1.59, 5: 1.39, 6: 1.29, 7: 1.22, 8: 1.18, 9: 1.15, 10: 1.13}
EDGE_READINGS = 3  # readings on each side whose powers bound what happened at an edge


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
    """Answer C(t), and the energy of any interval as C(b) - C(a), for one power channel.

    `step_s` is the time between readings that was asked for; without it, it is found from the readings. `lag_u_s` is
    how well the lag of its stamps is known, where it was found. Raises ValueError where there is no reading: no number
    is made up.
    """

    def __init__(
        self,
        readings: Readings,
        spec: Spec,
        *,
        name: str,
        bounds: Bounds | None = None,
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
        self.step_s = step_s or self._usual_step()
        self.update_s = spec.update_s if spec.update_s is not None else self.step_s
        self.window_s = spec.window_s or 0.0
        self.shift_s = (self.update_s + self.window_s + spec.lag_s) / 2
        self.bounded = bounds is not None or spec.limits is not None
        self.aligned = lag_u_s is not None
        self.bounds = bounds if bounds is not None else self._default_bounds()
        self._prefix = self._prefixes()
        self._found: dict[int, Floats] = {}
        self._edges: dict[int, float] = {}
        self.period_s = self._period()

    def _usual_step(self) -> float:
        steps = np.diff(self.readings.t0_ns[:100_001]) * 1e-9
        return find_usual_step(steps) if steps.size else self.spec.update_s or 1.0

    def _default_bounds(self) -> Bounds:
        seen_low, seen_high = float(self.readings.value.min()), float(self.readings.value.max())
        low, high = self.spec.limits or (seen_low, seen_high)
        return Bounds(min(low, seen_low), max(high, seen_high))

    def _period(self) -> float | None:
        middle = len(self.readings) // 2
        sel = slice(max(middle - REPEAT_READINGS // 2, 0), middle + REPEAT_READINGS // 2)
        return find_repeat_period(self.seconds(sel), self.readings.value[sel], self.step_s)

    @cached_property
    def _gap_w(self) -> float:
        """Return the range of power (W) that a gap may hide: that of nearly all readings, widened.

        Where much of the record is missing, the rest does not tell what happened there: anything within the bounds.
        """
        seen = self.readings.value[:: len(self.readings) // 100_000 + 1]
        low, high = float(np.percentile(seen, 5)), float(np.percentile(seen, 95))
        if self.bounded:
            low, high = self.bounds.widened(low, high)
        else:  # nobody states limits: it may have been off, or as far above what was seen as means may be
            low, high = min(low, 0.0), high + max((high - low) * BEYOND_MEANS, high * RIPPLE)
        usual, middle = high - low, float(np.median(seen))
        # As a range, such that the interval reaches just to the bound that is further away.
        most = math.sqrt(3) * max(middle - min(self.bounds.low, low), max(self.bounds.high, high) - middle)
        record_s = float(self.readings.t0_ns[-1] - self.readings.t0_ns[0]) * 1e-9
        lost = math.sqrt(float(self._prefix[3, -1])) / max(record_s, self.step_s)
        way = min(max((lost - GAP_LIKE_REST) / (GAP_UNKNOWN - GAP_LIKE_REST), 0.0), 1.0)
        return usual + way * max(most - usual, 0.0)

    def seconds(self, sel: slice) -> Floats:
        """Return mid-read times of a slice, in seconds from the base."""
        r = self.readings
        doubled: Floats = ((r.t0_ns[sel] - self.base_ns) + (r.t1_ns[sel] - self.base_ns)).astype(np.float64)
        doubled *= 0.5e-9
        return doubled

    def _second(self, i: int) -> float:
        """Return the mid-read time of one reading, in seconds from the base."""
        return (int(self.readings.t0_ns[i]) + int(self.readings.t1_ns[i]) - 2 * self.base_ns) * 0.5e-9

    @cached_property
    def _squares_per_s(self) -> float:
        """Return the squares of hidden jumps of the whole record (J2), by its length (s)."""
        record_s = float(self.readings.t0_ns[-1] - self.readings.t0_ns[0]) * 1e-9
        return float(self._prefix[1, -1]) / max(record_s, self.step_s)

    def _prefixes(self) -> Floats:
        """Sum what `_sums` returns by block, so that C(t) needs one block only."""
        n = len(self.readings)
        starts = range(0, n - 1, SUM_BLOCK)
        sums = np.zeros((4, len(starts) + 1))
        for k, i in enumerate(starts):
            sums[:, k + 1] = self._sums(slice(i, min(i + SUM_BLOCK, n - 1) + 1))
        return sums.cumsum(axis=1)

    def _sums(self, sel: slice) -> Floats:
        """Return energy (J), squares of hidden jumps and products of neighbours (J2), squares of gaps (s2).

        All four are plain sums over the steps between readings, so that any interval is a difference of two prefixes.
        """
        t, p = self.seconds(sel), self.readings.value[sel]
        step, jump = t[1:] - t[:-1], p[1:] - p[:-1]
        longest = GAP_STEPS * max(self.step_s, self.update_s)
        usual = np.minimum(step, longest)
        hidden = np.maximum(np.maximum(usual, self.update_s) - self.window_s, 0.2 * np.minimum(usual, self.update_s))
        hidden *= jump
        energy = np.dot(step, p[1:] + p[:-1]) / 2
        gaps = step[step > longest]
        return np.array((energy, np.dot(hidden, hidden), np.dot(hidden[1:], hidden[:-1]), np.dot(gaps, gaps)))

    def _before(self, t_ns: int) -> int:
        """Return the last reading whose middle lies at or before t (shifted), -1 where there is none."""
        r, at = self.readings, t_ns + round(self.shift_s * 1e9)
        i = int(r.t0_ns.searchsorted(at, side="right")) - 1
        return i - 1 if i >= 0 and r.t0_ns[i] + r.t1_ns[i] > 2 * at else i

    def at(self, t_ns: int) -> Floats:
        """Return C(t) in J, and the other sums up to there (see `_sums`); extrapolated where nothing was read."""
        if t_ns not in self._found:  # where one phase ends the next begins
            self._found[t_ns] = self._up_to(t_ns)
        return self._found[t_ns]

    def _up_to(self, t_ns: int) -> Floats:
        i = max(self._before(t_ns), 0)
        block = min(i // SUM_BLOCK, self._prefix.shape[1] - 1)
        sums: Floats = self._prefix[:, block] + self._sums(slice(block * SUM_BLOCK, i + 1))
        here, p = self._second(i), float(self.readings.value[i])
        since = (t_ns - self.base_ns) * 1e-9 + self.shift_s - here
        if i + 1 < len(self.readings) and since > 0:
            p += (float(self.readings.value[i + 1]) - p) * since / (self._second(i + 1) - here) / 2
        sums[0] += since * p
        return sums

    def near(self, t_ns: int) -> tuple[float, float, float]:
        """Return lowest and highest power seen near t, and the local step in s; idle counts where a side is unread."""
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
            step = max(step, 2 * abs(int(edge) - at) * 1e-9)
        else:
            step = max(step, float(r.t0_ns[inside] - r.t0_ns[inside - 1]) * 1e-9)
        return low, high, step

    def edge_u(self, t_ns: int) -> float:
        """Return the standard uncertainty (J) of where the load changed around t."""
        if t_ns not in self._edges:
            low, high, step = self.near(t_ns)
            low, high = self.bounds.widened(low, high)
            self._edges[t_ns] = (high - low) * (self.update_s / 2 + step / 2 + self.window_s / 4) / math.sqrt(3)
        return self._edges[t_ns]

    def _lag_term(self, a_ns: int, b_ns: int) -> float:
        """Return what an unknown age of the readings is worth (J): the same age at both edges, so it subtracts.

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
        """Return what an unknown age of the readings is worth at one edge (J)."""
        i = int(np.searchsorted(self.readings.t0_ns, t_ns + int(self.shift_s * 1e9)))
        age_u = math.hypot(self.update_s / 2 / math.sqrt(3), self.lag_u_s)
        return float(self.readings.value[min(i, len(self.readings) - 1)]) * age_u

    def sampling(self, a_ns: int, b_ns: int, in_step: float = 1.0) -> tuple[str, float]:
        """Return source and standard uncertainty (J) of what happened between readings: jumps that none of them saw.

        Loads that step and stay hide 1/12 of the squares, readings that scatter without memory up to 1/2. Few readings
        may all have missed what the load does elsewhere in the record. A series that repeats in step with the sensor
        is wrong the same way each time: as far as that cannot be excluded (0 to 1), its repeats add linearly.
        """
        _, squares, products, _ = self.at(b_ns) - self.at(a_ns)
        elsewhere = self._squares_per_s * min((b_ns - a_ns) * 1e-9, FEW_READINGS * max(self.step_s, self.update_s)) / 2
        variance = max(squares / 12 + 5 / 12 * min(squares, max(0.0, -2 * products)), elsewhere, 0.0)
        if self.window_s < self.step_s:
            variance *= FEW_READINGS_FACTOR.get(max(self._count(a_ns, b_ns), 2), 1.0) ** 2
        # Devices that are read together miss the same; sensors that update by themselves miss each its own.
        source = f"sampling:{self.source if self.step_s > 1.5 * self.update_s else self.name}"
        if self.period_s is None or in_step == 0:
            return f"{source}:{a_ns}", math.sqrt(variance)
        repeats = max(1.0, in_step * (b_ns - a_ns) * 1e-9 / self.period_s)
        return source, math.sqrt(variance * repeats)

    def _count(self, a_ns: int, b_ns: int) -> int:
        inside = self.readings.between(a_ns, b_ns)
        return int(inside.stop - inside.start)

    def is_known(self, a_ns: int, b_ns: int) -> bool:
        """Return whether an interval can be stated: hardly a reading in [a, b], and no limits, tell nothing."""
        told = self.spec.limits is not None or self.window_s >= self.step_s or self._count(a_ns, b_ns) >= 2
        return told and self.spec.accuracy.source != "unknown"

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms; `steps_ns` are times of work done (see `periodic`)."""
        value, _, _, gaps = (float(x) for x in self.at(b_ns) - self.at(a_ns))
        span = (b_ns - a_ns) * 1e-9
        accuracy = self.spec.accuracy
        shared = accuracy.shared or self.name
        steps = select_steps(steps_ns, a_ns, b_ns)
        terms = {
            f"gain:{shared}": value * accuracy.gain / math.sqrt(3),
            f"offset:{shared}": span * accuracy.offset / math.sqrt(3),
            f"lag:{self.name}": self._lag_term(a_ns, b_ns),
            f"gap:{self.source}:{a_ns}": self._gap_w * math.sqrt(gaps / 12) if gaps > 0 else 0.0,
        }
        hidden = bound_unseen(value, span, self.hidden_share(steps), self.bounds)
        bounds = place_unseen(hidden, shared, terms, is_in_step(*self.view, steps))
        terms |= dict((self.sampling(a_ns, b_ns, self.in_step(steps)), self._quantum(a_ns, b_ns, span)))
        terms |= edges(self.source, a_ns, b_ns, self.edge_u)
        return Quantity(value, {s: u for s, u in terms.items() if u}, self.is_known(a_ns, b_ns), bounds)

    def hidden_share(self, steps_ns: Ints | None = None) -> float:
        """Return the share of a load's cycle that the sensor itself may never see, 0 where it sees all the time.

        Readings that are merely taken seldom hide nothing in this sense: what they miss is the sampling term.
        """
        return find_unseen_share(*self.view, steps_ns)

    @property
    def view(self) -> tuple[float, float]:
        """Return the share of the time that the sensor measures, and its period (s)."""
        if 0 < self.window_s < self.update_s:
            return self.window_s / self.update_s, self.update_s
        # A mean over several updates may itself be one of parts.
        return self.spec.seen, self.update_s or self.step_s

    def in_step(self, steps_ns: Ints | None = None) -> float:
        """Return how far a load that repeats may be in step with the readings (0 to 1): 1 where nothing excludes it."""
        grid = max(self.update_s, self.step_s)
        seen = min(1.0, self.window_s / grid) if grid > 0 else 1.0
        hidden = max(1.0 - seen, self.hidden_share())
        between = find_unseen_share(seen, grid, steps_ns)
        return max(between, self.hidden_share(steps_ns)) / hidden if hidden > 1e-9 else 0.0

    def _quantum(self, a_ns: int, b_ns: int, span: float) -> tuple[str, float]:
        """Return source and standard uncertainty (J) of the reading's resolution; on one code it adds linearly."""
        quantum = self.spec.accuracy.quantum
        part = self.readings.value[self.readings.between(a_ns, b_ns)]
        if part.size < 2 or float(np.ptp(part[: 10 * SUM_BLOCK])) < quantum / 2:
            return f"quantum:{self.name}", span * quantum / math.sqrt(12)
        return f"quantum:{self.name}:{a_ns}", span * quantum / math.sqrt(12 * part.size)


def name_error_source(spec: Spec, name: str) -> str:
    """Return the source of errors that a load makes: devices of one kind work in step, so theirs add linearly."""
    return f"{spec.accuracy.shared}/{spec.name}" if spec.accuracy.shared else name


def place_unseen(u: float, source: str, terms: dict[str, float], evident: bool) -> dict[str, float]:
    """Add the part that a sensor may have missed to the terms where steps are evidence for it; else return a bound."""
    if evident:
        terms[IN_STEP + source] = u
    return {source: u} if u and not evident else {}


def bound_unseen(energy_j: float, span_s: float, share: float, bounds: Bounds) -> float:
    """Return half of how far (J) the hidden share, with power anywhere within bounds, can take the energy.

    Half, so that the expanded uncertainty (k = 2) reaches just to the bound, which cannot be passed.
    """
    if share <= 0 or span_s <= 0:
        return 0.0
    mean = energy_j / span_s
    return share * span_s * max(mean - bounds.low, bounds.high - mean, 0.0) / COVERAGE_FACTOR
