"""Answers of BMCs become numbers only where their form is exactly right."""

from __future__ import annotations

import math
import random
import struct
from fractions import Fraction

import pytest

from joulelab.core.errors import ReadFailed
from joulelab.instruments.ipmi import parse as ipmi_parse
from joulelab.instruments.ipmi.inband import answer_bytes
from joulelab.twin.servers import _bmc_sdr as sdr

DCMI = b"\xdc" + struct.pack("<4HIIB", 4478, 4000, 5000, 4400, 1_700_000_000, 1000, 0x40)
ENERGY = struct.pack("<HIHIH", 3, 4_294_967_295, 999, 1_700_000_000, 250)
POWER = struct.pack("<HIH", 100, 427_467, 500) + bytes(24) + struct.pack("<IH", 1_700_000_000, 250)
INLET = sdr.Sensor(
    number=0x40, name="Inlet Temp", entity=(64, 1), type=1, unit=1, m=5, r_exp=-1, signed=True, read=lambda: 0.0
)
FAN = sdr.Sensor(number=0x51, name="Fan 1", entity=(29, 1), type=4, unit=18, m=60, b=12, b_exp=2, read=lambda: 0.0)
PSU = sdr.Sensor(number=0x11, name="PSU1 Input Power", entity=(10, 1), type=11, unit=6, m=16, read=lambda: 0.0)
STATUS = sdr.Sensor(number=0x21, name="PSU1 Status", entity=(10, 1), type=8, state=1)


def parsed(sensor: sdr.Sensor) -> ipmi_parse.Sensor:
    found = ipmi_parse.sensor(sensor.record(7))
    assert found is not None
    return found


def test_dcmi_power():
    assert ipmi_parse.dcmi_power(DCMI) == 4478.0


@pytest.mark.parametrize("state", [0x00, 0x3F, 0x80])
def test_dcmi_that_is_not_active_is_no_reading(state):
    assert ipmi_parse.dcmi_power(DCMI[:-1] + bytes([state])) is None


@pytest.mark.parametrize("sentinel", [0, 0xFFFF])
def test_a_sentinel_is_no_power(sentinel):
    assert ipmi_parse.dcmi_power(DCMI[:1] + struct.pack("<H", sentinel) + DCMI[3:]) is None


def test_xcc_in_both_forms():
    assert ipmi_parse.xcc(ENERGY) == ipmi_parse.Xcc(energy_j=4_294_967_295.999)
    assert ipmi_parse.xcc(POWER).power_w == pytest.approx(4274.675)
    assert ipmi_parse.xcc(POWER).energy_j is None


def test_xcc_without_samples_is_no_power():
    with pytest.raises(ReadFailed, match="no power"):
        ipmi_parse.xcc(bytes(2) + POWER[2:])


def test_manufacturer():
    assert ipmi_parse.manufacturer(bytes([0x20, 1, 1, 0, 2, 3, 0x66, 0x4A, 0x00, 1, 0])) == 19046


@pytest.mark.parametrize(("built", "value", "step"), [(INLET, -12.5, 0.5), (FAN, 7440.0, 60.0), (PSU, 1168.0, 16.0)])
def test_sensors_are_scaled_by_their_record(built, value, step):
    sensor = parsed(built)
    assert (sensor.name, sensor.number, sensor.entity) == (built.name, built.number, built.entity[0])
    assert sensor.step == pytest.approx(step)
    assert ipmi_parse.reading(sensor, bytes([built.count(value), 0xC0, 0xC0])) == pytest.approx(value)


def test_a_compact_record_has_a_name_and_no_value():
    sensor = parsed(STATUS)
    assert (sensor.name, sensor.analog) == ("PSU1 Status", False)
    with pytest.raises(ReadFailed, match="no value"):
        ipmi_parse.reading(sensor, b"\x00\xc0\x01\x00")


@pytest.mark.parametrize(("flags", "said"), [(0x80, "scanning disabled"), (0xE0, "unavailable"), (0x20, "disabled")])
def test_flags_that_forbid_a_reading(flags, said):
    with pytest.raises(ReadFailed, match=said):
        ipmi_parse.reading(parsed(PSU), bytes([70, flags, 0xC0]))


def test_complements_functions_and_composed_units():
    record = bytearray(PSU.record(1))
    record[20] = 0x40  # ones' complement
    assert ipmi_parse.reading(_sensor(record), b"\xfe\xc0") == -16.0
    record[20] = 0x80  # two's complement
    assert ipmi_parse.reading(_sensor(record), b"\xfe\xc0") == -32.0
    record[20] = 0x08  # W per ...: not a power
    assert _sensor(record).unit == 0
    record[20], record[23] = 0x00, 7  # 1/x
    assert ipmi_parse.reading(_sensor(record), b"\x01\xc0") == 1 / 16
    with pytest.raises(ReadFailed, match="no value now"):
        ipmi_parse.reading(_sensor(record), b"\x00\xc0")
    record[23] = 0x70  # non-linear: its factors would have to be asked for each count
    with pytest.raises(ReadFailed, match="converted"):
        ipmi_parse.reading(_sensor(record), b"\x01\xc0")


def _sensor(record: bytearray) -> ipmi_parse.Sensor:
    found = ipmi_parse.sensor(bytes(record))
    assert found is not None
    return found


def test_names_in_six_bits_and_bcd():
    record = bytearray(PSU.record(1)[:48])
    # "IPMI" packed into three bytes is the specification's own example: 29h DCh A6h.
    record[47] = 0x83
    record += b"\x29\xdc\xa6"
    record[4] = len(record) - 5
    assert _sensor(record).name == "IPMI"
    record[47] = 0x43
    assert _sensor(record).name == "29:. 6"


