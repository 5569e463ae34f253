"""Scale what runs used to other node counts, caps and batches, and say what each step is worth.

A figure is measured where runs were just so, interpolated where runs lie on both sides, else assumed: by a model of
caps, or by a range for how well work spreads over nodes, one end of which is ideal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from joulelab.analysis.study_cells import Cell, CellMeans, Trial, compute_means, pool_cells
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE, Quantity
from joulelab.core.scope import find_family
from joulelab.plan.cap_response import find_cap, find_cap_response, interpolate_quantity, list_caps, model_cap_response
from joulelab.plan.cost.energy import side_of
from joulelab.plan.measured_runs import (
    count_nodes,
    list_even_spread_notes,
    list_outer_scopes,
    name_workload,
    require_power_over_time,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import MeasuredRun

How = Literal["measured", "interpolated", "assumed"]
RUNS, GPU_HOURS, NODE_HOURS = "runs", "gpu_hours", "node_hours"
# The least share of the speed that each doubling of nodes is taken to keep where nothing was measured: a short real
# job (ResNet of MLPerf Training 4.0, 13 min on one node of 8 H100) kept 0.72 from one node to eight, start included.
KEPT = 0.7
# What a node draws while it waits for others, as a share of what it draws alone: from idle to all of it. Those eight
# nodes took 2.66 times the node-hours and 1.69 times the energy: 0.42 while they waited, idle 0.34.
WAITING = (0.33, 1.0)
OWN = ("study", "cell", "slot", "workload", "cap", "batch", "nodes", "repeat")  # labels that are no other knob
LONGEST, MOST = 40, 4  # of what runs differ in, in a message
BATCH = ("batch", "batch_size")  # labels or facts that tell it
SINGLE = "a single run is taken to be off by 5 % (k = 2): nothing tells how much runs differ"


@dataclass(frozen=True, slots=True)
class Step:
    """Hold one step from what was measured to what is planned: factors on time and energy per work, and their worth."""

    axis: str
    since: str
    until: str
    time: Quantity
    energy: Quantity
    how: How
    said: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Hold runs at the same node count, cap (W, None without) and batch, and their means per unit of work."""

    nodes: int
    cap_w: float | None
    batch: float | None
    members: tuple[MeasuredRun, ...]
    means: CellMeans

    @property
    def run(self) -> str:
        """Return the id of its first run, which sets its terms apart from those of other runs."""
        return self.members[0].result.run

    @property
    def energy(self) -> Quantity:
        """Return J per unit of work."""
        assert self.means.energy is not None
        return self.means.energy

    @property
    def node_s(self) -> Quantity:
        """Return seconds of all nodes per unit of work: the same at any count if work spread ideally."""
        return self.means.time * self.nodes


