"""Change physical parameters of twins from the command line: `gpu.idle_w=30`, `horeka-green:cooling.inlet_c=30`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin.nodefile import parse_node

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from joulelab.twin.nodefile import Description

WHERE = "--set"
ABOUT = ("title", "name", "calibrated", "chosen", "sources")  # describe a node file, not the node
NAMED = ("workloads", "meters", "profiles")  # tables whose tables have names of their own


@dataclass(frozen=True, slots=True)
class ChangedTwin:
    """Hold the text of a node file and its tables that are changed."""

    name: str
    text: str
    changes: Mapping[str, Any]

    def describe(self) -> Description:
        """Return the described node. Raises ConfigError that names the wrong key and the nearest valid one."""
        return parse_node(self.text, f"node {self.name}", self.changes)


@dataclass(frozen=True, slots=True)
class NodeChange:
    """Hold one `[NODE:]KEY=VALUE`: for one node, or for every node that has such a part (`node` empty)."""

    node: str
    keys: tuple[str, ...]
    value: Any
    typed: str


def read_change(typed: str) -> NodeChange:
    """Read `[NODE:]KEY=VALUE`, KEY with dots, VALUE as in TOML or a plain word. Raises ConfigError."""
    target, equals, text = typed.partition("=")
    node, colon, path = target.rpartition(":")
    keys = tuple(key.strip() for key in path.split("."))
    if not equals or not all(keys) or (colon and not node):
        advice = "write it as gpu.idle_w=30 or NODE:gpu.idle_w=30"
        raise ConfigError(f"{typed!r} is not a change", where=WHERE, next=advice)
    if keys[0] in ABOUT:
        advice = "list them: joulelab twin --show NODE"
        raise ConfigError(f"{keys[0]!r} is not a physical parameter", where=WHERE, next=advice)
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return NodeChange(node.strip(), keys, value, typed)


def check_node_name(change: NodeChange, names: Collection[str]) -> None:
    """Refuse a change of a node that is not among some names. Raises ConfigError with the nearest."""
    if change.node and change.node not in names:
        raise ConfigError(f"there is no node {change.node!r}", where=WHERE, next=suggest_name(change.node, names))


def change_twins(
    texts: Mapping[str, str], node_types: Mapping[str, str], changes: Sequence[NodeChange]
) -> dict[str, ChangedTwin]:
    """Return the twins by name with the changes made; `texts` are node files by twin, `node_types` name twins too.

    Raises ConfigError for a node that is not there, a key that no twin has, and a value that is of the wrong kind.
    """
    tables = {name: tomllib.loads(text) for name, text in texts.items()}
    touched: dict[str, set[str]] = {name: set() for name in texts}
    for change in changes:
        check_node_name(change, {*tables, *node_types})
        if change.node:
            chosen = [node_types.get(change.node, change.node)]
        else:  # if none has it, the first one's error names the nearest key
            chosen = [name for name, table in tables.items() if _has_part(table, change.keys)] or list(tables)
        for name in chosen:
            _set_value(tables[name], change.keys, change)
            touched[name].add(change.keys[0])
    twins = {n: ChangedTwin(n, text, {key: tables[n][key] for key in sorted(touched[n])}) for n, text in texts.items()}
    for twin in twins.values():
        twin.describe()
    return twins


def _has_part(table: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    if keys[0] in NAMED:
        return len(keys) > 1 and keys[1] in table.get(keys[0], {})
    return keys[0] != "gpu" or "gpu" in table


def _set_value(table: dict[str, Any], keys: tuple[str, ...], change: NodeChange) -> None:
    """Set a value in a table; in a list of tables in those of that name, or in each."""
    first, *rest = keys
    inner = table.get(first)
    if not rest:
        if isinstance(inner, (dict, list)) and not isinstance(change.value, (dict, list)):
            tables = inner if isinstance(inner, list) else [inner]
            known = dict.fromkeys(key for each in tables if isinstance(each, dict) for key in each)
            advice = suggest_name("", list(known))
            raise ConfigError(f"{change.typed!r} needs a key within {first!r}", where=WHERE, next=advice)
        table[first] = change.value
        return
    if first in NAMED and rest[0] not in table.get(first, {}):
        advice = suggest_name(rest[0], table.get(first, {}))
        raise ConfigError(f"there is no {rest[0]!r} in {first}", where=WHERE, next=advice)
    inner = table.setdefault(first, [] if first == "gpu" else {})
    if isinstance(inner, dict):
        _set_value(inner, tuple(rest), change)
    elif isinstance(inner, list) and inner and all(isinstance(each, dict) for each in inner):
        named = [each for each in inner if len(rest) > 1 and each.get("name") == rest[0]]
        for each in named or inner:
            _set_value(each, tuple(rest[1:] if named else rest), change)
    else:
        raise ConfigError(f"there is nothing to change in {first!r}", where=WHERE, why=f"{change.typed!r}")
