"""Find out what answers: whose PDU it is, by trying its tables; its rows, their names, what its numbers are worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError, Denied, MeterError, Unavailable
from joulelab.instruments.snmp.client import MISSING, Name, User
from joulelab.instruments.snmp.tables import DEVICE_UNITS, PIECES, QUANTITIES, Column, Level, Table, table, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.instruments.snmp.client import Session, Value
    from joulelab.instruments.snmp.settings import Settings

SYS_DESCR, SYS_OBJECT_ID, SYS_NAME = "1.3.6.1.2.1.1.1.0", "1.3.6.1.2.1.1.2.0", "1.3.6.1.2.1.1.5.0"
_LISTED = 60
_MAX_DIGITS = 9


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
    """Hold one outlet, unit, phase: its index in the device's tables and the names it goes by."""

    index: str
    names: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        """Return its own number, the last of the index."""
        return self.index.rsplit(".", 1)[-1]

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


def identity(session: Session) -> Identity:
    """Ask the agent what it is. Raises ReadFailed, Denied."""
    description, object_id, name = session.get([SYS_DESCR, SYS_OBJECT_ID, SYS_NAME])
    return Identity(text(description), object_id.oid if isinstance(object_id, Name) else "", text(name))


def speaks_without_privacy(wanted: Settings) -> bool:
    """Return whether an agent that drops a user's encrypted requests answers that user in the clear.

    Agents that cannot decrypt a request often say nothing. The question is only what the agent calls itself.
    """
    user = wanted.login
    if not isinstance(user, User) or not user.priv:
        return False
    session = replace(wanted, login=replace(user, priv="", priv_password="")).session()
    try:
        identity(session)
    except Denied as denied:
        return "level" in (denied.why or "")  # the password was right, the level was not
    except MeterError:
        return False
    finally:
        session.close()
    return True


def text(value: Value) -> str:
    """Return a text that a device gives, without what cannot be printed."""
    if not isinstance(value, bytes):
        return ""
    decoded = value.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in decoded).strip()


def find_table(session: Session, who: Identity, vendor: str | None, kind: str = "") -> Table:
    """Return the table whose rows of a kind (unit, outlet; either) the device has. Raises Unavailable.

    sysObjectID says which to try first. A table whose first row is not known to the device (-1) comes after others,
    and one that has only the other kind of rows comes last.
    """
    candidates = [table(vendor)] if vendor else _candidates(who.object_id)
    found_at: dict[int, Table] = {}
    for candidate in candidates:
        levels = {level.rows.oid: name for name, level in candidate.levels.items() if name in PIECES}
        for column, (found, value) in zip(levels, session.next(list(levels)), strict=True):
            if value is MISSING or not found.startswith(f"{column}."):
                continue
            is_known = not isinstance(value, int) or (value >= 0 and value not in candidate.sentinels)
            rank = 2 if kind and levels[column] != kind else 0 if is_known else 1
            found_at.setdefault(rank, candidate)
        if 0 in found_at:
            break
    if found_at:
        return found_at[min(found_at)]
    if vendor:
        what = f"it shows nothing of {candidates[0].title}"
        advice = "leave out vendor, or look which one fits: " + ", ".join(tables())
        raise Unavailable(what, where=session.where, why=str(who), next=advice)
    raise Unavailable(
        "this is no PDU or UPS that joulelab knows",
        where=session.where,
        why=str(who),
        next="known: " + ", ".join(t.title for t in tables().values()),
    )


def _candidates(object_id: str) -> list[Table]:
    """Return all tables, those whose prefix fits the object id best first, the standard UPS before strangers.

    Of two that fit equally, the one with an energy counter comes first (APC rPDU2 before rPDU).
    """

    def fit(candidate: Table) -> tuple[int, bool, bool]:
        fits = [len(p) for p in candidate.prefixes if f"{object_id}.".startswith(f"{p}.")]
        counts = any(column.name == "energy_j" for column in candidate.levels["unit"].columns)
        return -max(fits, default=0), bool(candidate.prefixes), not counts

    return sorted(tables().values(), key=fit)


def rows(session: Session, level: Level) -> list[Row]:
    """Return the rows of a level with their names. Raises ReadFailed, Denied."""
    suffix = f".{level.rows.suffix}" if level.rows.suffix else ""
    found = [index.removesuffix(suffix) for index, _ in session.walk(level.rows.oid) if index.endswith(suffix)]
    named = [{index: text(value) for index, value in session.walk(column)} for column in level.names]
    return [Row(index, tuple(names.get(index, "") for names in named)) for index in found]


def choose(wanted: Sequence[int | str], offered: Sequence[Row], kind: str, where: str) -> list[Row]:
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


def bind(session: Session, source: Table, level: Level, chosen: Sequence[Row]) -> dict[str, list[Bound]]:
    """Return the channels of each row that the device has, with units and digits as it tells them."""
    bound: dict[str, list[Bound]] = {row.index: [] for row in chosen}
    pairs = [(row, column) for row in chosen for column in level.columns]
    if "read_digits" not in level.read:
        for row, column in pairs:
            assert column.scale is not None
            bound[row.index].append(Bound(column, column.at(row.index), column.scale))
        return bound
    asked = [level.read.get(key, "") for key in ("read_digits", "read_units", "read_accuracy")]
    oids = [column.at(row.index, oid) for row, column in pairs for oid in asked if oid]
    answers = iter(session.get(oids))
    for row, column in pairs:
        digits, units, accuracy = (next(answers) if oid else MISSING for oid in asked)
        scale = _scale(source, column, digits, units)
        if scale is not None:
            told = isinstance(accuracy, int) and 0 < accuracy <= 10_000
            gain = accuracy / 10_000 if told and isinstance(accuracy, int) else None
            bound[row.index].append(Bound(column, column.at(row.index), scale, gain))
    return bound


def _scale(source: Table, column: Column, digits: Value, units: Value) -> float | None:
    """Return what a count is worth in SI, None where the device does not say, or says another quantity."""
    if not isinstance(digits, int) or not 0 <= digits <= _MAX_DIGITS:
        return None
    wanted = QUANTITIES[column.name][1]
    if wanted == "1":
        return float(10.0**-digits)
    unit, worth = DEVICE_UNITS.get(source.units.get(units, ""), ("", 0.0)) if isinstance(units, int) else ("", 0.0)
    return float(worth * 10.0**-digits) if unit == wanted else None
