"""Read a tariff as people write it down: TOML with one price, or with `[[rules]]` by days, hours and months."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, cast

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.plan.plan_tables import Mistakes, TomlTable, is_number
from joulelab.plan.rates.rate import Label
from joulelab.plan.rates.tariff import DAYS, MINUTES, MONTHS, Charge, Per, Rule, Tariff
from joulelab.plan.rates.units import unit_of
from joulelab.plan.rates.zones import utc_of, zone_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from zoneinfo import ZoneInfo

    from joulelab.plan.rates.units import Unit

KEYS = ("title", "unit", "price", "time_zone", "zone", "source", "since", "until", "rules", "demand", "fee")
RULE_KEYS = ("name", "price", "days", "hours", "months")
_SPAN = re.compile(r"(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)")


def read_tariff(path: Path, text: str, values: dict[str, object]) -> Tariff:
    """Return the tariff that a file holds. Raises ConfigError with all that is wrong and the lines."""
    problems = Mistakes(str(path), text)
    table = TomlTable(values, (), problems)
    table.allow(KEYS)
    unit = _unit(table)
    zone = _zone(table)
    base = _price(table, unit)
    rules = [_rule(one, n, unit) for n, one in enumerate(table.tables("rules"))]
    if base is None and not rules and "price" not in table:
        table.wrong("", "the tariff has no price", next="give `price`, or [[rules]]")
    demand = _charge(table, "demand", "price_per_kw")
    fee = _charge(table, "fee", "price")
    since_s, until_s = _date(table, "since", zone), _date(table, "until", zone)
    if since_s is not None and until_s is not None and until_s <= since_s:
        table.wrong("until", "the tariff ends before it begins to hold", next="give an `until` after `since`")
    problems.check()
    currency = unit.unit.partition("/")[0]
    label = Label(
        "price", unit.unit, table.text("title") or path.stem, zone=table.text("zone") or "",
        source=table.text("source") or str(path), time_zone=zone.key, notes=tuple(_apart(demand, fee, currency)),
    )  # fmt: skip
    found = [rule for rule in rules if rule]
    try:
        return Tariff(
            label, base, tuple(found), demand, fee,
            -np.inf if since_s is None else since_s, np.inf if until_s is None else until_s,
        )  # fmt: skip
    except ConfigError as error:
        raise ConfigError(error.what, where=str(path), why=error.why, next=error.next) from None


def _unit(table: TomlTable) -> Unit:
    said = table.text("unit")
    if said is None and "unit" not in table:
        table.wrong("", "the tariff has no unit", next='say it: unit = "EUR/kWh"')
    try:
        unit = unit_of(said or "EUR/kWh")
    except ConfigError as error:
        table.problems.add_error(("unit",), error)
        return unit_of("EUR/kWh")
    if not unit.money:
        table.wrong("unit", f"{said} is no price", next='a tariff is in money: unit = "EUR/kWh"')
    return unit


def _zone(table: TomlTable) -> ZoneInfo:
    name = table.text("time_zone")
    by_clock = "rules" in table or "since" in table or "until" in table
    if name is None and "time_zone" not in table and by_clock:
        table.wrong("", "the tariff has no time zone", next='say whose clock counts: time_zone = "Europe/Berlin"')
    try:
        return zone_of(name or "UTC")
    except ConfigError as error:
        table.problems.add_error(("time_zone",), error)
        return zone_of("UTC")


def _price(table: TomlTable, unit: Unit) -> float | None:
    value = table.values.get("price")
    if is_number(value):
        return float(value) * unit.factor  # may be negative: spot prices are, at times
    if "price" in table:
        table.wrong("price", f"price is {value!r}", next="give a number, in the tariff's unit")
    return None


def _rule(table: TomlTable, n: int, unit: Unit) -> Rule | None:
    table.allow(RULE_KEYS)
    price = _price(table, unit)
    if price is None and "price" not in table:
        table.wrong("", f"rule {n + 1} has no price", next="give `price`")
    days, months = _members(table, "days", DAYS), _members(table, "months", MONTHS)
    spans = _spans(table)
    return None if price is None else Rule(table.text("name") or f"rule {n + 1}", price, months, days, spans)


def _members(table: TomlTable, key: str, names: Sequence[str]) -> tuple[int, ...]:
    """Read `mon-fri`, `sat,sun` or a list of them; a range may go over the end: `nov-mar`."""
    said = table.texts(key)
    if said is None:
        return tuple(range(len(names)))
    found: set[int] = set()
    for part in ",".join(said).split(","):
        first, dash, last = (word.strip().lower()[:3] for word in part.partition("-"))
        if first not in names or (dash and last not in names):
            table.wrong(key, f"{part.strip()!r} is none of {key}", next=f"write it as {names[0]}-{names[4]},{names[6]}")
            continue
        a = names.index(first)
        b = names.index(last) if dash else a
        found |= {k % len(names) for k in range(a, (b if b >= a else b + len(names)) + 1)}
    return tuple(sorted(found))


def _spans(table: TomlTable) -> tuple[tuple[int, int], ...]:
    """Read `08:00-20:00` or a list of such; one over midnight is both ends of each day that is named."""
    said = table.texts("hours")
    if said is None:
        return ((0, MINUTES),)
    spans: list[tuple[int, int]] = []
    for part in ",".join(said).split(","):
        match = _SPAN.fullmatch(part.strip())
        numbers = [int(one) for one in match.groups()] if match else [99] * 4
        a, b = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
        if max(numbers[1], numbers[3]) > 59 or a >= MINUTES or b > MINUTES or a == b:
            table.wrong(
                "hours", f"{part.strip()!r} are no hours", next="write them as 08:00-20:00; a day ends at 24:00"
            )
        elif a < b:
            spans.append((a, b))
        else:
            spans += [span for span in ((a, MINUTES), (0, b)) if span[0] < span[1]]
    return tuple(spans)


def _charge(table: TomlTable, key: str, name: str) -> Charge | None:
    if key not in table:
        return None
    one = table.table(key)
    one.allow((name, "per"))
    amount = one.positive(name)
    per = one.one_of("per", ("month", "year"))
    for needed in (name, "per"):
        if needed not in one:
            one.wrong("", f"[{key}] has no {needed}", next=f'give {name} = 12.5 and per = "month" or "year"')
    return Charge(amount, cast("Per", per)) if amount is not None and per is not None else None


def _date(table: TomlTable, key: str, zone: ZoneInfo) -> float | None:
    value = table.values.get(key)
    if value is None:
        return None
    if isinstance(value, dt.datetime):
        return utc_of(value, zone)
    if isinstance(value, dt.date):
        return dt.datetime(value.year, value.month, value.day, tzinfo=zone).timestamp()
    table.wrong(key, f"{key} is {value!r}", next=f"write it as a date, without quotes: {key} = 2026-01-01")
    return None


def _apart(demand: Charge | None, fee: Charge | None, currency: str) -> list[str]:
    notes = []
    if demand is not None:
        notes.append(f"{demand.amount:g} {currency} per kW of the highest power per {demand.per} is apart")
    if fee is not None:
        notes.append(f"a fee of {fee.amount:g} {currency} per {fee.per} is apart")
    return notes
