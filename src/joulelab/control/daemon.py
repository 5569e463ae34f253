"""Keep caps for users without root: `capd`, one loop over one socket, with the peer's credentials as its only witness."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import stat
import struct
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.control.__main__ import user_name
from joulelab.control.frames import Lines, encode, id_of, parse, refused
from joulelab.control.keeper import Keeper
from joulelab.control.leftover import has_leftovers
from joulelab.control.spawn import Watched
from joulelab.control.state import Lock, State
from joulelab.core.errors import ConfigError, JoulelabError, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.control.policy import Policy
    from joulelab.control.setters import Found

ENDING = (signal.SIGTERM, signal.SIGINT)
RELOAD = signal.SIGHUP
MOST_CLIENTS = 4096
MOST_PER_USER = 2048
# Answers that a client does not take.
MOST_UNSENT = 1 << 20
LEFTOVERS_S = 30.0
SO_PEERPIDFD, SO_PEERGROUPS = 77, 59
AS_ROOT = "capd itself has no permission: it has to run as root"

# Tells what happened: an event's name, and its facts.
Say = "Callable[[str, dict[str, Any]], None]"


class Client:
    """Hold one connection: who it is, what it has sent, what it has not read yet, its keeper."""

    def __init__(self, sock: socket.socket, keeper: Callable[[Client], Keeper]) -> None:
        self.sock = sock
        self.pid, self.uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.gids = {gid, *_groups(sock)}
        self.watched: Watched | None = None
        self.lines = Lines()
        self.unsent = b""
        self.leaving = False  # nothing more is heard; it goes when it has read its answer
        self.keeper = keeper(self)

    def watch(self) -> bool:
        """Watch the peer's process; return whether it is there. A child of it may hold its socket open."""
        try:
            self.watched = Watched(self.pid, opened=self._peer)
        except OSError:
            return False
        return not self.watched.ended()

    def _peer(self, pid: int) -> int:
        try:
            packed = self.sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
            return int(struct.unpack("i", packed)[0])
        except OSError:  # before Linux 6.5
            return os.pidfd_open(pid)

    def close(self) -> None:
        """Close everything."""
        self.sock.close()
        if self.watched is not None:
            self.watched.close()


def _groups(sock: socket.socket) -> list[int]:
    """Return the peer's other groups as the kernel knows them: no directory service is asked, which may hang."""
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 65536 * 4)
    except OSError:
        return []
    return [gid for (gid,) in struct.iter_unpack("I", packed)]
