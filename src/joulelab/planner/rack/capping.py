"""Find what caps do to the nodes of a rack, from runs or by the model, and which cap makes so many of them fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.analysis.terms import Quantity
from joulelab.core.errors import ConfigError
from joulelab.planner.caps.capped_runs import cap_of, uncapped, workload_of
from joulelab.planner.caps.response import modelled_response, response_of
from joulelab.planner.rack.fit import allowed_w
from joulelab.planner.rack.guarantee import Guarantee, cap_by_guarantee, cap_by_measurement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.planner.caps.response import Response
    from joulelab.planner.draws import Measured
    from joulelab.planner.nodes import NodeKind
    from joulelab.planner.rack.facility import Limit
    from joulelab.planner.rack.guarantee import Capped

MOST_TARGETS = 4


@dataclass(frozen=True, slots=True)
class Target:
    """Hold what so many nodes would need: the power that each may draw (W), and the caps that hold it.

    `room` is False where no cap helps: there is no place for so many.
    """

    nodes: int
    allowed_w: float
    short_w: float | None
    guarantee: Capped | None
    measured: Capped | None
    room: bool = True


def free_runs(measured: Sequence[Measured]) -> tuple[list[Measured], str]:
    """Return the runs without caps, or all where every one has some; and what has to be said of that."""
    bare = [each for each in measured if not _capped(each)]
    if len(bare) == len(measured):
        return list(measured), ""
    if not bare:
        return list(measured), "every run had caps: what a node draws without them was not seen"
    return bare, f"{len(measured) - len(bare)} runs under caps are left out but for what caps cost"


def _capped(each: Measured) -> bool:
    try:
        return cap_of(each.result) is not None
    except ConfigError:
        return True


def response_for(measured: Sequence[Measured], kind: NodeKind, max_w: float | None) -> tuple[Response | None, str]:
    """Return what caps do to the hottest workload that was measured under several, else the model; and why not."""
    groups: dict[str, list[Measured]] = {}
    for each in measured:
        groups.setdefault(workload_of(each.result), []).append(each)
    hottest = sorted(groups.values(), key=lambda group: -max(d.highest_w for m in group for d in m.draws))
    why = ""
    for group in hottest:
        try:
            found = response_of(group, highest_cap_w=kind.gpu_w)
        except ConfigError as error:
            why = why or str(error)
            continue
        return replace(found, said=f"{workload_of(group[0].result)}: {found.said}"), ""
    return _modelled(hottest[0] if hottest else [], kind, max_w, why)


def _modelled(group: Sequence[Measured], kind: NodeKind, max_w: float | None, why: str) -> tuple[Response | None, str]:
    gpus, gpu_w = kind.gpus, kind.gpu_w
    try:
        if group:
            free = uncapped(group, gpu_w)
            return modelled_response(
                free.node_w, free.highest_w, gpus=free.gpus, gpu_w=free.gpu_w, model=free.model,
                gpu_mean_w=free.gpu_mean_w,
            ), ""  # fmt: skip
        if max_w is not None and gpus and gpu_w:
            return modelled_response(Quantity(max_w, known=False), max_w, gpus=gpus, gpu_w=gpu_w), ""
    except (ConfigError, ValueError) as error:
        return None, why or str(error)
    return None, why or "no run under caps; give --gpus and --gpu-power for what a model says"


def targets_of(
    limits: Sequence[Limit],
    counts: Sequence[int],
    guarantee: Guarantee | str,
    response: Response | None,
    highest_w: float | None,
    wider: float,
) -> tuple[Target, ...]:
    """Return what each number of nodes above the fewest that fit by a rule, and up to one above the most, would need.

    `highest_w` is what a node draws without caps (W), `wider` what its meter may hide as a factor.
    """
    found = []
    for nodes in range(min(counts) + 1, max(counts) + 2)[-MOST_TARGETS:]:
        each = allowed_w(limits, nodes)
        if each <= 0:
            found.append(Target(nodes, each, None, None, None, room=False))
            continue
        short = None if highest_w is None else max(nodes * (highest_w - each), 0.0)
        promised = None if isinstance(guarantee, str) else cap_by_guarantee(guarantee, each, response)
        found.append(Target(nodes, each, short, promised, cap_by_measurement(response, each, wider)))
    return tuple(found)
