"""Read what joulelab's agents export beside readings: accuracies, ages of readings, rated power of nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.instruments.prometheus.queries import add_matchers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.instruments.prometheus.client import PrometheusClient, Sample
    from joulelab.instruments.prometheus.settings import PrometheusSettings
    from joulelab.instruments.prometheus.streams import SeriesGroup

PRESET = "joulelab"
ACCURACY = "joulelab_accuracy_ratio"
RATED = "joulelab_rated_watts"
LAST_READ = "joulelab_meter_last_reading_timestamp_seconds"
EDGE_NS = 600 * NS  # accuracies and rated powers hardly change: they are read at both edges of a span only
# An agent integrates power across gaps up to this long, or this many times the usual age of a reading.
BRIDGED_S, BRIDGED_AGES = 10.0, 10.0


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """Hold facts of agents; empty for other exporters.

    `gains` by host, meter and scope; `last_read` (ns) by host and meter, then by time of the scrape (ns); `rated` power
    in W by host and scope. A reading older than `stale_ns` at a scrape is not used.
    """

    gains: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    last_read: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    rated: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    stale_ns: int = 0

    def complete_group(self, group: SeriesGroup) -> SeriesGroup:
        """Return a group with its gain, the age of its values, and without what is too old or incomplete."""
        group = replace(group, gain=self.gains.get((group.host, group.meter, group.scope)))
        ages_ns = {at: at - last for at, last in self.last_read.get((group.host, group.meter), {}).items()}
        if not ages_ns:
            return group
        stale = frozenset(at for at, age in ages_ns.items() if age > self.stale_ns)
        fresh_ns = max((age for at, age in ages_ns.items() if at not in stale), default=0)
        group = replace(group, update_s=max(fresh_ns / NS, 0.001), stale=stale)
        energy = group.members.get("energy_j")
        usual_s, longest_s = median(ages_ns.values()) / NS, max(ages_ns.values()) / NS
        is_integrated = energy is not None and dict(energy[1]).get("source") == "integrated"
        if not is_integrated or longest_s <= max(BRIDGED_S, BRIDGED_AGES * usual_s) or "power_w" not in group.members:
            return group
        note = f"{group.meter} was not read for {longest_s:.0f} s, which its agent's sum lacks: its powers are used"
        members = {name: member for name, member in group.members.items() if name != "energy_j"}
        return replace(group, members=members, notes=(note,))


def read_agents(client: PrometheusClient, settings: PrometheusSettings, since_ns: int, until_ns: int) -> AgentFacts:
    """Read the facts of the agents in a span (UTC); none if the entry is of other exporters."""
    if settings.preset != PRESET:
        return AgentFacts()

    def list_series(metric: str, *spans: tuple[int, int]) -> Iterator[tuple[dict[str, str], str, Sequence[Sample]]]:
        for span in spans:
            for key, samples in client.fetch_raw(add_matchers(metric, settings.match), *span).items():
                labels = dict(key)
                yield labels, settings.find_host(labels), samples

    last_read: dict[tuple[str, str], dict[int, int]] = {}
    for labels, host, samples in list_series(LAST_READ, (since_ns, until_ns)):
        times = {s.t_ns: round(s.value * NS) for s in samples if 0 < s.value < 1e10}
        last_read.setdefault((host, labels.get("meter", "")), {}).update(times)
    edge_ns = min(EDGE_NS, until_ns - since_ns)
    edges = (since_ns, since_ns + edge_ns), (max(until_ns - edge_ns, since_ns + edge_ns), until_ns)
    gains: dict[tuple[str, str, str], float] = {}
    for labels, host, samples in list_series(ACCURACY, *edges):
        for value in (s.value for s in samples if 0 <= s.value < 1):
            place = host, labels.get("meter", ""), labels.get("scope", "")
            gains[place] = max(value, gains.get(place, 0.0))
    rated: dict[str, dict[str, float]] = {}
    for labels, host, samples in list_series(RATED, *edges):
        for value in (s.value for s in samples if 0 < s.value < math.inf):
            rated.setdefault(host, {})[labels.get("scope", "node.ac")] = value
    return AgentFacts(gains, last_read, rated, round(settings.stale_s * NS))
