"""Run jobs in virtual time under a policy: from event to event, a job starts when the policy says so."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

from joulelab.plan.queue.policies import Now, choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.queue.caps import Option
    from joulelab.plan.queue.policies import Policy
    from joulelab.plan.queue.site import Site


class Start(NamedTuple):
    """Hold how a job was run: its number in the stream, when it was submitted and started (s), and how."""

    job: int
    submit_s: float
    start_s: float
    option: Option

    @property
    def end_s(self) -> float:
        """Return when it ended, in s."""
        return self.start_s + self.option.time_s


def simulate(
    submits_s: Sequence[float], options: Sequence[tuple[Option, ...]], policy: Policy, site: Site
) -> list[Start]:
    """Return when every job started and how, in the order of their starts.

    `submits_s` ascend; every job has at least one option, which fits the site when nothing else runs.
    """
    now = Now(0.0, site.nodes, site.room_w, [])
    ends: list[tuple[float, int]] = []
    planned: dict[int, tuple[float, int, int, float]] = {}
    queue: list[int] = []
    waiting: list[tuple[Option, ...]] = []
    starts: list[Start] = []
    coming = 0
    while coming < len(submits_s) or ends:
        next_s = submits_s[coming] if coming < len(submits_s) else float("inf")
        now.at_s = min(ends[0][0], next_s) if ends else next_s
        _end(now, ends, planned)
        if not now.running:
            now.room_w = site.room_w  # what was rounded is not carried on
        while coming < len(submits_s) and submits_s[coming] <= now.at_s:
            queue.append(coming)
            waiting.append(options[coming])
            coming += 1
        if not waiting or not now.free:
            continue
        chosen = choose(policy, waiting, now)
        for place, option in chosen:
            job = queue[place]
            planned[job] = (now.at_s + option.planned_s, job, option.nodes, option.extra_w)
            insort(now.running, planned[job])
            heapq.heappush(ends, (now.at_s + option.time_s, job))
            starts.append(Start(job, submits_s[job], now.at_s, option))
        for place, _ in reversed(chosen):  # their places ascend
            del queue[place], waiting[place]
    return starts


def _end(now: Now, ends: list[tuple[float, int]], planned: dict[int, tuple[float, int, int, float]]) -> None:
    """Give back what the jobs held that are over by now."""
    while ends and ends[0][0] <= now.at_s:
        over = planned.pop(heapq.heappop(ends)[1])
        del now.running[bisect_left(now.running, over)]
        now.free += over[2]
        now.room_w += over[3]
