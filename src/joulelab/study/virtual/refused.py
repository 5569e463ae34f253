"""Refuse before anything runs what a twin does not have: workloads, GPUs, caps, meters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.meters import nearest
from joulelab.study.virtual.ask import ask_of, model_of
from joulelab.study.virtual.measure import chosen
from joulelab.study.virtual.twin import description_of
from joulelab.twins.progress import steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.study.folder import Plan
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.nodes import NodeType
    from joulelab.study.refusals import Refusals
    from joulelab.twins.nodefile import Description


def check_cells(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> None:
    """Refuse what the twins of these cells cannot do; each problem is told once."""
    names = dict.fromkeys(cell.workload.node_type for cell in cells)
    described = {name: description_of(plan.nodes[name]) for name in names}
    told: set[str] = set()
    for cell in cells:
        there = described[cell.workload.node_type]
        try:
            _try(there, plan.nodes[cell.workload.node_type], cell)
        except ConfigError as error:
            if str(error) not in told:
                told.add(str(error))
                refusals.add(error, ("workloads", cell.workload.name))
    mounted = {name: meters.family for each in described.values() for name, meters in each.meters.items()}
    known = {*mounted, *mounted.values()}
    for name in plan.settings.meters:
        if name not in known:
            then = nearest(name, sorted(known))
            refusals.add(ConfigError(f"no twin has the meter {name!r}", where="meters", next=then), ("meters",))
    for name, each in described.items():
        if not chosen(each.meters, plan.settings):
            why = "the study names none of its meters" if each.meters else "its file has no [meters.NAME]"
            refusals.add(ConfigError(f"nothing is measured on the twin of {name}", where=each.node.name, why=why))


def _try(described: Description, node: NodeType, cell: PlannedCell) -> None:
    """Lay the steps of a cell out. Raises ConfigError where the twin cannot run it."""
    ask = ask_of(described, node, cell)
    if not steps(described.node, model_of(described, cell)[1], ask):
        raise ConfigError("the workload has nothing to do there", where=described.node.name)
