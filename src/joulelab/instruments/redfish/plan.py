"""Plan the readings of a Redfish service: streams, and for each channel the place of its number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Unavailable
from joulelab.core.scope import find_family
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.hooks import SOURCE_NOTE, Missing
from joulelab.instruments.nvml.generations import find_sensor
from joulelab.instruments.redfish import kinds, node, sources
from joulelab.instruments.redfish.cooling import find_cooling
from joulelab.instruments.redfish.equipment import find_shelf, find_unit
from joulelab.instruments.redfish.sources import ABOVE
from joulelab.instruments.redfish.values import HIGHEST_W, NODE_W, Field, find_scale
from joulelab.instruments.redfish.walk import list_links

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.instruments.redfish.equipment import Shelf
    from joulelab.instruments.redfish.node import Service
    from joulelab.instruments.redfish.sources import Candidate, Reading, Supply
    from joulelab.instruments.redfish.walk import Resource, Walker

SOURCES = ("node", "supplies", "gpus", "cpus", "cooling")
COOLING_S = 5.0
# The power of the node is searched until opening has taken NODE_S, everything beside it until LOOK_S, unless it is
# named in `sources`.
NODE_S, LOOK_S = 60.0, 6.0
ASSUMED_GAIN = 0.05
SUPPLIES_APART = 1.25  # the sum of a node's supplies and its power differ by a smaller factor
LEAST_OUTPUT = 0.5  # the share of the node's input that its supplies give at the least, at idle
# GPU boards with a BMC by words of their model, as NVML's architecture numbers.
_ARCHITECTURES = {"H100": 9, "H200": 9, "H800": 9, "H20": 9, "GH200": 9, "A100": 7, "A800": 7}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Hold the settings that choose readings."""

    config: Mapping[str, Any]
    label: str
    period_s: float
    chassis: str | None = None
    sensor: str | None = None
    sources: tuple[str, ...] | None = None
    gpus: list[int] | None = None

    def wants_source(self, source: str) -> bool:
        """Return whether a source is named, or none is."""
        return self.sources is None or source in self.sources


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold a stream and the place of each of its channels, None if the device does not have it."""

    stream: Stream
    fields: tuple[Field | None, ...]

    @property
    def has_power(self) -> bool:
        """Return whether there is a power in it, not only states."""
        return any(spec.kind == "power" for spec in self.stream.channels)


def plan_readings(walker: Walker, wanted: Wanted) -> tuple[list[Plan], list[Missing]]:
    """Return all that can be read, and the rest as notes. Raises Unavailable, ConfigError, ReadFailed, Denied."""
    walker.limit_s = NODE_S if wanted.sources is None else None
    unit = find_unit(walker, wanted.chassis, wanted.label) if wanted.sensor is None else None
    if unit is not None:
        found = [_plan_rack(wanted, unit[1], unit[0])]
        return _drop_unread(found), _list_places(found)
    service = node.open_service(walker, wanted.chassis, wanted.label)
    found, chassis = _plan_node(service, wanted)
    shelf = find_shelf(service) if not found and wanted.wants_source("supplies") else None
    refusal = None
    if shelf is not None:
        found, chassis = _plan_shelf(service, wanted, shelf), shelf.chassis
    elif not found and wanted.sources is None:
        doubtful = node.list_doubtful(service)
        what, has_supplies = "no power of this BMC is certainly that of one node", _has_inputs(service)
        refusal = node.refuse_choice(service, what, doubtful, has_supplies=has_supplies) if doubtful else None
        if refusal is not None and any(one.chassis in service.nodes for one in doubtful):
            raise refusal
    body = chassis or (service.nodes[0] if len(service.nodes) == 1 else None)
    parts: list[tuple[str, Callable[[], list[Plan]]]] = [
        ("supplies", lambda: _plan_supplies(service, wanted, body, found) if shelf is None else []),
        ("gpus", lambda: _plan_gpus(service, wanted)),
        ("cpus", lambda: _plan_cpus(service, wanted)),
        ("cooling", lambda: _plan_cooling(service, wanted, body)),
    ]
    for name, plan_part in parts:
        if wanted.wants_source(name):
            is_beside = name != "supplies" and wanted.sources is None and any(plan.has_power for plan in found)
            walker.limit_s = LOOK_S if is_beside else None
            try:
                found = found + plan_part()
            except (ReadFailed, Unavailable) as error:  # the node's power is worth more than a part that fails
                service.notes.append(Missing.from_error(name, error))
    walker.limit_s = None
    if wanted.sensor is None and wanted.sources is None:
        found = _check_parts(service, found, body)
    if not any(plan.has_power for plan in found) and not (found and wanted.sources == ("cooling",)):
        raise refusal or _refuse_all(service.notes, wanted)
    if refusal is not None:
        service.notes.append(Missing.from_error("node.ac", refusal))
    return _drop_unread(found), [*service.notes, *_list_places(found)]


def _plan_node(service: Service, wanted: Wanted) -> tuple[list[Plan], Resource | None]:
    """Return the stream of the whole node, and its chassis. Raises ConfigError if several may be it."""
    if wanted.sensor is not None:
        chosen: Candidate | None = node.find_named(service, wanted.sensor)
    else:
        chosen = node.choose_total(service) if wanted.wants_source("node") else None
        if chosen is not None:
            power = replace(chosen.reading.power, limits=NODE_W)
            chosen = replace(chosen, reading=replace(chosen.reading, power=power))
    if chosen is None:
        return [], None
    place = wall.place(wanted.config, "node.ac")
    return [_plan_power(wanted, "node", chosen.reading, chosen.chassis, place)], chosen.chassis


def _refuse_all(missing: list[Missing], wanted: Wanted) -> MeterError:
    why = "; ".join(f"{m.scope}: {m.what} ({m.why})" if m.why else f"{m.scope}: {m.what}" for m in missing)
    return Unavailable(
        "the BMC gives no power by Redfish",
        where=wanted.label,
        why=why or "no source has a reading",
        next="use a PDU or IPMI" if wanted.sources is None else "leave sources out to see all that there is",
        code="unavailable.no-power",
    )


# ---- power supplies, shelves, PDUs


def _plan_rack(wanted: Wanted, reading: Reading, body: Resource) -> Plan:
    place = _place_alone(wall.feeds_of(wanted.config, "rack"))
    return _plan_power(wanted, "node", reading, body, place, name="rack")


def _plan_shelf(service: Service, wanted: Wanted, shelf: Shelf) -> list[Plan]:
    """Return the streams of a power shelf: its own total, and its supplies, whose inputs sum to the rack."""
    rack, made = wall.feeds_of(wanted.config, "rack"), []
    doubt = _doubt_supplies(service.walker, shelf.supplies)
    if doubt:
        what = "the figures of the shelf's supplies cannot be right"
        raise Unavailable(what, where=wanted.label, why=doubt, code="unavailable.contradiction")
    if shelf.total is not None:
        made.append(_plan_rack(wanted, shelf.total.reading, shelf.chassis))
    else:
        names = ", ".join(psu.name for psu in shelf.supplies if psu.ac is not None)
        service.add_note(rack, f"read as the sum of the supplies {names}", "the shelf shows no total of its own")
    service.add_note("node.ac", "this is a power shelf", f"{shelf.chassis.id} feeds {rack}, not one node")
    _name_unmetered(service, shelf.supplies, "ac", "dc")
    return made + _plan_sides(wanted, shelf.chassis, shelf.supplies, {"ac": (rack, rack), "dc": (rack, "")})


def _find_supplies(walker: Walker, body: Resource) -> list[Supply]:
    found = sources.list_supplies(walker, body)
    return found if any(psu.ac or psu.dc for psu in found) else sources.list_supply_sensors(walker, body) or found


def _has_inputs(service: Service) -> bool:
    """Return whether the node's supplies all show their input, so that their sum can be asked for."""
    try:
        found = _find_supplies(service.walker, service.nodes[0]) if len(service.nodes) == 1 else []
    except MeterError:
        return False
    return bool(found) and all(psu.ac for psu in found)


