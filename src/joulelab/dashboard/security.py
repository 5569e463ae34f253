"""Decide which requests are answered: Host headers, tokens, sessions, and the headers that restrict browsers."""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from joulelab.core.errors import ConfigError
from joulelab.core.http_guard import HostNames, name_peer
from joulelab.core.text import is_loopback
from joulelab.store.safe_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping
    from pathlib import Path
    from typing import Any

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "joulelab"
SESSION_S = 12 * 3600
LEAST_LETTERS = 16  # of a token that somebody chose
MOST_WRONG, WRONG_S, MOST_PEERS = 10, 60.0, 4096
MOST_BODY = 4096
MOST_QUERY = 8192
FREE = ("/login", "/static/")  # what anybody may see
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(24)


def check_token(token: str, where: str) -> str:
    """Return a token that somebody chose. Raises ConfigError for one that could be guessed or cannot be sent."""
    text = token.strip()
    if len(text) < LEAST_LETTERS or not text.isascii() or not text.isprintable() or " " in text:
        then = f"give at least {LEAST_LETTERS} letters and digits, without spaces; `--token` alone generates one"
        raise ConfigError("the token cannot be used", where=where, next=then)
    return text


def read_token(file: Path) -> str:
    """Return the token of a file. Raises ConfigError, also where others may read the file."""
    try:
        text, mode = read_regular(file).decode("ascii"), file.stat().st_mode
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        then = f"make one: (umask 077; openssl rand -hex 24 > {file})"
        raise ConfigError("the token cannot be read", where=str(file), why=why, next=then) from None
    if mode & 0o077:
        raise ConfigError("others may read the token", where=str(file), next=f"chmod 600 {file}")
    return check_token(text, str(file))


@dataclass
class Doors:
    """Hold the names of this server and its token (None: none is needed)."""

    host: str = "127.0.0.1"
    token: str | None = None
    names: tuple[str, ...] = ()
    secure: bool = False
    now: Callable[[], float] = time.monotonic
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _wrong: OrderedDict[str, list[float]] = field(default_factory=OrderedDict, repr=False)

    def __post_init__(self) -> None:
        """Refuse to be open to others without a token."""
        if not is_loopback(self.host) and self.token is None:
            raise ConfigError("other machines may connect only with a token", where=self.host, next="add --token")
        self.host_names = HostNames(self.host, self.names)

    def is_token(self, given: str) -> bool:
        """Return whether this is the token, in constant time."""
        return self.token is not None and hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def session(self) -> str:
        """Return a session that replaces the token for 12 hours, or until this process ends."""
        until = f"{int(self.now()) + SESSION_S}"
        return f"{until}.{self._signed(until)}"

    def is_session(self, given: str) -> bool:
        """Return whether that is a session of ours that still holds."""
        until, _, signature = given.partition(".")
        if not hmac.compare_digest(signature.encode(errors="replace"), self._signed(until).encode()):
            return False
        return until.isdecimal() and self.now() < int(until)

    def _signed(self, text: str) -> str:
        return hmac.new(self._key, text.encode(errors="replace"), "sha256").hexdigest()

    def note_wrong_token(self, address: str) -> bool:
        """Note that a client showed a wrong token; return whether its peer was wrong too often within a minute.

        Ask this only after `is_token`: whoever has the token is let in, even if others behind the same address guess.
        """
        peer = name_peer(address)
        recent = [t for t in self._wrong.pop(peer, []) if self.now() - t < WRONG_S]
        self._wrong[peer] = [*recent[-MOST_WRONG:], self.now()]
        while len(self._wrong) > MOST_PEERS:
            self._wrong.popitem(last=False)
        return len(recent) >= MOST_WRONG


class Guard:
    """Stand before an app: refuse requests that are not allowed, and add headers to every answer."""

    def __init__(self, app: App, doors: Doors) -> None:
        self._app = app
        self._doors = doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kept = "public" if scope["path"].startswith("/static/") else "private"

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _with_headers(message["headers"], kept)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(sending, scope, *refusal)
        else:
            await self._app(scope, receive, sending)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the answer that refuses a request, None if it may pass."""
        headers = scope["headers"]
        hosts = [value for key, value in headers if key == b"host"]
        if len(hosts) != 1 or not self._doors.host_names.is_called(hosts[0].decode("latin-1")):
            return 421, "this server does not go by that name; see joulelab dashboard --help, --name"
        if scope["method"] not in ("GET", "HEAD") and (scope["method"], scope["path"]) not in POSTS:
            return 405, "only GET and HEAD: nothing can be changed here"
        if len(scope["query_string"]) > MOST_QUERY:
            return 414, "the address is too long"
        fetched = {key: value for key, value in headers if key.startswith(b"sec-fetch-")}
        if fetched.get(b"sec-fetch-site") == b"cross-site" and fetched.get(b"sec-fetch-mode") != b"navigate":
            return 403, "not for pages of other sites"
        if self._doors.token is None or scope["path"].startswith(FREE):
            return None
        return self._identify(scope)

    def _identify(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        kind, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if kind.lower() == "bearer":
            if self._doors.is_token(given.strip()):
                return None
            is_guessing = self._doors.note_wrong_token(client_of(scope))
            return (429, "too many wrong tokens; wait a minute") if is_guessing else (401, "that is not the token")
        if self._doors.is_session(cookie_of(scope)):
            return None
        wants_page = not scope["path"].startswith("/api/") and scope["method"] == "GET"
        return (303, "/login") if wants_page else (401, "a token is needed: Authorization: Bearer TOKEN")


POSTS = (("POST", "/login"), ("POST", "/logout"))


def client_of(scope: Scope) -> str:
    """Return the address that a request comes from."""
    return str((scope.get("client") or ("?",))[0])


def cookie_of(scope: Scope) -> str:
    """Return the session that a request shows, empty for none."""
    for key, value in scope["headers"]:
        if key == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                name, _, text = pair.strip().partition("=")
                if name == COOKIE:
                    return str(text)
    return ""


async def form_token(receive: Receive) -> str | None:
    """Return the token that a form sends; None where it sends more than a form would."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > MOST_BODY:
            return None
        more = message.get("more_body", False)
    try:
        return parse_qs(body.decode(), max_num_fields=4).get("token", [""])[0].strip()
    except ValueError:
        return ""


def _with_headers(headers: Iterable[tuple[bytes, bytes]], kept: str) -> list[tuple[bytes, bytes]]:
    found = list(headers)
    there = {key.lower() for key, _ in found}
    added = HEADERS if kept == "public" else {**HEADERS, "cache-control": "private, no-cache", "vary": "cookie"}
    return found + [(k.encode(), v.encode()) for k, v in added.items() if k.encode() not in there]


async def _answer(send: Send, scope: Scope, status: int, text: str) -> None:
    in_json = scope["path"].startswith("/api/")
    headers = [(b"content-type", b"application/json" if in_json else b"text/plain; charset=utf-8")]
    body = b""
    if status == 303:
        headers.append((b"location", text.encode()))
    else:
        body = json.dumps({"error": text}).encode() if in_json else f"{text}\n".encode()
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="joulelab"'))
    if status == 429:
        headers.append((b"retry-after", b"60"))
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
