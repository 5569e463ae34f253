"""Describe the node types of a study: where cells run, what their workload is shown there, and how it is started."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCAL, SLURM, TWIN = "local", "slurm", "twin"
USES = ("gpu", "cpu")
LAUNCHES = ("direct", "srun")
# Options that decide what is measured; the others say whose account pays, how long it may take and the like.
# Of a twin its name and what it is described as do.
IDENTITY_OPTIONS = (
    "partition", "constraint", "gpus", "nodes", "tasks", "cpus", "exclusive", "launch", "twin", "described",
)  # fmt: skip
# What the options of a job are where the file does not say.
DEFAULT_OPTIONS: Mapping[str, Any] = {"nodes": 1, "tasks": 1, "exclusive": True, "at_once": 100}


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

    @property
    def launch(self) -> str:
        """Return how the command is started in a job: `direct` or by `srun`."""
        return str(self.options.get("launch", _get_default_launch(self.options)))

    @property
    def simulated_by(self) -> str:
        """Return the name of the simulated node that stands in for this node type, empty where it is a real one."""
        return str(self.options.get("twin", "")) if self.executor == TWIN else ""

    @property
    def hides_gpus(self) -> bool:
        """Return whether the workload sees no GPU there, whatever the node has."""
        return self.uses == "cpu" or self.options.get("gpus") == 0

    def identity(self) -> dict[str, Any]:
        """Return what of it belongs to a cell's identity; a node type without anything special has nothing.

        What is said and usual is the same as what is not said.
        """
        usual = {**DEFAULT_OPTIONS, "launch": _get_default_launch(self.options)}
        own = {key: self.options[key] for key in IDENTITY_OPTIONS if key in self.options}
        own = {key: value for key, value in own.items() if value != usual.get(key)}
        if self.uses:
            own["uses"] = self.uses
        if self.executor != LOCAL:
            own["executor"] = self.executor
        if self.environment:
            own["environment"] = dict(self.environment)
        return own

    @classmethod
    def defined_by(cls, name: str, identity: Mapping[str, Any]) -> NodeType:
        """Return what a cell's identity says of its node type, whatever the file says by now."""
        own = ("executor", "uses", "environment")
        options = {key: value for key, value in identity.items() if key not in own}
        return cls(name, **{key: identity[key] for key in own if key in identity}, options=options)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeType:
        """Take what `to_json` gave."""
        return cls(**data)


def list_simulated(nodes: Mapping[str, NodeType]) -> dict[str, str]:
    """Return by node type the name of the simulated node, for those that are simulated."""
    return {name: node.simulated_by for name, node in nodes.items() if node.executor == TWIN}


def _get_default_launch(options: Mapping[str, Any]) -> str:
    tasks = options.get("nodes", DEFAULT_OPTIONS["nodes"]) * options.get("tasks", DEFAULT_OPTIONS["tasks"])
    return LAUNCHES[tasks > 1]
