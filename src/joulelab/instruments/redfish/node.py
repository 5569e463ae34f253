"""Choose the power of the whole node among all that a Redfish service shows; if none is certain, list them.

A power is certain if its chassis belongs to exactly one computer system and is no part or equipment, and the resource
measures the whole chassis by its own words. Otherwise nothing is chosen: the error lists each power with the settings
that choose it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, MeterError, ReadFailed, Unavailable
from joulelab.core.text import suggest_name
from joulelab.instruments.hooks import SOURCE_NOTE, Missing
from joulelab.instruments.redfish import kinds, sources, values
from joulelab.instruments.redfish.walk import find_link, list_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.instruments.redfish.sources import Candidate
    from joulelab.instruments.redfish.walk import Resource, Walker

SEVERAL = "config.several-powers"
KINDS = ("environment", "power", "sensors")  # of places of the node's power, the best first
NAMED_APART = 1.05  # two powers of one node that differ by more than this factor are named, by more than 2 refused
NO_NODE = "no node draws this"
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
    is_linked: bool = True  # links or Ids show which chassis is the system's
    notes: list[Missing] = field(default_factory=list)

    def add_note(self, scope: str, what: str, why: str) -> None:
        """Keep a remark on the source of a reading, or on a reading that is not used."""
        self.notes.append(Missing(scope, what, why, code=SOURCE_NOTE))


def open_service(walker: Walker, chassis: str | None, label: str) -> Service:
    """Return the chassis that are nodes, and all others. Raises Unavailable, ConfigError."""
    every = walker.list_members(walker.follow_link(walker.root, "Chassis"))
    if not every:
        raise Unavailable(
            "the service has no chassis",
            where=label,
            why="Redfish without Chassis",
            next="check the firmware",
            code="unavailable.no-chassis",
        )
    listed = walker.list_members(walker.follow_link(walker.root, "Systems"))
    systems = [one for one in listed if one.body.get("SystemType") not in kinds.NO_NODES]
    if chassis is not None:
        named = [one for one in every if chassis in (one.id, one.name)]
        if not named:
            advice = suggest_name(chassis, [one.id for one in every])
            what = f"there is no chassis {chassis!r}"
            raise ConfigError(what, where=f"meter {label}", next=advice, code="config.no-chassis")
        return Service(walker, label, systems, named, [one for one in every if one not in named], is_named=True)
    whole = [one for one in every if not kinds.is_part(one) and not kinds.is_equipment(one)]
    nodes = [one for one in whole if len(kinds.find_owners(one, systems)) == 1]
    is_linked = len(systems) != 1 or any(kinds.find_owners(one, systems) for one in whole)
    if not is_linked:
        nodes = whole  # a service without links may have one system in one of its chassis
    others = [one for one in every if one not in nodes]
    return Service(walker, label, systems, nodes, others, is_named=False, is_linked=is_linked)


def choose_total(service: Service) -> Candidate | None:
    """Return the power of the node, None if none is certain.

    Raises ConfigError if several chassis may be this node, or if two totals of one chassis contradict.
    """
    shown = [found for chassis in service.nodes if (found := _choose_in(service, chassis)) is not None]
    shown.sort(key=lambda one: one.chassis.id)
    owners = {owner for one in service.nodes for owner in kinds.find_owners(one, service.systems)}
    lost = _list_unseen_nodes(service, owners)
    if len(shown) > 1 or (shown and (len(owners) > 1 or lost) and not service.is_named):
        empty = [one.id for one in service.nodes if one not in [found.chassis for found in shown]]
        rows, then = [(one.watts, one.chassis.id) for one in shown], "or the one that is this node"
        raise refuse_several(service.label, "several chassis are nodes", rows, then, empty + lost)
    if shown:
        return shown[0]
    # Intel: a Card that belongs to one system has the one PowerControl that is named as the power of the system.
    boards = [
        one
        for chassis in service.others
        if kinds.is_part(chassis) and len(kinds.find_owners(chassis, service.systems)) == 1
        for one in _list_totals(service, chassis)[0]
        if one.kind == "power" and not one.doubt and kinds.list_words(one.names[0]) & kinds.NODE_WORDS
    ]
    if len(boards) != 1:
        return None
    board = boards[0].chassis
    why = f"{board.id} is a {board.body.get('ChassisType')}, and no other chassis has a certain power"
    service.add_note("node.ac", f"read from {boards[0].reading.source}", why)
    return boards[0]


def refuse_several(
    label: str, what: str, rows: list[tuple[float, str]], then: str, empty: Sequence[str] = ()
) -> ConfigError:
    """Return the refusal that lists watts and Id of each chassis, and those that show no power."""
    texts = [f'{watts:g} W with chassis = "{name}"' for watts, name in rows]
    why = "; ".join([*texts, *(f"{name} shows no power" for name in empty)])
    advice = f'set chassis = "{rows[0][1]}", {then}'
    error = ConfigError(what, where=f"meter {label}", why=why, next=advice, code=SEVERAL)
    error.choices = tuple((text, {"chassis": name}) for text, (_, name) in zip(texts, rows, strict=True))
    return error


def _list_unseen_nodes(service: Service, owners: set[str]) -> list[str]:
    """Return systems without a chassis, blades without a system, and systems that are listed and do not answer."""
    owned = {owner for one in service.others for owner in kinds.find_owners(one, service.systems)} | owners
    found = [one.id for one in service.systems if one.path not in owned and len(service.systems) > 1]
    blades = [one for one in service.others if one.body.get("ChassisType") in kinds.BLADE_TYPES]
    found += [one.id for one in blades if not kinds.is_equipment(one)]
    listed = service.walker.follow_link(service.walker.root, "Systems")
    rows = values.list_rows(listed.body, "Members") if listed is not None else []
    return found + [path for row in rows if (path := find_link(row)) and service.walker.open_path(path) is None]


def _choose_in(service: Service, chassis: Resource) -> Candidate | None:
    totals, reasons = _list_totals(service, chassis)
    chosen = _compare_totals(service, [one for one in totals if not one.doubt])
    if chosen is None:
        sensors = _list_sensors(service, chassis)
        whole = [one for one in sensors if not one.doubt]
        chosen = whole[0] if len(whole) == 1 else None
    # Name each better place than the chosen one and why it is not used, so that no source changes in silence.
    better = KINDS[: KINDS.index(chosen.kind)] if chosen is not None else KINDS
    doubts = [one for one in totals if one.doubt not in ("", sources.NAME_DOUBT)]
    texts = [f"{one.reading.source} shows {one.watts:g} W: {one.doubt}" for one in doubts]
    texts += [reasons[kind] for kind in better if kind in reasons]
    if chosen is not None and texts:
        service.add_note("node.ac", f"read from {chosen.reading.source}", "; ".join(texts))
    elif texts:
        service.add_note("node.ac", f"chassis {chassis.id} shows no power of the whole node", "; ".join(texts))
    return chosen


def _list_totals(service: Service, chassis: Resource) -> tuple[list[Candidate], dict[str, str]]:
    """Return the totals of a chassis, and why it lacks one; a board needs a name of a total for a certain one."""
    totals, reasons = sources.list_totals(service.walker, chassis, service.systems)
    above = list_links(chassis.body.get("Links"), "ContainedBy")
    outer = [one.id for one in service.nodes if one.path.rstrip("/") in above]
    is_blade = chassis.body.get("ChassisType") in kinds.BLADE_TYPES
    doubt = ""
    if outer and not is_blade:
        doubt = f"its chassis is inside {outer[0]}"
    elif not service.is_linked and len(service.nodes) > 1:
        doubt = "no link shows which chassis is the system's"
    if doubt and not service.is_named and chassis in service.nodes:
        totals = [one if one.doubt or kinds.names_total(one.names[0]) else replace(one, doubt=doubt) for one in totals]
    return _doubt_range(totals), reasons


def _list_sensors(service: Service, chassis: Resource) -> list[Candidate]:
    return _doubt_range(sources.list_power_sensors(service.walker, chassis, service.systems))


def _doubt_range(found: list[Candidate]) -> list[Candidate]:
    """Return candidates with a doubt on totals of a size that no node has: in kW, of standby, or 65535."""
    low, high = values.NODE_W
    return [one if one.doubt or low <= one.watts <= high else replace(one, doubt=NO_NODE) for one in found]


def _compare_totals(service: Service, certain: list[Candidate]) -> Candidate | None:
    """Return the first total; name the second if it differs. Raises ConfigError if both cannot be the node's."""
    if len(certain) < 2:
        return certain[0] if certain else None
    first, second = certain[0], certain[1]
    if sources.are_apart(first.watts, second.watts):  # the load may have changed between the two answers
        try:
            watts = service.walker.read_again(first.reading.power, second.reading.power)
        except MeterError:
            watts = [first.watts, second.watts]
        if sources.are_apart(*watts):
            what = f"EnvironmentMetrics and PowerControl of {first.chassis.id} contradict"
            raise refuse_choice(service, what, certain)
    elif max(first.watts, second.watts) > NAMED_APART * min(first.watts, second.watts):
        what = f"{second.reading.source} shows {second.watts:g} W and is not used"
        service.add_note("node.ac", what, f"{first.reading.source} shows {first.watts:g} W")
    return first


