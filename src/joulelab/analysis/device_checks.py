"""Doubt the devices of a run: powers that cannot be, held back, idle, hidden from the workload, used by others too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.result import Check
from joulelab.analysis.slow_meters import DoubtedCurve
from joulelab.core.scope import find_family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulelab.analysis.channels import EnergyChannel, ScopeChannels
    from joulelab.analysis.checks import Facts
    from joulelab.analysis.readings import Floats
    from joulelab.analysis.result import CheckStatus, ScopeResult

IDLE_LOAD = 0.01  # a device that never was busier than this did nothing
# Bits of nvmlClocksEventReasons that mean that the device was held back: power cap, thermal, brake.
THROTTLED = {
    0x4: "throttled.power-cap",
    0x8: "throttled.hardware-slowdown",
    0x20: "throttled.software-thermal",
    0x40: "throttled.hardware-thermal",
    0x80: "throttled.power-brake",
}
# Powers in W that no device reaches, by family: a GPU takes up to 2.7 kW today, a node 15 kW, a rack 140 kW.
MOST_W = dict.fromkeys(("gpu", "cpu", "core", "uncore", "dram"), 10e3)
MOST_W |= dict.fromkeys(("psys", "psu.dc", "node.dc", "psu", "outlet", "node.ac"), 100e3) | {"rack": 10e6}
MOST_ELSE_W = 1e9
# Above what devices take today and more than FAR times its own median, one reading is none: 90 kW of a 500 W node.
TODAY_W = dict.fromkeys(("gpu", "cpu", "core", "uncore", "dram"), 3e3)
TODAY_W |= dict.fromkeys(("psys", "psu.dc", "node.dc", "psu", "outlet", "node.ac"), 20e3) | {"rack": 200e3}
FAR = 10.0
# A power meter may read a little below zero when nothing is on; 1 W is beyond that for anything that runs a workload.
BELOW_ZERO_W = 1.0
# Floors (W) of imported powers, of which a column in kW that is read as W stays below. Of single devices by the highest
# reading: hardly any GPU takes 2 kW and no CPU 1 kW, and one that is on takes more than so many W (off, it shows 0 or
# noise around 0); an outlet gives at most 7.4 kW (32 A), and one of them feeds more than a supply on standby.
LEAST_HIGH_W = {"gpu": 2.0, "cpu": 1.0, "outlet": 8.0}
# Of a whole by the mean: no node takes 20 kW, hardly any rack 100 kW, and neither idles so low (small computers do).
LEAST_MEAN_W = {"node.ac": 20.0, "node.dc": 20.0, "rack": 100.0}
# The same for nodes that were measured live: small computers take more (a Raspberry Pi 4 idles at 2.7 W).
LEAST_LIVE_W = {"node.ac": 2.0, "node.dc": 2.0}


def device_checks(facts: Facts) -> Iterator[Check]:
    """Run the checks of devices."""
    yield from _impossible_powers(facts)
    yield from _held_back(facts)
    yield from _idle_gpus(facts)
    yield from _hidden(facts)
    yield from _strangers(facts)


def _impossible_powers(facts: Facts) -> Iterator[Check]:
    """Doubt powers that no device has: a wrong unit, a wrong sign, a reading that is none.

    It is a failure of the meter that is believed; of others it is a warning.
    """
    advice = "correct the source or the unit of its column, and import it again" if facts.imported else ""
    outlets = [c for s in facts.channels if find_family(s.scope) == "outlet" for c in s.channels if not c.members]
    outlet_w = max((_powers(c, facts, MOST_W["outlet"])[1] for c in outlets), default=0.0)
    for scope, result in zip(facts.channels, facts.scopes, strict=True):
        for channel in (c for c in scope.channels if not c.members):
            kind, where = find_family(scope.scope), facts.called(scope)
            status: CheckStatus = "failed" if channel is scope.best else "warning"
            powers, high = _powers(channel, facts, MOST_W.get(kind, MOST_ELSE_W))
            called = f"{where}: {channel.spec.name} of {channel.meter}"
            code, said, numbers = _impossible(powers, kind, channel.spec.accuracy.offset)
            if code:
                message = f"{called} {said}, so its energy is wrong"
                yield Check(code, status, message, advice or f"joulelab doctor {channel.meter}", where, numbers)
            least_w = LEAST_HIGH_W.get(kind, 0.0) if facts.imported else 0.0
            if kind == "outlet":  # beside one that feeds a node, another may feed a supply on standby
                high = max(high, outlet_w)
            if 0.0 < high < least_w and float(powers.min(initial=0.0)) >= 0.0:
                device = "node" if kind == "outlet" else kind.upper()
                low = f"stays below {least_w:g} W, less than a {device} takes when idle"
                message = f"{called} {low}: its unit is probably wrong"
                then = f"if it is in kW, import it again with that unit: --map COLUMN={scope.scope}:kW"
                yield Check("impossible-power.wrong-unit", status, message, then, where, {"power_w": high})
        yield from _too_low(facts, scope, result)


def _too_low(facts: Facts, scope: ScopeChannels, result: ScopeResult) -> Iterator[Check]:
    """Doubt a node or rack that takes less than any does: its meter shows another unit, or only a part of it."""
    mean, where, best = result.mean_w.value, facts.called(scope), scope.best
    least_w = (LEAST_MEAN_W if facts.imported else LEAST_LIVE_W).get(scope.scope, 0.0)
    if not 0 <= mean < least_w or result.reading.estimate:
        return
    if best.spec.kind == "counter" and not best.members and not 0 < _powers(best, facts, MOST_ELSE_W)[1] < least_w:
        return  # one that counts in large steps tells no mean of a short run
    called = "rack" if scope.scope == "rack" else "server" if facts.imported else "computer"
    low = f"{mean:.3g} W on average is less than a {called} takes when idle"
    message = f"{where}: {low}: the unit of {result.reading.meter} is probably wrong"
    then = f"if it is in kW, import it again with that unit: --map COLUMN={scope.scope}:kW"
    advice = then if facts.imported else f"joulelab doctor {result.reading.meter}"
    yield Check("impossible-power.wrong-unit", "failed", message, advice, where, {"power_w": mean})


def _powers(channel: EnergyChannel, facts: Facts, most_w: float) -> tuple[Floats, float]:
    """Return the powers (W) of a channel near the workload, and the highest that it may have shown."""
    since = min(facts.start_ns, facts.idle[0] if facts.idle else facts.start_ns)
    near_ns = round(channel.step_s * 1e9)
    inside = channel.readings.between(since - near_ns, facts.end_ns + near_ns)
    if channel.spec.kind == "counter":
        return _counted_powers(channel, inside, most_w)
    powers = channel.readings.value[inside]
    return powers, float(powers.max(initial=0.0))


def _counted_powers(channel: EnergyChannel, inside: slice, most_w: float) -> tuple[Floats, float]:
    """Return the powers (W) that a counter is sure to show, and the highest mean that its resolution allows.

    These are the least mean, by its resolution and its update, and its falls where no wrap or reset explains them. One
    fall of a counter without a modulus may be a reset to a stored count.
    """
    curve = channel.curve.plain if isinstance(channel.curve, DoubtedCurve) else channel.curve
    read, spec = channel.readings, channel.spec
    value, pause_s = read.value[inside], np.maximum(np.diff(read.t0_ns[inside]) * 1e-9, 1e-9)
    if not isinstance(curve, CounterCurve) or value.size < 2:
        return np.empty(0), 0.0
    quantum, update_s = spec.accuracy.quantum, max(spec.update_s or 0.0, channel.step_s)
    energy, span_s = curve.unwrapped()[inside], float(pause_s.sum())
    rise = float(energy[-1] - energy[0])
    since_zero = value[1:] + (spec.modulus - value[:-1] if spec.modulus else 0.0)
    falls = np.diff(value) < -quantum
    falls &= since_zero - quantum > most_w * (pause_s + update_s)
    if not spec.modulus and np.count_nonzero(falls) < 2:
        falls[:] = False
    least_w = max(rise - quantum, 0.0) / (span_s + update_s)
    most_shown_w = (rise + quantum) / max(span_s - update_s, 1e-9) if rise > 0 else 0.0
    return np.append(np.diff(value)[falls] / pause_s[falls], least_w), most_shown_w


def _impossible(powers: Floats, kind: str, offset_w: float) -> tuple[str, str, dict[str, float]]:
    """Return code, words and numbers of an impossible power, empty where there is none."""
    low, high = float(powers.min(initial=0.0)), float(powers.max(initial=0.0))
    most_w = MOST_W.get(kind, MOST_ELSE_W)
    if low < -BELOW_ZERO_W - offset_w:
        return "impossible-power.negative", f"falls to {low:.4g} W", {"power_w": low}
    if high > most_w:
        numbers = {"power_w": high, "most_w": most_w}
        return "impossible-power.too-high", f"reaches {high:.4g} W, more than {most_w:g} W", numbers
    if high <= TODAY_W.get(kind, MOST_ELSE_W) or high <= FAR * (median := float(np.median(powers))):
        return "", "", {}
    said, numbers = f"reaches {high:.4g} W where its median is {median:.4g} W", {"power_w": high, "median_w": median}
    return "impossible-power.outlier", said, numbers


def _held_back(facts: Facts) -> Iterator[Check]:
    for scope in facts.channels:
        inside = facts.seen(scope, "throttle").astype(np.int64)
        for bit, code in THROTTLED.items():
            share = float(np.mean((inside & bit) != 0)) if inside.size else 0.0
            if share > 0.01:
                status: CheckStatus = "note" if bit == 0x4 else "warning"
                called, reason = facts.called(scope), code.partition(".")[2].replace("-", " ")
                message = f"{called}: held back by {reason} in {share:.0%} of the readings"
                yield Check(code, status, message, "", called, {"share": share})


def _idle_gpus(facts: Facts) -> Iterator[Check]:
    gpus = [(c, s) for c, s in zip(facts.channels, facts.scopes, strict=True) if s.scope.startswith("gpu:")]
    idle = [s for c, s in gpus if (load := facts.seen(c, "load")).size and float(load.max()) < IDLE_LOAD]
    if idle and len(idle) < len(gpus):
        joules, whole = (sum(s.energy.value for s in some) for some in (idle, [s for _, s in gpus]))
        message = f"{facts.names(idle)}: idle all the time, {joules / whole:.0%} of the GPUs' energy"
        advice, scopes = "use them, or ask for a node with fewer", ", ".join(map(facts.called, idle))
        yield Check("idle-gpus", "note", message, advice, scopes, {"energy_j": joules, "share": joules / whole})


def _hidden(facts: Facts) -> Iterator[Check]:
    for event in facts.named("devices"):
        hidden = [
            facts.place(event.get("host"), g.get("scope")) for g in event.get("gpus", ()) if not g.get("visible", True)
        ]
        if hidden:
            scopes = ", ".join(hidden)
            message = f"{scopes}: hidden from the workload by CUDA_VISIBLE_DEVICES, and measured all the same"
            yield Check("hidden-gpus", "note", message, "joulelab show RUN --json lists every scope by itself", scopes)


def _strangers(facts: Facts) -> Iterator[Check]:
    ours = {int(p) for e in facts.named("tree") for p in e.get("pids", ())}
    ours |= {int(e["pid"]) for e in facts.named("workload") if "pid" in e}
    foreign: dict[str, set[int]] = {}
    for event in sorted(facts.named("process"), key=lambda e: int(e["t"])):
        there = {int(p) for p in event.get("pids", ())} - ours
        scope, t = facts.place(event.get("host"), event.get("scope", "")), int(event["t"])
        if t < facts.start_ns:  # who was there last before the start is there at the start
            foreign[scope] = there
        elif t <= facts.end_ns:
            foreign.setdefault(scope, set()).update(there)
    for scope, pids in foreign.items():
        if pids:
            listed = ", ".join(str(p) for p in sorted(pids)[:5])
            message = f"{scope}: processes that are not the workload's were there ({listed})"
            yield Check("other-processes", "warning", message, "", scope, {"processes": len(pids)})
