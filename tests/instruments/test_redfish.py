from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path

import pytest
from tests.instruments.changing import change_flaws
from tests.waiting import until

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, ReadFailed, Unavailable
from joulelab.instruments import redfish
from joulelab.twin import profile
from joulelab.twin.model import H100, Node
from joulelab.twin.servers import plug
from joulelab.twin.servers import redfish as server
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

pytestmark = pytest.mark.system

NODE = Node(gpus=(H100, H100))
OLD = 100 * NS  # the twin has run for so long: every window is full


@pytest.fixture
def truth(tmp_path):
    start = monotonic_ns() - OLD
    with Truth.create(tmp_path / "truth", NODE, profiles={"gpu": profile.constant(0.5)}, start_ns=start) as made:
        yield made


@pytest.fixture
def bmc(truth, tmp_path):
    """Serve a BMC in this process; give the configuration that reads it. `change` changes flaws of the last one."""
    with contextlib.ExitStack() as stack:

        def start(**flaws):
            folder = tmp_path / f"bmc{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            start.flaws = replace(server.FLAWS, **flaws)
            return configured(stack.enter_context(server.serve(truth, folder, start.flaws, 0)))

        start.change = lambda **flaws: change_flaws(start.flaws, **flaws)
        yield start


@pytest.fixture
def opened(bmc):
    """Serve a BMC and open a meter on it."""
    with contextlib.ExitStack() as stack:

        def start(flaws=None, **config):
            meter = redfish.open_meter(bmc(**(flaws or {})) | config)
            stack.callback(meter.close)
            return meter

        yield start


def configured(served) -> dict:
    entry = dict(served.entries["redfish"]) | {"label": "bmc7", "timeout_s": 60.0}
    assert entry.pop("meter") == "redfish"
    return entry | {"password": Path(entry["password"]["file"]).read_text()}


def by_scope(meter, scope):
    stream = next(s for s in meter.streams() if s.scope == scope)
    return stream, dict(zip([c.name for c in stream.channels], meter.read(stream), strict=True))


def is_read(meter) -> bool:
    try:
        return meter.read(meter.streams()[0])[0] > 0
    except ReadFailed:
        return False


def test_reads_the_node_and_names_the_place(truth, opened):
    meter = opened()
    before = monotonic_ns()
    stream, row = by_scope(meter, "node.ac")
    now = monotonic_ns()
    assert row["power_w"] == pytest.approx(truth.power("node.ac", now), abs=0.51)
    old_ns = round(60 * NS)  # a BMC shows readings late; this test may run on a busy machine
    least, most = (server.FLAWS.base_j + truth.energy("node.ac", truth.start_ns, t) for t in (before - old_ns, now))
    assert least - 3600 <= row["energy_j"] <= most
    power, energy = stream.channels
    assert (power.kind, power.update_s, power.window_s, power.accuracy.quantum) == ("power", 1.0, 1.0, 1.0)
    assert (energy.kind, energy.modulus, energy.accuracy.quantum >= 3600.0) == ("counter", None, True)
    assert "EnvironmentMetrics" in power.accuracy.reference
    assert stream.device.endswith("EnvironmentMetrics#PowerWatts/Reading")
    assert stream.model == "Example Twin 8U"


