"""Send requests to an OpenAI-compatible server over httpx, and follow the streams of their answers.

Times are taken when bytes arrive. Lines of a stream are counted; only those that decide something are parsed: the first
token, the usage, an error.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, MissingDependency, ReadFailed
from joulelab.serving.request_records import PROGRESS_NS, Request, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx

    from joulelab.serving.load_plan import Api, Prompt

KEY_VARIABLE = "OPENAI_API_KEY"
PATHS: Mapping[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
CONNECT_S = 10.0
KEEP_S = 4.0  # of an unused connection: uvicorn closes them after 5 s
MOST_ERROR = 300  # characters of an error that are kept
NO_USAGE, NOT_STREAMED = "no-usage", "not-streamed"
NO_CONNECTION = "no connection"
# Fields that not every server knows: an answer lasts until its limit, and the last chunk reports the tokens.
EXTRA_FIELDS: Mapping[str, Any] = {"ignore_eos": True, "stream_options": {"include_usage": True}}
REJECTED_BODY = (400, 422)
PASSING_ERRORS = (408, 429, 500, 502, 503, 504)  # they may go away: such requests are part of a load


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Describe a server: its address, the API, the model, headers and labels of every request.

    `timeout_s` ends a request that stalls; `fields` are those of the body that not every server knows.
    """

    url: str
    api: Api = "chat"
    model: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str = field(default="", repr=False)
    timeout_s: float = 60.0
    fields: Mapping[str, Any] = field(default_factory=lambda: dict(EXTRA_FIELDS))
    labels: Mapping[str, str] = field(default_factory=dict)


class TimeWindow:
    """Sum the work of one phase of a load by kind: all of it, and the part that is not reported yet."""

    __slots__ = ("begin_ns", "end_ns", "name", "phase", "unreported", "work")

    def __init__(self, name: str, begin_ns: int, phase: str | None = None) -> None:
        self.name, self.begin_ns, self.phase = name, begin_ns, phase
        self.end_ns: int | None = None
        self.work: dict[str, float] = {}
        self.unreported: dict[str, float] = {}

    @property
    def duration_s(self) -> float:
        """Return its length in s, 0 while it lasts."""
        return 0.0 if self.end_ns is None else (self.end_ns - self.begin_ns) * 1e-9

    def add_work(self, kind: str, amount: float) -> None:
        """Count work that was done in it."""
        for sums in (self.work, self.unreported):
            sums[kind] = sums.get(kind, 0.0) + amount


