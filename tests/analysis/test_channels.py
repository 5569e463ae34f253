"""From stored tables to curves: which channel is believed, and what bounds it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.folders import NVML, RAPL, Folder, counter, gpu, power, state
from tests.analysis.virtual import ns

from joulelab.analysis.channels import load_channels
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.unseen import PowerBounds
from joulelab.core.spec import Accuracy, Spec, Stream

T = np.arange(0, 10, 0.1)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def load(folder, idle=None):
    return load_channels(folder.open(), idle)


def test_a_working_counter_is_believed_before_a_power(folder):
    folder.add("nvml", gpu(0), T, 400 * T, np.full(T.size, 400.0))
    (scope,) = load(folder)
    assert [c.spec.name for c in scope.channels] == ["energy_j", "power_instant_w"]
    assert scope.best.curve.power is scope.channels[1].curve
    assert scope.find_power().spec.name == "power_instant_w"
    assert (scope.scope, scope.host, scope.parent) == ("gpu:0", "node1", "node.dc")
    assert not scope.best.frozen
    assert scope.best.step_s == 0.1
    assert scope.best.coverage(ns(1), ns(9)) == 1.0


def test_a_frozen_counter_is_not(folder):
    folder.add("nvml", gpu(0), T, np.full(T.size, 5e6), np.full(T.size, 400.0))
    (scope,) = load(folder)
    assert scope.best.spec.name == "power_instant_w"
    assert [c.frozen for c in scope.channels] == [False, True]


def test_a_counter_that_stands_still_because_nothing_was_used_is(folder):
    folder.add("nvml", gpu(0), T, np.full(T.size, 5e6), np.zeros(T.size))
    (scope,) = load(folder)
    assert isinstance(scope.best.curve, CounterCurve)


def test_measured_comes_before_estimated_and_known_before_unknown(folder):
    estimate = power("cpu:0", estimate=True)
    unknown = replace(power("cpu:0"), name="odd", channels=(replace(power("x").channels[0], accuracy=Accuracy()),))
    folder.add("estimate", estimate, T, np.full(T.size, 90.0))
    folder.add("odd", unknown, T, np.full(T.size, 91.0))
    folder.add("bmc", power("cpu:0"), T, np.full(T.size, 92.0))
    (scope,) = load(folder)
    assert [c.meter for c in scope.channels] == ["bmc", "odd", "estimate"]
    assert scope.find_power().meter in ("bmc", "odd"), "an estimate never stands for what was measured"


def test_an_estimate_shows_power_where_there_is_nothing_else(folder):
    folder.add("estimate", power("cpu", estimate=True), T, np.full(T.size, 90.0))
    assert load(folder)[0].find_power().meter == "estimate"
    assert load(folder)[0].parent == "node.dc"


def test_a_scope_without_power_has_none_to_show(folder):
    folder.add("rapl", counter("cpu:0", "psys"), T, 100 * T)
    (scope,) = load(folder)
    assert scope.find_power() is None
    assert scope.parent == "psys"
    assert scope.best.curve.power is None


def test_one_reading_makes_no_scope_and_other_counters_are_not_energy(folder):
    folder.add("nvml", gpu(0), T[:1], [1.0], [400.0])
    loaded = Stream("machine", "machine", "host", 1.0, (Spec("disk_read_b", "disk", "B", "counter"),))
    folder.add("host", loaded, T, T)
    assert load(folder) == []


def test_what_was_not_read_is_left_out_of_each_channel(folder):
    watts = np.where(T < 5, np.nan, 400.0)
    folder.add("nvml", gpu(0), T, 400 * T, watts)
    (scope,) = load(folder)
    assert len(scope.best.readings) == 100
    assert len(scope.find_power().readings) == 50


def test_scopes_come_from_the_chip_to_the_wall_by_host(folder):
    for scope in ("dram:0", "cpu:0"):
        folder.add("rapl", counter(scope), T, 100 * T)
    for k in (10, 2):
        folder.add("nvml", gpu(k), T, 400 * T, np.full(T.size, 400.0))
    folder.add("bmc", power("node.ac"), T, np.full(T.size, 900.0), host="node0")
    found = [(s.host, s.scope) for s in load(folder)]
    assert found == [("node0", "node.ac"), *(("node1", s) for s in ("gpu:2", "gpu:10", "cpu:0", "dram:0"))]


def test_the_enforced_cap_and_the_idle_stretch_bound_what_was_not_seen(folder):
    watts = np.where(T < 3, 80.0, 390.0)
    folder.add("nvml", gpu(0), T, np.cumsum(watts) / 10, watts)
    assert load(folder)[0].find_power().curve.bounds == PowerBounds(0.0, 700.0)
    folder.add("nvml", state(0, "cap_enforced_w", "load"), [1.0, 2.0], [400.0, 400.0], [0.0, 1.0])
    (scope,) = load(folder)
    assert scope.find_power().curve.bounds == PowerBounds(0.0, 400.0)
    assert sorted(scope.state) == ["cap_enforced_w", "load"]
    (scope,) = load(folder, idle=(ns(0.5), ns(2.5)))
    assert scope.find_power().curve.bounds.low == pytest.approx(80 * 0.95)  # idle, less what the sensor may be off
    assert scope.best.curve.bounds == scope.find_power().curve.bounds
    (scope,) = load(folder, idle=(ns(20), ns(30)))
    assert scope.find_power().curve.bounds.low == 0.0, "no reading in the idle stretch says nothing"


def test_a_cap_that_was_exceeded_bounds_nothing(folder):
    folder.add("nvml", gpu(0), T, 450 * T, np.full(T.size, 450.0))
    folder.add("nvml", state(0, "cap_enforced_w"), [1.0, 2.0], [400.0, 400.0])
    assert load(folder)[0].find_power().curve.bounds.high == 450.0


def test_power_that_fell_below_idle_later_lowers_the_bound(folder):
    watts = np.where(T < 3, 80.0, 60.0)
    folder.add("nvml", gpu(0), T, np.cumsum(watts) / 10, watts)
    assert load(folder, idle=(ns(0.5), ns(2.5)))[0].find_power().curve.bounds.low == 60.0


def test_without_limits_the_bounds_are_what_was_seen(folder):
    bare = replace(power("node.ac"), channels=(replace(power("x").channels[0], limits=None),))
    folder.add("bmc", bare, T, 500 + 10 * T)
    assert load(folder, idle=(ns(0), ns(1)))[0].find_power().curve.bounds == PowerBounds(500.0, pytest.approx(599.0))


def test_names_tell_channels_of_all_hosts_apart(folder):
    for host in ("node1", "node2"):
        folder.add("nvml", gpu(0, given=replace(NVML, shared="")), T, 400 * T, np.full(T.size, 400.0), host=host)
    assert len({s.best.curve.name for s in load(folder)}) == 2
    assert RAPL.shared


def test_what_is_read_again_counts_once_at_the_time_it_is_of(folder):
    """A meter that is asked ten times a second, shows a value a second, and says how old it is."""
    age = Spec("age_s", "age", "s")
    stream = replace(power("node.ac"), channels=(*power("node.ac").channels, age))
    since = np.round(T % 1.0, 1) % 1.0
    late = np.random.default_rng(1).uniform(0, 0.004, T.size)  # how long the answer took
    folder.add("plug", stream, T, 500 + 10 * np.round(T - since), since + late)
    (scope,) = load(folder)
    found = scope.best.readings
    assert found.value.tolist() == [500.0 + 10 * k for k in range(10)]
    assert (found.t0_ns - ns(0)) / 1e9 == pytest.approx(np.arange(10), abs=0.005)
    assert scope.best.update_s == 0.0, "when it was refreshed is known"


def test_new_values_are_all_kept_in_the_order_of_their_times(folder):
    stream = replace(power("node.ac"), channels=(*power("node.ac").channels, Spec("age_s", "age", "s")))
    back = np.where(np.arange(T.size) == 50, 0.55, 0.0)  # one answer comes from before others
    back[3] = np.nan  # and of one nobody knows how old it is
    folder.add("plug", stream, T, 100 + T, back)
    found = load(folder)[0].best.readings
    assert len(found) == T.size - 1
    assert np.diff(found.t0_ns).min() > 0
    assert found.value[43:46] == pytest.approx([104.4, 105.0, 104.5])
