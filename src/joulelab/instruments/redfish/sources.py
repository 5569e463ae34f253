"""Find what a Redfish service measures: for each thing, where its power, energy and time of reading stand."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ReadFailed, Unavailable
from joulelab.instruments.redfish import values
from joulelab.instruments.redfish.values import HIGHEST_W, Field, Step
from joulelab.instruments.redfish.walk import Walker, is_in_service, is_part, is_present, link, links

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

UPDATE_S = 1.0  # assumed where a service does not state a SensingInterval
OLDEST_S = 120.0  # a reading that looks older at opening tells of a wrong clock, not of an old reading
_WATTS = (0.0, HIGHEST_W)
_PART_CONTEXT = re.compile(r"(?i)cpu|processor|memory|gpu|accelerator|fan|storage|drive|suppl|regulator|pcie|network")


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
class Supply:
    """Hold one power supply: what goes in (AC) and what comes out (DC), either may be unmetered."""

    number: int
    name: str
    ac: Reading | None
    dc: Reading | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """Hold a power that a chassis shows: the name to choose it by, and whether it is certainly the whole chassis'."""

    chassis: str
    name: str
    also: str
    watts: float
    reading: Reading
    is_certain: bool = False

    def __str__(self) -> str:
        also = f" ({self.also})" if self.also else ""
        return f"{self.chassis}: {self.name}{also} {self.watts:g} W"


def environment(walker: Walker, metrics: dict[str, Any] | None, path: str | None) -> Reading | None:
    """Return what EnvironmentMetrics offers; by its sensors, where they tell the time of one reading in one answer."""
    power = Field(path or "", ("PowerWatts", "Reading"), zero=False, limits=_WATTS)
    if metrics is None or not values.has(metrics, power):
        return None
    energy = next(
        (
            field
            for key, scale in (("EnergyJoules", 1.0), ("EnergykWh", 3.6e6))
            if values.has(metrics, field := Field(power.path, (key, "Reading"), scale))
        ),
        None,
    )
    direct = _stepped(Reading("EnvironmentMetrics", power, energy), metrics)
    sensor_path = _source(metrics, "PowerWatts")
    sensor = _sensor(walker, sensor_path)
    if sensor is None or sensor_path is None:
        return direct
    direct = replace(direct, update_s=_update_s(sensor), gain=values.percent(sensor.get("Accuracy")))
    if not _is_timed(sensor):
        return direct
    if energy is None:
        return _from_sensor(sensor_path, sensor, "EnvironmentMetrics, its sensor") or direct
    other = _source(metrics, str(energy.steps[0]))
    return _from_both(walker, sensor_path, other, "EnvironmentMetrics, its sensors") or direct


def from_power(power: dict[str, Any] | None, path: str | None) -> Reading | None:
    """Return the whole server's power in the old Power resource, None where it has none. Raises Unavailable."""
    if power is None or path is None:
        return None
    field = Field(path, values.control(power), zero=False, limits=_WATTS)
    return _stepped(Reading(f"Power, {field.name.partition('#')[2]}", field), power)


def from_sensors(walker: Walker, chassis: dict[str, Any], chosen: Callable[[str], bool]) -> Reading | None:
    """Return power and energy of the one power sensor whose name is chosen; None where there are several."""
    power: list[tuple[str, dict[str, Any]]] = []
    energy: list[str] = []
    for path, sensor in sensors(walker, chassis):
        kind = values.sensor_scale(sensor)
        if kind is None or not chosen(name_of(sensor)):
            continue
        if kind[0] == "power":
            power.append((path, sensor))
        elif kind[0] == "energy":
            energy.append(path)
    if len(power) != 1:
        return None
    both = _from_both(walker, power[0][0], energy[0], "Sensors") if len(energy) == 1 else None
    return both or _from_sensor(*power[0], "Sensors")


def is_total(name: str) -> bool:
    """Return whether a sensor's name is that of a whole node's power, and of nothing else."""
    words = values.words_of(name)
    return bool(words & values.POWERS and words & values.WHOLES) and words <= values.POWERS | values.WHOLES


def is_whole(sensor: dict[str, Any]) -> bool:
    """Return whether a sensor certainly measures its whole chassis: by its context and by its name."""
    name, side = str(sensor.get("Name") or ""), sensor.get("PhysicalSubContext")
    if not is_in_service(sensor) or side == "Output" or sensor.get("ElectricalContext") not in (None, "", "Total"):
        return False
    if sensor.get("PhysicalContext") == "Chassis":
        return is_total(name)
    return side == "Input" and name.strip().lower() in ("node", "server", "system")  # HPE Cray EX: "Node"


