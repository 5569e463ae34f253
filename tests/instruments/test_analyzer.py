"""The analyzer meter against a served WT300E: over socket and VXI-11, slow, silent, busy, killed, or not there."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys

import pytest
from tests.codes import raises_code
from tests.instruments.analyzer_bench import CHANNELS, list_warnings, now_s, rows_of, wait_for_energy
from tests.instruments.listening import listening
from tests.waiting import until

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import MeterError, ReadFailed
from joulelab.instruments import analyzer
from joulelab.instruments.analyzer import client as scpi
from joulelab.instruments.analyzer import doctor
from joulelab.twin.servers.server_process import ServerProcess

pytestmark = pytest.mark.system

SETTINGS = (
    ":INP:VOLT:RANG?;:INP:CURR:RANG?;:RATE?;:NUM:NORM:NUM?;:NUM:NORM:ITEM1?;:MEAS:AVER:STAT?;:INTEG:STAT?;"
    ":INTEG:MODE?;:STAT:FILT1?;:COMM:REM?;:COMM:HEAD?"
)


def config_of(served, transport="vxi11", **more):
    entry = {k: v for k, v in served.entries["analyzer"].items() if k != "meter"}
    return entry | {"resource": served.facts[transport], "timeout_s": 60.0} | more


@pytest.mark.parametrize("transport", ["socket", "vxi11"])
def test_reads_power_and_energy(truth, bench, transport):
    meter = bench().open(transport)
    (stream,) = meter.streams()
    assert [c.name for c in stream.channels] == CHANNELS
    assert (stream.scope, stream.pace, stream.period_s) == ("node.ac", "instrument", 0.1)
    assert stream.model == "YOKOGAWA WT310E"
    rows = rows_of(meter, 3)
    watts = truth.power("node.ac", truth.start_ns + 10**8)
    for row in rows:
        assert row["power_w"] == pytest.approx(watts, abs=0.51)  # the last digit of a 30 kW range is 1 W
        assert row["apparent_va"] == pytest.approx(row["power_w"] / row["power_factor"], rel=1e-3)
        assert (row["voltage_v"], row["frequency_hz"]) == (230.0, 50.0)
    joules = [row["energy_j"] for row in rows]
    assert joules == sorted(set(joules)), "each row is another update"
    (event,) = meter.events()
    assert (event["what"], event["ranges"]["1"]["amperes"], event["integration"]) == ("found", 5.0, "STAR")


@pytest.mark.campaign
@pytest.mark.parametrize("flaws", [{}, {"skip_share": 0.5}, {"late_s": 0.045}])
def test_missed_updates_in_real_time(truth, bench, flaws):
    meter = bench(**flaws).open()
    (first,), begin_ns = rows_of(meter, 1), monotonic_ns()  # the time of an update
    rows = rows_of(meter, 20)
    updates = (monotonic_ns() - begin_ns) / 1e8
    missed = rows[-1]["missed"] - first["missed"]
    joules = rows[-1]["energy_j"] - first["energy_j"]
    assert len(rows) + missed == pytest.approx(updates, abs=3)
    assert joules == pytest.approx(rows[-1]["power_w"] * 0.1 * (len(rows) + missed), abs=0.201 * rows[-1]["power_w"])


def test_a_reset_integral_falls_and_goes_on(truth, bench):
    served = bench()
    meter = served.open()
    rows_of(meter, 2)
    reset_ns = monotonic_ns()
    served.change(reset_at_s=now_s(truth))

    def is_reset():
        (row,) = rows_of(meter, 1)
        return row["energy_j"] <= truth.energy("node.ac", reset_ns, monotonic_ns()) and row

    wait_for_energy(meter, until(is_reset, "the reset shows")["energy_j"])


def test_original_settings_are_restored_after_a_kill(truth, bench, state_home):
    served = bench(period_s=0.25, window_s=0.25)
    link = served.link()
    link.write(":COMM:HEAD OFF;:NUM:NORM:NUM 2;ITEM1 S,1;:MEAS:AVER:STAT ON;:INTEG:MODE CONT;:STAT:FILT1 BOTH")
    found = link.query(SETTINGS)
    entry = config_of(served.served, "socket", current_a=10, voltage_v=600.0)
    code = (
        "import json, sys; from joulelab.instruments import analyzer;"
        "meter = analyzer.open_meter(json.loads(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    words, pipe = [sys.executable, "-c", code, json.dumps(entry)], subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout.readline() == "open\n"
        during = link.query(SETTINGS)
        assert ";STAR;" in during
        (path,) = state_home.glob("joulelab/analyzer-*")
        killed_ns = monotonic_ns()
        child.kill()
    assert link.query(SETTINGS) == during, "the killed process restores nothing"
    meter = served.open(current_a=5, voltage_v=300.0, period_s=0.1)  # its integration is in the way of other ranges
    assert rows_of(meter, 2)[-1]["energy_j"] < truth.energy("node.ac", killed_ns, monotonic_ns()), "from zero again"
    meter.close()
    assert link.query(SETTINGS) == found
    assert not path.exists()


def test_a_folder_that_cannot_be_written_costs_only_the_copy_on_disk(bench, state_home):
    (state_home / "joulelab").write_text("a file")
    meter = bench().open()
    assert rows_of(meter, 1)[0]["power_w"] > 100
    assert "restored after a kill" in list_warnings(meter)
    meter.close()


def test_dies_and_returns_and_another_one_returns(truth, tmp_path):
    with contextlib.ExitStack() as stack:
        with ServerProcess("analyzer", truth.path, tmp_path) as server:
            meter = analyzer.open_meter(config_of(server.served))
            stack.callback(meter.close)
            (stream,) = meter.streams()
            before = meter.read(stream)
            killed_ns = monotonic_ns()
            server.kill()
            for _ in range(2):
                with pytest.raises(ReadFailed) as raised:
                    meter.read(stream)
                assert raised.value.code != "read-failed.no-answer", "refused at once, not after the timeout"
            server.start()
            after = meter.read(stream)
            assert after[0] == before[0]
            assert after[1] < truth.energy("node.ac", killed_ns, monotonic_ns()), "it integrates from zero again"
        other = {"identity": "YOKOGAWA,WT310E,OTHER,F1"}
        with ServerProcess("analyzer", truth.path, tmp_path, flaws=other) as second:
            assert second.served.ports == server.served.ports
            with pytest.raises(ReadFailed):
                meter.read(stream)
            with raises_code("device-lost.other-instrument"):
                meter.read(stream)


def test_slow_answers(bench):
    rows_of(bench(latency_s=0.02).open(), 2)
    for transport in ("socket", "vxi11"):
        with raises_code("read-failed.no-answer"):
            bench(latency_s=30.0).open(transport, timeout_s=0.4)


def is_read(meter):
    try:
        (row,) = rows_of(meter, 1)
    except ReadFailed:
        return False
    assert 4000 < row["power_w"] < 5000
    return True


@pytest.mark.parametrize(
    ("transport", "flaw"), [("socket", "silent_at_s"), ("vxi11", "silent_at_s"), ("vxi11", "garble_at_s")]
)
def test_goes_silent_or_wrong_and_is_read_again(bench, transport, flaw):
    served = bench()
    meter = served.open(transport, timeout_s=3.0)
    assert is_read(meter)
    served.change(**{flaw: 0.0})
    assert [is_read(meter) for _ in range(2)] == [False] * 2
    served.change(**{flaw: None})
    until(lambda: is_read(meter), "it is read again")


def test_another_instrument_is_refused(bench):
    served = bench(identity="ACME,Toaster 3,42,1.0")
    with raises_code("unavailable.unknown-model") as raised:
        served.open()
    assert "Another instrument" in analyzer.diagnose(config_of(served.served), raised.value)[0]


def test_busy_with_another_client(bench):
    served = bench(refuse=True)
    with raises_code("read-failed.busy") as raised:
        served.open()
    assert "end other programs" in analyzer.diagnose(config_of(served.served), raised.value)[0]


def test_lock_of_another_client(bench):
    served = bench()
    holder = scpi.open_link(scpi.parse_resource(served.served.facts["vxi11"], "test"), "test", 60.0)
    session = holder._resource.visalib.sessions[holder._resource.session]
    assert session.interface.device_lock(session.link, 0, 0) == 0
    with pytest.raises(ReadFailed) as raised:
        served.open()
    assert "Another client" in analyzer.diagnose(config_of(served.served), raised.value)[-1]
    holder.close()
    assert rows_of(served.open(), 1)


def explain(resource):
    with pytest.raises(MeterError) as raised:
        analyzer.open_meter({"resource": resource, "timeout_s": 0.6})
    return " ".join(analyzer.diagnose({"resource": resource}, raised.value))


def test_the_doctor_explains_networks(monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert "is closed" in explain(f"TCPIP::127.0.0.1::{free}::SOCKET")
    assert "is closed" in explain(f"TCPIP::127.0.0.1,{free}::INSTR")
    assert "does not resolve" in explain("TCPIP::no-such-host.invalid::5025::SOCKET")
    with listening(lambda client: client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as port:
        assert "no SCPI instrument" in explain(f"TCPIP::127.0.0.1::{port}::SOCKET")
        assert "no VXI-11" in explain(f"TCPIP::127.0.0.1,{port}::INSTR")


def test_the_doctor_knows_a_raw_socket_from_vxi11(bench, monkeypatch):
    ports = bench().served.ports
    monkeypatch.setattr(doctor, "PROBE_S", 60.0)
    assert doctor.probe_text("127.0.0.1", ports["socket"]).startswith(b"YOKOGAWA")
    monkeypatch.setattr(doctor, "PROBE_S", 0.2)
    assert doctor.probe_text("127.0.0.1", ports["vxi11"]) == b""


def test_the_doctor_explains_serial_ports(tmp_path):
    assert "does not exist" in explain(f"ASRL{tmp_path}/ttyUSB9::INSTR")
    main, port = os.openpty()
    assert "no analyzer answers at 9600 baud" in explain(f"ASRL{os.ttyname(port)}::INSTR")
    os.close(main)
    os.close(port)
