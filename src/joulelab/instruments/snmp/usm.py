"""Secure SNMPv3 messages as the user-based security model does: who speaks, authenticated, encrypted, in time.

Keys and ciphers are pysnmp's; the frame around them is `snmp_ber`.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, MissingDependency, ReadFailed
from joulelab.instruments.snmp import ber

# Hash and bytes of the digest that are sent (RFC 3414, RFC 7860), and pysnmp's number of the protocol.
AUTH = {
    "MD5": (hashlib.md5, 12, 2),
    "SHA": (hashlib.sha1, 12, 3),
    "SHA224": (hashlib.sha224, 16, 4),
    "SHA256": (hashlib.sha256, 24, 5),
    "SHA384": (hashlib.sha384, 32, 6),
    "SHA512": (hashlib.sha512, 48, 7),
}
# The C forms lengthen keys as Cisco and others do (Reeder), the plain ones as net-snmp (Blumenthal).
PRIV = ("AES", "AES192", "AES256", "AES192C", "AES256C")
STATS = "1.3.6.1.6.3.15.1.1."
UNSUPPORTED_LEVEL, NOT_IN_TIME, UNKNOWN_USER, UNKNOWN_ENGINE, WRONG_DIGEST, DECRYPTION = range(1, 7)
_WINDOW_S = 150
_AUTH_FLAG, _PRIV_FLAG, _REPORTABLE = 1, 2, 4
_MAX_BYTES = 65_507
_PASSWORD_CHARS = 8


@dataclass(frozen=True, slots=True)
class Community:
    """Hold the community of SNMPv2c."""

    name: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class User:
    """Hold a user of SNMPv3; no privacy without authentication. Raises ConfigError for what does not fit."""

    name: str
    auth: str = ""
    auth_password: str = field(default="", repr=False)
    priv: str = ""
    priv_password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if self.auth and self.auth not in AUTH:
            raise ConfigError(f"auth is {self.auth!r}", where="snmp", next=f"valid: {', '.join(AUTH)}")
        if self.priv and self.priv not in PRIV:
            raise ConfigError(f"privacy is {self.priv!r}", where="snmp", next=f"valid: {', '.join(PRIV)}")
        if self.priv and not self.auth:
            raise ConfigError("privacy needs authentication", where="snmp", next="set auth and password too")
        for given, password in ((self.auth, self.auth_password), (self.priv, self.priv_password)):
            if given and len(password) < _PASSWORD_CHARS:
                raise ConfigError("a password of SNMPv3 has at least 8 characters", where="snmp", next="check it")

    @property
    def flags(self) -> int:
        """Return the level as the message says it."""
        return (_AUTH_FLAG if self.auth else 0) | (_PRIV_FLAG if self.priv else 0)


@lru_cache(maxsize=1)
def _services() -> Any:
    """Return pysnmp's keys and ciphers. Raises MissingDependency."""
    try:
        from pysnmp.proto import rfc1902
        from pysnmp.proto.secmod import rfc3414  # first: its modules import each other

        localkey = rfc3414.localkey
        from pysnmp.proto.secmod.eso.priv import aes192, aes256
        from pysnmp.proto.secmod.rfc3826.priv import aes
    except ImportError as error:
        raise MissingDependency(
            "pysnmp is not installed", where="snmp", why=str(error), next="pip install 'joulelab[snmp]'"
        ) from None
    ciphers = {
        "AES": aes.Aes,
        "AES192": aes192.AesBlumenthal192,
        "AES256": aes256.AesBlumenthal256,
        "AES192C": aes192.Aes192,
        "AES256C": aes256.Aes256,
    }
    if aes.PysnmpCryptoError:
        raise MissingDependency(
            "cryptography is not installed", where="snmp", why="privacy needs it", next="pip install 'joulelab[snmp]'"
        )
    return rfc1902.OctetString, localkey, ciphers


@lru_cache(maxsize=64)
def _hashed(auth: str, password: str) -> Any:
    """Return the key of a password; it takes a megabyte of hashing, and many devices share one."""
    _, localkey, _ = _services()
    return localkey.hash_passphrase(password.encode(), AUTH[auth][0])


