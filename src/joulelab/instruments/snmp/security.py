"""Frame SNMP messages and open the answers: communities (v1, v2c) and users (v3, the user-based security model).

An answer of v3 is read only if its digest, its level and its time are right (RFC 3414).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, Denied, MissingDependency, ReadFailed
from joulelab.instruments.snmp import ber
from joulelab.instruments.snmp.ber import refuse_answer

# Hash, and bytes of the digest that are sent (RFC 3414, RFC 7860).
AUTH = {
    "MD5": (hashlib.md5, 12),
    "SHA": (hashlib.sha1, 12),
    "SHA224": (hashlib.sha224, 16),
    "SHA256": (hashlib.sha256, 24),
    "SHA384": (hashlib.sha384, 32),
    "SHA512": (hashlib.sha512, 48),
}
# Bytes of the key. The C forms lengthen a short key as Cisco and others do (Reeder), the plain ones as net-snmp does
# (Blumenthal).
PRIV = {"AES": 16, "AES192": 24, "AES256": 32, "AES192C": 24, "AES256C": 32}
# Counters of the security model that a report names.
STATS = "1.3.6.1.6.3.15.1.1."
UNSUPPORTED_LEVEL, NOT_IN_TIME, UNKNOWN_USER, UNKNOWN_ENGINE, WRONG_DIGEST, DECRYPTION = range(1, 7)
_WINDOW_S = 150
_AUTH_FLAG, _PRIV_FLAG, _REPORTABLE = 1, 2, 4
_MAX_BYTES = 65_507
_PASSWORD_CHARS = 8
_HASHED_BYTES = 1 << 20
_SALT_BYTES = 8


@dataclass(frozen=True, slots=True)
class Community:
    """Hold the community of v1 (version 0) or v2c (version 1)."""

    name: str = field(repr=False)
    version: int = 1


@dataclass(frozen=True, slots=True)
class User:
    """Hold a user of v3. Raises ConfigError for what does not fit."""

    name: str
    auth: str = ""
    auth_password: str = field(default="", repr=False)
    priv: str = ""
    priv_password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for key, chosen, known in (("auth", self.auth, AUTH), ("privacy", self.priv, PRIV)):
            if chosen and chosen not in known:
                advice = f"valid: {', '.join(known)}"
                raise ConfigError(f"{key} is {chosen!r}", where="snmp", next=advice, code="config.protocol")
        if self.priv and not self.auth:
            what = "privacy needs authentication"
            raise ConfigError(what, where="snmp", next="set auth and password too", code="config.protocol")
        for chosen, password in ((self.auth, self.auth_password), (self.priv, self.priv_password)):
            if chosen and len(password) < _PASSWORD_CHARS:
                what = "a password of SNMPv3 has at least 8 characters"
                raise ConfigError(what, where="snmp", next="check it", code="config.password")

    @property
    def flags(self) -> int:
        """Return the security level as messages name it."""
        return (_AUTH_FLAG if self.auth else 0) | (_PRIV_FLAG if self.priv else 0)


class CommunitySecurity:
    """Frame requests of v1 and v2c, which have no protection."""

    def __init__(self, community: Community) -> None:
        self._community = community

    def frame_request(self, pdu: bytes, _message_id: int) -> bytes:
        """Return the message for a request, which has the id itself."""
        secret = ber.encode_element(ber.OCTETS, self._community.name.encode())
        return ber.encode_element(ber.SEQUENCE, ber.encode_integer(self._community.version) + secret + pdu)

    def open_answer(self, data: bytes, message_id: int) -> tuple[ber.Pdu, None] | None:
        """Return the answer in a message, None if it belongs to another request. Raises ReadFailed."""
        at, end = ber.expect_last(data, 0, len(data), ber.SEQUENCE), len(data)
        version, at = ber.read_integer(data, at, end)
        if version != self._community.version:
            raise refuse_answer("it is of another version of SNMP")
        _, at = ber.read_octets(data, at, end)
        answer = ber.decode_pdu(data, at, end)
        if answer.tag != ber.RESPONSE:
            raise refuse_answer("it is a report")
        return (answer, None) if answer.request_id == message_id else None


# Keys and ciphers.


@lru_cache(maxsize=64)
def _hash_password(auth: str, password: bytes) -> bytes:
    """Return the key of a password: the hash of a megabyte of its repetitions. Many devices share one."""
    repeated = password * (_HASHED_BYTES // len(password) + 1)
    return AUTH[auth][0](repeated[:_HASHED_BYTES]).digest()


def _localize_key(auth: str, key: bytes, engine: bytes) -> bytes:
    return AUTH[auth][0](key + engine + key).digest()


def make_privacy_key(user: User, engine: bytes) -> bytes:
    """Return the key that encrypts messages of a user to a device."""
    size = PRIV[user.priv]
    key = _localize_key(user.auth, _hash_password(user.auth, user.priv_password.encode()), engine)
    while len(key) < size:
        if user.priv.endswith("C"):
            key += _localize_key(user.auth, _hash_password(user.auth, key), engine)
        else:
            key += AUTH[user.auth][0](key).digest()
    return key[:size]


@lru_cache(maxsize=1)
def _load_ciphers() -> tuple[Any, Any, Any]:
    """Return Cipher, AES and its mode CFB of cryptography. Raises MissingDependency."""
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError as error:
        raise MissingDependency(
            "cryptography is not installed",
            where="snmp",
            why=str(error),
            next="pip install 'joulelab[snmp]'",
            code="missing-dependency.cryptography",
        ) from None
    try:
        from cryptography.hazmat.decrepit.ciphers.modes import CFB
    except ImportError:  # before cryptography 47
        from cryptography.hazmat.primitives.ciphers.modes import CFB
    return Cipher, algorithms.AES, CFB


def _make_cipher(key: bytes, boots: int, time: int, salt: bytes) -> Any:
    """Return the cipher of one message (RFC 3826). Raises MissingDependency."""
    cipher, aes, cfb = _load_ciphers()
    return cipher(aes(key), cfb(boots.to_bytes(4, "big") + time.to_bytes(4, "big") + salt))


class UserSecurity:
    """Frame requests of v3 for one device and open its answers.

    `engine` is the device's id, empty until `follow_engine` took it from a report.
    """

    def __init__(self, user: User) -> None:
        self.user = user
        self.engine = b""
        self._boots = self._time = 0
        self._at_ns = 0
        self._auth_key = self._priv_key = b""
        self._salt = secrets.randbits(8 * _SALT_BYTES)

    def follow_engine(self, engine: bytes, boots: int, time: int) -> None:
        """Take over id and clock of the device's engine, and make the keys for it. Raises MissingDependency."""
        if engine != self.engine:
            user, self.engine = self.user, engine
            if user.auth:
                self._auth_key = _localize_key(
                    user.auth, _hash_password(user.auth, user.auth_password.encode()), engine
                )
            if user.priv:
                self._priv_key = make_privacy_key(user, engine)
        self._boots, self._time, self._at_ns = boots, time, monotonic_ns()

    def frame_request(self, pdu: bytes, message_id: int, *, discover: bool = False) -> bytes:
        """Return the message for a request; `discover` asks an unknown device for its id, without a login."""
        flags = _REPORTABLE | (0 if discover else self.user.flags)
        engine, name = (b"", b"") if discover else (self.engine, self.user.name.encode())
        boots, time = (0, 0) if discover else self._read_clock()
        wrap, octets, number = ber.encode_element, ber.OCTETS, ber.encode_integer
        scoped = wrap(ber.SEQUENCE, wrap(octets, engine) + b"\x04\x00" + pdu)
        salt = b""
        if flags & _PRIV_FLAG:
            self._salt = (self._salt + 1) % (1 << 8 * _SALT_BYTES)
            salt = self._salt.to_bytes(_SALT_BYTES, "big")
            scoped = wrap(octets, _make_cipher(self._priv_key, boots, time, salt).encryptor().update(scoped))
        digest = bytes(AUTH[self.user.auth][1]) if flags & _AUTH_FLAG else b""
        after = wrap(octets, salt)
        inner = wrap(octets, engine) + number(boots) + number(time) + wrap(octets, name) + wrap(octets, digest) + after
        head = number(message_id) + number(_MAX_BYTES) + wrap(octets, bytes((flags,))) + number(3)
        parts = number(3) + wrap(ber.SEQUENCE, head) + wrap(octets, wrap(ber.SEQUENCE, inner)) + scoped
        whole = wrap(ber.SEQUENCE, parts)
        if not digest:
            return whole
        at = len(whole) - len(scoped) - len(after) - len(digest)
        return whole[:at] + self._sign_message(whole) + whole[at + len(digest) :]

    def open_answer(self, data: bytes, message_id: int) -> tuple[ber.Pdu, UserMessage] | None:
        """Return the answer in a message, None if it belongs to another request. Raises ReadFailed."""
        message = UserMessage.decode(data)
        if message.message_id != message_id:
            return None
        flags = message.flags
        if flags & _AUTH_FLAG:
            self._check_digest(data, message)
        at, end, scoped = message.scoped_at, len(data), data
        if flags & _PRIV_FLAG:
            if not self.user.priv or not flags & _AUTH_FLAG:
                raise refuse_answer("it is encrypted, the request was not")
            if len(message.salt) != _SALT_BYTES:
                raise refuse_answer("its salt has another length")
            secret = data[ber.expect_last(data, at, end, ber.OCTETS) : end]
            cipher = _make_cipher(self._priv_key, message.boots, message.time, message.salt)
            scoped = cipher.decryptor().update(secret)
            at, end = ber.expect_element(scoped, 0, len(scoped), ber.SEQUENCE)  # padding may follow
        else:
            at = ber.expect_last(data, at, end, ber.SEQUENCE)
        _, at = ber.read_octets(scoped, at, end)
        _, at = ber.read_octets(scoped, at, end)
        answer = ber.decode_pdu(scoped, at, end)
        if answer.tag == ber.RESPONSE:
            if (flags & 3) != self.user.flags:
                raise refuse_answer("it is less secure than the request")
            if flags & _AUTH_FLAG:
                self._check_time(message)
        return answer, message

    def _check_digest(self, data: bytes, message: UserMessage) -> None:
        """Verify that the device made the message. Raises ReadFailed."""
        if not self.user.auth or message.engine != self.engine or not self.engine:
            raise refuse_answer("it comes from another device")
        size, at = AUTH[self.user.auth][1], message.digest_at
        if len(message.digest) != size:
            raise refuse_answer("its digest has another length")
        unsigned = data[:at] + bytes(size) + data[at + size :]
        if not hmac.compare_digest(self._sign_message(unsigned), message.digest):
            raise refuse_answer("its digest is wrong: changed on the way, or another password")

    def _check_time(self, message: UserMessage) -> None:
        """Follow the device's clock; refuse what is older than it allows. Raises ReadFailed.

        Reports are exempt: a device that restarted with its clock set back sends one.
        """
        boots, time = self._read_clock()
        if message.boots > boots or (message.boots == boots and message.time > time):
            self._boots, self._time, self._at_ns = message.boots, message.time, monotonic_ns()
        elif message.boots < boots or message.time < time - _WINDOW_S:
            raise refuse_answer("it is an old one, sent again")

    def _sign_message(self, whole: bytes) -> bytes:
        digest, size = AUTH[self.user.auth]
        return hmac.digest(self._auth_key, whole, digest)[:size]

    def _read_clock(self) -> tuple[int, int]:
        return self._boots, self._time + (monotonic_ns() - self._at_ns) // NS


