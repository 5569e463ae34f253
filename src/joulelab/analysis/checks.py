"""Doubt a run as a sceptical referee would; a check that fails says why and what to type next."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.caps import cap_checks
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.damage import damage_checks
from joulelab.analysis.device_checks import device_checks
from joulelab.analysis.job_accounting import Accounts
from joulelab.analysis.marked_phases import MOST_KINDS, MOST_PHASES
from joulelab.analysis.node_checks import listed, node_checks
from joulelab.analysis.quality import read_quality
from joulelab.analysis.result import Check, CheckStatus, GroupResult, MeterComparison, ScopeResult
from joulelab.analysis.unseen import FEWEST_STEPS
from joulelab.analysis.unsure import interval_checks
from joulelab.core.scope import CORDS, find_family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.readings import Floats, Ints
    from joulelab.analysis.result import Fact, Gap, Lag
    from joulelab.core.spec import Spec
    from joulelab.store.table import Problem

SHORT_RUN = 0.05  # an edge that makes more than 5 % of the energy: the run is too short for its meter
GAP_WARNING, GAP_FAILED = 0.02, 0.10


@dataclass(frozen=True)
class Facts:
    """Hold what the checks look at."""

    state: str
    start_ns: int
    end_ns: int
    idle: tuple[int, int] | None
    channels: Sequence[ScopeChannels]
    scopes: Sequence[ScopeResult]
    events: Sequence[Mapping[str, Any]]
    gaps: Sequence[Gap]
    unread: Sequence[str] = ()
    incomplete: Sequence[Check] = ()
    imported: bool = False
    lags: Sequence[Lag] = ()
    groups: Sequence[GroupResult] = ()
    comparisons: Sequence[MeterComparison] = ()
    accounts: Accounts = field(default_factory=Accounts)
    steps: Ints | None = None
    told: Mapping[str, Fact] = field(default_factory=dict)
    damage: Sequence[Problem] = ()
    phases: int = 0
    work_left_out: int = 0
    open_phases: Sequence[str] = ()  # of a run that ended by itself
    is_unverifiable: bool = False  # it reports work, and does not tell which marks it had

    @cached_property
    def several(self) -> bool:
        """Return whether scopes of several hosts were measured, so that each has to be named with its own."""
        return len({s.host for s in self.scopes if find_family(s.scope) != "job"}) > 1

    def place(self, host: object, scope: object) -> str:
        """Return a scope in words, with its host where there are several."""
        return f"{host}/{scope}" if self.several else str(scope)

    def called(self, one: ScopeChannels | ScopeResult | MeterComparison | Lag) -> str:
        """Return the scope of something that was measured in words, with its host where there are several."""
        return self.place(one.host, one.scope)

    def names(self, some: Sequence[ScopeResult]) -> str:
        """Return scopes in words; of several hosts there are too many to name all."""
        called = [self.called(s) for s in some]
        return listed(called) if self.several else ", ".join(called)

    def all_names(self, some: Sequence[ScopeResult]) -> str:
        """Return all scopes, with their hosts where there are several."""
        return ", ".join(self.called(s) for s in some)

    def is_beside(self, host: object) -> bool:
        """Return whether a host is what a cluster accounted, beside meters of our own: none of our figures is its."""
        return host in self.accounts.told and any(s.host not in self.accounts.told for s in self.scopes)

    def named(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the events of one kind."""
        return [e for e in self.events if e.get("event") == kind]

    def seen(self, scope: ScopeChannels, name: str) -> Floats:
        """Return the readings of a slow channel in the workload's interval."""
        readings = scope.state.get(name)
        return np.empty(0) if readings is None else readings.value[readings.between(self.start_ns, self.end_ns)]

    def during(self, stretches: Sequence[tuple[int, int]]) -> bool:
        """Return whether one of these stretches (ns) overlaps the workload's interval."""
        return any(self.start_ns < to and since < self.end_ns for since, to in stretches)


