"""Hold what tuning found: each cap that was tried, the choice, what it saves and what finding it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.quantity import ONE, Quantity, add_quantities

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.goals import Goal
    from joulelab.analysis.study_cells import Note
    from joulelab.study.tuning.search import Choice

SHARED = ("gain", "offset", "unseen", "in-step")
KEPT = ("gain:", "offset:", "drift:")  # sources that all windows of a cap share
NOT_ENFORCED = "not enforced"
WORKS = 0.15  # a cap that lowers the mean power of its GPUs by so much has an effect; by less, it may be chance
LOST, SLOW = 1.3, 0.25  # a score so many times the best, and a slowdown so far beyond its limit, will not turn


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold one trial under a cap (W): energy (J) and time (s), each of a run or of a unit of work.

    `held` is False where the devices did not keep to the cap: then it is shown, and used for nothing.
    """

    cap: float
    energy: Quantity
    time: Quantity
    held: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """Hold what is known of one cap: means over its trials, and against the reference where that was tried.

    `doubt` is why it is not compared.
    """

    cap: float
    shown: str
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
        return {"cap_w": self.cap, "shown": self.shown, "trials": self.n, "doubt": self.doubt, **plain}


@dataclass(frozen=True, slots=True)
class Price:
    """Hold what tuning cost: trials made for it, their energy (J) and time (s), and what of it the choice spares."""

    trials: int = 0
    energy_j: float = 0.0
    time_s: float = 0.0
    more_j: float = 0.0
    more_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tuned:
    """Hold everything that is printed of a tuning.

    `unit` is the kind of work that energy and time are of, empty for whole runs; `scopes` says whose energy it is.
    `saved` (J) and `slower` (s) are against the reference: per run, or in the one run since the first window.
    `complete` is False where the end came first.
    """

    goal: Goal
    mode: Literal["runs", "online"]
    rows: tuple[Row, ...]
    reference: float
    unit: str = ""
    scopes: str = ""
    choice: float | None = None
    tied: tuple[float, ...] = ()
    why: str = ""
    complete: bool = True
    saved: Quantity | None = None
    slower: Quantity | None = None
    over: str = "per run"
    price: Price = field(default_factory=Price)
    notes: tuple[str | Note, ...] = ()
    problems: tuple[str, ...] = ()
    folder: str = ""
    next: str = ""

    def row(self, cap: float | None) -> Row | None:
        """Return the row of a cap."""
        return next((r for r in self.rows if r.cap == cap), None)

    @property
    def sure(self) -> bool:
        """Return whether what was saved, or spent, is more than it may be by chance."""
        wide = None if self.saved is None else self.saved.expanded
        return wide is not None and self.saved is not None and abs(self.saved.value) > wide

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        chosen, reference = self.row(self.choice), self.row(self.reference)
        return {
            "schema": 1,
            "goal": self.goal.text,
            "mode": self.mode,
            "unit": self.unit or "run",
            "scopes": self.scopes,
            "reference_w": self.reference,
            "rows": [row.to_json() for row in self.rows],
            "choice_w": self.choice,
            "choice": None if chosen is None else chosen.shown,
            "tied_w": list(self.tied),
            "why": self.why,
            "complete": self.complete,
            "saved_j": None if self.saved is None else self.saved.to_json(),
            "saved_surely": self.sure,
            "saved_share": _share(chosen, reference),
            "slower_s": None if self.slower is None else self.slower.to_json(),
            "over": self.over,
            "cost": {name: getattr(self.price, name) for name in ("trials", "energy_j", "time_s", "more_j", "more_s")},
            "notes": list(self.notes),
            "problems": list(self.problems),
            "folder": self.folder,
            "next": self.next,
        }


def _share(chosen: Row | None, reference: Row | None) -> float | None:
    return None if chosen is None or chosen.gain is None or reference is None else chosen.gain.value


