"""Answers of a WT300E, settings of its entry, its accuracy, and the messages that set it up: pure functions, fuzzed."""

from __future__ import annotations

import contextlib
import math
import random
from dataclasses import replace

import pytest
from tests.codes import raises_code
from tests.rows import every_row

from joulelab.core.errors import Denied, ReadFailed, Unavailable
from joulelab.instruments import analyzer
from joulelab.instruments.analyzer import answers, doctor, setup
from joulelab.instruments.analyzer.accuracy import MODELS, Ranges, Signal, compute_power_errors

# One element at 3 kW of a 6 kW range (300 V, 20 A), integrating for 754 s.
ONE = "230.05E+00,13.306E+00,2.9999E+03,3.0611E+03,980.00E-03,49.987E+00,628.312E+00"
UPDATE = f"1;{ONE},754;0"
RANGE_W = 6000.0
TRUE_W, TRUE_J, TIME_S = 2999.9, 628.312 * 3600, 754.0
FINE = answers.Element(230.05, 13.306, TRUE_W, 3061.1, 0.98, 49.987, TRUE_J)


def test_parses_an_update():
    before, (element,), seconds, after = answers.parse_update(UPDATE, 1, "x")
    assert (before, seconds, after) == (1, 754.0, 0)
    assert element == replace(FINE, joules=element.joules)
    assert element.joules == pytest.approx(TRUE_J)
    assert answers.is_consistent(element, RANGE_W)
    assert len(answers.parse_update(f"1;{ONE},{ONE},754;0", 2, "x")[1]) == 2


def test_words_are_not_numbers():
    assert math.isnan(answers.parse_number("NAN", "x"))
    assert [answers.parse_number(text, "x") for text in ("INF", "1.5E+00", "-3")] == [math.inf, 1.5, -3.0]
    for word in ("----OL----", "OVER", "", "1,5E", "0x10", "1_000", "١٢", "infinity", "1E999", "--1", "nan()"):
        with raises_code("read-failed.wrong-answer"):
            answers.parse_number(word, "x")


@every_row(
    ("wrong", "reason"),
    [
        ({"amperes": math.inf, "watts": math.inf}, "over-range"),
        ({"watts": math.nan}, "no-data"),
        ({"watts": 13000.0}, "impossible-power"),
        ({"watts": 2900.0}, "contradiction"),
        ({"volts": 330.05}, "contradiction"),
        ({"factor": math.nan}, "contradiction"),
    ],
)
def test_values_that_are_not_possible_are_refused(wrong, reason):
    with raises_code(f"read-failed.{reason}"):
        answers.check_element(replace(FINE, **wrong), RANGE_W, "x", is_redundant=True)
    answers.check_element(FINE, RANGE_W, "x", is_redundant=True)
    nothing = answers.Element(230.0, 0.0, 0.0, 0.0, math.nan, 50.0, TRUE_J)
    answers.check_element(nothing, RANGE_W, "x", is_redundant=True)


def test_integrals_do_not_jump():
    accept = answers.Integral().accept_value
    assert accept(1000.0, 1, 10**9, RANGE_W)
    assert accept(1300.0, 1, 1_100_000_000, RANGE_W)
    assert not accept(90_000.0, 1, 1_200_000_000, RANGE_W)
    assert accept(1600.0, 1, 1_200_000_000, RANGE_W)
    assert accept(20.0, 0, 1_300_000_000, RANGE_W)  # reset: its time fell too
    assert not accept(math.inf, 0, 1_400_000_000, RANGE_W)
    taken = [accept(5e6, 0, 1_500_000_000, RANGE_W) for _ in range(4)]
    assert taken == [False, False, False, True]  # it stays there: that is its value now


