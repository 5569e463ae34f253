"""Turn recordings that people have into captures: a walk (`snmpwalk -On`, .snmprec), a folder of a Redfish mockup."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

# The parts of a device that a capture has: others (ARP, users of SNMP) hold addresses and names in their OIDs.
SUBTREES = ("1.3.6.1.2.1.1", "1.3.6.1.2.1.33", "1.3.6.1.4.1")
_WALKED = re.compile(r"\.?(1(?:\.\d+)+) = (?:([\w-]+): ?)?(.*)")
_RECORDED = re.compile(r"(1(?:\.\d+)+)\|(\d+)(x?)\|(.*)")
# Types of a .snmprec, and of snmpwalk.
_NUMBERS = ("2", "65", "66", "67", "70", "INTEGER", "Gauge32", "Counter32", "Counter64", "Unsigned32", "Timeticks")
_TYPES = dict.fromkeys(_NUMBERS, "number") | {"5": "null", "6": "oid", "OID": "oid", "Hex-STRING": "hex"}


def read_recording(path: Path) -> tuple[str, dict[str, str]]:
    """Return family and exchanges of a recording. Raises ConfigError."""
    try:
        if path.is_dir():
            family, exchanges = "redfish", {}
            for file in sorted(path.rglob("index.json")):
                place = file.parent.relative_to(path).as_posix().strip(".")
                place = place if place.startswith("redfish") else f"redfish/v1/{place}".rstrip("/")
                exchanges[f"/{place}"] = json.dumps(json.loads(file.read_text("utf-8")), separators=(",", ":"))
        else:
            family, exchanges = "snmp", parse_walk(path.read_text("utf-8", "replace"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error), code="config.no-recording") from None
    if not exchanges:
        advice = (
            "give the output of snmpwalk -m '' -On -v2c -c COMMUNITY HOST .1.3.6.1, or the folder of a Redfish mockup"
        )
        raise ConfigError(f"{path} is not a recording", next=advice, code="config.no-recording")
    return family, exchanges


def parse_walk(text: str) -> dict[str, str]:
    """Return the objects of a walk as a capture has them; lines that are none are left out. Raises ConfigError."""
    objects: dict[str, str] = {}
    for line_number, line in enumerate(text.splitlines(), 1):
        if match := _RECORDED.fullmatch(line):
            oid, kind, is_hex, value = match.groups()
            objects[oid] = _write_value("hex" if is_hex else _TYPES.get(kind, "text"), value)
        elif (match := _WALKED.fullmatch(line)) and not match[3].startswith("No "):
            oid, kind, value = match[1], _TYPES.get(match[2], "text"), match[3].strip().strip('"')
            if kind == "number":  # 230, up(1), (1234) 0:00:12.34
                number = re.fullmatch(r"(-?\d+)|[\w-]*\((-?\d+)\).*", value)
                if number is None:
                    what, why = f"line {line_number} has {value!r}", "a MIB has rescaled it, or added its unit"
                    advice = "walk again without MIBs: snmpwalk -m '' -On ..."
                    raise ConfigError(what, why=why, next=advice, code="config.no-recording")
                value = number[1] or number[2]
            objects[oid] = _write_value(kind, value)
    return {oid: value for oid, value in objects.items() if f"{oid}.".startswith(tuple(f"{s}." for s in SUBTREES))}


def _write_value(kind: str, value: str) -> str:
    bare = {"oid": value.lstrip("."), "hex": value.replace(" ", "").lower()}.get(kind, value)
    fits = {"number": r"-?\d+", "oid": r"\d+(\.\d+)*", "hex": r"([0-9a-f]{2})*"}.get(kind, "")
    if kind == "null":
        return kind
    return f"{kind} {bare}" if fits and re.fullmatch(fits, bare) else f"text {value}".strip()
