"""Define the goals of a study (energy, time, EDP, EDS, with limits of slowdown and quality), choose the best cell."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from joulelab.analysis.study_cells import CellMeans, divide_energies, divide_times
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE
from joulelab.core.text import name_one

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

    from joulelab.core.quantity import Quantity

GoalName = Literal["energy", "time", "edp", "ed2p", "eds", "gain-loss", "j_per"]
GOAL_NAMES: tuple[GoalName, ...] = get_args(GoalName)
PER_WORK = "j_per_"
LimitVerdict = Literal["surely", "possibly", "not"]
QualityVerdict = Literal["surely", "possibly", "possibly not", "not", "unknown"]
REACHED: tuple[QualityVerdict, ...] = ("surely", "possibly")
Sense = Literal["<=", ">="]
USUAL_K = 2.0
KNOWN_GOALS = (
    "energy, time, edp, ed2p, eds:K (K >= 1, eds:2 if left out), gain-loss, j_per_WORK (j_per_output_token); each with "
    "or without the limits @slowdown=5% and '@accuracy>=0.98' or '@ttft_p99<0.5s' (a number that the runs report, "
    "in quotes because of the shell)"
)
QUALITY_LIMIT = re.compile(r"\s*([^<>=\s][^<>=]*?)\s*([<>]=?)\s*([^<>=\s]+)\s*")
LIMIT_UNITS = {"s": 1.0, "ms": 1e-3, "%": 0.01}  # of numbers in SI units and shares of one
LIMIT_AMOUNT = re.compile(r"([-+.0-9eE]+)\s*(s|ms|%|)")


@dataclass(frozen=True, slots=True)
class QualityLimit:
    """Hold the limit of a quality that runs report as a number: `accuracy>=0.98`."""

    name: str
    sense: Sense
    limit: float

    @property
    def text(self) -> str:
        """Return the limit as a user types it."""
        return f"{self.name}{self.sense}{self.limit:.12g}"

    def judge(self, quality: Quantity | None) -> QualityVerdict:
        """Judge the mean of a cell's repeats; it is `possibly` this or that if their interval contains the limit.

        The interval of a single run is unknown, so it may contain the limit.
        """
        if quality is None or math.isnan(quality.value):
            return "unknown"
        reach = quality.expanded
        above = quality.value - self.limit if self.sense == ">=" else self.limit - quality.value
        is_sure = reach is not None and (reach == 0 or abs(above) > reach)
        if above >= 0:
            return "surely" if is_sure else "possibly"
        return "not" if is_sure else "possibly not"


@dataclass(frozen=True, slots=True)
class Goal:
    """Hold the goal of a study; `k` is the parameter of EDS, `slowdown` the accepted loss of time (0.05 = 5 %).

    A cell that misses a limit of `quality` is not the best. `work` is the kind of work of the goal j_per_WORK, without
    the s of its plural: energy per unit of it shall be small.
    """

    name: GoalName
    k: float | None = None
    slowdown: float | None = None
    quality: tuple[QualityLimit, ...] = ()
    work: str | None = None

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Read a goal such as `eds:1.5`, `energy@slowdown=5%` or `energy@accuracy>=0.98`. Raises ConfigError."""
        what, *limits = text.strip().split("@")
        what = what.strip().lower()
        name, colon, k = what.partition(":")
        work = name_one(name.removeprefix(PER_WORK)) if name.startswith(PER_WORK) else None
        name = name if work is None else "j_per"
        if name not in GOAL_NAMES or (colon and name != "eds") or (name == "j_per" and not work):
            _refuse_goal("config.goal-unknown", text, f"there is no goal {what!r}")
        slow = [limit for limit in limits if not QUALITY_LIMIT.fullmatch(limit)]
        if len(slow) > 1:
            _refuse_goal("config.goal-limit", text, "there is one limit of the slowdown, @slowdown=5%")
        slowdown = _read_slowdown(text, slow[0].strip().lower()) if slow else None
        quality = tuple(_read_quality(text, limit) for limit in limits if limit not in slow)
        return cls(name, _read_k(text, k, colon) if name == "eds" else None, slowdown, quality, work)

    @property
    def text(self) -> str:
        """Return the goal as a user types it."""
        name = self.name if self.work is None else f"{PER_WORK}{self.work}"
        text = name if self.k is None else f"{name}:{self.k:g}"
        limits = [] if self.slowdown is None else [f"slowdown={self.slowdown * 100:g}%"]
        return "@".join([text, *limits, *(limit.text for limit in self.quality)])

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
        if self.name in ("energy", "j_per"):
            return energy
        if self.name == "edp":
            return energy * time
        if self.name == "ed2p":
            return energy * time * time
        if self.name == "gain-loss":
            return energy + time - ONE
        return compute_eds(energy, time, self.k or USUAL_K)

    def find_work(self, work: Mapping[str, float]) -> float | None:
        """Return the amount of its kind of work, None if it was not reported.

        Kinds whose last word it is count together: `token` is the sum of `prompt_tokens` and `output_tokens`.
        """
        name = self.work or ""
        own = next((amount for kind, amount in work.items() if name_one(kind.lower()) == name), None)
        parts = [amount for kind, amount in work.items() if name_one(kind.lower()).endswith(f"_{name}")]
        found = sum(parts) if own is None else own
        return found if found > 0 else None

    def judge_slowdown(self, loss: Quantity) -> LimitVerdict:
        """Return whether a loss of time (t / t_ref - 1) is within the limit, given its uncertainty."""
        if self.slowdown is None:
            return "surely"
        reach = loss.expanded
        if reach is None:
            return "possibly"
        if loss.value + reach <= self.slowdown:
            return "surely"
        return "possibly" if loss.value - reach <= self.slowdown else "not"

    def judge_quality(self, quality: Mapping[str, Quantity]) -> QualityVerdict:
        """Return the worst verdict of the limits on the qualities of a cell; `surely` without a limit."""
        verdicts = {limit.judge(quality.get(limit.name)) for limit in self.quality}
        worst: tuple[QualityVerdict, ...] = ("unknown", "not", "possibly not", "possibly")
        return next((verdict for verdict in worst if verdict in verdicts), "surely")


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
        why = "a limit is written @slowdown=5% or '@accuracy>=0.98'; a shell takes > outside of quotes for itself"
        _refuse_goal("config.goal-limit", text, why)
    if not math.isfinite(share) or share < 0:
        _refuse_goal("config.goal-slowdown", text, "a slowdown is 0 % or more")
    if share >= 1 and not amount.endswith("%"):
        _refuse_goal("config.goal-percent", text, f"write @slowdown={amount}% if percent are meant")
    return share


