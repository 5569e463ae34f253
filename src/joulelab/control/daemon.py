"""Keep caps for users without root: `capd`, one loop over one socket; the peer's credentials are the only witness."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import stat
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from joulelab.control.frames import encode, id_of, parse, refused
from joulelab.control.keeper import Keeper
from joulelab.control.leftover import has_leftovers
from joulelab.control.peer import Peer
from joulelab.control.state import Lock, State, user_name
from joulelab.core.errors import ConfigError, JoulelabError, Refused
from joulelab.core.setting import OutOfBounds
from joulelab.store.safe_files import make_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.control.policy import Policy
    from joulelab.control.setters import Found
    from joulelab.control.told import Released

ENDING = (signal.SIGTERM, signal.SIGINT)
HANDLED = (*ENDING, signal.SIGHUP)
MOST_CLIENTS, MOST_PER_USER = 4096, 2048
FILES = 65536  # two for each client, and what devices and locks need
MOST_UNSENT = 1 << 20  # bytes of answers that a client does not read
LEFTOVERS_S = 30.0
IDLE_S = 10.0
AS_ROOT = "capd itself has no permission: it has to run as root"
ASK = "ask the administrator to name you in capd's configuration, or run as root"

Say = Callable[[str, dict[str, Any]], None]


class Daemon:
    """Serve clients on a Unix socket until a signal ends it; every cap is put back before.

    `load` reads the policy, at the start and on SIGHUP; `say` is told what happens.
    """

    def __init__(self, path: Path, load: Callable[[], Policy], environ: Mapping[str, str], say: Say) -> None:
        self._path = path
        self._load = load
        self._environ = environ
        self._say = say
        self._state = State(environ)
        self._found: Found | None = None
        self._peers: set[Peer] = set()
        self._signals: list[int] = []
        self._leftovers_at = 0.0
        self._used_at = 0.0
        self._own = Keeper(self._state, self._setters, {"user": "capd", "pid": os.getpid()}, denied=AS_ROOT)

    def __enter__(self) -> Self:
        """Listen. Raises ConfigError where another capd does, or the place cannot be used."""
        self._policy = self._load()
        with contextlib.ExitStack() as stack:
            self._most = min(MOST_CLIENTS, (_many_files() - 256) // 2)
            self._bind(stack)
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._selector.register(self._socket, selectors.EVENT_READ, self._accept)
            self._take_signals(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; whatever happens, everything is put back."""
        self._say("ready", {"socket": str(self._path), "pid": os.getpid()})
        try:
            while not set(self._signals) & set(ENDING):
                self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        if self._signals:
            self._signals.clear()
            self._reload()
        self._finish_leftovers()
        # Signals come in here only: they interrupt no call of a driver.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        events = self._selector.select(self._patience_s())
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        for key, mask in events:
            key.data(mask)
        # One frame of each: who floods waits for himself.
        for peer in [p for p in self._peers if p.lines.waiting and not p.leaving]:
            self._serve(peer)
        self._close_setters()

    def _end(self) -> None:
        why = signal.Signals(self._signals[0]).name if self._signals else "it failed"
        for peer in list(self._peers):
            outcomes = self._release(peer, why)
            self._answer(peer, {"id": 0, "is": "ended", "why": why, "devices": [o.to_json() for o in outcomes]})
            self._drop(peer, why)
        self._used_at = float("-inf")
        self._close_setters()
        self._say("ended", {"why": why})

    def _accept(self, _: int) -> None:
        try:
            sock, _address = self._socket.accept()
        except OSError as error:  # the machine has no files left, or the client has gone again
            self._say("problem", {"what": f"accept: {error}"})
            time.sleep(0.05)
            return
        try:
            peer = Peer(sock)
        except OSError:
            sock.close()
            return
        self._peers.add(peer)
        refusal = self._refusal(peer)
        if refusal is None:
            peer.user = user_name(peer.uid)
        peer.keeper = self._keeper(peer)
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._ready(peer, mask))
        for fd in peer.process.fds:
            self._selector.register(fd, selectors.EVENT_READ, lambda _: self._drop(peer, "the client ended"))
        if refusal is not None:
            self._say("refused", {"uid": peer.uid, "pid": peer.pid, "what": str(refusal)})
            self._dismiss(peer, 0, refusal)

    def _refusal(self, peer: Peer) -> Refused | None:
        """Return why somebody is not heard, None where he is."""
        if not self._policy.knows(peer.uid, peer.gids):
            why = f"user id {peer.uid} is not named"
            return OutOfBounds("you may not set caps here", where="capd", why=why, next=ASK)
        if peer.process.ended():
            return Refused("your process cannot be seen", where="capd", why=f"pid {peer.pid}", next=ASK)
        others = sum(1 for p in self._peers if p.uid == peer.uid)
        if len(self._peers) > self._most or (peer.uid and others > MOST_PER_USER):
            return Refused(
                "too many clients", where="capd", why=f"{len(self._peers) - 1} are here", next="try again later"
            )
        return None

    def _keeper(self, peer: Peer) -> Keeper:
        who = {"user": peer.user, "pid": peer.pid, "keeper": os.getpid()}

        def permit(*wanted: Any) -> None:
            self._policy.check(peer.uid, peer.gids, *wanted)

        return Keeper(self._state, self._setters, who, permit=permit, denied=AS_ROOT)

    def _ready(self, peer: Peer, mask: int) -> None:
        if mask & selectors.EVENT_WRITE and peer in self._peers:
            self._flush(peer)
        if mask & selectors.EVENT_READ and peer in self._peers and (peer.leaving or not peer.lines.waiting):
            self._read(peer)

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer, "the client closed")
        elif not peer.leaving:
            peer.lines.feed(data)

    def _serve(self, peer: Peer) -> None:
        """Answer one frame."""
        try:
            line = peer.lines.next()
        except ConfigError as error:
            self._dismiss(peer, 0, error)
            return
        assert line is not None  # `waiting` said so
        try:
            ask = parse(line)
        except ConfigError as error:
            self._dismiss(peer, id_of(line), error)
            return
        try:
            answer = peer.keeper.answer(ask)
        except Exception as error:  # noqa: BLE001 - a driver's surprise ends no daemon
            self._say("problem", {"what": repr(error), "uid": peer.uid})
            answer = refused(ask.id, JoulelabError("capd failed", where="capd", why=type(error).__name__))
        if ask.do != "status":
            self._tell(peer, answer)
        self._answer(peer, answer)

    def _tell(self, peer: Peer, answer: Mapping[str, Any]) -> None:
        facts: dict[str, Any] = {"user": peer.user, "pid": peer.pid}
        if answer["is"] == "refused":
            self._say("refused", {**facts, "what": answer["error"]["what"], "where": answer["error"]["where"]})
        elif answer["is"] == "set":
            self._say("set", {**facts, "caps": [[c["scope"], c["asked"], c["unit"]] for c in answer["caps"]]})
        else:
            self._say("released", {**facts, "said": [d["said"] for d in answer["devices"]]})

    def _answer(self, peer: Peer, frame: dict[str, Any]) -> None:
        peer.unsent += encode(frame)
        self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        try:
            peer.unsent = peer.unsent[peer.sock.send(peer.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer, "the client closed")
            return
        if len(peer.unsent) > MOST_UNSENT:
            self._drop(peer, "the client reads no answers")
        elif peer.leaving and not peer.unsent:
            self._drop(peer, "it was sent away")
        else:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
            if self._selector.get_key(peer.sock).events != wanted:
                self._selector.modify(peer.sock, wanted, self._selector.get_key(peer.sock).data)

    def _dismiss(self, peer: Peer, number: int, error: JoulelabError) -> None:
        """Refuse, put back, and let go once the answer is read."""
        self._release(peer, "it was sent away")
        peer.leaving = True
        self._answer(peer, refused(number, error, final=isinstance(error, OutOfBounds)))

    def _release(self, peer: Peer, why: str) -> list[Released]:
        outcomes = peer.keeper.release()
        for outcome in outcomes:
            self._say("released", {"user": peer.user, "pid": peer.pid, "why": why, "said": [outcome.said]})
        if any(outcome.outcome == "failed" for outcome in outcomes):
            self._leftovers_at = time.monotonic() + LEFTOVERS_S
        return outcomes

    def _drop(self, peer: Peer, why: str) -> None:
        """Put back what a client held and forget it; twice is harmless."""
        if peer in self._peers:
            self._peers.remove(peer)
            self._release(peer, why)
            for fd in (peer.sock.fileno(), *peer.process.fds):
                self._selector.unregister(fd)
            peer.close()

    def _finish_leftovers(self) -> None:
        """Put back, now and then, what killed keepers left: also those that had no capd."""
        if time.monotonic() < self._leftovers_at:
            return
        self._leftovers_at = time.monotonic() + LEFTOVERS_S
        if has_leftovers(self._environ):
            for outcome in self._own.restore():
                self._say("restored", {"said": outcome.said, "outcome": outcome.outcome})

    def _reload(self) -> None:
        try:
            self._policy = self._load()
            self._say("reloaded", {})
        except ConfigError as error:
            self._say("problem", {"what": f"{error}; the former configuration stays"})

    def _patience_s(self) -> float:
        if any(p.lines.waiting and not p.leaving for p in self._peers):
            return 0.0
        left = self._leftovers_at - time.monotonic()
        return max(0.0, min(left, IDLE_S) if self._found is not None else left)

    def _setters(self) -> Found:
        """Open the setters when they are needed."""
        self._used_at = time.monotonic()
        if self._found is None:
            from joulelab.control.setters import find

            self._found = find(self._environ)
        return self._found

    def _close_setters(self) -> None:
        """Let go of the drivers when nobody needs them: they could not be updated otherwise."""
        held = any(peer.keeper.leases for peer in self._peers)
        if self._found is not None and not held and time.monotonic() - self._used_at >= IDLE_S:
            self._found.close()
            self._found = None

    def _bind(self, stack: contextlib.ExitStack) -> None:
        try:
            make_folder(self._path.parent)
            lock = Lock(self._path.with_name(f"{self._path.name}.lock"), {"pid": os.getpid()})
            stack.callback(lock.close)
            if self._path.exists() or self._path.is_symlink():
                if not stat.S_ISSOCK(self._path.lstat().st_mode):
                    raise ConfigError("there is another file in the socket's place", where=str(self._path))
                self._path.unlink()
            self._socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._socket.bind(str(self._path))
            stack.callback(self._path.unlink, missing_ok=True)
            self._path.chmod(0o666)  # who may is decided by who it is
            self._socket.listen(socket.SOMAXCONN)
            self._socket.setblocking(False)  # noqa: FBT003 the name of the one argument is the method's
        except BlockingIOError:
            raise ConfigError("another capd serves it", where=str(self._path), next="stop that one first") from None
        except OSError as error:
            then = "run as root, or choose another with --socket"
            raise ConfigError("cannot listen", where=str(self._path), why=str(error), next=then) from error

    def _take_signals(self, stack: contextlib.ExitStack) -> None:
        wakeup, wake = os.pipe()
        for fd in (wakeup, wake):
            os.set_blocking(fd, False)
            stack.callback(os.close, fd)
        before = {number: signal.signal(number, self._note) for number in HANDLED}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        former = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, former)
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            stack.callback(signal.signal, number, handler)
        self._selector.register(wakeup, selectors.EVENT_READ, lambda _: os.read(wakeup, 4096))

    def _note(self, number: int, _: object) -> None:
        self._signals.append(number)


def _many_files() -> int:
    """Let this process open many files, and return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