def all_checks(facts: Facts) -> Iterator[Check]:
    """Run every check."""
    yield from damage_checks(facts.damage)
    if facts.phases > MOST_PHASES:
        message = f"{facts.phases} phases were marked; the {MOST_PHASES} outermost and first are listed"
        numbers = {"marked": float(facts.phases), "listed": float(MOST_PHASES)}
        advice = "mark epochs, and call joulelab.step() for steps"
        yield Check("too-many-phases", "warning", message, advice, numbers=numbers)
    if facts.work_left_out:
        message = f"only the first {MOST_KINDS} kinds of work are counted; {facts.work_left_out} reports have others"
        numbers = {"counted": float(MOST_KINDS), "reports": float(facts.work_left_out)}
        advice = "give each kind of work one name: joulelab.work(samples=64)"
        yield Check("too-many-kinds", "warning", message, advice, numbers=numbers)
    if facts.is_unverifiable:
        message = "joulelab 0.1.0 recorded no sizes of files: work that was deleted from the marks cannot be noticed"
        yield Check("not-verifiable", "note", message)
    if facts.open_phases:
        named = listed(facts.open_phases)
        message = f"{named}: never closed, though the workload ended by itself; later marks may be missing"
        numbers = {"phases": float(len(facts.open_phases))}
        yield Check("open-phases", "warning", message, scope=", ".join(facts.open_phases[:20]), numbers=numbers)
    for check in CHECKS:
        yield from check(facts)


def _meters(facts: Facts) -> Iterator[Check]:
    if not facts.scopes:
        yield Check("power-meter", "failed", "no power meter was read, so there is no energy", "joulelab meters")
    unread = [scope for scope in facts.unread if find_family(scope) != "job"]
    if unread:
        message, advice = f"{', '.join(unread)}: fewer than two readings, so no sum holds it", "joulelab doctor"
        advice = "" if facts.imported or facts.damage else advice
        yield Check("not-read", "failed", message, advice, ", ".join(unread))
    jobs, steps = ([s for s in facts.unread if s == "job"], [s for s in facts.unread if s.startswith("job/")])
    accounted: tuple[tuple[str, CheckStatus, str, list[str]], ...] = (
        ("accounting.no-job", "failed", "job", jobs),
        ("accounting.no-step", "note", "step", steps),  # a job's total holds its steps
    )
    for code, status, which, scopes in accounted:
        if scopes:
            reasons = list(dict.fromkeys(g.reason for g in facts.gaps if g.stream in scopes and g.reason))
            why = f" ({'; '.join(reasons)})" if reasons else ""
            message = f"{listed(scopes)}: the accounting has no energy for this {which}{why}"
            yield Check(code, status, message, "", ", ".join(scopes))
    estimated = [s for s in facts.scopes if s.reading.estimate]
    if estimated:
        message = f"{facts.names(estimated)}: load x rated power, not measured"
        yield Check("estimate", "warning", message, "joulelab meters", facts.all_names(estimated))
    unknown = [s for s in facts.scopes if s.reading.accuracy == "unknown"]
    if unknown:
        message = f"{facts.names(unknown)}: the accuracy is unknown, so no interval is given"
        yield Check("accuracy", "note", message, scope=facts.all_names(unknown))


def _opening(facts: Facts) -> Iterator[Check]:
    last = {e.get("meter"): e.get("status") for e in facts.named("meter")}
    for meter in (m for m, status in last.items() if status == "opening"):
        message = f"{meter}: it did not answer when it was opened, so what it measures is missing from every sum"
        yield Check("silent-meter", "failed", message, f"joulelab doctor {meter}", str(meter))


def _ending(facts: Facts) -> Iterator[Check]:
    if facts.state != "closed" and facts.named("workload-end"):
        message = "the workload ended, but its end could not be recorded whole"
        yield Check("ending.not-recorded", "warning", message, "df -h")
    elif facts.state == "killed":
        message = "joulelab was killed before the workload ended; figures go to the last reading"
        yield Check("ending.killed", "warning", message)
    elif facts.state == "live":
        yield Check("ending.live", "note", "the run goes on; figures so far")
    for event in facts.named("recorder-died"):
        message = f"the recorder died ({event.get('status', 'unknown')}) and was started again"
        yield Check("recorder.died", "warning", message, "joulelab doctor")
    for _ in facts.named("recorder-stuck"):
        message = "the recorder did not answer at the end and was ended"
        yield Check("recorder.stuck", "warning", message, "joulelab doctor")
    for event in facts.named("supervisor-paused"):
        paused = (int(event["to"]) - int(event["from"])) * 1e-9
        message = f"joulelab itself was stopped or held up for {paused:.1f} s; readings went on"
        yield Check("paused", "warning", message, numbers={"paused_s": paused})
    for event in facts.named("disk"):
        lost = event.get("dropped_rows", 0)
        message = f"{event.get('error', 'writing failed')}; rows lost: {lost}"
        yield Check("disk", "warning", message, "df -h", numbers={"lost_rows": lost})
    for event in facts.named("stuck"):
        meter = str(event.get("meter", ""))
        yield Check("stuck-meter", "warning", f"{meter} did not answer for a while", "joulelab doctor", meter)


