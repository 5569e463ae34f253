"""Write a study as CSV: a row per cell with every metric, per GPU count, per cell with its statistics, per pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_comparison import make_sample
from joulelab.analysis.cell_lines import format_knobs, name_knob_column
from joulelab.analysis.study_cells import list_quality_figures
from joulelab.analysis.study_notes import note_data_difference
from joulelab.report.messages import word_note
from joulelab.report.tables import EXPANDED, make_record_table, write_csv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_comparison import RepeatSample
    from joulelab.analysis.cell_lines import CellLine
    from joulelab.analysis.cell_metrics import CellMetrics, StudySummary
    from joulelab.core.quantity import Quantity

RESULTS_FILE, SLOTS_FILE, STATISTICS_FILE = "results.csv", "slots.csv", "statistics.csv"
PAIRS_FILE, SCALING_FILE = "pairs.csv", "scaling.csv"  # only if there are pairs or several numbers of GPUs
UNITS = {"energy": "j", "power": "w", "time": "s"}


def write_study_csvs(
    summary: StudySummary, slots: Sequence[Mapping[str, Any]], twins: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the CSV files of a study by name, empty texts for those that it does not have; `slots` are records."""
    return {
        RESULTS_FILE: write_cells_csv(summary, twins),
        SLOTS_FILE: write_records(slots, twins),
        STATISTICS_FILE: write_statistics_csv(summary, twins),
        PAIRS_FILE: write_pairs_csv(summary) if summary.pairs else "",
        SCALING_FILE: write_scaling_csv(summary, twins) if summary.scaling else "",
    }


def write_cells_csv(summary: StudySummary, twins: Mapping[str, str] | None = None) -> str:
    """Return a row per cell: knobs, repeats, each metric (SI; gains as shares of one), and the goals it is best for."""
    line_of = {key: line for line in summary.lines for key in line.cells}
    return write_records([_describe_cell(summary, line_of[cell.key], cell) for cell in summary.cells], twins)


def write_scaling_csv(summary: StudySummary, twins: Mapping[str, str] | None = None) -> str:
    """Return a row per GPU count and set of the other knobs: speed-up, efficiency and energy against the fewest."""
    rows = []
    for scaling in summary.scaling:
        for point in scaling.points:
            row = {"cell": point.cell, **{name_knob_column(name): value for name, value in scaling.knobs.items()}}
            row |= {"gpus": point.gpus, "compared_with": scaling.points[0].cell}
            row |= _split_quantity("speedup", point.speedup) | _split_quantity("efficiency", point.efficiency)
            rows.append(row | _split_quantity("energy_ratio", point.energy_ratio))
    return write_records(rows, twins)


def _describe_cell(summary: StudySummary, line: CellLine, cell: CellMetrics) -> dict[str, Any]:
    front = summary.front_for(line.key)
    of_line = [b for b in summary.best if b.line == line.key]
    row: dict[str, Any] = {"cell": cell.key, **list_knob_columns(cell), "line": line.key, "n": cell.n}
    row |= {"reference": int(cell.key == line.reference), "compared_per": line.per}
    for name, q in _list_metrics(cell).items():
        row |= _split_quantity(name, q)
    row |= _describe_site(cell) | {name: value for name, value in (("data", cell.data),) if value}
    row |= {"energy_deviation_j": cell.energy_deviation, "time_deviation_s": cell.time_deviation}
    place = (
        "" if front is None else "front" if cell.key in front.cells else "perhaps" if cell.key in front.unsure else ""
    )
    row |= {"pareto": place, "best_for": " ".join(b.goal.text for b in of_line if b.cell == cell.key)}
    row |= {"not_told_apart_for": " ".join(b.goal.text for b in of_line if cell.key in b.tied)}
    limited = {b.goal: b.within.get(cell.key) for b in of_line}
    row |= {f"within_{g.text}": limited.get(g) for g in summary.goals if g.slowdown is not None}
    row |= {f"reached_{g.text}": g.judge_quality(cell.quality) for g in summary.goals if g.quality and cell.trials}
    doubts = "; ".join(f"{name} ({count})" for name, count in cell.doubts.items())
    return row | {"uncapped_runs": cell.uncapped, "doubts": doubts}


def _list_metrics(cell: CellMetrics) -> dict[str, Quantity | None]:
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
    if cell.footprint is not None:
        metrics |= {"energy_kwh": cell.footprint.kwh, "cost": cell.footprint.cost, "co2e_kg": cell.footprint.co2e_kg}
    metrics |= {f"quality_{name}": q for name, q in cell.quality.items()}
    return metrics | {"idle_energy_share": cell.idle_energy_share, "gpu_load": cell.gpu_load}


