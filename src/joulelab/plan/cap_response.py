"""Find the effect of a GPU power cap on a job: how much longer it takes, and the power of the node.

It is fitted to runs at several caps, interpolated between them, or modelled by the curve of other GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.analysis.marked_phases import COST_WORK, list_figure_kinds
from joulelab.analysis.study_cells import Cell, Trial, compute_means, divide_times, name_meter_device, pool_cells
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE, Quantity
from joulelab.core.scope import find_family
from joulelab.core.text import name_one
from joulelab.plan.measured_runs import ALIKE, list_outer_scopes, name_workload, require_power_over_time
from joulelab.report.messages import word_check
from joulelab.twin.model import H100, PRESETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.analysis.result import Result
    from joulelab.plan.measured_runs import MeasuredRun


# Capped GPUs draw this share of their cap on average (cap sweeps on three kinds of GPU).
HELD = 0.95
# If only the whole node was measured: the share of the GPUs in its power while it trains, with 1 sd.
GPU_SHARE, U_GPU_SHARE = 0.70, 0.06
# Watts at the wall per watt less on the GPUs: supplies, regulators and fans follow. Between 1.0 and 1.16.
AT_WALL, U_AT_WALL = 1.08, 0.04
# Error of the curve (1 sd of the logarithm of time), by the share of its power that is left to the GPU. Chosen on
# public sweeps of RTX 6000 and V100, single runs with their scatter; not tested on other data. With curve and error of
# one of the two, the times of the other were covered at k = 2 in 95 % (RTX 6000) and 92 % (V100) of cases.
# Below the first share nothing is modelled: the sweeps have times of two and four times there.
SHARES = (0.4, 0.5, 0.6, 0.7, 1.0)
CURVE_ERRORS = (0.30, 0.20, 0.09, 0.045, 0.045)
LOWEST, STEP = 0.4, 0.05  # caps of the model, as shares of the highest
# Error of an interpolated curve (1 sd), as a share of its change between two points: with these alone, and with more
# points that show its bend. Chosen on public cap sweeps of two GPUs; there, times of caps that were left out are
# covered at k = 2 in 95 to 97 %, at the lowest caps of an RTX 6000 in 91 %.
ALONE, BESIDE = 1.2, 0.25
IN_FORCE = ("cap", "cap not enforced")  # checks that fail if a cap was not in force
OWN_LABELS = ("study", "cell", "slot", "cap", "repeat")  # labels that differ between the runs of a sweep
SAME_CAP_W = 0.5
UNKNOWN_EFFECT = "the effect of caps is not known"
SWEEP = "joulelab sweep --cap 400:700:50 -- COMMAND"


@dataclass(frozen=True, slots=True)
class CapPoint:
    """Hold one cap (W on each GPU): time as a ratio to that without caps, mean and highest power of a node (W)."""

    cap_w: float
    slowdown: Quantity
    node_w: Quantity
    highest_w: float
    runs: int = 0


@dataclass(frozen=True, slots=True)
class CapResponse:
    """Hold the effect of caps, from the lowest to the highest; the last is the reference, without a cap.

    `source` is `measured`, `twin` (measured in a simulation) or `model` (of other GPUs); `basis` describes its data and
    its limits. `tag` separates its terms from those of other responses.
    """

    points: tuple[CapPoint, ...]
    source: Literal["measured", "twin", "model"]
    basis: str = ""
    tag: str = ""

    @property
    def caps_w(self) -> tuple[float, ...]:
        """Return the caps of the points, in W."""
        return tuple(p.cap_w for p in self.points)

    def at(self, cap_w: float) -> CapPoint:
        """Return the effect of a cap; between the points it is interpolated, with the uncertainty of that.

        The highest power is that of the next point above: a bound. Nothing is extrapolated: raises ConfigError outside
        of the points.
        """
        caps = self.caps_w
        if not caps or not caps[0] <= cap_w <= caps[-1]:
            what = {"model": "modelled", "twin": "simulated"}.get(self.source, "measured")
            why = f"caps from {caps[0]:g} to {caps[-1]:g} W were {what}" if caps else "no cap was measured"
            raise ConfigError(
                f"the effect of a cap of {cap_w:g} W is not known",
                why=why,
                next="measure it, or name another",
                code="config.unknown-cap",
            )
        above = next(k for k, cap in enumerate(caps) if cap >= cap_w)
        if caps[above] == cap_w:
            return self.points[above]
        span = f"{caps[above - 1]:g}-{caps[above]:g}@{self.tag}"
        slowdown = interpolate_quantity(caps, [p.slowdown for p in self.points], cap_w, f"curve:time:{span}")
        node_w = interpolate_quantity(caps, [p.node_w for p in self.points], cap_w, f"curve:power:{span}")
        return CapPoint(cap_w, slowdown, node_w, self.points[above].highest_w)


def find_cap_response(measured: Sequence[MeasuredRun], *, gpu_w: float | None = None) -> CapResponse:
    """Return the measured effect of caps, or the model's if all runs are at one cap.

    `gpu_w` is the highest cap of a GPU, for runs that did not record it. Raises ConfigError if the runs are of
    different workloads, or nothing is known of their GPUs.
    """
    if len(set(list_caps(measured, gpu_w))) > 1:
        return fit_cap_response(measured, highest_cap_w=gpu_w)
    return model_uncapped_runs(measured, gpu_w)


def fit_cap_response(measured: Sequence[MeasuredRun], *, highest_cap_w: float | None = None) -> CapResponse:
    """Return the effect of caps from runs of one workload at several caps (a run without a cap is the reference).

    Time is per work if all runs report the same kind, else that of the run. A run without a cap is at the recorded
    limit of its GPUs, or at `highest_cap_w`. Raises ConfigError for different workloads, or less than two caps.
    """
    _check_comparable(measured)
    caps = list_caps(measured, highest_cap_w)
    levels = sorted(set(caps))
    if len(levels) < 2:
        raise ConfigError(UNKNOWN_EFFECT, why=f"all runs are at {levels[0]:g} W", next=SWEEP, code="config.one-cap")
    kind = _find_work_kind([m.result for m in measured])
    tag = measured[0].result.run
    groups = [[m for m, cap in zip(measured, caps, strict=True) if cap == level] for level in levels]
    keys = [f"{level:g} W of {tag}" for level in levels]
    times = [Cell(key, {}, tuple(_time_run(m, kind) for m in group)) for key, group in zip(keys, groups, strict=True)]
    powers = [Cell(key, {}, tuple(_power_run(m, kind) for m in group)) for key, group in zip(keys, groups, strict=True)]
    time_pool, power_pool = (pool_cells((cell, None) for cell in cells) for cells in (times, powers))
    reference = compute_means(times[-1], None, time_pool)
    points = []
    for level, group, time, power in zip(levels, groups, times, powers, strict=True):
        own, mean = compute_means(time, None, time_pool), compute_means(power, None, power_pool)
        if own is None or reference is None or mean is None or mean.energy is None:
            raise ValueError(f"no runs at {level:g} W")  # every cap has runs, and every run an energy
        slowdown = ONE if own == reference else divide_times(own, reference) or ONE
        highest_w = max(draw.highest_w for one in group for draw in one.draws)
        points.append(CapPoint(level, slowdown, mean.energy, highest_w, len(group)))
    basis = _describe_fit(measured, groups, kind, levels, _find_limit(measured, highest_cap_w))
    return CapResponse(tuple(points), "twin" if measured[0].result.twin else "measured", basis, tag)


def model_cap_response(
    node_w: Quantity,
    highest_w: float,
    *,
    gpus: int,
    gpu_w: float,
    model: str = "",
    gpu_mean_w: float | None = None,
) -> CapResponse:
    """Return the effect of caps by the curve of other GPUs, with its error on public sweeps (see CURVE_ERRORS).

    `node_w` and `highest_w` are a node's mean and highest power without caps, `gpu_w` the highest cap of each of its
    `gpus`, `gpu_mean_w` the mean power of one (W); without it, a share of the node's power is assumed. Raises
    ConfigError for a node without GPUs or power.
    """
    if gpus < 1 or gpu_w <= 0 or node_w.value <= 0:
        why = f"{gpus} GPUs of {gpu_w:g} W, a node of {node_w.value:g} W"
        raise ConfigError(
            "the effect of caps cannot be modelled", why=why, next="give the node's power, gpus and gpu_w"
        )
    share = GPU_SHARE * node_w.value / gpus
    free_w = min(share if gpu_mean_w is None else gpu_mean_w, gpu_w)
    curve, known = _find_curve(model)
    tag = f"model {gpus} x {gpu_w:g} W"
    points = []
    for step in range(round((1 - LOWEST) / STEP) + 1):
        cap_w = round(gpu_w * (1 - step * STEP), 3)
        left = min(1.0, HELD * cap_w / free_w) if step else 1.0
        if left < SHARES[0]:
            break
        saved = gpus * free_w * (1 - left)
        points.append(
            CapPoint(
                cap_w,
                _model_time(curve, left, tag) if step else Quantity(1.0),
                _model_power(node_w, saved, measured=gpu_mean_w is not None, tag=tag),
                # At its highest a GPU draws its cap: less is saved than on average.
                max(highest_w - gpus * max(free_w - cap_w, 0.0), 0.0),
            )
        )
    assumed = f"; GPUs are assumed to draw {GPU_SHARE:.0%} of the node's power" if gpu_mean_w is None else ""
    basis = (
        f"modelled by the curve of {known or 'other GPUs'}, not measured: public cap sweeps of an RTX 6000 and a "
        f"V100 in training{assumed}. Measure three caps before you trust it"
    )
    return CapResponse(tuple(reversed(points)), "model", basis, tag)


def _find_curve(model: str) -> tuple[tuple[float, float], str]:
    """Return a and k of a kind of GPU and its name; of an unknown kind the general curve, without a name."""

    def simplify_name(name: str) -> str:
        return name.lower().replace(" ", "").replace("-", "")

    simple = simplify_name(model)
    for short, gpu in PRESETS.items():
        if simple and (short in simple or simple in simplify_name(gpu.name)) and gpu.slowdown != H100.slowdown:
            return gpu.slowdown, short
    return H100.slowdown, ""  # no public sweep has an H100: its curve lies between the others


def _model_time(curve: tuple[float, float], left: float, tag: str) -> Quantity:
    a, k = curve
    value = 1 + a * (math.pow(left, -k) - 1)
    return Quantity(value, {f"model:time@{tag}": value * float(np.interp(left, SHARES, CURVE_ERRORS))})


def _model_power(node_w: Quantity, saved_w: float, *, measured: bool, tag: str) -> Quantity:
    """Return the node's power with `saved_w` less on its GPUs, with the uncertainty of supplies and fans."""
    less = AT_WALL * saved_w
    terms = {f"model:wall@{tag}": -U_AT_WALL * saved_w}
    if not measured:
        terms[f"model:share@{tag}"] = -less * U_GPU_SHARE / GPU_SHARE
    return node_w + Quantity(-less, terms if saved_w else {})


