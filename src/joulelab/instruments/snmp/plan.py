"""Plan what is read of a device: which names in one request, and which of the values make which stream."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, isnan, nan
from typing import TYPE_CHECKING, cast

from joulelab.core.errors import ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments import wall
from joulelab.instruments.hooks import Missing
from joulelab.instruments.snmp.client import MISSING
from joulelab.instruments.snmp.device import Channel, DeviceRow, bind_channels, choose_rows, decode_text, list_rows
from joulelab.instruments.snmp.tables import QUANTITIES, STATES, VITAL, is_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.snmp.client import Session, Value
    from joulelab.instruments.snmp.settings import SnmpSettings
    from joulelab.instruments.snmp.tables import Level, Table

MAIN = "power"
UPDATE_S = 1.0  # how often values change, where neither the user nor the maker states it
# A row that shows one of these feeds something, with or without a power. Beside more than this, a power of 0 W is no
# reading: 0.5 A are 115 VA at 230 V. Less may be the filters of idle supplies, or a power rounded to 100 W.
DRAWS = {**wall.DRAWS, "load": 0.02}
# A row that shows no power is no part of the whole if it draws no more than this.
EMPTY = {"current_a": 0.1, "load": 0.0, "apparent_va": 20.0}
NEUTRAL = "it is the neutral"
# Powers that fit a voltage and a current beside them, as shares of their product: a poor power factor, three phases
# (of a row that is one line: one). Outside, the device has another scale than the table. MAINS_V is for devices that
# show no voltage.
FITTING, FITTING_LINE = (0.1, 3.3), (0.1, 1.3)
MAINS_V = (100.0, 480.0)
# Two numbers of a device for the same whole, read at one moment, differ by less than this factor and this many watts.
SAME, SAME_W = 1.4, 50.0
# Channels that decide whether a row feeds something; those that the device marks as not available are not shown.
DECIDING = (*VITAL, *EMPTY, "voltage_v")


@dataclass(frozen=True, slots=True)
class Cell:
    """Describe where one number of a row comes from: its place in the answer (None: the device has it not), its worth.

    `vital` is a power or a counter: without it the reading has failed. `zeros` are the places of power, current and
    energy: an outlet that never had any is not metered. `draws` are current, load and VA beside a power, which cannot
    be 0 while they are not. `marks` are places of numbers, with what they show while this is no reading.
    """

    name: str
    place: int | None
    scale: float = 1.0
    least: float = 0.0
    most: float = inf
    vital: bool = False
    zeros: tuple[int, ...] = ()
    draws: tuple[Cell, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()

    def read_number(self, values: Sequence[Value], sentinels: frozenset[int]) -> float:
        """Return the number in SI, NaN for what the device has not. Raises ReadFailed."""
        if self.place is None:
            return nan
        value = values[self.place]
        if any(values[place] == count for place, count in self.marks):
            raise self._fail("it marks it as not valid")
        if self.zeros and all(values[place] in (0, MISSING) for place in self.zeros):
            what, why = "the outlet is not metered", "its power, current and energy have always been 0"
            raise ReadFailed(what, why=why, code="read-failed.unmetered")
        for draw in self.draws if value == 0 else ():
            if (drawn := draw.read_number(values, sentinels)) > DRAWS[draw.name]:
                raise self._fail(f"it shows 0 beside a {draw.name} of {drawn:g}")
        if is_number(self.name, value, self.scale, self.least, self.most, sentinels):
            return cast("int", value) * self.scale
        if not isinstance(value, int) and value is not MISSING:
            why = f"the device answers {type(value).__name__}"
            raise ReadFailed(f"{self.name} is not a number", why=why, code="read-failed.no-number")
        if self.vital:
            raise self._fail(f"it shows {'nothing' if value is MISSING else value}")
        return nan

    def _fail(self, why: str) -> ReadFailed:
        return ReadFailed(f"the device does not know {self.name} just now", why=why, code="read-failed.unknown")


@dataclass(frozen=True, slots=True)
class Piece:
    """Hold one stream and where its numbers come from."""

    stream: Stream
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the names to ask for, the streams that they make, and what is left out or read otherwise."""

    oids: tuple[str, ...]
    pieces: tuple[Piece, ...]
    missing: tuple[Missing, ...] = ()


