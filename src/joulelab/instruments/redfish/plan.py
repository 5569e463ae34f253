"""Plan what to read of a Redfish service: streams, and for each channel the place where its number stands."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.hooks import Missing
from joulelab.instruments.redfish import sources, values
from joulelab.instruments.redfish.cooling import cooling
from joulelab.instruments.redfish.gpus import as_own_sensor
from joulelab.instruments.redfish.values import Field
from joulelab.instruments.redfish.walk import Walker, is_equipment, is_part, link

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.instruments.redfish.sources import Candidate, Reading, Supply

# Where the whole node's power may stand, the best first; and what else there is.
NODE_SOURCES = ("environment", "power", "sensors")
SOURCES = (*NODE_SOURCES, "supplies", "gpus", "cooling")
COOLING_S = 5.0
# What is not the power of the node or its supplies is looked for until opening has taken so long, unless asked for.
LOOK_S = 6.0
ASSUMED_GAIN = 0.05
FAR_APART = 2.0  # two powers of one node that differ by more than this factor are not of the same thing
_GPU = re.compile(r"gpu.*?(\d+)$", re.IGNORECASE)
_LISTED = 12  # candidates in an error: the largest, since the whole draws more than its parts
_BOARD = re.compile(r"total_?(gpu|hsc)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Hold what the configuration asks for."""

    config: Mapping[str, Any]
    label: str
    period_s: float
    chassis: str | None = None
    sensor: str | None = None
    sources: tuple[str, ...] | None = None
    gpus: list[int] | None = None

    def wants(self, source: str) -> bool:
        """Return whether a source is asked for; unless told, all are."""
        return self.sources is None or source in self.sources


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold a stream and where each of its channels stands, None for what the device has not."""

    stream: Stream
    fields: tuple[Field | None, ...]

    @property
    def measures(self) -> bool:
        """Return whether there is a power in it, not only states."""
        return any(spec.kind == "power" for spec in self.stream.channels)


def plans(walker: Walker, wanted: Wanted) -> tuple[list[Plan], list[Missing]]:
    """Return all that can be read, and what cannot. Raises Unavailable, ConfigError, ReadFailed, Denied."""
    missing: list[Missing] = []
    nodes, others = walker.chassis(wanted.chassis, wanted.label)
    found: list[Plan] = []
    node = None
    doubt = _conflict(walker, wanted, nodes) if wanted.sensor is None and wanted.sources is None else None
    if wanted.sensor is not None:
        found, node = _named(walker, wanted, nodes if wanted.chassis is not None else nodes + others)
    elif doubt is None:
        found, node = _node(walker, wanted, nodes, others, missing)
    if not found and wanted.sources is None:
        doubt = doubt or _doubt(walker, wanted, nodes, others)
        missing += [Missing.from_error("node", doubt)] if doubt else []
    body = node or (nodes[0] if len(nodes) == 1 else {})
    model = _model(body)
    parts: list[tuple[str, Any]] = [
        ("supplies", lambda: _supplies(walker, wanted, body, found, missing, model)),
        ("gpus", lambda: _gpus(walker, wanted)),
        ("cooling", lambda: _cooling(walker, wanted, body, model)),
    ]
    if not found and wanted.sources is None:
        parts[0] = ("supplies", lambda: _doubted_supplies(walker, body, missing))
    for name, look in parts:
        if wanted.wants(name):
            beside = name != "supplies" and wanted.sources is None and any(plan.measures for plan in found)
            walker.limit_s = LOOK_S if beside else None
            try:
                found += look()
            except (ReadFailed, Unavailable) as error:  # the node's power is worth more than what fails beside it
                missing.append(Missing.from_error(name, error))
    walker.limit_s = None
    if not any(plan.measures for plan in found) and not (found and wanted.sources == ("cooling",)):
        raise doubt or _nothing(missing, wanted)
    return _evenly_stepped(found), missing


def _node(
    walker: Walker,
    wanted: Wanted,
    nodes: list[dict[str, Any]],
    others: list[dict[str, Any]],
    missing: list[Missing],
) -> tuple[list[Plan], dict[str, Any] | None]:
    """Return the streams of the whole node, and its chassis. Raises ConfigError where several may be it."""
    readings = [(body, _node_readings(walker, wanted, body, missing)) for body in nodes]
    shown = [(body, found) for body, found in readings if found]
    if not shown and wanted.wants("power"):  # a board whose PowerControl says that it measures the system (Intel)
        systems = walker.systems()
        boards = [c for c in others if is_part(c) and sources.is_of_system(walker.follow(c, "Power"), systems)]
        readings = [(c, _node_readings(walker, replace(wanted, sources=("power",)), c, missing)) for c in boards]
        shown = [(body, found) for body, found in readings if found]
    if not shown:
        return [], None
    if len(shown) > 1:
        names = [sources.name_of(body) for body, _ in shown]
        listed = [f"{name} ({_watts(walker, found[0][1]):g} W)" for name, (_, found) in zip(names, shown, strict=True)]
        raise ConfigError(
            f"several chassis give a node's power: {', '.join(listed)}",
            where=f"meter {wanted.label}",
            next=f'set chassis = "{names[0]}", or the one that is this node',
        )
    body, chosen = shown[0]
    made = []
    for kind, reading in chosen:
        name = "node" if len(chosen) == 1 else f"node.{kind}"
        place = wall.place(wanted.config, "node.ac")
        made.append(_plan(wanted, name, "node", place, reading, model=_model(body), shared=wanted.label))
    return made, body


def _named(walker: Walker, wanted: Wanted, bodies: list[dict[str, Any]]) -> tuple[list[Plan], dict[str, Any]]:
    """Return the stream of the reading that `sensor` names, and its chassis. Raises ConfigError."""
    is_named = wanted.chassis is not None
    every = [(body, one) for body in bodies for one in sources.candidates(walker, body, is_named=is_named)]
    meant = [(body, one) for body, one in every if wanted.sensor == one.name]
    meant = meant or [(body, one) for body, one in every if wanted.sensor in one.also.split(", ")]
    if len(meant) != 1:
        listed = _listed([one for _, one in meant or every])
        what = f"several sensors are {wanted.sensor!r}" if meant else f"there is no power sensor {wanted.sensor!r}"
        advice = "give chassis too, or the Id of one" if meant else "give one of those"
        raise ConfigError(what, where=f"meter {wanted.label}", why=listed, next=advice)
    body, one = meant[0]
    place = wall.place(wanted.config, "node.ac")
    return [_plan(wanted, "node", "node", place, one.reading, model=_model(body), shared=wanted.label)], body


def _doubt(
    walker: Walker, wanted: Wanted, nodes: list[dict[str, Any]], others: list[dict[str, Any]]
) -> Unavailable | None:
    """Return the refusal where powers are shown and none is certainly the node's: list them, and how to choose."""
    is_named = wanted.chassis is not None
    bodies = nodes if is_named else nodes + others
    found = [one for body in bodies for one in sources.candidates(walker, body, is_named=is_named)]
    found.sort(key=lambda one: -one.watts)
    if not found:
        return None
    best = found[0]
    advice = f'if one of them is the node, name it: chassis = "{best.chassis}", sensor = "{best.name}"'
    if not walker.systems() or any(is_equipment(body) for body in bodies if sources.name_of(body) == best.chassis):
        advice += ', and feeds = "rack" where it feeds several nodes'
    return Unavailable(
        "no power of this BMC is certainly that of one node",
        where=wanted.label,
        why=_listed(found),
        next=f"{advice}; or use a PDU or IPMI",
    )


