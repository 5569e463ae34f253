"""Make the result of a run from its folder: the numbers of all tables, pages and JSON come from here."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.breakdown import break_down_energy
from joulelab.analysis.channels import EnergyChannel, ScopeChannels, SumCurve, list_energy_specs, load_channels
from joulelab.analysis.checks import LostTables, RunEvidence, check_run, is_needed_for_totals, is_of_marks
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.device_checks import list_caps
from joulelab.analysis.job_accounting import compare_accounts, list_account_events, make_account_result
from joulelab.analysis.joining import JoinedScopes, compare_meters, join_meters, mark_in_step
from joulelab.analysis.marked_phases import MarkedPhase, MarkedWork, find_stretches, list_facts, list_phases
from joulelab.analysis.nameplate import find_rated_power
from joulelab.analysis.readings import TICKS_PER_POWER, Readings, describe_power
from joulelab.analysis.result import (
    ChannelEnergy,
    Gap,
    GroupResult,
    PhaseResult,
    PowerStatistics,
    RatedResult,
    Result,
    ScopeResult,
)
from joulelab.analysis.unseen import select_steps
from joulelab.core.errors import StoreError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.core.text import SERVED_TWIN, escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from joulelab.analysis.readings import Ints
    from joulelab.store.run import Run

MOST_PHASE_ENERGIES = 500  # phases whose energy is worked out, steps last; the rest is listed by time only
MOST_STRETCH_ENERGIES = (
    2000  # the same for stretches of steps, which are few unless something else is done every few steps
)
LOAD_CHANNEL, FEWEST_LOADS = "load", 3  # so often a GPU's load must be read before it is said to have done nothing
MOST_STEP_STAMPS, STEP_STRETCH = (
    24_000,
    960,
)  # stamps of work that are looked at for each process, in stretches of so many


@dataclass(frozen=True)
class RunInterval:
    """Hold the workload's interval in mono ns, that of the idle stretch before it, and how far off its ends are."""

    start_ns: int
    end_ns: int
    idle: tuple[int, int] | None
    unsure: tuple[int, int] = (0, 0)


def analyse_run(run: Run) -> Result:
    """Return the result of a run, live, killed or sealed. Raises StoreError where its files hold unusable values."""
    try:
        events = list(run.events())
        interval = find_interval(run, events)
        return analyse_interval(run, interval, events)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what, why = "the run holds values that cannot be used", f"{type(error).__name__}: {error}"
        then = f"joulelab verify {run.path.name}"
        raise StoreError(what, where=str(run.path), why=why, next=then, code="store.unusable") from error


def analyse_phase(run: Run, start_ns: int, end_ns: int) -> Result:
    """Return the result of one stretch of a run, as if it had been a run of its own."""
    events = list(run.events())
    whole = find_interval(run, events)
    return analyse_interval(run, RunInterval(start_ns, end_ns, whole.idle), events)


