"""Add up energy while time goes on: counters unwrapped, powers integrated; the totals never fall."""

from __future__ import annotations

from math import isfinite, isnan, nan
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.scope import find_family

if TYPE_CHECKING:
    from joulelab.core.spec import Spec, Stream

# Nothing of a family draws more (W): what rises faster is another counter than before, not energy.
MOST_W = {"gpu": 5e3, "cpu": 5e3, "core": 5e3, "uncore": 5e3, "dram": 5e3, "rack": 1e6}
MOST_NODE_W = 1e5
# Where a counter does not say how often it steps.
STEP_S = 60.0
# A power is not carried over a longer stretch without readings than this, or five periods.
CARRIED_S = 10.0


class Counter:
    """Unwrap a counter of J; `total_j` is what it rose by since the first reading, over wraps and resets.

    At a reset (a fall that no wrap explains, or a rise that no power explains) what was used meanwhile is not known
    from the counter; the power that is read beside it stands in, nothing where there is none.
    """

    __slots__ = ("_allowed_j", "_carried_ns", "_last_j", "_last_ns", "_limit_w", "_modulus_j", "resets", "total_j")

    def __init__(self, spec: Spec, period_s: float, scope: str) -> None:
        self.total_j, self.resets = 0.0, 0
        self._modulus_j = spec.modulus
        most_w = MOST_W.get(find_family(scope), MOST_NODE_W)
        self._limit_w = min(2 * spec.limits[1], most_w) if spec.limits and spec.limits[1] > 0 else most_w
        self._allowed_j = 2 * spec.accuracy.quantum + self._limit_w * 2 * (spec.update_s or STEP_S)
        self._carried_ns = carried_ns(period_s)
        self._last_j, self._last_ns = nan, 0

    @property
    def is_read(self) -> bool:
        """Return whether it ever had a value."""
        return not isnan(self._last_j)

    def go_on(self, other: Counter) -> None:
        """Take over where another one of the same device left off."""
        self.total_j, self.resets = other.total_j, other.resets
        self._last_j, self._last_ns = other._last_j, other._last_ns

    def add(self, t_ns: int, value_j: float, power_w: float) -> float:
        """Take a reading (NaN: none) and return what it adds in J; `power_w` is read beside it, NaN if not."""
        if not isfinite(value_j):
            return 0.0
        before, since_ns = self._last_j, t_ns - self._last_ns
        self._last_j, self._last_ns = value_j, t_ns
        if isnan(before):
            return 0.0
        risen = value_j - before
        if risen < 0 and self._modulus_j is not None:
            risen += self._modulus_j
        if not 0 <= risen <= self._limit_w * since_ns / NS + self._allowed_j:
            self.resets += 1
            risen = power_w * since_ns / NS if power_w > 0 and since_ns <= self._carried_ns else 0.0
        self.total_j += risen
        return risen


class Integral:
    """Integrate a power of W; a stretch without readings adds nothing."""

    __slots__ = ("_carried_ns", "_last_ns", "_last_w", "total_j")

    def __init__(self, period_s: float) -> None:
        self.total_j = 0.0
        self._carried_ns = carried_ns(period_s)
        self._last_w, self._last_ns = nan, 0

    def add(self, t_ns: int, power_w: float) -> float:
        """Take a reading (NaN: none) and return what it adds in J."""
        if not isfinite(power_w) or power_w < 0:
            return 0.0
        before_w, since_ns = self._last_w, t_ns - self._last_ns
        self._last_w, self._last_ns = power_w, t_ns
        if isnan(before_w) or not 0 < since_ns <= self._carried_ns:
            return 0.0
        added = (before_w + power_w) / 2 * since_ns / NS
        self.total_j += added
        return added


def carried_ns(period_s: float) -> int:
    """Return for how long (ns) a reading may stand for what follows it."""
    return round(max(5 * period_s, CARRIED_S) * NS)


def power_channels(stream: Stream) -> list[int]:
    """Return which channels are the stream's power, the best first: what averages longest shows most at 15 s."""
    found = [i for i, c in enumerate(stream.channels) if c.kind == "power" and c.unit == "W"]
    return sorted(found, key=lambda i: -(stream.channels[i].window_s or 0.0))


def counter_channel(stream: Stream) -> int | None:
    """Return which channel is the stream's energy counter, None where it has none."""
    return next((i for i, c in enumerate(stream.channels) if c.kind == "counter" and c.unit == "J"), None)
