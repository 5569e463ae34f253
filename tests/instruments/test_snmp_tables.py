"""The tables of makers, the configuration, and the numbers made of answers; no device needed."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import pytest
from tests.codes import list_error_codes, list_strings, raises_code
from tests.instruments.snmp_replay import Replay, plan_session, read_objects
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.instruments import snmp
from joulelab.instruments.snmp import tables
from joulelab.instruments.snmp.client import MISSING, Community, Name, User
from joulelab.instruments.snmp.device import DeviceRow, choose_rows, decode_text
from joulelab.instruments.snmp.plan import Cell
from joulelab.instruments.snmp.settings import read_settings
from joulelab.instruments.snmp.tables import TRIED, Column, Level, Table, load_tables, parse_table

V2C = {"address": "10.0.0.5", "community": "secret", "label": "pdu1"}
V3 = {"address": "h:1161", "user": "m", "password": "x" * 8}
HEAD = 'title = "x"\nsysobjectid = ["1.3.6.1.4.1.99998"]\naccuracy = { gain = 0.01, reference = "r" }\n'


def test_every_table_has_what_a_reading_needs():
    found = load_tables()
    assert len(found) >= 25
    for vendor, table in found.items():
        unit = table.levels["unit"]
        assert any(column.name == "power_w" for column in unit.columns), vendor
        assert 0 < table.accuracy["gain"] <= 0.1
        assert table.tried in TRIED
        assert table.accuracy["reference"]
    steps = {v: next(c.scale for c in t.levels["unit"].columns if c.name == "power_w") for v, t in found.items()}
    assert steps["apc_rpdu2"] == 10, "hundredths of a kW"


def test_the_readme_explains_every_key_of_a_table():
    text = (Path(snmp.__file__).parent / "README.md").read_text("utf-8")
    made = {"vendor", "name", "columns", "levels", "others", "passed", "template", "oid", "scale"}
    keys = {one.name for kind in (Table, Level, Column) for one in fields(kind)} - made | {"values"}
    assert [key for key in sorted(keys) if f"`{key}" not in text and f"{key}`" not in text] == []


def test_a_new_maker_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "pdus").mkdir()
    body = 'update_s = 5\n[unit]\npower_w = { oid = "1.3.6.1.4.1.99998.2", scale = 0.1 }\n'
    (tmp_path / "pdus" / "acme.toml").write_text(HEAD + body)
    monkeypatch.setattr(tables.resources, "files", lambda _: tmp_path)
    load_tables.cache_clear()
    try:
        device = Replay({"1.3.6.1.2.1.1.2.0": Name("1.3.6.1.4.1.99998.7"), "1.3.6.1.4.1.99998.2.0": 3120})
        ((scope, row),) = read_objects(device._recording).items()
        assert (scope, row["table"], row["power_w"]) == ("rack", "acme", 312)
        for config, seconds in (({}, 5), ({"update_s": 2}, 2)):
            _, plan = plan_session(device, **config)
            assert plan.pieces[0].stream.channels[0].update_s == seconds, "the user's, or the maker's"
    finally:
        load_tables.cache_clear()


def test_codes_of_refusals_and_messages_stay():
    codes = list_error_codes("instruments/snmp")
    assert {f"unavailable.{code}" for code in ("no-rows", "no-whole", "not-metered")} <= codes
    assert {"unavailable.other-maker", "unavailable.unknown-maker"} <= list_strings("instruments/snmp")
    failed = "endless malformed no-answer no-engine no-number order port-closed refused unknown unmetered unreachable"
    assert {f"read-failed.{code}" for code in (*failed.split(), "unresolved")} <= codes
    assert {f"denied.{code}" for code in ("access", "community", "privacy")} <= codes
    messages = {"chain", "left-out", "misfit", "no-counter", "no-power", "other-source"}
    assert messages <= list_strings("instruments/snmp")


@every_row(
    "body",
    [
        "[unit]\npwer_w = { oid = '1.3.6', scale = 1 }",
        "[unit]\npower_w = { oid = 'enterprises.3', scale = 1 }",
        "[unit]\npower_w = { oid = '1.3.6' }",
        "[unit]\npower_w = { oid = '1.3.6', scale = 1, sale = 2 }",
        "[unit]\npower_w = { scale = 1 }",
        "[unit]\nnames = ['sysName']\npower_w = { oid = '1.3.6', scale = 1 }",
        "[rack]\npower_w = { oid = '1.3.6', scale = 1 }",
        "[unit]\nnumber = 'middle'\npower_w = { oid = '1.3.6', scale = 1 }",
        "tried = 'hardware'\n[unit]\npower_w = { oid = '1.3.6', scale = 1 }",
        "colour = 'red'\n[unit]\npower_w = { oid = '1.3.6', scale = 1 }",
    ],
)
def test_a_wrong_table_is_refused(body):
    with raises_code("config.table"):
        parse_table("x", HEAD + body)


@every_row(
    ("change", "words"),
    [
        ({"comunity": "x"}, "did you mean 'community'"),
        ({"address": ""}, "no address"),
        ({"community": ""}, "community is not a text"),
        ({"community": None}, "no login"),
        ({"user": "meter"}, "both given"),
        ({"version": 3}, '"1", "2c"'),
        ({"community": None, "user": "meter", "version": "1"}, "v3 is chosen by user"),
        ({"community": None, "user": "meter", "auth": "SHA"}, "password is missing"),
        ({"community": None, "user": "meter", "auth": "SHA3", "password": "x" * 9}, "valid: MD5, SHA"),
        ({"community": None, "user": "meter", "password": "short"}, "at least 8"),
        (
            {"community": None, "user": "m", "password": "x" * 9, "privacy": "DES", "privacy_password": "y" * 9},
            "AES192",
        ),
        ({"vendor": "raritn"}, "did you mean 'raritan'"),
        ({"outlets": []}, "outlets is empty"),
        ({"outlets": [True]}, "give a list"),
        ({"outlets": [1], "units": [1]}, "both given"),
        ({"phases": "yes"}, "true or false"),
        ({"energy": "no"}, "true or false"),
        ({"max_oids": 0}, "1 to 200"),
        ({"period_s": 0}, "above 0"),
        ({"wraps_at_kwh": -1}, "number"),
    ],
)
def test_wrong_values_are_refused_with_what_fits(change, words):
    config = {k: v for k, v in (V2C | change).items() if v is not None}
    with pytest.raises(ConfigError, match=words) as raised:
        read_settings(config)
    assert "secret" not in str(raised.value)


def test_logins_are_read_as_people_write_them():
    assert read_settings(V2C).login == Community("secret")
    for version in (1, "1"):
        assert read_settings(V2C | {"version": version}).login == Community("secret", 0)
    read = read_settings(V3 | {"auth": "sha-256", "privacy": "aes128", "privacy_password": "y" * 8})
    assert read.login == User("m", "SHA256", "x" * 8, "AES", "y" * 8)
    assert (read.host, read.port) == ("h", 1161)
    assert read_settings({"address": "h", "user": "m"}).login == User("m")
    assert set(snmp.SECRETS) <= set(snmp.CONFIG)
    assert "secret" not in repr(read_settings(V2C))


def test_a_number_that_is_meant_twice_asks_for_the_index():
    offered = [DeviceRow("1.1.3", ("a",)), DeviceRow("1.2.3", ("b",)), DeviceRow("1.1.4", ("3",))]
    with raises_code("config.several-rows") as raised:
        choose_rows([3], offered, "outlet", "pdu1")
    assert "1.1.3, 1.2.3" in str(raised.value)
    assert choose_rows(["1.2.3"], offered, "outlet", "pdu1") == [offered[1]]
    assert choose_rows(["3"], offered, "outlet", "pdu1") == [offered[2]], "a name goes before a number"
    assert choose_rows(["B"], offered, "outlet", "pdu1") == [offered[1]]


def test_sentinels_and_texts_are_never_numbers():
    vital, state = Cell("power_w", 0, 10.0, vital=True), Cell("current_a", 0, 0.1)
    none = frozenset({4294967295})
    assert vital.read_number([123], none) == 1230
    assert math.isnan(Cell("power_w", None).read_number([], none))
    for value in (-1, 4294967295, MISSING):
        with raises_code("read-failed.unknown"):
            vital.read_number([value], none)
        assert math.isnan(state.read_number([value], none))
    for value in (b"123", None, Name("1.3")):
        for cell in (vital, state):
            with raises_code("read-failed.no-number"):
                cell.read_number([value], none)
    assert Cell("temperature_c", 0, least=-math.inf).read_number([-3], none) == -3


def test_texts_of_devices_are_printable():
    assert decode_text(b"node\x00 07\xff\n") == "node  07\ufffd"
    assert decode_text(5) == ""