def _name_unmetered(service: Service, supplies: list[Supply], *sides: str) -> None:
    """Name each supply without a reading beside others that have one: without it they have no sum."""
    for side in sides:
        lost = [psu for psu in supplies if getattr(psu, side) is None]
        for psu in lost if len(lost) < len(supplies) else ():
            scope = f"{'psu' if side == 'ac' else 'psu.dc'}:{psu.number}"
            why = "null, absent or out of service: without it the supplies have no sum"
            service.notes.append(Missing(scope, f"the supply {psu.name} shows no {side.upper()} power", why))


def _plan_supplies(service: Service, wanted: Wanted, body: Resource | None, total: list[Plan]) -> list[Plan]:
    walker = service.walker
    find = sources.list_supplies if wanted.sources is None else _find_supplies
    found = find(walker, body) if body is not None else []
    if not total and wanted.sources is None:  # nothing distinguishes readings of supplies from ratings or repeats
        metered = [reading for psu in found if (reading := psu.ac or psu.dc)]
        if metered:
            watts = ", ".join(f"{walker.read_field(reading.power):g} W" for reading in metered)
            what = "the sum of the supplies is not certainly the node's power"
            service.add_note("supplies", what, f'they show {watts}; sources = ["supplies"] adds them')
        return []
    doubt = _doubt_supplies(walker, found)
    if doubt:
        service.add_note("psu:N", "the supplies' own figures are not used", doubt)
        return []
    sides: dict[str, tuple[str, str]] = {}
    for side, feeds, scope in (("ac", wall.feeds_of(wanted.config, "node.ac"), "psu"), ("dc", "node.dc", "psu.dc")):
        metered = [reading for psu in found if (reading := getattr(psu, side)) is not None]
        if found and not metered:
            why_not = "null, absent, or a rating where a reading should be"
            service.add_note(f"{scope}:N", f"the supplies' {side.upper()} side is not metered", why_not)
        why = _compare_supplies(walker, metered, total, is_whole=len(metered) == len(found), is_output=side == "dc")
        if why:
            service.add_note(f"{scope}:N", "the supplies' own figures are not used", why)
        else:
            sides[side] = feeds, feeds
            _name_unmetered(service, found, side)
    return _plan_sides(wanted, body, found, sides) if body is not None else []


