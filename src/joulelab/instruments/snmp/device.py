"""Find out what a device is and has: the table of its maker, its rows and their names, what its counts are worth."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, Unavailable
from joulelab.instruments.snmp.client import MISSING, Name
from joulelab.instruments.snmp.tables import (
    DEVICE_UNITS,
    PIECES,
    QUANTITIES,
    VITAL,
    Column,
    Level,
    Table,
    find_maker,
    load_tables,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.instruments.snmp.client import Session, Value

SYS_DESCR, SYS_OBJECT_ID = "1.3.6.1.2.1.1.1.0", "1.3.6.1.2.1.1.2.0"
_LISTED = 60
_MAX_DIGITS = 9
_LISTING = (*VITAL, "current_a", "load")
# In a label of a table, {n} is the number of the row, and | separates labels of which a device has one.
_LABEL = re.compile(r"\{n\}|\||[^{|]+")
_LABEL_PATTERNS = {"{n}": r"0*(\d+)", "|": "|"}


@dataclass(frozen=True, slots=True)
class Identity:
    """Hold how an agent describes itself."""

    description: str
    object_id: str

    def __str__(self) -> str:
        return f"sysObjectID {self.object_id or 'none'}, sysDescr {self.description or 'none'!r}"


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """Hold one outlet, unit, phase: its index in the device's tables and its names.

    `places` are the indices of its channels, where the device lists each on its own under a label.
    """

    index: str
    names: tuple[str, ...] = ()
    number_at: str = "last"
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """Return its own number, the last of the index unless the table states another place."""
        return self.index.split(".")[0 if self.number_at == "first" else -1]

    def locate_channel(self, column: Column, oid: str = "") -> str:
        """Return the full name of a channel of this row, in its column or in one beside it; empty: it has none."""
        if not column.label:
            return ".".join(filter(None, (oid or column.oid, self.index, column.suffix)))
        return f"{oid or column.oid}.{self.places[column.name]}" if column.name in self.places else ""

    def __str__(self) -> str:
        named = ", ".join(filter(None, self.names))
        return f"{self.number} ({named})" if named else self.number


@dataclass(frozen=True, slots=True)
class Channel:
    """Hold one channel of one row: its full name, what a count is worth, its relative error (None: not stated)."""

    column: Column
    oid: str
    scale: float
    gain: float | None = None


def read_identity(session: Session) -> Identity:
    """Ask the agent what it is. Raises ReadFailed, Denied."""
    description, object_id = session.get([SYS_DESCR, SYS_OBJECT_ID])
    return Identity(decode_text(description), object_id.oid if isinstance(object_id, Name) else "")


def decode_text(value: Value) -> str:
    """Return a text of a device, with blanks in place of what cannot be printed."""
    if not isinstance(value, bytes):
        return ""
    decoded = value.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in decoded).strip()


# Which table.


def find_table(session: Session, who: Identity, vendor: str | None, kind: str = "") -> Table:
    """Return the table, with the level of the whole, by which the device shows most of a kind. Raises Unavailable.

    sysObjectID says which to try first. What counts is what the device has: the first table with a known power of that
    kind (unit, outlet; either), then one with a known energy, then one that it has at all. `passed` of the table lists
    those that were passed over though the device has them.
    """
    candidates = [find_maker(vendor).resolve_model(who.object_id)] if vendor else _sort_tables(who.object_id)
    found: list[tuple[int, Table]] = []
    for option in (option for candidate in candidates for option in candidate.list_options()):
        if found and not vendor and option.vendor != "ups" and not _match_prefix(option, who.object_id):
            break  # its maker is known
        rank = _rank_table(session, option, kind)
        if rank is not None:
            found.append((rank, option))
        if rank == 0:
            break
    if not found:
        known = ", ".join(load_tables())
        what, advice, code = "this is not a PDU or UPS that joulelab knows", "", "unavailable.unknown-maker"
        if vendor:
            what, code = f"it shows nothing of {candidates[0].title}", "unavailable.other-maker"
            advice = f"leave out vendor, or name another: {known}"
        else:
            advice = f"known makers: {known}; values that may be a power: joulelab doctor"
        raise Unavailable(what, where=session.where, why=str(who), next=advice, code=code)
    best, chosen = min(found, key=lambda one: one[0])
    before = [option for rank, option in found[: found.index((best, chosen))] if rank > best]
    if kind != "outlet" and chosen.levels["unit"] in chosen.others:
        before.append(find_maker(chosen.vendor))
    passed = (f"{one.title} ({one.levels.get(kind or 'unit', one.levels['unit']).word})" for one in before)
    return replace(chosen, passed=tuple(dict.fromkeys(passed)))


def _sort_tables(object_id: str) -> list[Table]:
    """Return all tables, those whose prefix fits the object id best first, the standard UPS before other makers.

    Of two that fit equally, the one with an energy counter comes first (APC rPDU2 before rPDU). A table for many
    models, each below its own object id, is tried on models of its maker only.
    """

    def order(candidate: Table) -> tuple[int, bool, bool]:
        counts = any(column.name == "energy_j" for column in candidate.levels["unit"].columns)
        return -_match_prefix(candidate, object_id), candidate.vendor != "ups", not counts

    fitting = (one for one in load_tables().values() if not one.template or _match_prefix(one, object_id))
    return [one.resolve_model(object_id) for one in sorted(fitting, key=order)]


def _match_prefix(candidate: Table, object_id: str) -> int:
    """Return the length of the longest prefix of a table that fits a sysObjectID, 0 where none does."""
    return max((len(one) for one in candidate.sysobjectid if f"{object_id}.".startswith(f"{one}.")), default=0)


def _rank_table(session: Session, option: Table, kind: str) -> int | None:
    """Return how much of a kind a device shows by a table: 0 power, 1 energy, 2 less, 3 other rows, None: nothing."""
    ranks = [_rank_level(session, option, level) for name, level in option.levels.items() if name == (kind or name)]
    known = [rank for rank in ranks if rank is not None]
    if known:
        return min(known)
    others = [level.labels or level.columns[0].oid for level in option.levels.values()]
    others += filter(None, [option.model, option.serial])
    return (
        3
        if any(found.startswith(f"{oid}.") for oid, (found, _) in zip(others, session.next(others), strict=True))
        else None
    )


def _rank_level(session: Session, option: Table, level: Level) -> int | None:
    if level.labels:
        offered = list_rows(session, level)
        channels = [one for many in bind_channels(session, option, level, offered).values() for one in many]
        values = zip(channels, session.get([one.oid for one in channels]), strict=True)
        known = {one.column.name for one, v in values if one.column.is_known(v, one.scale, option.sentinels)}
        return next((rank for rank, name in enumerate(VITAL) if name in known), 2 if offered else None)
    firsts = session.next([column.oid for column in level.columns])
    present = {
        column.name: (column, value)
        for column, (found, value) in zip(level.columns, firsts, strict=True)
        if value is not MISSING and found.startswith(f"{column.oid}.")
    }
    for rank, name in enumerate(VITAL):
        if name in present and _has_number(session, option, *present[name]):
            return rank
    return 2 if present else None


def _has_number(session: Session, option: Table, column: Column, first: Value) -> bool:
    """Return whether any row of a column has a number; most often the first has."""
    scale = column.scale if column.scale is not None else 0.0
    if column.is_known(first, scale, option.sentinels) and not column.suffix:
        return True
    return any(
        column.is_known(value, scale, option.sentinels)
        for index, value in session.walk(column.oid)
        if not column.suffix or index.endswith(f".{column.suffix}")
    )


# Which rows.


def list_rows(session: Session, level: Level) -> list[DeviceRow]:
    """Return the rows of a level with their names. Raises ReadFailed, Denied.

    Rows are those of the table's `rows`; else all that any column of units and outlets has, so that none is lost, and
    all phases and banks with a power, an energy, a current or a load, or with anything where none has these.
    """
    if level.labels:
        return _find_labels(session, level)
    columns = [level.rows] if level.rows else list(level.columns)
    drawing = [column for column in columns if column.name in _LISTING] if level.name not in PIECES else []
    indices = _list_indices(session, drawing) or _list_indices(session, columns)
    named = [{index: decode_text(value) for index, value in session.walk(column)} for column in level.names]
    return [DeviceRow(one, tuple(names.get(one, "") for names in named), level.number) for one in indices]


def _list_indices(session: Session, columns: Sequence[Column]) -> list[str]:
    """Return the indices of all rows of columns, in order."""
    indices: dict[str, None] = {}
    for column in columns:
        suffix = f".{column.suffix}" if column.suffix else ""
        shown = session.walk(column.oid)
        indices |= dict.fromkeys(index.removesuffix(suffix) for index, _ in shown if index.endswith(suffix))
    return sorted(indices, key=lambda index: [*map(int, index.split("."))])


def _find_labels(session: Session, level: Level) -> list[DeviceRow]:
    """Return the rows of a device that lists all its values in one table, each under a label."""
    patterns = {
        column.name: re.compile(_LABEL.sub(lambda part: _LABEL_PATTERNS.get(part[0], re.escape(part[0])), column.label))
        for column in level.columns
    }
    places: dict[str, dict[str, str]] = {}
    for index, value in session.walk(level.labels):
        label = decode_text(value)
        for name, pattern in patterns.items():
            if match := pattern.fullmatch(label):
                row = ".".join((index.rpartition(".")[0], *match.groups()))
                places.setdefault(row.strip("."), {}).setdefault(name, index)
    return [DeviceRow(row, (), level.number, found) for row, found in places.items()]


def choose_rows(wanted: Sequence[int | str], offered: Sequence[DeviceRow], kind: str, where: str) -> list[DeviceRow]:
    """Return the rows that are named by number, name or full index. Raises ConfigError that lists them."""
    listed = ", ".join(map(str, offered[:_LISTED])) + (", ..." if len(offered) > _LISTED else "")
    chosen: list[DeviceRow] = []
    for one in wanted:
        given = str(one).strip()
        named = [
            row for row in offered if isinstance(one, str) and given and given.lower() in map(str.lower, row.names)
        ]
        found = named or [row for row in offered if row.index == given] or [r for r in offered if r.number == given]
        if not found:
            advice = f"there are: {listed or 'none'}"
            raise ConfigError(f"there is no {kind} {one!r}", where=where, next=advice, code="config.no-row")
        if len(found) > 1:
            advice = f'give one of "{", ".join(row.index for row in found)}" as text'
            raise ConfigError(f"several {kind}s are {one!r}", where=where, next=advice, code="config.several-rows")
        if found[0] in chosen:
            what = f"{kind} {one!r} is given twice"
            raise ConfigError(what, where=where, next="name each once", code="config.same-row")
        chosen.append(found[0])
    return chosen


# What counts are worth.


def bind_channels(
    session: Session, source: Table, level: Level, chosen: Sequence[DeviceRow]
) -> dict[str, list[Channel]]:
    """Return the channels of each row (by index) that the device has, with units and digits as it states them."""
    bound: dict[str, list[Channel]] = {row.index: [] for row in chosen}
    pairs = [(row, column) for row in chosen for column in level.columns if row.locate_channel(column)]
    stating = (level.read_digits, level.read_factor, level.read_units, level.read_accuracy)
    oids = [row.locate_channel(c, oid) for row, c in pairs if c.scale is None for oid in stating if oid]
    answers: Iterator[Value] = iter(session.get(oids))
    for row, column in pairs:
        scale, gain = column.scale, None
        if scale is None:
            digits, factor, units, accuracy = (next(answers) if oid else MISSING for oid in stating)
            scale = _convert_unit(source, column, _convert_digits(digits, factor), units)
            gain = accuracy / 10_000 if isinstance(accuracy, int) and 0 < accuracy <= 10_000 else None
        if scale is not None:
            bound[row.index].append(Channel(column, row.locate_channel(column), scale, gain))
    return bound


def _convert_digits(digits: Value, factor: Value) -> float | None:
    """Return what a count is worth in the device's unit: by decimal digits, or by a factor (negative: a divisor)."""
    if isinstance(digits, int) and 0 <= digits <= _MAX_DIGITS:
        return float(10.0**-digits)
    if isinstance(factor, int) and 0 < abs(factor) <= 10**_MAX_DIGITS:
        return float(factor) if factor > 0 else -1.0 / factor
    return None


def _convert_unit(source: Table, column: Column, step: float | None, units: Value) -> float | None:
    """Return what a count is worth in SI, None where the device states none, or that of another quantity."""
    wanted = QUANTITIES[column.name][1]
    if step is None or wanted == "1":
        return step
    stated = decode_text(units) if isinstance(units, bytes) else source.units.get(str(units), "")
    unit, worth = DEVICE_UNITS.get(column.unit if units is MISSING else stated, ("", 0.0))
    return worth * step if unit == wanted else None
