"""The analyzer meter in virtual time: its pace, its set-up, and updates that are late, missed, absent or impossible."""

from __future__ import annotations

import bisect
import math
import random
from itertools import pairwise

import pytest
from tests.codes import raises_code
from tests.instruments.analyzer_bench import VirtualBench, VirtualCable, list_warnings, rows_of

from joulelab.core.errors import ReadFailed
from joulelab.instruments.analyzer import UpdatePace

MS = 1_000_000
SETTINGS = (
    ":INP:VOLT:RANG?;:INP:CURR:RANG?;:RATE?;:NUM:NORM:NUM?;:NUM:NORM:ITEM1?;:MEAS:AVER:STAT?;:INTEG:STAT?;"
    ":INTEG:MODE?;:STAT:FILT1?;:COMM:REM?;:COMM:HEAD?;:SYST:COMM:COMM?"
)


@pytest.fixture
def bench(truth):
    return lambda **flaws: VirtualBench(truth, **flaws)


def energies(rows):
    return [row["energy_j"] for row in rows]


def test_reads_each_update_at_the_pace_of_the_instrument(truth, bench):
    served = bench()
    meter = served.open()
    begin_ns = served.now_ns
    rows = rows_of(meter, 50)
    assert (served.now_ns - begin_ns) / 1e9 == pytest.approx(5.0, abs=0.01)
    assert (rows[-1]["missed"], rows[-1]["duplicate"]) == (0, 0)
    assert max(row["age_s"] for row in rows) < 0.002
    watts = truth.power("node.ac", truth.start_ns)
    assert [b - a for a, b in pairwise(energies(rows))] == pytest.approx([0.1 * watts] * 49, abs=1.0)
    assert [row["power_w"] for row in rows] == pytest.approx([watts] * 50, abs=0.51)


@pytest.mark.system
@pytest.mark.parametrize("has_wait", [True, False])
def test_no_update_is_read_twice_by_a_host_that_stands_still(truth, bench, has_wait):
    """A stall between status and values let an update pass, whose values were then read again as a new update."""
    draw = random.Random(8)
    served = bench(has_wait=has_wait)
    cable = VirtualCable(served)
    meter = served.open(cable)
    begin_ns, (first,) = served.now_ns, rows_of(meter, 1)
    cable.stall = lambda: draw.choice((0.0,) * 16 + (0.03, 0.09, 0.13, 0.28))
    rows = rows_of(meter, 150)
    steps = [b - a for a, b in pairwise(energies([first, *rows]))]
    assert min(steps) > 0.09 * truth.power("node.ac", truth.start_ns)
    passed = (served.now_ns - begin_ns) / 1e8
    assert len(rows) + rows[-1]["missed"] - first["missed"] == pytest.approx(passed, abs=4)
    assert rows[-1]["missed"] > 10


def test_updates_missed_by_a_busy_host_are_counted(bench):
    served = bench()
    meter = served.open()
    (before,) = rows_of(meter, 1)
    served.pass_time(0.45)
    after = rows_of(meter, 2)[-1]
    assert after["missed"] - before["missed"] == 3
    joules = after["energy_j"] - before["energy_j"]
    assert joules == pytest.approx(after["power_w"] * 0.1 * (2 + 3), rel=0.01)


def test_updates_that_do_not_come_are_counted(bench):
    served = bench(skip_share=0.5)
    meter = served.open()
    begin_ns, (first,) = served.now_ns, rows_of(meter, 1)
    rows = rows_of(meter, 40)
    missed = rows[-1]["missed"] - first["missed"]
    assert missed > 10
    assert len(rows) + 1 + missed == pytest.approx((served.now_ns - begin_ns) / 1e8, abs=2.5)


def test_late_updates_are_not_taken_for_missed(bench):
    rows = rows_of(bench(late_s=0.045).open(), 60)
    assert rows[-1]["missed"] == 0
    assert energies(rows) == sorted(set(energies(rows)))


