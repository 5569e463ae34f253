"""Make runs of nodes with known power, caps, fans and inlet air, through the store's own API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.analysis.folders import Folder
from tests.analysis.virtual import accuracy
from tests.report.synthetic import BOOT, HOST, NOBODY, START, STARTED

from joulelab.core.clock import NS
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.plan.measured_runs import MeasuredRun, read_measured_run
from joulelab.store.journal import JournalWriter, make_journal_path, pack_row
from joulelab.store.run_folder import create_run, end_run
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

GAIN = 0.01
GUARD_S = 5


def node_run(
    runs: Path,
    watts: float | Callable[[float], float] = 6000.0,
    *,
    seconds: float = 20.0,
    step_s: float = 1.0,
    scope: str = "node.ac",
    hosts: Sequence[str] = (HOST,),
    idle_w: float | Callable[[float], float] = 2000.0,
    gpu_w: float | None = None,
    gpus: int = 2,
    cap: float | Sequence[float] | None = None,
    found_w: float = 700.0,
    changed: bool = False,
    cooling: Mapping[str, tuple[str, float | Callable[[float], float]]] | None = None,
    gpu_c: float | None = None,
    fan_w: float | None = None,
    work: Mapping[str, float] | None = None,
    facts: Mapping[str, Any] | None = None,
    gain: float | None = GAIN,
    **meta: Any,
) -> Path:
    """Write a run of nodes whose meter reads every `step_s`, idle for some seconds before and after.

    `cooling` are channels of a BMC by name: unit and value, over the seconds of the workload where it is a function.
    """
    run = create_run(
        runs, {"host": hosts[0], "command": ["python", "train.py"], "started": STARTED, "owner": NOBODY, **meta}
    )
    stop = START + round(seconds * NS)
    course = watts if callable(watts) else lambda _: watts
    for host in hosts:
        accuracy = Accuracy("unknown") if gain is None else Accuracy("assumed", gain, shared=f"pdu:{host}")
        spec = Spec("power_w", "power", "W", "power", step_s, step_s, accuracy=accuracy)
        stream = Stream(scope, "power", scope, step_s, (spec,), device=f"pdu-{host}")
        _write_journal(
            run, host, "pdu", [stream], stop, step_s, lambda s: [[_evaluate(idle_w, s) if s is None else course(s)]]
        )
        if gpu_w is not None:
            _write_gpus(run, host, (gpu_w, gpus), stop, step_s)
        if gpu_c is not None:
            chip = Stream("gpu:0.state", "state", "gpu:0", step_s, (Spec("temperature_c", "temperature", "degC"),))
            _write_journal(run, host, "nvml", [chip], stop, step_s, lambda _: [[gpu_c]])
        _write_cooling(run, host, (cooling or {}, fan_w), stop, step_s)
    _write_events(run, hosts, stop, _list_cap_events(cap, gpus, found_w, changed=changed))
    _write_marks(run / hosts[0] / "marks", stop, work, facts)
    end = {**STARTED, "mono_ns": stop, "utc_ns": int(STARTED["utc_ns"] or 0) + stop - int(STARTED["mono_ns"] or 0)}
    end_run(run, {"outcome": "exit", "exit_code": 0, "start_ns": START, "end_ns": stop, "ended": end})
    return run


def _write_gpus(run: Path, host: str, drawn: tuple[float, int], stop: int, step_s: float) -> None:
    watts, count = drawn
    own = Accuracy("assumed", 0.05, shared="nvml")
    power = Spec("power_w", "power", "W", "power", 0.1, 0.1, limits=(0.0, 700.0), accuracy=own)
    boards = [Stream(f"gpu:{k}", "power", f"gpu:{k}", step_s, (power,), model="H100") for k in range(count)]
    _write_journal(run, host, "nvml", boards, stop, step_s, lambda s: [[watts if s is not None else 70.0]] * count)


def _write_cooling(
    run: Path,
    host: str,
    readings: tuple[Mapping[str, tuple[str, float | Callable[[float], float]]], float | None],
    stop: int,
    step_s: float,
) -> None:
    channels, fan_w = readings
    if channels:
        state = tuple(Spec(name, "cooling", unit) for name, (unit, _) in channels.items())
        bmc = Stream("cooling", "cooling", "node", step_s, state)
        _write_journal(
            run, host, "ipmi", [bmc], stop, step_s, lambda s: [[_evaluate(v, s) for _, v in channels.values()]]
        )
    if fan_w is not None:
        fans = Spec("fan_power_w", "power", "W", "power", 1.0, 1.0, accuracy=Accuracy("assumed", 0.02))
        board = Stream("fans", "fans", "fans", step_s, (fans,), parent="node.dc")
        _write_journal(run, host, "board", [board], stop, step_s, lambda _: [[fan_w]])


def _evaluate(value: float | Callable[[float], float], second: float | None) -> float:
    return value(second or 0.0) if callable(value) else value


def measured(run: Path) -> MeasuredRun:
    """Return what a run measured."""
    with open_run(run) as opened:
        return read_measured_run(opened)


def only_accounted(folder: Path) -> MeasuredRun:
    """Return a job of 12 s and 6 kJ whose energy a cluster accounted, and nothing else."""
    spec = Spec("energy_j", "energy", "J", "counter", 1e-9, accuracy=accuracy(0.05))
    made = Folder(folder).add("slurm", Stream("job", "job", "job", 12.0, (spec,)), [4.0, 16.0], [0.0, 6000.0])
    return read_measured_run(made.close(4.0, 16.0).open())


def _write_journal(
    run: Path,
    host: str,
    meter: str,
    streams: list[Stream],
    stop: int,
    step_s: float,
    values: Callable[[float | None], Sequence[Sequence[float]]],
) -> None:
    """Write rows of all streams, None being the time of a moment outside of the workload."""
    (run / host).mkdir(exist_ok=True)
    table = streams[0].table
    header: Any = {"meter": meter, "table": table, "segment": 0, "host": host, "boot_id": BOOT}
    with JournalWriter(make_journal_path(run / host, meter, table, 0), header, streams) as journal:
        for k in range(-round(GUARD_S / step_s), round(((stop - START) / NS + GUARD_S) / step_s) + 1):
            t = START + round(k * step_s * NS)
            inside = (t - START) / NS if START < t <= stop else None
            for index, row in enumerate(values(inside)):
                journal.append_rows(pack_row(journal.row, index, t, t + 1000, list(row)))


def _list_cap_events(
    cap: float | Sequence[float] | None, gpus: int, found_w: float, *, changed: bool
) -> list[dict[str, Any]]:
    if cap is None:
        return []
    caps = [cap] * gpus if isinstance(cap, (int, float)) else list(cap)
    events = []
    for k, watts in enumerate(caps):
        about = {"scope": f"gpu:{k}", "device": f"GPU-{k}", "unit": "W", "found": found_w, "kind": "power"}
        for asked in (watts, watts - 50.0) if changed else (watts,):
            events.append({"event": "cap-set", **about, "asked": asked, "requested": asked, "enforced": asked})
        events.append({"event": "cap-restored", **about, "outcome": "restored", "now": found_w, "said": ""})
    return events


def _write_events(run: Path, hosts: Sequence[str], stop: int, caps: list[dict[str, Any]]) -> None:
    for host in hosts:
        lines = [{"t": START - NS // 10, "event": "idle", "from": START - 4 * NS, "to": START - NS // 10}]
        if host == hosts[0]:
            lines.append({"t": START, "event": "workload", "pid": 4242, "start_ns": START})
            lines += [{"t": stop if one["event"] == "cap-restored" else START - NS, **one} for one in caps]
        _write_lines(run / host / "events.run.jsonl", lines)


def _write_marks(folder: Path, stop: int, work: Mapping[str, float] | None, facts: Mapping[str, Any] | None) -> None:
    marks: list[dict[str, Any]] = []
    if work:
        about = {"t": stop - 10, "mark": "work", "from": START, "phase": None, "amounts": dict(work)}
        marks.append(about | {"count": 1, "at": [stop - 10], "rank": 0})
    if facts:
        marks.append({"t": START + 5, "mark": "fact", "facts": dict(facts), "rank": 0})
    if marks:
        _write_lines(folder / "4242-17.jsonl", marks)


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
