"""Measure a twin node in virtual time by every kind of meter at once, each with its own flaws, and analyse it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.analyse import analyse_run
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.nvml.generations import find_sensor, power_specs
from joulelab.store.journal import JournalWriter, make_journal_path, pack_row
from joulelab.store.run_folder import create_run, end_run
from joulelab.store.run_reader import open_run
from joulelab.twin import profile, readings
from joulelab.twin.flaws import HOPPER, PanelFlaws
from joulelab.twin.model import H100, Node
from joulelab.twin.readings import Panel
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from joulelab.analysis.result import Result
    from joulelab.core.quantity import Quantity
    from joulelab.twin.profile import Profile

    Drawn = Callable[[float], float]

NS = 1_000_000_000
START = 1_000 * NS
LEAD, TAIL = 8.0, 3.0  # s of record before and after the workload
TOOK = 2_000_000
HOST = "twin"


@dataclass(frozen=True)
class Wall:
    """Describe a node-level meter: what it is believed to be, and how it is read.

    `delay_s` is a lag and `error` a relative error that nobody states.
    """

    meter: str
    points: tuple[str, ...]
    scope: str
    update_s: float
    window_s: float
    gain: float
    offset_w: float = 0.0
    quantum_w: float = 1.0
    quantum_j: float | None = None
    period_s: float = 1.0
    delay_s: float = 0.0
    counter_only: bool = False
    lag_s: float = 0.0
    error: float = 0.0


CORDS = ("outlet:1", "outlet:2", "outlet:3", "outlet:4")
WALLS = (
    Wall("analyzer", ("node.ac",), "node.ac", 0.1, 0.1, 0.001, 6.0, 0.1, period_s=0.1),
    Wall("pdu1", CORDS, "node.ac", 1.0, 1.0, 0.01, 0.0, 1.0, 3600.0),
    Wall("dcmi", ("node.ac",), "node.ac", 1.0, 1.0, 0.03, lag_s=4.0),
    Wall("xcc", ("node.dc",), "node.dc", 1.0, 1.0, 0.03, quantum_j=0.001, counter_only=True, delay_s=0.5, lag_s=2.0),
    Wall("redfish", ("node.dc",), "node.dc", 1.0, 1.0, 0.03, delay_s=2.0, lag_s=4.0),
    Wall("modbus1", ("node.ac",), "node.ac", 0.5, 0.5, 0.01, quantum_w=0.01, quantum_j=36.0),
    Wall("dcim", ("node.ac",), "node.ac", 1.0, 1.0, 0.02, period_s=15.0),
)


@dataclass(frozen=True)
class Outcome:
    """Hold one figure of a run against the truth."""

    name: str
    value: float
    expanded: float
    true: float

    @property
    def covered(self) -> bool:
        """Return whether the truth lies in the interval."""
        return abs(self.value - self.true) <= self.expanded


def load(rng: np.random.Generator, seconds: float, lead_s: float = LEAD) -> dict[str, Profile]:
    """Draw loads of GPUs, packages, memory and the host: idle before and after the workload."""
    at, gpu, cpu = [0.0, lead_s], [0.0, 0.0], [0.05, 0.05]
    kind = rng.choice(["steady", "square", "training", "noise"])
    t, end, high = lead_s, lead_s + seconds, rng.uniform(0.5, 1.0)
    period = float(rng.uniform(0.4, 6.0))
    while t < end:
        if kind == "steady":
            stretch, levels = rng.uniform(3, 10), (high * rng.uniform(0.9, 1.0),)
        elif kind == "square":
            stretch, levels = period / 2, (high, 0.15)
        elif kind == "training":
            stretch, levels = rng.uniform(2.0, 4.0), (high * rng.uniform(0.9, 1), high * rng.uniform(0.3, 0.7))
        else:
            stretch, levels = rng.uniform(0.1, 1.0), (rng.uniform(0.1, 1.0),)
        for level in levels:
            at += [t, min(t + stretch, end)]
            gpu += [level, level]
            cpu += [0.1 + 0.4 * level] * 2
            t += stretch
            if t >= end:
                break
    at += [end, end + 100]
    gpu += [0.0, 0.0]
    cpu += [0.05, 0.05]
    whole = {name: profile.from_arrays(at, level, unit="load") for name, level in (("gpu", gpu), ("cpu", cpu))}
    return whole | {"dram": whole["cpu"], "host": profile.from_arrays(at, gpu, unit="load")}


class Recorder:
    """Write tables of a run folder as the recorder does."""

    def __init__(self, run: Path) -> None:
        self.folder = run / HOST
        self.folder.mkdir(exist_ok=True)

    def write(self, meter: str, table: str, rows: Sequence[tuple[Stream, np.ndarray, Sequence[np.ndarray]]]) -> None:
        """Write one table: streams with poll times (ns) and columns."""
        fields = {"meter": meter, "table": table, "segment": 0, "host": HOST, "boot_id": "b"}
        streams = [stream for stream, _, _ in rows]
        with JournalWriter(make_journal_path(self.folder, meter, table, 0), fields, streams) as journal:
            for k, (_, t, columns) in enumerate(rows):
                lines = zip(t.tolist(), *(np.asarray(c, dtype=float).tolist() for c in columns), strict=True)
                journal.append_rows(b"".join(pack_row(journal.row, k, s, s + TOOK, v) for s, *v in lines))


def measure(
    folder: Path, seed: int, seconds: float = 30.0, *, gains: bool = True, walls: Sequence[Wall] = WALLS
) -> tuple[Result, Truth]:
    """Record a random load on an 8xH100 node by all meters, and return the result and the truth."""
    rng = np.random.default_rng(seed)
    node = Node(gpus=(H100,) * 8, seed=seed)
    span = LEAD + seconds + TAIL
    truth = Truth.create(
        folder / f"truth-{seed}", node, profiles=load(rng, seconds), start_ns=START, horizon_s=span + 10
    )
    a, b = START + round(LEAD * NS), START + round((LEAD + seconds) * NS)
    started = {"mono_ns": START, "utc_ns": START, "width_ns": 400, "kernel_error_ns": None, "boot_id": "b"}
    run = create_run(folder, {"host": HOST, "command": ["virtual", str(seed)], "started": started, "owner": {}})
    recorder = Recorder(run)
    drawn = (lambda most: float(rng.uniform(-most, most))) if gains else (lambda _: 0.0)
    _inside(recorder, truth, rng, span, drawn)
    for wall in walls:
        _wall(recorder, truth, rng, span, wall, drawn)
    (run / HOST / "events.run.jsonl").write_text(json.dumps({"t": a, "event": "workload", "start_ns": a}) + "\n")
    end_run(run, {"outcome": "exit", "exit_code": 0, "ended": started, "start_ns": a, "end_ns": b})
    return analyse_run(open_run(run)), truth


def polls(rng: np.random.Generator, span: float, period_s: float) -> np.ndarray:
    """Return poll times (ns): absolute deadlines with a small delay each."""
    t = np.arange(rng.uniform(0, period_s), span, period_s)
    return START + np.rint((t + rng.exponential(0.0005, t.size)) * NS).astype(np.int64)


def _inside(recorder: Recorder, truth: Truth, rng: np.random.Generator, span: float, drawn: Drawn) -> None:
    specs = power_specs(find_sensor(9, (9, 0), H100.name), H100.name, (60.0, 700.0))
    gain = drawn(specs[0].accuracy.gain)
    rows = []
    t = polls(rng, span, 0.1)
    for k in range(8):
        flaws = replace(HOPPER, gain_error=gain, power_phase_s=rng.uniform(0, 0.1), counter_phase_s=rng.uniform(0, 0.1))
        curve = truth.curve(f"gpu:{k}")
        stream = Stream(f"gpu:{k}.power", "power", f"gpu:{k}", 0.1, specs, device=str(k), model=H100.name)
        columns = (
            readings.read_counter_j(curve, flaws, t, start_ns=START),
            readings.read_instant_w(curve, flaws, t, start_ns=START),
            readings.read_average_w(curve, flaws, t, start_ns=START),
        )
        rows.append((stream, t, columns))
    recorder.write("nvml", "power", rows)
    rows = []
    gain = drawn(0.05)
    for kind in ("cpu", "dram"):
        for k in (0, 1):
            accuracy = Accuracy("assumed", 0.05, quantum=6e-5, shared="rapl", reference="virtual")
            spec = Spec("energy_j", "energy", "J", "counter", 0.001, accuracy=accuracy)
            stream = Stream(f"{kind}:{k}", "energy", f"{kind}:{k}", 0.1, (spec,))
            joules = truth.energy(f"{kind}:{k}", START, t // 1_000_000 * 1_000_000) * (1 + gain)
            rows.append((stream, t, (joules,)))
    recorder.write("rapl", "energy", rows)


def _wall(recorder: Recorder, truth: Truth, rng: np.random.Generator, span: float, wall: Wall, drawn: Drawn) -> None:
    gain, offset = drawn(wall.gain) + wall.error, drawn(wall.offset_w)
    phase = float(rng.uniform(0, wall.update_s))
    rows = []
    for number, point in enumerate(wall.points):
        quantum_j = wall.quantum_j or 3600.0
        flaws = PanelFlaws(
            period_s=wall.update_s, window_s=wall.window_s, phase_s=phase, gain_error=gain, offset_w=offset,
            quantum_w=wall.quantum_w, quantum_j=quantum_j,
        )  # fmt: skip
        panel = Panel(truth, point, flaws, number=number)
        accuracy = Accuracy("datasheet", wall.gain, wall.offset_w, wall.quantum_w, wall.meter, "virtual")
        power = Spec(
            "power_w", "power", "W", "power", wall.update_s, wall.window_s, accuracy=accuracy, lag_s=wall.lag_s
        )
        counted = replace(accuracy, offset=0.0, quantum=quantum_j)
        energy = Spec("energy_j", "energy", "J", "counter", wall.update_s, accuracy=counted, lag_s=wall.lag_s)
        specs = () if wall.counter_only else (power,)
        specs += (energy,) if wall.quantum_j else ()
        t = polls(rng, span, wall.period_s)
        late = [max(int(s) - round(wall.delay_s * NS), START) for s in t]
        columns = [] if wall.counter_only else [np.array([panel.power_w(s) for s in late])]
        columns += [np.array([panel.energy_j(s) for s in late])] if wall.quantum_j else []
        several = len(wall.points) > 1
        scope = f"outlet:{wall.meter}.{number + 1}" if several else wall.scope
        stream = Stream(
            scope, "power", scope, wall.period_s, specs, parent=wall.scope if several else None,
            sums=wall.scope if several else "", parts=len(wall.points) if several else 0,
        )  # fmt: skip
        rows.append((stream, t, columns))
    recorder.write(wall.meter, "power", rows)


def outcomes(result: Result, truth: Truth, *, gains: bool = True) -> list[Outcome]:
    """Compare every figure of a result with the truth: each meter at its own point, rest and efficiency.

    Without `gains` the intervals are without gain and offset too, so that these hide nothing.
    """
    a, b = result.start_ns, result.end_ns
    found = []

    def add(name: str, q: Quantity, true: float) -> None:
        q = q if gains else q.without("gain", "offset")
        if q.known:
            found.append(Outcome(name, q.value, 2 * q.u, true))

    for s in result.scopes:
        point = f"outlet:{s.scope.rpartition('.')[2]}" if s.scope.startswith("outlet") else s.scope
        for reading in (s.reading, *s.others):
            add(f"{s.scope.split(':')[0]} {reading.meter} {reading.channel}", reading.energy, truth.energy(point, a, b))
    parts = sum(truth.energy(p, a, b) for p in truth.leaves if p.split(":")[0] in ("gpu", "cpu", "dram"))
    ac, dc = (truth.energy(p, a, b) for p in ("node.ac", "node.dc"))
    for name, true in (("rest of node.ac", ac - parts), ("rest of node.dc", dc - parts), ("supply loss", ac - dc)):
        group = result.group(name)
        if group is not None:
            add(name, group.energy, true)
    for name, q in result.ratios.items():
        add(name, q, dc / ac)
    return found
