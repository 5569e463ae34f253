"""Read the steps of a staircase from a run: mean powers of the reference, the devices and what is measured beside."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.analyse import find_span
from joulelab.analysis.calibration_fit import FEWEST_UPDATES, BesideMeter, FittedDevice, LoadSteps, ReferenceMeter
from joulelab.analysis.calibrations import RunCalibrations, read_drivers
from joulelab.analysis.channels import load_channels, read_states
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.joining import OUTER_FAMILIES, join_meters
from joulelab.analysis.marked_phases import list_phases
from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import count_independent
from joulelab.analysis.slow_meters import GuidedCurve, WatchedCurve
from joulelab.calibration.staircase import PHASE
from joulelab.core.errors import ConfigError
from joulelab.core.scope import find_family, rank_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.calibration_fit import SupplyPrior
    from joulelab.analysis.channels import EnergyChannel, ScopeChannels
    from joulelab.analysis.readings import Floats, Readings
    from joulelab.store.run_reader import Run

NS = 1_000_000_000
# Left out after a load has settled, and before it ends, beside the time that the reference takes: lags that nobody
# states, and edges.
SETTLE_S, MARGIN_S = 2.0, 0.5
MOST_LEFT_OUT = 0.4  # of the steps: of one GPU half are idle and steady at once, so the loads may all be left out
BEGIN_S = 10.0  # until a load is steady, for the length of steps that a refusal names
STEADY_SHARE = 0.03  # of its range: a device that differs by less from its median in the step has settled
# A long step is several rows: fans and temperatures still change in it, which separates them from the load.
PART_S, PART_UPDATES = 10.0, 10
LEAST_U_W = 0.02  # no mean is better known, whatever the readings say
SHORTEST_S = 1.0
GAP_UPDATES, GAP_S = 4.0, 0.5  # updates, and time, without a reading after which a step does not count
LEAST_BESIDE = 0.02  # relative error that a power beside the devices has at least
WALL_FAMILIES = ("node.ac", "outlet", "psu", "rack")  # in front of power supplies
# Kinds of error that steps do not scatter by, and those of changing loads: a step is constant, its own scatter counts.
OTHER_KINDS = ("gain", "offset", "lag", "unseen", "in-step", "sampling", "missed")
FIXED_FANS = 0.02  # relative change of their speed below which fans count as fixed
FEWEST_FANS, CUBE_POINTS = 5, 41
FAN_SHARE = 0.15  # of the node's highest power: what fans draw at most
# A run of the idle node without the devices.
RESTART_U_W = 3.5  # standard deviation of a node's idle power between starts, and while it drifts
ZERO_S, ZERO_PART_S = 30.0, 10.0  # its shortest length, and that of the means by which it is seen to be steady
ZERO_CHANGE_W = 10.0  # by which these means may differ: idle processes, not a load
ZERO_FANS = 0.03  # relative difference of fixed fans from those of the staircase


@dataclass(frozen=True)
class FitOptions:
    """Hold what a staircase is fitted by: the reference meter, the devices (scopes), and what is known of the node.

    `zero` is a run of the idle node without the devices. `accept_far` takes gains and offsets beyond the assumed ones.
    """

    reference: str
    devices: tuple[str, ...]
    supply: SupplyPrior | None = None
    has_fixed_fans: bool = False
    zero: Run | None = None
    accept_far: bool = False


@dataclass(frozen=True)
class RecordedSteps:
    """Hold what a run shows: steps, devices and reference for the fit, and the identity of each.

    `count` is the number of steps, `left_out` of those that are not steady or lack readings.
    """

    steps: LoadSteps
    devices: tuple[FittedDevice, ...]
    reference: ReferenceMeter
    beside: tuple[BesideMeter, ...]
    channels: tuple[EnergyChannel, ...]
    reference_channel: EnergyChannel
    drivers: dict[str, str]
    count: int
    left_out: int


def read_steps(run: Run, options: FitOptions) -> RecordedSteps:
    """Read the steps of a run for devices, against a reference meter. Raises ConfigError."""
    joined = _Joined(run)
    measured = joined.find_reference(options.reference)
    channels = [joined.find_device(scope, options.reference) for scope in options.devices]
    windows, left_out = joined.list_windows(channels, measured)
    if left_out >= MOST_LEFT_OUT * (len(windows) + left_out):
        what = "the run has too few steady steps to fit" if windows else "the run has no steps to fit"
        why = f"{left_out} phases named {PHASE!r} have no steady part of {_find_shortest_s(measured):g} s without gaps"
        settle_s, margin_s = find_edges_s(measured)
        needed_s = max(60.0, BEGIN_S + settle_s + _find_shortest_s(measured) + margin_s)
        then = f"record longer steps: joulelab calibrate --step {math.ceil(needed_s / 10) * 10}s"
        raise ConfigError(what, where=run.path.name, why=why, next=then, code="config.no-steps")
    is_around = any(c.stream.scope != measured.stream.scope for c in channels)
    numbers, spans = _split_windows(windows, measured)
    rows = [{"number": n, **joined.measure(span, measured, channels)} for n, span in zip(numbers, spans, strict=True)]
    fans = _Fans(joined.read_fan_cubes(spans) if is_around else None)
    if options.has_fixed_fans and fans.share is not None:
        change = 1 - float(np.cbrt(fans.share.min()))
        what, why = "the fans did not run at a fixed speed", f"their speed changed by {100 * change:.0f} % in the steps"
        then = "fix them in the BMC and repeat, or leave out --fixed-fans: their power is then fitted"
        raise ConfigError(what, where="--fixed-fans", why=why, next=then, code="config.fans-change")
    beside = joined.list_beside(measured, channels) if is_around else []
    extra = [joined.measure_beside(span, beside) for span in spans]
    if options.zero is not None:
        empty = _Joined(options.zero)
        row, watts = _measure_zero(empty, options.reference, measured, channels, beside)
        row["middle_s"] = (rows[0]["middle_s"] + rows[-1]["middle_s"]) / 2
        rows.append({**rows[0], **row, "number": len(windows)})
        extra.append([extra[0][k] if math.isnan(one) else one for k, one in enumerate(watts)])
        fans = fans.add_zero(empty)
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    kinds = [BesideMeter(scope.scope, half=max(scope.best.spec.accuracy.gain, LEAST_BESIDE)) for scope in beside]
    powers = np.array(extra).reshape(len(rows), len(kinds))
    if fans.share is not None:
        most_w = FAN_SHARE * float(columns["reference_w"].max())
        kinds.append(BesideMeter("fans", most_w / 2, most_w / 2))
        powers = np.column_stack((powers, fans.share))
    is_at_wall = is_around and find_family(measured.stream.scope) in WALL_FAMILIES
    known = ReferenceMeter(
        gain=measured.spec.accuracy.gain,
        offset_w=measured.spec.accuracy.offset * max(len(measured.members), 1),
        update_s=max(measured.step_s, measured.update_s),
        is_around=is_around,
        supply=options.supply if is_at_wall else None,
        fans="fixed" if options.has_fixed_fans or not is_around else fans.kind,
    )
    return RecordedSteps(
        steps=LoadSteps(**columns, beside=powers),
        devices=tuple(FittedDevice(s, *_get_errors(c)) for s, c in zip(options.devices, channels, strict=True)),
        reference=known,
        beside=tuple(kinds),
        channels=tuple(channels),
        reference_channel=measured,
        drivers=read_drivers(run.events()),
        count=len(windows),
        left_out=left_out,
    )


def _get_errors(channel: EnergyChannel) -> tuple[float, float]:
    return channel.spec.accuracy.gain, channel.spec.accuracy.offset


def _find_shortest_s(reference: EnergyChannel) -> float:
    """Return the shortest steady part (s) of a step that counts: some updates of the reference."""
    return max(SHORTEST_S, FEWEST_UPDATES * max(reference.step_s, reference.update_s))


def find_edges_s(reference: EnergyChannel) -> tuple[float, float]:
    """Return the times (s) after a load has settled, and before it ends, in which the reference shows other loads, too.

    A reading shows the time of its window before the last update. Whoever shows a new value seldom may also show the
    mean since the last one, whatever window is stated: an update that is longer than stated is seen (`update_s`), a
    window is not.
    """
    settle_s, margin_s = SETTLE_S, MARGIN_S
    for one in reference.members or (reference,):
        curve = one.curve.slow if isinstance(one.curve, (GuidedCurve, WatchedCurve)) else one.curve
        if not isinstance(curve, PowerCurve):
            continue
        update_s = max(curve.update_s, 0.0 if curve.update_s == 0 else one.step_s)
        window_s = max(curve.window_s, update_s)
        # The curve puts each reading to the middle of the time that it states, or earlier by a lag that was found: so
        # values near the end of a step are from readings after it.
        settle_s = max(settle_s, SETTLE_S + update_s + window_s + curve.spec.lag_s - curve.shift_s + one.step_s)
        margin_s = max(margin_s, MARGIN_S + curve.shift_s + max(curve.moved_s, 0.0) + one.step_s)
    return settle_s, margin_s


def _split_windows(
    windows: Sequence[tuple[int, int]], reference: EnergyChannel
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return parts (ns) of the steady part of each step, and the number of the step that each part is of."""
    least_s = max(PART_S, PART_UPDATES * max(reference.step_s, reference.update_s))
    numbers: list[int] = []
    parts: list[tuple[int, int]] = []
    for number, (a, b) in enumerate(windows):
        found = _cut_span(a, b, max(int((b - a) / (least_s * NS)), 1))
        numbers += [number] * len(found)
        parts += found
    return numbers, parts


