"""Make the result of a run from its folder: the numbers of all tables, pages and JSON come from here."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.breakdown import break_down_energy
from joulelab.analysis.calibrations import RunCalibrations, replace_calibrations
from joulelab.analysis.channels import EnergyChannel, ScopeChannels, SumCurve, list_energy_specs, load_channels
from joulelab.analysis.checks import LostTables, RunEvidence, UnreadStream, check_run, is_needed_for_totals, is_of_marks
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.device_checks import list_caps
from joulelab.analysis.device_load import GpuLoads, find_cpu_time, load_gpu_curves, measure_host_load
from joulelab.analysis.job_accounting import compare_accounts, list_account_events, make_account_result
from joulelab.analysis.joining import JoinedScopes, compare_meters, join_meters, mark_in_step
from joulelab.analysis.marked_phases import (
    MOST_PHASES,
    MarkedPhase,
    MarkedWork,
    find_stretches,
    list_facts,
    list_phase_facts,
    list_phases,
)
from joulelab.analysis.nameplate import find_rated_power
from joulelab.analysis.readings import TICKS_PER_POWER, Readings, SteppedPower, add_powers, describe_power
from joulelab.analysis.result import (
    Gap,
    GroupResult,
    PhaseResult,
    PowerStatistics,
    RatedResult,
    Result,
    ScopeResult,
)
from joulelab.analysis.run_shares import check_accounted_share, check_run_share
from joulelab.analysis.unseen import select_steps
from joulelab.analysis.work_channels import (
    add_counted_work,
    fill_phase_work,
    load_work_curves,
    measure_work_channels,
    sum_work_channels,
)
from joulelab.core.errors import StoreError, explain_defect
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.core.text import SERVED_TWIN, escape_unprintable
from joulelab.site.footprint import restore_site
from joulelab.store.run_folder import JOINED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from joulelab.analysis.readings import Ints
    from joulelab.analysis.result import Fact
    from joulelab.store.run_reader import Run

OWN_EVENTS = ("events.run", "events.node")  # files of events that no recorder wrote
MOST_PHASE_ENERGIES = 500  # phases whose energy is computed, steps last; the others have times only
MOST_STRETCH_ENERGIES = 2000  # the same for stretches of steps; there are few unless every few steps are interrupted
MOST_STEP_STAMPS = 24_000  # times of steps that are used for each process,
STEP_STRETCH = 960  # in stretches of this many


@dataclass(frozen=True)
class RunSpan:
    """Hold the time span of the workload and of the idle stretch before it (monotonic ns).

    `unsure` is the largest error (ns) of start and end, in both directions. In a run that was joined from the runs of
    single nodes, `nodes` holds the time span of each host: each had a command of its own, timed by its own clock.
    """

    start_ns: int
    end_ns: int
    idle: tuple[int, int] | None
    unsure: tuple[int, int] = (0, 0)
    nodes: Mapping[str, RunSpan] = field(default_factory=dict)

    def cut_for_host(self, host: str, a_ns: int, b_ns: int) -> tuple[int, int]:
        """Return the part of [a, b] in which the command of a host ran; an empty one lies at an end of the command."""
        own = self.nodes.get(host)
        if own is None:
            return a_ns, b_ns
        return min(max(a_ns, own.start_ns), own.end_ns), min(max(b_ns, own.start_ns), own.end_ns)


def analyse_run(run: Run, *, calibration: Mapping[str, Any] | None = None) -> Result:
    """Analyse a run that is live, killed or sealed; raise StoreError if its files hold unusable values, else Defect.

    `calibration` replaces the calibrations that the run stored; an empty one replaces them by none.
    """
    try:
        events = replace_calibrations(run.events(), calibration)
        span = find_span(run, events)
        return analyse_span(run, span, events)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = run.find_unusable()
        if not why:
            raise explain_defect(error) from error
        what, then = "the run holds values that cannot be used", f"joulelab verify {run.path.name}"
        raise StoreError(what, where=str(run.path), why=why, next=then, code="store.unusable") from error


def analyse_phase(run: Run, start_ns: int, end_ns: int) -> Result:
    """Analyse a part of a run as if it were a run of its own."""
    events = list(run.events())
    whole = find_span(run, events)
    return analyse_span(run, RunSpan(start_ns, end_ns, whole.idle), events)


def analyse_span(run: Run, span: RunSpan, events: list[dict[str, Any]]) -> Result:
    """Analyse a time span of a run: read, join, compare, add up, check."""
    a, b = span.start_ns, span.end_ns
    # Read the channels and join the meters.
    calibrations = RunCalibrations.from_events(events, run.meta)
    joined = load_joined(run, span, calibrations)
    marks = run.marks()
    damage = run.damage(events)  # after all files have been read
    if lost := LostTables(damage):
        joined = join_meters(load_channels(run, span.idle, lost, calibrations), a, b)
    scopes = joined.scopes
    # Compute the energy of each scope; compare meters, and count unseen energy where they disagree.
    meta, end = run.meta, run.end or _find_end(events)
    phases, work = list_phases(marks, a, b, str(meta.get("host", "")))
    steps = _collect_steps(work)
    accounted = list_account_events(events)

    def make_result(scope: ScopeChannels) -> ScopeResult:
        if scope.host in accounted:
            return make_account_result(scope, a, b)
        if scope.host in span.nodes:
            return _make_scope_result(scope, span.nodes[scope.host], steps, without=("clock",))
        return _make_scope_result(scope, _find_own_span(scope, span), steps)

    results = tuple(make_result(s) for s in scopes)
    accounts = compare_accounts(scopes, accounted, a, span.idle)
    compared = (*compare_meters(results), *accounts.comparisons)
    scopes = mark_in_step(scopes, compared)
    results = tuple(make_result(s) if s.best.in_step else r for s, r in zip(scopes, results, strict=True))
    # Add up, also by phase; withhold sums that lack a damaged file.
    groups, ratios = break_down_energy(results, scopes, (b - a) * 1e-9, a, b, joined.sums)
    groups = tuple(_describe_sum(group, scopes, a, b) for group in groups)
    whole = not any(map(is_needed_for_totals, damage))
    if not whole:  # it would be a smaller number that looks complete
        groups, ratios = (), {}
    if any(map(is_of_marks, damage)):  # the same for work
        work = replace(work, amounts={})
        phases = [replace(phase, work={}) for phase in phases]
    gaps = tuple(g for g in list_gaps(events) if g.from_ns < b and (g.to_ns is None or g.to_ns > a))
    facts = list_facts(marks, b, str(meta.get("host", "")))
    energies = _SpanEnergies([s for s in scopes if s.host not in accounted], groups, span, steps)
    loads = GpuLoads(load_gpu_curves(run), a, b, str(meta.get("host", "")))
    noted = list_phase_facts(marks, phases, str(meta.get("host", "")))
    listed, together = _make_phase_results(phases, energies, loads, noted)
    counted = measure_work_channels(load_work_curves(run), a, b, listed)
    kinds = [kind for kind in sum_work_channels(counted) if kind not in work.amounts]
    listed = fill_phase_work(listed, counted, kinds)
    # Check, and put everything together.
    imported = end.get("outcome") == "imported"
    has_ended = (run.state, end.get("outcome"), end.get("exit_code")) == ("closed", "exit", 0)
    open_phases = tuple(escape_unprintable(phase.title) for phase in phases if phase.open_end) if has_ended else ()
    names = tuple(dict.fromkeys(phase.name for phase in phases if phase.steps is None))
    knows_phases = work.phases <= MOST_PHASES and not any(map(is_of_marks, damage))
    evidence = RunEvidence(
        run.state, a, b, span.idle, scopes, results, events, gaps,
        unread=_list_unread(run, scopes, accounted, events), incomplete=tuple(joined.incomplete),
        imported=imported, lags=joined.lags, groups=groups,
        comparisons=compared, accounts=accounts, steps=steps, facts=facts, damage=damage,
        phases=work.phases, phase_names=names if knows_phases else None,
        work_left_out=work.left_out, open_phases=open_phases, counted=counted,
        nodes={host: (own.start_ns, own.end_ns) for host, own in span.nodes.items()},
        is_unverifiable=bool(work.amounts) and run.state == "closed" and not imported and not run.lists_files,
    )  # fmt: skip
    return Result(
        **_describe_run(run, end),
        start_utc=_format_utc(meta, a),
        start_ns=a,
        end_ns=b,
        scopes=results,
        groups=groups,
        phases=listed,
        stretches=together,
        work=add_counted_work(work.amounts, sum_work_channels(counted)),
        load=measure_host_load(run, a, b) | find_cpu_time(events),
        gaps=gaps,
        checks=(*check_run(evidence), *check_run_share(run, evidence), *check_accounted_share(evidence)),
        missing=tuple(_list_missing(events, meta)),
        lags=tuple(joined.lags),
        comparisons=compared,
        ratios=ratios,
        caps=list_caps(events),
        facts=facts,
        rated=find_rated_power(run, results, events, (b - a) * 1e-9) if whole else RatedResult(),
        busiest=loads.busiest,
        gpu_loads=loads.loads,
        work_channels=counted,
    )


def load_joined(run: Run, span: RunSpan, calibrations: RunCalibrations | None = None) -> JoinedScopes:
    """Read and join the channels of a run for the workload of a time span; the run caches the result.

    `calibrations` are those that the run stored unless others are given.
    """
    used = RunCalibrations.from_events(run.events(), run.meta) if calibrations is None else calibrations
    ends = span.start_ns, span.end_ns
    return run.remember((span, used.stored), lambda: join_meters(load_channels(run, span.idle, None, used), *ends))


def _describe_run(run: Run, end: dict[str, Any]) -> dict[str, Any]:
    """Return names, command, outcome, labels and site of a run, and its twin if it was simulated."""
    served = SERVED_TWIN if (run.meta.get("environment") or {}).get("JOULELAB_TWIN") else ""
    return {
        "run": str(run.meta.get("id", run.path.name)),
        "name": run.meta.get("name"),
        "host": str(run.meta.get("host", "")),
        "command": list(run.meta.get("command", [])),
        "labels": dict(run.meta.get("labels") or {}),
        "state": run.state.value,
        "outcome": str(end.get("outcome", run.state)),
        "exit_code": end.get("exit_code"),
        "signal": end.get("signal"),
        "twin": str((run.meta.get("twin") or {}).get("name", "")) or served,
        "site": restore_site((run.meta.get("options") or {}).get("site")),
    }


def _find_end(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how the workload ended from the events, in case a full disk prevented the end record."""
    ended = next((e for e in events if e.get("event") == "workload-end" and ("exit_code" in e or "signal" in e)), {})
    return {"outcome": "signal" if ended.get("signal") is not None else "exit", **ended} if ended else {}


