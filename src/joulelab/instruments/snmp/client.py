"""Ask SNMP agents, v2c and v3: numeric names, one datagram for all values that fit, blocking in the caller's thread.

Each session has a connected socket of its own, so a closed port is told at once and answers come from the device only.
"""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MeterError, ReadFailed
from joulelab.instruments.snmp import ber
from joulelab.instruments.snmp.ber import MISSING, Name, Value
from joulelab.instruments.snmp.usm import NOT_IN_TIME, STATS, UNKNOWN_ENGINE, Community, Security, User, Usm, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MISSING", "Community", "Name", "Poll", "Session", "User", "Value"]

PORT = 161
MAX_OIDS = 40
_ROOM_BYTES = 1_300  # an answer that fits one Ethernet frame
_VALUE_BYTES = 8
_BULK = 20
_WALK_ROWS = 5_000
_DATAGRAM = 65_535
SENDS = 4  # datagrams get lost: so often is a request sent within its time
_TOO_BIG, _GEN_ERR, _NO_ACCESS, _AUTHORIZATION = 1, 5, 6, 16


class Session:
    """Hold a conversation with one agent; not to be shared by threads. Secrets stay inside."""

    def __init__(
        self, host: str, port: int, login: Community | User, *, timeout_s: float, where: str, max_oids: int = MAX_OIDS
    ) -> None:
        self.host, self.port, self.where = host, port, where
        self._login = login
        self._usm = Usm(login) if isinstance(login, User) else None
        self._timeout_ns = round(timeout_s * NS)
        self._max_oids = max_oids
        self._socket: socket.socket | None = None
        self.heard = False  # whether any answer ever came
        self._id = random.SystemRandom().randrange(1 << 24, 1 << 30)

    @property
    def engine(self) -> bytes:
        """Return the device's engine id, empty for v2c or before the first answer."""
        return self._usm.engine if self._usm else b""

    def close(self) -> None:
        """Let go of the socket; the session opens another when it is used again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def get(self, oids: Sequence[str]) -> list[Value]:
        """Return one value per name, MISSING for what the device has not. Raises ReadFailed, Denied."""
        return Poll(self, oids).read()

    def next(self, oids: Sequence[str]) -> list[tuple[str, Value]]:
        """Return, for each name, the first one after it that the device has. Raises ReadFailed, Denied."""
        found: list[tuple[str, Value]] = []
        for names in self.parted([ber.oid_bytes(oid) for oid in oids]):
            answer = self._checked(self.ask(ber.GET_NEXT, ber.asked(names), self.deadline()), names)
            if len(answer.names) != len(names):
                raise self.error(ber.malformed("it has another number of values than were asked for"))
            found += [(ber.dotted(name), value) for name, value in zip(answer.names, answer.values, strict=True)]
        return found

    def walk(self, column: str) -> list[tuple[str, Value]]:
        """Return (index, value) of every row of a column. Raises ReadFailed, Denied."""
        prefix = tuple(map(int, column.split(".")))
        rows: list[tuple[str, Value]] = []
        last, at = prefix, column
        while len(rows) < _WALK_ROWS:
            names = ber.asked([ber.oid_bytes(at)])
            answer = self._checked(self.ask(ber.GET_BULK, names, self.deadline(), _BULK), ())
            if not answer.names:
                return rows
            for name, value in zip(answer.names, answer.values, strict=True):
                at = ber.dotted(name)
                here = tuple(map(int, at.split(".")))
                if value is MISSING or here[: len(prefix)] != prefix:
                    return rows
                if here <= last:
                    raise self.error(ReadFailed("the device's names do not increase", why=f"{at} came twice"))
                last = here
                rows.append((".".join(map(str, here[len(prefix) :])), value))
        raise self.error(ReadFailed("the table has no end", why=f"more than {_WALK_ROWS} rows below {column}"))

    def discover(self, deadline_ns: int | None = None) -> bytes:
        """Ask the agent who it is, as SNMPv3 does without any login; return its id. Raises ReadFailed."""
        usm = self._usm or Usm(User(""))
        request_id = self._next_id()
        message = usm.frame(ber.request(ber.GET, request_id, ber.asked(())), request_id, discover=True)
        usm.engine = b""  # its report is not authenticated
        answer, security = self._exchange(message, request_id, deadline_ns or self.deadline(), usm)
        if answer.tag != ber.REPORT or security is None or not security.engine:
            raise self.error(ReadFailed("the agent does not say who it is", why="no report to a discovery"))
        usm.learn(security.engine, security.boots, security.time)
        return usm.engine

    # For polls.

    def deadline(self) -> int:
        """Return until when an answer that is asked for now may come (monotonic ns)."""
        return monotonic_ns() + self._timeout_ns

    def parted(self, names: Sequence[bytes]) -> list[list[bytes]]:
        """Return the names in lists whose answers fit one datagram."""
        parts: list[list[bytes]] = [[]]
        room = _ROOM_BYTES
        for name in names:
            size = len(name) + 6 + _VALUE_BYTES
            if parts[-1] and (room < size or len(parts[-1]) >= self._max_oids):
                parts.append([])
                room = _ROOM_BYTES
            parts[-1].append(name)
            room -= size
        return [part for part in parts if part]

    def halve(self) -> bool:
        """Ask for less at once from now on; return False where that cannot be."""
        self._max_oids //= 2
        return self._max_oids > 0

    def ask(self, tag: int, names: bytes, deadline_ns: int, repetitions: int = 0) -> ber.Pdu:
        """Send a request and return the answer to it. Raises ReadFailed, Denied."""
        if self._usm is not None and not self._usm.engine:
            self.discover(deadline_ns)
        stat = 0
        for _ in range(3):  # the device's clock or id may have changed: it says so, and is asked again
            request_id = self._next_id()
            body = ber.request(tag, request_id, names, repetitions)
            if self._usm is None:
                assert isinstance(self._login, Community)
                secret = ber.wrap(ber.OCTETS, self._login.name.encode())
                message = ber.wrap(ber.SEQUENCE, b"\x02\x01\x01" + secret + body)
            else:
                message = self._usm.frame(body, request_id)
            answer, security = self._exchange(message, request_id, deadline_ns, self._usm)
            if answer.tag == ber.RESPONSE:
                return answer
            assert self._usm is not None
            stat = _stat(answer)
            if stat == NOT_IN_TIME and security is not None and security.engine == self._usm.engine:
                self._usm.learn(security.engine, security.boots, security.time)
            elif stat == UNKNOWN_ENGINE:
                self.discover(deadline_ns)
            else:
                break
        assert isinstance(self._login, User)
        raise self.error(refusal(stat, self._login))

    def error(self, error: MeterError) -> MeterError:
        """Return an error that says where it happened."""
        error.where = error.where or self.where
        error.next = error.next or "run joulelab doctor, which tells the cause apart"
        return error

    def said(self, answer: ber.Pdu, names: Sequence[bytes]) -> MeterError:
        """Return what an error status means."""
        name = ber.dotted(names[answer.index - 1]) if 0 < answer.index <= len(names) else "the request"
        if answer.status in (_NO_ACCESS, _AUTHORIZATION):
            return self.error(Denied("the login may not read this", why=f"the device denies access to {name}"))
        words = {_TOO_BIG: "too big", 2: "no such name", _GEN_ERR: "general error"}
        word = words.get(answer.status, f"error {answer.status}")
        return self.error(ReadFailed("the device refused the request", why=f"{word} for {name}"))

    def _checked(self, answer: ber.Pdu, names: Sequence[bytes]) -> ber.Pdu:
        if answer.status:
            raise self.said(answer, names)
        return answer

    def _next_id(self) -> int:
        self._id = self._id + 1 if self._id < (1 << 31) - 2 else 1 << 24
        return self._id

    def _opened(self) -> socket.socket:
        if self._socket is None:
            try:
                found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)
            except (OSError, UnicodeError) as error:
                raise self.error(ReadFailed(f"the name {self.host} does not resolve", why=str(error))) from None
            family, kind, protocol, _, address = found[0]
            opened = socket.socket(family, kind, protocol)
            try:
                opened.connect(address)
            except OSError as error:
                opened.close()
                raise self.error(ReadFailed("the host cannot be reached", why=str(error))) from None
            self._socket = opened
        return self._socket

    def _exchange(
        self, message: bytes, request_id: int, deadline_ns: int, usm: Usm | None
    ) -> tuple[ber.Pdu, Security | None]:
        """Send a message, again at each quarter of the time, and return the answer to it."""
        try:
            found = self._wait(message, request_id, deadline_ns, usm)
        except ConnectionRefusedError:
            self.close()
            why = f"the host says that nothing listens on UDP port {self.port}"
            raise self.error(ReadFailed("the port is closed", why=why)) from None
        except OSError as error:
            self.close()
            raise self.error(ReadFailed("the host cannot be reached", why=str(error))) from None
        return found

    def _wait(
        self, message: bytes, request_id: int, deadline_ns: int, usm: Usm | None
    ) -> tuple[ber.Pdu, Security | None]:
        opened = self._opened()
        reason: MeterError | None = None
        begin = monotonic_ns()
        for until in (begin + (deadline_ns - begin) * n // SENDS for n in range(1, SENDS + 1)):
            opened.send(message)
            while (left := until - monotonic_ns()) > 0:
                opened.settimeout(left / NS)
                try:
                    data = opened.recv(_DATAGRAM)
                except TimeoutError:
                    break
                try:
                    found = usm.open(data, request_id) if usm else _plain(data, request_id)
                except ReadFailed as error:
                    reason = error  # whoever sent it, the answer may still come
                    continue
                if found is not None:
                    self.heard = True
                    return found
        self.close()  # the name may mean another address by now, and late answers go to nobody
        if usm is not None:
            usm.engine = b""  # a device that restarted may have set back its clock: it is asked again who it is
        if reason is not None:
            raise self.error(reason)
        waited = self._timeout_ns / NS
        raise self.error(ReadFailed("there is no answer", why=f"{self.host}:{self.port} was silent for {waited:g} s"))


class Poll:
    """Ask for the same values again and again; the request is encoded once."""

    def __init__(self, session: Session, oids: Sequence[str]) -> None:
        self._session = session
        self._names = [ber.oid_bytes(oid) for oid in oids]
        self._parts = self._prepared()

    def _prepared(self) -> list[tuple[list[bytes], bytes]]:
        return [(names, ber.asked(names)) for names in self._session.parted(self._names)]

    def read(self) -> list[Value]:
        """Return one value per name, all within the session's timeout. Raises ReadFailed, Denied."""
        session = self._session
        deadline_ns = session.deadline()
        values: list[Value] = []
        at = 0
        while at < len(self._parts):
            names, asked = self._parts[at]
            answer = session.ask(ber.GET, asked, deadline_ns)
            if answer.status == _TOO_BIG and len(names) > 1 and session.halve():
                self._parts = self._prepared()
                values, at = [], 0
                continue
            if answer.status:
                raise session.said(answer, names)
            if answer.names != names:
                raise session.error(ber.malformed("it has other values than were asked for"))
            values += answer.values
            at += 1
        return values


def _plain(data: bytes, request_id: int) -> tuple[ber.Pdu, None] | None:
    """Return the answer in a message of v2c, None if it belongs to another request. Raises ReadFailed."""
    at, end = ber.expect(data, 0, len(data), ber.SEQUENCE)
    if end != len(data):
        raise ber.malformed("something follows it")
    version, at = ber.small(data, at, end)
    if version != 1:
        raise ber.malformed("it is not of version 2c")
    _, at = ber.octets(data, at, end)
    answer = ber.pdu(data, at, end)
    if answer.tag != ber.RESPONSE:
        raise ber.malformed("it is a report")
    return (answer, None) if answer.request_id == request_id else None


def _stat(answer: ber.Pdu) -> int:
    """Return the number of the counter that a report shows."""
    name = ber.dotted(answer.names[0]) if answer.names else ""
    tail = name.removeprefix(STATS).split(".")[0]
    return int(tail) if name.startswith(STATS) and tail.isdecimal() else 0
