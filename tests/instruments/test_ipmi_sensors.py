"""Sensors of a BMC are chosen by names and records as different makers have them; entries are checked."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from tests.rows import every_row

from joulelab.core.errors import ConfigError, MissingDependency, Unavailable
from joulelab.instruments.ipmi import check, sensors
from joulelab.instruments.ipmi.answers import CELSIUS, RPM, WATT, SensorRecord
from joulelab.instruments.ipmi.settings import (
    BmcAccount,
    PowerSource,
    choose_interface,
    open_link,
    read_settings,
)


def sensor(name: str, entity: int = 7, instance: int = 1, unit: int = WATT, **more) -> SensorRecord:
    return SensorRecord(0x20, 0, 1, entity, instance, 0x0B, name, unit=unit, analog=True, m=1, **more)


def names(found) -> list[str]:
    return [s.name for s in found]


PAIRS = [
    ("PSU1 Input Power", "PSU1 Output Power"),
    ("PSU1_PIN", "PSU1_POUT"),
    ("PS1 Power In", "PS1 Power Out"),
    ("PSU1 AC Power", "PSU1 DC Power"),
]


@pytest.mark.parametrize(("into", "out"), PAIRS)
def test_input_and_output_of_supplies_are_told_apart(into, out):
    both = [sensor(out, 10), sensor(into, 10)]
    assert names(sensors.choose_supplies(both, None, output=False)) == [into]
    assert names(sensors.choose_supplies(both, None, output=True)) == [out]


def test_supplies_in_their_order_and_nothing_else():
    first, second = sensor("PSU1 Power", 10, 1), sensor("PSU2 Power", 10, 2)
    found = [second, sensor("CPU Power", 3), first, sensor("Fan 3", 10, 1, RPM), sensor("Rate", 10, 2, 0)]
    assert sensors.choose_supplies(found, None, output=False) == [first, second]
    assert sensors.choose_supplies([first, replace(second, owner=0x2C)], None, output=False) == []


def test_two_sensors_of_one_supply_are_not_guessed():
    found = [sensor("PSU1 Power A", 10, 1), sensor("PSU1 Power B", 10, 1)]
    assert sensors.choose_supplies(found, None, output=False) == []
    assert names(sensors.choose_supplies(found, "psu* power a", output=False)) == ["PSU1 Power A"]


@every_row("name", ["Sys Power", "System Power", "Pwr Consumption", "Total_Power", "Power Meter", "SYSPWR"])
def test_the_whole_node(name):
    assert sensors.choose_whole_node([sensor("CPU1 Power", 3), sensor(name)]).name == name


def test_no_single_sensor_of_the_whole_node():
    assert sensors.choose_whole_node([sensor("MEM Power", 8)]) is None
    assert sensors.choose_whole_node([sensor("Sys Power"), sensor("System Power")]) is None
    assert sensors.choose_whole_node([sensor("Sys Power", percent=True)]) is None


@every_row(
    "name",
    [
        *("CPU Pwr Consumption", "GPU Total Power", "System Power Limit", "System Power Lim", "Total Power Max"),
        *("Node Power Budget", "Total Power Out", "Node2 Power", "PSU Total Power", "Sys Fan Power", "Total", "Power"),
    ],
)
def test_a_part_a_limit_or_an_output_is_not_the_node(name):
    assert sensors.choose_whole_node([sensor(name)]) is None


def test_the_redundancy_of_all_supplies_is_none_of_them():
    supplies = [sensor(f"Power Supply {n}", 10, n) for n in (1, 2)]
    together = sensor("Power Supplies", 10, 3, 0)
    assert sensors.choose_supplies([*supplies, together], None, output=False) == []
    together = replace(together, redundancy=True)
    assert sensors.choose_supplies([*supplies, together], None, output=False) == supplies


def test_inlet_by_entity_or_name():
    by_entity = [sensor("T1", 64, unit=CELSIUS), sensor("Ambient", 7, unit=CELSIUS)]
    by_name = [sensor("Ambient", 7, unit=CELSIUS), sensor("CPU", 3, unit=CELSIUS)]
    assert names(sensors.choose_temperatures(by_entity, None)) == ["T1"]
    assert names(sensors.choose_temperatures(by_name, None)) == ["Ambient"]
    assert names(sensors.choose_temperatures(by_entity, ["amb*"])) == ["Ambient"]
    assert sensors.choose_temperatures(by_entity, []) == []
    assert sensors.choose_temperatures([sensor("Inlet", 64, unit=2)], None) == [], "degrees Fahrenheit"


def test_fans_in_rpm_or_percent():
    turning, share = sensor("Fan 1", 29, unit=RPM), sensor("Fan 1 Duty", 29, unit=0, percent=True)
    assert sensors.choose_fans([turning, share], None) == [turning]
    assert sensors.choose_fans([share], None) == [share]
    assert sensors.choose_fans([turning, share], ["*duty"]) == [share]


def test_only_sensors_that_the_bmc_answers_for():
    mine = sensor("A")
    others = [replace(mine, owner=0x2C), replace(mine, lun=1), replace(mine, analog=False), replace(mine, m=0)]
    assert [sensors.is_readable(s) for s in (mine, *others)] == [True] + 4 * [False]


def test_a_sensor_by_its_name():
    power = sensor("Sys Power")
    assert sensors.find_power_sensor([power, sensor("X")], "sys power", "BMC") is power
    with pytest.raises(Unavailable, match="did you mean 'Sys Power'"):
        sensors.find_power_sensor([power], "Sys Powr", "BMC")
    for wrong in (sensor("Inlet", unit=CELSIUS), sensor("Inlet", percent=True), sensor("Inlet", unit=0)):
        with pytest.raises(Unavailable, match="not a power"):
            sensors.find_power_sensor([wrong], "inlet", "BMC")
    with pytest.raises(Unavailable, match="several"):
        sensors.find_power_sensor([power, power], "Sys Power", "BMC")


# The entry.

BASE = {"address": "bmc7:6230", "user": "me", "password": "s3cret-s3cret"}


def test_sources_and_their_scopes():
    assert read_settings(BASE).sources is None
    given = ["dcmi", "xcc", "psu", "psu.dc", {"source": "sensor:CPU Power", "feeds": "cpu:0"}]
    feeds = [(s.kind, s.feeds) for s in read_settings({**BASE, "feeds": "rack", "sources": given}).sources]
    assert feeds == [
        ("dcmi", "rack"),
        ("xcc", "node.dc"),
        ("psu", "node.ac"),
        ("psu.dc", "node.dc"),
        ("sensor", "cpu:0"),
    ]
    only = read_settings({**BASE, "feeds": "node.ac", "sources": "xcc"}).sources
    assert only == (PowerSource("xcc", "node.ac"),)


@every_row(
    "wrong",
    [
        {"sources": []},
        {"sources": ["dmci"]},
        {"sources": ["sensor"]},
        {"sources": ["dcmi:x"]},
        {"sources": [{"source": "dcmi", "fedes": "x"}]},
        {"sources": [{"source": "dcmi", "feeds": "nod.ac"}]},
        {"sources": 7},
        {"fans": "Fan*"},
        {"period_s": 0},
        {"update_s": "1"},
        {"user": ""},
        {"user": "u" * 17},
        {"password": None},
        {"password": "p" * 21},
        {"cipher": 17},
        {"cipher": True},
        {"privilege": "root"},
        {"address": "a:b"},
        {"interface": "serial"},
        {"interface": "in-band", "command": []},
        {"interface": "in-band", "command": "ipmitool 'x"},
        {"source": "dcmi"},
    ],
)
def test_wrong_values_are_refused_with_those_that_fit(wrong):
    with pytest.raises(ConfigError) as caught:
        check({**BASE, **wrong})
    assert caught.value.next
    assert "s3cret" not in str(caught.value)
    assert "ppp" not in str(caught.value)


def test_the_interface():
    assert choose_interface(BASE) == "lan"
    assert choose_interface({}) == "in-band"
    check(BASE)
    check({"command": "ipmitool -I open"})


def test_without_pyghmi(monkeypatch):
    monkeypatch.setitem(sys.modules, "joulelab.instruments.ipmi.lan", None)
    with pytest.raises(MissingDependency) as caught:
        open_link(BASE)
    assert caught.value.code == "missing-dependency.pyghmi"


def test_the_password_of_an_account_is_never_printed():
    assert "s3cret" not in repr(BmcAccount("127.0.0.1", 623, "USERID", "s3cret"))
