"""Carry a value with its uncertainty terms, each with a source and a sign.

Terms of one source add linearly, terms of different sources in quadrature. So the gain error of one meter cancels in
a ratio, GPUs of one model add their gain errors, and the edge between two phases cancels in their sum.

A bound is not part of the interval: it is the largest error if the load repeats exactly like a sensor that measures
only part of the time, and nothing in the run points to such a load. With evidence it is a term of the kind `in-step`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 results.json is decoded by the types of fields
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

COVERAGE_FACTOR = 2.0
UNSEEN, IN_STEP = "unseen:", "in-step:"
J_PER_KWH = 3.6e6
MOST_DIGITS = 6  # of a value that is known more finely
PLAIN_DECIMALS = range(-12, 13)  # outside, value and uncertainty share a power of ten: `(2.78 ± 0.06)e-14`


@dataclass(frozen=True, slots=True, repr=False)
class Quantity:
    """Hold a value (SI), its standard uncertainties by source, and bounds: possible errors beyond the interval.

    `known` is False if the accuracy of a part is not stated: then no interval may be printed. Arithmetic with numbers
    and other quantities is to first order, by source. `<`, `<=`, `>`, `>=` compare values; `==` compares the terms too.
    """

    value: float
    terms: Mapping[str, float] = field(default_factory=dict)
    known: bool = True
    bounds: Mapping[str, float] = field(default_factory=dict)

    __array_ufunc__ = None  # numpy leaves arithmetic to the methods below

    @classmethod
    def from_terms(cls, value: float, terms: Mapping[str, float], known: bool = True) -> Quantity:
        """Make a quantity from terms of older files, in which bounds are terms of the kind `unseen`."""
        bounds = {s.removeprefix(UNSEEN): u for s, u in terms.items() if s.startswith(UNSEEN)}
        return cls(value, {s: u for s, u in terms.items() if not s.startswith(UNSEEN)}, known, bounds)

    @property
    def u(self) -> float:
        """Return the combined standard uncertainty, in the unit of the value."""
        return math.sqrt(sum(u * u for u in self.terms.values()))

    @property
    def expanded(self) -> float | None:
        """Return the expanded uncertainty (k = 2), None where the accuracy is unknown."""
        return COVERAGE_FACTOR * self.u if self.known else None

    @property
    def relative(self) -> float | None:
        """Return the expanded uncertainty as a share of the value, None where it is unknown or the value is zero."""
        return COVERAGE_FACTOR * self.u / abs(self.value) if self.known and self.value else None

    @property
    def bound(self) -> float | None:
        """Return the largest error if the load repeats at the rate of a sensor, None if the accuracy is unknown.

        It is the expanded uncertainty if all sensors measure all the time.
        """
        return COVERAGE_FACTOR * math.hypot(*self.terms.values(), *self.bounds.values()) if self.known else None

    @property
    def is_positive(self) -> bool | None:
        """Return whether the value is above zero by more than its expanded uncertainty, None if this is unknown."""
        return None if self.expanded is None else self.value > self.expanded

    @property
    def is_resolved(self) -> bool:
        """Return whether the value is at least as large as its expanded uncertainty, or this is unknown."""
        return self.expanded is None or abs(self.value) >= self.expanded

    @property
    def kwh(self) -> Quantity:
        """Return an energy (J) in kWh."""
        return self / J_PER_KWH

    def __repr__(self) -> str:
        """Return value and expanded uncertainty by the rule of `round_interval`; `terms` has the rest."""
        value, expanded = self.value, self.expanded
        if not math.isfinite(value) or (expanded is not None and not math.isfinite(expanded)):
            return f"{value:g}" if expanded is None else f"{value:g} ± {expanded:g}"
        if not expanded:
            text = round_number(value, MOST_DIGITS if self.known else 4)
            return text if self.known else f"{text} (accuracy unknown)"
        decimals = count_decimals(value, expanded)
        scale = 1.0 if decimals in PLAIN_DECIMALS else 10.0 ** find_exponent(max(abs(value), expanded), 1)
        number, width = round_interval(value / scale, expanded / scale)
        text = f"{number} ± {width}" if self.is_resolved else f"not resolved (± {width})"
        return text if scale == 1.0 else f"({text})e{find_exponent(scale, 1):+03d}"

    def __format__(self, spec: str) -> str:
        """Format the value as a number; without a format, return value and uncertainty."""
        return format(float(self.value), spec) if spec else str(self)

    def __float__(self) -> float:
        return float(self.value)

    def __round__(self, ndigits: int | None = None) -> float:
        """Return the rounded value as a plain number."""
        return round(float(self.value), ndigits)

    def __abs__(self) -> Quantity:
        return -self if self.value < 0 else self

    def __hash__(self) -> int:
        return hash((self.value, frozenset(self.terms.items()), self.known, frozenset(self.bounds.items())))

    def __lt__(self, other: Quantity | float) -> bool:
        return self.value < float(other) if _is_comparable(other) else NotImplemented

    def __le__(self, other: Quantity | float) -> bool:
        return self.value <= float(other) if _is_comparable(other) else NotImplemented

    def __gt__(self, other: Quantity | float) -> bool:
        return self.value > float(other) if _is_comparable(other) else NotImplemented

    def __ge__(self, other: Quantity | float) -> bool:
        return self.value >= float(other) if _is_comparable(other) else NotImplemented

    def __neg__(self) -> Quantity:
        return self * -1.0

    def __add__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            terms, bounds = _add_terms(self.terms, other.terms), _add_terms(self.bounds, other.bounds)
            return Quantity(self.value + other.value, terms, self.known and other.known, bounds)
        if _is_number(other):
            return Quantity(self.value + float(other), self.terms, self.known, self.bounds)
        return NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Quantity | float) -> Quantity:
        return self + -other

    def __rsub__(self, other: float) -> Quantity:
        return -self + other

    def __mul__(self, other: Quantity | float) -> Quantity:
        if isinstance(other, Quantity):
            terms, bounds = (
                _add_terms(_scale_terms(own, other.value), _scale_terms(of, self.value))
                for own, of in ((self.terms, other.terms), (self.bounds, other.bounds))
            )
            return Quantity(self.value * other.value, terms, self.known and other.known, bounds)
        if _is_number(other):
            by = float(other)
            terms, bounds = _scale_terms(self.terms, by), _scale_terms(self.bounds, by)
            return Quantity(self.value * by, terms, self.known, bounds)
        return NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: Quantity | float) -> Quantity:
        if not isinstance(other, Quantity):
            return self / Quantity(float(other)) if _is_number(other) else NotImplemented
        value = self.value / other.value
        terms, bounds = (
            _add_terms(
                {s: u / other.value for s, u in own.items()}, {s: -value * u / other.value for s, u in of.items()}
            )
            for own, of in ((self.terms, other.terms), (self.bounds, other.bounds))
        )
        return Quantity(value, terms, self.known and other.known, bounds)

    def __rtruediv__(self, other: float) -> Quantity:
        return Quantity(float(other)) / self

    def tagged(self, tag: str, *, keep: Iterable[str] = ()) -> Quantity:
        """Make the sources unique by a tag, except sources that start with one of `keep`, which two runs share."""
        kept = tuple(keep)
        terms = {s if s.startswith(kept) else f"{s}@{tag}": u for s, u in self.terms.items()}
        return Quantity(self.value, terms, self.known, {f"{s}@{tag}": u for s, u in self.bounds.items()})

    def without(self, *kinds: str) -> Quantity:
        """Leave out the terms of some kinds, and bounds where `unseen` is one of them."""
        terms = {s: u for s, u in self.terms.items() if _get_kind(s) not in kinds}
        return Quantity(self.value, terms, self.known, {} if "unseen" in kinds else self.bounds)

    def with_bound(self) -> Quantity:
        """Make the bound part of the interval, if there is evidence that the load repeats at the sensor's rate."""
        terms = _add_terms(self.terms, {IN_STEP + source: u for source, u in self.bounds.items()})
        return Quantity(self.value, terms, self.known)

    def budget(self) -> dict[str, float]:
        """Return the standard uncertainty by kind of source (the word before the first colon), largest first.

        The kind `unseen` is the bound.
        """
        kinds: dict[str, float] = {}
        for source, u in self.terms.items():
            kinds[_get_kind(source)] = math.hypot(kinds.get(_get_kind(source), 0.0), u)
        for u in self.bounds.values():
            kinds["unseen"] = math.hypot(kinds.get("unseen", 0.0), u)
        return dict(sorted(kinds.items(), key=lambda item: -item[1]))

    def to_json(self) -> dict[str, Any]:
        """Return value, expanded uncertainty, bound and budget as plain data."""
        widths = {"expanded": self.expanded, "bound": self.bound}
        return {"value": self.value, **widths, "known": self.known, "budget": self.budget()}