def test_temperatures_in_celsius():
    for unit, value in ((1, 25.0), (2, 77.0), (3, 298.15)):
        record = bytearray(INLET.record(1))
        record[21] = unit
        assert ipmi_parse.celsius(_sensor(record), value) == pytest.approx(25.0)


def test_other_records_are_passed_over():
    assert ipmi_parse.sensor(b"\x01\x00\x51\x11\x03abc") is None


# Fuzzing. "Wrong" is a number from an answer that has not exactly the form of a reading, or another number than plain
# integer arithmetic on the same bytes gives.

COUNT = 12_000


def mutations(real: list[bytes], seed: int):
    draw = random.Random(seed)
    for _ in range(COUNT):
        kind = draw.randrange(5)
        data = bytearray(draw.choice(real))
        if kind == 0:
            data = bytearray(draw.randbytes(draw.randrange(64)))
        elif kind == 1:
            data = data[: draw.randrange(len(data) + 1)]
        elif kind == 2:
            data += draw.randbytes(draw.randrange(1, 20))
        for _ in range(draw.randrange(4) if data else 0):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        yield bytes(data)


def answered(parse, *arguments):
    """Return what a parser gives, None for its typed error; anything else it raises fails the test."""
    try:
        return parse(*arguments)
    except ReadFailed:
        return None


def test_fuzzed_dcmi():
    numbers = 0
    for data in mutations([DCMI], 1):
        watts = answered(ipmi_parse.dcmi_power, data)
        right = len(data) == 18 and data[0] == 0xDC and data[17] >> 6 & 1 and data[1] + 256 * data[2] not in (0, 65535)
        assert watts == (data[1] + 256 * data[2] if right else None)
        numbers += watts is not None
    assert COUNT / 20 < numbers < COUNT


def test_fuzzed_xcc():
    numbers = 0
    for data in mutations([ENERGY, POWER], 2):
        found = answered(ipmi_parse.xcc, data)
        right = None
        if len(data) in (14, 38):
            first, whole, milli = (sum(data[a + i] << 8 * i for i in range(n)) for a, n in ((0, 2), (2, 4), (6, 2)))
            if milli < 1000 and data[-2] + 256 * data[-1] < 1000 and (len(data) == 14 or first):
                exact = Fraction(1000 * whole + milli, 1000) / (1 if len(data) == 14 else first)
                right = float(exact)
        shown = None if found is None else found.energy_j if len(data) == 14 else found.power_w
        assert shown == (right if right is None else pytest.approx(right, rel=1e-12))
        numbers += shown is not None
    assert COUNT / 20 < numbers < COUNT


def test_fuzzed_readings():
    numbers = 0
    sensor = parsed(FAN)
    for data in mutations([b"\x66\xc0\xc0", b"\x10\xc0", b"\x10\xe0\x00\x00"], 3):
        value = answered(ipmi_parse.reading, sensor, data)
        right = 2 <= len(data) <= 4 and data[1] & 0x60 == 0x40
        assert value == (data[0] * 60 + 1200 if right else None)
        numbers += value is not None
    assert COUNT / 20 < numbers < COUNT


def test_fuzzed_records():
    """A damaged record gives a typed error, or a sensor whose numbers are those of its bytes."""
    sensors = 0
    real = [s.record(9) for s in (INLET, FAN, PSU, STATUS)]
    for data in mutations(real, 4):
        sensor = answered(ipmi_parse.sensor, data)
        if sensor is None:
            continue
        sensors += 1
        assert len(data) == 5 + data[4]
        assert data[3] in (1, 2)
        assert sensor.number == data[7]
        value = answered(ipmi_parse.reading, sensor, b"\x42\xc0")
        if value is not None:
            assert sensor.analog
            assert math.isfinite(value)
        if value is not None and sensor.function == 0:
            m, b = (_twos(data[at] | data[at + 1] >> 6 << 8, 10) for at in (24, 26))
            b_exp, r_exp = _twos(data[29] & 15, 4), _twos(data[29] >> 4, 4)
            exact = (m * 0x42 + b * Fraction(10) ** b_exp) * Fraction(10) ** r_exp
            assert value == pytest.approx(float(exact), rel=1e-9, abs=1e-9 * (abs(b) + 1) * 10.0 ** (b_exp + r_exp))
    assert COUNT / 20 < sensors < COUNT


def _twos(value: int, bits: int) -> int:
    return value - 2**bits if value >= 2 ** (bits - 1) else value


def test_fuzzed_device_ids_and_pieces():
    device = bytes([0x20, 1, 1, 0, 2, 3, 0x66, 0x4A, 0x00, 1, 0])
    for data in mutations([device, b"\x02\x00" + PSU.record(1)], 5):
        number = answered(ipmi_parse.manufacturer, data)
        assert number == (data[6] + 256 * data[7] + 65536 * (data[8] & 15) if 11 <= len(data) <= 15 else None)
        piece = answered(ipmi_parse.sdr_piece, data)
        assert piece == ((data[0] + 256 * data[1], data[2:]) if len(data) > 2 else None)


def test_fuzzed_output_of_ipmitool():
    real = [b" dc 7e 11 40\n", b" 00 00 b2 10 00 00 a5 02\n b5 4a\n", b"\n"]
    numbers = 0
    for data in mutations(real, 6):
        text = data.decode("latin-1")
        found = answered(answer_bytes, text)
        words = text.split()
        right = all(len(w) == 2 and all(c in "0123456789abcdefABCDEF" for c in w) for w in words)
        assert found == (bytes(int(w, 16) for w in words) if right else None)
        numbers += found is not None
    assert COUNT / 20 < numbers < COUNT
