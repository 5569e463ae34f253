"""Fit gain and offset of meters against a reference: what steps show, and what they cannot."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.rows import every_row

from joulelab.analysis.calibration_fit import (
    EFFICIENCY_LOADS,
    BesideMeter,
    CalibrationFit,
    FitRefusal,
    FittedDevice,
    LoadSteps,
    ReferenceMeter,
    SupplyPrior,
    fit_calibration,
)

SUPPLY = SupplyPrior(4000.0, (0.966, 0.003), (0.0125, 0.003), (0.018, 0.003))
WALL = ReferenceMeter(0.002, 3.0, 0.1, supply=SUPPLY, fans="fixed")
DEAR = ReferenceMeter(
    1e-4, 0.1, 0.1, supply=SupplyPrior(4000.0, (0.966, 1e-4), (0.0125, 1e-4), (0.018, 1e-4)), fans="fixed"
)
DIRECT = ReferenceMeter(0.001, 0.1, 0.1, is_around=False)


def make_steps(gains, offsets, *, around=True, seed=1, count=30, together=False, span=600.0, supply=SUPPLY, **more):
    """Return steps of devices whose true power is gain x reading + offset, as a reference without errors shows them."""
    rng = np.random.default_rng(seed)
    n = len(gains)
    level = rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], (count, n))
    level[0], level[-1] = 0.0, 0.0
    if together:
        level[:] = level[:, :1]
    reading = 70.0 + span * level + rng.normal(0, 0.3, level.shape)
    true = np.array(gains) * reading + np.array(offsets)
    cpu = rng.uniform(80, 100, count)
    total = true.sum(axis=1) + (300.0 + cpu + 0.005 * (np.array(gains) * (reading - 70)).sum(axis=1) if around else 0.0)
    if around and supply is not None:
        inputs = EFFICIENCY_LOADS / (0.966 - np.array([0.0125, 0.0, 0.018]))
        total = 4000.0 * np.polyval(np.linalg.solve(np.vander(EFFICIENCY_LOADS, 3), inputs), total / 4000.0)
    steps = LoadSteps(
        number=np.arange(count),
        middle_s=20.0 * np.arange(count),
        seconds=np.full(count, 12.0),
        reference_w=total + rng.normal(0, 0.2, count),
        reference_u_w=np.full(count, 0.2),
        device_w=reading,
        device_u_w=np.full((count, n), 0.3),
        celsius=30.0 + 40.0 * level,
        is_there=np.ones((count, n), bool),
        beside=cpu[:, np.newaxis] if around else np.empty((count, 0)),
    )
    return replace(steps, **more)


def list_devices(count):
    return [FittedDevice(f"gpu:{k}", 0.06, 5.0) for k in range(count)]


CPU = [BesideMeter("cpu:0")]


def test_gains_of_several_devices_are_found_behind_a_supply():
    gains = [0.94, 1.05, 1.01]
    fit = fit_calibration(make_steps(gains, [0.0] * 3), list_devices(3), WALL, CPU)
    assert isinstance(fit, CalibrationFit)
    for device, gain in zip(fit.devices, gains, strict=True):
        assert abs(device.gain - gain) <= 2 * device.gain_u
        assert device.gain_u < 0.012
        assert device.compute_power(500.0) == device.gain * 500.0 + device.offset_w
    assert abs(fit.slope - 1.03) < 0.02
    assert fit.slope_u > 0


def test_an_offset_is_seen_by_a_reference_on_the_device_and_not_at_the_wall():
    direct = fit_calibration(make_steps([0.95], [4.0], around=False), list_devices(1), DIRECT)
    assert isinstance(direct, CalibrationFit)
    (device,) = direct.devices
    assert device.offset_w == pytest.approx(4.0, abs=2 * device.offset_u_w)
    assert device.offset_u_w < 1.0
    assert (direct.slope, direct.slope_u) == (1.0, 0.0)
    wall = fit_calibration(make_steps([0.95], [4.0]), list_devices(1), WALL, CPU)
    assert isinstance(wall, CalibrationFit)
    assert wall.devices[0].offset_u_w == pytest.approx(5.0 / math.sqrt(3), rel=0.1)


def test_a_step_without_the_device_shows_its_offset_at_the_wall():
    steps = make_steps([0.95], [4.0])
    empty = make_steps([0.95], [4.0], count=31)
    inputs = EFFICIENCY_LOADS / (0.966 - np.array([0.0125, 0.0, 0.018]))
    zero_w = 4000 * np.polyval(np.linalg.solve(np.vander(EFFICIENCY_LOADS, 3), inputs), (300 + 90) / 4000)
    there = np.ones((31, 1), bool)
    there[-1] = False
    grown = replace(
        empty,
        number=np.arange(31),
        reference_w=np.append(steps.reference_w, zero_w),
        reference_u_w=np.append(steps.reference_u_w, 1.0),
        device_w=np.append(steps.device_w, steps.device_w[:1], axis=0),
        is_there=there,
        beside=np.append(steps.beside, [[90.0]], axis=0),
    )
    fit = fit_calibration(grown, list_devices(1), WALL, CPU)
    assert isinstance(fit, CalibrationFit)
    assert fit.devices[0].offset_w == pytest.approx(4.0, abs=2 * fit.devices[0].offset_u_w)
    assert fit.devices[0].offset_u_w < 2.0
    low = replace(grown, reference_w=grown.reference_w + np.where(there[:, 0], 0.0, 40.0))
    far = fit_calibration(low, list_devices(1), WALL, CPU)
    assert isinstance(far, FitRefusal)
    assert far.code == "far-offset"


def test_offsets_that_all_err_to_one_side_are_refused_by_their_sum():
    more_w = 30.0  # W that the node without its eight devices takes more: 4 W of each offset
    steps = make_steps([1.0] * 8, [0.0] * 8, count=60, supply=None)
    rows = {"middle_s", "seconds", "reference_u_w", "device_w", "device_u_w", "celsius", "beside"}
    grown = {name: np.concatenate((getattr(steps, name), getattr(steps, name)[:1])) for name in rows}
    there = np.ones((61, 8), bool)
    there[-1] = False

    def fit(extra_w, **options):
        empty_w = 300.0 + float(steps.beside[0, 0]) + extra_w
        watts = np.append(steps.reference_w, empty_w)
        zero = replace(steps, **grown, number=np.arange(61), reference_w=watts, is_there=there)
        return fit_calibration(zero, list_devices(8), replace(WALL, supply=None), CPU, **options)

    assert isinstance(fit(0.0), CalibrationFit)
    far = fit(more_w)
    assert isinstance(far, FitRefusal)
    assert (far.code, far.numbers["assumed_w"]) == ("far-offset.sum", pytest.approx(16.3, abs=0.1))
    assert isinstance(fit(more_w, accept_far=True), CalibrationFit)


def test_a_gain_beyond_the_assumed_one_is_refused_at_the_wall_unless_it_is_accepted():
    steps = make_steps([1.15], [0.0])
    far = fit_calibration(steps, list_devices(1), WALL, CPU)
    assert isinstance(far, FitRefusal)
    assert (far.code, far.scope) == ("far-gain", "gpu:0")
    assert isinstance(fit_calibration(steps, list_devices(1), WALL, CPU, accept_far=True), CalibrationFit)
    # A sensor that reads 9.9 % too little has a gain of 1.11.
    within = fit_calibration(make_steps([1 / 0.901], [0.0]), [FittedDevice("gpu:0", 0.1, 5.0)], DEAR, CPU)
    assert isinstance(within, CalibrationFit)
    assert isinstance(fit_calibration(make_steps([1.15], [0.0], around=False), list_devices(1), DIRECT), CalibrationFit)


def test_a_cpu_that_is_not_measured_may_follow_the_load_of_a_gpu():
    steps = make_steps([0.97], [0.0])
    loaded = (steps.device_w[:, 0] - 70.0) / 600.0
    unseen = replace(steps, reference_w=steps.reference_w + 20.0 * loaded - 1.03 * (steps.beside[:, 0] - 90.0))
    fit = fit_calibration(replace(unseen, beside=np.empty((30, 0))), list_devices(1), WALL)
    assert isinstance(fit, CalibrationFit)
    assert abs(fit.devices[0].gain - 0.97) <= 2 * fit.devices[0].gain_u


def test_factors_hold_variances_and_the_correlation_of_devices_with_one_reference():
    fit = fit_calibration(make_steps([1.0, 1.0], [0.0, 0.0]), list_devices(2), WALL, CPU)
    assert isinstance(fit, CalibrationFit)
    covariance = fit.factors @ fit.factors.T
    assert np.sqrt(covariance[0, 0]) == pytest.approx(fit.devices[0].gain_u, rel=1e-3)
    assert np.sqrt(covariance[3, 3]) == pytest.approx(fit.devices[1].offset_u_w, rel=1e-3)
    # Supplies and reference are the same for both: their gains err together.
    assert covariance[0, 2] > 0.5 * covariance[0, 0]


def test_errors_that_another_calibration_has_too_are_sources_of_their_own():
    steps = make_steps([1.0, 1.0], [0.0, 0.0])
    fit = fit_calibration(steps, list_devices(2), WALL, CPU)
    assert isinstance(fit, CalibrationFit)
    assert {"reference/gain", "efficiency/low", "follow"} < set(fit.sources)
    assert len(fit.sources) == fit.factors.shape[1]
    assert fit.sources.count("") <= 4
    # A reference that reads too much by its standard uncertainty moves both gains as its column says.
    u = WALL.gain / math.sqrt(3)
    moved = fit_calibration(replace(steps, reference_w=(1 + u) * steps.reference_w), list_devices(2), WALL, CPU)
    assert isinstance(moved, CalibrationFit)
    column = fit.factors[:, fit.sources.index("reference/gain")]
    for number in (0, 1):
        change = moved.devices[number].gain - fit.devices[number].gain
        assert change == pytest.approx(-column[2 * number], rel=0.1)


def test_the_budget_names_the_part_that_is_least_known():
    wide = replace(WALL, supply=replace(SUPPLY, low_drop=(0.0125, 0.02)))
    fit = fit_calibration(make_steps([1.0], [0.0]), [FittedDevice("gpu:0", 0.2, 5.0)], wide, CPU)
    assert isinstance(fit, CalibrationFit)
    assert next(iter(fit.devices[0].budget)) == "supply"
    narrow = fit_calibration(make_steps([1.0], [0.0]), [FittedDevice("gpu:0", 0.2, 20.0)], WALL, CPU)
    assert isinstance(narrow, CalibrationFit)
    assert next(iter(narrow.devices[0].budget)) == "offset"


def test_a_sensor_that_bends_or_drifts_is_shown():
    straight = make_steps([1.0], [0.0], around=False, count=60)
    share = (straight.device_w[:, 0] - 70) / 600
    hot = np.random.default_rng(3).uniform(30, 80, straight.celsius.shape)
    bent = replace(
        straight,
        celsius=hot,
        reference_w=straight.reference_w + 24 * share * (1 - share) + 0.0004 * (hot[:, 0] - 55) * 600 * share,
    )
    fit = fit_calibration(bent, list_devices(1), DIRECT)
    assert isinstance(fit, CalibrationFit)
    (device,) = fit.devices
    # The parabola is up to 3 W from the straight line through five levels, the drift 6 W at full load and 25 K off.
    assert abs(device.bend_w) == pytest.approx(9.0, abs=1.5)
    assert device.bend_half_w >= abs(device.bend_w)
    assert device.heat_per_k == pytest.approx(0.0004, abs=1e-4)
    assert (device.cold_c, device.hot_c) == (hot.min(), hot.max())


def test_a_device_without_a_thermometer_has_no_range_of_temperature():
    steps = make_steps([1.0], [0.0], around=False)
    fit = fit_calibration(replace(steps, celsius=np.full_like(steps.celsius, np.nan)), list_devices(1), DIRECT)
    assert isinstance(fit, CalibrationFit)
    assert fit.devices[0].cold_c == math.inf
    assert fit.devices[0].heat_per_k == 0.0


def test_residuals_that_scatter_more_than_expected_widen_the_result():
    steps = make_steps([1.0], [0.0], around=False)
    noise = np.random.default_rng(5).normal(0, 4.0, len(steps))
    plain = fit_calibration(steps, list_devices(1), DIRECT)
    noisy = fit_calibration(replace(steps, reference_w=steps.reference_w + noise), list_devices(1), DIRECT)
    assert isinstance(plain, CalibrationFit)
    assert isinstance(noisy, CalibrationFit)
    assert noisy.scatter > 5 * plain.scatter
    assert noisy.devices[0].gain_u > 3 * plain.devices[0].gain_u
    assert np.abs(noisy.residual_w).max() > 4.0


def test_a_bend_that_looks_like_a_drift_does_not_hide_the_line():
    steps = make_steps([1.0], [0.0], around=False)  # warm where it works: bend and drift are the same
    fit = fit_calibration(steps, list_devices(1), DIRECT)
    assert isinstance(fit, CalibrationFit)
    (device,) = fit.devices
    assert device.heat_u > 1e-4
    assert device.gain_u < 0.001
    assert device.bend_half_w < 3.0


def test_rows_of_one_step_that_err_alike_count_as_one():
    steps = make_steps([1.0], [0.0], around=False)
    off = np.random.default_rng(6).normal(0, 3.0, len(steps))

    def split(parts):
        every = {
            name: np.repeat(getattr(steps, name), parts, axis=0)
            for name in ("number", "middle_s", "seconds", "reference_u_w", "device_w", "device_u_w", "celsius")
        }
        every |= {name: np.repeat(getattr(steps, name), parts, axis=0) for name in ("is_there", "beside")}
        return replace(steps, **every, reference_w=np.repeat(steps.reference_w + off, parts))

    one, four = (fit_calibration(split(parts), list_devices(1), DIRECT) for parts in (1, 4))
    assert isinstance(one, CalibrationFit)
    assert isinstance(four, CalibrationFit)
    assert four.devices[0].gain_u == pytest.approx(one.devices[0].gain_u, rel=0.1)


def test_a_second_staircase_shares_most_of_the_error_at_the_wall():
    fit = fit_calibration(make_steps([1.0], [0.0]), list_devices(1), WALL, CPU)
    assert isinstance(fit, CalibrationFit)
    (device,) = fit.devices
    assert 0 < device.own_u_w < 0.3 * device.compute_expanded(device.high_w) / 2


def make_refused(kind):
    steps, devices, reference = make_steps([1.0, 1.0], [0.0, 0.0]), list_devices(2), WALL
    if kind == "too-few-steps":
        steps = make_steps([1.0, 1.0], [0.0, 0.0], count=6, seed=3)
    elif kind == "one step":
        steps = replace(steps, number=np.zeros(30, int))
    elif kind == "slow-reference":
        reference = replace(WALL, update_s=60.0)
    elif kind == "small-range":
        steps = make_steps([1.0, 1.0], [0.0, 0.0], span=8.0)
    elif kind == "move-together":
        steps = make_steps([1.0, 1.0], [0.0, 0.0], together=True)
    elif kind == "does-not-follow":
        steps = replace(steps, reference_w=np.random.default_rng(2).normal(1500, 200, len(steps)))
    elif kind == "poor-fit":  # each step shows a part of the one before
        steps = replace(steps, reference_w=0.9 * steps.reference_w + 0.1 * np.roll(steps.reference_w, 1))
    elif kind == "unlikely-gain":
        steps = make_steps([1.5, 1.5], [0.0, 0.0])
    elif kind == "no-better.supply":
        reference = replace(WALL, supply=SupplyPrior(4000.0, (0.966, 0.1), (0.0125, 0.4), (0.018, 0.4)))
    elif kind == "no-better.rest-of-the-node":
        reference = replace(WALL, fans="unknown")
    elif kind == "no-better.reference":
        reference = replace(WALL, gain=0.1)
    return fit_calibration(steps, devices, reference, CPU)


@every_row(
    "kind, code, scope",
    [
        ("too-few-steps", "too-few-steps", ""),
        ("one step", "too-few-steps", ""),
        ("slow-reference", "slow-reference", ""),
        ("small-range", "small-range", "gpu:0"),
        ("move-together", "move-together", "gpu:0, gpu:1"),
        ("does-not-follow", "does-not-follow", "gpu:0, gpu:1"),
        ("poor-fit", "poor-fit", ""),
        ("unlikely-gain", "unlikely-gain", "gpu:0"),
        ("no-better.supply", "no-better.supply", "gpu:0"),
        ("no-better.rest-of-the-node", "no-better.rest-of-the-node", "gpu:0"),
        ("no-better.reference", "no-better.reference", "gpu:0"),
    ],
)
def test_steps_that_do_not_show_the_gains_are_refused(kind, code, scope):
    found = make_refused(kind)
    assert isinstance(found, FitRefusal)
    assert (found.code, found.scope) == (code, scope)
