"""Sums that count nothing twice, what is left of a node, and net of idle."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.analysis.folders import NVML, Folder, counter, gpu, power
from tests.analysis.nodes import END, START, T, busy, node
from tests.analysis.virtual import ns
from tests.rows import every_row

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.readings import Readings, SteppedPower, add_powers
from joulelab.analysis.result import Lag, is_efficiency_resolved
from joulelab.core.quantity import Quantity
from joulelab.core.spec import Spec, Stream


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


# Sums.


def energies(result):
    return {g.name: (g.scopes, pytest.approx(g.energy.value, rel=0.005, abs=70)) for g in result.groups}


def test_families_are_summed_and_parts_of_a_package_are_not_added_to_it(folder):
    found = energies(analyse_run(node(folder).close(START, END).open()))
    assert found == {
        "gpu": (("gpu:0", "gpu:1"), 8000.0),
        "cpu": (("cpu:0", "cpu:1"), 2000.0),
        "core": (("core:0", "core:1"), 1400.0),
        "dram": (("dram:0", "dram:1"), 400.0),
        "measured": (("gpu:0", "gpu:1", "cpu:0", "cpu:1", "dram:0", "dram:1"), 10400.0),
    }


def test_psys_stands_beside_packages_and_in_no_sum_with_them(folder):
    """What it covers is up to the board's maker: it may hold the packages, or the whole board, GPUs too."""
    result = analyse_run(node(folder, psys=300.0).close(START, END).open())
    assert energies(result)["psys"] == (("psys",), 3000.0)
    assert energies(result)["measured"] == (("gpu:0", "gpu:1", "cpu:0", "cpu:1", "dram:0", "dram:1"), 10400.0)
    alone = Folder(folder.path.parent).add("rapl", counter("psys"), T, busy(90.0, 300.0)[0])
    assert energies(analyse_run(alone.close(START, END).open()))["measured"] == (("psys",), 3000.0)


def test_accelerator_boards_and_modules_count_nothing_twice(folder):
    """A board may hold GPUs that are measured, too; a family without a number holds its members."""
    whole = node(folder)
    for scope in ("accel:0", "cpu"):
        whole.add("cray", counter(scope), T, busy(90.0, 300.0)[0])
    found = energies(analyse_run(whole.close(START, END).open()))
    assert found["cpu"] == (("cpu",), 3000.0)
    assert found["accel"] == (("accel:0",), 3000.0)
    assert found["measured"][0] == ("gpu:0", "gpu:1", "cpu", "dram:0", "dram:1")


def test_the_node_holds_everything_and_its_rest_is_named(folder):
    result = analyse_run(node(folder, ac=1400.0, dc=1300.0).close(START, END).open())
    found = energies(result)
    assert found["measured"] == (("node.ac",), 14000.0)
    parts = ("gpu:0", "gpu:1", "cpu:0", "cpu:1", "dram:0", "dram:1")
    assert found["rest of node.ac"] == (parts, 3600.0)
    assert found["rest of node.dc"] == (parts, 2600.0)
    assert found["supply loss"] == (("node.dc",), 1000.0)
    assert result.ratios["supply efficiency"].value == pytest.approx(13 / 14, rel=1e-3)
    assert result.to_json()["ratios"]["supply efficiency"]["is_resolved"] is is_efficiency_resolved(
        result.ratios["supply efficiency"]
    )
    rest = result.group("rest of node.dc")
    assert rest.mean_w.value == pytest.approx(260.0, rel=0.03)
    assert rest.net is None
    # Different meters: their gains do not cancel in the rest.
    gains = [result.group(n).energy.budget()["gain"] for n in ("node.dc", "gpu", "cpu", "dram")]
    assert rest.energy.budget()["gain"] == pytest.approx(math.hypot(*gains[:2], gains[2] + gains[3]), rel=1e-3)


@pytest.mark.parametrize(("ac", "is_resolved"), [(1400.0, True), (1050.0, False)])
def test_a_rest_that_is_smaller_than_its_interval_is_marked(folder, ac, is_resolved):
    result = analyse_run(node(folder, ac=ac).close(START, END).open())
    rest = result.group("rest of node.ac")
    assert rest.is_resolved is is_resolved
    assert next(g["is_resolved"] for g in result.to_json()["groups"] if g["name"] == rest.name) is is_resolved


@every_row(
    ("value", "u", "is_resolved"),
    [(0.94, 0.02, True), (0.94, 0.06, False), (1.01, 0.01, False), (-0.1, 0.01, False), (0.98, 0.03, True)],
)
def test_an_efficiency_is_resolved_to_ten_points(value, u, is_resolved):
    assert is_efficiency_resolved(Quantity(value, {"gain:a": u})) is is_resolved
    assert is_efficiency_resolved(Quantity(value, {"gain:a": u}, known=False)) is (0 <= value <= 1)


