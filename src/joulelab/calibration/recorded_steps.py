"""Read the steps of a staircase from a run: mean powers of the reference, the devices and what is measured beside."""

from __future__ import annotations

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
SETTLE_S, MARGIN_S = 2.0, 0.5  # left out after a load has settled, and before it ends
STEADY_SHARE = 0.03  # of its range: a device that differs by less from its median in the step has settled
LEAST_U_W = 0.02  # no mean is better known, whatever the readings say
SHORTEST_S = 1.0
GAP_UPDATES, GAP_S = 4.0, 0.5  # updates, and time, without a reading after which a step does not count
LEAST_BESIDE = 0.02  # relative error that a power beside the devices has at least
WALL_FAMILIES = ("node.ac", "outlet", "psu", "rack")  # in front of power supplies
RESTART_U_W = 2.0  # standard deviation of a node's idle power between starts
# Kinds of error that steps do not scatter by, and those of changing loads: a step is constant, its own scatter counts.
OTHER_KINDS = ("gain", "offset", "lag", "unseen", "in-step", "sampling", "missed")
FIXED_FANS = 0.02  # relative change of their speed below which fans count as fixed
FEWEST_FANS, CUBE_POINTS = 5, 41
FAN_SHARE = 0.15  # of the node's highest power: what fans draw at most


@dataclass(frozen=True)
class RecordedSteps:
    """Hold what a run shows: steps, devices and reference for the fit, and the identity of each."""

    steps: LoadSteps
    devices: tuple[FittedDevice, ...]
    reference: ReferenceMeter
    beside: tuple[BesideMeter, ...]
    channels: tuple[EnergyChannel, ...]
    reference_channel: EnergyChannel
    drivers: dict[str, str]
    left_out: int


def read_steps(
    run: Run,
    reference: str,
    devices: Sequence[str],
    *,
    supply: SupplyPrior | None = None,
    has_fixed_fans: bool = False,
    zero: Run | None = None,
) -> RecordedSteps:
    """Read the steps of a run for devices (scopes), against a reference meter. Raises ConfigError.

    `zero` is a run of the idle node without the devices.
    """
    joined = _Joined(run)
    measured = joined.find_reference(reference)
    channels = [joined.find_device(scope, reference) for scope in devices]
    spans, left_out = joined.list_windows(channels, measured)
    if not spans:
        what = "the run has no steps to fit"
        why = f"{left_out} phases named {PHASE!r} have no steady part of {_find_shortest_s(measured):g} s without gaps"
        then = "record longer steps: joulelab calibrate --step 60s"
        raise ConfigError(what, where=run.path.name, why=why, next=then, code="config.no-steps")
    is_around = any(c.stream.scope != measured.stream.scope for c in channels)
    rows = [joined.measure(span, measured, channels) for span in spans]
    fans, is_fixed = joined.read_fans(spans) if is_around else (None, True)
    if has_fixed_fans and fans is not None:
        change = 1 - float(np.cbrt(fans.min() / fans.max()))
        what, why = "the fans did not run at a fixed speed", f"their speed changed by {100 * change:.0f} % in the steps"
        then = "fix them in the BMC and repeat, or leave out --fixed-fans: their power is then fitted"
        raise ConfigError(what, where="--fixed-fans", why=why, next=then, code="config.fans-change")
    beside = joined.list_beside(measured, channels) if is_around else []
    extra = [joined.measure_beside(span, beside, fans, k) for k, span in enumerate(spans)]
    if zero is not None:
        middle_s = (rows[0]["middle_s"] + rows[-1]["middle_s"]) / 2
        empty = _Joined(zero)
        _check_zero(empty, empty.find_reference(reference), measured, channels)
        rows.append(_measure_zero(empty, reference, len(channels), rows[0], middle_s))
        extra.append(_measure_zero_beside(empty, beside, extra))
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    kinds = [BesideMeter(scope.scope, half=max(scope.best.spec.accuracy.gain, LEAST_BESIDE)) for scope in beside]
    if fans is not None:
        kinds.append(BesideMeter("fans", 0.0, FAN_SHARE * float(columns["reference_w"].max())))
    is_at_wall = is_around and find_family(measured.stream.scope) in WALL_FAMILIES
    known = ReferenceMeter(
        gain=measured.spec.accuracy.gain,
        offset_w=measured.spec.accuracy.offset * max(len(measured.members), 1),
        update_s=max(measured.step_s, measured.update_s),
        is_around=is_around,
        supply=supply if is_at_wall else None,
        fans="fixed" if has_fixed_fans or is_fixed else "unknown" if fans is None else "measured",
    )
    return RecordedSteps(
        steps=LoadSteps(**columns, beside=np.array(extra).reshape(len(rows), len(kinds))),
        devices=tuple(FittedDevice(s, *_get_errors(c)) for s, c in zip(devices, channels, strict=True)),
        reference=known,
        beside=tuple(kinds),
        channels=tuple(channels),
        reference_channel=measured,
        drivers=read_drivers(run.events()),
        left_out=left_out,
    )