@dataclass(frozen=True, slots=True)
class UserMessage:
    """Hold the frame of a message of v3: id and clock of its engine, where its digest and its scoped PDU are."""

    message_id: int
    flags: int
    engine: bytes
    boots: int
    time: int
    digest: bytes
    salt: bytes
    digest_at: int
    scoped_at: int

    @classmethod
    def decode(cls, data: bytes) -> UserMessage:
        """Read the frame. Raises ReadFailed."""
        at, end = ber.expect_last(data, 0, len(data), ber.SEQUENCE), len(data)
        version, at = ber.read_integer(data, at, end)
        if version != 3:
            raise refuse_answer("it is of another version of SNMP")
        at, stop = ber.expect_element(data, at, end, ber.SEQUENCE)
        message_id, at = ber.read_integer(data, at, stop)
        _, at = ber.read_integer(data, at, stop)
        flags, at = ber.read_octets(data, at, stop)
        model, at = ber.read_integer(data, at, stop)
        if len(flags) != 1 or model != 3 or at != stop:
            raise refuse_answer("its header is not one of this security model")
        at, stop = ber.expect_element(data, stop, end, ber.OCTETS)
        at = ber.expect_last(data, at, stop, ber.SEQUENCE)
        engine, at = ber.read_octets(data, at, stop)
        boots, at = ber.read_integer(data, at, stop)
        time, at = ber.read_integer(data, at, stop)
        _, at = ber.read_octets(data, at, stop)
        digest, digest_end = ber.read_octets(data, at, stop)
        salt, at = ber.read_octets(data, digest_end, stop)
        if at != stop or min(boots, time) < 0:
            raise refuse_answer("its security parameters are not whole")
        return cls(message_id, flags[0], engine, boots, time, digest, salt, digest_end - len(digest), stop)


def explain_report(stat: int, user: User) -> Denied | ReadFailed:
    """Return the error that a report of the security model means."""
    level = "authPriv" if user.priv else "authNoPriv" if user.auth else "noAuthNoPriv"
    meanings = {
        UNKNOWN_USER: ("user", f"the device knows no user {user.name!r}", "it counted an unknown user name"),
        WRONG_DIGEST: ("password", "the authentication password or protocol is wrong", "it counted a wrong digest"),
        DECRYPTION: ("privacy", "the privacy password or protocol is wrong", "it could not decrypt the request"),
        UNSUPPORTED_LEVEL: ("level", f"user {user.name!r} may not use {level}", "the device refuses this level"),
    }
    if stat not in meanings:
        why = f"its report has the number {stat}"
        return ReadFailed("the device refused the message", why=why, code="read-failed.refused")
    reason, what, why = meanings[stat]
    advice = "compare user, auth, password and privacy with the device's SNMPv3 settings"
    return Denied(what, why=why, next=advice, code=f"denied.{reason}")
