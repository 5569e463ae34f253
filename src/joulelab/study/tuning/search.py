"""Find the best cap of a grid with few trials: ask for the next cap, tell what it gave, choose.

Pure and deterministic: the same caps, goal and trials give the same next cap and the same choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.study.tuning.curve import Belief, Bools, Draws, Floats, Ints, Prior, Seen
from joulelab.study.tuning.objective import TOUCHES, Measured, excess, measured, regret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.goals import Goal

WORTH = 0.001  # of the objective: one more trial that is expected to gain less is not made
LOOKS, CHOOSES = 384, 1536  # curves drawn to find the next cap, and to choose
IMAGINED = 24  # outcomes of a trial that are looked at before it is made
LUCK = np.random.default_rng(1).standard_normal((2, IMAGINED))  # the noise of those outcomes
PEAKS, FAR = 1.15, 1.5  # times the mean power: a cap above is hardly reached, or surely not
LIKELY = 0.5  # share of the draws with a break between two caps from which on their distance is halved
JUMP = 0.2  # with a limit, also where one takes this much longer than the other
SAME = 0.01  # ratios this close to 1 are equal
BREACH = (
    0.004  # what breaking the limit counts in the search beside the excess, so that it does not live on breaking it
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Hold the cap chosen (it was tried), those tried that cannot be told apart from it, and why."""

    cap: float
    tied: tuple[float, ...]
    trials: int
    why: str
    energy_ratio: float  # measured, against the highest cap
    time_ratio: float
    flat: bool = False  # no cap that was tried changes time or energy by more than the noise


@dataclass(frozen=True, slots=True)
class _Told:
    cap: float
    energy_j: float
    time_s: float
    u_energy: float
    u_time: float