@dataclass(frozen=True, slots=True)
class Scaled:
    """Hold energy (J) and time (s) per unit of work as planned, and how they follow from the runs of `base`."""

    nodes: int
    energy: Quantity
    time: Quantity
    base: MeasuredRun
    runs: tuple[str, ...]
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Basis:
    """Hold the runs of one workload, in groups, for a unit of work."""

    groups: tuple[Group, ...]
    unit: str
    gpus: int | None = None
    gpu_w: float | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, measured: Sequence[MeasuredRun], unit: str, *, gpus: int | None = None, gpu_w: float | None = None
    ) -> Basis:
        """Sort runs into groups; GPUs per node and the limit of each (W) are for runs that do not tell them.

        Raises ConfigError where runs are of several workloads, or do not tell the unit.
        """
        check_alike(measured)
        caps = _caps(measured, gpu_w)
        members: dict[tuple[int, float | None, float | None], list[MeasuredRun]] = {}
        for one, cap_w in zip(measured, caps, strict=True):
            members.setdefault((count_nodes(one), cap_w, batch_of(one)), []).append(one)
        cells = {
            key: Cell(f"{key} of {of[0].result.run}", {}, tuple(_trial(m, unit, done_of(m, unit, gpus)) for m in of))
            for key, of in members.items()
        }
        pool = pool_cells([(cell, unit) for cell in cells.values()])
        groups, alone = [], False
        for key, cell in cells.items():
            found = compute_means(cell, unit, pool)
            if found is None or found.energy is None:
                raise ConfigError("a run has no energy", where=cell.trials[0].run, next="joulelab doctor")
            alone = alone or not found.time.known
            groups.append(Group(*key, tuple(members[key]), found.assume_spread(cell.key)))
        return cls(tuple(groups), unit, gpus, gpu_w, (*((SINGLE,) if alone else ()), *list_even_spread_notes(measured)))

    def at(self, *, nodes: int | None = None, cap_w: float | None = None, batch: float | None = None) -> Scaled:
        """Return energy and time per unit of work at a node count, cap (W on each GPU) and batch.

        What is None stays as measured. Raises ConfigError where several were measured and none is named, and outside
        of what the runs can tell.
        """
        base = self._base(nodes, cap_w, batch)
        steps = [
            step
            for step in (
                self._to_batch(base, batch if batch is not None else base.batch),
                self._to_nodes(base, base.nodes if nodes is None else nodes),
                self._to_cap(base, cap_w),
            )
            if step is not None
        ]
        energy, time = base.energy, base.means.time
        for step in steps:
            energy, time = energy * step.energy, time * step.time
        runs = tuple(m.result.run for m in base.members)
        count = base.nodes if nodes is None else nodes
        return Scaled(count, energy, time, base.members[0], runs, tuple(steps), self.notes)

    def _base(self, nodes: int | None, cap_w: float | None, batch: float | None) -> Group:
        """Return the group that is nearest to what is planned."""
        highest = max(_size(g.cap_w) for g in self.groups)
        capped = [g for g in self.groups if g.cap_w == cap_w] if cap_w is not None else []
        left = capped or [g for g in self.groups if _size(g.cap_w) == highest]
        for name, wanted in (("batch", batch), ("nodes", None if nodes is None else float(nodes))):
            there = sorted({getattr(g, name) for g in left if getattr(g, name) is not None})
            if wanted is None and len(there) > 1:
                listed = ", ".join(f"{value:g}" for value in there)
                raise ConfigError(
                    f"runs at several {name} were named: {listed}", next=f"say which: --{name} {there[0]:g}"
                )
            if wanted is not None and not there:
                raise ConfigError(
                    f"no run tells its {name}", next=f"label runs: joulelab run --label {name}={wanted:g} -- CMD"
                )
            if wanted is not None:
                nearest = min(there, key=lambda value: abs(math.log(value / wanted)))
                left = [g for g in left if getattr(g, name) == nearest]
        return max(left, key=lambda g: len(g.members))

    def _to_batch(self, base: Group, batch: float | None) -> Step | None:
        if batch is None or batch == base.batch:
            return None
        line = [g for g in self.groups if (g.nodes, g.cap_w) == (base.nodes, base.cap_w) and g.batch is not None]
        line.sort(key=lambda g: g.batch or 0.0)
        places = [g.batch or 0.0 for g in line]
        if not places[0] < batch < places[-1]:
            listed = ", ".join(f"{place:g}" for place in places)
            raise ConfigError(
                f"batch {batch:g} is outside of what was measured", why=f"runs are at {listed}",
                next="measure a run at it, or beyond it",
            )  # fmt: skip
        time = interpolate_quantity(
            places, [_ratio(g.means.time, base.means.time) for g in line], batch, f"scaling:batch@{base.run}"
        )
        energy = interpolate_quantity(
            places, [_ratio(g.energy, base.energy) for g in line], batch, f"scaling:batch@{base.run}"
        )
        return Step("batch", f"{base.batch:g}", f"{batch:g}", time, energy, "interpolated", _neighbours(places, batch))

    def _to_nodes(self, base: Group, nodes: int) -> Step | None:
        if nodes == base.nodes:
            return None
        how: How
        line = [g for g in self.groups if (g.cap_w, g.batch) == (base.cap_w, base.batch)]
        line.sort(key=lambda g: g.nodes)
        places = [float(g.nodes) for g in line]
        if len(line) == 1:
            (spread, energy), how = assumed_spread(nodes / base.nodes, base.run), "assumed"
            said = f"one count was measured: each doubling keeps {KEPT * 100:.0f} to 100 % of the speed (100 %: ideal)"
            said += f", nodes that wait draw {WAITING[0] * 100:.0f} to 100 % of their power"
        else:
            inside = places[0] < nodes < places[-1]
            find = interpolate_quantity if inside else beyond
            spread = find(places, [_ratio(g.node_s, base.node_s) for g in line], nodes, f"scaling:nodes@{base.run}")
            energy = find(places, [_ratio(g.energy, base.energy) for g in line], nodes, f"scaling:nodes@{base.run}")
            how, listed = ("interpolated" if inside else "assumed"), ", ".join(f"{p:g}" for p in places)
            said = _neighbours(places, nodes) if inside else f"continued from runs at {listed} nodes"
        time = spread * (base.nodes / nodes)
        return Step("nodes", f"{base.nodes}", f"{nodes}", time, energy, how, said)

    def _to_cap(self, base: Group, cap_w: float | None) -> Step | None:
        if cap_w is None or base.cap_w == cap_w:
            return None
        line = [g for g in self.groups if (g.nodes, g.batch) == (base.nodes, base.batch)]
        members = [m for g in line for m in g.members]
        require_power_over_time(members, "what caps do")
        response = self._response(base, members)
        there, here = response.at(cap_w), response.points[-1]
        time = _ratio(there.slowdown, here.slowdown)
        energy = time * _ratio(there.node_w, here.node_w)
        how: How = "assumed" if response.source == "model" else "interpolated"
        since = "none" if base.cap_w is None else f"{base.cap_w:g} W"
        return Step("cap", since, f"{cap_w:g} W", time, energy, how, response.said)

    def _response(self, base: Group, members: Sequence[MeasuredRun]) -> CapResponse:
        """Return what caps do: by the given GPUs where none was measured but the power of whole nodes was."""
        draws = [draw for one in members for draw in one.draws]
        whole = all(draw.side in ("ac", "dc") and not draw.gpus for draw in draws)
        if not whole or self.gpu_w is None or any(find_cap(one.result) is not None for one in members):
            return find_cap_response(members, gpu_w=self.gpu_w)
        if self.gpus is None:
            raise ConfigError("what caps do is not known", why="no GPU was measured", next="for a model give --gpus 8")
        node_w = base.energy / base.node_s
        highest_w = max(draw.highest_w for draw in draws)
        return model_cap_response(
            replace(node_w, known=True), highest_w, gpus=self.gpus, gpu_w=self.gpu_w
        )  # what the model adds is known, whatever the meter is worth


