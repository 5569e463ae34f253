"""SCPI links: by socket, VXI-11 and a serial line; USBTMC and GPIB as simulated exchanges; dead ones do not hang."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import termios
import threading
import tty
from types import SimpleNamespace

import pytest
from tests.codes import raises_code
from tests.instruments.listening import listening
from tests.rows import every_row
from tests.waiting import until

from joulelab.instruments import analyzer
from joulelab.instruments.analyzer import client as scpi
from joulelab.twin.servers._scpi import AnalyzerFlaws, Instrument
from joulelab.twin.servers.analyzer import serve


@pytest.fixture
def served(truth, tmp_path):
    with serve(truth, tmp_path, AnalyzerFlaws(), 0) as served:
        yield served


def open_at(resource, timeout_s=60.0, **options):
    return scpi.open_link(scpi.parse_resource(resource, "meter lab"), "meter lab", timeout_s, **options)


@pytest.mark.system
@pytest.mark.parametrize("transport", ["socket", "vxi11"])
def test_queries_and_commands(served, transport):
    link = open_at(served.facts[transport])
    assert link.query("*IDN?").startswith("YOKOGAWA,WT310E,")
    link.write(":COMM:HEAD OFF")
    assert link.query(":INP:VOLT:RANG?;:INP:CURR:RANG?") == "300.00E+00;5.0000E+00"
    link.close()
    link.close()


@pytest.mark.system
@pytest.mark.parametrize("transport", ["socket", "vxi11"])
def test_a_query_without_an_answer_ends(served, transport):
    link = open_at(served.facts[transport], 0.4)
    with raises_code("read-failed.no-answer"):
        link.query(":NO:SUCH?")
    link.abandon()


@pytest.mark.system
def test_a_silent_server_does_not_hang():
    with listening(lambda client: None) as port:
        with raises_code("read-failed.no-answer") as raised:
            open_at(f"TCPIP::127.0.0.1,{port}::INSTR", 0.5)
        assert raised.value.next == "joulelab doctor lab"


@pytest.mark.system
def test_a_closed_connection_is_noticed_at_once():
    with listening(lambda client: client.close()) as port:
        link = open_at(f"TCPIP::127.0.0.1::{port}::SOCKET", 60.0)
        with raises_code("read-failed.link-broken"):
            link.query("*IDN?")
        link.abandon()


@pytest.mark.system
@pytest.mark.parametrize("sent", [b"7" * 20_000, b"\xff\xfe\x80\n"])
def test_an_answer_without_end_or_text_is_refused(sent):
    with listening(lambda client: client.sendall(sent)) as port:
        link = open_at(f"TCPIP::127.0.0.1::{port}::SOCKET")
        with raises_code("read-failed.wrong-answer"):
            link.query("*IDN?")
        link.abandon()


def test_resources():
    parsed = [
        scpi.parse_resource(text, "x")
        for text in (
            "TCPIP::10.0.0.5::INSTR",
            "TCPIP::10.0.0.5,1024::INSTR",
            "TCPIP0::wt310::10001::SOCKET",
            "ASRL/dev/ttyUSB0::INSTR",
            "USB::0x0b21::0x0025::C2QG12345V::INSTR",
            "GPIB0::1::INSTR",
        )
    ]
    assert [(a.interface, a.host, a.port, a.path) for a in parsed] == [
        ("vxi11", "10.0.0.5", 0, ""),
        ("vxi11", "10.0.0.5", 1024, ""),
        ("socket", "wt310", 10001, ""),
        ("serial", "", 0, "/dev/ttyUSB0"),
        ("usb", "", 0, ""),
        ("gpib", "", 0, ""),
    ]
    for wrong in (
        "",
        "wt310",
        "TCPIP::h::0::SOCKET",
        "TCPIP::h,x::INSTR",
        "TCPIP::h::hislip0::INSTR",
        "VXI0::1::INSTR",
    ):
        with raises_code("config.wrong-resource") as raised:
            scpi.parse_resource(wrong, "x")
        assert "TCPIP::HOST::INSTR" in str(raised.value.next)


@every_row(
    ("error", "code", "word"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "denied.device", "dialout"),
        (FileNotFoundError(errno.ENOENT, "No such file"), "unavailable.no-device", "doctor"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "read-failed.no-link", "refused"),
        (ValueError("Please install PyUSB to use this resource type.\nNo"), "missing-dependency.driver", "install"),
        (Exception("error creating link: 11"), "read-failed.busy", "another client"),
        (Exception("error creating link: 3"), "read-failed.no-link", "error 3"),
        (ValueError("No device found."), "unavailable.no-device", "No device"),
    ],
)
def test_failures_to_open_have_codes(error, code, word):
    address = scpi.Address("ASRL/dev/ttyS7::INSTR", "serial", path="/dev/ttyS7")
    found = scpi.explain_open_error(error, address, "meter lab")
    assert found.code == code
    assert word in str(found)


@contextlib.contextmanager
def serial_line(instrument):
    """Put an instrument behind a pseudo-terminal, with the line ends of RS-232."""
    main, port = os.openpty()
    tty.setraw(main, termios.TCSANOW)
    tty.setraw(port, termios.TCSANOW)
    sent = []

    def loop():
        line = b""
        with contextlib.suppress(OSError):
            while more := os.read(main, 1):
                line += more
                if line.endswith(b"\r\n"):
                    sent.append(line)
                    answer = instrument.execute_message(line.decode().strip())
                    line = b""
                    if answer:
                        os.write(main, answer.encode() + b"\r\n")

    threading.Thread(target=loop, daemon=True).start()
    yield os.ttyname(port), sent
    os.close(port)
    os.close(main)


@pytest.mark.system
def test_serial(truth):
    with serial_line(Instrument(truth, AnalyzerFlaws())) as (name, sent):
        meter = analyzer.open_meter({"resource": f"ASRL{name}::INSTR", "baud_rate": 57600, "timeout_s": 60.0})
        (stream,) = meter.streams()
        first = meter.read(stream)
        assert first[0] == pytest.approx(truth.power("node.ac", truth.start_ns + 10**8), abs=0.51)
        until(lambda: meter.read(stream)[1] > first[1], "the counter moves")
        meter.close()
        assert sent[0] == b"*IDN?\r\n"


class FakeManager:
    """Stand for pyvisa's resource manager with a session of another interface: pairs of sent and answered."""

    def __init__(self, pairs):
        self.pairs = list(pairs)
        self.opened = []
        self.resource = SimpleNamespace(session=1, visalib=self, write=self.write, close=self.close, clear=self.clear)
        self.resource.ignore_warning = lambda *codes: contextlib.nullcontext()
        self.calls = []

    def open_resource(self, name, open_timeout):
        self.opened.append((name, open_timeout))
        return self.resource

    def write(self, text):
        sent, self.answer = self.pairs.pop(0)
        assert text == sent

    def read(self, session, count):
        assert self.answer is not None, "nothing was asked"
        return self.answer, 0

    def clear(self):
        self.calls.append("clear")

    def close(self):
        self.calls.append("close")


