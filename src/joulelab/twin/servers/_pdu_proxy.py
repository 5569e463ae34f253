"""Stand between clients and snmpd: let datagrams through as a flawed instrument does, late, lost or broken."""

from __future__ import annotations

import contextlib
import heapq
import random
import selectors
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

from joulelab.core.clock import NS, monotonic_ns

if TYPE_CHECKING:
    from joulelab.twin.readings import Panel

_CLIENTS = 256
_BYTES = 65_535


class Proxy:
    """Forward UDP datagrams from a port of loopback to snmpd and back; a thread serves until the block ends.

    What the panel's flaws say is done to whole datagrams: a silent request is not forwarded, an answer waits for the
    latency, a garbled one is noise of the same length.
    """

    def __init__(self, panel: Panel, upstream: int, port: int = 0) -> None:
        self._panel, self._upstream = panel, upstream
        self._front = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._front.bind(("127.0.0.1", port))
        self._front.setblocking(False)  # noqa: FBT003
        self.port: int = self._front.getsockname()[1]
        self._behind: dict[Any, socket.socket] = {}
        self._waiting: list[tuple[int, int, bytes, Any]] = []
        self._noise = random.Random(port)  # noqa: S311 noise, no secret
        self._wake, self._end = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="pdu-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._front, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.send(b"x")
        self._thread.join(5)
        for opened in (self._front, self._wake, self._end, *self._behind.values()):
            opened.close()
        self._selector.close()

    def _run(self) -> None:
        while True:
            left = (self._waiting[0][0] - monotonic_ns()) / NS if self._waiting else None
            for key, _ in self._selector.select(None if left is None else max(left, 0)):
                if key.fileobj is self._wake:
                    return
                if key.fileobj is self._front:
                    self._from_clients()
                else:
                    self._from_snmpd(key.fileobj, key.data)
            while self._waiting and self._waiting[0][0] <= monotonic_ns():
                _, _, data, client = heapq.heappop(self._waiting)
                with contextlib.suppress(OSError):  # the client may be gone
                    self._front.sendto(data, client)

    def _from_clients(self) -> None:
        try:
            data, client = self._front.recvfrom(_BYTES)
        except OSError:
            return  # an ICMP error of a client that is gone
        if self._panel.is_silent():
            return
        with contextlib.suppress(OSError):
            self._to(client).send(data)

    def _to(self, client: Any) -> socket.socket:
        """Return the socket that speaks to snmpd for a client."""
        if client not in self._behind:
            if len(self._behind) >= _CLIENTS:
                oldest = self._behind.pop(next(iter(self._behind)))
                self._selector.unregister(oldest)
                oldest.close()
            opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            opened.setblocking(False)  # noqa: FBT003
            opened.connect(("127.0.0.1", self._upstream))
            self._selector.register(opened, selectors.EVENT_READ, client)
            self._behind[client] = opened
        return self._behind[client]

    def _from_snmpd(self, opened: Any, client: Any) -> None:
        try:
            data = opened.recv(_BYTES)
        except OSError:
            return
        if self._panel.is_garbled():
            data = b"\x30" + self._noise.randbytes(len(data) - 1)
        due = monotonic_ns() + round(self._panel.flaws.latency_s * NS)
        heapq.heappush(self._waiting, (due, len(self._waiting) + self._noise.getrandbits(32), data, client))