def find_cap(result: Result) -> float | None:
    """Return the cap (W) that a run set on its GPUs, None without one.

    Raises ConfigError if it differs between GPUs, was changed while the run went on, or was not in force.
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
            raise ConfigError("the cap was not in force", where=where, why=word_check(check).text, next=leave)
    return asked[0]


def list_caps(measured: Sequence[MeasuredRun], highest_cap_w: float | None = None) -> list[float]:
    """Return the cap of each run (W), the limit of its GPUs for one without a cap. Raises ConfigError."""
    asked = [find_cap(m.result) for m in measured]
    limit = _find_limit(measured, highest_cap_w)
    if limit is None and None in asked:
        raise ConfigError(
            "the cap of a run is not known",
            where=f"run {measured[asked.index(None)].result.run}",
            why="it set no cap, and no meter read the power limit of its GPUs",
            next="give --gpu-power, or gpu_w of the node in a plan file",
            code="config.unknown-cap",
        )
    if limit is None:
        return [cap for cap in asked if cap is not None]
    return [limit if cap is None or abs(cap - limit) <= SAME_CAP_W else cap for cap in asked]


def _find_limit(measured: Sequence[MeasuredRun], given_w: float | None) -> float | None:
    """Return the power limit of the GPUs without a cap (W): as given, as recorded, or as found when a cap was set."""
    if given_w is not None:
        return given_w
    own = [d.watts for m in measured for d in m.result.rated.devices if find_family(d.scope) == "gpu"]
    found = [c.found for m in measured for c in m.result.caps if find_family(c.scope) == "gpu" and c.unit == "W"]
    return max(own or [w for w in found if w is not None], default=None)


def model_uncapped_runs(measured: Sequence[MeasuredRun], gpu_w: float | None = None) -> CapResponse:
    """Return the model's effect of caps on runs without one. Raises ConfigError if they had one, or no GPU was read."""
    _check_comparable(measured)
    (cap_w,) = set(list_caps(measured, gpu_w))
    limit, draws = _find_limit(measured, gpu_w), [d for m in measured for d in m.draws]
    gpus = max(d.gpus for d in draws)
    if not gpus or limit is None or cap_w < limit:
        why = "no GPU was measured" if not gpus else f"all runs are at {cap_w:g} W"
        raise ConfigError(UNKNOWN_EFFECT, why=why, next=SWEEP, code="config.one-cap")
    power = compute_means(Cell("uncapped", {}, tuple(_power_run(m, None) for m in measured)))
    if power is None or power.energy is None:
        raise ValueError("runs have no energy")
    inside = [float(np.nanmean(d.parts["gpu"])) / d.gpus for d in draws if "gpu" in d.parts and d.gpus]
    models = [s.model for m in measured for s in m.result.scopes if find_family(s.scope) == "gpu"]
    mean_w = sum(inside) / len(inside) if inside else None
    highest_w, model = max(d.highest_w for d in draws), next(iter(models), "")
    return model_cap_response(power.energy, highest_w, gpus=gpus, gpu_w=limit, model=model, gpu_mean_w=mean_w)


