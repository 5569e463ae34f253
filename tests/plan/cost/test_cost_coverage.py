"""Do intervals of accounts hold the truth: meters with drawn gains, powers that change as the rate does."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.plan.measured_runs import GAIN, measured, node_run
from tests.study.virtual_study import write

from joulelab.core.quantity import J_PER_KWH
from joulelab.plan.cost.job_energy import RunEnergy, account_energy
from joulelab.plan.cost.work import Work, plan_work
from joulelab.plan.measured_runs import read_measured_run
from joulelab.plan.rates.rate import Label, Steps
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 40


@pytest.mark.parametrize("count", [10, pytest.param(120, marks=pytest.mark.campaign)])
def test_amounts_over_time_hold_the_truth(tmp_path: Path, count: int) -> None:
    """Runs of random steps of power at random rates that change within the meter's steps."""
    draw = np.random.default_rng(9)
    held, sizes = 0, []
    for _ in range(count):
        watts = np.repeat(draw.uniform(2000, 7000, SECONDS // 5), 5)
        gain = draw.uniform(-GAIN, GAIN)

        def read(s: float, watts: np.ndarray = watts, gain: float = gain) -> float:
            return float(watts[math.ceil(s) - 1] * (1 + gain))

        run = measured(node_run(tmp_path, read, seconds=float(SECONDS)))
        # Edges of the rate lie anywhere, so that the meter's readings straddle them.
        edges = np.sort(draw.uniform(0, SECONDS, 7))
        starts = run.start_utc_s + np.concatenate(([-10.0], edges))
        rates = draw.uniform(50, 800, 8)
        rate = Steps(Label("average", "g/kWh", "drawn"), starts, rates, run.start_utc_s + SECONDS + 10)
        found = account_energy(RunEnergy(run), rate)
        cuts = np.concatenate(([0.0], edges, [SECONDS]))
        energy = np.interp(cuts, np.arange(SECONDS + 1), np.concatenate(([0.0], np.cumsum(watts))))
        true = float(np.dot(np.diff(energy), rates)) / J_PER_KWH
        assert found.amount.expanded is not None
        held += abs(found.amount.value - true) <= found.amount.expanded
        assert run.result.energy is not None
        sizes.append(found.amount.expanded / found.amount.value / (run.result.energy.relative or 0.0))
    assert held >= 0.93 * count
    assert np.median(sizes) < 1.6  # beside the interval of the run's energy: not by being wide


@pytest.mark.campaign
def test_work_planned_from_three_runs_holds_what_many_take(tmp_path: Path) -> None:
    """Each three of 30 runs of a twin against the mean of all of them, and of what was true of them."""
    from joulelab.study.drive import list_planned_slots as planned
    from joulelab.twin.virtual import read_truth, run_twin_study

    text = write(tmp_path, repeats=30, caps="[260]").read_text().replace("gpus = [1, 2]", "gpus = [2]")
    (tmp_path / "study.toml").write_text(text)
    study = run_twin_study(tmp_path / "study.toml", str(tmp_path / "node.toml"), tmp_path / "st")
    runs, energies, times = [], [], []
    for slot in planned(study, list(study.read_cells()), 30):
        assert slot.run is not None
        with open_run(slot.run) as run:
            runs.append(read_measured_run(run))
        truth = read_truth(slot.folder)
        energies.append(truth["energy_j"]["node.ac"])
        times.append(truth["time_s"])
    draw = np.random.default_rng(3)
    chosen = draw.permutation(list(itertools.combinations(range(len(runs)), 3)))[:150]
    held = [0, 0]
    for three in chosen:
        found = plan_work(Work("w", "runs", 1.0), [runs[k] for k in three])
        for n, (q, true) in enumerate(((found.whole, np.mean(energies)), (found.time, np.mean(times)))):
            assert q.expanded is not None
            held[n] += abs(q.value - true) <= q.expanded
    assert min(held) >= 0.90 * len(chosen), held
