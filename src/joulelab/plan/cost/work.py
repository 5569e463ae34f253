"""Plan work from runs of the same workload: scale their energy and time to other amounts, batches, nodes and caps.

Each step is measured (there are such runs), interpolated (runs on both sides), or assumed: by a model of caps, or by a
range for how well work spreads over nodes, one end of which is ideal. Outside of that nothing is extrapolated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from joulelab.analysis.study_cells import Cell, CellMeans, Note, Trial, compute_means, pool_cells
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE, Quantity
from joulelab.core.scope import find_family
from joulelab.core.toml_reading import TEXTS, declare_key, is_number, read_table, read_texts
from joulelab.plan.cap_response import find_cap, find_cap_response, interpolate_quantity, list_caps, model_cap_response
from joulelab.plan.cost.job_energy import RUNS, Nameplate, find_nameplate, find_side
from joulelab.plan.measured_runs import count_nodes, list_outer_scopes, name_workload, require_power_over_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.plan_tables import TomlTable

Worth = Literal["measured", "interpolated", "assumed"]
GPU_HOURS, NODE_HOURS = "gpu_hours", "node_hours"
AMOUNTS = ("amount", GPU_HOURS, NODE_HOURS, "repeats")
LONGEST_S = 1000 * 365.25 * 86400.0  # a longer plan is a slip of the pen
# The least share of speed that each doubling of nodes keeps if it was not measured: a short real job (ResNet of MLPerf
# Training 4.0, 13 min on one node of 8 H100) kept 0.72 from one node to eight, start included.
LEAST_SPEED_KEPT = 0.7
# Power of a node that waits for others, as a share of its power when it works: from idle to all of it. Those eight
# nodes took 2.66 times the node-hours and 1.69 times the energy: 0.42 while they waited, idle 0.34.
WAITING = (0.33, 1.0)
OWN_LABELS = ("study", "cell", "slot", "workload", "cap", "batch", "nodes", "repeat")  # labels that are no other knob
BATCH_NAMES = ("batch", "batch_size")  # labels or facts
LONGEST_TEXT, MOST_NAMED = 40, 4


def _read_amount(value: Any) -> tuple[str, float]:
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError
    ((unit, amount),) = value.items()
    if not is_number(amount) or amount <= 0:
        raise ConfigError(f"{unit} is {amount!r}", next="give an amount above 0")
    return unit, float(amount)


@dataclass(frozen=True, slots=True)
class WorkTable:
    """Hold the keys of a [[work]] table."""

    name: str = declare_key("", "name of the work")
    runs: tuple[str, ...] = declare_key((), "runs of this workload", read=read_texts, advice=TEXTS)
    amount: tuple[str, float] | None = declare_key(
        None, "amount of a unit that the runs report", read=_read_amount, advice="write it as amount = { tokens = 1e9 }"
    )
    gpu_hours: float | None = declare_key(None, "hours of GPUs", above=0)
    node_hours: float | None = declare_key(None, "hours of nodes", above=0)
    repeats: float | None = declare_key(None, "number of such runs", above=0)
    nodes: int | None = declare_key(None, "nodes", least=1)
    gpus: int | None = declare_key(None, "GPUs per node, if the runs do not record it", least=1)
    cap_w: float | None = declare_key(None, "cap of each GPU in W", above=0)
    batch: float | None = declare_key(None, "batch size", above=0)


@dataclass(frozen=True, slots=True)
class Work:
    """Hold planned work: an amount of a unit that runs report, of `gpu_hours`, `node_hours`, or whole `runs`.

    Hours are as measured: at a cap the same work takes more of them. `gpus` is per node, for runs that do not tell it.
    None stays as measured.
    """

    name: str
    unit: str
    amount: float
    runs: tuple[str, ...] = ()
    nodes: int | None = None
    cap_w: float | None = None
    batch: float | None = None
    gpus: int | None = None


def read_work(tables: Sequence[TomlTable]) -> list[Work]:
    """Read [[work]] tables; mistakes are added to those of the tables."""
    found: list[Work] = []
    for table in tables:
        one = read_table(WorkTable, table.values, table.problems, table.at)
        given = [key for key in AMOUNTS if key in table.values]
        if len(given) != 1:
            what = f"the work has {' and '.join(given)}" if given else "the work has no amount"
            then = f"give one of {', '.join(AMOUNTS)}: amount = {{ tokens = 1e9 }}"
            table.problems.add(table.at, what, next=then)
        if one is None or len(given) != 1 or getattr(one, given[0]) is None:
            continue
        key = given[0]
        unit, amount = one.amount or (RUNS if key == "repeats" else key, getattr(one, key))
        name = one.name or f"work {len(found) + 1}"
        if any(other.name == name for other in found):
            table.problems.add((*table.at, "name"), f"two works are called {name!r}", next="rename one of them")
        found.append(Work(name, unit, amount, one.runs, one.nodes, one.cap_w, one.batch, one.gpus))
    return found


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """Hold one step from runs to planned work: factors on time and energy per unit of work, and their worth."""

    axis: str
    since: str
    until: str
    time: Quantity
    energy: Quantity
    worth: Worth
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """Hold the energy (J) and time (s) of planned work, and the steps from the runs to it.

    Its power is flat. `highest_w` is the highest reading of a node times the nodes, None if there is none.
    """

    work: Work
    nodes: int
    whole: Quantity
    time: Quantity
    steps: tuple[ScalingStep, ...]
    runs: tuple[str, ...]
    start_utc_s: float
    nameplate: Nameplate | None
    side: str
    twins: tuple[str, ...]
    highest_w: float | None
    notes: tuple[Note, ...]
    scopes: ClassVar[tuple[str, ...]] = ()
    meters: ClassVar[tuple[str, ...]] = ()
    covers: ClassVar[str] = ""
    is_total_only: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Return the name of the work."""
        return self.work.name

    @property
    def workload(self) -> str:
        """Return the name of the work."""
        return self.work.name

    @property
    def done(self) -> dict[str, float]:
        """Return the amount of work, by kind."""
        return {self.work.unit: self.work.amount}

    @property
    def duration_s(self) -> float:
        """Return its length, in s."""
        return self.time.value

    @property
    def worth(self) -> Worth:
        """Return the weakest worth of its steps."""
        found = {step.worth for step in self.steps}
        return "assumed" if "assumed" in found else "interpolated" if "interpolated" in found else "measured"

    def split_energy(self, at_s: Floats) -> list[Quantity]:
        """Return the energy (J) between each two of some times (s from its start), at a flat power."""
        shares = np.diff(np.clip(at_s, 0.0, self.duration_s)) / self.duration_s
        return [self.whole * float(share) for share in shares]


