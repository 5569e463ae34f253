"""The BMC's meter against the simulated BMC: right values, and every way in which a BMC fails."""

from __future__ import annotations

import shutil
import time
from math import isnan
from pathlib import Path

import pytest

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MeterError, ReadFailed
from joulelab.instruments import ipmi
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

pytestmark = pytest.mark.system

pytest.importorskip("pyghmi", reason="pip install 'joulelab[ipmi]'")


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "truth"
    start = monotonic_ns() - 30 * NS
    with Truth.create(path, Node(), profiles={"gpu": profile.constant(0.5)}, start_ns=start) as made:
        yield made


@pytest.fixture
def serve(truth, tmp_path):
    servers = []

    def start(**flaws) -> ServerProcess:
        server = ServerProcess("bmc", truth.path, tmp_path / f"bmc{len(servers)}", flaws=flaws)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def usual(truth, tmp_path_factory):
    with ServerProcess("bmc", truth.path, tmp_path_factory.mktemp("bmc")) as server:
        yield server


def entry(server: ServerProcess, **more):
    given = {k: v for k, v in server.served.entries["bmc"].items() if k != "meter"}
    password = Path(given["password"]["file"]).read_text()
    return {**given, "label": "bmc", "password": password, "timeout_s": 60.0, **more}


@pytest.fixture
def opened():
    meters = []

    def open_meter(config):
        meters.append(ipmi.open_meter(config))
        return meters[-1], {s.name: s for s in meters[-1].streams()}

    yield open_meter
    for meter in meters:
        meter.close()
        meter.close()


def eventually(action, seconds: float = 60.0):
    """Repeat a reading until it succeeds."""
    until = time.monotonic() + seconds
    while True:
        try:
            return action()
        except ReadFailed:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def again(server: ServerProcess, **flaws) -> None:
    """Let a BMC die and return with other flaws."""
    server.kill()
    server._order["flaws"] = flaws
    server.start()


NO_COOLING = {"fans": [], "temperatures": []}
ONLY_DCMI = {"sources": ["dcmi"], **NO_COOLING}
ONLY_XCC = {"sources": ["xcc"], **NO_COOLING}


def test_what_the_twin_shows_is_read_with_no_further_settings(truth, usual, opened):
    meter, streams = opened(entry(usual))
    assert list(streams) == ["dcmi", "xcc", "psu:1", "psu:2", "psu:3", "psu:4", "cooling"]
    now = monotonic_ns()
    assert meter.read(streams["dcmi"])[0] == pytest.approx(truth.power("node.ac", now), abs=1.0)
    for n in range(1, 5):
        psu = streams[f"psu:{n}"]
        assert (psu.scope, psu.parent, psu.sums, psu.parts) == (f"psu:{n}", "node.ac", "node.ac", 4)
        step = psu.channels[0].accuracy.quantum
        assert 4 <= step <= 24
        assert meter.read(psu)[0] == pytest.approx(truth.power(f"psu:{n}", now), abs=step / 2 + 0.01)
    assert streams["dcmi"].scope == "node.ac"
    assert streams["xcc"].scope == "node.dc"
    assert not meter.missing()


def test_energy_is_that_of_the_truth(truth, serve, opened):
    meter, streams = opened(entry(serve(period_s=0.0), **ONLY_XCC))
    spec = streams["xcc"].channels[0]
    assert (spec.kind, spec.unit, spec.modulus) == ("counter", "J", 2.0**32)
    before, first, after = monotonic_ns(), meter.read(streams["xcc"])[0], monotonic_ns()
    time.sleep(0.1)  # or longer: it must count what flows between the two readings
    end, second, done = monotonic_ns(), meter.read(streams["xcc"])[0], monotonic_ns()
    assert truth.energy("node.dc", after, end) - 0.01 <= second - first <= truth.energy("node.dc", before, done) + 0.01


def test_the_counter_wraps_at_its_modulus(truth, serve, opened):
    base = 2.0**32 - 5e6
    server = serve(period_s=0.0, base_j=base)
    meter, streams = opened(entry(server, timeout_s=2.0, **ONLY_XCC))
    begin, first, read = monotonic_ns(), meter.read(streams["xcc"])[0], monotonic_ns()
    assert first > base
    again(server, period_s=0.0, base_j=base + 6e6)  # beyond the end of its 32 bits
    asked, last, end = monotonic_ns(), eventually(lambda: meter.read(streams["xcc"])[0]), monotonic_ns()
    assert last < first
    counted = (last - first) % streams["xcc"].channels[0].modulus - 6e6
    assert truth.energy("node.dc", read, asked) - 1 <= counted <= truth.energy("node.dc", begin, end) + 1


