"""Measure at rack PDUs and UPSs by SNMP: outlets or the whole unit, with phases, banks and battery as state."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import JoulelabError, MeterError, ReadFailed
from joulelab.instruments.snmp.device import find_table, read_identity
from joulelab.instruments.snmp.plan import Planner
from joulelab.instruments.snmp.settings import CONFIG, SECRETS, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter, Stream
    from joulelab.instruments.hooks import Missing
    from joulelab.instruments.snmp.client import Session, Value
    from joulelab.instruments.snmp.device import Identity
    from joulelab.instruments.snmp.plan import Plan
    from joulelab.instruments.snmp.settings import SnmpSettings

__all__ = ["CONFIG", "DEFAULT", "PRIVILEGE", "SECRETS", "SUMMARY", "TRIED", "check", "diagnose", "open_meter"]

SUMMARY = "rack PDU outlets and units, UPS: power, energy, phases (SNMP v1, v2c and v3)"
PRIVILEGE = "a community or user that may read"
TRIED = "the simulated node (net-snmp's snmpd), recorded walks; not on hardware"
DEFAULT = False
# Devices are small computers: even where the recorder asks faster, they are asked no more often than this.
GENTLE_S = 0.1
# Streams share one answer, or one failure, for this part of a period: those of one tick then show one moment, and a
# slow device is asked once for all of them.
_SHARED_PART = 0.6
_LOGIN_TRIES = 2
# Hundreds of threads that open at once only wake each other: a few at a time are quicker.
_OPENING = threading.BoundedSemaphore(16)


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    read_settings(config)


def open_meter(config: Mapping[str, Any], tap: Callable[[Session], Session] | None = None) -> Meter:
    """Open a PDU or UPS. Raises ConfigError, ReadFailed (may pass), Denied, Unavailable, MissingDependency.

    `tap` stands between the meter and the device, to write down what it answers.
    """
    settings = read_settings(config)
    with _OPENING:
        session = tap(settings.open_session()) if tap else settings.open_session()
        try:
            source = find_table(session, _identify_device(session, settings), settings.vendor, settings.kind)
            return SnmpMeter(settings, session, Planner(settings, session, source).make_plan(), source.sentinels)
        except BaseException:
            session.close()
            raise


def _identify_device(session: Session, settings: SnmpSettings) -> Identity:
    """Ask what it is; where only the login can be the cause of silence, raise that. Raises ReadFailed, Denied."""
    try:
        return read_identity(session)
    except ReadFailed:
        from joulelab.instruments.snmp.doctor import find_login_error

        cause = find_login_error(session, settings)
        if cause is None:
            raise
    for _ in range(_LOGIN_TRIES):  # a refusal is final: it must not be a few lost datagrams
        with contextlib.suppress(ReadFailed):
            return read_identity(session)
    raise cause


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return sentences about why opening failed; asks the device further."""
    from joulelab.instruments.snmp.doctor import explain_failure

    return explain_failure(config, error)


class SnmpMeter:
    """Read all values of a device in as few requests as they fit in; streams of one moment share them."""

    def __init__(self, settings: SnmpSettings, session: Session, plan: Plan, sentinels: frozenset[int]) -> None:
        self._settings, self._session, self._sentinels, self._plan = settings, session, sentinels, plan
        self._cells = {piece.stream.name: piece.cells for piece in plan.pieces}
        self._streams = tuple(piece.stream for piece in plan.pieces)
        self._values: list[Value] = []
        self._error: MeterError | None = None
        self._unread: set[str] = set()  # streams that have not had the values fetched last
        self._asked_ns = self._read_ns = 0
        self._fresh_ns = round(_SHARED_PART * settings.period_s * NS)

    def streams(self) -> Sequence[Stream]:
        """Return one stream per outlet (or unit), and one per phase, bank, input and battery."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return one row in SI units. Raises ReadFailed, Denied."""
        if stream.name in self._unread and monotonic_ns() - self._read_ns < self._fresh_ns:
            self._unread.discard(stream.name)
        else:
            self._fetch_values()
            self._unread = set(self._cells) - {stream.name}
        if self._error is not None:
            raise self._error
        try:
            return [cell.read_number(self._values, self._sentinels) for cell in self._cells[stream.name]]
        except ReadFailed as error:
            error.where = self._settings.where
            raise

    def missing(self) -> Sequence[Missing]:
        """Return what is left out, or read by another source than usual."""
        return self._plan.missing

    def close(self) -> None:
        """Close the socket."""
        self._session.close()

    def _fetch_values(self) -> None:
        wait_ns = self._asked_ns + round(GENTLE_S * NS) - monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / NS)
        self._asked_ns = monotonic_ns()
        self._error = None
        try:
            self._values = self._session.get(self._plan.oids)
        except MeterError as error:
            self._error = error
        self._read_ns = monotonic_ns()
