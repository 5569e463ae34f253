"""Describe a rack: what feeds, cools and holds it, and what each of these allows the nodes in it.

`[rack]` of a plan file. Every limit is what the nodes together may draw (W), others taken off already. The margin is
taken off what is fed, not off what is cooled: it is a share of the power that is kept free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from joulelab.plan.plan_tables import is_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.plan.plan_tables import TomlTable

KEYS = (
    "supply_w", "feeds", "redundancy", "continuous", "power_factor", "node_phases", "cooling_w", "height_u", "others_u",
    "outlets", "node_outlets", "others_w", "margin", "nodes_now", "node", "rules",
)  # fmt: skip
FEED_KEYS = ("name", "side", "volts", "amps", "phases")
RULE_KEYS = ("max_w", "percentiles", "confidence", "caps_w")
REDUNDANCIES = ("none", "A/B")
CONTINUOUS = 0.8  # of a breaker's rating, for loads of three hours and more; what codes of practice ask for
CONFIDENCE = 0.95
PERCENTILES = (99.0, 99.9)
ROUNDED = 1.01  # volts x amps is often written as a round figure
LINE = math.sqrt(3)

Name = Literal["supply", "breakers", "feed lost", "phase", "cooling", "height", "outlets"]
ELECTRIC: tuple[Name, ...] = ("supply", "breakers", "feed lost", "phase")


@dataclass(frozen=True, slots=True)
class Feed:
    """Hold a feed with its breaker: volts between lines where there are three phases, amps per line.

    Feeds of one `side` are lost together; without a side each is its own.
    """

    name: str
    volts: float
    amps: float
    phases: int = 3
    side: str = ""

    @property
    def rating_va(self) -> float:
        """Return what its breaker is rated at, in VA."""
        return self.volts * self.amps * (LINE if self.phases == 3 else 1.0)


@dataclass(frozen=True, slots=True)
class Rules:
    """Hold what the rules work with: the highest power of a node known from elsewhere, percentiles (%), caps (W)."""

    max_w: float | None = None
    percentiles: tuple[float, ...] = PERCENTILES
    confidence: float = CONFIDENCE
    caps_w: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Rack:
    """Hold a rack. None where nobody said it; powers are in W.

    `continuous` is the share of a breaker that may be drawn for long, `margin` the share of what may be drawn that is
    kept free, `others_w` what everything but the nodes draws. `node_phases` says how a node hangs on three phases: on
    all of them evenly (3), between two lines (2), or on one phase (1). `node` names the kind of node.
    """

    supply_w: float | None = None
    feeds: tuple[Feed, ...] = ()
    redundancy: str = "none"
    continuous: float = CONTINUOUS
    power_factor: float = 1.0
    node_phases: int = 3
    cooling_w: float | None = None
    height_u: float | None = None
    others_u: float = 0.0
    outlets: int | None = None
    node_outlets: int = 1
    others_w: float = 0.0
    margin: float = 0.0
    nodes_now: int | None = None
    node: str = ""
    rules: Rules = field(default_factory=Rules)
    said: tuple[str, ...] = ()

    @property
    def carrying(self) -> tuple[Feed, ...]:
        """Return the feeds that have to carry everything: with A/B, those left when the largest side is lost."""
        if self.redundancy != "A/B":
            return self.feeds
        lost = max(_sides(self.feeds), key=lambda side: sum(f.rating_va for f in side), default=())
        return tuple(f for f in self.feeds if f not in lost)

    @property
    def capacity_w(self) -> float:
        """Return what may be drawn for long before any margin is kept, in W."""
        found = [] if self.supply_w is None else [self.supply_w]
        if self.feeds:
            found.append(self._long_w(self.carrying))
        return min(found)

    def free(self, nodes: int, node_w: float) -> float:
        """Return the share of what may be drawn that so many nodes of so many W leave free."""
        return 1.0 - (nodes * node_w + self.others_w) / self.capacity_w

    def _long_w(self, feeds: Sequence[Feed]) -> float:
        return sum(f.rating_va for f in feeds) * self.power_factor * self.continuous


@dataclass(frozen=True, slots=True)
class Limit:
    """Hold what one constraint allows all nodes together (W), or how many it has room for; `said` is for people."""

    name: Name
    watts: float
    said: str
    node_phases: int = 3
    room: int | None = None

    def most_w(self, nodes: int) -> float:
        """Return what each of so many nodes may draw, in W: 0 where there is no room for them."""
        if nodes == 0:
            return math.inf
        if self.room is not None:
            return math.inf if nodes <= self.room else 0.0
        return self.watts / _load(nodes, self.node_phases)


def limits_of(rack: Rack, node_height_u: float | None = None) -> tuple[Limit, ...]:
    """Return every limit of a rack, those of its power first."""
    found = [*_electric(rack)]
    if rack.cooling_w is not None:
        less = f" less {rack.others_w:g} W for others" if rack.others_w else ""
        said = f"{rack.cooling_w:g} W of heat taken away{less}"
        found.append(Limit("cooling", rack.cooling_w - rack.others_w, said))
    if rack.height_u is not None and node_height_u is not None:
        free_u = rack.height_u - rack.others_u
        room = max(math.floor(free_u / node_height_u + 1e-9), 0)
        found.append(Limit("height", math.inf, f"{free_u:g} U free, {node_height_u:g} U per node", room=room))
    if rack.outlets is not None:
        said = f"{rack.outlets} outlets, {rack.node_outlets} per node"
        found.append(Limit("outlets", math.inf, said, room=rack.outlets // rack.node_outlets))
    return tuple(found)


def _electric(rack: Rack) -> list[Limit]:
    kept = 1.0 - rack.margin
    off = [f"{100 * rack.margin:g} % margin"] if rack.margin else []
    off += [f"{rack.others_w:g} W for others"] if rack.others_w else []
    less = f" less {' and '.join(off)}" if off else ""
    found = []
    if rack.supply_w is not None:
        found.append(Limit("supply", rack.supply_w * kept - rack.others_w, f"{rack.supply_w:g} W{less}"))
    if not rack.feeds:
        return found
    long = f" x {rack.continuous:g} continuous x power factor {rack.power_factor:g}{less}"

    def limit(name: Name, feeds: Sequence[Feed], more: str = "", node_phases: int = 3) -> Limit:
        rating = sum(f.rating_va for f in feeds)
        watts = rating * rack.power_factor * rack.continuous * kept - rack.others_w
        many = f"{len(feeds)} feed{'s' if len(feeds) > 1 else ''}"
        return Limit(name, watts, f"{rating:.0f} VA of {many}{more}{long}", node_phases)

    found.append(limit("breakers", rack.feeds))
    if rack.redundancy == "A/B":
        found.append(limit("feed lost", rack.carrying, " left"))
    uneven = _uneven(rack)
    if uneven:
        how = "on the fullest of three phases" if rack.node_phases == 1 else "on the fullest line"
        found.append(limit("phase", uneven, f" {how}", rack.node_phases))
    return found


def _uneven(rack: Rack) -> tuple[Feed, ...]:
    """Return the weakest feeds that have to carry all and whose phases nodes load unevenly; none where they do not.

    Nodes share feeds by their ratings, so one feed of three phases among them fills its fullest phase as all would.
    """
    if rack.node_phases == 3:
        return ()
    lost = _sides(rack.feeds) if rack.redundancy == "A/B" else [()]
    left = [tuple(f for f in rack.feeds if f not in side) for side in lost]
    mixed = [feeds for feeds in left if any(f.phases == 3 for f in feeds)]
    return min(mixed, key=lambda feeds: sum(f.rating_va for f in feeds), default=())


def _load(nodes: int, node_phases: int) -> float:
    """Return how many nodes on all phases would load the fullest line as these do, spread as evenly as can be."""
    counts = [(nodes + k) // 3 for k in (2, 1, 0)]
    if node_phases == 1:
        return 3.0 * counts[0]
    if node_phases == 2:  # the currents of two pairs of lines meet in one line at 60 degrees
        a, b = counts[:2]
        return LINE * math.sqrt(a * a + b * b + a * b)
    return float(nodes)


def read_rack(table: TomlTable) -> Rack:
    """Read [rack]; what is wrong is noted with the table's problems."""
    table.allow(KEYS)
    feeds = tuple(_feed(one, n) for n, one in enumerate(table.tables("feeds")))
    shares = {key: _share(table, key) for key in ("continuous", "power_factor")}
    phases = table.whole("node_phases", 1)
    if phases is not None and phases > 3:
        table.wrong("node_phases", f"node_phases is {phases}", next="give 1, 2 or 3")
    found: dict[str, Any] = {
        **{key: table.positive(key) for key in ("supply_w", "cooling_w", "height_u")},
        **{key: _not_negative(table, key) for key in ("others_w", "others_u", "margin")},
        **shares,
        "feeds": tuple(f for f in feeds if f is not None),
        "redundancy": table.one_of("redundancy", REDUNDANCIES),
        "node_phases": phases,
        "outlets": table.whole("outlets", 1),
        "node_outlets": table.whole("node_outlets", 1),
        "nodes_now": table.whole("nodes_now", 0),
        "node": table.text("node"),
        "rules": _rules(table.table("rules")),
        "said": _assumed(table, [f for f in feeds if f is not None]),
    }
    rack = Rack(**{key: value for key, value in found.items() if value is not None})
    _check(table, rack, whole=None not in feeds)
    return rack


