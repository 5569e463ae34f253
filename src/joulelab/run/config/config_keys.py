"""Declare the tables of `joulelab.toml`: their keys, what each means, and what may stand behind it.

A run waits for these classes: they have only the methods that are needed, which takes a third of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from joulelab.core.reading import key, read_texts

MOST_W = 1e9
WATTS = "give a number of watts above 0"
SUPPLY = f'{WATTS}; a scope with a dot is written in quotation marks: "node.ac" = 11000'
HOSTS = 'give a host\'s name or a pattern: "node07", "gpu*"'


def _seconds(doc: str, least: float = 0.0) -> Any:
    return key(None, doc, least=least, advice=f"give a number of seconds, {least:g} or more")


@dataclass(repr=False, eq=False)
class RunTable:
    """Hold the defaults of a run, in s."""

    period_s: float | None = _seconds("seconds between readings", 0.001)
    idle_s: float | None = _seconds("seconds to measure before the command starts")
    tail_s: float | None = _seconds("seconds to measure after it has ended")


@dataclass(repr=False, eq=False)
class NodeTable:
    """Hold the power of a node that somebody decided on, in W, and the hosts that it is for."""

    node: tuple[str, ...] = key(("*",), "the hosts that this is for: names or patterns", read=read_texts, advice=HOSTS)
    rated_w: float | None = key(None, "what the maker rates the whole node at", above=0, most=MOST_W, advice=WATTS)
    planned_w: float | None = key(None, "what the rack's plan allows it", above=0, most=MOST_W, advice=WATTS)


@dataclass(repr=False, eq=False)
class EntryKeys:
    """Hold the keys of an entry `[meters.NAME]` that are for the configuration itself; all others are the meter's."""

    meter: str | None = key(
        None, "its module, unless the entry has the name of one", advice='give a name: meter = "snmp"'
    )
    node: tuple[str, ...] = key(("*",), "the hosts that it is for: names or patterns", read=read_texts, advice=HOSTS)
    enabled: bool = key(True, "false switches it off")
    cord: bool = key(False, "true: it measures one of several cords of what it feeds")


@dataclass(repr=False, eq=False)
class ConfigFile:
    """Hold a `joulelab.toml`."""

    meters: dict[str, dict[str, Any]] = key(dict, "entries of meters by their names: [meters.pdu1]")
    run: RunTable = field(default_factory=RunTable)
    node: NodeTable = field(default_factory=NodeTable)
    supply: dict[str, float] = key(dict, "the watts that may be drawn, by scope", above=0, most=MOST_W, advice=SUPPLY)
