"""Registers and profiles of Modbus devices: pure functions over words and plain data."""

from __future__ import annotations

import math
import os
import random
import struct
import tomllib

import pytest

from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.instruments import open_meter
from joulelab.instruments.modbus import doctor, profile
from joulelab.instruments.modbus.client import Request
from joulelab.instruments.modbus.profile import load, parse
from joulelab.instruments.modbus.registers import BOUNDS, TYPES, UNITS, Register, blocks, cut, decode
from joulelab.instruments.modbus.setup import setup


def words(form, value, *, swap_words=False, swap_bytes=False):
    data = struct.pack(f">{form}", value)
    pairs = [data[i : i + 2] for i in range(0, len(data), 2)]
    if swap_words:
        pairs.reverse()
    return [int.from_bytes(p, "little" if swap_bytes else "big") for p in pairs]


@pytest.mark.parametrize(
    ("type_", "form", "value"),
    [("int16", "h", -120), ("uint16", "H", 65000), ("int32", "i", -70000), ("uint32", "I", 4_000_000_000),
     ("int64", "q", 123_456_789_012), ("uint64", "Q", 123_456_789_012), ("float32", "f", 4478.25),
     ("float64", "d", 1e-3)],
)  # fmt: skip
@pytest.mark.parametrize("orders", [(False, False), (True, False), (False, True), (True, True)])
def test_every_type_in_every_order(type_, form, value, orders):
    word, byte = ("little" if swap else "big" for swap in orders)
    register = Register("v", 0, "VA", type=type_, word_order=word, byte_order=byte, scale=1e-6)
    got = decode(register, words(form, value, swap_words=orders[0], swap_bytes=orders[1]))
    assert got == pytest.approx(value * 1e-6, rel=1e-12)


@pytest.mark.parametrize(
    ("unit", "si"), [("kW", 2500.0), ("W", 2.5), ("kWh", 9e6), ("Wh", 9000.0), ("mA", 0.0025), ("%", 0.025)]
)
def test_units_become_si(unit, si):
    assert decode(Register("x", 0, unit), words("f", 2.5)) == pytest.approx(si)


@pytest.mark.parametrize(
    ("register", "given", "why"),
    [
        (Register("power_w", 0, "W"), words("f", math.nan), "nan"),
        (Register("power_w", 0, "W"), words("f", -math.inf), "inf"),
        (Register("power_w", 0, "W"), words("f", 4478.25, swap_words=True), "give"),
        (Register("power_w", 0, "W", type="int16", sentinel=(0x8000,)), [0x8000], "0x8000"),
        (Register("power_w", 0, "W", type="uint32", sentinel=(0xFFFFFFFF,)), [0xFFFF, 0xFFFF], "mark"),
        (Register("energy_j", 0, "Wh", type="int64", kind="counter"), words("q", -(1 << 63)), "give"),
        (Register("energy_j", 0, "kWh", kind="counter"), words("f", -1.0), "give"),
    ],
)
def test_what_is_no_number_is_refused(register, given, why):
    with pytest.raises(ReadFailed, match=why):
        decode(register, given)


@pytest.mark.parametrize("rounds", [2_000, pytest.param(20_000, marks=pytest.mark.campaign)])
def test_fuzzed_registers_give_right_numbers_or_typed_errors(rounds):
    """Wrong would be: another number than the struct module reads from the same bits, NaN, infinite, out of bounds."""
    rng = random.Random(5)
    good = bad = 0
    for _ in range(rounds):
        name = rng.choice(list(TYPES))
        size, form = TYPES[name]
        unit = rng.choice(list(UNITS))
        kind = "counter" if UNITS[unit].si == "J" else "state"
        register = Register("x", 0, unit, type=name, kind=kind, sentinel=(0x7FC0,) if rng.random() < 0.1 else ())
        raw = rng.randbytes(2 * size)
        if rng.random() < 0.5:
            raw = struct.pack(form, rng.uniform(0, 5000) if name.startswith("float") else rng.randrange(30_000))
        given = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
        try:
            value = decode(register, given)
        except ReadFailed:
            bad += 1
            continue
        good += 1
        assert value == struct.unpack(form, raw)[0] * UNITS[unit].factor
        assert BOUNDS[UNITS[unit].si][0] <= value <= BOUNDS[UNITS[unit].si][1]
        assert kind != "counter" or value >= 0
    assert good > 5000 * rounds / 20_000
    assert bad > 1000 * rounds / 20_000


def test_a_float_counter_tells_less_the_higher_it_stands():
    counter = Register("energy_j", 0, "kWh", quantum=0.01, kind="counter")
    assert counter.quantum_at(0.0) == pytest.approx(36_000)
    assert counter.quantum_at(1e6 * 3.6e6) > 200_000, "24 binary digits of a million kWh"
    assert Register("energy_j", 0, "Wh", type="uint32").quantum_at(5.0) == 3600


