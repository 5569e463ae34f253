"""Find what a run says of fans and inlet air, and how the power of fans changes with the cooling.

Fans blow as much air as carries the heat off between inlet and exhaust, and their power goes with the cube of that. It
is what a twin's model says too; here it scales what was measured, with the ranges in which each of its numbers may lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.twin.model import DOOR, LIQUID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.core.spec import Spec
    from joulelab.store.run_reader import Run, TableInfo

CoolingKind = Literal["air", "rear-door", "direct-to-chip", "immersion"]
KINDS: tuple[CoolingKind, ...] = ("air", "rear-door", "direct-to-chip", "immersion")
EXHAUST_C = 45.0
CUBE = 3.0
# Half of the ranges that the numbers of the law are taken to lie in; the power of the speed only falls short of 3.
EXHAUST_OFF_C, WATER_OFF, DOOR_OFF, LEAST_POWER = 5.0, 0.10, 0.10, 2.5
LEAST_RISE_C = 2.0  # air that gets no warmer carries nothing off
FANS = ("fan", "fans")
INLET_C = (-40.0, 60.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """Name a way of cooling and the temperature of the air at the inlet (degrees Celsius)."""

    kind: CoolingKind
    inlet_c: float


@dataclass(frozen=True, slots=True)
class Law:
    """Hold the numbers by which fans follow the cooling: exhaust (degrees Celsius), shares, the power of the speed."""

    exhaust_c: float = EXHAUST_C
    water: float = LIQUID["direct-to-chip"]
    door: float = DOOR["rear-door"]
    power: float = CUBE

    def drawn(self, setting: Setting) -> float:
        """Return what fans draw for some heat, in a unit of its own. Raises ConfigError for air that is too warm."""
        if setting.kind == "immersion":
            return 0.0
        rise = self.exhaust_c - setting.inlet_c
        if rise < LEAST_RISE_C:
            why = f"the air leaves at {self.exhaust_c:g} °C: it would carry nothing off"
            raise ConfigError(
                f"an inlet of {setting.inlet_c:g} °C is too warm", why=why, next="give --exhaust, or less"
            )
        air = 1 - self.water if setting.kind == "direct-to-chip" else 1.0
        door = self.door if setting.kind == "rear-door" else 1.0
        return float(door * (air / rise) ** self.power)

    def factor(self, now: Setting, then: Setting) -> float:
        """Return by which factor the power of fans changes. Raises ConfigError where there are none now."""
        if now.kind == "immersion":
            raise ConfigError(
                "fans that are not there cannot be scaled", why="the node is immersed", next="give --node"
            )
        return self.drawn(then) / self.drawn(now)


def change(now: Setting, then: Setting, exhaust_c: float = EXHAUST_C) -> Quantity:
    """Return by which factor the power of fans changes, with the ranges of what is assumed. Raises ConfigError."""
    law = Law(exhaust_c)
    value = law.factor(now, then)
    warmest = max(s.inlet_c for s in (now, then) if s.kind != "immersion")
    least_c = max(exhaust_c - EXHAUST_OFF_C, warmest + LEAST_RISE_C)
    ranges = {
        "exhaust": (Law(least_c), Law(exhaust_c + EXHAUST_OFF_C)),
        "water": (Law(exhaust_c, law.water - WATER_OFF), Law(exhaust_c, law.water + WATER_OFF)),
        "door": (Law(exhaust_c, door=law.door - DOOR_OFF), Law(exhaust_c, door=law.door + DOOR_OFF)),
        "cube": (law, Law(exhaust_c, power=LEAST_POWER)),
    }
    wide = {name: (b.factor(now, then) - a.factor(now, then)) / math.sqrt(12) for name, (a, b) in ranges.items()}
    return Quantity(value, {f"assumed:{name}": u for name, u in wide.items() if u})


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold what a run measured of the cooling of its nodes; None where it did not.

    `power_w` is what the fans of a node drew on average, `highest_w` at most. `speed` is that at which they would have
    drawn so much all the time (the mean of cubes), `highest_speed` the highest of all: rpm, or shares of full speed.
    """

    power_w: Quantity | None = None
    highest_w: float | None = None
    speed: float | None = None
    highest_speed: float | None = None
    is_rpm: bool = False
    inlet_c: float | None = None


def seen_of(run: Run, start_ns: int, end_ns: int) -> Seen:
    """Read fans and inlet of a run between two times."""
    powers: dict[str, list[tuple[Spec, Floats]]] = {}
    speeds: dict[str, list[Floats]] = {"rpm": [], "1": []}
    inlets: list[float] = []
    for info, spec, values in _channels(run, start_ns, end_ns):
        if spec.kind == "power":
            powers.setdefault(info.host, []).append((spec, values))
        elif spec.name.startswith("fan"):
            speeds.setdefault(spec.unit, []).append(values)
        elif INLET_C[0] <= (mean_c := float(np.nanmean(values))) <= INLET_C[1]:
            inlets.append(mean_c)
    unit = "rpm" if speeds["rpm"] else "1"
    turning = speeds[unit]
    cubes = [float(np.nanmean(v**CUBE)) for v in turning]
    return Seen(
        power_w=_mean_power(list(powers.values())) if powers else None,
        highest_w=max(sum(float(np.nanmax(v)) for _, v in own) for own in powers.values()) if powers else None,
        speed=float(np.cbrt(np.mean(cubes))) if cubes else None,
        highest_speed=max((float(np.nanmax(v)) for v in turning), default=None),
        is_rpm=unit == "rpm",
        inlet_c=sum(inlets) / len(inlets) if inlets else None,
    )


def _channels(run: Run, start_ns: int, end_ns: int) -> Iterator[tuple[TableInfo, Spec, Floats]]:
    """Give the channels of fans and inlets with what was read between two times, where anything was."""
    for info in run.tables():
        for stream in info.streams:
            wanted = [spec for spec in stream.channels if _is_cooling(stream.scope, spec)]
            if not wanted:
                continue
            series = run.series(info, stream.name, channels=[spec.name for spec in wanted])
            inside = (series.t0_ns >= start_ns) & (series.t0_ns <= end_ns)
            for spec in wanted:
                values = series.values[spec.name][inside]
                if np.isfinite(values).any():
                    yield info, spec, values


def _is_cooling(scope: str, spec: Spec) -> bool:
    """Return whether a channel is that of a fan, or of the air at a node's inlet."""
    if spec.kind == "power":
        return find_family(scope) in FANS or spec.name.startswith("fan")
    return (spec.name.startswith("fan") and spec.unit in ("rpm", "1")) or (
        spec.name == "temperature_c" and find_family(scope) == "node"
    )


def _mean_power(hosts: Sequence[Sequence[tuple[Spec, Floats]]]) -> Quantity:
    """Return what the fans of a node drew on average, by how far their meters may be off."""
    parts = []
    for k, own in enumerate(hosts):
        for n, (spec, values) in enumerate(own):
            watts, accuracy = float(np.nanmean(values)) / len(hosts), spec.accuracy
            off = math.hypot(accuracy.gain * watts, accuracy.offset / len(hosts)) / math.sqrt(3)
            source = f"gain:{accuracy.shared or f'fan {k}.{n}'}"
            parts.append(Quantity(watts, {source: off} if off else {}, accuracy.source != "unknown"))
    return add_quantities(parts)
