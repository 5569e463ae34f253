"""Measure schedules under a power budget: how far from the best possible, and how fast for many jobs.

`optimum` tries all orders and all caps of a few jobs, knowing all that will be submitted; the policies know only what
was. Speed is told as jobs/s and as a ratio to what the same process needs for a plain loop.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.quantity import Quantity
from joulelab.plan.queue.caps import FREE, Curve, Step, options_of, truths_of
from joulelab.plan.queue.jobs import Job, Stream
from joulelab.plan.queue.outcome import compare
from joulelab.plan.queue.policies import BACKFILL, ENERGY, FIT, POLICIES, WAITS, allowed
from joulelab.plan.queue.simulate import simulate
from joulelab.plan.queue.site import Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.queue.caps import Option

# Time and power ratios of an H100 node by the cap of its GPUs: between the published cap curves of other GPUs.
CURVE: Curve = (
    Step(400.0, Quantity(1.095, {"time:400": 0.02}), Quantity(0.72, {"power:400": 0.01}), 0.72),
    Step(500.0, Quantity(1.05, {"time:500": 0.015}), Quantity(0.82, {"power:500": 0.01}), 0.82),
    Step(600.0, Quantity(1.02, {"time:600": 0.01}), Quantity(0.92, {"power:600": 0.01}), 0.92),
    FREE,
)
SLACK_W = 1e-6


@dataclass(frozen=True)
class Best:
    """Hold the least makespan and the least mean time from submission to end that any order and caps reach, in s."""

    makespan_s: float
    turnaround_s: float


def optimum(submits_s: Sequence[float], options: Sequence[Sequence[Option]], site: Site) -> Best:
    """Try all orders and caps, each job as early as what is placed already allows: one of them is the best."""
    least = [float("inf"), float("inf")]
    for order in itertools.permutations(range(len(submits_s))):
        for ways in itertools.product(*options):
            ends = _placed(order, submits_s, ways, site)
            first = min(submits_s)
            least[0] = min(least[0], max(ends) - first)
            least[1] = min(least[1], sum(e - s for e, s in zip(ends, submits_s, strict=True)) / len(ends))
    return Best(*least)


def _placed(order: Sequence[int], submits_s: Sequence[float], ways: Sequence[Option], site: Site) -> list[float]:
    """Return when each job ends, placed one by one at the earliest time at which it fits for as long as it takes."""
    placed: list[tuple[float, float, Option]] = []
    ends = [0.0] * len(order)
    for job in order:
        way = ways[job]
        times = sorted({submits_s[job], *(end for _, end, _ in placed if end > submits_s[job])})
        begin = next(t for t in times if _fits(t, way, placed, site))
        ends[job] = begin + way.planned_s
        placed.append((begin, ends[job], way))
    return ends


def _fits(begin: float, way: Option, placed: Sequence[tuple[float, float, Option]], site: Site) -> bool:
    end = begin + way.planned_s
    moments = [begin, *(since for since, _, _ in placed if begin < since < end)]
    for moment in moments:
        there = [other for since, until, other in placed if since <= moment < until]
        if sum(o.nodes for o in there) + way.nodes > site.nodes:
            return False
        if sum(o.extra_w for o in there) + way.extra_w > site.room_w + SLACK_W:
            return False
    return True


def small_case(rng: np.random.Generator, jobs: int) -> tuple[list[Job], Site]:
    """Return a few jobs, some at once, on a site whose power is what limits."""
    submits = np.sort(np.where(rng.random(jobs) < 0.5, 0.0, rng.uniform(0, 3000, jobs)))
    found = [
        Job(f"j{k}", float(submits[k]), int(rng.integers(1, 4)), float(rng.uniform(600, 6000)),
            Quantity(watts := float(rng.uniform(4000, 7200))), watts * 1.05, "made")
        for k in range(jobs)
    ]  # fmt: skip
    most = max(job.nodes * ((job.highest_w or 0) - 2200) for job in found)
    return found, Site(6, 6 * 2200.0 + float(rng.uniform(1.05, 1.8)) * most, 2200.0)


def gaps(count: int, jobs: int, caps: int, seed: int) -> dict[str, np.ndarray]:
    """Return how far policies are from the best possible: makespan and mean turnaround, as shares, by policy."""
    rng = np.random.default_rng(seed)
    curve = (*CURVE[: caps - 1], FREE)
    rows: dict[str, list[tuple[float, float]]] = {}
    for _ in range(count):
        made, site = small_case(rng, jobs)
        truth = truths_of({"made": curve}, None)["made"]
        options = [options_of(job, curve, truth, site, None) for job in made]
        submits = [job.submit_s for job in made]
        best = optimum(submits, options, site)
        for policy in (WAITS, BACKFILL, FIT, ENERGY):
            ways = [allowed(policy, own, job, site) for own, job in zip(options, made, strict=True)]
            starts = simulate(submits, ways, policy, site)
            makespan = max(s.end_s for s in starts) - min(submits)
            turnaround = sum(s.end_s - s.submit_s for s in starts) / len(starts)
            rows.setdefault(policy.name, []).append(
                (makespan / best.makespan_s - 1, turnaround / best.turnaround_s - 1)
            )
    return {name: np.array(of) for name, of in rows.items()}


def busy_stream(count: int, seed: int) -> Stream:
    """Return jobs that keep a site of 24 nodes under 100 kW busy."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1700, count))
    nodes = rng.choice([1, 1, 1, 2, 2, 4], count)
    last_s = np.clip(rng.lognormal(8.6, 0.9, count), 300, 86_400)
    node_w = rng.uniform(5500, 7200, count)
    jobs = tuple(
        Job(f"j{k}", float(at[k]), int(nodes[k]), float(last_s[k]), Quantity(watts, {"gain:pdu": 0.005 * watts}),
            watts * 1.06, "made", 10_200.0)
        for k, watts in enumerate(node_w.tolist())
    )  # fmt: skip
    return Stream(jobs, f"{count} synthetic jobs")