class Usm:
    """Frame requests for one device and open its answers.

    `engine` is the device's id, empty until `learn` took it from a report.
    """

    def __init__(self, user: User) -> None:
        self.user = user
        self.engine = b""
        self._boots = self._time = 0
        self._at_ns = 0
        self._auth_key = b""
        self._priv_key: Any = None
        self._cipher: Any = None

    def learn(self, engine: bytes, boots: int, time: int) -> None:
        """Take over id and clock of the device's engine, and make the keys for it."""
        if engine != self.engine:
            self.engine = engine
            self._make_keys()
        self._boots, self._time, self._at_ns = boots, time, monotonic_ns()

    def _make_keys(self) -> None:
        if not self.user.auth:
            return
        octet_string, localkey, ciphers = _services()
        digest, _, number = AUTH[self.user.auth]
        engine = octet_string(self.engine)
        key = localkey.localize_key(_hashed(self.user.auth, self.user.auth_password), engine, digest)
        self._auth_key = key.asOctets()
        if self.user.priv:
            self._cipher = ciphers[self.user.priv]()
            protocol = (1, 3, 6, 1, 6, 3, 10, 1, 1, number)
            hashed = _hashed(self.user.auth, self.user.priv_password)
            self._priv_key = octet_string(self._cipher.localize_key(protocol, hashed, engine))

    def frame(self, pdu: bytes, message_id: int, *, discover: bool = False) -> bytes:
        """Return the message for a request; `discover` asks an unknown device who it is."""
        flags = _REPORTABLE | (0 if discover else self.user.flags)
        engine, name = (b"", b"") if discover else (self.engine, self.user.name.encode())
        boots, time = (0, 0) if discover else self._clock()
        scoped = ber.wrap(ber.SEQUENCE, ber.wrap(ber.OCTETS, engine) + b"\x04\x00" + pdu)
        salt = b""
        if flags & _PRIV_FLAG:
            cipher, used = self._cipher.encrypt_data(self._priv_key, (boots, time, None), scoped)
            scoped, salt = ber.wrap(ber.OCTETS, bytes(cipher)), bytes(used)
        digest = bytes(AUTH[self.user.auth][1]) if flags & _AUTH_FLAG else b""
        after = ber.wrap(ber.OCTETS, salt)
        inner = ber.wrap(ber.OCTETS, engine) + ber.integer(boots) + ber.integer(time) + ber.wrap(ber.OCTETS, name)
        security = ber.wrap(ber.OCTETS, ber.wrap(ber.SEQUENCE, inner + ber.wrap(ber.OCTETS, digest) + after))
        head = ber.integer(message_id) + ber.integer(_MAX_BYTES) + ber.wrap(ber.OCTETS, bytes((flags,)))
        whole = ber.wrap(
            ber.SEQUENCE, ber.integer(3) + ber.wrap(ber.SEQUENCE, head + ber.integer(3)) + security + scoped
        )
        if not digest:
            return whole
        at = len(whole) - len(scoped) - len(after) - len(digest)
        return whole[:at] + self._mac(whole) + whole[at + len(digest) :]

    def open(self, data: bytes, message_id: int) -> tuple[ber.Pdu, Security] | None:
        """Return the answer in a message, None if it belongs to another request. Raises ReadFailed."""
        message = _Message.read(data)
        if message.message_id != message_id:
            return None
        security, flags = message.security, message.flags
        if flags & _AUTH_FLAG:
            self._check(data, message)
        at, end, scoped = message.scoped_at, message.end, data
        if flags & _PRIV_FLAG:
            if not self.user.priv or not flags & _AUTH_FLAG:
                raise ber.malformed("it is encrypted, the request was not")
            secret, stop = ber.octets(data, at, end)
            if stop != end:
                raise ber.malformed("something follows it")
            scoped = self._decrypted(secret, security)
            at, end = 0, len(scoped)
        at, stop = ber.expect(scoped, at, end, ber.SEQUENCE)
        if stop != end and not flags & _PRIV_FLAG:
            raise ber.malformed("something follows it")
        _, at = ber.octets(scoped, at, stop)
        _, at = ber.octets(scoped, at, stop)
        answer = ber.pdu(scoped, at, stop)
        if answer.tag == ber.RESPONSE:
            if (flags & 3) != self.user.flags:
                raise ber.malformed("it is less secure than the request")
            if flags & _AUTH_FLAG:
                self._keep_time(security)
        return answer, security

    def _check(self, data: bytes, message: _Message) -> None:
        """Verify that the device made the message. Raises ReadFailed."""
        security = message.security
        if not self.user.auth or security.engine != self.engine or not self.engine:
            raise ber.malformed("it comes from another device")
        size = AUTH[self.user.auth][1]
        if len(security.digest) != size:
            raise ber.malformed("its digest has another length")
        at = message.digest_at
        if not hmac.compare_digest(self._mac(data[:at] + bytes(size) + data[at + size :]), security.digest):
            raise ber.malformed("its digest is wrong: changed on the way, or another password")

    def _keep_time(self, security: Security) -> None:
        """Follow the device's clock; refuse what is older than it allows. Raises ReadFailed.

        Reports are exempt: a device that restarted with its clock set back says so by one.
        """
        boots, time = self._clock()
        if security.boots > boots:
            self.learn(self.engine, security.boots, security.time)
        elif security.boots == boots and security.time > time:
            self._time, self._at_ns = security.time, monotonic_ns()
        elif security.boots < boots or security.time < time - _WINDOW_S:
            raise ber.malformed("it is an old one, sent again")

    def _decrypted(self, secret: bytes, security: Security) -> bytes:
        octet_string, _, _ = _services()
        if len(security.salt) != 8:
            raise ber.malformed("its salt has another length")
        clock = (security.boots, security.time, list(security.salt))
        return bytes(self._cipher.decrypt_data(self._priv_key, clock, octet_string(secret)))

    def _mac(self, whole: bytes) -> bytes:
        digest, size, _ = AUTH[self.user.auth]
        return hmac.digest(self._auth_key, whole, digest)[:size]

    def _clock(self) -> tuple[int, int]:
        return self._boots, self._time + (monotonic_ns() - self._at_ns) // NS


