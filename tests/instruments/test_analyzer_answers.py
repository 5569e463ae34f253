"""What a WT300E answers, what it may not, and numbers that cannot be: pure functions, fuzzed."""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import replace

import pytest

from joulelab.core.errors import ConfigError, Denied, ReadFailed, Unavailable
from joulelab.instruments import analyzer
from joulelab.instruments.analyzer import answers, setup
from joulelab.instruments.analyzer import probe as scpi_probe
from joulelab.instruments.analyzer.accuracy import MODELS, Ranges, Signal, power_accuracy, relative

# One element at 3 kW of a 6 kW range (300 V, 20 A), integrating for 754 s; and three of them.
ONE = "230.05E+00,13.306E+00,2.9999E+03,3.0611E+03,980.00E-03,49.987E+00,628.312E+00"
UPDATE = f"1;{ONE},754"
RANGE_W = 6000.0
TRUE_W, TRUE_J, TIME_S = 2999.9, 628.312 * 3600, 754.0
FINE = answers.Element(230.05, 13.306, TRUE_W, 3061.1, 0.98, 49.987, TRUE_J)


def test_takes_an_update_apart():
    events, text = answers.split_update(UPDATE, "x")
    (element,), seconds = answers.parse_update(text, 1, "x")
    assert (events, seconds) == (1, 754.0)
    assert element == replace(FINE, joules=element.joules)
    assert element.joules == pytest.approx(TRUE_J)
    assert answers.fits(element, RANGE_W)


def test_words_are_not_numbers():
    values = answers.parse_numbers("NAN,INF,1.5E+00,-3", 4, "x")
    assert math.isnan(values[0])
    assert math.isinf(values[1])
    assert values[2:] == [1.5, -3.0]
    for word in ("----OL----", "OVER", "", "1,5E", "0x10", "1_000", "١٢", "infinity", "1E999", "--1", "nan()"):
        with pytest.raises(ReadFailed):
            answers.parse_number(word, "x")


def test_over_range_and_no_data_are_refused():
    for wrong, what in (
        (replace(FINE, amperes=math.inf, watts=math.inf), "over range"),
        (replace(FINE, watts=math.nan), "no data"),
        (replace(FINE, watts=13000.0), "beyond its range"),
        (replace(FINE, watts=2900.0), "do not fit"),
        (replace(FINE, volts=330.05), "do not fit"),
        (replace(FINE, factor=math.nan), "do not fit"),
    ):
        with pytest.raises(ReadFailed, match=what):
            answers.check_element(wrong, RANGE_W, "x", redundant=True)
    answers.check_element(FINE, RANGE_W, "x", redundant=True)
    nothing = answers.Element(230.0, 0.0, 0.0, 0.0, math.nan, 50.0, TRUE_J)
    answers.check_element(nothing, RANGE_W, "x", redundant=True)


def test_integrals_do_not_jump():
    integral = answers.Integral()
    assert integral.check(1000.0, 1, 10**9, RANGE_W)
    assert integral.check(1300.0, 1, 1_100_000_000, RANGE_W)
    assert not integral.check(90_000.0, 1, 1_200_000_000, RANGE_W)
    assert integral.check(1600.0, 1, 1_200_000_000, RANGE_W)
    assert integral.check(20.0, 0, 1_300_000_000, RANGE_W)  # reset: its time fell too
    assert not integral.check(math.inf, 0, 1_400_000_000, RANGE_W)
    taken = [integral.check(5e6, 0, 1_500_000_000, RANGE_W) for _ in range(4)]
    assert taken == [False, False, False, True]  # it stays there: that is what it is now


def test_identities():
    known = tuple(MODELS)
    assert answers.parse_identity("YOKOGAWA,WT310E,C2QG12345V,F1.04", known, "x").model == "WT310E"
    with pytest.raises(Unavailable, match="WT1806E"):
        answers.parse_identity("YOKOGAWA,WT1806E,91,F3.01", known, "x")
    with pytest.raises(Unavailable, match="Keysight"):
        answers.parse_identity("Keysight Technologies,34465A,MY1,A.02", known, "x")
    for noise in ("", "hello", "a,b,c", "YOKOGAWA,,,", "\x00,\x01,\x02,\x03"):
        with pytest.raises(ReadFailed):
            answers.parse_identity(noise, known, "x")


