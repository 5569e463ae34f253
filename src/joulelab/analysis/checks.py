"""Check a run like a sceptical referee: first its files, its end and its nodes, then its meters and its devices.

A check is a code with numbers and names. `report/messages` has the sentence and the next step of each code.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.calibrations import check_calibrations
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.device_checks import check_devices
from joulelab.analysis.job_accounting import Accounts
from joulelab.analysis.marked_phases import MOST_KINDS, MOST_PHASES, read_quality
from joulelab.analysis.meter_checks import check_meters
from joulelab.analysis.result import Check, CheckStatus, GroupResult, MeterComparison, ScopeResult
from joulelab.core.scope import find_family
from joulelab.core.text import escape_unprintable
from joulelab.store.run_folder import JOINED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.readings import Floats, Ints
    from joulelab.analysis.result import Fact, Gap, Lag, WorkChannel
    from joulelab.store.sample_tables import FileProblem

# Tables of load, caps, temperature and fans: no energy is in them.
WITHOUT_ENERGY = ("host", "state", "cooling")
DOCUMENTS = ("run.json", "end.json")  # time span and host of the workload are in them
APART_SHARE = 0.02  # of the time of a joined run: commands that begin or end further apart are named
HOLE_PERIODS, HOLE_S = 5.0, 1.0  # nothing of a node for longer than this, whichever is longer, is a hole
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class UnreadStream:
    """Hold a stream with fewer than two readings, with the reason if it is known; `covered`: another meter was read.

    `scope` is empty if a run of an older version does not hold it.
    """

    host: str
    meter: str
    scope: str
    reason: str
    covered: bool


@dataclass(frozen=True)
class RunEvidence:
    """Hold everything that the checks need to know about a run."""

    state: str
    start_ns: int
    end_ns: int
    idle: tuple[int, int] | None
    channels: Sequence[ScopeChannels]
    scopes: Sequence[ScopeResult]
    events: Sequence[Mapping[str, Any]]
    gaps: Sequence[Gap]
    unread: Sequence[UnreadStream] = ()
    incomplete: Sequence[Check] = ()
    imported: bool = False
    lags: Sequence[Lag] = ()
    groups: Sequence[GroupResult] = ()
    comparisons: Sequence[MeterComparison] = ()
    accounts: Accounts = field(default_factory=Accounts)
    steps: Ints | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    damage: Sequence[FileProblem] = ()
    phases: int = 0
    phase_names: Sequence[str] | None = None  # of all phases, each once; None if some may be missing
    work_left_out: int = 0
    open_phases: Sequence[str] = ()  # of a run that ended by itself
    nodes: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # begin and end (ns) by host of a joined run
    is_unverifiable: bool = False  # it reports work, and its end.json does not list the files of marks
    counted: Sequence[WorkChannel] = ()

    @cached_property
    def has_several_hosts(self) -> bool:
        """Return whether scopes of several hosts were measured: then scopes are named with their hosts."""
        return len({s.host for s in self.scopes if find_family(s.scope) != "job"}) > 1

    def name_place(self, host: object, scope: object) -> str:
        """Return the name of a scope, with its host if there are several hosts."""
        return f"{host}/{scope}" if self.has_several_hosts else str(scope)

    def name_scope(self, one: ScopeChannels | ScopeResult | MeterComparison | Lag) -> str:
        """Return the name of a measured scope, with its host if there are several hosts."""
        return self.name_place(one.host, one.scope)

    def name_scopes(self, scopes: Iterable[ScopeResult]) -> str:
        """Return the names of scopes, separated by commas."""
        return ", ".join(self.name_scope(s) for s in scopes)

    def name_doctor(self, meter: str) -> dict[str, str]:
        """Return the argument of `joulelab doctor` as text of a check; nothing for imported runs."""
        return {} if self.imported else {"doctor": meter}

    def is_only_accounted(self, host: object) -> bool:
        """Return whether a host is only the accounting of a cluster, while meters of our own give the figures."""
        return host in self.accounts.events and any(s.host not in self.accounts.events for s in self.scopes)

    def list_events(self, kind: str) -> list[Mapping[str, Any]]:
        """List the events of one kind."""
        return [e for e in self.events if e.get("event") == kind]

    def read_state(self, scope: ScopeChannels, name: str) -> Floats:
        """Return the readings of a slow channel during the workload."""
        readings = scope.state.get(name)
        return np.empty(0) if readings is None else readings.value[readings.between(self.start_ns, self.end_ns)]

    def overlaps_workload(self, stretches: Sequence[tuple[int, int]]) -> bool:
        """Return whether one of these time spans (ns) overlaps the workload."""
        return any(self.start_ns < to and since < self.end_ns for since, to in stretches)


def check_run(run: RunEvidence) -> Iterator[Check]:
    """Run every check."""
    yield from check_damage(run.damage)
    yield from _check_marks(run)
    yield from _check_end(run)
    yield from _check_limits(run)
    yield from _check_nodes(run)
    yield from _check_span(run)
    yield from check_meters(run)
    yield from check_devices(run)
    yield from check_calibrations(run)
    for event in run.list_events("clock-step"):
        yield Check("clock-stepped", "warning", numbers={"step_s": float(event.get("by_ns", 0)) * 1e-9})


def _check_marks(run: RunEvidence) -> Iterator[Check]:
    if run.phases > MOST_PHASES:
        numbers = {"marked": float(run.phases), "listed": float(MOST_PHASES)}
        yield Check("too-many-phases", "warning", numbers=numbers)
    if run.work_left_out:
        numbers = {"counted": float(MOST_KINDS), "reports": float(run.work_left_out)}
        yield Check("too-many-kinds", "warning", numbers=numbers)
    restarted: dict[str, list[WorkChannel]] = {}
    for channel in (channel for channel in run.counted if channel.restarts):
        restarted.setdefault(run.name_place(channel.host, channel.scope), []).append(channel)
    for place, (first, *others) in restarted.items():
        also = f" (and {', '.join(channel.name for channel in others)})" if others else ""
        yield Check("counter-reset", "warning", place, {"lost_s": first.lost_s}, {"channel": f"{first.name}{also}"})
    if run.is_unverifiable:
        yield Check("not-verifiable", "note")
    if run.open_phases:
        names = [*run.open_phases[:MOST_NAMED], *(["..."] if len(run.open_phases) > MOST_NAMED else [])]
        yield Check(
            "open-phases",
            "warning",
            ", ".join(run.open_phases[:20]),
            {"phases": float(len(run.open_phases))},
            {"names": ", ".join(names)},
        )
    unknown = [name for name, value in read_quality(run.facts).items() if np.isnan(value)]
    if unknown:
        yield Check("quality", "warning", ", ".join(unknown))


def _check_end(run: RunEvidence) -> Iterator[Check]:
    if run.state != "closed" and run.list_events("workload-end"):
        yield Check("ending.not-recorded", "warning")
    elif run.state == "killed":
        yield Check("ending.killed", "warning")
    elif run.state == "live":
        yield Check("ending.live", "note")
    for event in run.list_events("recorder-died"):
        yield Check("recorder.died", "warning", texts={"reason": str(event.get("status", "unknown"))})
    for _ in run.list_events("recorder-stuck"):
        yield Check("recorder.stuck", "warning")
    for event in run.list_events("supervisor-paused"):
        yield Check("paused", "warning", numbers={"paused_s": (int(event["to"]) - int(event["from"])) * 1e-9})
    for event in run.list_events("disk"):
        error, lost = str(event.get("error") or "unknown error"), event.get("dropped_rows", 0)
        yield Check("disk", "warning", numbers={"lost_rows": lost}, texts={"error": error})


def _check_limits(run: RunEvidence) -> Iterator[Check]:
    """Return the limit that was reached, those that were passed unseen, not watched, or for no phase of the run."""
    used_j = next((g.energy.value for g in run.groups if g.name == "measured"), 0.0)
    is_open = run.state == "live" or run.list_events("limit-reached")
    is_lost = len(run.list_events("limit-lost")) > len(run.list_events("limit-found"))
    for event in () if is_open else run.list_events("limit"):
        texts, phase = {"limit": str(event.get("limit"))}, event.get("phase")
        if phase and run.phase_names is not None and phase not in run.phase_names:
            texts["phase"] = escape_unprintable(str(phase))
            texts |= {"names": ", ".join(map(escape_unprintable, run.phase_names))} if run.phase_names else {}
            yield Check("limit.no-phase", "warning", texts=texts)
        elif used_j > _read_number(event, "limit_j") and not phase:
            code = "limit.unwatched" if is_lost else "limit.unseen"
            yield Check(code, "warning", numbers={"used_j": used_j}, texts=texts)
    for event in run.list_events("limit-reached")[:1]:
        numbers = {"limit_j": _read_number(event, "limit_j"), "reached_s": _read_number(event, "elapsed_s")}
        texts = {name: str(event[name]) for name in ("limit", "phase", "then") if event.get(name)}
        yield Check("limit.reached", "note", numbers=numbers, texts={"limit": "?", **texts})
    for event in run.list_events("limit-lost")[:1]:
        yield Check("limit.lost", "warning", texts={"limit": str(event.get("limit", "?"))})


def _read_number(event: Mapping[str, Any], key: str) -> float:
    value = event.get(key)
    return float(value) if isinstance(value, int | float) else 0.0


def _check_span(run: RunEvidence) -> Iterator[Check]:
    """Return the doubts of an archive about the time span of a run, with the texts that the run stores."""
    statuses: dict[str, CheckStatus] = {"failed": "failed", "note": "note"}
    for event in run.list_events("interval-doubt"):
        texts = {"what": str(event.get("what", "")), "next": str(event.get("next", ""))}
        yield Check("interval", statuses.get(str(event.get("status")), "warning"), texts=texts)


# Several nodes.


def _compare_nodes(run: RunEvidence) -> Iterator[Check]:
    """Name the nodes of a joined run whose command failed, and those whose command was another than the first's."""
    nodes = [event for event in run.list_events(JOINED) if isinstance(event.get("command"), list)]
    nodes.sort(key=lambda event: int(event.get("place", 0)))
    ends = [_word_end(event) for event in nodes]
    for event, end in zip(nodes, ends, strict=True):
        if end != "exit 0" and "exit 0" in ends:
            yield Check("joined-failed", "note", str(event["host"]), texts={"end": end})
    for event in nodes[1:]:
        if _drop_rank(event["command"]) != _drop_rank(nodes[0]["command"]):
            command = escape_unprintable(shlex.join(map(str, event["command"])))
            yield Check("joined-other-command", "note", str(event["host"]), texts={"command": command})


