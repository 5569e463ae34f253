"""Several meters of a node together: cords, ranks, comparisons, the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.wall_scenarios import WALLS, measure
from tests.analysis.folders import METER, counter, gpu, power
from tests.analysis.loads import (
    END,
    FAST,
    SLOW,
    START,
    cord,
    join_of,
    joules,
    mean,
    result,
    scope,
    slow_power,
    true_j,
    watts,
)
from tests.analysis.virtual import ns

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.channels import SumCurve, load_channels
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.report.messages import word_check

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
    told = [(c.status, c.scope, c.numbers) for c in found.checks if c.code == "cords"]
    assert told == [("failed", "node.ac", {"read": 1, "wanted": 2})]


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


def test_what_cannot_be_is_told(node):
    node.add("pdu", power("node.ac"), FAST, 0.8 * mean(FAST - 0.05, 0.1))
    node.add("bmc", power("node.dc", given=Accuracy("datasheet", 0.01, shared="b")), FAST, 1.2 * mean(FAST - 0.05, 0.1))
    told = [c for c in result(node).checks if c.code == "impossible"]
    assert {c.scope for c in told} == {"rest of node.ac", "supply loss"}
    assert all(c.numbers["energy_j"] + c.numbers["uncertainty_j"] < 0 for c in told)


@pytest.mark.parametrize(
    ("watts", "step_s", "is_told"),
    [(300.0, None, True), (590.0, None, False), (620.0, None, False), (300.0, 0.1, False), (300.0, 0.307, True)],
)
@pytest.mark.parametrize("end", [START + 6.0, END])
def test_a_wall_meter_below_its_parts_fails_unless_the_load_was_in_step_with_them(folder, watts, step_s, is_told, end):
    """Steps of 0.1 s are in time with a sensor that measures 25 of 100 ms; without such evidence its bound is none."""
    folder.add("nvml", gpu(0, seen=0.25), FAST, 600 * FAST, np.full(FAST.size, 600.0))
    folder.add("pdu", power("node.ac"), FAST, np.full(FAST.size, watts))
    if step_s is not None:
        at = [ns(t) for t in np.arange(START, end, step_s)]
        folder.marks("9-1", {"t": at[-1], "mark": "work", "from": at[0], "amounts": {"steps": len(at)}, "at": at})
    found = analyse_run(folder.close(START, end).open())
    rest = found.group("rest of node.ac").energy
    assert rest.value == pytest.approx((watts - 600) * (end - START), rel=0.01)
    assert [c.scope for c in found.checks if c.code == "impossible"] == ["rest of node.ac"] * is_told
    if step_s is None:
        assert rest.bound > abs(rest.value)


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
    (told,) = (c for c in found.checks if c.code == "meters-disagree")
    assert (told.scope, word_check(told).next) == ("node.ac", "joulelab doctor pdu")
    assert told.numbers["difference_share"] == pytest.approx(0.1, abs=5e-4)


@pytest.mark.parametrize(("off", "verdict"), [(0.013, "agree"), (0.05, "differ"), (-0.05, "differ")])
def test_a_meter_that_is_off_by_a_twentieth_is_found_beside_one_of_a_hundredth(node, off, verdict):
    for meter, factor in (("pdu", 1.0), ("bmc", 1.0 + off)):
        given = Accuracy("datasheet", 0.01, shared=meter)
        node.add(meter, slow_power("node.ac", given=given), SLOW, factor * (300 + 2 * mean(SLOW - 0.5, 1.0)))
    assert [c.verdict for c in result(node).comparisons if c.scope == "node.ac"] == [verdict]


@pytest.mark.parametrize(("seeds", "seconds"), [(2, 12.0), pytest.param(40, 20.0, marks=pytest.mark.campaign)])
def test_meters_within_their_stated_accuracy_rarely_disagree(tmp_path, seeds, seconds):
    found = [c for s in range(1, seeds + 1) for c in measure(tmp_path, s, seconds)[0].comparisons]
    judged = [c.verdict for c in found if c.verdict != "cannot tell"]
    assert len(judged) > 20 * seeds
    assert judged.count("differ") <= 0.01 * len(judged)


@pytest.mark.parametrize("seeds", [1, pytest.param(20, marks=pytest.mark.campaign)])
def test_a_wrong_meter_is_found_under_any_load(tmp_path, seeds):
    """It is off by 5 % and states 1 %, as the meter beside it does; in runs of 60 s."""
    pdu = replace(WALLS[1], points=("node.ac",))
    walls = (replace(pdu, meter="right"), replace(pdu, meter="wrong", error=0.05))
    verdicts = []
    for seed in range(1, seeds + 1):
        found = measure(tmp_path, seed, 60.0, gains=False, walls=walls)[0].comparisons
        verdicts += [c.verdict for c in found if c.scope == "node.ac" and c.other.channel == c.best.channel]
    assert verdicts == ["differ"] * seeds


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