def _conflict(walker: Walker, wanted: Wanted, nodes: list[dict[str, Any]]) -> Unavailable | None:
    """Return the refusal where EnvironmentMetrics and PowerControl of one chassis cannot both be the node's power."""
    for body in nodes:
        shown = _both_totals(walker, body)
        if _are_apart(shown):  # the load may have changed between the two answers
            walker.forget(*(path for key in ("EnvironmentMetrics", "Power") if (path := link(body, key))))
            walker.forget(*(one.reading.power.path for one in shown))
            shown = _both_totals(walker, body)
        if _are_apart(shown):
            here = sources.name_of(body)
            named = " or ".join(f'sensor = "{one.name}"' for one in sorted(shown, key=lambda one: -one.watts))
            return Unavailable(
                f"EnvironmentMetrics and PowerControl of chassis {here} differ by more than a factor of {FAR_APART:g}",
                where=wanted.label,
                why=_listed(shown),
                next=f'name the one that is the node: chassis = "{here}", {named}; a PDU or IPMI shows which',
            )
    return None


def _both_totals(walker: Walker, body: dict[str, Any]) -> list[Candidate]:
    """Return the powers of a chassis by EnvironmentMetrics and by PowerControl, as far as each would be taken."""
    try:
        readings = [_node_reading(walker, kind, body) for kind in ("environment", "power")]
        fields = [reading.power for reading in readings if reading is not None]
        return [one for one in sources.totals(walker, body) if one.reading.power in fields]
    except MeterError:  # what fails here fails again where it is needed
        return []