def _read_quality(text: str, limit: str) -> QualityLimit:
    """Read a limit that QUALITY_LIMIT matches."""
    name, sense, amount = re.split(r"([<>]=?)", limit)
    if name.strip().lower() == "slowdown":
        _refuse_goal("config.goal-limit", text, "write @slowdown=5%")
    given = LIMIT_AMOUNT.fullmatch(amount.strip())
    try:
        number = float(given[1]) * LIMIT_UNITS.get(given[2], 1.0) if given else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        example = "a number as the runs report it (0.98, 0.5s, 300ms, 5%)"
        why = f"the limit of {name.strip()} is {example}, not {amount.strip()!r}"
        _refuse_goal("config.goal-quality-limit", text, why)
    return QualityLimit(name.strip(), ">=" if sense[0] == ">" else "<=", number)


def refuse_work_goal(goal: Goal) -> None:
    """Refuse a goal of energy per unit of work, where all trials do the same work. Raises ConfigError."""
    if goal.work:
        what, why = f"{goal.text} is a goal of sweeps and studies", "all trials of a search do the same work"
        raise ConfigError(what, why=why, next="use --goal energy", code="config.goal-unknown")


def _refuse_goal(code: str, text: str, why: str) -> NoReturn:
    raise ConfigError(f"cannot read the goal {text!r}", why=why, next=f"known are {KNOWN_GOALS}", code=code)


@dataclass(frozen=True, slots=True)
class BestCell:
    """Hold the best cell of a line for a goal (`line` None: of all lines), and cells that are not significantly worse.

    `score` is the minimised figure: J, s, J s, J s², or 1 at the reference. `improvement` is the share saved against
    the reference (for gain-loss: the gain minus the loss). `within` is the verdict on the slowdown limit by cell.
    `bars` are half widths by cell (J, s, J s, J s², or shares of the reference for sums), made for comparing: the bar
    of a cell overlaps that of the best exactly if there is no significant difference. `reached` is the verdict on the
    limits of quality by cell.
    """

    goal: Goal
    line: str | None
    cell: str
    score: Quantity
    improvement: Quantity | None
    tied: tuple[str, ...]
    within: Mapping[str, LimitVerdict] = field(default_factory=dict)
    bars: Mapping[str, float] = field(default_factory=dict)
    reached: Mapping[str, QualityVerdict] = field(default_factory=dict)


