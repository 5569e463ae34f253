"""Find the readings of a Redfish service: for each thing, where its power, energy and time of reading stand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import MeterError, ReadFailed, Unavailable
from joulelab.instruments.redfish import kinds, values
from joulelab.instruments.redfish.walk import Resource, Walker, find_source, list_links

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulelab.instruments.redfish.values import Field, Step

UPDATE_S = 1.0  # assumed where a service does not state a SensingInterval
OLDEST_S = 120.0  # a reading that looks older at opening tells of a wrong clock, not of an old reading
FAR_APART = 2.0  # two powers of one thing that differ by more than this factor are not of the same thing
NAME_DOUBT = "its name may be that of a part"
EXPANDED = 64  # sensors that may be asked for at once at each reading
# Totals of makers that leave PowerControl empty (Fujitsu; Inspur and Huawei), and iLO 4's beside it.
MAKER_TOTALS: tuple[tuple[str, ...], ...] = (
    ("PowerConsumedWatts",),
    ("Oem", "ts_fujitsu", "ChassisPowerConsumption", "CurrentPowerConsumptionW"),
    ("Oem", "Public", "TotalPower"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Say where one thing's readings stand. `time` leads to its ReadingTime, where the device's clock is worth it."""

    source: str
    power: Field
    energy: Field | None = None
    voltage: Field | None = None
    current: Field | None = None
    time: Field | None = None
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
    return walker.list_members(walker.follow(chassis, "Sensors"))


def read_sensor(
    walker: Walker, sensor: Resource, source: str, counter: Resource | None = None, *, zero: bool = False
) -> Reading | None:
    """Return the power of a sensor, with the energy of a counter beside it; None if it has none now."""
    power, energy = _locate(sensor, "power"), _locate(counter, "energy")
    if power is None:
        return None
    power = replace(power, zero=zero)
    if energy is None or counter is None or not walker.is_read(energy):
        energy = counter = None
    try:
        values.read_number(walker.get(power.path), power)
    except (ReadFailed, Unavailable):
        return None
    time = sensor.locate("ReadingTime") if _is_timed(sensor.body) else None
    made = _describe(walker, Reading(source, power, energy, time=time), sensor)
    return made if counter is None else _read_together(walker, made, sensor, counter)


def _describe(walker: Walker, reading: Reading, sensor: Resource | None) -> Reading:
    """Return a reading with the steps of its numbers as their digits show them, and with what its sensor states."""

    def guess_step(field: Field) -> float:
        return values.guess_step(values.find_item(walker.get(field.path), field.steps), field.scale)

    body = sensor.body if sensor is not None else {}
    return replace(
        reading,
        quantum_w=min(guess_step(reading.power), reading.power.scale),
        quantum_j=guess_step(reading.energy) if reading.energy is not None else reading.quantum_j,
        update_s=values.parse_duration_s(body.get("SensingInterval")) or UPDATE_S,
        gain=values.parse_percent(body.get("Accuracy")),
    )


def _locate(sensor: Resource | None, quantity: str) -> Field | None:
    kind = values.find_scale(sensor.body) if sensor is not None else None
    if sensor is None or kind is None or kind[0] != quantity:
        return None
    place = sensor.locate_power if quantity == "power" else sensor.locate
    return place("Reading", scale=kind[1])


def _read_together(walker: Walker, made: Reading, sensor: Resource, counter: Resource) -> Reading:
    """Return a reading of two sensors by one answer, where the service gives their collection in one."""
    above = sensor.path.rsplit("/", 1)[0]
    expanded = walker.locate_expanded(above)
    apart = replace(made, time=None)  # two answers are of two times
    if expanded is None or counter.path.rsplit("/", 1)[0] != above or sensor.steps:
        return apart
    try:
        rows = values.list_rows(walker.get(expanded), "Members")
        for one in (sensor, counter):
            values.find_item(rows, (("@odata.id", one.path), "Reading"))
    except (ReadFailed, Unavailable):
        return apart
    if len(rows) > EXPANDED:
        return apart

    def move(field: Field | None, path: str) -> Field | None:
        return field and replace(field, path=expanded, steps=("Members", ("@odata.id", path), *field.steps))

    power = move(made.power, sensor.path) or made.power
    return replace(made, power=power, energy=move(made.energy, counter.path), time=move(made.time, sensor.path))


