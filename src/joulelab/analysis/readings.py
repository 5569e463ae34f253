"""Hold the readings of one channel, and describe them: usual step, coverage, percentiles, distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.result import PowerStatistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

TICKS_PER_POWER = 50  # steps of a counter per mean power: one step more or less changes it by 2 %
LONGEST_HOLD = 3.0  # usual steps for which a reading counts; the rest of a longer pause is a gap
MOST_SORTED = 20_000  # readings up to which percentiles sort all of them
SORT_PARTS = 4096  # above that, readings are put into this many parts and only some parts are sorted
DISTRIBUTION_BINS = 48
SAME_VALUE = 1e-6  # relative range below which all values of a distribution count as equal
# Refresh of a meter whose readings repeat its values.
FEWEST_CHANGES = 4  # new values needed to see how often they come; twice as many for a short refresh
LEAST_REFRESH_S = 0.9  # sensors with a faster refresh state it; loads may change so often
SLOW_REFRESH = 1.8  # steps that a value lasts at least, if it is not new with each reading
REFRESH_JITTER = 1.2  # steps by which the time between two changes may differ from whole refreshes
REGULAR_SHARE = 0.9  # of these times that must not differ by more
LONG_REFRESH = 8.0  # steps: any time is near whole shorter ones, so most changes must be one of those apart
LOAD_SHARE = 0.75  # of changes back to the level before, or on by one equal step: those of a load


@dataclass(frozen=True)
class Readings:
    """Hold readings of one channel in time order: `t0_ns` before, `t1_ns` after each read, `value` as stored (SI)."""

    t0_ns: Ints
    t1_ns: Ints
    value: Floats

    @classmethod
    def from_rows(cls, t0_ns: Ints, t1_ns: Ints, value: Floats) -> Readings:
        """Make readings from stored rows; leave out NaN, and rows that are not later than the row before."""
        keep = np.isfinite(value)
        if not keep.all():
            t0_ns, t1_ns, value = t0_ns[keep], t1_ns[keep], value[keep]
        if t0_ns.size > 1:
            steps = t0_ns[1:] > t0_ns[:-1]
            if not steps.all():
                keep = np.concatenate(([True], t0_ns[1:] > np.maximum.accumulate(t0_ns)[:-1]))
                t0_ns, t1_ns, value = t0_ns[keep], t1_ns[keep], value[keep]
        return cls(t0_ns, t1_ns, value)

    def shift_back(self, back_s: float) -> Readings:
        """Return the same readings with stamps `back_s` seconds earlier."""
        back = round(back_s * 1e9)
        return self if back == 0 else Readings(self.t0_ns - back, self.t1_ns - back, self.value)

    def select_ends(self) -> Readings:
        """Return the first and the last reading."""
        return Readings(self.t0_ns[[0, -1]], self.t1_ns[[0, -1]], self.value[[0, -1]])

    def __len__(self) -> int:
        return int(self.value.size)

    def between(self, a_ns: int, b_ns: int) -> slice:
        """Return the slice of readings that began in [a, b]."""
        return slice(int(self.t0_ns.searchsorted(a_ns)), int(self.t0_ns.searchsorted(b_ns + 1)))

    def around(self, t_ns: int, before: int, after: int) -> slice:
        """Return the slice with up to `before` readings before t and up to `after` readings at or after t."""
        i = int(self.t0_ns.searchsorted(t_ns, side="right"))
        return slice(max(0, i - before), min(len(self), i + after))


def find_usual_step(steps: Floats) -> float:
    """Return the usual step: the one that holds for most of the time, in the unit of the steps.

    Steps are weighted by time because edges are polled quickly: most readings may lie in a short time. A step
    longer than all others together is a gap and does not count.
    """
    order = np.sort(steps)
    reached = np.cumsum(order)
    while order.size > 2 and reached[-2] < order[-1]:
        order, reached = order[:-1], reached[:-1]
    return float(order[np.searchsorted(reached, reached[-1] / 2)])


def find_refresh_s(readings: Readings, step_s: float) -> float | None:
    """Return the time (s) between new values of a meter that is read every `step_s`; None if it does not repeat them.

    Values that stay because the load does change after times of any length, those of a meter after whole refreshes.
    Loads that change regularly have two levels, or rise by the smallest step of the readings.
    """
    new = np.flatnonzero(readings.value[1:] != readings.value[:-1]) + 1
    if new.size < FEWEST_CHANGES or len(readings) < SLOW_REFRESH * new.size:
        return None
    between = np.diff(readings.t0_ns[new]) * 1e-9
    shortest = float(np.quantile(between, 1 - REGULAR_SHARE, method="lower"))
    refresh = float(between[(between >= shortest) & (between < shortest + 1.5 * step_s)].mean())
    count = np.maximum(np.rint(between / refresh), 1.0)
    refresh = float(between.sum() / count.sum())
    is_regular = np.mean(np.abs(between - count * refresh) <= REFRESH_JITTER * step_s) >= REGULAR_SHARE
    is_long = refresh >= LONG_REFRESH * step_s
    is_clear = is_long or (new.size >= 2 * FEWEST_CHANGES and np.mean(count == 1) > 0.5)
    if refresh < max(SLOW_REFRESH * step_s, LEAST_REFRESH_S) or not is_regular or not is_clear:
        return None
    kinds = np.unique(count).size if is_long else 1
    return None if _is_load(readings.value[new], kinds) else refresh


def _is_load(level: Floats, kinds: int) -> bool:
    """Return whether levels that change at regular times may be those of a load: two of them in turn, or a ramp.

    `kinds` is how many different numbers of refreshes lie between them: a slow meter shows two levels irregularly.
    """
    jump = np.diff(level)
    size, goes_on = np.abs(jump), jump[1:] * jump[:-1] > 0
    is_ramp = np.mean(goes_on) > LOAD_SHARE and np.mean(size < 1.01 * size.min()) > LOAD_SHARE
    is_in_turn = np.mean(level[2:] == level[:-2]) > LOAD_SHARE and kinds < 3
    return bool(is_ramp or is_in_turn)


def count_independent(residual: Floats) -> float:
    """Return the effective number of independent residuals, from their autocorrelation at lag one."""
    power = float(np.dot(residual, residual))
    memory = float(np.dot(residual[1:], residual[:-1])) / power if power > 0 else 0.0
    memory = min(max(memory, 0.0), 0.95)
    return residual.size * (1 - memory) / (1 + memory)


def compute_percentiles(value: Floats, weight: Floats, percent: tuple[float, ...]) -> list[float]:
    """Return the values below which the given percentages of the weight lie."""
    if value.size <= MOST_SORTED:
        order = np.argsort(value, kind="stable")
        reached = np.cumsum(weight[order])
        at = np.searchsorted(reached, np.array(percent) / 100 * reached[-1])
        return [float(value[order[min(int(i), value.size - 1)]]) for i in at]
    return _compute_percentiles_of_many(value, weight, percent)


def _compute_percentiles_of_many(value: Floats, weight: Floats, percent: tuple[float, ...]) -> list[float]:
    """Return percentiles by sorting only the parts that contain them: sorting all values takes ten times as long."""
    low, high = float(value.min()), float(value.max())
    scale = SORT_PARTS / (high - low) if high > low else 0.0
    part = np.minimum(((value - low) * scale).astype(np.int64), SORT_PARTS - 1)
    reached = np.cumsum(np.bincount(part, weight, SORT_PARTS))
    found = []
    ordered: dict[int, tuple[Floats, Floats]] = {}  # all percentiles of a constant power lie in one part
    for wanted in np.array(percent) / 100 * reached[-1]:
        k = int(np.searchsorted(reached, wanted))
        if k not in ordered:
            inside = part == k
            some, own = value[inside], weight[inside]
            order = np.argsort(some, kind="stable")
            ordered[k] = some[order], np.cumsum(own[order]) + (reached[k - 1] if k else 0.0)
        values, within = ordered[k]
        found.append(float(values[min(int(np.searchsorted(within, wanted)), values.size - 1)]))
    return found


@dataclass(frozen=True, slots=True)
class SteppedPower:
    """Hold powers (W) that are taken every `step_s`, each a mean over `window_s` (None if this is unknown)."""

    readings: Readings
    step_s: float
    window_s: float | None


def add_powers(parts: Sequence[SteppedPower]) -> SteppedPower | None:
    """Add the powers of several scopes at the times of the slowest one; None if they are never known together.

    The reading of each scope that is nearest in time counts; where it is further away than LONGEST_HOLD steps, it is a
    gap, and there is no sum.
    """
    slowest = max(parts, key=lambda part: part.step_s, default=None)
    if slowest is None or not all(len(part.readings) for part in parts):
        return None
    at = slowest.readings.t0_ns
    total, is_known = np.zeros(at.size), np.ones(at.size, dtype=bool)
    for part in parts:
        times = part.readings.t0_ns
        after = np.clip(np.searchsorted(times, at), 0, times.size - 1)
        before = np.maximum(after - 1, 0)
        nearest = np.where(at - times[before] < times[after] - at, before, after)
        total += part.readings.value[nearest]
        is_known &= np.abs(times[nearest] - at) <= LONGEST_HOLD * part.step_s * 1e9
    windows = [part.window_s for part in parts]
    widest = None if None in windows else max(window for window in windows if window is not None)
    there = Readings(at[is_known], slowest.readings.t1_ns[is_known], total[is_known])
    return SteppedPower(there, slowest.step_s, widest) if is_known.any() else None


def describe_power(
    readings: Readings, a_ns: int, b_ns: int, *, window_s: float | None, step_s: float
) -> PowerStatistics | None:
    """Return time-weighted statistics of the readings in [a, b], taken every `step_s`; None without readings."""
    sel = readings.between(a_ns, b_ns)
    value = readings.value[sel]
    if value.size == 0:
        return None
    t = readings.t0_ns[sel]
    hold = np.diff(np.append(t, max(b_ns, int(t[-1]) + 1))) * 1e-9
    p5, median, p95, p99 = compute_percentiles(value, np.minimum(hold, LONGEST_HOLD * step_s), (5, 50, 95, 99))
    return PowerStatistics(median, p5, p95, p99, float(value.max()), float(value.min()), window_s)


def compute_coverage(readings: Readings, a_ns: int, b_ns: int, step_s: float) -> float:
    """Return the share of [a, b] without pauses of more than LONGEST_HOLD steps."""
    if b_ns <= a_ns:
        return 1.0
    sel = readings.between(a_ns, b_ns)
    t = np.concatenate(([a_ns], readings.t0_ns[sel], [b_ns])).astype(np.int64)
    pause = np.diff(t) * 1e-9
    lost = pause[pause > LONGEST_HOLD * step_s].sum()
    return float(1.0 - min(1.0, lost / ((b_ns - a_ns) * 1e-9)))


@dataclass(frozen=True, slots=True)
class PowerDistribution:
    """Hold shares of time (of one) between edges (W), and the median, 95th percentile and maximum (W).

    Each value is a mean over `step_s`.
    """

    edges: tuple[float, ...]
    shares: tuple[float, ...]
    median: float
    p95: float
    maximum: float
    step_s: float


def make_distribution(mean: Floats, high: Floats, step_s: float) -> PowerDistribution | None:
    """Make the distribution of means over buckets of `step_s`, without NaN; None without values.

    `high` are the highest readings of the buckets.
    """
    there = np.isfinite(mean)
    values = mean[there]
    if values.size == 0:
        return None
    low, top = float(values.min()), float(values.max())
    room = 0.5 if top - low <= SAME_VALUE * abs(top) else 0.0
    counts, edges = np.histogram(values, bins=1 if room else DISTRIBUTION_BINS, range=(low - room, top + room))
    median, p95 = compute_percentiles(values, np.ones(values.size), (50, 95))
    peaks = high[there]
    highest = float(np.nanmax(peaks)) if np.isfinite(peaks).any() else top
    shares = tuple(float(c) / values.size for c in counts)
    return PowerDistribution(tuple(map(float, edges)), shares, median, p95, max(highest, top), step_s)
