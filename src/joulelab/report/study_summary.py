"""Summarise a study from its folder, for tables, pages and the dashboard; estimate cells by rated power."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.cell_lines import format_knobs
from joulelab.analysis.study_cells import Cell, Note, Trial, compute_means
from joulelab.core.errors import JoulelabError
from joulelab.core.quantity import Quantity
from joulelab.core.text import SERVED_TWIN
from joulelab.report.format import NOT_RESOLVED, name_twins
from joulelab.report.run_tables import RATED_ADVICE, format_ratio
from joulelab.report.study_tables import name_plain_cell
from joulelab.report.tables import Column, Table, make_table, scale_column
from joulelab.site.footprint import choose_site
from joulelab.store.run_folder import read_meta
from joulelab.study.matrix import list_simulated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.site.footprint import Site
    from joulelab.study.folder import Plan, Study
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.results import RatedTrial, Results

ESTIMATE_NOTE = (
    "Estimate: mean runtime x rated power of the devices. Ratio: the estimate divided by the measured energy of the "
    "same devices."
)


def summarise_study(study: Study, plan: Plan | None = None, site: Site | None = None) -> tuple[Results, StudySummary]:
    """Read the results of a study and compute its summary; with a study file only its own cells.

    `site` is the one that is set now, for runs that recorded none.
    """
    from joulelab.analysis.cell_metrics import summarise_cells
    from joulelab.analysis.goals import Goal
    from joulelab.study.results import WorkPattern, gather_results

    data = study.data
    work = [WorkPattern.from_json(each) for each in data["work"]]
    planned = {cell.key: cell for cell in plan.cells} if plan else {}
    cells = planned if plan is not None and plan.file is not None else None
    results = gather_results(study, scope=data["scope"], work=work, planned=planned, cells=cells)
    results.cells = [_set_site(cell, site) for cell in results.cells]
    goals = [Goal.parse(text) for text in data["goals"]]
    kinds = [data["per"]] if data.get("per") else list(dict.fromkeys(pattern.name for pattern in work))
    summary = summarise_cells(results.cells, goals=goals, reference=data["reference"] or None, per=kinds)
    precision = _list_precision(study, results, cells)
    twins = name_study_twins(study)
    notes = [Note("simulated", texts={"twins": twins.removeprefix("simulated: ")})] if twins else []
    notes += [] if cells is None else note_other_twins(study, cells)
    notes += [Note("executor", texts={"remark": remark}) for remark in (_list_remarks(plan) if plan else [])]
    for row in results.rows:
        if "doubts" in row:
            row["doubts"] = "; ".join(map(str, row["doubts"]))
    return results, replace(summary, notes=(*notes, *precision, *summary.notes))


def _set_site(cell: Cell, site: Site | None) -> Cell:
    return replace(cell, trials=tuple(replace(trial, site=choose_site(trial.site, site)) for trial in cell.trials))


def _list_precision(study: Study, results: Results, cells: Mapping[str, PlannedCell] | None) -> list[Note]:
    """List the cells that reached the precision of the study, if it has one, and keep them with the results."""
    from joulelab.study.precision import list_precision_notes, read_precision

    target = study.target
    if target is None:
        return []
    every = study.read_cells() if cells is None else cells
    several = len({cell.workload.name for cell in every.values()}) > 1
    labels = {
        key: ", ".join(name for name in (cell.workload.name if several else "", cell.label) if name)
        for key, cell in every.items()
    }
    results.precision = read_precision(study, every, target)
    return list_precision_notes(results.precision, labels, target)


def note_other_twins(study: Study, planned: Mapping[str, PlannedCell]) -> list[Note]:
    """Note the runs of planned cells on a twin that was described differently, which are other cells now."""
    from joulelab.study.folder import CELL, read_cell
    from joulelab.study.slots import list_claimed_slots

    wanted = {_hash_plain_twin(cell) for cell in planned.values() if "described" in cell.workload.node}
    files = [file for file in study.folder.glob(f"cells/*/{CELL}") if file.parent.name not in planned] if wanted else []
    runs, twins = 0, set()
    for folder in (file.parent for file in files):
        with suppress(JoulelabError):  # commands that open the cell report the error
            cell = read_cell(folder)
            if "described" in cell.workload.node and _hash_plain_twin(cell) in wanted:
                runs += sum(slot.name[0] == "r" for slot in list_claimed_slots(folder))
                twins.add(str(cell.workload.node["twin"]))
    return [Note("other-twin", {"runs": float(runs)}, {"twins": tuple(sorted(twins))})] if runs else []


def _hash_plain_twin(cell: PlannedCell) -> str:
    """Return the identity of a cell, whatever the description of its twin."""
    node = {name: value for name, value in cell.workload.node.items() if name != "described"}
    return replace(cell, workload=replace(cell.workload, node=node)).key


def _list_remarks(plan: Plan) -> list[str]:
    """List the remarks of the executors of a plan's node types."""
    from joulelab.study import executors

    hooks = [executors.find_hook(name, "list_remarks") for name in {n.executor for n in plan.nodes.values()}]
    return [remark for hook in hooks if hook is not None for remark in hook(plan)]


