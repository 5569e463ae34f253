"""Choose the power of the whole node among all that a Redfish service shows; where none is certain, list them.

A power is certain if its chassis belongs to exactly one computer system and is no part or equipment, and the resource
says that it measures the whole chassis. Otherwise nothing is chosen: the error lists each power with what to type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Unavailable
from joulelab.core.text import suggest_name
from joulelab.instruments.hooks import Missing
from joulelab.instruments.redfish import kinds, sources, values
from joulelab.instruments.redfish.walk import find_link

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.instruments.redfish.sources import Candidate, Supply
    from joulelab.instruments.redfish.walk import Resource, Walker

# Where the whole node's power may stand, the best first.
NODE_SOURCES = ("environment", "power", "sensors")
NAMED_APART = 1.05  # two powers of one node that differ by more than this factor are named, by more than 2 refused
SHELF_APART = 0.1  # of a shelf's own total and the sum of its supplies
_LISTED = 12  # candidates in an error: the largest, since the whole draws more than its parts


@dataclass(slots=True)
class Service:
    """Hold the chassis and systems of a service: nodes are chassis that belong to one system each."""

    walker: Walker
    label: str
    systems: list[Resource]
    nodes: list[Resource]
    others: list[Resource]
    is_named: bool  # the configuration names the chassis
    notes: list[Missing] = field(default_factory=list)

    def note(self, scope: str, what: str, why: str) -> None:
        """Keep a remark on a reading that is not used."""
        self.notes.append(Missing(scope, what, why, code="meter.unused"))


def open_service(walker: Walker, chassis: str | None, label: str) -> Service:
    """Return the chassis that are nodes, and all others. Raises Unavailable, ConfigError."""
    every = walker.list_members(walker.follow(walker.root, "Chassis"))
    if not every:
        raise Unavailable(
            "the service has no chassis", where=label, why="Redfish without Chassis", next="check the firmware"
        )
    systems = [one for one in walker.list_members(walker.follow(walker.root, "Systems")) if kinds.is_node_system(one)]
    if chassis is not None:
        named = [one for one in every if chassis in (one.id, one.name)]
        if not named:
            advice = suggest_name(chassis, [one.id for one in every])
            raise ConfigError(f"there is no chassis {chassis!r}", where=f"meter {label}", next=advice)
        return Service(walker, label, systems, named, [one for one in every if one not in named], is_named=True)
    whole = [one for one in every if not kinds.is_part(one) and not kinds.is_equipment(one)]
    nodes = [one for one in whole if len(kinds.find_owners(one, systems)) == 1]
    if len(systems) == 1 and not any(kinds.find_owners(one, systems) for one in whole):
        nodes = whole  # a service without links may have one system in one of its chassis
    return Service(walker, label, systems, nodes, [one for one in every if one not in nodes], is_named=False)


def choose_total(service: Service, wanted: Sequence[str] | None) -> list[Candidate]:
    """Return the power of the node, or one of each wanted source; empty where none is certain.

    Raises ConfigError where several chassis may be this node, or where two totals of one chassis contradict.
    """
    shown = [(chassis, found) for chassis in service.nodes if (found := _choose_in(service, chassis, wanted))]
    shown.sort(key=lambda one: one[0].id)
    owners = {owner for one in service.nodes for owner in kinds.find_owners(one, service.systems)}
    owned = {owner for one in service.others for owner in kinds.find_owners(one, service.systems)} | owners
    lost = [one.id for one in service.systems if one.path not in owned and len(service.systems) > 1]
    blades = [one for one in service.others if one.body.get("ChassisType") in ("Blade", "Sled")]
    lost += [one.id for one in blades if not kinds.is_equipment(one)]  # nodes whose systems are not listed
    lost += _list_lost(service.walker)
    if len(shown) > 1 or (shown and (len(owners) > 1 or lost) and not service.is_named):
        listed = [f'{found[0].watts:g} W with chassis = "{chassis.id}"' for chassis, found in shown]
        empty = [one.id for one in service.nodes if one not in [chassis for chassis, _ in shown]]
        raise ConfigError(
            "several chassis are nodes",
            where=f"meter {service.label}",
            why="; ".join([*listed, *(f"{name} shows no power" for name in empty + lost)]),
            next=f'set chassis = "{shown[0][0].id}", or the one that is this node',
            code="config.several-powers",
        )
    if shown:
        return shown[0][1]
    # ChassisType Card and other boards, where nothing else has power (Intel).
    boards = [
        one
        for chassis in service.others
        if kinds.is_part(chassis) and (wanted is None or "power" in wanted)
        for one in sources.list_totals(service.walker, chassis, service.systems)
        if sources.is_of_system(one, service.systems)
    ]
    if len(boards) != 1:
        return []
    board = boards[0].chassis
    why = f"{board.id} is a {board.body.get('ChassisType')}, and no other chassis has a certain power"
    service.note("node.ac", f"read from {boards[0].reading.source}", why)
    return boards


def _list_lost(walker: Walker) -> list[str]:
    """Return the computer systems that are listed and do not answer."""
    listed = walker.follow(walker.root, "Systems")
    paths = values.list_rows(listed.body, "Members") if listed is not None else []
    return [path for row in paths if (path := find_link(row)) is not None and walker.open(path) is None]


def _choose_in(service: Service, chassis: Resource, wanted: Sequence[str] | None) -> list[Candidate]:
    totals = sources.list_totals(service.walker, chassis, service.systems)
    certain = [one for one in totals if not one.doubt and (wanted is None or one.kind in wanted)]
    if wanted is None:
        certain = _compare(service, certain)
    if (not certain or wanted is not None) and (wanted is None or "sensors" in wanted):
        sensors = sources.list_power_sensors(service.walker, chassis, service.systems)
        whole = [one for one in sensors if not one.doubt]
        certain += whole if len(whole) == 1 else []
    _note_unused(service, chassis, totals, certain, wanted)
    return certain


def _compare(service: Service, certain: list[Candidate]) -> list[Candidate]:
    """Return the first total; name the second where it differs. Raises ConfigError where both cannot be the node's."""
    if len(certain) < 2:
        return certain
    first, second = certain[0], certain[1]
    if sources.are_apart(first.watts, second.watts):  # the load may have changed between the two answers
        fields = [first.reading.power, second.reading.power]
        service.walker.forget(*fields)
        try:
            watts = [service.walker.read(field) for field in fields]
        except MeterError:
            watts = [first.watts, second.watts]
        if sources.are_apart(*watts):
            what = f"EnvironmentMetrics and PowerControl of {first.chassis.id} contradict: choose a sensor"
            raise refuse_choice(service, what, certain)
        return [first]
    low, high = sorted((first.watts, second.watts))
    if high > NAMED_APART * low:
        service.note("node.ac", f"{second.reading.source} shows {second.watts:g} W and is not used",
                     f"{first.reading.source} shows {first.watts:g} W")  # fmt: skip
    return [first]


