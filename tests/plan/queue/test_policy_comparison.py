"""Policies beside each other: the recommendation, what is refused, and how sure the differences are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.plan_queue import STEPS, make_busy_stream

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.queue.jobs import JobStream, QueueJob
from joulelab.plan.queue.policy_comparison import Comparison, Outcome, compare_policies
from joulelab.plan.queue.simulation import BACKFILL, ENERGY, FIRST_COME, FIT, NAMEPLATE, Policy
from joulelab.plan.queue.site import NO_CAP, CapStep, QueueSite

SITE = QueueSite(8, 40_000.0, 2_200.0)
EXACT_CAP = (CapStep(400.0, Quantity(1.08), Quantity(0.7), 0.7), NO_CAP)
LARGE = QueueJob("large", 0.0, 8, 100.0, Quantity(5_500.0), 6_000.0, "made", None, "jobs.csv:7")


def make_stream(node_w: Quantity | None = None) -> JobStream:
    made = make_busy_stream(30, 3)
    jobs = [replace(j, submit_s=j.submit_s / 3, nodes=min(j.nodes, 2), node_w=node_w or j.node_w) for j in made.jobs]
    return replace(made, jobs=tuple(jobs))


def find_outcome(comparison: Comparison, policy: Policy) -> Outcome:
    return next(each for each in comparison.outcomes if each.policy == policy)


def test_an_error_that_all_jobs_share_is_in_the_energy_and_not_in_the_change() -> None:
    found = compare_policies(make_stream(), replace(SITE, idle_w=0.0), {"made": EXACT_CAP}, draws=40)
    own, base = find_outcome(found, ENERGY), find_outcome(found, FIRST_COME)
    energy, change = own.get_figure("energy_j"), own.get_change("energy_j", base, is_share=True)
    assert energy.u / energy.value == pytest.approx(0.005, rel=0.35)
    assert change.value == pytest.approx(1.08 * 0.7 - 1, abs=1e-9)
    assert change.u < 1e-9


def test_uncertain_caps_make_times_uncertain_only_under_caps() -> None:
    found = compare_policies(make_stream(), SITE, {"made": STEPS}, draws=6)
    assert {o.policy: bool(o.get_figure("makespan_s").terms) for o in found.outcomes} == {
        FIRST_COME: False, NAMEPLATE: False, BACKFILL: False, FIT: True, ENERGY: True,
    }  # fmt: skip
    again = compare_policies(make_stream(), SITE, {"made": STEPS}, draws=6)
    other = compare_policies(make_stream(), SITE, {"made": STEPS}, draws=6, seed=1)
    assert found.outcomes[3].figures == again.outcomes[3].figures != other.outcomes[3].figures


def test_the_budget_is_kept_as_planned_and_a_margin_covers_uncertain_powers() -> None:
    found = compare_policies(make_stream(), SITE, {"made": STEPS}, draws=25)
    for outcome in found.completed:
        assert outcome.figures[0]["peak_highest_w"] <= SITE.budget_w + 1e-3
    share, most_w = find_outcome(found, BACKFILL).find_excess(SITE)
    assert 0 < share < 1
    assert 0 < most_w < 4_000
    roomy = replace(SITE, margin=0.1)
    found = compare_policies(make_stream(), roomy, {"made": STEPS}, draws=25)
    assert find_outcome(found, BACKFILL).find_excess(roomy) == (0.0, 0.0)


def test_without_a_known_accuracy_there_is_no_interval() -> None:
    unknown = make_stream(node_w=Quantity(6_000.0, known=False))
    found = compare_policies(unknown, SITE, {"made": EXACT_CAP})
    assert {o.get_figure("energy_j").expanded for o in found.completed} == {None}
    assert all(o.get_figure("wait_s").known for o in found.completed)
    not_drawn = compare_policies(make_stream(), SITE, {"made": STEPS}, draws=0)
    assert not_drawn.outcomes[0].get_figure("wait_s").expanded == 0
    assert find_outcome(not_drawn, FIT).get_figure("wait_s").expanded is None
    exact = compare_policies(make_stream(node_w=Quantity(6_000.0)), SITE, {"made": EXACT_CAP})
    assert (exact.draws, exact.outcomes[-1].get_figure("energy_j").expanded) == (0, 0)


def test_the_recommendation_is_the_shortest_time_then_the_least_energy() -> None:
    found = compare_policies(make_stream(), SITE, {"made": STEPS}, draws=20)
    best = found.best
    assert best.policy in (FIT, ENERGY)
    assert all(best.figures[0]["turnaround_s"] <= 1.15 * o.figures[0]["turnaround_s"] for o in found.completed)
    ample = compare_policies(make_stream(), replace(SITE, budget_w=1e6), {"made": STEPS}, draws=0)
    assert ample.best.policy in (FIRST_COME, BACKFILL)  # with power for all, caps only cost time
    assert ample.enough_w < 1e6
    just = compare_policies(make_stream(), replace(SITE, budget_w=ample.enough_w), {"made": STEPS}, draws=0)
    assert find_outcome(just, BACKFILL).figures == find_outcome(ample, BACKFILL).figures


def test_a_job_that_fits_only_under_a_cap_blocks_the_other_policies() -> None:
    found = compare_policies(JobStream((LARGE,), "one job"), SITE, {"made": EXACT_CAP})
    blocked = {o.policy: o.blocked for o in found.outcomes}
    assert blocked == {FIRST_COME: LARGE, BACKFILL: LARGE, FIT: None, ENERGY: None}  # no nameplate is known
    assert find_outcome(found, BACKFILL).blocked_w == pytest.approx(30_400.0)
    assert found.base is find_outcome(found, FIT)


def test_a_job_that_never_fits_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"jobs.csv:7: job large never fits the power budget .*30400 W beyond idle"):
        compare_policies(JobStream((LARGE,), "one job"), SITE, {})
