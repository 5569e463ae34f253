"""Send IPMI commands over LAN (IPMI 2.0, RMCP+) by pyghmi.

pyghmi keeps its sockets and sessions in globals and is not made for threads: one thread of this process owns them all.
It never waits for one BMC: logins and commands end by callbacks, so that a BMC that is silent delays no other.
"""

from __future__ import annotations

import queue
import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import MissingDependency, ReadFailed
from joulelab.instruments.ipmi.login import login_error, no_answer

if TYPE_CHECKING:
    from collections.abc import Callable

PORT = 623
PRIVILEGES = {"user": 2, "operator": 3, "administrator": 4}
CIPHERS = (3, 17)
LOGIN_S = 15.0
AGAIN_S = 30.0  # how long a login that worked before may go on in the background
_PUMP_S = 0.01  # how late a command may be sent while another BMC's answer is awaited
IDLE_S = 25.0  # BMCs end a session that was idle for a minute, some earlier


@dataclass(frozen=True, slots=True, repr=False)
class Account:
    """Hold where a BMC is and how to log in; it is never printed."""

    host: str
    port: int
    user: str
    password: str
    privilege: int = 3
    cipher: int | None = None  # None: 17, and 3 where the BMC does not know it


class Owner:
    """Own pyghmi: run its event loop and all calls into it in one thread."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._waiting: set[Future[Any]] = set()
        self._session = _session_class()
        threading.Thread(target=self._main, name="ipmi", daemon=True).start()

    def call(self, action: Callable[[], Any], timeout_s: float) -> Any:
        """Return what an action returns, run in the owner's thread; raise TimeoutError."""
        future: Future[Any] = Future()
        self._calls.put((future, action))
        return future.result(timeout_s)

    def _main(self) -> None:
        while True:
            self._run_calls()
            if self._waiting:
                self._pump()
                self._waiting = {future for future in self._waiting if not future.done()}

    def _pump(self) -> None:
        """Let pyghmi take in what has arrived and send what is due."""
        try:
            self._session.wait_for_rsp(_PUMP_S)
        except Exception:  # noqa: BLE001 - pyghmi stumbles over packets that are no IPMI: those are dropped
            threading.Event().wait(_PUMP_S)

    def _run_calls(self) -> None:
        try:
            future, action = self._calls.get_nowait() if self._waiting else self._calls.get()
            while True:
                try:
                    future.set_result(action())
                except Exception as error:  # noqa: BLE001 - it belongs to the caller
                    future.set_exception(error)
                future, action = self._calls.get_nowait()
        except queue.Empty:
            return

    # In the owner's thread:

    def open(self, account: Account, address: str) -> tuple[Any, Future[dict[str, Any]]]:
        """Begin a login; the future holds what pyghmi says of it."""
        said = self._expect()

        def logged_in(answer: dict[str, Any]) -> None:
            if not said.done():
                said.set_result(dict(answer))

        session = self._session(address, account, logged_in)
        return session, said

    def send(self, session: Any, netfn: int, command: int, data: bytes) -> Future[dict[str, Any]]:
        """Send a command in a session that has none under way."""
        answered = self._expect()

        def receive(answer: dict[str, Any]) -> None:
            session.incommand = False
            if not answered.done():
                answered.set_result(answer)

        session.incommand = False
        session.raw_command(netfn=netfn, command=command, data=list(data), callback=receive)
        return answered

    def drop(self, session: Any) -> None:
        """Let go of a session, whatever its state; the BMC is told where it can be."""
        session.drop()

    def forget(self, future: Future[Any]) -> None:
        """Await this answer no longer."""
        self._waiting.discard(future)

    def _expect(self) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        self._waiting.add(future)
        return future


_owner: Owner | None = None
_lock = threading.Lock()


def shared_owner() -> Owner:
    """Return the owner of pyghmi in this process; it lasts as long as the process does, as pyghmi's sockets do."""
    global _owner
    with _lock:
        if _owner is None:
            _owner = Owner()
        return _owner


def _session_class() -> Any:
    try:
        from joulelab.instruments.ipmi.pyghmi_session import LanSession
    except ImportError as error:
        raise MissingDependency(
            "reading a BMC over LAN needs pyghmi", why=str(error), next="pip install 'joulelab[ipmi]'"
        ) from None
    return LanSession


