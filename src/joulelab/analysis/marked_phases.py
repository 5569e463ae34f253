"""Read phases, work and facts from the marks of a run; find the kinds of work by which runs and phases are compared."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from joulelab.core.text import escape_surrogates, escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from joulelab.analysis.result import Fact, PhaseResult

SKEW = 0.02  # smaller shares of a report in a phase come from ranks that are slightly out of step
SAME_EDGE_NS = 1000  # steps closer than this follow each other without a gap
LARGEST = 2**63  # numbers of phases are stored as 64-bit integers
MOST_PHASES = 10_000  # of a run; more are useless in a list and cost seconds and gigabytes
MOST_KINDS = 100  # of work in a run: each has its own figures in every phase
DATA_FACT = "data"  # names the data of a run
QUALITY_FACT = "quality"  # names the facts that are figures of quality
# Work of some phases only: a run that also did other work has no meaningful energy per unit of it.
JUDGED_WORK = ("validated", "predicted")
COST_WORK = ("FLOP", "steps")  # effort, not the data that was worked on
NEARLY_ALL = 0.9  # phases with this share of the largest amount count as having done all of it


@dataclass(slots=True)
class MarkedPhase:
    """Hold one named time span (monotonic ns); `open_end`: no mark ended it; `script`: the shell script that marked it.

    `steps` is the marks file of the process whose steps it holds: their work is part of that process's reports.
    """

    id: str
    name: str
    n: int | None
    start_ns: int
    end_ns: int
    parent: str | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    open_end: bool = False
    work: dict[str, float] = field(default_factory=dict)
    script: str | None = None
    steps: str | None = None
    host: str = ""

    @property
    def title(self) -> str:
        """Return name and number: `epoch 3`, `step 101-150`."""
        if self.n is None:
            return self.name
        last = self.last
        return f"{self.name} {self.n}" + ("" if last is None or last <= self.n else f"-{last}")

    @property
    def last(self) -> int | None:
        """Return the number of its last step, None if it has no steps."""
        last = self.labels.get("to", self.n)
        return last if self.steps is not None and isinstance(last, int) else None

    @property
    def duration_s(self) -> float:
        """Return the length in s."""
        return (self.end_ns - self.start_ns) * 1e-9


@dataclass(slots=True)
class MarkedWork:
    """Hold the work of a run: amounts by kind (summed over ranks) and times (ns) of single reports by process.

    `phases` counts all marked phases, `left_out` the reports with kinds of work beyond `MOST_KINDS`.
    """

    amounts: dict[str, float] = field(default_factory=dict)
    times_ns: dict[str, list[int]] = field(default_factory=dict)
    phases: int = 0
    left_out: int = 0


def list_phases(
    marks: Iterable[Mapping[str, Any]], start_ns: int, end_ns: int, first: str | None = None
) -> tuple[list[MarkedPhase], MarkedWork]:
    """Return the phases that overlap [start, end], in order, with their work, and the work of the run.

    Of more than `MOST_PHASES`, the outermost and first ones are returned. If the `first` host is named, a phase that
    several hosts mark is one phase with the work of all of them; without, each host has phases and work of its own.
    """
    lines = sorted(marks, key=lambda m: int(m.get("t", 0)))
    marked = _find_spans(lines, end_ns)
    phases, work = _limit_phases(marked), MarkedWork(phases=len(marked))
    _nest_in_cells(phases.values())
    _nest_in_scripts(phases.values())
    scripts = [(phase.script, key) for key, phase in phases.items() if phase.script is not None]
    same = {key: key for key in phases}
    if first is not None:
        phases, same = _merge_hosts(phases, first)
    own = [(script, phases[same[key]]) for script, key in scripts]
    finder = _PhaseFinder(phases.values(), own, is_by_host=first is None)
    reported: dict[str, dict[str, float]] = {}
    for report in lines:
        if report.get("mark") != "work" or not start_ns <= int(report["t"]) <= end_ns:
            continue
        line = _limit_kinds(work, report)
        _add_amounts(work.amounts, line)
        work.times_ns.setdefault(_get_source(line), []).extend(int(t) for t in line.get("at", ()))
        identity = _get_id(line, "phase")
        if identity is None:
            _credit_times(finder.find_phases, line)
            continue
        identity = same.get(identity, identity)
        if identity in phases:
            _add_amounts(reported.setdefault(identity, {}), line)
        if first is not None:
            _credit_times(finder.find_steps, line)
    _credit_phases(phases, reported)
    for phase in (phases[key] for key in reported):  # kinds of work in the order of the run
        phase.work = {kind: phase.work[kind] for kind in (*work.amounts, *phase.work) if kind in phase.work}
    inside = [p for p in phases.values() if p.end_ns > start_ns and p.start_ns < end_ns]
    return sorted(inside, key=lambda p: (p.start_ns, -p.end_ns)), work


def _limit_kinds(work: MarkedWork, line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove the kinds of work beyond the first `MOST_KINDS` from a report, and count such a report."""
    amounts = _read_amounts(line.get("amounts"))
    new = [name for name in amounts if name not in work.amounts]
    room = MOST_KINDS - len(work.amounts)
    if len(new) <= room:
        return line
    work.left_out += 1
    beyond = set(new[room:])
    return {**line, "amounts": {name: amount for name, amount in amounts.items() if name not in beyond}}


