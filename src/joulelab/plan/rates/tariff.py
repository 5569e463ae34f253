"""Hold what a supplier asks: one price, or prices by weekday, hour and month in a time zone, daylight saving right."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.rate import check_size
from joulelab.plan.rates.steps import Steps, check_edges, shown
from joulelab.plan.rates.zones import offsets, zone_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from joulelab.analysis.readings import Floats
    from joulelab.plan.rates.rate import Label

    Hours = NDArray[np.bool_]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MINUTES = 24 * 60
MOST_NAMED = 3  # stretches of hours that a message names
FIRST_WEEKDAY = 3  # 1970-01-01 was a Thursday
DAY_S = 86400

Per = Literal["month", "year"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Hold a price per kWh for some months (0-11), weekdays (0 is Monday) and spans of minutes of the day."""

    name: str
    price: float
    months: tuple[int, ...] = tuple(range(12))
    days: tuple[int, ...] = tuple(range(7))
    spans: tuple[tuple[int, int], ...] = ((0, MINUTES),)

    def hours(self) -> Hours:
        """Return for which months, weekdays and minutes it holds."""
        minutes = np.zeros(MINUTES, dtype=bool)
        for since, until in self.spans:
            minutes[since:until] = True
        held = np.zeros((12, 7, MINUTES), dtype=bool)
        held[np.ix_(self.months, self.days)] = minutes
        return held


@dataclass(frozen=True, slots=True)
class Charge:
    """Hold money that does not depend on the energy: per kW of the highest power, or at all; per month or year."""

    amount: float
    per: Per

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"amount": self.amount, "per": self.per}


