"""Lags of meters with their uncertainty, and slow meters guided by fast ones beside them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.folders import METER, Folder, gpu
from tests.analysis.loads import (
    END,
    FAST,
    FINE,
    SLOW,
    START,
    join_of,
    joules,
    mean,
    result,
    scope,
    slow_power,
    true_j,
)
from tests.analysis.virtual import counter_spec, ns, power_spec, readings
from tests.rows import every_row

from joulelab.analysis.channels import EnergyChannel, load_channels
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.slow_meters import (
    CumulativeEnergy,
    Guide,
    GuidedCurve,
    WindowMeans,
    accumulate_energy,
    estimate_lag,
    find_window_means,
    has_moved,
    sum_channels,
)
from joulelab.core.spec import Accuracy, Spec, Stream

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


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("seconds", [40, 120])
def test_scatter_is_no_movement(seed, seconds):
    assert not is_judged(400.0 + np.random.default_rng(seed).normal(0, 120.0, 2 * seconds), 0.5)


@every_row("at", [[60], [30, 60, 90], [16], [100], [5]])
def test_wrong_readings_are_no_movement(at):
    watts = np.full(120, 400.0)
    watts[at] = 2500.0
    assert not is_judged(watts, 1.0)


@pytest.mark.parametrize("wave_s", [8.0, 25.0, 120.0])
@pytest.mark.parametrize(("every_s", "slow_s"), [(0.1, 1.0), (0.1, 0.1), (1.0, 1.0)])
@pytest.mark.parametrize("share", [0.04, 0.1, 0.5])
def test_a_load_that_moves_by_a_twentieth_is_enough_to_judge(wave_s, every_s, slow_s, share):
    t = np.arange(0, max(64.0, 2 * wave_s), every_s)
    watts = 450.0 * (1 + share * np.sin(2 * np.pi * t / wave_s)) + np.random.default_rng(1).normal(0, 2.0, t.size)
    assert is_judged(watts, every_s, slow_s=slow_s) == (share > 0.04)  # a standard deviation of 2.8 %


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


def test_a_record_too_short_for_any_lag_shows_no_movement():
    assert not is_judged(np.linspace(100.0, 400.0, 40), 0.1, slow_s=1.0)
    assert not is_judged(np.linspace(100.0, 400.0, 8), 5.0, slow_s=0.5)  # many readings, few means of the fast meters


# Lags.


@pytest.mark.parametrize("kind", ["power", "counter", "both"])
def test_a_meter_that_lags_is_moved_and_told(node, kind):
    power_spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=METER)
    energy_spec = Spec("energy_j", "energy", "J", "counter", 1.0, accuracy=METER)
    late = SLOW - 2.5
    columns = {"power_w": 300 + 2 * mean(late, 1.0), "energy_j": 300 * (late + 10) + 2 * joules(late)}
    specs = {"power": (power_spec,), "counter": (energy_spec,), "both": (power_spec, energy_spec)}[kind]
    node.add("bmc", Stream("s", "power", "node.dc", 1.0, specs), SLOW, *(columns[s.name] for s in specs))
    found = result(node)
    assert len(found.lags) == 1
    lag = found.lags[0]
    assert (lag.meter, lag.scope, lag.against, lag.applied) == ("bmc", "node.dc", "gpu", True)
    assert lag.lag_s == pytest.approx(2.0, abs=0.15)  # half of its period was expected
    whole = scope(found, "node.dc")
    for reading in (whole.reading, *whole.others):
        assert abs(reading.energy.value - true_j()) <= reading.energy.expanded
        assert reading.energy.budget()["lag"] < 0.01 * reading.energy.value
    assert found.to_json()["lags"][0]["applied"] is True


def test_a_lag_that_is_not_known_is_told_and_not_applied(folder):
    folder.add("nvml", gpu(0), FAST, 300 * FAST, np.full(FAST.size, 300.0))
    folder.add("bmc", slow_power("node.ac"), SLOW, np.full(SLOW.size, 900.0))
    lag = result(folder).lags[0]
    assert not lag.applied
    assert lag.why == "constant-power"
    assert lag.u_s == math.inf


def test_meters_of_one_scope_are_aligned_with_the_fastest_of_them(folder):
    folder.add("nvml", gpu(0), FAST, joules(FAST), mean(FAST - 0.05, 0.1))
    folder.add("smi", slow_power("gpu:0"), SLOW, 0.96 * mean(SLOW - 1.5, 1.0))
    found = result(folder)
    assert [(g.meter, g.against, g.applied) for g in found.lags] == [("smi", "nvml", True)]
    assert found.lags[0].lag_s == pytest.approx(1.0, abs=0.1)
    assert scope(found, "gpu:0").reading.meter == "nvml"  # slower meters must be three times as good
    other = next(c for c in found.comparisons if c.other.meter == "smi")
    assert other.verdict == "agree"
    assert other.difference.value / other.best.energy.value == pytest.approx(-0.04, abs=0.005)


# Guides.


def test_a_meter_of_one_reading_a_quarter_minute_gets_its_interval_from_the_fast_ones_beside_it(folder):
    seldom = np.arange(3.0, 100, 4.0)
    stream = slow_power("node.ac", period=4.0)
    alone = Folder(folder.path.parent).add("dcim", stream, seldom, 300 + 2 * mean(seldom - 0.5, 1.0))
    folder.add("nvml", gpu(0), FAST, joules(FAST), mean(FAST - 0.05, 0.1))
    folder.add("dcim", stream, seldom, 300 + 2 * mean(seldom - 0.5, 1.0))
    guided, lone = (scope(result(f), "node.ac").energy for f in (folder, alone))
    for found in (guided, lone):
        assert abs(found.value - true_j()) <= found.expanded
    assert guided.expanded < 0.4 * lone.expanded
    assert "guide" in guided.budget()


def test_what_the_fast_ones_do_not_explain_stands_alone(node):
    other = 900 + 300 * np.sin(SLOW / 3)
    node.add("pdu", slow_power("node.ac"), SLOW, other + 0.2 * mean(SLOW - 0.5, 1.0))
    channels = next(s for s in join_of(node.close(START, END)) if s.scope == "node.ac").channels
    assert not any(isinstance(c.curve, GuidedCurve) for c in channels)


def test_what_they_explain_in_part_is_not_guided_by_them(node):
    scatter = np.random.default_rng(8).normal(0, 200, SLOW.size)
    node.add("pdu", slow_power("node.ac"), SLOW, 1200 + 2 * mean(SLOW - 0.5, 1.0) + scatter)
    found = result(node)
    assert found.lags[0].why == "no-lag"
    assert found.lags[0].correlation < 0.89
    assert "guide" not in scope(found, "node.ac").energy.budget()


def test_a_guide_with_a_hole_is_none(folder):
    kept = (FAST < 40) | (FAST > 60)
    folder.add("nvml", gpu(0), FAST[kept], joules(FAST[kept]), mean(FAST[kept] - 0.05, 0.1))
    folder.add("pdu", slow_power("node.ac"), SLOW, 300 + 2 * mean(SLOW - 0.5, 1.0))
    assert "guide" not in scope(result(folder), "node.ac").energy.budget()


def test_a_fit_needs_readings_beside_the_fast_ones(node):
    run = node.add("pdu", slow_power("node.ac"), SLOW[:3], SLOW[:3]).close(START, END).open()
    found = {s.scope: s for s in load_channels(run)}
    guide = Guide(accumulate_energy(found["gpu:0"].best, 0), found["gpu:0"].best.energy)
    with pytest.raises(ValueError, match="only"):
        GuidedCurve(found["node.ac"].best.curve, guide, ns(START), ns(END))


def in_step(folder, *, period, poll, window, beside=True, phase=0.0):
    """Record a load that repeats in step with the poll of a node's meter."""

    def load(t):
        on = (t >= START) & (t < END) & ((t - START) % period < 0.4 * period)
        return np.where(on, 600.0, 100.0)

    used = np.concatenate(([0.0], np.cumsum(load(FINE[:-1]) * 0.001)))
    at = np.arange(phase, 100, poll)
    shown = np.array(
        [load(at)] if window == 0 else [(np.interp(at, FINE, used) - np.interp(at - window, FINE, used)) / window]
    )
    if beside:
        folder.add("nvml", gpu(0), FAST, np.interp(FAST, FINE, used), load(FAST - 0.05))
    stream = slow_power(
        "node.ac", update=window or 0.0, window=window, period=poll, given=Accuracy("datasheet", 0.001, shared="p")
    )
    folder.add("pdu", stream, at, 300 + 1.2 * shown[0])
    true = 300 * (END - START) + 1.2 * (np.interp(END, FINE, used) - np.interp(START, FINE, used))
    return result(folder), true


