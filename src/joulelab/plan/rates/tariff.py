"""Read a tariff (TOML): one price, or prices by weekday, hour and month in a time zone, with daylight saving."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import MISSING, dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import Mistakes, declare_key, read_table, read_texts
from joulelab.plan.rates.rate import CARBON, Label, Steps, check_edges, check_size, format_span, format_time, read_unit
from joulelab.plan.rates.time_zones import convert_to_utc, find_time_zone, list_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from joulelab.analysis.readings import Floats

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MINUTES = 24 * 60
FIRST_WEEKDAY = 3  # 1970-01-01 was a Thursday
DAY_S = 86400
HOURS = re.compile(r"(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)")
PER_ADVICE = 'write price_per_kw = 12.5 and per = "month" or "year"'


def _read_members(value: Any, names: Sequence[str], noun: str) -> tuple[int, ...]:
    """Read `mon-fri`, `sat,sun` or a list of them; a range may pass the end: `nov-mar`."""
    found: set[int] = set()
    for part in ",".join(read_texts(value)).split(","):
        first, dash, last = (word.strip().lower()[:3] for word in part.partition("-"))
        if first not in names or (dash and last not in names):
            raise ConfigError(
                f"{part.strip()!r} is not one of the {noun}", next=f"write {names[0]}-{names[4]},{names[6]}"
            )
        a = names.index(first)
        b = names.index(last) if dash else a
        found |= {k % len(names) for k in range(a, (b if b >= a else b + len(names)) + 1)}
    return tuple(sorted(found))


def _read_hours(value: Any) -> tuple[tuple[int, int], ...]:
    """Read `08:00-20:00` or a list of such; hours past midnight are both ends of each day that is named."""
    spans: list[tuple[int, int]] = []
    for part in ",".join(read_texts(value)).split(","):
        match = HOURS.fullmatch(part.strip())
        numbers = [int(one) for one in match.groups()] if match else [99] * 4
        a, b = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
        if max(numbers[1], numbers[3]) > 59 or a >= MINUTES or b > MINUTES or a == b:
            raise ConfigError(f"{part.strip()!r} are not hours", next="write them as 08:00-20:00; a day ends at 24:00")
        spans += [(a, b)] if a < b else [span for span in ((a, MINUTES), (0, b)) if span[0] < span[1]]
    return tuple(spans)


def _read_date(value: Any) -> dt.datetime:
    """Read a date or a time of TOML; a date is its first moment."""
    if isinstance(value, dt.datetime):
        return value
    if isinstance(value, dt.date):
        return dt.datetime.combine(value, dt.time())
    raise ValueError


@dataclass(frozen=True, slots=True)
class TariffRule:
    """Hold a price per kWh for some months (0-11), weekdays (0 is Monday) and minutes of the day."""

    price: float = declare_key(MISSING, "price of a kWh, in the unit of the tariff")
    name: str = declare_key("rule", "name of the rule")
    months: tuple[int, ...] = declare_key(
        tuple(range(12)), "months", read=partial(_read_members, names=MONTHS, noun="months"), advice="write nov-mar"
    )
    days: tuple[int, ...] = declare_key(
        tuple(range(7)), "weekdays", read=partial(_read_members, names=DAYS, noun="days"), advice="write mon-fri"
    )
    hours: tuple[tuple[int, int], ...] = declare_key(
        ((0, MINUTES),), "hours", read=_read_hours, advice="write 08:00-20:00"
    )

    def mark_hours(self) -> NDArray[np.bool_]:
        """Return an array of month, weekday and minute that is true where the rule holds."""
        minutes = np.zeros(MINUTES, dtype=bool)
        for since, until in self.hours:
            minutes[since:until] = True
        held = np.zeros((12, 7, MINUTES), dtype=bool)
        held[np.ix_(self.months, self.days)] = minutes
        return held

    def format_hours(self) -> str:
        """Return days, hours and months: `mon-fri 08:00-20:00 in nov-dec,jan-feb`."""
        spans = sorted(self.hours)
        hours = ", ".join(f"{_format_minute(a)}-{_format_minute(b)}" for a, b in spans)
        days = "daily" if len(self.days) == 7 else _join_members(self.days, DAYS)
        return f"{days} {hours}" + ("" if len(self.months) == 12 else f" in {_join_members(self.months, MONTHS)}")


@dataclass(frozen=True, slots=True)
class DemandCharge:
    """Hold money per kW of the highest power."""

    price_per_kw: float = declare_key(MISSING, "money per kW of the highest power", above=0, advice=PER_ADVICE)
    per: Literal["month", "year"] = declare_key(MISSING, "month or year")


@dataclass(frozen=True, slots=True)
class Fee:
    """Hold money that does not depend on the energy."""

    price: float = declare_key(MISSING, "money, whatever is used", above=0)
    per: Literal["month", "year"] = declare_key(MISSING, "month or year")


@dataclass(frozen=True, slots=True)
class TariffFile:
    """Hold the keys of a tariff file."""

    unit: str = declare_key(MISSING, "unit of the prices: EUR/kWh, ct/kWh", advice='write it as unit = "EUR/kWh"')
    title: str = declare_key("", "name of the tariff")
    price: float | None = declare_key(None, "price where no rule holds")
    time_zone: str = declare_key("", "clock of the rules: Europe/Berlin")
    zone: str = declare_key("", "zone of the grid")
    source: str = declare_key("", "origin of the prices")
    since: dt.datetime | None = declare_key(
        None, "first day", read=_read_date, advice="write a date without quotes: since = 2026-01-01"
    )
    until: dt.datetime | None = declare_key(
        None, "first day after the last", read=_read_date, advice="write a date without quotes: until = 2027-01-01"
    )
    rules: tuple[TariffRule, ...] = declare_key((), "prices by days, hours and months")
    demand: DemandCharge | None = declare_key(None, "charge per kW")
    fee: Fee | None = declare_key(None, "fixed charge")


@dataclass(frozen=True)
class Tariff:
    """Give the price of a kWh by the clock of a time zone.

    `base` is the price where no rule holds, None if the rules must cover all hours. Demand charge and fee are not part
    of the price of a kWh. It is valid from `since_s` to `until_s` (s since 1970). Raises ConfigError for rules that
    overlap or leave hours out.
    """

    label: Label
    base: float | None = None
    rules: tuple[TariffRule, ...] = ()
    demand: DemandCharge | None = None
    fee: Fee | None = None
    since_s: float = -np.inf
    until_s: float = np.inf

    def __post_init__(self) -> None:
        charges = [self.demand.price_per_kw if self.demand else 0.0, self.fee.price if self.fee else 0.0]
        check_size([self.base or 0.0, *(rule.price for rule in self.rules), *charges], self.label)
        covered: NDArray[np.bool_] = np.zeros((12, 7, MINUTES), dtype=bool)
        for k, rule in enumerate(self.rules):
            held = rule.mark_hours()
            for other in self.rules[:k] if (held & covered).any() else ():
                both = other.mark_hours() & held
                if both.any():
                    what = f"{other.name!r} and {rule.name!r} overlap: {_name_first_minute(both)}"
                    raise ConfigError(what, next="let one rule hold at a time")
            covered |= held
        if self.base is None and not covered.all():
            what = f"no rule has a price for {_name_first_minute(~covered)}"
            raise ConfigError(what, next="add a rule, or `price` for all other hours")

    @property
    def is_flat(self) -> bool:
        """Return whether the price is the same at all times."""
        return not self.rules

    @cached_property
    def _prices(self) -> Floats:
        prices = np.full((12, 7, MINUTES), np.nan if self.base is None else self.base)
        for rule in self.rules:
            prices[rule.mark_hours()] = rule.price
        return prices

    def lay_out(self, since_s: float, until_s: float) -> Steps:
        """Return the prices between two times as a series in UTC. Raises ConfigError if it is not valid then."""
        if since_s < self.since_s or until_s > self.until_s:
            first = format_time(self.since_s) if np.isfinite(self.since_s) else "any time"
            last = format_time(self.until_s) if np.isfinite(self.until_s) else "any time"
            what, why = f"{self.label.name} is valid from {first} to {last}", f"needed: {format_span(since_s, until_s)}"
            raise ConfigError(what, why=why, next="give the tariff of that time")
        starts: list[Floats] = []
        values: list[Floats] = []
        offsets = list_offsets(since_s, until_s, find_time_zone(self.label.time_zone))
        for (start, ahead), (end, _) in pairwise([*offsets, (until_s, 0.0)]):
            if end > start:
                times, prices = self._lay_out_local(start + ahead, end + ahead)
                starts.append(times - ahead)
                values.append(prices)
        times, prices = np.concatenate(starts), np.concatenate(values)
        new = np.append(True, prices[1:] != prices[:-1])
        return Steps(self.label, times[new], prices[new], until_s)

    def _lay_out_local(self, since_s: float, until_s: float) -> tuple[Floats, Floats]:
        """Return the times at which prices begin, and the prices, between two times of the wall clock."""
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
        return self.lay_out(since_s, until_s).changes(since_s, until_s) if until_s > since_s else np.empty(0)

    def means(self, edges_s: Floats) -> Floats:
        """Return the mean price between each two of ascending times. Raises ConfigError if it is not valid then."""
        edges = check_edges(edges_s)
        if edges.size < 2:
            return np.empty(0)
        # A moment has a price too, so the series needs a length.
        return self.lay_out(float(edges[0]), max(float(edges[-1]), float(edges[0]) + 1.0)).means(edges)


def read_tariff(path: Path, text: str, values: dict[str, Any]) -> Tariff:
    """Return the tariff in a file. Raises ConfigError with all mistakes and their lines."""
    mistakes = Mistakes(path, text, TariffFile)
    found = read_table(TariffFile, values, mistakes)
    factor, unit, zone = 1.0, "EUR/kWh", find_time_zone("UTC")
    if found is not None:
        try:
            factor, unit = read_unit(found.unit)
        except ConfigError as error:
            mistakes.add_error(("unit",), error)
        if unit == CARBON:
            mistakes.add(("unit",), f"{found.unit} is not a price", next='a tariff is in money: unit = "EUR/kWh"')
        if found.price is None and not found.rules and not mistakes.has("price") and not mistakes.has("rules"):
            mistakes.add((), "the tariff has no price", next="add `price`, or [[rules]]")
        if not found.time_zone and (found.rules or found.since or found.until):
            mistakes.add((), "the tariff has no time zone", next='name its clock: time_zone = "Europe/Berlin"')
        try:
            zone = find_time_zone(found.time_zone or "UTC")
        except ConfigError as error:
            mistakes.add_error(("time_zone",), error)
        if found.since and found.until and convert_to_utc(found.until, zone) <= convert_to_utc(found.since, zone):
            mistakes.add(("until",), "the tariff ends before it begins", next="give an `until` after `since`")
    mistakes.check()
    assert found is not None
    rules = [replace(rule, price=rule.price * factor) for rule in found.rules]
    named = [replace(r, name=f"rule {k}") if r.name == "rule" else r for k, r in enumerate(rules, 1)]
    label = Label(
        "price", unit, found.title or path.stem, zone=found.zone, source=found.source or str(path), time_zone=zone.key
    )
    limits = [(found.since, -np.inf), (found.until, np.inf)]
    since_s, until_s = (convert_to_utc(time, zone) if time else always for time, always in limits)
    base = None if found.price is None else found.price * factor
    try:
        return Tariff(label, base, tuple(named), found.demand, found.fee, since_s, until_s)
    except ConfigError as error:
        raise ConfigError(error.what, where=str(path), why=error.why, next=error.next) from None


def _format_minute(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


def _name_first_minute(held: NDArray[np.bool_]) -> str:
    month, day, minute = (int(k) for k in np.argwhere(held)[0])
    return f"{DAYS[day]} {_format_minute(minute)} in {MONTHS[month]}"


def _join_members(members: Sequence[int], names: Sequence[str]) -> str:
    runs: list[list[int]] = []
    for k in members:
        if runs and runs[-1][-1] == k - 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return ",".join(names[run[0]] if len(run) == 1 else f"{names[run[0]]}-{names[run[-1]]}" for run in runs)