def test_identities():
    known = tuple(MODELS)
    assert answers.parse_identity("YOKOGAWA,WT310E,C2QG12345V,F1.04", known, "x").model == "WT310E"
    for other in ("YOKOGAWA,WT1806E,91,F3.01", "Keysight Technologies,34465A,MY1,A.02"):
        with raises_code("unavailable.unknown-model"):
            answers.parse_identity(other, known, "x")
    for noise in ("", "hello", "a,b,c", "YOKOGAWA,,,", "\x00,\x01,\x02,\x03"):
        with raises_code("read-failed.wrong-answer"):
            answers.parse_identity(noise, known, "x")


def test_states_errors_and_registers():
    states = ("RES", "STARt", "STOP", "TIMEUP", "ERROR")
    assert [answers.parse_integration(t, "x") for t in states] == list(answers.INTEGRATION_STATES)
    assert answers.parse_error('113,"Undefined header"', "x") == (113, "Undefined header")
    assert answers.parse_register("513", "x") == 513
    assert math.isnan(answers.parse_range("EXT,10.0E+00", "x"))
    for call, text in (
        (answers.parse_integration, "RUNNING"),
        (answers.parse_error, "none"),
        (answers.parse_register, "-1"),
        (answers.parse_register, "70000"),
        (answers.parse_range, "-5"),
    ):
        with raises_code("read-failed.wrong-answer"):
            call(text, "x")


def test_settings_are_compared_by_meaning():
    for found, wanted in (("300.0E+00", "300"), ("LAMBDA,1", "LAMB,1"), ("ON", "1"), ("100.0E-03", "0.1")):
        assert setup.is_same_setting(found, wanted)
    for found, wanted in (("U,1", "URAN,1,2"), ("RISE", "FALL"), ("", "1")):
        assert not setup.is_same_setting(found, wanted)


def compute_shares(model="WT310E", amperes=1.0, **changed):
    signal = replace(Signal(50.0, 1.0, update_s=1.0), **changed)
    ranges = Ranges(300, amperes)
    gain, offset_w = compute_power_errors(MODELS[model], ranges, signal)
    return gain - 1.3e-6 * amperes**2, offset_w / ranges.watts  # without the heat of the shunt


@pytest.mark.parametrize(("watts", "amperes", "off_w"), [(500.0, 5.0, 1.25), (3000.0, 20.0, 6.0), (300.0, 20.0, 3.3)])
def test_accuracy_at_mains_frequency_and_power_factor_one(watts, amperes, off_w):
    gain, share = compute_shares(amperes=amperes)
    assert gain * watts + share * 300 * amperes == pytest.approx(off_w)


def test_accuracy_of_other_signals():
    for changed, shares in (
        ({}, (0.001, 0.0005)),
        ({"hertz": math.nan}, (0.001, 0.002)),
        ({"hertz": math.nan, "model": "WT310EH"}, (0.003, 0.002)),
        ({"hertz": 16.7}, (0.003, 0.002)),
        ({"hertz": 400.0}, (0.002, 0.002)),
        ({"crest": 6}, (0.001, 0.001)),
        ({"model": "WT310"}, (0.001, 0.001)),
        ({"has_line_filter": True}, (0.004, 0.0005)),
        ({"update_s": 0.1}, (0.0015, 0.0005)),
        ({"factor": 0.8}, (0.001 + 0.001 * math.tan(math.acos(0.8)), 0.0005)),
    ):
        assert compute_shares(**changed) == pytest.approx(shares, abs=1e-9), changed


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
        assert integral.accept_value(TRUE_J - 300, TIME_S, 10**9, RANGE_W)
        try:
            _, (element,), seconds, _ = answers.parse_update(text, 1, "x")
            answers.check_element(element, RANGE_W, "x", is_redundant=True)
        except ReadFailed:
            continue
        if not integral.accept_value(element.joules, seconds, 1_100_000_000, RANGE_W):
            continue
        taken += 1
        assert element.watts == pytest.approx(TRUE_W, abs=0.0041 * 3061 + 0.0021 * RANGE_W)
        if not math.isnan(element.joules) and seconds >= TIME_S:
            assert element.joules == pytest.approx(TRUE_J, abs=2 * 2.06 * RANGE_W * 0.3 + 30)
    # Harmless changes are taken: a digit of the frequency, the exponent's sign.
    assert 100 < taken * 12_000 / rounds < 6000


