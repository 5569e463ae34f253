"""Lay out one run of a workload on a node in virtual time: the true power of every point, and what was done when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.twins import points
from joulelab.twins.curve import Curve, Pieces
from joulelab.twins.names import nearest
from joulelab.twins.noise import normal
from joulelab.twins.progress import Ask, Model, Step, steps

if TYPE_CHECKING:
    from joulelab.twins.curve import Floats, Ints
    from joulelab.twins.model import Node

NS = 1_000_000_000
# Streams of draws: what differs from run to run, and what flutters inside of one.
_TIME, _POWER, _FLUTTER = 1 << 40, (1 << 40) + 1, (1 << 40) + 2
_WARMING = 12  # pieces that follow a chip while it gets warm


@dataclass(frozen=True, slots=True)
class Span:
    """Name a stretch of a run: phase, number of its epoch, begin and end (ns), samples done."""

    name: str
    epoch: int | None
    start_ns: int
    end_ns: int
    samples: float


class Timeline:
    """Hold what truly happens from `begin_ns` (idle) over `start_ns` to `end_ns` (the workload) to `close_ns` (idle).

    Points are those of a truth file. `spans` tell what the workload did; nothing here is measured.
    """

    def __init__(
        self, node: Node, leaves: dict[str, Curve], times: tuple[int, int, int, int], spans: list[Span]
    ) -> None:
        self.node, self.spans = node, spans
        self.begin_ns, self.start_ns, self.end_ns, self.close_ns = times
        self._leaves = leaves
        self._whole: points.Whole | None = None

    def curve(self, point: str) -> tuple[float, Curve]:
        """Return the true power of a point as a share of a curve. Raises ConfigError for an unknown point."""
        part, of = points.share(self.node, point)
        if of in self._leaves:
            return part, self._leaves[of]
        if of not in points.WHOLE:
            raise ConfigError(f"no meter reads {point!r} here", where="twin", next=nearest(of, points.names(self.node)))
        if self._whole is None:
            self._whole = points.Whole(self.node)
            heating = [self._leaves[leaf] for leaf in points.heating(self._leaves)]
            self._whole.replace_from(heating, int(heating[0].t_ns[0]))
        return part, self._whole.curves[of]

    def energy(self, point: str, a_ns: int, b_ns: int) -> float:
        """Return the true energy (J) of a point from a to b."""
        part, curve = self.curve(point)
        return part * (curve.joules_at(b_ns) - curve.joules_at(a_ns))


@dataclass(frozen=True, slots=True)
class When:
    """Hold when a run is: its start (ns), and the idle stretches around it (s)."""

    start_ns: int = 0
    idle_s: float = 10.0
    tail_s: float = 5.0


def lay_out(node: Node, model: Model, ask: Ask, when: When, seed: int) -> Timeline:
    """Return one run; the same seed gives the same. Raises ConfigError."""
    done = steps(node, model, ask)
    if not done:
        raise ConfigError("the workload has nothing to do", where="twin", next="see its stages in the node's file")
    slower = float(np.exp(model.time_scatter * normal(seed, _TIME, 0)[0]))
    edges = np.cumsum([0.0, *(step.seconds * slower for step in done)])
    cuts, which = _cut(done, edges, max((node.gpus[gpu].warm_up_s for gpu in ask.gpus), default=60.0))
    at_ns = when.start_ns + np.rint(cuts * NS).astype(np.int64)
    begin, end = when.start_ns - round(when.idle_s * NS), when.start_ns + round(float(edges[-1]) * NS)
    stronger = 1 + model.power_scatter * float(normal(seed, _POWER, 0)[0])
    loads = _Loads(done, which, cuts, stronger, seed)
    t_ns = np.concatenate([[begin], at_ns, [end]])
    leaves = {leaf: _curve(t_ns, loads.watts(node, leaf, ask)) for leaf in node.leaves()}
    marks = when.start_ns + np.rint(edges * NS).astype(np.int64)
    spans = [
        Span(step.stage.name, step.epoch, int(marks[k]), int(marks[k + 1]), step.samples) for k, step in enumerate(done)
    ]
    return Timeline(node, leaves, (begin, when.start_ns, end, end + round(when.tail_s * NS)), spans)


def _cut(done: list[Step], edges: Floats, warm_up_s: float) -> tuple[Floats, Ints]:
    """Return the begins (s) of all pieces, and the step of each: what flutters or gets warm is cut into several."""
    begins, which = [], []
    for k, step in enumerate(done):
        wide = float(edges[k + 1] - edges[k])
        count = max(1, int(wide / step.stage.flutter_s)) if step.stage.flutter else 1
        begins.append(edges[k] + wide / count * np.arange(count))
        which.append(np.full(count, k, dtype=np.int64))
    cuts, of = np.concatenate(begins), np.concatenate(which)
    warming = warm_up_s * 3 * np.arange(1, _WARMING) / _WARMING
    extra = warming[warming < edges[-1]]
    cuts = np.concatenate([cuts, extra])
    of = np.concatenate([of, np.clip(np.searchsorted(edges, extra, side="right") - 1, 0, len(done) - 1)])
    order = np.argsort(cuts, kind="stable")
    return cuts[order], of[order]


class _Loads:
    """Hold what the pieces of a run ask for, and turn it into watts of each leaf: idle, the pieces, idle."""

    def __init__(self, done: list[Step], which: Ints, cuts: Floats, stronger: float, seed: int) -> None:
        def column(values: list[float]) -> Floats:
            return np.array(values)[which]

        self.busy = column([step.busy for step in done])
        self.occupied = column([step.occupied for step in done])
        self.awake = column([step.stage.awake for step in done])
        self.cpu = column([step.stage.cpu for step in done])
        self.memory = column([step.stage.memory for step in done])
        flutter = column([step.stage.flutter for step in done])
        self.factor = stronger * (1 + flutter * normal(seed, _FLUTTER, np.arange(len(cuts))))
        self.cuts = cuts

    def watts(self, node: Node, leaf: str, ask: Ask) -> Floats:
        kind, _, number = leaf.partition(":")
        idle_w, max_w = node.range_w(leaf)
        if kind == "gpu":
            return _around(idle_w, self._gpu(node, int(number), ask))
        if kind == "dram":
            return _around(idle_w, idle_w + self.memory * (max_w - idle_w))
        if kind == "host":
            mean = self.busy * self.occupied * len(ask.gpus) / max(len(node.gpus), 1)
            return _around(idle_w, idle_w + mean * (max_w - idle_w))
        package = np.asarray(node.cpu.draws_w(self.awake, np.minimum(self.cpu * self.factor, 1.0)))
        if kind == "core":
            package = node.cpu.core_idle_w + node.cpu.core_share * (package - node.cpu.idle_w)
        return _around(idle_w, package)

    def _gpu(self, node: Node, gpu: int, ask: Ask) -> Floats:
        one, more = node.gpus[gpu], node.factor(gpu)
        if gpu not in ask.gpus:
            return np.full(len(self.cuts), one.idle_w * more)
        warm = 1 - one.cold * np.exp(-self.cuts / one.warm_up_s)
        dynamic = np.asarray(one.draws_w(self.busy, self.occupied)) - one.idle_w
        wanted = more * (one.idle_w + dynamic * np.maximum(self.factor, 0.0) * warm)
        return np.minimum(wanted, (ask.caps or {}).get(gpu, one.default_cap_w))


def _around(idle_w: float, watts: Floats) -> Floats:
    return np.concatenate([[idle_w], watts, [idle_w]])


def _curve(t_ns: Ints, watts: Floats) -> Curve:
    curve = Curve()
    curve.replace_from(Pieces(t_ns, watts, np.zeros(len(watts))))
    return curve