def _get_errors(channel: EnergyChannel) -> tuple[float, float]:
    return channel.spec.accuracy.gain, channel.spec.accuracy.offset


def _find_shortest_s(reference: EnergyChannel) -> float:
    """Return the shortest steady part (s) of a step that counts: some updates of the reference."""
    return max(SHORTEST_S, FEWEST_UPDATES * max(reference.step_s, reference.update_s))


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
        found = [
            (_find_steady_start(p.start_ns, p.end_ns, channels) + round(SETTLE_S * NS), p.end_ns - round(MARGIN_S * NS))
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

    def read_fans(self, spans: Sequence[tuple[int, int]]) -> tuple[Floats | None, bool]:
        """Return the mean cube of the fan speed in each step (None without fans), and whether the speed is fixed.

        It is 1 at the highest speed. Fans change slowly and are read seldom: their speed is a line between readings.
        """
        states = read_states(self.run).values()
        speeds = [
            r for state in states for name, r in state.items() if name.startswith("fan") and len(r) >= FEWEST_FANS
        ]
        highest = max((float(r.value.max()) for r in speeds), default=0.0)
        if highest <= 0:
            return None, False
        means = [float(np.mean([_find_cube(r, a, b) for r in speeds])) for a, b in spans]
        cubes = np.array(means) / highest**3
        if float(np.ptp(np.cbrt(cubes))) <= FIXED_FANS * float(np.cbrt(cubes).max()):
            return None, True
        return cubes, False

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

    def measure_beside(
        self, span: tuple[int, int], beside: Sequence[ScopeChannels], fans: Floats | None, number: int
    ) -> list[float]:
        """Return the mean powers (W) beside the devices in one step, and its fans."""
        watts = [_find_mean_power(_get_plain(s.best), *span)[0] for s in beside]
        return watts + ([] if fans is None else [float(fans[number])])


def _check_zero(
    empty: _Joined, reference: EnergyChannel, measured: EnergyChannel, channels: Sequence[EnergyChannel]
) -> None:
    """Raise ConfigError if a run is not of the same node and meter, without the devices."""
    still = [s.scope for s in empty.scopes for c in channels if _is_same_device(s.best, c)]
    why = ""
    if still:
        why = f"it measured {', '.join(sorted(set(still)))}"
    elif reference.host != measured.host:
        why = f"it is of {reference.host}, the staircase of {measured.host}"
    elif (reference.stream.device, reference.stream.scope) != (measured.stream.device, measured.stream.scope):
        why = "its reference is another meter, or measures other cords"
    if why:
        what, then = (
            f"{empty.run.path.name} is no run of this node without the devices",
            "record the node without them: joulelab run --name without-gpus -- sleep 120",
        )
        raise ConfigError(what, where="--zero", why=why, next=then, code="config.zero-run")


def _is_same_device(one: EnergyChannel, other: EnergyChannel) -> bool:
    if one.stream.device and other.stream.device:
        return one.stream.device == other.stream.device
    return one.host == other.host and one.stream.scope == other.stream.scope


def _measure_zero(joined: _Joined, reference: str, count: int, like: dict[str, Any], middle_s: float) -> dict[str, Any]:
    """Return the row of an idle node without the devices; idle power differs a little after every start."""
    span = (joined.span.start_ns, joined.span.end_ns)
    watts, u = _find_mean_power(joined.find_reference(reference), *span)
    return {
        "middle_s": middle_s,
        "seconds": like["seconds"],
        "reference_w": watts,
        "reference_u_w": math.hypot(u, RESTART_U_W),
        "device_w": like["device_w"],
        "device_u_w": [0.0] * count,
        "celsius": [math.nan] * count,
        "is_there": [False] * count,
    }


def _measure_zero_beside(joined: _Joined, beside: Sequence[ScopeChannels], extra: Sequence[list[float]]) -> list[float]:
    span = (joined.span.start_ns, joined.span.end_ns)
    found = {s.scope: s for s in joined.scopes}
    row = [
        _find_mean_power(_get_plain(found[s.scope].best), *span)[0] if s.scope in found else extra[0][k]
        for k, s in enumerate(beside)
    ]
    return row + list(extra[0][len(beside) :])


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
    """Return when all devices have settled in a step: their power stays near its median in the second half."""
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