def _limit_phases(phases: dict[str, MarkedPhase]) -> dict[str, MarkedPhase]:
    if len(phases) <= MOST_PHASES:
        return phases
    ranked = sorted(phases.items(), key=lambda p: (p[1].steps is not None, p[1].parent in phases, p[1].start_ns))
    return dict(ranked[:MOST_PHASES])


def list_facts(marks: Iterable[Mapping[str, Any]], end_ns: int, first: str) -> dict[str, Fact]:
    """Return the facts reported up to a time: the last value of each name, from the `first` host if it has one.

    None removes a fact.
    """
    found: dict[str, Fact | None] = {}
    lines = [m for m in marks if m.get("mark") == "fact" and int(m.get("t", 0)) <= end_ns]
    for line in sorted(lines, key=lambda m: (m.get("host", "") == first, int(m["t"]))):
        facts = line.get("facts")
        for name, value in facts.items() if isinstance(facts, dict) else ():
            key = escape_surrogates(str(name))
            found.pop(key, None)  # facts are in the order in which they were last reported
            found[key] = _clean_fact(value)
    return {name: value for name, value in found.items() if value is not None}


def list_phase_facts(
    marks: Iterable[Mapping[str, Any]], phases: Sequence[MarkedPhase], first: str
) -> dict[str, dict[str, Fact]]:
    """Return the facts reported inside phases by the id of the innermost phase: the last value of each name.

    Steps do not count as phases. Values of the `first` host replace those of others.
    """
    holders = sorted((p for p in phases if p.steps is None), key=lambda p: (p.start_ns, -p.end_ns))
    lines = sorted((m for m in marks if m.get("mark") == "fact"), key=lambda m: int(m.get("t", 0)))
    found: dict[str, dict[str, Fact]] = {}
    kept: dict[tuple[str, str], bool] = {}
    begun: list[MarkedPhase] = []
    place = 0
    for line in lines:
        t, is_first = int(line.get("t", 0)), line.get("host", "") == first
        while place < len(holders) and holders[place].start_ns <= t:
            begun.append(holders[place])
            place += 1
        begun = [phase for phase in begun if phase.end_ns >= t]
        facts = line.get("facts")
        if not begun or not isinstance(facts, dict):
            continue
        inner = begun[-1].id
        for name, value in facts.items():
            key, fact = escape_surrogates(str(name)), _clean_fact(value)
            if fact is not None and (is_first or not kept.get((inner, key))):
                found.setdefault(inner, {})[key] = fact
                kept[inner, key] = is_first
    return found


def _clean_fact(value: object) -> Fact | None:
    """Return a fact in a form that can be stored: no lone surrogates, no integers too large for a float."""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            float(value)
        except OverflowError:
            return str(value)
    if isinstance(value, float) and math.isinf(value):
        return str(value)  # JSON has none
    if value is None or isinstance(value, (int, float)):
        return value
    return escape_surrogates(value if isinstance(value, str) else str(value))


