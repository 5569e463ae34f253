"""Read the meters of a twin in virtual time: streams by each family's own code, values by the twin's flaws.

The accounting of a cluster is read by the code of real clusters, from answers as Slurm's programs would give them: the
energy is the rise of the node's counter between the last look before the job's start and the last before its end.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from joulelab.core.clock import NS
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.instruments import nvml, rapl, wall
from joulelab.instruments.analyzer.accuracy import MODELS, Ranges, build_streams, list_ranges
from joulelab.instruments.analyzer.answers import Element, Identity
from joulelab.instruments.analyzer.settings import read_settings as read_analyzer_settings
from joulelab.instruments.analyzer.setup import InstrumentState
from joulelab.instruments.ipmi.settings import PowerSource
from joulelab.instruments.ipmi.settings import read_settings as read_ipmi_settings
from joulelab.instruments.ipmi.streams import StreamFactory
from joulelab.instruments.modbus.settings import read_settings as read_modbus_settings
from joulelab.instruments.nvml.client import Gpu
from joulelab.instruments.settings import check_keys, devices, seconds
from joulelab.instruments.slurm.client import Answer, SlurmClient
from joulelab.instruments.snmp.plan import MAIN, Planner
from joulelab.instruments.snmp.settings import read_settings as read_snmp_settings
from joulelab.instruments.snmp.tables import find_maker
from joulelab.store.run_folder import write_json_atomic
from joulelab.study.accounting import attach_accounting
from joulelab.study.slots import JOB, Slot, State
from joulelab.twin import readings
from joulelab.twin.flaws import PanelFlaws, draw_normal
from joulelab.twin.model import COOLING_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from joulelab.core.spec import Stream
    from joulelab.instruments.snmp.client import Session
    from joulelab.instruments.snmp.tables import Table
    from joulelab.study.folder import Settings
    from joulelab.twin import model
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.power_curves import Curve, Floats, Ints
    from joulelab.twin.timeline import Timeline
    from joulelab.twin.workload_progress import RunRequest

_GAINS = 1 << 41  # the stream of noise that instruments are drawn from


@dataclass(frozen=True, slots=True)
class Rows:
    """Hold the readings of one stream: times before and after each (ns), one row of values per reading."""

    stream: Stream
    t0_ns: Ints
    t1_ns: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold what one meter gave: rows by stream, and its events."""

    meter: str
    rows: list[Rows] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """Hold a slot's truth, what it asked for, and the seed of its draws; `period_s` is the study's own, if any.

    `study_seed` is that of all slots of a study: which instruments stand there is drawn by it.
    """

    timeline: Timeline
    ask: RunRequest
    seed: int
    period_s: float | None = None
    study_seed: int = 0

    def draw_part(self, *what: object) -> float:
        """Return a number from 0 to 1 that is the same for the same slot and things."""
        return draw_share(self.seed, *what)

    def list_times(self, period_s: float, first_s: float = 0.0) -> Ints:
        """Return the times (ns) of readings with a period (s) while the run is recorded."""
        begin, period = self.timeline.begin_ns + round(first_s * NS), round(period_s * NS)
        return begin + period * np.arange((self.timeline.close_ns - begin) // period + 1, dtype=np.int64)

    def find_first_update(self, name: str, period_s: float) -> int:
        """Return the time (ns) from which an instrument updates: its updates have nothing to do with the run's."""
        return self.timeline.begin_ns - round(self.draw_part(name, "updates") * period_s * NS)

    def draw_gain(self, name: str, mounted: MountedMeter, device: str) -> float:
        """Return by how much an instrument is wrong in every run: by its flaws, and by what such instruments vary.

        Each `device` that a meter reads (gpu:0, outlet:pdu.1, node.ac) is an instrument of its own.
        """
        if not mounted.gain_sd:
            return mounted.flaws.gain_error
        text = f"{self.timeline.node.seed}/{self.study_seed}/{name}/{device}"
        drawn = float(draw_normal(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]), _GAINS, 0)[0])
        return mounted.flaws.gain_error + mounted.gain_sd * drawn


def draw_share(seed: int, *what: object) -> float:
    """Return a number from 0 to 1 by a seed and some things; the same on every machine."""
    text = "/".join(map(str, (seed, *what))).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:6]) / (1 << 48)


