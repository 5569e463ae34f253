"""Bound a node's power by the caps of its GPUs, and find the cap that makes so many nodes fit and what it costs.

A node draws at most what everything but its GPUs does, and the caps over the supplies' efficiency. That is a promise of
the caps, not an observation of workloads; caps are exceeded for moments before they act, which no meter here tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.series import Floats
    from joulelab.analysis.terms import Quantity
    from joulelab.planner.caps.response import Response
    from joulelab.planner.draws import Draw, Measured
    from joulelab.planner.nodes import NodeKind

# Supplies at load, from the worst of 80 PLUS Platinum at full load to the best of Titanium at half: where nobody says.
EFFICIENCIES = (0.90, 0.97)
STEADY = 0.05  # of the GPUs' highest power: where they change by more, two meters' times tell, not the host
MOMENTS = "a cap acts with a delay: GPUs exceed it for moments, and readings like these do not show how far"

Source = Literal["measured", "given", "nameplate"]


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Hold what a node draws besides its GPUs at the wall (W), for each efficiency that its supplies may have.

    `known` is False where it was measured with a meter of which nobody states the accuracy.
    """

    hosts_w: tuple[float, ...]
    efficiencies: tuple[float, ...]
    gpus: int
    gpu_w: float | None
    source: Source
    said: str
    known: bool = True

    def node_w(self, cap_w: float) -> float:
        """Return what a node draws at most under a cap (W on each GPU), at the wall."""
        return max(
            host + self.gpus * cap_w / share for host, share in zip(self.hosts_w, self.efficiencies, strict=True)
        )

    def cap_for(self, node_w: float) -> float:
        """Return the highest cap (W on each GPU) under which a node draws no more than `node_w`; 0 or less: none."""
        return min(
            (node_w - host) * share / self.gpus for host, share in zip(self.hosts_w, self.efficiencies, strict=True)
        )


def guarantee_of(kind: NodeKind, measured: Sequence[Measured]) -> Guarantee | str:
    """Return what caps promise of a kind of node, or why nothing can be said."""
    draws = [draw for each in measured for draw in each.draws]
    gpus = kind.gpus or max((draw.gpus for draw in draws), default=0)
    if not gpus:
        return "the number of GPUs is not known; give --gpus"
    shares = (kind.efficiency,) if kind.efficiency else EFFICIENCIES
    gpu_w = kind.gpu_w or _gpu_rated_w(measured)
    eff = (
        f"supplies {100 * shares[0]:g} % efficient"
        if kind.efficiency
        else f"supplies assumed {100 * shares[0]:g} to {100 * shares[-1]:g} % efficient"
    )
    if kind.host_w is not None:
        said = f"{kind.host_w:g} W besides the GPUs, as given; {eff}"
        return Guarantee(tuple(kind.host_w / s for s in shares), shares, gpus, gpu_w, "given", said)
    found = [_highest_rest(draws, share) for share in shares]
    rests = tuple(rest for rest, _ in (one for one in found if one is not None))
    if len(rests) == len(shares):
        said = f"what a node drew besides its GPUs at most, where they were steady; {eff}"
        known = all(one is not None and one[1] for one in found)
        return Guarantee(rests, shares, gpus, gpu_w, "measured", said, known)
    if kind.rated_w is None or gpu_w is None:
        return "what a node draws besides its GPUs is not known; give host_w, or rated_w and gpu_w, of the node"
    if any(kind.rated_w < gpus * gpu_w / s for s in shares):
        return f"{gpus} GPUs of {gpu_w:g} W draw more than the node's nameplate allows; correct rated_w or gpu_w"
    said = f"the nameplate less {gpus} GPUs of {gpu_w:g} W; {eff}"
    return Guarantee(tuple(kind.rated_w - gpus * gpu_w / s for s in shares), shares, gpus, gpu_w, "nameplate", said)


