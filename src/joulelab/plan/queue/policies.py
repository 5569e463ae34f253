"""Decide which waiting jobs start, and under which caps: first come first served, backfill, caps that let more fit."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.queue.caps import Option
    from joulelab.plan.queue.jobs import Job
    from joulelab.plan.queue.site import Site

LOOKS_AT = 100  # jobs behind the first one that waits, for one that may go before it
SLACK_W = 1e-6  # sums of powers in another order are not the same to the last digit


@dataclass(frozen=True, slots=True)
class Policy:
    """Hold a rule: what a busy node counts as, whether later jobs may go first, and how caps are chosen.

    `counts` nothing where the budget is ignored, the nameplate, or what was measured. Without a `goal` no cap is set.
    """

    name: str
    said: str
    counts: Literal["nothing", "rated", "measured"]
    backfill: bool = False
    goal: Literal["", "fit", "energy"] = ""


FIRST_COME = Policy("first come", "first come, first served, no caps; the budget is ignored", "nothing")
WAITS = Policy("waits", "first come, first served, no caps; the first job waits for nodes and power", "measured")
NAMEPLATE = Policy("nameplate", "as backfill, each busy node counted at its nameplate", "rated", backfill=True)
BACKFILL = Policy(
    "backfill", "later jobs go first where they do not delay the first one that waits", "measured", backfill=True
)
FIT = Policy(
    "caps to fit", "as backfill, caps chosen so that more jobs run at once", "measured", backfill=True, goal="fit"
)
ENERGY = Policy(
    "least energy",
    "as backfill, each job under the cap at which it adds least energy",
    "measured",
    backfill=True,
    goal="energy",
)
POLICIES = (FIRST_COME, WAITS, NAMEPLATE, BACKFILL, FIT, ENERGY)


def allowed(policy: Policy, options: Sequence[Option], job: Job, site: Site) -> tuple[Option, ...]:
    """Return the ways to run a job that a policy chooses from, from the least power to the most.

    All of them fit a site on which nothing else runs: none where the job can never start. Raises ConfigError where a
    nameplate is not known.
    """
    free = options[-1]
    if policy.counts == "nothing":
        return (free._replace(extra_w=0.0),)
    if policy.counts == "rated":
        rated_w = job.rated_w or site.rated_w
        if rated_w is None:
            raise ConfigError(f"the nameplate of job {job.id}'s nodes is not known", next="give --rated")
        options = [free._replace(extra_w=job.nodes * max(rated_w - site.rest_w, 0.0))]
    elif not policy.goal:
        options = [free]
    fits = [option for option in options if option.extra_w <= site.room_w + SLACK_W]
    if policy.goal and fits:
        return _chosen(policy, fits, site)
    return tuple(fits)


def _chosen(policy: Policy, options: Sequence[Option], site: Site) -> tuple[Option, ...]:
    """Return the caps worth choosing from, by what each adds to what the site draws anyhow."""
    if policy.goal == "energy":
        return (min(options, key=lambda o: ((o.planned_w - o.nodes * site.rest_w) * o.planned_s, o.planned_s)),)
    # Below the cap with the least use of the budget over time, fewer jobs get done, not more.
    least = min(options, key=lambda o: (o.extra_w * o.planned_s, o.planned_s))
    found: list[Option] = []
    for option in sorted(options, key=lambda o: (o.extra_w, o.planned_s)):
        if option.extra_w >= least.extra_w and (not found or option.planned_s < found[-1].planned_s):
            found.append(option)
    return tuple(found)


@dataclass(slots=True)
class Now:
    """Hold what is free at a moment: nodes, and power (W). `running` are planned end (s), number, nodes and extra W."""

    at_s: float
    free: int
    room_w: float
    running: list[tuple[float, int, int, float]]


@dataclass(slots=True)
class _Taken:
    """Hold a job that starts: its place in the queue, its ways to run, and which of them."""

    place: int
    options: tuple[Option, ...]
    at: int
    beyond: bool = False

    @property
    def option(self) -> Option:
        return self.options[self.at]


@dataclass(slots=True)
class _Hold:
    """Hold what is kept for the first job that waits: from when on it can start (s), and what is spare then."""

    from_s: float
    nodes: int
    spare_w: float


def choose(policy: Policy, waiting: Sequence[tuple[Option, ...]], now: Now) -> list[tuple[int, Option]]:
    """Return the places in the queue of the jobs that start now, and how; what they take is taken from `now`."""
    taken: list[_Taken] = []
    for place, options in enumerate(waiting):
        if not _take(now, place, options, 0, taken):
            break
    first = len(taken)
    # Where somebody waits for power, what is left is not worth more time of those that run: they would keep it longer.
    raises = policy.goal == "fit" and (first == len(waiting) or waiting[first][0].extra_w <= now.room_w + SLACK_W)
    if raises:
        _raise(now, _Hold(float("inf"), 0, float("inf")), taken)
    if policy.backfill and first < len(waiting) and now.free:
        hold = _hold(waiting[first][0], now, taken)
        for place in range(first + 1, min(first + 1 + LOOKS_AT, len(waiting))):
            if not now.free:
                break
            leanest = waiting[place][0]
            if leanest.nodes <= now.free and leanest.extra_w <= now.room_w + SLACK_W:  # most are not: be quick
                _take_behind(now, place, waiting[place], hold, taken)
        if raises:
            _raise(now, hold, taken)
    return [(each.place, each.option) for each in taken]


def _take(now: Now, place: int, options: tuple[Option, ...], at: int, taken: list[_Taken]) -> bool:
    """Start a job if there are nodes and power for it."""
    option = options[at]
    if option.nodes > now.free or option.extra_w > now.room_w + SLACK_W:
        return False
    now.free -= option.nodes
    now.room_w -= option.extra_w
    taken.append(_Taken(place, options, at))
    return True


def _take_behind(now: Now, place: int, options: tuple[Option, ...], hold: _Hold, taken: list[_Taken]) -> None:
    """Start a job before the first that waits, if it is over by then or does not need what is kept."""
    over = [at for at, option in enumerate(options) if now.at_s + option.planned_s <= hold.from_s]
    if any(_take(now, place, options, at, taken) for at in over):
        return
    for at, option in enumerate(options):
        spare = option.nodes <= hold.nodes and option.extra_w <= hold.spare_w + SLACK_W
        if at not in over and spare and _take(now, place, options, at, taken):
            taken[-1].beyond = True
            hold.nodes -= option.nodes
            hold.spare_w -= option.extra_w
            return


def _hold(wanted: Option, now: Now, taken: Sequence[_Taken]) -> _Hold:
    """Return from when on there will be nodes and power for a job, if all goes as planned."""
    started = [(now.at_s + t.option.planned_s, t.place, t.option.nodes, t.option.extra_w) for t in taken]
    free, room_w, from_s = now.free, now.room_w, now.at_s
    for end_s, _, nodes, extra_w in heapq.merge(now.running, sorted(started)):
        if free >= wanted.nodes and room_w + SLACK_W >= wanted.extra_w and end_s > from_s:
            break
        free, room_w, from_s = free + nodes, room_w + extra_w, max(end_s, from_s)
    for each in taken:
        each.beyond = now.at_s + each.option.planned_s > from_s
    return _Hold(from_s, free - wanted.nodes, room_w - wanted.extra_w)


def _raise(now: Now, hold: _Hold, taken: Sequence[_Taken]) -> None:
    """Raise caps with the power that is left, where a watt saves most time, and not with what is kept."""
    heap = [(-_worth(each), k) for k, each in enumerate(taken) if each.at + 1 < len(each.options)]
    heapq.heapify(heap)
    while heap:
        _, k = heapq.heappop(heap)
        each = taken[k]
        higher = each.options[each.at + 1]
        more_w = higher.extra_w - each.option.extra_w
        beyond = each.beyond and now.at_s + higher.planned_s > hold.from_s
        if more_w > now.room_w or (beyond and more_w > hold.spare_w):
            continue
        now.room_w -= more_w
        if beyond:
            hold.spare_w -= more_w
        each.at, each.beyond = each.at + 1, beyond
        if each.at + 1 < len(each.options):
            heapq.heappush(heap, (-_worth(each), k))


def _worth(taken: _Taken) -> float:
    """Return how many s one more W saves."""
    low, high = taken.option, taken.options[taken.at + 1]
    more_w = high.extra_w - low.extra_w
    return (low.planned_s - high.planned_s) / more_w if more_w > 0 else float("inf")
