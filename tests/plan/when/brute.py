"""Solve small problems of when to run a job by trying everything: slow, plain, and not by a program.

With the slots chosen in which the job starts, runs, pauses and ends, what is left has one condition on the whole (the
work). Such a linear problem has an optimum in which each slot is in one mode, except for at most one that is in two.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Mode = tuple[float, float]  # speed, power in W
Kind = tuple[float, list[Mode]]  # the time of a slot that is left (s), and its modes


def find_least_cost(
    rates: Sequence[float], lengths: Sequence[float], work: float, modes: Sequence[Mode], pause_w: float, *,
    wait_w: float = 0.0,
) -> float:  # fmt: skip
    """Return the least cost over all first and last slots; pauses are free to come and go in between."""
    count, best = len(rates), float("inf")
    for first in range(count):
        for last in range(first, count):
            waits = sum(max(rates[t], 0.0) * wait_w * lengths[t] for t in range(first))
            kinds = []
            for t in range(first, last + 1):
                rest_w = 0.0 if t == last else wait_w if t == first else pause_w
                kinds.append((lengths[t], [*modes, (0.0, rest_w)]))
            best = min(best, waits + _fill_slots(rates[first : last + 1], work, kinds))
    return best


def find_least_cost_with_restarts(
    rates: Sequence[float], lengths: Sequence[float], work: float, modes: Sequence[Mode], pause_w: float, *,
    wait_w: float, again_s: float, again_j: float,
) -> float:  # fmt: skip
    """Return the least cost over all slots in which the job runs, and all edges of them over which it runs on."""
    best, full_w = float("inf"), max(power for _, power in modes)
    for runs, goes_on in _list_patterns(len(rates)):
        first, last = runs.index(True), len(runs) - 1 - runs[::-1].index(True)
        cost = sum(max(rates[t], 0.0) * wait_w * lengths[t] for t in range(first))
        kinds: list[Kind] = []
        for t in range(first, last + 1):
            comes, leaves = t > first and goes_on[t - 1], t < last and goes_on[t]
            restarts = runs[t] and t > first and not comes
            cost += rates[t] * (full_w * again_s + again_j) if restarts else 0.0
            left = lengths[t] - (again_s if restarts else 0.0)
            rest_w = 0.0 if t == last else wait_w if t == first else pause_w
            some = [*modes] if comes and leaves else [*modes, (0.0, rest_w)] if runs[t] else [(0.0, pause_w)]
            kinds.append((left, some))
        if all(left >= 0 for left, _ in kinds):
            best = min(best, cost + _fill_slots(rates[first : last + 1], work, kinds))
    return best


def _list_patterns(count: int) -> Iterator[tuple[tuple[bool, ...], tuple[bool, ...]]]:
    for runs in product((False, True), repeat=count):
        edges = [(False, True) if a and b else (False,) for a, b in pairwise(runs)]
        yield from ((runs, goes_on) for goes_on in product(*edges) if any(runs))


def _fill_slots(rates: Sequence[float], work: float, kinds: Sequence[Kind]) -> float:
    """Return the least cost with each slot in one of its modes, and one in two; idling is not paid for."""

    def price(t: int, mode: Mode) -> float:
        return (rates[t] if mode[0] else max(rates[t], 0.0)) * mode[1] * kinds[t][0]

    best = float("inf")
    for chosen in product(*(modes for _, modes in kinds)):
        done = sum(mode[0] * kind[0] for mode, kind in zip(chosen, kinds, strict=True))
        cost = sum(price(t, mode) for t, mode in enumerate(chosen))
        if abs(done - work) < 1e-9 * work:
            best = min(best, cost)
        for t, was in enumerate(chosen):
            for other in kinds[t][1]:
                change = (other[0] - was[0]) * kinds[t][0]
                share = (work - done) / change if change else -1.0
                if 0 <= share <= 1:
                    best = min(best, cost + share * (price(t, other) - price(t, was)))
    return best
