"""Make streams of series: one per node, instrument and scope, with units, accuracies and the scrape interval."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, cast

from joulelab.core import scope as scopes
from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.hooks import Missing
from joulelab.instruments.prometheus.queries import MODEL, UNITS, UNKNOWN, fill_labels
from joulelab.instruments.settings import seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.core.spec import Kind
    from joulelab.instruments.prometheus.client import PrometheusClient, Series, SeriesKey
    from joulelab.instruments.prometheus.queries import Query
    from joulelab.instruments.prometheus.settings import PrometheusSettings

# Channels that meters of a node have, too: the same name is shown in the same way.
QUANTITIES = {"load": "utilisation", "busy": "CPU load", "cap_enforced_w": "cap"}
MOST_GAPS = 20_000  # between samples, for the usual scrape interval


@dataclass(slots=True)
class SeriesGroup:
    """Hold the series of one stream: by channel, the query's number and the series' labels.

    An agent states the `gain` of its meter, the largest age of a value (`update_s`), and the times of scrapes (ns)
    with values that were too old (`stale`); `notes` name what was left out for that.
    """

    scope: str
    parent: str
    host: str
    meter: str = ""
    members: dict[str, tuple[int, SeriesKey]] = field(default_factory=dict)
    gain: float | None = None
    update_s: float | None = None
    stale: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def read_series(client: PrometheusClient, query: Query, since_ns: int, until_ns: int) -> Series:
    """Return the series of a query that have samples in a span (UTC)."""
    found = client.fetch_raw(query.query, since_ns, until_ns)
    return _join_users(query, {key: samples for key, samples in found.items() if samples})


def _join_users(query: Query, series: Series) -> Series:
    """Join the series of one device that differ by its users only: DCGM starts a new one with each pod.

    Series with samples of the same scrape stay apart: a GPU that pods share has one for each of them.
    """
    if not query.user_labels or any(f"{{{name}}}" in query.scope for name in query.user_labels):
        return series
    found: dict[SeriesKey, list[SeriesKey]] = {}
    for key in sorted(series):
        found.setdefault(tuple(pair for pair in key if pair[0] not in query.user_labels), []).append(key)
    joined: Series = {}
    for plain, keys in found.items():
        samples = sorted((sample for key in keys for sample in series[key]), key=lambda s: s.t_ns)
        is_one = all(before.t_ns < after.t_ns for before, after in pairwise(samples))
        joined.update({plain: samples} if is_one else {key: series[key] for key in keys})
    return joined


def find_interval(found: Sequence[Series]) -> float:
    """Return the usual time between samples, in s."""
    gaps: list[int] = []
    for samples in (samples for series in found for samples in series.values()):
        gaps += [after.t_ns - before.t_ns for before, after in pairwise(samples[-200:])]
        if len(gaps) > MOST_GAPS:
            break
    return median(gaps) / NS if gaps else 15.0


def group_series(settings: PrometheusSettings, found: Sequence[Series]) -> tuple[list[SeriesGroup], list[Missing]]:
    """Return the groups that make streams, and the series of superchips that are not read.

    Raises ConfigError if two series are one scope, Unavailable if no series is left.
    """
    groups: dict[tuple[str, ...], SeriesGroup] = {}
    missing: dict[tuple[str, str], Missing] = {}
    for number, (query, series) in enumerate(zip(settings.queries, found, strict=True)):
        for key in sorted(series):
            labels = {"label": settings.label} | dict(key)
            host, template = settings.find_host(labels), query.find_scope(labels)
            if template == UNKNOWN:
                model, scope = labels[MODEL], fill_labels(query.scope, labels, settings.where)
                metric, why = query.query.partition("{")[0], f"which part of a {model} it covers is published nowhere"
                advice = f"if you know it: queries = [{{query = '{metric}', scope = ...}}]"
                note = Missing(scope, f"{metric} is not read", why, advice, code="meter.superchip")
                missing.setdefault((host, note.what), note)
                continue
            scope, meter = (fill_labels(text, labels, settings.where) for text in (template, query.meter))
            # Channels of a preset make one stream per scope; each query of an entry is a stream of its own.
            place = ("" if settings.preset else str(number), host, meter, scope)
            parent = fill_labels(query.parent, labels, settings.where)
            group = groups.setdefault(place, SeriesGroup(scope, parent, host, meter))
            if query.name not in group.members:
                group.members[query.name] = number, key
            elif group.members[query.name][0] == number:
                raise _refuse_pair(settings, scope, dict(group.members[query.name][1]), dict(key))
            # else an exporter's older and newer name for one thing: the first is read
    if missing and not groups:
        note = next(iter(missing.values()))
        code = "unavailable.superchip"
        raise Unavailable(note.what, where=settings.label, why=note.why, next=note.next, code=code)
    ordered = sorted(groups.values(), key=lambda group: (group.host, scopes.rank_scope(group.scope)))
    return ordered, list(missing.values())


def _refuse_pair(
    settings: PrometheusSettings, scope: str, one: Mapping[str, str], two: Mapping[str, str]
) -> ConfigError:
    differ = sorted(k for k in one.keys() | two.keys() if one.get(k) != two.get(k)) or ["nothing"]
    why = "they differ in " + ", ".join(f"{k}: {one.get(k)!r} and {two.get(k)!r}" for k in differ[:4])
    advice = f"narrow the query (match = '{differ[0]}=\"{one.get(differ[0], '')}\"'), or put the label into the scope"
    what, code = f"two series are both {scope}", "config.two-series"
    return ConfigError(what, where=settings.where, why=why, next=advice, code=code)


def describe_streams(
    settings: PrometheusSettings, groups: Sequence[SeriesGroup], period_s: float, *, live: bool
) -> Iterator[tuple[SeriesGroup, Stream]]:
    """Yield each group with its stream; the cords of a node on one meter are parts of a sum."""
    feeds = wall.feeds_of(settings.config, "node.ac")
    cords = Counter((group.host, group.meter) for group in groups if scopes.find_family(group.scope) == "outlet")
    # An agent that shows the cords of a node and the node itself has added them already.
    added = {(group.host, group.meter) for group in groups if group.scope == feeds and group.meter}
    for group in groups:
        queries = [settings.queries[number] for number, _ in group.members.values()]
        channels = [_describe_channel(settings, query, group, live=live) for query in queries]
        channels += [Spec("age_s", "age", "s")] if live else []
        names = sorted(query.name.rpartition("_")[0] or query.name for query in queries)
        sums = scopes.find_family(group.scope) == "outlet" and (group.host, group.meter) not in added
        parts = max(int(settings.config.get("parts") or 1), cords[group.host, group.meter]) if sums else 0
        number, key = next(iter(group.members.values()))
        own = str(number + 1) if not settings.preset and len(settings.queries) > 1 else group.meter if live else ""
        labels = dict(key)
        yield (
            group,
            Stream(
                f"{group.scope} {own}".rstrip(),
                "_".join(names),
                group.scope,
                period_s,
                tuple(channels),
                group.parent or (feeds if sums else None),
                device=next((labels[k] for k in ("UUID", "uuid", "device", "instance") if labels.get(k)), ""),
                model=f"Prometheus: {queries[0].query}",
                sums=feeds if sums else "",
                parts=parts,
            ),
        )


def _describe_channel(settings: PrometheusSettings, query: Query, group: SeriesGroup, *, live: bool) -> Spec:
    unit = UNITS[query.unit]
    update_s = query.update_s if group.update_s is None or "update_s" in settings.config else group.update_s
    if query.kind == "state":
        return Spec(query.name, QUANTITIES.get(query.name, unit.quantity), unit.si, update_s=update_s)
    modulus = None if query.modulus is None else query.modulus * query.factor
    if query.kind == "counter" and "modulus_j" in settings.config:
        modulus = seconds(settings.label, settings.config, "modulus_j", 1.0)
    gain = query.gain or None if group.gain is None else group.gain
    default = Accuracy(
        "unknown" if gain is None else "assumed",
        gain or 0.0,
        quantum=query.quantum * query.factor,
        shared=f"{group.meter or settings.label}:{scopes.find_family(group.scope)}",
        reference=query.reference or "the entry states none",
    )
    return Spec(
        query.name,
        unit.quantity,
        unit.si,
        cast("Kind", query.kind),
        update_s,
        query.window_s if query.kind == "power" else None,
        modulus=modulus,
        accuracy=wall.stated(settings.config, default),
        # The time of the scrape is known; the age of the value at that time is not.
        lag_s=update_s if live else 0.0,
    )
