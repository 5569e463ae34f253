"""Take numbers out of Redfish answers: pure functions over JSON, which raise rather than guess."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from joulelab.core.errors import ReadFailed

# A step into a resource: a key, a place in a list, or (key, value) for the one member of a list that has it.
Step = str | int | tuple[str, str]

HIGHEST_W = 1e6  # no rack draws a megawatt: what is above is no reading
WATTS = (0.0, HIGHEST_W)
ENERGY_J = {"J": 1.0, "kJ": 1e3, "kW.h": 3.6e6, "kWh": 3.6e6, "W.h": 3600.0, "Wh": 3600.0}
POWER_W = {"W": 1.0, "kW": 1000.0, "mW": 1e-3}
ENERGY_TYPES = {"EnergyJoules": "J", "EnergykWh": "kW.h", "EnergyWh": "W.h"}
OUT_OF_SERVICE = ("Disabled", "Absent", "UnavailableOffline")  # what still stands there may be an old number
# Steps that a counter in whole joules may have; the largest that fits is the safe guess.
_STEPS_J = (3.6e6, 3.6e5, 3.6e4, 3600.0, 1000.0, 100.0, 10.0, 1.0)
_DURATION = re.compile(
    r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII
)  # weeks and years are no sensing interval


@dataclass(frozen=True, slots=True)
class Field:
    """Say where a number is: what to ask for, the steps into it, its scale to SI, and whether 0 can be a reading."""

    path: str
    steps: tuple[Step, ...]
    scale: float = 1.0
    zero: bool = True
    limits: tuple[float, float] = (0.0, math.inf)

    @property
    def name(self) -> str:
        """Return the place in words, for messages and for the stream."""
        words = [step[1] if isinstance(step, tuple) else str(step) for step in self.steps]
        if words[0] == "Members":  # a member that was asked for with its collection
            return f"{words[1]}#{'/'.join(words[2:])}"
        return f"{self.path.split('?')[0]}#{'/'.join(words)}"


def find_item(doc: Any, steps: tuple[Step, ...]) -> Any:
    """Return what is at the end of the steps. Raises ReadFailed where there is nothing."""
    current = doc
    for step in steps:
        if isinstance(step, tuple):
            found = [m for m in current if _has(m, step)] if isinstance(current, list) else []
            if len(found) != 1:
                raise _gone(step[1])
            current = found[0]
        elif isinstance(step, int):
            if not isinstance(current, list) or not 0 <= step < len(current):
                raise _gone(str(step))
            current = current[step]
        else:
            if not isinstance(current, dict) or step not in current:
                raise _gone(step)
            current = current[step]
    return current


def read_value(doc: Any, field: Field) -> float:
    """Return a field's number in SI. Raises ReadFailed if it is null, text, out of range, or out of service."""
    number = read_number(doc, field)
    state = read_state(find_item(doc, field.steps[:-1]))
    if state in OUT_OF_SERVICE:
        raise ReadFailed(f"the BMC shows this reading as {state}", why=field.name)
    return number


def read_number(doc: Any, field: Field) -> float:
    """Return a field's number in SI, also if it is out of service. Raises ReadFailed."""
    found = find_item(doc, field.steps)
    if found is None:
        raise ReadFailed("the BMC has no reading now", why=f"{field.name} is null")
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ReadFailed("the BMC's reading is no number", why=field.name)
    try:
        number = float(found) * field.scale
    except OverflowError:
        number = math.inf
    low, high = field.limits
    if not low <= number <= high or not math.isfinite(number):
        raise ReadFailed("the BMC's reading cannot be", why=f"{field.name} is {number:g}")
    if number == 0 and not field.zero:
        raise ReadFailed("the BMC answers 0, which is not a reading", why=field.name)
    return number


def has_value(doc: Any, field: Field) -> bool:
    """Return whether a field has a reading."""
    try:
        read_value(doc, field)
    except ReadFailed:
        return False
    return True


def read_state(resource: Any) -> str:
    """Return the State of a resource, "" if it states none (Dell)."""
    status = resource.get("Status") if isinstance(resource, dict) else None
    state = status.get("State") if isinstance(status, dict) else None
    return state if isinstance(state, str) else ""


def read_text(resource: Any, key: str) -> str:
    """Return a text of a resource, "" if there is none."""
    found = resource.get(key) if isinstance(resource, dict) else None
    return found if isinstance(found, str) else ""


def list_rows(resource: Any, key: str) -> list[dict[str, Any]]:
    """Return the objects in a list of a resource; empty if there is none."""
    rows = resource.get(key) if isinstance(resource, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def find_member_step(rows: list[Any], member: dict[str, Any]) -> Step:
    """Return the step that finds a member again whatever its place: by name, number or address."""
    for key in ("Name", "MemberId", "@odata.id"):
        name = member.get(key)
        if isinstance(name, str) and name and sum(_has(m, (key, name)) for m in rows) == 1:
            return (key, name)
    return next(place for place, row in enumerate(rows) if row is member)


def find_scale(sensor: Any) -> tuple[str, float] | None:
    """Return the quantity of a Sensor (power, energy) and its scale to SI; None for others and for unknown units."""
    kind, unit = read_text(sensor, "ReadingType"), read_text(sensor, "ReadingUnits")
    if not unit and isinstance(sensor, dict) and sensor.get("ReadingUnits") not in (None, ""):
        return None  # a unit that is no text
    if kind == "Power" or (not kind and unit in POWER_W):
        return ("power", POWER_W[unit or "W"]) if (unit or "W") in POWER_W else None
    if kind in ENERGY_TYPES:
        unit = unit or ENERGY_TYPES[kind]
        return ("energy", ENERGY_J[unit]) if unit in ENERGY_J else None
    return None


def parse_reading_time_ns(text: Any, *, coarse: bool = False) -> int | None:
    """Return a ReadingTime in UTC ns; None without a zone, or (unless `coarse`) without fractions of a second."""
    if not isinstance(text, str) or not (coarse or "." in text):
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            return None
        return int((moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)) * 1000
    except (ValueError, OverflowError):
        return None


def parse_duration_s(text: Any) -> float | None:
    """Return an ISO 8601 duration (PT1S) in s, None where it is none or 0."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) and len(text) < 40 else None
    if match is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest or None


def guess_step(number: Any, scale: float) -> float:
    """Return the step that a reading seems to have in SI, from its digits: rather too large than too small."""
    digits = repr(float(number))
    decimals = len(digits.partition(".")[2]) if "e" not in digits and not digits.endswith(".0") else 0
    if decimals:
        return float(scale * 10.0**-decimals)
    if scale != 1.0:
        return scale
    return next((step for step in _STEPS_J if float(number) % step == 0), 1.0)


def parse_percent(number: Any) -> float | None:
    """Return a sensor's Accuracy (percent) as a fraction, None where it states none that can be."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 50:
        return None
    return number / 100


def parse_capacity_w(number: Any) -> float | None:
    """Return the capacity of a supply in W, which some makers write as text; None where it states none."""
    try:
        capacity = float(number) if isinstance(number, int | float | str) and not isinstance(number, bool) else 0.0
    except (ValueError, OverflowError):
        return None
    return capacity if 0 < capacity < HIGHEST_W else None


def _has(member: Any, step: tuple[str, str]) -> bool:
    return isinstance(member, dict) and member.get(step[0]) == step[1]


def _gone(what: str) -> ReadFailed:
    return ReadFailed("the BMC's answer lacks what it had", why=what)
