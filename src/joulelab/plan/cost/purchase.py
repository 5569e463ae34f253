"""Add what nodes cost to buy and emitted in the making, so that devices can be weighed against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulelab.core.quantity import Quantity
    from joulelab.plan.cost.sites import Purpose
    from joulelab.plan.plan_tables import NodeKind

HOURS_PER_YEAR = 8766.0  # 365.25 days


@dataclass(frozen=True, slots=True)
class Share:
    """Hold the share of nodes' purchase that falls on a job: money, or g of CO2e, and per hour of one node.

    `said` tells what was taken for it.
    """

    amount: Quantity
    per_node_hour: float
    node_hours: Quantity
    said: str


def share_of(kind: NodeKind | None, purpose: Purpose, node_hours: Quantity | None) -> Share | None:
    """Return the share of a purchase that so many hours of nodes carry, None where price and lifetime are not known."""
    if kind is None or kind.lifetime_years is None or node_hours is None:
        return None
    whole = kind.price if purpose == "cost" else None if kind.embodied_kg is None else kind.embodied_kg * 1e3
    if whole is None:
        return None
    use = 1.0 if kind.use is None else kind.use
    hours = kind.lifetime_years * HOURS_PER_YEAR * use
    used = "used all the time (no `use` was given: the least)" if kind.use is None else f"used {use * 100:g} % of it"
    said = f"{kind.name}: {kind.lifetime_years:g} years, {used}"
    return Share(node_hours * (whole / hours), whole / hours, node_hours, said)


@dataclass(frozen=True, slots=True)
class Option:
    """Hold a kind of node for some work: kWh, with the site's overhead, and the share of its purchase."""

    name: str
    kwh: Quantity
    bought: Quantity


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Hold the rate (per kWh) at which two kinds of nodes are equal: above it `saver`, which uses less energy, wins.

    None where one is ahead at every rate; `ahead` names it then. It is of one site: the building's overhead counts.
    """

    site: str
    a: str
    b: str
    rate: Quantity | None
    saver: str
    ahead: str = ""


def break_even(a: Option, b: Option, site: str = "") -> BreakEven:
    """Return at which price or intensity two kinds of nodes are equal, all included."""
    saver, other = (a, b) if a.kwh.value <= b.kwh.value else (b, a)
    less = other.kwh - saver.kwh
    dearer = saver.bought - other.bought
    if dearer.value <= 0 or less.value <= 0:
        # Less to buy and less to run: no rate above zero turns that round.
        ahead = saver if dearer.value <= 0 else other
        return BreakEven(site, a.name, b.name, None, saver.name, ahead.name)
    return BreakEven(site, a.name, b.name, dearer / less, saver.name)
