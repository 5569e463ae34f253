"""Powers: point samples, windows, averages, partial views, gaps, and what lies between readings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.virtual import ns, power_spec, readings, stamps

from joulelab.analysis.power import FEW_READINGS_FACTOR, SUM_BLOCK, PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.analysis.unseen import PowerBounds, bound_unseen


def curve(seconds, watts, spec=None, *, step_s=None, bounds=None, **more):
    return PowerCurve(readings(seconds, watts), spec or power_spec(**more), name="p", step_s=step_s, bounds=bounds)


def test_no_reading_no_number():
    with pytest.raises(ValueError, match="p: no readings"):
        curve([], [])


def test_one_reading_stands_for_itself_with_idle_as_the_other_end():
    p = curve([1.0], [400.0], power_spec(0.1, 0.1, limits=(50, 700)))
    found = p.energy(ns(0), ns(2))
    assert found.value == pytest.approx(800.0)
    assert abs(2 * 50.0 - found.value) <= 2 * found.u
    assert curve([1.0], [400.0], power_spec(None, None)).step_s == 1.0


# What a reading means.


@pytest.mark.parametrize(("update_s", "window_s"), [(0.0, 0.0), (0.1, 0.1), (0.1, 1.0), (0.1, 0.025), (1.0, 1.0)])
def test_the_age_of_the_readings_is_taken_off(update_s, window_s):
    """A ramp read late by half an update and half a window is integrated as if it were not."""
    t = np.arange(-3, 16, 0.02) + 0.01
    tick = np.floor(t / update_s + 1e-9) * update_s if update_s else t
    p = curve(t, 100 + 20 * (tick - window_s / 2), power_spec(update_s, window_s, limits=(0, 700)), step_s=0.02)
    found = p.energy(ns(2.0), ns(10.0))
    assert found.value == pytest.approx(800 + 10 * (100 - 4), rel=2e-4)


def test_a_step_is_integrated_by_the_trapezoid():
    p = curve([0, 1, 2, 3, 4], [100, 100, 300, 300, 300], power_spec(0.0, 0.0))
    assert p.energy(ns(0), ns(4)).value == pytest.approx(100 + 200 + 600)
    assert p.energy(ns(1.5), ns(2)).value == pytest.approx(125.0)  # from 200 to 300 W
    assert p.energy(ns(-1), ns(0)).value == pytest.approx(100.0)
    assert p.energy(ns(4), ns(6)).value == pytest.approx(600.0)


def test_blocks_do_not_show():
    rng = np.random.default_rng(3)
    n = 3 * SUM_BLOCK + 17
    t, watts = np.cumsum(rng.uniform(0.05, 0.15, n)), rng.uniform(50, 700, n)
    p = curve(t, watts, power_spec(0.0, 0.0))
    for i, j in (
        (0, n - 1),
        (SUM_BLOCK - 1, SUM_BLOCK + 1),
        (SUM_BLOCK, 2 * SUM_BLOCK),
        (17, 3 * SUM_BLOCK),
        (SUM_BLOCK, SUM_BLOCK + 1),
    ):
        exact = np.trapezoid(watts[i : j + 1], t[i : j + 1])
        assert p.energy(ns(t[i]), ns(t[j])).value == pytest.approx(exact, rel=1e-6)


def test_a_reading_that_hung_lies_in_its_middle():
    """A call of 10 s: the value is of some time in it, and energy does not jump where the call begins."""
    t0, t1 = stamps([0, 1, 2, 13, 14]), stamps([0, 1, 12, 13, 14]) + 1000
    p = PowerCurve(Readings.from_rows(t0, t1, np.array([100.0, 100, 500, 500, 500])), power_spec(0.0, 0.0), name="p")
    at = [p.energy(ns(0), ns(x)).value for x in np.arange(0.5, 14, 0.05)]
    assert (np.diff(at) > 0).all()
    assert np.diff(at).max() <= 500 * 0.05 * 1.01
    assert at[-1] == pytest.approx(100 + 6 * 300 + 500 * 6.95, rel=1e-3)


# Between readings.


def noise(seed, n=200):
    return np.random.default_rng(seed).uniform(100, 600, n)


def test_scatter_without_memory_hides_more_than_a_load_that_steps_and_stays():
    t = np.arange(4000) * 1.0
    source = "sampling:p:1005000000000"
    for watts, share in ((noise(1, 4000), 2), (np.repeat(noise(1, 400), 10), 12)):
        found = curve(t, watts, power_spec(1.0, 0.0)).energy(ns(5), ns(3900))
        squares = np.sum(np.diff(watts[6:3902]) ** 2)
        assert found.terms[source] == pytest.approx(math.sqrt(squares / share), rel=0.05)


def test_a_quiet_phase_may_have_missed_what_the_load_does_elsewhere_but_not_all_the_time():
    """Ten readings may miss what happens now and then; a hundred that are quiet are quiet."""
    t = np.arange(400) * 1.0
    p = curve(t, np.concatenate((np.full(200, 300.0), noise(2))), power_spec(1.0, 0.0))
    quiet = [p.energy(ns(5), ns(5 + length)).budget()["sampling"] for length in (5, 10, 100, 180)]
    # Of five readings nobody knows their spread as well as of ten: Student's t.
    assert quiet[0] == pytest.approx(
        quiet[1] / math.sqrt(2) * FEW_READINGS_FACTOR[5] / FEW_READINGS_FACTOR[10], rel=0.01
    )
    assert quiet[1:] == pytest.approx(
        [quiet[1], quiet[1] / FEW_READINGS_FACTOR[10], quiet[1] / FEW_READINGS_FACTOR[10]]
    )
    noisy = p.energy(ns(250), ns(390)).budget()["sampling"]
    assert quiet[3] < noisy / 2
    steady = curve(t, np.full(400, 300.0), power_spec(1.0, 0.0)).energy(ns(5), ns(10))
    assert "sampling" not in steady.budget()


def test_a_noisy_phase_after_a_stepping_one_keeps_its_uncertainty():
    """Prefix sums of what one interval alone says about itself, so that no difference of two can vanish."""
    t = np.arange(400) * 1.0
    steps = np.repeat(np.random.default_rng(5).uniform(0, 5000, 20), 10)
    p = curve(t, np.concatenate((noise(2), steps)), power_spec(1.0, 0.0))
    alone = curve(t, np.concatenate((noise(2), np.full(200, 300.0))), power_spec(1.0, 0.0))
    a, b = ns(20), ns(180)
    assert p.energy(a, b).budget()["sampling"] >= alone.energy(a, b).budget()["sampling"] * (1 - 1e-9)


def test_full_windows_hide_almost_nothing_partial_ones_the_rest():
    t = np.arange(0, 60, 0.1)
    watts = np.where(np.random.default_rng(4).random(t.size) < 0.1, 600.0, 100.0)
    u = {w: curve(t, watts, power_spec(0.1, w)).energy(ns(5), ns(50)).budget()["sampling"] for w in (0.0, 0.025, 0.1)}
    assert u[0.025] == pytest.approx(0.75 * u[0.0], rel=0.03)
    assert u[0.1] == pytest.approx(0.2 * u[0.0], rel=0.03)


def test_repeats_of_a_load_add_linearly():
    """A load that repeats is seen at the same places each time: twice the time is twice the error, not 1.4 times."""
    t = np.arange(0, 400, 0.1)
    p = curve(t, np.where(t % 2.7 < 1.35, 500.0, 100.0), power_spec(0.1, 0.025))
    assert p.period_s == pytest.approx(2.7, abs=0.01)
    one, two, four = (p.energy(ns(20), ns(20 + k * 90)).budget()["sampling"] for k in (1, 2, 4))
    assert two == pytest.approx(2 * one, rel=0.02)
    assert four == pytest.approx(4 * one, rel=0.02)
    halves = p.energy(ns(20), ns(110)) + p.energy(ns(110), ns(200))
    assert halves.budget()["sampling"] == pytest.approx(two, rel=0.02)
    # The formula of facts/accuracy.md: (D - w) / sqrt(12) * sqrt(N * sum dP^2).
    jumps = np.sum(np.diff(p.readings.value[(t > 20) & (t < 110)]) ** 2)
    assert one == pytest.approx(0.075 / math.sqrt(12) * math.sqrt(90 / 2.7 * jumps), rel=0.05)


def test_repeats_that_are_known_to_be_out_of_step_average_out():
    """Steps spread over the sensor's grid: each repeat is seen at other places, so twice the time is 1.4 times."""
    t = np.arange(0, 400, 0.1)
    p = curve(t, np.where(t % 2.7 < 1.35, 500.0, 100.0), power_spec(0.1, 0.025))
    steps = stamps(np.arange(0, 400, 0.3137))
    one, four = (p.energy(ns(20), ns(20 + k * 90), steps_ns=steps).budget()["sampling"] for k in (1, 4))
    assert four == pytest.approx(2 * one, rel=0.05)
    unknown, locked = (p.energy(ns(20), ns(110), steps_ns=s).budget()["sampling"] for s in (None, stamps(t)))
    assert locked == pytest.approx(unknown, rel=0.03)
    assert one == pytest.approx(unknown / math.sqrt(90 / 2.7), rel=0.05)
    whole = curve(t, np.where(t % 2.7 < 1.35, 500.0, 100.0), power_spec(0.1, 0.1))
    seen = [whole.energy(ns(20), ns(20 + k * 90)).budget()["sampling"] for k in (1, 4)]
    assert seen[1] == pytest.approx(2 * seen[0], rel=0.05), "nothing can be in step with a sensor that sees all"


