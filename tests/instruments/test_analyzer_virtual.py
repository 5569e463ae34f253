"""The analyzer meter in virtual time: its pace, and updates that are late, missed, absent or out of range."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.instruments.analyzer_bench import VirtualBench, VirtualCable, rows_of, told

from joulelab.core.errors import ReadFailed


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
    assert max(row["age_s"] for row in rows) < 0.001
    watts = truth.power("node.ac", truth.start_ns)
    assert [b - a for a, b in pairwise(energies(rows))] == pytest.approx([0.1 * watts] * 49, abs=1.0)
    assert [row["power_w"] for row in rows] == pytest.approx([watts] * 50, abs=0.51)


def test_updates_missed_by_a_busy_host_are_counted(bench):
    served = bench()
    meter = served.open()
    (before,) = rows_of(meter, 1)
    served.pass_time(0.45)
    after = rows_of(meter, 2)[-1]
    assert after["missed"] - before["missed"] == 3
    joules = after["energy_j"] - before["energy_j"]
    assert joules == pytest.approx(after["power_w"] * 0.1 * (2 + 3), rel=0.01)
    assert told(meter)["missed"]["text"].endswith("not read")


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


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize(("flaws", "config"), [({"has_wait": False}, {}), ({}, {"wait": "poll"})])
def test_polls_where_it_cannot_wait(bench, flaws, config):
    meter = bench(**flaws).open(**config)
    assert ("poll" in told(meter)) is bool(flaws)
    rows = rows_of(meter, 20)
    assert energies(rows) == sorted(set(energies(rows)))
    assert rows[-1]["missed"] == 0


def test_a_reset_integral_falls_and_goes_on(truth, bench):
    served = bench(reset_at_s=2.0)
    joules = energies(rows_of(served.open(), 20))
    assert (served.now_ns - truth.start_ns) / 1e9 > 2.5
    (fallen,) = [b for a, b in pairwise(joules) if b < a]
    assert fallen < 0.1 * truth.power("node.ac", truth.start_ns) + 1
    assert joules[-1] > fallen


def test_no_update_is_a_failure(bench):
    meter = bench(stall_at_s=2.0).open()
    with pytest.raises(ReadFailed):
        rows_of(meter, 60)


def test_other_header_of_the_rate(bench):
    assert bench(has_rate=False).open(period_s=0.25).streams()[0].period_s == 0.25


def test_a_range_changed_by_hand_is_told(bench):
    served = bench()
    meter = served.open(integration="off")
    rows_of(meter, 1)
    meter.events()
    served.instrument.execute(":INP:CURR:RANG 10")
    rows_of(meter, 13)
    assert "5 A, now 300 V 10 A" in told(meter)["range"]["text"]


def test_a_range_left_too_high_is_advised_against(bench):
    meter = bench().open(current_a=20)  # 120 kW for 4.5 kW
    rows_of(meter, 11)
    assert "may be off by" in told(meter)["advice"]["text"]


def test_over_range_is_no_number(bench):
    served = bench()
    meter = served.open(integration="off")
    rows_of(meter, 1)
    served.instrument.execute(":INP:CURR:RANG 0.5")  # 10 A with the transformer: 140 % are passed
    with pytest.raises(ReadFailed, match="over range"):
        rows_of(meter, 1)
    served.instrument.execute(":INP:CURR:RANG 5")
    served.pass_time(0.2)
    assert rows_of(meter, 2)[-1]["power_w"] > 4000
    assert any(e["what"] == "over-range" and e["element"] == 1 for e in meter.events())


def test_an_instrument_that_answers_one_question_at_a_time(bench):
    served = bench()
    cable = VirtualCable(served, spoil=lambda answer: answer.split(";")[0])
    meter = served.open(cable)
    first, second = energies(rows_of(meter, 2))
    assert second > first
    assert "poll" in told(meter)
    meter.close()
    assert cable.log[-2:] == [":COMM:HEAD 1", "close"]


def test_a_spoilt_digit_is_a_failure_and_a_new_link(bench):
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
    with pytest.raises(ReadFailed, match="do not fit together"):
        rows_of(meter, 1)
    assert rows_of(meter, 1)[0]["power_w"] == good
    meter.close()
    assert served.instrument.execute(":INTEG:STAT?").endswith("RES")