def find_span(run: Run, events: list[dict[str, Any]]) -> RunSpan:
    """Find when the workload ran: from the end record, from events, or up to the last sign of life."""
    end = run.end or {}
    begun = next((int(e.get("start_ns", e["t"])) for e in events if e.get("event") == "workload"), None)
    idle = next(((int(e["from"]), int(e["to"])) for e in events if e.get("event") == "idle"), None)
    start = end.get("start_ns") or begun or int(run.meta.get("started", {}).get("mono_ns", 0))
    finished = next((int(e.get("end_ns", e["t"])) for e in events if e.get("event") == "workload-end"), None)
    stop = end.get("end_ns") or finished
    if stop is None:
        stop = max(int(start), _find_last_proof(run, events))
    nodes = {str(e["host"]): _read_joined_span(e) for e in events if e.get("event") == JOINED}
    if nodes:
        start, stop = min(n.start_ns for n in nodes.values()), max(n.end_ns for n in nodes.values())
    return RunSpan(int(start), int(stop), idle, read_edge_offsets(events), nodes)


def _find_last_proof(run: Run, events: list[dict[str, Any]]) -> int:
    """Return the last time (ns) at which a run without an end was going on.

    The recorder of a killed run ends a moment after it. Its last event, `stop`, has the time at which it last saw the
    run alive; what came later is no proof. Older runs have no such time: there readings are proof, and events only
    where there are none.
    """
    series = (run.series(table, stream.name, channels=[]) for table in run.tables() for stream in table.streams)
    last = [int(s.t1_ns[-1]) for s in series if s.t1_ns.size]
    times = [int(e["t"]) for e in events if "t" in e]
    stops = [e for e in events if e.get("event") == "stop" and e.get("host") == run.meta.get("host")]
    if run.state != "killed" or not stops or max(last, default=0) > int(stops[-1]["t"]):
        return max([*times, *last], default=0)
    return int(stops[-1].get("alive_ns") or max(last or [t for t in times if t < int(stops[-1]["t"])], default=0))


