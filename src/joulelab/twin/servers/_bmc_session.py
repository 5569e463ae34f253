"""Speak RMCP+ as a BMC: logins by cipher suites 3 and 17 with the answers of the specification, on pyghmi's framing.

pyghmi's own server knows only suite 3 and does not answer a wrong login; its framing, encryption and integrity are
used unchanged. It has its sockets in globals: one BMC per process.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import struct
import uuid
from typing import TYPE_CHECKING, Any, Protocol

from pyghmi.ipmi.private import constants, serversession
from pyghmi.ipmi.private import session as framing

from joulelab.core.clock import NS, monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Collection

# Cipher suite -> algorithms of login, integrity and secrecy, digest, length of the integrity code.
SUITES = {3: ((1, 1, 1), hashlib.sha1, 12), 17: ((3, 4, 1), hashlib.sha256, 16)}
INVALID_ROLE, UNKNOWN_NAME, BAD_INTEGRITY, NO_SUITE = 0x0A, 0x0D, 0x0F, 0x11
OPEN_REQUEST = 0x10
IDLE_S = 60.0
USER_NUMBER = 2


class BmcAnswers(Protocol):
    """Answer commands; decide whether packets are answered at all, and how late."""

    def answer_command(self, netfn: int, command: int, data: bytes, privilege: int) -> tuple[int, bytes]:
        """Return completion code and data."""
        ...

    def is_listening(self) -> bool:
        """Return whether a packet that arrives now is answered, after the BMC's latency."""
        ...

    def find_password(self, user: str) -> tuple[bytes, int] | None:
        """Return a user's password and highest privilege, None for an unknown user."""
        ...


class BmcSession(serversession.ServerSession):  # type: ignore[misc]
    """Hold one client's session, from its open request on."""

    bmc: BmcServer
    _role = 0
    _name = b""
    _allowed = 0
    _privilege = USER_NUMBER
    _rm = _rc = b""
    seen_ns = 0

    def create_open_session_response(self, request: bytes) -> bytearray:
        """Accept a suite of this BMC, refuse others with 11h."""
        tag, level = request[0], request[1] & 0xF
        self.clientsessionid = bytes(request[4:8])
        self.managedsessionid = os.urandom(4)
        self.seen_ns = monotonic_ns()
        asked = (request[12], request[20], request[28]) if len(request) >= 32 else ()
        for suite, (algorithms, digest, length) in SUITES.items():
            if asked == algorithms and suite in self.bmc.suites:
                self.currhashlib, self.currhashlen = digest, length
                break
        else:
            return bytearray([tag, NO_SUITE, 0, 0]) + self.clientsessionid
        chosen = b"".join(struct.pack("<B2xBB3x", kind, 8, value) for kind, value in enumerate(algorithms))
        return bytearray([tag, 0, level or 4, 0]) + self.clientsessionid + self.managedsessionid + chosen

    def _got_rmcp_openrequest(self, data: bytearray) -> None:
        self._set_keys(None, 0, 0)
        super()._got_rmcp_openrequest(data)

    def _got_rmcp_response(self, data: bytearray) -> None:
        """Ignore an answer that only a BMC sends."""

    def _handle_ipmi_packet(self, data: bytearray, sockaddr: Any = None, qent: Any = None) -> None:
        self.seen_ns = monotonic_ns()
        if self.bmc.answers.is_listening():
            super()._handle_ipmi_packet(data, sockaddr=sockaddr, qent=qent)

    def sessionless_data(self, data: bytearray, sockaddr: Any) -> None:
        """Pass on a packet that arrived after the end of this session: its client opens another one."""
        self.bmc.sessionless_data(data, sockaddr)

    def _make_mac(self, key: bytes, *parts: bytes) -> bytes:
        return hmac.new(key, b"".join(parts), self.currhashlib).digest()

    def _encode_user(self) -> bytes:
        return bytes([self._role, len(self._name)]) + self._name

    def _got_rakp1(self, data: bytearray) -> None:
        if len(data) < 28 or bytes(data[4:8]) != self.managedsessionid:
            return
        self._rm, self._role = bytes(data[8:24]), data[24]
        self._name = bytes(data[28 : 28 + data[27]])
        found = self.bmc.answers.find_password(self._name.decode("utf-8", "replace"))
        if found is None:
            self._refuse_login("rakp2", data[0], UNKNOWN_NAME)
            return
        self._key, self._allowed = found
        if self._role & 0xF > self._allowed:
            self._refuse_login("rakp2", data[0], INVALID_ROLE)
            return
        self._rc = os.urandom(16)
        guid = self.bmc.uuid.bytes
        code = self._make_mac(
            self._key, self.clientsessionid, self.managedsessionid, self._rm, self._rc, guid, self._encode_user()
        )
        self._send_payload("rakp2", bytes([data[0], 0, 0, 0]) + self.clientsessionid + self._rc + guid + code)

    def _got_rakp3(self, data: bytearray) -> None:
        if len(data) < 8 or data[1] != 0 or not self._rc or bytes(data[4:8]) != self.managedsessionid:
            return
        right = self._make_mac(self._key, self._rc, self.clientsessionid, self._encode_user())
        if not hmac.compare_digest(right, bytes(data[8:])):
            self._refuse_login("rakp4", data[0], BAD_INTEGRITY)
            return
        sik = self._make_mac(self._key, self._rm, self._rc, self._encode_user())
        self.localsid = struct.unpack("<I", self.managedsessionid)[0]
        self.remseqnumber = None
        self.ipmicallback = self.handle_client_request
        code = self._make_mac(sik, self._rm, self.managedsessionid, self.bmc.uuid.bytes)[: self.currhashlen]
        self._send_payload("rakp4", bytes([data[0], 0, 0, 0]) + self.clientsessionid + code)
        self._set_keys(sik, 1, struct.unpack("<I", self.clientsessionid)[0])

    def _set_keys(self, key: bytes | None, sequence: int, sessionid: int) -> None:
        """Encrypt and sign from now on with keys derived from the session key; without a key, do neither."""
        self.k1: bytes | None = None if key is None else self._make_mac(key, b"\x01" * 20)
        self.aeskey = b"" if key is None else self._make_mac(key, b"\x02" * 20)[:16]
        self.confalgo, self.integrityalgo = int(key is not None), int(key is not None)
        self.sequencenumber, self.sessionid = sequence, sessionid
        self._privilege = USER_NUMBER

    def _refuse_login(self, kind: str, tag: int, status: int) -> None:
        self._send_payload(kind, bytes([tag, status, 0, 0]) + self.clientsessionid)

    def _send_payload(self, kind: str, payload: bytes) -> None:
        self.send_payload(bytearray(payload), constants.payload_types[kind], retry=False)

    def handle_client_request(self, request: dict[str, Any]) -> None:
        """Answer a command of the session."""
        netfn, command, data = request["netfn"], request["command"], bytes(request["data"])
        if (netfn, command) == (0x06, 0x3B):
            code, answer = self._set_privilege(data)
        elif (netfn, command) == (0x06, 0x3C):
            code, answer = 0, b""
        else:
            code, answer = self.bmc.answers.answer_command(netfn, command, data, self._privilege)
        self.send_ipmi_response(data=list(answer), code=code)
        if (netfn, command) == (0x06, 0x3C):
            self.end_session()

    def _set_privilege(self, data: bytes) -> tuple[int, bytes]:
        if len(data) != 1:
            return 0xC7, b""
        wanted = data[0] & 0xF
        if wanted > min(self._allowed, self._role & 0xF or 4):
            return 0x81, b""
        self._privilege = wanted if wanted > 1 else self._privilege
        return 0, bytes([self._privilege])

    def end_session(self) -> None:
        """Remove the session: its packets are no longer known."""
        handlers = framing.Session.bmc_handlers
        if handlers.get(self.sockaddr, {}).get(self.bmc.port) is self:
            del handlers[self.sockaddr]