def _feed(one: TomlTable, number: int) -> Feed | None:
    one.allow(FEED_KEYS)
    volts, amps = one.positive("volts"), one.positive("amps")
    for key, value, example in (("volts", volts, 208), ("amps", amps, 50)):
        if value is None and key not in one:
            one.wrong("", f"a feed without {key}", next=f"add {key} = {example}")
    phases = one.whole("phases", 1)
    if phases not in (None, 1, 3):
        one.wrong("phases", f"phases is {phases}", next="give 1 or 3")
    if volts is None or amps is None:
        return None
    return Feed(one.text("name") or f"feed {number + 1}", volts, amps, phases or 3, one.text("side") or "")


def _rules(table: TomlTable) -> Rules:
    table.allow(RULE_KEYS)
    percentiles, caps = _numbers(table, "percentiles"), _numbers(table, "caps_w")
    for value in percentiles or ():
        if not 50 <= value < 100:
            table.wrong("percentiles", f"there is no percentile {value:g} to plan with", next="give 50 to 99.99")
    confidence = _share(table, "confidence")
    if confidence is not None and not 0.5 <= confidence < 1:
        table.wrong("confidence", f"confidence is {confidence:g}", next="give a share of 0.5 to 0.999: 0.95")
    return Rules(
        table.positive("max_w"),
        PERCENTILES if percentiles is None else percentiles,
        confidence or CONFIDENCE,
        caps or (),
    )


