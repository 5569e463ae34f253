"""Describe a kind of node for plans: what its maker says of it, what it costs, and the runs that measured it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulelab.plan.toml_tables import TomlTable

KEYS = (
    "rated_w", "gpus", "gpu_w", "host_w", "efficiency", "idle_w", "height_u",
    "price", "lifetime_years", "use", "embodied_kg", "twin", "runs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Hold a kind of node. None where nobody said it; powers are in W.

    `rated_w` is the nameplate at the wall, `gpu_w` the highest cap of a GPU, `host_w` the most that everything but the
    GPUs draws behind the supplies, `efficiency` that of the supplies at load. `use` is the share of its life that it
    works, `embodied_kg` what making it emitted (CO2e). `runs` measured it, `twin` models it.
    """

    name: str
    rated_w: float | None = None
    gpus: int | None = None
    gpu_w: float | None = None
    host_w: float | None = None
    efficiency: float | None = None
    idle_w: float | None = None
    height_u: float | None = None
    price: float | None = None
    lifetime_years: float | None = None
    use: float | None = None
    embodied_kg: float | None = None
    twin: str = ""
    runs: tuple[str, ...] = ()


def read_nodes(table: TomlTable) -> dict[str, NodeKind]:
    """Read [nodes.NAME] tables; what is wrong is noted with the table's problems."""
    found: dict[str, NodeKind] = {}
    for name in table.values:
        one = table.table(name)
        one.allow(KEYS)
        shares = {key: one.positive(key) for key in ("efficiency", "use")}
        for key, share in shares.items():
            if share is not None and share > 1:
                one.wrong(key, f"{key} is {share:g}", next="give a share of at most 1: 0.94")
        plain = ("rated_w", "gpu_w", "host_w", "idle_w", "height_u", "price", "lifetime_years", "embodied_kg")
        found[name] = NodeKind(
            name,
            gpus=one.whole("gpus", 1),
            twin=one.text("twin") or "",
            runs=one.texts("runs") or (),
            **{key: one.positive(key) for key in plain},
            **shares,
        )
    return found