def _short(facts: Facts) -> Iterator[Check]:
    measured = {(s.host, s.scope) for s in facts.scopes}
    for s in facts.scopes:
        if find_family(s.scope) in CORDS and (s.host, s.parent) in measured:
            continue  # the sum is what counts
        if facts.is_beside(s.host) or 1 - s.reading.coverage > GAP_WARNING:
            continue  # what is not read for long is a gap, and told so
        edge = s.energy.budget().get("edge", 0.0)
        if s.energy.value > 0 and 2 * edge > SHORT_RUN * s.energy.value:
            share = 2 * edge / s.energy.value
            where = f"{share:.0%} of the energy lies at its edges"
            message = f"{facts.called(s)}: the run is short for {s.reading.meter} ({where})"
            advice = "" if facts.imported else "measure longer, or use --tail 2"
            yield Check("too-short", "warning", message, advice, facts.called(s), {"edge_share": share})


def _gaps(facts: Facts) -> Iterator[Check]:
    streams = {
        (c.host, c.scope): {(m.meter, m.stream.name) for m in c.best.members or (c.best,)} for c in facts.channels
    }
    for s in facts.scopes:
        lost = 1 - s.reading.coverage
        if lost <= GAP_WARNING or s.host in facts.accounts.told:
            continue
        names = streams[s.host, s.scope]
        reasons = {g.reason for g in facts.gaps if (g.meter, g.stream) in names}
        reasons = reasons or _not_open(facts, {meter for meter, _ in names}) or {"no readings"}
        status: CheckStatus = "failed" if lost > GAP_FAILED else "warning"
        message = f"{facts.called(s)}: {lost:.0%} of the time without readings ({'; '.join(sorted(reasons))})"
        is_cut = any(p.lost and p.path.name.startswith(f"{s.reading.meter}.") for p in facts.damage)
        advice = "" if facts.imported or is_cut else f"joulelab doctor {s.reading.meter}"
        yield Check("gaps", status, message, advice, facts.called(s), {"lost_share": lost})


def _not_open(facts: Facts, meters: set[str]) -> set[str]:
    """Return why meters were not open at first, in their own words."""
    said = (e for e in facts.named("meter") if e.get("meter") in meters and e.get("status") != "open")
    return {f"{e.get('meter')} opened late: {e.get('what') or e.get('status')}" for e in said}


def _unseen(facts: Facts) -> Iterator[Check]:
    hidden = [s for s in facts.scopes if s.energy.budget().get("unseen", 0.0) > 0.01 * abs(s.energy.value)]
    if not hidden:
        return
    whole = next((g.energy for g in facts.groups if g.name == "measured" and "unseen" in g.energy.budget()), None)
    energies = [s.energy for s in hidden] if whole is None else [whole]
    reach = max((200 * q.with_bound().u / abs(q.value) for q in energies if q.value), default=None)
    most = "they do not show it" if reach is None else f"the error can reach {reach:.0f} %"
    message = f"{_sensors(facts, hidden)}; if the load repeats exactly in step with them, {most}"
    steps = _most_steps(facts.steps)
    numbers = {"seen_share": _least_seen(facts, hidden), "steps": steps}
    numbers |= {} if reach is None else {"reach_share": reach / 100}
    advice = _lacking(steps, at_the_wall=whole is None)
    yield Check("unseen", "note", message, advice, facts.all_names(hidden), numbers)


