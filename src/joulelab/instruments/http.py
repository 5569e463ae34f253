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
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import urljoin, urlsplit

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, MeterError, MissingDependency, ReadFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import httpx

C = TypeVar("C", bound=ssl.SSLContext)
AuthKind = Literal["none", "basic", "digest", "bearer", "session"]
LIMIT_B = 4_000_000  # a DCIM answers with a few hundred kB; no answer may fill the memory
REDIRECTS = 3
# What failures say that concern the whole server, not one of its pages.
NO_ANSWER, REFUSED = "no answer in time", "the connection is refused"
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
    `timeout_s` bounds each request as a whole, a log-in that it needs included (only a head that comes byte by byte may
    stretch it).
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
        self._client = self._made()

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
        return self._json(self.ask("GET", path, params, open=open, within_s=within_s), path, also)

    def post_json(
        self, path: str, body: Any = None, params: Mapping[str, str] | None = None, *, also: Collection[int] = ()
    ) -> Any:
        """Send JSON and return the JSON that comes back, None for none. Raises as `get_json`."""
        return self._json(self.ask("POST", path, params, body), path, also)

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

    def close(self) -> None:
        """End the session on the server and the connection."""
        token = self._token
        if token is not None and not self._client.is_closed:
            self._deadline_ns = monotonic_ns() + round(min(self.timeout_s, 1.0) * NS)
            with contextlib.suppress(MeterError):  # a server that is gone has no session to end
                self._exchange("DELETE", token[1], None, None)
        self._token = None
        self._client.close()

    def _made(self) -> httpx.Client:
        try:
            import httpx
        except ImportError as error:
            raise MissingDependency(
                "httpx is not installed",
                where=self.label,
                why="it speaks HTTP with the meter",
                next="pip install 'joulelab[http]'",
            ) from error
        kinds: dict[str, httpx.Auth] = {
            "basic": httpx.BasicAuth(self.auth.user, self.auth.password),
            "digest": httpx.DigestAuth(self.auth.user, self.auth.password),
        }
        return httpx.Client(auth=kinds.get(self.auth.kind), verify=self._context(), trust_env=False)

    def _context(self) -> ssl.SSLContext:
        if self._pin is not None:
            return _PinnedContext.of(self._pin)
        if isinstance(self._verify, str):
            try:
                return ssl.create_default_context(cafile=str(Path(self._verify).expanduser()))
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"the CA file {self._verify} cannot be used",
                    where=f"meter {self.label}",
                    why=error.strerror or type(error).__name__,
                    next="give a file of certificates in PEM",
                ) from error
        return ssl.create_default_context() if self._verify else _unverified()

    def _log_in(self) -> None:
        if self._token is not None:
            return
        body = {"UserName": self.auth.user, "Password": self.auth.password}
        answer = self._exchange("POST", self.auth.login, None, body)
        token = answer.headers.get("x-auth-token")
        if answer.status in (400, 401, 403):  # some BMCs call a wrong password a bad request
            raise self._denied(f"it refuses the log-in of user {self.auth.user!r}", answer.status)
        if answer.status not in (200, 201, 204) or not token:
            self._check(answer, self.auth.login)
            raise ReadFailed("it opens no session", where=self.label, why="its answer has no X-Auth-Token")
        self._token = token, urlsplit(answer.headers.get("location", "")).path or self.auth.login

    def _exchange(self, method: str, path: str, params: Mapping[str, str] | None, body: Any) -> Answer:
        """Send one request, redirects within the server included. Raises ReadFailed, Denied."""
        import httpx

        url = self.base_url + path
        for _ in range(REDIRECTS + 1):
            try:
                answer = self._send(method, url, params, body)
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                raise self._named(error) from error
            there = answer.headers.get("location")
            if answer.status not in (301, 302, 307, 308) or there is None:
                return answer
            url, params = urljoin(url, there), None
            if urlsplit(url)[:2] != urlsplit(self.base_url)[:2]:
                raise ReadFailed("it sends us to another server", where=self.label, why=f"redirect of {path}")
        raise ReadFailed("it redirects without end", where=self.label, why=path)

    def _send(self, method: str, url: str, params: Mapping[str, str] | None, body: Any) -> Answer:
        budget: dict[str, float | None] = {}

        def spend(*_: object) -> None:  # each step of the exchange gets what is left of the whole
            left = max((self._deadline_ns - monotonic_ns()) / NS, _LEAST_S)
            budget.update(connect=left, read=left, write=left, pool=left)

        spend()
        headers = {"Accept": "application/json", **self._headers}
        if self.auth.kind == "bearer":
            headers["Authorization"] = f"Bearer {self.auth.password}"
        if self._token is not None:
            headers["X-Auth-Token"] = self._token[0]
        extensions = {"timeout": budget, "trace": spend}
        with self._client.stream(
            method, url, params=params, json=body, headers=headers, extensions=extensions
        ) as response:
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > self._limit_b:
                    raise ReadFailed("its answer is too long", where=self.label, why=f"above {self._limit_b} bytes")
                if monotonic_ns() > self._deadline_ns:
                    raise self._timeout()
            return Answer(response.status_code, {k.lower(): v for k, v in response.headers.items()}, bytes(data))

    def _json(self, answer: Answer, path: str, also: Collection[int]) -> Any:
        if answer.status not in also:
            self._check(answer, path)
        if not answer.body and answer.status in (201, 202, 204):
            return None
        return parse_json(answer.body, self.label)

    def _check(self, answer: Answer, path: str) -> None:
        """Raise the error that a status stands for."""
        status = answer.status
        if status in (200, 201, 202, 203, 204):
            return
        if status in (401, 403):
            who = f"user {self.auth.user!r}" if self.auth.user else "us" if self.auth.kind == "none" else "the token"
            raise self._denied(f"it refuses {who}", status)
        if status in (404, 405, 410, 501):
            raise Unavailable(
                f"it has no {path}", where=self.label, why=f"HTTP {status}", next="check address and firmware"
            )
        if status in (408, 429) or status >= 500:
            raise ReadFailed("it fails to answer just now", where=self.label, why=f"HTTP {status} for {path}")
        raise ReadFailed("it does not take the request", where=self.label, why=f"HTTP {status} for {path}")

    def _denied(self, what: str, status: int) -> Denied:
        return Denied(
            what, where=self.label, why=f"HTTP {status}", next="check user, password and the rights of the account"
        )

    def _timeout(self) -> ReadFailed:
        return ReadFailed(NO_ANSWER, where=self.label, why=f"{self.timeout_s:g} s for {self.base_url}")

    def _named(self, error: Exception) -> MeterError:
        """Return our own error for one of the library's: the cause tells more than the class."""
        import httpx

        if isinstance(error, httpx.TimeoutException):
            return self._timeout()
        for cause in _causes(error):
            if isinstance(cause, TimeoutError):
                return self._timeout()
            if isinstance(cause, socket.gaierror):
                host = urlsplit(self.base_url).hostname
                return ReadFailed(
                    f"the name {host} is not known", where=self.label, why="no address for it", next="check the address"
                )
            if isinstance(cause, ConnectionRefusedError):
                return ReadFailed(
                    REFUSED,
                    where=self.label,
                    why=f"nothing listens at {self.base_url}",
                    next="check the port, and that the service is switched on",
                )
            if isinstance(cause, ssl.SSLCertVerificationError):
                return self._not_trusted(cause)
            if isinstance(cause, ssl.SSLError):
                reason = cause.reason or "the handshake failed"
                return ReadFailed("TLS fails", where=self.label, why=reason.replace("_", " ").lower())
        why = next((c.strerror for c in _causes(error) if isinstance(c, OSError) and c.strerror), None)
        return ReadFailed("the connection broke", where=self.label, why=why or type(error).__name__)

    def _not_trusted(self, error: ssl.SSLCertVerificationError) -> Denied:
        shown = getattr(error, "fingerprint", None)
        if shown is None:
            left = max((self._deadline_ns - monotonic_ns()) / NS, 0.2)
            shown = peer_fingerprint(self.base_url, left)
        why = "it is not the one that is pinned" if self._pin else (error.verify_message or "it cannot be verified")
        advice = f'if it is the right device, set fingerprint = "{shown}"' if shown else "set verify to your CA's file"
        return Denied("its TLS certificate is not trusted", where=self.label, why=why, next=advice)


