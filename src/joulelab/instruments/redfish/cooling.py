"""Find inlet temperature and fans of a Redfish chassis: by one answer if the service has one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.instruments.redfish import kinds, values
from joulelab.instruments.redfish.values import Field
from joulelab.instruments.redfish.walk import find_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.redfish.walk import Resource, Walker

# Channel, unit, and place.
Channel = tuple[str, str, Field]
FANS = 16  # each may cost a request of its own
_INLET = re.compile(r"inlet|intake|ambient|front", re.IGNORECASE)
_CELSIUS = (-50.0, 150.0)
_MOST_STEPS = 255  # of a duty cycle: a larger number is a speed


def find_cooling(walker: Walker, chassis: Resource) -> list[Channel]:
    """Return inlet temperature and fan speeds; empty if the chassis has none."""
    return (
        _read_thermal(walker, walker.follow_link(chassis, "Thermal"))
        or _read_environment(walker, walker.follow_link(chassis, "EnvironmentMetrics"))
        or _read_subsystem(walker, walker.follow_link(chassis, "ThermalSubsystem"))
    )


def _read_thermal(walker: Walker, thermal: Resource | None) -> list[Channel]:
    if thermal is None:
        return []
    rows = values.list_rows(thermal.body, "Temperatures")
    inlets = [row for row in rows if _is_inlet(row, rows)][:1]  # never another one in its place
    found = [
        channel
        for row in inlets
        for channel in _list_inlet(
            walker, thermal, "Temperatures", values.find_member_step(rows, row), "ReadingCelsius"
        )
    ]
    fans = values.list_rows(thermal.body, "Fans")
    for number, row in enumerate(fans, 1):
        unit = row.get("ReadingUnits") or row.get("Units")
        if kinds.is_present(row) and unit in ("Percent", "RPM"):  # others, and none, may be anything
            field = thermal.locate_number("Fans", values.find_member_step(fans, row), "Reading")
            found += _list_fan(walker, number, field, is_share=unit == "Percent")
    return found


def _read_environment(walker: Walker, metrics: Resource | None) -> list[Channel]:
    if metrics is None:
        return []
    found: list[Channel] = []
    for place, row in enumerate(values.list_rows(metrics.body, "FanSpeedsPercent")):
        key, is_share = _find_speed(walker, row)
        found += _list_fan(walker, place + 1, metrics.locate_number("FanSpeedsPercent", place, key), is_share=is_share)
    sensor = walker.open_path(find_source(metrics.body.get("TemperatureCelsius")))
    is_air = sensor is None or not kinds.doubt_source(sensor)
    if found and is_air:  # alone it may be any sensor of the chassis
        found = _list_inlet(walker, metrics, "TemperatureCelsius", "Reading") + found
    return found


def _read_subsystem(walker: Walker, subsystem: Resource | None) -> list[Channel]:
    metrics = walker.follow_link(subsystem, "ThermalMetrics")
    found = _list_inlet(walker, metrics, "TemperatureSummaryCelsius", "Intake", "Reading")
    for number, fan in enumerate(walker.list_members(walker.follow_link(subsystem, "Fans"))[:FANS], 1):
        if kinds.is_present(fan.body):
            key, is_share = _find_speed(walker, fan.body.get("SpeedPercent"))
            found += _list_fan(walker, number, fan.locate_number("SpeedPercent", key), is_share=is_share)
    return found


def _list_inlet(walker: Walker, resource: Resource | None, *steps: values.Step) -> list[Channel]:
    if resource is None:
        return []
    field = replace(resource.locate_number(*steps), limits=_CELSIUS)
    return [("temperature_c", "degC", field)] if walker.has_reading(field) else []


def _find_speed(walker: Walker, excerpt: Any) -> tuple[str, bool]:
    """Return the key of a fan's speed ("" if its unit is not known), and whether it is a share of the full speed.

    Some services show a duty cycle in percent as SpeedRPM; the unit of the sensor behind it decides.
    """
    row = excerpt if isinstance(excerpt, dict) else {}
    turns = values.convert_number(row.get("SpeedRPM"))
    if turns is None or row.get("SpeedRPM") == row.get("Reading"):
        return "Reading", True
    if turns > _MOST_STEPS or "Reading" in row:
        return "SpeedRPM", False
    sensor = walker.open_path(find_source(row))
    unit = sensor.body.get("ReadingUnits") if sensor is not None else None
    return "SpeedRPM" if unit in ("%", "RPM", "{rev}/min") else "", unit == "%"


def _list_fan(walker: Walker, number: int, field: Field, *, is_share: bool) -> list[Channel]:
    """Return the channel of a fan; its number is its place, so that a fan without a reading moves no other."""
    if number > FANS or not walker.has_reading(field):
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
