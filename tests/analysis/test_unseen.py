"""Slow beats, and loads that may be in step with a sensor that sees only part of the time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.virtual import ns, readings, stamps
from tests.rows import every_row

from joulelab.analysis import unseen
from joulelab.analysis.unseen import find_beat, find_locked_period, find_unseen_share, is_in_step, select_steps

# Beats.

T = np.arange(0, 60, 0.1)


def beat(watts, t=T, seen=0.25):
    return find_beat(readings(t, watts), 0.1, seen)


def swing(period, t=T):
    return 300 + 200 * np.sin(2 * np.pi * t / period)


@pytest.mark.parametrize("period", [1.3, 4.0, 11.0])
def test_power_that_swings_slowly_is_a_beat(period):
    since, until, period_s, deviation_w = beat(swing(period))
    assert period_s == pytest.approx(period, abs=0.11)
    assert deviation_w == pytest.approx(200 / np.sqrt(2), rel=0.1)
    assert since < ns(period)
    assert until > ns(60 - period)


def test_the_more_a_sensor_sees_the_less_a_beat_counts():
    whole, most = (beat(swing(4.0), seen=seen)[3] for seen in (0.5, 0.9))
    assert most == pytest.approx(0.2 * whole)


@every_row(
    "watts",
    [
        np.where(T % 2.7 < 1.35, 500.0, 100.0),  # switches within a reading
        np.where(T % 20 < 10, 500.0, 100.0) + 10 * np.sin(T),
        np.full(T.size, 400.0),
        100 + 5 * T,  # crosses its middle once
        swing(0.35),  # so fast that readings scatter
        np.where(T < 5, 100 + T, np.where(T < 10, 490 + T, 290.0 + 20 * (np.arange(T.size) % 2))),
        swing(45.0),  # less than two beats
        np.random.default_rng(1).choice([100.0, 500.0], T.size),
    ],
)
def test_loads_that_switch_drift_or_scatter_are_no_beat(watts):
    assert beat(watts) is None


def test_few_new_values_show_no_beat():
    assert beat([], []) is None
    assert beat(swing(1.3)[:15], T[:15]) is None
    assert beat(np.repeat(swing(1.3)[:15], 40)) is None, "values that are shown again count once"


def test_a_beat_begins_and_ends_where_the_load_switched():
    watts = np.where((T > 20) & (T < 44.2), 350 + 150 * np.cos(2 * np.pi * (T - 20) / 4.0), 200.0)
    since, until, _, _ = beat(watts + np.random.default_rng(2).normal(0, 0.1, T.size))
    assert since == pytest.approx(ns(20), abs=0.15e9)
    assert until == pytest.approx(ns(44.2), abs=0.15e9)


# Readings that keep time with the load.


def locked(watts, t=T):
    return find_locked_period(readings(t, watts), 0.1)


def test_readings_that_repeat_exactly_keep_time_with_the_load():
    seven = np.array([0, 0, 1, 1, 0, 1, 1])[np.arange(T.size) % 7]
    assert locked(100 + 500.0 * seven) == pytest.approx(0.7)
    noisy = 100 + 500.0 * seven + np.random.default_rng(3).normal(0, 20, T.size)
    assert locked(noisy) == pytest.approx(0.7)


@every_row(
    "watts",
    [
        np.where(T % 0.3877 < 0.19, 500.0, 100.0),  # wanders through the step
        np.random.default_rng(1).choice([100.0, 500.0], T.size),
        np.full(T.size, 400.0),
        400 + 2.0 * (np.arange(T.size) % 2),  # flat
        np.where(T < 30, np.where(np.arange(T.size) % 7 < 3, 500.0, 100.0), 300 + 200 * np.sin(T)),  # in a part only
    ],
)
def test_other_readings_do_not(watts):
    assert locked(watts) is None


def test_few_readings_do_not_show_it():
    assert locked(100 + 500.0 * (np.arange(31) % 2), T[:31]) is None


# Steps.

GRID = 0.1


def steps(period_s, count=48, jitter=0.0, start=3.0, seed=0):
    rng = np.random.default_rng(seed)
    return stamps(start + np.cumsum(period_s * (1 + jitter * rng.normal(size=count))))


def test_a_meter_that_sees_all_has_nothing_unseen():
    assert find_unseen_share(1.0, GRID) == 0.0
    assert find_unseen_share(1.5, GRID, steps(0.1)) == 0.0


def test_without_steps_nothing_is_excluded():
    assert find_unseen_share(0.25, GRID) == 0.75
    assert find_unseen_share(0.25, GRID, steps(0.137, count=11)) == 0.75
    assert find_unseen_share(0.25, 0.0, steps(0.137, count=50)) == 0.75, "nobody says when it looks"
    assert find_unseen_share(0.25, GRID, stamps([])) == 0.75


@pytest.mark.parametrize("period", [0.1, 0.2, 0.5, 0.05, 1.0, 3.0])
@pytest.mark.parametrize("off", [0.0, 0.003, -0.003, 0.012])
def test_steps_in_phase_exclude_nothing_even_if_the_sensors_period_is_off(period, off):
    """The sensor's true period is off what is said of it, by 1.2 % on a recorded A100, and the load keeps in step."""
    hidden = 0.5 if period == 0.05 else 0.75  # of a cycle half as long as the grid two windows see a quarter each
    assert find_unseen_share(0.25, GRID, steps(period * (1 + off))) == pytest.approx(hidden, abs=0.03)


