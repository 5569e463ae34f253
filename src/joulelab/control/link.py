"""Talk to a keeper: one of our own, or the machine's capd."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import msgspec

from joulelab.control.frames import Lines, encode
from joulelab.control.spawn import Watched, readable, start
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CAPD = "JOULELAB_CAPD"
SOCKET = "/run/joulelab/capd.sock"
TWIN = "JOULELAB_TWIN"
LEAVE_S = 5.0
SEND_S = 10.0


class Link:
    """Hold one connection to a keeper; `pid` is that of our own keeper, None for capd."""

    def __init__(self, sock: socket.socket, pid: int | None = None) -> None:
        self.pid = pid
        self.broken = False
        self._sock = sock
        self._sock.settimeout(SEND_S)
        self._watched = None if pid is None else Watched(pid)
        self._lines = Lines()

    @property
    def name(self) -> str:
        """Return who is at the other end, for people."""
        return "capd" if self.pid is None else f"keeper {self.pid}"

    @property
    def fds(self) -> list[int]:
        """Return what becomes readable when there is something to hear, or the keeper has ended."""
        return [self._sock.fileno(), *(self._watched.fds if self._watched else ())]

    def send(self, frame: dict[str, Any]) -> None:
        """Send a request; where that fails, who waits for the answer finds out why."""
        with contextlib.suppress(OSError):
            self._sock.sendall(encode(frame))

    def receive(self, until: float) -> list[dict[str, Any]]:
        """Return what has arrived, waiting for something until a time (monotonic s); notes a broken connection."""
        frames = self._frames()
        while not frames and not self.broken:
            if not readable([self._sock.fileno()], max(0.0, until - time.monotonic())):
                # A process that is gone says nothing more, even if a child of it should hold the socket.
                self.broken = self._watched is not None and self._watched.ended()
                break
            try:
                data = self._sock.recv(65536)
            except OSError:
                data = b""
            self.broken = not data
            self._lines.feed(data)
            frames = self._frames()
        return frames

    def ask(
        self, frame: dict[str, Any], within_s: float, hear: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any] | None:
        """Return the answer to a request, None where the connection broke. Raises JoulelabError where none comes.

        `hear` is given what else arrives.
        """
        self.send(frame)
        until = time.monotonic() + within_s
        while True:
            for told in self.receive(until):
                nameless = told.get("is") == "refused" and not told.get("id")  # it could not even read the number
                if told.get("id") == frame["id"] or nameless:
                    return told
                hear(told)
            if self.broken:
                return None
            if time.monotonic() >= until:
                why, then = (
                    f"no answer within {within_s:g} s",
                    "a driver may hang; it puts back as soon as that answers",
                )
                raise JoulelabError(f"{self.name} does not answer", where="caps", why=why, next=then)

    def close(self) -> str:
        """Let the keeper end, and wait for our own a little; return how it ended, for people."""
        self._sock.close()
        if self._watched is None or self.pid is None:
            return "the connection was closed"
        until = time.monotonic() + LEAVE_S
        while not self._watched.ended() and time.monotonic() < until:
            readable(self._watched.fds, 0.1)
        self._watched.close()
        return _reap(self.pid)

    def abandon(self) -> None:
        """Let go without waiting: of a keeper that hangs, or of one that is our parent's."""
        self._sock.close()
        if self._watched is not None:
            self._watched.close()

    def _frames(self) -> list[dict[str, Any]]:
        frames = []
        try:
            while (line := self._lines.next()) is not None:
                frames.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (ConfigError, msgspec.MsgspecError, UnicodeError):
            self.broken = True
        return frames


def _reap(pid: int) -> str:
    try:
        got, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else's wait had it
        return "it ended"
    if not got:
        return "it still runs"
    code = os.waitstatus_to_exitcode(status)
    return f"it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with {code}"


class CapdGone(JoulelabError):
    """Report a capd that is not there just now."""


def connect(environ: Mapping[str, str], *, direct: bool = False, capd: bool = False) -> Link:
    """Open a way to set caps: capd where it is to be asked and there, else a keeper of our own. Raises JoulelabError.

    Root and twins need no capd, unless they ask for it. `capd`: nothing else will do; raises CapdGone.
    """
    if not direct and (capd or environ.get(CAPD) or not (os.geteuid() == 0 or environ.get(TWIN))):
        path = environ.get(CAPD) or SOCKET
        try:
            return Link(_dial(path))
        except (FileNotFoundError, ConnectionRefusedError, PermissionError) as error:
            if capd:
                then = "it puts back when it is started again: systemctl status joulelab-capd"
                raise CapdGone("capd is gone", where=path, why=error.strerror, next=then) from None
    sock, pid = start(environ)
    return Link(sock, pid)


def _dial(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(SEND_S)
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError, PermissionError):
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise JoulelabError(
            "capd does not answer", where=path, why=str(error), next="systemctl status joulelab-capd"
        ) from error
    return sock
