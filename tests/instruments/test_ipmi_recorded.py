"""The BMC's meter on written exchanges: mistakes of makers, missing readings, slow BMCs, in virtual time."""

from __future__ import annotations

import random
import struct
from math import isnan

import pytest

from joulelab.core.clock import NS
from joulelab.core.errors import JoulelabError, ReadFailed
from joulelab.instruments import ipmi
from joulelab.twin.servers import bmc as sdr

READ = lambda: 0.0  # noqa: E731 - the sensor has a value


class Exchange:
    """Play a BMC from written answers; each takes `latency_s` of virtual time."""

    where = "BMC recorded"

    def __init__(self, records: list[bytes], readings=None, dcmi=None, maker=b"\xa2\x02\x00", xcc=b"") -> None:
        self.records, self.readings = records, readings or {}
        self.dcmi, self.maker, self.xcc = dcmi, maker, xcc
        self.closed = self.reservation = 0
        self.longest = 255
        self.now_ns, self.latency_s = NS, 0.0

    def carry_command(self, netfn, command, data, until_ns):
        self.now_ns += round(self.latency_s * NS)
        if self.now_ns > until_ns:
            raise ReadFailed("the BMC does not answer", why="it is slow", code="read-failed.no-answer")
        if (netfn, command) == (0x06, 0x01):
            return 0, bytes([0x20, 1, 1, 0, 2, 3]) + self.maker + b"\1\0"
        if (netfn, command) == (0x0A, 0x22):
            self.reservation += 1
            return 0, struct.pack("<H", self.reservation)
        if (netfn, command) == (0x0A, 0x23):
            reservation, at, offset, count = struct.unpack("<HHBB", data)
            if offset and reservation != self.reservation:
                return 0xC5, b""
            following = at + 1 if at + 1 < len(self.records) else 0xFFFF
            piece = b"".join(self.records[at : at + 1])[offset : offset + min(count, self.longest)]
            return (0, struct.pack("<H", following) + piece) if piece else (0xC9, b"")
        if (netfn, command) == (0x04, 0x2D):
            return self.readings.get(data[0], (0xCB, b""))
        if (netfn, command) == (0x2C, 0x02) and self.dcmi is not None:
            return 0, b"\xdc" + struct.pack("<4HIIB", self.dcmi, 0, 0, 0, 0, 0, 0x40)
        if (netfn, command) == (0x3A, 0x32) and self.xcc:
            return 0, self.xcc
        return 0xC1, b""

    def close(self):
        self.closed += 1


@pytest.fixture
def opened(monkeypatch):
    """Return the meter of an exchange, and its streams by name."""

    def open_exchange(link, **config):
        monkeypatch.setattr("joulelab.instruments.ipmi.open_link", lambda config: link)
        for module in ("joulelab.instruments.ipmi", "joulelab.instruments.ipmi.client"):
            monkeypatch.setattr(f"{module}.monotonic_ns", lambda: link.now_ns)
        meter = ipmi.open_meter(config)
        return meter, {stream.name: stream for stream in meter.streams()}

    return open_exchange


def make_record(number: int, name: str, entity: int, unit: int = 6, m: int = 4, **more) -> bytes:
    fields = {"type": 11, "entity": (entity, number), "read": READ, **more}
    return sdr.BmcSensor(number=number, name=name, unit=unit, m=m, **fields).make_record(number)


def answer(count: int) -> tuple[int, bytes]:
    return 0, bytes([count, 0xC0, 0])


def code_of(action) -> str:
    with pytest.raises(JoulelabError) as caught:
        action()
    assert caught.value.why
    return caught.value.code


def test_a_broken_record_is_listed_and_passed_over(opened):
    good = make_record(1, "Pwr Consumption", 7)
    meter, streams = opened(Exchange([good[:-3], good], {1: answer(100)}))
    assert meter.read(streams["sensor:Pwr Consumption"]) == (400.0,)
    assert "read-failed.malformed" in [m.code for m in meter.missing()]


def test_records_are_read_in_pieces_even_if_the_bmc_cuts_them_without_a_word(opened):
    records = [make_record(n, f"PSU{n} Input Power", 10) for n in (1, 2)]
    link = Exchange(records, {1: answer(100), 2: answer(100)})
    link.longest = 20
    meter, streams = opened(link)
    assert list(streams) == ["psu:1", "psu:2"]
    assert [m.code for m in meter.missing()] == ["read-failed.refused"], "it has no DCMI"


