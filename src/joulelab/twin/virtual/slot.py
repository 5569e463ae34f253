"""Run the slots of a study on twins in virtual time: lay each out, measure it, write and analyse its run.

As a process (`python -m joulelab.twin.virtual.slot`) it takes slots by standard input, one folder a line, and answers
each with a line of JSON. A run folder is as the recorder would write it; it is made beside its place and moved there
whole, so a process that is killed leaves nothing half done. Nothing is forced to the disk, which would take longer than
all else. After a power loss a slot whose end.json is empty is made again; one whose journals are, and whose end.json is
not, counts as done: remove its folder, or the study's.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.results_file import write_result
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError, StoreError
from joulelab.run.run_command import ANALYSIS_MODULES, preload_modules
from joulelab.store.documents import read_json
from joulelab.store.run_folder import write_json_atomic
from joulelab.store.run_reader import open_run
from joulelab.study.folder import open_study, read_cell
from joulelab.study.slot import describe_error, make_labels
from joulelab.study.slot_setup import UsedGpus
from joulelab.study.slots import NOTES, claim_slot
from joulelab.twin import power_curves
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.virtual.cells import find_model, make_request, read_description
from joulelab.twin.virtual.meters import (
    Bench,
    add_accounting,
    choose_meters,
    draw_share,
    find_accounting,
    find_slowest_s,
    list_cap_events,
    make_job_number,
    read_meters,
)
from joulelab.twin.virtual.run_writing import FIRST_NS, RunDescription, write_run

if TYPE_CHECKING:
    from joulelab.study.folder import Settings, Study
    from joulelab.study.matrix import NodeType, PlannedCell
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.nodefile import Description
    from joulelab.twin.timeline import Timeline

FILE = "truth.json"
SHOWN = "node.ac"


def summarise_truth(timeline: Timeline) -> dict[str, Any]:
    """Return the true energies (J) by point over the workload, its time (s), and how the node's power was spread (W).

    Median and maximum are of means over 1 s.
    """
    a, b = timeline.start_ns, timeline.end_ns
    names = [*timeline.node.list_leaves(), *power_curves.NODE_POINTS]
    share, curve = timeline.curve(SHOWN)
    edges = np.arange(a, b + 1, NS, dtype=np.int64)
    means = share * np.diff(curve.joules(edges)) if len(edges) > 1 else share * curve.watts(edges)
    return {
        "energy_j": {name: timeline.energy(name, a, b) for name in names},
        "time_s": (b - a) / NS,
        SHOWN: {"median_w": float(np.median(means)), "max_w": float(means.max())},
    }


def write_truth(slot: Path, timeline: Timeline) -> None:
    """Write a slot's truth. Raises StoreError."""
    write_json_atomic(slot / FILE, summarise_truth(timeline), sync=False)


def read_truth(slot: Path) -> dict[str, Any]:
    """Return the truth of a slot that ran on a twin. Raises StoreError where there is none."""
    return read_json(slot / FILE)


IDLE_S, TAIL_S = 10.0, 5.0
JOB_TAIL_S = 1.0  # what a cluster accounts goes on to the job's end: it is not kept waiting

BLOCK_NS = 7 * 86_400 * NS  # every repeat of all cells has its week
PREPARED = ".prepared"
SLOW_S = 2.0  # a meter that is asked no more often is not asked in step with the workload


def run_slot(folder: Path) -> dict[str, Any]:
    """Run a slot and return its outcome: it `ended`, or is `taken`. Raises JoulelabError."""
    study, cell = open_study(folder.parents[2]), read_cell(folder.parent)
    node = _find_node(study, cell)
    began = monotonic_ns()
    described, settings = read_description(node), study.get_settings(cell.workload.name)
    meters = choose_meters(described.meters, settings)
    accounted = find_accounting(meters)
    job = {"job": make_job_number(study.name, cell.key, folder.name)} if accounted else {}
    claim = {"study": study.name, "cell": cell.key, "twin": node.options.get("twin"), **job}
    with claim_slot(folder, claim, sync=False) as got:
        if not got:
            return {"is": "taken"}
        setting = _SlotSetting(study, cell, node, described, settings, meters)
        run, bench, notes = _measure_slot(setting, folder)
        problems = add_accounting(folder, run, job["job"], bench, accounted) if accounted else []
        write_truth(folder, bench.timeline)
        with open_run(run) as opened:
            result = analyse_run(opened)
        write_result(run, result)
        took_s = (monotonic_ns() - began) / NS
        write_json_atomic(folder / NOTES, {**notes, "took_s": took_s, "problems": problems}, sync=False)
        _move_run(run, folder)
    return {"is": "ended", "problems": problems, "cooled": {}}


@dataclass(frozen=True, slots=True)
class _SlotSetting:
    """Hold what a slot is run by: its study and cell, the twin, and which of its meters are read."""

    study: Study
    cell: PlannedCell
    node: NodeType
    described: Description
    settings: Settings
    meters: dict[str, MountedMeter]


