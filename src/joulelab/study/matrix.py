"""Make the matrix of a study: workloads, node types and knobs become cells, cells become slots in random order."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import asdict, dataclass, field, replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.study.knobs import ALWAYS, Condition, Knob, Value, check_command, fill_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


MAX_SLOTS = 100_000


@dataclass(frozen=True, slots=True)
class Workload:
    """Say what is run: a command with placeholders, the kind of node it runs on, and the phases that count.

    `kind` is empty for a command; of a `notebook` or a `reference` workload the command is its file or name, and then
    its parameters as NAME={NAME}. `node` is what of the node type decides what is measured.
    """

    command: tuple[str, ...]
    name: str = ""
    node_type: str = "local"
    phases: tuple[str, ...] = ()
    kind: str = ""
    node: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; what is not special is left out, so that identities stay as they were."""
        special = {"kind": self.kind, "node": dict(self.node)}
        return {
            "workload": self.name,
            "command": list(self.command),
            "node_type": self.node_type,
            "phases": list(self.phases),
        } | {key: value for key, value in special.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """Take what `to_json` gave."""
        known = cls(tuple(data["command"]), data["workload"], data["node_type"], tuple(data["phases"]))
        return replace(known, kind=data.get("kind", ""), node=data.get("node", {}))


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """Hold one combination of a workload and the values of its knobs; `key` identifies it, in any study."""

    workload: Workload
    knobs: Mapping[str, Value]

    @property
    def key(self) -> str:
        """Return the cell's identity: a hash of what defines it, whatever the order of its knobs."""
        knobs = {name: [value.text, value.unit] for name, value in self.knobs.items()}
        return _hash_data({**self.workload.to_json(), "knobs": knobs})[:12]

    @property
    def shown(self) -> str:
        """Return the knobs in words."""
        return ", ".join(f"{name} {value.shown}" for name, value in self.knobs.items()) or "(no knob)"

    def argv(self) -> list[str]:
        """Return the command of this cell."""
        return fill_command(self.workload.command, {name: value.text for name, value in self.knobs.items()})

    def values(self) -> dict[str, Any]:
        """Return the values of the knobs, as metrics take them."""
        return {name: value.value for name, value in self.knobs.items()}

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**self.workload.to_json(), "knobs": {name: value.to_json() for name, value in self.knobs.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlannedCell:
        """Take what `to_json` gave."""
        knobs = {name: Value.from_json(value) for name, value in data["knobs"].items()}
        return cls(Workload.from_json(data), knobs)


def check_slots(count: int, repeats: int) -> None:
    """Refuse a plan of more slots than a study can hold. Raises ConfigError."""
    if count * repeats > MAX_SLOTS:
        cells = "1 cell" if count == 1 else f"{count} cells"
        raise ConfigError(
            f"{cells} x {repeats} = {count * repeats} slots are too many",
            where="knobs",
            why=f"at most {MAX_SLOTS} are taken",
            next="give fewer values or a smaller --repeat",
        )


def make_cells(workload: Workload, knobs: Sequence[Knob], repeats: int = 1) -> list[PlannedCell]:
    """Return every combination, each once. Raises ConfigError for knobs and placeholders that do not fit.

    So many `repeats` of them must not be more than a study takes: that is known before any is made.
    """
    names = [knob.name for knob in knobs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(f"the knob {twice} is given twice", where="knobs", next="give all its values at once")
    check_command(workload.command, names)
    check_slots(math.prod(len(knob.values) for knob in knobs), repeats)
    combined = itertools.product(*(knob.values for knob in knobs))
    made = (PlannedCell(workload, dict(zip(names, values, strict=True))) for values in combined)
    return list({cell.key: cell for cell in made}.values())


class Combinations:
    """Make the combinations of knobs of which some are only in some cells.

    Of several knobs of one name the first counts whose condition holds. Raises CycleError (graphlib) where conditions
    go round in circles.
    """

    def __init__(self, knobs: Sequence[Knob], skips: Sequence[Condition] = ()) -> None:
        self._skips = skips
        self._named: dict[str, list[Knob]] = {}
        for knob in knobs:
            self._named.setdefault(knob.name, []).append(knob)
        needs = {
            name: {key for k in given for key in k.when.knobs} & set(self._named) for name, given in self._named.items()
        }
        ordered = list(TopologicalSorter(needs).static_order())
        self._always = [name for name in self._named if self._named[name][0].when == ALWAYS]
        self._sometimes = [name for name in ordered if name not in self._always]

    @property
    def most(self) -> int:
        """Return how many combinations there are at most."""
        return math.prod(
            max(len(k.values) for k in given) + (name in self._sometimes) for name, given in self._named.items()
        )

    def of(self, workload: str, node: str) -> Iterator[dict[str, Value] | None]:
        """Yield the knobs of every cell of a workload on a node type; None is one that is skipped."""
        sides = [self._named[name][0].values for name in self._always]
        for values in itertools.product(*sides):
            for knobs in self._more(workload, node, dict(zip(self._always, values, strict=True)), 0):
                if any(skip.holds(workload, node, knobs) for skip in self._skips):
                    yield None
                else:
                    yield {name: knobs[name] for name in self._named if name in knobs} if self._sometimes else knobs

    def _more(self, workload: str, node: str, knobs: dict[str, Value], at: int) -> Iterator[dict[str, Value]]:
        """Yield the knobs with each value of those that depend on a condition."""
        if at == len(self._sometimes):
            yield knobs
            return
        name = self._sometimes[at]
        found = next((k for k in self._named[name] if k.when.holds(workload, node, knobs)), None)
        if found is None:
            yield from self._more(workload, node, knobs, at + 1)
            return
        for value in found.values:
            yield from self._more(workload, node, {**knobs, name: value}, at + 1)


def hash_workload(workload: Workload) -> str:
    """Return a short hash of a workload without its knobs, to tell studies of different commands apart."""
    return _hash_data(workload.to_json())[:6]


def _hash_data(data: Mapping[str, Any]) -> str:
    # Bytes of a command line that are no UTF-8 are lone surrogates: JSON's escapes take them.
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


LOCAL, SLURM, TWIN = "local", "slurm", "twin"
USES = ("gpu", "cpu")
LAUNCHES = ("direct", "srun")
GPUS_ADVICE = "how many GPUs a workload sees is the knob gpus"
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


def order_block(keys: Iterable[str], seed: int, repeat: int) -> list[str]:
    """Return the cells of one block in random order. Cells that are added later do not change how others follow."""
    return sorted(keys, key=lambda key: hashlib.sha256(f"{seed}/{repeat}/{key}".encode()).digest())


def order_slots(keys: Iterable[str], seed: int, repeats: int) -> list[tuple[str, int]]:
    """Return (cell, repeat) of every slot, block after block; repeats count from 1."""
    every = list(keys)
    return [(key, repeat) for repeat in range(1, repeats + 1) for key in order_block(every, seed, repeat)]
