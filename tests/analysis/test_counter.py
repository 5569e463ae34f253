"""Counters: rests, gaps, the ticks at the edges, and powers from their rises."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.virtual import NS, TOOK, counter_spec, ns, power_spec, readings, stamps, stepped
from tests.campaign.square_meter import UPDATE_S, compute_energy_j
from tests.rows import every_row

from joulelab.analysis.counter import CounterCurve, Knots, _refine_knots
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings


def curve(seconds, values, spec=None, power=None, **more):
    return CounterCurve(readings(seconds, values), spec or counter_spec(**more), name="c", power=power)


def test_no_reading_no_number():
    with pytest.raises(ValueError, match="c: no readings"):
        curve([], [])


# Counters that rest, and coarse ones.


def test_a_counter_that_never_moves_gives_nothing_with_what_a_tick_may_hide():
    t = np.arange(0, 10, 0.1)
    c = curve(t, np.full(t.size, 777.0), counter_spec(0.1, limits=(0.0, 700.0)))
    for a, b in ((0.0, 9.9), (0.3, 5.0), (2.0, 2.5), (5.0, 9.8)):
        found = c.energy(ns(a), ns(b))
        assert abs(found.value) <= 2 * found.u
        assert found.value < 0.1 * 700, "at most what one tick holds"


def test_a_device_that_sleeps_and_wakes():
    """Between rises nothing was used: an edge in the rest is known well, whatever the limits."""
    t = np.arange(0, 20, 0.02)
    shown = 500.0 * np.clip(np.floor(t * 10 + 1e-9) / 10 - 10.0, 0.0, None)  # steps every 0.1 s while awake
    c = curve(t, shown, counter_spec(0.1, limits=(0.0, 700.0), quantum=0.001))
    asleep = c.energy(ns(2.0), ns(8.0))
    assert abs(asleep.value) <= 2 * asleep.u
    assert asleep.u < 50.0
    whole = c.energy(ns(2.0), ns(19.0))
    assert abs(whole.value - 4500.0) <= 2 * whole.u
    assert whole.value == pytest.approx(4500.0, rel=0.02)


def test_a_slow_read_is_no_rest_of_the_counter():
    """A read that began before a step got the value after it: this value was not shown since the read began."""
    t = np.arange(0.01, 3.0, 0.02)
    t = t[(t < 0.94) | (t > 1.0)]
    took = np.where(np.isclose(t, 0.93), 0.075, TOOK / NS)
    shown = np.floor(stepped(t + took, 229.0) * 1000) / 1000
    c = CounterCurve(
        Readings.from_rows(stamps(t), stamps(t + took), shown),
        counter_spec(0.1, quantum=0.001, limits=(0.0, 400.0)),
        name="c",
    )
    for a in np.arange(0.9, 1.2, 0.01):
        found = c.energy(ns(a), ns(a + 0.005))
        assert 0 < found.value < 2.5 * 229.0 * 0.005
        assert abs(found.value - 229.0 * 0.005) <= found.expanded


@pytest.mark.parametrize("quantum", [0.001, 1.0, 10.0])
def test_a_coarse_counter_costs_its_quantum_at_each_end(quantum):
    rng = np.random.default_rng(5)
    t = np.arange(0, 30, 0.05)
    exact = 37.0 * t
    hits = 0
    c = curve(t, np.floor(stepped(t, 37.0) / quantum) * quantum, counter_spec(0.1, quantum=quantum, limits=(0, 60)))
    for _ in range(40):
        a, b = np.sort(rng.uniform(1, 29, 2))
        found = c.energy(ns(a), ns(b))
        hits += abs(found.value - 37.0 * (b - a)) <= 2 * found.u
        assert found.budget()["edge"] >= math.sqrt(2) * quantum / math.sqrt(12) * 0.999
    assert exact[-1] > 0
    assert hits >= 39


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("every", [1.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize("length", [0.2, 0.5, 0.9, 1.5, 10.0])
@pytest.mark.parametrize("quantum", [3600.0, 36_000.0])
def test_a_coarse_counter_that_is_read_seldom_covers_what_was_used(every, length, quantum):
    """A load begins and ends between readings, or lies between two of them: the powers around say what it may be."""
    rng, missed, bias = np.random.default_rng(3), 0, 0.0
    for_s = max(length * every, quantum / 100)  # ten counts at the least: what is less cannot be told from chance
    for _ in range(60):
        idle, busy, begin = rng.uniform(200, 600), rng.uniform(1000, 3000), 8 * every + 300 + rng.uniform(0, every)
        t = np.arange(0, begin + for_s + 12 * every + 300, every)
        whole = idle * t + (busy - idle) * np.clip(t - rng.uniform(0, 1) - begin, 0, for_s)
        shown = np.floor((whole + rng.uniform(0, quantum)) / quantum) * quantum
        found = curve(t, shown, counter_spec(1.0, quantum=quantum)).energy(ns(begin), ns(begin + for_s))
        missed += abs(found.value - busy * for_s) > found.expanded
        bias += (found.value / (busy * for_s) - 1) / 60
    assert missed <= 3
    assert abs(bias) < 0.05 or for_s < 5 * every


def test_a_coarse_counter_whose_surroundings_were_not_read():
    """Two readings around a load: nobody knows what was beside it, nor how high it went."""
    t, whole = [0.0, 600.0], [0.0, 300.0 * 600 + 1700.0 * 180]
    c = curve(t, whole, counter_spec(1.0, quantum=3600.0, limits=(0.0, 3000.0)))
    found = c.energy(ns(200.0), ns(380.0))
    assert abs(found.value - 2000.0 * 180) <= found.expanded
    beyond = c.energy(ns(100.0), ns(700.0))
    assert abs(beyond.value - (300.0 * 600 + 1700.0 * 180)) <= beyond.expanded


def test_a_coarse_counter_that_was_read_once():
    found = curve([10.0], [36_000.0], counter_spec(1.0, quantum=36_000.0, limits=(0.0, 500.0)))
    assert found.energy(ns(5.0), ns(15.0)).value == pytest.approx(0.0, abs=36_000.0)


def shown(t, times, powers, *, quantum, age_s=0.0):
    """Return what a coarse counter shows of powers (W) that begin at times, each value `age_s` old."""
    joules = np.concatenate(([0.0], np.cumsum(np.diff(times) * powers[:-1])))
    at = np.asarray(t) - age_s
    k = np.clip(np.searchsorted(times, at, side="right") - 1, 0, None)
    return np.floor((joules[k] + powers[k] * (at - times[k])) / quantum) * quantum


def test_what_is_likely_between_two_readings_of_a_coarse_counter_is_not_all_that_can_be():
    """Idle before and busy after: most likely it began once, but it may have begun, paused and begun again."""
    times = np.array([0, 6000, 6150, 6450, 12_150, 12_450, 12_600], dtype=float)
    powers = np.array([300, 2000, 300, 2000, 300, 2000, 300], dtype=float)
    t = np.arange(0.0, 20_000, 600.0)
    c = curve(t, shown(t, times, powers, quantum=3600.0), counter_spec(1.0, quantum=3600.0))
    found = c.energy(ns(6150), ns(12_450))
    true = 300.0 * 600 + 2000.0 * 5700
    assert found.value - true > 450e3, "each edge is off by all of its range, both to the same side"
    assert abs(found.value - true) <= found.expanded


def test_several_counts_of_a_coarse_counter_tell_the_power_around_an_edge():
    """One count and a half between readings: a single rise says it to two thirds, eight counts to an eighth."""
    t = np.arange(0.0, 12_000, 300.0)
    c = curve(t, np.floor(180.0 * t / 36_000.0) * 36_000.0, counter_spec(1.0, quantum=36_000.0))
    for a in (4600.0, 4650.0, 4700.0):
        found = c.energy(ns(a), ns(a + 3000.0))
        assert abs(found.value - 180.0 * 3000) <= found.expanded
        assert found.expanded < 1.2 * 36_000


def test_what_a_coarse_counter_does_not_yet_show_may_be_a_whole_update_at_the_highest_power():
    """A burst of one update lies around a reading that is nearly one update old, and the edge after it."""
    times, powers = np.array([0.0, 99.9, 100.9]), np.array([100.0, 3000.0, 100.0])
    t = np.arange(0.0, 200.0, 1.0)
    spec = counter_spec(1.0, quantum=500.0, limits=(0.0, 3000.0))
    c = curve(t, shown(t, times, powers, quantum=500.0, age_s=0.999), spec)
    found = c.energy(ns(50.0), ns(100.8))
    true = 100.0 * 49.9 + 3000.0 * 0.9
    assert abs(found.value - true) > 1500.0
    assert abs(found.value - true) <= found.expanded


@pytest.mark.parametrize("begin", [1202.0, 1215.0, 1235.0, 1253.0])
def test_an_event_between_two_readings_of_a_coarse_counter_may_have_reached_any_bound(begin):
    """2.5 kW for 5 s, on a steady load, before or after the edge at 1230 s."""
    times, powers = np.array([0.0, begin, begin + 5]), np.array([300.0, 2500.0, 300.0])
    t = np.arange(0.0, 2400.0, 60.0)
    spec = counter_spec(1.0, quantum=3600.0, limits=(0.0, 3000.0))
    c = curve(t, shown(t, times, powers, quantum=3600.0), spec)
    found = c.energy(ns(600.0), ns(1230.0))
    assert abs(found.value - 300.0 * 630 - 2200 * min(max(1230 - begin, 0), 5)) <= found.expanded
    quiet = c.energy(ns(600.0), ns(1170.0))
    assert quiet.expanded < 0.8 * found.expanded


def test_after_the_last_reading_of_a_coarse_counter_power_may_have_fallen_or_risen():
    t = np.arange(0.0, 601.0, 20.0)
    c = curve(t, np.floor(1000.0 * t / 3600.0) * 3600.0, counter_spec(1.0, quantum=3600.0))
    found = c.energy(ns(100.0), ns(700.0))
    for since_w in (0.0, 1000.0, 3900.0):
        assert abs(found.value - 500e3 - 100 * since_w) <= found.expanded
    soon = c.energy(ns(100.0), ns(630.0))
    assert soon.expanded < 0.3 * found.expanded, "power does not rise fourfold in a step and a half"


# Ticks.


def test_a_sharp_step_places_the_blurred_ones_on_the_instruments_grid():
    """One fast poll around one step, slow polls elsewhere: all steps are then known to about a millisecond."""
    t = np.sort(np.concatenate((np.arange(0, 2, 0.07), np.arange(0.95, 1.05, 0.002))))
    c = curve(t, stepped(t, 300.0, 0.1, phase_s=0.033), counter_spec(0.1, limits=(0, 700)))
    knots = c.find_knots(ns(1.3))
    inside = (knots.t > 0.9) & (knots.t < 1.7)
    off = (knots.t[inside] - 0.033 + 1e-5) / 0.1
    assert np.abs(off - np.round(off)).max() * 0.1 < 0.002 + 0.02 * 0.1 * 8
    assert knots.half[inside].max() < 0.02
    blurred = curve(np.arange(0, 2, 0.07), stepped(np.arange(0, 2, 0.07), 300.0, 0.1, 0.033), counter_spec(0.1))
    assert blurred.find_knots(ns(1.3)).half.min() > 0.015


def test_a_step_lies_where_its_neighbours_leave_room():
    """Polled at the counter's own pace, each reading is up to a tick old; the next step still to come says how old."""
    t = np.concatenate((np.arange(0, 1.06, 0.1), np.arange(1.06, 1.12, 0.002)))
    # Steps at 0.0999, 0.1999, ...: just before each poll, or just after the one before?
    c = curve(t, stepped(t, 300.0, 0.1, phase_s=-0.0001), counter_spec(0.1, limits=(0, 700)))
    knots = c.find_knots(ns(1.05))
    k = int(np.searchsorted(knots.t, 1.05)) - 1
    assert knots.t[k] == pytest.approx(0.9999, abs=0.004)
    assert knots.half[k] < 0.005
    assert c.energy(ns(1.0), ns(1.05)).value == pytest.approx(15.0, rel=0.02)
    for a in (0.2, 0.92):  # before the fast polls nobody knows, and the interval says so
        blurred = c.energy(ns(a), ns(1.05))
        assert abs(blurred.value - 300.0 * (1.05 - a)) <= 2 * blurred.u


