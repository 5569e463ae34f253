"""Read one NVIDIA GPU in the sampling loop: buffers made once, the C library called directly, SI units returned."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import DeviceLost, MeterError
from joulelab.instruments.nvml import errors as codes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.instruments.nvml.client import Gpu, Nvml

NAN: Final = float("nan")
PROC: Final = Path("/proc")
SLOW_NS, MOST_SLOW = 5_000_000, 3  # a call that takes longer is slow; so many in a row, and it is not called again
FIRST_US: Final = 1_000_000  # how far back the first reading of the processes' load reaches
# The columns of a power row, and the NVML fields that fill them, each with a scope: GPU, module or memory.
ENERGY, INSTANT, AVERAGE = 0, 1, 2
GPU, MODULE, MEMORY = 0, 1, 2
GPU_FIELDS: Final = {ENERGY: (83, GPU), INSTANT: (186, GPU), AVERAGE: (185, GPU)}  # mJ, mW, mW
# nvmlFieldValue_t: field, scope, time stamp and latency, which are not needed; value type, return code, value
_FIELD: Final = struct.Struct("=24xIIQ")
_UNSIGNED, _UNSIGNED_LONG_LONG = 1, 3
# Older drivers call a field that they do not know an invalid argument.
_UNKNOWN: Final = codes.ABSENT | {codes.INVALID_ARGUMENT}
_OTHER_TYPES: Final = {0: "=d", 2: "=Q", 4: "=q", 5: "=i", 6: "=H"}


def decode(kind: int, raw: int) -> float:
    """Return the number in an NVML value of a declared type; `raw` is its eight bytes."""
    if kind == _UNSIGNED_LONG_LONG:
        return raw
    if kind == _UNSIGNED:
        return raw & 0xFFFFFFFF
    if kind not in _OTHER_TYPES:
        return NAN
    number: float = struct.unpack_from(_OTHER_TYPES[kind], raw.to_bytes(8, sys.byteorder))[0]
    return number


class PowerReader:
    """Read the energy counter (J), instant and average power (W) of one GPU, in one call where the driver allows."""

    def __init__(
        self, nvml: Nvml, gpu: Gpu, plain: int | None, fields: Mapping[int, tuple[int, int]] = GPU_FIELDS
    ) -> None:
        """Find out what this device has; `plain` is the column that plain power usage belongs to, None for no column.

        `fields` are NVML's fields and scopes by column.
        """
        self._nvml = nvml
        self._gpu = gpu
        self._handle = gpu.handle
        self._wanted = fields
        self._fields = nvml.function("nvmlDeviceGetFieldValues")
        self._columns: list[int] = []
        self._arrange(sorted(fields))
        self._arrange(self._present())
        self._single: list[tuple[int, Callable[..., int], Any, Any]] = []
        if ENERGY in fields:
            self._add_single(ENERGY, "nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong())
        if plain is not None:
            self._add_single(plain, "nvmlDeviceGetPowerUsage", ctypes.c_uint())
        self.columns = frozenset(self._columns) | {column for column, *_ in self._single}
        self._lost = False

    def read(self) -> tuple[float, float, float]:
        """Return J, W, W; NaN for what the device has not. Raises ReadFailed, Denied, DeviceLost."""
        row = [NAN, NAN, NAN]
        if self._lost:
            self._handle = self._nvml.handle(self._gpu.uuid)
            self._lost = False
        got, failed = False, 0
        if self._columns:
            code = self._fields(self._handle, self._count, self._pointer)  # type: ignore[misc]
            if code:
                raise self._failure(code)
            for column, (kind, code, raw) in zip(self._columns, _FIELD.iter_unpack(self._buffer), strict=True):
                if code:
                    failed = code
                else:
                    row[column] = decode(kind, raw) / 1000
                    got = True
        for column, function, cell, pointer in self._single:
            code = function(self._handle, pointer)
            if code:
                failed = code
            else:
                row[column] = cell.value / 1000
                got = True
        if not got:
            raise self._failure(failed)
        return row[0], row[1], row[2]

    def read_above_zero(self) -> tuple[float, float, float]:
        """Return a row in which 0 is no reading: what is powered draws power. Raises as `read`."""
        energy, instant, average = self.read()
        return energy or NAN, instant or NAN, average or NAN

    def _failure(self, code: int) -> MeterError:
        error = self._nvml.failed(code, f"gpu:{self._gpu.index} gives no power", "nvml")
        self._lost = isinstance(error, DeviceLost)
        return error

    def _arrange(self, columns: Sequence[int]) -> None:
        """Lay out one array of fields for these columns, used in every call from now on."""
        self._columns = list(columns)
        array = (self._nvml.binding.c_nvmlFieldValue_t * max(1, len(columns)))()
        for cell, column in zip(array, columns, strict=False):
            cell.fieldId, cell.scopeId = self._wanted[column]
        self._buffer = memoryview((ctypes.c_char * (_FIELD.size * len(columns))).from_buffer(array))
        self._pointer = ctypes.byref(array)
        self._count = ctypes.c_int(len(columns))

    def _present(self) -> list[int]:
        code = codes.FUNCTION_NOT_FOUND
        if self._fields is not None:
            code = self._fields(self._handle, self._count, self._pointer)
        if code in _UNKNOWN:
            return []
        if code:
            return self._columns  # it fails now, which does not say that it never will work
        answers = zip(self._columns, _FIELD.iter_unpack(self._buffer), strict=True)
        return [column for column, (_, answer, _) in answers if answer not in _UNKNOWN]

    def _add_single(self, column: int, name: str, cell: Any) -> None:
        function = self._nvml.function(name)
        if column in self._columns or function is None:
            return
        pointer = ctypes.byref(cell)
        if function(self._handle, pointer) not in _UNKNOWN:
            self._single.append((column, function, cell, pointer))


class ProcessLoad:
    """Read which share of a GPU's time the workload's processes use, and which all others; both from 0 to 1.

    A process is one of the workload's if its parents lead to it. In a container, NVML may give numbers that are not
    those of its /proc: a process that is not there is nobody's, and both shares are unknown. A driver that is slow to
    answer is not asked any more: power is read in the same thread.
    """

    def __init__(self, nvml: Nvml, proc: Path = PROC) -> None:
        """Make the buffers; `workload` is the process to follow, None before it has started."""
        self.workload: int | None = None
        self._proc = proc
        self._function = nvml.function("nvmlDeviceGetProcessUtilization")
        self._sample = nvml.binding.c_nvmlProcessUtilizationSample_t
        self._samples = (self._sample * 64)()
        self._count = ctypes.c_uint()
        self._last = 0
        self._slow = 0
        self._own: dict[int, bool | None] = {}

    def read(self, handle: Any, *, is_used: bool) -> tuple[float, float]:
        """Return both shares since the last reading; NaN where they are not known.

        A GPU that has processes (`is_used`) and no new sample of them gives no shares.
        """
        if self._function is None or self.workload is None:
            return NAN, NAN
        self._last = self._last or time.time_ns() // 1000 - FIRST_US
        begin_ns = monotonic_ns()
        for _ in range(2):
            self._count.value = len(self._samples)
            arguments = self._samples, ctypes.byref(self._count), ctypes.c_ulonglong(self._last)
            code = self._function(handle, *arguments)
            if code != codes.INSUFFICIENT_SIZE:
                break
            self._samples = (self._sample * (2 * max(self._count.value, 64)))()
        self._slow = self._slow + 1 if monotonic_ns() - begin_ns > SLOW_NS else 0
        if self._slow >= MOST_SLOW:
            self._function = None
        if code == codes.SUCCESS:
            return self._share(self._samples[: self._count.value])
        return (0.0, 0.0) if code == codes.NOT_FOUND and not is_used else (NAN, NAN)

    def _share(self, samples: Sequence[Any]) -> tuple[float, float]:
        loads: dict[int, list[int]] = {}
        for sample in samples:
            loads.setdefault(sample.pid, []).append(sample.smUtil)
            self._last = max(self._last, sample.timeStamp)
        self._own = {pid: self._own.get(pid) or self._is_own(pid) for pid in loads}
        if None in self._own.values():
            return NAN, NAN
        shares = {pid: sum(seen) / len(seen) / 100 for pid, seen in loads.items()}
        mine = sum(share for pid, share in shares.items() if self._own[pid])
        return min(mine, 1.0), min(sum(shares.values()) - mine, 1.0)

    def _is_own(self, pid: int) -> bool | None:
        """Return whether a process descends from the workload, None if it is not there."""
        first = pid
        while pid > 1:
            if pid == self.workload:
                return True
            try:
                # The command may hold spaces and brackets; what follows the last bracket does not.
                pid = int((self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                return None if pid == first else False
        return False


class StateReader:
    """Read what changes slowly: load, memory, clocks, temperature, caps, throttling, processes and their load."""

    COLUMNS: Final = 13

    def __init__(self, nvml: Nvml, gpu: Gpu, memory: PowerReader | None = None) -> None:
        """Make the buffers; what the device has not stays NaN. `memory` reads the power of its memory."""
        self._memory_power = memory
        self._nvml = nvml
        self._gpu = gpu
        self._handle = gpu.handle
        self._lost = False
        self.pids: tuple[int, ...] | None = None
        self.process_load = ProcessLoad(nvml)
        binding = nvml.binding
        self._load = binding.c_nvmlUtilization_t()
        self._memory = binding.c_nvmlMemory_v2_t(version=binding.nvmlMemory_v2)
        self._temperature = binding.c_nvmlTemperature_v1_t(version=binding.nvmlTemperature_v1)
        self._cell = ctypes.c_uint()
        self._mask = ctypes.c_ulonglong()
        self._calls = self._build_calls()
        self._processes = nvml.function("nvmlDeviceGetComputeRunningProcesses_v3")
        self._room = 32
        self._make_room()

    def read(self) -> list[float]:
        """Return a row (0..1, 0..1, B, Hz, Hz, degC, W, W, bits, count, 0..1, 0..1, W).

        Raises ReadFailed, Denied, DeviceLost.
        """
        if self._lost:
            self._handle = self._nvml.handle(self._gpu.uuid)
            self._lost = False
        row: list[float] = [NAN] * self.COLUMNS
        failed, got = codes.NOT_SUPPORTED, False
        for function, arguments, fill in self._calls:
            code = function(self._handle, *arguments)
            if code == codes.SUCCESS:
                fill(row)
                got = True
            elif code not in codes.ABSENT:
                failed = code
        if not got:
            error = self._nvml.failed(failed, f"gpu:{self._gpu.index} gives no state", "nvml")
            self._lost = isinstance(error, DeviceLost)
            raise error
        self.pids = self._read_pids()
        if self.pids is not None:
            row[9] = len(self.pids)
        row[10], row[11] = self.process_load.read(self._handle, is_used=self.pids != ())
        if self._memory_power is not None:
            with contextlib.suppress(MeterError):
                row[12] = self._memory_power.read_above_zero()[AVERAGE]
        return row

    def _build_calls(self) -> list[tuple[Callable[..., int], tuple[Any, ...], Callable[[list[float]], None]]]:
        cell, mask, load, memory = self._cell, self._mask, self._load, self._memory
        byref = ctypes.byref

        def set_load(row: list[float]) -> None:
            row[0], row[1] = load.gpu / 100, load.memory / 100

        def put(column: int, scale: float) -> Callable[[list[float]], None]:
            def fill(row: list[float]) -> None:
                row[column] = cell.value * scale

            return fill

        used, heat = self._old_or_new_memory(memory), self._old_or_new_temperature()
        reasons = "nvmlDeviceGetCurrentClocksEventReasons"
        if self._nvml.function(reasons) is None:
            reasons = "nvmlDeviceGetCurrentClocksThrottleReasons"  # until driver 535
        wanted: list[tuple[str, tuple[Any, ...], Callable[[list[float]], None]]] = [
            ("nvmlDeviceGetUtilizationRates", (byref(load),), set_load),
            used,
            ("nvmlDeviceGetClockInfo", (1, byref(cell)), put(3, 1e6)),  # SM clock, MHz
            ("nvmlDeviceGetClockInfo", (2, byref(cell)), put(4, 1e6)),  # memory clock, MHz
            heat,
            ("nvmlDeviceGetEnforcedPowerLimit", (byref(cell),), put(6, 1e-3)),
            ("nvmlDeviceGetPowerManagementLimit", (byref(cell),), put(7, 1e-3)),
            (reasons, (byref(mask),), lambda row: row.__setitem__(8, mask.value)),
        ]
        found = ((self._nvml.function(name), arguments, fill) for name, arguments, fill in wanted)
        return [(function, arguments, fill) for function, arguments, fill in found if function is not None]

    def _old_or_new_memory(self, memory: Any) -> tuple[str, tuple[Any, ...], Callable[[list[float]], None]]:
        # The second version leaves out what the driver reserves, as nvidia-smi does.
        new = self._nvml.function("nvmlDeviceGetMemoryInfo_v2")
        if new is not None and new(self._handle, ctypes.byref(memory)) == codes.SUCCESS:
            return "nvmlDeviceGetMemoryInfo_v2", (ctypes.byref(memory),), lambda row: row.__setitem__(2, memory.used)
        old = self._nvml.binding.c_nvmlMemory_t()
        return "nvmlDeviceGetMemoryInfo", (ctypes.byref(old),), lambda row: row.__setitem__(2, old.used)

    def _old_or_new_temperature(self) -> tuple[str, tuple[Any, ...], Callable[[list[float]], None]]:
        # The older function is announced for removal; the newer one is not in older drivers.
        heat, cell = self._temperature, self._cell
        new = self._nvml.function("nvmlDeviceGetTemperatureV")
        if new is not None and new(self._handle, ctypes.byref(heat)) == codes.SUCCESS:
            return "nvmlDeviceGetTemperatureV", (ctypes.byref(heat),), lambda row: row.__setitem__(5, heat.temperature)
        return "nvmlDeviceGetTemperature", (0, ctypes.byref(cell)), lambda row: row.__setitem__(5, cell.value)

    def _make_room(self) -> None:
        self._list = (self._nvml.binding.c_nvmlProcessInfo_v3_t * self._room)()
        self._count = ctypes.c_uint(self._room)

    def _read_pids(self) -> tuple[int, ...] | None:
        if self._processes is None:
            return None
        for _ in range(3):
            self._count.value = self._room
            code = self._processes(self._handle, ctypes.byref(self._count), self._list)
            if code == codes.SUCCESS:
                return tuple(sorted({self._list[i].pid for i in range(self._count.value)}))
            if code != codes.INSUFFICIENT_SIZE:
                return None
            self._room = 2 * max(self._room, self._count.value)
            self._make_room()
        return None