def _plain_loop_s(count: int) -> float:
    begin = time.perf_counter()
    total = 0.0
    for k in range(count):
        total += k * 0.5
    return time.perf_counter() - begin


def main() -> None:
    """Print the gaps, the speed, and what caps change on a synthetic stream."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    print(f"{options.cases} cases of 4 jobs, 3 caps each, against all orders and caps (which know the future)")
    for name, rows in gaps(options.cases, 4, 3, seed=9).items():
        mean, p95, worst = rows.mean(axis=0), np.percentile(rows, 95, axis=0), rows.max(axis=0)
        for k, what in enumerate(("makespan", "turnaround")):
            best = (rows[:, k] < 1e-9).mean()
            print(
                f"  {name:13s} {what:10} +{mean[k]:.1%} mean, +{p95[k]:.1%} p95, +{worst[k]:.0%} worst, {best:.0%} best"
            )
    site, stream = Site(24, 100e3, 2200.0), busy_stream(options.jobs, 9)
    per_pass = min(_plain_loop_s(1_000_000) for _ in range(5)) / 1e6
    for policy in POLICIES:
        begin = time.perf_counter()
        compare(stream, site, {"made": CURVE}, policies=(policy,), draws=0)
        took = time.perf_counter() - begin
        print(f"  {policy.name:13s} {took:6.2f} s, {options.jobs / took:8.0f} jobs/s, "
              f"{took / options.jobs / per_pass:6.0f} passes of a plain loop per job")  # fmt: skip
    short = replace(stream, jobs=stream.jobs[:200])
    begin = time.perf_counter()
    found = compare(short, site, {"made": CURVE}, draws=options.draws)
    print(f"  200 jobs, all policies, {options.draws} draws: {time.perf_counter() - begin:.2f} s")
    for each in found.outcomes:
        energy, wait = each.figure("energy_j") * (1 / 3.6e9), each.figure("wait_s") * (1 / 3600)
        over_h = each.drawn[0]["over_highest_s"] / 3600
        print(f"  {each.policy.name:13s} energy {energy} MWh, wait {wait} h, over {over_h:.1f} h")


if __name__ == "__main__":
    main()
