"""Work out what fans take under another cooling: scaled from what was measured of them, or by a twin's model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import COVERAGE_FACTOR, Quantity
from joulelab.plan.cooling.fans import EXHAUST_C, LEAST_POWER, change
from joulelab.twin.power_curves import list_heating_leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.cooling.fans import Seen, Setting
    from joulelab.plan.cooling.pooled import Highest, Load
    from joulelab.plan.cooling.supplies import Supplies
    from joulelab.twin.model import Node

By = Literal["measured", "speed", "model"]  # fans: their power, their speed, or nothing of them was measured
STRONGER = 100.0  # so much more air than they can blow is asked of fans, to see what it would take
ABOVE = 1.001
BEYOND_SEEN = 1.5  # times what was seen of fans, the law is no longer trusted where nobody tells their full power


@dataclass(frozen=True, slots=True)
class Blown:
    """Hold a cooling's fans: what they take on average (W), by how much the mean power at the wall changes.

    `highest_w` is the node's highest power at the wall then, as it was read, `upper_w` what it may be by all that is
    known. `full_speed` tells that fans cannot blow as much as it takes, `beyond_seen` that they would have to draw far
    more than anybody saw, and nobody told whether they can.
    """

    fans_w: Quantity
    change_w: Quantity
    highest_w: float
    upper_w: float
    full_speed: bool = False
    beyond_seen: bool = False


class Fans(Protocol):
    """Tell what fans take."""

    by: By

    def under(self, setting: Setting) -> Blown:
        """Return what they take under a cooling. Raises ConfigError where that cannot be told."""
        ...


@dataclass(frozen=True, slots=True)
class Drawn:
    """Hold what fans took (W): on average, the highest in each run. `idle_w` and `full_w` are what they can take."""

    mean_w: Quantity
    highest_w: tuple[float, ...]
    idle_w: float = 0.0
    full_w: float = math.inf


class ScaledFans:
    """Scale what was measured of fans under the cooling there is."""

    def __init__(
        self,
        now: Setting,
        drawn: Drawn,
        load: Load,
        supplies: Supplies,
        *,
        by: By = "measured",
        exhaust_c: float = EXHAUST_C,
    ) -> None:
        self._now, self._drawn, self._load, self._supplies = now, drawn, load, supplies
        self._exhaust_c, self.by = exhaust_c, by

    def under(self, setting: Setting) -> Blown:
        """Return what they take by the law of fans. Raises ConfigError where the node has none now."""
        drawn, same = self._drawn, setting == self._now
        by = Quantity(1.0) if same else change(self._now, setting, self._exhaust_c)
        beyond = math.isinf(drawn.full_w) and by.value > BEYOND_SEEN
        if beyond:  # the law's own figure stands, as the count of nodes must not be too high
            by = replace(by, known=False)
        fans_w = drawn.mean_w if same else self._held(drawn.mean_w * by, setting)
        more = self._supplies.more(self._load.mean_w.value, fans_w - drawn.mean_w)
        peaks = [
            self._peak(one, fans, Quantity(fans) if same else self._held(by * fans, setting))
            for one, fans in zip(self._load.highest, drawn.highest_w, strict=True)
        ]
        full = max(drawn.highest_w) * by.value > ABOVE * drawn.full_w
        highest_w, upper_w = (max(watts) for watts in zip(*peaks, strict=True))
        return Blown(fans_w, more, highest_w, upper_w, full, beyond)

    def _peak(self, highest: Highest, before_w: float, then_w: Quantity) -> tuple[float, float]:
        """Return a run's highest power as read and at most (W) with other fans at that moment."""
        moved = self._supplies.more(highest.read_w, then_w - Quantity(before_w))
        off_w = math.hypot(highest.upper_w - highest.read_w, COVERAGE_FACTOR * moved.u)
        return highest.read_w + moved.value, highest.read_w + moved.value + off_w

    def _held(self, wanted: Quantity, setting: Setting) -> Quantity:
        """Return a power that fans can take: no less than at rest, no more than at full speed."""
        if setting.kind == "immersion":
            return Quantity(0.0)
        drawn = self._drawn
        value = min(max(wanted.value, drawn.idle_w), drawn.full_w)
        return wanted if value == wanted.value else Quantity(value, known=drawn.mean_w.known)