def _check_comparable(measured: Sequence[MeasuredRun]) -> None:
    if not measured:
        raise ConfigError(UNKNOWN_EFFECT, why="no runs are given", next="name runs at several caps")
    require_power_over_time(measured, "the effect of caps")
    first = list_compared_facts(measured[0])
    for other in measured[1:]:
        for (what, mine), theirs in zip(first.items(), list_compared_facts(other).values(), strict=True):
            if mine != theirs:
                raise ConfigError(
                    "runs of different work do not show the effect of a cap",
                    where=f"runs {measured[0].result.run} and {other.result.run}",
                    why=f"{what}: {str(mine)[:60] or 'none'}, {str(theirs)[:60] or 'none'}",
                    next="name runs that differ in their cap only",
                    code="config.different-work",
                )


def list_compared_facts(one: MeasuredRun) -> dict[str, Any]:
    """Return the facts, by name, that have to be equal in all runs of one response; the cap may differ."""
    result = one.result
    labels = {k: v for k, v in result.labels.items() if k not in OWN_LABELS} if "study" in result.labels else {}
    caps = {(c.scope, c.unit, c.asked) for c in result.caps if (find_family(c.scope), c.unit) != ("gpu", "W")}
    return {
        "workload": name_workload(result),
        "facts": {name: result.facts[name] for name in ALIKE if name in result.facts},
        "knobs": {k: v for k, v in labels.items() if k != "workload"},
        "nodes": len(one.draws),
        "measured": sorted({d.side for d in one.draws}),
        "other caps": sorted(caps),
        "twin": result.twin or "none",
    }


