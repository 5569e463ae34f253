"""Find a Slurm job in what the agents of its nodes showed: which nodes, from when to when, and how well that is known.

A scrape shows whether a job is there; it began between the last scrape without it and the first with it. Nodes are
scraped at different times, so that many of them know it better than one.
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
from joulelab.meters.prometheus.api import nothing_found
from joulelab.meters.prometheus.query import narrowed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.meters.prometheus.api import Api
    from joulelab.meters.prometheus.setup import Settings

INFO = "joulelab_slurm_job_info"
BUILD = "joulelab_build_info"  # one for each agent, at every scrape
STEP_MS = 300_000
APART_NS = 600 * NS  # a job that was away from all of its nodes for so long was started again
LOOKED_S = 3.0  # an agent knows of a job that comes or goes after so long, where it sees control groups
LABELS = ("user", "account", "partition")
MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Job:
    """Hold a job: its nodes, begin and end (UTC, ns), how far either may be off (s), labels, and what is to be told."""

    job: str
    nodes: tuple[str, ...]
    start_ns: int
    end_ns: int
    unsure_s: tuple[float, float]
    scrape_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return plain data for a run's folder."""
        known = {"name": f"job-{re.sub(r'[^A-Za-z0-9_.-]+', '-', self.job)}", "job": self.job}
        times = {"unsure_s": list(self.unsure_s), "scrape_s": self.scrape_s, "notes": list(self.notes)}
        return {**known, "nodes": list(self.nodes), **times}

    def told(self) -> list[str]:
        """Return in words which nodes and which interval it is."""
        some = self.nodes if len(self.nodes) <= MOST_SHOWN else (*self.nodes[:2], "...", self.nodes[-1])
        count = "1 node" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"
        off = max(self.unsure_s)
        known = f"begin and end known to {off:.2g} s" if off >= 0.005 else "begin and end known"
        times = f"{_utc(self.start_ns)} to {_utc(self.end_ns)}"
        return [
            f"job {self.job}: {count} ({', '.join(some)}), {times} ({known}, scraped every {self.scrape_s:g} s)"
        ] + [f"job {self.job}: {note}" for note in self.notes]


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
    notes: list[str] = []
    times, earlier = _last_stretch(times)
    if earlier:
        notes.append(f"it was there {earlier + 1} times; the last is taken, give --from and --to for another")
    scrapes = _scrapes(api, asked, times)
    start_ns, start_s, late = _edge(times, scrapes, begin=True)
    end_ns, end_s, early = _edge(times, scrapes, begin=False)
    notes += [f"{late} nodes show it later than the others"] if late else []
    notes += [f"{early} nodes show it no longer before its end"] if early else []
    if not any(scrape > max(seen) for node, seen in times.items() for scrape in scrapes[node]):
        notes.append("it may still run: no node has been seen without it since")
    single = {name: min(labels[name]) for name in LABELS if len(labels.get(name, ())) == 1}
    nodes = tuple(sorted(times, key=_natural))
    usual_s = _usual_s(times)
    return Job(
        asked.job, nodes, start_ns, end_ns, (start_s, end_s), usual_s, {"slurm_job": asked.job, **single}, tuple(notes)
    )


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


def _scrapes(api: Api, asked: Settings, times: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return by node when (ns) it was scraped around the job; from how often it shows the job where nothing tells."""
    since, until = min(min(t) for t in times.values()), max(max(t) for t in times.values())
    only, where = asked.only(list(times)), f"meter {asked.label}"
    found: dict[str, list[int]] = {node: [] for node in times}
    for a, b in ((since - APART_NS, since + APART_NS), (until - APART_NS, until + APART_NS)):
        for key, samples in api.raw(narrowed(BUILD, only.match), a, b).items():
            found.setdefault(asked.host_of(dict(key), where), []).extend(s.t1 for s in samples)
    usual = round(_usual_s(times) * NS)
    return {node: found[node] or [min(seen) - usual, *seen, max(seen) + usual] for node, seen in times.items()}


def _edge(
    times: Mapping[str, Sequence[int]], scrapes: Mapping[str, Sequence[int]], *, begin: bool
) -> tuple[int, float, int]:
    """Return begin or end (ns), how far it may be off (s), and how many nodes were later, or had ended, by then.

    A job is shown up to `LOOKED_S` after it began, and as long after it ended. So it began before the first scrape of
    any node that shows it, and after the last that did not, less that time; in the same way with the end, turned
    around. What no begin of all nodes at once explains is a node that came later.
    """
    sign, looked = (1, 0) if begin else (-1, round(LOOKED_S * NS))
    shown = {node: min(sign * t for t in seen) for node, seen in times.items()}
    high = min(shown.values()) + looked
    without = (max((s for t in scrapes[node] if (s := sign * t) < at), default=None) for node, at in shown.items())
    lows = [t + looked - round(LOOKED_S * NS) for t in without if t is not None]
    low = max((t for t in lows if t < high), default=None)
    others = sum(t >= high for t in lows)
    if low is None:  # nobody saw the node before, or after: what was seen counts
        return sign * (high - looked), 0.0, others
    return sign * ((low + high) // 2), (high - low) / 2 / NS, others


def _usual_s(times: Mapping[str, Sequence[int]]) -> float:
    from statistics import median

    gaps = [b - a for seen in times.values() for a, b in pairwise(sorted(seen)[:200])]
    return round(median(gaps) / NS, 3) if gaps else 15.0


def _utc(utc_ns: int) -> str:
    return dt.datetime.fromtimestamp(utc_ns // NS, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts node2 before node10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
