"""Use calibrations in an analysis: the rule of use, corrected values, error sources that runs share."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.analysis.virtual import counter_spec, ns, power_spec, readings
from tests.rows import every_row

from joulelab.analysis.calibrations import (
    YEAR_S,
    CalibratedAccuracy,
    CalibrationUse,
    DeviceCalibration,
    RunCalibrations,
    calibrate_channel,
    convert_power,
    judge_use,
    make_level_terms,
    read_calibrations,
    read_drivers,
    replace_calibrations,
)
from joulelab.analysis.counter import CounterCurve
from joulelab.analysis.power import PowerCurve
from joulelab.core.spec import Accuracy, Stream

ROW = {
    "meter": "nvml",
    "scope": "gpu:0",
    "device": "GPU-1",
    "model": "H100",
    "driver": "550.1",
    "gain": 0.95,
    "offset_w": 3.0,
    "low_w": 70.0,
    "high_w": 700.0,
    "cold_c": 35.0,
    "hot_c": 75.0,
    "bend_w": 0.0,
    "heat_per_k": 0.0001,
    "factors": [[0.005, 0.0], [0.0, 2.0]],
}
EVENT = {"event": "calibration", "id": "c1", "utc_s": 1.7e9, "host": "n1", "reference": {"text": "analyzer"}}
STREAM = Stream("gpu:0.power", "power", "gpu:0", 0.1, (), device="GPU-1", model="H100")


def read_one(**changes) -> DeviceCalibration:
    ((host, one),) = read_calibrations([{**EVENT, "devices": [{**ROW, **changes}]}])
    assert host == "n1"
    return one


def judge(one, **changes) -> CalibrationUse:
    usual = {"utc_s": 1.7e9, "model": "H100", "driver": "550.1", "celsius": 60.0, "high_w": 600.0}
    return judge_use(one, **{**usual, **changes})


@every_row(
    "changes, is_used, wider, codes",
    [
        ({}, True, 0.0, ()),
        ({"utc_s": None, "model": "", "driver": "", "celsius": None, "high_w": None}, True, 0.0, ()),
        ({"utc_s": 1.7e9 + 2 * YEAR_S}, True, 0.005, ("calibration.old",)),
        ({"utc_s": 1.7e9 + 3.1 * YEAR_S}, False, 0.0, ()),
        ({"model": "A100"}, False, 0.0, ()),
        ({"driver": "560.2"}, True, 0.01, ("calibration.driver",)),
        ({"celsius": 90.0}, True, 0.002, ("calibration.temperature",)),
        ({"celsius": 20.0}, True, 0.002, ("calibration.temperature",)),
        ({"celsius": 120.0}, False, 0.0, ()),
        ({"high_w": 800.0}, True, 0.01, ("calibration.load",)),
        ({"high_w": 1049.0}, True, 0.01, ("calibration.load",)),
        ({"high_w": 1051.0}, False, 0.0, ()),
        ({"driver": "1", "high_w": 800.0}, True, math.hypot(0.01, 0.01), ("calibration.driver", "calibration.load")),
    ],
)
def test_the_rule_of_use(changes, is_used, wider, codes):
    use = judge(read_one(), **changes)
    assert (use.is_used, tuple(code for code, _ in use.doubts)) == (is_used, codes)
    assert use.wider == pytest.approx(wider)


@every_row(
    "changes",
    [
        {"gain": 5.0},
        {"gain": "much"},
        {"factors": [[1.0]]},
        {"factors": [[math.inf, 0.0]]},
        {"factors": []},
        {"factors": [[0.0, 0.0]]},
        {"high_w": -5.0},
        {"bend_w": -1.0},
        {"device": None, "offset_w": None},
        {"sources": ["a"]},
        {"sources": ["a", "a"]},
    ],
)
def test_rows_with_unusable_values_are_left_out(changes):
    assert read_calibrations([{**EVENT, "devices": [{**ROW, **changes}]}]) == []


def test_events_without_devices_or_a_date_are_left_out():
    assert read_calibrations([{**EVENT, "devices": "none"}, {**EVENT, "utc_s": 1e30, "devices": [ROW]}]) == []


def test_a_power_is_corrected_and_has_the_errors_of_its_calibration():
    one = read_one(bend_w=1.5)
    spec, value = calibrate_channel(power_spec(gain=0.06, limits=(0.0, 700.0)), np.full(101, 400.0), one, judge(one))
    curve = PowerCurve(readings(np.arange(101) * 0.1, value), spec, name="x")
    energy = curve.energy(ns(1), ns(9))
    assert energy.value == pytest.approx(8 * (0.95 * 400 + 3))
    # By gain 0.5 % of 0.95, by offset 2 W: 8 s x 400 W x 0.005, 8 s x 2 W.
    assert energy.terms[f"gain:calibrated/{one.identity}/0"] == pytest.approx(8 * 400 * 0.005)
    assert energy.terms[f"gain:calibrated/{one.identity}/1"] == pytest.approx(8 * 2.0)
    assert energy.terms[f"offset:calibrated/{one.identity}/nvml/GPU-1/bend/2"] == pytest.approx(8 * 1.5 / math.sqrt(3))
    assert not any(source.startswith(("gain:x", "offset:x")) for source in energy.terms)
    assert spec.limits == (3.0, 0.95 * 700 + 3)
    assert convert_power(spec.accuracy, 700.0) == 0.95 * 700 + 3


def test_a_calibration_is_for_channels_of_the_sensor_that_was_fitted():
    accuracies = (Accuracy(shared="nvml:H100"), Accuracy(shared="nvml:H100"), Accuracy(shared="nvml:module"))
    counter, power, module = (
        replace(power_spec(), name=name, accuracy=accuracy)
        for name, accuracy in zip(("energy_j", "power_w", "module_w"), accuracies, strict=True)
    )
    specs = [counter, power, module]
    assert read_one(channel="energy_j").select_channels(specs) == [counter, power]
    assert read_one(channel="module_w").select_channels(specs) == [module]
    assert read_one().select_channels(specs) == specs  # older files name none
    alone = replace(counter, accuracy=Accuracy())
    assert read_one(channel="energy_j").select_channels([alone, replace(power, accuracy=Accuracy())]) == [alone]


def test_calibrations_against_one_reference_share_its_error():
    energies = []
    for number, sources in ((1, ["calibration-reference/S1/gain", ""]), (2, ["calibration-reference/S1/gain", ""])):
        row = {**ROW, "offset_w": 0.0, "factors": [[0.01, 0.0], [0.01, 0.0]], "sources": sources}
        ((_, one),) = read_calibrations([{**EVENT, "id": f"c{number}", "devices": [row]}])
        spec, value = calibrate_channel(power_spec(), np.full(101, 400.0), one, judge(one))
        energies.append(PowerCurve(readings(np.arange(101) * 0.1, value), spec, name="a").energy(ns(1), ns(9)))
    first, second = energies
    part = 8 * 400.0 * 0.01
    assert (first + second).u == pytest.approx(part * math.hypot(2, math.sqrt(2)), rel=0.01)
    assert (first - second).u == pytest.approx(part * math.sqrt(2), rel=0.01)


def test_the_error_of_a_bent_sensor_cancels_at_the_same_load_only():
    one = read_one(bend_w=3.0, factors=[[0.0002, 0.0]])
    energies = []
    for watts in (400.0, 410.0, 80.0):
        spec, value = calibrate_channel(power_spec(), np.full(101, watts), one, judge(one))
        energies.append(PowerCurve(readings(np.arange(101) * 0.1, value), spec, name="a").energy(ns(1), ns(9)))
    first, alike, idle = energies
    assert (first - alike).u < 0.1
    assert (first - idle).u == pytest.approx(math.sqrt(2) * 8 * 3.0 / math.sqrt(3), rel=0.01)
    assert "bend" not in str(make_level_terms(spec.accuracy, "a", 0.0, 0.0))


def test_a_counter_is_corrected_without_losing_its_steps():
    one = read_one()
    plain = counter_spec(gain=0.06, modulus=2000.0)
    spec, value = calibrate_channel(plain, (np.arange(101) * 40.0) % 2000.0, one, judge(one, driver="2"))
    curve = CounterCurve(readings(np.arange(101) * 0.1, value), spec, name="x")
    energy = curve.energy(ns(1), ns(9))
    assert energy.value == pytest.approx(8 * (0.95 * 400 + 3), rel=1e-3)
    assert energy.terms[f"gain:calibrated/{one.identity}/nvml/GPU-1/driver 2"] == pytest.approx(
        energy.value * 0.01 / math.sqrt(3)
    )
    assert isinstance(spec.accuracy, CalibratedAccuracy)
    assert spec.accuracy.missing_w == 3.0
    assert curve.find_powers(1.0).value == pytest.approx(383.0, rel=0.01)


def test_the_errors_of_a_calibration_cancel_in_the_ratio_of_two_runs():
    one = read_one(factors=[[0.02, 0.0]], offset_w=0.0)
    spec, value = calibrate_channel(power_spec(), np.full(101, 400.0), one, judge(one))
    first = PowerCurve(readings(np.arange(101) * 0.1, value), spec, name="a").energy(ns(1), ns(9))
    second = PowerCurve(readings(np.arange(101) * 0.1, 0.8 * value), spec, name="b").energy(ns(1), ns(9))
    assert first.relative > 0.04
    assert (second / first).relative < 0.01


def test_widths_for_different_reasons_do_not_cancel():
    one = read_one(factors=[[0.001, 0.0]])
    energies = []
    for change in ({"celsius": 100.0}, {"celsius": 10.0}, {"driver": "2"}, {"driver": "3"}):
        spec, value = calibrate_channel(power_spec(), np.full(101, 400.0), one, judge(one, **change))
        energies.append(PowerCurve(readings(np.arange(101) * 0.1, value), spec, name="a").energy(ns(1), ns(9)))
    hot, cold, second, third = energies
    assert (cold / hot).expanded > 2 * math.hypot(0.004, 0.004) / math.sqrt(3) * 0.9
    assert (third / second).expanded > 2 * math.hypot(0.01, 0.01) / math.sqrt(3) * 0.9
    assert (second / second).expanded < 0.01


def test_errors_of_two_fits_of_one_staircase_do_not_cancel():
    first, second = read_one(factors=[[0.02, 0.0]]), read_one(gain=0.97, factors=[[0.02, 0.0]])
    energies = []
    for one in (first, second):
        spec, value = calibrate_channel(power_spec(), np.full(101, 400.0), one, judge(one))
        energies.append(PowerCurve(readings(np.arange(101) * 0.1, value), spec, name="a").energy(ns(1), ns(9)))
    ratio = energies[1] / energies[0]
    assert abs(ratio.value - 1) < ratio.expanded


def test_a_gpu_is_found_by_its_uuid_and_other_devices_also_by_their_scope():
    gpu, cpu = read_one(), read_one(meter="rapl", scope="cpu:0", device="")
    assert gpu.fits_stream("n1", "nvml", replace(STREAM, scope="gpu:5"))
    assert not gpu.fits_stream("n1", "redfish", STREAM)
    assert not gpu.fits_stream("n1", "nvml", replace(STREAM, device="GPU-2"))
    assert cpu.fits_stream("n1", "rapl", replace(STREAM, scope="cpu:0", device=""))
    assert not cpu.fits_stream("n1", "rapl", replace(STREAM, scope="cpu:1", device=""))
    assert gpu.fits_stream("n2", "nvml", STREAM)
    assert not cpu.fits_stream("n2", "rapl", replace(STREAM, scope="cpu:0", device=""))


def test_the_newest_calibration_that_may_be_used_counts():
    old, new = {**EVENT, "id": "old", "devices": [ROW]}, {**EVENT, "id": "new", "utc_s": 1.71e9, "devices": [ROW]}
    meta = {"started": {"utc_ns": 171 * 10**16}}
    found = RunCalibrations.from_events([old, new], meta).find_use("n1", "nvml", STREAM, {}, 500.0)
    assert found is not None
    assert found[0].identity.startswith("new.")
    other = {**new, "devices": [{**ROW, "model": "A100"}]}
    found = RunCalibrations.from_events([old, other], meta).find_use("n1", "nvml", STREAM, {}, 500.0)
    assert found is not None
    assert found[0].identity.startswith("old.")
    assert RunCalibrations.from_events([other], {}).find_use("n1", "nvml", STREAM, {}, None) is None
    assert RunCalibrations.from_events([], meta).find_use("n1", "nvml", STREAM, {}, None) is None
    assert RunCalibrations.from_events([new], meta).list_fitting("n2", "nvml", STREAM) == []


def test_the_temperature_of_a_run_and_its_driver_are_compared():
    devices = {"event": "devices", "gpus": [{"uuid": "GPU-1", "driver": "560"}]}
    assert read_drivers([devices, {"event": "devices"}]) == {"GPU-1": "560"}
    known = RunCalibrations.from_events([{**EVENT, "devices": [ROW]}, devices], {"started": {"utc_ns": 17 * 10**17}})
    state = {"temperature_c": readings([0, 1], [88.0, 92.0])}
    found = known.find_use("n1", "nvml", STREAM, state, None)
    assert found is not None
    assert [code for code, _ in found[1].doubts] == ["calibration.driver", "calibration.temperature"]


def test_another_calibration_takes_the_place_of_the_stored_ones():
    events = [{**EVENT, "devices": [ROW]}, {"event": "idle"}]
    assert replace_calibrations(events, None) == events
    assert replace_calibrations(events, {}) == events[1:]
    (_, other) = replace_calibrations(events, {"id": "c2"})
    assert (other["id"], other["host"]) == ("c2", "")
