"""Read the GPUs of a node in virtual time as NVML would show them: counter, power, state, and what was capped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.clock import NS
from joulelab.instruments import nvml
from joulelab.instruments.nvml.client import Gpu
from joulelab.instruments.settings import check_keys, devices, seconds
from joulelab.twin import readings
from joulelab.twin.model import COOLING_S
from joulelab.twin.virtual.bench import Measured, Rows

if TYPE_CHECKING:
    from joulelab.core.spec import Stream
    from joulelab.twin import model
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.power_curves import Floats
    from joulelab.twin.virtual.bench import Bench

DRIVER = "twin"
READ_NS = 150_000  # a call of the library
SLOW_S = 1.0
LOCKED_CLOCK, SW_POWER_CAP = 2.0, 4.0  # bits of nvmlClocksEventReasons
HELD = 0.6  # share of a GPU's memory that a workload holds
IDLE_MIB = 500


def gpu_of(index: int, one: model.Gpu) -> Gpu:
    """Return a GPU of a twin as the library would name it."""
    limits = (one.min_cap_w, one.max_cap_w)
    return Gpu(index, f"GPU-twin-{index}", one.name, one.architecture, one.compute, DRIVER, limits)


def read(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    """Return what NVML shows of every GPU. Raises ConfigError for a wrong option."""
    check_keys(name, mounted.options, nvml.CONFIG)
    period_s = seconds(name, mounted.options, "period_s", bench.period_s or mounted.ask_s)
    slow_s = seconds(name, mounted.options, "slow_period_s", max(SLOW_S, period_s))
    gpus = [gpu_of(index, one) for index, one in enumerate(bench.timeline.node.gpus)]
    wanted = devices(name, mounted.options)
    shown = ",".join(map(str, bench.ask.gpus)) or "-1"
    event = {**nvml.describe_devices(gpus, shown, "PCI_BUS_ID"), "t": bench.timeline.begin_ns, "meter": name}
    found = Measured(name, events=[event])
    for gpu in gpus:
        if wanted is None or gpu.index in wanted or gpu.uuid in wanted:
            powers, states = nvml.describe_streams(gpu, period_s, slow_s)
            gain = bench.gain(name, mounted, f"gpu:{gpu.index}")
            found.rows.extend([_powers(bench, name, powers, gpu.index, gain), _states(bench, states, gpu.index)])
            found.events.extend(_watched(bench, gpu))
    return found


def _powers(bench: Bench, name: str, stream: Stream, gpu: int, gain: float) -> Rows:
    """Return energy (J), instant and average power (W) of one GPU."""
    one = bench.timeline.node.gpus[gpu]
    flaws = replace(one.flaws, gain_error=one.flaws.gain_error + gain)
    _, curve = bench.timeline.curve(f"gpu:{gpu}")
    t0 = bench.times(stream.period_s, 1e-9 * READ_NS * gpu)
    start = bench.since(f"{name}:{gpu}", max(flaws.power_period_s, flaws.counter_period_s, 0.1))
    values = np.empty((len(t0), 3))
    values[:, 0] = readings.read_counter_j(curve, flaws, t0, start_ns=start)
    values[:, 1] = readings.read_instant_w(curve, flaws, t0, start_ns=start, seed=bench.seed, gpu=gpu)
    values[:, 2] = readings.read_average_w(curve, flaws, t0, start_ns=start)
    return Rows(stream, t0, t0 + READ_NS, values)


def _states(bench: Bench, stream: Stream, gpu: int) -> Rows:
    """Return the state of one GPU, in the order of `nvml.STATE`."""
    one, timeline = bench.timeline.node.board(gpu), bench.timeline
    t0 = bench.times(stream.period_s, 1e-9 * READ_NS * (gpu + 8))
    _, curve = timeline.curve(f"gpu:{gpu}")
    load = timeline.load(gpu, t0)
    watts, cap = curve.watts(t0), bench.ask.caps.get(gpu, one.default_cap_w)
    values = np.empty((len(t0), len(nvml.STATE)))
    inside = (t0 >= timeline.start_ns) & (t0 < timeline.end_ns) & (gpu in timeline.used)
    share = np.clip((watts - one.idle_w) / (one.max_w - one.idle_w), 0.0, 1.0)
    wanted = timeline.wanted_w(gpu, t0)
    warming = (curve.joules(t0) - curve.joules(t0 - round(COOLING_S * NS))) / COOLING_S
    locked = bench.ask.clocks.get(gpu)
    limited = inside & (one.idle_w + (wanted - one.idle_w) * one.clock_share(locked) > watts * (1 + 1e-9))
    mhz = np.minimum(one.sm_mhz(wanted, watts, load), one.sm_max_mhz if locked is None else locked)
    columns: list[Floats | float] = [
        load,
        0.6 * load * share,
        np.where(inside, HELD * one.memory_bytes, IDLE_MIB * (1 << 20)),
        1e6 * np.rint(mhz),
        1e6 * np.where(load > 0, one.memory_max_mhz, one.memory_idle_mhz),
        np.rint(one.celsius(warming)),
        cap,
        cap,
        np.where(limited, SW_POWER_CAP, 0.0) + (0.0 if locked is None else LOCKED_CLOCK),
        np.where(inside, 1.0, 0.0),
        np.where(inside, load, 0.0),
        np.where(inside, 0.0, load),
        np.nan,
    ]  # fmt: skip
    for k, column in enumerate(columns):
        values[:, k] = column
    return Rows(stream, t0, t0 + 2 * READ_NS, values)


def _watched(bench: Bench, gpu: Gpu) -> list[dict[str, Any]]:
    """Return the cap that the meter tells of at its first reading, and the workload's process."""
    one = bench.timeline.node.gpus[gpu.index]
    cap, scope = bench.ask.caps.get(gpu.index, one.default_cap_w), f"gpu:{gpu.index}"
    begin, start = bench.timeline.begin_ns, bench.timeline.start_ns
    told = [{"t": begin, "event": "cap", "scope": scope, "requested_w": cap, "enforced_w": cap}]
    if gpu.index in bench.timeline.used:
        told.append({"t": start + NS // 10, "event": "process", "scope": scope, "pids": [1]})
    return told


def list_cap_events(bench: Bench) -> list[dict[str, Any]]:
    """Return the events of a run that set its caps and clocks itself, and put them back."""
    node, ask, events = bench.timeline.node, bench.ask, []
    held: list[tuple[str, str, str, str, float, float]] = []
    for gpu in ask.gpus:
        one, uuid = node.gpus[gpu], gpu_of(gpu, node.gpus[gpu]).uuid
        if gpu in ask.caps:
            held.append((f"gpu:{gpu}", uuid, one.name, "W", ask.caps[gpu], one.default_cap_w))
        if gpu in ask.clocks:
            held.append((f"gpu:{gpu}", f"{uuid}.clocks", one.name, "Hz", ask.clocks[gpu] * 1e6, one.sm_max_mhz * 1e6))
    for package, cap_w in sorted(ask.cpu_caps.items()):
        held.append((f"cpu:{package}", f"powercap-intel-rapl:{package}", "twin", "W", cap_w, node.cpu.max_w))
    for scope, name, model, unit, value, default in held:
        found = None if unit == "Hz" else default  # clocks are not locked before
        device = {"scope": scope, "device": name, "unit": unit, "found": found}
        values = {"asked": value, "requested": value, "enforced": None if unit == "Hz" else value, "default": default}
        about = {**device, "model": model, "kind": "clocks" if unit == "Hz" else "power", **values}
        events.append({"t": bench.timeline.begin_ns, "event": "cap-set", **about})
        back = {**device, "outcome": "restored", "now": found, "said": ""}
        events.append({"t": bench.timeline.close_ns, "event": "cap-restored", **back})
    return events