def test_supplies_gpus_board_and_cooling(truth, opened):
    meter = opened()
    now = monotonic_ns()
    for number in (1, 2, 3, 4):
        for kind, sums in (("psu", "node.ac"), ("psu.dc", "node.dc")):
            stream, row = by_scope(meter, f"{kind}:{number}")
            assert (stream.sums, stream.parts, stream.parent) == (sums, 4, sums)
            assert row["power_w"] == pytest.approx(truth.power(stream.scope, now), abs=0.51)
            assert math.isnan(row["energy_j"]) is (kind == "psu.dc")
    for gpu in (0, 1):
        stream, row = by_scope(meter, f"gpu:{gpu}")
        assert row["power_w"] == pytest.approx(truth.power(f"gpu:{gpu}", now), abs=0.001)
        assert stream.device == truth.uuid(gpu)
        assert stream.channels[1].accuracy.quantum in (0.001, 0.01, 0.1)  # a last digit of 0 is not seen
        assert stream.channels[1].seen == 0.25  # the board asks the GPU's own sensor, which sees 25 of 100 ms
        assert stream.channels[1].accuracy.shared == f"nvml:{H100.name}"
    _, board = by_scope(meter, "board")
    total = sum(truth.power(f"gpu:{gpu}", now) for gpu in (0, 1))
    assert board["total_gpu_power_w"] == pytest.approx(total, abs=0.01)
    assert board["total_hsc_power_w"] > total
    stream, cooling = by_scope(meter, "node")
    assert stream.table == "cooling"
    fans = truth.node.cooling
    assert cooling["temperature_c"] == fans.inlet_c
    speed = 13_000 * (truth.power("fans", now) / fans.fan_max_w) ** (1 / 3)
    assert cooling["fan6_speed_rpm"] == pytest.approx(speed + 20 * 6, abs=1)
    assert all(c.kind == "state" for c in stream.channels)
    tables = {}
    for each in meter.streams():
        assert tables.setdefault(each.table, [c.name for c in each.channels]) == [c.name for c in each.channels]


SOURCE = {
    "sensors": "Sensors/total_power#Reading",
    "dell": "PowerControl/System Power Control/PowerConsumedWatts",
    "dell-old": "PowerControl/System Power Control/PowerConsumedWatts",
    "hpe": "PowerConsumedWatts",
    "lenovo": "PowerControl/Server Power Control/PowerConsumedWatts",
    "fujitsu": "Oem/ts_fujitsu/ChassisPowerConsumption/CurrentPowerConsumptionW",
    "inspur": "Oem/Public/TotalPower",
    "huawei": "Oem/Public/TotalPower",
    "supermicro": "PowerControl/System Power Control/PowerConsumedWatts",
}


@pytest.mark.parametrize("vendor", SOURCE)
def test_each_maker_gives_the_whole_node_and_names_its_source(truth, opened, vendor):
    meter = opened({"vendor": vendor})
    stream, row = by_scope(meter, "node.ac")
    assert row["power_w"] == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=0.51)
    assert stream.device.endswith(SOURCE[vendor])
    assert SOURCE[vendor].split("/")[-1].split("#")[0] in stream.channels[0].accuracy.reference
    scopes = {s.scope for s in meter.streams()}
    supplies = {"dc": {"hpe"}, "both": {"dell", "lenovo", "fujitsu", "inspur", "huawei", "supermicro"}}
    assert ("psu:1" in scopes) is (vendor in supplies["both"])
    assert ("psu.dc:4" in scopes) is (vendor in supplies["both"] | supplies["dc"])
    assert ("node" in scopes) is (vendor != "sensors")


def test_a_rating_in_place_of_a_reading_is_told_and_not_used(opened):
    meter = opened({"vendor": "dell-old"})
    assert [(m.scope, m.why) for m in meter.missing() if m.what != "read"] == [
        ("node.ac", "System.Embedded.1 has no EnvironmentMetrics"),
        ("psu:N", "null, absent, or a rating where a reading should be"),
        ("psu.dc:N", "null, absent, or a rating where a reading should be"),
    ]


def test_zero_of_an_unmetered_model_is_no_reading(bmc):
    with pytest.raises(Unavailable, match="no power meter") as caught:
        redfish.open_meter(bmc(vendor="hpe-unmetered"))
    assert "PDU" in caught.value.next


def test_a_board_with_a_bmc_of_its_own(truth, opened):
    meter = opened({"vendor": "hgx"}, gpus=[1, 0])
    assert {s.scope for s in meter.streams()} == {"gpu:0", "gpu:1", "board"}
    assert by_scope(meter, "gpu:1")[0].device == truth.uuid(0)  # the configuration says so


