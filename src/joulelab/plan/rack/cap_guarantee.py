"""Bound a node's power by the caps of its GPUs; find the cap with which more nodes fit, and its cost in time.

A node draws at most the power of everything but its GPUs, plus the caps divided by the efficiency of the supplies. This
holds for any work. Caps are exceeded for moments before they act, which no meter here shows. The bound includes the
errors of all meters: a GPU holds its cap by its own reading, and fans follow GPUs to powers that were not seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.plan.cap_response import (
    AT_WALL,
    SAME_CAP_W,
    U_AT_WALL,
    fit_cap_response,
    model_cap_response,
    model_uncapped_runs,
)
from joulelab.plan.measured_runs import find_gain, name_workload
from joulelab.plan.rack.limits import allow_node_power

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import HostTrace, MeasuredRun
    from joulelab.plan.plan_tables import NodeKind
    from joulelab.plan.rack.limits import Limit

# Supplies under load, if nothing is given: from 80 PLUS Platinum at full load to Titanium at half load.
EFFICIENCIES = (0.90, 0.97)
STEADY = 0.05  # of the GPUs' highest power: where they change by more, the times of two meters matter
FOLLOW = AT_WALL + 2 * U_AT_WALL  # W at the wall for each W more on the GPUs, fans included, at most
LOWEST_CAP = 2 / 7  # of a GPU's highest cap: what an H100 takes (200 of 700 W); an A100 takes a little less
SAME_POWER = 0.95  # of the highest power: work that draws less does not show the effect of caps on the hottest
# Errors that may be unknown, and then are not in an upper end.
ACCURACY, GPU_ACCURACY, PEAKS = "accuracy of the meter", "accuracy of the GPUs' own readings", "hidden peaks"
MOST_TARGETS = 3


@dataclass(frozen=True, slots=True)
class CapBound:
    """Hold one bound of a node at the wall: `host_w`, and `slope` W for each W of cap on all GPUs.

    For caps above `seen_w` on each GPU, at least FOLLOW for each further W: the fans were not seen there.
    """

    host_w: float
    slope: float
    seen_w: float = math.inf

    def bound_node(self, cap_w: float, gpus: int) -> float:
        """Return the highest power (W) of a node under a cap."""
        beyond = max(cap_w - self.seen_w, 0.0)
        return self.host_w + gpus * ((cap_w - beyond) * self.slope + beyond * max(self.slope, FOLLOW))

    def find_cap(self, node_w: float, gpus: int) -> float:
        """Return the highest cap (W on each GPU) with which a node draws at most `node_w`."""
        plain = (node_w - self.host_w) / self.slope / gpus
        if plain <= self.seen_w:
            return plain
        return self.seen_w + (node_w - self.bound_node(self.seen_w, gpus)) / max(self.slope, FOLLOW) / gpus


@dataclass(frozen=True, slots=True)
class CapGuarantee:
    """Hold the bounds of a node under caps: one for each efficiency of its supplies and each end of the GPUs' error.

    `source` is where the power besides the GPUs is from. `lacks` are the errors that are unknown and not in it.
    """

    bounds: tuple[CapBound, ...]
    gpus: int
    gpu_w: float | None
    source: Literal["measured", "given", "nameplate"]
    lacks: tuple[str, ...] = ()

    @property
    def host_w(self) -> float:
        """Return the highest power of a node besides its GPUs, in W at the wall."""
        return max(bound.host_w for bound in self.bounds)

    @property
    def lowest_cap_w(self) -> float:
        """Return the lowest cap (W) that a GPU is known to take; 0 if its highest is unknown."""
        return LOWEST_CAP * (self.gpu_w or 0.0)

    def bound_node(self, cap_w: float) -> float:
        """Return the highest power (W) of a node under a cap (W on each GPU), at the wall."""
        return max(bound.bound_node(cap_w, self.gpus) for bound in self.bounds)

    def find_cap(self, node_w: float) -> float:
        """Return the highest cap (W on each GPU) with which a node draws at most `node_w`; 0 or less: none."""
        return min(bound.find_cap(node_w, self.gpus) for bound in self.bounds)


def find_guarantee(kind: NodeKind, measured: Sequence[MeasuredRun], wider: float | None = 1.0) -> CapGuarantee | Note:
    """Return the guarantee of caps for a kind of node, or the reason why there is none.

    `wider` is the factor by which the rest of a node may draw more than was read (hidden peaks, other nodes); None if
    it is unknown.
    """
    traces = [trace for each in measured for trace in each.draws]
    seen_gpus = max((trace.gpus for trace in traces), default=0)
    gpus = kind.gpus or seen_gpus
    if not gpus:
        return Note("rack.gpus-unknown")
    _check_given_gpus(kind, traces, seen_gpus)
    shares = (kind.efficiency,) if kind.efficiency else EFFICIENCIES
    gpu_w = kind.gpu_w or find_gpu_limit(measured)
    error = _find_gpu_error(measured)
    ways = [(s, e) for s in shares for e in ((-error, error) if error else (0.0,))]
    lacks = () if error is not None else (GPU_ACCURACY,)
    if kind.host_w is not None:
        bounds = tuple(CapBound(kind.host_w / s, (1 + e) / s) for s, e in ways)
        return CapGuarantee(bounds, gpus, gpu_w, "given", lacks)
    found = [_measure_bound(traces, s, e, wider or 1.0) for s, e in ways]
    seen = tuple(bound for bound in found if bound is not None)
    if seen:
        used = [t for t in traces if t.side != "parts" and "gpu" in t.parts]
        accuracy = (ACCURACY,) if any(t.gain is None for t in used) else ()
        return CapGuarantee(seen, gpus, gpu_w, "measured", (*accuracy, *lacks, *(() if wider else (PEAKS,))))
    if kind.rated_w is None or gpu_w is None:
        return Note("rack.host-unknown")
    # The nameplate less the power that caps take off the GPUs: at their highest cap it is the nameplate.
    hosts = [kind.rated_w - gpus * gpu_w * (1 + e) / s for s, e in ways]
    if min(hosts) < 0:
        return Note("rack.gpus-above-nameplate", {"gpus": gpus, "gpu_w": gpu_w, "rated_w": kind.rated_w})
    bounds = tuple(CapBound(host, (1 + e) / s) for host, (s, e) in zip(hosts, ways, strict=True))
    return CapGuarantee(bounds, gpus, gpu_w, "nameplate", lacks)


def _check_given_gpus(kind: NodeKind, traces: Sequence[HostTrace], seen_gpus: int) -> None:
    """Refuse fewer or smaller GPUs than were measured: the guarantee would be too low. Raises ConfigError."""
    if kind.gpus is not None and kind.gpus < seen_gpus:
        what, then = f"a node has {kind.gpus} GPUs", "correct --gpus (gpus in a plan file), or leave it out"
        raise ConfigError(what, why=f"{seen_gpus} were measured on one", next=then, code="config.gpu-count")
    shares = [float(np.nanmax(t.parts["gpu"])) / t.gpus for t in traces if t.gpus and "gpu" in t.parts]
    if kind.gpu_w is not None and max(shares, default=0.0) > (1 + STEADY) * kind.gpu_w:
        what = f"the highest cap of a GPU is {kind.gpu_w:g} W"
        why, then = f"GPUs drew {max(shares):.0f} W each", "correct --gpu-power (gpu_w in a plan file)"
        raise ConfigError(what, why=why, next=then, code="config.gpu-power")


def find_gpu_limit(measured: Sequence[MeasuredRun]) -> float | None:
    """Return the highest rated power of a GPU in the runs, in W: its limit without a cap."""
    devices = [d for each in measured for d in each.result.rated.devices if d.scope.startswith("gpu:")]
    return max((d.watts for d in devices), default=None)


def _find_gpu_error(measured: Sequence[MeasuredRun]) -> float | None:
    """Return the common error of the GPUs' own readings (share, k = 2), None if it is unknown or none was read."""
    found: list[float] = []
    for each in measured:
        own = [s.energy for s in each.result.scopes if find_family(s.scope) == "gpu"]
        if not own:
            continue
        gain = find_gain(add_quantities(own))
        if gain is None:
            return None
        found.append(gain)
    return max(found, default=None)


