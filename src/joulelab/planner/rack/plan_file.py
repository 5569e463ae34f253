"""Read the part of a plan file that a rack needs, with what the command line says on top, and write it back."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.config.problems import Problems, Table, read_toml
from joulelab.config.write import toml
from joulelab.core.errors import ConfigError
from joulelab.meters import nearest
from joulelab.planner.nodes import NodeKind, read_nodes
from joulelab.planner.rack.facility import read_rack
from joulelab.planner.rack.mix import read_mix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.planner.rack.facility import Rack
    from joulelab.planner.rack.mix import Job

TOP = ("title", "rack", "nodes", "mix", "sites", "work", "schedule")
NODE = "node"  # what a kind of node is called that has no name
MADE = "# A plan of joulelab: joulelab plan rack --plan FILE"


@dataclass(frozen=True)
class RackPlan:
    """Hold a rack, the kind of node in it, the jobs on it, and the whole file as plain data."""

    title: str
    rack: Rack
    kind: NodeKind
    jobs: tuple[Job, ...]
    nodes: Mapping[str, NodeKind]
    values: Mapping[str, Any]


def read_rack_plan(path: Path | None, given: Mapping[str, Any], node: Mapping[str, Any]) -> RackPlan:
    """Read a plan file, if there is one; `given` goes over its [rack], `node` over its kind of node.

    Raises ConfigError with all that is wrong.
    """
    text, values = ("", {}) if path is None else read_toml(path, "plan file")
    values = deepcopy(values)
    problems = Problems("the command line" if path is None else str(path), text)
    name = _named(values)
    _over(values, ("rack",), given)
    _over(values, ("nodes", name), node)
    top = Table(values, (), problems)
    top.allow(TOP)
    if path is not None and "rack" not in values:
        problems.add((), "the plan has no [rack]", next="add it: [rack] with supply_w = 70000")
    problems.check()
    rack, nodes, jobs = read_rack(top.table("rack")), read_nodes(top.table("nodes")), read_mix(top.tables("mix"))
    title = top.text("title") or ""
    problems.check()
    return RackPlan(title, rack, kind_of(rack, nodes), jobs, nodes, values)


def kind_of(rack: Rack, nodes: Mapping[str, NodeKind]) -> NodeKind:
    """Return the kind of node that a rack is planned with. Raises ConfigError where that is not clear."""
    if rack.node:
        if rack.node not in nodes:
            raise ConfigError(
                f"there is no [nodes.{rack.node}]", where="[rack] node", next=nearest(rack.node, [*nodes])
            )
        return nodes[rack.node]
    if len(nodes) > 1:
        then = f'add node = "{next(iter(nodes))}" to it'
        raise ConfigError("the plan has several kinds of node", where="[rack]", why=", ".join(nodes), next=then)
    return next(iter(nodes.values()), NodeKind(NODE))


def to_toml(values: Mapping[str, Any]) -> str:
    """Return plain data as a plan file."""
    return f"{MADE}\n{_written(values, ())}"


def _named(values: Mapping[str, Any]) -> str:
    """Return the name of the kind of node that the command line speaks of."""
    rack, nodes = values.get("rack"), values.get("nodes")
    if isinstance(rack, dict) and isinstance(rack.get("node"), str):
        return str(rack["node"])
    return str(next(iter(nodes))) if isinstance(nodes, dict) and nodes else NODE


def _over(values: dict[str, Any], at: Sequence[str], given: Mapping[str, Any]) -> None:
    """Put what is given over what a file says; what cannot be a table is left for the reader to refuse."""
    if not given:
        return
    table: Any = values
    for name in at:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            return
    for key, value in given.items():
        if isinstance(value, dict):
            _over(table, (key,), value)
        else:
            table[key] = value


def _written(values: Mapping[str, Any], at: tuple[str, ...]) -> str:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    # Feeds are short: a line for each is easier to read than a table of its own.
    lists = {key: value for key, value in values.items() if _tables(value) and key != "feeds"}
    lines = [f"{_name(key)} = {_value(value)}" for key, value in values.items() if key not in {*tables, *lists}]
    head = [f"\n[{'.'.join(map(_name, at))}]"] if at and (lines or not (tables or lists)) else []
    text = "".join(f"{line}\n" for line in [*head, *lines])
    for key, each in lists.items():
        for one in each:
            inside = "".join(f"{_name(name)} = {_value(value)}\n" for name, value in one.items())
            text += f"\n[[{'.'.join(map(_name, (*at, key)))}]]\n{inside}"
    return text + "".join(_written(value, (*at, key)) for key, value in tables.items())


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _value(value: Any) -> str:
    if _tables(value):
        return "[\n" + "".join(f"  {toml(one)},\n" for one in value) + "]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return toml(value)


def _name(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else toml(key)
