"""Measure at rack PDUs and UPSs by SNMP: outlets or the whole unit, with phases, banks and battery as state."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, JoulelabError, MeterError, ReadFailed
from joulelab.instruments.hooks import Missing
from joulelab.instruments.snmp.client import Poll, User
from joulelab.instruments.snmp.device import find_table, read_identity, speaks_without_privacy
from joulelab.instruments.snmp.settings import CONFIG, SECRETS, read_settings
from joulelab.instruments.snmp.setup import Planner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Meter, Stream
    from joulelab.instruments.snmp.client import Session, Value
    from joulelab.instruments.snmp.device import Identity
    from joulelab.instruments.snmp.settings import SnmpSettings
    from joulelab.instruments.snmp.setup import Piece, Plan
    from joulelab.instruments.snmp.traps import Listener, Trap

__all__ = ["CONFIG", "DEFAULT", "PRIVILEGE", "SECRETS", "SUMMARY", "TRIED", "check", "diagnose", "open_meter"]

SUMMARY = "rack PDU outlets and units, UPS: power, energy, phases (SNMP v2c and v3)"
PRIVILEGE = "a community or user that may read; port 162 for traps needs root"
TRIED = "the simulated node (net-snmp's snmpd), recorded walks; not on hardware"
DEFAULT = False
# Devices are small computers: even where the recorder asks faster, they are asked no more often than this.
GENTLE_S = 0.1
# Streams share one answer, or one failure, for so much of a period: those of one tick then show one moment, and a slow
# device is asked once for all of them.
_SHARED_PART = 0.6
_TRAPS_KEPT = 1_000
_ASKED_AGAIN = 2
# Hundreds of threads that open at once only wake each other: so many at a time are quicker.
_OPENING = threading.BoundedSemaphore(16)


def check(config: Mapping[str, Any]) -> None:
    """Check an entry before a run. Raises ConfigError."""
    read_settings(config)


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open a PDU or UPS. Raises ConfigError, ReadFailed (may pass), Denied, Unavailable, MissingDependency."""
    wanted = read_settings(config)
    with _OPENING:
        return _opened(wanted)


def _opened(wanted: SnmpSettings) -> Meter:
    session = wanted.session()
    try:
        who = _identity(session, wanted)
        source = find_table(session, who, wanted.vendor, wanted.kind)
        plan = Planner(wanted, session, source).plan()
        return SnmpMeter(wanted, session, plan, source.sentinels)
    except BaseException:
        session.close()
        raise


def _identity(session: Session, wanted: SnmpSettings) -> Identity:
    """Ask who it is; where only the login can be the cause of silence, say so. Raises ReadFailed, Denied."""
    try:
        return read_identity(session)
    except ReadFailed:
        cause = _refusal(session, wanted)
        if cause is None:
            raise
    for _ in range(_ASKED_AGAIN):  # a refusal is final: it must not be a few lost datagrams
        with contextlib.suppress(ReadFailed):
            return read_identity(session)
    raise cause


def _refusal(session: Session, wanted: SnmpSettings) -> Denied | None:
    """Return what the login lacks where the agent is alive but silent to it; None where it is just silent."""
    if isinstance(wanted.login, User):
        if not (session.heard and speaks_without_privacy(wanted)):
            return None
        what = "the privacy password or protocol is wrong"
        why = "the agent drops the encrypted request and answers the same user without privacy"
        advice = "compare privacy and privacy_password with the device's SNMPv3 settings"
    else:
        if session.heard or not is_alive(session):
            return None
        what = "the device is alive but does not accept the community"
        why = "it answers a discovery of SNMPv3, which needs no login, and is silent to this community"
        advice = "compare the community, and the hosts that may read, with the device's SNMP settings"
    return Denied(what, where=wanted.where, why=why, next=advice)


def is_alive(session: Session) -> bool:
    """Return whether an SNMP agent answers at all, login or not."""
    try:
        return bool(session.discover())
    except MeterError:
        return False


def diagnose(config: Mapping[str, Any], error: JoulelabError) -> list[str]:
    """Return sentences that say why opening failed; asks the device further."""
    from joulelab.instruments.snmp.doctor import explain

    return explain(config, error)


class SnmpMeter:
    """Read all values of a device in as few requests as they fit in; streams of one moment share them."""

    def __init__(self, wanted: SnmpSettings, session: Session, plan: Plan, sentinels: frozenset[int]) -> None:
        self._wanted, self._session, self._sentinels = wanted, session, sentinels
        self._pieces: dict[str, Piece] = {piece.stream.name: piece for piece in plan.pieces}
        self._streams = tuple(piece.stream for piece in plan.pieces)
        self._poll = Poll(session, plan.oids)
        self._values: list[Value] = []
        self._error: MeterError | None = None
        self._left: set[str] = set()  # streams that have not had the values read last
        self._asked_ns = self._read_ns = 0
        self._fresh_ns = round(_SHARED_PART * wanted.period_s * NS)
        self._traps: deque[dict[str, Any]] = deque(maxlen=_TRAPS_KEPT)
        self._missing: list[Missing] = list(plan.missing)
        self._listener = self._listen()

    def streams(self) -> Sequence[Stream]:
        """Return one stream per outlet (or unit), and one per phase, bank, input and battery."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        """Return one row in SI units. Raises ReadFailed, Denied."""
        if stream.name in self._left and monotonic_ns() - self._read_ns < self._fresh_ns:
            self._left.discard(stream.name)
        else:
            self._fetch()
            self._left = set(self._pieces) - {stream.name}
        if self._error is not None:
            raise self._error
        values, sentinels = self._values, self._sentinels
        try:
            return [cell.number(values, sentinels) for cell in self._pieces[stream.name].cells]
        except ReadFailed as error:
            error.where = self._wanted.where
            raise

    def events(self) -> list[dict[str, Any]]:
        """Return the traps that came since the last call."""
        came: list[dict[str, Any]] = []
        while self._traps:
            came.append(self._traps.popleft())
        return came

    def missing(self) -> Sequence[Missing]:
        """Return what is left out, read by another source than usual, or cannot be received."""
        return self._missing

    def close(self) -> None:
        """Let go of the device and of the port for traps."""
        self._session.close()
        if self._listener is not None:
            from joulelab.instruments.snmp.traps import receiver

            receiver().leave(self._listener)
            self._listener = None

    def _fetch(self) -> None:
        wait_ns = self._asked_ns + round(GENTLE_S * NS) - monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / NS)
        self._asked_ns = monotonic_ns()
        self._error = None
        try:
            self._values = self._poll.read()
        except MeterError as error:
            self._error = error
        self._read_ns = monotonic_ns()

    def _listen(self) -> Listener | None:
        wanted = self._wanted
        if not wanted.trap_port:
            return None
        from joulelab.instruments.snmp.traps import receiver

        try:
            return receiver().listen(wanted.trap_port, wanted.host, wanted.login, self._session.engine, self._heard)
        except (MeterError, OSError) as error:
            told = error if isinstance(error, JoulelabError) else ReadFailed("traps cannot be received", why=str(error))
            self._missing.append(Missing.from_error("traps", told))
            return None

    def _heard(self, trap: Trap) -> None:
        said = {"oid": trap.oid, "values": trap.values}
        self._traps.append({"t": trap.t, "event": "trap", "meter": self._wanted.label, "from": trap.source, **said})
