"""Answer scrapes over HTTP, or HTTPS where a certificate is given; a slow or hostile client holds up nobody."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from joulelab.core.errors import ConfigError, Denied, MissingDependency, Unavailable
from joulelab.core.http_guard import ConnectionTable, HostNames, name_peer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from joulelab.agent.metrics import Metrics

# A scrape takes milliseconds; a client that needs longer than this from its connection to the end is cut off.
PATIENCE_S = 10.0
LOOK_S = 0.5  # time between looks for such clients
MOST_CLIENTS, MOST_WAITING = 64, 32  # in all, and of one peer before its request is complete
QUEUE = 128  # connections that the kernel keeps until they are taken
PAGE = b"""<!doctype html><html lang="en"><title>joulelab agent</title><h1>joulelab agent</h1>
<p><a href="/metrics">Metrics</a></p></html>"""


class ScrapeServer:
    """Serve /metrics from the beginning of the block to its end.

    `names` are host names of this machine besides its own: requests for other names are refused, because a web page
    may let its own name point here. `certificate` and `key` make it HTTPS; with `clients`, a file of authorities, only
    who has a certificate of one of them gets an answer. Raises MissingDependency, ConfigError, Denied, Unavailable.
    """

    def __init__(
        self,
        metrics: Metrics,
        host: str,
        port: int,
        *,
        names: Iterable[str] = (),
        certificate: Path | None = None,
        key: Path | None = None,
        clients: Path | None = None,
    ) -> None:
        app = _make_app(metrics, HostNames(host, names))
        context = None if certificate is None else _load_tls(certificate, key, clients)
        self._server = _make_server(host, port, app, context)
        self.address: tuple[str, int] = self._server.server_address[:2]
        self.scheme = "http" if context is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(LOOK_S,), name="scrapes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(2)
        self.close()

    def close(self) -> None:
        """Let go of the port; closing twice is harmless."""
        self._server.server_close()


def _make_app(metrics: Metrics, names: HostNames) -> Callable[..., Iterable[bytes]]:
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import make_wsgi_app
    except ImportError as error:
        raise MissingDependency(
            "prometheus-client is not installed", where="agent", why=str(error), next="pip install 'joulelab[agent]'"
        ) from None
    registry = CollectorRegistry()
    registry.register(metrics)
    answer_scrape = make_wsgi_app(registry)
    plain = [("Content-Type", "text/plain; charset=utf-8"), ("X-Content-Type-Options", "nosniff")]
    html = [("Content-Type", "text/html; charset=utf-8"), ("X-Content-Type-Options", "nosniff")]

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if not names.is_called(environ.get("HTTP_HOST", "")):  # two of them are one with a comma, which is no name
            start("421 Misdirected Request", plain)
            return [b"this server does not go by that name; see joulelab agent --help, --name\n"]
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return [b""]
        if path == "/metrics":
            found: Iterable[bytes] = answer_scrape(environ, start)
            return found
        known = path == "/"
        start("200 OK" if known else "404 Not Found", html)
        return [PAGE if known else b"<!doctype html><title>not found</title>see <a href=/metrics>/metrics</a>"]

    return answer


class ScrapeHandler(WSGIRequestHandler):
    """Read one request and answer it."""

    timeout = PATIENCE_S
    server: GuardedServer

    def parse_request(self) -> bool:
        """Read the head; then the request is complete, because scrapes have no body."""
        is_valid = super().parse_request()
        self.server.table.begin_work(self.connection)
        return is_valid

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for each scrape."""


class GuardedServer(ThreadingMixIn, WSGIServer):
    """Answer each client in a thread of its own; cut off clients that are slow, or more than their peer may have."""

    daemon_threads, block_on_close = True, False

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.table: ConnectionTable[socket.socket] = ConnectionTable(MOST_CLIENTS, MOST_WAITING)
        self._context = context
        self._ends_s: dict[socket.socket, float] = {}  # when a connection is cut off
        super().__init__((host, port), ScrapeHandler)
        self.socket.listen(QUEUE)

    def get_request(self) -> Any:
        """Take a connection."""
        connection, address = super().get_request()
        if self._context is not None:  # the handshake is for the client's own thread, which has a time limit
            connection = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Count a connection, and answer it in a thread."""
        self._ends_s[request] = time.monotonic() + PATIENCE_S
        left_out = self.table.add(request, name_peer(str(client_address[0])))
        if left_out is request:
            self.shutdown_request(request)
            return
        if left_out is not None:
            _cut_off(left_out)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Cut off clients that are too slow: a time limit for each byte alone would let them go on for ever."""
        now = time.monotonic()
        for connection, until in list(self._ends_s.items()):
            if now >= until:
                _cut_off(connection)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection and forget it."""
        self._ends_s.pop(request, None)
        self.table.remove(request)
        with contextlib.suppress(OSError, ValueError):
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: who hangs up, or speaks no HTTP, is no news."""


def _make_server(host: str, port: int, app: Callable[..., Iterable[bytes]], context: ssl.SSLContext | None) -> Any:
    try:
        server = GuardedServer(host, port, context)
    except PermissionError as error:
        raise Denied(f"cannot listen on {host}:{port}", why=str(error), next="use a port above 1023") from None
    except (OSError, OverflowError) as error:
        then = "choose another address by --listen"
        raise Unavailable(f"cannot listen on {host}:{port}", why=str(error), next=then) from None
    server.set_app(app)
    return server


def _cut_off(connection: socket.socket) -> None:
    """End a connection of another thread, whose call returns: the socket itself, whatever TLS is doing on it."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _load_tls(certificate: Path, key: Path | None, clients: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password="")  # not asked for: nobody may be there to answer
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        why = error.strerror if isinstance(error, FileNotFoundError) else str(error)
        then = "give PEM files by --tls-cert, --tls-key and --tls-clients"
        raise ConfigError("the certificate cannot be used", where=str(certificate), why=why, next=then) from None
    return context
