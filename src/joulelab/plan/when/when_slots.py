"""Cut the time from now to a deadline into slots, each with its rate."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import J_PER_KWH
from joulelab.core.text import read_seconds
from joulelab.plan.rates.time_zones import convert_to_utc, find_time_zone
from joulelab.plan.when.when_program import MOST_SLOTS

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats
    from joulelab.plan.rates.rate import Label, Rate

SLOT_S = 900.0
MINUTE_S = 60.0
DAYS = re.compile(r"\s*(\d+(?:\.\d*)?)\s*d\s*")


@dataclass(frozen=True)
class Slots:
    """Hold slots: their edges (s since 1970), the rate in each (in the label's unit, per kWh), and its label."""

    edges_s: Floats
    values: Floats
    label: Label

    @property
    def lengths_s(self) -> Floats:
        """Return the length of each, in s."""
        return np.diff(self.edges_s)

    @property
    def per_j(self) -> Floats:
        """Return the rate in each, per J."""
        return self.values / J_PER_KWH

    @property
    def start_s(self) -> float:
        """Return the start of the first, in s since 1970."""
        return float(self.edges_s[0])

    @property
    def deadline_s(self) -> float:
        """Return the end of the last, in s since 1970."""
        return float(self.edges_s[-1])

    def integrate_rate(self, start_s: float, end_s: float) -> float:
        """Return the rate x time between two times (s since 1970): the cost of one W."""
        sums = np.append(0.0, np.cumsum(self.per_j * self.lengths_s))
        low, high = np.interp([start_s, end_s], self.edges_s, sums)
        return float(high - low)


def cut_slots(rate: Rate, start_s: float, deadline_s: float, slot_s: float = SLOT_S) -> Slots:
    """Return slots from a time to a deadline (s since 1970) at multiples of `slot_s`, each with the mean of the rate.

    Neighbours with the same rate are one slot: nothing is gained by a change between them. Start and deadline are
    rounded inwards to whole minutes, or to whole slots if these are shorter. Raises ConfigError if there is no time
    between them, there are too many slots, or the rate is not known in all of them.
    """
    unit_s = min(slot_s, MINUTE_S)
    first, last = math.ceil(start_s / unit_s) * unit_s, math.floor(deadline_s / unit_s) * unit_s
    if last <= first:
        times = " and ".join(f"{dt.datetime.fromtimestamp(t, dt.UTC):%Y-%m-%d %H:%M}" for t in (start_s, deadline_s))
        raise ConfigError(
            "the deadline is not after the start", why=f"{times} UTC", next="give a later one: --deadline 48h",
            code="config.deadline",
        )  # fmt: skip
    count = math.ceil((last - first) / slot_s)
    if count > MOST_SLOTS:
        why = f"{count} slots of {slot_s:g} s until then, at most {MOST_SLOTS}"
        raise ConfigError(
            "the deadline is too far away", why=why, next="give longer slots, e.g. --slot 1h", code="config.slots"
        )
    inside = np.arange((math.floor(first / slot_s) + 1) * slot_s, last - 1e-6, slot_s)
    edges = np.array([first, *inside, last])
    values = rate.means(edges)
    is_new = np.concatenate([[True], values[1:] != values[:-1]])
    return Slots(np.append(edges[:-1][is_new], edges[-1]), values[is_new], rate.label)


def read_time(text: str, now_s: float, zone: str = "UTC") -> float:
    """Read a time: `2026-11-20T08:00` (in the zone unless it has an offset), or `48h`, `3d` from now. s since 1970.

    Raises ConfigError, also for times that the clocks of the zone skip or show twice.
    """
    days = DAYS.fullmatch(text)
    if days:
        return now_s + 86_400.0 * float(days[1])
    if not text.strip().isdecimal():  # a number without a unit could be seconds or hours
        with contextlib.suppress(ConfigError):
            return now_s + read_seconds(text)
    try:
        time = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        then = "write it as 2026-11-20T08:00, 48h or 3d"
        raise ConfigError(f"{text!r} is not a time", next=then, code="config.time") from None
    return convert_to_utc(time, find_time_zone(zone))
