"""Readings: what was not read and stamps that do not advance are left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulelab.analysis.readings import Readings, find_usual_step


def of(t, values):
    t0 = np.array(t, dtype=np.int64)
    return Readings.from_rows(t0, t0 + 5, np.array(values, dtype=np.float64))


def test_a_failed_reading_is_no_number():
    r = of([10, 20, 30, 40], [1.0, np.nan, np.inf, 4.0])
    assert list(r.t0_ns) == [10, 40]
    assert list(r.t1_ns) == [15, 45]
    assert list(r.value) == [1.0, 4.0]
    assert len(of([10], [np.nan])) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(-10, 10) | st.just(np.nan)), max_size=40))
def test_time_advances_and_no_value_is_made_up(rows):
    r = of([t for t, _ in rows], [v for _, v in rows])
    assert (np.diff(r.t0_ns) > 0).all()
    assert np.isfinite(r.value).all()
    assert set(zip(r.t0_ns.tolist(), r.value.tolist(), strict=True)) <= set(rows)
    kept = [t for t, v in rows if np.isfinite(v)]
    assert r.t0_ns.size == 0 if not kept else r.t0_ns[-1] == max(kept)


def test_slices_hold_both_ends():
    r = of([10, 20, 30, 40], [1, 2, 3, 4])
    assert r.between(20, 30) == slice(1, 3)
    assert r.between(21, 29) == slice(2, 2)
    assert r.between(0, 99) == slice(0, 4)
    assert r.around(30, 1, 1) == slice(2, 4)
    assert r.around(29, 1, 1) == slice(1, 3)
    assert r.around(5, 3, 2) == slice(0, 2)
    assert r.around(99, 2, 2) == slice(2, 4)


@pytest.mark.parametrize(
    ("steps", "usual"),
    [
        ([0.1] * 100 + [0.002] * 400, 0.1),  # edges are polled quickly: most readings, little time
        ([0.1] * 40 + [6.0], 0.1),  # a gap that is longer than all the rest
        ([0.1] * 40 + [9.0, 60.0], 0.1),
        ([60.0, 60.0], 60.0),
        ([5.0], 5.0),
        ([1.0, 7.0], 7.0),  # of two nobody knows
        ([1.0, 1.0, 2.0, 1.0], 1.0),
    ],
)
def test_the_usual_step_is_that_of_most_of_the_time_but_no_gap(steps, usual):
    assert find_usual_step(np.array(steps)) == usual
