"""Hold one channel as arrays that analysis can search: the stamps before and after each read, and the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Readings:
    """Hold readings of one channel in time order: `t0_ns` before, `t1_ns` after each read, `value` as stored (SI)."""

    t0_ns: Ints
    t1_ns: Ints
    value: Floats

    @classmethod
    def of(cls, t0_ns: Ints, t1_ns: Ints, value: Floats) -> Readings:
        """Drop what was not read (NaN) and stamps that do not advance."""
        keep = np.isfinite(value)
        if not keep.all():
            t0_ns, t1_ns, value = t0_ns[keep], t1_ns[keep], value[keep]
        if t0_ns.size > 1:
            steps = t0_ns[1:] > t0_ns[:-1]
            if not steps.all():
                keep = np.concatenate(([True], t0_ns[1:] > np.maximum.accumulate(t0_ns)[:-1]))
                t0_ns, t1_ns, value = t0_ns[keep], t1_ns[keep], value[keep]
        return cls(t0_ns, t1_ns, value)

    def moved(self, back_s: float) -> Readings:
        """Return these readings as of so many seconds earlier."""
        back = round(back_s * 1e9)
        return self if back == 0 else Readings(self.t0_ns - back, self.t1_ns - back, self.value)

    def ends(self) -> Readings:
        """Return the first and the last reading."""
        return Readings(self.t0_ns[[0, -1]], self.t1_ns[[0, -1]], self.value[[0, -1]])

    def __len__(self) -> int:
        return int(self.value.size)

    def between(self, a_ns: int, b_ns: int) -> slice:
        """Return the slice of readings that began in [a, b]."""
        return slice(int(self.t0_ns.searchsorted(a_ns)), int(self.t0_ns.searchsorted(b_ns + 1)))

    def around(self, t_ns: int, before: int, after: int) -> slice:
        """Return the slice with up to `before` readings before t and up to `after` from t on."""
        i = int(self.t0_ns.searchsorted(t_ns, side="right"))
        return slice(max(0, i - before), min(len(self), i + after))


def find_usual_step(steps: Floats) -> float:
    """Return the step that holds for most of the time, whatever its unit; one that is longer than all others is a gap.

    Edges are polled quickly on purpose, so that most readings may lie in a small part of the time.
    """
    order = np.sort(steps)
    reached = np.cumsum(order)
    while order.size > 2 and reached[-2] < order[-1]:
        order, reached = order[:-1], reached[:-1]
    return float(order[np.searchsorted(reached, reached[-1] / 2)])


def count_independent(residual: Floats) -> float:
    """Return as how many independent ones residuals count, by their correlation with the next."""
    power = float(np.dot(residual, residual))
    memory = float(np.dot(residual[1:], residual[:-1])) / power if power > 0 else 0.0
    memory = min(max(memory, 0.0), 0.95)
    return residual.size * (1 - memory) / (1 + memory)
