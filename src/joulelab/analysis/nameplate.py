"""Find the rated power of the measured devices.

A run records it: the default or highest power limit of a GPU, the rated limit of a CPU package, and the rating of the
node in the configuration. The rating of a node covers all its devices. Without it the devices count, except GPUs that
were hidden from the workload. Unknown ratings are listed, never guessed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from joulelab.analysis.breakdown import stack_scopes
from joulelab.analysis.channels import list_energy_specs
from joulelab.analysis.result import RatedDevice, RatedResult
from joulelab.core.quantity import add_quantities
from joulelab.core.scope import find_family

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulelab.analysis.result import ScopeResult
    from joulelab.core.quantity import Quantity
    from joulelab.core.spec import Spec, Stream
    from joulelab.store.run_reader import Run

NODE_SCOPES = ("node.ac", "node.dc")
DEFAULT, HIGHEST, BUILT = "default power limit", "highest power limit", "rated limit of powercap"
GIVEN, TWIN = "rated_w of joulelab.toml", "nameplate of the twin"


def find_rated_power(
    run: Run, scopes: Sequence[ScopeResult], events: Iterable[Mapping[str, Any]], duration_s: float
) -> RatedResult:
    """Return the energy of a run by rated power x time, for these scopes."""
    events = list(events)
    watts, hidden = _find_recorded(run, events), _find_hidden_gpus(events)
    several = len({s.host for s in scopes}) > 1
    devices: list[RatedDevice] = []
    used: list[Quantity] = []
    unknown: list[str] = []
    unused: list[str] = []
    for outer, inner in stack_scopes([s for s in scopes if not s.estimate and find_family(s.scope) != "job"]):
        members = [outer] if (outer.host, outer.scope) in watts else inner or [outer]
        for s in members:
            found = watts.get((s.host, s.scope))
            name = f"{s.host}/{s.scope}" if several else s.scope
            if (s.host, s.scope.partition("/")[0]) in hidden:
                unused.append(name)
            elif found is None:
                unknown.append(name)
            else:
                devices.append(found)
                used.append(s.energy)
        if members is inner:
            unknown.append(f"{outer.host}/{outer.scope}" if several else outer.scope)
    return RatedResult(
        tuple(devices), duration_s, add_quantities(used) if used else None, tuple(unknown), tuple(unused)
    )


def _find_hidden_gpus(events: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the GPUs, by host and scope, that were hidden from a workload which could see others of the host."""
    found: dict[str, set[tuple[str, str]]] = {}
    for event in events:
        if event.get("event") == "devices":
            host, gpus = str(event.get("host", "")), event.get("gpus") or ()
            hidden = {(host, str(gpu.get("scope"))) for gpu in gpus if not gpu.get("visible", True)}
            found[host] = hidden if len(hidden) < len(gpus) else set()
    return set().union(*found.values())


def _find_recorded(run: Run, events: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], RatedDevice]:
    """Return the rated powers that a run recorded, by host and scope."""
    found: dict[tuple[str, str], RatedDevice] = {}
    for table in run.tables():
        for stream in table.streams:
            rated = _read_stream_limit(stream)
            if rated is not None:
                found[table.host, stream.scope] = RatedDevice(table.host, stream.scope, *rated)
    for event in events:
        key = (str(event.get("host", "")), str(event.get("scope", "")))
        default = event.get("default")
        if event.get("event") == "cap-set" and event.get("unit") == "W" and isinstance(default, (int, float)):
            found[key] = RatedDevice(*key, float(default), DEFAULT)
        if event.get("event") == "rated":  # of another node, as its own configuration says
            found |= _rate_node(key[0], event.get("watts"), GIVEN)
    host = str(run.meta.get("host", ""))
    for node, source in ((run.meta.get("twin"), TWIN), ((run.meta.get("options") or {}).get("node"), GIVEN)):
        found |= _rate_node(host, node.get("rated_w") if isinstance(node, dict) else None, source)
    return found


def _rate_node(host: str, given: object, source: str) -> dict[tuple[str, str], RatedDevice]:
    """Return the rating of a node (W) for both sides of its power supplies; nothing if it is not given."""
    if not isinstance(given, (int, float)) or not 0 < given < math.inf:
        return {}
    return {(host, scope): RatedDevice(host, scope, float(given), source) for scope in NODE_SCOPES}


def _read_stream_limit(stream: Stream) -> tuple[float, str] | None:
    """Return the rated power (W) in a stream's specs and its source; for a package it is the limit of its cap."""
    kind = find_family(stream.scope)
    if kind == "gpu":
        return _find_highest(list_energy_specs(stream), HIGHEST)
    return _find_highest([c for c in stream.channels if c.quantity == "cap"], BUILT) if kind == "cpu" else None


def _find_highest(specs: Iterable[Spec], source: str) -> tuple[float, str] | None:
    highest = max((c.limits[1] for c in specs if c.limits is not None and not c.estimate), default=0.0)
    return (highest, source) if 0 < highest < math.inf else None