def test_states_and_errors():
    assert [answers.parse_state(t, "x") for t in ("RES", "STARt", "STOP", "TIMEUP", "ERROR")] == list(answers.STATES)
    assert answers.parse_error('113,"Undefined header"', "x") == (113, "Undefined header")
    assert answers.parse_error('0,"NO ERROR"', "x")[0] == 0
    assert answers.parse_register("513", "x") == 513
    for call, text in ((answers.parse_state, "RUNNING"), (answers.parse_error, "none"), (answers.parse_register, "-1")):
        with pytest.raises(ReadFailed):
            call(text, "x")
    with pytest.raises(ReadFailed):
        answers.parse_register("70000", "x")


def test_settings_are_compared_by_meaning():
    assert setup.same("300.0E+00", "300")
    assert setup.same("LAMBDA,1", "LAMB,1")
    assert setup.same("ON", "1")
    assert setup.same("100.0E-03", "0.1")
    assert not setup.same("U,1", "URAN,1,2")
    assert not setup.same("RISE", "FALL")
    assert not setup.same("", "1")
    assert math.isnan(setup.range_of("EXT,10.0E+00", "x"))
    with pytest.raises(ReadFailed):
        setup.range_of("-5", "x")


@pytest.mark.parametrize(
    ("watts", "ranges", "off_w"),
    [(500.0, Ranges(300, 5), 1.25), (3000.0, Ranges(300, 20), 6.0), (300.0, Ranges(300, 20), 3.3)],
)
def test_accuracy_at_mains_frequency_and_power_factor_one(watts, ranges, off_w):
    signal = Signal(50.0, 1.0, update_s=1.0)
    gain, offset_w = power_accuracy(MODELS["WT310E"], ranges, signal)
    heat = 1.3e-6 * ranges.amperes**2
    assert (gain - heat) * watts + offset_w == pytest.approx(off_w)
    assert relative(gain, offset_w, watts) == pytest.approx(off_w / watts + heat)


def test_accuracy_of_other_signals():
    model, ranges = MODELS["WT310E"], Ranges(300, 1)
    heat = 1.3e-6

    def shares(**changed):
        gain, offset = power_accuracy(MODELS[changed.pop("model", "WT310E")], ranges, replace(base, **changed))
        return pytest.approx((gain - heat, offset / 300), abs=1e-9)

    base = Signal(50.0, 1.0, update_s=1.0)
    assert shares() == (0.001, 0.0005)
    assert shares(hertz=math.nan) == (0.001, 0.002)
    assert shares(hertz=math.nan, model="WT310EH") == (0.003, 0.002)
    assert shares(hertz=16.7) == (0.003, 0.002)
    assert shares(hertz=400.0) == (0.002, 0.002)
    assert shares(crest=6) == (0.001, 0.001)
    assert shares(model="WT310") == (0.001, 0.001)
    assert shares(line_filter=True) == (0.004, 0.0005)
    assert shares(update_s=0.1) == (0.0015, 0.0005)
    assert (0.001 + 0.001 * math.tan(math.acos(0.8)), 0.0005) == shares(factor=0.8)
    assert model.elements == (1,)


def mutated(text: str, draw: random.Random) -> str:
    """Change, add, remove, repeat or cut characters of an answer."""
    alphabet = "0123456789+-.,;EeNAINF \x00\xff\n"
    chars = list(text)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        at = draw.randrange(len(chars) + 1)
        match draw.randrange(5):
            case 0:
                chars[at : at + 1] = draw.choice(alphabet)
            case 1:
                chars.insert(at, draw.choice(alphabet))
            case 2:
                del chars[at : at + draw.randrange(1, 4)]
            case 3:
                chars[at:at] = chars[at : at + draw.randrange(1, 12)]
            case _:
                del chars[at:]
    return "".join(chars)


def noise(draw: random.Random) -> str:
    return "".join(chr(draw.randrange(256)) for _ in range(draw.randrange(120)))


@pytest.mark.parametrize("rounds", [1_200, pytest.param(12_000, marks=pytest.mark.campaign)])
def test_fuzzed_updates_give_right_powers_or_none(rounds):
    """Wrong is: a power or an integral that is taken and differs from the true one by more than its check allows.

    That is 0.2 % of the apparent power and 0.1 % of the range for the power, and for the integral what can have
    flowed since the last reading.
    """
    draw = random.Random(3)
    taken = 0
    for k in range(rounds):
        text = mutated(UPDATE, draw) if k % 4 else noise(draw)
        integral = answers.Integral()
        assert integral.check(TRUE_J - 300, TIME_S, 10**9, RANGE_W)
        try:
            _, values = answers.split_update(text, "x")
            (element,), seconds = answers.parse_update(values, 1, "x")
            answers.check_element(element, RANGE_W, "x", redundant=True)
        except ReadFailed:
            continue
        if not integral.check(element.joules, seconds, 1_100_000_000, RANGE_W):
            continue
        taken += 1
        assert element.watts == pytest.approx(TRUE_W, abs=0.0041 * 3061 + 0.0021 * RANGE_W)
        if not math.isnan(element.joules) and seconds >= TIME_S:
            assert element.joules == pytest.approx(TRUE_J, abs=2 * 2.06 * RANGE_W * 0.3 + 30)
    assert (
        100 < taken * 12_000 / rounds < 6000
    )  # harmless changes are taken: a digit of the frequency, the exponent's sign


