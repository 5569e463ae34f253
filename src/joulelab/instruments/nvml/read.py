"""Read one NVIDIA GPU in the sampling loop: buffers made once, the C library called directly, SI units returned."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import DeviceLost, MeterError
from joulelab.core.process_identity import PROC, read_run_folder
from joulelab.instruments.nvml import client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from joulelab.instruments.nvml.client import Gpu, Nvml

NAN: Final = float("nan")
SLOW_NS, MOST_SLOW = 5_000_000, 3  # a longer call is slow; after three in a row, it is not called again
FIRST_US: Final = 1_000_000  # how far back the first reading of the processes' load reaches
# The columns of a power row, and the NVML fields that fill them, each with a scope: GPU, module or memory.
ENERGY, INSTANT, AVERAGE = 0, 1, 2
GPU, MODULE, MEMORY = 0, 1, 2
GPU_FIELDS: Final = {ENERGY: (83, GPU), INSTANT: (186, GPU), AVERAGE: (185, GPU)}  # mJ, mW, mW
# nvmlFieldValue_t: field, scope, time stamp and latency, which are not needed; value type, return code, value
_FIELD: Final = struct.Struct("=24xIIQ")
_FIELDS: Final = struct.Struct("=" + 3 * "24xIIQ")
_MASKS: Final = {1: 0xFFFFFFFF, 2: 2**64 - 1, 3: 2**64 - 1}  # unsigned int, long, long long
# Older drivers call a field that they do not know an invalid argument.
_UNKNOWN: Final = client.ABSENT | {client.INVALID_ARGUMENT}


def decode_value(kind: int, raw: int) -> float:
    """Return the number in the eight bytes of an NVML value; NaN for a type that no field of power or energy has."""
    return raw & _MASKS[kind] if kind in _MASKS else NAN


class PowerReader:
    """Read the energy counter (J), instant and average power (W) of one GPU, in one call if the driver allows."""

    # Few cache lines: after each sleep they are cold, which costs more than the calls themselves.
    __slots__ = (
        "_buffer", "_columns", "_count", "_gpu", "_handle", "_is_lost", "_nvml", "_pointer", "_read_fields", "_single",
        "_unpack", "_wanted", "columns",
    )  # fmt: skip

    def __init__(
        self, nvml: Nvml, gpu: Gpu, plain: int | None, fields: Mapping[int, tuple[int, int]] = GPU_FIELDS
    ) -> None:
        """Find the columns that this device has; `plain` is the column of plain power usage, None for no column.

        `fields` are NVML's fields and scopes by column.
        """
        self._nvml = nvml
        self._gpu = gpu
        self._handle = gpu.handle
        self._wanted = fields
        self._read_fields = nvml.find_function("nvmlDeviceGetFieldValues")
        self._arrange_fields(sorted(fields))
        self._arrange_fields(self._find_fields())
        self._single: list[tuple[int, Callable[..., int], Any, Any]] = []
        if ENERGY in fields:
            self._add_single(ENERGY, "nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong())
        if plain is not None:
            self._add_single(plain, "nvmlDeviceGetPowerUsage", ctypes.c_uint())
        self.columns = frozenset(self._columns) | {column for column, *_ in self._single}
        self._is_lost = False

    def read(self) -> Sequence[float]:
        """Return J, W, W; NaN for a column that the device has not. Raises ReadFailed, Denied, DeviceLost."""
        if self._is_lost:
            self._handle = self._nvml.find_handle(self._gpu.uuid)
            self._is_lost = False
        if self._columns:
            code = self._read_fields(self._handle, self._count, self._pointer)  # type: ignore[misc]
            if code:
                raise self._explain_code(code)
        if self._unpack is not None:  # the usual case, in little code: it is cold after each sleep
            kind0, code0, energy, kind1, code1, instant, kind2, code2, average = self._unpack()
            if not (code0 or code1 or code2) and kind0 in _MASKS and kind1 in _MASKS and kind2 in _MASKS:
                masks = _MASKS[kind0], _MASKS[kind1], _MASKS[kind2]
                return (energy & masks[0]) / 1000, (instant & masks[1]) / 1000, (average & masks[2]) / 1000
        return self._collect_row()

    def _collect_row(self) -> Sequence[float]:
        """Return the row if not all columns come by one call, or some of them failed. Raises as `read`."""
        row = [NAN, NAN, NAN]
        got, failed = False, 0
        for column, (kind, code, raw) in zip(self._columns, _FIELD.iter_unpack(self._buffer), strict=True):
            if code:
                failed = code
            else:
                row[column] = decode_value(kind, raw) / 1000
                got = True
        for column, function, cell, pointer in self._single:
            code = function(self._handle, pointer)
            if code:
                failed = code
            else:
                row[column] = cell.value / 1000
                got = True
        if not got:
            raise self._explain_code(failed)
        return row

    def read_above_zero(self) -> Sequence[float]:
        """Return a row in which 0 is no reading: powered hardware draws power. Raises as `read`."""
        return [value or NAN for value in self.read()]

    def _explain_code(self, code: int) -> MeterError:
        error = self._nvml.explain_code(code, f"gpu:{self._gpu.index} gives no power")
        self._is_lost = isinstance(error, DeviceLost)
        return error

    def _arrange_fields(self, columns: Sequence[int]) -> None:
        """Lay out one array of fields for these columns, used in every call from now on."""
        self._columns = tuple(columns)
        array = (self._nvml.binding.c_nvmlFieldValue_t * max(1, len(columns)))()
        for cell, column in zip(array, columns, strict=False):
            cell.fieldId, cell.scopeId = self._wanted[column]
        self._buffer = memoryview((ctypes.c_char * (_FIELD.size * len(columns))).from_buffer(array))
        self._pointer = ctypes.byref(array)
        self._count = ctypes.c_int(len(columns))
        has_all = self._columns == (ENERGY, INSTANT, AVERAGE)
        self._unpack = partial(_FIELDS.unpack_from, self._buffer) if has_all else None

    def _find_fields(self) -> Sequence[int]:
        """Return the columns whose field this device has."""
        code = client.FUNCTION_NOT_FOUND
        if self._read_fields is not None:
            code = self._read_fields(self._handle, self._count, self._pointer)
        if code in _UNKNOWN:
            return []
        if code:
            return self._columns  # it fails now, and may work later
        answers = zip(self._columns, _FIELD.iter_unpack(self._buffer), strict=True)
        return [column for column, (_, answer, _) in answers if answer not in _UNKNOWN]

    def _add_single(self, column: int, name: str, cell: Any) -> None:
        function = self._nvml.find_function(name)
        if column in self._columns or function is None:
            return
        pointer = ctypes.byref(cell)
        if function(self._handle, pointer) not in _UNKNOWN:
            self._single.append((column, function, cell, pointer))


class ProcessList:
    """List the processes that have opened one GPU for computing."""

    def __init__(self, nvml: Nvml) -> None:
        self._function = nvml.find_function("nvmlDeviceGetComputeRunningProcesses_v3")
        self._process = nvml.binding.c_nvmlProcessInfo_v3_t
        self._processes = (self._process * 32)()

    def read_pids(self, handle: Any) -> tuple[int, ...] | None:
        """Return the numbers of the processes, None if unknown."""
        if self._function is None:
            return None
        for _ in range(3):
            count = ctypes.c_uint(len(self._processes))
            code = self._function(handle, ctypes.byref(count), self._processes)
            if code == client.SUCCESS:
                return tuple(sorted({self._processes[i].pid for i in range(count.value)}))
            if code != client.INSUFFICIENT_SIZE:
                return None
            self._processes = (self._process * (2 * max(len(self._processes), count.value)))()
        return None


class ProcessLoad:
    """Read which share of a GPU's time the workload's processes use, and which all others; both from 0 to 1.

    A process belongs to the workload if its parents lead to it, or if it, or a parent, was started in the same run and
    has lost its own parents since. In a container, NVML may give numbers that are not
    those of its /proc: if a process is not there, both shares are unknown. A driver that answers slowly is not asked
    again: power is read in the same thread.
    """

    def __init__(self, nvml: Nvml, proc: Path = PROC) -> None:
        """Make the buffers; `workload` is the process to follow, None before it has started."""
        self.workload: int | None = None
        self._proc = proc
        self._function = nvml.find_function("nvmlDeviceGetProcessUtilization")
        self._sample = nvml.binding.c_nvmlProcessUtilizationSample_t
        self._samples = (self._sample * 64)()
        self._count = ctypes.c_uint()
        self._last_us = 0
        self._slow_calls = 0
        self._is_own: dict[int, bool | None] = {}
        self._run = b""

    def read_shares(self, handle: Any, *, is_used: bool) -> tuple[float, float]:
        """Return both shares since the last reading, NaN if unknown.

        A GPU that has processes (`is_used`) and no new sample of them gives no shares.
        """
        loads = None if self.workload is None else self.read_loads(handle, is_used=is_used)
        return (NAN, NAN) if loads is None else self._sum_shares(loads)

    def read_loads(self, handle: Any, *, is_used: bool) -> dict[int, float] | None:
        """Return the load (0 to 1) of each process since the last reading, None if unknown."""
        if self._function is None:
            return None
        now_us = time.time_ns() // 1000
        if not 0 < self._last_us <= now_us + FIRST_US:  # at first, and after the clock was set back
            self._last_us = now_us - FIRST_US
        begin_ns = monotonic_ns()
        for _ in range(2):
            self._count.value = len(self._samples)
            arguments = self._samples, ctypes.byref(self._count), ctypes.c_ulonglong(self._last_us)
            code = self._function(handle, *arguments)
            if code != client.INSUFFICIENT_SIZE:
                break
            self._samples = (self._sample * (2 * max(self._count.value, 64)))()
        self._slow_calls = self._slow_calls + 1 if monotonic_ns() - begin_ns > SLOW_NS else 0
        if self._slow_calls >= MOST_SLOW:
            self._function = None
        if code != client.SUCCESS:
            return {} if code == client.NOT_FOUND and not is_used else None
        loads: dict[int, list[int]] = {}
        for sample in self._samples[: self._count.value]:
            loads.setdefault(sample.pid, []).append(sample.smUtil)
            self._last_us = max(self._last_us, sample.timeStamp)
        return {pid: sum(seen) / len(seen) / 100 for pid, seen in loads.items()}

    def _sum_shares(self, shares: Mapping[int, float]) -> tuple[float, float]:
        self._is_own = {pid: self._is_own.get(pid) or self._belongs_to_workload(pid) for pid in shares}
        if None in self._is_own.values():
            return NAN, NAN
        own = sum(share for pid, share in shares.items() if self._is_own[pid])
        return min(own, 1.0), min(sum(shares.values()) - own, 1.0)

    def _belongs_to_workload(self, pid: int) -> bool | None:
        """Return whether a process descends from the workload or its run, None if it is not there."""
        first = pid
        self._run = self._run or read_run_folder(self.workload or 0, self._proc)
        while pid > 1:
            if pid == self.workload or (self._run and read_run_folder(pid, self._proc) == self._run):
                return True
            try:
                # The command may hold spaces and brackets; the rest after the last bracket does not.
                pid = int((self._proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                return None if pid == first else False
        return False


class StateCall(NamedTuple):
    """Name a call of the library: columns of the row by attributes of its target, times `scale`, over `divisor`."""

    function: Callable[..., int]
    arguments: tuple[Any, ...]
    target: Any
    columns: tuple[tuple[str, int], ...]
    scale: int
    divisor: int


class StateReader:
    """Read what changes slowly: load, memory, clocks, temperature, caps, throttling, processes and their load."""

    COLUMNS: Final = 13

    def __init__(self, nvml: Nvml, gpu: Gpu, memory: PowerReader | None = None) -> None:
        """Make the buffers; columns that the device has not stay NaN. `memory` reads the power of its memory."""
        self.pids: tuple[int, ...] | None = None
        self.process_load = ProcessLoad(nvml)
        self._nvml = nvml
        self._gpu = gpu
        self._handle = gpu.handle
        self._is_lost = False
        self._memory_power = memory
        self._calls = self._choose_calls()
        self._process_list = ProcessList(nvml)

    def read(self) -> Sequence[float]:
        """Return a row (0..1, 0..1, B, Hz, Hz, degC, W, W, bits, count, 0..1, 0..1, W).

        Raises ReadFailed, Denied, DeviceLost.
        """
        if self._is_lost:
            self._handle = self._nvml.find_handle(self._gpu.uuid)
            self._is_lost = False
        row: list[float] = [NAN] * self.COLUMNS
        failed, got = client.NOT_SUPPORTED, False
        for function, arguments, target, columns, scale, divisor in self._calls:
            code = function(self._handle, *arguments)
            if code == client.SUCCESS:
                for name, column in columns:
                    row[column] = getattr(target, name) * scale / divisor
                got = True
            elif code not in client.ABSENT:
                failed = code
        if not got:
            error = self._nvml.explain_code(failed, f"gpu:{self._gpu.index} gives no state")
            self._is_lost = isinstance(error, DeviceLost)
            raise error
        self.pids = self._process_list.read_pids(self._handle)
        if self.pids is not None:
            row[9] = len(self.pids)
        # Without load of the GPU, no sample of its processes means that they rest.
        is_used = self.pids != () and row[0] != 0
        row[10], row[11] = self.process_load.read_shares(self._handle, is_used=is_used)
        if self._memory_power is not None:
            with contextlib.suppress(MeterError):
                row[12] = self._memory_power.read_above_zero()[AVERAGE]
        return row

    def _choose_calls(self) -> list[StateCall]:
        binding = self._nvml.binding
        cell, mask, load = ctypes.c_uint(), ctypes.c_ulonglong(), binding.c_nvmlUtilization_t()
        memory, old_memory = binding.c_nvmlMemory_v2_t(version=binding.nvmlMemory_v2), binding.c_nvmlMemory_t()
        heat = binding.c_nvmlTemperature_v1_t(version=binding.nvmlTemperature_v1)
        # For each value the newest function first; the last one is taken if no other works.
        variants = (
            [("UtilizationRates", (), load, (("gpu", 0), ("memory", 1)), 1, 100)],
            # The second version leaves out the memory that the driver reserves, as nvidia-smi does.
            [("MemoryInfo_v2", (), memory, (("used", 2),), 1, 1), ("MemoryInfo", (), old_memory, (("used", 2),), 1, 1)],
            [("ClockInfo", (1,), cell, (("value", 3),), 1_000_000, 1)],  # SM clock, MHz
            [("ClockInfo", (2,), cell, (("value", 4),), 1_000_000, 1)],  # memory clock, MHz
            # The older function is announced for removal; the newer one is not in older drivers.
            [
                ("TemperatureV", (), heat, (("temperature", 5),), 1, 1),
                ("Temperature", (0,), cell, (("value", 5),), 1, 1),
            ],
            [("EnforcedPowerLimit", (), cell, (("value", 6),), 1, 1000)],
            [("PowerManagementLimit", (), cell, (("value", 7),), 1, 1000)],
            # Named otherwise until driver 535.
            [(f"CurrentClocks{word}Reasons", (), mask, (("value", 8),), 1, 1) for word in ("Event", "Throttle")],
        )
        chosen: list[StateCall] = []
        for group in variants:
            for name, before, target, columns, scale, divisor in group:
                function = self._nvml.find_function(f"nvmlDeviceGet{name}")
                arguments = (*before, ctypes.byref(target))
                is_last = name == group[-1][0]
                if function is not None and (is_last or function(self._handle, *arguments) == client.SUCCESS):
                    chosen.append(StateCall(function, arguments, target, columns, scale, divisor))
                    break
        return chosen
