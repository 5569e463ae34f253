"""Compute how another inlet temperature or cooling changes a node's power: by its fans, through its power supplies.

Fans move the air that carries the heat off between inlet and exhaust, and their power grows with the cube of that flow.
The law scales fans that were measured; without fan readings the model of a twin's node file gives their power. Pumps,
chillers and doors outside of the node are not included, and neither is the lower leakage of cooler chips.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.plan.measured_runs import require_whole_nodes
from joulelab.plan.plan_output import describe_notes
from joulelab.twin.model import DOOR, LIQUID
from joulelab.twin.power_curves import list_heating_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.core.spec import Spec
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.store.run_reader import Run
    from joulelab.twin.model import Node

CoolingKind = Literal["air", "rear-door", "direct-to-chip", "immersion"]
KINDS: tuple[CoolingKind, ...] = ("air", "rear-door", "direct-to-chip", "immersion")
FanSource = Literal["measured", "speed", "model"]  # power of the fans, their speed, or no fan was measured
HOURS_PER_YEAR = 8766.0
DEFAULT_INLETS_C = (20.0, 27.0, 32.0)
EXHAUST_C = 45.0
LEAST_RISE_C = 2.0  # air that gets no warmer carries no heat
INLET_RANGE_C = (-40.0, 60.0)  # readings outside are not of inlet air
# Half of the ranges that the numbers of the law are assumed to lie in; the exponent is 2.5 to 3.
EXHAUST_RANGE_C, WATER_RANGE, DOOR_RANGE, LOWEST_EXPONENT = 5.0, 0.10, 0.10, 2.5
# The node file of bnl-h100 expects 500 to 1500 W of fans at full speed: a model's fan power is assumed within ± 50 %.
FAN_POWER_RANGE = 0.5
SUPPLY_EFFICIENCIES = (0.90, 0.97)  # of supplies that are not described
MODEL_EFFICIENCY_RANGE = 0.02
BEYOND_SEEN = 1.5  # times the measured fan power: beyond, the law is not trusted without a stated full power
FASTEST = 1.05  # of the stated full speed or power of fans: beyond, the statement is wrong
MODEL_MISFIT = 1.25  # a node that draws this much more than its model at full load is another node
ASHRAE_A1_C = (15.0, 32.0)  # inlet temperatures that equipment of class A1 allows (ASHRAE TC 9.9)
NAME_A_MODEL = "name the model of the node: --node bnl-h100"
RUN_INSTEAD = "name a run with a meter of the whole node, or give --node and --power"


@dataclass(frozen=True, slots=True)
class CoolingSetting:
    """Name a kind of cooling and the temperature of the inlet air (degrees Celsius)."""

    kind: CoolingKind
    inlet_c: float


@dataclass(frozen=True, slots=True)
class FanReadings:
    """Hold the cooling of a run's nodes as measured: fans of one node (W) or their speed, and the inlet; else None.

    `speed` is the cubic mean, in rpm or, with `unit` "1", as a share of full speed.
    """

    power_w: Quantity | None = None
    highest_w: float | None = None
    speed: float | None = None
    highest_speed: float | None = None
    unit: str = ""
    inlet_c: float | None = None


@dataclass(frozen=True, slots=True)
class CoolingInput:
    """Hold the options of a plan; None if not given. `kind` and `inlet_c` are the present cooling; powers in W."""

    kind: CoolingKind | None = None
    inlet_c: float | None = None
    exhaust_c: float | None = None
    fan_max_w: float | None = None
    fan_rpm: float | None = None
    power_w: float | None = None
    efficiency: float | None = None


@dataclass(frozen=True, slots=True)
class CoolingOption:
    """Hold a node under one cooling: mean fan power (behind the supplies), node power at the wall, its highest (W)."""

    setting: CoolingSetting
    fans_w: Quantity
    node_w: Quantity
    change_w: Quantity
    highest_w: float
    is_at_full_speed: bool = False
    is_beyond_seen: bool = False

    @property
    def year_kwh(self) -> Quantity:
        """Return the energy of a year at this power."""
        return self.node_w * (HOURS_PER_YEAR * 1e-3)


@dataclass(frozen=True, slots=True)
class CoolingPlan:
    """Hold the present cooling, the others, and the source of the figures.

    `twin` is set if the run is simulated; `model` names the node whose fan model was used.
    """

    now: CoolingOption
    options: tuple[CoolingOption, ...]
    fans_by: FanSource
    inlet_by: str
    run: str = ""
    twin: str = ""
    model: str = ""
    notes: tuple[Note, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        described = [
            {
                "cooling": one.setting.kind,
                "inlet_c": one.setting.inlet_c,
                "fans_by": self.fans_by,
                "fans_w": one.fans_w.to_json(),
                "node_w": one.node_w.to_json(),
                "change_w": one.change_w.to_json(),
                "highest_w": one.highest_w,
                "year_kwh": one.year_kwh.to_json(),
                "fans_at_full_speed": one.is_at_full_speed,
                "fans_beyond_seen": one.is_beyond_seen,
            }
            for one in (self.now, *self.options)
        ]
        return {
            "simulated": self.twin or None,
            "model": self.model or None,
            "runs": [self.run] if self.run else [],
            "hours": HOURS_PER_YEAR,
            "inlet_by": self.inlet_by,
            "now": described[0],
            "options": described[1:],
            **describe_notes(self.notes),
        }


def compute_fan_factor(now: CoolingSetting, then: CoolingSetting, exhaust_c: float = EXHAUST_C, **law: float) -> float:
    """Return the factor by which the power of fans changes; `law` may set water, door and exponent.

    Raises ConfigError if the inlet is too warm.
    """

    def compute_power(setting: CoolingSetting) -> float:
        rise_c = exhaust_c - setting.inlet_c
        if rise_c < LEAST_RISE_C:
            raise ConfigError(
                f"an inlet of {setting.inlet_c:g} °C is too warm",
                why=f"the air leaves the node at {exhaust_c:g} °C, so it would carry no heat",
                next="give a lower --inlet, or the --exhaust of your node",
            )
        air = 1 - (law.get("water", LIQUID["direct-to-chip"]) if setting.kind == "direct-to-chip" else 0.0)
        door = law.get("door", DOOR["rear-door"]) if setting.kind == "rear-door" else 1.0
        return float(door * (air / rise_c) ** law.get("exponent", 3.0))

    return 0.0 if then.kind == "immersion" else compute_power(then) / compute_power(now)


def scale_fans(now: CoolingSetting, then: CoolingSetting, exhaust_c: float = EXHAUST_C) -> Quantity:
    """Return the factor by which the power of fans changes, with the assumed ranges as terms. Raises ConfigError."""
    value = compute_fan_factor(now, then, exhaust_c)
    warmest_c = max(setting.inlet_c for setting in (now, then) if setting.kind != "immersion")
    coolest_exhaust_c = max(exhaust_c - EXHAUST_RANGE_C, warmest_c + LEAST_RISE_C)
    water, door = LIQUID["direct-to-chip"], DOOR["rear-door"]
    ranges = {
        "exhaust": [
            compute_fan_factor(now, then, coolest_exhaust_c),
            compute_fan_factor(now, then, exhaust_c + EXHAUST_RANGE_C),
        ],
        "water": [compute_fan_factor(now, then, exhaust_c, water=water + off) for off in (-WATER_RANGE, WATER_RANGE)],
        "door": [compute_fan_factor(now, then, exhaust_c, door=door + off) for off in (-DOOR_RANGE, DOOR_RANGE)],
        "cube": [value, compute_fan_factor(now, then, exhaust_c, exponent=LOWEST_EXPONENT)],
    }
    terms = {f"assumed:{name}": (high - low) / math.sqrt(12) for name, (low, high) in ranges.items() if high != low}
    return Quantity(value, terms)


def read_fans(run: Run, start_ns: int, end_ns: int) -> FanReadings:
    """Read fans and inlet temperature of a run between two times."""
    powers: dict[str, list[tuple[Spec, Floats]]] = {}
    speeds: dict[str, list[Floats]] = {}
    inlets: list[float] = []
    for host, spec, values in _list_cooling_channels(run, start_ns, end_ns):
        if spec.kind == "power":
            powers.setdefault(host, []).append((spec, values))
        elif spec.name.startswith("fan"):
            speeds.setdefault(spec.unit, []).append(values)
        elif INLET_RANGE_C[0] <= (mean_c := float(np.nanmean(values))) <= INLET_RANGE_C[1]:
            inlets.append(mean_c)
    parts = []
    for host, own in powers.items():
        for number, (spec, values) in enumerate(own):
            watts, accuracy = float(np.nanmean(values)) / len(powers), spec.accuracy
            u = math.hypot(accuracy.gain * watts, accuracy.offset / len(powers)) / math.sqrt(3)
            source = f"gain:{accuracy.shared or f'fan {number} of {host}'}"
            parts.append(Quantity(watts, {source: u} if u else {}, accuracy.source != "unknown"))
    unit = "rpm" if "rpm" in speeds else "1" if "1" in speeds else ""
    turning = speeds.get(unit, [])
    return FanReadings(
        power_w=add_quantities(parts) if parts else None,
        highest_w=max((sum(float(np.nanmax(v)) for _, v in own) for own in powers.values()), default=None),
        speed=float(np.cbrt(np.mean([np.nanmean(v**3) for v in turning]))) if turning else None,
        highest_speed=max((float(np.nanmax(v)) for v in turning), default=None),
        unit=unit,
        inlet_c=sum(inlets) / len(inlets) if inlets else None,
    )


def _list_cooling_channels(run: Run, start_ns: int, end_ns: int) -> Iterator[tuple[str, Spec, Floats]]:
    """Yield host, channel and readings of fans and of the air at a node's inlet."""
    for info in run.tables():
        for stream in info.streams:
            family = find_family(stream.scope)
            wanted = [
                spec
                for spec in stream.channels
                if (spec.kind == "power" and (family in ("fan", "fans") or spec.name.startswith("fan")))
                or (spec.name.startswith("fan") and spec.unit in ("rpm", "1"))
                or (spec.name == "temperature_c" and family == "node")
            ]
            if not wanted:
                continue
            series = run.series(info, stream.name, channels=[spec.name for spec in wanted])
            inside = (series.t0_ns >= start_ns) & (series.t0_ns <= end_ns)
            for spec in wanted:
                values = series.values[spec.name][inside]
                if np.isfinite(values).any():
                    yield info.host, spec, values


