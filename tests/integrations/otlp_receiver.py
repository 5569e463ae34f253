"""Receive OTLP over HTTP on loopback, and decode it by opentelemetry-proto."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def read_attributes(pairs: Any) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


class Receiver:
    """Keep what was sent: requests by path, headers; with `answers=False` requests are never answered."""

    def __init__(self, *, answers: bool = True) -> None:
        self.metrics: list[Any] = []
        self.traces: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.asked = threading.Event()
        self.over = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.headers.append(dict(self.headers))
                receiver.asked.set()
                if not answers:
                    receiver.over.wait(600)
                    return
                if self.path == "/v1/metrics":
                    receiver.metrics.append(ExportMetricsServiceRequest.FromString(body))
                else:
                    receiver.traces.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def list_points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """Return the points of a metric in the order in which they came, with their attributes."""
        found = []
        for request in list(self.metrics):
            for resource in request.resource_metrics:
                for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                    if metric.name == name:
                        kind = getattr(metric, metric.WhichOneof("data"))
                        found += [(read_attributes(point.attributes), point) for point in kind.data_points]
        return found

    def list_spans(self) -> dict[str, Any]:
        spans = [s for r in self.traces for rs in r.resource_spans for ss in rs.scope_spans for s in ss.spans]
        return {span.name: span for span in spans}
