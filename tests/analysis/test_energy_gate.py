"""Decisions about energy against a baseline or a maximum: who is wrong how often, and when more repeats help."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.rows import every_row

from joulelab.analysis.cell_comparison import RepeatSample, find_ratio, make_sample
from joulelab.analysis.energy_gate import (
    FEWEST_REPEATS,
    GateVerdict,
    find_look_level,
    judge_maximum,
    judge_rise,
    judge_single,
)
from joulelab.core.quantity import Quantity


def repeat(*values: float, meter: float | None = 0.05, device: str = "GPU-0") -> RepeatSample:
    terms = {f"gain:nvml:H100@{device}": 0.025} if meter else {}
    return make_sample(values, meter, terms=terms, devices=frozenset({device}))


BASE = repeat(99.0, 100.0, 101.0, 100.0, 100.0)


@every_row(
    "current, baseline, decision, reason",
    [
        (repeat(100.0, 101.0, 99.5, 100.0), BASE, "not above", ""),
        (repeat(102.0, 102.1, 101.9, 102.0), BASE, "not above", ""),  # a rise, but surely below the limit
        (repeat(106.0, 107.0, 106.5, 106.2), BASE, "above", ""),
        (repeat(104.0, 105.0, 104.5, 104.4), BASE, "above", ""),  # significant, and 5 % is possible
        (repeat(90.0, 110.0, 104.0), BASE, "undecided", "repeats"),
        (repeat(103.0), repeat(100.0), "undecided", "one-run-each"),
        (repeat(130.0), BASE, "above", ""),  # one run is assumed to scatter like the baseline
        (repeat(100.0, 100.5, 100.2, device="GPU-1"), BASE, "undecided", "meters"),
        (repeat(200.0, 200.5, 200.2, device="GPU-1"), BASE, "above", ""),
        (repeat(100.0, 100.5, meter=None, device="GPU-1"), BASE, "undecided", "accuracy"),
        (repeat(100.0, 100.5, meter=None), repeat(99.0, 100.0, 101.0, meter=None), "not above", ""),  # it cancels
        (repeat(1.0, 1.1, 1.2), repeat(0.5, 1.0, -0.5), "undecided", "not-resolved"),
        (repeat(1.0, 1.1, 1.2), repeat(0.0, 0.0, 0.0), "undecided", "not-resolved"),
    ],
)
def test_a_rise_is_judged_by_its_interval(
    current: RepeatSample, baseline: RepeatSample, decision: str, reason: str
) -> None:
    verdict = judge_rise(current, baseline, 0.05)
    assert (verdict.decision, verdict.reason) == (decision, reason)
    assert verdict.needs_repeats == (reason in ("repeats", "one-run-each", "not-resolved"))


@every_row(
    "sample, decision, reason",
    [
        (repeat(40.0, 41.0, 40.5), "not above", ""),
        (repeat(60.0, 61.0, 60.5), "above", ""),
        (repeat(50.5, 51.0, 50.7), "undecided", "meters"),
        (repeat(50.0, 70.0, 60.0), "undecided", "repeats"),
        (repeat(60.0), "undecided", "one-run-each"),
        (repeat(60.0, 60.0, 60.0, meter=None), "undecided", "accuracy"),
    ],
)
def test_a_maximum_is_judged_with_the_errors_of_the_meters(sample: RepeatSample, decision: str, reason: str) -> None:
    verdict = judge_maximum(sample, 50.0)
    assert (verdict.decision, verdict.reason) == (decision, reason)


def test_one_run_can_be_below_a_maximum_but_not_above() -> None:
    energies = [Quantity(40.0, {"a": 2.0}), Quantity(900.0, {"a": 2.0}), Quantity(40.0, {}, known=False)]
    found = [judge_single(energy, 50.0) for energy in energies]
    assert [(v.decision, v.reason) for v in found] == [
        ("not above", ""), ("undecided", "one-run-each"), ("undecided", "accuracy")
    ]  # fmt: skip
    assert found[0] == GateVerdict("not above", "", 40.0, (36.0, 44.0))


@pytest.mark.parametrize("at_most", [3, 4, 10, 25])
def test_the_levels_of_all_looks_add_up_to_five_percent(at_most: int) -> None:
    levels = [find_look_level(n, at_most) for n in range(FEWEST_REPEATS, at_most + 1)]
    assert math.isclose(sum(levels), 0.05)


def test_a_narrow_level_widens_the_interval_of_a_ratio() -> None:
    wide, usual = (find_ratio(repeat(104.0, 105.0, 104.5), BASE, level) for level in (0.005, 0.05))
    assert wide is not None
    assert usual is not None
    assert wide.interval is not None
    assert usual.interval is not None
    assert wide.ratio == usual.ratio
    assert wide.interval[0] < usual.interval[0] < usual.interval[1] < wide.interval[1]


def decide(rng: np.random.Generator, rise: float, scatter: float = 0.01, at_most: int = 10) -> str:
    """Repeat until the answer is clear, as a gate does, and return it."""
    baseline = repeat(*rng.normal(100.0, 100.0 * scatter, 5))
    mean = 100.0 * (1 + rise)
    values = list(rng.normal(mean, mean * scatter, FEWEST_REPEATS))
    while True:
        verdict = judge_rise(repeat(*values), baseline, 0.05, find_look_level(len(values), at_most))
        if not verdict.needs_repeats or len(values) >= at_most:
            return verdict.decision
        values.append(rng.normal(mean, mean * scatter))


def test_repeats_until_the_answer_is_clear_are_seldom_wrong() -> None:
    rng = np.random.default_rng(27)
    same, more = ([decide(rng, rise) for _ in range(400)] for rise in (0.0, 0.05))
    assert same.count("above") <= 20
    assert more.count("above") >= 380
