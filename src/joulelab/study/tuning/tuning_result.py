"""Hold the result of tuning: each setting that was tried, the choice, its saving and the cost of the search."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.quantity import ONE, Quantity, add_quantities
from joulelab.study.tuning.search import Setting, name_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.goals import Goal
    from joulelab.analysis.study_cells import Note
    from joulelab.study.tuning.search import Choice

# Errors that all trials of one meter share, or that cannot be in step with trials that begin at any time.
COMMON_SOURCES = ("gain", "offset", "unseen", "in-step")
SHARED_PREFIXES = ("gain:", "offset:", "drift:")  # sources that all windows of a setting share
NOT_ENFORCED = "not enforced"
MISSED = "misses quality"
LEAST_EFFECT = 0.15  # a cap that lowers the mean power of its GPUs by less may do so by chance
LOST, SLOW = 1.3, 0.25  # a score so many times the best, and a slowdown so far beyond its limit, will not turn


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold one trial of a setting: energy (J) and time (s), each of a run or of a unit of work.

    `held` is False if the devices did not keep to the cap: then it is shown, and used for nothing.
    """

    setting: Setting
    energy: Quantity
    time: Quantity
    held: bool = True


@dataclass(frozen=True, slots=True)
class SettingRow:
    """Hold the figures of one setting: means over its trials, and against the reference if that was tried.

    `doubt` is the reason if it cannot be chosen.
    """

    setting: Setting
    label: str
    n: int
    energy: Quantity
    time: Quantity
    gain: Quantity | None = None
    loss: Quantity | None = None
    score: Quantity | None = None
    doubt: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        parts = {name: getattr(self, name) for name in ("energy", "time", "gain", "loss", "score")}
        plain = {name: None if q is None else q.to_json() for name, q in parts.items()}
        knobs = {"cap_w": self.setting.cap_w, "clock_hz": self.setting.clock_hz}
        return {**knobs, "shown": self.label, "trials": self.n, "doubt": self.doubt, **plain}


@dataclass(frozen=True, slots=True)
class SearchCost:
    """Hold the cost of tuning: its trials, their energy (J) and time (s), and what the choice would have spared."""

    trials: int = 0
    energy_j: float = 0.0
    time_s: float = 0.0
    more_j: float = 0.0
    more_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TuningResult:
    """Hold everything that is printed of a tuning.

    `unit` is the kind of work that energy and time are of, empty for whole runs; `scopes` says whose energy it is.
    `saved` (J) and `slower` (s) are against the reference: per run, or in the one run since the first window.
    `complete` is False if the end came before the search was done.
    """

    goal: Goal
    mode: Literal["runs", "online"]
    rows: tuple[SettingRow, ...]
    reference: Setting
    unit: str = ""
    scopes: str = ""
    choice: Setting | None = None
    tied: tuple[Setting, ...] = ()
    why: str = ""
    complete: bool = True
    saved: Quantity | None = None
    slower: Quantity | None = None
    over: str = "per run"
    cost: SearchCost = field(default_factory=SearchCost)
    notes: tuple[str | Note, ...] = ()
    problems: tuple[str, ...] = ()
    folder: str = ""
    next: str = ""

    def find_row(self, setting: Setting | None) -> SettingRow | None:
        """Return the row of a setting."""
        return find_row(self.rows, setting)

    @property
    def is_saving_sure(self) -> bool:
        """Return whether the saving, or the loss, is larger than its interval."""
        wide = None if self.saved is None else self.saved.expanded
        return wide is not None and self.saved is not None and abs(self.saved.value) > wide

    @property
    def to_apply(self) -> Setting | None:
        """Return the setting to run under: the reference if the choice has no significant difference from it."""
        return self.reference if self.reference in self.tied else self.choice

    @property
    def noun(self) -> str:
        """Return the noun for a setting: cap, clock or setting."""
        return name_settings([self.reference], 1)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        chosen, choice = self.find_row(self.choice), self.choice or Setting()
        share = None if chosen is None or chosen.gain is None else chosen.gain.value
        names = ("trials", "energy_j", "time_s", "more_j", "more_s")
        return {
            "schema": 1,
            "goal": self.goal.text,
            "mode": self.mode,
            "unit": self.unit or "run",
            "scopes": self.scopes,
            "reference_w": self.reference.cap_w,
            "reference_clock_hz": self.reference.clock_hz,
            "rows": [row.to_json() for row in self.rows],
            "choice_w": choice.cap_w,
            "choice_clock_hz": choice.clock_hz,
            "choice": None if chosen is None else chosen.label,
            "tied_w": [setting.cap_w for setting in self.tied],
            "tied_clocks_hz": [setting.clock_hz for setting in self.tied],
            "why": self.why,
            "complete": self.complete,
            "saved_j": None if self.saved is None else self.saved.to_json(),
            "saved_surely": self.is_saving_sure,
            "saved_share": None if self.find_row(self.reference) is None else share,
            "slower_s": None if self.slower is None else self.slower.to_json(),
            "over": self.over,
            "cost": {name: getattr(self.cost, name) for name in names},
            "notes": list(self.notes),
            "problems": list(self.problems),
            "folder": self.folder,
            "next": self.next,
        }


