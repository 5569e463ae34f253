"""Which sensors of a BMC are taken for what, from names and records as different makers have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulelab.core.errors import ConfigError, Unavailable
from joulelab.instruments.ipmi import sensors as choose
from joulelab.instruments.ipmi.parse import CELSIUS, RPM, WATT, Sensor
from joulelab.instruments.ipmi.settings import Source, account, interface, settings


def sensor(name: str, entity: int = 7, instance: int = 1, unit: int = WATT, **more) -> Sensor:
    return Sensor(1, 0x20, 0, 1, entity, instance, 0x0B, name, unit=unit, analog=True, m=1, **more)


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
    assert names(choose.supplies(both, None, output=False)) == [into]
    assert names(choose.supplies(both, None, output=True)) == [out]


def test_supplies_in_their_order_and_nothing_else():
    found = [
        sensor("PSU2 Power", 10, 2),
        sensor("CPU Power", 3),
        sensor("PSU1 Power", 10, 1),
        sensor("Fan", 10, 3, RPM),
    ]
    assert names(choose.supplies(found, None, output=False)) == ["PSU1 Power", "PSU2 Power"]


def test_two_sensors_of_one_supply_that_nobody_can_tell_apart_are_not_guessed():
    found = [sensor("PSU1 Power A", 10, 1), sensor("PSU1 Power B", 10, 1)]
    assert choose.supplies(found, None, output=False) == []
    assert names(choose.supplies(found, "psu* power a", output=False)) == ["PSU1 Power A"]


@pytest.mark.parametrize("name", ["Sys Power", "System Power", "Pwr Consumption", "Total_Power", "Power Meter"])
def test_the_whole_node(name):
    assert choose.whole_node([sensor("CPU1 Power", 3), sensor(name)]).name == name


def test_no_single_sensor_of_the_whole_node():
    assert choose.whole_node([sensor("MEM Power", 8)]) is None
    assert choose.whole_node([sensor("Sys Power"), sensor("System Power")]) is None


def test_inlet_by_entity_or_name():
    by_entity = [sensor("T1", 64, unit=CELSIUS), sensor("Ambient", 7, unit=CELSIUS)]
    assert names(choose.temperatures(by_entity, None)) == ["T1"]
    assert names(choose.temperatures([sensor("Ambient", 7, unit=CELSIUS), sensor("CPU", 3, unit=CELSIUS)], None)) == [
        "Ambient"
    ]
    assert names(choose.temperatures(by_entity, ["amb*"])) == ["Ambient"]
    assert choose.temperatures(by_entity, []) == []


def test_fans_in_rpm_or_percent():
    turning, share = sensor("Fan 1", 29, unit=RPM), sensor("Fan 1 Duty", 29, unit=0, percent=True)
    assert choose.fans([turning, share], None) == [turning]
    assert choose.fans([share], None) == [share]
    assert choose.fans([turning, share], ["*duty"]) == [share]


def test_only_sensors_that_the_bmc_answers_for():
    mine = sensor("A")
    others = [replace(mine, owner=0x2C), replace(mine, lun=1), replace(mine, analog=False), replace(mine, m=0)]
    assert choose.readable([mine, *others]) == [mine]


def test_a_name_that_is_not_there():
    with pytest.raises(Unavailable, match="did you mean 'Sys Power'"):
        choose.named([sensor("Sys Power")], "Sys Powr", "BMC")
    with pytest.raises(Unavailable, match="not a power"):
        choose.named([sensor("Inlet", unit=CELSIUS)], "inlet", "BMC")


# Configuration.

BASE = {"address": "bmc7:6230", "user": "me", "password": "s3cret-s3cret"}


def test_sources_and_what_they_feed():
    assert settings(BASE).sources is None
    given = ["dcmi", "xcc", "psu", "psu.dc", {"source": "sensor:CPU Power", "feeds": "cpu:0"}]
    feeds = [(s.kind, s.feeds) for s in settings({**BASE, "feeds": "rack", "sources": given}).sources]
    assert feeds == [
        ("dcmi", "rack"),
        ("xcc", "node.dc"),
        ("psu", "node.ac"),
        ("psu.dc", "node.dc"),
        ("sensor", "cpu:0"),
    ]
    assert settings({**BASE, "feeds": "node.ac", "sources": "xcc"}).sources == (Source("xcc", "node.ac"),)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sources": []},
        {"sources": ["dmci"]},
        {"sources": ["sensor"]},
        {"sources": ["dcmi:x"]},
        {"sources": [{"source": "dcmi", "fedes": "x"}]},
        {"sources": 7},
        {"fans": "Fan*"},
        {"period_s": 0},
        {"update_s": "1"},
    ],
)
def test_wrong_values_are_refused_with_what_fits(wrong):
    with pytest.raises(ConfigError) as caught:
        settings({**BASE, **wrong})
    assert caught.value.next
    assert next(iter(wrong)) in caught.value.what


@pytest.mark.parametrize(
    "wrong",
    [{"user": ""}, {"user": "u" * 17}, {"password": None}, {"password": "p" * 21}, {"cipher": 4}, {"cipher": True},
     {"privilege": "root"}, {"address": "a:b"}],
)  # fmt: skip
def test_wrong_accounts_are_refused_and_the_password_stays_out_of_it(wrong):
    with pytest.raises(ConfigError) as caught:
        account({**BASE, **wrong})
    assert "s3cret" not in str(caught.value)
    assert "ppp" not in str(caught.value)


def test_the_interface():
    assert interface(BASE) == "lan"
    assert interface({}) == "in-band"
    with pytest.raises(ConfigError, match="in-band"):
        interface({"interface": "serial"})
