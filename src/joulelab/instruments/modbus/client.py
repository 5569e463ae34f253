"""Read registers by Modbus TCP: strict about answers, bounded in time, connecting again by itself.

Reading registers is one frame of 12 bytes and its answer: no library takes part (docs/decisions/0025).
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ReadFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

PORT = 502
LONGEST = 125  # registers that one answer can hold

# Exception codes of the protocol.
MEANING = {
    1: "it does not know this function code",
    2: "it has no such registers",
    3: "it refuses this number of registers at once",
    4: "it failed while it looked the value up",
    5: "it needs longer for the answer than it has",
    6: "it is busy with another request",
    8: "its memory is damaged",
    10: "the gateway has no way to this unit id",
    11: "the gateway got no answer from this unit id",
}
FINAL = (1, 2, 3, 10)  # the same request gets the same exception again


class Request(NamedTuple):
    """Name a block of registers: function 3 (holding) or 4 (input), first address on the wire, number of registers."""

    function: int
    address: int
    size: int


class Refusal(ReadFailed):
    """Report an exception answer; `exception` is its number."""

    def __init__(self, where: str, unit: int, request: Request, exception: int) -> None:
        last = request.address + request.size - 1
        block = f"registers {request.address} to {last} by function {request.function} of unit {unit}"
        why = f"exception {exception}: {MEANING.get(exception, 'a code that the protocol does not define')}"
        advice = f"joulelab doctor {where}"
        super().__init__(f"the device refuses {block}", where=where, why=why, next=advice, code="read-failed.exception")
        self.exception = exception


class ConnectionLost(ReadFailed):
    """Report a connection that ended while an answer was due."""


def check_answer(request: bytes, answer: bytes) -> bool:
    """Return whether an answer is whole, False for the beginning of one. Raises ValueError for a wrong answer.

    Both are frames as on the wire: transaction, protocol 0, length, unit, function, and then count and registers.
    Some devices answer with transaction 0.
    """
    head = answer[:8]
    if head[2:4] != b"\0\0"[: len(head[2:4])]:
        raise ValueError("its protocol id is not 0: this is not Modbus TCP")
    if len(head) >= 2 and head[:2] not in (request[:2], b"\0\0"):
        raise ValueError("it answers another request")
    if len(head) < 8:
        return False
    length, function = int.from_bytes(head[4:6], "big"), head[7]
    if head[6] != request[6]:
        raise ValueError(f"unit {head[6]} answers in place of unit {request[6]}")
    wanted = 2 * int.from_bytes(request[10:12], "big")
    if function not in (request[7], request[7] | 0x80):
        raise ValueError(f"it is of function {function}, the request was of {request[7]}")
    if length != (3 if function & 0x80 else 3 + wanted):
        raise ValueError(f"it announces {length} bytes, which does not fit the request")
    if len(answer) > 6 + length:
        raise ValueError(f"{len(answer) - 6 - length} bytes follow it")
    if not function & 0x80 and len(answer) > 8 and answer[8] != wanted:
        raise ValueError(f"it counts {answer[8]} bytes of registers, the request was for {wanted}")
    return len(answer) == 6 + length


class Connection:
    """Talk to one address from one thread.

    It connects when first used and again after the connection was lost. A late answer belongs to a connection that is
    closed by then, so that no answer is ever taken for another request's.
    """

    def __init__(self, where: str, host: str, port: int, timeout_s: float) -> None:
        self._where, self._host, self._port, self._timeout_s = where, host, port, timeout_s
        self._socket: socket.socket | None = None
        self._number = 0

    def read_blocks(self, unit: int, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the registers of each block within the time limit. Raises Refusal, ReadFailed."""
        until_ns = monotonic_ns() + round(self._timeout_s * NS)
        is_reused = self._socket is not None
        try:
            return [self._read_block(unit, request, until_ns) for request in requests]
        except ConnectionLost:
            if not is_reused:  # else it was closed while idle, or the device has restarted
                raise
        return [self._read_block(unit, request, until_ns) for request in requests]

    def exchange_frames(self, frame: bytes, until_ns: int) -> bytes:
        """Return the whole answer to a frame. Every request passes through here. Raises ReadFailed."""
        try:
            link = self._socket = self._socket or self._open_socket(until_ns)
            link.settimeout(_left_s(until_ns))
            link.sendall(frame)
            answer = b""
            while not check_answer(frame, answer):
                link.settimeout(_left_s(until_ns))
                piece = link.recv(1024)
                if not piece:
                    raise ConnectionResetError(0, f"{self._host} closed it")
                answer += piece
        except TimeoutError:
            unit = frame[6]
            why = f"no answer from {self._host}:{self._port}, unit {unit}, within {self._timeout_s:g} s"
            raise self._fail_reading("the device does not answer", why, "read-failed.no-answer") from None
        except ValueError as error:
            raise self._fail_reading("the answer is malformed", str(error), "read-failed.malformed") from None
        except OSError as error:
            self.close()
            why, advice = error.strerror or type(error).__name__, f"joulelab doctor {self._where}"
            raise ConnectionLost(
                "the connection was lost", where=self._where, why=why, next=advice, code="read-failed.lost"
            ) from None
        return answer

    def close(self) -> None:
        """Close the connection; it opens again when next used."""
        link, self._socket = self._socket, None
        if link is not None:
            link.close()

    def _read_block(self, unit: int, request: Request, until_ns: int) -> tuple[int, ...]:
        self._number = self._number % 0xFFFF + 1
        frame = struct.pack(">HHHBBHH", self._number, 0, 6, unit, *request)
        answer = self.exchange_frames(frame, until_ns)
        if answer[7] & 0x80:
            raise Refusal(self._where, unit, request, answer[8])
        return struct.unpack(f">{request.size}H", answer[9:])

    def _open_socket(self, until_ns: int) -> socket.socket:
        place = f"{self._host}:{self._port}"
        try:
            return socket.create_connection((self._host, self._port), _left_s(until_ns))
        except socket.gaierror as error:
            why, code = f"the name {self._host} does not resolve: {error.strerror}", "read-failed.unknown-name"
        except ConnectionRefusedError:
            why, code = (
                f"{place} refuses connections: the host is up, nothing serves Modbus there",
                "read-failed.refused",
            )
        except TimeoutError:
            why, code = f"{place} does not answer: the host is down, or a firewall drops it", "read-failed.unreachable"
        except OSError as error:
            why, code = f"{place}: {error.strerror or type(error).__name__}", "read-failed.unreachable"
        raise self._fail_reading("it cannot be reached", why, code)

    def _fail_reading(self, what: str, why: str, code: str) -> ReadFailed:
        """Close the connection and return the error of a reading."""
        self.close()
        return ReadFailed(what, where=self._where, why=why, next=f"joulelab doctor {self._where}", code=code)


def _left_s(until_ns: int) -> float:
    left_s = (until_ns - monotonic_ns()) / NS
    if left_s <= 0:
        raise TimeoutError
    return left_s