@pytest.mark.parametrize("rounds", [1_200, pytest.param(12_000, marks=pytest.mark.campaign)])
def test_fuzzed_settings_give_typed_errors_or_their_numbers(rounds):
    """Wrong is: a number that Python's own reading of the same text does not give."""
    draw = random.Random(4)
    originals = ("300.0E+00", "100.00E-03", "513", "STAR", '113,"Undefined header"', "YOKOGAWA,WT310E,C2QG12345V,F1.04")
    for k in range(rounds):
        text = mutated(draw.choice(originals), draw) if k % 4 else noise(draw)
        for call in (answers.parse_number, answers.parse_register, answers.parse_range):
            with contextlib.suppress(ReadFailed):
                value = call(text, "x")
                assert math.isnan(value) or value == float(text.strip())
        for call in (answers.parse_integration, answers.parse_error):
            with contextlib.suppress(ReadFailed):
                call(text, "x")
        with contextlib.suppress(ReadFailed, Unavailable):
            assert answers.parse_identity(text, tuple(MODELS), "x").model.upper() in MODELS
        setup.is_same_setting(text, "300")


HERE = {"resource": "TCPIP::h::INSTR"}


@every_row(
    ("config", "code", "what"),
    [
        (HERE | {"rang": 3}, "config.unknown-key", "unknown key 'rang'"),
        ({}, "config.no-resource", "no resource"),
        ({"resource": "gpib at desk"}, "config.wrong-resource", "resource is"),
        ({"resource": "TCPIP::h::99999::SOCKET"}, "config.wrong-resource", "resource is"),
        ({"resource": "PXI0::1::INSTR"}, "config.wrong-resource", "resource is"),
        (HERE | {"voltage_v": "big"}, "config.wrong-value", "voltage_v is 'big'"),
        (HERE | {"current_a": -5}, "config.wrong-value", "current_a is -5"),
        (HERE | {"crest_factor": 4}, "config.wrong-value", "crest_factor is 4"),
        (HERE | {"period_s": 60}, "config.wrong-value", "period_s is 60"),
        (HERE | {"period_s": 2, "timeout_s": 1}, "config.wrong-value", "timeout_s is 1"),
        (HERE | {"integration": "on"}, "config.wrong-value", "integration is 'on'"),
        (HERE | {"baud_rate": 9601}, "config.wrong-value", "baud_rate is 9601"),
        (HERE | {"baud_rate": True}, "config.wrong-value", "baud_rate is True"),
    ],
)
def test_wrong_settings_are_refused(config, code, what):
    with raises_code(code) as raised:
        analyzer.check(config)
    assert what in raised.value.what
    assert raised.value.next


class Pairs:
    """Answer a list of messages in its order, and no other."""

    def __init__(self, *pairs):
        self.pairs = list(pairs)

    def write(self, text):
        assert self.query(text) is None

    def query(self, text):
        sent, answer = self.pairs.pop(0)
        assert text == sent
        return answer


def test_only_settings_that_differ_are_changed_and_all_of_them_restored():
    link = Pairs(
        (":COMM:HEAD?", ":COMM:HEAD 1"),
        (":COMM:HEAD 0", None),
        (":INP:VOLT:RANG?;:NUM:NORM:ITEM1?;:RATE?", "300.0E+00;U,1;1.00E+00"),
        (":NUM:NORM:ITEM1 P,1;:RATE 0.1", None),
        (":INTEG:STOP", None),
        (":INTEG:RES", None),
        (":RATE 1.00E+00", None),
        (":NUM:NORM:ITEM1 U,1", None),
        (":COMM:HEAD 1", None),
    )
    talk = setup.Dialogue(link, "x", setup.OriginalSettings())
    talk.change_settings([(":COMM:HEAD", "0")])
    talk.change_settings([(":INP:VOLT:RANG", "300"), (":NUM:NORM:ITEM1", "P,1"), (":RATE", "0.1")])
    talk.originals.has_started = True
    setup.restore_settings(link, talk.originals)
    assert not link.pairs


