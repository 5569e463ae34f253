"""Turn cells of a file into numbers in SI units: a number, nothing (NaN), or an error; never a guess."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite, nan

_H = 3600.0
# What a unit is in SI: unit, factor, quantity.
_POWERS = {"uW": 1e-6, "µW": 1e-6, "mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6}
_ENERGIES = {"uJ": 1e-6, "µJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6}
_ENERGIES |= {"mWh": 1e-3 * _H, "Wh": _H, "kWh": 1e3 * _H, "MWh": 1e6 * _H, "Ws": 1.0}
_GROUPS: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("W", "power", _POWERS),
    ("J", "energy", _ENERGIES),
    ("VA", "apparent power", {"mVA": 1e-3, "VA": 1.0, "kVA": 1e3}),
    ("A", "current", {"mA": 1e-3, "A": 1.0, "kA": 1e3}),
    ("V", "voltage", {"mV": 1e-3, "V": 1.0, "kV": 1e3}),
    ("Hz", "frequency", {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}),
    ("degC", "temperature", {"C": 1.0, "°C": 1.0, "degC": 1.0}),
    ("rpm", "speed", {"rpm": 1.0, "RPM": 1.0}),
    ("s", "time", {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}),
    ("B", "memory", {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30}),
    ("1", "ratio", {"1": 1.0, "%": 0.01}),
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Say what a unit is in SI: its name there, the factor to it, the quantity."""

    si: str
    factor: float
    quantity: str


UNITS = {name: Unit(si, factor, quantity) for si, quantity, names in _GROUPS for name, factor in names.items()}
# Spellings that are met in files; case tells milli from mega, so only these are taken.
_SPELT = {
    "w": "W",
    "j": "J",
    "watt": "W",
    "watts": "W",
    "kw": "kW",
    "joule": "J",
    "joules": "J",
    "wh": "Wh",
    "kwh": "kWh",
}
_SPELT |= {"KW": "kW", "KWH": "kWh", "KWh": "kWh", "kWH": "kWh", "WH": "Wh", "Watt": "W", "Watts": "W", "Joules": "J"}
# What programs write where they have no value.
MISSING = frozenset(
    ("", "-", "--", "n/a", "[n/a]", "na", "nan", "null", "none", "[not supported]", "not supported", "[not available]")
)
_NUMBER = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*")
_USUAL = re.compile(r"\s*[+-]?[0-9]{1,100}(?:\.[0-9]{0,100})?\s*").fullmatch
_GROUPED = r"[+-]?[0-9]{1,3}(?:%s[0-9]{3})+(?![0-9])"


def unit_of(text: str) -> Unit | None:
    """Return what a unit is in SI, None where it is not known."""
    return UNITS.get(spell_unit(text))


def spell_unit(text: str) -> str:
    """Return a unit as it is usually written: W for watts."""
    name = text.strip()
    return _SPELT.get(name, name)


class NotANumber(ValueError):
    """Say that a cell holds text where a number belongs."""


class Cells:
    """Read the cells of one column in one unit.

    `missing` are further texts that mean "no value" (a device's sentinel: `-1`), compared as written.
    """

    def __init__(
        self, unit: Unit, *, decimal: str = ".", thousands: str = "", missing: frozenset[str] = frozenset()
    ) -> None:
        self.unit = unit
        self._decimal = decimal
        self._thousands = thousands
        self._grouped = re.compile(_GROUPED % re.escape(thousands)) if thousands else None
        self._missing = missing
        self._usual = decimal == "." and not missing

    def number(self, text: str) -> float:
        """Return the number in SI, NaN for what stands for no value. Raises NotANumber."""
        if self._usual and _USUAL(text):
            return float(text) * self.unit.factor
        cell = text.strip()
        if cell in self._missing:
            return nan
        plain = self._plain(cell)
        match = _NUMBER.match(plain)
        if match is None:
            if cell.lower() in MISSING:
                return nan
            raise NotANumber(cell)
        value = float(match[1]) * self._factor(plain[match.end() :], cell)
        if not isfinite(value):
            raise NotANumber(cell)
        return value

    def _factor(self, rest: str, cell: str) -> float:
        """Return the factor of the unit that follows the number, the column's own where none does."""
        if not rest:
            return self.unit.factor
        unit = unit_of(rest)
        if unit is None or unit.si != self.unit.si:
            raise NotANumber(cell)
        return unit.factor

    def _plain(self, cell: str) -> str:
        """Return the cell with a decimal point and without separators of thousands."""
        if self._grouped is not None and self._thousands in cell:
            match = self._grouped.match(cell)
            if match is None:
                return ""  # a separator that does not separate thousands
            cell = match[0].replace(self._thousands, "") + cell[match.end() :]
            if self._thousands in cell:
                return ""
        if self._decimal == ",":
            if "." in cell:
                return ""  # two marks, of which one was not declared
            cell = cell.replace(",", ".", 1)
        return cell


def clean(name: str) -> str:
    """Return a name as channels have it: small letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "value"
