"""Solve small problems of when to run a job by trying everything: slow, plain, and not by the same way."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Mode = tuple[float, float]  # speed, power in W


def cheapest(
    rates: Sequence[float],
    lengths: Sequence[float],
    work: float,
    modes: Sequence[Mode],
    pause_w: float | None,
    *,
    wait_w: float = 0.0,
) -> float:
    """Return the least cost over all windows, all modes by slot, and all mixes of two modes in one slot.

    Until the job starts, also within its first slot, the node draws `wait_w`. A linear problem with one condition on
    the whole has an optimum in which at most one slot is mixed.
    """
    inner = [*modes, *([] if pause_w is None else [(0.0, pause_w)])]
    outer = [*modes, (0.0, 0.0)]
    count = len(rates)
    if pause_w == 0 and not wait_w:  # then it does not matter where the job starts and ends
        return _window(rates, lengths, work, [outer] * count)
    begins = [*modes, (0.0, wait_w)]
    best = float("inf")
    for first in range(count):
        for last in range(first, count):
            held = [outer] if first == last else [begins, *[inner] * (last - first - 1), outer]
            kinds = [*[[(0.0, wait_w)]] * first, *held, *[[(0.0, 0.0)]] * (count - 1 - last)]
            best = min(best, _window(rates, lengths, work, kinds))
    return best


def _window(rates: Sequence[float], lengths: Sequence[float], work: float, kinds: Sequence[Sequence[Mode]]) -> float:
    best = float("inf")
    for chosen in product(*kinds):
        done = sum(m[0] * s for m, s in zip(chosen, lengths, strict=True))
        cost = sum(r * m[1] * s for r, m, s in zip(rates, chosen, lengths, strict=True))
        if abs(done - work) < 1e-9 * work:
            best = min(best, cost)
        for t, (was, length) in enumerate(zip(chosen, lengths, strict=True)):
            for other in kinds[t]:
                change = (other[0] - was[0]) * length
                share = (work - done) / change if change else -1.0
                if 0 <= share <= 1:
                    best = min(best, cost + share * rates[t] * (other[1] - was[1]) * length)
    return best


def cheapest_blocks(
    rates: Sequence[float],
    length: float,
    work: float,
    power: float,
    pause_w: float,
    again_s: float,
    again_j: float,
    *,
    waits: bool = False,
) -> float:
    """Return the least cost over all sets of slots in which a job runs, the last one until its work is done."""
    best = float("inf")
    for runs in product((False, True), repeat=len(rates)):
        if True not in runs:
            continue
        first, last = runs.index(True), len(runs) - 1 - runs[::-1].index(True)
        left, cost = work, sum(rates[:first]) * pause_w * length if waits else 0.0
        for t in range(first, last + 1):
            if not runs[t]:
                cost += rates[t] * pause_w * length
                continue
            again = t > first and not runs[t - 1]
            cost += rates[t] * again_j if again else 0.0
            left += again_s if again else 0.0
            took = length if t < last else left
            if (t < last and left <= length) or not 0 < took <= length:
                break  # done before the last slot, or not in it
            left -= took
            cost += rates[t] * power * took
        else:
            best = min(best, cost) if abs(left) < 1e-9 else best
    return best
