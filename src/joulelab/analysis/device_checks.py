"""Check the devices of a run: impossible powers, throttling, idle or shared GPUs, and power caps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.calibrations import convert_power
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.result import IDLE_LOAD, CapResult, Check
from joulelab.analysis.slow_meters import DoubtedCurve
from joulelab.core.scope import find_family

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from joulelab.analysis.channels import EnergyChannel, ScopeChannels
    from joulelab.analysis.checks import RunEvidence
    from joulelab.analysis.readings import Floats
    from joulelab.analysis.result import CheckStatus, ScopeResult

# Bits of nvmlClocksEventReasons that mean that the device was slowed down: power cap, thermal, brake.
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
# A reading above today's devices and more than FAR times its own median is an error: 90 kW of a 500 W node.
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
SURE_UNITS = "ptdaemon"  # imported readings in W by their format: MLPerf measures small computers, too
MOST_PIDS = 5
# Power caps. Devices round the cap that they are given; more than this is another cap.
ROUNDING_W = 1.0
# The mean power of a capped device stays below its cap but for this share, which its own meter may be wrong by.
ABOVE = 1.05
# A CPU package may exceed its cap for a time window of its own, 28 s in many.
SETTLED_S = 60.0
FOREVER = 1 << 62
NOTED_NS = 2_000_000_000  # a change is noted a moment after it was made


def check_devices(run: RunEvidence) -> Iterator[Check]:
    """Run the checks of caps and devices."""
    yield from _check_caps(run)
    yield from _check_powers(run)
    yield from _check_throttling(run)
    yield from _check_idle_gpus(run)
    yield from _check_hidden_gpus(run)
    yield from _check_other_processes(run)


# Powers.


def _check_powers(run: RunEvidence) -> Iterator[Check]:
    """Find powers that no device has: a wrong unit, a wrong sign, a false reading.

    The check fails if the meter gives the energy of the scope; for other meters it is a warning.
    """
    outlets = [c for s in run.channels if find_family(s.scope) == "outlet" for c in s.channels if not c.members]
    outlet_w = max((_read_powers(c, run, MOST_W["outlet"])[1] for c in outlets), default=0.0)
    for scope, result in zip(run.channels, run.scopes, strict=True):
        kind, place = find_family(scope.scope), run.name_scope(scope)
        for channel in (c for c in scope.channels if not c.members):
            status: CheckStatus = "failed" if channel is scope.best else "warning"
            powers, high = _read_powers(channel, run, MOST_W.get(kind, MOST_ELSE_W))
            code, numbers = _find_impossible_power(powers, kind, channel.spec.accuracy.offset)
            if code:
                texts = {"channel": channel.spec.name, "meter": channel.meter} | run.name_doctor(channel.meter)
                texts |= {"column": channel.spec.name} if run.imported else {}
                yield Check(code, status, place, numbers, texts)
            least_w = LEAST_HIGH_W.get(kind, 0.0) if run.imported else 0.0
            if kind == "outlet":  # beside one that feeds a node, another may feed a supply on standby
                high = max(high, outlet_w)
            if 0.0 < high < least_w and float(powers.min(initial=0.0)) >= 0.0:
                device = "node" if kind == "outlet" else kind.upper()
                texts = {"meter": channel.meter, "device": device, "column": scope.scope}
                yield Check("impossible-power.wrong-unit", status, place, {"power_w": high}, texts)
        yield from _check_mean_power(run, scope, result)


def _check_mean_power(run: RunEvidence, scope: ScopeChannels, result: ScopeResult) -> Iterator[Check]:
    """Find a node or rack with less power than any idle one: its meter has another unit, or measures only a part."""
    mean, best, meter = result.mean_w.value, scope.best, result.reading.meter
    is_doubtful = run.imported and best.spec.accuracy.shared != SURE_UNITS
    least_w = (LEAST_MEAN_W if is_doubtful else LEAST_LIVE_W).get(scope.scope, 0.0)
    if not 0 <= mean < least_w or result.reading.estimate:
        return
    if best.spec.kind == "counter" and not best.members and not 0 < _read_powers(best, run, MOST_ELSE_W)[1] < least_w:
        return  # one that counts in large steps gives no mean of a short run
    device = "rack" if scope.scope == "rack" else "server" if run.imported else "computer"
    texts = {"meter": meter, "device": device} | ({"column": scope.scope} if run.imported else {"doctor": meter})
    yield Check("impossible-power.wrong-unit", "failed", run.name_scope(scope), {"power_w": mean}, texts)


def _read_powers(channel: EnergyChannel, run: RunEvidence, most_w: float) -> tuple[Floats, float]:
    """Return the powers (W) of a channel near the workload, and the highest power that the channel may have shown."""
    since = min(run.start_ns, run.idle[0] if run.idle else run.start_ns)
    near_ns = round(channel.step_s * 1e9)
    inside = channel.readings.between(since - near_ns, run.end_ns + near_ns)
    if channel.spec.kind == "counter":
        return _derive_powers(channel, inside, most_w)
    powers = channel.readings.value[inside]
    return powers, float(powers.max(initial=0.0))


def _derive_powers(channel: EnergyChannel, inside: slice, most_w: float) -> tuple[Floats, float]:
    """Return the lowest mean powers (W) that fit the counts of a counter, and the highest mean that fits them.

    These are the least mean, by its resolution and its update, and its falls where no wrap or reset explains them. One
    fall of a counter without a modulus may be a reset to a stored count.
    """
    curve = channel.curve.plain if isinstance(channel.curve, DoubtedCurve) else channel.curve
    read, spec = channel.readings, channel.spec
    value, pause_s = read.value[inside], np.maximum(np.diff(read.t0_ns[inside]) * 1e-9, 1e-9)
    if not isinstance(curve, CounterCurve) or value.size < 2:
        return np.empty(0), 0.0
    quantum, update_s = spec.accuracy.quantum, max(spec.update_s or 0.0, channel.step_s)
    energy, span_s = curve.unwrap_values()[inside], float(pause_s.sum())
    rise = float(energy[-1] - energy[0])
    since_zero = value[1:] + (spec.modulus - value[:-1] if spec.modulus else 0.0)
    falls = np.diff(value) < -quantum
    falls &= since_zero - quantum > most_w * (pause_s + update_s)
    if not spec.modulus and np.count_nonzero(falls) < 2:
        falls[:] = False
    least_w = max(rise - quantum, 0.0) / (span_s + update_s)
    most_shown_w = (rise + quantum) / max(span_s - update_s, 1e-9) if rise > 0 else 0.0
    return np.append(np.diff(value)[falls] / pause_s[falls], least_w), most_shown_w


def _find_impossible_power(powers: Floats, kind: str, offset_w: float) -> tuple[str, dict[str, float]]:
    """Return code and numbers of an impossible power, empty where there is none."""
    low, high = float(powers.min(initial=0.0)), float(powers.max(initial=0.0))
    most_w = MOST_W.get(kind, MOST_ELSE_W)
    if low < -BELOW_ZERO_W - offset_w:
        return "impossible-power.negative", {"power_w": low}
    if high > most_w:
        return "impossible-power.too-high", {"power_w": high, "most_w": most_w}
    if high <= TODAY_W.get(kind, MOST_ELSE_W) or high <= FAR * (median := float(np.median(powers))):
        return "", {}
    return "impossible-power.outlier", {"power_w": high, "median_w": median}


# Use of the GPUs.


def _check_throttling(run: RunEvidence) -> Iterator[Check]:
    for scope in run.channels:
        reasons = run.read_state(scope, "throttle").astype(np.int64)
        for bit, code in THROTTLED.items():
            share = float(np.mean((reasons & bit) != 0)) if reasons.size else 0.0
            if share > 0.01:
                status: CheckStatus = "note" if code == "throttled.power-cap" else "warning"
                yield Check(code, status, run.name_scope(scope), {"share": share})


def _check_idle_gpus(run: RunEvidence) -> Iterator[Check]:
    gpus = [(c, s) for c, s in zip(run.channels, run.scopes, strict=True) if s.scope.startswith("gpu:")]
    idle = [s for c, s in gpus if (load := run.read_state(c, "load")).size and float(load.max()) < IDLE_LOAD]
    if idle and len(idle) < len(gpus):
        joules, whole = (sum(s.energy.value for s in some) for some in (idle, [s for _, s in gpus]))
        yield Check("idle-gpus", "note", run.name_scopes(idle), {"energy_j": joules, "share": joules / whole})


def _check_hidden_gpus(run: RunEvidence) -> Iterator[Check]:
    for event in run.list_events("devices"):
        gpus = [g for g in event.get("gpus", ()) if not g.get("visible", True)]
        if gpus:
            places = (run.name_place(event.get("host"), g.get("scope")) for g in gpus)
            yield Check("hidden-gpus", "note", ", ".join(places))


def _check_other_processes(run: RunEvidence) -> Iterator[Check]:
    ours = {int(p) for e in run.list_events("tree") for p in e.get("pids", ())}
    ours |= {int(e["pid"]) for e in run.list_events("workload") if "pid" in e}
    foreign: dict[str, set[int]] = {}
    first: dict[str, set[int]] = {}
    for event in sorted(run.list_events("process"), key=lambda e: int(e["t"])):
        others = {int(p) for p in event.get("pids", ())} - ours
        scope, t = run.name_place(event.get("host"), event.get("scope", "")), int(event["t"])
        if t < run.start_ns:  # the last ones before the start are there at the start
            foreign[scope] = first[scope] = others
        elif t <= run.end_ns:
            foreign.setdefault(scope, set()).update(others)
    for scope, pids in foreign.items():
        if pids:
            texts = {"pids": ", ".join(str(p) for p in sorted(pids)[:MOST_PIDS])}
            # A server whose counters were recorded does the work of the run, and was there before it.
            if run.counted and pids <= first.get(scope, set()):
                yield Check("other-processes.server", "note", scope, {"processes": len(pids)}, texts)
            else:
                yield Check("other-processes", "warning", scope, {"processes": len(pids)}, texts)


# Power caps.


def list_caps(events: Iterable[Mapping[str, Any]]) -> tuple[CapResult, ...]:
    """List the caps that the run itself set, each device once."""
    found: dict[tuple[str, str], CapResult] = {}
    for event in events:
        key = (str(event.get("host", "")), str(event.get("device", "")))
        known = found.get(key)
        if event.get("event") == "cap-set":
            changes = 0 if known is None else known.changes + (event["asked"] != known.asked)
            before = event.get("found") if known is None else known.found
            scope, asked, unit = str(event.get("scope", "")), float(event["asked"]), str(event.get("unit", "W"))
            found[key] = CapResult(key[0], scope, asked, before, unit, changes, "")
        elif event.get("event") == "cap-restored" and known is not None:
            found[key] = replace(known, outcome=str(event.get("outcome", "")))
    return tuple(found.values())


def _check_caps(run: RunEvidence) -> Iterator[Check]:
    """Compare the caps that a run set with the caps that its devices showed."""
    ours, away = _group_caps(run), _find_keeper_gaps(run)
    for scope in run.channels:
        own = ours.get((scope.host, scope.scope))
        if own is None:
            yield from _check_steady_cap(run, scope)
        else:
            yield from _check_own_cap(run, scope, own, away)
        yield from _check_enforcement(run, scope, own)
    for event in run.list_events("cap-restored"):
        if event.get("outcome") in ("left", "failed"):
            code = "cap.left" if event["outcome"] == "left" else "cap.not-restored"
            yield Check(code, "warning", str(event.get("scope", "")), texts={"what": str(event.get("said", ""))})
    yield from _check_keeper(run, away)


def _group_caps(run: RunEvidence) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Return the caps that were set, in order, by host and scope: tuning sets several in one run."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for event in run.list_events("cap-set"):
        if event.get("unit") == "W":
            found.setdefault((str(event.get("host", "")), str(event.get("scope"))), []).append(event)
    return found


def _find_keeper_gaps(run: RunEvidence) -> list[tuple[int, int]]:
    """Return the time spans (ns) without a keeper of the caps; the last one may have no end."""
    stretches: list[tuple[int, int]] = []
    for event in run.events:
        kind, t = event.get("event"), int(event.get("t", 0))
        if kind in ("keeper-died", "caps-released") and (not stretches or stretches[-1][1] <= t):
            stretches.append((t, FOREVER))
        elif kind == "keeper-started" and stretches:
            stretches[-1] = stretches[-1][0], min(stretches[-1][1], t)
    return stretches


def _check_keeper(run: RunEvidence, away: list[tuple[int, int]]) -> Iterator[Check]:
    for event in run.list_events("caps-released"):
        yield Check("cap.released", "failed", texts={"signal": str(event.get("why", "a signal"))})
    released_at = {int(e.get("t", 0)) for e in run.list_events("caps-released")}
    for begin, end in away:
        if begin in released_at:
            continue
        if end == FOREVER and begin < run.end_ns:
            yield Check("cap.keeper-died", "failed")
        elif end != FOREVER:
            yield Check("keeper", "warning", numbers={"away_s": (end - begin) * 1e-9})


def _check_steady_cap(run: RunEvidence, scope: ScopeChannels) -> Iterator[Check]:
    requested = run.read_state(scope, "cap_requested_w")
    if requested.size and float(np.ptp(requested)) > ROUNDING_W:
        numbers = {"low_w": float(requested.min()), "high_w": float(requested.max())}
        yield Check("cap.changed", "warning", run.name_scope(scope), numbers)


def _check_own_cap(
    run: RunEvidence, scope: ScopeChannels, own: list[Mapping[str, Any]], away: list[tuple[int, int]]
) -> Iterator[Check]:
    readings = scope.state.get("cap_requested_w")
    if readings is None:
        return
    inside = readings.between(run.start_ns, run.end_ns)
    times, values = readings.t0_ns[inside], readings.value[inside]
    if len(own) == 1:  # readings of the only cap that was set are always right
        other = np.abs(values - float(own[0]["requested"])) > ROUNDING_W
        times, values = times[other], values[other]
    pairs = zip(times.tolist(), values.tolist(), strict=True)
    strange = [w for t, w in pairs if min(abs(w - known) for known in _list_expected(t, own, away)) > ROUNDING_W]
    if strange:
        default = own[-1].get("default")
        is_default = default is not None and abs(strange[-1] - float(default)) <= ROUNDING_W
        numbers = {"cap_w": float(own[-1]["requested"]), "shown_w": strange[-1]}
        yield Check("cap.vanished" if is_default else "cap.overridden", "failed", run.name_scope(scope), numbers)


def _list_expected(t: int, own: list[Mapping[str, Any]], away: list[tuple[int, int]]) -> list[float]:
    """List the caps (W) that a device may show at a time.

    These are the last cap we set, the next one just before it is noted, and the original one without a keeper.
    """
    before = [e for e in own if int(e["t"]) <= t] or own[:1]
    coming = [e for e in own if t < int(e["t"]) <= t + NOTED_NS]
    known = [float(e["requested"]) for e in (before[-1], *coming)]
    is_away = any(begin - NOTED_NS <= t <= end + NOTED_NS for begin, end in away)
    return known + ([float(own[0]["found"])] if is_away else [])


def _check_enforcement(run: RunEvidence, scope: ScopeChannels, own: list[Mapping[str, Any]] | None) -> Iterator[Check]:
    place = run.name_scope(scope)
    enforced, requested = run.read_state(scope, "cap_enforced_w"), run.read_state(scope, "cap_requested_w")
    if enforced.size and enforced.size == requested.size:
        apart = np.abs(enforced - requested) > ROUNDING_W
        if apart.any():
            last = {"enforced_w": float(enforced[apart][-1]), "requested_w": float(requested[apart][-1])}
            status: CheckStatus = "warning" if own is None else "failed"
            yield Check("cap.differs", status, place, {**last, "share": float(apart.mean())})
    limits = enforced if enforced.size else requested
    span = (run.end_ns - run.start_ns) * 1e-9
    shown = scope.find_power() or (scope.best if span > SETTLED_S else None)
    if limits.size and shown is not None and span > 0:
        mean, cap = shown.energy(run.start_ns, run.end_ns).value / span, float(limits.max())
        if mean > ABOVE * convert_power(shown.spec.accuracy, cap):
            yield Check("cap-not-enforced", "failed", place, {"mean_w": mean, "cap_w": cap})
