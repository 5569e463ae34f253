"""Find the cheapest blocks of time for a job that pays for every pause: by dynamic programming on the grid of slots.

A block begins with a slot; it ends with one, except the last, which ends when the work is done. Each block but the
first begins with a restart: time at full power in which no work is done, and energy on top of it. Exact for what it
is asked: no other choice of whole slots is cheaper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats, Ints

MOST_STATES = 200_000_000  # slots x units of work: bytes that the way back takes, twice
SAME, STARTED, RESTARTED = 0, 1, 2


@dataclass(frozen=True)
class Restart:
    """Hold what going on after a pause takes: time (s) at full power, and energy (J) on top of it."""

    time_s: float = 0.0
    energy_j: float = 0.0

    def __bool__(self) -> bool:
        return self.time_s > 0 or self.energy_j > 0


NO_RESTART = Restart()


@dataclass(frozen=True)
class Blocks:
    """Hold what to do: seconds that the job runs in each slot, restarts among them, and pauses; `cost` as rate x J."""

    running_s: Floats
    paused_s: Floats
    restarts: Ints
    cost: float


def fill_blocks(
    rates: Floats,
    lengths_s: Floats,
    work_s: float,
    power_w: float,
    pause_w: float,
    restart: Restart,
    *,
    waits: bool = False,
) -> Blocks:
    """Return the cheapest blocks to do work (s) in slots, by their rates (per J) and lengths (whole s).

    With `waits` the node idles until the job starts. Raises ConfigError where time is too short or the grid too fine.
    """
    if work_s > float(np.sum(lengths_s)):
        raise ConfigError("the deadline is too early", why="the job takes longer", next="a later deadline")
    return _Grid(rates, lengths_s, work_s, power_w, pause_w, restart, waits=waits).best()


class _Grid:
    """Hold the least costs by work done: before the job starts, while it runs, while it pauses."""

    def __init__(
        self,
        rates: Floats,
        lengths_s: Floats,
        work_s: float,
        power_w: float,
        pause_w: float,
        restart: Restart,
        *,
        waits: bool,
    ) -> None:
        # Rates may change at parts of a second: ends are rounded, not lengths, so that nothing adds up.
        whole = np.diff(np.rint(np.append(0.0, np.cumsum(lengths_s)))).astype(int).tolist()
        again = math.ceil(restart.time_s)
        self.unit_s = reduce(math.gcd, [*whole, again])
        self.units, self.again = [length // self.unit_s for length in whole], again // self.unit_s
        self.rates, self.lengths_s, self.work_s = rates, np.asarray(lengths_s, dtype=float), work_s
        self.power_w, self.pause_w, self.restart_j, self.waits = power_w, pause_w, restart.energy_j, waits
        self.size = math.ceil(work_s / self.unit_s)  # states have less than all of the work
        if self.size * len(whole) > MOST_STATES:
            why = f"slots (also cut where the rate changes) and a restart of {restart.time_s:g} s share {self.unit_s} s"
            raise ConfigError(
                "too fine a grid for pauses that cost", why=why, next="a restart of whole minutes, a shorter job"
            )
        self.left_s = work_s - np.arange(self.size) * self.unit_s
        self.ran_by = np.zeros((len(whole), self.size), dtype=np.int8)
        self.paused_by = np.zeros((len(whole), self.size), dtype=np.int8)

    def best(self) -> Blocks:
        """Return the cheapest blocks."""
        runs, rests = np.full(self.size, np.inf), np.full(self.size, np.inf)
        before, least, found = 0.0, np.inf, (0, SAME, 0)
        for t, rate in enumerate(self.rates):
            for cost, way, done in self._ends(t, before, runs, rests):
                if cost < least:
                    least, found = cost, (t, way, done)
            idle = rate * self.pause_w * self.lengths_s[t]
            new = self._runs(t, before, runs, rests)
            self.paused_by[t] = np.where(runs <= rests, SAME, RESTARTED)  # where the pause comes from
            rests = np.minimum(runs, rests) + idle
            runs, before = new, before + (idle if self.waits else 0.0)
        return self._way(float(least), *found)

    def _ends(self, t: int, before: float, runs: Floats, rests: Floats) -> list[tuple[float, int, int]]:
        """Return the cheapest ways to end the job in a slot: cost, from which state, with which work done before."""
        each = self.rates[t] * self.power_w
        length = self.lengths_s[t]
        found = [(before + each * self.work_s, STARTED, 0)] if self.work_s <= length else []
        again_s = self.again * self.unit_s
        for way, states, more_s in ((SAME, runs, 0.0), (RESTARTED, rests, again_s)):
            took = self.left_s + more_s
            costs = np.where(took <= length + 1e-9, states + each * took, np.inf)
            k = int(np.argmin(costs))
            more = self.rates[t] * self.restart_j if way == RESTARTED else 0.0
            found.append((float(costs[k]) + more, way, k))
        return found

    def _runs(self, t: int, before: float, runs: Floats, rests: Floats) -> Floats:
        """Return the least costs of running on after a slot that the job runs through."""
        whole = self.rates[t] * self.power_w * self.lengths_s[t]
        new = np.full(self.size, np.inf)
        step = self.units[t]
        if step < self.size:
            new[step:] = runs[: self.size - step] + whole
            if before + whole < new[step]:
                new[step], self.ran_by[t, step] = before + whole, STARTED
        gained = step - self.again
        source = rests[max(-gained, 0) : max(self.size - max(gained, 0), 0)]
        if len(source):
            target = slice(max(gained, 0), max(gained, 0) + len(source))
            again = source + whole + self.rates[t] * self.restart_j
            better = again < new[target]
            new[target] = np.where(better, again, new[target])
            self.ran_by[t, target] = np.where(better, RESTARTED, self.ran_by[t, target])
        return new

    def _way(self, cost: float, last: int, way: int, done: int) -> Blocks:
        """Follow the cheapest way back."""
        count = len(self.units)
        running, paused, restarts = np.zeros(count), np.zeros(count), np.zeros(count, dtype=int)
        if way == STARTED:
            running[last] = self.work_s
            return Blocks(running, self._waited(paused, last), restarts, cost)
        running[last] = self.left_s[done] + (self.again * self.unit_s if way == RESTARTED else 0.0)
        restarts[last] = way == RESTARTED
        runs, t = way == SAME, last - 1
        while True:
            if not runs:
                paused[t] = self.lengths_s[t]
                runs = bool(self.paused_by[t, done] == SAME)
                t -= 1
                continue
            running[t] = self.lengths_s[t]
            by = int(self.ran_by[t, done])
            if by == STARTED:
                return Blocks(running, self._waited(paused, t), restarts, cost)
            done -= self.units[t]
            if by == RESTARTED:
                done += self.again
                restarts[t], runs = 1, False
            t -= 1

    def _waited(self, paused: Floats, first: int) -> Floats:
        if self.waits:
            paused[:first] = self.lengths_s[:first]
        return paused
