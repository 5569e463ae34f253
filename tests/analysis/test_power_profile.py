"""Power over time: it adds up to the printed energies, keeps every peak at every level, and shows gaps as gaps."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.folders import METER, Folder, counter, gpu, power, state
from tests.analysis.nodes import END, START, T, busy, node
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.power_profile import MOST_SCOPES, make_profile
from joulelab.analysis.profile_buckets import FEW, Buckets, make_grid, make_levels
from joulelab.core.spec import Spec, Stream


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def joules(profile, trace, level=0):
    """Return the energy of the workload by a trace's means at a level."""
    step = profile.grid.step_s * 4**level
    first, count = round(-profile.grid.from_s / step), round(profile.duration_s / step)
    return float(trace.levels[level].mean[first : first + count].sum() * step)


def stack(profile):
    return [t for t in profile.traces if t.role == "stack"]


def at(profile, trace, second, what="mean"):
    return float(getattr(trace.levels[0], what)[int((second - profile.grid.from_s) / profile.grid.step_s)])


# What it adds up to.


def test_the_stack_adds_up_to_the_printed_energy_by_family_and_as_a_whole(folder):
    run = node(folder, ac=1400.0).close(START, END).open()
    result, profile = analyse_run(run), make_profile(run)
    assert [t.id for t in stack(profile)] == ["gpu", "cpu", "dram", "rest"]
    for name in ("gpu", "cpu", "dram"):
        assert joules(profile, profile.trace(name)) == pytest.approx(result.group(name).energy.value, rel=1e-9)
    assert joules(profile, profile.trace("rest")) == pytest.approx(result.group("rest of node.ac").energy.value)
    assert sum(joules(profile, t) for t in stack(profile)) == pytest.approx(result.energy.value, rel=1e-9)
    assert joules(profile, profile.trace("whole")) == pytest.approx(result.energy.value, rel=1e-9)
    assert profile.trace("scope:gpu:0").unit == "W"
    assert profile.trace("nothing") is None


@pytest.mark.parametrize("asked", [{}, {"buckets": 40}])
def test_every_level_adds_up_and_holds_the_extremes_of_the_finer_one(folder, asked):
    t = np.arange(0, 700, 0.1)
    watts = 300 + 100 * np.sin(t / 7) + np.where((t > 399.96) & (t < 400.05), 350.0, 0.0)
    folder.add("bmc", power("node.ac"), t, watts).close(50.0, 650.0)
    profile = make_profile(folder.open(), **asked)
    trace = profile.trace("node.ac")
    assert [t.id for t in profile.traces] == ["node.ac"]
    assert profile.grid.levels == (1 if asked else 3)
    assert (profile.grid.count <= 44) == bool(asked)
    whole = analyse_run(folder.open()).energy.value
    for level, buckets in enumerate(trace.levels):
        assert joules(profile, trace, level) == pytest.approx(whole, rel=1e-9)
        assert np.nanmax(buckets.high) == pytest.approx(watts.max())  # one reading, at every level
        assert np.nanmin(buckets.low) == pytest.approx(watts.min(), abs=1e-3)
    assert len(trace.levels[-1].mean) < FEW


def test_idle_and_tail_are_there_and_time_zero_is_the_start(folder):
    profile = make_profile(node(folder, ac=1400.0).close(START, END).open())
    whole = profile.trace("whole")
    assert profile.grid.from_s == pytest.approx(-5.0, abs=0.2)
    assert profile.grid.to_s == pytest.approx(15.0, abs=0.3)
    assert [round(at(profile, whole, s)) for s in (-3.0, 3.0, 12.0)] == [200, 1400, 200]
    assert profile.raw_s == 0.1
    assert profile.zero_ns == ns(START)


