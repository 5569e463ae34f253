"""Accounts over time: energies of a run's own profile times the rate of their hour; overhead, rates and their worth."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.measured_runs import measured, node_run
from tests.report.synthetic import make_run

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import J_PER_KWH, Quantity
from joulelab.plan.cost.job_energy import RunEnergy, account_energy, add_amounts, find_nameplate, find_side
from joulelab.plan.rates.rate import Constant, Label, Steps

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.plan.measured_runs import MeasuredRun

AVERAGE = Label("average", "g/kWh", "made up")
FLAT = Constant(400.0, AVERAGE)


def two_levels(tmp_path: Path, **more: Any) -> MeasuredRun:
    """Return a run of 40 s: 2 kW in its first half, 6 kW in its second."""
    return measured(node_run(tmp_path, lambda s: 2000.0 if s <= 20 else 6000.0, seconds=40.0, **more))


def series(start: float, values: list[float], step_s: float = 20.0, **label: Any) -> Steps:
    held = Label("average", "g/kWh", "series", **label)
    times = start + step_s * np.arange(len(values), dtype=np.float64)
    return Steps(held, times, np.array(values), start + step_s * len(values))


def test_each_stretch_counts_at_its_own_rate(tmp_path: Path) -> None:
    run = two_levels(tmp_path)
    found = account_energy(RunEnergy(run), series(run.start_utc_s, [100.0, 300.0]))
    low, high = 2000.0 * 20 / J_PER_KWH, 6000.0 * 20 / J_PER_KWH
    assert found.amount.value == pytest.approx(low * 100 + high * 300, rel=0.02)
    assert [slot.rate for slot in found.slots] == [100.0, 300.0]
    assert found.mean_rate == pytest.approx(250.0, rel=0.03)  # by energy; that of time is 200
    assert run.result.energy is not None
    assert sum(slot.energy.value for slot in found.slots) == pytest.approx(run.result.energy.value, rel=1e-12)


def test_a_run_can_be_moved_to_another_time(tmp_path: Path) -> None:
    run = two_levels(tmp_path)
    rate = series(run.start_utc_s + 86400, [300.0, 100.0])
    moved = account_energy(RunEnergy(run), rate, at_s=run.start_utc_s + 86400)
    assert moved.mean_rate == pytest.approx(150.0, rel=0.03)
    with pytest.raises(ConfigError, match="covers"):
        account_energy(RunEnergy(run), rate)


def test_a_rate_that_never_changes_adds_nothing_to_the_interval(tmp_path: Path) -> None:
    run = two_levels(tmp_path)
    whole = run.result.energy
    assert whole is not None
    flat = account_energy(RunEnergy(run), FLAT)
    assert flat.amount.value == pytest.approx(whole.value / J_PER_KWH * 400)
    assert flat.amount.u == pytest.approx(whole.u / J_PER_KWH * 400, rel=1e-9)
    cut = account_energy(RunEnergy(run), series(run.start_utc_s, [400.0] * 8, 5.0))
    assert len(cut.slots) == 8
    assert cut.amount.u == pytest.approx(flat.amount.u, rel=1e-9)


def test_gain_stays_one_error_over_all_slots(tmp_path: Path) -> None:
    run = two_levels(tmp_path)
    amount = account_energy(RunEnergy(run), series(run.start_utc_s, [100.0, 300.0])).amount
    gains = [u for source, u in amount.terms.items() if source.startswith("gain:")]
    assert gains == [pytest.approx(amount.value * 0.01 / np.sqrt(3), rel=1e-6)]


def test_overhead_multiplies_and_brings_its_own_uncertainty(tmp_path: Path) -> None:
    run = two_levels(tmp_path)
    plain = account_energy(RunEnergy(run), FLAT)
    pue = Quantity(1.5, {"pue:x": 0.1})
    with_pue = account_energy(RunEnergy(run), FLAT, pue=pue)
    assert with_pue.amount.value == pytest.approx(plain.amount.value * 1.5)
    assert with_pue.amount.terms["pue:x"] == pytest.approx(plain.amount.value * 0.1)


def test_a_rates_own_uncertainty_is_in_where_it_is_stated(tmp_path: Path) -> None:
    run = two_levels(tmp_path)
    start = run.start_utc_s
    unknown = account_energy(RunEnergy(run), series(start, [100.0, 300.0]))
    assert not unknown.is_rate_known
    stated = account_energy(RunEnergy(run), series(start, [100.0, 300.0], u_rel=0.2))
    assert stated.is_rate_known
    assert stated.amount.u == pytest.approx(np.hypot(unknown.amount.u, 0.2 * unknown.amount.value), rel=1e-6)


def test_unknown_accuracy_stays_unknown(tmp_path: Path) -> None:
    run = two_levels(tmp_path, gain=None)
    assert account_energy(RunEnergy(run), FLAT).amount.expanded is None


def test_a_stretch_too_short_for_the_meter_is_bounded_not_unknown(tmp_path: Path) -> None:
    run = two_levels(tmp_path)
    start = run.start_utc_s

    told = run.energies([0.0, 4.0, 40.0])
    hidden = [replace(told[0], known=False), told[1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(run), "energies", lambda _, at: hidden if len(at) == 3 else [run.result.energy])
        edges, rates = np.array([start - 16, start + 4]), np.array([100.0, 300.0])
        found = account_energy(RunEnergy(run), Steps(AVERAGE, edges, rates, start + 60))
    assert found.amount.known
    off = (
        200.0 * 0.9 * (6000.0 * 4 - told[0].value) / 3**0.5 / J_PER_KWH
    )  # from the mean rate, by as much as the run allows
    assert found.amount.terms["slot:0"] == pytest.approx(-off, rel=0.1)


def test_negative_prices_pay(tmp_path: Path) -> None:
    run = two_levels(tmp_path)
    price = Constant(-0.1, Label("price", "EUR/kWh", "negative", u_rel=0.1))
    found = account_energy(RunEnergy(run), price)
    assert found.amount.value < 0
    assert found.amount.u > 0


def test_rated_power_by_time_stands_beside(tmp_path: Path) -> None:
    run = two_levels(tmp_path)
    assert account_energy(RunEnergy(run), FLAT).rated is None  # nothing recorded it
    found = account_energy(RunEnergy(run, 10_200.0), series(run.start_utc_s, [100.0, 300.0]), pue=Quantity(1.5))
    assert found.rated == pytest.approx(10_200 * 40 / J_PER_KWH * 1.5 * 200.0)
    plate = find_nameplate(run, 10_200.0)
    assert plate is not None
    assert plate.kwh == pytest.approx(10_200 * 40 / J_PER_KWH)
    assert plate.ratio is not None
    assert plate.ratio.value == pytest.approx(10_200 / 4000, rel=0.02)


def test_where_only_gpus_have_a_rating_it_is_said_whose_it_is(tmp_path: Path) -> None:
    with_gpus = measured(make_run(tmp_path, gpus=2, gpu_w=350.0))
    plate = find_nameplate(with_gpus)
    assert plate is not None
    assert (plate.of, plate.watts) == ("gpu", 1400.0)
    assert plate.ratio is not None
    assert plate.ratio.value == pytest.approx(2.0, rel=0.01)  # over what the GPUs used, not over all that was measured
    assert find_side(with_gpus) == "parts"


def test_runs_of_a_study_are_told_apart_by_their_knobs(tmp_path: Path) -> None:
    labels = {"study": "s", "cell": "a1", "slot": "r02", "workload": "train", "cap": "260"}
    assert RunEnergy(two_levels(tmp_path, labels=labels, name="s")).name == "train cap=260 r02"
    assert RunEnergy(two_levels(tmp_path, name="mine")).name == "mine"


def test_runs_add_with_what_they_share(tmp_path: Path) -> None:
    a, b = Quantity(3.0, {"gain:m": 0.3, "edge:1": 0.4}), Quantity(3.0, {"gain:m": 0.3, "edge:1": 0.4})
    both = add_amounts([("a", a), ("b", b)])
    assert both.value == 6.0
    assert both.u == pytest.approx(np.sqrt(0.6**2 + 2 * 0.4**2))


@settings(max_examples=15)
@given(values=st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=6), off=st.floats(0.0, 30.0))
def test_the_whole_is_the_sum_of_its_slots(values: list[float], off: float, two: MeasuredRun) -> None:
    rate = series(two.start_utc_s - off, values, 80.0 / len(values))
    found = account_energy(RunEnergy(two), rate)
    by_hand = sum(slot.energy.value / J_PER_KWH * slot.rate for slot in found.slots)
    assert found.amount.value == pytest.approx(by_hand, rel=1e-9, abs=1e-12)
    assert min(values) - 1e-9 <= found.mean_rate <= max(values) + 1e-9


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> MeasuredRun:
    return two_levels(tmp_path_factory.mktemp("two"))
