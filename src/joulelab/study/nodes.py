"""Describe the node types of a study: where cells run, what their workload is shown there, and how it is started."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCAL = "local"
# Options that decide what is measured; the others say whose account pays, how long it may take and the like.
DEFINING = ("partition", "constraint", "gpus", "nodes", "tasks", "cpus", "exclusive", "launch")


@dataclass(frozen=True, slots=True)
class NodeType:
    """Hold a kind of node: its executor, what the workload `uses` (gpu, cpu, or empty: all there is), and its options.

    `environment` is added to the workload's. `options` are the executor's own, as in the study file; times in s.
    """

    name: str = LOCAL
    executor: str = LOCAL
    uses: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def identity(self) -> dict[str, Any]:
        """Return what of it belongs to a cell's identity; a node type without anything special has nothing."""
        own = {key: self.options[key] for key in DEFINING if key in self.options}
        if self.uses:
            own["uses"] = self.uses
        if self.executor != LOCAL:
            own["executor"] = self.executor
        return own

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeType:
        """Take what `to_json` gave."""
        return cls(**data)
