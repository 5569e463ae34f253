"""The Modbus meter against the twin's server: real frames over loopback."""

from __future__ import annotations

import contextlib
import math

import pytest
from tests.instruments.changing import change_flaws
from tests.waiting import until

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError, ReadFailed, Unavailable
from joulelab.instruments import modbus, open_meter
from joulelab.instruments.modbus import doctor
from joulelab.twin import profile
from joulelab.twin.model import Node
from joulelab.twin.servers import modbus as server
from joulelab.twin.servers.server_process import ServerProcess
from joulelab.twin.truth import Truth

pytestmark = pytest.mark.system

ROW = {"name": "power_w", "unit": "W"}


@pytest.fixture
def truth(tmp_path):
    # It began a while ago, so that counters have something to show.
    begin = monotonic_ns() - 100 * NS
    with Truth.create(tmp_path / "truth", Node(), profiles={"gpu": profile.constant(0.5)}, start_ns=begin) as made:
        yield made


@pytest.fixture
def serve(truth, tmp_path):
    """Serve in this process with some flaws; returns the entry, ready to open. `change` changes flaws of the last."""
    with contextlib.ExitStack() as stack:

        def start(**flaws):
            start.flaws = server.ModbusFlaws(**flaws)
            served = stack.enter_context(server.serve(truth, tmp_path, start.flaws, 0))
            entry = dict(served.entries["modbus1"])
            del entry["meter"]
            return entry | {"label": "m", "timeout_s": 60.0}

        start.change = lambda **flaws: change_flaws(start.flaws, **flaws)
        yield start


@pytest.fixture
def opened():
    with contextlib.ExitStack() as stack:

        def start(entry):
            return stack.enter_context(contextlib.closing(open_meter("modbus", entry)))

        yield start


@pytest.mark.parametrize("layout", ["janitza", "sdm630", "iem3000", "pac2200"])
def test_values_are_those_of_the_instrument(truth, serve, opened, layout):
    flaws = {"layout": layout, "base_j": 7.2e6}
    meter = opened(serve(**flaws))
    stream = meter.streams()[0]
    assert (stream.scope, stream.sums, stream.parts) == ("node.ac", "", 0)
    panel = server.Panel(truth, "node.ac", server.ModbusFlaws(**flaws))
    before_j = panel.energy_j()
    got = dict(zip((c.name for c in stream.channels), meter.read(stream), strict=True))
    after_j = panel.energy_j()
    assert got["power_w"] == pytest.approx(panel.power_w(), rel=2e-7)
    assert 7.2e6 < before_j * (1 - 2e-7) <= got["energy_j"] <= after_j * (1 + 2e-7)
    assert panel.power_w() == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=0.1)
    assert ("not confirmed" in stream.model) is (layout in ("iem3000", "pac2200"))


def test_phases_are_there_and_count_nothing_twice(serve, opened):
    meter = opened(serve())
    phases = meter.streams()[1:]
    assert [s.scope for s in phases] == ["phase:m.1", "phase:m.2", "phase:m.3"]
    assert {s.table for s in phases} == {"phases"}
    assert all(c.kind == "state" for s in phases for c in s.channels)
    rows = [dict(zip((c.name for c in s.channels), meter.read(s), strict=True)) for s in phases]
    assert all(row["voltage_v"] == 230 for row in rows)
    assert sum(row["power_w"] for row in rows) == pytest.approx(meter.read(meter.streams()[0])[0], abs=1)


def test_outlets_are_cords_that_sum(truth, serve, opened):
    meter = opened(serve(layout="xerus"))
    streams = meter.streams()
    assert [(s.scope, s.sums, s.parts) for s in streams] == [(f"outlet:m.{n}", "node.ac", 4) for n in (1, 2, 3, 4)]
    now = monotonic_ns()
    for number, stream in enumerate(streams, 1):
        names = [c.name for c in stream.channels]
        power_w = meter.read(stream)[names.index("power_w")]
        assert power_w == pytest.approx(truth.power(f"outlet:{number}", now), abs=0.2)
    entry = serve(layout="xerus")
    inlet = opened({k: v for k, v in entry.items() if k not in ("outlets", "stride", "feeds")})
    assert [s.scope for s in inlet.streams()] == ["rack"], "an inlet is the whole PDU"