@every_row(
    ("t", "half", "refined"),
    [
        ([0.0, 0.31], [0.001, 0.04], [0.0, 0.30]),  # only one grid point lies in what was seen
        ([0.0, 0.35], [0.001, 0.07], [0.0, 0.35]),  # two do: nothing is known
        ([0.0, 0.35], [0.001, 0.01], [0.0, 0.35]),  # none does: the tick is not what was said
        ([0.0, 9.01], [0.001, 0.04], [0.0, 9.01]),  # so far away the grid has drifted too much
        ([0.0], [0.02], [0.0]),
    ],
)
def test_knots_move_only_where_there_is_no_other_choice(t, half, refined):
    knots = _refine_knots(np.array(t), np.array(half), np.arange(len(t), dtype=float), 0.1)
    assert knots.t == pytest.approx(refined)
    assert (knots.half <= np.array(half)).all()


def test_without_a_tick_knots_stay():
    t, half = np.array([0.0, 0.35]), np.array([0.001, 0.02])
    assert _refine_knots(t, half, t, 0.0).t is t


@pytest.mark.system  # pure, and slow
@settings(max_examples=50, deadline=None)
@given(st.floats(0.0, 0.1), st.floats(0.3, 1.7), st.lists(st.floats(0.005, 0.25), min_size=12, max_size=40))
def test_a_step_is_where_the_knot_says_within_its_half_width(phase, at, pauses):
    t = np.cumsum(pauses)
    c = curve(t, stepped(t, 300.0, 0.1, phase), counter_spec(0.1, limits=(0, 700)))
    knots = c.find_knots(ns(at))
    # The energy of each knot says at which time the counter took it; knots are in seconds from the first reading.
    true = knots.energy / 300.0 - t[0] + 1e-5
    assert (np.abs(true - knots.t) <= knots.half + 2e-5).all()
    assert (np.diff(knots.t) >= 0).all()


