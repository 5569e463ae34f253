"""Serve a simulated large language model by the protocol of OpenAI and vLLM, on a node of a twin.

The engine (`llm_model.py`) runs in real time: the power of every iteration is written to the truth file shortly before
it begins, and its tokens are sent when it ends. A token of a prompt is four characters of text, or one id of a list.
Without `ignore_eos` an answer ends after `answer_tokens`. `GET /twin/truth` returns the true energy of every request
that has ended; the same lines are in `requests.jsonl` of the server's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import sys
import threading
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from joulelab.core.clock import NS, monotonic_ns, read_clock_pair
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.twin.job_notes import LEAD_S, MEMORY_BYTES
from joulelab.twin.llm_model import EnginePlace, LlmEngine, LlmParameters, LlmRequest
from joulelab.twin.servers.server_process import ServiceInfo, run_server
from joulelab.twin.truth_file import Process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from joulelab.twin.llm_model import Iteration
    from joulelab.twin.truth import Truth

URL: Final = "JOULELAB_LLM_URL"
TRUTH: Final = "requests.jsonl"
CHARACTERS: Final = 4  # of text in a token
WORD: Final = " twin"  # the text of every token that is answered
# An iteration is planned this much before it begins: the lead of all changes of power, and time for a busy machine.
LEAD_NS: Final = round(LEAD_S * NS)
AHEAD_NS: Final = LEAD_NS + 5_000_000
ROUNDING: Final = 1e-9  # of sums of shares
CAPS_NS: Final = 20_000_000  # between two looks at the caps
MOST_BODY: Final = 64 << 20
HEADER_END: Final = b"\r\n\r\n"
JSON: Final = "application/json"
REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSettings(LlmParameters):
    """Describe the served model and its flaws; shares are of the requests, in turn; 0 and None mean never.

    The process ends when more than `die_after` requests have come. Answers are refused (429) or fail (500); streams
    stop without an end or lose their connection after the second token. Counters fall to zero at `reset_at_s` (s).
    """

    model: str = "twin-llm"
    answer_tokens: int = 256
    die_after: int = 0
    refuse_share: float = 0.0
    fail_share: float = 0.0
    stall_share: float = 0.0
    break_share: float = 0.0
    usage: bool = True
    reset_at_s: float | None = None

    def __post_init__(self) -> None:
        LlmParameters.__post_init__(self)
        wrong = [f"{flaw}_share" for flaw, share in self.list_shares().items() if not 0 <= share <= 1]
        wrong += ["answer_tokens"] if self.answer_tokens < 1 else []
        wrong += ["die_after"] if self.die_after < 0 else []
        wrong += ["reset_at_s"] if self.reset_at_s is not None and not 0 <= self.reset_at_s < math.inf else []
        if wrong:
            raise ConfigError(
                f"{', '.join(wrong)}: not a possible number", where="llm",
                why="shares lie between 0 and 1, answer_tokens is at least 1, no number is negative",
            )  # fmt: skip

    def list_shares(self) -> dict[str, float]:
        """Return the shares of the flaws that requests meet, by flaw."""
        return {
            "refuse": self.refuse_share, "fail": self.fail_share, "stall": self.stall_share, "break": self.break_share,
        }  # fmt: skip


FLAWS = LlmSettings()


@contextlib.contextmanager
def serve(truth: Truth, directory: Path, flaws: LlmSettings, port: int = 0) -> Iterator[ServiceInfo]:
    """Serve in a thread until the block ends. Raises ConfigError for GPUs that the node does not have."""
    directory.mkdir(parents=True, exist_ok=True)
    listener = socket.create_server(("127.0.0.1", port), backlog=1024)
    with contextlib.closing(listener), (directory / TRUTH).open("w", buffering=1, encoding="utf-8") as lines:
        model = _ServedModel(truth, flaws, lines)
        loop = asyncio.new_event_loop()
        model.loop = loop
        if flaws.reset_at_s is not None:
            loop.call_later(flaws.reset_at_s, model.reset_metrics)
        server = loop.run_until_complete(loop.create_server(lambda: _Connection(model), sock=listener))
        thread = threading.Thread(target=loop.run_forever, name="twin-llm", daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield ServiceInfo(
                {}, {"llm": listener.getsockname()[1]}, {URL: url}, {"url": url, "truth": str(directory / TRUTH)}
            )
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            model.close()
            server.close()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()


class _ServedModel:
    """Run the engine in real time, and answer the requests of all connections."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, truth: Truth, settings: LlmSettings, lines: Any) -> None:
        self._truth, self.settings, self._lines = truth, settings, lines
        self._place = EnginePlace(truth.node, settings.gpus)
        self._engine = LlmEngine(settings, self._place.gpu, self._place.wall_w)
        self._tightest = max(self._place.gpus, key=lambda gpu: self._place.lines[f"gpu:{gpu}"].idle_w)
        self._answers: dict[LlmRequest, _Answer] = {}
        self._ended: list[dict[str, Any]] = []
        self.connections: set[_Connection] = set()
        self._is_planned = False
        self._end_ns = 0
        self._caps_ns, self._cap_w = 0, math.inf
        self._mhz: int | None = None
        self._count = 0
        self._due = dict.fromkeys(settings.list_shares(), 0.0)  # requests that shall meet each flaw, so far
        pair = read_clock_pair()
        self._utc_ns = pair.utc_ns - pair.mono_ns
        self.reset_metrics()
        for gpu in self._place.gpus:
            truth.set_processes(gpu, [Process(pid=os.getpid(), memory_bytes=MEMORY_BYTES)])

    def close(self) -> None:
        """Close all connections; the truth of requests that had not ended is kept."""
        for connection in list(self.connections):
            connection.abort()
        for answer in list(self._answers.values()):
            self.drop_answer(answer)

    # Requests.

    def make_id(self) -> str:
        """Return an id for a request that brought none."""
        return f"twin-{self._count}"

    def find_utc_s(self) -> int:
        """Return the time of now (s, UTC)."""
        return (monotonic_ns() + self._utc_ns) // NS

    def choose_flaw(self) -> str | None:
        """Count a request; return the flaw that it meets, None for none."""
        self._count += 1
        if self.settings.die_after and self._count > self.settings.die_after:
            os._exit(1)
        for flaw, share in self.settings.list_shares().items():
            self._due[flaw] += share
        flaw = max(self._due, key=lambda name: self._due[name])
        if self._due[flaw] < 1 - ROUNDING:
            return None
        self._due[flaw] -= 1
        return flaw

    def add_answer(self, answer: _Answer) -> None:
        """Queue a request for the engine."""
        self._answers[answer.request] = answer
        self._engine.waiting.append(answer.request)
        if not self._is_planned:
            self._is_planned = True
            self._plan_iteration()

    def drop_answer(self, answer: _Answer) -> None:
        """Stop computing a request whose client has gone."""
        if self._answers.pop(answer.request, None) is not None:
            self._engine.drop_request(answer.request, monotonic_ns() / NS)
            self._metrics.count_end("abort")
            self._note_truth(answer)

    def _note_truth(self, answer: _Answer) -> None:
        request = answer.request
        line = {
            "id": answer.id,
            "request_id": answer.request_id,
            "arrival_s": request.arrival_s,
            "first_s": request.first_s if request.produced else None,
            "last_s": request.last_s,
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": request.cached_tokens,
            "prefill_tokens": request.prefilled - request.cached_tokens,
            "output_tokens": request.produced,
            "is_done": request.is_done,
            "prefill_j": request.prefill_j,
            "decode_j": request.decode_j + request.base_j,
            "wall_prefill_j": request.wall_prefill_j,
            "wall_decode_j": request.wall_decode_j,
        }
        self._ended.append(line)
        self._lines.write(json.dumps(line) + "\n")

    def describe_truth(self) -> dict[str, Any]:
        """Return the true energies above idle (J) of the requests that have ended, and the GPUs of the engine."""
        return {"gpus": list(self._place.gpus), "open": len(self._answers), "requests": self._ended}

    def reset_metrics(self) -> None:
        """Count from zero again."""
        self._metrics = _Metrics(self.settings.model)

    def write_metrics(self) -> bytes:
        """Return the page of metrics."""
        return self._metrics.write_page(self._engine.running, len(self._engine.waiting))

    # Iterations.

    def _plan_iteration(self) -> None:
        """Plan the next iteration: write its power, and send its tokens when it ends."""
        engine = self._engine
        if engine.is_idle:
            self._is_planned = False
            return
        begin_ns = max(self._end_ns, monotonic_ns() + LEAD_NS)
        self._read_caps(begin_ns)
        decoded = tuple(engine.decoding)
        iteration = engine.begin_iteration(self._cap_w, self._mhz)
        end_ns = begin_ns + round(iteration.seconds * NS)
        done = engine.end_iteration(iteration, end_ns / NS)
        try:
            self._write_power(begin_ns, end_ns, iteration)
        except JoulelabError as error:  # the truth file is full
            sys.stderr.write(f"{error}\n")
            os._exit(1)
        self._end_ns = end_ns
        self.loop.call_at(end_ns / NS, self._send_tokens, iteration, decoded, done)
        self.loop.call_at((end_ns - AHEAD_NS) / NS, self._plan_iteration)

    def _read_caps(self, t_ns: int) -> None:
        if t_ns - self._caps_ns < CAPS_NS:
            return
        truth, gpus = self._truth, self._place.gpus
        clocks = [mhz for gpu in gpus if (mhz := truth.locked_mhz(gpu)) is not None]
        self._caps_ns, self._mhz = t_ns, min(clocks, default=None)
        self._cap_w = min(truth.limit_w(gpu, t_ns) for gpu in gpus)

    def _write_power(self, begin_ns: int, end_ns: int, iteration: Iteration) -> None:
        """Write the power of an iteration and the idle power after it; the next one may begin at its end.

        The truth file holds power down by caps and clocks itself, so it gets the power without them where the cap
        shows: of the GPU with the least room below it.
        """
        is_capped = self._cap_w < self._place.gpu.max_w
        share = self._place.gpu.clock_share(self._mhz)
        for leaf, line in self._place.lines.items():
            above_w = iteration.watts
            if leaf.startswith("gpu"):
                is_tightest = leaf == f"gpu:{self._tightest}"
                above_w = iteration.wanted_w if is_capped and is_tightest else iteration.watts / share
            watts = line.base_w + line.slope * above_w
            self._truth.append(leaf, (begin_ns, end_ns), (watts, line.idle_w), (watts, line.idle_w))

    def _send_tokens(self, iteration: Iteration, decoded: Sequence[LlmRequest], done: Sequence[LlmRequest]) -> None:
        answers, metrics = self._answers, self._metrics
        metrics.count_iteration(iteration)
        for request in (*iteration.begun, *decoded):
            answer = answers.get(request)
            if answer is not None:
                answer.send_token()
        for request in iteration.begun:
            metrics.observe_value("time_to_first_token_seconds", request.first_s - request.arrival_s)
        for request in done:
            answer = answers.pop(request, None)
            if answer is not None:
                metrics.count_request(request, answer.finish_reason)
                self._note_truth(answer)
                answer.send_end()


