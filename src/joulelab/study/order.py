"""Put slots in order: in blocks, each with every cell once, in an order of its own that a seed decides."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def order_block(keys: Iterable[str], seed: int, repeat: int) -> list[str]:
    """Return the cells of one block in random order. Cells that are added later do not change how others follow."""
    return sorted(keys, key=lambda key: hashlib.sha256(f"{seed}/{repeat}/{key}".encode()).digest())


def order_slots(keys: Iterable[str], seed: int, repeats: int) -> list[tuple[str, int]]:
    """Return (cell, repeat) of every slot, block after block; repeats count from 1."""
    every = list(keys)
    return [(key, repeat) for repeat in range(1, repeats + 1) for key in order_block(every, seed, repeat)]
