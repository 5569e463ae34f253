"""Build the sensors of a simulated BMC: SDR records by the IPMI 2.0 specification (chapter 43), and raw counts."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Base units, sensor types and entities of the specification, as far as this BMC uses them.
CELSIUS, WATT, RPM = 1, 6, 18
TEMPERATURE, FAN, POWER_SUPPLY, OTHER_UNITS = 0x01, 0x04, 0x08, 0x0B
BOARD, SUPPLY, ADD_IN_CARD, FANS, INLET = 7, 10, 11, 29, 64
THRESHOLD, SENSOR_SPECIFIC = 0x01, 0x6F
FULL, COMPACT = 0x01, 0x02
VERSION = 0x51


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor:
    """Describe a sensor: value = (m x + b 10^b_exp) 10^r_exp for a count x of 8 bits; `read` gives the value.

    A sensor without `read` is discrete and has a compact record; `state` is what it reports.
    """

    number: int
    name: str
    entity: tuple[int, int]
    type: int
    unit: int = 0
    m: int = 1
    b: int = 0
    b_exp: int = 0
    r_exp: int = 0
    signed: bool = False
    read: Callable[[], float] | None = None
    state: int = 0

    def count(self, value: float) -> int:
        """Return the count that shows a value best, as the byte that goes over the wire."""
        lowest, highest = (-128, 127) if self.signed else (0, 255)
        exact = (value / 10.0**self.r_exp - self.b * 10.0**self.b_exp) / self.m
        return min(max(round(exact), lowest), highest) & 0xFF

    def record(self, record_id: int) -> bytes:
        """Return the sensor's SDR."""
        kind = COMPACT if self.read is None else FULL
        body = self._compact() if self.read is None else self._full()
        return struct.pack("<HBBB", record_id, VERSION, kind, len(body)) + body

    def _head(self, reading_type: int) -> bytes:
        key = bytes([0x20, 0, self.number, *self.entity])
        return key + bytes([0x7F, 0x68, self.type, reading_type]) + bytes(6)

    def _name(self) -> bytes:
        text = self.name.encode("ascii")[:16]
        return bytes([0xC0 | len(text)]) + text

    def _full(self) -> bytes:
        m, b = self.m & 0x3FF, self.b & 0x3FF
        form = 0x80 if self.signed else 0x00
        factors = bytes([form, self.unit, 0, 0, m & 0xFF, m >> 8 << 6, b & 0xFF, b >> 8 << 6, 0])
        exponents = bytes([(self.r_exp & 0xF) << 4 | self.b_exp & 0xF])
        lowest, highest = (0x80, 0x7F) if self.signed else (0x00, 0xFF)
        limits = bytes([0, 0, 0, 0, highest, lowest])  # no nominal or normal values; maximum, minimum
        return self._head(THRESHOLD) + factors + exponents + limits + bytes(11) + self._name()

    def _compact(self) -> bytes:
        units = bytes([0xC0, 0, 0])  # no analog reading
        sharing = bytes([1, 0])
        return self._head(SENSOR_SPECIFIC) + units + sharing + bytes(6) + self._name()


class Repository:
    """Hold the records and give them out in pieces, as a BMC does."""

    def __init__(self, sensors: list[Sensor], limit: int) -> None:
        self.sensors = {sensor.number: sensor for sensor in sensors}
        self._records = [sensor.record(number) for number, sensor in enumerate(sensors, start=1)]
        self._limit = limit
        self._reservation = 0

    def info(self) -> bytes:
        """Return Get SDR Repository Info: version, records, free space, stamps, operations."""
        return struct.pack("<BHHIIB", VERSION, len(self._records), 0xFFFF, 1, 1, 0x22)

    def reserve(self) -> bytes:
        """Return a new reservation; older ones end."""
        self._reservation = self._reservation % 0xFFFF + 1
        return struct.pack("<H", self._reservation)

    def get(self, data: bytes) -> tuple[int, bytes]:
        """Return completion code and answer of Get SDR."""
        if len(data) != 6:
            return 0xC7, b""
        reservation, wanted, offset, count = struct.unpack("<HHBB", data)
        last = len(self._records)
        number = {0: 1, 0xFFFF: last}.get(wanted, wanted)
        if not 1 <= number <= last:
            return 0xCB, b""
        if offset and reservation != self._reservation:
            return 0xC5, b""
        record = self._records[number - 1]
        piece = record[offset:] if count == 0xFF else record[offset : offset + count]
        if len(piece) > self._limit:
            return 0xCA, b""
        if offset >= len(record):
            return 0xC9, b""
        return 0, struct.pack("<H", 0xFFFF if number == last else number + 1) + piece
