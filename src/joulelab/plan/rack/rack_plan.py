"""Plan a rack: count the nodes by every rule, and recommend one number. Data only; sentences are in rack_output.py.

The recommendation takes the highest power that was measured or given, at its upper end (errors of meters, hidden peaks,
other nodes), because a rack must not trip. If the nameplate, which holds for any work, allows more, it takes that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError
from joulelab.plan.cap_response import SAME_CAP_W
from joulelab.plan.measured_runs import require_one_origin
from joulelab.plan.rack.cap_guarantee import (
    ACCURACY,
    EFFICIENCIES,
    PEAKS,
    CapGuarantee,
    choose_runs,
    find_cap_cost,
    find_guarantee,
    find_targets,
)
from joulelab.plan.rack.job_mix import fit_mix
from joulelab.plan.rack.limits import EXACT, allow_node_power, find_limits, fit_nodes
from joulelab.plan.rack.peaks import (
    HOUR_S,
    PercentileRefusal,
    compute_exceedance,
    compute_percentile,
    find_hidden_peaks,
    find_joint_peak,
    find_node_spread,
    find_peak,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.measured_runs import HostTrace, MeasuredRun
    from joulelab.plan.plan_tables import NodeKind
    from joulelab.plan.rack.cap_guarantee import CapCost, CapOption, NodeTarget, RunCap
    from joulelab.plan.rack.job_mix import MixFit, MixJob
    from joulelab.plan.rack.limits import Limit, Rack
    from joulelab.plan.rack.peaks import Exceedance, HiddenPeaks, JointPeak, NodeSpread, Peak, Percentile

RuleKind = Literal["nameplate", "maximum", "percentile", "caps"]
Decider = Literal["", "meter", "peaks", "nodes"]


@dataclass(frozen=True, slots=True)
class RuleRow:
    """Hold the answer of one rule: the power of a node (W), how many fit, and the limit that one more would exceed.

    `upper_w` is the power with all known errors, None if they are unknown; `sure` counts the nodes that fit then;
    `lacks` names errors that are not in it. `node_w` of a percentile is the upper end of its interval. `exceed` is how
    often a node was above the power `allowed_w` that each may draw. `refusal` is the reason why there is no answer.
    """

    rule: str
    kind: RuleKind
    node_w: float | None = None
    upper_w: float | None = None
    nodes: int | None = None
    sure: int | None = None
    binding: str = ""
    free: float | None = None
    allowed_w: float | None = None
    exceed: Exceedance | None = None
    percentile: Percentile | None = None
    lacks: tuple[str, ...] = ()
    refusal: Note | None = None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Hold the number of nodes to plan for, and why: `row` at its figure, or at its upper end (`is_upper`).

    `by_reading` nodes would fit by the reading itself; `decider` is the largest error, whose reduction may decide:
    meter, peaks or nodes. `option` is the cap that makes `option_nodes` fit, by the source `option_source`.
    """

    nodes: int
    row: RuleRow
    is_upper: bool
    node_w: float
    free: float
    binding: str
    by_reading: int | None = None
    decider: Decider = ""
    option: CapOption | None = None
    option_nodes: int = 0
    option_source: str = ""


@dataclass(frozen=True)
class RackPlan:
    """Hold the whole answer for a rack of one kind of node; powers are in W at the wall.

    `run_cap` is the cap that all runs were under, None if some had none. `left_out` counts runs under caps, which count
    only for the cost of caps. `twins` is not empty if the answer is from simulated nodes.
    """

    title: str
    rack: Rack
    kind: NodeKind
    limits: tuple[Limit, ...]
    rows: tuple[RuleRow, ...]
    recommendation: Recommendation
    targets: tuple[NodeTarget, ...]
    cost: CapCost
    run_cap: RunCap | None
    guarantee: CapGuarantee | Note
    mix: MixFit | None = None
    peak: Peak | None = None
    hidden: HiddenPeaks | None = None
    spread: NodeSpread | None = None
    joint_peaks: tuple[JointPeak, ...] = ()
    mean_w: float | None = None
    efficiency: float | None = None
    left_out: int = 0
    unread: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()

    def find_row(self, kind: RuleKind) -> RuleRow | None:
        """Return the first row of a kind of rule that has an answer."""
        return next((row for row in self.rows if row.kind == kind and row.nodes is not None), None)


