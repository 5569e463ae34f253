"""Serve VXI-11's core channel: ONC RPC over TCP with records, from RFC 5531 and 4506 and the VXI-11 specification."""

from __future__ import annotations

import contextlib
import itertools
import socketserver
import struct
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

PROGRAM, VERSION = 0x0607AF, 1
NO_ERROR, NO_SUCH_LINK, NOT_SUPPORTED, LOCKED, NO_LOCK, TIMED_OUT = 0, 4, 8, 11, 12, 15
ENDED, COUNT_REACHED = 4, 1
_LARGEST = 1 << 16


class DeviceSilence(Exception):
    """Raised when the whole device does not answer."""


@dataclass(slots=True)
class VxiLink:
    """Hold the state of one client's link: unread answers and an incomplete message."""

    number: int
    out: bytearray = field(default_factory=bytearray)
    message: bytearray = field(default_factory=bytearray)


class CoreChannel:
    """Answer calls; the device has one lock and one set of links for all connections.

    `execute` takes a message and a timeout in s; it returns the answer, None after the timeout.
    """

    def __init__(self, execute: Callable[[bytes, float], bytes | None], *, refuse: bool = False) -> None:
        self._execute = execute
        self._refuse = refuse
        self._links: dict[int, VxiLink] = {}
        self._numbers = itertools.count(1)
        self._holder = 0
        self._mutex = threading.Lock()

    def call_procedure(self, procedure: int, body: bytes) -> bytes | None:
        """Return the result of a procedure, None for an unknown one. Raises DeviceSilence, struct.error."""
        match procedure:
            case 0:
                return b""
            case 10:
                return self._create_link()
            case 11:
                return self._write_device(body)
            case 12:
                return self._read_device(body)
            case 13:
                link, _ = self._find_link(body)
                return struct.pack(">II", NO_ERROR if link else NO_SUCH_LINK, 16 if link and link.out else 0)
            case 15:
                return self._clear_device(body)
            case 18 | 19:
                return self._change_lock(procedure, body)
            case 23:
                return self._destroy_link(body)
            case 14 | 16 | 17 | 20 | 22 | 25 | 26:
                return struct.pack(">I", NOT_SUPPORTED)
        return None

    def drop_links(self, links: set[int]) -> None:
        """Remove the links of a closed connection, and their lock."""
        with self._mutex:
            for number in links:
                self._links.pop(number, None)
            if self._holder in links:
                self._holder = 0

    def _create_link(self) -> bytes:
        if self._refuse:
            return struct.pack(">IIII", LOCKED, 0, 0, 0)
        with self._mutex:
            number = next(self._numbers)
            self._links[number] = VxiLink(number)
        return struct.pack(">IIII", NO_ERROR, number, 0, _LARGEST)

    def _find_link(self, body: bytes) -> tuple[VxiLink | None, int]:
        (number,) = struct.unpack_from(">I", body)
        with self._mutex:
            return self._links.get(number), number

    def _is_locked_for(self, number: int) -> bool:
        return self._holder not in (0, number)

    def _write_device(self, body: bytes) -> bytes:
        link, number = self._find_link(body)
        _, io_ms, _, flags, size = struct.unpack_from(">IIIiI", body)
        if link is None or self._is_locked_for(number):
            return struct.pack(">II", LOCKED if link else NO_SUCH_LINK, 0)
        link.message += body[20 : 20 + size]
        if flags & 8:
            message, link.message = bytes(link.message), bytearray()
            answer = self._execute(message, io_ms / 1000)
            if answer is None:
                return struct.pack(">II", TIMED_OUT, 0)
            link.out = bytearray(answer)  # a new message clears unread answers
        return struct.pack(">II", NO_ERROR, size)

    def _read_device(self, body: bytes) -> bytes:
        link, number = self._find_link(body)
        _, wanted, io_ms = struct.unpack_from(">III", body)
        if link is None or self._is_locked_for(number):
            return struct.pack(">III", LOCKED if link else NO_SUCH_LINK, 0, 0)
        if not link.out:
            threading.Event().wait(io_ms / 1000)
            return struct.pack(">III", TIMED_OUT, 0, 0)
        data = bytes(link.out[:wanted])
        del link.out[:wanted]
        reason = COUNT_REACHED if link.out else ENDED
        return struct.pack(">III", NO_ERROR, reason, len(data)) + data + bytes(-len(data) % 4)

    def _clear_device(self, body: bytes) -> bytes:
        link, _ = self._find_link(body)
        if link is not None:
            link.out.clear()
            link.message.clear()
        return struct.pack(">I", NO_ERROR if link else NO_SUCH_LINK)

    def _change_lock(self, procedure: int, body: bytes) -> bytes:
        link, number = self._find_link(body)
        if link is None:
            return struct.pack(">I", NO_SUCH_LINK)
        with self._mutex:
            if procedure == 18:
                error = LOCKED if self._is_locked_for(number) else NO_ERROR
                self._holder = self._holder or number
            else:
                error = NO_ERROR if self._holder == number else NO_LOCK
                self._holder = 0 if self._holder == number else self._holder
        return struct.pack(">I", error)

    def _destroy_link(self, body: bytes) -> bytes:
        link, number = self._find_link(body)
        self.drop_links({number})
        return struct.pack(">I", NO_ERROR if link else NO_SUCH_LINK)


