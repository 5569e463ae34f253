"""Find the readings of a Redfish service: for each thing, the places of its power and energy."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import MeterError, ReadFailed, Unavailable
from joulelab.instruments.redfish import kinds, values
from joulelab.instruments.redfish.walk import Resource, Walker, find_source, list_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.instruments.redfish.values import Field

UPDATE_S = 1.0  # assumed if a service does not state a SensingInterval
FAR_APART = 2.0  # two powers of one thing that differ by more than this factor are not of the same thing
ABOVE = 1.15  # parts may seem to draw this much more than the whole, which is read at another moment
RATING = 1.15  # a power above this share of a supply's capacity is a name plate
NAME_DOUBT = "its name may be that of a part"
# Totals of makers that leave PowerControl empty (Fujitsu; Inspur and Huawei), and iLO 4's beside it.
MAKER_TOTALS: tuple[tuple[str, ...], ...] = (
    ("PowerConsumedWatts",),
    ("Oem", "ts_fujitsu", "ChassisPowerConsumption", "CurrentPowerConsumptionW"),
    ("Oem", "Public", "TotalPower"),
)
# Where the old Power resource has the two sides of a supply, the best first.
SUPPLY_KEYS = {
    "ac": ("PowerInputWatts", "Oem/Huawei/PowerInputWatts"),
    "dc": ("PowerOutputWatts", "LastPowerOutputWatts", "Oem/Huawei/PowerOutputWatts"),
}
_SIDE_WORD = re.compile("input|output", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reading:
    """Locate one thing's power and energy."""

    source: str
    power: Field
    energy: Field | None = None
    update_s: float = UPDATE_S
    gain: float | None = None
    quantum_w: float = 1.0
    quantum_j: float = 3.6e6


@dataclass(frozen=True, slots=True)
class Candidate:
    """Hold a power that a chassis shows: its names to choose it by, and why it may not be the whole (`doubt`)."""

    kind: str  # environment, power, sensors
    chassis: Resource
    names: tuple[str, ...]
    watts: float
    reading: Reading
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Supply:
    """Hold one power supply: input (AC) and output (DC), either may be unmetered (None)."""

    number: int  # its place among the bays, empty ones included
    name: str
    capacity_w: float | None = None
    ac: Reading | None = None
    dc: Reading | None = None
    doubt: str = ""


# ---- Sensors


def list_sensors(walker: Walker, chassis: Resource | None) -> list[Resource]:
    """Return all sensors of a chassis."""
    return walker.list_members(walker.follow_link(chassis, "Sensors"))


def read_sensor(
    walker: Walker, sensor: Resource, source: str, counter: Resource | None = None, *, zero: bool = False
) -> Reading | None:
    """Return the power of a sensor, with the energy of a counter beside it; None if it has none now."""
    power, energy = _locate_reading(sensor, "power", zero=zero), _locate_reading(counter, "energy")
    if power is None:
        return None
    try:
        values.read_number(walker.get_body(power.path), power)
    except (ReadFailed, Unavailable):
        return None
    counted = energy if energy is not None and walker.has_reading(energy) else None
    return _describe_reading(walker, Reading(source, power, counted), sensor)


def _describe_reading(walker: Walker, reading: Reading, sensor: Resource | None) -> Reading:
    """Return a reading with the steps of its numbers, from their digits, and with the interval and accuracy stated."""

    def guess_step(field: Field) -> float:
        return values.guess_step(values.find_item(walker.get_body(field.path), field.steps), field.scale)

    body = sensor.body if sensor is not None else {}
    return replace(
        reading,
        quantum_w=min(guess_step(reading.power), reading.power.scale),
        quantum_j=guess_step(reading.energy) if reading.energy is not None else reading.quantum_j,
        update_s=values.parse_duration_s(body.get("SensingInterval")) or UPDATE_S,
        gain=values.parse_percent(body.get("Accuracy")),
    )


def _locate_reading(sensor: Resource | None, quantity: str, *, zero: bool = False) -> Field | None:
    kind = values.find_scale(sensor.body) if sensor is not None else None
    if sensor is None or kind is None or kind[0] != quantity:
        return None
    if quantity == "power":
        return sensor.locate_power("Reading", scale=kind[1], zero=zero)
    return sensor.locate_number("Reading", scale=kind[1])