@pytest.mark.parametrize(("period", "poll", "window"), [(1.0, 1.0, 0.0), (1.0, 1.0, 0.5), (5.0, 5.0, 1.0)])
@pytest.mark.parametrize("phase", [0.1, 0.3, 0.5, 0.8])
def test_a_load_in_step_with_the_poll_is_no_guide_and_its_bound_stays(folder, period, poll, window, phase):
    found, true = in_step(folder, period=period, poll=poll, window=window, phase=phase)
    energy = scope(found, "node.ac").energy
    assert "guide" not in energy.budget()
    assert energy.budget().get("alias", 0.0) > 0
    assert abs(energy.value - true) <= energy.expanded


@pytest.mark.parametrize("stuck", [True, False])
def test_a_meter_that_does_not_follow_the_load_is_not_believed(node, stuck):
    other = np.full(SLOW.size, 1000.0) if stuck else 1000 + 300 * np.sin(SLOW * 2.1)
    node.add("pdu", slow_power("node.ac", given=Accuracy("datasheet", 0.001, shared="pdu")), SLOW, other)
    node.add("bmc", slow_power("node.ac"), SLOW, 300 + 2 * mean(SLOW - 0.5, 1.0))
    found = result(node)
    whole = scope(found, "node.ac")
    assert whole.reading.meter == "bmc"
    assert whole.others[0].energy.expanded is None
    told = [(c.status, c.scope, c.texts["doctor"]) for c in found.checks if c.code == "does-not-follow"]
    assert told == [("failed", "node.ac", "pdu")]


