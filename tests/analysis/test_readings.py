"""Readings: rows that do not count are left out; percentiles by time, coverage by pauses, distributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.virtual import ns, readings
from tests.rows import every_row

from joulelab.analysis.readings import (
    MOST_SORTED,
    Readings,
    compute_coverage,
    compute_percentiles,
    describe_power,
    find_refresh_s,
    find_usual_step,
    make_distribution,
)


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


def hold_values(refresh_s, values, step_s=1.0, phase_s=0.3):
    """Return readings every step of a meter that shows the next of the values every refresh."""
    t = np.arange(0.0, refresh_s * len(values) - phase_s, step_s)
    return readings(t, np.asarray(values, dtype=float)[((t + phase_s) / refresh_s).astype(int)])


def draw_values(count, level=500.0):
    return np.rint(np.random.default_rng(5).normal(level, 2.0, count))


@pytest.mark.parametrize("step_s", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("steps", [2.0, 2.5, 5.0, 10.0, 30.0])
def test_a_regular_staircase_shows_the_refresh(steps, step_s):
    """Some values are equal to the one before: rounded to 1 W, a level stays for two or three refreshes."""
    found = find_refresh_s(hold_values(steps * step_s, draw_values(40), step_s), step_s)
    assert found == pytest.approx(steps * step_s, rel=0.05)


def test_a_long_refresh_shows_by_four_new_values_a_short_one_by_eight():
    for refresh_s, enough in ((10.0, 4), (3.0, 8)):
        values = np.arange(enough + 1) ** 2.0  # the first is no change
        assert find_refresh_s(hold_values(refresh_s, values), 1.0) == pytest.approx(refresh_s)
        assert find_refresh_s(hold_values(refresh_s, values[:-1]), 1.0) is None


def test_two_levels_of_a_load_that_a_long_refresh_meets_at_random_show_it():
    levels = np.random.default_rng(2).integers(0, 2, 60) * 300.0 + 200
    assert find_refresh_s(hold_values(10.0, levels), 1.0) == pytest.approx(10.0, rel=0.02)


SECONDS = np.arange(300)


@pytest.mark.parametrize(
    "values",
    [
        np.full(300, 500.0),
        draw_values(300),  # most are new, some stay
        np.where(SECONDS % 20 < 10, 800.0, 200.0),
        np.where(SECONDS % 7 < 2, 288.0, 272.0),
        np.rint(200 + SECONDS / 5),  # a ramp, rounded: a new value every 5 s
        np.rint(200 + np.abs(SECONDS - 150) / 5),
        np.repeat(draw_values(60), np.random.default_rng(3).integers(1, 12, 60))[:300],  # a load that changes at random
        np.repeat(draw_values(100), 3)[:300] + SECONDS % 2,
    ],
    ids=["constant", "noise", "square", "uneven-square", "ramp", "triangle", "random-holds", "always-new"],
)
def test_a_meter_with_new_values_has_no_slow_refresh(values):
    assert find_refresh_s(readings(SECONDS[: len(values)], values), 1.0) is None


@every_row(
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


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(1, 50)), min_size=1, max_size=30), st.integers(1, 99))
def test_a_weight_is_as_good_as_that_many_readings(rows, percent):
    value, weight = np.array([v for v, _ in rows]), np.array([float(w) for _, w in rows])
    (found,) = compute_percentiles(value, weight, (percent,))
    each = np.sort(np.repeat(value, weight.astype(int)))
    # The smallest value with at least that share of the readings at or below it.
    share = np.arange(1, each.size + 1) / each.size
    assert found == each[np.flatnonzero(share >= percent / 100 - 1e-12)[0]]


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=50))
def test_percentiles_rise_and_stay_inside(values):
    found = compute_percentiles(np.array(values), np.ones(len(values)), (0, 5, 50, 95, 99, 100))
    assert found == sorted(found)
    assert found[0] == min(values)
    assert found[-1] == max(values)


@pytest.mark.parametrize("spread", [0.0, 1e-9, 300.0])
def test_percentiles_of_many_are_those_of_all_of_them_in_order(spread):
    rng = np.random.default_rng(3)
    value = 100 + spread * np.round(rng.gamma(0.5, 1.0, MOST_SORTED + 1), 2)  # many are equal, and most are low
    weight = rng.integers(1, 9, value.size).astype(float)
    percent = (0.0, 5.0, 50.0, 95.0, 99.0, 99.99, 100.0)
    order = np.argsort(value, kind="stable")
    reached = np.cumsum(weight[order])
    expected = [value[order][np.searchsorted(reached, p / 100 * reached[-1])] for p in percent]
    assert compute_percentiles(value, weight, percent) == expected


def test_readings_that_were_polled_quickly_weigh_little():
    t = np.concatenate((np.arange(0, 0.4, 0.002), np.arange(0.4, 10, 0.1)))
    watts = np.where(t < 0.4, 100.0, 500.0)  # 200 readings of 96 ms together, 96 readings of 9.6 s
    found = describe_power(readings(t, watts), ns(0), ns(10), window_s=0.1, step_s=0.1)
    assert (found.median, found.p5, found.minimum, found.maximum) == (500.0, 500.0, 100.0, 500.0)
    assert found.window_s == 0.1


def test_a_reading_before_a_gap_does_not_stand_for_the_gap():
    t = np.concatenate((np.arange(0, 3, 0.1), np.arange(9, 10, 0.1)))
    watts = np.where(t < 2.95, 300.0, 100.0)  # the last one before the gap is 100 W
    watts[29] = 100.0
    found = describe_power(readings(t, watts), ns(0), ns(10), window_s=None, step_s=0.1)
    assert found.median == 300.0
    assert found.p5 == 100.0


def test_the_last_reading_holds_to_the_end_at_most_three_steps():
    r = readings([0.0, 1.0, 2.0], [1.0, 1.0, 9.0])
    assert describe_power(r, ns(-1), ns(100), window_s=None, step_s=1.0).median == 9.0
    assert describe_power(r, ns(-1), ns(3), window_s=None, step_s=1.0).median == 1.0


def test_no_reading_no_statistics():
    assert describe_power(readings([0.0], [1.0]), ns(5), ns(6), window_s=None, step_s=1.0) is None


@every_row(
    ("seconds", "share"),
    [
        (np.arange(0, 10, 0.1), 1.0),
        (np.concatenate((np.arange(0, 4, 0.1), np.arange(6, 10, 0.1))), 0.79),
        (np.arange(0, 5, 0.1), 0.49),
        (np.arange(5, 10, 0.1), 0.5),
        ([], 0.0),
    ],
)
def test_coverage_is_the_share_without_long_pauses(seconds, share):
    assert compute_coverage(readings(seconds, np.ones(len(seconds))), ns(0), ns(10), 0.1) == pytest.approx(
        share, abs=1e-4
    )


def test_an_interval_of_no_length_is_covered():
    assert compute_coverage(readings([], []), ns(3), ns(3), 0.1) == 1.0


def test_shares_of_time_and_percentiles() -> None:
    mean = np.array([100.0] * 90 + [300.0] * 10)
    high = mean + 5
    high[3] = 700.0
    found = make_distribution(mean, high, 0.1)
    assert found is not None
    assert sum(found.shares) == pytest.approx(1.0)
    assert (found.shares[0], found.shares[-1]) == pytest.approx((0.9, 0.1))
    assert (found.edges[0], found.edges[-1]) == (100.0, 300.0)
    assert len(found.edges) == len(found.shares) + 1
    assert (found.median, found.p95) == (100.0, 300.0)
    assert found.maximum == 700.0  # no peak is lost in a mean


def test_what_was_not_read_counts_for_nothing() -> None:
    mean = np.array([np.nan, 200.0, np.nan, 200.0])
    found = make_distribution(mean, np.full(4, np.nan), 1.0)
    assert found is not None
    assert found.shares == (1.0,)
    assert found.edges[0] < 200.0 < found.edges[-1]
    assert found.maximum == 200.0
    assert make_distribution(np.full(3, np.nan), np.full(3, 5.0), 1.0) is None
