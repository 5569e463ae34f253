"""Find the cheapest way to do a job's work before a deadline: when to run, when to pause, at which cap. Arrays only.

Time is cut in slots, each with a rate (cost per J). In a slot a job may be in modes (a speed and a power each), also in
several one after the other. The node belongs to the job from the slot in which it starts to the slot in which it ends:
between them it pauses at a power of its own, outside of them it costs nothing, except where it waits for the job to
start: until then it idles. For a given first and last slot this is a linear problem that filling up by marginal price
solves exactly, with at most one slot in two modes. Which slots are first and last is found by bounds: each window that
is solved gives a price of work, and with it a bound for all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats, Ints

MOST_SLOTS = 3_000  # windows are their square
OUTER, INNER, FIRST = 0, 1, 2  # slots of a window: its last, those between its ends, its first
NEAR = 1e-9  # share of the work, or of the cost, that is no difference


@dataclass(frozen=True)
class Modes:
    """Hold what a job can do: its speed (1: without a cap) and power (W), the fastest last.

    `pause_w` is what the node draws in a pause, None where the job cannot be paused.
    """

    speeds: Floats
    powers_w: Floats
    pause_w: float | None


@dataclass(frozen=True)
class Filling:
    """Hold what to do: the time (s) in each mode by slot, and in pauses or waiting; `cost` as rate x J.

    `price` is what one more second of work (at full speed) would cost. The job starts in slot `first`, ends in `last`.
    """

    seconds: Floats
    paused_s: Floats
    cost: float
    price: float
    first: int
    last: int


class _Steps(NamedTuple):
    """Hold steps from mode to mode, cheapest work first: price, work (s), slot, modes below and above, kind of slot."""

    price: Floats
    work_s: Floats
    slot: Ints
    below: Ints
    above: Ints
    kind: Ints


class _Start(NamedTuple):
    """Hold where filling begins in each slot: the mode, its cost and its work (s)."""

    mode: Ints
    cost: Floats
    work_s: Floats


def fill(rates: Floats, lengths_s: Floats, work_s: float, modes: Modes, *, wait_w: float = 0.0) -> Filling:
    """Return the cheapest way to do work (s at full speed) in slots, by their rates (per J) and lengths (s).

    `wait_w` is what the node draws until the job starts, also where the job cannot be paused. Raises ConfigError where
    the time is too short, or the slots are too many.
    """
    rates, lengths_s = np.asarray(rates, dtype=float), np.asarray(lengths_s, dtype=float)
    if len(rates) > MOST_SLOTS:
        raise ConfigError(
            f"{len(rates)} slots are too many", why=f"at most {MOST_SLOTS}", next="longer slots: --slot 1h"
        )
    room_s = float(modes.speeds.max() * lengths_s.sum())
    if work_s > room_s * (1 + NEAR):
        raise ConfigError(
            "the deadline is too early", why=f"{work_s / 3600:.2f} h of work, {room_s / 3600:.2f} h of time",
            next="a later deadline",
        )  # fmt: skip
    return _Search(rates, lengths_s, min(work_s, room_s), modes, wait_w=wait_w).best()


def hull(speeds: Floats, powers_w: Floats, *, upper: bool = False) -> list[int]:
    """Return which modes are on the lower (or upper) convex hull of power over speed, the slowest first."""
    sign = -1.0 if upper else 1.0
    order = sorted(range(len(speeds)), key=lambda k: (speeds[k], sign * powers_w[k]))
    kept: list[int] = []
    for k in order:
        if kept and speeds[k] == speeds[kept[-1]]:
            continue
        while len(kept) > 1 and sign * _turn(speeds, powers_w, kept[-2], kept[-1], k) <= 0:
            kept.pop()
        kept.append(k)
    return kept


def _turn(x: Floats, y: Floats, a: int, b: int, c: int) -> float:
    return float((x[b] - x[a]) * (y[c] - y[a]) - (y[b] - y[a]) * (x[c] - x[a]))


class _Search:
    """Solve windows of slots until none of the others can be cheaper."""

    def __init__(self, rates: Floats, lengths_s: Floats, work_s: float, modes: Modes, *, wait_w: float) -> None:
        self.rates, self.lengths_s, self.work_s, self.wait_w = rates, lengths_s, work_s, wait_w
        self.count = len(rates)
        # Modes as they are numbered here: those of the job, then the pause, waiting, and what is outside of it.
        pause_w = modes.pause_w
        self.speeds = np.append(modes.speeds, [0.0, 0.0, 0.0])
        self.powers_w = np.append(modes.powers_w, [0.0 if pause_w is None else pause_w, wait_w, 0.0])
        running = list(range(len(modes.speeds)))
        self.pause, self.wait, self.free = (len(running) + k for k in range(3))
        inner = running if pause_w is None else [*running, self.pause]
        members = {OUTER: [*running, self.free], INNER: inner, FIRST: [*running, self.wait]}
        sides = [self._sides(kind, members[kind]) for kind in (OUTER, INNER, FIRST)]
        self.starts = [start for start, _ in sides]
        both = [np.concatenate([steps[k] for _, steps in sides]) for k in range(len(_Steps._fields))]
        # Among equal prices the earlier slot comes first.
        order = np.lexsort((both[2], both[0]))
        self.steps = _Steps(*(column[order] for column in both))
        self.released = pause_w == 0.0 and not wait_w
        self.waited = np.append(0.0, np.cumsum(rates * wait_w * lengths_s))  # what waiting costs until each slot

    def _sides(self, kind: int, members: list[int]) -> tuple[_Start, _Steps]:
        """Return where filling begins in each slot with these modes, and its steps (not in order yet)."""
        members_of = np.array(members)
        chains = [
            members_of[hull(self.speeds[members_of], self.powers_w[members_of], upper=upper)] for upper in (False, True)
        ]
        negative = (self.rates < 0).astype(int)
        first = np.array([chain[0] for chain in chains])[negative]
        start = _Start(first, self.rates * self.powers_w[first] * self.lengths_s, self.speeds[first] * self.lengths_s)
        return start, self._steps(chains, negative, kind)

    def _steps(self, chains: list[Ints], negative: Ints, kind: int) -> _Steps:
        parts: list[_Steps] = []
        for upper, chain in enumerate(chains):
            slots = np.flatnonzero(negative == upper)
            one = np.ones(len(slots), dtype=int)
            for a, b in pairwise(chain.tolist()):
                faster = self.speeds[b] - self.speeds[a]
                slope = (self.powers_w[b] - self.powers_w[a]) / faster
                price, work_s = self.rates[slots] * slope, self.lengths_s[slots] * faster
                parts.append(_Steps(price, work_s, slots, a * one, b * one, kind * one))
        if not parts:  # one mode that never pauses
            none = np.empty(0, dtype=int)
            return _Steps(np.empty(0), np.empty(0), none, none, none, none)
        price, work_s = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
        return _Steps(price, work_s, *(np.concatenate([part[k] for part in parts]) for k in (2, 3, 4, 5)))

    def best(self) -> Filling:
        """Return the cheapest of all windows."""
        if self.released:
            return self._filling(*self._all_free())
        firsts, lasts = self._windows()
        bounds = np.full(len(firsts), -np.inf)
        for price in np.quantile(self.steps.price, np.linspace(0.0, 1.0, 12)):
            np.maximum(bounds, self._bounds(price, firsts, lasts), out=bounds)
        least, found = np.inf, None
        while len(firsts):
            k = int(np.argmin(bounds))
            if bounds[k] >= least - NEAR * abs(least):
                break
            cost, price = self._cost(firsts[k], lasts[k])
            if cost < least or found is None:
                least, found = cost, (int(firsts[k]), int(lasts[k]))
            np.maximum(bounds, self._bounds(price, firsts, lasts), out=bounds)
            bounds[k] = np.inf  # solved
            keep = bounds < least - NEAR * abs(least)
            firsts, lasts, bounds = firsts[keep], lasts[keep], bounds[keep]
        assert found is not None
        return self._filling(*found)

    def _all_free(self) -> tuple[int, int]:
        return 0, self.count - 1

    def _windows(self) -> tuple[Ints, Ints]:
        """Return the first and last slots of all windows that the work fits in."""
        firsts, lasts = np.triu_indices(self.count)
        fastest = float(self.speeds.max())
        ends = np.append(0.0, np.cumsum(self.lengths_s)) * fastest
        slowest = np.append(0.0, np.cumsum(self.starts[INNER].work_s))
        most = ends[lasts + 1] - ends[firsts]
        # Where the job cannot be paused, a window between its ends does work at the least speed anyhow.
        least = np.maximum(slowest[lasts] - slowest[np.minimum(firsts + 1, lasts)], 0.0)
        fits = (most >= self.work_s * (1 - NEAR)) & (least <= self.work_s)
        return firsts[fits], lasts[fits]

    def _bounds(self, price: float, firsts: Ints, lasts: Ints) -> Floats:
        """Return what each window costs at least, were work worth `price` (the dual of its problem)."""
        sums = []
        for kind, start in enumerate(self.starts):
            value = start.cost - price * start.work_s
            of = self.steps.kind == kind
            gain = np.minimum(self.steps.price[of] - price, 0.0) * self.steps.work_s[of]
            sums.append(value + np.bincount(self.steps.slot[of], gain, minlength=self.count))
        between = np.append(0.0, np.cumsum(sums[INNER]))
        whole = between[lasts] - between[np.minimum(firsts + 1, lasts)] + sums[OUTER][lasts]
        whole = whole + np.where(lasts > firsts, sums[FIRST][firsts], 0.0) + self.waited[firsts]
        found: Floats = whole + price * self.work_s
        return found

    def _kinds(self, first: int, last: int) -> Ints:
        """Return which kind each slot of a window is, -1 outside of it."""
        kinds = np.full(self.count, OUTER if self.released else -1)
        if not self.released:
            kinds[first : last + 1] = INNER
            kinds[first], kinds[last] = FIRST, OUTER  # one slot that is both is the last: waiting in it is for nothing
        return kinds

    def _fill(self, first: int, last: int) -> tuple[float, float, Ints, Floats, float]:
        """Return cost, price, and the steps of a window with the work that is done by each, and that of the start."""
        kinds = self._kinds(first, last)
        steps = np.flatnonzero(kinds[self.steps.slot] == self.steps.kind)
        of = [(start, kinds == kind) for kind, start in enumerate(self.starts)]
        cost = float(self.waited[first] + sum(start.cost[own].sum() for start, own in of))
        begun = float(sum(start.work_s[own].sum() for start, own in of))
        each = self.steps.work_s[steps]
        before = np.cumsum(each) - each
        done = np.clip(self.work_s - begun - before, 0.0, each)
        missing = self.work_s - begun - float(done.sum())
        if abs(missing) > NEAR * 10 * max(self.work_s, 1.0):
            return np.inf, float(np.median(self.steps.price)), steps, done, missing
        # The step that one more second of work would use: the first that is not used up.
        used = int((done >= each * (1 - NEAR)).sum())
        price = float(self.steps.price[steps[min(used, len(steps) - 1)]])
        return cost + float(done @ self.steps.price[steps]), price, steps, done, missing

    def _cost(self, first: int, last: int) -> tuple[float, float]:
        cost, price, *_ = self._fill(first, last)
        return cost, price

    def _beside(self, cost: float, first: int, last: int) -> float:
        """Return what one more second of work costs at least, if it may go into a slot beside those that are used."""
        around = [(a, b) for a in (first - 1, first) for b in (last, last + 1) if a >= 0 and b < self.count]
        found = [self._cost(a, b) for a, b in around]
        return min((price for other, price in found if other <= cost + 10 * NEAR * abs(cost)), default=np.inf)

    def _filling(self, first: int, last: int) -> Filling:
        """Return what is done in a window, in seconds of each mode."""
        cost, price, steps, done, _ = self._fill(first, last)
        kinds = self._kinds(first, last)
        seconds = np.zeros((self.count, len(self.speeds)))
        seconds[:first, self.wait] = self.lengths_s[:first]
        for kind, start in enumerate(self.starts):
            slots = np.flatnonzero(kinds == kind)
            seconds[slots, start.mode[slots]] = self.lengths_s[slots]
        for step, work_s in zip(steps[done > 0], done[done > 0], strict=True):
            below, above = self.steps.below[step], self.steps.above[step]
            moved = work_s / (self.speeds[above] - self.speeds[below])
            seconds[self.steps.slot[step], below] -= moved
            seconds[self.steps.slot[step], above] += moved
        seconds[np.abs(seconds) < 1e-6] = 0.0
        ran = np.flatnonzero(seconds[:, : self.pause].sum(axis=1) > 0)
        ends = (int(ran[0]), int(ran[-1])) if len(ran) else (first, last)
        price = price if self.released else min(price, self._beside(cost, *ends))
        paused = seconds[:, self.pause] + (seconds[:, self.wait] if self.wait_w else 0.0)
        return Filling(seconds[:, : self.pause], paused, cost, price, *ends)