def list_power_sensors(walker: Walker, chassis: Resource, systems: Iterable[Resource]) -> list[Candidate]:
    """Return the power sensors of a chassis that have a reading, each with the one counter of the same name."""
    wholes = [system.path.rstrip("/") for system in systems]
    sensors = list_sensors(walker, chassis)
    counters = [one for one in sensors if one.name and _locate(one, "energy") is not None]
    found = []
    for sensor in sensors:
        same = [one for one in counters if one.name == sensor.name]
        counter = same[0] if len(same) == 1 else None
        reading = read_sensor(walker, sensor, "Sensors", counter)
        if reading is not None:
            watts = values.read_number(walker.get(reading.power.path), reading.power)
            names = tuple(dict.fromkeys(name for name in (sensor.name, sensor.id) if name))
            found.append(Candidate("sensors", chassis, names, watts, reading, kinds.doubt_total(sensor, wholes)))
    return found


# ---- EnvironmentMetrics


def read_environment(
    walker: Walker, metrics: Resource | None, contexts: Iterable[str] | None = None
) -> tuple[Reading | None, str]:
    """Return the power that EnvironmentMetrics shows, with its energy, and why it is in doubt ("" if it is not).

    It is read by its sensors where these tell the time of one reading in one answer.
    """
    if metrics is None:
        return None, ""
    power = metrics.locate_power("PowerWatts", "Reading")
    try:
        walker.read(power)
    except ReadFailed as error:
        return None, f"{error.what} ({error.why})" if "PowerWatts" in metrics.body else ""
    energy = find_energy(walker, metrics, contexts)
    sensor = walker.open(find_source(metrics.body.get("PowerWatts")))
    made = _describe(walker, Reading("EnvironmentMetrics", power, energy), sensor)
    if sensor is None:
        return made, ""
    doubt = kinds.doubt_source(sensor, contexts) or _compare_source(walker, power, sensor)
    if doubt or not _is_timed(sensor.body):
        return made, doubt
    counter = walker.open(find_source(metrics.body.get(str(energy.steps[-2])))) if energy is not None else None
    if energy is not None and counter is None:
        return made, ""
    timed = read_sensor(walker, sensor, "EnvironmentMetrics, its sensor", counter)
    return (timed if timed is not None and timed.time is not None else made), ""


def find_energy(walker: Walker, metrics: Resource, contexts: Iterable[str] | None = None) -> Field | None:
    """Return the counter in EnvironmentMetrics, None where there is none or it is another thing's."""
    for key, scale in (("EnergyJoules", 1.0), ("EnergykWh", 3.6e6)):
        energy = metrics.locate(key, "Reading", scale=scale)
        sensor = walker.open(find_source(metrics.body.get(key)))
        if walker.is_read(energy) and (sensor is None or not kinds.doubt_source(sensor, contexts)):
            return energy
    return None


def _compare_source(walker: Walker, power: Field, sensor: Resource) -> str:
    """Return the contradiction of an excerpt and its sensor; both are asked again, since the load may have changed."""
    source = _locate(sensor, "power")
    if source is None:
        kind = " in ".join(str(sensor.body[key]) for key in ("ReadingType", "ReadingUnits") if sensor.body.get(key))
        return f"its sensor {sensor.name or sensor.id!r} shows {kind[:40]}" if kind else ""
    for again in (False, True):
        try:
            shown, sensed = walker.read(power), walker.read(source)
        except MeterError:
            return ""
        if not are_apart(shown, sensed):
            return ""
        if not again:
            walker.forget(power, source)
    return f"it shows {shown:g} W and its sensor {sensor.name or sensor.id!r} {sensed:g} W"


