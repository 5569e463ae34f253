"""Make the chart of power over time, of one run or of several in one picture, and encode it for the browser.

Pages draw it on a canvas (page/assets/profile*.js) from the JSON made here; print_painter draws it on paper.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.profile_buckets import COARSER
from joulelab.core.quantity import add_quantities
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.charts.chart_model import CommonTrace, OverlayChart, PowerChart, PowerLine, PowerSpan
from joulelab.report.run_tables import format_mean, format_rated_power

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.power_profile import PowerProfile, PowerTrace
    from joulelab.analysis.readings import Floats
    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity

TITLE = "Power over time"
VISIBLE_ROLES = ("stack", "whole", "load")
OUTER_SCOPES = ("rack", "node.")  # of several runs, drawn rather than their parts
MOST_PHASES, MOST_GAPS = 400, 200  # outer phases and long gaps first
POWER_NOTE = "Hatched: from the lowest to the highest reading. Time 0 is the start of the workload."
NO_COMMON_SCOPE = "Power over time: these runs have no measured scope in common."


def make_power_chart(profile: PowerProfile, result: Result) -> PowerChart:
    """Make the chart of power over time of one run."""
    lines, phases, gaps = list_power_lines(result), _list_phases(result), _list_gaps(result, profile)
    return PowerChart(TITLE, describe_power(result), profile, result.start_utc, lines, phases, gaps, POWER_NOTE)


def describe_power(result: Result) -> str:
    """Describe power over time in words, for the caption and for people who do not see the picture."""
    whole = result.group("measured")
    if whole is None:
        return "Power over time."
    scopes = fmt.join_scopes(list(dict.fromkeys(whole.scopes)))
    mean = f": {format_mean(whole)} on average" if whole.mean_w.is_resolved else ""
    text = f"Power over time of {scopes}{mean}"
    members = set(zip(whole.hosts, whole.scopes, strict=True))
    statistics = [s.statistics for s in result.scopes if (s.host, s.scope) in members]
    if len(statistics) == 1 and (of := statistics[0]) is not None:
        text += f", from {fmt.format_watts(of.minimum)} to {fmt.format_watts(of.maximum)}"
    return f"{text}, over {fmt.format_duration(result.duration_s)}. Time 0 is the start of the workload."


def list_power_lines(result: Result) -> tuple[PowerLine, ...]:
    """List the powers that are drawn as horizontal lines: rated, mean of the workload, idle."""
    whole = result.group("measured")
    if whole is None:
        return ()
    lines = []
    if result.rated.devices:
        part = f" ({result.rated.families})" if result.rated.unknown else ""
        lines.append(PowerLine(f"rated: {format_rated_power(result.rated)}{part}", result.rated.watts, "rated"))
    if whole.mean_w.is_resolved:
        lines.append(PowerLine(f"mean: {format_mean(whole)}", whole.mean_w.value, "mean"))
    idle_by_scope = {(s.host, s.scope): s.idle_w for s in result.scopes}
    powers = [idle_by_scope.get(key) for key in zip(whole.hosts, whole.scopes, strict=True)]
    known = [q for q in powers if q is not None]
    if known and len(known) == len(powers):
        idle = add_quantities(known).value
        lines.append(PowerLine(f"idle: {fmt.format_watts(idle)}", idle, "idle"))
    return tuple(lines)


def _list_phases(result: Result) -> tuple[PowerSpan, ...]:
    outer_first = sorted(result.phases, key=lambda p: (p.last is not None, p.depth))[:MOST_PHASES]
    ordered = sorted(outer_first, key=lambda p: (p.start_s, p.depth))
    return tuple(PowerSpan(p.title, p.start_s, p.start_s + p.duration_s, p.depth) for p in ordered)


def _list_gaps(result: Result, profile: PowerProfile) -> tuple[PowerSpan, ...]:
    """List the longest gaps: recorded gaps, and times in which one of several hosts has no readings."""
    end_ns = profile.zero_ns + round(profile.grid.to_s * 1e9)
    spans = [PowerSpan(f"{m.name}: not read, so sums have a gap", m.from_s, m.to_s) for m in profile.missing]
    for gap in result.gaps:
        label = f"{gap.meter} {gap.stream}: {gap.reason}" if gap.reason else f"{gap.meter} {gap.stream}"
        until_ns = end_ns if gap.to_ns is None else gap.to_ns
        from_s, to_s = ((t - profile.zero_ns) * 1e-9 for t in (gap.from_ns, until_ns))
        spans.append(PowerSpan(label, from_s, to_s))
    longest = sorted(spans, key=lambda span: span.from_s - span.to_s)[:MOST_GAPS]
    return tuple(sorted(longest, key=lambda span: span.from_s))


def make_overlay_chart(
    results: Sequence[Result], profiles: Sequence[PowerProfile], labels: Sequence[str], *, by_fraction: bool = False
) -> OverlayChart:
    """Make the chart of power over time of several runs in one picture."""
    charts = tuple(make_power_chart(profile, result) for profile, result in zip(profiles, results, strict=True))
    common = tuple(
        CommonTrace(label, traces, _describe_common(label, results, traces, labels))
        for label, traces in find_common_traces(profiles)
    )
    description = common[0].description if common else NO_COMMON_SCOPE
    title = "Power over the fraction of runtime" if by_fraction else TITLE
    names = tuple(escape_unprintable(result.name or result.run) for result in results)
    return OverlayChart(title, description, charts, tuple(labels), names, common, by_fraction)


def find_common_traces(profiles: Sequence[PowerProfile]) -> list[tuple[str, tuple[PowerTrace, ...]]]:
    """Find the scopes that all runs have: everything measured first, if that is the same scope in all of them.

    The wall power is the same scope in every run, whether other meters were read or not.
    """
    known = [_index_traces(profile) for profile in profiles]
    whole = tuple(profile.everything for profile in profiles)
    names = list(dict.fromkeys(map(_name_scope, whole)))
    found = [(f"everything measured ({names[0]})", whole)] if len(names) == 1 else []
    shared = [name for name in known[0] if all(name in other for other in known) and [name] != names]
    for name in sorted(shared, key=lambda name: not name.startswith(OUTER_SCOPES)):
        traces = tuple(index[name] for index in known)
        labels = {trace.label for trace in traces}
        found.append((labels.pop() if len(labels) == 1 else name, traces))
    return found


def _index_traces(profile: PowerProfile) -> dict[str, PowerTrace]:
    found: dict[str, PowerTrace] = {}
    for role in ("whole", "stack", "scope"):
        for trace in profile.traces:
            if trace.role == role:
                found.setdefault(_name_scope(trace), trace)
    return found


def _name_scope(trace: PowerTrace) -> str:
    """Return the scope of a trace without the number of its devices."""
    return re.sub(r" \(\d+\)$", "", trace.label)


def _describe_common(label: str, results: Sequence[Result], traces: Sequence[PowerTrace], labels: Sequence[str]) -> str:
    runs = []
    for name, result, trace in zip(labels, results, traces, strict=True):
        mean, time = _find_mean(result, trace), fmt.format_duration(result.duration_s)
        power = f"{fmt.format_quantity(mean, 'W')} for " if mean and mean.is_resolved else ""
        runs.append(f"{name}: {power}{time}")
    return f"Power over time of {label}. {'; '.join(runs)}."


def _find_mean(result: Result, trace: PowerTrace) -> Quantity | None:
    """Find the mean power (W) of a trace in the result, as the tables show it."""
    if trace.role == "scope":
        means = {name: s.mean_w for s in result.scopes for name in (s.scope, f"{s.host}/{s.scope}")}
        return means.get(trace.label)
    group = result.group({"whole": "measured", "rest": trace.label}.get(trace.id, trace.id))
    return group.mean_w if group else None


def encode_power_chart(chart: PowerChart) -> dict[str, Any]:
    """Encode a chart as JSON for the browser. NaN means no reading.

    Bucket k of level l begins at from_s + k * steps_s[l], in s after the start of the workload.
    """
    profile, grid = chart.profile, chart.profile.grid
    levels = profile.traces[0].levels
    return {
        "start_utc": chart.start_utc,
        "duration_s": profile.duration_s,
        "from_s": grid.from_s,
        "to_s": grid.to_s,
        "finest_s": grid.step_s,
        "raw_s": profile.raw_s,
        "steps_s": [grid.step_s * COARSER**level for level in range(len(levels))],
        "counts": [int(level.mean.size) for level in levels],
        "series": [_encode_trace(trace) for trace in profile.traces],
        "lines": [{"label": line.label, "w": line.watts, "kind": line.kind} for line in chart.lines],
        "phases": [
            {"title": escape_unprintable(p.label), "from_s": p.from_s, "to_s": p.to_s, "depth": p.depth}
            for p in chart.phases
        ],
        "gaps": [{"label": escape_unprintable(g.label), "from_s": g.from_s, "to_s": g.to_s} for g in chart.gaps],
    }


def encode_overlay_chart(chart: OverlayChart) -> dict[str, Any]:
    """Encode a chart of several runs as JSON for the browser."""
    return {
        "profiles": [encode_power_chart(each) for each in chart.charts],
        "labels": list(chart.labels),
        "common": [
            {
                "label": escape_unprintable(common.label),
                "ids": [escape_unprintable(trace.id) for trace in common.traces],
                "told": escape_unprintable(common.description),
            }
            for common in chart.common
        ],
    }


def _encode_trace(trace: PowerTrace) -> dict[str, Any]:
    return {
        "id": escape_unprintable(trace.id),
        "label": escape_unprintable(trace.label),
        "role": trace.role,
        "unit": trace.unit,
        "shown": trace.role in VISIBLE_ROLES,
        "mean": [_encode_floats(level.mean) for level in trace.levels],
        "low": [_encode_floats(level.low) for level in trace.levels],
        "high": [_encode_floats(level.high) for level in trace.levels],
    }


def _encode_floats(values: Floats) -> str:
    """Encode values as base64 of little-endian 32-bit floats."""
    return base64.b64encode(values.astype(np.dtype("<f4")).tobytes()).decode("ascii")