@pytest.mark.parametrize("resource", ["USB::0x0b21::0x0025::C2QG12345V::INSTR", "GPIB0::1::INSTR"])
def test_usbtmc_and_gpib_by_simulated_exchange(resource):
    manager = FakeManager(
        [("*IDN?", b"YOKOGAWA,WT310E,C2QG12345V,F1.04\n"), (":COMM:HEAD OFF", None), (":RATE?", b"0.1")]
    )
    link = open_at(resource, 2.0, manager=manager)
    assert link.query("*IDN?") == "YOKOGAWA,WT310E,C2QG12345V,F1.04"
    link.write(":COMM:HEAD OFF")
    assert link.query(":RATE?") == "0.1"
    link.close()
    assert manager.opened == [(resource, 2000)]
    assert manager.calls == ["clear", "close"]
    assert manager.resource.write_termination == "\n"
    assert not hasattr(manager.resource, "read_termination")  # these buses mark the end themselves


@pytest.mark.system
def test_a_layer_that_hangs_is_left_behind():
    release = threading.Event()
    manager = FakeManager([])

    def stuck(name, open_timeout):
        release.wait(60)
        return manager.resource

    manager.open_resource = stuck
    with raises_code("read-failed.no-answer"):
        open_at("GPIB0::1::INSTR", 0.2, manager=manager)
    release.set()
    until(lambda: manager.calls[-1:] == ["close"], "what it opened too late is closed")


@pytest.mark.system
def test_it_does_without_heavy_libraries(served):
    code = (
        "import sys; from joulelab.instruments.analyzer import client as scpi;"
        "link = scpi.open_link(scpi.parse_resource(sys.argv[1], 'x'), 'x', 60.0);"
        "print(link.query('*IDN?')); link.close();"
        "print(sorted({'numpy', 'psutil', 'duckdb'} & set(sys.modules)));"
        "import numpy; print(numpy.__name__, len([f for f in sys.meta_path if 'ImportBlock' in type(f).__name__]))"
    )
    words = [sys.executable, "-c", code, served.facts["vxi11"]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("YOKOGAWA"), done.stderr
    assert lines[1:] == ["[]", "numpy 0"]
