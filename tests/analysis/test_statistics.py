"""Hold distributions to published tables and identities; mark outliers as often as promised."""

from __future__ import annotations

import math

import pytest
from tests.analysis.simulated import false_marks, found_marks
from tests.rows import every_row

from joulelab.analysis.cell_comparison import make_sample
from joulelab.analysis.statistics import (
    FEWEST_TO_MARK,
    OUTLIER_LEVEL,
    OUTLIER_LIMITS,
    OUTLIER_LIMITS_OF_MANY,
    f_tail,
    find_outlier_limit,
    find_outliers,
    t_975,
    t_quantile,
    t_tail,
)

# Two-sided levels of 5, 1 and 0.1 %, as every table of Student's t prints them.
TABLE = {
    1: (12.706, 63.657, 636.62),
    2: (4.303, 9.925, 31.599),
    4: (2.776, 4.604, 8.610),
    10: (2.228, 3.169, 4.587),
    30: (2.042, 2.750, 3.646),
    120: (1.980, 2.617, 3.373),
    math.inf: (1.960, 2.576, 3.291),
}


@every_row("freedom", TABLE)
def test_quantiles_are_those_of_the_printed_tables(freedom: float) -> None:
    found = [t_quantile(level, freedom) for level in (0.05, 0.01, 0.001)]
    assert found == pytest.approx(TABLE[freedom], rel=2e-4)


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 2.7, 3.99, 8.6, 21.5, 60.2, 199.0, 201.0, 900.0])
@pytest.mark.parametrize("level", [0.4, 0.05, 0.05 / 28, 1e-5])
def test_a_quantile_is_passed_with_its_probability(freedom: float, level: float) -> None:
    assert t_tail(t_quantile(level, freedom), freedom) == pytest.approx(level, rel=2e-3 if level < 0.01 else 1e-5)


@every_row("t", [0.0, 0.3, 1.0, 2.5, 12.0])
def test_tails_of_one_two_and_no_end_of_degrees_have_closed_forms(t: float) -> None:
    assert t_tail(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-9)
    assert t_tail(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-9)
    assert t_tail(-t, math.inf) == math.erfc(t / math.sqrt(2))


def test_where_the_series_ends_the_normal_deviate_goes_on() -> None:
    for t in (0.5, 1.96, 3.0):
        assert t_tail(t, 200.001) == pytest.approx(f_tail(t * t, 1, 200.001), rel=1e-4)


def test_fractions_lie_between_and_whole_numbers_agree_with_the_table_in_use() -> None:
    for freedom in (1, 2, 3, 7, 11, 12, 40):
        assert t_quantile(0.05, freedom) == pytest.approx(t_975(freedom), rel=3e-6)
        assert t_quantile(0.05, freedom) > t_quantile(0.05, freedom + 0.5) > t_quantile(0.05, freedom + 1)


def test_less_than_one_degree_of_freedom_is_refused() -> None:
    with pytest.raises(ValueError, match="two repeats"):
        t_quantile(0.05, 0.9)


def test_a_repeat_far_from_the_others_is_marked_and_kept() -> None:
    values = [100.0, 101.0, 99.5, 100.4, 140.0, 99.8]
    assert find_outliers(values) == (4,)
    sample = make_sample(values)
    assert sample.outliers == (4,)
    assert sample.n == 6
    assert sample.mean == pytest.approx(sum(values) / 6)


def test_two_of_six_do_not_hide_each_other() -> None:
    assert find_outliers([100.0, 100.5, 99.6, 100.2, 160.0, 170.0]) == (4, 5)


def test_values_that_are_all_the_same_but_one() -> None:
    assert find_outliers([5.0] * 4 + [6.0]) == (4,)
    assert find_outliers([5.0] * 5) == ()
    assert find_outliers([0.0] * 5) == ()


@every_row("values", [[], [1.0], [1.0, 9.0], [1.0, 1.0, 99.0], [1.0, 2.0, math.nan, 99.0], [1.0, 1.1, 1.2, math.inf]])
def test_too_few_or_unusable_values_mark_nothing(values: list[float]) -> None:
    assert find_outliers(values) == ()


def test_it_is_said_when_there_are_too_few_to_see_one() -> None:
    assert not make_sample([1.0] * (FEWEST_TO_MARK - 1)).outliers_seen
    assert make_sample([1.0] * FEWEST_TO_MARK).outliers_seen


def test_the_limits_go_on_beyond_the_table() -> None:
    last = FEWEST_TO_MARK + len(OUTLIER_LIMITS) - 1
    assert last == 20
    assert (
        find_outlier_limit(last)
        == OUTLIER_LIMITS[-1]
        > find_outlier_limit(21)
        == OUTLIER_LIMITS_OF_MANY[0][1]
        > find_outlier_limit(31)
        > find_outlier_limit(100)
    )
    assert find_outlier_limit(5000) == find_outlier_limit(100)


@pytest.mark.parametrize("n", [4, 5, 10, 20])
def test_of_normal_repeats_so_few_are_marked_by_chance(n: int) -> None:
    assert false_marks(n, 4000) == pytest.approx(OUTLIER_LEVEL, abs=0.009)


@pytest.mark.campaign
@pytest.mark.parametrize("n", range(4, 21))
def test_of_normal_repeats_so_few_are_marked_by_chance_at_length(n: int) -> None:
    assert false_marks(n, 60_000) == pytest.approx(OUTLIER_LEVEL, abs=0.0025)


def test_what_is_ten_deviations_off_is_found_from_six_repeats_on() -> None:
    assert found_marks(3, 1000) == 0
    assert 0.2 < found_marks(4, 1000) < 0.45
    assert found_marks(6, 1000) > 0.5
    assert found_marks(10, 1000) > 0.85
