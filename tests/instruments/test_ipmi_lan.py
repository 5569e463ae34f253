"""Commands over LAN against the simulated BMC, in its own process: many BMCs, threads that share pyghmi."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from joulelab.core.errors import MeterError, ReadFailed
from joulelab.instruments.ipmi import GET_DCMI_POWER
from joulelab.instruments.ipmi.answers import parse_dcmi_power, parse_record
from joulelab.instruments.ipmi.client import Bmc
from joulelab.instruments.ipmi.doctor import probe_address
from joulelab.instruments.ipmi.settings import BmcAccount
from joulelab.twin.model import Node
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system

pytest.importorskip("pyghmi", reason="pip install 'joulelab[ipmi]'")
from joulelab.instruments.ipmi import lan  # noqa: E402


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "truth"
    with Truth.create(path, Node()):
        yield path


def account(server: ServerProcess, directory: Path, **more) -> BmcAccount:
    password = (directory / "password").read_text()
    return BmcAccount("127.0.0.1", server.served.ports["ipmi"], "USERID", password, **more)


@pytest.fixture(scope="module")
def bmc(truth, tmp_path_factory):
    directory = tmp_path_factory.mktemp("bmc")
    with ServerProcess("bmc", truth, directory) as server:
        yield account(server, directory)


def read_watts(client: Bmc) -> float:
    return parse_dcmi_power(client.request_data(*GET_DCMI_POWER))


def connect(to: BmcAccount, timeout_s: float = 60.0) -> Bmc:
    return Bmc(lan.LanLink(to), timeout_s)


@pytest.mark.parametrize("cipher", [3, None])
def test_both_cipher_suites(bmc, cipher):
    client = connect(BmcAccount(bmc.host, bmc.port, bmc.user, bmc.password, cipher=cipher))
    assert read_watts(client) > 100
    client.close()
    client.close()


def test_a_bmc_without_suite_17_is_read_by_suite_3(truth, tmp_path):
    with ServerProcess("bmc", truth, tmp_path, flaws={"suites": [3]}) as server:
        client = connect(account(server, tmp_path))
        assert read_watts(client) > 100
        client.close()


def test_threads_share_pyghmi_and_get_their_own_answers(bmc):
    """Eight sessions with one BMC, each for another record: an answer that went astray would show."""
    wrong: list[object] = []
    first = connect(bmc)
    numbers = [record[0] for record in first.read_records()]
    first.close()

    def ask(number: int) -> None:
        client = connect(bmc)
        for _ in range(40):
            answer = client.request_data(0x0A, 0x23, bytes([0, 0, number, 0, 0, 5]))
            if answer[2] != number:
                wrong.append((number, answer))
        client.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in numbers[:8]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_a_silent_bmc_delays_no_other(bmc):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        silent = connect(BmcAccount("127.0.0.1", deaf.getsockname()[1], "USERID", "x"), 5.0)
        client = connect(bmc)
        assert read_watts(client) > 100
        failed = []

        def wait() -> None:
            with pytest.raises(ReadFailed) as caught:
                read_watts(silent)
            failed.append(caught.value.code)

        waiting = threading.Thread(target=wait)
        waiting.start()
        for _ in range(3):
            read_watts(client)
        assert not failed, "the silent one is still waited for"
        waiting.join()
        assert failed == ["read-failed.no-answer"]
        silent.close()
        client.close()


def test_reconnecting_leaves_nothing_behind(bmc):
    for _ in range(30):
        client = connect(bmc)
        read_watts(client)
        client.close()
    wrong = BmcAccount(bmc.host, bmc.port, "nobody", bmc.password)
    for _ in range(10):
        with pytest.raises(MeterError) as caught:
            read_watts(connect(wrong))
        assert caught.value.code == "denied.user"
    assert len(lan.pyghmi.iosockets) < 20
    assert sum(len(handlers) for handlers in lan.pyghmi.Session.bmc_handlers.values()) < 10
    assert not lan.pyghmi.Session.initting_sessions


def test_an_idle_session_is_opened_anew(bmc, monkeypatch):
    link = lan.LanLink(bmc)
    client = Bmc(link, 60.0)
    read_watts(client)
    before = link._session
    monkeypatch.setattr(lan, "IDLE_S", 0.0)
    assert read_watts(client) > 100
    assert link._session is not before
    client.close()


def test_records_in_pieces(truth, tmp_path):
    with ServerProcess("bmc", truth, tmp_path, flaws={"sdr_limit": 16}) as server:
        client = connect(account(server, tmp_path))
        found = list(client.read_records())
        assert [parse_record(r).name for r in found][:2] == ["Sys Power", "PSU1 Input Power"]
        client.close()


def test_probing_without_a_login(bmc):
    assert probe_address(bmc.host, bmc.port, 60.0) == "ipmi"
    assert probe_address("nosuchname.invalid", 623, 60.0) == "name"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
        assert probe_address("127.0.0.1", port, 0.2) == "silent"
    assert probe_address("127.0.0.1", port, 60.0) == "closed"


@pytest.mark.parametrize("answer", [b"hello", b"\x06\x00\xff\x07" + bytes(30)])
def test_probing_something_else(answer):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))

        def reply() -> None:
            _, sender = other.recvfrom(100)
            other.sendto(answer, sender)

        thread = threading.Thread(target=reply)
        thread.start()
        assert probe_address("127.0.0.1", other.getsockname()[1], 60.0) == "other"
        thread.join()


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [
        ("Incorrect password provided", "Denied", "denied.password"),
        ("Invalid integrity check value reported in RAKP4", "Denied", "denied.password"),
        ("Unauthorized name in RAKP2", "Denied", "denied.user"),
        ("Unauthorized role or privilege level requested in RAKP2", "Denied", "denied.privilege"),
        ("Invalid data while requesting privelege level 4 for b'me'", "Denied", "denied.privilege"),
        ("Insufficient resources to create new session", "ReadFailed", "read-failed.login"),
        ("timeout", "ReadFailed", "read-failed.no-answer"),
        ("whatever", "ReadFailed", "read-failed.login"),
    ],
)
def test_failed_logins_are_told_apart(words, kind, code):
    error = lan.explain_login("BMC x", words, None, "me")
    assert (type(error).__name__, error.code) == (kind, code)
    assert error.why
    assert error.next


def test_a_login_that_stops_midway_is_not_silence():
    assert lan.explain_login("BMC x", "timeout", "EXPECTINGRAKP2", "me").code == "read-failed.login"
