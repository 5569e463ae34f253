"""Answer for a rack in one piece: nodes by every rule, what binds, what more nodes would need, and what was assumed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.plan.measured_runs import name_workload
from joulelab.plan.rack.capping import free_runs, response_for, targets_of
from joulelab.plan.rack.extremes import HOUR_S, maximum_of
from joulelab.plan.rack.facility import limits_of
from joulelab.plan.rack.guarantee import EFFICIENCIES, MOMENTS, guarantee_of
from joulelab.plan.rack.hidden import widened
from joulelab.plan.rack.mix import coincidence
from joulelab.plan.rack.mixed import mixed_of
from joulelab.plan.rack.rules import Basis, rows_of
from joulelab.plan.rack.spread import spread_of
from joulelab.plan.rack.steps import steps_of, synchronous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.analysis.result import Result
    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import HostTrace, MeasuredRun
    from joulelab.plan.plan_tables import NodeKind
    from joulelab.plan.rack.capping import Held, Priced, Target
    from joulelab.plan.rack.facility import Limit, Rack
    from joulelab.plan.rack.guarantee import Capped, Guarantee
    from joulelab.plan.rack.hidden import Widened
    from joulelab.plan.rack.mix import Coincidence, Job
    from joulelab.plan.rack.mixed import Mixed
    from joulelab.plan.rack.rules import Row
    from joulelab.plan.rack.spread import Spread
    from joulelab.plan.rack.steps import Steps

CURVE_POINTS = 400
ONE_JOB = "all nodes are taken to do one job and draw the same at the same time, unless a mix of jobs is given"


@dataclass(frozen=True)
class Decision:
    """Hold the whole answer for a rack of one kind of node; powers are in W at the wall.

    `targets` say what more nodes would need, `steps` how fast so many nodes move together as fit by the measured
    maximum, `curve` for which share of the time (%) a node drew at least how much, `mean_w` what it drew on average.
    `held` are the caps that all runs were under, None where some had none. `twins` is not empty where the answer is
    from simulated nodes.
    """

    title: str
    rack: Rack
    kind: NodeKind
    limits: tuple[Limit, ...]
    rows: tuple[Row, ...]
    targets: tuple[Target, ...]
    priced: Priced
    held: Held | None
    guarantee: Guarantee | str
    mixed: Mixed | None
    steps: Steps | None
    hidden: Widened | None
    spread: Spread | None
    together: tuple[Coincidence, ...]
    curve: tuple[Floats, Floats] | None
    mean_w: float | None
    assumed: tuple[str, ...]
    twins: tuple[str, ...]

    @property
    def response(self) -> CapResponse | None:
        """Return what caps do, None where nobody knows."""
        return self.priced.response

    def row(self, kind: str) -> Row | None:
        """Return the first row of a kind of rule that has an answer."""
        return next((row for row in self.rows if row.kind == kind and row.nodes is not None), None)

    @property
    def best(self) -> Row:
        """Return the row to begin with: the highest that was measured or given, else the nameplate, else caps."""
        highest = max((row for row in self.rows if row.kind == "maximum"), key=lambda row: row.node_w or 0.0)
        found = [highest, *(self.row(kind) for kind in ("nameplate", "caps"))]
        return next(row for row in found if row is not None and row.nodes is not None)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; powers in W at the wall."""
        return {
            "title": self.title,
            "simulated": bool(self.twins),
            "twins": list(self.twins),
            "rack": asdict(self.rack) | {"capacity_w": self.rack.capacity_w},
            "node": asdict(self.kind),
            "node_mean_w": self.mean_w,
            "limits": [
                {"name": x.name, "watts": None if x.room is not None else x.watts, "room": x.room, "said": x.said}
                for x in self.limits
            ],
            "rows": [row.to_json() for row in self.rows],
            "targets": [_target(target) for target in self.targets],
            "runs_under_caps": None if self.held is None else asdict(self.held),
            "response": _response(self.priced),
            "guarantee": self.guarantee if isinstance(self.guarantee, str) else _guarantee(self.guarantee),
            "mix": None if self.mixed is None else self.mixed.to_json(),
            "steps": None if self.steps is None else self.steps.to_json(),
            "hidden": None if self.hidden is None else self.hidden.to_json(),
            "spread": None if self.spread is None else self.spread.to_json(),
            "coincidence": [each.to_json() for each in self.together],
            "assumed": list(self.assumed),
        }


