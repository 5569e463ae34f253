"""Turn cells of a file into numbers in SI units and times (UTC, ns): a value, nothing, or an error; never a guess."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite, nan
from typing import TYPE_CHECKING, NamedTuple

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.text import find_near_name

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_H = 3600.0
# By SI unit and quantity: the units that files have, with their factors.
_FACTORS: dict[tuple[str, str], dict[str, float]] = {
    ("W", "power"): {"uW": 1e-6, "µW": 1e-6, "mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6},
    ("J", "energy"): {"uJ": 1e-6, "µJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "Ws": 1.0}
    | {"mWh": 1e-3 * _H, "Wh": _H, "kWh": 1e3 * _H, "MWh": 1e6 * _H},
    ("VA", "apparent power"): {"VA": 1.0, "kVA": 1e3},
    ("A", "current"): {"mA": 1e-3, "A": 1.0},
    ("V", "voltage"): {"mV": 1e-3, "V": 1.0, "kV": 1e3},
    ("Hz", "frequency"): {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
    ("degC", "temperature"): {"C": 1.0, "°C": 1.0, "degC": 1.0},
    ("rpm", "speed"): {"rpm": 1.0, "RPM": 1.0},
    ("B", "memory"): {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30},
    ("1", "ratio"): {"1": 1.0, "%": 0.01},
}


class Unit(NamedTuple):
    """Describe a unit: its name in SI, the factor to it, the quantity."""

    si: str
    factor: float
    quantity: str


UNITS = {name: Unit(si, factor, what) for (si, what), names in _FACTORS.items() for name, factor in names.items()}
# Other spellings in files. Case separates milli from mega, so mw and mj are not among them.
_SPELLINGS = {spelt: unit for unit in ("W", "J", "kW", "Wh", "kWh") for spelt in (unit.lower(), unit.upper())}
_SPELLINGS |= {"KWh": "kWh", "kWH": "kWh", "joule": "J", "joules": "J", "Joules": "J"}
_SPELLINGS |= dict.fromkeys(("watt", "watts", "Watt", "Watts"), "W")
# Texts of programs that have no value.
MISSING = frozenset(("", "-", "--", "n/a", "[n/a]", "na", "nan", "null", "none"))
MISSING |= {"[not supported]", "not supported", "[not available]"}
_NUMBER = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*")
_PLAIN_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,100}(?:\.[0-9]{0,100})?\s*").fullmatch
_GROUPED = r"[+-]?[0-9]{1,3}(?:%s[0-9]{3})+(?![0-9])"


def spell_unit(text: str) -> str:
    """Return a unit as it is usually written: W for watts."""
    return _SPELLINGS.get(text.strip(), text.strip())


def find_unit(text: str) -> Unit | None:
    """Return a unit by its name, None for an unknown one."""
    return UNITS.get(spell_unit(text))


def clean_name(name: str) -> str:
    """Return a name as channels have it: small letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "value"


class NotANumber(ValueError):
    """Report a cell with text in place of a number."""


class NumberReader:
    """Read the cells of one column in one unit.

    `missing` are further texts that mean "no value" (a device's sentinel: `-1`), compared as written.
    """

    def __init__(
        self, unit: Unit, *, decimal: str = ".", thousands: str = "", missing: frozenset[str] = frozenset()
    ) -> None:
        self.unit = unit
        self._decimal, self._thousands, self._missing = decimal, thousands, missing
        self._grouped = re.compile(_GROUPED % re.escape(thousands)) if thousands else None
        self._is_plain = decimal == "." and not missing

    def read_number(self, text: str) -> float:
        """Return the number in SI, NaN for a text that means "no value". Raises NotANumber."""
        if self._is_plain and _PLAIN_NUMBER(text):
            return float(text) * self.unit.factor
        cell = text.strip()
        if cell in self._missing:
            return nan
        plain = self._remove_separators(cell)
        match = _NUMBER.match(plain)
        if match is None:
            if cell.lower() in MISSING:
                return nan
            raise NotANumber(cell)
        rest = plain[match.end() :]
        unit = find_unit(rest) if rest else self.unit
        if unit is None or unit.si != self.unit.si or not isfinite(value := float(match[1]) * unit.factor):
            raise NotANumber(cell)
        return value

    def _remove_separators(self, cell: str) -> str:
        """Return the cell with a decimal point and without separators of thousands, empty where they do not fit."""
        if self._grouped is not None and self._thousands in cell:
            match = self._grouped.match(cell)
            rest = cell[match.end() :] if match else self._thousands
            if match is None or self._thousands in rest:
                return ""
            cell = match[0].replace(self._thousands, "") + rest
        if self._decimal == ",":
            return "" if "." in cell else cell.replace(",", ".", 1)
        return cell