def test_refused_settings_and_missing_answers_are_errors():
    link = Pairs((":STAT:ERR?", '813,"INVALID OPERATION DURING INTEGRATION"'), (":RATE?;:HOLD?", "0.1"))
    talk = setup.Dialogue(link, "x", setup.OriginalSettings())
    with raises_code("unavailable.setting-refused") as raised:
        talk.check_errors()
    assert raised.value.next == "stop the integration that runs"
    with raises_code("read-failed.wrong-answer"):
        talk.query_settings([":RATE", ":HOLD"])


def claim(name="C3"):
    originals = setup.OriginalSettings()
    originals.claim_file(name)
    return originals


def test_original_settings_outlive_a_meter_that_did_not_restore_them(state_home):
    first = claim("a/b c")
    first.found[":RATE"] = "1"
    first.has_started = True
    first.save_file()
    (path,) = state_home.glob("joulelab/analyzer-*")
    written = path.read_text()
    second = claim("a/b c")  # the first one is still there: it restores
    assert (second.found, second.is_left) == ({}, False)
    second.found[":RATE"] = "5"
    second.save_file()
    second.release_file(is_restored=True)
    assert path.read_text() == written
    first.release_file(is_restored=False)
    third = claim("a/b c")
    assert (third.found, third.has_started, third.is_left) == ({":RATE": "1"}, True, True)
    third.release_file(is_restored=True)
    assert not path.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"found": {":RATE": "1;:INTEG:RES"}}', '{"found": {"RATE": "1"}}', "\u0000"]
)
def test_a_damaged_file_is_not_believed(state_home, text):
    path = state_home / "joulelab" / "analyzer-C3.json"
    path.parent.mkdir()
    path.write_text(text)
    originals = claim()
    assert originals.found == {}
    originals.release_file(is_restored=True)


def test_a_file_with_the_tail_of_a_longer_one_is_read(state_home):
    path = state_home / "joulelab" / "analyzer-C3.json"
    path.parent.mkdir()
    path.write_text('{"started": true, "found": {":RATE": "1"}}"}}')
    originals = claim()
    assert originals.found == {":RATE": "1"}
    originals.release_file(is_restored=True)


def test_the_doctor_explains_permissions_and_buses(monkeypatch, tmp_path):
    port = tmp_path / "ttyS0"
    port.touch()
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    texts = analyzer.diagnose({"resource": f"ASRL{port}::INSTR"}, Denied("x", why="permission denied"))
    assert "dialout" in texts[0]
    usb = analyzer.diagnose({"resource": "USB::0x0b21::0x0025::C1::INSTR"}, Unavailable("x", why="none found"))
    assert "lsusb" in usb[0]


def test_the_doctor_finds_that_the_interface_is_another(monkeypatch):
    monkeypatch.setattr(doctor, "reach", lambda *_: ["h takes connections"])
    text = {5025: b"YOKOGAWA,WT310E,C2QG12345V,F1.04\n"}
    monkeypatch.setattr(doctor, "probe_text", lambda host, port: text.get(port, b""))
    failed = ReadFailed("x", why="no answer")
    assert "::SOCKET" in analyzer.diagnose({"resource": "TCPIP::h,5025::INSTR"}, failed)[0]
    assert "TCPIP::h,1024::INSTR" in analyzer.diagnose({"resource": "TCPIP::h::1024::SOCKET"}, failed)[0]
