"""Word the cost and the CO2e of a run, always with the source and the year of the carbon intensity."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from joulelab.core.scope import find_family
from joulelab.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.site.footprint import Footprint, Site

NO_SITE_COMMAND = "joulelab site --zone DE --price 0.30EUR --pue 1.2"
NOT_SET = "not set: joulelab site --zone DE --price 0.30EUR"
G_PER_KG = 1e3
LEAST_KG = 0.1  # from here on CO2e is in kg
LEAST_MONEY = 1e-4  # smaller amounts are not written out
MOST_OF_PUBLISHER = 40  # letters
YEAR_AT_END = re.compile(r"\s*\(\d{4}\)$")
PART_NAMES = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory", "accel": "accelerators", "module": "modules"}


def list_footprint_facts(result: Result, *, has_hint: bool = False) -> list[tuple[str, str]]:
    """Return the line about cost and CO2e; none without energy. With `has_hint`, say how to set a site if none is set.

    A simulated run has no hint: its energy costs nothing.
    """
    footprint = result.footprint
    if footprint is None or not footprint.kwh.is_resolved:
        return []
    if footprint.site is None or footprint.site.is_empty:
        return [("site", NOT_SET)] if has_hint and not result.twin else []
    whole = result.group("measured")
    text = word_footprint(footprint, is_estimate=whole is not None and whole.estimate)
    return [("cost" if footprint.cost is not None else "CO2e", text)]


def word_footprint(footprint: Footprint, *, is_estimate: bool = False) -> str:
    """Return `0.29 EUR and 0.37 kg CO2e (Germany 2023, 381 g/kWh by Ember, PUE 1.2)`."""
    site = footprint.site
    if site is None:
        return NOT_SET
    amounts = [format_cost(footprint.cost, site.currency)] if footprint.cost is not None else []
    amounts += [f"{format_co2e(footprint.co2e_kg)} CO2e"] if footprint.co2e_kg is not None else []
    text = " and ".join(f"~{one}" if is_estimate else one for one in amounts)
    text += f" ({basis})" if (basis := word_site(site)) else ""
    text += "; no price is set" if footprint.cost is None else ""
    return text + ("; no carbon intensity is set" if footprint.co2e_kg is None else "")


def word_site(site: Site, *, has_price: bool = False) -> str:
    """Return `Germany 2023, 381 g/kWh by Ember, PUE 1.2`: place, year and source of the carbon intensity, and the PUE.

    The source is its publisher: its whole title is in JSON, on the page and in `joulelab site`.
    """
    words = [f"{fmt.format_plain(site.price)} {site.currency}/kWh"] if has_price and site.price is not None else []
    if site.g_per_kwh is not None:
        words.append(f"{site.name} {site.year or ''}".strip())
        words.append(f"{fmt.format_number(site.g_per_kwh, 3)} g/kWh by {name_publisher(site.source)}")
        words += ["direct"] if site.covers == "direct" else []
    words += [f"PUE {fmt.format_plain(site.pue)}"] if site.pue != 1 else []
    return ", ".join(words)


def name_publisher(source: str) -> str:
    """Return the publisher of a source, which is named first: `RTE` of `RTE (2024), Bilan electrique 2023`."""
    first = source.partition(",")[0].strip()
    return fmt.shorten_end(YEAR_AT_END.sub("", first) or "an unnamed source", MOST_OF_PUBLISHER)


def word_source(site: Site) -> str:
    """Return source, year and coverage of the carbon intensity, empty without one."""
    if site.g_per_kwh is None:
        return ""
    covers = f", {site.covers} emissions" if site.covers else ""
    place = f"{site.name} " if site.name else ""
    return f"{place}{site.year}, {fmt.format_plain(site.g_per_kwh)} g/kWh{covers}; source: {site.source}"


def list_source_facts(result: Result) -> list[tuple[str, str]]:
    """Return cost and CO2e with their intervals, the energy they are from, and the source of the carbon intensity.

    There are none without a site.
    """
    footprint = result.footprint
    if footprint is None or footprint.site is None or footprint.site.is_empty or not footprint.kwh.is_resolved:
        return []
    site, kwh, parts = footprint.site, footprint.kwh, word_parts(result)
    energy = fmt.format_number(kwh.value) if kwh.expanded is None else fmt.format_interval(kwh.value, kwh.expanded)
    overhead = f", times PUE {fmt.format_plain(site.pue)}" if site.pue != 1 else ""
    basis = f"{energy} kWh{f' of {parts}' if parts else ''}{overhead}"
    facts = []
    if footprint.cost is not None and site.price is not None:
        cost = format_cost(footprint.cost, site.currency, has_interval=True)
        facts.append(("cost", f"{cost}: {basis}, {fmt.format_plain(site.price)} {site.currency}/kWh"))
    if footprint.co2e_kg is not None:
        facts.append(("CO2e", f"{format_co2e(footprint.co2e_kg, has_interval=True)}: {basis}, {word_source(site)}"))
    return facts


def word_parts(result: Result) -> str:
    """Return the coverage of the energy if no meter covers the whole node: `GPUs only`, `GPUs and CPUs only`."""
    whole = result.group("measured")
    families = list(dict.fromkeys(find_family(scope) for scope in whole.scopes)) if whole is not None else []
    if not families or any(family not in PART_NAMES for family in families):
        return ""
    names = [PART_NAMES[family] for family in families]
    joined = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return f"{joined} only"


def format_cost(cost: Quantity, currency: str, *, has_interval: bool = False) -> str:
    """Return an amount of money, rounded to its uncertainty."""
    if abs(cost.value) < LEAST_MONEY:
        return f"below {fmt.format_plain(LEAST_MONEY)} {currency}" if cost.value else f"0 {currency}"
    if has_interval and cost.expanded is not None:
        return fmt.format_scaled(cost, 1.0, currency)
    return f"{fmt.format_rounded(cost.value, cost.expanded)} {currency}"


def format_co2e(co2e_kg: Quantity, *, has_interval: bool = False) -> str:
    """Return a mass of CO2e in kg, or below 0.1 kg in g, rounded to its uncertainty."""
    factor, unit = scale_co2e([co2e_kg])
    if has_interval and co2e_kg.expanded is not None:
        return fmt.format_scaled(co2e_kg, factor, unit)
    expanded = None if co2e_kg.expanded is None else co2e_kg.expanded / factor
    return f"{fmt.format_rounded(co2e_kg.value / factor, expanded)} {unit}"


def scale_co2e(masses_kg: Iterable[Quantity | None]) -> tuple[float, str]:
    """Return divisor and unit for masses of CO2e: kg, or g if all are below 0.1 kg."""
    largest = max((q.value for q in masses_kg if q is not None), default=0.0)
    return (1.0, "kg") if largest >= LEAST_KG else (1 / G_PER_KG, "g")


def word_basis(site: Site) -> str:
    """Return price, PUE, carbon intensity and its source in one line, to be read below a table."""
    price = "" if site.price is None else f"{fmt.format_plain(site.price)} {site.currency}/kWh"
    pue = f"PUE {fmt.format_plain(site.pue)}" if site.pue != 1 else ""
    return f"Cost and CO2e: {', '.join(part for part in (price, pue, word_source(site)) if part)}."
