"""Read a meter quickly for a few seconds and measure its quality: refresh, noise, resolution, cost of a reading."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import MeterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter, Spec, Stream

POLL_PERIOD_S = 0.005
SLOW_READING_S = 0.02
LATE_READING_S = 0.01
REFRESH_TOLERANCE = 0.3  # a larger deviation from the documented refresh period is reported
LEAST_CHANGES = 3  # fewer changes of a value show no period


@dataclass(slots=True)
class StreamReadings:
    """Collect the readings of one stream: times in ns, rows, number of errors by text."""

    stream: Stream
    t0_ns: list[int] = field(default_factory=list)
    t1_ns: list[int] = field(default_factory=list)
    rows: list[Sequence[float]] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChannelHealth:
    """Describe the quality of one channel; times in s, values in the channel's unit, None = unknown."""

    scope: str
    channel: str
    unit: str
    kind: str
    reads: int
    failed: int
    rate_hz: float
    read_s: float | None
    last: float | None
    refresh_s: float | None
    declared_s: float | None
    noise_w: float | None
    resolution: float | None


@dataclass(frozen=True, slots=True)
class MeterHealth:
    """Describe the quality of a meter: its channels, delay of the reader (s), CPU per reading (s), errors."""

    channels: tuple[ChannelHealth, ...]
    late_s: float
    worst_late_s: float
    cpu_per_read_s: float
    errors: dict[str, int]


@dataclass(frozen=True, slots=True)
class MeterFinding:
    """Hold one unusual property of a meter; `messages.py` has its sentence. `numbers` are in SI units."""

    code: str
    scope: str = ""
    channel: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    error: str = ""


def probe_meter(
    meter: Meter,
    seconds: float,
    *,
    polite: bool = False,
    now: Callable[[], int] = monotonic_ns,
    sleep: Callable[[float], None] = time.sleep,
    cpu: Callable[[], float] = time.thread_time,
) -> MeterHealth:
    """Read every stream of a meter for some seconds: power and energy every 5 ms, others at their own period.

    With `polite`, for devices behind a network, at most four times per period of the stream.
    """
    collected = [StreamReadings(stream) for stream in meter.streams()]
    begin, late = now(), []
    due = dict.fromkeys(range(len(collected)), begin)
    used = 0.0
    tick = begin
    while tick < begin + round(seconds * NS):
        late.append(max(now() - tick, 0))
        before = cpu()
        for k, each in enumerate(collected):
            if due[k] <= tick:
                _read_stream(meter, each, now)
                due[k] = tick + round(_poll_s(each.stream, polite=polite) * NS)
        used += cpu() - before
        tick = max(tick + round(POLL_PERIOD_S * NS), now())
        sleep(max(tick - now(), 0) / NS)
    late.sort()
    channels = [_judge_channel(each, spec, k) for each in collected for k, spec in enumerate(each.stream.channels)]
    reads = sum(len(each.rows) for each in collected)
    errors: dict[str, int] = {}
    for each in collected:
        for words, count in each.errors.items():
            errors[words] = errors.get(words, 0) + count
    worst = late[-1] / NS
    return MeterHealth(tuple(channels), late[int(0.95 * (len(late) - 1))] / NS, worst, used / max(reads, 1), errors)


def has_power(stream: Stream) -> bool:
    """Return whether a stream has a channel of energy or power."""
    return any(is_power_channel(spec) for spec in stream.channels)


def _poll_s(stream: Stream, *, polite: bool) -> float:
    if not has_power(stream):
        return stream.period_s
    return max(POLL_PERIOD_S, stream.period_s / 4) if polite else POLL_PERIOD_S


def is_power_channel(spec: Spec) -> bool:
    """Return whether a channel gives power, or energy as a counter."""
    return spec.kind == "power" or (spec.kind == "counter" and spec.unit == "J")


def _read_stream(meter: Meter, into: StreamReadings, now: Callable[[], int]) -> None:
    t0 = now()
    try:
        row = meter.read(into.stream)
    except MeterError as error:
        into.errors[str(error)] = into.errors.get(str(error), 0) + 1
        return
    into.t0_ns.append(t0)
    into.t1_ns.append(now())
    into.rows.append(row)


