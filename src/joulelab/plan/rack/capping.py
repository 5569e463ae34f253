"""Find what caps do to the nodes of a rack, from runs or by the model, and which cap makes so many of them fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.plan.cap_response import SAME_CAP_W, describe_uncapped_node, fit_cap_response, model_cap_response
from joulelab.plan.measured_runs import name_workload
from joulelab.plan.rack.fit import allowed_w
from joulelab.plan.rack.guarantee import Guarantee, cap_by_guarantee, cap_by_measurement, gpu_rated_w

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.plan_tables import NodeKind
    from joulelab.plan.rack.facility import Limit
    from joulelab.plan.rack.guarantee import Capped

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


@dataclass(frozen=True, slots=True)
class Held:
    """Hold caps that runs were under: what is said of them, and the highest cap on each GPU (W), None for others."""

    said: str
    cap_w: float | None = None


@dataclass(frozen=True, slots=True)
class Priced:
    """Hold what caps do, or why nobody knows; `against_w` is the cap of the reference where it was not without one."""

    response: CapResponse | None
    why: str = ""
    against_w: float | None = None


def free_runs(measured: Sequence[MeasuredRun], kind: NodeKind) -> tuple[list[MeasuredRun], Held | None, str]:
    """Return the runs without caps; where there are none, of each workload those at its highest, and those caps.

    What has to be said of the runs that are left out comes with them.
    """
    held = [held_by(each, measured, kind) for each in measured]
    bare = [each for each, caps in zip(measured, held, strict=True) if caps is None]
    if bare or not measured:
        return bare, None, _left_out(len(measured) - len(bare), "under caps")
    of_work: dict[str, list[tuple[float, MeasuredRun, Held]]] = {}
    for each, caps in zip(measured, held, strict=True):
        assert caps is not None
        of_work.setdefault(name_workload(each.result), []).append((caps.cap_w or 0.0, each, caps))
    kept = [one for group in of_work.values() for one in group if one[0] >= max(g[0] for g in group) - SAME_CAP_W]
    _, _, highest = max(kept, key=lambda one: one[0])
    return [each for _, each, _ in kept], highest, _left_out(len(measured) - len(kept), "under lower caps")


def _left_out(count: int, which: str) -> str:
    if not count:
        return ""
    many = f"{count} runs {which} are" if count > 1 else f"one run {which} is"
    return f"{many} left out but for what caps cost"


def held_by(each: MeasuredRun, measured: Sequence[MeasuredRun], kind: NodeKind) -> Held | None:
    """Return the caps that a run was under, None where it had none below the limit of its GPUs."""
    gpus = [c for c in each.result.caps if find_family(c.scope) == "gpu" and c.unit == "W"]
    others = [c for c in each.result.caps if c not in gpus]
    found = max((c.found for c in gpus if c.found is not None), default=None)
    limit_w = kind.gpu_w or gpu_rated_w(measured) or found
    asked_w = max((c.asked for c in gpus), default=None)
    if asked_w is not None and (limit_w is None or asked_w < limit_w - SAME_CAP_W):
        return Held(f"caps of {asked_w:g} W", asked_w)
    if others:
        first = others[0]
        value = f"{first.asked / 1e6:g} MHz" if first.unit == "Hz" else f"{first.asked:g} {first.unit}"
        return Held(f"a cap of {value} on {first.scope}")
    return None


def response_for(measured: Sequence[MeasuredRun], kind: NodeKind, max_w: float | None) -> Priced:
    """Return what caps do to the hottest workload that was measured under several, else the model; and why not.

    Every run has to have draws.
    """
    groups: dict[str, list[MeasuredRun]] = {}
    for each in measured:
        groups.setdefault(name_workload(each.result), []).append(each)
    hottest = sorted(groups.values(), key=lambda group: -max(d.highest_w for m in group for d in m.draws))
    why = ""
    for group in hottest:
        try:
            found = fit_cap_response(group, highest_cap_w=kind.gpu_w)
        except ConfigError as error:
            why = why or str(error)
            continue
        bare = any(held_by(each, group, kind) is None for each in group)
        said = f"{name_workload(group[0].result)}: {found.said}"
        return Priced(replace(found, said=said), "", None if bare else found.caps_w[-1])
    try:
        return _modelled(hottest[0] if hottest else [], kind, max_w, why)
    except (ConfigError, ValueError) as error:
        return Priced(None, str(error))


def _modelled(group: Sequence[MeasuredRun], kind: NodeKind, max_w: float | None, why: str) -> Priced:
    """Return what the model says of a node, its GPUs as they were measured, else as given. Raises ConfigError."""
    gpus, gpu_w = kind.gpus, kind.gpu_w
    draws = [draw for each in group for draw in each.draws]
    if any(draw.gpus for draw in draws):
        free = describe_uncapped_node(group, gpu_w)
        found = model_cap_response(
            free.node_w, free.highest_w, gpus=free.gpus, gpu_w=free.gpu_w, model=free.model,
            gpu_mean_w=free.gpu_mean_w,
        )  # fmt: skip
        return Priced(found)
    if not (gpus and gpu_w):
        none = "no GPU was measured" if group else "no run under caps"
        return Priced(None, f"{none}; give --gpus and --gpu-power for what a model says")
    if any(held_by(each, group, kind) for each in group):
        return Priced(None, why)
    if draws:
        return Priced(model_cap_response(_mean_w(group), max(d.highest_w for d in draws), gpus=gpus, gpu_w=gpu_w))
    if max_w is None:
        return Priced(None, "nobody says what a node draws; name runs, or give --max")
    return Priced(model_cap_response(Quantity(max_w, known=False), max_w, gpus=gpus, gpu_w=gpu_w))


def _mean_w(group: Sequence[MeasuredRun]) -> Quantity:
    """Return what a node drew on average over all time of the runs, in W."""
    times = [each.result.duration_s for each in group]
    spent = add_quantities(each.energies([0.0, time])[0] for each, time in zip(group, times, strict=True))
    return spent * (1 / sum(time * len(each.draws) for each, time in zip(group, times, strict=True)))


def targets_of(
    limits: Sequence[Limit],
    counts: Sequence[int],
    guarantee: Guarantee | str,
    priced: Priced,
    highest_w: float | None,
    wider: float,
) -> tuple[Target, ...]:
    """Return what each number of nodes above the fewest that fit by a rule, and up to one above the most, would need.

    `highest_w` is the most that a node drew (W), `wider` by which factor it may be more at the wall.
    """
    found = []
    for nodes in range(min(counts) + 1, max(counts) + 2)[-MOST_TARGETS:]:
        each = allowed_w(limits, nodes)
        if each <= 0:
            found.append(Target(nodes, each, None, None, None, room=False))
            continue
        short = None if highest_w is None else max(nodes * (highest_w - each), 0.0)
        promised = None if isinstance(guarantee, str) else cap_by_guarantee(guarantee, each, priced.response)
        seen = cap_by_measurement(priced.response, each, wider, free=priced.against_w is None)
        found.append(Target(nodes, each, short, promised, _no_lower(seen, promised, priced.response)))
    return tuple(found)


def _no_lower(seen: Capped, promised: Capped | None, response: CapResponse | None) -> Capped:
    """Return the cap by what was seen; one by a model is no lower than one that is promised to do."""
    if response is None or response.source != "model" or promised is None or promised.cap_w is None or not seen.needed:
        return seen
    return promised if seen.cap_w is None or seen.cap_w < promised.cap_w else seen
