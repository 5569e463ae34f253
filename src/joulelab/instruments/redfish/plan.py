"""Plan what to read of a Redfish service: streams, and for each channel the place where its number stands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.hooks import Missing
from joulelab.instruments.redfish import kinds, node, sources
from joulelab.instruments.redfish.cooling import find_cooling
from joulelab.instruments.redfish.gpus import as_own_sensor
from joulelab.instruments.redfish.node import NODE_SOURCES
from joulelab.instruments.redfish.values import HIGHEST_W, Field, find_scale
from joulelab.instruments.redfish.walk import find_link, list_links

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.instruments.redfish.node import Service, Shelf
    from joulelab.instruments.redfish.sources import Reading, Supply
    from joulelab.instruments.redfish.walk import Resource, Walker

SOURCES = (*NODE_SOURCES, "supplies", "gpus", "cpus", "cooling")
COOLING_S = 5.0
# The power of the node is looked for until opening has taken NODE_S, what stands beside it until LOOK_S, unless it is
# asked for in `sources`.
NODE_S, LOOK_S = 60.0, 6.0
ASSUMED_GAIN = 0.05
ABOVE = 1.15  # parts may seem to draw so much more than the whole, which is read at another moment


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
    walker.limit_s = NODE_S if wanted.sources is None else None
    service = node.open_service(walker, wanted.chassis, wanted.label)
    found, chassis = _plan_total(service, wanted)
    shelf = node.find_shelf(service) if not found and wanted.sensor is None and wanted.wants("supplies") else None
    refusal = None
    if shelf is not None:
        found, chassis = _plan_shelf(service, wanted, shelf), shelf.chassis
    elif not found and wanted.sources is None:
        doubtful = node.list_doubtful(service)
        what = "no power of this BMC is certainly that of one node: choose a sensor"
        refusal = node.refuse_choice(service, what, doubtful) if doubtful else None
        if refusal is not None and any(one.chassis in service.nodes for one in doubtful):
            raise refusal
    body = chassis or (service.nodes[0] if len(service.nodes) == 1 else None)
    parts: list[tuple[str, Callable[[], list[Plan]]]] = [
        ("supplies", lambda: _plan_supplies(service, wanted, body, found) if shelf is None else []),
        ("gpus", lambda: _plan_gpus(service, wanted)),
        ("cpus", lambda: _plan_cpus(service, wanted)),
        ("cooling", lambda: _plan_cooling(service, wanted, body)),
    ]
    for name, look in parts:
        if wanted.wants(name):
            beside = name != "supplies" and wanted.sources is None and any(plan.measures for plan in found)
            walker.limit_s = LOOK_S if beside else None
            try:
                found = found + look()
            except (ReadFailed, Unavailable) as error:  # the node's power is worth more than what fails beside it
                service.notes.append(Missing.from_error(name, error))
    walker.limit_s = None
    if wanted.sensor is None and wanted.sources is None:
        found = _check_parts(service, found, body)
    if not any(plan.measures for plan in found) and not (found and wanted.sources == ("cooling",)):
        raise refusal or _refuse_all(service.notes, wanted)
    if refusal is not None:
        service.notes.append(Missing.from_error("node.ac", refusal))
    return _even_steps(found), service.notes


def _plan_total(service: Service, wanted: Wanted) -> tuple[list[Plan], Resource | None]:
    """Return the streams of the whole node, and its chassis. Raises ConfigError where several may be it."""
    if wanted.sensor is not None:
        chosen = [node.find_named(service, wanted.sensor)]
    else:
        chosen = node.choose_total(service, wanted.sources)
    made = []
    for one in chosen:
        name = "node" if len(chosen) == 1 else f"node.{one.kind}"
        place = wall.place(wanted.config, "node.ac")
        made.append(_plan(wanted, name, "node", place, one.reading, model=_name_model(one.chassis)))
    return made, chosen[0].chassis if chosen else None


def _plan_shelf(service: Service, wanted: Wanted, shelf: Shelf) -> list[Plan]:
    """Return the streams of a power shelf: its own total, and its supplies, whose inputs sum to the rack."""
    rack = wall.feeds_of(wanted.config, "rack")
    model, made = _name_model(shelf.chassis), []
    doubt = _doubt_supplies(service.walker, shelf.supplies)
    if doubt:
        raise Unavailable("the figures of the shelf's supplies cannot be", where=wanted.label, why=doubt)
    if shelf.total is not None:
        place = wall.Place(scope=rack, parent=None, sums="", parts=0)
        made.append(_plan(wanted, "rack", "node", place, shelf.total.reading, model=model))
    else:
        names = ", ".join(psu.name for psu in shelf.supplies)
        service.note(rack, f"read as the sum of the supplies {names}", "the shelf shows no total of its own")
    _note_supplies(service, shelf.chassis, shelf.supplies)
    for psu in shelf.supplies:
        for side, scope, sums in (("ac", "psu", rack), ("dc", "psu.dc", "")):
            reading = getattr(psu, side)
            if reading is not None:
                parts = len(shelf.supplies) if sums else 0
                place = wall.Place(scope=f"{scope}:{psu.number}", parent=rack, sums=sums, parts=parts)
                made.append(_plan(wanted, place["scope"], "psu", place, reading, model=model, side=side, lines=True))
    service.note("node.ac", "this is a power shelf", f"{shelf.chassis.id} feeds {rack}, not one node")
    return made


def _plan_supplies(service: Service, wanted: Wanted, body: Resource | None, total: list[Plan]) -> list[Plan]:
    found = sources.list_supplies(service.walker, body) if body is not None else []
    if not total and wanted.sources is None:  # nothing tells readings of supplies from ratings or repeats
        metered = [reading for psu in found if (reading := psu.ac or psu.dc)]
        if metered:
            watts = ", ".join(f"{service.walker.read(reading.power):g} W" for reading in metered)
            what = "the sum of the supplies is not certainly the node's power"
            service.note("supplies", what, f'they show {watts}; sources = ["supplies"] adds them')
        return []
    _note_supplies(service, body, found)
    doubt = _doubt_supplies(service.walker, found)
    if doubt:
        service.note("psu:N", "the supplies' own figures are not used", doubt)
        return []
    made: list[Plan] = []
    for side, feeds, scope in (("ac", wall.feeds_of(wanted.config, "node.ac"), "psu"), ("dc", "node.dc", "psu.dc")):
        metered = [reading for psu in found if (reading := getattr(psu, side)) is not None]
        if found and not metered:
            why_not = "null, absent, or a rating where a reading should be"
            service.note(f"{scope}:N", f"the supplies' {side.upper()} side is not metered", why_not)
        why = _compare_supplies(service.walker, metered, total, is_whole=len(metered) == len(found))
        if why:
            service.note(f"{scope}:N", "the supplies' own figures are not used", why)
            continue
        for psu in found:
            reading = getattr(psu, side)
            if reading is not None:
                place = wall.Place(scope=f"{scope}:{psu.number}", parent=feeds, sums=feeds, parts=len(found))
                model = _name_model(body)
                made.append(_plan(wanted, place["scope"], "psu", place, reading, model=model, side=side, lines=True))
    return sorted(made, key=lambda plan: int(plan.stream.scope.rpartition(":")[2]))


def _note_supplies(service: Service, body: Resource | None, found: list[Supply]) -> None:
    """Name the source of supplies, where it is not the PowerSubsystem that the chassis has."""
    source = next((reading.source for psu in found for reading in (psu.ac, psu.dc) if reading is not None), "")
    is_other = source.startswith(("Power,", "Sensors")) and source != "Sensors of a power supply"
    if source:
        _note_numbers(service, "psu:N", [psu.name for psu in found], 1)
    if is_other and body is not None and find_link(body.body, "PowerSubsystem"):
        service.note("psu:N", f"read from {source}", "PowerSubsystem shows no power of the supplies")


def _note_numbers(service: Service, scope: str, names: list[str], first: int) -> None:
    """Tell which device has which number, where the device's own numbers differ: one may be missing among them."""
    numbers = [sources.find_number(name) for name in names]
    if any(numbers) and numbers != list(range(first, first + len(names))):
        what = f"numbered {', '.join(str(number) for number in range(first, first + len(names)))} in this order"
        service.note(scope, what, ", ".join(names))


