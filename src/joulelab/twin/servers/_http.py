"""Serve HTTP/1.1 on loopback with the flaws of an instrument: late, silent, garbled. For Redfish and plugs."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from joulelab.twin.readings import Panel

# Answers of a faulty firmware.
GARBLED = (b'{"Reading": 12', b"<html><body>503</body></html>", b"\x00\xff\x10", b'{"Reading": NaN}', b"[]", b"")
SILENCE_S = 20.0
HANDSHAKE_S = 5.0


class FlawedHandler(BaseHTTPRequestHandler):
    """Answer requests by `make_response`, with the flaws of the panel."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet, or the client's delayed acknowledgement costs 40 ms
    disable_nagle_algorithm = True
    panel: Panel
    ended: threading.Event

    def make_response(self, method: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        """Return status, JSON and headers."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self._answer_request("GET")

    def do_POST(self) -> None:
        self._answer_request("POST")

    def do_DELETE(self) -> None:
        self._answer_request("DELETE")

    def _answer_request(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        now = monotonic_ns()
        if self.panel.is_silent(now):
            self.ended.wait(SILENCE_S)
            self.close_connection = True
            return
        if self.panel.flaws.latency_s:
            self.ended.wait(self.panel.flaws.latency_s)
        status, answer, headers = self.make_response(method, body)
        data = b"" if answer is None else json.dumps(answer).encode()
        if self.panel.is_garbled(now):
            data = GARBLED[now % len(GARBLED)]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: standard error belongs to the test or the twin."""


class _FlawedServer(ThreadingHTTPServer):
    daemon_threads = True
    context: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Begin TLS in the connection's own thread, so that a hanging client delays no other."""
        if self.context is None:
            socketserver.BaseServer.finish_request(self, request, client_address)
            return
        request.settimeout(HANDSHAKE_S)
        with self.context.wrap_socket(request, server_side=True) as wrapped:
            wrapped.settimeout(None)
            socketserver.BaseServer.finish_request(self, wrapped, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects or does not trust the certificate."""


@contextlib.contextmanager
def serve_handler(handler: type[FlawedHandler], port: int, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve in a thread until the block ends; yield the port."""
    handler.ended = threading.Event()
    server = _FlawedServer(("127.0.0.1", port), handler)
    server.context = context
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        handler.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
