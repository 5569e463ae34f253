"""Counters of work that a meter records become work of the run and of its phases."""

from __future__ import annotations

import numpy as np
import pytest

from joulelab.analysis.marked_phases import list_phase_facts, list_phases
from joulelab.analysis.readings import Readings
from joulelab.analysis.result import PhaseResult, WorkChannel
from joulelab.analysis.work_channels import (
    WorkCurve,
    add_counted_work,
    fill_phase_work,
    measure_work_channels,
    sum_work_channels,
)
from joulelab.core.quantity import Quantity

NS = 1_000_000_000


def make_curve(values: list[float], name: str = "output_tokens") -> WorkCurve:
    t = np.arange(len(values), dtype=np.int64) * NS
    return WorkCurve(name, "1", "n1", "inference", "server", Readings(t, t + 1000, np.array(values)))


def test_work_between_readings_has_the_error_of_its_edges():
    curve = make_curve([100, 110, 120, 130, 140])
    whole = curve.measure_work(NS, 3 * NS)
    assert whole.value == 20
    half = curve.measure_work(NS // 2, 3 * NS)
    assert half.value == pytest.approx(25)
    other = curve.measure_work(3 * NS, 4 * NS)
    assert (half + other).value == pytest.approx(35)
    # The edge that both have in common cancels.
    assert (half + other).u < half.u + other.u


def test_a_restart_keeps_the_known_increments_and_states_the_gap():
    curve = make_curve([100, 150, 200, 20, 70])
    work = curve.measure_work(0, 4 * NS)
    assert work.value == 100 + 20 + 50
    assert "restart" in work.budget()
    (channel,) = measure_work_channels([curve], 0, 4 * NS, ())
    assert (channel.restarts, channel.lost_s) == (1, pytest.approx(1.0, abs=1e-3))


def test_counted_work_fills_kinds_that_no_process_reported():
    phase = PhaseResult("steady", "steady", None, 1.0, 2.0, {"gpu": Quantity(10.0)}, {"requests": 3.0}, number=0)
    channels = measure_work_channels(
        [make_curve([0, 10, 20, 30, 40]), make_curve([0, 1, 2, 3, 4], "requests")], 0, 4 * NS, [phase]
    )
    assert sum_work_channels(channels)["output_tokens"].value == 40
    unknown = PhaseResult("drain", "drain", None, 3.0, 1.0, {}, {}, number=1)
    filled, same = fill_phase_work([phase, unknown], channels, ["output_tokens"])
    assert same is unknown
    assert filled.work == {"output_tokens": 20.0, "requests": 3.0}
    assert add_counted_work({"requests": 7.0}, {"requests": Quantity(4.0), "output_tokens": Quantity(0.0)}) == {
        "requests": 7.0
    }
    assert isinstance(channels[0], WorkChannel)


def test_facts_belong_to_the_innermost_phase():
    marks = [
        {"t": 10, "mark": "begin", "id": "1", "name": "rate", "n": 4, "host": "a"},
        {"t": 20, "mark": "begin", "id": "2", "name": "steady", "parent": "1", "host": "a"},
        {"t": 30, "mark": "fact", "facts": {"ttft_p99": 0.4, "x": 1}, "host": "a"},
        {"t": 35, "mark": "fact", "facts": {"ttft_p99": 0.5}, "host": "a"},
        {"t": 36, "mark": "fact", "facts": {"ttft_p99": 0.9}, "host": "b"},
        {"t": 40, "mark": "end", "id": "2", "host": "a"},
        {"t": 50, "mark": "fact", "facts": {"y": 2}, "host": "a"},
        {"t": 60, "mark": "end", "id": "1", "host": "a"},
        {"t": 70, "mark": "fact", "facts": {"z": 3}, "host": "a"},
    ]
    phases, _ = list_phases(marks, 0, 100, "a")
    facts = list_phase_facts(marks, phases, "a")
    by_name = {phase.name: facts.get(phase.id, {}) for phase in phases}
    assert by_name == {"steady": {"ttft_p99": 0.5, "x": 1}, "rate": {"y": 2}}