def test_where_nobody_says_how_often_it_steps_only_the_readings_around_count():
    t = np.arange(0, 10, 0.5)
    c = curve(t, stepped(t, 300.0, 0.4, 0.13), counter_spec(None, limits=(0, 700)))
    for a, b in ((1.2, 7.3), (0.7, 3.1), (2.0, 8.0)):
        found = c.energy(ns(a), ns(b))
        assert abs(found.value - 300.0 * (b - a)) <= 2 * found.u
        assert found.u > 0.02 * 300  # far from exact
    one = curve([1.0], [5.0], counter_spec(None, limits=(0, 700)))
    assert one.energy(ns(0), ns(2)).u > 0


# Edges.


def test_edges_between_known_steps_of_constant_power_cost_little():
    t = np.arange(0, 5, 0.002)
    c = curve(t, stepped(t, 400.0, 0.1, 0.05), counter_spec(0.1, limits=(40, 700)))
    found = c.energy(ns(1.013), ns(3.987))
    assert found.value == pytest.approx(400 * 2.974, rel=1e-3)
    assert 2 * found.u < 0.02 * found.value


def test_a_step_of_power_inside_the_edge_tick_is_found_from_its_energy():
    """Power before and after is seen, so the energy of the tick between says when it changed."""
    t = np.arange(0, 4, 0.002)
    true = 100 * t + 400 * np.clip(t - 2.03, 0, None)
    ticks = np.floor((t - 0.05) / 0.1 + 1e-9) * 0.1 + 0.05
    shown = 100 * ticks + 400 * np.clip(ticks - 2.03, 0, None)
    c = curve(t, shown, counter_spec(0.1, limits=(40, 700)))
    for edge in (1.96, 2.0, 2.03, 2.04):
        found, exact = c.energy(ns(edge), ns(3.52)), np.interp(3.52, t, true) - np.interp(edge, t, true)
        assert found.value == pytest.approx(exact, abs=1.5)
        assert abs(found.value - exact) <= 2 * found.u


