"""Read SNMP traps and informs of versions 1 and 2c from datagrams, strictly: what is not one is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.errors import ReadFailed
from joulelab.instruments.snmp import ber

if TYPE_CHECKING:
    from collections.abc import Mapping

TRAP_1, INFORM, TRAP_2 = 0xA4, 0xA6, 0xA7
_ADDRESS, _TICKS = 0x40, 0x43
TRAP_OID = "1.3.6.1.6.3.1.1.4.1.0"
# The traps that RFC 3584 gives version 1's generic numbers.
GENERIC = "1.3.6.1.6.3.1.1.5"
ENTERPRISE_SPECIFIC = 6
# Traps of rack PDUs have some hundred bytes; none needs more, and a hostile one shall not cost time.
MOST_BYTES = 8192
MOST_VALUES = 64


@dataclass(frozen=True, slots=True)
class Notification:
    """Hold a trap: its name, its values by name, and what to send back (an inform wants to be acknowledged)."""

    oid: str
    values: Mapping[str, int | str]
    answer: bytes = b""


def parse(data: bytes) -> Notification:
    """Return the trap in a datagram. Raises ReadFailed for anything else, version 3 among it."""
    if len(data) > MOST_BYTES:
        raise ber.refuse_answer("it is too long")
    try:
        return _parse(data)
    except (ValueError, IndexError, OverflowError, RecursionError) as error:
        raise ber.refuse_answer(type(error).__name__) from None


def _parse(data: bytes) -> Notification:
    at, end = ber.expect_element(data, 0, len(data), ber.SEQUENCE)
    if end != len(data):
        raise ber.refuse_answer("something follows it")
    version, at = ber.read_integer(data, at, end)
    if version not in (0, 1):
        raise ReadFailed("version 3 is not read here", next="let the device send traps of version 2c")
    _, at = ber.read_octets(data, at, end)
    tag, start, stop = ber.find_element(data, at, end)
    if stop != end:
        raise ber.refuse_answer("something follows it")
    if version == 0 and tag == TRAP_1:
        return _first(data, start, stop)
    if version == 1 and tag in (TRAP_2, INFORM):
        answer = data[:at] + bytes((ber.RESPONSE,)) + data[at + 1 :] if tag == INFORM else b""
        pdu = ber.decode_pdu(bytes((ber.RESPONSE,)) + data[at + 1 : end], 0, end - at)
        values = _values(pdu)
        oid = values.pop(TRAP_OID, "")
        if not isinstance(oid, str) or not oid.startswith("1."):
            raise ber.refuse_answer("it has no name")
        return Notification(oid, values, answer)
    raise ber.refuse_answer(f"it is {tag:#x}, no trap")


def _first(data: bytes, at: int, end: int) -> Notification:
    """Read a trap of version 1 and name it as version 2 does."""
    start, at = ber.expect_element(data, at, end, ber.OID)
    enterprise = ber.decode_oid(data[start:at])
    _, at = ber.expect_element(data, at, end, _ADDRESS)
    generic, at = ber.read_integer(data, at, end)
    specific, at = ber.read_integer(data, at, end)
    _, at = ber.expect_element(data, at, end, _TICKS)
    if generic < 0 or specific < 0 or generic > ENTERPRISE_SPECIFIC:
        raise ber.refuse_answer("its trap number does not exist")
    body = ber.encode_integer(0) * 3 + data[at:end]
    whole = ber.encode_element(ber.RESPONSE, body)
    values = _values(ber.decode_pdu(whole, 0, len(whole)))
    own = generic == ENTERPRISE_SPECIFIC
    return Notification(f"{enterprise}.0.{specific}" if own else f"{GENERIC}.{generic + 1}", values)


def _values(pdu: ber.Pdu) -> dict[str, int | str]:
    if len(pdu.names) > MOST_VALUES:
        raise ber.refuse_answer("it has too many values")
    found: dict[str, int | str] = {}
    for name, value in zip(pdu.names, pdu.values, strict=True):
        if isinstance(value, ber.Name):
            found[ber.decode_oid(name)] = value.oid
        elif isinstance(value, bytes):
            found[ber.decode_oid(name)] = value.decode("utf-8", "replace")
        elif isinstance(value, int):
            found[ber.decode_oid(name)] = value
    return found
