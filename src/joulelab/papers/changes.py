"""Change physical parameters of twins from the command line: `gpu.idle_w=30`, `horeka-green:cooling.inlet_c=30`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin.nodefile import parse_node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.twin.nodefile import Description

WHERE = "--set"
ABOUT = ("title", "name", "calibrated", "sources")  # say what a node is, not what it does
NAMED = ("workloads", "meters", "profiles")  # tables whose tables have names of their own


@dataclass(frozen=True, slots=True)
class Twin:
    """Hold the text of a node file and what of its tables is changed."""

    name: str
    text: str
    changes: Mapping[str, Any]

    def description(self) -> Description:
        """Return the node that it describes. Raises ConfigError that names the wrong key and the nearest valid one."""
        return parse_node(self.text, f"node {self.name}", self.changes)

    def given(self) -> Description | str:
        """Return what a study is to run on: the twin's name where nothing is changed."""
        return self.description() if self.changes else self.name


@dataclass(frozen=True, slots=True)
class Change:
    """Hold one `[NODE:]KEY=VALUE`: for one node, or for every node that has such a part (`node` empty)."""

    node: str
    keys: tuple[str, ...]
    value: Any
    typed: str


def read_change(typed: str) -> Change:
    """Read `[NODE:]KEY=VALUE`, KEY with dots, VALUE as in TOML or a plain word. Raises ConfigError."""
    target, equals, value = typed.partition("=")
    node, colon, path = target.rpartition(":")
    keys = tuple(key.strip() for key in path.split("."))
    if not equals or not all(keys) or (colon and not node):
        raise ConfigError(
            f"{typed!r} is no change", where=WHERE, next="write it as gpu.idle_w=30 or NODE:gpu.idle_w=30"
        )
    if keys[0] in ABOUT:
        raise ConfigError(
            f"{keys[0]!r} is no physical parameter", where=WHERE, next="joulelab twin --show NODE lists them"
        )
    return Change(node.strip(), keys, _value(value.strip()), typed)


def changed(texts: Mapping[str, str], node_types: Mapping[str, str], changes: Sequence[Change]) -> dict[str, Twin]:
    """Return the twins by name with the changes made; `texts` are node files by twin, `node_types` name twins too.

    Raises ConfigError for a node that is not there, a key that no twin has, and a value that is of the wrong kind.
    """
    tables = {name: tomllib.loads(text) for name, text in texts.items()}
    touched: dict[str, set[str]] = {name: set() for name in texts}
    for change in changes:
        chosen = _chosen(change, tables, node_types)
        for name in chosen:
            _put(tables[name], change.keys, change)
            touched[name].add(change.keys[0])
    twins = {n: Twin(n, text, {key: tables[n][key] for key in sorted(touched[n])}) for n, text in texts.items()}
    for twin in twins.values():
        twin.description()
    return twins


def _chosen(change: Change, tables: Mapping[str, dict[str, Any]], node_types: Mapping[str, str]) -> list[str]:
    """Return which twins a change is for."""
    if change.node:
        name = node_types.get(change.node, change.node)
        if name not in tables:
            raise ConfigError(
                f"there is no node {change.node!r}", where=WHERE, next=suggest_name(change.node, {*tables, *node_types})
            )
        return [name]
    having = [name for name, table in tables.items() if _has(table, change.keys)]
    return having or list(tables)  # none has it: the first will say so


def _has(table: Mapping[str, Any], keys: tuple[str, ...]) -> bool:
    if keys[0] in NAMED:
        return len(keys) > 1 and keys[1] in table.get(keys[0], {})
    return keys[0] != "gpu" or "gpu" in table


def _put(table: dict[str, Any], keys: tuple[str, ...], change: Change) -> None:
    """Set a value in a table; in a list of tables in those of that name, or in each."""
    first, *rest = keys
    if not rest:
        if isinstance(table.get(first), (dict, list)) and not isinstance(change.value, (dict, list)):
            raise ConfigError(
                f"{change.typed!r} needs a key within {first!r}",
                where=WHERE,
                next=suggest_name("", _keys(table[first])),
            )
        table[first] = change.value
        return
    if first in NAMED and rest[0] not in table.get(first, {}):
        raise ConfigError(
            f"there is no {rest[0]!r} in {first}", where=WHERE, next=suggest_name(rest[0], table.get(first, {}))
        )
    inner = table.setdefault(first, [] if first == "gpu" else {})
    if isinstance(inner, dict):
        _put(inner, tuple(rest), change)
    elif isinstance(inner, list) and inner and all(isinstance(each, dict) for each in inner):
        _put_each(inner, tuple(rest), change)
    else:
        raise ConfigError(f"there is nothing to change in {first!r}", where=WHERE, why=f"{change.typed!r}")


def _put_each(tables: list[dict[str, Any]], keys: tuple[str, ...], change: Change) -> None:
    named = [each for each in tables if len(keys) > 1 and each.get("name") == keys[0]]
    for each in named or tables:
        _put(each, keys[1:] if named else keys, change)


def _keys(inner: Any) -> list[str]:
    tables = inner if isinstance(inner, list) else [inner]
    return list(dict.fromkeys(key for table in tables if isinstance(table, dict) for key in table))


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
