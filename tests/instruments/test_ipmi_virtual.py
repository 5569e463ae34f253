"""What a BMC's meter does where the BMC is slow or gone, in virtual time."""

from __future__ import annotations

from math import isnan

import pytest

from joulelab.core.clock import NS
from joulelab.core.errors import ReadFailed
from joulelab.instruments.ipmi.cooling import Cooling
from joulelab.instruments.ipmi.parse import CELSIUS, Sensor
from joulelab.instruments.ipmi.watched import Watched

SENSORS = [Sensor(n, 0x20, 0, n, 7, n, 1, f"T{n}", unit=CELSIUS, analog=True, m=1) for n in range(1, 8)]


class SlowBmc:
    """Answer after a latency, in virtual time; say nothing where that is beyond the deadline."""

    where = "bmc"

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s
        self.now_ns = 0
        self.asked = 0

    def raw(self, netfn, command, data, until_ns):
        self.asked += 1
        self.now_ns = min(self.now_ns + round(self.latency_s * NS), until_ns)
        if self.now_ns == until_ns:
            raise ReadFailed("the BMC does not answer in time")
        return 0, bytes([20 + data[0], 0x40])


def opened(bmc, period_s=5.0):
    link = Watched(bmc, period_s, now=lambda: bmc.now_ns)
    return link, Cooling(link, SENSORS, lambda sensor, value: value, now=lambda: bmc.now_ns)


def test_cooling_of_a_slow_bmc_takes_half_of_the_time_and_all_sensors_have_their_turn():
    bmc = SlowBmc(0.15)
    _, cooling = opened(bmc)
    seen = {}
    for _ in range(3):
        begin = bmc.now_ns
        row = cooling.row(begin + NS)
        assert bmc.now_ns - begin <= NS // 2
        seen |= {n: value for n, value in enumerate(row) if not isnan(value)}
    assert seen == {n: 21.0 + n for n in range(7)}


def test_a_bmc_that_stops_answering_amid_the_sensors_is_not_taken_for_dead():
    bmc = SlowBmc(0.01)
    link, cooling = opened(bmc)
    quick = bmc.raw
    bmc.raw = lambda *asked: setattr(bmc, "latency_s", 0.01 if bmc.asked < 3 else 9.0) or quick(*asked)
    row = cooling.row(bmc.now_ns + NS)
    assert [isnan(value) for value in row] == [False] * 3 + [True] * 4
    assert link.failed is None
    with pytest.raises(ReadFailed, match="in time"):
        cooling.row(bmc.now_ns + NS)
    assert link.failed is not None


def test_all_streams_of_a_dead_bmc_fail_together_once_per_period():
    bmc = SlowBmc(9.0)
    link, _ = opened(bmc, period_s=5.0)

    def read(stream):
        link.begin(stream)
        try:
            link.raw(0x2C, 0x02, b"", bmc.now_ns + NS)
        finally:
            link.end(stream)

    for stream in ("dcmi", "xcc", "psu:1"):
        with pytest.raises(ReadFailed, match="in time"):
            read(stream)
    assert (bmc.asked, bmc.now_ns) == (1, NS), "the others do not wait again"
    with pytest.raises(ReadFailed):
        read("xcc")
    assert bmc.asked == 2, "the next reading is an attempt of its own"
    bmc.now_ns += 6 * NS
    with pytest.raises(ReadFailed):
        read("psu:1")
    assert bmc.asked == 3, "what failed long ago is no answer"
