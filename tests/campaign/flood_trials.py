"""Flood capd, the dashboard and the agent while somebody else uses them, and see how long that one waits."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import pytest
from tests.campaign import square_meter
from tests.cli.entry import JOULELAB
from tests.control.flood import KINDS, FloodKind, flood_daemon

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from tests.campaign.campaign_counts import CampaignCounts

PROBES = 5  # questions in one flood of the dashboard or the agent
LONGEST_S = 60.0  # that a question may take before it is a broken promise
CAPD_S = 3.0  # of one flood of capd
HEADS = {"half open": b"GET / HT", "no request": b"", "slow head": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "}


class FloodTrials:
    """Serve capd, dashboard and agent for one turn, and flood them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        with self._stack as stack:
            (self._folder / "runs").mkdir()
            wanted = ["--meter", square_meter.__file__, "--no-jobs", "--listen", "127.0.0.1:0"]
            self._addresses = {
                "dashboard": (stack.enter_context(serve("dashboard", str(self._folder / "runs"), "--port", "0")), "/"),
                "agent": (stack.enter_context(serve("agent", *wanted)), "/metrics"),
            }
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run_trial(self, draw: random.Random, counts: CampaignCounts) -> None:
        """Flood one of the three in one way."""
        self._count += 1
        target = draw.choice(["dashboard", "agent", *(["capd"] * 2 if os.getuid() == 0 else [])])
        if target == "capd":
            self._flood_capd(draw.choice([kind for kind in KINDS if kind != "none"]), counts)
        else:
            self._flood_http(target, draw.choice(list(HEADS)), draw.choice((100, 420)), counts)

    def _flood_capd(self, kind: FloodKind, counts: CampaignCounts) -> None:
        folder = self._folder / f"capd{self._count}"
        folder.mkdir()
        result = flood_daemon(kind, folder, CAPD_S)
        counts.waits_s += result.waits_s
        counts.idle_waits_s += result.idle_waits_s
        counts.problems += [f"capd, {kind}: {failure}" for failure in result.failures]
        if result.is_late:
            other_s = max(result.idle_waits_s)
            figures = f"{result.longest_s:.2f} s for an answer, {other_s:.2f} s for a server that does nothing"
            counts.problems.append(f"capd, {kind}: a listed user waited {figures}")

    def _flood_http(self, target: str, way: str, count: int, counts: CampaignCounts) -> None:
        url, page = self._addresses[target]
        parts = urlsplit(url)
        place = parts.hostname or "", parts.port or 80
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                with contextlib.suppress(OSError):
                    sock = stack.enter_context(socket.create_connection(place, 1.0))
                    sock.sendall(HEADS[way])
            for _ in range(PROBES):
                begun = time.monotonic()
                status = read_page(place, page)
                counts.answers_s.append(time.monotonic() - begun)
                if status != 200:
                    counts.problems.append(f"{target}, {way}, {count} connections: HTTP {status}")
                    return


def read_page(place: tuple[str, int], page: str) -> int:
    """Return the status of an answer, 0 if there is none in time."""
    connection = http.client.HTTPConnection(*place, timeout=LONGEST_S)
    try:
        connection.request("GET", page)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError:
        return 0
    finally:
        connection.close()


@contextlib.contextmanager
def serve(*words: str) -> Iterator[str]:
    """Run a command of joulelab that serves, and return its address; it ends with the block."""
    process = subprocess.Popen(
        [*JOULELAB, *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            pytest.skip(f"joulelab {words[0]} does not start")
        told = json.loads(line)
        yield str(told["url"])
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
