"""Read when a job starts, as people write it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, NamedTuple

from joulelab.core.errors import ConfigError
from joulelab.plan.rates.steps import shown
from joulelab.plan.rates.zones import UTC_NAMES, utc_of, zone_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.rates.rate import Rate


class Start(NamedTuple):
    """Hold when jobs start (s since 1970), and how to say it."""

    at_s: float
    said: str


def start_of(text: str, rates: Sequence[Rate]) -> Start:
    """Return a time as people write it: `2026-11-17T08:00+01:00`; without an offset it is in the rates' time zone.

    Raises ConfigError, also where rates are of several zones and for times that clocks skip or show twice.
    """
    try:
        time = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{text!r} is no time", next="write it as 2026-11-17T08:00+01:00") from None
    if time.tzinfo is not None:
        return Start(time.timestamp(), f"it starts at {shown(time.timestamp())}")
    zones = list(dict.fromkeys(rate.label.time_zone for rate in rates))
    if len(zones) > 1:
        why = f"rates are in {', '.join(zones)}"
        raise ConfigError(f"{text!r} says no offset", why=why, next=f"write it as {time.isoformat()}+01:00")
    at_s = utc_of(time, zone_of(zones[0]))
    given = "" if zones[0] in UTC_NAMES else f" ({time:%H:%M} in {zones[0]}, the rate's time zone)"
    return Start(at_s, f"it starts at {shown(at_s)}{given}")
