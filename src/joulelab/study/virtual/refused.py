"""Refuse before anything runs what a twin does not have: workloads, GPUs, caps, meters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.meters import nearest
from joulelab.study.virtual.ask import ask_of
from joulelab.study.virtual.measure import chosen
from joulelab.study.virtual.twin import description_of
from joulelab.twins.progress import steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.study.folder import Plan
    from joulelab.study.matrix import PlannedCell
    from joulelab.study.refusals import Refusals


def check_cells(plan: Plan, cells: Sequence[PlannedCell], refusals: Refusals) -> None:
    """Refuse what the twins of these cells cannot do; each problem is told once."""
    from joulelab.study.virtual.ask import model_of

    names = dict.fromkeys(cell.workload.node_type for cell in cells)
    described = {name: description_of(plan.nodes[name]) for name in names}
    told: set[str] = set()
    for cell in cells:
        there = described[cell.workload.node_type]
        try:
            ask = ask_of(there, plan.nodes[cell.workload.node_type], cell)
            if not steps(there.node, model_of(there, cell)[1], ask):
                raise ConfigError("the workload has nothing to do there", where=there.node.name)
        except ConfigError as error:
            if str(error) not in told:
                told.add(str(error))
                refusals.add(error, ("workloads", cell.workload.name))
    mounted = {name: meters.family for each in described.values() for name, meters in each.meters.items()}
    known = {*mounted, *mounted.values()}
    for name in plan.settings.meters:
        if name not in known:
            error = ConfigError(f"no twin has the meter {name!r}", where="meters", next=nearest(name, sorted(known)))
            refusals.add(error, ("meters",))
    for name, each in described.items():
        if not chosen(each.meters, plan.settings):
            why = "the study names none of its meters" if each.meters else "its file has no [meters.NAME]"
            refusals.add(ConfigError(f"nothing is measured on the twin of {name}", where=each.node.name, why=why))
