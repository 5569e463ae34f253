"""Connect to a keeper: start one for this process, or ask the machine's capd."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from joulelab.control.leftovers import DEFAULT_STATE, LOCKS, STATE, TWIN
from joulelab.control.protocol import LineBuffer, encode_message
from joulelab.core.errors import ConfigError, JoulelabError
from joulelab.core.process_identity import read_start_ticks
from joulelab.core.spawn import add_import_path, move_above_standard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CAPD = "JOULELAB_CAPD"
SOCKET = "/run/joulelab/capd.sock"
EXIT_WAIT_S = 5.0
SEND_TIMEOUT_S = 10.0
CONNECT_WAIT_S = 10.0  # in the queue of a capd that many clients ask at once, or that has no CPU on a busy machine
# These ask a keeper to restore and end; they are blocked until its handlers are installed.
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def wait_readable(fds: Sequence[int], timeout_s: float) -> bool:
    """Wait until one of the files is readable. Uses poll(), because select() fails with more than 1024 open files."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class ProcessWatch:
    """Watch a process by a pidfd, or by its number and start time on older kernels. `fds` are readable at its end."""

    def __init__(self, pid: int, ticks: int | None = None, *, open_pidfd: Callable[[int], int] = os.pidfd_open) -> None:
        self.pid = pid
        self.fds: list[int] = []
        with contextlib.suppress(OSError):
            self.fds = [open_pidfd(pid)]
        # Compared after the pidfd is open: the start time shows whether the number was reused before.
        self.ticks = read_start_ticks(pid) if ticks is None else ticks
        if self.fds and read_start_ticks(pid) != self.ticks:
            self.close()

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        if self.fds:
            return wait_readable(self.fds, 0.0)
        return self.ticks is None or read_start_ticks(self.pid) != self.ticks

    def close(self) -> None:
        """Close the pidfd; closing twice is harmless."""
        while self.fds:
            os.close(self.fds.pop())


def make_keeper_command(client: int, ticks: int | None, *words: str) -> list[str]:
    """Return the command of a keeper for a client, which its pid and the start of it (ticks) name."""
    return [sys.executable, "-P", "-W", "ignore", "-m", "joulelab.control", str(client), str(ticks), *words]


def start_keeper(environ: Mapping[str, str], *, guarded: bool = False) -> tuple[socket.socket, int]:
    """Start a keeper for this process; return our end of its socket, and its pid. Raises JoulelabError.

    A `guarded` keeper has a guard: it restores the caps if this process and the keeper are killed together.
    """
    command = make_keeper_command(os.getpid(), read_start_ticks(), *(["guarded"] if guarded else []))
    fds: list[int] = []
    try:
        fds = [end.detach() for end in socket.socketpair()]
        fds.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        fds = [move_above_standard(fd) for fd in fds]
        ours, theirs, null = fds
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate((theirs, null, null))]
        environment = _make_environment(environ)
        pid = os.posix_spawn(command[0], command, environment, file_actions=actions, setsigmask=END_SIGNALS)
    except OSError as error:
        for fd in fds:
            os.close(fd)
        what, code = "cannot start the keeper of caps", "error.keeper-not-started"
        raise JoulelabError(what, where="caps", why=str(error), code=code) from error
    os.close(theirs)
    os.close(null)
    return socket.socket(fileno=ours), pid


