"""Bring the segments and caps of one leaf into a curve, and see what of it has changed."""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np
import numpy.typing as npt

from joulelab.core.errors import ConfigError
from joulelab.twin import layout
from joulelab.twin.power_pieces import Curve, Floats, Ints, Pieces

Caps = tuple[Ints, Floats, Floats]  # from when on (ns) which caps are requested and enforced (W)


class LeafCurve:
    """Remember which part of a leaf is already in its curve."""

    def __init__(self) -> None:
        self.curve = Curve()
        self.state = (0, -1, -1)
        none = np.empty(0)
        self.caps: Caps = (none.astype(np.int64), none, none)

    def changed_from(self, rows: npt.NDArray[Any], caps: Caps, count: int) -> int | None:
        """Return the time from which on the curve is no longer right, None if it is."""
        known = self.state[0]
        if not known:
            return int(rows["t_ns"][0])
        changes = [int(rows["t_ns"][known])] if count > known else []
        old, new = list(zip(*self.caps, strict=True)), list(zip(*caps, strict=True))
        shared = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        changes += [max(int(entry[shared][0]), int(rows["t_ns"][0])) for entry in (old, new) if len(entry) > shared]
        return min(changes, default=None)


def pieces(rows: npt.NDArray[Any], caps: Caps, begin: int) -> Pieces:
    """Return the clipped power of a leaf from `begin` (ns) on."""
    first = max(bisect.bisect_right(rows["t_ns"], begin) - 1, 0)  # numpy would copy the whole column first
    t_ns, start_w, end_w = (rows[name][first:].copy() for name in ("t_ns", "start_w", "end_w"))
    width = np.append(np.diff(t_ns), 0).astype(np.float64)
    slope = np.divide(end_w - start_w, width, out=np.zeros_like(width), where=width > 0)
    cap_t, _, cap_w = caps
    edges = np.unique(np.concatenate([[begin], t_ns[t_ns > begin], cap_t[cap_t > begin]])).astype(np.int64)
    index = np.maximum(np.searchsorted(t_ns, edges, side="right") - 1, 0)
    parts = Pieces(edges, start_w[index] + slope[index] * (edges - t_ns[index]), slope[index])
    return parts.clipped(cap_w[np.maximum(np.searchsorted(cap_t, edges, side="right") - 1, 0)])


def segment_rows(t_ns: npt.ArrayLike, start_w: npt.ArrayLike, end_w: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return segments (ns, W, W) as rows of the truth file; raise ConfigError if they cannot follow each other."""
    times = np.atleast_1d(np.asarray(t_ns, dtype=np.int64))
    rows = np.zeros(len(times), dtype=layout.SEGMENT)
    rows["t_ns"], rows["start_w"], rows["end_w"] = times, np.atleast_1d(start_w), np.atleast_1d(end_w)
    if not len(rows) or np.any(np.diff(times) < 0) or rows["start_w"][-1] != rows["end_w"][-1]:
        raise ConfigError("segments follow each other in time and the last is constant", where="truth")
    return rows
