"""Ask a Prometheus or VictoriaMetrics server for samples as they were scraped, page by page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import lt
from typing import TYPE_CHECKING, Any, NamedTuple

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.instruments.prometheus.query import selectors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.instruments.http import HttpClient

MS = 1_000_000
POINTS = 10_000  # of one series in one answer; servers refuse more than 11,000
PAGE_MS = 3_600_000


class Sample(NamedTuple):
    """Hold one sample: UTC in ns of the oldest and the newest scrape behind it (equal for a raw one), value."""

    t0: int
    t1: int
    value: float


Series = dict[tuple[tuple[str, str], ...], list[Sample]]


def parse_matrix(answer: Any, label: str) -> Series:
    """Return samples by labels, in order of time. Raises ReadFailed for anything else than a matrix of numbers.

    NaN and infinite samples are kept as NaN: the caller knows what a gap means.
    """
    try:
        return _matrix(answer)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ReadFailed("its answer is not understood", where=label, why=_why(error)) from None


def _matrix(answer: Any) -> Series:
    data = answer["data"]
    if answer["status"] != "success" or data["resultType"] != "matrix":
        raise ValueError("it is no matrix")
    found: Series = {}
    for row in data["result"]:
        key = _labels(row["metric"])
        if key in found:
            raise ValueError("it has a series twice")
        found[key] = _samples(row["values"])
    return found


def _why(error: Exception) -> str:
    return f"{error.args[0]!s} is missing" if isinstance(error, KeyError) else str(error)


def _labels(metric: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(metric, Mapping) or not all(isinstance(k, str) and isinstance(v, str) for k, v in metric.items()):
        raise ValueError("labels are not texts")
    return tuple(sorted(metric.items()))


def _samples(values: Any) -> list[Sample]:
    if not isinstance(values, list):
        raise TypeError("values are no list")
    if not all(type(pair) is list and len(pair) == 2 for pair in values):
        raise ValueError("a sample is no pair")
    if not {type(at) for at, _ in values} <= {int, float} or not {type(text) for _, text in values} <= {str}:
        raise TypeError("a sample is not a time and a text")
    times = [round(at * 1000) * MS for at, _ in values]
    if times and not (times[0] > 0 and times[-1] < 1 << 62 and all(map(lt, times, times[1:]))):
        raise ValueError("times are not in order")
    texts = [text for _, text in values]
    numbers = list(map(float, texts))
    if "_" in "".join(texts):
        raise ValueError("a value has an underscore")
    if not all(map(math.isfinite, numbers)):
        numbers = [number if math.isfinite(number) else math.nan for number in numbers]
    return list(map(Sample, times, times, numbers))


class Api:
    """Ask one server; raises MeterError, and ConfigError with the server's reason for PromQL that it does not take."""

    def __init__(self, client: HttpClient, label: str) -> None:
        self._client = client
        self._whole_s = client.timeout_s
        self._deadline_ns: int | None = None
        self.label = label

    def within(self, limited: bool) -> None:
        """Bound all that is asked from now on, together, by the time limit; or each request by itself."""
        self._deadline_ns = monotonic_ns() + round(self._whole_s * NS) if limited else None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def raw(self, selector: str, start_ns: int, end_ns: int) -> Series:
        """Return the samples of a plain selector in [start, end] as they were scraped."""
        return self._paged(start_ns, end_ns, PAGE_MS, lambda a, b: self._raw_page(selector, a, b))

    def stepped(self, expression: str, start_ns: int, end_ns: int, step_ms: int) -> Series:
        """Return an expression at the steps where something behind it is new, with the times of what is behind it.

        A server evaluates an expression with the last samples of up to 5 minutes; asked more often than they come,
        it repeats them. The times of the samples of all its selectors tell which steps are repeats.
        """
        inside = selectors(expression)

        def at(what: str) -> Series:
            return self.evaluated(what, start_ns, end_ns, step_ms)

        values = at(expression)
        if not inside:
            return values
        newest = [at(f"max(timestamp({one}))") for one in inside]
        oldest = [at(f"min(timestamp({one}))") for one in inside]
        last, first = _joined(newest, max), _joined(oldest, min)
        return {key: _fresh(samples, first, last) for key, samples in values.items()}

    def evaluated(self, expression: str, start_ns: int, end_ns: int, step_ms: int) -> Series:
        """Return an expression at steps, as the server gives it."""
        page = step_ms * POINTS
        return self._paged(start_ns, end_ns, page, lambda a, b: self._range_page(expression, a, b, step_ms))

    def names(self) -> list[str]:
        """Return the names of all metrics of the server."""
        found = self._ask("/api/v1/label/__name__/values", {}).get("data")
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    def labels(self, selector: str, start_ns: int, end_ns: int) -> list[dict[str, str]]:
        """Return the labels of the series of a selector."""
        params = {"match[]": selector, "start": _seconds(start_ns // MS), "end": _seconds(end_ns // MS)}
        found = self._ask("/api/v1/series", params).get("data")
        return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []

    def _paged(self, start_ns: int, end_ns: int, page_ms: int, ask: Any) -> Series:
        """Put pages together; a page that is too much for the server is halved."""
        whole: Series = {}
        at, end = start_ns // MS, -(-end_ns // MS)
        while at <= end:
            until = min(at + page_ms, end)
            try:
                part: Series = ask(at, until)
            except ReadFailed as error:
                if page_ms < 2000 or not any(word in str(error) for word in ("too long", "too many", "exceeded")):
                    raise
                page_ms //= 2
                continue
            for key, samples in part.items():
                kept = whole.setdefault(key, [])
                last = kept[-1].t1 if kept else 0
                kept += samples if samples and samples[0].t1 > last else [s for s in samples if s.t1 > last]
            at = until + 1
        return whole

    def _raw_page(self, selector: str, start_ms: int, end_ms: int) -> Series:
        # Newer servers leave the first instant of a range out: it begins 1 ms earlier.
        params = {"query": f"{selector}[{end_ms - start_ms + 1}ms]", "time": _seconds(end_ms), "nocache": "1"}
        found = parse_matrix(self._ask("/api/v1/query", params), self.label)
        first = start_ms * MS
        return {key: [s for s in samples if s.t0 >= first] for key, samples in found.items()}

    def _range_page(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> Series:
        begin = -(-start_ms // step_ms) * step_ms  # steps at the same times in every page
        if begin > end_ms:
            return {}
        params = {"query": query, "start": _seconds(begin), "end": _seconds(end_ms), "step": _seconds(step_ms)}
        return parse_matrix(self._ask("/api/v1/query_range", params | {"nocache": "1"}), self.label)

    def _ask(self, path: str, params: Mapping[str, str]) -> dict[str, Any]:
        if self._deadline_ns is not None:
            self._client.timeout_s = max((self._deadline_ns - monotonic_ns()) / NS, 0.001)
        answer = self._client.get_json(path, params, also=(400, 422, 503))
        if not isinstance(answer, dict):
            raise ReadFailed("its answer is not understood", where=self.label, why="it is no object")
        if answer.get("status") == "success":
            return answer
        reason = str(answer.get("error") or "it does not say why")[:300]
        if "parse error" in reason or "unparsed data" in reason or answer.get("errorType") == "bad_data":
            advice = "correct the query"
            raise ConfigError("the server does not take the PromQL", where=self.label, why=reason, next=advice)
        raise ReadFailed("the server does not answer the query", where=self.label, why=reason)


def _fresh(samples: Sequence[Sample], first: Mapping[int, int], last: Mapping[int, int]) -> list[Sample]:
    """Return samples where something behind them is new, at the times of what is behind them."""
    found: list[Sample] = []
    for sample in samples:
        newest = last.get(sample.t1)
        if newest is not None and (not found or newest > found[-1].t1):
            found.append(Sample(min(first.get(sample.t1, newest), newest), newest, sample.value))
    return found


def _joined(parts: Iterable[Series], pick: Any) -> dict[int, int]:
    """Return by time of step the oldest or newest time (ns) that any selector has there."""
    found: dict[int, int] = {}
    for part in parts:
        for samples in part.values():
            for sample in samples:
                if math.isfinite(sample.value):
                    at = round(sample.value * 1000) * MS
                    found[sample.t1] = pick(found.get(sample.t1, at), at)
    return found


def nothing_found(api: Api, query: str, since_ns: int, until_ns: int) -> Unavailable:
    """Return the error for a query without a sample, with what the server has instead."""
    import difflib

    wanted = (selectors(query) or [query])[0]
    metric = wanted.partition("{")[0]
    names = api.names()
    where, what = api.label, f"there is no sample of {wanted}"
    if metric in names:
        rows = api.labels(metric, since_ns, until_ns)
        if not rows:
            why = f"{metric} is known, but has no series at that time"
            return Unavailable(what, where=where, why=why, next="check that its exporter is scraped (metric up)")
        shown = "; ".join(", ".join(f'{k}="{v}"' for k, v in row.items() if k != "__name__") for row in rows[:4])
        return Unavailable(
            what, where=where, why=f"{metric} has {len(rows)} series: {shown}", next="correct the labels"
        )
    near = difflib.get_close_matches(metric, names, n=5, cutoff=0.5)
    power = [n for n in names if any(part in n.lower() for part in ("watt", "joule", "power", "energy"))]
    listed = ", ".join(near or power[:8]) or "none about power or energy"
    why = f"the server has {len(names)} metrics; near to it: {listed}"
    return Unavailable(what, where=where, why=why, next="correct the query, or have the exporter scraped")


def _seconds(ms: int) -> str:
    return f"{ms // 1000}.{ms % 1000:03d}"
