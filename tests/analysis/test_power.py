"""Powers: point samples, windows, averages, partial views, gaps, and what lies between readings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.virtual import ns, power_spec, readings, stamps
from tests.rows import every_row

from joulelab.analysis.power import MISSED_STEPS, SUM_BLOCK, WINDOW_EDGE, PowerCurve
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


@every_row(("update_s", "window_s"), [(0.0, 0.0), (0.1, 0.1), (0.1, 1.0), (0.1, 0.025), (1.0, 1.0)])
def test_the_age_of_the_readings_is_taken_off(update_s, window_s):
    """A ramp read late by half an update and half a window is integrated as if it were not."""
    t = np.arange(-3, 16, 0.02) + 0.01
    tick = np.floor(t / update_s + 1e-9) * update_s if update_s else t
    p = curve(t, 100 + 20 * (tick - window_s / 2), power_spec(update_s, window_s, limits=(0, 700)), step_s=0.02)
    found = p.energy(ns(2.0), ns(10.0))
    assert found.value == pytest.approx(800 + 10 * (100 - 4), rel=2e-4)


@every_row(("stated_s", "used_s"), [(1.0, 5.0), (None, 5.0), (3.0, 3.0), (8.0, 8.0), (0.0, 0.0)])
def test_values_that_last_longer_than_stated_are_that_much_older(stated_s, used_s):
    """New values every 5 s: not so much slower than 3 s; of readings without an age, nothing is learnt."""
    t = np.arange(0, 100, 1.0)
    watts = np.random.default_rng(4).uniform(300, 700, 21)[((t + 0.5) / 5).astype(int)]
    p = curve(t, watts, power_spec(stated_s, 0.0), step_s=1.0)
    assert (p.update_s, p.shift_s) == (pytest.approx(used_s), pytest.approx(used_s / 2))
    others = p.shift_back(0.5, 0.1), curve(t, t, p.spec, step_s=1.0)  # other values, as the rest of a guide has
    assert {other.update_s for other in others} == {p.update_s}


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


def step_at(turn, step_s=10.0):
    """Return readings of a load that jumps by 400 W at some time of the third step, and its energy up to 100 s."""
    t = np.arange(0, 100.1, step_s)
    return curve(t, np.where(t < turn, 100.0, 500.0), power_spec(0.0, 0.0)), 100.0 * 100 + 400.0 * (100 - turn)


def test_a_jump_may_lie_anywhere_in_its_step():
    errors, terms = [], set()
    for turn in np.linspace(20.001, 30, 61):
        p, true = step_at(turn)
        found = p.energy(ns(0), ns(100))
        errors.append(found.value - true)
        terms.add(round(found.terms[f"sampling:p:{ns(0)}"], 6))
    assert terms == {round(400 * 10 / math.sqrt(12), 6)}
    assert terms.pop() == pytest.approx(np.std(errors), rel=0.02)


@every_row(("since", "until"), [(0.0, 22.0), (0.0, 25.0), (0.0, 29.0), (21.0, 100.0), (26.0, 100.0)])
def test_of_a_step_that_an_edge_cuts_only_the_part_inside_counts(since, until):
    errors = []
    for turn in np.linspace(20.001, 30, 61):
        p, _ = step_at(turn)
        found = p.energy(ns(since), ns(until))
        errors.append(found.value - 100.0 * (until - since) - 400.0 * max(until - max(turn, since), 0.0))
    x = (min(until, 30.0) - max(since, 20.0)) / 10
    u = p.compute_sampling_terms(ns(since), ns(until))[f"sampling:p:{ns(since)}"]
    exact = 400 * 10 * math.sqrt((4 * x**3 - 3 * x**4) / 12)
    elsewhere = 400 * 10 / math.sqrt(12) * math.sqrt((until - since) / 100)  # the same jump, anywhere in the record
    assert u == pytest.approx(max(exact, elsewhere))
    assert np.std(errors) == pytest.approx(exact, rel=0.06)


def test_a_stretch_inside_one_step_of_a_wave_covers_both_of_its_states():
    """Whatever two readings show: the range of the readings counts, not their mean."""
    t = np.arange(0, 60, 0.5)
    p = curve(t, np.where(t % 3 < 1.5, 550.0, 100.0), power_spec(0.1, 0.1, limits=(40, 700)), step_s=0.5)
    edge = 30.0 + 1.25 - p.shift_s  # in the middle of a step that holds a jump
    found = p.energy(ns(edge - 0.1), ns(edge + 0.1))
    for watts in (100.0, 550.0):
        assert abs(found.value - 0.2 * watts) <= found.expanded


def test_scatter_without_memory_hides_more_than_a_load_that_steps_and_stays():
    t = np.arange(4000) * 1.0
    source = "sampling:p:1005000000000"
    for watts, share in ((noise(1, 4000), 2), (np.repeat(noise(1, 400), 10), 12)):
        found = curve(t, watts, power_spec(0.0, 0.0)).energy(ns(5), ns(3900))
        squares = np.sum(np.diff(watts[5:3901]) ** 2)
        assert found.terms[source] == pytest.approx(math.sqrt(squares / share), rel=0.05)


def test_a_quiet_phase_may_have_missed_what_the_load_does_elsewhere_but_not_all_the_time():
    """Ten readings may miss what happens now and then; a hundred that are quiet are quiet."""
    t = np.arange(400) * 1.0
    p = curve(t, np.concatenate((np.full(200, 300.0), noise(2))), power_spec(0.0, 0.0))
    quiet = [p.energy(ns(5), ns(5 + length)).budget()["sampling"] for length in (5, 10, 100, 180)]
    assert quiet == pytest.approx([quiet[1] / math.sqrt(2), *[quiet[1]] * 3])
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


def test_windows_hide_less_the_longer_they_are():
    t = np.arange(0, 60, 0.1)
    watts = np.where(np.random.default_rng(4).random(t.size) < 0.1, 600.0, 100.0)
    u = {w: curve(t, watts, power_spec(0.0, w)).energy(ns(5), ns(50)).budget() for w in (0.0, 0.025, 0.1)}
    assert u[0.025]["sampling"] == pytest.approx(0.75 * u[0.0]["sampling"], rel=0.03)
    assert u[0.1].get("sampling", 0.0) == pytest.approx(0.0, abs=1e-9)


def test_repeats_of_a_load_average_out_unless_they_keep_time_with_the_readings():
    """Four times the time is twice the error; if each repeat is read at the same places, it is four times the error."""
    t = np.arange(0, 400, 0.1)
    starts = np.cumsum(2.7 + np.random.default_rng(6).uniform(-0.5, 0.5, 200))
    free = np.where(t - np.concatenate(([0.0], starts))[np.searchsorted(starts, t, side="right")] < 1.35, 500.0, 100.0)
    for watts, share in ((free, 2.0), (np.where(t % 2.7 < 1.35, 500.0, 100.0), 4.0)):
        p = curve(t, watts, power_spec(0.0, 0.0))
        one, four = (p.energy(ns(20), ns(20 + k * 90)).budget()["sampling"] for k in (1, 4))
        assert four == pytest.approx(share * one, rel=0.07)
        jumps = np.sum(np.diff(watts[(t > 20) & (t < 110)]) ** 2) * (1 if share == 2 else 90 / 2.7)
        assert one == pytest.approx(0.1 * math.sqrt(jumps / 12), rel=0.05)


def test_a_reading_may_be_up_to_an_update_old():
    """A jump that a sensor without gaps shows may have happened up to one update earlier."""
    t = np.arange(0, 60, 1.0)
    source = f"sampling:p:{ns(5)}"
    once = curve(t, np.where(t < 30, 100.0, 500.0), power_spec(1.0, 1.0)).energy(ns(5), ns(50))
    assert once.terms[source] == pytest.approx(400 / math.sqrt(12))
    fine = curve(t, np.where(t < 30, 100.0, 500.0), power_spec(0.2, 1.0)).energy(ns(5), ns(50))
    assert fine.terms[source] == pytest.approx(0.2 * 400 / math.sqrt(12))
    assert source not in curve(t, np.where(t < 30, 100.0, 500.0), power_spec(0.0, 1.0)).energy(ns(5), ns(50)).terms
    # The ages of neighbours are alike, so that rises and falls cancel except for the first and the last.
    often = curve(t, np.where(t % 10 < 5, 100.0, 500.0), power_spec(1.0, 1.0)).energy(ns(5), ns(50))
    assert often.terms[source] == pytest.approx(math.sqrt(2 * (1 + 0.015 * 45)) * 400 / math.sqrt(12))


def test_ages_of_readings_count_in_a_stretch_that_holds_one():
    t = np.arange(0, 60, 10.0)
    p = curve(t, np.where(t < 30, 100.0, 500.0), power_spec(10.0, 10.0))
    found = p.energy(ns(16), ns(24))  # ten seconds before the reading of 30 s that shows the jump
    assert found.budget()["sampling"] == pytest.approx(400 * 10 / math.sqrt(12))
    assert p.energy(ns(31), ns(39)).budget().get("sampling", 0.0) == pytest.approx(0.0, abs=1e-9)


@every_row(
    ("update_s", "window_s", "step_s", "missed"),
    [
        (1.0, 0.0, 60.0, 300.0 * MISSED_STEPS * 60),  # points: from 400 W up to the limit of 700 W
        (1.0, 1.0, 60.0, 300.0 * MISSED_STEPS * 59),
        (0.1, 0.025, 0.1, 300.0 * 0.15 * MISSED_STEPS * 0.075),  # 75 ms are too short to go all the way and back
        (0.1, 0.1, 0.1, 0.0),
        (0.1, 1.0, 0.1, 0.0),
    ],
)
def test_a_state_that_no_reading_met_may_have_lasted_for_part_of_a_step(update_s, window_s, step_s, missed):
    t = np.arange(0, 40 * step_s, step_s)
    p = curve(t, np.full(t.size, 400.0), power_spec(update_s, window_s, limits=(50, 700)), step_s=step_s)
    ends = [(ns(step_s), ns(length * step_s)) for length in (11, 31)]
    assert [p.energy(a, b).budget().get("missed", 0.0) for a, b in ends] == pytest.approx([missed, missed])
    short = p.energy(ns(3 * step_s), ns(3.2 * step_s)).budget().get("missed", 0.0)
    assert short == pytest.approx(min(missed, missed * 0.1 * step_s / MISSED_STEPS / max(step_s - window_s, 1e-9)))


def test_a_missed_state_may_be_idle_whatever_the_limits_say():
    t = np.arange(0, 4000, 60.0)
    source = f"missed:p:{ns(100)}"
    for limits, watts, depth in (
        ((0.0, 700.0), 650.0, 0.7 * 650),  # 30 % of the mean, if no reading shows idle power
        ((400.0, 700.0), 650.0, 250.0),
        (None, 650.0, 0.7 * 650),
        (None, 100.0, 70.0),
    ):
        p = curve(t, np.full(t.size, watts), power_spec(1.0, 0.0, limits=limits), step_s=60.0)
        assert p.energy(ns(100), ns(3000)).terms[source] == pytest.approx(depth * MISSED_STEPS * 60)
    # The lowest reading is idle power, and power may go beyond the highest by a quarter of the range.
    p = curve(t, np.where(t < 3600, 600.0, 100.0), power_spec(1.0, 0.0), step_s=60.0)
    assert p.energy(ns(100), ns(3000)).terms[source] == pytest.approx(500 * MISSED_STEPS * 60)
    p = curve(t, np.where(t < 3600, 100.0, 600.0), power_spec(1.0, 0.0), step_s=60.0)
    assert p.energy(ns(100), ns(3000)).terms[source] == pytest.approx((725 - 100) * MISSED_STEPS * 60)


# Beats.


def read_parts(period, phase=0.0):
    """Return 25 of every 100 ms of a square wave from 100 to 500 W, and its energy up to any second."""

    def joules(x):
        whole, part = np.divmod(np.asarray(x) + phase, period)
        return 100.0 * np.asarray(x) + 400.0 * (whole * period / 2 + np.minimum(part, period / 2))

    t = np.arange(0.1, 60, 0.1)
    watts = (joules(t) - joules(t - 0.025)) / 0.025
    return curve(t + 0.05, watts, power_spec(0.1, 0.025, limits=(40, 700)), step_s=0.1), joules


def test_a_slow_beat_between_load_and_sensor_is_a_term():
    """52 ms are nearly half of 100 ms: the windows wander through the load once in 1.3 s."""
    p, _ = read_parts(0.052)
    since, until, period_s, deviation_w = p._beat
    assert period_s == pytest.approx(1.3, abs=0.11)
    assert deviation_w == pytest.approx(np.std(p.readings.value), rel=0.05)
    assert since < ns(1.5)
    assert until > ns(58.5)
    slow, _ = read_parts(2.7)
    assert slow._beat is None
    short, long = (p.energy(ns(20), ns(20 + x)).budget()["sampling"] for x in (0.5, 20.0))
    assert short == pytest.approx(deviation_w * 0.5, rel=0.2)
    assert deviation_w * 0.7 * 1.3 < long < 1.3 * deviation_w * 0.7 * 1.3
    outside = p._compute_beat_variance(ns(70), ns(80))
    assert outside == 0.0


@pytest.mark.parametrize("period", [0.0505, 0.052, 0.0511, 0.101])
def test_the_energy_of_a_beating_load_is_inside(period):
    inside = []
    for phase in np.linspace(0, period, 7):
        p, joules = read_parts(period, phase)
        for a, b in ((5.0, 6.0), (5.3, 9.1), (2.0, 40.0), (10.0, 55.0)):
            found = p.energy(ns(a), ns(b))
            inside.append(abs(found.value - (joules(b) - joules(a))) <= found.expanded)
    assert np.mean(inside) >= 0.95


def test_sensors_that_see_all_or_are_read_seldom_have_no_beat():
    t = np.arange(0, 60, 0.1)
    beat = 300 + 200 * np.sin(2 * np.pi * t / 1.3)
    assert curve(t, beat, power_spec(0.1, 0.025))._beat is not None
    assert curve(t, beat, power_spec(0.1, 0.1))._beat is None
    assert curve(t[::2], beat[::2], power_spec(0.1, 0.025))._beat is None


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


def cut_out(t, watts, since, length):
    keep = (t < since) | (t > since + length)
    return curve(t[keep], watts[keep], power_spec(0.1, 0.1, limits=(50, 700)), step_s=0.1)


def test_a_gap_costs_what_gaps_of_its_length_would_cost_elsewhere():
    t = np.arange(0, 300, 0.1)
    rng = np.random.default_rng(8)
    watts = np.repeat(rng.uniform(100, 600, 300), 10)  # a level each second
    whole = curve(t, watts, power_spec(0.1, 0.1, limits=(50, 700)), step_s=0.1).energy(ns(1), ns(299))
    errors, terms = [], []
    for since in rng.uniform(5, 290, 60):
        found = cut_out(t, watts, since, 4.0).energy(ns(1), ns(299))
        errors.append(found.value - whole.value)
        terms.append(found.budget()["gap"])
    assert np.mean(np.abs(errors) <= 2 * np.array(terms)) >= 0.95
    assert np.median(terms) < 1.5 * np.std(errors)


@pytest.mark.parametrize("record_s", [40.0, 160.0])
def test_the_longer_a_load_was_steady_the_less_may_a_gap_hide(record_s):
    t = np.arange(0, record_s, 0.1)
    p = cut_out(t, np.full(t.size, 400.0), record_s / 2, 4.0)
    ((after,), low) = p._gaps, 0.3 * 400
    length = (p.readings.t0_ns[after + 1] - p.readings.t0_ns[after]) * 1e-9
    tried = len(p._try_gaps(round(length * 1e9)))
    assert 0.6 * record_s / 4 < tried <= record_s / 4
    u = length * (700 - low) / math.sqrt(12) * math.sqrt(2 / (tried + 2))
    assert p.energy(ns(1), ns(record_s - 1)).budget()["gap"] == pytest.approx(u, rel=0.06)
    assert "gap" not in p.energy(ns(1), ns(record_s / 2 - 1)).budget()


def test_gaps_of_one_length_are_judged_once_and_add_in_quadrature(monkeypatch):
    t = np.arange(0, 100, 0.1)
    keep = ((t < 20) | (t > 24)) & ((t < 60) | (t > 64))
    p = curve(t[keep], noise(4, 1000)[keep], power_spec(0.1, 0.1), step_s=0.1)
    one = p.energy(ns(1), ns(50)).budget()["gap"]
    monkeypatch.setattr(p, "_try_gaps", None)
    assert p.energy(ns(1), ns(99)).budget()["gap"] == pytest.approx(math.sqrt(2) * one)


def test_a_gap_that_takes_most_of_the_time_may_hide_anything_in_the_range():
    t = np.concatenate((np.arange(0, 4, 0.1), np.arange(16, 20, 0.1)))
    watts = np.where((t % 2) < 1, 500.0, 100.0)
    for step_s in (None, 0.1):
        p = curve(t, watts, power_spec(0.1, 0.1), step_s=step_s)
        assert p.step_s == pytest.approx(0.1)
        # From 30 % of the mean to a quarter of the range beyond the highest reading: nobody states limits.
        u = 12.1 * (600 - 0.3 * 300) / math.sqrt(12)
        assert p.energy(ns(1), ns(19)).budget()["gap"] == pytest.approx(u, rel=0.01)


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


def test_an_edge_is_blurred_by_windows_and_ages():
    t = np.arange(0, 30, 1.0)
    watts = np.where(t < 15, 100.0, 500.0)
    for update_s, window_s in ((0.0, 0.0), (1.0, 0.0), (0.1, 1.0)):
        p = curve(t, watts, power_spec(update_s, window_s, limits=(50, 700)))
        blur_s = math.hypot(update_s / math.sqrt(12), WINDOW_EDGE * window_s)
        assert p.edge_u(ns(15.2) - round(p.shift_s * 1e9)) == pytest.approx(400 * blur_s)
        assert p.edge_u(ns(25.2)) == pytest.approx(0.1 * 500 * blur_s), "a tenth of the power may vary unseen"


def test_an_edge_reaches_from_idle_to_the_limit_where_nothing_was_read_beyond():
    t = np.arange(0, 10, 1.0)
    p = curve(t, np.full(10, 400.0), power_spec(0.0, 0.0, limits=(50, 700)))
    for second, beyond_s in ((11.0, 2.0), (14.0, 5.0), (-2.0, 2.0), (-5.0, 5.0)):
        assert p.edge_u(ns(second)) == pytest.approx((700 - 120) * beyond_s / math.sqrt(3), rel=1e-4)
    unlimited = curve(t, np.where(t == 3, 600.0, 400.0), power_spec(0.0, 0.0))
    assert unlimited.edge_u(ns(11.0)) == pytest.approx((660 - 120) * 2.0 / math.sqrt(3), rel=1e-4)


def test_an_edge_before_the_last_reading_reaches_up_to_the_power_near_it():
    """The reading after the edge is a mean over times before it, but the meter did not stop."""
    t = np.arange(0, 10, 1.0)
    p = curve(t, np.full(10, 400.0), power_spec(1.0, 1.0, limits=(50, 700)))
    blur_s = math.hypot(1 / math.sqrt(12), WINDOW_EDGE)
    assert p.edge_u(ns(8.9)) == pytest.approx((400 - 120) * math.hypot(blur_s, 0.9 / math.sqrt(3)), rel=1e-4)
    moved = p.shift_back(0.5, 0.1)
    assert moved.edge_u(ns(8.9)) == pytest.approx((400 - 120) * math.hypot(blur_s, 1.4 / math.sqrt(3)), rel=1e-4)
    assert p.edge_u(ns(9.1)) == pytest.approx((700 - 120) * math.hypot(blur_s, 1.1 / math.sqrt(3)), rel=1e-4)


@pytest.mark.parametrize("lost", ["end", "start"])
@pytest.mark.parametrize(("limits", "low", "high"), [(None, 30.0, 105.0), ((50.0, 700.0), 50.0, 600.0)])
def test_a_meter_that_stops_or_begins_late_knows_little_of_the_rest(lost, limits, low, high):
    t = np.arange(0.0, 2.0, 0.1) + (10.0 if lost == "start" else 0.0)
    found = curve(t, np.full(t.size, 100.0), power_spec(0.1, 0.1, limits=limits)).energy(ns(0), ns(12))
    assert found.value == pytest.approx(1200.0, rel=0.01)
    for watts in (low, high):  # of the ten seconds that nobody measured
        assert abs(200 + 10 * watts - found.value) <= 2 * found.u


def test_an_edge_in_a_gap_may_lie_before_or_after_the_change():
    t = np.concatenate((np.arange(0, 5, 0.1), np.arange(9, 14, 0.1)))
    p = curve(t, np.where(t < 7, 500.0, 100.0), power_spec(0.1, 0.1, limits=(50, 700)))
    found = p.energy(ns(1), ns(7))
    turns = np.linspace(5.0, 9.0, 101)
    exact = 500 * (np.minimum(turns, 7) - 1) + 100 * np.maximum(7 - turns, 0)
    assert np.mean(np.abs(found.value - exact) <= found.expanded) > 0.9


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


@every_row(
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


def test_steps_of_the_interval_exclude_it_steps_of_another_do_not():
    t = np.arange(0, 40, 0.1)
    p = curve(t, np.full(t.size, 400.0), power_spec(0.1, 0.025, limits=(50, 700)))
    steps = stamps(np.arange(20, 39, 0.3137))
    inside, other = (p.energy(ns(a), ns(b), steps_ns=steps).budget()["unseen"] for a, b in ((20, 39), (1, 20)))
    assert inside < 0.05 * other


def test_steps_in_phase_with_the_sensor_put_the_bound_into_the_interval():
    t = np.arange(0, 40, 0.1)
    p = curve(t, np.full(t.size, 400.0), power_spec(0.1, 0.025, limits=(50, 700)))
    bound = p.energy(ns(1), ns(39)).budget()["unseen"]
    evident = p.energy(ns(1), ns(39), steps_ns=stamps(np.arange(1, 39, 0.2)))
    assert evident.budget()["in-step"] == pytest.approx(bound)
    assert not evident.bounds


def test_the_unseen_bound_holds_for_the_worst_load_in_step():
    """Seen at 400 W in a quarter of the time, at the limit in the rest: the truth is inside."""
    for hidden_w in (50.0, 700.0):
        true = 10 * (0.25 * 400 + 0.75 * hidden_w)
        assert abs(true - 4000) <= 2 * bound_unseen(4000.0, 10.0, 0.75, PowerBounds(50.0, 700.0))
    assert bound_unseen(4000.0, 0.0, 0.75, PowerBounds(50.0, 700.0)) == 0.0
    assert bound_unseen(4000.0, 10.0, 0.0, PowerBounds(50.0, 700.0)) == 0.0


# Bounds.


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
