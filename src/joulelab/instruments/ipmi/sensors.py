"""Choose among a BMC's sensors: power supplies, the whole node, inlet temperature, fans."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from joulelab.core.errors import Unavailable
from joulelab.core.text import suggest_name
from joulelab.instruments.ipmi.parse import CELSIUS, FAHRENHEIT, KELVIN, RPM, WATT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.ipmi.parse import Sensor

# Entities of IPMI (table 43-13) and DCMI: power supply, the board or chassis as a whole, air inlet, fan.
SUPPLY, WHOLE, INLET, FAN = (10,), (7, 19, 21, 23), (55, 64), (29, 30)
BMC_ADDRESS = 0x20
FAN_TYPE = 0x04
_OUTPUT = re.compile(r"(?<![a-z])(p?out(put)?|dc)(?![a-z])|power[ _]*out", re.IGNORECASE)
_INPUT = re.compile(r"(?<![a-z])(p?in(put)?|ac)(?![a-z])|power[ _]*in(?![a-z])", re.IGNORECASE)
_NODE = re.compile(r"(sys|system|total|node|chassis|server)\w*[ _]*(input)?[ _]*(power|pwr|watt)|(power|pwr)[ _]*consum"
                   r"|power[ _]*meter", re.IGNORECASE)  # fmt: skip
_INLET = re.compile(r"inlet|ambient|intake|air[ _]*in\b|front[ _]*(panel)?[ _]*temp", re.IGNORECASE)


def readable(sensors: Sequence[Sensor]) -> list[Sensor]:
    """Return the sensors that the BMC itself answers for and that have a value."""
    return [s for s in sensors if s.analog and s.owner == BMC_ADDRESS and s.lun == 0 and s.name and s.m]


def supplies(sensors: Sequence[Sensor], pattern: str | None, *, output: bool) -> list[Sensor]:
    """Return one power sensor per power supply, in their order: those named, or those of the supplies' own entities."""
    watts = [s for s in sensors if s.unit == WATT and not s.percent]
    if pattern is not None:
        found = [s for s in watts if matches(s.name, (pattern,))]
    else:
        own = [s for s in watts if s.entity in SUPPLY]
        outs = [s for s in own if _OUTPUT.search(s.name) and not _INPUT.search(s.name)]
        ins = [s for s in own if s not in outs]
        named = [s for s in ins if _INPUT.search(s.name)]
        found = outs if output else named or ins
        if len({s.instance for s in found}) != len(found):  # several per supply: which is which is not known
            found = []
    return sorted(found, key=lambda s: (s.instance, s.number))


def whole_node(sensors: Sequence[Sensor]) -> Sensor | None:
    """Return the sensor that shows the power of the whole node, None where no single one does."""
    found = [s for s in sensors if s.unit == WATT and not s.percent and s.entity in WHOLE and _NODE.search(s.name)]
    return found[0] if len(found) == 1 else None


def temperatures(sensors: Sequence[Sensor], patterns: Sequence[str] | None) -> list[Sensor]:
    """Return the temperature sensors that are named, the inlet's where none are."""
    found = [s for s in sensors if s.unit in (CELSIUS, FAHRENHEIT, KELVIN) and not s.percent]
    if patterns is not None:
        return [s for s in found if matches(s.name, patterns)]
    return [s for s in found if s.entity in INLET] or [s for s in found if _INLET.search(s.name)]


def fans(sensors: Sequence[Sensor], patterns: Sequence[str] | None) -> list[Sensor]:
    """Return the fans that are named, all where none are; in rpm, or in percent where a fan has no rpm."""
    turning = [s for s in sensors if s.unit == RPM and not s.percent]
    shares = [s for s in sensors if s.percent and (s.type == FAN_TYPE or s.entity in FAN)]
    found = turning or shares
    return found if patterns is None else [s for s in [*turning, *shares] if matches(s.name, patterns)]


def named(sensors: Sequence[Sensor], name: str, where: str) -> Sensor:
    """Return the power sensor of a name; raise Unavailable with the names that there are."""
    watts = [s for s in sensors if s.unit == WATT and not s.percent]
    for sensor in watts:
        if sensor.name.lower() == name.lower():
            return sensor
    other = any(s.name.lower() == name.lower() for s in sensors)
    why = "it is not a power in W" if other else "the BMC has no sensor of this name that it answers for"
    advice = suggest_name(name, [s.name for s in watts]) if watts else "the BMC has no power sensors: leave it out"
    raise Unavailable(f"sensor {name!r} cannot be read", where=where, why=why, next=advice)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Tell whether a name fits one of the patterns (`PSU* Input Power`), whatever its case."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)
