"""The readings of a limit: energy up to now, recent phases, and nothing while a meter is silent."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import HOST, START

from joulelab.core.clock import NS
from joulelab.report.watch import watched_energy, watched_run
from joulelab.report.watch.watched_energy import WatchedEnergy

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.run.energy_limit import EnergyReading

END_S = 20.5  # of the readings


def read_at(run: Path, at_s: float, monkeypatch: pytest.MonkeyPatch, *phases: str) -> EnergyReading:
    """Return the reading as it is `at_s` after the start, on the machine that records."""
    now_ns = START + round(at_s * NS)
    for module in (watched_run, watched_energy):
        monkeypatch.setattr(module, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(watched_run, "read_boot_id", lambda: "11111111-2222-3333-4444-555555555555")
    source = WatchedEnergy(run, run / HOST, START, phases)
    try:
        return source.read()
    finally:
        source.close()


def test_a_reading_has_the_energy_up_to_now(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of 300 W and a CPU of 90 W for 20 s; phases of 5 s."""
    found = read_at(live, END_S + 0.1, monkeypatch, "epoch")
    assert found.is_known
    assert found.energy_j == pytest.approx(20 * 690 + 0.6 * 150, rel=0.02)
    assert found.elapsed_s == pytest.approx(END_S + 0.1)
    assert found.covers == ("gpu:0", "gpu:1", "cpu:0")
    assert len(found.spans["epoch"]) == 4
    assert found.spans["epoch"][1] == pytest.approx((5.0, 10.0))
    assert not read_at(live, END_S, monkeypatch).spans


def test_readings_that_are_old_count_as_none(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_at(live, END_S + 2.0, monkeypatch).is_known
    assert not read_at(live, END_S + 4.0, monkeypatch).is_known


def test_a_meter_that_fails_is_noticed_at_once(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gap = {"t": START + 19 * NS, "event": "gap", "meter": "nvml", "stream": "gpu:1.power", "reason": "no answer"}
    with (live / HOST / "events.0.jsonl").open("a") as file:
        file.write(json.dumps(gap) + "\n")
    found = read_at(live, END_S, monkeypatch)
    assert not found.is_known
    assert math.isfinite(found.power_w)
