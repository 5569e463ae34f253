"""Write and read the few BER forms of SNMP messages: requests encoded once, answers checked byte for byte.

A GET of ten values takes pysnmp and pyasn1 about 2 ms of CPU, most of it in the general decoder; with 500 PDUs a
second that is a core. What polls do every second is therefore done here, on the bytes; keys come from pysnmp.
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
_TOPS = {_COUNTER32: 1 << 32, _GAUGE32: 1 << 32, _TICKS: 1 << 32, _COUNTER64: 1 << 64}
_MISSING = frozenset((0x80, 0x81, 0x82))
_LAST_STATUS = 18
_IP_BYTES = 4
_NUMBER_BYTES = 9  # a Counter64 with its sign


class Missing(Enum):
    """Stand for what the device does not have: no such object, no such instance, end of the view."""

    MISSING = "missing"


MISSING = Missing.MISSING


@dataclass(frozen=True, slots=True)
class Name:
    """Hold a value that is itself an object identifier."""

    oid: str


Value = int | bytes | Name | Missing | None


@dataclass(frozen=True, slots=True)
class Pdu:
    """Hold one answer: its tag, the request it belongs to, the error, encoded names and their values."""

    tag: int
    request_id: int
    status: int
    index: int
    names: list[bytes]
    values: list[Value]


def malformed(why: str) -> ReadFailed:
    """Return the error for bytes that are no answer."""
    return ReadFailed("the answer is malformed", why=why, next="another program on that port, or a faulty device")


# Writing.


def length(size: int) -> bytes:
    """Encode a length."""
    if size < 0x80:
        return bytes((size,))
    digits = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((0x80 | len(digits),)) + digits


def wrap(tag: int, content: bytes) -> bytes:
    """Encode one element."""
    return bytes((tag,)) + length(len(content)) + content


def integer(number: int) -> bytes:
    """Encode a number in as few bytes as there are."""
    return wrap(INTEGER, number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))


@lru_cache(maxsize=8192)
def oid_bytes(oid: str) -> bytes:
    """Encode an object identifier's content from its dotted form."""
    numbers = [int(part) for part in oid.strip(".").split(".")]
    content = bytearray()
    for number in (numbers[0] * 40 + numbers[1], *numbers[2:]):
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        content += bytes(reversed(digits))
    return bytes(content)


def asked(names: Sequence[bytes]) -> bytes:
    """Encode the list of names that a request asks for."""
    return wrap(SEQUENCE, b"".join(wrap(SEQUENCE, wrap(OID, name) + b"\x05\x00") for name in names))


def request(tag: int, request_id: int, names: bytes, repetitions: int = 0) -> bytes:
    """Encode a request; `repetitions` is for GET_BULK."""
    return wrap(tag, integer(request_id) + integer(0) + integer(repetitions) + names)


# Reading.


def element(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return tag, start and end of the element at a place. Raises ReadFailed."""
    if at + 2 > end:
        raise malformed("it ends too early")
    size, start = data[at + 1], at + 2
    if size >= 0x80:
        count = size & 0x7F
        if not 0 < count <= 4 or start + count > end:
            raise malformed("a length is not one")
        size, start = int.from_bytes(data[start : start + count], "big"), start + count
    if start + size > end:
        raise malformed("an element is longer than the answer")
    return data[at], start, start + size


def expect(data: bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """Return start and end of the element of this tag. Raises ReadFailed."""
    found, start, stop = element(data, at, end)
    if found != tag:
        raise malformed(f"an element is {found:#x}, not {tag:#x}")
    return start, stop


def number(data: bytes, start: int, stop: int) -> int:
    """Return a signed number. Raises ReadFailed."""
    if not 0 < stop - start <= _NUMBER_BYTES:
        raise malformed("a number has no bytes, or too many")
    return int.from_bytes(data[start:stop], "big", signed=True)


def small(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return an INTEGER of 32 bits and where it ends. Raises ReadFailed."""
    start, stop = expect(data, at, end, INTEGER)
    value = number(data, start, stop)
    if not -(1 << 31) <= value < 1 << 31:
        raise malformed("a number has more than 32 bits")
    return value, stop


def octets(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return an OCTET STRING and where it ends. Raises ReadFailed."""
    start, stop = expect(data, at, end, OCTETS)
    return data[start:stop], stop


def dotted(content: bytes) -> str:
    """Return the dotted form of an object identifier's content. Raises ReadFailed."""
    numbers, value, fresh = [], 0, True
    for byte in content:
        if fresh and byte == 0x80:
            raise malformed("an object identifier has a leading zero")
        value, fresh = value << 7 | byte & 0x7F, byte < 0x80
        if fresh:
            numbers.append(value)
            value = 0
    if not numbers or not fresh:
        raise malformed("an object identifier is cut short")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _value(data: bytes, tag: int, start: int, stop: int) -> Value:
    if tag == INTEGER:
        value = number(data, start, stop)
        if not -(1 << 31) <= value < 1 << 31:
            raise malformed("an INTEGER has more than 32 bits")
        return value
    if tag in _TOPS:
        value = number(data, start, stop)
        if not 0 <= value < _TOPS[tag]:
            raise malformed("an unsigned number is out of its range")
        return value
    if tag in _TEXTS:
        if tag == _IP_ADDRESS and stop - start != _IP_BYTES:
            raise malformed("an address has no four bytes")
        return data[start:stop]
    if tag in _MISSING or tag == NULL:
        if start != stop:
            raise malformed("nothing has a length")
        return MISSING if tag != NULL else None
    if tag == OID:
        return Name(dotted(data[start:stop]))
    raise malformed(f"a value has the type {tag:#x}")


def pdu(data: bytes, at: int, end: int) -> Pdu:
    """Read an answer that fills [at, end). Raises ReadFailed."""
    kind, at, stop = element(data, at, end)
    if kind not in (RESPONSE, REPORT):
        raise malformed(f"it is {kind:#x}, no response")
    if stop != end:
        raise malformed("something follows it")
    request_id, at = small(data, at, end)
    status, at = small(data, at, end)
    index, at = small(data, at, end)
    if not 0 <= status <= _LAST_STATUS or index < 0:
        raise malformed("its error is none that there is")
    at, stop = expect(data, at, end, SEQUENCE)
    if stop != end:
        raise malformed("something follows the values")
    names: list[bytes] = []
    values: list[Value] = []
    while at < end:
        at, stop = expect(data, at, end, SEQUENCE)
        start, here = expect(data, at, stop, OID)
        names.append(data[start:here])
        tag, start, here = element(data, here, stop)
        if here != stop:
            raise malformed("something follows a value")
        values.append(_value(data, tag, start, here))
        at = stop
    return Pdu(kind, request_id, status, index, names, values)
