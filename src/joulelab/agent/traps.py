"""Receive traps on a port of this node, and keep which conditions they say are there; bounded whatever comes."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from joulelab.agent.notification import MOST_BYTES, parse
from joulelab.agent.trap_names import worded
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import Denied, ReadFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.agent.trap_names import Severity

# A trap that nobody words has no end that would be known: it is shown for a quarter of an hour after the last one.
HELD_NS = 900 * NS
# A condition whose end was lost on its way (traps are datagrams) is not shown for ever.
LAST_NS = 24 * 3600 * NS
MOST_ACTIVE, MOST_COUNTED = 256, 256
# Datagrams read in a second; what comes faster is dropped unread.
MOST_A_SECOND = 200
ELSEWHERE = "other"

Key = tuple[str, str, str]  # device, trap, part


@dataclass(slots=True)
class Condition:
    """Hold a condition that a trap told and none has ended; times in monotonic ns."""

    severity: Severity
    since_ns: int
    last_ns: int


class Board:
    """Keep conditions and counts; used from several threads."""

    def __init__(self, *, now: Callable[[], int] = monotonic_ns) -> None:
        self.counts: dict[tuple[str, str, str], int] = {}
        self.refused = 0
        self._active: dict[Key, Condition] = {}
        self._lock = threading.Lock()
        self._now = now

    def heard(self, device: str, oid: str, values: Mapping[str, int | str]) -> None:
        """Take a trap of a device."""
        said, now = worded(oid, values), self._now()
        key = (device, said.trap, said.part)
        with self._lock:
            counted = (device, said.trap, said.severity)
            if counted not in self.counts and len(self.counts) >= MOST_COUNTED:
                counted = (ELSEWHERE, ELSEWHERE, said.severity)
            self.counts[counted] = self.counts.get(counted, 0) + 1
            if said.ends:
                self._active.pop(key, None)
            elif said.severity != "info":
                known = self._active.pop(key, None)
                self._active[key] = Condition(said.severity, known.since_ns if known else now, now)
                if len(self._active) > MOST_ACTIVE:  # anybody can send what is not known: that goes first
                    strange = (k for k, one in self._active.items() if one.severity == "unknown")
                    del self._active[next(strange, next(iter(self._active)))]

    def refuse(self) -> None:
        """Count a datagram that was no trap, or one too many."""
        with self._lock:
            self.refused += 1

    def active(self) -> dict[Key, Condition]:
        """Return the conditions that stand."""
        now = self._now()
        with self._lock:
            for key, one in list(self._active.items()):
                if now - one.last_ns > (HELD_NS if one.severity == "unknown" else LAST_NS):
                    del self._active[key]
            return dict(self._active)

    def counted(self) -> dict[tuple[str, str, str], int]:
        """Return how many traps came by device, trap and severity."""
        with self._lock:
            return dict(self.counts)


def _bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that receives what is sent to a UDP port. Raises Denied, Unavailable."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    what = f"traps cannot be received on port {port} of {host}"
    try:
        opened.bind((host, port))
    except PermissionError as error:
        opened.close()
        advice = "use a port above 1023 here and on the device, or give the unit CAP_NET_BIND_SERVICE"
        raise Denied(what, why=str(error), next=advice, code="denied.port") from None
    except OSError as error:
        opened.close()
        advice = "stop the program that listens there (snmptrapd), or choose another port"
        raise Unavailable(what, why=str(error), next=advice, code="unavailable.port") from None
    return opened


class TrapListener:
    """Listen from the beginning of the block to its end. `names` are devices by their address.

    Raises Denied or Unavailable where the port cannot be had.
    """

    def __init__(
        self, host: str, port: int, board: Board, names: Mapping[str, str], *, now: Callable[[], int] = monotonic_ns
    ) -> None:
        self._board, self._names, self._now = board, names, now
        self._socket = _bind_socket(host, port)
        self._socket.settimeout(1.0)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._second, self._count = 0, 0
        self._ended = False
        self._thread = threading.Thread(target=self._main, name="traps", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        with contextlib.suppress(OSError), socket.socket(self._socket.family, socket.SOCK_DGRAM) as waking:
            waking.sendto(b"", self._socket.getsockname())
        self._thread.join(2)
        self._socket.close()

    def _main(self) -> None:
        while not self._ended:
            try:
                data, address = self._socket.recvfrom(MOST_BYTES + 1)
            except OSError:
                continue
            if data and not self._ended:
                self._take(data, address)

    def _take(self, data: bytes, address: tuple[str, int]) -> None:
        second = self._now() // NS
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > MOST_A_SECOND:
            self._board.refuse()
            return
        try:
            found = parse(data)
        except ReadFailed:
            self._board.refuse()
            return
        source = str(address[0])
        self._board.heard(self._names.get(source, source), found.oid, found.values)
        if found.answer:
            with contextlib.suppress(OSError):
                self._socket.sendto(found.answer, address)
