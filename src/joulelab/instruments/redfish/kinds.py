"""Classify Redfish resources: by type, context, name and links, never by a pattern in an Id."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from joulelab.instruments.redfish.values import find_scale, read_state, read_text
from joulelab.instruments.redfish.walk import Resource, list_links

if TYPE_CHECKING:
    from collections.abc import Iterable

# Chassis that are a part of a node: their power is never taken for the node's.
PART_TYPES = ("Module", "Component", "Zone", "Card", "Cartridge", "Expansion", "IPBasedDrive")
# Equipment beside nodes: read only if the configuration names it.
EQUIPMENT_TYPES = ("StorageEnclosure", "PowerStrip", "Rack", "RackGroup", "Row", "Pod", "HeatExchanger")
BLADE_TYPES = ("Blade", "Sled")
_SHELF = re.compile(r"power[ _-]?shelf", re.IGNORECASE)
_EQUIPMENT = re.compile(r"switch|router|power[ _-]?shelf|rectifier|\bpdu|\bcdu|jbod", re.IGNORECASE)
# Types of computer systems that are no node: cards with a processor of their own are systems too.
NO_NODES = ("DPU", "OS", "Virtual", "VirtuallyPartitioned")
# PhysicalContext of Sensors, as the schema lists it.
CPUS = ("CPU", "CPUSubsystem")
GPUS = ("GPU", "GPUSubsystem", "Accelerator")
MEMORIES = ("Memory", "MemorySubsystem", *GPUS)
SUPPLIES = ("PowerSupply", "PowerSupplyBay", "Rectifier")
_BOARDS = ("SystemBoard", "Board", "PowerSubsystem")  # these may be all of a node or not: the name decides
PARTS = {
    *("FPGA", "ASIC", "Backplane", "VoltageRegulator", "StorageDevice", "NetworkingDevice", "ComputeBay", "StorageBay"),
    *("NetworkBay", "ExpansionBay", "Fan", "CoolingSubsystem", "Motor", "Pump", "TrustedModule", "Transceiver"),
    *("Battery", "Switch", "Manager", "DCBus", *CPUS, *MEMORIES, *SUPPLIES),
}
# The words of a name of a whole node's power. With any other word (drive, line, limit, rated) it may be a part.
POWERS = {"power", "pwr", "consumption", "consumed", "usage", "draw", "reading", "sensor", "control", "monitor"}
POWERS |= {"for", "of", "the", "in", "watts", "meter", "ac", "energy"}
WHOLES = {"server", "system", "sys", "chassis", "total", "node", "enclosure", "input", "platform"}
# Beside the power of a node these are no power of a part: of what contains the node, and figures that are no readings.
NO_PARTS = {"rack", "enclosure", "chassis", "cabinet", "shelf", "limit", "cap", "capacity", "rated", "max", "peak"}
NODE_WORDS = {"server", "system", "node"}
# The sum of the hot-swap controllers is all of a node; one of several is a part.
_HSC = "hsc"
_PART_NAME = re.compile(
    r"cpu|processor|memory|dimm|dram|gpu|accelerator|fan|storage|disk|pcie|sub-?system|vreg|regulator|asic",
    re.IGNORECASE,
)
_SUPPLY_NAME = re.compile(r"psu|suppl|rectifier", re.IGNORECASE)
_SUPPLY_WORDS = {"psu", "psus", "supply", "supplies"}
_RAIL = re.compile(r"\d ?v(?![a-z])|rail", re.IGNORECASE)  # 12V, 3V3: the voltage of one of a node's rails
_WHOLE_NUMBER = re.compile(r"(chassis|system|server|node)[ _-]?\d+", re.IGNORECASE)  # "Chassis 1" is a whole
_INPUTS, _OUTPUTS = {"in", "pin", "input"}, {"out", "pout", "output"}


def list_words(name: str) -> set[str]:
    """Return the words of a name in small letters, also of one in camel case; a number above 0 is a word too."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[1-9]\d*", name)}


def allows_whole(words: set[str]) -> bool:
    """Return whether no word of a name says that it is the power of a part."""
    return words - {_HSC} <= POWERS | WHOLES and (_HSC not in words or bool(words & {"total"}))


def _list_plain_words(name: str) -> set[str]:
    return list_words(re.sub("system ?board", "System ", name, flags=re.IGNORECASE))  # Dell's "System Board Power"


def names_total(name: str) -> bool:
    """Return whether a name is that of a whole node's power, and of nothing else."""
    words = _list_plain_words(name)
    return bool(words & POWERS and words & WHOLES) and allows_whole(words)


def names_part(text: str) -> bool:
    """Return whether a name or context is that of a part of a node."""
    return bool(_PART_NAME.search(text) or _SUPPLY_NAME.search(text))


def is_in_service(resource: Any) -> bool:
    """Return whether a meter is switched on by its own State: a disabled one may repeat an old number."""
    return read_state(resource) in ("", "Enabled")


def is_present(resource: Any) -> bool:
    """Return whether a part is there: makers list empty bays too."""
    return read_state(resource) not in ("Absent", "UnavailableOffline")


def is_part(chassis: Resource) -> bool:
    """Return whether a chassis is a part of a node (a GPU board, a GPU), not the node."""
    kind = chassis.body.get("ChassisType")
    return kind in PART_TYPES or (kind is None and bool(list_links(chassis.body.get("Links"), "ContainedBy")))


