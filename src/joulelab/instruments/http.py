"""Ask HTTP servers for JSON, over httpx: one kept connection, bounded time and size, errors in words of our own.

    client = HttpClient("https://bmc7", auth=Auth("session", "reader", password), fingerprint="ab:cd:...", label="bmc7")
    client.get_json("/redfish/v1/")

Every failure is a MeterError: ReadFailed for what may pass (refused, silent, 5xx, nonsense), Denied for credentials and
certificates, Unavailable for what the server does not have (404). Proxies and .netrc of the environment are not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urljoin, urlsplit

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, MeterError, MissingDependency, ReadFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import httpx

AuthKind = Literal["none", "basic", "digest", "bearer", "session"]
LIMIT_B = 4_000_000  # a DCIM answers with a few hundred kB; no answer may fill the memory
REDIRECTS = 3
# Codes of failures that concern the whole server, not one of its pages.
SERVER_DOWN = ("read-failed.no-answer", "read-failed.refused")
_LEAST_S = 0.001


@dataclass(frozen=True, slots=True)
class Auth:
    """Hold how to log in; `password` is the token for "bearer". "session" posts to `login` as Redfish does."""

    kind: AuthKind = "none"
    user: str = ""
    password: str = field(default="", repr=False)
    login: str = "/redfish/v1/SessionService/Sessions"


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold one answer: status, headers by lower-case name, body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Ask one server; `close` ends the session and the connection, and twice is harmless. For one thread.

    `verify` is True, False or the path of a CA file; `fingerprint` (SHA-256 of the server's certificate) replaces it.
    `timeout_s` bounds each request as a whole, a log-in that it needs included. `received_b` counts the bytes of all
    answers.
    """

    def __init__(
        self,
        base_url: str,
        *,
        auth: Auth | None = None,
        timeout_s: float = 5.0,
        verify: bool | str = True,
        fingerprint: str | None = None,
        label: str = "http",
        limit_b: int = LIMIT_B,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; nothing is sent. Raises ConfigError, MissingDependency."""
        self.base_url = base_url.rstrip("/")
        self.label = label
        self.auth = auth or Auth()
        self.timeout_s = timeout_s
        self._limit_b, self._headers = limit_b, dict(headers or {})  # headers go with each request
        self._pin = None if fingerprint is None else plain_fingerprint(fingerprint, label)
        self._verify = verify
        self._token: tuple[str, str] | None = None  # the session's token, and its address
        self._deadline_ns = 0
        self.received_b = 0
        self._date = ""  # when the server sent its last answer, by its own clock
        self._client = self._make_client()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_json(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        also: Collection[int] = (),
        open: bool = False,
        within_s: float | None = None,
    ) -> Any:
        """Return the JSON at a path; statuses in `also` are as good as 200; `open`: asked without a session.

        `within_s` is for this request alone. Raises ReadFailed, Denied, Unavailable.
        """
        answer = self.ask("GET", path, params, open=open, within_s=within_s)
        if answer.status not in also:
            self._check_status(answer, path)
        return parse_json(answer.body, self.label)

    def get_text(self, path: str) -> str:
        """Return the text at a path, in UTF-8. Raises ReadFailed, Denied, Unavailable."""
        answer = self.ask("GET", path)
        self._check_status(answer, path)
        return answer.body.decode("utf-8", "replace")

    def ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        open: bool = False,
        within_s: float | None = None,
    ) -> Answer:
        """Return the answer whatever its status is, logged in again where that is needed; `open`: without a log-in."""
        self._deadline_ns = monotonic_ns() + round((self.timeout_s if within_s is None else within_s) * NS)
        if self.auth.kind != "session" or open:
            return self._exchange(method, path, params, body)
        fresh = self._token is None
        self._log_in()
        answer = self._exchange(method, path, params, body)
        if answer.status == 401 and not fresh:  # the session has ended: once more
            self._token = None
            self._log_in()
            answer = self._exchange(method, path, params, body)
        return answer

    def read_server_utc_ns(self) -> int | None:
        """Return when the server sent its last answer, by its own clock (UTC); None if it did not say."""
        from email.utils import parsedate_to_datetime

        try:
            return round(parsedate_to_datetime(self._date).timestamp() * NS)
        except (ValueError, TypeError, OverflowError):
            return None

    def close(self) -> None:
        """End the session on the server and the connection."""
        token = self._token
        if token is not None and not self._client.is_closed:
            self._deadline_ns = monotonic_ns() + round(min(self.timeout_s, 1.0) * NS)
            with contextlib.suppress(MeterError):  # a server that is gone has no session to end
                self._exchange("DELETE", token[1], None, None)
        self._token = None
        self._client.close()

    def _make_client(self) -> httpx.Client:
        try:
            import httpx
        except ImportError as error:
            why, then = "it speaks HTTP with the meter", "pip install 'joulelab[http]'"
            raise MissingDependency("httpx is not installed", where=self.label, why=why, next=then) from error
        kinds: dict[str, httpx.Auth] = {
            "basic": httpx.BasicAuth(self.auth.user, self.auth.password),
            "digest": httpx.DigestAuth(self.auth.user, self.auth.password),
        }
        return httpx.Client(auth=kinds.get(self.auth.kind), verify=self._make_context(), trust_env=False)

    def _make_context(self) -> ssl.SSLContext:
        if self._pin is not None:
            return _trust_pinned(self._pin)
        if isinstance(self._verify, str):
            try:
                return ssl.create_default_context(cafile=str(Path(self._verify).expanduser()))
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"the CA file {self._verify} cannot be used",
                    where=f"meter {self.label}",
                    why=error.strerror or type(error).__name__,
                    next="give a file of certificates in PEM",
                    code="config.ca-file",
                ) from error
        return ssl.create_default_context() if self._verify else _trust_pinned()

    def _log_in(self) -> None:
        if self._token is not None:
            return
        body = {"UserName": self.auth.user, "Password": self.auth.password}
        answer = self._exchange("POST", self.auth.login, None, body)
        token = answer.headers.get("x-auth-token")
        if answer.status in (400, 401, 403):  # some BMCs call a wrong password a bad request
            raise self._deny(f"it refuses the log-in of user {self.auth.user!r}", answer.status)
        if answer.status not in (200, 201, 204) or not token:
            self._check_status(answer, self.auth.login)
            raise self._fail("it opens no session", "its answer has no X-Auth-Token", "no-session")
        self._token = token, urlsplit(answer.headers.get("location", "")).path or self.auth.login

    def _exchange(self, method: str, path: str, params: Mapping[str, str] | None, body: Any) -> Answer:
        """Send one request, redirects within the server included. Raises ReadFailed, Denied."""
        import httpx

        url = self.base_url + path
        for _ in range(REDIRECTS + 1):
            try:
                answer = self._send_request(method, url, params, body)
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                raise self._translate_error(error) from error
            there = answer.headers.get("location")
            if answer.status not in (301, 302, 307, 308) or there is None:
                return answer
            url, params = urljoin(url, there), None
            if urlsplit(url)[:2] != urlsplit(self.base_url)[:2]:
                raise self._fail("it sends us to another server", f"redirect of {path}", "redirect")
        raise self._fail("it redirects without end", path, "redirect")

    def _send_request(self, method: str, url: str, params: Mapping[str, str] | None, body: Any) -> Answer:
        budget: dict[str, float | None] = {}

        def renew_budget(event: str = "", info: Mapping[str, Any] | None = None) -> None:
            left = self._get_time_left_s()  # each step of the exchange gets the rest of the whole time
            budget.update(connect=left, read=left, write=left, pool=left)
            if event in ("connection.connect_tcp.complete", "connection.start_tls.complete") and info is not None:
                self._bound_reads(info["return_value"])

        renew_budget()
        headers = {"Accept": "application/json", **self._headers}
        if self.auth.kind == "bearer":
            headers["Authorization"] = f"Bearer {self.auth.password}"
        if self._token is not None:
            headers["X-Auth-Token"] = self._token[0]
        extensions = {"timeout": budget, "trace": renew_budget}
        with self._client.stream(
            method, url, params=params, json=body, headers=headers, extensions=extensions
        ) as response:
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                self.received_b += len(chunk)
                if len(data) > self._limit_b:
                    raise self._fail("its answer is too long", f"above {self._limit_b} bytes", "too-long")
                if monotonic_ns() > self._deadline_ns:
                    raise self._time_out()
            self._date = response.headers.get("date", "")
            return Answer(response.status_code, {k.lower(): v for k, v in response.headers.items()}, bytes(data))

    def _get_time_left_s(self) -> float:
        return max((self._deadline_ns - monotonic_ns()) / NS, _LEAST_S)

    def _bound_reads(self, stream: Any) -> None:
        """Let each read of a connection end with the request: a head that comes byte by byte is many reads."""
        plain_read = stream.read

        def read_in_time(max_bytes: int, timeout: float | None = None) -> bytes:
            left = self._get_time_left_s()
            data: bytes = plain_read(max_bytes, timeout=left if timeout is None else min(timeout, left))
            return data

        stream.read = read_in_time

    def _check_status(self, answer: Answer, path: str) -> None:
        """Raise the error that a status stands for."""
        status = answer.status
        if status in (200, 201, 202, 203, 204):
            return
        if status in (401, 403):
            who = f"user {self.auth.user!r}" if self.auth.user else "us" if self.auth.kind == "none" else "the token"
            raise self._deny(f"it refuses {who}", status)
        if status in (404, 405, 410, 501):
            then = "check address and firmware"
            raise Unavailable(
                f"it has no {path}", where=self.label, why=f"HTTP {status}", next=then, code="unavailable.no-page"
            )
        if status in (408, 429) or status >= 500:
            raise self._fail("it fails to answer just now", f"HTTP {status} for {path}", "server-error")
        raise self._fail("it does not take the request", f"HTTP {status} for {path}", "bad-request")

    def _fail(self, what: str, why: str, reason: str, then: str | None = None) -> ReadFailed:
        return ReadFailed(what, where=self.label, why=why, next=then, code=f"read-failed.{reason}")

    def _deny(self, what: str, status: int) -> Denied:
        then = "check user, password and the rights of the account"
        return Denied(what, where=self.label, why=f"HTTP {status}", next=then, code="denied.login")

    def _time_out(self) -> ReadFailed:
        return self._fail("no answer in time", f"{self.timeout_s:g} s for {self.base_url}", "no-answer")

    def _translate_error(self, error: Exception) -> MeterError:
        """Return our own error for one of the library's: the cause shows more than the class."""
        import httpx

        if isinstance(error, httpx.TimeoutException):
            return self._time_out()
        causes: list[BaseException] = []
        current: BaseException | None = error
        while current is not None and current not in causes:
            causes.append(current)
            current = current.__cause__ or current.__context__
        for cause in causes:
            if isinstance(cause, TimeoutError):
                return self._time_out()
            if isinstance(cause, socket.gaierror):
                what = f"the name {urlsplit(self.base_url).hostname} is not known"
                return self._fail(what, "no address for it", "unknown-host", "check the address")
            if isinstance(cause, ConnectionRefusedError):
                why, then = f"nothing listens at {self.base_url}", "check the port, and that the service is switched on"
                return self._fail("the connection is refused", why, "refused", then)
            if isinstance(cause, ssl.SSLCertVerificationError):
                return self._distrust_certificate(cause)
            if isinstance(cause, ssl.SSLError):
                reason = cause.reason or "the handshake failed"
                return self._fail("TLS fails", reason.replace("_", " ").lower(), "tls")
        why = next((c.strerror for c in causes if isinstance(c, OSError) and c.strerror), type(error).__name__)
        return self._fail("the connection broke", why, "connection-lost")

    def _distrust_certificate(self, error: ssl.SSLCertVerificationError) -> Denied:
        shown = getattr(error, "fingerprint", None)
        if shown is None:
            left = max((self._deadline_ns - monotonic_ns()) / NS, 0.2)
            shown = read_peer_fingerprint(self.base_url, left)
        why = "it is not the one that is pinned" if self._pin else (error.verify_message or "it cannot be verified")
        advice = f'if it is the right device, set fingerprint = "{shown}"' if shown else "set verify to your CA's file"
        what = "its TLS certificate is not trusted"
        return Denied(what, where=self.label, why=why, next=advice, code="denied.certificate")


def parse_json(body: bytes, label: str) -> Any:
    """Return the content of JSON; numbers are finite. Raises ReadFailed."""

    def refuse_constant(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    try:
        return json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        why = f"it begins with {body[:40].decode('ascii', 'replace')!r}"
        raise ReadFailed("its answer is not JSON", where=label, why=why, code="read-failed.not-json") from error


def plain_fingerprint(text: str, label: str) -> str:
    """Return 64 lower-case digits of a SHA-256 fingerprint in any usual spelling. Raises ConfigError."""
    plain = text.strip().lower().removeprefix("sha256:").removeprefix("sha256=").replace(":", "").replace(" ", "")
    if len(plain) != 64 or set(plain) - set("0123456789abcdef"):
        then = "give its 64 hexadecimal digits"
        raise ConfigError("fingerprint is not a SHA-256", where=f"meter {label}", next=then, code="config.fingerprint")
    return plain


def read_peer_fingerprint(base_url: str, timeout_s: float) -> str | None:
    """Return the SHA-256 of the certificate that a server shows, None where it shows none."""
    parts = urlsplit(base_url)
    place = parts.hostname or "", parts.port or 443
    try:
        with socket.create_connection(place, timeout_s) as plain:
            plain.settimeout(timeout_s)
            with _trust_pinned().wrap_socket(plain, server_hostname=place[0]) as wrapped:
                return hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
    except (OSError, ValueError):
        return None


def reach(base_url: str, timeout_s: float) -> list[str]:
    """Return what name and port say; a last sentence with a full stop explains a failure."""
    parts = urlsplit(base_url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return [f"The name {host} does not resolve: check the address, or the name server."]
    number = known[0][4][0]
    try:
        with socket.create_connection((host, port), timeout_s):
            return [f"{host} ({number}) takes connections at port {port}"]
    except ConnectionRefusedError:
        return [f"{host} ({number}) is alive, port {port} is closed: the service is off, or listens elsewhere."]
    except OSError:
        return [f"{host} ({number}) does not answer at port {port}: it is off, or a firewall is between."]


class _PinnedContext(ssl.SSLContext):
    """Trust the one certificate of a fingerprint, looked at before a byte is sent; without a fingerprint, any."""

    pin = ""

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        wrapped = super().wrap_socket(*arguments, **options)
        shown = hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
        if self.pin and shown != self.pin:
            wrapped.close()
            error = ssl.SSLCertVerificationError("another certificate than the pinned one")
            error.fingerprint = shown  # type: ignore[attr-defined]
            raise error
        return wrapped


def _trust_pinned(pin: str = "") -> ssl.SSLContext:
    context = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.pin = pin
    return context
