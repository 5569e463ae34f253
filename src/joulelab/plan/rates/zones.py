"""Turn local times into UTC, with daylight saving right: hours that are there twice or not at all are told."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

LOOK_S = 12 * 3600.0  # no zone changes its offset twice in so short a time
UTC_NAMES = ("UTC", "Z", "GMT", "Etc/UTC")


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name: `Europe/Berlin`. Raises ConfigError."""
    try:
        return zoneinfo.ZoneInfo("UTC" if name in UTC_NAMES else name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        known = zoneinfo.available_timezones()
    if not known:
        what = "this machine has no table of time zones"
        raise ConfigError(what, next="python -m pip install tzdata") from None
    place = name.rpartition("/")[2].lower().replace(" ", "_")
    near = sorted(one for one in known if place and place in one.lower())[:5]
    then = f"one of {', '.join(near)}" if near else "write it as Europe/Berlin"
    raise ConfigError(f"there is no time zone {name!r}", next=then) from None


def utc_of(local: dt.datetime, zone: ZoneInfo) -> float:
    """Return a time as s since 1970; a time without offset is one of the zone.

    Raises ConfigError where the clocks of the zone showed it twice, or skipped it.
    """
    if local.tzinfo is not None:
        return local.timestamp()
    early = local.replace(tzinfo=zone, fold=0)
    late = local.replace(tzinfo=zone, fold=1)
    if early.utcoffset() == late.utcoffset():
        return early.timestamp()
    # What a clock shows twice reads back as it was; what it skips reads back as another time.
    twice = dt.datetime.fromtimestamp(early.timestamp(), zone).replace(tzinfo=None, fold=0) == local.replace(fold=0)
    told = "is there twice" if twice else "does not exist"
    raise ConfigError(
        f"{local:%Y-%m-%d %H:%M} {told} in {zone.key}", why="daylight saving begins or ends there",
        next=f"write times with their offset ({local:%Y-%m-%dT%H:%M}+01:00) or in UTC (…Z)",
    )  # fmt: skip


def offset_s(time_s: float, zone: ZoneInfo) -> float:
    """Return how far the clocks of a zone are ahead of UTC at a time, in s."""
    ahead = dt.datetime.fromtimestamp(time_s, zone).utcoffset()
    return 0.0 if ahead is None else ahead.total_seconds()


def offsets(since_s: float, until_s: float, zone: ZoneInfo) -> list[tuple[float, float]]:
    """Return from when on (s since 1970) the zone has which offset (s): the first from `since_s`, then each change."""
    found = [(since_s, offset_s(since_s, zone))]
    at = since_s
    while at < until_s:
        ahead = min(at + LOOK_S, until_s)
        if offset_s(ahead, zone) != found[-1][1]:
            low, high = at, ahead
            while high - low > 0.5:
                middle = (low + high) / 2
                low, high = (middle, high) if offset_s(middle, zone) == found[-1][1] else (low, middle)
            change = float(round(high))
            found.append((change, offset_s(change, zone)))
            at = change
        else:
            at = ahead
    return found