def plan_rack(
    rack: Rack,
    kind: NodeKind,
    measured: Sequence[MeasuredRun] = (),
    jobs: Sequence[tuple[MixJob, Sequence[MeasuredRun]]] = (),
    *,
    title: str = "",
) -> RackPlan:
    """Plan a rack from runs of a kind of node, or from numbers alone.

    Raises ConfigError if the power of a node is unknown, if only parts of nodes were measured, or if runs at the wall
    and behind the supplies, or simulated and measured ones, are mixed.
    """
    require_one_origin([*measured, *(each for _, members in jobs for each in members)])
    runs = [each for each in measured if each.draws]
    unread = tuple(each.result.run for each in measured if not each.draws)
    used, run_cap = choose_runs(runs, kind)
    chosen_jobs = [_choose_job_runs(job, members, kind) for job, members in jobs]
    every = [*used, *(each for _, members in chosen_jobs for each in members)]
    efficiency = _find_efficiency([trace for each in every for trace in each.draws], kind)
    traces = _take_to_wall(used, efficiency)
    limits = find_limits(rack, kind.height_u)
    peak = find_peak(traces) if traces else None
    hidden = find_hidden_peaks(traces) if traces else None
    spread = find_node_spread(traces) if traces else None
    basis = RuleBasis(rack, limits, traces, hidden, spread, run_cap)
    known_wider = None if hidden is not None and hidden.factor is None else basis.wider
    guarantee = find_guarantee(kind, runs, known_wider)
    rows = (
        _count_by_nameplate(basis, kind),
        *_count_by_maximum(basis, peak),
        *_count_by_percentiles(basis),
        *_count_by_caps(basis, guarantee),
    )
    if all(row.nodes is None for row in rows):
        raise _refuse_empty_rack(unread)
    seen_w = max((row.node_w or 0.0 for row in rows if row.kind == "maximum" and row.node_w), default=None)
    cost = find_cap_cost(runs, kind, seen_w)
    best = _recommend(rows, rack, basis, peak)
    most = max(row.nodes for row in rows if row.nodes is not None)
    upper_w = max((row.upper_w or row.node_w or 0.0 for row in rows if row.kind == "maximum"), default=None)
    targets = find_targets(limits, best.nodes + 1, max(most, best.nodes) + 1, guarantee, cost, seen_w, upper_w)
    groups = ([trace for trace in traces if trace.run == each.result.run] for each in used)
    seconds = sum(float(np.isfinite(t.mean_w).sum()) * t.step_s for t in traces)
    return RackPlan(
        title=title,
        rack=rack,
        kind=kind,
        limits=limits,
        rows=rows,
        recommendation=_add_option(best, targets, guarantee, cost),
        targets=targets,
        cost=cost,
        run_cap=run_cap,
        guarantee=guarantee,
        mix=fit_mix(rack, limits, [(job, _take_to_wall(members, efficiency)) for job, members in chosen_jobs]),
        peak=peak,
        hidden=hidden,
        spread=spread,
        joint_peaks=tuple(found for group in groups if (found := find_joint_peak(group)) is not None),
        mean_w=sum(float(np.nansum(t.mean_w)) * t.step_s for t in traces) / seconds if seconds else None,
        efficiency=efficiency,
        left_out=len(runs) - len(used),
        unread=unread,
        twins=tuple(dict.fromkeys(each.result.twin for each in every if each.result.twin)),
    )