def test_a_stretch_of_it_has_one_level_of_as_many_buckets_as_asked(folder):
    run = node(folder, ac=1400.0).close(START, END).open()
    for start, end, first, last in ((7.0, 9.0, 2.0, 4.0), (None, 9.0, -5.0, 4.0), (7.0, None, 2.0, 15.0)):
        given_ns = {"start_ns": start and ns(start), "end_ns": end and ns(end)}
        part = make_profile(run, buckets=10, **given_ns)
        assert (part.grid.from_s, part.grid.to_s) == pytest.approx((first, last), abs=0.2)
        assert part.grid.count == 10
        assert part.grid.levels == 1
        assert at(part, part.trace("whole"), 3.0) == pytest.approx(1400.0, rel=1e-6)
    assert make_profile(run, buckets=1000, start_ns=ns(7.0), end_ns=ns(7.0)).grid.count == 1
    assert make_profile(run, buckets=1000, start_ns=ns(7.0), end_ns=ns(9.0)).grid.step_s == pytest.approx(0.1)


@pytest.mark.system  # pure, and slow
@given(
    st.lists(st.floats(0, 800), min_size=8, max_size=60),
    st.floats(0.0, 0.7),
    st.floats(0.2, 5.0),
    st.integers(1, 300),
)
@settings(max_examples=25)
def test_any_load_adds_up(tmp_path_factory, watts, begin, length, buckets):
    t = np.arange(len(watts)) * 0.1
    folder = Folder(tmp_path_factory.mktemp("runs"))
    folder.add("bmc", power("node.ac"), t, watts)
    folder.add("nvml", gpu(0), t, np.concatenate(([0.0], np.cumsum(watts[:-1]) * 0.05)), np.array(watts) / 2)
    run = folder.close(begin, begin + length).open()
    result, profile = analyse_run(run), make_profile(run, buckets=buckets)
    for trace in stack(profile):
        low, mean, high = (getattr(trace.levels[0], k) for k in ("low", "mean", "high"))
        there = ~np.isnan(mean)
        assert (low[there] <= high[there]).all()
        assert np.isnan(low[~there]).all()
        assert np.isnan(high[~there]).all()
    covered = min(length, (len(watts) - 1) * 0.1 - begin)
    if covered >= length - 0.2 and profile.duration_s >= profile.grid.step_s:
        assert joules(profile, profile.trace("whole")) == pytest.approx(result.energy.value, rel=1e-6, abs=1e-6)


# What it is made of.


def test_without_a_node_the_parts_stand_for_themselves(folder):
    run = node(folder).close(START, END).open()
    profile = make_profile(run)
    assert profile.everything.label == "gpu + cpu + dram (6)"
    assert joules(profile, profile.everything) == pytest.approx(analyse_run(run).energy.value, rel=1e-9)
    assert [t.label for t in stack(profile)] == ["gpu (2)", "cpu (2)", "dram (2)"]
    assert sum(joules(profile, t) for t in stack(profile)) == pytest.approx(analyse_run(run).energy.value, rel=1e-9)


def test_hosts_are_added_and_named(folder):
    for host in ("node1", "node2"):
        folder.add("nvml", gpu(0), T, *busy(50.0, 400.0), host=host)
        folder.add("bmc", power("node.ac"), T, busy(200.0, 600.0)[1], host=host)
    run = folder.close(START, END).open()
    profile = make_profile(run)
    assert {t.id: t.label for t in profile.traces} == {
        "gpu": "gpu (2)",
        "rest": "rest of node.ac (2)",
        "whole": "node.ac (2)",
        "scope:node1/gpu:0": "node1/gpu:0",
        "scope:node2/gpu:0": "node2/gpu:0",
        "scope:node1/node.ac": "node1/node.ac",
        "scope:node2/node.ac": "node2/node.ac",
    }
    assert at(profile, profile.trace("whole"), 3.0) == pytest.approx(1200.0)
    assert at(profile, profile.trace("rest"), 3.0) == pytest.approx(400.0, rel=1e-2)


def test_other_meters_of_a_scope_are_beside_it(folder):
    node(folder, ac=1400.0)
    folder.add("pdu", power("node.ac", given=METER), T, busy(210.0, 1450.0)[1])
    profile = make_profile(folder.close(START, END).open())
    other = next(t for t in profile.traces if t.role == "other")
    assert other.label in ("node.ac by pdu", "node.ac by bmc")
    assert at(profile, other, 3.0) in (pytest.approx(1450.0), pytest.approx(1400.0))


