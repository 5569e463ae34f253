"""Tell a run's caps, and doubt them: one that vanished, was changed by somebody else, or is not enforced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.result import CapResult, Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.checks import Facts

# Devices round what they are asked for; more than this is another cap.
ROUNDING_W = 1.0
# The mean power of a capped device stays below its cap but for this share, which its own meter may be wrong by.
ABOVE = 1.05
# A CPU package may exceed its cap for a time window of its own, 28 s in many.
SETTLED_S = 60.0
STATUS = "joulelab cap status"


def caps_of(events: Iterable[Mapping[str, Any]]) -> tuple[CapResult, ...]:
    """Return the caps that a run set itself, each device once."""
    found: dict[tuple[str, str], CapResult] = {}
    for event in events:
        key = (str(event.get("host", "")), str(event.get("device", "")))
        known = found.get(key)
        if event.get("event") == "cap-set":
            changes = 0 if known is None else known.changes + (event["asked"] != known.asked)
            before = event.get("found") if known is None else known.found
            scope, asked, unit = str(event.get("scope", "")), float(event["asked"]), str(event.get("unit", "W"))
            found[key] = CapResult(key[0], scope, asked, before, unit, changes, "")
        elif event.get("event") == "cap-restored" and known is not None:
            found[key] = replace(known, outcome=str(event.get("outcome", "")))
    return tuple(found.values())


def cap_checks(facts: Facts) -> Iterator[Check]:
    """Hold the caps that a run asked for, and those that its devices showed, against each other."""
    asked = _asked(facts)
    for scope in facts.channels:
        ours = asked.get((scope.host, scope.scope))
        yield from _requested(facts, scope, ours)
        yield from _enforced(facts, scope, ours)
    for event in facts.named("cap-restored"):
        if event.get("outcome") in ("left", "failed"):
            yield Check("cap", "warning", str(event.get("said", "")), STATUS)
    for _ in facts.named("keeper-died"):
        yield Check(
            "keeper", "warning", "the keeper of the caps died; another put back what was found and set them again"
        )


def _asked(facts: Facts) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return what was asked for by host and scope, in order: tuning asks for several caps in one run."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for event in facts.named("cap-set"):
        if event.get("unit") == "W":
            found.setdefault((str(event.get("host", "")), str(event.get("scope"))), []).append(event)
    return found


def _requested(facts: Facts, scope: ScopeChannels, ours: list[Mapping[str, Any]] | None) -> Iterator[Check]:
    requested = facts.seen(scope, "cap_requested_w")
    if not requested.size:
        return
    if ours is None:
        if float(np.ptp(requested)) > ROUNDING_W:
            low, high = requested.min(), requested.max()
            yield Check("cap", "warning", f"{scope.scope}: the cap changed during the run ({low:.0f} to {high:.0f} W)")
        return
    wanted = np.array([float(e["requested"]) for e in ours])
    # Where the keeper died, another put back what was found before it set the cap again.
    known = np.append(wanted, [float(e["found"]) for e in ours if facts.named("keeper-died")])
    strange = requested[np.min(np.abs(requested[:, None] - known[None, :]), axis=1) > ROUNDING_W]
    if strange.size:
        other = float(strange[-1])
        default = ours[-1].get("default")
        forgot = default is not None and abs(other - float(default)) <= ROUNDING_W
        how = "vanished: the device fell back to its default of" if forgot else "was changed by somebody else to"
        caps = " and ".join(f"{w:.0f}" for w in dict.fromkeys(wanted))
        message = f"{scope.scope}: the cap of {caps} W {how} {other:.0f} W during the run"
        advice = "nvidia-smi -pm 1 keeps the driver loaded, and its caps" if forgot else STATUS
        yield Check("cap", "failed", message, advice)


def _enforced(facts: Facts, scope: ScopeChannels, ours: list[Mapping[str, Any]] | None) -> Iterator[Check]:
    enforced, requested = facts.seen(scope, "cap_enforced_w"), facts.seen(scope, "cap_requested_w")
    if enforced.size and requested.size and abs(float(enforced[-1]) - float(requested[-1])) > ROUNDING_W:
        message = f"{scope.scope}: {enforced[-1]:.0f} W is enforced, {requested[-1]:.0f} W was requested"
        yield Check("cap", "warning" if ours is None else "failed", message, "nvidia-smi -q -d POWER")
    limits = enforced if enforced.size else requested
    span = (facts.end_ns - facts.start_ns) * 1e-9
    shown = scope.power() or (scope.best if span > SETTLED_S else None)
    if limits.size and shown is not None and span > 0:
        mean = shown.energy(facts.start_ns, facts.end_ns).value / span
        if mean > ABOVE * float(limits.max()):
            message = f"{scope.scope}: {mean:.0f} W on average above the cap of {limits.max():.0f} W"
            yield Check("cap not enforced", "failed", message, STATUS)
