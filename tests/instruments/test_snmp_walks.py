"""Read recorded walks of real PDUs and UPSs, and small ones of kinds that were read wrongly: right, or refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.instruments.snmp_replay import parse_walk, read_objects

from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed, Unavailable
from joulelab.instruments.snmp.client import MISSING, Name
from joulelab.instruments.snmp.setup import Cell
from joulelab.instruments.snmp.tables import tables

WALKS = Path(__file__).parents[3] / "shared" / "data" / "devices" / "snmp"
# What each recorded device gives: the table it is read by and its powers in W, or words of the refusal.
UNKNOWN = "this is no PDU or UPS that joulelab knows"
READ = {
    "apc_ap7900b": ("apc_rpdu", [312.0]),
    "apc_ap8959eu3": ("apc_rpdu2", [270.0]),
    "cyberpower_pdu81005": ("cyberpower_epdu", [216.0]),
    "deltaups_mini-snmp": ("ups", [2000.0]),
    "eatonpdu_2": ("eaton", [1584.0]),
    "generex-ups_cs141": "output line 1 is not metered .*its power_w is -4.*sum of all output lines.*line 2 alone",
    "raritan-pdu_px2": "neither its power nor its energy",  # the walk lacks the units of its numbers
    "raritan-pdu_px3": ("raritan", [1665.0]),
    "sentry4": ("sentry4", [1701.0, 1265.0]),
}
CLASSES = {"power_w": "power", "energy_j": "power_consumed", "current_a": "current", "voltage_v": "voltage"}
JOULES = 3.6e6  # the other system counts kWh


def walks():
    return sorted(path.stem for path in WALKS.glob("*.snmprec")) or ["none"]


def recorded(name):
    path = WALKS / f"{name}.snmprec"
    if not path.exists():
        pytest.skip(f"no recorded walk {name}: {WALKS} is not here")
    return parse_walk(path.read_text("utf-8", "replace"))


def expected(name):
    listed = json.loads((WALKS / f"{name}.expected.json").read_text("utf-8"))
    return {row["sensor_oid"].lstrip("."): row for row in listed}


def compared(rows, known):
    """Check every channel that the other system reads too; return how many there were."""
    count = 0
    for stream, row in rows.items():
        for channel, oid in row["oids"].items():
            other = known.get(oid)
            if other is None or CLASSES.get(channel) != other["sensor_class"]:
                continue
            value = row[channel] / JOULES if channel == "energy_j" else row[channel]
            assert value == pytest.approx(other["sensor_current"], abs=1e-6), (stream, channel, oid)
            count += 1
    return count


@pytest.mark.parametrize("name", walks())
def test_every_recorded_device_is_read_right_or_refused(name):
    objects, given = recorded(name), READ.get(name, UNKNOWN)
    if isinstance(given, str):
        with pytest.raises(JoulelabError, match=given):
            read_objects(objects)
        return
    rows = read_objects(objects)
    pieces = [row for row in rows.values() if row["kind"] == "power"]
    assert [(row["table"], row["power_w"]) for row in pieces] == [(given[0], watts) for watts in given[1]]
    assert compared(rows, expected(name)) > 1


@pytest.mark.parametrize("name", ["eatonpdu_2", "raritan-pdu_px3"])
def test_recorded_outlets_agree_with_what_another_system_reads(name):
    objects, known = recorded(name), expected(name)
    columns = [level.columns[0] for vendor in tables().values() if (level := vendor.levels.get("outlet"))]
    indices = {
        oid.removeprefix(f"{column.oid}.").removesuffix(f".{column.suffix}" if column.suffix else "")
        for column in columns
        for oid, row in known.items()
        if oid.startswith(f"{column.oid}.")
        and row["sensor_class"] == "power"
        and oid.endswith(f".{column.suffix}" if column.suffix else "")
    }
    assert len(indices) == 24
    assert compared(read_objects(objects, outlets=sorted(indices), phases=False), known) >= len(indices)


def test_recorded_outlets_that_are_not_metered_are_gaps():
    rows = read_objects(recorded("cyberpower_pdu81005"), outlets=[1, 5], energy=False)
    assert "the outlet is not metered" in rows["outlet:pdu1.1"]["power_w"]
    assert rows["outlet:pdu1.5"]["power_w"] == 82


def device(object_id, *columns):
    """Return the objects of a device: who it is, and (column, values of rows 1, 2 ...)."""
    objects = {"1.3.6.1.2.1.1.1.0": b"x", "1.3.6.1.2.1.1.2.0": Name(object_id)}
    return objects | {f"{oid}.{row}": value for oid, *rows in columns for row, value in enumerate(rows, 1)}


APC, RPDU2 = "1.3.6.1.4.1.318.1.3.4.6", "1.3.6.1.4.1.318.1.1.26.4.3.1"
CPS, LOAD = "1.3.6.1.4.1.3808.1.1.3", "1.3.6.1.4.1.3808.1.1.3.2.3.1.1"
OUTPUT = "1.3.6.1.2.1.33.1.4.4.1"


def powers(objects, **config):
    return [row["power_w"] for row in read_objects(objects, **config).values() if row["kind"] == "power"]


def test_the_newer_apc_table_is_read_unless_it_knows_no_power():
    old = {"1.3.6.1.4.1.318.1.1.12.1.16.0": 312}
    (row,) = read_objects(device(APC, (f"{RPDU2}.5", 31), (f"{RPDU2}.9", 100)) | old).values()
    assert (row["table"], row["power_w"], row["energy_j"], row["gains"]["power_w"]) == ("apc_rpdu2", 310, 36e6, 0.01)
    (row,) = read_objects(device(APC, (f"{RPDU2}.5", -1), (f"{RPDU2}.9", -1)) | old).values()
    assert (row["table"], row["power_w"]) == ("apc_rpdu", 312)
    with pytest.raises(Unavailable, match="power_w is -1"):
        read_objects(device(APC, (f"{RPDU2}.5", -1)))


def test_phases_and_banks_of_one_load_are_not_added():
    assert powers(device(CPS, (f"{LOAD}.7", 216, 216), (f"{LOAD}.5", 0, 1))) == [216]
    assert powers(device(CPS, (f"{LOAD}.7", 300, 200, 100), (f"{LOAD}.5", 0, 1, 2))) == [300]
    assert powers(device(CPS, (f"{LOAD}.7", 70, 80, 90), (f"{LOAD}.5", 0, 0, 0))) == [70, 80, 90]
    assert powers(device(CPS, (f"{LOAD}.7", 70, 80), (f"{LOAD}.5", 1, 2))) == [70, 80]
    assert powers(device(CPS, (f"{LOAD}.7", 216, 216))) == [216]
    for unclear in ((300, 200), (0, 0)):
        with pytest.raises(Unavailable, match=r"may be phases, or banks of them.*units = \[\"1\"\]"):
            powers(device(CPS, (f"{LOAD}.7", *unclear)))
        assert powers(device(CPS, (f"{LOAD}.7", *unclear)), units=["1"]) == [unclear[0]]


def test_an_outlet_that_never_had_any_load_is_a_gap_and_one_that_is_off_is_not():
    at = f"{CPS}.3.5.1.1"
    objects = device(CPS, (f"{at}.8", 0, 0, 50), (f"{at}.7", 0, 0, 2), (f"{at}.13", 0, 12, 3))
    unmetered, off, on = powers(objects, outlets=[1, 2, 3])
    assert "the outlet is not metered" in unmetered
    assert (off, on) == (0, 50)


def test_lines_that_a_ups_does_not_have_are_left_out():
    ups = device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000, None, None), (f"{OUTPUT}.2", 2302, None, None))
    (row,) = read_objects(ups).values()
    assert row["power_w"] == 2000
    assert "voltage_v" not in row, "0.1 V in place of V"
    with pytest.raises(Unavailable, match="output line 2 is not metered"):
        read_objects(ups, units=[2])
    known = device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000, -1), (f"{OUTPUT}.2", 230, 230))
    with pytest.raises(Unavailable, match="power_w is -1"):
        read_objects(known)
    assert math.isclose(powers(device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 5, 6)))[1], 6)


@pytest.mark.parametrize("amps", [0, 94])
def test_a_line_of_a_ups_with_a_current_and_no_power_refuses_the_whole(amps):
    ups = device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000), (f"{OUTPUT}.3", 91, amps), (f"{OUTPUT}.2", 230, 230))
    with pytest.raises(Unavailable, match=rf"output line 2 has no power.*current_a, {amps / 10:g}.*units = \[\"1\"\]"):
        read_objects(ups)
    with pytest.raises(Unavailable, match=r"output line 2 has no power.*load, 0.4"):
        read_objects(device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000), (f"{OUTPUT}.5", 36, 40)))
    assert powers(ups, units=["1"]) == [2000]
    assert powers(device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000), (f"{OUTPUT}.3", 91, None, -1))) == [2000]


@pytest.mark.parametrize("drawn", [(f"{OUTPUT}.3", 94, 50), (f"{OUTPUT}.5", 36, 20)])
def test_a_line_of_a_ups_with_0_w_beside_a_current_or_a_load_is_refused(drawn):
    ups = device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000, 0), drawn)
    with pytest.raises(Unavailable, match=r"output line 2 is not metered.*power_w is 0 while its"):
        read_objects(ups)
    with pytest.raises(Unavailable, match="output line 2"):
        read_objects(ups, units=["2"])
    assert powers(ups, units=["1"]) == [2000]


@pytest.mark.parametrize("drawn", [(0, 0), (4, 1)])
def test_an_idle_line_of_a_ups_may_show_a_little_current(drawn):
    amps, load = (f"{OUTPUT}.3", 94, drawn[0]), (f"{OUTPUT}.5", 36, drawn[1])
    assert powers(device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000, 0), amps, load)) == [2000, 0]


def test_a_power_that_falls_to_0_beside_a_current_is_a_gap():
    cell = Cell("power_w", 0, vital=True, draws=(Cell("current_a", 1, 0.1),))
    assert cell.number([0, 5], frozenset()) == 0
    assert cell.number([0, MISSING], frozenset()) == 0
    assert cell.number([20, 50], frozenset()) == 20
    with pytest.raises(ReadFailed, match="0 beside a current_a of 5"):
        cell.number([0, 50], frozenset())


def test_lines_of_one_ups_are_not_offered_as_units():
    ups = device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", -4, 469, -26), (f"{OUTPUT}.3", 3, 21, 2))
    with pytest.raises(Unavailable) as refused:
        read_objects(ups)
    assert str(refused.value).endswith('at a PDU or the nodes; output line 2 alone is units = ["2"]')
    assert "there are" not in str(refused.value)
    assert powers(ups, units=["2"]) == [469]


def test_the_table_is_the_one_that_has_what_is_wanted():
    outlets = "1.3.6.1.4.1.3808.1.1.6.6.2.4.1"
    both = device("1.3.6.1.4.1.3808.1.1.6", (f"{LOAD}.7", 216), (f"{outlets}.7", 82), (f"{outlets}.11", 31))
    assert (powers(both), powers(both, outlets=[1])) == ([216], [82])
    with pytest.raises(ConfigError, match="there is no outlet 9"):
        powers(both, outlets=[9])