def test_a_gap_costs_a_counter_nothing_unless_an_edge_lies_in_it():
    t = np.concatenate((np.arange(0, 3, 0.1), np.arange(7, 10, 0.1)))
    for turn in np.linspace(3.1, 6.9, 20):  # from 100 to 500 W, some time in the gap
        c = curve(t, 100 * t + 400 * np.clip(t - turn, 0, None), counter_spec(1e-3, limits=(40, 700)))
        whole, half = c.energy(ns(1), ns(9)), c.energy(ns(1), ns(5))
        assert whole.value == pytest.approx(800 + 400 * (9 - turn), rel=2e-3)
        assert 2 * whole.u < 0.03 * whole.value
        assert abs(half.value - 400 - 400 * max(5 - turn, 0)) <= 2 * half.u
        assert 2 * half.u > 300.0


BLURRED = np.full(4, 0.2)


@pytest.mark.parametrize("x", [0.1, 0.5, 0.8])
def test_a_power_may_change_anywhere_in_a_tick(x):
    """One change is placed by the powers of neighbours; else the curve is off by x (1 - x) / sqrt(3) of the change."""
    c, errors = curve(np.arange(0, 4, 0.1), 100 * np.arange(0, 4, 0.1), limits=(0, 700)), []
    for turn in np.linspace(0, 1, 101):
        knots = Knots(
            np.arange(4.0), BLURRED, np.array([0.0, 100.0, 200.0 + 400 * (1 - turn), 700.0 + 400 * (1 - turn)])
        )
        value, u, age_u = c._interpolate(knots, 1 + x, 1)
        errors.append(value - 100.0 * (1 + x) - 400.0 * max(x - turn, 0.0))
        assert u == pytest.approx(400 * x * (1 - x) / math.sqrt(3))
        assert age_u == pytest.approx((500 - 400 * turn) * 0.2 / math.sqrt(3))
    assert np.abs(errors).max() < 1e-9