class VxiHandler(socketserver.BaseRequestHandler):
    """Serve one connection."""

    def handle(self) -> None:
        """Answer calls until the client disconnects; anything else ends the connection."""
        server = self.server
        assert isinstance(server, VxiServer)
        links: set[int] = set()
        try:
            while (record := _receive_record(self.request)) is not None:
                answer = self._answer_call(server.core, record, links)
                if answer is not None:
                    self.request.sendall(struct.pack(">I", 0x80000000 | len(answer)) + answer)
        except (OSError, struct.error):
            pass  # disconnected, or not RPC
        finally:
            server.core.drop_links(links)

    def _answer_call(self, core: CoreChannel, record: bytes, links: set[int]) -> bytes | None:
        xid, kind, rpc, program, version, procedure = struct.unpack_from(">6I", record)
        at = 24
        for _ in range(2):  # credentials and verifier
            (size,) = struct.unpack_from(">I", record, at + 4)
            at += 8 + size + (-size % 4)
        if kind != 0:
            return None
        if rpc != 2:
            return struct.pack(">6I", xid, 1, 1, 0, 2, 2)
        accepted = struct.pack(">5I", xid, 1, 0, 0, 0)
        if program != PROGRAM:
            return accepted + struct.pack(">I", 1)
        if version != VERSION:
            return accepted + struct.pack(">III", 2, VERSION, VERSION)
        try:
            result = core.call_procedure(procedure, record[at:])
        except DeviceSilence:
            return None
        except struct.error:
            return accepted + struct.pack(">I", 4)
        if result is None:
            return accepted + struct.pack(">I", 3)
        if procedure == 10 and result[:4] == bytes(4):
            links.add(int.from_bytes(result[4:8], "big"))
        return accepted + bytes(4) + result


class VxiServer(socketserver.ThreadingTCPServer):
    """Listen for VXI-11 clients, each with a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, core: CoreChannel) -> None:
        self.core = core
        super().__init__(("127.0.0.1", port), VxiHandler)


def _receive_record(sock: socket.socket) -> bytes | None:
    """Return one record, None if the client closed the connection."""
    record = bytearray()
    while True:
        head = _receive_bytes(sock, 4)
        if head is None:
            return None
        (mark,) = struct.unpack(">I", head)
        if (mark & 0x7FFFFFFF) + len(record) > _LARGEST * 2:
            raise struct.error("the record is too long")
        fragment = _receive_bytes(sock, mark & 0x7FFFFFFF)
        if fragment is None:
            return None
        record += fragment
        if mark & 0x80000000:
            return bytes(record)


def _receive_bytes(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        with contextlib.suppress(InterruptedError):
            more = sock.recv(size - len(data))
            if not more:
                return None
            data += more
    return bytes(data)