def test_the_newer_xcc_gives_power(truth, serve, opened):
    meter, streams = opened(entry(serve(xcc="power"), sources=["xcc"]))
    assert streams["xcc"].channels[0].kind == "power"
    assert meter.read(streams["xcc"])[0] == pytest.approx(truth.power("node.dc", monotonic_ns()), abs=0.6)


def test_a_sensor_by_its_name_feeds_what_is_said(truth, usual, opened):
    source = {"source": "sensor:sys power", "feeds": "node.ac"}
    meter, streams = opened(entry(usual, sources=[source], fans=[], temperatures=["GPU1*", "Inlet*"]))
    power = streams["sensor:Sys Power"]
    step = power.channels[0].accuracy.quantum
    assert meter.read(power)[0] == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=step / 2 + 0.01)
    assert [c.name for c in streams["cooling"].channels] == ["temperature_c", "gpu1_temperature_c"]
    assert list(streams) == ["sensor:Sys Power", "cooling"]


def test_cooling_follows_the_load(usual, opened):
    meter, streams = opened(entry(usual))
    channels = streams["cooling"].channels
    row = dict(zip([c.name for c in channels], meter.read(streams["cooling"]), strict=True))
    assert all(c.kind == "state" for c in channels)
    assert 22 <= row["temperature_c"] <= 27
    assert 4200 < row["fan1_speed_rpm"] < 13200
    assert streams["cooling"].scope == "node"


