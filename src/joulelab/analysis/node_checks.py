"""Doubt a run of several nodes: those without a record, holes in a record, and clocks that cannot be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.result import Check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.checks import Facts

HOLE_PERIODS, HOLE_S = 5.0, 1.0  # nothing of a node for longer than this, whichever is longer, is a hole
LISTED = 3


def node_checks(facts: Facts) -> Iterator[Check]:
    """Run the checks of runs that several nodes are part of."""
    yield from _absent(facts)
    by_host: dict[str, list[ScopeChannels]] = {}
    for scope in facts.channels:
        if scope.host not in facts.accounts.told:
            by_host.setdefault(scope.host, []).append(scope)
    for host, scopes in by_host.items():
        if any(c.clock_s is None for s in scopes for c in s.channels):
            message = f"times of {host} cannot be joined with those of the run, so its energy is of another interval"
            yield Check("clocks", "failed", message, "chronyc tracking", host)
        elif (len(by_host) > 1 or facts.named("nodes")) and not facts.imported:
            yield from _holes(facts, host, scopes)


def _absent(facts: Facts) -> Iterator[Check]:
    told = facts.named("nodes")[-1:]
    if not facts.scopes or not told:
        return
    nodes, read = [str(n) for n in told[0].get("nodes", ())], {s.host for s in facts.channels}
    silent = [n for n in nodes if n not in read]
    if silent:
        message = f"{listed(silent)}: of the job, but without readings of power, so its energy is in no sum"
        yield Check("not-recorded.no-readings", "failed", message, "joulelab doctor", ", ".join(silent))
    count = int(told[0].get("count", 0))
    if count > len(nodes):
        missing = count - len(nodes)
        message = f"{missing} of {count} nodes of the job were not recorded, so their energy is in no sum"
        numbers = {"missing": float(missing), "nodes": float(count)}
        yield Check("not-recorded.no-record", "failed", message, "see nodes.log in the run's folder", numbers=numbers)


def _holes(facts: Facts, host: str, scopes: Sequence[ScopeChannels]) -> Iterator[Check]:
    """Find stretches in which nothing at all of a node was read: counters subtract over them, powers do not."""
    channels = [c for s in scopes for c in s.channels]
    inside = [c.readings.t0_ns[c.readings.between(facts.start_ns, facts.end_ns)] for c in channels]
    t = np.unique(np.concatenate([*inside, np.array([facts.start_ns, facts.end_ns], dtype=np.int64)]))
    longest = max(HOLE_PERIODS * min(c.step_s for c in channels), HOLE_S) * 1e9
    holes = [(int(t[k]), int(t[k + 1])) for k in np.flatnonzero(np.diff(t) > longest)]
    if not holes:
        return
    lacking = [s.scope for s in scopes if not all(_counts_over(s, hole) for hole in holes)]
    ends = [f"from {(a - facts.start_ns) * 1e-9:.1f} s to {(b - facts.start_ns) * 1e-9:.1f} s" for a, b in holes]
    where = f"{host}: nothing was read {listed(ends)}"
    since, until = holes[0][0] - facts.start_ns, holes[-1][1] - facts.start_ns
    numbers = {"lost_s": sum(b - a for a, b in holes) * 1e-9, "from_s": since * 1e-9, "to_s": until * 1e-9}
    if lacking:
        message = f"{where}: the energy of {listed(lacking)} there is not measured"
        yield Check(
            "recorder-lost.energy-missing",
            "failed",
            message,
            "measure again",
            ", ".join(f"{host}/{s}" for s in lacking),
            numbers,
        )
    else:
        message = f"{where}; its counters went on, so no energy is missing"
        yield Check("recorder-lost.counted", "note", message, "", host, numbers)


def _counts_over(scope: ScopeChannels, hole: tuple[int, int]) -> bool:
    """Return whether the energy of a scope is that of counters with readings on both sides of a hole."""
    parts = scope.best.members or (scope.best,)
    whole = (p.readings.t0_ns[0] <= hole[0] and p.readings.t1_ns[-1] >= hole[1] for p in parts)
    return all(isinstance(p.curve, CounterCurve) for p in parts) and all(whole)


def listed(names: Sequence[str]) -> str:
    """Return names in words, of many only the first."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