def assumed_spread(times: float, tag: str) -> tuple[Quantity, Quantity]:
    """Return by what node-seconds and energy per work change on so many times the nodes, where nothing was measured.

    Both come from the time that nodes wait for others, so that in their ratio, the power of a node, only what waiting
    nodes draw is left: they never draw more than they did.
    """
    end = KEPT ** -math.log2(times)
    spread, u = (1 + end) / 2, abs(end - 1) / 2 / math.sqrt(3)
    drawn, u_drawn = sum(WAITING) / 2, (WAITING[1] - WAITING[0]) / 2 / math.sqrt(3)
    if times > 1:  # they come to wait
        energy, by_spread, by_drawn = 1 + drawn * (spread - 1), drawn, spread - 1
    else:  # they waited
        whole = spread + drawn * (1 - spread)
        energy, by_spread, by_drawn = spread / whole, drawn / whole**2, -spread * (1 - spread) / whole**2
    shared = f"scaling:nodes@{tag}"
    terms = {shared: by_spread * u, f"scaling:waiting@{tag}": by_drawn * u_drawn}
    return Quantity(spread, {shared: u}), Quantity(energy, terms)


def beyond(x: Sequence[float], points: Sequence[Quantity], at: float, source: str) -> Quantity:
    """Return a curve of positive values outside of its points, by a power law through all of them from the nearest.

    It may be off (to either side, `source` names that) by all of the change from there, and at least by what may be
    lost where nothing was measured.
    """
    logs = [(math.log(place), math.log(q.value)) for place, q in zip(x, points, strict=True)]
    a, b = (sum(pair[k] for pair in logs) / len(logs) for k in (0, 1))
    slope = sum((one - a) * (two - b) for one, two in logs) / sum((one - a) ** 2 for one, _ in logs)
    place, near = min(zip(x, points, strict=True), key=lambda pair: abs(math.log(pair[0] / at)))
    factor = float((at / place) ** slope)
    lost = (1 - KEPT ** abs(math.log2(at / place))) / 2
    half = near.value * max(abs(factor - 1), lost * factor)
    found = near * factor
    return replace(found, terms={**found.terms, source: half / math.sqrt(3)})