@pytest.mark.parametrize("rounds", [1_200, pytest.param(12_000, marks=pytest.mark.campaign)])
def test_fuzzed_settings_give_typed_errors_or_what_they_say(rounds):
    """Wrong is: a number that Python's own reading of the same text does not give."""
    draw = random.Random(4)
    originals = ("300.0E+00", "100.00E-03", "513", "STAR", '113,"Undefined header"', "YOKOGAWA,WT310E,C2QG12345V,F1.04")
    for k in range(rounds):
        text = mutated(draw.choice(originals), draw) if k % 4 else noise(draw)
        for call in (answers.parse_number, answers.parse_register, setup.range_of):
            try:
                value = call(text, "x")
            except ReadFailed:
                continue
            assert math.isnan(value) or value == float(text.strip())
        for call in (answers.parse_state, answers.parse_error):
            try:
                call(text, "x")
            except ReadFailed:
                continue
        with contextlib.suppress(ReadFailed, Unavailable):
            assert answers.parse_identity(text, tuple(MODELS), "x").model.upper() in MODELS
        setup.same(text, "300")


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"resource": "TCPIP::h::INSTR", "rang": 3}, "unknown key 'rang'"),
        ({}, "no resource"),
        ({"resource": "gpib at desk"}, "resource is"),
        ({"resource": "TCPIP::h::99999::SOCKET"}, "resource is"),
        ({"resource": "PXI0::1::INSTR"}, "resource is"),
        ({"resource": "TCPIP::h::INSTR", "voltage_v": "big"}, "voltage_v is 'big'"),
        ({"resource": "TCPIP::h::INSTR", "current_a": -5}, "current_a is -5"),
        ({"resource": "TCPIP::h::INSTR", "crest_factor": 4}, "crest_factor is 4"),
        ({"resource": "TCPIP::h::INSTR", "period_s": 60}, "period_s is 60"),
        ({"resource": "TCPIP::h::INSTR", "period_s": 2, "timeout_s": 1}, "timeout_s is 1"),
        ({"resource": "TCPIP::h::INSTR", "elements": "all"}, "elements is 'all'"),
        ({"resource": "TCPIP::h::INSTR", "baud_rate": 9601}, "baud_rate is 9601"),
        ({"resource": "TCPIP::h::INSTR", "keep_rate": "yes"}, "keep_rate is 'yes'"),
    ],
)
def test_wrong_settings_are_refused(config, what):
    with pytest.raises(ConfigError) as raised:
        analyzer.open_meter(config)
    assert what in str(raised.value)
    assert raised.value.next


def test_doctor_tells_of_permissions(monkeypatch):
    monkeypatch.setattr(scpi_probe, "probe_serial", lambda path: "denied")
    said = analyzer.diagnose({"resource": "ASRL/dev/ttyS0::INSTR"}, Denied("x", why="permission denied"))
    assert "dialout" in said[0]
    usb = analyzer.diagnose({"resource": "USB::0x0b21::0x0025::C1::INSTR"}, Unavailable("x", why="none found"))
    assert "lsusb" in usb[0]


def test_doctor_tells_when_the_transport_is_the_other_one(monkeypatch):
    monkeypatch.setattr(scpi_probe, "probe_host", lambda *_: "")
    monkeypatch.setattr(scpi_probe, "probe_port", lambda *_: "open")
    monkeypatch.setattr(scpi_probe, "probe_rpc", lambda host, port, timeout_s: port == 1024)
    text = {5025: b"YOKOGAWA,WT310E,C2QG12345V,F1.04\n"}
    monkeypatch.setattr(scpi_probe, "probe_text", lambda host, port, timeout_s: text.get(port, b""))
    failed = ReadFailed("x", why="no answer")
    assert "is a raw socket" in analyzer.diagnose({"resource": "TCPIP::h,5025::INSTR"}, failed)[0]
    assert "speaks VXI-11" in analyzer.diagnose({"resource": "TCPIP::h::1024::SOCKET"}, failed)[0]
