"""Answer scrapes over HTTP, or HTTPS where a certificate is given; a slow or hostile client holds up nobody."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, make_server

from joulelab.core.errors import ConfigError, Denied, MissingDependency, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from joulelab.agent.metrics import Metrics

# A scrape takes milliseconds; who needs longer than this to ask or to listen is cut off.
PATIENCE_S = 10.0
MOST_CLIENTS = 16
PAGE = b"""<!doctype html><html lang="en"><title>joulelab agent</title><h1>joulelab agent</h1>
<p><a href="/metrics">Metrics</a></p></html>"""


class ScrapeServer:
    """Serve /metrics from the beginning of the block to its end.

    `certificate` and `key` make it HTTPS; with `clients`, a file of authorities, only who has a certificate of one of
    them gets an answer. Raises MissingDependency, ConfigError, Denied, Unavailable.
    """

    def __init__(
        self,
        metrics: Metrics,
        host: str,
        port: int,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        clients: Path | None = None,
    ) -> None:
        app = _app(metrics)
        context = None if certificate is None else _context(certificate, key, clients)
        self._server = _made(host, port, app, context)
        self.address: tuple[str, int] = self._server.server_address[:2]
        self.scheme = "http" if context is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.5,), name="scrapes", daemon=True)

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


def _app(metrics: Metrics) -> Callable[..., Iterable[bytes]]:
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import make_wsgi_app
    except ImportError as error:
        raise MissingDependency(
            "prometheus-client is not installed", where="agent", why=str(error), next="pip install 'joulelab[agent]'"
        ) from None
    registry = CollectorRegistry()
    registry.register(metrics)
    answer = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return [b""]
        if path == "/metrics":
            found: Iterable[bytes] = answer(environ, start)
            return found
        known = path == "/"
        headers = [("Content-Type", "text/html; charset=utf-8"), ("X-Content-Type-Options", "nosniff")]
        start("200 OK" if known else "404 Not Found", headers)
        return [PAGE if known else b"<!doctype html><title>not found</title>see <a href=/metrics>/metrics</a>"]

    return app


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for each scrape."""


def _made(host: str, port: int, app: Callable[..., Iterable[bytes]], context: ssl.SSLContext | None) -> Any:
    from prometheus_client.exposition import ThreadingWSGIServer

    free = threading.BoundedSemaphore(MOST_CLIENTS)

    class Server(ThreadingWSGIServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads, block_on_close = True, False

        def get_request(self) -> Any:
            connection, address = super().get_request()
            if context is not None:  # the handshake is for the client's own thread, which has a time limit
                connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            return connection, address

        def process_request(self, request: Any, client_address: Any) -> None:
            if not free.acquire(blocking=False):
                self.shutdown_request(request)
                return
            super().process_request(request, client_address)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                free.release()

        def shutdown_request(self, request: Any) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().shutdown_request(request)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing: who hangs up, or speaks no HTTP, is no news."""

    try:
        return make_server(host, port, app, Server, handler_class=_Handler)
    except PermissionError as error:
        raise Denied(f"cannot listen on {host}:{port}", why=str(error), next="use a port above 1023") from None
    except (OSError, OverflowError) as error:
        then = "choose another address by --listen"
        raise Unavailable(f"cannot listen on {host}:{port}", why=str(error), next=then) from None


def _context(certificate: Path, key: Path | None, clients: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        why = error.strerror if isinstance(error, FileNotFoundError) else str(error)
        then = "give PEM files by --tls-cert, --tls-key and --tls-clients"
        raise ConfigError("the certificate cannot be used", where=str(certificate), why=why, next=then) from None
    return context