def _are_apart(shown: list[Candidate]) -> bool:
    watts = [one.watts for one in shown]
    return max(watts, default=0.0) > FAR_APART * min(watts, default=0.0)


def _listed(found: list[Candidate]) -> str:
    shown = "; ".join(map(str, sorted(found, key=lambda one: -one.watts)[:_LISTED]))
    return f"it shows {shown or 'none'}" + (f"; and {len(found) - _LISTED} smaller" if len(found) > _LISTED else "")


def _model(body: dict[str, Any]) -> str:
    return " ".join(str(body.get(key)) for key in ("Manufacturer", "Model") if body.get(key))


def _watts(walker: Walker, reading: Reading) -> float:
    return values.value(walker.get(reading.power.path), reading.power)


def _node_readings(
    walker: Walker, wanted: Wanted, body: dict[str, Any], missing: list[Missing]
) -> list[tuple[str, Reading]]:
    found: list[tuple[str, Reading]] = []
    for kind in NODE_SOURCES:
        if not wanted.wants(kind) or (found and wanted.sources is None):
            continue
        try:
            reading = _node_reading(walker, kind, body)
        except Unavailable as error:
            missing.append(Missing.from_error(kind, error))
            continue
        if reading is not None:
            found.append((kind, reading))
    return found


def _node_reading(walker: Walker, kind: str, body: dict[str, Any]) -> Reading | None:
    """Return the power of a whole chassis from one source, None where none is certain. Raises Unavailable."""
    if kind == "environment":
        metrics, path = walker.follow(body, "EnvironmentMetrics"), link(body, "EnvironmentMetrics")
        return None if sources.is_of_part(walker, metrics) else sources.environment(walker, metrics, path)
    if kind == "power":
        return sources.from_power(walker.follow(body, "Power"), link(body, "Power"))
    whole = [one for one in sources.power_sensors(walker, body) if one.is_certain]
    return whole[0].reading if len(whole) == 1 else None


def _supplies(
    walker: Walker, wanted: Wanted, body: dict[str, Any], node: list[Plan], missing: list[Missing], model: str
) -> list[Plan]:
    found = sources.supplies(walker, body) if body else []
    made: list[Plan] = []
    for side, feeds, scope in (("ac", wall.feeds_of(wanted.config, "node.ac"), "psu"), ("dc", "node.dc", "psu.dc")):
        metered = [(psu, reading) for psu in found if (reading := getattr(psu, side)) is not None]
        if found and not metered:
            why_not = "null, absent, or a rating where a reading should be"
            missing.append(Missing(f"{scope}:N", f"the supplies' {side.upper()} side is not metered", why_not))
        why = _unbelievable(walker, metered, node, whole=len(metered) == len(found))
        if why:
            missing.append(Missing(f"{scope}:N", "the supplies' own figures are not used", why))
            continue
        for psu, reading in metered:
            place = wall.Place(scope=f"{scope}:{psu.number}", parent=feeds, sums=feeds, parts=len(found))
            shared = wanted.label if side == "ac" else f"{wanted.label}.dc"
            made.append(_plan(wanted, place["scope"], "psu", place, reading, model=model, shared=shared, lines=True))
    return sorted(made, key=lambda plan: int(plan.stream.scope.rpartition(":")[2]))


