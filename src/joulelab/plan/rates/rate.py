"""Hold the price or the carbon intensity of a kWh over time, with a label, so that kinds are never mixed.

A rate is a step function of UTC: a constant, a series of steps, or a tariff by the clock. Whoever needs a rate asks for
its means between times, and gets an error where the rate is not known: a gap is never filled.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.text import escape_unprintable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats

# Carbon of all generation, carbon of one kWh more, or money. They are never added or compared.
Kind = Literal["average", "marginal", "price"]
CARBON = "g/kWh"
LARGEST_RATE = 1e9  # per kWh: no currency and no power plant comes near it
SLACK_S = 1e-3  # sums of times are exact to this
MOST_NAMED = 3  # gaps that a message names
MASSES_G = {"g": 1.0, "kg": 1e3, "t": 1e6, "lb": 453.59237, "lbs": 453.59237}
ENERGIES_KWH = {"kwh": 1.0, "mwh": 1e3, "gwh": 1e6, "wh": 1e-3, "mj": 1 / 3.6, "gj": 1e3 / 3.6}
CENTS = {"ct": "EUR", "cent": "EUR", "eurct": "EUR", "eurocent": "EUR", "p": "GBP", "pence": "GBP", "usct": "USD"}
SIGNS = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY"}


@dataclass(frozen=True, slots=True)
class Label:
    """Describe a rate for tables, JSON and statements; `unit` is g/kWh for carbon, CURRENCY/kWh for money.

    `covers` is direct or lifecycle emissions, or empty. `u_rel` is the standard uncertainty as a share, None if the
    source states none. `issued_utc_s` is the time at which a forecast was made, None for actual values.
    """

    kind: Kind
    unit: str
    name: str
    zone: str = ""
    covers: Literal["direct", "lifecycle", ""] = ""
    source: str = ""
    licence: str = ""
    resolution_s: float | None = None
    time_zone: str = "UTC"
    u_rel: float | None = None
    issued_utc_s: float | None = None
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        # All of it is printed, and much of it comes from files and services of others.
        for name in ("unit", "name", "zone", "source", "licence", "time_zone"):
            object.__setattr__(self, name, escape_unprintable(getattr(self, name)))
        object.__setattr__(self, "notes", tuple(escape_unprintable(note) for note in self.notes))

    @property
    def money(self) -> str:
        """Return the currency, or `g` for carbon."""
        return self.unit.partition("/")[0]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"notes": list(self.notes)}


class Rate(Protocol):
    """Give a rate over time."""

    @property
    def label(self) -> Label:
        """Return the description of the rate."""
        ...

    def changes(self, since_s: float, until_s: float) -> Floats:
        """Return the times (s since 1970) strictly between two at which it may change, ascending."""
        ...

    def means(self, edges_s: Floats) -> Floats:
        """Return its mean between each two of ascending times. Raises ConfigError where it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Give one value (in the label's unit) for all times. Raises ConfigError for an impossible one."""

    value: float
    label: Label

    def __post_init__(self) -> None:
        check_size([self.value], self.label)

    def changes(self, since_s: float, until_s: float) -> Floats:  # noqa: ARG002 it never changes
        """Return no time."""
        return np.empty(0)

    def means(self, edges_s: Floats) -> Floats:
        """Return the value between each two of ascending times. Raises ConfigError if they do not ascend."""
        return np.full(max(check_edges(edges_s).size - 1, 0), self.value)


@dataclass(frozen=True, eq=False)
class Steps:
    """Hold values (in the label's unit) that begin at `start_s` (s since 1970, ascending) and last until the next.

    The last one ends at `end_s`. NaN is a gap. Raises ConfigError if the arrays do not fit together.
    """

    label: Label
    start_s: Floats
    values: Floats
    end_s: float

    def __post_init__(self) -> None:
        for name in ("start_s", "values"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        name = self.label.name or "the series"
        if self.start_s.ndim != 1 or not self.start_s.size or self.values.shape != self.start_s.shape:
            raise ConfigError(f"{name} does not have one value for each time", next="correct the series")
        if not np.isfinite(self.start_s).all() or not (np.diff([*self.start_s, self.end_s]) > 0).all():
            raise ConfigError(f"the times of {name} do not ascend", next="sort it, and delete duplicate times")
        check_size(self.values, self.label)
        if self.label.kind != "price" and (self.values < 0).any():
            first = int(np.argmax(self.values < 0))
            what = f"{name} is negative at {format_time(self.start_s[first])}: {self.values[first]:g} {self.label.unit}"
            raise ConfigError(what, next="correct the series: a carbon intensity is 0 or more")

    @property
    def since_s(self) -> float:
        """Return the time at which the series begins, in s since 1970."""
        return float(self.start_s[0])

    def gaps(self) -> list[tuple[float, float]]:
        """Return begin and end (s since 1970) of each gap."""
        ends = np.append(self.start_s[1:], self.end_s)
        found: list[tuple[float, float]] = []
        for k in np.flatnonzero(np.isnan(self.values)):
            since = float(self.start_s[k])
            if found and found[-1][1] == since:
                since = found.pop()[0]
            found.append((since, float(ends[k])))
        return found

    def changes(self, since_s: float, until_s: float) -> Floats:
        """Return the times (s since 1970) strictly between two at which it may change, ascending."""
        times = np.append(self.start_s, self.end_s)
        return times[(times > since_s) & (times < until_s)]

    def means(self, edges_s: Floats) -> Floats:
        """Return its mean between each two of ascending times; its value at a moment.

        Raises ConfigError at a gap and beyond its ends: a series is never continued.
        """
        edges = check_edges(edges_s)
        if edges.size < 2:
            return np.empty(0)
        edges = self._clip_edges(edges)
        cuts = np.union1d(edges, self.changes(float(edges[0]), float(edges[-1])))
        at = np.minimum(np.searchsorted(self.start_s, cuts, side="right") - 1, self.start_s.size - 1)
        pieces, widths = self.values[at], np.append(np.diff(cuts), 0.0)
        first = np.searchsorted(cuts, edges)
        # The mean over one step is its value to the last digit; so is that at a moment.
        single = np.diff(first) <= 1
        used = widths > 0
        used[first[:-1][np.diff(first) == 0]] = True
        if (np.isnan(pieces) & used).any():
            raise self._make_gap_error(float(cuts[0]), float(cuts[-1]))
        sums = np.add.reduceat(np.where(used, pieces, 0.0) * widths, first)[:-1]
        return np.where(single, pieces[first[:-1]], sums / np.where(single, 1.0, np.diff(edges)))

    def _clip_edges(self, edges: Floats) -> Floats:
        if self.since_s - edges[0] > SLACK_S or edges[-1] - self.end_s > SLACK_S:
            raise ConfigError(
                f"{self.label.name or 'the series'} covers {format_span(self.since_s, self.end_s)} only",
                why=f"needed: {format_span(edges[0], edges[-1])}",
                next="give a series that covers all of it; none is continued beyond its ends",
            )
        inside: Floats = np.clip(edges, self.since_s, self.end_s)
        return inside

    def _make_gap_error(self, since_s: float, until_s: float) -> ConfigError:
        used = [(a, b) for a, b in self.gaps() if b > since_s and a <= until_s]
        named = ", ".join(format_span(a, b) for a, b in used[:MOST_NAMED])
        more = f" and {len(used) - MOST_NAMED} more" if len(used) > MOST_NAMED else ""
        return ConfigError(
            f"{self.label.name or 'the series'} has a gap where it is needed",
            why=f"{named}{more}",
            next="fill the gap in the series, or use another one; a gap is never guessed",
        )


def check_size(values: Sequence[float] | Floats, label: Label) -> None:
    """Refuse impossible values: they are a slip of the unit. Raises ConfigError."""
    sizes = np.abs(np.asarray(values, dtype=np.float64))
    if (sizes > LARGEST_RATE).any():
        what, where = f"{np.nanmax(sizes):,.4g} {label.unit} is not a rate", label.source or label.name
        raise ConfigError(
            what, where=where, why=f"it is above {LARGEST_RATE:,.0f}", next="correct the value, or its unit"
        )


def check_edges(edges_s: Floats) -> Floats:
    """Return times as an array. Raises ConfigError if they do not ascend."""
    edges = np.asarray(edges_s, dtype=np.float64)
    if edges.ndim != 1 or not np.isfinite(edges).all() or (np.diff(edges) < 0).any():
        raise ConfigError("the times for which a rate is needed do not ascend", next="give them in order")
    return edges


def format_time(time_s: float) -> str:
    """Return a time (s since 1970) for people: `2026-11-16 14:30 UTC`."""
    try:
        time = dt.datetime.fromtimestamp(float(time_s), dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_s:g} s since 1970"
    form = "%Y-%m-%d %H:%M:%S UTC" if time.second or time.microsecond else "%Y-%m-%d %H:%M UTC"
    return time.strftime(form)


def format_span(since_s: float, until_s: float) -> str:
    """Return two times for people: `2026-11-16 14:00 UTC to 2026-11-16 15:00 UTC`."""
    return f"{format_time(since_s)} to {format_time(until_s)}"


def read_unit(text: str) -> tuple[float, str]:
    """Return factor and unit (g/kWh or CURRENCY/kWh) of a unit such as `lb/MWh`, `EUR/MWh` or `ct/kWh`.

    Without `/ENERGY` it is per kWh. Raises ConfigError.
    """
    above, slash, below = text.strip().partition("/")
    per = ENERGIES_KWH.get(below.strip().lower()) if slash else 1.0
    name = re.sub(r"\s*_?co2(e|eq|-eq)?$", "", above.strip().replace("₂", "2"), flags=re.IGNORECASE)
    currency = SIGNS.get(name, name)
    if per is not None and name.lower() in MASSES_G:
        return MASSES_G[name.lower()] / per, CARBON
    if per is not None and name.lower() in CENTS:
        return 0.01 / per, f"{CENTS[name.lower()]}/kWh"
    if per is None or not re.fullmatch(r"[A-Z]{3}", currency):
        valid = "g/kWh, kg/MWh, lb/MWh, EUR/kWh, EUR/MWh, ct/kWh"
        raise ConfigError(f"{text!r} is not the unit of a rate", next=f"write it as one of {valid}")
    return 1 / per, f"{currency}/kWh"