def _check(table: TomlTable, rack: Rack, *, whole: bool) -> None:
    """Note what contradicts itself; `whole` is whether all feeds could be read."""
    if "supply_w" not in table and (whole and not rack.feeds):
        then = "give --supply 70kW, or in [rack] supply_w = 70000, or feeds with volts and amps"
        table.wrong("", "a rack without a supply", next=then)
    if rack.margin >= 1:
        table.wrong("margin", f"margin is {rack.margin:g}", next="give the share that is kept free, below 1: 0.2")
    if not whole:
        return
    sides = len(_sides(rack.feeds))
    if rack.redundancy == "A/B" and sides < 2:
        why = f"there {'is one' if sides else 'are none'}"
        table.wrong("redundancy", "A/B needs two feeds", why=why, next="add the other to feeds, or leave it out")
        return
    rated = sum(f.rating_va for f in rack.feeds)
    if rack.supply_w is not None and rack.feeds and rack.supply_w > rated * ROUNDED:
        why = f"all of them are rated at {rated:.0f} VA"
        table.wrong("supply_w", f"the feeds cannot give {rack.supply_w:g} W", why=why, next="correct one of them")
    if rack.margin < 1 and (rack.supply_w is not None or rack.feeds):
        least = min(limits_of(rack), key=lambda limit: limit.watts)
        if least.watts <= 0:
            table.wrong("others_w", "nothing is left for nodes", why=f"{least.name}: {least.said}", next="correct it")


def _assumed(table: TomlTable, feeds: Sequence[Feed]) -> tuple[str, ...]:
    """Return what nobody said and was assumed."""
    if "feeds" not in table:
        return ()
    said = []
    if "continuous" not in table:
        said.append(f"breakers carry {100 * CONTINUOUS:g} % of their rating for long")
    if "power_factor" not in table:
        said.append("power factor 1")
    three = any(feed.phases == 3 for feed in feeds)
    if three and "node_phases" not in table:
        said.append("every node loads all phases evenly")
    if not three and "node_phases" in table:
        said.append("node_phases says nothing here: every feed has one phase")
    return (*said, "nodes share the feeds by their ratings")


def _sides(feeds: Sequence[Feed]) -> list[tuple[Feed, ...]]:
    """Return the feeds that are lost together."""
    found: dict[str, list[Feed]] = {}
    for number, feed in enumerate(feeds):
        found.setdefault(feed.side or f"\0{number}", []).append(feed)
    return [tuple(of) for of in found.values()]


def _share(table: TomlTable, key: str) -> float | None:
    value = table.positive(key)
    if value is not None and value > 1:
        table.wrong(key, f"{key} is {value:g}", next="give a share of at most 1: 0.8")
        return None
    return value


def _not_negative(table: TomlTable, key: str) -> float | None:
    value = table.values.get(key)
    if is_number(value) and value == 0:
        return 0.0
    return table.positive(key)


def _numbers(table: TomlTable, key: str) -> tuple[float, ...] | None:
    if key not in table:
        return None
    value = table.values[key]
    listed = value if isinstance(value, list) else [value]
    if not all(is_number(one) and one > 0 for one in listed):
        table.wrong(key, f"{key} is {value!r}", next="give a list of numbers above 0")
        return None
    return tuple(float(one) for one in listed)