def _doubted_supplies(walker: Walker, body: dict[str, Any], missing: list[Missing]) -> list[Plan]:
    """Return no stream: without a power of the node, nothing tells readings of supplies from ratings or repeats."""
    metered = [reading for psu in sources.supplies(walker, body) if (reading := psu.ac or psu.dc)]
    if metered:
        watts = ", ".join(f"{_watts(walker, reading):g} W" for reading in metered)
        what = "the sum of the supplies is not certainly the node's power"
        missing.append(Missing("supplies", what, f'they show {watts}; sources = ["supplies"] adds them'))
    return []


def _unbelievable(
    walker: Walker, metered: list[tuple[Supply, Reading]], node: list[Plan], *, whole: bool
) -> str | None:
    """Return why the figures of all supplies are no readings: all zero, or far from the node's power."""
    watts = [values.value(walker.get(reading.power.path), reading.power) for _, reading in metered]
    if watts and not any(watts):
        return "all are 0 W: this model does not meter them"
    total = next((values.value(walker.get(f.path), f) for plan in node[:1] if (f := plan.fields[0])), None)
    if not watts or total is None:
        return None
    if sum(watts) > 1.5 * total or (whole and sum(watts) < 0.5 * total):
        return f"they sum to {sum(watts):g} W while the node draws {total:g} W: ratings, not readings"
    return None


def _gpus(walker: Walker, wanted: Wanted) -> list[Plan]:
    """Return the GPUs of an HGX board: by processors that are GPUs, or by chassis named after GPUs."""
    found: list[tuple[int, str, str, Reading]] = []
    for _, system in walker.each(walker.follow(walker.root, "Systems")):
        for path, processor in walker.each(walker.follow(system, "Processors")):
            if processor.get("ProcessorType") != "GPU":
                continue
            metrics, where = walker.follow(processor, "EnvironmentMetrics"), link(processor, "EnvironmentMetrics")
            reading = sources.environment(walker, metrics, where)
            if reading is not None:
                device = str(processor.get("UUID") or processor.get("SerialNumber") or path)
                found.append((_trailing(path), device, str(processor.get("Model") or ""), reading))
    parts = [(p, c) for p, c in walker.each(walker.follow(walker.root, "Chassis")) if is_part(c)]
    if not found:
        for path, body in parts:
            if _GPU.search(path) and (r := sources.from_sensors(walker, body, _is_whole_gpu)) is not None:
                found.append((_trailing(path), str(body.get("SerialNumber") or path), str(body.get("Model") or ""), r))
    found.sort(key=lambda gpu: gpu[0])
    numbers = list(range(len(found))) if wanted.gpus is None else wanted.gpus
    if found and len(numbers) != len(found):
        raise ConfigError(
            f"gpus has {len(numbers)} numbers for {len(found)} GPUs",
            where=f"meter {wanted.label}",
            next="give one for each, in the order of their modules",
        )
    made = []
    for number, (_, device, model, reading) in zip(numbers, found, strict=True):
        place = wall.Place(scope=f"gpu:{number}", parent=None, sums="", parts=0)
        plan = _plan(wanted, place["scope"], "gpu", place, reading, model=model, shared=f"{wanted.label}.gpu")
        made.append(replace(plan, stream=as_own_sensor(replace(plan.stream, device=device), model)))
    return made + (_board(walker, wanted, [body for _, body in parts]) if made else [])


def _board(walker: Walker, wanted: Wanted, parts: list[dict[str, Any]]) -> list[Plan]:
    """Return the totals that a GPU board shows beside its GPUs, as states: they are in no sum."""
    for body in parts:
        if not any(_BOARD.search(path) for path in walker.members(walker.follow(body, "Sensors"))):
            continue
        channels, fields = [], []
        for path, sensor in sources.sensors(walker, body):
            match, kind = _BOARD.search(sources.name_of(sensor)), values.sensor_scale(sensor)
            field = Field(path, ("Reading",), kind[1] if kind else 1.0)
            if match and kind and kind[0] == "power" and values.has(sensor, field):
                channels.append(Spec(f"total_{match[1].lower()}_power_w", "power", "W"))
                fields.append(field)
        if channels:
            stream = Stream("board", "board", "board", wanted.period_s, tuple(channels), device=sources.name_of(body))
            return [Plan(stream, tuple(fields))]
    return []