class LoadClient:
    """Send requests over one pool of connections; `window` is the phase in which tokens are counted now.

    Every request ends as a `Request`, whatever happens to it. `transport` and `now_ns` replace network and clock.
    """

    def __init__(self, endpoint: Endpoint, *, transport: Any = None, now_ns: Callable[[], int] = monotonic_ns) -> None:
        """Prepare; nothing is sent. Raises MissingDependency, ConfigError."""
        httpx = _load_httpx()
        self.endpoint, self._now, self._given = endpoint, now_ns, transport
        self.window: TimeWindow | None = None
        self.refused_in_a_row = 0
        headers = {"content-type": "application/json", "accept-encoding": "identity", **endpoint.headers}
        if endpoint.key:
            headers["authorization"] = f"Bearer {endpoint.key}"
        # Each connection has a pool of its own: httpx looks at every connection of a pool for every request.
        self._free: list[Any] = []
        timeout = httpx.Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s))
        self._extensions = {"timeout": timeout.as_dict()}
        try:
            self._url = httpx.URL(endpoint.url.rstrip("/"))
            self._headers = httpx.Headers({**headers, "host": self._url.netloc.decode()})
            self._verify = httpx.create_ssl_context(trust_env=False) if self._url.scheme == "https" else False
        except (httpx.InvalidURL, ValueError, TypeError) as error:
            raise ConfigError("this is no address", where=endpoint.url, why=str(error), code="config.url") from error

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        while self._free:
            await self._free.pop().aclose()

    def _take_connection(self) -> Any:
        """Return a free connection, the one that was used last, or a new one; proxies are not used."""
        if self._free:
            return self._free.pop()
        httpx = _load_httpx()
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=KEEP_S)
        return self._given or httpx.AsyncHTTPTransport(verify=self._verify, limits=limits, trust_env=False)

    def _make_message(self, method: str, path: str, body: bytes = b"", identity: str = "") -> httpx.Request:
        headers = self._headers.copy()
        if identity:
            headers["x-request-id"] = identity
        url = self._url.copy_with(raw_path=self._url.raw_path.rstrip(b"/") + path.encode())
        make: type[httpx.Request] = _load_httpx().Request
        return make(method, url, headers=headers, content=body, extensions=self._extensions)

    async def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, str]:
        """Return status and text of an answer. Raises errors of httpx."""
        connection = self._take_connection()
        try:
            response = await connection.handle_async_request(self._make_message(method, path, body))
            data = await _read_all(response)
        finally:
            await connection.aclose()
        return response.status_code, data.decode(errors="replace")

    async def prepare(self) -> tuple[str, ...]:
        """Find the model, and the fields that the server accepts. Return the fields that it does not know.

        Raises ReadFailed for a server that does not answer, ConfigError for a request that it will never accept.
        """
        httpx = _load_httpx()
        try:
            if not self.endpoint.model:
                self.endpoint = replace(self.endpoint, model=await self._find_model())
            return await self._find_fields()
        except httpx.InvalidURL as error:
            raise ConfigError("this is no address", where=self.endpoint.url, why=str(error)) from error
        except httpx.TransportError as error:
            raise ReadFailed(
                "the server does not answer", where=self.endpoint.url, why=_name_error(error),
                next="check the address, and that the server runs", code="read-failed.no-server",
            ) from error  # fmt: skip

    async def _find_model(self) -> str:
        status, text = await self._ask("GET", "/v1/models")
        if status in (401, 403):
            raise self._refuse_key(status)
        try:
            return str(json.loads(text)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ConfigError(
                "the server lists no model", where=f"{self.endpoint.url}/v1/models", why=f"status {status}",
                next="name the model: --model NAME", code="config.no-model",
            ) from None  # fmt: skip

    async def _find_fields(self) -> tuple[str, ...]:
        """Send one request of one token; leave out, one by one, the fields that the server rejects."""
        from joulelab.serving.load_plan import Prompt

        unknown: list[str] = []
        while True:
            body = self._make_body(Prompt("one ", output_tokens=1))
            status, text = await self._ask("POST", PATHS[self.endpoint.api], body)
            if status < 300 or status in PASSING_ERRORS:
                break
            if status in (401, 403):
                raise self._refuse_key(status)
            rest = dict(self.endpoint.fields)
            # The one that the server names, else the one that fewer servers know.
            named = [name for name in rest if name in text]
            if status not in REJECTED_BODY or not rest:
                raise ConfigError(
                    "the server rejects the request", where=f"{self.endpoint.url}{PATHS[self.endpoint.api]}",
                    why=f"status {status}: {text[:MOST_ERROR]}", next="check --api and --model",
                    code="config.rejected",
                )  # fmt: skip
            unknown.append((named or list(rest))[0])
            del rest[unknown[-1]]
            self.endpoint = replace(self.endpoint, fields=rest)
        return tuple(unknown)

    def _refuse_key(self, status: int) -> ConfigError:
        return ConfigError(
            "the server asks for a key", where=self.endpoint.url, why=f"status {status}",
            next=f"set the variable {KEY_VARIABLE}", code="config.no-key",
        )  # fmt: skip

    def _make_body(self, prompt: Prompt) -> bytes:
        body = {"model": self.endpoint.model, **prompt.make_body(self.endpoint.api), "stream": True}
        return json.dumps(body | dict(self.endpoint.fields), separators=(",", ":")).encode()

    async def send_request(self, identity: str, prompt: Prompt, due_ns: int | None = None) -> Request:
        """Send a request that was due at a time (now), and follow its answer to its end. Never raises.

        If its task is cancelled, it ends as `cancelled`.
        """
        httpx = _load_httpx()
        message = self._make_message("POST", PATHS[self.endpoint.api], self._make_body(prompt), identity)
        connection = self._take_connection()
        sent_ns = self._now()
        answer = _AnswerStream(self, sent_ns)
        status: Status
        try:
            response = await connection.handle_async_request(message)
            self.refused_in_a_row = 0
            try:
                status, detail = await answer.follow(response)
            finally:
                await response.stream.aclose()
        except asyncio.CancelledError:
            status, detail = "cancelled", "the load ended"
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self.refused_in_a_row += 1
            status, detail = "refused", f"{NO_CONNECTION}: {_name_error(error)}"
        except httpx.TimeoutException:
            status, detail = "stalled", f"nothing for {self.endpoint.timeout_s:g} s"
        except (httpx.HTTPError, httpx.StreamError, ValueError) as error:
            status, detail = "broken", _name_error(error)
        if status == "ok":
            self._free.append(connection)
        else:
            await connection.aclose()
        return answer.make_request(identity, sent_ns if due_ns is None else due_ns, status, detail, prompt)


class _AnswerStream:
    """Follow the stream of one answer: count its chunks by time and by window, find first token and usage."""

    __slots__ = (
        "_chunks", "_client", "_first_ns", "_has_end", "_is_done", "_last_ns", "_progress", "_rest", "_sent_ns",
        "_usage", "_windows",
    )  # fmt: skip

    def __init__(self, client: LoadClient, sent_ns: int) -> None:
        self._client, self._sent_ns, self._last_ns = client, sent_ns, sent_ns
        self._first_ns: int | None = None
        self._chunks = 0
        self._progress: list[int] = []
        self._windows: dict[TimeWindow | None, int] = {}
        self._usage: dict[str, Any] | None = None
        self._rest = b""
        self._is_done = self._has_end = False

    async def follow(self, response: httpx.Response) -> tuple[Status, str]:
        """Read the answer to its end. Raises errors of httpx."""
        if response.status_code >= 300:
            text = (await _read_all(response))[:MOST_ERROR].decode(errors="replace")
            return "refused", f"{response.status_code} {_find_message(text)}".strip()
        if "event-stream" not in response.headers.get("content-type", ""):
            return self._read_whole(await _read_all(response))
        async for data in response.stream:  # type: ignore[union-attr]  # an asynchronous transport made it
            problem = self._add_bytes(data, self._client._now())  # noqa: SLF001 its own client
            if problem is not None:
                return "broken", problem
        if not (self._is_done or self._has_end or self._usage):
            return "broken", "the stream ended early"
        return "ok", ""

    def _read_whole(self, data: bytes) -> tuple[Status, str]:
        """Read an answer that is no stream: its first token is not seen."""
        self._last_ns = self._client._now()  # noqa: SLF001
        body = json.loads(data)
        if not isinstance(body, dict) or "choices" not in body:
            return "broken", "the answer has no choices"
        self._usage = body.get("usage") or None
        return "ok", NOT_STREAMED

    def _add_bytes(self, data: bytes, now_ns: int) -> str | None:
        """Count the lines in bytes that have arrived; return an error that the server sent."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        new = 0
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            if line.startswith((b"data: [DONE]", b"data:[DONE]")):
                self._is_done = True
            elif b'"usage":{' in line or b'"usage": {' in line or b'"error":' in line:
                event = json.loads(line[5:])
                if event.get("error"):
                    return _find_message(json.dumps(event))
                self._usage = event.get("usage") or self._usage
                new += _has_token(event)
            elif self._first_ns is None:
                new += _has_token(json.loads(line[5:])) if new == 0 else 1
            else:
                new += 1
            self._has_end = self._has_end or b'"finish_reason":"' in line or b'"finish_reason": "' in line
        if new:
            self._count_chunks(new, now_ns)
        return None

    def _count_chunks(self, new: int, now_ns: int) -> None:
        window = self._client.window
        self._windows[window] = self._windows.get(window, 0) + new
        self._chunks += new
        self._last_ns = now_ns
        if self._first_ns is None:
            self._first_ns = now_ns
            new -= 1
        place = (now_ns - self._first_ns) // PROGRESS_NS
        while len(self._progress) <= place:
            self._progress.append(0)
        self._progress[place] += new

    def make_request(self, identity: str, due_ns: int, status: Status, detail: str, prompt: Prompt) -> Request:
        """Return the request as a record, and count its work in the windows in which it was done."""
        last_ns = self._last_ns if status == "ok" else self._client._now()  # noqa: SLF001
        usage = self._usage or {}
        prompt_tokens, output_tokens = (_read_count(usage.get(f"{name}_tokens")) for name in ("prompt", "completion"))
        details = usage.get("prompt_tokens_details")
        cached = _read_count(details.get("cached_tokens")) if isinstance(details, dict) else None
        if status == "ok" and output_tokens is None:
            # A chunk is one token of nearly all servers; their number of prompt tokens stays unknown.
            output_tokens, detail = self._chunks or None, NO_USAGE
        self._count_work(status, prompt_tokens, output_tokens)
        return Request(
            identity, due_ns, self._sent_ns, self._first_ns, last_ns, prompt_tokens, output_tokens, status, detail,
            cached, self._chunks, tuple(self._progress), {**self._client.endpoint.labels, **prompt.list_labels()},
        )  # fmt: skip

    def _count_work(self, status: Status, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Count output tokens where their chunks came, prompt tokens at the first one, a complete request now."""
        scale = output_tokens / self._chunks if output_tokens and self._chunks else 1.0
        first = next(iter(self._windows), self._client.window)
        for window, chunks in self._windows.items():
            if window is not None:
                window.add_work("output_tokens", chunks * scale)
        if first is not None and prompt_tokens:
            first.add_work("prompt_tokens", prompt_tokens)
        now = self._client.window
        if now is not None and status == "ok":
            if not self._windows and output_tokens:
                now.add_work("output_tokens", output_tokens)
            now.add_work("requests", 1)


async def _read_all(response: httpx.Response) -> bytes:
    return b"".join([part async for part in response.stream])  # type: ignore[union-attr]


def _has_token(event: Any) -> int:
    """Return 1 if an event of a stream carries text of the answer, else 0."""
    choices = event.get("choices") if isinstance(event, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return 0
    delta = choices[0].get("delta")
    parts = delta if isinstance(delta, dict) else {"text": choices[0].get("text")}
    return int(any(bool(value) for name, value in parts.items() if name != "role"))


def _read_count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _find_message(text: str) -> str:
    """Return the message of an error that a server sent as JSON, else its text."""
    try:
        found = json.loads(text)
    except ValueError:
        return " ".join(text.split())[:MOST_ERROR]
    error = found.get("error", found) if isinstance(found, dict) else found
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:MOST_ERROR]


def _name_error(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:MOST_ERROR]


def _load_httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependency(
            "httpx is not installed", where="joulelab serving", why="it sends the requests",
            next='pip install "joulelab[http]"',
        ) from error  # fmt: skip
    return httpx
