"""Captures: the format, what is removed, and every capture in tests/captures, read in process."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import pytest

from joulelab.core.errors import ConfigError, ReadFailed, Refused, Unavailable
from joulelab.instruments.capture import (
    FILE_FAMILIES,
    Capture,
    StatedValue,
    Tape,
    compare_values,
    format_capture,
    parse_capture,
    read_values,
)
from joulelab.instruments.capture.families import (
    FAMILIES,
    TREES,
    _tap_analyzer,
    answer_questions,
    capture_device,
    check_family,
    copy_tree,
    open_capture,
    parse_value,
    read_capture,
    remove_from_walk,
    write_tree,
    write_value,
)
from joulelab.instruments.capture.removal import Remover, find_kind, is_electrical, remove_from_json, remove_login

CAPTURES = sorted((Path(__file__).parents[1] / "captures").glob("*.txt"))
# They watch a device for a moment when they open it.
SLEEPING = ("rapl",)


def list_captures():
    for path in CAPTURES:
        marks = [pytest.mark.system] if any(family in path.stem for family in SLEEPING) else []
        yield pytest.param(path, marks=marks, id=path.stem)


@pytest.mark.parametrize("path", list(list_captures()))
def test_every_capture_is_read_as_its_sender_says(path):
    capture = parse_capture(path.read_text("utf-8"), path.name)
    assert capture.values
    assert compare_values(capture.values, read_capture(capture)[0]) == []


def test_there_is_a_capture_of_each_family():
    assert {parse_capture(path.read_text("utf-8")).family for path in CAPTURES} == set(FAMILIES)


# ---- the format


def test_a_capture_reads_back_as_it_was():
    odd = {"a\tb": "tab\tand\nline", "c": "back\\slash \\n", "PSU #1": "12 # 3", "d": ""}
    values = [
        StatedValue("outlet:capture.node 07 #2", "power_w", "205.5", "the display says 206"),
        StatedValue("node.ac", "power_w", "none"),
        StatedValue("refused", "", "unavailable.no-power", "no power"),
    ]
    settings = {"outlets": [1, "rack A"], "phases": False, "gain": 0.01, "ct": {"a": "b"}}
    capture = Capture("snmp", {"device": "x: y", "date": "2026-11-17"}, settings, values, odd)
    assert parse_capture(format_capture(capture)) == capture


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "joulelab-capture: 2\nfamily: snmp\n[exchanges]\na\tb",
        "joulelab-capture: 1\nfamily: snmp",
        "joulelab-capture: 1\nfamily: snmp\n[exchanges]\nno tab",
        "joulelab-capture: 1\nfamily: snmp\n[values]\nnode.ac power_w much\n[exchanges]\na\tb",
        "joulelab-capture: 1\nfamily: snmp\n[values]\npower_w 12\n[exchanges]\na\tb",
        "joulelab-capture: 1\nfamily: snmp\nsetting: outlets = [\n[exchanges]\na\tb",
        "joulelab-capture: 1\nfamily: snmp\nnothing\n[exchanges]\na\tb",
        "joulelab-capture: 1\nfamily: snmp\nsetting: outlets = " + 100_000 * "[",
    ],
)
def test_what_is_no_capture_is_refused(text):
    with pytest.raises(ConfigError) as refused:
        parse_capture(text)
    assert refused.value.code == "config.not-a-capture"


@pytest.mark.parametrize(
    ("stated", "read", "fits"),
    [
        ("206", "205.5", True), ("206", "206.4", True), ("206", "206.6", False), ("206.0", "205.9", False),
        ("1.2e3", "1249.0", True), ("1.2e3", "1251.0", False), ("none", "none", True), ("none", "0.0", False),
        ("12", "none", False), ("0.1", "0.1", True),
    ],
)  # fmt: skip
def test_a_number_is_compared_in_its_digits(stated, read, fits):
    assert StatedValue("node.ac", "power_w", stated).fits(read) is fits


def test_what_is_read_otherwise_is_listed():
    read = [StatedValue("node.ac", "power_w", "412.0"), StatedValue("psu:1", "power_w", "200.0")]
    assert compare_values([StatedValue("node.ac", "power_w", "412")], read) == []
    assert (
        len(compare_values([StatedValue("node.ac", "power_w", "411"), StatedValue("psu:2", "power_w", "1")], read)) == 2
    )
    refused = [StatedValue("refused", "", "unavailable.x", "why")]
    assert compare_values(refused, refused) == []
    assert "unavailable.x" in compare_values(read[:1], refused)[0]
    assert compare_values(refused, read)


# ---- what is removed

MARKED = {
    "password": "Geheim-77x",
    "community": "labread9",
    "token": "tok-1234567890abcdef",
    "user": "jdoe",
    "host": "pdu-b12-r07",
    "ip": "10.23.45.67",
    "ip6": "fe80::21b:21ff:fe3c:9d02",
    "mac": "00:1B:21:3C:9D:02",
    "bare mac": "001b213c9d02",
    "serial": "ZA1234567890",
    "uuid": "4c4c4544-0042-3510-8052-b4c04f4d3232",
    "tag": "INV-004711",
    "contact": "Jane Doe, phone 4711",
    "mail": "jane.doe@uni-town.example",
    "place": "Room 2.14, Building 7",
}


def find_leaks(text):
    low = text.lower()
    return [name for name, value in MARKED.items() if value.lower() in low or value.encode().hex() in low]


def test_nothing_marked_stays_in_json():
    m = MARKED
    tree = {
        "/redfish/v1/Chassis/1": {
            "@odata.id": "/redfish/v1/Chassis/1",
            "SerialNumber": m["serial"],
            "UUID": m["uuid"],
            "AssetTag": m["tag"],
            "HostName": m["host"],
            "Location": {"Info": m["place"], "Latitude": 52.5, "PartLocation": {"ServiceLabel": "PSU 1"}},
            "Name": f"Chassis of {m['host']}",
            "Description": f"SN: {m['serial']}, at {m['ip']} ({m['mac']}), {m['mail']}",
            "Oem": {"Maker": {"Contacts": [{"Name": m["contact"]}], "Token": m["token"], "Mac": m["bare mac"]}},
            "Links": [{"@odata.id": f"/redfish/v1/Managers/{m['serial']}"}],
            "IPv6Addresses": [{"Address": m["ip6"]}],
            "Owner": m["user"],
            "PowerCapacityWatts": 800,
            "PowerWatts": {"Reading": 412.5},
            "FirmwareVersion": "6.10.30.00",
        },
        f"/redfish/v1/Managers/{m['serial']}": {"Comment": f"{m['user']} {m['password']} {m['community']} {m['ip6']}"},
    }
    remover = Remover()
    config = {
        "user": m["user"],
        "password": m["password"],
        "community": m["community"],
        "address": f"https://{m['host']}",
    }
    remove_login(config, ("password", "community"), remover)
    cleaned = remove_from_json({path: json.dumps(body) for path, body in tree.items()}, remover)
    assert find_leaks(str(cleaned)) == []
    body = json.loads(cleaned["/redfish/v1/Chassis/1"])
    assert body["Links"][0]["@odata.id"] in cleaned, "links still fit"
    assert (body["PowerCapacityWatts"], body["PowerWatts"]["Reading"]) == (800, 412.5)
    assert body["Location"]["Latitude"] == 0
    assert body["Location"]["PartLocation"]["ServiceLabel"] == "PSU 1"
    assert body["FirmwareVersion"] == "6.10.30.00", "a version with leading zeros is no address"
    assert {"serial number", "UUID", "MAC address", "address", "host name", "user", "password"} <= set(remover.counts)


def test_nothing_marked_stays_in_a_walk():
    m = MARKED
    apc = "1.3.6.1.4.1.318.1.1.26"
    walk = {
        "1.3.6.1.2.1.1.1.0": f"text APC Web/SNMP (SN: {m['serial']} MN: AP8959) {m['ip']}",
        "1.3.6.1.2.1.1.2.0": "oid 1.3.6.1.4.1.318.1.3.4.6",
        "1.3.6.1.2.1.1.4.0": f"text {m['contact']}",
        "1.3.6.1.2.1.1.5.0": f"text {m['host']}",
        "1.3.6.1.2.1.1.6.0": f"text {m['place']}",
        f"{apc}.2.1.9.1": f"text {m['serial']}",
        f"{apc}.9.2.3.1.3.1": f"text {m['host']} A",
        f"{apc}.99.1": f"text {m['password']}",
        f"{apc}.99.2": f"text {m['uuid']}",
        f"{apc}.99.3": "hex 001b213c9d02",
        f"{apc}.99.4": f"text {m['mail']}",
        f"{apc}.99.5": "text Phase L1 active power (W)",
        f"{apc}.99.6": "text 230.5 V",
        f"{apc}.99.7": "number 412",
        f"{apc}.99.8": "null",
        f"{apc}.99.9": "text",
    }
    remover = Remover()
    cleaned = remove_from_walk(walk, remover)
    assert find_leaks(str(cleaned)) == []
    assert "AP8959" in cleaned["1.3.6.1.2.1.1.1.0"]
    kept = ["text Phase L1 active power (W)", "text 230.5 V", "number 412", "null", "text"]
    assert [cleaned[f"{apc}.99.{n}"] for n in range(5, 10)] == kept
    assert cleaned[f"{apc}.99.3"] == "hex 000000000000"
    assert cleaned.keys() == walk.keys()


def test_a_description_of_several_lines_is_cleaned_too():
    text = f"Dell PDU\r\nSN: {MARKED['serial']}\nat {MARKED['ip']}"
    cleaned = remove_from_walk({"1.3.6.1.2.1.1.1.0": f"hex {text.encode().hex()}"}, Remover())
    assert find_leaks(str(cleaned)) == []
    assert parse_value(cleaned["1.3.6.1.2.1.1.1.0"]).startswith(b"Dell PDU\r\nSN: serial-number-1")


def test_texts_of_electricity_stay_and_others_do_not():
    assert all(
        map(is_electrical, ("kWh", "Outlet 12", "L1-N voltage", "Total.Power.Active.Value", "12.5 A", "-3", "100 %"))
    )
    assert not any(map(is_electrical, ("node07", "Outlet 123456", "rack A feed", "power of Jane", "5A1234567")))


def test_keys_are_of_a_kind():
    assert find_kind("SerialNumber") == "serial number"
    assert find_kind("PermanentMACAddress") == "MAC address"
    assert find_kind("wifi", "host name") == "host name"
    kept = (
        "PowerCapacityWatts",
        "LineInputVoltageType",
        "LocationIndicatorActive",
        "@odata.etag",
        "Allocation",
        "Voltage",
    )
    assert [key for key in kept if find_kind(key)] == []


# ---- trees of files


def make_tree(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")
    return root


HWMON = {
    "hwmon0/name": "power_meter",
    "hwmon0/device/power1_average": 412_500_000,
    "hwmon0/device/power1_serial_number": MARKED["serial"],
    "hwmon0/device/power1_is_battery": 0,
    "hwmon0/device/uevent": MARKED["host"],
    "hwmon0/device/measures/LNXSYBUS:00": "",
    "hwmon0/power/secret": MARKED["password"],
    "hwmon1/name": "nvme",
    "hwmon1/temp1_input": 41000,
}


def test_a_tree_is_captured_and_read_as_the_meter_reads_it(tmp_path):
    root = make_tree(tmp_path / "hwmon", HWMON)
    (root / "hwmon0").rename(tmp_path / "device0")
    (root / "hwmon0").symlink_to(tmp_path / "device0")  # as in /sys/class
    capture, remover = capture_device("hwmon", {"root": str(root)}, ())
    text = format_capture(capture)
    assert find_leaks(text) == []
    assert "temp1_input" not in text
    assert str(tmp_path) not in text
    assert remover.counts == {"serial number": 1}
    assert [str(value) for value in capture.values] == ["node.dc power_average_w 412.5"]
    again = parse_capture(text)
    assert compare_values(again.values, read_capture(again)[0]) == []


def test_a_file_that_may_not_be_read_stays_one(tmp_path):
    capture = Capture(
        "rapl", exchanges={"intel-rapl:0/energy_uj": "!Permission denied", "intel-rapl:0/name": "package-0"}
    )
    write_tree(capture, tmp_path)
    assert (tmp_path / "intel-rapl:0/energy_uj").stat().st_mode & 0o777 == 0
    assert copy_tree("rapl", tmp_path)["intel-rapl:0/name"] == "package-0"


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x"])
def test_no_file_of_a_capture_leaves_its_folder(tmp_path, name):
    with pytest.raises(ConfigError):
        write_tree(Capture("cray", exchanges={name: "x"}), tmp_path)


def test_a_file_that_is_a_folder_too_is_refused(tmp_path):
    with pytest.raises(ConfigError):
        write_tree(Capture("cray", exchanges={"a/b": "x", "a": "x"}), tmp_path)


def test_a_machine_without_the_files_has_nothing_to_capture(tmp_path):
    with pytest.raises(Refused) as refused:
        capture_device("cray", {"root": str(tmp_path)}, ())
    assert refused.value.code == "refused.nothing-to-capture"


@pytest.mark.parametrize(("family", "config"), [("nvml", {}), ("prometheus", {}), ("plug", {"via": "mqtt"})])
def test_other_families_are_refused(family, config):
    with pytest.raises(Refused) as refused:
        check_family(family, config)
    assert refused.value.code == "refused.capture"
    assert f"joulelab doctor {family} --json" in str(refused.value)


# ---- the tape


def test_values_of_snmp_read_back():
    from joulelab.instruments.snmp.ber import Name

    for value in (0, -5, 2**40, b"", b"outlet 1", b"\x00\x1b", "ä".encode(), None, Name("1.3.6.1.4.1.318")):
        assert parse_value(write_value(value)) == value


def test_questions_of_one_message_are_noted_one_by_one():
    class Instrument:
        def query(self, text):
            return ";".join(str(len(part)) for part in text.split(";"))

        write = close = abandon = None

    tape = Tape()
    link = _tap_analyzer(tape, Instrument)()
    assert (link.query(":A?;:BB?"), link.query(":W 1;:D?;:D?")) == ("3;4", "4;3;3")
    assert [answer_questions(tape.exchanges, text) for text in (":BB?;:A?", ":C?")] == ["4;3", ""]


def test_a_reading_that_fails_is_a_gap_with_its_code():
    from joulelab.core.spec import Spec, Stream

    class Meter:
        def streams(self):
            power, age = Spec("power_w", "power", "W", "power"), Spec("age_s", "age", "s")
            return [Stream(n, "t", n, 1.0, (power, age, Spec("load", "load", "1"))) for n in ("a", "b", "c")]

        def read(self, stream):
            if stream.name == "a":
                raise ReadFailed("no answer", code="read-failed.silent")
            return (5.5, 0.1, 0.25) if stream.name == "b" else (math.nan, 0.1, math.nan)

    lines = [str(value) for value in read_values(Meter())]
    expected = ["a power_w none  # read-failed.silent: no answer", "b power_w 5.5", "b load 0.25", "c power_w none"]
    assert lines == expected


@pytest.mark.parametrize(
    ("family", "exchanges"),
    [
        ("snmp", {"1.3.x": "number 1"}),
        ("snmp", {"1.3.6.1.2.1.1.2.0": "number x"}),
        ("modbus", {"unit 1 function 3 registers 19026 2": "44zz 8666"}),
        ("modbus", {"unit 1 function 3 registers 19026 2": "4474"}),
        ("ipmi", {"06 01": "xx yy"}),
    ],
)
def test_answers_that_cannot_be_read_are_refused(family, exchanges):
    settings = {"profile": "janitza"} if family == "modbus" else {}
    with pytest.raises(ConfigError) as refused:
        read_capture(Capture(family, settings=settings, exchanges=exchanges))
    assert refused.value.code == "config.not-a-capture"


def test_families_of_files_and_of_the_network_are_all():
    assert set(TREES) == set(FILE_FAMILIES) < set(FAMILIES)
    with contextlib.suppress(Unavailable), open_capture(Capture("cray", exchanges={"x": "1"})):
        pytest.fail("there is no energy")


@pytest.mark.parametrize("secret", ["271828", "Power-PDU-42", "12.5 W"])
def test_a_secret_that_looks_like_a_reading_is_removed(secret):
    remover = Remover()
    remove_login({"community": secret, "address": "10.0.0.5"}, ("community",), remover)
    others = ["10.0.0.5", "10.11.12.13", "00:11:22:33:44:55", "4915112345"]
    walk = {f"1.3.6.1.4.1.318.2.5.{n}": f"text {text}" for n, text in enumerate([secret, *others, "230.1 V"])}
    cleaned = " ".join(remove_from_walk(walk, remover).values())
    assert [text for text in (secret, *others) if text in cleaned] == []
    assert "230.1 V" in cleaned


@pytest.mark.parametrize("key", ["LicenseKey", "UserLabel", "EncryptionKeys", "ApiKey"])
def test_keys_and_labels_of_users_are_removed(key):
    assert find_kind(key) != ""
    assert find_kind("RegistryPrefix") == find_kind("MessageKey") == ""
