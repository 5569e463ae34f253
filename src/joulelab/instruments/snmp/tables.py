"""Load what each maker's PDU shows where: one TOML file per maker in `pdus`, checked when it is read.

The README of this package explains the format.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from math import inf
from typing import TYPE_CHECKING, Any

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
# Full counts of 32 bits stand for "not known" on many devices; no power, current or voltage is so large.
FULL = frozenset({2147483647, 4294967295, -2147483648})
VITAL = ("power_w", "energy_j")
# Levels whose rows are what is fed, and those that are state beside it, with the table that holds them.
PIECES = ("unit", "outlet")
STATES = {"phase": "phases", "bank": "banks", "input": "input", "battery": "battery"}
# What one count of a unit that the device tells is worth, and of which channel it can be the unit.
DEVICE_UNITS = {"V": ("V", 1.0), "A": ("A", 1.0), "W": ("W", 1.0), "VA": ("VA", 1.0), "Hz": ("Hz", 1.0)}
DEVICE_UNITS |= {"Wh": ("J", 3600.0), "kWh": ("J", 3.6e6), "kW": ("W", 1e3), "mA": ("A", 1e-3), "mV": ("V", 1e-3)}
TRIED = {
    "recordings": "tried on recordings only",
    "simulated": "tried on the simulated node only",
    "nothing": "tried on nothing: written from its MIB",
}
_NAME = re.compile(r"(\{id\}|\d+)(\.\d+)+")
_READ = ("read_units", "read_digits", "read_factor", "read_accuracy", "read_time")
_TOP = (
    *("title", "tried", "sysobjectid", "model", "serial", "resettable"),
    *("zero_is_unmetered", "zero_is_uncounted", "sentinels", "accuracy", "units"),
)
_LEVEL = (*_READ, "rows", "names", "whole", "noun", "valid", "adds", "number", "labels", "values")
_COLUMN = ("oid", "suffix", "scale", "modulus", "signed", "least", "most", "label", "unit")


@dataclass(frozen=True, slots=True)
class Column:
    """Describe one channel: its column, what follows a row's number, what a count is worth (None: the device tells).

    Numbers in SI below `least` or above `most` are not shown. `label` is the text by which the device lists it, `unit`
    the unit of its MIB where the device tells digits and no unit.
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

    def at(self, row: str, oid: str = "") -> str:
        """Return the full name for a row, in this column or in one beside it."""
        return ".".join(filter(None, (oid or self.oid, row, self.suffix)))

    def is_known(self, value: object, scale: float, sentinels: frozenset[int]) -> bool:
        """Return whether a count is a number of this channel: not a text, not "unknown", not beyond its limits."""
        return is_number(value, scale, self.least, self.most, sentinels)


def is_number(value: object, scale: float, least: float, most: float, sentinels: frozenset[int]) -> bool:
    """Return whether a count is known and within limits (SI). -1 is "not known" wherever a sign has no meaning."""
    if not isinstance(value, int) or value in sentinels or (value == -1 and least > -inf):
        return False
    return least <= value * scale <= most


@dataclass(frozen=True, slots=True)
class Level:
    """Describe the rows of one kind (units, phases, outlets): where they are listed, named, and what they show.

    `whole` is a column that shows 0 for rows that are the whole, where others are parts of them. `noun` is what a row
    is, where it is a part of one device (a line of a UPS) and not a device of its own. `valid` is a column that shows 0
    for rows that are not there. `adds` is False where nobody says that the rows add up. `number` says where in its
    index a row has its own number. `labels` is a column of texts that say what the rows of `values` are.
    """

    name: str
    rows: Column | None
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    read: Mapping[str, str]
    whole: str = ""
    noun: str = ""
    valid: str = ""
    adds: bool = True
    number: str = "last"
    labels: str = ""

    @property
    def word(self) -> str:
        """Return what a row is called."""
        return self.noun or self.name


@dataclass(frozen=True, slots=True)
class Table:
    """Describe a maker's device.

    `others` are further levels that show the whole, read where the ones before know no power. `passed` are the sources
    that the device has and that know no power, in words, once it was asked.
    """

    vendor: str
    title: str
    tried: str
    prefixes: tuple[str, ...]
    model: str
    serial: str
    resettable: bool
    zero_is_unmetered: bool
    zero_is_uncounted: bool
    sentinels: frozenset[int]
    gain: float
    reference: str
    units: Mapping[str, str]
    levels: Mapping[str, Level]
    others: tuple[Level, ...] = ()
    passed: tuple[str, ...] = ()
    template: str = ""

    def list_options(self) -> list[Table]:
        """Return this table with each of the levels that show the whole, the best first."""
        return [self, *(replace(self, levels={**self.levels, "unit": level}) for level in self.others)]

    def resolve(self, object_id: str) -> Table:
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
        raise ConfigError(f"vendor is {vendor!r}", where="meter snmp", next=suggest_name(vendor, list(known)))
    return known[vendor]


