"""The analyzer meter when the instrument is slow, silent, busy, wrong, or not there."""

from __future__ import annotations

import contextlib
import os
import socket
import time

import pytest
from tests.instruments.analyzer_bench import rows_of, told, wait_for_energy
from tests.instruments.listening import listening
from tests.waiting import until

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import DeviceLost, MeterError, ReadFailed, Unavailable
from joulelab.instruments import analyzer
from joulelab.instruments.analyzer import client as scpi
from joulelab.instruments.analyzer import doctor
from joulelab.instruments.analyzer import probe as scpi_probe
from joulelab.twin.servers.server_process import ServerProcess

pytestmark = pytest.mark.system


def test_dies_and_returns(truth, tmp_path):
    with ServerProcess("analyzer", truth.path, tmp_path) as server, contextlib.ExitStack() as stack:
        entry = {k: v for k, v in server.served.entries["analyzer"].items() if k != "meter"}
        meter = analyzer.open_meter(entry | {"timeout_s": 60.0})
        stack.callback(meter.close)
        (stream,) = meter.streams()
        before = meter.read(stream)
        killed_ns = monotonic_ns()
        server.kill()
        for _ in range(2):
            with pytest.raises(ReadFailed) as raised:
                meter.read(stream)
            assert "within" not in str(raised.value), "refused at once, not after the timeout"
        server.start()
        after = meter.read(stream)
        assert after[0] == before[0]
        assert after[1] < truth.energy("node.ac", killed_ns, monotonic_ns()), "it integrates from zero again"
        assert "reconnected" in told(meter)


def test_another_instrument_returns(truth, tmp_path):
    with contextlib.ExitStack() as stack:
        with ServerProcess("analyzer", truth.path, tmp_path) as server:
            entry = {k: v for k, v in server.served.entries["analyzer"].items() if k != "meter"}
            meter = analyzer.open_meter(entry | {"timeout_s": 60.0})
            stack.callback(meter.close)
            rows_of(meter, 1)
        other = {"identity": "YOKOGAWA,WT310E,OTHER,F1"}
        with ServerProcess("analyzer", truth.path, tmp_path, flaws=other) as second:
            assert second.served.ports == server.served.ports
            with pytest.raises(ReadFailed):
                rows_of(meter, 1)
            with pytest.raises(DeviceLost, match="another instrument"):
                rows_of(meter, 1)


def test_slow_answers(bench):
    meter = bench(latency_s=0.02).open()
    (row,) = rows_of(meter, 1)
    wait_for_energy(meter, row["energy_j"])


@pytest.mark.parametrize("transport", ["socket", "vxi11"])
def test_answers_slower_than_the_timeout_are_none(bench, transport):
    with pytest.raises(ReadFailed) as raised:
        bench(latency_s=30.0).open(transport, timeout_s=0.4)
    assert "within 0.4 s" in str(raised.value)


def is_read(meter):
    try:
        (row,) = rows_of(meter, 1)
    except ReadFailed:
        return False
    assert 4000 < row["power_w"] < 5000
    return True


@pytest.mark.parametrize("transport", ["socket", "vxi11"])
def test_goes_silent_and_speaks_again(truth, bench, transport):
    served = bench()
    meter = served.open(transport, timeout_s=3.0)
    assert is_read(meter)
    served.change(silent_at_s=0.0)
    assert not is_read(meter)
    served.change(silent_at_s=None)
    until(lambda: is_read(meter), "it is read again")


def test_garbled_answers_are_no_numbers(truth, bench):
    served = bench()
    meter = served.open()
    assert is_read(meter)
    served.change(garble_at_s=0.0)
    assert [is_read(meter) for _ in range(4)] == [False] * 4
    served.change(garble_at_s=None)
    until(lambda: is_read(meter), "it is read again")


@pytest.mark.campaign
def test_updates_that_do_not_come_are_counted(bench):
    meter = bench(skip_share=0.5).open()
    begin, first = time.monotonic(), rows_of(meter, 1)[0]
    rows = rows_of(meter, 12)
    updates = (time.monotonic() - begin) / 0.1
    missed = rows[-1]["missed"] - first["missed"]
    assert missed >= 1
    assert 0.6 * updates < len(rows) + 1 + missed < updates + 2.5  # a busy host loses some; in virtual time none