@dataclass(frozen=True)
class Tariff:
    """Give the price of a kWh by the clock on the wall.

    `base` is the price where no rule holds, None where the rules must cover all hours. `demand` is asked per kW of the
    highest power and `fee` anyhow: both are apart from the price of a kWh. `since_s` and `until_s` (s since 1970) are
    when it begins and ends to hold. Raises ConfigError for rules that overlap or leave hours out; it names them.
    """

    label: Label
    base: float | None = None
    rules: tuple[Rule, ...] = ()
    demand: Charge | None = None
    fee: Charge | None = None
    since_s: float = -np.inf
    until_s: float = np.inf

    def __post_init__(self) -> None:
        asked = [self.base or 0.0, *(rule.price for rule in self.rules)]
        check_size([*asked, *(charge.amount for charge in (self.demand, self.fee) if charge)], self.label)
        covered: Hours = np.zeros((12, 7, MINUTES), dtype=bool)
        for k, rule in enumerate(self.rules):
            held = rule.hours()
            if (held & covered).any():
                other = next(o for o in self.rules[:k] if (o.hours() & held).any())
                both = described(other.hours() & held)
                what = f"{other.name!r} and {rule.name!r} overlap: {both}"
                raise ConfigError(what, next="let one price hold at a time")
            covered |= held
        if self.base is None and not covered.all():
            what = f"no price is given for {described(~covered)}"
            raise ConfigError(what, next="add a rule, or `price` for all other hours")

    @cached_property
    def _prices(self) -> Floats:
        """Return the price for each month, weekday and minute."""
        prices = np.full((12, 7, MINUTES), np.nan if self.base is None else self.base)
        for rule in self.rules:
            prices[rule.hours()] = rule.price
        return prices

    def steps(self, since_s: float, until_s: float) -> Steps:
        """Return the prices between two times as a series in UTC. Raises ConfigError where it does not hold then."""
        if since_s < self.since_s or until_s > self.until_s:
            held = f"{_bound(self.since_s, 'ever')} to {_bound(self.until_s, 'on')}"
            what = f"{self.label.name} holds from {held} only"
            why = f"asked for {shown(since_s)} to {shown(until_s)}"
            raise ConfigError(what, why=why, next="give the tariff of that time")
        starts: list[Floats] = []
        values: list[Floats] = []
        zone = zone_of(self.label.time_zone)
        begun = offsets(since_s, until_s, zone)
        for (start, ahead), end in zip(begun, [*(b for b, _ in begun[1:]), until_s], strict=True):
            if end > start:
                times, prices = self._laid_out(start + ahead, end + ahead)
                starts.append(times - ahead)
                values.append(prices)
        times, prices = np.concatenate(starts), np.concatenate(values)
        new = np.append(True, prices[1:] != prices[:-1])
        return Steps(self.label, times[new], prices[new], until_s)

    def _laid_out(self, since_s: float, until_s: float) -> tuple[Floats, Floats]:
        """Return when each price begins between two times, all of them by the clock on the wall, as if it were UTC."""
        breaks = np.append(0, np.flatnonzero((np.diff(self._prices, axis=2) != 0).any(axis=(0, 1))) + 1)
        days = np.arange(since_s // DAY_S, until_s // DAY_S + 1, dtype=np.int64)
        times = (days[:, None] * DAY_S + breaks[None, :] * 60).ravel().astype(float)
        times = np.append(since_s, times[(times > since_s) & (times < until_s)])
        day = (times // DAY_S).astype(np.int64)
        month = day.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12
        minute = ((times - day * DAY_S) // 60).astype(np.int64)
        return times, self._prices[month, (day + FIRST_WEEKDAY) % 7, minute]

    def changes(self, since_s: float, until_s: float) -> Floats:
        """Return the times (s since 1970) strictly between two at which the price changes. Raises ConfigError."""
        if until_s <= since_s:
            return np.empty(0)
        return self.steps(since_s, until_s).changes(since_s, until_s)

    def means(self, edges_s: Floats) -> Floats:
        """Return the mean price between each two of ascending times. Raises ConfigError where it does not hold."""
        edges = check_edges(edges_s)
        if edges.size < 2:
            return np.empty(0)
        # A moment has a price too, so the series has to have a length.
        return self.steps(float(edges[0]), max(float(edges[-1]), float(edges[0]) + 1.0)).means(edges)


def described(hours: Hours) -> str:
    """Return months, weekdays and minutes in words: `mon-fri 06:00-07:00 in nov-mar`."""
    groups: dict[tuple[int, int], Hours] = {}
    for month, day in np.argwhere(hours.any(axis=2)):
        for span in _runs(hours[month, day]):
            groups.setdefault(span, np.zeros((12, 7), dtype=bool))[month, day] = True
    texts = [f"{_where(held)[0]} {clock(a)}-{clock(b)}{_where(held)[1]}" for (a, b), held in sorted(groups.items())]
    more = f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else ""
    return "; ".join(texts[:MOST_NAMED]) + more


def _where(held: Hours) -> tuple[str, str]:
    """Return the weekdays, and the months where they are not all; of those that differ by month the first is named."""
    months = np.flatnonzero(held.any(axis=1))
    days = held[months[0]]
    alike = [int(m) for m in months if (held[m] == days).all()]
    names = "daily" if days.all() else _listed(np.flatnonzero(days), DAYS)
    return names, "" if len(alike) == 12 else f" in {_listed(alike, MONTHS)}"


def _listed(members: Sequence[Any] | NDArray[Any], names: Sequence[str]) -> str:
    held = np.isin(np.arange(len(names)), members)
    parts = [names[a] if b == a + 1 else f"{names[a]}-{names[b - 1]}" for a, b in _runs(held)]
    return ",".join(parts)


def _runs(held: Hours) -> Iterator[tuple[int, int]]:
    """Give where a row of trues begins and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], held, [False]))))
    for k in range(0, edges.size, 2):
        yield int(edges[k]), int(edges[k + 1])


def clock(minute: int) -> str:
    """Return a minute of the day as a clock shows it."""
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _bound(time_s: float, always: str) -> str:
    return shown(time_s) if np.isfinite(time_s) else always
