"""Registers and profiles of Modbus devices: pure functions over words and plain data."""

from __future__ import annotations

import math
import os
import random
import struct
import tomllib

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.core.toml_reading import Mistakes
from joulelab.instruments import open_meter
from joulelab.instruments.modbus import ModbusMeter
from joulelab.instruments.modbus.client import Refusal, Request
from joulelab.instruments.modbus.doctor import diagnose, explain_answers, find_fitting_settings
from joulelab.instruments.modbus.profiles import list_profiles, load_profile, parse_profile
from joulelab.instruments.modbus.registers import (
    BOUNDS,
    TYPES,
    UNITS,
    Register,
    decode_register,
    find_words,
    group_registers,
)
from joulelab.instruments.modbus.settings import read_settings


def words(form, value, *, swapped=False):
    data = struct.pack(f">{form}", value)
    pairs = [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]
    return pairs[::-1] if swapped else pairs


@pytest.mark.parametrize(
    ("type_", "form", "value"),
    [("int16", "h", -120), ("uint16", "H", 65000), ("int32", "i", -70000), ("uint32", "I", 4_000_000_000),
     ("int64", "q", 123_456_789_012), ("uint64", "Q", 123_456_789_012), ("float32", "f", 4478.25),
     ("float64", "d", 1e-3)],
)  # fmt: skip
@pytest.mark.parametrize("order", ["big", "little"])
def test_every_type_in_both_orders(type_, form, value, order):
    register = Register("v", 0, "VA", type=type_, word_order=order, scale=1e-6)
    got = decode_register(register, words(form, value, swapped=order == "little"))
    assert got == pytest.approx(value * 1e-6, rel=1e-12)


@every_row(("unit", "si"), [("kW", 2500.0), ("W", 2.5), ("kWh", 9e6), ("Wh", 9000.0), ("mA", 0.0025), ("%", 0.025)])
def test_units_become_si(unit, si):
    assert decode_register(Register("x", 0, unit), words("f", 2.5)) == pytest.approx(si)


POWER = {"kind": "power", "most_w": 1e5}


@every_row(
    ("register", "given", "code"),
    [
        (Register("power_w", 0, "W"), words("f", math.nan), "read-failed.no-value"),
        (Register("power_w", 0, "W"), words("f", -math.inf), "read-failed.no-value"),
        (Register("power_w", 0, "W"), words("f", 4478.25, swapped=True), "read-failed.implausible"),
        (Register("power_w", 0, "W", type="int16", sentinel=(0x8000,)), [0x8000], "read-failed.no-value"),
        (Register("power_w", 0, "W", type="uint32", sentinel=(0xFFFFFFFF,)), [0xFFFF, 0xFFFF], "read-failed.no-value"),
        (
            Register("energy_j", 0, "Wh", type="int64", kind="counter"),
            words("q", -(1 << 63)),
            "read-failed.implausible",
        ),
        (Register("energy_j", 0, "kWh", kind="counter"), words("f", -1.0), "read-failed.implausible"),
        (Register("power_w", 0, "kW", **POWER), words("f", 4478.25), "read-failed.implausible"),  # W taken for kW
        (Register("power_w", 0, "W", **POWER), words("f", -450.0), "read-failed.implausible"),  # a turned transformer
    ],
)
def test_values_that_cannot_be_right_are_refused(register, given, code):
    with pytest.raises(ReadFailed) as caught:
        decode_register(register, given)
    assert caught.value.code == code
    assert caught.value.why


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
            value = decode_register(register, given)
        except ReadFailed:
            bad += 1
            continue
        good += 1
        assert value == struct.unpack(form, raw)[0] * UNITS[unit].factor
        assert BOUNDS[UNITS[unit].si][0] <= value <= BOUNDS[UNITS[unit].si][1]
        assert kind != "counter" or value >= 0
    assert good > 5000 * rounds / 20_000
    assert bad > 1000 * rounds / 20_000


def test_a_float_counter_resolves_less_the_higher_it_stands():
    counter = Register("energy_j", 0, "kWh", quantum=0.01, kind="counter")
    assert counter.find_quantum(0.0) == pytest.approx(36_000)
    assert counter.find_quantum(1e6 * 3.6e6) > 200_000, "24 binary digits of a million kWh"
    assert Register("energy_j", 0, "Wh", type="uint32").find_quantum(5.0) == 3600


