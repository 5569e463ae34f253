"""Turn the stored tables of a run into curves: for every scope its counters and powers, and sums of cords."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings, compute_coverage
from joulelab.analysis.result import Check
from joulelab.analysis.slow_meters import DoubtedCurve, GuidedCurve, WatchedCurve
from joulelab.analysis.unseen import PowerBounds
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family, find_parent, rank_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.checks import LostTables
    from joulelab.analysis.readings import Ints
    from joulelab.core.spec import Spec, Stream
    from joulelab.store.run import Run, TableInfo
    from joulelab.store.series import Series


class SumCurve:
    """Answer the energy of several channels together: each has its own terms, what they share adds linearly.

    `readings` are their powers (W) at the times of the one that was read least; a sum of counters has none of its own.
    """

    def __init__(self, parts: Sequence[EnergyChannel]) -> None:
        self.parts = tuple(parts)
        base = min(self.parts, key=lambda c: len(c.readings)).readings
        value = np.zeros(len(base))
        for part in self.parts:
            r = part.readings
            value = value + np.interp((base.t0_ns - r.t0_ns[0]).astype(np.float64), r.t0_ns - r.t0_ns[0], r.value)
        self.readings = Readings(base.t0_ns, base.t1_ns, value)

    def energy(self, a_ns: int, b_ns: int, *, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J."""
        return add_quantities(part.energy(a_ns, b_ns, steps_ns) for part in self.parts)


Curve = CounterCurve | PowerCurve | GuidedCurve | WatchedCurve | DoubtedCurve | SumCurve


@dataclass(frozen=True)
class EnergyChannel:
    """Hold one energy-bearing channel of a scope as a curve; `members` are the channels that a sum is made of.

    `clock_s` bounds how far the times of its host may be off those of the run, None where that is not known. `in_step`:
    another meter of its scope disagrees, so what its sensor cannot see counts in the interval.
    """

    host: str
    meter: str
    stream: Stream
    spec: Spec
    curve: Curve
    frozen: bool = False
    members: tuple[EnergyChannel, ...] = ()
    clock_s: float | None = 0.0
    in_step: bool = False

    @property
    def readings(self) -> Readings:
        """Return what was read."""
        return self.curve.readings

    @property
    def step_s(self) -> float:
        """Return the usual time between readings in s."""
        return self.stream.period_s

    @property
    def update_s(self) -> float:
        """Return how often the instrument refreshes, in s."""
        curve = self.curve.slow if isinstance(self.curve, (GuidedCurve, WatchedCurve)) else self.curve
        return curve.update_s if isinstance(curve, PowerCurve) else self.spec.update_s or 0.0

    def coverage(self, a_ns: int, b_ns: int) -> float:
        """Return the share of [a, b] with readings."""
        if self.members:
            return min(member.coverage(a_ns, b_ns) for member in self.members)
        return compute_coverage(self.readings, a_ns, b_ns, self.step_s)

    def energy(self, a_ns: int, b_ns: int, steps_ns: Ints | None = None) -> Quantity:
        """Return the energy of [a, b] in J."""
        found = self.curve.energy(a_ns, b_ns, steps_ns=steps_ns)
        if self.in_step:
            found = found.with_bound()
        if self.members or self.clock_s == 0 or a_ns == b_ns:
            return found
        if self.clock_s is None:
            return replace(found, known=False)
        # In place of what a guide has of it: the meters of a host have one clock.
        off_ns = math.ceil(self.clock_s * 1e9)
        edges = (-self.edge_u(a_ns, off_ns), self.edge_u(b_ns, off_ns))
        ends = {f"clock:{self.host}:{a_ns}": edges[0], f"clock:{self.host}:{b_ns}": edges[1]}
        return replace(found, terms={**found.terms, **ends})

    def edge_u(self, t_ns: int, off_ns: int) -> float:
        """Return what an edge at t is worth that may lie so far to either side (J)."""
        if self.members:  # they are cut at the same time
            return sum(member.edge_u(t_ns, off_ns) for member in self.members)
        curve = self.curve.slow if isinstance(self.curve, (GuidedCurve, WatchedCurve)) else self.curve
        curve = curve.plain if isinstance(curve, DoubtedCurve) else curve
        assert isinstance(curve, (CounterCurve, PowerCurve))  # a sum has members
        before, here, after = (float(curve.at(t)[0]) for t in (t_ns - off_ns, t_ns, t_ns + off_ns))
        return max(abs(after - here), abs(here - before)) / math.sqrt(3)


