"""Answer as a device whose walk was recorded (.snmprec: a line for each object, OID|type|value), without a socket."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf
from typing import TYPE_CHECKING, Any, cast

from joulelab.core.errors import ReadFailed
from joulelab.instruments.snmp.client import MISSING, Name
from joulelab.instruments.snmp.device import find_table, read_identity
from joulelab.instruments.snmp.plan import Planner
from joulelab.instruments.snmp.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from joulelab.instruments.snmp.client import Session, Value
    from joulelab.instruments.snmp.plan import Plan
    from joulelab.instruments.snmp.tables import Table

NUMBERS = ("2", "65", "66", "67", "70")


class Recording:
    """Hold the objects of a walk in their order; columns that were asked for once are kept."""

    def __init__(self, objects: Mapping[str, Value]) -> None:
        self.objects = dict(objects)
        self.keys = sorted(tuple(map(int, oid.split("."))) for oid in self.objects)
        self.oids = [".".join(map(str, key)) for key in self.keys]
        self._columns: dict[str, tuple[int, int]] = {}

    def find_range(self, column: str) -> tuple[int, int]:
        """Return where the objects below a name begin and end."""
        if column not in self._columns:
            start = tuple(map(int, column.split(".")))
            self._columns[column] = bisect_left(self.keys, start), bisect_left(self.keys, (*start, inf))
        return self._columns[column]


class Replay:
    """Answer get, next and walks from recorded objects, as `Session` does from a device.

    `changes` replace recorded values; MISSING takes an object away. They are names that the recording has.
    """

    where, has_answered = "pdu1 (recorded)", True

    def __init__(self, recording: Recording | Mapping[str, Value], changes: Mapping[str, Value] | None = None) -> None:
        self._recording = recording if isinstance(recording, Recording) else Recording(recording)
        self._changes = changes or {}

    def get(self, oids: Sequence[str]) -> list[Value]:
        """Return the values of full names."""
        return [self._read(oid) for oid in oids]

    def next(self, oids: Sequence[str]) -> list[tuple[str, Value]]:
        """Return what follows each name."""
        return [self._after(oid) for oid in oids]

    def walk(self, column: str) -> list[tuple[str, Value]]:
        """Return all rows of a column by index."""
        first, end = self._recording.find_range(column)
        cut = len(column) + 1
        found = ((oid[cut:], self._read(oid)) for oid in self._recording.oids[first:end] if oid != column)
        return [(index, value) for index, value in found if value is not MISSING]

    def walk_subtree(self, root: str) -> Iterator[tuple[str, Value]]:
        """Yield all objects below a name."""
        return ((f"{root}.{index}", value) for index, value in self.walk(root))

    def _read(self, oid: str) -> Value:
        if oid in self._changes:
            return self._changes[oid]
        return self._recording.objects.get(oid, MISSING)

    def _after(self, name: str) -> tuple[str, Value]:
        place = bisect_right(self._recording.keys, tuple(map(int, name.split("."))))
        for oid in self._recording.oids[place:]:
            if (value := self._read(oid)) is not MISSING:
                return oid, value
        return name, MISSING


def parse_walk(text: str) -> dict[str, Value]:
    """Return the objects of a .snmprec file."""
    objects: dict[str, Value] = {}
    for line in filter(None, text.splitlines()):
        oid, kind, value = line.split("|", 2)
        if kind in NUMBERS:
            objects[oid] = int(value)
        elif kind == "6":
            objects[oid] = Name(value.lstrip("."))
        elif kind == "5":
            objects[oid] = None
        elif kind.endswith("x"):
            objects[oid] = bytes.fromhex(value)
        else:
            objects[oid] = value.encode()
    return objects


def read_objects(objects: Recording | Mapping[str, Value], **config: Any) -> dict[str, dict[str, Any]]:
    """Read a recorded device once, as the meter does: streams by name, their channels, `oids` and the table's title.

    A channel that cannot be read has the text of its error.
    """
    return read_session(Replay(objects), **config)


def read_session(replay: Replay, **config: Any) -> dict[str, dict[str, Any]]:
    """Read what a session answers once, as the meter does."""
    return read_plan(replay, *plan_session(replay, **config))


def plan_session(replay: Replay, **config: Any) -> tuple[Table, Plan]:
    """Open a device as the meter does: return its table, and what is read of it."""
    session = cast("Session", replay)
    wanted = read_settings({"address": "recorded", "community": "x", "label": "pdu1", **config})
    source = find_table(session, read_identity(session), wanted.vendor, wanted.kind)
    return source, Planner(wanted, session, source).make_plan()


def read_plan(replay: Replay, source: Table, plan: Plan) -> dict[str, dict[str, Any]]:
    """Read an open device once."""
    shown = replay.get(plan.oids)
    notes = [f"{one.scope}: {one.what} ({one.why})" for one in plan.missing]
    streams: dict[str, dict[str, Any]] = {}
    for piece in plan.pieces:
        row: dict[str, Any] = {"table": source.vendor, "kind": piece.stream.table, "oids": {}, "notes": notes}
        row["offsets"] = {spec.name: spec.accuracy.offset for spec in piece.stream.channels}
        row["gains"] = {spec.name: spec.accuracy.gain for spec in piece.stream.channels}
        for cell in piece.cells:
            if cell.place is not None:
                row["oids"][cell.name] = plan.oids[cell.place]
            try:
                row[cell.name] = cell.read_number(shown, source.sentinels)
            except ReadFailed as error:
                row[cell.name] = str(error)
        streams[piece.stream.name] = row
    return streams
