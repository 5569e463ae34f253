"""Tell by its name whether a sensor shows the power of a whole node: each word has to be one that says so."""

from __future__ import annotations

import re

# With any other word or a number (CPU, board, limit, max, budget, output, 2) it may be a part, or no present power.
_POWERS = (
    r"power|pwr|watts?|meter|measures|consum(?:ption?|pt|ed)?|usage|draw|reading|sensor|monitor|domain|in|ac|of|the"
)
_WHOLES = r"system|sys|server|node|chassis|enclosure|platform|total|input"
_NODE = re.compile(rf"(?:(?:{_POWERS}|{_WHOLES})[\W_0]*)+", re.IGNORECASE)
_STATED = re.compile(rf"{_WHOLES}|meter|consum", re.IGNORECASE)
_POWER = re.compile(r"power|pwr|watt|meter", re.IGNORECASE)


def names_node_power(name: str) -> bool:
    """Return whether a name says power and whole node (`Sys Power`, `Pwr Consumption`), and nothing else."""
    return all(pattern.search(name) for pattern in (_STATED, _POWER)) and bool(_NODE.fullmatch(name))