def _in_step(facts: Facts) -> Iterator[Check]:
    hit = [s for s in facts.scopes if s.energy.budget().get("in-step", 0.0) > 0.01 * abs(s.energy.value)]
    doubted = {(c.host, c.scope) for c in facts.channels if c.best.in_step}
    apart = [s for s in hit if (s.host, s.scope) in doubted]
    in_time = [s for s in hit if (s.host, s.scope) not in doubted]
    for code, why, some in (
        ("in-step.meter", "another meter disagrees", apart),
        ("in-step.steps", "the steps of the load keep time with them", in_time),
    ):
        if some:
            message = f"{_sensors(facts, some)}, and {why}: the interval includes what they may have missed"
            advice, numbers = "add a wall meter: joulelab meters", {"seen_share": _least_seen(facts, some)}
            yield Check(code, "warning", message, advice, facts.all_names(some), numbers)


def _sensors(facts: Facts, scopes: Sequence[ScopeResult]) -> str:
    """Return how much of the time the sensors of some scopes measure, in words."""
    called = [facts.called(s) for s in scopes]
    names = f"{called[0]}..{called[-1]}" if len(scopes) > 2 else ", ".join(called)
    return f"{names}: the sensors measure {100 * _least_seen(facts, scopes):.0f} % of the time"


def _least_seen(facts: Facts, scopes: Sequence[ScopeResult]) -> float:
    """Return the least share of the time that the sensors of some scopes measure."""
    specs = {(c.host, c.scope): c.best.spec for c in facts.channels}
    return min(_seen_share(specs[s.host, s.scope]) for s in scopes)


def _seen_share(spec: Spec) -> float:
    """Return the share of the time that a sensor measures: its own, or its window's of its period."""
    window, period = spec.window_s or 0.0, spec.update_s or 0.0
    return window / period if 0 < window < period else spec.seen


def _most_steps(steps: Ints | None) -> int:
    """Return how many steps follow each other at most, by the times at which they were reported."""
    apart = [] if steps is None else np.split(steps, np.flatnonzero(np.diff(steps) < 0) + 1)
    return max((times.size for times in apart), default=0)


def _lacking(most: int, *, at_the_wall: bool) -> str:
    """Return what would tell whether a load is in step with the sensors, by how many steps are known."""
    if most == 0:
        return "call joulelab.step() in the training loop" + (
            "" if at_the_wall else ", or add a wall meter: joulelab meters"
        )
    if most < FEWEST_STEPS:
        return f"take more steps: {FEWEST_STEPS} would do, {most} are known"
    return f"take more steps, or of another length: the {most} known ones are not spread evenly"


def _judged(facts: Facts) -> Iterator[Check]:
    unknown = [name for name, value in read_quality(facts.told).items() if np.isnan(value)]
    if unknown:
        message = f"{', '.join(unknown)}: nan, so it is not known what the energy was spent for"
        yield Check("quality", "warning", message, scope=", ".join(unknown))


def _counters(facts: Facts) -> Iterator[Check]:
    for scope, called in ((s, facts.called(s)) for s in facts.channels):
        for channel in scope.channels:
            curve = channel.curve
            if channel.frozen:
                message = f"{called}: {channel.spec.name} does not move; power is integrated instead"
                yield Check("counter-frozen", "warning", message, scope=called)
            if not isinstance(curve, CounterCurve):
                continue
            if facts.during(curve.resets):
                message = f"{called}: {channel.spec.name} was reset during the run"
                yield Check("counter-reset", "warning", message, scope=called)
            if facts.during(curve.doubtful_wraps):
                message = f"{called}: a gap is long enough for {channel.spec.name} to wrap unseen"
                yield Check("counter-wrap", "warning", message, scope=called)


def _agreement(facts: Facts) -> Iterator[Check]:
    for c in facts.comparisons:
        if c.verdict == "differ" and c.best.energy.value > 0:
            share, both = c.difference.value / c.best.energy.value, 2 * c.difference.u / c.best.energy.value
            message = (
                f"{facts.called(c)}: {c.other.channel} of {c.other.meter} is {share:+.1%} off {c.best.channel} of "
                f"{c.best.meter}, more than both together may be (±{both:.1%})"
            )
            advice = "" if facts.imported else f"joulelab doctor {c.other.meter}"
            numbers = {"difference_share": share, "uncertainty_share": both}
            yield Check("meters-disagree", "warning", message, advice, facts.called(c), numbers)


