from __future__ import annotations

import contextlib
import importlib
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.control.fake import fails, wait_for

from joulelab.control import client, link
from joulelab.control.client import CapRequest, Caps, restore_leftovers
from joulelab.core.process_identity import read_start_ticks

TWO = [CapRequest("gpu:0", 170.0), CapRequest("gpu:1", 0.5, "share")]


@pytest.mark.system
def test_the_choice_between_capd_and_a_keeper_of_ones_own(environ, tmp_path):
    path = tmp_path / "capd.sock"
    asked = {**environ, "JOULELAB_CAPD": str(path)}
    for _ in range(2):
        with_none = link.connect_keeper(asked)
        assert with_none.pid is not None
        with_none.close()
        if not path.exists():
            stale = socket.socket(socket.AF_UNIX)
            stale.bind(str(path))  # nobody listens
            stale.close()
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        one = link.connect_keeper(asked)
        assert (one.pid, one.name) == (None, "capd")
        direct = link.connect_keeper(asked, direct=True)
        assert direct.name == f"keeper {direct.pid}"
        direct.abandon()
        assert one.close() == "the connection was closed"
        link.connect_keeper(asked).abandon()
    (tmp_path / "odd").mkdir()
    with fails("error.capd-no-answer"):
        link.connect_keeper({**environ, "JOULELAB_CAPD": str(tmp_path / ("x" * 200))})


def test_a_capd_that_talks_nonsense_is_a_broken_connection(environ):
    for nonsense in (b"hello\n", b"[]\n", b"\xff\n", b"x" * 70000):
        here, there = socket.socketpair()
        with there:
            broken = link.KeeperLink(here)
            thread = threading.Thread(target=there.sendall, args=(nonsense,))
            thread.start()
            assert broken.request_answer({"id": 1, "do": "status"}, 60.0, lambda _: None) is None
            thread.join()
            broken.close()


def test_a_refusal_without_a_number_is_an_answer():
    here, there = socket.socketpair()
    with there:
        one = link.KeeperLink(here)
        there.sendall(b'{"id":9,"is":"news"}\n{"id":0,"is":"refused","error":{}}\n')
        heard = []
        assert one.request_answer({"id": 1, "do": "status"}, 60.0, heard.append)["is"] == "refused"
        assert heard == [{"id": 9, "is": "news"}]
        one.close()


@pytest.mark.system
def test_a_client_waits_its_turn_where_many_ask_capd(tmp_path, monkeypatch):
    path = tmp_path / "capd.sock"
    environ = {"JOULELAB_CAPD": str(path)}
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as stack:
        server.bind(str(path))
        server.listen(0)
        with fails("error.capd-no-answer") as caught:
            while True:
                stack.callback(link.connect_keeper(environ, patient=False).abandon)
        assert caught.value.why == "too many clients wait for it"
        monkeypatch.setattr(link, "CONNECT_WAIT_S", 0.05)
        with fails("error.capd-no-answer") as caught:
            link.connect_keeper(environ)
        assert caught.value.why == "too many clients wait for it, and our turn did not come within 0.05 s"
        monkeypatch.setattr(link, "CONNECT_WAIT_S", 120.0)
        timer = threading.Timer(0.2, lambda: stack.callback(server.accept()[0].close))
        timer.start()
        link.connect_keeper(environ).abandon()
        timer.join()


@pytest.mark.system
def test_a_keeper_that_dies_at_once_is_an_error(environ, monkeypatch):
    monkeypatch.setattr(client, "MOST_KEEPERS", 2)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with Caps(environ) as caps, fails("error.keeper-died"):
        caps.status()
    with fails("error.keeper-died"):
        restore_leftovers(environ)


@pytest.mark.system
def test_an_answer_that_refuses_a_status_or_restore_is_raised(environ, monkeypatch, tmp_path):
    (tmp_path / "packages" / "sitecustomize.py").write_text(
        "import joulelab.control.keeper as k\n"
        "from joulelab.core.errors import Refused\n"
        "def no(*_): raise Refused('not now', code='refused.test')\n"
        "k.Keeper.read_status = k.Keeper.restore_leftovers = no\n"
    )
    with Caps(environ) as caps, fails("refused.test"):
        caps.status()
    with fails("refused.test"):
        restore_leftovers(environ)


