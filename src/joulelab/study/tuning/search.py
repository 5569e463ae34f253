"""Find the best cap, locked clock, or pair of both with few trials: ask for the next setting, add its trial, choose.

Pure and deterministic: the same settings, goal and trials give the same next setting and the same choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.study.tuning.response import (
    ROUNDING,
    Bools,
    CurveDraws,
    Floats,
    Ints,
    ResponseBelief,
    ResponsePrior,
    TrialData,
    TrialMeans,
    average_trials,
    compute_excess,
    compute_regret,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.goals import Goal

WORTH = 0.001  # of the objective: one more trial that is expected to gain less is not made
DRAWS_NEXT, DRAWS_CHOICE = 384, 1536  # curves drawn to find the next setting, and to choose
IMAGINED = 24  # outcomes of a trial that are imagined before it is made
OUTCOME_NOISE = np.random.default_rng(1).standard_normal((2, IMAGINED))
NEAR, FAR = 1.15, 1.5  # times the mean power: a higher cap is hardly reached, or surely not
LIKELY = 0.5  # share of the draws with a break between two caps from which on their distance is halved
JUMP = 0.2  # with a limit, also where one takes this much longer than the other
SAME = 0.01  # ratios this close to 1 are equal
BREACH = 0.004  # cost in the search of breaking the limit, beside the excess: else it would live on breaking it
PROMISING, UNLIKELY = 0.05, 0.05  # a pair that costs less in fewer of the draws is not tried
LEAST_TRIALS = 2  # the reference and another setting
MOST_PAIRS = 24  # trials by default over two knobs, however fine the grid


class Setting(NamedTuple):
    """Name a setting of the GPUs: a power cap (W), a locked clock (Hz), or both."""

    cap_w: float | None = None
    clock_hz: float | None = None

    @property
    def text(self) -> str:
        """Return the setting with units."""
        cap = [] if self.cap_w is None else [f"{self.cap_w:g} W"]
        return ", ".join([*cap, *([] if self.clock_hz is None else [f"{self.clock_hz / 1e6:g} MHz"])])

    @property
    def rank(self) -> tuple[float, float]:
        """Return a key to sort by, lowest clock first, then lowest cap; a knob that is not set is the highest."""
        return tuple(math.inf if knob is None else knob for knob in (self.clock_hz, self.cap_w))  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Choice:
    """Hold the chosen setting (it was tried), those tried without significant difference from it, and the reason."""

    setting: Setting
    tied: tuple[Setting, ...]
    trials: int
    why: str
    energy_ratio: float  # measured, against the reference
    time_ratio: float
    flat: bool = False  # no setting tried changes time or energy by more than the noise


@dataclass(frozen=True, slots=True)
class _Trial:
    setting: Setting
    energy_j: float
    time_s: float
    u_energy: float
    u_time: float


def choose_budget(settings: Sequence[Setting]) -> int:
    """Return the usual number of trials: below half of the settings of one knob, a quarter of the pairs of two."""
    count = len(settings)
    if all(len({setting[knob] for setting in settings}) > 1 for knob in (0, 1)):
        return max(LEAST_TRIALS, min(count // 4, MOST_PAIRS))
    return max(LEAST_TRIALS, min(2 + count // 3, (count - 1) // 2))


class Search:
    """Search the best setting for a goal within a budget of trials; the highest is the reference and comes first.

    A plain number is a cap. All trials of one setting until `next` is called again count as one: several windows of
    one visit, for instance.
    """

    def __init__(
        self,
        settings: Sequence[Setting | float],
        goal: Goal,
        budget: int | None = None,
        *,
        prior: ResponsePrior | None = None,
    ) -> None:
        """Raise ConfigError if there is no setting, a value is not above 0, or the budget is below 1."""
        every = {one if isinstance(one, Setting) else Setting(float(one)) for one in settings}
        values = [value for one in every for value in one if value is not None]
        if not values or not all(math.isfinite(value) and value > 0 for value in values):
            raise ConfigError("cannot search without settings", why=f"{list(settings)} are not caps or clocks above 0")
        self._settings = sorted(every, key=lambda one: one.rank)
        self._budget = choose_budget(self._settings) if budget is None else budget
        if self._budget < 1:
            raise ConfigError("cannot search without a trial", why=f"the budget is {budget}", next="allow 1 or more")
        self._goal = goal
        self._prior = prior or ResponsePrior()
        self._data: list[_Trial] = []
        self._trials = 0
        self._is_asked = True
        self._belief: ResponseBelief | None = None
        self._stop_reason = ""

    @property
    def reference(self) -> Setting:
        """Return the setting that all are compared with: the highest."""
        return self._settings[-1]

    @property
    def tried(self) -> tuple[Setting, ...]:
        """Return the settings that were tried, lowest first."""
        return tuple(sorted({trial.setting for trial in self._data}, key=lambda one: one.rank))

    @property
    def trials(self) -> int:
        """Return how many trials were made, those without a result too."""
        return self._trials

    @property
    def budget(self) -> int:
        """Return the highest number of trials."""
        return self._budget

    def count_trial(self) -> None:
        """Count a trial that gave no result to choose by: it failed, or missed a condition."""
        self._trials += 1

    def add_trial(
        self, setting: Setting | float, energy_j: float, time_s: float, u_energy: float = 0.0, u_time: float = 0.0
    ) -> None:
        """Add the result of a trial, total or per unit of work, with standard uncertainties (J, s) where known.

        Raises ConfigError for a setting that is not searched, and for energies or times that are not above 0.
        """
        wanted = setting if isinstance(setting, Setting) else Setting(float(setting))
        known = next((one for one in self._settings if _is_same(one, wanted)), None)
        if known is None:
            raise ConfigError(f"cannot add a trial of {wanted.text}", why="it is not one of the settings searched")
        figures = (energy_j, time_s, u_energy, u_time)
        if not all(map(math.isfinite, figures)) or min(energy_j, time_s) <= 0 or min(u_energy, u_time) < 0:
            what = f"cannot add a trial of {energy_j:.4g} J in {time_s:.4g} s at {wanted.text}"
            raise ConfigError(what, why="energy and time are above 0")
        self._trials += self._is_asked or self._data[-1].setting != known
        self._is_asked = False
        self._data.append(_Trial(known, energy_j, time_s, u_energy, u_time))

    def leave_out(self, setting: Setting) -> None:
        """Search on without a setting: the device refused it, or the workload failed under it."""
        self._settings = [one for one in self._settings if one != setting]
        self._data = [trial for trial in self._data if trial.setting != setting]
        self._belief = None
        if not self._settings:
            raise ConfigError("cannot search on", why="no setting is left")

    def next(self) -> Setting | None:
        """Return the setting to try next, or None if the budget is used or a trial is not worth it."""
        self._is_asked = True
        if self._trials >= self._budget:
            self._stop_reason = f"the budget of {self._budget} trials is used"
            return None
        if self.reference not in self.tried:
            return self.reference
        if len(self._settings) == 1:
            self._stop_reason = "there is only one setting"
            return None
        if self._has_idle_caps():
            lowest = self.tried[0].text
            self._stop_reason = f"the workload draws too little to reach a cap, and {lowest} changed nothing"
            return None
        draws = self._draw_curves(DRAWS_NEXT)
        loss = self._compute_loss(draws)
        tried = np.isin(np.arange(len(self._settings)), self._find_indices())
        left = np.array([self._expect_loss(draws, loss, tried, at) for at in range(len(self._settings))])
        left[tried & ~self._find_repeatable(draws)] = np.inf
        if self._is_clocked:  # among many settings, chance would favour some that cannot be the best
            left[(loss < PROMISING).mean(axis=0) < UNLIKELY] = np.inf
        if loss[:, tried].mean(axis=0).min() - left.min() < WORTH:
            self._stop_reason = f"one more trial would gain less than {WORTH:.1%}"
            return None
        return self._settings[self._halve_distance(draws, np.flatnonzero(tried), int(left.argmin()))]

    def choose(self) -> Choice:
        """Return the best setting that was tried, by its measured values. Raises ConfigError if none was tried.

        The modelled curves decide only among settings without significant difference.
        """
        if not self._data:
            raise ConfigError("cannot choose a setting", why="none was tried")
        draws = self._draw_curves(DRAWS_CHOICE)
        means = self._average_trials(draws)
        expected = self._compute_loss(draws).mean(axis=0)[means.at]
        is_small = self._is_below_caps(FAR) or bool(expected[-1] - expected.min() < SAME)
        flat = means.is_flat() and is_small
        contenders = np.where(means.find_contenders(self._goal), expected, np.inf)
        best = len(means.at) - 1 if flat else int(contenders.argmin())
        tied = tuple(
            self._settings[at] for n, at in enumerate(means.at) if n != best and means.is_tied(self._goal, n, best)
        )
        setting = self._settings[means.at[best]]
        ratios = float(means.energy[best] / means.energy[-1]), float(means.time[best] / means.time[-1])
        is_lowest = best == int(compute_regret(self._goal, means.energy, means.time).argmin())
        why = self._explain(setting, ratios, tied, flat=flat, is_lowest=is_lowest)
        return Choice(setting, tied, self._trials, why, *ratios, flat)

    @property
    def _is_clocked(self) -> bool:
        return len({one.clock_hz for one in self._settings}) > 1

    def _find_indices(self) -> Ints:
        """Return the index of each trial's setting."""
        at = {setting: n for n, setting in enumerate(self._settings)}
        return np.array([at[trial.setting] for trial in self._data], dtype=np.intp)

    def _list_figures(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return energy, time and their uncertainties, trial by trial."""
        figures = np.array([(x.energy_j, x.time_s, x.u_energy, x.u_time) for x in self._data]).T
        return figures[0], figures[1], figures[2], figures[3]

    def _find_repeatable(self, draws: CurveDraws) -> Bools:
        """Find settings to try again: those that may be the best, and the reference if the goal has a limit."""
        means = self._average_trials(draws)
        worth = np.isin(np.arange(len(self._settings)), means.at[means.find_contenders(self._goal)])
        worth[-1] |= self._goal.slowdown is not None
        return worth

    def _average_trials(self, draws: CurveDraws) -> TrialMeans:
        noise = float(draws.noise_t.mean()), float(draws.noise_p.mean())
        return average_trials(self._find_indices(), *self._list_figures(), noise)

    def _has_idle_caps(self) -> bool:
        """Return whether the power is well below the lowest cap, and that cap was tried without effect."""
        low, top = ([x for x in self._data if x.setting == one] for one in (self._settings[0], self._settings[-1]))
        if not low or not self._is_below_caps(NEAR):
            return False
        pairs = ([[x.energy_j for x in own] for own in (low, top)], [[x.time_s for x in own] for own in (low, top)])
        return all(abs(math.log(float(np.mean(a) / np.mean(b)))) < SAME for a, b in pairs)

    def _is_below_caps(self, times: float) -> bool:
        """Return whether so many times the mean power under the highest cap tried is below the lowest cap."""
        lowest = self._settings[0].cap_w
        if self._is_clocked or lowest is None:
            return False
        top = [x for x in self._data if x.setting == self.tried[-1]]
        return bool(sum(x.energy_j for x in top) / sum(x.time_s for x in top) * times <= lowest)

    def _draw_curves(self, count: int) -> CurveDraws:
        energy, time, u_energy, u_time = self._list_figures()
        at = self._find_indices()
        power, top = energy / time, at == at.max()
        time_0, power_0 = (float(np.exp(np.log(y[top]).mean())) for y in (time, power))
        u_t, u_e = u_time / time, u_energy / energy
        trials = TrialData(at, np.log(time / time_0), np.log(power / power_0), u_t, np.hypot(u_e, u_t))
        if self._belief is None or self._belief.power_w != power_0:
            caps = np.array([math.inf if one.cap_w is None else one.cap_w for one in self._settings])
            clocks = np.array([1.0 if one.clock_hz is None else one.clock_hz for one in self._settings])
            self._belief = ResponseBelief(caps, clocks / clocks.max(), power_0, self._prior)
        return self._belief.draw_curves(trials, count)

    def _compute_loss(self, draws: CurveDraws) -> Floats:
        """Return the cost of choosing each setting if a draw were true."""
        time = np.exp(draws.log_t)
        cost = compute_regret(self._goal, time * np.exp(draws.log_p), time)
        return np.where(compute_excess(self._goal, time) > ROUNDING, cost + BREACH, cost)

    def _expect_loss(self, draws: CurveDraws, loss: Floats, tried: Bools, at: int) -> float:
        """Return the expected cost of the choice after one more trial of a setting.

        Some of the draws are taken for the truth, each gives an outcome, and all draws are weighted by it.
        """
        true = np.arange(IMAGINED) * len(loss) // IMAGINED + len(loss) // (2 * IMAGINED)
        fit = np.zeros((IMAGINED, len(loss)))
        quantities = ((draws.log_t, draws.noise_t), (draws.log_p, draws.noise_p))
        for (log_y, noise), z in zip(quantities, OUTCOME_NOISE, strict=True):
            outcome = log_y[true, at] + noise[true] * z
            fit -= 0.5 * ((outcome[:, None] - log_y[:, at]) / noise) ** 2 + np.log(noise)
        weight = np.exp(fit - fit.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        selectable = tried.copy()
        selectable[at] = True
        return float((weight @ loss[:, selectable]).min(axis=1).mean())

    def _explain(
        self,
        setting: Setting,
        ratios: tuple[float, float],
        tied: tuple[Setting, ...],
        *,
        flat: bool,
        is_lowest: bool,
    ) -> str:
        tried = self.tried
        text = f"{self._goal.text}: the best of {len(tried)} {name_settings(self._settings)} tried"
        if flat:
            text = f"no {name_settings(self._settings, 1)} that was tried changes time or energy by more than the noise"
            text += f", down to {tried[0].text}"
        elif setting != tried[-1]:
            energy, time = (f"{100 * (ratio - 1):+.1f} %" for ratio in ratios)
            text += f"; energy {energy}, time {time} against {tried[-1].text}, as measured"
        if tied and not flat:
            text += f"; no significant difference from {join_settings(tied)}"
            text += "" if is_lowest else "; among those the curve through all trials decides, not the lowest figure"
        return f"{text}; {self._stop_reason}" if self._stop_reason else text

    def _halve_distance(self, draws: CurveDraws, tried: Ints, at: int) -> int:
        """Return the middle between two caps tried instead of a cap between them, if a break in between is likely."""
        if at in tried or at < tried[0] or self._is_clocked:
            return at
        low, high = int(tried[tried < at].max()), int(tried[tried > at].min())
        between = (draws.start > low) & (draws.start <= high)
        jump = np.exp(draws.log_t[:, low] - draws.log_t[:, high]).mean() - 1 > JUMP
        return (low + high + 1) // 2 if between.mean() > LIKELY or (jump and self._goal.slowdown is not None) else at


def name_settings(settings: Sequence[Setting], count: int = 2) -> str:
    """Return the noun for some settings: caps, clocks or settings."""
    knobs = [name for name, k in (("cap", 0), ("clock", 1)) if any(one[k] is not None for one in settings)]
    return f"{knobs[0] if len(knobs) == 1 else 'setting'}{'s' if count > 1 else ''}"


def join_settings(settings: Sequence[Setting]) -> str:
    """Return settings as a list, with the unit once if they are caps only."""
    if all(one.clock_hz is None for one in settings):
        return f"{', '.join(f'{one.cap_w:g}' for one in settings)} W"
    return "; ".join(one.text for one in settings)


def _is_same(a: Setting, b: Setting) -> bool:
    pairs = zip(a, b, strict=True)
    return all(x == y or (x is not None and y is not None and math.isclose(x, y, rel_tol=1e-6)) for x, y in pairs)