@pytest.mark.system
def test_an_instrument_that_cannot_wait_is_queried_until_it_updates(bench):
    rows = rows_of(bench(has_wait=False).open(), 20)
    assert energies(rows) == sorted(set(energies(rows)))
    assert rows[-1]["missed"] == 0
    assert rows[-1]["duplicate"] > 20


def test_a_reset_integral_falls_and_goes_on(truth, bench):
    served = bench(reset_at_s=2.0)
    joules = energies(rows_of(served.open(), 20))
    assert (served.now_ns - truth.start_ns) / 1e9 > 2.5
    (fallen,) = [b for a, b in pairwise(joules) if b < a]
    assert fallen < 0.1 * truth.power("node.ac", truth.start_ns) + 1
    assert joules[-1] > fallen


@pytest.mark.system
@pytest.mark.parametrize(("has_wait", "code"), [(True, "read-failed"), (False, "read-failed.no-update")])
def test_no_update_is_a_failure(bench, has_wait, code):
    meter = bench(stall_at_s=2.0, has_wait=has_wait).open(timeout_s=1.0)
    with raises_code(code):
        rows_of(meter, 20)


def test_settings_are_changed_and_restored(bench):
    served = bench(period_s=0.25, window_s=0.25, wt200=True)
    ask = served.instrument.execute_message
    ask(":COMM:HEAD OFF;:NUM:NORM:NUM 2;ITEM1 S,1;:MEAS:AVER:STAT ON;:INTEG:MODE CONT;:STAT:FILT1 BOTH")
    found = ask(SETTINGS)
    meter = served.open(current_a=10, voltage_v=600.0, period_s=0.1)
    during = ask(SETTINGS)
    assert during.startswith("600.00E+00;10.000E+00;100.00E-03;")
    assert ";STAR;" in during
    assert during.endswith("WT300")
    assert rows_of(meter, 1)[0]["power_w"] > 100
    meter.close()
    meter.close()
    assert ask(SETTINGS) == found


def test_an_integration_of_another_user_goes_on(bench):
    served = bench(integrating=True)
    meter = served.open(period_s=1.0)
    first, second = energies(rows_of(meter, 2))
    assert second > first
    assert meter.streams()[0].period_s == 0.1  # it cannot be set while one runs
    for wanted in ({"current_a": 10}, {"voltage_v": "auto"}, {"ct_ratio": 40}, {"crest_factor": 6}):
        with raises_code("unavailable.integrating"):
            served.open(**wanted)
    meter.close()
    assert "STAR" in served.instrument.execute_message(":INTEG:STAT?")


def test_an_interval_that_is_too_long_for_the_timeout_is_refused(bench):
    served = bench(integrating=True, period_s=5.0, window_s=5.0)
    with raises_code("unavailable.integrating") as raised:
        served.open(timeout_s=2.2)
    assert "period_s = 5" in raised.value.next


def test_averages_and_maxima_are_not_taken_for_readings(bench):
    for setting in (":MEAS:MHOL ON", ":MEAS:AVER:STAT ON"):
        served = bench()
        served.instrument.execute_message(f"{setting};:INTEG:STAR")
        with raises_code("unavailable.integrating"):
            served.open()


def test_a_stopped_integration_is_not_touched(bench):
    served = bench(integrating=True)
    served.instrument.execute_message(":INTEG:STOP")
    meter = served.open()
    assert math.isnan(rows_of(meter, 1)[0]["energy_j"])
    (missing,) = meter.missing()
    assert missing.what == "no energy_j"
    meter.close()
    assert served.instrument.execute_message(":INTEG:STAT?") == "STOP"


def test_integration_off(bench):
    served = bench()
    meter = served.open(integration="off")
    assert math.isnan(rows_of(meter, 1)[0]["energy_j"])
    assert served.instrument.execute_message(":INTEG:STAT?") == "RES"
    assert meter.missing() == []


