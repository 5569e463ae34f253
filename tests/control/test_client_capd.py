"""A client of a capd that is killed, started again, or has another mind by then."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import threading
import time

import pytest
from tests.control.daemon import ROOT, Capd
from tests.control.fake import BECOME, fails, for_everybody, wait_for

from joulelab.control import client
from joulelab.control.client import CapRequest, Caps
from joulelab.control.protocol import make_refusal
from joulelab.core.errors import Refused
from joulelab.core.setting import OutOfBounds

pytestmark = pytest.mark.system

CAP = {"scope": "gpu:0", "device": "GPU-0", "model": "fake", "kind": "power", "asked": 170.0, "requested": 170.0}
CAP |= {"enforced": 170.0, "found": 300.0, "default": 350.0, "unit": "W"}
BACK = {"scope": "gpu:0", "device": "GPU-0", "outcome": "restored", "found": 300.0, "now": 300.0, "unit": "W"}


class Scripted:
    """Be a capd whose answers are written down: `answers(frame)` is an answer, or None to hang up."""

    def __init__(self, path):
        self.path, self.heard, self.answers = path, [], set_and_release
        self._peers = []
        self.start()

    def start(self):
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self._socket.listen(10)
        self._end, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            ready, _, _ = select.select([self._end, self._socket, *self._peers], (), ())
            if self._end in ready:
                return
            for one in ready:
                if one is self._socket:
                    self._peers.append(one.accept()[0])
                    answer = self.answers(None)
                    if answer:
                        self._peers[-1].sendall(json.dumps(answer).encode() + b"\n")
                    continue
                try:
                    data = one.recv(65536)
                except ConnectionResetError:  # it went without reading an answer
                    data = b""
                for line in data.splitlines():
                    frame = json.loads(line)
                    self.heard.append(frame)
                    answer = self.answers(frame)
                    if answer:
                        with contextlib.suppress(BrokenPipeError):
                            one.sendall(json.dumps({"id": frame["id"], **answer}).encode() + b"\n")
                if not data or (self.heard and answer is None):
                    one.close()
                    self._peers.remove(one)

    def kill(self):
        """Leave the socket behind, as a kill does."""
        self._wake.close()
        self._thread.join()
        for one in (self._end, self._socket, *self._peers):
            one.close()
        self._peers = []


def set_and_release(frame):
    if frame is None:
        return None
    return {"set": {"is": "set", "caps": [CAP]}}.get(frame["do"], {"is": "released", "devices": [BACK]})


@pytest.fixture
def capd(tmp_path):
    one = Scripted(tmp_path / "capd.sock")
    yield one
    with contextlib.suppress(OSError):
        one.kill()


@pytest.fixture
def caps(capd, environ, monkeypatch):
    monkeypatch.setattr(client, "CAPD_RETRY_NS", client.NS // 20)
    monkeypatch.setattr(client, "CAPD_WAIT_S", 120.0)
    with Caps({**environ, "JOULELAB_CAPD": str(capd.path)}) as one:
        one.set([CapRequest("gpu:0", 170.0)])
        yield one


def served(caps, event, more=0.0):
    """Serve until an event comes, and a while longer; return the names of all."""
    heard = []
    wait_for(lambda: heard.extend(caps.serve()) or any(e["event"] == event for e in heard))
    until = time.monotonic() + more
    while time.monotonic() < until:
        heard += caps.serve()
        time.sleep(0.01)
    return heard


def test_a_client_that_had_capd_waits_for_capd(caps, capd):
    capd.kill()
    heard = served(caps, "caps-problem", more=0.3)
    assert [e["event"] for e in heard] == ["keeper-died", "caps-problem"]  # told once, and no keeper of its own
    assert "capd is not running (Connection refused)" in heard[1]["problem"]
    assert (list(caps.fds), caps.due_ns < client.NEVER_NS) == ([], True)
    capd.path.unlink()
    capd.start()
    assert served(caps, "keeper-started")[-1]["keeper"] == "capd"
    assert [r.outcome for r in caps.release()] == ["restored"]


def test_a_set_and_a_release_wait_a_little_for_capd(caps, capd):
    for ask in (lambda: caps.set([CapRequest("gpu:0", 170.0)]), caps.release):
        capd.kill()
        timer = threading.Timer(0.3, capd.start)
        timer.start()
        assert ask()[0].device == "GPU-0"
        timer.join()
    assert capd.heard[-1] == {"id": capd.heard[-1]["id"], "do": "restore", "devices": ["GPU-0"]}


def test_a_capd_that_stays_away_is_told(caps, capd, monkeypatch):
    capd.kill()
    monkeypatch.setattr(client, "CAPD_WAIT_S", 0.1)
    with fails("error.capd-unavailable"):
        caps.set([CapRequest("gpu:0", 160.0)])
    (told,) = caps.release()
    assert told.outcome == "failed"
    assert "gpu:0 may still be at 170 W instead of 300 W" in told.message


def test_who_may_not_any_more_is_told_so_and_does_not_ask_again(caps, capd):
    capd.kill()
    gone = OutOfBounds("you may not set caps here", where="capd")
    capd.answers = lambda frame: make_refusal(0, gone, final=True) if frame is None else None
    capd.start()
    heard = served(caps, "caps-problem", more=0.3)
    assert [e["event"] for e in heard] == ["keeper-died", "caps-problem"]
    assert heard[1]["problem"].endswith("will not be set again: capd: you may not set caps here")
    assert (caps.due_ns, caps.release()) == (client.NEVER_NS, [])


def test_who_comes_too_many_asks_again(caps, capd, monkeypatch):
    monkeypatch.setattr(client, "LAST_RETRY_NS", client.NS // 20)
    capd.kill()
    many = make_refusal(0, Refused("too many clients", where="capd"))
    capd.answers = lambda frame: many if frame is None else None
    capd.start()
    heard = served(caps, "caps-problem", more=0.3)
    assert {e["event"] for e in heard[1:]} <= {"caps-problem", "keeper-died"}
    assert sum(e["event"] == "caps-problem" for e in heard) == 1
    capd.answers = set_and_release
    assert served(caps, "keeper-started")


def test_a_client_that_capd_has_no_room_for_tries_again_for_a_moment(caps, capd, monkeypatch):
    monkeypatch.setattr(client, "BUSY_WAIT_S", 120.0)
    caps.release()
    many = make_refusal(0, Refused("too many clients", where="capd"), held=True)
    left = [many] * 2
    capd.kill()
    capd.answers = lambda frame: (left.pop() if left else None) if frame is None else set_and_release(frame)
    capd.start()
    assert caps.set([CapRequest("gpu:0", 170.0)])[0].device == "GPU-0"
    assert not left


def test_problems_that_change_all_the_time_are_told_some_times_only(caps):
    for number in range(100):
        caps._report_problem(f"problem {number}")
    assert len(caps.serve()) == client.MAX_PROBLEMS


USER = """
caps = Caps(os.environ)
caps.set([CapRequest("gpu:0", 200.0)])
print("set", flush=True)
while True:
    for event in caps.serve():
        print(event["event"], event.get("problem", ""), flush=True)
    time.sleep(0.02)
"""


@ROOT
def test_a_user_without_root_gets_his_caps_again_unless_he_may_not_any_more(environ, tmp_path, files):
    for_everybody(tmp_path)
    capd = Capd(environ, tmp_path, "[[allow]]\nusers = ['nobody']\n")
    user = subprocess.Popen(
        [sys.executable, "-c", BECOME + USER],
        env=capd.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with user.stdout as said, user.stderr:
            assert said.readline() == "set\n", user.stderr.read()
            capd.process.kill()
            capd.process.wait()
            assert said.readline() == "keeper-died \n"
            assert "capd is not running" in said.readline()
            capd.start()
            assert said.readline() == "keeper-started \n"
            assert files.get("GPU-0") == {"cap_w": 200.0}
            capd.process.kill()
            capd.process.wait()
            capd.config.write_text("[[allow]]\nusers = ['nobody']\nlowest_w = 250\n")
            capd.start()
            lines = [said.readline()]
            while "will not be set again" not in lines[-1]:
                lines.append(said.readline())
            assert "allows 250 to 400 W" in lines[-1]
            assert files.get("GPU-0") == {"cap_w": 300.0}
    finally:
        user.kill()
        user.wait()
        capd.close()