@dataclass(frozen=True, slots=True)
class _NodeLoad:
    """Hold a node as it is now, behind its supplies (W): `mean_w`, its course over time, its highest.

    `wall` converts to power at the wall.
    """

    mean_w: Quantity
    course_w: Floats
    highest_w: float
    wall: Quantity


def plan_cooling(
    run: MeasuredRun | None,
    seen: FanReadings,
    node: Node | None,
    given: CoolingInput,
    *,
    kinds: Sequence[CoolingKind] = (),
    inlets_c: Sequence[float] = (),
) -> CoolingPlan:
    """Compute the effect of each kind and inlet, from a run with its fan readings or from a node's model.

    Without a run the node draws `given.power_w` at the wall, or its full load. Raises ConfigError if the node's power,
    its fans or its inlet are not known.
    """
    if run is None and node is None:
        what = "the fans of the node are not known" if given.power_w else "there is no node to cool"
        raise ConfigError(what, next=f"name a run, or {NAME_A_MODEL}")
    now, inlet_by = _find_setting(seen, node, given)
    exhaust_c = given.exhaust_c or (node.cooling.exhaust_c if node is not None else EXHAUST_C)
    if node is not None:
        compute_fan_factor(now, now, exhaust_c)  # raises for an inlet that is too warm
        cooling = replace(node.cooling, kind=cast("Any", now.kind), inlet_c=now.inlet_c, exhaust_c=exhaust_c)
        if given.fan_max_w is not None:
            least_w = cooling.fan_idle_w * given.fan_max_w / cooling.fan_max_w if cooling.fan_max_w else 0.0
            cooling = replace(cooling, fan_max_w=given.fan_max_w, fan_idle_w=least_w)
        node = replace(node, cooling=cooling)
    load = _find_load(run, node, given)
    if kinds or inlets_c:
        asked = [CoolingSetting(kind, c) for kind in kinds or (now.kind,) for c in inlets_c or (now.inlet_c,)]
        # An immersed node has no inlet: one row, whatever inlets are asked for.
        asked = [replace(one, inlet_c=now.inlet_c) if one.kind == "immersion" else one for one in asked]
    else:
        asked = [CoolingSetting(kind, now.inlet_c) for kind in KINDS]
        asked += [CoolingSetting(now.kind, inlet_c) for inlet_c in DEFAULT_INLETS_C]
    settings = [now, *(one for one in dict.fromkeys(asked) if one != now)]
    if len(settings) == 1:
        raise ConfigError(
            "there is nothing to compare",
            why=f"{now.kind} at {now.inlet_c:g} °C is the present cooling",
            next="name another with --to or --inlet",
        )
    fans_w, highest_w, fans_by = _find_fan_power(seen, node, given, load)
    if fans_w.value <= 0:
        raise ConfigError(
            "the fans of the run draw no power", why="their readings are 0", next="check their meter: joulelab doctor"
        )
    if fans_w.value >= load.mean_w.value:
        why = f"its fans alone draw {fans_w.value:.0f} W by {'the model' if fans_by == 'model' else 'their meter'}"
        raise ConfigError(
            f"a node of {load.mean_w.value:.0f} W is off", why=why, next="name a run under load, or give its --power"
        )
    lowest_w = node.cooling.fan_idle_w if node is not None else 0.0
    full_w = given.fan_max_w or (node.cooling.fan_max_w if node is not None else math.inf)
    if given.fan_max_w is not None and highest_w > FASTEST * full_w:
        raise ConfigError(
            f"the fans draw more than {full_w:g} W",
            why=f"up to {highest_w:.0f} W was measured",
            next="give the power of all fans of a node at full speed: --fan-max 900W",
        )
    options = []
    for setting in settings:
        factor = scale_fans(now, setting, exhaust_c)
        least_w = 0.0 if setting.kind == "immersion" else lowest_w
        is_beyond = math.isinf(full_w) and factor.value > BEYOND_SEEN
        then_w = fans_w * replace(factor, known=not is_beyond)
        if not least_w <= then_w.value <= full_w and setting != now:
            then_w = fans_w * (min(max(then_w.value, least_w), full_w) / fans_w.value)
        change_w = then_w - fans_w
        # At the highest power fans may have been slow: a gain counts by their mean, a loss by their highest.
        wanted_w = highest_w * factor.value
        moved_w = max(min(wanted_w, full_w) - highest_w, change_w.value)
        node_w = (load.mean_w + change_w) * load.wall
        options.append(
            CoolingOption(
                setting,
                then_w,
                node_w,
                change_w * load.wall,
                max((load.highest_w + moved_w) * load.wall.value, node_w.value),
                is_at_full_speed=wanted_w > full_w and setting != now,
                is_beyond_seen=is_beyond,
            )
        )
    notes = _list_notes(options, fans_by, inlet_by, has_load=run is not None or given.power_w is not None)
    return CoolingPlan(
        options[0],
        tuple(options[1:]),
        fans_by,
        inlet_by,
        run=run.result.run if run is not None else "",
        twin=run.result.twin if run is not None else "",
        model=node.name if node is not None and fans_by == "model" else "",
        notes=notes,
    )


