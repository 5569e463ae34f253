"""List the streams that a PDU of a given maker would have, without one: planned by the meter from the maker's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from joulelab.instruments.snmp.plan import MAIN, Planner
from joulelab.instruments.snmp.settings import read_settings
from joulelab.instruments.snmp.tables import find_maker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Stream
    from joulelab.instruments.snmp.client import Session
    from joulelab.instruments.snmp.tables import Table

VENDOR = "apc_rpdu2"


def list_pdu_streams(config: Mapping[str, Any]) -> list[Stream]:
    """Return the streams of a PDU's entry: those of its outlets, or of the whole unit. Raises ConfigError, Unavailable.

    A table whose units the device itself tells shows nothing here.
    """
    settings = read_settings({"address": "twin", "community": "twin", "vendor": VENDOR, "phases": False, **config})
    source = find_maker(settings.vendor or VENDOR)
    rows = settings.outlets or settings.units or (1,)
    planner = Planner(settings, cast("Session", TableSession(source, rows)), source)
    return [piece.stream for piece in planner.make_plan().pieces if piece.stream.table == MAIN]


class TableSession:
    """Answer as a device would that has just these rows, and a number in each column."""

    where = "twin"

    def __init__(self, source: Table, rows: Sequence[int | str]) -> None:
        self._names = {oid for level in source.levels.values() for oid in level.names}
        self._rows = [(str(row) if isinstance(row, int) else str(k + 1), str(row)) for k, row in enumerate(rows)]

    def next(self, oids: Sequence[str]) -> list[tuple[str, Any]]:
        """Return the first row of each column."""
        return [(f"{oid}.1", b"twin") for oid in oids]

    def walk(self, oid: str) -> list[tuple[str, Any]]:
        """Return all rows of a column."""
        return [(index, name.encode() if oid in self._names else 1) for index, name in self._rows]

    def get(self, oids: Sequence[str]) -> list[Any]:
        """Return a number for each name."""
        return [1] * len(oids)
