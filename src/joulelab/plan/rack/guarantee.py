"""Bound a node's power by the caps of its GPUs, and find the cap that makes so many nodes fit and what it costs.

A node draws at most what everything but its GPUs does, and the caps over the supplies' efficiency. That is a promise of
the caps, not an observation of workloads; caps are exceeded for moments before they act, which no meter here tells. It
counts what is known of all meters: a GPU holds its cap by its own reading, and fans follow GPUs to powers never seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import add_quantities
from joulelab.core.scope import find_family
from joulelab.plan.cap_response import AT_WALL, U_AT_WALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.core.quantity import Quantity
    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import HostTrace, MeasuredRun
    from joulelab.plan.plan_tables import NodeKind

# Supplies at load, from the worst of 80 PLUS Platinum at full load to the best of Titanium at half: where nobody says.
EFFICIENCIES = (0.90, 0.97)
STEADY = 0.05  # of the GPUs' highest power: where they change by more, two meters' times tell, not the host
FOLLOW = AT_WALL + 2 * U_AT_WALL  # W at the wall for each W more on the GPUs, fans and all, at most
LOWEST = 0.25  # of a GPU's highest cap: none that we know takes less (A100: 100 of 400 W)
SYSTEMATIC = ("gain", "offset")
# What nobody may know of an upper end.
ACCURACY, GPUS_OWN, PEAKS = "the meter's accuracy", "the accuracy of GPUs' own readings", "hidden peaks"
MOMENTS = "a cap acts with a delay: GPUs exceed it for moments, and readings like these do not show how far"

Source = Literal["measured", "given", "nameplate"]


@dataclass(frozen=True, slots=True)
class Line:
    """Hold one bound of a node at the wall: `host_w`, and `slope` W for each W of cap on all GPUs.

    Where caps are above `seen_w` on each GPU, at least FOLLOW for each further W: nobody saw the fans there.
    """

    host_w: float
    slope: float
    seen_w: float = math.inf

    @property
    def steep(self) -> float:
        """Return the slope above what was seen."""
        return max(self.slope, FOLLOW)

    def node_w(self, cap_w: float, gpus: int) -> float:
        """Return what a node draws at most under a cap, in W."""
        beyond = max(cap_w - self.seen_w, 0.0)
        return self.host_w + gpus * ((cap_w - beyond) * self.slope + beyond * self.steep)

    def cap_for(self, node_w: float, gpus: int) -> float:
        """Return the highest cap (W on each GPU) under which it is no more than `node_w`."""
        plain = (node_w - self.host_w) / self.slope / gpus
        if plain <= self.seen_w:
            return plain
        return self.seen_w + (node_w - self.node_w(self.seen_w, gpus)) / self.steep / gpus


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Hold what bounds a node under caps: a line for each efficiency of its supplies and each end of the GPUs' error.

    `lacks` says what nobody knows and is not in it: the accuracy of a meter, what slow readings hide.
    """

    lines: tuple[Line, ...]
    gpus: int
    gpu_w: float | None
    source: Source
    said: str
    lacks: tuple[str, ...] = ()

    @property
    def host_w(self) -> float:
        """Return what a node may draw besides its GPUs, in W at the wall."""
        return max(line.host_w for line in self.lines)

    @property
    def lowest_w(self) -> float:
        """Return below which cap (W) no GPU is known to go; 0 where its highest is not known."""
        return LOWEST * (self.gpu_w or 0.0)

    def node_w(self, cap_w: float) -> float:
        """Return what a node draws at most under a cap (W on each GPU), at the wall."""
        return max(line.node_w(cap_w, self.gpus) for line in self.lines)

    def cap_for(self, node_w: float) -> float:
        """Return the highest cap (W on each GPU) under which a node draws no more than `node_w`; 0 or less: none."""
        return min(line.cap_for(node_w, self.gpus) for line in self.lines)


def guarantee_of(kind: NodeKind, measured: Sequence[MeasuredRun], wider: float | None = 1.0) -> Guarantee | str:
    """Return what caps promise of a kind of node, or why nothing can be said.

    `wider` is by which factor more a node's host may draw than was read: hidden peaks, other nodes; None where nobody
    knows.
    """
    draws = [draw for each in measured for draw in each.draws]
    gpus = kind.gpus or max((draw.gpus for draw in draws), default=0)
    if not gpus:
        return "the number of GPUs is not known; give --gpus"
    shares = (kind.efficiency,) if kind.efficiency else EFFICIENCIES
    gpu_w = kind.gpu_w or gpu_rated_w(measured)
    error = _gpu_error(measured)
    own = "not known how well" if error is None else f"right to {100 * error:.2g} %"
    eff = " to ".join(f"{100 * share:g}" for share in shares)
    said = (
        f"supplies {'' if kind.efficiency else 'assumed '}{eff} % efficient; GPUs hold caps by their own reading, {own}"
    )
    ways = [(s, e) for s in shares for e in ((-error, error) if error else (0.0,))]
    lacks = () if error is not None else (GPUS_OWN,)
    if kind.host_w is not None:
        lines = tuple(Line(kind.host_w / s, (1 + e) / s) for s, e in ways)
        return Guarantee(lines, gpus, gpu_w, "given", f"{kind.host_w:g} W besides the GPUs, as given; {said}", lacks)
    found = [_measured_line(draws, s, e, wider or 1.0) for s, e in ways]
    seen = tuple(line for line in found if line is not None)
    if not seen:
        return _by_nameplate(kind, gpus, gpu_w, [(1 + e) / s for s, e in ways], said, lacks)
    said = f"what a node drew besides its GPUs at most, where they were steady; {said}"
    if gpu_w is None or gpu_w > seen[0].seen_w:
        said += f"; above {seen[0].seen_w:.0f} W on a GPU, which nobody saw, {FOLLOW:.2f} W for each W: fans follow"
    return Guarantee(seen, gpus, gpu_w, "measured", said, _lacks(draws, error, wider))