def test_of_many_scopes_the_lowest_and_the_highest_are_shown(folder):
    for k in range(MOST_SCOPES + 1):
        energy, watts = busy(50.0, 100.0 + k)
        if k % 2:
            folder.add("nvml", gpu(k), T, energy, watts)
        else:
            folder.add("rapl", counter(f"gpu:{k}"), T, energy / 10)
    folder.add("rapl", counter("cpu:0"), T, busy(50.0, 300.0)[0])
    folder.add("bmc", power("node.ac"), T, busy(200.0, 9000.0)[1])
    folder.add("pdu", power("node.ac"), T, busy(200.0, 9000.0)[1])
    profile = make_profile(folder.close(START, END).open())
    assert [t.id for t in profile.traces if t.role == "scope"] == ["scope:gpu:1", f"scope:gpu:{MOST_SCOPES}"]
    assert profile.trace("gpu").label == f"gpu ({MOST_SCOPES + 1})"
    assert not any(t.role == "other" for t in profile.traces)


def test_load_caps_and_temperature_of_devices_are_together(folder):
    seconds = np.arange(0.0, 20.0)
    names = ("load", "cap_enforced_w", "cap_requested_w", "temperature_c")
    for k in (0, 1):
        folder.add("nvml", gpu(k), T, *busy(50.0, 400.0))
        folder.add("nvml", state(k, *names), seconds, *(np.full(20, v) for v in (0.5 + k / 4, 300, 1, 60 + 4 * k)))
    host = Stream("host", "host", "host", 1.0, (Spec("busy", "CPU load", "1"),))
    folder.add("host", host, seconds, np.linspace(0, 1, 20))
    workload = Stream("workload", "workload", "workload", 1.0, (Spec("load", "CPU load", "1"),))
    folder.add("host", workload, seconds, np.linspace(0, 1, 20))
    profile = make_profile(folder.close(START, END).open())
    found = {t.id: (t.label, t.unit, *(round(at(profile, t, 3.0, k), 1) for k in ("low", "mean", "high")))
             for t in profile.traces if t.role in ("load", "cap", "temperature")}  # fmt: skip
    assert found["load:gpu"] == ("gpu load (2)", "%", 50.0, 62.5, 75.0)
    assert found["cap:gpu"] == ("gpu cap (2)", "W", 600.0, 600.0, 600.0)
    assert found["temperature:gpu"] == ("gpu temperature (2)", "degC", 60.0, 62.0, 64.0)
    assert found["load:host"][:2] == ("host load", "%")
    assert at(profile, profile.trace("load:host"), 3.0) == pytest.approx(8 / 19 * 100, abs=6)
    assert "load:workload" not in found


def test_a_state_that_was_read_once_stands_where_it_was_read(folder):
    folder.add("nvml", gpu(0), T, *busy(50.0, 400.0)).add("nvml", state(0, "load"), [7.0], [0.5])
    profile = make_profile(folder.close(START, END).open())
    load = profile.trace("load:gpu").levels[0].mean
    assert np.nanmax(load) == pytest.approx(50.0)
    assert 1 <= int((~np.isnan(load)).sum()) <= 2


# What was not read.


def test_a_gap_is_a_gap(folder):
    keep = (T < 8.0) | (T > 11.0)
    energy, watts = busy(50.0, 400.0)
    folder.add("nvml", gpu(0), T[keep], energy[keep], watts[keep])
    folder.add("bmc", power("node.ac"), T, busy(200.0, 600.0)[1])
    profile = make_profile(folder.close(START, END).open())
    for name, gone in (("gpu", True), ("rest", True), ("whole", False)):
        trace = profile.trace(name)
        assert math.isnan(at(profile, trace, 4.5)) == gone
        assert not math.isnan(at(profile, trace, 2.0))
        assert not math.isnan(at(profile, trace, 7.0))
    high = profile.trace("gpu").levels[0].high
    assert (np.isnan(high) == np.isnan(profile.trace("gpu").levels[0].mean)).all()


