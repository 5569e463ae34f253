"""The SNMP meter against net-snmp's snmpd that shows PDUs of every maker we know."""

from __future__ import annotations

import math
import socket

import pytest
from tests.codes import raises_code
from tests.instruments.snmp_bench import Bench, need_snmpd, opened, rows
from tests.waiting import until

from joulelab import instruments as meters
from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import JoulelabError, ReadFailed
from joulelab.instruments import snmp
from joulelab.instruments.snmp.client import MISSING
from joulelab.twin.servers._pdu_trees import MAKERS

pytestmark = pytest.mark.system

# How finely each maker shows power (W) and energy (J) at its outlets, or at the unit where it has no metered outlets.
STEPS = {
    "apc_rpdu2": (1, 360e3),
    "apc_rpdu": (1, None),
    "raritan": (1, 3600),
    "sentry3": (1, 3600),
    "sentry4": (1, 3600),
    "eaton": (1, 3600),
    "geist": (1, 3600),
    "liebert": (1, 360e3),
    "cyberpower": (1, 360e3),
    "cyberpower_epdu": (1, 360e3),
    "ups": (1, None),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    need_snmpd()
    return Bench(tmp_path_factory.mktemp("snmp"))


@pytest.fixture(scope="module")
def steady(bench):
    """Serve one PDU without flaws for all tests that change nothing."""
    with bench.served(base_j=7.2e6) as (_, config):
        yield config


def test_counters_can_be_left_out(steady):
    with opened(steady, energy=False, outlets=[1, 2]) as meter:
        read = rows(meter)
        assert [set(row) & {"power_w", "energy_j"} for row in read.values()] == [{"power_w"}] * 2
        assert all(row["power_w"] > 0 for row in read.values())
        assert all(spec.kind != "counter" for stream in meter.streams() for spec in stream.channels)


@pytest.mark.parametrize("vendor", MAKERS)
def test_every_maker_reads_as_the_truth(bench, vendor):
    base_j = 7.2e6  # 2 kWh: counters of 0.1 kWh show something too
    with bench.served(vendor=vendor, login="v2c", base_j=base_j) as (_, config), opened(config) as meter:
        power_step, energy_step = STEPS[vendor]
        before = monotonic_ns()
        read = rows(meter)
        now = monotonic_ns()
        points = {f"outlet:pdu1.{n}": f"outlet:{n}" for n in range(1, bench.cords + 1)}
        if not MAKERS[vendor][3]:
            points = {"node.ac": "node.ac"}
        assert set(read) == set(points)
        for stream in meter.streams():
            if stream.table != "power":
                assert all(c.kind == "state" for c in stream.channels), "phases and banks are counted nowhere"
                continue
            row, point = read[stream.name], points[stream.name]
            assert row["power_w"] == pytest.approx(bench.truth.power(point, now), abs=power_step)
            specs = {c.name: c for c in stream.channels}
            assert specs["power_w"].accuracy.quantum == power_step
            assert specs["power_w"].window_s == specs["power_w"].update_s == 1.0
            assert ("energy_j" in row) is (energy_step is not None)
            if energy_step is not None:
                least = base_j + bench.truth.energy(point, bench.truth.start_ns, before)
                most = base_j + bench.truth.energy(point, bench.truth.start_ns, now)
                assert least - energy_step - 3 * row["power_w"] <= row["energy_j"] <= most
                assert row["energy_j"] % energy_step == 0
                assert specs["energy_j"].accuracy.quantum == energy_step
                assert specs["energy_j"].modulus is None, "it may be reset: a fall is no wrap"
            if "current_a" in row and "voltage_v" in row:
                assert row["current_a"] * row["voltage_v"] * 0.98 == pytest.approx(row["power_w"], rel=0.02)
        phases = rows(meter, "phases")
        if phases and "power_w" in next(iter(phases.values())):
            total = sum(row["power_w"] for row in phases.values())
            assert total == pytest.approx(bench.truth.power("node.ac", now), abs=30)


def test_cords_sum_into_the_node_over_v3(steady, bench):
    with opened(steady, parts=6) as meter:
        streams = [s for s in meter.streams() if s.table == "power"]
        assert {(s.sums, s.parts, s.parent) for s in streams} == {("node.ac", 6, "node.ac")}
        assert [s.scope for s in streams] == [f"outlet:pdu1.{n}" for n in range(1, bench.cords + 1)]
        assert {s.scope for s in meter.streams() if s.table == "banks"} == {"bank:pdu1.1", "bank:pdu1.2"}
        assert {s.model for s in streams} == {"C2WG36TE"}


def test_outlets_go_by_number_name_or_index(steady):
    with opened(steady, outlets=["node psu 2", "AA3", "1.1.4", 1, "5"], phases=False) as meter:
        assert [s.scope for s in meter.streams()] == [f"outlet:pdu1.{n}" for n in (2, 3, 4, 1, 5)]
        assert rows(meter)["outlet:pdu1.5"]["power_w"] == 0.0, "an outlet that feeds nothing is measured as that"


def test_version_one_reads_the_same(bench):
    with bench.served(login="v2c") as (_, config), opened(config) as new, opened(config, version="1") as old:
        assert old.streams() == new.streams()
        for table in ("power", "phases", "banks"):
            assert rows(old, table).keys() == rows(new, table).keys()
        assert rows(old)["outlet:pdu1.1"]["power_w"] == pytest.approx(rows(new)["outlet:pdu1.1"]["power_w"], abs=2)
        assert old._session.get(["1.3.6.1.2.1.1.1.0", "1.3.6.1.9", "1.3.6.1.2.1.1.2.0"])[1] is MISSING
        assert old._session.next(["1.3.6.1.9", "1.3.6.1.2.1.1"])[0] == ("1.3.6.1.9", MISSING)


def test_without_outlets_the_whole_unit_is_the_rack(steady, bench):
    settings = {k: v for k, v in steady.items() if k not in ("outlets", "feeds")}
    with opened(settings) as meter:
        (stream,) = [s for s in meter.streams() if s.table == "power"]
        assert (stream.scope, stream.sums, stream.parts) == ("rack", "", 0)
        assert rows(meter)["rack"]["power_w"] == pytest.approx(bench.truth.power("node.ac", monotonic_ns()), abs=1)
        energy = next(c for c in stream.channels if c.name == "energy_j")
        assert energy.accuracy.quantum == 360e3, "a tenth of a kWh"


def test_the_device_tells_units_digits_and_accuracy(bench):
    with bench.served(vendor="raritan") as (_, config), opened(config) as meter:
        stream = next(s for s in meter.streams() if s.table == "power")
        specs = {c.name: c for c in stream.channels}
        assert (specs["power_w"].accuracy.source, specs["power_w"].accuracy.gain) == ("datasheet", 0.01)
        row = rows(meter)[stream.name]
        assert row["current_a"] == pytest.approx(row["power_w"] / 230 / 0.98, abs=0.002), "three digits"
        assert (stream.model, stream.device) == ("PX3-5190R", "QFC0000003")


def test_a_ups_shows_input_and_battery_as_state(bench):
    with bench.served(vendor="ups") as (_, config), opened(config) as meter:
        battery = rows(meter, "battery")["battery:pdu1.0"]
        assert (battery["charge"], battery["remaining_s"], battery["voltage_v"]) == (0.97, 42 * 60, 216)
        into, out = rows(meter, "input")["input:pdu1.1"], rows(meter)["node.ac"]
        assert into["power_w"] == pytest.approx(out["power_w"] / 0.95, abs=2)


def test_stated_accuracy_and_wrap_are_taken_over(bench):
    modulus_j = 360e3
    with bench.served(base_j=modulus_j - 7200, modulus_j=modulus_j) as (_, config):
        more = {"gain": 0.002, "offset_w": 3.0, "reference": "certificate", "wraps_at_kwh": 0.1, "outlets": [1]}
        with opened(config, phases=False, update_s=0.5, **more) as meter:
            specs = {c.name: c for c in meter.streams()[0].channels}
            power, energy = specs["power_w"].accuracy, specs["energy_j"].accuracy
            assert (power.source, power.gain, power.offset, power.reference) == (
                "calibrated",
                0.002,
                3.0,
                "certificate",
            )
            assert (energy.gain, energy.offset) == (0.002, 3.0), "a counter adds it up over time"
            assert specs["energy_j"].modulus == pytest.approx(modulus_j)
            assert rows(meter)["outlet:pdu1.1"]["energy_j"] < modulus_j


def counted(meter):
    """Count the requests of a meter."""
    asked = []
    real = meter._session.get
    meter._session.get = lambda oids: asked.append(1) or real(oids)
    return asked


def test_one_request_serves_all_streams_of_a_moment(steady):
    with opened(steady, period_s=60.0) as meter:
        asked = counted(meter)
        for stream in meter.streams():
            meter.read(stream)
        assert len(asked) == 1
        meter.read(meter.streams()[0])
        assert len(asked) == 2, "the next reading is a new one"
        meter._read_ns -= 40 * 10**9
        meter.read(meter.streams()[1])
        assert len(asked) == 3, "an old answer is not shared"


def test_a_slow_device_is_asked_once_for_all_streams_of_a_tick(bench):
    with bench.served() as (server, config), opened(config, period_s=60.0) as meter:
        asked = counted(meter)
        assert len(meter.streams()) > 4
        with bench.changed(server, latency_s=0.7):
            for stream in meter.streams():
                assert len(meter.read(stream)) == len(stream.channels)
        assert len(asked) == 1


def is_read(meter, stream):
    """Tell whether there is an answer, right or wrong."""
    try:
        meter.read(stream)
    except ReadFailed as error:
        return error.code not in ("read-failed.no-answer", "read-failed.port-closed")
    return True


def test_it_dies_and_returns(bench):
    with bench.served(vendor="sentry4") as (server, config), opened(config, timeout_s=3.0) as meter:
        stream = meter.streams()[0]
        before = meter.read(stream)
        server.kill()
        assert not is_read(meter, stream)
        server.start()
        until(lambda: is_read(meter, stream), "it answers again")
        assert meter.read(stream)[0] == pytest.approx(before[0], abs=2)


def test_a_slow_device_is_read_and_a_slower_one_is_a_gap(bench):
    with bench.served(latency_s=0.15) as (_, config):
        with opened(config, outlets=[1], phases=False) as meter:
            assert rows(meter)["outlet:pdu1.1"]["power_w"] > 0
        with raises_code("read-failed.no-answer"):
            meters.open_meter("snmp", config | {"timeout_s": 0.05})


def test_silence_garbage_and_sentinels_are_gaps_with_their_reason(bench):
    with bench.served() as (server, config), opened(config, timeout_s=3.0, period_s=60.0) as meter:
        first, *others = meter.streams()
        assert rows(meter)["outlet:pdu1.1"]["power_w"] > 0
        with bench.changed(server, silent_at_s=0):
            asked = counted(meter)
            for stream in (first, *others):
                with raises_code("read-failed.no-answer"):
                    meter.read(stream)
            assert len(asked) == 1, "the others do not wait again"
        with bench.changed(server, garble_at_s=0), raises_code("read-failed.malformed"):
            meter.read(first)
        with bench.changed(server, sentinel_at_s=0):
            until(lambda: is_read(meter, first), "it answers again")
            with raises_code("read-failed.unknown"):
                meter.read(first)
            state = next(s for s in others if s.table == "phases")
            row = dict(zip([c.name for c in state.channels], meter.read(state), strict=True))
            assert math.isnan(row["power_w"])
            assert row["voltage_v"] == 230, "what is known is still read"


def test_wrong_logins_are_denied_each_with_its_reason(steady, bench):
    silent = {"timeout_s": 1.5}  # the device drops such requests: this is waited for
    wrong = [
        ({"password": "not the password"}, "denied.password"),
        ({"user": "nobody"}, "denied.user"),
        ({"privacy_password": "not the password"} | silent, "denied.privacy"),
        ({"auth": "SHA-256"}, "denied.password"),
    ]
    for change, code in wrong:
        with raises_code(code) as raised:
            meters.open_meter("snmp", steady | change)
        assert "not the password" not in str(raised.value)
    with bench.served(refuse=True) as (_, config), raises_code("denied.password"):
        meters.open_meter("snmp", config)
    with bench.served(login="v2c", refuse=True) as (_, config), raises_code("denied.community") as raised:
        meters.open_meter("snmp", config | silent)
    assert config["community"] not in str(raised.value)


@pytest.mark.parametrize("level", ["authPriv", "authNoPriv"])
def test_a_device_with_its_clock_set_back_is_followed(steady, level):
    config = {k: v for k, v in steady.items() if level == "authPriv" or not k.startswith("privacy")}
    with opened(config, outlets=[1]) as meter:
        meter._session._security._time += 100_000  # as after a restart: what was known is ahead of the device
        assert rows(meter)["outlet:pdu1.1"]["power_w"] > 0


def test_outlets_that_are_not_there_list_those_that_are(steady):
    for outlets, code, words in (
        ([77], "config.no-row", "node psu 1"),
        (["node psu 1", 1], "config.same-row", "1"),
        ([6], "unavailable.not-metered", "node psu 1"),
    ):
        with raises_code(code) as raised:
            meters.open_meter("snmp", steady | {"outlets": outlets})
        assert words in str(raised.value)
    with raises_code("unavailable.other-maker"):
        meters.open_meter("snmp", steady | {"vendor": "raritan"})


def test_what_is_no_pdu_is_shown(bench, monkeypatch):
    from joulelab.instruments.snmp import device as snmp_device

    with bench.served(vendor="sentry4", login="v2c") as (_, config):
        known = {k: v for k, v in snmp_device.load_tables().items() if k not in ("sentry3", "sentry4")}
        monkeypatch.setattr(snmp_device, "load_tables", lambda: known)
        with raises_code("unavailable.unknown-maker") as raised:
            meters.open_meter("snmp", config)
        assert "1718.4" in raised.value.why
        assert "Sentry Smart PDU" in raised.value.why


def test_the_table_is_found_by_trying_where_the_object_id_is_strange(bench):
    with bench.served(vendor="ups", login="v2c") as (_, config), opened(config) as meter:
        assert meter.streams()[0].model == "UPS 10 kVA"


def test_the_doctor_tells_causes_apart(steady, bench):
    def explain(**change):
        settings = steady | change
        try:
            meters.open_meter("snmp", settings).close()
        except JoulelabError as error:
            return error.code, " ".join(snmp.diagnose(settings, error))
        raise AssertionError("it opened")

    assert explain(address="no-such-host.invalid")[0] == "read-failed.unresolved"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        code, found = explain(address=f"127.0.0.1:{port}", timeout_s=0.2)
        assert code == "read-failed.no-answer"
        assert "Nothing came back" in found
    assert explain(address=f"127.0.0.1:{port}")[0] == "read-failed.port-closed"
    assert explain(user="nobody")[0] == "denied.user"
    assert explain(privacy_password="not the password", timeout_s=1.5)[0] == "denied.privacy"
    assert "1 (node psu 1, AA1)" in explain(outlets=[77])[1]
    with bench.served(login="v2c", refuse=True) as (_, config):
        found = " ".join(snmp.diagnose(config | {"timeout_s": 0.2}, ReadFailed("x")))
        assert "there is no answer" in found
        assert config["community"] not in found
