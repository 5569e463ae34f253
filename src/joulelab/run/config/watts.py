"""Read the watts that somebody decided on: a node's rated and planned power, and what supplies can give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.run.config.entry import Source
from joulelab.run.config.lines import line_of

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.run.config.entry import Config

# The keys of [node] in W, and what they mean.
NODE = {
    "rated_w": "what the maker rates the whole node at (nameplate)",
    "planned_w": "what the rack's plan allows it",
}
MOST_W = 1e9


def read_node(file: Path, table: Any, text: str, host: str, config: Config) -> None:
    """Take [node] over if it is for this host; what is wrong goes to the problems."""
    from joulelab.instruments import nearest
    from joulelab.run.config.check import is_for

    if not isinstance(table, dict):
        config.problems.append(_no_table(file, "node", "rated_w = 10200"))
        return
    patterns = table.get("node", "*")
    if not isinstance(patterns, str) and not (isinstance(patterns, list) and all(isinstance(p, str) for p in patterns)):
        where = str(Source(file, line_of(text, "node", "node")))
        then = 'give a host\'s name or a pattern: "node07", "gpu*"'
        config.problems.append(ConfigError(f"node is {patterns!r}", where=where, next=then))
        return
    for key, value in table.items():
        where = str(Source(file, line_of(text, "node", key)))
        if key == "node":
            continue
        if key not in NODE:
            then = nearest(key, [*NODE, "node"])
            config.problems.append(ConfigError(f"unknown key {key!r}", where=where, next=then))
        elif not _is_watts(value):
            config.problems.append(_no_watts(key, value, where))
        elif is_for(patterns, host):
            config.node[key] = float(value)


def read_supply(file: Path, table: Any, text: str, config: Config) -> None:
    """Take [supply] over: scopes and the watts that may be drawn there; what is wrong goes to the problems."""
    from joulelab.instruments.wall import check_scope

    if not isinstance(table, dict):
        config.problems.append(_no_table(file, "supply", "rack = 17300"))
        return
    for scope, value in table.items():
        where = str(Source(file, line_of(text, "supply", scope)))
        if isinstance(value, dict):  # node.ac = 1 without quotes is a table in TOML
            inside = next(iter(value), "")
            then = f'write "{scope}.{inside}" in quotation marks'
            config.problems.append(ConfigError(f"supply of {scope!r} is a table", where=where, next=then))
            continue
        if not _is_watts(value):
            config.problems.append(_no_watts(scope, value, where))
            continue
        try:
            config.supply[check_scope(scope, where, also=("phase", "bank", "input"))] = float(value)
        except ConfigError as problem:
            config.problems.append(problem)


def _is_watts(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value <= MOST_W


def _no_watts(key: str, value: Any, where: str) -> ConfigError:
    return ConfigError(f"{key} is {value!r}", where=where, next="give a number of watts above 0")


def _no_table(file: Path, name: str, example: str) -> ConfigError:
    return ConfigError(f"{name} is not a table", where=str(file), next=f"write [{name}] and under it {example}")