def _choose_job_runs(job: MixJob, measured: Sequence[MeasuredRun], kind: NodeKind) -> tuple[MixJob, list[MeasuredRun]]:
    """Return a job and its runs without caps; if there are none, those under the highest, and its name says so."""
    runs = [each for each in measured if each.draws]
    if not runs:
        why = "its runs have no readings over time" if measured else "it has no runs"
        then = "name runs whose nodes were read while they ran"
        raise ConfigError(f"the power of {job.name} of [[mix]] is unknown", why=why, next=then, code="config.no-power")
    used, run_cap = choose_runs(runs, kind)
    named = job if run_cap is None else replace(job, name=f"{job.name} under caps")
    return named, used


def _find_efficiency(traces: Sequence[HostTrace], kind: NodeKind) -> float | None:
    """Return the efficiency by which power is taken to the wall, None if all was measured there. Raises ConfigError."""
    parts = next((t for t in traces if not t.is_whole_node), None)
    if parts is not None:
        why = f"run {parts.run} measured only {', '.join(parts.scopes[:4])}"
        then = "add a meter of the whole node: joulelab meters"
        what = "a rack is planned with the power of whole nodes"
        raise ConfigError(what, where=parts.host, why=why, next=then, code="config.parts-of-node")
    behind = [t for t in traces if t.side == "dc"]
    at_wall = [t for t in traces if t.side == "ac"]
    if behind and at_wall and kind.efficiency is None:
        raise ConfigError(
            "runs measured at the wall (AC) are mixed with runs measured behind the supplies (DC)",
            why=f"AC: {at_wall[0].run} on {at_wall[0].host}; DC: {behind[0].run} on {behind[0].host}",
            next=f"name runs of one kind, or a plan file with efficiency = 0.94 of the supplies in [nodes.{kind.name}]",
            code="config.mixed-sides",
        )
    return (kind.efficiency or EFFICIENCIES[0]) if behind else None


def _take_to_wall(measured: Sequence[MeasuredRun], efficiency: float | None) -> tuple[HostTrace, ...]:
    found = []
    for trace in (trace for each in measured for trace in each.draws):
        if trace.side == "ac" or efficiency is None:
            found.append(trace)
            continue
        idle_w = None if trace.idle_w is None else trace.idle_w * (1 / efficiency)
        mean_w, high_w = trace.mean_w / efficiency, trace.high_w / efficiency
        found.append(replace(trace, side="ac", idle_w=idle_w, mean_w=mean_w, high_w=high_w))
    return tuple(found)


def _refuse_empty_rack(unread: Sequence[str]) -> ConfigError:
    why = "no run, --rated or --max was given"
    if unread:
        why = f"run {unread[0]} has no readings over time, so its highest power is unknown"
    then = "name runs whose nodes were read while they ran, or give --rated 10.2kW or --max 8.48kW"
    return ConfigError("the power of a node is unknown", why=why, next=then, code="config.no-power")


# Rules


@dataclass(frozen=True, slots=True)
class RuleBasis:
    """Hold the input of the rules."""

    rack: Rack
    limits: tuple[Limit, ...]
    traces: tuple[HostTrace, ...]
    hidden: HiddenPeaks | None
    spread: NodeSpread | None
    run_cap: RunCap | None

    @property
    def wider(self) -> float:
        """Return the factor by which a node may draw more than was read, without the meter's error."""
        factor = self.hidden.factor if self.hidden is not None else None
        return (factor or 1.0) * (1 + (self.spread.above if self.spread is not None else 0.0))

    @property
    def lacks(self) -> tuple[str, ...]:
        """Return the errors of the readings that are unknown."""
        accuracy = (ACCURACY,) if any(t.gain is None for t in self.traces) else ()
        return (*accuracy, *((PEAKS,) if self.hidden is not None and self.hidden.factor is None else ()))

    def count_nodes(self, rule: str, kind: RuleKind, node_w: float, upper_w: float | None) -> RuleRow:
        """Return the row of a rule: how many nodes of `node_w`, and of `upper_w`, fit."""
        found = fit_nodes(self.limits, node_w)
        return RuleRow(
            rule,
            kind,
            node_w,
            upper_w,
            found.nodes,
            None if upper_w is None else fit_nodes(self.limits, upper_w).nodes,
            found.binding.name,
            self.rack.compute_free_share(found.nodes, node_w),
            allow_node_power(self.limits, found.nodes) if found.nodes else None,
        )

    def add_exceedance(self, row: RuleRow) -> RuleRow:
        """Return a row with the share of time in which a node was above its allowed power."""
        if not self.traces or row.allowed_w is None:
            return row
        gain = max(t.gain or 0.0 for t in self.traces)
        # As in `fit_nodes`: a node that fits to the watt does not exceed it by rounding.
        limit_w = row.allowed_w * (1 + EXACT)
        confidence = self.rack.rules.confidence
        over = compute_exceedance(self.traces, limit_w, confidence=confidence, wider=(1 + gain) * self.wider)
        return replace(row, exceed=over)


