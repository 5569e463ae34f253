"""Compare the energy that a cluster accounted for a job with our own meters over the same stretch of time.

What was accounted is one total between two stamps: it is in no sum beside meters that were read, and it tells nothing
about phases or idle.
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

ACCOUNT_EVENT, JOB_SCOPE = "attached", "job"
NODE_SCOPES = ("node.dc", "node.ac")
EDGE_POWER_S = 1.0  # the power at an edge of our record is the mean over this, or over some steps of a slow meter
EDGE_POWER_STEPS = 3
BOUND_PARTS = 8  # stretches of our record whose mean powers bound what was not seen
ACCOUNT_STAMP_NS = 1_000_000_000  # a cluster's stamps are whole seconds, cut off
IDLE_DRIFT_SHARE = 0.1  # share by which idle power may have been lower than it was measured


@dataclass(frozen=True)
class Accounts:
    """Hold what was accounted of a run: the events that tell of it by host, what was compared, and what was not."""

    told: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    comparisons: tuple[MeterComparison, ...] = ()
    notes: tuple[Check, ...] = ()


def list_account_events(events: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the events that tell of an accounting, by the host folder that holds it."""
    return {str(e["host"]): e for e in events if e.get("event") == ACCOUNT_EVENT and "covers" in e}


def make_account_result(scope: ScopeChannels, a_ns: int, b_ns: int) -> ScopeResult:
    """Return what was accounted as the energy of a workload in [a, b].

    What the row holds beyond the workload took between nothing and the row's mean power: it was at rest then.
    """
    best = scope.best
    since, until = _times(best)
    # What it is over its own edges does not depend on when these were by our clock.
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
        reading=_reading([best], energy, 1.0),
        mean_w=energy * (1 / max((b_ns - a_ns) * 1e-9, 1e-9)),
        statistics=None,
        net=None,
        idle_w=None,
    )


def compare_accounts(
    scopes: Sequence[ScopeChannels],
    told: Mapping[str, Mapping[str, Any]],
    start_ns: int,
    idle: tuple[int, int] | None,
) -> Accounts:
    """Compare every accounting with our own meters on the same nodes; say what is lacking where that cannot be."""
    own = [s for s in scopes if s.host not in told and find_family(s.scope) != JOB_SCOPE and not s.best.spec.estimate]
    found: list[MeterComparison] = []
    notes: list[Check] = []
    for host, event in told.items():
        job = next((s for s in scopes if s.host == host and s.scope == JOB_SCOPE), None)
        name = f"job {event.get('job', '')}"
        if job is None:
            texts = {"reason": str(event["reason"])} if event.get("reason") else {}
            notes.append(Check("accounting.no-energy", "note", name, texts=texts))
            continue
        members, code, texts = _members(own, event)
        compared = _compare(job.best, [m.best for m in members], event, start_ns, idle) if members else None
        if compared is None:
            notes.append(Check("accounting.other-time" if members else code, "note", name, texts=texts))
            continue
        if code:
            notes.append(Check(code, "note", name, texts=texts))
        found.append(_unsure(compared) if code else compared)
    return Accounts(told, tuple(found), tuple(notes))


def _unsure(comparison: MeterComparison) -> MeterComparison:
    """Return a comparison of what is not quite the same: it shows both, and decides nothing."""
    difference = replace(comparison.difference, known=False)
    return replace(comparison, difference=difference, verdict=judge_difference(difference, comparison.best.energy))


def _members(own: Sequence[ScopeChannels], event: Mapping[str, Any]) -> tuple[list[ScopeChannels], str, dict[str, str]]:
    """Return our scopes on the same nodes, and code and names of why they are not the same as the accounting."""
    nodes, covers = [str(n) for n in event.get("nodes", ())], tuple(str(c) for c in event["covers"])
    by_node, lacking = _by_node(own, nodes)
    if not nodes:
        return [], "accounting.unknown-nodes", {}
    if lacking:
        return [], "accounting.no-meter", {"nodes": ", ".join(lacking)}
    for families in (covers, *((other,) for other in NODE_SCOPES if covers[0] in NODE_SCOPES and (other,) != covers)):
        if all(any(find_family(s.scope) == families[0] for s in there) for there in by_node):
            members = [s for there in by_node for s in _top([s for s in there if find_family(s.scope) in families])]
            if families == covers:
                return members, "", {}
            return members, "accounting.other-side", {"covers": covers[0], "ours": families[0]}
    return [], "accounting.not-covered", {"covers": " + ".join(covers)}


def _is_among(host: str, nodes: Sequence[str]) -> bool:
    """Return whether a host is one of the nodes; either may be known by its full name."""
    return host in nodes or host.partition(".")[0] in [node.partition(".")[0] for node in nodes]


def _by_node(own: Sequence[ScopeChannels], nodes: Sequence[str]) -> tuple[list[list[ScopeChannels]], list[str]]:
    """Return our scopes on each of the nodes, and the nodes without any; a host may be known by its full name."""
    hosts: dict[str, list[ScopeChannels]] = {}
    for scope in own:
        hosts.setdefault(scope.host, []).append(scope)
    if len(nodes) == 1 == len(hosts):
        return list(hosts.values()), []
    short = {host.partition(".")[0]: there for host, there in hosts.items()}
    found = {node: hosts.get(node) or short.get(node.partition(".")[0], []) for node in nodes}
    return list(found.values()), [node for node, there in found.items() if not there]