def _describe_site(cell: CellMetrics) -> dict[str, Any]:
    """Return what cost and CO2e are computed from: currency, PUE, carbon intensity with year, zone and source."""
    site = None if cell.footprint is None else cell.footprint.site
    if site is None:
        return {}
    about = {f"intensity_{name}": getattr(site, name) for name in ("g_per_kwh", "year", "zone", "covers", "source")}
    return {"currency": site.currency, "pue": site.pue, **about}


def list_knob_columns(cell: CellMetrics) -> dict[str, Any]:
    """Return the knobs of a cell by the names of their columns."""
    return {name_knob_column(name): value for name, value in cell.knobs.items()}


def _split_quantity(name: str, q: Quantity | None) -> dict[str, float | None]:
    return {name: None if q is None else q.value, name + EXPANDED: None if q is None else q.expanded}


def write_statistics_csv(summary: StudySummary, twins: Mapping[str, str] | None = None) -> str:
    """Return a row per cell with every figure of its repeats, in SI units and not rounded."""
    rows = []
    for cell in summary.cells:
        row: dict[str, Any] = {"cell": cell.key, **list_knob_columns(cell), "line": cell.line}
        for figure, sample in summary.statistics.get(cell.key, {}).items():
            row |= _describe_sample(figure, sample)
        if cell.idle_energy is not None:
            row["idle_energy_j"] = cell.idle_energy.value
        for name, values in list_quality_figures(cell.trials).items():
            sample = make_sample(values)
            row |= {f"quality_{name}_mean": sample.mean, f"quality_{name}_deviation": sample.deviation}
        rows.append(row | ({"data": cell.data} if cell.data else {}))
    return write_records(rows, twins)


def write_pairs_csv(summary: StudySummary) -> str:
    """Return a row per pair and figure: ratio, difference in `unit`, p, verdict, more repeats; all pairs."""
    rows = []
    for pair in summary.pairs:
        own, other = summary.cell(pair.cell).knobs, summary.cell(pair.against).knobs
        row: dict[str, Any] = {"workload": own.get("workload"), "phase": own.get("phase"), "figure": pair.figure}
        row |= {"unit": pair.unit, "per": pair.per, "cell": pair.cell, "against": pair.against}
        row |= {"cell_knobs": format_knobs(own), "against_knobs": format_knobs(other), "ratio": pair.ratio}
        row |= _split_bounds("ratio", pair.ratio_interval) | {"difference": pair.difference}
        row |= _split_bounds("difference", pair.difference_interval)
        row |= {"freedom": pair.freedom, "p": pair.p, "p_corrected": pair.p_corrected, "verdict": pair.verdict}
        row |= {"more_repeats": pair.more_repeats, "more_repeats_above_100": int(pair.more_than_100)}
        row |= {"by_meters": int(pair.by_meters), "assumed": int(pair.assumed)}
        note = note_data_difference(summary.cell(pair.cell).data, summary.cell(pair.against).data)
        row["doubt"] = "" if note is None else word_note(note)
        rows.append(row)
    return write_records(rows)


def _describe_sample(figure: str, sample: RepeatSample) -> dict[str, Any]:
    name = f"{figure}_{UNITS[figure]}"
    row: dict[str, Any] = {f"{figure}_n": sample.n, f"{name}_mean": sample.mean, f"{name}_deviation": sample.deviation}
    row |= _split_bounds(name, sample.interval) | {f"{name}_median": sample.median}
    row |= {f"{figure}_meter_expanded": sample.meter, f"{figure}_outliers": len(sample.outliers)}
    return row | {f"{figure}_outliers_seen": int(sample.outliers_seen)}


def _split_bounds(name: str, bounds: tuple[float, float] | None) -> dict[str, float | None]:
    return {f"{name}_low": bounds and bounds[0], f"{name}_high": bounds and bounds[1]}


def write_records(records: Sequence[Mapping[str, Any]], twins: Mapping[str, str] | None = None) -> str:
    """Return records as CSV, with the columns of all of them; None is an empty field.

    With the `twins` of cells, the last column is the twin of each record's cell.
    """
    if twins:
        empty = dict.fromkeys(name for record in records for name in record)
        keys = [str(record["cell"]).partition(":")[0] for record in records]
        records = [{**empty, **r, "twin": twins.get(key, "")} for r, key in zip(records, keys, strict=True)]
    return write_csv(make_record_table(records))
