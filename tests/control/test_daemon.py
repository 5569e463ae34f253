from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import struct
import threading

import pytest

from joulelab.control import daemon, peer
from joulelab.control.daemon import Daemon
from joulelab.control.policy import Allow, Policy
from joulelab.control.state import user_name
from joulelab.core.errors import ConfigError, Refused

pytestmark = pytest.mark.system

ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
NOBODY = 65534


@contextlib.contextmanager
def serving(path, environ, policy=None, **changes):
    said = []
    with Daemon(path, lambda: policy or Policy([]), environ, lambda event, facts: said.append((event, facts))) as one:
        one.said = said
        yield one


def test_there_is_one_capd_for_a_socket(environ, tmp_path):
    path = tmp_path / "capd.sock"
    with serving(path, environ), pytest.raises(ConfigError, match="another capd serves it"), serving(path, environ):
        pass
    (tmp_path / "file").touch()
    for wrong, said in ((tmp_path / "file", "another file"), (tmp_path / "file" / "x", "cannot listen")):
        with pytest.raises(ConfigError, match=said), serving(wrong, environ):
            pass


class Knocking:
    """Give a daemon in this process a client, and turn its loop by hand."""

    def __init__(self, one, path):
        self.one = one
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(path))
        one._accept(0)
        self.peer = next(iter(one._peers), None)


def test_who_comes_too_many_is_refused(environ, tmp_path):
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        one._most = 1
        first, second = Knocking(one, path), Knocking(one, path)
        assert b"too many clients" in second.sock.recv(4096)
        assert one._peers == {first.peer}
        for client in (first, second):
            client.sock.close()
        one._read(first.peer)
        assert not one._peers
        one._drop(first.peer, "again")


def test_who_cannot_be_seen_is_refused(environ, tmp_path, monkeypatch):
    path = tmp_path / "capd.sock"
    monkeypatch.setattr(peer.Peer, "_pidfd", lambda *_: os.pidfd_open(-1))
    monkeypatch.setattr("joulelab.control.spawn.start_ticks", lambda *_: None)
    with serving(path, environ) as one:
        client = Knocking(one, path)
        assert b"your process cannot be seen" in client.sock.recv(4096)
        client.sock.close()


def test_older_kernels_serve_too(environ, tmp_path, monkeypatch):
    monkeypatch.setattr(peer, "SO_PEERPIDFD", 9999)
    monkeypatch.setattr(peer, "SO_PEERGROUPS", 9999)
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        client = Knocking(one, path)
        assert client.peer.gids == {os.getgid(), *os.getgrouplist(user_name(os.getuid()), os.getgid())}
        assert len(client.peer.process.fds) == 1
        client.sock.close()
        one._read(client.peer)


def test_an_accept_that_fails_is_told_and_survived(environ, tmp_path, monkeypatch):
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        one._accept(0)
        assert one.said[0][0] == "problem"
        monkeypatch.setattr(daemon, "Peer", lambda _: (_ for _ in ()).throw(OSError("gone")))
        client = Knocking(one, path)
        assert client.sock.recv(10) == b""
        client.sock.close()


def test_events_of_one_round_may_be_about_a_client_that_is_gone(environ, tmp_path):
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        client = Knocking(one, path)
        one._read(client.peer)  # nothing there yet
        client.sock.sendall(b'{"do":"status"}\n' * 2)
        one._ready(client.peer, selectors.EVENT_READ)
        one._ready(client.peer, selectors.EVENT_READ)  # it has a line already
        assert one._patience_s() == 0.0
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.close()
        one._answer(client.peer, {"id": 0})
        assert not one._peers
        one._ready(client.peer, selectors.EVENT_READ | selectors.EVENT_WRITE)


def test_who_is_sent_away_is_not_heard_while_he_reads(environ, tmp_path):
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        client = Knocking(one, path)
        client.peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        one._answer(client.peer, {"id": 0, "text": "x" * 400_000})
        assert client.peer.unsent
        one._dismiss(client.peer, 0, Refused("no"))
        client.sock.sendall(b'{"do":"status"}\n')
        one._ready(client.peer, selectors.EVENT_READ)
        assert not client.peer.lines.waiting
        data = b""
        while client.peer in one._peers:
            one._ready(client.peer, selectors.EVENT_WRITE)
            data += client.sock.recv(1 << 20)
        assert data.startswith(b'{"id":0,"text":"xxx')
        client.sock.close()


def test_drivers_are_let_go_when_nobody_needs_them(environ, tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "IDLE_S", 0.0)
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        assert one._patience_s() == 0.0
        one._finish_leftovers()
        assert one._patience_s() > 1.0
        assert one._setters() is one._setters()
        assert one._patience_s() == 0.0
        one._close_setters()
        assert one._found is None


def test_a_loop_in_this_process_ends_by_a_signal(environ, tmp_path):
    path = tmp_path / "capd.sock"
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    with serving(path, environ, Policy([Allow(users=["*"])])) as one:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        one.run()
        timer.join()
    assert [event for event, _ in one.said] == ["ready", "ended"]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == handlers
    assert not path.exists()


def test_a_loop_that_fails_puts_back_first(environ, tmp_path, files, monkeypatch):
    path = tmp_path / "capd.sock"
    monkeypatch.setattr(daemon, "has_leftovers", lambda _: 1 / 0)
    with serving(path, environ) as one:
        client = Knocking(one, path)
        with pytest.raises(ZeroDivisionError):
            one.run()
        assert b'"ended"' in client.sock.recv(4096)
        assert not one._peers
        client.sock.close()


@pytest.mark.parametrize(
    ("limits", "many"),
    [((1024, 500_000), 65536), ((1024, 4096), 4096), ((-1, -1), 65536), ((1024, -1), 65536), ((70_000, 70_000), 65536)],
)
def test_many_files_may_be_open(monkeypatch, limits, many):
    set_to = []
    monkeypatch.setattr(daemon.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(daemon.resource, "setrlimit", lambda _, both: set_to.append(both))
    assert daemon._many_files() == many
    assert set_to in ([], [(many, limits[1])])
