"""Write down what Slurm told of a job as archives do: two rows of a counter, or a gap with its reason."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS
from joulelab.core.errors import ReadFailed
from joulelab.core.spec import Accuracy, Fetched, Spec, Stream
from joulelab.instruments.slurm.client import node_names
from joulelab.instruments.slurm.rows import UNKNOWN, too_short
from joulelab.instruments.wall import feeds_of, stated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.slurm.plugins import Sampling
    from joulelab.instruments.slurm.rows import Component, Energy, Known

# A total is known at the job's own edges and nowhere else: how far those are off is in the quantum, see `_accuracy`.
_AT_ITS_EDGES_S = 1e-9


def stream_of(
    scope: str, parent: str | None, joules: int | None, times: tuple[int, ...], sampling: Sampling, **about: Any
) -> Stream:
    """Return the stream of a total; `about` are `device` (the job) and `config` (an accuracy that is stated)."""
    span = max((times[1] - times[0]) / NS, 1.0)
    accuracy = _accuracy(joules, span, sampling, about.get("config", {}))
    spec = Spec("energy_j", "energy", "J", "counter", _AT_ITS_EDGES_S, accuracy=accuracy)
    model = f"slurm {sampling.plugin.name}"
    return Stream(scope, "job", scope, span, (spec,), parent, device=about["device"], model=model)


def _accuracy(joules: int | None, span_s: float, sampling: Sampling, config: Mapping[str, Any]) -> Accuracy:
    """Return the accuracy of a total: gain of the meter, and as its step the energy of one look while the job worked.

    A look's time may be missing from the total, with idle time in its place: the power at work may be as much as the
    total over the rest of the time. Of a job below two looks that rest is next to nothing, and no interval is stated.
    """
    mean = (joules or 0) / span_s
    working = (joules or 0) / max(span_s - sampling.edge_s, sampling.edge_s)
    accuracy = stated(config, sampling.plugin.accuracy(1.0 + working * sampling.edge_s))
    if too_short(span_s, sampling):
        why = f"it lasted {span_s:.0f} s, below two looks of {sampling.frequency_s:g} s at the meter"
        accuracy = replace(accuracy, source="unknown", reference=why)
    if not accuracy.offset:
        return accuracy
    # An offset is in W of a node: for an energy it is a share of the power.
    return replace(accuracy, offset=0.0, gain=accuracy.gain + (accuracy.offset / mean if mean else 0.0))


def fetched_of(
    stream: Stream, times: tuple[int, ...], joules: int | None, reason: str, host: str, events: Sequence[dict[str, Any]]
) -> Fetched:
    """Return 0 J at the start and the energy at the end; without one both are NaN, and a gap says why."""
    start, end = times
    if joules is None:
        gap = {"meter": "slurm", "stream": stream.name}
        told = [{"t": start, "event": "gap", **gap, "reason": reason, "error": "ReadFailed"}]
        told.append({"t": end, "event": "gap-end", **gap})
        return Fetched(stream, ((start, start, (math.nan,)), (end, end, (math.nan,))), host, (*events, *told))
    return Fetched(stream, ((start, start, (0.0,)), (end, end, (float(joules),))), host, tuple(events))


def problem(t: int, what: str) -> dict[str, Any]:
    """Return the event that tells a problem."""
    return {"t": t, "event": "problem", "meter": "slurm", "what": what}


def nodes_of(components: Sequence[Component]) -> str:
    """Return the nodes of all components as Slurm writes them."""
    return ",".join(dict.fromkeys(component.row.nodes for component in components if component.row.nodes))


def account(
    components: Sequence[Component],
    sampling: Sampling,
    energy: Energy,
    doubts: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    known: Known = UNKNOWN,
) -> tuple[Fetched, dict[str, Any]]:
    """Return a job's energy as a stream, and what is to be known of it beside our own meters. Raises ReadFailed.

    `config` may state the accuracy, and the side of the supplies (`feeds`) that a node's plugin is on.
    """
    first, plugin, config = components[0].row, sampling.plugin, config or {}
    nodes = node_names(nodes_of(components))
    times = energy.times
    if times is None:
        raise ReadFailed(f"job {first.job} has no times", where="slurm", why=energy.reason, next="ask again later")
    stream = stream_of("job", None, energy.joules, times, sampling, device=first.job, config=config)
    events = [problem(times[0], text) for text in (*energy.doubts, *doubts)]
    covers = plugin.parts if len(plugin.parts) > 1 or "feeds" not in config else (feeds_of(config, plugin.scope),)
    facts = {
        "job": first.job,
        "raw": first.raw,
        "state": first.state,
        "exit_code": first.exit_code,
        "nodes": nodes,
        "row": energy.row,
        "holds": _held(nodes, energy.row, known),
        "energy_j": energy.joules,
        "reason": energy.reason,
        "start_utc_ns": times[0],
        "end_utc_ns": times[1],
        "plugin": plugin.name,
        "covers": list(covers),
        "frequency_s": sampling.frequency_s,
        "rows": {f".{row.step}": row.energy_j for c in components for row in c.steps},
    }
    return fetched_of(stream, times, energy.joules, energy.reason, "", events), facts


def _held(nodes: Sequence[str], row: str, known: Known) -> list[str]:
    """Return the nodes whose record lies inside a row: all of the job's, or those that a step of ours recorded."""
    if known.step and row == f".{known.step}":
        return [node for node in nodes if node != known.host]
    return [] if any(letter.isdigit() for letter in row) else list(nodes)
