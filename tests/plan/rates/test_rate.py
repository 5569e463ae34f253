"""Rates over time: means are exact and add up; nothing is given beyond the ends or in a gap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import every_row

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.rate import Constant, Label, Steps, format_time, read_unit

LABEL = Label("average", "g/kWh", "grid")
DAY_S = 1_793_491_200.0  # 2026-11-01 00:00 UTC


def hourly(*values: float, label: Label = LABEL) -> Steps:
    return Steps(label, DAY_S + 3600.0 * np.arange(len(values)), np.array(values), DAY_S + 3600.0 * len(values))


def at(*hours: float) -> np.ndarray:
    return DAY_S + 3600.0 * np.array(hours)


def test_a_megagram_is_no_milligram() -> None:
    with pytest.raises(ConfigError, match="'Mg/MWh' is not the unit of a rate"):
        read_unit("Mg/MWh")


def test_means_weigh_by_time_and_a_part_of_a_step_is_its_value_to_the_last_digit() -> None:
    np.testing.assert_allclose(hourly(100.0, 200.0, 400.0).means(at(0.5, 2.25)), [(50 + 200 + 100) / 1.75])
    means = hourly(100.1, 0.3, 77.7).means(at(0, 1 / 3, 0.7, 1, 1.9, 2.1, 3))
    np.testing.assert_array_equal(means[[0, 1, 2, 3, 5]], [100.1] * 3 + [0.3, 77.7])


def test_a_moment_has_the_value_that_begins_then() -> None:
    steps = hourly(1.0, 2.0, 4.0)
    np.testing.assert_array_equal(steps.means(at(0, 1, 1, 2)), [1, 2, 2])
    np.testing.assert_array_equal(steps.means(at(0, 3, 3)), [7 / 3, 4])
    assert steps.means(at(1)).size == steps.means(at()).size == 0
    np.testing.assert_array_equal(steps.changes(*at(0, 2)), at(1))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1000), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=2, max_size=12),
)
def test_means_add_up_to_the_mean_of_the_whole(values: list[float], shares: list[float]) -> None:
    steps = hourly(*values)
    edges = at(*(len(values) * share for share in sorted(shares)))
    if edges[-1] - edges[0] > 1:
        whole = steps.means(edges[[0, -1]])[0]
        assert np.average(steps.means(edges), weights=np.diff(edges)) == pytest.approx(whole, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("edges", [(-0.5, 1), (2, 3.5), (5, 6)])
def test_a_series_is_never_continued_beyond_its_ends(edges: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"covers 2026-11-01 00:00 UTC to 2026-11-01 03:00 UTC only"):
        hourly(1.0, 2.0, 3.0).means(at(*edges))
    np.testing.assert_allclose(hourly(1.0, 2.0).means(np.array([DAY_S - 2e-7, DAY_S + 7200 + 5e-7])), [1.5])


def test_a_gap_is_refused_where_it_is_needed_and_named() -> None:
    steps = hourly(1.0, math.nan, math.nan, 4.0, math.nan, 6.0)
    assert steps.gaps() == [tuple(at(1, 3)), tuple(at(4, 5))]
    np.testing.assert_array_equal(steps.means(at(3, 3.5, 4)), [4, 4])
    with pytest.raises(ConfigError, match="2026-11-01 01:00 UTC to 2026-11-01 03:00 UTC") as caught:
        steps.means(at(0, 1.1))
    assert "04:00" not in str(caught.value)
    with pytest.raises(ConfigError, match="gap"):
        steps.means(at(1, 1))


@every_row(
    ("starts", "values", "end", "words"),
    [
        ([0, 10, 10], [1, 2, 3], 20, "do not ascend"),
        ([0, 20, 10], [1, 2, 3], 30, "do not ascend"),
        ([0, 10], [1, 2], 10, "do not ascend"),
        ([0, 10], [1], 20, "one value for each time"),
        ([], [], 20, "one value for each time"),
        ([0, 10], [1, -2], 20, "negative at 1970-01-01 00:00:10 UTC: -2 g/kWh"),
        ([0, 10], [1, 1e12], 20, "is not a rate"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(starts: list[float], values: list[float], end: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Steps(LABEL, np.array(starts), np.array(values), end)


def test_prices_may_be_negative_and_a_constant_is_known_at_all_times() -> None:
    steps = hourly(0.1, -0.2, label=Label("price", "EUR/kWh", "spot"))
    np.testing.assert_allclose(steps.means(at(0, 2)), [-0.05])
    np.testing.assert_array_equal(Constant(380.0, LABEL).means(np.array([-1e9, 0, 5e9])), [380, 380])
    assert Constant(380.0, LABEL).changes(0, 1e9).size == 0
    with pytest.raises(ConfigError, match="ascend"):
        Constant(380.0, LABEL).means(np.array([2.0, 1.0]))


@every_row(
    ("text", "factor", "unit"),
    [
        ("g/kWh", 1, "g/kWh"), ("gCO2eq/kWh", 1, "g/kWh"), ("kg CO₂e/MWh", 1, "g/kWh"), ("lb/MWh", 0.45359237, "g/kWh"),
        ("t/GWh", 1, "g/kWh"), ("g/MJ", 3.6, "g/kWh"), ("EUR", 1, "EUR/kWh"), ("€/MWh", 1e-3, "EUR/kWh"),
        ("ct", 0.01, "EUR/kWh"), ("p/kWh", 0.01, "GBP/kWh"), ("CHF/kWh", 1, "CHF/kWh"),
    ],
)  # fmt: skip
def test_units_are_converted(text: str, factor: float, unit: str) -> None:
    assert read_unit(text) == (pytest.approx(factor), unit)


def test_no_text_of_a_label_moves_a_cursor_and_times_have_seconds_if_needed() -> None:
    label = Label("average", "g/kWh", "a\x1b[31mred", zone="D\nE", source="\x07", notes=("b\x1b[2J",))
    assert all(text.isprintable() for text in (label.name, label.zone, label.source, *label.notes))
    assert (format_time(DAY_S), format_time(DAY_S + 1)) == ("2026-11-01 00:00 UTC", "2026-11-01 00:00:01 UTC")
    assert format_time(1e30) == "1e+30 s since 1970"