def decide(
    rack: Rack,
    kind: NodeKind,
    measured: Sequence[MeasuredRun] = (),
    jobs: Sequence[tuple[Job, Sequence[MeasuredRun]]] = (),
    *,
    title: str = "",
) -> Decision:
    """Return the answer for a rack, from runs of a kind of node or from numbers alone.

    Raises ConfigError where nobody says what a node draws, or only parts of nodes were measured.
    """
    runs, unread = _resolved(measured)
    free, held, left_out = free_runs(runs, kind)
    draws, wall = _at_wall(free, kind)
    limits = limits_of(rack, kind.height_u)
    peak = maximum_of(draws) if draws else None
    seen_w = max((w for w in (rack.rules.max_w, peak.value_w if peak else None) if w is not None), default=None)
    hidden, spread = (widened(draws), spread_of(draws)) if draws else (None, None)
    basis = Basis(
        rack, limits, draws, seen_w, hidden.factor if hidden else 1.0, spread.above if spread else 0.0, held
    )  # fmt: skip
    guarantee = guarantee_of(kind, runs, None if basis.hidden is None else basis.wider)
    rows = rows_of(basis, _rated(kind, draws), peak, guarantee)
    counts = [row.nodes for row in rows if row.nodes is not None]
    if not counts:
        raise _no_nodes(rows, unread)
    priced = response_for(runs, kind, seen_w)
    fitting = min((row.nodes for row in rows if row.kind == "maximum" and row.nodes), default=max(counts))
    low = "the rack's height is not looked at: give height_u of the node" if rack.height_u and not kind.height_u else ""
    assumed = [ONE_JOB, wall, unread, left_out, low, *rack.said, *_seen(free, draws), spread.said if spread else ""]
    return Decision(
        title=title, rack=rack, kind=kind, limits=limits, rows=rows,
        targets=targets_of(limits, counts, guarantee, priced, seen_w, _raised(rows, free)), priced=priced, held=held,
        guarantee=guarantee, mixed=mixed_of(rack, limits, [_job(job, of, kind) for job, of in jobs]),
        steps=synchronous(steps_of(draws), max(fitting, 1)) if draws else None, hidden=hidden, spread=spread,
        together=_together(free, draws), curve=_curve(draws) if draws else None, mean_w=_mean_w(draws),
        assumed=tuple(text for text in (*assumed, *_hidden_said(hidden), *_caps_said(guarantee, priced)) if text),
        twins=tuple(dict.fromkeys(d.twin for d in draws if d.twin)),
    )  # fmt: skip


def _resolved(measured: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], str]:
    """Return the runs whose power over time is known, and what has to be said of the others."""
    found = [each for each in measured if each.draws]
    left = [each.result.run for each in measured if not each.draws]
    if not left:
        return found, ""
    many = f"run {left[0]} was" if len(left) == 1 else f"{len(left)} runs ({', '.join(left[:3])}) were"
    return found, f"{many} only accounted for: nobody knows when the energy was used, so nothing is said of its peaks"


def _job(job: Job, measured: Sequence[MeasuredRun], kind: NodeKind) -> tuple[Job, tuple[HostTrace, ...]]:
    """Return a job of the mix and what its nodes drew at the wall, its name saying under which caps.

    Raises ConfigError where that is not known over time.
    """
    runs, unread = _resolved(measured)
    if not runs:
        then = "name runs whose nodes were read while they ran"
        raise ConfigError(f"what {job.name} of [[mix]] draws is not known", why=unread or "it has no runs", next=then)
    free, held, _ = free_runs(runs, kind)
    named = job if held is None else replace(job, name=f"{job.name} under {held.said}")
    return named, _at_wall(free, kind)[0]


