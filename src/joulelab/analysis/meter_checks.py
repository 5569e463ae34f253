"""Check the meters of a run: not read, gaps, edges, sensors that measure a part of the time, meters that disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.result import WIDEST_EFFICIENCY, Check
from joulelab.analysis.unseen import FEWEST_STEPS
from joulelab.core.scope import CORDS, find_family

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulelab.analysis.channels import EnergyChannel
    from joulelab.analysis.checks import RunEvidence, UnreadStream
    from joulelab.analysis.readings import Ints
    from joulelab.analysis.result import CheckStatus, ScopeResult

SHORT_RUN = 0.05  # an edge that makes more than 5 % of the energy: the run is too short for its meter
GAP_WARNING, GAP_FAILED = 0.02, 0.10
SEEN = 0.01  # shares of the energy below this are not worth a check
TAIL = "--tail 2"
LEAST_SUPPLY_W = 20.0  # a supply on standby draws less, and its output is a step of its display


def check_meters(run: RunEvidence) -> Iterator[Check]:
    """Run the checks of meters and their readings."""
    yield from _check_presence(run)
    yield from _check_answers(run)
    yield from _check_edges(run)
    yield from _check_gaps(run)
    yield from _check_refresh(run)
    yield from _check_unseen(run)
    yield from _check_in_step(run)
    yield from _check_counters(run)
    yield from _check_agreement(run)
    yield from run.accounts.notes
    yield from run.incomplete
    yield from _check_sums(run)
    yield from _check_supplies(run)
    yield from _check_sources(run)
    yield from _check_imported_totals(run)
    yield from _check_idle_drift(run)


def _check_presence(run: RunEvidence) -> Iterator[Check]:
    if not run.scopes:
        yield Check("power-meter", "failed")
    yield from _check_unread(run)
    unread = list(dict.fromkeys(s.scope for s in run.unread))
    jobs, steps = ([s for s in unread if s == "job"], [s for s in unread if s.startswith("job/")])
    accounted: tuple[tuple[str, CheckStatus, list[str]], ...] = (
        ("accounting.no-job", "failed", jobs),
        ("accounting.no-step", "note", steps),  # the total of a job includes its steps
    )
    for code, status, scopes in accounted:
        if scopes:
            reasons = dict.fromkeys(g.reason for g in run.gaps if g.stream in scopes and g.reason)
            yield Check(code, status, ", ".join(scopes), texts={"reason": "; ".join(reasons)} if reasons else {})
    estimated = [s for s in run.scopes if s.reading.estimate]
    if estimated:
        yield Check("estimate.imported" if run.imported else "estimate", "warning", run.name_scopes(estimated))
    unknown = [s for s in run.scopes if s.reading.accuracy == "unknown"]
    if unknown:
        yield Check("accuracy", "note", run.name_scopes(unknown))


def _check_unread(run: RunEvidence) -> Iterator[Check]:
    alike: dict[tuple[bool, str, str], list[UnreadStream]] = {}
    for s in run.unread:
        if find_family(s.scope) != "job":
            alike.setdefault((s.covered, s.meter, s.reason), []).append(s)
    for (covered, meter, reason), streams in alike.items():
        texts = ({"meter": meter} if all(s.scope for s in streams) else {}) | ({"reason": reason} if reason else {})
        texts |= {} if run.damage else run.name_doctor(meter)
        scope = ", ".join(dict.fromkeys(run.name_place(s.host, s.scope or meter) for s in streams))
        if covered:
            yield Check("not-read.covered", "warning", scope, texts=texts)
        else:
            yield Check("not-read", "failed", scope, texts=texts)


def _check_answers(run: RunEvidence) -> Iterator[Check]:
    last = {e.get("meter"): e.get("status") for e in run.list_events("meter")}
    for meter in (m for m, status in last.items() if status == "opening"):
        yield Check("silent-meter", "failed", str(meter))
    for event in run.list_events("stuck"):
        yield Check("stuck-meter", "warning", str(event.get("meter", "")))
    for meter in sorted({str(e.get("meter", "")) for e in run.list_events("late")}):
        events = [e for e in run.list_events("late") if e.get("meter") == meter]
        missed, ticks = (sum(int(e.get(k, 0)) for e in events) for k in ("missed", "ticks"))
        if missed > max(0.02 * (ticks + missed), 5):
            yield Check("late", "note", meter, {"missed": missed, "ticks": ticks})


def _check_edges(run: RunEvidence) -> Iterator[Check]:
    measured = {(s.host, s.scope) for s in run.scopes}
    for s in run.scopes:
        if find_family(s.scope) in CORDS and (s.host, s.parent) in measured:
            continue  # the sum is what counts
        if run.is_only_accounted(s.host) or 1 - s.reading.coverage > GAP_WARNING:
            continue  # a long time without readings is a gap, and has its own check
        edge = s.energy.budget().get("edge", 0.0)
        if s.energy.value > 0 and 2 * edge > SHORT_RUN * s.energy.value:
            texts = {"meter": s.reading.meter} | ({} if run.imported else {"option": TAIL})
            share = min(2 * edge / s.energy.value, 1.0)  # an interval may be larger than its value, a share may not
            yield Check("too-short", "warning", run.name_scope(s), {"edge_share": share}, texts)


def _check_gaps(run: RunEvidence) -> Iterator[Check]:
    streams = {(c.host, c.scope): {(m.meter, m.stream.name) for m in c.best.members or (c.best,)} for c in run.channels}
    for s in run.scopes:
        lost = 1 - s.reading.coverage
        if lost <= GAP_WARNING or s.host in run.accounts.events:
            continue
        names = streams[s.host, s.scope]
        own = {str(e.get("reason", "")) for e in run.list_events("gap") if e.get("host", s.host) == s.host}
        reasons = {g.reason for g in run.gaps if (g.meter, g.stream) in names and g.reason in own}
        meters = {meter for meter, _ in names}
        texts = {"reason": "; ".join(sorted(reasons))} if reasons else _find_late_meter(run, s.host, meters)
        is_cut = any(p.lost and p.path.name.startswith(f"{s.reading.meter}.") for p in run.damage)
        texts |= {} if is_cut else run.name_doctor(s.reading.meter)
        status: CheckStatus = "failed" if lost > GAP_FAILED else "warning"
        yield Check("gaps", status, run.name_scope(s), {"lost_share": lost}, texts)


def _find_late_meter(run: RunEvidence, host: str, meters: set[str]) -> dict[str, str]:
    """Return a meter of a host that was opened late, and the reason in its event."""
    for event in (e for e in run.list_events("meter") if e.get("host", host) == host):
        if event.get("meter") in meters and event.get("status") != "open":
            reason = str(event.get("what") or event.get("status"))
            return {"late_meter": str(event["meter"]), "late_reason": reason}
    return {}


def _check_refresh(run: RunEvidence) -> Iterator[Check]:
    """Note the meters whose readings show new values less often than stated, each once."""
    slow: dict[str, dict[str, tuple[float, float]]] = {}
    for scope in run.channels:
        for channel in scope.best.members or (scope.best,):
            stated = channel.spec.update_s if channel.spec.update_s is not None else channel.step_s
            if stated and channel.update_s > stated:
                place = run.name_place(channel.host, channel.stream.scope)
                slow.setdefault(channel.meter, {})[place] = stated, channel.update_s
    for places in slow.values():
        stated, found = max(places.values(), key=lambda pair: pair[1])
        yield Check("slow-refresh", "note", ", ".join(places), {"stated_s": stated, "found_s": found})


def _check_unseen(run: RunEvidence) -> Iterator[Check]:
    hidden = [s for s in run.scopes if s.energy.budget().get("unseen", 0.0) > SEEN * abs(s.energy.value)]
    if not hidden:
        return
    whole = next((g.energy for g in run.groups if g.name == "measured" and "unseen" in g.energy.budget()), None)
    if whole is not None and not whole.is_resolved:
        return  # there is no figure that could be wrong
    energies = [s.energy for s in hidden] if whole is None else [whole]
    reach = max((2 * q.with_bound().u / abs(q.value) for q in energies if q.value), default=None)
    steps = _count_steps(run.steps)
    numbers = {"seen_share": _find_least_seen(run, hidden), "steps": steps}
    numbers |= {} if reach is None else {"reach_share": reach} if reach <= 1 else {"over_share": 1.0}
    texts = {} if reach is None else {"reach_of": "their energy" if whole is None else "the total"}
    if steps == 0:
        texts |= {"call": "joulelab.step()"} | ({} if whole is None else {"wall_meter": "joulelab meters"})
    elif steps < FEWEST_STEPS:
        texts |= {"enough_steps": str(FEWEST_STEPS), "few_steps": str(steps)}
    else:
        texts |= {"uneven_steps": str(steps)}
    yield Check("unseen", "note", run.name_scopes(hidden), numbers, texts)


def _check_in_step(run: RunEvidence) -> Iterator[Check]:
    """Warn if evidence shows that a load repeats at the rate of sensors that measure only a part of the time."""
    hit = [s for s in run.scopes if s.energy.budget().get("in-step", 0.0) > SEEN * abs(s.energy.value)]
    doubted = {(c.host, c.scope) for c in run.channels if c.best.in_step}
    by_meter = [s for s in hit if (s.host, s.scope) in doubted]
    by_steps = [s for s in hit if (s.host, s.scope) not in doubted]
    for code, scopes in (("in-step.meter", by_meter), ("in-step.steps", by_steps)):
        if scopes:
            yield Check(code, "warning", run.name_scopes(scopes), {"seen_share": _find_least_seen(run, scopes)})


def _find_least_seen(run: RunEvidence, scopes: Sequence[ScopeResult]) -> float:
    """Return the smallest share of the time in which the sensors of these scopes measure."""
    best = {(c.host, c.scope): c.best for c in run.channels}
    parts = [c for s in scopes for c in best[s.host, s.scope].members or (best[s.host, s.scope],)]
    return min(map(_compute_seen_share, parts))


def _compute_seen_share(channel: EnergyChannel) -> float:
    window, period = channel.spec.window_s or 0.0, channel.update_s
    return window / period if 0 < window < period else channel.spec.seen


def _count_steps(steps: Ints | None) -> int:
    """Return the largest number of steps in a row, by the times at which they were reported."""
    rows = [] if steps is None else np.split(steps, np.flatnonzero(np.diff(steps) < 0) + 1)
    return max((times.size for times in rows), default=0)


def _check_counters(run: RunEvidence) -> Iterator[Check]:
    for scope, place in ((s, run.name_scope(s)) for s in run.channels):
        for channel in scope.channels:
            texts, curve = {"channel": channel.spec.name} | run.name_doctor(channel.meter), channel.curve
            if channel.dead:
                yield Check("counter-frozen", "warning", place, texts=texts)
            if isinstance(curve, CounterCurve) and run.overlaps_workload(curve.resets):
                yield Check("counter-reset", "warning", place, texts=texts)
            if isinstance(curve, CounterCurve) and run.overlaps_workload(curve.doubtful_wraps):
                yield Check("counter-wrap", "warning", place, texts=texts)


def _check_agreement(run: RunEvidence) -> Iterator[Check]:
    for c in run.comparisons:
        if c.verdict == "differ" and c.best.energy.value > 0:
            numbers = {
                "difference_share": c.difference.value / c.best.energy.value,
                "uncertainty_share": 2 * c.difference.u / c.best.energy.value,
            }
            texts = {"other_channel": c.other.channel, "other_meter": c.other.meter}
            texts |= {"channel": c.best.channel, "meter": c.best.meter} | run.name_doctor(c.other.meter)
            yield Check("meters-disagree", "warning", run.name_scope(c), numbers, texts)
    named = {(c.meter, c.stream.name) for s in run.channels for c in s.channels if not c.members}
    for lag in run.lags:
        if lag.doubted and (lag.meter, lag.stream) in named:
            texts = {"meter": lag.meter, "against": lag.against} | run.name_doctor(lag.meter)
            yield Check("does-not-follow", "failed", run.name_scope(lag), texts=texts)


def _check_sums(run: RunEvidence) -> Iterator[Check]:
    """Fail if parts use more than the whole, by the interval.

    The bound does not excuse it: without evidence for a load in step with sensors, a wrong meter is more likely.
    """
    for group in run.groups:
        expanded = 2 * group.energy.u
        is_rest = group.name.startswith("rest ") or group.name == "supply loss"
        if is_rest and group.energy.known and group.energy.value + expanded < 0:
            numbers = {"energy_j": group.energy.value, "uncertainty_j": expanded}
            yield Check("impossible", "failed", group.name, numbers)


def _check_supplies(run: RunEvidence) -> Iterator[Check]:
    """Find power supplies with an efficiency of 100 % or more; the check fails if uncertainty does not explain it."""
    places = {(s.host, s.scope): s for s in run.scopes}
    for output in (s for s in run.scopes if find_family(s.scope) in ("psu.dc", "node.dc")):
        place = output.scope.replace("psu.dc", "psu", 1).replace("node.dc", "node.ac", 1)
        supply = places.get((output.host, place))
        if supply is None or supply.mean_w.value < LEAST_SUPPLY_W or output.energy.value < supply.energy.value:
            continue
        loss = supply.energy - output.energy
        status: CheckStatus = "failed" if loss.value + 2 * loss.u < 0 else "warning"
        if status == "warning" and 2 * loss.u > WIDEST_EFFICIENCY * supply.energy.value:
            continue  # an efficiency that is not resolved is no figure
        share = output.energy.value / supply.energy.value
        texts = {"meter": supply.reading.meter} | run.name_doctor(supply.reading.meter)
        yield Check("supply-efficiency", status, run.name_scope(supply), {"efficiency_share": share}, texts)


def _check_sources(run: RunEvidence) -> Iterator[Check]:
    """Return the problems that sources of readings reported; problems of the recording were shown when it ended."""
    for event in (e for e in run.list_events("problem") if e.get("meter")):
        status: CheckStatus = "note" if run.is_only_accounted(event.get("host")) else "warning"
        meter = run.name_place(event.get("host"), event["meter"]) if event.get("stream") else str(event["meter"])
        yield Check("source", status, meter, texts={"what": str(event.get("what", ""))})


def _check_imported_totals(run: RunEvidence) -> Iterator[Check]:
    """Return the contradictions in the result of another tool, and what its figures include."""
    known: tuple[tuple[str, CheckStatus, tuple[str, ...]], ...] = (
        ("does-not-add-up.power", "warning", ("mean_w", "power_w", "duration_s")),
        ("does-not-add-up.sum", "warning", ("parts_j", "total_j")),
        ("included.overhead", "note", ("overhead_w", "pue")),
        ("included.pue", "note", ("pue",)),
    )
    for code, status, names in known:
        for event in (e for e in run.list_events("import-doubt") if e.get("code") == code):
            numbers = {name: float(event["numbers"][name]) for name in names}
            yield Check(code, status, str(event.get("meter", "")), numbers)


def _check_idle_drift(run: RunEvidence) -> Iterator[Check]:
    if run.idle is None:
        return
    a, b = run.idle
    middle = (a + b) // 2
    for scope in run.channels:
        first, second = (
            scope.best.energy(*half).without("unseen", "in-step") * (1e9 / max(half[1] - half[0], 1))
            for half in ((a, middle), (middle, b))
        )
        drift = second - first
        if abs(drift.value) > max(0.05 * first.value, 1.0, 2 * drift.u):
            yield Check("idle-drifted", "warning", run.name_scope(scope), {"drift_w": drift.value})
