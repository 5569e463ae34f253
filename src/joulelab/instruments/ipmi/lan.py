"""Send IPMI commands over LAN (IPMI 2.0, RMCP+) by pyghmi; imported only if a BMC has an address.

pyghmi keeps sockets and sessions in globals, its calls are not safe in threads, and they wait for as long as they like.
Here a lock guards it, logins and commands end by callbacks, and a thread that waits for an answer lets pyghmi work on
the packets of all BMCs: each reading has a time limit, and a silent BMC delays no other.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

from pyghmi.ipmi.private import session as pyghmi

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MeterError, ReadFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.instruments.ipmi.settings import BmcAccount

    Answer = dict[str, Any]

SHA1 = 1
LOGIN_S = 20.0  # a login may go on over several readings
WORK_S = 0.01  # pyghmi works for this time at once
PAUSE_S = 0.0002  # then the lock is free for this time, so that another thread can send
IDLE_S = 25.0  # BMCs end a session that was idle for a minute, some earlier
STARTED = ("OPENSESSION", "EXPECTINGRAKP2", "EXPECTINGRAKP4", "ESTABLISHED")  # pyghmi's names for steps of a login

# Words of pyghmi about a failed login -> code, what, why, next.
LOGIN_ERRORS = {
    ("incorrect password", "invalid integrity check", "rakp4 integrity"): (
        "denied.password",
        "the BMC refused the password",
        "the password of user {user!r} is another one (or the BMC has a Kg key, which is not supported)",
        "correct the password; some BMCs lock a user after several wrong ones",
    ),
    ("unauthorized name", "username"): (
        "denied.user",
        "the BMC does not know the user",
        "there is no user {user!r}, or it may not use IPMI over LAN",
        "correct the user, or enable IPMI over LAN for it on the BMC",
    ),
    ("role", "privelege", "privilege"): (
        "denied.privilege",
        "the BMC does not grant the privilege",
        "user {user!r} may not log in with this privilege",
        'set privilege = "user" (enough for power and sensors), or give the user more rights on the BMC',
    ),
}
_lock = threading.Lock()


class PendingAnswer:
    """Wait for the answer that a callback gets; `value` is None until then."""

    def __init__(self) -> None:
        self.value: Answer | None = None
        self._event = threading.Event()

    def take_answer(self, answer: Answer) -> None:
        """Be the callback."""
        self.value = dict(answer)
        self._event.set()

    def wait_until(self, until_ns: int) -> Answer | None:
        """Return the answer, None without one by `until_ns` (monotonic)."""
        while self.value is None and monotonic_ns() < until_ns:
            if not _lock.acquire(blocking=False):  # another thread lets pyghmi work
                self._event.wait(WORK_S)
                continue
            try:
                with contextlib.suppress(Exception):  # packets that are no IPMI, over which pyghmi fails, are dropped
                    pyghmi.Session.wait_for_rsp(WORK_S)
            finally:
                _lock.release()
            self._event.wait(PAUSE_S)
        return self.value


class LanSession(pyghmi.Session):  # type: ignore[misc]
    """Log in on a BMC and call `done` with the outcome; used under the lock only."""

    def __new__(cls, *_: object) -> LanSession:
        """Make a session of its own: pyghmi would share one between callers, and mix up their answers."""
        made: LanSession = object.__new__(cls)
        return made

    def __init__(self, address: str, account: BmcAccount, done: Callable[[Answer], object]) -> None:
        self._first_hash = SHA1 if account.cipher == 3 else None
        # A socket that has no other session with this BMC: answers are assigned by socket and sender.
        self.forbidsock = [
            session.socket
            for handlers in pyghmi.Session.bmc_handlers.values()
            for session in handlers.values()
            if isinstance(session, LanSession) and (session.bmc, session.port) == (address, account.port)
        ]
        # Names as bytes: with texts pyghmi 1.6 forgets to remove the session from its list of beginners.
        super().__init__(
            address, account.user.encode(), account.password.encode(), port=account.port, onlogon=done,
            privlevel=account.privilege, keepalive=False,
        )  # fmt: skip

    def _initsession(self) -> None:
        super()._initsession()
        if self._first_hash is not None:
            self.attemptedhash = self._first_hash

    def _req_priv_level(self) -> None:
        """Request the privilege. pyghmi would wait for the answer here, up to a second after it has come."""
        self.logged, self.logoutexpiry, self.maxtimeout, self.logontries = 1, None, 4, 1

        def finish(answer: Answer) -> None:
            self.logging = False
            self.logontries = 0  # a lost session is opened anew by its owner, not by pyghmi, which would wait
            if answer.get("code", 0xFF):
                self.logged = 0
                self.onlogon({"error": "timeout" if "error" in answer else "privilege not granted"})
            else:
                self.onlogon({"success": True})

        self.logging = False  # raw_command waits for a login that goes on
        self.send_command(0x06, 0x3B, bytes([self.privlevel]), finish)
        self.logging = True

    def send_command(self, netfn: int, command: int, data: bytes, done: Callable[[Answer], object]) -> None:
        """Send a command; `done` gets the answer."""

        def finish(answer: Answer) -> None:
            self.incommand = False
            done(answer)

        self.incommand = False
        self.raw_command(netfn=netfn, command=command, data=list(data), callback=finish)

    def drop_session(self) -> None:
        """Leave the BMC and all of pyghmi's lists, whatever the state."""
        self.incommand = self.logging = False
        if not self.broken:
            self._mark_broken("dropped")