def test_before_and_after_the_record_there_is_nothing(folder):
    folder.add("bmc", power("node.ac"), T[50:150], np.full(100, 300.0))
    folder.add("nvml", gpu(0), T, *busy(50.0, 200.0))
    profile = make_profile(folder.close(START + 1, END - 1).open())
    whole = profile.trace("whole")
    assert [math.isnan(at(profile, whole, s)) for s in (-4.0, 1.0, 11.0)] == [True, False, True]


def test_a_record_that_begins_a_little_late_still_adds_up(folder):
    folder.add("bmc", power("node.ac"), T[52:149], np.full(97, 300.0))
    run = folder.close(START, END).open()
    profile = make_profile(run)
    assert joules(profile, profile.trace("node.ac")) == pytest.approx(3000.0, rel=1e-3)


def test_without_a_meter_there_is_no_profile(folder):
    host = Stream("host", "host", "host", 1.0, (Spec("busy", "CPU load", "1"),))
    folder.add("host", host, np.arange(20.0), np.ones(20)).close(START, END)
    assert make_profile(folder.open()) is None


def test_a_workload_of_no_length_is_drawn_too(folder):
    folder.add("bmc", power("node.ac"), T, busy(200.0, 600.0)[1]).close(START, START)
    profile = make_profile(folder.open())
    assert profile.duration_s == 0.0
    assert at(profile, profile.trace("node.ac"), 5.0) == pytest.approx(600.0)


# Curves of every kind.


def test_a_slow_meter_that_is_guided_follows_the_fast_ones(folder):
    t = np.arange(0, 200, 0.1)
    load = np.where((t > 30) & (t % 37 < 20), 400.0, 100.0)
    energy = np.concatenate(([0.0], np.cumsum(load[:-1]) * 0.1))
    spec = Spec("power_w", "power", "W", "power", 10.0, 10.0, limits=(0.0, 2000.0), accuracy=METER)
    slow = np.arange(10, 200, 10.0)
    ends = np.interp(slow, t, energy) - np.interp(slow - 10, t, energy)
    folder.add("rapl", counter("cpu:0"), t, energy)
    folder.add("bmc", Stream("node.ac", "power", "node.ac", 10.0, (spec,)), slow + 0.01, 150 + 1.2 * ends / 10)
    run = folder.close(30.0, 180.0).open()
    result, profile = analyse_run(run), make_profile(run)
    whole = profile.trace("whole")
    assert joules(profile, whole) == pytest.approx(result.energy.value, rel=1e-6)
    assert sum(joules(profile, t) for t in stack(profile)) == pytest.approx(result.energy.value, rel=1e-6)


def test_a_slow_meter_that_is_only_watched_stands_by_its_own_readings(folder):
    t = np.arange(0, 200, 0.1)
    load = np.where(t % 20 < 10, 400.0, 100.0)
    folder.add("rapl", counter("cpu:0"), t, np.concatenate(([0.0], np.cumsum(load[:-1]) * 0.1)))
    spec = Spec("power_w", "power", "W", "power", 1.0, 0.0, limits=(0.0, 2000.0), accuracy=METER)
    slow = np.arange(3, 200, 20.0)  # always while it works
    folder.add("pdu", Stream("node.ac", "power", "node.ac", 20.0, (spec,)), slow, np.full(slow.size, 500.0))
    run = folder.close(30.0, 180.0).open()
    assert "alias" in analyse_run(run).energy.budget()
    profile = make_profile(run)
    assert joules(profile, profile.trace("whole")) == pytest.approx(150 * 500.0, rel=1e-6)
    assert at(profile, profile.trace("whole"), 13.0, "high") == pytest.approx(500.0)


def test_a_stretch_beyond_the_record_is_empty(folder):
    run = node(folder, ac=1400.0).close(START, END).open()
    profile = make_profile(run, buckets=10, start_ns=ns(30.0), end_ns=ns(40.0))
    assert all(np.isnan(t.levels[0].mean).all() for t in profile.traces)
    assert all(np.isnan(t.levels[0].high).all() for t in profile.traces)