def _find_load(run: MeasuredRun | None, node: Node | None, given: CoolingInput) -> _NodeLoad:
    if run is not None and given.power_w is not None:
        raise ConfigError(
            "--power is for a node without a run", why="the run gives its power", next="leave out --power, or the run"
        )
    if run is not None:
        require_whole_nodes([run], "the power of a node", RUN_INSTEAD)
        side = run.draws[0].side
        mean_w = run.energies([0.0, run.result.duration_s])[0] * (1 / run.result.duration_s / len(run.draws))
        course_w = np.concatenate([draw.mean_w[np.isfinite(draw.mean_w)] for draw in run.draws])
        highest_w = max(draw.highest_w for draw in run.draws)
    else:
        side = "dc" if given.power_w is None else "ac"
        highest_w = given.power_w or (_compute_full_load(node) if node is not None else 0.0)
        mean_w, course_w = Quantity(highest_w), np.array([highest_w])
    wall = _find_wall_factor(node, given, mean_w.value, side)
    if side == "ac":
        mean_w, course_w, highest_w = mean_w / wall, course_w / wall.value, highest_w / wall.value
    if node is not None and highest_w > MODEL_MISFIT * (full_w := _compute_full_load(node)):
        raise ConfigError(
            f"the node is not a {node.name}",
            why=f"it draws {highest_w:.0f} W behind its supplies, the model at most {full_w:.0f} W",
            next="name the model of this node: --node mine.toml",
        )
    return _NodeLoad(mean_w, course_w, highest_w, wall)