def _make_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Make the environment in which a keeper finds the joulelab that started it, and the same folders."""
    folders = {STATE: environ.get(STATE) or DEFAULT_STATE, LOCKS: environ.get(LOCKS)}
    return add_import_path({**environ, **{k: os.path.abspath(v) for k, v in folders.items() if v}})  # noqa: PTH100


class KeeperLink:
    """Hold one connection to a keeper; `pid` is the pid of our own keeper, None for capd."""

    def __init__(self, sock: socket.socket, pid: int | None = None) -> None:
        self.pid = pid
        self.broken = False
        self._sock = sock
        self._sock.settimeout(SEND_TIMEOUT_S)
        self._process = None if pid is None else ProcessWatch(pid)
        self._buffer = LineBuffer()

    @property
    def name(self) -> str:
        """Return `capd`, or `keeper` with its pid."""
        return "capd" if self.pid is None else f"keeper {self.pid}"

    @property
    def fds(self) -> list[int]:
        """Return the files that become readable when a message arrives or the keeper ends."""
        return [self._sock.fileno(), *(self._process.fds if self._process else ())]

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a request; if that fails, the wait for its answer finds the broken connection."""
        with contextlib.suppress(OSError):
            self._sock.sendall(encode_message(message))

    def receive_messages(self, until: float) -> list[dict[str, Any]]:
        """Return the messages that have arrived; if none, wait until a time (monotonic s). Sets `broken`."""
        messages = self._decode_messages()
        while not messages and not self.broken:
            if not wait_readable([self._sock.fileno()], max(0.0, until - time.monotonic())):
                # A child of an ended keeper may still hold the socket open.
                self.broken = self._process is not None and self._process.has_ended()
                break
            try:
                data = self._sock.recv(65536)
            except OSError:
                data = b""
            self.broken = not data
            self._buffer.add_bytes(data)
            messages = self._decode_messages()
        return messages

    def request_answer(
        self, request: Mapping[str, Any], timeout_s: float, handle_other: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any] | None:
        """Send a request and return its answer, None if the connection broke. Raises JoulelabError after the timeout.

        Every other message goes to `handle_other`.
        """
        self.send_message(request)
        until = time.monotonic() + timeout_s
        while True:
            for message in self.receive_messages(until):
                # A keeper that could not even read the number refuses without one.
                unnumbered = message.get("is") == "refused" and not message.get("id")
                if message.get("id") == request["id"] or unnumbered:
                    return message
                handle_other(message)
            if self.broken:
                return None
            if time.monotonic() >= until:
                why = f"no answer within {timeout_s:g} s"
                advice = "a driver may hang; the caps are restored as soon as it answers"
                what, code = f"{self.name} does not answer", "error.no-answer"
                raise JoulelabError(what, where="caps", why=why, next=advice, code=code)

    def close(self) -> str:
        """Let the keeper end; wait a moment if it is our own; return in words how it ended."""
        self._sock.close()
        if self._process is None or self.pid is None:
            return "the connection was closed"
        until = time.monotonic() + EXIT_WAIT_S
        while not self._process.has_ended() and time.monotonic() < until:
            wait_readable(self._process.fds, 0.1)
        self._process.close()
        return _collect_exit(self.pid)

    def abandon(self) -> None:
        """Close without waiting: for a keeper that hangs, or that belongs to our parent process."""
        self._sock.close()
        if self._process is not None:
            self._process.close()

    def _decode_messages(self) -> list[dict[str, Any]]:
        messages = []
        try:
            while (line := self._buffer.pop_line()) is not None:
                messages.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (ConfigError, msgspec.MsgspecError, UnicodeError):
            self.broken = True
        return messages


def _collect_exit(pid: int) -> str:
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # another part of the program has waited for it
        return "it ended"
    if not done:
        return "it still runs"
    code = os.waitstatus_to_exitcode(status)
    return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"


class CapdUnavailable(JoulelabError):
    """Report that capd, which holds our caps, does not listen at the moment."""


def connect_keeper(
    environ: Mapping[str, str],
    *,
    direct: bool = False,
    capd: bool = False,
    guarded: bool = False,
    patient: bool = True,
) -> KeeperLink:
    """Connect to capd if it is wanted and listens, else start a keeper of our own. Raises JoulelabError.

    Root and twins do not need capd, unless JOULELAB_CAPD is set. `direct`: never capd. `capd`: nothing else, raises
    CapdUnavailable. `guarded`: see `start_keeper`; capd, which is started again, needs no guard. `patient`: if many
    clients ask capd at once, wait up to CONNECT_WAIT_S for our turn.
    """
    if not direct and (capd or environ.get(CAPD) or not (os.geteuid() == 0 or environ.get(TWIN))):
        path = environ.get(CAPD) or SOCKET
        try:
            return KeeperLink(_connect_socket(path, patient=patient))
        except (FileNotFoundError, ConnectionRefusedError, PermissionError) as error:
            if capd:
                what, code = "capd is not running", "error.capd-unavailable"
                advice = "it restores the caps when it starts again: systemctl status joulelab-capd"
                raise CapdUnavailable(what, where=path, why=error.strerror, next=advice, code=code) from None
    return KeeperLink(*start_keeper(environ, guarded=guarded))


def _connect_socket(path: str, *, patient: bool) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A call that blocks waits its turn while the queue of capd is full; one with a timeout of Python fails at once.
    sock.setblocking(patient)
    limit = struct.pack("ll", *divmod(round(CONNECT_WAIT_S * 1e6), 10**6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, PermissionError):
        sock.close()
        raise
    except OSError as error:
        sock.close()
        waited = f", and our turn did not come within {CONNECT_WAIT_S:g} s" if patient else ""
        why = f"too many clients wait for it{waited}" if isinstance(error, BlockingIOError) else str(error)
        advice, code = "systemctl status joulelab-capd", "error.capd-no-answer"
        raise JoulelabError("capd does not answer", where=path, why=why, next=advice, code=code) from error
    return sock
