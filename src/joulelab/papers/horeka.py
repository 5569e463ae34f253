"""Reproduce the HoreKa study: two trainings and predictions, with a GPU at work, beside idle GPUs, and without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.papers import Paper, PublishedTable
from joulelab.papers.figure_judgement import SHARE, Figure, printed
from joulelab.papers.horeka_findings import findings
from joulelab.papers.horeka_meters import accounted_otherwise, cost_table, costs, sentences
from joulelab.papers.horeka_outside import outside
from joulelab.papers.horeka_pictures import pictures_of
from joulelab.papers.horeka_runs import KJ, profiles, ran
from joulelab.study.matrix import TWIN
from joulelab.twin.virtual.cells import read_description

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.core.quantity import Quantity
    from joulelab.papers.figure_judgement import Kind, Tolerance
    from joulelab.papers.horeka_runs import Ran
    from joulelab.study.folder import Study

GPU, MIX, ONLY = "gpu", "cpu-mix", "cpu-only"
FULL = "health-train-full"
LOADED = (
    "looks alone do not explain it: those that lower the mean as far scatter single runs by more than the paper's ±. "
    "The twin's CPUs are awake all the time while images are loaded; whether the real node's waited for files is not "
    "known"
)
METERED = (
    "without errors of meters and scatter of runs the twin, as it is shipped, is within: the gain of the instrument, "
    "where its looks fall and the scatter of few runs move it"
)
SHORT = "health-predict"  # a job of few looks: where these fall decides what is accounted
SAVING = "how long results are saved was taken from the paper's text, and what part forward is from our own workload"
NEAR = (
    "gpu_idle_w", "energy.gpu_above_idle_w", "health.gpu_above_idle_w", "energy.train.gpu.mean_w",
    "energy.train.cpu-mix.mean_w", "energy.predict.gpu.mean_w", "energy.predict.cpu-mix.mean_w",
    "health.train.gpu.mean_w", "health.train.cpu-mix.mean_w", "health.train.cpu-only.mean_w",
    "health.predict.cpu-mix.mean_w", "health.predict.cpu-only.mean_w",
)  # fmt: skip
WHY = {
    **{f"horeka.{name}": METERED for name in NEAR},
    "horeka.health.predict.gpu.mean_w": LOADED,
    "horeka.health.predict.gpu.time_s": "the size of the test images, and so the time to load them, is assumed",
    "horeka.energy.predict.gpu.time_s": SAVING,
    "horeka.energy.predict.cpu-mix.time_s": SAVING,
    "horeka.energy.predict.cpu-only.time_s": SAVING,
    "horeka.energy.train.cpu-only.mean_w": "what GPUs' board, memory and losses draw beside idle GPUs is assumed, 42 W",
    "horeka.energy.predict.cpu-only.mean_w": "while results are saved the paper's node without GPUs draws as much as "
    "in training, that with GPUs 60 W less: one number for both cannot be right",
}
SAMPLED = ("horeka.health.predict.gpu.mean_w", "horeka.health.predict.gpu.energy_kj")


def figures(study: Study, published: Mapping[str, Any]) -> list[Figure]:
    """Return every figure of the paper beside what the study gave."""
    made = explained([*_idle(study, published), *_above(study, published), *figures_of(ran(study), published)])
    missed = [f for f in made if f.verdict == "miss" and f.id in SAMPLED]
    said = accounted_otherwise(costs(study), SHORT) if missed else ""
    return [replace(f, note="; ".join(filter(None, (said, f.note)))) if f in missed else f for f in made]


def figures_of(found: Mapping[tuple[str, str], Ran], published: Mapping[str, Any]) -> list[Figure]:
    """Return what follows from energies and times of the cells that ran, and what a twin cannot show."""
    made = [
        *_rows(found, published),
        *_notebooks(found, published),
        *_full(found, published),
        *findings(found, published),
        *outside(published),
    ]
    return explained(made)


def explained(made: list[Figure]) -> list[Figure]:
    """Return figures with the reason of those that miss, as far as one is known."""
    return [replace(f, note=WHY.get(f.id, f.note)) if f.verdict == "miss" else f for f in made]


def _idle(study: Study, published: Mapping[str, Any]) -> list[Figure]:
    """Return what idle GPUs draw beside busy CPUs, and what the node is made to draw when nothing runs."""
    seen = profiles(study, "energy-predict", MIX)
    gpu_w = float(np.mean([np.mean(watts) for each in seen for watts in each.watts])) if seen else None
    note = "the model's own, without a meter: no run of the study is idle"
    return [
        _figure("gpu_idle_w", "idle GPU", published["gpu_idle_w"], gpu_w, "W"),
        replace(
            _figure(
                "jupyter_idle_node_w", "node with a notebook that waits", published["jupyter_idle_node_w"],
                _idle_w(study), "W",
            ),
            note=note,
        ),
    ]  # fmt: skip


def _idle_w(study: Study) -> float | None:
    """Return the power (W) of a twin that does nothing; None where the study ran on a real node."""
    kind = study.nodes.get(GPU)
    if kind is None or kind.executor != TWIN or not study.cells():
        return None
    node = read_description(kind).node
    heat_w = sum(node.range_w(leaf)[0] for leaf in node.leaves() if not leaf.startswith("core"))
    return float(np.interp(heat_w, *node.to_dc()))


def _rows(found: Mapping[tuple[str, str], Ran], published: Mapping[str, Any]) -> list[Figure]:
    """Return energy, mean power and runtime of tables 2 and 3."""
    made = []
    for case, phase, setup, kj, kj_off, mean_w, mean_off, time_s in published["rows"]:
        one = found.get((f"{case}-{phase}", setup))
        name, label = f"{case}.{phase}.{setup}", f"{case}, {phase}, {setup}"
        energy = None if one is None else one.energy_j / KJ
        made += [
            _figure(f"{name}.mean_w", f"{label}: mean power", mean_w, None if one is None else one.mean_w, "W",
                    printed(mean_off), of=None if one is None else one.power),
            _figure(f"{name}.time_s", f"{label}: runtime", time_s, None if one is None else one.time_s, "s",
                    of=None if one is None else one.time),
            _figure(f"{name}.energy_kj", f"{label}: energy", kj, energy, "kJ", printed(kj_off), "identity",
                    None if one is None or one.energy is None else one.energy * (1 / KJ)),
        ]  # fmt: skip
    return made


def _notebooks(found: Mapping[tuple[str, str], Ran], published: Mapping[str, Any]) -> list[Figure]:
    made = []
    for case, kj, time_s in published["jupyter"]:
        one = found.get((f"{case}-notebook", GPU))
        energy = None if one is None or one.energy is None else one.energy * (1 / KJ)
        made += [
            _figure(f"{case}.jupyter.energy_kj", f"{case}, notebook: energy", kj,
                    None if one is None else one.energy_j / KJ, "kJ", of=energy),
            _figure(f"{case}.jupyter.time_s", f"{case}, notebook: runtime", time_s,
                    None if one is None else one.time_s, "s", of=None if one is None else one.time),
        ]  # fmt: skip
    return made


def _full(found: Mapping[tuple[str, str], Ran], published: Mapping[str, Any]) -> list[Figure]:
    one, row = found.get((FULL, GPU)), published["health_full_train"]
    label = f"health, full training of {row['epochs']} epochs"
    energy = None if one is None or one.energy is None else one.energy * (1 / KJ)
    return [
        _figure("health.full.mean_w", f"{label}: mean power", row["mean_w"], None if one is None else one.mean_w, "W",
                of=None if one is None else one.power),
        _figure("health.full.time_s", f"{label}: runtime", row["runtime_s"], None if one is None else one.time_s, "s",
                of=None if one is None else one.time),
        _figure("health.full.energy_kj", f"{label}: energy", row["energy_kj"],
                None if one is None else one.energy_j / KJ, "kJ", SHARE, "identity", energy),
    ]  # fmt: skip


def _above(study: Study, published: Mapping[str, Any]) -> list[Figure]:
    """Return by how much the GPU at work draws more in training than those that idle beside it."""
    made = []
    for case, watts in published["gpu_above_idle_w"].items():
        above = [value for each in profiles(study, f"{case}-train", GPU) if (value := each.above_idle_w) is not None]
        label = f"{case}, train: GPU above idle"
        made.append(_figure(f"{case}.gpu_above_idle_w", label, watts, float(np.mean(above)) if above else None, "W"))
    return made


def _figure(
    name: str,
    label: str,
    published: float,
    value: float | None,
    unit: str,
    tolerance: Tolerance = SHARE,
    kind: Kind = "predicted",
    of: Quantity | None = None,
) -> Figure:
    return Figure(
        id=f"horeka.{name}", label=label, published=published, reproduced=value, unit=unit, tolerance=tolerance,
        kind=kind, uncertainty=None if of is None else of.expanded,
    )  # fmt: skip


def tables(study: Study) -> list[PublishedTable]:
    """Return tables 2 and 3 of the paper, and what the accounting's sampling costs."""
    found = ran(study)
    made = [_table(number, case, found) for number, case in ((2, "energy"), (3, "health"))]
    cost = cost_table(costs(study))
    return [*(table for table in made if table.rows), *([cost] if cost is not None else [])]


