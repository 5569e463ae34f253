"""Flood the dashboard and the agent with clients that are slow on purpose, and time a client that behaves.

`python -m tests.dashboard.http_flood --seconds 5` prints a table; tests and the campaign import the functions.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import socket
import ssl
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD = b"GET %s HTTP/1.1\r\nHost: localhost\r\n"
# What the clients of a flood send before they say nothing more; the last ones never read.
KINDS = {
    "silent": b"",
    "half a head": HEAD % b"/",
    "half a form": b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\ntoken=",
    "second head": HEAD % b"/login" + b"\r\n" + HEAD % b"/",
    "unread": (HEAD % b"/static/profile.js" + b"\r\n") * 4,
}


@dataclass
class FloodCount:
    """Count the connections of a flood, and the answers to a client that behaves: waits in s, and failures."""

    connections: int = 0
    waits_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def longest_s(self) -> float:
        """Return the longest wait in s."""
        return max(self.waits_s, default=0.0)


def open_clients(url: str, kind: str, count: int) -> contextlib.ExitStack:
    """Open connections that send the beginning of a request; close the stack to end them."""
    parts = urlsplit(url)
    stack = contextlib.ExitStack()
    for _ in range(count):
        opened = stack.enter_context(socket.socket())
        opened.settimeout(120)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # else the kernel takes whole answers
        opened.connect((parts.hostname or "", parts.port or 0))
        with contextlib.suppress(OSError):  # cut off already
            opened.sendall(KINDS[kind])
    return stack


def ask(url: str, path: str, within_s: float = 120.0) -> int:
    """Return the status of an answer. Raises OSError."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=within_s, context=context)
    else:
        client = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=within_s)
    with contextlib.closing(client):
        client.request("GET", path, headers={"Host": "localhost"})
        answer = client.getresponse()
        answer.read()
        return answer.status


def flood_server(url: str, path: str, kind: str, seconds: float, at_once: int = 420) -> FloodCount:
    """Open connections again and again for a time, `at_once` of them; ask for a page every 50 ms meanwhile."""
    found, ended = FloodCount(), threading.Event()

    def open_connections() -> None:
        kept: list[contextlib.ExitStack] = []
        while not ended.is_set():
            try:
                kept.append(open_clients(url, kind, 10))
                found.connections += 10
            except OSError:  # the server takes no more at the moment
                ended.wait(0.01)
            if len(kept) > at_once // 10:
                kept.pop(0).close()
        for stack in kept:
            stack.close()

    thread = threading.Thread(target=open_connections, name="flood")
    thread.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until or not found.waits_s:
        began = time.monotonic()
        try:
            status = ask(url, path)
        except (OSError, http.client.HTTPException) as error:
            found.failures.append(f"{type(error).__name__}: {error}")
        else:
            if status != 200:
                found.failures.append(f"HTTP {status}")
        found.waits_s.append(time.monotonic() - began)
        ended.wait(0.05)
    ended.set()
    thread.join()
    return found


@contextlib.contextmanager
def serve_dashboard(folder: Path) -> Iterator[str]:
    """Serve an empty store with a token, as on a login node; give its address."""
    from joulelab.dashboard.security import Doors
    from joulelab.dashboard.server import in_background

    with in_background(folder, None, Doors(token="a-token-for-the-flood")) as (server, _):
        yield server.url


@contextlib.contextmanager
def serve_agent() -> Iterator[str]:
    """Serve the metrics of no meters; give the address."""
    import os

    from joulelab.agent.collect import Collector
    from joulelab.agent.metrics import Metrics
    from joulelab.agent.scrape_server import ScrapeServer
    from joulelab.recorder.plan import Plan

    plan = Plan(Path(), "flooded", os.getpid(), meters=(), also=())
    with Collector(plan) as collector, ScrapeServer(Metrics(collector, {}), "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.address[1]}"


def flood_dashboard(kind: str, folder: Path, seconds: float = 5.0) -> FloodCount:
    """Flood a dashboard of its own, over an empty folder, with one of KINDS."""
    with serve_dashboard(folder) as url:
        return flood_server(url, "/login", kind, seconds)


def flood_agent(kind: str, seconds: float = 5.0) -> FloodCount:
    """Flood an agent of its own with one of KINDS."""
    with serve_agent() as url:
        return flood_server(url, "/metrics", kind, seconds)


def main() -> None:
    """Flood both with every kind and print what a client that behaves saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each flood")
    seconds = parser.parse_args().seconds
    print(f"{'server':10} {'clients':12} {'connections':>11} {'answers':>8} {'failures':>8} {'longest wait, s':>15}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for name, found in (
                ("dashboard", flood_dashboard(kind, Path(folder), seconds)),
                ("agent", flood_agent(kind, seconds)),
            ):
                counts = f"{found.connections:11} {len(found.waits_s):8} {len(found.failures):8}"
                print(f"{name:10} {kind:12} {counts} {found.longest_s:15.3f}", *found.failures[:1])


if __name__ == "__main__":
    main()
