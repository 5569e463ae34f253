"""Send IPMI commands over LAN (IPMI 2.0, RMCP+) by pyghmi; imported only if a BMC has an address.

pyghmi keeps sockets and sessions in globals and its calls wait for as long as they like. Here one thread of the process
owns it all, and logins and commands end by callbacks: each reading has a time limit, and a silent BMC delays no other.
"""

from __future__ import annotations

import queue
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pyghmi.ipmi.private import session as pyghmi

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, MeterError, ReadFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.instruments.ipmi.settings import BmcAccount

    Answer = dict[str, Any]

SHA1 = 1
LOGIN_S = 20.0  # a login may go on in the background, over several readings
PUMP_S = 0.01  # delay of a command that is sent while another BMC's answer is awaited
IDLE_S = 25.0  # BMCs end a session that was idle for a minute, some earlier

# Words of pyghmi about a failed login -> error, its code, what, why, next.
LOGIN_ERRORS: tuple[tuple[tuple[str, ...], type[MeterError], str, str, str, str], ...] = (
    (
        ("incorrect password", "invalid integrity check", "rakp4 integrity"),
        Denied,
        "denied.password",
        "the BMC refused the password",
        "the password of user {user!r} is another one (or the BMC has a Kg key, which is not supported)",
        "correct the password; some BMCs lock a user after several wrong ones",
    ),
    (
        ("unauthorized name", "username"),
        Denied,
        "denied.user",
        "the BMC does not know the user",
        "there is no user {user!r}, or it may not use IPMI over LAN",
        "correct the user, or enable IPMI over LAN for it on the BMC",
    ),
    (
        ("role", "privelege", "privilege"),
        Denied,
        "denied.privilege",
        "the BMC does not grant the privilege",
        "user {user!r} may not log in with this privilege",
        'set privilege = "user" (enough for power and sensors), or give the user more rights on the BMC',
    ),
    (
        ("cipher", "algorithm"),
        Unavailable,
        "unavailable.cipher",
        "the BMC does not offer cipher suite 17 or 3",
        "it refused both",
        "enable suite 17 or 3 on the BMC, or read it in-band",
    ),
    (
        ("insufficient resources",),
        ReadFailed,
        "read-failed.no-session",
        "the BMC has no free session",
        "all are in use; idle ones end after a minute",
        "wait a minute, or end other sessions",
    ),
)


class LanSession(pyghmi.Session):  # type: ignore[misc]
    """Log in on a BMC and call `done` with the outcome; used in the owner's thread only."""

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


class PyghmiThread:
    """Run pyghmi's event loop and all calls into it in one thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._awaited: set[Future[Answer]] = set()
        threading.Thread(target=self._run_loop, name="ipmi", daemon=True).start()

    def run_call(self, action: Callable[[], Any]) -> Any:
        """Return the result of an action, run in the thread."""
        future: Future[Any] = Future()
        self._calls.put((future, action))
        return future.result(LOGIN_S)

    def start_exchange(self, begin: Callable[[Callable[[Answer], object]], Any]) -> tuple[Any, Future[Answer]]:
        """Run `begin(done)` in the thread; return its result, and the future of the answer that `done` gets.

        A future that is cancelled is no longer awaited.
        """
        awaited: Future[Answer] = Future()

        def done(answer: Answer) -> None:
            if not awaited.done():
                awaited.set_result(dict(answer))

        def action() -> Any:
            self._awaited.add(awaited)
            return begin(done)

        return self.run_call(action), awaited

    def _run_loop(self) -> None:
        while True:
            try:
                future, action = self._calls.get_nowait() if self._awaited else self._calls.get()
                try:
                    future.set_result(action())
                except Exception as error:  # noqa: BLE001 - it belongs to the caller
                    future.set_exception(error)
                continue
            except queue.Empty:
                pass
            try:
                pyghmi.Session.wait_for_rsp(PUMP_S)
            except Exception:  # noqa: BLE001 - pyghmi fails in many ways over packets that are no IPMI: they are dropped
                threading.Event().wait(PUMP_S)
            self._awaited = {future for future in self._awaited if not future.done()}


_thread: PyghmiThread | None = None
_lock = threading.Lock()


def share_thread() -> PyghmiThread:
    """Return the thread of this process; it lasts as long as the process, as pyghmi's sockets do."""
    global _thread
    with _lock:
        _thread = _thread or PyghmiThread()
        return _thread