def _compute_full_load(node: Node) -> float:
    """Return the power behind the supplies (W) at full load, fans included, GPUs at their default cap."""
    heat_w = 0.0
    for leaf in list_heating_leaves(node.list_leaves()):
        kind, _, number = leaf.partition(":")
        full_w = node.range_w(leaf)[1]
        heat_w += min(full_w, node.gpus[int(number)].default_cap_w) if kind == "gpu" else full_w
    return heat_w + float(node.cooling.fans_w(np.array([heat_w]), _compute_full_heat(node))[0])


def _compute_full_heat(node: Node) -> float:
    return sum(node.range_w(leaf)[1] for leaf in list_heating_leaves(node.list_leaves()))


def _find_wall_factor(node: Node | None, given: CoolingInput, watts: float, side: str) -> Quantity:
    """Return the power at the wall per watt behind the supplies, at a node's power on one side of them."""
    if given.efficiency is not None:
        return Quantity(1 / given.efficiency)
    if node is None:
        low, high = SUPPLY_EFFICIENCIES
        efficiency, half_range = (low + high) / 2, (high - low) / 2
    else:
        dc, ac = node.to_ac()
        dc_w, ac_w = (watts, np.interp(watts, dc, ac)) if side == "dc" else (np.interp(watts, ac, dc), watts)
        efficiency, half_range = float(dc_w / ac_w), MODEL_EFFICIENCY_RANGE
    return Quantity(1 / efficiency, {"assumed:efficiency": half_range / math.sqrt(3) / efficiency**2})