def code_of(action, kind=MeterError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return caught.value.code


def test_a_sensor_without_a_reading_is_a_gap_and_listed(serve, opened):
    server = serve(unavailable=["PSU2 Input Power", "Fan 3"], off=["Fan 4"])
    meter, streams = opened(entry(server))
    assert streams["psu:2"].parts == 4  # a sum of three would be wrong
    assert code_of(lambda: meter.read(streams["psu:2"]), ReadFailed) == "read-failed.no-reading"
    assert meter.read(streams["psu:1"])[0] > 100
    assert len(streams["cooling"].channels) == 1 + 4
    why = {m.what: m.why for m in meter.missing()}
    assert "disabled" in why["Fan 4 has no reading now"]
    assert "unavailable" in why["Fan 3 has no reading now"]


def test_dcmi_that_is_not_active_is_not_zero_watts(serve, opened):
    server = serve(dcmi_active=False, manufacturer=674)
    meter, streams = opened(entry(server))
    assert "dcmi" not in streams
    assert "xcc" not in streams  # on another maker's BMC the command is never tried
    assert [m.code for m in meter.missing()] == ["read-failed.no-reading"]
    assert code_of(lambda: opened(entry(server, **ONLY_DCMI))) == "read-failed.no-reading"


def test_what_the_entry_names_has_to_be_there(usual):
    assert code_of(lambda: ipmi.open_meter(entry(usual, sources=["sensor:Sys Powr"]))) == "unavailable.no-sensor"
    assert code_of(lambda: ipmi.open_meter(entry(usual, sources=["psu.dc"]))) == "unavailable.no-supplies"


@pytest.mark.parametrize(
    ("change", "code"), [({"password": "not-the-one"}, "denied.password"), ({"user": "nobody"}, "denied.user")]
)
def test_wrong_logins_are_denied_without_the_password(usual, change, code):
    config = entry(usual, **change)
    with pytest.raises(Denied) as caught:
        ipmi.open_meter(config)
    assert caught.value.code == code
    found = " ".join(ipmi.diagnose(config, caught.value))
    assert "speaks IPMI 2.0" in found
    assert "login is wrong" in found
    assert config["password"] not in str(caught.value) + found


def test_too_high_a_privilege_is_denied(serve, opened):
    server = serve(privilege=2)
    config = entry(server, privilege="administrator")
    with pytest.raises(Denied) as caught:
        ipmi.open_meter(config)
    assert caught.value.code == "denied.privilege"
    assert 'privilege = "user"' in caught.value.next
    meter, streams = opened(entry(server, privilege="user"))
    assert meter.read(streams["dcmi"])[0] > 100


def test_too_low_a_privilege_for_xcc(serve, opened):
    server = serve(xcc_privilege=4)
    assert code_of(lambda: ipmi.open_meter(entry(server, sources=["xcc"])), Denied) == "denied.privilege"
    meter, streams = opened(entry(server))
    assert "xcc" not in streams
    assert "denied.privilege" in [m.code for m in meter.missing()]


def test_nothing_there():
    config = {"address": "127.0.0.1:9", "user": "u", "password": "hunter2222", "timeout_s": 0.2}
    with pytest.raises(ReadFailed) as caught:
        ipmi.open_meter(config)
    assert caught.value.code == "read-failed.no-answer"
    assert "is closed" in ipmi.diagnose(config, caught.value)[0]
    nowhere = {**config, "address": "nosuchname.invalid"}
    with pytest.raises(ReadFailed) as caught:
        ipmi.open_meter(nowhere)
    assert caught.value.code == "read-failed.unknown-name"
    assert "does not resolve" in ipmi.diagnose(nowhere, caught.value)[0]


def test_it_dies_and_returns(serve, opened):
    server = serve()
    meter, streams = opened(entry(server, timeout_s=2.0))
    assert meter.read(streams["dcmi"])[0] > 100
    server.kill()
    for name in ("dcmi", "xcc", "cooling"):
        assert code_of(lambda name=name: meter.read(streams[name]), ReadFailed) in (
            "read-failed.no-answer",
            "read-failed.login",
        )
    server.start()  # sessions are lost, as when a BMC restarts
    for stream in streams.values():
        assert len(eventually(lambda stream=stream: meter.read(stream))) == len(stream.channels)


def test_it_restarts_between_two_readings(serve, opened):
    server = serve()
    meter, streams = opened(entry(server, timeout_s=2.0))
    server.kill()
    server.start()
    # It does not know the session any more.
    assert code_of(lambda: meter.read(streams["dcmi"]), ReadFailed) == "read-failed.no-answer"
    assert eventually(lambda: meter.read(streams["dcmi"]))[0] > 100


def test_one_that_is_slower_than_the_timeout_is_not(serve, opened):
    server = serve()
    config = entry(server, timeout_s=1.0, **ONLY_DCMI)
    meter, streams = opened(config)
    again(server, latency_s=30.0)
    for _ in range(2):
        assert code_of(lambda: meter.read(streams["dcmi"]), ReadFailed) in (
            "read-failed.no-answer",
            "read-failed.login",
        )
    assert code_of(lambda: ipmi.open_meter({**config, "timeout_s": 0.05}), ReadFailed) == "read-failed.no-answer"
    server.kill()


def test_a_login_that_outlasts_the_timeout_goes_on(serve, opened):
    server = serve()
    meter, streams = opened(entry(server, timeout_s=1.0, **ONLY_DCMI))
    again(server, latency_s=0.25)  # six packets: longer than one reading may take
    assert eventually(lambda: meter.read(streams["dcmi"]))[0] > 100


def test_dropped_packets_are_sent_again(serve, opened):
    meter, streams = opened(entry(serve(drop_share=0.05), **ONLY_DCMI))
    assert all(eventually(lambda: meter.read(streams["dcmi"]))[0] > 100 for _ in range(10))


def test_garbled_answers_are_gaps(serve, opened):
    server = serve()
    meter, streams = opened(entry(server, timeout_s=2.0))
    again(server, garble_at_s=0.0)
    for stream in streams.values():
        codes = {code_of(lambda stream=stream: meter.read(stream), ReadFailed) for _ in range(10)}  # never a number
        assert "read-failed.malformed" in codes
    with pytest.raises(MeterError):  # a garbled answer may also say that there is no power
        ipmi.open_meter(entry(server))


def test_a_sensor_of_the_whole_node_where_there_is_nothing_else(serve, opened):
    _, streams = opened(entry(serve(dcmi=False, xcc="none"), psu="no such*", **NO_COOLING))
    assert list(streams) == ["sensor:Sys Power"]
    assert streams["sensor:Sys Power"].scope == "node.ac"


# In-band: the same meter through ipmitool, which here reaches the simulated BMC over LAN.


def test_in_band_through_ipmitool(truth, usual, opened):
    if shutil.which("ipmitool") is None:
        pytest.skip("apt install ipmitool")
    given = usual.served.entries["bmc"]
    port = given["address"].rpartition(":")[2]
    command = f"ipmitool -I lanplus -C 3 -H 127.0.0.1 -p {port} -U {given['user']} -f {given['password']['file']}"
    config = {"interface": "in-band", "command": command, "timeout_s": 60.0, "fans": ["Fan 1"]}
    meter, streams = opened(config)
    assert meter.read(streams["dcmi"])[0] == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=1.0)
    assert meter.read(streams["psu:1"])[0] > 100
    assert meter.read(streams["xcc"])[0] > 1000
    assert not any(isnan(v) for v in meter.read(streams["cooling"]))
