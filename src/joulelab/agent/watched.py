"""Turn the live state of a node into labels and samples: which stream is which metric."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING

from joulelab.analysis.live_state import NOT_POWER, NOW_S, CordSum, StreamState
from joulelab.core.clock import NS
from joulelab.core.scope import find_family

if TYPE_CHECKING:
    from joulelab.agent.collect import Seen
    from joulelab.analysis.live_state import LiveState
    from joulelab.integrations.opentelemetry_export import HardwareReading

# Which state channels become which metric: by the channel's name, or by its unit.
STATES = {
    "load": "joulelab_load_ratio",
    "busy": "joulelab_load_ratio",
    "cap_enforced_w": "joulelab_cap_watts",
    "cap_requested_w": "joulelab_cap_requested_watts",
    "power_w": "joulelab_phase_power_watts",
}
UNITS = {"degC": "joulelab_temperature_celsius", "A": "joulelab_current_amperes"}


@dataclass(frozen=True, slots=True)
class MetricPlace:
    """Hold the labels that nearly all metrics have."""

    scope: str
    meter: str
    device: str


def find_place(source: StreamState | CordSum) -> MetricPlace:
    """Return the labels of a stream, or of a sum: that names the meters of all its parts."""
    if isinstance(source, CordSum):
        return MetricPlace(source.scope, source.meter, "")
    return MetricPlace(source.stream.scope, source.meter, source.stream.device)


def find_power_now(source: StreamState | CordSum, now_ns: int) -> float:
    """Return the power now in W, NaN where no reading is now."""
    power = source.find_power(now_ns - round(NOW_S * NS), now_ns)
    return nan if power is None else power.watts


def list_sums(state: LiveState) -> list[CordSum]:
    """Return the scopes that are sums of streams, complete or not, without those that a meter reads itself."""
    whole = {(one.stream.scope, one.meter) for one in state.streams.values() if one.gives_energy}
    return [cords for cords in state.list_cord_sums() if (cords.scope, cords.meter) not in whole]


def list_hardware(seen: Seen, host: str, chosen: dict[str, str]) -> list[HardwareReading]:
    """Return energy and power of each scope for OTLP, from one meter; `chosen` keeps the meter of each scope.

    A counter that changed from one meter to another would jump.
    """
    from joulelab.integrations.opentelemetry_export import HardwareReading

    found: dict[str, HardwareReading] = {}
    sources: list[StreamState | CordSum] = [s for s in seen.streams if s.gives_energy and s.last_ns]
    for source in sorted((*sources, *seen.sums), key=_rank_source):
        place, energy_j, power_w = find_place(source), source.energy_j, find_power_now(source, seen.now_ns)
        is_known = isfinite(energy_j) or isfinite(power_w)
        if not is_known or find_family(place.scope) in NOT_POWER:
            continue
        if place.scope not in found and chosen.setdefault(place.scope, place.meter) == place.meter:
            stream = None if isinstance(source, CordSum) else source.stream
            parent, model = (None, "") if stream is None else (stream.parent, stream.model)
            found[place.scope] = HardwareReading(host, place.scope, parent, model, energy_j, power_w)
    return list(found.values())


def _rank_source(source: StreamState | CordSum) -> tuple[bool, bool]:
    """Sort measured before estimated, counters before integrated powers."""
    members = source.members if isinstance(source, CordSum) else [source]
    return any(channel.spec.estimate for member in members for channel in member.channels), source.source != "counter"


def find_states(source: StreamState) -> dict[str, float]:
    """Return the metrics of a stream's states by name, each once; values that were not read are left out."""
    found: dict[str, float] = {}
    named: set[str] = set()
    for channel, value in zip(source.stream.channels, source.row, strict=False):
        name = STATES.get(channel.name) or UNITS.get(channel.unit, "") if channel.kind == "state" else ""
        if name and name not in named:
            named.add(name)
            if isfinite(value):
                found[name] = value
    return found