def list_makers() -> str:
    """Return the list of makers in the README: what of a device is read, and what it was tried on."""
    lines = ["| `vendor` | device | reads | |", "|---|---|---|---|"]
    for name, one in sorted(load_tables().items()):
        levels = (one.levels["unit"], *one.others, *(level for key, level in one.levels.items() if key != "unit"))
        read = ", ".join(dict.fromkeys(f"{level.word}s" for level in levels))
        lines.append(f"| `{name}` | {one.title} | {read.replace('batterys', 'battery')} | {TRIED[one.tried]} |")
    return "\n".join(lines)


@lru_cache(maxsize=256)
def parse_table(vendor: str, text: str) -> Table:
    """Read a table. Raises ConfigError for what does not fit."""
    data = tomllib.loads(text)
    levels = {key: value for key, value in data.items() if key not in _TOP}
    wrong = [key for key in levels if key not in (*PIECES, *STATES)]
    if wrong or "unit" not in levels:
        raise ConfigError(f"wrong levels {wrong or 'none'}", where=vendor, next=f"valid: {PIECES}, {list(STATES)}")
    if data.get("tried", "nothing") not in TRIED:
        raise ConfigError(f"tried is {data['tried']!r}", where=vendor, next=f"valid: {', '.join(TRIED)}")
    units = levels["unit"] if isinstance(levels["unit"], list) else [levels["unit"]]
    first, *others = (_level(vendor, "unit", value) for value in units)
    return Table(
        vendor,
        data["title"],
        data.get("tried", "nothing"),
        tuple(_oid(vendor, prefix) for prefix in data["sysobjectid"]),
        _oid(vendor, data.get("model", "")),
        _oid(vendor, data.get("serial", "")),
        bool(data.get("resettable", False)),
        bool(data.get("zero_is_unmetered", False)),
        bool(data.get("zero_is_uncounted", False)),
        FULL | frozenset(data.get("sentinels", ())),
        float(data["accuracy"]["gain"]),
        data["accuracy"]["reference"],
        data.get("units", {}),
        {"unit": first} | {key: _level(vendor, key, value) for key, value in levels.items() if key != "unit"},
        tuple(others),
        template=text if "{id}" in text else "",
    )


def _level(vendor: str, name: str, data: Mapping[str, Any]) -> Level:
    where = f"{vendor}: {name}"
    channels = {key: value for key, value in data.items() if key not in _LEVEL}
    for key in channels:
        if key not in QUANTITIES:
            raise ConfigError(f"unknown channel {key!r}", where=where, next=suggest_name(key, list(QUANTITIES)))
    values = data.get("values", "")
    columns = tuple(_column(where, key, {"oid": values} | value) for key, value in channels.items())
    tells = "read_digits" in data or "read_factor" in data
    if any(column.scale is None for column in columns) and not tells:
        raise ConfigError("a channel has no scale and the device tells none", where=where, next="give scale")
    if data.get("number", "last") not in ("first", "last"):
        raise ConfigError(f"number is {data['number']!r}", where=where, next="valid: first, last")
    return Level(
        name,
        _column(where, "rows", data["rows"]) if "rows" in data else None,
        tuple(_oid(where, oid) for oid in data.get("names", ())),
        columns,
        {key: _oid(where, data[key]) for key in _READ if key in data},
        _oid(where, data.get("whole", "")),
        str(data.get("noun", "")),
        _oid(where, data.get("valid", "")),
        bool(data.get("adds", True)),
        data.get("number", "last"),
        _oid(where, data.get("labels", "")),
    )


def _column(where: str, name: str, data: Mapping[str, Any]) -> Column:
    if wrong := set(data) - set(_COLUMN):
        raise ConfigError(f"unknown key {min(wrong)!r} of {name}", where=where, next=f"valid: {', '.join(_COLUMN)}")
    scale, modulus = data.get("scale"), data.get("modulus")
    return Column(
        name,
        _oid(where, data["oid"]),
        str(data.get("suffix", "")),
        None if scale is None else float(scale),
        None if modulus is None else float(modulus),
        -inf if data.get("signed", False) else float(data.get("least", 0.0)),
        float(data.get("most", MOST.get(name, inf))),
        str(data.get("label", "")),
        str(data.get("unit", "")),
    )


def _oid(where: str, oid: str) -> str:
    if oid and not _NAME.fullmatch(oid):
        raise ConfigError(f"{oid!r} is no object identifier", where=where, next="write it as numbers: 1.3.6.1")
    return oid