def _plan_sides(
    wanted: Wanted, body: Resource, supplies: list[Supply], sides: dict[str, tuple[str, str]]
) -> list[Plan]:
    """Return the streams of supplies; `sides` maps a side to its containing scope and to the scope of its sum."""
    made = []
    for psu in supplies:
        for side, (parent, sums) in sides.items():
            reading = getattr(psu, side)
            if reading is not None:
                scope = f"{'psu' if side == 'ac' else 'psu.dc'}:{psu.number}"
                place = wall.Place(scope=scope, parent=parent, sums=sums, parts=len(supplies) if sums else 0)
                made.append(_plan_power(wanted, "psu", reading, body, place, side=side))
    return made


def _doubt_supplies(walker: Walker, found: list[Supply]) -> str:
    """Return why the figures of supplies are wrong: a rating, a contradiction, or an efficiency of 100 % or more."""
    for psu in found:
        if psu.doubt:
            return f"{psu.name}: {psu.doubt}"
        if psu.ac is not None and psu.dc is not None:
            into, out = walker.read_field(psu.ac.power), walker.read_field(psu.dc.power)
            if out >= into > 0:  # the load may have changed between the answers
                into, out = walker.read_again(psu.ac.power, psu.dc.power)
            if out >= into > 0:
                return f"{psu.name}: {into:g} W go in and {out:g} W come out, an efficiency of {out / into:.0%}"
    return ""


