"""A load in virtual time, against a server that is a function: windows, work, statistics, failures."""

from __future__ import annotations

import asyncio
import heapq
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from joulelab.analysis.marked_phases import list_phase_facts, list_phases
from joulelab.core.marks import MarkWriter
from joulelab.serving.load_client import Endpoint, LoadClient
from joulelab.serving.load_plan import LoadLevel, Prompt, PromptSource, TokenLengths
from joulelab.serving.load_steps import LoadMarks, LoadRunner, LoadSummary, LoadTimes, find_percentile
from joulelab.serving.request_records import list_requests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
    from pathlib import Path

    from joulelab.serving.request_records import Request

STREAM = {"content-type": "text/event-stream"}


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next event."""

    now_s = 100.0

    def time(self) -> float:
        return self.now_s

    def read_ns(self) -> int:
        return round(self.now_s * 1e9)

    def _run_once(self) -> None:
        waiting: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while waiting and waiting[0]._cancelled:
            heapq.heappop(waiting)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not self._ready and waiting:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, waiting[0]._when)
        super()._run_once()  # type: ignore[misc]


def run_virtual(make: Callable[[VirtualLoop], Coroutine[Any, Any, Any]]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(make(loop))
    finally:
        loop.close()


async def wait_s(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    woken = loop.create_future()
    loop.call_later(seconds, woken.set_result, None)
    await woken


class Pieces(httpx.AsyncByteStream):
    """A body that comes in pieces: texts, times to wait (s), errors to raise."""

    def __init__(self, *pieces: Any) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, (int, float)):
                await wait_s(piece)
            else:
                yield piece.encode()


def token(text: str = "x") -> str:
    return f'data: {{"choices":[{{"index":0,"delta":{{"content":{json.dumps(text)}}},"finish_reason":null}}]}}\n\n'


def usage(prompt: int, output: int, **more: Any) -> str:
    amounts = {"prompt_tokens": prompt, "completion_tokens": output, **more}
    return f'data: {{"choices":[],"usage":{json.dumps(amounts, separators=(",", ":"))}}}\n\n'


DONE = "data: [DONE]\n\n"


def run_load(
    handler: Callable[[httpx.Request], Any], level: LoadLevel, times: LoadTimes, folder: Path
) -> tuple[LoadSummary, list[dict[str, Any]], VirtualLoop]:
    """Run one step and return its summary and its marks."""
    (folder / "marks").mkdir()
    marks = LoadMarks(MarkWriter(folder / "marks"), folder / "out.jsonl")
    loops: list[VirtualLoop] = []

    async def run(loop: VirtualLoop) -> LoadSummary:
        loops.append(loop)
        endpoint = Endpoint("http://server", model="m")
        async with LoadClient(endpoint, transport=httpx.MockTransport(handler), now_ns=loop.read_ns) as client:
            source = PromptSource(lengths=(TokenLengths(7), TokenLengths(20)))
            return await LoadRunner(client, source, times, marks, now_ns=loop.read_ns).run_steps([level])

    summary = run_virtual(run)
    marks.close()
    files = sorted((folder / "marks").iterdir())
    lines = [json.loads(line) | {"source": file.name} for file in files for line in file.read_text().splitlines()]
    return summary, lines, loops[0]


def test_tokens_count_in_the_window_in_which_they_come(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        await wait_s(0.1)
        pieces = [part for _ in range(20) for part in (token(), 0.05)]
        return httpx.Response(200, headers=STREAM, stream=Pieces(*pieces, usage(9, 40), DONE))

    level, times = LoadLevel("rate", 10.0, "fixed"), LoadTimes(warmup_s=2, duration_s=4, drain_s=5)
    summary, lines, _ = run_load(answer, level, times, tmp_path)
    (step,) = summary.steps
    assert asked[0]["max_tokens"] == 20
    assert asked[0]["stream_options"] == {"include_usage": True}
    assert step.duration_s == pytest.approx(4)
    # Ten requests/s of 40 tokens, each chunk two tokens; half of them were sent before they ended in the window.
    assert step.work["output_tokens"] == pytest.approx(1600, rel=0.01)
    assert step.work["prompt_tokens"] == pytest.approx(9 * 40, abs=9)
    assert step.facts["requests_ok"] == 40
    assert step.facts["requests_failed"] == step.facts["late_sends"] == 0
    assert step.facts["ttft_p99"] == pytest.approx(0.1)
    assert step.facts["tpot_p50"] == pytest.approx(0.95 / 39)
    assert step.facts["latency_p50"] == pytest.approx(1.05)
    assert step.facts["rate_offered"] == step.facts["rate_done"] == 10
    phases, work = list_phases(lines, 0, 1 << 62)
    assert [phase.title for phase in phases] == ["rate 10", "warm-up", "steady", "drain"]
    assert phases[2].parent == phases[0].id
    assert phases[2].work == pytest.approx(dict(step.work))
    assert work.amounts["output_tokens"] == pytest.approx(40 * len(asked))
    assert work.amounts["requests"] == summary.ok == len(asked)
    assert list_phase_facts(lines, phases, "")[phases[2].id]["ttft_p99"] == pytest.approx(0.1)
    requests = list_requests(lines)
    assert [one.output_tokens for one in requests] == [40] * len(asked)
    assert (requests[0].chunks, requests[0].progress, requests[0].prompt_tokens) == (20, (4, 5, 5, 5), 9)
    assert (tmp_path / "out.jsonl").read_text().count("\n") == len(asked)


def test_an_open_loop_does_not_wait_and_those_that_never_answer_are_cancelled(tmp_path: Path) -> None:
    async def answer(_: httpx.Request) -> httpx.Response:
        await wait_s(1e6)
        raise AssertionError

    level, times = LoadLevel("rate", 5.0, "fixed"), LoadTimes(warmup_s=1, duration_s=2, drain_s=3)
    summary, lines, loop = run_load(answer, level, times, tmp_path)
    requests = list_requests(lines)
    assert {one.status for one in requests} == {"cancelled"}
    assert max(one.late_s for one in requests) < 1e-6
    (step,) = summary.steps
    assert step.notes == ("short-warm-up",)
    assert step.facts["requests_failed"] == 10
    assert 3.0 < step.facts["ttft_p50"] < 5.0  # they have waited at least for that time
    assert loop.time() < 100 + 5 + 2 + 3 + 0.1


def test_a_closed_loop_keeps_its_number_and_a_server_that_is_gone_ends_it(tmp_path: Path) -> None:
    running: list[int] = [0, 0, 0]  # now, most, all

    async def answer(_: httpx.Request) -> httpx.Response:
        running[2] += 1
        if running[2] > 50:
            raise httpx.ConnectError("connection refused")
        running[0] += 1
        running[1] = max(running[:2])
        await wait_s(0.47)
        running[0] -= 1
        return httpx.Response(200, headers=STREAM, stream=Pieces(token(), usage(1, 1), DONE))

    level, times = LoadLevel("concurrency", 4.0), LoadTimes(warmup_s=1, duration_s=60, drain_s=60)
    summary, lines, loop = run_load(answer, level, times, tmp_path)
    assert running[1] == 4
    assert (summary.stopped, summary.ok) == ("server-gone", 50)
    assert 5 <= summary.failed["refused"] < 10
    assert loop.time() < 110
    phases = list_phases(lines, 0, 1 << 62)[0]
    assert [phase.title for phase in phases] == ["concurrency 4", "warm-up", "steady", "drain"]
    good = [one.last_ns for one in list_requests(lines) if one.status == "ok"]
    ended = sum(phases[2].start_ns <= last_ns < phases[2].end_ns for last_ns in good)
    assert summary.steps[0].work["requests"] == ended > 30


def send(handler: Callable[[httpx.Request], Any], api: Any = "chat") -> Request:
    async def run(loop: VirtualLoop) -> Request:
        client = LoadClient(
            Endpoint("http://server", api, "m", timeout_s=5, labels={"team": "a"}),
            transport=httpx.MockTransport(handler),
            now_ns=loop.read_ns,
        )
        async with client:
            return await client.send_request("id", Prompt("a", labels={"user": "u"}))

    found: Request = run_virtual(run)
    return found


def test_every_answer_has_its_status() -> None:
    role = 'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    end = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    cached = usage(9, 3, prompt_tokens_details={"cached_tokens": 4})
    null, oom = token().replace("}]}", '}],"usage":null}'), '{"error": {"message": "oom"}}'
    half, rest = token()[:25], token()[25:]
    whole = json.dumps({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 2, "completion_tokens": 3}})
    rows: list[tuple[str, Any, tuple[Any, ...]]] = [  # status, detail, first token (s), prompt, output, cached, chunks
        ("chat", Pieces(role, 1.0, token(), 0.5, token() + token(), cached, DONE), ("ok", "", 1.0, 9, 3, 4, 3)),
        ("split lines", Pieces(half, 1.0, rest + half, 0.5, rest, usage(9, 2), DONE), ("ok", "", 1.0, 9, 2, None, 2)),
        ("no usage", Pieces(token(), token(), end, DONE), ("ok", "no-usage", 0.0, None, 3, None, 3)),
        ("no end", Pieces(token(), end), ("ok", "no-usage", 0.0, None, 2, None, 2)),
        ("usage: null", Pieces(null, DONE), ("ok", "no-usage", 0.0, None, 1, None, 1)),
        ("ended early", Pieces(token(), token()), ("broken", "the stream ended early", 0.0, None, None, None, 2)),
        ("error", Pieces(token(), f"data: {oom}\n\n"), ("broken", "oom", 0.0, None, None, None, 1)),
        ("no JSON", Pieces("data: {\n\n"), ("broken", None, None, None, None, None, 0)),
        ("lost", Pieces(token(), httpx.ReadError("lost")), ("broken", "lost", 0.0, None, None, None, 1)),
        ("silent", Pieces(token(), httpx.ReadTimeout("")), ("stalled", "nothing for 5 s", 0.0, None, None, None, 1)),
        ("429", httpx.Response(429, text=oom), ("refused", "429 oom", None, None, None, None, 0)),
        ("500", httpx.Response(500, text="oh  no"), ("refused", "500 oh no", None, None, None, None, 0)),
        ("gone", httpx.ConnectError("refused"), ("refused", "no connection: refused", None, None, None, None, 0)),
        ("whole", httpx.Response(200, text=whole), ("ok", "not-streamed", None, 2, 3, None, 0)),
    ]  # fmt: skip
    wrong: list[Any] = []
    for name, reply, expected in rows:

        def answer(_: httpx.Request, reply: Any = reply) -> httpx.Response:
            if isinstance(reply, Exception):
                raise reply
            return reply if isinstance(reply, httpx.Response) else httpx.Response(200, headers=STREAM, stream=reply)

        one = send(answer)
        found = (
            one.status,
            one.detail,
            one.ttft_s,
            one.prompt_tokens,
            one.output_tokens,
            one.cached_tokens,
            one.chunks,
        )
        if any(want is not None and got != want for got, want in zip(found, expected, strict=True)):
            wrong.append((name, found, expected))
        if (expected[2] is None) != (one.ttft_s is None) or one.labels != {"team": "a", "user": "u"}:
            wrong.append((name, one.ttft_s, one.labels))
    assert not wrong


def prepare(answers: Sequence[httpx.Response]) -> tuple[tuple[str, ...], list[dict[str, Any]], str]:
    asked: list[dict[str, Any]] = []
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content or b"{}"))
        return left.pop(0)

    async def run(_: VirtualLoop) -> tuple[tuple[str, ...], str]:
        async with LoadClient(Endpoint("http://server"), transport=httpx.MockTransport(answer)) as client:
            return await client.prepare(), client.endpoint.model

    unknown, model = run_virtual(run)
    return unknown, asked, model


def test_fields_that_a_server_does_not_know_are_left_out() -> None:
    models = httpx.Response(200, json={"data": [{"id": "tiny"}]})
    refused = [
        httpx.Response(422, text="unexpected: stream_options"), httpx.Response(400, text="bad"), httpx.Response(200),
    ]  # fmt: skip
    unknown, asked, model = prepare([models, *refused])
    assert (unknown, model) == (("stream_options", "ignore_eos"), "tiny")
    assert [sorted(set(body) & {"stream_options", "ignore_eos"}) for body in asked[1:]] == [
        ["ignore_eos", "stream_options"], ["ignore_eos"], [],
    ]  # fmt: skip
    assert prepare([models, httpx.Response(429)])[0] == ()


def test_percentiles_are_those_of_numpy() -> None:
    assert find_percentile([3.0, 1.0, 2.0, 4.0], 50) == 2.5
    assert find_percentile([1.0], 99) == 1.0
    assert find_percentile([float(n) for n in range(101)], 99) == 99
