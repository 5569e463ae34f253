from __future__ import annotations

import contextlib
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.codes import raises_code

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, MeterError, ReadFailed
from joulelab.instruments import plug
from joulelab.instruments.http import parse_json
from joulelab.instruments.plug import client
from joulelab.twin import profile
from joulelab.twin.model import H100, RTX3090, Cpu, Dram, Host, Node, Supply
from joulelab.twin.servers import plug as server
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

DESK = Node(
    gpus=(RTX3090,),
    packages=1,
    cpu=Cpu(idle_w=20, max_w=120, core_idle_w=5),
    dram=Dram(idle_w=3, max_w=10),
    host=Host(idle_w=40, max_w=90),
    supply=Supply(rated_w=1000, standby_w=5, cords=(1.0,)),
)
SWITCH = {
    "id": 0, "output": True, "apower": 412.3, "voltage": 230.1, "current": 1.8, "pf": 0.99,
    "aenergy": {"total": 1000.123, "by_minute": [1, 2, 3]},
}  # fmt: skip
SENSOR = {
    "StatusSNS": {
        "Time": "2026-03-01T10:00:00",
        "ENERGY": {"Total": 12.345, "Power": 412, "ApparentPower": 420, "Factor": 0.98, "Voltage": 230, "Current": 1.8},
    }
}


@pytest.fixture
def truth(tmp_path):
    start = monotonic_ns() - 100 * NS
    with Truth.create(tmp_path / "truth", DESK, profiles={"gpu": profile.constant(0.5)}, start_ns=start) as made:
        yield made


@pytest.fixture
def served(truth, tmp_path):
    """Serve a plug in this process; give the configuration that reads it."""
    with contextlib.ExitStack() as stack:

        def start(**flaws):
            folder = tmp_path / f"plug{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return configured(stack.enter_context(server.serve(truth, folder, replace(server.FLAWS, **flaws), 0)))

        yield start


def configured(found) -> dict:
    entry = dict(found.entries["plug"]) | {"label": "plug1", "timeout_s": 60.0}
    assert entry.pop("meter") == "plug"
    if "password" in entry:
        entry["password"] = Path(entry["password"]["file"]).read_text()
    return entry


def read(config, **more) -> dict[str, float]:
    meter = plug.open_meter(config | more)
    (stream,) = meter.streams()
    row = dict(zip([c.name for c in stream.channels], meter.read(stream), strict=True))
    meter.close()
    meter.close()
    return row


@pytest.mark.system
@pytest.mark.parametrize(
    ("flaws", "config", "step_w"),
    [
        ({}, {}, 0.1),
        ({"clamp": True}, {"channel": 1}, 0.1),
        ({"password": False}, {}, 0.1),
        ({}, {"kind": "tasmota"}, 1.0),
    ],
)
def test_reads_power_and_energy(truth, served, flaws, config, step_w):
    entry = served(**flaws)
    before = monotonic_ns()
    row = read(entry, **config)
    now = monotonic_ns()
    watts = truth.power("node.ac", now)
    assert 200 < watts < 600
    assert row["power_w"] == pytest.approx(watts, abs=step_w)
    least, most = (server.FLAWS.base_j + truth.energy("node.ac", truth.start_ns, t) for t in (before, now))
    # The last update is up to 1 s old, a step is 3.6 kJ for Tasmota.
    assert least - 3600 - watts <= row["energy_j"] <= most + 3600
    assert row["current_a"] == pytest.approx(watts / 230, abs=0.01)
    assert row["voltage_v"] == 230


@pytest.mark.system
def test_what_the_stream_says(served):
    meter = plug.open_meter(served())
    (stream,) = meter.streams()
    assert (stream.scope, stream.sums, stream.model) == ("node.ac", "", "shelly")
    power, energy = stream.channels[:2]
    assert power.accuracy.source == "assumed"
    assert "indicative" in power.accuracy.reference
    assert (power.kind, power.update_s) == ("power", 1.0)
    assert (energy.kind, energy.update_s) == ("counter", 60.0)
    meter.close()
    stated = plug.open_meter(served() | {"gain": 0.01, "reference": "compared with a WT310E"})
    assert stated.streams()[0].channels[0].accuracy.gain == 0.01
    stated.close()


@pytest.mark.system
def test_a_node_that_no_plug_carries_has_no_entry(tmp_path):
    with Truth.create(tmp_path / "big", Node(gpus=(H100,) * 8)) as big:
        assert server.find_full_w(big) > server.CARRIES_W
        with server.serve(big, tmp_path, server.FLAWS, 0) as found:
            assert found.entries == {}
            entry = dict(found.facts["entry"]) | {"password": (tmp_path / "password").read_text()}
            entry.pop("meter")
            assert read(entry)["power_w"] > 1000