def test_order_scale_and_shift_of_the_entry(truth, serve, opened):
    meter = opened(serve(word_order="little", shift=1) | {"word_order": "little", "shift": 1})
    assert meter.read(meter.streams()[0])[0] == pytest.approx(truth.power("node.ac", monotonic_ns()), abs=0.2)
    rows = [{"name": "power_w", "address": 19026, "unit": "W", "scale": 2.0}]
    own = opened({k: v for k, v in serve().items() if k != "profile"} | {"registers": rows})
    assert own.read(own.streams()[0])[0] == pytest.approx(2 * truth.power("node.ac", monotonic_ns()), abs=0.4)


def test_specs_state_what_is_known(serve, opened):
    entry = serve() | {"gain": 0.002, "offset_w": 1.5, "reference": "our calibration"}
    power, energy = opened(entry).streams()[0].channels
    assert (power.kind, power.update_s, power.window_s) == ("power", 1.0, 1.0)
    assert (power.accuracy.source, power.accuracy.gain, power.accuracy.offset) == ("calibrated", 0.002, 1.5)
    assert (power.accuracy.shared, power.accuracy.reference) == ("m", "our calibration")
    assert (energy.kind, energy.unit, energy.modulus, energy.accuracy.offset) == ("counter", "J", None, 1.5)
    assert energy.accuracy.quantum == 3600
    assert opened(serve()).streams()[0].channels[0].accuracy.source == "assumed"


def test_a_counter_that_wraps_and_one_that_is_reset(truth, serve, opened):
    rows = [{"name": "energy_j", "address": 19068, "unit": "Wh", "modulus": 1000}]
    entry = {k: v for k, v in serve(modulus_j=3.6e6, base_j=3.5e6, layout="janitza").items() if k != "profile"}
    meter = opened(entry | {"registers": rows})
    assert meter.streams()[0].channels[0].modulus == 3.6e6
    assert 0 <= meter.read(meter.streams()[0])[0] < 3.6e6
    reset = opened(serve(base_j=9e9))
    first = reset.read(reset.streams()[0])[1]
    assert first > 8.9e9
    serve.change(reset_at_s=truth.count_seconds())
    assert until(lambda: reset.read(reset.streams()[0])[1] < first, "the reset shows")


def code_of(action, kind=ReadFailed) -> str:
    with pytest.raises(kind) as caught:
        action()
    return caught.value.code


def test_it_dies_and_returns(truth, tmp_path, opened):
    with ServerProcess("modbus", truth.path, tmp_path / "server") as process:
        entry = dict(process.served.entries["modbus1"])
        del entry["meter"]
        meter = opened(entry | {"label": "m", "timeout_s": 60.0})
        stream = meter.streams()[0]
        before = meter.read(stream)
        process.kill()
        assert code_of(lambda: meter.read(stream)) == "read-failed.refused"
        process.start()
        assert meter.read(stream)[0] == pytest.approx(before[0], abs=1)


def test_a_slow_device_is_waited_for_up_to_the_limit(serve, opened):
    meter = opened(serve(latency_s=0.15))
    assert meter.read(meter.streams()[0])[0] > 0
    assert code_of(lambda: opened(serve(latency_s=30.0) | {"timeout_s": 0.2})) == "read-failed.no-answer"


def is_read(meter):
    try:
        return meter.read(meter.streams()[0])[0] > 0
    except ReadFailed:
        return False


def test_silence_and_lost_answers(serve, opened):
    meter = opened(serve() | {"timeout_s": 2.0})
    assert is_read(meter)
    serve.change(silent_at_s=0.0)
    assert code_of(lambda: meter.read(meter.streams()[0])) == "read-failed.no-answer"
    serve.change(silent_at_s=None)
    until(lambda: is_read(meter), "it is read again")


@pytest.mark.parametrize("garble", ["noise", "bytes"])
def test_garbled_answers_are_gaps_never_wrong_shapes(serve, opened, garble):
    meter = opened(serve(garble=garble) | {"timeout_s": 2.0})
    serve.change(garble_at_s=0.0)
    failed = 0
    for _ in range(20):
        try:
            row = meter.read(meter.streams()[0])
            # Modbus TCP has no checksum above TCP's: a changed register is a number, within bounds.
            assert garble == "bytes"
            assert all(math.isfinite(v) for v in row)
        except ReadFailed:
            failed += 1
    assert failed > 3


