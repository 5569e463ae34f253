"""Work out the metrics of the Gdansk study's cells, and which caps are best by each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from joulelab.analysis.cell_metrics import CellMetrics, StudySummary, summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.study.results import gather_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from joulelab.analysis.goals import BestCell
    from joulelab.analysis.study_cells import Cell
    from joulelab.core.quantity import Quantity
    from joulelab.papers.figure_judgement import Kind
    from joulelab.study.folder import Study

DEFAULT_W, CAPPED_W = 260, 170
COUNTS, ALL = (1, 2, 4, 8), 8


class Metric(NamedTuple):
    """Name a metric of the paper's table 1, its goal, and its gain in a cell."""

    name: str
    label: str
    goal: Goal
    gain: Callable[[CellMetrics], Quantity | None]
    kind: Kind = "predicted"


METRICS = (
    Metric("energy", "energy", Goal("energy"), lambda c: c.gain),
    Metric("gain_minus_loss", "gain minus loss", Goal("gain-loss"), lambda c: c.gain_minus_loss),
    Metric("edp", "EDP", Goal("edp"), lambda c: c.edp_gain),
    Metric("eds_k1.5", "EDS(1.5)", Goal("eds", 1.5), lambda c: c.eds_gain.get(1.5)),
    # By algebra half of gain minus loss: the same cap, and half of its gain.
    Metric("eds_k2.0", "EDS(2)", Goal("eds", 2.0), lambda c: c.eds_gain.get(2.0), "identity"),
)
EDS15 = METRICS[3]


@dataclass(frozen=True, slots=True)
class Swept:
    """Hold what a study gave, by cap (W) and number of GPUs; nothing where it has not run."""

    summary: StudySummary | None

    def cell(self, cap_w: float, gpus: int) -> CellMetrics | None:
        """Return a cell that has run."""
        return next((c for c in self.line(gpus) if c.knobs.get("cap") == cap_w), None)

    def line(self, gpus: int) -> list[CellMetrics]:
        """Return the cells with so many GPUs that have run, by cap."""
        cells = () if self.summary is None else self.summary.cells
        found = [c for c in cells if c.knobs.get("gpus") == gpus and c.time is not None]
        return sorted(found, key=lambda c: float(c.knobs["cap"]))

    def best(self, metric: Metric, gpus: int = ALL) -> CellMetrics | None:
        """Return the best cell of so many GPUs by a metric."""
        found = self._chosen(metric, gpus)
        return None if found is None or self.summary is None else self.summary.cell(found.cell)

    def alike(self, metric: Metric, gpus: int = ALL) -> list[CellMetrics]:
        """Return the best cell of so many GPUs by a metric and those not told apart from it, by cap; none without."""
        found = self._chosen(metric, gpus)
        keys = () if found is None else (found.cell, *found.tied)
        return [c for c in self.line(gpus) if c.key in keys]

    def _chosen(self, metric: Metric, gpus: int) -> BestCell | None:
        summary = self.summary
        lines = () if summary is None else summary.lines
        key = next((line.key for line in lines if line.knobs.get("gpus") == gpus), None)
        return None if summary is None or key is None else summary.best_for(metric.goal, key)

    def gain(self, metric: Metric, gpus: int = ALL) -> float | None:
        """Return what a metric gains at its best, in percent."""
        cell = self.best(metric, gpus)
        return None if cell is None else percent(metric.gain(cell))

    def speedup(self, cap_w: float, gpus: int) -> Quantity | None:
        """Return the speed-up of so many GPUs over one at a cap."""
        for scaling in () if self.summary is None else self.summary.scaling:
            points = {p.gpus: p.speedup for p in scaling.points}
            if scaling.knobs.get("cap") == cap_w and 1 in points:
                return points.get(gpus)
        return None


def swept(study: Study) -> Swept:
    """Work out every metric of a study's cells, as for any study; once for what is there."""
    stamps = [file.stat().st_mtime_ns for file in study.folder.glob("cells/*/r*/*/end.json")]
    known = study.folder, len(stamps), max(stamps, default=0)
    if known not in _SWEPT:
        _SWEPT.clear()
        _SWEPT[known] = judged(gather_results(study, scope=study.data["scope"]).cells)
    return _SWEPT[known]


_SWEPT: dict[tuple[Path, int, int], Swept] = {}  # of the last study that was asked for


def judged(cells: Sequence[Cell]) -> Swept:
    """Compare cells with those at the default cap by every metric; nothing where none of these has run."""
    if not any(c.trials and c.knobs.get("cap") == DEFAULT_W for c in cells):
        return Swept(None)
    return Swept(summarise_cells(cells, goals=[m.goal for m in METRICS], reference={"cap": DEFAULT_W}))


def cap_of(cell: CellMetrics) -> float:
    """Return a cell's cap, in W."""
    return float(cell.knobs["cap"])


def percent(share: Quantity | None) -> float | None:
    """Return a share of one in percent."""
    return None if share is None else share.value * 100