def _problems(facts: Facts) -> Iterator[Check]:
    # Those of the recording itself have been told when it ended.
    for event in (e for e in facts.named("problem") if e.get("meter")):
        status: CheckStatus = "note" if facts.is_beside(event.get("host")) else "warning"
        meter = facts.place(event.get("host"), event["meter"]) if event.get("stream") else event["meter"]
        yield Check("source", status, f"{meter}: {event.get('what', '')}", scope=str(meter))


def _accounting(facts: Facts) -> Iterator[Check]:
    yield from facts.accounts.notes


def _doubted(facts: Facts) -> Iterator[Check]:
    named = {(c.meter, c.stream.name): s.scope for s in facts.channels for c in s.channels if not c.members}
    for lag in facts.lags:
        if lag.doubted and (lag.meter, lag.stream) in named:
            not_so = f"{lag.meter} does not follow the load of {lag.against} inside it"
            message = f"{facts.called(lag)}: {not_so}, so it is not believed"
            advice = "" if facts.imported else f"joulelab doctor {lag.meter}"
            yield Check("does-not-follow", "failed", message, advice, facts.called(lag))


def _possible(facts: Facts) -> Iterator[Check]:
    for group in facts.groups:
        less = group.energy.value + 2 * group.energy.with_bound().u < 0
        if less and group.energy.known and (group.name.startswith("rest ") or group.name == "supply loss"):
            message = f"{group.name} is below zero beyond its interval: a meter is wrong, or covers something else"
            numbers = {"energy_j": group.energy.value, "uncertainty_j": 2 * group.energy.with_bound().u}
            yield Check("impossible", "failed", message, "joulelab show RUN --scopes", group.name, numbers)


def _cords(facts: Facts) -> Iterator[Check]:
    yield from facts.incomplete


def _idle_drift(facts: Facts) -> Iterator[Check]:
    if facts.idle is None:
        return
    a, b = facts.idle
    middle = (a + b) // 2
    for scope in facts.channels:
        first, second = (
            scope.best.energy(*half).without("unseen", "in-step") * (1e9 / max(half[1] - half[0], 1))
            for half in ((a, middle), (middle, b))
        )
        drift = second - first
        if abs(drift.value) > max(0.05 * first.value, 1.0, 2 * drift.u):
            message = f"{facts.called(scope)}: idle power drifted by {drift.value:+.1f} W while it was measured"
            advice, numbers = "wait until the node has cooled, or use a longer --idle", {"drift_w": drift.value}
            yield Check("idle-drifted", "warning", message, advice, facts.called(scope), numbers)


def _clock(facts: Facts) -> Iterator[Check]:
    for event in facts.named("clock-step"):
        by = float(event.get("by_ns", 0)) * 1e-9
        message = f"UTC was stepped by {by:+.3f} s; energies use monotonic time and are not affected"
        yield Check("clock-stepped", "warning", message, numbers={"step_s": by})


def _late(facts: Facts) -> Iterator[Check]:
    for meter in sorted({str(e.get("meter", "")) for e in facts.named("late")}):
        told = [e for e in facts.named("late") if e.get("meter") == meter]
        missed, ticks = (sum(int(e.get(k, 0)) for e in told) for k in ("missed", "ticks"))
        if missed > max(0.02 * (ticks + missed), 5):
            message = f"{meter}: {missed} readings were skipped: the machine was busy, or it is slow"
            yield Check("late", "note", message, scope=meter, numbers={"missed": missed, "ticks": ticks})


CHECKS: tuple[Callable[[Facts], Iterator[Check]], ...] = (
    _meters,
    _opening,
    _ending,
    node_checks,
    interval_checks,
    _short,
    _gaps,
    _unseen,
    _in_step,
    _judged,
    _counters,
    _agreement,
    _accounting,
    _cords,
    _doubted,
    _possible,
    _problems,
    cap_checks,
    device_checks,
    _idle_drift,
    _clock,
    _late,
)