def analyse_interval(run: Run, interval: RunInterval, events: list[dict[str, Any]]) -> Result:
    """Return the result of an interval of a run."""
    a, b = interval.start_ns, interval.end_ns
    joined = load_joined(run, interval)
    marks = run.marks()
    damage = run.damage(events)  # after all has been read
    if lost := LostTables(damage):
        joined = join_meters(load_channels(run, interval.idle, lost), a, b)
    scopes = joined.scopes
    phases, work = list_phases(marks, a, b)
    steps = _steps(work)
    told = list_account_events(events)

    def result_of(scope: ScopeChannels) -> ScopeResult:
        return make_account_result(scope, a, b) if scope.host in told else _scope(scope, _own(scope, interval), steps)

    results = tuple(result_of(s) for s in scopes)
    accounts = compare_accounts(scopes, told, a, interval.idle)
    compared = (*compare_meters(results), *accounts.comparisons)
    scopes = mark_in_step(scopes, compared)
    results = tuple(result_of(s) if s.best.in_step else r for s, r in zip(scopes, results, strict=True))
    groups, ratios = break_down_energy(results, scopes, (b - a) * 1e-9, a, b, joined.sums)
    whole = not any(map(is_needed_for_totals, damage))
    if not whole:  # a sum that lacks a file would be a smaller number that looks like the whole
        groups, ratios = (), {}
    if any(map(is_of_marks, damage)):  # the same for work
        work = replace(work, amounts={})
        phases = [replace(phase, work={}) for phase in phases]
    gaps = tuple(g for g in list_gaps(events) if g.from_ns < b and (g.to_ns is None or g.to_ns > a))
    meta, end = run.meta, run.end or _ended(events)
    told_facts = list_facts(marks, b, str(meta.get("host", "")))
    energies = _Energies([s for s in scopes if s.host not in told], groups, interval, steps)
    listed, together = _phases(phases, energies)
    imported = end.get("outcome") == "imported"
    has_ended = (run.state, end.get("outcome"), end.get("exit_code")) == ("closed", "exit", 0)
    open_phases = tuple(escape_unprintable(phase.title) for phase in phases if phase.open_end) if has_ended else ()
    evidence = RunEvidence(
        run.state, a, b, interval.idle, scopes, results, events, gaps,
        unread=_unread(run, scopes, told), incomplete=tuple(joined.incomplete),
        imported=imported, lags=joined.lags, groups=groups,
        comparisons=compared, accounts=accounts, steps=steps, facts=told_facts, damage=damage,
        phases=work.phases, work_left_out=work.left_out, open_phases=open_phases,
        is_unverifiable=bool(work.amounts) and run.state == "closed" and not imported and not run.lists_files,
    )  # fmt: skip
    return Result(
        **_told(run, end),
        start_utc=_utc(meta, a),
        start_ns=a,
        end_ns=b,
        scopes=results,
        groups=groups,
        phases=listed,
        stretches=together,
        work=work.amounts,
        load=_load(run, a, b) | _used(events),
        gaps=gaps,
        checks=tuple(check_run(evidence)),
        missing=tuple(_missing(events, meta)),
        lags=tuple(joined.lags),
        comparisons=compared,
        ratios=ratios,
        caps=list_caps(events),
        facts=told_facts,
        rated=find_rated_power(run, results, events, (b - a) * 1e-9) if whole else RatedResult(),
        busiest=_busiest(run, a, b),
    )


def load_joined(run: Run, interval: RunInterval) -> JoinedScopes:
    """Return the channels of a run, read and joined for the workload of an interval; asked again, the same."""
    return run.kept(
        interval, lambda: join_meters(load_channels(run, interval.idle), interval.start_ns, interval.end_ns)
    )


def _twin(run: Run) -> str:
    """Return which twin stood in for a node: that of virtual time by name, or one that was served."""
    served = SERVED_TWIN if (run.meta.get("environment") or {}).get("JOULELAB_TWIN") else ""
    return str((run.meta.get("twin") or {}).get("name", "")) or served


def _told(run: Run, end: dict[str, Any]) -> dict[str, Any]:
    """Return what the folder tells of a run by itself: names, command, outcome, labels."""
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
        "twin": _twin(run),
    }


