"""Run jobs in virtual time under a policy: from event to event, jobs start as nodes and power allow.

A policy decides which waiting jobs start and under which caps. It plans by believed times and powers; jobs may take
longer in truth. No policy plans with more than the budget.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.queue.jobs import QueueJob
    from joulelab.plan.queue.site import CapSteps, QueueSite

LOOK_AHEAD = 100  # jobs behind the first waiting one that may start before it
SLACK_W = 1e-6  # sums of powers in another order differ in their last digits
SHORTEST_S = 10.0  # shorter jobs count as this long in slowdowns, or they would dominate the mean


@dataclass(frozen=True, slots=True)
class Policy:
    """Hold a rule: the power of a busy node that counts, whether later jobs may start first, how caps are chosen."""

    name: str
    counts: Literal["rated", "measured"] = "measured"
    has_backfill: bool = True
    goal: Literal["", "fit", "energy"] = ""


FIRST_COME = Policy("first come", has_backfill=False)
NAMEPLATE = Policy("by nameplate", counts="rated")
BACKFILL = Policy("backfill")
FIT = Policy("caps to fit", goal="fit")
ENERGY = Policy("least energy", goal="energy")
POLICIES = (FIRST_COME, NAMEPLATE, BACKFILL, FIT, ENERGY)


class Way(NamedTuple):
    """Hold one way to run a job: its cap (W per GPU, None: without) and powers of all its nodes (W) as believed.

    `step` is the place of the cap in the workload's list. `planned_s` is the time by which the policy plans, `time_s`
    the believed run time. `extra_w` is the part of the budget that it takes beyond the idle power of its nodes.
    """

    step: int
    cap_w: float | None
    nodes: int
    planned_s: float
    time_s: float
    mean_w: float
    high_w: float
    extra_w: float


class Start(NamedTuple):
    """Hold how a job ran: its place in the stream, start and end (s), and the way."""

    job: int
    start_s: float
    end_s: float
    way: Way


def list_every_way(policy: Policy, job: QueueJob, steps: CapSteps, site: QueueSite) -> list[Way]:
    """Return the ways to run a job that a policy allows, from the lowest cap, whether or not they fit the budget."""
    ways = []
    for k, step in enumerate(steps):
        if step.cap_w is not None and not policy.goal:
            continue
        mean_w = job.node_w.value * step.node.value
        high_w = mean_w if job.highest_w is None else max(job.highest_w * step.highest, mean_w)
        counted_w = high_w if site.count == "highest" else mean_w
        if policy.counts == "rated":
            counted_w = max(job.rated_w or site.rated_w or 0.0, counted_w)
        planned_s = (job.requested_s or job.duration_s) * step.slowdown.value
        time_s = job.duration_s * step.slowdown.value
        # A job below the idle power frees nothing for others: its nodes idle again when it ends.
        extra_w = job.nodes * max(counted_w - site.idle_w, 0.0)
        powers_w = job.nodes * mean_w, job.nodes * high_w
        ways.append(Way(k, step.cap_w, job.nodes, planned_s, time_s, *powers_w, extra_w))
    return ways


def list_ways(policy: Policy, job: QueueJob, steps: CapSteps, site: QueueSite) -> tuple[Way, ...]:
    """Return the ways that a policy chooses from, by ascending power; none if the job can never start."""
    ways = [way for way in list_every_way(policy, job, steps, site) if way.extra_w <= site.room_w + SLACK_W]
    if policy.goal == "energy" and ways:
        return (min(ways, key=lambda w: ((w.mean_w - w.nodes * site.idle_w) * w.time_s, w.time_s)),)
    if policy.goal == "fit" and ways:
        # Below the cap with the least power times time, fewer jobs get done, not more.
        leanest = min(ways, key=lambda w: (w.extra_w * w.time_s, w.time_s))
        kept: list[Way] = []
        for way in sorted(ways, key=lambda w: (w.extra_w, w.time_s)):
            if way.extra_w >= leanest.extra_w and (not kept or way.time_s < kept[-1].time_s):
                kept.append(way)
        return tuple(kept)
    return tuple(ways)


@dataclass(slots=True)
class SiteState:
    """Hold free nodes and power (W) at a moment; `running` jobs have planned end (s), place, nodes and extra W."""

    now_s: float
    free: int
    room_w: float
    running: list[tuple[float, int, int, float]]


@dataclass(slots=True)
class Choice:
    """Hold a job that starts: its place in the queue, its ways, the chosen one; `is_beyond`: it ends after the hold."""

    place: int
    ways: tuple[Way, ...]
    at: int
    is_beyond: bool = False

    @property
    def way(self) -> Way:
        """Return the chosen way."""
        return self.ways[self.at]


@dataclass(slots=True)
class Hold:
    """Hold a reservation for the first waiting job: its start (s), and the nodes and power (W) that others may keep."""

    from_s: float
    nodes: int
    spare_w: float


def simulate_queue(
    submits_s: Sequence[float],
    ways: Sequence[tuple[Way, ...]],
    policy: Policy,
    site: QueueSite,
    times_s: Sequence[Sequence[float]] | None = None,
) -> list[Start]:
    """Return the starts of all jobs in their order.

    `submits_s` ascend; each job has a way that fits an empty site. `times_s` are the true run times of each job by
    step, where they differ from the believed ones.
    """
    state = SiteState(0.0, site.nodes, site.room_w, [])
    ends: list[tuple[float, int]] = []
    planned: dict[int, tuple[float, int, int, float]] = {}
    queue: list[int] = []
    waiting: list[tuple[Way, ...]] = []
    starts: list[Start] = []
    coming, count = 0, len(submits_s)
    while coming < count or ends:
        next_s = submits_s[coming] if coming < count else float("inf")
        state.now_s = min(ends[0][0], next_s) if ends else next_s
        while ends and ends[0][0] <= state.now_s:
            over = planned.pop(heapq.heappop(ends)[1])
            del state.running[bisect_left(state.running, over)]
            state.free += over[2]
            state.room_w += over[3]
        if not state.running:
            state.room_w = site.room_w  # rounding errors are not carried on
        while coming < count and submits_s[coming] <= state.now_s:
            queue.append(coming)
            waiting.append(ways[coming])
            coming += 1
        if not waiting or not state.free:
            continue
        chosen = choose_starts(policy, waiting, state)
        for choice in chosen:
            job, way = queue[choice.place], choice.way
            end_s = state.now_s + (way.time_s if times_s is None else times_s[job][way.step])
            planned[job] = (state.now_s + way.planned_s, job, way.nodes, way.extra_w)
            insort(state.running, planned[job])
            heapq.heappush(ends, (end_s, job))
            starts.append(Start(job, state.now_s, end_s, way))
        for choice in reversed(chosen):  # their places ascend
            del queue[choice.place], waiting[choice.place]
    return starts


def choose_starts(policy: Policy, waiting: Sequence[tuple[Way, ...]], state: SiteState) -> list[Choice]:
    """Return the waiting jobs that start now, by place in the queue; their nodes and power are taken from `state`."""
    chosen: list[Choice] = []
    for place, ways in enumerate(waiting):
        if not _start_job(state, place, ways, 0, chosen):
            break
    first = len(chosen)
    # While the first job waits for power, the rest is not spent on higher caps: running jobs would hold it longer.
    has_spare = policy.goal == "fit" and (first == len(waiting) or waiting[first][0].extra_w <= state.room_w + SLACK_W)
    if has_spare:
        raise_caps(state, Hold(float("inf"), 0, float("inf")), chosen)
    if policy.has_backfill and first < len(waiting) and state.free:
        hold = reserve_start(waiting[first][0], state, chosen)
        for place in range(first + 1, min(first + 1 + LOOK_AHEAD, len(waiting))):
            if not state.free:
                break
            leanest = waiting[place][0]
            if leanest.nodes <= state.free and leanest.extra_w <= state.room_w + SLACK_W:  # false for most jobs
                _backfill_job(state, place, waiting[place], hold, chosen)
        if has_spare:
            raise_caps(state, hold, chosen)
    return chosen


def _start_job(state: SiteState, place: int, ways: tuple[Way, ...], at: int, chosen: list[Choice]) -> bool:
    way = ways[at]
    if way.nodes > state.free or way.extra_w > state.room_w + SLACK_W:
        return False
    state.free -= way.nodes
    state.room_w -= way.extra_w
    chosen.append(Choice(place, ways, at))
    return True


def _backfill_job(state: SiteState, place: int, ways: tuple[Way, ...], hold: Hold, chosen: list[Choice]) -> None:
    """Start a job before the first waiting one if it ends by the hold, or needs nothing that is reserved."""
    in_time = [at for at, way in enumerate(ways) if state.now_s + way.planned_s <= hold.from_s]
    if any(_start_job(state, place, ways, at, chosen) for at in in_time):
        return
    for at, way in enumerate(ways):
        is_spare = way.nodes <= hold.nodes and way.extra_w <= hold.spare_w + SLACK_W
        if at not in in_time and is_spare and _start_job(state, place, ways, at, chosen):
            chosen[-1].is_beyond = True
            hold.nodes -= way.nodes
            hold.spare_w -= way.extra_w
            return


def reserve_start(wanted: Way, state: SiteState, chosen: Sequence[Choice]) -> Hold:
    """Return the moment from which a job has nodes and power, if all jobs end as planned."""
    started = [(state.now_s + c.way.planned_s, c.place, c.way.nodes, c.way.extra_w) for c in chosen]
    free, room_w, from_s = state.free, state.room_w, state.now_s
    for end_s, _, nodes, extra_w in heapq.merge(state.running, sorted(started)):
        if free >= wanted.nodes and room_w + SLACK_W >= wanted.extra_w and end_s > from_s:
            break
        free, room_w, from_s = free + nodes, room_w + extra_w, max(end_s, from_s)
    for each in chosen:
        each.is_beyond = state.now_s + each.way.planned_s > from_s
    return Hold(from_s, free - wanted.nodes, room_w - wanted.extra_w)


def raise_caps(state: SiteState, hold: Hold, chosen: Sequence[Choice]) -> None:
    """Raise caps of starting jobs with the power that is left, first where a watt saves most time; keep the hold."""
    heap = [(-_value_watt(each), k) for k, each in enumerate(chosen) if each.at + 1 < len(each.ways)]
    heapq.heapify(heap)
    while heap:
        _, k = heapq.heappop(heap)
        each = chosen[k]
        higher = each.ways[each.at + 1]
        more_w = higher.extra_w - each.way.extra_w
        is_beyond = each.is_beyond and state.now_s + higher.planned_s > hold.from_s
        if more_w > state.room_w or (is_beyond and more_w > hold.spare_w):
            continue
        state.room_w -= more_w
        if is_beyond:
            hold.spare_w -= more_w
        each.at, each.is_beyond = each.at + 1, is_beyond
        if each.at + 1 < len(each.ways):
            heapq.heappush(heap, (-_value_watt(each), k))


def _value_watt(choice: Choice) -> float:
    """Return the time (s) that one more W saves."""
    low, high = choice.way, choice.ways[choice.at + 1]
    more_w = high.extra_w - low.extra_w
    return (low.planned_s - high.planned_s) / more_w if more_w > 0 else float("inf")


@dataclass(frozen=True)
class PowerTrace:
    """Hold the power of a site between edges (s): the sum of mean and of highest powers (W), and busy nodes."""

    edges_s: Floats
    mean_w: Floats
    high_w: Floats
    busy: Floats


def trace_power(starts: Sequence[Start], first_s: float, site: QueueSite, factors: Floats | float = 1.0) -> PowerTrace:
    """Return the power from the first submission to the last end; `factors` multiply the powers of each start."""
    begin = np.array([s.start_s for s in starts])
    end = np.array([s.end_s for s in starts])
    levels = np.array([[s.way.mean_w, s.way.high_w, s.way.nodes] for s in starts], dtype=float)
    levels[:, :2] *= np.broadcast_to(factors, len(starts))[:, None]
    edges, place = np.unique(np.concatenate([[first_s], begin, end]), return_inverse=True)
    sums = np.zeros((len(edges), 3))
    np.add.at(sums, place, np.concatenate([np.zeros((1, 3)), levels, -levels]))
    level = np.cumsum(sums, axis=0)[:-1]
    busy = np.rint(level[:, 2])
    level[busy == 0, :2] = 0.0  # rounding errors of the sum
    idle_w = (site.nodes - busy) * site.idle_w
    return PowerTrace(edges, level[:, 0] + idle_w, level[:, 1] + idle_w, busy)


def compute_figures(
    starts: Sequence[Start], jobs: Sequence[QueueJob], site: QueueSite, factors: Floats | float = 1.0
) -> dict[str, float]:
    """Return the figures of a schedule, units in their names; `factors` multiply the powers of each start."""
    trace = trace_power(starts, jobs[0].submit_s, site, factors)
    steps_s = np.diff(trace.edges_s)
    submit = np.array([jobs[s.job].submit_s for s in starts])
    begin, end = np.array([s.start_s for s in starts]), np.array([s.end_s for s in starts])
    waits = begin - submit
    alone = np.array([max(jobs[s.job].duration_s, SHORTEST_S) for s in starts])
    mean_w = np.array([s.way.mean_w for s in starts]) * factors
    jobs_j = float((mean_w * (end - begin)).sum())
    idle_j = float(((site.nodes - trace.busy) * site.idle_w * steps_s).sum())
    return {
        "energy_j": jobs_j + idle_j,
        "jobs_j": jobs_j,
        "idle_j": idle_j,
        "makespan_s": float(trace.edges_s[-1] - trace.edges_s[0]),
        "turnaround_s": float((end - submit).mean()),
        "wait_s": float(waits.mean()),
        "wait_p95_s": float(np.percentile(waits, 95)),
        "longest_wait_s": float(waits.max()),
        "slowdown": float(np.maximum((end - submit) / alone, 1.0).mean()),
        "peak_mean_w": float(trace.mean_w.max()),
        "peak_highest_w": float(trace.high_w.max()),
    }
