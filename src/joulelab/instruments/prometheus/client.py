"""Read samples from a Prometheus or VictoriaMetrics server as they were scraped, page by page."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from operator import lt
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Unavailable

if TYPE_CHECKING:
    from joulelab.instruments.http import HttpClient

MS = 1_000_000
PAGE_MS = 3_600_000
POINTS = 10_000  # of one series in one answer; servers refuse more than 11,000
DAY_NS = 86_400 * NS
MOST_APART_S = 30.0  # the clocks of two hosts; a quarter of the usual lookback_s
REFUSED_QUERY = ("parse error", "error parsing", "unparsed data")


class Sample(NamedTuple):
    """Hold one sample: UTC of its scrape in ns, value."""

    t_ns: int
    value: float


SeriesKey = tuple[tuple[str, str], ...]  # its labels, sorted
Series = dict[SeriesKey, list[Sample]]


def parse_matrix(answer: Any, label: str) -> Series:
    """Return samples by labels, in order of time. Raises ReadFailed for anything else than a matrix of numbers.

    NaN and infinite samples become NaN: the caller knows the meaning of a gap.
    """
    try:
        return _parse_series(answer)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        why = f"{error.args[0]!s} is missing" if isinstance(error, KeyError) else str(error)
        raise _not_understood(label, why) from None


def _parse_series(answer: Any) -> Series:
    found: Series = {}
    data = answer["data"]
    if answer["status"] != "success" or data["resultType"] != "matrix":
        raise ValueError("it is no matrix")
    for row in data["result"]:
        metric = row["metric"]
        if not isinstance(metric, Mapping) or not all(type(text) is str for pair in metric.items() for text in pair):
            raise ValueError("labels are not texts")
        key = tuple(sorted(metric.items()))
        if key in found:
            raise ValueError("it has a series twice")
        found[key] = _parse_samples(row["values"])
    return found


def _parse_samples(values: Any) -> list[Sample]:
    if type(values) is not list or not all(type(pair) is list and len(pair) == 2 for pair in values):
        raise ValueError("values are no list of pairs")
    if not {type(at) for at, _ in values} <= {int, float} or not {type(text) for _, text in values} <= {str}:
        raise ValueError("a sample is not a time and a text")
    times = [round(at * 1000) * MS for at, _ in values]
    if times and not (times[0] > 0 and times[-1] < 1 << 62 and all(map(lt, times, times[1:]))):
        raise ValueError("times are not in order")
    texts = [text for _, text in values]
    numbers = list(map(float, texts))
    if "_" in "".join(texts):
        raise ValueError("a value has an underscore")
    if not all(map(math.isfinite, numbers)):
        numbers = [number if math.isfinite(number) else math.nan for number in numbers]
    return list(map(Sample, times, numbers))


class PrometheusClient:
    """Query one server; raises MeterError, and ConfigError with the server's reason for PromQL that it refuses."""

    def __init__(self, client: HttpClient, label: str) -> None:
        self._client = client
        self._whole_s = client.timeout_s
        self._deadline_ns: int | None = None
        self.label = label

    def start_deadline(self) -> None:
        """Let all requests from now on share one time limit; without a call each has its own."""
        self._deadline_ns = monotonic_ns() + round(self._whole_s * NS)

    def check_clocks(self, now_ns: int) -> None:
        """Raise ReadFailed if the last answer came at another time by the clock of the server than by ours (UTC).

        We ask for samples by our clock: one that is wrong would get those of another time.
        """
        server_ns = self._client.read_server_utc_ns()
        apart_s = 0.0 if server_ns is None else (now_ns - server_ns) / NS
        if abs(apart_s) > MOST_APART_S:
            what, code = "the clocks of this host and of the server differ", "read-failed.clocks-differ"
            why, advice = f"by {abs(apart_s):.0f} s", "set both by NTP: chronyc tracking"
            raise ReadFailed(what, where=self.label, why=why, next=advice, code=code)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def fetch_raw(self, selector: str, start_ns: int, end_ns: int) -> Series:
        """Return the samples of a plain selector in [start, end] (UTC) as they were scraped.

        A page that is too much for the server is halved.
        """
        whole: Series = {}
        at, end, page_ms = start_ns // MS, -(-end_ns // MS), PAGE_MS
        while at <= end:
            until = min(at + page_ms, end)
            # Newer servers exclude the first instant of a range: it begins 1 ms earlier.
            params = {"query": f"{selector}[{until - at + 1}ms]", "time": _format_ms(until), "nocache": "1"}
            try:
                part = parse_matrix(self._get_answer("/api/v1/query", params), self.label)
            except ReadFailed as error:
                if page_ms < 2000 or not any(word in str(error) for word in ("too long", "too many", "exceeded")):
                    raise
                page_ms //= 2
                continue
            for key, samples in part.items():
                joined = whole.setdefault(key, [])
                last_ns = joined[-1].t_ns if joined else at * MS - 1
                joined += samples if samples and samples[0].t_ns > last_ns else [s for s in samples if s.t_ns > last_ns]
            at = until + 1
        return whole

    def list_steps(self, expression: str, start_ns: int, end_ns: int, step_ms: int) -> list[int]:
        """Return the steps (UTC, ns) in [start, end] at which an expression has a value; at most POINTS of them."""
        begin = -(-start_ns // (step_ms * MS)) * step_ms
        params = {"query": expression, "start": _format_ms(begin), "end": _format_ms(end_ns // MS), "nocache": "1"}
        answer = self._get_answer("/api/v1/query_range", params | {"step": _format_ms(step_ms)})
        return [sample.t_ns for samples in parse_matrix(answer, self.label).values() for sample in samples]

    def list_metrics(self) -> list[str]:
        """Return the names of all metrics of the server."""
        found = self._get_answer("/api/v1/label/__name__/values", {}).get("data")
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    def list_series(self, selector: str, start_ns: int, end_ns: int) -> list[dict[str, str]]:
        """Return the labels of the series of a selector."""
        params = {"match[]": selector, "start": _format_ms(start_ns // MS), "end": _format_ms(end_ns // MS)}
        found = self._get_answer("/api/v1/series", params).get("data")
        return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []

    def explain_missing(self, selector: str, since_ns: int, until_ns: int, *, live: bool = False) -> MeterError:
        """Return the error for a selector without samples, with the nearest metrics or labels of the server."""
        metric, names = selector.partition("{")[0].strip(), self.list_metrics()
        what, code = f"there is no sample of {selector}", "unavailable.no-series"
        if metric not in names:
            near = difflib.get_close_matches(metric, names, n=5, cutoff=0.5)
            near = near or [n for n in names if any(p in n.lower() for p in ("watt", "joule", "power", "energy"))][:8]
            why = f"the server has {len(names)} metrics; near to it: {', '.join(near) or 'none about power or energy'}"
            advice = "correct the query, or let Prometheus scrape the exporter"
        elif live and self.list_series(selector, until_ns - DAY_NS, until_ns):
            why = f"{selector} had some within a day, none within {(until_ns - since_ns) / NS:g} s"
            advice = "see whether its target is up (metric up); raise lookback_s if it is scraped less often"
            what, code = "there is no recent sample", "read-failed.no-sample"  # it may come back
            return ReadFailed(what, where=self.label, why=why, next=advice, code=code)
        elif rows := self.list_series(metric, since_ns, until_ns):
            shown = (", ".join(f'{k}="{v}"' for k, v in row.items() if k != "__name__") for row in rows[:4])
            why, advice = f"{metric} has {len(rows)} series: {'; '.join(shown)}", "correct the labels"
        else:
            why, advice = f"{metric} has no series at that time", "check that its exporter is scraped (metric up)"
        return Unavailable(what, where=self.label, why=why, next=advice, code=code)

    def _get_answer(self, path: str, params: Mapping[str, str]) -> dict[str, Any]:
        if self._deadline_ns is not None:
            self._client.timeout_s = max((self._deadline_ns - monotonic_ns()) / NS, 0.001)
        try:
            answer = self._client.get_json(path, params, also=(400, 422, 503))
        except Unavailable as error:
            what, code = "the server does not answer as Prometheus does", "unavailable.not-prometheus"
            advice = "check port and path (a VictoriaMetrics cluster: /select/0/prometheus)"
            raise Unavailable(what, where=self.label, why=error.why, next=advice, code=code) from error
        if not isinstance(answer, dict):
            raise _not_understood(self.label, "it is no object")
        if answer.get("status") == "success":
            return answer
        reason = str(answer.get("error") or "it gives no reason")[:300]
        if any(mark in reason for mark in REFUSED_QUERY) or answer.get("errorType") == "bad_data":
            what, code = "the server refuses the PromQL", "config.promql"
            raise ConfigError(what, where=self.label, why=reason, next="correct the query", code=code)
        what, code = "the server does not answer the query", "read-failed.query"
        raise ReadFailed(what, where=self.label, why=reason, next="it is tried again", code=code)


def _not_understood(label: str, why: str) -> ReadFailed:
    what, code = "the server's answer is not understood", "read-failed.answer"
    return ReadFailed(what, where=label, why=why, next="check that the address is that of a Prometheus API", code=code)


def _format_ms(ms: int) -> str:
    """Return a time in s, as the API wants it."""
    return f"{ms // 1000}.{ms % 1000:03d}"