@pytest.mark.system
def test_dies_and_returns(truth, tmp_path):
    with ServerProcess("plug", truth.path, tmp_path / "plug") as process:
        meter = plug.open_meter(configured(process.served))
        (stream,) = meter.streams()
        before = meter.read(stream)[0]
        process.kill()
        with pytest.raises(ReadFailed) as raised:
            meter.read(stream)
        assert raised.value.where == "plug1"
        process.start()
        assert meter.read(stream)[0] == pytest.approx(before, abs=1)
        meter.close()


@pytest.mark.system
def test_slow_silent_and_garbled(truth, served):
    assert read(served(latency_s=0.05))["power_w"] > 0
    with pytest.raises(ReadFailed, match="no answer in time"):
        read(served(latency_s=30.0), timeout_s=0.3)
    with pytest.raises(ReadFailed, match="no answer in time"):
        read(served(drop_share=1.0), timeout_s=0.3)
    for kind in ("shelly", "tasmota"):
        with pytest.raises(MeterError):
            read(served(garble_at_s=0.0, password=False), kind=kind)


@pytest.mark.system
@pytest.mark.parametrize("kind", ["shelly", "tasmota"])
def test_wrong_password(served, kind):
    config = served() | {"kind": kind}
    for wrong in ({"password": "wr0ng-one"}, {"user": "nobody"}, {"password": ""}):
        with pytest.raises(Denied) as caught:
            read(config | wrong)
        assert "wr0ng-one" not in str(caught.value)
        assert caught.value.where == "plug1"
    with pytest.raises(Denied):
        read(served(refuse=True) | {"kind": kind})


@pytest.mark.system
def test_configuration_that_does_not_fit(served):
    config = served(clamp=True)
    for wrong, code, words in (
        ({"kind": "kasa"}, "config.wrong-value", "shelly, tasmota"),
        ({"kind": None}, "config.wrong-value", "shelly, tasmota"),
        ({"channel": 5}, "unavailable.channel", '"em1:0", "em1:1"'),
        ({}, "unavailable.channel", '"em1:0", "em1:1"'),
        ({"channel": -1}, "config.wrong-value", "0, 1"),
        ({"via": "coap"}, "config.wrong-value", "http, mqtt"),
        ({"via": "mqtt"}, "config.no-topic", "topic"),
        ({"period_s": 0.01}, "config.wrong-value", "0.5 or more"),
        ({"passwort": "x"}, "config.unknown-key", "did you mean 'password'"),
    ):
        with raises_code(code) as caught:
            read(config | wrong)
        assert words in caught.value.next, wrong


@pytest.mark.system
def test_the_doctor_explains_failures(served):
    config = served()

    def explain(**wrong):
        try:
            read(config | wrong)
        except (MeterError, ConfigError) as error:
            said = plug.diagnose(config | wrong, error)
        assert config["password"] not in " ".join(said)
        return said[-1]

    assert "is closed" in explain(address="127.0.0.1:1")
    assert "does not resolve" in explain(address="no-such-host.invalid")
    assert "refuses the user or the password" in explain(password="no")
    assert "switch:0" in explain(channel=3)
    assert "HOST" in explain(address="")


@pytest.mark.system
@pytest.mark.parametrize(("kind", "other"), [("shelly", "tasmota"), ("tasmota", "shelly")])
def test_the_doctor_suggests_the_other_kind(served, kind, other):
    config = served(password=False) | {"kind": kind}
    error = ReadFailed("its answer is not JSON")
    assert f'kind = "{other}"' in plug.diagnose(config, error)[-1]


def test_answers_without_a_reading_are_refused():
    def read_switch(**changes):
        return client.parse_shelly({"switch:0": SWITCH | changes}, "switch:0").values

    assert read_switch()[:2] == (412.3, 1000.123 * 3600)
    assert math.isnan(read_switch(pf=None)[3])
    assert math.isnan(read_switch(aenergy=None)[1])
    for wrong in (None, "412", True, -1e9, 1e9, math.inf):
        with raises_code("read-failed.wrong-answer"):
            read_switch(apower=wrong)
    with raises_code("read-failed.wrong-answer"):
        read_switch(aenergy={"total": "1000"})
    with raises_code("read-failed.fault"):
        read_switch(errors=["power_meas_failure"])
    with raises_code("unavailable.no-power"):
        client.find_shelly_component({"switch:0": {"output": True}, "sys": {}}, None)
    with raises_code("denied.login"):
        client.parse_tasmota({"WARNING": "Need user"}, 0)
    with raises_code("unavailable.no-power"):
        client.parse_tasmota({"StatusSNS": {"Time": "x", "Switch1": "ON"}}, 0)
    with raises_code("read-failed.wrong-answer"):
        client.parse_tasmota({"Command": "Unknown"}, 0)
    two = {"ENERGY": {"Power": [10, 20], "Total": 5.0, "Voltage": 230}}
    assert [client.parse_tasmota(two, n).values[0] for n in (0, 1)] == [10, 20]
    assert math.isnan(client.parse_tasmota(two, 1).values[1])  # one total for both channels is neither's
    for channel, answer in ((None, two), (2, two), (1, SENSOR)):
        with raises_code("unavailable.channel"):
            client.parse_tasmota(answer, channel)


