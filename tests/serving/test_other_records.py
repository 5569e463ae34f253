"""Requests of aiperf, guidellm and vLLM's benchmark are read, and join a run by its clocks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.analysis.analyse import analyse_run
from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.spec import Accuracy, Fetched, Spec, Stream
from joulelab.serving.other_records import OtherRecords, attach_requests, read_records
from joulelab.serving.request_records import Request, list_requests
from joulelab.store.imported import ImportedMeter, RunImport, import_run
from joulelab.store.run_reader import open_run
from joulelab.store.seal import seal_run

if TYPE_CHECKING:
    from pathlib import Path

UTC_NS = 1_759_813_200 * NS


def make_aiperf(number: int, **more: Any) -> dict[str, Any]:
    start = UTC_NS + number * NS
    metadata = {
        "session_num": number, "x_request_id": f"a-{number}", "request_start_ns": start, "request_end_ns": start + NS,
        "credit_issued_ns": start - 1000, "benchmark_phase": "profiling", "was_cancelled": False, "worker_id": "w",
    }  # fmt: skip
    amounts = {"input_sequence_length": 550, "time_to_first_token": 250.0, "output_sequence_length": 4}
    metrics = {name: {"value": value, "unit": "x"} for name, value in amounts.items()}
    metrics["inter_chunk_latency"] = {"value": [200.0, 100.0, 450.0], "unit": "ms"}
    return {"metadata": metadata, "metrics": metrics, "error": None} | more


def make_guidellm(**times: Any) -> dict[str, Any]:
    start = UTC_NS / NS + 1
    usual = {
        "targeted_start": start, "resolve_start": start, "request_start": start + 0.5, "request_end": start + 2.5,
        "first_token_iteration": start + 1.0, "last_token_iteration": start + 2.0, "resolve_end": start + 2.5,
        "token_iterations": 7,
    }  # fmt: skip
    info = {"request_id": "g", "status": "completed", "timings": usual | times, "error": None}
    return {
        "type_": "generative_request_stats", "request_id": "g", "info": info,
        "input_metrics": {"text_tokens": 20, "cached_tokens": 5}, "output_metrics": {"text_tokens": 7},
    }  # fmt: skip


VLLM = {
    "date": "20251118-010000", "duration": 9.0, "request_throughput": 1.0, "start_times": [50.0, 51.0, 52.0],
    "ttfts": [0.25, 0.5, 0.0], "itls": [[0.1, 0.2], [0.3], []], "input_lens": [10, 11, 12],
    "output_lens": [3, 2, 0], "errors": ["", "Traceback\nboom", "Bad Request"],
}  # fmt: skip


def write(folder: Path, content: Any) -> Path:
    path = folder / "records.json"
    lines = content if isinstance(content, list) else [content]
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    return path


def test_each_generator_is_read(tmp_path: Path) -> None:
    failed = make_aiperf(1, metrics={"error_isl": {"value": 9}}, error={"code": 429, "type": "X", "message": "slow"})
    cancelled = make_aiperf(2, metrics=None)
    cancelled["metadata"]["was_cancelled"] = True
    found = read_records(write(tmp_path, [make_aiperf(0), failed, cancelled]))
    assert (found.source, found.clock) == ("aiperf", "utc")
    first = found.requests[0]
    assert (first.id, first.due_ns, first.sent_ns, first.last_ns) == ("a-0", UTC_NS - 1000, UTC_NS, UTC_NS + NS)
    assert (first.ttft_s, first.prompt_tokens, first.output_tokens) == (0.25, 550, 4)
    assert (first.chunks, first.progress) == (4, (1, 1, 0, 1))
    assert [(one.status, one.detail) for one in found.requests[1:]] == [
        ("refused", "429 slow"), ("cancelled", "the load ended"),
    ]  # fmt: skip
    groups = {"successful": [make_guidellm(), make_guidellm()], "errored": [make_guidellm()], "incomplete": None}
    found = read_records(write(tmp_path, {"benchmarks": [{"requests": groups}]}))
    good = found.requests[0]
    assert (found.source, [one.id for one in found.requests]) == ("guidellm", ["g", "g-2", "g-3"])
    assert (good.late_s, good.ttft_s, good.latency_s) == (0.5, 0.5, 1.5)
    assert (good.prompt_tokens, good.output_tokens, good.cached_tokens, good.chunks) == (20, 7, 5, 7)
    assert (found.requests[2].status, found.requests[2].latency_s) == ("broken", 2.0)
    found = read_records(write(tmp_path, VLLM))
    assert (found.source, found.clock) == ("vLLM", "monotonic")
    assert [(one.status, one.detail) for one in found.requests] == [
        ("ok", ""), ("broken", "boom"), ("refused", "Bad Request"),
    ]  # fmt: skip
    assert found.requests[0].sent_ns == 50 * NS
    assert found.requests[0].latency_s == pytest.approx(0.55)
    assert found.requests[0].progress == (1, 1)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    backwards = make_aiperf(0)
    backwards["metadata"]["request_end_ns"] = UTC_NS - 1
    late = {**VLLM, "ttfts": ["x", 0.5, 0.0]}
    rows = [
        "", "{}", "[1, 2]", "not JSON", [make_aiperf(0), "{"], [make_aiperf(0), "3"], {"metadata": {}}, backwards,
        {"benchmarks": []}, {"benchmarks": [{"requests": {"successful": [{"request_id": "x"}]}}]},
        {"benchmarks": [{"requests": {"successful": [make_guidellm(request_start=None, resolve_start=None)]}}]},
        {"request_throughput": 1.0}, {**VLLM, "start_times": None}, {**VLLM, "itls": [[]]}, late,
    ]  # fmt: skip
    wrong: list[Any] = []
    for content in rows:
        try:
            wrong.append((content, read_records(write(tmp_path, content))))
        except ConfigError as error:
            if error.code != "config.no-records":
                wrong.append((content, error.code))
    assert not wrong


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 100 s at 300 W that knows nothing of requests."""
    accuracy = Accuracy("datasheet", gain=0.01, shared="plug")
    spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=accuracy)
    rows = [(UTC_NS + k * NS, UTC_NS + k * NS, (300.0,)) for k in range(-1, 102)]
    meter = ImportedMeter("plug", [Fetched(Stream("plug", "power", "node.ac", 1.0, (spec,)), rows)])
    return import_run(tmp_path, RunImport([meter], UTC_NS, UTC_NS + 100 * NS, {}, ["aiperf"], host="n1"))