def _note_unused(
    service: Service, chassis: Resource, totals: list[Candidate], certain: list[Candidate], wanted: Sequence[str] | None
) -> None:
    """Name each better place than the chosen one and why it is not used, so that no source changes in silence."""
    chosen = certain[0].kind if certain else ""
    reasons = [
        f"{one.reading.source} shows {one.watts:g} W: {one.doubt}"
        for one in totals
        if one.doubt not in ("", sources.NAME_DOUBT)
    ]
    for kind, key in (("environment", "EnvironmentMetrics"), ("power", "Power")):
        if kind == chosen:
            break
        if any(one.kind == kind for one in totals) or not (wanted is None or kind in wanted):
            continue
        resource = service.walker.follow(chassis, key)
        is_there = resource is not None
        reasons.append(f"{key}: {_explain(service, resource, kind)}" if is_there else f"{chassis.id} has no {key}")
    if certain and reasons:
        service.note("node.ac", f"read from {certain[0].reading.source}", "; ".join(reasons))
    elif reasons:
        service.note("node.ac", f"chassis {chassis.id} shows no power of the whole node", "; ".join(reasons))


def _explain(service: Service, resource: Resource | None, kind: str) -> str:
    if kind == "environment":
        return sources.read_environment(service.walker, resource)[1] or "PowerWatts is absent"
    rows = [row for row, _, _ in sources.find_controls(resource) if row] if resource is not None else []
    if any(row.get("PowerConsumedWatts") == 0 for row in rows):
        return "it answers 0 W: this model has no power meter"
    return f"PowerControl members: {', '.join(str(row.get('Name') or 'without a name') for row in rows) or 'none'}"


def find_named(service: Service, name: str) -> Candidate:
    """Return the reading that `sensor` names. Raises ConfigError."""
    every: list[Candidate] = []
    for group in (service.nodes, [] if service.is_named else service.others):
        every += [one for chassis in group for one in _list_candidates(service, chassis)]
        meant = [one for one in every if one.names[0] == name] or [one for one in every if name in one.names]
        if len(meant) == 1:
            if _is_out(meant[0]):
                what = f"sensor {name!r} is not read: {meant[0].doubt}"
                raise ConfigError(what, where=f"meter {service.label}", why=_list_texts(every), next="choose another")
            return meant[0]
        if meant:
            raise ConfigError(
                f"several sensors are {name!r}",
                where=f"meter {service.label}",
                why=_list_texts(meant),
                next="give the Id of one, or chassis = too",
            )
    what = f"there is no power sensor {name!r}"
    raise ConfigError(what, where=f"meter {service.label}", why=_list_texts(every), next="give one of those")