def test_a_lost_reservation_is_made_again_but_not_for_ever(opened):
    link = Exchange([make_record(1, "System Power", 7)], {1: answer(100)})
    link.longest = 20
    plain, lost = link.carry_command, [2]

    def interfere(netfn, command, data, until_ns):
        if (netfn, command) == (0x0A, 0x23) and data[4] and lost[0]:
            lost[0] -= 1
            link.reservation += 1  # another program has made one
        return plain(netfn, command, data, until_ns)

    link.carry_command = interfere
    assert list(opened(link)[1]) == ["sensor:System Power"]
    lost[0] = 1000
    assert code_of(lambda: opened(link)) == "read-failed.records"


def test_records_that_end_early_leave_no_part_of_the_supplies(opened):
    link = Exchange([make_record(n, f"PSU{n} Input Power", 10) for n in (1, 2)], {1: answer(100)}, dcmi=400)
    plain = link.carry_command
    second = struct.pack("<HHBB", 0, 1, 0, 0xFF)
    link.carry_command = lambda *words: (0xCE, b"") if words[2] == second else plain(*words)
    meter, streams = opened(link)
    assert list(streams) == ["dcmi"]
    assert "read-failed.refused" in [m.code for m in meter.missing()]


def test_supplies_are_not_summed_while_one_of_them_may_be_unknown(opened):
    supplies = [make_record(n, f"PSU{n} Input Power", 10) for n in (1, 2)]
    readings = {1: answer(100), 2: answer(100)}
    _, streams = opened(Exchange(supplies, readings, dcmi=800))
    assert list(streams) == ["dcmi", "psu:1", "psu:2"]
    bridged = bytearray(supplies[1])
    bridged[5] = 0x2C  # another controller answers for it
    for records in ([*supplies, supplies[1][:-3]], [supplies[0], bytes(bridged)]):
        meter, streams = opened(Exchange(records, readings, dcmi=800))
        assert list(streams) == ["dcmi"]
        assert "unavailable.no-supplies" in [m.code for m in meter.missing()]


def test_supplies_without_a_power_of_a_node_are_no_reading(opened):
    records = [make_record(n, f"PSU{n} Input Power", 10) for n in (1, 2)]
    link = Exchange(records, {1: answer(0), 2: answer(0)}, dcmi=400)
    assert list(opened(link)[1]) == ["dcmi"], "0 W at opening"
    assert code_of(lambda: opened(link, sources=["psu"])) == "unavailable.no-supplies"
    link.readings = {1: answer(100), 2: answer(0)}
    meter, streams = opened(link)
    assert [meter.read(streams[f"psu:{n}"]) for n in (1, 2)] == [(400.0,), (0.0,)], "a spare supply"
    link.readings = {1: answer(0), 2: answer(0)}
    for n in (1, 2):
        assert code_of(lambda n=n: meter.read(streams[f"psu:{n}"])) == "read-failed.no-reading"


def test_supplies_that_several_nodes_share_are_not_taken_for_this_node(opened):
    records = [make_record(n, f"PSU{n} Input Power", 10, m=40) for n in (1, 2)]
    link = Exchange(records, {1: answer(60), 2: answer(60)}, dcmi=1200)
    meter, streams = opened(link)
    assert list(streams) == ["dcmi"]
    (missing,) = meter.missing()
    assert (missing.code, missing.next) == ("unavailable.no-supplies", "")
    assert "4800 W" in missing.why
    assert list(opened(link, sources=["psu"])[1]) == ["psu:1", "psu:2"], "but if the entry names them"
    link.dcmi = 4400
    assert list(opened(link)[1]) == ["dcmi", "psu:1", "psu:2"]


def test_dcmi_is_read_if_the_bmc_gives_no_sensor_records(opened):
    link = Exchange([], dcmi=1200)
    plain = link.carry_command
    for code in (0xC1, 0xCB, 0xD4):
        link.carry_command = lambda *words, code=code: (code, b"") if words[0] == 0x0A else plain(*words)
        meter, streams = opened(link)
        assert list(streams) == ["dcmi"]
        assert meter.missing()
        assert code_of(lambda: opened(link, sources=["psu"])) in ("read-failed.refused", "denied.privilege")


@pytest.mark.parametrize("dcmi", [4, 0, 0xFFFF])
def test_kilowatts_and_marks_are_not_the_power_of_a_node(opened, dcmi):
    link = Exchange([make_record(1, "System Power", 7)], {1: answer(100)}, dcmi=dcmi)
    meter, streams = opened(link)
    assert list(streams) == ["sensor:System Power"]
    assert "read-failed.no-reading" in [m.code for m in meter.missing()]
    for count in (0, 2, 255):  # 0 W, 8 W, the end of its scale
        link.readings[1] = answer(count)
        assert code_of(lambda: meter.read(streams["sensor:System Power"])) == "read-failed.no-reading"
    assert code_of(lambda: opened(link, sources=["dcmi"])) == "read-failed.no-reading"