def test_devices_that_are_read_together_miss_the_same():
    t = np.arange(0, 60, 1.0)
    for update_s, share in ((0.1, 2.0), (1.0, math.sqrt(2))):
        one, two = (
            PowerCurve(readings(t, noise(3, 60)), power_spec(update_s, 0.0, shared="nvml:H100"), name=n, step_s=1.0)
            for n in ("gpu:0", "gpu:1")
        )
        a, b = ns(5), ns(50)
        both = one.energy(a, b) + two.energy(a, b)
        assert both.budget()["sampling"] == pytest.approx(share * one.energy(a, b).budget()["sampling"])
        assert both.budget()["edge"] == pytest.approx(2 * one.energy(a, b).budget()["edge"])


# Gaps.


def test_a_gap_costs_a_power_what_it_may_have_hidden():
    t = np.concatenate((np.arange(0, 10, 0.1), np.arange(14, 20, 0.1)))
    watts = np.where((t % 2) < 1, 500.0, 100.0)
    found = curve(t, watts, power_spec(0.1, 0.1, limits=(50, 700))).energy(ns(1), ns(19))
    # From 100 to 500 W, a quarter further on both sides as far as the limits allow.
    assert found.budget()["gap"] == pytest.approx(4.1 * (600 - 50) / math.sqrt(12), rel=0.02)
    before = curve(t, watts, power_spec(0.1, 0.1, limits=(50, 700))).energy(ns(1), ns(9))
    assert "gap" not in before.budget()


