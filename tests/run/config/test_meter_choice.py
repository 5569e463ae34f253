"""The meters of a run: usual, configured, named, left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.run.config.conftest import INSTRUMENT, Places

from joulelab import instruments as meters
from joulelab.core.errors import ConfigError
from joulelab.run.config.meter_choice import choose_meters, word_lost_meters
from joulelab.run.run_options import RunOptions

ENTRY = '[meters.pdu1]\nmeter = "INSTRUMENT"\naddress = "x"\n'


def test_configured_meters_come_beside_the_usual_ones(places: Places) -> None:
    places.write("project", ENTRY)
    chosen = choose_meters(places.load(), {})
    assert chosen.meters is None
    assert chosen.also == [
        {"meter": INSTRUMENT, "name": "pdu1", "config": {"address": "x"}, "paced": False, "hide": []}
    ]


def test_a_configured_usual_meter_takes_its_place(places: Places) -> None:
    places.write("project", "[meters.rapl]\nperiod_s = 0.5\n[meters.nvml]\nenabled = false\n")
    chosen = choose_meters(places.load(), {})
    assert chosen.meters is not None
    names = [m["meter"] for m in chosen.meters]
    assert "host" in names
    assert not {"rapl", "nvml"} & set(names)
    assert [(m["meter"], m["paced"]) for m in chosen.also] == [("rapl", True)]


def test_entries_and_modules_are_chosen_by_name(places: Places) -> None:
    places.write("project", ENTRY + ENTRY.replace("pdu1", "pdu2"))
    config = places.load()
    chosen = choose_meters(config, {}, ("pdu2",))
    assert [e.name for e in chosen.entries] == ["pdu2"]
    assert chosen.meters == [{"meter": "host"}]
    chosen = choose_meters(config, {}, ("pdu1", "rapl"), ("host",))
    assert ([e.name for e in chosen.entries], chosen.meters) == (["pdu1"], [{"meter": "rapl"}])
    assert [e.name for e in choose_meters(config, {}, (INSTRUMENT,)).entries] == ["pdu1", "pdu2"]
    without = choose_meters(config, {}, (), ("pdu1",))
    assert [e.name for e in without.entries] == ["pdu2"]
    assert [m["meter"] for m in without.meters or ()] == meters.list_defaults()


def test_wrong_names_are_refused_with_the_nearest(places: Places) -> None:
    places.write(
        "project", ENTRY + ENTRY.replace("pdu1", "far") + 'node = "elsewhere"\n[meters.off]\nenabled = false\n'
    )
    config = places.load()
    with pytest.raises(ConfigError, match="did you mean 'pdu1'"):
        choose_meters(config, {}, ("pdu",))
    with pytest.raises(ConfigError, match="not for this host"):
        choose_meters(config, {}, ("far",))
    with pytest.raises(ConfigError, match="switched off"):
        choose_meters(config, {}, (), ("off",))


def test_an_archive_is_not_read_while_a_run_goes_on(places: Places) -> None:
    archive = INSTRUMENT.replace("instrument", "archive")
    places.write("project", f'[meters.log]\nmeter = "{archive}"\npath = "x"\n')
    config = places.load()
    config.check()
    assert [(e.name, e.live) for e in config.entries] == [("log", False)]
    chosen = choose_meters(config, {})
    assert (chosen.entries, chosen.meters) == ([], None)
    for name in ("log", "file"):
        with pytest.raises(ConfigError, match="joulelab import"):
            choose_meters(config, {}, (name,))


def test_an_entry_without_its_secret_costs_that_meter_only(places: Places) -> None:
    places.write("project", ENTRY + ENTRY.replace("pdu1", "pdu2") + 'password = { env = "PW" }\n')
    chosen = choose_meters(places.load(), {})
    assert [e.name for e in chosen.entries] == ["pdu1"]
    (lost,) = chosen.lost
    assert str(lost).startswith(f"meter pdu2 is not read: {places.project}:7, password: the variable PW is not set")
    assert lost.to_json()["next"] == "export PW=..., or use a file or the keyring"


def test_a_wrong_entry_costs_that_meter_only(places: Places) -> None:
    """A usual meter is not read as if it had no entry, and one that is for another host is nobody's loss here."""
    places.write(
        "project",
        ENTRY + "[meters.rapl]\nperiod_s = 'fast'\n[runn]\n[meters.far]\nnode = 'elsewhere'\ncord = 'yes'\n",
    )
    config = places.load()
    chosen = choose_meters(config, {})
    assert [e.name for e in chosen.entries] == ["pdu1"]
    assert "rapl" not in [m["meter"] for m in chosen.meters or ()]
    assert [lost.meter for lost in chosen.lost] == ["configuration", "configuration", "rapl"]
    assert [lost.meter for lost in choose_meters(config, {}, ("rapl",)).lost[2:]] == ["rapl"]
    assert choose_meters(config, {}, ("rapl",)).meters == [{"meter": "host"}]
    assert choose_meters(config, {}, ("pdu1",), ("rapl",)).lost[2:] == []


