"""The twin's analyzer itself: its language, its registers, its clock, VXI-11 on the wire, and pyvisa as a stranger."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import pytest

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers._scpi import (
    AnalyzerFlaws,
    Instrument,
    WaitTimeout,
    format_digits,
    round_to_range,
    split_message,
)
from joulelab.twin.servers.analyzer import serve
from joulelab.twin.truth import Truth


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    path = tmp_path_factory.mktemp("analyzer") / "truth"
    with Truth.create(path, Node(), profiles={"gpu": profile.constant(0.5)}) as truth:
        yield truth


class Bench:
    """An instrument in virtual time."""

    def __init__(self, truth, **flaws):
        self.now = truth.start_ns + 10 * NS
        self.instrument = Instrument(truth, AnalyzerFlaws(**flaws), now=lambda: self.now)
        self.ask(":COMM:HEAD OFF")

    def ask(self, message, **options):
        return self.instrument.execute_message(message, **options)

    def pass_s(self, seconds):
        self.now += round(seconds * NS)


def test_digits():
    assert format_digits(230.0, 5) == "230.00E+00"
    assert format_digits(4478.28, 5) == "4.4783E+03"
    assert format_digits(0.98, 5) == "980.00E-03"
    assert format_digits(0, 5) == "0.0000E+00"
    assert format_digits(-12.5, 5) == "-12.500E+00"
    assert round_to_range(4478.28, 30_000) == 4478.0
    assert round_to_range(447.828, 1500) == pytest.approx(447.8)


def test_messages():
    first, second, third = split_message(":NUM:NORM:NUM 2;item1 U,1;*OPC?")
    assert first.words == ("NUM", "NORM", "NUM")
    assert (second.words, second.data) == (("NUM", "NORM", "ITEM1"), "U,1")
    assert (third.words, third.asks) == (("*OPC",), True)


def test_language(truth):
    bench = Bench(truth)
    assert bench.ask("*IDN?") == "YOKOGAWA,WT310E,C2QG12345V,F1.04"
    for header in (":INPut:VOLTage:RANGe?", ":inp:volt:rang?", "VOLT:RANG?", ":INPU:VOLTA:RANGE?"):
        assert bench.ask(header) == "300.00E+00"
    bench.ask(":INP:CURR:RANG 500MA")
    assert bench.ask(":INP:CURR:RANG?") == "500.00E-03"
    bench.ask(":RATE 250MS")
    assert bench.ask(":RATE?") == "250.00E-03"
    bench.ask(":COMM:HEAD ON")
    assert bench.ask(":COMM:HEAD?") == ":COMMUNICATE:HEADER 1"
    assert bench.ask(":STAT:ERR?") == '0,"No error"'


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (":NO:SUCH 1", 113),
        (":INP:CURR:RANG 7", 131),
        (":RATE 0.3", 131),
        (":INTEG:STOP", 844),
        (":NUM:NORM:NUM 999", 131),
    ],
)
def test_errors_are_queued(truth, message, code):
    bench = Bench(truth)
    assert bench.ask(message) == ""
    assert bench.ask(":STAT:ERR?").startswith(f"{code},")
    assert bench.ask(":STAT:ERR?").startswith("0,")


def test_an_unknown_question_has_no_answer(truth):
    assert Bench(truth).ask(":SAMP:RATE?") == ""


def test_nothing_is_set_while_it_integrates(truth):
    bench = Bench(truth)
    bench.ask(":INTEG:STAR;:INP:CURR:RANG 10")
    assert bench.ask(":STAT:ERR?").startswith("813,")
    assert bench.ask(":INP:CURR:RANG?") == "5.0000E+00"


def test_update_bit_is_latched_and_cleared(truth):
    bench = Bench(truth)
    bench.ask(":STAT:FILT1 FALL")
    bench.ask(":STAT:EESR?")
    assert bench.ask(":STAT:EESR?") == "0"
    bench.pass_s(0.35)
    assert bench.ask(":STAT:EESR?") == "1"
    assert bench.ask(":STAT:EESR?") == "0"
    with pytest.raises(WaitTimeout):
        bench.ask(":COMM:WAIT 1", timeout_s=0.01)


def test_readings_and_integral_are_those_of_the_truth(truth):
    bench = Bench(truth)
    bench.ask(":NUM:NORM:NUM 4;ITEM1 P,1;ITEM2 WH,1;ITEM3 TIME,1;ITEM4 NONE;:INTEG:STAR")
    bench.pass_s(7.25)
    watts, hours, seconds, nothing = bench.ask(":NUM:NORM:VAL?").split(",")
    true = truth.power("node.ac", bench.now)
    assert float(watts) == pytest.approx(true, abs=0.5)
    assert float(hours) * 3600 == pytest.approx(7.2 * true, rel=1e-5)  # up to the last update
    assert (seconds, nothing) == ("7", "NAN")
    bench.ask(":INTEG:STOP")
    kept = bench.ask(":NUM:NORM:VAL? ")
    bench.pass_s(3)
    assert bench.ask(":NUM:NORM:VAL?").split(",")[1:3] == kept.split(",")[1:3]
    bench.ask(":INTEG:RES")
    assert bench.ask(":INTEG:STAT?") == "RES"
    assert float(bench.ask(":NUM:NORM:VAL?").split(",")[1]) == 0


def test_gain_and_offset_errors_show(truth):
    bench = Bench(truth, gain_error=0.01, offset_w=25.0)
    bench.ask(":NUM:NORM:NUM 1;ITEM1 P,1")
    true = truth.power("node.ac", bench.now)
    assert float(bench.ask(":NUM:NORM:VAL?")) == pytest.approx(1.01 * true + 25, abs=0.6)


def test_over_range_is_a_word_and_a_bit(truth):
    bench = Bench(truth, current_a=0.5)
    bench.ask(":NUM:NORM:NUM 2;ITEM1 U,1;ITEM2 P,1")
    assert bench.ask(":NUM:NORM:VAL?") == "230.00E+00,INF"
    assert int(bench.ask(":STAT:COND?")) & 1 << 6
    assert int(bench.ask(":STAT:EESR?")) & 1 << 6


def test_updates_skip_and_come_late(truth):
    usual, skipping, late = Bench(truth), Bench(truth, skip_share=0.5), Bench(truth, late_s=0.06)
    counts = []
    for bench in (usual, skipping, late):
        bench.ask(":STAT:FILT1 FALL")
        bench.ask(":STAT:EESR?")
        count = 0
        for _ in range(120):
            bench.pass_s(0.05)
            count += int(bench.ask(":STAT:EESR?")) & 1
        counts.append(count)
    assert counts[0] == pytest.approx(60, abs=1)
    assert 15 < counts[1] < 45
    assert counts[2] == pytest.approx(60, abs=2)


def test_models_differ(truth):
    bench = Bench(truth, model="WT333E", ct_ratio=1.0, current_a=20.0)
    assert bench.ask(":INP:WIR?") == "P3W4"
    bench.ask(":NUM:NORM:NUM 4;ITEM1 P,1;ITEM2 P,2;ITEM3 P,3;ITEM4 P,SIGMA")
    *each, whole = map(float, bench.ask(":NUM:NORM:VAL?").split(","))
    assert sum(each) == pytest.approx(whole, abs=0.3)
    bench.ask(":INP:CURR:RANG 0.05")
    assert bench.ask(":STAT:ERR?").startswith("131,")


def test_a_wrong_model_is_refused(truth, tmp_path):
    with pytest.raises(ConfigError, match="no model"), serve(truth, tmp_path, AnalyzerFlaws(model="WT9"), 0):
        pass


def call(sock, xid, procedure, body=b"", program=0x0607AF, version=1):
    record = struct.pack(">6I", xid, 0, 2, program, version, procedure) + bytes(16) + body
    half = len(record) // 8 * 4  # in two fragments, as a client may
    sock.sendall(struct.pack(">I", half) + record[:half])
    sock.sendall(struct.pack(">I", 0x80000000 | len(record) - half) + record[half:])
    (size,) = struct.unpack(">I", sock.recv(4))
    answer = b""
    while len(answer) < size & 0x7FFFFFFF:
        answer += sock.recv(4096)
    assert struct.unpack(">II", answer[:8]) == (xid, 1)
    return struct.unpack_from(">I", answer, 20)[0], answer[24:]


@pytest.mark.system
def test_vxi11_on_the_wire(truth, tmp_path):
    with (
        serve(truth, tmp_path, AnalyzerFlaws(), 0) as served,
        socket.create_connection(("127.0.0.1", served.ports["vxi11"]), 60) as sock,
    ):
        assert call(sock, 1, 0) == (0, b"")
        _, body = call(sock, 2, 10, struct.pack(">III", 7, 0, 0) + struct.pack(">I", 5) + b"inst0\0\0\0")
        error, link, _, largest = struct.unpack(">4I", body)
        assert (error, largest) == (0, 1 << 16)
        write = struct.pack(">IIIiI", link, 1000, 0, 8, 6) + b"*IDN?\n\0\0"
        assert struct.unpack(">II", call(sock, 3, 11, write)[1]) == (0, 6)
        error, reason, size = struct.unpack_from(
            ">III", (part := call(sock, 4, 12, struct.pack(">6I", link, 8, 1000, 0, 0, 0))[1])
        )
        assert (error, reason, part[12 : 12 + size]) == (0, 1, b"YOKOGAWA")
        rest = call(sock, 5, 12, struct.pack(">6I", link, 100, 1000, 0, 0, 0))[1]
        assert struct.unpack_from(">II", rest) == (0, 4)
        assert rest[12:].startswith(b",WT310E,")
        begin = time.monotonic()
        assert call(sock, 6, 12, struct.pack(">6I", link, 100, 100, 0, 0, 0))[1][:4] == struct.pack(">I", 15)
        assert time.monotonic() - begin >= 0.09
        assert call(sock, 7, 22, struct.pack(">I", link)) == (0, struct.pack(">I", 8))
        assert call(sock, 8, 99)[0] == 3  # no such procedure
        assert call(sock, 9, 10, program=100000)[0] == 1
        assert call(sock, 10, 10, version=2)[0] == 2
        assert call(sock, 11, 11, b"\0\0")[0] == 4  # arguments that are none
        assert call(sock, 12, 23, struct.pack(">I", link)) == (0, bytes(4))
        assert call(sock, 13, 12, struct.pack(">6I", link, 1, 1, 0, 0, 0))[1][:4] == struct.pack(">I", 4)


@pytest.mark.system
def test_noise_on_the_wire_ends_only_its_connection(truth, tmp_path):
    with serve(truth, tmp_path, AnalyzerFlaws(), 0) as served:
        for noise in (b"\xff" * 64, b"GET / HTTP/1.0\r\n\r\n", struct.pack(">I", 0x80000004) + b"abcd"):
            with socket.create_connection(("127.0.0.1", served.ports["vxi11"]), 60) as sock:
                sock.sendall(noise)
                with contextlib.suppress(OSError):  # it may have gone already
                    sock.shutdown(socket.SHUT_WR)
                    assert sock.recv(10) == b""
        with socket.create_connection(("127.0.0.1", served.ports["vxi11"]), 60) as sock:
            assert call(sock, 1, 0) == (0, b"")


@pytest.mark.system
def test_pyvisa_reads_both_and_sees_one_instrument(truth, tmp_path):
    pyvisa = pytest.importorskip("pyvisa", reason="pip install 'joulelab[analyzer]'")
    with serve(truth, tmp_path, AnalyzerFlaws(), 0) as served:
        manager = pyvisa.ResourceManager("@py")
        text = manager.open_resource(served.facts["socket"], read_termination="\n", write_termination="\n")
        vxi = manager.open_resource(served.facts["vxi11"], write_termination="\n")
        vxi.write(":COMM:HEAD OFF;:INP:CURR:RANG 10")
        assert text.query(":INP:CURR:RANG?") == "10.000E+00"
        assert vxi.query("*IDN?") == text.query("*IDN?") + "\n"
        vxi.close()
        text.close()