def _doubt_supplies(walker: Walker, found: list[Supply]) -> str:
    """Return why the figures of supplies cannot be: a rating, a contradiction, or more that comes out than goes in."""
    for psu in found:
        if psu.doubt:
            return f"{psu.name}: {psu.doubt}"
        if psu.ac is not None and psu.dc is not None:
            into, out = walker.read(psu.ac.power), walker.read(psu.dc.power)
            if out >= into > 0:
                return f"{psu.name}: {into:g} W go in and {out:g} W come out, an efficiency of {out / into:.0%}"
    return ""


def _compare_supplies(walker: Walker, metered: list[Reading], total: list[Plan], *, is_whole: bool) -> str | None:
    """Return why the figures of all supplies are no readings: all zero, or far from the node's power."""
    watts = [walker.read(reading.power) for reading in metered]
    if watts and not any(watts):
        return "all are 0 W: this model does not meter them"
    node_w = next((walker.read(field) for plan in total[:1] if (field := plan.fields[0])), None)
    if not watts or node_w is None:
        return None
    if sum(watts) > 1.5 * node_w or (is_whole and sum(watts) < 0.5 * node_w):
        return f"they sum to {sum(watts):g} W while the node draws {node_w:g} W: ratings, not readings"
    return None


def _check_parts(service: Service, found: list[Plan], body: Resource | None) -> list[Plan]:
    """Return the plans without a total that its parts do not allow: below its processors, above what supplies give."""
    total = next((plan.fields[0] for plan in found if plan.stream.scope == "node.ac"), None)
    if total is None or body is None:
        return found
    scopes = [(plan.stream.scope, plan.fields[0]) for plan in found]
    parts = [field for scope, field in scopes if field and scope.startswith(("gpu:", "cpu:")) and "/" not in scope]
    for again in (False, True):
        try:
            capacities = [psu.capacity_w for psu in sources.list_supplies(service.walker, body)]
            most_w = ABOVE * sum(filter(None, capacities)) if capacities and all(capacities) else HIGHEST_W
            whole, inside = service.walker.read(total), sum(map(service.walker.read, parts))
        except MeterError:
            return found
        if inside <= ABOVE * whole <= ABOVE * most_w:
            return found
        if not again:
            service.walker.forget(total, *parts)
    is_above = whole > most_w
    why = f"its supplies give {most_w / ABOVE:g} W" if is_above else f"its processors alone draw {inside:g} W"
    what, advice = (
        f"{total.name} shows {whole:g} W and is not used",
        "name the node's power with chassis = and sensor =",
    )
    service.notes.append(Missing("node.ac", what, why, advice, "meter.contradiction"))
    return [plan for plan in found if plan.stream.scope != "node.ac" and plan.stream.sums != "node.ac"]


