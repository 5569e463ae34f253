"""Power over time shows no peak that was not read and loses none that was, whatever the meters' times do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.folders import METER, RAPL, Folder, counter, gpu, power
from tests.analysis.nodes import END, START, T, busy
from tests.analysis.test_power_profile import at, joules, stack
from tests.analysis.virtual import ns

from joulelab.analysis import profile_buckets
from joulelab.analysis.analyse import analyse_run, find_span, load_joined
from joulelab.analysis.power_profile import MissingScope, make_profile
from joulelab.analysis.profile_buckets import BucketBuilder, ShownPower, find_extremes
from joulelab.analysis.readings import make_distribution
from joulelab.core.spec import Spec, Stream

TICK = 0.01  # of a powercap that steps 100 times a second


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def jittered(last_s=30.0, off_s=0.06, seed=1):
    """Return times about every 0.1 s, each off by up to `off_s`."""
    t = np.arange(0.1, last_s, 0.1)
    return t + np.random.default_rng(seed).uniform(-off_s, off_s, t.size)


def stepped(t, energy_at, tick=TICK):
    """Return what a counter shows that steps every tick."""
    return energy_at(np.floor(t / tick) * tick)


def ticking(scope, tick=TICK):
    spec = Spec("energy_j", "energy", "J", "counter", tick, accuracy=RAPL)
    return Stream(scope, "energy", scope, 0.1, (spec,))


def energy(idle_w, load_w, start=10.0, end=25.0):
    return lambda t: idle_w * t + (load_w - idle_w) * np.clip(t - start, 0.0, end - start)


def workload(profile):
    first = round(-profile.grid.from_s / profile.grid.step_s)
    return slice(first, first + round(profile.duration_s / profile.grid.step_s))


# Counters that are read when there is time for it.


@pytest.mark.parametrize("tick", [0.001, TICK])
def test_a_constant_power_is_drawn_constant_though_its_counter_is_read_unevenly(folder, tick):
    t = jittered()
    folder.add("rapl", ticking("cpu:0", tick), t, stepped(t, lambda t: 300.0 * t, tick))
    run = folder.close(10.0, 25.0).open()
    result, profile = analyse_run(run), make_profile(run)
    trace = profile.trace("cpu")
    for values in (trace.levels[0].mean, trace.levels[0].low, trace.levels[0].high):
        there = values[~np.isnan(values)]
        assert there.size > 280
        assert np.abs(there / 300.0 - 1).max() < 0.05
    assert joules(profile, trace) == pytest.approx(result.energy.value, rel=1e-9)
    inside = workload(profile)
    found = make_distribution(trace.levels[0].mean[inside], trace.levels[0].high[inside], profile.grid.step_s)
    told = next(s for s in result.scopes if s.scope == "cpu:0").statistics
    assert (found.median, found.p95) == pytest.approx((told.median, told.p95), rel=0.03)
    if tick == TICK:
        assert found.maximum == pytest.approx(told.maximum, rel=0.03)


def test_idle_stays_idle_up_to_the_start_and_from_the_end_on(folder):
    t = jittered(seed=2)
    folder.add("rapl", ticking("cpu:0"), t, stepped(t, energy(50.0, 350.0)))
    profile = make_profile(folder.close(10.0, 25.0).open())
    means, inside = profile.trace("cpu").levels[0].mean, workload(profile)
    assert means[inside].min() > 330.0
    outside = np.concatenate((means[: inside.start], means[inside.stop :]))
    assert np.nanmax(outside) < 70.0
    assert np.nanmin(outside) > 40.0


@pytest.mark.parametrize("begin", [0.35, 3.0])
def test_no_slope_is_made_up_before_the_first_rise(folder, begin):
    t = jittered(seed=3)
    folder.add("bmc", ticking("node.ac", 1.0), t, stepped(t, energy(100.0, 900.0, begin, 20.0), 1.0))
    run = folder.close(begin, 20.0).open()
    profile = make_profile(run)
    trace = profile.trace("node.ac")
    assert np.isnan(trace.levels[0].mean[: workload(profile).start]).all()
    assert joules(profile, trace) == pytest.approx(analyse_run(run).energy.value, rel=1e-9)


def test_a_power_gives_the_course_and_a_counter_how_much_it_is(folder):
    t = jittered(seed=4)
    watts = np.where((t > 10.1) & (t < 25.1), 400.0, 50.0)
    folder.add("nvml", gpu(0), t, 1.1 * stepped(t, energy(50.0, 400.0), 0.001), watts)
    run = folder.close(10.0, 25.0).open()
    profile = make_profile(run)
    trace = profile.trace("gpu")
    assert joules(profile, trace) == pytest.approx(analyse_run(run).energy.value, rel=1e-9)
    assert at(profile, trace, 7.0) == pytest.approx(440.0, rel=0.02)
    assert at(profile, trace, 7.0, "high") == pytest.approx(400.0)
    assert at(profile, trace, -5.0) == pytest.approx(50.0)
    assert np.nanmax(trace.levels[0].high) == pytest.approx(400.0)


def test_a_power_that_has_nothing_to_do_with_its_counter_is_not_stretched(folder):
    folder.add("nvml", gpu(0), T, busy(50.0, 400.0)[0], np.where((T > 6) & (T < 7), 100.0, 0.0))
    run = folder.close(START, END).open()
    profile = make_profile(run)
    trace = profile.trace("gpu")
    assert joules(profile, trace) == pytest.approx(analyse_run(run).energy.value, rel=1e-9)
    assert np.nanmax(trace.levels[0].mean) < 520.0


def test_what_was_used_in_a_gap_does_not_lift_what_was_read(folder):
    energies, watts = busy(50.0, 400.0)
    hidden = energies + np.clip(T - 8.0, 0.0, 3.0) * 300.0  # 700 W while nothing was read
    keep = (T < 8.0) | (T > 11.0)
    folder.add("nvml", gpu(0), T[keep], hidden[keep], watts[keep])
    profile = make_profile(folder.close(START, END).open())
    assert math.isnan(at(profile, profile.trace("gpu"), 4.5))
    assert at(profile, profile.trace("gpu"), 1.0) == pytest.approx(400.0, rel=0.02)


def test_where_only_the_counter_was_read_it_stands_for_itself(folder):
    energies, watts = busy(50.0, 400.0)
    folder.add("rapl", counter("cpu:0"), T, energies)
    some = T < 10.0
    folder.add("hwmon", power("cpu:0", given=METER), T[some], watts[some])
    run = folder.close(START, END).open()
    (scope,) = load_joined(run, find_span(run, list(run.events()))).scopes
    assert scope.best.meter == "rapl"
    trace = make_profile(run).trace("cpu")
    assert at(make_profile(run), trace, 8.0) == pytest.approx(400.0, rel=0.02)
    assert at(make_profile(run), trace, 12.0) == pytest.approx(50.0, rel=0.02)


def test_a_slow_wall_that_is_guided_by_uneven_counters_has_no_peaks_of_its_own(folder):
    t = jittered(200.0)
    at_s = lambda t: 100 * t + 300 * (np.floor(t / 40) * 20 + np.minimum(t % 40, 20.0))  # noqa: E731
    folder.add("rapl", ticking("cpu:0"), t, stepped(t, at_s))
    spec = Spec("power_w", "power", "W", "power", 10.0, 10.0, limits=(0.0, 2000.0), accuracy=METER)
    slow = np.arange(10, 200, 10.0)
    for scope in ("node.ac", "node.dc"):
        watts = 150 + 1.2 * (at_s(slow) - at_s(slow - 10)) / 10
        folder.add("bmc", Stream(scope, "power", scope, 10.0, (spec,)), slow + 0.01, watts)
    run = folder.close(30.0, 180.0).open()
    whole = make_profile(run).trace("whole").levels[0]
    assert np.nanmax(whole.mean) < 1.05 * (150 + 1.2 * 400)
    assert np.nanmin(whole.mean) > 0.95 * (150 + 1.2 * 100)
    assert joules(make_profile(run), make_profile(run).trace("whole")) == pytest.approx(analyse_run(run).energy.value)
    some = make_profile(run, buckets=50, start_ns=ns(42), end_ns=ns(58)).trace("whole").levels[0]
    assert np.ptp(some.mean) < 0.1 * 630
    scopes = {s.scope: s for s in load_joined(run, find_span(run, list(run.events()))).scopes}
    edges = BucketBuilder(ns(30.0), ns(180.0), np.linspace(0.0, 150.0, 3), {"node1": [scopes["cpu:0"]]})
    wall = scopes["node.ac"].best
    assert np.diff(edges.integrate(wall, edges.t)) == pytest.approx(edges.compute_scope(scopes["node.ac"]).plain)


def test_what_is_guessed_beyond_the_record_does_not_lift_what_was_read(folder):
    some = T < 11.0
    energies, watts = busy(50.0, 100.0)
    folder.add("nvml", gpu(0), T[some], energies[some], watts[some])
    folder.add("bmc", power("node.ac"), T[120:], np.full(80, 300.0))
    run = folder.close(START, END).open()
    profile = make_profile(run)
    assert at(profile, profile.trace("gpu"), 3.0) == pytest.approx(100.0, rel=0.02)
    assert math.isnan(at(profile, profile.trace("gpu"), 8.0))
    late = make_profile(run).trace("whole")
    assert math.isnan(at(profile, late, 3.0))
    assert at(profile, late, 8.0) == pytest.approx(300.0)


@given(
    st.integers(0, 2**31), st.floats(0.0, 0.09), st.sampled_from([0.001, 0.01, 0.1]), st.floats(10.0, 500.0),
    st.floats(0.0, 400.0), st.floats(1.0, 7.0), st.floats(0.3, 7.0), st.booleans(), st.integers(5, 200),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_means_leave_what_was_read_by_the_correction_only(
    tmp_path_factory, seed, off_s, tick, idle, more, begin, length, both, buckets
):
    t = jittered(15.0, off_s, seed)
    folder = Folder(tmp_path_factory.mktemp("runs"))
    counted = stepped(t, energy(idle, idle + more, begin, begin + length), tick)
    shown = np.where((t > begin) & (t < begin + length), idle + more, idle)
    stream = gpu(0) if both else ticking("gpu:0", tick)
    folder.add("nvml", stream, t, counted, *([shown] if both else []))
    run = folder.close(begin, begin + length).open()
    span = find_span(run, list(run.events()))
    (scope,) = load_joined(run, span).scopes
    edges = BucketBuilder(span.start_ns, span.end_ns, np.linspace(0.0, edges_end(span), buckets + 1))
    course = edges.compute_scope(scope)
    (read,) = course.shown
    wide = np.diff(edges.t)
    there = ~np.isnan(course.energy)
    assert (course.plain >= read.value.min() * wide - 1e-6).all()
    assert (course.plain <= read.value.max() * wide + 1e-6).all()
    if not both:  # a tick more or less in half a stretch, and where the start lies in a tick
        assert read.value.max() <= (idle + more) * 1.1
        assert read.value.min() >= idle * 0.9
    factor = course.energy[there] / np.maximum(course.plain[there], 1e-9)
    assert np.ptp(factor) < 1e-6  # one for the whole workload
    if there.all():
        assert course.energy.sum() == pytest.approx(scope.best.energy(span.start_ns, span.end_ns).value)


def edges_end(span):
    return (span.end_ns - span.start_ns) * 1e-9


# Sums.


def test_a_peak_of_one_member_is_there_in_the_sum(folder):
    late = T + 0.037
    short = np.where((T > 9.95) & (T < 10.05), 2300.0, 300.0)
    for k, (t, watts) in enumerate(((T, short), (late, np.full(T.size, 300.0)))):
        folder.add("nvml", power(f"gpu:{k}"), t, watts)
    profile = make_profile(folder.close(START, END).open())
    for level in profile.trace("gpu").levels:
        assert np.nanmax(level.high) == 2600.0
        assert np.nanmin(level.low) == pytest.approx(600.0)


def test_hosts_that_are_read_at_other_times_add_up_to_what_both_read(folder):
    for host, off, watts in (("a", 0.0, 5000.0), ("b", 0.05, 1000.0)):
        folder.add("bmc", power("node.ac"), T + off, np.where((T > 9.95) & (T < 10.05), watts, watts / 2), host=host)
    profile = make_profile(folder.close(START, END).open())
    assert np.nanmax(profile.everything.levels[0].high) == 6000.0


def test_members_that_are_read_at_once_change_at_once():
    t = np.arange(6.0)
    up, down = ShownPower(t, np.array([0, 0, 9, 9, 0, 0.0])), ShownPower(t, np.array([9, 9, 0, 0, 9, 9.0]))
    low, high = find_extremes([up, down], np.arange(7.0) - 0.5)
    assert low.tolist() == high.tolist() == [9.0] * 6


def test_a_sum_is_the_same_in_one_go_and_in_parts(monkeypatch):
    random = np.random.default_rng(5)
    parts = [ShownPower(np.sort(random.uniform(0, 10, 50)), random.uniform(0, 9, 50)) for _ in range(3)]
    parts.append(ShownPower(np.array([5.0]), np.array([2.0]), np.array([4.0, 6.0])))
    edges = np.linspace(-1, 11, 40)
    whole = find_extremes(parts, edges)
    times = np.sort(np.concatenate([p.begins for p in parts]))
    held = np.array([[p.value[max(np.searchsorted(p.begins, t, side="right") - 1, 0)] for p in parts] for t in times])
    for low, high, a, b in zip(*whole, edges[:-1], edges[1:], strict=True):
        inside = held.sum(axis=1)[(times >= a) & (times < b)]
        wanted = (inside.min(), inside.max()) if inside.size else (math.nan, math.nan)
        assert (low, high) == pytest.approx(wanted, nan_ok=True)
    monkeypatch.setattr(profile_buckets, "AT_ONCE", 20)
    assert np.allclose(find_extremes(parts, edges), whole, equal_nan=True)
    assert np.isnan(find_extremes([], edges)).all()


def test_a_member_of_which_no_power_is_shown_is_in_the_sum_with_its_mean(folder):
    folder.add("nvml", power("gpu:0"), T, busy(100.0, 400.0)[1])
    folder.add("bmc", ticking("gpu:1", 1.0), [START - 1, START + 1], [0.0, 200.0])
    run = folder.close(START, END).open()
    scopes = load_joined(run, find_span(run, list(run.events()))).scopes
    edges = BucketBuilder(ns(START), ns(END), np.linspace(0.0, 10.0, 11))
    read, silent = (edges.compute_scope(s) for s in scopes)
    assert silent.shown[0].t.size == 0
    assert not np.isnan(silent.energy[0])
    alone, both = edges.add_scopes([read]), edges.add_scopes([read, silent])
    assert both.high[:2] == pytest.approx((alone.high + silent.plain)[:2])
    assert both.low[1] == pytest.approx(alone.low[1] + silent.plain[1])
    assert np.isnan(both.high[5:]).all()


def test_of_several_hosts_it_is_said_which_one_leaves_a_gap(folder):
    gone = (T > 8.0) & (T < 11.0)
    for host in ("a", "b"):
        keep = ~gone if host == "b" else np.ones(T.size, bool)
        folder.add("bmc", power("node.ac"), T[keep], busy(200.0, 600.0)[1][keep], host=host)
        folder.add("nvml", gpu(0), T, *busy(50.0, 400.0), host=host)
    profile = make_profile(folder.close(START, END).open())
    assert math.isnan(at(profile, profile.everything, 4.5))
    (missing,) = profile.missing
    assert missing.name == "b/node.ac"
    assert (missing.from_s, missing.to_s) == (pytest.approx(3.0, abs=0.2), pytest.approx(6.0, abs=0.2))


def test_a_host_that_is_lost_with_all_its_meters_is_named_alone(folder):
    for host, until in (("a", 20.0), ("b", 9.0)):
        keep = until > T
        folder.add("bmc", power("node.ac"), T[keep], busy(200.0, 600.0)[1][keep], host=host)
    profile = make_profile(folder.close(START, END).open())
    (missing,) = profile.missing
    assert missing == MissingScope("b", pytest.approx(4.0, abs=0.4), pytest.approx(10.0, abs=0.2))
    assert [t.id for t in stack(profile)] == ["node.ac"]


def test_the_rest_of_a_node_by_a_counter_has_its_rises(folder):
    folder.add("nvml", gpu(0), T, *busy(50.0, 400.0))
    folder.add("bmc", counter("node.ac"), T, busy(200.0, 700.0)[0])
    profile = make_profile(folder.close(START, END).open())
    assert at(profile, profile.trace("rest"), 5.0, "high") == pytest.approx(300.0, rel=0.02)
    assert at(profile, profile.trace("rest"), 5.0) == pytest.approx(300.0, rel=0.02)
