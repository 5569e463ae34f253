"""Integrate power readings into one cumulative curve with its variance.

A reading at poll time t is the mean over `window_s` before the instrument's last update, which lies up to `update_s`
before t. So the curve is shifted by half of both. Power between the windows is not measured. If the readings repeat
values regularly for longer than stated, that is `update_s`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.calibrations import make_level_terms
from joulelab.analysis.readings import SLOW_REFRESH, find_refresh_s, find_usual_step
from joulelab.analysis.unseen import (
    BEYOND_MEANS,
    GRID_DRIFT,
    RIPPLE,
    PowerBounds,
    bound_unseen,
    find_beat,
    find_locked_period,
    find_unseen_share,
    is_in_step,
    place_unseen,
    select_steps,
)
from joulelab.core.quantity import Quantity, make_edge_terms

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats, Ints, Readings
    from joulelab.analysis.unseen import Beat
    from joulelab.core.spec import Spec

SUM_BLOCK = 4096  # readings per stored prefix sum
GAP_STEPS = 3.0  # a pause longer than this many usual steps (of reading and of the instrument) is a gap
GAP_DOUBT = 2  # lengths of a gap whose error would be the largest possible, beside those tried in the record
MOST_TRIED_GAPS = 64  # stretches of the record in which a gap is tried
GAP_LENGTHS = 8  # lengths of gaps that are judged apart, for each factor of e
FEW_READINGS = 10  # readings that may be too few to show rare changes of the load
EDGE_READINGS = 2  # readings on each side whose powers bound the power at an edge
# A state of the load that none of N readings met may have lasted for about 3/N of the time (rule of three): as a
# standard uncertainty, this many times the hidden part of a step.
MISSED_STEPS = 0.6
MISSED_WAY_S = 0.5  # hidden time in which power may go to any bound and come back; in a tenth of it, a tenth of the way
IDLE_SHARE = 0.3  # of the mean: idle power, where neither readings nor limits show it
BEAT_PART = 0.7  # of a beat: the time in which all readings may err to one side
WINDOW_EDGE = 0.12  # of a window: how far a mean over the window blurs a change of power at an edge


class PowerCurve:
    """Compute C(t), and the energy of any time span as C(b) - C(a), for one power channel.

    `step_s` is the requested time between readings; by default it is found from the readings. `lag_u_s` is the standard
    uncertainty of the lag of the stamps, if the lag was found; they were moved back by `moved_s`. Raises ValueError
    without readings.
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
        moved_s: float = 0.0,
    ) -> None:
        if not len(readings):
            raise ValueError(f"{name}: no readings")
        self.readings = readings
        self.spec = spec
        self.name = name
        self.lag_u_s = spec.lag_s / math.sqrt(12) if lag_u_s is None else lag_u_s
        self.moved_s = moved_s
        self.source = name_error_source(spec, name)
        self.base_ns = int(readings.t0_ns[0])
        self.step_s = step_s or self._find_step()
        self.update_s = spec.update_s if spec.update_s is not None else self.step_s
        if (found := self._find_slow_refresh()) is not None:
            self.update_s, self.spec = found, replace(spec, update_s=found)  # curves made of this one have it, too
        self.window_s = spec.window_s or 0.0
        self.shift_s = (self.update_s + self.window_s + spec.lag_s) / 2
        self.bounded = bounds is not None or spec.limits is not None
        self.aligned = lag_u_s is not None
        self.bounds = bounds if bounds is not None else self._default_bounds()
        self._prefix = self._sum_blocks()
        self._found: dict[int, Floats] = {}
        self._edges: dict[int, float] = {}
        # Readings after which a pause follows.
        self._gaps = np.flatnonzero(np.diff(readings.t0_ns) > round(self._longest_step_s * 1e9))
        self._gap_w: dict[int, float] = {}

    def shift_back(self, lag_s: float, lag_u_s: float) -> PowerCurve:
        """Return the curve with stamps moved back by a lag whose standard uncertainty is known."""
        return PowerCurve(
            self.readings.shift_back(lag_s),
            self.spec,
            name=self.name,
            bounds=self.bounds,
            step_s=self.step_s,
            lag_u_s=lag_u_s,
            moved_s=self.moved_s + lag_s,
        )

    def _find_slow_refresh(self) -> float | None:
        """Return how often (s) the readings show new values, if clearly less often than stated."""
        found = find_refresh_s(self.readings, self.step_s) if self.update_s else None  # 0: the age of each is known
        return found if found is not None and found > SLOW_REFRESH * self.update_s else None

    def _find_step(self) -> float:
        steps = np.diff(self.readings.t0_ns[:100_001]) * 1e-9
        return find_usual_step(steps) if steps.size else self.spec.update_s or 1.0

    def _default_bounds(self) -> PowerBounds:
        seen_low, seen_high = float(self.readings.value.min()), float(self.readings.value.max())
        low, high = self.spec.limits or (seen_low, seen_high)
        return PowerBounds(min(low, seen_low), max(high, seen_high))

    @property
    def _longest_step_s(self) -> float:
        """Return the time (s) between readings above which a pause is a gap."""
        return GAP_STEPS * max(self.step_s, self.update_s)

    @property
    def _hidden_s(self) -> float:
        """Return the time (s) in each step that is not measured."""
        return max(max(self.step_s, self.update_s) - self.window_s, 0.0)

    def _compute_gap_term(self, a_ns: int, b_ns: int) -> float:
        """Return the standard uncertainty (J) from pauses in [a, b], which the curve bridges by a straight line."""
        if not self._gaps.size:
            return 0.0
        a, b = (t + round(self.shift_s * 1e9) for t in (a_ns, b_ns))
        since, until = self.readings.t0_ns[self._gaps], self.readings.t0_ns[self._gaps + 1]
        lengths = np.minimum(until, b) - np.maximum(since, a)
        return math.hypot(*(float(s) * self._judge_gap(float(s)) for s in lengths[lengths > 0] * 1e-9))

    def _judge_gap(self, length_s: float) -> float:
        """Return the uncertainty of the mean power (W) in a pause: the error that such pauses make in the record.

        The fewer such lengths the record has, the more the range of possible powers counts.
        """
        key = round(GAP_LENGTHS * math.log(length_s))  # pauses of about the same length are judged together
        if key not in self._gap_w:
            low, high = self._find_possible_range(float(self.readings.value.mean()))
            errors = self._try_gaps(round(math.exp(key / GAP_LENGTHS) * 1e9))
            worst = GAP_DOUBT * (high - low) ** 2 / 12
            self._gap_w[key] = math.sqrt((sum(e * e for e in errors) + worst) / (len(errors) + GAP_DOUBT))
        return self._gap_w[key]

    def _try_gaps(self, length_ns: int) -> list[float]:
        """Return the errors (W) of straight lines over stretches of the record that have no gap, side by side."""
        t, found = self.readings.t0_ns, []
        every = max(length_ns, int(t[-1] - t[0]) // MOST_TRIED_GAPS, 1)
        for since in range(int(t[0]), int(t[-1]) - length_ns + 1, every):
            i, k = (int(x) for x in t.searchsorted((since, since + length_ns)))
            if k >= len(t) or k <= i + 1 or self._gaps.searchsorted(i) < self._gaps.searchsorted(k):
                continue
            seconds, watts = self.find_seconds(slice(i, k + 1)), self.readings.value[i : k + 1]
            mean = float(np.dot(np.diff(seconds), watts[1:] + watts[:-1])) / 2 / float(seconds[-1] - seconds[0])
            found.append(float(watts[0] + watts[-1]) / 2 - mean)
        return found

    def _find_possible_range(self, mean_w: float) -> tuple[float, float]:
        """Return idle power and the highest power (W) that the device may have reached, around a mean."""
        low = max(self.bounds.low if self.bounded else 0.0, min(self._seen_low, IDLE_SHARE * mean_w))
        high = self.bounds.high if self.bounded else self._open_range(self._seen_low, self._seen_high)[1]
        return min(low, mean_w), max(high, mean_w)

    @cached_property
    def _seen_low(self) -> float:
        return float(self.readings.value.min())

    @cached_property
    def _seen_high(self) -> float:
        return float(self.readings.value.max())

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
    def _variance_per_s(self) -> float:
        """Return the variance (J2) of hidden jumps per second of the whole record."""
        record_s = float(self.readings.t0_ns[-1] - self.readings.t0_ns[0]) * 1e-9
        return _find_jump_variance(*self._prefix[1:3, -1]) / max(record_s, self.step_s)

    def _sum_blocks(self) -> Floats:
        """Return the results of `_sum_steps` up to each block, so that C(t) needs one block only."""
        n = len(self.readings)
        starts = range(0, n - 1, SUM_BLOCK)
        sums = np.zeros((4, len(starts) + 1))
        for k, i in enumerate(starts):
            sums[:, k + 1] = self._sum_steps(slice(i, min(i + SUM_BLOCK, n - 1) + 1))
        return sums.cumsum(axis=1)

    def _sum_steps(self, sel: slice) -> Floats:
        """Return energy (J), squares of hidden jumps and products of neighbours (J2), squares of jumps (W2).

        All are plain sums over the steps between readings, so that any time span is a difference of two prefixes.
        """
        t, p = self.find_seconds(sel), self.readings.value[sel]
        step = t[1:] - t[:-1]
        jump = np.where(step > self._longest_step_s, 0.0, p[1:] - p[:-1])
        hidden = jump * np.maximum(np.maximum(step, self.update_s) - self.window_s, 0.0)
        energy = np.dot(step, p[1:] + p[:-1]) / 2
        return np.array((energy, np.dot(hidden, hidden), np.dot(hidden[1:], hidden[:-1]), np.dot(jump, jump)))

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
        """Return the lowest and highest power (W) read near t, and how far t lies outside of the readings (s).

        If one side has no readings, idle power counts as well. Where the meter began late or stopped before t,
        so does the highest possible power.
        """
        reach = self.update_s + self.window_s + self.step_s
        at = t_ns + int(self.shift_s * 1e9)
        r = self.readings
        sel = r.between(at - int(reach * 1e9), at + int(reach * 1e9))
        inside = int(r.t0_ns.searchsorted(at, side="right"))
        values = r.value[max(min(sel.start, inside - EDGE_READINGS), 0) : max(sel.stop, inside + EDGE_READINGS)]
        low, high = float(values.min()), float(values.max())
        if inside not in (0, len(r)):
            return low, high, 0.0
        beyond_s = abs(int(r.t0_ns[0] if inside == 0 else r.t1_ns[-1]) - at) * 1e-9
        idle, most = self._find_possible_range((low + high) / 2)
        has_stopped = t_ns > int(r.t1_ns[-1]) + round(self.moved_s * 1e9) or beyond_s > self._longest_step_s
        return min(low, idle), max(high, most) if inside == 0 or has_stopped else high, beyond_s

    def edge_u(self, t_ns: int) -> float:
        """Return the standard uncertainty (J) of an edge at t: windows and ages blur a change of the load there."""
        if t_ns not in self._edges:
            low, high, beyond_s = self.find_range_near(t_ns)
            blur_s = math.hypot(min(self.update_s, self.step_s) / math.sqrt(12), WINDOW_EDGE * self.window_s)
            ripple = RIPPLE * (low + high) / 2
            self._edges[t_ns] = max(high - low, ripple) * math.hypot(blur_s, beyond_s / math.sqrt(3))
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

    def compute_sampling_terms(self, a_ns: int, b_ns: int, *, locked: float | None = None) -> dict[str, float]:
        """Return the standard uncertainties (J) from changes of the load between readings: seen jumps, missed states.

        A few readings may all have missed changes that are seen elsewhere in the record. A state that no reading met
        may have lasted for a part of a step. If the readings repeat exactly every `locked` s, so do their errors.
        """
        span, hidden_s = (b_ns - a_ns) * 1e-9, self._hidden_s
        _, squares, products, jumps = (float(x) for x in self.at(b_ns) - self.at(a_ns))
        squares += self._square_ends(a_ns, b_ns)
        elsewhere = self._variance_per_s * min(span, FEW_READINGS * max(self.step_s, self.update_s))
        variance = max(_find_jump_variance(squares, products), elsewhere) * (max(span / locked, 1.0) if locked else 1.0)
        mean = float(self.at(b_ns)[0] - self.at(a_ns)[0]) / span if span > 0 else 0.0
        low, high = self._find_possible_range(mean)
        depth = max(mean - low, high - mean) * min(1.0, hidden_s / MISSED_WAY_S)
        # Devices that are read together miss the same changes; sensors with their own updates miss different ones.
        source = f"{self.source if self.step_s > 1.5 * self.update_s else self.name}:{a_ns}"
        missed = depth * min(MISSED_STEPS * hidden_s, span / 2)
        variance += self._compute_age_variance(a_ns, b_ns, jumps) + self._compute_beat_variance(a_ns, b_ns)
        return {f"sampling:{source}": math.sqrt(variance), f"missed:{source}": missed}

    def _compute_age_variance(self, a_ns: int, b_ns: int, jumps: float) -> float:
        """Return the variance (J2) from the ages of readings: each jump (sum of squares, W2) may be that much earlier.

        The clocks of reading and of the sensor drift apart slowly, so the ages of neighbours are alike: what counts is
        the range of power, as often as the clocks have drifted by a whole update.
        """
        age_s = min(self.update_s, self.step_s)
        if not age_s or jumps <= 0:
            return 0.0
        first, last = (max(self._find_reading_before(t), 0) for t in (a_ns, b_ns))
        drifts = 1 + GRID_DRIFT * (b_ns - a_ns) * 1e-9 / age_s
        most = 2 * drifts * float(np.ptp(self.readings.value[first : last + 1])) ** 2
        return min(jumps, most) * age_s**2 / 12

    def _compute_beat_variance(self, a_ns: int, b_ns: int) -> float:
        """Return the variance (J2) from a slow beat between the load and a sensor that measures part of the time.

        Over whole beats the readings are a fair sample; the last part of a beat is not.
        """
        if self._beat is None:
            return 0.0
        since, until, period_s, deviation_w = self._beat
        shift = round(self.shift_s * 1e9)
        inside_s = (min(b_ns + shift, until) - max(a_ns + shift, since)) * 1e-9
        return (deviation_w * min(inside_s, BEAT_PART * period_s)) ** 2 if inside_s > 0 else 0.0

    @cached_property
    def _beat(self) -> Beat | None:
        seen, update_s = self.view
        return find_beat(self.readings, update_s, seen) if seen < 1 and self.step_s < 1.5 * update_s else None

    @cached_property
    def locked_s(self) -> float | None:
        """Return the period (s) of a load that keeps time with the readings; excluded where they hide nothing."""
        return find_locked_period(self.readings, max(self.step_s, self.update_s)) if self._hidden_s > 0 else None

    def _square_ends(self, a_ns: int, b_ns: int) -> float:
        """Return the squares (J2) of the steps that the edges cut, as far as they count inside, minus those counted.

        The jump of a step may lie anywhere in it: of its variance, a part of x holds 4 x^3 - 3 x^4.
        """
        (i, x, first), (k, y, last) = self._cut_step(a_ns), self._cut_step(b_ns)
        if i == k:
            return min(3 * (y - x) ** 2, 1.0) * first
        return (_find_variance_share(1 - x) - 1) * first + _find_variance_share(y) * last

    def _cut_step(self, t_ns: int) -> tuple[int, float, float]:
        """Return the step around t: its number, the share of it before t, and the square of its hidden jump (J2)."""
        i = self._find_reading_before(t_ns)
        if i < 0 or i + 1 >= len(self.readings):
            return i, 0.0, 0.0
        here, there = self._find_second(i), self._find_second(i + 1)
        since = (t_ns - self.base_ns) * 1e-9 + self.shift_s - here
        jump = float(self.readings.value[i + 1] - self.readings.value[i])
        hidden = jump * max(max(there - here, self.update_s) - self.window_s, 0.0)
        return i, since / (there - here), 0.0 if there - here > self._longest_step_s else hidden * hidden

    def _count_readings(self, a_ns: int, b_ns: int) -> int:
        inside = self.readings.between(a_ns, b_ns)
        return int(inside.stop - inside.start)

    def is_known(self, a_ns: int, b_ns: int) -> bool:
        """Return whether the uncertainty of [a, b] is known: it needs two readings or limits, and an accuracy."""
        has_range = self.spec.limits is not None or self.window_s >= self.step_s
        return (has_range or self._count_readings(a_ns, b_ns) >= 2) and self.spec.accuracy.source != "unknown"

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J with all its terms; `steps_ns`: reported steps (see `unseen`)."""
        value = float(self.at(b_ns)[0] - self.at(a_ns)[0])
        span = (b_ns - a_ns) * 1e-9
        accuracy = self.spec.accuracy
        shared = accuracy.shared or self.name
        steps = select_steps(steps_ns, a_ns, b_ns)
        terms = {
            **make_level_terms(accuracy, self.name, value, span),
            f"lag:{self.name}": self._compute_lag_term(a_ns, b_ns),
            f"gap:{self.source}:{a_ns}": self._compute_gap_term(a_ns, b_ns),
        }
        hidden = bound_unseen(value, span, self.find_hidden_share(steps), self.bounds)
        bounds = place_unseen(hidden, shared, terms, is_in_step(*self.view, steps))
        terms |= self.compute_sampling_terms(a_ns, b_ns, locked=self.locked_s) | dict(
            (self._compute_quantum_term(a_ns, b_ns, span),)
        )
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

    def _compute_quantum_term(self, a_ns: int, b_ns: int, span: float) -> tuple[str, float]:
        """Return source and standard uncertainty (J) from the resolution; linear if all readings are equal."""
        quantum = self.spec.accuracy.quantum
        part = self.readings.value[self.readings.between(a_ns, b_ns)]
        if part.size < 2 or float(np.ptp(part[: 10 * SUM_BLOCK])) < quantum / 2:
            return f"quantum:{self.name}", span * quantum / math.sqrt(12)
        return f"quantum:{self.name}:{a_ns}", span * quantum / math.sqrt(12 * part.size)


def _find_jump_variance(squares: float, products: float) -> float:
    """Return the variance (J2) of an energy from the squares of hidden jumps and the products of neighbours.

    Loads that step and stay hide 1/12 of the squares, readings that scatter without memory 1/2.
    """
    return max(squares / 12 + 5 / 12 * min(squares, max(0.0, -2 * products)), 0.0)


def _find_variance_share(x: float) -> float:
    """Return the share of a step's variance that its part x (0 to 1) holds."""
    return (4 - 3 * x) * x**3


def name_error_source(spec: Spec, name: str) -> str:
    """Name the source of errors that depend on the load: devices of one kind share it, so their errors add linearly."""
    return f"{spec.accuracy.shared}/{spec.name}" if spec.accuracy.shared else name
