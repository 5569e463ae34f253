"""The search over caps on recorded sweeps of two GPUs (ml-energy/zeus, Apache-2.0), kept outside of the project."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.tune import DENSE, compute_regrets, list_grids, run_golden, run_gp, run_quadratic, run_search, run_sweep
from benchmarks.tune_grids import Grid, cliffs, physical, recorded, smooth, textbook

from joulelab.analysis.goals import Goal
from joulelab.study.tuning.response import compute_regret

DATA = Path(__file__).parents[4] / "shared" / "data" / "cap-sweeps"
FILES = [DATA / f"summary_power_{device}.csv" for device in ("rtx6000", "v100")]
needs_sweeps = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}: recorded sweeps are not part of the project")
GOALS = ("energy", "edp", "energy@slowdown=5%")
FEWER = [pytest.param("energy", marks=pytest.mark.campaign), pytest.param("edp", marks=pytest.mark.campaign), GOALS[-1]]
pytestmark = pytest.mark.no_cover  # thousands of searches; test_search.py traces them


def costs(grid: Grid, goal: str, budget: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    at, trials = run_search(grid, Goal.parse(goal), budget, lambda at: grid.trial(at, rng))
    assert trials <= budget
    return float(compute_regret(Goal.parse(goal), grid.energy, grid.time)[at])


@needs_sweeps
@pytest.mark.system  # many searches
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_four_trials_of_a_recorded_sweep_lose_less_than_one_percent_in_the_middle(path, goal):
    found = [costs(grid, goal, 4, 0) for grid in recorded(path)[::4]]
    assert np.median(found) < 0.01


@needs_sweeps
@pytest.mark.campaign  # many searches; test_four_trials is in make test
@pytest.mark.parametrize("goal", FEWER)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_seven_trials_of_a_dense_grid_lose_less_than_one_percent_in_the_middle(path, goal):
    found = [costs(grid, goal, 7, n) for n, grid in enumerate(list_grids("dense", str(path), 0)[::20])]
    assert np.median(found) < 0.01


@needs_sweeps
@pytest.mark.campaign
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_all_dense_grids_stay_below_four_percent_in_95_of_100(path, goal):
    grids = list_grids("dense", str(path), 0)
    regrets, _ = compute_regrets(grids, Goal.parse(goal), 2, ["search"])["search"]
    assert np.median(regrets) < 0.01
    assert np.quantile(regrets, 0.95) < 0.04


def made() -> Grid:
    """Return a sweep of eight caps from a curve that is known."""
    caps = np.array([100.0, 125, 150, 175, 200, 225, 250, 260])
    power = np.minimum(235.0, 0.95 * caps)
    return Grid("made", caps, 10 * (1 + 0.035 * ((power / 235) ** -4 - 1)), power)


@pytest.mark.parametrize("fit", [physical, smooth])
def test_fitted_curves_follow_the_points_and_their_noise(fit):
    source = made()
    rng = np.random.default_rng(0)
    noisy = Grid(
        "noisy",
        source.caps,
        source.time * np.exp(0.01 * rng.standard_normal(8)),
        source.power * np.exp(0.01 * rng.standard_normal(8)),
    )
    dense = fit(noisy, np.linspace(100, 260, DENSE))
    back = fit(noisy, source.caps)
    assert np.abs(np.log(back.time / source.time)).max() < 0.05
    assert np.abs(np.log(back.power / source.power)).max() < 0.05
    assert 0.001 < dense.noise_t < 0.05
    assert 0.001 < dense.noise_p < 0.05


@pytest.mark.parametrize("fit", [physical, smooth])
def test_curves_are_fitted_to_five_caps_too(fit):
    source = made()
    five = Grid("five", *(values[[0, 2, 4, 6, 7]] for values in (source.caps, source.time, source.power)))
    assert np.abs(np.log(fit(five, source.caps).time / source.time)).max() < 0.2


@pytest.mark.parametrize("text", GOALS)
def test_search_and_simpler_methods_find_the_best_of_a_plain_curve(text):
    grid, goal = made(), Goal.parse(text)
    cost = compute_regret(goal, grid.energy, grid.time)
    rng = np.random.default_rng(0)

    def trial(at: int) -> tuple[float, float]:
        return grid.trial(at, rng)

    assert cost[run_sweep(grid, goal, 4, trial)[0]] == 0.0
    assert cost[run_search(grid, goal, 4, trial)[0]] < 0.03
    for method in (run_golden, run_gp, run_quadratic):
        at, trials = method(grid, goal, 4, trial, rng)
        assert trials <= 4
        assert cost[at] < 0.3


@pytest.mark.system
@pytest.mark.parametrize("goal", FEWER)
@pytest.mark.parametrize("made_of", [cliffs, textbook])
def test_curves_that_are_not_of_the_searchs_family_lose_less_than_one_percent_in_the_middle(made_of, goal):
    found = [costs(grid, goal, 7, n) for n, grid in enumerate(made_of(DENSE)[::3])]
    assert np.median(found) < 0.01
    assert max(found) < 0.2
