"""Hold what charts show, apart from how they are drawn: values, intervals, what is written beside them. Pure.

Values are in the unit of the axis; texts come from `report.format`, so that a chart says what its table says. Lines
and points over an axis are `Panel` and `Curve` of `report.study.curves`.
"""

from __future__ import annotations

from dataclasses import dataclass


def lower_end(value: float, expanded: float, *, signed: bool = False) -> float:
    """Return the lower end of an interval: energies, powers and times end at zero, what is `signed` does not."""
    return value - expanded if signed or value < 0 else max(value - expanded, 0.0)


@dataclass(frozen=True, slots=True)
class Bar:
    """Hold one value with its expanded uncertainty (None = not known) and the text that says both.

    `colour` is a number from 0 to 7; `mark` is best, tied, reference or nothing.
    """

    label: str
    value: float
    expanded: float | None
    text: str
    colour: int = 0
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Hold bars below each other, or `upright` ones side by side; as `dots` they need not begin at 0.

    `level` is a line across at a value that others are held against. `keys` are what colours stand for.
    """

    title: str
    about: str
    label: str
    rows: tuple[Bar, ...]
    upright: bool = False
    dots: bool = False
    level: float | None = None
    keys: tuple[str, ...] = ()

    @property
    def is_signed(self) -> bool:
        """Return whether values may lie below zero: they are changes, with a line at none."""
        return self.dots or self.level == 0


@dataclass(frozen=True, slots=True)
class Part:
    """Hold one piece of a bar: the number of its key, its length and the text that says it."""

    key: int
    value: float
    text: str


@dataclass(frozen=True, slots=True)
class Stacked:
    """Hold one bar of parts, with what is written at its end, and the expanded uncertainty of the whole."""

    label: str
    parts: tuple[Part, ...]
    text: str
    expanded: float | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """Hold bars that are made of parts, below each other; `keys` name the parts, `colours` are theirs."""

    title: str
    about: str
    label: str
    rows: tuple[Stacked, ...]
    keys: tuple[str, ...]
    colours: tuple[int, ...] = ()

    def colour(self, key: int) -> int:
        """Return the number of the colour of a key."""
        return self.colours[key] if self.colours else key


@dataclass(frozen=True, slots=True)
class Histogram:
    """Hold how often values lie between `edges` (one more than `shares`, which are in percent).

    `marks` are lines at values with what they are: the median, the maximum.
    """

    title: str
    about: str
    label: str
    edges: tuple[float, ...]
    shares: tuple[float, ...]
    marks: tuple[tuple[str, float], ...] = ()


Chart = Bars | Stack | Histogram