class Search:
    """Search the best of `caps` for a goal within a budget of trials; the highest cap is the reference and comes first.

    A trial is what is told of one cap until `next` is called again: one run, or several windows of one.
    """

    def __init__(
        self, caps: Sequence[float], goal: Goal, budget: int | None = None, *, prior: Prior | None = None
    ) -> None:
        """Raise ConfigError if there is no cap, a cap is not above 0, or the budget is below 1."""
        self._caps = np.array(sorted(set(map(float, caps))))
        if not len(self._caps) or not (np.isfinite(self._caps).all() and self._caps[0] > 0):
            raise ConfigError("cannot search without caps", why=f"{list(caps)} is no list of watts above 0")
        self._budget = 2 + len(self._caps) // 3 if budget is None else budget
        if self._budget < 1:
            raise ConfigError("cannot search without a trial", why=f"the budget is {budget}", next="allow 1 or more")
        self._goal = goal
        self._prior = prior or Prior()
        self._told: list[_Told] = []
        self._trials = 0
        self._asked = True
        self._belief: Belief | None = None
        self._stopped = ""

    @property
    def reference(self) -> float:
        """Return the cap to which all are compared: the highest."""
        return float(self._caps[-1])

    @property
    def tried(self) -> tuple[float, ...]:
        """Return the caps that were tried, lowest first."""
        return tuple(sorted({told.cap for told in self._told}))

    def tell(self, cap: float, energy_j: float, time_s: float, u_energy: float = 0.0, u_time: float = 0.0) -> None:
        """Take in what a cap gave, in all or per work done, with standard uncertainties (J, s) where they are known.

        Raises ConfigError for a cap that is not of the grid, and for figures that are none.
        """
        nearest = float(self._caps[np.abs(self._caps - cap).argmin()])
        if not math.isclose(nearest, cap, rel_tol=1e-6):
            raise ConfigError(f"cannot take in {cap:g} W", why="it is not one of the caps that are searched")
        figures = (energy_j, time_s, u_energy, u_time)
        if not all(map(math.isfinite, figures)) or min(energy_j, time_s) <= 0 or min(u_energy, u_time) < 0:
            raise ConfigError(
                f"cannot take in {energy_j} J in {time_s} s at {cap:g} W", why="a trial gives both above 0"
            )
        self._trials += self._asked or self._told[-1].cap != nearest
        self._asked = False
        self._told.append(_Told(nearest, energy_j, time_s, u_energy, u_time))

    def leave_out(self, cap: float) -> None:
        """Search on without a cap: the device refused it, or the workload failed under it."""
        self._caps = self._caps[self._caps != cap]
        self._told = [told for told in self._told if told.cap != cap]
        self._belief = None
        if not len(self._caps):
            raise ConfigError("cannot search on", why="no cap is left")

    def next(self) -> float | None:
        """Return the cap to try next, or None where the budget is used or a trial is not worth it."""
        self._asked = True
        if self._trials >= self._budget:
            self._stopped = f"the budget of {self._budget} trials is used"
            return None
        if self.reference not in self.tried:
            return self.reference
        if len(self._caps) == 1:
            self._stopped = "there is one cap"
            return None
        if self._unreached():
            self._stopped = f"the workload draws too little to reach a cap, and {self.tried[0]:g} W changed nothing"
            return None
        draws = self._believed(LOOKS)
        loss = self._loss(draws)
        tried = np.isin(self._caps, self.tried)
        left = np.array([self._left(draws, loss, tried, at) for at in range(len(self._caps))])
        left[tried & ~self._worth_repeating(draws)] = np.inf
        if loss[:, tried].mean(axis=0).min() - left.min() < WORTH:
            self._stopped = f"one more trial would gain less than {WORTH:.1%}"
            return None
        return float(self._caps[self._halved(draws, np.flatnonzero(tried), int(left.argmin()))])

    def choice(self) -> Choice:
        """Return the best cap that was tried, by what was measured. Raises ConfigError where none was.

        What is believed of the curves decides only among caps whose measured values cannot be told apart.
        """
        if not self._told:
            raise ConfigError("cannot choose a cap", why="none was tried")
        draws = self._believed(CHOOSES)
        seen = self._measured(draws)
        expected = self._loss(draws).mean(axis=0)[seen.at]
        flat = seen.is_flat() and (self._idles(FAR) or bool(expected[-1] - expected.min() < SAME))
        best = len(seen.at) - 1 if flat else int(np.where(seen.contenders(self._goal), expected, np.inf).argmin())
        tied = tuple(
            float(self._caps[at]) for n, at in enumerate(seen.at) if n != best and seen.tied(self._goal, n, best)
        )
        cap = float(self._caps[seen.at[best]])
        ratios = float(seen.energy[best] / seen.energy[-1]), float(seen.time[best] / seen.time[-1])
        lowest = best == int(regret(self._goal, seen.energy, seen.time).argmin())
        why = self._why(cap, ratios, tied, flat=flat, lowest=lowest)
        return Choice(cap, tied, self._trials, why, *ratios, flat)

    def _worth_repeating(self, draws: Draws) -> Bools:
        """Return which caps may be tried again: those that may be the best, and the reference if a limit goes by it."""
        seen = self._measured(draws)
        worth = np.isin(np.arange(len(self._caps)), seen.at[seen.contenders(self._goal)])
        worth[-1] |= self._goal.slowdown is not None
        return worth

    def _measured(self, draws: Draws) -> Measured:
        """Return what was measured of the caps tried; noise is what is believed until repeats tell."""
        at = np.searchsorted(self._caps, [x.cap for x in self._told])
        energy, time, u_e, u_t = np.array([(x.energy_j, x.time_s, x.u_energy, x.u_time) for x in self._told]).T
        return measured(at, energy, time, u_e, u_t, (float(draws.noise_t.mean()), float(draws.noise_p.mean())))

    def _unreached(self) -> bool:
        """Return whether the draw is well below the lowest cap, and that cap was tried and gave the same."""
        low, top = ([told for told in self._told if told.cap == cap] for cap in (self._caps[0], self._caps[-1]))
        if not low or not self._idles(PEAKS):
            return False
        pairs = ([[x.energy_j for x in told] for told in (low, top)], [[x.time_s for x in told] for told in (low, top)])
        return all(abs(math.log(float(np.mean(a) / np.mean(b)))) < SAME for a, b in pairs)

    def _idles(self, times: float) -> bool:
        """Return whether so many times the mean power under the highest cap tried is below the lowest cap."""
        top = [told for told in self._told if told.cap == self.tried[-1]]
        return bool(sum(x.energy_j for x in top) / sum(x.time_s for x in top) * times <= self._caps[0])

    def _believed(self, count: int) -> Draws:
        cap, energy, time, u_energy, u_time = np.array(
            [(x.cap, x.energy_j, x.time_s, x.u_energy, x.u_time) for x in self._told]
        ).T
        power, top = energy / time, cap == cap.max()
        time_0, power_0 = (float(np.exp(np.log(y[top]).mean())) for y in (time, power))
        u_t, u_e = u_time / time, u_energy / energy
        at = np.searchsorted(self._caps, cap)
        seen = Seen(at, np.log(time / time_0), np.log(power / power_0), u_t, np.hypot(u_e, u_t))
        if self._belief is None or self._belief.power_w != power_0:
            self._belief = Belief(self._caps, power_0, self._prior)
        return self._belief.draws(seen, count)

    def _loss(self, draws: Draws) -> Floats:
        """Return what choosing each cap would cost if a draw were true."""
        time = np.exp(draws.log_t)
        cost = regret(self._goal, time * np.exp(draws.log_p), time)
        return np.where(excess(self._goal, time) > TOUCHES, cost + BREACH, cost)

    def _left(self, draws: Draws, loss: Floats, tried: Bools, at: int) -> float:
        """Return what the choice is expected to cost after one more trial of a cap.

        Some of the draws are taken for the truth, each gives an outcome, and all draws are weighed by it.
        """
        true = np.arange(IMAGINED) * len(loss) // IMAGINED + len(loss) // (2 * IMAGINED)
        fit = np.zeros((IMAGINED, len(loss)))
        for log_y, noise, z in ((draws.log_t, draws.noise_t, LUCK[0]), (draws.log_p, draws.noise_p, LUCK[1])):
            outcome = log_y[true, at] + noise[true] * z
            fit -= 0.5 * ((outcome[:, None] - log_y[:, at]) / noise) ** 2 + np.log(noise)
        weight = np.exp(fit - fit.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        open_to_choice = tried.copy()
        open_to_choice[at] = True
        return float((weight @ loss[:, open_to_choice]).min(axis=1).mean())

    def _why(
        self, cap: float, ratios: tuple[float, float], tied: tuple[float, ...], *, flat: bool, lowest: bool
    ) -> str:
        said = f"{self._goal.text}: the best of {len(self.tried)} caps tried"
        if flat:
            said = f"no cap that was tried changes time or energy by more than the noise, down to {self.tried[0]:g} W"
        elif cap != self.tried[-1]:
            energy, time = (f"{100 * (ratio - 1):+.1f} %" for ratio in ratios)
            said += f"; energy {energy}, time {time} against {self.tried[-1]:g} W, as measured"
        if tied and not flat:
            said += f"; no significant difference from {', '.join(f'{cap:g}' for cap in tied)} W"
            said += "" if lowest else "; among those the curve through all trials decides, not the lowest figure"
        return f"{said}; {self._stopped}" if self._stopped else said

    def _halved(self, draws: Draws, tried: Ints, at: int) -> int:
        """Return the middle between two caps tried instead of a cap between them, if a break in between is likely."""
        if at in tried or at < tried[0]:
            return at
        low, high = int(tried[tried < at].max()), int(tried[tried > at].min())
        between = (draws.start > low) & (draws.start <= high)
        jump = np.exp(draws.log_t[:, low] - draws.log_t[:, high]).mean() - 1 > JUMP
        return (low + high + 1) // 2 if between.mean() > LIKELY or (jump and self._goal.slowdown is not None) else at