def test_a_gap_in_a_steady_load_may_still_hide_a_tenth_of_it():
    t = np.concatenate((np.arange(0, 10, 0.1), np.arange(14, 20, 0.1)))
    found = curve(t, np.full(t.size, 400.0), power_spec(0.1, 0.1, limits=(50, 700))).energy(ns(1), ns(19))
    assert found.budget()["gap"] == pytest.approx(4.1 * 80 / math.sqrt(12), rel=0.02)


def test_a_gap_that_takes_most_of_the_time_is_a_gap():
    t = np.concatenate((np.arange(0, 4, 0.1), np.arange(16, 20, 0.1)))
    watts = np.where((t % 2) < 1, 500.0, 100.0)
    for step_s in (None, 0.1):
        p = curve(t, watts, power_spec(0.1, 0.1), step_s=step_s)
        assert p.step_s == pytest.approx(0.1)
        # From nothing to a quarter of the range beyond what was seen: nobody states limits.
        assert p.energy(ns(1), ns(19)).budget()["gap"] == pytest.approx(12.1 * 600 / math.sqrt(12), rel=0.05)


def test_the_step_that_was_asked_for_decides_what_a_gap_is():
    t = np.arange(0, 60, 2.0)
    assert "gap" not in curve(t, 100 + t, step_s=2.0).energy(ns(4), ns(50)).budget()
    assert "gap" in curve(t, 100 + t, step_s=0.1).energy(ns(4), ns(50)).budget()


