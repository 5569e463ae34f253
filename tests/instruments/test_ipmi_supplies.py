"""Supplies of a BMC are summed only if each of them is in the sum once: a half or a double is never the node."""

from __future__ import annotations

import struct

import pytest
from tests.instruments.test_ipmi_recorded import Exchange, answer, code_of, make_record

from joulelab.instruments import ipmi

AMPERE = 5
BOTH = [(f"PSU{n} {side} Pwr", n) for n in (1, 2) for side in ("Input", "Output")]
HALF = [
    [("PS1 Input Power", 1), ("PS2 Output Power", 2)],
    [("PS1 Input Power", 1), ("PSU2 Power", 2)],
    [("PS1 Input Power", 1), ("PS2 Current", 2, AMPERE)],
    [("PS1 Input Power", 1), ("PS2 Current", 1, AMPERE)],  # a maker who numbers them by names only
    [("Input Power", 1), ("Status", 2, 0)],
    [("PSU1 Power Max", 1), ("PSU2 Power Max", 2)],
]


@pytest.fixture
def read_supplies(monkeypatch):
    """Return the powers of the supplies, 300 W in and 280 W out each, and the codes of what is missing."""

    def open_exchange(sensors, dcmi=600, count=None, **config):
        records, readings = [], {}
        for number, (name, instance, *unit) in enumerate(sensors, start=1):
            record = make_record(number, name, 10, *unit)
            records.append(record[:9] + bytes([instance]) + record[10:])
            readings[number] = answer(70 if "Out" in name else 75)
        link = Exchange(records, readings, dcmi)
        plain, info = link.carry_command, (0, struct.pack("<BHHIIB", 0x51, count or 0, 0, 0, 0, 0))
        link.carry_command = lambda *words: info if words[:2] == (0x0A, 0x20) and count else plain(*words)
        monkeypatch.setattr("joulelab.instruments.ipmi.open_link", lambda config: link)
        for module in ("joulelab.instruments.ipmi", "joulelab.instruments.ipmi.client"):
            monkeypatch.setattr(f"{module}.monotonic_ns", lambda: link.now_ns)
        meter = ipmi.open_meter(config)
        powers = [meter.read(s)[0] for s in meter.streams() if s.scope.startswith("psu")]
        return powers, [m.code for m in meter.missing()]

    return open_exchange


@pytest.mark.parametrize("sensors", HALF)
def test_supplies_without_one_power_each_are_not_summed(read_supplies, sensors):
    assert read_supplies(sensors) == ([], ["unavailable.no-supplies"])
    assert code_of(lambda: read_supplies(sensors, dcmi=None)) == "unavailable.no-power"
    assert code_of(lambda: read_supplies(sensors, sources=["psu"])) == "unavailable.no-supplies"


def test_half_of_dcmi_is_not_the_node(read_supplies):
    one = [("PS1 Input Power", 1)]
    assert read_supplies(one, dcmi=300) == ([300.0], [])
    assert read_supplies(one, dcmi=330) == ([300.0], []), "makers differ by 10 %"
    for dcmi in (580, 600, 450):  # one of two, one of two, two of three
        assert read_supplies(one, dcmi=dcmi) == ([], ["unavailable.no-supplies"])


@pytest.mark.parametrize("more", [{}, {"dcmi": None}, {"sources": ["psu"]}])
def test_a_pattern_that_fits_input_and_output_takes_one_of_them(read_supplies, more):
    assert read_supplies(BOTH, psu="PSU*", **more)[0] == [300.0, 300.0]
    maxima = [("PSU1 Power", 1), ("PSU1 Power Max", 1)]
    assert read_supplies(maxima, psu="PSU*", **{"dcmi": 300, **more})[0] == [300.0]


def test_a_pattern_that_counts_a_supply_twice_or_not_at_all_is_refused(read_supplies):
    twice = [("PSU1 X", 1), ("PSU1 Y", 1)]
    for sensors in (twice, BOTH[1:], BOTH[1::2]):  # twice, one without an input, outputs only
        assert code_of(lambda sensors=sensors: read_supplies(sensors, psu="*", sources=["psu"])) == (
            "unavailable.no-supplies"
        )
    assert read_supplies(twice, psu="PSU? X", sources=["psu"])[0] == [300.0], "but a name chooses"
    assert read_supplies(BOTH, sources=["psu.dc"], psu_dc="PSU*")[0] == [280.0, 280.0]


def test_other_sensors_of_the_same_supplies_do_not_matter(read_supplies):
    more = [("PSU1 Status", 1, 0), ("PSU2 Current", 2, AMPERE)]
    assert read_supplies([*BOTH, *more]) == ([300.0, 300.0], [])
    apart = [(name, k) for k, (name, _) in enumerate(BOTH, start=1)]  # an instance for each sensor
    assert read_supplies(apart) == ([300.0, 300.0], [])


def test_records_that_are_not_all_shown_leave_no_sum(read_supplies):
    assert read_supplies(BOTH, count=4) == ([300.0, 300.0], [])
    powers, codes = read_supplies(BOTH, count=5)
    assert powers == []
    assert sorted(codes) == ["read-failed.records", "unavailable.no-supplies"]
