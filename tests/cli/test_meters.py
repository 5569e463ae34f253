"""Commands that look at meters: meters, doctor; and the probe behind doctor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.cli.doctor import list_advice
from joulelab.core.clock import NS
from joulelab.core.errors import ReadFailed
from joulelab.core.spec import Spec, Stream
from joulelab.instruments.meter_health import (
    MeterHealth,
    estimate_noise_w,
    estimate_refresh_s,
    estimate_resolution,
    probe_meter,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.cli.conftest import Call, Fail


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a powercap tree with one package whose counter stands still."""
    root = tmp_path / "powercap"
    zone = root / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, value in (("name", "package-0"), ("energy_uj", "12345678"), ("max_energy_range_uj", "262143328850")):
        (zone / name).write_text(f"{value}\n")
    monkeypatch.setenv("JOULELAB_POWERCAP", str(root))
    return root


def test_meters_says_what_is_here_and_what_is_missing(call: Call, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("JOULELAB_POWERCAP", str(tmp_path / "nothing"))
    rows = json.loads(call("meters", "rapl", "host", "estimate", "--json").stdout)
    assert {row["meter"]: row["status"] for row in rows} == {"rapl": "unavailable", "host": "open", "estimate": "open"}
    text = " ".join(call("meters", "rapl", "host", "estimate").output.split())
    assert rows[0]["what"] in text
    assert "joulelab twin -- joulelab meters" in call("meters", "rapl").output


@pytest.mark.system
def test_meters_shows_scope_quantity_accuracy_and_period(call: Call, powercap: Path) -> None:
    text = call("meters", "rapl").output
    row = next(line for line in text.splitlines() if line.startswith("cpu:0"))
    assert "energy, J" in row
    assert "%" in row or "unknown" in row
    assert "100 ms" in row
    assert row.endswith("rapl")
    assert "privilege: read access to energy_uj" in text
    assert "joulelab twin" not in text
    assert max(len(line) for line in text.splitlines() if "->" not in line) <= 80
    [data] = json.loads(call("meters", "rapl", "--json").stdout)
    assert data["status"] == "open"
    assert data["channels"][0]["scope"] == "cpu:0"


def test_the_estimate_is_on_request_and_marked(call: Call) -> None:
    text = call("meters").output
    assert "-> joulelab run --estimate -- CMD" in text
    assert "(estimate)" in call("meters", "estimate").output


@pytest.mark.system
def test_doctor_reads_a_meter(call: Call, powercap: Path) -> None:
    [data] = json.loads(call("doctor", "rapl", "--for", "50ms", "--json").stdout)
    assert data["status"] == "open"
    assert data["power"] is True
    assert data["health"]["channels"][0]["reads"] > 0
    assert len(data["advice"]) == 1  # the counter stands still
    assert data["advice"][0] in " ".join(call("doctor", "rapl", "--for", "100ms").output.split())


def test_doctor_names_what_is_not_there(
    call: Call, fail: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOULELAB_POWERCAP", str(tmp_path / "nothing"))
    [data] = json.loads(call("doctor", "rapl", "--for", "50ms", "--json", code=1).stdout)
    assert (data["status"], data["code"]) == ("unavailable", "unavailable")
    failure = fail("doctor", "rapple")
    assert failure.kind == "config"
    assert "'rapl'" in str(failure.next)


def test_doctor_shows_how_to_grant_access(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from joulelab.core.errors import Denied

    def refuse(*_: object) -> None:
        raise Denied("RAPL is there but may not be read", why="permission denied", next="joulelab doctor rapl")

    monkeypatch.setattr("joulelab.recorder.plan.open_meter", refuse)
    [data] = json.loads(call("doctor", "rapl", "--json", code=1).stdout)
    assert (data["status"], data["code"], bool(data["fixes"])) == ("denied", "denied", True)
    assert "-> sudo " in call("doctor", "rapl", code=1).output


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
    said = list_advice(health)
    assert any("100 ms" in line and "20 ms" in line for line in said)
    assert any("no answer" in line for line in said)


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
    assert len(list_advice(slow)) > len(list_advice(MeterHealth(health.channels, 0.0, 0.0, 0.0, {})))
