"""How much nodes differ: by hosts at the same work, assumed where too few were compared."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.plan.rack.draws import draw

from joulelab.plan.rack.spread import ASSUMED, spread_of


def test_hosts_of_one_job_tell_how_much_the_next_one_may_differ():
    draws = [draw([50.0, watts], host=f"n{n}") for n, watts in enumerate((98.0, 100.0, 102.0))]
    found = spread_of(draws)
    assert (found.source, found.hosts) == ("measured", 3)
    # Student's t of two degrees of freedom for k = 2 (4.53), a standard deviation of 2 %, and the mean's own error.
    assert found.value == pytest.approx(4.527 * 0.02 * np.sqrt(4 / 3), rel=1e-3)
    assert found.above == pytest.approx((1 + found.value) / 1.02 - 1)  # above the highest that was seen
    assert "3 hosts" in found.said
    json.dumps(found.to_json())


def test_hosts_that_are_alike_leave_nothing_above():
    found = spread_of([draw([100.0], host=f"n{n}") for n in range(4)])
    assert (found.value, found.above) == (0.0, 0.0)


def test_a_second_run_of_the_same_hosts_makes_no_more_freedom():
    once = [draw([watts], host=f"n{n}") for n, watts in enumerate((98.0, 100.0, 102.0))]
    again = [draw([watts], run="b", host=f"n{n}") for n, watts in enumerate((98.0, 100.0, 102.0))]
    assert spread_of([*once, *again]).value == pytest.approx(spread_of(once).value)


def test_runs_of_one_name_on_different_hosts_are_the_same_work():
    draws = [draw([w], run=f"r{n}", host=f"n{n}", name="burn") for n, w in enumerate((98.0, 100.0, 102.0))]
    assert spread_of(draws).hosts == 3
    assert spread_of([draw([w], run=f"r{n}", host="n0", name="burn") for n, w in enumerate((98.0, 102.0))]).hosts == 1


@pytest.mark.parametrize(
    ("draws", "value", "said"),
    [
        ([draw([100.0])], ASSUMED, "one host was measured"),
        ([draw([100.0], run="a"), draw([50.0], run="b", host="other")], ASSUMED, "no two hosts did the same work"),
        ([draw([100.0], host="x"), draw([99.0], host="y")], ASSUMED, "two hosts were compared"),
        ([draw([105.0], host="x"), draw([95.0], host="y")], 0.1, "what the two differ by"),
        ([draw([100.0], host="x"), draw([np.nan], host="y")], ASSUMED, "no two hosts did the same work"),
    ],
)
def test_too_few_hosts_are_assumed_to_differ(draws, value: float, said: str):
    found = spread_of(draws)
    assert (found.source, found.value, found.above) == ("assumed", pytest.approx(value), pytest.approx(value))
    assert said in found.said