class LanLink:
    """Hold one session with one BMC; a lost session is opened again, in the background if that takes long."""

    def __init__(self, account: BmcAccount) -> None:
        self.where = f"BMC {account.host}"
        self._account = account
        self._thread = share_thread()
        self._session: Any = None
        self._login: Future[Answer] | None = None  # while it goes on
        self._login_ns = self._used_ns = 0

    def carry_command(self, netfn: int, command: int, data: bytes, until_ns: int) -> tuple[int, bytes]:
        """Return completion code and data. Raises ReadFailed, Denied, Unavailable."""
        self._ensure_login(until_ns)
        session = self._session
        awaited: Future[Answer] | None = None
        try:
            _, awaited = self._thread.start_exchange(lambda done: session.send_command(netfn, command, data, done))
            answer = awaited.result(_left_s(until_ns))
        except TimeoutError:
            self._drop_session(awaited)
            what, why = "the BMC did not answer in time", "it is busy, restarting or cut off"
            raise ReadFailed(what, where=self.where, why=why, code="read-failed.no-answer") from None
        except Exception as error:  # noqa: BLE001 - after any exception of pyghmi this session is of no use
            answer = {"error": type(error).__name__}
        if "data" not in answer or not 0 <= answer.get("code", -1) <= 0xFF:
            self._drop_session(awaited)
            why = f"it no longer answers in it: {answer.get('error', 'no data')}"
            raise ReadFailed(
                "the session with the BMC is lost", where=self.where, why=why, code="read-failed.session-lost"
            )
        self._used_ns = monotonic_ns()
        return int(answer["code"]), bytes(answer["data"])

    def close(self) -> None:
        """Log out."""
        self._drop_session(self._login)

    def _ensure_login(self, until_ns: int) -> None:
        """Have a session that is logged in. Raises ReadFailed while the login goes on, Denied, Unavailable."""
        session, now_ns = self._session, monotonic_ns()
        is_stale = session is not None and (not session.logged or now_ns - self._used_ns > IDLE_S * NS)
        if self._login is None and is_stale:
            self._drop_session(None)
        if self._session is None:
            self._begin_login()
        if self._login is None:
            return
        session, login = self._session, self._login
        try:
            outcome = login.result(_left_s(until_ns))
        except TimeoutError:
            context = session.sessioncontext
            if monotonic_ns() - self._login_ns > LOGIN_S * NS:
                self._drop_session(login)
            raise explain_silence(self.where, context) from None
        self._login, self._used_ns = None, monotonic_ns()
        if "error" in outcome:
            context = session.sessioncontext
            self._drop_session(login)
            raise explain_login(self.where, str(outcome["error"]), context, self._account.user)

    def _begin_login(self) -> None:
        account = self._account
        try:
            address = str(socket.getaddrinfo(account.host, account.port, 0, socket.SOCK_DGRAM)[0][4][0])
        except OSError as error:
            what, why = f"the name {account.host} does not resolve", error.strerror or str(error)
            raise ReadFailed(
                what, where=self.where, why=why, next="check the address", code="read-failed.unknown-name"
            ) from None
        begin = self._thread.start_exchange
        self._session, self._login = begin(lambda done: LanSession(address, account, done))
        self._login_ns = monotonic_ns()

    def _drop_session(self, awaited: Future[Answer] | None) -> None:
        session, self._session, self._login = self._session, None, None
        if awaited is not None:
            awaited.cancel()
        if session is not None:
            self._thread.run_call(session.drop_session)


def explain_login(where: str, words: str, context: str | None, user: str) -> MeterError:
    """Return the error for pyghmi's words about a failed login."""
    low = words.lower()
    for needles, kind, code, what, why, advice in LOGIN_ERRORS:
        if any(needle in low for needle in needles):
            return kind(what, where=where, why=why.format(user=user), next=advice, code=code)
    if low in ("timeout", "session failed to initialize", "none"):
        return explain_silence(where, context)
    return ReadFailed(
        "the login on the BMC failed", where=where, why="it broke off the login", code="read-failed.login"
    )


def explain_silence(where: str, context: str | None) -> ReadFailed:
    """Return the error for a login without an answer (yet), by pyghmi's name of its step."""
    advice = "run joulelab doctor with the name of the meter"
    if context in ("OPENSESSION", "EXPECTINGRAKP2", "EXPECTINGRAKP4", "ESTABLISHED"):
        why = "it answered the first steps only: it is slow or restarting, or does not know the user"
        return ReadFailed(
            "the BMC did not finish the login", where=where, why=why, next=advice, code="read-failed.login"
        )
    why = "nothing came back: it is off, restarting, not reachable, or IPMI over LAN is disabled"
    return ReadFailed("the BMC does not answer", where=where, why=why, next=advice, code="read-failed.no-answer")


def _left_s(until_ns: int) -> float:
    return max((until_ns - monotonic_ns()) / NS, 0.0)