def list_power_sensors(walker: Walker, chassis: Resource, systems: Iterable[Resource]) -> list[Candidate]:
    """Return the power sensors of a chassis that have a reading, each with the one counter of its name and side."""
    wholes = [system.path.rstrip("/") for system in systems]
    sensors = list_sensors(walker, chassis)
    counters = [one for one in sensors if one.name and _locate_reading(one, "energy") is not None]
    found = []
    for sensor in sensors:
        side = sensor.body.get("PhysicalSubContext")
        same = [one for one in counters if (one.name, one.body.get("PhysicalSubContext")) == (sensor.name, side)]
        reading = read_sensor(walker, sensor, "Sensors", same[0] if len(same) == 1 else None)
        if reading is not None:
            watts = values.read_number(walker.get_body(reading.power.path), reading.power)
            names = tuple(dict.fromkeys(name for name in (sensor.name, sensor.id) if name))
            found.append(Candidate("sensors", chassis, names, watts, reading, kinds.doubt_total(sensor, wholes)))
    return found


# ---- EnvironmentMetrics


def read_environment(
    walker: Walker, metrics: Resource | None, contexts: Iterable[str] | None = None, *, is_node: bool = False
) -> tuple[Reading | None, str]:
    """Return the power that EnvironmentMetrics shows, with its energy, and why it is in doubt ("" if it is not)."""
    if metrics is None:
        return None, ""
    power = metrics.locate_power("PowerWatts", "Reading")
    try:
        walker.read_field(power)
    except ReadFailed as error:
        return None, f"{error.what} ({error.why})" if "PowerWatts" in metrics.body else ""
    energy = None
    for key, scale in (("EnergykWh", 3.6e6), ("EnergyJoules", 1.0)):  # the finer one is preferred
        field = metrics.locate_number(key, "Reading", scale=scale)
        counter = walker.open_path(find_source(metrics.body.get(key)))
        if walker.has_reading(field) and (
            counter is None or not kinds.doubt_source(counter, contexts, is_node=is_node)
        ):
            energy = field
    sensor = walker.open_path(find_source(metrics.body.get("PowerWatts")))
    made = _describe_reading(walker, Reading("EnvironmentMetrics", power, energy), sensor)
    if sensor is None:
        return made, ""
    return made, kinds.doubt_source(sensor, contexts, is_node=is_node) or _compare_source(walker, power, sensor)


def _compare_source(walker: Walker, power: Field, sensor: Resource) -> str:
    """Return the contradiction of an excerpt and its sensor; both are asked again, since the load may have changed."""
    source = _locate_reading(sensor, "power")
    if source is None:
        kind = " in ".join(str(sensor.body[key]) for key in ("ReadingType", "ReadingUnits") if sensor.body.get(key))
        return f"its sensor {sensor.name or sensor.id!r} shows {kind[:40]}" if kind else ""
    try:
        if not are_apart(walker.read_field(power), walker.read_field(source)):
            return ""
        shown, sensed = walker.read_again(power, source)
    except MeterError:
        return ""
    is_far = are_apart(shown, sensed)
    return f"it shows {shown:g} W and its sensor {sensor.name or sensor.id!r} {sensed:g} W" if is_far else ""


def are_apart(*watts: float) -> bool:
    """Return whether powers cannot be of the same thing."""
    return max(watts, default=0.0) > FAR_APART * min(watts, default=0.0)


# ---- Power