def _find_setting(seen: FanReadings, node: Node | None, given: CoolingInput) -> tuple[CoolingSetting, str]:
    """Return the present cooling, and the source of its inlet temperature."""
    kind: CoolingKind = given.kind or (node.cooling.kind if node is not None else "air")
    if kind == "immersion":
        raise ConfigError(
            "an immersed node has no fans to start from",
            where="--now",
            next="compare with it: --now air --to immersion",
        )
    if given.inlet_c is not None:
        return CoolingSetting(kind, given.inlet_c), "given"
    if seen.inlet_c is not None:
        return CoolingSetting(kind, round(seen.inlet_c, 1)), "measured"
    if node is not None:
        return CoolingSetting(kind, node.cooling.inlet_c), "model"
    raise ConfigError(
        "the present inlet temperature is not known", why="no run measured it", next="give it: --inlet-now 22"
    )


def _find_fan_power(
    seen: FanReadings, node: Node | None, given: CoolingInput, load: _NodeLoad
) -> tuple[Quantity, float, FanSource]:
    """Return mean and highest power of the fans (W): as measured, by the cube of their speed, or by the model."""
    if seen.power_w is not None:
        return seen.power_w, seen.highest_w or seen.power_w.value, "measured"
    if node is None and (seen.speed is None or given.fan_max_w is None):
        raise ConfigError(
            "the power of the fans is not known",
            why="no fan was measured" if seen.speed is None else "only their speed was measured",
            next=NAME_A_MODEL if seen.speed is None else f"give --fan-max of the data sheet, or {NAME_A_MODEL}",
        )
    assumed = FAN_POWER_RANGE / math.sqrt(3) if given.fan_max_w is None else 0.0
    if seen.speed is None and node is not None:
        full_heat_w = _compute_full_heat(node)
        grid = np.linspace(0.0, 2.0 * full_heat_w, 4001)
        heat_w = np.interp([*load.course_w, load.highest_w], grid + node.cooling.fans_w(grid, full_heat_w), grid)
        fans_w = node.cooling.fans_w(heat_w, full_heat_w)
        mean_w = float(np.mean(fans_w[:-1]))
        return Quantity(mean_w, {"assumed:fan-power": mean_w * assumed}), float(fans_w[-1]), "model"
    full_w = given.fan_max_w or (node.cooling.fan_max_w if node is not None else 0.0)
    full_speed = given.fan_rpm if seen.unit == "rpm" else 1.0
    if full_speed is None or seen.speed is None:
        raise ConfigError(
            "the full speed of the fans is not known",
            why="their speed was measured in rpm",
            next="give it: --fan-rpm 13000, of the data sheet",
        )
    highest = (seen.highest_speed or seen.speed) / full_speed
    if highest > FASTEST:
        raise ConfigError(
            f"the fans turn faster than the full speed of {full_speed:g} {seen.unit.removeprefix('1')}".rstrip(),
            why=f"up to {highest:.0%} of it was measured",
            next="give the full speed of the data sheet: --fan-rpm 13000",
        )
    share = min(seen.speed / full_speed, 1.0)
    value = full_w * share**3
    cube = (full_w * share**LOWEST_EXPONENT - value) / math.sqrt(12)
    terms = {"assumed:cube": cube, "assumed:fan-power": value * assumed}
    return Quantity(value, {name: u for name, u in terms.items() if u}), full_w * min(highest, 1.0) ** 3, "speed"


