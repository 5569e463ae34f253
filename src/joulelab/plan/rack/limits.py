"""Describe a rack and its limits: supply, feeds, phases, cooling and room; count the nodes that fit.

`[rack]` of a plan file. A limit is the power (W) that it leaves for all nodes together. The margin is a share of the
electric power that is kept free; it does not reduce the cooling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping  # noqa: TC003 - the reader of plan files evaluates the types of keys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.errors import ConfigError
from joulelab.core.toml_reading import declare_key, is_number, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.plan.plan_tables import TomlTable

CONTINUOUS = 0.8  # of a breaker's rating, for loads of three hours and more, as electrical codes require
CONFIDENCE = 0.95
PERCENTILES = (99.0, 99.9)
ROUNDING = 1.01  # volts x amps is often written as a round figure
LINE = math.sqrt(3)
MOST_NODES = 1000
EXACT = 1e-9  # a node that fits to the watt fits

LimitName = Literal["supply", "breakers", "feed lost", "phase", "cooling", "height", "outlets"]
ELECTRIC: tuple[LimitName, ...] = ("supply", "breakers", "feed lost", "phase")


def _read_choice(*valid: int) -> Callable[[Any], int]:
    def read_choice(value: Any) -> int:
        if type(value) is not int or value not in valid:
            raise ValueError
        return value

    return read_choice


def _read_numbers(value: Any, least: float, below: float) -> tuple[float, ...]:
    listed = value if isinstance(value, list) else [value]
    if not all(is_number(one) and least <= one < below for one in listed):
        raise ValueError
    return tuple(float(one) for one in listed)


@dataclass(frozen=True, slots=True)
class Feed:
    """Hold a feed with its breaker. Feeds of one `side` are lost together; without a side each is its own."""

    volts: float = field(
        metadata={"doc": "between lines, V", "above": 0, "advice": "give volts above 0, between lines: 208"}
    )
    amps: float = field(metadata={"doc": "of the breaker, per line, A", "above": 0, "advice": "give amps above 0: 50"})
    phases: int = declare_key(3, "1 or 3", read=_read_choice(1, 3), advice="give 1 or 3")
    side: str = declare_key("", "feeds of one side are lost together")
    name: str = declare_key("", "name")

    @property
    def rating_va(self) -> float:
        """Return the rating of its breaker, in VA."""
        return self.volts * self.amps * (LINE if self.phases == 3 else 1.0)


@dataclass(frozen=True, slots=True)
class Rules:
    """Hold the input of the rules: a maximum measured elsewhere (W), percentiles (%), confidence, caps (W)."""

    max_w: float | None = declare_key(None, "highest power of a node, measured elsewhere, W", above=0)
    percentiles: tuple[float, ...] = declare_key(
        PERCENTILES,
        "percentiles, %",
        read=lambda value: _read_numbers(value, 50, 100),
        advice="give percentiles from 50 to below 100: [99, 99.9]",
    )
    confidence: float = declare_key(
        CONFIDENCE, "of the intervals", least=0.5, most=0.9999, advice="give a share from 0.5 to 0.9999: 0.95"
    )
    caps_w: tuple[float, ...] = declare_key(
        (),
        "caps on each GPU, W",
        read=lambda value: _read_numbers(value, 1e-3, math.inf),
        advice="give a list of powers above 0, in W: [500]",
    )


@dataclass(frozen=True, slots=True)
class Rack:
    """Hold a rack; None for what is not given. Powers are in W.

    `node_phases` is how a node is connected to three phases: to all of them evenly (3), between two lines (2), or to
    one phase (1).
    """

    supply_w: float | None = declare_key(None, "highest power of the rack, W", above=0)
    feeds: tuple[Feed, ...] = declare_key((), "feeds with their breakers")
    redundancy: Literal["none", "A/B"] = declare_key("none", "whether one side has to carry everything")
    continuous: float | None = declare_key(
        None, "share of a breaker for long loads", above=0, most=1, advice="give a share above 0 and up to 1: 0.8"
    )
    power_factor: float | None = declare_key(
        None, "of the nodes", above=0, most=1, advice="give a share above 0 and up to 1: 0.98"
    )
    node_phases: int | None = declare_key(None, "phases of a node", read=_read_choice(1, 2, 3), advice="give 1, 2 or 3")
    cooling_w: float | None = declare_key(None, "heat that the cooling removes, W", above=0)
    height_u: float | None = declare_key(None, "height, U", above=0)
    others_u: float = declare_key(0.0, "height of other devices, U", least=0)
    outlets: int | None = declare_key(None, "outlets", least=1)
    node_outlets: int = declare_key(1, "outlets of a node", least=1)
    others_w: float = declare_key(0.0, "power of other devices, W", least=0)
    margin: float = declare_key(
        0.0, "share to keep free", least=0, most=1 - 1e-9, advice="give the share to keep free, from 0 to below 1: 0.2"
    )
    nodes_now: int | None = declare_key(None, "nodes in the rack now", least=0)
    node: str = declare_key("", "name of the kind of node")
    rules: Rules = declare_key(Rules, "input of the rules")

    @property
    def carrying_feeds(self) -> tuple[Feed, ...]:
        """Return the feeds that have to carry everything: with A/B, those left when the largest side is lost."""
        if self.redundancy != "A/B":
            return self.feeds
        return min(_list_left_feeds(self.feeds), key=_add_ratings, default=())

    @property
    def capacity_w(self) -> float:
        """Return the power that may be drawn for long before a margin is kept, in W."""
        carried = [self.compute_long_power(self.carrying_feeds)] if self.feeds else []
        return min([*([] if self.supply_w is None else [self.supply_w]), *carried])

    def compute_long_power(self, feeds: Sequence[Feed]) -> float:
        """Return the power (W) that feeds carry for long."""
        return _add_ratings(feeds) * (self.power_factor or 1.0) * (self.continuous or CONTINUOUS)

    def compute_free_share(self, nodes: int, node_w: float) -> float:
        """Return the share of the capacity that nodes of a power (W) leave free."""
        return 1.0 - (nodes * node_w + self.others_w) / self.capacity_w


@dataclass(frozen=True, slots=True)
class Limit:
    """Hold the power (W) that one limit leaves for all nodes, or the number of nodes it has room for.

    `numbers` are the figures it was computed from.
    """

    name: LimitName
    watts: float = math.inf
    room: int | None = None
    node_phases: int = 3
    numbers: Mapping[str, float] = field(default_factory=dict)

    def allow_node_power(self, nodes: int) -> float:
        """Return the power (W) that each of `nodes` nodes may draw: 0 if there is no room for them."""
        if nodes == 0:
            return math.inf
        if self.room is not None:
            return math.inf if nodes <= self.room else 0.0
        return self.watts / _count_even_nodes(nodes, self.node_phases)


def find_limits(rack: Rack, node_height_u: float | None = None) -> tuple[Limit, ...]:
    """Return every limit of a rack, the electric ones first."""
    found = _find_electric_limits(rack)
    if rack.cooling_w is not None:
        numbers = {"from_w": rack.cooling_w} | ({"others_w": rack.others_w} if rack.others_w else {})
        found.append(Limit("cooling", rack.cooling_w - rack.others_w, numbers=numbers))
    if rack.height_u is not None and node_height_u is not None:
        free_u = rack.height_u - rack.others_u
        room = max(math.floor(free_u / node_height_u + EXACT), 0)
        found.append(Limit("height", room=room))
    if rack.outlets is not None:
        found.append(Limit("outlets", room=rack.outlets // rack.node_outlets))
    return tuple(found)


def _find_electric_limits(rack: Rack) -> list[Limit]:
    kept = 1.0 - rack.margin
    common = {name: value for name, value in (("margin", rack.margin), ("others_w", rack.others_w)) if value}
    found = []
    if rack.supply_w is not None:
        watts = rack.supply_w * kept - rack.others_w
        found.append(Limit("supply", watts, numbers={"from_w": rack.supply_w, **common}))

    def add_limit(name: LimitName, feeds: Sequence[Feed], node_phases: int = 3) -> None:
        long_w = rack.compute_long_power(feeds)
        numbers = {"from_w": _add_ratings(feeds), "continuous": rack.continuous or CONTINUOUS, **common}
        found.append(Limit(name, long_w * kept - rack.others_w, node_phases=node_phases, numbers=numbers))

    if rack.feeds:
        add_limit("breakers", rack.feeds)
    if rack.feeds and rack.redundancy == "A/B":
        add_limit("feed lost", rack.carrying_feeds)
    uneven = _find_uneven_feeds(rack)
    if uneven:
        add_limit("phase", uneven, rack.node_phases or 3)
    return found


def _find_uneven_feeds(rack: Rack) -> tuple[Feed, ...]:
    """Return the weakest feeds that have to carry all and whose phases are loaded unevenly; empty if there are none.

    Nodes share feeds by their ratings, so one feed of three phases among others fills its fullest phase as all would.
    """
    if rack.node_phases in (None, 3):
        return ()
    left = _list_left_feeds(rack.feeds) if rack.redundancy == "A/B" else [rack.feeds]
    return min((feeds for feeds in left if any(f.phases == 3 for f in feeds)), key=_add_ratings, default=())


def _count_even_nodes(nodes: int, node_phases: int) -> float:
    """Return how many nodes on all phases load the fullest line as these do, spread as evenly as possible."""
    counts = [(nodes + k) // 3 for k in (2, 1, 0)]
    if node_phases == 1:
        return 3.0 * counts[0]
    if node_phases == 2:  # the currents of two pairs of lines meet in one line at 60 degrees
        a, b = counts[:2]
        return LINE * math.sqrt(a * a + b * b + a * b)
    return float(nodes)


def _group_sides(feeds: Sequence[Feed]) -> list[tuple[Feed, ...]]:
    found: dict[str, list[Feed]] = {}
    for number, feed in enumerate(feeds):
        found.setdefault(feed.side or f"\0{number}", []).append(feed)
    return [tuple(members) for members in found.values()]


def _list_left_feeds(feeds: Sequence[Feed]) -> list[tuple[Feed, ...]]:
    """Return the feeds that are left when each side is lost."""
    sides = _group_sides(feeds)
    return [tuple(feed for k, side in enumerate(sides) if k != lost for feed in side) for lost in range(len(sides))]


def _add_ratings(feeds: Sequence[Feed]) -> float:
    return sum(f.rating_va for f in feeds)


@dataclass(frozen=True, slots=True)
class Fit:
    """Hold how many nodes of a power (W) fit, and the limit that one more would exceed."""

    node_w: float
    nodes: int
    binding: Limit


def find_tightest(limits: Sequence[Limit], nodes: int) -> Limit:
    """Return the limit that allows each of `nodes` nodes least; the first of equal ones."""
    return min(limits, key=lambda limit: limit.allow_node_power(nodes))


def allow_node_power(limits: Sequence[Limit], nodes: int) -> float:
    """Return the power (W) that each of `nodes` nodes may draw by all limits."""
    return find_tightest(limits, nodes).allow_node_power(nodes)


def fit_nodes(limits: Sequence[Limit], node_w: float) -> Fit:
    """Count the nodes of a power (W) that fit. Raises ConfigError if the power is not one, or if thousands fit."""
    if not math.isfinite(node_w) or node_w <= 0:
        raise ConfigError(f"a node cannot draw {node_w:g} W", next="name runs, or give --rated 10.2kW")
    for nodes in range(MOST_NODES):
        if node_w > allow_node_power(limits, nodes + 1) * (1 + EXACT):
            return Fit(node_w, nodes, find_tightest(limits, nodes + 1))
    what = f"more than {MOST_NODES:,} nodes of {node_w:,.10g} W would fit"
    raise ConfigError(what, why="a unit may be wrong", next="check the units of the supply and of a node: 70kW, 8480W")


def find_usable_power(limits: Sequence[Limit]) -> float:
    """Return the electric power (W) for all nodes together; cooling and room are left out."""
    return min(limit.watts for limit in limits if limit.name in ELECTRIC)


def read_rack(table: TomlTable) -> Rack:
    """Read [rack]; mistakes are added to those of the table."""
    rack = read_table(Rack, table.values, table.problems, table.at) or Rack()
    if not table.problems.has(*table.at):
        _check_contradictions(table, rack)
    return rack


def _check_contradictions(table: TomlTable, rack: Rack) -> None:
    if rack.supply_w is None and not rack.feeds:
        then = "give --supply 70kW, or supply_w = 70000 in [rack], or feeds with volts and amps"
        table.problems.add(table.at, "a rack without a supply", next=then, code="config.no-supply")
        return
    sides = len(_group_sides(rack.feeds))
    if rack.redundancy == "A/B" and sides < 2:
        why = f"there {'is one' if sides else 'are none'}"
        table.wrong("redundancy", "A/B needs two feeds", why=why, next="add the other feed, or remove redundancy")
        return
    rated = _add_ratings(rack.feeds)
    if rack.supply_w is not None and rack.feeds and rack.supply_w > rated * ROUNDING:
        why = f"all of them are rated at {rated:,.0f} VA"
        table.wrong("supply_w", f"the feeds cannot supply {rack.supply_w:,.10g} W", why=why, next="correct one of them")
    least = min(find_limits(rack), key=lambda limit: limit.watts)
    if least.watts <= 0:
        why = f"other devices draw {rack.others_w:,.10g} W, and the {least.name} has no more"
        table.wrong("others_w", "no power is left for nodes", why=why, next="correct others_w, margin or the supply")
