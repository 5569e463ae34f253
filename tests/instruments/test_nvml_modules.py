"""Superchips, memory and processes: what NVML shows beyond a GPU, by a driver of Python functions."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from tests.instruments.test_nvml_read import Driver, single

from joulelab.core.scope import find_parent, find_roots
from joulelab.instruments.job_use import GpuUseReader
from joulelab.instruments.nvml import NvmlMeter, number_modules
from joulelab.instruments.nvml import client as codes
from joulelab.instruments.nvml.client import Gpu, Nvml
from joulelab.instruments.nvml.read import ProcessLoad

if TYPE_CHECKING:
    from pathlib import Path

GH200, GB200, H100 = "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H100 80GB HBM3"
# Field and scope: value in mJ or mW.
OWN = {(83, 0): 5_000, (186, 0): 300_000, (185, 0): 290_000}
WITH_MODULE = OWN | {(186, 1): 600_000, (185, 1): 590_000, (185, 2): 60_000}


def answer(values: dict[tuple[int, int], int], *, ignores_scopes: bool = False):
    """Answer nvmlDeviceGetFieldValues by field and scope."""

    def call(handle: Any, count: Any, pointer: Any) -> int:
        for cell in pointer._obj:
            known = values.get((cell.fieldId, 0 if ignores_scopes else cell.scopeId))
            cell.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            cell.nvmlReturn = codes.NOT_SUPPORTED if known is None else 0
            cell.value.ullVal = known or 0
        return 0

    return call


class Library(Driver):
    """A driver that lists GPUs, all with the same values."""

    def __init__(self, gpus: list[Gpu], values: dict[tuple[int, int], int], **more: Any) -> None:
        ignores = more.pop("ignores_scopes", False)
        super().__init__(nvmlDeviceGetFieldValues=answer(values, ignores_scopes=ignores), **more)
        self.listed = gpus

    def list_gpus(self) -> tuple[list[Gpu], dict[int, Any]]:
        return self.listed, {}

    def close(self) -> None:
        pass


def make_gpu(index: int, name: str, node: int | None = None) -> Gpu:
    chip = name != H100
    return Gpu(index, f"GPU-{index}", name, 9, superchip=chip, node=node, handle=ctypes.c_void_p(index + 1))


def opened(gpus: list[Gpu], values: dict[tuple[int, int], int], **more: Any) -> NvmlMeter:
    library: Any = Library(gpus, values, nvmlDeviceGetClockInfo=lambda *_: 0, **more)
    return NvmlMeter(library, {})


def powers(meter: NvmlMeter) -> dict[str, tuple[float, ...]]:
    return {s.scope: tuple(meter.read(s)) for s in meter.streams() if s.table != "state"}


def memory_w(meter: NvmlMeter) -> float:
    return meter.read(next(s for s in meter.streams() if s.table == "state"))[12]


def counted(meter: NvmlMeter, *more: str) -> list[str]:
    parents = {s.scope: find_parent(s.scope, s.parent) for s in meter.streams()}
    return find_roots([*parents, *more], parents)


def row(*values: float) -> Any:
    return pytest.approx(values, nan_ok=True)


def test_the_counter_of_grace_hopper_is_the_modules(tmp_path):
    meter = opened([make_gpu(0, GH200)], WITH_MODULE)
    assert powers(meter) == {"module:0": (5, 600, 590), "gpu:0": row(math.nan, 300, 290)}
    assert counted(meter) == ["module:0"]
    assert {s.parent for s in meter.streams() if s.scope == "gpu:0"} == {"module:0"}
    assert memory_w(meter) == 60


def test_an_older_driver_of_grace_hopper_has_the_counter_only():
    meter = opened([make_gpu(0, GH200)], OWN, nvmlDeviceGetTotalEnergyConsumption=single(7_000))
    assert powers(meter) == {"module:0": row(5, math.nan, math.nan), "gpu:0": row(math.nan, 300, 290)}


def test_both_gpus_of_a_module_show_it_and_it_is_read_once_without_a_counter():
    gpus = [make_gpu(k, GB200, node) for k, node in enumerate((0, 0, 1, 1))]
    meter = opened(gpus, WITH_MODULE)
    found = powers(meter)
    assert found["module:0"] == found["module:1"] == row(math.nan, 600, 590)
    assert math.isnan(found["gpu:3"][0])
    assert counted(meter) == ["module:0", "module:1"]
    assert sum(m.what == "its energy counter is not read" for m in meter.missing()) == 4


def test_modules_without_a_known_socket_are_not_read():
    gpus = [make_gpu(0, GB200), make_gpu(1, GB200)]
    assert number_modules(gpus) == {}
    meter = opened(gpus, WITH_MODULE)
    assert counted(meter) == ["gpu:0", "gpu:1"]
    assert any(m.what == "its module is not read" for m in meter.missing())


@pytest.mark.parametrize("name", [H100, GB200])
def test_a_driver_that_ignores_scopes_shows_neither_module_nor_memory(name):
    meter = opened([make_gpu(0, name)], OWN, ignores_scopes=True)
    assert list(powers(meter)) == ["gpu:0"]
    assert math.isnan(memory_w(meter))


def test_other_gpus_keep_their_counter_and_may_have_memory():
    meter = opened([make_gpu(0, H100), make_gpu(1, H100)], OWN | {(185, 2): 60_000})
    assert powers(meter)["gpu:1"] == (5, 300, 290)
    assert counted(meter) == ["gpu:0", "gpu:1"]
    assert memory_w(meter) == 60
    assert math.isnan(memory_w(opened([make_gpu(0, H100)], OWN | {(185, 2): 0})))


def test_zero_watts_of_a_module_is_no_reading():
    values = dict(WITH_MODULE)
    meter = opened([make_gpu(0, GH200)], values)
    values[186, 1] = values[185, 2] = 0
    assert powers(meter)["module:0"] == row(5, math.nan, 590)
    assert math.isnan(memory_w(meter))


def test_the_socket_of_a_gpu_is_the_numa_node_of_its_device(tmp_path, monkeypatch):
    monkeypatch.setattr("joulelab.instruments.nvml.client.PCI", tmp_path)
    (tmp_path / "0009:01:00.0").mkdir()
    nvml = Nvml.__new__(Nvml)
    pci = SimpleNamespace(busIdLegacy=b"0009:01:00.0")
    nvml.binding = SimpleNamespace(nvmlDeviceGetPciInfo=lambda _: pci, NVMLError=pynvml.NVMLError)
    for content, node in (("1", 1), ("-1", None), ("x", None)):
        (tmp_path / "0009:01:00.0" / "numa_node").write_text(content)
        assert nvml._find_node(None) == node


# Processes.


def processes(loads: dict[int, int], code: int = 0):
    """Answer nvmlDeviceGetProcessUtilization with one sample per process."""

    def call(handle: Any, out: Any, count: Any, since: Any) -> int:
        room, count._obj.value = count._obj.value, len(loads)
        if call.code or room < len(loads):
            return call.code or codes.INSUFFICIENT_SIZE
        for k, (pid, load) in enumerate(loads.items()):
            out[k].pid, out[k].smUtil, out[k].timeStamp = pid, load, since.value + 1
        return 0

    call.code = code
    return call


def proc(root: Path, parents: dict[int, int]) -> Path:
    for pid, parent in parents.items():
        (root / str(pid)).mkdir()
        (root / str(pid) / "stat").write_text(f"{pid} (a) b) S {parent} 0 0")
    return root


def load_of(function: Any, root: Path, workload: int | None = 10) -> ProcessLoad:
    driver: Any = Driver(nvmlDeviceGetProcessUtilization=function)
    load = ProcessLoad(driver, root)
    load.workload = workload
    return load


def test_the_load_of_the_workload_is_told_apart_from_that_of_others(tmp_path):
    root = proc(tmp_path, {10: 5, 11: 10, 12: 11, 5: 1, 40: 5})
    load = load_of(processes({12: 30, 11: 20, 40: 25}), root)
    assert load.read_shares(None, is_used=True) == pytest.approx((0.5, 0.25))
    many = load_of(processes(dict.fromkeys(range(1000, 1100), 1)), proc(tmp_path, dict.fromkeys(range(1000, 1100), 10)))
    assert many.read_shares(None, is_used=True) == pytest.approx((1.0, 0.0))


def test_a_process_of_the_run_that_lost_its_parents_is_not_of_others(tmp_path):
    root = proc(tmp_path, {10: 5, 5: 1, 40: 1, 41: 40, 50: 1, 60: 1})
    for pid, run in ((10, "/runs/a"), (40, "/runs/a"), (50, "/runs/b")):
        (root / str(pid) / "environ").write_text(f"A=1\0JOULELAB_RUN={run}\0")
    load = load_of(processes({40: 30, 41: 20, 50: 10, 60: 5}), root)
    assert load.read_shares(None, is_used=True) == pytest.approx((0.5, 0.15))


def test_what_is_not_known_is_not_a_share(tmp_path):
    root = proc(tmp_path, {10: 1})
    assert load_of(processes({10: 50}), root, None).read_shares(None, is_used=True) == row(math.nan, math.nan)
    assert load_of(processes({77: 50}), root).read_shares(None, is_used=True) == row(math.nan, math.nan)  # in no /proc
    assert load_of(None, root).read_shares(None, is_used=True) == row(math.nan, math.nan)
    refused = load_of(processes({}, codes.NO_PERMISSION), root)
    assert refused.read_shares(None, is_used=False) == row(math.nan, math.nan)
    silent = load_of(processes({}, codes.NOT_FOUND), root)
    assert silent.read_shares(None, is_used=True) == row(math.nan, math.nan)
    assert silent.read_shares(None, is_used=False) == (0, 0)


def test_a_driver_that_is_slow_to_tell_the_load_is_not_asked_again(tmp_path, monkeypatch):
    times = iter(range(0, 10**12, 6_000_000))
    monkeypatch.setattr("joulelab.instruments.nvml.read.monotonic_ns", lambda: next(times))
    load = load_of(processes({10: 50}), proc(tmp_path, {10: 1}))
    assert [load.read_shares(None, is_used=True)[0] for _ in range(4)] == row(0.5, 0.5, 0.5, math.nan)


def test_a_clock_that_is_set_back_does_not_silence_the_loads(tmp_path):
    asked = []

    def answer(_handle, _samples, _count, since):
        asked.append(since.value)
        return codes.NOT_FOUND

    load = load_of(answer, proc(tmp_path, {10: 1}))
    load._last_us = 2**62
    load.read_loads(None, is_used=False)
    assert 0 < asked[0] < 2**61


def test_no_sample_means_rest_only_if_the_whole_gpu_rests():
    """A process that has opened a GPU and rests has a load of 0; without a new sample of a busy GPU it is not known."""
    for percent, expected in ((0, ({}, (7,))), (30, None)):

        def read_rates(_handle, rates, percent=percent):
            rates._obj.gpu = percent
            return 0

        def list_processes(_handle, count, out):
            count._obj.value, out[0].pid = 1, 7
            return 0

        driver: Any = Driver(
            nvmlDeviceGetProcessUtilization=processes({}, codes.NOT_FOUND),
            nvmlDeviceGetUtilizationRates=read_rates,
            nvmlDeviceGetComputeRunningProcesses_v3=list_processes,
        )
        assert GpuUseReader(driver, None).read_use() == expected
