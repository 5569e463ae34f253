"""Read recorded walks of real PDUs and UPSs, and small ones of kinds that were read wrongly: right, or refused."""

from __future__ import annotations

import math

import pytest
from tests.codes import raises_code
from tests.instruments.snmp_judge import WALKS, judge_device, list_walks, load_walk
from tests.instruments.snmp_replay import Replay, plan_session, read_objects, read_plan

from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.instruments.snmp.client import MISSING, Name
from joulelab.instruments.snmp.device import find_table, read_identity
from joulelab.instruments.snmp.doctor import list_suspects
from joulelab.instruments.snmp.plan import Cell

# What each recorded device gives: the table that it is read by, its powers in W (None: energy alone; empty: refused),
# how many values are those of another system, and how many are not, for the reasons below.
READ = {
    "apc-epdu_epdu1116s": ("apc_easy", [None], 10, 0),  # 0 W at 0 V is no reading
    "apc_ap7900b": ("apc_rpdu", [312], 2, 0),
    "apc_ap8959eu3": ("apc_rpdu2", [270], 3, 0),
    "apc_smx750": ("apc_ups", [333], 8, 0),
    "chatsworth-pdu": ("chatsworth", [1467, 1299, 1027], 108, 0),
    "cyberpower_pdu81005": ("cyberpower_epdu", [216], 3, 0),
    "dell-rpdu": ("dell_rpdu", [3790], 51, 0),
    "deltaups_mini-snmp": ("ups", [2000], 5, 0),
    "eatonpdu_2": ("eaton", [1584], 51, 0),
    "eatonups_eaton-connectups": ("eaton_ups", [246], 5, 0),
    "enlogic-pdu_v2": ("enlogic", [1120], 8, 0),
    "generex-ups_cs141": ("ups", [-4, 469, -26], 20, 0),
    "gude-epc_8031": ("gude", [18], 6, 1),
    "hpe-mapdu_pdu2": ("hpe_mapdu", [97], 11, 2),
    "hpe-pdumm": ("hpe_pdumm", [1587, 1137], 40, 0),
    "panduit": ("panduit", [956], 27, 0),
    "raritan-pdu": ("raritan_px1", [580], 2, 0),
    "raritan-pdu_px2": ("raritan", [138], 28, 0),
    "raritan-pdu_px3": ("raritan", [1665], 118, 10),
    "rittal-cmc-iii-pu_pdu-controller": ("rittal_cmc3", [2742], 15, 3),
    "schleifenbauer": ("schleifenbauer", [None, None, None], 12, 3),  # the walk has VA and kWh
    "sentry3_3phase": ("sentry3", [279], 11, 0),
    "sentry3_switched": ("sentry3", [], 0, 0),  # the walk has currents and voltages
    "sentry4": ("sentry4", [1701, 1265], 22, 0),
}
# The other system calls VA power, and leaves power factors in percent or without their sign.
REASONS = ("they call VA power", "power_factor of ")


@pytest.mark.parametrize("name", list_walks() or ["none"])
def test_every_recorded_device_is_read_right_or_refused(name):
    if name == "none":
        pytest.skip(f"no recorded walks: {WALKS} is not here")
    verdict = judge_device(name)
    vendor, watts, equal, different = READ[name]
    assert verdict.table == vendor
    assert [None if math.isnan(power) else power for power in verdict.powers] == watts
    assert bool(verdict.refused) == (not watts)
    assert all(any(reason in line for reason in REASONS) for line in verdict.different), verdict.different
    assert (verdict.equal, len(verdict.different)) == (equal, different)


def recorded(name):
    if name not in list_walks():
        pytest.skip(f"no recorded walk {name}: {WALKS} is not here")
    return load_walk(name)


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


def notes(objects, **config):
    """Return what the meter says it left out or read otherwise."""
    return " ".join(next(iter(read_objects(objects, **config).values()))["notes"])


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
    banks = device(CPS, (f"{LOAD}.7", 216, 100, 116), (f"{LOAD}.5", 1, 2, 3))
    with raises_code("unavailable.no-whole"):  # one of them may be the whole
        powers(banks)
    assert powers(banks, units=[2, 3]) == [100, 116]
    with raises_code("unavailable.no-whole"):
        powers(device(CPS, (f"{LOAD}.7", 0, 216, 50), (f"{LOAD}.5", 0, 1, 2)))
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


