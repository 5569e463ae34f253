"""Give what a server kept of a past interval: of nodes that are named, or of those that a Slurm job ran on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.spec import Fetched
from joulelab.instruments.prometheus.agent import asked_of_agents
from joulelab.instruments.prometheus.api import nothing_found
from joulelab.instruments.prometheus.jobs import find_job
from joulelab.instruments.prometheus.readings import interval_s, join_pods, known, si_of, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulelab.instruments.prometheus.api import Api, Series
    from joulelab.instruments.prometheus.jobs import Job
    from joulelab.instruments.prometheus.query import Query
    from joulelab.instruments.prometheus.setup import Group, Settings

# A sample is looked for so far outside of an interval.
MARGIN_S = 300.0
Row = tuple[int, int, list[float]]


class PrometheusArchive:
    """Fetch the samples of an interval as they were scraped.

    Where the entry names a Slurm job, `interval`, `unsure_s`, `facts`, `labels`, `told` and `doubts` are of it: they
    are asked for when first used, and raise MeterError.
    """

    def __init__(self, asked: Settings, api: Api) -> None:
        self._asked, self._api = asked, api
        self._job: Job | None = None

    @property
    def interval(self) -> tuple[int, int] | None:
        """Return begin and end of the job (UTC, ns), None without one."""
        job = self._found()
        return None if job is None else (job.start_ns, job.end_ns)

    @property
    def unsure_s(self) -> tuple[float, float]:
        """Return how far begin and end of the job may be off to either side, in s."""
        job = self._found()
        begin_s, end_s = (0.0, 0.0) if job is None else job.unsure_s
        return begin_s or 0.0, end_s or 0.0  # of an unknown one nothing is claimed: the run is of what was seen

    @property
    def facts(self) -> dict[str, Any]:
        """Return what is known of the job."""
        job = self._found()
        return {} if job is None else job.facts()

    @property
    def labels(self) -> dict[str, str]:
        """Return labels for a run: job, user, account, partition."""
        job = self._found()
        return {} if job is None else dict(job.labels)

    @property
    def told(self) -> list[str]:
        """Return in words what was found."""
        job = self._found()
        return [] if job is None else job.told()

    @property
    def doubts(self) -> list[dict[str, str]]:
        """Return what is not known of the job's interval and nodes, as events of the run."""
        job = self._found()
        return [] if job is None else job.events()

    def fetch(self, start_utc_ns: int, end_utc_ns: int) -> Sequence[Fetched]:
        """Return one stream per scope and host, with the nearest samples outside. Raises MeterError, ConfigError."""
        self._found()
        asked, margin = self._asked, round(MARGIN_S * NS)
        since, until = start_utc_ns - margin, end_utc_ns + margin
        found = [self._series(query, since, until) for query in asked.queries]
        empty = [q for q, series in zip(asked.queries, found, strict=True) if not series]
        if empty and (not asked.preset or len(empty) == len(asked.queries)):
            raise nothing_found(self._api, empty[0].query, start_utc_ns, end_utc_ns)
        agents = asked_of_agents(self._api, asked, since, until)
        result: list[Fetched] = []
        for group, stream in streams_of(asked, found, interval_s(found), agents, live=False):
            if not asked.is_wanted(group.host):
                continue
            rows, problems = _rows(asked, group, found)
            told = {"t": start_utc_ns, "event": "problem", "stream": stream.name}
            events: list[dict[str, Any]] = [{**told, "what": f"{stream.name}: {what}"} for what in problems]
            rated = {} if any(f.host == group.host for f in result) else agents.rated.get(group.host, {})
            events += [
                {"t": start_utc_ns, "event": "rated", "scope": scope, "watts": watts} for scope, watts in rated.items()
            ]
            result.append(Fetched(stream, _within(rows, start_utc_ns, end_utc_ns), group.host, events, group.meter))
        return [*result[:-1], *self._with_missing(result[-1:], result, start_utc_ns)]

    def close(self) -> None:
        """Close the connection."""
        self._api.close()

    def _found(self) -> Job | None:
        """Return the job that the entry names, and from then on ask for its nodes only."""
        if self._job is None and self._asked.job:
            until = read_utc_ns()
            since = until - round(self._asked.search_days * 86_400) * NS
            self._job = find_job(self._api, self._asked, since, until)
            self._asked = self._asked.only(self._job.nodes)
        return self._job

    def _with_missing(self, last: Sequence[Fetched], all_of: Sequence[Fetched], at_ns: int) -> Iterator[Fetched]:
        """Yield the last stream, with an event for each node that was asked for and has no series."""
        there = {f.host for f in all_of}
        missing = [n for n in self._asked.nodes if not any(self._asked.is_node(host, n) for host in there)]
        what = f"no series of {', '.join(missing)}: their energy is missing"
        for one in last:
            told = [{"t": at_ns, "event": "problem", "what": what}] if missing else []
            yield Fetched(one.stream, one.rows, one.host, [*one.events, *told], one.meter)

    def _series(self, query: Query, since: int, until: int) -> Series:
        if query.plain:
            return join_pods(query, known(self._api.raw(query.query, since, until)))
        return known(self._api.stepped(query.query, since, until, self._asked.step_ms(15.0)))


def _rows(asked: Settings, group: Group, found: Sequence[Series]) -> tuple[list[Row], list[str]]:
    """Return rows in order of time, and what was left out."""
    rows: dict[tuple[int, int], list[float]] = {}
    invalid = stale = silent = 0
    for column, (number, key) in enumerate(group.members.values()):
        query = asked.queries[number]
        for sample in found[number][key]:
            if sample.t1 - sample.t0 > asked.stale_s * NS:
                stale += 1
                continue
            if sample.t1 in group.stale:
                silent += 1
                continue
            value = si_of(query, sample.value)
            if value is None:
                invalid += 1
                continue
            rows.setdefault((sample.t0, sample.t1), [math.nan] * len(group.members))[column] = value
    told = {
        f"{invalid} samples are no readings (NaN, infinite, or 0 for none)": invalid,
        f"{stale} values left out: samples behind them lie more than {asked.stale_s:g} s apart": stale,
        f"{silent} samples left out: {group.meter} had not been read for more than {asked.stale_s:g} s": silent,
    }
    ordered = sorted(rows.items(), key=lambda item: (item[0][1], item[0][0]))
    problems = [*group.notes, *(what for what, count in told.items() if count)]
    return [(t0, t1, values) for (t0, t1), values in ordered], problems


def _within(rows: list[Row], start: int, end: int) -> list[Row]:
    """Return the rows of an interval and the nearest on either side."""
    before = [row for row in rows if row[1] < start][-1:]
    after = [row for row in rows if row[1] > end][:1]
    return [*before, *(row for row in rows if start <= row[1] <= end), *after]
