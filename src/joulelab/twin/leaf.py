"""Bring the segments and caps of one leaf into a curve, and see what of it has changed."""

from __future__ import annotations

import bisect
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from joulelab.core.errors import ConfigError
from joulelab.twin import layout
from joulelab.twin.power_pieces import Curve, Floats, Ints, Pieces


class Limits(NamedTuple):
    """Hold from when on (ns) which caps are requested and enforced (W), and which share of dynamic power is left."""

    t_ns: Ints
    requested_w: Floats
    enforced_w: Floats
    share: Floats

    def find(self, t_ns: int) -> int:
        """Return the index of what holds at a time."""
        return max(int(np.searchsorted(self.t_ns, t_ns, side="right")) - 1, 0)


FREE = Limits(np.array([layout.ALWAYS]), np.array([np.inf]), np.array([np.inf]), np.ones(1))


class LeafCurve:
    """Remember which part of a leaf is already in its curve."""

    def __init__(self) -> None:
        self.curve = Curve()
        self.state = (0, -1, -1)
        self.limits = FREE

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


def pieces(rows: npt.NDArray[Any], limits: Limits, idle_w: float, begin: int) -> Pieces:
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
    return Pieces(edges, clocked_w, slope[index] * share).clipped(limits.enforced_w[held])


def segment_rows(t_ns: npt.ArrayLike, start_w: npt.ArrayLike, end_w: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return segments (ns, W, W) as rows of the truth file; raise ConfigError if they cannot follow each other."""
    times = np.atleast_1d(np.asarray(t_ns, dtype=np.int64))
    rows = np.zeros(len(times), dtype=layout.SEGMENT)
    rows["t_ns"], rows["start_w"], rows["end_w"] = times, np.atleast_1d(start_w), np.atleast_1d(end_w)
    if not len(rows) or np.any(np.diff(times) < 0) or rows["start_w"][-1] != rows["end_w"][-1]:
        raise ConfigError("segments follow each other in time and the last is constant", where="truth")
    return rows