def test_a_line_of_a_ups_with_a_current_and_no_power_refuses_the_whole():
    ups = device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000), (f"{OUTPUT}.3", 91, 94), (f"{OUTPUT}.2", 230, 230))
    with pytest.raises(Unavailable, match=r"output line 2 is not metered.*current_a is 9.4.*units = \[\"1\"\]"):
        read_objects(ups)
    with pytest.raises(Unavailable, match=r"output line 2 is not metered.*load is 0.4"):
        read_objects(device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000), (f"{OUTPUT}.5", 36, 40)))
    with pytest.raises(Unavailable, match="output line 2"):
        read_objects(device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000, -1), (f"{OUTPUT}.3", 91, 3)))
    assert powers(ups, units=["1"]) == [2000]
    assert powers(device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000), (f"{OUTPUT}.3", 91, None, -1))) == [2000]


def test_an_empty_line_of_a_ups_is_left_out_and_named():
    ups = device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000, -1), (f"{OUTPUT}.3", 91, 0), (f"{OUTPUT}.2", 230, 230))
    assert powers(ups) == [2000]
    assert "rows without a power are left out (2: its current_a is 0)" in notes(ups)


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
    assert cell.read_number([0, 5], frozenset()) == 0
    assert cell.read_number([0, MISSING], frozenset()) == 0
    assert cell.read_number([20, 50], frozenset()) == 20
    with pytest.raises(ReadFailed, match="0 beside a current_a of 5"):
        cell.read_number([0, 50], frozenset())


def test_small_negative_powers_of_a_ups_are_readings_and_widen_its_offset():
    ups = device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", -4, 469, -26), (f"{OUTPUT}.3", 3, 21, 2))
    rows = read_objects(ups)
    assert [row["power_w"] for row in rows.values()] == [-4, 469, -26]
    assert {row["offsets"]["power_w"] for row in rows.values()} == {26}
    with pytest.raises(Unavailable, match=r"line 3 is not metered.*power_w is -101.*line 1 alone is units = \[\"1\"\]"):
        read_objects(device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 4, 469, -101), (f"{OUTPUT}.3", 3, 21, 2)))


def test_the_source_of_the_whole_is_what_the_device_has_and_another_than_usual_is_named():
    sentry, at = "1.3.6.1.4.1.1718.3", "1.3.6.1.4.1.1718.3.2"
    infeeds = [(f"{at}.2.1.12.1", 147, 53, 78, -1), (f"{at}.2.1.7.1", 111, 40, 59, 212)]
    names = (f"{at}.2.1.3.1", b"A", b"B", b"C", b"Tower_Neutral")
    total = {f"{sentry}.1.6.0": 279}
    assert powers(device(sentry, *infeeds, names)) == [147, 53, 78]
    assert "4 (Tower_Neutral): it is the neutral" in notes(device(sentry, *infeeds, names))
    assert powers(device(sentry, *infeeds, names) | total) == [279]
    towers = device(sentry, (f"{at}.1.1.11", 280), *infeeds, names) | total
    assert (powers(towers), "read by" in notes(towers)) == ([280], False)
    unknown = device(sentry, (f"{at}.1.1.11", -1), *infeeds, names) | total
    assert "it is read by Server Technology Sentry3 (system)" in notes(unknown)
    with pytest.raises(Unavailable, match="infeed 4 is not metered"):
        read_objects(device(sentry, *infeeds))


def test_rows_of_which_nobody_says_that_they_add_up_are_not_added():
    at = "1.3.6.1.4.1.28507.99.1.5.1.2.1"
    one = device("1.3.6.1.4.1.28507.99", (f"{at}.4", 18), (f"{at}.2", 1))
    two = device("1.3.6.1.4.1.28507.99", (f"{at}.4", 18, 7), (f"{at}.2", 1, 1))
    assert powers(one) == [18]
    with pytest.raises(Unavailable, match=r"1 18 W, 2 7 W.*units = \[\"1\"\]"):
        read_objects(two)
    assert powers(two, units=[2]) == [7]
    assert powers(device("1.3.6.1.4.1.28507.99", (f"{at}.4", 18, 7), (f"{at}.2", 1, 0))) == [18], "not valid"
    with pytest.raises(Unavailable, match="not valid"):
        read_objects(two | {f"{at}.2.2": 0}, units=[2])