def test_crest_factor_halves_the_ranges(bench):
    served = bench()
    with raises_code("config.no-such-range") as raised:
        served.open(crest_factor=6, current_a=20)
    assert "10" in raised.value.next
    shown = served.instrument.execute_message(":COMM:HEAD?;:INP:CFAC?")
    assert shown == ":COMMUNICATE:HEADER 1;:INPUT:CFACTOR 3"  # all restored
    accuracy = served.open(crest_factor=6, current_a=10, voltage_v=300).streams()[0].channels[0].accuracy
    assert accuracy.offset == pytest.approx(2 * 0.0005 * 300 * 10 * 20)


def test_auto_range_is_warned_of(bench):
    meter = bench(ct_ratio=1.0).open(current_a="auto")
    assert "auto range" in list_warnings(meter)
    assert meter.streams()[0].channels[0].accuracy.offset == pytest.approx(0.0005 * 300 * 20)  # the widest


def test_states_the_accuracy_of_the_range(bench):
    power, energy = bench(ct_ratio=1.0, current_a=20.0).open().streams()[0].channels[:2]
    assert power.accuracy.source == "datasheet"
    assert power.accuracy.offset == pytest.approx(0.0005 * 300 * 20)
    assert 0.001 < power.accuracy.gain < 0.003
    assert "300 V, 20 A" in power.accuracy.reference
    assert (power.update_s, power.window_s, power.accuracy.quantum) == (0.1, 0.1, 0.1)
    assert energy.accuracy.gain > power.accuracy.gain + power.accuracy.offset / 5000
    assert energy.accuracy.shared == power.accuracy.shared


def test_the_user_states_the_accuracy(bench):
    accuracy = bench().open(gain=0.0004, reference="calibrated in May").streams()[0].channels[0].accuracy
    assert (accuracy.source, accuracy.gain, accuracy.reference) == ("calibrated", 0.0004, "calibrated in May")
    channel = bench(ct_ratio=1.0, current_a=20.0).open(ct_ratio=40).streams()[0].channels[0]
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
    assert again[0][1] > rows[0][1]
    assert len({row[1] for row in again}) == 1  # of one update


def test_a_larger_range_chosen_by_hand_is_a_warning(bench):
    served = bench()
    meter = served.open(integration="off")
    rows_of(meter, 1)
    for amperes, words in ((2, ""), (10, "from 300 V 5 A to 300 V 10 A")):
        served.instrument.execute_message(f":INP:CURR:RANG {amperes}")
        rows_of(meter, 13)
        warnings = list_warnings(meter)
        assert words in warnings if words else not warnings


def test_over_range_is_no_number(bench):
    served = bench()
    meter = served.open(integration="off")
    rows_of(meter, 1)
    served.instrument.execute_message(":INP:CURR:RANG 0.5")  # 10 A with the transformer: 140 % are passed
    served.pass_time(0.1)
    with raises_code("read-failed.over-range"):
        rows_of(meter, 2)
    served.instrument.execute_message(":INP:CURR:RANG 5")
    served.pass_time(0.2)
    assert rows_of(meter, 2)[-1]["power_w"] > 4000
    assert "element 1: voltage or current over range" in list_warnings(meter)


def test_an_impossible_power_is_a_failure_and_the_next_row_is_good(bench):
    served, spoilt = bench(), []

    def spoil(answer):
        fields = answer.split(",")
        if spoilt and len(fields) == 8:
            spoilt.clear()
            fields[2] = f"{1.1 * float(fields[2]):.4E}"  # the power alone
        return ",".join(fields)

    meter = served.open(VirtualCable(served, spoil=spoil))
    good = rows_of(meter, 1)[0]["power_w"]
    spoilt.append(True)
    with raises_code("read-failed.contradiction"):
        rows_of(meter, 1)
    assert rows_of(meter, 1)[0]["power_w"] == good
    meter.close()
    assert served.instrument.execute_message(":INTEG:STAT?").endswith("RES")


