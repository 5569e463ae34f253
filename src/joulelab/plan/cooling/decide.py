"""Say what another cooling or inlet temperature would change of a node's power: by its fans, through its supplies.

Fans that were measured are scaled; where they were not, a twin's model says what they take. Every figure says which.
What cools water and room is not in it, but for the PUEs that people give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.plan.cooling.blowing import (
    BEYOND_SEEN,
    By,
    Drawn,
    Fans,
    ModelledFans,
    ScaledFans,
    fans_of_speed,
    full_load_w,
)
from joulelab.plan.cooling.fans import EXHAUST_C, KINDS, CoolingKind, Law, Seen, Setting
from joulelab.plan.cooling.pooled import Load, flat_load, load_of, own_of, pooled
from joulelab.plan.cooling.supplies import Supplies
from joulelab.plan.rack.guarantee import EFFICIENCIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.twin.model import Node

HOURS_A_YEAR = 8766.0
INLET_C = 25.0
INLETS_C = (20.0, 27.0, 32.0)  # of the cooling there is, where people ask for none
# What air at the inlet each class of equipment allows (ASHRAE TC 9.9), degrees Celsius.
CLASSES: Mapping[str, tuple[float, float]] = {"A1": (15, 32), "A2": (10, 35), "A3": (5, 40), "A4": (5, 45)}


@dataclass(frozen=True, slots=True)
class Given:
    """Hold what people say of a node and its rack; None where they say nothing. Powers in W.

    `kind` and `inlet_c` are the cooling there is now. `fan_max_w` and `fan_rpm` are all fans of a node at full speed,
    `power_w` the node's mean at the wall, `use` the share of the year that it works. `pue` is by the kind of cooling.
    """

    kind: CoolingKind | None = None
    inlet_c: float | None = None
    exhaust_c: float | None = None
    fan_max_w: float | None = None
    fan_rpm: float | None = None
    power_w: float | None = None
    efficiency: float | None = None
    use: float = 1.0
    supply_w: float | None = None
    margin: float = 0.0
    pue: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Option:
    """Hold a node with a cooling: mean power of its fans (behind the supplies), of the node at the wall, highest (W).

    `change_w` is against what there is now, `by` what was measured of the fans: power, speed or nothing. `kwh` is a
    year's energy. `upper_w` is the highest power by all that is known: with the meter's gain and with hidden peaks.
    `full_speed` tells that fans cannot blow as much as it takes, `beyond_seen` that it takes far more than was seen of
    them, and nobody told whether they can. `nodes` are those that fit the supply by `upper_w`,
    `facility_kwh` is a year's energy with the PUE of this cooling, where these were given.
    """

    setting: Setting
    by: By
    fans_w: Quantity
    node_w: Quantity
    change_w: Quantity
    highest_w: float
    upper_w: float
    kwh: Quantity
    full_speed: bool = False
    beyond_seen: bool = False
    nodes: int | None = None
    pue: float | None = None
    facility_kwh: Quantity | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "cooling": self.setting.kind,
            "inlet_c": self.setting.inlet_c,
            "fans_by": self.by,
            "fans_w": self.fans_w.to_json(),
            "node_w": self.node_w.to_json(),
            "change_w": self.change_w.to_json(),
            "highest_w": self.highest_w,
            "highest_upper_w": self.upper_w,
            "year_kwh": self.kwh.to_json(),
            "fans_at_full_speed": self.full_speed,
            "fans_beyond_seen": self.beyond_seen,
            "nodes": self.nodes,
            "pue": self.pue,
            "facility_year_kwh": None if self.facility_kwh is None else self.facility_kwh.to_json(),
        }


@dataclass(frozen=True, slots=True)
class CoolingPlan:
    """Hold what there is now, what else there could be, and what all of it rests on.

    `twin` names the twin that runs are of: nothing of them was measured. `model` is the node whose model was asked.
    """

    now: Option
    options: tuple[Option, ...]
    given: Given
    runs: tuple[str, ...] = ()
    twin: str = ""
    model: str = ""
    rated_w: float | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def hours(self) -> float:
        """Return how many hours of a year the node works."""
        return HOURS_A_YEAR * self.given.use

    @property
    def rated_kwh(self) -> float | None:
        """Return what nameplate x time says of a year, None where nobody knows the nameplate."""
        return None if self.rated_w is None else self.rated_w * self.hours * 1e-3

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "simulated": self.twin or None,
            "model": self.model or None,
            "runs": list(self.runs),
            "hours": self.hours,
            "rated_w": self.rated_w,
            "rated_year_kwh": self.rated_kwh,
            "now": self.now.to_json(),
            "options": [option.to_json() for option in self.options],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def plan_cooling(
    measured: Sequence[MeasuredRun],
    seen: Sequence[Seen],
    node: Node | None,
    given: Given,
    *,
    kinds: Sequence[CoolingKind] = (),
    inlets_c: Sequence[float] = (),
) -> CoolingPlan:
    """Return what each cooling would change, from runs and what they saw of fans, or from a node's model.

    Without runs the node draws `given.power_w`, or as much as it does at full load. Raises ConfigError where neither
    fans were measured nor a model is given, and for a power beside runs.
    """
    if node is not None and given.exhaust_c is not None:
        node = replace(node, cooling=replace(node.cooling, exhaust_c=given.exhaust_c))
    supplies = Supplies(node, given.efficiency)
    load = _load(measured, node, given, supplies)
    saw, some = pooled(seen, load.weights)
    now, inlet_by = _now(saw, node, given)
    fans, fans_by = _fans(saw, own_of(seen, saw, len(load.highest)), node, given, (now, load, supplies))
    asked = _asked(now, kinds, inlets_c)
    for setting in (now, *asked):
        Law(_exhaust_c(node, given)).drawn(setting)  # raises for air that is too warm
    options = [_option(setting, fans, load, given) for setting in (now, *asked)]
    inlet = f"the inlet is at {now.inlet_c:g} °C now: {inlet_by}"
    notes = (fans_by, inlet, *([some] if some else []), *_notes(node, fans, supplies, given), *_counted(load, given))
    warnings = dict.fromkeys(text for option in options for text in _warnings(option))
    rated_w = load.rated_w or ((node.rated_w or None) if node is not None else None)
    model = node.name if node is not None and (fans.by == "model" or not load.runs) else ""
    return CoolingPlan(
        options[0], tuple(options[1:]), given, load.runs, load.twin, model, rated_w, notes, tuple(warnings)
    )


def _load(measured: Sequence[MeasuredRun], node: Node | None, given: Given, supplies: Supplies) -> Load:
    if measured and given.power_w is not None:
        raise ConfigError(
            "--power is for a node without runs", why="the runs that are named tell what it draws",
            next="leave one of them out",
        )  # fmt: skip
    if measured:
        return load_of(measured, supplies)
    if given.power_w is not None:
        return flat_load(given.power_w)
    if node is None:
        raise ConfigError("there is no node to cool", next="name a run, or a model: --node bnl-h100")
    return flat_load(full_load_w(node, supplies))


def _now(seen: Seen, node: Node | None, given: Given) -> tuple[Setting, str]:
    """Return the cooling there is, and how its inlet is known."""
    kind: CoolingKind = given.kind or (node.cooling.kind if node is not None else "air")
    if given.inlet_c is not None:
        return Setting(kind, given.inlet_c), "given"
    if seen.inlet_c is not None:
        return Setting(kind, round(seen.inlet_c, 1)), "measured"
    if node is not None:
        return Setting(kind, node.cooling.inlet_c), f"by the model of {node.name}"
    return Setting(kind, INLET_C), "assumed, nobody measured it"


def _fans(
    seen: Seen, own: Sequence[Seen], node: Node | None, given: Given, basis: tuple[Setting, Load, Supplies]
) -> tuple[Fans, str]:
    """Return the fans, and how they are known: measured before modelled. Raises ConfigError."""
    now, load, supplies = basis
    exhaust_c = _exhaust_c(node, given)
    max_w = given.fan_max_w or (node.cooling.fan_max_w if node is not None else None)
    idle_w = node.cooling.fan_idle_w if node is not None else 0.0
    if seen.power_w is not None:
        highest = tuple(one.highest_w or seen.power_w.value for one in own)
        drawn = Drawn(seen.power_w, highest, idle_w, max_w or math.inf)
        said = "fans: their power was measured, and is scaled by the law of fans"
        return ScaledFans(now, drawn, load, supplies, exhaust_c=exhaust_c), said
    if seen.speed is not None and max_w is not None:
        known = given.fan_max_w is not None
        drawn = Drawn(*fans_of_speed(seen, own, max_w, given.fan_rpm, known=known), idle_w, max_w)
        whose = "given" if known else f"by the model of {node.name if node else ''}"
        said = f"fans: their speed was measured; power is its cube, {max_w:g} W at full speed ({whose})"
        by: By = "speed" if known else "model"
        return ScaledFans(now, drawn, load, supplies, by=by, exhaust_c=exhaust_c), said
    if node is None:
        read = "fans' speed was measured, their power at full speed is unknown"
        why = "no fan was measured" if seen.speed is None else read
        then = "name a model: --node bnl-h100" + ("" if seen.speed is None else ", or give --fan-max")
        raise ConfigError("what the fans take is not known", why=why, next=then)
    said = f"fans: not measured; by the model of {node.name}, whose accuracy is not known"
    return ModelledFans(node, now, load, supplies), said


def _exhaust_c(node: Node | None, given: Given) -> float:
    return given.exhaust_c or (node.cooling.exhaust_c if node is not None else EXHAUST_C)


def _asked(now: Setting, kinds: Sequence[CoolingKind], inlets_c: Sequence[float]) -> list[Setting]:
    """Return the coolings to look at: every kind at every inlet, those of use where none are named."""
    if kinds or inlets_c:
        found = [Setting(kind, inlet_c) for kind in kinds or (now.kind,) for inlet_c in inlets_c or (now.inlet_c,)]
    else:
        found = [Setting(kind, now.inlet_c) for kind in KINDS]
        found += [Setting(now.kind, inlet_c) for inlet_c in INLETS_C if now.kind != "immersion"]
    return [setting for setting in dict.fromkeys(found) if setting != now]


def _option(setting: Setting, fans: Fans, load: Load, given: Given) -> Option:
    blown = fans.under(setting)
    node_w = load.mean_w + blown.change_w
    kwh = node_w * (HOURS_A_YEAR * given.use * 1e-3)
    pue = given.pue.get(setting.kind)
    highest_w = max(blown.highest_w, node_w.value)  # fans that a model turns up raise the mean and the peak alike
    return Option(
        setting, fans.by, blown.fans_w, node_w, blown.change_w, highest_w, max(blown.upper_w, highest_w), kwh,
        blown.full_speed, blown.beyond_seen,
        None if given.supply_w is None else math.floor(given.supply_w * (1 - given.margin) / blown.upper_w + 1e-9),
        pue, None if pue is None else kwh * pue,
    )  # fmt: skip


def _warnings(option: Option) -> list[str]:
    """Return what is dangerous about a cooling."""
    found, inlet_c = [], option.setting.inlet_c
    name = f"{option.setting.kind} at {inlet_c:g} °C"
    if option.setting.kind == "immersion":
        return []
    if option.full_speed:
        found.append(f"{name}: fans at full speed do not carry the highest heat off; GPUs would slow down")
    if option.beyond_seen:
        found.append(
            f"{name}: fans would take over {BEYOND_SEEN:g} times what was seen of them; whether they can is not known: "
            "give --fan-max"
        )
    allowed = [c for c, (low, high) in CLASSES.items() if low <= inlet_c <= high]
    if not allowed:
        found.append(f"{name}: no class of ASHRAE allows such an inlet (A1 {_range('A1')} to A4 {_range('A4')})")
    elif "A1" not in allowed:
        found.append(f"{name}: outside of ASHRAE class A1 ({_range('A1')}); equipment of class {allowed[0]} is needed")
    return found


def _range(name: str) -> str:
    low, high = CLASSES[name]
    return f"{low:g} to {high:g} °C"


def _notes(node: Node | None, fans: Fans, supplies: Supplies, given: Given) -> list[str]:
    """Return what the figures rest on and leave out."""
    found = []
    if supplies.assumed:
        low, high = (100 * share for share in EFFICIENCIES)
        found.append(f"supplies: {low:g} to {high:g} % efficient, assumed; nobody described them: give --efficiency")
    if isinstance(fans, ScaledFans):
        found.append(
            "assumed, and in the intervals: exhaust ± 5 °C, 75 ± 10 % of the heat into water direct to chip, a door "
            "that takes 0 to 20 % more, power of fans by their speed to the power of 2.5 to 3"
        )
        if node is None:
            found.append("fans turn at some least speed that is not known: gains may end before")
    if given.pue:
        found.append("fans count as equipment in a PUE: compare the facility's energies, not the PUEs")
    else:
        found.append("pumps, chillers and doors outside of the node are not in it: give --pue KIND=PUE for each")
    found.append("chips that are cooler leak less, which is not in it")
    return found


def _counted(load: Load, given: Given) -> list[str]:
    """Return by which power nodes are counted, and what is not in it."""
    if given.supply_w is None:
        return []
    found = ["nodes are by the highest power alone; joulelab plan rack has a rack's other limits"]
    if not load.runs:
        return [*found, "the power given or modelled counts as the highest: nothing was measured of peaks"]
    raised = load.upper_w / load.read_w
    what = "the meter's gain, peaks that readings hide, how nodes differ, and the supplies where these are assumed"
    found.append(f"nodes are by {raised:.3f} times the highest reading: {what}")
    if not all(one.gain for one in load.highest):
        found.append("nobody states the meter's accuracy: it is not in the count of nodes")
    if not all(one.hidden for one in load.highest):
        found.append("nobody knows what such slow readings hide: peaks are not in the count of nodes")
    return found
