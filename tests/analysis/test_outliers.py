from __future__ import annotations

import math

import pytest
from tests.analysis.simulated import false_marks, found_marks

from joulelab.analysis.cell_comparison import make_sample
from joulelab.analysis.statistics import (
    FEWEST_TO_MARK,
    OUTLIER_LEVEL,
    OUTLIER_LIMITS,
    OUTLIER_LIMITS_OF_MANY,
    find_outlier_limit,
    find_outliers,
)


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


@pytest.mark.parametrize(
    "values", [[], [1.0], [1.0, 9.0], [1.0, 1.0, 99.0], [1.0, 2.0, math.nan, 99.0], [1.0, 1.1, 1.2, math.inf]]
)
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