def _list_processors(service: Service, kind: str, contexts: tuple[str, ...]) -> list[tuple[Resource, Reading | None]]:
    """Return the processors of all systems that have any with a power; those without it hold their number."""
    found: list[tuple[Resource, Reading | None]] = []
    for system in service.systems:
        rows: list[tuple[Resource, Reading | None]] = []
        for one in sources.list_processors(service.walker, system, kind):
            reading, doubt = sources.read_processor(service.walker, one, contexts)
            if doubt:
                where = f"read from {reading.source}" if reading is not None else "not read"
                service.note(f"{kind.lower()}:N", f"{one.id}: {where}", doubt)
            rows.append((one, reading))
        found += rows if any(reading is not None for _, reading in rows) else []
    if found:
        _note_numbers(service, f"{kind.lower()}:N", [one.id for one, _ in found], 0)
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
        )
    made = []
    for number, (gpu, reading) in zip(numbers, found, strict=True):
        if reading is None:
            continue
        scope, model = f"gpu:{number}", str(gpu.body.get("Model") or "")
        device = str(gpu.body.get("UUID") or gpu.body.get("SerialNumber") or gpu.path)
        place = wall.Place(scope=scope, parent=None, sums="", parts=0)
        plan = _plan(wanted, scope, "gpu", place, reading, model=model, side="gpu")
        made.append(replace(plan, stream=as_own_sensor(replace(plan.stream, device=device), model)))
        made += _plan_memory(service, wanted, gpu, scope, model)
    return made + (_plan_board(service, wanted) if made else [])


