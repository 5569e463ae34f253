"""Find what caps did in runs of one workload: group them by cap, and take means with what repeats and meters say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.analysis.marked_phases import COST_WORK, list_figure_kinds
from joulelab.analysis.study_cells import Cell, Trial, compute_means, divide_times, pool_cells
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE
from joulelab.core.scope import find_family
from joulelab.plan.accounted import check_course
from joulelab.plan.caps.response import Point
from joulelab.plan.draws import ALIKE, workload_of
from joulelab.report.messages import word_check

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.analysis.result import Result
    from joulelab.analysis.study_cells import CellMeans
    from joulelab.core.quantity import Quantity
    from joulelab.plan.draws import Measured

IN_FORCE = ("cap", "cap not enforced")  # checks by which a cap was not in force
OWN_LABELS = ("study", "cell", "slot", "cap", "repeat")  # those that differ between the runs of a sweep
SAME_CAP_W = 0.5
SWEEP = "joulelab sweep --cap 400:700:50 -- COMMAND"


def fitted(measured: Sequence[Measured], highest_cap_w: float | None) -> tuple[tuple[Point, ...], str, str]:
    """Return the points by cap, what has to be said of them, and a tag. Raises ConfigError."""
    _check_alike(measured)
    caps = caps_of(measured, highest_cap_w)
    levels = sorted(set(caps))
    if len(levels) < 2:
        only = f"all runs are at {levels[0]:g} W" if levels else "there are no runs"
        raise ConfigError("what caps do is not known", why=only, next=SWEEP)
    kind = _work([m.result for m in measured])
    tag = measured[0].result.run
    groups = [[m for m, cap in zip(measured, caps, strict=True) if cap == level] for level in levels]
    keys = [f"{level:g} W of {tag}" for level in levels]
    times = [Cell(key, {}, tuple(_trial(m, kind) for m in group)) for key, group in zip(keys, groups, strict=True)]
    powers = [Cell(key, {}, tuple(_power(m, kind) for m in group)) for key, group in zip(keys, groups, strict=True)]
    time_pool, power_pool = (pool_cells((cell, None) for cell in cells) for cells in (times, powers))
    reference = compute_means(times[-1], None, time_pool)
    points = [
        _point(level, group, (compute_means(time, None, time_pool), reference), compute_means(power, None, power_pool))
        for level, group, time, power in zip(levels, groups, times, powers, strict=True)
    ]
    return tuple(points), _said(measured, groups, kind, levels, _limit(measured, highest_cap_w)), tag


def _point(
    level: float, group: Sequence[Measured], times: tuple[CellMeans | None, CellMeans | None], power: CellMeans | None
) -> Point:
    """Return what one cap did; every cap has runs, and every run an energy."""
    own, reference = times
    if own is None or reference is None or power is None or power.energy is None:
        raise ValueError(f"no runs at {level:g} W")
    slowdown = ONE if own == reference else divide_times(own, reference)
    highest = max(d.highest_w for m in group for d in m.draws)
    return Point(level, slowdown or ONE, power.energy, highest, len(group))


def cap_of(result: Result) -> float | None:
    """Return the cap (W) that a run set on its GPUs, None without one.

    Raises ConfigError where they differ between GPUs, were changed on the way, or were not in force.
    """
    caps = [c for c in result.caps if find_family(c.scope) == "gpu" and c.unit == "W"]
    if not caps:
        return None
    where = f"run {result.run}"
    leave = "leave the run out"
    if any(c.changes for c in caps):
        raise ConfigError("a run has no one cap", where=where, why="it was changed while it ran", next=leave)
    asked = [c.asked for c in caps]
    if max(asked) - min(asked) > SAME_CAP_W:
        why = f"its GPUs have caps from {min(asked):g} to {max(asked):g} W"
        raise ConfigError("a run has no one cap", where=where, why=why, next=leave)
    for check in result.checks:
        if check.name in IN_FORCE and check.status == "failed":
            raise ConfigError("a cap was not in force", where=where, why=word_check(check).text, next=leave)
    return asked[0]


def caps_of(measured: Sequence[Measured], highest_cap_w: float | None = None) -> list[float]:
    """Return the cap of each run (W), that of a run without one being the limit of its GPUs. Raises ConfigError."""
    asked = [cap_of(m.result) for m in measured]
    limit = _limit(measured, highest_cap_w)
    if limit is None and None in asked:
        bare = measured[asked.index(None)].result.run
        why = "it set no cap, and no meter told the limit of its GPUs"
        raise ConfigError(
            "the cap of a run is not known",
            where=f"run {bare}",
            why=why,
            next="give --gpu-power, or gpu_w of the node in a plan file",
        )
    return [_level(cap, limit) for cap in asked]


def _level(cap_w: float | None, limit_w: float | None) -> float:
    """Return a cap, the limit where there is none or where it is the same."""
    if limit_w is not None and (cap_w is None or abs(cap_w - limit_w) <= SAME_CAP_W):
        return limit_w
    return cap_w or 0.0


def _limit(measured: Sequence[Measured], given_w: float | None) -> float | None:
    """Return the power limit of the GPUs without a cap (W): as given, recorded, or found by those who set one."""
    if given_w is not None:
        return given_w
    own = [d.watts for m in measured for d in m.result.rated.devices if find_family(d.scope) == "gpu"]
    found = [c.found for m in measured for c in m.result.caps if find_family(c.scope) == "gpu" and c.unit == "W"]
    return max(own or [w for w in found if w is not None], default=None)


@dataclass(frozen=True, slots=True)
class Uncapped:
    """Hold a node without caps: mean and highest power, GPUs, the limit of each and what one draws on average (W)."""

    node_w: Quantity
    highest_w: float
    gpus: int
    gpu_w: float
    model: str
    gpu_mean_w: float | None


def uncapped(measured: Sequence[Measured], gpu_w: float | None = None) -> Uncapped:
    """Return what runs without a cap say of a node. Raises ConfigError where they had one, or no GPU was measured."""
    _check_alike(measured)
    (cap_w,) = set(caps_of(measured, gpu_w))
    limit, draws = _limit(measured, gpu_w), [d for m in measured for d in m.draws]
    gpus = max(d.gpus for d in draws)
    if not gpus or limit is None or cap_w < limit:
        why = "no GPU was measured" if not gpus else f"all runs are at {cap_w:g} W"
        raise ConfigError("what caps do is not known", why=why, next=SWEEP)
    power = compute_means(Cell("uncapped", {}, tuple(_power(m, None) for m in measured)))
    if power is None or power.energy is None:
        raise ValueError("runs have no energy")
    inside = [float(np.nanmean(d.parts["gpu"])) / d.gpus for d in draws if "gpu" in d.parts and d.gpus]
    models = [s.model for m in measured for s in m.result.scopes if find_family(s.scope) == "gpu"]
    mean_w = sum(inside) / len(inside) if inside else None
    return Uncapped(power.energy, max(d.highest_w for d in draws), gpus, limit, next(iter(models), ""), mean_w)


def _check_alike(measured: Sequence[Measured]) -> None:
    """Refuse runs that cannot be compared. Raises ConfigError."""
    if not measured:
        raise ConfigError("what caps do is not known", why="no runs are given", next="name runs at several caps")
    check_course(measured, "what caps do")
    first = compared(measured[0])
    for other in measured[1:]:
        for (what, mine), theirs in zip(first.items(), compared(other).values(), strict=True):
            if mine != theirs:
                where = f"runs {measured[0].result.run} and {other.result.run}"
                why = f"{what}: {_shown(mine)}, {_shown(theirs)}"
                then = "name runs that differ in their cap only"
                raise ConfigError(
                    "what caps do cannot be told from runs of different work", where=where, why=why, next=then
                )


def compared(one: Measured) -> dict[str, Any]:
    """Return what has to be the same in all runs but the cap, by what it is called."""
    result = one.result
    labels = {k: v for k, v in result.labels.items() if k not in OWN_LABELS} if "study" in result.labels else {}
    caps = {(c.scope, c.unit, c.asked) for c in result.caps if (find_family(c.scope), c.unit) != ("gpu", "W")}
    return {
        "workload": workload_of(result),
        "facts": {name: result.facts[name] for name in ALIKE if name in result.facts},
        "knobs": {k: v for k, v in labels.items() if k != "workload"},
        "nodes": len(one.draws),
        "measured": sorted({d.side for d in one.draws}),
        "other caps": sorted(caps),
        "twin": result.twin or "none",
    }


def _shown(value: object) -> str:
    return str(value)[:60] or "none"


def _work(results: Iterable[Result]) -> str | None:
    """Return the kind of work that all runs report and that time is divided by, None where there is none."""
    listed = [r.work for r in results]
    common = [k for k in list_figure_kinds(listed[0]) if k not in COST_WORK and all(w.get(k, 0.0) > 0 for w in listed)]
    return common[0] if common else None


def _trial(one: Measured, kind: str | None) -> Trial:
    """Return the time of a run, per unit of work."""
    done = one.result.work[kind] if kind else 1.0
    return Trial(None, one.result.duration_s / done, run=one.result.run)


def _power(one: Measured, kind: str | None) -> Trial:
    """Return the mean power of a node of a run (W), where trials have their energy, beside its time."""
    duration_s = one.result.duration_s
    (energy,) = one.energies([0.0, duration_s])
    outer = {(d.host, scope) for d in one.draws for scope in d.scopes}
    meters = sorted(
        f"{s.reading.meter} {s.reading.channel} {s.device or s.host}"
        for s in one.result.scopes
        if (s.host, s.scope) in outer
    )
    mean_w = energy * (1 / duration_s / len(one.draws))
    return Trial(mean_w, _trial(one, kind).time_s, run=one.result.run, meter="; ".join(meters))


def _said(
    measured: Sequence[Measured],
    groups: Sequence[Sequence[Measured]],
    kind: str | None,
    levels: Sequence[float],
    limit_w: float | None,
) -> str:
    name = "simulated" if measured[0].result.twin else "measured"
    parts = [f"{name} in {len(measured)} runs of {workload_of(measured[0].result)} at {len(levels)} caps"]
    parts.append(f"time is per {kind.removesuffix('s')}" if kind else "time is that of a run: no work was reported")
    if limit_w != levels[-1]:
        parts.append(f"no run was without a cap: {levels[-1]:g} W is the reference")
    if min(len(group) for group in groups) < 2:
        parts.append("single runs at some caps")
    if measured[0].draws[0].side != "ac":
        inside = {"dc": "behind the supplies", "parts": "of the parts that were measured, not of the node"}
        parts.append(f"power is {inside[measured[0].draws[0].side]}")
    return "; ".join(parts)