@pytest.mark.parametrize("period", [0.137, 0.3137, 0.0618, 0.35 * 1.017])
def test_steps_out_of_phase_exclude_it(period):
    assert find_unseen_share(0.25, GRID, steps(period)) < 0.05


@every_row("period", [0.1, 0.2, 0.05, 0.15, 1.0])
def test_steps_in_phase_are_evidence(period):
    assert is_in_step(0.25, GRID, steps(period))


@pytest.mark.parametrize("period", [0.137, 0.3137, 0.0618])
def test_steps_out_of_phase_too_few_or_none_are_no_evidence(period):
    assert not is_in_step(0.25, GRID, steps(period))
    assert not is_in_step(0.25, GRID, steps(period, count=12, jitter=0.05))
    assert not is_in_step(0.25, GRID, steps(0.1, count=11))
    assert not is_in_step(0.25, GRID, None)
    assert not is_in_step(0.25, 0.0, steps(0.1))
    assert not is_in_step(1.0, GRID, steps(0.1))


def test_steps_that_jitter_by_more_than_the_window_exclude_it():
    assert find_unseen_share(0.25, GRID, steps(0.3, jitter=0.2, count=240)) < 0.1
    assert find_unseen_share(0.25, GRID, steps(0.3, jitter=0.001)) > 0.5


def test_a_load_that_is_in_step_for_half_of_the_time_is_half_excluded():
    both = np.concatenate((steps(0.1, 96), steps(0.137, 96, start=20.0)))
    assert find_unseen_share(0.25, GRID, both) == pytest.approx(0.375, abs=0.06)


def test_the_worst_of_several_processes_counts():
    """Four processes, each in step with its own GPU's sensor, at phases that together look evenly spread."""
    processes = [steps(0.1, start=3.0 + phase) for phase in (0.0, 0.025, 0.05, 0.075)]
    together = np.sort(np.concatenate(processes))
    assert find_unseen_share(0.25, GRID, together) < 0.3, "mixed they would exclude what each of them proves"
    assert find_unseen_share(0.25, GRID, np.concatenate(processes)) == pytest.approx(0.75, abs=0.05)
    one_free = np.concatenate((steps(0.137), steps(0.1)))
    assert find_unseen_share(0.25, GRID, one_free) == pytest.approx(0.75, abs=0.05)
    few = np.concatenate((steps(0.137), steps(0.1, count=3)))
    assert find_unseen_share(0.25, GRID, few) == 0.0, "a process that said too little says nothing"


def test_steps_on_both_sides_of_a_pause_prove_nothing():
    """Each half is in step; only across the pause their phases differ."""
    halves = np.concatenate((steps(0.1, 6), steps(0.1, 6, start=33.05)))
    assert find_unseen_share(0.25, GRID, halves) == 0.75
    assert find_unseen_share(0.25, GRID, np.concatenate((steps(0.137, 96, start=60.0), halves + 10**11))) == 0.0


@pytest.mark.parametrize(("seen", "period"), [(0.5, 1 / 3), (0.25, 1 / 5)])
def test_parts_that_are_seen_more_often_than_others_are_not_excluded(seen, period):
    """Every part of the cycle was seen, but some twice as often: the mean of what was seen is not the mean."""
    share = find_unseen_share(seen, GRID, steps(period * GRID, 96))
    phases = np.arange(0, 1, 1e-4)
    cycle = (phases[:, np.newaxis] - np.arange(210) * period) % 1.0 < seen
    uneven = np.abs(cycle.mean(axis=1) / seen - 1).mean() / 2
    assert uneven > 0.05
    assert 0.15 * uneven < share <= 1.1 * uneven


@settings(deadline=None)
@given(st.floats(0.02, 2.0), st.floats(0.05, 0.95), st.floats(0.0, 0.3), st.integers(0, 60))
def test_the_share_lies_between_nothing_and_all_that_is_hidden(period, seen, jitter, count):
    share = find_unseen_share(seen, GRID, np.sort(steps(period, count, jitter)))
    assert 0.0 <= share <= 1 - seen + 1e-12


def test_steps_of_other_phases_say_nothing_about_this_one():
    all_of_them = stamps([1.0, 2.0, 3.0, 4.0])
    assert list(select_steps(all_of_them, int(stamps(2.0)), int(stamps(3.0)))) == list(stamps([2.0, 3.0]))
    assert select_steps(None, 0, 1) is None


def test_the_same_steps_are_looked_at_once_and_little_is_kept(monkeypatch):
    looked, real = [], unseen._find_share_in_step
    monkeypatch.setattr(unseen, "_find_share_in_step", lambda *given: looked.append(1) or real(*given))
    monkeypatch.setattr(unseen, "_SHARES", {})
    monkeypatch.setattr(unseen, "CACHED_SHARES", 3)
    asked = [steps(period) for period in (0.3, 0.137, 0.211, 0.3001)]
    shares = [[find_unseen_share(0.25, GRID, each.copy()) for _ in range(8)] for each in asked]
    assert [len(set(s)) for s in shares] == [1] * 4
    assert len(looked) == 4
    assert len(unseen._SHARES) == 1, "full, it began anew"
    assert find_unseen_share(0.25, GRID, asked[0]) == shares[0][0] != find_unseen_share(0.5, GRID, asked[0])
    assert max(len(digest) for *_, digest in unseen._SHARES) == 16
