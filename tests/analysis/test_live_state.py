"""Power now and energy so far from readings: wraps, resets, gaps and cords; the totals never fall."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.make import gpus, make_run, open_journal, ramp, write_rows

from joulelab.analysis.live_energy import _RecentRun
from joulelab.analysis.live_state import (
    NOW_S,
    CordSum,
    CounterTotal,
    JournalFollower,
    LiveState,
    PowerIntegral,
    StreamState,
)
from joulelab.core.clock import NS
from joulelab.core.spec import Accuracy, Spec, Stream

MODULUS = 262_143.328850


def counter(**more):
    return CounterTotal(Spec("energy_j", "energy", "J", "counter", 0.001, **more), 1.0, "cpu:0")


@given(st.lists(st.floats(0, 2000), min_size=1, max_size=50), st.floats(0, MODULUS - 1))
def test_wraps_cost_nothing(powers, start):
    one, true = counter(modulus=MODULUS), start
    one.add(0, start, nan)
    for k, watts in enumerate(powers, 1):
        true += watts
        one.add(k * NS, true % MODULUS, nan)
    assert one.total_j == pytest.approx(true - start, abs=1e-6 * max(true, 1))
    assert one.resets == 0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60), st.booleans())
def test_a_total_never_falls_whatever_is_read(values, wraps):
    one, before = counter(modulus=MODULUS if wraps else None), 0.0
    for k, value in enumerate(values):
        one.add(k * NS, value, 100.0)
        assert before <= one.total_j < float("inf")
        before = one.total_j


def test_a_wrap_is_told_from_a_reset():
    one = counter(modulus=MODULUS)
    for k, value in enumerate([MODULUS - 100, 100.0, 150_000.0, 20.0]):
        one.add((1 + k * 40) * NS if k < 3 else 82 * NS, value, 150.0)
    # From 150 kJ to 20 J within a second: no CPU draws what a wrap would take.
    assert (one.total_j, one.resets) == (pytest.approx(200 + 149_900 + 150), 1)


def test_a_reset_is_bridged_by_the_power_beside_it():
    one = counter()
    for k, (value, watts) in enumerate([(5000, 100), (5100, 100), (20, 120), (140, 120)]):
        one.add(k * NS, value, watts)
    assert (one.total_j, one.resets) == (100 + 120 + 120, 1)
    blind = counter()
    for k, value in enumerate([5000, 5100, 20, 140]):
        blind.add(k * NS, value, nan)
    assert blind.total_j == 100 + 120


def test_a_jump_that_no_power_explains_is_no_energy():
    one = counter(limits=(0.0, 700.0))
    for k, value in enumerate([0.0, 600.0, 9e9, 9e9 + 600]):
        one.add(k * NS, value, 600.0)
    assert (one.total_j, one.resets) == (1800.0, 1)


def test_a_coarse_counter_may_step():
    spec = Spec("energy_j", "energy", "J", "counter", 1.0, accuracy=Accuracy("assumed", 0.01, quantum=360e3))
    one = CounterTotal(spec, 1.0, "outlet:pdu1.1")
    for k, value in enumerate([0.0, 0.0, 360e3, 360e3]):
        one.add(k * NS, value, nan)
    assert (one.total_j, one.resets) == (360e3, 0)


def test_a_gap_costs_a_counter_nothing_and_a_power_all_of_it():
    one, other = counter(), PowerIntegral(1.0)
    for t, value in ((0, 0.0), (1, 100.0), (61, 6100.0), (62, 6200.0)):
        one.add(t * NS, value, nan)
        other.add(t * NS, 100.0)
    assert (one.total_j, other.total_j) == (6200.0, 200.0)
    for wrong in (nan, float("inf"), -5.0):
        assert other.add(63 * NS, wrong) == 0.0


def stream(scope, *channels, **more):
    return Stream(scope, "power", scope, 1.0, channels, **more)


POWER = Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=Accuracy("assumed", 0.01))
ENERGY = Spec("energy_j", "energy", "J", "counter", 0.001, accuracy=Accuracy("unknown"))


def take(one: StreamState, seconds: float, values: list[float]) -> None:
    one.add(round(seconds * NS), round(seconds * NS), values)


def now_w(one: StreamState | CordSum, seconds: float) -> float:
    power = one.find_power(round((seconds - NOW_S) * NS), round(seconds * NS))
    return nan if power is None else power.watts


def test_of_one_stream_the_power_that_leaves_least_unseen_is_taken():
    short = Spec("power_instant_w", "power", "W", "power", 0.1, 0.025)
    one = StreamState("nvml", stream("gpu:0", ENERGY, short, POWER))
    take(one, 1, [5.0, 300.0, 200.0])
    assert now_w(one, 1) == 200.0
    take(one, 2, [205.0, 300.0, nan])
    assert (now_w(one, 2), one.energy_j, one.source, one.gain) == (300.0, 200.0, "counter", None)


def test_a_quick_counter_tells_the_power_too():
    one = StreamState("rapl", stream("cpu:0", ENERGY))
    for t_ms, joules in ((0, 0.0), (100, 10.0), (500, 60.0), (1500, 160.0)):
        take(one, 1 + t_ms / 1000, [joules])
    assert now_w(one, 2.5) == pytest.approx(100.0)
    take(one, 60, [9e3])
    assert isnan(now_w(one, 60)), "after a gap it begins anew"


def test_what_has_no_counter_value_is_integrated():
    one = StreamState("pdu", stream("node.ac", POWER, ENERGY))
    for t in range(3):
        take(one, 1 + t, [100.0, nan])
    assert (one.energy_j, one.source, one.gain) == (200.0, "integrated", 0.01)


def test_a_counter_that_is_stuck_gives_neither_energy_nor_power():
    one = StreamState("pdu", stream("node.ac", POWER, ENERGY))
    for t in range(12):
        take(one, 1 + t, [100.0, 7000.0])
    assert (one.energy_j, one.source) == (1100.0, "integrated")
    assert now_w(one, 12) == 100.0
    for t in range(12, 20):  # idle, then it steps: the total never falls
        take(one, 1 + t, [0.0, 7000.0 + t])
    assert (one.energy_j, one.source) == (1150.0, "integrated")
    alone = StreamState("rapl", stream("cpu:0", ENERGY))
    for t in range(12):
        take(alone, 1 + t, [7000.0])
    assert (isnan(now_w(alone, 12)), alone.energy_j) == (True, 0.0)


def test_a_counter_that_rests_between_two_steps_is_not_stuck():
    coarse = Spec("energy_j", "energy", "J", "counter", 1.0, accuracy=Accuracy("assumed", 0.01, quantum=360e3))
    rests = StreamState("pdu", stream("node.ac", POWER, coarse))
    idle = StreamState("pdu", stream("node.ac", POWER, ENERGY))
    for t in range(100):
        take(rests, 1 + t, [100.0, 360e3])
        take(idle, 1 + t, [0.5, 7000.0])
    assert (rests.source, idle.source) == ("counter", "counter")


def test_a_reading_is_now_for_three_periods():
    slow = StreamState("bmc", Stream("node.dc", "power", "node.dc", 5.0, (POWER,)))
    take(slow, 10, [400.0])
    assert (now_w(slow, 12), now_w(slow, 25)) == (400.0, 400.0)
    assert isnan(now_w(slow, 25.1))
    for wrong in (nan, float("inf")):
        take(slow, 26, [wrong])
        assert isnan(now_w(slow, 26))


def test_values_that_are_older_than_their_read_count_at_their_own_time():
    age = Spec("age_s", "age", "s")
    one = StreamState("bmc", stream("node.dc", POWER, age))
    take(one, 10, [400.0, 2.0])
    assert (now_w(one, 11), isnan(now_w(one, 11.1))) == (400.0, True)


def test_a_stream_that_comes_back_a_little_different_goes_on():
    node = LiveState()
    old = node.add_stream("rapl", stream("cpu:0", ENERGY))
    for t, joules in ((1, 500.0), (2, 600.0)):
        take(old, t, [joules])
    new = node.add_stream("rapl", stream("cpu:0", replace(ENERGY, update_s=0.002)))
    take(new, 3, [700.0])
    assert new.energy_j == 200.0
    assert node.add_stream("rapl", new.stream) is new
    other = node.add_stream("rapl", stream("cpu:0", ENERGY, device="another"))
    take(other, 3, [700.0])
    assert other.energy_j == 0.0


def cords(*meters: str, family: str = "outlet", count: int = 1, node: LiveState | None = None) -> LiveState:
    """Return a node with cords that two meters, or one, read."""
    node = node or LiveState()
    for meter in meters:
        for n in range(1, count + 1):
            scope = f"{family}:{meter}.{n}" if family == "outlet" else f"{family}:{n}"
            node.add_stream(meter, stream(scope, POWER, parent="node.ac", sums="node.ac", parts=2))
    return node


def test_cords_of_several_pdus_are_one_node_and_only_when_all_are_read():
    node = cords("a", "b")
    left, right = node.streams.values()
    (total,) = node.list_cord_sums()
    assert total.meter == "a+b"
    take(left, 1, [100.0])
    assert isnan(now_w(total, 2))
    take(right, 1, [50.0])
    assert now_w(total, 2) == 150.0
    assert node.sum_powers(2 * NS) == {"outlet": 150.0, "node.ac": 150.0, "measured": 150.0}
    assert isnan(now_w(total, 20)), "a reading of long ago is none"
    (alone,) = cords("a").list_cord_sums()
    assert isnan(alone.energy_j)


def test_two_meters_that_list_the_same_supplies_are_two_sums():
    node = cords("bmc", "redfish", family="psu", count=2)
    for one in node.streams.values():
        take(one, 1, [100.0])
    assert [(t.meter, now_w(t, 1)) for t in node.list_cord_sums()] == [("bmc", 200.0), ("redfish", 200.0)]
    assert node.sum_powers(NS)["measured"] == 200.0


def test_an_outlet_that_two_meters_read_counts_once():
    node = LiveState()
    for meter, watts in (("a", 100.0), ("b", 101.0)):
        for n in (1, 2):
            one = node.add_stream(meter, stream(f"outlet:{n}", POWER, parent="node.ac", sums="node.ac", parts=2))
            for t in (1, 2):
                take(one, t, [watts])
    (total,) = node.list_cord_sums()
    assert (now_w(total, 2), total.energy_j) == (200.0, 200.0)


def test_supplies_of_a_bmc_are_not_added_to_outlets():
    node = cords("pdu", count=2, node=cords("bmc", family="psu", count=2))
    assert [t.meter for t in node.list_cord_sums()] == ["bmc", "pdu"]


def test_an_estimate_does_not_count_beside_a_measurement():
    node = LiveState()
    for n, estimate in ((0, False), (1, True)):
        spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, estimate=estimate)
        take(node.add_stream(f"m{n}", stream(f"gpu:{n}", spec)), 1, [100.0])
    assert node.sum_powers(NS) == {"gpu": 100.0, "measured": 100.0}


def test_only_the_readings_that_a_power_needs_are_kept():
    one = StreamState("rapl", stream("cpu:0", ENERGY, POWER))
    for t in range(1, 1001):
        take(one, t, [100.0 * t, 100.0])
        one.forget((t - 1) * NS)
    assert all(len(channel.times) < 20 for channel in one.channels)
    assert (now_w(one, 1000), one.energy_j) == (100.0, 99_900.0)


def test_a_value_that_is_read_again_counts_once():
    one = StreamState("bmc", stream("node.dc", POWER, Spec("age_s", "age", "s")))
    for seconds, age_s in ((10, 2.0), (11, 3.0)):
        take(one, seconds, [400.0, age_s])
    assert one.channels[0].times == [8 * NS]


def test_each_counter_of_a_stream_that_comes_back_goes_on_by_its_name():
    node, core = LiveState(), replace(ENERGY, name="core_j")
    old = node.add_stream("rapl", stream("cpu:0", ENERGY, core))
    for t, joules in ((1, 500.0), (2, 600.0)):
        take(old, t, [joules, joules / 2])
    new = node.add_stream("rapl", stream("cpu:0", replace(ENERGY, update_s=0.002), core))
    take(new, 3, [700.0, 350.0])
    assert new.energy_j == 200.0


def test_a_sum_of_cords_is_as_sure_as_its_worst_cord():
    (total,) = cords("a", "b").list_cord_sums()
    assert (total.source, total.gain) == ("integrated", 0.01)
    node = LiveState()
    for n, gain in ((1, 0.01), (2, 0.02)):
        known = replace(POWER, accuracy=Accuracy("datasheet", gain))
        node.add_stream("pdu", stream(f"outlet:{n}", known, parent="node.ac", sums="node.ac", parts=2))
    (total,) = node.list_cord_sums()
    assert total.gain == 0.02


def test_journals_that_are_begun_and_rows_of_zeros_are_no_readings(tmp_path):
    run = make_run(tmp_path)
    path = write_rows(run, gpus(), ramp(10))
    (run / "node1" / "rapl.fast.0.journal").write_bytes(b"j")
    follower = JournalFollower(run / "node1")
    follower.read()
    newest = follower.find_newest_ns()
    assert newest == ramp(10)[-1][2]
    with open_journal(run, gpus(), segment=1) as other, path.open("ab") as file:
        file.write(bytes(other.row.size))
    follower.read()
    assert follower.find_newest_ns() == newest


def test_live_energies_need_no_marks_and_leave_sealed_rows_whole(tmp_path):
    run = make_run(tmp_path)
    write_rows(run, gpus(), ramp(10))
    with _RecentRun(run / "node1") as recent:
        assert recent.marks() == []
        (table,) = recent._tables()
        sealed = replace(table.segments[0], path=None)
        assert recent._cut_segment(sealed) is sealed
