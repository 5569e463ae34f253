"""Derive the points of a node from its leaves: fans by heat, DC with them, AC through the supply, its cords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from joulelab.twin.power_pieces import Curve, total

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulelab.twin.model import Node

CORD_POINTS: Final = {"outlet": "node.ac", "psu": "node.ac", "psu.dc": "node.dc"}
# What the leaves make together; `psys` is summed from those that it has.
WHOLE: Final = ("fans", "node.dc", "node.ac")


def names(node: Node) -> list[str]:
    """Return all points that have a power."""
    cords = range(1, len(node.supply.cords) + 1)
    return [*node.leaves(), "psys", *WHOLE, *(f"{kind}:{n}" for kind in CORD_POINTS for n in cords)]


def heating(leaves: Iterable[str]) -> list[str]:
    """Return the leaves that add up to what the node draws without its fans: cores are in their packages."""
    return [leaf for leaf in leaves if not leaf.startswith("core")]


def share(node: Node, point: str) -> tuple[float, str]:
    """Return a cord's share and what it is a share of; all of the point itself for any other."""
    kind, _, number = point.partition(":")
    if kind not in CORD_POINTS or point not in names(node):
        return 1.0, point
    return node.supply.cords[int(number) - 1], CORD_POINTS[kind]


class Whole:
    """Keep fans, DC and AC of a node as curves."""

    def __init__(self, node: Node) -> None:
        heat, dc = node.to_dc()
        self._fans, self._dc, self._ac = (heat, dc - heat), (heat, dc), node.to_ac()
        self.curves = {point: Curve() for point in WHOLE}

    def replace_from(self, leaves: list[Curve], from_ns: int) -> None:
        """Take what the leaves (those of `heating`) draw from a time on."""
        heat = total(leaves, from_ns)
        dc = heat.mapped(*self._dc)
        self.curves["fans"].replace_from(heat.mapped(*self._fans))
        self.curves["node.dc"].replace_from(dc)
        self.curves["node.ac"].replace_from(dc.mapped(*self._ac))