def _measure_bound(traces: Sequence[HostTrace], share: float, error: float, wider: float) -> CapBound | None:
    """Return the bound by the highest power of nodes besides their GPUs at the wall, None if it was not measured.

    The GPUs are taken to read wrong by `error`: it cancels where the cap equals their reading.
    """
    found: list[float] = []
    seen: list[float] = []
    for trace in traces:
        gpu = trace.parts.get("gpu")
        if trace.side == "parts" or gpu is None:
            continue
        whole = np.fmax(trace.high_w, trace.mean_w) * (1 + (trace.gain or 0.0))
        rest = whole - gpu * (1 + error) / share if trace.side == "ac" else (whole - gpu * (1 + error)) / share
        steady = _find_steady_steps(gpu) & np.isfinite(rest)
        if steady.any():
            highest = float(rest[steady].max())
            found.append(highest + (wider - 1) * max(highest, 0.0))
            seen.append(float(gpu[steady].max()) / max(trace.gpus, 1))
    return CapBound(max(found), (1 + error) / share, max(seen)) if found else None


def _find_steady_steps(gpu: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the steps around which the GPUs' power hardly changes, without the first and the last."""
    if gpu.size < 3 or not np.isfinite(gpu).any():
        return np.isfinite(gpu)
    steady = np.abs(np.diff(gpu)) <= STEADY * np.nanmax(gpu)
    return np.concatenate(([False], steady[1:] & steady[:-1], [False]))


# Runs under caps


@dataclass(frozen=True, slots=True)
class RunCap:
    """Hold the cap that a run was under: its value and unit (W or Hz), its scope, and the cap on each GPU in W."""

    value: float
    unit: str
    scope: str
    cap_w: float | None = None


def find_run_cap(each: MeasuredRun, measured: Sequence[MeasuredRun], kind: NodeKind) -> RunCap | None:
    """Return the cap that a run was under, None if it had none below the limit of its GPUs."""
    gpus = [c for c in each.result.caps if find_family(c.scope) == "gpu" and c.unit == "W"]
    others = [c for c in each.result.caps if c not in gpus]
    found = max((c.found for c in gpus if c.found is not None), default=None)
    limit_w = kind.gpu_w or find_gpu_limit(measured) or found
    asked_w = max((c.asked for c in gpus), default=None)
    if asked_w is not None and (limit_w is None or asked_w < limit_w - SAME_CAP_W):
        return RunCap(asked_w, "W", "each GPU", asked_w)
    return RunCap(others[0].asked, others[0].unit, others[0].scope) if others else None


def choose_runs(measured: Sequence[MeasuredRun], kind: NodeKind) -> tuple[list[MeasuredRun], RunCap | None]:
    """Return the runs without caps; if there are none, those at the highest cap of each workload, and that cap."""
    caps = [find_run_cap(each, measured, kind) for each in measured]
    uncapped = [each for each, cap in zip(measured, caps, strict=True) if cap is None]
    if uncapped or not measured:
        return uncapped, None
    groups: dict[str, list[tuple[float, MeasuredRun, RunCap]]] = {}
    for each, cap in zip(measured, caps, strict=True):
        assert cap is not None
        groups.setdefault(name_workload(each.result), []).append((cap.cap_w or 0.0, each, cap))
    kept = [one for group in groups.values() for one in group if one[0] >= max(g[0] for g in group) - SAME_CAP_W]
    return [each for _, each, _ in kept], max(kept, key=lambda one: one[0])[2]


# The cost of caps


@dataclass(frozen=True, slots=True)
class CapCost:
    """Hold the effect of caps on time and power, or the reason why it is unknown.

    `against_w` is the cap of the reference, None if that was without a cap.
    """

    response: CapResponse | None
    refusal: Note | None = None
    against_w: float | None = None


def find_cap_cost(measured: Sequence[MeasuredRun], kind: NodeKind, max_w: float | None) -> CapCost:
    """Return the effect of caps on the hottest workload if it was measured under several, else by the model.

    `max_w` is a maximum that was given (W at the wall). Work that draws less than the hottest is less slow under a cap,
    so its runs are not used.
    """
    groups: dict[str, list[MeasuredRun]] = {}
    for each in measured:
        groups.setdefault(name_workload(each.result), []).append(each)
    wall = {"ac": 1.0, "dc": 1 / (kind.efficiency or EFFICIENCIES[0]), "parts": 1.0}
    peaks = [(max(t.highest_w * wall[t.side] for m in group for t in m.draws), group) for group in groups.values()]
    hottest_w = max((peak_w for peak_w, _ in peaks), default=0.0)
    if peaks and SAME_POWER * (max_w or 0.0) > hottest_w:
        return CapCost(None, Note("rack.cost-of-maximum", {"max_w": max_w or 0.0}))
    peaks = [peak for peak in peaks if peak[0] >= SAME_POWER * hottest_w]
    hottest = [group for _, group in sorted(peaks, key=lambda peak: -peak[0])]
    why = ""
    for group in hottest:
        try:
            found = fit_cap_response(group, highest_cap_w=kind.gpu_w)
        except ConfigError as error:
            why = why or str(error)
            continue
        is_free = any(find_run_cap(each, group, kind) is None for each in group)
        return CapCost(found, None, None if is_free else found.caps_w[-1])
    try:
        return _model_cap_cost(hottest[0] if hottest else [], kind, max_w, why)
    except (ConfigError, ValueError) as error:
        return CapCost(None, Note("rack.cost-unknown", texts={"why": str(error)}))


def _model_cap_cost(group: Sequence[MeasuredRun], kind: NodeKind, max_w: float | None, why: str) -> CapCost:
    traces = [trace for each in group for trace in each.draws]
    if any(trace.gpus for trace in traces):
        return CapCost(model_uncapped_runs(group, kind.gpu_w))
    if not (kind.gpus and kind.gpu_w):
        return CapCost(None, Note("rack.gpus-unknown"))
    if any(find_run_cap(each, group, kind) for each in group):
        return CapCost(None, Note("rack.cost-unknown", texts={"why": why}))
    if not traces and max_w is None:
        return CapCost(None, Note("rack.maximum-unknown"))
    node_w = _average_power(group) if traces else Quantity(max_w or 0.0, known=False)
    highest_w = max((t.highest_w for t in traces), default=max_w or 0.0)
    return CapCost(model_cap_response(node_w, highest_w, gpus=kind.gpus, gpu_w=kind.gpu_w))


def _average_power(group: Sequence[MeasuredRun]) -> Quantity:
    times = [each.result.duration_s for each in group]
    energy = add_quantities(each.energies([0.0, time])[0] for each, time in zip(group, times, strict=True))
    return energy * (1 / sum(time * len(each.draws) for each, time in zip(group, times, strict=True)))


# The cap with which more nodes fit


@dataclass(frozen=True, slots=True)
class CapOption:
    """Hold a cap (W on each GPU) with its cost: time and energy as ratios to those without it, None if unknown.

    `refusal` is the reason why there is no such cap, or why its cost is unknown. It may not be needed (`is_needed`).
    """

    cap_w: float | None
    slowdown: Quantity | None = None
    energy: Quantity | None = None
    refusal: Note | None = None
    is_needed: bool = True


@dataclass(frozen=True, slots=True)
class NodeTarget:
    """Hold the needs of a number of nodes: the power that each may draw (W), and the caps that keep it.

    `short_w` is the power that they lack without caps. Without room (`has_room`) no cap helps.
    """

    nodes: int
    allowed_w: float
    short_w: float | None = None
    by_guarantee: CapOption | None = None
    by_response: CapOption | None = None
    has_room: bool = True


def find_targets(
    limits: Sequence[Limit],
    first: int,
    last: int,
    guarantee: CapGuarantee | Note,
    cost: CapCost,
    highest_w: float | None,
    upper_w: float | None,
) -> tuple[NodeTarget, ...]:
    """Return the needs of `first` to `last` nodes, of the first few of these.

    `highest_w` is the highest power of a node (W at the wall), `upper_w` the same with all known errors.
    """
    found = []
    # Caps are taken to lower the highest power of all work by the share that was seen on the meter's side.
    wider = upper_w / cost.response.points[-1].highest_w if upper_w and cost.response is not None else 1.0
    for nodes in range(first, last + 1)[:MOST_TARGETS]:
        each_w = allow_node_power(limits, nodes)
        if each_w <= 0:
            found.append(NodeTarget(nodes, each_w, has_room=False))
            continue
        short_w = None if highest_w is None else max(nodes * (highest_w - each_w), 0.0)
        kept = None if isinstance(guarantee, Note) else find_guaranteed_cap(guarantee, each_w, cost.response)
        seen = find_measured_cap(cost.response, each_w, wider, is_free=cost.against_w is None)
        if cost.response is not None and cost.response.source == "model" and seen.is_needed and kept and kept.cap_w:
            # A cap by the model is no lower than a guaranteed one.
            seen = kept if seen.cap_w is None or seen.cap_w < kept.cap_w else seen
        found.append(NodeTarget(nodes, each_w, short_w, kept, seen))
    return tuple(found)


def find_guaranteed_cap(guarantee: CapGuarantee, node_w: float, response: CapResponse | None) -> CapOption:
    """Return the cap that guarantees at most `node_w` per node, and its cost."""
    cap_w = math.floor(guarantee.find_cap(node_w) + 1e-6)
    if cap_w <= 0:
        return CapOption(None, refusal=Note("rack.host-too-high", {"host_w": guarantee.host_w}))
    if cap_w < guarantee.lowest_cap_w:
        numbers = {"cap_w": cap_w, "gpu_w": guarantee.gpu_w or 0.0, "lowest_w": guarantee.lowest_cap_w}
        return CapOption(None, refusal=Note("rack.cap-too-low", numbers))
    if guarantee.gpu_w is not None and cap_w >= guarantee.gpu_w:
        return CapOption(guarantee.gpu_w, is_needed=False)
    return add_cap_cost(response, float(cap_w))


def find_measured_cap(
    response: CapResponse | None, node_w: float, wider: float = 1.0, *, is_free: bool = True
) -> CapOption:
    """Return the highest cap with which no node was above `node_w`, its highest reading times `wider`.

    If the reference was not without a cap (`is_free`), even its cap has to be set.
    """
    if response is None:
        return CapOption(None, refusal=Note("rack.cost-unknown"))
    found = None
    for point in response.points:  # from the lowest: a higher cap counts only if all lower ones fit, too
        if point.highest_w * wider > node_w:
            break
        found = point.cap_w
    if found is None:
        return CapOption(None, refusal=_note_figures(response))
    if is_free and found == response.caps_w[-1]:
        return CapOption(found, is_needed=False)
    return add_cap_cost(response, found)


def add_cap_cost(response: CapResponse | None, cap_w: float) -> CapOption:
    """Return a cap with its cost in time and energy; refused outside of the caps with figures."""
    if response is None:
        return CapOption(cap_w, refusal=Note("rack.cost-unknown"))
    try:
        point = response.at(cap_w)
    except ConfigError:
        return CapOption(cap_w, refusal=_note_figures(response))
    power = point.node_w / response.points[-1].node_w
    return CapOption(cap_w, point.slowdown, point.slowdown * power)


def _note_figures(response: CapResponse) -> Note:
    return Note("rack.cap-outside-figures", {"lowest_w": response.caps_w[0], "highest_w": response.caps_w[-1]})
