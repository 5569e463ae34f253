"""Honesty as coverage: over random scenarios the truth lies within k = 2 in at least 95 %, whatever hides the rest."""

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
    assert covered(outcomes) >= 0.95, report("all", outcomes)
    # The bound for what nobody saw must not hide the rest: without it, the same.
    free = [o for o in outcomes if not o.bounded]
    assert covered(free) >= 0.95, report("sees all, or steps known", free)
    assert np.median([o.width for o in free]) < 0.15, report("an interval that holds everything says nothing", free)


@pytest.mark.campaign
@pytest.mark.parametrize("gain", [0.05, 0.0])
def test_five_thousand_scenarios_by_what_they_are(gain):
    """Not only on the whole: for each load, each meter and each channel."""
    outcomes = campaign(5000, gain, 42)
    print(f"\ngain {gain:.0%}")
    for field in ("load", "meter", "channel", "gap", "steps", "bounded"):
        for value in sorted({getattr(o, field) for o in outcomes}, key=str):
            part = [o for o in outcomes if getattr(o, field) == value]
            print(report(f"  {field} {value}", part))
            assert covered(part) >= 0.95, report(f"{field} {value}", part)
