"""Compare the energy that a cluster accounted for a job with our own meters over the same time.

An accounted energy is one total between two times: it is not added to energies of meters, and it has no phases
and no idle power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.joining import judge_difference
from joulelab.analysis.result import ChannelEnergy, Check, MeterComparison, ScopeResult
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family, find_roots

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.analysis.channels import EnergyChannel, ScopeChannels

ACCOUNT_EVENT = "attached"
JOB_SCOPE = "job"
NODE_SCOPES = ("node.dc", "node.ac")
EDGE_POWER_S = 1.0  # time over which the power at an edge of our record is averaged,
EDGE_POWER_STEPS = 3  # or this many steps of a slow meter
BOUND_PARTS = 8  # parts of our record whose highest mean power bounds the power outside of it
ACCOUNT_STAMP_NS = 1_000_000_000  # a cluster's stamps are whole seconds, rounded down
IDLE_DRIFT_SHARE = 0.1  # share by which idle power may have been lower than measured


@dataclass(frozen=True)
class Accounts:
    """Hold the accountings of a run: their events by host folder, comparisons with our meters, and notes."""

    events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    comparisons: tuple[MeterComparison, ...] = ()
    notes: tuple[Check, ...] = ()


def list_account_events(events: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """List the events of accountings by the host folder that holds each of them."""
    return {str(e["host"]): e for e in events if e.get("event") == ACCOUNT_EVENT and "covers" in e}


def make_account_result(scope: ScopeChannels, a_ns: int, b_ns: int) -> ScopeResult:
    """Return the accounted energy as the result of a workload in [a, b].

    Outside of the workload, power was between zero and the mean of the row.
    """
    best = scope.best
    since, until = _find_times(best)
    # The energy over its own edges does not depend on our clock.
    whole, span = best.curve.energy(since, until), max((until - since) * 1e-9, 1e-9)
    inside = max(min(b_ns, until) - max(a_ns, since), 0) * 1e-9
    mean = whole.value / span
    beyond, lacking = mean * (span - inside), mean * max((b_ns - a_ns) * 1e-9 - inside, 0.0)
    part = Quantity(-beyond / 2, {f"edge:{best.meter}:beyond": beyond / 2 / math.sqrt(3)})
    part += Quantity(lacking, {f"edge:{best.meter}:lacking": lacking / math.sqrt(3)})
    energy = replace(whole, known=False) if best.clock_s is None else whole + part
    return ScopeResult(
        scope=scope.scope,
        host=scope.host,
        parent=scope.parent,
        device=best.stream.device,
        model=best.stream.model,
        reading=_describe_reading([best], energy, 1.0),
        mean_w=energy * (1 / max((b_ns - a_ns) * 1e-9, 1e-9)),
        statistics=None,
        net=None,
        idle_w=None,
    )


def compare_accounts(
    scopes: Sequence[ScopeChannels],
    events: Mapping[str, Mapping[str, Any]],
    start_ns: int,
    idle: tuple[int, int] | None,
) -> Accounts:
    """Compare every accounting with our own meters on the same nodes; add a note for each that cannot be compared."""
    own = [s for s in scopes if s.host not in events and find_family(s.scope) != JOB_SCOPE and not s.best.spec.estimate]
    found: list[MeterComparison] = []
    notes: list[Check] = []
    for host, event in events.items():
        job = next((s for s in scopes if s.host == host and s.scope == JOB_SCOPE), None)
        name = f"job {event.get('job', '')}"
        if job is None:
            texts = {"reason": str(event["reason"])} if event.get("reason") else {}
            notes.append(Check("accounting.no-energy", "note", name, texts=texts))
            continue
        members, code, texts = _select_members(own, event)
        compared = _compare_total(job.best, [m.best for m in members], event, start_ns, idle) if members else None
        if compared is None:
            notes.append(Check("accounting.other-time" if members else code, "note", name, texts=texts))
            continue
        if code:
            notes.append(Check(code, "note", name, texts=texts))
        found.append(_withhold_verdict(compared) if code else compared)
    return Accounts(events, tuple(found), tuple(notes))


def _withhold_verdict(comparison: MeterComparison) -> MeterComparison:
    """Return a comparison without a verdict, for two energies that do not cover exactly the same devices."""
    difference = replace(comparison.difference, known=False)
    return replace(comparison, difference=difference, verdict=judge_difference(difference, comparison.best.energy))


def _select_members(
    own: Sequence[ScopeChannels], event: Mapping[str, Any]
) -> tuple[list[ScopeChannels], str, dict[str, str]]:
    """Return our scopes on the same nodes; if they do not cover the same as the accounting, also a code with names."""
    nodes, covers = [str(n) for n in event.get("nodes", ())], tuple(str(c) for c in event["covers"])
    by_node, lacking = _group_by_node(own, nodes)
    if not nodes:
        return [], "accounting.unknown-nodes", {}
    if lacking:
        return [], "accounting.no-meter", {"nodes": ", ".join(lacking)}
    for families in (covers, *((other,) for other in NODE_SCOPES if covers[0] in NODE_SCOPES and (other,) != covers)):
        if all(any(find_family(s.scope) == families[0] for s in there) for there in by_node):
            members = [
                s for there in by_node for s in _select_roots([s for s in there if find_family(s.scope) in families])
            ]
            if families == covers:
                return members, "", {}
            return members, "accounting.other-side", {"covers": covers[0], "ours": families[0]}
    return [], "accounting.not-covered", {"covers": " + ".join(covers)}


def _is_among(host: str, nodes: Sequence[str]) -> bool:
    """Return whether a host is one of the nodes, by full or short name."""
    return host in nodes or host.partition(".")[0] in [node.partition(".")[0] for node in nodes]


def _group_by_node(own: Sequence[ScopeChannels], nodes: Sequence[str]) -> tuple[list[list[ScopeChannels]], list[str]]:
    """Return our scopes on each of the nodes, by full or short name, and the nodes without any."""
    hosts: dict[str, list[ScopeChannels]] = {}
    for scope in own:
        hosts.setdefault(scope.host, []).append(scope)
    if len(nodes) == 1 == len(hosts):
        return list(hosts.values()), []
    short = {host.partition(".")[0]: there for host, there in hosts.items()}
    found = {node: hosts.get(node) or short.get(node.partition(".")[0], []) for node in nodes}
    return list(found.values()), [node for node, there in found.items() if not there]


def _select_roots(scopes: Sequence[ScopeChannels]) -> list[ScopeChannels]:
    """Return the scopes of a host that are not inside another scope of it."""
    chosen = set(find_roots([s.scope for s in scopes], {s.scope: s.parent for s in scopes}))
    return [s for s in scopes if s.scope in chosen]


def _compare_total(
    job: EnergyChannel,
    channels: Sequence[EnergyChannel],
    event: Mapping[str, Any],
    start_ns: int,
    idle: tuple[int, int] | None,
) -> MeterComparison | None:
    """Compare an accounted total with our meters over its time; None if our record covers none of it."""
    since, until = _find_times(job)
    ours = _add_energies(channels, since, until, idle)
    if until <= since or ours is None or job.clock_s is None:
        return None
    ours += _find_clock_term(ours, job, channels, event, idle)
    theirs = job.curve.energy(since, until)
    times = [_find_times(channel) for channel in channels]
    covered = min(min(until, last) - max(since, first) for first, last in times) / (until - since)
    best, other = _describe_reading(channels, ours, covered), _describe_reading([job], theirs, 1.0)
    difference = theirs - ours
    over = ((since - start_ns) * 1e-9, (until - start_ns) * 1e-9)
    return MeterComparison(job.host, JOB_SCOPE, best, other, difference, judge_difference(difference, ours), over)


def _add_energies(
    channels: Sequence[EnergyChannel], since: int, until: int, idle: tuple[int, int] | None
) -> Quantity | None:
    """Return our energy of [since, until] on all nodes, None if a node has no reading in this time."""
    parts = [_extend_energy(channel, since, until, idle) for channel in channels]
    known = [part for part in parts if part is not None]
    return add_quantities(known) if len(known) == len(parts) else None


def _find_clock_term(
    ours: Quantity,
    job: EnergyChannel,
    channels: Sequence[EnergyChannel],
    event: Mapping[str, Any],
    idle: tuple[int, int] | None,
) -> Quantity:
    """Return the uncertainty from a difference between the cluster's clock and ours: both edges move together.

    An accounted time span that contains our record of some nodes did not begin after it, nor end before it.
    """
    since, until = _find_times(job)
    earlier = later = round((job.clock_s or 0.0) * 1e9)
    names = [str(node) for node in event.get("holds", ())]
    for first, last in (_find_times(c) for c in channels if _is_among(c.host, names)):
        earlier = min(earlier, max(until + ACCOUNT_STAMP_NS - last, 0))
        later = min(later, max(first - since, 0))
    most = 0.0
    for by in (-earlier, later):
        moved = _add_energies(channels, since + by, until + by, idle)
        if moved is None:  # it may be of another time altogether
            return Quantity(0.0, known=False)
        more = moved.budget().get("missing", 0.0) - ours.budget().get("missing", 0.0)
        most = max(most, abs(moved.value - ours.value) + max(more, 0.0) * math.sqrt(3))
    return Quantity(0.0, {f"clock:{job.host}": most / math.sqrt(3)} if most else {})


def _find_times(channel: EnergyChannel) -> tuple[int, int]:
    """Return the times (ns) of the first and last reading."""
    return int(channel.readings.t0_ns[0]), int(channel.readings.t1_ns[-1])


def _extend_energy(channel: EnergyChannel, since: int, until: int, idle: tuple[int, int] | None) -> Quantity | None:
    """Return our energy of [since, until]; None if our record covers none of it.

    Outside of our record, power was between idle and the highest mean power of the record.
    """
    first, last = _find_times(channel)
    a, b = max(since, first), min(until, last)
    if b <= a:
        return None
    energy = channel.energy(a, b)
    near_ns = min(round(max(EDGE_POWER_S, EDGE_POWER_STEPS * channel.step_s) * 1e9), b - a)
    highest = max(
        _find_mean_w(channel, a + k * (b - a) // BOUND_PARTS, a + (k + 1) * (b - a) // BOUND_PARTS)
        for k in range(BOUND_PARTS)
    )
    lowest = 0.0 if idle is None else (1 - IDLE_DRIFT_SHARE) * _find_mean_w(channel, *idle)
    for missing_ns, near in ((a - since, (a, a + near_ns)), (until - b, (b - near_ns, b))):
        watts, missing_s = max(_find_mean_w(channel, *near), 0.0), missing_ns * 1e-9
        half = missing_s * max(watts - lowest, highest - watts, IDLE_DRIFT_SHARE * watts)
        name = f"missing:{channel.host}/{channel.meter}/{channel.stream.name}:{near[0]}"
        energy += Quantity(watts * missing_s, {name: half / math.sqrt(3)} if half else {})
    return energy


def _find_mean_w(channel: EnergyChannel, a_ns: int, b_ns: int) -> float:
    return channel.energy(a_ns, b_ns).value * 1e9 / max(b_ns - a_ns, 1)


def _describe_reading(channels: Sequence[EnergyChannel], energy: Quantity, covered: float) -> ChannelEnergy:
    first = channels[0].spec
    accuracy = next((c.spec.accuracy for c in channels if c.spec.accuracy.source == "unknown"), first.accuracy)
    return ChannelEnergy(
        meter="+".join(dict.fromkeys(c.meter for c in channels)),
        channel="+".join(dict.fromkeys(c.spec.name for c in channels)),
        kind=first.kind,
        energy=energy,
        accuracy=accuracy.source,
        reference=accuracy.reference,
        estimate=False,
        readings=sum(len(c.readings) for c in channels),
        coverage=covered,
    )