@pytest.mark.campaign
def test_updates_missed_by_a_busy_host_are_counted(bench):
    meter = bench().open()
    before = rows_of(meter, 1)[0]
    time.sleep(0.45)
    after = rows_of(meter, 2)[-1]
    missed = after["missed"] - before["missed"]
    joules = after["energy_j"] - before["energy_j"]
    assert missed >= 2
    assert joules == pytest.approx(after["power_w"] * 0.1 * (2 + missed), abs=0.101 * after["power_w"])
    assert told(meter)["missed"]["text"].endswith("not read")


@pytest.mark.campaign
def test_late_updates_are_not_taken_for_missed(bench):
    meter = bench(late_s=0.045).open()
    begin, rows = time.monotonic(), rows_of(meter, 10)
    updates = (time.monotonic() - begin) / 0.1
    assert len(rows) + rows[-1]["missed"] - rows[0]["missed"] < updates + 2.5
    joules = [row["energy_j"] for row in rows]
    assert joules == sorted(joules)


def test_polls_where_it_cannot_wait(bench):
    served = bench(has_wait=False)
    meter = served.open()
    assert "poll" in told(meter)
    for polled in (meter, bench().open(wait="poll")):
        (row,) = rows_of(polled, 1)
        wait_for_energy(polled, row["energy_j"])


def test_another_instrument_is_refused(bench):
    served = bench(identity="ACME,Toaster 3,42,1.0")
    with pytest.raises(Unavailable) as raised:
        served.open()
    assert "ACME,Toaster 3" in str(raised.value)
    assert "Another instrument answers" in analyzer.diagnose(config_of(served), raised.value)[0]


def config_of(served, transport="vxi11", **more):
    entry = {k: v for k, v in served.served.entries["analyzer"].items() if k != "meter"}
    return entry | {"resource": served.served.facts[transport]} | more


def test_busy_with_another_client(bench):
    served = bench(refuse=True)
    with pytest.raises(ReadFailed, match="another client") as raised:
        served.open()
    assert "end other programs" in analyzer.diagnose(config_of(served), raised.value)[0]


def test_lock_of_another_client(bench):
    served = bench()
    address = scpi.parse_resource(served.served.facts["vxi11"], "test")
    holder = scpi.open_link(address, "test", 5.0)
    session = holder._resource.visalib.sessions[holder._resource.session]
    assert session.interface.device_lock(session.link, 0, 0) == 0
    with pytest.raises(ReadFailed, match="another client holds"):
        served.open()
    holder.close()
    assert rows_of(served.open(), 1)


def explained(config):
    with pytest.raises(MeterError) as raised:
        analyzer.open_meter(config | {"timeout_s": 0.6})
    return " ".join(analyzer.diagnose(config, raised.value))


def test_doctor_tells_closed_ports_names_and_others_apart(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert "nothing listens" in explained({"resource": f"TCPIP::127.0.0.1::{free}::SOCKET"})
    assert "nothing listens" in explained({"resource": f"TCPIP::127.0.0.1,{free}::INSTR"})
    assert "does not resolve" in explained({"resource": "TCPIP::no-such-host.invalid::5025::SOCKET"})
    with listening(lambda client: client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as port:
        assert "no SCPI instrument" in explained({"resource": f"TCPIP::127.0.0.1::{port}::SOCKET"})
        assert "does not speak VXI-11" in explained({"resource": f"TCPIP::127.0.0.1,{port}::INSTR"})


def test_probes_tell_a_raw_socket_from_vxi11(bench):
    ports = bench().served.ports
    assert scpi_probe.probe_text("127.0.0.1", ports["socket"], 60.0).startswith(b"YOKOGAWA")
    assert scpi_probe.probe_rpc("127.0.0.1", ports["vxi11"], 60.0)
    assert not scpi_probe.probe_rpc("127.0.0.1", ports["socket"], 0.2)
    assert scpi_probe.probe_text("127.0.0.1", ports["vxi11"], 0.2) == b""


def test_doctor_tells_of_serial_ports(tmp_path):
    assert "does not exist" in explained({"resource": f"ASRL{tmp_path}/ttyUSB9::INSTR"})
    main, port = os.openpty()
    name = os.ttyname(port)
    assert "no analyzer answers at 9600 baud" in explained({"resource": f"ASRL{name}::INSTR"})
    os.close(main)
    os.close(port)