@every_row(
    ("lag_s", "u_s", "why", "is_resolved"),
    [(2.0, 0.1, "", True), (0.1, 0.1, "no-lag", False), (1.0, 0.1, "no-lag", True), (2.0, 0.1, "load-repeats", False),
     (0.0, math.inf, "constant-power", False)],
)  # fmt: skip
def test_a_lag_is_resolved_if_it_differs_from_zero_and_no_other_fits(lag_s, u_s, why, is_resolved):
    lag = Lag("h", "m", "s", "node.ac", "gpu", lag_s, u_s, 0.9, applied=not why, why=why, total_s=lag_s)
    assert lag.is_resolved is is_resolved


@pytest.mark.parametrize("psys", [None, 300.0])
def test_a_node_behind_containers_that_nobody_measured_still_holds_all(folder, psys):
    """Node AC without node DC, packages that name a psys that was not read: nothing is counted beside the node."""
    for scope, parent in (("cpu:0", "psys"), ("core:0", None), ("gpu:0/mig:1", None), ("cpu:1/die:0", None)):
        folder.add("rapl", counter(scope, parent), T, busy(30.0, 100.0)[0])
    folder.add("bmc", power("node.ac"), T, busy(200.0, 1400.0)[1])
    if psys:
        folder.add("rapl", counter("psys"), T, busy(90.0, psys)[0])
    found = energies(analyse_run(folder.close(START, END).open()))
    assert found["measured"] == (("node.ac",), 14000.0)
    assert found["rest of node.ac"][0] == ("gpu:0/mig:1", "cpu:0", "cpu:1/die:0")


def test_dies_stand_for_a_package_that_was_not_read_itself(folder):
    for die in (0, 1):
        folder.add("rapl", counter(f"cpu:0/die:{die}"), T, busy(30.0, 100.0)[0])
    assert energies(analyse_run(folder.close(START, END).open()))["cpu"] == (("cpu:0/die:0", "cpu:0/die:1"), 2000.0)


def test_two_nodes_are_added(folder):
    for host in ("node1", "node2"):
        folder.add("nvml", gpu(0), T, *busy(50.0, 400.0), host=host)
    folder.add("bmc", power("node.ac"), T, busy(200.0, 700.0)[1], host="node2")
    result = analyse_run(folder.close(START, END).open())
    assert energies(result)["measured"] == (("gpu:0", "node.ac"), 11000.0)
    assert energies(result)["gpu"] == (("gpu:0", "gpu:0"), 8000.0)


def test_an_estimate_is_marked_and_does_not_count_beside_a_measurement(folder):
    node(folder, gpus=1, ac=700.0)
    folder.add("estimate", power("cpu", estimate=True), T, busy(10.0, 150.0)[1])
    result = analyse_run(folder.close(START, END).open())
    assert result.group("cpu").scopes == ("cpu:0", "cpu:1")
    assert not result.group("cpu").estimate
    assert not result.group("measured").estimate
    alone = Folder(folder.path.parent)
    alone.add("nvml", gpu(0), T, *busy(50.0, 400.0)).add("bmc", power("node.ac"), T, busy(200.0, 700.0)[1])
    alone.add("estimate", power("cpu", estimate=True), T, busy(10.0, 150.0)[1])
    result = analyse_run(alone.close(START, END).open())
    assert result.group("cpu").estimate
    assert result.group("rest of node.ac").estimate, "a rest with an estimate in it is one"
    assert not result.group("measured").estimate, "the node was measured"


@pytest.mark.parametrize("tick", [0.02, 0.1, 1.0])
@pytest.mark.parametrize("end", [5.15, 5.5, 7.0, END])
def test_the_highest_power_is_never_below_the_mean(folder, tick, end):
    """Means over fifty steps of a counter reach beyond a short run, into idle time."""
    joules, watts = busy(50.0, 400.0)
    spec = Spec("energy_j", "energy", "J", "counter", tick, accuracy=NVML)
    folder.add("nvml", Stream("gpu:0", "energy", "gpu:0", 0.1, (spec,)), T, joules)
    folder.add("bmc", power("node.ac"), T, 2 * watts)
    result = analyse_run(folder.close(START, end).open())
    found = [(s.mean_w.value, s.statistics) for s in result.scopes if s.statistics is not None]
    found += [(g.mean_w.value, g.statistics) for g in result.groups if g.statistics is not None]
    assert len(found) >= 2
    assert all(statistics.minimum <= mean <= statistics.maximum for mean, statistics in found)
    counted = next(s for s in result.scopes if s.scope == "gpu:0")
    assert (counted.statistics is None) == (end - START < 50 * tick + 0.1)


# Net of idle.