def _compare_supplies(
    walker: Walker, metered: list[Reading], total: list[Plan], *, is_whole: bool, is_output: bool
) -> str:
    """Return why the figures of all supplies are not the node's: all zero, far from its power, or no output."""
    powers = [reading.power for reading in metered]
    whole = next((field for plan in total[:1] if (field := plan.fields[0])), None)
    if powers and not any(map(walker.read_field, powers)):
        return "all are 0 W: this model does not meter them"
    if not powers or whole is None:
        return ""
    least = LEAST_OUTPUT if is_output else 1 / SUPPLIES_APART
    has_losses = is_output and is_whole and total[0].stream.scope == "node.ac"

    def is_off(node_w: float, watts: float) -> bool:
        is_small, is_full = is_whole and watts < least * node_w, has_losses and watts >= node_w
        return watts > SUPPLIES_APART * node_w or is_small or is_full

    node_w, watts = walker.read_field(whole), sum(map(walker.read_field, powers))
    if is_off(node_w, watts):  # the load may have changed between the answers
        node_w, *again = walker.read_again(whole, *powers)
        watts = sum(again)
    if not is_off(node_w, watts):
        return ""
    # HPE shows the input of each supply as its output.
    is_full = has_losses and watts <= SUPPLIES_APART * node_w
    reason = f"an efficiency of {watts / node_w:.0%}" if is_full else "ratings, or shared with other nodes"
    return f"they sum to {watts:g} W while the node draws {node_w:g} W: {reason}"


def _check_parts(service: Service, found: list[Plan], body: Resource | None) -> list[Plan]:
    """Return the plans without a total that its parts do not allow: below its processors, above its supplies."""
    total = next((plan.fields[0] for plan in found if plan.stream.scope == "node.ac"), None)
    if total is None or body is None:
        return found
    walker, scopes = service.walker, [(plan.stream.scope, plan.fields[0]) for plan in found]
    parts = [field for scope, field in scopes if field and scope.startswith(("gpu:", "cpu:")) and "/" not in scope]
    try:
        capacities = [psu.capacity_w for psu in sources.list_supplies(walker, body)]
        most_w = ABOVE * sum(filter(None, capacities)) if capacities and all(capacities) else HIGHEST_W
        whole, inside = walker.read_field(total), sum(map(walker.read_field, parts))
        if not inside <= ABOVE * whole <= ABOVE * most_w:  # the load may have changed between the answers
            whole, *watts = walker.read_again(total, *parts)
            inside = sum(watts)
    except MeterError:
        return found
    if inside <= ABOVE * whole <= ABOVE * most_w:
        return found
    why = f"its supplies give {most_w / ABOVE:g} W" if whole > most_w else f"its processors alone draw {inside:g} W"
    what = f"{total.place_name} shows {whole:g} W and is not used"
    advice = "name the node's power with chassis = and sensor ="
    service.notes.append(Missing("node.ac", what, why, advice, "meter.contradiction"))
    return [plan for plan in found if plan.stream.scope != "node.ac" and plan.stream.sums != "node.ac"]


# ---- processors and cooling


def _list_processors(service: Service, kind: str, contexts: tuple[str, ...]) -> list[tuple[Resource, Reading | None]]:
    """Return the processors of all systems that have any with a power; those without it hold their number."""
    found: list[tuple[Resource, Reading | None]] = []
    scope = f"{kind.lower()}:N"
    for system in service.systems:
        rows: list[tuple[Resource, Reading | None]] = []
        for one in sources.list_processors(service.walker, system, kind):
            reading, doubt = sources.read_processor(service.walker, one, contexts)
            if doubt and reading is not None:
                service.add_note(scope, f"{one.id}: read from {reading.source}", doubt)
            elif doubt:
                service.notes.append(Missing(scope, f"{one.id}: not read", doubt))
            rows.append((one, reading))
        found += rows if any(reading is not None for _, reading in rows) else []
    return found


