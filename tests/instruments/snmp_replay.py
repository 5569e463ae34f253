"""Answer as a device whose walk was recorded (.snmprec: a line for each object, OID|type|value), without a socket."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, cast

from joulelab.core.errors import ReadFailed
from joulelab.instruments.snmp.client import MISSING, Name
from joulelab.instruments.snmp.device import find_table, identity
from joulelab.instruments.snmp.settings import settings
from joulelab.instruments.snmp.setup import Planner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.snmp.client import Session, Value

NUMBERS = ("2", "65", "66", "67", "70")


class Replay:
    """Answer get, next and walk from recorded objects, as `Session` does from a device."""

    where, heard = "pdu1 (recorded)", True

    def __init__(self, objects: Mapping[str, Value]) -> None:
        self._objects = {tuple(map(int, oid.split("."))): value for oid, value in objects.items()}
        self._order = sorted(self._objects)

    def get(self, oids: Sequence[str]) -> list[Value]:
        """Return the values of full names."""
        return [self._objects.get(tuple(map(int, oid.split("."))), MISSING) for oid in oids]

    def next(self, oids: Sequence[str]) -> list[tuple[str, Value]]:
        """Return what follows each name."""
        return [self._after(tuple(map(int, oid.split(".")))) for oid in oids]

    def walk(self, column: str) -> list[tuple[str, Value]]:
        """Return all rows of a column by index."""
        start = tuple(map(int, column.split(".")))
        return [(_dotted(oid[len(start) :]), self._objects[oid]) for oid in self._order if oid[: len(start)] == start]

    def _after(self, name: tuple[int, ...]) -> tuple[str, Value]:
        place = bisect_right(self._order, name)
        if place == len(self._order):
            return _dotted(name), MISSING
        return _dotted(self._order[place]), self._objects[self._order[place]]


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


def read_objects(objects: Mapping[str, Value], **config: Any) -> dict[str, dict[str, Any]]:
    """Read a recorded device once, as the meter does: streams by name, their channels, `oids` and the table's title.

    A channel that cannot be read has the text of its error.
    """
    session = cast("Session", Replay(objects))
    wanted = settings({"address": "recorded", "community": "x", "label": "pdu1", **config})
    source = find_table(session, identity(session), wanted.vendor, wanted.kind)
    plan = Planner(wanted, session, source).plan()
    shown = session.get(plan.oids)
    streams: dict[str, dict[str, Any]] = {}
    for piece in plan.pieces:
        row: dict[str, Any] = {"table": source.vendor, "kind": piece.stream.table, "oids": {}}
        row["gains"] = {spec.name: spec.accuracy.gain for spec in piece.stream.channels}
        for cell in piece.cells:
            if cell.place is not None:
                row["oids"][cell.name] = plan.oids[cell.place]
            try:
                row[cell.name] = cell.number(shown, source.sentinels)
            except ReadFailed as error:
                row[cell.name] = str(error)
        streams[piece.stream.name] = row
    return streams


def _dotted(oid: tuple[int, ...]) -> str:
    return ".".join(map(str, oid))