def _gpu_rated_w(measured: Sequence[Measured]) -> float | None:
    """Return the highest rated power of a GPU in the runs, in W: its limit without a cap."""
    devices = [d for each in measured for d in each.result.rated.devices if d.scope.startswith("gpu:")]
    return max((d.watts for d in devices), default=None)


def _highest_rest(draws: Sequence[Draw], share: float) -> tuple[float, bool] | None:
    """Return the most that nodes drew besides their GPUs at the wall (W), and whether the meters' gain is in it.

    A GPU's own error cancels where the cap is near what it read: the cap is held by the same reading.
    """
    found: list[float] = []
    known = True
    for draw in draws:
        gpu = draw.parts.get("gpu")
        if draw.side == "parts" or gpu is None:
            continue
        whole = draw.mean_w * (1 + (draw.gain or 0.0))
        rest = whole - gpu / share if draw.side == "ac" else (whole - gpu) / share
        steady = rest[_steady(gpu) & np.isfinite(rest)]
        if steady.size:
            found.append(float(steady.max()))
            known = known and draw.gain is not None
    return (max(found), known) if found else None


def _steady(gpu: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the steps beside which the GPUs' power hardly changes."""
    if gpu.size < 3 or not np.isfinite(gpu).any():
        return np.isfinite(gpu)
    jump = np.abs(np.diff(gpu)) <= STEADY * np.nanmax(gpu)
    return np.concatenate(([jump[0]], jump[1:] & jump[:-1], [jump[-1]]))


@dataclass(frozen=True, slots=True)
class Capped:
    """Hold what a cap (W on each GPU) does: time and energy as ratios to those without it, None where unknown.

    `refused` says why there is no such cap, or why nobody knows what it costs.
    """

    cap_w: float | None
    slowdown: Quantity | None = None
    energy: Quantity | None = None
    refused: str = ""
    needed: bool = True


def cap_by_guarantee(guarantee: Guarantee, node_w: float, response: Response | None) -> Capped:
    """Return the cap that promises at most `node_w` per node, and what it costs."""
    cap_w = math.floor(guarantee.cap_for(node_w) + 1e-6)
    if cap_w <= 0:
        return Capped(None, refused=f"everything but the GPUs may draw {max(guarantee.hosts_w):.0f} W already")
    if guarantee.gpu_w is not None and cap_w >= guarantee.gpu_w:
        return Capped(guarantee.gpu_w, needed=False)
    return costing(response, float(cap_w))


def cap_by_measurement(response: Response | None, node_w: float, wider: float = 1.0) -> Capped:
    """Return the highest cap under which no node was seen above `node_w`, its highest reading times `wider`."""
    if response is None:
        return Capped(None, refused="no run had a cap")
    below = response.caps_w[0]
    found = None
    for point in response.points:  # from the lowest on: a higher cap counts only where all lower ones fit too
        if point.highest_w * wider > node_w:
            break
        found = point.cap_w
    if found is None:
        return Capped(None, refused=f"it would be below {below:g} W, the lowest cap there are figures for")
    if found == response.caps_w[-1]:
        return Capped(found, needed=False)
    return costing(response, found)


def costing(response: Response | None, cap_w: float) -> Capped:
    """Return what a cap costs in time and energy; refused below and above the caps there are figures for."""
    if response is None:
        return Capped(cap_w, refused="no run had a cap, so nobody knows what it costs")
    try:
        point = response.at(cap_w)
    except ConfigError:
        lowest, highest = response.caps_w[0], response.caps_w[-1]
        return Capped(cap_w, refused=f"there are figures from {lowest:g} to {highest:g} W only")
    reference = response.points[-1]
    power = point.node_w.ratio(reference.node_w)
    return Capped(cap_w, point.slowdown, _product(point.slowdown, power))


def _product(a: Quantity, b: Quantity) -> Quantity:
    """Return a product to first order; equal sources add."""
    whole = a.scaled(b.value) + b.scaled(a.value)
    return type(a)(a.value * b.value, whole.terms, whole.known)
