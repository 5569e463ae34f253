"""Compile a node and its load profiles to linear power segments per leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin.profile import Profile, constant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.twin.model import Node

Floats = npt.NDArray[np.float64]
Pieces = tuple[Floats, Floats, Floats]  # times in s, level at start, level at end
Segments = tuple[npt.NDArray[np.int64], Floats, Floats]  # times in ns, W at start, W at end


def check(node: Node, profiles: Mapping[str, Profile]) -> None:
    """Raise ConfigError if a profile is for something the node does not have; `core` follows `cpu` and takes none."""
    valid = {leaf for leaf in node.leaves() if not leaf.startswith("core")}
    valid |= {leaf.partition(":")[0] for leaf in valid}
    for name in profiles:
        if name not in valid:
            raise ConfigError(
                f"no load can be given for {name!r}", where=f"node {node.name}", next=suggest_name(name, valid)
            )


def segments(
    node: Node, profiles: Mapping[str, Profile], start_ns: int, from_s: float, to_s: float
) -> dict[str, Segments]:
    """Return for each leaf the segments of [from_s, to_s) after `start_ns`; the last is constant."""
    check(node, profiles)
    loads = {leaf: _load(node, profiles, leaf, from_s, to_s) for leaf in node.leaves() if leaf != "host"}
    if "host" in profiles:
        loads["host"] = _load(node, profiles, "host", from_s, to_s)
    else:
        loads["host"] = _mean([loads[leaf] for leaf in loads if leaf.startswith("gpu")], from_s, to_s)
    return {leaf: _powers(node, leaf, load, start_ns, to_s) for leaf, load in loads.items()}


def _load(node: Node, profiles: Mapping[str, Profile], leaf: str, from_s: float, to_s: float) -> Pieces:
    """Return the load (0 idle, 1 full) of a leaf: its own profile, its family's, that of its package, or idle."""
    kind, _, number = leaf.partition(":")
    package = (f"cpu:{number}", "cpu") if kind in {"core", "dram"} else ()
    for name in (leaf, kind, *package):
        if name in profiles:
            profile, of = profiles[name], f"{name.partition(':')[0]}:{number}" if number else name
            break
    else:
        profile, of = constant(0.0), leaf
    at, start, end = profile.pieces(from_s, to_s)
    if profile.unit == "W":
        least_w, most_w = (float(node.draws_w(of, load)) for load in (0.0, 1.0))
        start, end = ((watts - least_w) / (most_w - least_w) for watts in (start, end))
        if kind == "dram" and of != leaf:  # a package that sleeps draws less than one without a load
            start, end = np.maximum(start, 0.0), np.maximum(end, 0.0)
    return at, start, end


def _mean(loads: Sequence[Pieces], from_s: float, to_s: float) -> Pieces:
    """Return the mean of several loads, on the union of their edges."""
    if not loads:
        return np.array([from_s]), np.zeros(1), np.zeros(1)
    at = np.unique(np.concatenate([load[0] for load in loads]))
    after = np.append(at[1:], to_s)
    start, end = np.zeros_like(at), np.zeros_like(at)
    for times, first, last in loads:
        width = np.append(times[1:], to_s) - times
        slope = np.divide(last - first, width, out=np.zeros_like(width), where=width > 0)
        index = np.searchsorted(times, at, side="right") - 1
        start += first[index] + slope[index] * (at - times[index])
        end += first[index] + slope[index] * (after - times[index])
    return at, start / len(loads), end / len(loads)


def _powers(node: Node, leaf: str, load: Pieces, start_ns: int, to_s: float) -> Segments:
    at, start, end = load
    if start[-1] != end[-1]:
        at, start, end = np.append(at, to_s), np.append(start, end[-1]), np.append(end, end[-1])
    awake = np.where((start != 0) | (end != 0), 1.0, 0.0)
    start_w, end_w = (np.maximum(node.draws_w(leaf, level, awake), 0.0) for level in (start, end))
    return start_ns + np.rint(at * NS).astype(np.int64), start_w, end_w
