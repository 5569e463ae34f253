"""Reproduce the Gdansk study: power caps on one to eight GPUs, the best cap for each goal, and how training scales."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from joulelab.core.quantity import ONE
from joulelab.papers import Paper, PublishedTable
from joulelab.papers.figure_judgement import POINTS, SHARE, STEP, Figure
from joulelab.papers.gdansk_findings import findings
from joulelab.papers.gdansk_pictures import pictures_of
from joulelab.papers.gdansk_runs import ALL, CAPPED_W, COUNTS, DEFAULT_W, EDS15, METRICS, Swept, cap_of, swept
from joulelab.twin.virtual import read_truth
from joulelab.twin.virtual.slot import FILE as TRUTH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.core.quantity import Quantity
    from joulelab.papers.figure_judgement import Kind, Tolerance
    from joulelab.papers.gdansk_runs import Metric
    from joulelab.study.folder import Study

SLOWED = "the twin's slowest GPU holds up the others, and time under a cap follows one law fitted on other trainings"
BUSY = "the node's power beside its GPUs is taken to be the same for any number of them"
SIMILAR = (
    "the paper does not say what it calls similar; here it is every cap without a significant difference "
    "from the best, and that is few caps: ten repeats make a difference of about half a point significant"
)
WHY = {
    "gdansk.eds_k1.5.low_w": SIMILAR,
    "gdansk.eds_k1.5.high_w": SIMILAR,
    "gdansk.energy_gain.1": f"{BUSY}; with one it is smaller, and its cap saves a larger share",
    "gdansk.energy_gain.2": BUSY,
    "gdansk.energy_gain.4": BUSY,
    "gdansk.time_s.170w.1": SLOWED,
    "gdansk.time_s.170w.2": SLOWED,
    "gdansk.speedup.260w.4": "one part that GPUs share and one that they do not is all the model has of scaling",
}


def figures(study: Study, published: Mapping[str, Any]) -> list[Figure]:
    """Return every figure of the paper beside what the study gave."""
    return figures_of(swept(study), published)


def figures_of(found: Swept, published: Mapping[str, Any]) -> list[Figure]:
    """Return every figure of the paper beside what was found."""
    made = [
        *_best(found, published),
        *_flat(found, published),
        *_gains(found, published),
        *_times(found, published),
        *_speedups(found, published),
        *_ratios(found, published),
        *findings(found),
    ]
    return [f if f.verdict != "miss" else replace(f, note=WHY.get(f.id, f.note)) for f in made]


def _best(found: Swept, published: Mapping[str, Any]) -> list[Figure]:
    printed = {row[0]: row for row in published["best"]}
    made = []
    for metric in METRICS:
        cell, row = found.best(metric), printed[metric.name]
        gain = None if cell is None else metric.gain(cell)
        known = f"gdansk.best.{metric.name}"
        label = f"best by {metric.label}, 8 GPUs"
        made += [
            _figure(f"{known}.gain_pct", f"{label}: gain", row[1], _times_hundred(gain), "%", POINTS, metric.kind),
            Figure(
                id=f"{known}.cap_w", label=f"{label}: cap", published=row[2], unit="W", tolerance=STEP,
                reproduced=None if cell is None else cap_of(cell), kind=metric.kind,
            ),
        ]  # fmt: skip
        if made[-1].verdict == "miss":
            made[-1] = replace(made[-1], note=_why_cap(found, metric))
    return made


def _why_cap(found: Swept, metric: Metric) -> str:
    """Return why a best cap may lie off: chance, where others cannot be told apart from it, and the law of time."""
    others = sorted({cap_of(c) for c in found.alike(metric)} - {cap_of(c) for c in [found.best(metric)] if c})
    caps = ", ".join(f"{cap:g}" for cap in others)
    flat = f"the gain is flat there, no significant difference from {caps} W by the repeats; " if others else ""
    return f"{flat}{SLOWED}"


def _flat(found: Swept, published: Mapping[str, Any]) -> list[Figure]:
    """Return the lowest and the highest cap whose gain by EDS(1.5) cannot be told apart from the best."""
    low, high = published["eds_k1_5_flat_range_w"]
    similar = [cap_of(cell) for cell in found.alike(EDS15)]
    ends = (("low", low, min, "lowest"), ("high", high, max, "highest"))
    return [
        Figure(
            id=f"gdansk.eds_k1.5.{end}_w", label=f"{name} cap with a similar gain by EDS(1.5)", published=cap,
            reproduced=of(similar) if similar else None, unit="W", tolerance=STEP,
        )
        for end, cap, of, name in ends
    ]  # fmt: skip


def _gains(found: Swept, published: Mapping[str, Any]) -> list[Figure]:
    made = []
    for count in COUNTS:
        cell = found.best(METRICS[0], count)
        gain = None if cell is None else _times_hundred(cell.gain)
        # On all GPUs it is the best energy of table 1 once more, rounded.
        kind: Kind = "identity" if count == ALL else "predicted"
        label = f"energy saved at the best cap, {_gpus(count)}"
        known = published["energy_gain_by_gpus_pct"][str(count)]
        made.append(_figure(f"gdansk.energy_gain.{count}", label, known, gain, "%", POINTS, kind))
    return made


def _times(found: Swept, published: Mapping[str, Any]) -> list[Figure]:
    made = []
    for cap in (DEFAULT_W, CAPPED_W):
        printed = {int(count): time for count, time in published[f"time_s_{cap}w"].items()}
        if cap == DEFAULT_W:  # not printed: it follows from the speed-up and the time of 8
            printed[1] = round(published["speedup_260w"]["8"] * published["time_s_260w"]["8"], 1)
        for count in sorted(printed):
            cell = found.cell(cap, count)
            label = f"training time, {_gpus(count)} at {cap} W"
            time = None if cell is None else cell.time
            made.append(_figure(f"gdansk.time_s.{cap}w.{count}", label, printed[count], time, "s"))
    return made


def _speedups(found: Swept, published: Mapping[str, Any]) -> list[Figure]:
    made = []
    for cap in (DEFAULT_W, CAPPED_W):
        for count, printed in published[f"speedup_{cap}w"].items():
            # That of 8 follows from times that are printed themselves.
            kind: Kind = "identity" if int(count) == ALL else "predicted"
            label = f"speed-up of {_gpus(int(count))} at {cap} W"
            own = found.speedup(cap, int(count))
            made.append(_figure(f"gdansk.speedup.{cap}w.{count}", label, printed, own, "", SHARE, kind))
    return made


def _ratios(found: Swept, published: Mapping[str, Any]) -> list[Figure]:
    cell, printed = found.cell(CAPPED_W, ALL), published["derived_170w"]
    time = None if cell is None or cell.loss is None else ONE + cell.loss
    energy = None if cell is None or cell.gain is None else ONE - cell.gain
    label = f"at {CAPPED_W} W over {DEFAULT_W} W, 8 GPUs"
    return [
        _figure("gdansk.ratio.170w.time", f"time {label}", printed["time_ratio"], time, ""),
        _figure("gdansk.ratio.170w.energy", f"energy {label}", printed["energy_ratio"], energy, ""),
    ]


def _figure(
    name: str,
    label: str,
    published: float,
    found: Quantity | None,
    unit: str,
    tolerance: Tolerance = SHARE,
    kind: Kind = "predicted",
) -> Figure:
    return Figure(
        id=name, label=label, published=published, reproduced=None if found is None else found.value, unit=unit,
        tolerance=tolerance, kind=kind, uncertainty=None if found is None else found.expanded,
    )  # fmt: skip


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _times_hundred(share: Quantity | None) -> Quantity | None:
    return None if share is None else share * 100


def tables(study: Study) -> list[PublishedTable]:
    """Return table 1 of the paper: the best cap for each goal on 8 GPUs, and what it gains."""
    found, rows, records = swept(study), [], []
    for metric in METRICS:
        cell = found.best(metric)
        gain = None if cell is None else metric.gain(cell)
        if cell is None or gain is None:
            continue
        wide = "" if gain.expanded is None else f" ± {gain.expanded * 100:.2f}"
        rows.append((metric.label, f"{gain.value * 100:.2f}{wide}", f"{cell.knobs['cap']:g}"))
        records.append({"metric": metric.name, "gain": gain.value, "cap_w": cap_of(cell)})
    heads = ("metric", f"gain over {DEFAULT_W} W, %", "cap, W")
    note = "Of the twin. The gain by EDS(2) is by algebra half of gain minus loss."
    title = "Table 1: best caps on 8 GPUs"
    return [PublishedTable("best-caps", title, heads, tuple(rows), note, tuple(records))] if rows else []


def meters(study: Study) -> list[str]:
    """Say what the analyzer's uncertainty is in one run, and what GPU meters alone would have told."""
    found, said = swept(study), []
    cell = found.cell(DEFAULT_W, ALL)
    energy = None if cell is None or not cell.trials else cell.trials[0].energy
    if energy is not None and energy.expanded is not None:
        share = energy.expanded / energy.value * 100
        said.append(f"One run on 8 GPUs at 260 W is known to ± {share:.2f} % (k = 2) by the analyzer.")
    best, energies = METRICS[0], found.best(METRICS[0])
    gain = None if energies is None else best.gain(energies)
    if gain is not None and gain.expanded is not None:
        runs = 0 if energies is None else energies.n
        said.append(
            f"The gain in energy at its best is known to ± {gain.expanded * 100:.2f} points from {runs} repeats: gain "
            "errors of the one analyzer cancel."
        )
    return said + _gpus_alone(study, found)