@pytest.mark.system
def test_a_process_is_known_by_more_than_its_number():
    process = subprocess.Popen(["sleep", "600"])
    ticks = read_start_ticks(process.pid)

    def no_pidfd(_):
        raise OSError("not on this kernel")

    watched = link.ProcessWatch(process.pid, ticks)
    other = link.ProcessWatch(process.pid, 1)
    plain = link.ProcessWatch(process.pid, open_pidfd=no_pidfd)
    assert [w.has_ended() for w in (watched, other, plain)] == [False, True, False]
    assert (len(watched.fds), other.fds, plain.fds) == (1, [], [])
    process.kill()
    process.wait()
    assert [w.has_ended() for w in (watched, other, plain)] == [True, True, True]
    assert link.ProcessWatch(process.pid).has_ended()
    watched.close()


@pytest.mark.system
def test_a_keeper_that_still_runs_is_left_to_itself(monkeypatch):
    monkeypatch.setattr(link, "EXIT_WAIT_S", 0.2)
    here, there = socket.socketpair()
    process = subprocess.Popen(["sleep", "600"])
    assert link.KeeperLink(here, process.pid).close() == "it still runs"
    there.close()
    process.kill()
    process.wait()
    done = subprocess.Popen(["sh", "-c", "exit 3"])
    os.waitid(os.P_PID, done.pid, os.WEXITED | os.WNOWAIT)
    here, there = socket.socketpair()
    assert link.KeeperLink(here, done.pid).close() == "it ended with 3"
    there.close()
    done.returncode = 3


def test_a_keeper_finds_the_joulelab_that_started_it():
    environment = link._make_environment({"PYTHONPATH": "/a"})
    assert environment["PYTHONPATH"].split(":")[0] == "/a"
    assert environment["JOULELAB_STATE"] == "/var/lib/joulelab"
    assert "JOULELAB_LOCKS" not in environment
    assert link._make_environment({"JOULELAB_LOCKS": "locks"})["JOULELAB_LOCKS"] == str(Path.cwd() / "locks")


@pytest.mark.system
def test_a_keeper_that_fails_itself_puts_back_first(environ, files, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "MOST_KEEPERS", 2)
    (tmp_path / "packages" / "sitecustomize.py").write_text(
        "import joulelab.control.keeper as k\ndef fail(*_): raise SystemExit(3)\nk.Keeper.read_status = fail\n"
    )
    with Caps(environ) as caps:
        caps.set([CapRequest("gpu:0", 170.0)])
        with fails("error.keeper-died"):
            caps.status()
        assert files.get("GPU-0") == {"cap_w": 300.0}
        (event,) = caps.serve()
        assert event["why"] == "it failed"


@pytest.mark.system
def test_a_keeper_takes_no_nonsense(environ, files):
    sock, pid = link.start_keeper(environ)
    with sock:
        sock.settimeout(120)
        sock.sendall(b'{"id":1,"do":"set","caps":[{"device":"gpu:0","value":170.0}]}\n')
        assert b'"is":"set"' in sock.recv(65536)
        sock.sendall(b'{"id":2,"do":"dance"}\n')
        assert b'{"id":2,"is":"refused"' in sock.recv(65536)
        assert files.get("GPU-0") == {"cap_w": 170.0}
        sock.sendall(b"x" * 70000)
        assert b'"config.message-too-long"' in sock.recv(65536)
        wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
    os.waitpid(pid, 0)


@pytest.mark.system
def test_a_client_that_goes_without_reading_is_gone_all_the_same(environ, files):
    sock, pid = link.start_keeper(environ)
    sock.sendall(b'{"id":1,"do":"set","caps":[{"device":"gpu:0","value":170.0}]}\n')
    wait_for(lambda: select.select([sock], (), (), 0)[0])
    sock.close()
    wait_for(lambda: files.get("GPU-0") == {"cap_w": 300.0})
    os.waitpid(pid, 0)


def test_a_keeper_is_loaded_without_being_run():
    assert callable(importlib.import_module("joulelab.control.__main__").main)