def is_of_part(walker: Walker, metrics: dict[str, Any] | None) -> bool:
    """Return whether EnvironmentMetrics takes its power from a sensor of a part: one supply of several, a CPU."""
    sensor = _sensor(walker, _source(metrics, "PowerWatts")) if metrics is not None else None
    if sensor is None:
        return False
    names = [str(sensor.get(key) or "") for key in ("Id", "Name")]
    named = any(map(values.PART.search, names)) and not any("total" in name.lower() for name in names)
    return named or bool(_PART_CONTEXT.search(str(sensor.get("PhysicalContext") or ""))) or not is_in_service(sensor)


def candidates(walker: Walker, chassis: dict[str, Any], *, is_named: bool) -> list[Candidate]:
    """Return every power that a chassis shows; of a part that nobody named only what Power shows."""
    if is_part(chassis) and not is_named:
        return _controls(walker, chassis)
    return totals(walker, chassis) + power_sensors(walker, chassis)


def totals(walker: Walker, chassis: dict[str, Any]) -> list[Candidate]:
    """Return the powers that Power and EnvironmentMetrics of a chassis show."""
    found = _controls(walker, chassis)
    metrics, path = walker.follow(chassis, "EnvironmentMetrics"), link(chassis, "EnvironmentMetrics")
    reading = environment(walker, metrics, path)
    if reading is not None:
        watts = values.value(metrics, Field("", ("PowerWatts", "Reading")))
        found.append(Candidate(name_of(chassis), "EnvironmentMetrics", "", watts, reading))
    return found


def power_sensors(walker: Walker, chassis: dict[str, Any]) -> list[Candidate]:
    """Return the power sensors of a chassis that have a reading, each with the one counter of the same name."""
    rows = sensors(walker, chassis)
    inline = _inline(walker.follow(chassis, "Sensors"))
    found = []
    for path, sensor in rows:
        within = link(chassis, "Sensors") if path in inline else None
        reading = _from_sensor(path, sensor, "Sensors", within)
        if reading is None:
            continue
        counters = [p for p, other in rows if _is_counter(other) and other.get("Name") == sensor.get("Name")]
        if len(counters) == 1 and within is None:
            reading = _from_both(walker, path, counters[0], "Sensors") or reading
        also = [str(sensor.get("Name") or "")] if sensor.get("Name") != name_of(sensor) else []
        also += [] if is_in_service(sensor) else [str(sensor["Status"]["State"])]
        watts = float(sensor["Reading"]) * reading.power.scale
        made = Candidate(name_of(chassis), name_of(sensor), ", ".join(also), watts, reading, is_whole(sensor))
        found.append(made)
    return found


def _controls(walker: Walker, chassis: dict[str, Any]) -> list[Candidate]:
    """Return the members of PowerControl, and the totals of makers beside it."""
    here, power, path = name_of(chassis), walker.follow(chassis, "Power"), link(chassis, "Power")
    if power is None or path is None:
        return []
    listed = power.get("PowerControl")
    rows = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
    found = []
    for member in rows:
        steps: tuple[Step, ...] = ("PowerControl", values.member_step(rows, member), "PowerConsumedWatts")
        field = Field(path, steps, zero=False, limits=_WATTS)
        if values.has(power, field):
            reading = _stepped(Reading(f"Power, {field.name.partition('#')[2]}", field), power)
            name = str(member.get("Name") or member.get("MemberId") or "PowerControl")
            also = "PowerControl" if is_in_service(member) else f"PowerControl, {member['Status']['State']}"
            found.append(Candidate(here, name, also, values.value(power, field), reading))
    for steps in values.TOTALS:
        field = Field(path, steps, zero=False, limits=_WATTS)
        if values.has(power, field):
            reading = _stepped(Reading(f"Power, {field.name.partition('#')[2]}", field), power)
            found.append(Candidate(here, steps[-1], "Power", values.value(power, field), reading))
    return found


def is_of_system(power: dict[str, Any] | None, systems: Iterable[str]) -> bool:
    """Return whether a Power resource says by its one PowerControl that it measures a computer system."""
    listed = power.get("PowerControl") if power is not None else None
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
        return False
    related = {path.rstrip("/") for path in links(listed[0], "RelatedItem")} & {path.rstrip("/") for path in systems}
    return len(related) == 1 and bool(values.words_of(str(listed[0].get("Name"))) & values.WHOLES)


