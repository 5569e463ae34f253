"""Turn the stored tables of a run into curves: for every scope its counters and powers, and sums of cords."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.calibrations import RunCalibrations, calibrate_channel, convert_power
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings, compute_coverage
from joulelab.analysis.result import ChannelEnergy, Check
from joulelab.analysis.slow_meters import DoubtedCurve, GuidedCurve, WatchedCurve
from joulelab.analysis.unseen import PowerBounds
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family, find_parent, rank_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.checks import LostTables
    from joulelab.analysis.readings import Ints
    from joulelab.core.spec import Spec, Stream
    from joulelab.store.run_reader import Run, TableInfo
    from joulelab.store.series import SampleSeries


FEWEST_IDLE = 3  # readings of the idle stretch needed to bound power from below
SHORTEST_READ_S = 0.02  # shortest and longest time by which two readings of one value with an age may differ
LONGEST_READ_S = 0.25
HIGH_SHARE = 0.95  # share of the readings below the power that counts as the highest load of a run
DEAD_UPDATES, DEAD_QUANTA = 10, 3  # updates and quanta of energy after which a counter that did not change is dead


class SumCurve:
    """Compute the energy of several channels together; terms of the same source add linearly.

    `readings` are sums of the values of all channels, at the times of the channel with the fewest readings.
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
    """Hold one channel of power or energy as a curve; `members` are the channels of a sum.

    `clock_s` bounds the clock error of its host against the run, None if it is unknown. `in_step`: another meter of its
    scope disagrees, so the bound of unseen energy is part of the interval. `frozen`: a counter that did not change
    although power flowed; `dead`: it should have done so several times.
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
    dead: bool = False

    @property
    def readings(self) -> Readings:
        """Return the readings of the curve."""
        return self.curve.readings

    @property
    def step_s(self) -> float:
        """Return the usual time between readings in s."""
        return self.stream.period_s

    @property
    def update_s(self) -> float:
        """Return the time between updates of the instrument, in s."""
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
        # This replaces the clock terms of a guide: the meters of a host have one clock.
        off_ns = math.ceil(self.clock_s * 1e9)
        edges = (-self.edge_u(a_ns, off_ns), self.edge_u(b_ns, off_ns))
        ends = {f"clock:{self.host}:{a_ns}": edges[0], f"clock:{self.host}:{b_ns}": edges[1]}
        return replace(found, terms={**found.terms, **ends})

    def describe_energy(self, energy: Quantity, a_ns: int, b_ns: int) -> ChannelEnergy:
        """Describe an energy of [a, b] with meter, accuracy, number of readings and coverage."""
        inside = self.readings.between(a_ns, b_ns)
        return ChannelEnergy(
            meter=self.meter,
            channel=self.spec.name,
            kind=self.spec.kind,
            energy=energy,
            accuracy=self.spec.accuracy.source,
            reference=self.spec.accuracy.reference,
            estimate=self.spec.estimate,
            readings=inside.stop - inside.start,
            coverage=self.coverage(a_ns, b_ns),
        )

    def edge_u(self, t_ns: int, off_ns: int) -> float:
        """Return the uncertainty (J) of an edge at t whose time may be wrong by up to `off_ns`."""
        if self.members:  # they are cut at the same time
            return sum(member.edge_u(t_ns, off_ns) for member in self.members)
        curve = self.curve.slow if isinstance(self.curve, (GuidedCurve, WatchedCurve)) else self.curve
        curve = curve.plain if isinstance(curve, DoubtedCurve) else curve
        assert isinstance(curve, (CounterCurve, PowerCurve))  # a sum has members
        before, here, after = (float(curve.at(t)[0]) for t in (t_ns - off_ns, t_ns, t_ns + off_ns))
        return max(abs(after - here), abs(here - before)) / math.sqrt(3)


@dataclass(frozen=True)
class ScopeChannels:
    """Hold the channels of one scope, the best first; `state` holds its slow channels (load, caps)."""

    scope: str
    host: str
    parent: str | None
    channels: tuple[EnergyChannel, ...]
    state: dict[str, Readings] = field(default_factory=dict)

    @property
    def best(self) -> EnergyChannel:
        """Return the channel whose figure is used."""
        return self.channels[0]

    @property
    def estimate(self) -> bool:
        """Return whether the energy is estimated, not measured."""
        return self.best.spec.estimate

    def find_power(self) -> EnergyChannel | None:
        """Return the channel that shows power best: the measured one with the shortest window."""
        powers = [c for c in self.channels if c.spec.kind == "power"]
        return min(powers, key=lambda c: (c.spec.estimate, c.spec.window_s or 0.0, c.step_s), default=None)


def load_channels(
    run: Run,
    idle: tuple[int, int] | None = None,
    lost: LostTables | None = None,
    calibrations: RunCalibrations | None = None,
) -> list[ScopeChannels]:
    """Read every channel of power or energy of a run, except from tables that are `lost`.

    `idle` is a time span (ns) whose power is the lower bound of unseen power. `calibrations` are those that the run
    stored unless others are given.
    """
    if calibrations is None:
        calibrations = RunCalibrations.from_events(run.events(), run.meta)
    state = read_states(run)
    found: dict[tuple[str, str], list[EnergyChannel]] = {}
    parents: dict[tuple[str, str], str | None] = {}
    for table in run.tables():
        if lost is not None and lost.has_table(table.host, table.meter, table.table):
            continue
        for stream in table.streams:
            key = (table.host, stream.scope)
            channels = _read_stream(run, table, stream, state.get(key, {}), idle, calibrations)
            if channels:
                found.setdefault(key, []).extend(channels)
                parents[key] = find_parent(stream.scope, stream.parent)
    scopes = [ScopeChannels(k[1], k[0], parents[k], _rank_channels(c), state.get(k, {})) for k, c in found.items()]
    return sorted(scopes, key=lambda s: (s.host, rank_scope(s.scope)))


def read_states(run: Run) -> dict[tuple[str, str], dict[str, Readings]]:
    """Read the slow channels by host and scope: load, caps, clocks, temperature."""
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
    """List the channels of a stream that give energy: powers, and counters in J."""
    return [c for c in stream.channels if c.kind == "power" or (c.kind == "counter" and c.unit == "J")]


def _read_stream(
    run: Run,
    table: TableInfo,
    stream: Stream,
    state: dict[str, Readings],
    idle: tuple[int, int] | None,
    calibrations: RunCalibrations,
) -> list[EnergyChannel]:
    specs = list_energy_specs(stream)
    if not specs:
        return []
    age = next((c.name for c in stream.channels if c.quantity == "age"), None)
    series = run.series(table, stream.name, channels=[c.name for c in specs] + ([age] if age else []))
    if stream.pace == "instrument":  # a read ends with the update that it waited for
        series, specs = replace(series, t0_ns=series.t1_ns), [replace(c, update_s=0.0) for c in specs]
    if age is not None:
        series, specs = _move_to_origin(series, age, stream), [replace(c, update_s=0.0) for c in specs]
    series, specs = _calibrate_stream(series, specs, calibrations, table, stream, state)
    error_ns = run.clock_error_ns(table.host)
    clock_s = None if error_ns is None else error_ns * 1e-9
    powers: list[PowerCurve] = []
    channels: list[EnergyChannel] = []
    for spec in sorted(specs, key=lambda c: c.kind == "counter"):
        readings = Readings.from_rows(series.t0_ns, series.t1_ns, series.values[spec.name])
        if len(readings) < 2:
            continue
        name = f"{table.host}/{table.meter}/{stream.name}/{spec.name}"
        if spec.kind == "power":
            bounds = _find_bounds(spec, readings, state, idle)
            power = PowerCurve(readings, spec, name=name, bounds=bounds, step_s=stream.period_s)
            powers.append(power)
            channels.append(EnergyChannel(table.host, table.meter, stream, spec, power, clock_s=clock_s))
            continue
        curve = CounterCurve(readings, spec, name=name, power=min(powers, key=lambda p: p.window_s, default=None))
        frozen = float(np.ptp(readings.value)) == 0 and any(float(p.readings.value.max()) > 1 for p in powers)
        dead = frozen and _should_change(readings, spec, powers)
        made = EnergyChannel(table.host, table.meter, stream, spec, curve, frozen, clock_s=clock_s, dead=dead)
        channels.append(made)
    return channels


def _calibrate_stream(
    series: SampleSeries,
    specs: list[Spec],
    calibrations: RunCalibrations,
    table: TableInfo,
    stream: Stream,
    state: dict[str, Readings],
) -> tuple[SampleSeries, list[Spec]]:
    """Return the values of a stream after its calibration, with its accuracy; as they are without one."""
    if not calibrations.list_fitting(table.host, table.meter, stream):
        return series, specs
    powers = [series.values[c.name] for c in specs if c.kind == "power"]
    watts = np.concatenate(powers) if powers else np.empty(0)
    watts = watts[np.isfinite(watts)]
    high_w = float(np.quantile(watts, HIGH_SHARE)) if watts.size else None
    use = calibrations.find_use(table.host, table.meter, stream, state, high_w)
    if use is None:
        return series, specs
    made = {c.name: calibrate_channel(c, series.values[c.name], *use) for c in use[0].select_channels(specs)}
    values = {**series.values, **{name: value for name, (_, value) in made.items()}}
    return replace(series, values=values), [made[c.name][0] if c.name in made else c for c in specs]


def _should_change(readings: Readings, spec: Spec, powers: Sequence[PowerCurve]) -> bool:
    """Return whether a counter had the time and the energy to change several times."""
    span_s = float(readings.t1_ns[-1] - readings.t0_ns[0]) * 1e-9
    energy = max(float(p.readings.value.mean()) for p in powers) * span_s
    return span_s >= DEAD_UPDATES * (spec.update_s or 1.0) and energy > DEAD_QUANTA * spec.accuracy.quantum


def _move_to_origin(series: SampleSeries, age: str, stream: Stream) -> SampleSeries:
    """Move rows to the time at which their values were measured, and keep the first of rows with the same value."""
    known = np.isfinite(series.values[age])
    back = np.rint(series.values[age][known] * 1e9).astype(np.int64)
    t0, t1 = series.t0_ns[known] - back, series.t1_ns[known] - back
    order = np.argsort(t0, kind="stable")
    t0, t1 = t0[order], t1[order]
    values = {name: value[known][order] for name, value in series.values.items()}
    # Times of one value differ by the time that reading takes; new values come at least a period apart.
    apart = max(min(stream.period_s / 4, LONGEST_READ_S), SHORTEST_READ_S) * 1e9
    segment = series.segment[known][order]
    if bool((np.diff(t0) > apart).all()):
        return replace(series, t0_ns=t0, t1_ns=t1, values=values, segment=segment)
    kept = [0]
    for k in range(1, t0.size):
        if t0[k] - t0[kept[-1]] > apart:
            kept.append(k)
    values = {name: value[kept] for name, value in values.items()}
    return replace(series, t0_ns=t0[kept], t1_ns=t1[kept], values=values, segment=segment[kept])


def _find_bounds(
    spec: Spec, readings: Readings, state: dict[str, Readings], idle: tuple[int, int] | None
) -> PowerBounds | None:
    """Return bounds of true power: the limits of the device, the enforced cap, and the measured idle power.

    Idle power is lowered by the gain error of the sensor.
    """
    if spec.limits is None:
        return None
    low, high = spec.limits
    cap = state.get("cap_enforced_w")
    if cap is not None and len(cap):
        high = min(high, convert_power(spec.accuracy, float(cap.value.max())))
    seen_low, seen_high = float(readings.value.min()), float(readings.value.max())
    low, high = min(low, seen_low), max(high, seen_high)
    at_rest = readings.value[readings.between(*idle)] if idle is not None else readings.value[:0]
    if at_rest.size >= FEWEST_IDLE:
        low = max(low, min(float(np.median(at_rest)) * (1 - spec.accuracy.gain), seen_low))
    return PowerBounds(low, high)


def _rank_channels(channels: list[EnergyChannel]) -> tuple[EnergyChannel, ...]:
    """Sort channels: measured before estimated, working counters before powers, known before unknown accuracy."""

    def rank_channel(c: EnergyChannel) -> tuple[bool, bool, bool, bool, float]:
        unknown = c.spec.accuracy.source == "unknown"
        return c.spec.estimate, c.frozen, not isinstance(c.curve, CounterCurve), unknown, c.spec.window_s or 0.0

    return tuple(sorted(channels, key=rank_channel))


def sum_cords(scopes: Sequence[ScopeChannels]) -> tuple[dict[tuple[str, str], list[EnergyChannel]], list[Check]]:
    """Add up the cords of each node, by host and scope; if a cord is missing, return a failed check, not a sum."""
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
            found.setdefault((host, whole), []).append(_make_sum(whole, parts))
        else:
            meters = ", ".join(dict.fromkeys(p.meter for p in parts))
            numbers = {"read": float(len(parts)), "wanted": float(wanted)}
            check = Check("cords", "failed", whole, numbers, {"part": kind, "channel": name, "meters": meters})
            lacking += [] if check in lacking else [check]
    return found, lacking


def _make_sum(scope: str, parts: list[EnergyChannel]) -> EnergyChannel:
    first = parts[0]
    meters = "+".join(dict.fromkeys(part.meter for part in parts))
    members = ", ".join(part.stream.scope for part in parts)
    stream = replace(first.stream, name=f"sum of {members}", scope=scope, parent=None, sums="", parts=0)
    frozen, dead = any(part.frozen for part in parts), any(part.dead for part in parts)
    unknown = next((p.spec.accuracy for p in parts if p.spec.accuracy.source == "unknown"), first.spec.accuracy)
    spec = replace(first.spec, accuracy=unknown, limits=None)
    return replace(
        first,
        meter=meters,
        stream=stream,
        spec=spec,
        curve=SumCurve(parts),
        members=tuple(parts),
        frozen=frozen,
        dead=dead,
    )