def _word_end(event: Mapping[str, Any]) -> str:
    outcome, keys = str(event.get("outcome")), {"exit": "exit_code", "signal": "signal"}
    return f"{outcome} {event.get(keys[outcome])}" if outcome in keys else outcome


def _drop_rank(command: Sequence[object]) -> str:
    """Return a command without the number of its node: `--node-rank 1`."""
    return re.sub(r"(rank[= ])\d+", r"\1", " ".join(map(str, command)), flags=re.IGNORECASE)


def _check_nodes(run: RunEvidence) -> Iterator[Check]:
    yield from _find_absent_nodes(run)
    for host, (start_ns, end_ns) in run.nodes.items():
        late_s, early_s = (start_ns - run.start_ns) * 1e-9, (run.end_ns - end_ns) * 1e-9
        if max(late_s, early_s) > min(HOLE_S, APART_SHARE * (run.end_ns - run.start_ns) * 1e-9):
            yield Check("joined-apart", "note", host, {"late_s": late_s, "early_s": early_s})
    yield from _compare_nodes(run)
    by_host: dict[str, list[ScopeChannels]] = {}
    for scope in run.channels:
        if scope.host not in run.accounts.events:
            by_host.setdefault(scope.host, []).append(scope)
    for host, scopes in by_host.items():
        if any(c.clock_s is None for s in scopes for c in s.channels):
            yield Check("clocks", "failed", host)
        elif (len(by_host) > 1 or run.list_events("nodes")) and not run.imported:
            yield from _find_holes(run, host, scopes)