def test_a_change_that_blurred_steps_alone_may_cause_is_none():
    """300 W all the time: steps placed too early and too late make 250 W of it on one side, 375 W on the other."""
    t = np.array([0.0, 1.2, 2.1, 2.9])
    c = curve(np.arange(0, 4, 0.1), 300 * np.arange(0, 4, 0.1), limits=(0, 700))
    for half, value in ((0.2, 300 + 150), (0.001, 300 + 250 * 0.3 + 375 * 0.15)):  # else it changes after 0.3 s
        found = c._interpolate(Knots(t, np.full(4, half), 300.0 * np.arange(4)), 1.65, 1)
        assert found[0] == pytest.approx(value)


@pytest.mark.parametrize("x", [0.1, 0.5, 0.8])
def test_an_event_inside_a_tick_may_lie_before_or_after_an_edge(x):
    """200 J more than the power on both sides explains."""
    c, errors = curve(np.arange(0, 4, 0.1), 100 * np.arange(0, 4, 0.1), limits=(0, 700)), []
    value, u, _ = c._interpolate(Knots(np.arange(4.0), BLURRED, np.array([0.0, 100.0, 400.0, 500.0])), 1 + x, 1)
    errors = [value - 100.0 * (1 + x) - 200.0 * (at < x) for at in np.linspace(0, 1, 1001)]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(200 * math.sqrt(x * (1 - x)), rel=0.01)
    assert u == pytest.approx(200 * math.hypot(math.sqrt(x * (1 - x)), x * (1 - x) / math.sqrt(3)))


@pytest.mark.parametrize(
    ("watts", "u"),
    [
        (0.0, 0.0),  # it rests: no power can be below nothing
        (300.0, 600 / 4 / math.sqrt(3)),
        (650.0, 100 / 4 / math.sqrt(3)),  # near the limit it cannot have risen by much
        (900.0, 90 / 4 / math.sqrt(3)),  # beyond all limits: a tenth of the power may vary
    ],
)
def test_a_tick_without_neighbours_changes_within_the_limits(watts, u):
    c = curve([0.0, 1.0], [0.0, 1.0], limits=(0, 700))
    knots = Knots(np.array([0.0, 1.0]), np.zeros(2), np.array([0.0, watts]))
    assert c._interpolate(knots, 0.5, 0) == pytest.approx((watts / 2, u, 0.0))


@pytest.mark.parametrize("age", [0.01, 0.05, 0.09])
def test_readings_that_are_equally_old_at_both_ends_cancel(age):
    """Polled at the counter's own pace: nobody knows how old readings are, but they are old alike."""
    t = np.arange(0, 10, 0.1) + age
    c = curve(t, stepped(t, 300.0), counter_spec(0.1, limits=(0, 700)))
    found = c.energy(ns(2.03), ns(4.03))
    assert abs(found.value - 600.0) <= found.expanded
    assert c.at(ns(2.03))[2] == pytest.approx(300 * 0.05 / math.sqrt(3), rel=0.02)
    assert found.terms.get("lag:c:step", 0.0) == pytest.approx(0.0, abs=0.05)
    apart = math.sqrt(1 - 0.7**2)  # after 20 ticks, clocks within 1.5 % have drifted by three tenths of a tick
    edge = math.hypot(c.at(ns(2.03))[1], apart * c.at(ns(2.03))[2])
    assert found.budget()["edge"] == pytest.approx(math.sqrt(2) * edge, rel=0.02)
    assert c._find_alike(60.0) == 0.0


@pytest.mark.parametrize(("every", "tick"), [(0.07, 0.1), (0.15, 0.1), (0.02, 0.1), (0.1, None)])
def test_readings_at_another_pace_are_not_equally_old(every, tick):
    t = np.arange(0, 10, every)
    c = curve(t, stepped(t, 300.0), counter_spec(tick, limits=(0, 700)))
    assert c._find_alike(1.0) == 0.0
    assert "lag" not in c.energy(ns(2.03), ns(4.03)).budget()


def test_one_reading_has_no_pace():
    assert curve([1.0], [5.0], counter_spec(0.1))._find_alike(0.0) == 0.0


def test_with_no_reading_outside_anything_from_idle_to_the_limit_may_be():
    t = np.arange(0, 5, 0.1)
    c = curve(t, 400 * t, counter_spec(1e-3, limits=(50, 700)))
    inside, beyond = c.energy(ns(1), ns(4.9)), c.energy(ns(1), ns(6.9))
    extra = beyond.value - inside.value
    for true_w in (50.0, 400.0, 700.0):
        assert abs(extra - 2.0 * true_w) <= 2 * beyond.u
    before = c.energy(ns(-2), ns(4))
    for true_w in (50.0, 400.0, 700.0):
        assert abs(before.value - 1600 - 2 * true_w) <= 2 * before.u