def _cooling(walker: Walker, wanted: Wanted, body: dict[str, Any], model: str) -> list[Plan]:
    found = cooling(walker, body) if body else []
    if not found:
        return []
    channels = tuple(Spec(name, "temperature" if unit == "degC" else "speed", unit) for name, unit, _ in found)
    period_s = max(COOLING_S, wanted.period_s)
    device = found[0][2].path.split("?")[0]
    stream = Stream("cooling", "cooling", "node", period_s, channels, device=device, model=model)
    return [Plan(stream, tuple(field for _, _, field in found))]


def _plan(
    wanted: Wanted,
    name: str,
    table: str,
    place: wall.Place,
    reading: Reading,
    *,
    model: str,
    shared: str,
    lines: bool = False,
) -> Plan:
    """Return the stream of one reading: power, energy, with `lines` voltage and current, age where it is told."""
    update_s, lag_s = reading.update_s, 0.0 if reading.time is not None else wall.BMC_LAG_S
    watts = _accuracy(wanted, reading, shared, reading.quantum_w)
    joules = _accuracy(wanted, reading, shared, reading.quantum_j)
    columns: list[tuple[Spec, Field | None]] = [
        (Spec("power_w", "power", "W", "power", update_s, update_s, accuracy=watts, lag_s=lag_s), reading.power),
        (Spec("energy_j", "energy", "J", "counter", update_s, accuracy=joules, lag_s=lag_s), reading.energy),
    ]
    if lines:
        columns += [
            (Spec("voltage_v", "voltage", "V"), reading.voltage),
            (Spec("current_a", "current", "A"), reading.current),
        ]
    if reading.time is not None:
        columns.append((Spec("age_s", "age", "s"), reading.time))
        table += "_timed"
    channels = tuple(spec for spec, _ in columns)
    device = reading.power.name
    stream = Stream(name, table, place["scope"], wanted.period_s, channels, place["parent"], device=device, model=model,
                    sums=place["sums"], parts=place["parts"])  # fmt: skip
    return Plan(stream, tuple(field for _, field in columns))


def _evenly_stepped(found: list[Plan]) -> list[Plan]:
    """Return plans whose counters in one unit have one step: a reading that ends in 0 hides its last digit."""
    steps: dict[float, float] = {}
    for plan in found:
        for spec, field in zip(plan.stream.channels, plan.fields, strict=True):
            if spec.kind == "counter" and field is not None:
                steps[field.scale] = min(steps.get(field.scale, spec.accuracy.quantum), spec.accuracy.quantum)
    made = []
    for plan in found:
        channels = [
            replace(spec, accuracy=replace(spec.accuracy, quantum=steps[field.scale]))
            if spec.kind == "counter" and field is not None
            else spec
            for spec, field in zip(plan.stream.channels, plan.fields, strict=True)
        ]
        made.append(replace(plan, stream=replace(plan.stream, channels=tuple(channels))))
    return made


def _accuracy(wanted: Wanted, reading: Reading, shared: str, quantum: float) -> Accuracy:
    where = f"Redfish {reading.source} ({reading.power.name})"
    if reading.gain is not None:
        said = f"{where}: the sensor's own Accuracy property; refreshed every {reading.update_s:g} s"
        default = Accuracy("datasheet", reading.gain, quantum=quantum, shared=shared, reference=said)
    else:
        said = f"{where}: the service states none, {ASSUMED_GAIN:.0%} taken; refreshed every {reading.update_s:g} s"
        default = Accuracy("assumed", ASSUMED_GAIN, quantum=quantum, shared=shared, reference=said)
    return wall.stated(wanted.config, default)


def _trailing(path: str) -> int:
    match = re.search(r"(\d+)$", path.rstrip("/"))
    return int(match[1]) if match else 0


def _is_whole_gpu(name: str) -> bool:
    return not re.search(r"dram|hbm|memory|limit|peak|voltage|edp|enforced|max|min|vreg|soc", name, re.IGNORECASE)


def _nothing(missing: list[Missing], wanted: Wanted) -> MeterError:
    why = "; ".join(f"{m.scope}: {m.what} ({m.why})" if m.why else f"{m.scope}: {m.what}" for m in missing)
    advice = "use a PDU or IPMI" if wanted.sources is None else "leave sources out to see all that there is"
    return Unavailable(
        "the BMC gives no power by Redfish", where=wanted.label, why=why or "no source has a reading", next=advice
    )
