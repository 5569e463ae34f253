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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

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
MAX_CLIENTS, MAX_CLIENTS_PER_USER = 4096, 2048
MAX_FILES = 65536  # two for each client, and some for devices and locks
MAX_UNSENT_BYTES = 1 << 20  # of answers that a client does not read
LEFTOVERS_PERIOD_S = 30.0
IDLE_S = 10.0
RUN_AS_ROOT = "capd itself has no permission: it has to run as root"
ASK_ADMINISTRATOR = "ask the administrator to name you in capd's configuration, or run as root"
# Not in Python's socket module yet.
SO_PEERPIDFD, SO_PEERGROUPS = 77, 59
MAX_GROUPS_BYTES = 1024  # the most that Python reads: 256 groups
CREDENTIALS = struct.Struct("iII")

ReportEvent = Callable[[str, dict[str, Any]], None]


class ClientConnection:
    """Hold one connection to capd, with the credentials that the kernel recorded when the client connected."""

    keeper: Keeper

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # noqa: FBT003 the name of the one argument is the method's
        self.sock = sock
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        self.pid, self.uid, gid = CREDENTIALS.unpack(packed)
        self.gids = {gid, *self._read_groups(gid)}
        self.user = str(self.uid)
        self.buffer = LineBuffer()
        self.unsent = b""
        self.is_dismissed = False  # its requests are ignored, and it is dropped once it has read its answer
        self.process = ProcessWatch(self.pid, open_pidfd=self._open_pidfd)  # a child may keep its socket open

    def _read_groups(self, gid: int) -> list[int]:
        """Read all groups from the kernel: a directory service might hang."""
        try:
            packed = self.sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, MAX_GROUPS_BYTES)
        except OSError:  # before Linux 4.13, or more than fit
            return os.getgrouplist(get_user_name(self.uid), gid)
        return [number for (number,) in struct.iter_unpack("I", packed)]

    def _open_pidfd(self, pid: int) -> int:
        try:
            packed = self.sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
        except OSError:  # before Linux 6.5
            return os.pidfd_open(pid)
        return int.from_bytes(packed, "little")

    @property
    def has_request(self) -> bool:
        """Return whether a request waits to be answered."""
        return self.buffer.has_line and not self.is_dismissed

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
            self._selector.register(self._socket, selectors.EVENT_READ, self._accept_client)
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
        # One request of each client per turn: a client that floods delays only itself.
        for client in [c for c in self._clients if c.has_request]:
            self._serve_request(client)
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

    def _accept_client(self, _: int) -> None:
        try:
            sock, _address = self._socket.accept()
        except OSError as error:  # the machine has no files left, or the client has already gone
            self._report_event("problem", {"what": f"accept: {error}"})
            time.sleep(0.05)
            return
        try:
            client = ClientConnection(sock)
        except OSError:
            sock.close()
            return
        self._clients.add(client)
        refusal = self._check_client(client)
        if refusal is None:
            client.user = get_user_name(client.uid)
        client.keeper = self._make_keeper(client)
        self._selector.register(sock, selectors.EVENT_READ, lambda mask: self._handle_ready(client, mask))
        for fd in client.process.fds:
            self._selector.register(fd, selectors.EVENT_READ, lambda _: self._drop_client(client, "the client ended"))
        if refusal is not None:
            self._report_event("refused", {"uid": client.uid, "pid": client.pid, "what": str(refusal)})
            self._dismiss_client(client, 0, refusal)

    def _check_client(self, client: ClientConnection) -> Refused | None:
        """Return the reason not to serve a client, None to serve it."""
        if not self._policy.knows_user(client.uid, client.gids):
            what, why, code = "you may not set caps here", f"no rule names user {client.uid}", "refused.unknown-user"
            return OutOfBounds(what, where="capd", why=why, next=ASK_ADMINISTRATOR, code=code)
        if client.process.has_ended():
            what, why, code = "your process cannot be seen", f"pid {client.pid}", "refused.hidden-process"
            return Refused(what, where="capd", why=why, next=ASK_ADMINISTRATOR, code=code)
        same_user = sum(1 for other in self._clients if other.uid == client.uid)
        if len(self._clients) > self._max_clients or (client.uid and same_user > MAX_CLIENTS_PER_USER):
            why, code = f"{len(self._clients) - 1} are connected", "refused.too-many-clients"
            return Refused("too many clients", where="capd", why=why, next="try again later", code=code)
        return None

    def _make_keeper(self, client: ClientConnection) -> Keeper:
        who = {"user": client.user, "pid": client.pid, "keeper": os.getpid()}

        def check_permission(*wanted: Any) -> None:
            self._policy.check_request(client.uid, client.gids, *wanted)

        open_setters, state = self._open_setters, self._state
        return Keeper(state, open_setters, who, check_permission=check_permission, denied_advice=RUN_AS_ROOT)

    def _handle_ready(self, client: ClientConnection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE and client in self._clients:
            self._flush_answers(client)
        if mask & selectors.EVENT_READ and client in self._clients and not client.has_request:
            self._receive_bytes(client)

    def _receive_bytes(self, client: ClientConnection) -> None:
        try:
            data = client.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop_client(client, "the client closed")
        elif not client.is_dismissed:
            client.buffer.add_bytes(data)

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
        self._flush_answers(client)

    def _flush_answers(self, client: ClientConnection) -> None:
        try:
            client.unsent = client.unsent[client.sock.send(client.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._drop_client(client, "the client closed")
            return
        if len(client.unsent) > MAX_UNSENT_BYTES:
            self._drop_client(client, "the client reads no answers")
        elif client.is_dismissed and not client.unsent:
            self._drop_client(client, "it was sent away")
        else:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unsent else 0)
            if self._selector.get_key(client.sock).events != wanted:
                self._selector.modify(client.sock, wanted, self._selector.get_key(client.sock).data)

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
            self._report_event("reloaded", {})
        except ConfigError as error:
            self._report_event("problem", {"what": f"{error}; the former configuration stays"})

    def _get_timeout_s(self) -> float:
        if any(client.has_request for client in self._clients):
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
        held = any(client.keeper.leases for client in self._clients)
        if self._setters is not None and not held and time.monotonic() - self._setters_used >= IDLE_S:
            self._setters.close()
            self._setters = None

    def _bind_socket(self, stack: contextlib.ExitStack) -> None:
        where = str(self._path)
        try:
            make_folder(self._path.parent)
            lock = DeviceLock(self._path.with_name(f"{self._path.name}.lock"), {"pid": os.getpid()})
            stack.callback(lock.close)
            if self._path.exists() or self._path.is_symlink():
                if not stat.S_ISSOCK(self._path.lstat().st_mode):
                    what, advice = "the socket's place is taken by another file", "remove it, or choose another place"
                    raise ConfigError(what, where=where, next=advice, code="config.socket-place-taken")
                self._path.unlink()
            self._socket = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._socket.bind(where)
            stack.callback(self._path.unlink, missing_ok=True)
            self._path.chmod(0o666)  # the policy decides who may, not the file
            self._socket.listen(socket.SOMAXCONN)
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