def parse_json(body: bytes, label: str) -> Any:
    """Return what JSON says; numbers are finite. Raises ReadFailed."""
    try:
        return json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        start = body[:40].decode("ascii", "replace")
        raise ReadFailed("its answer is not JSON", where=label, why=f"it begins with {start!r}") from error


def plain_fingerprint(text: str, label: str) -> str:
    """Return 64 lower-case digits of a SHA-256 fingerprint in any usual spelling. Raises ConfigError."""
    plain = text.strip().lower().removeprefix("sha256:").removeprefix("sha256=").replace(":", "").replace(" ", "")
    if len(plain) != 64 or set(plain) - set("0123456789abcdef"):
        raise ConfigError(
            "fingerprint is no SHA-256", where=f"meter {label}", next="give the 64 hexadecimal digits of it"
        )
    return plain


def peer_fingerprint(base_url: str, timeout_s: float) -> str | None:
    """Return the SHA-256 of the certificate that a server shows, None where it shows none."""
    parts = urlsplit(base_url)
    place = parts.hostname or "", parts.port or 443
    try:
        with socket.create_connection(place, timeout_s) as plain:
            plain.settimeout(timeout_s)
            with _unverified().wrap_socket(plain, server_hostname=place[0]) as wrapped:
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
    """Trust one certificate, and look at it before a byte is sent."""

    pin: str

    @classmethod
    def of(cls, pin: str) -> _PinnedContext:
        context = _loose(cls(ssl.PROTOCOL_TLS_CLIENT))
        context.pin = pin
        return context

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        wrapped = super().wrap_socket(*arguments, **options)
        shown = hashlib.sha256(wrapped.getpeercert(binary_form=True) or b"").hexdigest()
        if shown != self.pin:
            wrapped.close()
            error = ssl.SSLCertVerificationError("another certificate than the pinned one")
            error.fingerprint = shown  # type: ignore[attr-defined]
            raise error
        return wrapped


def _unverified() -> ssl.SSLContext:
    return _loose(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def _loose(context: C) -> C:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found