def test_a_power_that_the_plug_contradicts_is_no_reading():
    for power, more, code in (
        (-3.0, {}, "read-failed.turned-clamp"),
        (0.0, {"current": 2.0}, "read-failed.zero-power"),
        (0, {"current": None, "aprtpower": 460.0}, "read-failed.zero-power"),
    ):
        with raises_code(code) as caught:
            client.parse_shelly({"switch:0": SWITCH | {"apower": power} | more}, "switch:0")
        assert caught.value.next
    off = SWITCH | {"apower": 0.0, "current": 0.2}  # the filter of an idle supply
    assert client.parse_shelly({"switch:0": off}, "switch:0").values[0] == 0
    with raises_code("read-failed.turned-clamp"):
        client.parse_tasmota({"ENERGY": {"Power": -450, "Total": 5.0}}, None)
    # Totals of two channels are not those of one power.
    assert math.isnan(client.parse_tasmota({"ENERGY": {"Power": 300, "Total": [1.5, 2.5]}}, None).values[1])
    assert client.parse_tasmota({"ENERGY": {"Power": [300], "Total": [1.5]}}, None).values[1] == 1.5 * 3.6e6


def test_components_of_one_number_are_chosen_by_name():
    status = {"switch:0": SWITCH, "em1:0": {"act_power": 400.0}, "em1data:0": {"total_act_energy": 1.0}}
    for channel, words in ((None, "2 channels measure"), (0, "2 channels measure"), (1, "channel 1 measures no")):
        with raises_code("unavailable.channel") as caught:
            client.find_shelly_component(status, channel)
        assert words in caught.value.what
        assert '"em1:0", "switch:0"' in caught.value.next
    assert client.find_shelly_component(status, "em1:0") == "em1:0"
    entry = {"address": "a", "kind": "shelly", "channel": "em1:0"}
    plug.check(entry)
    with raises_code("config.wrong-value"):
        plug.check(entry | {"kind": "tasmota"})
    with raises_code("config.wrong-value"):
        plug.check(entry | {"channel": "em2:0"})


TOKENS = (b"null", b"true", b'"12"', b"-1", b"1e999", b"NaN", b"{}", b"[]", b"7", b"\xff", b"")


def mutated(draw: random.Random, body: bytes) -> bytes:
    if draw.random() < 0.1:
        return draw.randbytes(draw.randrange(80))
    data = bytearray(body)
    for _ in range(draw.randrange(1, 4)):
        place = draw.randrange(len(data) or 1)
        data[place : place + draw.randrange(12)] = draw.choice((*TOKENS, draw.randbytes(1), data[place : place + 9]))
    return bytes(data)


@pytest.mark.parametrize("kind", ["shelly", "tasmota"])
@pytest.mark.parametrize("rounds", [1_200, pytest.param(12_000, marks=pytest.mark.campaign)])
def test_malformed_answers_never_give_a_wrong_number(kind, rounds):
    """Wrong: a power or an energy that does not stand in the answer at its place as a number of at least 0."""
    draw, taken = random.Random(11), 0
    good = json.dumps({"switch:0": SWITCH} if kind == "shelly" else SENSOR).encode()
    for _ in range(rounds):
        try:
            doc = parse_json(mutated(draw, good), "plug")
            reading = client.parse_shelly(doc, "switch:0") if kind == "shelly" else client.parse_tasmota(doc, 0)
        except MeterError:
            continue
        taken += 1
        if kind == "shelly":
            watts, total, scale = doc["switch:0"]["apower"], doc["switch:0"].get("aenergy"), 3600.0
            total = total.get("total") if isinstance(total, dict) else None
        else:
            found = doc.get("StatusSNS", doc)["ENERGY"]
            watts, total, scale = found["Power"], found.get("Total"), 3.6e6
            watts = watts[0] if isinstance(watts, list) else watts
            total = (total[0] if len(total) == 1 else None) if isinstance(total, list) else total
        assert type(watts) in (int, float)
        power_w, energy_j, *_ = reading.values
        assert power_w == watts >= 0
        assert math.isnan(energy_j) if total in (None, []) else energy_j == pytest.approx(total * scale)
        assert all(math.isnan(v) or (math.isfinite(v) and v >= 0) for v in reading.values)
    assert taken > 500 * rounds / 12_000
