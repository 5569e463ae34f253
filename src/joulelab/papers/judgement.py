"""Judge reproduced figures by the published ones: tolerances, verdicts, groups and counts. Pure.

A figure counts strictly if it is in the group `measured`: the paper measured it, and no number of the twin that was
fitted to a published figure, or chosen knowing one, determines it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

Kind = Literal["calibrated", "predicted", "identity", "finding", "outside"]
Group = Literal["measured", "derived", "calibrated", "chosen", "determined", ""]
Verdict = Literal["hit", "miss", ""]

GROUPS: tuple[Group, ...] = ("measured", "derived", "calibrated", "chosen", "determined")
ROUNDING = 1e-9  # a cap that is exactly one step off is within one step, whatever its last bit is
GAIN_SHARE, MOST_POINTS = 0.1, 2.0  # a gain may be off by a tenth, and by no more than 2 points


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Hold the largest deviation from a published figure that is a hit: an amount in its unit, or a share.

    `text` names the origin: what the paper prints behind ±, a share, or a step of the caps.
    """

    amount: float | None = None
    share: float | None = None
    text: str = ""

    def get_limit(self, published: float) -> float:
        """Return the largest deviation that is within, in the figure's unit; infinite if nothing is asked."""
        if self.amount is not None:
            return self.amount
        return math.inf if self.share is None else self.share * abs(published)


SHARE = Tolerance(share=0.05, text="5 %")  # watts, joules, seconds, ratios and speed-ups
STEP = Tolerance(amount=10.0, text="one step")  # caps, in W
NO_TOLERANCE = Tolerance()  # for findings, which hold or do not, and figures outside of a twin


def make_printed_tolerance(amount: float) -> Tolerance:
    """Return the tolerance of a figure whose ± the paper prints, in the figure's unit."""
    return Tolerance(amount=amount, text="printed ±")


def make_gain_tolerance(gain: float) -> Tolerance:
    """Return the tolerance of a gain (%): a tenth, at least its rounding, at most 2 points.

    The rounding is half of a unit of the last digit that is printed.
    """
    rounding = Decimal(repr(gain)).as_tuple().exponent
    half = 0.5 * 10.0 ** int(rounding)
    return Tolerance(amount=min(max(GAIN_SHARE * abs(gain), half), MOST_POINTS), text="10 % of the gain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Hold one published figure and what the study gave for it, both in `unit` (that of the paper: kWh, kJ, W, %).

    `reproduced` is None where the study has no such cell yet, and True or False for a finding, whose numbers are in
    `detail`. `uncertainty` is the expanded one (k = 2) of `reproduced`. `note` gives the reason of a miss, or
    a remark.
    """

    id: str
    label: str
    published: float | str | None
    reproduced: float | str | bool | None
    unit: str = ""
    tolerance: Tolerance = SHARE
    kind: Kind = "predicted"
    group: Group = ""
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
        """Return the deviation as a share of the published figure; None where that is 0."""
        numbers = self.numbers
        return None if numbers is None or numbers[0] == 0 else numbers[1] / numbers[0] - 1

    @property
    def limit(self) -> float | None:
        """Return the largest deviation that is within; None where nothing is judged."""
        numbers = self.numbers
        limit = math.inf if numbers is None else self.tolerance.get_limit(numbers[0])
        return limit if math.isfinite(limit) else None

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
        limit = self.tolerance.get_limit(numbers[0]) + ROUNDING * max(map(abs, numbers))
        return "hit" if abs(numbers[1] - numbers[0]) <= limit else "miss"

    @property
    def is_strict(self) -> bool:
        """Return whether it counts strictly."""
        return self.group == "measured" and self.kind in ("predicted", "identity")

    def add_note(self, note: str) -> Figure:
        """Return the figure with another note."""
        return replace(self, note=note)


@dataclass(frozen=True, slots=True)
class Count:
    """Hold how many figures lie within their tolerance; `unjudged` are those the study has no cell for."""

    hits: int
    misses: int
    unjudged: int

    @property
    def total(self) -> int:
        """Return the number of figures; one that the study does not give is not a hit."""
        return self.hits + self.misses + self.unjudged

    @property
    def share(self) -> float:
        """Return the share of hits; NaN where there are no figures."""
        return self.hits / self.total if self.total else math.nan


class FigureEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describe one published figure; the keys are explained in bnl_figures.toml."""

    id: str
    label: str
    published: str | list[str]
    unit: str = ""
    within: str = "share"
    kind: Kind = "predicted"
    follows: tuple[str, ...] = ()
    fixed_by: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    reason: str = ""
    note: str = ""


def group_figures(
    entries: Sequence[FigureEntry], calibrated: Collection[str], chosen: Collection[str]
) -> dict[str, Group]:
    """Return the group of each figure, by id.

    `calibrated` and `chosen` are the figures that numbers of the twin were fitted to, or chosen knowing. Determined are
    figures all of whose `fixed_by` or `factors` are calibrated, chosen or determined. Energy, mean power and time of a
    run are two pieces of evidence, and one where the power or the time is fixed: it is the energy that counts then, and
    the other factor is derived.
    """
    fixed = {*calibrated, *chosen}
    while more := {e.id for e in entries if (by := {*e.fixed_by, *e.factors}) and by <= fixed} - fixed:
        fixed |= more
    one_left = {
        factor
        for entry in entries
        if entry.id not in fixed and len(left := set(entry.factors) - fixed) < len(entry.factors)
        for factor in left
    }

    def choose_group(entry: FigureEntry) -> Group:
        if entry.kind == "outside":
            return ""
        if entry.id in calibrated:
            return "calibrated"
        if entry.id in chosen:
            return "chosen"
        if entry.id in fixed:
            return "determined"
        return "derived" if entry.follows or entry.id in one_left else "measured"

    return {entry.id: choose_group(entry) for entry in entries}


def select_kind(figures: Iterable[Figure], kind: Kind) -> list[Figure]:
    """Return the figures of a kind, in their order."""
    return [figure for figure in figures if figure.kind == kind]


def list_misses(figures: Iterable[Figure]) -> list[Figure]:
    """List the misses, of every kind that is judged: those that count strictly first."""
    return sorted((f for f in figures if f.verdict == "miss"), key=lambda f: not f.is_strict)


def count_verdicts(figures: Iterable[Figure]) -> Count:
    """Count the verdicts of figures."""
    found = Counter(figure.verdict for figure in figures)
    return Count(found["hit"], found["miss"], found[""])


def count_kind(figures: Iterable[Figure], kind: Kind) -> Count:
    """Count the verdicts of the figures of a kind."""
    return count_verdicts(select_kind(figures, kind))


def count_strictly(figures: Iterable[Figure]) -> Count:
    """Count the verdicts of the figures that no fitted or knowingly chosen number determines."""
    return count_verdicts(figure for figure in figures if figure.is_strict)