def _ended(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how the workload ended by the events, where a full disk took the end record."""
    ended = next((e for e in events if e.get("event") == "workload-end" and ("exit_code" in e or "signal" in e)), {})
    return {"outcome": "signal" if ended.get("signal") is not None else "exit", **ended} if ended else {}


def find_interval(run: Run, events: list[dict[str, Any]]) -> RunInterval:
    """Find when the workload ran: from the end record, from events, or from what was recorded."""
    end = run.end or {}
    begun = next((int(e.get("start_ns", e["t"])) for e in events if e.get("event") == "workload"), None)
    idle = next(((int(e["from"]), int(e["to"])) for e in events if e.get("event") == "idle"), None)
    start = end.get("start_ns") or begun or int(run.meta.get("started", {}).get("mono_ns", 0))
    finished = next((int(e.get("end_ns", e["t"])) for e in events if e.get("event") == "workload-end"), None)
    stop = end.get("end_ns") or finished
    if stop is None:
        stop = max([int(e["t"]) for e in events if "t" in e] + [_last_stamp(run), int(start)])
    return RunInterval(int(start), int(stop), idle, read_edge_offsets(events))


def _last_stamp(run: Run) -> int:
    stamps = (run.series(table, stream.name, channels=[]).t1_ns for table in run.tables() for stream in table.streams)
    return max((int(t1[-1]) for t1 in stamps if t1.size), default=0)


def _unread(run: Run, scopes: list[ScopeChannels], told: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the scopes that have a meter but no energy, since there are not even two readings."""
    read = {(s.host, s.scope) for s in scopes}
    streams = ((table.host, stream) for table in run.tables() for stream in table.streams if table.host not in told)
    bearing = dict.fromkeys((host, stream.scope) for host, stream in streams if list_energy_specs(stream))
    return tuple(scope for host, scope in bearing if (host, scope) not in read)


def _steps(work: MarkedWork) -> Ints | None:
    """Return the times of single work reports, one process after the other, None where there are none."""
    kept = []
    for stamps in work.times_ns.values():
        times = np.sort(np.array(stamps, dtype=np.int64))
        every = -(-times.size // MOST_STEP_STAMPS)
        kept.append(times[np.arange(times.size) // STEP_STRETCH % max(every, 1) == 0])
    return np.concatenate(kept) if kept else None


def _total_edges(channel: EnergyChannel) -> tuple[int, int] | None:
    """Return the edges (ns) of the one total that a cluster accounted for a job or a step, None for other channels."""
    readings = channel.readings
    if find_family(channel.stream.scope) != "job" or len(readings) != 2:
        return None
    return int(readings.t0_ns[0]), int(readings.t1_ns[-1])


def _own(scope: ScopeChannels, interval: RunInterval) -> RunInterval:
    """Return the interval of a scope: a step of a job has its own, and its energy is known over nothing else."""
    edges = _total_edges(scope.best) if "/" in scope.scope else None
    return interval if edges is None else RunInterval(*edges, None)


def _scope(scope: ScopeChannels, interval: RunInterval, steps: Ints | None) -> ScopeResult:
    a, b = interval.start_ns, interval.end_ns
    best, span = scope.best, max((b - a) * 1e-9, 1e-9)
    energy = add_interval_terms(best.energy(a, b, steps), best.edge_u, a, b, interval.unsure)
    shown = scope.find_power()
    idle_w = net = None
    if interval.idle is not None:
        ia, ib = interval.idle
        # Nothing runs that could be in step with the sensor. What idle and load share is wrong the same way in both.
        idle_w = best.energy(ia, ib).without("unseen", "in-step") * (1e9 / max(ib - ia, 1))
        net = energy - (idle_w * span).tagged("idle", keep=("gain:", "offset:", "lag:"))
    return ScopeResult(
        scope=scope.scope,
        host=scope.host,
        parent=scope.parent,
        device=best.stream.device,
        model=best.stream.model,
        reading=_reading(best, energy, a, b),
        mean_w=energy * (1 / span),
        statistics=_statistics(shown or best, a, b),
        net=net,
        idle_w=idle_w,
        others=tuple(
            _reading(c, add_interval_terms(c.energy(a, b, steps), c.edge_u, a, b, interval.unsure), a, b)
            for c in scope.channels[1:]
        ),
    )


def _statistics(shown: EnergyChannel, a: int, b: int) -> PowerStatistics | None:
    """Return statistics of power: as read, or from the rises of a counter over stretches of several of its steps."""
    if isinstance(shown.curve, SumCurve) and shown.spec.kind == "counter":
        return None
    if isinstance(shown.curve, CounterCurve):
        every = max(shown.step_s, TICKS_PER_POWER * (shown.spec.update_s or shown.step_s))
        return describe_power(shown.curve.find_powers(every), a, b, window_s=every, step_s=every)
    return describe_power(shown.readings, a, b, window_s=shown.spec.window_s, step_s=shown.step_s)


def _reading(channel: EnergyChannel, energy: Quantity, a: int, b: int) -> ChannelEnergy:
    inside = channel.readings.between(a, b)
    accuracy = channel.spec.accuracy
    return ChannelEnergy(
        meter=channel.meter,
        channel=channel.spec.name,
        kind=channel.spec.kind,
        energy=energy,
        accuracy=accuracy.source,
        reference=accuracy.reference,
        estimate=channel.spec.estimate,
        readings=inside.stop - inside.start,
        coverage=channel.coverage(a, b),
    )


class _Energies:
    """Work out energies of stretches of time, by group; the same stretch is worked out once."""

    def __init__(
        self,
        scopes: Sequence[ScopeChannels],
        groups: Sequence[GroupResult],
        interval: RunInterval,
        steps: Ints | None,
    ) -> None:
        self.interval = interval
        self._steps = steps
        self._known = {(s.host, s.scope): s for s in scopes}
        names = {find_family(s.scope) for s in scopes} | {"measured"}
        keys = {g.name: list(zip(g.hosts, g.scopes, strict=True)) for g in groups if g.name in names}
        self._groups = {name: some for name, some in keys.items() if self._known.keys() >= set(some)}
        self._counted = dict.fromkeys(key for some in self._groups.values() for key in some)
        self._rows = {scope.removeprefix("job/") for _, scope in self._known if scope.startswith("job/")}
        self._found: dict[tuple[int, int, str], dict[str, Quantity]] = {}

    def within(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return what of a stretch lies in the interval."""
        return max(start_ns, self.interval.start_ns), min(end_ns, self.interval.end_ns)

    def of(self, a: int, b: int, phase: str = "") -> dict[str, Quantity]:
        """Return the energy of [a, b] by group, nothing where that is empty.

        Slurm accounts a job and each step as one total: a step has the energy of its own row, and a stretch inside a
        job has none from it.
        """
        if b <= a:
            return {}
        phase = phase if phase in self._rows else ""
        if (a, b, phase) not in self._found:
            steps = select_steps(self._steps, a, b)  # once, not by each channel
            best = {key: self._row(key, phase).best for key in self._counted}
            of = {key: c.energy(a, b, steps) for key, c in best.items() if _total_edges(c) in (None, (a, b))}
            found = {n: some for n, some in self._groups.items() if of.keys() >= set(some)}
            self._found[a, b, phase] = {name: add_quantities(of[key] for key in some) for name, some in found.items()}
        return self._found[a, b, phase]

    def _row(self, key: tuple[str, str], phase: str) -> ScopeChannels:
        """Return the scope that a phase's energy is from: a job's step is accounted in a row of its own."""
        host, scope = key
        return self._known.get((host, f"job/{phase}") if scope == "job" else key, self._known[key])


def _phases(phases: list[MarkedPhase], energies: _Energies) -> tuple[tuple[PhaseResult, ...], tuple[PhaseResult, ...]]:
    """Return the phases, and the steps that follow each other without a gap as one interval each."""
    depths, parents = _nested(phases)
    ranked = sorted(range(len(phases)), key=lambda k: (phases[k].steps is not None, depths[k], phases[k].start_ns))
    worked_out = set(ranked[:MOST_PHASE_ENERGIES])
    together = find_stretches(phases)
    place = {k: n for n, places in enumerate(together) for k in places}
    listed = []
    for k, phase in enumerate(phases):
        a, b = energies.within(phase.start_ns, phase.end_ns)
        energy = energies.of(a, b, phase.name) if k in worked_out else {}
        listed.append(
            PhaseResult(
                title=phase.title,
                name=phase.name,
                n=phase.n,
                start_s=(a - energies.interval.start_ns) * 1e-9,
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
            )
        )
    rows = [_stretch([phases[k] for k in of], listed[of[0]], n, energies) for n, of in enumerate(together)]
    return tuple(listed), tuple(rows)


def _stretch(blocks: list[MarkedPhase], first: PhaseResult, number: int, energies: _Energies) -> PhaseResult:
    """Return steps that follow each other as one: what they took is as well known as of any phase of that length."""
    a, b = energies.within(blocks[0].start_ns, blocks[-1].end_ns)
    work: dict[str, float] = {}
    for kind, amount in (item for block in blocks for item in block.work.items()):
        work[kind] = work.get(kind, 0.0) + amount
    whole = replace(blocks[0], labels={"to": blocks[-1].last})
    return replace(
        first,
        title=whole.title,
        last=whole.last,
        duration_s=max(b - a, 0) * 1e-9,
        energy=energies.of(a, b) if number < MOST_STRETCH_ENERGIES else {},
        work=work,
        open_end=any(block.open_end for block in blocks),
        stretch=number,
    )


def _nested(phases: list[MarkedPhase]) -> tuple[list[int], list[int | None]]:
    """Return how deep each phase is nested, and the place of the one around it; a phase comes after that."""
    places: dict[str, int] = {}
    depths: list[int] = []
    parents: list[int | None] = []
    for k, phase in enumerate(phases):
        around = places.get(phase.parent or "")
        parents.append(around)
        depths.append(0 if around is None else depths[around] + 1)
        places[phase.id] = k
    return depths, parents


def _load(run: Run, a: int, b: int) -> dict[str, float]:
    """Return host load over [a, b]: means and maxima of what was read, rises of what was counted."""
    load: dict[str, float] = {}
    for table in run.tables():
        for stream in (s for s in table.streams if s.scope in ("host", "workload")):
            series = run.series(table, stream.name)
            for spec in stream.channels:
                readings = Readings.from_rows(series.t0_ns, series.t1_ns, series.values[spec.name])
                first, last = np.searchsorted(readings.t0_ns, (a, b)) - (1, 0)
                values = readings.value[max(first, 0) : last + 1]
                if first < 0 and spec.kind == "counter" and stream.scope == "workload":
                    values = np.append(0.0, values)  # its processes began at nothing
                if values.size > 1 and spec.kind == "counter":
                    load[f"{stream.scope}.{spec.name}"] = float(np.maximum(np.diff(values), 0.0).sum())
                elif values.size and spec.kind != "counter":
                    load[f"{stream.scope}.{spec.name}.mean"] = float(values.mean())
                    load[f"{stream.scope}.{spec.name}.max"] = float(values.max())
    return load


def _busiest(run: Run, a: int, b: int) -> dict[str, float]:
    """Return the highest load of each GPU of the run's own host that was read often enough in [a, b]."""
    found: dict[str, float] = {}
    for table in run.tables():
        for stream in table.streams if table.host == run.meta.get("host") else ():
            if find_family(stream.scope) != "gpu" or LOAD_CHANNEL not in [c.name for c in stream.channels]:
                continue
            series = run.series(table, stream.name, channels=[LOAD_CHANNEL])
            readings = Readings.from_rows(series.t0_ns, series.t1_ns, series.values[LOAD_CHANNEL])
            seen = readings.value[readings.between(a, b)]
            if seen.size >= FEWEST_LOADS:
                found[stream.scope] = float(seen.max())
    return found


def _used(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return the CPU time (s) that the kernel charged the workload with; its peak memory would be that of the fork."""
    ended = next((e for e in events if e.get("event") == "workload-end"), {})
    keys = ("user_s", "system_s")
    return {f"workload.{k}": float(ended[k]) for k in keys if k in ended}


def _missing(events: list[dict[str, Any]], meta: dict[str, Any]) -> list[dict[str, str]]:
    """Return meters that are not open in the end, and what those that are cannot measure.

    One that the configuration names is wanted: it is `absent` where others are merely unavailable here.
    """
    wanted = {str(entry.get("name")) for entry in (meta.get("options") or {}).get("configured") or ()}
    lacking: list[dict[str, Any]] = []
    last = {e.get("meter"): e for e in events if e.get("event") == "meter"}
    for event in last.values():
        if event.get("status") != "open":
            absent = event.get("meter") in wanted and event.get("status") == "unavailable"
            lacking.append({**event, "status": "absent"} if absent else event)
        for part in event.get("missing") or ():
            what = f"{part.get('scope', '')}: {part.get('what', '')}"
            lacking.append({**part, "meter": event.get("meter"), "status": "missing", "what": what})
    return [{k: str(e.get(k) or "") for k in ("meter", "status", "what", "why", "next")} for e in lacking]


def _utc(meta: dict[str, Any], mono_ns: int) -> str:
    """Return the UTC time of a monotonic stamp by the run's first clock pair, empty where there is none."""
    pair = meta.get("started") or {}
    if "utc_ns" not in pair:
        return ""
    utc = (int(pair["utc_ns"]) + mono_ns - int(pair["mono_ns"])) * 1e-9
    return dt.datetime.fromtimestamp(utc, dt.UTC).isoformat(timespec="milliseconds")


def list_gaps(events: Iterable[Mapping[str, Any]]) -> list[Gap]:
    """Return the gaps of all streams in the order in which they began."""
    gaps: list[Gap] = []
    running: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for event in sorted(events, key=lambda e: int(e.get("t", 0))):
        key = (str(event.get("host", "")), str(event.get("meter", "")), str(event.get("stream", "")))
        if event.get("event") == "gap":
            running.setdefault(key, event)
        elif event.get("event") == "gap-end" and key in running:
            gaps.append(_gap(key, running.pop(key), int(event.get("to", event["t"]))))
    gaps.extend(_gap(key, event, None) for key, event in running.items())
    return sorted(gaps, key=lambda g: g.from_ns)


def _gap(key: tuple[str, str, str], begun: Mapping[str, Any], to_ns: int | None) -> Gap:
    return Gap(key[1], key[2], int(begun.get("from", begun["t"])), to_ns, str(begun.get("reason", "")))


def read_edge_offsets(events: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return how far begin and end may be off to either side (ns), as the events tell."""
    told = next((e for e in events if e.get("event") == "interval-unsure"), {})
    return math.ceil(float(told.get("begin_s", 0.0)) * 1e9), math.ceil(float(told.get("end_s", 0.0)) * 1e9)


def add_interval_terms(
    energy: Quantity, edge_u: Callable[[int, int], float], a_ns: int, b_ns: int, unsure: tuple[int, int]
) -> Quantity:
    """Return the energy of [a, b] with what its ends are worth; `edge_u(t, off)` gives that of one (J).

    All scopes of a run begin and end together: their terms have one source each, and add.
    """
    if unsure == (0, 0):
        return energy
    ends = {f"interval:{a_ns}": -edge_u(a_ns, unsure[0]), f"interval:{b_ns}": edge_u(b_ns, unsure[1])}
    return replace(energy, terms={**energy.terms, **ends})