def _judge_channel(each: StreamReadings, spec: Spec, column: int) -> ChannelHealth:
    pairs = [(t, row[column]) for t, row in zip(each.t0_ns, each.rows, strict=True) if row[column] == row[column]]
    times, values = [t for t, _ in pairs], [v for _, v in pairs]
    costs = sorted(b - a for a, b in zip(each.t0_ns, each.t1_ns, strict=True))
    length = (times[-1] - times[0]) / NS if len(times) > 1 else 0.0
    power = is_power_channel(spec)
    return ChannelHealth(
        scope=each.stream.scope,
        channel=spec.name,
        unit=spec.unit,
        kind=spec.kind,
        reads=len(values),
        failed=sum(each.errors.values()),
        rate_hz=(len(times) - 1) / length if length else 0.0,
        read_s=costs[len(costs) // 2] / NS if costs else None,
        last=values[-1] if values else None,
        refresh_s=estimate_refresh_s(times, values) if power else None,
        declared_s=spec.update_s,
        noise_w=estimate_noise_w(times, values, counter=spec.kind == "counter") if power else None,
        resolution=estimate_resolution(values),
    )


def estimate_refresh_s(times_ns: Sequence[int], values: Sequence[float]) -> float | None:
    """Return the median time between changes of a value, None if it changed too seldom."""
    changed = _list_changes(times_ns, values)
    if len(changed) <= LEAST_CHANGES:
        return None
    gaps = sorted(b - a for (a, _), (b, _) in pairwise(changed))
    return gaps[len(gaps) // 2] / NS


def estimate_noise_w(times_ns: Sequence[int], values: Sequence[float], *, counter: bool) -> float | None:
    """Return the standard deviation of the power (W): of the values, or of a counter's steps over their times."""
    changed = _list_changes(times_ns, values)
    powers = [v for _, v in changed]
    if counter:
        steps = pairwise(changed)
        powers = [(v1 - v0) * NS / (t1 - t0) for (t0, v0), (t1, v1) in steps if v1 > v0 and t1 > t0]
    if len(powers) <= LEAST_CHANGES:
        return None
    mean = sum(powers) / len(powers)
    return float((sum((p - mean) ** 2 for p in powers) / (len(powers) - 1)) ** 0.5)


def estimate_resolution(values: Sequence[float]) -> float | None:
    """Return the largest power of ten that divides all values, None if they are all equal."""
    distinct = sorted(set(values))
    if len(distinct) < 2:
        return None
    smallest = min(b - a for a, b in pairwise(distinct))
    for exponent in range(3, -10, -1):
        quantum = 10.0**exponent
        if quantum > smallest * 1.001:
            continue
        # A double has 16 digits: the last digits of a large count are rounding errors.
        if all(abs(v / quantum - round(v / quantum)) < max(1e-3, abs(v / quantum) * 1e-15) for v in distinct):
            return quantum
    return None


def _list_changes(times_ns: Sequence[int], values: Sequence[float]) -> list[tuple[int, float]]:
    """Return the readings that differ from the reading before them."""
    return [(t, v) for (_, old), (t, v) in pairwise(zip(times_ns, values, strict=True)) if v != old]


def judge_meter(health: MeterHealth, slow_s: float = SLOW_READING_S) -> list[MeterFinding]:
    """List unusual properties: wrong refresh period, slow, late or failed readings, values that never change.

    Readings of power and energy that take longer than `slow_s` are slow; others only if it is the default.
    """
    found = []
    for c in group_channels(health.channels):
        deviation = c.refresh_s / c.declared_s - 1 if c.refresh_s and c.declared_s else 0.0
        if c.refresh_s and c.declared_s and c.refresh_s > 2 * POLL_PERIOD_S and abs(deviation) > REFRESH_TOLERANCE:
            numbers = {"refresh_s": c.refresh_s, "declared_s": c.declared_s}
            found.append(MeterFinding("meter.refresh-differs", c.scope, c.channel, numbers))
        if c.read_s and c.read_s > slow_s and (c.kind != "state" or slow_s == SLOW_READING_S):
            found.append(MeterFinding("meter.slow-reading", c.scope, c.channel, {"reading_s": c.read_s}))
        if c.kind != "state" and c.reads and c.resolution is None and c.unit in ("J", "W"):
            found.append(MeterFinding("meter.unchanged", c.scope, c.channel))
    if health.late_s > LATE_READING_S:
        found.append(MeterFinding("meter.late-readings", numbers={"late_s": health.late_s}))
    errors = health.errors.items()
    return found + [MeterFinding("meter.readings-failed", numbers={"failed": n}, error=text) for text, n in errors]


def is_readable(health: MeterHealth) -> bool:
    """Return whether a meter gave a value, of power or energy if it measures them, or at least did not fail."""
    judged = _choose_judged(health)
    return any(c.reads for c in judged) or not any(c.failed for c in judged)


def find_failed_share(health: MeterHealth) -> float:
    """Return the share of readings that failed, of those of power and energy if there are any."""
    judged = _choose_judged(health)
    failed = sum(c.failed for c in judged)
    return failed / max(failed + sum(c.reads for c in judged), 1)


def _choose_judged(health: MeterHealth) -> list[ChannelHealth]:
    measured = [c for c in health.channels if c.kind == "power" or (c.kind == "counter" and c.unit == "J")]
    return measured or list(health.channels)


def group_channels(channels: Sequence[ChannelHealth]) -> list[ChannelHealth]:
    """Merge equal channels of several devices: medians over the devices, their scopes in one text."""
    groups: dict[tuple[str, str], list[ChannelHealth]] = {}
    for c in channels:
        if c.reads or c.failed:
            groups.setdefault((c.scope.split(":")[0], c.channel), []).append(c)

    def find_median(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return statistics.median(known) if known else None

    return [
        replace(
            members[0],
            scope=", ".join(m.scope for m in members),
            failed=sum(m.failed for m in members),
            rate_hz=find_median([m.rate_hz for m in members]) or 0.0,
            read_s=find_median([m.read_s for m in members]),
            refresh_s=find_median([m.refresh_s for m in members]),
            noise_w=find_median([m.noise_w for m in members]),
            resolution=find_median([m.resolution for m in members]),
        )
        for members in groups.values()
    ]
