"""Say how many nodes fit in a rack, which limit binds, and how much power is stranded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.plan.rack.facility import ELECTRIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.rack.facility import Limit

MOST_NODES = 10_000
EXACT = 1e-9  # a node that fits to the watt fits


@dataclass(frozen=True, slots=True)
class Fit:
    """Hold how many nodes of a power (W) fit, and the limit that keeps out one more."""

    node_w: float
    nodes: int
    binding: Limit


def tightest(limits: Sequence[Limit], nodes: int) -> Limit:
    """Return the limit that allows each of so many nodes least; the first of those that are alike."""
    return min(limits, key=lambda limit: limit.most_w(nodes))


def allowed_w(limits: Sequence[Limit], nodes: int) -> float:
    """Return what each of so many nodes may draw by all limits, in W."""
    return tightest(limits, nodes).most_w(nodes)


def fit(limits: Sequence[Limit], node_w: float) -> Fit:
    """Return how many nodes of a power (W) fit. Raises ConfigError where that power is none, or thousands fit."""
    if not math.isfinite(node_w) or node_w <= 0:
        raise ConfigError(f"no rack is planned with nodes of {node_w:g} W", next="give runs, or --rated 10.2kW")
    for nodes in range(MOST_NODES):
        if node_w > allowed_w(limits, nodes + 1) * (1 + EXACT):
            return Fit(node_w, nodes, tightest(limits, nodes + 1))
    what = f"more than {MOST_NODES} nodes of {node_w:g} W would fit"
    raise ConfigError(what, why="a unit may be wrong", next="give the power of the supply and of a node in W")


def usable_w(limits: Sequence[Limit]) -> float:
    """Return what all nodes together may draw of the supply, in W; cooling and room are not asked."""
    return min(limit.watts for limit in limits if limit.name in ELECTRIC)


def stranded_w(limits: Sequence[Limit], nodes: int, drawn_w: float) -> float:
    """Return what is provisioned for nodes and not used (W) when so many of them draw `drawn_w` each at most."""
    return usable_w(limits) - nodes * drawn_w
