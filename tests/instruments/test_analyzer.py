"""The analyzer meter against a WT300E that speaks SCPI over a socket and over VXI-11."""

from __future__ import annotations

import math
import time

import pytest
from tests.instruments.analyzer_bench import CHANNELS, now_s, rows_of, told, wait_for_energy
from tests.waiting import until

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, Unavailable

pytestmark = pytest.mark.system


@pytest.mark.parametrize("transport", ["socket", "vxi11"])
def test_reads_what_flows(truth, bench, transport):
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
    assert joules == sorted(joules)
    wait_for_energy(meter, joules[-1])
    assert "found" in told(meter)


@pytest.mark.campaign
@pytest.mark.parametrize("transport", ["socket", "vxi11"])
def test_the_pace_of_the_instrument(truth, bench, transport):
    meter = bench().open(transport)
    begin = time.monotonic()
    rows = rows_of(meter, 6)
    watts = truth.power("node.ac", truth.start_ns + 10**8)
    lost = rows[-1]["missed"] - rows[0]["missed"]
    joules = rows[-1]["energy_j"] - rows[0]["energy_j"]
    # The counter loses nothing; a busy host may count one more or less.
    assert joules == pytest.approx(watts * 0.1 * (5 + lost), abs=0.101 * watts)
    assert time.monotonic() - begin >= 0.35


def test_states_the_accuracy_of_the_range(bench):
    power, energy = bench(ct_ratio=1.0, current_a=20.0).open().streams()[0].channels[:2]
    assert power.accuracy.source == "datasheet"
    assert power.accuracy.offset == pytest.approx(0.0005 * 300 * 20)
    assert 0.001 < power.accuracy.gain < 0.003
    assert "300 V, 20 A" in power.accuracy.reference
    assert (power.update_s, power.window_s, power.accuracy.quantum) == (0.1, 0.1, 0.1)
    assert energy.accuracy.gain > power.accuracy.gain + power.accuracy.offset / 5000
    assert energy.accuracy.shared == power.accuracy.shared


def test_user_states_better(bench):
    accuracy = bench().open(gain=0.0004, reference="calibrated in May").streams()[0].channels[0].accuracy
    assert (accuracy.source, accuracy.gain, accuracy.reference) == ("calibrated", 0.0004, "calibrated in May")


def test_fixed_ranges_are_set_and_put_back(bench):
    served = bench(period_s=0.25, window_s=0.25)
    link = served.link()
    link.write(":COMM:HEAD OFF;:NUM:NORM:NUM 2;ITEM1 S,1;:MEAS:AVER:STAT ON;:INTEG:MODE CONT;:STAT:FILT1 BOTH")
    asked = (
        ":INP:VOLT:RANG?;:INP:CURR:RANG?;:RATE?;:NUM:NORM:NUM?;:NUM:NORM:ITEM1?;:MEAS:AVER:STAT?;:INTEG:STAT?;"
        ":INTEG:MODE?;:STAT:FILT1?;:COMM:REM?;:COMM:HEAD?;:SYST:COMM:COMM?"
    )
    found = link.query(asked)
    meter = served.open(current_a=10, voltage_v=600.0, period_s=0.1)
    during = link.query(asked)
    assert during.startswith("600.00E+00;10.000E+00;100.00E-03;")
    assert ";STAR;" in during
    assert rows_of(meter, 1)[0]["power_w"] > 100
    meter.close()
    meter.close()
    assert link.query(asked) == found


def test_leaves_the_mode_of_an_older_model(bench):
    served = bench(wt200=True)
    meter = served.open()
    link = served.link()
    assert link.query(":SYST:COMM:COMM?") == "WT300"
    meter.close()
    link.write(":COMM:HEAD OFF")
    assert link.query(":SYST:COMM:COMM?") == "WT200"


def test_an_integration_of_somebody_else_goes_on(bench):
    served = bench(integrating=True)
    meter = served.open(period_s=1.0)
    (first,) = rows_of(meter, 1)
    wait_for_energy(meter, first["energy_j"])
    assert meter.streams()[0].period_s == 0.1  # it cannot be set while one runs
    assert "rate" in told(meter)
    meter.close()
    assert "STAR" in served.link().query(":INTEG:STAT?")


def test_a_stopped_integration_is_not_touched(bench):
    served = bench(integrating=True)
    link = served.link()
    link.write(":INTEG:STOP")
    meter = served.open()
    assert math.isnan(rows_of(meter, 1)[0]["energy_j"])
    (missing,) = meter.missing()
    assert "stopped" in missing.why
    meter.close()
    assert link.query(":INTEG:STAT?") == "STOP"


def test_integration_off(bench):
    served = bench()
    meter = served.open(integration="off")
    assert math.isnan(rows_of(meter, 1)[0]["energy_j"])
    assert served.link().query(":INTEG:STAT?") == "RES"
    assert meter.missing() == []


def test_auto_range_is_warned_of(bench):
    meter = bench(ct_ratio=1.0).open(current_a="auto")
    assert "auto range" in told(meter)["auto-range"]["text"]
    assert meter.streams()[0].channels[0].accuracy.offset == pytest.approx(0.0005 * 300 * 20)  # the widest


def test_crest_factor_halves_the_ranges(bench):
    served = bench()
    with pytest.raises(ConfigError, match="no range of 20 A") as raised:
        served.open(crest_factor=6, current_a=20)
    assert "10" in str(raised.value.next)
    assert served.link().query(":COMM:HEAD?;:INP:CFAC?") == ":COMMUNICATE:HEADER 1;:INPUT:CFACTOR 3"  # all put back
    accuracy = served.open(crest_factor=6, current_a=10, voltage_v=300).streams()[0].channels[0].accuracy
    assert accuracy.offset == pytest.approx(2 * 0.0005 * 300 * 10 * 20)
    with pytest.raises(Unavailable, match="cannot be set to 5 A"):  # the first one integrates
        served.open(current_a=5)


def test_transformer_ratio_is_set(bench):
    served = bench(ct_ratio=1.0, current_a=20.0)
    channel = served.open(ct_ratio=40).streams()[0].channels[0]
    assert channel.accuracy.source == "assumed"
    assert "0.5 % for the transformer, assumed" in channel.accuracy.reference


@pytest.mark.parametrize(("model", "count"), [("WT332E", 2), ("WT333E", 3)])
def test_elements_are_cords_that_sum(truth, bench, model, count):
    meter = bench(model=model, ct_ratio=1.0, current_a=20.0).open(label="lab")
    streams = meter.streams()
    assert len(streams) == count
    assert {(s.sums, s.parts, s.parent) for s in streams} == {("node.ac", count, "node.ac")}
    assert streams[-1].scope == "outlet:lab.3"
    rows = [meter.read(stream) for stream in streams]
    assert sum(row[0] for row in rows) == pytest.approx(truth.power("node.ac", truth.start_ns + 10**8), abs=0.2 * count)
    again = [meter.read(stream) for stream in streams]
    assert again[0][1] >= rows[0][1]
    assert len({row[1] for row in again}) == 1  # of one update


def test_the_sum_of_the_instrument(truth, bench):
    meter = bench(model="WT333E", ct_ratio=1.0, current_a=20.0).open(elements="sum")
    (stream,) = meter.streams()
    assert (stream.scope, stream.sums) == ("node.ac", "")
    watts = truth.power("node.ac", truth.start_ns + 10**8)
    assert meter.read(stream)[0] == pytest.approx(watts, abs=0.5)
    assert stream.channels[0].accuracy.offset == pytest.approx(3 * 3.0)


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
