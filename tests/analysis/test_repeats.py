from __future__ import annotations

import math

import pytest
from tests.analysis.simulated import NUMBERS, coverage
from tests.analysis.studies import cell, trial

from joulelab.analysis.cell_comparison import RepeatSample, make_sample, make_samples
from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.study_cells import Cell, Trial, average_lasting, compute_idle_energy, compute_means
from joulelab.core.quantity import Quantity


def test_a_sample_has_number_mean_deviation_median_and_student_s_interval() -> None:
    sample = make_sample([98.0, 100.0, 105.0])
    assert (sample.n, sample.mean, sample.median) == (3, 101.0, 100.0)
    assert sample.deviation == pytest.approx(math.sqrt(13.0))
    assert sample.half_width == pytest.approx(4.302653 * math.sqrt(13.0 / 3), rel=1e-6)
    assert sample.interval == pytest.approx((101.0 - sample.half_width, 101.0 + sample.half_width))


def test_moments_alone_give_the_same_interval() -> None:
    values = make_sample([98.0, 100.0, 105.0])
    told = RepeatSample(3, values.mean, values.deviation)
    assert told.interval == values.interval
    assert told.median is None
    assert told.outliers == ()
    assert not told.outliers_seen


def test_one_repeat_or_no_deviation_has_no_interval() -> None:
    assert make_sample([7.0]).interval is None
    assert make_sample([7.0]).deviation is None
    assert RepeatSample(5, 7.0).interval is None
    assert RepeatSample(1, 7.0, 0.5).interval is None
    with pytest.raises(ValueError, match="needs a value"):
        make_sample([])


def test_a_cell_has_energy_power_and_time_with_the_meter_beside() -> None:
    trials = [trial(e, t, gain=0.02 * e, offset=0.01 * e, edge=9.0) for e, t in ((100.0, 10.0), (120.0, 12.0))]
    found = make_samples(cell("a", trials))
    assert found["energy"].values == (100.0, 120.0)
    assert found["power"].values == (10.0, 10.0)
    assert found["power"].deviation == 0.0
    assert found["time"].mean == 11.0
    # Gain and offset, k = 2; the edge is of each run and in the scatter.
    assert found["energy"].meter == pytest.approx(2 * math.hypot(0.02, 0.01))
    assert found["power"].meter == found["energy"].meter
    assert found["time"].meter == 0.0


def test_what_is_not_known_is_not_there() -> None:
    assert make_samples(cell("a", [])) == {}
    assert set(make_samples(cell("a", [trial(None, 3.0)]))) == {"time"}
    assert set(make_samples(cell("a", [trial(5.0, 0.0)]))) == {"energy", "time"}
    assert make_samples(cell("a", [trial(5.0, 1.0, known=False)]))["energy"].meter is None
    assert make_samples(cell("a", [trial(0.0, 1.0, gain=1.0)]))["energy"].meter is None
    with pytest.raises(ValueError, match="no energy"):
        average_lasting(cell("a", [trial(None, 1.0)]))


def test_per_unit_of_work_and_moments_that_tell_no_work() -> None:
    done = Trial(Quantity(100.0), 10.0, {"samples": 50.0})
    found = make_samples(Cell("a", {}, (done,)), "samples")
    assert (found["energy"].mean, found["power"].mean, found["time"].mean) == (2.0, 10.0, 0.2)
    told = Cell("b", {}, moments={"energy": RepeatSample(5, 1.0), "time": RepeatSample(5, 1.0)})
    assert make_samples(told) == dict(told.moments)
    assert make_samples(told, "samples") == {}
    assert compute_means(told, "samples") is None


def test_means_of_moments() -> None:
    told = {
        "energy": RepeatSample(5, 100.0, 2.0, meter=0.02, terms={"gain:x": 0.01}),
        "time": RepeatSample(5, 10.0, 0.1),
    }
    found = compute_means(Cell("a", {}, moments=told))
    assert found is not None
    assert found.energy is not None
    half = told["energy"].half_width
    assert half is not None
    assert found.energy.expanded == pytest.approx(math.hypot(half, 2.0))
    assert found.spread
    assert found.time.known
    bare = compute_means(Cell("a", {}, moments={"time": RepeatSample(5, 10.0)}))
    assert bare is not None
    assert bare.energy is None
    assert not bare.time.known
    assert compute_means(Cell("a", {}, moments={"energy": RepeatSample(5, 10.0)})) is None


def test_idle_devices_energy_has_a_mean() -> None:
    trials = [Trial(Quantity(100.0), 10.0, idle_energy=Quantity(v, {"gain:m": 0.1}), idle=("gpu:1",)) for v in (20, 30)]
    found = compute_idle_energy(Cell("a", {}, tuple(trials)))
    assert found is not None
    assert found.value == 25.0
    assert found.terms["gain:m"] == pytest.approx(0.1)
    assert compute_idle_energy(cell("a", [trial(1.0, 1.0)])) is None
    summary = summarise_cells([Cell("a", {}, tuple(trials))])
    assert summary.cell("a").idle_energy == found


@pytest.mark.system  # pure, and slow
@pytest.mark.parametrize("n", NUMBERS)
def test_intervals_hold_the_truth_in_95_of_100(n: int) -> None:
    found = coverage(n, 1500)
    assert all(0.93 < share < 0.97 for share in found.values()), found


@pytest.mark.campaign
@pytest.mark.parametrize("ratio", [1.2, 80.0])
@pytest.mark.parametrize("n", NUMBERS)
def test_intervals_hold_the_truth_in_95_of_100_at_length(n: int, ratio: float) -> None:
    found = coverage(n, 30_000, ratio)
    print(n, ratio, found)
    assert all(0.938 < share < 0.962 for share in found.values()), found
