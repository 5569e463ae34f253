"""Say which cells are meant: those of a workload, of a node type, with some values of their knobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.values import Value

WORKLOAD, NODE, PHASE = "workload", "node", "phase"


@dataclass(frozen=True, slots=True)
class Condition:
    """Hold what a cell must be, all of it: one of these workloads, of these node types, of these values of each knob.

    What is empty does not matter. A cell without a knob that is named is not meant. Values are given by their texts.
    """

    workloads: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    knobs: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def holds(self, workload: str, node: str, knobs: Mapping[str, Value]) -> bool:
        """Return whether a cell is meant."""
        if (self.workloads and workload not in self.workloads) or (self.nodes and node not in self.nodes):
            return False
        return all(name in knobs and knobs[name].text in texts for name, texts in self.knobs.items())


ALWAYS = Condition()