class BmcServer(serversession.IpmiServer):  # type: ignore[misc]
    """Listen on a loopback UDP port; one thread calls `answer_packets`."""

    def __init__(self, answers: BmcAnswers, port: int, suites: Collection[int]) -> None:
        self.answers = answers
        self.suites = suites
        super().__init__({}, port=port, bmcuuid=uuid.uuid4(), address="127.0.0.1")
        self.port = self.serversocket.getsockname()[1]

    def answer_packets(self, wait_s: float) -> None:
        """Answer packets for `wait_s`; drop malformed ones, as a BMC does."""
        with contextlib.suppress(Exception):  # pyghmi raises many kinds of errors for packets that are not IPMI
            framing.Session.wait_for_rsp(wait_s)

    def sessionless_data(self, data: bytearray, sockaddr: Any) -> None:
        """Answer a packet outside a session."""
        if not self.answers.is_listening():
            return
        if bytes(data[:4]) == b"\x06\x00\xff\x06" and len(data) >= 12 and data[8] == 0x80:
            # RMCP's answer to a ping: IPMI is supported.
            pong = b"\x06\x00\xff\x06\x00\x00\x11\xbe\x40" + bytes([data[9], 0, 16])
            pong += b"\x00\x00\x11\xbe" + bytes(4) + b"\x81" + bytes(7)
            framing._io_sendto(self.serversocket, pong, sockaddr)  # noqa: SLF001
            return
        if len(data) > 16 and data[4] == 6 and data[5] == OPEN_REQUEST:
            self._forget_idle()
            BmcSession({}, None, sockaddr, self.serversocket, data[16:], self.uuid, bmc=self)
            return
        super().sessionless_data(data, sockaddr)

    def _forget_idle(self) -> None:
        until = monotonic_ns() - round(IDLE_S * NS)
        for handlers in list(framing.Session.bmc_handlers.values()):
            for session in list(handlers.values()):
                if isinstance(session, BmcSession) and session.seen_ns < until:
                    session.end_session()

    def send_cipher_suites(self, myaddr: int, mylun: int, clientaddr: int, clientlun: int, clientseq: int, data: bytes,
                           sockaddr: Any) -> None:  # fmt: skip
        """Answer Get Channel Cipher Suites with the suites of this BMC, all in the first list."""
        first = len(data) > 22 and data[22] & 0x3F == 0
        records = b"".join(
            bytes([0xC0, suite, a, 0x40 | i, 0x80 | c]) for suite, ((a, i, c), _, _) in SUITES.items()
            if suite in self.suites
        )  # fmt: skip
        head = bytes([clientaddr, clientlun | 7 << 2])
        body = bytes([myaddr, mylun | clientseq << 2, 0x54, 0, 1]) + (records if first else b"")
        message = head + _make_checksum(head) + body + _make_checksum(body)
        outer = b"\x06\x00\xff\x07\x06\x00" + bytes(8) + struct.pack("<H", len(message))
        framing._io_sendto(self.serversocket, bytearray(outer + message), sockaddr)  # noqa: SLF001


def _make_checksum(data: bytes) -> bytes:
    return bytes([-sum(data) & 0xFF])