def _find_work_kind(results: Iterable[Result]) -> str | None:
    """Return the kind of work that all runs report, None if there is none."""
    listed = [r.work for r in results]
    common = [k for k in list_figure_kinds(listed[0]) if k not in COST_WORK and all(w.get(k, 0.0) > 0 for w in listed)]
    return common[0] if common else None


def _time_run(one: MeasuredRun, kind: str | None) -> Trial:
    """Return the time of a run, per unit of work."""
    return Trial(None, one.result.duration_s / (one.result.work[kind] if kind else 1.0), run=one.result.run)


def _power_run(one: MeasuredRun, kind: str | None) -> Trial:
    """Return the mean power of a node of a run (W) in place of an energy, and its time."""
    (energy,) = one.energies([0.0, one.result.duration_s])
    outer = list_outer_scopes(one)
    meters = sorted(
        name_meter_device(s.reading.meter, s.reading.channel, s.device, s.host)
        for s in one.result.scopes
        if (s.host, s.scope) in outer
    )
    mean_w = energy * (1 / one.result.duration_s / len(one.draws))
    return Trial(mean_w, _time_run(one, kind).time_s, run=one.result.run, meter="; ".join(meters))


def _describe_fit(
    measured: Sequence[MeasuredRun],
    groups: Sequence[Sequence[MeasuredRun]],
    kind: str | None,
    levels: Sequence[float],
    limit_w: float | None,
) -> str:
    name = "simulated" if measured[0].result.twin else "measured"
    parts = [f"{name} in {len(measured)} runs of {name_workload(measured[0].result)} at {len(levels)} caps"]
    parts.append(f"time is per {name_one(kind)}" if kind else "time is that of a run: no work was reported")
    if limit_w != levels[-1]:
        parts.append(f"no run was without a cap: {levels[-1]:g} W is the reference")
    if min(len(group) for group in groups) < 2:
        parts.append("single runs at some caps")
    if measured[0].draws[0].side != "ac":
        inside = {"dc": "behind the supplies", "parts": "of the parts that were measured, not of the node"}
        parts.append(f"power is {inside[measured[0].draws[0].side]}")
    return "; ".join(parts)