def _list_notes(
    options: Sequence[CoolingOption], fans_by: FanSource, inlet_by: str, *, has_load: bool
) -> tuple[Note, ...]:
    """List what a reader must know, the most important first."""
    found = []
    airy = [one for one in options if one.setting.kind != "immersion"]
    for code, marked in (
        ("cooling.full-speed", [one for one in airy if one.is_at_full_speed]),
        ("cooling.beyond-seen", [one for one in airy if one.is_beyond_seen]),
    ):
        if marked:
            names = tuple(f"{one.setting.kind} at {one.setting.inlet_c:g} °C" for one in marked)
            found.append(Note(code, {}, {"coolings": ", ".join(names), "factor": f"{BEYOND_SEEN:g}"}))
    low_c, high_c = ASHRAE_A1_C
    inlets = dict.fromkeys(one.setting.inlet_c for one in airy if not low_c <= one.setting.inlet_c <= high_c)
    found += [Note("cooling.class", {}, {"inlet": f"{inlet_c:g}"}) for inlet_c in inlets]
    if not has_load:
        found.append(Note("cooling.full-load"))
    if inlet_by == "model":
        found.append(Note("cooling.model-inlet", {}, {"inlet": f"{options[0].setting.inlet_c:g}"}))
    assumed = {"fan_power": FAN_POWER_RANGE} if fans_by == "model" else {}
    found += [Note("cooling.outside"), Note("cooling.assumed", assumed)]
    return (*found, Note("cooling.leakage"))