def are_apart(*watts: float) -> bool:
    """Return whether powers cannot be of the same thing."""
    return max(watts, default=0.0) > FAR_APART * min(watts, default=0.0)


# ---- Power


def list_totals(walker: Walker, chassis: Resource, systems: Iterable[Resource]) -> list[Candidate]:
    """Return the powers that EnvironmentMetrics and Power of a chassis show, the best first."""
    found = []
    reading, doubt = read_environment(walker, walker.follow(chassis, "EnvironmentMetrics"))
    if reading is not None:
        watts = walker.read(reading.power)
        found.append(Candidate("environment", chassis, ("EnvironmentMetrics",), watts, reading, doubt))
    try:
        power = walker.follow(chassis, "Power")
    except ReadFailed:
        if not found:
            raise
        return found  # a Power that fails to answer costs no power of EnvironmentMetrics
    if power is not None:
        found += _list_controls(walker, chassis, power, {system.path.rstrip("/") for system in systems})
    return found


def _list_controls(walker: Walker, chassis: Resource, power: Resource, systems: set[str]) -> list[Candidate]:
    """Return the members of PowerControl that show a power, or the totals of makers that leave it empty."""
    found = []
    controls = find_controls(power)
    for member, field, shown in controls:
        doubt = shown or _doubt_related(walker, member, {chassis.path.rstrip("/"), *systems})
        is_linked = len(controls) == 1 and bool(systems & set(list_links(member, "RelatedItem")))
        if shown == NAME_DOUBT and is_linked and not kinds.names_part(values.read_text(member, "Name")):
            doubt = ""  # the only one, and linked to the computer system: its name may be any
        try:
            watts = values.read_number(power.body, field)
        except ReadFailed:
            continue
        key = str(member.get("Name") or member.get("MemberId") or field.steps[-1])
        made = _describe(walker, Reading(f"Power, {field.name.partition('#')[2]}", field), None)
        found.append(Candidate("power", chassis, (key,), watts, made, doubt))
    return found


def _doubt_related(walker: Walker, member: dict[str, Any], wholes: set[str]) -> str:
    """Return the type of the parts that a PowerControl is related to, "" where it is related to a whole."""
    related = list_links(member, "RelatedItem")
    if not related or wholes & set(related):
        return ""
    types = [values.read_text(one.body, "@odata.type") for path in related if (one := walker.open(path))]
    parts = [kind.split(".")[0].removeprefix("#") for kind in types]
    return "" if not parts or {"Chassis", "ComputerSystem"} & set(parts) else f"it measures {parts[0]}"


def find_controls(power: Resource) -> list[tuple[dict[str, Any], Field, str]]:
    """Return for each total in a Power resource: its member, its place, and why it may not be the whole.

    Of several that may be the whole none is certain; parts are never summed.
    """
    rows = values.list_rows(power.body, "PowerControl")
    named = [kinds.list_words(values.read_text(row, "Name")) for row in rows]
    if len(rows) == 1:  # "Power Control 1" beside no other
        named = [{word for word in named[0] if not word.isdecimal()}]
    whole = [row for row, words in zip(rows, named, strict=True) if words <= kinds.POWERS | kinds.WHOLES]
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
    certain = [field for _, field, doubt in found if not doubt and values.has_value(power.body, field)]
    makers = [power.locate_power(*steps) for steps in MAKER_TOTALS]
    shown = [field for field in makers if values.has_value(power.body, field)]
    if certain or len(served) != len(whole):
        return found
    return found + [({}, field, "" if len(served) <= 1 else "it is beside several others") for field in shown[:1]]


def is_of_system(candidate: Candidate, systems: Iterable[Resource]) -> bool:
    """Return whether the one PowerControl of a board says that it measures the computer system (Intel)."""
    if candidate.kind != "power" or candidate.doubt:
        return False
    return bool(kinds.list_words(candidate.names[0]) & {"server", "system", "node"}) and (
        len(kinds.find_owners(candidate.chassis, systems)) == 1
    )


