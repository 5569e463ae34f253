"""Energy as metrics of a training: what a row holds, and when there is none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from joulelab.analysis.live_energy import LiveFigures
from joulelab.core.errors import StoreError
from joulelab.core.quantity import Quantity
from joulelab.integrations import energy_metrics
from joulelab.integrations.energy_metrics import LiveMetrics, list_metrics
from joulelab.site.footprint import Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NS = 10**9
SITE = Site(zone="DE", g_per_kwh=400.0, year=2023, price=0.3, currency="EUR", pue=1.5)


def test_metrics_of_an_energy() -> None:
    found = list_metrics(Quantity(3.6e6, {"gain:x": 1e5}), 1000.0, {"steps": 10, "samples": 600, "validated": 5}, SITE)
    assert found == {
        "energy_j": 3.6e6,
        "energy_kwh": 1.0,
        "power_w": 3600.0,
        "j_per_sample": 6000.0,
        "cost_eur": 0.45,
        "co2e_kg": 0.6,
    }
    assert list_metrics(Quantity(10.0), 2.0, {"steps": 5}, None) == {
        "energy_j": 10.0,
        "energy_kwh": 2.77778e-06,
        "power_w": 5.0,
        "j_per_step": 2.0,
    }
    assert list_metrics(None, 2.0, {}, None) == {}
    assert list_metrics(Quantity(1.0, {"edge:x": 2.0}), 2.0, {}, None) == {}


class Tail:
    """Stand in for the readings of a run."""

    def __init__(self) -> None:
        self.answer: Callable[[], LiveFigures | None] = lambda: None

    def read(self) -> LiveFigures | None:
        return self.answer()


def test_rows_have_new_readings_within_their_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tail, clock = Tail(), [0]
    monkeypatch.setattr("joulelab.analysis.live_energy.EnergyTail", lambda *_: tail)
    monkeypatch.setattr(energy_metrics, "monotonic_ns", lambda: clock[0])
    monkeypatch.setattr(energy_metrics, "read_meta", lambda _: {"options": {"site": SITE.to_json()}})
    metrics = LiveMetrics(tmp_path, 0)

    def read_row(seconds: float, at_s: float, joules: float, u: float = 1.0) -> dict[str, float]:
        clock[0] = round(seconds * NS)
        figures = LiveFigures(0, round(at_s * NS), {"measured": Quantity(joules, {"edge:x": u})})
        tail.answer = lambda: figures
        return metrics.read_row({"samples": 100})

    assert read_row(1.0, 0.5, 10.0, u=20.0) == {}  # too short
    first = read_row(2.0, 1.0, 500.0)
    assert (first["energy_j"], first["power_w"], first["j_per_sample"]) == (500.0, 500.0, 10.0)
    assert first["co2e_kg"] == pytest.approx(500 / 3.6e6 * 1.5 * 0.4, rel=1e-4)
    assert read_row(2.1, 1.0, 500.0) == {}  # nothing new
    second = read_row(4.0, 3.0, 1700.0)
    assert (second["energy_j"], second["power_w"]) == (1700.0, 600.0)  # since the row before

    def fail() -> LiveFigures | None:
        raise StoreError("half a file")

    tail.answer = fail
    assert [metrics.read_row({}) for _ in range(5)] == [{}] * 5
    assert [r.getMessage() for r in caplog.records] == ["energy is missing in the metrics: StoreError: half a file"]

    def be_slow() -> LiveFigures | None:
        clock[0] += NS
        return None

    tail.answer = be_slow
    assert metrics.read_row({}) == {}
    assert read_row(6.0, 5.0, 3000.0) == {}  # a second was spent: rows wait until it is a hundredth of the time
    assert read_row(200.0, 199.0, 9000.0)["energy_j"] == 9000.0

    assert metrics.make_gap({"samples": 1}) == {}  # no power meter
    monkeypatch.setattr(energy_metrics, "has_power_meter", lambda _: True)
    gap = metrics.make_gap({"samples": 1})
    assert gap.keys() == first.keys()
    assert all(math.isnan(value) for value in gap.values())