def _plan_gpus(service: Service, wanted: Wanted) -> list[Plan]:
    """Return the GPUs of a board with their memory, and the totals that the board shows beside them."""
    found = _list_processors(service, "GPU", kinds.GPUS)
    numbers = list(range(len(found))) if wanted.gpus is None else wanted.gpus
    if found and len(numbers) != len(found):
        raise ConfigError(
            f"gpus has {len(numbers)} numbers for {len(found)} GPUs",
            where=f"meter {wanted.label}",
            next="give one for each, in the order of their modules",
            code="config.gpus",
        )
    made = []
    for number, (gpu, reading) in zip(numbers, found, strict=True):
        if reading is None:
            continue
        scope = f"gpu:{number}"
        plan = _plan_power(wanted, "gpu", reading, gpu, _place_alone(scope), side="gpu")
        device = str(gpu.body.get("UUID") or gpu.body.get("SerialNumber") or gpu.path)
        made.append(replace(plan, stream=_limit_to_sensor(replace(plan.stream, device=device))))
        made += _plan_memory(service, wanted, gpu, scope)
    return made + (_plan_board(service, wanted) if made else [])


def _limit_to_sensor(stream: Stream) -> Stream:
    """Return a GPU's stream with the sight and the errors of the GPU's own sensor, which it shares with NVML."""
    words = stream.model.replace("-", " ").split()
    known = next((number for word, number in _ARCHITECTURES.items() if word in words), None)
    found = find_sensor(known, (8, 0) if known == 7 else None, stream.model)
    about = f"the GPU's own sensor, as NVML shows it: {found.name} sees {found.seen:.0%} of the time; {found.why}"

    def limit_spec(spec: Spec) -> Spec:
        if spec.kind == "state":
            return spec
        reference = f"{spec.accuracy.reference}; {about}"
        accuracy = replace(spec.accuracy, shared=f"nvml:{stream.model}", reference=reference)
        if accuracy.source == "assumed":
            accuracy = replace(accuracy, gain=max(accuracy.gain, found.gain))
        return replace(spec, seen=found.seen, accuracy=accuracy)

    return replace(stream, channels=tuple(map(limit_spec, stream.channels)))


def _plan_memory(service: Service, wanted: Wanted, gpu: Resource, scope: str) -> list[Plan]:
    """Return the stream of a GPU's memory, if the one Memory that it links to shows its power."""
    walker, links = service.walker, list_links(gpu.body.get("Links"), "Memory")
    metrics = walker.follow_link(walker.open_path(links[0]), "EnvironmentMetrics") if len(links) == 1 else None
    reading, doubt = sources.read_environment(walker, metrics, kinds.MEMORIES)
    if doubt:
        service.add_note(f"{scope}/memory", "not read", doubt)
    if reading is None or doubt:
        return []
    place = _place_alone(f"{scope}/memory", parent=scope)
    return [_plan_power(wanted, "gpu_memory", reading, gpu, place, side="gpu")]


def _plan_board(service: Service, wanted: Wanted) -> list[Plan]:
    """Return the totals that a GPU board shows beside its GPUs, as states: they are in no sum."""
    boards = {path for system in service.systems for path in list_links(system.body.get("Links"), "Chassis")}
    for chassis in service.others:
        if not kinds.is_part(chassis) or chassis.path.rstrip("/") not in boards:
            continue
        channels, fields = [], []
        for sensor in sources.list_sensors(service.walker, chassis):
            words, kind = kinds.list_words(sensor.name or sensor.id), find_scale(sensor.body)
            field = sensor.locate_number("Reading", scale=kind[1] if kind else 1.0)
            for part in ("gpu", "hsc"):
                if {"total", part} <= words and kind and kind[0] == "power" and service.walker.has_reading(field):
                    channels.append(Spec(f"total_{part}_power_w", "power", "W"))
                    fields.append(field)
        if channels:
            stream = Stream("board", "board", "board", wanted.period_s, tuple(channels), device=chassis.id)
            return [Plan(stream, tuple(fields))]
    return []


def _plan_cpus(service: Service, wanted: Wanted) -> list[Plan]:
    """Return the CPUs that have a power of their own (Grace)."""
    return [
        _plan_power(wanted, "cpu", reading, cpu, _place_alone(f"cpu:{number}"), side="cpu")
        for number, (cpu, reading) in enumerate(_list_processors(service, "CPU", kinds.CPUS))
        if reading is not None
    ]