def _by_nameplate(
    kind: NodeKind, gpus: int, gpu_w: float | None, slopes: Sequence[float], said: str, lacks: tuple[str, ...]
) -> Guarantee | str:
    """Return the nameplate less what caps take off the GPUs: at their highest cap it is the nameplate."""
    if kind.rated_w is None or gpu_w is None:
        return "what a node draws besides its GPUs is not known; give host_w, or rated_w and gpu_w, of the node"
    hosts = [kind.rated_w - gpus * gpu_w * slope for slope in slopes]
    if min(hosts) < 0:
        return f"{gpus} GPUs of {gpu_w:g} W draw more than the node's nameplate allows; correct rated_w or gpu_w"
    lines = tuple(Line(host, slope) for host, slope in zip(hosts, slopes, strict=True))
    return Guarantee(lines, gpus, gpu_w, "nameplate", f"the nameplate less {gpus} GPUs of {gpu_w:g} W; {said}", lacks)


def gpu_rated_w(measured: Sequence[MeasuredRun]) -> float | None:
    """Return the highest rated power of a GPU in the runs, in W: its limit without a cap."""
    devices = [d for each in measured for d in each.result.rated.devices if d.scope.startswith("gpu:")]
    return max((d.watts for d in devices), default=None)


def _gpu_error(measured: Sequence[MeasuredRun]) -> float | None:
    """Return by which share GPUs may read wrong alike (k = 2), None where nobody says or none was read."""
    found: list[float] = []
    for each in measured:
        own = [s.energy for s in each.result.scopes if find_family(s.scope) == "gpu"]
        if not own:
            continue
        whole = add_quantities(own)
        if not whole.known or whole.value <= 0:
            return None
        budget = whole.budget()
        found.append(2 * math.hypot(*(budget.get(name, 0.0) for name in SYSTEMATIC)) / whole.value)
    return max(found, default=None)


def _lacks(draws: Sequence[HostTrace], error: float | None, wider: float | None) -> tuple[str, ...]:
    """Return what nobody knows of the readings that a promise is from."""
    used = [d for d in draws if d.side != "parts" and "gpu" in d.parts]
    found = [ACCURACY] if any(d.gain is None for d in used) else []
    found += [GPUS_OWN] if error is None else []
    return (*found, *([PEAKS] if wider is None else []))


def _measured_line(draws: Sequence[HostTrace], share: float, error: float, wider: float) -> Line | None:
    """Return the line by the most that nodes drew besides their GPUs at the wall, None where that was not measured.

    The GPUs are taken to read wrong by `error`: where the cap is what they read it cancels, as they hold it by that.
    """
    found: list[float] = []
    seen: list[float] = []
    for draw in draws:
        gpu = draw.parts.get("gpu")
        if draw.side == "parts" or gpu is None:
            continue
        whole = np.fmax(draw.high_w, draw.mean_w) * (1 + (draw.gain or 0.0))
        rest = whole - gpu * (1 + error) / share if draw.side == "ac" else (whole - gpu * (1 + error)) / share
        steady = _steady(gpu) & np.isfinite(rest)
        if steady.any():
            highest = float(rest[steady].max())
            found.append(highest + (wider - 1) * max(highest, 0.0))
            seen.append(float(gpu[steady].max()) / max(draw.gpus, 1))
    return Line(max(found), (1 + error) / share, max(seen)) if found else None


def _steady(gpu: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the steps beside which the GPUs' power hardly changes; within the first and last work begins and ends."""
    if gpu.size < 3 or not np.isfinite(gpu).any():
        return np.isfinite(gpu)
    jump = np.abs(np.diff(gpu)) <= STEADY * np.nanmax(gpu)
    return np.concatenate(([False], jump[1:] & jump[:-1], [False]))


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


def cap_by_guarantee(guarantee: Guarantee, node_w: float, response: CapResponse | None) -> Capped:
    """Return the cap that promises at most `node_w` per node, and what it costs."""
    cap_w = math.floor(guarantee.cap_for(node_w) + 1e-6)
    if cap_w <= 0:
        return Capped(None, refused=f"everything but the GPUs may draw {guarantee.host_w:.0f} W already")
    if cap_w < guarantee.lowest_w:
        least = f"no GPU of {guarantee.gpu_w:g} W is known to take less than {guarantee.lowest_w:g} W"
        return Capped(None, refused=f"it would be {cap_w:g} W; {least}")
    if guarantee.gpu_w is not None and cap_w >= guarantee.gpu_w:
        return Capped(guarantee.gpu_w, needed=False)
    return costing(response, float(cap_w))


def cap_by_measurement(response: CapResponse | None, node_w: float, wider: float = 1.0, *, free: bool = True) -> Capped:
    """Return the highest cap under which no node was seen above `node_w`, its highest reading times `wider`.

    `free` is whether the reference was without a cap: else even that has to be set.
    """
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
    if free and found == response.caps_w[-1]:
        return Capped(found, needed=False)
    return costing(response, found)


def costing(response: CapResponse | None, cap_w: float) -> Capped:
    """Return what a cap costs in time and energy; refused below and above the caps there are figures for."""
    if response is None:
        return Capped(cap_w, refused="no run had a cap, so nobody knows what it costs")
    try:
        point = response.at(cap_w)
    except ConfigError:
        lowest, highest = response.caps_w[0], response.caps_w[-1]
        return Capped(cap_w, refused=f"there are figures from {lowest:g} to {highest:g} W only")
    reference = response.points[-1]
    power = point.node_w / reference.node_w
    return Capped(cap_w, point.slowdown, point.slowdown * power)
