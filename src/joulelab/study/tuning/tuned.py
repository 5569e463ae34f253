"""Hold what tuning found: each cap that was tried, the choice, what it saves and what finding it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from joulelab.analysis.cells import Cell, Trial, means
from joulelab.analysis.terms import Quantity, total

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.goal import Goal


SHARED = ("gain", "offset", "unseen")
LOST, SLOW = 1.3, 0.25  # a score so many times the best, and a slowdown so far beyond its limit, will not turn


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold one trial under a cap (W): energy (J) and time (s), each of a run or of a unit of work."""

    cap: float
    energy: Quantity
    time: Quantity


@dataclass(frozen=True, slots=True)
class Row:
    """Hold what is known of one cap: means over its trials, and against the reference where that was tried."""

    cap: float
    shown: str
    n: int
    energy: Quantity
    time: Quantity
    gain: Quantity | None = None
    loss: Quantity | None = None
    score: Quantity | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        parts = {name: getattr(self, name) for name in ("energy", "time", "gain", "loss", "score")}
        plain = {name: None if q is None else q.to_json() for name, q in parts.items()}
        return {"cap_w": self.cap, "shown": self.shown, "trials": self.n, **plain}


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

    `unit` is the kind of work that energy and time are of, empty for whole runs. `saved` (J) and `slower` (s) are
    against the reference: per run, or over the rest of the one run. `complete` is False where the end came first.
    """

    goal: Goal
    mode: Literal["runs", "online"]
    rows: tuple[Row, ...]
    reference: float
    unit: str = ""
    choice: float | None = None
    tied: tuple[float, ...] = ()
    why: str = ""
    complete: bool = True
    saved: Quantity | None = None
    slower: Quantity | None = None
    over: str = "per run"
    price: Price = field(default_factory=Price)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    folder: str = ""
    next: str = ""

    def row(self, cap: float | None) -> Row | None:
        """Return the row of a cap."""
        return next((r for r in self.rows if r.cap == cap), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        chosen, reference = self.row(self.choice), self.row(self.reference)
        return {
            "schema": 1,
            "goal": self.goal.text,
            "mode": self.mode,
            "unit": self.unit or "run",
            "reference_w": self.reference,
            "rows": [row.to_json() for row in self.rows],
            "choice_w": self.choice,
            "choice": None if chosen is None else chosen.shown,
            "tied_w": list(self.tied),
            "why": self.why,
            "complete": self.complete,
            "saved_j": None if self.saved is None else self.saved.to_json(),
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
    """Return a row for each cap that was tried, the highest first."""
    caps = sorted({s.cap for s in samples}, reverse=True)
    found = {cap: _mean([s for s in samples if s.cap == cap]) for cap in caps}
    base = found.get(reference)
    made = []
    for cap, (energy, time) in found.items():
        n, name = sum(s.cap == cap for s in samples), shown.get(cap, f"{cap:g} W")
        if base is None:
            made.append(Row(cap, name, n, energy, time))
            continue
        e, t = (energy.ratio(base[0]), time.ratio(base[1])) if cap != reference else (Quantity(1.0), Quantity(1.0))
        one = Quantity(1.0)
        made.append(Row(cap, name, n, energy, time, one - e, t - one, goal.score(e, t)))
    return tuple(made)


def is_hopeless(goal: Goal, samples: Sequence[Sample], reference: float, cap: float) -> bool:
    """Return whether a cap, or a higher one than it, was tried and is far worse than the best: no need to see more."""
    seen = {row.cap: row for row in rows(goal, samples, reference, {})}
    scores = {c: row.score.value for c, row in seen.items() if row.score is not None and row.loss is not None}
    if not scores:
        return False
    limit = math.inf if goal.slowdown is None else goal.slowdown + SLOW
    worse = [
        c for c, row in seen.items() if row.loss and (scores[c] > LOST * min(scores.values()) or row.loss.value > limit)
    ]
    return any(cap <= c < reference for c in worse)


def _mean(samples: Sequence[Sample]) -> tuple[Quantity, Quantity]:
    """Return mean energy and time: of windows by what each says of itself, of runs by how they spread."""
    if len(samples) == 1 or all(s.time.terms for s in samples):
        return _of_windows([s.energy for s in samples], samples[0].cap), _of_windows(
            [s.time for s in samples], samples[0].cap
        )
    trials = tuple(Trial(_of_run(s.energy, f"{s.cap:g}"), s.time.value) for s in samples)
    mean = means(Cell(f"{samples[0].cap:g}", {"cap": samples[0].cap}, trials))
    assert mean is not None
    assert mean.energy is not None
    return mean.energy, mean.time


def _of_windows(values: Sequence[Quantity], cap: float) -> Quantity:
    """Return the mean; where the values are further apart than each says of itself, their own terms grow."""
    n = len(values)
    mean = total(_of_run(q, f"{cap:g}#{k}").scaled(1 / n) for k, q in enumerate(values))
    own = math.sqrt(sum(q.without(*SHARED).u ** 2 for q in values) / n)
    spread = math.sqrt(sum((q.value - mean.value) ** 2 for q in values) / (n - 1)) if n > 1 else 0.0
    grow = max(spread / own, 1.0) if own > 0 else 1.0
    terms = {s: u if s.startswith(("gain:", "offset:")) else u * grow for s, u in mean.terms.items()}
    return Quantity(mean.value, terms, mean.known)


def _of_run(q: Quantity, tag: str) -> Quantity:
    """Let only gain and offset be common to all caps."""
    return q.without("unseen").tagged(tag, keep=("gain:", "offset:"))
