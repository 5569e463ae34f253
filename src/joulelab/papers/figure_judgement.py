"""Set a figure that a study gave beside the published one, and judge how far they lie apart. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

Kind = Literal["calibrated", "predicted", "identity", "finding", "outside"]
Verdict = Literal["hit", "miss", ""]

ROUNDING = 1e-9  # a cap that is exactly one step off is within one step, whatever its last bit says


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Say how far a figure may lie from the published one: by an amount in its unit, or by a share of it.

    `text` names where an amount is from: what the paper prints behind ±, `points` of a gain, a `step` of the caps.
    """

    amount: float | None = None
    share: float | None = None
    text: str = ""

    def allowed(self, published: float) -> float:
        """Return how far off is still within, in the figure's unit; infinite where nothing is asked."""
        if self.amount is not None:
            return self.amount
        return math.inf if self.share is None else self.share * abs(published)


def printed(amount: float) -> Tolerance:
    """Return the tolerance of a figure whose ± the paper prints, in the figure's unit."""
    return Tolerance(amount=amount, text="printed ±")


SHARE = Tolerance(share=0.05)  # watts, joules, seconds, ratios and speed-ups
POINTS = Tolerance(amount=2.0, text="points")  # gains, in percent
STEP = Tolerance(amount=10.0, text="one step")  # caps, in W
NONE = Tolerance()  # findings hold or do not; what is outside is not judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Hold one published figure and what the study gave for it, both in `unit` (that of the paper: kWh, kJ, W, %).

    `reproduced` is None where the study has no such cell yet, and True or False for a finding, whose numbers are in
    `detail`. `uncertainty` is the expanded one (k = 2) of what was reproduced. `note` says why it lies off, or what
    the paper says against itself.
    """

    id: str
    label: str
    published: float | str | None
    reproduced: float | str | bool | None
    unit: str = ""
    tolerance: Tolerance = SHARE
    kind: Kind = "predicted"
    uncertainty: float | None = None
    detail: str = ""
    note: str = ""

    @property
    def numbers(self) -> tuple[float, float] | None:
        """Return published and reproduced where both are numbers."""
        found = (self.published, self.reproduced)
        if any(isinstance(v, (bool, str)) or v is None or not math.isfinite(v) for v in found):
            return None
        return float(self.published or 0.0), float(self.reproduced or 0.0)

    @property
    def deviation(self) -> float | None:
        """Return reproduced minus published in the figure's unit; None where one is no number."""
        numbers = self.numbers
        return None if numbers is None else numbers[1] - numbers[0]

    @property
    def relative(self) -> float | None:
        """Return the deviation as a share of the published figure; None where there is none."""
        numbers = self.numbers
        return None if numbers is None or numbers[0] == 0 else numbers[1] / numbers[0] - 1

    @property
    def verdict(self) -> Verdict:
        """Return whether it lies within its tolerance, or a finding holds; empty where that cannot be judged."""
        if self.kind == "outside" or self.reproduced is None:
            return ""
        if self.kind == "finding":
            return "hit" if self.reproduced is True else "miss"
        numbers = self.numbers
        if numbers is None:
            return ""
        allowed = self.tolerance.allowed(numbers[0])
        off = abs(numbers[1] - numbers[0])
        return "hit" if off <= allowed + ROUNDING * max(abs(numbers[0]), abs(numbers[1])) else "miss"


@dataclass(frozen=True, slots=True)
class Count:
    """Say how many of some figures lie within their tolerance; `unjudged` are those the study has no cell for."""

    hits: int
    misses: int
    unjudged: int

    @property
    def total(self) -> int:
        """Return how many figures there are; one that the study does not give is not a hit."""
        return self.hits + self.misses + self.unjudged

    @property
    def share(self) -> float:
        """Return the share of hits; NaN where there are no figures."""
        return self.hits / self.total if self.total else math.nan


def marked(figures: Iterable[Figure], calibrated: Collection[str]) -> list[Figure]:
    """Return the figures with those marked that a twin was calibrated on: they are predictions no more.

    Also an identity or a finding may not be counted as a prediction, so their kind stays.
    """
    return [replace(f, kind="calibrated") if f.kind == "predicted" and f.id in calibrated else f for f in figures]


def of_kind(figures: Iterable[Figure], kind: Kind) -> list[Figure]:
    """Return the figures of a kind, in their order."""
    return [figure for figure in figures if figure.kind == kind]


def misses(figures: Iterable[Figure]) -> list[Figure]:
    """Return what misses, of every kind that is judged, in order."""
    return [figure for figure in figures if figure.verdict == "miss"]


def count(figures: Sequence[Figure], kind: Kind) -> Count:
    """Count the verdicts of the figures of a kind."""
    found = Counter(figure.verdict for figure in of_kind(figures, kind))
    return Count(found["hit"], found["miss"], found[""])


def finding(name: str, text: str, holds: bool | None, detail: str, note: str = "") -> Figure:
    """Return what a paper says in words, and whether it holds here; `note` says why not."""
    return Figure(
        id=name, label=text, published=text, reproduced=holds, tolerance=NONE, kind="finding", detail=detail,
        note=note if holds is False else "",
    )  # fmt: skip
