"""Turn the bytes of IPMI answers into numbers; an answer that has not exactly the right form raises ReadFailed."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from joulelab.core.errors import ReadFailed

# Base units of sensors (IPMI 2.0, table 43-15) that are read here.
CELSIUS, WATT, RPM = 1, 6, 18
FULL, COMPACT = 0x01, 0x02
REDUNDANCY = 0x0B  # the type of states of all supplies, or all fans, together
LINEAR, INVERSE = 0, 7
XCC_MODULUS_J = 2.0**32  # 32 bits of joules, and millijoules that never carry beyond them


def parse_dcmi_power(data: bytes) -> float:
    """Return the present power (W) of DCMI Get Power Reading. Raises ReadFailed, too, if it is not active."""
    if len(data) != 18 or data[0] != 0xDC:
        raise _explain_form("DCMI power reading", data, "18 bytes that begin with dc")
    power_w, state = int.from_bytes(data[1:3], "little"), data[17]
    if not state & 0x40 or power_w in (0, 0xFFFF):
        why = f"its DCMI reading is {power_w} W" if state & 0x40 else "its DCMI reading is not active"
        raise ReadFailed("the BMC does not measure power now", why=why, code="read-failed.no-reading")
    return float(power_w)


def parse_xcc(data: bytes) -> tuple[str, float]:
    """Return Lenovo XCC's answer (netfn 3Ah, command 32h): ("energy", J) of SD650 or ("power", W) of SD650 V2.

    Raises ReadFailed.
    """
    if len(data) not in (14, 38):
        raise _explain_form("XCC answer", data, "14 or 38 bytes")
    count, total, milli = struct.unpack_from("<HIH", data)
    (ms,) = struct.unpack_from("<H", data, len(data) - 2)
    if milli > 999 or ms > 999:
        raise _explain_form("XCC answer", data, "thousandths below 1000")
    if len(data) == 14:
        return "energy", total + milli / 1000
    if not count:
        raise ReadFailed("XCC gives no power now", why="it has no samples yet", code="read-failed.no-reading")
    return "power", (total + milli / 1000) / count


def parse_manufacturer(data: bytes) -> int:
    """Return the manufacturer's number of Get Device ID. Raises ReadFailed."""
    if not 11 <= len(data) <= 15:
        raise _explain_form("device id", data, "11 to 15 bytes")
    return int.from_bytes(data[6:9], "little") & 0xFFFFF


@dataclass(frozen=True, slots=True)
class SensorRecord:
    """Describe a sensor by its SDR: value = (m x + b 10^b_exp) 10^r_exp for a raw count x, or 1 by that.

    `unit` is the base unit, 0 for a composed one (W per hour); `percent` marks a share. A sensor that is not `analog`
    has states and no value; `redundancy` marks those of several devices together. One with another `owner` than the BMC
    (20h) or another `lun` has to be bridged to.
    """

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
    redundancy: bool = False
    form: int = 0
    function: int = 0
    m: int = 0
    b: int = 0
    b_exp: int = 0
    r_exp: int = 0

    @property
    def step(self) -> float:
        """Return the size of one count, in the sensor's unit."""
        return abs(self.m) * 10.0**self.r_exp


def parse_record(record: bytes) -> SensorRecord | None:
    """Return the sensor of an SDR, None for a record of another kind. Raises ReadFailed."""
    if len(record) < 5 or len(record) != 5 + record[4]:
        raise _explain_form("SDR", record, "as many bytes as its header states")
    if record[3] not in (FULL, COMPACT):
        return None
    named_at = 47 if record[3] == FULL else 31
    length = record[named_at] & 0x1F if len(record) > named_at else 32
    text = record[named_at + 1 : named_at + 1 + length]
    if len(text) != length:
        raise _explain_form("SDR", record, "enough bytes for its name")
    owner, lun, number, entity, instance = record[5:10]
    name = "".join(c for c in text.decode("latin-1") if c.isprintable()).strip()
    if record[named_at] >> 6 in (1, 2):  # packed: BCD or six bits per letter
        name = ""
    head = owner, lun & 3, number, entity, instance & 0x7F, record[12], name or f"sensor {number}"
    if record[3] == COMPACT or record[20] >> 6 == 3:
        return SensorRecord(*head, redundancy=record[13] == REDUNDANCY)
    units, base, m, m_high, b, b_high = (record[i] for i in (20, 21, 24, 25, 26, 27))
    return SensorRecord(
        *head,
        unit=0 if units & 0x3E else base,
        percent=bool(units & 1),
        analog=True,
        redundancy=record[13] == REDUNDANCY,
        form=units >> 6,
        function=record[23] & 0x7F,
        m=_sign_number(m | (m_high & 0xC0) << 2, 10),
        b=_sign_number(b | (b_high & 0xC0) << 2, 10),
        b_exp=_sign_number(record[29] & 0xF, 4),
        r_exp=_sign_number(record[29] >> 4, 4),
    )


def parse_reading(sensor: SensorRecord, data: bytes) -> float:
    """Return the value of Get Sensor Reading in the sensor's own unit. Raises ReadFailed."""
    if not 2 <= len(data) <= 4:
        raise _explain_form(f"reading of {sensor.name}", data, "2 to 4 bytes")
    count, flags = data[0], data[1]
    why = ""
    if not flags & 0x40:
        why = "scanning is disabled"
    elif flags & 0x20:
        why = "the reading is unavailable"
    elif not sensor.analog or sensor.function not in (LINEAR, INVERSE):
        why = "it is not a linear analog sensor"
    elif sensor.form == 0 and count == 0xFF:
        why = "its count is 255: the end of its scale, or no reading"
    if sensor.form == 1 and count & 0x80:  # ones' complement
        count -= 255
    elif sensor.form == 2:
        count = _sign_number(count, 8)
    value = (sensor.m * count + sensor.b * 10.0**sensor.b_exp) * 10.0**sensor.r_exp
    if sensor.function == INVERSE:
        why = why or ("" if value else "it stands still")
        value = 1.0 / (value or 1.0)
    if why:
        raise ReadFailed(f"{sensor.name} has no reading now", why=why, code="read-failed.no-reading")
    return value


def _sign_number(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 else value


def _explain_form(what: str, data: bytes, right: str) -> ReadFailed:
    return ReadFailed(
        f"the BMC's {what} is malformed", why=f"{len(data)} bytes, not {right}", code="read-failed.malformed"
    )
