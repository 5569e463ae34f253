"""Find inlet temperature and fans of a Redfish chassis: by one answer where the service has one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.instruments.redfish import kinds, values
from joulelab.instruments.redfish.walk import find_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.redfish.values import Field
    from joulelab.instruments.redfish.walk import Resource, Walker

# Channel, unit, and where it stands.
Channel = tuple[str, str, "Field"]
FANS = 16  # each may cost a request of its own
_INLET = re.compile(r"inlet|intake|ambient|front", re.IGNORECASE)
_CELSIUS = (-50.0, 150.0)
_MOST_STEPS = 255  # of a duty cycle: a larger number is a speed


def find_cooling(walker: Walker, chassis: Resource) -> list[Channel]:
    """Return inlet temperature and fan speeds; empty where the chassis has none."""
    return (
        _read_thermal(walker, walker.follow(chassis, "Thermal"))
        or _read_environment(walker, walker.follow(chassis, "EnvironmentMetrics"))
        or _read_subsystem(walker, walker.follow(chassis, "ThermalSubsystem"))
    )


def _read_thermal(walker: Walker, thermal: Resource | None) -> list[Channel]:
    if thermal is None:
        return []
    found: list[Channel] = []
    rows = values.list_rows(thermal.body, "Temperatures")
    for row in rows:
        where = _locate_celsius(thermal, "Temperatures", values.find_member_step(rows, row), "ReadingCelsius")
        if _is_inlet(row, rows):
            found += [("temperature_c", "degC", where)] if walker.is_read(where) else []
            break  # never another one in its place
    fans = values.list_rows(thermal.body, "Fans")
    for number, row in enumerate(fans, 1):
        unit = row.get("ReadingUnits") or row.get("Units")
        if kinds.is_present(row) and unit in ("Percent", "RPM"):  # others, and none, may be anything
            field = thermal.locate("Fans", values.find_member_step(fans, row), "Reading")
            found += _list_fan(walker, number, field, is_share=unit == "Percent")
    return found


def _read_environment(walker: Walker, metrics: Resource | None) -> list[Channel]:
    if metrics is None:
        return []
    found: list[Channel] = []
    for place, row in enumerate(values.list_rows(metrics.body, "FanSpeedsPercent")):
        key, is_share = _find_speed(walker, row)
        found += _list_fan(walker, place + 1, metrics.locate("FanSpeedsPercent", place, key), is_share=is_share)
    inlet = _locate_celsius(metrics, "TemperatureCelsius", "Reading")
    sensor = walker.open(find_source(metrics.body.get("TemperatureCelsius")))
    is_air = sensor is None or not kinds.doubt_source(sensor)
    if found and is_air and walker.is_read(inlet):  # alone it may be any sensor of the chassis
        found.insert(0, ("temperature_c", "degC", inlet))
    return found


def _read_subsystem(walker: Walker, subsystem: Resource | None) -> list[Channel]:
    found: list[Channel] = []
    metrics = walker.follow(subsystem, "ThermalMetrics")
    if metrics is not None:
        inlet = _locate_celsius(metrics, "TemperatureSummaryCelsius", "Intake", "Reading")
        found += [("temperature_c", "degC", inlet)] if walker.is_read(inlet) else []
    for number, fan in enumerate(walker.list_members(walker.follow(subsystem, "Fans"))[:FANS], 1):
        if kinds.is_present(fan.body):
            key, is_share = _find_speed(walker, fan.body.get("SpeedPercent"))
            found += _list_fan(walker, number, fan.locate("SpeedPercent", key), is_share=is_share)
    return found


def _locate_celsius(resource: Resource, *steps: values.Step) -> Field:
    return values.Field(resource.ask, (*resource.steps, *steps), limits=_CELSIUS)


def _find_speed(walker: Walker, excerpt: Any) -> tuple[str, bool]:
    """Return the key of a fan's speed ("" where its unit is not known), and whether it is a share of the full speed.

    Some services show a duty cycle in percent as SpeedRPM; the unit of the sensor behind it tells.
    """
    row = excerpt if isinstance(excerpt, dict) else {}
    turns = row.get("SpeedRPM")
    if isinstance(turns, bool) or not isinstance(turns, int | float) or turns == row.get("Reading"):
        return "Reading", True
    if turns > _MOST_STEPS or "Reading" in row:
        return "SpeedRPM", False
    sensor = walker.open(find_source(row))
    unit = sensor.body.get("ReadingUnits") if sensor is not None else None
    return "SpeedRPM" if unit in ("%", "RPM", "{rev}/min") else "", unit == "%"


def _list_fan(walker: Walker, number: int, field: Field, *, is_share: bool) -> list[Channel]:
    """Return the channel of a fan; its number is its place, so that a fan without a reading moves no other."""
    if number > FANS or not walker.is_read(field):
        return []
    if is_share:
        return [(f"fan{number}_speed", "1", replace(field, scale=0.01))]
    return [(f"fan{number}_speed_rpm", "rpm", field)]


def _is_inlet(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether a temperature is that of the air that comes in; some makers call every sensor an intake."""
    name, context = str(row.get("Name") or ""), str(row.get("PhysicalContext") or "")
    if not kinds.is_present(row) or kinds.names_part(name) or kinds.names_part(context):
        return False
    alone = sum(other.get("PhysicalContext") == "Intake" for other in rows) == 1
    return bool(_INLET.search(name)) or (context == "Intake" and alone)