def test_net_of_idle_keeps_only_the_gain_of_what_is_left(folder):
    node(folder, gpus=1).event(4.0, "idle", **{"from": ns(1.0), "to": ns(4.0)})
    (found, *_) = analyse_run(folder.close(START, END).open()).scopes
    assert found.idle_w.value == pytest.approx(50.0, rel=0.01)
    assert found.net.value == pytest.approx(3500.0, rel=0.01)
    assert found.net.budget()["gain"] == pytest.approx(3500 * 0.05 / math.sqrt(3), rel=0.01)
    # The edges of the idle stretch are other edges; they count by the length of the run.
    idle_edge, edge = found.idle_w.budget()["edge"], found.energy.budget()["edge"]
    assert found.net.budget()["edge"] == pytest.approx(math.hypot(edge, 10 * idle_edge), rel=1e-6)


def test_what_a_sensor_may_have_missed_in_the_load_does_not_cancel_against_idle(folder):
    folder.add("nvml", gpu(0, seen=0.25), T, *busy(50.0, 400.0))
    folder.event(4.0, "idle", **{"from": ns(1.0), "to": ns(4.0)})
    (found,) = analyse_run(folder.close(START, END).open()).scopes
    assert found.energy.budget()["unseen"] > 1000
    assert found.net.budget()["unseen"] == pytest.approx(found.energy.budget()["unseen"])
    assert "unseen" not in found.idle_w.budget(), "nothing ran that could have been in step with the sensor"
    assert found.net.without("unseen").u < 400


def test_the_groups_net_needs_all_of_them(folder):
    node(folder).event(4.0, "idle", **{"from": ns(1.0), "to": ns(4.0)})
    result = analyse_run(folder.close(START, END).open())
    assert result.group("measured").net.value == pytest.approx(7000 + 1400 + 300, rel=0.02)
    assert analyse_run(node(Folder(folder.path.parent)).close(START, END).open()).group("measured").net is None


# The power of a sum over time.


def test_the_peak_of_a_sum_is_that_of_its_parts_at_one_time(folder):
    """Two GPUs that take turns never draw both peaks at once."""
    first = np.where((T >= START) & (T < START + 2), 400.0, 50.0)
    second = np.where(T >= START + 2, 300.0, 50.0)
    folder.add("nvml", power("gpu:0"), T, first).add("nvml2", power("gpu:1"), T + 0.004, second)
    result = analyse_run(folder.close(START, END).open())
    found = result.group("gpu").statistics
    assert [s.statistics.maximum for s in result.scopes] == [400.0, 300.0]
    assert found.maximum == pytest.approx(450.0)
    assert found.minimum == pytest.approx(350.0)


def test_a_sum_has_no_peak_if_a_part_shows_no_power_over_time(folder):
    joules, watts = busy(50.0, 400.0)
    total = Stream("gpu:1", "energy", "gpu:1", 100.0, (Spec("energy_j", "energy", "J", "counter", 0.1, accuracy=NVML),))
    folder.add("nvml", power("gpu:0"), T, watts).add("nvml2", total, T[[0, -1]], joules[[0, -1]])
    assert analyse_run(folder.close(START, END).open()).group("gpu").statistics is None


def test_powers_are_added_where_all_of_them_are_known():
    def make(times_s, watts, step_s, window_s=0.1):
        t = np.rint(np.asarray(times_s) * 1e9).astype(np.int64)
        return SteppedPower(Readings(t, t, np.asarray(watts, float)), step_s, window_s)

    slow = make([0, 1, 2, 3], [10, 20, 30, 40], 1.0, 1.0)
    fast = make([0.0, 0.1, 0.9, 1.05, 9.0], [1, 2, 3, 4, 5], 0.1)
    found = add_powers([slow, fast])
    assert found.readings.value.tolist() == [11, 24]  # at 2 and 3 s the fast one has a gap
    assert (found.step_s, found.window_s) == (1.0, 1.0)
    assert add_powers([slow, make([0.0], [1.0], 0.1, None)]).window_s is None
    assert add_powers([slow, make([], [], 0.1)]) is None
    assert add_powers([slow, make([90.0], [1.0], 0.1)]) is None
    assert add_powers([]) is None


def test_a_rest_without_a_power_over_time_does_not_get_that_of_its_parts(folder):
    total = Stream(
        "node.ac", "energy", "node.ac", 100.0, (Spec("energy_j", "energy", "J", "counter", 0.1, accuracy=NVML),)
    )
    for scope in ("gpu:0", "gpu:1"):
        folder.add(f"nvml-{scope[-1]}", power(scope), T, busy(50.0, 400.0)[1])
    folder.add("bmc", total, T[[0, -1]], busy(300.0, 2000.0)[0][[0, -1]])
    result = analyse_run(folder.close(START, END).open())
    assert result.group("gpu").statistics.maximum == pytest.approx(800.0)
    assert len(result.group("rest of node.ac").scopes) == 2
    assert result.group("rest of node.ac").statistics is None
