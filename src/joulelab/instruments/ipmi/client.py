"""Send IPMI commands to a BMC, over LAN or in-band, and read its sensor records."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, ReadFailed
from joulelab.instruments.ipmi import parse as ipmi_parse

if TYPE_CHECKING:
    from collections.abc import Iterator

# Completion codes that are told in words; others by their number.
CODES = {
    0xC0: "it is busy",
    0xC1: "it does not know the command",
    0xC3: "it ran out of time",
    0xC7: "the request has a wrong length",
    0xC9: "a parameter is out of range",
    0xCB: "there is no such sensor or record",
    0xCC: "a field of the request is not valid",
    0xCD: "the sensor or record does not support it",
    0xCE: "it could not answer",
    0xD0: "its sensor records are being updated",
    0xD2: "it is starting, or updating its firmware",
    0xD5: "not in its present state",
    0xFF: "unspecified error",
}
PRIVILEGE, RESERVATION_LOST = 0xD4, 0xC5
TOO_MANY = (0xCA, 0xC8, 0xC7, 0xFF)  # what BMCs say to a request for more bytes than they give at once
PIECE = 16
RESERVATIONS = 5
GET_SDR = (0x0A, 0x23)
LAST = 0xFFFF


class Link(Protocol):
    """Carry commands to one BMC."""

    where: str

    def raw(self, netfn: int, command: int, data: bytes, until_ns: int) -> tuple[int, bytes]:
        """Return completion code and data; raise ReadFailed, Denied, Unavailable by `until_ns` (monotonic)."""
        ...

    def close(self) -> None:
        """Let go of the BMC; closing twice is harmless."""
        ...


def deadline(timeout_s: float) -> int:
    """Return the monotonic time (ns) until which an answer counts."""
    return monotonic_ns() + round(timeout_s * NS)


def ask(link: Link, netfn: int, command: int, data: bytes, until_ns: int) -> bytes:
    """Return the data of an answer; raise Denied or ReadFailed for any completion code but 0."""
    code, answer = link.raw(netfn, command, data, until_ns)
    if code:
        raise refused(link.where, netfn, command, code)
    return answer


def refused(where: str, netfn: int, command: int, code: int) -> Denied | ReadFailed:
    """Return the error that a completion code stands for."""
    if code == PRIVILEGE:
        return Denied(
            "the BMC's user may not send this command",
            where=where,
            why=f"insufficient privilege for command {command:02x}h of {netfn:02x}h",
            next='set privilege = "administrator", or give the user more rights on the BMC',
        )
    why = f"completion code {code:02x}h: {CODES.get(code, 'see the manual of the BMC')}"
    return ReadFailed(f"the BMC refused command {command:02x}h of {netfn:02x}h", where=where, why=why)


def records(link: Link, timeout_s: float) -> Iterator[bytes]:
    """Give each record of the BMC's SDR repository, whole; `timeout_s` per command. Raises ReadFailed, Denied."""
    following, seen, whole = 0, set[int](), True
    while following not in seen:
        seen.add(following)
        answer = _whole(link, following, timeout_s) if whole else None
        whole = answer is not None
        following, record = answer or _in_pieces(link, following, timeout_s)
        yield record
        if following == LAST:
            return
    raise ReadFailed("the BMC's sensor records run in a circle", where=link.where, why=f"record {following} again")


def _whole(link: Link, number: int, timeout_s: float) -> tuple[int, bytes] | None:
    """Return the next record's id and this record, None where the BMC gives only pieces."""
    code, answer = link.raw(*GET_SDR, struct.pack("<HHBB", 0, number, 0, 0xFF), deadline(timeout_s))
    if code in TOO_MANY:
        return None
    if code:
        raise refused(link.where, *GET_SDR, code)
    return ipmi_parse.sdr_piece(answer)


def _in_pieces(link: Link, number: int, timeout_s: float) -> tuple[int, bytes]:
    for _ in range(RESERVATIONS):
        reserved = ask(link, 0x0A, 0x22, b"", deadline(timeout_s))
        if len(reserved) != 2:
            raise ReadFailed("the BMC's reservation is malformed", where=link.where, why=f"{len(reserved)} bytes")
        following, record = ipmi_parse.sdr_piece(
            ask(link, *GET_SDR, reserved + struct.pack("<HBB", number, 0, 5), deadline(timeout_s))
        )
        size = 5 + record[4] if len(record) == 5 else 0
        while len(record) < size:
            want = struct.pack("<HBB", number, len(record), min(PIECE, size - len(record)))
            code, answer = link.raw(*GET_SDR, reserved + want, deadline(timeout_s))
            if code == RESERVATION_LOST:
                break
            if code:
                raise refused(link.where, *GET_SDR, code)
            record += ipmi_parse.sdr_piece(answer)[1]
        else:
            return following, record
    why = "others read them too; its reservation was lost again and again"
    raise ReadFailed("the BMC's sensor records cannot be read", where=link.where, why=why)