def _count_by_nameplate(basis: RuleBasis, kind: NodeKind) -> RuleRow:
    rated_w = kind.rated_w or max((t.rated_w for t in basis.traces if t.rated_w is not None), default=None)
    if rated_w is None:
        return RuleRow("nameplate", "nameplate", refusal=Note("rack.nameplate-unknown"))
    row = basis.count_nodes("nameplate", "nameplate", rated_w, rated_w)
    return row if basis.run_cap else basis.add_exceedance(row)


def _count_by_maximum(basis: RuleBasis, peak: Peak | None) -> list[RuleRow]:
    found = []
    if peak is not None:
        name = "simulated maximum" if peak.is_simulated else "measured maximum"
        row = basis.count_nodes(name, "maximum", peak.value_w, peak.plan_w * basis.wider)
        found.append(basis.add_exceedance(replace(row, lacks=basis.lacks)))
    given_w = basis.rack.rules.max_w
    if given_w is not None:
        row = basis.count_nodes("maximum as given" if found else "measured maximum", "maximum", given_w, None)
        row = replace(row, lacks=(ACCURACY, PEAKS))
        found.append(row if basis.run_cap else basis.add_exceedance(row))
    return found or [RuleRow("measured maximum", "maximum", refusal=Note("rack.maximum-unknown"))]


def _count_by_percentiles(basis: RuleBasis) -> list[RuleRow]:
    found = []
    for p in dict.fromkeys(basis.rack.rules.percentiles) if basis.traces else ():
        one = compute_percentile(basis.traces, p / 100, confidence=basis.rack.rules.confidence)
        if isinstance(one, PercentileRefusal):
            found.append(RuleRow(f"p{p:.10g}", "percentile", refusal=describe_refusal(one)))
            continue
        row = basis.count_nodes(f"p{p:.10g}", "percentile", one.high_w, one.plan_w * basis.wider)
        found.append(basis.add_exceedance(replace(row, lacks=basis.lacks, percentile=one)))
    return found


def describe_refusal(one: PercentileRefusal) -> Note:
    """Return the note of a refused percentile."""
    numbers = {"blocks": one.blocks, "needed": one.needed, "block_s": one.block_s}
    numbers |= {"observed_s": one.hours * HOUR_S, "needed_s": one.hours_needed * HOUR_S}
    numbers |= {"runs_needed": one.runs_needed} if one.runs_needed else {}
    return Note("rack.percentile-refused", numbers, {"p": f"p{100 * one.p:.10g}"})


def _count_by_caps(basis: RuleBasis, guarantee: CapGuarantee | Note) -> list[RuleRow]:
    asked = basis.rack.rules.caps_w
    if isinstance(guarantee, Note):
        return [RuleRow(f"caps {cap:g} W", "caps", refusal=guarantee) for cap in asked] or [
            RuleRow("caps", "caps", refusal=guarantee)
        ]
    limit = [] if guarantee.gpu_w is None else [guarantee.gpu_w]
    if not limit and not asked:
        return [RuleRow("caps", "caps", refusal=Note("rack.cap-limit-unknown"))]
    return [_count_by_cap(basis, guarantee, cap_w) for cap_w in dict.fromkeys([*limit, *asked])]


