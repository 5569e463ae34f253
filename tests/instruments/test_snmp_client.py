"""The SNMP client against pysnmp's own encoder and decoder, and agents that answer wrongly."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time

import pytest
from tests.codes import raises_code
from tests.rows import every_row
from tests.waiting import until

from joulelab.core.errors import ConfigError, ReadFailed
from joulelab.instruments.snmp import ber
from joulelab.instruments.snmp.client import MISSING, SENDS, Community, Name, Session, User
from joulelab.instruments.snmp.security import AUTH, PRIV, CommunitySecurity, UserSecurity, make_privacy_key

pytest.importorskip("pysnmp", reason="pip install 'joulelab[dev]'")

from pyasn1.codec.ber import decoder, encoder
from pyasn1.error import PyAsn1Error
from pysnmp.proto.api import v2c
from pysnmp.proto.rfc1902 import OctetString
from pysnmp.proto.rfc1905 import EndOfMibView, NoSuchInstance, NoSuchObject

from pysnmp.proto.secmod.rfc3414 import localkey  # isort: skip
from pysnmp.proto.secmod.eso.priv import aes192, aes256  # isort: skip
from pysnmp.proto.secmod.rfc3826.priv import aes  # isort: skip

BASE = "1.3.6.1.4.1.13742.6.5.4.3.1.4"
USER = User("meter", "SHA", "a password", "AES", "another one")
ENGINE = bytes.fromhex("80001f8804aabbccdd")
PLAIN = CommunitySecurity(Community("public"))


def message(request_id, pairs, *, status=0, index=0, community="public"):
    """Encode a response by pysnmp."""
    pdu = v2c.ResponsePDU()
    v2c.apiPDU.set_defaults(pdu)
    v2c.apiPDU.set_request_id(pdu, request_id)
    v2c.apiPDU.set_error_status(pdu, status)
    v2c.apiPDU.set_error_index(pdu, index)
    v2c.apiPDU.set_varbinds(pdu, [(tuple(map(int, oid.split("."))), value) for oid, value in pairs])
    whole = v2c.Message()
    v2c.apiMessage.set_defaults(whole)
    v2c.apiMessage.set_community(whole, community)
    v2c.apiMessage.set_pdu(whole, pdu)
    return encoder.encode(whole)


def decoded(data):
    """Decode a response by pysnmp: request id, status, and pairs of dotted name and plain value."""
    whole, rest = decoder.decode(data, asn1Spec=v2c.Message())
    assert not rest
    pdu = v2c.apiMessage.get_pdu(whole)
    pairs = [(str(oid), plain(value)) for oid, value in v2c.apiPDU.get_varbinds(pdu)]
    return int(v2c.apiPDU.get_request_id(pdu)), int(v2c.apiPDU.get_error_status(pdu)), pairs


def plain(value):
    if isinstance(value, (NoSuchInstance, NoSuchObject, EndOfMibView)):
        return MISSING
    if isinstance(value, v2c.Null):
        return None
    if isinstance(value, v2c.ObjectIdentifier):
        return Name(str(value))
    return value.asOctets() if hasattr(value, "asOctets") else int(value)


PAIRS = [
    (f"{BASE}.1.1.5", v2c.Unsigned32(1164)),
    (f"{BASE}.1.1.8", v2c.Gauge32(4294967295)),
    (f"{BASE}.1.2.5", v2c.Integer(-1)),
    ("1.3.6.1.2.1.1.1.0", v2c.OctetString("PX3")),
    ("1.3.6.1.2.1.1.2.0", v2c.ObjectIdentifier("1.3.6.1.4.1.13742.6")),
    ("2.999.3.16384", v2c.Counter64(2**64 - 1)),
]


def test_an_answer_reads_as_pysnmp_wrote_it():
    data = message(77, [*PAIRS, ("1.3.6.1.9", NoSuchInstance("")), ("1.3.6.1.10", EndOfMibView(""))])
    answer, _ = PLAIN.open_answer(data, 77)
    assert [ber.decode_oid(name) for name in answer.names][:3] == [f"{BASE}.1.1.5", f"{BASE}.1.1.8", f"{BASE}.1.2.5"]
    texts = [b"PX3", Name("1.3.6.1.4.1.13742.6"), 2**64 - 1, MISSING, MISSING]
    assert answer.values == [1164, 4294967295, -1, *texts]
    assert PLAIN.open_answer(data, 78) is None


def test_a_request_reads_by_pysnmp_as_we_wrote_it():
    names = ber.encode_names([ber.encode_oid(oid) for oid, _ in PAIRS])
    body = ber.encode_request(ber.GET_BULK, 12345, names, 20)
    data = ber.encode_element(0x30, b"\x02\x01\x01\x04\x06public" + body)
    whole, rest = decoder.decode(data, asn1Spec=v2c.Message())
    pdu = v2c.apiMessage.get_pdu(whole)
    assert not rest
    assert pdu.__class__ is v2c.GetBulkRequestPDU
    assert int(v2c.apiBulkPDU.get_max_repetitions(pdu)) == 20
    assert [str(oid) for oid, _ in v2c.apiBulkPDU.get_varbinds(pdu)] == [oid for oid, _ in PAIRS]


def mutated(rng, data):
    """Return an answer with some bytes changed, cut, doubled or put in, or noise."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(120))
    out = bytearray(data)
    if kind == 1:
        return bytes(out[: rng.randrange(len(out))])
    if kind == 2:
        at = rng.randrange(len(out))
        out[at:at] = rng.randbytes(rng.randrange(1, 5))
    elif kind == 3:
        at = rng.randrange(len(out))
        del out[at : at + rng.randrange(1, 4)]
    else:
        for _ in range(rng.randrange(1, 4)):
            out[rng.randrange(len(out))] = rng.choice((0, 0x30, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(out)


@pytest.mark.parametrize("rounds", [1_200, pytest.param(12_000, marks=pytest.mark.campaign)])
def test_broken_answers_are_refused_or_read_as_pysnmp_reads_them(rounds):
    # Version 2c has no checksum: a changed digit is another right answer. A wrong number is one that pysnmp's own
    # decoder does not find in the same bytes under the same name, or one that belongs to another request.
    rng = random.Random(3)
    originals = [message(77, PAIRS[:3]), message(77, PAIRS[2:]), message(77, PAIRS[:1], status=5, index=1)]
    refused = others = compared = 0
    for _ in range(rounds):
        data = mutated(rng, rng.choice(originals))
        try:
            found = PLAIN.open_answer(data, 77)
            names = [ber.decode_oid(name) for name in found[0].names] if found else []  # as whoever reads them does
        except ReadFailed:
            refused += 1
            continue
        if found is None:
            others += 1
            continue
        answer = found[0]
        request_id, status, pairs = decoded(data)
        assert (request_id, status) == (77, answer.status)
        assert list(zip(names, answer.values, strict=True)) == pairs
        compared += 1
    assert refused > 6_000 * rounds / 12_000
    assert others >= 10 * rounds / 12_000
    assert compared > 500 * rounds / 12_000


def usm(user=USER, *, boots=3, time_s=1000):
    made = UserSecurity(user)
    made.follow_engine(ENGINE, boots, time_s)
    return made


def response(pairs):
    whole, _ = decoder.decode(message(77, pairs), asn1Spec=v2c.Message())
    return encoder.encode(v2c.apiMessage.get_pdu(whole))


@every_row("auth", AUTH)
def test_a_secured_answer_opens_for_who_has_the_keys(auth):
    user = User("meter", auth, "a password", "AES256", "another one")
    data = usm(user).frame_request(response(PAIRS), 77)
    answer, security = usm(user).open_answer(data, 77)
    assert answer.values[:3] == [1164, 4294967295, -1]
    assert (security.engine, security.boots) == (ENGINE, 3)
    assert b"PX3" not in data
    other = User("meter", auth, "a wrong password", "AES256", "another one")
    with pytest.raises(ReadFailed, match="digest"):
        usm(other).open_answer(data, 77)


@pytest.mark.parametrize("auth", AUTH)
@pytest.mark.parametrize("priv", PRIV)
def test_keys_are_those_of_pysnmp(auth, priv):
    ciphers = {"AES": aes.Aes, "AES192": aes192.AesBlumenthal192, "AES256": aes256.AesBlumenthal256}
    ciphers |= {"AES192C": aes192.Aes192, "AES256C": aes256.Aes256}
    protocol = (1, 3, 6, 1, 6, 3, 10, 1, 1, 2 + list(AUTH).index(auth))
    hashed = localkey.hash_passphrase(b"another one", AUTH[auth][0])
    theirs = OctetString(ciphers[priv]().localize_key(protocol, hashed, OctetString(ENGINE))).asOctets()
    assert make_privacy_key(User("meter", auth, "a password", priv, "another one"), ENGINE) == theirs


def test_an_old_or_less_secure_answer_is_refused():
    data = usm().frame_request(response(PAIRS), 77)
    with pytest.raises(ReadFailed, match="old"):
        usm(boots=4).open_answer(data, 77)
    with pytest.raises(ReadFailed, match="old"):
        usm(time_s=1200).open_answer(data, 77)
    weaker = usm(User("meter", "SHA", "a password")).frame_request(response(PAIRS), 77)
    with pytest.raises(ReadFailed, match="less secure"):
        usm().open_answer(weaker, 77)


@pytest.mark.parametrize("rounds", [1_000, pytest.param(10_000, marks=pytest.mark.campaign)])
def test_no_broken_secured_answer_is_read(rounds):
    # Here a wrong number is any: the digest covers every byte, so nothing but the original may be read.
    rng = random.Random(4)
    original = usm().frame_request(response(PAIRS[:3]), 77)
    reader = usm()
    for _ in range(rounds):
        data = mutated(rng, original)
        with contextlib.suppress(ReadFailed):
            found = reader.open_answer(data, 77)
            assert found is None or data == original or found[0].tag == ber.REPORT
    assert reader.open_answer(original, 77) is not None


def test_users_that_do_not_fit_are_refused():
    for wrong in (
        {"auth": "SHA3"},
        {"auth": "SHA", "auth_password": "short"},
        {"priv": "AES", "priv_password": "x" * 9},
    ):
        with pytest.raises(ConfigError):
            User("meter", **wrong)
    assert "a password" not in repr(USER)
    assert "another one" not in repr(USER)
    assert "secret" not in repr(Community("secret"))


class Agent:
    """Answer requests as a function says: it gets the PDU's kind, id and names, and returns datagrams."""

    def __init__(self, answer):
        self._answer = answer
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.asked = 0

    def __enter__(self):
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.sendto(b"end", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()

    def _run(self):
        while True:
            data, client = self._socket.recvfrom(65535)
            if data == b"end":
                return
            try:
                whole, _ = decoder.decode(data, asn1Spec=v2c.Message())
            except PyAsn1Error:
                continue  # SNMPv3
            self.asked += 1
            pdu = v2c.apiMessage.get_pdu(whole)
            self.kind = type(pdu).__name__
            names = [str(oid) for oid, _ in v2c.apiPDU.get_varbinds(pdu)]
            for answer in self._answer(int(v2c.apiPDU.get_request_id(pdu)), names):
                self._socket.sendto(answer, client)


def session(port, timeout_s=60.0, **options):
    return Session("127.0.0.1", port, Community("public"), timeout_s=timeout_s, where="pdu1", **options)


def numbered(names):
    return [(oid, v2c.Integer(int(oid.rsplit(".", 1)[1]))) for oid in names]


@pytest.mark.system
def test_strange_datagrams_before_the_answer_do_no_harm():
    def answer(request_id, names):
        late = message(request_id - 1, [(oid, v2c.Integer(666)) for oid in names])
        return [b"", b"noise", late, message(request_id, numbered(names))]

    with Agent(answer) as agent, contextlib.closing(session(agent.port)) as asking:
        assert asking.get([f"{BASE}.{n}" for n in range(3)]) == [0, 1, 2]


@pytest.mark.system
def test_values_under_other_names_are_refused():
    def answer(request_id, names):
        return [message(request_id, numbered(list(reversed(names))))]

    with (
        Agent(answer) as agent,
        contextlib.closing(session(agent.port)) as asking,
        raises_code("read-failed.malformed"),
    ):
        asking.get([f"{BASE}.1", f"{BASE}.2"])


@pytest.mark.system
def test_what_does_not_fit_is_asked_in_parts():
    def answer(request_id, names):
        if len(names) > 7:
            return [message(request_id, numbered(names), status=1)]
        return [message(request_id, numbered(names))]

    with Agent(answer) as agent, contextlib.closing(session(agent.port)) as asking:
        assert asking.get([f"{BASE}.{n}" for n in range(100)]) == list(range(100))
        before = agent.asked
        assert asking.get([f"{BASE}.{n}" for n in range(5)]) == list(range(5))
        assert agent.asked == before + 1


@pytest.mark.system
def test_forty_values_come_in_one_datagram():
    with (
        Agent(lambda i, names: [message(i, numbered(names))]) as agent,
        contextlib.closing(session(agent.port)) as asking,
    ):
        assert asking.get([f"{BASE}.{n}" for n in range(40)]) == list(range(40))
        assert agent.asked == 1


@pytest.mark.system
def test_silence_and_closed_ports_are_told_apart():
    with Agent(lambda *_: []) as agent, contextlib.closing(session(agent.port, 0.2)) as asking:
        begin = time.monotonic()
        with raises_code("read-failed.no-answer"):
            asking.get([f"{BASE}.1"])
        assert time.monotonic() - begin > 0.15
        until(lambda: agent.asked == SENDS, "what may have been lost is sent again")
        port = agent.port
    with contextlib.closing(session(port)) as asking, raises_code("read-failed.port-closed"):
        asking.get([f"{BASE}.1"])
    gone = Session("no-such-host.invalid", 161, Community("x"), timeout_s=60, where="pdu1")
    with raises_code("read-failed.unresolved"):
        gone.get([f"{BASE}.1"])


@pytest.mark.system
def test_a_request_that_was_lost_is_sent_again():
    seen = []

    def answer(request_id, names):
        seen.append(request_id)
        return [message(request_id, numbered(names))] if seen.count(request_id) > 1 else []

    with Agent(answer) as agent, contextlib.closing(session(agent.port, 4.0)) as asking:
        assert asking.get([f"{BASE}.1", f"{BASE}.2"]) == [1, 2]


@pytest.mark.system
def test_only_garbage_says_so():
    with (
        Agent(lambda *_: [b"\x30\x03\x02\x01"]) as agent,
        contextlib.closing(session(agent.port, 2.0)) as asking,
        raises_code("read-failed.malformed"),
    ):
        asking.get([f"{BASE}.1"])


@pytest.mark.system
@pytest.mark.parametrize(("status", "code"), [(5, "read-failed.refused"), (16, "denied.access"), (6, "denied.access")])
def test_errors_of_the_agent_name_object_and_device(status, code):
    with (
        Agent(lambda i, names: [message(i, numbered(names), status=status, index=1)]) as agent,
        contextlib.closing(session(agent.port)) as asking,
        raises_code(code) as raised,
    ):
        asking.get([f"{BASE}.1"])
    assert f"{BASE}.1" in str(raised.value)
    assert "pdu1" in str(raised.value)


@pytest.mark.system
def test_a_walk_ends_where_the_column_ends_and_refuses_errors_and_circles():
    column = {f"{BASE}.{n}": n for n in range(1, 46)}

    def after(name, count):
        start = int(name.rsplit(".", 1)[1]) if name != BASE else 0
        rows = [(f"{BASE}.{n}", v2c.Integer(column[f"{BASE}.{n}"])) for n in range(start + 1, 46)]
        return (rows + [("1.3.6.1.4.1.13742.7", v2c.Integer(9))] * count)[:count]

    with (
        Agent(lambda i, names: [message(i, after(names[0], 20))]) as agent,
        contextlib.closing(session(agent.port)) as asking,
    ):
        assert asking.walk(BASE) == [(str(n), n) for n in range(1, 46)]

    def answer_singly(request_id, names):
        in_bulk = agent.kind == "GetBulkRequestPDU"
        return [message(request_id, [], status=5) if in_bulk else message(request_id, after(names[0], 1))]

    with Agent(answer_singly) as agent, contextlib.closing(session(agent.port)) as asking:
        assert asking.walk(BASE) == [(str(n), n) for n in range(1, 46)]
    with (
        Agent(lambda i, _: [message(i, [], status=5)]) as agent,
        contextlib.closing(session(agent.port)) as asking,
        raises_code("read-failed.refused"),
    ):
        asking.walk(BASE)
    with (
        Agent(lambda i, names: [message(i, [(f"{BASE}.4", v2c.Integer(1))] * 2)]) as agent,
        contextlib.closing(session(agent.port)) as asking,
        raises_code("read-failed.order"),
    ):
        asking.walk(BASE)
