"""Measure `plan queue`: the distance of each policy from the optimum of small cases, and the speed for many jobs.

The optimum knows all submissions beforehand; it is a time-indexed mixed-integer program, solved by HiGHS. All times of
the small cases are whole slots, so that an optimal schedule starts jobs at slots only and the program is exact.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.quantity import Quantity
from joulelab.plan.queue.jobs import JobStream, QueueJob
from joulelab.plan.queue.policy_comparison import compare_policies
from joulelab.plan.queue.simulation import (
    BACKFILL,
    ENERGY,
    FIRST_COME,
    FIT,
    POLICIES,
    list_every_way,
    list_ways,
    simulate_queue,
)
from joulelab.plan.queue.site import NO_CAP, CapStep, CapSteps, QueueSite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.queue.simulation import Policy, Way

# Time and power ratios of an H100 node by the cap of its GPUs: between the published cap curves of other GPUs.
STEPS: CapSteps = (
    CapStep(400.0, Quantity(1.095, {"time:400": 0.02}), Quantity(0.72, {"power:400": 0.01}), 0.72),
    CapStep(500.0, Quantity(1.05, {"time:500": 0.015}), Quantity(0.82, {"power:500": 0.01}), 0.82),
    CapStep(600.0, Quantity(1.02, {"time:600": 0.01}), Quantity(0.92, {"power:600": 0.01}), 0.92),
    NO_CAP,
)
SLOT_S = 120.0
IDLE_W = 2200.0
COMPARED = (FIRST_COME, BACKFILL, FIT, ENERGY)


def make_small_case(rng: np.random.Generator, count: int) -> tuple[list[QueueJob], QueueSite]:
    """Make a few jobs, half of them submitted at once, on a site whose power is the limit."""
    submits = np.sort(np.where(rng.random(count) < 0.5, 0, rng.integers(0, 25, count))) * SLOT_S
    jobs = [
        QueueJob(
            f"j{k}", float(submits[k]), int(rng.integers(1, 4)), float(rng.integers(10, 50) * SLOT_S),
            Quantity(watts := float(rng.uniform(4000, 7200))), watts * 1.05, "made",
        )
        for k in range(count)
    ]  # fmt: skip
    most_w = max(job.nodes * ((job.highest_w or 0) - IDLE_W) for job in jobs)
    return jobs, QueueSite(6, 6 * IDLE_W + float(rng.uniform(1.05, 1.8)) * most_w, IDLE_W)


def round_ways(ways: Sequence[Way]) -> tuple[Way, ...]:
    """Return ways with times rounded up to whole slots."""
    times = [math.ceil(way.time_s / SLOT_S - 1e-9) * SLOT_S for way in ways]
    return tuple(way._replace(planned_s=t, time_s=t) for way, t in zip(ways, times, strict=True))


def solve_optimum(jobs: Sequence[QueueJob], site: QueueSite, goal: str, limit_s: float = 1800.0) -> tuple[float, float]:
    """Return the least makespan or the least mean time from submission to end (`turnaround`), and the gap (s, share).

    A binary variable is one job, one cap and one start slot. Each job starts once; in each slot nodes and power
    suffice. Raises RuntimeError where HiGHS finds no schedule.
    """
    import highspy

    every = [list_every_way(FIT, job, STEPS, site) for job in jobs]
    ways = [round_ways([way for way in listed if way.extra_w <= site.room_w]) for listed in every]
    first = [round(job.submit_s / SLOT_S) for job in jobs]
    lengths = [[round(way.time_s / SLOT_S) for way in listed] for listed in ways]
    count = len(jobs)
    # No schedule is better in which a job ends so late that the goal exceeds that of a policy.
    reached = round(min(measure_policy(policy, jobs, site)[goal] for policy in COMPARED) / SLOT_S * 1e6) / 1e6
    last = [math.floor(min(first) + reached)] * count
    if goal == "turnaround":
        shortest = [min(listed) for listed in lengths]
        last = [first[k] + round(count * reached) - sum(shortest) + shortest[k] for k in range(count)]
    slots = max(last)
    # Rows: one start per job; nodes, then power of each slot; the end of each job is at most the makespan.
    columns: list[tuple[float, list[tuple[int, float]]]] = []
    for job, listed in enumerate(ways):
        for way, length in zip(listed, lengths[job], strict=True):
            for start in range(first[job], last[job] - length + 1):
                entries = [(job, 1.0)]
                entries += [(count + t, float(way.nodes)) for t in range(start, start + length)]
                entries += [(count + slots + t, way.extra_w) for t in range(start, start + length)]
                entries.append((count + 2 * slots + job, float(start + length)))
                columns.append((start + length - first[job] if goal == "turnaround" else 0.0, entries))
    columns.append((0.0 if goal == "turnaround" else 1.0, [(count + 2 * slots + job, -1.0) for job in range(count)]))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(columns), 2 * count + 2 * slots
    model.col_cost_ = np.array([cost for cost, _ in columns])
    model.col_lower_ = np.zeros(len(columns))
    model.col_upper_ = np.array([1.0] * (len(columns) - 1) + [float(slots)])
    model.row_lower_ = np.array([1.0] * count + [-highspy.kHighsInf] * (2 * slots + count))
    model.row_upper_ = np.array([1.0] * count + [site.nodes] * slots + [site.room_w] * slots + [0.0] * count)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = np.cumsum([0, *(len(entries) for _, entries in columns)])
    model.a_matrix_.index_ = np.array([row for _, entries in columns for row, _ in entries])
    model.a_matrix_.value_ = np.array([value for _, entries in columns for _, value in entries])
    model.integrality_ = [highspy.HighsVarType.kInteger] * (len(columns) - 1) + [highspy.HighsVarType.kContinuous]
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    solver.setOptionValue("time_limit", limit_s)
    solver.setOptionValue("threads", 1)
    solver.passModel(model)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        raise RuntimeError(f"HiGHS found no schedule: {solver.getModelStatus()}")
    least = info.objective_function_value * SLOT_S
    if goal == "makespan":
        return least - min(job.submit_s for job in jobs), info.mip_gap
    return least / count, info.mip_gap


def measure_policy(policy: Policy, jobs: Sequence[QueueJob], site: QueueSite) -> dict[str, float]:
    """Return makespan and mean time from submission to end of a policy, in s."""
    submits = [job.submit_s for job in jobs]
    ways = [round_ways(list_ways(policy, job, STEPS, site)) for job in jobs]
    starts = simulate_queue(submits, ways, policy, site)
    turnaround_s = sum(start.end_s - submits[start.job] for start in starts) / len(jobs)
    return {"makespan": max(start.end_s for start in starts) - min(submits), "turnaround": turnaround_s}


def measure_ratios(cases: int, seed: int) -> tuple[dict[tuple[str, str], list[float]], float]:
    """Return the ratios to the optimum by policy and goal, of cases with 5 to 7 jobs, and the largest gap."""
    rng = np.random.default_rng(seed)
    ratios: dict[tuple[str, str], list[float]] = {}
    largest = 0.0
    for case in range(cases):
        jobs, site = make_small_case(rng, 5 + case % 3)
        for goal in ("makespan", "turnaround"):
            begin = time.process_time()
            optimum_s, gap = solve_optimum(jobs, site, goal)
            largest = max(largest, gap)
            found = {policy.name: measure_policy(policy, jobs, site)[goal] / optimum_s for policy in COMPARED}
            for name, ratio in found.items():
                ratios.setdefault((name, goal), []).append(ratio)
            shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in found.items())
            took = time.process_time() - begin
            print(f"  case {case + 1}, {len(jobs)} jobs, {goal}: {shown} ({took:.0f} s of CPU)", flush=True)
    return ratios, largest


def make_busy_stream(count: int, seed: int) -> JobStream:
    """Make jobs that keep a site of 24 nodes under 100 kW busy."""
    rng = np.random.default_rng(seed)
    submits = np.cumsum(rng.exponential(1700, count))
    nodes = rng.choice([1, 1, 1, 2, 2, 4], count)
    durations = np.clip(rng.lognormal(8.6, 0.9, count), 300, 86_400)
    jobs = tuple(
        QueueJob(
            f"j{k}", float(submits[k]), int(nodes[k]), float(durations[k]),
            Quantity(watts, {"gain:pdu": 0.005 * watts}), watts * 1.06, "made", 10_200.0,
        )
        for k, watts in enumerate(rng.uniform(5500, 7200, count).tolist())
    )  # fmt: skip
    return JobStream(jobs, f"{count} synthetic jobs")


def main() -> None:
    """Print the ratios to the optimum and the time for many jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=10_000)
    options = parser.parse_args()
    begin = time.process_time()
    ratios, gap = measure_ratios(options.cases, seed=9)
    print(f"{options.cases} cases of 5 to 7 jobs, {time.process_time() - begin:.0f} s of CPU, largest gap {gap:.2%}")
    for (name, goal), found in ratios.items():
        at_optimum = sum(ratio < 1 + 1e-9 for ratio in found)
        print(
            f"  {name:13s}{goal:11s} mean {np.mean(found):.3f}, worst {max(found):.3f}, optimal in {at_optimum}"
            f" of {len(found)}"
        )
    site, stream = QueueSite(24, 100e3, IDLE_W), make_busy_stream(options.jobs, 9)
    for policy in POLICIES:
        begin = time.process_time()
        compare_policies(stream, site, {"made": STEPS}, policies=(policy,), draws=0)
        print(f"  {policy.name:13s}{options.jobs} jobs in {time.process_time() - begin:6.2f} s of CPU")
    begin = time.process_time()
    draws = compare_policies(stream, site, {"made": STEPS}).draws
    took = time.process_time() - begin
    print(f"all policies, {options.jobs} jobs, {draws} draws: {took:.1f} s of CPU")


if __name__ == "__main__":
    main()