def _top(scopes: Sequence[ScopeChannels]) -> list[ScopeChannels]:
    """Return the scopes of a host that no other of them holds."""
    chosen = set(find_roots([s.scope for s in scopes], {s.scope: s.parent for s in scopes}))
    return [s for s in scopes if s.scope in chosen]


def _compare(
    job: EnergyChannel,
    channels: Sequence[EnergyChannel],
    event: Mapping[str, Any],
    start_ns: int,
    idle: tuple[int, int] | None,
) -> MeterComparison | None:
    """Compare a total with our meters over its stretch of time; None where none of that is in our record."""
    since, until = _times(job)
    ours = _together(channels, since, until, idle)
    if until <= since or ours is None or job.clock_s is None:
        return None
    ours += _shifted(ours, job, channels, event, idle)
    theirs = job.curve.energy(since, until)
    covered = min(_common(channel, since, until) for channel in channels) / (until - since)
    best, other = _reading(channels, ours, covered), _reading([job], theirs, 1.0)
    difference = theirs - ours
    over = ((since - start_ns) * 1e-9, (until - start_ns) * 1e-9)
    return MeterComparison(job.host, JOB_SCOPE, best, other, difference, judge_difference(difference, ours), over)


def _together(
    channels: Sequence[EnergyChannel], since: int, until: int, idle: tuple[int, int] | None
) -> Quantity | None:
    """Return our energy of [since, until] on all nodes, None where one has no reading in it."""
    parts = [_over(channel, since, until, idle) for channel in channels]
    known = [part for part in parts if part is not None]
    return add_quantities(known) if len(known) == len(parts) else None


def _shifted(
    ours: Quantity,
    job: EnergyChannel,
    channels: Sequence[EnergyChannel],
    event: Mapping[str, Any],
    idle: tuple[int, int] | None,
) -> Quantity:
    """Return what it is worth that the cluster's clock may differ from ours: both edges move together.

    A row that holds our record of some nodes cannot have begun after that, nor ended before.
    """
    since, until = _times(job)
    earlier = later = round((job.clock_s or 0.0) * 1e9)
    names = [str(node) for node in event.get("holds", ())]
    for first, last in (_times(c) for c in channels if _is_among(c.host, names)):
        earlier = min(earlier, max(until + ACCOUNT_STAMP_NS - last, 0))
        later = min(later, max(first - since, 0))
    most = 0.0
    for by in (-earlier, later):
        moved = _together(channels, since + by, until + by, idle)
        if moved is None:  # it may not be of the same time at all
            return Quantity(0.0, known=False)
        more = moved.budget().get("missing", 0.0) - ours.budget().get("missing", 0.0)
        most = max(most, abs(moved.value - ours.value) + max(more, 0.0) * math.sqrt(3))
    return Quantity(0.0, {f"clock:{job.host}": most / math.sqrt(3)} if most else {})


def _times(channel: EnergyChannel) -> tuple[int, int]:
    """Return from when to when a channel was read."""
    return int(channel.readings.t0_ns[0]), int(channel.readings.t1_ns[-1])


def _common(channel: EnergyChannel, since: int, until: int) -> int:
    first, last = _times(channel)
    return min(until, last) - max(since, first)


def _over(channel: EnergyChannel, since: int, until: int, idle: tuple[int, int] | None) -> Quantity | None:
    """Return our energy of [since, until]; what lies beyond our record is bounded by the powers that we saw.

    There it was at rest or at work, which may be as much as we ever saw. None where none of it is in our record.
    """
    first, last = _times(channel)
    a, b = max(since, first), min(until, last)
    if b <= a:
        return None
    energy = channel.energy(a, b)
    near_ns = min(round(max(EDGE_POWER_S, EDGE_POWER_STEPS * channel.step_s) * 1e9), b - a)
    highest = max(
        _mean(channel, a + k * (b - a) // BOUND_PARTS, a + (k + 1) * (b - a) // BOUND_PARTS) for k in range(BOUND_PARTS)
    )
    lowest = 0.0 if idle is None else (1 - IDLE_DRIFT_SHARE) * _mean(channel, *idle)
    for missing_ns, near in ((a - since, (a, a + near_ns)), (until - b, (b - near_ns, b))):
        watts, missing_s = max(_mean(channel, *near), 0.0), missing_ns * 1e-9
        half = missing_s * max(watts - lowest, highest - watts, IDLE_DRIFT_SHARE * watts)
        name = f"missing:{channel.host}/{channel.meter}/{channel.stream.name}:{near[0]}"
        energy += Quantity(watts * missing_s, {name: half / math.sqrt(3)} if half else {})
    return energy


def _mean(channel: EnergyChannel, a_ns: int, b_ns: int) -> float:
    """Return the mean power (W) of [a, b]."""
    return channel.energy(a_ns, b_ns).value * 1e9 / max(b_ns - a_ns, 1)


def _reading(channels: Sequence[EnergyChannel], energy: Quantity, covered: float) -> ChannelEnergy:
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