@dataclass(frozen=True)
class ScopeChannels:
    """Hold the channels of one scope, the one to believe first; `state` are slow channels of the same scope."""

    scope: str
    host: str
    parent: str | None
    channels: tuple[EnergyChannel, ...]
    state: dict[str, Readings] = field(default_factory=dict)

    @property
    def best(self) -> EnergyChannel:
        """Return the channel to believe."""
        return self.channels[0]

    @property
    def estimate(self) -> bool:
        """Return whether it is an estimate, not a measurement."""
        return self.best.spec.estimate

    def power(self) -> EnergyChannel | None:
        """Return the channel whose readings show power best: measured, and with the shortest window."""
        powers = [c for c in self.channels if c.spec.kind == "power"]
        return min(powers, key=lambda c: (c.spec.estimate, c.spec.window_s or 0.0, c.step_s), default=None)


def load_channels(run: Run, idle: tuple[int, int] | None = None, lost: LostTables | None = None) -> list[ScopeChannels]:
    """Read every energy-bearing channel of a run, but for tables that are `lost`.

    `idle` is an interval (ns) whose power bounds what was unseen.
    """
    state = read_states(run)
    found: dict[tuple[str, str], list[EnergyChannel]] = {}
    parents: dict[tuple[str, str], str | None] = {}
    for table in run.tables():
        if lost is not None and lost.has_table(table.host, table.meter, table.table):
            continue
        for stream in table.streams:
            key = (table.host, stream.scope)
            channels = _channels(run, table, stream, state.get(key, {}), idle)
            if channels:
                found.setdefault(key, []).extend(channels)
                parents[key] = find_parent(stream.scope, stream.parent)
    scopes = [ScopeChannels(k[1], k[0], parents[k], _best_first(c), state.get(k, {})) for k, c in found.items()]
    return sorted(scopes, key=lambda s: (s.host, rank_scope(s.scope)))


def read_states(run: Run) -> dict[tuple[str, str], dict[str, Readings]]:
    """Return the slow channels by scope: load, caps, clocks, temperature."""
    state: dict[tuple[str, str], dict[str, Readings]] = {}
    for table in run.tables():
        for stream in table.streams:
            names = [c.name for c in stream.channels if c.kind == "state"]
            if not names:
                continue
            series = run.series(table, stream.name, channels=names)
            into = state.setdefault((table.host, stream.scope), {})
            into.update({n: Readings.from_rows(series.t0_ns, series.t1_ns, series.values[n]) for n in names})
    return state


def list_energy_specs(stream: Stream) -> list[Spec]:
    """Return the channels of a stream that give energy: powers, and counters in J."""
    return [c for c in stream.channels if c.kind == "power" or (c.kind == "counter" and c.unit == "J")]


def _channels(
    run: Run, table: TableInfo, stream: Stream, state: dict[str, Readings], idle: tuple[int, int] | None
) -> list[EnergyChannel]:
    specs = list_energy_specs(stream)
    if not specs:
        return []
    age = next((c.name for c in stream.channels if c.quantity == "age"), None)
    series = run.series(table, stream.name, channels=[c.name for c in specs] + ([age] if age else []))
    if stream.pace == "instrument":  # a read ends with the update that it waited for
        series, specs = replace(series, t0_ns=series.t1_ns), [replace(c, update_s=0.0) for c in specs]
    if age is not None:
        series, specs = _at_their_origin(series, age, stream), [replace(c, update_s=0.0) for c in specs]
    error_ns = run.clock_error_ns(table.host)
    clock_s = None if error_ns is None else error_ns * 1e-9
    powers: list[PowerCurve] = []
    channels: list[EnergyChannel] = []
    for spec in sorted(specs, key=lambda c: c.kind == "counter"):
        readings = _readings(series, spec.name)
        if len(readings) < 2:
            continue
        name = f"{table.host}/{table.meter}/{stream.name}/{spec.name}"
        if spec.kind == "power":
            bounds = _idle_bound(_bounds(spec, readings, state), readings, spec, idle)
            power = PowerCurve(readings, spec, name=name, bounds=bounds, step_s=stream.period_s)
            powers.append(power)
            channels.append(EnergyChannel(table.host, table.meter, stream, spec, power, clock_s=clock_s))
            continue
        curve = CounterCurve(readings, spec, name=name, power=min(powers, key=lambda p: p.window_s, default=None))
        frozen = float(np.ptp(readings.value)) == 0 and any(float(p.readings.value.max()) > 1 for p in powers)
        channels.append(EnergyChannel(table.host, table.meter, stream, spec, curve, frozen, clock_s=clock_s))
    return channels


