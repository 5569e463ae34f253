"""Counters that break: wraps, in pauses too, and resets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.virtual import counter_spec, ns, readings

from joulelab.analysis.counter import CounterCurve


def curve(seconds, values, spec=None, **more):
    return CounterCurve(readings(seconds, values), spec or counter_spec(**more), name="c")


# Wraps.


@settings(max_examples=60, deadline=None)
@given(
    modulus=st.floats(50.0, 1e5),
    watts=st.lists(st.floats(0.0, 500.0), min_size=3, max_size=60),
    start=st.floats(0.0, 1.0),
)
def test_a_counter_of_any_modulus_is_unwrapped(modulus, watts, start):
    """However often it wraps between polls that are fast enough, no joule is lost or made."""
    step = 0.05
    t = np.arange(len(watts) + 1) * step
    energy = start * modulus + np.concatenate(([0.0], np.cumsum(np.array(watts) * step)))
    c = curve(t, energy % modulus, counter_spec(1e-3, modulus=modulus, limits=(0.0, 600.0)))
    wrapped = int(energy[-1] // modulus - energy[0] // modulus)
    assert c._break_add.size == 0 or c._break_add[-1] == pytest.approx(wrapped * modulus)
    assert c.energy(ns(t[0]), ns(t[-1])).value == pytest.approx(energy[-1] - energy[0], abs=2 * 600 * 1e-3)
    assert not c.resets
    assert not c.doubtful_wraps


def wrapping(gap_s, watts=250.0, modulus=65_536.0, start=0.9, **spec):
    """Return a RAPL counter with a pause, and what it truly counted over the whole record."""
    t = np.concatenate((np.arange(0, 100, 0.1), 100 + gap_s + np.arange(0, 100, 0.1)))
    energy = start * modulus + watts * t
    c = curve(t, energy % modulus, counter_spec(1e-3, modulus=modulus, **spec))
    return c, c.energy(ns(0), ns(t[-1])), watts * t[-1]


def test_a_pause_in_which_it_cannot_have_wrapped_twice_costs_nothing():
    c, energy, true = wrapping(60.0)
    assert energy.value == pytest.approx(true, rel=1e-4)
    assert not c.doubtful_wraps
    assert "break" not in energy.budget()


@pytest.mark.parametrize("gap_s", [300.0, 500.0, 1000.0, 3000.0, 20_000.0])
@pytest.mark.parametrize("start", [0.1, 0.6, 0.9])
def test_wraps_in_a_pause_are_counted_by_the_usual_power_and_flagged(gap_s, start):
    """Also where the counter stands higher after the pause than before: that is no proof that it did not wrap."""
    c, energy, true = wrapping(gap_s, start=start)
    assert len(c.doubtful_wraps) == 1
    assert energy.value == pytest.approx(true, rel=1e-4)
    assert energy.budget()["break"] >= 65_536 / math.sqrt(3)
    (since, until) = c.doubtful_wraps[0]
    assert until - since == pytest.approx(gap_s * 1e9, rel=1e-3)


@pytest.mark.parametrize("in_the_gap_w", [30.0, 400.0])
def test_the_interval_holds_wraps_that_the_usual_power_does_not_suggest(in_the_gap_w):
    t = np.concatenate((np.arange(0, 100, 0.1), 3000 + np.arange(0, 100, 0.1)))
    watts = np.where((t[:-1] > 99.8) & (t[:-1] < 3000), in_the_gap_w, 250.0)
    energy = np.concatenate(([0.0], np.cumsum(watts * np.diff(t))))
    c = curve(t, energy % 65_536, counter_spec(1e-3, modulus=65_536.0, limits=(0.0, 420.0)))
    found = c.energy(ns(0), ns(t[-1]))
    assert len(c.doubtful_wraps) == 1
    assert abs(found.value - energy[-1]) > 65_536, "this is about wraps that were missed or made up"
    assert abs(found.value - energy[-1]) <= 2 * found.u


def test_bounds_that_allow_one_number_of_wraps_settle_it():
    t = np.concatenate((np.arange(0, 10, 0.1), 1000 + np.arange(0, 10, 0.1)))
    true = 300.0 * t
    c = curve(t, true % 65_536, counter_spec(1e-3, modulus=65_536.0, limits=(290.0, 310.0)))
    found = c.energy(ns(0), ns(t[-1]))
    assert not c.doubtful_wraps
    assert found.value == pytest.approx(true[-1], rel=1e-3)
    assert "break" not in found.budget()


def test_a_limit_lower_than_what_was_counted_does_not_unwrap_backwards():
    c = curve([0, 1, 2, 3], [10.0, 90.0, 20.0, 60.0], counter_spec(1e-3, modulus=100.0, limits=(0.0, 1.0)))
    assert c.energy(ns(0), ns(3)).value == pytest.approx(150.0, abs=0.2)


# Resets.


def test_a_fall_without_modulus_is_a_reset_flagged_and_bounded():
    t = np.arange(0, 20, 0.1)
    true = 400.0 * t
    shown = np.where(t < 10, 5e6 + true, true - 4000.0)  # falls to zero at 10 s
    c = curve(t, shown, counter_spec(1e-3, limits=(50.0, 700.0)))
    found = c.energy(ns(0), ns(19.9))
    assert [(since < ns(10) <= to) for since, to in c.resets] == [True]
    assert found.value == pytest.approx(true[-1], rel=0.01)
    # In the 0.1 s of the fall power may have been anything from 50 to 700 W.
    assert found.budget()["break"] == pytest.approx(0.1 * 350 / math.sqrt(3), rel=0.02)
    assert abs(found.value - true[-1]) <= 2 * found.u
    # A phase that does not hold the reset is not touched by it.
    assert "break" not in c.energy(ns(2), ns(8)).budget()
    assert "break" not in c.energy(ns(12), ns(18)).budget()
    assert c.energy(ns(12), ns(18)).value == pytest.approx(2400.0, rel=1e-3)


@pytest.mark.parametrize("lost_w", [60.0, 690.0])
def test_a_long_loss_with_a_reset_is_inside_the_interval(lost_w):
    t = np.concatenate((np.arange(0, 10, 0.1), np.arange(16, 30, 0.1)))
    true = np.where(t < 10, 400 * t, 4000 + 6 * lost_w + 400 * (t - 16))
    shown = np.where(t < 10, 9e6 + true, 400 * (t - 16))
    c = curve(t, shown, counter_spec(0.1, limits=(50.0, 700.0)))
    found = c.energy(ns(1), ns(29))
    exact = (true[-1] - 360.0) - 400.0
    assert len(c.resets) == 1
    assert abs(found.value - exact) <= 2 * found.u


def test_a_reset_without_any_rise_adds_nothing_but_is_flagged():
    c = curve([0.0, 1.0], [500.0, 0.0])
    assert c.resets
    assert c.energy(ns(0), ns(1)).value == pytest.approx(0.0)


def test_without_limits_a_reset_is_bounded_by_four_times_what_was_seen():
    t = np.arange(0, 20, 0.1)
    c = curve(t, np.where(t < 10, 1e6, -4000.0) + 400 * t, counter_spec(1e-3))
    assert c.energy(ns(0), ns(19.9)).budget()["break"] == pytest.approx(0.1 * 1200 / math.sqrt(3), rel=0.02)
