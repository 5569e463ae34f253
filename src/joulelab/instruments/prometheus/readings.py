"""Turn samples into readings: in SI, in streams, with how often they come."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from joulelab.core import scope as scopes
from joulelab.core.clock import NS
from joulelab.instruments import wall
from joulelab.instruments.prometheus.setup import grouped, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulelab.core.spec import Stream
    from joulelab.instruments.prometheus.agent import Agents
    from joulelab.instruments.prometheus.api import Series
    from joulelab.instruments.prometheus.query import Query
    from joulelab.instruments.prometheus.setup import Group, Key, Settings

# Labels that dcgm-exporter takes from Kubernetes, or Prometheus renames: they say who uses a GPU, not which it is.
POD_LABELS = ("pod", "namespace", "container", "pod_uid", "exported_pod", "exported_namespace", "exported_container")
MOST_GAPS = 20_000  # between samples, of which the usual one is taken


def streams_of(
    asked: Settings, found: Sequence[Series], period_s: float, agents: Agents, *, live: bool
) -> Iterator[tuple[Group, Stream]]:
    """Yield the streams that the series of all queries make. Raises ConfigError where two series are one scope."""
    groups = agents.known_of(grouped(asked, found))
    cords = Counter((g.host, g.meter) for g in groups if scopes.find_family(g.scope) == "outlet")
    whole = {(g.host, g.meter) for g in groups if g.scope == wall.feeds_of(asked.config, "node.ac")}
    for group in groups:
        key = group.host, group.meter
        # An agent that shows the cords of a node and what they feed has added them up itself.
        yield group, stream_of(asked, group, 0 if key in whole and group.meter else cords[key], period_s, live=live)


def si_of(query: Query, value: float) -> float | None:
    """Return a value in SI, None for what is no reading."""
    if not math.isfinite(value) or (query.zero_is_gap and value == 0):
        return None
    return value * query.factor


def known(series: Series) -> Series:
    """Return the series that have samples."""
    return {key: samples for key, samples in series.items() if samples}


def join_pods(query: Query, series: Series) -> Series:
    """Join the series of one GPU that differ by the pod that used it: DCGM starts a new one with each pod.

    Series that have samples of the same scrape stay apart: a GPU that pods share has one for each of them.
    """
    if not query.query.startswith("DCGM_") or any(f"{{{name}}}" in query.scope for name in POD_LABELS):
        return series
    found: dict[Key, list[Key]] = {}
    for key in sorted(series):
        found.setdefault(tuple((name, value) for name, value in key if name not in POD_LABELS), []).append(key)
    joined: Series = {}
    for plain, keys in found.items():
        samples = sorted((sample for key in keys for sample in series[key]), key=lambda s: s.t1)
        is_one = all(before.t1 < after.t1 for before, after in pairwise(samples))
        joined.update({plain: samples} if is_one else {key: series[key] for key in keys})
    return joined


def interval_s(found: Sequence[Series]) -> float:
    """Return how often samples come, in s."""
    gaps: list[int] = []
    for samples in (samples for series in found for samples in series.values()):
        gaps += [after.t1 - before.t1 for before, after in pairwise(samples[-200:])]
        if len(gaps) > MOST_GAPS:
            break
    return median(gaps) / NS if gaps else 15.0
