"""Turn power behind a node's supplies into power at the wall and back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.quantity import Quantity
from joulelab.plan.rack.guarantee import EFFICIENCIES

if TYPE_CHECKING:
    from joulelab.analysis.readings import Floats
    from joulelab.twin.model import Node

# Of supplies that nobody describes, and half of the range that it may lie in: what a rack is planned with too.
EFFICIENCY, EFFICIENCY_OFF = sum(EFFICIENCIES) / 2, (EFFICIENCIES[-1] - EFFICIENCIES[0]) / 2
ASSUMED = "assumed:efficiency"


class Supplies:
    """Turn power behind the supplies into power at the wall and back, by a node's model or by one efficiency."""

    def __init__(self, node: Node | None, efficiency: float | None) -> None:
        self._knots = node.to_ac() if node is not None and efficiency is None else None
        self.efficiency = efficiency or EFFICIENCY
        self.assumed = self._knots is None and efficiency is None

    def at_wall(self, dc_w: Floats) -> Floats:
        """Return what the cords draw (W)."""
        return dc_w / self.efficiency if self._knots is None else lines(dc_w, *self._knots)

    def behind(self, ac_w: Floats) -> Floats:
        """Return what leaves the supplies (W)."""
        return ac_w * self.efficiency if self._knots is None else lines(ac_w, *self._knots[::-1])

    def more(self, ac_w: float, dc_w: Quantity) -> Quantity:
        """Return by how much the power at the wall (W) changes if that behind the supplies does by `dc_w`."""
        there = self.behind(np.array([ac_w]))
        moved = float((self.at_wall(there + dc_w.value) - self.at_wall(there))[0])
        slope = moved / dc_w.value if dc_w.value else 0.0
        return self._assuming(replace(dc_w * slope, value=moved))

    def mean_at_wall(self, dc_w: Quantity) -> Quantity:
        """Return a mean power at the wall (W), with what is not known of the supplies; a model's is not known."""
        found = dc_w * (float(self.at_wall(np.array([dc_w.value]))[0]) / dc_w.value)
        return self._assuming(found if self._knots is None else replace(found, known=False))

    def _assuming(self, ac_w: Quantity) -> Quantity:
        if not self.assumed or not ac_w.value:
            return ac_w
        # All that goes through the supplies is off by the same share, so one source stands for it.
        return ac_w + Quantity(0.0, {ASSUMED: -ac_w.value * EFFICIENCY_OFF / self.efficiency / math.sqrt(3)})


def lines(at: Floats, x: Floats, y: Floats) -> Floats:
    """Return the lines that join points, the last one going on."""
    k = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    return np.asarray(y[k] + (y[k + 1] - y[k]) / (x[k + 1] - x[k]) * (at - x[k]))