def test_a_wrong_entry_is_found_by_its_kind_of_meter(places: Places) -> None:
    """Who asks for all PDUs hears of the one that is lost; another entry's kind is not read in its place."""
    places.write("project", '[meters.pdu1]\nmeter = "snmp"\nadress = "x"\n[meters.cpus]\nmeter = "rapl"\nx = 1\n')
    config = places.load()
    chosen = choose_meters(config, {}, ("snmp",))
    assert ([lost.meter for lost in chosen.lost], chosen.meters) == (["pdu1"], [{"meter": "host"}])
    assert [lost.meter for lost in choose_meters(config, {}, (), ("snmp",)).lost] == ["cpus"]
    assert "rapl" not in [m["meter"] for m in choose_meters(config, {}).meters or ()]


def test_a_file_that_is_no_toml_costs_its_meters_only(places: Places) -> None:
    places.write("user", ENTRY + "cord = true\n")
    for text in ("x = \n", "x = " + "[" * 5000, "x = " + "9" * 5000):
        places.write("project", text)
        config = places.load()
        chosen = choose_meters(config, {}, ("pdu1", "pdu2"))
        assert [e.name for e in chosen.entries] == ["pdu1"]
        assert [lost.meter for lost in chosen.lost] == ["configuration", "pdu2"]
        assert "not a TOML file" in str(chosen.lost[0])
        assert f"there is no meter 'pdu2' ({places.project} cannot be read and may define it)" in str(chosen.lost[1])


def test_one_cause_gives_one_warning(places: Places) -> None:
    places.write("project", "x = \n")
    config = places.load()

    def warn(*wanted: str, without: tuple[str, ...] = ()) -> list[str]:
        return word_lost_meters(choose_meters(config, {}, wanted, without).lost)

    (problem,) = config.problems
    assert str(problem).startswith(f"{places.project}:1: not a TOML file")
    assert warn("pdu1") == [f"meter pdu1 is not read: {problem}"]
    assert warn("pdu1", "rapl", "pdu2") == [f"meters pdu1, pdu2 are not read: {problem}"]
    unused = [f"a part of the configuration is not used: {problem}"]
    assert warn() == warn("rapl") == warn(without=("pdu1",)) == unused
    places.write("user", "y = \n")
    config = places.load()
    assert len(config.problems) == len(warn("pdu1")) == 2


def test_the_cords_of_a_lost_entry_still_count(places: Places) -> None:
    """Otherwise the sum of the others would be taken for the whole node."""
    places.write("user", ENTRY + "cord = true\n")
    places.write("project", ENTRY.replace("pdu1", "pdu2") + "cord = true\nadress = 'x'\n")
    assert choose_meters(places.load(), {}).also[0]["config"]["parts"] == 2
    places.write("project", "x = \n")
    assert choose_meters(places.load(), {}).also[0]["config"]["parts"] == 2


def test_meters_that_are_asked_for_by_name_are_stored_with_the_run(places: Places) -> None:
    asked = choose_meters(places.load(), {}, ("amdsmi", "rapl"))
    assert RunOptions(runs=Path()).with_meters(asked).to_json()["named"] == ["amdsmi", "rapl"]
    usual = choose_meters(places.load(), {}, (), ("rapl",))
    assert RunOptions(runs=Path()).with_meters(usual).to_json()["named"] == []