def is_equipment(chassis: Resource) -> bool:
    """Return whether a chassis is equipment beside the nodes: a switch, a power shelf, a PDU."""
    named = (read_text(chassis.body, key) for key in ("Name", "Model"))
    return chassis.body.get("ChassisType") in EQUIPMENT_TYPES or any(map(_EQUIPMENT.search, named))


def is_shelf(chassis: Resource, supplies: str) -> bool:
    """Return whether a chassis is a power shelf, which feeds nodes and holds none; `supplies` names its supplies.

    An enclosure with rectifiers is one (HPE Cray EX), a switch with supplies is not.
    """
    named = f"{chassis.name} {read_text(chassis.body, 'Model')}"
    if _SHELF.search(named) or chassis.body.get("ChassisType") == "Shelf":
        return True
    return chassis.body.get("ChassisType") in ("Enclosure", "Drawer") and "rectifier" in supplies.lower()


def find_owners(chassis: Resource, systems: Iterable[Resource]) -> set[str]:
    """Return the computer systems that a chassis belongs to: by a link of either, or by having the same Id."""
    own = list_links(chassis.body.get("Links"), "ComputerSystems")
    return {
        system.path
        for system in systems
        if system.path.rstrip("/") in own
        or chassis.path.rstrip("/") in list_links(system.body.get("Links"), "Chassis")
        or (chassis.body.get("Id") is not None and chassis.body.get("Id") == system.body.get("Id"))
    }


def doubt_total(sensor: Resource, wholes: Iterable[str] = ()) -> str:
    """Return why a sensor may not measure its whole chassis, "" if its name and context (or link) show that it does.

    `wholes` are the addresses of the computer systems: a total that is linked to one is its power.
    """
    body, context = sensor.body, read_text(sensor.body, "PhysicalContext")
    if not is_in_service(body):
        return f"it is {read_state(body)}"
    if _measures_side(body):
        return "it measures an output or one line"
    if body.get("PhysicalSubContext") == "Input" and sensor.name.strip().lower() in NODE_WORDS:
        return ""  # HPE Cray EX: the input regulator of a node is called Node
    if context == "Chassis":
        return "" if names_total(sensor.name) else "its name may be that of a part"
    if not context and names_total(sensor.name) and set(list_links(body, "RelatedItem")) & set(wholes):
        return ""
    return f"it measures {context}" if context else "its PhysicalContext is not stated"


def _measures_side(body: dict[str, Any]) -> bool:
    return body.get("PhysicalSubContext") == "Output" or body.get("ElectricalContext") not in (None, "", "Total")


def doubt_source(sensor: Resource, contexts: Iterable[str] | None = None, *, is_node: bool = False) -> str:
    """Return why the sensor behind EnvironmentMetrics does not measure the thing itself, "" if nothing shows that.

    `contexts` are those of the thing; None is for a whole. The name of a node's power has no word of anything else,
    unless the sensor states that it measures the chassis.
    """
    context = read_text(sensor.body, "PhysicalContext")
    shown = f"it is taken from {sensor.name or sensor.id!r}"
    if not is_in_service(sensor.body):
        return f"{shown}, which is {read_state(sensor.body)}"
    if contexts is not None:
        return f"{shown}, which measures {context}" if context and context not in contexts else ""
    if context in PARTS or (context in _BOARDS and not names_total(sensor.name)):
        return f"{shown}, which measures {context}"
    if _measures_side(sensor.body):
        return f"{shown}, which measures an output or one line"
    # The sum of all supplies is the node, the sum of all GPUs is not.
    is_supply = bool(_SUPPLY_NAME.search(sensor.name)) and "total" not in sensor.name.lower()
    if is_supply or _PART_NAME.search(sensor.name):
        return f"{shown}, a part"
    words = _list_plain_words(_WHOLE_NUMBER.sub(r"\1", sensor.name)) - _SUPPLY_WORDS
    is_sensor = "Reading" in sensor.body  # the link may lead to a whole Power resource
    is_whole = allows_whole(words & {_HSC, "total"} if context == "Chassis" else words)
    return (
        f"{shown}, whose name may be that of a part"
        if is_node and is_sensor and (not is_whole or _RAIL.search(sensor.name))
        else ""
    )


def find_side(sensor: Resource) -> str:
    """Return the side of a supply that a sensor measures, "ac" or "dc", "" if neither context nor name shows it."""
    words = list_words(sensor.name) | {read_text(sensor.body, "PhysicalSubContext").lower()}
    is_input, is_output = bool(words & _INPUTS), bool(words & _OUTPUTS)
    return "" if is_input == is_output else "ac" if is_input else "dc"


def find_pair(sensors: Iterable[Resource], contexts: Iterable[str]) -> tuple[Resource, Resource] | None:
    """Return the one power sensor that has a counter of the same name ("CPU 0 Power", "CPU 0 Energy"), and it."""
    power, energy = [], {}
    for sensor in sensors:
        kind, words, context = find_scale(sensor.body), list_words(sensor.name), sensor.body.get("PhysicalContext")
        if kind is None or not is_in_service(sensor.body) or context not in (None, *contexts):
            continue
        if kind[0] == "power":
            power.append((frozenset(words - {"power"}), sensor))
        else:
            energy[frozenset(words - {"energy"})] = sensor
    pairs = [(sensor, energy[words]) for words, sensor in power if words in energy]
    return pairs[0] if len(pairs) == 1 else None
