"""The quality of a meter, measured by reading it quickly in virtual time; and the findings about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.codes import list_given_codes

from joulelab.cli.doctor import describe_findings
from joulelab.core.clock import NS
from joulelab.core.errors import ReadFailed
from joulelab.core.spec import Spec, Stream
from joulelab.instruments.messages import MESSAGES
from joulelab.instruments.meter_health import (
    MeterFinding,
    MeterHealth,
    estimate_noise_w,
    estimate_refresh_s,
    estimate_resolution,
    find_failed_share,
    is_readable,
    judge_meter,
    probe_meter,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class Clock:
    """Advance by what is slept, and by 50 us with each look."""

    def __init__(self) -> None:
        self.t = 10 * NS

    def now(self) -> int:
        self.t += 50_000
        return self.t

    def sleep(self, seconds: float) -> None:
        self.t += round(seconds * NS)


class Fake:
    """Serve a counter that steps each 100 ms at 200 W, and a state; each tenth reading of the state fails."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.count = 0
        energy = Spec("energy_j", "energy", "J", "counter", 0.02)
        self._streams = (
            Stream("gpu:0.power", "power", "gpu:0", 0.1, (energy,)),
            Stream("gpu:0.state", "state", "gpu:0", 0.05, (Spec("load", "load", "1"),)),
        )

    def streams(self) -> Sequence[Stream]:
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:
        if stream.table == "state":
            self.count += 1
            if self.count % 10 == 0:
                raise ReadFailed("no answer")
            return (0.5,)
        return (self.clock.t // (NS // 10) * 20.0,)

    def close(self) -> None:
        pass


def test_the_probe_finds_refresh_resolution_and_failures() -> None:
    clock = Clock()
    health = probe_meter(Fake(clock), 3.0, now=clock.now, sleep=clock.sleep, cpu=lambda: 0.0)
    energy, state = health.channels
    assert energy.refresh_s == pytest.approx(0.1, rel=0.1)
    assert energy.resolution == 10.0  # the largest power of ten that divides steps of 20 J
    assert energy.noise_w == pytest.approx(0.0, abs=15.0)
    assert energy.rate_hz == pytest.approx(200, rel=0.1)
    assert state.refresh_s is None
    assert state.failed == sum(health.errors.values()) > 3
    findings = {finding.code: finding for finding in judge_meter(health)}
    assert findings.keys() == {"meter.refresh-differs", "meter.readings-failed"}
    assert findings["meter.refresh-differs"].numbers == {"refresh_s": energy.refresh_s, "declared_s": 0.02}
    assert "no answer" in findings["meter.readings-failed"].error


def test_what_cannot_be_told_is_not_told() -> None:
    assert estimate_refresh_s([0, 1, 2], [1.0, 1.0, 1.0]) is None
    assert estimate_noise_w([0, 1], [1.0, 2.0], counter=False) is None
    assert estimate_resolution([1.0, 1.0]) is None
    assert estimate_resolution([0.123, 0.456]) == pytest.approx(1e-3)
    assert estimate_resolution([1 / 3, 1 / 7]) is None


def test_a_busy_machine_and_slow_reads_are_told() -> None:
    clock = Clock()
    health = probe_meter(Fake(clock), 0.2, now=clock.now, sleep=clock.sleep, cpu=lambda: 0.0)
    slow = MeterHealth(health.channels, 0.05, 0.2, 0.0, {})
    usual = MeterHealth(health.channels, 0.0, 0.0, 0.0, {})
    assert {f.code for f in judge_meter(slow)} - {f.code for f in judge_meter(usual)} == {"meter.late-readings"}


def test_every_finding_has_a_message_and_is_described_with_its_code_and_numbers() -> None:
    assert set(MESSAGES) == list_given_codes("instruments", "MeterFinding")
    finding = MeterFinding("meter.slow-reading", "gpu:0, gpu:1", "power_w", {"reading_s": 0.05})
    (described,) = describe_findings("nvml", [finding])
    assert described == {
        "code": "meter.slow-reading",
        "scope": "gpu:0, gpu:1",
        "channel": "power_w",
        "numbers": {"reading_s": 0.05},
        "error": "",
        "message": "gpu:0,1 power_w: one reading takes 50 ms",
        "next": "set a period that is longer than one reading",
    }


class Failing(Fake):
    """Serve no more than the first `works` readings of energy."""

    works = 0

    def read(self, stream: Stream) -> Sequence[float]:
        if stream.table == "state":
            return (0.5,)
        self.works -= 1
        if self.works < 0:
            raise ReadFailed("no answer", where="lost")
        return (1.0,)


@pytest.mark.parametrize(("works", "readable", "least", "most"), [(0, False, 1.0, 1.0), (50, True, 0.3, 0.9)])
def test_failed_readings_are_judged_by_those_of_energy(works: int, readable: bool, least: float, most: float) -> None:
    clock = Clock()
    meter = Failing(clock)
    meter.works = works
    health = probe_meter(meter, 1.0, now=clock.now, sleep=clock.sleep, cpu=lambda: 0.0)
    assert is_readable(health) is readable
    assert least <= find_failed_share(health) <= most
