"""Turn an energy into kWh, money and CO2e of a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from joulelab.core.quantity import COVERAGE_FACTOR, Quantity

G_PER_KG = 1e3


@dataclass(frozen=True, slots=True)
class Site:
    """Hold the place where work runs.

    `g_per_kwh` is the carbon intensity, None if it is not set; `source`, `year` and `covers` describe it, `u_rel` is
    its standard uncertainty as a share, None if unknown. `price` is per kWh, None if it is not set. `is_recorded`
    tells that a run recorded the site; otherwise it is the one that is set now.
    """

    zone: str = ""
    name: str = ""
    g_per_kwh: float | None = None
    year: int | None = None
    covers: str = ""
    source: str = ""
    url: str = ""
    licence: str = ""
    note: str = ""
    u_rel: float | None = None
    price: float | None = None
    currency: str = ""
    pue: float = 1.0
    is_recorded: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether neither a price nor a carbon intensity is set."""
        return self.price is None and self.g_per_kwh is None

    def to_json(self) -> dict[str, Any]:
        """Return plain data, from which `restore_site` makes the same site."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Hold the energy of some work in kWh as measured, and its cost and CO2e (kg), which include the PUE of the site.

    `cost` is None if the site has no price, `co2e_kg` if it has no carbon intensity.
    """

    kwh: Quantity
    cost: Quantity | None = None
    co2e_kg: Quantity | None = None
    site: Site | None = None

    def to_json(self) -> dict[str, Any]:
        """Return values with their expanded uncertainties, and the currency."""
        return {
            "kwh": _describe_quantity(self.kwh),
            "cost": _describe_quantity(self.cost),
            "currency": self.site.currency if self.site and self.cost is not None else None,
            "co2e_kg": _describe_quantity(self.co2e_kg),
        }


def compute_footprint(energy: Quantity, site: Site | None) -> Footprint:
    """Return kWh, cost and CO2e of an energy (J) at a site; without a site only kWh.

    The intervals of cost and CO2e are those of the energy, and that of the carbon intensity if its source states one.
    """
    kwh = energy.kwh
    if site is None:
        return Footprint(kwh)
    total = kwh * site.pue
    cost = None if site.price is None else total * site.price
    if site.g_per_kwh is None:
        return Footprint(kwh, cost, None, site)
    kg_per_kwh = site.g_per_kwh / G_PER_KG
    terms = {f"intensity:{site.zone}": kg_per_kwh * site.u_rel} if site.u_rel is not None else {}
    return Footprint(kwh, cost, total * Quantity(kg_per_kwh, terms), site)


def compute_from_interval(value_j: float, expanded_j: float | None, site: Site | None) -> Footprint:
    """Return kWh, cost and CO2e of an energy of which only the expanded uncertainty is kept, None if it is unknown."""
    terms = {"energy": expanded_j / COVERAGE_FACTOR} if expanded_j is not None else {}
    return compute_footprint(Quantity(value_j, terms, expanded_j is not None), site)


def choose_site(recorded: Site | None, current: Site | None) -> Site | None:
    """Return the site of a run: the one that it recorded, else the one that is set now."""
    return current if recorded is None else recorded


def restore_site(values: object) -> Site | None:
    """Return the site that a run recorded, None if it recorded none or its values cannot be used.

    Keys of newer versions are ignored.
    """
    if not isinstance(values, Mapping) or not values:
        return None
    kinds = {"str": str, "int": int, "float": (int, float), "bool": bool}
    given: dict[str, Any] = {}
    for one in fields(Site):
        value, (kind, *optional) = values.get(one.name), str(one.type).split(" | ")
        if isinstance(value, kinds[kind]) and (kind == "bool" or not isinstance(value, bool)):  # type: ignore[arg-type]
            given[one.name] = value
        elif one.name in values and not (value is None and optional):
            return None
    return Site(**given | {"is_recorded": True})


def _describe_quantity(quantity: Quantity | None) -> dict[str, float | None] | None:
    return None if quantity is None else {"value": quantity.value, "expanded": quantity.expanded}