def _gpus_alone(study: Study, found: Swept) -> list[str]:
    """Say what a perfect meter of the GPUs alone would have told: it does not see the host that waits."""
    alone = _gpu_energies(study)
    parts = []
    for count in (1, ALL):
        own = {cap: joules for (cap, gpus), joules in alone.items() if gpus == count}
        whole = found.best(METRICS[0], count)
        if DEFAULT_W not in own or whole is None or whole.gain is None:
            continue
        cap = min(own, key=lambda w: own[w])
        parts.append(
            f"{_gpus(count)}: {(1 - own[cap] / own[DEFAULT_W]) * 100:.1f} % at {cap:g} W, not "
            f"{whole.gain.value * 100:.1f} % at {whole.knobs['cap']:g} W"
        )
    text = "A perfect meter of the eight GPUs alone, without the node around them, would have told more saved"
    return [f"{text} ({'; '.join(parts)})."] if parts else []


def _gpu_energies(study: Study) -> dict[tuple[float, int], float]:
    """Return the true energy of all GPUs (J, a mean over repeats) by cap (W) and number of GPUs at work."""
    made = {}
    for key, cell in study.cells().items():
        truths = [read_truth(file.parent) for file in sorted((study.folder / "cells" / key).glob(f"r??/{TRUTH}"))]
        sums = [sum(j for point, j in t["energy_j"].items() if point.startswith("gpu")) for t in truths]
        if sums:
            made[float(cell.knobs["cap"].value), int(cell.knobs["gpus"].value)] = fmean(sums)
    return made


def pictures(study: Study, folder: Path) -> list[Path]:
    """Draw figures 2 to 7 of the paper. Raises MissingDependency."""
    found = swept(study)
    return [] if found.summary is None else pictures_of(found.summary, folder, all_gpus=ALL, caps=(DEFAULT_W, CAPPED_W))


PAPER = Paper(
    name="gdansk",
    title="Performance and energy aware training of a deep neural network in a multi-GPU environment with power "
    "capping (Gdansk University of Technology, 2023)",
    file="gdansk.toml",
    twins={"local": "gdansk-rtx6000"},
    figures=figures,
    pictures=pictures,
    tables=tables,
    meters=meters,
)