def interpolate_quantity(x: Sequence[float], points: Sequence[Quantity], at: float, source: str) -> Quantity:
    """Interpolate a curve of positive values between its points, whose `x` ascend.

    Logarithms are interpolated by cubics that never leave the range of the two points beside: a curve that rises or
    falls keeps doing so. The uncertainty is that of both points, and the distance of the cubic from the straight line,
    because the bend was not measured. `source` names that term.
    """
    if at in x:
        return points[x.index(at)]
    k = min(max(sum(one <= at for one in x) - 1, 0), len(x) - 2)
    places = [math.log(one) for one in x]
    values = [math.log(q.value) for q in points]
    share = (math.log(at) - places[k]) / (places[k + 1] - places[k])
    straight = values[k] + share * (values[k + 1] - values[k])
    bent = _evaluate_cubic(places, values, k, share)
    value = math.exp(bent)
    chord = share * (1 - share) * abs(values[k + 1] - values[k])
    off = ALONE * chord if len(x) == 2 else math.hypot(bent - straight, BESIDE * chord)
    low, high = points[k], points[k + 1]
    parts = low * ((1 - share) * value / low.value) + high * (share * value / high.value)
    return Quantity(value, {**parts.terms, source: value * off}, parts.known, parts.bounds)


def _evaluate_cubic(x: Sequence[float], y: Sequence[float], k: int, share: float) -> float:
    """Return a Hermite cubic between the points k and k + 1, with slopes that keep it between them."""
    width = x[k + 1] - x[k]
    slopes = [(b - a) / (d - c) for (a, b), (c, d) in zip(pairwise(y), pairwise(x), strict=True)]
    first, last = (_find_slope(x, slopes, j) * width for j in (k, k + 1))
    rest = 1 - share
    ends = y[k] * (1 + 2 * share) * rest**2 + y[k + 1] * (3 - 2 * share) * share**2
    return ends + first * share * rest**2 - last * share**2 * rest


def _find_slope(x: Sequence[float], slopes: Sequence[float], j: int) -> float:
    """Return the slope at a point: a mean of those beside it, zero if these differ in sign."""
    if len(slopes) == 1:
        return slopes[0]
    if j in (0, len(slopes)):
        own, other = (slopes[0], slopes[1]) if j == 0 else (slopes[-1], slopes[-2])
        near, far = (x[1] - x[0], x[2] - x[1]) if j == 0 else (x[-1] - x[-2], x[-2] - x[-3])
        end = ((2 * near + far) * own - near * other) / (near + far)
        if end * own <= 0:
            return 0.0
        return 3 * own if own * other <= 0 and abs(end) > 3 * abs(own) else end
    before, after = slopes[j - 1], slopes[j]
    if before * after <= 0:
        return 0.0
    left, right = x[j] - x[j - 1], x[j + 1] - x[j]
    a, b = 2 * right + left, right + 2 * left
    return (a + b) / (a / before + b / after)