class _RequestError(ValueError):
    """Hold the reason why a request cannot be answered."""


class _Answer:
    """Hold one request of a client, and send its answer: a stream of tokens, or all of it at the end."""

    def __init__(self, connection: _Connection, body: Any, *, is_chat: bool, flaw: str | None) -> None:
        """Read a request. Raises _RequestError with the reason where it is not one."""
        if not isinstance(body, dict):
            raise _RequestError("not an object of JSON")
        settings = connection.model.settings
        self._connection, self._is_chat, self._flaw = connection, is_chat, flaw
        self._is_stream = bool(body.get("stream"))
        options = body.get("stream_options") or {}
        if not isinstance(options, dict):
            raise _RequestError("stream_options: not an object")
        self._has_usage = settings.usage and (not self._is_stream or bool(options.get("include_usage")))
        prompt = count_chat_tokens(body.get("messages")) if is_chat else count_prompt_tokens(body.get("prompt"))
        output, self.finish_reason = choose_output(body, settings.answer_tokens)
        if body.get("n", 1) != 1:
            raise _RequestError("n: only one answer is given")
        self.request = LlmRequest(monotonic_ns() / NS, prompt, output, settings.count_cached(prompt))
        kind = "chatcmpl" if is_chat else "cmpl"
        self.request_id = connection.request_id
        self.id = f"{kind}-{self.request_id or connection.model.make_id()}"
        self._created, self._model = connection.model.find_utc_s(), settings.model
        self._tokens = 0
        self._line = b""

    def send_token(self) -> None:
        """Send one token of a stream."""
        self._tokens += 1
        if not self._is_stream:
            return
        if self._flaw is not None and self._tokens > 2:
            if self._flaw == "break":
                self._connection.abort()
            return
        if self._tokens == 1:
            self._begin_stream()
        if self._tokens == self.request.output_tokens:
            self._connection.send_chunk(self._make_line(self._make_choice(WORD, self.finish_reason)))
        else:
            self._connection.send_chunk(self._line)

    def send_end(self) -> None:
        """End the answer, unless a flaw keeps it from its client."""
        if self._flaw is not None and (not self._is_stream or self._tokens > 2):
            if self._flaw == "break":
                self._connection.abort()
        elif not self._is_stream:
            self._connection.send_response(200, self._make_body())
        else:
            if self._has_usage:
                self._connection.send_chunk(self._make_line(None))
            self._connection.send_chunk(b"data: [DONE]\n\n")
            self._connection.end_stream()

    def _begin_stream(self) -> None:
        self._connection.begin_stream()
        if self._is_chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            self._connection.send_chunk(self._make_line(role))
        self._line = self._make_line(self._make_choice(WORD, None))

    def _make_choice(self, text: str, reason: str | None) -> dict[str, Any]:
        content: dict[str, Any] = {"delta": {"content": text}} if self._is_chat else {"text": text}
        return {"index": 0, **content, "logprobs": None, "finish_reason": reason}

    def _make_line(self, choice: Mapping[str, Any] | None) -> bytes:
        """Return an event of a stream; that without a choice has the usage."""
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        data = {**self._make_head(kind), "choices": [] if choice is None else [choice]}
        if choice is None:
            data["usage"] = self._count_usage()
        return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"

    def _make_body(self) -> bytes:
        text, reason = WORD * self._tokens, self.finish_reason
        content: dict[str, Any] = {"text": text}
        if self._is_chat:
            content = {"message": {"role": "assistant", "content": text}}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        data = {**self._make_head("chat.completion" if self._is_chat else "text_completion"), "choices": [choice]}
        if self._has_usage:
            data["usage"] = self._count_usage()
        return json.dumps(data).encode()

    def _make_head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def _count_usage(self) -> dict[str, Any]:
        prompt = self.request.prompt_tokens
        counts = {"prompt_tokens": prompt, "completion_tokens": self._tokens, "total_tokens": prompt + self._tokens}
        return {**counts, "prompt_tokens_details": {"cached_tokens": self.request.cached_tokens}}


