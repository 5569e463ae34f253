"""What averages and slow readings hide: from finer runs, from what was published, or unknown."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.plan.rack.draws import draw

from joulelab.core.errors import ConfigError
from joulelab.plan.rack.hidden import PUBLISHED, hidden_in, resolution_s, widened


def spiky() -> np.ndarray:
    """Return 2 s readings at 1000 W with one of 1600 W."""
    watts = np.full(300, 1000.0)
    watts[137] = 1600.0
    return watts


def test_means_hide_what_the_finer_run_shows():
    """A peak of 2 s in a mean of 60 s: 600 W become 20 W, however the minutes fall."""
    found = hidden_in(60.0, averaged=True, others=[draw(spiky())])
    assert found.source == "measured"
    assert (found.low, found.high) == pytest.approx((1600 / 1020, 1600 / 1020))
    assert found.to_s == 2.0


def test_moments_hit_the_peak_or_miss_it():
    found = hidden_in(60.0, averaged=False, others=[draw(spiky())])
    assert (found.low, found.high) == pytest.approx((1.0, 1.6))


def test_coarse_runs_are_widened_by_finer_ones():
    coarse = draw(np.full(20, 1020.0), run="coarse", step_s=60.0, window_s=60.0)
    found = widened([coarse], finer=[draw(spiky())])
    assert found.value_w == 1020.0
    assert found.high_w == pytest.approx(1600.0)
    assert found.factor == pytest.approx(1600 / 1020)
    json.dumps(found.to_json())


def test_published_figures_stand_in_and_are_named():
    coarse = draw([1000.0] * 10, step_s=60.0, window_s=60.0)
    found = widened([coarse])
    assert (found.low_w, found.high_w) == pytest.approx((1010.0, 1030.0))
    assert found.hidden[0].source == "published"
    assert "MLPerf" in found.hidden[0].said
    moments = hidden_in(60.0, averaged=False, others=[])
    assert (moments.low, moments.high) == (1.0, PUBLISHED[1])
    assert "moments" in moments.said
    assert found.hidden[0].bound
    assert not moments.bound


def test_moments_apart_can_miss_any_peak_and_say_so():
    """Also means over less than their distance: what is between them is in none of them."""
    for window_s in (0.0, 1.0):
        found = widened([draw([1000.0] * 10, step_s=60.0, window_s=window_s)])
        assert found.low_w == 1000.0  # one of them may be the peak
        assert found.notes[1] == "moments 60 s apart can miss any peak in between: the factor for them is no bound"
    assert len(widened([draw([1000.0] * 10, step_s=60.0, window_s=60.0)]).notes) == 1
    assert len(widened([draw([1000.0] * 10, step_s=60.0)], finer=[draw(spiky())]).notes) == 1  # those are a bound


def test_fine_readings_are_not_widened_but_say_what_they_miss():
    found = widened([draw(spiky())])
    assert found.factor == 1.0
    assert found.hidden[0].source == "none"
    assert "shorter than 2 s" in found.notes[0]


def test_slower_than_anything_published_is_unknown():
    found = widened([draw([1000.0] * 10, step_s=300.0), draw(spiky()[:20], run="short")])
    assert found.high_w is None
    assert found.factor is None
    assert found.low_w == 1000.0
    assert "measure once" in found.hidden[0].said


def test_the_coarser_of_distance_and_window_counts():
    assert resolution_s(draw([1.0], step_s=2.0, window_s=10.0)) == 10.0
    assert resolution_s(draw([1.0], step_s=60.0, window_s=10.0)) == 60.0


def test_means_over_a_gap_tell_nothing():
    watts = spiky()
    watts[::20] = np.nan
    assert hidden_in(60.0, averaged=True, others=[draw(watts)]).source == "published"
    watts = spiky()
    watts[100:140:20] = np.nan
    assert hidden_in(60.0, averaged=True, others=[draw(watts)]).source == "measured"


def test_finer_runs_of_another_side_are_refused():
    with pytest.raises(ConfigError, match="sides"):
        widened([draw([1.0] * 10, step_s=60.0)], finer=[draw(spiky(), side="dc")])