@pytest.mark.parametrize("kind", ["power", "counter"])
def test_cords_are_added_and_one_may_not_follow_the_load(folder, kind):
    t = np.arange(0, 60, 0.5)
    load = np.where(t % 17 < 8, 700.0, 100.0)
    folder.add("rapl", counter("cpu:0"), t, np.concatenate(([0.0], np.cumsum(load[:-1]) * 0.5)))
    for k in (1, 2):
        odd = 300.0 + 100 * np.cos(t * 1.7 + k)
        if kind == "power":
            spec = Spec("power_w", "power", "W", "power", 0.5, 0.5, limits=(0.0, 2000.0), accuracy=METER)
            values = odd
        else:
            spec = Spec("energy_j", "energy", "J", "counter", 0.5, accuracy=METER)
            values = np.cumsum(odd) * 0.5
        stream = Stream(f"outlet:{k}", "power", f"outlet:{k}", 0.5, (spec,), "node.ac", sums="node.ac", parts=2)
        folder.add("pdu", stream, t, values)
    run = folder.close(10.0, 50.0).open()
    result, profile = analyse_run(run), make_profile(run)
    assert joules(profile, profile.trace("whole")) == pytest.approx(result.energy.value, rel=1e-6)
    assert joules(profile, profile.trace("scope:outlet:1")) == pytest.approx(
        next(s for s in result.scopes if s.scope == "outlet:1").energy.value, rel=1e-6
    )


def test_an_accounted_total_has_no_course(folder):
    folder.add("slurm", counter("job"), [4.0, 16.0], [0.0, 5000.0], host="job.7")
    folder.add("bmc", power("node.ac"), T, busy(200.0, 600.0)[1])
    folder.event(4.0, "attached", host="job.7", job="7", covers=["node1"])
    profile = make_profile(folder.close(START, END).open())
    assert {t.id for t in profile.traces} == {"node.ac"}


# Grids.


@given(
    st.floats(0, 2000), st.floats(0.0, 90_000), st.floats(0, 500), st.sampled_from([0.01, 0.1, 60.0]),
    st.integers(1, 6000),
)  # fmt: skip
def test_a_grid_covers_the_record_and_the_workload_ends_at_edges(before, duration, after, raw_s, most):
    grid = make_grid(-before, duration + after, duration, raw_s=raw_s, most=most)
    assert grid.from_s <= -before + 1e-6 * grid.step_s * 4**grid.levels
    assert grid.to_s >= duration + after - 1e-6 * grid.step_s * 4**grid.levels
    assert grid.step_s >= raw_s * (1 - 1e-6)
    coarsest = grid.count // 4 ** (grid.levels - 1)
    assert coarsest <= FEW + 2
    assert grid.count % 4 ** (grid.levels - 1) == 0
    block = grid.step_s * 4 ** (grid.levels - 1)
    assert grid.from_s / block == pytest.approx(round(grid.from_s / block), abs=1e-6)
    if duration >= block:
        assert duration / block == pytest.approx(round(duration / block), abs=1e-6)
    assert grid.count <= 2.2 * (most + 4**grid.levels)


def test_coarser_buckets_leave_out_what_was_not_read():
    values = np.array([1.0, 3.0, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan])
    fine, coarse = make_levels(Buckets(values, values - 1, values + 2), 2)
    assert fine.mean is values
    assert (coarse.mean[0], coarse.low[0], coarse.high[0]) == (2.0, 0.0, 5.0)
    assert np.isnan([coarse.mean[1], coarse.low[1], coarse.high[1]]).all()


def test_what_was_read_has_one_integral_at_every_level():
    values = np.arange(64.0)
    values[3:14] = values[20:22] = values[37] = np.nan
    found = make_levels(Buckets(values, values, values), 3)
    for level in found[1:]:
        assert float(np.nansum(level.mean * level.seen)) * 64 / level.mean.size == pytest.approx(np.nansum(values))
    assert found[1].seen[:4].tolist() == [0.75, 0.0, 0.0, 0.5]