def plan_work(
    work: Work,
    measured: Sequence[MeasuredRun],
    *,
    at_s: float | None = None,
    rated_w: float | None = None,
    gpus: int | None = None,
    gpu_w: float | None = None,
) -> PlannedWork:
    """Plan work from runs of its workload; `at_s` is its start (s since 1970).

    `rated_w` of a node, its `gpus` and `gpu_w`, the highest cap of each, are for runs that do not tell them. Raises
    ConfigError if the runs do not tell it, or it takes more than LONGEST_S.
    """
    if not measured:
        raise ConfigError(f"{work.name}: no run of this work is named", next="name runs of the workload")
    basis = WorkBasis.from_runs(measured, work.unit, gpus=work.gpus, gpu_w=gpu_w)
    basis = replace(basis, gpus=work.gpus or gpus)  # those of the kind of node are for the model of caps only
    base = basis.find_base(work.nodes, work.cap_w, work.batch)
    nodes = base.nodes if work.nodes is None else work.nodes
    found = (basis.scale_batch(base, work.batch), basis.scale_nodes(base, nodes), basis.scale_cap(base, work.cap_w))
    steps = tuple(step for step in found if step is not None)
    energy, time = base.energy, base.means.time
    for step in steps:
        energy, time = energy * step.energy, time * step.time
    energy, time = energy * work.amount, time * work.amount
    if not time.value <= LONGEST_S:
        what = f"{work.name} takes more than 1000 years on {nodes} node{'s' if nodes > 1 else ''}"
        raise ConfigError(what, next="give less work, or more nodes: --nodes N")
    first = base.members[0]
    plate = find_nameplate(first, rated_w)
    if plate is not None:
        watts = plate.watts / count_nodes(first) * nodes
        ratio = time * watts / energy if plate.of == "node" and energy.value > 0 else None
        plate = Nameplate(watts, time.value, plate.of, plate.source, ratio)
    highest = [draw.highest_w for one in measured for draw in one.draws]
    return PlannedWork(
        work, nodes, energy, time, steps, tuple(one.result.run for one in base.members),
        first.start_utc_s if at_s is None else at_s, plate, find_side(first),
        tuple(dict.fromkeys(one.result.twin for one in measured if one.result.twin)),
        max(highest) * nodes if all(one.resolved for one in measured) else None, basis.notes,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Hold runs with the same node count, cap (W, None without) and batch, and their means per unit of work."""

    nodes: int
    cap_w: float | None
    batch: float | None
    members: tuple[MeasuredRun, ...]
    means: CellMeans

    @property
    def run(self) -> str:
        """Return the id of its first run, which separates its terms from those of other runs."""
        return self.members[0].result.run

    @property
    def energy(self) -> Quantity:
        """Return J per unit of work."""
        assert self.means.energy is not None
        return self.means.energy

    @property
    def node_s(self) -> Quantity:
        """Return seconds of all nodes per unit of work: the same for any count if work spread ideally."""
        return self.means.time * self.nodes


@dataclass(frozen=True, slots=True)
class WorkBasis:
    """Hold the runs of one workload in groups, for a unit of work."""

    groups: tuple[RunGroup, ...]
    gpus: int | None = None
    gpu_w: float | None = None
    notes: tuple[Note, ...] = ()

    @classmethod
    def from_runs(
        cls, measured: Sequence[MeasuredRun], unit: str, *, gpus: int | None = None, gpu_w: float | None = None
    ) -> WorkBasis:
        """Group runs; GPUs per node and the limit of each (W) are for runs that do not tell them.

        Raises ConfigError for runs of several workloads, or without the unit.
        """
        check_alike(measured)
        asked = [find_cap(one.result) for one in measured]
        caps = asked if len(set(asked)) < 2 else list(list_caps(measured, gpu_w))
        members: dict[tuple[int, float | None, float | None], list[MeasuredRun]] = {}
        for one, cap_w in zip(measured, caps, strict=True):
            members.setdefault((count_nodes(one), cap_w, find_batch(one)), []).append(one)
        cells = {
            key: Cell(f"{key} of {of[0].result.run}", {}, tuple(_make_trial(m, unit, gpus) for m in of))
            for key, of in members.items()
        }
        pool = pool_cells([(cell, unit) for cell in cells.values()])
        groups: list[RunGroup] = []
        notes: list[Note] = []
        for key, cell in cells.items():
            found = compute_means(cell, unit, pool)
            if found is None or found.energy is None:
                raise ConfigError("a run has no energy", where=cell.trials[0].run, next="joulelab doctor")
            if not found.time.known and not notes:
                notes.append(Note("cost.single-run"))
            groups.append(RunGroup(*key, tuple(members[key]), found.assume_spread(cell.key)))
        flat = tuple(dict.fromkeys(one.result.name or one.result.run for one in measured if not one.resolved))
        notes += [Note("cost.accounted-total", texts={"runs": flat})] if flat else []
        return cls(tuple(groups), gpus, gpu_w, tuple(notes))

    def find_base(self, nodes: int | None, cap_w: float | None, batch: float | None) -> RunGroup:
        """Return the group nearest to the plan. Raises ConfigError if several were measured and none is named."""
        highest = max(_rank_cap(g.cap_w) for g in self.groups)
        capped = [g for g in self.groups if g.cap_w == cap_w] if cap_w is not None else []
        left = capped or [g for g in self.groups if _rank_cap(g.cap_w) == highest]
        for name, wanted in (("batch", batch), ("nodes", None if nodes is None else float(nodes))):
            there = sorted({getattr(g, name) for g in left if getattr(g, name) is not None})
            if wanted is None and len(there) > 1:
                listed = ", ".join(f"{value:g}" for value in there)
                what = f"the runs have several values of {name}: {listed}"
                raise ConfigError(what, next=f"choose one: --{name} {there[0]:g}")
            if wanted is not None and not there:
                then = f"label runs: joulelab run --label {name}={wanted:g} -- CMD"
                raise ConfigError(f"no run records its {name}", next=then)
            if wanted is not None:
                nearest = min(there, key=lambda value: abs(math.log(value / wanted)))
                left = [g for g in left if getattr(g, name) == nearest]
        return max(left, key=lambda g: len(g.members))

    def scale_batch(self, base: RunGroup, batch: float | None) -> ScalingStep | None:
        """Return the step to a batch size between measured ones, None if none is needed. Raises ConfigError."""
        if batch is None or batch == base.batch:
            return None
        line = [g for g in self.groups if (g.nodes, g.cap_w) == (base.nodes, base.cap_w) and g.batch is not None]
        line.sort(key=lambda g: g.batch or 0.0)
        places = [g.batch or 0.0 for g in line]
        if not places[0] < batch < places[-1]:
            why = f"measured: {', '.join(f'{place:g}' for place in places)}"
            raise ConfigError(f"batch {batch:g} is outside the measured range", why=why, next="measure a run at it")
        source = f"scaling:batch@{base.run}"
        time = interpolate_quantity(places, [_divide(g.means.time, base.means.time) for g in line], batch, source)
        energy = interpolate_quantity(places, [_divide(g.energy, base.energy) for g in line], batch, source)
        return ScalingStep(
            "batch", f"{base.batch:g}", f"{batch:g}", time, energy, "interpolated", _name_neighbours(places, batch)
        )

    def scale_nodes(self, base: RunGroup, nodes: int) -> ScalingStep | None:
        """Return the step to a node count, None if none is needed."""
        if nodes == base.nodes:
            return None
        line = [g for g in self.groups if (g.cap_w, g.batch) == (base.cap_w, base.batch)]
        line.sort(key=lambda g: g.nodes)
        places = [float(g.nodes) for g in line]
        worth: Worth = "assumed"
        if len(line) == 1:
            spread, energy = assume_node_spread(nodes / base.nodes, base.run)
            reason = f"only {base.nodes} node{'s' if base.nodes > 1 else ''} measured: each doubling keeps "
            reason += f"{LEAST_SPEED_KEPT * 100:.0f} to 100 % of the speed, waiting nodes draw "
            reason += f"{WAITING[0] * 100:.0f} to 100 % of their power"
        else:
            inside = places[0] < nodes < places[-1]
            find = interpolate_quantity if inside else continue_power_law
            source = f"scaling:nodes@{base.run}"
            spread = find(places, [_divide(g.node_s, base.node_s) for g in line], nodes, source)
            energy = find(places, [_divide(g.energy, base.energy) for g in line], nodes, source)
            worth = "interpolated" if inside else "assumed"
            beyond = f"continued from runs on {', '.join(f'{p:g}' for p in places)} nodes"
            reason = _name_neighbours(places, nodes) if inside else beyond
        time = spread * (base.nodes / nodes)
        return ScalingStep("nodes", f"{base.nodes}", f"{nodes}", time, energy, worth, reason)

    def scale_cap(self, base: RunGroup, cap_w: float | None) -> ScalingStep | None:
        """Return the step to a cap (W on each GPU), None if none is needed. Raises ConfigError."""
        if cap_w is None or base.cap_w == cap_w:
            return None
        line = [g for g in self.groups if (g.nodes, g.batch) == (base.nodes, base.batch)]
        members = [m for g in line for m in g.members]
        require_power_over_time(members, "the effect of caps")
        response = self._find_response(base, members)
        there, here = response.at(cap_w), response.points[-1]
        time = _divide(there.slowdown, here.slowdown)
        energy = time * _divide(there.node_w, here.node_w)
        worth: Worth = "assumed" if response.source == "model" else "interpolated"
        since = "no cap" if base.cap_w is None else f"{base.cap_w:g} W"
        return ScalingStep("cap", since, f"{cap_w:g} W", time, energy, worth, response.basis)

    def _find_response(self, base: RunGroup, members: Sequence[MeasuredRun]) -> CapResponse:
        """Return the effect of caps; by the given GPUs if only the power of whole nodes was measured."""
        draws = [draw for one in members for draw in one.draws]
        whole = all(draw.side in ("ac", "dc") and not draw.gpus for draw in draws)
        if not whole or self.gpu_w is None or any(find_cap(one.result) is not None for one in members):
            return find_cap_response(members, gpu_w=self.gpu_w)
        if self.gpus is None:
            why = "no GPU was measured"
            raise ConfigError("the effect of caps is not known", why=why, next="for a model add --gpus 8")
        node_w = replace(base.energy / base.node_s, known=True)  # the terms of the model are known in any case
        highest_w = max(draw.highest_w for draw in draws)
        return model_cap_response(node_w, highest_w, gpus=self.gpus, gpu_w=self.gpu_w)


def assume_node_spread(times: float, tag: str) -> tuple[Quantity, Quantity]:
    """Return the factors on node-seconds and energy per work for `times` as many nodes, if nothing was measured.

    Both come from the time that nodes wait for others. So in their ratio, the power of a node, only the power of
    waiting nodes is left: it is never above the measured power.
    """
    end = LEAST_SPEED_KEPT ** -math.log2(times)
    spread, u = (1 + end) / 2, abs(end - 1) / 2 / math.sqrt(3)
    drawn, u_drawn = sum(WAITING) / 2, (WAITING[1] - WAITING[0]) / 2 / math.sqrt(3)
    if times > 1:  # nodes begin to wait
        energy, by_spread, by_drawn = 1 + drawn * (spread - 1), drawn, spread - 1
    else:  # nodes waited in the runs
        whole = spread + drawn * (1 - spread)
        energy, by_spread, by_drawn = spread / whole, drawn / whole**2, -spread * (1 - spread) / whole**2
    shared = f"scaling:nodes@{tag}"
    terms = {shared: by_spread * u, f"scaling:waiting@{tag}": by_drawn * u_drawn}
    return Quantity(spread, {shared: u}), Quantity(energy, terms)


def continue_power_law(x: Sequence[float], points: Sequence[Quantity], at: float, source: str) -> Quantity:
    """Return a curve of positive values outside its points, by a power law through all of them from the nearest.

    Its error (`source`) may be all of the change from there, and at least the loss that is assumed without any
    measurement.
    """
    logs = [(math.log(place), math.log(q.value)) for place, q in zip(x, points, strict=True)]
    a, b = (sum(pair[k] for pair in logs) / len(logs) for k in (0, 1))
    slope = sum((one - a) * (two - b) for one, two in logs) / sum((one - a) ** 2 for one, _ in logs)
    place, near = min(zip(x, points, strict=True), key=lambda pair: abs(math.log(pair[0] / at)))
    factor = float((at / place) ** slope)
    lost = (1 - LEAST_SPEED_KEPT ** abs(math.log2(at / place))) / 2
    half = near.value * max(abs(factor - 1), lost * factor)
    found = near * factor
    return replace(found, terms={**found.terms, source: half / math.sqrt(3)})


def _divide(a: Quantity, b: Quantity) -> Quantity:
    return ONE if a is b else a / b


def _name_neighbours(places: Sequence[float], at: float) -> str:
    low, high = max(p for p in places if p < at), min(p for p in places if p > at)
    return f"between runs at {low:g} and {high:g}"


def _rank_cap(cap_w: float | None) -> float:
    return math.inf if cap_w is None else cap_w


def find_batch(measured: MeasuredRun) -> float | None:
    """Return the batch size in a run's labels or facts, None if there is none."""
    for source in (measured.result.labels, measured.result.facts):
        for name in BATCH_NAMES:
            try:
                value = float(source[name])
            except (KeyError, TypeError, ValueError):
                continue
            if 0 < value < math.inf:
                return value
    return None


def count_gpus(measured: MeasuredRun, gpus: int | None = None) -> int:
    """Return the number of GPUs of a run's workload, over all hosts. Raises ConfigError if nothing tells it."""
    unused = sum(1 for name in measured.result.rated.unused if find_family(name.rpartition("/")[2]) == "gpu")
    count = gpus * count_nodes(measured) if gpus is not None else sum(d.gpus for d in measured.draws) - unused
    if count <= 0:
        what, why = f"run {measured.result.run} has no number of GPUs", "none of them was measured"
        raise ConfigError(what, why=why, next="give the GPUs of a node: --gpus 8, or `gpus` in [[work]]")
    return count


def count_work(measured: MeasuredRun, unit: str, gpus: int | None) -> float:
    """Return the amount of a unit that a run did. Raises ConfigError if it does not report it."""
    result = measured.result
    if unit == RUNS:
        return 1.0
    if unit in (GPU_HOURS, NODE_HOURS):
        count = count_nodes(measured) if unit == NODE_HOURS else count_gpus(measured, gpus)
        return count * result.duration_s / 3600.0
    done = result.work.get(unit, 0.0)
    if done <= 0:
        have = ", ".join([*result.work, RUNS, GPU_HOURS, NODE_HOURS])
        raise ConfigError(f"run {result.run} reports no {unit}", why=f"it has {have}", next="plan with one of them")
    return done


def _make_trial(measured: MeasuredRun, unit: str, gpus: int | None) -> Trial:
    result = measured.result
    scopes = list_outer_scopes(measured)
    meters = sorted({f"{s.host}/{s.reading.meter}" for s in result.scopes if (s.host, s.scope) in scopes})
    done = {unit: count_work(measured, unit, gpus)}
    return Trial(result.energy, result.duration_s, done, result.run, meter=",".join(meters))


def check_alike(measured: Sequence[MeasuredRun]) -> None:
    """Refuse runs of several workloads, or that differ in a knob that is not scaled. Raises ConfigError."""
    kinds: dict[str, set[str]] = {}
    for one in measured:
        labels = one.result.labels
        facts = {"workload": name_workload(one.result), "twin": one.result.twin, "side": find_side(one)}
        if "study" in labels:
            facts |= {name: value for name, value in labels.items() if name not in OWN_LABELS}
        for name, value in facts.items():
            kinds.setdefault(name, set()).add(value)
    for name, values in kinds.items():
        if len(values) > 1:
            listed = ", ".join(sorted(value[:LONGEST_TEXT] or "none" for value in values)[:MOST_NAMED])
            then = f"name runs that are alike: --only {name}=VALUE"
            raise ConfigError(f"the runs differ in {name}: {listed}", next=then)


def check_one_workload(work: Work, kinds: Mapping[str, Sequence[MeasuredRun]]) -> None:
    """Refuse to compare kinds of nodes, by name, whose runs did different work. Raises ConfigError."""
    found = {name: sorted({name_workload(one.result) for one in runs}) for name, runs in kinds.items()}
    if len({each for workloads in found.values() for each in workloads}) > 1:
        why = "; ".join(f"{name}: {', '.join(workloads)[:LONGEST_TEXT]}" for name, workloads in found.items())
        then = "name runs of one workload in each [nodes.NAME], or label them alike: workload=NAME"
        raise ConfigError(f"{work.name}: the kinds of nodes did different workloads", why=why, next=then)
