"""Rates as steps: means are exact and add up, nothing is told beyond the ends or in a gap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.constant import Constant
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.steps import Steps, shown

LABEL = Label("average", "g/kWh", "grid")
DAY_S = 1_793_491_200.0  # 2026-11-01 00:00 UTC


def hourly(*values: float, label: Label = LABEL, u: list[float] | None = None) -> Steps:
    starts = DAY_S + 3600.0 * np.arange(len(values))
    return Steps(label, starts, np.array(values), DAY_S + 3600.0 * len(values), None if u is None else np.array(u))


def at(*hours: float) -> np.ndarray:
    return DAY_S + 3600.0 * np.array(hours)


def test_means_weigh_by_time() -> None:
    steps = hourly(100.0, 200.0, 400.0)
    np.testing.assert_allclose(steps.means(at(0, 1, 3)), [100, 300])
    np.testing.assert_allclose(steps.means(at(0.5, 2.25)), [(0.5 * 100 + 200 + 0.25 * 400) / 1.75])


def test_a_part_of_a_step_is_its_value_to_the_last_digit() -> None:
    steps = hourly(100.1, 0.3, 77.7)
    np.testing.assert_array_equal(
        steps.means(at(0, 1 / 3, 0.7, 1, 1.9, 2.1, 3))[[0, 1, 2, 3, 5]], [100.1] * 3 + [0.3, 77.7]
    )


def test_a_moment_has_the_value_that_begins_then() -> None:
    steps = hourly(1.0, 2.0, 4.0)
    np.testing.assert_array_equal(steps.means(at(0, 0)), [1])
    np.testing.assert_array_equal(steps.means(at(0, 1, 1, 2)), [1, 2, 2])
    np.testing.assert_array_equal(steps.means(at(0, 3, 3)), [7 / 3, 4])
    assert steps.means(at(1)).size == steps.means(at()).size == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1000), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=2, max_size=12),
)
def test_means_add_up_to_the_mean_of_the_whole(values: list[float], shares: list[float]) -> None:
    steps = hourly(*values)
    edges = at(*(len(values) * share for share in sorted(shares)))
    whole = steps.means(edges[[0, -1]])[0]
    if edges[-1] - edges[0] > 1:
        assert np.average(steps.means(edges), weights=np.diff(edges)) == pytest.approx(whole, rel=1e-9, abs=1e-9)
    exact = np.array(
        [steps.values[min(int((t - DAY_S) // 3600), len(values) - 1)] for t in (edges[:-1] + edges[1:]) / 2]
    )
    inside = np.floor((edges[:-1] - DAY_S) / 3600) == np.floor((edges[1:] - DAY_S) / 3600)
    np.testing.assert_array_equal(steps.means(edges)[inside], exact[inside])


def test_changes_lie_strictly_between() -> None:
    steps = hourly(1.0, 2.0, 3.0)
    np.testing.assert_array_equal(steps.changes(*at(0, 2)), at(1))
    np.testing.assert_array_equal(steps.changes(*at(-1, 9)), at(0, 1, 2, 3))


@pytest.mark.parametrize("edges", [(-0.5, 1), (2, 3.5), (5, 6)])
def test_it_is_never_continued_beyond_its_ends(edges: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"known from 2026-11-01 00:00 UTC to 2026-11-01 03:00 UTC only"):
        hourly(1.0, 2.0, 3.0).means(at(*edges))


def test_rounding_of_times_at_the_ends_is_no_error() -> None:
    steps = hourly(1.0, 2.0)
    np.testing.assert_allclose(steps.means(np.array([DAY_S - 2e-7, DAY_S + 7200 + 5e-7])), [1.5])


def test_a_gap_is_refused_where_it_is_used_and_named() -> None:
    steps = hourly(1.0, math.nan, math.nan, 4.0, math.nan, 6.0)
    assert steps.gaps() == [tuple(at(1, 3)), tuple(at(4, 5))]
    np.testing.assert_array_equal(steps.means(at(0, 1)), [1])
    np.testing.assert_array_equal(steps.means(at(3, 3.5, 4)), [4, 4])
    with pytest.raises(ConfigError, match="2026-11-01 01:00 UTC to 2026-11-01 03:00 UTC") as caught:
        steps.means(at(0, 1.1))
    assert "04:00" not in str(caught.value)
    with pytest.raises(ConfigError, match="gap"):
        steps.means(at(1, 1))


def test_uncertainties_do_not_shrink_over_time() -> None:
    steps = hourly(100.0, 100.0, u=[10.0, 20.0])
    np.testing.assert_allclose(steps.u_means(at(0, 2)), [15])
    assert hourly(1.0).u_means(at(0, 1)) is None
    with pytest.raises(ConfigError, match="gap"):
        hourly(math.nan, 2.0, u=[1.0, 1.0]).u_means(at(0, 1))


def test_an_uncertainty_that_is_not_stated_is_told_with_its_time() -> None:
    steps = hourly(1.0, 2.0, u=[1.0, math.nan])
    np.testing.assert_array_equal(steps.u_means(at(0, 1)), [1.0])
    with pytest.raises(ConfigError, match=r"does not state the uncertainty.*2026-11-01 01:00 UTC") as caught:
        steps.u_means(at(0, 2))
    assert "gap" not in str(caught.value)
    with pytest.raises(ConfigError, match="uncertainty below 0 at 2026-11-01 01:00 UTC"):
        hourly(1.0, 2.0, u=[1.0, -1.0])


@pytest.mark.parametrize(
    ("starts", "values", "end", "said"),
    [
        ([0, 10, 10], [1, 2, 3], 20, "does not go forward"),
        ([0, 20, 10], [1, 2, 3], 30, "does not go forward"),
        ([0, 10], [1, 2], 10, "does not go forward"),
        ([0, 10], [1], 20, "not one for each time"),
        ([], [], 20, "no values"),
        ([0, 10], [1, -2], 20, "negative at 1970-01-01 00:00:10 UTC: -2 g/kWh"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(starts: list[float], values: list[float], end: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Steps(LABEL, np.array(starts), np.array(values), end)


def test_prices_may_be_negative() -> None:
    steps = hourly(0.1, -0.2, label=Label("price", "EUR/kWh", "spot"))
    np.testing.assert_allclose(steps.means(at(0, 2)), [-0.05])


def test_a_constant_is_known_at_all_times() -> None:
    rate = Constant(380.0, LABEL)
    np.testing.assert_array_equal(rate.means(np.array([-1e9, 0, 5e9])), [380, 380])
    assert rate.changes(0, 1e9).size == 0
    with pytest.raises(ConfigError, match="ascend"):
        rate.means(np.array([2.0, 1.0]))


def test_times_are_shown_with_seconds_only_where_there_are_any() -> None:
    assert shown(DAY_S) == "2026-11-01 00:00 UTC"
    assert shown(DAY_S + 1) == "2026-11-01 00:00:01 UTC"
    assert shown(1e30) == "1e+30 s since 1970"


def test_no_text_of_a_label_moves_a_cursor() -> None:
    label = Label("average", "g/kWh", "a\x1b[31mred", zone="D\nE", source="\x07", notes=("b\x1b[2J",))
    told = [label.name, label.zone, label.source, *label.notes]
    assert all(text.isprintable() for text in told), told
    assert "red" in label.name
