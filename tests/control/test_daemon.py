from __future__ import annotations

import contextlib
import errno
import json
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
from joulelab.control.setters import SetterInventory
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
        for client in list(one._clients):
            one._drop_client(client, "the test is over")


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
        one._accept_clients(0)
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


def test_an_accept_that_fails_is_reported_and_survived(environ, tmp_path, monkeypatch):
    path = tmp_path / "capd.sock"

    class FullTable:
        def accept(self):
            raise OSError(errno.EMFILE, "too many open files")

    with serving(path, environ) as one:
        one._accept_clients(0)  # nobody waits
        with monkeypatch.context() as patched:
            patched.setattr(one, "_socket", FullTable())
            one._accept_clients(0)
        assert [event for event, _ in one.events] == ["problem"]
        monkeypatch.setattr(daemon, "ClientConnection", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        client = Knocking(one, path)
        assert client.sock.recv(10) == b""
        client.sock.close()


@contextlib.contextmanager
def serving_users(path, environ, monkeypatch, uids, policy=None):
    """Serve clients whose users are these, in the order in which they come."""
    real, coming = daemon.read_peer, iter(uids)
    monkeypatch.setattr(daemon, "read_peer", lambda sock: real(sock)._replace(uid=next(coming)))
    with serving(path, environ, policy or CapPolicy([AllowRule(users=["*"])])) as one:
        one._setters = SetterInventory()  # no drivers: they take a second to load
        clients = [Knocking(one, path).sock for _ in uids]
        yield one, clients
        for sock in clients:
            sock.close()


def count_answers(sock):
    """Return how many answers have arrived."""
    with contextlib.suppress(BlockingIOError):
        return sock.recv(1 << 20, socket.MSG_DONTWAIT).count(b"\n")
    return 0


def test_a_user_who_floods_delays_only_their_own_requests(environ, tmp_path, monkeypatch):
    uids = [1001, 1001, 1001, 1002]
    with serving_users(tmp_path / "capd.sock", environ, monkeypatch, uids) as (one, clients):
        for sock in clients:
            sock.sendall(b'{"do":"status"}\n' * 3)
        turns = []
        for _ in range(4):
            one._serve_once()
            turns.append([count_answers(sock) for sock in clients])
        assert [sum(turn[:3]) for turn in turns] == [1, 1, 1, 1]  # of all clients of the first user
        assert [max(column) for column in zip(*turns, strict=True)] == [1, 1, 1, 1]  # the user's clients take turns
        assert [turn[3] for turn in turns] == [1, 1, 1, 0]


def test_a_user_has_a_limit_of_clients_and_others_are_served(environ, tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "MAX_CLIENTS_PER_USER", 2)
    with serving_users(tmp_path / "capd.sock", environ, monkeypatch, [1001] * 4 + [1002]) as (one, clients):
        answers = [sock.recv(4096) for sock in clients[2:4]]
        assert all(b'"refused.too-many-clients"' in answer and b'"held":true' in answer for answer in answers)
        assert one._counts == {1001: 2, 1002: 1}
        assert [event for event, _ in one.events] == ["refused"]  # both in one second


def test_a_user_who_connects_again_and_again_is_refused_for_a_second(environ, tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "MAX_CONNECTS_PER_S", 1)
    monkeypatch.setattr(daemon, "ACCEPTS_PER_TURN", 1)
    with serving_users(tmp_path / "capd.sock", environ, monkeypatch, [1001, 1001, 1002]) as (one, clients):
        assert b'"refused.too-many-clients"' in clients[1].recv(4096)
        assert one._counts == {1001: 1, 1002: 1}
        one._second_due = 0.0
        one._accept_clients(0)
        assert (one._connects, one._refusals) == ({}, {})


def test_who_may_not_set_caps_costs_next_to_nothing(environ, tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "ClientConnection", None)
    monkeypatch.setattr(daemon, "get_user_name", None)
    policy = CapPolicy([AllowRule(users=[1001])])
    with serving_users(tmp_path / "capd.sock", environ, monkeypatch, [1003, 1003], policy) as (one, clients):
        for sock in clients:
            assert b'"refused.unknown-user"' in sock.recv(4096)
            assert sock.recv(4096) == b""
        assert not one._clients
        assert [event for event, _ in one.events] == ["refused"]


def test_a_client_that_does_not_read_is_not_waited_for_and_loses_no_answer(environ, tmp_path):
    path, count = tmp_path / "capd.sock", 100
    with serving(path, environ) as one:
        one._setters = SetterInventory()
        client = Knocking(one, path)
        sock, connection = client.sock, client.connection
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sock.sendall(b"".join(b'{"id":%d,"do":"status"}\n' % number for number in range(count)))
        turns = 0
        while not connection.unsent:
            one._serve_once()
            turns += 1
        assert turns < count
        for _ in range(3):
            one._handle_ready(connection, selectors.EVENT_WRITE)
        assert one._selector.get_key(connection.sock).events == selectors.EVENT_WRITE
        assert (one._queues, len(connection.unsent) < 4096) == ({}, True)
        assert one._get_timeout_s() > 0
        data = sock.recv(1 << 20)
        while data.count(b"\n") < count:
            one._serve_once()
            data += sock.recv(1 << 20)
        assert [json.loads(line)["id"] for line in data.splitlines()] == list(range(count))
        sock.close()


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
        one._serve_queues()
        assert one._queues == {}


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