# ---- power supplies


def list_supplies(walker: Walker, chassis: Resource) -> list[Supply]:
    """Return the power supplies that are there, from PowerSubsystem or else from Power."""
    subsystem = walker.follow(chassis, "PowerSubsystem")
    rows = list(enumerate(walker.list_members(walker.follow(subsystem, "PowerSupplies")), 1))
    has_sensors = any(list_links(psu.body, "Sensors") for _, psu in rows)
    sensors = {one.path.rstrip("/"): one for one in list_sensors(walker, chassis)} if has_sensors else {}
    found = [_read_supply(walker, number, psu, sensors) for number, psu in rows if kinds.is_present(psu.body)]
    if any(psu.ac or psu.dc or psu.doubt for psu in found):
        return found
    power = walker.follow(chassis, "Power")
    old = _list_old_supplies(power) if power is not None else []
    return old if any(psu.ac or psu.dc for psu in old) or not found else found


def list_supply_sensors(walker: Walker, chassis: Resource) -> list[Supply]:
    """Return the supplies of a chassis that shows them by sensors only (rectifiers of HPE Cray EX)."""
    sides: dict[str, dict[str, Reading]] = {"ac": {}, "dc": {}}
    for sensor in list_sensors(walker, chassis):
        if sensor.body.get("PhysicalContext") in kinds.SUPPLIES and kinds.is_in_service(sensor.body):
            source = f"Sensors of {sensor.body['PhysicalContext']}"
            reading, side = read_sensor(walker, sensor, source, zero=True), kinds.find_side(sensor)
            if reading is not None and side:
                sides[side][sensor.name or sensor.id] = reading
    names = dict.fromkeys([*sides["ac"], *sides["dc"]])
    return [Supply(n, name, ac=sides["ac"].get(name), dc=sides["dc"].get(name)) for n, name in enumerate(names, 1)]


def _read_supply(walker: Walker, number: int, psu: Resource, sensors: dict[str, Resource]) -> Supply:
    stated = psu.body.get("PowerCapacityWatts") or psu.body.get("CapacityWatts")
    made = Supply(number, psu.id, values.parse_capacity_w(stated))
    metrics = walker.follow(psu, "Metrics")
    if metrics is not None:
        return _read_metrics(walker, made, metrics)
    own = [sensors[path] for path in list_links(psu.body, "Sensors") if path in sensors]
    for side in ("ac", "dc"):
        power = [one for one in own if _locate(one, "power") is not None and kinds.find_side(one) == side]
        reading = read_sensor(walker, power[0], "Sensors of a power supply", zero=True) if len(power) == 1 else None
        if reading is not None and walker.is_read(reading.power):
            made = replace(made, **{side: reading})  # type: ignore[arg-type]
    return made


def _read_metrics(walker: Walker, made: Supply, metrics: Resource) -> Supply:
    for side, key in (("ac", "InputPowerWatts"), ("dc", "OutputPowerWatts")):
        power = replace(metrics.locate_power(key, "Reading"), zero=True)
        if not walker.is_read(power):
            continue
        watts = walker.read(power)
        if is_rating(watts, made.capacity_w):
            return replace(made, ac=None, dc=None, doubt=f"{key} is {watts:g} W, capacity {made.capacity_w:g} W")
        sensor = walker.open(find_source(metrics.body.get(key)))
        doubt = _compare_source(walker, power, sensor) if sensor is not None else ""
        if doubt:
            return replace(made, ac=None, dc=None, doubt=f"{key}: {doubt}")
        energy = metrics.locate("EnergykWh", "Reading", scale=3.6e6)
        counter = energy if side == "ac" and walker.is_read(energy) else None
        reading = _describe(walker, Reading(f"PowerSupplyMetrics, {key}", power, counter), sensor)
        if side == "ac":
            lines = [metrics.locate(name, "Reading") for name in ("InputVoltage", "InputCurrentAmps")]
            voltage, current = (field if walker.is_read(field) else None for field in lines)
            reading = replace(reading, voltage=voltage, current=current)
        made = replace(made, **{side: reading})  # type: ignore[arg-type]
    return made


