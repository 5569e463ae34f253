"""Turn the time stamps of a file into UTC in ns, and count what is doubtful about them."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

# Formats that are numbers: the power of ten to ns, and whether they count from a start that has to be told.
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
_NUMBER = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]*))?")
_ISO = re.compile(
    r"([0-9]{4})[-/]([0-9]{1,2})[-/]([0-9]{1,2})[T ]\s*([0-9]{1,2}):([0-9]{2})"
    r"(?::([0-9]{2})(?:[.,]([0-9]{1,12}))?)?\s*(Z|z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2})?"
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class BadStamp(ValueError):
    """Say that a cell is no time stamp."""


@dataclass(slots=True)
class Doubts:
    """Count stamps that could mean more than one time."""

    twice: int = 0
    never: int = 0
    unzoned: int = 0
    first: str = ""


@dataclass(slots=True)
class Clock:
    """Read stamps of one format; local times are of `zone`, UTC where none is given."""

    format: str
    zone: ZoneInfo | None = None
    start_ns: int | None = None
    decimal: str = "."
    doubts: Doubts = field(default_factory=Doubts)
    _minute: str = ""
    _minute_ns: int = 0

    def parse(self, text: str, last_ns: int | None = None) -> int:
        """Return UTC in ns; `last_ns` is the stamp before, which tells the two passes of an hour apart.

        Raises BadStamp.
        """
        cell = text.strip()
        if self.format in NUMERIC:
            scale, relative = NUMERIC[self.format]
            ns = _scaled(cell.replace(",", ".") if self.decimal == "," else cell, scale)
            ns += (self.start_ns or 0) if relative else 0
        elif self.format == "iso":
            ns = self._iso(cell, last_ns)
        else:
            ns = self._pattern(cell, last_ns)
        if not FIRST_NS < ns < LAST_NS:
            raise BadStamp(cell)
        return ns

    def _iso(self, cell: str, last_ns: int | None) -> int:
        match = _ISO.fullmatch(cell)
        if match is None:
            raise BadStamp(cell)
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        s = int(second or 0)
        if s > 59:
            raise BadStamp(cell)
        rest = s * NS + (int(fraction[:9].ljust(9, "0")) if fraction else 0)
        key = cell[: match.end(5)] + (zone or "")
        if key == self._minute:
            if zone is None and self.zone is None:
                self.doubts.unzoned += 1
            return self._minute_ns + rest
        try:
            when = dt.datetime(int(year), int(month), int(day), int(hour), int(minute))  # noqa: DTZ001 its zone comes next
        except ValueError:
            raise BadStamp(cell) from None
        if zone is not None:
            base, sure = _ns(when.replace(tzinfo=dt.UTC)) - _offset_ns(zone), True
        else:
            base, sure = self._local(when, cell, last_ns)
        if sure:
            self._minute, self._minute_ns = key, base
        return base + rest

    def _pattern(self, cell: str, last_ns: int | None) -> int:
        try:
            when = dt.datetime.strptime(cell, self.format)  # noqa: DTZ007 its zone comes next
        except ValueError:
            raise BadStamp(cell) from None
        return _ns(when) if when.tzinfo is not None else self._local(when, cell, last_ns)[0]

    def _local(self, when: dt.datetime, cell: str, last_ns: int | None) -> tuple[int, bool]:
        """Return UTC of a local time, and whether it can mean only one."""
        if self.zone is None:
            self.doubts.unzoned += 1
            return _ns(when.replace(tzinfo=dt.UTC)), True
        early, late = (_ns(when.replace(tzinfo=self.zone, fold=fold)) for fold in (0, 1))
        if early == late:
            return early, True
        self.doubts.first = self.doubts.first or cell
        if early > late:  # the clock was put forward over it
            self.doubts.never += 1
            return early, False
        self.doubts.twice += 1
        # The second pass has begun where the first would lie well before the stamp before it.
        return (late if last_ns is not None and early < last_ns - (late - early) // 2 else early), False


def guess(cell: str, start_ns: int | None, where: str) -> str:
    """Return the format of the first stamp of a file. Raises ConfigError where it could be several."""
    text = cell.strip()
    try:
        value = abs(Decimal(text.replace(",", ".")))
    except InvalidOperation:
        return "iso"
    if start_ns is not None:
        return "seconds"
    found = find_unix_format(value)
    if found:
        return found
    advice = "if they count from a start, type --time COLUMN=seconds --start 2024-05-01T12:00:00Z"
    raise ConfigError(f"the first time stamp is {text!r}: no format fits it", where=where, next=advice)


def find_unix_format(value: Decimal | float) -> str:
    """Return the format of a number that is a time since 1970 between 1973 and 2286, empty for any other."""
    fits = (
        f
        for f, (scale, relative) in NUMERIC.items()
        if not relative and 10 ** (17 - scale) <= value < 10 ** (19 - scale)
    )
    return next(fits, "")


def check_format(text: str, where: str) -> str:
    """Return a time format, which is a name or a pattern of strptime. Raises ConfigError."""
    if text not in FORMATS and "%" not in text:
        advice = f"{suggest_name(text, list(FORMATS))}, or a pattern such as %d.%m.%Y %H:%M:%S"
        raise ConfigError(f"there is no time format {text!r}", where=where, next=advice)
    return text


def zone_of(name: str, where: str) -> ZoneInfo:
    """Return a time zone by its name. Raises ConfigError with the nearest one."""
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        import difflib

        near = difflib.get_close_matches(name, sorted(zoneinfo.available_timezones()), n=3, cutoff=0.5)
        advice = f"did you mean {near[0]!r}?" if near else "write it as UTC or Europe/Berlin"
        raise ConfigError(f"there is no time zone {name!r}", where=where, next=advice) from None


def utc_ns(text: str, zone: ZoneInfo | None, where: str) -> int:
    """Return a time that a user wrote, ISO or seconds since 1970, as UTC in ns. Raises ConfigError."""
    numeric = _NUMBER.fullmatch(text.strip())
    try:
        return Clock("unix" if numeric else "iso", zone).parse(text)
    except BadStamp:
        advice = "write it as 2024-05-01T12:00:00Z, 2024-05-01T14:00:00+02:00 or seconds since 1970"
        raise ConfigError(f"{text!r} is no time", where=where, next=advice) from None


def _scaled(cell: str, scale: int) -> int:
    """Return a decimal number times 10^scale as an integer, exact to the ns."""
    match = _NUMBER.fullmatch(cell)
    if match is None:
        return _scaled_exponent(cell, scale)
    sign, whole, fraction = match[1], match[2], (match[3] or "")[:scale]
    if len(whole) > 20:
        raise BadStamp(cell)
    ns = int(whole + fraction.ljust(scale, "0"))
    return -ns if sign == "-" else ns


def _scaled_exponent(cell: str, scale: int) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,20}\.?[0-9]*[eE][+-]?[0-9]{1,2}", cell):
        raise BadStamp(cell)
    return int(Decimal(cell).scaleb(scale))


def _ns(when: dt.datetime) -> int:
    return (when - _EPOCH) // dt.timedelta(microseconds=1) * 1000


def _offset_ns(zone: str) -> int:
    if zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return (-seconds if zone[0] == "-" else seconds) * NS