class ModelledFans:
    """Ask a twin's model what fans take while a node draws what it did; its accuracy is not known."""

    by: By = "model"

    def __init__(self, node: Node, now: Setting, load: Load, supplies: Supplies) -> None:
        self._node, self._now, self._load = node, now, load
        self._full_w = _full_heat_w(node)
        behind = [w if load.side == "dc" else supplies.behind(w) for w in (load.course_w, load.high_w)]
        self._heat, self._high = (self._heat_of(w) for w in behind)
        self._supplies = supplies

    def under(self, setting: Setting) -> Blown:
        """Return what they take by the model."""
        fans, before = self._fans(setting, self._heat), self._fans(self._now, self._heat)
        highest, highest_before = self._fans(setting, self._high), self._fans(self._now, self._high)
        wall = self._supplies.at_wall
        moved = float(np.mean(wall(self._heat + fans) - wall(self._heat + before)))
        peak = float(np.max(wall(self._high + highest)) - np.max(wall(self._high + highest_before)))
        drawn = Quantity(float(np.mean(fans)), known=setting.kind == "immersion")
        moved_w = Quantity(moved, known=setting == self._now)  # no change at all is sure
        return Blown(drawn, moved_w, self._load.read_w + peak, self._load.upper_w + peak, self._too_much(setting))

    def _fans(self, setting: Setting, heat_w: Floats) -> Floats:
        if setting.kind == "immersion":
            return np.zeros_like(heat_w)
        cooling = replace(self._node.cooling, kind=setting.kind, inlet_c=setting.inlet_c)
        return cooling.fans_w(heat_w, self._full_w)

    def _heat_of(self, dc_w: Floats) -> Floats:
        """Return the heat of a node without its fans (W) that draws so much behind its supplies now."""
        heat = np.linspace(0.0, 2.0 * self._full_w, 4001)
        return np.interp(dc_w, heat + self._fans(self._now, heat), heat)

    def _too_much(self, setting: Setting) -> bool:
        """Return whether the highest heat takes more air than fans at full speed blow."""
        if setting.kind == "immersion":
            return False
        own = self._node.cooling
        strong = replace(
            own, kind=setting.kind, inlet_c=setting.inlet_c, fan_idle_w=0.0, fan_max_w=own.fan_max_w * STRONGER**3,
            rated_heat_w=(own.rated_heat_w or self._full_w) * STRONGER,
        )  # fmt: skip
        wanted = float(strong.fans_w(np.array([np.max(self._high)]), self._full_w)[0])
        return wanted > ABOVE * own.fan_max_w


def full_load_w(node: Node, supplies: Supplies) -> float:
    """Return what a node draws at the wall (W) with everything at full load, GPUs at their default cap."""
    heat = 0.0
    for leaf in list_heating_leaves(node.list_leaves()):
        kind, _, number = leaf.partition(":")
        full_w = node.range_w(leaf)[1]
        heat += min(full_w, node.gpus[int(number)].default_cap_w) if kind == "gpu" else full_w
    fans = node.cooling.fans_w(np.array([heat]), _full_heat_w(node))
    return float(supplies.at_wall(heat + fans)[0])


def fans_of_speed(
    seen: Seen, own: Sequence[Seen], fan_max_w: float, fan_rpm: float | None, *, known: bool
) -> tuple[Quantity, tuple[float, ...]]:
    """Return the mean power of fans (W) whose speed was measured, by its cube, and the highest of each run.

    `seen` is that of all runs, `own` that of each; `known` is whether somebody states what fans take at full speed.
    Raises ConfigError without the full speed.
    """
    full = fan_rpm if seen.is_rpm else 1.0
    if seen.speed is None or full is None:
        raise ConfigError("the full speed of the fans is not known", next="give --fan-rpm, of the maker's data sheet")
    share = min(seen.speed / full, 1.0)
    value = fan_max_w * share**3
    off = (fan_max_w * share**LEAST_POWER - value) / math.sqrt(12)
    highest = tuple(fan_max_w * min((one.highest_speed or seen.speed) / full, 1.0) ** 3 for one in own)
    return Quantity(value, {"assumed:cube": off}, known), highest


def _full_heat_w(node: Node) -> float:
    return sum(node.range_w(leaf)[1] for leaf in list_heating_leaves(node.list_leaves()))
