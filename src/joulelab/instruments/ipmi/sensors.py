"""Choose among a BMC's sensors: power supplies, the whole node, inlet temperature, fans."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from joulelab.core.errors import Unavailable
from joulelab.core.text import suggest_name
from joulelab.instruments.ipmi.answers import CELSIUS, RPM, WATT
from joulelab.instruments.names import names_node_power

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.ipmi.answers import SensorRecord

# Entities of IPMI (table 43-13) and DCMI: power supply, the board or chassis as a whole, air inlet, fan.
SUPPLY, WHOLE, INLET, FAN = (10,), (7, 19, 21, 23), (55, 64), (29, 30)
BMC_ADDRESS = 0x20
FAN_TYPE = 0x04
_OUTPUT = re.compile(r"(?<![a-z])(p?out(put)?|dc)(?![a-z])|power[ _]*out", re.IGNORECASE)
_INPUT = re.compile(r"(?<![a-z])(p?in(put)?|ac)(?![a-z])|power[ _]*in(?![a-z])", re.IGNORECASE)
# The words of a supply's present power. With any other (max, limit, rated, fan) it is something else.
_SUPPLY = re.compile(
    r"(?:(?:psu|ps|power|pwr|pw|supply|p?in|input|p?out|output|ac|dc|watts?|consum(?:ption?|pt|ed)?|draw|usage|reading"
    r"|sensor|[a-f](?![a-z]))[\W\d_]*)+",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?:psu?|supply)[\W_]*(\d+)", re.IGNORECASE)
_INLET = re.compile(r"inlet|ambient|intake|air[ _]*in\b|front[ _]*(panel)?[ _]*temp", re.IGNORECASE)


def is_readable(sensor: SensorRecord) -> bool:
    """Return whether the BMC itself answers for a sensor, and its count becomes a value."""
    return sensor.analog and sensor.owner == BMC_ADDRESS and sensor.lun == 0 and sensor.m != 0


def list_powers(sensors: Sequence[SensorRecord]) -> list[SensorRecord]:
    """Return the sensors in W."""
    return [s for s in sensors if s.unit == WATT and not s.percent]


def choose_supplies(sensors: Sequence[SensorRecord], pattern: str | None, *, output: bool) -> list[SensorRecord]:
    """Return one power sensor per power supply, in their order: the named ones, or those of the supplies' entities.

    The supplies are summed, so the list is empty if one of them cannot be read, or has no or several such sensors. A
    supply counts by any sensor that it has, in W or not.
    """
    powers = list_powers(sensors)
    if pattern is None:
        every = [s for s in sensors if s.entity in SUPPLY and not s.redundancy]
    else:
        every = [s for s in powers if is_match(s.name, (pattern,))]
    plain = [s for s in every if s in powers and _SUPPLY.fullmatch(s.name)]
    ins = [s for s in plain if _INPUT.search(s.name)]
    outs = [s for s in plain if _OUTPUT.search(s.name) and s not in ins]
    found = outs if output else ins or [s for s in plain if s not in outs]
    if pattern is not None:
        found = found or [s for s in every if s not in (ins if output else outs)]
    numbers = _number_supplies(every)
    is_each_once = sorted(numbers[s] for s in found) == sorted(set(numbers.values()))
    found.sort(key=lambda s: (s.instance, s.number))
    return found if is_each_once and all(map(is_readable, found)) else []


def _number_supplies(sensors: Sequence[SensorRecord]) -> dict[SensorRecord, int]:
    """Return the supply of each sensor: the number in its name (`PS2 Fan`), its instance if not each has one."""
    named = [_NUMBER.search(s.name) for s in sensors]
    if all(named):
        return {s: int(match[1]) for s, match in zip(sensors, named, strict=True) if match}
    return {s: s.instance for s in sensors}


def choose_whole_node(sensors: Sequence[SensorRecord]) -> SensorRecord | None:
    """Return the sensor of the power of the whole node, None if not exactly one is."""
    found = [s for s in list_powers(sensors) if s.entity in WHOLE and names_node_power(s.name)]
    return found[0] if len(found) == 1 and is_readable(found[0]) else None


def choose_temperatures(sensors: Sequence[SensorRecord], patterns: Sequence[str] | None) -> list[SensorRecord]:
    """Return the temperature sensors that fit the patterns, the inlet's without patterns."""
    found = [s for s in sensors if is_readable(s) and s.unit == CELSIUS and not s.percent]
    if patterns is not None:
        return [s for s in found if is_match(s.name, patterns)]
    return [s for s in found if s.entity in INLET] or [s for s in found if _INLET.search(s.name)]


def choose_fans(sensors: Sequence[SensorRecord], patterns: Sequence[str] | None) -> list[SensorRecord]:
    """Return the fans that fit the patterns, all without patterns: in rpm, or in percent if no fan has rpm."""
    readable = [s for s in sensors if is_readable(s)]
    turning = [s for s in readable if s.unit == RPM and not s.percent]
    shares = [s for s in readable if s.percent and (s.type == FAN_TYPE or s.entity in FAN)]
    return turning or shares if patterns is None else [s for s in [*turning, *shares] if is_match(s.name, patterns)]


def find_power_sensor(sensors: Sequence[SensorRecord], name: str, where: str) -> SensorRecord:
    """Return the power sensor of a name. Raises Unavailable with the names that there are."""
    watts = [s for s in list_powers(sensors) if is_readable(s)]
    alike = [s for s in watts if s.name.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    why = "the BMC has several of this name" if alike else "the BMC has no sensor of this name that it answers for"
    if not alike and any(s.name.lower() == name.lower() for s in sensors):
        why = "it is not a power in W, or another controller answers for it"
    advice = suggest_name(name, [s.name for s in watts]) if watts else "the BMC has no power sensors: leave it out"
    raise Unavailable(
        f"sensor {name!r} cannot be read", where=where, why=why, next=advice, code="unavailable.no-sensor"
    )


def is_match(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name fits one of the patterns (`PSU* Input Power`), whatever its case."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def is_fan(sensor: SensorRecord) -> bool:
    """Return whether a sensor of cooling is a fan, in rpm or percent, and not a temperature."""
    return sensor.percent or sensor.unit == RPM
