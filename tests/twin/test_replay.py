"""Captured devices, served by their real protocols: what is read over a socket is what the capture states."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from tests.instruments.redfish_judge import CASES, TREES
from tests.instruments.snmp_judge import WALKS, list_walks
from tests.instruments.test_capture import MARKED, find_leaks
from tests.instruments.test_snmp_walks import READ

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.instruments.capture import (
    Capture,
    compare_values,
    format_capture,
    parse_capture,
    read_values,
    state_refusal,
)
from joulelab.instruments.capture.families import STAND_INS, capture_device, make_capture, read_capture
from joulelab.instruments.capture.recordings import parse_walk, read_recording
from joulelab.twin import profile
from joulelab.twin.model import RTX3090, Node, Supply
from joulelab.twin.replay import Replay
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

pytestmark = pytest.mark.system

CAPTURES = Path(__file__).parents[1] / "captures"
SERVERS = {
    "snmp": "pdu",
    "redfish": "redfish",
    "modbus": "modbus",
    "ipmi": "bmc",
    "analyzer": "analyzer",
    "plug": "plug",
}


def resolve_entry(entry):
    """Return the settings of an entry, its secrets from their files."""
    settings = {key: value for key, value in entry.items() if key != "meter"}
    return {
        key: Path(value["file"]).read_text() if isinstance(value, dict) and "file" in value else value
        for key, value in settings.items()
    }


def read_entry(entry):
    """Return what joulelab reads by an entry of a joulelab.toml, or the code of its refusal."""
    config = resolve_entry(entry) | ({"label": "capture"} if entry["meter"] in STAND_INS else {})
    try:
        with closing(import_module(f"joulelab.instruments.{entry['meter']}").open_meter(config)) as meter:
            return read_values(meter)
    except JoulelabError as error:
        return [state_refusal(error)]


@contextmanager
def replay_by_command(path):
    """Serve a capture by `joulelab twin --replay`; give what it announces."""
    words = [sys.executable, "-m", "joulelab", "twin", "--replay", str(path), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


@pytest.fixture
def truth(tmp_path):
    node = Node(gpus=(RTX3090,), supply=Supply(rated_w=1000, standby_w=5, cords=(0.5, 0.5)))
    start = monotonic_ns() - 100 * NS
    with Truth.create(tmp_path / "truth", node, profiles={"gpu": profile.constant(0.5)}, start_ns=start) as made:
        yield tmp_path / "truth", made


@pytest.mark.parametrize("family", SERVERS)
def test_a_device_is_captured_and_served_again(family, truth, tmp_path):
    with ServerProcess(SERVERS[family], truth[0], tmp_path / "server") as server:
        entries = dict(server.served.entries) or {"plug": server.served.facts["entry"]}
        (entry,) = entries.values()
        config = resolve_entry(entry)
        module = import_module(f"joulelab.instruments.{family}")
        capture, remover = capture_device(family, config, tuple(module.SECRETS))
    text = format_capture(capture)
    secrets = [config[key] for key in ("password", "privacy_password", "user") if key in config]
    assert [secret for secret in secrets if secret in text] == []
    assert any(value.channel == "power_w" and float(value.text) > 0 for value in capture.values), text[:2000]
    path = tmp_path / "capture.txt"
    path.write_text(text)
    with replay_by_command(path) as told:
        assert compare_values(parse_capture(text).values, read_entry(told["entry"])) == []
    assert sum(remover.counts.values()) > 0


def mark_campaigns(cases, *, but):
    """Keep a few recordings for every run of the tests; campaigns serve the others."""
    return [case if n in but else pytest.param(case, marks=pytest.mark.campaign) for n, case in enumerate(cases)]


@pytest.mark.parametrize("name", mark_campaigns(list_walks() or ["none"], but=(0, 8, 16)))
def test_recorded_walks_over_a_socket(name, tmp_path):
    if name == "none":
        pytest.skip(f"no recorded walks: {WALKS} is not here")
    walk = parse_walk((WALKS / f"{name}.snmprec").read_text("utf-8", "replace"))
    read = check_recording("snmp", walk, {}, tmp_path)
    powers = [float(value.text) for value in read if value.channel == "power_w" and value.text != "none"]
    assert {watts for watts in READ[name][1] if watts is not None} <= set(powers)
    assert bool(READ[name][1]) == (read[0].scope != "refused")


@pytest.mark.parametrize(
    "case", mark_campaigns(CASES, but=(0, 6, 8)), ids=lambda case: " ".join([case.tree, *case.wanted.values()])
)
def test_recorded_trees_over_a_socket(case, tmp_path):
    if not TREES.is_dir():
        pytest.skip(f"no recorded trees: {TREES} is not here")
    tree = json.loads(gzip.decompress((TREES / f"{case.tree}.json.gz").read_bytes()))
    read = check_recording("redfish", {path: json.dumps(body) for path, body in tree.items()}, case.wanted, tmp_path)
    stated = {(scope, channel): value for scope, row in case.values.items() for channel, value in row.items()}
    found = {(value.scope, value.channel): value.text for value in read}
    assert {key: float(found[key]) for key in stated} == pytest.approx(stated, rel=1e-11)
    assert bool(case.refusal) == (("refused", "") in found)


def check_recording(family, exchanges, settings, tmp_path):
    """Serve a recording and return what is read: the same as in process, with and without what is removed."""
    whole, _ = read_capture(Capture(family, settings=dict(settings), exchanges=exchanges))
    capture, _ = make_capture(family, exchanges, settings)
    assert [(v.channel, v.text) for v in capture.values] == [(v.channel, v.text) for v in whole]
    path = tmp_path / "capture.txt"
    path.write_text(format_capture(capture))
    with Replay(path) as device:
        read = read_entry(device.entry)
    assert compare_values(capture.values, read) == []
    return read


@pytest.mark.parametrize("family", ["snmp", "redfish", "plug"])
def test_no_marked_secret_passes_a_capture_over_a_socket(family, tmp_path):
    m = MARKED
    notes = " ".join(m[key] for key in ("host", "mail", "ip", "ip6", "mac", "uuid"))
    chassis = {"Id": m["serial"], "SerialNumber": m["serial"], "HostName": m["host"], "AssetTag": m["tag"]}
    chassis |= {"Location": {"Info": m["place"]}, "Contact": m["contact"], "Token": m["token"], "UserName": m["user"]}
    root = {"RedfishVersion": "1.6.0", "UUID": m["uuid"], "Chassis": {"@odata.id": "/redfish/v1/C"}}
    wifi = {"sta_ip": m["ip"], "ssid": m["host"], "user": m["user"]}
    plug = {"switch:0": {"apower": 12.5}, "sys": {"mac": m["bare mac"], "note": notes}, "wifi": wifi}
    bodies = {
        "/redfish/v1": root,
        "/redfish/v1/C": {"Members": [{"@odata.id": f"/redfish/v1/C/{m['serial']}"}]},
        f"/redfish/v1/C/{m['serial']}": {**chassis, "Note": notes},
    }
    answers = {
        "snmp": {
            "1.3.6.1.2.1.1.1.0": f"text PDU SN: {m['serial']} {m['mac']}",
            "1.3.6.1.2.1.1.2.0": "oid 1.3.6.1.4.1.99999.1",
            "1.3.6.1.4.1.99999.1.1": f"text {m['password']} {m['tag']} {m['contact']} {m['place']}",
            "1.3.6.1.4.1.99999.1.2": f"hex {(m['serial'] + chr(10) + m['user']).encode().hex()}",
            "1.3.6.1.4.1.99999.1.3": f"text {notes}",
        },
        "redfish": {path: json.dumps(body) for path, body in bodies.items()},
        "plug": {"/rpc/Shelly.GetStatus": json.dumps(plug)},
    }
    settings = {"kind": "shelly"} if family == "plug" else {}
    path = tmp_path / "secret.txt"
    path.write_text(format_capture(Capture(family, settings=settings, exchanges=answers[family])))
    with Replay(path) as device:
        config = resolve_entry(device.entry)
        capture, _ = capture_device(family, config, ("password",))
    assert len(capture.exchanges) >= len(answers[family])
    assert find_leaks(format_capture(capture)) == []


def test_a_replayed_tree_is_a_folder():
    with replay_by_command(next(CAPTURES.glob("*hwmon*"))) as told:
        values = read_entry(told["entry"])
        folder = Path(told["entry"]["root"])
        assert folder.is_dir()
    assert values[0].channel == "power_average_w"
    assert not folder.exists()


def test_the_commands_end_to_end(tmp_path):
    capture = CAPTURES / next(p.name for p in CAPTURES.glob("*snmp*"))
    joulelab = [sys.executable, "-m", "joulelab"]
    doctor = [*joulelab, "doctor", "capture", "--capture", "again.txt"]
    done = subprocess.run(
        [*joulelab, "twin", "--replay", str(capture), "--", *doctor],
        cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Read it before you send it." in done.stdout
    again = parse_capture((tmp_path / "again.txt").read_text())
    assert compare_values(parse_capture(capture.read_text()).values, again.values) == []


def test_a_walk_and_a_mockup_become_captures(tmp_path):
    (tmp_path / "walk.txt").write_text(
        '.1.3.6.1.2.1.1.1.0 = STRING: "a PDU"\n.1.3.6.1.2.1.1.2.0 = OID: .1.3.6.1.4.1.318.1.3.4.6\n'
        ".1.3.6.1.4.1.318.1 = Gauge32: 41\n.1.3.6.1.4.1.318.2 = INTEGER: on(1)\n"
        ".1.3.6.1.4.1.318.3 = Hex-STRING: 00 1A\n"
        ".1.3.6.1.4.1.318.4 = Timeticks: (123) 0:00:01.23\n.1.3.6.1.4.1.318.5 = No Such Object available\nrubbish\n"
        ".1.3.6.1.2.1.4.22.1.2.1.141.52.12.99 = Hex-STRING: 00 11 22 33 44 55\n"  # ARP: an address in its OID
    )
    family, walk = read_recording(tmp_path / "walk.txt")
    assert family == "snmp"
    assert list(walk.values()) == [
        "text a PDU",
        "oid 1.3.6.1.4.1.318.1.3.4.6",
        "number 41",
        "number 1",
        "hex 001a",
        "number 123",
    ]
    (tmp_path / "walk.txt").write_text(".1.3.6.1.4.1.318.1 = INTEGER: 3.40\n")  # a MIB has rescaled 340
    with pytest.raises(ConfigError) as caught:
        read_recording(tmp_path / "walk.txt")
    assert (caught.value.code, "3.40" in caught.value.what) == ("config.no-recording", True)
    (tmp_path / "mockup" / "Chassis" / "1").mkdir(parents=True)
    (tmp_path / "mockup" / "index.json").write_text('{"RedfishVersion": "1.6.0"}')
    (tmp_path / "mockup" / "Chassis" / "1" / "index.json").write_text("{}")
    family, tree = read_recording(tmp_path / "mockup")
    assert (family, set(tree)) == ("redfish", {"/redfish/v1", "/redfish/v1/Chassis/1"})