class LanLink:
    """Hold one session with one BMC; a lost session is opened again, over several readings if that takes long."""

    def __init__(self, account: BmcAccount) -> None:
        self.where = f"BMC {account.host}"
        self._account = account
        self._session: Any = None
        self._login: PendingAnswer | None = None  # while it goes on
        self._login_ns = self._used_ns = 0

    def carry_command(self, netfn: int, command: int, data: bytes, until_ns: int) -> tuple[int, bytes]:
        """Return completion code and data. Raises ReadFailed, Denied."""
        self._ensure_login(until_ns)
        awaited = PendingAnswer()
        try:
            with _lock:
                self._session.send_command(netfn, command, data, awaited.take_answer)
        except Exception as error:  # noqa: BLE001 - after any exception of pyghmi this session is of no use
            awaited.take_answer({"error": type(error).__name__})
        answer = awaited.wait_until(until_ns)
        if answer is None:
            self.close()
            what, why = "the BMC did not answer in time", "it is busy, restarting or cut off"
            raise ReadFailed(what, where=self.where, why=why, code="read-failed.no-answer")
        if "data" not in answer or not 0 <= answer.get("code", -1) <= 0xFF:
            self.close()
            what, why = "the session with the BMC is lost", f"no answer in it: {answer.get('error', 'no data')}"
            raise ReadFailed(what, where=self.where, why=why, code="read-failed.session-lost")
        self._used_ns = monotonic_ns()
        return int(answer["code"]), bytes(answer["data"])

    def close(self) -> None:
        """Log out."""
        session, self._session, self._login = self._session, None, None
        if session is not None:
            with _lock:
                session.drop_session()

    def _ensure_login(self, until_ns: int) -> None:
        """Have a session that is logged in. Raises ReadFailed while the login goes on, Denied."""
        session, now_ns = self._session, monotonic_ns()
        if session is not None and self._login is None:
            if session.logged and now_ns - self._used_ns <= IDLE_S * NS:
                return
            self.close()
        if self._session is None:
            self._begin_login()
        assert self._login is not None
        outcome = self._login.wait_until(until_ns)
        context = self._session.sessioncontext
        if outcome is None:
            if monotonic_ns() - self._login_ns > LOGIN_S * NS:
                self.close()
            raise explain_login(self.where, "timeout", context, self._account.user)
        self._login, self._used_ns = None, monotonic_ns()
        if "error" in outcome:
            self.close()
            raise explain_login(self.where, str(outcome["error"]), context, self._account.user)

    def _begin_login(self) -> None:
        account = self._account
        try:
            address = str(socket.getaddrinfo(account.host, account.port, 0, socket.SOCK_DGRAM)[0][4][0])
        except OSError as error:
            what, why = f"the name {account.host} does not resolve", error.strerror or str(error)
            code = "read-failed.unknown-name"
            raise ReadFailed(what, where=self.where, why=why, next="check the address", code=code) from None
        self._login, self._login_ns = PendingAnswer(), monotonic_ns()
        try:
            with _lock:
                self._session = LanSession(address, account, self._login.take_answer)
        except Exception as error:  # noqa: BLE001 - of pyghmi or its socket
            what, why = "the login on the BMC cannot begin", f"{type(error).__name__}: {error}"
            raise ReadFailed(what, where=self.where, why=why, code="read-failed.login") from None


def explain_login(where: str, words: str, context: str | None, user: str) -> MeterError:
    """Return the error for pyghmi's words about a failed login, and its name of the step."""
    low = words.lower()
    for needles, (code, what, why, advice) in LOGIN_ERRORS.items():
        if any(needle in low for needle in needles):
            return Denied(what, where=where, why=why.format(user=user), next=advice, code=code)
    what, code, why = "the login on the BMC failed", "read-failed.login", f"it broke off the login: {words}"
    if low in ("timeout", "session failed to initialize", "none"):
        why = "it answered the first steps only: it is slow or restarting, or does not know the user"
        if context not in STARTED:
            what, code = "the BMC does not answer", "read-failed.no-answer"
            why = "nothing came back: it is off, restarting, not reachable, or IPMI over LAN is disabled"
    advice = "joulelab doctor ipmi"
    return ReadFailed(what, where=where, why=why, next=advice, code=code)
