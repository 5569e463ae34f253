"""Read the requests that other load generators recorded, and join them with a run by their clocks.

    aiperf 0.13     profile_export.jsonl: one object a line; times are UTC in ns
    guidellm 0.8    JSON report: `benchmarks[].requests`; times are UTC in s
    vLLM            `vllm bench serve --save-result --save-detailed`: columns; times are monotonic, in s

vLLM takes its times from a clock that has no date: they fit a run on the same machine since its last start.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.report.format import format_duration
from joulelab.serving.request_records import MARK, PROGRESS_NS, Request, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.core.clock import ClockPair

MS = 1_000_000
MOST_BYTES = 2 << 30
DETAILED = "repeat the benchmark with --save-result --save-detailed"
EXPECTED = "profile_export.jsonl of aiperf, a JSON report of guidellm, or a detailed result of vLLM"


@dataclass(frozen=True, slots=True)
class OtherRecords:
    """Hold requests of another load generator; their times are UTC in ns, or monotonic ones of the client's machine."""

    source: str
    requests: tuple[Request, ...]
    clock: Literal["utc", "monotonic"] = "utc"


def read_records(path: Path) -> OtherRecords:
    """Read a file of any of the generators. Raises ConfigError."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _refuse_file(path, f"it has more than {MOST_BYTES >> 30} GiB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse_file(path, str(error)) from error
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("benchmarks"), list):
        records = OtherRecords("guidellm", tuple(_list_guidellm(found["benchmarks"], str(path))))
    elif isinstance(found, dict) and "input_lens" in found and "request_throughput" in found:
        records = OtherRecords("vLLM", tuple(_list_vllm(found, str(path))), "monotonic")
    elif isinstance(found, dict) and "request_throughput" in found:
        raise _refuse_file(path, "it has no single requests", DETAILED)
    elif found is None or _is_aiperf(found):
        records = OtherRecords("aiperf", tuple(_list_aiperf(text, path)))
    else:
        raise _refuse_file(path, "it has none of the known forms")
    if not records.requests:
        raise _refuse_file(path, "it has no requests")
    return replace(records, requests=_name_each_once(records.requests))


def _is_aiperf(line: Any) -> bool:
    return isinstance(line, dict) and isinstance(line.get("metadata"), dict)


def _refuse_file(path: Path, why: str, then: str = "") -> ConfigError:
    return ConfigError(
        "no requests can be read from this file", where=str(path), why=why, next=then or f"give {EXPECTED}",
        code="config.no-records",
    )  # fmt: skip


def _convert(make: Callable[[], Request], where: str) -> Request:
    """Return a request. Raises ConfigError with its place."""
    try:
        request = make()
    except (KeyError, IndexError, TypeError, ValueError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError("this is no request", where=where, why=why, code="config.no-records") from error
    if request.last_ns < request.sent_ns:
        raise ConfigError("a request ends before it begins", where=where, code="config.no-records")
    return request


def _name_each_once(requests: Sequence[Request]) -> tuple[Request, ...]:
    seen: Counter[str] = Counter()
    named = []
    for request in requests:
        seen[request.id] += 1
        again = seen[request.id]
        named.append(request if again == 1 else replace(request, id=f"{request.id}-{again}"))
    return tuple(sorted(named, key=lambda request: request.sent_ns))


# aiperf.


def _list_aiperf(text: str, path: Path) -> Iterator[Request]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise _refuse_file(path, f"line {number} is not JSON") from error
        if not _is_aiperf(found):
            raise _refuse_file(path, f"line {number} is no record of aiperf")
        yield _convert(lambda found=found: _make_aiperf(found), f"{path}, line {number}")  # type: ignore[misc]


def _make_aiperf(line: Mapping[str, Any]) -> Request:
    about, metrics, error = line["metadata"], line.get("metrics") or {}, line.get("error")

    def read_metric(name: str) -> Any:
        found = metrics.get(name)
        return found.get("value") if isinstance(found, dict) else None

    sent_ns, last_ns = int(about["request_start_ns"]), int(about["request_end_ns"])
    status: Status = "ok"
    detail = ""
    if about.get("was_cancelled"):
        status, detail = "cancelled", "the load ended"
    elif error:
        status, detail = "refused", f"{error.get('code') or ''} {error.get('message') or error.get('type') or ''}"
    wait_ms, gaps_ms = read_metric("time_to_first_token"), read_metric("inter_chunk_latency")
    first_ns = None if wait_ms is None else min(sent_ns + round(wait_ms * MS), last_ns)
    gaps_s = [gap / 1000 for gap in gaps_ms] if isinstance(gaps_ms, list) else []
    outputs = read_metric("output_sequence_length")
    labels = {"phase": "warmup"} if about.get("benchmark_phase") == "warmup" else {}
    identity, due_ns = about.get("x_request_id") or about.get("session_num"), about.get("credit_issued_ns") or sent_ns
    prompt = _read_tokens(read_metric("input_sequence_length") or read_metric("error_isl"))
    return Request(
        str(identity), int(due_ns), sent_ns, first_ns, last_ns, prompt, _read_tokens(outputs), status,
        " ".join(detail.split())[:300], chunks=len(gaps_s) + 1 if gaps_s else None,
        progress=_count_progress(gaps_s), labels=labels,
    )  # fmt: skip


# guidellm.

GUIDELLM_STATUS: Mapping[str, Status] = {"successful": "ok", "errored": "refused", "incomplete": "cancelled"}


def _list_guidellm(benchmarks: Sequence[Any], where: str) -> Iterator[Request]:
    for number, benchmark in enumerate(benchmarks):
        groups = benchmark.get("requests") if isinstance(benchmark, dict) else None
        for group, status in GUIDELLM_STATUS.items():
            for k, one in enumerate((groups or {}).get(group) or ()):
                place = f"{where}, benchmarks[{number}].requests.{group}[{k}]"
                yield _convert(lambda one=one, status=status: _make_guidellm(one, status), place)  # type: ignore[misc]


def _make_guidellm(one: Mapping[str, Any], status: Status) -> Request:
    times = one["info"]["timings"]

    def read_time(*names: str) -> int | None:
        value = next((times[name] for name in names if times.get(name) is not None), None)
        return None if value is None else _to_ns(value)

    sent_ns, end_ns = read_time("request_start", "resolve_start"), read_time("request_end", "resolve_end")
    if sent_ns is None or end_ns is None:
        raise ValueError("its times are missing")
    first_ns, last_ns = read_time("first_token_iteration", "first_iteration"), end_ns
    if status == "ok":
        last_ns = read_time("last_token_iteration", "last_iteration") or end_ns
    inputs, outputs = (one.get(f"{name}_metrics") or {} for name in ("input", "output"))
    prompt, output = (_read_tokens(part.get("text_tokens")) for part in (inputs, outputs))
    if status == "refused" and first_ns is not None:
        status = "broken"
    return Request(
        str(one["request_id"]), read_time("targeted_start") or sent_ns, sent_ns, first_ns, last_ns, prompt, output,
        status, str(one["info"].get("error") or "")[:300], _read_tokens(inputs.get("cached_tokens")),
        _read_tokens(times.get("token_iterations") or None),
    )  # fmt: skip


# vLLM.


def _list_vllm(found: Mapping[str, Any], where: str) -> Iterator[Request]:
    columns = {
        name: found.get(name) for name in ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")
    }
    missing = [name for name, column in columns.items() if not isinstance(column, list)]
    if missing:
        raise ConfigError(
            f"it has no {', '.join(missing)}", where=where, why="the result is not detailed, or of an older vLLM",
            next=DETAILED, code="config.no-records",
        )  # fmt: skip
    counts = {name: len(column) for name, column in columns.items() if column is not None}
    if len(set(counts.values())) != 1:
        raise ConfigError("its columns differ in length", where=where, why=str(counts), code="config.no-records")
    rows = zip(*(column for column in columns.values() if column is not None), strict=True)
    for number, row in enumerate(rows):
        yield _convert(lambda row=row, number=number: _make_vllm(number, *row), f"{where}, request {number}")  # type: ignore[misc]


def _make_vllm(
    number: int, start_s: float, wait_s: float, gaps_s: Any, prompt: Any, output: Any, error: Any
) -> Request:
    sent_ns = _to_ns(start_s)
    gaps = [float(gap) for gap in gaps_s or ()]
    status: Status = "refused" if error else "ok"
    first_ns = sent_ns + _to_ns(wait_s) if wait_s else None
    last_ns = (sent_ns if first_ns is None else first_ns) + _to_ns(sum(gaps))
    if error and first_ns is not None:
        status = "broken"
    lines = str(error or "").strip().splitlines()
    return Request(
        f"vllm-{number}", sent_ns, sent_ns, first_ns, last_ns, _read_tokens(prompt), _read_tokens(output), status,
        lines[-1][:300] if lines else "", chunks=len(gaps) + (first_ns is not None), progress=_count_progress(gaps),
    )  # fmt: skip


def _to_ns(seconds: Any) -> int:
    number = float(seconds)
    if not 0 <= number < 1e11:
        raise ValueError(f"{seconds!r} is no time")
    return round(number * NS)


def _read_tokens(value: Any) -> int | None:
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is no number of tokens")
    return round(number)


def _count_progress(gaps_s: Sequence[float]) -> tuple[int, ...]:
    """Return the chunks in each PROGRESS_NS after the first one, from the times between chunks (s)."""
    counts: list[int] = []
    at_s = 0.0
    for gap_s in gaps_s:
        at_s += gap_s
        place = int(at_s * NS) // PROGRESS_NS
        counts += [0] * (place + 1 - len(counts))
        counts[place] += 1
    return tuple(counts)


# Joining with a run.


def attach_requests(run: Path, name: str, records: OtherRecords, file: Path) -> None:
    """Add requests to a closed run, as a part of their own that `joulelab verify` checks.

    Tokens and requests count as work of the run, too, unless its load reported them already. Raises ConfigError if the
    times are not those of the run, StoreError.
    """
    from joulelab.analysis.analyse import find_span
    from joulelab.store.imported import attach_host
    from joulelab.store.run_reader import open_run

    with open_run(run) as opened:
        span, pairs, marks = find_span(opened, opened.events()), opened.clock_pairs(), opened.marks()
    if any(line.get("mark") == MARK for line in marks):
        raise ConfigError(
            "the run has requests already", where=str(run), why="they would count twice",
            next="joulelab serving requests shows them", code="config.has-requests",
        )  # fmt: skip
    requests = records.requests
    if records.clock == "utc":
        requests = tuple(move_to_run(request, pairs) for request in requests)
    inside = [one for one in requests if span.start_ns <= one.sent_ns and one.last_ns <= span.end_ns]
    if len(inside) < len(requests):
        raise _refuse_times(run, records, requests, (span.start_ns, span.end_ns), len(inside))
    reported = {kind for line in marks if line.get("mark") == "work" for kind in line.get("amounts") or ()}
    lines = sorted([line for one in requests for line in _list_marks(one, reported)], key=lambda line: int(line["t"]))
    facts = {"source": records.source, "file": file.name, "requests": len(requests)}
    attach_host(run, name, (), facts, (span.start_ns, span.end_ns), marks=lines, clocks=pairs)


def move_to_run(request: Request, pairs: Sequence[ClockPair]) -> Request:
    """Return a request with its UTC times as the monotonic times of a run."""

    def move(utc_ns: int) -> int:
        nearest = min(pairs, key=lambda pair: abs(pair.utc_ns - utc_ns))
        return utc_ns - nearest.utc_ns + nearest.mono_ns

    shift = move(request.sent_ns) - request.sent_ns  # one for all times of a request, so that their order stays
    first_ns = None if request.first_ns is None else request.first_ns + shift
    return replace(
        request, due_ns=request.due_ns + shift, sent_ns=request.sent_ns + shift, first_ns=first_ns,
        last_ns=request.last_ns + shift,
    )  # fmt: skip


def _refuse_times(
    run: Path, records: OtherRecords, requests: Sequence[Request], span: tuple[int, int], inside: int
) -> ConfigError:
    begin_s, end_s = ((one - span[0]) / NS for one in (requests[0].sent_ns, max(r.last_ns for r in requests)))
    times = [_word_moment(seconds) for seconds in (begin_s, end_s)]
    why = f"they last from {times[0]} to {times[1]}, and the run takes {format_duration((span[1] - span[0]) / NS)}"
    then = "name the run that was recorded during this load"
    if records.clock == "monotonic":
        then += "; times of vLLM fit only runs on the machine of its client, since the last start of that machine"
    return ConfigError(
        f"{len(requests) - inside} of {len(requests)} requests are outside of the run", where=str(run), why=why,
        next=then, code="config.times-outside",
    )  # fmt: skip


def _word_moment(seconds: float) -> str:
    return f"{format_duration(abs(seconds))} {'before' if seconds < 0 else 'after'} its start"


def _list_marks(request: Request, reported: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the request, and its work at the times at which it was done."""
    yield request.to_mark()
    first_ns = request.last_ns if request.first_ns is None else request.first_ns
    prompt_tokens = request.prompt_tokens if request.first_ns is not None or request.status == "ok" else 0
    works = (
        ("prompt_tokens", prompt_tokens, request.sent_ns, first_ns),
        ("output_tokens", request.output_tokens, first_ns, request.last_ns),
        ("requests", int(request.status == "ok"), request.last_ns, request.last_ns),
    )  # fmt: skip
    for kind, amount, from_ns, t in works:
        if amount and kind not in reported:
            about = {"from": from_ns, "phase": None, "amounts": {kind: amount}, "count": 1, "at": [t], "rank": 0}
            yield {"t": t, "mark": "work", **about}