def _plan_memory(service: Service, wanted: Wanted, gpu: Resource, scope: str, model: str) -> list[Plan]:
    """Return the stream of a GPU's memory, where the one Memory that it links to shows its power."""
    links = list_links(gpu.body.get("Links"), "Memory")
    metrics = service.walker.follow(service.walker.open(links[0]), "EnvironmentMetrics") if len(links) == 1 else None
    reading, doubt = sources.read_environment(service.walker, metrics, kinds.MEMORIES)
    if doubt:
        service.note(f"{scope}/memory", "not read", doubt)
    if reading is None or doubt:
        return []
    place = wall.Place(scope=f"{scope}/memory", parent=scope, sums="", parts=0)
    return [_plan(wanted, place["scope"], "gpu_memory", place, reading, model=model, side="gpu")]


def _plan_board(service: Service, wanted: Wanted) -> list[Plan]:
    """Return the totals that a GPU board shows beside its GPUs, as states: they are in no sum."""
    boards = {path for system in service.systems for path in list_links(system.body.get("Links"), "Chassis")}
    for chassis in service.others:
        if not kinds.is_part(chassis) or chassis.path.rstrip("/") not in boards:
            continue
        channels, fields = [], []
        for sensor in sources.list_sensors(service.walker, chassis):
            words, kind = kinds.list_words(sensor.name or sensor.id), find_scale(sensor.body)
            field = sensor.locate("Reading", scale=kind[1] if kind else 1.0)
            for part in ("gpu", "hsc"):
                if {"total", part} <= words and kind and kind[0] == "power" and service.walker.is_read(field):
                    channels.append(Spec(f"total_{part}_power_w", "power", "W"))
                    fields.append(field)
        if channels:
            stream = Stream("board", "board", "board", wanted.period_s, tuple(channels), device=chassis.id)
            return [Plan(stream, tuple(fields))]
    return []


def _plan_cpus(service: Service, wanted: Wanted) -> list[Plan]:
    """Return the CPUs that have a power of their own (Grace)."""
    made = []
    for number, (cpu, reading) in enumerate(_list_processors(service, "CPU", kinds.CPUS)):
        if reading is not None:
            place = wall.Place(scope=f"cpu:{number}", parent=None, sums="", parts=0)
            model = str(cpu.body.get("Model") or "")
            made.append(_plan(wanted, place["scope"], "cpu", place, reading, model=model, side="cpu"))
    return made


def _plan_cooling(service: Service, wanted: Wanted, body: Resource | None) -> list[Plan]:
    found = find_cooling(service.walker, body) if body is not None else []
    if not found or body is None:
        return []
    source, better = found[0][2].path, []
    for key in ("Thermal", "EnvironmentMetrics"):
        if source == find_link(body.body, key):
            break
        better.append(f"{key} shows no fans" if find_link(body.body, key) else f"{body.id} has no {key}")
    if better:
        service.note("cooling", f"read from {source}", "; ".join(better))
    channels = tuple(Spec(name, "temperature" if unit == "degC" else "speed", unit) for name, unit, _ in found)
    period_s = max(COOLING_S, wanted.period_s)
    device = found[0][2].path.split("?")[0]
    stream = Stream("cooling", "cooling", "node", period_s, channels, device=device, model=_name_model(body))
    return [Plan(stream, tuple(field for _, _, field in found))]


def _name_model(chassis: Resource | None) -> str:
    body = chassis.body if chassis is not None else {}
    return " ".join(str(body.get(key)) for key in ("Manufacturer", "Model") if body.get(key))


def _plan(
    wanted: Wanted,
    name: str,
    table: str,
    place: wall.Place,
    reading: Reading,
    *,
    model: str,
    side: str = "ac",
    lines: bool = False,
) -> Plan:
    """Return the stream of one reading: power, energy, with `lines` voltage and current, age where it is told."""
    shared = wanted.label if side == "ac" else f"{wanted.label}.{side}"
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


def _even_steps(found: list[Plan]) -> list[Plan]:
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


def _refuse_all(missing: list[Missing], wanted: Wanted) -> MeterError:
    why = "; ".join(f"{m.scope}: {m.what} ({m.why})" if m.why else f"{m.scope}: {m.what}" for m in missing)
    advice = "use a PDU or IPMI" if wanted.sources is None else "leave sources out to see all that there is"
    return Unavailable(
        "the BMC gives no power by Redfish", where=wanted.label, why=why or "no source has a reading", next=advice
    )
