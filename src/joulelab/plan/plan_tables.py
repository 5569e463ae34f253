"""The tables of a plan file that several questions use: one table with its place, and kinds of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.toml_reading import TEXTS, Mistakes, declare_key, describe_keys, read_table, read_texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.core.toml_reading import Place

__all__ = ["Mistakes", "NodeKind", "TomlTable", "read_nodes"]

SHARE = "give a share of at most 1: 0.94"


@dataclass(frozen=True, slots=True)
class TomlTable:
    """Hold a table of a file, its place, and the mistakes of the file; a wrong value counts as missing."""

    values: Mapping[str, Any]
    at: Place
    problems: Mistakes

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def wrong(self, key: str, what: str, *, why: str | None = None, next: str | None = None) -> None:
        """Add a mistake at a key, or at the whole table if the key is empty."""
        self.problems.add((*self.at, key) if key else self.at, what, why=why, next=next)


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Hold a kind of node, [nodes.NAME]; None if not given. Powers are in W, `embodied_kg` in kg CO2e."""

    name: str
    rated_w: float | None = declare_key(None, "nameplate at the wall, W", above=0)
    gpus: int | None = declare_key(None, "GPUs", least=1)
    gpu_w: float | None = declare_key(None, "highest cap of a GPU, W", above=0)
    host_w: float | None = declare_key(None, "highest power of the rest, behind the supplies, W", above=0)
    efficiency: float | None = declare_key(None, "of the supplies under load", above=0, most=1, advice=SHARE)
    idle_w: float | None = declare_key(None, "power of an idle node, W", above=0)
    height_u: float | None = declare_key(None, "height, U", above=0)
    price: float | None = declare_key(None, "price of a node", above=0)
    lifetime_years: float | None = declare_key(None, "lifetime, years", above=0)
    use: float | None = declare_key(None, "share of its life that it works", above=0, most=1, advice=SHARE)
    embodied_kg: float | None = declare_key(None, "emissions of its production, kg CO2e", above=0)
    twin: str = declare_key("", "model of the node: bnl-h100, mine.toml")
    runs: tuple[str, ...] = declare_key((), "runs that measured it", read=read_texts, advice=TEXTS)


def read_nodes(table: TomlTable) -> dict[str, NodeKind]:
    """Read [nodes.NAME] tables; mistakes are added to those of the file."""
    found: dict[str, NodeKind] = {}
    for name, values in table.values.items():
        place = (*table.at, name)
        if not isinstance(values, dict):
            table.problems.add_wrong(place, values, f"write it as a table: [nodes.{name}]")
            continue
        if "name" in values:
            table.problems.refuse_key(place, "name", [key for key in describe_keys(NodeKind) if key != "name"])
        rest = {key: value for key, value in values.items() if key != "name"}
        found[name] = read_table(NodeKind, rest, table.problems, place, base=NodeKind(name)) or NodeKind(name)
    return found
