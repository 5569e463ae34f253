"""Load the tables of makers, which describe what a device shows where: one TOML file each in `pdus`, checked when read.

The README of this package explains the format.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib import resources
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Mapping

# Quantity and unit of every channel that a table may have, and the largest number that can be one: above it the device
# has another scale than the table, and the number is not shown.
QUANTITIES = {
    "power_w": ("power", "W"),
    "energy_j": ("energy", "J"),
    "current_a": ("current", "A"),
    "voltage_v": ("voltage", "V"),
    "apparent_va": ("apparent power", "VA"),
    "power_factor": ("power factor", "1"),
    "frequency_hz": ("frequency", "Hz"),
    "temperature_c": ("temperature", "degC"),
    "load": ("load", "1"),
    "charge": ("charge", "1"),
    "status": ("status", "1"),
    "on_battery_s": ("time on battery", "s"),
    "remaining_s": ("battery time left", "s"),
}
MOST = {"power_w": 1e7, "current_a": 1e4, "voltage_v": 1e3, "apparent_va": 1e7, "power_factor": 1.001}
MOST |= {"frequency_hz": 100.0, "load": 3.0, "charge": 1.1}
MOST_OUTLET = {"power_w": 1e5, "apparent_va": 1e5}  # the largest, of 125 A in three phases, feeds 90 kVA
# Full counts of 32 bits stand for "not known" on many devices; no power, current or voltage is so large. So do those
# of 16 bits, except in an energy counter, which may pass them.
FULL = frozenset({2147483647, 4294967295, -2147483648})
FULL_SHORT = frozenset({32767, 65535})
VITAL = ("power_w", "energy_j")
# Levels whose rows are fed, and those that are state beside it, with the table of a run that holds them.
PIECES = ("unit", "outlet")
STATES = {"phase": "phases", "bank": "banks", "input": "input", "battery": "battery"}
# Units that a device may state: the unit of the channel, and what one is worth in it.
DEVICE_UNITS = {"V": ("V", 1.0), "A": ("A", 1.0), "W": ("W", 1.0), "VA": ("VA", 1.0), "Hz": ("Hz", 1.0)}
DEVICE_UNITS |= {"Wh": ("J", 3600.0), "kWh": ("J", 3.6e6), "kW": ("W", 1e3), "mA": ("A", 1e-3), "mV": ("V", 1e-3)}
TRIED = {
    "recordings": "tried on recordings only",
    "simulated": "tried on the simulated node only",
    "nothing": "tried on nothing: written from its MIB",
}
_OID = re.compile(r"(\{id\}|\d+)(\.\d+)+")
_OID_KEYS = frozenset({"oid", "sysobjectid", "model", "serial", "names", "whole", "valid", "labels", "values"})
_OID_KEYS |= {"read_digits", "read_factor", "read_units", "read_accuracy"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """Describe one channel: its column, the suffix behind a row's index, what a count is worth (None: read_*).

    Numbers in SI below `least` or above `most` are not shown. `label` is the text by which the device lists it, `unit`
    the unit of its MIB where the device states digits and no unit.
    """

    name: str
    oid: str
    suffix: str = ""
    scale: float | None = None
    modulus: float | None = None
    least: float = 0.0
    most: float = inf
    label: str = ""
    unit: str = ""

    def is_known(self, value: object, scale: float, sentinels: frozenset[int]) -> bool:
        """Return whether a count is a number of this channel: not a text, not "unknown", not beyond its limits."""
        return is_number(self.name, value, scale, self.least, self.most, sentinels)


def is_number(name: str, value: object, scale: float, least: float, most: float, sentinels: frozenset[int]) -> bool:
    """Return whether a count is known and within limits (SI). -1 is "not known" wherever a sign has no meaning."""
    if not isinstance(value, int) or value in sentinels or (value == -1 and least > -inf):
        return False
    if value in FULL_SHORT and name != "energy_j":
        return False
    return least <= value * scale <= most


@dataclass(frozen=True, slots=True)
class Level:
    """Describe the rows of one kind (units, phases, outlets): where they are listed, named, and their columns.

    `whole` is a column that shows 0 for rows that contain the others. `noun` names a row that is a part of one device
    (a line of a UPS). `valid` is a column that shows 0 for rows that are absent. `unavailable` are columns beside that
    of the values, and what they show while a value is no reading. `adds` is False where no source states that the rows
    add up. `is_line` is True where a row is one line of several, never three phases. `number` is where in its index a
    row has its own number. `labels` is a column of texts that name the rows of `values`. The columns `read_*` state
    what counts are worth.
    """

    name: str
    columns: tuple[Column, ...]
    rows: Column | None = None
    names: tuple[str, ...] = ()
    whole: str = ""
    noun: str = ""
    valid: str = ""
    unavailable: Mapping[str, int] = field(default_factory=dict)
    adds: bool = True
    is_line: bool = False
    number: str = "last"
    labels: str = ""
    read_digits: str = ""
    read_factor: str = ""
    read_units: str = ""
    read_accuracy: str = ""

    @property
    def word(self) -> str:
        """Return the word for a row."""
        return self.noun or self.name


@dataclass(frozen=True, slots=True)
class Table:
    """Describe a maker's device.

    `others` are further levels that show the whole, read where the ones before know no power. `passed` are the sources
    that an asked device has and that know no power, in words. `update_s` is how often values change, as the maker
    states it.
    """

    vendor: str
    title: str
    sysobjectid: tuple[str, ...]
    accuracy: Mapping[str, Any]
    levels: Mapping[str, Level]
    tried: str = "nothing"
    model: str = ""
    serial: str = ""
    update_s: float | None = None
    resettable: bool = False
    zero_is_unmetered: bool = False
    zero_is_uncounted: bool = False
    sentinels: frozenset[int] = FULL
    units: Mapping[str, str] = field(default_factory=dict)
    others: tuple[Level, ...] = ()
    passed: tuple[str, ...] = ()
    template: str = ""

    def list_options(self) -> list[Table]:
        """Return this table with each of the levels that show the whole, the best first."""
        return [self, *(replace(self, levels={**self.levels, "unit": level}) for level in self.others)]

    def resolve_model(self, object_id: str) -> Table:
        """Return the table of the model that has this sysObjectID, where makers give each model a tree of its own."""
        if not self.template or not object_id:
            return self
        return parse_table(self.vendor, self.template.replace("{id}", object_id))


@lru_cache(maxsize=1)
def load_tables() -> dict[str, Table]:
    """Return every table by the name of its file."""
    folder = resources.files("joulelab.instruments.snmp") / "pdus"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda entry: entry.name)
    return {entry.name[:-5]: parse_table(entry.name[:-5], entry.read_text("utf-8")) for entry in found}


def find_maker(vendor: str) -> Table:
    """Return a table by name. Raises ConfigError with the nearest name."""
    known = load_tables()
    if vendor not in known:
        advice = suggest_name(vendor, list(known))
        raise ConfigError(f"vendor is {vendor!r}", where="meter snmp", next=advice, code="config.vendor")
    return known[vendor]


@lru_cache(maxsize=256)
def parse_table(vendor: str, text: str) -> Table:
    """Read a table. Raises ConfigError for what does not fit."""
    data = tomllib.loads(text)
    levels = {key: data.pop(key) for key in (*PIECES, *STATES) if key in data}
    is_stated = set(data.get("accuracy", ())) == {"gain", "reference"}
    if "unit" not in levels or not is_stated or data.get("tried", "nothing") not in TRIED:
        what = "it lacks [unit] or accuracy = { gain, reference }, or has another word for tried"
        raise _refuse_table(vendor, what, f"tried: {', '.join(TRIED)}")
    units = levels.pop("unit")
    first, *others = (_parse_level(vendor, "unit", unit) for unit in (units if isinstance(units, list) else [units]))
    data |= {
        "sysobjectid": tuple(data.get("sysobjectid", ())),
        "sentinels": FULL | frozenset(data.get("sentinels", ())),
    }
    parsed = {"unit": first} | {key: _parse_level(vendor, key, value) for key, value in levels.items()}
    template = text if "{id}" in text else ""
    return _make_record(Table, vendor, data, vendor=vendor, levels=parsed, others=tuple(others), template=template)


def _parse_level(vendor: str, name: str, data: Mapping[str, Any]) -> Level:
    where = f"{vendor}: {name}"
    most = MOST | (MOST_OUTLET if name == "outlet" else {})
    columns = [
        _make_record(Column, where, {"oid": data.get("values"), "most": most.get(key, inf)} | value, name=key)
        for key, value in data.items()
        if key in QUANTITIES
    ]
    others = {key: value for key, value in data.items() if key not in QUANTITIES and key != "values"}
    if "rows" in others:
        others["rows"] = _make_record(Column, where, others["rows"], name="rows")
    level = _make_record(
        Level, where, others | {"names": tuple(others.get("names", ()))}, name=name, columns=tuple(columns)
    )
    if any(column.scale is None for column in columns) and not (level.read_digits or level.read_factor):
        raise _refuse_table(where, "a channel has no scale, and the device states none", "give scale")
    if level.number not in ("first", "last"):
        raise _refuse_table(where, f"number is {level.number!r}", "valid: first, last")
    return level


def _make_record(kind: type[T], where: str, data: Mapping[str, Any], **given: Any) -> T:
    """Return a record of the keys of a file. Raises ConfigError for keys that it has not, and for wrong names."""
    known = [one.name for one in fields(kind) if one.name not in given]  # type: ignore[arg-type]
    if kind is Level:
        known += QUANTITIES
    for key, value in data.items():
        if key not in known:
            raise _refuse_table(where, f"unknown key {key!r}", suggest_name(key, known))
        for oid in (value if isinstance(value, list | tuple) else [value]) if key in _OID_KEYS else ():
            if not isinstance(oid, str) or not _OID.fullmatch(oid):
                raise _refuse_table(where, f"{oid!r} is no object identifier", "write it as numbers: 1.3.6.1")
    try:
        return kind(**data, **given)
    except TypeError as error:
        raise _refuse_table(where, str(error), "see the README of joulelab.instruments.snmp") from None


def _refuse_table(where: str, what: str, advice: str) -> ConfigError:
    return ConfigError(what, where=where, next=advice, code="config.table")
