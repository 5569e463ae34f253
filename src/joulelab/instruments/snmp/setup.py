"""Plan what is read of a device: which names in one request, and which of the values make which stream."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import TYPE_CHECKING, NoReturn, cast

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.hooks import Missing
from joulelab.instruments.snmp.client import MISSING
from joulelab.instruments.snmp.device import Bound, Row, bind_channels, choose_rows, decode_text, list_rows
from joulelab.instruments.snmp.tables import QUANTITIES, STATES, VITAL, is_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.snmp.client import Session, Value
    from joulelab.instruments.snmp.settings import SnmpSettings
    from joulelab.instruments.snmp.tables import Level, Table

MAIN = "power"
# A row that shows one of these feeds something, with or without a power. Beside more than this, a power of 0 W is no
# reading: 0.5 A are 115 VA at 230 V. Less may be the filters of idle supplies, or a power rounded to 100 W.
DRAWS = {"current_a": 0.5, "load": 0.02, "apparent_va": 115.0}
# A row that shows no power is no part of the whole if it draws no more than this.
EMPTY = {"current_a": 0.1, "load": 0.0, "apparent_va": 20.0}

# Powers that fit a voltage and a current beside them, as shares of their product: a poor power factor, three phases.
# Outside, the device has another scale than the table says.
FITTING = (0.1, 3.3)


@dataclass(frozen=True, slots=True)
class Cell:
    """Say where one number of a row comes from: its place in the answer (None: the device has it not) and its worth."""

    name: str
    place: int | None
    scale: float = 1.0
    least: float = 0.0
    vital: bool = False  # a power or a counter: without it the reading has failed
    most: float = inf
    zeros: tuple[int, ...] = ()  # places of power, current and energy: an outlet that never had any is not metered
    draws: tuple[Cell, ...] = ()  # current, load, VA beside a power: it cannot be 0 while they are not
    valid: int | None = None  # place of a number that is 0 while the row is not measured

    def number(self, values: Sequence[Value], sentinels: frozenset[int]) -> float:
        """Return the number in SI, NaN for what the device has not. Raises ReadFailed."""
        if self.place is None:
            return nan
        value = values[self.place]
        if self.valid is not None and values[self.valid] == 0:
            raise ReadFailed(f"the device does not know {self.name} just now", why="it says that the row is not valid")
        if self.zeros and all(values[place] in (0, MISSING) for place in self.zeros):
            raise ReadFailed("the outlet is not metered", why="its power, current and energy have always been 0")
        drawn = (draw for draw in self.draws if draw.number(values, sentinels) > DRAWS[draw.name])
        if value == 0 and (draw := next(drawn, None)):
            why = f"it shows 0 beside a {draw.name} of {draw.number(values, sentinels):g}"
            raise ReadFailed(f"the device does not know {self.name} just now", why=why)
        if is_number(value, self.scale, self.least, self.most, sentinels):
            return cast("int", value) * self.scale
        if isinstance(value, int) or value is MISSING:
            if not self.vital:
                return nan
            shown = "nothing" if value is MISSING else str(value)
            raise ReadFailed(f"the device does not know {self.name} just now", why=f"it shows {shown}")
        raise ReadFailed(f"{self.name} is no number", why=f"the device answers {type(value).__name__}")


class AgeCell(Cell):
    """Say how old a reading is, from the device's own time of it in whole seconds of UTC."""

    __slots__ = ()

    def number(self, values: Sequence[Value], sentinels: frozenset[int]) -> float:
        """Return the age in s, NaN where the device tells no time. Raises ReadFailed."""
        taken = super().number(values, sentinels)
        return max(read_utc_ns() / NS - taken, 0.0) if taken > 0 else nan


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold one stream and where its numbers come from."""

    stream: Stream
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold what is asked for, in one list of names, what it makes, and what is left out or read otherwise."""

    oids: tuple[str, ...]
    pieces: tuple[Piece, ...]
    missing: tuple[Missing, ...] = ()


