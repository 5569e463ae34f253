"""Logs of a sensor that nobody described: their intervals hold the truth, whatever the pace of rows and sensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from joulelab.analysis.power import PowerCurve
from joulelab.analysis.readings import Readings
from joulelab.core.clock import NS
from joulelab.core.spec import Accuracy
from joulelab.instruments.file import open_archive

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.system  # pure, and slow
GRID_S, T0_S, DRAWS = 0.05, 1_714_564_800, 40
MORE_PACES = [(60.0, 1.0), (1.0, 0.1), (0.1, 1.0)]
# Rows slower than the sensor, and faster; the others are of the same two kinds.
PACES = [(10.0, 1.0), (0.1, 0.5), *(pytest.param(*pace, marks=pytest.mark.campaign) for pace in MORE_PACES)]


def draw_load(rng: np.random.Generator, length_s: float, dwell_s: float) -> np.ndarray:
    """Return cumulative energy (J) on the grid of a load that stays at one of three powers for random times."""
    watts: list[float] = []
    idle, most = rng.uniform(200, 500), rng.uniform(700, 2500)
    while len(watts) < length_s / GRID_S:
        watts += [rng.choice([idle, most, (idle + most) / 2])] * max(1, round(rng.exponential(dwell_s) / GRID_S))
    return np.concatenate(([0.0], np.cumsum(np.array(watts) + rng.normal(0, 5, len(watts))) * GRID_S))


def compare_log(path: Path, rng: np.random.Generator, step_s: float, update_s: float, dwell_s: float) -> float:
    """Return the error of an imported part of a log in its standard uncertainties."""
    length_s = max(60 * step_s, 120.0)
    energy = draw_load(rng, length_s, dwell_s)
    grid = np.arange(len(energy)) * GRID_S
    times = np.arange(2 * update_s + step_s, length_s, step_s)
    shown = np.floor((times - rng.uniform(0, update_s)) / update_s) * update_s  # when the sensor had its last value
    watts = (np.interp(shown, grid, energy) - np.interp(shown - update_s, grid, energy)) / update_s
    path.write_text("t,power_w\n" + "".join(f"{T0_S + t:.3f},{w:.3f}\n" for t, w in zip(times, watts, strict=True)))
    archive = open_archive({"path": str(path), "gain": 0.0})
    (found,) = archive.fetch(0, 2**62)
    stamps = np.array([row[0] for row in found.rows])
    spec = replace(found.stream.channels[0], accuracy=Accuracy("assumed"))
    curve = PowerCurve(Readings(stamps, stamps, np.array([row[2][0] for row in found.rows])), spec, name="log")
    since, until = sorted(rng.uniform(times[3], times[-3], 2))
    until = max(until, since + 3 * step_s)
    result = curve.energy(*(round((T0_S + t) * NS) for t in (since, until)))
    true_j = float(np.interp(until, grid, energy) - np.interp(since, grid, energy))
    return abs(result.value - true_j) / result.u


@pytest.mark.parametrize(("step_s", "update_s"), PACES)
def test_intervals_hold_the_truth(tmp_path: Path, step_s: float, update_s: float) -> None:
    rng = np.random.default_rng(round(step_s * 100 + update_s))
    dwells = (3 * max(step_s, update_s), 30 * max(step_s, update_s))
    errors = [compare_log(tmp_path / "log.csv", rng, step_s, update_s, d) for d in dwells for _ in range(DRAWS)]
    inside = sum(error <= 2 for error in errors) / len(errors)
    print(f"rows every {step_s:g} s, sensor every {update_s:g} s: {inside:.1%} inside")
    assert inside >= 0.95