def find_named(service: Service, name: str) -> Candidate:
    """Return the reading that `sensor` names. Raises ConfigError."""
    every: list[Candidate] = []
    where = f"meter {service.label}"
    for group in (service.nodes, [] if service.is_named else service.others):
        every += [one for chassis in group for one in list_candidates(service, chassis)]
        meant = [one for one in every if one.names[0] == name] or [one for one in every if name in one.names]
        if len(meant) == 1 and _is_out(meant[0]):
            what, then = f"sensor {name!r} is not read: {meant[0].doubt}", "choose another"
            raise ConfigError(what, where=where, why=_word_list(every), next=then, code="config.out-of-service")
        if len(meant) == 1:
            return meant[0]
        if meant:
            what, then = f"several sensors are {name!r}", "give the Id of one, or chassis = too"
            raise ConfigError(what, where=where, why=_word_list(meant), next=then, code="config.several-sensors")
    what, then = f"there is no power sensor {name!r}", "give one of those"
    raise ConfigError(what, where=where, why=_word_list(every), next=then, code="config.no-sensor")


def list_candidates(service: Service, chassis: Resource, *, sensors: bool = True) -> list[Candidate]:
    """Return the powers that a chassis shows as totals, and those of its sensors."""
    found, _ = _list_totals(service, chassis)
    return found + (_list_sensors(service, chassis) if sensors else [])


