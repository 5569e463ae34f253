"""Read a Prometheus or VictoriaMetrics server: while a run goes on, or a past interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.core.errors import MeterError, ReadFailed
from joulelab.instruments.prometheus import settings as entry
from joulelab.instruments.prometheus.agents import read_agents
from joulelab.instruments.prometheus.archive import PrometheusArchive
from joulelab.instruments.prometheus.settings import PrometheusSettings, open_client, read_settings
from joulelab.instruments.prometheus.streams import describe_streams, find_interval, group_series, read_series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Archive, Meter, Stream
    from joulelab.instruments.hooks import Missing
    from joulelab.instruments.prometheus.client import PrometheusClient, Sample, Series, SeriesKey
    from joulelab.instruments.prometheus.queries import Query

SUMMARY = (
    "Any metric as a channel; our agents, DCGM, IPMI, SNMP, RAPL, Kepler, Scaphandre (Prometheus, VictoriaMetrics)"
)
PRIVILEGE = "read access to the server's HTTP API"
TRIED = "Debian's prometheus and victoria-metrics with the simulated node's exporters; not on hardware"
DEFAULT = False

CONFIG, SECRETS = entry.CONFIG, entry.SECRETS
ARCHIVE_S = 60.0  # an import can wait: a server may need long for an hour of a thousand nodes


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    read_settings(config)


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Find the series that are scraped now. Raises ConfigError, Unavailable, Denied, ReadFailed, MissingDependency."""
    settings = read_settings(config)
    client = open_client(settings)
    try:
        return PrometheusMeter(settings, client)
    except BaseException:
        client.close()
        raise


def open_archive(config: Mapping[str, Any]) -> Archive:
    """Prepare to read past intervals; find the job of the entry. Raises ConfigError, MeterError, MissingDependency."""
    settings = read_settings({"timeout_s": ARCHIVE_S, **config})
    client = open_client(settings)
    try:
        return PrometheusArchive(settings, client)
    except BaseException:
        client.close()
        raise


class PrometheusMeter:
    """Read the newest sample of each series, and its age.

    One request per query serves all streams: each stream uses it once; the first that comes again makes a new one.
    """

    def __init__(self, settings: PrometheusSettings, client: PrometheusClient) -> None:
        self._settings, self._client = settings, client
        now = read_utc_ns()
        found = [self._read_recent(query, now) for query in settings.queries]
        empty = [q for q, series in zip(settings.queries, found, strict=True) if not series]
        if empty and (not settings.preset or len(empty) == len(settings.queries)):
            raise client.explain_missing(empty[0].query, now - round(settings.lookback_s * NS), now, live=True)
        period_s = float(settings.config.get("period_s") or min(max(find_interval(found), 0.1), 60.0))
        agents = read_agents(client, settings, now - round(settings.lookback_s * NS), now)
        groups, self._missing = group_series(settings, found)
        groups = [agents.complete_group(group) for group in groups]
        self._groups = {s.name: (g, s) for g, s in describe_streams(settings, groups, period_s, live=True)}
        self._latest: list[dict[SeriesKey, Sample]] = []
        self._failure: MeterError | None = None
        self._served: set[str] = set(self._groups)  # streams that used the last request
        self._requested_ns = 0

    def streams(self) -> Sequence[Stream]:
        """Return one stream per scope."""
        return [stream for _, stream in self._groups.values()]

    def missing(self) -> Sequence[Missing]:
        """Return the series of superchips that are not read."""
        return self._missing

    def read(self, stream: Stream) -> Sequence[float]:
        """Return the newest values and their age in s. Raises ReadFailed, Denied."""
        group, _ = self._groups[stream.name]
        self._refresh_samples(stream)
        if self._failure is not None:
            raise self._failure
        samples = [self._latest[number].get(key) for number, key in group.members.values()]
        newest = max((s.t_ns for s in samples if s is not None), default=None)
        if newest is None:
            query = self._settings.queries[next(iter(group.members.values()))[0]].query
            what, why = f"no sample of {stream.scope}", f"none of {query} within {self._settings.lookback_s:g} s"
            advice, code = "check that it is scraped (metric up)", "read-failed.no-sample"
            raise ReadFailed(what, where=self._settings.label, why=why, next=advice, code=code)
        values = [s.value if s is not None and s.t_ns == newest else math.nan for s in samples]
        return [*values, max((read_utc_ns() - newest) / NS, 0.0)]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _refresh_samples(self, stream: Stream) -> None:
        """Request new samples if this stream has used the last ones, or if they are older than its period."""
        if stream.name in self._served or monotonic_ns() - self._requested_ns > stream.period_s * NS:
            self._served.clear()
            self._requested_ns = monotonic_ns()
            self._failure = None
            try:
                now = read_utc_ns()
                self._client.start_deadline()
                self._latest = [_pick_newest(q, self._read_recent(q, now)) for q in self._settings.queries]
                self._client.check_clocks(read_utc_ns())
            except MeterError as error:
                self._failure = error
        self._served.add(stream.name)

    def _read_recent(self, query: Query, now: int) -> Series:
        return read_series(self._client, query, now - round(self._settings.lookback_s * NS), now)


def _pick_newest(query: Query, series: Series) -> dict[SeriesKey, Sample]:
    """Return the newest reading of each series in SI."""
    found: dict[SeriesKey, Sample] = {}
    for key, samples in series.items():
        for sample in reversed(samples):
            value = query.convert(sample.value)
            if value is not None:
                found[key] = sample._replace(value=value)
                break
    return found
