"""Write a study as CSV: a row per cell with every metric and its expanded uncertainty, and per GPU count."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import name_knob_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import CellMetrics, StudySummary
    from joulelab.core.quantity import Quantity

SCALING = "scaling.csv"
EXPANDED = "_expanded"  # the column beside a metric: its expanded uncertainty (k = 2), empty where it is not known


def write_cells_csv(summary: StudySummary) -> str:
    """Return a row per cell: knobs, repeats, each metric (SI; gains as shares of one), what it is best for."""
    line_of = {key: line for line in summary.lines for key in line.cells}
    return as_csv([_cell_row(summary, line_of[cell.key], cell) for cell in summary.cells])


def write_scaling_csv(summary: StudySummary) -> str:
    """Return a row per GPU count and set of the other knobs: speed-up, efficiency and energy against the fewest."""
    rows = []
    for scaling in summary.scaling:
        for point in scaling.points:
            row = {"cell": point.cell, **{name_knob_column(name): value for name, value in scaling.knobs.items()}}
            row |= {"gpus": point.gpus, "compared_with": scaling.points[0].cell}
            row |= _both("speedup", point.speedup) | _both("efficiency", point.efficiency)
            rows.append(row | _both("energy_ratio", point.energy_ratio))
    return as_csv(rows)


def _cell_row(summary: StudySummary, line: CellLine, cell: CellMetrics) -> dict[str, Any]:
    front = summary.front_for(line.key)
    of_line = [b for b in summary.best if b.line == line.key]
    row: dict[str, Any] = {"cell": cell.key, **list_knob_columns(cell), "line": line.key, "n": cell.n}
    row |= {"reference": int(cell.key == line.reference), "compared_per": line.per}
    for name, q in _metrics(cell).items():
        row |= _both(name, q)
    row |= {name: value for name, value in (("data", cell.data),) if value}
    row |= {"energy_deviation_j": cell.energy_deviation, "time_deviation_s": cell.time_deviation}
    place = (
        "" if front is None else "front" if cell.key in front.cells else "perhaps" if cell.key in front.unsure else ""
    )
    row |= {"pareto": place, "best_for": " ".join(b.goal.text for b in of_line if b.cell == cell.key)}
    row |= {"not_told_apart_for": " ".join(b.goal.text for b in of_line if cell.key in b.tied)}
    limited = {b.goal: b.within.get(cell.key) for b in of_line}
    row |= {f"within_{g.text}": limited.get(g) for g in summary.goals if g.slowdown is not None}
    doubts = "; ".join(f"{name} ({count})" for name, count in cell.doubts.items())
    return row | {"uncapped_runs": cell.uncapped, "doubts": doubts}


def _metrics(cell: CellMetrics) -> dict[str, Quantity | None]:
    metrics = {
        "energy_j": cell.energy,
        "time_s": cell.time,
        "mean_w": cell.mean_w,
        "gain": cell.gain,
        "loss": cell.loss,
        "gain_minus_loss": cell.gain_minus_loss,
        "edp_js": cell.edp,
        "edp_gain": cell.edp_gain,
        "ed2p_js2": cell.ed2p,
        "ed2p_gain": cell.ed2p_gain,
    }
    metrics |= {f"eds_{k:g}": q for k, q in cell.eds.items()} | {f"eds_{k:g}_gain": q for k, q in cell.eds_gain.items()}
    metrics |= {f"j_per_{kind}": q for kind, q in cell.per_work.items()}
    metrics |= {f"{kind}_per_s": q for kind, q in cell.rate.items()}
    metrics |= {} if cell.idle_energy is None else {"idle_energy_j": cell.idle_energy}
    metrics |= {f"quality_{name}": q for name, q in cell.quality.items()}
    return metrics | {"idle_energy_share": cell.idle_energy_share}


def list_knob_columns(cell: CellMetrics) -> dict[str, Any]:
    """Return the knobs of a cell by the names of their columns."""
    return {name_knob_column(name): value for name, value in cell.knobs.items()}


def _both(name: str, q: Quantity | None) -> dict[str, float | None]:
    return {name: None if q is None else q.value, name + EXPANDED: None if q is None else q.expanded}


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows with the columns of all of them, in the order in which they come up; None is an empty field."""
    heads = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, heads, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
