"""Put a node's description into the options of a node type and take it out again: a study keeps what it ran on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.study.nodes import TWIN, NodeType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.folder import Plan
    from joulelab.study.matrix import PlannedCell
    from joulelab.twin.nodefile import Description

# Options of a node type on real hardware that mean the same on its twin.
KEPT = ("gpus",)


def options_of(name: str, described: Description | None = None) -> dict[str, Any]:
    """Return the options of a node type that is a twin: its name, its description, and a hash of that.

    `described` is what `name` (a node of joulelab's own, or a file) says unless given. Raises ConfigError.
    """
    import msgspec

    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.model import Node
    from joulelab.twin.nodefile import find
    from joulelab.twin.workload_progress import Model

    found = described or find(name)
    kinds: dict[str, Any] = {"node": Node, "workloads": dict[str, Model], "meters": dict[str, MountedMeter]}
    # Through the types, so that a number that may be 700 or 700.0 has one form, and one hash.
    plain = {
        key: msgspec.to_builtins(msgspec.convert(msgspec.to_builtins(getattr(found, key)), kind))
        for key, kind in kinds.items()
    }
    text = json.dumps(plain, sort_keys=True)
    return {
        "twin": Path(name).stem if name.endswith(".toml") else name,
        "described": hashlib.sha256(text.encode()).hexdigest()[:8],
        "description": plain,
    }


def description_of(node: NodeType) -> Description:
    """Return the description of the twin that a node type is. Raises ConfigError."""
    import msgspec

    from joulelab.twin.flaws import MountedMeter
    from joulelab.twin.model import Node
    from joulelab.twin.nodefile import Description, find
    from joulelab.twin.workload_progress import Model

    plain = node.options.get("description")
    if plain is None:
        return find(str(node.options.get("twin", "")))
    try:
        return Description(
            msgspec.convert(plain["node"], type=Node),
            workloads=msgspec.convert(plain["workloads"], type=dict[str, Model]),
            meters=msgspec.convert(plain["meters"], type=dict[str, MountedMeter]),
        )
    except (msgspec.ValidationError, KeyError) as error:
        where, then = f"node type {node.name}", "remove the study's folder, or run it by the joulelab that made it"
        raise ConfigError("the twin's description cannot be read", where=where, why=str(error), next=then) from None


def replaced(plan: Plan, twins: Mapping[str, Description | str] | Description | str) -> Plan:
    """Return a plan with its node types on twins: one for all, or each its own by the name of the node type.

    A twin is given by its name, its file, or its description. Raises ConfigError for a node type that there is not.
    """
    from collections.abc import Mapping as Table

    names = list(plan.nodes) or ["local"]
    given = dict(twins) if isinstance(twins, Table) else dict.fromkeys(names, twins)
    wrong = next((name for name in given if name not in names), None)
    if wrong is not None:
        raise ConfigError(f"there is no node type {wrong!r}", where="--twin", next=f"there are {', '.join(names)}")
    made = {name: NodeType(name) for name in names} | dict(plan.nodes)
    made |= {name: _on_twin(made[name], twin) for name, twin in given.items()}
    return replace(plan, nodes=made, cells=[_moved(cell, made) for cell in plan.cells])


def _on_twin(node: NodeType, twin: Description | str) -> NodeType:
    name, described = (twin, None) if isinstance(twin, str) else (twin.node.name, twin)
    kept = {key: node.options[key] for key in KEPT if key in node.options}
    return replace(node, executor=TWIN, options={**kept, **options_of(name, described)})


def _moved(cell: PlannedCell, nodes: Mapping[str, NodeType]) -> PlannedCell:
    workload = cell.workload
    return replace(cell, workload=replace(workload, node=nodes[workload.node_type].identity()))
