"""What drivers do that the simulated one does not: no fields, single failures, old functions."""

from __future__ import annotations

import ctypes
import math

import pynvml
import pytest
from tests.rows import every_row

from joulelab.core.errors import Denied, DeviceLost, ReadFailed, Unavailable
from joulelab.instruments.nvml import client as codes
from joulelab.instruments.nvml.client import Gpu
from joulelab.instruments.nvml.read import AVERAGE, INSTANT, PowerReader, StateReader, decode_value

GPU = Gpu(3, "GPU-3", "Test", handle=ctypes.c_void_p(1))


class Driver:
    """An NVML of Python functions; a pointer argument's target is its `_obj`."""

    binding = pynvml

    def __init__(self, **functions) -> None:
        self.functions = functions
        self.handles = 0

    def find_function(self, name):
        return self.functions.get(name)

    def explain_code(self, code, what):
        return codes.explain_reading(code, f"code {code}", what)

    def find_handle(self, uuid):
        self.handles += 1
        return ctypes.c_void_p(2)


def fields(answers, code=0):
    """Answer nvmlDeviceGetFieldValues: field id -> (value, return code)."""

    def call(handle, count, pointer):
        for i, cell in enumerate(pointer._obj):
            value, answer = answers.get(cell.fieldId, (0, codes.NOT_SUPPORTED))
            kind = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            filled = {"valueType": kind, "nvmlReturn": answer, "value": pynvml.c_nvmlValue_t(ullVal=value)}
            pointer._obj[i] = pynvml.c_nvmlFieldValue_t(fieldId=cell.fieldId, **filled)
        return call.code

    call.code = code
    return call


def single(value, code=0):
    def call(handle, pointer):
        pointer._obj.value = value
        return call.code

    call.code = code
    return call


def test_all_in_one_call():
    answers = {83: (5_000, 0), 186: (250_000, 0), 185: (240_500, 0)}
    reader = PowerReader(Driver(nvmlDeviceGetFieldValues=fields(answers)), GPU, AVERAGE)
    assert reader.read() == (5.0, 250.0, 240.5)


@pytest.mark.parametrize(("plain", "row"), [(INSTANT, (7.0, 100.0, math.nan)), (AVERAGE, (7.0, math.nan, 100.0))])
@pytest.mark.parametrize("fields_are", ["missing", "refused", "unsupported"])
def test_older_drivers_have_single_functions(plain, row, fields_are):
    functions = {"nvmlDeviceGetTotalEnergyConsumption": single(7_000), "nvmlDeviceGetPowerUsage": single(100_000)}
    if fields_are != "missing":
        functions["nvmlDeviceGetFieldValues"] = fields({}, codes.INVALID_ARGUMENT if fields_are == "refused" else 0)
    reader = PowerReader(Driver(**functions), GPU, plain)
    assert reader.read() == pytest.approx(row, nan_ok=True)


def test_plain_power_does_not_displace_a_field():
    answers = {186: (250_000, 0), 185: (240_000, 0)}
    reader = PowerReader(
        Driver(nvmlDeviceGetFieldValues=fields(answers), nvmlDeviceGetPowerUsage=single(1)), GPU, AVERAGE
    )
    assert reader.read() == pytest.approx((math.nan, 250.0, 240.0), nan_ok=True)


def test_a_device_without_power_has_no_columns():
    assert PowerReader(Driver(), GPU, INSTANT).columns == frozenset()


def test_a_field_that_fails_alone_is_nan_and_all_failing_is_an_error():
    answers = {83: (5_000, 0), 186: (250_000, 0)}
    driver = Driver(nvmlDeviceGetFieldValues=fields(answers))
    reader = PowerReader(driver, GPU, INSTANT)
    answers[186] = (0, 999)
    assert reader.read() == pytest.approx((5.0, math.nan, math.nan), nan_ok=True)
    answers[83] = (0, 999)
    with pytest.raises(ReadFailed):
        reader.read()


def test_a_field_that_fails_at_first_is_kept():
    answers = {83: (5_000, 0), 186: (0, 999)}
    reader = PowerReader(Driver(nvmlDeviceGetFieldValues=fields(answers)), GPU, INSTANT)
    assert math.isnan(reader.read()[1])
    answers[186] = (90_000, 0)
    assert reader.read()[1] == 90


def test_a_driver_that_fails_at_first_is_asked_again():
    call = fields({83: (1_000, 0), 186: (2_000, 0), 185: (3_000, 0)}, code=999)
    reader = PowerReader(Driver(nvmlDeviceGetFieldValues=call), GPU, INSTANT)
    with pytest.raises(ReadFailed):
        reader.read()
    call.code = 0
    assert reader.read() == (1, 2, 3)


def test_a_lost_device_gets_a_fresh_handle():
    call = fields({83: (1_000, 0)})
    driver = Driver(nvmlDeviceGetFieldValues=call)
    reader = PowerReader(driver, GPU, INSTANT)
    call.code = codes.GPU_IS_LOST
    with pytest.raises(DeviceLost):
        reader.read()
    call.code = 0
    reader.read()
    assert driver.handles == 1


def test_values_of_every_declared_type():
    assert decode_value(1, 0xDEADBEEF00000007) == 7  # unsigned int: the rest is not set
    assert decode_value(3, 2**63) == 2**63
    assert math.isnan(decode_value(42, 1))


def test_state_of_an_older_driver():
    def load(handle, pointer):
        pointer._obj.gpu, pointer._obj.memory = 50, 25
        return 0

    def memory(handle, pointer):
        pointer._obj.used = 1024
        return 0

    def clock(handle, which, pointer):
        pointer._obj.value = 1000 * which
        return 0

    def heat(handle, sensor, pointer):
        pointer._obj.value = 61
        return 0

    driver = Driver(
        nvmlDeviceGetUtilizationRates=load,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetTemperature=heat,
        nvmlDeviceGetCurrentClocksThrottleReasons=single(4),
        nvmlDeviceGetPowerManagementLimit=single(300_000),
        nvmlDeviceGetEnforcedPowerLimit=single(0, codes.NOT_SUPPORTED),
    )
    row = StateReader(driver, GPU).read()
    assert row == pytest.approx([0.5, 0.25, 1024, 1e9, 2e9, 61, math.nan, 300, 4, *[math.nan] * 4], nan_ok=True)


def test_state_that_fails_is_an_error():
    call = single(1)
    driver = Driver(nvmlDeviceGetPowerManagementLimit=call)
    reader = StateReader(driver, GPU)
    assert reader.read()[7] == 0.001
    for code, kind in ((codes.NO_PERMISSION, Denied), (codes.GPU_IS_LOST, DeviceLost), (999, ReadFailed)):
        call.code = code
        with pytest.raises(kind, match="gpu:3 gives no state"):
            reader.read()
    assert driver.handles == 1


@every_row(
    ("code", "kind", "advice"),
    [
        (codes.LIBRARY_NOT_FOUND, Unavailable, "joulelab twin"),
        (codes.DRIVER_NOT_LOADED, Unavailable, "modprobe"),
        (codes.LIB_RM_VERSION_MISMATCH, Unavailable, "reboot"),
        (999, Unavailable, "nvidia-smi"),
        (codes.NO_PERMISSION, Denied, "/dev/nvidia"),
    ],
)
def test_a_library_that_does_not_open_says_what_to_do(code, kind, advice):
    error = codes.explain_opening(code, "text")
    assert type(error) is kind
    assert advice in error.next
