"""Several meters of a node together: cords, lags, guides, ranks, comparisons."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.analysis.folders import METER, Folder, counter, gpu, power
from tests.analysis.virtual import ns

from joulelab.analysis.alignment import cumulative
from joulelab.analysis.analyse import analyse
from joulelab.analysis.channels import load_channels
from joulelab.analysis.guided import Guide, GuidedCurve
from joulelab.analysis.joining import join
from joulelab.analysis.sums import SumCurve
from joulelab.core.spec import Accuracy, Spec, Stream

FAST = np.arange(0, 100, 0.1)
SLOW = np.arange(0.4, 100, 1.0)
START, END = 20.0, 80.0
RNG = np.random.default_rng(4)
ENDS = np.cumsum(RNG.uniform(1.0, 6.0, 60))
LEVELS = np.where((START - 0.01 < ENDS) & (ENDS < END), RNG.uniform(200, 700, 60), 100.0)


def watts(t):
    """Return a load that idles outside of the workload and changes every few seconds in it."""
    t = np.asarray(t, dtype=float)
    return np.where((t >= START) & (t < END), LEVELS[np.minimum(np.searchsorted(ENDS, t), 59)], 100.0)


FINE = np.arange(-10, 110, 0.001)
JOULES = np.concatenate(([0.0], np.cumsum(watts(FINE[:-1]) * 0.001)))


def joules(t):
    return np.interp(t, FINE, JOULES)


def mean(t, window):
    return (joules(t) - joules(np.asarray(t) - window)) / window


def cord(number, parts, meter="pdu1", *, sums="node.ac", kind="outlet", energy=False, given=METER) -> Stream:
    specs = [Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=given)]
    specs += [Spec("energy_j", "energy", "J", "counter", 1.0, accuracy=given)] if energy else []
    scope = f"{kind}:{meter}.{number}" if kind == "outlet" else f"{kind}:{number}"
    return Stream(scope, "power", scope, 1.0, tuple(specs), parent=sums, sums=sums, parts=parts)


def slow_power(scope, *, update=1.0, window=1.0, period=1.0, lag_s=0.0, given=METER) -> Stream:
    spec = Spec("power_w", "power", "W", "power", update, window, accuracy=given, lag_s=lag_s)
    return Stream(scope, "power", scope, period, (spec,))


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def node(folder):
    """Hold one GPU that is the whole load: a node draws twice its power and 300 W."""
    return folder.add("nvml", gpu(0), FAST, joules(FAST), mean(FAST - 0.05, 0.1))


def true_j(factor=2.0, rest=300.0):
    return factor * (joules(END) - joules(START)) + rest * (END - START)


def result(folder):
    return analyse(folder.close(START, END).open())


def scope(found, name):
    return next(s for s in found.scopes if s.scope == name)


# Cords.


def test_cords_of_several_pdus_make_the_node(node):
    for number, (meter, share) in enumerate((("pdu1", 0.5), ("pdu1", 0.3), ("pdu2", 0.2)), 1):
        node.add(meter, cord(number, 3, meter), SLOW, share * (300 + 2 * mean(SLOW - 0.5, 1.0)))
    found = result(node)
    whole = scope(found, "node.ac")
    assert whole.reading.meter == "pdu1+pdu2"
    assert abs(whole.energy.value - true_j()) <= whole.energy.expanded
    assert whole.parent == "rack"
    assert found.group("measured").scopes == ("node.ac",)
    parts = [scope(found, f"outlet:{n}").energy for n in ("pdu1.1", "pdu1.2", "pdu2.3")]
    assert whole.energy.value == pytest.approx(sum(p.value for p in parts))
    # Outlets of one PDU are off by the same factor, those of another by their own.
    assert whole.energy.budget()["gain"] == pytest.approx(sum(p.budget()["gain"] for p in parts), rel=1e-6)
    assert whole.statistics.maximum > 1000
    assert 0.99 < whole.reading.coverage <= 1


def test_a_cord_that_is_missing_leaves_no_sum_and_is_told(node):
    node.add("pdu1", cord(1, 2), SLOW, 500 + 0 * SLOW)
    found = result(node)
    assert not [s for s in found.scopes if s.scope == "node.ac"]
    told = [c for c in found.checks if c.name == "cords"]
    assert [c.status for c in told] == ["failed"]
    assert told[0].message == "node.ac: 1 of 2 outlets are read (power_w of pdu1), so there is no sum"


def test_cords_that_make_no_whole_are_in_no_sum_with_what_is_inside(node):
    node.add("pdu1", cord(1, 2), SLOW, 500 + 0 * SLOW)
    assert result(node).group("measured").scopes == ("gpu:0",)


def test_cords_alone_stand_for_themselves(folder):
    folder.add("pdu1", cord(1, 2), SLOW, 500 + 0 * SLOW)
    assert result(folder).group("measured").scopes == ("outlet:pdu1.1",)


def test_a_rack_holds_the_nodes_of_all_hosts(folder):
    for host in ("node1", "node2"):
        folder.add("bmc", power("node.ac"), FAST, 500 + 0 * FAST, host=host)
    folder.add("pdu", power("rack"), FAST, 1100 + 0 * FAST)
    assert result(folder).group("measured").scopes == ("rack",)


def test_supplies_are_counted_by_the_meter_that_lists_them(node):
    for meter in ("ipmi", "redfish"):
        for number in (1, 2):
            stream = cord(number, 2, meter, kind="psu", energy=True)
            node.add(meter, stream, SLOW, 150 + mean(SLOW - 0.5, 1.0), 150 * SLOW + joules(SLOW - 0.5))
    found = result(node)
    whole = scope(found, "node.ac")
    assert {r.meter for r in (whole.reading, *whole.others)} == {"ipmi", "redfish"}
    assert len(whole.others) == 3
    for reading in (whole.reading, *whole.others):
        assert abs(reading.energy.value - true_j()) <= reading.energy.expanded
    counted = next(c for s in join_of(node) if s.scope == "node.ac" for c in s.channels if c.spec.kind == "counter")
    assert isinstance(counted.curve, SumCurve)


def join_of(folder):
    return join(load_channels(folder.open()), ns(START), ns(END)).scopes


def test_a_sum_of_counters_alone_has_no_statistics(node):
    spec = Spec("energy_j", "energy", "J", "counter", 1.0, accuracy=METER)
    for number in (1, 2):
        stream = Stream(f"outlet:p.{number}", "e", f"outlet:p.{number}", 1.0, (spec,), sums="node.ac", parts=2)
        node.add("p", stream, SLOW, 150 * SLOW + joules(SLOW))
    assert scope(result(node), "node.ac").statistics is None


def test_a_cord_of_unknown_accuracy_leaves_the_sum_without_interval(node):
    node.add("pdu1", cord(1, 2), SLOW, 150 + mean(SLOW - 0.5, 1.0))
    node.add("pdu2", cord(2, 2, "pdu2", given=Accuracy()), SLOW, 150 + mean(SLOW - 0.5, 1.0))
    whole = scope(result(node), "node.ac")
    assert whole.energy.expanded is None
    assert whole.reading.accuracy == "unknown"


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
    assert lag.why == "the power did not change"
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
    assert found.lags[0].why == "none is seen"
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
    guide = Guide(cumulative(found["gpu:0"].best, 0), found["gpu:0"].best.energy)
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
    told = [c for c in found.checks if c.name == "does not follow"]
    assert [(c.status, c.next) for c in told] == [("failed", "joulelab doctor pdu")]
    assert told[0].message == "node.ac: pdu does not follow the load of gpu inside it, so it is not believed"


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
    guide = Guide(cumulative(found["gpu:0"].best, 0), found["gpu:0"].best.energy)
    curve = found["node.ac"].best.curve
    assert guide.is_represented(curve, ns(START), ns(END))
    assert not guide.is_represented(curve, ns(START), ns(START + 3))


def test_what_cannot_be_is_told(node):
    node.add("pdu", power("node.ac"), FAST, 0.8 * mean(FAST - 0.05, 0.1))
    node.add("bmc", power("node.dc", given=Accuracy("datasheet", 0.01, shared="b")), FAST, 1.2 * mean(FAST - 0.05, 0.1))
    told = {c.message.partition(" is below")[0] for c in result(node).checks if c.name == "impossible"}
    assert told == {"rest of node.ac", "supply loss"}


# Which is believed, and what the others say.


def test_the_narrowest_interval_is_believed_and_the_others_are_compared(node):
    fine, coarse, off = (Accuracy("datasheet", gain, shared=str(gain)) for gain in (0.002, 0.03, 0.01))
    node.add("bmc", slow_power("node.ac", given=coarse), SLOW, 300 + 2 * mean(SLOW - 0.5, 1.0))
    node.add("analyzer", slow_power("node.ac", given=fine), SLOW, 300 + 2 * mean(SLOW - 0.5, 1.0))
    node.add("pdu", slow_power("node.ac", given=off), SLOW, 1.1 * (300 + 2 * mean(SLOW - 0.5, 1.0)))
    node.add("plug", slow_power("node.ac", given=Accuracy()), SLOW, 300 + 2 * mean(SLOW - 0.5, 1.0))
    found = result(node)
    assert scope(found, "node.ac").reading.meter == "analyzer"
    verdicts = {c.other.meter: c.verdict for c in found.comparisons if c.scope == "node.ac"}
    assert verdicts == {"bmc": "agree", "pdu": "differ", "plug": "cannot tell"}
    told = [c.message for c in found.checks if c.name == "meters disagree"]
    assert len(told) == 1
    assert told[0].startswith(
        "node.ac: power_w of pdu is +10.0% off power_w of analyzer, more than both together may be"
    )


# Time of origin.


def test_values_that_tell_their_age_stand_where_they_came_from_and_count_once(folder):
    origin = np.arange(0.0, 100, 10.0)
    polled = np.arange(1.0, 100, 1.0)
    last = origin[np.searchsorted(origin, polled, side="right") - 1]
    spec = Spec("power_w", "power", "W", "power", 10.0, 0.0, accuracy=METER)
    stream = Stream("prom", "power", "node.ac", 1.0, (spec, Spec("age_s", "age", "s")))
    folder.add("prom", stream, polled, watts(last), polled - last)
    channels = next(s for s in load_channels(folder.close(START, END).open()) if s.scope == "node.ac").channels
    assert len(channels[0].readings) == origin.size
    middle = (channels[0].readings.t0_ns + channels[0].readings.t1_ns) / 2e9 - 1000
    assert middle == pytest.approx(origin, abs=1e-3)
    assert channels[0].readings.value == pytest.approx(watts(origin))


def test_a_stream_that_never_told_its_age_has_no_readings(folder):
    spec = Spec("power_w", "power", "W", "power", 1.0, 1.0, accuracy=METER)
    stream = Stream("prom", "power", "node.ac", 1.0, (spec, Spec("age_s", "age", "s")))
    folder.add("prom", stream, SLOW, watts(SLOW), np.full(SLOW.size, np.nan))
    assert load_channels(folder.close(START, END).open()) == []


# The rest.


def test_the_rest_is_known_over_time_too(node):
    node.add("rapl", counter("cpu:0"), FAST, 50 * FAST)
    node.add("pdu", power("node.ac"), FAST, 350 + 1.2 * mean(FAST - 0.05, 0.1))
    rest = result(node).group("rest of node.ac")
    assert rest.scopes == ("gpu:0", "cpu:0")
    assert rest.statistics.median == pytest.approx(300 + 0.2 * np.median(watts(np.arange(START, END, 0.1))), abs=15)
    assert abs(rest.energy.value - (300 * 60 + 0.2 * (joules(END) - joules(START)))) <= 2 * rest.energy.u


def test_a_rest_needs_a_time_that_both_were_read(node):
    late = np.arange(200, 220, 0.5)
    node.add("pdu", power("node.ac"), late, 900 + 0 * late)
    assert result(node).group("rest of node.ac").statistics is None


def test_a_node_that_only_counts_has_a_rest_without_statistics(node):
    node.add("xcc", counter("node.dc"), FAST, 300 * FAST + 2 * joules(FAST))
    assert result(node).group("rest of node.dc").statistics is None


def test_a_reading_that_waited_for_its_update_is_of_the_time_at_its_end(folder):
    spec = Spec("power_w", "power", "W", "power", 0.1, 0.1, accuracy=METER)
    stream = Stream("wt", "power", "node.ac", 0.1, (spec,), pace="instrument")
    channels = load_channels(folder.add("analyzer", stream, FAST, watts(FAST)).close(START, END).open())[0].channels
    readings = channels[0].readings
    assert (readings.t0_ns == readings.t1_ns).all()
    assert channels[0].curve.shift_s == pytest.approx(0.05)  # half of its window
