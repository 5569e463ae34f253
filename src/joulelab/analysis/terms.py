"""Carry a value with its uncertainty terms, each with a source and a sign.

Terms of one source add linearly, terms of different sources in quadrature. So the gain error of one meter cancels in
a ratio, GPUs of one model add their gain errors, and the edge between two phases cancels in their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

COVERAGE_FACTOR = 2.0


@dataclass(frozen=True, slots=True, repr=False)
class Quantity:
    """Hold a value (SI) and its standard uncertainties by source.

    `known` is False where a part has an accuracy that nobody states: then no interval may be printed.
    """

    value: float
    terms: Mapping[str, float] = field(default_factory=dict)
    known: bool = True

    @property
    def u(self) -> float:
        """Return the combined standard uncertainty, in the unit of the value."""
        return math.sqrt(sum(t * t for t in self.terms.values()))

    @property
    def expanded(self) -> float | None:
        """Return the expanded uncertainty (k = 2), None where the accuracy is unknown."""
        return COVERAGE_FACTOR * self.u if self.known else None

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

    def budget(self) -> dict[str, float]:
        """Return the standard uncertainty by kind of source (the word before the first colon), largest first."""
        kinds: dict[str, float] = {}
        for source, u in self.terms.items():
            kinds[_kind(source)] = math.hypot(kinds.get(_kind(source), 0.0), u)
        return dict(sorted(kinds.items(), key=lambda item: -item[1]))

    def to_json(self) -> dict[str, Any]:
        """Return value, expanded uncertainty and budget as plain data."""
        return {"value": self.value, "expanded": self.expanded, "known": self.known, "budget": self.budget()}


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
