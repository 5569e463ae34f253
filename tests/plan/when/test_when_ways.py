"""The ways to run a job side by side: their costs, their intervals, and the slots and times that they are made of."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.plan.measured_runs import measured, node_run
from tests.plan.when.problems import (
    CAPS,
    HOUR_S,
    MONDAY_S,
    make_daily_rate,
    make_given_job,
    make_prices,
    make_slots,
)

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.rates.rate import Label, Steps
from joulelab.plan.when.when_job import CapMode, JobFigures, make_job
from joulelab.plan.when.when_plan import WhenPlan
from joulelab.plan.when.when_program import RestartCost
from joulelab.plan.when.when_slots import cut_slots, read_time
from joulelab.plan.when.when_ways import PlanTerms, Way, choose_way, compute_saving, list_ways, make_plan

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.when.when_job import ShiftableJob
    from joulelab.plan.when.when_slots import Slots

pytest.importorskip("highspy")
FREE = PlanTerms()


def find_ways(job: ShiftableJob, slots: Slots, terms: PlanTerms = FREE) -> dict[str, Way]:
    return {way.name: way for way in list_ways(job, slots, terms)}


@pytest.mark.system  # pure, and slow
@given(st.integers(1, 10_000), st.floats(1.0, 30.0), st.booleans(), st.booleans())
@example(seed=1, hours=8.0, waits=True, paid=True)
@settings(max_examples=6, deadline=None)
def test_a_way_that_may_do_more_never_costs_more_and_does_the_work(
    seed: int, hours: float, waits: bool, paid: bool
) -> None:
    slots = make_slots(make_daily_rate(3, noise=60.0, seed=seed), 40.3)
    job = make_given_job(duration_s=hours * HOUR_S, **CAPS)
    terms = PlanTerms(RestartCost(600.0, 1e5) if paid else RestartCost(), waits, Quantity(1.2))
    ways = find_ways(job, slots, terms)
    cost = {name: way.cost.value for name, way in ways.items()}
    slack = 1 + 3e-4  # the gap that the solver may leave
    assert cost["start"] <= cost["now"] * slack
    assert cost["pauses"] <= cost["start"] * slack
    assert cost.get("pauses-off", 0.0) <= cost["pauses"] * slack
    assert cost["caps"] <= min(cost["pauses"], cost["now-cap"]) * slack
    speeds = {mode.cap_w: 1 / mode.slowdown.value for mode in job.modes}
    for way in ways.values():
        runs = [one for one in way.stretches if one.action == "run"]
        done = sum((one.end_s - one.start_s) * speeds[one.cap_w] for one in runs)
        assert done - len(way.pauses) * terms.restart.time_s == pytest.approx(job.work_s, rel=1e-4), way.name
        assert way.stretches[0].start_s == slots.start_s
        assert way.stretches[-1].end_s == pytest.approx(slots.deadline_s)
        edges = [(a.end_s, b.start_s) for a, b in zip(way.stretches, way.stretches[1:], strict=False)]
        assert all(a == pytest.approx(b, abs=1e-3) for a, b in edges)
        assert sum(one.cost for one in way.stretches) == pytest.approx(way.cost.value)
        assert sum(one.energy_j for one in way.stretches) == pytest.approx(way.energy.value)


def test_a_node_that_waits_is_counted_as_by_hand() -> None:
    """107.2, 26.9, 110.5 EUR/MWh: an hour of 700 W first, then half an hour of 6.9 kW."""
    slots = make_slots(make_prices([0.1072, 0.0269, 0.1105]), 3.0)
    job = make_given_job(duration_s=1800.0, power_w=6900.0, idle_w=700.0)
    start = find_ways(job, slots, PlanTerms(node_waits=True))["start"]
    assert start.start_s == MONDAY_S + HOUR_S
    assert start.cost.value == pytest.approx(0.7 * 0.1072 + 3.45 * 0.0269)
    assert start.energy.value / 3.6e6 == pytest.approx(0.7 + 3.45)
    assert find_ways(job, slots)["start"].cost.value == pytest.approx(3.45 * 0.0269)


def test_a_restart_is_in_the_time_the_energy_and_the_cost() -> None:
    slots = make_slots(make_prices([1, 9, 1]), 3.0)
    job = make_given_job(duration_s=1.75 * HOUR_S, power_w=1000.0, idle_w=0.0)
    way = find_ways(job, slots, PlanTerms(RestartCost(900.0, 3.6e5)))["pauses"]
    assert [one.action for one in way.stretches] == ["run", "pause", "run"]
    assert way.energy.value / 3.6e6 == pytest.approx(1.75 + 0.25 + 0.1)
    assert way.cost.value == pytest.approx(2.1, rel=1e-4)


def test_a_job_follows_its_own_power_over_time() -> None:
    """Its power is high at first: its start is put where the rate is low, not its middle."""
    slots = make_slots(make_prices([5, 5, 1, 5, 5]), 5.0)
    job = replace(make_given_job(duration_s=2 * HOUR_S), course_j=(6e7, 1e7))
    assert find_ways(job, slots)["start"].start_s == MONDAY_S + 2 * HOUR_S
    late = replace(job, course_j=(1e7, 6e7))
    assert find_ways(late, slots)["start"].start_s == MONDAY_S + HOUR_S


def test_negative_prices_pay_and_have_no_share() -> None:
    slots = make_slots(make_prices([0.3, 0.3, -0.1, 0.3]), 4.0)
    ways = find_ways(make_given_job(duration_s=HOUR_S), slots)
    assert ways["start"].cost.value == pytest.approx(-0.7)
    assert compute_saving(ways["start"], ways["now"]) is None


def test_a_node_is_not_held_to_be_paid_for_idling() -> None:
    slots = make_slots(make_prices([0.3, -0.2, -0.1, -0.1, 0.3]), 5.0)
    for way in find_ways(make_given_job(duration_s=HOUR_S, **CAPS), slots).values():
        assert not way.pauses, way.name
        assert {one.energy_j for one in way.stretches if one.action in ("wait", "done")} <= {0.0}


def test_the_error_of_the_pue_is_in_costs_and_not_in_savings() -> None:
    slots, job = make_slots(make_daily_rate(2), 48.0), replace(make_given_job(), is_accuracy_known=True)
    pue = Quantity(1.25, {"pue:given": 0.05})
    ways = find_ways(job, slots, PlanTerms(pue=pue))
    assert ways["now"].cost.u == pytest.approx(0.04 * ways["now"].cost.value)
    saving = compute_saving(ways["start"], ways["now"])
    assert saving is not None
    assert saving.expanded == 0


def test_the_error_of_a_meter_cancels_in_savings_and_that_of_a_model_does_not(tmp_path: Path) -> None:
    run = measured(node_run(tmp_path, 7000.0, seconds=60.0, gpu_w=600.0, gpus=8))
    job = make_job([run], JobFigures(duration_s=10 * HOUR_S))
    assert (job.caps_source, job.is_accuracy_known, job.idle_source) == ("model", True, "measured")
    ways = find_ways(job, make_slots(make_daily_rate(2), 48.0))
    cost = ways["now"].cost
    assert cost.expanded is not None
    assert cost.expanded > 0.005 * cost.value
    shift, capped = (compute_saving(ways[name], ways["now"]) for name in ("start", "now-cap"))
    assert shift is not None
    assert capped is not None
    assert shift.expanded == pytest.approx(0.0, abs=1e-6)
    assert capped.expanded is not None
    assert 0.01 < capped.expanded < 0.5
    assert choose_way(tuple(ways.values()), job).name in ("start", "pauses")  # never by a model unless chosen
    assert choose_way(tuple(ways.values()), job, "caps").name == "caps"


@pytest.mark.parametrize("name", ["now-cap", "caps"])
@pytest.mark.parametrize("what", ["slowdown", "power", "idle"])
def test_terms_are_the_effect_of_a_change_of_power_or_speed(name: str, what: str) -> None:
    """To first order: the job planned anew with a mode a little slower, or with more power."""
    slots, step = make_slots(make_daily_rate(2, noise=30.0), 30.0), 1e-3

    def compute_cost(change: float) -> Quantity:
        by = {"slowdown": 1.0, "power": 1000.0, "idle": 1000.0}[what]
        made = {"slowdown": Quantity(1.25), "power": Quantity(4200.0), "idle": Quantity(500.0)}
        made[what] = Quantity(made[what].value + by * change, {"x": by})
        job = replace(make_given_job(), idle=made["idle"], caps_source="measured", is_accuracy_known=True)
        job = replace(job, modes=(CapMode(400.0, made["slowdown"], made["power"]), job.full))
        return find_ways(job, slots)[name].cost

    found = (compute_cost(step).value - compute_cost(-step).value) / (2 * step)
    assert compute_cost(0.0).terms.get("x", 0.0) == pytest.approx(found, rel=0.02, abs=20.0)


def test_the_chosen_way_is_a_plan_that_reads_back() -> None:
    slots, job = make_slots(make_daily_rate(2), 48.0), make_given_job(**CAPS)
    ways = find_ways(job, slots)
    plan = make_plan(ways["caps"], ways["now"], job, slots, FREE)
    assert WhenPlan.from_json(plan.to_json()) == plan
    assert (plan.begin_s, plan.finish_s) == (ways["caps"].start_s, ways["caps"].end_s)
    middle = np.array([(one.start_s + one.end_s) / 2 for one in plan.stretches])
    assert np.isfinite(plan.find_rates(middle)).all()
    assert np.isnan(plan.find_rates(np.array([plan.deadline_s + 1.0]))).all()
    with pytest.raises(ConfigError, match="not a plan of `plan when`"):
        WhenPlan.from_json({"joulelab_plan": 2})
    with pytest.raises(ConfigError, match="damaged"):
        WhenPlan.from_json({"joulelab_plan": 3})


def test_slots_begin_at_full_quarters_and_join_where_the_rate_stays() -> None:
    changing = Steps(Label("price", "EUR/kWh", "x"), MONDAY_S + 900.0 * np.arange(8), np.arange(8.0), MONDAY_S + 7200.0)
    found = cut_slots(changing, MONDAY_S + 61.0, MONDAY_S + 3590.0)
    assert (found.edges_s - MONDAY_S).tolist() == [120.0, 900.0, 1800.0, 2700.0, 3540.0]
    assert len(make_slots(make_daily_rate(1), 24.0).values) == 24
    fine = cut_slots(changing, MONDAY_S + 0.5, MONDAY_S + 60.0, 6.0)
    assert (fine.edges_s - MONDAY_S).tolist() == [6.0, 60.0]
    assert found.integrate_rate(MONDAY_S + 120.0, MONDAY_S + 1000.0) * 3.6e6 == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("text", "zone", "utc"),
    [
        ("48h", "UTC", "2026-11-18T00:00"),
        ("1.5 d", "UTC", "2026-11-17T12:00"),
        ("2026-11-20T08:00", "Europe/Berlin", "2026-11-20T07:00"),
        ("2026-11-20 08:00+05:00", "Europe/Berlin", "2026-11-20T03:00"),
    ],
)
def test_times_are_read_as_people_write_them(text: str, zone: str, utc: str) -> None:
    assert read_time(text, MONDAY_S, zone) == dt.datetime.fromisoformat(f"{utc}Z").timestamp()