@dataclass(slots=True)
class RowFacts:
    """Hold what a row shows at opening: its channels, their numbers in SI, why a power or counter is not read."""

    row: DeviceRow
    channels: dict[str, Channel]
    shown: dict[str, float] = field(default_factory=dict)
    doubt: str = ""
    idle: str = ""  # why its energy counter is not read
    is_valid: bool = True
    is_available: bool = True  # False: the device marks one of its numbers as no reading just now

    @property
    def is_metered(self) -> bool:
        """Return whether it has a power or an energy."""
        return any(name in self.shown for name in VITAL)

    def list_draws(self) -> list[str]:
        """List the numbers that show that it feeds something."""
        return [f"{name} is {self.shown[name]:g}" for name, least in DRAWS.items() if self.shown.get(name, 0.0) > least]

    def explain_absence(self) -> str:
        """Return why a row without a power is no part of the whole, empty where it may be one."""
        if not self.shown:
            return "it shows no number" if self.is_available else ""
        if any("neutral" in name.lower() for name in self.row.names):
            return NEUTRAL
        drawn = {name: self.shown[name] for name in EMPTY if name in self.shown}
        if any(value > EMPTY[name] for name, value in drawn.items()):
            return ""
        if self.shown.get("voltage_v") == 0:
            return "it shows 0 V"
        return " and ".join(f"its {name} is {value:g}" for name, value in drawn.items())