def _read_joined_span(event: Mapping[str, Any]) -> RunSpan:
    idle = (int(event["from"]), int(event["to"])) if "from" in event and "to" in event else None
    return RunSpan(int(event["start_ns"]), int(event["end_ns"]), idle)


def _list_unread(
    run: Run, scopes: list[ScopeChannels], accounted: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> tuple[UnreadStream, ...]:
    """List the streams of energy and power with fewer than two readings.

    Streams of a scope that has energy by another meter are listed only if their readings failed.
    """
    read = {(s.host, s.scope) for s in scopes}
    reasons = {
        (e.get("host"), e.get("meter"), e.get("stream")): str(e.get("reason", ""))
        for e in events
        if e.get("event") == "gap"
    }
    tables = run.tables()
    found: dict[tuple[str, str, str], UnreadStream] = {}
    for table in tables:
        for stream in (s for s in table.streams if list_energy_specs(s)):
            reason = reasons.get((table.host, table.meter, stream.name), "")
            covered = (table.host, stream.scope) in read
            if not covered or (reason and run.series(table, stream.name, channels=[]).t1_ns.size < 2):
                unread = UnreadStream(table.host, table.meter, stream.scope, reason, covered)
                found[table.host, table.meter, stream.name] = unread
    stored = {(table.host, table.meter, stream.name) for table in tables for stream in table.streams}
    meters = {(table.host, table.meter) for table in tables}
    # A meter that was never read has no table: what it was to measure is in the event of its opening.
    for event in (e for e in events if e.get("event") == "meter" and e.get("status") == "open"):
        host, meter, streams = str(event.get("host", "")), str(event.get("meter", "")), event.get("scopes")
        if streams is None and (host, meter) not in meters:  # an older run does not hold its scope
            streams = {name: "" for at, of, name in reasons if (at, of) == (host, meter)}
        for name, scope in (streams or {}).items():
            reason = reasons.get((host, meter, name), "")
            covered = (host, scope) in read
            if (host, meter, name) not in stored and (reason or not covered):
                found[host, meter, name] = UnreadStream(host, meter, str(scope), reason, covered)
    return tuple(unread for unread in found.values() if unread.host not in accounted)


def _collect_steps(work: MarkedWork) -> Ints | None:
    """Return the times (ns) of reported steps, one process after the other, None without any."""
    used = []
    for stamps in work.times_ns.values():
        times = np.sort(np.array(stamps, dtype=np.int64))
        every = -(-times.size // MOST_STEP_STAMPS)
        used.append(times[np.arange(times.size) // STEP_STRETCH % max(every, 1) == 0])
    return np.concatenate(used) if used else None


def _find_total_edges(channel: EnergyChannel) -> tuple[int, int] | None:
    """Return begin and end (ns) of an energy that a cluster accounted for a job or a step; None for other channels."""
    readings = channel.readings
    if find_family(channel.stream.scope) != "job" or len(readings) != 2:
        return None
    return int(readings.t0_ns[0]), int(readings.t1_ns[-1])


def _find_own_span(scope: ScopeChannels, span: RunSpan) -> RunSpan:
    """Return the time span of a scope: that of the run, or for an accounted job step the span that was accounted."""
    edges = _find_total_edges(scope.best) if "/" in scope.scope else None
    return span if edges is None else RunSpan(*edges, None)


def _make_scope_result(
    scope: ScopeChannels, span: RunSpan, steps: Ints | None, without: tuple[str, ...] = ()
) -> ScopeResult:
    """Return the energy of a scope over a time span; terms of the kinds in `without` do not apply to it."""
    a, b = span.start_ns, span.end_ns
    best, duration_s = scope.best, max((b - a) * 1e-9, 1e-9)
    energy = add_span_terms(best.energy(a, b, steps).without(*without), best.edge_u, a, b, span.unsure)
    power = _describe_power(scope.find_power() or best, a, b)
    idle_w = net = None
    if span.idle is not None:
        ia, ib = span.idle
        # Nothing runs that could be in step with the sensor. Errors with a shared source are the same in both.
        idle_w = best.energy(ia, ib).without("unseen", "in-step", *without) * (1e9 / max(ib - ia, 1))
        net = energy - (idle_w * duration_s).tagged("idle", keep=("gain:", "offset:", "lag:"))
    return ScopeResult(
        scope=scope.scope,
        host=scope.host,
        parent=scope.parent,
        device=best.stream.device,
        model=best.stream.model,
        reading=best.describe_energy(energy, a, b),
        mean_w=energy * (1 / duration_s),
        statistics=None if power is None else power.include_mean(energy.value / duration_s),
        net=net,
        idle_w=idle_w,
        others=tuple(
            c.describe_energy(
                add_span_terms(c.energy(a, b, steps).without(*without), c.edge_u, a, b, span.unsure), a, b
            )
            for c in scope.channels[1:]
        ),
    )


def _describe_power(shown: EnergyChannel, a: int, b: int) -> PowerStatistics | None:
    """Return statistics of the powers of a channel, None if it has none within [a, b]."""
    powers = _find_powers(shown, a, b)
    if powers is None:
        return None
    return describe_power(powers.readings, a, b, window_s=powers.window_s, step_s=powers.step_s)


def _find_powers(shown: EnergyChannel, a: int, b: int) -> SteppedPower | None:
    """Return the readings of power, or mean powers over TICKS_PER_POWER steps of a counter.

    Means that reach beyond [a, b] are left out. None for totals and sums of counters.
    """
    if isinstance(shown.curve, SumCurve) and shown.spec.kind == "counter":
        return None
    if isinstance(shown.curve, CounterCurve):
        if shown.readings.t0_ns.size <= 2:
            return None  # a total: its mean is no distribution
        every = max(shown.step_s, TICKS_PER_POWER * (shown.spec.update_s or shown.step_s))
        powers = shown.curve.find_powers(every)
        inside = powers.between(a, b - round(every * 1e9))
        powers = Readings(powers.t0_ns[inside], powers.t1_ns[inside], powers.value[inside])
        return SteppedPower(powers, every, every)
    return SteppedPower(shown.readings, shown.step_s, shown.spec.window_s)


def _describe_sum(group: GroupResult, scopes: Sequence[ScopeChannels], a: int, b: int) -> GroupResult:
    """Return the sum of several scopes with statistics of its power, if every scope shows its power over time.

    A rest is returned as it is: its scopes are the parts that it leaves out.
    """
    keys = [*zip(group.hosts, group.scopes, strict=True)]
    members = [s for s in scopes if (s.host, s.scope) in keys]
    if len(members) < max(len(keys), 2) or group.name.startswith("rest "):
        return group
    powers = [power for s in members if (power := _find_powers(s.find_power() or s.best, a, b)) is not None]
    total = add_powers(powers) if len(powers) == len(members) else None
    if total is None:
        return group
    found = describe_power(total.readings, a, b, window_s=total.window_s, step_s=total.step_s)
    return group if found is None else replace(group, statistics=found.include_mean(group.mean_w.value))


class _SpanEnergies:
    """Compute energies of time spans by group; each span is computed once."""

    def __init__(
        self,
        scopes: Sequence[ScopeChannels],
        groups: Sequence[GroupResult],
        span: RunSpan,
        steps: Ints | None,
    ) -> None:
        self.span = span
        self._steps = steps
        self._known = {(s.host, s.scope): s for s in scopes}
        names = {find_family(s.scope) for s in scopes} | {"measured"}
        keys = {g.name: list(zip(g.hosts, g.scopes, strict=True)) for g in groups if g.name in names}
        self._groups = {name: some for name, some in keys.items() if self._known.keys() >= set(some)}
        self._counted = dict.fromkeys(key for some in self._groups.values() for key in some)
        self._rows = {scope.removeprefix("job/") for _, scope in self._known if scope.startswith("job/")}
        self._found: dict[tuple[int, int, str], dict[str, Quantity]] = {}

    def cut_span(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the part of a time span that lies within the run."""
        return max(start_ns, self.span.start_ns), min(end_ns, self.span.end_ns)

    def find_energies(self, a: int, b: int, phase: str = "") -> dict[str, Quantity]:
        """Return the energy of [a, b] by group, an empty mapping if b <= a.

        Slurm accounts one energy for a job and one for each step: a step has its own energy, other parts of a job have
        none from Slurm.
        """
        if b <= a:
            return {}
        phase = phase if phase in self._rows else ""
        if (a, b, phase) not in self._found:
            steps = select_steps(self._steps, a, b)  # once, not by each channel
            best = {key: self._find_row(key, phase).best for key in self._counted}
            known = {
                key: c.energy(*self.span.cut_for_host(c.host, a, b), steps)
                for key, c in best.items()
                if _find_total_edges(c) in (None, (a, b))
            }
            self._found[a, b, phase] = {
                name: add_quantities(known[key] for key in keys)
                for name, keys in self._groups.items()
                if known.keys() >= set(keys)
            }
        return self._found[a, b, phase]

    def _find_row(self, key: tuple[str, str], phase: str) -> ScopeChannels:
        """Return the scope with the accounted energy of a phase, if the phase is a step of a job."""
        host, scope = key
        return self._known.get((host, f"job/{phase}") if scope == "job" else key, self._known[key])


def _make_phase_results(
    phases: list[MarkedPhase], energies: _SpanEnergies, loads: GpuLoads, facts: Mapping[str, dict[str, Fact]]
) -> tuple[tuple[PhaseResult, ...], tuple[PhaseResult, ...]]:
    """Return the results of phases, and one result for each stretch of steps without a gap between them."""
    depths, parents = _find_nesting(phases)
    ranked = sorted(range(len(phases)), key=lambda k: (phases[k].steps is not None, depths[k], phases[k].start_ns))
    with_energy = set(ranked[:MOST_PHASE_ENERGIES])
    together = find_stretches(phases)
    place = {k: n for n, places in enumerate(together) for k in places}
    listed = []
    for k, phase in enumerate(phases):
        a, b = energies.cut_span(phase.start_ns, phase.end_ns)
        energy = energies.find_energies(a, b, phase.name) if k in with_energy else {}
        listed.append(
            PhaseResult(
                title=phase.title,
                name=phase.name,
                n=phase.n,
                start_s=(a - energies.span.start_ns) * 1e-9,
                duration_s=max(b - a, 0) * 1e-9,
                energy=energy,
                work=dict(phase.work),
                depth=depths[k],
                open_end=phase.open_end,
                host=phase.host,
                last=phase.last,
                number=k,
                parent=parents[k],
                stretch=place.get(k),
                gpu_loads=loads.compute_means(a, b) if k in with_energy else {},
                facts=facts.get(phase.id, {}),
            )
        )
    rows = [
        _make_stretch_result([phases[k] for k in places], listed[places[0]], n, energies, loads)
        for n, places in enumerate(together)
    ]
    return tuple(listed), tuple(rows)


def _make_stretch_result(
    blocks: list[MarkedPhase], first: PhaseResult, number: int, energies: _SpanEnergies, loads: GpuLoads
) -> PhaseResult:
    """Return one result for steps that follow each other, with the energy of all of them."""
    a, b = energies.cut_span(blocks[0].start_ns, blocks[-1].end_ns)
    work: dict[str, float] = {}
    for kind, amount in (item for block in blocks for item in block.work.items()):
        work[kind] = work.get(kind, 0.0) + amount
    whole = replace(blocks[0], labels={"to": blocks[-1].last})
    return replace(
        first,
        title=whole.title,
        last=whole.last,
        duration_s=max(b - a, 0) * 1e-9,
        energy=energies.find_energies(a, b) if number < MOST_STRETCH_ENERGIES else {},
        work=work,
        open_end=any(block.open_end for block in blocks),
        stretch=number,
        gpu_loads=loads.compute_means(a, b) if number < MOST_STRETCH_ENERGIES else {},
    )


def _find_nesting(phases: list[MarkedPhase]) -> tuple[list[int], list[int | None]]:
    """Return the depth of each phase, and the index of the phase that contains it."""
    places: dict[str, int] = {}
    depths: list[int] = []
    parents: list[int | None] = []
    for k, phase in enumerate(phases):
        around = places.get(phase.parent or "")
        parents.append(around)
        depths.append(0 if around is None else depths[around] + 1)
        places[phase.id] = k
    return depths, parents


def _list_missing(events: list[dict[str, Any]], meta: dict[str, Any]) -> list[dict[str, str]]:
    """List meters that are not open at the end of the run, and scopes that open meters cannot measure.

    A meter that the configuration or the command names is `absent`; others are `unavailable`. An event of a recorder
    replaces its earlier ones about the meter; the run itself writes one for each mistake of an entry, and all are kept.
    Runs of earlier versions have no codes: the code is that of the error's class then.
    """
    options = meta.get("options") or {}
    wanted = {str(entry.get("name")) for entry in options.get("configured") or ()}
    wanted |= {str(name) for name in options.get("named") or ()}
    lacking: list[dict[str, Any]] = []
    last = {
        (e.get("meter"), str(e.get("what")) if e.get("source") in OWN_EVENTS else ""): e
        for e in events
        if e.get("event") == "meter"
    }
    for event in last.values():
        if event.get("status") != "open":
            absent = event.get("meter") in wanted and event.get("status") == "unavailable"
            lacking.append({**event, "status": "absent"} if absent else event)
        for part in event.get("missing") or ():
            what = f"{part.get('scope', '')}: {part.get('what', '')}"
            lacking.append(
                {"code": "meter.part", **part, "meter": event.get("meter"), "status": "missing", "what": what}
            )
    codes = {"absent": "unavailable", "unavailable": "unavailable", "denied": "denied"}
    rows = ({"code": codes.get(str(e.get("status")), "meter"), **e} for e in lacking)
    return [{k: str(row.get(k) or "") for k in ("meter", "status", "code", "what", "why", "next")} for row in rows]


def _format_utc(meta: dict[str, Any], mono_ns: int) -> str:
    """Return a monotonic time as UTC text, by the first clock pair of the run; empty without a clock pair."""
    pair = meta.get("started") or {}
    if "utc_ns" not in pair:
        return ""
    utc = (int(pair["utc_ns"]) + mono_ns - int(pair["mono_ns"])) * 1e-9
    return dt.datetime.fromtimestamp(utc, dt.UTC).isoformat(timespec="milliseconds")


def list_gaps(events: Iterable[Mapping[str, Any]]) -> list[Gap]:
    """Pair gap events into gaps of all streams, in the order in which they began."""
    gaps: list[Gap] = []
    running: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for event in sorted(events, key=lambda e: int(e.get("t", 0))):
        key = (str(event.get("host", "")), str(event.get("meter", "")), str(event.get("stream", "")))
        if event.get("event") == "gap":
            running.setdefault(key, event)
        elif event.get("event") == "gap-end" and key in running:
            gaps.append(_make_gap(key, running.pop(key), int(event.get("to", event["t"]))))
    gaps.extend(_make_gap(key, event, None) for key, event in running.items())
    return sorted(gaps, key=lambda g: g.from_ns)


def _make_gap(key: tuple[str, str, str], begun: Mapping[str, Any], to_ns: int | None) -> Gap:
    return Gap(key[1], key[2], int(begun.get("from", begun["t"])), to_ns, str(begun.get("reason", "")))


def read_edge_offsets(events: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return the largest errors (ns) of start and end of an imported run, from its events."""
    found = next((e for e in events if e.get("event") == "interval-unsure"), {})
    return math.ceil(float(found.get("begin_s", 0.0)) * 1e9), math.ceil(float(found.get("end_s", 0.0)) * 1e9)


def add_span_terms(
    energy: Quantity, edge_u: Callable[[int, int], float], a_ns: int, b_ns: int, unsure: tuple[int, int]
) -> Quantity:
    """Add the uncertainty of start and end of [a, b]; `edge_u(t, off)` returns the uncertainty (J) of one of them.

    All scopes of a run start and end together: their terms have the same source and add linearly.
    """
    if unsure == (0, 0):
        return energy
    ends = {f"interval:{a_ns}": -edge_u(a_ns, unsure[0]), f"interval:{b_ns}": edge_u(b_ns, unsure[1])}
    return replace(energy, terms={**energy.terms, **ends})
