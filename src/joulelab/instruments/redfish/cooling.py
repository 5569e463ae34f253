"""Find inlet temperature and fans of a Redfish chassis: by one answer where the service has one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from joulelab.instruments.redfish import values
from joulelab.instruments.redfish.values import Field, Step
from joulelab.instruments.redfish.walk import Walker, is_present, link

if TYPE_CHECKING:
    from collections.abc import Sequence

# Channel, unit, and where it stands.
Channel = tuple[str, str, Field]
FANS = 16  # each may cost a request of its own
_INLET = re.compile(r"inlet|intake|ambient|front", re.IGNORECASE)
_CELSIUS = (-50.0, 150.0)
_MOST_STEPS = 255  # of a duty cycle: a larger number is a speed


def cooling(walker: Walker, chassis: dict[str, Any]) -> list[Channel]:
    """Return inlet temperature and fan speeds; empty where the chassis has none."""
    return (
        _thermal(walker.follow(chassis, "Thermal"), link(chassis, "Thermal"))
        or _environment(walker, walker.follow(chassis, "EnvironmentMetrics"), link(chassis, "EnvironmentMetrics"))
        or _subsystem(walker, walker.follow(chassis, "ThermalSubsystem"))
    )


def _thermal(doc: dict[str, Any] | None, path: str | None) -> list[Channel]:
    if doc is None or path is None:
        return []
    found: list[Channel] = []
    rows = _rows(doc.get("Temperatures"))
    for row in rows:
        where = Field(path, ("Temperatures", values.member_step(rows, row), "ReadingCelsius"), limits=_CELSIUS)
        if _is_inlet(row, rows) and values.has(doc, where):
            found.append(("temperature_c", "degC", where))
            break
    fans = _rows(doc.get("Fans"))
    for row in (fan for fan in fans if is_present(fan)):
        steps: tuple[Step, ...] = ("Fans", values.member_step(fans, row), "Reading")
        unit = row.get("ReadingUnits") or row.get("Units")
        if unit in ("Percent", "RPM"):  # others, and none, may be anything
            is_share = unit == "Percent"
            _add_fan(found, doc, Field(path, steps, 0.01 if is_share else 1.0), is_share=is_share)
    return found


def _environment(walker: Walker, doc: dict[str, Any] | None, path: str | None) -> list[Channel]:
    if doc is None or path is None:
        return []
    found: list[Channel] = []
    inlet = Field(path, ("TemperatureCelsius", "Reading"), limits=_CELSIUS)
    fans = _rows(doc.get("FanSpeedsPercent"))
    for place, row in enumerate(fans):
        key, is_share = _fan_speed(walker, row)
        _add_fan(
            found, doc, Field(path, ("FanSpeedsPercent", place, key), 0.01 if is_share else 1.0), is_share=is_share
        )
    if found and values.has(doc, inlet):  # alone it may be any sensor of the chassis
        found.insert(0, ("temperature_c", "degC", inlet))
    return found


def _subsystem(walker: Walker, doc: dict[str, Any] | None) -> list[Channel]:
    found: list[Channel] = []
    metrics, path = walker.follow(doc, "ThermalMetrics"), link(doc, "ThermalMetrics")
    inlet = Field(path or "", ("TemperatureSummaryCelsius", "Intake", "Reading"), limits=_CELSIUS)
    if metrics is not None and values.has(metrics, inlet):
        found.append(("temperature_c", "degC", inlet))
    for where, fan in walker.each(walker.follow(doc, "Fans"))[:FANS]:
        if is_present(fan):
            key, is_share = _fan_speed(walker, fan.get("SpeedPercent"))
            _add_fan(found, fan, Field(where, ("SpeedPercent", key), 0.01 if is_share else 1.0), is_share=is_share)
    return found


def _fan_speed(walker: Walker, excerpt: Any) -> tuple[str, bool]:
    """Return the key of a fan's speed ("" where its unit is not known), and whether it is a share of the full speed.

    Some services show a duty cycle in percent as SpeedRPM; the sensor behind it tells.
    """
    row = excerpt if isinstance(excerpt, dict) else {}
    turns = row.get("SpeedRPM")
    if isinstance(turns, bool) or not isinstance(turns, int | float) or turns == row.get("Reading"):
        return "Reading", True
    if turns > _MOST_STEPS or "Reading" in row:
        return "SpeedRPM", False
    sensor = walker.follow({"source": {"@odata.id": row.get("DataSourceUri")}}, "source") or {}
    unit = sensor.get("ReadingUnits")
    return "SpeedRPM" if unit in ("%", "RPM", "{rev}/min") else "", unit == "%"


def _add_fan(found: list[Channel], doc: dict[str, Any], field: Field, *, is_share: bool) -> None:
    number = sum(name.startswith("fan") for name, _, _ in found) + 1
    if number <= FANS and values.has(doc, field):
        found.append((f"fan{number}_speed", "1", field) if is_share else (f"fan{number}_speed_rpm", "rpm", field))


def _rows(listed: Any) -> list[dict[str, Any]]:
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


def _is_inlet(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether a temperature is that of the air that comes in; some makers call every sensor an intake."""
    name, context = str(row.get("Name") or ""), str(row.get("PhysicalContext") or "")
    if not is_present(row) or values.PART.search(name) or values.PART.search(context):
        return False
    alone = sum(other.get("PhysicalContext") == "Intake" for other in rows) == 1
    return bool(_INLET.search(name)) or (context == "Intake" and alone)
