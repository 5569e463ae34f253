"""Answers of BMCs become numbers only if their form is exactly right."""

from __future__ import annotations

import random
import struct
from fractions import Fraction

import pytest
from tests.rows import every_row

from joulelab.core.errors import ReadFailed
from joulelab.instruments.ipmi import answers
from joulelab.instruments.ipmi.client import parse_output
from joulelab.twin.servers import bmc as sdr

DCMI = b"\xdc" + struct.pack("<4HIIB", 4478, 4000, 5000, 4400, 1_700_000_000, 1000, 0x40)
ENERGY = struct.pack("<HIHIH", 3, 4_294_967_295, 999, 1_700_000_000, 250)
POWER = struct.pack("<HIH", 100, 427_467, 500) + bytes(24) + struct.pack("<IH", 1_700_000_000, 250)
INLET = sdr.BmcSensor(
    number=0x40, name="Inlet Temp", entity=(64, 1), type=1, unit=1, m=5, r_exp=-1, signed=True, read=lambda: 0.0
)
FAN = sdr.BmcSensor(number=0x51, name="Fan 1", entity=(29, 1), type=4, unit=18, m=60, b=12, b_exp=2, read=lambda: 0.0)
PSU = sdr.BmcSensor(number=0x11, name="PSU1 Input Power", entity=(10, 1), type=11, unit=6, m=16, read=lambda: 0.0)
STATUS = sdr.BmcSensor(number=0x21, name="PSU1 Status", entity=(10, 1), type=8, state=1)


def parsed(record: bytes | bytearray) -> answers.SensorRecord:
    found = answers.parse_record(bytes(record))
    assert found is not None
    return found


def refusal(parse, *arguments) -> str:
    with pytest.raises(ReadFailed) as caught:
        parse(*arguments)
    assert caught.value.why
    return caught.value.code


def test_dcmi_power():
    assert answers.parse_dcmi_power(DCMI) == 4478.0
    for state in (0x00, 0x3F, 0x80):  # not active
        assert refusal(answers.parse_dcmi_power, DCMI[:-1] + bytes([state])) == "read-failed.no-reading"
    for mark in (0, 0xFFFF):
        data = DCMI[:1] + struct.pack("<H", mark) + DCMI[3:]
        assert refusal(answers.parse_dcmi_power, data) == "read-failed.no-reading"


def test_xcc_in_both_forms():
    assert answers.parse_xcc(ENERGY) == ("energy", 4_294_967_295.999)
    assert answers.parse_xcc(POWER) == ("power", pytest.approx(4274.675))
    assert refusal(answers.parse_xcc, bytes(2) + POWER[2:]) == "read-failed.no-reading", "it has no samples yet"


@pytest.mark.parametrize(("built", "value", "step"), [(INLET, -12.5, 0.5), (FAN, 7440.0, 60.0), (PSU, 1168.0, 16.0)])
def test_sensors_are_scaled_by_their_record(built, value, step):
    sensor = parsed(built.make_record(7))
    assert (sensor.name, sensor.number, sensor.entity) == (built.name, built.number, built.entity[0])
    assert sensor.step == pytest.approx(step)
    assert answers.parse_reading(sensor, bytes([built.encode_value(value), 0xC0, 0xC0])) == pytest.approx(value)


@every_row(
    ("data", "code"),
    [
        (b"\x46\x80\xc0", "read-failed.no-reading"),  # scanning disabled
        (b"\x46\xe0\xc0", "read-failed.no-reading"),  # unavailable
        (b"\xff\xc0\xc0", "read-failed.no-reading"),  # the end of its scale
        (b"\x46", "read-failed.malformed"),
        (b"\x46\xc0\xc0\xc0\xc0", "read-failed.malformed"),
    ],
)
def test_readings_that_are_none(data, code):
    assert refusal(answers.parse_reading, parsed(PSU.make_record(7)), data) == code


def test_a_compact_record_has_a_name_and_no_value():
    sensor = parsed(STATUS.make_record(7))
    assert (sensor.name, sensor.analog) == ("PSU1 Status", False)
    assert refusal(answers.parse_reading, sensor, b"\x00\xc0\x01\x00") == "read-failed.no-reading"


def test_complements_functions_and_composed_units():
    record = bytearray(PSU.make_record(1))
    record[20] = 0x40  # ones' complement
    assert answers.parse_reading(parsed(record), b"\xfe\xc0") == -16.0
    record[20] = 0x80  # two's complement
    assert answers.parse_reading(parsed(record), b"\xfe\xc0") == -32.0
    record[20] = 0x08  # W per ...: not a power
    assert parsed(record).unit == 0
    record[20], record[23] = 0x00, 7  # 1/x, as some fans have it
    assert answers.parse_reading(parsed(record), b"\x01\xc0") == 1 / 16
    assert refusal(answers.parse_reading, parsed(record), b"\x00\xc0") == "read-failed.no-reading"
    for function in (1, 0x70):  # a logarithm; non-linear
        record[23] = function
        assert refusal(answers.parse_reading, parsed(record), b"\x01\xc0") == "read-failed.no-reading"


