from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import struct
import threading

import pytest
from tests.control.fake import fails

from joulelab.control import daemon
from joulelab.control.daemon import CapDaemon
from joulelab.control.policy import AllowRule, CapPolicy
from joulelab.control.state import get_user_name
from joulelab.core.errors import Refused

pytestmark = pytest.mark.system

ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
NOBODY = 65534


@contextlib.contextmanager
def serving(path, environ, policy=None):
    events = []
    with CapDaemon(path, lambda: policy or CapPolicy([]), environ, lambda *event: events.append(event)) as one:
        one.events = events
        yield one


def test_there_is_one_capd_for_a_socket(environ, tmp_path):
    path = tmp_path / "capd.sock"
    with serving(path, environ), fails("config.capd-running"), serving(path, environ):
        pass
    (tmp_path / "file").touch()
    with fails("config.socket-place-taken"), serving(tmp_path / "file", environ):
        pass
    with fails("config.cannot-listen"), serving(tmp_path / "file" / "x", environ):
        pass


class Knocking:
    """Give a daemon in this process a client, and turn its loop by hand."""

    def __init__(self, one, path):
        self.one = one
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(path))
        one._accept_client(0)
        self.connection = next(iter(one._clients), None)


def test_who_comes_too_many_is_refused(environ, tmp_path):
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        one._max_clients = 1
        first, second = Knocking(one, path), Knocking(one, path)
        assert b'"refused.too-many-clients"' in second.sock.recv(4096)
        assert one._clients == {first.connection}
        for client in (first, second):
            client.sock.close()
        one._receive_bytes(first.connection)
        assert not one._clients
        one._drop_client(first.connection, "again")


def test_who_cannot_be_seen_is_refused(environ, tmp_path, monkeypatch):
    path = tmp_path / "capd.sock"
    monkeypatch.setattr(daemon.ClientConnection, "_open_pidfd", lambda *_: os.pidfd_open(-1))
    monkeypatch.setattr("joulelab.control.link.read_start_ticks", lambda *_: None)
    with serving(path, environ) as one:
        client = Knocking(one, path)
        assert b'"refused.hidden-process"' in client.sock.recv(4096)
        client.sock.close()


def test_older_kernels_serve_too(environ, tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "SO_PEERPIDFD", 9999)
    monkeypatch.setattr(daemon, "SO_PEERGROUPS", 9999)
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        client = Knocking(one, path)
        assert client.connection.gids == {os.getgid(), *os.getgrouplist(get_user_name(os.getuid()), os.getgid())}
        assert len(client.connection.process.fds) == 1
        client.sock.close()
        one._receive_bytes(client.connection)


def test_an_accept_that_fails_is_told_and_survived(environ, tmp_path, monkeypatch):
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        one._accept_client(0)
        assert one.events[0][0] == "problem"
        monkeypatch.setattr(daemon, "ClientConnection", lambda _: (_ for _ in ()).throw(OSError("gone")))
        client = Knocking(one, path)
        assert client.sock.recv(10) == b""
        client.sock.close()


def test_events_of_one_round_may_be_about_a_client_that_is_gone(environ, tmp_path):
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        client = Knocking(one, path)
        one._receive_bytes(client.connection)  # nothing there yet
        client.sock.sendall(b'{"do":"status"}\n' * 2)
        one._handle_ready(client.connection, selectors.EVENT_READ)
        one._handle_ready(client.connection, selectors.EVENT_READ)  # it has a line already
        assert one._get_timeout_s() == 0.0
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.close()
        one._send_answer(client.connection, {"id": 0})
        assert not one._clients
        one._handle_ready(client.connection, selectors.EVENT_READ | selectors.EVENT_WRITE)


def test_who_is_sent_away_is_not_heard_while_he_reads(environ, tmp_path):
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        client = Knocking(one, path)
        client.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        one._send_answer(client.connection, {"id": 0, "text": "x" * 400_000})
        assert client.connection.unsent
        one._dismiss_client(client.connection, 0, Refused("no"))
        client.sock.sendall(b'{"do":"status"}\n')
        one._handle_ready(client.connection, selectors.EVENT_READ)
        assert not client.connection.buffer.has_line
        data = b""
        while client.connection in one._clients:
            one._handle_ready(client.connection, selectors.EVENT_WRITE)
            data += client.sock.recv(1 << 20)
        assert data.startswith(b'{"id":0,"text":"xxx')
        client.sock.close()


def test_drivers_are_let_go_when_nobody_needs_them(environ, tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "IDLE_S", 0.0)
    path = tmp_path / "capd.sock"
    with serving(path, environ) as one:
        assert one._get_timeout_s() == 0.0
        one._restore_leftovers()
        assert one._get_timeout_s() > 1.0
        assert one._open_setters() is one._open_setters()
        assert one._get_timeout_s() == 0.0
        one._close_idle_setters()
        assert one._setters is None


def test_a_loop_in_this_process_ends_by_a_signal(environ, tmp_path):
    path = tmp_path / "capd.sock"
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)
    with serving(path, environ, CapPolicy([AllowRule(users=["*"])])) as one:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        one.run()
        timer.join()
    assert [event for event, _ in one.events] == ["ready", "ended"]
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
        assert not one._clients
        client.sock.close()


@pytest.mark.parametrize(
    ("limits", "many"),
    [((1024, 500_000), 65536), ((1024, 4096), 4096), ((-1, -1), 65536), ((1024, -1), 65536), ((70_000, 70_000), 65536)],
)
def test_many_files_may_be_open(monkeypatch, limits, many):
    set_to = []
    monkeypatch.setattr(daemon.resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(daemon.resource, "setrlimit", lambda _, both: set_to.append(both))
    assert daemon._raise_file_limit() == many
    assert set_to in ([], [(many, limits[1])])
