"""Turn the live state of a node into labels and samples: which stream is which metric."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING

from joulelab.analysis.live_state import NOW_S, CordSum, StreamState
from joulelab.core.clock import NS

if TYPE_CHECKING:
    from joulelab.analysis.live_state import LiveState

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