def test_registers_that_a_device_lacks_are_missing_and_those_without_a_value_are_gaps(serve, opened, monkeypatch):
    rows = [ROW | {"address": 19026}, {"name": "frequency_hz", "unit": "Hz", "address": 18000}]
    rows += [{"name": "voltage_v", "unit": "V", "address": 19000}]
    rows += [{"name": "voltage_v", "unit": "V", "address": 17000, "phase": 3}]
    meter = opened({k: v for k, v in serve().items() if k != "profile"} | {"registers": rows})
    (stream,) = meter.streams()
    power_w, frequency_hz, voltage_v = meter.read(stream)
    assert power_w > 1000
    assert voltage_v == 230
    assert math.isnan(frequency_hz)
    assert [(m.scope, m.code) for m in meter.missing()] == [
        ("node.ac", "read-failed.exception"),
        ("phase:m.3", "read-failed.exception"),
    ]
    blank = (0x7FC0, 0)  # NaN
    answers = {19000: blank, 19026: (0x458B, 0xF266)}
    monkeypatch.setattr(meter._connection, "read_blocks", lambda unit, asked: [answers[r.address] for r in asked])
    assert meter.read(stream)[0] == pytest.approx(4478.3)
    assert math.isnan(meter.read(stream)[2]), "a state beside the power may be absent"
    answers[19026] = blank
    assert code_of(lambda: meter.read(stream)) == "read-failed.no-value"


def test_not_a_number_is_not_a_reading(serve):
    assert code_of(lambda: open_meter("modbus", serve(nan=True))) == "read-failed.no-value"
    # An integer has no NaN: its most negative number is out of bounds.
    assert code_of(lambda: open_meter("modbus", serve(nan=True, layout="iem3000"))) == "read-failed.implausible"


@pytest.mark.parametrize(
    ("flaws", "more", "kind", "words"),
    [
        ({"exception": 4}, {}, ReadFailed, "failed while"),
        ({"exception": 6}, {}, ReadFailed, "busy"),
        ({"exception": 10}, {}, Unavailable, "no way to this unit"),
        ({"refuse": True}, {}, Unavailable, "function code"),
        ({}, {"unit_id": 5}, ReadFailed, "got no answer from this unit"),
        ({}, {"profile": "pac2200"}, Unavailable, "no such registers"),
        ({"word_order": "little"}, {}, ConfigError, 'set word_order = "little"'),
        ({"byte_order": "little"}, {}, ReadFailed, "nothing of node.ac"),
        ({"shift": 1}, {}, ConfigError, "set shift = 1"),
    ],
)
def test_a_wrong_entry_fails_at_opening(serve, flaws, more, kind, words):
    with pytest.raises(JoulelabError) as caught:
        open_meter("modbus", serve(**flaws) | more)
    assert isinstance(caught.value, kind)
    assert words in str(caught.value)
    assert caught.value.next


@pytest.mark.parametrize(
    ("flaws", "more", "words"),
    [
        ({}, {"unit_id": 5}, "set unit_id = 1"),
        ({"layout": "pac2200"}, {"registers": [ROW | {"address": 0, "function": 4, "type": "int16"}]}, "shift = 1"),
        ({"layout": "sdm630"}, {"registers": [ROW | {"address": 52}]}, "function = 4"),
        ({"layout": "sdm630", "word_order": "little"}, {}, 'word_order = "little"'),
        ({"shift": -1}, {}, "shift = -1"),
        ({"nan": True}, {}, "no plausible number"),
        ({"exception": 6}, {}, "busy"),
        ({}, {}, "answers now"),
        ({}, {"profile": "nonesuch"}, "there is no profile"),
    ],
)  # fmt: skip
def test_the_doctor_tells_causes_apart(serve, monkeypatch, flaws, more, words):
    monkeypatch.setattr(doctor, "REQUEST_S", 60.0)
    entry = serve(**flaws) | more
    if "registers" in more:
        del entry["profile"]
    found = modbus.diagnose(entry, ReadFailed("it failed"))
    assert words in " ".join(found), found


def test_the_doctor_without_a_device():
    entry = {"address": "127.0.0.1:1", "profile": "sdm630", "timeout_s": 60.0}
    assert "refuses the connection" in modbus.diagnose(entry, ReadFailed("x"))[0]
    entry["address"] = "no-such-host.invalid"
    assert "does not resolve" in modbus.diagnose(entry, ReadFailed("x"))[0]
