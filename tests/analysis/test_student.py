"""Hold the distributions to published tables and to identities that need no other library."""

from __future__ import annotations

import math

import pytest

from joulelab.analysis.statistics import f_tail, t_975, t_quantile, t_tail

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


@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_are_those_of_the_printed_tables(freedom: float) -> None:
    found = [t_quantile(level, freedom) for level in (0.05, 0.01, 0.001)]
    assert found == pytest.approx(TABLE[freedom], rel=2e-4)


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 2.7, 3.99, 8.6, 21.5, 60.2, 199.0, 201.0, 900.0])
@pytest.mark.parametrize("level", [0.4, 0.05, 0.05 / 28, 1e-5])
def test_a_quantile_is_passed_with_its_probability(freedom: float, level: float) -> None:
    assert t_tail(t_quantile(level, freedom), freedom) == pytest.approx(level, rel=2e-3 if level < 0.01 else 1e-5)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.5, 12.0])
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
