"""Lags between meters: found with their uncertainty, and refused where they cannot be known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.analysis.virtual import counter_spec, power_spec, readings

from joulelab.analysis.channels import EnergyChannel
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.slow_meters import (
    CumulativeEnergy,
    WindowMeans,
    accumulate_energy,
    estimate_lag,
    find_window_means,
    has_moved,
    sum_channels,
)
from joulelab.core.spec import Stream

FAST_S = 0.1
T = np.arange(0, 120, FAST_S)


def training(seed=1):
    """Return powers that change every few seconds, at times that do not repeat."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.uniform(0.5, 6.0, 100))
    return rng.uniform(100, 700, 101)[np.searchsorted(ends, T)]


def reference(watts) -> CumulativeEnergy:
    return CumulativeEnergy(0, T, np.concatenate(([0.0], np.cumsum(watts[:-1] * FAST_S))), FAST_S)


def slow(fast: CumulativeEnergy, lag: float, *, every=1.0, window=1.0, gain=2.0, rest=300.0, noise=0.0) -> WindowMeans:
    middle = np.arange(1, 118, every)
    scatter = np.random.default_rng(2).normal(0, noise, middle.size)
    return WindowMeans(
        middle, np.full(middle.size, window), rest + gain * fast.find_means(middle - lag, np.full(1, window)) + scatter
    )


@pytest.mark.parametrize("lag", [-3.0, -0.4, 0.0, 0.25, 1.7, 6.0])
@pytest.mark.parametrize("noise", [0.0, 30.0])
def test_it_is_found_within_its_uncertainty(lag, noise):
    fast = reference(training())
    found = estimate_lag(slow(fast, lag, noise=noise), fast)
    assert found.why == ""
    assert found.correlation > 0.97
    assert abs(found.lag_s - lag) < 2 * found.u_s
    assert found.u_s < 0.2


def test_what_repeats_has_many_lags_and_is_refused():
    fast = reference(np.where(T % 4.0 < 2.0, 600.0, 100.0))
    found = estimate_lag(slow(fast, 0.5), fast)
    assert found.why == "load-repeats"
    assert abs(found.numbers["rival_s"] - found.lag_s) == pytest.approx(4.0, abs=0.5)


def test_another_load_is_refused():
    fast = reference(training(1))
    found = estimate_lag(slow(reference(training(5)), 0.0), fast)
    assert (found.why, found.numbers) == ("other-load", {"correlation": found.correlation})


def test_steady_power_few_readings_and_slow_drifts_tell_nothing():
    fast = reference(training())
    middle = np.arange(10, 110, 1.0)
    assert estimate_lag(WindowMeans(middle, np.ones(100), np.full(100, 300.0)), fast).why == "constant-power"
    few = estimate_lag(slow(fast, 0.0, every=20.0), fast)
    assert (few.why, few.numbers) == ("few-readings", {"readings": 5})
    assert math.isnan(few.correlation)  # which is no reason to doubt it
    ramp = reference(np.linspace(100, 700, T.size))
    assert estimate_lag(slow(ramp, 1.0, noise=5.0), ramp).why == "open-end"
    hill = reference(400 + 300 * np.sin(T / 40))
    wide = estimate_lag(slow(hill, 1.0, noise=60.0), hill)
    assert (wide.why, wide.numbers) == ("wide", {"half_width_s": 2 * wide.u_s})


def test_a_lag_beyond_reach_is_refused_and_reach_can_be_widened():
    fast = reference(training())
    assert estimate_lag(slow(fast, 16.0), fast, reach_s=14.0).why in ("open-end", "other-load")
    short = CumulativeEnergy(0, T[:300], reference(training()).energy[:300], FAST_S)
    late = slow(reference(training()), 4.5)
    late = WindowMeans(late.middle[:28], late.width[:28], late.value[:28])
    assert estimate_lag(late, short, 5.0).lag_s == pytest.approx(4.5, abs=0.2)


def channel(curve, step_s=FAST_S) -> EnergyChannel:
    stream = Stream("s", "power", "node.ac", step_s, (curve.spec,))
    return EnergyChannel("h", "m", stream, curve.spec, curve)


