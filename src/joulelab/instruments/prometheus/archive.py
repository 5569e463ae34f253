"""Fetch a past interval from a server: of all nodes, of named nodes, or of the nodes of a Slurm job."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.spec import Fetched
from joulelab.instruments.prometheus.agents import read_agents
from joulelab.instruments.prometheus.jobs import find_job
from joulelab.instruments.prometheus.settings import is_node
from joulelab.instruments.prometheus.streams import describe_streams, find_interval, group_series, read_series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.prometheus.client import PrometheusClient, Series
    from joulelab.instruments.prometheus.settings import PrometheusSettings
    from joulelab.instruments.prometheus.streams import SeriesGroup

MARGIN_NS = 300 * NS  # samples up to this far outside of an interval are its neighbours
Row = tuple[int, int, list[float]]


class PrometheusArchive:
    """Fetch the samples of an interval as they were scraped.

    If the entry names a Slurm job, these describe it: `interval` (UTC, ns), `unsure_s` (possible error of its begin and
    end; 0 for an unknown one, which has a failed check), `facts` and `labels` for the run, `remarks`, `doubts`
    (events of the run).
    """

    def __init__(self, settings: PrometheusSettings, client: PrometheusClient) -> None:
        """Find the job if the entry names one. Raises MeterError, ConfigError."""
        self._settings, self._client = settings, client
        self.interval: tuple[int, int] | None = None
        self.unsure_s = 0.0, 0.0
        self.facts: dict[str, Any] = {}
        self.labels: dict[str, str] = {}
        self.remarks: list[str] = []
        self.doubts: list[dict[str, str]] = []
        if settings.job:
            now = read_utc_ns()
            job = find_job(client, settings, now - round(settings.search_days * 86_400) * NS, now)
            self._settings = settings.choose_nodes(job.nodes)
            self.interval = job.start_ns, job.end_ns
            self.unsure_s = job.unsure_s[0] or 0.0, job.unsure_s[1] or 0.0
            self.facts, self.labels = job.list_facts(), dict(job.labels)
            self.remarks, self.doubts = job.list_remarks(), job.list_events()

    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:
        """Return one stream per scope and host, with the nearest samples outside. Raises MeterError, ConfigError."""
        settings, span = self._settings, (start_utc_ns - MARGIN_NS, end_utc_ns + MARGIN_NS)
        found = [read_series(self._client, query, *span) for query in settings.queries]
        empty = [q for q, series in zip(settings.queries, found, strict=True) if not series]
        if empty and (not settings.preset or len(empty) == len(settings.queries)):
            raise self._client.explain_missing(empty[0].query, start_utc_ns, end_utc_ns)
        agents = read_agents(self._client, settings, *span)
        groups, missing = group_series(settings, found)
        groups = [agents.complete_group(group) for group in groups if settings.is_wanted(group.host)]
        result: list[Fetched] = []
        hosts: set[str] = set()
        for group, stream in describe_streams(settings, groups, find_interval(found), live=False):
            rows, notes = _make_rows(settings, group, found)
            inside = [row for row in rows if start_utc_ns <= row[0] <= end_utc_ns]
            before = [row for row in rows if row[0] < start_utc_ns][-1:]
            after = [row for row in rows if row[0] > end_utc_ns][:1]
            events: list[dict[str, Any]] = [
                {"t": start_utc_ns, "event": "problem", "stream": stream.name, "what": f"{stream.name}: {note}"}
                for note in notes
            ]
            if group.host not in hosts:
                rated = agents.rated.get(group.host, {}).items()
                events += [{"t": start_utc_ns, "event": "rated", "scope": scope, "watts": w} for scope, w in rated]
            hosts.add(group.host)
            result.append(Fetched(stream, [*before, *inside, *after], group.host, events, group.meter))
        general = [f"{note.scope}: {note.what} ({note.why})" for note in missing]
        lost = [node for node in settings.nodes if not any(is_node(host, node) for host in hosts)]
        general += [f"no series of {', '.join(lost)}: their energy is missing"] if lost else []
        if result and general:
            events = [{"t": start_utc_ns, "event": "problem", "what": what} for what in general]
            result[-1] = replace(result[-1], events=[*result[-1].events, *events])
        return result

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _make_rows(
    settings: PrometheusSettings, group: SeriesGroup, found: Sequence[Series]
) -> tuple[list[Row], list[str]]:
    """Return rows in order of time, and notes about samples that were left out."""
    rows: dict[int, list[float]] = {}
    invalid = stale = 0
    for column, (number, key) in enumerate(group.members.values()):
        for t_ns, raw in found[number][key]:
            value = settings.queries[number].convert(raw)
            if t_ns in group.stale:
                stale += 1
            elif value is None:
                invalid += 1
            else:
                rows.setdefault(t_ns, [math.nan] * len(group.members))[column] = value
    notes = [*group.notes]
    if invalid:
        notes.append(f"{invalid} samples are no readings (NaN, negative, impossible, or 0 for none)")
    if stale:
        notes.append(f"{stale} samples left out: {group.meter} had not been read for more than {settings.stale_s:g} s")
    return [(t_ns, t_ns, values) for t_ns, values in sorted(rows.items())], notes