def test_one_reading_bounds_by_the_limits_alone():
    c = curve([1.0], [1e6], counter_spec(0.1, limits=(50, 700)))
    found = c.energy(ns(0), ns(2))
    for true_w in (200.0, 600.0):
        assert abs(found.value - 2 * true_w) <= 2 * found.u
    bare = curve([1.0], [1e6])
    assert bare.energy(ns(0), ns(2)).value == pytest.approx(0.0), "nothing is known, nothing is claimed"


def test_the_powers_of_the_same_device_tell_what_came_after_the_last_step():
    t = np.arange(0, 10, 0.1)
    watts = np.where(t < 9.4, 300.0, 600.0)
    power = PowerCurve(readings(t, watts), power_spec(0.1, 0.1, limits=(0, 700)), name="p")
    shown = stepped(t, 300.0, 1.0, 0.4)
    with_power, without = (curve(t, shown, counter_spec(1.0, limits=(0, 700)), p) for p in (power, None))
    exact = 300 * (9.4 - 2.4) + 600 * 0.5
    known, bare = (c.energy(ns(2.4), ns(9.9)) for c in (with_power, without))
    assert abs(known.value - exact) <= known.expanded
    assert abs(known.value - exact) < abs(bare.value - exact)


@pytest.mark.parametrize("tick_s", [1e-3, 0.05])
def test_a_rise_that_neither_powers_nor_limits_explain_is_believed(tick_s):
    """60 J too many in one step, sharp or blurred: they are counted, and an edge there may lie before or after them."""
    t = np.arange(0, 4, 0.1)
    shown = 100 * t + np.where(t > 1.95, 60.0, 0.0)
    power = PowerCurve(readings(t, np.full(t.size, 100.0)), power_spec(0.1, 0.1, limits=(90, 110)), name="p")
    c = curve(t, shown, counter_spec(tick_s, limits=(90, 110)), power)
    assert c.energy(ns(0.5), ns(3.5)).value == pytest.approx(360.0, rel=0.01)
    split = c.energy(ns(0.5), ns(1.95))
    for exact in (145.0, 145.0 + 60.0):
        assert abs(split.value - exact) <= 2 * split.u + 5


def test_a_counter_that_does_less_than_the_limits_say_is_believed():
    t = np.arange(0, 4, 0.1)
    shown = 100 * np.clip(t, None, 2.0) + 100 * np.clip(t - 2.4, 0.0, None) + 1e-3 * t  # nothing for 0.4 s
    c = curve(t, shown, counter_spec(1e-3, limits=(90, 110)))
    found = c.energy(ns(0.5), ns(2.2))
    assert found.value == pytest.approx(150.0, rel=0.02)
    assert abs(found.value - 150.0) <= 2 * found.u


# Terms.


def test_an_offset_grows_with_time():
    t = np.arange(0, 30, 0.1)
    c = curve(t, 400 * t, counter_spec(1e-3, offset=5.0, shared="nvml:H100"))
    for seconds in (2.0, 20.0):
        assert c.energy(ns(1), ns(1 + seconds)).terms["offset:nvml:H100"] == pytest.approx(5 * seconds / math.sqrt(3))


def test_gains_of_one_source_add_and_of_others_do_not():
    t = np.arange(0, 5, 0.1)
    a, b, c = (
        CounterCurve(readings(t, 400 * t), counter_spec(1e-3, gain=0.05, shared=s), name=n)
        for n, s in (("a", "nvml:H100"), ("b", "nvml:H100"), ("c", ""))
    )
    e = [x.energy(ns(1), ns(4)) for x in (a, b, c)]
    gain = 1200 * 0.05 / math.sqrt(3)
    assert (e[0] + e[1]).budget()["gain"] == pytest.approx(2 * gain, rel=1e-3)
    assert (e[0] + e[2]).budget()["gain"] == pytest.approx(math.sqrt(2) * gain, rel=1e-3)
    assert e[0].known
    unknown = CounterCurve(readings(t, 400 * t), counter_spec(1e-3), name="u")
    object.__setattr__(unknown.spec.accuracy, "source", "unknown")
    assert unknown.energy(ns(1), ns(4)).expanded is None