def test_neighbours_share_a_request():
    rows = [
        Register("a", 52, "W", 4),
        Register("b", 72, "kWh", 4),
        Register("c", 74, "kWh", 4),
        Register("d", 9, "W", 3),
    ]
    assert group_registers(rows, 0) == [Request(3, 9, 2), Request(4, 52, 2), Request(4, 72, 4)]
    assert group_registers(rows, 18) == [Request(3, 9, 2), Request(4, 52, 24)]
    assert group_registers(rows, 18, 22) == [Request(3, 9, 2), Request(4, 52, 22), Request(4, 74, 2)]
    many = [Register(f"r{n}", 4 * n, "W", type="float64") for n in range(100)]
    requests = group_registers(many, 0)
    assert max(r.size for r in requests) <= 125
    assert sum(r.size for r in requests) == 400
    answers = {r: range(r.address, r.address + r.size) for r in requests}
    assert all(list(find_words(row, answers)) == list(range(row.address, row.address + 4)) for row in many)


@every_row("name", list_profiles())
def test_shipped_profiles_are_whole(name):
    profile = load_profile(name, "test")
    assert profile.vendor
    assert profile.model
    assert profile.source
    assert profile.accuracy.reference
    assert profile.accuracy.source in ("assumed", "datasheet")
    assert any(r.name == "power_w" and r.kind == "power" for r in profile.registers)


def test_profiles_that_the_makers_do_not_confirm_are_marked():
    unsure = {name for name in list_profiles() if not load_profile(name, "test").confirmed}
    assert unsure == {"iem3000", "pm5000", "pac2200", "xerus"}
    assert list_profiles()["pac2200"] == "Siemens PAC2200 (not confirmed)"


GOOD = 'registers = [{ name = "power_w", address = 52, unit = "W" }]'


@every_row(
    ("text", "code"),
    [
        (GOOD.replace("address =", "adress = 3, address ="), "config.unknown-key"),
        (GOOD.replace("address", "adress"), "config.several"),
        (GOOD.replace("address = 52, ", ""), "config.missing-key"),
        (GOOD.replace('"W"', '"w"'), "config.wrong-value"),
        (GOOD.replace("52", "70000"), "config.wrong-value"),
        (GOOD.replace("power_w", "power"), "config.wrong-name"),
        (GOOD.replace("}", ', type = "float"}'), "config.wrong-value"),
        (GOOD.replace("}", ", function = 1}"), "config.wrong-value"),
        (GOOD.replace("}", ", function = true}"), "config.wrong-value"),
        (GOOD.replace("}", ", scale = 0}"), "config.wrong-value"),
        (GOOD.replace("}", ', kind = "counter"}'), "config.wrong-kind"),
        (GOOD.replace("}", ', kind = "power", phase = 1}'), "config.wrong-kind"),
        (GOOD.replace("}", ', sentinel = "x"}'), "config.wrong-value"),
        (GOOD + '\nword_ordr = "big"', "config.unknown-key"),
        (GOOD + "\ngap = 1000", "config.wrong-value"),
        (GOOD + "\naccuracy = {gian = 0.1}", "config.unknown-key"),
        (GOOD + '\nstride = "4"', "config.wrong-value"),
        (GOOD + "\nupdate_s = inf", "config.wrong-value"),
        (GOOD + '\nconfirmed = "no"', "config.wrong-value"),
        ("registers = []", "config.no-power"),
        ("registers = [3]", "config.wrong-value"),
        ('model = "M"', "config.wrong-value"),
        (GOOD.replace("power_w", "demand_w"), "config.no-power"),
        (GOOD[:-1] + ", " + GOOD[13:], "config.twice"),
    ],
)
def test_wrong_profiles_are_refused(text, code):
    with pytest.raises(ConfigError) as caught:
        parse_profile(tomllib.loads(text), Mistakes("mine.toml", text))
    assert caught.value.code == code
    assert caught.value.next or caught.value.mistakes


def test_all_mistakes_of_a_profile_are_listed_with_their_lines(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('gap = -1\nword_order = "middle"\n' + GOOD.replace("52", "70000"))
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path), "test")
    places = [mistake.where.partition("mine.toml")[2] for mistake in caught.value.mistakes]
    assert places[:2] == [":1", ":2"]
    assert len(places) == 3