@dataclass(slots=True)
class Facts:
    """Hold what a row shows at opening: its channels, their numbers in SI, why a power is not one of them."""

    row: Row
    bound: dict[str, Bound]
    shown: dict[str, float] = field(default_factory=dict)
    doubt: str = ""
    idle: str = ""  # why its energy counter is not read
    is_valid: bool = True

    @property
    def is_metered(self) -> bool:
        """Return whether it has a power or an energy."""
        return any(name in self.shown for name in VITAL)

    def list_draws(self) -> list[str]:
        """Return in words what says that it feeds something."""
        return [f"{name} is {self.shown[name]:g}" for name, least in DRAWS.items() if self.shown.get(name, 0.0) > least]


class Planner:
    """Collect names and streams of one device."""

    def __init__(self, settings: SnmpSettings, session: Session, source: Table) -> None:
        self._settings, self._session, self._source = settings, session, source
        self._oids: dict[str, int] = {}
        self._pieces: list[Piece] = []
        self._missing: list[Missing] = []
        self._offset_w = 0.0  # how far below zero the device shows powers
        self._model, self._serial = self._ident(source.model), self._ident(source.serial)

    def plan(self) -> Plan:
        """Ask the device for its rows and plan the readings. Raises Unavailable, ConfigError, ReadFailed, Denied."""
        wanted = self._settings
        if wanted.timestamps and not any("read_time" in level.read for level in self._source.levels.values()):
            why = f"{self._source.title} does not tell when it took a reading"
            raise ConfigError("timestamps is true", where=self._session.where, why=why, next="leave it out")
        if wanted.outlets:
            self._add_pieces("outlet", wanted.outlets, "node.ac")
        else:
            self._add_pieces("unit", wanted.units, "rack")
        if self._source.passed:
            source = f"{self._source.title} ({self._source.levels[wanted.kind].word})"
            why = f"no power is known by {', '.join(self._source.passed)}"
            self._miss("other-source", wanted.kind, f"it is read by {source}", why, "vendor sets the table")
        if wanted.phases:
            for name in STATES:
                if name in self._source.levels:
                    self._add_states(self._source.levels[name])
        return Plan(tuple(self._oids), tuple(self._pieces), tuple(self._missing))

    def _miss(self, code: str, scope: str, what: str, why: str, advice: str = "") -> None:
        self._missing.append(Missing(f"{scope} of {self._settings.label}", what, why, advice, f"meter.{code}"))

    def _ident(self, column: str) -> str:
        """Return the first text of a column, empty where there is none."""
        if not column:
            return ""
        ((found, value),) = self._session.next([column])
        return decode_text(value) if found.startswith(f"{column}.") else ""

    def _add_pieces(self, kind: str, wanted: Sequence[int | str], feeds: str) -> None:
        level = self._source.levels.get(kind)
        offered = list_rows(self._session, level) if level else []
        where = self._session.where
        if level is None or not offered:
            why = f"{self._source.title} shows no metered {kind}s"
            advice = "leave out outlets to read the whole unit" if kind == "outlet" else "name outlets"
            raise Unavailable(f"no {kind} can be read", where=where, why=why, next=advice, code="unavailable.no-rows")
        chosen = choose_rows(wanted, offered, kind, where) if wanted else self._drop_parts(level, offered)
        facts = self._inspect(level, chosen)
        if not wanted:
            chosen = self._choose_whole(level, facts)
        for row in chosen:
            if not facts[row.index].is_metered:
                self._refuse_row(level, facts[row.index], _others(offered, row))
        self._name_lacks(level, [facts[row.index] for row in chosen])
        self._name_misfits(level, [facts[row.index] for row in chosen])
        columns = [c.name for c in level.columns if any(c.name in facts[row.index].shown for row in chosen)]
        single = kind == "unit" and len(chosen) == 1
        for row, piece in zip(chosen, _pieces(chosen, offered), strict=True):
            place = wall.place(self._settings.config, feeds, "" if single else piece, len(chosen))
            self._pieces.append(Piece(*self._main(level, facts[row.index], columns, place)))

    def _name_lacks(self, level: Level, chosen: Sequence[Facts]) -> None:
        """Name the rows of which the device shows no power, or no energy counter though its maker has one."""
        names = {column.name for column in level.columns} - (set() if self._settings.energy else {"energy_j"})
        lacks = (
            ("power_w", "no-power", "no power is read, energy alone"),
            ("energy_j", "no-counter", "no energy counter is read"),
        )
        for name, code, what in lacks:
            reasons: dict[str, list[str]] = {}
            for fact in chosen if name in names else ():
                if name not in fact.shown:
                    why = f"none is known{fact.doubt}" if name == "power_w" else fact.idle or "the device shows none"
                    reasons.setdefault(why, []).append(str(fact.row))
            for why, listed in reasons.items():
                self._miss(code, f"{level.word} {', '.join(listed)}", what, why)

    def _name_misfits(self, level: Level, chosen: Sequence[Facts]) -> None:
        """Name the rows whose power does not fit the voltage and the current beside it."""
        for fact in chosen:
            watts, volts, amps = (fact.shown.get(name, nan) for name in ("power_w", "voltage_v", "current_a"))
            share = watts / (volts * amps) if amps > DRAWS["current_a"] and volts > 0 else nan
            if share < FITTING[0] or share > FITTING[1]:
                why = f"it shows {watts:g} W beside {volts:g} V and {amps:g} A: one of them has another scale"
                self._miss(
                    "misfit", f"{level.word} {fact.row}", "its power may be wrong", why, "compare it with its display"
                )

    # What rows are.

    def _inspect(self, level: Level, chosen: Sequence[Row]) -> dict[str, Facts]:
        """Return what rows show now: what is missing or unknown at opening, the device has not."""
        source = self._source
        bound = bind_channels(self._session, source, level, chosen)
        facts = {row.index: Facts(row, {one.column.name: one for one in bound[row.index]}) for row in chosen}
        if not self._settings.energy:
            for fact in facts.values():
                fact.bound.pop("energy_j", None)
        every = [one for fact in facts.values() for one in fact.bound.values()]
        states = [f"{level.valid}.{row.index}" for row in chosen] if level.valid else []
        answered = self._session.get([one.oid for one in every] + states) if every else []
        answers = dict(zip([one.oid for one in every] + states, answered, strict=True)) if every else {}
        for fact in facts.values():
            counts = {name: (one, answers[one.oid]) for name, one in fact.bound.items()}
            known = {n: (o, v) for n, (o, v) in counts.items() if o.column.is_known(v, o.scale, source.sentinels)}
            fact.shown = {name: cast("int", value) * one.scale for name, (one, value) in known.items()}
            if level.valid and answers.get(f"{level.valid}.{fact.row.index}") == 0:
                fact.shown, fact.is_valid, fact.doubt = {}, False, ": it says that the row is not valid"
            elif "power_w" in counts and "power_w" not in known and isinstance(counts["power_w"][1], int):
                fact.doubt = f": its power_w is {counts['power_w'][1]}"
            self._doubt_zeros(level, fact)
        self._offset_w = max([self._offset_w, *(-fact.shown.get("power_w", 0.0) for fact in facts.values())])
        return facts

    def _doubt_zeros(self, level: Level, fact: Facts) -> None:
        """Take away zeros that are no readings: a power beside a current or at 0 V, a dead counter."""
        shown = fact.shown
        if shown.get("power_w") == 0 and (drawn := fact.list_draws()):
            del shown["power_w"]
            fact.doubt = f": its power_w is 0 while its {' and its '.join(drawn)}"
        elif level.name == "unit" and shown.get("power_w") == 0 and shown.get("voltage_v") == 0:
            fact.doubt = ": its power_w is 0 at 0 V, while it answers"
            fact.shown = {name: value for name, value in shown.items() if name not in VITAL or value}
        elif self._source.zero_is_uncounted and shown.get("energy_j") == 0 and (watts := shown.get("power_w", 0.0)) > 0:
            del shown["energy_j"]
            fact.idle = f"it shows 0 beside {watts:g} W: it does not count, or was just reset"

    def _drop_parts(self, level: Level, offered: list[Row]) -> list[Row]:
        """Return the rows that are the whole: without those that are parts of others. Raises Unavailable."""
        if not level.whole or len(offered) == 1:
            return offered
        part_of = dict(self._session.walk(level.whole))
        if part_of:
            return [row for row in offered if part_of.get(row.index) == 0] or offered
        shown = [self._session.get([row.locate(column) for column in level.columns]) for row in offered]
        watts = next(value for column, value in zip(level.columns, shown[0], strict=True) if column.name == "power_w")
        if all(one == shown[0] for one in shown) and isinstance(watts, int) and watts > 0:
            return offered[:1]  # one load, shown as its phase and as its bank
        raise Unavailable(
            "the unit cannot be read as a whole",
            where=self._session.where,
            why=f"rows {', '.join(map(str, offered))} may be phases, or banks of them: the device does not say",
            next=f'name those that add up: units = ["{offered[0].index}"]',
            code="unavailable.no-whole",
        )

    def _choose_whole(self, level: Level, facts: dict[str, Facts]) -> list[Row]:
        """Return the rows that add up to the whole; name those that are no part of it. Raises Unavailable."""
        metered = [fact for fact in facts.values() if fact.is_metered]
        left: list[str] = []
        for fact in facts.values():
            if not fact.is_metered and (why := _explain_absence(fact)):
                left.append(f"{fact.row}: {why}")
            elif not fact.is_metered:
                self._refuse_row(level, fact, _advice(level, [one.row for one in metered]))
        if not metered:
            self._refuse_row(level, next(iter(facts.values())), _advice(level, []))
        if len(metered) > 1 and not level.adds:
            listed = ", ".join(f"{one.row} {one.shown.get('power_w', nan):g} W" for one in metered)
            raise Unavailable(
                "the unit cannot be read as a whole",
                where=self._session.where,
                why=f"nobody says whether its {level.word}s add up, or some are parts of others: {listed}",
                next=f'name those that add up: units = ["{metered[0].row.index}"]',
                code="unavailable.no-whole",
            )
        if left:
            self._miss("left-out", f"{level.word}s", "rows without a power are left out", "; ".join(left))
        self._check_chain(level, [fact.row for fact in metered])
        return [fact.row for fact in metered]

    def _check_chain(self, level: Level, chosen: Sequence[Row]) -> None:
        """Name the devices of a chain that have outlets and no part in the whole."""
        if level.number != "first" or "outlet" not in self._source.levels:
            return
        outlets = {row.index.partition(".")[2] for row in list_rows(self._session, self._source.levels["outlet"])}
        alone = sorted(outlets - {row.index.partition(".")[2] for row in chosen})
        if alone:
            why = f"these have outlets and show no {level.word}: index {', '.join(alone)}"
            self._miss("chain", "unit", "a device of the chain is not in the sum", why, "read its outlets")

    def _refuse_row(self, level: Level, fact: Facts, advice: str) -> NoReturn:
        unread = "neither its power nor its energy" if self._settings.energy else "no power, and energy is false"
        doubt = fact.doubt or "".join(f": its {drawn}" for drawn in fact.list_draws()[:1])
        raise Unavailable(
            f"{level.word} {fact.row} is not metered",
            where=self._session.where,
            why=f"{self._source.title} shows {unread}{doubt}",
            next=advice,
            code="unavailable.not-metered",
        )

    # Streams.

    def _main(
        self, level: Level, fact: Facts, columns: Sequence[str], place: wall.Place
    ) -> tuple[Stream, tuple[Cell, ...]]:
        row, bound = fact.row, {name: one for name, one in fact.bound.items() if name in fact.shown}
        valid = self._place(f"{level.valid}.{row.index}") if level.valid else None
        cells = [self._cell(name, bound.get(name), vital=name in VITAL) for name in columns]
        if level.name == "outlet" and self._source.zero_is_unmetered:
            zeros = [row.locate(c) for c in level.columns if c.name in (*VITAL, "current_a")]
            cells = [replace(cell, zeros=tuple(map(self._place, zeros))) if cell.vital else cell for cell in cells]
        draws = tuple(cell for cell in cells if cell.name in DRAWS and cell.place is not None)
        cells = [replace(cell, draws=draws) if cell.name == "power_w" else cell for cell in cells]
        cells = [replace(cell, valid=valid) if cell.vital else cell for cell in cells]
        specs = [self._spec(name, bound.get(name)) for name in columns]
        if self._settings.timestamps and "read_time" in level.read:
            first = bound.get("power_w") or next(iter(bound.values()))
            cells.append(AgeCell("age_s", self._place(row.locate(first.column, level.read["read_time"]))))
            specs.append(Spec("age_s", "age", "s"))
        stream = Stream(
            place["scope"],
            MAIN,
            place["scope"],
            self._settings.period_s,
            tuple(specs),
            place["parent"],
            device=self._serial,
            model=self._model or self._source.title,
            sums=place["sums"],
            parts=place["parts"],
        )
        return stream, tuple(cells)

    def _add_states(self, level: Level) -> None:
        offered = list_rows(self._session, level)
        facts = self._inspect(level, offered) if offered else {}
        shown = [fact.row for fact in facts.values() if fact.shown]
        if blank := [str(fact.row) for fact in facts.values() if not fact.shown and fact.is_valid]:
            self._miss("left-out", f"{level.word}s", "rows without numbers are left out", ", ".join(blank))
        columns = [c.name for c in level.columns if any(c.name in facts[row.index].shown for row in shown)]
        for row, piece in zip(shown, _pieces(shown, offered), strict=True):
            fact = facts[row.index]
            specs = tuple(Spec(name, *QUANTITIES[name], update_s=self._settings.update_s) for name in columns)
            scope = f"{level.name}:{self._settings.label}.{piece}"
            stream = Stream(
                scope, STATES[level.name], scope, self._settings.period_s, specs, device=self._serial, model=self._model
            )
            bound = (fact.bound.get(name) if name in fact.shown else None for name in columns)
            cells = tuple(self._cell(name, one) for name, one in zip(columns, bound, strict=True))
            self._pieces.append(Piece(stream, cells))

    def _cell(self, name: str, bound: Bound | None, *, vital: bool = False) -> Cell:
        if bound is None:
            return Cell(name, None)
        return Cell(name, self._place(bound.oid), bound.scale, bound.column.least, vital, bound.column.most)

    def _place(self, oid: str) -> int:
        return self._oids.setdefault(oid, len(self._oids))

    def _spec(self, name: str, bound: Bound | None) -> Spec:
        quantity, unit = QUANTITIES[name]
        update_s = self._settings.update_s
        if name not in VITAL:
            return Spec(name, quantity, unit, update_s=update_s)
        scale = bound.scale if bound else 0.0
        told = bound.gain if bound else None
        accuracy = Accuracy(
            "assumed" if told is None else "datasheet",
            self._source.gain if told is None else told,
            offset=self._offset_w,
            quantum=scale,
            shared=self._settings.label,
            reference=self._source.reference if told is None else "the device's own accuracy column",
        )
        accuracy = wall.stated(self._settings.config, accuracy)
        if name == "power_w":
            return Spec(name, quantity, unit, "power", update_s, update_s, accuracy=accuracy)
        spec = Spec(name, quantity, unit, "counter", update_s, accuracy=accuracy)
        return replace(spec, modulus=self._modulus(bound))

    def _modulus(self, bound: Bound | None) -> float | None:
        """Return where the counter wraps (J): as the user says; a table's only where nobody can reset it to zero."""
        if self._settings.modulus_j is not None:
            return self._settings.modulus_j
        if bound is None or self._source.resettable or bound.column.modulus is None:
            return None
        return bound.column.modulus * bound.scale