def _at_their_origin(series: Series, age: str, stream: Stream) -> Series:
    """Move rows to the time that their values are of, and keep the first of those that show one and the same."""
    known = np.isfinite(series.values[age])
    back = np.rint(series.values[age][known] * 1e9).astype(np.int64)
    t0, t1 = series.t0_ns[known] - back, series.t1_ns[known] - back
    order = np.argsort(t0, kind="stable")
    t0, t1 = t0[order], t1[order]
    values = {name: value[known][order] for name, value in series.values.items()}
    # What is read again differs in its time by how long the readings took; new values come at least a period apart.
    apart = max(min(stream.period_s / 4, 0.25), 0.02) * 1e9
    segment = series.segment[known][order]
    if bool((np.diff(t0) > apart).all()):
        return replace(series, t0_ns=t0, t1_ns=t1, values=values, segment=segment)
    kept = [0]
    for k in range(1, t0.size):
        if t0[k] - t0[kept[-1]] > apart:
            kept.append(k)
    values = {name: value[kept] for name, value in values.items()}
    return replace(series, t0_ns=t0[kept], t1_ns=t1[kept], values=values, segment=segment[kept])


def _readings(series: Series, name: str) -> Readings:
    return Readings.from_rows(series.t0_ns, series.t1_ns, series.values[name])


def _bounds(spec: Spec, readings: Readings, state: dict[str, Readings]) -> PowerBounds | None:
    """Return bounds of true power: limits of the device, lowered to the enforced cap and to what its load allows."""
    if spec.limits is None:
        return None
    low, high = spec.limits
    cap = state.get("cap_enforced_w")
    if cap is not None and len(cap):
        high = min(high, float(cap.value.max()))
    seen_low, seen_high = float(readings.value.min()), float(readings.value.max())
    return PowerBounds(min(low, seen_low), max(high, seen_high))


def _idle_bound(
    bounds: PowerBounds | None, readings: Readings, spec: Spec, idle: tuple[int, int] | None
) -> PowerBounds | None:
    """Raise the lower bound to the measured idle power, less the sensor's gain error."""
    if bounds is None or idle is None:
        return bounds
    values = readings.value[readings.between(*idle)]
    if values.size < 3:
        return bounds
    measured = float(np.median(values)) * (1 - spec.accuracy.gain)
    return PowerBounds(max(bounds.low, min(measured, float(readings.value.min()))), bounds.high)


def _best_first(channels: list[EnergyChannel]) -> tuple[EnergyChannel, ...]:
    """Put measured before estimated, a working counter before a power, a known accuracy before an unknown one."""

    def rank(c: EnergyChannel) -> tuple[bool, bool, bool, bool, float]:
        unknown = c.spec.accuracy.source == "unknown"
        return c.spec.estimate, c.frozen, not isinstance(c.curve, CounterCurve), unknown, c.spec.window_s or 0.0

    return tuple(sorted(channels, key=rank))


def sum_cords(scopes: Sequence[ScopeChannels]) -> tuple[dict[tuple[str, str], list[EnergyChannel]], list[Check]]:
    """Return the sums by host and scope, and a failed check for each that lacks a cord: there is no sum then."""
    groups: dict[tuple[str, str, str, str, str], list[EnergyChannel]] = {}
    for scope in scopes:
        for channel in scope.channels:
            stream = channel.stream
            if stream.sums:
                # Supplies are counted by the meter that lists them, outlets over all PDUs.
                by = "" if find_family(stream.scope) == "outlet" else channel.meter
                key = (scope.host, stream.sums, find_family(stream.scope), by, channel.spec.name)
                groups.setdefault(key, []).append(channel)
    found: dict[tuple[str, str], list[EnergyChannel]] = {}
    lacking: list[Check] = []
    for (host, whole, kind, _, name), parts in groups.items():
        wanted = max(part.stream.parts for part in parts)
        if len(parts) == wanted:
            found.setdefault((host, whole), []).append(_sum(whole, parts))
        else:
            meters = ", ".join(dict.fromkeys(p.meter for p in parts))
            numbers = {"read": float(len(parts)), "wanted": float(wanted)}
            check = Check("cords", "failed", whole, numbers, {"part": kind, "channel": name, "meters": meters})
            if check not in lacking:
                lacking.append(check)
    return found, lacking


def _sum(scope: str, parts: list[EnergyChannel]) -> EnergyChannel:
    first = parts[0]
    meters = "+".join(dict.fromkeys(part.meter for part in parts))
    members = ", ".join(part.stream.scope for part in parts)
    stream = replace(first.stream, name=f"sum of {members}", scope=scope, parent=None, sums="", parts=0)
    frozen = any(part.frozen for part in parts)
    unknown = next((p.spec.accuracy for p in parts if p.spec.accuracy.source == "unknown"), first.spec.accuracy)
    spec = replace(first.spec, accuracy=unknown, limits=None)
    return replace(
        first, meter=meters, stream=stream, spec=spec, curve=SumCurve(parts), members=tuple(parts), frozen=frozen
    )