def test_requests_join_a_run_and_are_verified_with_it(tmp_path: Path, run: Path) -> None:
    file = write(tmp_path, [make_aiperf(k) for k in range(20)])
    attach_requests(run, "requests", read_records(file), file)
    seal_run(run)
    with open_run(run) as opened:
        found = list_requests(opened.marks())
        result = analyse_run(opened)
        assert not [check for check in result.checks if check.status == "failed"]
    assert [one.sent_ns for one in found] == [UTC_NS + k * NS for k in range(20)]
    assert result.work == {"prompt_tokens": 11_000, "output_tokens": 80, "requests": 20}
    assert result.per_work()["output_tokens"].value == pytest.approx(300 * 100 / 80, rel=0.02)
    marks = run / "requests" / "marks" / "requests.jsonl"
    marks.write_text(marks.read_text().replace('"output_tokens":4', '"output_tokens":5'))
    with open_run(run) as opened:
        checked, _ = opened.check_files()
    assert [one.name for one in checked if one.status != "whole"] == ["requests/marks/requests.jsonl"]


def test_times_of_another_run_and_a_second_import_are_refused(tmp_path: Path, run: Path) -> None:
    file = write(tmp_path, [make_aiperf(95), make_aiperf(99), make_aiperf(100)])
    with pytest.raises(ConfigError, match="1 of 3 requests") as raised:
        attach_requests(run, "requests", read_records(file), file)
    assert raised.value.code == "config.times-outside"
    assert (
        raised.value.why
        == "they last from 95.00 s after its start to 1 min 41 s after its start, and the run takes 1 min 40 s"
    )
    far = replace(
        read_records(file), requests=(Request("a", UTC_NS - 10**18, UTC_NS - 10**18, None, UTC_NS, None, None),)
    )
    with pytest.raises(ConfigError, match="from 11574 d 2 h before its start"):
        attach_requests(run, "requests", far, file)
    own = OtherRecords("vLLM", (Request("a", 50, 50, None, 60, None, None),), "monotonic")
    with pytest.raises(ConfigError, match="since the last start"):
        attach_requests(run, "requests", own, file)
    file = write(tmp_path, [make_aiperf(5)])
    attach_requests(run, "requests", read_records(file), file)
    with pytest.raises(ConfigError) as raised:
        attach_requests(run, "again", read_records(file), file)
    assert raised.value.code == "config.has-requests"