def name_study_twins(study: Study) -> str:
    """Return the names of the twins of a study, empty where everything was measured."""
    nodes = study.nodes
    twins = list_simulated(nodes)
    if not twins and _is_served(study):
        return name_twins([SERVED_TWIN])
    real = [name for name in nodes if name not in twins]
    names = list(dict.fromkeys(twins.values()))
    if real:
        names = [f"{twin} ({node})" for node, twin in twins.items()]
    return name_twins(names) if twins else ""


def _is_served(study: Study) -> bool:
    """Return whether the runs of a study were on a served twin; the first run decides, since all share a machine."""
    first = next((study.folder / "cells").glob("*/r*/*/run.json"), None)
    if first is None:
        return False
    try:
        return bool((read_meta(first.parent).get("environment") or {}).get("JOULELAB_TWIN"))
    except JoulelabError:
        return False  # commands that open the run report the error


def map_twins(study: Study) -> dict[str, str] | None:
    """Return the twins of a study by node type, None where everything was measured."""
    return list_simulated(study.nodes) or None


@dataclass(frozen=True, slots=True)
class CellEstimate:
    """Hold the estimate of one cell: rated power (W), its energy (J), the energy used by `families`, their ratio."""

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
    """Return the estimate of each cell with a known rated power."""
    found = (_estimate_cell(cell.key, results.rated.get(cell.key, ())) for cell in summary.cells)
    return [each for each in found if each is not None]


def _estimate_cell(key: str, trials: Sequence[RatedTrial]) -> CellEstimate | None:
    """Return the estimate of a cell from its repeats; repeats on other devices than the first are left out."""
    alike = [t for t in trials if (t.families, t.watts) == (trials[0].families, trials[0].watts)]
    cell = Cell(key, {}, tuple(Trial(t.used, t.time_s, meter=t.meter) for t in alike))
    mean = compute_means(cell)
    if mean is None or mean.energy is None or mean.energy.value <= 0:
        return None
    energy_j = alike[0].watts * mean.time.value
    ratio = Quantity(energy_j) / mean.energy
    return CellEstimate(key, alike[0].families, alike[0].watts, energy_j, mean.energy, ratio)


def describe_estimates(estimates: Sequence[CellEstimate], summary: StudySummary) -> str:
    """Return a sentence with the range of ratios, or advice if the rated power is unknown."""
    if not estimates:
        return f"Unknown: no run recorded the rated power of its devices; {RATED_ADVICE}."
    ranked = sorted((each for each in estimates if each.ratio.is_resolved), key=lambda each: each.ratio.value)
    if not ranked:
        return f"The ratio of runtime x rated power to the measured energy is {NOT_RESOLVED}."
    low, high = (format_ratio(each.ratio) for each in (ranked[0], ranked[-1]))
    of = f"{len(ranked)} cells"
    lacking = sum(cell.compared is not None for cell in summary.cells) - len(ranked)
    without = f"; unknown for {lacking} more" if lacking > 0 else ""
    if len(ranked) == 1:
        return f"Runtime x rated power is {low} times the measured energy of the same devices{without}."
    times = f"{low} to {high} times"
    return f"Runtime x rated power is {times} the measured energy of the same devices, over {of}{without}."


def make_estimate_table(estimates: Sequence[CellEstimate], summary: StudySummary) -> Table:
    """Return a table of the estimates: cell, rated power, estimate, energy used, ratio."""
    energy = scale_column("estimate", "J", [v for e in estimates for v in (e.energy_j, e.used.value)])
    watts = scale_column("rated", "W", [e.watts for e in estimates])
    columns = ("cell", watts, energy, replace(energy, name="used"), Column("ratio", is_derived=True), "of")
    rows = []
    for e in estimates:
        name = format_knobs(summary.cell(e.cell).knobs) or name_plain_cell(summary, e.cell)
        rows.append((name, e.watts, e.energy_j, e.used, e.ratio, " + ".join(e.families)))
    return make_table(columns, rows, left=(0, 5))
