"""Take numbers out of Redfish answers: pure functions over JSON, which raise rather than guess."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from joulelab.core.errors import ReadFailed

# A step into a resource: a key, a place in a list, or (key, value) for the one member of a list that has it.
Step = str | int | tuple[str, str]

HIGHEST_W = 1e6  # no rack draws a megawatt: a larger number is no reading
WATTS = (0.0, HIGHEST_W)
NODE_W = (10.0, 6e4)  # of one node: less is kW, a part or standby; 65535 is no reading
ENERGY_J = {"J": 1.0, "kJ": 1e3, "kW.h": 3.6e6, "kWh": 3.6e6, "W.h": 3600.0, "Wh": 3600.0}
POWER_W = {"W": 1.0, "kW": 1000.0, "mW": 1e-3}
ENERGY_TYPES = {"EnergyJoules": "J", "EnergykWh": "kW.h", "EnergyWh": "W.h"}
OUT_OF_SERVICE = ("Disabled", "Absent", "UnavailableOffline")  # such a resource may repeat an old number
# Steps that a counter in whole joules may have; the largest that fits is the safe guess.
_STEPS_J = (3.6e6, 3.6e5, 3.6e4, 3600.0, 1000.0, 100.0, 10.0, 1.0)
# Weeks and years are no sensing interval.
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Field:
    """Locate a number: the address to ask for, the steps into it, its scale to SI, and whether 0 can be a reading."""

    path: str
    steps: tuple[Step, ...]
    scale: float = 1.0
    zero: bool = True
    limits: tuple[float, float] = (0.0, math.inf)

    @property
    def place_name(self) -> str:
        """Return the place in words, for messages and for the stream."""
        words = [step[1] if isinstance(step, tuple) else str(step) for step in self.steps]
        if words[0] == "Members":  # a member that its collection holds whole
            return f"{words[1]}#{'/'.join(words[2:])}"
        return f"{self.path}#{'/'.join(words)}"


def find_item(doc: Any, steps: tuple[Step, ...]) -> Any:
    """Return the item at the end of the steps. Raises ReadFailed if there is none."""
    current = doc
    for step in steps:
        if isinstance(step, tuple):
            found = [row for row in current if _matches_step(row, step)] if isinstance(current, list) else []
            is_there, item = len(found) == 1, found[0] if found else None
        elif isinstance(step, int):
            is_there = isinstance(current, list) and 0 <= step < len(current)
            item = current[step] if is_there else None
        else:
            is_there = isinstance(current, dict) and step in current
            item = current[step] if is_there else None
        if not is_there:
            name = step[1] if isinstance(step, tuple) else str(step)
            raise ReadFailed("the BMC's answer lacks a part that it had", why=name, code="read-failed.gone")
        current = item
    return current


def read_value(doc: Any, field: Field) -> float:
    """Return a field's number in SI. Raises ReadFailed if it is null, text, out of range, or out of service."""
    number = read_number(doc, field)
    state = read_state(find_item(doc, field.steps[:-1]))
    if state in OUT_OF_SERVICE:
        what = f"the BMC shows this reading as {state}"
        raise ReadFailed(what, why=field.place_name, code="read-failed.out-of-service")
    return number


def read_number(doc: Any, field: Field) -> float:
    """Return a field's number in SI, also if it is out of service. Raises ReadFailed."""
    found, place = find_item(doc, field.steps), field.place_name
    if found is None:
        raise ReadFailed("the BMC has no reading now", why=f"{place} is null", code="read-failed.no-reading")
    number = convert_number(found)
    if number is None:
        raise ReadFailed("the BMC's reading is not a number", why=place, code="read-failed.no-number")
    if number == 0 and not field.zero:
        raise ReadFailed("the BMC answers 0, which is not a reading", why=place, code="read-failed.zero")
    low, high = field.limits
    number *= field.scale
    if not low <= number <= high or math.isinf(number):
        why = f"{place} is {number:g}"
        raise ReadFailed("the BMC's reading is out of range", why=why, code="read-failed.out-of-range")
    return number


def has_value(doc: Any, field: Field) -> bool:
    """Return whether a field has a reading."""
    try:
        read_value(doc, field)
    except ReadFailed:
        return False
    return True


def convert_number(found: Any) -> float | None:
    """Return a JSON number (infinite if it is too large), None for anything else, a truth value included."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        return float(found)
    except OverflowError:
        return math.inf


def read_state(resource: Any) -> str:
    """Return the State of a resource, "" if it states none (Dell)."""
    return read_text(resource.get("Status") if isinstance(resource, dict) else None, "State")


def read_text(resource: Any, key: str) -> str:
    """Return a text of a resource, "" if there is none."""
    found = resource.get(key) if isinstance(resource, dict) else None
    return found if isinstance(found, str) else ""


def list_rows(resource: Any, key: str) -> list[dict[str, Any]]:
    """Return the objects in a list of a resource; empty if there is none."""
    rows = resource.get(key) if isinstance(resource, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def find_member_step(rows: list[Any], member: dict[str, Any]) -> Step:
    """Return the step that finds a member again at any place: by name, number or address."""
    for key in ("Name", "MemberId", "@odata.id"):
        name = member.get(key)
        if isinstance(name, str) and name and sum(_matches_step(row, (key, name)) for row in rows) == 1:
            return (key, name)
    return next(place for place, row in enumerate(rows) if row is member)


def _matches_step(member: Any, step: tuple[str, str]) -> bool:
    return isinstance(member, dict) and member.get(step[0]) == step[1]


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


def parse_duration_s(text: Any) -> float | None:
    """Return an ISO 8601 duration (PT1S) in s, None for others and for 0."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) and len(text) < 40 else None
    if match is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest or None


def parse_percent(found: Any) -> float | None:
    """Return a sensor's Accuracy (percent) as a fraction, None if it states none between 0 and 50 %."""
    number = convert_number(found)
    return number / 100 if number is not None and 0 < number <= 50 else None


def parse_capacity_w(found: Any) -> float | None:
    """Return the capacity of a supply in W, which some makers write as text; None if it states none."""
    try:
        number = float(found) if isinstance(found, str) else convert_number(found)
    except ValueError:
        return None
    return number if number is not None and 0 < number < HIGHEST_W else None


def guess_step(number: Any, scale: float) -> float:
    """Return the step of a reading in SI, from its digits: rather too large than too small."""
    digits = repr(float(number))
    decimals = len(digits.partition(".")[2]) if "e" not in digits and not digits.endswith(".0") else 0
    if decimals:
        return float(scale * 10.0**-decimals)
    return scale if scale != 1.0 else next((step for step in _STEPS_J if float(number) % step == 0), 1.0)
