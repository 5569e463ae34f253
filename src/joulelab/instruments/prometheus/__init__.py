"""Read what a Prometheus or VictoriaMetrics server has: while a run goes on, or of a past interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.core.errors import MeterError, ReadFailed
from joulelab.instruments.prometheus import doctor
from joulelab.instruments.prometheus.agent import asked_of_agents
from joulelab.instruments.prometheus.api import nothing_found
from joulelab.instruments.prometheus.archive import PrometheusArchive
from joulelab.instruments.prometheus.query import selectors
from joulelab.instruments.prometheus.readings import interval_s, join_pods, known, si_of, streams_of
from joulelab.instruments.prometheus.setup import CONFIG, SECRETS, Settings, api_of, check_settings, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.errors import JoulelabError
    from joulelab.core.spec import Archive, Meter, Stream
    from joulelab.instruments.prometheus.api import Api, Sample, Series
    from joulelab.instruments.prometheus.query import Query
    from joulelab.instruments.prometheus.setup import Key

SUMMARY = (
    "Any PromQL as a channel; our agents, DCGM, IPMI, SNMP, RAPL, Kepler, Scaphandre (Prometheus, VictoriaMetrics)"
)
PRIVILEGE = "read access to the server's HTTP API"
TRIED = "Debian's prometheus and victoria-metrics with the simulated node's exporters; not on hardware"
DEFAULT = False

__all__ = [
    "CONFIG",
    "DEFAULT",
    "PRIVILEGE",
    "SECRETS",
    "SUMMARY",
    "TRIED",
    "check",
    "diagnose",
    "open_archive",
    "open_meter",
]
DAY_S = 86_400.0
ARCHIVE_S = 60.0  # nobody waits for a reading: a server may take long over an hour of a thousand nodes


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    check_settings(config)


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Find the series that are scraped now. Raises ConfigError, Unavailable, Denied, ReadFailed, MissingDependency."""
    asked = settings_of(config)
    api = api_of(asked)
    try:
        return PrometheusMeter(asked, api)
    except BaseException:
        api.close()
        raise


def open_archive(config: Mapping[str, Any]) -> Archive:
    """Prepare to ask for past intervals. Raises ConfigError, MissingDependency."""
    asked = settings_of({"timeout_s": ARCHIVE_S, **config})
    return PrometheusArchive(asked, api_of(asked))


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return what further questions to the server tell of a failure."""
    return doctor.diagnose(config, error)


class PrometheusMeter:
    """Read the newest sample of each series, and how old it is.

    One question per query serves all streams: each takes from it once, the next who comes again asks anew.
    """

    def __init__(self, asked: Settings, api: Api) -> None:
        self._asked, self._api = asked, api
        now = read_utc_ns()
        found = [self._recent(query, now) for query in asked.queries]
        empty = [q for q, series in zip(asked.queries, found, strict=True) if not series]
        if empty and (not asked.preset or len(empty) == len(asked.queries)):
            raise self._nothing(empty[0], now)
        scrape_s = interval_s(found)
        period_s = float(asked.config.get("period_s") or min(max(scrape_s, 0.1), 60.0))
        agents = asked_of_agents(api, asked, now - round(asked.lookback_s * NS), now)
        self._groups = {s.name: (g, s) for g, s in streams_of(asked, found, period_s, agents, live=True)}
        self._latest: list[dict[Key, Sample]] = []
        self._failure: MeterError | None = None
        self._taken: set[str] = set(self._groups)
        self._asked_ns = 0

    def streams(self) -> Sequence[Stream]:
        """Return one stream per scope."""
        return [stream for _, stream in self._groups.values()]

    def read(self, stream: Stream) -> Sequence[float]:
        """Return the newest values and their age in s. Raises ReadFailed, Denied."""
        group, _ = self._groups[stream.name]
        self._refresh(stream)
        if self._failure is not None:
            raise self._failure
        samples = [self._latest[number].get(key) for number, key in group.members.values()]
        newest = max((s.t1 for s in samples if s is not None), default=None)
        if newest is None:
            query = self._asked.queries[next(iter(group.members.values()))[0]].query
            why = f"none of {query} within {self._asked.lookback_s:g} s"
            raise ReadFailed(f"no sample of {stream.scope}", where=self._asked.label, why=why, next="is it scraped?")
        values = [s.value if s is not None and s.t1 == newest else math.nan for s in samples]
        return [*values, max((read_utc_ns() - newest) / NS, 0.0)]

    def close(self) -> None:
        """Close the connection."""
        self._api.close()

    def _nothing(self, query: Query, now: int) -> MeterError:
        """Return the error for no recent sample: final only where there never was one."""
        inside = selectors(query.query)
        if inside and all(self._api.labels(one, now - round(DAY_S * NS), now) for one in inside):
            why = f"{query.query} had some within a day, none within {self._asked.lookback_s:g} s: its target is down?"
            advice = "see the metric up; raise lookback_s if it is scraped less often"
            return ReadFailed("there is no recent sample", where=self._asked.label, why=why, next=advice)
        return nothing_found(self._api, query.query, now - round(self._asked.lookback_s * NS), now)

    def _refresh(self, stream: Stream) -> None:
        old = monotonic_ns() - self._asked_ns > stream.period_s * NS
        if stream.name in self._taken or old:
            self._taken.clear()
            self._asked_ns = monotonic_ns()
            self._failure = None
            try:
                now = read_utc_ns()
                self._api.within(limited=True)
                self._latest = [_newest(q, self._recent(q, now)) for q in self._asked.queries]
            except MeterError as error:
                self._failure = error
        self._taken.add(stream.name)

    def _recent(self, query: Query, now: int) -> Series:
        since = now - round(self._asked.lookback_s * NS)
        if query.plain:
            return join_pods(query, known(self._api.raw(query.query, since, now)))
        return known(self._api.stepped(query.query, since, now, self._asked.step_ms(1.0)))


def _newest(query: Query, series: Series) -> dict[Key, Sample]:
    """Return the newest reading of each series in SI."""
    found: dict[Key, Sample] = {}
    for key, samples in series.items():
        for sample in reversed(samples):
            value = si_of(query, sample.value)
            if value is not None:
                found[key] = sample._replace(value=value)
                break
    return found