@dataclass(frozen=True, slots=True)
class Security:
    """Hold the security parameters of a message."""

    engine: bytes
    boots: int
    time: int
    digest: bytes
    salt: bytes


@dataclass(frozen=True, slots=True)
class _Message:
    """Hold the frame of a message: where its digest and its scoped PDU are."""

    message_id: int
    flags: int
    security: Security
    digest_at: int
    scoped_at: int
    end: int

    @classmethod
    def read(cls, data: bytes) -> _Message:
        """Read the frame. Raises ReadFailed."""
        at, end = ber.expect(data, 0, len(data), ber.SEQUENCE)
        if end != len(data):
            raise ber.malformed("something follows it")
        version, at = ber.small(data, at, end)
        if version != 3:
            raise ber.malformed("it is not of version 3")
        at, stop = ber.expect(data, at, end, ber.SEQUENCE)
        message_id, at = ber.small(data, at, stop)
        _, at = ber.small(data, at, stop)
        flags, at = ber.octets(data, at, stop)
        model, at = ber.small(data, at, stop)
        if len(flags) != 1 or model != 3 or at != stop:
            raise ber.malformed("its header is not one of this security model")
        at, scoped_at = ber.expect(data, at, end, ber.OCTETS)
        at, stop = ber.expect(data, at, scoped_at, ber.SEQUENCE)
        engine, at = ber.octets(data, at, stop)
        boots, at = ber.small(data, at, stop)
        time, at = ber.small(data, at, stop)
        _, at = ber.octets(data, at, stop)
        digest, at = ber.octets(data, at, stop)
        digest_at = at - len(digest)
        salt, at = ber.octets(data, at, stop)
        if at != stop or stop != scoped_at or min(boots, time) < 0:
            raise ber.malformed("its security parameters are not whole")
        return cls(message_id, flags[0], Security(engine, boots, time, digest, salt), digest_at, scoped_at, end)


def refusal(stat: int, user: User) -> Denied | ReadFailed:
    """Return what a report of the security model means, in words."""
    level = "authPriv" if user.priv else "authNoPriv" if user.auth else "noAuthNoPriv"
    meanings = {
        UNKNOWN_USER: (f"the device knows no user {user.name!r}", "it counted an unknown user name"),
        WRONG_DIGEST: ("the authentication password or protocol is wrong", "it counted a wrong digest"),
        DECRYPTION: ("the privacy password or protocol is wrong", "it could not decrypt the request"),
        UNSUPPORTED_LEVEL: (f"user {user.name!r} may not speak {level}", "the device refuses this security level"),
    }
    if stat not in meanings:
        return ReadFailed("the device refused the message", why=f"its report has the number {stat}")
    what, why = meanings[stat]
    return Denied(what, why=why, next="compare user, auth, password and privacy with the device's SNMPv3 settings")
