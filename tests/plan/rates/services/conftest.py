"""Start a server on loopback that speaks as a test tells it to, and ask it as a user's configuration would."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import pytest

from joulelab.plan.rates.services import fetch

NOW_S = 1_794_859_200.0 + 12 * 3600  # 2026-11-16 08:00 UTC and half a day: 20:00
SECRET = "s3cr3t-of-the-test"


class Request:
    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        self.path = parts.path
        self.query = dict(parse_qsl(parts.query))
        self.headers = {key.lower(): value for key, value in handler.headers.items()}


class Service:
    """Hold what a server answers: `answer(request)` gives a plain value, or (status, headers, bytes)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: list[Request] = []
        self.slept: list[float] = []
        self.warned: list[str] = []
        self.answer = lambda request: {}

    def fetch(self, service, *words, environ=None, now=lambda: NOW_S, **options):
        given = {"JOULELAB_RATES": str(self.file)} | (environ or {})
        options.setdefault("folder", self.folder)
        return fetch(
            service, *words, environ=given, now=now, sleep=self.slept.append, warn=self.warned.append, **options
        )


@pytest.fixture
def service(tmp_path):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            request = Request(self)
            mine.seen.append(request)
            answer = mine.answer(request)
            status, headers, body = answer if isinstance(answer, tuple) else (200, {}, answer)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.close_connection |= "Content-Length" in headers  # what is promised too long is never sent

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        mine = Service(f"http://127.0.0.1:{running.server_address[1]}")
        mine.folder = tmp_path / "kept"
        mine.file = tmp_path / "rates.toml"
        (tmp_path / "key").write_text(SECRET + "\n")
        (tmp_path / "key").chmod(0o600)
        key = '{ file = "key" }'
        mine.file.write_text(f'[em]\naddress = "{mine.url}"\ntoken = {key}\n')
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield mine
        running.shutdown()
        thread.join()
