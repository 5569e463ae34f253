"""Tell what more GPUs bring: speed-up, efficiency, and what it costs in energy. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import format_knobs
from joulelab.analysis.study_cells import CellMeans, divide_energies, divide_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.study_cells import Cell
    from joulelab.core.quantity import Quantity

KNOB = "gpus"


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Hold one GPU count: speed-up, speed-up per GPU added (efficiency) and energy, against the fewest GPUs."""

    cell: str
    gpus: float
    speedup: Quantity
    efficiency: Quantity
    energy_ratio: Quantity | None


@dataclass(frozen=True, slots=True)
class Scaling:
    """Hold the GPU counts of cells that are otherwise equal; the first point is what the others are compared with."""

    key: str
    knobs: Mapping[str, Any]
    points: tuple[ScalingPoint, ...]


def find_scaling(cells: Sequence[Cell], means: Mapping[str, CellMeans]) -> list[Scaling]:
    """Return the scaling over GPU counts for each set of the other knobs that has at least two of them."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.key in means and isinstance(cell.knobs.get(KNOB), (int, float)):
            groups.setdefault(format_knobs(_list_other_knobs(cell)), []).append(cell)
    found = []
    for key, members in groups.items():
        points = _make_points(sorted(members, key=lambda c: float(c.knobs[KNOB])), means)
        if len(points) > 1:
            found.append(Scaling(key, _list_other_knobs(members[0]), tuple(points)))
    return found


def _make_points(members: Sequence[Cell], means: Mapping[str, CellMeans]) -> list[ScalingPoint]:
    first = members[0]
    base, fewest = means[first.key], float(first.knobs[KNOB])
    points = []
    for cell in members:
        count, own = float(cell.knobs[KNOB]), means[cell.key]
        speedup = divide_times(base, own)
        if speedup is not None and count > 0 and fewest > 0:
            efficiency = speedup * (fewest / count)
            points.append(ScalingPoint(cell.key, count, speedup, efficiency, divide_energies(own, base)))
    return points


def _list_other_knobs(cell: Cell) -> dict[str, Any]:
    return {name: value for name, value in cell.knobs.items() if name != KNOB}
