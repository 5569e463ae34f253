"""Write a study as two CSV files: a row per cell with every metric and its expanded uncertainty, a row per slot."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.analysis.metrics import CellMetrics, Summary
    from joulelab.analysis.terms import Quantity

CELLS, SLOTS = "cells.csv", "slots.csv"
EXPANDED = "_expanded"  # the column beside a metric: its expanded uncertainty (k = 2), empty where it is not known


def write_study_csv(summary: Summary, folder: Path) -> list[Path]:
    """Write `cells.csv` and `slots.csv` into a folder; return their paths."""
    written = []
    for name, text in ((CELLS, cells_csv(summary)), (SLOTS, slots_csv(summary))):
        path = folder / name
        # Whole or not at all: somebody may be reading the file of the run before.
        part = path.with_name(f"{name}.part")
        part.write_text(text, encoding="utf-8")
        part.replace(path)
        written.append(path)
    return written


def cells_csv(summary: Summary) -> str:
    """Return a row per cell: knobs, repeats, each metric (SI; gains as shares of one), what it is best for."""
    return _csv([_cell_row(summary, cell) for cell in summary.cells])


def slots_csv(summary: Summary) -> str:
    """Return a row per repeat that succeeded: knobs, run, energy, time, work."""
    rows = []
    for cell in summary.cells:
        for number, trial in enumerate(cell.trials, start=1):
            row = {"cell": cell.key, **_knobs(cell), "repeat": number, "run": trial.run, "time_s": trial.time_s}
            row |= _both("energy_j", trial.energy)
            row |= {f"work_{kind}": amount for kind, amount in trial.work.items()}
            rows.append(row | {"idle_share": trial.idle_share, "meter": trial.meter})
    return _csv(rows)


def _cell_row(summary: Summary, cell: CellMetrics) -> dict[str, Any]:
    line = next(each for each in summary.lines if cell.key in each.cells)
    front = summary.front_for(line.key)
    of_line = [b for b in summary.best if b.line == line.key]
    row: dict[str, Any] = {"cell": cell.key, **_knobs(cell), "line": line.key, "n": cell.n}
    row |= {"reference": int(cell.key == line.reference), "compared_per": line.per}
    for name, q in _metrics(cell).items():
        row |= _both(name, q)
    row |= {"energy_deviation_j": cell.energy_deviation, "time_deviation_s": cell.time_deviation}
    place = (
        "" if front is None else "front" if cell.key in front.cells else "perhaps" if cell.key in front.unsure else ""
    )
    row |= {"pareto": place, "best_for": " ".join(b.goal.text for b in of_line if b.cell == cell.key)}
    row |= {"not_told_apart_for": " ".join(b.goal.text for b in of_line if cell.key in b.tied)}
    row |= {f"within_{b.goal.text}": b.within.get(cell.key) for b in of_line if b.within}
    return row


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
    return metrics | {"idle_share": cell.idle_share}


def _knobs(cell: CellMetrics) -> dict[str, Any]:
    return {f"knob_{name}": value for name, value in cell.knobs.items()}


def _both(name: str, q: Quantity | None) -> dict[str, float | None]:
    return {name: None if q is None else q.value, name + EXPANDED: None if q is None else q.expanded}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows with the columns of all of them, in the order in which they come up; None is an empty field."""
    heads = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, heads, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