def test_an_ended_session_is_opened_again(opened, monkeypatch):
    meter = opened()
    node = meter.streams()[0]
    for days in (1, 2, 3):
        assert meter.read(node)[0] > 0
        monkeypatch.setattr(server, "monotonic_ns", lambda days=days: monotonic_ns() + days * 86_400 * NS)


def test_sessions_end_with_the_meter_and_basic_needs_none(bmc):
    config = bmc()
    for auth, count in (("session", 1), ("basic", 0)):
        meter = redfish.open_meter(config | {"auth": auth})
        path = "/redfish/v1/SessionService/Sessions"
        with redfish.open_client(config | {"auth": "basic"}) as watcher:
            assert len(watcher.get_json(path)["Members"]) == count
            meter.close()
            meter.close()
            assert watcher.get_json(path)["Members"] == []


def test_dies_and_returns(truth, tmp_path):
    with ServerProcess("redfish", truth.path, tmp_path / "bmc") as process:
        meter = redfish.open_meter(configured(process.served))
        node = meter.streams()[0]
        before = meter.read(node)[0]
        process.kill()
        for stream in meter.streams()[:3]:
            with pytest.raises(ReadFailed):
                meter.read(stream)
        process.start()
        assert meter.read(node)[0] == pytest.approx(before, abs=2)  # a new session, as the old ones died with it
        meter.close()


def test_slow_answers(opened):
    assert opened({"latency_s": 0.02, "vendor": "lenovo"}).streams()
    with pytest.raises(ReadFailed, match="no answer in time"):
        opened({"latency_s": 30.0}, timeout_s=0.3)


def test_silence_is_a_gap_until_it_speaks_again(bmc, opened):
    meter = opened({"vendor": "dell"}, timeout_s=2.0)
    assert is_read(meter)
    bmc.change(silent_at_s=0.0)
    with pytest.raises(ReadFailed, match="no answer in time"):
        meter.read(meter.streams()[0])
    bmc.change(silent_at_s=None)
    until(lambda: is_read(meter), "it is read again")


@pytest.mark.parametrize("auth", ["session", "basic"])
def test_wrong_credentials(bmc, auth):
    config = bmc()
    for flaw in ({"password": "wr0ng-one"}, {"user": "nobody"}):
        with pytest.raises(Denied, match="refuses") as caught:
            redfish.open_meter(config | {"auth": auth} | flaw)
        assert "wr0ng-one" not in str(caught.value)
        assert config["password"] not in str(caught.value)
    with pytest.raises(Denied):
        redfish.open_meter(bmc(refuse=True) | {"auth": auth})
    with pytest.raises(Denied, match="refuses us"):
        redfish.open_meter(config | {"auth": "none"})


def test_certificates(bmc, tmp_path):
    config = bmc()
    pin = config.pop("fingerprint")
    with pytest.raises(Denied, match="not trusted") as caught:
        redfish.open_meter(config)
    assert pin in caught.value.next
    with pytest.raises(Denied, match="not the one that is pinned") as caught:
        redfish.open_meter(config | {"fingerprint": "00" * 32})
    assert pin in caught.value.next
    pem = next(tmp_path.glob("bmc*/bmc.pem")).read_text()
    authority = tmp_path / "ca.pem"
    authority.write_text(pem[pem.index("-----BEGIN CERTIFICATE") :])
    for trust in ({"verify": str(authority)}, {"verify": False}, {"fingerprint": pin.upper()}):
        redfish.open_meter(config | trust).close()


def test_errors_and_nonsense_are_gaps(truth, opened, bmc):
    with pytest.raises(ReadFailed, match="HTTP 500"):
        redfish.open_meter(bmc(error_share=1.0))
    meter = opened({"vendor": "lenovo"})
    node = meter.streams()[0]
    assert meter.read(node)[0] == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=0.51)
    bmc.change(garble_at_s=0.0)
    for _ in range(5):
        with pytest.raises(ReadFailed, match=r"^bmc7: "):
            meter.read(node)


