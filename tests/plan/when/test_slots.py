"""Slots and times as people write them: zones, daylight saving, ends that are not full quarters."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from tests.plan.when.problems import MONDAY_S, daily, job

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.steps import Steps
from joulelab.plan.when.baselines import Terms, now
from joulelab.plan.when.slots import edges_between, moment, shown, slots_of


def test_slots_begin_at_full_quarters_and_end_with_the_deadline() -> None:
    edges = edges_between(MONDAY_S + 61.0, MONDAY_S + 3_590.0)
    assert (edges - MONDAY_S).tolist() == [120.0, 900.0, 1800.0, 2700.0, 3540.0]
    assert (edges_between(MONDAY_S, MONDAY_S + 1800.0) - MONDAY_S).tolist() == [0.0, 900.0, 1800.0]
    found = slots_of(daily(1), MONDAY_S, MONDAY_S + 86_400.0)
    assert len(found.values) == 96
    assert np.allclose(found.values[:4], 350.0)


@pytest.mark.parametrize(
    ("since", "until", "slot", "said"),
    [
        (0.0, 0.0, 900.0, "not after the start"),
        (0.0, 30 * 86_400.0 * 4, 900.0, "too far away"),
        (0.0, 86_400.0, 90.0, "whole minutes"),
    ],
)
def test_slots_that_cannot_be_are_refused(since: float, until: float, slot: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        edges_between(MONDAY_S + since, MONDAY_S + until, slot)


def test_a_series_that_ends_before_the_deadline_is_refused() -> None:
    with pytest.raises(ConfigError, match="is known from"):
        slots_of(daily(1), MONDAY_S, MONDAY_S + 90_000.0)


def test_slots_are_cut_where_the_rate_changes() -> None:
    """At seven past each hour; where it could change and does not, there is no slot more."""
    starts = MONDAY_S - 3180.0 + 3600.0 * np.arange(6)
    rate = Steps(Label("average", "g/kWh", "x"), starts, np.array([1.0, 2.0, 2.0, 3.0, 3.0, 4.0]), starts[-1] + 3600.0)
    found = slots_of(rate, MONDAY_S, MONDAY_S + 4 * 3600.0, 3600.0)
    assert ((found.edges_s - MONDAY_S) / 60).tolist() == [0.0, 7.0, 60.0, 120.0, 127.0, 180.0, 240.0]
    assert found.values.tolist() == [1.0, 2.0, 2.0, 2.0, 3.0, 3.0]


def test_what_a_job_costs_does_not_depend_on_the_length_of_slots() -> None:
    one = job(duration_s=5000.0)
    at = [
        slots_of(daily(1), MONDAY_S + 1800.0, MONDAY_S + 72_000.0, length) for length in (60.0, 900.0, 3600.0, 7200.0)
    ]
    costs = [now(one, each, Terms()).cost.value for each in at]
    assert costs == pytest.approx([costs[0]] * 4)


def test_a_rate_that_changes_too_often_is_refused() -> None:
    values = 100.0 + np.arange(2 * 1440.0) % 7
    rate = Steps(Label("average", "g/kWh", "x"), MONDAY_S + 30.0 + 60.0 * np.arange(2880), values, MONDAY_S + 172_830.0)
    with pytest.raises(ConfigError, match=r"x changes so often that there are 4\d\d\d slots, at most 3000"):
        slots_of(rate, MONDAY_S + 60.0, MONDAY_S + 36 * 3600.0, 60.0)


def test_times_are_read_in_the_zone() -> None:
    utc = dt.datetime(2026, 11, 20, 7, tzinfo=dt.UTC).timestamp()
    assert moment("2026-11-20T08:00", 0.0, "Europe/Berlin") == utc
    assert moment("2026-11-20 07:00+00:00", 0.0, "Europe/Berlin") == utc
    assert moment("48h", 100.0) == 100.0 + 48 * 3600
    assert moment("3d", 100.0) == 100.0 + 3 * 86_400
    assert shown(utc, "Europe/Berlin") == "Fri 2026-11-20 08:00"


@pytest.mark.parametrize(("text", "said"), [("2026-10-25T02:30", "twice"), ("2026-03-29T02:30", "never")])
def test_times_that_clocks_skip_or_repeat_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        moment(text, 0.0, "Europe/Berlin")
    assert moment(f"{text}+01:00", 0.0, "Europe/Berlin") > 0


def test_what_is_no_time_or_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no time"):
        moment("soon", 0.0)
    with pytest.raises(ConfigError, match="no time zone"):
        moment("2026-11-20T08:00", 0.0, "Europe/Nowhere")
