"""Take numbers out of Redfish resources: pure functions over JSON, which raise rather than guess."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from joulelab.core.errors import ReadFailed, Unavailable
from joulelab.instruments.redfish.walk import is_in_service

# A step into a resource: a key, a place in a list, or (key, value) for the one member of a list that has it.
Step = str | int | tuple[str, str]

HIGHEST_W = 1e6  # no chassis draws a megawatt: what is above is no reading
ENERGY_J = {"J": 1.0, "kW.h": 3.6e6, "kWh": 3.6e6, "W.h": 3600.0, "Wh": 3600.0}
POWER_W = {"W": 1.0, "kW": 1000.0, "mW": 1e-3}
ENERGY_TYPES = {"EnergyJoules": 1.0, "EnergykWh": 3.6e6, "EnergyWh": 3600.0}
# Steps that a counter in whole joules may have; the largest that fits is the safe guess.
_STEPS_J = (3.6e6, 3.6e5, 3.6e4, 3600.0, 1000.0, 100.0, 10.0, 1.0)
# Totals of makers that leave PowerControl empty (Fujitsu; Inspur and Huawei), and iLO 4's beside it.
TOTALS: tuple[tuple[str, ...], ...] = (
    ("PowerConsumedWatts",),
    ("Oem", "ts_fujitsu", "ChassisPowerConsumption", "CurrentPowerConsumptionW"),
    ("Oem", "Public", "TotalPower"),
)
PART = re.compile(
    r"cpu|processor|memory|dimm|dram|gpu|accelerator|fan|storage|disk|pcie|sub-?system|psu|suppl", re.IGNORECASE
)
# The words of a name of a whole node's power. With any other word (drive, line, limit, rated) it may be a part.
POWERS = {"power", "pwr", "consumption", "consumed", "usage", "draw", "reading", "sensor", "control", "monitor"}
POWERS |= {"for", "of", "the", "in", "watts"}
WHOLES = {"server", "system", "sys", "chassis", "total", "node", "enclosure", "input"}
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


def at(doc: Any, steps: tuple[Step, ...]) -> Any:
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


def value(doc: Any, field: Field) -> float:
    """Return a field's number in SI. Raises ReadFailed for null, text, 0 of the unmetered, and what cannot be."""
    found = at(doc, field.steps)
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


def has(doc: Any, field: Field) -> bool:
    """Return whether a field has a reading."""
    try:
        value(doc, field)
    except ReadFailed:
        return False
    return True


def control(power: Any) -> tuple[Step, ...]:
    """Return the steps to the whole server's power in a Power resource; parts are never summed. Raises Unavailable.

    A member that is out of service shows no power, and of several that may be the whole none is taken.
    """
    members = power.get("PowerControl") if isinstance(power, dict) else None
    rows = [m for m in members if isinstance(m, dict)] if isinstance(members, list) else []
    whole = [m for m in rows if words_of(_text(m.get("Name"))) <= POWERS | WHOLES]
    if len(whole) > 1:  # nameless ones beside each other may be anything
        whole = [m for m in whole if words_of(_text(m.get("Name"))) & WHOLES]
    off = [m for m in whole if not is_in_service(m)]
    shown: list[tuple[Step, ...]] = [
        steps
        for member in whole
        if member not in off
        and has(power, _watts(steps := ("PowerControl", member_step(rows, member), "PowerConsumedWatts")))
    ]
    if not shown and not off:
        shown += [steps for steps in TOTALS if has(power, _watts(steps))][:1]
    if len(shown) == 1 and len(whole) - len(off) <= 1:  # beside an empty one it may be one node of two
        return shown[0]
    names = ", ".join(_text(m.get("Name")) or "without a name" for m in rows) or "none"
    zero = any(m.get("PowerConsumedWatts") == 0 for m in whole)
    why = "it answers 0 W: this model has no power meter" if zero else f"PowerControl members: {names}"
    if off:
        why = f"PowerControl {_text(off[0].get('Name'))!r} is {off[0]['Status']['State']}"
    raise Unavailable("Power has no power of the whole server", why=why, next="use a PDU, or IPMI")


def words_of(name: str) -> set[str]:
    """Return the words of a name in small letters, also of one in camel case; a number above 0 is a word too."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[1-9]\d*", name)
    return {part.lower() for part in parts}


def _watts(steps: tuple[Step, ...]) -> Field:
    return Field("Power", steps, zero=False, limits=(0.0, HIGHEST_W))


def member_step(rows: list[Any], member: dict[str, Any]) -> Step:
    """Return the step that finds a member again whatever its place: by name, address or number."""
    for key in ("Name", "@odata.id", "MemberId"):
        name = member.get(key)
        if isinstance(name, str) and name and sum(_has(m, (key, name)) for m in rows) == 1:
            return (key, name)
    return next(place for place, row in enumerate(rows) if row is member)


def sensor_scale(sensor: Any) -> tuple[str, float] | None:
    """Return what a Sensor resource measures (power, energy, temperature, fan) and its scale to SI, None for others."""
    if not isinstance(sensor, dict):
        return None
    kind, unit = _text(sensor.get("ReadingType")), _text(sensor.get("ReadingUnits"))
    if kind == "Power" and (unit or "W") in POWER_W:
        return "power", POWER_W[unit or "W"]
    if kind in ENERGY_TYPES:
        return ("energy", ENERGY_J[unit]) if unit in ENERGY_J else ("energy", ENERGY_TYPES[kind])
    if kind == "Temperature" and unit in ("Cel", "C", ""):
        return "temperature", 1.0
    if kind == "Rotational" and unit in ("RPM", "{rev}/min", "rev/min"):
        return "fan", 1.0
    return None


def reading_time_ns(text: Any, *, coarse: bool = False) -> int | None:
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


def duration_s(text: Any) -> float | None:
    """Return an ISO 8601 duration (PT1S) in s, None where it is none or 0."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) and len(text) < 40 else None
    if match is None:
        return None
    days, hours, minutes, rest = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest or None


def step_of(number: Any, scale: float) -> float:
    """Return the step that a reading seems to have in SI, from its digits: rather too large than too small."""
    digits = repr(float(number))
    decimals = len(digits.partition(".")[2]) if "e" not in digits and not digits.endswith(".0") else 0
    if decimals:
        return float(scale * 10.0**-decimals)
    if scale != 1.0:
        return scale
    return next(step for step in _STEPS_J if float(number) % step == 0)


def percent(number: Any) -> float | None:
    """Return a sensor's Accuracy (percent) as a fraction, None where it states none that can be."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= 50:
        return None
    return number / 100


def _has(member: Any, step: tuple[str, str]) -> bool:
    return isinstance(member, dict) and member.get(step[0]) == step[1]


def _text(found: Any) -> str:
    return found if isinstance(found, str) else ""


def _gone(what: str) -> ReadFailed:
    return ReadFailed("the BMC's answer lacks what it had", why=what)