def _no_nodes(rows: Sequence[Row], unread: str) -> ConfigError:
    why = unread or "; ".join(f"{row.rule}: {row.refused}" for row in rows)
    which = "runs whose nodes were read while they ran" if unread else "runs"
    return ConfigError("a rack without nodes", why=why, next=f"name {which}, or give --rated 10.2kW or --max 8.48kW")


def _raised(rows: Sequence[Row], measured: Sequence[MeasuredRun]) -> float:
    """Return by which factor a node's highest reading may be higher at the wall, by all that is known of it."""
    top = next((row for row in rows if row.kind == "maximum" and row.node_w), None)
    if top is None or top.node_w is None or not measured:
        return 1.0
    # What caps did is known as it was read: behind the supplies, where the meter was.
    read_w = max(draw.highest_w for each in measured for draw in each.draws)
    return (top.upper_w or top.node_w) / read_w


def _at_wall(measured: Sequence[MeasuredRun], kind: NodeKind) -> tuple[tuple[HostTrace, ...], str]:
    """Return what whole nodes drew at the wall, and what was assumed for that. Raises ConfigError."""
    draws = [draw for each in measured for draw in each.draws]
    parts = next((draw for draw in draws if draw.side == "parts"), None)
    if parts is not None:
        why = f"run {parts.run} has {', '.join(parts.scopes[:4])} only"
        then = "measure the whole node: joulelab meters --add"
        raise ConfigError("a rack is planned with the power of whole nodes", where=parts.host, why=why, next=then)
    if all(draw.side == "ac" for draw in draws):
        return tuple(draws), ""
    share = kind.efficiency or EFFICIENCIES[0]
    said = f"power behind the supplies is taken to the wall by an efficiency of {100 * share:g} %"
    return tuple(draw if draw.side == "ac" else _over(draw, share) for draw in draws), (
        said if kind.efficiency else f"{said}, the worst of good supplies: nobody gave it"
    )


def _over(draw: HostTrace, share: float) -> HostTrace:
    idle = None if draw.idle_w is None else draw.idle_w * (1 / share)
    return replace(
        draw, side="ac", mean_w=draw.mean_w / share, high_w=draw.high_w / share, read_w=draw.read_w / share, idle_w=idle
    )


def _rated(kind: NodeKind, draws: Sequence[HostTrace]) -> tuple[float, str] | None:
    """Return the nameplate (W) and who says it: as given, else as recorded with the runs."""
    if kind.rated_w is not None:
        return kind.rated_w, "as given"
    found = [draw for draw in draws if draw.rated_w is not None]
    if not found:
        return None
    largest = max(found, key=lambda draw: draw.rated_w or 0.0)
    return float(largest.rated_w or 0.0), largest.rated_by or "recorded with the runs"


def _seen(measured: Sequence[MeasuredRun], draws: Sequence[HostTrace]) -> list[str]:
    """Return how much was seen of which work."""
    if not draws:
        return ["numbers alone: no run was given, so nothing is said of percentiles, steps or hidden peaks"]
    names = list(dict.fromkeys(_work(each.result) for each in measured))
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    hours = sum(float(np.isfinite(d.high_w).sum()) * d.step_s for d in draws) / HOUR_S
    every = sorted({round(d.raw_s, 3) for d in draws})
    apart = f"{every[0]:g} s" if len(every) == 1 else f"{every[0]:g} to {every[-1]:g} s"
    runs = len({d.run for d in draws})
    many = f"{runs} run{'s' if runs > 1 else ''}"
    return [
        f"{many}, {hours:.3g} node-hours, readings {apart} apart; other work may draw more",
        f"workloads seen: {shown}",
    ]


