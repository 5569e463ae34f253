"""Plan what is read of a device: which names in one request, and which of the values make which stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, nan
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, read_utc_ns
from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.snmp.client import MISSING
from joulelab.instruments.snmp.device import Bound, Row, bind, choose, rows, text
from joulelab.instruments.snmp.tables import QUANTITIES, STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.snmp.client import Session, Value
    from joulelab.instruments.snmp.settings import Settings
    from joulelab.instruments.snmp.tables import Level, Table

MAIN = "power"
ENERGY = ("power_w", "energy_j")
# A row that shows one of these feeds something, with or without a power. Beside more than this, a power of 0 W is no
# reading: 0.5 A are 115 VA at 230 V. Less may be the filters of idle supplies, or a power rounded to 100 W.
DRAWS = {"current_a": 0.5, "load": 0.02}


@dataclass(frozen=True, slots=True)
class Cell:
    """Say where one number of a row comes from: its place in the answer (None: the device has it not) and its worth."""

    name: str
    place: int | None
    scale: float = 1.0
    signed: bool = False
    vital: bool = False  # a power or a counter: without it the reading has failed
    most: float = inf
    zeros: tuple[int, ...] = ()  # places of power, current and energy: an outlet that never had any is not metered
    draws: tuple[Cell, ...] = ()  # current and load beside a power: it cannot be 0 while they are not

    def number(self, values: Sequence[Value], sentinels: frozenset[int]) -> float:
        """Return the number in SI, NaN for what the device has not. Raises ReadFailed."""
        if self.place is None:
            return nan
        value = values[self.place]
        if self.zeros and all(values[place] in (0, MISSING) for place in self.zeros):
            raise ReadFailed("the outlet is not metered", why="its power, current and energy have always been 0")
        drawn = (draw for draw in self.draws if draw.number(values, sentinels) > DRAWS[draw.name])
        if value == 0 and (draw := next(drawn, None)):
            why = f"it shows 0 beside a {draw.name} of {draw.number(values, sentinels):g}"
            raise ReadFailed(f"the device does not know {self.name} just now", why=why)
        if isinstance(value, int) and value not in sentinels and (self.signed or value >= 0):
            return value * self.scale if value * self.scale <= self.most else nan
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
    """Hold what is asked for, in one list of names, and what it makes."""

    oids: tuple[str, ...]
    pieces: tuple[Piece, ...]


class Planner:
    """Collect names and streams of one device."""

    def __init__(self, settings: Settings, session: Session, source: Table) -> None:
        self._settings, self._session, self._source = settings, session, source
        self._oids: dict[str, int] = {}
        self._pieces: list[Piece] = []
        self._blank: set[str] = set()  # rows without any number
        self._odd: dict[str, str] = {}  # what a row shows as its power, in words
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
        if wanted.phases:
            for name in STATES:
                if name in self._source.levels:
                    self._add_states(self._source.levels[name])
        return Plan(tuple(self._oids), tuple(self._pieces))

    def _ident(self, column: str) -> str:
        """Return the first text of a column, empty where there is none."""
        if not column:
            return ""
        ((found, value),) = self._session.next([column])
        return text(value) if found.startswith(f"{column}.") else ""

    def _add_pieces(self, kind: str, wanted: Sequence[int | str], feeds: str) -> None:
        level = self._source.levels.get(kind)
        offered = rows(self._session, level) if level else []
        where = self._session.where
        if level is None or not offered:
            why = f"{self._source.title} shows no metered {kind}s"
            advice = "leave out outlets to read the whole unit" if kind == "outlet" else "name outlets"
            raise Unavailable(f"no {kind} can be read", where=where, why=why, next=advice)
        if not wanted:
            self._check_lines(level, offered)
        chosen = choose(wanted, offered, kind, where) if wanted else self._whole(level, offered)
        bound = self._present(level, chosen)
        if not wanted:  # lines that a UPS lists and does not have
            chosen = [row for row in chosen if row.index not in self._blank] or chosen
        for row in chosen:
            if not any(b.column.name in ENERGY for b in bound[row.index]):
                unread = (
                    "neither its power nor its energy" if self._settings.energy else "no power, and energy is false"
                )
                why = f"the device shows {unread}{self._odd.get(row.index, '')}"
                metered = [r for r in offered if any(b.column.name in ENERGY for b in bound.get(r.index, ()))]
                advice = _advice(level, metered) if level.noun and not wanted else _others(offered, row)
                what = f"{level.noun or kind} {row} is not metered"
                raise Unavailable(what, where=where, why=why, next=advice)
        single = kind == "unit" and len(chosen) == 1
        for row, piece in zip(chosen, _pieces(chosen, offered), strict=True):
            place = wall.place(self._settings.config, feeds, "" if single else piece, len(chosen))
            columns = self._columns(level, bound)
            stream, cells = self._main(level, row, columns, bound[row.index], place)
            self._pieces.append(Piece(stream, cells))

    def _check_lines(self, level: Level, offered: list[Row]) -> None:
        """Refuse a whole of which a row shows a current or a load, and has no power to be listed by."""
        known = {row.index for row in offered}
        for column in level.columns if not level.whole else ():
            suffix = f".{column.suffix}" if column.suffix else ""
            shown = self._session.walk(column.oid) if column.name in DRAWS else []
            unknown = {
                index.removesuffix(suffix): value
                for index, value in shown
                if index.endswith(suffix) and index.removesuffix(suffix) not in known and isinstance(value, int)
            }
            for index, value in unknown.items():
                if value >= 0 and value not in self._source.sentinels:
                    scaled = f"{value * column.scale:g}" if column.scale is not None else str(value)
                    raise Unavailable(
                        f"{level.noun or level.name} {index} has no power",
                        where=self._session.where,
                        why=f"the device shows its {column.name}, {scaled}, and the power of others only",
                        next=_advice(level, offered),
                    )

    def _whole(self, level: Level, offered: list[Row]) -> list[Row]:
        """Return the rows that add up to the whole: without those that are parts of others. Raises Unavailable."""
        if not level.whole or len(offered) == 1:
            return offered
        part_of = dict(self._session.walk(level.whole))
        if part_of:
            return [row for row in offered if part_of.get(row.index) == 0] or offered
        shown = [self._session.get([column.at(row.index) for column in level.columns]) for row in offered]
        watts = next(value for column, value in zip(level.columns, shown[0], strict=True) if column.name == "power_w")
        if all(one == shown[0] for one in shown) and isinstance(watts, int) and watts > 0:
            return offered[:1]  # one load, shown as its phase and as its bank
        raise Unavailable(
            "the unit cannot be read as a whole",
            where=self._session.where,
            why=f"rows {', '.join(map(str, offered))} may be phases, or banks of them: the device does not say",
            next=f'name those that add up: units = ["{offered[0].index}"]',
        )

    def _main(
        self, level: Level, row: Row, columns: Sequence[str], bound: Sequence[Bound], place: wall.Place
    ) -> tuple[Stream, tuple[Cell, ...]]:
        by_name = {b.column.name: b for b in bound}
        cells = [self._cell(name, by_name.get(name), vital=name in ENERGY) for name in columns]
        if level.name == "outlet" and self._source.zero_is_unmetered:
            zeros = [c.at(row.index) for c in level.columns if c.name in (*ENERGY, "current_a")]
            cells = [replace(cell, zeros=tuple(map(self._place, zeros))) if cell.vital else cell for cell in cells]
        draws = tuple(cell for cell in cells if cell.name in DRAWS and cell.place is not None)
        cells = [replace(cell, draws=draws) if cell.name == "power_w" else cell for cell in cells]
        specs = [self._spec(name, by_name.get(name)) for name in columns]
        if self._settings.timestamps and "read_time" in level.read:
            first = by_name.get("power_w") or bound[0]
            oid = first.column.at(row.index, level.read["read_time"])
            cells.append(AgeCell("age_s", self._place(oid)))
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
        offered = rows(self._session, level)
        bound = self._present(level, offered) if offered else {}
        columns = self._columns(level, bound)
        if not columns:
            return
        for row, piece in zip(offered, _pieces(offered, offered), strict=True):
            by_name = {b.column.name: b for b in bound[row.index]}
            specs = tuple(Spec(name, *QUANTITIES[name], update_s=self._settings.update_s) for name in columns)
            scope = f"{level.name}:{self._settings.label}.{piece}"
            stream = Stream(
                scope, STATES[level.name], scope, self._settings.period_s, specs, device=self._serial, model=self._model
            )
            self._pieces.append(Piece(stream, tuple(self._cell(name, by_name.get(name)) for name in columns)))

    def _present(self, level: Level, chosen: Sequence[Row]) -> dict[str, list[Bound]]:
        """Return the channels that show a number now: what is missing or unknown at opening, the device has not."""
        bound = bind(self._session, self._source, level, chosen)
        if not self._settings.energy:
            bound = {index: [one for one in many if one.column.name != "energy_j"] for index, many in bound.items()}
        every = [one for many in bound.values() for one in many]
        values = self._session.get([one.oid for one in every]) if every else []
        answers = {one.oid: value for one, value in zip(every, values, strict=True)}
        self._blank = {
            index for index, many in bound.items() if many and not any(isinstance(answers[o.oid], int) for o in many)
        }
        self._odd = {
            index: f": its {one.column.name} is {answers[one.oid]!r}"
            for index, many in bound.items()
            for one in many
            if one.column.name == "power_w" and isinstance(answers[one.oid], int)
        }
        shown = {one.oid for one, value in zip(every, values, strict=True) if self._shows(one, value)}
        for index, many in bound.items():
            power = next((o for o in many if o.column.name == "power_w" and answers[o.oid] == 0), None)
            known = ((o, answers[o.oid]) for o in many if o.oid in shown)
            numbers = {o.column.name: value * o.scale for o, value in known if isinstance(value, int)}
            drawn = [f"{name} is {numbers[name]:g}" for name, least in DRAWS.items() if numbers.get(name, 0.0) > least]
            if power is not None and drawn:
                shown.discard(power.oid)
                self._odd[index] = f": its power_w is 0 while its {' and its '.join(drawn)}"
        return {index: [one for one in many if one.oid in shown] for index, many in bound.items()}

    def _shows(self, one: Bound, value: Value) -> bool:
        if not isinstance(value, int):
            return False
        if value in self._source.sentinels or value * one.scale > one.column.most:
            return False
        return one.column.signed or value >= 0

    def _columns(self, level: Level, bound: dict[str, list[Bound]]) -> list[str]:
        """Return the channels that any row has, in the table's order."""
        present = {one.column.name for many in bound.values() for one in many}
        return [column.name for column in level.columns if column.name in present]

    def _cell(self, name: str, bound: Bound | None, *, vital: bool = False) -> Cell:
        if bound is None:
            return Cell(name, None)
        column = bound.column
        return Cell(name, self._place(bound.oid), bound.scale, column.signed, vital, column.most)

    def _place(self, oid: str) -> int:
        return self._oids.setdefault(oid, len(self._oids))

    def _spec(self, name: str, bound: Bound | None) -> Spec:
        quantity, unit = QUANTITIES[name]
        update_s = self._settings.update_s
        if name not in ENERGY:
            return Spec(name, quantity, unit, update_s=update_s)
        scale = bound.scale if bound else 0.0
        told = bound.gain if bound else None
        accuracy = Accuracy(
            "assumed" if told is None else "datasheet",
            self._source.gain if told is None else told,
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


def _advice(level: Level, metered: Sequence[Row]) -> str:
    """Return what to do where some rows of one device have no power, so that there is no whole."""
    noun = level.noun or level.name
    alone = f'; {noun} {metered[0]} alone is units = ["{metered[0].index}"]' if metered else ""
    return f"the whole is the sum of all {noun}s: measure it elsewhere, at a PDU or the nodes{alone}"


def _others(offered: Sequence[Row], row: Row) -> str:
    return "there are: " + (", ".join(str(other) for other in offered if other is not row) or "no others")