def count_prompt_tokens(prompt: Any) -> int:
    """Return the tokens of a prompt: text, or a list of ids. Raises _RequestError."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return max(-(-len(prompt) // CHARACTERS), 1)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return len(prompt)
    raise _RequestError("prompt: neither a text nor a list of token ids")


def count_chat_tokens(messages: Any) -> int:
    """Return the tokens of a conversation: those of its texts together. Raises _RequestError."""
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise _RequestError("messages: not a list of messages")
    texts: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        parts = content if isinstance(content, list) else [{"text": content}]
        texts += [str(part.get("text", "")) for part in parts if isinstance(part, dict)]
    return max(-(-sum(map(len, texts)) // CHARACTERS), 1)


def choose_output(body: Mapping[str, Any], answer_tokens: int) -> tuple[int, str]:
    """Return how many tokens are answered, and why the answer ends then. Raises _RequestError."""
    given = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    most = given[0] if given else 16 if "prompt" in body else answer_tokens  # 16 is the default of completions
    if type(most) is not int or most < 1:
        raise _RequestError(f"max_tokens: {most!r} is not a whole number of at least 1")
    if body.get("ignore_eos") or most < answer_tokens:
        return most, "length"
    return answer_tokens, "stop"


class _Connection(asyncio.Protocol):
    """Speak HTTP/1.1 with one client: one request after another."""

    def __init__(self, model: _ServedModel) -> None:
        self.model = model
        self.request_id = ""
        self._buffer = bytearray()
        self._answer: _Answer | None = None
        self._is_busy = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.model.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self.model.connections.discard(self)
        self._transport = None
        if self._answer is not None:
            self.model.drop_answer(self._answer)
            self._answer = None

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_busy:
            self._read_request()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _read_request(self) -> None:
        """Answer the next request if all of it is there."""
        end = self._buffer.find(HEADER_END)
        if end < 0:
            return
        first, *rest = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
        words, length = first.split(" "), headers.get("content-length", "0")
        if len(words) != 3 or not length.isdecimal() or int(length) > MOST_BODY or "transfer-encoding" in headers:
            self._refuse_request(400, "not a request with a content length")
            self._buffer.clear()
            return
        begin = end + len(HEADER_END)
        if len(self._buffer) < begin + int(length):
            return
        body = bytes(self._buffer[begin : begin + int(length)])
        del self._buffer[: begin + int(length)]
        self._is_busy = True
        self.request_id = headers.get("x-request-id", "")
        self._answer_request(words[0], words[1].partition("?")[0], body)

    def _answer_request(self, method: str, path: str, body: bytes) -> None:
        model = self.model
        if method == "GET" and path == "/health":
            self.send_response(200, b"")
        elif method == "GET" and path == "/metrics":
            self.send_response(200, model.write_metrics(), "text/plain; version=0.0.4; charset=utf-8")
        elif method == "GET" and path == "/v1/models":
            one = {"id": model.settings.model, "object": "model", "created": 0, "owned_by": "joulelab"}
            self.send_response(200, json.dumps({"object": "list", "data": [one]}).encode())
        elif method == "GET" and path == "/twin/truth":
            self.send_response(200, json.dumps(model.describe_truth()).encode())
        elif method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self._begin_answer(body, is_chat=path == "/v1/chat/completions")
        else:
            self._refuse_request(404, f"there is no {method} {path}")

    def _begin_answer(self, body: bytes, *, is_chat: bool) -> None:
        flaw = self.model.choose_flaw()
        if flaw == "refuse":
            self._refuse_request(429, "too many requests")
            return
        if flaw == "fail":
            self._refuse_request(500, "the engine has failed")
            return
        try:
            self._answer = _Answer(self, json.loads(body), is_chat=is_chat, flaw=flaw)
        except ValueError as error:
            self._refuse_request(400, str(error))
            return
        self.model.add_answer(self._answer)

    def _refuse_request(self, status: int, message: str) -> None:
        error = {"message": message, "type": REASONS[status].replace(" ", ""), "param": None, "code": status}
        self.send_response(status, json.dumps({"error": error}).encode())

    def send_response(self, status: int, body: bytes, kind: str = JSON) -> None:
        """Send a whole answer."""
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._write(head.encode() + body)
        self._finish_answer()

    def begin_stream(self) -> None:
        """Send the head of a stream."""
        kind = "text/event-stream; charset=utf-8"
        self._write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())

    def send_chunk(self, data: bytes) -> None:
        """Send a part of a stream."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        """Send the end of a stream."""
        self._write(b"0\r\n\r\n")
        self._finish_answer()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _finish_answer(self) -> None:
        self._answer = None
        self._is_busy = False
        if self._buffer:
            self.model.loop.call_soon(self._read_request)


LATENCIES: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)
FIRST_TOKENS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
TOKENS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0)
LENGTHS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
STEPS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
# vLLM's names (v1), without the prefix: the histograms with their buckets.
HISTOGRAMS: Final[Mapping[str, tuple[float, ...]]] = {
    "iteration_tokens_total": STEPS,
    "time_to_first_token_seconds": FIRST_TOKENS,
    "inter_token_latency_seconds": TOKENS,
    "request_time_per_output_token_seconds": TOKENS,
    "e2e_request_latency_seconds": LATENCIES,
    "request_prompt_tokens": LENGTHS,
    "request_generation_tokens": LENGTHS,
}
FINISHED: Final = ("stop", "length", "abort")


class _Histogram:
    """Count values in buckets."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def add_value(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += count
        self.total += value * count