def _find_absent_nodes(run: RunEvidence) -> Iterator[Check]:
    last = run.list_events("nodes")[-1:]
    if not run.scopes or not last:
        return
    nodes, read = [str(n) for n in last[0].get("nodes", ())], {s.host for s in run.channels}
    silent = [n for n in nodes if n not in read]
    if silent:
        yield Check("not-recorded.no-readings", "failed", ", ".join(silent))
    count = int(last[0].get("count", 0))
    if count > len(nodes):
        numbers = {"missing": float(count - len(nodes)), "nodes": float(count)}
        yield Check("not-recorded.no-record", "failed", numbers=numbers)


def _find_holes(run: RunEvidence, host: str, scopes: Sequence[ScopeChannels]) -> Iterator[Check]:
    """Find times without any reading of a node: counters still know the energy of that time, powers do not."""
    channels = [c for s in scopes for c in s.channels]
    edges = run.nodes.get(host, (run.start_ns, run.end_ns))
    inside = [c.readings.t0_ns[c.readings.between(*edges)] for c in channels]
    t = np.unique(np.concatenate([*inside, np.array(edges, dtype=np.int64)]))
    longest = max(HOLE_PERIODS * min(c.step_s for c in channels), HOLE_S) * 1e9
    holes = [(int(t[k]), int(t[k + 1])) for k in np.flatnonzero(np.diff(t) > longest)]
    if not holes:
        return
    since, until = holes[0][0] - run.start_ns, holes[-1][1] - run.start_ns
    numbers = {"lost_s": sum(b - a for a, b in holes) * 1e-9, "from_s": since * 1e-9, "to_s": until * 1e-9}
    lacking = [s.scope for s in scopes if not all(_counts_over(s, hole) for hole in holes)]
    if lacking:
        yield Check("recorder-lost.energy-missing", "failed", ", ".join(f"{host}/{s}" for s in lacking), numbers)
    else:
        yield Check("recorder-lost.counted", "note", host, numbers)


