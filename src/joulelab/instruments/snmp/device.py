"""Find out what answers: whose PDU it is, by trying its tables; its rows, their names, what its numbers are worth."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, Denied, MeterError, Unavailable
from joulelab.instruments.snmp.client import MISSING, Name, User
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
    from joulelab.instruments.snmp.settings import SnmpSettings

SYS_DESCR, SYS_OBJECT_ID, SYS_NAME = "1.3.6.1.2.1.1.1.0", "1.3.6.1.2.1.1.2.0", "1.3.6.1.2.1.1.5.0"
_LISTED = 60
_MAX_DIGITS = 9
_LISTING = (*VITAL, "current_a", "load")
# In a label of a table, {n} is the number of the row, and | stands between labels of which a device has one.
_LABEL = re.compile(r"\{n\}|\||[^{|]+")


@dataclass(frozen=True, slots=True)
class Identity:
    """Hold what any agent says of itself."""

    description: str
    object_id: str
    name: str

    def __str__(self) -> str:
        return f"sysObjectID {self.object_id or 'none'}, sysDescr {self.description or 'none'!r}"


@dataclass(frozen=True, slots=True)
class Row:
    """Hold one outlet, unit, phase: its index in the device's tables and the names it goes by.

    `places` are the indices of its channels, where the device lists each on its own under a label.
    """

    index: str
    names: tuple[str, ...] = ()
    number_at: str = "last"
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """Return its own number, the last of the index unless the table says otherwise."""
        return self.index.split(".")[0 if self.number_at == "first" else -1]

    def locate(self, column: Column, oid: str = "") -> str:
        """Return the full name of a channel of this row, in its column or in one beside it; empty: it has none."""
        if not column.label:
            return column.at(self.index, oid)
        return f"{oid or column.oid}.{self.places[column.name]}" if column.name in self.places else ""

    def __str__(self) -> str:
        named = ", ".join(filter(None, self.names))
        return f"{self.number} ({named})" if named else self.number


@dataclass(frozen=True, slots=True)
class Bound:
    """Hold one channel of one row: its full name, what a count is worth, how far it may be off (None: not told)."""

    column: Column
    oid: str
    scale: float
    gain: float | None = None


def read_identity(session: Session) -> Identity:
    """Ask the agent what it is. Raises ReadFailed, Denied."""
    description, object_id, name = session.get([SYS_DESCR, SYS_OBJECT_ID, SYS_NAME])
    return Identity(decode_text(description), object_id.oid if isinstance(object_id, Name) else "", decode_text(name))


def speaks_without_privacy(wanted: SnmpSettings) -> bool:
    """Return whether an agent that drops a user's encrypted requests answers that user in the clear.

    Agents that cannot decrypt a request often say nothing. The question is only what the agent calls itself.
    """
    user = wanted.login
    if not isinstance(user, User) or not user.priv:
        return False
    session = replace(wanted, login=replace(user, priv="", priv_password="")).session()
    try:
        read_identity(session)
    except Denied as denied:
        return "level" in (denied.why or "")  # the password was right, the level was not
    except MeterError:
        return False
    finally:
        session.close()
    return True


def decode_text(value: Value) -> str:
    """Return a text that a device gives, without what cannot be printed."""
    if not isinstance(value, bytes):
        return ""
    decoded = value.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in decoded).strip()


def find_table(session: Session, who: Identity, vendor: str | None, kind: str = "") -> Table:
    """Return the table, with the level of the whole, by which the device shows most of a kind. Raises Unavailable.

    sysObjectID says which to try first. What counts is what the device has: the first table with a known power of that
    kind (unit, outlet; either), then one with a known energy, then one that it has at all. `passed` of the table says
    which were passed over though the device has them.
    """
    candidates = [find_maker(vendor).resolve(who.object_id)] if vendor else _candidates(who.object_id)
    found: list[tuple[int, Table]] = []
    for option in (option for candidate in candidates for option in candidate.list_options()):
        if found and not vendor and option.vendor != "ups" and not _fit(option, who.object_id):
            break  # its maker is known
        rank = _rank(session, option, kind)
        if rank is not None:
            found.append((rank, option))
        if rank == 0:
            break
    if found:
        best, chosen = min(found, key=lambda one: one[0])
        before = [option for rank, option in found[: found.index((best, chosen))] if rank > best]
        passed = dict.fromkeys(_describe(option, kind) for option in before)
        if kind != "outlet" and chosen.levels["unit"] in chosen.others:
            passed[_describe(find_maker(chosen.vendor), kind)] = None
        return replace(chosen, passed=tuple(passed))
    if vendor:
        what = f"it shows nothing of {candidates[0].title}"
        advice = "leave out vendor, or look which one fits: " + ", ".join(load_tables())
        raise Unavailable(what, where=session.where, why=str(who), next=advice, code="unavailable.other-maker")
    raise Unavailable(
        "this is no PDU or UPS that joulelab knows",
        where=session.where,
        why=str(who),
        next="joulelab doctor lists what in it might be power; a maker is one file to add. Known: "
        + ", ".join(load_tables()),
        code="unavailable.unknown-maker",
    )


def _describe(option: Table, kind: str) -> str:
    """Return a source in words."""
    return f"{option.title} ({option.levels.get(kind or 'unit', option.levels['unit']).word})"


def _candidates(object_id: str) -> list[Table]:
    """Return all tables, those whose prefix fits the object id best first, the standard UPS before strangers.

    Of two that fit equally, the one with an energy counter comes first (APC rPDU2 before rPDU). A table for many
    models, each below its own object id, is tried on models of its maker only.
    """

    def order(candidate: Table) -> tuple[int, bool, bool]:
        counts = any(column.name == "energy_j" for column in candidate.levels["unit"].columns)
        return -_fit(candidate, object_id), candidate.vendor != "ups", not counts

    fitting = (one for one in load_tables().values() if not one.template or _fit(one, object_id))
    return [one.resolve(object_id) for one in sorted(fitting, key=order)]


def _fit(candidate: Table, object_id: str) -> int:
    """Return how well a table fits a sysObjectID: the length of the longest prefix that does."""
    return max((len(prefix) for prefix in candidate.prefixes if f"{object_id}.".startswith(f"{prefix}.")), default=0)


def _rank(session: Session, option: Table, kind: str) -> int | None:
    """Return how much of a kind a device shows by a table: 0 power, 1 energy, 2 less, 3 other rows, None: nothing."""
    ranks = [_rank_level(session, option, level) for name, level in option.levels.items() if name == (kind or name)]
    known = [rank for rank in ranks if rank is not None]
    if known:
        return min(known)
    others = [level.labels or level.columns[0].oid for level in option.levels.values()]
    others += filter(None, [option.model, option.serial])
    present = [_has_rows(found, oid) for oid, (found, _) in zip(others, session.next(others), strict=True)]
    return 3 if any(present) else None


def _rank_level(session: Session, option: Table, level: Level) -> int | None:
    if level.labels:
        ((found, _),) = session.next([level.labels])
        offered = list_rows(session, level) if _has_rows(found, level.labels) else []
        bound = [one for many in bind_channels(session, option, level, offered).values() for one in many]
        values = session.get([one.oid for one in bound]) if bound else []
        known = {one.column.name for one, v in zip(bound, values, strict=True) if _shows(option, one, v)}
        return next((rank for rank, name in enumerate(VITAL) if name in known), 2 if offered else None)
    present = {
        column.name: value
        for column, (found, value) in zip(level.columns, session.next([c.oid for c in level.columns]), strict=True)
        if value is not MISSING and _has_rows(found, column.oid)
    }
    for rank, name in enumerate(VITAL):
        for column in level.columns:
            if column.name == name and name in present and _knows(session, option, column, present[name]):
                return rank
    return 2 if present else None


def _knows(session: Session, option: Table, column: Column, first: Value) -> bool:
    """Return whether any row of a column has a number; most often the first has."""
    scale = column.scale if column.scale is not None else 0.0
    if column.is_known(first, scale, option.sentinels) and not column.suffix:
        return True
    return any(
        column.is_known(value, scale, option.sentinels)
        for index, value in session.walk(column.oid)
        if not column.suffix or index.endswith(f".{column.suffix}")
    )


def _shows(option: Table, one: Bound, value: Value) -> bool:
    return one.column.is_known(value, one.scale, option.sentinels)


def _has_rows(found: str, column: str) -> bool:
    return found.startswith(f"{column}.")


def list_rows(session: Session, level: Level) -> list[Row]:
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
    return [Row(one, tuple(names.get(one, "") for names in named), level.number) for one in indices]


def _list_indices(session: Session, columns: Sequence[Column]) -> list[str]:
    """Return the indices of all rows of columns, in order."""
    indices: dict[str, None] = {}
    for column in columns:
        suffix = f".{column.suffix}" if column.suffix else ""
        shown = session.walk(column.oid)
        indices |= dict.fromkeys(index.removesuffix(suffix) for index, _ in shown if index.endswith(suffix))
    return sorted(indices, key=lambda index: [*map(int, index.split("."))])


def _find_labels(session: Session, level: Level) -> list[Row]:
    """Return the rows of a device that lists all its values in one table, each under a label."""
    patterns = [(c.name, re.compile(_LABEL.sub(_write_pattern, c.label))) for c in level.columns]
    places: dict[str, dict[str, str]] = {}
    for index, value in session.walk(level.labels):
        label = decode_text(value)
        for name, pattern in patterns:
            if match := pattern.fullmatch(label):
                row = ".".join((index.rpartition(".")[0], *match.groups()))
                places.setdefault(row.strip("."), {}).setdefault(name, index)
    return [Row(row, (), level.number, found) for row, found in places.items()]


def _write_pattern(part: re.Match[str]) -> str:
    return {"{n}": r"0*(\d+)", "|": "|"}.get(part[0], re.escape(part[0]))


def choose_rows(wanted: Sequence[int | str], offered: Sequence[Row], kind: str, where: str) -> list[Row]:
    """Return the rows that are meant by number, name or full index. Raises ConfigError that lists them."""
    listed = ", ".join(map(str, offered[:_LISTED])) + (", ..." if len(offered) > _LISTED else "")
    chosen: list[Row] = []
    for one in wanted:
        meant = _meant(one, offered)
        if not meant:
            raise ConfigError(f"there is no {kind} {one!r}", where=where, next=f"there are: {listed or 'none'}")
        if len(meant) > 1:
            indices = ", ".join(row.index for row in meant)
            raise ConfigError(f"several {kind}s are {one!r}", where=where, next=f'give one of "{indices}" as text')
        if meant[0] in chosen:
            raise ConfigError(f"{kind} {one!r} is given twice", where=where, next="name each once")
        chosen.append(meant[0])
    return chosen


def _meant(one: int | str, offered: Sequence[Row]) -> list[Row]:
    given = str(one).strip()
    by_name = [row for row in offered if isinstance(one, str) and given.lower() in map(str.lower, row.names)]
    if given and by_name:
        return by_name
    return [row for row in offered if row.index == given] or [row for row in offered if row.number == given]


def bind_channels(session: Session, source: Table, level: Level, chosen: Sequence[Row]) -> dict[str, list[Bound]]:
    """Return the channels of each row that the device has, with units and digits as it tells them."""
    bound: dict[str, list[Bound]] = {row.index: [] for row in chosen}
    pairs = [(row, column) for row in chosen for column in level.columns if row.locate(column)]
    asked = [level.read.get(key, "") for key in ("read_digits", "read_factor", "read_units", "read_accuracy")]
    told = [column.scale is None for _, column in pairs]
    oids = [row.locate(c, oid) for (row, c), tells in zip(pairs, told, strict=True) if tells for oid in asked if oid]
    answers: Iterator[Value] = iter(session.get(oids) if oids else [])
    for (row, column), tells in zip(pairs, told, strict=True):
        scale, gain = column.scale, None
        if tells:
            digits, factor, units, accuracy = (next(answers) if oid else MISSING for oid in asked)
            scale = _scale(source, column, _step(digits, factor), units)
            gain = accuracy / 10_000 if isinstance(accuracy, int) and 0 < accuracy <= 10_000 else None
        if scale is not None:
            bound[row.index].append(Bound(column, row.locate(column), scale, gain))
    return bound


def _step(digits: Value, factor: Value) -> float | None:
    """Return what a count is worth in the device's unit: by decimal digits, or by a factor (negative: a divisor)."""
    if isinstance(digits, int) and 0 <= digits <= _MAX_DIGITS:
        return float(10.0**-digits)
    if isinstance(factor, int) and 0 < abs(factor) <= 10**_MAX_DIGITS:
        return float(factor) if factor > 0 else -1.0 / factor
    return None


def _scale(source: Table, column: Column, step: float | None, units: Value) -> float | None:
    """Return what a count is worth in SI, None where the device does not say, or says another quantity."""
    wanted = QUANTITIES[column.name][1]
    if step is None or wanted == "1":
        return step
    told = decode_text(units) if isinstance(units, bytes) else source.units.get(str(units), "")
    unit, worth = DEVICE_UNITS.get(column.unit if units is MISSING else told, ("", 0.0))
    return worth * step if unit == wanted else None
