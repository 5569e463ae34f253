"""Find a Slurm job in the metrics of joulelab's agents: its nodes, its begin and end, and their possible error.

A scrape shows whether a job is on a node; the job began between the last scrape without it and the first with it. Nodes
are scraped at different times, so many nodes bound the begin better than one. If no node was scraped without the job,
before or after, its begin or end is unknown, and the run has a failed check.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import Unavailable
from joulelab.instruments.prometheus.client import MS, POINTS
from joulelab.instruments.prometheus.queries import add_matchers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.instruments.prometheus.client import PrometheusClient
    from joulelab.instruments.prometheus.settings import PrometheusSettings

INFO = "joulelab_slurm_job_info"
BUILD = "joulelab_build_info"  # one for each agent, at every scrape
LAG = "joulelab_slurm_job_lag_seconds"  # how late an agent may notice that a job comes or goes
DOUBT = "interval-doubt"  # the event that becomes a check of the run
STEP_MS = 300_000
APART_NS = 600 * NS  # a job that was on none of its nodes for this long was started again
USUAL_LAG_S, LONGEST_LAG_S = 3.0, 86_400.0  # of an agent that exports none: it watches control groups
LOST_SCRAPES = 3  # telemetry that begins or ends this many scrapes away from that of other nodes has a gap
LABELS = ("user", "account", "partition")
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class JobDoubt:
    """Hold a doubt about a job, its severity (a check's status), the next command; `side` is begin, end, or empty."""

    what: str
    status: str = "warning"
    side: str = ""
    next: str = ""


@dataclass(frozen=True, slots=True)
class FleetJob:
    """Hold a job: its nodes, begin and end (UTC, ns), their possible error (s), labels, and doubts.

    An unknown begin or end is that of the telemetry, and its error is None.
    """

    job: str
    nodes: tuple[str, ...]
    start_ns: int
    end_ns: int
    unsure_s: tuple[float | None, float | None]
    scrape_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    doubts: tuple[JobDoubt, ...] = ()

    def list_facts(self) -> dict[str, Any]:
        """Return plain data for a run's folder."""
        name = f"job-{re.sub(r'[^A-Za-z0-9_.-]+', '-', self.job)}"
        times = {"unsure_s": list(self.unsure_s), "scrape_s": self.scrape_s}
        notes = [doubt.what for doubt in self.doubts]
        return {"name": name, "job": self.job, "nodes": list(self.nodes), **times, "notes": notes}

    def list_remarks(self) -> list[str]:
        """Return sentences: the nodes and the interval, then the doubts."""
        named = self.nodes if len(self.nodes) <= 2 * MOST_NAMED else (*self.nodes[:2], "...", self.nodes[-1])
        count = "1 node" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"
        begin, end = (_format_error(off_s) for off_s in self.unsure_s)
        known = f"begin {begin}, end {end}, scraped every {self.scrape_s:g} s"
        span = f"{_format_utc(self.start_ns)} to {_format_utc(self.end_ns)}"
        remarks = [f"{count} ({', '.join(named)}), {span} ({known})", *(doubt.what for doubt in self.doubts)]
        return [f"job {self.job}: {remark}" for remark in remarks]

    def list_events(self) -> list[dict[str, str]]:
        """Return the doubts as events of a run, which become its checks."""
        return [
            {"event": DOUBT, "side": d.side, "status": d.status, "what": f"job {self.job}: {d.what}", "next": d.next}
            for d in self.doubts
        ]


def find_job(client: PrometheusClient, settings: PrometheusSettings, since_ns: int, until_ns: int) -> FleetJob:
    """Return the last execution of a job in a span (UTC, ns). Raises MeterError, ConfigError."""
    selector = add_matchers(f"{INFO}{{slurm_job={json.dumps(settings.job)}}}", settings.match)
    step_ms = max(STEP_MS, (until_ns - since_ns) // (MS * POINTS) + 1)
    steps = client.list_steps(f"count(count_over_time({selector}[{step_ms}ms]))", since_ns, until_ns, step_ms)
    if not steps:
        if INFO not in client.list_metrics():
            raise client.explain_missing(selector, since_ns, until_ns)
        what, why = f"job {settings.job} is not known", f"no agent showed it in the last {settings.search_days:g} days"
        advice = "check its number; for an older one, type search_days=90"
        raise Unavailable(what, where=settings.label, why=why, next=advice, code="unavailable.unknown-job")
    margin = 2 * step_ms * MS
    labels: dict[str, set[str]] = {}
    times: dict[str, list[int]] = {}
    for key, samples in client.fetch_raw(selector, min(steps) - margin, min(max(steps) + margin, until_ns)).items():
        times.setdefault(settings.find_host(dict(key)), []).extend(s.t_ns for s in samples)
        for name, value in key:
            labels.setdefault(name, set()).update([value] if value else [])  # an agent may learn its owner later
    every = sorted(t for shown in times.values() for t in shown)
    starts = [after for before, after in pairwise(every) if after - before > APART_NS]
    doubts = []
    if starts:
        what = f"it ran {len(starts) + 1} times; this is the last, give --from and --to for another"
        doubts.append(JobDoubt(what, "note"))
        times = {node: later for node, shown in times.items() if (later := [t for t in shown if t >= starts[-1]])}
    gaps = [after - before for shown in times.values() for before, after in pairwise(sorted(shown)[:200])]
    scrape_s = round(median(gaps) / NS, 3) if gaps else 15.0
    scrapes, lags_ns = _read_scrapes(client, settings, times)
    edges = [_find_edge(times, scrapes, lags_ns, scrape_s, begin=begin) for begin in (True, False)]
    doubts += [doubt for edge in edges for doubt in _list_doubts(settings.job, edge, until_ns)]
    single = {name: min(labels[name]) for name in LABELS if len(labels.get(name, ())) == 1}
    return FleetJob(
        settings.job,
        tuple(sorted(times, key=_sort_key)),
        edges[0].at_ns,
        edges[1].at_ns,
        (edges[0].off_s, edges[1].off_s),
        scrape_s,
        {"slurm_job": settings.job, **single},
        tuple(doubts),
    )


@dataclass(frozen=True, slots=True)
class _JobEdge:
    """Hold begin or end (ns) and its possible error (s), None if no node was scraped beyond it.

    `apart` are nodes that were scraped without the job while others had it, `lost` nodes whose telemetry has a gap
    there; both with its length in s.
    """

    begin: bool
    at_ns: int
    off_s: float | None
    apart: Mapping[str, float]
    lost: Mapping[str, float]


def _read_scrapes(
    client: PrometheusClient, settings: PrometheusSettings, times: Mapping[str, Sequence[int]]
) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Return by node the times of scrapes around the job's edges, and how late it may notice a job (ns)."""
    match = settings.choose_nodes(list(times)).match
    scrapes: dict[str, list[int]] = {node: [] for node in times}
    lags_s: dict[str, float] = {}
    for edge in (min(map(min, times.values())), max(map(max, times.values()))):
        span = edge - APART_NS, edge + APART_NS
        for key, samples in client.fetch_raw(add_matchers(BUILD, match), *span).items():
            scrapes.setdefault(settings.find_host(dict(key)), []).extend(s.t_ns for s in samples)
        for key, samples in client.fetch_raw(add_matchers(LAG, match), *span).items():
            node = settings.find_host(dict(key))
            lags_s[node] = max([lags_s.get(node, 0.0), *(s.value for s in samples if 0 <= s.value <= LONGEST_LAG_S)])
    return scrapes, {node: round((lags_s.get(node) or USUAL_LAG_S) * NS) for node in times}


def _find_edge(
    times: Mapping[str, Sequence[int]],
    scrapes: Mapping[str, Sequence[int]],
    lags_ns: Mapping[str, int],
    scrape_s: float,
    *,
    begin: bool,
) -> _JobEdge:
    """Return begin or end of the job.

    An agent shows a job up to its lag after the begin, and as long after the end. So the job began before the first
    scrape of any node that shows it, and after the last that did not, less the lag; the end is the same with time
    reversed. A node that no common begin explains joined later.
    """
    sign = 1 if begin else -1
    shown = {node: min(sign * t for t in at) for node, at in times.items()}
    first = min(shown.values())
    high = first if begin else min(at + lags_ns[node] for node, at in shown.items())
    lows: dict[str, int] = {}
    lost: dict[str, float] = {}
    for node, at in shown.items():
        without = max((s for t in scrapes[node] if (s := sign * t) < at), default=None)
        if without is not None:
            lows[node] = without - (lags_ns[node] if begin else 0)
        elif at - first > LOST_SCRAPES * scrape_s * NS:
            lost[node] = (at - first) / NS
    low = max((t for t in lows.values() if t < high), default=None)
    apart = {node: (shown[node] - first) / NS for node, t in lows.items() if t >= high}
    if low is None:  # no scrape beyond it: the telemetry is all there is
        return _JobEdge(begin, sign * first, None, apart, lost)
    return _JobEdge(begin, sign * ((low + high) // 2), (high - low) / 2 / NS, apart, lost)


def _list_doubts(job: str, edge: _JobEdge, now_ns: int) -> list[JobDoubt]:
    side, at, found = "begin" if edge.begin else "end", _format_utc(edge.at_ns), []
    if edge.off_s is None:
        may = f"have begun before {at}" if edge.begin else f"still run, or have ended after {at}"
        none = f"no scrape without it is known {'before' if edge.begin else 'since'}"
        only = f"so the energy is of the telemetry only, {'from' if edge.begin else 'up to'} then"
        running = not edge.begin and now_ns - edge.at_ns < APART_NS
        advice = "" if running else f"Slurm's own times: joulelab import slurm {job} --entry NAME"
        found.append(JobDoubt(f"it may {may}: {none}, {only}", "warning" if running else "failed", side, advice))
    if edge.apart:
        when = "only later than the others" if edge.begin else "no longer before its end"
        longest = f"up to {max(edge.apart.values()):.0f} s"
        what = f"{_list_nodes(edge.apart)} showed it {when} ({longest}); the energy includes that time"
        found.append(JobDoubt(what, "warning", side))
    if edge.lost:
        longest = f"{max(edge.lost.values()):.0f} s {'after the first' if edge.begin else 'before the last'}"
        what = (
            f"telemetry of {_list_nodes(edge.lost)} {'begins' if edge.begin else 'ends'} up to {longest} of the others"
        )
        found.append(JobDoubt(f"{what}: their energy beyond it is filled in, not measured", "failed", side))
    return found


def _list_nodes(nodes: Iterable[str]) -> str:
    names = sorted(nodes, key=_sort_key)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _format_error(off_s: float | None) -> str:
    return "unknown" if off_s is None else f"± {off_s:.0f} s" if off_s >= 10 else f"± {off_s:.2g} s"


def _format_utc(utc_ns: int) -> str:
    return dt.datetime.fromtimestamp(utc_ns // NS, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _sort_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts node2 before node10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
