"""The twin's Modbus server, asked in frames written by hand: neither our client nor its library takes part."""

from __future__ import annotations

import os
import socket
import struct
import time

import pytest

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Unavailable
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers import modbus
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

pytestmark = pytest.mark.system


@pytest.fixture
def truth(tmp_path):
    begin = monotonic_ns() - 100 * NS
    with Truth.create(tmp_path / "truth", Node(), profiles={"gpu": profile.constant(0.5)}, start_ns=begin) as made:
        yield made


def ask(port, function, address, count, unit=1, timeout=60.0):
    """Return the bytes after the unit id."""
    with socket.create_connection(("127.0.0.1", port), timeout) as peer:
        peer.sendall(struct.pack(">HHHBBHH", 1, 0, 6, unit, function, address, count))
        head = peer.recv(7, socket.MSG_WAITALL)
        return peer.recv(struct.unpack(">HHHB", head)[2] - 1, socket.MSG_WAITALL)


def floats(answer):
    assert answer[1] == len(answer) - 2
    return struct.unpack(f">{answer[1] // 4}f", answer[2:])


def watt_hours(truth):
    return truth.energy("node.ac", truth.start_ns, monotonic_ns()) / 3600


def test_registers_show_the_twin(truth, tmp_path):
    with modbus.serve(truth, tmp_path, modbus.FLAWS, 0) as served:
        port = served.ports["modbus"]
        watts = truth.power("node.ac", monotonic_ns())
        assert floats(ask(port, 3, 19026, 2))[0] == pytest.approx(watts, abs=0.1)
        assert floats(ask(port, 4, 19000, 6)) == (230.0, 230.0, 230.0)
        before = watt_hours(truth)
        assert before - 3 <= floats(ask(port, 3, 19068, 2))[0] <= watt_hours(truth)
        assert ask(port, 3, 18999, 2) == b"\x83\2"
        assert ask(port, 3, 19121, 2) == b"\x83\2"
        assert ask(port, 3, 19000, 2, unit=9) == b"\x83\x0b"
        assert served.entries["modbus1"]["feeds"] == "node.ac"


def test_outlets_and_integers(truth, tmp_path):
    with modbus.serve(truth, tmp_path, modbus.ModbusFlaws(layout="xerus"), 0) as served:
        port = served.ports["modbus"]
        shown = [floats(ask(port, 3, 32786 + n * modbus.STRIDE, 2))[0] for n in range(4)]
        now = monotonic_ns()
        assert shown == pytest.approx([truth.power(f"outlet:{n}", now) for n in (1, 2, 3, 4)], abs=0.2)
        assert floats(ask(port, 3, 12306, 2))[0] == pytest.approx(sum(shown), abs=0.5)
    with modbus.serve(truth, tmp_path, modbus.ModbusFlaws(layout="iem3000", base_j=3.6e9), 0) as served:
        before = watt_hours(truth)
        counted = struct.unpack(">q", ask(served.ports["modbus"], 3, 3203, 4)[2:])[0]
        assert before - 3 <= counted - 1_000_000 <= watt_hours(truth)


def test_flaws_show_on_the_wire(truth, tmp_path):
    watts = truth.power("node.ac", monotonic_ns())
    cases = {
        "gain_error": (0.1, lambda answer: floats(answer)[0] == pytest.approx(1.1 * watts, abs=0.2)),
        "quantum_w": (100.0, lambda answer: floats(answer)[0] % 100 == 0),
        "exception": (6, lambda answer: answer == b"\x83\6"),
        "refuse": (True, lambda answer: answer == b"\x83\1"),
        "nan": (True, lambda answer: floats(answer)[0] != floats(answer)[0]),
        "word_order": ("little", lambda answer: floats(b"\3\4" + answer[4:] + answer[2:4])[0] > 1000),
    }  # fmt: skip
    for name, (value, check) in cases.items():
        with modbus.serve(truth, tmp_path, modbus.ModbusFlaws(**{name: value}), 0) as served:
            assert check(ask(served.ports["modbus"], 3, 19026, 2)), name
    with modbus.serve(truth, tmp_path, modbus.ModbusFlaws(silent_at_s=0.0), 0) as served, pytest.raises(TimeoutError):
        ask(served.ports["modbus"], 3, 19026, 2, timeout=0.3)
    with modbus.serve(truth, tmp_path, modbus.ModbusFlaws(latency_s=0.3), 0) as served:
        begin = time.monotonic()
        ask(served.ports["modbus"], 3, 19026, 2)
        assert time.monotonic() - begin >= 0.3


def test_wrong_layouts_and_taken_ports(truth, tmp_path):
    with (
        pytest.raises(ConfigError, match="janitza"),
        modbus.serve(truth, tmp_path, modbus.ModbusFlaws(layout="jan"), 0),
    ):
        pass
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match="port"), modbus.serve(truth, tmp_path, modbus.FLAWS, port):
            pass


def test_it_returns_on_its_port_and_ends_with_its_owner(truth, tmp_path):
    with ServerProcess("modbus", truth.path, tmp_path / "server") as process:
        port = process.served.ports["modbus"]
        process.kill()
        process.start()
        assert process.served.ports["modbus"] == port
        assert len(ask(port, 3, 19026, 2)) == 6
        pid = process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
