"""Compute the power of a run over time: all traces on one grid of buckets, with coarser levels for the overview.

Means add up to the printed energies. Lows and highs are those of the readings, so no level loses or invents a peak.
Buckets without readings are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulelab.analysis.analyse import RunSpan, find_span, load_joined
from joulelab.analysis.breakdown import stack_scopes
from joulelab.analysis.channels import read_states
from joulelab.analysis.job_accounting import list_account_events
from joulelab.analysis.joining import select_inner_scopes
from joulelab.analysis.profile_buckets import (
    BucketBuilder,
    Buckets,
    ScopeEnergies,
    TimeGrid,
    find_extremes,
    make_grid,
    make_levels,
)
from joulelab.core.scope import FAMILIES, find_family, rank_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.readings import Readings
    from joulelab.store.run_reader import Run

Role = Literal["stack", "whole", "scope", "other", "load", "cap", "temperature"]

MOST_VALUES = 560_000  # in all traces and levels: 3 MB as base64 of 32 bits each
MOST_SCOPES = 40  # single scopes; of more, the lowest and the highest of each family
AROUND_S = 600.0  # of the record shown before and after the workload, or the duration of a longer workload
# The states of a device that are shown: role, unit, factor, and the names of the channel, the first one first.
STATES: tuple[tuple[Role, str, float, tuple[str, ...]], ...] = (
    ("load", "%", 100.0, ("load", "busy")),
    ("cap", "W", 1.0, ("cap_enforced_w", "cap_requested_w")),
    ("temperature", "degC", 1.0, ("temperature_c",)),
)


@dataclass(frozen=True)
class PowerTrace:
    """Hold one trace: its levels, the finest first. Traces of the role `stack` add up to the trace `whole`.

    There is no trace `whole` if the stack has a single trace.
    """

    id: str
    label: str
    role: Role
    unit: str
    levels: tuple[Buckets, ...]


@dataclass(frozen=True, slots=True)
class MissingScope:
    """Hold a time span (s) in which a scope has no readings while others have: the sum of the scopes has a gap."""

    name: str
    from_s: float
    to_s: float


@dataclass(frozen=True)
class PowerProfile:
    """Hold a run's power over time; `zero_ns` is the workload's start, `raw_s` the shortest step of a meter.

    `missing` lists the scopes of runs on several hosts that leave gaps in sums.
    """

    grid: TimeGrid
    zero_ns: int
    duration_s: float
    raw_s: float
    traces: tuple[PowerTrace, ...]
    missing: tuple[MissingScope, ...] = ()

    def trace(self, ident: str) -> PowerTrace | None:
        """Return a trace by its id, or None."""
        return next((t for t in self.traces if t.id == ident), None)

    @property
    def everything(self) -> PowerTrace:
        """Return the trace of everything measured: the sum without double counting, or the only stacked trace."""
        return self.trace("whole") or next(t for t in self.traces if t.role == "stack")


def make_profile(
    run: Run, *, buckets: int | None = None, start_ns: int | None = None, end_ns: int | None = None
) -> PowerProfile | None:
    """Make the power over time of a run, or of [start, end] on one level; None where no power was measured.

    `buckets` limits the finest level; by default it has as many as a page can hold.
    """
    events = list(run.events())
    span = find_span(run, events)
    accounts = list_account_events(events)
    joined = load_joined(run, span)
    scopes = [s for s in joined.scopes if s.host not in accounts]
    if not scopes:
        return None
    plan = _TracePlan(scopes, read_states(run))
    raw_s = min(c.step_s for s in scopes for c in s.channels)
    duration_s = (span.end_ns - span.start_ns) * 1e-9
    most = buckets or max(MOST_VALUES // (4 * len(plan.traces)), 1)
    if start_ns is not None or end_ns is not None:
        first, last = _find_record(scopes, span)
        since = first if start_ns is None else (start_ns - span.start_ns) * 1e-9
        until = last if end_ns is None else (end_ns - span.start_ns) * 1e-9
        step = max((until - since) / most, raw_s)
        grid = TimeGrid(since, step, max(round((until - since) / step), 1))
    else:
        grid = make_grid(*_find_record(scopes, span), duration_s, raw_s=raw_s, most=most)
    builder = BucketBuilder(span.start_ns, span.end_ns, grid.list_edges(), find_guides(scopes))
    traces = tuple(
        PowerTrace(ident, label, role, unit, make_levels(make(builder), grid.levels))
        for ident, label, role, unit, make in plan.traces
    )
    return PowerProfile(grid, span.start_ns, duration_s, raw_s, traces, plan.find_missing(builder))


def _find_record(scopes: Sequence[ScopeChannels], span: RunSpan) -> tuple[float, float]:
    """Return start and end of the record (s from the workload's start); it includes the workload."""
    a, b = span.start_ns, span.end_ns
    around = max(AROUND_S, (b - a) * 1e-9)
    first = min(int(c.readings.t0_ns[0]) for s in scopes for c in s.channels)
    last = max(int(c.readings.t1_ns[-1]) for s in scopes for c in s.channels)
    duration = (b - a) * 1e-9
    return max(min((first - a) * 1e-9, 0.0), -around), min(max((last - a) * 1e-9, duration), duration + around)


PlannedTrace = tuple[str, str, Role, str, "Callable[[BucketBuilder], Buckets]"]


class _TracePlan:
    """Plan the traces of a run. A plan is a function of the buckets: their number depends on the number of traces."""

    def __init__(self, scopes: Sequence[ScopeChannels], states: dict[tuple[str, str], dict[str, Readings]]) -> None:
        self._scopes = scopes
        self._several = len({s.host for s in scopes}) > 1
        self._scope_energies: dict[int, ScopeEnergies] = {}
        self._stack = stack_scopes(scopes)
        parts: dict[str, list[ScopeChannels]] = {}
        for outer, inner in self._stack:
            for scope in inner or [outer]:
                parts.setdefault(find_family(scope.scope), []).append(scope)
        self._parts = parts
        self.traces: list[PlannedTrace] = [
            *self._plan_stack(),
            *self._plan_scopes(),
            *self._plan_others(),
            *_plan_states(states),
        ]

    def _plan_stack(self) -> Iterator[PlannedTrace]:
        for name in sorted(self._parts, key=lambda n: FAMILIES.index(n) if n in FAMILIES else len(FAMILIES)):
            members = self._parts[name]
            label = f"{name} ({len(members)})" if len(members) > 1 else name
            yield name, label, "stack", "W", partial(self._add_scopes, scopes=members)
        outer = [(whole, inner) for whole, inner in self._stack if inner]
        if outer:
            yield (
                "rest",
                f"rest of {_name_scopes(w for w, _ in outer)}",
                "stack",
                "W",
                partial(self._subtract_parts, outer=outer),
            )
        if outer or len(self._parts) > 1:
            tops = [whole for whole, _ in self._stack]
            yield "whole", _name_scopes(tops), "whole", "W", partial(self._add_scopes, scopes=tops)

    def _plan_scopes(self) -> Iterator[PlannedTrace]:
        alone = {id(members[0]) for members in self._parts.values() if len(members) == 1}
        alone |= {id(whole) for whole, inner in self._stack if inner} if len(self._stack) == 1 else set()
        members = [s for s in self._scopes if id(s) not in alone]
        if len(members) > MOST_SCOPES:
            members = _pick_extremes(members)
        for scope in sorted(members, key=lambda s: (rank_scope(s.scope), s.host)):
            name = self._name_scope(scope)
            yield f"scope:{name}", name, "scope", "W", partial(self._add_scopes, scopes=[scope])

    def _plan_others(self) -> Iterator[PlannedTrace]:
        """Plan traces of the other meters of a scope, if there are few scopes."""
        for scope in self._scopes if len(self._scopes) <= MOST_SCOPES else ():
            for meter in list(dict.fromkeys(c.meter for c in scope.channels))[1:]:
                own = replace(scope, channels=tuple(c for c in scope.channels if c.meter == meter))
                name = f"{self._name_scope(scope)} by {meter}"
                yield f"other:{name}", name, "other", "W", partial(self._add_scopes, scopes=[own])

    def _name_scope(self, scope: ScopeChannels) -> str:
        return f"{scope.host}/{scope.scope}" if self._several else scope.scope

    def _get_scope(self, builder: BucketBuilder, scope: ScopeChannels) -> ScopeEnergies:
        if id(scope) not in self._scope_energies:  # the plan holds all scopes, so that no id is used again
            self._scope_energies[id(scope)] = builder.compute_scope(scope)
        return self._scope_energies[id(scope)]

    def _add_scopes(self, builder: BucketBuilder, scopes: Sequence[ScopeChannels]) -> Buckets:
        return builder.add_scopes([self._get_scope(builder, s) for s in scopes])

    def _subtract_parts(
        self, builder: BucketBuilder, outer: Sequence[tuple[ScopeChannels, list[ScopeChannels]]]
    ) -> Buckets:
        energy, plain = np.zeros(builder.t.size - 1), np.zeros(builder.t.size - 1)
        for whole, inner in outer:
            for sign, scope in ((1, whole), *((-1, s) for s in inner)):
                course = self._get_scope(builder, scope)
                energy, plain = energy + sign * course.energy, plain + sign * course.plain
        shown = [builder.subtract_parts(whole, inner) for whole, inner in outer]
        silent = not all(s.t.size for s in shown)
        low, high = find_extremes([] if silent else shown, builder.t)
        return builder.make_powers(energy, plain, low, high)

    def find_missing(self, builder: BucketBuilder) -> tuple[MissingScope, ...]:
        """Find the scopes that leave gaps in the stack during the workload of a run on several hosts."""
        held = [scope for whole, inner in self._stack for scope in (whole, *inner)] if self._several else []
        there = {id(s): ~np.isnan(self._get_scope(builder, s).energy) for s in held}
        some = np.logical_or.reduce(list(there.values())) if held else np.zeros(builder.t.size - 1, bool)
        some &= (builder.t[1:] > 0) & (builder.t[:-1] < builder.duration_s)
        found: dict[tuple[str, float, float], list[str]] = {}
        for scope in held:
            turns = np.flatnonzero(np.diff(np.concatenate(([False], some & ~there[id(scope)], [False])).astype(int)))
            for first, last in turns.reshape(-1, 2):
                span = scope.host, float(builder.t[first]), float(builder.t[last])
                found.setdefault(span, []).append(scope.scope)
        count = {host: sum(s.host == host for s in held) for host in {s.host for s in held}}
        return tuple(
            MissingScope(host if len(scopes) == count[host] else f"{host}/{', '.join(scopes)}", since, until)
            for (host, since, until), scopes in found.items()
        )


def find_guides(scopes: Sequence[ScopeChannels]) -> dict[str, list[ScopeChannels]]:
    """Return the GPUs, packages and memory of each host: they guide the slow meters around them."""
    return {host: select_inner_scopes(s for s in scopes if s.host == host) for host in {s.host for s in scopes}}


def _name_scopes(scopes: Iterator[ScopeChannels] | Sequence[ScopeChannels]) -> str:
    names = [s.scope for s in scopes]
    found = list(dict.fromkeys(find_family(n) if len(names) > 1 else n for n in names))
    return " + ".join(found) + (f" ({len(names)})" if len(names) > len(found) else "")


def _pick_extremes(scopes: Sequence[ScopeChannels]) -> list[ScopeChannels]:
    """Return the scopes of each family with the least and the most power."""
    by: dict[str, list[tuple[float, int, ScopeChannels]]] = {}
    for number, scope in enumerate(scopes):
        power = scope.find_power() or scope.best
        used = float(power.readings.value.mean()) if power.spec.kind == "power" else float(power.readings.value[-1])
        by.setdefault(find_family(scope.scope), []).append((used, number, scope))
    return [pick(members)[2] for members in by.values() for pick in ((min, max) if len(members) > 1 else (min,))]


def _plan_states(states: dict[tuple[str, str], dict[str, Readings]]) -> Iterator[PlannedTrace]:
    """Plan the traces of load, caps and temperature, one per family of devices."""
    for role, unit, factor, names in STATES:
        by: dict[str, list[Readings]] = {}
        for (_, scope), found in sorted(states.items(), key=lambda item: (item[0][0], rank_scope(item[0][1]))):
            readings = next((found[n] for n in names if n in found and len(found[n])), None)
            if readings is not None and scope != "workload":
                by.setdefault(find_family(scope), []).append(readings)
        for name, members in by.items():
            label = f"{name} {role}" + (f" ({len(members)})" if len(members) > 1 else "")
            make = partial(_merge_states, members=members, role=role, factor=factor)
            yield f"{role}:{name}", label, role, unit, make


def _merge_states(builder: BucketBuilder, members: Sequence[Readings], role: Role, factor: float) -> Buckets:
    """Add the caps of devices; of loads and temperatures return the mean, the lowest and the highest."""
    found = [builder.compute_state(readings, factor) for readings in members]
    low, high = np.array([b.low for b in found]), np.array([b.high for b in found])
    mean = np.array([b.mean for b in found])
    if role == "cap":
        return Buckets(mean.sum(axis=0), low.sum(axis=0), high.sum(axis=0))
    there = (~np.isnan(mean)).sum(axis=0)
    sums = np.where(np.isnan(mean), 0.0, mean).sum(axis=0)
    means = np.divide(sums, there, out=np.full(there.size, np.nan), where=there > 0)
    return Buckets(means, np.fmin.reduce(low), np.fmax.reduce(high))