def test_a_pause_in_which_the_instrument_has_nothing_new_is_no_gap():
    t = np.concatenate((np.arange(0, 5, 0.01), np.arange(5.15, 10, 0.01)))
    watts = np.where(t % 2 < 1, 500.0, 100.0)
    assert "gap" not in curve(t, watts, power_spec(0.1, 0.1)).energy(ns(1), ns(9)).budget()
    assert "gap" in curve(t, watts, power_spec(0.02, 0.01)).energy(ns(1), ns(9)).budget()


def test_gaps_before_an_interval_do_not_enter_it_through_later_readings():
    t = np.concatenate((np.arange(0, 5, 0.1), np.arange(9, 30, 0.1)))
    watts = np.where(t < 15, 100.0, np.where(t % 2 < 1, 600.0, 100.0))
    assert "gap" not in curve(t, watts, power_spec(0.1, 0.1)).energy(ns(10), ns(29)).budget()


# Edges.


def test_an_edge_reaches_down_to_idle_where_nothing_was_read_beyond():
    t = np.arange(0, 10, 1.0)
    p = curve(t, np.full(10, 400.0), power_spec(0.0, 0.0, limits=(50, 700)))
    inside, beyond = p.edge_u(ns(5.2)), p.edge_u(ns(12.0))
    assert inside == pytest.approx(80 * 0.5 / math.sqrt(3))  # a tenth up and down over half a step
    assert beyond > 380 * 3.0 / math.sqrt(3) * 0.99
    assert p.edge_u(ns(-3.0)) == pytest.approx(p.edge_u(ns(12.0)), rel=1e-6)


@pytest.mark.parametrize("lost", ["end", "start"])
@pytest.mark.parametrize(("limits", "low", "high"), [(None, 0.0, 105.0), ((50.0, 700.0), 50.0, 600.0)])
def test_a_meter_that_stops_or_begins_late_knows_little_of_the_rest(lost, limits, low, high):
    t = np.arange(0.0, 2.0, 0.1) + (10.0 if lost == "start" else 0.0)
    found = curve(t, np.full(t.size, 100.0), power_spec(0.1, 0.1, limits=limits)).energy(ns(0), ns(12))
    assert found.value == pytest.approx(1200.0, rel=0.01)
    for watts in (low, high):  # of the ten seconds that nobody measured
        assert abs(200 + 10 * watts - found.value) <= 2 * found.u


def test_an_edge_in_a_gap_is_as_wide_as_the_gap():
    t = np.concatenate((np.arange(0, 5, 0.1), np.arange(9, 14, 0.1)))
    p = curve(t, np.where(t < 7, 500.0, 100.0), power_spec(0.1, 0.1, limits=(50, 700)))
    found = p.energy(ns(1), ns(7))
    for changed in (5.0, 9.0):  # when it fell, nobody saw
        exact = 500 * (min(changed, 7) - 1) + 100 * max(7 - changed, 0)
        assert abs(found.value - exact) <= 2 * found.u


def test_an_unknown_lag_counts_by_the_difference_of_both_ends():
    t = np.arange(0, 20, 1.0)
    p = curve(t, np.where(t < 10, 100.0, 500.0), power_spec(1.0, 0.0))
    assert p.energy(ns(2), ns(6)).budget().get("lag", 0.0) == 0.0
    assert p.energy(ns(2), ns(16)).budget()["lag"] == pytest.approx(400 * 0.5 / math.sqrt(3))


def test_an_interval_of_no_length_has_nothing():
    p = curve(np.arange(0, 10, 0.1), noise(7, 100), power_spec(0.1, 0.025, gain=0.05, offset=2.0, quantum=1.0))
    found = p.energy(ns(5), ns(5))
    assert (found.value, found.u) == (0.0, 0.0)


# Systematic terms.


