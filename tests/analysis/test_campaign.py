"""Honesty as coverage: over random scenarios the truth lies within k = 2 in at least 95 %, whatever hides the rest.

Loads in exact step with a sensor that measures part of the time are the exception: those lie within the bound.
"""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.scenarios import Outcome, campaign


def covered(outcomes: list[Outcome]) -> float:
    return float(np.mean([o.covered for o in outcomes]))


def report(name: str, outcomes: list[Outcome]) -> str:
    width = np.median([o.width for o in outcomes])
    error = np.median([abs(o.error_j) / o.true_j for o in outcomes])
    return (
        f"{name}: {len(outcomes)} scenarios, {covered(outcomes):.1%} covered, median U {width:.2%}, error {error:.2%}"
    )


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in (7, 23, 101))])
@pytest.mark.parametrize("gain", [0.05, 0.0])
def test_two_hundred_scenarios(gain, seed):
    outcomes = campaign(200, gain, seed)
    assert np.mean([o.held for o in outcomes]) >= 0.99, report("all", outcomes)
    free = [o for o in outcomes if not o.blind]
    assert covered(free) >= 0.95, report("not in step with the sensor, or with evidence for it", free)
    for part in (free, [o for o in free if o.bounded]):
        assert np.median([o.width for o in part]) < 0.15, report("an interval that holds everything says nothing", part)


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("gain", [0.05, 0.0])
def test_a_load_in_step_is_in_the_interval_where_steps_are_evidence_for_it(gain):
    outcomes = [o for o in campaign(300, gain, 3) if o.load == "in step" and o.steps and not o.bounded]
    assert covered(outcomes) >= 0.95, report("evident", outcomes)


@pytest.mark.campaign
@pytest.mark.parametrize("gain", [0.05, 0.0])
def test_five_thousand_scenarios_by_what_they_are(gain):
    """Not only on the whole: for each load, each meter and each channel."""
    outcomes = campaign(5000, gain, 42)
    print(f"\ngain {gain:.0%}")
    assert np.mean([o.held for o in outcomes]) >= 0.99, report("all", outcomes)
    outcomes = [o for o in outcomes if not o.blind]
    for field in ("load", "meter", "channel", "gap", "steps", "bounded"):
        for value in sorted({getattr(o, field) for o in outcomes}, key=str):
            part = [o for o in outcomes if getattr(o, field) == value]
            print(report(f"  {field} {value}", part))
            assert covered(part) >= 0.95, report(f"{field} {value}", part)
