"""Define the goals of a study: the figure to minimise (energy, time, EDP, EDS ...) and a limit of the slowdown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE

if TYPE_CHECKING:
    from typing import NoReturn

    from joulelab.core.quantity import Quantity

GoalName = Literal["energy", "time", "edp", "ed2p", "eds", "gain-loss"]
GOAL_NAMES: tuple[GoalName, ...] = get_args(GoalName)
LimitVerdict = Literal["surely", "possibly", "not"]
USUAL_K = 2.0
KNOWN_GOALS = "energy, time, edp, ed2p, eds:K (K >= 1, eds:2 if left out), gain-loss; each with @slowdown=5% or without"


@dataclass(frozen=True, slots=True)
class Goal:
    """Hold the goal of a study; `k` is that of EDS, `slowdown` the accepted loss of time (0.05 = 5 %)."""

    name: GoalName
    k: float | None = None
    slowdown: float | None = None

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Read a goal such as `eds:1.5` or `energy@slowdown=5%`. Raises ConfigError."""
        what, at, limit = text.strip().lower().partition("@")
        name, colon, k = what.partition(":")
        if name not in GOAL_NAMES or (colon and name != "eds"):
            _refuse_goal("config.goal-unknown", text, f"there is no goal {what!r}")
        slowdown = _read_slowdown(text, limit) if at else None
        return cls(name, _read_k(text, k, colon) if name == "eds" else None, slowdown)

    @property
    def text(self) -> str:
        """Return the goal as a user types it."""
        text = self.name if self.k is None else f"{self.name}:{self.k:g}"
        return text if self.slowdown is None else f"{text}@slowdown={self.slowdown * 100:g}%"

    @property
    def needs_reference(self) -> bool:
        """Return whether the score needs a reference."""
        return self.name in ("eds", "gain-loss") or self.slowdown is not None

    @property
    def needs_energy(self) -> bool:
        """Return whether the score needs an energy."""
        return self.name != "time" and self.k != 1.0

    def score(self, energy: Quantity, time: Quantity) -> Quantity:
        """Return the figure to minimise.

        EDS and gain-loss take ratios to the reference; the others take ratios as well as joules and seconds.
        """
        if self.name == "time" or self.k == 1.0:
            return time
        if self.name == "energy":
            return energy
        if self.name == "edp":
            return energy * time
        if self.name == "ed2p":
            return energy * time * time
        if self.name == "gain-loss":
            return energy + time - ONE
        return compute_eds(energy, time, self.k or USUAL_K)

    def judge_slowdown(self, loss: Quantity) -> LimitVerdict:
        """Tell whether a time loss (t / t_ref - 1) is within the limit, given its uncertainty."""
        if self.slowdown is None:
            return "surely"
        reach = loss.expanded
        if reach is None:
            return "possibly"
        if loss.value + reach <= self.slowdown:
            return "surely"
        return "possibly" if loss.value - reach <= self.slowdown else "not"


def compute_eds(energy_ratio: Quantity, time_ratio: Quantity, k: float) -> Quantity:
    """Return EDS(k), the energy-delay sum; 1 at the reference.

    alpha E + beta t with alpha = (k - 1) / (k E_ref) and beta = 1 / (k t_ref).
    """
    return energy_ratio * ((k - 1) / k) + time_ratio * (1 / k)


def _read_k(text: str, k: str, colon: str) -> float:
    if not colon:
        return USUAL_K
    try:
        number = float(k)
    except ValueError:
        _refuse_goal("config.goal-k", text, f"k of EDS is a number, not {k!r}")
    if not math.isfinite(number) or number < 1:
        _refuse_goal("config.goal-k", text, "k of EDS is 1 or more")
    return number


def _read_slowdown(text: str, limit: str) -> float:
    name, _, amount = limit.partition("=")
    try:
        share = float(amount.rstrip("% ")) / 100 if amount.endswith("%") else float(amount)
    except ValueError:
        share = math.nan
    if name != "slowdown" or math.isnan(share):
        _refuse_goal("config.goal-limit", text, "a limit is written @slowdown=5%")
    if not math.isfinite(share) or share < 0:
        _refuse_goal("config.goal-slowdown", text, "a slowdown is 0 % or more")
    if share >= 1 and not amount.endswith("%"):
        _refuse_goal("config.goal-percent", text, f"write @slowdown={amount}% if percent are meant")
    return share


def _refuse_goal(code: str, text: str, why: str) -> NoReturn:
    raise ConfigError(f"cannot read the goal {text!r}", why=why, next=f"known are {KNOWN_GOALS}", code=code)