def test_counters_and_powers_become_the_same_energy_over_time():
    watts = training()
    joules = np.concatenate(([0.0], np.cumsum(watts[:-1] * FAST_S)))
    counted = accumulate_energy(channel(CounterCurve(readings(T, joules), counter_spec(0.0), name="c")), 0)
    powered = accumulate_energy(
        channel(PowerCurve(readings(T, watts), power_spec(0.0, 0.0), name="p", step_s=FAST_S)), 0
    )
    spans = np.diff(counted.at(counted.t[::100])), np.diff(powered.at(counted.t[::100]))
    assert spans[0] == pytest.approx(spans[1], rel=0.02, abs=40)
    both = sum_channels([channel(CounterCurve(readings(T, joules), counter_spec(0.0), name="c"))] * 2, 0)
    assert both.energy[-1] - both.energy[0] == pytest.approx(2 * (joules[-1] - joules[0]), rel=1e-6)


def test_a_counter_tells_mean_powers_between_its_steps():
    t = np.arange(0, 20, 0.5)
    found = find_window_means(channel(CounterCurve(readings(t, 300 * np.floor(t)), counter_spec(1.0), name="c")), 0)
    assert found.value == pytest.approx(300.0)
    assert found.width == pytest.approx(1.0)


def is_judged(watts, every_s: float, *, slow_s: float = 1.0, scatter_w: float = 5.0) -> bool:
    """Return whether a meter around that shows 1250 W and scatter is judged by these readings of fast meters."""
    t = every_s * np.arange(len(watts))
    joules = np.concatenate(([0.0], np.cumsum((watts[1:] + watts[:-1]) / 2 * every_s)))
    middle = np.arange(0.0, t[-1], slow_s)
    shown = 1250.0 + np.random.default_rng(9).normal(0, scatter_w, middle.size)
    return has_moved(
        WindowMeans(middle, np.full(middle.size, slow_s), shown), CumulativeEnergy(0, t, joules, every_s), 2.0, 1.0
    )


@pytest.mark.parametrize("period_s", [0.26, 0.394, 0.466, 0.537, 0.582, 0.649, 0.66, 0.828])
def test_fast_steps_in_a_log_of_single_readings_are_no_movement(period_s):
    t = np.arange(0, 300, 1.0) + np.random.default_rng(3).normal(0, 0.01, 300).cumsum()
    assert not is_judged(np.where(t / period_s % 1 < 0.6, 650.0, 150.0), 1.0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("seconds", [40, 120])
def test_scatter_is_no_movement(seed, seconds):
    assert not is_judged(400.0 + np.random.default_rng(seed).normal(0, 120.0, seconds), 1.0)


@pytest.mark.parametrize("at", [[60], [30, 60, 90], [16], [100], [5]])
def test_wrong_readings_are_no_movement(at):
    watts = np.full(120, 400.0)
    watts[at] = 2500.0
    assert not is_judged(watts, 1.0)


@pytest.mark.parametrize("wave_s", [7.0, 8.0, 25.0, 120.0])
@pytest.mark.parametrize(("every_s", "slow_s"), [(0.1, 1.0), (0.1, 0.1), (1.0, 1.0)])
@pytest.mark.parametrize("share", [0.04, 0.1, 0.5])
def test_a_load_that_moves_by_a_twentieth_is_enough_to_judge(wave_s, every_s, slow_s, share):
    t = np.arange(0, max(64.0, 2 * wave_s), every_s)
    watts = 450.0 * (1 + share * np.sin(2 * np.pi * t / wave_s)) + np.random.default_rng(1).normal(0, 2.0, t.size)
    is_resolved = every_s < 1.0 or wave_s >= 8.0
    assert is_judged(watts, every_s, slow_s=slow_s) == (is_resolved and share > 0.04)  # a standard deviation of 2.8 %


@pytest.mark.parametrize("every_s", [0.1, 1.0])
@pytest.mark.parametrize("rise_w", [60.0, 300.0])
def test_one_long_step_is_enough_to_judge(every_s, rise_w):
    t = np.arange(0, 64, every_s)
    assert is_judged(np.where(t < 32, 400.0, 400.0 + rise_w), every_s)


def test_a_meter_that_scatters_more_than_the_load_moves_is_not_judged():
    t = np.arange(0, 1800, 1.0)
    load = np.where(t % 60 < 30, 425.0, 375.0)
    assert not is_judged(load, 1.0, scatter_w=60.0)
    assert is_judged(load, 1.0, scatter_w=20.0)