def test_zeros_that_are_no_readings_are_named():
    px1 = "1.3.6.1.4.1.13742.4.1.20.2.1"
    stuck = device("1.3.6.1.4.1.13742.4", (f"{px1}.9", 580), (f"{px1}.12", 0))
    (row,) = read_objects(stuck).values()
    assert "energy_j" not in row
    assert "no energy counter is read (it shows 0 beside 580 W" in notes(stuck)
    (row,) = read_objects(
        device("1.3.6.1.4.1.13742.4", (f"{px1}.9", 0), (f"{px1}.12", 0), (f"{px1}.8", 230000))
    ).values()
    assert (row["power_w"], row["energy_j"]) == (0, 0), "nothing is fed"
    easy = "1.3.6.1.4.1.318.1.1.30.4.2.1"
    dead = device(APC, (f"{easy}.6", 0), (f"{easy}.10", 332), (f"{easy}.4", 0))
    assert "no power is read, energy alone (none is known: its power_w is 0 at 0 V" in notes(dead)


def test_a_power_that_does_not_fit_voltage_and_current_is_marked():
    fits = device("1.3.6.1.4.1.2254", (f"{OUTPUT}.4", 2000), (f"{OUTPUT}.3", 91), (f"{OUTPUT}.2", 230))
    assert notes(fits) == ""
    assert "its power may be wrong (it shows 2000 W beside 230 V and 0.9 A" in notes(fits | {f"{OUTPUT}.3.1": 9})
    assert "its power may be wrong (it shows 200 W beside 230 V and 9.1 A" in notes(fits | {f"{OUTPUT}.4.1": 200})


SENTRY3, SENTRY4 = "1.3.6.1.4.1.1718.3", "1.3.6.1.4.1.1718.4"
TOWER, INFEED = f"{SENTRY3}.2.1.1.11", f"{SENTRY3}.2.2.1"
CORD, CORD_PHASE = f"{SENTRY4}.1.3.3.1.3.1", f"{SENTRY4}.1.5.3.1"
RPDU2_PHASE = "1.3.6.1.4.1.318.1.1.26.6.3.1"


@pytest.mark.parametrize("shown", [-1, 0])
@pytest.mark.parametrize(
    ("object_id", "column", "part", "whole"),
    [
        (SENTRY3, TOWER, {f"{INFEED}.12.1.1": 1200, f"{INFEED}.12.2.1": 900}, [1200]),
        (SENTRY4, CORD, {f"{CORD_PHASE}.8.1.2.1": 900}, [1000]),
        (SENTRY4, CORD, {f"{CORD_PHASE}.6.1.2.1": 400}, [1000]),
    ],
)
def test_a_row_without_power_whose_phase_draws_refuses_the_whole(object_id, column, part, whole, shown):
    objects = device(object_id, (column, whole[0], shown))
    with raises_code("unavailable.not-metered") as raised:
        read_objects(objects | part)
    assert "of 900" in str(raised.value) or "of 4" in str(raised.value)
    idle = {oid: value if whole[0] == 1200 == value else 0 for oid, value in part.items()}
    assert sum(powers(objects | idle)) == whole[0]


def test_a_unit_of_a_chain_without_power_is_refused_where_any_phase_may_be_its_own():
    chain = device(APC, (f"{RPDU2}.5", 340, -1), (f"{RPDU2_PHASE}.5", 0, 55))
    with raises_code("unavailable.not-metered"):
        read_objects(chain)
    assert powers(chain, units=["1"]) == [3400]
    idle = device(APC, (f"{RPDU2}.5", 340, 0), (f"{RPDU2_PHASE}.5", 150, 0))
    assert powers(idle) == [3400, 0], "0 W is a reading: the phase may be the first unit's"


RARITAN = "1.3.6.1.4.1.13742.6"