def _table(number: int, case: str, found: Mapping[tuple[str, str], Ran]) -> PublishedTable:
    rows, records = [], []
    for phase in ("train", "predict", "notebook"):
        for setup in (GPU, MIX, ONLY):
            one = found.get((f"{case}-{phase}", setup))
            if one is None:
                continue
            off = one.deviations
            kj, watts = ("", "") if off is None else (f" ± {off[0] / KJ:.1f}", f" ± {off[1]:.1f}")
            rows.append((phase, setup, f"{one.energy_j / KJ:.1f}{kj}", f"{one.mean_w:.1f}{watts}", _clock(one.time_s)))
            records.append({
                "phase": phase, "node": setup, "energy_j": one.energy_j, "mean_w": one.mean_w, "time_s": one.time_s,
                "energy_deviation_j": off and off[0], "mean_deviation_w": off and off[1], "repeats": len(one.times_s),
            })  # fmt: skip
    heads = ("", "node", "energy, kJ", "mean power, W", "runtime")
    note = "Of the twins, by the cluster's accounting. ±: standard deviation between repeats."
    title = f"Table {number}: the use case {case}"
    return PublishedTable(f"table-{number}-{case}", title, heads, tuple(rows), note, tuple(records))


def _clock(seconds: float) -> str:
    """Return a time as the paper prints it: 1-22:39:43."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hour:02d}:{minute:02d}:{second:02d}"


def meters(study: Study) -> list[str]:
    """Say what the accounting's sampling costs the shortest job, beside a training."""
    return sentences(costs(study))


def pictures(study: Study, folder: Path) -> list[Path]:
    """Draw figures 3 and 4 of the paper. Raises MissingDependency."""
    return pictures_of(study, folder)


PAPER = Paper(
    name="horeka",
    title="Precise Energy Consumption Measurements of Heterogeneous Artificial Intelligence Workloads (Karlsruhe "
    "Institute of Technology, 2022)",
    file="horeka.toml",
    twins={GPU: "horeka-green", MIX: "horeka-green", ONLY: "horeka-blue"},
    figures=figures,
    pictures=pictures,
    tables=tables,
    meters=meters,
    example="horeka-green:gpu.idle_w=40",
)
