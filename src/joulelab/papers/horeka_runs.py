"""Read what the runs of the HoreKa study gave: energy by the cluster's accounting, time, and power of the GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import numpy as np

from joulelab.analysis.analyse import find_span
from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.core.errors import ConfigError
from joulelab.core.scope import find_family
from joulelab.store.run_reader import open_run
from joulelab.study.results import gather_results
from joulelab.study.slots import State, list_claimed_slots, read_slot

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from joulelab.analysis.cell_metrics import CellMetrics
    from joulelab.core.quantity import Quantity
    from joulelab.store.run_reader import Run
    from joulelab.study.folder import Study
    from joulelab.study.matrix import PlannedCell

    Floats = npt.NDArray[np.float64]

ACCOUNTED = "job"  # the energy that a cluster accounted for a job
GPU, POWER = "gpu", "power_instant_w"
KJ = 1000.0


@dataclass(frozen=True, slots=True)
class Ran:
    """Hold the repeats of a workload on a node type: energies (J) and times (s) of each run, and what their means are.

    Of what was measured, `energy`, `power` and `time` are the means with their uncertainty.
    """

    energies_j: tuple[float, ...]
    times_s: tuple[float, ...]
    energy: Quantity | None
    power: Quantity | None
    time: Quantity | None

    @property
    def energy_j(self) -> float:
        """Return the mean energy (J)."""
        return fmean(self.energies_j)

    @property
    def time_s(self) -> float:
        """Return the mean time (s)."""
        return fmean(self.times_s)

    @property
    def powers_w(self) -> list[float]:
        """Return the mean power of each run (W)."""
        return [e / t for e, t in zip(self.energies_j, self.times_s, strict=True)]

    @property
    def mean_w(self) -> float:
        """Return the mean of the runs' mean powers (W), as the paper has it."""
        return fmean(self.powers_w)

    @property
    def deviations(self) -> tuple[float, float] | None:
        """Return the standard deviations of energy (J) and power (W) between runs; None for a single one."""
        if len(self.times_s) < 2:
            return None
        return stdev(self.energies_j), stdev(self.powers_w)


@dataclass(frozen=True, slots=True)
class Profile:
    """Hold what NVML read of each GPU in one run: shares of its time (0 to 1), powers (W) by GPU; those that worked."""

    shares: Floats
    watts: tuple[Floats, ...]
    used: tuple[bool, ...]

    @property
    def above_idle_w(self) -> float | None:
        """Return how much more GPUs at work draw than those that idle beside them (W), by their medians."""
        both = [
            [w for w, used in zip(self.watts, self.used, strict=True) if used is wanted] for wanted in (True, False)
        ]
        if not all(both):
            return None
        busy, idle = (float(np.median(np.concatenate(each))) for each in both)
        return busy - idle


def ran(study: Study) -> dict[tuple[str, str], Ran]:
    """Work out every cell that has run, by workload and node type, as any study's."""
    try:
        found = gather_results(study, scope=ACCOUNTED)
    except ConfigError:  # no run has been accounted
        return {}
    cells, planned = [cell for cell in found.cells if cell.trials], study.cells()
    metrics = {c.key: c for c in summarise_cells(cells).cells} if cells else {}
    return {_names(planned[key]): ran for key, m in metrics.items() if (ran := _ran(m)) is not None}


def _names(cell: PlannedCell) -> tuple[str, str]:
    return cell.workload.name, cell.workload.node_type


def _ran(of: CellMetrics) -> Ran | None:
    known = [(t.energy.value, t.time_s) for t in of.trials if t.energy is not None]
    if not known:
        return None
    return Ran(tuple(e for e, _ in known), tuple(t for _, t in known), of.energy, of.mean_w, of.time)


def done(study: Study, workload: str, node: str) -> list[tuple[PlannedCell, Path]]:
    """Return the cell and the run of each repeat that has ended."""
    found = []
    for key, cell in study.cells().items():
        if _names(cell) == (workload, node):
            slots = [
                read_slot(folder)
                for folder in list_claimed_slots(study.folder / "cells" / key)
                if folder.name.startswith("r")
            ]
            found += [(cell, slot.run) for slot in slots if slot.state is State.DONE and slot.run is not None]
    return found


def profiles(study: Study, workload: str, node: str, most: int | None = None) -> list[Profile]:
    """Return the powers of the GPUs over each repeat that has ended, or the first few; none for nodes without GPUs."""
    made = [_profile(cell, run) for cell, run in done(study, workload, node)[:most]]
    return [each for each in made if each is not None]


def _profile(cell: PlannedCell, folder: Path) -> Profile | None:
    with open_run(folder) as run:
        span = find_span(run, list(run.events()))
        parts = _powers(run)
    if not parts:
        return None
    a, b = span.start_ns, span.end_ns
    at = parts[0][0]
    inside = (at >= a) & (at < b)
    seen = tuple(np.interp(at[inside], t, watts) for t, watts in parts)
    count = int(cell.knobs["gpus"].value) if "gpus" in cell.knobs else 0
    return Profile((at[inside] - a) / (b - a), seen, tuple(k < count for k in range(len(seen))))


def _powers(run: Run) -> list[tuple[npt.NDArray[np.int64], Floats]]:
    """Return times and power (W) of each GPU, in their order."""
    found = {}
    for table in run.tables():
        for stream in table.streams:
            if find_family(stream.scope) == GPU and any(spec.name == POWER for spec in stream.channels):
                series = run.series(table, stream.name, channels=[POWER])
                known = np.isfinite(series.values[POWER])
                found[stream.scope] = (series.t0_ns[known], series.values[POWER][known])
    return [found[scope] for scope in sorted(found)]
