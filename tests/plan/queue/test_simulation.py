"""Schedules in virtual time: nothing is used twice, the budget is kept, and none is better than the optimum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks.plan_queue import COMPARED, SLOT_S, STEPS, make_small_case, measure_policy, round_ways, solve_optimum
from hypothesis import given, settings
from hypothesis import strategies as st

from joulelab.core.quantity import Quantity
from joulelab.plan.queue import simulation
from joulelab.plan.queue.jobs import QueueJob
from joulelab.plan.queue.simulation import (
    BACKFILL,
    ENERGY,
    FIRST_COME,
    FIT,
    NAMEPLATE,
    POLICIES,
    Choice,
    Hold,
    Policy,
    SiteState,
    Start,
    Way,
    compute_figures,
    list_every_way,
    list_ways,
    raise_caps,
    reserve_start,
    simulate_queue,
    trace_power,
)
from joulelab.plan.queue.site import NO_CAP, CapStep, CapSteps, QueueSite

IDLE_W = 2_000.0
UNCAPPED = (NO_CAP,)


def job(number: int, submit_s: float, nodes: int, duration_s: float, node_w: float = 6_000.0) -> QueueJob:
    return QueueJob(f"j{number}", submit_s, nodes, duration_s, Quantity(node_w), node_w * 1.1, "made", 10_000.0)


def run(jobs: list[QueueJob], policy: Policy, site: QueueSite, steps: CapSteps = STEPS) -> list[Start]:
    ways = [list_ways(policy, each, steps, site) for each in jobs]
    return simulate_queue([each.submit_s for each in jobs], ways, policy, site)


def find_starts(jobs: list[QueueJob], policy: Policy, site: QueueSite) -> dict[int, float]:
    return {start.job: start.start_s for start in run(jobs, policy, site, UNCAPPED)}


@st.composite
def streams(draw: st.DrawFn) -> list[QueueJob]:
    count = draw(st.integers(1, 14))
    submits = sorted(draw(st.lists(st.sampled_from([0, 0, 100, 500, 501, 4_000]), min_size=count, max_size=count)))
    watts = st.sampled_from([1_500.0, 3_000.0, 5_000.0, 7_000.0])
    # Durations differ, so that a way to run a job names the job.
    return [
        job(k, float(t), draw(st.integers(1, 5)), draw(st.integers(10, 3_000)) + k / 64, draw(watts))
        for k, t in enumerate(submits)
    ]


SITES = st.builds(
    QueueSite,
    st.sampled_from([5, 9]),
    st.sampled_from([35_000.0, 42_000.0, 200_000.0]),
    st.sampled_from([0.0, IDLE_W]),
    st.sampled_from(["mean", "highest"]),
    st.sampled_from([0.0, 0.05]),
)


@settings(max_examples=60, deadline=None)
@given(streams(), SITES, st.sampled_from(POLICIES))
def test_nothing_is_used_twice_the_budget_is_kept_and_energy_is_conserved(
    jobs: list[QueueJob], site: QueueSite, policy: Policy
) -> None:
    jobs = [each for each in jobs if list_ways(policy, each, STEPS, site)]
    if not jobs:
        return
    starts = run(jobs, policy, site)
    assert sorted(start.job for start in starts) == list(range(len(jobs)))
    assert all(start.start_s >= jobs[start.job].submit_s for start in starts)
    for moment in {start.start_s for start in starts}:
        ways = [start.way for start in starts if start.start_s <= moment < start.end_s]
        assert sum(way.nodes for way in ways) <= site.nodes
        assert sum(way.extra_w for way in ways) <= site.room_w + 1e-3
    trace = trace_power(starts, jobs[0].submit_s, site)
    figures = compute_figures(starts, jobs, site)
    assert figures[f"peak_{site.count}_w"] <= site.limit_w + 1e-3
    assert figures["energy_j"] == pytest.approx(float((trace.mean_w * np.diff(trace.edges_s)).sum()))
    assert figures["jobs_j"] == pytest.approx(sum(s.way.mean_w * (s.end_s - s.start_s) for s in starts))
    if policy is FIRST_COME:
        assert [start.job for start in starts] == list(range(len(jobs)))


@settings(max_examples=40, deadline=None)
@given(streams(), SITES, st.sampled_from([BACKFILL, FIT, ENERGY]))
def test_backfill_never_delays_a_job_beyond_its_reserved_start(
    jobs: list[QueueJob], site: QueueSite, policy: Policy
) -> None:
    reserved: dict[Way, float] = {}

    def note_start(wanted: Way, state: SiteState, chosen: list[Choice]) -> Hold:
        hold = reserve_start(wanted, state, chosen)
        reserved.setdefault(wanted, hold.from_s)
        return hold

    jobs = [each for each in jobs if list_ways(policy, each, STEPS, site)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "reserve_start", note_start)
        starts = run(jobs, policy, site)
    began = {list_ways(policy, jobs[s.job], STEPS, site)[0]: s.start_s for s in starts}
    assert all(began[wanted] <= from_s + 1e-6 for wanted, from_s in reserved.items())


@settings(max_examples=30, deadline=None)
@given(streams())
def test_with_power_for_all_jobs_caps_to_fit_sets_no_cap(jobs: list[QueueJob]) -> None:
    site = QueueSite(8, 1e6, IDLE_W)
    capped, free = run(jobs, FIT, site), run(jobs, BACKFILL, site)
    assert {start.way.cap_w for start in capped} == {None}
    assert [start[:3] for start in capped] == [start[:3] for start in free]


def test_two_jobs_that_do_not_fit_together_fit_under_caps() -> None:
    # 4 nodes at 6.6 kW take 18.4 kW beyond idle; two such jobs need 36.8 kW of 29, at 500 W 27.3.
    jobs = [job(0, 0.0, 4, 1_000.0), job(1, 0.0, 4, 1_000.0)]
    site = QueueSite(8, 8 * IDLE_W + 29_000.0, IDLE_W)
    assert [start.start_s for start in run(jobs, BACKFILL, site)] == [0.0, 1_000.0]
    assert [(start.start_s, start.way.cap_w) for start in run(jobs, FIT, site)] == [(0.0, 500.0), (0.0, 500.0)]


def test_least_energy_is_the_cap_that_adds_the_least() -> None:
    jobs = [job(0, 0.0, 2, 1_000.0, 6_000.0), job(1, 0.0, 1, 500.0, 2_500.0)]
    for site in (QueueSite(8, 1e6, IDLE_W), QueueSite(8, 1e6, 0.0)):
        for start in run(jobs, ENERGY, site):
            node_w = jobs[start.job].node_w.value
            added = {s.cap_w: (node_w * s.node.value - site.idle_w) * s.slowdown.value for s in STEPS}
            assert added[start.way.cap_w] == min(added.values())


def test_backfill_lets_a_short_job_start_first_and_first_come_does_not() -> None:
    jobs = [job(0, 0.0, 3, 1_000.0), job(1, 1.0, 4, 1_000.0), job(2, 2.0, 1, 900.0), job(3, 2.0, 1, 1_100.0)]
    site = QueueSite(4, 1e6, IDLE_W)
    assert find_starts(jobs, BACKFILL, site) == {0: 0.0, 1: 1_000.0, 2: 2.0, 3: 2_000.0}  # job 3 would delay job 1
    assert find_starts(jobs, FIRST_COME, site) == {0: 0.0, 1: 1_000.0, 2: 2_000.0, 3: 2_000.0}


def test_reserved_power_and_nodes_are_not_given_away() -> None:
    # Each node takes 4.6 kW beyond idle. Job 0 holds 3 of them, job 1 waits for 4.
    jobs = [job(0, 0.0, 3, 1_000.0), job(1, 1.0, 4, 1_000.0), job(2, 2.0, 1, 2_000.0), job(3, 3.0, 1, 2_000.0)]
    one_spare = {0: 0.0, 1: 1_000.0, 2: 2.0, 3: 2_000.0}
    assert find_starts(jobs, BACKFILL, QueueSite(12, 12 * IDLE_W + 5.5 * 4_600, IDLE_W)) == one_spare
    assert find_starts(jobs, BACKFILL, QueueSite(5, 1e6, IDLE_W)) == one_spare
    no_spare = find_starts(jobs[:3], BACKFILL, QueueSite(12, 12 * IDLE_W + 4.5 * 4_600, IDLE_W))
    assert no_spare == {0: 0.0, 1: 1_000.0, 2: 2_000.0}


def test_caps_are_not_raised_with_reserved_power() -> None:
    both = (Way(0, 400.0, 1, 1_100.0, 1_100.0, 3e3, 3e3, 3e3), Way(1, None, 1, 1_000.0, 1_000.0, 4e3, 4e3, 4e3))
    for room_w, spare_w, until_s, is_beyond, cap_w in (
        (2e3, 500.0, 900.0, True, 400.0), (2e3, 1_500.0, 900.0, True, None),
        (2e3, 500.0, 1_050.0, True, None), (900.0, 1e9, 2_000.0, False, 400.0),
    ):  # fmt: skip
        chosen = [Choice(0, both, 0, is_beyond)]
        raise_caps(SiteState(0.0, 1, room_w, []), Hold(until_s, 1, spare_w), chosen)
        assert chosen[0].way.cap_w == cap_w


def test_no_cap_is_raised_while_a_job_waits_for_power() -> None:
    jobs = [job(0, 0.0, 4, 1_000.0), job(1, 0.0, 4, 1_000.0)]
    lean_w = 4 * (6_600.0 * 0.72 - IDLE_W)
    for shown, room_w, cap_w in ((jobs, 1.9 * lean_w, 400.0), (jobs, 1e6, None), (jobs[:1], 1.9 * lean_w, None)):
        assert run(shown, FIT, QueueSite(8, 8 * IDLE_W + room_w, IDLE_W))[0].way.cap_w == cap_w


def test_jobs_that_take_longer_than_planned_delay_others_and_use_nothing_twice() -> None:
    jobs = [job(0, 0.0, 4, 1_000.0), job(1, 1.0, 4, 100.0), job(2, 2.0, 1, 10.0)]
    site = QueueSite(4, 1e6, IDLE_W)
    ways = [list_ways(BACKFILL, each, UNCAPPED, site) for each in jobs]
    starts = simulate_queue([0.0, 1.0, 2.0], ways, BACKFILL, site, [[1_500.0], [100.0], [10.0]])
    assert {start.job: start.start_s for start in starts} == {0: 0.0, 1: 1_500.0, 2: 1_600.0}


def test_a_nameplate_lets_fewer_jobs_run_at_once() -> None:
    jobs = [job(k, 0.0, 1, 1_000.0) for k in range(4)]
    site = QueueSite(4, 4 * IDLE_W + 20_000.0, IDLE_W)  # each takes 8 kW beyond idle by nameplate, 4.6 measured
    assert sum(start.start_s == 0 for start in run(jobs, NAMEPLATE, site)) == 2
    assert sum(start.start_s == 0 for start in run(jobs, BACKFILL, site)) == 4


def test_a_job_below_the_idle_power_lends_nothing_to_others() -> None:
    site = QueueSite(6, 6 * IDLE_W + 9_000.0, IDLE_W)
    assert [way.extra_w for way in list_ways(BACKFILL, job(0, 0.0, 4, 100.0, 1_000.0), STEPS, site)] == [0.0]


def test_caps_to_fit_leaves_out_caps_that_use_more_power_times_time() -> None:
    slow = (
        CapStep(200.0, Quantity(4.0), Quantity(0.5), 0.5),
        CapStep(250.0, Quantity(1.2), Quantity(0.9), 0.9),
        *STEPS,
    )
    ways = list_ways(FIT, job(0, 0.0, 1, 1_000.0), slow, QueueSite(8, 1e6, IDLE_W))
    assert [way.cap_w for way in ways] == [400.0, 500.0, 600.0, None]
    # A slow cap is better than never to start.
    ways = list_ways(FIT, job(0, 0.0, 8, 1_000.0), slow, QueueSite(8, 8 * IDLE_W + 8 * 1_400.0, IDLE_W))
    assert [way.cap_w for way in ways] == [200.0]


def test_power_is_that_of_jobs_and_of_idle_nodes() -> None:
    jobs, site = [job(0, 0.0, 1, 100.0), job(1, 50.0, 2, 100.0)], QueueSite(3, 1e6, IDLE_W)
    starts = run(jobs, FIRST_COME, site, UNCAPPED)
    trace = trace_power(starts, 0.0, site)
    assert trace.edges_s.tolist() == [0.0, 50.0, 100.0, 150.0]
    assert trace.mean_w.tolist() == [10_000.0, 18_000.0, 14_000.0]
    assert trace.high_w == pytest.approx([10_600.0, 19_800.0, 15_200.0])
    figures = compute_figures(starts, jobs, site)
    assert (figures["energy_j"], figures["idle_j"]) == (pytest.approx(50 * 42_000), pytest.approx(50 * 6_000))
    assert (figures["wait_s"], figures["slowdown"], figures["makespan_s"]) == (0.0, 1.0, 150.0)


def find_best_by_trial(jobs: list[QueueJob], site: QueueSite) -> dict[str, float]:
    """Try all orders and caps, each job at the earliest slot that fits: one of them is the optimum."""
    every = [round_ways(list_every_way(FIT, each, STEPS[1::2], site)) for each in jobs]
    least = {"makespan": float("inf"), "turnaround": float("inf")}
    for order, ways in itertools.product(itertools.permutations(range(len(jobs))), itertools.product(*every)):
        if any(way.extra_w > site.room_w for way in ways):
            continue
        used = np.zeros((600, 2))
        ends = {}
        for k in order:
            length, need = round(ways[k].time_s / SLOT_S), np.array([ways[k].nodes, ways[k].extra_w])
            begin = round(jobs[k].submit_s / SLOT_S)
            while (used[begin : begin + length] + need > (site.nodes, site.room_w)).any():
                begin += 1
            used[begin : begin + length] += need
            ends[k] = (begin + length) * SLOT_S
        least["makespan"] = min(least["makespan"], max(ends.values()) - jobs[0].submit_s)
        mean_s = sum(ends[k] - jobs[k].submit_s for k in ends) / len(jobs)
        least["turnaround"] = min(least["turnaround"], mean_s)
    return least


@pytest.mark.system  # a solver
def test_the_program_finds_the_optimum_and_no_policy_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("highspy")
    monkeypatch.setattr("benchmarks.plan_queue.STEPS", STEPS[1::2])  # two ways per job: few enough to try all
    rng = np.random.default_rng(3)
    for _ in range(2):
        jobs, site = make_small_case(rng, 4)
        best = find_best_by_trial(jobs, site)
        for goal, least_s in best.items():
            assert solve_optimum(jobs, site, goal)[0] == pytest.approx(least_s)
            assert all(measure_policy(policy, jobs, site)[goal] >= least_s - 1e-6 for policy in COMPARED)