def test_a_counter_that_is_reset_is_shown_as_it_is(truth, bmc, opened):
    meter = opened({"period_s": 0.2, "window_s": 0.2})
    stream = meter.streams()[0]
    assert stream.channels[0].update_s == 0.2  # SensingInterval
    assert meter.read(stream)[1] > 4.0e9
    bmc.change(reset_at_s=truth.count_seconds())
    until(lambda: meter.read(stream)[1] < 1e6, "the reset shows")


def test_configuration_that_does_not_fit(bmc):
    config = bmc()
    for wrong, words in (
        ({"sources": ["nod"]}, "did you mean 'node'"),
        ({"sources": "node"}, "give a list"),
        ({"chassis": "Tray_B"}, "did you mean 'Tray_A'"),
        ({"gpus": [0]}, "1 numbers for 2 GPUs"),
        ({"auth": "digest"}, "session, basic or none"),
        ({"user": ""}, "no user"),
        ({"verify": 1}, "verify is 1"),
        ({"period_s": 0.1}, "0.5 or more"),
        ({"adress": "x"}, "did you mean 'address'"),
        ({"address": "x:y"}, "HOST:PORT"),
        ({"fingerprint": "12"}, "64 hexadecimal"),
    ):
        with pytest.raises(ConfigError) as caught:
            redfish.open_meter(config | wrong)
        assert words in str(caught.value), wrong
    with pytest.raises(Unavailable, match="no power by Redfish"):
        redfish.open_meter(config | {"sources": ["cpus"]})


def test_the_doctor_tells_failures_apart(bmc):
    config = bmc()

    def told(**wrong):
        changed = config | wrong
        try:
            redfish.open_meter(changed).close()
            error = Unavailable("nothing was wrong")
        except (ConfigError, Denied, ReadFailed, Unavailable) as found:
            error = found
        said = redfish.diagnose(changed, error)
        assert config["password"] not in " ".join(said)
        assert not [text for text in said if error.what in text], "the error is shown beside it"
        return said[-1] if said else ""

    assert "does not resolve" in told(address="no-such-host.invalid")
    assert "port 1 is closed" in told(address="127.0.0.1:1")
    assert config["fingerprint"] in told(fingerprint="00" * 32)
    assert "password is wrong" in told(password="no")
    assert "the account is right; chassis: " in told(chassis="x")
    assert "the account is right; chassis: " in told(sources=["cpus"])
    assert told(auth="x") == ""


def test_the_doctor_knows_a_port_that_is_no_bmc(truth, tmp_path):
    with plug.serve(truth, tmp_path, plug.FLAWS, 0) as served:
        place = f"127.0.0.1:{served.ports['plug']}"
        config = {"label": "bmc7", "auth": "none", "timeout_s": 60.0}
        error = ReadFailed("TLS fails")
        assert "HTTP without TLS" in redfish.diagnose(config | {"address": place}, error)[-1]
        assert "No Redfish there" in redfish.diagnose(config | {"address": f"http://{place}"}, error)[-1]
        with pytest.raises(ReadFailed, match="TLS fails"):
            redfish.open_meter(config | {"address": place})


def test_a_slow_service_is_not_searched_for_what_comes_second(opened, monkeypatch):
    monkeypatch.setattr("joulelab.instruments.redfish.plan.LOOK_S", -1.0)  # node and supplies take longer already
    meter = opened()
    names = [s.name for s in meter.streams()]
    assert {"node", "psu:1", "psu.dc:1"} <= set(names)
    assert not {"gpu:0", "cooling"} & set(names)
    said = {m.scope: m for m in meter.missing()}
    assert "too slowly" in said["gpus"].what
    assert "sources" in said["cooling"].next
    asked = opened(sources=["node", "gpus", "cooling"])
    assert {"node", "gpu:0", "gpu:1", "cooling"} <= {s.name for s in asked.streams()}
