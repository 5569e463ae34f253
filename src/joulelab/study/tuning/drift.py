"""Tell what a workload changed by itself while caps were tried, from windows under one and the same cap. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.study.tuning.window import Window

Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Drift:
    """Hold when (ns) time and energy per work had changed by which ratio against the first; in logarithms.

    Between two of them it is taken to go on evenly, after the last to stay. It may as well have happened at once, or
    go on: `u_at` is for that.
    """

    anchors: tuple[tuple[int, Pair], ...]

    @classmethod
    def of(cls, windows: Sequence[Window]) -> Drift:
        """Take the windows under the reference, in order; at least one."""
        time, energy = windows[0].time_per.value, windows[0].energy_per.value
        return cls(
            tuple(
                (w.from_ns, (math.log(w.time_per.value / time), math.log(w.energy_per.value / energy))) for w in windows
            )
        )

    def at(self, t_ns: int) -> Pair:
        """Return time and energy per work at a time, against those at the first."""
        (before, low), (after, high) = self._around(t_ns)
        share = min(max((t_ns - before) / (after - before), 0.0), 1.0) if after > before else 0.0
        time, energy = (math.exp(a + share * (b - a)) for a, b in zip(low, high, strict=True))
        return time, energy

    def u_at(self, t_ns: int) -> Pair:
        """Return how unsure that is, relative: the change may have come at any time between the two, or go on."""
        (before, low), (after, high) = self._around(t_ns)
        if after == before or t_ns in (before, after):
            return 0.0, 0.0
        share = (t_ns - before) / (after - before)
        # Between: anything from no change to all of it, against the share that is taken. After: it may have gone on.
        reach = math.sqrt(1 / 12 + (share - 0.5) ** 2) if share < 1 else (share - 1) / math.sqrt(3)
        time, energy = (abs(b - a) * reach for a, b in zip(low, high, strict=True))
        return time, energy

    def _around(self, t_ns: int) -> tuple[tuple[int, Pair], tuple[int, Pair]]:
        """Return the anchors before and after a time; the last two where it is later."""
        k = min(max(bisect_right([t for t, _ in self.anchors], t_ns), 1), len(self.anchors) - 1)
        return self.anchors[max(k - 1, 0)], self.anchors[k]
