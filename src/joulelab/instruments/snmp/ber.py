"""Encode and decode the few BER forms of SNMP messages: names are encoded once, answers are checked byte by byte.

pysnmp takes about 2 ms of CPU to decode ten values; 500 PDUs a second would take a core (docs/decisions/0012).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from joulelab.core.errors import ReadFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

SEQUENCE, INTEGER, OCTETS, NULL, OID = 0x30, 0x02, 0x04, 0x05, 0x06
GET, GET_NEXT, RESPONSE, GET_BULK, REPORT = 0xA0, 0xA1, 0xA2, 0xA5, 0xA8
_IP_ADDRESS, _COUNTER32, _GAUGE32, _TICKS, _OPAQUE, _COUNTER64 = 0x40, 0x41, 0x42, 0x43, 0x44, 0x46
_TEXTS = frozenset((OCTETS, _IP_ADDRESS, _OPAQUE))
_INT32 = range(-(1 << 31), 1 << 31)
_RANGES = {
    INTEGER: _INT32,
    _COUNTER32: range(1 << 32),
    _GAUGE32: range(1 << 32),
    _TICKS: range(1 << 32),
    _COUNTER64: range(1 << 64),
}
_MISSING = frozenset((0x80, 0x81, 0x82))  # no such object, no such instance, end of the view
_LAST_STATUS = 18
_IP_BYTES = 4
_NUMBER_BYTES = 9  # a Counter64 with its sign


class Missing(Enum):
    """Stand for an object that the device does not have."""

    MISSING = "missing"


MISSING = Missing.MISSING


@dataclass(frozen=True, slots=True)
class Name:
    """Hold a value that is itself an object identifier."""

    oid: str


Value = int | bytes | Name | Missing | None


@dataclass(frozen=True, slots=True)
class Pdu:
    """Hold one answer: its tag, the request it belongs to, its error, encoded names and their values."""

    tag: int
    request_id: int
    status: int
    index: int
    names: list[bytes]
    values: list[Value]


def refuse_answer(why: str) -> ReadFailed:
    """Return the error for bytes that are no answer."""
    return ReadFailed(
        "the answer is malformed",
        why=why,
        next="check that SNMP answers on this port, and the device's firmware",
        code="read-failed.malformed",
    )


# Encoding.


def encode_element(tag: int, content: bytes) -> bytes:
    """Encode one element: tag, length, content."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(digits))) + digits + content


def encode_integer(number: int) -> bytes:
    """Encode a number in as few bytes as possible."""
    return encode_element(INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))


@lru_cache(maxsize=8192)
def encode_oid(oid: str) -> bytes:
    """Encode the content of an object identifier from its dotted form."""
    numbers = [int(part) for part in oid.strip(".").split(".")]
    content = bytearray()
    for number in (numbers[0] * 40 + numbers[1], *numbers[2:]):
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        content += bytes(reversed(digits))
    return bytes(content)


def encode_names(names: Sequence[bytes]) -> bytes:
    """Encode the list of names of a request, without values."""
    return encode_element(
        SEQUENCE, b"".join(encode_element(SEQUENCE, encode_element(OID, name) + b"\x05\x00") for name in names)
    )


def encode_request(tag: int, request_id: int, names: bytes, repetitions: int = 0) -> bytes:
    """Encode a request; `repetitions` is for GET_BULK."""
    return encode_element(tag, encode_integer(request_id) + encode_integer(0) + encode_integer(repetitions) + names)


# Decoding. All functions raise ReadFailed for what does not fit.


def find_element(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return tag, start and end of the element at a place."""
    if at + 2 > end:
        raise refuse_answer("it ends too early")
    size, start = data[at + 1], at + 2
    if size >= 0x80:
        count = size & 0x7F
        if not 0 < count <= 4 or start + count > end:
            raise refuse_answer("a length is not one")
        size, start = int.from_bytes(data[start : start + count], "big"), start + count
    if start + size > end:
        raise refuse_answer("an element is longer than the answer")
    return data[at], start, start + size


def expect_element(data: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Return start and end of the element at a place, which has this tag."""
    found, start, stop = find_element(data, at, end)
    if found != tag:
        raise refuse_answer(f"an element is {found:#x}, not {tag:#x}")
    return start, stop


def expect_last(data: bytes, at: int, end: int, tag: int) -> int:
    """Return the start of the element at a place, which has this tag and fills the rest."""
    start, stop = expect_element(data, at, end, tag)
    if stop != end:
        raise refuse_answer("bytes follow its end")
    return start


def decode_number(data: bytes, tag: int, start: int, stop: int) -> int:
    """Return a number of one of the numeric types."""
    if not 0 < stop - start <= _NUMBER_BYTES:
        raise refuse_answer("a number has no bytes, or too many")
    value = int.from_bytes(data[start:stop], "big", signed=True)
    if value not in _RANGES[tag]:
        raise refuse_answer("a number is out of the range of its type")
    return value


def read_integer(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return an INTEGER of 32 bits and where it ends."""
    start, stop = expect_element(data, at, end, INTEGER)
    return decode_number(data, INTEGER, start, stop), stop


def read_octets(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return an OCTET STRING and where it ends."""
    start, stop = expect_element(data, at, end, OCTETS)
    return data[start:stop], stop


def decode_oid(content: bytes) -> str:
    """Return the dotted form of an object identifier."""
    numbers, value, fresh = [], 0, True
    for byte in content:
        if fresh and byte == 0x80:
            raise refuse_answer("an object identifier has a leading zero")
        value, fresh = value << 7 | byte & 0x7F, byte < 0x80
        if fresh:
            numbers.append(value)
            value = 0
    if not numbers or not fresh:
        raise refuse_answer("an object identifier is cut short")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _decode_value(data: bytes, tag: int, start: int, stop: int) -> Value:
    if tag in _RANGES:
        return decode_number(data, tag, start, stop)
    if tag in _TEXTS:
        if tag == _IP_ADDRESS and stop - start != _IP_BYTES:
            raise refuse_answer("an address has not four bytes")
        return data[start:stop]
    if tag in _MISSING or tag == NULL:
        if start != stop:
            raise refuse_answer("an empty value has a length")
        return None if tag == NULL else MISSING
    if tag == OID:
        return Name(decode_oid(data[start:stop]))
    raise refuse_answer(f"a value has the type {tag:#x}")


def decode_pdu(data: bytes, at: int, end: int) -> Pdu:
    """Return the response or report that fills [at, end)."""
    kind, at, stop = find_element(data, at, end)
    if kind not in (RESPONSE, REPORT):
        raise refuse_answer(f"it is {kind:#x}, no response")
    if stop != end:
        raise refuse_answer("bytes follow its end")
    request_id, at = read_integer(data, at, end)
    status, at = read_integer(data, at, end)
    index, at = read_integer(data, at, end)
    if not 0 <= status <= _LAST_STATUS or index < 0:
        raise refuse_answer("its error number does not exist")
    at = expect_last(data, at, end, SEQUENCE)
    names: list[bytes] = []
    values: list[Value] = []
    while at < end:
        at, stop = expect_element(data, at, end, SEQUENCE)
        start, here = expect_element(data, at, stop, OID)
        names.append(data[start:here])
        tag, start, here = find_element(data, here, stop)
        if here != stop:
            raise refuse_answer("bytes follow a value")
        values.append(_decode_value(data, tag, start, here))
        at = stop
    return Pdu(kind, request_id, status, index, names, values)
