"""Work out what fans take under another cooling: scaled from what was measured of them, or by a twin's model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from joulelab.analysis.products import product
from joulelab.analysis.terms import Quantity, total
from joulelab.core.errors import ConfigError
from joulelab.planner.cooling.fans import EXHAUST_C, LEAST_POWER, change
from joulelab.twins.points import heating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.analysis.series import Floats
    from joulelab.planner.cooling.fans import Seen, Setting
    from joulelab.planner.draws import Draw, Measured
    from joulelab.twins.model import Node

By = Literal["measured", "speed", "model"]  # fans: their power, their speed, or nothing of them was measured
EFFICIENCY, EFFICIENCY_OFF = 0.94, 0.03  # of supplies that nobody describes, and half of the range it may lie in
STRONGER = 100.0  # so much more air than they can blow is asked of fans, to see what it would take
ABOVE = 1.001


@dataclass(frozen=True, slots=True)
class Load:
    """Hold what a node draws (W): its mean at the wall, and mean and highest over time on `side`, one step as another.

    `twin` names the twin that the runs are of, `rated_w` is the nameplate.
    """

    mean_w: Quantity
    course_w: Floats
    high_w: Floats
    side: str = "ac"
    runs: tuple[str, ...] = ()
    twin: str = ""
    rated_w: float | None = None


@dataclass(frozen=True, slots=True)
class Blown:
    """Hold a cooling's fans: what they take on average (W), by how much mean and highest power at the wall change.

    `full_speed` tells that they cannot blow as much as it takes.
    """

    fans_w: Quantity
    change_w: Quantity
    highest_change_w: float
    full_speed: bool = False


class Fans(Protocol):
    """Tell what fans take."""

    by: By

    def under(self, setting: Setting) -> Blown:
        """Return what they take under a cooling. Raises ConfigError where that cannot be told."""
        ...


class Supplies:
    """Turn power behind the supplies into power at the wall and back, by a node's model or by one efficiency."""

    def __init__(self, node: Node | None, efficiency: float | None) -> None:
        self._knots = node.to_ac() if node is not None and efficiency is None else None
        self.efficiency = efficiency or EFFICIENCY
        self.assumed = self._knots is None and efficiency is None

    def at_wall(self, dc_w: Floats) -> Floats:
        """Return what the cords draw (W)."""
        return dc_w / self.efficiency if self._knots is None else _lines(dc_w, *self._knots)

    def behind(self, ac_w: Floats) -> Floats:
        """Return what leaves the supplies (W)."""
        return ac_w * self.efficiency if self._knots is None else _lines(ac_w, *self._knots[::-1])

    def more(self, ac_w: float, dc_w: Quantity) -> Quantity:
        """Return by how much the power at the wall (W) changes if that behind the supplies does by `dc_w`."""
        there = self.behind(np.array([ac_w]))
        moved = float((self.at_wall(there + dc_w.value) - self.at_wall(there))[0])
        slope = moved / dc_w.value if dc_w.value else 0.0
        terms = {source: u * slope for source, u in dc_w.terms.items()}
        if self.assumed and moved:
            terms["assumed:efficiency"] = -moved * EFFICIENCY_OFF / self.efficiency / math.sqrt(3)
        return Quantity(moved, terms, dc_w.known)


class ScaledFans:
    """Scale what was measured of fans: mean and highest power (W) under the cooling there is.

    `bounds_w` are what they take at rest and at full speed, where that is known.
    """

    def __init__(
        self,
        now: Setting,
        fans_w: tuple[Quantity, float],
        load: Load,
        supplies: Supplies,
        *,
        by: By = "measured",
        exhaust_c: float = EXHAUST_C,
        bounds_w: tuple[float, float] = (0.0, math.inf),
    ) -> None:
        self._now, self._load, self._supplies = now, load, supplies
        self._fans_w, self._highest_w = fans_w
        self._exhaust_c, self._bounds_w, self.by = exhaust_c, bounds_w, by

    def under(self, setting: Setting) -> Blown:
        """Return what they take by the law of fans. Raises ConfigError where the node has none now."""
        by = Quantity(1.0) if setting == self._now else change(self._now, setting, self._exhaust_c)
        wanted = product(self._fans_w, by)
        fans_w = Quantity(0.0) if setting.kind == "immersion" else self._held(wanted)
        more = self._supplies.more(self._load.mean_w.value, fans_w - self._fans_w)
        highest = min(self._highest_w * by.value, self._bounds_w[1]) - self._highest_w
        peak = self._supplies.more(float(np.max(self._load.high_w)), Quantity(highest))
        full = self._highest_w * by.value > ABOVE * self._bounds_w[1]
        return Blown(fans_w, more, peak.value, full)

    def _held(self, wanted: Quantity) -> Quantity:
        """Return a power that fans can take: no less than at rest, no more than at full speed."""
        value = min(max(wanted.value, self._bounds_w[0]), self._bounds_w[1])
        return wanted if value == wanted.value else Quantity(value, known=self._fans_w.known)


