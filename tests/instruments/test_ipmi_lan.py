"""Commands over LAN against the simulated BMC, in its own process: many BMCs, one owner of pyghmi."""

from __future__ import annotations

import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from joulelab.core.errors import MissingDependency, ReadFailed
from joulelab.instruments.ipmi import client as ipmi
from joulelab.instruments.ipmi import parse as ipmi_parse
from joulelab.instruments.ipmi.lan import Account, Lan, Owner, shared_owner
from joulelab.instruments.ipmi.login import login_error, no_answer, probe
from joulelab.twin.model import Node
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pyghmi", reason="pip install 'joulelab[ipmi]'")
DCMI = (0x2C, 0x02, b"\xdc\x01\x00\x00")


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "truth"
    with Truth.create(path, Node()):
        yield path


def account(server: ServerProcess, directory: Path, **more) -> Account:
    return Account("127.0.0.1", server.served.ports["ipmi"], "USERID", (directory / "password").read_text(), **more)


@pytest.fixture(scope="module")
def bmc(truth, tmp_path_factory):
    directory = tmp_path_factory.mktemp("bmc")
    with ServerProcess("bmc", truth, directory) as server:
        yield account(server, directory)


def watts(link: Lan, timeout_s: float = 60.0) -> float:
    found = ipmi_parse.dcmi_power(ipmi.ask(link, *DCMI, ipmi.deadline(timeout_s)))
    assert found is not None
    return found


@pytest.mark.system
@pytest.mark.parametrize("cipher", [3, 17, None])
def test_both_cipher_suites(bmc, cipher):
    link = Lan(Account(bmc.host, bmc.port, bmc.user, bmc.password, cipher=cipher))
    assert watts(link) > 100
    link.close()
    link.close()


@pytest.mark.system
def test_threads_share_the_owner_and_get_their_own_answers(bmc):
    """Eight sessions with one BMC, each asking for another record: an answer that went astray would show."""
    wrong: list[object] = []
    first = Lan(bmc)
    numbers = [record[0] for record in ipmi.records(first, 60.0)]
    first.close()

    def ask(number: int) -> None:
        link = Lan(bmc)
        for _ in range(40):
            answer = ipmi.ask(link, 0x0A, 0x23, bytes([0, 0, number, 0, 0, 5]), ipmi.deadline(60))
            if answer[2] != number:
                wrong.append((number, answer))
        link.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in numbers[:8]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.system
def test_a_silent_bmc_delays_no_other(bmc):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        silent = Lan(Account("127.0.0.1", deaf.getsockname()[1], "USERID", "x"))
        link = Lan(bmc)
        assert watts(link) > 100
        failed = []

        def wait() -> None:
            with pytest.raises(ReadFailed, match="does not answer"):
                watts(silent, 5.0)
            failed.append(True)

        waiting = threading.Thread(target=wait)
        waiting.start()
        for _ in range(3):
            watts(link)
        assert not failed, "the silent one is still waited for"
        waiting.join()
        assert failed
        silent.close()
        link.close()


@pytest.mark.system
def test_reconnecting_leaves_nothing_behind(bmc):
    from pyghmi.ipmi.private import session

    for _ in range(30):
        link = Lan(bmc)
        watts(link)
        link.close()
    wrong = Account(bmc.host, bmc.port, "nobody", bmc.password)
    for _ in range(10):
        with pytest.raises(Exception, match="does not know the user"):
            watts(Lan(wrong))
    assert len(session.iosockets) < 20
    assert sum(len(handlers) for handlers in session.Session.bmc_handlers.values()) < 10
    assert not session.Session.initting_sessions


@pytest.mark.system
def test_an_idle_session_is_opened_anew(bmc, monkeypatch):
    link = Lan(bmc)
    watts(link)
    before = link._session
    monkeypatch.setattr("joulelab.instruments.ipmi.lan.IDLE_S", 0.0)
    assert watts(link) > 100
    assert link._session is not before
    link.close()


def test_without_pyghmi(monkeypatch):
    monkeypatch.setitem(sys.modules, "joulelab.instruments.ipmi.pyghmi_session", None)
    with pytest.raises(MissingDependency, match=r"pip install 'joulelab\[ipmi\]'"):
        Owner()


def test_the_owner_is_one():
    assert shared_owner() is shared_owner()


def test_the_password_of_an_account_is_never_printed():
    assert "s3cret" not in repr(Account("127.0.0.1", 623, "USERID", "s3cret"))


@pytest.mark.system
def test_records_in_pieces(truth, tmp_path):
    with ServerProcess("bmc", truth, tmp_path, flaws={"sdr_limit": 16}) as server:
        link = Lan(account(server, tmp_path))
        found = list(ipmi.records(link, 60.0))
        assert [ipmi_parse.sensor(r).name for r in found][:2] == ["Sys Power", "PSU1 Input Power"]
        link.close()


@pytest.mark.system
def test_only_the_cipher_that_is_asked_for(truth, tmp_path):
    with ServerProcess("bmc", truth, tmp_path, flaws={"suites": [3]}) as server:
        link = Lan(account(server, tmp_path))
        assert watts(link) > 100  # it falls back
        link.close()
        with pytest.raises(Exception, match="cipher suite"):
            watts(Lan(account(server, tmp_path, cipher=17)))


@pytest.mark.system
def test_probing_without_a_login(bmc):
    assert probe(bmc.host, bmc.port, 60.0) == "ipmi"
    assert probe("nosuchname.invalid", 623, 60.0) == "name"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        assert probe("127.0.0.1", port, 0.2) == "silent"
    assert probe("127.0.0.1", port, 60.0) == "closed"


@pytest.mark.system
@pytest.mark.parametrize(("answer", "found"), [(b"hello", "other"), (b"\x06\x00\xff\x07" + bytes(30), "other")])
def test_probing_something_else(answer, found):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))

        def reply() -> None:
            _, sender = other.recvfrom(100)
            other.sendto(answer, sender)

        thread = threading.Thread(target=reply)
        thread.start()
        assert probe("127.0.0.1", other.getsockname()[1], 60.0) == found
        thread.join()


@pytest.mark.system
@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("Incorrect password provided", "Denied", "password"),
        ("Invalid integrity check value reported in RAKP4", "Denied", "password"),
        ("Unauthorized name in RAKP2", "Denied", "does not know the user"),
        ("Unauthorized role or privilege level requested in RAKP2", "Denied", "privilege"),
        ("privilege not granted", "Denied", "privilege"),
        ("No Cipher suite match with proposed security algorithms", "Unavailable", "cipher"),
        ("Insufficient resources to create new session", "ReadFailed", "no free session"),
        ("timeout", "ReadFailed", "does not answer"),
        ("whatever", "ReadFailed", "broke off"),
    ],
)
def test_failed_logins_in_own_words(said, kind, words):
    error = login_error("BMC x", said, None, "me")
    assert type(error).__name__ == kind
    assert words in str(error)


def test_where_a_login_stopped_is_told():
    said = {str(no_answer("BMC x", context)) for context in ("EXPECTINGRAKP2", "OPENSESSION", None)}
    assert len(said) == 3
    again = str(no_answer("BMC x", "EXPECTINGRAKP2", again=True))
    assert "slowly" in again
    assert "user" not in again, "the same user logged in before"