class _Metrics:
    """Count what vLLM counts, and write it in the format of Prometheus."""

    def __init__(self, model: str) -> None:
        self._labels = f'engine="0",model_name={json.dumps(model)}'
        self._prompt_tokens = self._output_tokens = 0
        self._finished = dict.fromkeys(FINISHED, 0)
        self._histograms = {name: _Histogram(buckets) for name, buckets in HISTOGRAMS.items()}

    def count_iteration(self, iteration: Iteration) -> None:
        """Count the tokens of an iteration: those of a prompt when its first token comes."""
        produced = iteration.decode_tokens + len(iteration.begun)
        self._prompt_tokens += sum(request.prompt_tokens for request in iteration.begun)
        self._output_tokens += produced
        self._histograms["iteration_tokens_total"].add_value(iteration.prefill_tokens + produced)
        if iteration.decode_tokens:
            self._histograms["inter_token_latency_seconds"].add_value(iteration.seconds, iteration.decode_tokens)

    def observe_value(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        self._histograms[name].add_value(value)

    def count_end(self, reason: str) -> None:
        """Count a request that ended."""
        self._finished[reason] += 1

    def count_request(self, request: LlmRequest, reason: str) -> None:
        """Count a request whose answer is complete."""
        self.count_end(reason)
        self.observe_value("e2e_request_latency_seconds", request.last_s - request.arrival_s)
        self.observe_value("request_prompt_tokens", request.prompt_tokens)
        self.observe_value("request_generation_tokens", request.produced)
        if request.produced > 1:
            each_s = (request.last_s - request.first_s) / (request.produced - 1)
            self.observe_value("request_time_per_output_token_seconds", each_s)

    def write_page(self, running: int, waiting: int) -> bytes:
        """Return the page, with the numbers of requests that run and wait."""
        numbers = {
            "num_requests_running": ("gauge", running),
            "num_requests_waiting": ("gauge", waiting),
            "prompt_tokens_total": ("counter", self._prompt_tokens),
            "generation_tokens_total": ("counter", self._output_tokens),
        }
        lines: list[str] = []
        for name, (kind, value) in numbers.items():
            lines += [f"# TYPE vllm:{name} {kind}", f"vllm:{name}{{{self._labels}}} {float(value)}"]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in self._finished.items():
            lines.append(f'vllm:request_success_total{{{self._labels},finished_reason="{reason}"}} {float(count)}')
        for name, histogram in self._histograms.items():
            lines += self._list_buckets(name, histogram)
        return ("\n".join(lines) + "\n").encode()

    def _list_buckets(self, name: str, histogram: _Histogram) -> Iterator[str]:
        yield f"# TYPE vllm:{name} histogram"
        below = 0
        for bucket, count in zip((*histogram.buckets, math.inf), histogram.counts, strict=True):
            below += count
            limit = "+Inf" if bucket == math.inf else str(float(bucket))
            yield f'vllm:{name}_bucket{{{self._labels},le="{limit}"}} {float(below)}'
        yield f"vllm:{name}_sum{{{self._labels}}} {histogram.total}"
        yield f"vllm:{name}_count{{{self._labels}}} {float(below)}"


if __name__ == "__main__":
    run_server(serve, FLAWS)
