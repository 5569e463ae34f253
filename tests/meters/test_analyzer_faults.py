"""The analyzer meter when the instrument is slow, silent, busy, wrong, or not there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

import pytest
from tests.meters.analyzer_bench import now_s, rows_of, told

from joulelab.core.errors import DeviceLost, MeterError, ReadFailed, Unavailable
from joulelab.meters import analyzer
from joulelab.transports import scpi
from joulelab.twins.servers.process import ServerProcess

pytestmark = pytest.mark.system


def test_dies_and_returns(truth, tmp_path):
    with ServerProcess("analyzer", truth.path, tmp_path) as server, contextlib.ExitStack() as stack:
        entry = {k: v for k, v in server.served.entries["analyzer"].items() if k != "meter"}
        meter = analyzer.open_meter(entry | {"timeout_s": 5.0})
        stack.callback(meter.close)
        (stream,) = meter.streams()
        before = meter.read(stream)
        server.kill()
        begin = time.monotonic()
        for _ in range(2):
            with pytest.raises(ReadFailed):
                meter.read(stream)
        assert time.monotonic() - begin < 4  # refused at once, not after the timeout
        server.start()
        after = meter.read(stream)
        assert after[0] == before[0]
        assert after[1] < before[1]  # it integrates from zero again
        assert "reconnected" in told(meter)


def test_another_instrument_returns(truth, tmp_path):
    with contextlib.ExitStack() as stack:
        with ServerProcess("analyzer", truth.path, tmp_path) as server:
            entry = {k: v for k, v in server.served.entries["analyzer"].items() if k != "meter"}
            meter = analyzer.open_meter(entry)
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
    rows = rows_of(meter, 3)
    assert len({row["energy_j"] for row in rows}) == 3


@pytest.mark.parametrize("transport", ["socket", "vxi11"])
def test_answers_slower_than_the_timeout_are_none(bench, transport):
    begin = time.monotonic()
    with pytest.raises(ReadFailed) as raised:
        bench(latency_s=1.5).open(transport, timeout_s=0.4)
    assert time.monotonic() - begin < 3.5
    assert "within 0.4 s" in str(raised.value)


@pytest.mark.parametrize("transport", ["socket", "vxi11"])
def test_goes_silent_and_speaks_again(truth, bench, transport):
    at_s = now_s(truth) + 0.6
    served = bench(silent_at_s=at_s, silent_for_s=0.4)
    meter = served.open(transport, timeout_s=0.5)
    failures, good = 0, 0
    until = time.monotonic() + 8
    while time.monotonic() < until and not (failures and good > 2):
        try:
            row = rows_of(meter, 1)[0]
        except ReadFailed:
            failures, good = failures + 1, 0
        else:
            assert 4000 < row["power_w"] < 5000
            good += 1
    assert failures
    assert good > 2


def test_garbled_answers_are_no_numbers(truth, bench):
    at_s = now_s(truth) + 0.8
    meter = bench(garble_at_s=at_s, garble_for_s=0.4).open()
    seen: list[float] = []
    failures = 0
    until = time.monotonic() + 8
    while time.monotonic() < until and not (failures and len(seen) > 3):
        try:
            seen.append(rows_of(meter, 1)[0]["power_w"])
        except ReadFailed:
            failures += 1
            seen.clear()
            time.sleep(0.1)
    assert failures
    assert len(set(seen)) == 1
    assert 4000 < seen[0] < 5000


def test_updates_that_do_not_come_are_counted(bench):
    meter = bench(skip_share=0.5).open()
    begin, first = time.monotonic(), rows_of(meter, 1)[0]
    rows = rows_of(meter, 12)
    updates = (time.monotonic() - begin) / 0.1
    missed = rows[-1]["missed"] - first["missed"]
    assert missed >= 1
    assert len(rows) + 1 + missed == pytest.approx(updates, abs=2.5)


def test_updates_missed_by_a_busy_host_are_counted(bench):
    meter = bench().open()
    before = rows_of(meter, 1)[0]
    time.sleep(0.45)
    after = rows_of(meter, 2)[-1]
    missed = after["missed"] - before["missed"]
    joules = after["energy_j"] - before["energy_j"]
    assert missed >= 2
    assert joules == pytest.approx(after["power_w"] * 0.1 * (2 + missed), rel=0.01)
    assert told(meter)["missed"]["text"].endswith("not read")


def test_late_updates_are_not_taken_for_missed(bench):
    rows = rows_of(bench(late_s=0.045).open(), 10)
    assert rows[-1]["missed"] - rows[0]["missed"] <= 3  # of 10: those of a busy machine
    joules = [row["energy_j"] for row in rows]
    assert joules == sorted(set(joules))


def test_no_update_is_a_failure(truth, bench):
    served = bench(stall_at_s=now_s(truth) + 0.8)
    meter = served.open(timeout_s=0.6)
    with pytest.raises(ReadFailed):
        rows_of(meter, 60)


def test_polls_where_it_cannot_wait(bench):
    served = bench(has_wait=False)
    meter = served.open()
    assert "poll" in told(meter)
    rows = rows_of(meter, 4)
    assert len({row["energy_j"] for row in rows}) == 4
    asked = bench().open(wait="poll")
    assert len({row["energy_j"] for row in rows_of(asked, 2)}) == 2


def test_other_header_of_the_rate(bench):
    meter = bench(has_rate=False).open("socket", timeout_s=0.6, period_s=0.25)
    assert meter.streams()[0].period_s == 0.25


def test_over_range_is_no_number(bench):
    served = bench()
    meter = served.open(integration="off")
    rows_of(meter, 1)
    served.link().write(":INP:CURR:RANG 0.5")  # 10 A with the transformer: 140 % are passed
    with pytest.raises(ReadFailed, match="over range"):
        rows_of(meter, 3)
    served.link().write(":INP:CURR:RANG 5")
    time.sleep(0.2)
    rows = rows_of(meter, 2)
    assert rows[-1]["power_w"] > 4000
    events = meter.events()
    assert any(e["what"] == "over-range" and e["element"] == 1 for e in events)


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


@contextlib.contextmanager
def listener(answer):
    """Listen on a free port and say one thing to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve_one():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    client.sendall(answer)
                    clients.append(client)

        clients: list[socket.socket] = []
        threading.Thread(target=serve_one, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for client in clients:
            client.close()


def test_doctor_tells_closed_ports_names_and_others_apart(bench):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert "nothing listens" in explained({"resource": f"TCPIP::127.0.0.1::{free}::SOCKET"})
    assert "nothing listens" in explained({"resource": f"TCPIP::127.0.0.1,{free}::INSTR"})
    assert "does not resolve" in explained({"resource": "TCPIP::no-such-host.invalid::5025::SOCKET"})
    with listener(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        assert "no SCPI instrument" in explained({"resource": f"TCPIP::127.0.0.1::{port}::SOCKET"})
        assert "does not speak VXI-11" in explained({"resource": f"TCPIP::127.0.0.1,{port}::INSTR"})
    ports = bench().served.ports
    assert "is a raw socket" in explained({"resource": f"TCPIP::127.0.0.1,{ports['socket']}::INSTR"})
    assert "speaks VXI-11" in explained({"resource": f"TCPIP::127.0.0.1::{ports['vxi11']}::SOCKET"})


def test_doctor_tells_of_serial_ports(tmp_path):
    assert "does not exist" in explained({"resource": f"ASRL{tmp_path}/ttyUSB9::INSTR"})
    main, port = os.openpty()
    name = os.ttyname(port)
    assert "no analyzer answers at 9600 baud" in explained({"resource": f"ASRL{name}::INSTR"})
    os.close(main)
    os.close(port)
