"""Find the power of equipment that feeds nodes: a power shelf, or a PDU that answers by Redfish (PowerEquipment)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.errors import Unavailable
from joulelab.instruments.redfish import kinds, sources, values
from joulelab.instruments.redfish.node import list_candidates, refuse_choice, refuse_several
from joulelab.instruments.redfish.sources import Reading
from joulelab.instruments.redfish.walk import find_link

if TYPE_CHECKING:
    from joulelab.instruments.redfish.node import Service
    from joulelab.instruments.redfish.sources import Candidate, Supply
    from joulelab.instruments.redfish.walk import Resource, Walker

APART = 0.1  # of a total and the sum of its supplies or mains: above, one of them measures something else
# Resources of PowerEquipment that are alike: one unit with Metrics and Mains.
UNITS = ("RackPDUs", "PowerShelves")
# A root with one of these is a switch or a disk array, whatever its chassis is called.
_OTHER_ROOTS = ("Fabrics", "StorageSystems")


@dataclass(frozen=True, slots=True)
class Shelf:
    """Hold a power shelf: its chassis, its supplies, and its own total if that agrees with their sum."""

    chassis: Resource
    supplies: list[Supply]
    total: Candidate | None


def has_systems(walker: Walker) -> bool:
    """Return whether a service has, or may have, computer systems."""
    listed = walker.follow_link(walker.root, "Systems")
    is_linked = find_link(walker.root.body, "Systems") is not None
    return is_linked and (listed is None or bool(values.list_rows(listed.body, "Members")))


def find_shelf(service: Service) -> Shelf | None:
    """Return the one chassis that has metered supplies, in a service without computer systems; else None.

    Raises ConfigError if the shelf's own total contradicts the sum of the supplies, Unavailable if a supply is lost.
    """
    walker = service.walker
    if has_systems(walker) or any(find_link(walker.root.body, key) for key in _OTHER_ROOTS):
        return None
    found = []
    for chassis in service.nodes if service.is_named else service.nodes + service.others:
        supplies = sources.list_supplies(walker, chassis)
        if not any(psu.ac or psu.dc for psu in supplies):
            supplies = sources.list_supply_sensors(walker, chassis)
        named = " ".join(f"{psu.name} {psu.ac.source}" for psu in supplies if psu.ac)
        if named and kinds.is_shelf(chassis, named):
            found.append((chassis, supplies))
    if len(found) != 1:
        return None
    chassis, supplies = found[0]
    inputs = [psu.ac for psu in supplies if psu.ac is not None]
    if len(inputs) < len(supplies):
        return Shelf(chassis, supplies, None)
    watts = sum(walker.read_field(reading.power) for reading in inputs)
    totals = [one for one in list_candidates(service, chassis) if kinds.names_total(one.names[0])]
    totals = [one for one in totals if one.doubt in ("", "its PhysicalContext is not stated")]
    agreed = [one for one in totals if abs(one.watts - watts) <= APART * watts]
    if totals and not agreed:
        what = f"the supplies of the shelf {chassis.id} sum to {watts:g} W, which its own total contradicts"
        raise refuse_choice(service, what, totals)
    return Shelf(chassis, supplies, agreed[0] if len(agreed) == 1 else None)


def find_unit(walker: Walker, name: str | None, label: str) -> tuple[Resource, Reading] | None:
    """Return the one PDU or shelf of PowerEquipment, or the one of this Id or Name, with its total; else None.

    Beside computer systems it has to be named. Raises ConfigError if there are several, Unavailable without a total.
    """
    equipment = walker.follow_link(walker.root, "PowerEquipment")
    listed = [walker.list_members(walker.follow_link(equipment, key), complete=True) for key in UNITS]
    units = [unit for members in listed for unit in members if kinds.is_present(unit.body)]
    if name is None:
        units = [] if has_systems(walker) else units
    else:
        units = [unit for unit in units if name in (unit.id, unit.name)]
    if not units:
        return None
    readings = [_read_unit(walker, unit, label) for unit in units]
    if len(units) == 1:
        return units[0], readings[0]
    rows = [(walker.read_field(reading.power), unit.id) for reading, unit in zip(readings, units, strict=True)]
    raise refuse_several(label, "several PDUs answer: choose a chassis", rows, "and add an entry for each other one")


def _read_unit(walker: Walker, unit: Resource, label: str) -> Reading:
    """Return the total of a PDU: by its metrics, or by its only main; both together have to agree."""
    reading, doubt = sources.read_environment(walker, walker.follow_link(unit, "Metrics"))
    mains = walker.list_members(walker.follow_link(unit, "Mains"), complete=True)
    inputs = [main.locate_power("PowerWatts", "Reading", zero=True) for main in mains if kinds.is_present(main.body)]
    is_metered = bool(inputs) and all(map(walker.has_reading, inputs))
    if reading is None and is_metered and len(inputs) == 1:
        return Reading("Mains", inputs[0])
    if reading is not None and is_metered and not doubt:
        shown, total = sum(map(walker.read_field, inputs)), walker.read_field(reading.power)
        if abs(shown - total) > APART * total:
            doubt = f"its mains sum to {shown:g} W, its metrics show {total:g} W"
    if reading is None or doubt:
        raise Unavailable(
            f"the PDU {unit.id} shows no total power",
            where=label,
            why=doubt or "neither its Metrics nor one main has PowerWatts",
            next="read it by SNMP: joulelab meters --add snmp",
            code="unavailable.no-total",
        )
    return reading
