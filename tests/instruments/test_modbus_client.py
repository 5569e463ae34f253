"""The Modbus connection: what counts as an answer, and what it does when the other side misbehaves."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

import pytest

from joulelab.core.errors import ReadFailed
from joulelab.instruments.modbus.client import Connection, Refusal, Request, check_answer

ASKED = struct.pack(">HHHBBHH", 7, 0, 6, 1, 3, 100, 2)
RIGHT = struct.pack(">HHHBBB4s", 7, 0, 7, 1, 3, 4, b"\x45\x8b\xf2\x66")
REFUSED = struct.pack(">HHHBBB", 7, 0, 3, 1, 0x83, 2)


def test_whole_partial_and_wrong_answers_are_told_apart():
    assert check_answer(ASKED, RIGHT)
    assert check_answer(ASKED, REFUSED)
    for frame in (RIGHT, REFUSED):
        assert not any(check_answer(ASKED, frame[:n]) for n in range(len(frame)))
    for wrong, words in (
        (b"\0\x08" + RIGHT[2:], "another request"),
        (RIGHT[:2] + b"\0\1" + RIGHT[4:], "not Modbus"),
        (RIGHT[:6] + b"\2" + RIGHT[7:], "unit 2"),
        (RIGHT[:7] + b"\4" + RIGHT[8:], "of function 4"),
        (RIGHT[:8] + b"\2" + RIGHT[9:], "counts 2 bytes"),
        (RIGHT[:5] + b"\5" + RIGHT[6:], "announces 5"),
        (RIGHT + b"\0", "1 bytes follow"),
        (b"HTTP/1.1 400 Bad Request\r\n", "not Modbus"),
    ):
        with pytest.raises(ValueError, match=words):
            check_answer(ASKED, wrong)


@pytest.mark.parametrize("rounds", [2_000, pytest.param(20_000, marks=pytest.mark.campaign)])
def test_fuzzed_answers_never_pass_for_another_shape(rounds):
    """Wrong would be: passing as whole with another unit, function or number of registers than asked for."""
    rng = random.Random(3)
    passed = refused = 0
    for _ in range(rounds):
        frame = bytearray(rng.choice((RIGHT, REFUSED)))
        if rng.random() < 0.2:
            frame = bytearray(rng.randbytes(rng.randrange(40)))
        for _ in range(rng.randrange(3)):
            if frame:
                frame[rng.randrange(len(frame))] = rng.randrange(256)
        if rng.random() < 0.2:
            frame = frame[: rng.randrange(len(frame) + 1)] + rng.randbytes(rng.randrange(3))
        try:
            whole = check_answer(ASKED, bytes(frame))
        except ValueError:
            refused += 1
            continue
        if whole:
            passed += 1
            assert frame[6] == 1
            assert (frame[7], len(frame)) in ((3, 13), (0x83, 9))
            assert frame[7] == 0x83 or frame[8] == 4
    assert passed > 1000 * rounds / 20_000
    assert refused > 1000 * rounds / 20_000


class Peer:
    """Accept connections and answer each request by a function; None closes the connection."""

    def __init__(self, answer):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.accepted = 0
        self._answer = answer
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            with peer, contextlib.suppress(OSError):  # the client went
                peer.settimeout(60)
                while data := peer.recv(300):
                    answers = self._answer(data)
                    if answers is None:
                        break
                    for part in answers:
                        peer.sendall(part)
                        time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def reply(data, words=b"\x45\x8b\xf2\x66"):
    return data[:2] + b"\0\0" + struct.pack(">HBBB", 3 + len(words), data[6], data[7], len(words)) + words


def read(connection):
    return connection.read_blocks(1, [Request(3, 100, 2)])


@pytest.mark.system
def test_an_answer_in_pieces_and_a_connection_closed_while_idle():
    closing = []

    def answer(data):
        if closing:
            closing.clear()
            return None
        frame = reply(data)
        return [frame[:3], frame[3:9], frame[9:]]

    with Peer(answer) as peer:
        connection = Connection("m", "127.0.0.1", peer.port, 60.0)
        assert read(connection) == [(0x458B, 0xF266)]
        closing.append(1)
        assert read(connection) == [(0x458B, 0xF266)], "it connected again and asked again"
        assert peer.accepted == 2
        connection.close()
        connection.close()


@pytest.mark.system
def test_nonsense_is_told_at_once_and_does_not_spoil_the_next_reading():
    answers = iter([b"SSH-2.0-OpenSSH\r\n", None])

    def answer(data):
        wrong = next(answers, None)
        return [wrong] if wrong else [reply(data)]

    with Peer(answer) as peer:
        connection = Connection("m", "127.0.0.1", peer.port, 60.0)
        with pytest.raises(ReadFailed) as caught:  # it does not wait for its time limit
            read(connection)
        assert caught.value.code == "read-failed.malformed"
        assert read(connection) == [(0x458B, 0xF266)]
        connection.close()


@pytest.mark.system
def test_a_late_answer_is_not_taken_for_the_next():
    late, given_up = [], threading.Event()

    def answer(data):
        if not late:
            late.append(1)
            assert given_up.wait(60)
            return [reply(data, b"\0\1\0\2")]
        return [reply(data)]

    with Peer(answer) as peer:
        connection = Connection("m", "127.0.0.1", peer.port, 2.0)
        with pytest.raises(ReadFailed) as caught:
            read(connection)
        assert caught.value.code == "read-failed.no-answer"
        given_up.set()
        assert read(connection) == [(0x458B, 0xF266)]
        connection.close()


@pytest.mark.system
def test_exceptions_keep_the_connection():
    codes = iter((1, 2, 4, 6, 11, 99))
    with Peer(lambda data: [data[:2] + b"\0\0\0\3" + bytes([data[6], data[7] | 0x80, next(codes)])]) as peer:
        connection = Connection("m", "127.0.0.1", peer.port, 60.0)
        for code in (1, 2, 4, 6, 11, 99):
            with pytest.raises(Refusal) as caught:
                read(connection)
            assert (caught.value.exception, caught.value.code) == (code, "read-failed.exception")
        assert peer.accepted == 1
        connection.close()


@pytest.mark.system
def test_why_there_is_no_connection():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for host, code in (("127.0.0.1", "read-failed.refused"), ("no-such-host.invalid", "read-failed.unknown-name")):
        with pytest.raises(ReadFailed) as caught:
            read(Connection("m", host, port, 60.0))
        assert caught.value.code == code