def _work(result: Result) -> str:
    """Return what a run's work is called; imported runs have a name at best."""
    told = result.labels.get("workload") or result.facts.get("workload") or result.name
    return str(told or name_workload(result))


def _hidden_said(hidden: Widened | None) -> list[str]:
    if hidden is None:
        return []
    factors = [
        f"readings may hide peaks of {'nobody knows how much' if h.high is None else f'{h.high:.3f} times the highest'}"
        f" ({h.said})"
        for h in hidden.hidden
        if h.high != 1.0
    ]
    return [*factors, *hidden.notes]


def _caps_said(guarantee: Guarantee | str, priced: Priced) -> list[str]:
    found = [] if isinstance(guarantee, str) else [f"caps promise: {guarantee.said}", MOMENTS]
    if priced.response is not None:
        how = {"measured": "measured", "twin": "simulated", "model": "modelled"}[priced.response.source]
        found.append(f"what caps cost is {how}: {priced.response.said}")
    return found


def _together(measured: Sequence[MeasuredRun], draws: Sequence[HostTrace]) -> tuple[Coincidence, ...]:
    """Return how far hosts of each run peaked together."""
    runs = [each.result.run for each in measured]
    found = [coincidence([draw for draw in draws if draw.run == run]) for run in dict.fromkeys(runs)]
    return tuple(each for each in found if each is not None)


def _curve(draws: Sequence[HostTrace]) -> tuple[Floats, Floats]:
    """Return for which share of the time (%) a node drew at least how much (W)."""
    watts = np.concatenate([d.high_w for d in draws])
    seconds = np.concatenate([np.full(d.high_w.size, d.step_s) for d in draws])
    order = np.argsort(-np.where(np.isfinite(watts), watts, -np.inf))[: int(np.isfinite(watts).sum())]
    shares = 100 * np.cumsum(seconds[order]) / seconds[order].sum()
    # Close together where power is rare: the highest are what a rack is planned with.
    kept = np.unique(np.round(np.geomspace(1, order.size, CURVE_POINTS)).astype(int)) - 1
    return shares[kept], watts[order][kept]


def _mean_w(draws: Sequence[HostTrace]) -> float | None:
    """Return what a node drew on average over the time in which anything was read, in W."""
    seconds = [float(np.isfinite(d.mean_w).sum()) * d.step_s for d in draws]
    joules = [float(np.nansum(d.mean_w)) * d.step_s for d in draws]
    return sum(joules) / sum(seconds) if sum(seconds) else None


def _response(priced: Priced) -> dict[str, Any]:
    if priced.response is None:
        return {"refused": priced.why}
    return {"source": priced.response.source, "said": priced.response.said, "against_cap_w": priced.against_w}


def _guarantee(guarantee: Guarantee) -> dict[str, Any]:
    plain = asdict(guarantee) | {"lowest_cap_w": guarantee.lowest_w, "lacks": list(guarantee.lacks)}
    lines = [{"host_w": x.host_w, "slope": x.slope, "seen_w": _finite(x.seen_w)} for x in guarantee.lines]
    return plain | {"lines": lines}


def _finite(watts: float) -> float | None:
    return watts if np.isfinite(watts) else None


def _target(target: Target) -> dict[str, Any]:
    return {
        "nodes": target.nodes,
        "allowed_w": target.allowed_w,
        "short_w": target.short_w,
        "room": target.room,
        "by_guarantee": _capped(target.guarantee),
        "by_response": _capped(target.measured),
    }


def _capped(capped: Capped | None) -> dict[str, Any] | None:
    if capped is None:
        return None
    return {
        "cap_w": capped.cap_w,
        "needed": capped.needed,
        "time_ratio": None if capped.slowdown is None else capped.slowdown.to_json(),
        "energy_ratio": None if capped.energy is None else capped.energy.to_json(),
        "refused": capped.refused,
    }
