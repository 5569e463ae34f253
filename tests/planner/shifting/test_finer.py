"""A way on finer slots: nothing is lost or moved; what came within the slots of a plan is accounted when it came."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.planner.shifting.problems import HOUR_S, MONDAY_S, daily, job, slots

from joulelab.analysis.terms import Quantity
from joulelab.planner.rates.rate import Label
from joulelab.planner.rates.steps import Steps
from joulelab.planner.shifting.baselines import Terms, cost_at, ways_of
from joulelab.planner.shifting.blocks import Restart
from joulelab.planner.shifting.finer import finer
from joulelab.planner.shifting.kept_plan import Plan
from joulelab.planner.shifting.review import review
from joulelab.planner.shifting.slots import cut

if TYPE_CHECKING:
    from joulelab.planner.shifting.baselines import Way
    from joulelab.planner.shifting.slots import Slots

OVER_S = MONDAY_S + 7 * 86_400.0


def quick(days: int = 3, step_s: float = 300.0, **label: Any) -> Steps:
    """Return a rate that changes every five minutes."""
    count = round(days * 86_400 / step_s)
    values = 300.0 + 200.0 * np.random.default_rng(3).random(count)
    about = Label(**{"kind": "average", "unit": "g/kWh", "name": "quick", **label})
    return Steps(about, MONDAY_S + step_s * np.arange(count), values, MONDAY_S + days * 86_400.0)


def ways(at: Slots, terms: Terms, **wanted: Any) -> dict[str, Way]:
    return {way.name: way for way in ways_of(_job(**wanted), at, terms)}


def _job(**wanted: Any) -> Any:
    one = job(duration_s=9.4 * HOUR_S, gpus=8, gpu_w=700.0, rated_w=10_200.0, **wanted)
    return replace(one, course_j=(7e7, 9e7, 6e7))


@pytest.mark.parametrize("terms", [Terms(), Terms(waits=True), Terms(Restart(600.0, 1e5), pue=1.2)])
def test_what_is_in_a_slot_stays_in_it(terms: Terms) -> None:
    at = slots(daily(3, noise=60.0), 40.0)
    fine = cut(at.edges_s, quick())
    assert len(fine.values) == 40 * 12
    for way in ways_of(_job(), at, terms):
        found = finer(way, _job(), at.edges_s, fine.edges_s)
        inside = np.searchsorted(at.edges_s, fine.edges_s[:-1], side="right") - 1
        for name in ("energy_j", "running_s", "paused_s"):
            sums = np.bincount(inside, getattr(found, name), minlength=len(at.values))
            assert sums == pytest.approx(getattr(way, name), rel=1e-9, abs=1e-3), (way.name, name)
        assert found.modes_s.sum(axis=1) == pytest.approx(found.running_s)
        assert (found.running_s <= fine.lengths_s + 1e-6).all()
        assert (found.running_s + found.paused_s <= fine.lengths_s + 1e-6).all()
        assert (found.paused_s >= 0).all()


@pytest.mark.parametrize("waits", [False, True])
def test_a_job_as_it_ran_is_where_it_would_be_on_finer_slots(waits: bool) -> None:
    """Also the wait before a start within a slot, which ends where the job begins."""
    at = slots(daily(3), 40.0)
    fine = cut(at.edges_s, quick())
    by, one = ways(at, Terms(waits=waits)), _job()
    start_s = float(at.edges_s[9]) + 240.0
    late = replace(by["start"], start_s=start_s, end_s=start_s + one.work_s)
    running, paused = (np.diff(np.clip(at.edges_s, *ends)) for ends in ((start_s, late.end_s), (MONDAY_S, start_s)))
    paused = paused if waits else 0 * paused
    energy = np.diff(one.energy_to(at.edges_s - start_s)) + paused * one.idle.value
    modes = np.zeros_like(late.modes_s)
    modes[:, -1] = running
    late = replace(late, running_s=running, paused_s=paused, energy_j=energy, modes_s=modes)
    found = finer(late, one, at.edges_s, fine.edges_s)
    assert found.running_s == pytest.approx(np.diff(np.clip(fine.edges_s, start_s, late.end_s)))
    if waits:
        assert found.paused_s == pytest.approx(np.diff(np.clip(fine.edges_s, MONDAY_S, start_s)))
    own = np.diff(one.energy_to(fine.edges_s - start_s)) + found.paused_s * one.idle.value
    assert found.energy_j == pytest.approx(own)
    assert finer(late, one, at.edges_s, at.edges_s) is late


@pytest.mark.system  # pure, and slow
def test_a_review_accounts_what_came_when_it_came() -> None:
    """A forecast by the hour, and what came every five minutes."""
    at, terms = slots(daily(3), 40.0), Terms(pue=1.1)
    plan = Plan("a", "", _job(), at, terms, ways_of(_job(), at, terms), "start")
    found = review(plan, quick(), now_s=OVER_S)
    assert len(found.actual.values) == 480
    known = ways_of(_job(), found.actual, terms)
    row = found.row("now")
    assert row.actual.value == pytest.approx(known[0].cost.value, rel=1e-9)
    assert row.rated == pytest.approx(known[0].rated, rel=1e-9)
    for one in found.rows:
        assert one.known is not None
        assert one.known.value <= one.actual.value * (1 + 1e-6)
    told = found.to_json()
    assert len(told["actual_edges_utc_s"]) == len(told["actual_values_per_kwh"]) + 1 == 481
    # The mean error is that over time: of both series, whatever their steps.
    mean = float(quick().means(np.array([MONDAY_S, at.deadline_s]))[0] - at.values.mean())
    assert found.error_mean == pytest.approx(mean)


@pytest.mark.parametrize("name", ["now", "now-cap", "start", "pauses-idle", "caps-idle"])
def test_the_terms_of_what_came_are_those_of_the_energies(name: str) -> None:
    """All power off by a share: so is the cost of what ran, whatever its sign. Here every price is below 0."""
    at = slots(daily(3), 40.0)
    rate = Steps(
        Label("price", "EUR/kWh", "x"), MONDAY_S + HOUR_S * np.arange(72), -np.linspace(0.1, 0.4, 72),
        MONDAY_S + 72 * HOUR_S,
    )  # fmt: skip
    came = cut(at.edges_s, rate)

    given = job(gpus=8, gpu_w=700.0)
    sure = [replace(m, slowdown=Quantity(m.slowdown.value)) for m in given.modes]
    one = replace(given, modes=tuple(replace(m, power=Quantity(m.power.value, {"x": m.power.value})) for m in sure))
    way = next(w for w in ways_of(one, at) if w.name == name)
    cost = cost_at(way, one, came, Terms(pue=1.1))
    assert cost.value < 0
    assert cost.value == pytest.approx(float(way.energy_j @ came.per_j) * 1.1)
    idle = float(way.paused_s @ came.per_j) * one.idle.value * 1.1
    assert cost.terms["x"] == pytest.approx(cost.value - idle)
