"""Turn the bytes of IPMI answers into numbers; what has not exactly the form it must have raises ReadFailed."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.errors import ReadFailed

if TYPE_CHECKING:
    from collections.abc import Callable

# Base units of sensors (IPMI 2.0, table 43-15) as far as they are read here.
CELSIUS, FAHRENHEIT, KELVIN, WATT, RPM = 1, 2, 3, 6, 18
FULL, COMPACT = 0x01, 0x02
XCC_MODULUS_J = 2.0**32  # 32 bits of joules, and millijoules that never carry beyond them

_FUNCTIONS: dict[int, Callable[[float], float]] = {
    0: lambda x: x,
    1: math.log,
    2: math.log10,
    3: math.log2,
    4: math.exp,
    5: lambda x: 10.0**x,
    6: lambda x: 2.0**x,
    7: lambda x: 1.0 / x,
    8: lambda x: x**2,
    9: lambda x: x**3,
    10: math.sqrt,
    11: lambda x: math.copysign(abs(x) ** (1 / 3), x),
}
_SIX_BIT = "".join(chr(0x20 + i) for i in range(64))
_BCD = "0123456789 -.:,_"


def dcmi_power(data: bytes) -> float | None:
    """Return the present power (W) of DCMI Get Power Reading, None where it is not measured. Raises ReadFailed."""
    if len(data) != 18 or data[0] != 0xDC:
        raise _wrong("DCMI power reading", data, "18 bytes that begin with dc")
    now, _, _, _, _, _, state = struct.unpack("<4HIIB", data[1:])
    # Not active, or what BMCs without a reading say.
    return None if not state & 0x40 or now in (0, 0xFFFF) else float(now)


@dataclass(frozen=True, slots=True)
class Xcc:
    """Hold Lenovo's answer: an energy counter (J), or a power (W) where the model has none."""

    energy_j: float | None = None
    power_w: float | None = None


def xcc(data: bytes) -> Xcc:
    """Return what Lenovo's XCC says (netfn 3Ah, command 32h): SD650 energy or SD650 V2 power. Raises ReadFailed."""
    if len(data) == 14:
        _, joules, milli, _, ms = struct.unpack("<HIHIH", data)
        if milli > 999 or ms > 999:
            raise _wrong("XCC energy", data, "thousandths below 1000")
        return Xcc(energy_j=joules + milli / 1000)
    if len(data) == 38:
        count, total, milli = struct.unpack_from("<HIH", data)
        (ms,) = struct.unpack_from("<H", data, 36)
        if milli > 999 or ms > 999:
            raise _wrong("XCC power", data, "thousandths below 1000")
        if not count:
            raise ReadFailed("the BMC gave no power", where="XCC", why="it has no samples yet")
        return Xcc(power_w=(total + milli / 1000) / count)
    raise _wrong("XCC answer", data, "14 or 38 bytes")


def manufacturer(data: bytes) -> int:
    """Return the manufacturer's number of Get Device ID. Raises ReadFailed."""
    if not 11 <= len(data) <= 15:
        raise _wrong("device id", data, "11 to 15 bytes")
    return int.from_bytes(data[6:9], "little") & 0xFFFFF


@dataclass(frozen=True, slots=True)
class Sensor:
    """Describe a sensor of an SDR: value = f((m x + b 10^b_exp) 10^r_exp) for a raw count x.

    `unit` is the base unit, 0 where the unit is composed; `percent` says that it is a share. A sensor that is not
    `analog` has states and no value.
    """

    record: int
    owner: int
    lun: int
    number: int
    entity: int
    instance: int
    type: int
    name: str
    unit: int = 0
    percent: bool = False
    analog: bool = False
    form: int = 0
    function: int = 0
    m: int = 0
    b: int = 0
    b_exp: int = 0
    r_exp: int = 0

    @property
    def step(self) -> float:
        """Return what one count is worth, in the sensor's unit."""
        return abs(self.m) * 10.0**self.r_exp


def sdr_piece(data: bytes) -> tuple[int, bytes]:
    """Return the next record's id and the bytes that Get SDR gave. Raises ReadFailed."""
    if len(data) < 3:
        raise _wrong("SDR", data, "3 bytes or more")
    return int.from_bytes(data[:2], "little"), data[2:]


