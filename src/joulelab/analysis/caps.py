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
    from joulelab.analysis.result import CheckStatus

# Devices round what they are asked for; more than this is another cap.
ROUNDING_W = 1.0
# The mean power of a capped device stays below its cap but for this share, which its own meter may be wrong by.
ABOVE = 1.05
# A CPU package may exceed its cap for a time window of its own, 28 s in many.
SETTLED_S = 60.0
STATUS = "joulelab cap status"
FOREVER = 1 << 62
NOTED_NS = 2_000_000_000  # a change is noted a moment after it was made


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
    asked, away = _asked(facts), _away(facts)
    for scope in facts.channels:
        ours = asked.get((scope.host, scope.scope))
        if ours is None:
            yield from _changed(facts, scope)
        else:
            yield from _kept(facts, scope, ours, away)
        yield from _enforced(facts, scope, ours)
    for event in facts.named("cap-restored"):
        if event.get("outcome") in ("left", "failed"):
            code = "cap.left" if event["outcome"] == "left" else "cap.not-restored"
            yield Check(code, "warning", str(event.get("said", "")), STATUS, str(event.get("scope", "")))
    yield from _keeper(facts, away)


def _asked(facts: Facts) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return what was asked for by host and scope, in order: tuning asks for several caps in one run."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for event in facts.named("cap-set"):
        if event.get("unit") == "W":
            found.setdefault((str(event.get("host", "")), str(event.get("scope"))), []).append(event)
    return found


def _away(facts: Facts) -> list[tuple[int, int]]:
    """Return the stretches (ns) in which no keeper held the caps; one that never ends reaches beyond the run."""
    stretches: list[tuple[int, int]] = []
    for event in facts.events:
        kind, t = event.get("event"), int(event.get("t", 0))
        if kind in ("keeper-died", "caps-released") and (not stretches or stretches[-1][1] <= t):
            stretches.append((t, FOREVER))
        elif kind == "keeper-started" and stretches:
            stretches[-1] = stretches[-1][0], min(stretches[-1][1], t)
    return stretches


def _keeper(facts: Facts, away: list[tuple[int, int]]) -> Iterator[Check]:
    for released in facts.named("caps-released"):
        message = f"the caps were put back before the end: the keeper got {released.get('why', 'a signal')}"
        yield Check("cap.released", "failed", message, "run it again")
    released_at = {int(e.get("t", 0)) for e in facts.named("caps-released")}
    for begin, end in away:
        if begin in released_at:
            continue
        if end == FOREVER and begin < facts.end_ns:
            message = (
                "the keeper of the caps died, and no other could take its place: they were not in force to the end"
            )
            yield Check("cap.keeper-died", "failed", message, STATUS)
        elif end != FOREVER:
            away_s = (end - begin) * 1e-9
            later = f"{away_s:.1f} s later"
            message = f"the keeper of the caps died; {later} another had put back what was found and set them again"
            yield Check("keeper", "warning", message, numbers={"away_s": away_s})


def _changed(facts: Facts, scope: ScopeChannels) -> Iterator[Check]:
    requested = facts.seen(scope, "cap_requested_w")
    if requested.size and float(np.ptp(requested)) > ROUNDING_W:
        low, high = float(requested.min()), float(requested.max())
        called = facts.called(scope)
        message = f"{called}: the cap changed during the run ({low:.0f} to {high:.0f} W)"
        yield Check("cap.changed", "warning", message, scope=called, numbers={"low_w": low, "high_w": high})


def _kept(
    facts: Facts, scope: ScopeChannels, ours: list[Mapping[str, Any]], away: list[tuple[int, int]]
) -> Iterator[Check]:
    readings = scope.state.get("cap_requested_w")
    if readings is None:
        return
    inside = readings.between(facts.start_ns, facts.end_ns)
    times, values = readings.t0_ns[inside], readings.value[inside]
    if len(ours) == 1:  # what shows the only cap that was set is never strange
        other = np.abs(values - float(ours[0]["requested"])) > ROUNDING_W
        times, values = times[other], values[other]
    pairs = zip(times.tolist(), values.tolist(), strict=True)
    strange = [w for t, w in pairs if min(abs(w - known) for known in _expected(t, ours, away)) > ROUNDING_W]
    if strange:
        default = ours[-1].get("default")
        forgot = default is not None and abs(strange[-1] - float(default)) <= ROUNDING_W
        how = "vanished: the device fell back to its default of" if forgot else "was changed by somebody else to"
        caps = " and ".join(dict.fromkeys(f"{float(e['requested']):.0f}" for e in ours))
        message = f"{facts.called(scope)}: the cap of {caps} W {how} {strange[-1]:.0f} W during the run"
        advice = "nvidia-smi -pm 1 keeps the driver loaded, and its caps" if forgot else STATUS
        code = "cap.vanished" if forgot else "cap.overridden"
        numbers = {"cap_w": float(ours[-1]["requested"]), "shown_w": strange[-1]}
        yield Check(code, "failed", message, advice, facts.called(scope), numbers)


def _expected(t: int, ours: list[Mapping[str, Any]], away: list[tuple[int, int]]) -> list[float]:
    """Return what a device may show at a time: the last cap we set, the next just before it is noted, or found."""
    before = [e for e in ours if int(e["t"]) <= t] or ours[:1]
    coming = [e for e in ours if t < int(e["t"]) <= t + NOTED_NS]
    known = [float(e["requested"]) for e in (before[-1], *coming)]
    blink = any(begin - NOTED_NS <= t <= end + NOTED_NS for begin, end in away)
    return known + ([float(ours[0]["found"])] if blink else [])


def _enforced(facts: Facts, scope: ScopeChannels, ours: list[Mapping[str, Any]] | None) -> Iterator[Check]:
    enforced, requested = facts.seen(scope, "cap_enforced_w"), facts.seen(scope, "cap_requested_w")
    if enforced.size and enforced.size == requested.size:
        apart = np.abs(enforced - requested) > ROUNDING_W
        if apart.any():
            e, r = float(enforced[apart][-1]), float(requested[apart][-1])
            numbers = {"enforced_w": e, "requested_w": r, "share": float(apart.mean())}
            often = "" if apart.all() else f", in {apart.mean():.0%} of the readings"
            called = facts.called(scope)
            status: CheckStatus = "warning" if ours is None else "failed"
            message = f"{called}: {e:.0f} W is enforced, {r:.0f} W was requested{often}"
            yield Check("cap.differs", status, message, "nvidia-smi -q -d POWER", called, numbers)
    limits = enforced if enforced.size else requested
    span = (facts.end_ns - facts.start_ns) * 1e-9
    shown = scope.power() or (scope.best if span > SETTLED_S else None)
    if limits.size and shown is not None and span > 0:
        mean, cap = shown.energy(facts.start_ns, facts.end_ns).value / span, float(limits.max())
        if mean > ABOVE * cap:
            message = f"{facts.called(scope)}: {mean:.0f} W on average above the cap of {cap:.0f} W"
            numbers = {"mean_w": mean, "cap_w": cap}
            yield Check("cap-not-enforced", "failed", message, STATUS, facts.called(scope), numbers)
