"""Turn an energy into kWh, money and CO2e of a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.quantity import ONE, Quantity

if TYPE_CHECKING:
    from joulelab.site.site_settings import Site


@dataclass(frozen=True, slots=True)
class Footprint:
    """Hold the energy of some work in kWh as measured, and its cost and CO2e (kg) with the PUE of the site.

    `cost` is None if the site has no price, `co2e_kg` if it has no carbon intensity. `is_recorded` tells that the site
    is the one that was set when the run was made; otherwise it is the one that is set now.
    """

    kwh: Quantity
    cost: Quantity | None
    co2e_kg: Quantity | None
    site: Site
    is_recorded: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return values, expanded uncertainties and the site as plain data."""
        return {
            "kwh": _describe_quantity(self.kwh),
            "cost": _describe_quantity(self.cost),
            "currency": self.site.currency or None,
            "co2e_kg": _describe_quantity(self.co2e_kg),
            "site": self.site.to_json(),
            "site_is_recorded": self.is_recorded,
        }


def compute_footprint(energy: Quantity, site: Site, *, is_recorded: bool = True) -> Footprint:
    """Return kWh, cost and CO2e of an energy (J) at a site.

    The intervals of cost and CO2e are those of the energy, and that of the carbon intensity if its source states one.
    """
    kwh = energy.kwh
    total = kwh * site.pue
    cost = None if site.price is None else total * site.price
    if site.g_per_kwh is None:
        return Footprint(kwh, cost, None, site, is_recorded)
    kg_per_kwh = ONE * (site.g_per_kwh / 1e3)
    if site.u_rel is not None:
        kg_per_kwh = Quantity(kg_per_kwh.value, {f"intensity:{site.zone}": kg_per_kwh.value * site.u_rel})
    return Footprint(kwh, cost, total * kg_per_kwh, site, is_recorded)


def _describe_quantity(quantity: Quantity | None) -> dict[str, float | None] | None:
    return None if quantity is None else {"value": quantity.value, "expanded": quantity.expanded}