def rows(goal: Goal, samples: Sequence[Sample], reference: float, shown: Mapping[float, str]) -> tuple[Row, ...]:
    """Return a row for each cap that was tried in windows, the highest first."""
    caps = sorted({s.cap for s in samples}, reverse=True)
    held = {cap: [s for s in samples if s.cap == cap and s.held] for cap in caps}
    base = _mean(held[reference]) if held.get(reference) else None
    made = []
    for cap in caps:
        used = held[cap] or [s for s in samples if s.cap == cap]
        energy, time = _mean(used)
        row = Row(cap, shown.get(cap, f"{cap:g} W"), len(used), energy, time, doubt="" if held[cap] else NOT_ENFORCED)
        made.append(row if base is None or row.doubt else _against(goal, row, base, is_base=cap == reference))
    return tuple(made)


def _against(goal: Goal, row: Row, base: tuple[Quantity, Quantity], *, is_base: bool) -> Row:
    e, t = (ONE, ONE) if is_base else (row.energy / base[0], row.time / base[1])
    return replace(row, gain=ONE - e, loss=t - ONE, score=goal.score(e, t))


def take_effect(held: Mapping[float, float], unheld: Sequence[float], reference: float) -> bool:
    """Return whether caps change anything, where some were not kept to, by mean powers of the GPUs (W).

    `held` are those under caps that were kept to, by cap; `unheld` the others. A GPU may not get as low as its lowest
    caps, but draws less under them than under the reference.
    """
    if not unheld or reference not in held:
        return not unheld
    others = [w for cap, w in held.items() if cap < reference]
    return any(w < (1 - WORKS) * held[reference] for w in (sum(unheld) / len(unheld), *others))


def why_of(goal: Goal, choice: Choice, tied: Sequence[float], tried: int, shown: Mapping[float, str]) -> str:
    """Return why a cap was chosen, in words; all figures are those of the table."""
    # What the search says of figures and of ties is left out: the table has them, with intervals.
    own = (f"{goal.text}: the best of", " % against ", "no significant difference")
    rest = [part for part in choice.why.split("; ") if not any(words in part for words in own)]
    names = ", ".join(shown.get(cap, f"{cap:g} W") for cap in sorted(tied))
    like = [f"no significant difference from {names}"] if tied else []
    best = [] if choice.flat else [f"the best of {tried} caps tried"]
    return "; ".join([*best, *([] if choice.flat else like), *rest])


def is_hopeless(goal: Goal, samples: Sequence[Sample], reference: float, cap: float) -> bool:
    """Return whether a cap, or a higher one than it, was tried and is far worse than the best: no need to see more."""
    seen = {row.cap: row for row in rows(goal, samples, reference, {}) if not row.doubt}
    scores = {c: row.score.value for c, row in seen.items() if row.score is not None and row.loss is not None}
    if not scores:
        return False
    limit = math.inf if goal.slowdown is None else goal.slowdown + SLOW
    worse = [
        c for c, row in seen.items() if row.loss and (scores[c] > LOST * min(scores.values()) or row.loss.value > limit)
    ]
    return any(cap <= c < reference for c in worse)


def _mean(samples: Sequence[Sample]) -> tuple[Quantity, Quantity]:
    """Return mean energy and time, each by what the trials say of themselves and by how far they are apart."""
    cap = samples[0].cap
    return _of_windows([s.energy for s in samples], cap), _of_windows([s.time for s in samples], cap)


def _of_windows(values: Sequence[Quantity], cap: float) -> Quantity:
    """Return the mean; where the values are further apart than each says of itself, their own terms grow."""
    n = len(values)
    # Only gain and offset are common to all caps. How a workload drifted is the same in all windows of one.
    tagged = [q.without("unseen", "in-step").tagged(f"{cap:g}#{k}", keep=KEPT) for k, q in enumerate(values)]
    mean = add_quantities(q * (1 / n) for q in tagged)
    own = math.sqrt(sum(q.without(*SHARED).u ** 2 for q in values) / n)
    spread = math.sqrt(sum((q.value - mean.value) ** 2 for q in values) / (n - 1)) if n > 1 else 0.0
    grow = max(spread / own, 1.0) if own > 0 else 1.0
    terms = {s: u if s.startswith(("gain:", "offset:")) else u * grow for s, u in mean.terms.items()}
    return Quantity(mean.value, terms, mean.known)
