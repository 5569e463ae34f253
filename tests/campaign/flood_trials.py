"""Flood capd, the dashboard and the agent while somebody else uses them, and see how long that one waits."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import pytest
from tests.campaign import square_meter
from tests.cli.entry import JOULELAB
from tests.control.daemon import Capd
from tests.control.fake import for_everybody, world
from tests.waiting import until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from tests.campaign.campaign_counts import CampaignCounts

FLOODER, LISTED, UNLISTED = 54321, 54322, 54323  # users by number; the first two may set caps
CONFIG = f'[[allow]]\nusers = [{FLOODER}, {LISTED}]\ndevices = ["gpu:*"]\n'
PROBES = 5  # questions in one flood
LONGEST_S = 60.0  # that a question may take before it is a broken promise
# Flood a Unix socket as somebody else until the input ends. Ways: hold connections, ask and never read, come and go.
FLOOD = """
import os, select, socket, sys
path, uid, way, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
held, ask = [], b'{"id": 1, "do": "status"}\\n' * 200
def connect():
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        sock.connect(path)
        if way == "never read":
            sock.send(ask)
    except OSError:
        sock.close()
        return
    held.append(sock)
print("ready", flush=True)
while not select.select([0], [], [], 0.0 if way == "come and go" else 0.01)[0]:
    for _ in range(50):
        if len(held) < count:
            connect()
    if way == "come and go" or len(held) >= count:
        for sock in held[: 50 if way == "come and go" else 5]:
            sock.close()
        del held[: 50 if way == "come and go" else 5]
"""
# Ask capd as a listed user, as joulelab does; print how long each answer took.
PROBE = """
import os, sys, time
from joulelab.control.client import Caps, CapRequest
import joulelab.control.link, joulelab.control.protocol, joulelab.core.errors
uid, count = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
for _ in range(count):
    begun = time.monotonic()
    with Caps(os.environ, who={"command": "probe"}) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        print(time.monotonic() - begun, flush=True)
"""


class FloodTrials:
    """Serve capd, dashboard and agent for one turn, and flood them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            self._capd = None
            if os.getuid() == 0:  # to be several users
                for_everybody(self._folder)
                environ, self._devices = world(self._folder)
                self._capd = Capd(environ, self._folder, CONFIG)
                stack.callback(self._capd.close)
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
        targets = ["dashboard", "agent", *(["capd"] * 2 if self._capd else [])]
        target = draw.choice(targets)
        if target == "capd":
            way, count = draw.choice(("hold", "never read", "come and go")), draw.choice((200, 600, 1500))
            self._flood_capd(way, count, draw.choice((FLOODER, UNLISTED)), counts)
        else:
            self._flood_http(
                target, draw.choice(("half open", "no request", "slow head")), draw.choice((100, 420)), counts
            )

    def _flood_capd(self, way: str, count: int, user: int, counts: CampaignCounts) -> None:
        assert self._capd is not None
        words = [str(self._capd.path), str(user), way, str(count)]
        flood = subprocess.Popen(
            [sys.executable, "-c", FLOOD, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert flood.stdin is not None
        assert flood.stdout is not None
        try:
            assert flood.stdout.readline() == "ready\n"
            time.sleep(0.5)
            done = subprocess.run(
                [sys.executable, "-c", PROBE, str(LISTED), str(PROBES)],
                env=self._capd.environ,
                capture_output=True,
                text=True,
                timeout=PROBES * LONGEST_S,
            )
        finally:
            flood.stdin.close()
            flood.kill()
            flood.wait()
            flood.stdout.close()
        counts.waits_s += [float(line) for line in done.stdout.split()]
        if done.returncode:
            counts.problems.append(f"capd, {way}, {count} of user {user}: {done.stderr[-300:]}")
        until(lambda: self._devices.get("GPU-0") == {"cap_w": 300.0}, "the cap of the probe is restored")

    def _flood_http(self, target: str, way: str, count: int, counts: CampaignCounts) -> None:
        url, page = self._addresses[target]
        parts = urlsplit(url)
        place = parts.hostname or "", parts.port or 80
        begin = {"half open": b"GET / HT", "no request": b"", "slow head": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "}
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                with contextlib.suppress(OSError):
                    sock = stack.enter_context(socket.create_connection(place, 1.0))
                    sock.sendall(begin[way])
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
    process = subprocess.Popen([*JOULELAB, *words, "--json"], stdout=subprocess.PIPE, text=True)
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
