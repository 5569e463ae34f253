"""Flood capd as one user, and measure how long another user, who may set caps, waits for answers.

    python -m tests.control.flood --seconds 5

Needs root, to become other users: they are numbers, and need no account.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.control.daemon import Capd
from tests.control.fake import world

FLOODER, LISTED, UNLISTED = 54001, 54002, 54003
CONFIG = f"[[allow]]\nusers = [{FLOODER}, {LISTED}]\n"
FloodKind = Literal["none", "busy", "silent", "unlisted", "churn"]
NICE = -5  # as in packaging/joulelab-capd.service
# The attack of each kind: its user, its connections, its processes.
KINDS: dict[FloodKind, tuple[int, int, int]] = {
    "none": (FLOODER, 0, 0),
    "busy": (FLOODER, 1500, 1),
    "silent": (FLOODER, 200, 1),
    "unlisted": (UNLISTED, 1, 3),
    "churn": (FLOODER, 1, 3),
}

ATTACK = """
import contextlib, json, os, resource, selectors, socket, sys, time
kind, path, uid, count, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
os.setgroups([]); os.setgid(uid); os.setuid(uid)
end = time.monotonic() + seconds
STATUS = b'{"id":1,"do":"status"}\\n'
SET = b'{"id":2,"do":"set","caps":[{"device":"gpu:1","value":200.0}]}\\n'

def connect():
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        sock.connect(path)
    except OSError:
        sock.close()
        return None
    return sock

def ask(sock):
    with contextlib.suppress(BlockingIOError):
        sock.send((STATUS * 50) if kind == "silent" else STATUS + SET)

selector, total = selectors.DefaultSelector(), 0
while time.monotonic() < end:
    if kind in ("unlisted", "churn"):
        if sock := connect():
            total += 1
            sock.close()
        continue
    while len(selector.get_map()) < count and time.monotonic() < end and (sock := connect()):
        total += 1
        with contextlib.suppress(OSError):
            ask(sock)
        selector.register(sock, selectors.EVENT_WRITE if kind == "silent" else selectors.EVENT_READ)
    for key, _ in selector.select(0.05):
        try:
            if kind == "busy" and not key.fileobj.recv(65536):
                raise ConnectionResetError
            ask(key.fileobj)
        except OSError:
            selector.unregister(key.fileobj)
            key.fileobj.close()
print(json.dumps(total))
"""
IDLE_PROBE = """
import json, os, socket, sys, time
ours, theirs = socket.socketpair()
if not os.fork():
    ours.close()
    while data := theirs.recv(1):
        theirs.sendall(data)
    os._exit(0)
theirs.close()
waits, end = [], time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    begun = time.monotonic()
    ours.sendall(b"x")
    ours.recv(1)
    waits.append(time.monotonic() - begun)
    time.sleep(0.02)
print(json.dumps(waits))
ours.close()
os.wait()
"""
PROBE = """
import json, os, sys, time
from joulelab.control.link import connect_keeper
from joulelab.control.leftovers import has_leftovers
import joulelab.core.errors
uid, seconds = int(sys.argv[1]), float(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
connect_keeper(os.environ).request_answer({"id": 1, "do": "status"}, 60.0, lambda _: None)  # opens the drivers
waits, failures = [], []
print("ready", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    begun = time.monotonic()
    try:
        link = connect_keeper(os.environ)
        answer = link.request_answer({"id": 1, "do": "status"}, 60.0, lambda _: None)
        if answer is None or answer["is"] != "status":
            failures.append(str(answer))
        link.close()
    except joulelab.core.errors.JoulelabError as error:
        failures.append(str(error))
    waits.append(time.monotonic() - begun)
    time.sleep(0.02)
print(json.dumps([waits, failures]))
"""


@dataclass(frozen=True)
class FloodResult:
    """Hold the waits of the listed user (s), requests without an answer, and the connections of the attack.

    `idle_waits_s` are the waits for another server in the same seconds, which nobody floods and which only sends back
    what it gets: so long is a wait because of the machine alone.
    """

    waits_s: list[float]
    idle_waits_s: list[float]
    failures: list[str]
    connections: int

    @property
    def longest_s(self) -> float:
        """Return the longest wait."""
        return max(self.waits_s)

    @property
    def is_late(self) -> bool:
        """Return whether a wait is longer than a second and than the busy machine explains.

        A request wakes capd and its client about four times in turn, one of the other server only twice.
        """
        return self.longest_s > 1.0 + 4 * max(self.idle_waits_s)


def flood_daemon(kind: FloodKind, folder: Path, seconds: float = 5.0, *, source: str = "") -> FloodResult:
    """Flood a capd of its own in an empty folder for some seconds; `source` is the `src` of another version to attack.

    busy: 1,500 connections of a listed user, each asks again once it is answered. silent: 200 clients of a listed user
    that send requests and never read. unlisted, churn: three processes of an unlisted or a listed user that connect
    and disconnect as fast as they can.
    """
    environ, _ = world(folder)
    environ["PYTHONPATH"] = f"{source}:{environ['PYTHONPATH']}" if source else environ["PYTHONPATH"]
    uid, count, processes = KINDS[kind]
    capd = Capd(environ, folder, CONFIG)
    os.setpriority(os.PRIO_PROCESS, capd.process.pid, NICE)
    started: list[subprocess.Popen[str]] = []
    try:
        probe_words = [sys.executable, "-c", PROBE, str(LISTED), str(seconds)]
        probe = subprocess.Popen(probe_words, env=capd.environ, stdout=subprocess.PIPE, text=True)
        started.append(probe)
        assert probe.stdout is not None
        assert probe.stdout.readline() == "ready\n"
        words = [sys.executable, "-c", ATTACK, kind, str(capd.path), str(uid), str(count), str(seconds)]
        idle_words = [sys.executable, "-c", IDLE_PROBE, str(seconds)]
        started.append(subprocess.Popen(idle_words, stdout=subprocess.PIPE, text=True))
        for _ in range(processes):
            started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        answers = [process.communicate(timeout=seconds + 120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.communicate()
        capd.close()
    waits_s, failures = json.loads(answers[0])
    return FloodResult(waits_s, json.loads(answers[1]), failures, sum(int(text or 0) for text in answers[2:]))


def main() -> None:
    """Print a line for each kind of flood."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", choices=list(KINDS), action="append")
    parser.add_argument("--source", default="", help="src of another version of joulelab")
    given = parser.parse_args()
    for kind in given.only or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            found = flood_daemon(kind, Path(folder), given.seconds, source=given.source)
            print(
                f"{kind}: longest wait {found.longest_s:.2f} s (of a server that does nothing: "
                f"{max(found.idle_waits_s):.2f} s), median {statistics.median(found.waits_s):.3f} s of "
                f"{len(found.waits_s)} requests, {len(found.failures)} without an answer, {found.connections} "
                f"connections in {time.monotonic() - begun:.0f} s, load {os.getloadavg()[0]:.1f}"
            )
            for text in sorted(set(found.failures))[:3]:
                print(f"  {text[:200]}")


if __name__ == "__main__":
    main()