class Planner:
    """Collect names and streams of one device."""

    def __init__(self, settings: SnmpSettings, session: Session, source: Table) -> None:
        self._settings, self._session, self._source = settings, session, source
        self._update_s = settings.update_s or source.update_s or UPDATE_S
        self._oids: dict[str, int] = {}
        self._pieces: list[Piece] = []
        self._missing: list[Missing] = []
        self._offset_w = 0.0  # the lowest negative power that the device shows, as a positive number
        self._model, self._serial = (self._read_first_text(column) for column in (source.model, source.serial))

    def make_plan(self) -> Plan:
        """Ask the device for its rows and plan the readings. Raises Unavailable, ConfigError, ReadFailed, Denied."""
        settings, source = self._settings, self._source
        if settings.outlets:
            self._add_pieces("outlet", settings.outlets, "node.ac")
        else:
            self._add_pieces("unit", settings.units, "rack")
        if source.passed:
            what = f"it is read by {source.title} ({source.levels[settings.kind].word})"
            why = f"no power is known by {', '.join(source.passed)}"
            self._add_missing("other-source", settings.kind, what, why, "vendor sets the table")
        for name in STATES if settings.phases else ():
            if name in source.levels:
                self._add_states(source.levels[name])
        return Plan(tuple(self._oids), tuple(self._pieces), tuple(self._missing))

    def _add_missing(self, code: str, scope: str, what: str, why: str, advice: str = "") -> None:
        self._missing.append(Missing(f"{scope} of {self._settings.label}", what, why, advice, f"meter.{code}"))

    def _read_first_text(self, column: str) -> str:
        if not column:
            return ""
        ((found, value),) = self._session.next([column])
        return decode_text(value) if found.startswith(f"{column}.") else ""

    def _add_pieces(self, kind: str, wanted: Sequence[int | str], feeds: str) -> None:
        """Add the streams of the units or outlets that are wanted, or of those that are the whole."""
        level = self._source.levels.get(kind)
        offered = list_rows(self._session, level) if level else []
        where = self._session.where
        if level is None or not offered:
            why = f"{self._source.title} shows no metered {kind}s"
            advice = "leave out outlets to read the whole unit" if kind == "outlet" else "name outlets"
            raise Unavailable(f"no {kind} can be read", where=where, why=why, next=advice, code="unavailable.no-rows")
        if wanted:
            rows = choose_rows(wanted, offered, kind, where)
            chosen = list(self._inspect_rows(level, rows).values())
            for fact in chosen:
                if not fact.is_metered:
                    others = ", ".join(str(other) for other in offered if other is not fact.row)
                    raise self._refuse_row(level, fact, f"there are: {others or 'no others'}")
        else:
            rows = self._drop_parts(level, offered)
            chosen = self._choose_whole(level, self._inspect_rows(level, rows))
            self._compare_sums(level, chosen, [row for row in offered if row not in rows])
        self._offset_w = max([0.0, *(-fact.shown.get("power_w", 0.0) for fact in chosen)])
        self._name_lacks(level, chosen)
        self._name_misfits(level, chosen)
        columns = [c.name for c in level.columns if any(c.name in fact.shown for fact in chosen)]
        is_single = kind == "unit" and len(chosen) == 1
        for fact, piece in zip(chosen, _name_pieces(chosen, offered), strict=True):
            place = wall.place(self._settings.config, feeds, "" if is_single else piece, len(chosen))
            self._pieces.append(self._make_piece(level, fact, columns, place))

    def _name_lacks(self, level: Level, chosen: Sequence[RowFacts]) -> None:
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
                self._add_missing(code, f"{level.word} {', '.join(listed)}", what, why)

    def _name_misfits(self, level: Level, chosen: Sequence[RowFacts]) -> None:
        """Name the rows whose power does not fit the voltage and the current beside it."""
        for fact in chosen:
            watts, volts, amps = (fact.shown.get(name, nan) for name in ("power_w", "voltage_v", "current_a"))
            if not amps >= DRAWS["current_a"] or volts == 0:
                continue
            low_v, high_v = MAINS_V if isnan(volts) else (volts, volts)
            low, high = FITTING_LINE if level.is_line else FITTING
            most_a = amps + fact.channels["current_a"].scale  # devices may cut what is below a count
            if watts < low * low_v * amps or watts > high * high_v * most_a:
                beside = f"{amps:g} A" if isnan(volts) else f"{volts:g} V and {amps:g} A"
                why = f"it shows {watts:g} W beside {beside}: one of them has another scale"
                scope, advice = f"{level.word} {fact.row}", "compare it with its display"
                self._add_missing("misfit", scope, "its power may be wrong", why, advice)

    # What rows are.

    def _inspect_rows(self, level: Level, rows: Sequence[DeviceRow]) -> dict[str, RowFacts]:
        """Return what rows show now, by index: what is missing or unknown at opening, the device has not."""
        source = self._source
        bound = bind_channels(self._session, source, level, rows)
        facts = {row.index: RowFacts(row, {one.column.name: one for one in bound[row.index]}) for row in rows}
        if not self._settings.energy:
            for fact in facts.values():
                fact.channels.pop("energy_j", None)
        oids = [one.oid for fact in facts.values() for one in fact.channels.values()]
        states = [f"{level.valid}.{row.index}" for row in rows] if level.valid and oids else []
        states += [oid for fact in facts.values() for name in DECIDING for oid in self._list_marks(level, fact, name)]
        answers = dict(zip(oids + states, self._session.get(oids + states), strict=True))
        for fact in facts.values():
            for name, one in fact.channels.items():
                marks = self._list_marks(level, fact, name) if name in DECIDING else {}
                if any(answers[oid] == count for oid, count in marks.items()):
                    fact.is_available = False
                    fact.doubt = fact.doubt or f": it marks its {name} as not available"
                elif one.column.is_known(answers[one.oid], one.scale, source.sentinels):
                    fact.shown[name] = cast("int", answers[one.oid]) * one.scale
            power = fact.channels.get("power_w")
            count = answers[power.oid] if power else None
            if level.valid and answers.get(f"{level.valid}.{fact.row.index}") == 0:
                fact.shown, fact.is_valid, fact.doubt = {}, False, ": it marks the row as not valid"
            elif "power_w" not in fact.shown and isinstance(count, int) and not fact.doubt:
                fact.doubt = f": its power_w is {count}"
            self._doubt_zeros(level, fact)
        return facts

    def _list_marks(self, level: Level, fact: RowFacts, name: str) -> dict[str, int]:
        """Return the names of what a row shows beside a channel, and what they show while it is no reading."""
        if name not in fact.channels:
            return {}
        column = fact.channels[name].column
        return {fact.row.locate_channel(column, oid): count for oid, count in level.unavailable.items()}

    def _doubt_zeros(self, level: Level, fact: RowFacts) -> None:
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

    def _drop_parts(self, level: Level, offered: list[DeviceRow]) -> list[DeviceRow]:
        """Return the rows that are the whole: without those that are parts of others. Raises Unavailable."""
        if not level.whole or len(offered) == 1:
            return offered
        part_of = dict(self._session.walk(level.whole))
        if wholes := [row for row in offered if part_of.get(row.index) == 0]:
            return wholes
        if part_of:
            why = f"rows {', '.join(map(str, offered))} are all parts: none shows the whole"
            raise self._refuse_whole(why, offered[0])
        shown = [self._session.get([row.locate_channel(column) for column in level.columns]) for row in offered]
        watts = next(value for column, value in zip(level.columns, shown[0], strict=True) if column.name == "power_w")
        if all(one == shown[0] for one in shown) and isinstance(watts, int) and watts > 0:
            return offered[:1]  # one load, shown as its phase and as its bank
        why = f"rows {', '.join(map(str, offered))} may be phases, or banks of them: the device does not state it"
        raise self._refuse_whole(why, offered[0])

    def _choose_whole(self, level: Level, facts: dict[str, RowFacts]) -> list[RowFacts]:
        """Return the rows that add up to the whole; name those that are no part of it. Raises Unavailable."""
        metered = [fact for fact in facts.values() if fact.is_metered]
        advice = f"the whole is the sum of all {level.word}s: measure it elsewhere, at a PDU or the nodes"
        if metered:
            row = metered[0].row
            advice += f'; {level.word} {row} alone is units = ["{row.index}"]'
        absent = {fact.row.index: fact.explain_absence() for fact in facts.values() if not fact.is_metered}
        for index, fact in facts.items():
            is_in_doubt = absent.get(index, "") not in ("", NEUTRAL) or fact.shown.get("power_w") == 0
            if is_in_doubt and (drawn := self._find_draw(level, fact.row, is_known=fact.is_metered)):
                fact.doubt, absent[index] = drawn, ""
        unclear = [facts[index] for index, why in absent.items() if not why]
        if unclear or not metered:
            raise self._refuse_row(level, (unclear or list(facts.values()))[0], advice)
        if len(metered) > 1 and not level.adds:
            listed = ", ".join(f"{one.row} {one.shown.get('power_w', nan):g} W" for one in metered)
            why = f"no source states whether its {level.word}s add up, or some are parts of others: {listed}"
            raise self._refuse_whole(why, metered[0].row)
        if absent:
            left = "; ".join(f"{facts[index].row}: {why}" for index, why in absent.items())
            self._add_missing("left-out", f"{level.word}s", "rows without a power are left out", left)
        if level.number == "first" and "outlet" in self._source.levels:  # devices of a chain
            outlets = {row.index.partition(".")[2] for row in list_rows(self._session, self._source.levels["outlet"])}
            if alone := sorted(outlets - {fact.row.index.partition(".")[2] for fact in metered}):
                why = f"these have outlets and show no {level.word}: index {', '.join(alone)}"
                self._add_missing("chain", "unit", "a device of the chain is not in the sum", why, "read its outlets")
        return metered

    def _find_draw(self, level: Level, row: DeviceRow, *, is_known: bool) -> str:
        """Return what a phase, bank or infeed of a row draws, empty for nothing; `is_known` is that the row shows 0 W.

        Parts have the row's index before their own number. Where a device counts units and phases each from 1, any
        phase may be one of a row that shows nothing.
        """
        own = {(column.oid, column.label) for column in level.columns}
        states = (self._source.levels[name] for name in ("phase", "bank") if name in self._source.levels)
        for part in (*self._source.others, *states):
            if any((column.oid, column.label) in own for column in part.columns):
                continue  # the same rows once more
            offered = list_rows(self._session, part)
            below = [one for one in offered if one.index.startswith(f"{row.index}.")]
            if part.name != "unit" and not is_known and "." not in row.index:
                below += [one for one in offered if "." not in one.index]
            for fact in self._inspect_rows(part, below).values():
                for name, least in {"power_w": 20.0, **(DRAWS if is_known else EMPTY)}.items():
                    if (drawn := fact.shown.get(name, 0.0)) > least and fact.explain_absence() != NEUTRAL:
                        zero = "its power_w is 0 while " if is_known else ""
                        return f": {zero}{part.word} {fact.row} shows a {name} of {drawn:g}"
        return ""

    def _compare_sums(self, level: Level, chosen: Sequence[RowFacts], parts: Sequence[DeviceRow]) -> None:
        """Compare the sum of rows with others that show the same: their parts, another level. Raises Unavailable."""
        watts = sum(fact.shown.get("power_w", nan) for fact in chosen)
        others = [(one, list_rows(self._session, one)) for one in self._source.others if one is not level]
        for other, rows in ((level, parts), *others):
            facts = self._inspect_rows(other, rows).values()
            shown = [fact.shown["power_w"] for fact in facts if "power_w" in fact.shown]
            if not shown:
                continue
            word = "their parts" if other is level else f"{other.word}s"
            why = f"its {level.word}s add up to {watts:g} W, {word} to {sum(shown):g} W"
            if watts * SAME + SAME_W < sum(shown):
                raise self._refuse_whole(why, parts[0] if other is level else chosen[0].row)
            if other is not level and len(shown) == len(facts) and watts > sum(shown) * SAME + SAME_W > SAME_W:
                what, advice = "the power may be wrong", "compare it with its display"
                self._add_missing("misfit", f"{level.word}s", what, why, advice)

    def _refuse_whole(self, why: str, row: DeviceRow) -> Unavailable:
        return Unavailable(
            "the unit cannot be read as a whole",
            where=self._session.where,
            why=why,
            next=f'name those that add up: units = ["{row.index}"]',
            code="unavailable.no-whole",
        )

    def _refuse_row(self, level: Level, fact: RowFacts, advice: str) -> Unavailable:
        unread = "neither its power nor its energy" if self._settings.energy else "no power, and energy is false"
        doubt = fact.doubt or "".join(f": its {drawn}" for drawn in fact.list_draws()[:1])
        return Unavailable(
            f"{level.word} {fact.row} is not metered",
            where=self._session.where,
            why=f"{self._source.title} shows {unread}{doubt}",
            next=advice,
            code="unavailable.not-metered",
        )

    # Streams.

    def _make_piece(self, level: Level, fact: RowFacts, columns: Sequence[str], place: wall.Place) -> Piece:
        row = fact.row
        channels = {name: one for name, one in fact.channels.items() if name in fact.shown}
        valid = ((self._place_name(f"{level.valid}.{row.index}"), 0),) if level.valid else ()
        zeros: tuple[int, ...] = ()
        cells = [self._make_cell(name, channels.get(name)) for name in columns]
        if level.name == "outlet" and self._source.zero_is_unmetered:
            located = [row.locate_channel(c) for c in level.columns if c.name in (*VITAL, "current_a")]
            zeros = tuple(map(self._place_name, located))
        draws = tuple(cell for cell in cells if cell.name in DRAWS and cell.place is not None)
        cells = [
            replace(
                cell,
                vital=True,
                marks=valid + self._place_marks(level, fact, cell),
                zeros=zeros,
                draws=draws if cell.name == "power_w" else (),
            )
            if cell.name in VITAL
            else cell
            for cell in cells
        ]
        stream = Stream(
            place["scope"],
            MAIN,
            place["scope"],
            self._settings.period_s,
            tuple(self._make_spec(name, channels.get(name)) for name in columns),
            place["parent"],
            device=self._serial,
            model=self._model or self._source.title,
            sums=place["sums"],
            parts=place["parts"],
        )
        return Piece(stream, tuple(cells))

    def _place_marks(self, level: Level, fact: RowFacts, cell: Cell) -> tuple[tuple[int, int], ...]:
        marks = self._list_marks(level, fact, cell.name) if cell.place is not None else {}
        return tuple((self._place_name(oid), count) for oid, count in marks.items())

    def _add_states(self, level: Level) -> None:
        """Add the streams of phases, banks, inputs or batteries; name those without numbers."""
        offered = list_rows(self._session, level)
        facts = list(self._inspect_rows(level, offered).values()) if offered else []
        shown = [fact for fact in facts if fact.shown]
        if blank := [str(fact.row) for fact in facts if not fact.shown and fact.is_valid]:
            self._add_missing("left-out", f"{level.word}s", "rows without numbers are left out", ", ".join(blank))
        columns = [c.name for c in level.columns if any(c.name in fact.shown for fact in shown)]
        specs = tuple(Spec(name, *QUANTITIES[name], update_s=self._update_s) for name in columns)
        for fact, piece in zip(shown, _name_pieces(shown, offered), strict=True):
            scope, table = f"{level.name}:{self._settings.label}.{piece}", STATES[level.name]
            stream = Stream(scope, table, scope, self._settings.period_s, specs, device=self._serial, model=self._model)
            channels = [fact.channels.get(name) if name in fact.shown else None for name in columns]
            cells = tuple(self._make_cell(name, one) for name, one in zip(columns, channels, strict=True))
            self._pieces.append(Piece(stream, cells))

    def _make_cell(self, name: str, channel: Channel | None) -> Cell:
        if channel is None:
            return Cell(name, None)
        column = channel.column
        return Cell(name, self._place_name(channel.oid), channel.scale, column.least, column.most)

    def _place_name(self, oid: str) -> int:
        return self._oids.setdefault(oid, len(self._oids))

    def _make_spec(self, name: str, channel: Channel | None) -> Spec:
        quantity, unit = QUANTITIES[name]
        if name not in VITAL:
            return Spec(name, quantity, unit, update_s=self._update_s)
        stated = channel.gain if channel else None
        accuracy = Accuracy(
            "assumed" if stated is None else "datasheet",
            self._source.accuracy["gain"] if stated is None else stated,
            offset=self._offset_w,
            quantum=channel.scale if channel else 0.0,
            shared=self._settings.label,
            reference=self._source.accuracy["reference"] if stated is None else "the device's own accuracy column",
        )
        accuracy = wall.stated(self._settings.config, accuracy)
        if name == "power_w":
            return Spec(name, quantity, unit, "power", self._update_s, self._update_s, accuracy=accuracy)
        # Where the counter wraps: as the user states; a table's modulus only where users cannot reset it to zero.
        modulus = self._settings.modulus_j
        if modulus is None and channel and channel.column.modulus is not None and not self._source.resettable:
            modulus = channel.column.modulus * channel.scale
        return Spec(name, quantity, unit, "counter", self._update_s, modulus=modulus, accuracy=accuracy)


def _name_pieces(chosen: Sequence[RowFacts], offered: Sequence[DeviceRow]) -> list[str]:
    """Return a name for each row: its own number where that is unique, else its whole index."""
    numbers = [row.number for row in offered]
    rows = [fact.row for fact in chosen]
    return [row.number if numbers.count(row.number) == 1 else row.index.replace(".", "-") for row in rows]