def hash_name(name: str) -> int:
    """Return a small number for an instrument's name, for the noise of its own."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:2])


def add_stated_steps(flaws: PanelFlaws, stream: Stream) -> PanelFlaws:
    """Return flaws with the steps that the instrument states where the node file has none."""
    usual = PanelFlaws()
    stated = {c.name: c.accuracy.quantum for c in stream.channels}
    changes: dict[str, Any] = {}
    for key, channel in (("quantum_w", "power_w"), ("quantum_j", "energy_j")):
        if getattr(flaws, key) == getattr(usual, key) and stated.get(channel):
            changes[key] = stated[channel]
    moduli = [c.modulus for c in stream.channels if c.kind == "counter" and c.modulus]
    if flaws.modulus_j is None and moduli:
        changes["modulus_j"] = moduli[0]
    return replace(flaws, **changes)


DRIVER = "twin"
READ_NS = 150_000  # a call of the library
SLOW_S = 1.0
LOCKED_CLOCK, SW_POWER_CAP = 2.0, 4.0  # bits of nvmlClocksEventReasons
HELD = 0.6  # share of a GPU's memory that a workload holds
IDLE_MIB = 500


def describe_gpu(index: int, one: model.Gpu) -> Gpu:
    """Return a GPU of a twin as the library would name it."""
    limits = (one.min_cap_w, one.max_cap_w)
    return Gpu(index, f"GPU-twin-{index}", one.name, one.architecture, one.compute, DRIVER, limits)


def read_gpus(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    """Return what NVML shows of every GPU. Raises ConfigError for a wrong option."""
    check_keys(name, mounted.options, nvml.CONFIG)
    period_s = seconds(name, mounted.options, "period_s", bench.period_s or mounted.ask_s)
    slow_s = seconds(name, mounted.options, "slow_period_s", max(SLOW_S, period_s))
    gpus = [describe_gpu(index, one) for index, one in enumerate(bench.timeline.node.gpus)]
    wanted = devices(name, mounted.options)
    shown = ",".join(map(str, bench.ask.gpus)) or "-1"
    event = {**nvml.describe_devices(gpus, shown, "PCI_BUS_ID"), "t": bench.timeline.begin_ns, "meter": name}
    found = Measured(name, events=[event])
    for gpu in gpus:
        if wanted is None or gpu.index in wanted or gpu.uuid in wanted:
            powers, states = nvml.describe_streams(gpu, period_s, slow_s)
            gain = bench.draw_gain(name, mounted, f"gpu:{gpu.index}")
            found.rows.extend(
                [_read_powers(bench, name, powers, gpu.index, gain), _read_states(bench, states, gpu.index)]
            )
            found.events.extend(_list_gpu_events(bench, gpu))
    return found


def _read_powers(bench: Bench, name: str, stream: Stream, gpu: int, gain: float) -> Rows:
    """Return energy (J), instant and average power (W) of one GPU."""
    one = bench.timeline.node.gpus[gpu]
    flaws = replace(one.flaws, gain_error=one.flaws.gain_error + gain)
    _, curve = bench.timeline.curve(f"gpu:{gpu}")
    t0 = bench.list_times(stream.period_s, 1e-9 * READ_NS * gpu)
    start = bench.find_first_update(f"{name}:{gpu}", max(flaws.power_period_s, flaws.counter_period_s, 0.1))
    values = np.empty((len(t0), 3))
    values[:, 0] = readings.read_counter_j(curve, flaws, t0, start_ns=start)
    values[:, 1] = readings.read_instant_w(curve, flaws, t0, start_ns=start, seed=bench.seed, gpu=gpu)
    values[:, 2] = readings.read_average_w(curve, flaws, t0, start_ns=start)
    return Rows(stream, t0, t0 + READ_NS, values)


def _read_states(bench: Bench, stream: Stream, gpu: int) -> Rows:
    """Return the state of one GPU, in the order of `nvml.STATE`."""
    one, timeline = bench.timeline.node.get_board(gpu), bench.timeline
    t0 = bench.list_times(stream.period_s, 1e-9 * READ_NS * (gpu + 8))
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
        np.rint(one.compute_celsius(warming)),
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


def _list_gpu_events(bench: Bench, gpu: Gpu) -> list[dict[str, Any]]:
    """Return the events of the cap at the first reading, and of the workload's process."""
    one = bench.timeline.node.gpus[gpu.index]
    cap, scope = bench.ask.caps.get(gpu.index, one.default_cap_w), f"gpu:{gpu.index}"
    begin, start = bench.timeline.begin_ns, bench.timeline.start_ns
    events = [{"t": begin, "event": "cap", "scope": scope, "requested_w": cap, "enforced_w": cap}]
    if gpu.index in bench.timeline.used:
        events.append({"t": start + NS // 10, "event": "process", "scope": scope, "pids": [1]})
    return events


def list_cap_events(bench: Bench) -> list[dict[str, Any]]:
    """Return the events of a run that set its caps and clocks itself, and put them back."""
    node, ask, events = bench.timeline.node, bench.ask, []
    held: list[tuple[str, str, str, str, float, float]] = []
    for gpu in ask.gpus:
        one, uuid = node.gpus[gpu], describe_gpu(gpu, node.gpus[gpu]).uuid
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


VOLTS, FACTOR, HERTZ = 230.0, 0.98, 50.0
ANSWER_NS = 2_000_000  # between a question and its answer, beside the instrument's own latency
UPDATE_S = 0.1
RANGE_ROOM = 1.2  # a range that the entry does not name is at least this much larger than the largest load


def read_analyzer(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    """Return what a power analyzer shows at each of its updates. `options` may name its `model`. Raises ConfigError."""
    config = {"label": name, **mounted.options}
    model = str(config.pop("model", "WT310E"))
    flaws = mounted.flaws
    if flaws.period_s == PanelFlaws().period_s:  # by its own rate, unless the node file has another
        update_s = float(config.get("period_s", UPDATE_S))
        flaws = replace(flaws, period_s=update_s, window_s=update_s)
    share, curve = bench.timeline.curve(mounted.point)
    begin = np.array([bench.timeline.begin_ns])
    idle_w, most_w = share * float(curve.watts(begin)[0]), share * float(curve.watts(curve.t_ns).max())
    streams = _list_analyzer_streams(config, model, idle_w, most_w, flaws.period_s)
    start = bench.find_first_update(name, flaws.period_s)
    updates = bench.list_times(flaws.period_s) + round(flaws.period_s * NS) - (bench.timeline.begin_ns - start)
    updates = updates[updates <= bench.timeline.close_ns]
    t1 = updates + ANSWER_NS + round(flaws.latency_s * NS)
    shown = _PanelReader(bench, name, mounted, flaws, start)
    return shown.measure_streams(streams, updates, t1 - round(flaws.period_s * NS), t1)


def _list_analyzer_streams(
    config: Mapping[str, Any], model: str, idle_w: float, most_w: float, update_s: float
) -> list[Stream]:
    """Return the streams of an analyzer that is opened at `idle_w`, on ranges for `most_w`. Raises ConfigError."""
    settings = read_analyzer_settings({"resource": "TCPIP::twin::INSTR", **config})
    if model not in MODELS:
        advice = suggest_name(model, list(MODELS))
        raise ConfigError(f"there is no analyzer {model!r}", where=settings.where, next=advice)
    known, crest, scale = MODELS[model], settings.crest or 3, settings.ct_ratio or 1.0
    most_a = most_w / len(known.elements) / VOLTS / FACTOR / scale
    chosen = []
    needs = ((settings.volts, VOLTS), (settings.amperes, most_a))
    for (wanted, load), ranges in zip(needs, list_ranges(known, crest), strict=True):
        smallest = next((one for one in sorted(ranges) if one >= RANGE_ROOM * load), max(ranges))
        chosen.append(smallest if isinstance(wanted, str) else wanted)
    state = InstrumentState(
        identity=Identity("YOKOGAWA", model, "twin", ""),
        model=known,
        elements=known.elements,
        ranges=dict.fromkeys(known.elements, Ranges(chosen[0], chosen[1], scale)),
        is_auto="auto" in (settings.volts, settings.amperes),
        crest=crest,
        is_dc=False,
        has_line_filter=False,
        update_s=update_s,
        integration="STAR" if settings.integrate else "RES",
    )
    apparent = idle_w / FACTOR
    return build_streams(settings, state, [Element(VOLTS, apparent / VOLTS, idle_w, apparent, FACTOR, HERTZ, 0.0)])


def read_polled(
    bench: Bench, name: str, mounted: MountedMeter, streams: Sequence[Stream], at: Sequence[str] = ()
) -> Measured:
    """Return the readings of a polled instrument; `at` are the points of its streams, if they differ."""
    flaws = mounted.flaws
    t0 = bench.list_times(streams[0].period_s)
    t1 = t0 + ANSWER_NS + round(flaws.latency_s * NS)
    shown = _PanelReader(bench, name, mounted, flaws, bench.find_first_update(name, flaws.period_s))
    return shown.measure_streams(streams, (t0 + t1) // 2, t0, t1, at)


class _PanelReader:
    """Work out what the streams of one instrument show."""

    def __init__(self, bench: Bench, name: str, mounted: MountedMeter, flaws: PanelFlaws, start_ns: int) -> None:
        self._bench, self._name, self._mounted, self._start = bench, name, mounted, start_ns
        self._flaws = flaws

    def measure_streams(
        self, streams: Sequence[Stream], at: Ints, t0: Ints, t1: Ints, places: Sequence[str] = ()
    ) -> Measured:
        """Return the rows of each stream; requests without an answer are gaps."""
        fine = readings.find_answered(self._flaws, at, start_ns=self._start)
        found = Measured(self._name)
        for k, stream in enumerate(streams):
            source = self._bench.timeline.curve(places[k]) if places else self._find_source(k, len(streams))
            rows = self._read_rows(stream, source, hash_name(f"{self._name}:{k}"), at)
            age = [c for c, spec in enumerate(stream.channels) if spec.quantity == "age"]
            rows[:, age] = ((t1 - at) / NS)[:, np.newaxis]
            found.rows.append(Rows(stream, t0[fine], t1[fine], rows[fine]))
            found.events.extend(self._list_gaps(stream, at, fine))
        return found

    def _find_source(self, place: int, count: int) -> tuple[float, Curve]:
        """Return what a stream reads: the meter's point, or one of the node's cords where it has one for each."""
        node, timeline = self._bench.timeline.node, self._bench.timeline
        if count == 1:
            return timeline.curve(self._mounted.point)
        if len(node.supply.cords) == count:
            return timeline.curve(f"outlet:{place + 1}")
        share, curve = timeline.curve(self._mounted.point)
        return share / count, curve

    def _read_rows(self, stream: Stream, source: tuple[float, Curve], number: int, at: Ints) -> Floats:
        gain = self._bench.draw_gain(self._name, self._mounted, stream.scope)
        flaws, start, seed = (
            add_stated_steps(replace(self._flaws, gain_error=gain), stream),
            self._start,
            self._bench.seed,
        )
        watts = readings.read_panel_w(source, flaws, at, start_ns=start, seed=seed, number=number)
        shown: Mapping[str, Callable[[], Any]] = {
            "power_w": lambda: watts,
            "energy_j": lambda: readings.read_panel_j(source, flaws, at, start_ns=start),
            "voltage_v": lambda: VOLTS,
            "current_a": lambda: watts / FACTOR / VOLTS,
            "apparent_va": lambda: watts / FACTOR,
            "power_factor": lambda: FACTOR,
            "frequency_hz": lambda: HERTZ,
            "missed": lambda: 0.0,
            "duplicate": lambda: 0.0,
        }
        values = np.full((len(at), len(stream.channels)), np.nan)
        for c, spec in enumerate(stream.channels):
            if spec.name in shown:
                values[:, c] = shown[spec.name]()
        return values

    def _list_gaps(self, stream: Stream, at: Ints, fine: Any) -> list[dict[str, Any]]:
        """Return the stretches without an answer as events."""
        lost = np.flatnonzero(~fine)
        events: list[dict[str, Any]] = []
        for run in np.split(lost, np.flatnonzero(np.diff(lost) > 1) + 1) if lost.size else ():
            first, after = int(at[run[0]]), int(at[min(run[-1] + 1, len(at) - 1)])
            where = {"meter": self._name, "stream": stream.name, "from": first}
            events.append({"t": first, "event": "gap", **where, "reason": "no answer", "error": "ReadFailed"})
            events.append({"t": after, "event": "gap-end", **where, "to": after})
        return events


VENDOR = "apc_rpdu2"


def list_pdu_streams(config: Mapping[str, Any]) -> list[Stream]:
    """Return the streams of a PDU's entry: those of its outlets, or of the whole unit. Raises ConfigError, Unavailable.

    A table whose units come from the device shows nothing here.
    """
    settings = read_snmp_settings({"address": "twin", "community": "twin", "vendor": VENDOR, "phases": False, **config})
    source = find_maker(settings.vendor or VENDOR)
    rows = settings.outlets or settings.units or (1,)
    planner = Planner(settings, cast("Session", TableSession(source, rows)), source)
    return [piece.stream for piece in planner.make_plan().pieces if piece.stream.table == MAIN]


class TableSession:
    """Answer as a device would that has just these rows, and a number in each column."""

    where = "twin"

    def __init__(self, source: Table, rows: Sequence[int | str]) -> None:
        self._names = {oid for level in source.levels.values() for oid in level.names}
        self._rows = [(str(row) if isinstance(row, int) else str(k + 1), str(row)) for k, row in enumerate(rows)]

    def next(self, oids: Sequence[str]) -> list[tuple[str, Any]]:
        """Return the first row of each column."""
        return [(f"{oid}.1", b"twin") for oid in oids]

    def walk(self, oid: str) -> list[tuple[str, Any]]:
        """Return all rows of a column."""
        return [(index, name.encode() if oid in self._names else 1) for index, name in self._rows]

    def get(self, oids: Sequence[str]) -> list[Any]:
        """Return a number for each name."""
        return [1] * len(oids)


NODE = ("node.ac", "node.dc")
RAPL_STEP_S = 0.001
RAPL_MODULUS_J = 262_143.328850


def _make_entry(name: str, mounted: MountedMeter) -> dict[str, Any]:
    """Return the entry of joulelab.toml that the twin's file stands for."""
    feeds = {"feeds": mounted.point} if mounted.point in NODE else {}
    return {"label": name, "period_s": mounted.ask_s, **feeds, **mounted.options}


def _read_modbus(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    settings = read_modbus_settings({"address": "twin", **_make_entry(name, mounted)})
    mains = [plan for plan in settings.plans if plan.table == "power"]
    streams = [settings.make_stream(plan, dict.fromkeys(plan.registers, 1.0)) for plan in mains]
    return read_polled(bench, name, mounted, streams)


def _read_snmp(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    return read_polled(bench, name, mounted, list_pdu_streams(_make_entry(name, mounted)))


def _read_ipmi(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    """Read a BMC: DCMI's power, or what `sources` names of dcmi and xcc."""
    config = _make_entry(name, mounted)
    settings = read_ipmi_settings(config)
    sources = settings.sources or (PowerSource("dcmi", wall.feeds_of(config, "node.ac")),)
    factory, streams = StreamFactory(config, settings, "twin", 0), []
    for source in sources:
        if source.kind == "xcc":
            streams.append(factory.make_energy("xcc", source))
        elif source.kind == "dcmi":
            streams.append(factory.make_power("dcmi", source, 1.0))
        else:
            raise ConfigError(f"a twin has no {source.kind}", where=f"[meters.{name}]", next="sources: dcmi, xcc")
    return read_polled(bench, name, mounted, streams, [source.feeds for source in sources])


def _read_rapl(bench: Bench, name: str, mounted: MountedMeter) -> Measured:
    """Read the counters of CPU packages and their memory."""
    check_keys(name, mounted.options, rapl.CONFIG)
    period_s = seconds(name, mounted.options, "period_s", bench.period_s or mounted.ask_s)
    flaws = mounted.flaws
    if flaws.period_s == PanelFlaws().period_s:
        flaws = replace(flaws, period_s=RAPL_STEP_S)
    cpu, streams = rapl.CpuFacts("GenuineIntel", "twin"), []
    for package in range(bench.timeline.node.packages):
        for zone in (f"package-{package}", "dram"):
            where = Path(f"intel-rapl:{package}" if zone != "dram" else f"intel-rapl:{package}:0")
            one = rapl.Zone(where, zone, package, None, RAPL_MODULUS_J)
            streams.append(rapl.describe_stream(one, (period_s, RAPL_STEP_S), cpu, has_psys=False))
    mounted = replace(mounted, flaws=flaws)
    return read_polled(bench, name, mounted, streams, [stream.scope for stream in streams])


def find_gain(bench: Bench, name: str, mounted: MountedMeter) -> float:
    """Return by how much a node's meter is wrong as a whole: the mean over its outlets, which share alike."""
    outlets = list_pdu_streams(_make_entry(name, mounted)) if mounted.family == "snmp" else ()
    return fmean(bench.draw_gain(name, mounted, device) for device in [one.scope for one in outlets] or [mounted.point])


READERS: Mapping[str, Callable[[Bench, str, MountedMeter], Measured]] = {
    "nvml": read_gpus,
    "analyzer": read_analyzer,
    "modbus": _read_modbus,
    "snmp": _read_snmp,
    "ipmi": _read_ipmi,
    "rapl": _read_rapl,
}


SLURM = "slurm"
PLUGINS = ("xcc", "ipmi", "pm_counters", "rapl", "gpu")
SLURM_OPTIONS = ("plugin", "frequency_s")
USUAL_S = 30.0
LATER_NS = 3600 * NS  # the database has long settled


def find_accounting(meters: Mapping[str, MountedMeter]) -> tuple[str, MountedMeter] | None:
    """Return the accounting of a cluster among a twin's meters, with its name."""
    return next(((name, m) for name, m in meters.items() if m.family == SLURM), None)


def check_accounting(name: str, mounted: MountedMeter) -> None:
    """Refuse wrong options of an accounting. Raises ConfigError."""
    where = f"[meters.{name}]"
    for key in mounted.options:
        if key not in SLURM_OPTIONS:
            raise ConfigError(f"unknown key {key!r}", where=where, next=suggest_name(key, list(SLURM_OPTIONS)))
    if read_plugin(mounted) not in PLUGINS:
        raise ConfigError(
            f"there is no plugin {read_plugin(mounted)!r}", where=where, next=suggest_name("", list(PLUGINS))
        )


def read_plugin(mounted: MountedMeter) -> str:
    """Return the energy plugin: as in the node file, else by the side of the supplies that it counts on."""
    return str(mounted.options.get("plugin", "ipmi" if mounted.point == "node.ac" else "xcc"))


def read_frequency_s(mounted: MountedMeter) -> float:
    """Return how often the plugin looks at its counter, in s."""
    return float(mounted.options.get("frequency_s", USUAL_S))


def make_job_number(study: str, cell: str, slot: str) -> str:
    """Return the number of a slot's job; always the same."""
    digest = hashlib.sha256(f"{study}/{cell}/{slot}".encode()).digest()
    return str(1_000_000 + int.from_bytes(digest[:4]) % 8_000_000)


def add_accounting(folder: Path, run: Path, job: str, bench: Bench, meter: tuple[str, MountedMeter]) -> list[str]:
    """Add what the cluster accounts for a slot's job to its run; return problems in words."""
    name, mounted = meter
    row = _AccountedJob(job, bench, name, mounted)
    write_json_atomic(folder / JOB, {"job": job, "state": "COMPLETED", "why": "", "exit_code": "0:0"}, sync=False)
    slot = Slot(folder, State.DONE, run, claim={"job": job})
    return attach_accounting(
        [slot], {}, slurm=SlurmClient(run=row.answer, where="twin"), now=lambda: row.end_ns + LATER_NS
    )


def count_energy_j(bench: Bench, name: str, mounted: MountedMeter, start_ns: int, end_ns: int) -> int:
    """Return what the counter rose by (J) from its last look before a job's start to its last before the end.

    Before the run the node was at rest, as it is after it.
    """
    timeline, period_s, gain = bench.timeline, read_frequency_s(mounted), bench.draw_gain(name, mounted, mounted.point)
    changes: dict[str, Any] = {"period_s": period_s, "quantum_j": 1.0, "gain_error": gain}
    flaws = replace(mounted.flaws, **changes)
    period_ns = round(period_s * NS)
    since = bench.find_first_update(name, period_s) - period_ns
    share, curve = timeline.curve(mounted.point)
    before, after = readings.read_panel_j((share, curve), flaws, np.array([start_ns, end_ns]), start_ns=since)
    early_s = max(timeline.begin_ns - since - (start_ns - since) // period_ns * period_ns, 0) / NS
    first_w, last_w = share * curve.watts(np.array([timeline.begin_ns, timeline.close_ns]))
    # The curve goes on before its begin as it began: at work, where no idle time was asked for.
    return int(after - before - (first_w - min(first_w, last_w)) * early_s * (1 + gain))


class _AccountedJob:
    """Hold the answers of sacct on one job."""

    def __init__(self, job: str, bench: Bench, name: str, mounted: MountedMeter) -> None:
        timeline = bench.timeline
        self._job, self._node, self._mounted = job, timeline.node.name, mounted
        self.start_ns = timeline.begin_ns // NS * NS
        self.end_ns = -(-timeline.close_ns // NS) * NS
        self._joules = count_energy_j(bench, name, mounted, self.start_ns, self.end_ns)

    def answer(self, words: Sequence[str], _: float) -> Answer:
        """Answer one of Slurm's programs."""
        if words[0] == "scontrol":
            looks = f"{read_frequency_s(self._mounted):.0f}"
            answers = {"AcctGatherEnergyType": f"acct_gather_energy/{read_plugin(self._mounted)}"}
            answers |= {"AcctGatherNodeFreq": f"{looks} sec", "EnergyIPMIFrequency": looks}
            return Answer(0, "".join(f"{key} = {value}\n" for key, value in answers.items()), "")
        if "--allusers" in words:
            return Answer(0, "", "")  # the node has no other job
        return Answer(0, "".join(self._make_row(step) for step in ("", ".batch", ".extern")), "")

    def _make_row(self, step: str) -> str:
        seconds = (self.end_ns - self.start_ns) // NS
        times = [_format_utc(t) for t in (self.start_ns, self.end_ns)]
        user = "" if step else "twin"
        fields = [self._job + step] * 2 + [self._job, user, "COMPLETED", "0:0", str(seconds), *times, "1", self._node]
        return "|".join([*fields, str(self._joules)]) + "\n"


def _format_utc(utc_ns: int) -> str:
    return dt.datetime.fromtimestamp(utc_ns // NS, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def choose_meters(meters: Mapping[str, MountedMeter], settings: Settings) -> dict[str, MountedMeter]:
    """Return the meters of a twin that a study reads: those it names, by name or family; all where it names none."""

    def is_meant(name: str, words: Iterable[str]) -> bool:
        return name in words or meters[name].family in words

    wanted = [name for name in meters if not settings.meters or is_meant(name, settings.meters)]
    return {name: meters[name] for name in wanted if not is_meant(name, settings.without)}


def check_meters(meters: Mapping[str, MountedMeter]) -> None:
    """Refuse meters of a family that virtual time does not know. Raises ConfigError."""
    for name, mounted in meters.items():
        if mounted.family == SLURM:
            check_accounting(name, mounted)
        elif mounted.family not in READERS:
            known = [*READERS, SLURM]
            what = f"virtual time has no meter {mounted.family!r}"
            raise ConfigError(what, where=f"[meters.{name}]", next=suggest_name(mounted.family, known))


def find_slowest_s(meters: Mapping[str, MountedMeter]) -> float:
    """Return how often the slowest of these meters is asked, in s."""
    asked = [float(m.options.get("period_s", m.ask_s)) for m in meters.values() if m.family != SLURM]
    return max(asked, default=0.0)


def read_meters(bench: Bench, meters: Mapping[str, MountedMeter]) -> list[Measured]:
    """Return what every meter shows. Raises ConfigError."""
    return [
        READERS[mounted.family](bench, name, mounted) for name, mounted in meters.items() if mounted.family != SLURM
    ]
