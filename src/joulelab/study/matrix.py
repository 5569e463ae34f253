"""The matrix of a study: workloads, node types and knobs become cells, cells become slots in random order."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import asdict, dataclass, field, replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.study.knobs import ALWAYS, Value, check_command, fill_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulelab.study.knobs import Condition, Knob

MAX_SLOTS = 100_000
LOCAL, SLURM, TWIN = "local", "slurm", "twin"
LAUNCHES = ("direct", "srun")
GPUS_ADVICE = "how many GPUs a workload sees is the knob gpus"
# Options of a node type that decide what is measured: part of a cell's identity. The others (account, time limit, ...)
# are not. A twin is identified by its name and its description.
IDENTITY_OPTIONS = (
    "partition", "constraint", "gpus", "nodes", "tasks", "cpus", "exclusive", "launch", "twin", "described",
)  # fmt: skip
DEFAULT_OPTIONS: Mapping[str, Any] = {"nodes": 1, "tasks": 1, "exclusive": True, "at_once": 100}


@dataclass(frozen=True, slots=True)
class NodeType:
    """Hold a kind of node: its executor, the devices that the workload `uses` (gpu, cpu; empty: all), and its options.

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
        """Return the name of the simulated node that stands in for this node type, empty for a real one."""
        return str(self.options.get("twin", "")) if self.executor == TWIN else ""

    @property
    def hides_gpus(self) -> bool:
        """Return whether the workload sees no GPU on this node type, even if the node has some."""
        return self.uses == "cpu" or self.options.get("gpus") == 0

    def get_identity(self) -> dict[str, Any]:
        """Return its part of a cell's identity: nothing for a plain node type. A default counts like a missing key."""
        defaults = {**DEFAULT_OPTIONS, "launch": _get_default_launch(self.options)}
        own = {key: self.options[key] for key in IDENTITY_OPTIONS if key in self.options}
        own = {key: value for key, value in own.items() if value != defaults.get(key)}
        if self.uses:
            own["uses"] = self.uses
        if self.executor != LOCAL:
            own["executor"] = self.executor
        if self.environment:
            own["environment"] = dict(self.environment)
        return own

    @classmethod
    def from_identity(cls, name: str, identity: Mapping[str, Any]) -> NodeType:
        """Return the node type of a cell's identity, even if the study file has changed since."""
        own = ("executor", "uses", "environment")
        options = {key: value for key, value in identity.items() if key not in own}
        return cls(name, **{key: identity[key] for key in own if key in identity}, options=options)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeType:
        """Restore from `to_json`."""
        return cls(**data)


def list_simulated(nodes: Mapping[str, NodeType]) -> dict[str, str]:
    """Return the names of the simulated nodes by node type."""
    return {name: node.simulated_by for name, node in nodes.items() if node.executor == TWIN}


def _get_default_launch(options: Mapping[str, Any]) -> str:
    tasks = options.get("nodes", DEFAULT_OPTIONS["nodes"]) * options.get("tasks", DEFAULT_OPTIONS["tasks"])
    return LAUNCHES[tasks > 1]


