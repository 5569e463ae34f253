"""Describe the sites of a plan: price and carbon of a kWh, overhead of the building; share the purchase of nodes."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 the types of keys are read
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE, Quantity
from joulelab.core.toml_reading import declare_key, is_number, read_table
from joulelab.plan.rates.find_rate import check_same_kind, find_rate
from joulelab.plan.rates.rate import CARBON, Constant, Label, Rate, format_time
from joulelab.plan.rates.time_zones import UTC_NAMES, convert_to_utc, find_time_zone, read_moment
from joulelab.site.site_settings import MOST_PUE, PUE_ADVICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.plan_tables import NodeKind, TomlTable
    from joulelab.site.footprint import Site

Purpose = Literal["cost", "carbon"]
PURPOSES: tuple[Purpose, ...] = ("cost", "carbon")
KEYS: dict[Purpose, str] = {"cost": "tariff", "carbon": "intensity"}
HERE = "here"  # the name of the site that options describe
HOURS_PER_YEAR = 8766.0  # 365.25 days
MOVING = "add the energy of moving data by hand: GB x kWh per GB x rate"
REMOVED = {
    "data_gb": MOVING,
    "kwh_per_gb": MOVING,
    "kwh_per_gb_u": MOVING,
    "budget_w": "check it with joulelab plan rack --supply",
}


def _read_rate_text(value: Any) -> str:
    """Read a rate: a text, or a number."""
    if is_number(value):
        return f"{value:g}"
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value


@dataclass(frozen=True, slots=True)
class PlanSite:
    """Hold a site; rates are as people write them. `pue_u` is the standard uncertainty of the PUE."""

    name: str = declare_key(MISSING, "name of the site", advice='add name = "north"')
    intensity: str = declare_key(
        "", "carbon intensity: 380, table:DE, FILE.csv", read=_read_rate_text, advice="write 380 or table:DE"
    )
    tariff: str = declare_key(
        "", "price: 0.32EUR, TARIFF.toml, FILE.csv", read=_read_rate_text, advice="write 0.32EUR or TARIFF.toml"
    )
    pue: float | None = declare_key(None, "overhead of the building", least=1.0, most=MOST_PUE, advice=PUE_ADVICE)
    pue_u: float | None = declare_key(None, "standard uncertainty of the PUE", above=0, most=MOST_PUE)
    currency: str = declare_key("", "currency of the tariff, to be checked")
    zone: str | None = declare_key(None, "time zone of files that name none: Europe/Berlin")
    folder: Path = field(default_factory=Path)
    defaults: Mapping[Purpose, Rate] = field(default_factory=dict)

    @property
    def overhead(self) -> Quantity:
        """Return the PUE with its uncertainty; 1 if there is none."""
        if self.pue is None:
            return ONE
        return Quantity(self.pue, {f"pue:{self.name}": self.pue_u} if self.pue_u else {})

    def find_rate(self, purpose: Purpose) -> Rate | None:
        """Return the price or the carbon intensity of a kWh, None if it is not set. Raises ConfigError."""
        text = self.tariff if purpose == "cost" else self.intensity
        if not text:
            return self.defaults.get(purpose)
        want: Literal["price", "carbon"] = "price" if purpose == "cost" else "carbon"
        found = find_rate(text, want=want, zone=self.zone, folder=self.folder)
        if self.currency and purpose == "cost" and found.label.money != self.currency:
            what = f"{self.name}: the tariff is in {found.label.unit}, the site's currency is {self.currency}"
            raise ConfigError(what, next="give both alike; currencies are not converted")
        return found


def read_sites(tables: Sequence[TomlTable]) -> list[PlanSite]:
    """Read [[sites]] tables; mistakes are added to those of the tables."""
    found: list[PlanSite] = []
    for table in tables:
        for key in ("folder", "defaults"):
            if key in table.values:
                table.problems.refuse_key(table.at, key, ("name", "tariff", "intensity", "pue"))
        for key in REMOVED.keys() & table.values.keys():
            table.problems.add((*table.at, key), f"{key} is no longer used", next=f"delete it; {REMOVED[key]}")
        values = {key: value for key, value in table.values.items() if key not in ("folder", "defaults")}
        site = read_table(PlanSite, values, table.problems, table.at, also=tuple(REMOVED))
        if site is None:
            continue
        if any(other.name == site.name for other in found):
            table.problems.add((*table.at, "name"), f"two sites are called {site.name!r}", next="rename one of them")
        if site.pue_u is not None and site.pue is None:
            table.problems.add((*table.at, "pue_u"), "pue_u needs pue", next="add pue = 1.3")
        found.append(site)
    return found


def make_configured_site(site: Site) -> PlanSite:
    """Return the [site] of joulelab.toml as a site of a plan."""
    defaults: dict[Purpose, Rate] = {}
    if site.price is not None:
        unit = f"{site.currency}/kWh"
        defaults["cost"] = Constant(site.price, Label("price", unit, f"{site.price:g} {unit}", source="[site]"))
    if site.g_per_kwh is not None:
        name = " ".join(str(part) for part in (site.name or site.zone, site.year) if part)
        covers: Any = site.covers if site.covers in ("direct", "lifecycle") else ""
        label = Label(
            "average", CARBON, name or f"{site.g_per_kwh:g} {CARBON}", zone=site.zone, covers=covers,
            source=site.source or "[site]", licence=site.licence, u_rel=site.u_rel,
            notes=(site.note,) if site.note else (),
        )  # fmt: skip
        defaults["carbon"] = Constant(site.g_per_kwh, label)
    return PlanSite(HERE, pue=site.pue if site.pue > 1 else None, defaults=defaults)


def find_site_rates(sites: Sequence[PlanSite]) -> dict[Purpose, list[Rate]]:
    """Return the rates of all sites by purpose; a purpose that no site has a rate for is left out.

    Raises ConfigError if only some sites have one, or they are of several kinds or units.
    """
    found: dict[Purpose, list[Rate]] = {}
    for purpose in PURPOSES:
        rates = {site.name: site.find_rate(purpose) for site in sites}
        lacking = [name for name, rate in rates.items() if rate is None]
        if lacking and len(lacking) < len(sites):
            key, example = KEYS[purpose], '"0.32EUR"' if purpose == "cost" else '"table:DE"'
            what = f"{lacking[0]} has no {key}, but other sites have one"
            raise ConfigError(what, next=f"add {key} = {example} to its [[sites]], or delete it from the others")
        if not lacking:
            found[purpose] = [rate for rate in rates.values() if rate is not None]
            check_same_kind(rate.label for rate in found[purpose])
    return found


def read_pue(text: str) -> Quantity:
    """Read a PUE: `1.3`, or `1.3±0.05` (k = 2). Raises ConfigError."""
    value, sign, width = text.replace("+-", "±").replace("+/-", "±").partition("±")
    try:
        pue, u = float(value), float(width) / 2 if sign else 0.0
    except ValueError:
        pue, u = 0.0, 0.0
    if not 1 <= pue <= MOST_PUE or not 0 <= u < pue:
        what, why = f"{text!r} is not a PUE", f"it is from 1 to {MOST_PUE:g}"
        raise ConfigError(what, why=why, next="write it as 1.3 or 1.3±0.05")
    return Quantity(pue, {"pue:given": u} if u else {})


def read_start(text: str, rates: Sequence[Rate]) -> tuple[float, str]:
    """Return a start (s since 1970) and its words; a time without an offset is in the time zone of the rates.

    Raises ConfigError, also if the rates are in several zones and for times that clocks skip or show twice.
    """
    time = read_moment(text)
    zones = list(dict.fromkeys(rate.label.time_zone for rate in rates)) or ["UTC"]
    if time.tzinfo is None and len(zones) > 1:
        why = f"the rates are in {', '.join(zones)}"
        raise ConfigError(f"{text!r} has no offset", why=why, next=f"write it as {time.isoformat()}+01:00")
    at_s = convert_to_utc(time, find_time_zone(zones[0]))
    is_local = time.tzinfo is None and zones[0] not in UTC_NAMES
    return at_s, format_time(at_s) + (f" ({time:%H:%M} in {zones[0]})" if is_local else "")


@dataclass(frozen=True, slots=True)
class PurchaseShare:
    """Hold the share of the purchase (money) or the making (g of CO2e) of nodes that falls on a job."""

    amount: Quantity
    per_node_hour: float
    node_hours: Quantity


def share_purchase(kind: NodeKind | None, purpose: Purpose, node_hours: Quantity | None) -> PurchaseShare | None:
    """Return the share of a purchase for some hours of nodes, None if price or lifetime is unknown.

    Without `use` a node is taken to work all of its life: the smallest share.
    """
    if kind is None or kind.lifetime_years is None or node_hours is None:
        return None
    whole = kind.price if purpose == "cost" else None if kind.embodied_kg is None else kind.embodied_kg * 1e3
    if whole is None:
        return None
    per_hour = whole / (kind.lifetime_years * HOURS_PER_YEAR * (1.0 if kind.use is None else kind.use))
    return PurchaseShare(node_hours * per_hour, per_hour, node_hours)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Hold the rate (per kWh) at which two kinds of nodes are equal; above it `saver` is better.

    `rate` is None if `ahead` is better at every rate. It is for one site, because its overhead counts. `is_resolved`
    is False if the difference in energy or purchase is within its uncertainty.
    """

    purpose: Purpose
    site: str
    a: str
    b: str
    rate: Quantity | None
    saver: str
    ahead: str = ""
    is_resolved: bool = True


def find_break_even(
    purpose: Purpose, site: str, a: tuple[str, Quantity, Quantity], b: tuple[str, Quantity, Quantity]
) -> BreakEven:
    """Return the rate at which two kinds of nodes are equal; each is its name, kWh with overhead, and purchase."""
    saver, other = (a, b) if a[1].value <= b[1].value else (b, a)
    less, dearer = other[1] - saver[1], saver[2] - other[2]
    if dearer.value <= 0 or less.value <= 0:  # one costs less to buy and to run
        ahead, is_resolved = saver if dearer.value <= 0 else other, less.is_resolved and dearer.is_resolved
        return BreakEven(purpose, site, a[0], b[0], None, saver[0], ahead[0], is_resolved)
    rate = dearer / less
    return BreakEven(purpose, site, a[0], b[0], rate, saver[0], is_resolved=less.is_resolved and rate.is_resolved)