def _counts_over(scope: ScopeChannels, hole: tuple[int, int]) -> bool:
    """Return whether the energy of a scope comes from counters with readings before and after a hole."""
    parts = scope.best.members or (scope.best,)
    whole = (p.readings.t0_ns[0] <= hole[0] and p.readings.t1_ns[-1] >= hole[1] for p in parts)
    return all(isinstance(p.curve, CounterCurve) for p in parts) and all(whole)


# Files that are damaged or missing.


def is_needed_for_totals(problem: FileProblem) -> bool:
    """Return whether totals need this lost file: samples of energy, or events, which name the meters."""
    meter, *table = problem.path.name.split(".")[:2]
    return problem.lost and not is_of_marks(problem) and not {meter, *table} & {*WITHOUT_ENERGY}


def is_of_marks(problem: FileProblem) -> bool:
    """Return whether the damaged file holds marks: then the amount of work is unknown."""
    return "marks" in (problem.path.name, problem.path.parent.name)


class LostTables:
    """Hold the tables that must not be used: damaged ones, or all if a document of the run itself is damaged."""

    def __init__(self, damage: Iterable[FileProblem] = ()) -> None:
        lost = [p.path for p in damage if p.lost and not is_of_marks(p)]
        self.all = any(path.name in DOCUMENTS for path in lost)
        self._names: set[tuple[str, ...]] = {(path.parent.name, *path.name.split(".")[:2]) for path in lost}

    def has_table(self, host: str, meter: str, table: str) -> bool:
        """Return whether a table, or the whole meter that it belongs to, is lost."""
        return self.all or not self._names.isdisjoint({(host, meter, table), (host, meter)})

    def __bool__(self) -> bool:
        """Return whether any table is lost."""
        return self.all or bool(self._names)


def check_damage(damage: Iterable[FileProblem]) -> Iterator[Check]:
    """Fail a check for each damaged or missing file; texts hold no path of this machine, because pages are shared."""
    for problem in damage:
        path = problem.path
        what = problem.what.removeprefix(f"{path.parent}: ").removeprefix("journal ").replace(f" '{path}'", "")
        what = "it" + what.removeprefix(path.name) if what.startswith(f"{path.name} ") else what
        texts = {"what": escape_unprintable(what.removeprefix(path.name).removeprefix(":").strip())}
        if is_of_marks(problem):
            texts["withheld"] = "energy per work"
        elif is_needed_for_totals(problem):
            texts["withheld"] = "total"
        place = escape_unprintable(f"{path.parent.name}/{path.name}")
        yield Check("damaged", "failed", place, problem.numbers, texts)