@dataclass(frozen=True, slots=True)
class Workload:
    """Hold a workload on a node type: a command with placeholders, and the phases that count.

    `kind` is empty for a command; for a `notebook` or a `reference` workload the command is its file or name, followed
    by its parameters as NAME={NAME}. `node` is the identity of the node type.
    """

    command: tuple[str, ...]
    name: str = ""
    node_type: str = "local"
    phases: tuple[str, ...] = ()
    kind: str = ""
    node: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain data; empty keys of later versions are left out, so that identities do not change."""
        special = {"kind": self.kind, "node": dict(self.node)}
        return {
            "workload": self.name,
            "command": list(self.command),
            "node_type": self.node_type,
            "phases": list(self.phases),
        } | {key: value for key, value in special.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """Restore from `to_json`."""
        known = cls(tuple(data["command"]), data["workload"], data["node_type"], tuple(data["phases"]))
        return replace(known, kind=data.get("kind", ""), node=data.get("node", {}))


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """Hold one combination of a workload and the values of its knobs; `key` identifies it, in any study."""

    workload: Workload
    knobs: Mapping[str, Value]

    @property
    def key(self) -> str:
        """Return the cell's identity: a hash of its definition that does not depend on the order of its knobs."""
        knobs = {name: [value.text, value.unit] for name, value in self.knobs.items()}
        return _hash_data({**self.workload.to_json(), "knobs": knobs})[:12]

    @property
    def label(self) -> str:
        """Return the knobs as people read them."""
        return ", ".join(f"{name} {value.label}" for name, value in self.knobs.items()) or "(no knob)"

    def make_argv(self) -> list[str]:
        """Return the command of this cell."""
        return fill_command(self.workload.command, {name: value.text for name, value in self.knobs.items()})

    def get_knob_values(self) -> dict[str, Any]:
        """Return the values of the knobs in SI units."""
        return {name: value.value for name, value in self.knobs.items()}

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**self.workload.to_json(), "knobs": {name: value.to_json() for name, value in self.knobs.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlannedCell:
        """Restore from `to_json`."""
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

    Cells x `repeats` are limited, before any cell is made.
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
    """List the combinations of knobs with conditions.

    Of several knobs with one name, the first one counts whose condition is met. Raises CycleError (graphlib) for
    conditions that depend on each other.
    """

    def __init__(self, knobs: Sequence[Knob], skips: Sequence[Condition] = ()) -> None:
        self._skips = skips
        self._named: dict[str, list[Knob]] = {}
        for knob in knobs:
            self._named.setdefault(knob.name, []).append(knob)
        needs = {
            name: {key for k in given for key in k.when.knobs} & set(self._named) for name, given in self._named.items()
        }
        always = [name for name, given in self._named.items() if given[0].when == ALWAYS]
        self._order = [*always, *(name for name in TopologicalSorter(needs).static_order() if name not in always)]
        self.max_count = math.prod(
            max(len(k.values) for k in given) + (name not in always) for name, given in self._named.items()
        )

    def list_combinations(self, workload: str, node: str) -> Iterator[dict[str, Value] | None]:
        """Yield the knobs of every cell of a workload on a node type; None for a skipped cell."""
        for knobs in self._vary_knobs(workload, node, {}, self._order):
            if any(skip.is_met(workload, node, knobs) for skip in self._skips):
                yield None
            else:
                yield {name: knobs[name] for name in self._named if name in knobs}

    def _vary_knobs(
        self, workload: str, node: str, knobs: dict[str, Value], rest: Sequence[str]
    ) -> Iterator[dict[str, Value]]:
        if not rest:
            yield knobs
            return
        met = next((k for k in self._named[rest[0]] if k.when.is_met(workload, node, knobs)), None)
        for more in [{}] if met is None else [{met.name: value} for value in met.values]:
            yield from self._vary_knobs(workload, node, {**knobs, **more}, rest[1:])


def hash_workload(workload: Workload) -> str:
    """Return a short hash of a workload without its knobs: different commands make different studies."""
    return _hash_data(workload.to_json())[:6]


def _hash_data(data: Mapping[str, Any]) -> str:
    # JSON escapes lone surrogates, which stand for bytes of a command line that are not UTF-8.
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def order_block(keys: Iterable[str], seed: int, repeat: int) -> list[str]:
    """Return the cells of one block in random order. More cells do not change the order of the others."""
    return sorted(keys, key=lambda key: hashlib.sha256(f"{seed}/{repeat}/{key}".encode()).digest())


def order_slots(keys: Iterable[str], seed: int, repeats: int) -> list[tuple[str, int]]:
    """Return (cell, repeat) of every slot, block after block; repeats count from 1."""
    every = list(keys)
    return [(key, repeat) for repeat in range(1, repeats + 1) for key in order_block(every, seed, repeat)]
