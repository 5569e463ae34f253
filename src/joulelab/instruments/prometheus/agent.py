"""Know what joulelab's agents tell: how accurate their meters are, when each was last read, what nodes are rated at."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.instruments.prometheus.query import filled, narrowed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.prometheus.api import Api, Sample, Series
    from joulelab.instruments.prometheus.setup import Group, Settings

PRESET = "joulelab"
ACCURACY = "joulelab_accuracy_ratio"
RATED = "joulelab_rated_watts"
LAST_READ = "joulelab_meter_last_reading_timestamp_seconds"
STATED_S = 600.0  # at begin and end of an interval it is asked for so long what is stated
# An agent adds up powers over stretches without readings of so long, or of so many times a reading's usual age.
CARRIED_S, CARRIED = 10.0, 10.0


@dataclass(frozen=True, slots=True)
class Agents:
    """Hold by host, meter and scope the gain that is stated, and by host and meter when (ns) it had been read last.

    The latter by time of the scrape (ns); `rated` by host and scope what the maker rates it at (W). Nothing is known of
    what other exporters show.
    """

    gains: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    read: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    stale_ns: int = 0
    rated: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def known_of(self, groups: Sequence[Group]) -> list[Group]:
        """Return streams with what is known of each: its gain, how old its values are, what was shown too long."""
        return [self._known(group) for group in groups]

    def _known(self, group: Group) -> Group:
        gain = self.gains.get((group.host, group.meter, group.scope))
        read = self.read.get((group.host, group.meter))
        if not read:
            return replace(group, gain=gain)
        stale = frozenset(at for at, last in read.items() if at - last > self.stale_ns)
        ages = [at - last for at, last in read.items() if at not in stale]
        update_s = max(max(ages, default=0) / NS, 0.001)
        return _summable(replace(group, gain=gain, update_s=update_s, stale=stale), [a - b for a, b in read.items()])


def _summable(group: Group, ages_ns: Sequence[int]) -> Group:
    """Return a stream without what its agent added up of powers, where that lacks a stretch without readings."""
    energy = group.members.get("energy_j")
    usual_s, longest_s = median(ages_ns) / NS, max(ages_ns) / NS
    added_up = energy is not None and dict(energy[1]).get("source") == "integrated"
    if not added_up or "power_w" not in group.members or longest_s <= max(CARRIED_S, CARRIED * usual_s):
        return group
    note = f"{group.meter} was not read for {longest_s:.0f} s, which its agent's sum lacks: its powers are taken"
    members = {name: member for name, member in group.members.items() if name != "energy_j"}
    return replace(group, members=members, notes=(note,))


def asked_of_agents(api: Api, asked: Settings, since_ns: int, until_ns: int) -> Agents:
    """Ask what the agents told in an interval (ns); nothing where the entry is of other exporters."""
    if asked.preset != PRESET:
        return Agents()
    where, stale_ns = f"meter {asked.label}", round(asked.stale_s * NS)
    read: dict[tuple[str, str], dict[int, int]] = {}
    for labels, samples in _series(api, asked, LAST_READ, since_ns, until_ns):
        times = {s.t1: round(s.value * NS) for s in samples if 0 < s.value < 1e10}
        read.setdefault((asked.host_of(labels, where), labels.get("meter", "")), {}).update(times)
    gains: dict[tuple[str, str, str], float] = {}
    for labels, samples in _stated(api, asked, ACCURACY, since_ns, until_ns):
        stated = [s.value for s in samples if 0 <= s.value < 1]
        if stated:
            key = asked.host_of(labels, where), labels.get("meter", ""), filled("{scope}", labels, where)
            gains[key] = max(*stated, gains.get(key, 0.0))
    rated: dict[str, dict[str, float]] = {}
    for labels, samples in _stated(api, asked, RATED, since_ns, until_ns):
        watts = [s.value for s in samples if 0 < s.value < math.inf]
        rated.setdefault(asked.host_of(labels, where), {}).update({labels.get("scope", "node.ac"): w for w in watts})
    return Agents(gains, read, stale_ns, rated)


def _stated(
    api: Api, asked: Settings, metric: str, since_ns: int, until_ns: int
) -> list[tuple[dict[str, str], list[Sample]]]:
    """Return what is stated at begin and end of an interval (ns): it does not change all the time."""
    edge_ns = min(round(STATED_S * NS), until_ns - since_ns)
    late_ns = max(until_ns - edge_ns, since_ns + edge_ns)
    first = _series(api, asked, metric, since_ns, since_ns + edge_ns)
    return [*first, *_series(api, asked, metric, late_ns, until_ns)]


def _series(
    api: Api, asked: Settings, metric: str, since_ns: int, until_ns: int
) -> list[tuple[dict[str, str], list[Sample]]]:
    found: Series = api.raw(narrowed(metric, asked.match), since_ns, until_ns)
    return [(dict(key), samples) for key, samples in found.items()]