def test_a_packed_name_is_replaced_by_the_number():
    record = bytearray(PSU.make_record(1)[:48]) + b"\x29\xdc\xa6"
    record[47], record[4] = 0x83, len(record) - 5  # six bits per letter
    assert parsed(record).name == "sensor 17"


def test_other_records_are_passed_over():
    assert answers.parse_record(b"\x01\x00\x51\x11\x03abc") is None


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
    """Return the number of a parser, None for its typed error; anything else it raises fails the test."""
    try:
        return parse(*arguments)
    except ReadFailed:
        return None


def test_fuzzed_dcmi():
    numbers = 0
    for data in mutations([DCMI], 1):
        watts = answered(answers.parse_dcmi_power, data)
        right = len(data) == 18 and data[0] == 0xDC and data[17] >> 6 & 1 and data[1] + 256 * data[2] not in (0, 65535)
        assert watts == (data[1] + 256 * data[2] if right else None)
        numbers += watts is not None
    assert COUNT / 20 < numbers < COUNT


def test_fuzzed_xcc():
    numbers = 0
    for data in mutations([ENERGY, POWER], 2):
        found = answered(answers.parse_xcc, data)
        right = None
        if len(data) in (14, 38):
            first, whole, milli = (sum(data[a + i] << 8 * i for i in range(n)) for a, n in ((0, 2), (2, 4), (6, 2)))
            if milli < 1000 and data[-2] + 256 * data[-1] < 1000 and (len(data) == 14 or first):
                right = float(Fraction(1000 * whole + milli, 1000) / (1 if len(data) == 14 else first))
        assert found == (right and ("energy" if len(data) == 14 else "power", pytest.approx(right, rel=1e-12)))
        numbers += found is not None
    assert COUNT / 20 < numbers < COUNT


def test_fuzzed_readings():
    numbers = 0
    sensor = parsed(FAN.make_record(7))
    for data in mutations([b"\x66\xc0\xc0", b"\x10\xc0", b"\x10\xe0\x00\x00"], 3):
        value = answered(answers.parse_reading, sensor, data)
        right = 2 <= len(data) <= 4 and data[1] & 0x60 == 0x40 and data[0] != 255
        assert value == (data[0] * 60 + 1200 if right else None)
        numbers += value is not None
    assert COUNT / 20 < numbers < COUNT


def test_fuzzed_records():
    """A damaged record gives a typed error, or a sensor whose numbers are those of its bytes."""
    sensors = 0
    real = [s.make_record(9) for s in (INLET, FAN, PSU, STATUS)]
    for data in mutations(real, 4):
        sensor = answered(answers.parse_record, data)
        if sensor is None:
            continue
        sensors += 1
        assert len(data) == 5 + data[4]
        assert data[3] in (1, 2)
        assert sensor.number == data[7]
        value = answered(answers.parse_reading, sensor, b"\x42\xc0")
        assert value is None or (sensor.analog and sensor.function in (0, 7))
        if value is not None and sensor.function == 0:
            m, b = (_twos(data[at] | data[at + 1] >> 6 << 8, 10) for at in (24, 26))
            b_exp, r_exp = _twos(data[29] & 15, 4), _twos(data[29] >> 4, 4)
            exact = (m * 0x42 + b * Fraction(10) ** b_exp) * Fraction(10) ** r_exp
            assert value == pytest.approx(float(exact), rel=1e-9, abs=1e-9 * (abs(b) + 1) * 10.0 ** (b_exp + r_exp))
    assert COUNT / 20 < sensors < COUNT


def _twos(value: int, bits: int) -> int:
    return value - 2**bits if value >= 2 ** (bits - 1) else value


def test_fuzzed_output_of_ipmitool():
    real = [b" dc 7e 11 40\n", b" 00 00 b2 10 00 00 a5 02\n b5 4a\n", b"\n"]
    numbers = 0
    for data in mutations(real, 6):
        text = data.decode("latin-1")
        found = answered(parse_output, text)
        words = text.split()
        right = all(len(w) == 2 and all(c in "0123456789abcdefABCDEF" for c in w) for w in words)
        assert found == (bytes(int(w, 16) for w in words) if right else None)
        numbers += found is not None
    assert COUNT / 20 < numbers < COUNT