def _list_old_supplies(power: Resource) -> list[Supply]:
    rows = values.list_rows(power.body, "PowerSupplies")
    found: list[Supply] = []
    for number, psu in enumerate(rows, 1):
        if not kinds.is_present(psu):
            continue
        here: tuple[Step, ...] = ("PowerSupplies", values.find_member_step(rows, psu))
        capacity = values.parse_capacity_w(psu.get("PowerCapacityWatts"))

        def read_side(*keys: str, here: tuple[Step, ...] = here, capacity: float | None = capacity) -> Reading | None:
            for key in keys:
                field = replace(power.locate_power(*here, *key.split("/")), zero=True)
                watts = values.read_value(power.body, field) if values.has_value(power.body, field) else None
                if watts is not None and not is_rating(watts, capacity):
                    return Reading(f"Power, {key}", field)
            return None

        ac = read_side("PowerInputWatts", "Oem/Huawei/PowerInputWatts")
        dc = read_side("PowerOutputWatts", "LastPowerOutputWatts", "Oem/Huawei/PowerOutputWatts")
        volts = power.locate(*here, "LineInputVoltage")
        if ac is not None and values.has_value(power.body, volts):
            ac = replace(ac, voltage=volts)
        name = str(psu.get("Name") or psu.get("MemberId") or number)
        found.append(Supply(number, name, capacity, ac, dc))
    return found


def is_rating(watts: float, capacity_w: float | None) -> bool:
    """Return whether a power is more than a supply of this capacity can take: then it is a name plate."""
    return capacity_w is not None and capacity_w < watts / 1.15


# ---- processors


def list_processors(walker: Walker, system: Resource, kind: str) -> list[Resource]:
    """Return the processors of a kind (CPU, GPU) in the order of their numbers. Raises Unavailable if one is lost."""
    collection = walker.follow(system, "Processors")
    rows = walker.list_members(collection)
    listed = values.list_rows(collection.body, "Members") if collection is not None else []
    if len(rows) < len(listed):
        lost = f"{len(listed) - len(rows)} of the processors of {system.id} do not answer"
        raise Unavailable(f"{kind}s are not read: {lost}", why="the numbers of the others would not be certain")
    found = [one for one in rows if one.body.get("ProcessorType") == kind and kinds.is_present(one.body)]
    return sorted(found, key=lambda one: find_number(one.path))


def read_processor(walker: Walker, processor: Resource, contexts: Iterable[str]) -> tuple[Reading | None, str]:
    """Return power and energy of a processor, by EnvironmentMetrics, or by the sensors of its chassis; and a doubt."""
    metrics = walker.follow(processor, "EnvironmentMetrics")
    reading, doubt = read_environment(walker, metrics, contexts)
    if reading is not None and not doubt:
        return reading, ""
    pair = kinds.find_pair(list_sensors(walker, walker.follow(processor, "Links", "Chassis")), contexts)
    made = read_sensor(walker, pair[0], "Sensors of its chassis", pair[1]) if pair is not None else None
    return made, doubt or ("EnvironmentMetrics shows no power" if made is not None else "")


def find_number(path: str) -> int:
    """Return the number at the end of an address, for the order of modules."""
    digits = path.rstrip("/")[len(path.rstrip("/").rstrip("0123456789")) :]
    return int(digits) if digits and len(digits) < 10 else 0


def _is_timed(sensor: dict[str, Any]) -> bool:
    moment = values.parse_reading_time_ns(sensor.get("ReadingTime"))
    return moment is not None and -0.5 <= (read_utc_ns() - moment) / NS <= OLDEST_S
