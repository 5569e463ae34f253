"""The BMC's meter on recorded exchanges: what makers get wrong, and what a BMC may lack."""

from __future__ import annotations

import pytest

from joulelab.core.errors import ReadFailed, Unavailable
from joulelab.instruments import ipmi
from joulelab.twin.servers import _bmc_sdr as sdr


class Exchange:
    """Play a BMC from recorded answers: (netfn, command) and the data's beginning decide."""

    where = "BMC recorded"

    def __init__(self, records: list[bytes], **reading: tuple[int, bytes]) -> None:
        self._records, self._reading = records, reading
        self.closed = 0

    def raw(self, netfn, command, data, until_ns):
        if (netfn, command) == (0x06, 0x01):
            return 0, bytes([0x20, 1, 1, 0, 2, 3, 0xA2, 0x02, 0x00, 1, 0])
        if (netfn, command) == (0x0A, 0x23):
            at = int.from_bytes(data[2:4], "little")
            following = at + 1 if at + 1 < len(self._records) else 0xFFFF
            return 0, following.to_bytes(2, "little") + self._records[at]
        if (netfn, command) == (0x04, 0x2D):
            return self._reading[f"n{data[0]}"]
        return 0xC1, b""

    def close(self):
        self.closed += 1


def recorded(monkeypatch, *arguments, **options):
    link = Exchange(*arguments, **options)
    monkeypatch.setattr("joulelab.instruments.ipmi.settings.link", lambda config: link)
    return link


def power_record(number: int, name: str, entity: int) -> bytes:
    sensor = sdr.Sensor(number=number, name=name, entity=(entity, 1), type=11, unit=6, m=4, read=lambda: 0.0)
    return sensor.record(number)


def test_a_broken_record_is_told_and_passed_over(monkeypatch):
    good = power_record(1, "Pwr Consumption", 7)
    recorded(monkeypatch, [good[:-3], good], n1=(0, b"\x64\xc0\x00"))
    meter = ipmi.open_meter({})
    (stream,) = meter.streams()
    assert meter.read(stream) == (400.0,)
    assert any("malformed" in m.what for m in meter.missing())


def test_zero_watts_of_a_whole_node_is_no_reading(monkeypatch):
    recorded(monkeypatch, [power_record(1, "System Power", 7)], n1=(0, b"\x00\xc0\x00"))
    meter = ipmi.open_meter({})
    with pytest.raises(ReadFailed, match="0 W"):
        meter.read(meter.streams()[0])


def test_nothing_that_is_known(monkeypatch):
    link = recorded(monkeypatch, [power_record(1, "DIMM Power", 8)])
    with pytest.raises(Unavailable, match=r"sensor:NAME.*DIMM Power") as caught:
        ipmi.open_meter({})
    assert caught.value.why
    assert link.closed == 1


def test_only_broken_records(monkeypatch):
    recorded(monkeypatch, [power_record(1, "System Power", 7)[:-1]])
    with pytest.raises(ReadFailed, match="malformed"):
        ipmi.open_meter({})


def test_records_that_run_in_a_circle(monkeypatch):
    link = recorded(monkeypatch, [power_record(1, "System Power", 7)])
    monkeypatch.setattr(
        link, "raw", lambda *a: (0, b"\x00\x00" + power_record(1, "X", 7)) if a[0] == 10 else (0, bytes(11))
    )
    with pytest.raises(ReadFailed, match="circle"):
        ipmi.open_meter({})