def test_gain_and_offset_do_not_shrink_with_readings():
    for n in (10, 1000):
        t = np.linspace(0, 100, n)
        p = curve(t, np.full(n, 200.0), power_spec(0.0, 0.0, gain=0.03, offset=4.0, shared="pdu"))
        found = p.energy(ns(10), ns(90))
        assert found.terms["gain:pdu"] == pytest.approx(16_000 * 0.03 / math.sqrt(3))
        assert found.terms["offset:pdu"] == pytest.approx(80 * 4.0 / math.sqrt(3))


def test_an_unknown_accuracy_gives_no_interval():
    p = curve([0, 1, 2], [1, 1, 1])
    object.__setattr__(p.spec.accuracy, "source", "unknown")
    assert p.energy(ns(0), ns(2)).expanded is None


def test_a_reading_that_sits_on_one_code_is_wrong_the_same_way_all_the_time():
    t = np.arange(0, 100, 1.0)
    stuck, moving = np.full(100, 47.0 * 8), 47.0 * (8 + np.arange(100) % 3)
    one, many = (curve(t, w, power_spec(0.0, 0.0, quantum=47.0)) for w in (stuck, moving))
    whole = one.energy(ns(10), ns(90))
    assert whole.budget()["quantum"] == pytest.approx(80 * 47 / math.sqrt(12))
    parts = one.energy(ns(10), ns(50)) + one.energy(ns(50), ns(90))
    assert parts.budget()["quantum"] == pytest.approx(whole.budget()["quantum"])
    assert many.energy(ns(10), ns(90)).budget()["quantum"] == pytest.approx(80 * 47 / math.sqrt(12 * 81), rel=0.01)


# What is never seen.


@pytest.mark.parametrize(
    ("update_s", "window_s", "seen", "step_s", "hidden"),
    [
        (0.1, 0.1, 1.0, 0.1, 0.0),
        (0.1, 0.025, 0.25, 0.1, 0.75),
        (0.02, 0.01, 0.5, 0.02, 0.5),
        (0.1, 1.0, 1.0, 0.1, 0.0),
        (0.1, 1.0, 0.25, 0.1, 0.75),  # a mean of parts sees no more than the parts
        (0.1, 0.1, 1.0, 0.5, 0.0),  # read more slowly than it is updated: that is the sampling term's
        (0.1, 1.0, 1.0, 2.0, 0.0),
        (1.0, 0.0, 1.0, 1.0, 0.0),  # points
        (0.0, 0.0, 1.0, 0.1, 0.0),
    ],
)
def test_the_hidden_share_is_what_lies_between_the_windows(update_s, window_s, seen, step_s, hidden):
    t = np.arange(0, 20, step_s)
    p = curve(t, np.full(t.size, 400.0), power_spec(update_s, window_s, seen=seen, limits=(50, 700)), step_s=step_s)
    assert p.find_hidden_share() == pytest.approx(hidden)
    bound = p.energy(ns(1), ns(19)).budget().get("unseen", 0.0)
    assert bound == pytest.approx(hidden * 18 * 350 / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("update_s", "window_s", "step_s", "in_step"),
    [(0.1, 0.1, 0.1, 0.0), (1.0, 1.0, 60.0, 1.0), (2.0, 0.0, 2.0, 1.0), (0.1, 0.025, 0.1, 1.0), (0.1, 1.0, 0.5, 0.0)],
)
def test_what_sees_all_is_in_step_with_nothing_what_is_read_seldom_may_be(update_s, window_s, step_s, in_step):
    t = np.arange(0, 600, step_s)
    p = curve(t, np.full(t.size, 400.0), power_spec(update_s, window_s, limits=(50, 700)), step_s=step_s)
    assert p.find_share_in_step() == pytest.approx(in_step)


def test_steps_of_the_interval_exclude_it_steps_of_another_do_not():
    t = np.arange(0, 40, 0.1)
    p = curve(t, np.full(t.size, 400.0), power_spec(0.1, 0.025, limits=(50, 700)))
    steps = stamps(np.arange(20, 39, 0.3137))
    assert "unseen" not in p.energy(ns(20), ns(39), steps_ns=steps).budget()
    assert "unseen" in p.energy(ns(1), ns(19), steps_ns=steps).budget()