def raritan(*powers, marked=(), state=-1, available=2):
    """Return a Raritan with an inlet for each power; those marked are not available."""
    objects = device(RARITAN)
    for inlet, watts in enumerate(powers, 1):
        row = f"1.{inlet}.5"
        objects |= {
            f"{RARITAN}.5.2.3.1.4.{row}": watts,
            f"{RARITAN}.3.3.4.1.7.{row}": 0,
            f"{RARITAN}.3.3.4.1.6.{row}": 3,
        }
        objects[f"{RARITAN}.5.2.3.1.2.{row}"] = available if inlet in marked else 1
        objects[f"{RARITAN}.5.2.3.1.3.{row}"] = state if inlet in marked else 4
    return objects


@pytest.mark.parametrize("mark", [{"state": 4}, {"available": 1}, {}])
def test_a_sensor_that_is_marked_as_not_available_is_no_reading(mark):
    assert powers(raritan(0, 900)) == [0, 900]
    with raises_code("unavailable.not-metered"):
        read_objects(raritan(0, 900, marked=[1], **mark))
    plan = plan_session(Replay(raritan(500, 900)))
    rows = read_plan(Replay(raritan(0, 900, marked=[1], **mark)), *plan)
    lost, known = (row["power_w"] for row in rows.values())
    assert "it marks it as not valid" in lost
    assert known == 900


def test_a_whole_that_is_less_than_another_sum_of_the_device_is_refused():
    ups, phases = "1.3.6.1.4.1.318.1.1.1", "1.3.6.1.4.1.318.1.1.1.9.3.3.1.13.1.1"
    apc = device("1.3.6.1.4.1.318.1.3.2.12", (phases, 350, 340, 330))
    assert powers(apc | {f"{ups}.4.2.8.0": 1020}) == [1020]
    with raises_code("unavailable.no-whole"):
        read_objects(apc | {f"{ups}.4.2.8.0": 350})
    more = notes(apc | {f"{ups}.4.2.8.0": 3060})
    assert "the power may be wrong (its outputs add up to 3060 W, output phases to 1020 W)" in more
    xups = "1.3.6.1.4.1.534.1"
    with raises_code("unavailable.no-whole"):
        read_objects(device(xups, (f"{xups}.4.4.1.4", 500, 0, 0)) | {f"{xups}.4.9.3.0": 1500})
    assert powers(device(xups, (f"{xups}.4.4.1.4", 500, 480, 510)) | {f"{xups}.4.9.3.0": 1500}) == [500, 480, 510]


@pytest.mark.parametrize("full", [32767, 65535])
def test_full_counts_of_16_bits_are_no_powers(full):
    assert math.isnan(Cell("current_a", 0).read_number([full], frozenset()))
    assert Cell("energy_j", 0, vital=True).read_number([full], frozenset()) == full
    with raises_code("unavailable.not-metered"):
        read_objects(device(APC, (f"{RPDU2}.5", full)))


def test_powers_that_no_outlet_has_are_not_read_and_those_beyond_its_current_are_marked():
    at = "1.3.6.1.4.1.318.1.1.26.9.4.3.1"
    outlet = device(APC, (f"{RPDU2}.5", 340), (f"{at}.7", 100), (f"{at}.6", 5))
    assert (powers(outlet, outlets=[1]), notes(outlet, outlets=[1], energy=False)) == ([100], "")
    assert "it shows 6000 W beside 0.5 A" in notes(outlet | {f"{at}.7.1": 6000}, outlets=[1])
    with raises_code("unavailable.not-metered"):
        read_objects(outlet | {f"{at}.7.1": 200_000}, outlets=[1])


def test_a_line_that_shows_the_power_of_three_is_marked():
    ups = device("1.3.6.1.4.1.2254", *((f"{OUTPUT}.{column}", *[value] * 3) for column, value in ((4, 1500), (2, 230))))
    assert "1500 W beside 230 V and 2.2 A" in notes(ups | device("1.3.6.1.4.1.2254", (f"{OUTPUT}.3", 22, 22, 22)))
    assert notes(ups | device("1.3.6.1.4.1.2254", (f"{OUTPUT}.3", 66, 66, 66))) == ""


