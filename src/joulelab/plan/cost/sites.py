"""Describe the sites that work could run at: what a kWh costs and emits there, and what the building adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE, Quantity
from joulelab.plan.plan_tables import is_number
from joulelab.plan.rates.find import check_same, rate_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.plan_tables import TomlTable
    from joulelab.plan.rates.rate import Rate

KEYS = (
    "name", "intensity", "tariff", "pue", "pue_u", "currency", "zone", "data_gb", "kwh_per_gb", "kwh_per_gb_u",
    "budget_w",
)  # fmt: skip
NUMBERS = ("pue", "pue_u", "data_gb", "kwh_per_gb", "kwh_per_gb_u", "budget_w")
MOST_PUE = 100.0
Purpose = Literal["cost", "carbon"]


@dataclass(frozen=True, slots=True)
class Site:
    """Hold a site. Rates are as people write them; `pue_u` and `kwh_per_gb_u` are standard uncertainties, None unknown.

    `data_gb` have to be moved there at `kwh_per_gb`; `budget_w` is what it can supply for the work, overhead included.
    """

    name: str
    intensity: str = ""
    tariff: str = ""
    pue: float | None = None
    pue_u: float | None = None
    currency: str = ""
    zone: str | None = None
    data_gb: float = 0.0
    kwh_per_gb: float | None = None
    kwh_per_gb_u: float | None = None
    budget_w: float | None = None
    folder: Path = field(default_factory=Path)

    @property
    def overhead(self) -> Quantity:
        """Return the PUE with its uncertainty; one where nobody gave it."""
        if self.pue is None:
            return ONE
        return Quantity(self.pue, {f"pue:{self.name}": self.pue_u} if self.pue_u else {})

    @property
    def moved_kwh(self) -> Quantity | None:
        """Return the energy of moving the data in kWh, None where nothing is moved or nobody said what it takes."""
        if not self.data_gb or self.kwh_per_gb is None:
            return None
        terms = {"moving:kwh_per_gb": self.data_gb * self.kwh_per_gb_u} if self.kwh_per_gb_u else {}
        return Quantity(self.data_gb * self.kwh_per_gb, terms)

    def rate(self, purpose: Purpose) -> Rate:
        """Return what a kWh costs or emits there. Raises ConfigError where nobody said it."""
        spec = self.tariff if purpose == "cost" else self.intensity
        if not spec:
            key = "tariff" if purpose == "cost" else "intensity"
            example = "0.32EUR" if purpose == "cost" else "table:DE"
            raise ConfigError(
                f"{self.name} has no {key}", next=f"give --{key} {example}, or `{key}` in [[sites]] of the plan"
            )
        want: Literal["price", "carbon"] = "price" if purpose == "cost" else "carbon"
        found = rate_of(spec, want=want, zone=self.zone, folder=self.folder)
        if self.currency and purpose == "cost" and not found.label.unit.startswith(f"{self.currency}/"):
            what = f"{self.name}: the tariff is in {found.label.unit}, the site's currency is {self.currency}"
            raise ConfigError(what, next="give both alike; currencies are not converted")
        return found


def read_sites(tables: Sequence[TomlTable]) -> list[Site]:
    """Read [[sites]] tables; what is wrong is noted with the tables' problems."""
    found: list[Site] = []
    for table in tables:
        table.allow(KEYS)
        name = table.text("name")
        if "name" not in table:
            table.wrong("", "a site has no name", next='add name = "..."')
        if name is not None and any(site.name == name for site in found):
            table.wrong("name", f"there are two sites {name!r}", next="give each a name of its own")
        numbers = {key: table.positive(key) for key in NUMBERS}
        _check(table, numbers["pue"], numbers["pue_u"])
        moving = numbers["kwh_per_gb"] is not None
        if ("kwh_per_gb_u" in table or moving) and "data_gb" not in table:
            table.wrong("", "kwh_per_gb says nothing without data_gb", next="add data_gb, or leave kwh_per_gb out")
        found.append(
            Site(
                name or "", _spec(table, "intensity"), _spec(table, "tariff"), numbers["pue"], numbers["pue_u"],
                table.text("currency") or "", table.text("zone"), numbers["data_gb"] or 0.0, numbers["kwh_per_gb"],
                numbers["kwh_per_gb_u"], numbers["budget_w"],
            )
        )  # fmt: skip
    return found


def _check(table: TomlTable, pue: float | None, pue_u: float | None) -> None:
    if pue is not None and pue < 1:
        table.wrong(
            "pue", f"pue is {pue:g}", why="a site takes at least what its computers take", next="give 1 or more"
        )
    if pue is not None and pue > MOST_PUE:
        table.wrong("pue", f"pue is {pue:g}", next=f"give at most {MOST_PUE:g}")
    if pue_u is not None and pue is None:
        table.wrong("pue_u", "pue_u says nothing without pue", next="add pue")


def _spec(table: TomlTable, key: str) -> str:
    """Return a rate as people write it: a text, or a plain figure."""
    value = table.values.get(key)
    return f"{value:g}" if is_number(value) else table.text(key) or ""


def rates_of(sites: Sequence[Site], purpose: Purpose) -> list[Rate]:
    """Return the rate of each site. Raises ConfigError where they may not stand in one table."""
    if not sites:
        raise ConfigError("there is no site to account at", next="give [[sites]] in the plan")
    rates = [site.rate(purpose) for site in sites]
    check_same(rate.label for rate in rates)
    return rates


def notes_of(site: Site, movers: int = 1) -> list[str]:
    """Return what has to be said of a site's figures; so many jobs share the moving of its data."""
    said: list[str] = []
    if site.pue is None:
        said.append("no PUE was given: cooling and losses of the building are not included")
    elif site.pue_u is None:
        said.append(f"PUE {site.pue:g} is taken as exact")
    if site.data_gb and site.kwh_per_gb is None:
        said.append(f"the energy of moving {site.data_gb:g} GB is not included: no kwh_per_gb was given")
    elif site.data_gb:
        unsure = "" if site.kwh_per_gb_u else ", taken as exact"
        once = f", once for all {movers}: equal shares" if movers > 1 else ""
        said.append(f"moving {site.data_gb:g} GB at {site.kwh_per_gb:g} kWh/GB{unsure}, at the site's own rate{once}")
    return said


def fits(site: Site, highest_w: float) -> bool | None:
    """Return whether work that draws so much at its highest (W) is within the site's budget, None without one."""
    return None if site.budget_w is None else highest_w * site.overhead.value <= site.budget_w
