"""Largest steps and ramps of one node, of the sum of a run's hosts, and of nodes that move together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.plan.rack.draws import draw

from joulelab.plan.rack.steps import steps_of, steps_of_sum, sum_of, synchronous


def test_the_largest_rise_and_fall_with_their_times():
    found = steps_of([draw([100.0, 400.0, 350.0, 50.0, 90.0]), draw([0.0, 10.0], run="b")])
    assert found.rise is not None
    assert found.fall is not None
    assert (found.rise.watts, found.rise.at_s, found.rise.at_utc_s, found.rise.run) == (300.0, 2.0, 1002.0, "a")
    assert (found.fall.watts, found.fall.at_s) == (-300.0, 6.0)
    assert found.rise.ramp_w_per_s == 150.0
    json.dumps(found.to_json())


def test_the_steepest_may_be_in_a_faster_run():
    found = steps_of([draw([0.0, 300.0], step_s=10.0), draw([0.0, 100.0], run="b", step_s=1.0)])
    assert found.rise is not None
    assert found.steepest is not None
    assert (found.rise.run, found.steepest.run) == ("a", "b")
    assert found.steepest.ramp_w_per_s == 100.0


def test_nothing_is_seen_across_a_gap():
    found = steps_of([draw([0.0, 5.0, np.nan, 900.0, 890.0])])
    assert found.rise is not None
    assert found.rise.watts == 5.0
    still = steps_of([draw([1.0, np.nan, 5.0])])
    assert (still.rise, still.fall, still.steepest) == (None, None, None)
    assert still.said == "power did not move"
    json.dumps(still.to_json())


def test_steps_are_between_readings_where_these_were_kept():
    """A grid smooths a step between two of its cells, and makes up two where there was one."""
    smooth = draw(
        [100.0, 250.0, 400.0], read_s=np.array([0.5, 2.5, 3.5, 12.0]), read_w=np.array([100.0, 100, 400, 900])
    )
    found = steps_of([smooth])
    assert found.rise is not None
    assert (found.rise.watts, found.rise.over_s, found.rise.at_s) == (300.0, 1.0, 3.0)  # not across the gap at the end
    assert found.fall is None


def test_readings_that_came_too_close_make_no_steeper_ramp_and_rounding_no_step():
    late = draw(
        [0.0] * 4, read_s=np.array([0.0, 2.0, 2.1, 4.1, 6.1]), read_w=np.array([500.0, 500, 700, 700 + 1e-7, 600])
    )
    found = steps_of([late])
    assert found.rise is not None
    assert found.steepest is not None
    assert (found.rise.watts, found.rise.over_s) == (200.0, 1.0)  # half of the usual distance at least
    assert found.steepest.ramp_w_per_s == 200.0  # not 2 kW/s
    still = steps_of([draw([500.0, 500 + 1e-7, 500.0])])
    assert (still.rise, still.fall) == (None, None)


def test_a_sum_takes_the_nearest_reading_of_each_host():
    x = draw([0.0] * 3, host="x", read_s=np.array([0.0, 2.0, 4.0]), read_w=np.array([100.0, 400.0, 400.0]))
    y = draw([0.0] * 3, host="y", read_s=np.array([0.3, 2.3, 4.3]), read_w=np.array([10.0, 10.0, 50.0]))
    found = steps_of_sum([x, y])
    assert found.rise is not None
    assert (found.rise.watts, found.rise.at_s) == (300.0, 1.0)
    gone = draw([0.0] * 3, host="z", read_s=np.array([90.0]), read_w=np.array([10.0]))
    assert steps_of_sum([x, gone]).rise is None


def test_nodes_of_one_job_move_together():
    found = synchronous(steps_of([draw([0.0, 300.0, 100.0])]), 6)
    assert found.nodes == 6
    assert found.rise is not None
    assert found.fall is not None
    assert (found.rise.watts, found.fall.watts) == (1800.0, -1200.0)
    assert "6 nodes moving together" in found.said


def test_hosts_side_by_side_step_less_than_together():
    hosts = [draw([0.0, 300.0, 300.0], host="x"), draw([0.0, 0.0, 300.0], host="y")]
    found = steps_of_sum(hosts)
    assert found.rise is not None
    assert (found.nodes, found.rise.watts) == (2, 300.0)
    six = synchronous(found, 6)
    assert six.rise is not None
    assert six.rise.watts == 900.0


def test_a_sum_is_on_the_coarsest_steps_and_only_where_all_were_read():
    fine, coarse = draw([1.0, 2.0, 3.0, 9.0, np.nan, np.nan], host="x"), draw([10.0, 20.0, 30.0], host="y", step_s=4.0)
    _, total = sum_of([fine, coarse])
    assert total[:2].tolist() == [12.0, 29.0]
    assert np.isnan(total[2])


@pytest.mark.parametrize("twin", ["", "bnl"])
def test_a_twin_is_told(twin: str):
    assert steps_of([draw([0.0, 1.0], twin=twin)]).simulated == bool(twin)