def test_the_unseen_bound_holds_for_the_worst_load_in_step():
    """Seen at 400 W in a quarter of the time, at the limit in the rest: the truth is inside."""
    for hidden_w in (50.0, 700.0):
        true = 10 * (0.25 * 400 + 0.75 * hidden_w)
        assert abs(true - 4000) <= 2 * bound_unseen(4000.0, 10.0, 0.75, PowerBounds(50.0, 700.0))
    assert bound_unseen(4000.0, 0.0, 0.75, PowerBounds(50.0, 700.0)) == 0.0
    assert bound_unseen(4000.0, 10.0, 0.0, PowerBounds(50.0, 700.0)) == 0.0


# Bounds.


@pytest.mark.parametrize(
    ("seen", "widened"),
    [
        ((200.0, 400.0), (150.0, 450.0)),  # a quarter of the range
        ((400.0, 400.0), (360.0, 440.0)),  # a tenth of the power
        ((60.0, 690.0), (50.0, 700.0)),  # not beyond the limits
        ((20.0, 900.0), (20.0, 900.0)),  # unless that was seen
    ],
)
def test_powers_that_were_averaged_went_further_within_limits(seen, widened):
    assert PowerBounds(50.0, 700.0).widen_range(*seen) == pytest.approx(widened)


def test_limits_that_were_exceeded_are_widened_to_what_was_seen():
    p = curve([0, 1, 2], [30.0, 800.0, 400.0], power_spec(0.1, 0.1, limits=(50, 700)))
    assert p.bounds == PowerBounds(30.0, 800.0)
    assert curve([0, 1], [30.0, 800.0], bounds=PowerBounds(0.0, 1000.0)).bounds == PowerBounds(0.0, 1000.0)
    assert curve([0, 1], [30.0, 800.0]).bounds == PowerBounds(30.0, 800.0)


# How late it may be.


def test_a_lag_that_nobody_knows_moves_the_curve_by_its_half_and_counts_at_both_edges():
    t = np.arange(0, 60, 1.0)
    watts = np.where((t > 20) & (t < 40), 500.0, 100.0)
    plain, late = (curve(t, watts, replace(power_spec(1.0, 1.0), lag_s=lag)) for lag in (0.0, 4.0))
    assert late.shift_s == plain.shift_s + 2.0
    a, b = ns(10), ns(30)
    assert late.energy(a, b).terms["lag:p"] == pytest.approx(400 * math.hypot(0.5 / math.sqrt(3), 4 / math.sqrt(12)))
    found = PowerCurve(plain.readings, late.spec, name="p", lag_u_s=0.1)
    assert found.energy(a, b).terms["lag:p"] == pytest.approx(400 * math.hypot(0.5 / math.sqrt(3), 0.1))


def test_hardly_a_reading_and_no_limits_give_no_interval():
    t = np.array([0.0, 60.0, 120.0, 180.0])
    p = curve(t, np.array([100.0, 100.0, 500.0, 500.0]), power_spec(1.0, 1.0), step_s=60.0)
    assert not p.energy(ns(70), ns(110)).known
    assert p.energy(ns(50), ns(170)).known
    bounded = curve(t, np.array([100.0, 100.0, 500.0, 500.0]), power_spec(1.0, 1.0, limits=(50, 700)), step_s=60.0)
    assert bounded.energy(ns(70), ns(110)).known


def test_a_lag_of_seconds_may_move_a_whole_short_run():
    t = np.arange(0, 40, 1.0)
    watts = np.where((t > 20) & (t <= 23), 800.0, 200.0)
    p = curve(t, watts, replace(power_spec(1.0, 1.0), lag_s=4.0))
    found = p.energy(ns(19), ns(22))
    assert abs(found.value - (3 * 800.0)) < found.expanded
    far = p.energy(ns(100), ns(103))  # nothing was read there: the whole record bounds it
    assert far.terms["lag:p"] > 0


def test_a_gap_between_equal_readings_hides_what_it_may_where_nobody_states_limits():
    t = np.concatenate((np.arange(0, 5, 1.0), np.arange(95, 100, 1.0)))
    p = curve(t, np.full(t.size, 300.0), power_spec(1.0, 1.0), step_s=1.0)
    assert p.energy(ns(0), ns(99)).budget()["gap"] > 0.2 * 300 * 90