def list_totals(
    walker: Walker, chassis: Resource, systems: Sequence[Resource]
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the powers that EnvironmentMetrics and Power of a chassis show, and why one of them shows none."""
    reasons: dict[str, str] = {}
    found: list[Candidate] = []
    metrics = walker.follow_link(chassis, "EnvironmentMetrics")
    reading, doubt = read_environment(walker, metrics, is_node=True)
    if reading is not None:
        watts = walker.read_field(reading.power)
        found.append(Candidate("environment", chassis, ("EnvironmentMetrics",), watts, reading, doubt))
    elif metrics is not None:
        reasons["environment"] = f"EnvironmentMetrics: {doubt or 'PowerWatts is absent'}"
    else:
        reasons["environment"] = f"{chassis.id} has no EnvironmentMetrics"
    try:
        power = walker.follow_link(chassis, "Power")
    except ReadFailed:
        if not found:
            raise
        return found, reasons  # a Power that fails to answer costs no power of EnvironmentMetrics
    controls = _list_controls(walker, chassis, power, systems) if power is not None else []
    rows = values.list_rows(power.body, "PowerControl") if power is not None else []
    if power is None:
        reasons["power"] = f"{chassis.id} has no Power"
    elif any(row.get("PowerConsumedWatts") == 0 for row in rows):
        reasons["power"] = "Power: it answers 0 W: this model has no power meter"
    elif not controls:
        names = ", ".join(str(row.get("Name") or "without a name") for row in rows) or "none"
        reasons["power"] = f"Power: PowerControl members: {names}"
    return _doubt_by_parts(walker, found + controls), reasons


def _doubt_by_parts(walker: Walker, totals: list[Candidate]) -> list[Candidate]:
    """Return the totals, with a doubt on each that is below the parts beside it in PowerControl.

    Parts that differ only by a number (Accelerator0, Accelerator1) are beside each other and sum up; others may
    contain each other.
    """
    groups: dict[str, list[Field]] = {}
    for one in totals:
        is_other = one.doubt.startswith(("it measures Chassis", "it measures ComputerSystem"))
        is_other = is_other or bool(kinds.list_words(one.names[0]) & kinds.NO_PARTS)
        is_part = one.doubt == NAME_DOUBT or one.doubt.startswith("it measures ")
        if one.kind == "power" and is_part and not is_other and walker.has_reading(one.reading.power):
            groups.setdefault(re.sub(r"\d+", "", one.names[0]), []).append(one.reading.power)
    found = []
    for one in totals:
        doubt = one.doubt
        for name, fields in groups.items() if not doubt else ():
            parts_w = sum(map(walker.read_field, fields))
            if parts_w > ABOVE * one.watts:
                try:  # the load may have changed between the answers
                    whole_w, *watts = walker.read_again(one.reading.power, *fields)
                except MeterError:
                    whole_w, watts = one.watts, [parts_w]
                if sum(watts) > ABOVE * whole_w:
                    doubt = f"{name.strip()!r} beside it draws {sum(watts):g} W"
        found.append(replace(one, doubt=doubt))
    return found


def _list_controls(walker: Walker, chassis: Resource, power: Resource, systems: Sequence[Resource]) -> list[Candidate]:
    """Return the members of PowerControl that show a power, or the totals of makers that leave it empty."""
    found, controls = [], find_controls(power)
    owners = {path.rstrip("/") for path in kinds.find_owners(chassis, systems)}
    for member, field, shown in controls:
        context = values.read_text(member, "PhysicalContext")
        measured = f"it measures {context}" if context in kinds.PARTS else ""
        doubt = shown or measured or _doubt_related(walker, member, chassis, systems)
        is_linked = len(controls) == 1 and bool(owners & set(list_links(member, "RelatedItem")))
        if shown == NAME_DOUBT and is_linked and not kinds.names_part(values.read_text(member, "Name")):
            doubt = measured  # the only one, and linked to the computer system: its name may be any
        try:
            watts = values.read_number(power.body, field)
        except ReadFailed:
            continue
        key = str(member.get("Name") or member.get("MemberId") or field.steps[-1])
        made = _describe_reading(walker, Reading(f"Power, {field.place_name.partition('#')[2]}", field), None)
        found.append(Candidate("power", chassis, (key,), watts, made, doubt))
    return found


def _doubt_related(walker: Walker, member: dict[str, Any], chassis: Resource, systems: Sequence[Resource]) -> str:
    """Return the part, or the other chassis or system, that a PowerControl is related to; "" for its own."""
    owners = kinds.find_owners(chassis, systems)
    related = list_links(member, "RelatedItem")
    if {chassis.path.rstrip("/"), *(path.rstrip("/") for path in owners)} & set(related):
        return ""
    doubt = ""
    for one in filter(None, map(walker.open_path, related)):
        kind = values.read_text(one.body, "@odata.type").split(".")[0].removeprefix("#")
        if kind == "Chassis" and owners and kinds.find_owners(one, systems) == owners:
            return ""
        other = f" {one.id}" if kind in ("Chassis", "ComputerSystem") else ""
        doubt = doubt or f"it measures {kind}{other}"
    return doubt


def find_controls(power: Resource) -> list[tuple[dict[str, Any], Field, str]]:
    """Return for each total in a Power resource: its member, its place, and why it may not be the whole.

    Of several that may be the whole none is certain; parts are never summed.
    """
    rows = values.list_rows(power.body, "PowerControl")
    named = [kinds.list_words(values.read_text(row, "Name")) for row in rows]
    if len(rows) == 1:  # "Power Control 1" beside no other
        named = [{word for word in named[0] if not word.isdecimal()}]
    whole = [row for row, words in zip(rows, named, strict=True) if kinds.allows_whole(words)]
    if len(whole) > 1:  # nameless ones beside each other may be anything
        whole = [row for row, words in zip(rows, named, strict=True) if row in whole and words & kinds.WHOLES]
    served = [row for row in whole if kinds.is_in_service(row)]
    found = []
    for row in rows:
        field = power.locate_power("PowerControl", values.find_member_step(rows, row), "PowerConsumedWatts")
        if row not in whole:
            doubt = NAME_DOUBT
        elif row not in served:
            doubt = f"it is {values.read_state(row)}"
        else:
            doubt = "it is one of several" if len(served) > 1 else ""
        found.append((row, field, doubt))
    if len(served) != len(whole) or any(not doubt and values.has_value(power.body, field) for _, field, doubt in found):
        return found
    makers = [power.locate_power(*steps) for steps in MAKER_TOTALS]
    shown = [field for field in makers if values.has_value(power.body, field)]
    return found + [({}, field, "" if len(served) <= 1 else "it is beside several others") for field in shown[:1]]


# ---- power supplies


def list_supplies(walker: Walker, chassis: Resource) -> list[Supply]:
    """Return the power supplies that are there, from PowerSubsystem or else from Power. Raises Unavailable."""
    subsystem = walker.follow_link(chassis, "PowerSubsystem")
    members = walker.list_members(walker.follow_link(subsystem, "PowerSupplies"), complete=True)
    has_sensors = any(list_links(psu.body, "Sensors") for psu in members)
    sensors = {one.path.rstrip("/"): one for one in list_sensors(walker, chassis)} if has_sensors else {}
    rows = [(number, psu) for number, psu in enumerate(members, 1) if kinds.is_present(psu.body)]
    found = [_read_supply(walker, number, psu, sensors) for number, psu in rows]
    if any(psu.ac or psu.dc or psu.doubt for psu in found):
        return found
    power = walker.follow_link(chassis, "Power")
    old = _list_old_supplies(power) if power is not None else []
    return old if any(psu.ac or psu.dc for psu in old) or not found else found


def list_supply_sensors(walker: Walker, chassis: Resource) -> list[Supply]:
    """Return the supplies of a chassis that shows them by sensors only (rectifiers of HPE Cray EX).

    One without a reading is listed too: without it the sum would be too small.
    """
    rows = [
        (sensor, kinds.find_side(sensor))
        for sensor in list_sensors(walker, chassis)
        if sensor.body.get("PhysicalContext") in kinds.SUPPLIES
        and kinds.is_present(sensor.body)
        and sensor.body.get("ElectricalContext") in (None, "", "Total")
        and _locate_reading(sensor, "power") is not None
    ]
    rows = [(sensor, side) for sensor, side in rows if side]
    # All rectifiers of a Cray chassis have the same Name.
    is_named = len({(sensor.name, side) for sensor, side in rows}) == len(rows)
    sides: dict[str, dict[str, Reading | None]] = {"ac": {}, "dc": {}}
    for sensor, side in rows:
        name = sensor.name if is_named and sensor.name else _SIDE_WORD.sub("", sensor.id)
        source = f"Sensors of {sensor.body['PhysicalContext']}"
        reading = read_sensor(walker, sensor, source, zero=True) if kinds.is_in_service(sensor.body) else None
        sides[side][sensor.path if name in sides[side] else name] = reading
    names = dict.fromkeys([*sides["ac"], *sides["dc"]])
    return [Supply(n, name, ac=sides["ac"].get(name), dc=sides["dc"].get(name)) for n, name in enumerate(names, 1)]


def _read_supply(walker: Walker, number: int, psu: Resource, sensors: dict[str, Resource]) -> Supply:
    stated = psu.body.get("PowerCapacityWatts") or psu.body.get("CapacityWatts")
    made = Supply(number, psu.id, values.parse_capacity_w(stated))
    if values.read_state(psu.body) in values.OUT_OF_SERVICE:
        return made
    metrics = walker.follow_link(psu, "Metrics")
    own = [sensors[path] for path in list_links(psu.body, "Sensors") if path in sensors]
    for side, key in (("ac", "InputPowerWatts"), ("dc", "OutputPowerWatts")):
        if metrics is None:
            power = [one for one in own if _locate_reading(one, "power") and kinds.find_side(one) == side]
            reading = read_sensor(walker, power[0], "Sensors of a power supply", zero=True) if len(power) == 1 else None
            doubt = ""
        else:
            reading, doubt = _read_metrics(walker, metrics, key, with_energy=side == "ac")
        watts = walker.read_field(reading.power) if reading is not None and walker.has_reading(reading.power) else 0.0
        if is_rating(watts, made.capacity_w):
            doubt = f"it is {watts:g} W, capacity {made.capacity_w:g} W"
        if doubt:
            return replace(made, ac=None, dc=None, doubt=f"{key}: {doubt}")
        made = replace(made, **{side: reading})  # type: ignore[arg-type]
    return made


def _read_metrics(walker: Walker, metrics: Resource, key: str, *, with_energy: bool) -> tuple[Reading | None, str]:
    """Return one side of a supply from its metrics, and its contradiction to its sensor."""
    power = metrics.locate_power(key, "Reading", zero=True)
    if not walker.has_reading(power):
        return None, ""
    sensor = walker.open_path(find_source(metrics.body.get(key)))
    doubt = _compare_source(walker, power, sensor) if sensor is not None else ""
    energy = metrics.locate_number("EnergykWh", "Reading", scale=3.6e6)
    counter = energy if with_energy and walker.has_reading(energy) else None
    return _describe_reading(walker, Reading(f"PowerSupplyMetrics, {key}", power, counter), sensor), doubt


def _list_old_supplies(power: Resource) -> list[Supply]:
    rows = values.list_rows(power.body, "PowerSupplies")
    found: list[Supply] = []
    for number, psu in enumerate(rows, 1):
        if not kinds.is_present(psu):
            continue
        step, capacity = values.find_member_step(rows, psu), values.parse_capacity_w(psu.get("PowerCapacityWatts"))
        made = Supply(number, str(psu.get("Name") or psu.get("MemberId") or number), capacity)
        for side, keys in SUPPLY_KEYS.items():
            for key in keys:
                field = power.locate_power("PowerSupplies", step, *key.split("/"), zero=True)
                if values.has_value(power.body, field) and not is_rating(
                    values.read_value(power.body, field), capacity
                ):
                    made = replace(made, **{side: Reading(f"Power, {key}", field)})  # type: ignore[arg-type]
                    break
        found.append(made)
    return found


def is_rating(watts: float, capacity_w: float | None) -> bool:
    """Return whether a power is more than a supply of this capacity can take: then it is a name plate."""
    return capacity_w is not None and watts > RATING * capacity_w


# ---- processors


def list_processors(walker: Walker, system: Resource, kind: str) -> list[Resource]:
    """Return the processors of a kind (CPU, GPU) in the order of their numbers. Raises Unavailable if one is lost."""
    rows = walker.list_members(walker.follow_link(system, "Processors"), complete=True)
    found = [one for one in rows if one.body.get("ProcessorType") == kind and kinds.is_present(one.body)]
    return sorted(found, key=lambda one: int((re.search(r"[0-9]{1,9}$", one.path.rstrip("/")) or "0")[0]))


def read_processor(walker: Walker, processor: Resource, contexts: Iterable[str]) -> tuple[Reading | None, str]:
    """Return power and energy of a processor, by EnvironmentMetrics, or by the sensors of its chassis; and a doubt."""
    reading, doubt = read_environment(walker, walker.follow_link(processor, "EnvironmentMetrics"), contexts)
    if reading is not None and not doubt:
        return reading, ""
    pair = kinds.find_pair(list_sensors(walker, walker.follow_link(processor, "Links", "Chassis")), contexts)
    made = read_sensor(walker, pair[0], "Sensors of its chassis", pair[1]) if pair is not None else None
    return made, doubt or ("EnvironmentMetrics shows no power" if made is not None else "")