def _plan_cooling(service: Service, wanted: Wanted, body: Resource | None) -> list[Plan]:
    found = find_cooling(service.walker, body) if body is not None else []
    if not found or body is None:
        return []
    channels = tuple(Spec(name, "temperature" if unit == "degC" else "speed", unit) for name, unit, _ in found)
    period_s = max(COOLING_S, wanted.period_s)
    device, model = found[0][2].path, _name_model(body)
    stream = Stream("cooling", "cooling", "node", period_s, channels, device=device, model=model)
    return [Plan(stream, tuple(field for _, _, field in found))]


# ---- streams


def _name_model(body: Resource) -> str:
    keys = ("Model",) if "ProcessorType" in body.body else ("Manufacturer", "Model")
    return " ".join(str(body.body[key]) for key in keys if body.body.get(key))


def _place_alone(scope: str, parent: str | None = None) -> wall.Place:
    return wall.Place(scope=scope, parent=parent, sums="", parts=0)


def _plan_power(
    wanted: Wanted, table: str, reading: Reading, body: Resource, place: wall.Place, *, side: str = "ac", name: str = ""
) -> Plan:
    """Return the stream of one reading: power, and energy if it has a counter."""
    shared = wanted.label if side == "ac" else f"{wanted.label}.{side}"
    update_s, lag_s = reading.update_s, wall.BMC_LAG_S
    watts = _state_accuracy(wanted, reading, shared, reading.quantum_w)
    joules = _state_accuracy(wanted, reading, shared, reading.quantum_j)
    channels = (
        Spec("power_w", "power", "W", "power", update_s, update_s, accuracy=watts, lag_s=lag_s),
        Spec("energy_j", "energy", "J", "counter", update_s, accuracy=joules, lag_s=lag_s),
    )
    about: dict[str, Any] = {"device": reading.power.place_name, "model": _name_model(body)}
    name = name or ("node" if table == "node" else place["scope"])
    stream = Stream(name, table, period_s=wanted.period_s, channels=channels, **about, **place)
    return Plan(stream, (reading.power, reading.energy))


def _state_accuracy(wanted: Wanted, reading: Reading, shared: str, quantum: float) -> Accuracy:
    place = f"Redfish {reading.source} ({reading.power.place_name})"
    if reading.gain is not None:
        about = f"{place}: the sensor's own Accuracy property; refreshed every {reading.update_s:g} s"
        default = Accuracy("datasheet", reading.gain, quantum=quantum, shared=shared, reference=about)
    else:
        about = f"{place}: the service states none, {ASSUMED_GAIN:.0%} taken; refreshed every {reading.update_s:g} s"
        default = Accuracy("assumed", ASSUMED_GAIN, quantum=quantum, shared=shared, reference=about)
    return wall.stated(wanted.config, default)


def _drop_unread(found: list[Plan]) -> list[Plan]:
    """Return plans without channels that no stream of their table has: all of one table have the same."""
    kept: dict[str, set[str]] = {}
    for plan in found:
        names = {spec.name for spec, field in zip(plan.stream.channels, plan.fields, strict=True) if field is not None}
        kept.setdefault(plan.stream.table, set()).update(names)
    made = []
    for plan in found:
        pairs = zip(plan.stream.channels, plan.fields, strict=True)
        rows = [(spec, field) for spec, field in pairs if spec.name in kept[plan.stream.table]]
        stream = replace(plan.stream, channels=tuple(spec for spec, _ in rows))
        made.append(Plan(stream, tuple(field for _, field in rows)))
    return made


def _list_places(found: list[Plan]) -> list[Missing]:
    """Return the places of all readings, by family of scopes: no scope changes its source in silence."""
    places: dict[str, dict[str, list[str]]] = {}
    for plan in found:
        name = "cooling" if plan.stream.name == "cooling" else plan.stream.scope
        resources = dict.fromkeys(field.place_name.partition("#")[0] for field in plan.fields if field is not None)
        places.setdefault(find_family(name), {}).setdefault(", ".join(resources), []).append(name)
    texts = {
        family: "; ".join(f"{', '.join(names)} from {place}" for place, names in rows.items())
        for family, rows in places.items()
    }
    return [Missing(family, "read", text, code=SOURCE_NOTE) for family, text in texts.items()]
