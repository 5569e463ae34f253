"""Meters that lag, and slow meters that are guided by fast ones beside them."""

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
from tests.analysis.virtual import ns

from joulelab.analysis.channels import load_channels
from joulelab.analysis.slow_meters import Guide, GuidedCurve, accumulate_energy
from joulelab.core.spec import Accuracy, Spec, Stream

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
    told = [(c.status, c.scope, c.next) for c in found.checks if c.code == "does-not-follow"]
    assert told == [("failed", "node.ac", "joulelab doctor pdu")]


@pytest.mark.parametrize("every_s", [0.1, 1.0])
@pytest.mark.parametrize("wave_s", [8.0, 10.0, 25.0])
def test_a_dead_meter_is_found_under_a_smooth_load(folder, every_s, wave_s):
    rng, fast, slow = np.random.default_rng(4), np.arange(18.0, 82.0, 0.1), np.arange(18.4, 82.0, every_s)
    inside = 450.0 + 250.0 * np.sin(2 * np.pi * fast / wave_s) + rng.normal(0, 5.0, fast.size)
    folder.add("nvml", gpu(0), fast, np.cumsum(inside) * 0.1, inside)
    dead = slow_power("node.ac", period=every_s, update=every_s, window=every_s)
    folder.add("pdu", dead, slow, 900.0 + rng.normal(0, 1.0, slow.size))
    failed = [(c.code, c.next) for c in result(folder).checks if c.status == "failed"]
    assert failed == [("does-not-follow", "joulelab doctor pdu")]


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
