"""Write power over time as data for the browser's chart: each level of each trace as base64 of 32-bit floats. Pure."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.profile_buckets import COARSER
from joulelab.core.quantity import add_quantities
from joulelab.core.text import escape_unprintable
from joulelab.report import format as fmt
from joulelab.report.rated import format_rated_power

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.power_profile import PowerProfile, PowerTrace
    from joulelab.analysis.readings import Floats
    from joulelab.analysis.result import PhaseResult, Result

SHOWN = ("stack", "whole", "load")
OUTER = ("rack", "node.")  # what is drawn of several runs rather than parts of it
MOST_PHASES, MOST_GAPS = 400, 200  # that a chart can show; the outer phases and the longest gaps first


@dataclass(frozen=True, slots=True)
class Common:
    """Hold what several runs have in common: its name, and the trace of each of them."""

    label: str
    traces: tuple[PowerTrace, ...]


def in_common(profiles: Sequence[PowerProfile]) -> list[Common]:
    """Return what can be drawn of all these runs, by what is measured: everything first where that is the same scope.

    The wall of a run with meters inside is the same as the wall of one without.
    """
    known = [_by_scope(profile) for profile in profiles]
    whole = [profile.everything for profile in profiles]
    names = list(dict.fromkeys(map(_measured, whole)))
    found = [Common(f"everything measured ({names[0]})", tuple(whole))] if len(names) == 1 else []
    shared = [name for name in known[0] if all(name in other for other in known) and [name] != names]
    for name in sorted(shared, key=lambda name: not name.startswith(OUTER)):
        traces = tuple(by[name] for by in known)
        labels = {trace.label for trace in traces}
        found.append(Common(labels.pop() if len(labels) == 1 else name, traces))
    return found


def _by_scope(profile: PowerProfile) -> dict[str, PowerTrace]:
    found: dict[str, PowerTrace] = {}
    for role in ("whole", "stack", "scope"):
        for trace in profile.traces:
            if trace.role == role:
                found.setdefault(_measured(trace), trace)
    return found


def _measured(trace: PowerTrace) -> str:
    """Return what a trace is of, however many there are."""
    return re.sub(r" \(\d+\)$", "", trace.label)


def profile_json(profile: PowerProfile, result: Result) -> dict[str, Any]:
    """Return a profile with what is drawn into it: phases, gaps, and lines for rated, idle and mean power.

    Bucket k of level l covers from_s + k * steps_s[l] on, in s from the workload's start; NaN = no reading there.
    """
    grid = profile.grid
    levels = profile.traces[0].levels
    return {
        "start_utc": result.start_utc,
        "duration_s": profile.duration_s,
        "from_s": grid.from_s,
        "to_s": grid.to_s,
        "finest_s": grid.step_s,
        "raw_s": profile.raw_s,
        "steps_s": [grid.step_s * COARSER**level for level in range(len(levels))],
        "counts": [int(level.mean.size) for level in levels],
        "series": [_series(trace) for trace in profile.traces],
        "lines": lines_of(result),
        "phases": _phases(result),
        "gaps": _gaps(result, profile),
    }


def _series(trace: PowerTrace) -> dict[str, Any]:
    return {
        "id": escape_unprintable(trace.id),
        "label": escape_unprintable(trace.label),
        "role": trace.role,
        "unit": trace.unit,
        "shown": trace.role in SHOWN,
        "mean": [packed(level.mean) for level in trace.levels],
        "low": [packed(level.low) for level in trace.levels],
        "high": [packed(level.high) for level in trace.levels],
    }


def packed(values: Floats) -> str:
    """Return values as base64 of little-endian 32-bit floats."""
    return base64.b64encode(values.astype(np.dtype("<f4")).tobytes()).decode("ascii")


def lines_of(result: Result) -> list[dict[str, Any]]:
    """Return the powers (W) that are drawn as lines over everything measured: rated, mean of the workload, idle."""
    lines: list[dict[str, Any]] = []
    whole = result.group("measured")
    if whole is None:
        return lines
    if result.rated.devices:
        part = f" ({result.rated.families})" if result.rated.unknown else ""
        lines.append(
            {"label": f"rated: {format_rated_power(result.rated)}{part}", "w": result.rated.watts, "kind": "rated"}
        )
    lines.append({"label": f"mean: {fmt.format_watts(whole.mean_w.value)}", "w": whole.mean_w.value, "kind": "mean"})
    known = {(s.host, s.scope): s.idle_w for s in result.scopes}
    idle = [known.get(key) for key in zip(whole.hosts, whole.scopes, strict=True)]
    found = [w for w in idle if w is not None]
    if found and len(found) == len(idle):
        watts = add_quantities(found).value
        lines.append({"label": f"idle: {fmt.format_watts(watts)}", "w": watts, "kind": "idle"})
    return lines


def _phases(result: Result) -> list[dict[str, Any]]:
    ranked: list[PhaseResult] = sorted(result.phases, key=lambda p: (p.last is not None, p.depth))[:MOST_PHASES]
    return [
        {"title": escape_unprintable(p.title), "from_s": p.start_s, "to_s": p.start_s + p.duration_s, "depth": p.depth}
        for p in sorted(ranked, key=lambda p: (p.start_s, p.depth))
    ]


def _gaps(result: Result, profile: PowerProfile) -> list[dict[str, Any]]:
    """Return the longest gaps: those that were recorded, and what is missing of one of several hosts."""
    end_ns = profile.zero_ns + round(profile.grid.to_s * 1e9)
    spans = [(f"{m.name}: not read, so sums have a gap", m.from_s, m.to_s) for m in profile.missing]
    for gap in result.gaps:
        label = f"{gap.meter} {gap.stream}: {gap.reason}" if gap.reason else f"{gap.meter} {gap.stream}"
        until = end_ns if gap.to_ns is None else gap.to_ns
        spans.append((label, (gap.from_ns - profile.zero_ns) * 1e-9, (until - profile.zero_ns) * 1e-9))
    longest = sorted(spans, key=lambda span: span[1] - span[2])[:MOST_GAPS]
    return [
        {"label": escape_unprintable(label), "from_s": since, "to_s": until}
        for label, since, until in sorted(longest, key=lambda span: span[1])
    ]
