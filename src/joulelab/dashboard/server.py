"""Serve the dashboard: sockets, TLS, and clients that are slow on purpose or too many."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from joulelab.core.errors import ConfigError
from joulelab.core.http_guard import ConnectionTable, name_peer
from joulelab.dashboard.app import make_app
from joulelab.dashboard.index import Index
from joulelab.run.config.configuration import load_site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

    from joulelab.dashboard.security import Doors

HEADER_S = 10.0  # for the handshake of a client, for the head of its request, and for the body of a login
READ_S = 30.0  # for the next part of an answer (48 kB) to be read
KEEP_S = 15  # an idle connection is kept so long
MOST_CONNECTIONS, MOST_WAITING = 400, 64  # in all, and of one peer while they wait for it; a browser has 6
QUEUE = 512  # connections that the kernel keeps until they are taken
# Taken at a time. Requests are read in between: of a flood, those that have sent one are answered before they are among
# the oldest that wait.
TAKEN_AT_ONCE = 16
MOST_HEAD = 16_384  # bytes
LAST_S = 3  # answers that are being sent may take so long when the server ends


class PatientProtocol(H11Protocol):
    """Serve one connection. Close it if its client is too slow, or if it waits while its peer has too many.

    With `tls`, the handshake counts like a request: it begins here, and not before the connection is known.
    """

    def __init__(
        self, *, table: ConnectionTable[PatientProtocol], tls: ssl.SSLContext | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._table, self._tls = table, tls
        self._socket: asyncio.Transport | None = None  # what `transport` encrypts
        self._is_open = False  # requests are read
        self._early = b""
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection; begin to wait for a handshake or a request."""
        self._socket = transport
        address = transport.get_extra_info("peername")
        left_out = self._table.add(self, name_peer(str(address[0])) if address else "?")
        if left_out is not None:
            left_out.abort()
        if left_out is self:
            return
        if self._tls is None:
            self._begin(transport)
        else:
            handshake = self.loop.create_task(self._shake_hands(transport, self._tls))
            handshake.add_done_callback(self.tasks.discard)
            self.tasks.add(handshake)

    async def _shake_hands(self, plain: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(plain, self, tls, server_side=True, ssl_handshake_timeout=HEADER_S)
        except OSError:  # errors of TLS are such, too
            secured = None
        if secured is None or plain.is_closing():
            plain.abort()
            self._table.remove(self)
        else:
            self._begin(secured)

    def _begin(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._is_open = True
        self._start_limit(HEADER_S)
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        """Take received bytes; the first byte after a pause begins a new request."""
        if not self._is_open:  # bytes of a request that came with the end of the handshake
            self._early += data
            return
        self._start_limit(HEADER_S)
        super().data_received(data)
        self._note_work()

    def _note_work(self) -> None:
        """End the limit if the request is complete and the client reads: then the server has to do something."""
        cycle = self.cycle
        if cycle is not None and not (cycle.more_body or cycle.response_complete or self.flow.write_paused):
            self._end_limit()
            self._table.begin_work(self)

    def on_response_complete(self) -> None:
        """Wait for the next request, which may have come already."""
        self._table.begin_waiting(self)
        super().on_response_complete()
        self._note_work()

    def pause_writing(self) -> None:
        """Wait for a client that does not read."""
        super().pause_writing()
        self._table.begin_waiting(self)
        self._start_limit(READ_S)

    def resume_writing(self) -> None:
        """Go on to write."""
        super().resume_writing()
        self._end_limit()
        self._note_work()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if its client does not read the end of the last answer."""
        super().timeout_keep_alive_handler()
        self._start_limit(READ_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_limit()
        self._table.remove(self)
        if self._is_open:
            super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once."""
        self._end_limit()
        if self._socket is not None:
            self._socket.abort()

    def _start_limit(self, seconds: float) -> None:
        if self._limit is None:
            self._limit = self.loop.call_later(seconds, self.abort)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


class EndingServer(uvicorn.Server):
    """End without an error after a signal: uvicorn's own server would die of it once everything is closed."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUE)  # asyncio has made it as short as the number that it takes at a time

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
        listening.listen(QUEUE)
    except OSError as error:
        listening.close()
        where, then = f"{host}:{port}", "--port 0 takes a free one"
        raise ConfigError("the address cannot be used", where=where, why=error.strerror, next=then) from None
    return listening


def prepare(listening: socket.socket, index: Index, doors: Doors, tls: tuple[Path, Path] | None) -> Served:
    """Return a server that is ready to run on a socket. Raises ConfigError for a certificate that cannot be used."""
    table: ConnectionTable[PatientProtocol] = ConnectionTable(MOST_CONNECTIONS, MOST_WAITING)
    protocol = partial(PatientProtocol, table=table, tls=None if tls is None else load_tls(*tls))
    config = uvicorn.Config(
        make_app(index, doors),
        http=protocol,  # type: ignore[arg-type]  # it is only called
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=TAKEN_AT_ONCE,
        timeout_keep_alive=KEEP_S,
        timeout_graceful_shutdown=LAST_S,
        h11_max_incomplete_event_size=MOST_HEAD,
    )
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return Served(f"{'https' if tls else 'http'}://{shown}:{port}/", EndingServer(config))


def load_tls(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the settings of a server with a certificate, from TLS 1.2 on. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password="")  # not asked for: nobody may be there to answer
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "strerror", None) or getattr(error, "reason", None)
        raise ConfigError(
            "the certificate cannot be used", where=f"{cert}, {key}", why=why, next="give another --tls-cert"
        ) from None
    return context


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
