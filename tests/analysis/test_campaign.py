"""Coverage by regime of measurement: in at least 95 % the truth lies within k = 2, and intervals are not too wide.

Loads in exact step with a sensor that measures part of the time are the exception: those lie within the bound.
"""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.coverage import COUNT, SEED, print_regime, summarise
from benchmarks.loads import list_kinds
from benchmarks.regimes import REGIMES, measure_in_step, measure_regime, measure_slow_refresh
from tests.rows import every_row


@every_row("regime", REGIMES)
def test_the_truth_lies_in_the_interval(regime):
    """The first draws of each kind of load."""
    inside, _, _, ratio = summarise([o for o in measure_regime(regime, 10, SEED) if o.known])
    assert inside >= 0.93
    assert ratio < 6.0, "an interval that holds everything says nothing"


@pytest.mark.campaign
@pytest.mark.parametrize("regime", REGIMES)
def test_all_draws_of_a_regime_keep_the_promise(regime):
    """At least 95 % inside, the median U at most four times the error, and both for 80 % of the kinds of load."""
    assert print_regime(regime, measure_regime(regime, COUNT, SEED))


def draw_in_step(*, reported):
    rng = np.random.default_rng(SEED)
    return [measure_in_step(rng, reported=reported) for _ in range(80)]


def test_a_load_in_step_lies_inside_the_bound():
    """Nothing in the readings shows it, so the interval cannot hold it."""
    found = draw_in_step(reported=False)
    assert np.mean([abs(energy.value - true) <= energy.bound for energy, true in found]) >= 0.99
    assert np.mean([abs(energy.value - true) <= energy.expanded for energy, true in found]) < 0.6


def test_a_load_in_step_is_in_the_interval_where_steps_are_evidence_for_it():
    found = [(energy, true) for energy, true in draw_in_step(reported=True) if "in-step" in energy.budget()]
    assert len(found) > 45
    assert np.mean([abs(energy.value - true) <= energy.expanded for energy, true in found]) >= 0.95


@pytest.mark.parametrize("refresh_s", [2.0, 5.0, 10.0, 30.0])
def test_a_refresh_slower_than_stated_is_learnt_from_the_readings(refresh_s):
    """With the stated refresh of 1 s, 88, 60, 35 and 17 % lay inside."""
    rng = np.random.default_rng(SEED)
    found = [measure_slow_refresh(rng, kind, refresh_s) for kind in list_kinds() for _ in range(10)]
    assert np.mean([abs(energy.value - true) <= energy.expanded for energy, true in found]) >= 0.93
