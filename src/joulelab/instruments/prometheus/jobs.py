"""Find a Slurm job in what the agents of its nodes showed: which nodes, from when to when, and how well that is known.

A scrape shows whether a job is there; it began between the last scrape without it and the first with it. Nodes are
scraped at different times, so that many of them know it better than one. Where no node was seen without it, before or
after, its begin or end is not known, and that is told.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import Unavailable
from joulelab.instruments.prometheus.api import nothing_found
from joulelab.instruments.prometheus.query import narrowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.instruments.prometheus.api import Api
    from joulelab.instruments.prometheus.setup import Settings

INFO = "joulelab_slurm_job_info"
BUILD = "joulelab_build_info"  # one for each agent, at every scrape
LAG = "joulelab_slurm_job_lag_seconds"  # how late an agent may know of a job that comes or goes
DOUBT = "interval-doubt"  # the event that becomes a check of the run
STEP_MS = 300_000
APART_NS = 600 * NS  # a job that was away from all of its nodes for so long was started again
LOOKED_S = 3.0  # an agent that does not say how late it may know of a job: it sees control groups
LONGEST_LAG_S = 86_400.0
LOST = 3  # a node whose telemetry begins or ends so many scrapes away from that of the others was lost meanwhile
LABELS = ("user", "account", "partition")
MOST_SHOWN = 6
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Doubt:
    """Say what is not known of a job, how bad that is (a check's status), what to type; `side` is begin, end, or ''."""

    what: str
    status: str = "warning"
    side: str = ""
    next: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """Hold a job: its nodes, begin and end (UTC, ns), how far either may be off (s), labels, and what is doubtful.

    Where it is not known when it began or ended, begin or end is that of its telemetry, and how far it is off None.
    """

    job: str
    nodes: tuple[str, ...]
    start_ns: int
    end_ns: int
    unsure_s: tuple[float | None, float | None]
    scrape_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return in words what is doubtful."""
        return tuple(doubt.what for doubt in self.doubts)

    def facts(self) -> dict[str, Any]:
        """Return plain data for a run's folder."""
        known = {"name": f"job-{re.sub(r'[^A-Za-z0-9_.-]+', '-', self.job)}", "job": self.job}
        times = {"unsure_s": list(self.unsure_s), "scrape_s": self.scrape_s, "notes": list(self.notes)}
        return {**known, "nodes": list(self.nodes), **times}

    def told(self) -> list[str]:
        """Return in words which nodes and which interval it is."""
        some = self.nodes if len(self.nodes) <= MOST_SHOWN else (*self.nodes[:2], "...", self.nodes[-1])
        count = "1 node" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"
        times = f"{_utc(self.start_ns)} to {_utc(self.end_ns)}"
        known = f"{self._known()}, scraped every {self.scrape_s:g} s"
        first = f"job {self.job}: {count} ({', '.join(some)}), {times} ({known})"
        return [first, *(f"job {self.job}: {note}" for note in self.notes)]

    def events(self) -> list[dict[str, str]]:
        """Return what is doubtful as events of a run, which become its checks."""
        return [
            {"event": DOUBT, "side": d.side, "status": d.status, "what": f"job {self.job}: {d.what}", "next": d.next}
            for d in self.doubts
        ]

    def _known(self) -> str:
        """Return in words how well begin and end are known."""
        begin, end = self.unsure_s
        if begin is not None and end is not None:
            return f"begin and end {_to(max(begin, end))}"
        return "begin and end unknown" if begin is end else f"begin {_to(begin)}, end {_to(end)}"


def find_job(api: Api, asked: Settings, since_ns: int, until_ns: int) -> Job:
    """Return a job that was seen in an interval (UTC, ns), its last execution. Raises MeterError, ConfigError."""
    selector = narrowed(f"{INFO}{{slurm_job={json.dumps(asked.job)}}}", asked.match)
    seen_at = f"count(count_over_time({selector}[{STEP_MS}ms]))"
    steps = [s.t1 for series in api.evaluated(seen_at, since_ns, until_ns, STEP_MS).values() for s in series]
    if not steps:
        raise _unknown(api, asked, selector, since_ns, until_ns)
    first, last = min(steps) - 2 * STEP_MS * 10**6, max(steps) + 2 * STEP_MS * 10**6
    labels: dict[str, set[str]] = {}
    times: dict[str, list[int]] = {}
    for key, samples in api.raw(selector, first, min(last, until_ns)).items():
        times.setdefault(asked.host_of(dict(key), f"meter {asked.label}"), []).extend(s.t1 for s in samples)
        for name, value in key:
            labels.setdefault(name, set()).update([value] if value else [])  # whose it is may be told later
    times, earlier = _last_stretch(times)
    again = "it was there {} times; the last is taken, give --from and --to for another"
    doubts = [Doubt(again.format(earlier + 1), "note")] if earlier else []
    usual_s = _usual_s(times)
    seen = _seen(api, asked, times, usual_s)
    if seen.guessed:
        what = (
            f"when {_listed(seen.guessed)} was scraped is not known (no {BUILD}): taken to be around where it shows it"
        )
        doubts.append(Doubt(what))
    begin, end = (_edge(times, seen, usual_s, begin=side) for side in (True, False))
    doubts += [*_doubts(asked, begin, until_ns), *_doubts(asked, end, until_ns)]
    single = {name: min(labels[name]) for name in LABELS if len(labels.get(name, ())) == 1}
    nodes = tuple(sorted(times, key=_natural))
    off, known = (begin.off_s, end.off_s), {"slurm_job": asked.job, **single}
    return Job(asked.job, nodes, begin.at_ns, end.at_ns, off, usual_s, known, tuple(doubts))


def _unknown(api: Api, asked: Settings, selector: str, since_ns: int, until_ns: int) -> Unavailable:
    if INFO not in api.names():
        return nothing_found(api, selector, since_ns, until_ns)
    days = f"{(until_ns - since_ns) / NS / 86_400:g} days"
    why = f"no agent showed it within the last {days}"
    advice = "check its number; for one that is older, search_days=90"
    return Unavailable(f"job {asked.job} is not known", where=asked.label, why=why, next=advice)


def _last_stretch(times: Mapping[str, Sequence[int]]) -> tuple[dict[str, list[int]], int]:
    """Return the times (ns) of the last execution by node, and how many there were before it."""
    every = sorted(t for seen in times.values() for t in seen)
    breaks = [after for before, after in pairwise(every) if after - before > APART_NS]
    since = breaks[-1] if breaks else every[0]
    kept = {node: sorted(t for t in seen if t >= since) for node, seen in times.items()}
    return {node: seen for node, seen in kept.items() if seen}, len(breaks)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Hold by node when it was scraped and how late it may know of a job (ns); of the `guessed` only jobs tell."""

    scrapes: Mapping[str, Sequence[int]]
    lag_ns: Mapping[str, int]
    guessed: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Edge:
    """Hold begin or end (ns), how far it may be off (s), None where no node was seen beyond it.

    `apart` are nodes that were seen without the job while others had it, by how long (s); `lost` those whose telemetry
    ends inside the job, by how long there is none of them.
    """

    begin: bool
    at_ns: int
    off_s: float | None
    apart: Mapping[str, float]
    lost: Mapping[str, float]


def _seen(api: Api, asked: Settings, times: Mapping[str, Sequence[int]], usual_s: float) -> _Seen:
    """Ask how nodes were scraped around the job; from how often they show the job where nothing tells."""
    since, until = min(min(t) for t in times.values()), max(max(t) for t in times.values())
    only, where = asked.only(list(times)), f"meter {asked.label}"
    found: dict[str, list[int]] = {node: [] for node in times}
    late: dict[str, float] = {}
    for a, b in ((since - APART_NS, since + APART_NS), (until - APART_NS, until + APART_NS)):
        for key, samples in api.raw(narrowed(BUILD, only.match), a, b).items():
            found.setdefault(asked.host_of(dict(key), where), []).extend(s.t1 for s in samples)
        for key, samples in api.raw(narrowed(LAG, only.match), a, b).items():
            node = asked.host_of(dict(key), where)
            stated = [s.value for s in samples if 0 <= s.value <= LONGEST_LAG_S]
            late[node] = max([*stated, late.get(node, 0.0)])
    usual = round(usual_s * NS)
    guessed = [node for node in sorted(times, key=_natural) if not found[node]]
    around = {node: [min(times[node]) - usual, *times[node], max(times[node]) + usual] for node in guessed}
    lags = {node: round((late.get(node) or LOOKED_S) * NS) for node in times}
    return _Seen({node: around.get(node) or found[node] for node in times}, lags, guessed)


def _edge(times: Mapping[str, Sequence[int]], seen: _Seen, usual_s: float, *, begin: bool) -> _Edge:
    """Return begin or end of the job.

    A job is shown up to an agent's lag after it began, and as long after it ended. So it began before the first scrape
    of any node that shows it, and after the last that did not, less the lag; in the same way with the end, turned
    around. What no begin of all nodes at once explains is a node that came later.
    """
    sign = 1 if begin else -1
    shown = {node: min(sign * t for t in at) for node, at in times.items()}
    first = min(shown.values())
    high = first if begin else min(at + seen.lag_ns[node] for node, at in shown.items())
    lows: dict[str, int] = {}
    lost: dict[str, float] = {}
    for node, at in shown.items():
        without = max((s for t in seen.scrapes[node] if (s := sign * t) < at), default=None)
        if without is not None:
            lows[node] = without - (seen.lag_ns[node] if begin else 0)
        elif at - first > LOST * usual_s * NS:
            lost[node] = (at - first) / NS
    low = max((t for t in lows.values() if t < high), default=None)
    apart = {node: (shown[node] - first) / NS for node, t in lows.items() if t >= high}
    if low is None:  # nobody saw the nodes before, or after: what was seen counts
        return _Edge(begin, sign * first, None, apart, lost)
    return _Edge(begin, sign * ((low + high) // 2), (high - low) / 2 / NS, apart, lost)


def _doubts(asked: Settings, edge: _Edge, now_ns: int) -> list[Doubt]:
    """Return what is doubtful of a begin or an end."""
    side, at = "begin" if edge.begin else "end", _utc(edge.at_ns)
    found = []
    if edge.off_s is None:
        only = f"so the energy is of the telemetry only, {'from' if edge.begin else 'up to'} then"
        may = f"have begun before {at}" if edge.begin else f"still run, or have ended after {at}"
        none = f"no scrape without it is known {'before' if edge.begin else 'since'}"
        running = not edge.begin and now_ns - edge.at_ns < APART_NS
        advice = "" if running else f"Slurm's own times: joulelab import slurm {asked.job} --entry NAME"
        what = f"it may {may}: {none}, {only}"
        found.append(Doubt(what, "warning" if running else "failed", side, advice))
    if edge.apart:
        when = "only later than the others" if edge.begin else "no longer before its end"
        long = f"up to {max(edge.apart.values()):.0f} s"
        what = f"{_listed(edge.apart)} showed it {when} ({long}); what they used meanwhile is in the energy"
        found.append(Doubt(what, "warning", side))
    if edge.lost:
        long = f"{max(edge.lost.values()):.0f} s {'after the first' if edge.begin else 'before the last'}"
        what = f"telemetry of {_listed(edge.lost)} {'begins' if edge.begin else 'ends'} up to {long} of the others"
        found.append(Doubt(f"{what}: what they used beyond it is filled in, not measured", "failed", side))
    return found


def _listed(nodes: Iterable[str]) -> str:
    names = sorted(nodes, key=_natural)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _to(off_s: float | None) -> str:
    if off_s is None:
        return "unknown"
    shown = f"{off_s:.0f}" if off_s >= 10 else f"{off_s:.2g}"
    return f"known to {shown} s" if off_s >= 0.005 else "known"


def _usual_s(times: Mapping[str, Sequence[int]]) -> float:
    from statistics import median

    gaps = [b - a for seen in times.values() for a, b in pairwise(sorted(seen)[:200])]
    return round(median(gaps) / NS, 3) if gaps else 15.0


def _utc(utc_ns: int) -> str:
    return dt.datetime.fromtimestamp(utc_ns // NS, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts node2 before node10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
