"""Work out what a study gave, from its folder: for tables, pages and the dashboard."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError
from joulelab.core.text import SERVED_TWIN
from joulelab.store.folder import read_meta
from joulelab.study.nodes import list_simulated

if TYPE_CHECKING:
    from joulelab.analysis.cell_metrics import StudySummary
    from joulelab.study.folder import Plan, Study
    from joulelab.study.results import Results


def summarise_study(study: Study, plan: Plan | None = None) -> tuple[Results, StudySummary]:
    """Work out everything from the study's folder; of a study file its own cells only."""
    from joulelab.analysis.cell_metrics import summarise_cells
    from joulelab.analysis.goals import Goal
    from joulelab.analysis.study_cells import Note
    from joulelab.study.results import gather
    from joulelab.study.work import WorkPattern

    data = study.data
    work = [WorkPattern.from_json(each) for each in data["work"]]
    planned = {cell.key: cell for cell in plan.cells} if plan else {}
    cells = planned if plan is not None and plan.file is not None else None
    results = gather(study, scope=data["scope"], work=work, planned=planned, cells=cells)
    goals = [Goal.parse(text) for text in data["goals"]]
    reference = {name: results.watts.get((name, value), value) for name, value in data["reference"].items()}
    kinds = [data["per"]] if data.get("per") else list(dict.fromkeys(pattern.name for pattern in work))
    summary = summarise_cells(results.cells, goals=goals, reference=reference or None, per=kinds)
    said = name_study_twins(study)
    notes = [Note("simulated", texts={"twins": f"{said[0].upper()}{said[1:]}"})] if said else []
    notes += [Note("executor", texts={"remark": remark}) for remark in (_list_remarks(plan) if plan else [])]
    for row in results.rows:
        if "doubts" in row:
            row["doubts"] = "; ".join(map(str, row["doubts"]))
    return results, replace(summary, notes=(*notes, *summary.notes))


def _list_remarks(plan: Plan) -> list[str]:
    """List the remarks of the executors of a plan's node types."""
    from joulelab.study import executors

    hooks = [executors.find_hook(name, "list_remarks") for name in {n.executor for n in plan.nodes.values()}]
    return [remark for hook in hooks if hook is not None for remark in hook(plan)]


def name_study_twins(study: Study) -> str:
    """Return which twins a study is of, empty where all of it is measured."""
    from joulelab.report.format import name_twins as told

    nodes = study.nodes
    twins = list_simulated(nodes)
    if not twins and _served(study):
        return told([SERVED_TWIN])
    real = [name for name in nodes if name not in twins]
    names = list(dict.fromkeys(twins.values()))
    if real:
        names = [f"{twin} ({node})" for node, twin in twins.items()]
    return told(names) if twins else ""


def _served(study: Study) -> bool:
    """Return whether its runs were on a twin that was served, by the first of them: they share a machine."""
    first = next((study.folder / "cells").glob("*/r*/*/run.json"), None)
    if first is None:
        return False
    try:
        return bool((read_meta(first.parent).get("environment") or {}).get("JOULELAB_TWIN"))
    except JoulelabError:
        return False  # whoever looks at the run says what is wrong with it


def map_twins(study: Study) -> dict[str, str] | None:
    """Return the twins of a study by node type, None where all of it is measured."""
    return list_simulated(study.nodes) or None