def _ratio(a: Quantity, b: Quantity) -> Quantity:
    return ONE if a is b else a / b


def _neighbours(places: Sequence[float], at: float) -> str:
    low, high = max(p for p in places if p < at), min(p for p in places if p > at)
    return f"between runs at {low:g} and {high:g}"


def _size(cap_w: float | None) -> float:
    return math.inf if cap_w is None else cap_w


def _caps(measured: Sequence[MeasuredRun], gpu_w: float | None) -> list[float | None]:
    """Return the cap of each run's GPUs (W); where none was set, and others were, that is their own limit."""
    asked = [find_cap(one.result) for one in measured]
    return asked if len(set(asked)) < 2 else list(list_caps(measured, gpu_w))


def batch_of(measured: MeasuredRun) -> float | None:
    """Return the batch that a run's labels or facts tell, None where they do not."""
    for source in (measured.result.labels, measured.result.facts):
        for name in BATCH:
            try:
                value = float(source[name])
            except (KeyError, TypeError, ValueError):
                continue
            if 0 < value < math.inf:
                return value
    return None


def gpus_of(measured: MeasuredRun, given: int | None = None) -> int:
    """Return how many GPUs a run's workload had, over all hosts. Raises ConfigError where nothing tells it."""
    unused = sum(1 for name in measured.result.rated.unused if find_family(name.rpartition("/")[2]) == "gpu")
    counted = given * count_nodes(measured) if given is not None else sum(d.gpus for d in measured.draws) - unused
    if counted <= 0:
        raise ConfigError(
            f"run {measured.result.run} does not tell its GPUs", why="none of them was measured",
            next="say how many a node has: --gpus 8, or `gpus` in [[work]]",
        )  # fmt: skip
    return counted


def done_of(measured: MeasuredRun, unit: str, gpus: int | None) -> float:
    """Return how much of a unit a run did. Raises ConfigError where it does not tell."""
    result = measured.result
    if unit == RUNS:
        return 1.0
    if unit in (GPU_HOURS, NODE_HOURS):
        count = count_nodes(measured) if unit == NODE_HOURS else gpus_of(measured, gpus)
        return count * result.duration_s / 3600.0
    done = result.work.get(unit, 0.0)
    if done <= 0:
        have = ", ".join([*result.work, RUNS, GPU_HOURS, NODE_HOURS])
        raise ConfigError(f"run {result.run} reports no {unit}", why=f"it tells {have}", next="name one of them")
    return done


def _trial(measured: MeasuredRun, unit: str, done: float) -> Trial:
    result = measured.result
    scopes = list_outer_scopes(measured)
    meters = sorted({f"{s.host}/{s.reading.meter}" for s in result.scopes if (s.host, s.scope) in scopes})
    return Trial(result.energy, result.duration_s, {unit: done}, result.run, meter=",".join(meters))


def check_alike(measured: Sequence[MeasuredRun]) -> None:
    """Refuse runs of several workloads, or that differ in what nothing can be scaled along. Raises ConfigError."""
    kinds: dict[str, set[str]] = {}
    for one in measured:
        labels = one.result.labels
        told = {"workload": name_workload(one.result), "twin": one.result.twin, "side": side_of(one)}
        if "study" in labels:
            told |= {name: value for name, value in labels.items() if name not in OWN}
        for name, value in told.items():
            kinds.setdefault(name, set()).add(value)
    for name, values in kinds.items():
        if len(values) > 1:
            listed = ", ".join(sorted(value[:LONGEST] or "none" for value in values)[:MOST])
            raise ConfigError(
                f"the runs differ in {name}: {listed}", next=f"name runs that are alike: --only {name}=VALUE"
            )