def test_a_new_device_is_one_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    (plan,) = read_settings({"address": "a", "profile": str(path)}).plans
    assert plan.registers["power_w"].address == 52
    path.write_text("registers = [")
    for given, code in (
        ("sdm63", "config.unknown-profile"),
        (str(tmp_path / "none.toml"), "config.unreadable-profile"),
        (str(path), "config.not-toml"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_profile(given, "test")
        assert caught.value.code == code


@pytest.mark.timeout(30)  # it would be waited for, for ever
def test_a_profile_that_is_a_fifo_is_refused(tmp_path):
    os.mkfifo(tmp_path / "mine.toml")
    with pytest.raises(ConfigError, match="it is a FIFO, not a regular file"):
        load_profile(str(tmp_path / "mine.toml"), "test")


@every_row(
    ("entry", "code"),
    [
        ({}, "config.no-profile"),
        ({"profile": "sdm630", "registers": []}, "config.no-profile"),
        ({"profile": "sdm630", "unit_id": 300}, "config.wrong-value"),
        ({"profile": "sdm630", "outlets": [1]}, "config.no-outlets"),
        ({"registers": [{"name": "power_w", "address": 1, "unit": "W", "each": "outlet"}]}, "config.no-outlets"),
        ({"profile": "xerus", "outlets": [2]}, "config.no-stride"),
        ({"profile": "xerus", "outlets": "2"}, "config.wrong-value"),
        ({"profile": "xerus", "outlets": []}, "config.wrong-value"),
        ({"profile": "xerus", "outlets": [1, 1]}, "config.wrong-value"),
        ({"profile": "xerus", "outlets": [900], "stride": 64}, "config.wrong-value"),
        ({"profile": "sdm630", "word_order": "middle"}, "config.wrong-value"),
        ({"profile": "sdm630", "timeout_s": 0}, "config.wrong-value"),
    ],
)
def test_wrong_entries_are_refused(entry, code):
    with pytest.raises(ConfigError) as caught:
        open_meter("modbus", {"address": "a", **entry})
    assert caught.value.code == code
    assert caught.value.next


class Device:
    """Answer each register with a value of its own; blocks of several are refused."""

    def __init__(self, values):
        self.values, self.sizes = values, ()

    def read_blocks(self, unit, requests):
        self.sizes = tuple(request.size for request in requests)
        for request in requests:
            if request.size > 2:
                raise Refusal("m", unit, request, 2)
        return [words("f", self.values[request.address]) for request in requests]

    def close(self):
        pass


def test_a_power_that_cannot_be_right_refuses_the_energy_beside_it():
    rows = [{"name": "energy_j", "address": 2, "unit": "kWh"}, {"name": "power_w", "address": 0, "unit": "W"}]
    settings = read_settings({"address": "a", "registers": rows})
    for power, code in ((4e9, "read-failed.implausible"), (-450.0, "read-failed.implausible")):
        with pytest.raises(ReadFailed) as caught:
            ModbusMeter(settings, Device({0: power, 2: 7.0}))
        assert caught.value.code == code
    meter = ModbusMeter(settings, Device({0: math.nan, 2: 7.0}))
    assert [m.code for m in meter.missing()] == ["read-failed.no-value"]


def test_registers_that_the_device_lacks_are_not_read_along(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace("}", '}, { name = "voltage_v", address = 60, unit = "V" }') + "\ngap = 20")
    device = Device({52: 230.0, 60: 230.0})
    meter = ModbusMeter(read_settings({"address": "a", "profile": str(path)}), device)
    assert meter.read(meter.streams()[0]) == [230.0, 230.0]
    assert device.sizes == (2, 2)


def test_the_doctor_finds_the_unit_that_answers_where_others_are_silent():
    class Gateway:
        def read_blocks(self, unit, requests):
            if unit != 3:
                raise ReadFailed("the device does not answer", code="read-failed.no-answer")
            return [(0,) * request.size for request in requests]

    entry = {"address": "a", "profile": "sdm630", "unit_id": 4}
    found = explain_answers(Gateway(), read_settings(entry))
    assert "set unit_id = 3" in " ".join(found)


JANITZA = {"address": "a", "profile": "janitza", "label": "m"}


def make_janitza(power=1380.0, phases=(460.0,) * 3, amperes=(2.0,) * 3, volts=230.0, watt_hours=5e5):
    values = {19026: power, 19068: watt_hours}
    for n in range(3):
        values |= {19000 + 2 * n: volts, 19012 + 2 * n: amperes[n], 19020 + 2 * n: phases[n]}
    return values


@every_row(
    ("changes", "code"),
    [
        ({}, ""),
        ({"power": 460.0, "phases": (460.0, 460.0, -460.0)}, "read-failed.turned-clamp"),
        ({"phases": (692.0, 693.0, -5.0)}, ""),  # the noise of a phase without load
        ({"power": 460.0}, "read-failed.phases"),
        ({"phases": (0.0,) * 3}, ""),  # a device that shows no phases
        ({"phases": (math.nan, 460.0, 460.0)}, ""),
        ({"power": 1.38, "phases": (0.46,) * 3}, "read-failed.product"),  # kW taken for W
        ({"power": 0.0, "phases": (0.0,) * 3}, "read-failed.zero-power"),
        ({"power": 0.0, "phases": (0.0,) * 3, "amperes": (0.0,) * 3}, ""),  # a node that is off
        ({"power": 0.0, "phases": (0.0,) * 3, "amperes": (0.0,) * 3, "volts": 0.0}, "read-failed.zero-power"),
        (
            {"power": 0.0, "phases": (0.0,) * 3, "amperes": (0.0,) * 3, "volts": 0.0, "watt_hours": 0.0},
            "read-failed.all-zero",
        ),
    ],
)
def test_a_power_that_other_values_contradict_is_refused_at_opening_and_a_gap_later(changes, code):
    device = Device(make_janitza())
    meter = ModbusMeter(read_settings(JANITZA), device)
    whole, *phases = meter.streams()
    device.values = make_janitza(**changes)
    for stream in phases:
        meter.read(stream)
    if not code:
        assert ModbusMeter(read_settings(JANITZA), device).read(whole) == meter.read(whole)
        return
    with pytest.raises(ReadFailed) as caught:
        ModbusMeter(read_settings(JANITZA), device)
    assert (caught.value.code, caught.value.where) == (code, "m")
    assert "its values contradict" in diagnose(JANITZA, caught.value)[0]
    if code not in ("read-failed.phases", "read-failed.product"):  # later, a step of the load would look the same
        with pytest.raises(ReadFailed) as caught:
            meter.read(whole)
        assert caught.value.code == code


@every_row("step", range(12, 24))
def test_a_step_of_the_load_while_opening_is_no_contradiction(step):
    class Stepping(Device):
        count = 0

        def read_blocks(self, unit, requests):
            self.count += 1
            self.values = make_janitza(9e4, (3e4,) * 3, (130.0,) * 3) if self.count > step else make_janitza()
            return super().read_blocks(unit, requests)

    assert len(ModbusMeter(read_settings(JANITZA), Stepping({})).streams()) == 4


def test_outlets_that_are_off_are_read_unless_all_of_them_show_nothing():
    rows = [{"name": "power_w", "address": 0, "unit": "W", "each": "outlet"}]
    rows += [{"name": "voltage_v", "address": 4, "unit": "V", "each": "outlet"}]
    settings = read_settings({"address": "a", "registers": rows, "outlets": [1, 2], "stride": 8})
    meter = ModbusMeter(settings, Device({0: 0.0, 4: 0.0, 8: 500.0, 12: 230.0}))
    assert [meter.read(stream)[0] for stream in meter.streams()] == [0.0, 500.0]
    with pytest.raises(ReadFailed) as caught:
        ModbusMeter(settings, Device(dict.fromkeys((0, 4, 8, 12), 0.0)))
    assert caught.value.code == "read-failed.all-zero"


def test_a_setting_under_which_the_power_is_zero_is_no_advice():
    """W taken for kW: one address further there are the low words of both values, and zeros behind them."""
    found = dict.fromkeys(range(3050, 3220), 0)
    found |= dict(zip(range(3059, 3061), words("f", 1380.0), strict=True))
    found |= dict(zip(range(3203, 3207), words("q", 500_000), strict=True))

    class Meter(Device):
        def read_blocks(self, unit, requests):
            return [tuple(found[r.address + n] for n in range(r.size)) for r in requests]

    settings = read_settings({"address": "a", "profile": "pm5000"})
    assert find_fitting_settings(Meter({}), settings) == []
    with pytest.raises(ReadFailed) as caught:
        ModbusMeter(settings, Meter({}))
    assert caught.value.next.startswith("check unit")
    with pytest.raises(ReadFailed) as caught:
        ModbusMeter(read_settings({"address": "a", "profile": "pm5000", "shift": 1}), Meter({}))
    assert "e+10 Wh" in caught.value.why, "no node used 33 GWh"


@every_row(
    ("entry", "at", "swapped", "advice"),
    [
        ({"shift": 1}, 0, False, "shift = 0"),
        ({"shift": 1}, 2, False, "shift = 2"),
        ({"word_order": "little"}, 0, False, 'word_order = "big"'),
        ({"shift": 4}, 5, True, 'word_order = "little", shift = 5'),
        ({}, 0, False, ""),
    ],
)
def test_advice_is_the_value_to_set_whatever_the_entry_has(entry, at, swapped, advice):
    found = dict.fromkeys(range(200), 0x8888)
    found |= dict(zip(range(50 + at, 52 + at), words("f", 1381.7, swapped=swapped), strict=True))
    found |= dict(zip(range(60 + at, 62 + at), words("f", 230.9, swapped=swapped), strict=True))

    class Meter(Device):
        def read_blocks(self, unit, requests):
            return [tuple(found[r.address + n] for n in range(r.size)) for r in requests]

    rows = [{"name": "power_w", "address": 50, "unit": "W"}, {"name": "voltage_v", "address": 60, "unit": "V"}]
    fitting = find_fitting_settings(Meter({}), read_settings({"address": "a", "registers": rows} | entry))
    assert advice in fitting
    assert len(fitting) <= 2, "with the other order one address beside, the high word is the same: both are named"
