"""Read [site] of a joulelab.toml: zone or carbon intensity, price of electricity, PUE."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, join_errors
from joulelab.core.toml_reading import Mistakes, declare_key, read_table
from joulelab.site.footprint import Site
from joulelab.site.intensity import (
    FIRST_YEAR,
    LAST_YEAR,
    MOST_G_PER_KWH,
    Coverage,
    IntensityRow,
    find_country_code,
    load_intensity_table,
    name_zone,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLE = "site"
SET_COMMAND = "joulelab site --zone DE --price 0.30EUR"
MOST_PUE = 10.0
MOST_PRICE = 1e6  # per kWh: far above every currency
# Keys that describe one thing: a file that sets one of them replaces all of them in files that are weaker.
INTENSITY_KEYS = ("zone", "intensity", "year", "covers", "source")
CURRENCY_SIGNS = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY"}
CENTS = {"ct": "EUR", "cent": "EUR", "p": "GBP"}
ENERGIES_KWH = {"": 1.0, "kwh": 1.0, "mwh": 1e3}
_PRICE = re.compile(r"(?P<value>\d+\.?\d*|\.\d+)\s*(?P<unit>[^\W\d_]+|[€$£¥])\s*(?:/\s*(?P<per>\w+))?")
PUE_ADVICE = "give a number from 1 to 10: 1.2 if cooling and supply add 20 %"
PRICE_ADVICE = "write it as 0.30EUR, 30ct or 95EUR/MWh"


@dataclass(frozen=True, slots=True)
class SiteTable:
    """Hold the price of electricity, the carbon intensity and the PUE of the place where work runs."""

    zone: str | None = declare_key(None, "country whose carbon intensity is used: DE, DEU or Germany")
    year: int | None = declare_key(
        None, "year of the intensity; without it the newest one", least=FIRST_YEAR, most=LAST_YEAR
    )
    covers: Coverage | None = declare_key(None, "emissions that are counted: lifecycle or direct")
    intensity: float | None = declare_key(
        None, "your own carbon intensity in g/kWh; it needs source and year", least=0.0, most=MOST_G_PER_KWH
    )
    source: str | None = declare_key(None, "source of your own intensity")
    price: str | None = declare_key(None, "price of a kWh with its currency: 0.30 EUR", advice=PRICE_ADVICE)
    pue: float | None = declare_key(
        None, "power of the building by that of its computers", least=1.0, most=MOST_PUE, advice=PUE_ADVICE
    )


def read_site(values: Mapping[str, Any], mistakes: Mistakes | None = None) -> Site | None:
    """Read the values of [site]; None if it has none or they are wrong.

    Mistakes are added to `mistakes`; without it they raise ConfigError.
    """
    found = mistakes if mistakes is not None else Mistakes("")
    table = read_table(SiteTable, values, found, (TABLE,))
    site = _make_site(table, found) if table and values and not found.has(TABLE) else None
    if mistakes is None and found.errors:
        for error in found.errors:
            error.where = None
        raise join_errors(found.errors)
    return site


def make_site(
    row: IntensityRow | None = None, *, price: float | None = None, currency: str = "", pue: float = 1.0
) -> Site:
    """Return a site with the carbon intensity of a table row."""
    if row is None:
        return Site(price=price, currency=currency, pue=pue)
    return Site(
        row.zone, name_zone(row.zone), row.g_per_kwh, row.year, row.covers, row.source, row.url, row.licence, row.note,
        row.u_rel, price, currency, pue,
    )  # fmt: skip


def parse_price(text: str) -> tuple[float, str]:
    """Read a price with its currency; return it per kWh. Raises ConfigError."""
    plain = text.strip()
    match = _PRICE.fullmatch(plain[1:] + plain[0] if plain[:1] in CURRENCY_SIGNS else plain)
    if match is None:
        why = "no currency is given" if re.fullmatch(r"\s*[\d.]+\s*", text) else None
        raise ConfigError(f"{text!r} is not a price", why=why, next=PRICE_ADVICE, code="config.no-price")
    unit, per = match["unit"], ENERGIES_KWH.get((match["per"] or "").lower())
    cents = CENTS.get(unit.lower())
    currency = cents or CURRENCY_SIGNS.get(unit, unit.upper())
    if per is None or re.fullmatch(r"[A-Z]{3}", currency) is None:
        wrong = f"unknown currency {unit!r}" if per is not None else f"unknown unit of energy {match['per']!r}"
        raise ConfigError(f"{text!r} is not a price", why=wrong, next=PRICE_ADVICE, code="config.no-price")
    value = float(match["value"]) * (0.01 if cents else 1.0) / per
    if not math.isfinite(value) or value > MOST_PRICE:
        raise ConfigError(f"{text!r} is too high for a price of a kWh", next=PRICE_ADVICE, code="config.no-price")
    return value, currency


def merge_site_values(weaker: Mapping[str, Any], stronger: Mapping[str, Any]) -> dict[str, Any]:
    """Merge [site] of two files; zone, intensity, year, coverage and source are replaced together."""
    replaced = INTENSITY_KEYS if any(key in stronger for key in INTENSITY_KEYS) else ()
    return {**{key: value for key, value in weaker.items() if key not in replaced}, **stronger}


def _make_site(table: SiteTable, mistakes: Mistakes) -> Site | None:
    key = "price"
    try:
        price, currency = parse_price(table.price) if table.price is not None else (None, "")
        key = "intensity" if table.intensity is not None else "zone"
        site = _find_intensity(table)
    except ConfigError as error:
        mistakes.add_error((TABLE, key), error)
        return None
    return replace(site, price=price, currency=currency, pue=table.pue or 1.0)


def _find_intensity(table: SiteTable) -> Site:
    """Return a site with the carbon intensity of a table, without one if there is none. Raises ConfigError."""
    if table.intensity is None and table.zone is None:
        lone = [key for key in ("year", "covers", "source") if getattr(table, key) is not None]
        if lone:
            what = f"{lone[0]} needs a zone or an intensity"
            raise ConfigError(what, next=f"type `{SET_COMMAND}`", code="config.no-zone")
        return Site()
    if table.intensity is None:
        assert table.zone is not None
        if table.source is not None:
            what = "the figure of a zone has its own source"
            raise ConfigError(what, next="remove source, or give intensity, too", code="config.two-sources")
        return make_site(load_intensity_table().find_row(table.zone, table.year, table.covers))
    missing = [key for key in ("source", "year") if getattr(table, key) is None]
    if missing:
        then = 'type `joulelab site --intensity 380 --source "our supplier" --year 2025`'
        what = f"your own carbon intensity has no {' and no '.join(missing)}"
        raise ConfigError(what, next=then, code="config.no-source")
    zone = find_country_code(table.zone) or table.zone if table.zone else ""
    return Site(zone, name_zone(zone), table.intensity, table.year, table.covers or "", table.source or "")