ONE = Quantity(1.0)


# Rounding: the one rule for all that people read. JSON and CSV have numbers in full.


def round_interval(value: float, expanded: float) -> tuple[str, str]:
    """Return value and uncertainty with the digits that are known: `4.8` and `0.4`, `12.30` and `0.14`.

    The uncertainty has one digit, or two if the first is 1; the value ends at the same place, after six digits at most.
    """
    decimals = count_decimals(value, expanded)
    width = round(expanded, decimals)
    if width < expanded * 0.5:
        width = 10.0**-decimals  # finer than the digits of the value: rounded up, never to nothing
    return format_decimals(value, decimals), format_decimals(width, decimals)


def round_number(value: float, digits: int) -> str:
    """Return a number with this many significant digits, in full and with a comma between thousands."""
    return format_decimals(value, min(digits - 1 - find_exponent(value, digits), 15)) if value else "0"


def count_decimals(value: float, expanded: float, digits: int = 1) -> int:
    """Return the decimals of a value by the digits of its uncertainty; negative before the point."""
    place = find_exponent(expanded, digits + 1)
    wanted = digits - 1 - place + (digits == 1 and f"{expanded:.1e}"[0] == "1")
    most = MOST_DIGITS - 1 - find_exponent(value, MOST_DIGITS) if value else wanted
    return min(wanted, max(most, -find_exponent(max(abs(value), expanded), 1)))