def test_a_counter_that_sees_a_part_carries_the_bound_unless_steps_exclude_it():
    t = np.arange(0, 20, 0.1)
    power = PowerCurve(
        readings(t, np.full(t.size, 400.0)), power_spec(0.1, 0.025, seen=0.25, limits=(50, 700)), name="p"
    )
    c = curve(t, 400 * t, counter_spec(0.1, seen=0.25, limits=(50, 700)), power)
    bound = c.energy(ns(1), ns(19))
    # Three quarters of the time may have been at 50 W instead of 400 W.
    assert bound.budget()["unseen"] == pytest.approx(18 * 0.75 * 350 / 2, rel=0.01)
    steps = np.array([ns(x) for x in np.cumsum(np.full(55, 0.3137))])
    assert c.energy(ns(1), ns(19), steps_ns=steps).budget()["unseen"] < 0.03 * bound.budget()["unseen"]
    assert c.energy(ns(1), ns(19), steps_ns=steps[:5]).budget()["unseen"] == pytest.approx(bound.budget()["unseen"])
    alone = curve(t, 400 * t, counter_spec(None, seen=0.25, limits=(50, 700)))
    assert alone.energy(ns(1), ns(19)).budget()["unseen"] == pytest.approx(bound.budget()["unseen"], rel=0.01)


def test_a_counter_that_agrees_with_a_power_that_keeps_time_with_the_load_may_miss_as_much():
    t = np.arange(0, 40, 0.1)
    shown = 100 + 500.0 * np.array([0, 0, 1, 1, 0, 1, 1])[np.arange(t.size) % 7]
    power = PowerCurve(readings(t, shown), power_spec(0.1, 0.025, seen=0.25, limits=(50, 700)), name="p")
    assert power.locked_s == pytest.approx(0.7)
    mean, spec = float(shown.mean()), counter_spec(0.1, seen=0.25, limits=(50, 700))
    same, more = (curve(t, w * t, spec, power).energy(ns(2), ns(37)).budget()["sampling"] for w in (mean, 1.1 * mean))
    assert same == pytest.approx(power.energy(ns(2), ns(37)).budget()["sampling"])
    assert more == pytest.approx(same / math.sqrt(35 / 0.7), rel=0.05)


def test_the_unseen_bound_is_finite_even_without_limits():
    t = np.arange(0, 20, 0.1)
    unseen = curve(t, 400 * t, counter_spec(0.1, seen=0.25)).energy(ns(1), ns(19)).budget()["unseen"]
    assert unseen == pytest.approx(18 * 0.75 * 1200 / 2, rel=0.02)


def test_an_interval_of_no_length_has_nothing():
    t = np.arange(0, 5, 0.1)
    found = curve(t, 400 * t).energy(ns(2), ns(2))
    assert (found.value, found.u) == (0.0, 0.0)


def test_powers_are_the_rises_between_readings_apart_whatever_was_polled_quickly():
    t = np.concatenate((np.arange(0, 1, 0.002), np.arange(1, 5, 0.1)))
    joules = np.where(t < 3, 100 * t, 300 + 250 * (t - 3)) % 400
    curve = CounterCurve(readings(t, joules), counter_spec(0.001, modulus=400.0), name="c")
    powers = curve.find_powers(0.5)
    assert np.allclose(powers.value[powers.t0_ns < ns(2.4)], 100)
    assert np.allclose(powers.value[powers.t0_ns >= ns(3)], 250)
    assert np.diff(powers.t0_ns).min() > 0.3 * NS