def test_values_under_labels_are_found_by_them_with_unit_and_factor():
    at = "1.3.6.1.4.1.2606.7.4.2.2.1"

    def variable(number, label, unit, factor, value):
        return {f"{at}.{c}.2.{number}": v for c, v in ((3, label), (5, unit), (7, factor), (11, value))}

    objects = device("1.3.6.1.4.1.2606.7") | variable(7, b"Unit.Power.Active.Value", b"W", 1, 2742)
    objects |= variable(8, b"Unit.Energy.Active.Value", b"kWh", -10, 26418)
    for number, watts in ((1, 40), (12, 50)):
        objects |= variable(100 + number, b"Sockets.Socket %02d.Power.Active.Value" % number, b"W", 1, watts)
    (row,) = read_objects(objects).values()
    assert (row["power_w"], row["energy_j"]) == (2742, 2641.8 * 3.6e6)
    assert powers(objects, outlets=[12, 1]) == [50, 40]
    with pytest.raises(Unavailable, match="is not metered"):
        read_objects(objects | {f"{at}.5.2.7": b"VA", f"{at}.5.2.8": b"kVAh"})


def test_a_device_without_any_power_is_recognised_by_its_other_rows():
    objects = device("1.3.6.1.4.1.318.1.3.4.4", ("1.3.6.1.4.1.318.1.1.12.2.3.1.1.2", 28))
    session = Replay(objects)
    assert find_table(session, read_identity(session), None, "unit").vendor == "apc_rpdu"
    with pytest.raises(Unavailable, match=r"APC rPDU .old. shows no metered units"):
        read_objects(objects)


def test_the_table_is_the_one_that_has_what_is_wanted():
    outlets = "1.3.6.1.4.1.3808.1.1.6.6.2.4.1"
    both = device("1.3.6.1.4.1.3808.1.1.6", (f"{LOAD}.7", 216), (f"{outlets}.7", 82), (f"{outlets}.11", 31))
    assert (powers(both), powers(both, outlets=[1])) == ([216], [82])
    with pytest.raises(ConfigError, match="there is no outlet 9"):
        powers(both, outlets=[9])


def test_the_doctor_lists_what_might_be_power_in_an_unknown_device():
    at = "1.3.6.1.4.1.99999.2.1"
    unknown = device(
        "1.3.6.1.4.1.99999.7",
        (f"{at}.1", b"L1", b"L2"),
        (f"{at}.2", 2301, 2298),
        (f"{at}.3", 512, 0),
        (f"{at}.4", 1130, 0),
        (f"{at}.5", 3, 3),
        ("1.3.6.1.4.1.99999.3", b"1.2 kW"),
    )
    session = Replay(unknown)
    said = list_suspects(session, read_identity(session))
    assert any(f"{at}.4.1 is 1130, beside what may be a voltage ({at}.2.1)" in line for line in said)
    assert any("99999.3.1 shows '1.2 kW'" in line for line in said)
    assert not any(f"{at}.4.2" in line or f"{at}.5" in line.split(" is ")[0] for line in said)
    with pytest.raises(Unavailable, match="this is not a PDU or UPS"):
        read_objects(unknown)
    silent = Replay(device("1.3.6.1.4.1.99999.7", (f"{at}.5", 3)))
    assert "none looks like power" in list_suspects(silent, read_identity(silent))[0]


def test_the_doctor_lists_numbers_behind_a_text_that_names_power():
    root = "1.3.6.1.4.1.99999"
    scalars = {
        f"{root}.1.1.0": b"Total Power W",
        f"{root}.1.2.0": 350,
        f"{root}.1.3.0": b"Power factor",
        f"{root}.1.4.0": 97,
    }
    table = {f"{root}.2.1.{column}.7": value for column, value in ((2, b"L1 watts"), (3, b"ok"), (4, b"120.5"))}
    table |= {f"{root}.2.1.2.8": b"Fan", f"{root}.2.1.3.8": b"ok", f"{root}.2.1.4.8": b"900"}
    session = Replay(device(f"{root}.7") | scalars | table)
    said = "\n".join(list_suspects(session, read_identity(session)))
    assert f"{root}.1.2.0 is 350, behind 'Total Power W' ({root}.1.1.0)" in said
    assert f"{root}.2.1.4.7 is 120.5, behind 'L1 watts'" in said
    assert "97" not in said
    assert "900," not in said