def choose_best(
    goal: Goal,
    line: str | None,
    cells: Mapping[str, CellMeans],
    reference: CellMeans | None,
    qualities: Mapping[str, Mapping[str, Quantity]] | None = None,
) -> BestCell | None:
    """Choose the best of the cells, None if the goal cannot be computed for any, or none reaches its limits.

    Ties are found with an assumed spread if none is known; the score of the best cell is the measured one. `qualities`
    are the means by cell and name: a cell whose mean misses a limit is neither the best nor as good as the best.
    """
    against = _divide_by_reference(goal, cells, reference)
    scores = _compute_scores(goal, cells, against)
    judged, base = _judge_means(cells, reference)
    likely = _divide_by_reference(goal, judged, base)
    within: dict[str, LimitVerdict] = {}
    if goal.slowdown is not None:
        within = {key: goal.judge_slowdown(likely[key][1] - ONE) for key in scores}
    reached = {key: goal.judge_quality((qualities or {}).get(key, {})) for key in scores} if goal.quality else {}
    good = [key for key in scores if reached.get(key, "surely") in REACHED]
    allowed = [key for key in good if goal.slowdown is None or against[key][1].value - 1 <= goal.slowdown]
    if not allowed:
        return None
    best = min(allowed, key=lambda key: scores[key].value)
    possible = [key for key in good if key != best and within.get(key) != "not"]
    margins = _compute_margins(goal, best, judged, likely, base)
    tied = tuple(key for key in possible if not margins[key].is_positive)
    improvement = ONE - goal.score(*against[best]) if best in against else None
    bars = _compute_bars(best, margins)
    return BestCell(goal, line, best, scores[best], improvement, tied, within, bars, reached)


def _compute_margins(
    goal: Goal,
    best: str,
    judged: Mapping[str, CellMeans],
    likely: Mapping[str, tuple[Quantity, Quantity]],
    base: CellMeans | None,
) -> dict[str, Quantity]:
    """Return how much worse than the best each other cell is: J, s, J s, J s², or shares for sums.

    Both are taken as ratios to the reference where that is known, as gains are: so a verdict on the reference never
    contradicts the gain beside it, however large the scatter.
    """
    scores = {key: goal.score(*ratios) for key, ratios in likely.items()}
    if goal.name in ("eds", "gain-loss"):
        return {key: score - scores[best] for key, score in scores.items() if key != best}
    margins: dict[str, Quantity] = {}
    for key, m in judged.items():
        if key != best and _divide_means(goal, m, m):
            margin = scores[key] - scores[best] if key in scores and best in scores else None
            unit = base if base is not None and margin is not None and margin.known else m
            saving = margin if margin is not None and unit is base else _compute_saving(goal, judged[best], m)
            margins[key] = saving * goal.score(unit.energy or ONE, unit.time).value
    return margins


def _compute_bars(best: str, margins: Mapping[str, Quantity]) -> dict[str, float]:
    """Return the half width of each cell's bar; empty if no margin to the best is known.

    The half widths of a cell and of the best add up to the expanded uncertainty of the margin between them, so bars
    overlap exactly if the difference is not significant. Errors that both have in common cancel in the margin.
    """
    known = {key: q.expanded for key, q in margins.items() if q.expanded is not None}
    if not known:
        return {}
    own = min(known.values()) / 2  # half of it, as if both were equally uncertain
    return {best: own} | {key: expanded - own for key, expanded in known.items()}


def _judge_means(
    cells: Mapping[str, CellMeans], reference: CellMeans | None
) -> tuple[dict[str, CellMeans], CellMeans | None]:
    """Return the cells and the reference with an assumed spread; the reference stays the same object as its cell."""
    judged = {key: m.assume_spread(key) for key, m in cells.items()}
    itself = next((key for key, m in cells.items() if m is reference), None)
    if itself is not None:
        return judged, judged[itself]
    return judged, None if reference is None else reference.assume_spread("reference")


def _divide_by_reference(
    goal: Goal, cells: Mapping[str, CellMeans], reference: CellMeans | None
) -> dict[str, tuple[Quantity, Quantity]]:
    """Return energy and time against the reference, for each cell that has the figures of the goal."""
    return {key: ratios for key, m in cells.items() if (ratios := _divide_means(goal, m, reference))}


def _compute_scores(
    goal: Goal, cells: Mapping[str, CellMeans], against: Mapping[str, tuple[Quantity, Quantity]]
) -> dict[str, Quantity]:
    """Return the figure to minimise for each cell that has the figures of the goal."""
    if goal.needs_reference:
        return {key: goal.score(*ratios) for key, ratios in against.items()}
    return {key: goal.score(m.energy or ONE, m.time) for key, m in cells.items() if _divide_means(goal, m, m)}


def _divide_means(goal: Goal, cell: CellMeans, reference: CellMeans | None) -> tuple[Quantity, Quantity] | None:
    """Return energy and time against a reference; None if a figure that the goal needs is missing."""
    if reference is None:
        return None
    energy = divide_energies(cell, reference) if goal.needs_energy else ONE
    time = divide_times(cell, reference)
    return None if energy is None or time is None else (energy, time)


def _compute_saving(goal: Goal, best: CellMeans, cell: CellMeans) -> Quantity:
    """Return the share that the best cell saves against another cell; both have the figures of the goal."""
    ratios = _divide_means(goal, best, cell)
    assert ratios is not None
    return ONE - goal.score(*ratios)
