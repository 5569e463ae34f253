"""Make small run folders with known energies, through the store's own API."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.outside import make_home

from joulelab.core.clock import NS, read_boot_id
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.store.journal import JournalWriter, make_journal_path, pack_row
from joulelab.store.manifest import write_manifest
from joulelab.store.run_folder import _claim_folder, create_run, end_run
from joulelab.store.seal import seal_run

HOST = "node1"
BOOT = "11111111-2222-3333-4444-555555555555"
START = 100 * NS
STARTED = {
    "mono_ns": START - 2 * NS,
    "utc_ns": 1_700_000_000 * NS,
    "width_ns": 400,
    "kernel_error_ns": None,
    "boot_id": BOOT,
}
# Larger than any pid of Linux: an owner that is dead in this boot.
NOBODY = {"pid": 2**22 + 1, "start_ticks": 1, "boot_id": read_boot_id()}
ASSUMED = Accuracy("assumed", gain=0.05, quantum=0.001, shared="nvml:H100")
UNKNOWN = Accuracy("unknown", quantum=61e-6, reference="nobody states it")


def gpu_stream(number: int, accuracy: Accuracy, *, seen: float = 1.0) -> Stream:
    energy = Spec("energy_j", "energy", "J", "counter", 0.1, None, seen, limits=(0.0, 700.0), accuracy=accuracy)
    power = Spec("power_instant_w", "power", "W", "power", 0.1, 0.025, seen, limits=(0.0, 700.0), accuracy=accuracy)
    scope = f"gpu:{number}"
    return Stream(f"{scope}.power", "power", scope, 0.1, (energy, power), device=f"GPU-{number}", model="H100")


def cpu_stream(number: int, accuracy: Accuracy, kind: str = "cpu", parent: str | None = None) -> Stream:
    spec = Spec("energy_j", "energy", "J", "counter", 0.001, modulus=262143.0, accuracy=accuracy)
    scope = f"{kind}:{number}"
    return Stream(scope, "energy", scope, 0.1, (spec,), parent, device=f"intel-rapl:{number}")


def estimate_stream() -> Stream:
    accuracy = Accuracy("assumed", gain=0.5, shared="estimate", reference="load x 65 W")
    spec = Spec("power_w", "power", "W", "power", 0.1, 0.1, limits=(0.0, 65.0), accuracy=accuracy, estimate=True)
    return Stream("cpu", "power", "cpu", 0.1, (spec,))


MACHINE = Stream(
    "machine", "machine", "host", 1.0, (Spec("busy", "CPU load", "1"), Spec("disk_read_b", "disk", "B", "counter"))
)


_sealed: dict[str, Path] = {}


def make_run(runs: Path, *, state: str = "sealed", **given: Any) -> Path:
    """Write a run of constant power; `state` is live, killed, closed (journals) or sealed (Parquet).

    To seal takes longest by far: what is sealed twice is copied.
    """
    if state != "sealed":
        return write_run(runs, state=state, **given)
    key = repr(sorted(given.items()))
    if key not in _sealed:
        _sealed[key] = write_run(make_home(), **given)
    started = given.get("started") or STARTED
    run, run_id = _claim_folder(runs, int(started["utc_ns"]))
    shutil.copytree(_sealed[key], run, copy_function=shutil.copyfile, dirs_exist_ok=True)
    meta = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(meta | {"id": run_id, "cwd": given.get("cwd", str(Path.cwd()))}))
    write_manifest(run, {}, ["run.json"])
    return run


def write_run(
    runs: Path,
    *,
    seconds: float = 10.0,
    gpus: int = 2,
    gpu_w: float = 300.0,
    cpus: int = 1,
    cpu_w: float = 90.0,
    idle: bool = False,
    idle_w: float = 60.0,
    state: str = "sealed",
    accuracy: Accuracy = ASSUMED,
    cpu_accuracy: Accuracy | None = None,
    seen: float = 1.0,
    estimate: bool = False,
    core: bool = False,
    marks: list[dict[str, Any]] | None = None,
    missing: list[dict[str, str]] | None = None,
    events: list[dict[str, Any]] | None = None,
    end: dict[str, Any] | None = None,
    **meta: Any,
) -> Path:
    """Write a run as `make_run` does, each time."""
    owner = {} if state == "live" else {"owner": NOBODY}
    base = {"host": HOST, "command": ["python", "train.py"], "started": STARTED, **owner, **meta}
    run = create_run(runs, base)
    stop = START + round(seconds * NS)
    streams = [gpu_stream(k, accuracy, seen=seen) for k in range(gpus)]
    if streams:
        _write(run, "nvml", streams, [(gpu_w, idle_w)] * gpus, stop, power=True)
    packages = [cpu_stream(k, cpu_accuracy or accuracy) for k in range(cpus)]
    watts = [(cpu_w, idle_w / 2)] * cpus
    if core and cpus:
        packages.append(cpu_stream(0, accuracy, "core", "cpu:0"))
        watts.append((cpu_w / 3, idle_w / 6))
    if packages:
        _write(run, "rapl", packages, watts, stop, power=False)
    if estimate:
        _write(run, "estimate", [estimate_stream()], [(40.0, 5.0)], stop, power=True, counter=False)
    _write_load(run, stop)
    folder = run / HOST
    lines: list[dict[str, Any]] = [{"t": START, "event": "workload", "pid": 4242, "start_ns": START}]
    if idle:
        lines.append({"t": START - NS // 10, "event": "idle", "from": START - 2 * NS, "to": START - NS // 10})
    lines += [{"t": START - NS, "event": "meter", **m} for m in missing or []]
    lines += events or []
    _lines(folder / "events.run.jsonl", lines)
    if marks:
        _lines(folder / "marks" / "4242-17.jsonl", marks)
    if state in ("closed", "sealed"):
        given = {"outcome": "exit", "exit_code": 0, "start_ns": START, "end_ns": stop, "ended": _later(stop)}
        end_run(run, given | (end or {}))
    if state == "sealed":
        seal_run(run)
    return run


def epochs(count: int, seconds: float, samples: float = 64.0, *, name: str = "epoch") -> list[dict[str, Any]]:
    """Return marks of phases one after another inside one phase `train`, each with work."""
    length = round(seconds * NS) // count
    marks: list[dict[str, Any]] = [_begin(START, "4242-0", "train", None, None)]
    for k in range(count):
        begin, identity = START + k * length, f"4242-{k + 1}"
        marks.append(_begin(begin, identity, name, k + 1, "4242-0"))
        amounts = {"samples": samples}
        work = {"t": begin + length - 10, "mark": "work", "from": begin, "phase": identity, "amounts": amounts}
        marks.append(work | {"count": 1, "at": [begin + length - 10], "rank": 0})
        marks.append({"t": begin + length - 5, "mark": "end", "id": identity})
    marks.append({"t": START + count * length - 2, "mark": "end", "id": "4242-0"})
    return marks


def _begin(t: int, identity: str, name: str, n: int | None, parent: str | None) -> dict[str, Any]:
    base = {"t": t, "mark": "begin", "id": identity, "name": name, "n": n, "labels": {}}
    return base | {"parent": parent, "thread": 1, "rank": 0}


def _later(mono_ns: int) -> dict[str, Any]:
    since = mono_ns - int(STARTED["mono_ns"] or 0)
    return {**STARTED, "mono_ns": mono_ns, "utc_ns": int(STARTED["utc_ns"] or 0) + since}


def _lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _writer(run: Path, meter: str, streams: list[Stream]) -> JournalWriter:
    table = streams[0].table
    header = {"meter": meter, "table": table, "segment": 0, "host": HOST, "boot_id": BOOT}
    return JournalWriter(make_journal_path(run / HOST, meter, table, 0), header, streams)  # type: ignore[arg-type]


def _write(
    run: Path,
    meter: str,
    streams: list[Stream],
    watts: list[tuple[float, float]],
    stop: int,
    *,
    power: bool,
    counter: bool = True,
) -> None:
    """Write readings each 0.1 s from two seconds before to half a second after; idle before and after the run."""
    with _writer(run, meter, streams) as journal:
        for k in range(-20, (stop - START) * 10 // NS + 6):
            t = START + k * NS // 10
            for index, (busy, low) in enumerate(watts):
                inside = min(max(t - START, 0), stop - START) / NS
                outside = (t - START) / NS + 2 - inside
                values = [1000.0 + busy * inside + low * outside] if counter else []
                if power:
                    values.append(busy if START < t <= stop else low)
                journal.append_rows(pack_row(journal.row, index, t, t + 1000, values))


def _write_load(run: Path, stop: int) -> None:
    with _writer(run, "host", [MACHINE]) as journal:
        for k in range((stop - START) // NS + 1):
            t = START + k * NS
            journal.append_rows(pack_row(journal.row, 0, t, t + 1000, [0.5, 1e9 + k * 5e7]))