class Lan:
    """Hold one session with one BMC; a session that is lost is opened again, in the background if that takes long."""

    def __init__(self, account: Account) -> None:
        self.where = f"BMC {account.host}"
        self._account = account
        self._owner = shared_owner()
        self._session: Any = None
        self._login: Future[dict[str, Any]] | None = None
        self._late: Future[dict[str, Any]] | None = None  # of a command whose answer did not come in time
        self._known = False  # whether this login worked before
        self._login_ns = self._used_ns = 0

    def raw(self, netfn: int, command: int, data: bytes, until_ns: int) -> tuple[int, bytes]:
        """Return completion code and data. Raises ReadFailed, Denied, Unavailable."""
        self._take_late(until_ns)
        self._ensure(until_ns)
        session = self._session
        answered: Future[dict[str, Any]] | None = None
        try:
            answered = self._owner.call(lambda: self._owner.send(session, netfn, command, data), LOGIN_S)
            answer = answered.result(_left_s(until_ns))
        except TimeoutError:
            self._late = answered  # it may just be slow: the session is kept until the next command
            raise ReadFailed(
                "the BMC did not answer in time", where=self.where, why="it is busy, restarting or cut off"
            ) from None
        except Exception as error:  # noqa: BLE001 - whatever pyghmi raises, this session is of no use any more
            self._drop(answered)
            raise ReadFailed("the session with the BMC is lost", where=self.where, why=type(error).__name__) from None
        self._used_ns = monotonic_ns()
        if "data" not in answer or not 0 <= answer.get("code", -1) <= 0xFF:
            self._drop(answered)
            raise ReadFailed("the session with the BMC is lost", where=self.where, why="it no longer answers in it")
        return int(answer["code"]), bytes(answer["data"])

    def close(self) -> None:
        """Log out."""
        self._drop(self._late)

    def _take_late(self, until_ns: int) -> None:
        """Wait for the answer that did not come in time, half of the time that is left; then the session is lost."""
        late, self._late = self._late, None
        if late is None:
            return
        try:
            answer = late.result(_left_s(until_ns) / 2)
        except TimeoutError:
            answer = {}
        if "data" not in answer:
            self._drop(late)
        self._used_ns = monotonic_ns()

    def _ensure(self, until_ns: int) -> None:
        """Have a session that is logged in, or raise ReadFailed while the login goes on."""
        session = self._session
        if session is not None and self._login is None and (not session.logged or self._is_stale()):
            self._drop(None)
        if self._session is None:
            self._begin()
        if self._login is None:
            return
        session, login = self._session, self._login
        try:
            said = login.result(_left_s(until_ns))
        except TimeoutError:
            context = session.sessioncontext
            if monotonic_ns() - self._login_ns > (AGAIN_S if self._known else LOGIN_S) * NS:
                self._drop(login)
            raise no_answer(self.where, context, again=self._known) from None
        self._login = None
        if "error" in said:
            context = session.sessioncontext
            self._drop(login)
            raise login_error(self.where, str(said["error"]), context, self._account.user, again=self._known)
        self._known = True

    def _begin(self) -> None:
        account = self._account
        try:
            address = socket.getaddrinfo(account.host, account.port, 0, socket.SOCK_DGRAM)[0][4][0]
        except OSError as error:
            raise ReadFailed(
                f"the name {account.host} does not resolve", where=self.where, why=error.strerror or str(error),
                next="check the address",
            ) from None  # fmt: skip
        opening = self._owner.call(lambda: self._owner.open(account, str(address)), LOGIN_S)
        self._session, self._login = opening
        self._login_ns = self._used_ns = monotonic_ns()

    def _is_stale(self) -> bool:
        return monotonic_ns() - self._used_ns > IDLE_S * NS

    def _drop(self, future: Future[Any] | None) -> None:
        session, self._session, self._login, self._late = self._session, None, None, None
        if session is None:
            return
        owner = self._owner

        def action() -> None:
            if future is not None:
                owner.forget(future)
            owner.drop(session)

        owner.call(action, LOGIN_S)


def _left_s(until_ns: int) -> float:
    return max((until_ns - monotonic_ns()) / NS, 0.0)