def test_neighbours_share_a_request():
    rows = [
        Register("a", 52, "W", 4),
        Register("b", 72, "kWh", 4),
        Register("c", 74, "kWh", 4),
        Register("d", 9, "W", 3),
    ]
    assert blocks(rows, 0) == [Request(3, 9, 2), Request(4, 52, 2), Request(4, 72, 4)]
    assert blocks(rows, 18) == [Request(3, 9, 2), Request(4, 52, 24)]
    assert blocks(rows, 18, 22) == [Request(3, 9, 2), Request(4, 52, 22), Request(4, 74, 2)]
    many = [Register(f"r{n}", 4 * n, "W", type="float64") for n in range(100)]
    requests = blocks(many, 0)
    assert max(r.size for r in requests) <= 125
    assert sum(r.size for r in requests) == 400
    answers = {r: range(r.address, r.address + r.size) for r in requests}
    assert all(list(cut(row, answers)) == list(range(row.address, row.address + 4)) for row in many)


@pytest.mark.parametrize("name", profile.shipped())
def test_shipped_profiles_are_whole(name):
    profile = load(name, "test")
    assert profile.vendor
    assert profile.model
    assert profile.source
    assert profile.accuracy.reference
    assert profile.accuracy.source in ("assumed", "datasheet")
    assert any(r.name == "power_w" and r.kind == "power" for r in profile.registers)


def test_what_the_facts_do_not_confirm_says_so():
    unsure = {name for name in profile.shipped() if not load(name, "test").confirmed}
    assert unsure == {"iem3000", "pm5000", "pac2200", "xerus"}


GOOD = 'registers = [{ name = "power_w", address = 52, unit = "W" }]'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("address", "adress"), "'address'"),
        (GOOD.replace('"W"', '"w"'), "unit is 'w'"),
        (GOOD.replace("52", "70000"), "0 to 65535"),
        (GOOD.replace("power_w", "power"), "end in their SI unit"),
        (GOOD.replace("}", ', type = "float"}'), "float32"),
        (GOOD.replace("}", ", function = 1}"), "function is 1"),
        (GOOD.replace("}", ", function = true}"), "function is True"),
        (GOOD.replace("}", ", scale = 0}"), "scale is 0"),
        (GOOD.replace("}", ', kind = "counter"}'), "a counter in W"),
        (GOOD.replace("}", ", sentinel = -1}"), "sentinel is -1"),
        (GOOD + '\nword_ordr = "big"', "'word_order'"),
        (GOOD + "\ngap = 1000", "gap is 1000"),
        (GOOD + "\naccuracy = {gian = 0.1}", "'gain'"),
        (GOOD + "\nstride = {outlets = 4}", "'outlet'"),
        (GOOD + "\nupdate_s = inf", "update_s is inf"),
        ("registers = []", "registers are missing"),
        (GOOD.replace("power_w", "demand_w"), "no register is a power or an energy"),
        (GOOD[:-1] + ", " + GOOD[13:], "there twice"),
    ],
)
def test_wrong_profiles_are_refused_with_what_fits(text, words):
    with pytest.raises(ConfigError) as caught:
        parse(tomllib.loads(text), "profile test")
    assert words in str(caught.value)


def test_own_profiles_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load(str(path), "test").name == "mine"
    with pytest.raises(ConfigError, match="did you mean 'sdm630'"):
        load("sdm63", "test")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path / "none.toml"), "test")
    path.write_text("registers = [")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(path), "test")


@pytest.mark.timeout(30)  # it would be waited for, for ever
def test_a_profile_that_is_a_fifo_is_refused(tmp_path):
    os.mkfifo(tmp_path / "mine.toml")
    with pytest.raises(ConfigError, match="it is a FIFO, not a regular file"):
        load(str(tmp_path / "mine.toml"), "test")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"profil": "sdm630"}, "did you mean 'profile'"),
        ({"address": "a"}, "neither profile nor registers"),
        ({"address": "a", "profile": "sdm630", "registers": []}, "both profile and registers"),
        ({"profile": "sdm630"}, "no address"),
        ({"address": "a", "profile": "sdm630", "unit_id": 300}, "0 to 255"),
        ({"address": "a", "profile": "sdm630", "outlets": [1]}, "has no outlets"),
        ({"address": "a", "profile": "xerus", "outlets": [2]}, "set stride"),
        ({"address": "a", "profile": "xerus", "outlets": "2"}, "list of numbers"),
        ({"address": "a", "profile": "xerus", "outlets": [1, 1]}, "list of numbers"),
        ({"address": "a", "profile": "xerus", "outlets": [1], "inlets": [1]}, "make an entry for each"),
        ({"address": "a", "profile": "xerus", "outlets": [900], "stride": 64}, "outside 0 to 65535"),
        ({"address": "a", "profile": "sdm630", "word_order": "middle"}, "big or little"),
        ({"address": "a", "profile": "sdm630", "timeout_s": 0}, "above 0"),
    ],
)  # fmt: skip
def test_wrong_entries_are_refused(entry, words):
    with pytest.raises(ConfigError) as caught:
        open_meter("modbus", entry)
    assert words in str(caught.value)


def test_the_doctor_finds_the_unit_that_answers_where_others_are_silent():
    class Gateway:
        def read(self, unit, requests):
            if unit != 3:
                raise ReadFailed("the device does not answer")
            return [(0,) * request.size for request in requests]

    entry = {"address": "a", "profile": "sdm630", "unit_id": 4}
    said = doctor._answers(Gateway(), setup(entry))
    assert "set unit_id = 3" in " ".join(said)
