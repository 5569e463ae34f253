"""Set caps for users without root: `capd`, one loop over one socket; only the kernel's credentials identify clients."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import socket
import stat
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from joulelab.control.keeper import Keeper
from joulelab.control.leftovers import has_leftovers
from joulelab.control.link import ProcessWatch
from joulelab.control.protocol import LineBuffer, encode_message, make_refusal, parse_request, read_request_id
from joulelab.control.state import DeviceLock, StateFolder, get_user_name
from joulelab.core.errors import ConfigError, JoulelabError, Refused
from joulelab.core.setting import OutOfBounds
from joulelab.store.safe_files import make_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from joulelab.control.policy import CapPolicy
    from joulelab.control.protocol import CapOutcome
    from joulelab.control.setters import SetterInventory

END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SIGNALS = (*END_SIGNALS, signal.SIGHUP)
MAX_CLIENTS, MAX_CLIENTS_PER_USER = 4096, 64
MAX_CONNECTS_PER_S = 64  # of one user: to admit a client takes 0.3 ms, to refuse one a tenth of that
ACCEPTS_PER_TURN = 256
BACKLOG = 64  # short: it is drained in milliseconds, and a client that finds it full waits in the kernel for its turn
MAX_FILES = 65536  # two for each client, and some for devices and locks
LEFTOVERS_PERIOD_S = 30.0
IDLE_S = 10.0
RUN_AS_ROOT = "capd itself has no permission: it has to run as root"
ASK_ADMINISTRATOR = "ask the administrator to name you in capd's configuration, or run as root"
# Not in Python's socket module yet.
SO_PEERPIDFD, SO_PEERGROUPS = 77, 59
MAX_GROUPS_BYTES = 1024  # the most that Python reads: 256 groups
CREDENTIALS = struct.Struct("iII")

ReportEvent = Callable[[str, dict[str, Any]], None]


class PeerIdentity(NamedTuple):
    """Hold the credentials that the kernel recorded when a client connected."""

    pid: int
    uid: int
    gids: frozenset[int]


def read_peer(sock: socket.socket) -> PeerIdentity:
    """Read the credentials of a client from the kernel: a directory service might hang. Raises OSError."""
    pid, uid, gid = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MAX_GROUPS_BYTES)
        gids = [number for (number,) in struct.iter_unpack("I", packed)]
    except OSError:  # before Linux 4.13, or more than fit
        gids = os.getgrouplist(get_user_name(uid), gid)
    return PeerIdentity(pid, uid, frozenset((gid, *gids)))


class ClientConnection:
    """Hold one connection to capd."""

    keeper: Keeper

    def __init__(self, sock: socket.socket, peer: PeerIdentity, user: str) -> None:
        self.sock = sock
        self.pid, self.uid, self.gids = peer
        self.user = user
        self.buffer = LineBuffer()
        self.unsent = b""  # of one answer: no request is read before it is sent
        self.is_queued = False
        self.is_dismissed = False  # its requests are ignored, and it is dropped once it has read its answer
        self.process = ProcessWatch(self.pid, open_pidfd=self._open_pidfd)  # a child may keep its socket open

    def _open_pidfd(self, pid: int) -> int:
        try:
            packed = self.sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
        except OSError:  # before Linux 6.5
            return os.pidfd_open(pid)
        return int.from_bytes(packed, "little")

    @property
    def has_request(self) -> bool:
        """Return whether a request waits to be answered, and the client has room for the answer."""
        return self.buffer.has_line and not self.unsent and not self.is_dismissed

    def close(self) -> None:
        """Close all files."""
        self.sock.close()
        self.process.close()


class CapDaemon:
    """Serve clients on a Unix socket until a signal ends the daemon; every cap is restored before the end.

    `load_policy` is called at the start and on SIGHUP; `report_event` receives what happens.
    """

    def __init__(
        self,
        path: Path,
        load_policy: Callable[[], CapPolicy],
        environ: Mapping[str, str],
        report_event: ReportEvent,
    ) -> None:
        self._path = path
        self._load_policy = load_policy
        self._environ = environ
        self._report_event = report_event
        self._state = StateFolder(environ)
        self._setters: SetterInventory | None = None
        self._clients: set[ClientConnection] = set()
        self._counts: Counter[int] = Counter()  # clients by user
        self._queues: dict[int, deque[ClientConnection]] = {}  # clients with a request, by user
        self._user_names: dict[int, str] = {}
        self._second_due = 0.0
        self._connects: Counter[int] = Counter()  # by user, in this second
        self._refusals: dict[tuple[int, str], bytes] = {}  # by user and code, in this second
        self._signals: list[int] = []
        self._leftovers_due = 0.0
        self._setters_used = 0.0
        who = {"user": "capd", "pid": os.getpid()}
        self._own_keeper = Keeper(self._state, self._open_setters, who, denied_advice=RUN_AS_ROOT)

    def __enter__(self) -> Self:
        """Listen. Raises ConfigError if another capd listens, or the path of the socket cannot be used."""
        self._policy = self._load_policy()
        with contextlib.ExitStack() as stack:
            self._max_clients = min(MAX_CLIENTS, (_raise_file_limit() - 256) // 2)
            self._bind_socket(stack)
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._selector.register(self._socket, selectors.EVENT_READ, self._accept_clients)
            self._install_signals(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT; every cap is restored, also after an unexpected error."""
        self._report_event("ready", {"socket": str(self._path), "pid": os.getpid()})
        try:
            while not set(self._signals) & set(END_SIGNALS):
                self._serve_once()
        finally:
            self._end_service()

    def _serve_once(self) -> None:
        if self._signals:
            self._signals.clear()
            self._reload_policy()
        self._restore_leftovers()
        # Signals are delivered only here: they interrupt no call of a driver.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        events = self._selector.select(self._get_timeout_s())
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for key, mask in events:
            key.data(mask)
        self._serve_queues()
        self._close_idle_setters()

    def _end_service(self) -> None:
        reason = signal.Signals(self._signals[0]).name if self._signals else "it failed"
        for client in list(self._clients):
            outcomes = self._release_caps(client, reason)
            devices = [outcome.to_json() for outcome in outcomes]
            self._send_answer(client, {"id": 0, "is": "ended", "why": reason, "devices": devices})
            self._drop_client(client, reason)
        self._setters_used = float("-inf")
        self._close_idle_setters()
        self._report_event("ended", {"why": reason})

    def _accept_clients(self, _: int) -> None:
        if time.monotonic() >= self._second_due:
            self._second_due = time.monotonic() + 1.0
            self._connects.clear()
            self._refusals.clear()
        for _ in range(ACCEPTS_PER_TURN):  # quickly: those who may set caps wait behind those who may not
            try:
                sock, _address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the machine has no files left
                self._report_event("problem", {"what": f"accept: {error}"})
                time.sleep(0.05)
                return
            try:
                self._admit_client(sock)
            except OSError:  # the client has already gone
                sock.close()

    def _admit_client(self, sock: socket.socket) -> None:
        """Serve a client, or refuse it before anything is allocated for it. Raises OSError."""
        sock.setblocking(False)  # noqa: FBT003 the name of the one argument is the method's
        peer = read_peer(sock)
        refusal = self._check_user(peer)
        if refusal is not None:
            self._refuse_socket(sock, peer, refusal)
            return
        self._connects[peer.uid] += 1
        client = ClientConnection(sock, peer, self._get_user_name(peer.uid))
        if client.process.has_ended():
            what, why, code = "your process cannot be seen", f"pid {peer.pid}", "refused.hidden-process"
            refusal = Refused(what, where="capd", why=why, next=ASK_ADMINISTRATOR, code=code)
            self._refuse_socket(sock, peer, refusal)
            client.close()
            return
        client.keeper = self._make_keeper(client)
        self._clients.add(client)
        self._counts[client.uid] += 1
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._handle_ready(client, mask))
        for fd in client.process.fds:
            self._selector.register(fd, selectors.EVENT_READ, lambda _: self._drop_client(client, "the client ended"))

    def _check_user(self, peer: PeerIdentity) -> Refused | None:
        """Return the reason not to serve a client of this user, None to serve it."""
        if not self._policy.knows_user(peer.uid, peer.gids):
            what, why, code = "you may not set caps here", f"no rule names user {peer.uid}", "refused.unknown-user"
            return OutOfBounds(what, where="capd", why=why, next=ASK_ADMINISTRATOR, code=code)
        count, recent = self._counts[peer.uid], self._connects[peer.uid]
        if count >= MAX_CLIENTS_PER_USER or recent >= MAX_CONNECTS_PER_S or len(self._clients) >= self._max_clients:
            why = f"{count} of this user and {len(self._clients)} in all are connected, {recent} came in this second"
            code = "refused.too-many-clients"
            return Refused("too many clients", where="capd", why=why, next="try again later", code=code)
        return None

    def _refuse_socket(self, sock: socket.socket, peer: PeerIdentity, error: Refused) -> None:
        """Send a refusal and disconnect at once; it is reported once a second for each user."""
        key = peer.uid, error.code
        if key not in self._refusals:
            is_final = isinstance(error, OutOfBounds)
            self._refusals[key] = encode_message(make_refusal(0, error, held=not is_final, final=is_final))
            self._report_event("refused", {"uid": peer.uid, "pid": peer.pid, "what": str(error)})
        with contextlib.suppress(OSError):
            sock.send(self._refusals[key])
        sock.close()

    def _get_user_name(self, uid: int) -> str:
        if uid not in self._user_names:
            self._user_names[uid] = get_user_name(uid)
        return self._user_names[uid]

    def _make_keeper(self, client: ClientConnection) -> Keeper:
        who = {"user": client.user, "pid": client.pid, "keeper": os.getpid()}

        def check_permission(*wanted: Any) -> None:
            self._policy.check_request(client.uid, client.gids, *wanted)

        open_setters, state = self._open_setters, self._state
        return Keeper(state, open_setters, who, check_permission=check_permission, denied_advice=RUN_AS_ROOT)

    def _handle_ready(self, client: ClientConnection, mask: int) -> None:
        if client in self._clients:
            if client.unsent:
                self._flush_answer(client)
            elif mask & selectors.EVENT_READ and not client.is_queued:
                self._receive_bytes(client)

    def _receive_bytes(self, client: ClientConnection) -> None:
        try:
            data = client.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            client.buffer.add_bytes(data)
            self._queue_client(client)
        else:
            self._drop_client(client, "the client closed")

    def _queue_client(self, client: ClientConnection) -> None:
        if client.has_request and not client.is_queued:
            client.is_queued = True
            self._queues.setdefault(client.uid, deque()).append(client)

    def _serve_queues(self) -> None:
        """Answer one request of each user, of the user's clients in turn: who floods delays only their own clients."""
        for uid in list(self._queues):
            client = self._queues[uid].popleft()
            if not self._queues[uid]:
                del self._queues[uid]
            client.is_queued = False
            if client in self._clients:
                self._serve_request(client)

    def _serve_request(self, client: ClientConnection) -> None:
        line = b""
        try:
            line = client.buffer.pop_line() or b""
            request = parse_request(line)
        except ConfigError as error:
            self._dismiss_client(client, read_request_id(line), error)
            return
        try:
            answer = client.keeper.answer_request(request)
        except Exception as error:  # noqa: BLE001 - an unexpected error of a driver must not end capd
            self._report_event("problem", {"what": repr(error), "uid": client.uid})
            failure = JoulelabError("capd failed", where="capd", why=type(error).__name__, code="error.capd-failed")
            answer = make_refusal(request.id, failure)
        if request.do != "status":
            self._report_answer(client, answer)
        self._send_answer(client, answer)

    def _report_answer(self, client: ClientConnection, answer: Mapping[str, Any]) -> None:
        facts: dict[str, Any] = {"user": client.user, "pid": client.pid}
        if answer["is"] == "refused":
            self._report_event("refused", {**facts, "what": answer["error"]["what"], "where": answer["error"]["where"]})
        elif answer["is"] == "set":
            self._report_event("set", {**facts, "caps": [[c["scope"], c["asked"], c["unit"]] for c in answer["caps"]]})
        else:
            self._report_event("released", {**facts, "said": [d["said"] for d in answer["devices"]]})

    def _send_answer(self, client: ClientConnection, answer: dict[str, Any]) -> None:
        client.unsent += encode_message(answer)
        self._flush_answer(client)

    def _flush_answer(self, client: ClientConnection) -> None:
        """Send what the client takes now; until the rest is sent, its next requests stay in the socket."""
        try:
            client.unsent = client.unsent[client.sock.send(client.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop_client(client, "the client closed")
            return
        if client.is_dismissed and not client.unsent:
            self._drop_client(client, "it was sent away")
            return
        key = self._selector.get_key(client.sock)
        wanted = selectors.EVENT_WRITE if client.unsent else selectors.EVENT_READ
        if key.events != wanted:
            self._selector.modify(client.sock, wanted, key.data)
        self._queue_client(client)

    def _dismiss_client(self, client: ClientConnection, request_id: int, error: JoulelabError) -> None:
        """Refuse, restore, and disconnect once the answer is read."""
        self._release_caps(client, "it was sent away")
        client.is_dismissed = True
        self._send_answer(client, make_refusal(request_id, error, final=isinstance(error, OutOfBounds)))

    def _release_caps(self, client: ClientConnection, reason: str) -> list[CapOutcome]:
        outcomes = client.keeper.release_caps()
        for outcome in outcomes:
            facts = {"user": client.user, "pid": client.pid, "why": reason, "said": [outcome.message]}
            self._report_event("released", facts)
        if any(outcome.outcome == "failed" for outcome in outcomes):
            self._leftovers_due = time.monotonic() + LEFTOVERS_PERIOD_S
        return outcomes

    def _drop_client(self, client: ClientConnection, reason: str) -> None:
        """Restore the caps of a client and disconnect it; calling it twice is harmless."""
        if client in self._clients:
            self._clients.remove(client)
            self._counts[client.uid] -= 1
            self._release_caps(client, reason)
            for fd in (client.sock.fileno(), *client.process.fds):
                self._selector.unregister(fd)
            client.close()

    def _restore_leftovers(self) -> None:
        """Restore the caps of killed keepers every 30 s, also of keepers that did not use capd."""
        if time.monotonic() < self._leftovers_due:
            return
        self._leftovers_due = time.monotonic() + LEFTOVERS_PERIOD_S
        if has_leftovers(self._environ):
            for outcome in self._own_keeper.restore_leftovers():
                self._report_event("restored", {"said": outcome.message, "outcome": outcome.outcome})

    def _reload_policy(self) -> None:
        try:
            self._policy = self._load_policy()
            self._user_names.clear()
            self._report_event("reloaded", {})
        except ConfigError as error:
            self._report_event("problem", {"what": f"{error}; the former configuration stays"})

    def _get_timeout_s(self) -> float:
        if self._queues:
            return 0.0
        left = self._leftovers_due - time.monotonic()
        return max(0.0, min(left, IDLE_S) if self._setters is not None else left)

    def _open_setters(self) -> SetterInventory:
        """Open the setters when they are needed."""
        self._setters_used = time.monotonic()
        if self._setters is None:
            from joulelab.control.setters import open_all_setters

            self._setters = open_all_setters(self._environ)
        return self._setters

    def _close_idle_setters(self) -> None:
        """Close the drivers when no cap is held, so that they can be updated."""
        is_idle = self._setters is not None and time.monotonic() - self._setters_used >= IDLE_S
        if self._setters is not None and is_idle and not any(client.keeper.leases for client in self._clients):
            self._setters.close()
            self._setters = None

    def _bind_socket(self, stack: contextlib.ExitStack) -> None:
        where = str(self._path)
        try:
            make_folder(self._path.parent)
            lock = DeviceLock(self._path.with_name(f"{self._path.name}.lock"))
            stack.callback(lock.close)
            lock.write_holder({"pid": os.getpid()})
            if self._path.exists() or self._path.is_symlink():
                if not stat.S_ISSOCK(self._path.lstat().st_mode):
                    what, advice = "the socket's place is taken by another file", "remove it, or choose another place"
                    raise ConfigError(what, where=where, next=advice, code="config.socket-place-taken")
                self._path.unlink()
            self._socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._socket.bind(where)
            stack.callback(self._path.unlink, missing_ok=True)
            self._path.chmod(0o666)  # the policy decides who may, not the file
            self._socket.listen(BACKLOG)
            self._socket.setblocking(False)  # noqa: FBT003 the name of the one argument is the method's
        except BlockingIOError:
            what, code = "another capd serves this socket", "config.capd-running"
            raise ConfigError(what, where=where, next="stop that one first", code=code) from None
        except OSError as error:
            advice, code = "run as root, or choose another with --socket", "config.cannot-listen"
            raise ConfigError("cannot listen", where=where, why=str(error), next=advice, code=code) from error

    def _install_signals(self, stack: contextlib.ExitStack) -> None:
        wakeup, wake = os.pipe()
        for fd in (wakeup, wake):
            os.set_blocking(fd, False)
            stack.callback(os.close, fd)
        handlers = {number: signal.signal(number, self._note_signal) for number in SIGNALS}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        former = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, former)
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            stack.callback(signal.signal, number, handler)
        self._selector.register(wakeup, selectors.EVENT_READ, lambda _: os.read(wakeup, 4096))

    def _note_signal(self, number: int, _: object) -> None:
        self._signals.append(number)


def _raise_file_limit() -> int:
    """Raise the limit of open files of this process as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MAX_FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