def list_doubtful(service: Service) -> list[Candidate]:
    """Return every power that may be the node's, the largest first; of boards only totals of Power and metrics."""
    found = []
    for chassis in service.nodes if service.is_named else service.nodes + service.others:
        is_board = kinds.is_part(chassis) and not service.is_named
        try:
            found += list_candidates(service, chassis, sensors=not is_board)
        except ReadFailed as error:  # too slow: list those that were seen
            service.notes.append(Missing.from_error("node.ac", error))
            break
    return sorted(found, key=lambda one: -one.watts)


def refuse_choice(service: Service, what: str, found: list[Candidate], *, has_supplies: bool = False) -> ConfigError:
    """Return the refusal that lists each power with the settings that choose it; parts are listed, not advised."""
    usable = sorted((one for one in found if not _is_out(one)), key=lambda one: -one.watts)
    advice = []
    if best := next((one for one in usable if not one.doubt.endswith(NO_NODE) and not _is_part(one)), None):
        text = f"if one of them is this node, set {_word_keys(_find_keys(best, found))}"
        is_shared = not service.systems or kinds.is_equipment(best.chassis)
        advice.append(text + (', and feeds = "rack" where it feeds several nodes' if is_shared else ""))
    if has_supplies:
        advice.append('if all supplies feed this node alone, set sources = ["supplies"]')
    error = ConfigError(
        f"{what}: choose a sensor" if usable else what,
        where=f"meter {service.label}",
        why=_word_list(found),
        next="; or ".join([*advice, "use a PDU or IPMI"]),
        code=SEVERAL,
    )
    error.choices = tuple((_word_candidate(one, found), _find_keys(one, found)) for one in usable[:_LISTED])
    return error


def _word_list(found: Iterable[Candidate]) -> str:
    rows = sorted(found, key=lambda one: -one.watts)
    texts = [_word_candidate(one, rows) for one in rows]
    cut = f"; and {len(texts) - _LISTED} smaller" if len(texts) > _LISTED else ""
    return f"it shows {'; '.join(texts[:_LISTED]) or 'none'}{cut}"


def _word_candidate(one: Candidate, every: Sequence[Candidate]) -> str:
    if _is_out(one):
        return f"{one.watts:g} W of {one.names[0]!r}, not read: {one.doubt}"
    return f"{one.watts:g} W with {_word_keys(_find_keys(one, every))}" + (f" ({one.doubt})" if one.doubt else "")


def _is_out(one: Candidate) -> bool:
    return one.doubt.endswith(values.OUT_OF_SERVICE)


def _is_part(one: Candidate) -> bool:
    """Return whether a candidate is not advised: a part by its name or context, or below its parts."""
    _, _, measured = one.doubt.partition("measures ")
    is_named = kinds.names_part(one.names[0]) or one.doubt.endswith(", a part")
    return is_named or measured.startswith(("an output", *kinds.PARTS)) or "beside it" in one.doubt


def _find_keys(one: Candidate, every: Sequence[Candidate]) -> dict[str, str]:
    """Return the settings that choose one candidate: its Name if only one has it, else its Id."""
    same = [other for other in every if other.chassis == one.chassis and other.names[0] == one.names[0]]
    return {"chassis": one.chassis.id, "sensor": one.names[0] if len(same) == 1 else one.names[-1]}


def _word_keys(keys: dict[str, str]) -> str:
    return ", ".join(f'{key} = "{value}"' for key, value in keys.items())