def _find_node(study: Study, cell: PlannedCell) -> NodeType:
    """Return the twin that a cell runs on, described as the cell was planned. Raises ConfigError."""
    node, identity = study.nodes.get(cell.workload.node_type), cell.workload.node
    if node is None or node.options.get("described") != identity.get("described"):
        what, then = "the twin of a cell is another by now", "type the same again"
        raise ConfigError(what, where=f"node type {cell.workload.node_type}", next=then)
    return node


def make_seed(study: Study, cell: PlannedCell, slot: str) -> int:
    """Return the seed of a slot's draws: by the study's seed and what the cell is, not by what the twin is made of."""
    knobs = ",".join(f"{name}={value.text}" for name, value in sorted(cell.knobs.items()))
    text = f"{study.seed}/{cell.workload.name}/{cell.workload.node_type}/{knobs}/{slot}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def find_start_ns(study: Study, cell: PlannedCell, slot: str) -> int:
    """Return when a slot starts (UTC, ns), in the order in which slots are run."""
    repeat = int(slot[1:])
    digest = hashlib.sha256(f"{study.seed}/{repeat}/{cell.key}".encode()).digest()
    within = int.from_bytes(digest[:6]) / (1 << 48)
    second = round((repeat - 1 + within) * BLOCK_NS / NS)
    return FIRST_NS + second * NS


def _measure_slot(of: _SlotSetting, folder: Path) -> tuple[Path, Bench, dict[str, Any]]:
    """Lay a slot out, write its run beside its place; return that, its truth, and notes of it. Raises ConfigError."""
    bench = _make_bench(of, folder.name)
    used = tuple(f"gpu:{gpu}" for gpu in bench.ask.gpus)
    idle = tuple(f"gpu:{gpu}" for gpu in range(len(of.described.node.gpus)) if gpu not in bench.ask.gpus)
    shown = UsedGpus(of.node.name, of.node.uses, used, idle)
    notes = {"settings": of.settings.to_json(), **shown.to_json(), "cooled": {}}
    options = of.node.options
    about = RunDescription(
        name=of.study.name,
        labels=make_labels(of.study, of.cell, folder),
        command=[*of.cell.make_argv()],
        host=of.described.node.name,
        twin={
            "name": options.get("twin"),
            "described": options.get("described"),
            "seed": bench.seed,
            "rated_w": of.described.node.rated_w or None,
        },
        options={"period_s": of.settings.period_s, "idle_s": of.settings.idle_s},
    )
    run = write_run(folder / PREPARED, about, bench.timeline, read_meters(bench, of.meters), list_cap_events(bench))
    return run, bench, notes


def _make_bench(of: _SlotSetting, slot: str) -> Bench:
    """Return the truth of a slot. Raises ConfigError."""
    seed, ask = make_seed(of.study, of.cell, slot), make_request(of.described, of.node, of.cell)
    _, model = find_model(of.described, of.cell)
    slow_s = find_slowest_s(of.meters)
    lead_s = draw_share(seed, "lead") * slow_s if slow_s > SLOW_S else 0.0
    idle_s = (IDLE_S if of.settings.idle_s is None else of.settings.idle_s) + lead_s
    tail_s = max(JOB_TAIL_S if find_accounting(of.meters) else TAIL_S, 1.2 * slow_s)
    when = RunTimes(find_start_ns(of.study, of.cell, slot), idle_s, tail_s)
    timeline = lay_out_run(of.described.node, model, ask, when, seed)
    return Bench(timeline, ask, seed, of.settings.period_s, of.study.seed)


def _move_run(run: Path, folder: Path) -> None:
    """Move a whole run to its place: the slot is done then."""
    try:
        run.rename(folder / run.name)
        shutil.rmtree(run.parent, ignore_errors=True)
    except OSError as error:
        raise StoreError("a run cannot be put in its place", where=str(folder), why=error.strerror) from error


LAST_LINES = 3


def main() -> int:
    """Serve until the input ends; return 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the driver, which ends this process
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    preload_modules(ANALYSIS_MODULES)
    for line in sys.stdin:
        folder = line.rstrip("\n")
        if folder:
            os.write(answers, json.dumps({"slot": folder, "outcome": answer_slot(Path(folder))}).encode() + b"\n")
    return 0


def answer_slot(folder: Path) -> dict[str, Any]:
    """Run a slot and return its outcome, also an error."""
    try:
        return run_slot(folder)
    except JoulelabError as error:
        return {"is": "error", "error": describe_error(error)}
    except OSError as error:
        plain = {"what": "the slot cannot be run", "where": str(folder), "why": str(error), "next": "mend that"}
        return {"is": "error", "error": {"kind": "StoreError", **plain}}
    except Exception as error:  # noqa: BLE001 - the driver gets every error
        why = f"{type(error).__name__}: {error}"
        trace = " ".join(traceback.format_exc(limit=-LAST_LINES).split())
        plain = {"what": "a slot of a twin failed", "where": str(folder), "why": why, "next": f"report it: {trace}"}
        return {"is": "error", "error": {"kind": "JoulelabError", **plain}}


if __name__ == "__main__":
    sys.exit(main())