@pytest.mark.parametrize("every_s", [0.1, 1.0])
@pytest.mark.parametrize("wave_s", [8.0, 10.0, 25.0])
def test_a_dead_meter_is_found_under_a_smooth_load(folder, every_s, wave_s):
    rng, fast, slow = np.random.default_rng(4), np.arange(18.0, 82.0, 0.1), np.arange(18.4, 82.0, every_s)
    inside = 450.0 + 250.0 * np.sin(2 * np.pi * fast / wave_s) + rng.normal(0, 5.0, fast.size)
    folder.add("nvml", gpu(0), fast, np.cumsum(inside) * 0.1, inside)
    dead = slow_power("node.ac", period=every_s, update=every_s, window=every_s)
    folder.add("pdu", dead, slow, 900.0 + rng.normal(0, 1.0, slow.size))
    failed = [(c.code, c.texts["doctor"]) for c in result(folder).checks if c.status == "failed"]
    assert failed == [("does-not-follow", "pdu")]


def flat(kind):
    """Return times, a GPU's power and what a meter around it shows, for a load that did not move for that meter."""
    rng, fast, slow = np.random.default_rng(3), np.arange(18.0, 82.0, 0.1), np.arange(18.4, 82.0, 1.0)
    inside = np.full(fast.size, 600.0)
    shown = 1000.0 + rng.normal(0, 0.5, slow.size)
    if kind == "edges":  # the only steps are the begin and the end of the workload, at the edges of the record
        inside = np.where((fast >= START) & (fast < END), 600.0, 60.0)
    elif kind == "noise":  # a sensor that sees a part of the time, over a load that changes within milliseconds
        slow, shown = fast, 1000.0 + rng.normal(0, 0.5, fast.size)
        inside = 600.0 + rng.normal(0, 150.0, fast.size)
    elif kind == "beat":  # such a sensor over a load whose steps are nearly in time with it
        slow, shown = fast, 1000.0 + rng.normal(0, 0.5, fast.size)
        inside = 600.0 + 250.0 * np.sin(2 * np.pi * fast / 0.9)
    elif kind == "steps":  # the meter around shows 100 W at a time, the GPU moves by 30 W
        inside, shown = 40.0 + 15.0 * np.sign(np.sin(fast / 3)), np.full(slow.size, 300.0)
    elif kind == "others":  # what is not measured inside moves by far more
        inside, shown = 40.0 + 15.0 * np.sign(np.sin(fast / 3)), 1000.0 + rng.normal(0, 60.0, slow.size)
    return fast, inside, slow, shown


@pytest.mark.parametrize("kind", ["edges", "noise", "beat", "steps", "others"])
def test_a_meter_is_not_judged_by_a_load_that_did_not_move(folder, kind):
    """The best meter of a node is believed; before, it was discarded because noise does not follow noise."""
    fast, inside, slow, shown = flat(kind)
    folder.add("nvml", gpu(0), fast, np.cumsum(inside) * 0.1, inside)
    given = Accuracy("datasheet", 0.001, quantum=100.0 if kind == "steps" else 0.0, shared="analyzer")
    stream = slow_power("node.ac", period=slow[1] - slow[0], update=slow[1] - slow[0], window=slow[1] - slow[0])
    best = replace(stream, channels=(replace(stream.channels[0], accuracy=given),))
    folder.add("analyzer", best, slow, shown)
    found = result(folder)
    assert found.lags[0].correlation < 0.5
    assert [c.code for c in found.checks if c.status == "failed"] == []
    assert scope(found, "node.ac").energy.expanded is not None


def test_a_stream_of_which_no_channel_follows_is_told_once(node):
    specs = (
        Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=METER),
        Spec("energy_j", "energy", "J", "counter", 1.0, accuracy=METER),
    )
    stuck = np.full(SLOW.size, 1000.0)
    node.add("pdu", Stream("s", "power", "node.ac", 1.0, specs), SLOW, stuck, stuck)
    found = result(node)
    assert [(g.meter, g.doubted) for g in found.lags] == [("pdu", True)]


def test_few_readings_and_steady_loads_are_represented_or_not(folder):
    steady = np.full(FAST.size, 300.0)
    folder.add("nvml", gpu(0), FAST, 300 * FAST, steady)
    folder.add("pdu", slow_power("node.ac"), SLOW, 900 + 0 * SLOW)
    found = {s.scope: s for s in load_channels(folder.close(START, END).open())}
    guide = Guide(accumulate_energy(found["gpu:0"].best, 0), found["gpu:0"].best.energy)
    curve = found["node.ac"].best.curve
    assert guide.is_represented(curve, ns(START), ns(END))
    assert not guide.is_represented(curve, ns(START), ns(START + 3))
