"""Lay out one run of a workload on a node in virtual time: the true power of every point, and its stages.

What a run asks of the node before it has a clock (`Course`) is the same in real time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin import power_curves
from joulelab.twin.flaws import draw_normal
from joulelab.twin.power_curves import Curve, Pieces, add_curves
from joulelab.twin.workload_progress import RunRequest, Step, WorkloadModel, check_run, list_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.twin.model import Node
    from joulelab.twin.power_curves import Floats, Ints

# Streams of draws: what differs from run to run, and what flutters inside of one.
_TIME, _POWER, _FLUTTER = 1 << 40, (1 << 40) + 1, (1 << 40) + 2
_WARMING = 12  # pieces that follow a chip while it gets warm


class Course:
    """Hold the steps of a run with the scatter of its seed, cut into pieces of constant power.

    `edges` (s) are the begins of the steps and the end of the last; `begins` (s) those of the pieces, `of` the step of
    each. `busy`, `awake`, `cpu`, `memory` and `host` are loads (0 to 1) of the pieces. Raises ConfigError.
    """

    def __init__(self, node: Node, model: WorkloadModel, ask: RunRequest, seed: int) -> None:
        self.steps = list_steps(node, model, ask)
        if not self.steps:
            raise ConfigError("the workload has nothing to do", where="twin", next="see its stages in the node's file")
        self._node, self._gpus = node, ask.gpus
        slower = float(np.exp(model.time_scatter * draw_normal(seed, _TIME, 0)[0]))
        self.edges = np.cumsum([0.0, *(step.seconds * slower for step in self.steps)])
        warm_up_s = max((node.gpus[gpu].warm_up_s for gpu in ask.gpus), default=60.0)
        self.begins, self.of = _cut_steps(self.steps, self.edges, warm_up_s)
        stronger = 1 + model.power_scatter * float(draw_normal(seed, _POWER, 0)[0])
        flutter = self._spread_values([step.stage.flutter for step in self.steps])
        self._factor = np.maximum(
            stronger * (1 + flutter * draw_normal(seed, _FLUTTER, np.arange(len(self.begins)))), 0.0
        )
        self.busy = self._spread_values([step.busy for step in self.steps])
        self._occupied = self._spread_values([step.occupied for step in self.steps])
        self.awake = self._spread_values([step.stage.awake for step in self.steps])
        self.cpu = np.minimum(self._spread_values([step.stage.cpu for step in self.steps]) * self._factor, 1.0)
        self.memory = self._spread_values([step.stage.memory for step in self.steps])
        self.host = self.busy * self._occupied * len(ask.gpus) / max(len(node.gpus), 1)

    def _spread_values(self, values: list[float]) -> Floats:
        return np.array(values)[self.of]

    def watts(self, leaf: str) -> Floats:
        """Return what a leaf wants in each piece (W), without caps. Raises ConfigError for no leaf."""
        kind, _, number = leaf.partition(":")
        if kind == "gpu":
            return self._compute_gpu_w(int(number))
        load = {"dram": self.memory, "host": self.host}.get(kind, self.cpu)
        return np.asarray(self._node.draws_w(leaf, load, self.awake))

    def _compute_gpu_w(self, gpu: int) -> Floats:
        one, more = self._node.gpus[gpu], self._node.draw_factor(gpu)
        if gpu not in self._gpus:
            return np.full(len(self.begins), one.idle_w * more)
        warm = 1 - one.cold * np.exp(-self.begins / one.warm_up_s)
        dynamic = np.asarray(one.draws_w(self.busy, self._occupied)) - one.idle_w
        return np.asarray(more * (one.idle_w + dynamic * self._factor * warm))


def count_pieces(done: list[Step], widths: Sequence[float]) -> list[int]:
    """Return into how many pieces each step is cut, by how long it takes (s). Raises ConfigError for too many."""
    counts = [
        wide / step.stage.flutter_s if step.stage.flutter else 1.0 for step, wide in zip(done, widths, strict=True)
    ]
    most = max(range(len(done)), key=counts.__getitem__)
    check_run(sum(widths), sum(counts), f"stage {done[most].stage.name!r}")
    return [max(1, int(count)) for count in counts]


def _cut_steps(done: list[Step], edges: Floats, warm_up_s: float) -> tuple[Floats, Ints]:
    """Return the begins (s) of all pieces, and the step of each: what flutters or gets warm is cut into several."""
    begins, which = [], []
    counts = count_pieces(done, [float(b - a) for a, b in pairwise(edges)])
    for k, count in enumerate(counts):
        wide = float(edges[k + 1] - edges[k])
        begins.append(edges[k] + wide / count * np.arange(count))
        which.append(np.full(count, k, dtype=np.int64))
    cuts, of = np.concatenate(begins), np.concatenate(which)
    warming = warm_up_s * 3 * np.arange(1, _WARMING) / _WARMING
    extra = warming[warming < edges[-1]]
    cuts = np.concatenate([cuts, extra])
    of = np.concatenate([of, np.clip(np.searchsorted(edges, extra, side="right") - 1, 0, len(done) - 1)])
    order = np.argsort(cuts, kind="stable")
    return cuts[order], of[order]


NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """Name a stretch of a run: phase, number of its epoch, begin and end (ns), samples done."""

    name: str
    epoch: int | None
    start_ns: int
    end_ns: int
    samples: float


@dataclass(frozen=True, slots=True)
class GpuWants:
    """Hold the demand of the GPUs from each time (ns) on: share of time with kernels, power (W) without caps."""

    t_ns: Ints
    busy: Floats
    watts: dict[int, Floats]

    def values_at(self, values: Floats, t_ns: Ints) -> Floats:
        """Return those of some values, one for each of these times, that hold at other times (ns)."""
        return values[np.maximum(np.searchsorted(self.t_ns, t_ns, side="right") - 1, 0)]


class Timeline:
    """Hold what truly happens from `begin_ns` (idle) over `start_ns` to `end_ns` (the workload) to `close_ns` (idle).

    Points are those of a truth file. `spans` are the stages of the workload; nothing here is measured.
    """

    def __init__(
        self,
        node: Node,
        leaves: dict[str, Curve],
        times: tuple[int, int, int, int],
        spans: list[Span],
        wants: GpuWants,
        used: tuple[int, ...],
    ) -> None:
        self.node, self.spans, self.used = node, spans, used
        self.begin_ns, self.start_ns, self.end_ns, self.close_ns = times
        self._leaves = leaves
        self._wants = wants
        self._made: dict[str, Curve] = {}

    def curve(self, point: str) -> tuple[float, Curve]:
        """Return the true power of a point as a share of a curve. Raises ConfigError for an unknown point."""
        part, of = power_curves.find_share(self.node, point)
        if of not in power_curves.list_points(self.node):
            raise ConfigError(
                f"no meter reads {point!r} here",
                where="twin",
                next=suggest_name(of, power_curves.list_points(self.node)),
            )
        if of not in self._leaves and not self._made:
            heating = {leaf: self._leaves[leaf] for leaf in power_curves.list_heating_leaves(self._leaves)}
            whole, psys = power_curves.NodeCurves(self.node), Curve()
            whole.replace_from(list(heating.values()), self.begin_ns)
            others = [curve for leaf, curve in heating.items() if not leaf.startswith("gpu")]
            psys.replace_from(add_curves([whole.curves["fans"], *others], self.begin_ns))
            self._made = {**whole.curves, "psys": psys}
        return part, self._leaves[of] if of in self._leaves else self._made[of]

    def load(self, gpu: int, t_ns: Ints) -> Floats:
        """Return the share of time that kernels run on a GPU, at each time."""
        if gpu not in self.used:
            return np.zeros(len(t_ns))
        return self._wants.values_at(self._wants.busy, t_ns)

    def wanted_w(self, gpu: int, t_ns: Ints) -> Floats:
        """Return what a GPU would draw without a cap (W), at each time."""
        return self._wants.values_at(self._wants.watts[gpu], t_ns)

    def energy(self, point: str, a_ns: int, b_ns: int) -> float:
        """Return the true energy (J) of a point from a to b."""
        part, curve = self.curve(point)
        return part * (curve.joules_at(b_ns) - curve.joules_at(a_ns))


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Hold when a run is: its start (ns), and the idle stretches around it (s)."""

    start_ns: int = 0
    idle_s: float = 10.0
    tail_s: float = 5.0