def test_dcmi_that_becomes_implausible_is_a_gap(opened):
    link = Exchange([make_record(1, "T", 64, unit=1)], {1: answer(5)}, dcmi=4000)
    meter, streams = opened(link)
    assert meter.read(streams["dcmi"]) == (4000.0,)
    link.dcmi = 4
    assert code_of(lambda: meter.read(streams["dcmi"])) == "read-failed.no-reading"


def test_an_xcc_that_changes_its_answer_is_a_gap(opened):
    energy = struct.pack("<HIHIH", 0, 5000, 0, 0, 0)
    link = Exchange([make_record(1, "DIMM Power", 8)], maker=b"\x66\x4a\x00", xcc=energy)
    meter, streams = opened(link)
    assert meter.read(streams["xcc"]) == (5000.0,)
    link.xcc = struct.pack("<HIH", 1, 400, 0) + bytes(30)
    assert code_of(lambda: meter.read(streams["xcc"])) == "read-failed.malformed"


def test_nothing_that_is_known(opened):
    link = Exchange([make_record(1, "DIMM Power", 8), make_record(2, "Rate", 7, unit=6, m=0)])
    with pytest.raises(JoulelabError, match=r"sensor:NAME.*DIMM Power") as caught:
        opened(link)
    assert caught.value.code == "unavailable.no-power"
    assert link.closed == 1


def test_records_that_cannot_be_read(opened, monkeypatch):
    assert code_of(lambda: opened(Exchange([make_record(1, "System Power", 7)[:-1]]))) == "read-failed.malformed"
    circle = Exchange([make_record(1, "System Power", 7)])
    plain = circle.carry_command
    first = (0, b"\0\0" + circle.records[0])
    circle.carry_command = lambda *words: first if words[0] == 0x0A else plain(*words)
    assert code_of(lambda: opened(circle)) == "read-failed.records"


def slow_bmc() -> Exchange:
    records = [make_record(n, f"T{n}", 64, unit=1, m=1) for n in range(1, 8)]
    return Exchange(records, {n: answer(20 + n) for n in range(1, 8)}, dcmi=400)


def test_cooling_of_a_slow_bmc_takes_about_half_of_the_time_and_all_sensors_have_their_turn(opened):
    link = slow_bmc()
    meter, streams = opened(link, timeout_s=1.0)
    link.latency_s = 0.15
    seen = {}
    for _ in range(3):
        begin_ns = link.now_ns
        row = meter.read(streams["cooling"])
        assert link.now_ns - begin_ns <= 0.66 * NS
        seen |= {n: value for n, value in enumerate(row) if not isnan(value)}
    assert seen == {n: 21.0 + n for n in range(7)}


def test_cooling_without_an_answer_or_a_reading_is_a_gap(opened):
    link = slow_bmc()
    meter, streams = opened(link, timeout_s=1.0)
    link.latency_s = 9.0
    assert code_of(lambda: meter.read(streams["cooling"])) == "read-failed.no-answer"
    link.latency_s, link.readings = 0.0, {3: answer(23)}
    assert [not isnan(value) for value in meter.read(streams["cooling"])] == [n == 2 for n in range(7)]
    link.readings = {}
    assert code_of(lambda: meter.read(streams["cooling"])) == "read-failed.no-reading"


@pytest.mark.parametrize("rounds", [400, pytest.param(20_000, marks=pytest.mark.campaign)])
def test_a_bmc_with_changed_bytes_never_crashes_the_meter_nor_shows_an_impossible_power(opened, rounds):
    """Wrong would be: an exception of Python, a power outside its limits."""
    draw = random.Random(8)
    records = [make_record(n, f"PSU{n} Input Power", 10) for n in (1, 2)]
    records += [make_record(3, "System Power", 7), make_record(4, "Inlet Temp", 64, unit=1, m=1)]
    read = refused = 0
    for _ in range(rounds):
        link = Exchange(list(records), {n: answer(30 * n) for n in range(1, 5)}, dcmi=draw.choice([None, 360, 3]))
        link.longest = draw.choice([255, 16])
        plain, share = link.carry_command, draw.choice([0.02, 0.2])

        def damage(*words, plain=plain, share=share):
            code, data = plain(*words)
            changed = bytearray(data)
            if changed and draw.random() < share:
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
                changed = changed[: draw.choice([len(changed), draw.randrange(len(changed) + 1)])]
            return (draw.randrange(256) if draw.random() < share / 10 else code), bytes(changed)

        link.carry_command = damage
        try:
            meter, streams = opened(link)
        except JoulelabError:
            refused += 1
            continue
        for stream in streams.values():
            try:
                row = meter.read(stream)
            except JoulelabError:
                continue
            read += 1
            if stream.channels[0].kind == "power":
                assert 0 <= row[0] <= 1e5
                assert row[0] >= 10 or stream.name.startswith("psu")
    assert min(read, refused) > rounds / 20
