"""Hold power as linear pieces with its integral, held down by caps and clocks; derive the points of a node."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulelab.twin.model import Node

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NS = 1e9


@dataclass(frozen=True, slots=True)
class Pieces:
    """Hold pieces that begin at `t_ns` with `watts` and change by `slope` (W per ns); the last one lasts for ever."""

    t_ns: Ints
    watts: Floats
    slope: Floats

    def split_at(self, level: Floats) -> Pieces:
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

    def clip_power(self, cap: Floats) -> Pieces:
        """Return the lower of this power and a cap (W, one per piece)."""
        parts = self.split_at(cap)
        if len(parts.t_ns) != len(self.t_ns):
            cap = cap[np.searchsorted(self.t_ns, parts.t_ns, side="right") - 1]
        above = (parts.watts > cap) | ((parts.watts == cap) & (parts.slope > 0))
        return Pieces(parts.t_ns, np.where(above, cap, parts.watts), np.where(above, 0.0, parts.slope))

    def map_power(self, x: Floats, y: Floats) -> Pieces:
        """Return the power put through the lines that join the points (x, y), extended at both ends."""
        parts = self
        for knot in x[1:-1]:
            parts = parts.split_at(np.full(len(parts.t_ns), knot))
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

    def _get_rows(self) -> tuple[Floats, Floats, Floats]:
        return self._room[0, : self._n], self._room[1, : self._n], self._room[2, : self._n]

    def replace_from(self, pieces: Pieces) -> None:
        """Replace all power from the first of these pieces on."""
        keep = int(np.searchsorted(self.t_ns, pieces.t_ns[0], side="left"))
        base = float(self.joules(pieces.t_ns[:1])[0]) if keep else 0.0  # before the rows that are replaced go
        n = keep + len(pieces.t_ns)
        if n > self._time.size:
            self._time = np.concatenate([self._time[:keep], np.empty(2 * n - keep, dtype=np.int64)])
            self._room = np.concatenate([self._room[:, :keep], np.empty((3, 2 * n - keep))], axis=1)
        width = np.diff(pieces.t_ns).astype(np.float64)
        joules = (pieces.watts[:-1] + pieces.slope[:-1] * width / 2) * width / NS
        self._time[keep:n] = pieces.t_ns
        self._room[0, keep:n] = pieces.watts
        self._room[1, keep:n] = pieces.slope
        self._room[2, keep] = base
        self._room[2, keep + 1 : n] = base + np.cumsum(joules)
        self._n = n

    def _locate(self, t_ns: Ints) -> tuple[npt.NDArray[np.intp], Floats]:
        index = np.searchsorted(self.t_ns, t_ns, side="right") - 1
        before = index < 0
        index = np.maximum(index, 0)
        return index, np.where(before, -1.0, 1.0) * np.abs(t_ns - self._time[index])

    def watts(self, t_ns: Ints) -> Floats:
        """Return the power in W; before the first piece it is that of its beginning."""
        watts, slope, _ = self._get_rows()
        index, since = self._locate(t_ns)
        return watts[index] + slope[index] * np.maximum(since, 0.0)

    def slope(self, t_ns: Ints) -> Floats:
        """Return the change of power in W per ns."""
        index, since = self._locate(t_ns)
        return np.where(since < 0, 0.0, self._get_rows()[1][index])

    def joules(self, t_ns: Ints) -> Floats:
        """Return the energy in J since the first piece began."""
        watts, slope, joules = self._get_rows()
        index, since = self._locate(t_ns)
        ramp = slope[index] * np.maximum(since, 0.0) / 2
        return joules[index] + (watts[index] + ramp) * since / NS

    def joules_at(self, t_ns: int) -> float:
        """Return the same for one time, some ten times faster."""
        index = int(self.t_ns.searchsorted(t_ns, side="right")) - 1
        since = t_ns - int(self._time[max(index, 0)])
        watts, slope, joules = self._room[:, max(index, 0)].tolist()
        ramp = slope * since / 2 if index >= 0 else 0.0
        return float(joules + (watts + ramp) * since / NS)


def add_curves(curves: list[Curve], from_ns: int) -> Pieces:
    """Return the sum of several curves from a time on."""
    edges = [curve.t_ns[np.searchsorted(curve.t_ns, from_ns, side="right") :] for curve in curves]
    t_ns = np.unique(np.concatenate([np.array([from_ns], dtype=np.int64), *edges]))
    watts, slope = np.zeros(len(t_ns)), np.zeros(len(t_ns))
    for curve in curves:
        watts += curve.watts(t_ns)
        slope += curve.slope(t_ns)
    return Pieces(t_ns, watts, slope)


ALWAYS = -(2**62)  # ns: before all times


class Limits(NamedTuple):
    """Hold from when on (ns) which caps are requested and enforced (W), and which share of dynamic power is left."""

    t_ns: Ints
    requested_w: Floats
    enforced_w: Floats
    share: Floats

    def find_index(self, t_ns: int) -> int:
        """Return the index of what holds at a time."""
        return max(int(np.searchsorted(self.t_ns, t_ns, side="right")) - 1, 0)


NO_LIMITS = Limits(np.array([ALWAYS]), np.array([np.inf]), np.array([np.inf]), np.ones(1))


class LeafCurve:
    """Remember which part of a leaf is already in its curve."""

    def __init__(self) -> None:
        self.curve = Curve()
        self.state = (0, -1, -1)
        self.limits = NO_LIMITS

    def changed_from(self, rows: npt.NDArray[Any], limits: Limits, count: int) -> int | None:
        """Return the time from which on the curve is no longer right, None if it is."""
        known = self.state[0]
        if not known:
            return int(rows["t_ns"][0])
        changes = [int(rows["t_ns"][known])] if count > known else []
        old, new = list(zip(*self.limits, strict=True)), list(zip(*limits, strict=True))
        shared = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        changes += [max(int(entry[shared][0]), int(rows["t_ns"][0])) for entry in (old, new) if len(entry) > shared]
        return min(changes, default=None)


def limit_segments(rows: npt.NDArray[Any], limits: Limits, idle_w: float, begin: int) -> Pieces:
    """Return the power of a leaf from `begin` (ns) on, as clocks and caps leave it; `idle_w` (W) is not dynamic."""
    first = max(bisect.bisect_right(rows["t_ns"], begin) - 1, 0)  # numpy would copy the whole column first
    t_ns, start_w, end_w = (rows[name][first:].copy() for name in ("t_ns", "start_w", "end_w"))
    width = np.append(np.diff(t_ns), 0).astype(np.float64)
    slope = np.divide(end_w - start_w, width, out=np.zeros_like(width), where=width > 0)
    changes = limits.t_ns[limits.t_ns > begin]
    edges = np.unique(np.concatenate([[begin], t_ns[t_ns > begin], changes])).astype(np.int64)
    index = np.maximum(np.searchsorted(t_ns, edges, side="right") - 1, 0)
    held = np.maximum(np.searchsorted(limits.t_ns, edges, side="right") - 1, 0)
    watts, share = start_w[index] + slope[index] * (edges - t_ns[index]), limits.share[held]
    clocked_w = np.where(share == 1.0, watts, idle_w + (watts - idle_w) * share)
    return Pieces(edges, clocked_w, slope[index] * share).clip_power(limits.enforced_w[held])


CORD_POINTS: Final = {"outlet": "node.ac", "psu": "node.ac", "psu.dc": "node.dc"}
# What the leaves make together; `psys` is summed from those that it has.
NODE_POINTS: Final = ("fans", "node.dc", "node.ac")


def list_points(node: Node) -> list[str]:
    """Return all points that have a power."""
    cords = range(1, len(node.supply.cords) + 1)
    return [*node.list_leaves(), "psys", *NODE_POINTS, *(f"{kind}:{n}" for kind in CORD_POINTS for n in cords)]


def list_heating_leaves(leaves: Iterable[str]) -> list[str]:
    """Return the leaves that add up to what the node draws without its fans: cores are in their packages."""
    return [leaf for leaf in leaves if not leaf.startswith("core")]


def find_share(node: Node, point: str) -> tuple[float, str]:
    """Return a cord's share and what it is a share of; all of the point itself for any other."""
    kind, _, number = point.partition(":")
    if kind not in CORD_POINTS or point not in list_points(node):
        return 1.0, point
    return node.supply.cords[int(number) - 1], CORD_POINTS[kind]


class NodeCurves:
    """Keep fans, DC and AC of a node as curves."""

    def __init__(self, node: Node) -> None:
        heat, dc = node.to_dc()
        self._fans, self._dc, self._ac = (heat, dc - heat), (heat, dc), node.to_ac()
        self.curves = {point: Curve() for point in NODE_POINTS}

    def replace_from(self, leaves: list[Curve], from_ns: int) -> None:
        """Take what the leaves (those of `heating`) draw from a time on."""
        heat = add_curves(leaves, from_ns)
        dc = heat.map_power(*self._dc)
        self.curves["fans"].replace_from(heat.map_power(*self._fans))
        self.curves["node.dc"].replace_from(dc)
        self.curves["node.ac"].replace_from(dc.map_power(*self._ac))
