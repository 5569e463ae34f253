"""Energy adds up over wraps, resets and gaps, and never falls."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulelab.agent.energy import Counter, Integral, power_channels
from joulelab.agent.watched import Watched, continued, sums_of
from joulelab.core.clock import NS
from joulelab.core.spec import Accuracy, Spec, Stream

MODULUS = 262_143.328850


def counter(**more):
    return Counter(Spec("energy_j", "energy", "J", "counter", 0.001, **more), 1.0, "cpu:0")


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
    one = Counter(spec, 1.0, "outlet:pdu1.1")
    for k, value in enumerate([0.0, 0.0, 360e3, 360e3]):
        one.add(k * NS, value, nan)
    assert (one.total_j, one.resets) == (360e3, 0)


def test_a_gap_costs_a_counter_nothing_and_a_power_all_of_it():
    one, other = counter(), Integral(1.0)
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


def test_the_power_that_averages_longest_is_shown():
    short = Spec("power_instant_w", "power", "W", "power", 0.1, 0.025)
    assert power_channels(stream("gpu:0", ENERGY, short, POWER)) == [2, 1]
    one = Watched("nvml", stream("gpu:0", ENERGY, short, POWER))
    one.take(NS, [5.0, 300.0, 200.0])
    assert one.power_w == 200.0
    one.take(2 * NS, [205.0, 300.0, nan])
    assert (one.power_w, one.energy_j, one.source, one.gain) == (300.0, 200.0, "counter", None)


def test_a_quick_counter_tells_the_power_too():
    one = Watched("rapl", stream("cpu:0", ENERGY))
    for t_ms, joules in ((0, 0.0), (100, 10.0), (500, 60.0), (1500, 160.0)):
        one.take(NS + t_ms * 1_000_000, [joules])
    assert one.power_w == pytest.approx(100.0)
    one.take(60 * NS, [9e3])
    assert one.power_w != one.power_w, "after a gap it begins anew"


def test_what_has_no_counter_value_is_integrated():
    one = Watched("pdu", stream("node.ac", POWER, ENERGY))
    for t in range(3):
        one.take((1 + t) * NS, [100.0, nan])
    assert (one.energy_j, one.source, one.gain) == (200.0, "integrated", 0.01)


def test_a_stream_that_comes_back_a_little_different_goes_on():
    old = Watched("rapl", stream("cpu:0", ENERGY))
    for t, joules in ((1, 500.0), (2, 600.0)):
        old.take(t * NS, [joules])
    new = continued(Watched("rapl", stream("cpu:0", replace(ENERGY, update_s=0.002))), old)
    new.take(3 * NS, [700.0])
    assert new.energy_j == 200.0
    other = continued(Watched("rapl", stream("cpu:0", ENERGY, device="another")), old)
    other.take(3 * NS, [700.0])
    assert other.energy_j == 0.0


def cord(meter, n, parts=2, family="outlet"):
    scope = f"{family}:{meter}.{n}" if family == "outlet" else f"{family}:{n}"
    return Watched(meter, stream(scope, POWER, parent="node.ac", sums="node.ac", parts=parts))


def test_cords_of_several_pdus_are_one_node_and_only_when_all_are_read():
    left, right = cord("a", 1), cord("b", 1)
    (total,) = sums_of([left, right])
    assert total.place.meter == "a+b"
    left.take(NS, [100.0])
    assert total.power_w(2 * NS) != total.power_w(2 * NS)
    right.take(NS, [50.0])
    assert total.power_w(2 * NS) == 150.0
    assert total.power_w(20 * NS) != 150.0, "a reading of long ago is none"
    (alone,) = sums_of([left])
    assert alone.energy_j != alone.energy_j


def test_two_meters_that_list_the_same_supplies_are_two_sums():
    supplies = [cord(meter, n, family="psu") for meter in ("bmc", "redfish") for n in (1, 2)]
    for one in supplies:
        one.take(NS, [100.0])
    assert [(t.place.meter, t.power_w(NS)) for t in sums_of(supplies)] == [("bmc", 200.0), ("redfish", 200.0)]


def test_supplies_of_a_bmc_are_not_added_to_outlets_nor_to_its_own_total():
    supplies = [cord("bmc", n, family="psu") for n in (1, 2)]
    outlets = [cord("pdu", n) for n in (1, 2)]
    whole = Watched("bmc", stream("node.ac", POWER))
    assert [t.place.meter for t in sums_of([*supplies, *outlets])] == ["bmc", "pdu"]
    assert [t.place.meter for t in sums_of([whole, *supplies, *outlets])] == ["pdu"]