def test_an_integral_that_jumps_is_a_failure(bench):
    served, factor = bench(), [1]

    def spoil(answer):
        fields = answer.split(",")
        if len(fields) == 8:
            fields[6] = f"{float(fields[6]) * factor[0]:.5E}"
        return ",".join(fields)

    meter = served.open(VirtualCable(served, spoil=spoil))
    rows_of(meter, 3)
    factor[0] = 1000
    with raises_code("read-failed.impossible-energy"):
        rows_of(meter, 1)


def test_settings_that_were_not_restored_are_left_for_the_next_run(bench, state_home):
    served = bench()
    cable = VirtualCable(served)
    meter = served.open(cable)

    def fail(text):
        raise ReadFailed(f"{text} failed")

    cable.write = fail
    meter.close()
    assert cable.log[-1] == "abandon"
    (path,) = state_home.glob("joulelab/analyzer-*")
    served.open().close()
    assert not path.exists()


def test_a_link_that_fails_is_replaced(bench):
    served = bench()
    cable = VirtualCable(served)
    meter = served.open(cable)
    served.pass_time(0.5)
    cable._spoil = lambda answer: answer.replace(";", "")
    with pytest.raises(ReadFailed):
        rows_of(meter, 1)
    assert cable.log[-1] == "abandon"
    cable._spoil = lambda answer: answer
    first, second = energies(rows_of(meter, 2))
    assert second > first


class Reader:
    """Read updates at given times (ms) as the meter does: at once if one has come, else when the next one comes."""

    def __init__(self, updates):
        self.pace = UpdatePace(0.1)
        self.updates = [round(t * MS) for t in updates]
        self.now = 0
        self.read_last = -1
        self.rows = 0

    def read(self, away_ms=0.0):
        self.now += round(away_ms * MS)
        begin = self.now
        self.read_last = max(bisect.bisect_right(self.updates, begin) - 1, self.read_last + 1)
        self.now = max(begin, self.updates[self.read_last]) + round(0.4 * MS)
        self.pace.count_row(begin, self.now)
        self.rows += 1


def late_once():
    times = [100.0 * n for n in range(60)]
    times[20] += 70
    return times


@pytest.mark.parametrize(
    ("updates", "rows", "missed"),
    [
        ([100 * n + 37 for n in range(200)], 150, 0),
        ([100 * n * (1 - 300e-6) for n in range(3_100)], 3000, 0),
        ([100 * n * (1 + 300e-6) for n in range(3_100)], 3000, 0),
        ([100 * n + random.Random(n).uniform(0, 45) for n in range(700)], 600, 0),
        (late_once(), 40, 0),
        ([100 * n for n in range(620) if n % 15 != 7], 560, 40),
    ],
    ids=["on time", "fast clock", "slow clock", "jitter", "very late once", "absent"],
)
def test_counts_of_missed_updates(updates, rows, missed):
    reader = Reader(updates)
    for _ in range(rows):
        reader.read()
    assert reader.pace.missed == missed


def test_a_host_that_is_away_misses_updates():
    draw = random.Random(5)
    reader = Reader([100 * n + 3 for n in range(4000)])
    reader.read()
    first = reader.read_last
    for _ in range(500):
        reader.read(draw.choice((0, 0, 0, 20, 130, 270, 460)))
    assert reader.rows + reader.pace.missed == pytest.approx(reader.read_last - first + 1, abs=1)
    assert reader.pace.missed > 100


def test_a_gap_is_not_missed():
    pace = UpdatePace(0.1)
    pace.count_row(0, 100 * MS)
    pace.restart_grid()
    pace.count_row(9_000 * MS, 9_090 * MS)
    assert (pace.missed, pace.update_ns) == (0, 9_090 * MS)
