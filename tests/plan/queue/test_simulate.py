"""Schedules in virtual time: nothing is used twice, the budget is kept, and none is better than the best possible."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from benchmarks.plan_queue import CURVE, gaps, optimum, small_case
from hypothesis import given, settings
from hypothesis import strategies as st

from joulelab.core.quantity import Quantity
from joulelab.plan.queue import policies as rules
from joulelab.plan.queue.caps import UNCAPPED, Curve, Option, Step, options_of, truths_of
from joulelab.plan.queue.jobs import Job
from joulelab.plan.queue.policies import (
    BACKFILL,
    ENERGY,
    FIRST_COME,
    FIT,
    NAMEPLATE,
    POLICIES,
    WAITS,
    Policy,
    allowed,
)
from joulelab.plan.queue.simulate import Start, simulate
from joulelab.plan.queue.site import Site
from joulelab.plan.queue.trace import figures_of, trace_of

IDLE_W = 2_000.0


def job(number: int, submit_s: float, nodes: int, duration_s: float, node_w: float = 6_000.0) -> Job:
    return Job(f"j{number}", submit_s, nodes, duration_s, Quantity(node_w), node_w * 1.1, "made", 10_000.0)


def ways_of(jobs: list[Job], policy: Policy, site: Site, curve: Curve = CURVE) -> list[tuple[Option, ...]]:
    truth = truths_of({"": curve}, None)[""]
    return [allowed(policy, options_of(each, curve, truth, site, None), each, site) for each in jobs]


def run(jobs: list[Job], policy: Policy, site: Site, curve: Curve = CURVE) -> list[Start]:
    return simulate([each.submit_s for each in jobs], ways_of(jobs, policy, site, curve), policy, site)


@st.composite
def streams(draw: st.DrawFn) -> list[Job]:
    count = draw(st.integers(1, 14))
    submits = sorted(draw(st.lists(st.sampled_from([0, 0, 100, 500, 501, 4_000]), min_size=count, max_size=count)))
    return [
        # Each lasts differently, so that a way to run it tells whose it is.
        job(k, float(t), draw(st.integers(1, 5)), draw(st.integers(10, 3_000)) + k / 64,
            draw(st.sampled_from([1_500.0, 3_000.0, 5_000.0, 7_000.0])))
        for k, t in enumerate(submits)
    ]  # fmt: skip


def sites() -> st.SearchStrategy[Site]:
    return st.builds(
        Site, st.sampled_from([5, 9]), st.sampled_from([35_000.0, 42_000.0, 200_000.0]), st.just(IDLE_W),
        st.sampled_from(["idle", "off"]), st.sampled_from(["mean", "highest"]), rated_w=st.just(7_700.0),
    )  # fmt: skip


@pytest.mark.system  # pure, and slow
@settings(max_examples=40, deadline=None)
@given(streams(), sites(), st.sampled_from(POLICIES))
def test_nothing_is_used_twice_and_the_budget_is_kept(jobs: list[Job], site: Site, policy: Policy) -> None:
    jobs = [each for each in jobs if ways_of([each], policy, site)[0]]
    if not jobs:
        return
    starts = run(jobs, policy, site)
    assert sorted(s.job for s in starts) == list(range(len(jobs)))
    assert all(s.start_s >= s.submit_s for s in starts)
    for moment in {s.start_s for s in starts}:
        there = [s.option for s in starts if s.start_s <= moment < s.end_s]
        assert sum(o.nodes for o in there) <= site.nodes
        assert sum(o.extra_w for o in there) <= site.room_w + 1e-3
    trace = trace_of(starts, site)
    assert trace.busy.max() <= site.nodes
    told = figures_of(starts, jobs, site, {}, trace)
    assert told["energy_j"] == pytest.approx(float((trace.mean_w * trace.steps_s).sum()))
    assert told["jobs_j"] == pytest.approx(sum(s.option.mean_w * s.option.time_s for s in starts))
    if policy is not FIRST_COME and policy is not NAMEPLATE:
        assert told[f"over_{site.count}_s"] == 0
    if not policy.backfill:
        assert [s.job for s in starts] == list(range(len(jobs)))


@settings(max_examples=40, deadline=None)
@given(streams(), sites(), st.sampled_from([BACKFILL, FIT, ENERGY]))
def test_who_goes_first_delays_nobody_that_was_promised_a_start(jobs: list[Job], site: Site, policy: Policy) -> None:
    promised: dict[Option, float] = {}
    plain = rules._hold

    def noted(wanted: Option, now: rules.Now, taken: list[rules._Taken]) -> rules._Hold:
        hold = plain(wanted, now, taken)
        promised.setdefault(wanted, hold.from_s)
        return hold

    jobs = [each for each in jobs if ways_of([each], policy, site)[0]]
    ways = ways_of(jobs, policy, site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "_hold", noted)
        starts = simulate([each.submit_s for each in jobs], ways, policy, site)
    began = {ways[s.job][0]: s.start_s for s in starts}
    assert all(began[wanted] <= from_s + 1e-6 for wanted, from_s in promised.items())


@settings(max_examples=30, deadline=None)
@given(streams())
def test_with_power_for_all_caps_to_fit_sets_none(jobs: list[Job]) -> None:
    site = Site(8, 1e6, IDLE_W)
    assert {s.option.cap_w for s in run(jobs, FIT, site)} == {None}
    assert run(jobs, FIT, site) == run(jobs, BACKFILL, site)


def test_two_jobs_that_do_not_fit_together_do_under_caps() -> None:
    # 4 nodes at 6.6 kW take 18.4 kW beside idling; two such jobs need 36.8 kW of 29, at 500 W 27.3.
    jobs = [job(0, 0.0, 4, 1_000.0), job(1, 0.0, 4, 1_000.0)]
    site = Site(8, 8 * IDLE_W + 29_000.0, IDLE_W)
    free, capped = run(jobs, BACKFILL, site), run(jobs, FIT, site)
    assert [s.start_s for s in free] == [0.0, 1_000.0]
    assert [s.start_s for s in capped] == [0.0, 0.0]
    # What is left after both run at the leanest cap lets one, then the other go up, as far as it lasts.
    assert sorted(str(s.option.cap_w) for s in capped) == ["500.0", "500.0"]
    best = optimum([0.0, 0.0], [options_of(j, CURVE, truths_of({"": CURVE}, None)[""], site, None) for j in jobs], site)
    assert max(s.end_s for s in capped) == pytest.approx(best.makespan_s)


def test_least_energy_is_the_least_that_any_cap_adds() -> None:
    jobs = [job(0, 0.0, 2, 1_000.0, 6_000.0), job(1, 0.0, 1, 500.0, 2_500.0)]
    for site in (Site(8, 1e6, IDLE_W), Site(8, 1e6, IDLE_W, "off")):
        for start in run(jobs, ENERGY, site):
            each = jobs[start.job]
            added = {
                step.cap_w: (each.node_w.value * step.node.value - site.rest_w) * step.slowdown.value for step in CURVE
            }
            assert added[start.option.cap_w] == min(added.values())


def test_backfill_lets_a_short_job_go_first_and_waiting_does_not() -> None:
    jobs = [job(0, 0.0, 3, 1_000.0), job(1, 1.0, 4, 1_000.0), job(2, 2.0, 1, 900.0), job(3, 2.0, 1, 1_100.0)]
    site = Site(4, 1e6, IDLE_W)
    began = {s.job: s.start_s for s in run(jobs, BACKFILL, site, UNCAPPED)}
    assert began == {0: 0.0, 1: 1_000.0, 2: 2.0, 3: 2_000.0}  # the last would have delayed the second
    began = {s.job: s.start_s for s in run(jobs, WAITS, site, UNCAPPED)}
    assert began == {0: 0.0, 1: 1_000.0, 2: 2_000.0, 3: 2_000.0}


def test_power_that_is_kept_for_the_first_that_waits_is_not_given_away() -> None:
    # Each node takes 4.6 kW beside idling. The first job holds 3 of them, the second waits for 4.
    jobs = [job(0, 0.0, 3, 1_000.0), job(1, 1.0, 4, 1_000.0), job(2, 2.0, 1, 2_000.0)]
    for room_w, third in ((4.5 * 4_600, 2_000.0), (5.5 * 4_600, 2.0)):
        site = Site(12, 12 * IDLE_W + room_w, IDLE_W)
        began = {s.job: s.start_s for s in run(jobs, BACKFILL, site, UNCAPPED)}
        assert began == {0: 0.0, 1: 1_000.0, 2: third}
    jobs.append(job(3, 3.0, 1, 2_000.0))  # two more would be one too many
    began = {s.job: s.start_s for s in run(jobs, BACKFILL, site, UNCAPPED)}
    assert began == {0: 0.0, 1: 1_000.0, 2: 2.0, 3: 2_000.0}


def test_caps_are_not_raised_with_power_that_is_kept() -> None:
    def option(cap_w: float | None, planned_s: float, extra_w: float) -> Option:
        return Option(cap_w, 1, planned_s, extra_w, extra_w, planned_s, extra_w, extra_w, planned_s)

    both = (option(400.0, 1_100.0, 3_000.0), option(None, 1_000.0, 4_000.0))
    for spare_w, until_s, cap_w in ((500.0, 900.0, 400.0), (1_500.0, 900.0, None), (500.0, 1_050.0, None)):
        taken = [rules._Taken(0, both, 0, beyond=True)]
        rules._raise(rules.Now(0.0, 1, 2_000.0, []), rules._Hold(until_s, 1, spare_w), taken)
        assert taken[0].option.cap_w == cap_w
    taken = [rules._Taken(0, both, 0)]
    rules._raise(rules.Now(0.0, 1, 900.0, []), rules._Hold(2_000.0, 1, 1e9), taken)
    assert taken[0].option.cap_w == 400.0


def test_jobs_run_as_they_do_while_the_policy_believes_otherwise() -> None:
    # The first takes longer than believed: what was promised by it is late, and nothing is used twice.
    made = [job(0, 0.0, 4, 1_000.0), job(1, 1.0, 4, 100.0), job(2, 2.0, 1, 10.0)]
    site = Site(4, 1e6, IDLE_W)
    ways = ways_of(made, BACKFILL, site, UNCAPPED)
    ways[0] = (ways[0][0]._replace(time_s=1_500.0),)
    assert {s.job: s.start_s for s in simulate([0.0, 1.0, 2.0], ways, BACKFILL, site)} == {
        0: 0.0,
        1: 1_500.0,
        2: 1_600.0,
    }


def test_nameplates_let_fewer_run_at_once() -> None:
    jobs = [job(k, 0.0, 1, 1_000.0) for k in range(4)]
    site = Site(4, 4 * IDLE_W + 20_000.0, IDLE_W)  # 8 kW beside idle each by nameplate, 4.6 by what was measured
    assert sum(s.start_s == 0 for s in run(jobs, NAMEPLATE, site)) == 2
    assert sum(s.start_s == 0 for s in run(jobs, BACKFILL, site)) == 4
    assert all(s.start_s == 0 for s in run(jobs, FIRST_COME, Site(4, 4 * IDLE_W + 1.0, IDLE_W)))


def test_the_best_possible_is_found_by_trying_all() -> None:
    # One after the other by power: the short one first is best for waiting, the order is the same for the end.
    jobs = [job(0, 0.0, 4, 1_000.0), job(1, 0.0, 4, 100.0)]
    site = Site(8, 8 * IDLE_W + 20_000.0, IDLE_W)
    best = optimum([0.0, 0.0], ways_of(jobs, BACKFILL, site), site)
    assert (best.makespan_s, best.turnaround_s) == (1_100.0, (100.0 + 1_100.0) / 2)


def test_no_policy_beats_the_best_possible_and_caps_come_near_it() -> None:
    found = gaps(12, 3, 3, seed=4)
    assert all((rows > -1e-9).all() for rows in found.values())
    assert found["caps to fit"][:, 0].mean() < 0.2 < found["waits"][:, 0].mean()


@pytest.mark.campaign
def test_no_policy_beats_the_best_possible_in_many_cases() -> None:
    found = gaps(150, 4, 3, seed=5)
    assert all((rows > -1e-9).all() for rows in found.values())
    assert found["caps to fit"][:, 0].mean() < 0.15
    assert found["least energy"][:, 0].mean() < 0.15


def test_power_is_what_runs_and_what_idles() -> None:
    jobs = [job(0, 0.0, 1, 100.0), job(1, 50.0, 2, 100.0)]
    site = Site(3, 1e6, IDLE_W, pue=1.5)
    starts = run(jobs, FIRST_COME, site, UNCAPPED)
    trace = trace_of(starts, site)
    assert trace.edges_s.tolist() == [0.0, 50.0, 100.0, 150.0]
    assert trace.mean_w.tolist() == [10_000.0, 18_000.0, 14_000.0]
    assert trace.high_w == pytest.approx([10_600.0, 19_800.0, 15_200.0])
    told = figures_of(starts, jobs, site, {})
    assert told["energy_j"] == pytest.approx(1.5 * 50 * 42_000)
    assert told["idle_j"] == pytest.approx(1.5 * 50 * (4_000 + 2_000))
    assert told["rated_jobs_j"] == pytest.approx(1.5 * 300 * 10_000)
    # Unused nodes are counted as in the energy beside it: the two differ by what jobs are taken to draw.
    assert told["rated_j"] - told["energy_j"] == pytest.approx(told["rated_jobs_j"] - told["jobs_j"])
    assert told["rated_j"] == pytest.approx(1.5 * (300 * 10_000 + 50 * 6_000))
    assert (told["wait_s"], told["slowdown"], told["makespan_s"]) == (0.0, 1.0, 150.0)
    tight = figures_of(starts, jobs, Site(3, 12_000.0, IDLE_W), {})
    assert (tight["over_mean_s"], tight["over_mean_w"]) == (100.0, 6_000.0)
    assert tight["over_highest_w"] == pytest.approx(7_800.0)


def test_a_long_wait_before_a_short_job_is_bounded_in_the_slowdown() -> None:
    jobs = [job(0, 0.0, 1, 100.0), job(1, 0.0, 1, 1.0)]
    told = figures_of(run(jobs, WAITS, Site(1, 1e6, IDLE_W), UNCAPPED), jobs, Site(1, 1e6, IDLE_W), {})
    assert told["slowdown"] == pytest.approx((1 + 101 / 10) / 2)
    assert told["wait_p95_s"] == pytest.approx(95.0)


def test_a_stream_in_which_nodes_go_unused_for_a_while() -> None:
    jobs = [job(0, 0.0, 1, 10.0), job(1, 100.0, 1, 10.0)]
    trace = trace_of(run(jobs, FIT, Site(1, 1e6, IDLE_W)), Site(1, 1e6, IDLE_W, "off"))
    assert trace.mean_w.tolist() == [6_000.0, 0.0, 6_000.0]
    assert all(b > a for a, b in pairwise(trace.edges_s))


def test_small_cases_are_such_that_power_limits() -> None:
    made, site = small_case(np.random.default_rng(1), 4)
    assert all(ways_of(made, BACKFILL, site))
    assert sum(o[-1].extra_w for o in ways_of(made, BACKFILL, site)) > site.room_w


def test_nodes_that_are_kept_for_the_first_that_waits_are_not_given_away() -> None:
    jobs = [job(0, 0.0, 3, 1_000.0), job(1, 1.0, 4, 1_000.0), job(2, 2.0, 1, 2_000.0), job(3, 3.0, 1, 2_000.0)]
    began = {s.job: s.start_s for s in run(jobs, BACKFILL, Site(5, 1e6, IDLE_W), UNCAPPED)}
    assert began == {0: 0.0, 1: 1_000.0, 2: 2.0, 3: 2_000.0}
    jobs[3] = job(3, 2.0, 1, 2_000.0)  # also where both come at once
    assert {s.job: s.start_s for s in run(jobs, BACKFILL, Site(5, 1e6, IDLE_W), UNCAPPED)} == began


def test_no_cap_is_raised_while_somebody_waits_for_power() -> None:
    jobs = [job(0, 0.0, 4, 1_000.0), job(1, 0.0, 4, 1_000.0)]
    lean_w = 4 * (6_600.0 * 0.72 - IDLE_W)
    for room_w, caps in ((1.9 * lean_w, [400.0, 400.0]), (2 * lean_w + 10, [400.0, 400.0]), (1e6, [None, None])):
        starts = run(jobs, FIT, Site(8, 8 * IDLE_W + room_w, IDLE_W))
        assert starts[0].option.cap_w == caps[0]
    alone = run(jobs[:1], FIT, Site(8, 8 * IDLE_W + 1.9 * lean_w, IDLE_W))
    assert alone[0].option.cap_w is None


def test_a_job_that_draws_less_than_an_idle_node_lends_nothing() -> None:
    # When the first ends, its nodes idle again, and what the second was lent would be missing.
    jobs = [job(0, 0.0, 4, 100.0, 1_000.0), job(1, 0.0, 2, 1_000.0, 6_000.0)]
    site = Site(6, 6 * IDLE_W + 9_000.0, IDLE_W)
    assert [ways[0].extra_w for ways in ways_of(jobs[:1], BACKFILL, site)] == [0.0]
    assert ways_of(jobs[1:], BACKFILL, site) == [()]  # it needs 9.2 kW beside idle, and never starts


def test_caps_to_fit_leaves_out_caps_that_use_more_of_the_budget_over_their_time() -> None:
    wasteful = (Step(200.0, Quantity(4.0), Quantity(0.5), 0.5), Step(250.0, Quantity(1.2), Quantity(0.9), 0.9), *CURVE)
    [ways] = ways_of([job(0, 0.0, 1, 1_000.0)], FIT, Site(8, 1e6, IDLE_W), wasteful)
    assert [way.cap_w for way in ways] == [400.0, 500.0, 600.0, None]
    # Where nothing else fits, it is better than never to start.
    [ways] = ways_of([job(0, 0.0, 8, 1_000.0)], FIT, Site(8, 8 * IDLE_W + 8 * 1_400.0, IDLE_W), wasteful)
    assert [way.cap_w for way in ways] == [200.0]