def test_a_counter_of_a_machine_that_is_up_for_months():
    began = 2**54 + 1  # ns: more than a float holds to the nanosecond
    t0 = began + np.arange(0, 50 * NS, NS // 10) + np.arange(500) % 7
    falls = np.where(np.arange(500) < 250, 0.0, -1_000.0) + 10.0 * np.arange(500)
    spec = counter_spec(0.1, modulus=1_000.0)
    curve = CounterCurve(Readings(t0, t0 + 1_000, falls), spec, name="c")
    a, b = int(t0[10]), int(t0[490])
    assert curve.energy(a, b).value == pytest.approx(100 * (b - a) * 1e-9, rel=1e-3)


# Coarse counts.


@pytest.mark.parametrize("watts", [300.0, 1165.0, 4000.0])
@pytest.mark.parametrize("length", [2.0, 4.0, 15.0, 60.0])
def test_a_count_of_a_watt_hour_is_known_to_about_that(watts, length):
    """Whatever the phase: a counter that shows whole Wh, updated once a second."""
    inside, widths = [], []
    for phase in np.arange(0, 3600, 133.0):
        t = np.arange(0.3, 80, 1.0)
        shown = np.floor((phase + watts * np.floor(t)) / 3600) * 3600
        found = CounterCurve(readings(t, shown), counter_spec(1.0, quantum=3600.0), name="c").energy(
            ns(5), ns(5 + length)
        )
        inside.append(abs(found.value - watts * length) <= found.expanded)
        widths.append(found.expanded)
    assert np.mean(inside) >= 0.95
    assert max(widths) < 4 * 3600 + 4 * watts


def test_readings_that_come_late_and_early_show_no_peak():
    rng = np.random.default_rng(3)
    at = np.arange(0.0, 30.0, 0.1) + rng.uniform(0.0, 0.09, 300)
    steps = np.floor(at * 1000) / 1000  # a counter that steps every ms, at a constant 350 W
    seen = readings(at, 350.0 * (steps + rng.choice((0.0, -0.004), 300)))  # now and then some steps late
    watts = CounterCurve(seen, counter_spec(), name="c").find_powers(0.1).value
    assert watts.max() < 350.0 * 1.1
    assert watts.min() > 350.0 * 0.9
    assert len(watts) > 250


def test_a_counter_that_stopped_before_the_end_holds_a_load_that_rose_since():
    t = np.arange(0, 3, 0.1)
    c = curve(t, 100.0 * t, counter_spec(0.1, limits=(20, 700)))
    found = c.energy(ns(0.5), ns(5.0))
    for later_w in (25.0, 100.0, 650.0):
        assert abs(found.value - (100.0 * 2.4 + later_w * 2.1)) <= 2 * found.u
    assert c.energy(ns(0.5), ns(2.5)).u < 10.0


def read_square_load(begin_s, end_s):
    """Return the counter of the campaign's load (60 and 240 W for 0.7 s each), read every 50 ms."""
    t = np.arange(begin_s, end_s, 0.05)
    steps = [ns(math.floor(s / UPDATE_S + 1e-6) * UPDATE_S) for s in t]
    return curve(t, [compute_energy_j(at) for at in steps], counter_spec(UPDATE_S))


@every_row(
    ("early_s", "late_s"),  # by which the first reading comes after the begin, and the last one before the end
    [(-0.2, 0.0), (0.03, -0.2), (0.12, -0.2), (0.5, -0.2), (-0.2, 0.03), (-0.2, 0.12), (0.06, 0.06), (0.2, 0.3)],
)
def test_a_counter_that_began_late_or_stopped_early_holds_the_load_it_did_not_see(early_s, late_s):
    for begin_s in np.arange(0.0, 1.4, 0.05):
        for length_s in (0.7, 1.0, 3.1):
            c = read_square_load(begin_s + early_s, begin_s + length_s - late_s)
            found = c.energy(ns(begin_s), ns(begin_s + length_s))
            true_j = compute_energy_j(ns(begin_s + length_s)) - compute_energy_j(ns(begin_s))
            assert abs(found.value - true_j) <= found.expanded, (begin_s, length_s, found, true_j)


def test_what_a_long_record_never_shows_is_not_expected_in_a_step_without_readings():
    t = np.arange(0, 10, 0.1)
    c = curve(t, 100.0 * t, counter_spec(0.01))
    inside, beyond, far = (c.energy(ns(1), ns(end_s)) for end_s in (9.85, 10.05, 11.0))
    assert beyond.value == pytest.approx(905.0, rel=0.002)
    assert inside.expanded < beyond.expanded < 1.3 * 0.15 * 100.0 + inside.expanded
    assert far.expanded > 1.1 * 300.0, "after three steps it may have risen fourfold"


def test_a_counter_that_is_late_itself_did_not_stop_before_the_end():
    t = np.arange(0, 10, 0.1)
    few, many = (
        curve(t, 100.0 * t, replace(counter_spec(0.1, limits=(0, high)), lag_s=1.0)).energy(ns(1), ns(9.9))
        for high in (200.0, 700.0)
    )
    assert few.u < many.u, "its last half second is several steps, of which it shows nothing"
    for c, other in (
        [curve(t, 100.0 * t, replace(counter_spec(0.1, limits=(0, high)), lag_s=0.4)) for high in (200.0, 700.0)],
        [curve(t, 100.0 * t, counter_spec(0.1, limits=(0, high))).shift_back(0.2, 0.1) for high in (200.0, 700.0)],
    ):
        assert c.energy(ns(1), ns(9.9)).u == pytest.approx(other.energy(ns(1), ns(9.9)).u)
        assert 1.5 * c.energy(ns(1), ns(10.9)).u < other.energy(ns(1), ns(10.9)).u