class ModelledFans:
    """Ask a twin's model what fans take while a node draws what it did; its accuracy is not known."""

    by: By = "model"

    def __init__(self, node: Node, now: Setting, load: Load) -> None:
        self._node, self._now = node, now
        self._full_w = sum(node.range_w(leaf)[1] for leaf in heating(node.leaves()))
        supplies = Supplies(node, None)
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
        return Blown(drawn, moved_w, peak, self._too_much(setting))

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


def load_of(measured: Sequence[Measured], supplies: Supplies) -> Load:
    """Return what the nodes of runs drew, each weighted by its time. Raises ConfigError where no whole node was."""
    draws = [d for m in measured for d in m.draws]
    sides = {d.side for d in draws}
    if "parts" in sides or len(sides) != 1:
        why = "only parts of the node were measured" if "parts" in sides else "some are at the wall, some behind it"
        raise ConfigError("what the node draws is not known", why=why, next="measure it at the wall, or give --power")
    side = sides.pop()
    seconds = sum(m.result.duration_s * len(m.draws) for m in measured)
    mean_w = total(m.energies([0.0, m.result.duration_s])[0] for m in measured).scaled(1 / seconds)
    if side == "dc":
        mean_w = mean_w.scaled(float(supplies.at_wall(np.array([mean_w.value]))[0]) / mean_w.value)
    return Load(
        mean_w,
        np.concatenate([_even(d) for d in draws]),
        np.concatenate([d.high_w[np.isfinite(d.high_w)] for d in draws]),
        side,
        tuple(dict.fromkeys(d.run for d in draws)),
        next((d.twin for d in draws if d.twin), ""),
        max((d.rated_w for d in draws if d.rated_w is not None), default=None),
    )


def full_load_w(node: Node) -> float:
    """Return what a node draws at the wall (W) with everything at full load, GPUs at their default cap."""
    heat = 0.0
    for leaf in heating(node.leaves()):
        kind, _, number = leaf.partition(":")
        full_w = node.range_w(leaf)[1]
        heat += min(full_w, node.gpus[int(number)].default_cap_w) if kind == "gpu" else full_w
    fans = node.cooling.fans_w(np.array([heat]), sum(node.range_w(leaf)[1] for leaf in heating(node.leaves())))
    return float(_lines(heat + fans, *node.to_ac())[0])


def fans_of_speed(seen: Seen, fan_max_w: float, fan_rpm: float | None, *, known: bool) -> tuple[Quantity, float]:
    """Return mean and highest power of fans (W) whose speed was measured, by its cube.

    `known` is whether somebody states what they take at full speed. Raises ConfigError without the full speed.
    """
    full = fan_rpm if seen.is_rpm else 1.0
    if seen.speed is None or seen.highest_speed is None or full is None:
        raise ConfigError("the full speed of the fans is not known", next="give --fan-rpm, of the maker's data sheet")
    share = min(seen.speed / full, 1.0)
    value = fan_max_w * share**3
    off = (fan_max_w * share**LEAST_POWER - value) / math.sqrt(12)
    return Quantity(value, {"assumed:cube": off}, known), fan_max_w * min(seen.highest_speed / full, 1.0) ** 3


def _even(draw: Draw) -> Floats:
    """Return the means of a draw in steps of about a second, so that runs weigh by their time."""
    means = draw.mean_w[np.isfinite(draw.mean_w)]
    some = max(round(1.0 / draw.step_s), 1)
    if len(means) >= 2 * some > 2:
        means = means[: len(means) // some * some].reshape(-1, some).mean(axis=1)
    return np.repeat(means, max(round(draw.step_s), 1))


def _lines(at: Floats, x: Floats, y: Floats) -> Floats:
    """Return the lines that join points, the last one going on."""
    k = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    return np.asarray(y[k] + (y[k + 1] - y[k]) / (x[k + 1] - x[k]) * (at - x[k]))
