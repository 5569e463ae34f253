"""Run one slot on a twin in virtual time: claim it, lay it out, measure it, write and analyse its run."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.analyse import analyse_run
from joulelab.analysis.results_file import write_result
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, StoreError
from joulelab.store.run_folder import write_json_atomic
from joulelab.store.run_reader import open_run
from joulelab.study.devices import Used
from joulelab.study.folder import open_study, read_cell
from joulelab.study.slot import labels_of
from joulelab.study.slots import NOTES, claimed
from joulelab.twin.timeline import RunTimes, lay_out_run
from joulelab.twin.virtual import cluster, gpus, slot_truth
from joulelab.twin.virtual.ask import ask_of, model_of
from joulelab.twin.virtual.bench import Bench, draw
from joulelab.twin.virtual.slot_measurement import chosen, measure, slowest_s
from joulelab.twin.virtual.twin import description_of
from joulelab.twin.virtual.write import About, write_run

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.study.folder import Settings, Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.nodes import NodeType
    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.nodefile import Description

IDLE_S, TAIL_S = 10.0, 5.0
JOB_TAIL_S = 1.0  # what a cluster accounts goes on to the job's end: it is not kept waiting
DAY_NS = 86_400 * NS
FIRST_NS = 18_262 * DAY_NS  # 2020-01-01, in UTC: the day on which virtual time begins
BLOCK_NS = 7 * DAY_NS  # every repeat of all cells has its week
PREPARED = ".prepared"
SLOW_S = 2.0  # a meter that is asked no more often is not asked in step with the workload


def run_slot(folder: Path) -> dict[str, Any]:
    """Run a slot and return what to tell: it `ended`, or is `taken`. Raises JoulelabError."""
    study, cell = open_study(folder.parents[2]), read_cell(folder.parent)
    node = _node(study, cell)
    began = monotonic_ns()
    described, settings = description_of(node), study.settings_of(cell.workload.name)
    meters = chosen(described.meters, settings)
    accounted = cluster.mounted_on(meters)
    job = {"job": cluster.job_of(study.name, cell.key, folder.name)} if accounted else {}
    claim = {"study": study.name, "cell": cell.key, "twin": node.options.get("twin"), **job}
    with claimed(folder, claim, sync=False) as got:
        if not got:
            return {"is": "taken"}
        setting = _Setting(study, cell, node, described, settings, meters)
        run, bench, notes = _measured(setting, folder)
        problems = cluster.account(folder, run, job["job"], bench, accounted) if accounted else []
        slot_truth.keep_truth(folder, bench.timeline)
        with open_run(run) as opened:
            result = analyse_run(opened)
        write_result(run, result)
        took_s = (monotonic_ns() - began) / NS
        write_json_atomic(folder / NOTES, {**notes, "took_s": took_s, "problems": problems}, sync=False)
        _place(run, folder)
    return {"is": "ended", "problems": problems, "cooled": {}}


@dataclass(frozen=True, slots=True)
class _Setting:
    """Hold what a slot is run by: its study and cell, the twin, and which of its meters are read."""

    study: Study
    cell: PlannedCell
    node: NodeType
    described: Description
    settings: Settings
    meters: dict[str, MountedMeter]


def _node(study: Study, cell: PlannedCell) -> NodeType:
    """Return the twin that a cell runs on, described as the cell was planned. Raises ConfigError."""
    node, identity = study.nodes.get(cell.workload.node_type), cell.workload.node
    if node is None or node.options.get("described") != identity.get("described"):
        what, then = "the twin of a cell is another by now", "type the same again"
        raise ConfigError(what, where=f"node type {cell.workload.node_type}", next=then)
    return node


def seed_of(study: Study, cell: PlannedCell, slot: str) -> int:
    """Return the seed of a slot's draws: by the study's seed and what the cell is, not by what the twin is made of."""
    knobs = ",".join(f"{name}={value.text}" for name, value in sorted(cell.knobs.items()))
    text = f"{study.seed}/{cell.workload.name}/{cell.workload.node_type}/{knobs}/{slot}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def start_of(study: Study, cell: PlannedCell, slot: str) -> int:
    """Return when a slot starts (UTC, ns), in the order in which slots are run."""
    repeat = int(slot[1:])
    digest = hashlib.sha256(f"{study.seed}/{repeat}/{cell.key}".encode()).digest()
    within = int.from_bytes(digest[:6]) / (1 << 48)
    second = round((repeat - 1 + within) * BLOCK_NS / NS)
    return FIRST_NS + second * NS


def _measured(of: _Setting, folder: Path) -> tuple[Path, Bench, dict[str, Any]]:
    """Lay a slot out, write its run beside its place; return that, its truth, and notes of it. Raises ConfigError."""
    bench = _bench(of, folder.name)
    used = tuple(f"gpu:{gpu}" for gpu in bench.ask.gpus)
    idle = tuple(f"gpu:{gpu}" for gpu in range(len(of.described.node.gpus)) if gpu not in bench.ask.gpus)
    shown = Used(of.node.name, of.node.uses, used, idle)
    notes = {"settings": of.settings.to_json(), **shown.to_json(), "cooled": {}}
    options = of.node.options
    about = About(
        name=of.study.name,
        labels=labels_of(of.study, of.cell, folder),
        command=[*of.cell.argv()],
        host=of.described.node.name,
        twin={
            "name": options.get("twin"),
            "described": options.get("described"),
            "seed": bench.seed,
            "rated_w": of.described.node.rated_w or None,
        },
        options={"period_s": of.settings.period_s, "idle_s": of.settings.idle_s},
    )
    run = write_run(folder / PREPARED, about, bench.timeline, measure(bench, of.meters), gpus.list_cap_events(bench))
    return run, bench, notes


def _bench(of: _Setting, slot: str) -> Bench:
    """Return the truth of a slot. Raises ConfigError."""
    seed, ask = seed_of(of.study, of.cell, slot), ask_of(of.described, of.node, of.cell)
    _, model = model_of(of.described, of.cell)
    slow_s = slowest_s(of.meters)
    lead_s = draw(seed, "lead") * slow_s if slow_s > SLOW_S else 0.0
    idle_s = (IDLE_S if of.settings.idle_s is None else of.settings.idle_s) + lead_s
    tail_s = max(JOB_TAIL_S if cluster.mounted_on(of.meters) else TAIL_S, 1.2 * slow_s)
    when = RunTimes(start_of(of.study, of.cell, slot), idle_s, tail_s)
    timeline = lay_out_run(of.described.node, model, ask, when, seed)
    return Bench(timeline, ask, seed, of.settings.period_s, of.study.seed)


def _place(run: Path, folder: Path) -> None:
    """Move a whole run to its place: the slot is done then."""
    try:
        run.rename(folder / run.name)
        shutil.rmtree(run.parent, ignore_errors=True)
    except OSError as error:
        raise StoreError("a run cannot be put in its place", where=str(folder), why=error.strerror) from error
