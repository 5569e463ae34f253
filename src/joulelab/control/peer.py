"""Hold a client of capd: who the kernel says it is, what it has sent, what it has not read yet."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

from joulelab.control.frames import Lines
from joulelab.control.spawn import Watched
from joulelab.control.state import user_name

if TYPE_CHECKING:
    from joulelab.control.keeper import Keeper

# Not in Python's socket module yet.
SO_PEERPIDFD, SO_PEERGROUPS = 77, 59
_MOST = 1024  # bytes that Python takes, 256 groups
_CREDENTIALS = struct.Struct("iII")


class Peer:
    """Hold one connection; its credentials are the kernel's, from when it connected."""

    keeper: Keeper

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # noqa: FBT003 the name of the one argument is the method's
        self.sock = sock
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, self.uid, gid = _CREDENTIALS.unpack(packed)
        self.gids = {gid, *_groups(sock, self.uid, gid)}
        self.user = str(self.uid)
        self.lines = Lines()
        self.unsent = b""
        self.leaving = False  # it is not heard any more, and goes when it has read its answer
        self.process = Watched(self.pid, opened=self._pidfd)  # a child of it may hold its socket open

    def _pidfd(self, pid: int) -> int:
        try:
            packed = self.sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
        except OSError:  # before Linux 6.5
            return os.pidfd_open(pid)
        return int.from_bytes(packed, "little")

    def close(self) -> None:
        """Close everything."""
        self.sock.close()
        self.process.close()


def _groups(sock: socket.socket, uid: int, gid: int) -> list[int]:
    """Return the peer's other groups as the kernel knows them: no directory service is asked, which might hang."""
    try:
        packed = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _MOST)
    except OSError:  # before Linux 4.13, or more than fit
        return os.getgrouplist(user_name(uid), gid)
    return [number for (number,) in struct.iter_unpack("I", packed)]
