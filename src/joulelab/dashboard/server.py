"""Serve the dashboard: sockets, TLS, and clients that are slow on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from joulelab.core.errors import ConfigError
from joulelab.dashboard.app import make_app
from joulelab.dashboard.index import Index
from joulelab.run.config.configuration import load_site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from joulelab.dashboard.security import Doors

HEADER_S = 10.0  # a client has so long for the head of its request, and for the body of a login
KEEP_S = 15  # an idle connection is kept so long
MOST_AT_ONCE = 400
MOST_HEAD = 16_384  # bytes
LAST_S = 3  # answers that are being sent may take so long when the server ends


class PatientProtocol(H11Protocol):
    """Close connections whose request takes too long, so that slow clients cannot block the server."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._limit = self.loop.call_later(HEADER_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Take received bytes; the first byte after a pause begins a new request."""
        if self._limit is None:
            self._limit = self.loop.call_later(HEADER_S, self._too_slow)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.more_body:
            self._clear()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._clear()
        super().connection_lost(exc)

    def _clear(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _too_slow(self) -> None:
        self._limit = None
        self.transport.abort()


class EndingServer(uvicorn.Server):
    """End without an error after a signal: uvicorn's own server would die of it once everything is closed."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 uvicorn's signature
        """Obey a signal; a second one does not wait for answers that are being sent."""
        self.force_exit = self.should_exit
        self.should_exit = True


@dataclass(frozen=True)
class Served:
    """Hold the address of the dashboard, and the server that ends it."""

    url: str
    server: uvicorn.Server

    def stop(self) -> None:
        """End it."""
        self.server.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ConfigError where that address is taken or not ours."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(
            "there is no such address here", where=host, why=error.strerror, next="give another --host"
        ) from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(512)
    except OSError as error:
        listening.close()
        where, then = f"{host}:{port}", "--port 0 takes a free one"
        raise ConfigError("the address cannot be used", where=where, why=error.strerror, next=then) from None
    return listening


def prepare(listening: socket.socket, index: Index, doors: Doors, tls: tuple[Path, Path] | None) -> Served:
    """Return a server that is ready to run on a socket. Raises ConfigError for a certificate that cannot be used."""
    options: dict[str, Any] = {}
    if tls is not None:
        _check_tls(*tls)
        options = {"ssl_certfile": str(tls[0]), "ssl_keyfile": str(tls[1]), "ssl_context_factory": _context}
    config = uvicorn.Config(
        make_app(index, doors),
        http=PatientProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=MOST_AT_ONCE,
        timeout_keep_alive=KEEP_S,
        timeout_graceful_shutdown=LAST_S,
        h11_max_incomplete_event_size=MOST_HEAD,
        **options,
    )
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return Served(f"{'https' if tls else 'http'}://{shown}:{port}/", EndingServer(config))


def _context(config: Any, make: Any) -> ssl.SSLContext:  # noqa: ARG001 uvicorn's signature
    context: ssl.SSLContext = make()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _check_tls(cert: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "strerror", None) or getattr(error, "reason", None)
        raise ConfigError(
            "the certificate cannot be used", where=f"{cert}, {key}", why=why, next="give another --tls-cert"
        ) from None


def run(listening: socket.socket, served: Served) -> None:
    """Serve until a signal, which ends it without an error."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(served.server.serve(sockets=[listening]))


@contextlib.contextmanager
def in_background(
    runs: Path, studies: Path | None, doors: Doors, tls: tuple[Path, Path] | None = None
) -> Iterator[tuple[Served, Index]]:
    """Serve from a thread, on a free port: for notebooks, tests and benchmarks."""
    listening = bound(doors.host, 0)
    with Index(runs, studies, site=load_site(os.environ).site) as index:
        served = prepare(listening, index, doors, tls)
        thread = threading.Thread(target=run, args=(listening, served), name="joulelab-serve", daemon=True)
        thread.start()
        try:
            yield served, index
        finally:
            served.stop()
            thread.join(timeout=LAST_S + 2)
            listening.close()
