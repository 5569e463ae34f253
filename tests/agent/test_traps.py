"""Traps as net-snmp sends them are worded and kept until they end; hostile datagrams do nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import every_row
from tests.waiting import until

from joulelab.agent import traps as module
from joulelab.agent.notification import MOST_BYTES, parse
from joulelab.agent.trap_names import worded
from joulelab.agent.traps import HELD_NS, LAST_NS, MOST_ACTIVE, MOST_COUNTED, Board, TrapListener
from joulelab.core.clock import NS
from joulelab.core.errors import ReadFailed, Unavailable
from joulelab.instruments.snmp import ber

E = "1.3.6.1.4.1."
APC, RARITAN, SENTRY, EATON = f"{E}318.0.", f"{E}13742.6.", f"{E}1718.4.", f"{E}534.6.6.7."
APC_PHASE = f"{E}318.1.1.12.2.3.1.1.4.1"


@pytest.fixture
def listening(tmp_path):
    if shutil.which("snmptrap") is None:
        pytest.skip("snmptrap is not installed: apt install snmp")
    board = Board()
    with TrapListener("127.0.0.1", 0, board, {"127.0.0.1": "pdu1"}) as listener:

        def send(*words, program="snmptrap"):
            environ = os.environ | {"SNMP_PERSISTENT_DIR": str(tmp_path), "MIBS": ""}
            to = f"127.0.0.1:{listener.address[1]}"
            told = [to if word == "TO" else word for word in words]
            done = subprocess.run([program, "-m", "", *told], env=environ, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr

        yield board, send, listener.address[1]


@pytest.mark.system
def test_conditions_begin_and_end(listening):
    board, send, _ = listening
    first = ("-v1", "-c", "any", "TO", f".{E}318", "127.0.0.1", "6")
    send(*first, "276", "", f".{APC_PHASE}", "i", "2")
    send("-v2c", "-c", "x", "TO", "", f".{SENTRY}100.0.14", f".{SENTRY}1.7.3.1.4.1.1.3", "i", "16")
    # An inform is acknowledged, or snmpinform would not end well.
    state = f".{RARITAN}5.2.4.1.3.1.1.2.1"
    send("-v2c", "-c", "x", "-t", "60", "TO", "", f".{RARITAN}0.62", state, "i", "6", program="snmpinform")
    send("-v2c", "-c", "x", "TO", "", f".{EATON}0.12", f".{EATON}3.3.1.5.0.1.2", "i", "4")
    send("-v1", "-c", "any", "TO", f".{E}318", "127.0.0.1", "0", "0", "")  # it started
    until(lambda: sum(board.counted().values()) == 5)
    assert {key: one.severity for key, one in board.active().items()} == {
        ("pdu1", "overload", "phase 2"): "critical",
        ("pdu1", "branch current", "1.1.3"): "warning",
        ("pdu1", "phase current", "1.1.2"): "critical",
        ("pdu1", "input current", "0.1.2"): "critical",
    }
    send(*first, "277", "", f".{APC_PHASE}", "i", "1")  # another phase
    send("-v2c", "-c", "x", "TO", "", f".{SENTRY}100.0.14", f".{SENTRY}1.7.3.1.4.1.1.3", "i", "0")
    send("-v2c", "-c", "x", "TO", "", f".{RARITAN}0.62", state, "i", "4")
    until(lambda: sum(board.counted().values()) == 8)
    assert [key[1] for key in board.active()] == ["overload", "input current"]
    send(*first, "277", "", f".{APC_PHASE}", "i", "2")
    until(lambda: sum(board.counted().values()) == 9)
    assert [key[1] for key in board.active()] == ["input current"]
    assert board.refused == 0


@pytest.mark.system
def test_version_three_and_noise_are_refused(listening):
    board, send, port = listening
    send("-v3", "-l", "noAuthNoPriv", "-u", "me", "-e", "0x80001f8804aabbccdd", "TO", "", f".{APC}276")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noise:
        for data in (b"\x30", b"\xff" * 60000, b"GET / HTTP/1.1\r\n\r\n"):
            noise.sendto(data, ("127.0.0.1", port))
    until(lambda: board.refused == 4)
    assert not board.counted()


@pytest.mark.system
def test_a_port_that_is_taken_is_told(listening):
    _, _, port = listening
    with pytest.raises(Unavailable, match=f"port {port} of 127.0.0.1"):
        TrapListener("127.0.0.1", port, Board(), {})


def trap(oid, *pairs, tag=0xA7, community=b"c"):
    """Encode a trap of version 2c."""
    named = [
        ("1.3.6.1.2.1.1.3.0", ber.encode_element(0x43, b"\x05")),
        ("1.3.6.1.6.3.1.1.4.1.0", ber.encode_element(6, ber.encode_oid(oid))),
    ]
    pairs = b"".join(
        ber.encode_element(0x30, ber.encode_element(6, ber.encode_oid(name)) + value)
        for name, value in [*named, *((n, ber.encode_integer(v)) for n, v in pairs)]
    )
    pdu = ber.encode_element(tag, ber.encode_integer(1) + ber.encode_integer(0) * 2 + ber.encode_element(0x30, pairs))
    return ber.encode_element(0x30, ber.encode_integer(1) + ber.encode_element(4, community) + pdu)


GOOD = trap(f"{APC}276", (APC_PHASE, 2))


def test_what_is_made_here_is_read():
    assert parse(GOOD).oid == f"{APC}276"
    assert parse(GOOD).values[APC_PHASE] == 2
    inform = trap(f"{APC}276", tag=0xA6)
    assert parse(inform).answer == inform.replace(b"\xa6", b"\xa2", 1)
    with pytest.raises(ReadFailed, match="malformed"):
        parse(trap(f"{APC}276", tag=0xA0))
    with pytest.raises(ReadFailed, match="malformed"):
        parse(trap(f"{APC}276", *((f"1.3.{n}", 1) for n in range(100))))


@pytest.mark.system  # pure, and slow
@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=200), st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255))))
def test_no_bytes_do_anything_but_be_refused(data):
    if isinstance(data, tuple):
        at, byte = data
        data = GOOD[:at] + bytes((byte,)) + GOOD[at + 1 :]
    try:
        found = parse(data)
    except ReadFailed:
        return
    worded(found.oid, found.values)


def test_names_and_datagrams_that_are_too_long_are_refused():
    huge = ber.encode_element(6, b"\xff" * 7000 + b"\x01")
    pdu = ber.encode_element(
        0xA4,
        huge
        + ber.encode_element(0x40, b"\0" * 4)
        + ber.encode_integer(6)
        + ber.encode_integer(1)
        + ber.encode_element(0x43, b"\1"),
    )
    data = ber.encode_element(0x30, ber.encode_integer(0) + ber.encode_element(4, b"c") + pdu)
    with pytest.raises(ReadFailed, match="malformed"):
        parse(data)
    with pytest.raises(ReadFailed, match="too long"):
        parse(GOOD + b"\0" * MOST_BYTES)


@every_row(
    ("oid", "values", "trap", "severity", "ends"),
    [
        (f"{APC}274", {}, "near overload", "warning", False),
        (f"{APC}275", {}, "near overload", "warning", True),
        (f"{APC}9", {}, "on battery", "critical", True),
        (f"{SENTRY}100.0.6", {f"{SENTRY}1.3.3.1.13.1.1": 17}, "input cord out of balance", "critical", False),
        (f"{SENTRY}100.0.12", {f"{SENTRY}1.6.3.1.1.1.1": 12}, "breaker or fuse", "critical", False),
        (f"{SENTRY}100.0.14", {}, "branch current", "unknown", False),
        (f"{RARITAN}0.65", {f"{RARITAN}5.3.3.1.3.1.2.15": 0}, "breaker trip", "critical", False),
        (f"{RARITAN}0.65", {f"{RARITAN}5.3.3.1.3.1.2.15": 1}, "breaker trip", "info", True),
        (f"{RARITAN}0.61", {f"{RARITAN}5.2.3.1.3.1.1.99": "x"}, "inlet sensor 99", "unknown", False),
        (f"{EATON}0.12", {f"{EATON}3.3.1.5.0.1.1": 3}, "input current", "warning", False),
        (f"{E}99999.1.2", {}, f"{E}99999.1.2", "unknown", False),
        ("1.3.6.1.6.3.1.1.5.3", {}, "1.3.6.1.6.3.1.1.5.3", "info", False),
    ],
)
def test_traps_are_worded(oid, values, trap, severity, ends):
    said = worded(oid, values)
    assert (said.trap, said.severity, said.ends) == (trap, severity, ends)


def test_what_is_not_known_is_held_for_a_while():
    now = [0]
    board = Board(now=lambda: now[0])
    board.heard("d", f"{E}9.9", {})
    board.heard("d", f"{APC}276", {})
    now[0] = HELD_NS + NS
    assert [key[1] for key in board.active()] == ["overload"]
    now[0] = LAST_NS + NS
    assert board.active() == {}


def test_a_flood_of_strange_traps_neither_fills_memory_nor_hides_a_known_one():
    board = Board()
    board.heard("pdu1", f"{APC}276", {})
    for n in range(3 * MOST_ACTIVE):
        board.heard(f"10.0.{n // 256}.{n % 256}", f"{E}{n}.1", {})
    assert len(board.active()) == MOST_ACTIVE
    assert ("pdu1", "overload", "") in board.active()
    assert len(board.counted()) <= MOST_COUNTED + 1
    assert sum(board.counted().values()) == 3 * MOST_ACTIVE + 1


@pytest.mark.system
def test_more_traps_than_a_second_may_have_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_A_SECOND", 10)
    board, now = Board(), [5 * NS]
    with (
        TrapListener("127.0.0.1", 0, board, {}, now=lambda: now[0]) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noise,
    ):
        for _ in range(50):
            noise.sendto(GOOD, listener.address)
        until(lambda: board.refused == 40)
        now[0] += NS
        noise.sendto(GOOD, listener.address)
        until(lambda: sum(board.counted().values()) == 11)
    assert board.refused == 40