def lay_out_run(node: Node, model: WorkloadModel, ask: RunRequest, when: RunTimes, seed: int) -> Timeline:
    """Return one run; the same seed gives the same. Raises ConfigError."""
    course = Course(node, model, ask, seed)
    marks = when.start_ns + np.rint(course.edges * NS).astype(np.int64)
    begin, end = when.start_ns - round(when.idle_s * NS), int(marks[-1])
    at_ns = when.start_ns + np.rint(course.begins * NS).astype(np.int64)
    t_ns = np.concatenate([[begin], at_ns, [end]])
    wanted = {leaf: _wanted_w(node, leaf, course) for leaf in node.list_leaves()}
    leaves = {leaf: _make_curve(t_ns, _hold_down(node, leaf, watts, ask)) for leaf, watts in wanted.items()}
    spans = [
        Span(step.stage.name, step.epoch, int(marks[k]), int(marks[k + 1]), step.samples)
        for k, step in enumerate(course.steps)
    ]
    times = (begin, when.start_ns, end, end + round(when.tail_s * NS))
    busy = np.concatenate([[0.0], course.busy, [0.0]])
    wants = GpuWants(t_ns, busy, {gpu: wanted[f"gpu:{gpu}"] for gpu in range(len(node.gpus))})
    return Timeline(node, leaves, times, spans, wants, ask.gpus)


def _wanted_w(node: Node, leaf: str, course: Course) -> Floats:
    """Return what a leaf wants (W): idle, each piece of the run, idle."""
    idle_w = node.range_w(leaf)[0]
    return np.concatenate([[idle_w], course.watts(leaf), [idle_w]])


def _hold_down(node: Node, leaf: str, watts: Floats, ask: RunRequest) -> Floats:
    """Return what a leaf draws (W) of what it wants, under its cap and locked clock."""
    kind, _, text = leaf.partition(":")
    number = int(text or 0)
    if kind == "gpu":
        one = node.get_board(number)
        clocked = one.idle_w + (watts - one.idle_w) * one.clock_share(ask.clocks.get(number))
        return np.minimum(clocked, ask.caps.get(number, one.default_cap_w))
    if kind in ("cpu", "core") and number in ask.cpu_caps:
        held_w = node.cpu.held_w(ask.cpu_caps[number])
        return np.minimum(watts, held_w if kind == "cpu" else node.cpu.core_w(held_w))
    return watts


def _make_curve(t_ns: Ints, watts: Floats) -> Curve:
    curve = Curve()
    curve.replace_from(Pieces(t_ns, watts, np.zeros(len(watts))))
    return curve
