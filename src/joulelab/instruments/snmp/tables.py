"""Load what each maker's PDU shows where: one TOML file per maker in `pdus`, checked when it is read."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from math import inf
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Mapping

# Quantity and unit of every channel that a table may have.
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
# Levels whose rows are what is fed, and those that are state beside it, with the table that holds them.
PIECES = ("unit", "outlet")
STATES = {"phase": "phases", "bank": "banks", "input": "input", "battery": "battery"}
# What one count of a unit that the device tells is worth, and of which channel it can be the unit.
DEVICE_UNITS = {"V": ("V", 1.0), "A": ("A", 1.0), "W": ("W", 1.0), "VA": ("VA", 1.0), "Wh": ("J", 3600.0)}
_NAME = re.compile(r"\d+(\.\d+)+")
_READ = ("read_units", "read_digits", "read_accuracy", "read_time")
_TOP = ("title", "sysobjectid", "model", "serial", "resettable", "zero_is_unmetered", "sentinels", "accuracy", "units")


@dataclass(frozen=True, slots=True)
class Column:
    """Describe one channel: its column, what follows a row's number, what a count is worth (None: the device tells)."""

    name: str
    oid: str
    suffix: str = ""
    scale: float | None = None
    modulus: float | None = None
    signed: bool = False
    most: float = inf  # in SI: a larger number has another scale than the table says, and is not shown

    def at(self, row: str, oid: str = "") -> str:
        """Return the full name for a row, in this column or in one beside it."""
        return ".".join(filter(None, (oid or self.oid, row, self.suffix)))


@dataclass(frozen=True, slots=True)
class Level:
    """Describe the rows of one kind (units, phases, outlets): where they are listed, named, and what they show.

    `whole` is a column that shows 0 for rows that are the whole, where others are parts of them. `noun` is what a row
    is, where it is a part of one device (a line of a UPS) and not a device of its own.
    """

    name: str
    rows: Column
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    read: Mapping[str, str]
    whole: str = ""
    noun: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Describe a maker's device."""

    vendor: str
    title: str
    prefixes: tuple[str, ...]
    model: str
    serial: str
    resettable: bool
    zero_is_unmetered: bool
    sentinels: frozenset[int]
    gain: float
    reference: str
    units: Mapping[int, str]
    levels: Mapping[str, Level]


@lru_cache(maxsize=1)
def tables() -> dict[str, Table]:
    """Return every table by the name of its file."""
    folder = resources.files("joulelab.instruments.snmp") / "pdus"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda entry: entry.name)
    return {entry.name[:-5]: parse(entry.name[:-5], entry.read_text("utf-8")) for entry in found}


def table(vendor: str) -> Table:
    """Return a table by name. Raises ConfigError with the nearest name."""
    known = tables()
    if vendor not in known:
        raise ConfigError(f"vendor is {vendor!r}", where="meter snmp", next=suggest_name(vendor, list(known)))
    return known[vendor]


def parse(vendor: str, text: str) -> Table:
    """Read a table. Raises ConfigError for what does not fit."""
    data = tomllib.loads(text)
    levels = {key: value for key, value in data.items() if key not in _TOP}
    wrong = [key for key in levels if key not in (*PIECES, *STATES)]
    if wrong or "unit" not in levels:
        raise ConfigError(f"wrong levels {wrong or 'none'}", where=vendor, next=f"valid: {PIECES}, {list(STATES)}")
    return Table(
        vendor,
        data["title"],
        tuple(_oid(vendor, prefix) for prefix in data["sysobjectid"]),
        _oid(vendor, data.get("model", "")),
        _oid(vendor, data.get("serial", "")),
        bool(data.get("resettable", False)),
        bool(data.get("zero_is_unmetered", False)),
        frozenset(data.get("sentinels", ())),
        float(data["accuracy"]["gain"]),
        data["accuracy"]["reference"],
        {int(key): value for key, value in data.get("units", {}).items()},
        {name: _level(vendor, name, value) for name, value in levels.items()},
    )


def _level(vendor: str, name: str, data: Mapping[str, Any]) -> Level:
    where = f"{vendor}: {name}"
    channels = {key: value for key, value in data.items() if key not in (*_READ, "rows", "names", "whole", "noun")}
    for key in channels:
        if key not in QUANTITIES:
            raise ConfigError(f"unknown channel {key!r}", where=where, next=suggest_name(key, list(QUANTITIES)))
    columns = tuple(_column(where, key, value) for key, value in channels.items())
    if any(column.scale is None for column in columns) and "read_digits" not in data:
        raise ConfigError("a channel has no scale and the device tells none", where=where, next="give scale")
    rows = _column(where, "rows", data["rows"]) if "rows" in data else columns[0]
    read = {key: _oid(where, data[key]) for key in _READ if key in data}
    names = tuple(_oid(where, oid) for oid in data.get("names", ()))
    whole, noun = _oid(where, data.get("whole", "")), str(data.get("noun", ""))
    return Level(name, rows, names, columns, read, whole, noun)


def _column(where: str, name: str, data: Mapping[str, Any]) -> Column:
    if wrong := set(data) - {"oid", "suffix", "scale", "modulus", "signed", "most"}:
        raise ConfigError(f"unknown key {min(wrong)!r} of {name}", where=where, next="valid: oid, suffix, scale")
    scale, modulus = data.get("scale"), data.get("modulus")
    return Column(
        name,
        _oid(where, data["oid"]),
        str(data.get("suffix", "")),
        None if scale is None else float(scale),
        None if modulus is None else float(modulus),
        bool(data.get("signed", False)),
        float(data.get("most", inf)),
    )


def _oid(where: str, oid: str) -> str:
    if oid and not _NAME.fullmatch(oid):
        raise ConfigError(f"{oid!r} is no object identifier", where=where, next="write it as numbers: 1.3.6.1")
    return oid