def _list_candidates(service: Service, chassis: Resource, *, sensors: bool = True) -> list[Candidate]:
    found = sources.list_totals(service.walker, chassis, service.systems)
    return found + (sources.list_power_sensors(service.walker, chassis, service.systems) if sensors else [])


def list_doubtful(service: Service) -> list[Candidate]:
    """Return every power that may be the node's, the largest first; of boards only what Power and metrics show."""
    found = []
    for chassis in service.nodes if service.is_named else service.nodes + service.others:
        is_board = kinds.is_part(chassis) and not service.is_named
        try:
            found += _list_candidates(service, chassis, sensors=not is_board)
        except ReadFailed as error:  # too slow: list what was seen
            service.notes.append(Missing.from_error("node.ac", error))
            break
    return sorted(found, key=lambda one: -one.watts)


def refuse_choice(service: Service, what: str, found: list[Candidate]) -> ConfigError:
    """Return the refusal that lists each power with what to type."""
    usable = [one for one in found if not _is_out(one)] or found
    best = max(usable, key=lambda one: one.watts)
    advice = f"if one of them is this node, set {_type_keys(best, found)}"
    if not service.systems or kinds.is_equipment(best.chassis):
        advice += ', and feeds = "rack" where it feeds several nodes'
    return ConfigError(
        what, where=f"meter {service.label}", why=_list_texts(found), next=f"{advice}; or use a PDU or IPMI",
        code="config.several-powers",
    )  # fmt: skip


def _list_texts(found: Iterable[Candidate]) -> str:
    rows = sorted(found, key=lambda one: -one.watts)
    texts = [
        f"{one.watts:g} W of {one.names[0]!r}, not read: {one.doubt}"
        if _is_out(one)
        else f"{one.watts:g} W with {_type_keys(one, rows)}" + (f" ({one.doubt})" if one.doubt else "")
        for one in rows
    ]
    cut = f"; and {len(texts) - _LISTED} smaller" if len(texts) > _LISTED else ""
    return f"it shows {'; '.join(texts[:_LISTED]) or 'none'}{cut}"


def _is_out(one: Candidate) -> bool:
    return one.doubt.endswith(values.OUT_OF_SERVICE)


def _type_keys(one: Candidate, every: Sequence[Candidate]) -> str:
    """Return the settings that choose one candidate: its Name where only one has it, else its Id."""
    same = [other for other in every if other.chassis == one.chassis and other.names[0] == one.names[0]]
    return f'chassis = "{one.chassis.id}", sensor = "{one.names[0] if len(same) == 1 else one.names[-1]}"'


@dataclass(frozen=True, slots=True)
class Shelf:
    """Hold a power shelf: its chassis, its supplies, and its own total where that agrees with their sum."""

    chassis: Resource
    supplies: list[Supply]
    total: Candidate | None


def find_shelf(service: Service) -> Shelf | None:
    """Return the one chassis that has metered supplies, in a service without computer systems; else None.

    Raises ConfigError where the shelf's own total contradicts the sum of the supplies.
    """
    walker = service.walker
    listed = walker.follow(walker.root, "Systems")
    if find_link(walker.root.body, "Fabrics"):
        return None  # a switch
    if find_link(walker.root.body, "Systems") and (listed is None or values.list_rows(listed.body, "Members")):
        return None
    found = []
    for chassis in service.nodes if service.is_named else service.nodes + service.others:
        supplies = sources.list_supplies(walker, chassis)
        if not any(psu.ac or psu.dc for psu in supplies):
            supplies = sources.list_supply_sensors(walker, chassis)
        named = " ".join(f"{psu.name} {psu.ac.source}" for psu in supplies if psu.ac)
        if named and kinds.is_shelf(chassis, named):
            found.append((chassis, supplies))
    if len(found) != 1:
        return None
    chassis, supplies = found[0]
    if any(psu.ac is None for psu in supplies):
        return Shelf(chassis, supplies, None)
    watts = sum(walker.read(psu.ac.power) for psu in supplies if psu.ac is not None)
    totals = [one for one in _list_candidates(service, chassis) if kinds.names_total(one.names[0])]
    totals = [one for one in totals if one.doubt in ("", "its PhysicalContext is not stated")]
    agreed = [one for one in totals if abs(one.watts - watts) <= SHELF_APART * watts]
    if totals and not agreed:
        what = f"the supplies of the shelf {chassis.id} sum to {watts:g} W, which its own total contradicts"
        raise refuse_choice(service, f"{what}: choose a sensor", totals)
    return Shelf(chassis, supplies, agreed[0] if len(agreed) == 1 else None)
