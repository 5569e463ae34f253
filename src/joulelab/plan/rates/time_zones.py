"""Convert local times to UTC with daylight saving; refuse hours that occur twice or not at all."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

LOOK_S = 12 * 3600.0  # no zone changes its offset twice within this time
UTC_NAMES = ("UTC", "Z", "GMT", "Etc/UTC")


def find_time_zone(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name: `Europe/Berlin`. Raises ConfigError."""
    try:
        return zoneinfo.ZoneInfo("UTC" if name in UTC_NAMES else name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
    if not known:
        raise ConfigError("this machine has no table of time zones", next="python -m pip install tzdata") from None
    place = name.rpartition("/")[2].lower().replace(" ", "_")
    near = sorted(one for one in known if place and place in one.lower())[:5]
    then = f"write one of {', '.join(near)}" if near else "write it as Europe/Berlin"
    raise ConfigError(f"there is no time zone {name!r}", next=then) from None


def read_moment(text: str) -> dt.datetime:
    """Read a time: ISO 8601, or whole s since 1970. Raises ConfigError."""
    plain = text.strip()
    try:
        if plain.isdigit() and len(plain) == 10:
            return dt.datetime.fromtimestamp(int(plain), dt.UTC)
        return dt.datetime.fromisoformat(plain)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time", next="write it as 2026-11-16T14:00Z") from None


def convert_to_utc(local: dt.datetime, zone: ZoneInfo) -> float:
    """Return a time as s since 1970; a time without an offset is in the zone.

    Raises ConfigError if the clocks of the zone show it twice, or skip it.
    """
    if local.tzinfo is not None:
        return local.timestamp()
    early, late = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if early.utcoffset() == late.utcoffset():
        return early.timestamp()
    # A time that a clock shows twice reads back unchanged; one that it skips reads back as another time.
    again = dt.datetime.fromtimestamp(early.timestamp(), zone).replace(tzinfo=None, fold=0)
    how = "occurs twice" if again == local.replace(fold=0) else "does not exist"
    raise ConfigError(
        f"{local:%Y-%m-%d %H:%M} {how} in {zone.key}",
        why="daylight saving begins or ends there",
        next=f"write times with their offset ({local:%Y-%m-%dT%H:%M}+01:00) or in UTC (…Z)",
    )


def list_offsets(since_s: float, until_s: float, zone: ZoneInfo) -> list[tuple[float, float]]:
    """Return the time (s since 1970) at which each offset (s) of a zone begins: the first at `since_s`."""

    def find_offset(time_s: float) -> float:
        ahead = dt.datetime.fromtimestamp(time_s, zone).utcoffset()
        return 0.0 if ahead is None else ahead.total_seconds()

    found = [(since_s, find_offset(since_s))]
    at = since_s
    while at < until_s:
        ahead = min(at + LOOK_S, until_s)
        if find_offset(ahead) == found[-1][1]:
            at = ahead
            continue
        low, high = at, ahead
        while high - low > 0.5:
            middle = (low + high) / 2
            low, high = (middle, high) if find_offset(middle) == found[-1][1] else (low, middle)
        at = float(round(high))
        found.append((at, find_offset(at)))
    return found
