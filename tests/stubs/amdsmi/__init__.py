"""Stand in for AMD's `amdsmi` package (7.0.2): the same names, arguments and answers, for GPUs of a JSON file.

`AMDSMI_STUB` names the file: {"init": code or null, "gpus": [{"watts", "frozen", "errors": {function: code}, ...}]}.
It is read at every call, so that a test may change it. Energy counts from the monotonic clock's zero.
"""

from __future__ import annotations

import json
import os
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

RESOLUTION_UJ = 15.300000190734863  # 15.3 as the library's 32-bit float


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = abs(err_code)
        self.err_info = f"AMDSMI_STATUS_{self.err_code} - said by the stub"

    def __str__(self) -> str:
        return f"Error code:\n\t{self.err_code} | {self.err_info}"


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiClkType(IntEnum):
    GFX = 0
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


def _described() -> dict[str, Any]:
    return json.loads(Path(os.environ["AMDSMI_STUB"]).read_text())


def _gpu(processor_handle: int, function: str) -> dict[str, Any]:
    gpu = _described()["gpus"][processor_handle]
    code = gpu.get("errors", {}).get(function)
    if code:
        raise AmdSmiLibraryException(code)
    return gpu


def amdsmi_init(flag=AmdSmiInitFlags.INIT_AMD_GPUS):
    assert isinstance(flag, AmdSmiInitFlags)
    code = _described().get("init")
    if code:
        raise AmdSmiLibraryException(code)


def amdsmi_shut_down():
    pass


def amdsmi_get_processor_handles():
    return list(range(len(_described()["gpus"])))


def amdsmi_get_gpu_device_uuid(processor_handle):
    return _gpu(processor_handle, "uuid").get("uuid", f"00ff74a1-0000-1000-80ad-{processor_handle:012x}")


def amdsmi_get_gpu_asic_info(processor_handle):
    return {"market_name": _gpu(processor_handle, "asic").get("name", "AMD Instinct MI300X OAM")}


def amdsmi_get_energy_count(processor_handle):
    gpu = _gpu(processor_handle, "energy")
    now_ns = 0 if gpu.get("frozen") else time.monotonic_ns()
    joules = gpu.get("energy_j", gpu["watts"] * now_ns / 1e9)
    return {
        "energy_accumulator": int(joules * 1e6 / RESOLUTION_UJ),
        "counter_resolution": RESOLUTION_UJ,
        "timestamp": gpu.get("stamp", now_ns),
    }


def amdsmi_get_power_info(processor_handle):
    gpu = _gpu(processor_handle, "power")
    return {
        "socket_power": gpu["watts"],
        "current_socket_power": gpu.get("current", gpu["watts"]),
        "average_socket_power": gpu.get("average", "N/A"),
        "gfx_voltage": "N/A",
        "soc_voltage": "N/A",
        "mem_voltage": "N/A",
        "power_limit": 750,
    }


def amdsmi_get_power_cap_info(processor_handle):
    gpu = _gpu(processor_handle, "cap")
    scale = 1_000_000 if gpu.get("in_watts") else 1
    lowest, highest = gpu.get("caps_uw", (0, 750_000_000))
    caps = {"power_cap": gpu.get("cap_uw", 750_000_000), "default_power_cap": gpu.get("default_uw", 750_000_000)}
    caps |= {"min_power_cap": lowest, "max_power_cap": highest}
    return {name: cap // scale for name, cap in caps.items()} | {"dpm_cap": 2100}


def amdsmi_set_power_cap(processor_handle, sensor_ind, cap):
    gpu = _gpu(processor_handle, "set_cap")
    assert (type(sensor_ind), type(cap), sensor_ind) == (int, int, 0)
    cap_uw = cap * (1_000_000 if gpu.get("in_watts") else 1)
    lowest, highest = gpu.get("caps_uw", (0, 750_000_000))
    if not lowest <= cap_uw <= highest:
        raise AmdSmiLibraryException(1)
    described = _described()
    described["gpus"][processor_handle]["cap_uw"] = cap_uw
    Path(os.environ["AMDSMI_STUB"]).write_text(json.dumps(described))


def amdsmi_get_gpu_activity(processor_handle):
    gpu = _gpu(processor_handle, "activity")
    return {"gfx_activity": gpu.get("gfx", 80), "umc_activity": gpu.get("umc", 40), "mm_activity": "N/A"}


def amdsmi_get_clock_info(processor_handle, clock_type):
    assert isinstance(clock_type, AmdSmiClkType)
    _gpu(processor_handle, "clock")
    mhz = {AmdSmiClkType.GFX: 2100, AmdSmiClkType.MEM: 1300}[clock_type]
    return {"clk": mhz, "min_clk": 500, "max_clk": 2100, "clk_locked": False, "clk_deep_sleep": "N/A"}


def amdsmi_get_temp_metric(processor_handle, sensor_type, metric):
    assert isinstance(sensor_type, AmdSmiTemperatureType)
    assert isinstance(metric, AmdSmiTemperatureMetric)
    _gpu(processor_handle, f"temperature_{sensor_type.name.lower()}")
    return {AmdSmiTemperatureType.HOTSPOT: 71, AmdSmiTemperatureType.EDGE: 55}[sensor_type]


def amdsmi_get_gpu_memory_usage(processor_handle, mem_type):
    assert isinstance(mem_type, AmdSmiMemoryType)
    return _gpu(processor_handle, "memory").get("memory", 3 << 30)


def amdsmi_get_gpu_process_list(processor_handle):
    gpu = _gpu(processor_handle, "processes")
    return [{"name": "python", "pid": pid, "mem": 1} for pid in gpu.get("pids", [])]