def sensors(walker: Walker, chassis: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return all sensors of a chassis with their addresses, by one answer where the service offers that."""
    path = link(chassis, "Sensors")
    collection = walker.follow(chassis, "Sensors")
    if path is None or collection is None:
        return []
    paths = walker.members(collection)
    found = _inline(collection)
    whole = walker.expanded(path, len(paths)) if not found else None
    if whole is not None:
        try:
            found = _inline(walker.get(whole))
        except (Unavailable, ReadFailed):
            found = {}  # promised in the root and not kept: ask one by one
    return [(p, s) for p in paths if (s := found.get(p) or _sensor(walker, p)) is not None]


def _inline(collection: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Return the members that a collection holds whole, not only by their address."""
    rows = collection.get("Members") if collection is not None else None
    return {p: row for row in rows if (p := link(row)) and "Reading" in row} if isinstance(rows, list) else {}


def supplies(walker: Walker, chassis: dict[str, Any]) -> list[Supply]:
    """Return the power supplies that are there, from PowerSubsystem or else from Power."""
    subsystem = walker.follow(chassis, "PowerSubsystem")
    rows = [psu for _, psu in walker.each(walker.follow(subsystem, "PowerSupplies")) if is_present(psu)]
    found = []
    for number, psu in enumerate(rows, 1):
        path, metrics = link(psu, "Metrics"), walker.follow(psu, "Metrics")
        if path is not None and metrics is not None:
            found.append(_new_supply(walker, number, psu, path, metrics))
        else:
            found.append(Supply(number, name_of(psu), None, None))
    if any(psu.ac or psu.dc for psu in found):
        return found
    power, where = walker.follow(chassis, "Power"), link(chassis, "Power")
    old = _old_supplies(power, where) if power is not None and where is not None else []
    return old if any(psu.ac or psu.dc for psu in old) or not found else found


def _new_supply(walker: Walker, number: int, psu: dict[str, Any], path: str, metrics: dict[str, Any]) -> Supply:
    def field(key: str, scale: float = 1.0) -> Field | None:
        wanted = Field(path, (key, "Reading"), scale, limits=_WATTS if key.endswith("Watts") else (0.0, float("inf")))
        return wanted if values.has(metrics, wanted) else None

    def reading(key: str) -> Reading | None:
        power = field(key)
        if power is None or is_rating(metrics.get(key), psu.get("PowerCapacityWatts")):
            return None
        sensor = _sensor(walker, _source(metrics, key)) or {}
        energy = field("EnergykWh", 3.6e6) if key == "InputPowerWatts" else None
        made = Reading(f"PowerSupplyMetrics, {key}", power, energy)
        gain = values.percent(sensor.get("Accuracy"))
        return replace(_stepped(made, metrics), update_s=_update_s(sensor), gain=gain)

    ac = reading("InputPowerWatts")
    if ac is not None:
        ac = replace(ac, voltage=field("InputVoltage"), current=field("InputCurrentAmps"))
    return Supply(number, name_of(psu), ac, reading("OutputPowerWatts"))


def _old_supplies(power: dict[str, Any], path: str) -> list[Supply]:
    listed = power.get("PowerSupplies")
    rows = [m for m in listed if isinstance(m, dict)] if isinstance(listed, list) else []
    found = []
    for number, psu in enumerate((m for m in rows if is_present(m)), 1):
        here: tuple[Step, ...] = ("PowerSupplies", values.member_step(rows, psu))
        oem: tuple[Step, ...] = (*here, "Oem", "Huawei")

        def reading(*places: tuple[Step, ...], psu: dict[str, Any] = psu) -> Reading | None:
            for steps in places:
                field = Field(path, steps, limits=_WATTS)
                if values.has(power, field) and not is_rating(
                    {"Reading": values.value(power, field)}, psu.get("PowerCapacityWatts")
                ):
                    return Reading(f"Power, {'/'.join(map(str, steps[2:]))}", field)
            return None

        ac = reading((*here, "PowerInputWatts"), (*oem, "PowerInputWatts"))
        dc = reading((*here, "PowerOutputWatts"), (*here, "LastPowerOutputWatts"), (*oem, "PowerOutputWatts"))
        volts = Field(path, (*here, "LineInputVoltage"))
        if ac is not None and values.has(power, volts):
            ac = replace(ac, voltage=volts)
        found.append(Supply(number, name_of(psu), ac, dc))
    return found


def is_rating(excerpt: Any, capacity: Any) -> bool:
    """Return whether an input power is more than a supply of this capacity can take: then it is a name plate."""
    watts = excerpt.get("Reading") if isinstance(excerpt, dict) else None
    if any(isinstance(n, bool) or not isinstance(n, int | float) for n in (watts, capacity)):
        return False
    return bool(0 < capacity < watts / 1.15)  # type: ignore[operator]


def name_of(resource: dict[str, Any]) -> str:
    """Return what a resource calls itself."""
    return str(resource.get("Id") or resource.get("Name") or resource.get("MemberId") or "")


def _from_sensor(path: str, sensor: dict[str, Any], source: str, within: str | None = None) -> Reading | None:
    """Return what a sensor measures; `within` is the collection, where its answer holds the sensor whole."""
    kind = values.sensor_scale(sensor)
    before: tuple[Step, ...] = () if within is None else ("Members", ("@odata.id", path))
    field = Field(within or path, (*before, "Reading"), kind[1] if kind else 1.0, zero=False, limits=_WATTS)
    here = replace(field, steps=("Reading",))
    if kind is None or kind[0] != "power" or not values.has(sensor, here):
        return None
    time = Field(field.path, (*before, "ReadingTime")) if _is_timed(sensor) else None
    gain = values.percent(sensor.get("Accuracy"))
    made = _stepped(Reading(source, here, time=time, update_s=_update_s(sensor), gain=gain), sensor)
    return replace(made, power=field)


def _is_counter(sensor: dict[str, Any]) -> bool:
    kind = values.sensor_scale(sensor)
    return kind is not None and kind[0] == "energy"


def _from_both(walker: Walker, power: str, energy: str | None, source: str) -> Reading | None:
    """Return power and energy of two sensors of one collection, by one answer; None where that does not work."""
    above = power.rsplit("/", 1)[0]
    if energy is None or energy.rsplit("/", 1)[0] != above:
        return None
    try:
        whole = walker.expanded(above, len(walker.members(walker.get(above))))
        doc = walker.get(whole) if whole is not None else {}
        first, second = (values.at(doc, ("Members", ("@odata.id", path))) for path in (power, energy))
    except (Unavailable, ReadFailed):
        return None
    kinds = values.sensor_scale(first), values.sensor_scale(second)
    if whole is None or kinds[0] is None or kinds[1] is None or (kinds[0][0], kinds[1][0]) != ("power", "energy"):
        return None
    watts = Field(whole, ("Members", ("@odata.id", power), "Reading"), kinds[0][1], zero=False, limits=_WATTS)
    joules = Field(whole, ("Members", ("@odata.id", energy), "Reading"), kinds[1][1])
    if not (values.has(doc, watts) and values.has(doc, joules)):
        return None
    time = Field(whole, ("Members", ("@odata.id", power), "ReadingTime")) if _is_timed(first) else None
    gain = values.percent(first.get("Accuracy"))
    return _stepped(Reading(source, watts, joules, time=time, update_s=_update_s(first), gain=gain), doc)


def _stepped(reading: Reading, doc: Any) -> Reading:
    """Return a reading with the steps of its numbers as their digits show them."""
    watts = values.step_of(values.at(doc, reading.power.steps), reading.power.scale)
    made = replace(reading, quantum_w=min(watts, reading.power.scale))
    if reading.energy is None:
        return made
    return replace(made, quantum_j=values.step_of(values.at(doc, reading.energy.steps), reading.energy.scale))


def _source(metrics: dict[str, Any], key: str) -> str | None:
    excerpt = metrics.get(key)
    path = excerpt.get("DataSourceUri") if isinstance(excerpt, dict) else None
    return path if isinstance(path, str) and path.startswith("/") and "#" not in path else None


def _sensor(walker: Walker, path: str | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        return walker.get(path)
    except Unavailable:
        return None


def _update_s(sensor: dict[str, Any]) -> float:
    return values.duration_s(sensor.get("SensingInterval")) or UPDATE_S


def _is_timed(sensor: dict[str, Any]) -> bool:
    moment = values.reading_time_ns(sensor.get("ReadingTime"))
    return moment is not None and -0.5 <= (read_utc_ns() - moment) / NS <= OLDEST_S
