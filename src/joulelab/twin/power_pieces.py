"""Hold power as linear pieces with its running integral: split, clip, add, grow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NS = 1e9


@dataclass(frozen=True, slots=True)
class Pieces:
    """Hold pieces that begin at `t_ns` with `watts` and change by `slope` (W per ns); the last one lasts for ever."""

    t_ns: Ints
    watts: Floats
    slope: Floats

    def split(self, level: Floats) -> Pieces:
        """Return the same power with pieces cut where they cross their `level` (W, one per piece)."""
        width = np.append(np.diff(self.t_ns), 0).astype(np.float64)
        last = self.watts + self.slope * width
        crossing = np.flatnonzero((np.minimum(self.watts, last) < level) & (level < np.maximum(self.watts, last)))
        if not crossing.size:
            return self
        cut = np.rint((level - self.watts)[crossing] / self.slope[crossing]).astype(np.int64) + self.t_ns[crossing]
        return Pieces(
            np.insert(self.t_ns, crossing + 1, cut),
            np.insert(self.watts, crossing + 1, level[crossing]),
            np.insert(self.slope, crossing + 1, self.slope[crossing]),
        )

    def clipped(self, cap: Floats) -> Pieces:
        """Return the lower of this power and a cap (W, one per piece)."""
        parts = self.split(cap)
        if len(parts.t_ns) != len(self.t_ns):
            cap = cap[np.searchsorted(self.t_ns, parts.t_ns, side="right") - 1]
        above = (parts.watts > cap) | ((parts.watts == cap) & (parts.slope > 0))
        return Pieces(parts.t_ns, np.where(above, cap, parts.watts), np.where(above, 0.0, parts.slope))

    def mapped(self, x: Floats, y: Floats) -> Pieces:
        """Return the power put through the lines that join the points (x, y), extended at both ends."""
        parts = self
        for knot in x[1:-1]:
            parts = parts.split(np.full(len(parts.t_ns), knot))
        # The side of a knot on which a piece lies shows in its direction.
        ahead = parts.watts + np.sign(parts.slope) * 1e-9 * np.maximum(np.abs(parts.watts), 1.0)
        line = np.clip(np.searchsorted(x, ahead, side="right") - 1, 0, len(x) - 2)
        rate = (np.diff(y) / np.diff(x))[line]
        return Pieces(parts.t_ns, y[line] + rate * (parts.watts - x[line]), parts.slope * rate)


class Curve:
    """Grow a power curve and its integral in J without computing the past again."""

    def __init__(self) -> None:
        self._room = np.empty((3, 64))
        self._time = np.empty(64, dtype=np.int64)
        self._n = 0

    @property
    def t_ns(self) -> Ints:
        """Return the beginnings of the pieces."""
        return self._time[: self._n]

    def _rows(self) -> tuple[Floats, Floats, Floats]:
        return self._room[0, : self._n], self._room[1, : self._n], self._room[2, : self._n]

    def replace_from(self, pieces: Pieces) -> None:
        """Replace all power from the first of these pieces on."""
        keep = int(np.searchsorted(self.t_ns, pieces.t_ns[0], side="left"))
        n = keep + len(pieces.t_ns)
        if n > self._time.size:
            self._time = np.concatenate([self._time[:keep], np.empty(2 * n - keep, dtype=np.int64)])
            self._room = np.concatenate([self._room[:, :keep], np.empty((3, 2 * n - keep))], axis=1)
        base = float(self.joules(pieces.t_ns[:1])[0]) if keep else 0.0
        width = np.diff(pieces.t_ns).astype(np.float64)
        joules = (pieces.watts[:-1] + pieces.slope[:-1] * width / 2) * width / NS
        self._time[keep:n] = pieces.t_ns
        self._room[0, keep:n] = pieces.watts
        self._room[1, keep:n] = pieces.slope
        self._room[2, keep] = base
        self._room[2, keep + 1 : n] = base + np.cumsum(joules)
        self._n = n

    def _at(self, t_ns: Ints) -> tuple[npt.NDArray[np.intp], Floats]:
        index = np.searchsorted(self.t_ns, t_ns, side="right") - 1
        before = index < 0
        index = np.maximum(index, 0)
        return index, np.where(before, -1.0, 1.0) * np.abs(t_ns - self._time[index])

    def watts(self, t_ns: Ints) -> Floats:
        """Return the power in W; before the first piece it is that of its beginning."""
        watts, slope, _ = self._rows()
        index, since = self._at(t_ns)
        return watts[index] + slope[index] * np.maximum(since, 0.0)

    def slope(self, t_ns: Ints) -> Floats:
        """Return the change of power in W per ns."""
        index, since = self._at(t_ns)
        return np.where(since < 0, 0.0, self._rows()[1][index])

    def joules(self, t_ns: Ints) -> Floats:
        """Return the energy in J since the first piece began."""
        watts, slope, joules = self._rows()
        index, since = self._at(t_ns)
        ramp = slope[index] * np.maximum(since, 0.0) / 2
        return joules[index] + (watts[index] + ramp) * since / NS

    def joules_at(self, t_ns: int) -> float:
        """Return the same for one time, some ten times faster."""
        index = int(self.t_ns.searchsorted(t_ns, side="right")) - 1
        since = t_ns - int(self._time[max(index, 0)])
        watts, slope, joules = self._room[:, max(index, 0)].tolist()
        ramp = slope * since / 2 if index >= 0 else 0.0
        return float(joules + (watts + ramp) * since / NS)


def total(curves: list[Curve], from_ns: int) -> Pieces:
    """Return the sum of several curves from a time on."""
    edges = [curve.t_ns[np.searchsorted(curve.t_ns, from_ns, side="right") :] for curve in curves]
    t_ns = np.unique(np.concatenate([np.array([from_ns], dtype=np.int64), *edges]))
    watts, slope = np.zeros(len(t_ns)), np.zeros(len(t_ns))
    for curve in curves:
        watts += curve.watts(t_ns)
        slope += curve.slope(t_ns)
    return Pieces(t_ns, watts, slope)
