"""Protect a small HTTP server: check the names that it is called by, and limit the connections of each peer."""

from __future__ import annotations

import ipaddress
import socket
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from joulelab.core.text import is_loopback

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

Connection = TypeVar("Connection", bound="Hashable")
# Addresses of IPv6 are cheap: whoever has one has the other 2^64 of its network, too.
IPV6_PREFIX = 64


class HostNames:
    """Hold the names of a server that listens at `host`; `names` are further ones that it is called by."""

    def __init__(self, host: str, names: Iterable[str] = ()) -> None:
        self._is_local = is_loopback(host)
        own = {"localhost", host, *names}
        if not self._is_local:
            own |= {socket.gethostname(), socket.gethostname().partition(".")[0], socket.getfqdn()}
        self._own = {name.lower().rstrip(".") for name in own}

    def is_called(self, header: str) -> bool:
        """Return whether a Host header names this server.

        A page of another site that has its own name point here (DNS rebinding) sends that name. Addresses are no names.
        """
        name = _remove_port(header)
        if name is None:
            return False
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name.lower().rstrip(".") in self._own
        return address.is_loopback if self._is_local else True


def _remove_port(header: str) -> str | None:
    """Return the name or address of a Host header, None if it has neither."""
    if header.startswith("["):
        name, bracket, port = header[1:].partition("]")
        port = port.removeprefix(":") if bracket and port[:1] in ("", ":") else "?"
    else:
        name, _, port = header.partition(":")
    return name if name and (not port or (port.isascii() and port.isdecimal())) else None


def name_peer(address: str) -> str:
    """Return the peer that an address belongs to: itself, or its network for IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, IPV6_PREFIX), strict=False))


class ConnectionTable(Generic[Connection]):
    """Count the connections of a server by peer, and choose those that have to go if there are too many.

    A connection waits while its client has to do something: to finish the handshake or its request, or to read the
    answer. The one that has waited for longest goes, of a peer with more than `most_waiting` of them, or, if there are
    more than `most` connections in all, of the peer that has most waiting. So a new client is served although
    another one, even of the same address, holds all connections. Safe to use from several threads.
    """

    def __init__(self, most: int, most_waiting: int) -> None:
        self._most, self._most_waiting = most, most_waiting
        self._lock = threading.Lock()
        self._peers: dict[Connection, str] = {}
        self._waiting: dict[str, dict[Connection, None]] = {}  # the one that has waited for longest is the first

    def __len__(self) -> int:
        return len(self._peers)

    def add(self, connection: Connection, peer: str) -> Connection | None:
        """Add a connection, which waits; return the one that has to be closed instead, which may be the same."""
        with self._lock:
            self._peers[connection] = peer
            own = self._waiting.setdefault(peer, {})
            own[connection] = None
            if len(own) > self._most_waiting:
                return self._drop_oldest(peer)
            if len(self._peers) > self._most:
                return self._drop_oldest(max(self._waiting, key=lambda name: len(self._waiting[name])))
            return None

    def _drop_oldest(self, peer: str) -> Connection:
        oldest = next(iter(self._waiting[peer]))
        self._remove(oldest)
        return oldest

    def begin_work(self, connection: Connection) -> None:
        """Note that the server has to do something for a connection now: it does not wait any more."""
        with self._lock:
            if connection in self._peers:
                self._stop_waiting(connection)

    def begin_waiting(self, connection: Connection) -> None:
        """Note that the client has to do something now."""
        with self._lock:
            if connection in self._peers:
                own = self._waiting.setdefault(self._peers[connection], {})
                own.setdefault(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed; one that is not known is ignored."""
        with self._lock:
            if connection in self._peers:
                self._remove(connection)

    def _remove(self, connection: Connection) -> None:
        self._stop_waiting(connection)
        del self._peers[connection]

    def _stop_waiting(self, connection: Connection) -> None:
        peer = self._peers[connection]
        own = self._waiting.get(peer, {})
        own.pop(connection, None)
        if not own:
            self._waiting.pop(peer, None)
