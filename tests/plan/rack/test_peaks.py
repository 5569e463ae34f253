"""Hidden peaks from finer runs or published figures, differences between nodes, and hosts that peak together."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.rack.draws import draw
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.plan.rack.peaks import (
    ASSUMED_SPREAD,
    PUBLISHED,
    find_hidden_peak,
    find_hidden_peaks,
    find_joint_peak,
    find_node_spread,
    find_resolution,
)


def spiky() -> np.ndarray:
    """Return 2 s readings at 1000 W with one of 1600 W."""
    watts = np.full(300, 1000.0)
    watts[137] = 1600.0
    return watts


def test_means_hide_what_the_finer_run_shows():
    """A peak of 2 s in a mean of 60 s: 600 W become 20 W, however the minutes fall."""
    found = find_hidden_peak(60.0, is_averaged=True, traces=[draw(spiky())])
    assert (found.source, found.to_s) == ("measured", 2.0)
    assert (found.low, found.high) == pytest.approx((1600 / 1020, 1600 / 1020))
    moments = find_hidden_peak(60.0, is_averaged=False, traces=[draw(spiky())])
    assert (moments.low, moments.high) == pytest.approx((1.0, 1.6))


def test_coarse_runs_are_raised_by_finer_ones():
    coarse = draw(np.full(20, 1700.0), run="coarse", step_s=60.0, window_s=60.0)
    found = find_hidden_peaks([coarse, draw(spiky())])
    assert (found.value_w, found.factor) == (1700.0, pytest.approx(1600 / 1020))


def test_published_figures_are_used_for_means_as_a_bound_and_for_moments_as_none():
    means = find_hidden_peaks([draw([1000.0] * 10, step_s=60.0, window_s=60.0)])
    assert means.high_w == pytest.approx(1030.0)
    assert (means.ways[0].source, means.ways[0].low, means.ways[0].is_bound) == ("published", PUBLISHED[0], True)
    for window_s in (0.0, 1.0):  # also means over less than their distance
        (way,) = find_hidden_peaks([draw([1000.0] * 10, step_s=60.0, window_s=window_s)]).ways
        assert (way.low, way.high, way.is_bound) == (1.0, PUBLISHED[1], False)


def test_fine_readings_are_not_raised_and_slow_ones_are_unknown():
    assert find_hidden_peaks([draw(spiky())]).factor == 1.0
    slow = find_hidden_peaks([draw([1000.0] * 10, step_s=300.0), draw(spiky()[:20], run="short")])
    assert (slow.high_w, slow.factor) == (None, None)


def test_the_coarser_of_distance_and_window_counts():
    assert find_resolution(draw([1.0], step_s=2.0, window_s=10.0)) == 10.0
    assert find_resolution(draw([1.0], step_s=60.0, window_s=10.0)) == 60.0


def test_means_over_a_gap_are_not_used():
    watts = spiky()
    watts[::20] = np.nan
    assert find_hidden_peak(60.0, is_averaged=True, traces=[draw(watts)]).source == "published"
    watts = spiky()
    watts[100:140:20] = np.nan
    assert find_hidden_peak(60.0, is_averaged=True, traces=[draw(watts)]).source == "measured"


def test_runs_of_different_sides_are_refused():
    with pytest.raises(ConfigError, match="behind the supplies"):
        find_hidden_peaks([draw([1.0] * 10, step_s=60.0), draw(spiky(), side="dc")])


def test_hosts_of_one_job_show_how_much_the_next_one_may_differ():
    found = find_node_spread([draw([50.0, watts], host=f"n{n}") for n, watts in enumerate((98.0, 100.0, 102.0))])
    assert (found.source, found.hosts) == ("measured", 3)
    # Student's t of two degrees of freedom for k = 2 (4.53), a standard deviation of 2 %, and the mean's own error.
    assert found.value == pytest.approx(4.527 * 0.02 * np.sqrt(4 / 3), rel=1e-3)
    assert found.above == pytest.approx((1 + found.value) / 1.02 - 1)  # above the highest that was seen
    alike = find_node_spread([draw([100.0], host=f"n{n}") for n in range(4)])
    assert (alike.value, alike.above) == (0.0, 0.0)


def test_a_second_run_of_the_same_hosts_adds_no_freedom():
    once = [draw([watts], host=f"n{n}") for n, watts in enumerate((98.0, 100.0, 102.0))]
    again = [draw([watts], run="b", host=f"n{n}") for n, watts in enumerate((98.0, 100.0, 102.0))]
    assert find_node_spread([*once, *again]).value == pytest.approx(find_node_spread(once).value)


def test_runs_of_one_name_on_different_hosts_are_the_same_work():
    draws = [draw([w], run=f"r{n}", host=f"n{n}", name="burn") for n, w in enumerate((98.0, 100.0, 102.0))]
    assert find_node_spread(draws).hosts == 3


@every_row(
    ("draws", "value", "source"),
    [
        ([draw([100.0])], ASSUMED_SPREAD, "assumed"),
        ([draw([100.0], run="a"), draw([50.0], run="b", host="other")], ASSUMED_SPREAD, "assumed"),
        ([draw([100.0], host="x"), draw([99.0], host="y")], ASSUMED_SPREAD, "assumed"),
        ([draw([105.0], host="x"), draw([95.0], host="y")], 0.1, "two hosts"),
        ([draw([100.0], host="x"), draw([np.nan], host="y")], ASSUMED_SPREAD, "assumed"),
    ],
)
def test_too_few_hosts_are_assumed_to_differ(draws, value: float, source: str):
    found = find_node_spread(draws)
    assert (found.source, found.value, found.above) == (source, pytest.approx(value), pytest.approx(value))


def test_how_far_hosts_peak_together():
    x, y = draw([1.0, 9.0, 3.0], host="x"), draw([8.0, 1.0, 2.0], host="y")
    found = find_joint_peak([x, y])
    assert found is not None
    assert (found.peak_of_sum_w, found.sum_of_peaks_w) == (10.0, 17.0)
    assert found.ratio == pytest.approx(10 / 17)
    assert find_joint_peak([x]) is None
    assert find_joint_peak([x, draw([np.nan] * 2 + [1.0], host="z"), draw([1.0, np.nan, np.nan], host="q")]) is None