def sensor(record: bytes) -> Sensor | None:
    """Return the sensor of an SDR, None for a record of another kind. Raises ReadFailed."""
    if len(record) < 5 or len(record) != 5 + record[4]:
        raise _wrong("SDR", record, "as many bytes as its header says")
    if record[3] not in (FULL, COMPACT):
        return None
    named_at = 47 if record[3] == FULL else 31
    if len(record) <= named_at:
        raise _wrong("SDR", record, f"more than {named_at} bytes")
    name = _text(record[named_at], record[named_at + 1 :])
    number = int.from_bytes(record[:2], "little")
    owner, lun, key, entity, instance = record[5:10]
    plain = Sensor(number, owner, lun & 3, key, entity, instance & 0x7F, record[12], name)
    if record[3] == COMPACT or record[20] >> 6 == 3:
        return plain
    units, base, m, m_high, b, b_high = (record[i] for i in (20, 21, 24, 25, 26, 27))
    composed = bool(units & 0x3E)
    return Sensor(
        number, owner, lun & 3, key, entity, instance & 0x7F, record[12], name,
        unit=0 if composed else base, percent=bool(units & 1), analog=True, form=units >> 6,
        function=record[23] & 0x7F, m=_signed(m | (m_high & 0xC0) << 2, 10), b=_signed(b | (b_high & 0xC0) << 2, 10),
        b_exp=_signed(record[29] & 0xF, 4), r_exp=_signed(record[29] >> 4, 4),
    )  # fmt: skip


def reading(sensor: Sensor, data: bytes) -> float:
    """Return the value of Get Sensor Reading in the sensor's own unit. Raises ReadFailed."""
    if not is_reading(data):
        raise _wrong(f"reading of {sensor.name}", data, "2 to 4 bytes")
    count, flags = data[0], data[1]
    if not flags & 0x40:
        raise ReadFailed(f"{sensor.name} is not measured now", why="the BMC says: scanning disabled")
    if flags & 0x20:
        raise ReadFailed(f"{sensor.name} has no reading now", why="the BMC says: reading unavailable")
    if not sensor.analog or sensor.function not in _FUNCTIONS:
        raise ReadFailed(f"{sensor.name} has no value that can be converted", why="not a linear analog sensor")
    if sensor.form == 1 and count & 0x80:  # ones' complement
        count -= 255
    elif sensor.form == 2:
        count = _signed(count, 8)
    try:
        value = _FUNCTIONS[sensor.function]((sensor.m * count + sensor.b * 10.0**sensor.b_exp) * 10.0**sensor.r_exp)
    except (ValueError, ZeroDivisionError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise ReadFailed(f"{sensor.name} has no value now", why=f"its count {count} cannot be converted")
    return value


def is_reading(data: bytes) -> bool:
    """Tell whether an answer has the form of a sensor reading: count, flags, and up to two bytes of states."""
    return 2 <= len(data) <= 4


def celsius(sensor: Sensor, value: float) -> float:
    """Return a temperature in degrees Celsius."""
    if sensor.unit == FAHRENHEIT:
        return (value - 32.0) / 1.8
    return value - 273.15 if sensor.unit == KELVIN else value


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def _text(kind: int, data: bytes) -> str:
    """Return a name: 8-bit, packed 6-bit or BCD plus, by its type byte."""
    length = kind & 0x1F
    if len(data) < length:
        raise _wrong("name of a sensor", data, f"{length} bytes")
    data = data[:length]
    if kind >> 6 == 2:
        bits = int.from_bytes(data, "little")
        text = "".join(_SIX_BIT[bits >> 6 * i & 0x3F] for i in range(length * 8 // 6))
    elif kind >> 6 == 1:
        text = "".join(_BCD[byte >> 4] + _BCD[byte & 0xF] for byte in data)
    else:
        text = data.decode("latin-1")
    return "".join(c for c in text if c.isprintable()).strip()


def _wrong(what: str, data: bytes, right: str) -> ReadFailed:
    return ReadFailed(f"the BMC's {what} is malformed", why=f"{len(data)} bytes, not {right}")