def format_decimals(value: float, decimals: int) -> str:
    """Return a number that is rounded to a place, with a comma between thousands; zero has no sign."""
    text = f"{round(value, decimals):,.{max(decimals, 0)}f}"
    return text if any(digit in text for digit in "123456789") else text.lstrip("-")


def find_exponent(value: float, digits: int) -> int:
    """Return the power of ten of the first digit, after rounding to a number of digits."""
    return int(f"{value:.{digits - 1}e}".partition("e")[2])


def _is_number(value: object) -> bool:
    return isinstance(value, Real)  # a number of numpy, too


def _is_comparable(value: object) -> bool:
    return isinstance(value, Quantity) or _is_number(value)


def _get_kind(source: str) -> str:
    return source.split(":", 1)[0].split("@", 1)[0]


def _scale_terms(terms: Mapping[str, float], factor: float) -> dict[str, float]:
    return {source: u * factor for source, u in terms.items()}


def _add_terms(terms: Mapping[str, float], more: Mapping[str, float]) -> Mapping[str, float]:
    if not more or not terms:
        return terms or more
    found = dict(terms)
    for source, u in more.items():
        found[source] = found.get(source, 0.0) + u
    return found


def make_edge_terms(name: str, a_ns: int, b_ns: int, u: Callable[[int], float]) -> dict[str, float]:
    """Return the terms of both ends of a time span; the terms of a common end of two phases cancel in their sum."""
    return {} if a_ns == b_ns else {f"edge:{name}:{a_ns}": -u(a_ns), f"edge:{name}:{b_ns}": u(b_ns)}


def add_quantities(parts: Iterable[Quantity]) -> Quantity:
    """Add quantities, equal sources linearly."""
    value, known = 0.0, True
    terms: dict[str, float] = {}
    bounds: dict[str, float] = {}
    for part in parts:  # in one dict: a thousand steps share their edges
        value, known = value + part.value, known and part.known
        for sums, some in ((terms, part.terms), (bounds, part.bounds)):
            for source, u in some.items():
                sums[source] = sums.get(source, 0.0) + u
    return Quantity(value, terms, known, bounds)
