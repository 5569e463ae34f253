"""Carry a value with its uncertainty terms, each with a source and a sign.

Terms of one source add linearly, terms of different sources in quadrature. So the gain error of one meter cancels in
a ratio, GPUs of one model add their gain errors, and the edge between two phases cancels in their sum.

A term of the kind `unseen` is a bound, not a part of the interval: a load in exact step with a sensor that measures a
part of the time. Nothing in the run points to such a load. Where something does, the kind is `in-step`, which counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

COVERAGE_FACTOR = 2.0
UNSEEN, IN_STEP = "unseen:", "in-step:"


@dataclass(frozen=True, slots=True, repr=False)
class Quantity:
    """Hold a value (SI) and its standard uncertainties by source.

    `known` is False where a part has an accuracy that nobody states: then no interval may be printed.
    """

    value: float
    terms: Mapping[str, float] = field(default_factory=dict)
    known: bool = True

    @property
    def counted(self) -> dict[str, float]:
        """Return the terms of the interval: all but bounds."""
        return {source: u for source, u in self.terms.items() if not source.startswith(UNSEEN)}

    @property
    def u(self) -> float:
        """Return the combined standard uncertainty, in the unit of the value."""
        return math.sqrt(sum(u * u for source, u in self.terms.items() if not source.startswith(UNSEEN)))

    @property
    def expanded(self) -> float | None:
        """Return the expanded uncertainty (k = 2), None where the accuracy is unknown."""
        return COVERAGE_FACTOR * self.u if self.known else None

    @property
    def bound(self) -> float | None:
        """Return how far the value can be off if the load is in step with a sensor, None where accuracy is unknown.

        It is the expanded uncertainty where no sensor measures only a part of the time.
        """
        return COVERAGE_FACTOR * math.hypot(*self.terms.values()) if self.known else None

    def __repr__(self) -> str:
        """Return value and expanded uncertainty; `terms` has the rest."""
        width = f"{self.expanded:.2g}" if self.expanded is not None else "?"
        return f"{self.value:.6g} ± {width}"

    def __add__(self, other: Quantity) -> Quantity:
        terms = dict(self.terms)
        for source, u in other.terms.items():
            terms[source] = terms.get(source, 0.0) + u
        return Quantity(self.value + other.value, terms, self.known and other.known)

    def __neg__(self) -> Quantity:
        return self.scaled(-1.0)

    def __sub__(self, other: Quantity) -> Quantity:
        return self + (-other)

    def scaled(self, factor: float) -> Quantity:
        """Multiply by an exact number."""
        return Quantity(self.value * factor, {s: u * factor for s, u in self.terms.items()}, self.known)

    def ratio(self, other: Quantity) -> Quantity:
        """Divide by another quantity to first order; what both share cancels."""
        value = self.value / other.value
        terms = {s: u / other.value for s, u in self.terms.items()}
        for source, u in other.terms.items():
            terms[source] = terms.get(source, 0.0) - value * u / other.value
        return Quantity(value, terms, self.known and other.known)

    def tagged(self, tag: str, *, keep: Iterable[str] = ()) -> Quantity:
        """Make the sources unique by a tag, except those that start with one of `keep`: two runs share only those."""
        kept = tuple(keep)
        terms = {s if s.startswith(kept) else f"{s}@{tag}": u for s, u in self.terms.items()}
        return Quantity(self.value, terms, self.known)

    def without(self, *kinds: str) -> Quantity:
        """Leave out the terms of some kinds: what the figure would be worth if those were excluded."""
        return Quantity(self.value, {s: u for s, u in self.terms.items() if _kind(s) not in kinds}, self.known)

    def with_bound(self) -> Quantity:
        """Count the bound in the interval: the run itself gives evidence for a load in step with the sensor."""
        terms: dict[str, float] = {}
        for source, u in self.terms.items():
            name = IN_STEP + source.removeprefix(UNSEEN) if source.startswith(UNSEEN) else source
            terms[name] = terms.get(name, 0.0) + u
        return Quantity(self.value, terms, self.known)

    def budget(self) -> dict[str, float]:
        """Return the standard uncertainty by kind of source (the word before the first colon), largest first."""
        kinds: dict[str, float] = {}
        for source, u in self.terms.items():
            kinds[_kind(source)] = math.hypot(kinds.get(_kind(source), 0.0), u)
        return dict(sorted(kinds.items(), key=lambda item: -item[1]))

    def to_json(self) -> dict[str, Any]:
        """Return value, expanded uncertainty, bound and budget as plain data."""
        widths = {"expanded": self.expanded, "bound": self.bound}
        return {"value": self.value, **widths, "known": self.known, "budget": self.budget()}


def _kind(source: str) -> str:
    return source.split(":", 1)[0].split("@", 1)[0]


def edges(name: str, a_ns: int, b_ns: int, u: Callable[[int], float]) -> dict[str, float]:
    """Return the terms of both ends of an interval: where one phase ends and the next begins they cancel."""
    return {} if a_ns == b_ns else {f"edge:{name}:{a_ns}": -u(a_ns), f"edge:{name}:{b_ns}": u(b_ns)}


def total(parts: Iterable[Quantity]) -> Quantity:
    """Add quantities, equal sources linearly."""
    value, known = 0.0, True
    terms: dict[str, float] = {}
    for part in parts:  # in one dict: a thousand steps share their edges
        value, known = value + part.value, known and part.known
        for source, u in part.terms.items():
            terms[source] = terms.get(source, 0.0) + u
    return Quantity(value, terms, known)