def _count_by_cap(basis: RuleBasis, guarantee: CapGuarantee, cap_w: float) -> RuleRow:
    rule, gpu_w = f"caps {cap_w:g} W", guarantee.gpu_w
    if gpu_w is not None and not guarantee.lowest_cap_w <= cap_w <= gpu_w:
        numbers = {"gpu_w": gpu_w, "lowest_w": guarantee.lowest_cap_w}
        return RuleRow(rule, "caps", refusal=Note("rack.cap-not-taken", numbers))
    node_w = guarantee.bound_node(cap_w)
    row = basis.count_nodes(rule, "caps", node_w, node_w)
    # The maker's nameplate holds at the highest cap, whatever the GPUs read.
    is_plate = gpu_w is not None and cap_w >= gpu_w and guarantee.source == "nameplate"
    row = replace(row, lacks=() if is_plate else guarantee.lacks)
    seen_w = gpu_w if basis.run_cap is None else basis.run_cap.cap_w
    return basis.add_exceedance(row) if seen_w is not None and abs(cap_w - seen_w) <= SAME_CAP_W else row


# Recommendation


def _recommend(rows: Sequence[RuleRow], rack: Rack, basis: RuleBasis, peak: Peak | None) -> Recommendation:
    """Choose the rule and the number: the highest power at its upper end, or the nameplate if it allows more."""
    plate = next((row for row in rows if row.kind == "nameplate" and row.nodes is not None), None)
    maxima = [row for row in rows if row.kind == "maximum" and row.nodes is not None]
    if not maxima:
        row = plate or next(row for row in rows if row.nodes is not None)
        return _make_recommendation(row, rack, basis, is_upper=False)
    row = min(maxima, key=lambda row: (_count_safe(row), -(row.node_w or 0.0)))
    is_above_plate = plate is not None and (row.node_w or 0.0) > (plate.node_w or 0.0)
    if plate is not None and not is_above_plate and (plate.nodes or 0) > _count_safe(row):
        return _make_recommendation(plate, rack, basis, is_upper=False)
    is_upper = _count_safe(row) < (row.nodes or 0)
    found = _make_recommendation(row, rack, basis, is_upper=is_upper)
    if not is_upper or peak is None:
        return found
    errors: dict[Decider, float] = {
        "meter": peak.plan_w / peak.value_w - 1,
        "peaks": ((basis.hidden.factor if basis.hidden is not None else None) or 1.0) - 1,
        "nodes": basis.spread.above if basis.spread is not None else 0.0,
    }
    return replace(found, by_reading=row.nodes, decider=max(errors, key=lambda name: errors[name]))


def _count_safe(row: RuleRow) -> int:
    return (row.nodes if row.sure is None else row.sure) or 0


def _make_recommendation(row: RuleRow, rack: Rack, basis: RuleBasis, *, is_upper: bool) -> Recommendation:
    node_w = (row.upper_w if is_upper else row.node_w) or 0.0
    found = fit_nodes(basis.limits, node_w)
    free = rack.compute_free_share(found.nodes, node_w)
    return Recommendation(found.nodes, row, is_upper, node_w, free, found.binding.name)


def _add_option(
    best: Recommendation, targets: Sequence[NodeTarget], guarantee: CapGuarantee | Note, cost: CapCost
) -> Recommendation:
    """Add the cap with which one more node fits: a guaranteed one, else one by the measured effect of caps.

    A guarantee that is only from the nameplate comes last: its caps are far lower than needed.
    """
    if not targets:
        return best
    ways = [(targets[0].by_guarantee, "guarantee"), (targets[0].by_response, cost.response and cost.response.source)]
    if isinstance(guarantee, CapGuarantee) and guarantee.source == "nameplate":
        ways.reverse()
    for option, source in ways:
        if source and option is not None and option.cap_w is not None and option.is_needed:
            return replace(best, option=option, option_nodes=targets[0].nodes, option_source=source)
    return best
