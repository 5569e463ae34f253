"""Read what the three papers printed: joulelab's own copy of the numbers, as data."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Numbers that say how a study was set up, not what it found; those of a paper's own are in its `not_figures`.
SETUP: Mapping[str, str] = {
    "bnl.rated_w": "setup: the nameplate",
    "bnl.sample_period_s": "setup: the PDU's period",
    "bnl.cooling.*": "setup: water and air",
    "bnl.rack_supply_w": "setup: the rack",
    "bnl.rack_nodes": "setup: the rack",
    "bnl.run.*.batch_size": "setup: a knob",
    "bnl.run.*.epochs": "setup: the length of training",
    "horeka.repeats": "setup: repeats",
    "horeka.train_epochs.*": "setup: the length of training",
    "horeka.predict_repeats.*": "setup: how often test samples are predicted",
    "horeka.health_full_train.epochs": "setup: the length of training",
    "gdansk.caps_w.*": "setup: the caps that were tried",
    "gdansk.gpu_counts.*": "setup: a knob",
    "gdansk.repeats": "setup: repeats",
    "gdansk.ambient_c": "setup: the room",
    "gdansk.logical_cpus": "setup: the node",
}


def published(paper: str) -> dict[str, Any]:
    """Return the table of a paper (`bnl`, `horeka`, `gdansk`)."""
    table: dict[str, Any] = everything()[paper]
    return table


def everything() -> dict[str, Any]:
    """Return all tables."""
    file = resources.files("joulelab.papers") / "published.toml"
    return tomllib.loads(file.read_text("utf-8"))


def leaves(table: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return every value with the keys that lead to it; places of a list are keys too."""
    inner = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else None
    if inner is None:
        yield path, table
        return
    for key, value in inner:
        yield from leaves(value, (*path, str(key)))
