"""Plans that are kept, and what comes of them: the same again when read, held against another series."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.planner.shifting.problems import MONDAY_S, daily, job, slots

from joulelab.core.errors import ConfigError
from joulelab.planner.shifting.baselines import Terms, ways_of
from joulelab.planner.shifting.blocks import Restart
from joulelab.planner.shifting.errors import Scatter, scatter_of
from joulelab.planner.shifting.kept_plan import Plan, find_plan, keep, new_id, read_plan, with_review
from joulelab.planner.shifting.review import review

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

OVER_S = MONDAY_S + 7 * 86_400.0
TERMS = Terms(Restart(300.0, 1000.0), waits=False, pue=1.1)


def plan(name: str = "pauses-off", terms: Terms = TERMS) -> Plan:
    at = slots(daily(3, issued_utc_s=MONDAY_S), 60.0)
    one = job(gpus=8, gpu_w=700.0, rated_w=10_200.0)
    return Plan(new_id(MONDAY_S), "2026-11-16T00:00:00+00:00", one, at, terms, ways_of(one, at, terms), name)


def test_a_plan_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    made = replace(plan(), scatter=Scatter((0.1, 0.2)))
    path = keep(made, tmp_path / "plans")
    again = read_plan(path)
    assert again.to_json() == made.to_json()
    assert again.job == made.job
    assert [p.name for p in path.parent.iterdir()] == [f"{made.id}.json"]
    assert find_plan(made.id[:15], path.parent) == find_plan("last", path.parent) == find_plan(str(path)) == path


def test_a_forecast_that_came_true_keeps_its_promise() -> None:
    made = plan()
    found = review(made, daily(3), now_s=OVER_S)
    for row in found.rows:
        assert row.actual.value == pytest.approx(row.forecast.value, rel=1e-9)
        assert row.known is not None
        assert row.known.value == pytest.approx(row.actual.value, rel=1e-6)
        assert row.actual.expanded is None  # the power was given, without an accuracy
    assert found.error_rms == pytest.approx(0.0, abs=1e-9)


def test_nothing_beats_what_is_known_afterwards() -> None:
    made = plan()
    found = review(made, daily(3, noise=50.0, seed=4), now_s=OVER_S)
    for row in found.rows:
        assert row.known is not None
        assert row.known.value <= row.actual.value * (1 + 1e-6)
    chosen = found.row("pauses-off")
    assert chosen.known is not None
    assert chosen.known.value < 0.99 * chosen.actual.value
    forecast, actual, known = found.gain("pauses-off")
    assert forecast is not None
    assert actual is not None
    assert known is not None
    assert known > actual
    assert 30.0 < found.error_rms < 70.0
    rated = found.row("now").rated
    assert rated == pytest.approx(found.row("now").actual.value * 10_200 / 7000, rel=1e-6)


def test_a_review_is_kept_in_the_plan(tmp_path: Path) -> None:
    made = plan()
    told = review(made, daily(3, noise=50.0), now_s=OVER_S).to_json()
    path = keep(with_review(made, told), tmp_path)
    again = read_plan(path)
    assert json.loads(json.dumps(told)) == again.reviews[0]
    assert len(again.reviews[0]["actual_values_per_kwh"]) == len(made.slots.values)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ({"kind": "marginal"}, "never mixed"),
        ({"kind": "price", "unit": "EUR/kWh"}, "never mixed"),
        ({"zone": "FR"}, "made for zone DE"),
        ({"covers": "direct"}, "made for covers lifecycle"),
    ],
)
def test_a_series_of_something_else_is_refused(label: dict[str, str], said: str) -> None:
    at = slots(daily(3, zone="DE", covers="lifecycle"), 60.0)
    made = Plan("a", "", job(), at, Terms(), ways_of(job(), at), "start")
    with pytest.raises(ConfigError, match=said):
        review(made, daily(3, **label), now_s=OVER_S)
    with pytest.raises(ConfigError, match="is known from"):
        review(made, daily(1, zone="DE"), now_s=OVER_S)


def test_a_plan_that_is_not_over_is_not_reviewed() -> None:
    """Nor is one held against a forecast: what it tells did not come."""
    made = plan()
    last_s = made.slots.deadline_s
    with pytest.raises(ConfigError, match=r"is not over \(it goes until Wed 2026-11-18 12:00 UTC\)"):
        review(made, daily(3), now_s=last_s - 1.0)
    assert review(made, daily(3), now_s=last_s).rows
    with pytest.raises(ConfigError, match=r"made up is a forecast, not what came \(it was issued Mon 2026-11-16 00:00"):
        review(made, daily(3, issued_utc_s=MONDAY_S), now_s=OVER_S)


def test_what_is_not_known_of_the_pue_is_kept_and_reviewed(tmp_path: Path) -> None:
    made = plan("start", replace(TERMS, pue_u=0.02))
    path = keep(made, tmp_path)
    assert read_plan(path).terms == made.terms
    cost = review(read_plan(path), daily(3), now_s=OVER_S).row("now").actual
    assert cost.terms["pue:given"] == pytest.approx(cost.value * 0.02 / 1.1)
    data = json.loads(path.read_text())
    assert (data["pue_expanded"], data["time_zone"]) == (0.04, "UTC")
    del data["pue_expanded"]  # as earlier joulelabs wrote it
    path.write_text(json.dumps(data))
    assert read_plan(path).terms == TERMS


def test_a_gain_of_what_is_paid_for_is_none() -> None:
    """Prices that turned negative: there is no share of what running now costs."""
    price = {"kind": "price", "unit": "EUR/kWh"}
    at = slots(daily(3, **price), 60.0)
    made = Plan("a", "", job(), at, Terms(), ways_of(job(), at), "start")
    came = daily(3, **price)
    found = review(made, type(came)(came.label, came.start_s, -came.values, came.end_s), now_s=OVER_S)
    forecast, actual, known = found.gain("start")
    assert forecast is not None
    assert (actual, known) == (None, None)
    assert found.row("start").actual.value < 0


def test_files_that_are_no_plans_are_refused(tmp_path: Path) -> None:
    path = keep(plan(), tmp_path)
    data = json.loads(path.read_text())
    for change, said in (
        ({"joulelab_plan": 99}, "newer"),
        ({"joulelab_plan": None}, "not a plan"),
        ({"ways": []}, "damaged"),
        ({"id": "../x"}, "damaged"),
        ({"rate": {**data["rate"], "values_per_kwh": [1.0]}}, "damaged"),
    ):
        path.write_text(json.dumps({**data, **change}))
        with pytest.raises(ConfigError, match=said):
            read_plan(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        read_plan(path)
    with pytest.raises(ConfigError, match="there is no plan 'x'"):
        find_plan("x", tmp_path)
    with pytest.raises(ConfigError, match="cannot be kept"):
        keep(plan(), path)


def test_gains_under_the_errors_of_earlier_forecasts() -> None:
    made = plan("start", Terms())
    week_s = 7 * 86_400.0
    told = [daily(3, issued_utc_s=MONDAY_S), daily(3, deep=0.0)]
    earlier = [type(one)(one.label, one.start_s - week_s, one.values, one.end_s - week_s) for one in told]
    first = type(earlier[0])(daily(3, issued_utc_s=MONDAY_S - week_s).label, *_parts(earlier[0]))
    # A forecast that promised the swing and got none: then nothing is gained here either.
    found = scatter_of(made.way, made.now, made.slots, [(first, earlier[1])], issued_s=MONDAY_S)
    assert found is not None
    assert found.gains == pytest.approx([0.0], abs=1e-9)
    true = scatter_of(made.way, made.now, made.slots, [(first, first), (first, earlier[1])], issued_s=MONDAY_S)
    assert true is not None
    assert true.gains[0] == pytest.approx(1 - made.way.cost.value / made.now.cost.value)
    assert true.to_json()["forecasts"] == 2
    short = type(first)(first.label, first.start_s[:5], first.values[:5], float(first.start_s[5]))
    assert scatter_of(made.way, made.now, made.slots, [(short, short)], issued_s=MONDAY_S) is None


def _parts(steps: object) -> tuple[np.ndarray, np.ndarray, float]:  # type: ignore[type-arg]
    return steps.start_s, steps.values, steps.end_s  # type: ignore[attr-defined]
