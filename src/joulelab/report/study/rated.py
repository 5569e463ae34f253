"""Say of each cell of a study what runtime x rated power would have said, and how far off that is. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import format_knobs
from joulelab.analysis.study_cells import Cell, Trial, compute_means
from joulelab.core.quantity import Quantity
from joulelab.report import format as fmt
from joulelab.report.rated import HOW, format_ratio
from joulelab.report.study_tables import Column, name_plain_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.study.results import RatedTrial, Results

ESTIMATE_NOTE = (
    "Estimate: mean runtime x rated power of the devices; ratio: the estimate over what the same devices used, with "
    "its expanded uncertainty (k = 2)."
)


@dataclass(frozen=True, slots=True)
class CellEstimate:
    """Hold the estimate of one cell: rated power (W), energy (J), what the devices of `families` used, their ratio."""

    cell: str
    families: tuple[str, ...]
    watts: float
    energy_j: float
    used: Quantity
    ratio: Quantity

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {"cell": self.cell, "families": list(self.families), "rated_w": self.watts, "energy_j": self.energy_j}
        return plain | {"used": self.used.to_json(), "ratio": self.ratio.to_json()}


def list_estimates(results: Results, summary: StudySummary) -> list[CellEstimate]:
    """Return the estimate of each cell that it can be said of, in their order."""
    found = (_estimate(cell.key, results.rated.get(cell.key, ())) for cell in summary.cells)
    return [each for each in found if each is not None]


def _estimate(key: str, trials: Sequence[RatedTrial]) -> CellEstimate | None:
    """Return the estimate of a cell from its repeats; of those with other devices than the first nothing."""
    alike = [t for t in trials if (t.families, t.watts) == (trials[0].families, trials[0].watts)]
    cell = Cell(key, {}, tuple(Trial(t.used, t.time_s, meter=t.meter) for t in alike))
    mean = compute_means(cell)
    if mean is None or mean.energy is None or mean.energy.value <= 0:
        return None
    energy_j = alike[0].watts * mean.time.value
    ratio = Quantity(energy_j) / mean.energy
    return CellEstimate(key, alike[0].families, alike[0].watts, energy_j, mean.energy, ratio)


def describe_estimates(estimates: Sequence[CellEstimate], summary: StudySummary) -> str:
    """Return in a sentence how far off the estimates are, or that nothing is known of them and how to tell it."""
    if not estimates:
        return f"Unknown: no run recorded the rated power of what was measured; {HOW}."
    ranked = sorted(estimates, key=lambda each: each.ratio.value)
    low, high = (format_ratio(each.ratio) for each in (ranked[0], ranked[-1]))
    of = f"{len(estimates)} cell{'s' if len(estimates) > 1 else ''}"
    lacking = sum(cell.compared is not None for cell in summary.cells) - len(estimates)
    without = f"; of {lacking} more it is unknown" if lacking > 0 else ""
    if len(estimates) == 1:
        return f"Runtime x rated power says {low} times what the same devices used{without}."
    return f"Runtime x rated power says {low} to {high} times what the same devices used, over {of}{without}."


def estimate_columns(estimates: Sequence[CellEstimate], summary: StudySummary) -> list[Column]:
    """Return the estimates as columns: cell, rated power, estimate, what was used, ratio."""
    energy, unit = fmt.choose_scale([v for e in estimates for v in (e.energy_j, e.used.value)], "J")
    watts, power = fmt.choose_scale([e.watts for e in estimates], "W")
    names = [format_knobs(summary.cell(e.cell).knobs) or name_plain_cell(summary, e.cell) for e in estimates]
    columns = [
        Column("cell", tuple(names)),
        Column(f"rated, {power}", tuple(fmt.format_number(e.watts / watts) for e in estimates)),
        Column(f"estimate, {unit}", tuple(fmt.format_number(e.energy_j / energy) for e in estimates)),
        Column(f"used, {unit}", tuple(_used(e.used, energy) for e in estimates)),
        Column("ratio", tuple(format_ratio(e.ratio) for e in estimates)),
    ]
    told = tuple(" + ".join(e.families) for e in estimates)
    return [*columns, Column("of", told)]


def _used(q: Quantity, factor: float) -> str:
    return fmt.format_interval(q.value / factor, None if q.expanded is None else q.expanded / factor)
