"""Hold the metrics to the published figures of the Gdansk study."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.studies import by_cap, cell, trial

from joulelab.analysis.cell_metrics import CellMetrics, StudySummary, summarise_cells
from joulelab.analysis.goals import Goal

PUBLISHED: dict[str, Any] = tomllib.loads((Path(__file__).parents[1] / "published" / "gdansk.toml").read_text())
BEST = PUBLISHED["best"]
DERIVED = PUBLISHED["derived"]


def _eight_gpus() -> StudySummary:
    """Return 260 W and the caps whose ratios are known or bounded; 160 and 200 W in the middle of their ranges."""
    t_200 = 1.049
    ratios = {
        260.0: (1.0, 1.0),
        200.0: (DERIVED["200"]["weighted_sum"] - 2 * t_200, t_200),
        170.0: (DERIVED["170"]["energy_ratio"], DERIVED["170"]["time_ratio"]),
        160.0: (DERIVED["160"]["energy_ratio"], 1.136),
    }
    energy, time = 212_000.0, PUBLISHED["time_s"]["260"]["8"]
    cells = by_cap({cap: [(energy * e, time * t)] for cap, (e, t) in ratios.items()}, gain=0.001)
    return summarise_cells(cells, goals=[Goal.parse(text) for text in BEST])


def _percent(q: Any) -> float:
    return float(q.value) * 100


@pytest.fixture
def at_170() -> CellMetrics:
    return _eight_gpus().cell("c170")


def test_the_metrics_of_170_w_are_the_published_ones(at_170: CellMetrics) -> None:
    assert _percent(at_170.gain) == pytest.approx(DERIVED["170"]["energy_gain_pct"], abs=0.005)
    assert _percent(at_170.gain_minus_loss) == pytest.approx(BEST["gain-loss"]["gain_pct"], abs=0.005)
    assert _percent(at_170.edp_gain) == pytest.approx(BEST["edp"]["gain_pct"], abs=0.005)
    assert _percent(at_170.eds_gain[1.5]) == pytest.approx(DERIVED["170"]["eds_1_5_gain_pct"], abs=0.005)
    assert _percent(at_170.eds_gain[2.0]) == pytest.approx(BEST["eds:2"]["gain_pct"], abs=0.006)
    assert at_170.gain_minus_loss is not None
    assert at_170.eds_gain[2.0].value == pytest.approx(at_170.gain_minus_loss.value / 2, abs=1e-12)


def test_the_best_cap_for_each_goal_is_the_published_one() -> None:
    summary = _eight_gpus()
    for text, published in BEST.items():
        best = summary.best_for(Goal.parse(text))
        assert best is not None
        assert best.cell == f"c{published['cap_w']}"
        assert best.improvement is not None
        assert _percent(best.improvement) == pytest.approx(published["gain_pct"], abs=0.006)


def test_bounds_of_the_caps_that_are_known_in_part() -> None:
    # At 160 W any time at or above the bound leaves EDP best at 170 W, any below would not.
    reference, at_170 = (1.0, 1.0), (DERIVED["170"]["energy_ratio"], DERIVED["170"]["time_ratio"])
    for share, best in ((0.999, "c160"), (1.001, "c170")):
        time = DERIVED["160"]["least_time_ratio"] * share
        points = {260.0: [reference], 170.0: [at_170], 160.0: [(DERIVED["160"]["energy_ratio"], time)]}
        found = summarise_cells(by_cap(points), goals=[Goal("edp")]).best_for(Goal("edp"))
        assert found is not None
        assert found.cell == best


def test_the_published_speed_ups_follow_from_the_times() -> None:
    cells = [
        cell(f"{cap}-{gpus}", [trial(None, time)], cap=float(cap), gpus=int(gpus))
        for cap, times in PUBLISHED["time_s"].items()
        for gpus, time in times.items()
    ]
    scaling = {s.knobs["cap"]: s for s in summarise_cells(cells).scaling}
    for cap, published in PUBLISHED["speedup"].items():
        points = {f"{p.gpus:g}": p for p in scaling[float(cap)].points}
        for gpus, speedup in published.items():
            assert points[gpus].speedup.value == pytest.approx(speedup, abs=0.05)
            assert points[gpus].efficiency.value == pytest.approx(speedup / int(gpus), abs=0.01)
            assert points[gpus].energy_ratio is None
