"""Cut the time from now to a deadline into slots, each with its rate."""

from __future__ import annotations

import datetime as dt
import math
import re
import zoneinfo
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.text import read_seconds
from joulelab.plan.when.optimum import MOST_SLOTS

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats
    from joulelab.plan.rates.rate import Label, Rate

J_PER_KWH = 3.6e6
SLOT_S = 900.0
MINUTE_S = 60.0
_DAYS = re.compile(r"\s*(\d+(?:\.\d*)?)\s*d\s*")


@dataclass(frozen=True)
class Slots:
    """Hold slots: their edges (s since 1970), the rate in each (in the label's unit, per kWh), and what it is."""

    edges_s: Floats
    values: Floats
    label: Label

    @property
    def lengths_s(self) -> Floats:
        """Return how long each is, in s."""
        return np.diff(self.edges_s)

    @property
    def per_j(self) -> Floats:
        """Return the rate in each, per J."""
        return self.values / J_PER_KWH

    @property
    def start_s(self) -> float:
        """Return when the first begins, in s since 1970."""
        return float(self.edges_s[0])

    @property
    def deadline_s(self) -> float:
        """Return when the last ends, in s since 1970."""
        return float(self.edges_s[-1])


def slots_of(rate: Rate, start_s: float, deadline_s: float, slot_s: float = SLOT_S) -> Slots:
    """Return slots from a time to a deadline (s since 1970) that begin at full quarters of an hour, or as asked.

    They are cut where the rate changes too, so that costs do not depend on their length. The start is the next full
    minute, the deadline the last one before. Raises ConfigError where there is no time between them, slots are no whole
    minutes or too many, or the rate is not known in all of them.
    """
    return cut(edges_between(start_s, deadline_s, slot_s), rate)


def cut(edges_s: Floats, rate: Rate) -> Slots:
    """Return slots with these edges (s since 1970) and those at which the rate changes in between.

    Raises ConfigError where the rate is not known in all of them, or there are too many.
    """
    edges = np.union1d(edges_s, rate.changes(float(edges_s[0]), float(edges_s[-1])))
    values = rate.means(edges)
    # Where a rate could change and does not, nothing is gained by a slot more.
    changed = np.concatenate([[True], values[1:] != values[:-1], [True]])
    kept = changed | np.isin(edges, edges_s)
    count = int(kept.sum()) - 1
    if count > MOST_SLOTS:
        why = f"{rate.label.name or 'the rate'} changes so often that there are {count} slots, at most {MOST_SLOTS}"
        raise ConfigError(
            "too many slots until the deadline", why=why,
            next="an earlier deadline, longer slots (--slot 1h), or a series of longer steps",
        )  # fmt: skip
    return Slots(edges[kept], values[kept[:-1]], rate.label)


def edges_between(start_s: float, deadline_s: float, slot_s: float = SLOT_S) -> Floats:
    """Return the edges of slots (s since 1970). Raises ConfigError."""
    if slot_s < MINUTE_S or slot_s % MINUTE_S:
        raise ConfigError(f"slots of {slot_s:g} s", why="they are whole minutes", next="--slot 15m")
    a, b = math.ceil(start_s / MINUTE_S) * MINUTE_S, math.floor(deadline_s / MINUTE_S) * MINUTE_S
    if b <= a:
        raise ConfigError(
            "the deadline is not after the start", why=f"{shown(start_s)} and {shown(deadline_s)}",
            next="a later deadline: --deadline 48h",
        )  # fmt: skip
    if (b - a) / slot_s > MOST_SLOTS:
        many = math.ceil((b - a) / slot_s)
        why = f"{many} slots until then, at most {MOST_SLOTS}"
        raise ConfigError("the deadline is too far away", why=why, next="longer slots: --slot 1h")
    first = (math.floor(a / slot_s) + 1) * slot_s
    return np.array([a, *np.arange(first, b - 1e-6, slot_s), b])


def moment(text: str, now_s: float, zone: str = "UTC") -> float:
    """Read a time: `2026-11-20 08:00` (in the zone unless it has an offset), or `48h`, `3d` from now. s since 1970.

    Raises ConfigError, also for times that a zone does not have, or has twice, when clocks are changed.
    """
    days = _DAYS.fullmatch(text)
    if days:
        return now_s + 86_400.0 * float(days[1])
    try:
        return now_s + read_seconds(text)
    except ConfigError:
        pass
    try:
        time = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        then = "write it as 2026-11-20T08:00, 48h or 3d"
        raise ConfigError(f"{text!r} is no time", next=then) from None
    return time.timestamp() if time.tzinfo else _local(time, zone)


def _local(time: dt.datetime, zone: str) -> float:
    place = zone_of(zone)
    early, late = (time.replace(tzinfo=place, fold=fold) for fold in (0, 1))
    if early.utcoffset() != late.utcoffset():
        back = early.astimezone(dt.UTC).astimezone(place).replace(tzinfo=None)
        what = "twice" if back == time else "never"
        why = f"clocks are changed: {zone} has this time {what}"
        raise ConfigError(f"{time} is not clear", why=why, next=f"add the offset: {time.isoformat()}+01:00")
    return early.timestamp()


def zone_of(name: str) -> dt.tzinfo:
    """Return a time zone by its IANA name. Raises ConfigError."""
    try:
        return dt.UTC if name == "UTC" else zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):
        raise ConfigError(f"there is no time zone {name!r}", next="name one as Europe/Berlin") from None


def shown(time_s: float, zone: str = "UTC") -> str:
    """Return a time (s since 1970) for people: `Mon 2026-11-16 19:30`, in a zone."""
    return dt.datetime.fromtimestamp(time_s, zone_of(zone)).strftime("%a %Y-%m-%d %H:%M")
