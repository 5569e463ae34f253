"""Store clock pairs at the start, every minute and at the end, and notice when the wall clock is stepped."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, ClockPair, monotonic_ns, read_clock_pair

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.recorder.sampling import Event

PAIR_NS = 60 * NS
STEP_NS = 50_000_000
# An unsynchronised kernel reports an error of many seconds at all times: that bounds nothing.
KERNEL_ERROR_LIMIT_NS = NS


class ClockWatch:
    """Take clock pairs and compare each pair with the previous one."""

    def __init__(
        self,
        events: list[Event],
        *,
        pair: Callable[[], ClockPair] = read_clock_pair,
        mono: Callable[[], int] = monotonic_ns,
        utc: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_REALTIME),
    ) -> None:
        self.events = events
        self._pair, self._mono, self._utc = pair, mono, utc
        self._last: ClockPair | None = None

    def take(self) -> None:
        """Store a clock pair; also store a clock step if the offset changed by more than the errors of both pairs."""
        pair, last = self._pair(), self._last
        self.events.append({"t": pair.mono_ns, "event": "clock", **asdict(pair)})
        self._last = pair
        if last is None:
            return
        moved = (pair.utc_ns - pair.mono_ns) - (last.utc_ns - last.mono_ns)
        errors = (
            e for e in (pair.kernel_error_ns, last.kernel_error_ns) if e is not None and e < KERNEL_ERROR_LIMIT_NS
        )
        if abs(moved) > STEP_NS + pair.width_ns + last.width_ns + max(errors, default=0):
            self.events.append({"t": pair.mono_ns, "event": "clock-step", "by_ns": moved})

    def look(self) -> None:
        """Take a pair if a minute has passed or the clock seems to have been stepped."""
        last = self._last
        if last is None:
            self.take()
            return
        mono = self._mono()
        moved = (self._utc() - mono) - (last.utc_ns - last.mono_ns)
        if mono - last.mono_ns >= PAIR_NS or abs(moved) > STEP_NS + last.width_ns:
            self.take()