def _read_number(value: object) -> int | None:
    """Return the number of a phase, None if it is not a whole number."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    return value if fits else None  # type: ignore[return-value]


def _read_amounts(given: object) -> dict[str, float]:
    """Return amounts of work by kind; values that are not numbers are left out."""
    found = {}
    for name, amount in given.items() if isinstance(given, dict) else ():
        try:
            found[escape_surrogates(str(name))] = float(amount)
        except (TypeError, ValueError, OverflowError):
            continue
    return found


def find_stretches(phases: Sequence[MarkedPhase]) -> list[list[int]]:
    """Return lists of indices of steps: the steps of each list follow each other without a gap in one phase."""
    found: list[list[int]] = []
    last: dict[tuple[str, str | None], list[int]] = {}
    for k, phase in enumerate(phases):
        if phase.steps is None:
            continue
        key = phase.steps, phase.parent
        if key in last and phase.start_ns - phases[last[key][-1]].end_ns <= SAME_EDGE_NS:
            last[key].append(k)
        else:
            last[key] = [k]
            found.append(last[key])
    return found


def _get_source(line: Mapping[str, Any]) -> str:
    """Return the marks file of a line: one per process."""
    return f"{line.get('host', '')}/{line.get('source', '')}"


def _get_id(line: Mapping[str, Any], key: str) -> str | None:
    """Return the id of a phase, made unique by the host."""
    return None if line.get(key) is None else f"{line.get('host', '')}/{line[key]}"


def _find_spans(lines: list[Mapping[str, Any]], end_ns: int) -> dict[str, MarkedPhase]:
    phases: dict[str, MarkedPhase] = {}
    switched: dict[str, MarkedPhase] = {}
    for k, line in enumerate(lines):
        kind, t, source, host = line.get("mark"), int(line.get("t", 0)), _get_source(line), str(line.get("host", ""))
        if kind == "begin":
            identity = _get_id(line, "id") or ""
            if identity in phases:  # a process of the same number, later
                phases[f"{identity}#{k}"] = phases.pop(identity)
            labels, done, name = line.get("labels"), line.get("work"), escape_surrogates(str(line.get("name", "")))
            labels = labels if isinstance(labels, dict) else {}
            n, parent = _read_number(line.get("n")), _get_id(line, "parent")
            begun = MarkedPhase(identity, name, n, t, end_ns, parent, labels, open_end=True, host=host)
            if isinstance(done, dict):
                begun.steps = source
                begun.work = _read_amounts(done)
            phases[identity] = begun
        elif kind == "end" and (ended := phases.get(_get_id(line, "id") or "")) is not None:
            ended.end_ns, ended.open_end = t, False
        elif kind == "switch":
            if source in switched:
                last = switched.pop(source)
                last.end_ns, last.open_end = t, False
            if line.get("name"):
                name, n = escape_surrogates(str(line["name"])), _read_number(line.get("n"))
                begun = MarkedPhase(f"switch-{k}", name, n, t, end_ns, script=source, host=host)
                phases[begun.id] = switched[source] = begun
    return phases


def _nest_in_cells(phases: Iterable[MarkedPhase]) -> None:
    """Make phases of a notebook's kernel children of the cells that they lie in.

    Kernel and cells are marked by different processes that do not know each other's phases. Cells do not overlap.
    """
    cells: dict[str, list[MarkedPhase]] = {}
    others = []
    for phase in phases:
        if "notebook" in phase.labels:
            cells.setdefault(phase.host, []).append(phase)
        elif phase.parent is None:
            others.append(phase)
    for phase in others:
        there = cells.get(phase.host, [])
        k = bisect_right(there, phase.start_ns, key=lambda cell: cell.start_ns) - 1
        if k >= 0 and phase.end_ns <= there[k].end_ns:
            phase.parent = there[k].id


def _nest_in_scripts(phases: Iterable[MarkedPhase]) -> None:
    """Make steps children of the phases that their process switched to: those phases have no id in the marks."""
    switched: dict[str, list[MarkedPhase]] = {}
    for phase in phases:
        if phase.script is not None:
            switched.setdefault(phase.script, []).append(phase)
    for phase in phases:
        there = switched.get(phase.steps or "", [])
        k = bisect_right(there, phase.start_ns, key=lambda script: script.start_ns) - 1
        if k >= 0 and phase.parent is None and phase.end_ns <= there[k].end_ns:
            phase.parent = there[k].id


def _merge_hosts(phases: dict[str, MarkedPhase], first: str) -> tuple[dict[str, MarkedPhase], dict[str, str]]:
    """Make one phase of those that several hosts mark: from the first begin to the last end.

    Phases are the same if name, number and order are, inside the same phase. Steps are those of one host: the first
    that has some there. Returns the phases, and the key of each phase by the key that it had.
    """
    merged: dict[str, MarkedPhase] = {}
    same: dict[str, str] = {}
    places: dict[tuple[object, ...], str] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    stepping: dict[str | None, str] = {}
    for key, phase in sorted(phases.items(), key=lambda item: (item[1].host != first, item[1].host)):
        if phase.parent is not None:
            phase.parent = same.get(phase.parent, phase.parent)
        if phase.steps is not None:
            if stepping.setdefault(phase.parent, phase.host) == phase.host:
                merged[key] = phase
            continue
        what = phase.parent, phase.name, phase.n
        seen[phase.host, *what] += 1
        same[key] = places.setdefault((*what, seen[phase.host, *what]), key)
        one = merged.setdefault(same[key], phase)
        one.start_ns, one.end_ns = min(one.start_ns, phase.start_ns), max(one.end_ns, phase.end_ns)
        one.open_end |= phase.open_end
    return merged, same


class _Siblings:
    """Hold phases with the same parent. Usually they do not overlap: then bisection finds the phases of a time."""

    def __init__(self) -> None:
        self.phases: list[MarkedPhase] = []

    @cached_property
    def _edges(self) -> tuple[list[int], list[int], bool]:
        starts, ends = [p.start_ns for p in self.phases], [p.end_ns for p in self.phases]
        return starts, ends, starts == sorted(starts) and ends == sorted(ends)

    def find_phases(self, since: int, t: int) -> Sequence[MarkedPhase]:
        """Return the phases that may overlap [since, t]."""
        starts, ends, is_sorted = self._edges
        return self.phases[bisect_right(ends, since) : bisect_right(starts, t)] if is_sorted else self.phases


class _PhaseFinder:
    """Find the phases that a report belongs to if it names no phase: those of its host, or of all hosts."""

    def __init__(
        self, phases: Iterable[MarkedPhase], scripts: Iterable[tuple[str, MarkedPhase]], *, is_by_host: bool
    ) -> None:
        self._is_by_host = is_by_host
        self._phases: dict[str, dict[str | None, _Siblings]] = {}
        self._scripts: dict[str, _Siblings] = {}
        self._steps: dict[str, dict[str, _Siblings]] = {}
        for phase in sorted(phases, key=lambda p: p.start_ns):
            host = phase.host if is_by_host else ""
            if phase.steps is not None:
                self._steps.setdefault(host, {}).setdefault(phase.steps, _Siblings()).phases.append(phase)
                continue
            self._phases.setdefault(host, {}).setdefault(phase.parent, _Siblings()).phases.append(phase)
        for script, phase in scripts:
            self._scripts.setdefault(script, _Siblings()).phases.append(phase)

    def find_phases(self, host: str, source: str, since: int, t: int) -> Iterator[MarkedPhase]:
        """Yield the phases that a report of [since, t] may belong to, without steps of its own process."""
        own, there = self._scripts.get(source), host if self._is_by_host else ""
        for siblings in self._phases.get(there, {}).values() if own is None else (own,):
            yield from siblings.find_phases(since, t)
        for process, blocks in self._steps.get(there, {}).items():
            if process != source:
                yield from blocks.find_phases(since, t)

    def find_steps(self, host: str, source: str, since: int, t: int) -> Iterator[MarkedPhase]:
        """Yield the steps of other hosts that a report of [since, t] may belong to."""
        del source
        for blocks in self._steps.get("", {}).values():
            if blocks.phases[0].host != host:
                yield from blocks.find_phases(since, t)


def _add_amounts(amounts: dict[str, float], line: Mapping[str, Any], share: float = 1.0) -> None:
    _add_sums(amounts, {name: amount * share for name, amount in _read_amounts(line.get("amounts")).items()})


def _credit_times(find: Callable[[str, str, int, int], Iterator[MarkedPhase]], line: Mapping[str, Any]) -> None:
    """Add work that names no phase (of other ranks, threads, children, scripts) to the phases by time.

    A report covers the time since the previous one; each phase gets the share that overlaps it. Reports of a script
    belong to the script's own phases, if it has any. Ranks reach an edge at slightly different times: a small share
    in the neighbouring phase belongs to the phase that has nearly all of the report.
    """
    t, since = int(line["t"]), min(int(line.get("from", line["t"])), int(line["t"]))
    beside: dict[str | None, list[tuple[float, MarkedPhase]]] = {}
    for phase in find(str(line.get("host", "")), _get_source(line), since, t):
        overlap = min(t, phase.end_ns) - max(since, phase.start_ns)
        share = overlap / (t - since) if t > since else float(phase.start_ns <= t < phase.end_ns)
        if share > 0:
            beside.setdefault(phase.parent, []).append((share, phase))
    for shares in beside.values():
        whole = sum(share for share, _ in shares)
        kept = [(share, phase) for share, phase in shares if share > SKEW * whole]
        scale = whole / sum(share for share, _ in kept)
        for share, phase in kept:
            _add_amounts(phase.work, line, share * scale)


def _credit_phases(phases: Mapping[str, MarkedPhase], reported: dict[str, dict[str, float]]) -> None:
    """Add the work reported in each phase to it and to all phases around it."""
    inside = Counter(phase.parent or "" for phase in phases.values())
    ready = [key for key in phases if not inside[key]]
    rest = dict.fromkeys(phases)
    while ready:  # the innermost first
        key = ready.pop()
        del rest[key]
        around = phases[key].parent or ""
        _add_sums(phases[key].work, reported.get(key, {}))
        if around in phases:
            _add_sums(reported.setdefault(around, {}), reported.get(key, {}))
        inside[around] -= 1
        if around in phases and not inside[around]:
            ready.append(around)
    while rest:  # phases of a damaged file that contain each other: each gets the work of all
        ring = [next(iter(rest))]
        while (around := phases[ring[-1]].parent or "") != ring[0]:
            ring.append(around)
        sums = [reported.get(key, {}) for key in ring]
        for key in ring:
            del rest[key]
            for done in sums:
                _add_sums(phases[key].work, done)


def _add_sums(amounts: dict[str, float], more: Mapping[str, float]) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0.0) + amount


def list_figure_kinds(kinds: Iterable[str]) -> list[str]:
    """Return the kinds of work that the energy and time of a whole run may be divided by.

    Validated or predicted samples count only if there is no other data, such as in a phase of validation.
    """
    there = list(dict.fromkeys(kinds))
    others = [kind for kind in there if kind not in (*JUDGED_WORK, *COST_WORK)]
    return [kind for kind in there if kind not in JUDGED_WORK or not others]


def find_work_phase(phases: Sequence[PhaseResult], kind: str) -> tuple[str, float] | None:
    """Return the name of the phases in which a kind of work was done, and its amount per second in them.

    Of the names with nearly all of the work, the one that took the least time is chosen; None if no phase has work.
    The time of phases that overlap, on several nodes or threads, counts once.
    """
    by_name: dict[str, list[PhaseResult]] = {}
    for phase in phases:
        if phase.last is None and phase.work.get(kind):
            by_name.setdefault(phase.name, []).append(phase)
    done = {name: sum(p.work[kind] for p in some) for name, some in by_name.items()}
    took = {name: _sum_union(some) for name, some in by_name.items()}
    most = max(done.values(), default=0.0)
    held = [name for name in done if done[name] >= NEARLY_ALL * most and took[name] > 0]
    name = min(held, key=lambda each: took[each], default=None)
    return None if name is None else (name, done[name] / took[name])


def _sum_union(phases: Iterable[PhaseResult]) -> float:
    """Return the time (s) during which at least one of the phases was active."""
    whole = reached = 0.0
    for start, end in sorted((p.start_s, p.start_s + p.duration_s) for p in phases):
        whole += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return whole


def read_quality(facts: Mapping[str, Fact]) -> dict[str, float]:
    """Return the figures of quality of a run in their order, NaN for those that are not finite.

    The fact `quality` names them, separated by commas; facts that are missing or no numbers are left out.
    """
    named = facts.get(QUALITY_FACT, "")
    names = [name.strip() for name in named.split(",")] if isinstance(named, str) else [QUALITY_FACT]
    found = {}
    for name in (n for n in names if n in facts):
        try:
            value = float(facts[name])
        except ValueError:
            continue
        found[name] = value if math.isfinite(value) else math.nan
    return found


def format_quality(facts: Mapping[str, Fact]) -> str:
    """Return the figures of quality in one line, empty without any: `accuracy 0.91, loss nan`."""
    return ", ".join(f"{escape_unprintable(name)} {value:.4g}" for name, value in read_quality(facts).items())