# Formats of times that are numbers: the power of ten to ns, and whether they count from a start that is given.
NUMERIC = {
    "unix": (9, False),
    "unix_ms": (6, False),
    "unix_us": (3, False),
    "unix_ns": (0, False),
    "seconds": (9, True),
    "milliseconds": (6, True),
}
FORMATS = ("iso", *NUMERIC)
FIRST_NS, LAST_NS = 0, 7_258_118_400 * NS  # 1970 to 2200: any other stamp is damaged
_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?")
_ISO = re.compile(
    r"([0-9]{4})[-/]([0-9]{1,2})[-/]([0-9]{1,2})[T ]\s*([0-9]{1,2}):([0-9]{2})"
    r"(?::([0-9]{2})(?:[.,]([0-9]{1,12}))?)?\s*(Z|z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2})?"
)


class BadStamp(ValueError):
    """Report a cell that is no time stamp."""


@dataclass(slots=True)
class Clock:
    """Read stamps of one format. Local times are of `zone`; without one they are taken as UTC: `is_unzoned`."""

    format: str
    zone: ZoneInfo | None = None
    start_ns: int | None = None
    decimal: str = "."
    is_unzoned: bool = False

    def read_stamp(self, text: str) -> int:
        """Return UTC in ns. Raises BadStamp."""
        cell = text.strip()
        if self.format in NUMERIC:
            ns = self._read_numeric(cell)
        elif self.format == "iso":
            ns = self._read_iso(cell)
        else:
            try:
                ns = self._convert_time(dt.datetime.strptime(cell, self.format), cell)  # noqa: DTZ007 its zone comes next
            except ValueError:
                raise BadStamp(cell) from None
        if not FIRST_NS < ns < LAST_NS:
            raise BadStamp(cell)
        return ns

    def _read_numeric(self, cell: str) -> int:
        plain = cell.replace(",", ".") if self.decimal == "," else cell
        if not _DECIMAL.fullmatch(plain):
            raise BadStamp(cell)
        scale, is_relative = NUMERIC[self.format]
        return int(Decimal(plain).scaleb(scale)) + ((self.start_ns or 0) if is_relative else 0)

    def _read_iso(self, cell: str) -> int:
        match = _ISO.fullmatch(cell)
        if match is None:
            raise BadStamp(cell)
        *parts, fraction, zone = match.groups()
        try:
            when = dt.datetime(*(int(part or 0) for part in parts))  # type: ignore[arg-type] # noqa: DTZ001 see next line
        except ValueError:
            raise BadStamp(cell) from None
        rest_ns = int(fraction[:9].ljust(9, "0")) if fraction else 0
        if zone is None:
            return self._convert_time(when, cell) + rest_ns
        digits = zone[1:].replace(":", "") if zone[0] in "+-" else "0000"
        offset_s = int(digits[:2]) * 3600 + int(digits[2:]) * 60
        return _count_ns(when.replace(tzinfo=dt.UTC)) + rest_ns + (offset_s if zone[0] == "-" else -offset_s) * NS

    def _convert_time(self, when: dt.datetime, cell: str) -> int:
        """Return UTC (ns) of a time with or without a zone."""
        if when.tzinfo is None and self.zone is None:
            self.is_unzoned = True
            when = when.replace(tzinfo=dt.UTC)
        if when.tzinfo is not None:
            return _count_ns(when)
        first, second = (_count_ns(when.replace(tzinfo=self.zone, fold=fold)) for fold in (0, 1))
        if first != second:  # in the hour in which clocks change, a time comes twice or never
            raise BadStamp(cell)
        return first


def _count_ns(when: dt.datetime) -> int:
    return round(when.timestamp() * 1e6) * 1000


def find_unix_format(value: float) -> str:
    """Return the format of a number that is a time since 1970 between 1973 and 2286, empty for any other."""
    fits = (f for f, (scale, relative) in NUMERIC.items() if not relative and 1e17 <= value * 10**scale < 1e19)
    return next(fits, "")


def find_zone(name: str, where: str) -> ZoneInfo:
    """Return a time zone by its name. Raises ConfigError with the nearest one."""
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        near = find_near_name(name, sorted(zoneinfo.available_timezones()))
        advice = f"did you mean {near!r}?" if near else "write it as UTC or Europe/Berlin"
        raise ConfigError(f"there is no time zone {name!r}", where=where, next=advice, code="config.zone") from None


def read_user_time(text: str, zone: ZoneInfo | None, where: str) -> int:
    """Return a time that a user typed, ISO or seconds since 1970, as UTC in ns. Raises ConfigError."""
    is_number = _DECIMAL.fullmatch(text.strip())
    try:
        return Clock("unix" if is_number else "iso", zone).read_stamp(text)
    except BadStamp:
        advice = "write it as 2024-05-01T12:00:00Z, 2024-05-01T14:00:00+02:00 or seconds since 1970"
        raise ConfigError(f"{text!r} is not a time", where=where, next=advice, code="config.time") from None
