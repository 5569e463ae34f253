"""Ask SNMP agents (v1, v2c, v3): numeric names, one datagram for all values that fit, blocking in the caller's thread.

Each session has a connected socket of its own: a closed port is noticed at once, answers come from the device only.
"""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MeterError, ReadFailed
from joulelab.instruments.snmp import ber
from joulelab.instruments.snmp.ber import MISSING, Name, Value, refuse_answer
from joulelab.instruments.snmp.security import (
    NOT_IN_TIME,
    STATS,
    UNKNOWN_ENGINE,
    Community,
    CommunitySecurity,
    User,
    UserMessage,
    UserSecurity,
    explain_report,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MISSING", "Community", "Name", "Session", "User", "Value"]

PORT = 161
MAX_OIDS = 40
SENDS = 4  # datagrams get lost: a request is sent up to four times within its time
_ROOM_BYTES = 1_300  # an answer that fits one Ethernet frame
_VALUE_BYTES = 8
_BULK = 20
_WALK_ROWS = 5_000
_DATAGRAM = 65_535
_ENGINE_TRIES = 3
_TOO_BIG, _NO_SUCH_NAME, _GENERAL_ERROR, _NO_ACCESS, _AUTHORIZATION = 1, 2, 5, 6, 16
_STATUS_WORDS = {_TOO_BIG: "too big", _NO_SUCH_NAME: "no such name", _GENERAL_ERROR: "general error"}


class Session:
    """Hold a conversation with one agent; not to be shared by threads. Secrets stay inside.

    All methods but `close` raise ReadFailed and Denied.
    """

    def __init__(
        self, host: str, port: int, login: Community | User, *, timeout_s: float, where: str, max_oids: int = MAX_OIDS
    ) -> None:
        self.host, self.port, self.where = host, port, where
        self._security = UserSecurity(login) if isinstance(login, User) else CommunitySecurity(login)
        self._has_bulk = isinstance(login, User) or login.version > 0
        self._timeout_ns = round(timeout_s * NS)
        self._max_oids = max_oids
        self._socket: socket.socket | None = None
        self.has_answered = False
        self._id = random.SystemRandom().randrange(1 << 24, 1 << 30)
        self._prepared: tuple[tuple[str, ...], list[tuple[list[bytes], bytes]]] = ((), [])

    def close(self) -> None:
        """Close the socket; the session opens another when it is used again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def get(self, oids: Sequence[str]) -> list[Value]:
        """Return one value per name, MISSING for what the device has not, all within the timeout.

        The names that were asked for last stay encoded.
        """
        wanted = tuple(oids)
        if wanted != self._prepared[0]:
            parts = self._split_names([ber.encode_oid(oid) for oid in wanted])
            self._prepared = wanted, [(names, ber.encode_names(names)) for names in parts]
        deadline_ns = monotonic_ns() + self._timeout_ns
        values: list[Value] = []
        for names, encoded in self._prepared[1]:
            found = self._fetch(ber.GET, names, encoded, deadline_ns)
            if [name for name, _ in found] != names:
                raise self._locate_error(refuse_answer("it has other values than were requested"))
            values += [value for _, value in found]
        return values

    def next(self, oids: Sequence[str]) -> list[tuple[str, Value]]:
        """Return, for each name, the first one after it that the device has; MISSING at the end of all."""
        found: list[tuple[str, Value]] = []
        for names in self._split_names([ber.encode_oid(oid) for oid in oids]):
            answers = self._fetch(ber.GET_NEXT, names, ber.encode_names(names), monotonic_ns() + self._timeout_ns)
            found += [(ber.decode_oid(name), value) for name, value in answers]
        return found

    def walk(self, column: str) -> list[tuple[str, Value]]:
        """Return (index, value) of every row of a column."""
        rows: list[tuple[str, Value]] = []
        for oid, value in self.walk_subtree(column):
            rows.append((oid[len(column) + 1 :], value))
            if len(rows) > _WALK_ROWS:
                why = f"more than {_WALK_ROWS} rows below {column}"
                raise self._locate_error(ReadFailed("the table has no end", why=why, code="read-failed.endless"))
        return rows

    def walk_subtree(self, root: str) -> Iterator[tuple[str, Value]]:
        """Yield name and value of every object below a name, in order."""
        prefix = tuple(map(int, root.split(".")))
        last, oid = prefix, root
        while True:
            names = [ber.encode_oid(oid)]
            kind, repetitions = (ber.GET_BULK, _BULK) if self._has_bulk else (ber.GET_NEXT, 0)
            deadline_ns = monotonic_ns() + self._timeout_ns
            answer = self._ask(kind, ber.encode_names(names), deadline_ns, repetitions)
            if answer.status and self._has_bulk:  # some agents fail in bulk and answer one by one
                self._has_bulk = False
                continue
            if answer.status == _NO_SUCH_NAME:  # the end, in version 1
                return
            self._check_status(answer, names)
            if not answer.names:
                return
            for name, value in zip(answer.names, answer.values, strict=True):
                oid = ber.decode_oid(name)
                here = tuple(map(int, oid.split(".")))
                if value is MISSING or here[: len(prefix)] != prefix:
                    return
                if here <= last:
                    what, why = "the device's names do not increase", f"{oid} came twice"
                    raise self._locate_error(ReadFailed(what, why=why, code="read-failed.order"))
                last = here
                yield oid, value

    def discover(self, deadline_ns: int | None = None) -> bytes:
        """Ask the agent for its engine id, as v3 does without a login; return it."""
        known = self._security
        security = known if isinstance(known, UserSecurity) else UserSecurity(User(""))
        request_id = self._take_id()
        request = ber.encode_request(ber.GET, request_id, ber.encode_names(()))
        message = security.frame_request(request, request_id, discover=True)
        security.engine = b""  # its report is not authenticated
        until_ns = deadline_ns or monotonic_ns() + self._timeout_ns
        answer, state = self._exchange(message, request_id, until_ns, security)
        if answer.tag != ber.REPORT or state is None or not state.engine:
            what, why = "the agent does not state its engine id", "it sent no report to a discovery"
            raise self._locate_error(ReadFailed(what, why=why, code="read-failed.no-engine"))
        security.follow_engine(state.engine, state.boots, state.time)
        return security.engine

    def _split_names(self, names: Sequence[bytes]) -> list[list[bytes]]:
        """Return the names in lists whose answers fit one datagram."""
        parts: list[list[bytes]] = []
        room = 0
        for name in names:
            size = len(name) + 6 + _VALUE_BYTES
            if room < size or len(parts[-1]) >= self._max_oids:
                parts.append([])
                room = _ROOM_BYTES
            parts[-1].append(name)
            room -= size
        return parts

    def _fetch(self, tag: int, names: list[bytes], encoded: bytes, deadline_ns: int) -> list[tuple[bytes, Value]]:
        """Return name and value for each name; ask again for less where the device wants that."""
        answer = self._ask(tag, encoded, deadline_ns)
        if answer.status == _TOO_BIG and len(names) > 1:
            half = len(names) // 2
            self._max_oids, self._prepared = min(self._max_oids, half), ((), [])
            parts = [part for part in (names[:half], names[half:]) if part]
            return [one for part in parts for one in self._fetch(tag, part, ber.encode_names(part), deadline_ns)]
        if answer.status == _NO_SUCH_NAME and 0 < answer.index <= len(names):
            # Version 1 refuses a whole request for one name that is missing.
            at = answer.index - 1
            rest = names[:at] + names[at + 1 :]
            found = self._fetch(tag, rest, ber.encode_names(rest), deadline_ns) if rest else []
            return [*found[:at], (names[at], MISSING), *found[at:]]
        self._check_status(answer, names)
        if len(answer.names) != len(names):
            raise self._locate_error(refuse_answer("it has another number of values than was requested"))
        return list(zip(answer.names, answer.values, strict=True))

    def _ask(self, tag: int, names: bytes, deadline_ns: int, repetitions: int = 0) -> ber.Pdu:
        """Send a request and return the answer to it."""
        security = self._security
        if isinstance(security, UserSecurity) and not security.engine:
            self.discover(deadline_ns)
        stat = 0
        for _ in range(_ENGINE_TRIES):  # the device's clock or id may have changed: then it sends a report
            request_id = self._take_id()
            message = security.frame_request(ber.encode_request(tag, request_id, names, repetitions), request_id)
            answer, state = self._exchange(message, request_id, deadline_ns, security)
            if answer.tag == ber.RESPONSE:
                return answer
            assert isinstance(security, UserSecurity)
            name = ber.decode_oid(answer.names[0]) if answer.names else ""
            tail = name.removeprefix(STATS).split(".")[0]
            stat = int(tail) if name.startswith(STATS) and tail.isdecimal() else 0
            if stat == NOT_IN_TIME and state is not None and state.engine == security.engine:
                security.follow_engine(state.engine, state.boots, state.time)
            elif stat == UNKNOWN_ENGINE:
                self.discover(deadline_ns)
            else:
                break
        assert isinstance(security, UserSecurity)
        raise self._locate_error(explain_report(stat, security.user))

    def _locate_error(self, error: MeterError) -> MeterError:
        """Return an error with the place where it happened and a next step."""
        error.where = error.where or self.where
        error.next = error.next or "joulelab doctor"
        return error

    def _check_status(self, answer: ber.Pdu, names: Sequence[bytes]) -> None:
        if not answer.status:
            return
        name = ber.decode_oid(names[answer.index - 1]) if 0 < answer.index <= len(names) else "the request"
        if answer.status in (_NO_ACCESS, _AUTHORIZATION):
            why = f"the device denies access to {name}"
            raise self._locate_error(Denied("the login may not read this", why=why, code="denied.access"))
        word = _STATUS_WORDS.get(answer.status, f"error {answer.status}")
        what = "the device refused the request"
        raise self._locate_error(ReadFailed(what, why=f"{word} for {name}", code="read-failed.refused"))

    def _take_id(self) -> int:
        self._id = self._id + 1 if self._id < (1 << 31) - 2 else 1 << 24
        return self._id

    def _exchange(
        self, message: bytes, request_id: int, deadline_ns: int, security: CommunitySecurity | UserSecurity
    ) -> tuple[ber.Pdu, UserMessage | None]:
        """Send a message, again at each quarter of the time, and return the answer to it."""
        try:
            answer = self._wait_for_answer(message, request_id, deadline_ns, security)
        except (socket.gaierror, UnicodeError) as error:
            what, advice = f"the name {self.host} does not resolve", "check address, or the name service"
            failed = ReadFailed(what, why=str(error), next=advice, code="read-failed.unresolved")
        except ConnectionRefusedError:
            why = f"the host answers that nothing listens on UDP port {self.port}"
            failed = ReadFailed("the port is closed", why=why, code="read-failed.port-closed")
        except OSError as error:
            failed = ReadFailed("the host cannot be reached", why=str(error), code="read-failed.unreachable")
        except ReadFailed as error:
            failed = error
        else:
            return answer
        self.close()  # the name may mean another address by now, and late answers find no socket
        if isinstance(security, UserSecurity):
            security.engine = b""  # a device that restarted may have set back its clock: its id is asked for again
        raise self._locate_error(failed)

    def _wait_for_answer(
        self, message: bytes, request_id: int, deadline_ns: int, security: CommunitySecurity | UserSecurity
    ) -> tuple[ber.Pdu, UserMessage | None]:
        if self._socket is None:
            family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.connect(address)
        why = f"{self.host}:{self.port} was silent for {self._timeout_ns / NS:g} s"
        reason = ReadFailed("there is no answer", why=why, code="read-failed.no-answer")
        begin = monotonic_ns()
        for until in (begin + (deadline_ns - begin) * n // SENDS for n in range(1, SENDS + 1)):
            self._socket.send(message)
            while (left := until - monotonic_ns()) > 0:
                self._socket.settimeout(left / NS)
                try:
                    found = security.open_answer(self._socket.recv(_DATAGRAM), request_id)
                except TimeoutError:
                    break
                except ReadFailed as error:
                    reason = error  # whoever sent it, the answer may still come
                    continue
                if found is not None:
                    self.has_answered = True
                    return found
        raise reason