def _pieces(chosen: Sequence[Row], offered: Sequence[Row]) -> list[str]:
    """Return a name for each row: its own number where that is unique, else its whole index."""
    numbers = [row.number for row in offered]
    return [row.number if numbers.count(row.number) == 1 else row.index.replace(".", "-") for row in chosen]


def _explain_absence(fact: Facts) -> str:
    """Return why a row without a power is no part of the whole, empty where it may be one."""
    if not fact.shown:
        return "it shows no number"
    if any("neutral" in name.lower() for name in fact.row.names):
        return "it is the neutral"
    drawn = {name: fact.shown[name] for name in EMPTY if name in fact.shown}
    if any(value > EMPTY[name] for name, value in drawn.items()):
        return ""
    if fact.shown.get("voltage_v") == 0:
        return "it shows 0 V"
    return " and ".join(f"its {name} is {value:g}" for name, value in drawn.items())


def _advice(level: Level, metered: Sequence[Row]) -> str:
    """Return what to do where some rows of one device have no power, so that there is no whole."""
    alone = f'; {level.word} {metered[0]} alone is units = ["{metered[0].index}"]' if metered else ""
    return f"the whole is the sum of all {level.word}s: measure it elsewhere, at a PDU or the nodes{alone}"


def _others(offered: Sequence[Row], row: Row) -> str:
    return "there are: " + (", ".join(str(other) for other in offered if other is not row) or "no others")