def _cut_span(a: int, b: int, count: int) -> list[tuple[int, int]]:
    """Return equal parts (ns) of a time span."""
    ends = [a + (b - a) * k // count for k in range(count + 1)]
    return list(itertools.pairwise(ends))


class _Fans:
    """Hold the cube of the fan speed in each row (of its unit), None if no speed is read.

    `kind` is `fixed`, `measured` or `unknown`; `share` is relative to the highest, None unless the speed changes.
    """

    def __init__(self, cubes: Floats | None) -> None:
        self.cubes = cubes
        self.kind = "unknown"
        self.share: Floats | None = None
        if cubes is not None:
            speeds = np.cbrt(cubes)
            self.kind = "fixed" if float(np.ptp(speeds)) <= FIXED_FANS * float(speeds.max()) else "measured"
            self.share = None if self.kind == "fixed" else cubes / cubes.max()

    def add_zero(self, empty: _Joined) -> _Fans:
        """Return fans with a row for the node without its devices. Raises ConfigError if they ran differently."""
        if self.cubes is None:
            return self
        span = empty.span.start_ns, empty.span.end_ns
        found = empty.read_fan_cubes([span])
        if found is None:
            raise _refuse_zero(empty, "the speed of its fans was not read, that of the staircase was")
        if self.kind == "measured":
            return _Fans(np.append(self.cubes, found))
        usual, own = float(np.cbrt(self.cubes.mean())), float(np.cbrt(found[0]))
        if abs(own / usual - 1) > ZERO_FANS:
            change = f"{abs(own / usual - 1):.0%} {'faster' if own > usual else 'slower'}"
            raise _refuse_zero(empty, f"its fans ran {change} than in the staircase")
        return self


class _Joined:
    """Find channels of a run, joined without any calibration, and measure time spans by them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        events = run.events()
        self.span = find_span(run, events)
        loaded = load_channels(run, self.span.idle, calibrations=RunCalibrations())
        self.scopes = join_meters(loaded, self.span.start_ns, self.span.end_ns).scopes

    def find_reference(self, name: str) -> EnergyChannel:
        """Return the power channel of a meter that covers most: the sum of its cords before one cord."""
        found = [
            (rank_scope(s.scope), c.spec.kind == "power", -k, c)
            for s in self.scopes
            for k, c in enumerate(s.channels)
            if name in c.meter.split("+") and not c.spec.estimate
        ]
        if not found:
            meters = sorted({c.meter for s in self.scopes for c in s.channels})
            what, why = f"the run has no readings of {name!r}", f"its meters are {', '.join(meters)}"
            raise ConfigError(what, where="--reference", why=why, next="joulelab meters", code="config.no-reference")
        best = max(found, key=lambda row: row[:3])[3]
        if best.spec.accuracy.source == "unknown":
            what, then = (
                f"the accuracy of {name!r} is unknown",
                "state it: gain and offset_w of the meter in joulelab.toml",
            )
            raise ConfigError(what, where="--reference", next=then, code="config.reference-accuracy")
        return _get_plain(best)

    def find_device(self, scope: str, reference: str) -> EnergyChannel:
        """Return the best channel of a scope that is not of the reference."""
        channels = [
            c for s in self.scopes if s.scope == scope for c in s.channels if reference not in c.meter.split("+")
        ]
        if not channels:
            there = ", ".join(s.scope for s in self.scopes)
            what, why = f"{scope} is not measured", f"the run has {there}"
            raise ConfigError(what, where="--device", why=why, next="joulelab meters", code="config.unknown-device")
        return _get_plain(channels[0])

    def list_windows(
        self, channels: Sequence[EnergyChannel], reference: EnergyChannel
    ) -> tuple[list[tuple[int, int]], int]:
        """Return the steady part (ns) of each step, and how many steps have none."""
        marked, _ = list_phases(
            self.run.marks(), self.span.start_ns, self.span.end_ns, str(self.run.meta.get("host", ""))
        )
        least_s = _find_shortest_s(reference)
        settle_ns, margin_ns = (round(seconds * NS) for seconds in find_edges_s(reference))
        found = [
            (_find_steady_start(p.start_ns, p.end_ns, (*channels, reference)) + settle_ns, p.end_ns - margin_ns)
            for p in marked
            if p.name == PHASE
        ]
        steady = [(a, b) for a, b in found if b - a >= least_s * NS]
        kept = [(a, b) for a, b in steady if not any(_has_gap(c, a, b) for c in (reference, *channels))]
        return kept, len(found) - len(kept)

    def measure(
        self, span: tuple[int, int], reference: EnergyChannel, channels: Sequence[EnergyChannel]
    ) -> dict[str, Any]:
        """Return the mean powers of one step as a row of `LoadSteps`."""
        a, b = span
        watts, u = _find_mean_power(reference, a, b)
        own = [_find_mean_power(c, a, b) for c in channels]
        return {
            "middle_s": (a + b) / 2 / NS,
            "seconds": (b - a) / NS,
            "reference_w": watts,
            "reference_u_w": u,
            "device_w": [w for w, _ in own],
            "device_u_w": [d for _, d in own],
            "celsius": [self._read_celsius(c.stream.scope, a, b) for c in channels],
            "is_there": [True] * len(channels),
        }

    def _read_celsius(self, scope: str, a: int, b: int) -> float:
        state = next((s.state for s in self.scopes if s.scope == scope), {})
        return _find_mean(state.get("temperature_c"), a, b)

    def read_fan_cubes(self, spans: Sequence[tuple[int, int]]) -> Floats | None:
        """Return the mean cube of the fan speeds in each time span, None without fans.

        Fans change slowly and are read seldom: their speed is a line between readings.
        """
        speeds = [
            readings
            for state in read_states(self.run).values()
            for name, readings in state.items()
            if name.startswith("fan") and len(readings) >= FEWEST_FANS and float(readings.value.max()) > 0
        ]
        if not speeds:
            return None
        return np.array([float(np.mean([_find_cube(r, a, b) for r in speeds])) for a, b in spans])

    def list_beside(self, reference: EnergyChannel, channels: Sequence[EnergyChannel]) -> list[ScopeChannels]:
        """List the CPUs, memory and GPUs inside the reference that are not calibrated."""
        taken = {c.stream.scope for c in channels}
        return [
            s
            for s in self.scopes
            if find_family(s.scope) in ("gpu", "cpu", "dram")
            and s.scope not in taken
            and s.host == reference.host
            and not s.estimate
            and find_family(s.scope) not in OUTER_FAMILIES
        ]

    def measure_beside(self, span: tuple[int, int], beside: Sequence[ScopeChannels]) -> list[float]:
        """Return the mean powers (W) beside the devices in one time span, NaN where they were not measured."""
        found = {(s.host, s.scope): s for s in self.scopes}
        return [
            _find_mean_power(_get_plain(found[s.host, s.scope].best), *span)[0]
            if (s.host, s.scope) in found
            else math.nan
            for s in beside
        ]


def _measure_zero(
    empty: _Joined,
    name: str,
    measured: EnergyChannel,
    channels: Sequence[EnergyChannel],
    beside: Sequence[ScopeChannels],
) -> tuple[dict[str, Any], list[float]]:
    """Return the row of an idle node without the devices, and the powers beside them. Raises ConfigError.

    Idle power differs a little after every start.
    """
    reference = empty.find_reference(name)
    if why := _doubt_zero(empty, reference, measured, channels):
        raise _refuse_zero(empty, why)
    span = empty.span.start_ns, empty.span.end_ns
    watts, u = _find_mean_power(reference, *span)
    row = {
        "reference_w": watts,
        "reference_u_w": math.hypot(u, RESTART_U_W),
        "device_u_w": [0.0] * len(channels),
        "celsius": [math.nan] * len(channels),
        "is_there": [False] * len(channels),
    }
    return row, empty.measure_beside(span, beside)


def _doubt_zero(
    empty: _Joined, reference: EnergyChannel, measured: EnergyChannel, channels: Sequence[EnergyChannel]
) -> str:
    """Return why a run is not one of the same node and meter, idle and without the devices; empty if it may be."""
    still = {s.scope for s in empty.scopes for c in channels if _is_same_device(s.best, c)}
    listed = read_drivers(empty.run.events())
    still |= {c.stream.scope for c in channels if c.stream.device in listed}
    if still:
        return f"it still has {', '.join(sorted(still))}"
    meters = (empty.run.meta.get("options") or {}).get("meters")
    blind = {c.meter for c in channels if meters is not None and c.meter not in meters}
    if blind:
        return f"it was recorded without {', '.join(sorted(blind))}, so it does not show that the devices were gone"
    if reference.host != measured.host:
        return f"it is of {reference.host}, the staircase of {measured.host}"
    if (reference.stream.device, reference.stream.scope) != (measured.stream.device, measured.stream.scope):
        return "its reference is another meter, or measures other cords"
    a, b = empty.span.start_ns, empty.span.end_ns
    if (seconds := (b - a) / NS) < ZERO_S:
        return f"it lasts {seconds:.0f} s; {ZERO_S:.0f} s are needed to see that the node was idle"
    if _has_gap(reference, a, b):
        return "readings of the reference are missing in it"
    parts = [_find_mean_power(reference, *part)[0] for part in _cut_span(a, b, int(seconds / ZERO_PART_S))]
    if (change := max(parts) - min(parts)) > ZERO_CHANGE_W:
        return f"its power changed by {change:.0f} W: the node was not idle"
    return ""


def _refuse_zero(empty: _Joined, why: str) -> ConfigError:
    what = f"{empty.run.path.name} is no run of this node, idle and without the devices"
    then = "record it again with the same meters and fans: joulelab run --name without-gpus -- sleep 120"
    return ConfigError(what, where="--zero", why=why, next=then, code="config.zero-run")


def _is_same_device(one: EnergyChannel, other: EnergyChannel) -> bool:
    if one.stream.device and other.stream.device:
        return one.stream.device == other.stream.device
    return one.host == other.host and one.stream.scope == other.stream.scope


def _get_plain(channel: EnergyChannel) -> EnergyChannel:
    """Return a channel by its own readings: steps need no guide by other meters."""
    curve = channel.curve
    return replace(channel, curve=curve.slow) if isinstance(curve, (GuidedCurve, WatchedCurve)) else channel


def _find_mean_power(channel: EnergyChannel, a: int, b: int) -> tuple[float, float]:
    """Return the mean power (W) of [a, b] by a channel, and its standard uncertainty without gain and offset."""
    energy = channel.energy(a, b).without(*OTHER_KINDS)
    seconds = (b - a) / NS
    shown = _find_power_readings(channel)
    part = shown.value[shown.between(a, b)] if shown is not None else np.empty(0)
    off = part - part.mean() if part.size > 2 else np.zeros(1)
    scatter = float(off.std()) / math.sqrt(max(count_independent(off), 1.0))
    return energy.value / seconds, max(math.hypot(energy.u / seconds, scatter), LEAST_U_W)


def _find_power_readings(channel: EnergyChannel) -> Readings | None:
    """Return the power readings of a channel, or of the power beside its counter; None if it has none."""
    curve = channel.curve
    if isinstance(curve, CounterCurve):
        return None if curve.power is None else curve.power.readings
    return curve.readings if channel.spec.kind == "power" else None


def _find_mean(readings: Readings | None, a: int, b: int) -> float:
    if readings is None:
        return math.nan
    part = readings.value[readings.between(a, b)]
    return float(part.mean()) if part.size else math.nan


def _find_cube(readings: Readings, a: int, b: int) -> float:
    """Return the mean of the cube of a state over [a, b], by lines between its readings."""
    at = np.linspace(0, b - a, CUBE_POINTS)
    values = np.interp(at, (readings.t0_ns - a).astype(np.float64), readings.value)
    return float(np.mean(values**3))


def _has_gap(channel: EnergyChannel, a: int, b: int) -> bool:
    """Return whether readings are missing in [a, b]: a mean over a gap has an error that no reading shows."""
    readings = _find_power_readings(channel)
    if readings is None:
        return False
    ends = readings.t1_ns[(readings.t1_ns > a) & (readings.t1_ns < b)]
    longest = float(np.diff(np.concatenate(([a], ends, [b]))).max()) / NS
    return longest > max(GAP_UPDATES * max(channel.step_s, channel.update_s), GAP_S)


def _find_steady_start(a: int, b: int, channels: Sequence[EnergyChannel]) -> int:
    """Return when all meters have settled in a step: their power stays near its median in the second half.

    A reference that shows means over a longer time than it states settles later than the devices.
    """
    start = a
    for channel in channels:
        readings = _find_power_readings(channel)
        if readings is None:
            continue
        inside, late = readings.between(a, b), readings.between((a + b) // 2, b)
        if late.stop - late.start < 2:
            continue
        middle = float(np.median(readings.value[late]))
        off = np.abs(readings.value[inside] - middle) > STEADY_SHARE * max(float(np.ptp(readings.value)), 1.0)
        far = np.flatnonzero(off[: late.start - inside.start])
        if far.size:
            start = max(start, int(readings.t1_ns[inside][far[-1]]))
    return start
