"""Lay out what one run of a workload asks of a node, before it has a clock: in virtual and in real time the same."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.twin import bounds
from joulelab.twin.noise import normal
from joulelab.twin.workload_progress import Ask, Model, Step, steps

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

    def __init__(self, node: Node, model: Model, ask: Ask, seed: int) -> None:
        self.steps = steps(node, model, ask)
        if not self.steps:
            raise ConfigError("the workload has nothing to do", where="twin", next="see its stages in the node's file")
        self._node, self._gpus = node, ask.gpus
        slower = float(np.exp(model.time_scatter * normal(seed, _TIME, 0)[0]))
        self.edges = np.cumsum([0.0, *(step.seconds * slower for step in self.steps)])
        warm_up_s = max((node.gpus[gpu].warm_up_s for gpu in ask.gpus), default=60.0)
        self.begins, self.of = _cut(self.steps, self.edges, warm_up_s)
        stronger = 1 + model.power_scatter * float(normal(seed, _POWER, 0)[0])
        flutter = self._column([step.stage.flutter for step in self.steps])
        self._factor = np.maximum(stronger * (1 + flutter * normal(seed, _FLUTTER, np.arange(len(self.begins)))), 0.0)
        self.busy = self._column([step.busy for step in self.steps])
        self._occupied = self._column([step.occupied for step in self.steps])
        self.awake = self._column([step.stage.awake for step in self.steps])
        self.cpu = np.minimum(self._column([step.stage.cpu for step in self.steps]) * self._factor, 1.0)
        self.memory = self._column([step.stage.memory for step in self.steps])
        self.host = self.busy * self._occupied * len(ask.gpus) / max(len(node.gpus), 1)

    def _column(self, values: list[float]) -> Floats:
        return np.array(values)[self.of]

    def watts(self, leaf: str) -> Floats:
        """Return what a leaf wants in each piece (W), without caps. Raises ConfigError for no leaf."""
        kind, _, number = leaf.partition(":")
        if kind == "gpu":
            return self._gpu(int(number))
        load = {"dram": self.memory, "host": self.host}.get(kind, self.cpu)
        return np.asarray(self._node.draws_w(leaf, load, self.awake))

    def _gpu(self, gpu: int) -> Floats:
        one, more = self._node.gpus[gpu], self._node.factor(gpu)
        if gpu not in self._gpus:
            return np.full(len(self.begins), one.idle_w * more)
        warm = 1 - one.cold * np.exp(-self.begins / one.warm_up_s)
        dynamic = np.asarray(one.draws_w(self.busy, self._occupied)) - one.idle_w
        return np.asarray(more * (one.idle_w + dynamic * self._factor * warm))


def pieces_of(done: list[Step], widths: Sequence[float]) -> list[int]:
    """Return into how many pieces each step is cut, by how long it takes (s). Raises ConfigError for too many."""
    counts = [
        wide / step.stage.flutter_s if step.stage.flutter else 1.0 for step, wide in zip(done, widths, strict=True)
    ]
    most = max(range(len(done)), key=counts.__getitem__)
    bounds.check_run(sum(widths), sum(counts), f"stage {done[most].stage.name!r}")
    return [max(1, int(count)) for count in counts]


def _cut(done: list[Step], edges: Floats, warm_up_s: float) -> tuple[Floats, Ints]:
    """Return the begins (s) of all pieces, and the step of each: what flutters or gets warm is cut into several."""
    begins, which = [], []
    counts = pieces_of(done, [float(b - a) for a, b in pairwise(edges)])
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
