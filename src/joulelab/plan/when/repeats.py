"""Take the repeats of a job as one: the mean of what they used and took, with how much they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.study_cells import Cell, Trial, compute_means, pool_cells
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import add_quantities
from joulelab.plan.cap_response import find_cap, list_caps, list_compared_facts
from joulelab.plan.cost.energy import side_of
from joulelab.plan.measured_runs import find_node_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.core.quantity import Quantity
    from joulelab.plan.measured_runs import MeasuredRun

MOST_STEPS = 1_000  # of a course
ONE_RUN = "one run: how much runs of this job differ is not known, and in no interval"


@dataclass(frozen=True)
class Repeats:
    """Hold the runs that are the job: mean energy (J, all nodes) with their spread, and mean time (s).

    `spread` tells whether it is known how much runs differ: by these, or by repeats at other caps. `levels` counts the
    caps of all runs that were named, none being one.
    """

    runs: tuple[MeasuredRun, ...]
    energy: Quantity
    duration_s: float
    spread: bool
    levels: int

    @property
    def first(self) -> MeasuredRun:
        """Return the run that tells what is the same in all of them."""
        return self.runs[0]

    @property
    def said(self) -> str:
        """Return what has to be said of them."""
        if len(self.runs) == 1:
            return "" if self.spread else ONE_RUN
        return f"the job is the mean of {len(self.runs)} runs; how much they differ is in the intervals"

    @property
    def idle(self) -> Quantity | None:
        """Return what all nodes draw when idle (W), the mean of the runs; None where one does not tell it."""
        found = []
        for run in self.runs:
            known = [draw.idle_w for draw in run.draws if draw.idle_w is not None]
            if not known or len(known) < len(run.draws):
                return None
            found.append(add_quantities(known))
        if len(found) == 1:
            return found[0]
        trials = tuple(Trial(q, 1.0, run=run.result.run) for q, run in zip(found, self.runs, strict=True))
        mean = compute_means(Cell(f"idle of {self.first.result.run}", {}, trials))
        return None if mean is None else mean.energy

    def course(self) -> Floats:
        """Return the energy (J) of equal steps of their time: the mean course, as long as the mean of them."""
        steps = min(_steps(run) for run in self.runs)
        each = [
            [q.value for q in run.energies(np.linspace(0.0, run.result.duration_s, steps + 1))] for run in self.runs
        ]
        mean: Floats = np.mean(np.array(each), axis=0)
        return mean


def _steps(run: MeasuredRun) -> int:
    step_s = max((draw.step_s for draw in run.draws), default=run.result.duration_s)
    return min(MOST_STEPS, max(round(run.result.duration_s / step_s), 1))


def repeats_of(measured: Sequence[MeasuredRun], gpu_w: float | None = None) -> Repeats:
    """Return the runs without a cap (else those at the highest) as one job; `gpu_w` is the limit of a GPU, if given.

    Raises ConfigError where they differ in more than chance.
    """
    asked = [find_cap(one.result) for one in measured]
    levels = [0.0] * len(measured) if len(set(asked)) < 2 else list_caps(measured, gpu_w)
    cells: dict[float, list[MeasuredRun]] = {}
    for one, level in zip(measured, levels, strict=True):
        cells.setdefault(level, []).append(one)
    highest = max(cells)
    own = sorted(cells[highest], key=lambda one: find_cap(one.result) is not None)
    _check_alike(own)
    named = {level: Cell(f"{level:g} W, job {runs[0].result.run}", {}, _trials(runs)) for level, runs in cells.items()}
    pool = pool_cells((cell, None) for cell in named.values())
    found = compute_means(named[highest], None, pool)
    assert found is not None
    assert found.energy is not None
    energy = found.energy if found.spread else _energy(own[0])
    return Repeats(tuple(own), energy, found.time.value, found.spread, len(cells))


def _energy(run: MeasuredRun) -> Quantity:
    return add_quantities(run.energies([0.0, run.result.duration_s]))


def _trials(runs: Sequence[MeasuredRun]) -> tuple[Trial, ...]:
    return tuple(Trial(_energy(run), run.result.duration_s, run=run.result.run) for run in runs)


def _check_alike(runs: Sequence[MeasuredRun]) -> None:
    """Refuse runs that are no repeats of one job. Raises ConfigError."""
    first = _compared(runs[0])
    for other in runs[1:]:
        for (what, mine), theirs in zip(first.items(), _compared(other).values(), strict=True):
            if mine != theirs:
                raise ConfigError(
                    "the runs are no repeats of one job", where=f"runs {runs[0].result.run} and {other.result.run}",
                    why=f"{what}: {str(mine)[:60] or 'none'}, {str(theirs)[:60] or 'none'}",
                    next="name one of them, or choose by label: --only KEY=VALUE",
                )  # fmt: skip


def _compared(run: MeasuredRun) -> dict[str, Any]:
    """Return what is the same in repeats; an accounting tells nodes and side where no host was read."""
    return list_compared_facts(run) | {"nodes": find_node_count(run), "measured": side_of(run)}