def find_row(rows: Sequence[SettingRow], setting: Setting | None) -> SettingRow | None:
    """Return the row of a setting."""
    return next((row for row in rows if row.setting == setting), None)


def average_samples(
    goal: Goal, samples: Sequence[Sample], reference: Setting, labels: Mapping[Setting, str]
) -> tuple[SettingRow, ...]:
    """Return a row for each setting that was tried in windows, the highest first."""
    settings = sorted({s.setting for s in samples}, key=lambda setting: setting.rank, reverse=True)
    held = {setting: [s for s in samples if s.setting == setting and s.held] for setting in settings}
    base = _average(held[reference]) if held.get(reference) else None
    rows = []
    for setting in settings:
        used = held[setting] or [s for s in samples if s.setting == setting]
        label, doubt = labels.get(setting, setting.text), "" if held[setting] else NOT_ENFORCED
        row = SettingRow(setting, label, len(used), *_average(used), doubt=doubt)
        if base is not None and not doubt:
            e, t = (ONE, ONE) if setting == reference else (row.energy / base[0], row.time / base[1])
            row = replace(row, gain=ONE - e, loss=t - ONE, score=goal.score(e, t))
        rows.append(row)
    return tuple(rows)


def take_effect(held: Mapping[Setting, float], unheld: Sequence[float], reference: Setting) -> bool:
    """Return whether caps have an effect although some were not kept, by mean powers of the GPUs (W).

    `held` are those under caps that were kept, by setting; `unheld` the others. A GPU may not get as low as its lowest
    caps, but draws less under them than under the reference.
    """
    if not unheld or reference not in held:
        return not unheld
    others = [watts for setting, watts in held.items() if setting != reference]
    return any(w < (1 - LEAST_EFFECT) * held[reference] for w in (sum(unheld) / len(unheld), *others))


def is_doubted_by(setting: Setting, doubted: Setting) -> bool:
    """Return whether a cap is not kept either if another was not: it is no higher, and no lower clock helps it."""
    cap, limit = (math.inf if one.cap_w is None else one.cap_w for one in (setting, doubted))
    return cap <= limit and setting.rank[0] >= doubted.rank[0]


def explain_choice(
    goal: Goal, choice: Choice, tied: Sequence[Setting], tried: int, labels: Mapping[Setting, str]
) -> str:
    """Return the reasons for a choice; all figures are those of the table."""
    # The search's own figures and ties are left out: the table has them, with intervals.
    own = (f"{goal.text}: the best of", " % against ", "no significant difference")
    rest = [part for part in choice.why.split("; ") if not any(words in part for words in own)]
    names = [labels.get(setting, setting.text) for setting in sorted(tied, key=lambda setting: setting.rank)]
    joined = (", " if choice.setting.clock_hz is None else "; ").join(names)
    first = f"the best of {tried} {name_settings([choice.setting])} tried"
    if tried == 1:
        first = f"no other {name_settings([choice.setting], 1)} can be compared with it"
    best = [] if choice.flat else [first]
    like = [f"no significant difference from {joined}"] if tied and not choice.flat else []
    return "; ".join([*best, *like, *rest])


def is_hopeless(goal: Goal, samples: Sequence[Sample], reference: Setting, setting: Setting) -> bool:
    """Return whether a setting is far worse than the best: it was tried, or the same clock with a higher cap was.

    With a cap alone, or a clock alone, any lower value is as bad.
    """
    rows = {row.setting: row for row in average_samples(goal, samples, reference, {}) if not row.doubt}
    scores = {one: row.score.value for one, row in rows.items() if row.score is not None and row.loss is not None}
    if not scores:
        return False
    limit = math.inf if goal.slowdown is None else goal.slowdown + SLOW
    worse = [
        one
        for one, row in rows.items()
        if row.loss and (scores[one] > LOST * min(scores.values()) or row.loss.value > limit)
    ]
    if reference.cap_w is not None and reference.clock_hz is not None:
        return setting in worse
    return any(setting.rank <= one.rank < reference.rank for one in worse)


def _average(samples: Sequence[Sample]) -> tuple[Quantity, Quantity]:
    """Return mean energy and time, with the larger of the trials' own uncertainties and their spread."""
    tag = samples[0].setting.text
    return _average_quantities([s.energy for s in samples], tag), _average_quantities([s.time for s in samples], tag)


def _average_quantities(values: Sequence[Quantity], tag: str) -> Quantity:
    n = len(values)
    # Only gain and offset are common to all settings. The drift of a workload is the same in all windows of one.
    tagged = [q.without("unseen", "in-step").tagged(f"{tag}#{k}", keep=SHARED_PREFIXES) for k, q in enumerate(values)]
    mean = add_quantities(q * (1 / n) for q in tagged)
    own = math.sqrt(sum(q.without(*COMMON_SOURCES).u ** 2 for q in values) / n)
    spread = math.sqrt(sum((q.value - mean.value) ** 2 for q in values) / (n - 1)) if n > 1 else 0.0
    grow = max(spread / own, 1.0) if own > 0 else 1.0
    terms = {s: u if s.startswith(("gain:", "offset:")) else u * grow for s, u in mean.terms.items()}
    return Quantity(mean.value, terms, mean.known)
