"""Measure AMD GPUs by AMD SMI (energy accumulator and socket power fast, state once a second), and cap them.

Not tried on hardware: written after the sources of amdsmi 7.0.2 and tested against a stub with the same interface.
Scopes are numbered after the NVIDIA GPUs of the host. A power of 0 W, which no powered GPU draws, is no reading.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import Denied, DeviceLost, JoulelabError, MeterError, ReadFailed, Refused, Unavailable
from joulelab.core.setting import GET_PERMISSION, SetterFamily, Setting, SettingLimits
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.hooks import Missing
from joulelab.instruments.readers import Readers
from joulelab.instruments.settings import check_keys, choose_devices, devices, number, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from joulelab.core.spec import Meter

SUMMARY = "AMD GPUs: energy accumulator, socket power, load, clocks, cap, processes (AMD SMI)"
PRIVILEGE = "none, or membership in the groups render and video"
TRIED = "a stub library with the same interface; not on hardware"
CONFIG = {
    "period_s": "seconds between readings of energy and power (0.1)",
    "slow_period_s": "seconds between readings of the state (1)",
    "devices": "indices or UUIDs of the GPUs to measure (all)",
    "first": "number of the first AMD GPU's scope (after the NVIDIA GPUs of this host)",
}
STATE = (
    Spec("load", "utilisation", "1"),
    Spec("memory_load", "utilisation", "1"),
    Spec("memory_used_b", "memory", "B"),
    Spec("gfx_clock_hz", "clock", "Hz"),
    Spec("memory_clock_hz", "clock", "Hz"),
    Spec("temperature_c", "temperature", "degC"),
    Spec("cap_requested_w", "cap", "W"),
    Spec("processes", "processes", "1"),
)
NAN: Final = float("nan")
NVIDIA_GPUS: Final = Path("/proc/driver/nvidia/gpus")
_FROZEN_NS = 1_000_000_000
_UNKNOWN = "AMD publishes no accuracy; not tried on hardware"
_FROZEN = "the energy accumulator does not move (ROCm/amdsmi issue 38): a reboot has helped"
# The library returns these in place of a value that the device has not: all bits set, in several widths.
_NOT_THERE: Final = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
# amdsmi_status_t
_ABSENT: Final = frozenset({2, 3, 40, 55})  # not supported, not yet implemented, no data, setting unavailable
_NO_PERMISSION: Final = 10
_RANGE: Final = frozenset({1, 17})  # invalid parameters, input out of bounds
_LOST: Final = frozenset({31, 34, 52})  # device not found, driver not loaded, file not found
_LARGEST_W: Final = 1e4
_LOWEST_W: Final = 1.0  # a cap of 0 would reset the device to its default
_SOCKET: Final = 0  # the sensor of the whole socket
_INSTALL: Final = "install ROCm's amd-smi-lib and the amdgpu driver"
_JOIN_GROUPS: Final = "sudo usermod -aG render,video $USER, and log in again"
_CAP: Final = "cap_w"


# ---- the library


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """Identify one AMD GPU; `cap_w` is the range of its power cap, None if it reports none."""

    index: int
    uuid: str
    name: str
    cap_w: tuple[float, float] | None = None
    handle: Any = field(default=None, compare=False, repr=False)


class AmdSmi:
    """Hold one initialised AMD SMI: watts, joules, hertz, bytes leave it; a value that is missing is NaN.

    Readings raise ReadFailed, Denied, DeviceLost.
    """

    def __init__(self) -> None:
        """Load and initialise the library. Raises Unavailable, Denied."""
        self._library = _load_library()
        self._error: type[Exception] = self._library.AmdSmiException
        try:
            self._library.amdsmi_init(self._library.AmdSmiInitFlags.INIT_AMD_GPUS)
        except self._error as error:
            raise _explain_opening(error) from error
        self._is_open = True

    def close(self) -> None:
        """End the library; closing twice is harmless."""
        if self._is_open:
            self._is_open = False
            try:
                self._library.amdsmi_shut_down()
            except self._error:
                return  # a library that is gone cannot be ended

    def list_gpus(self) -> list[AmdGpu]:
        """Return every GPU. Raises Unavailable, Denied."""
        try:
            handles = self._library.amdsmi_get_processor_handles()
        except self._error as error:
            raise _explain_opening(error) from error
        return [self._describe_gpu(index, handle) for index, handle in enumerate(handles)]

    def read_energy(self, gpu: AmdGpu) -> tuple[float, int]:
        """Return the energy accumulator (J) and the device's own time stamp of it (ns)."""
        answer = self._call_library("energy", gpu, "amdsmi_get_energy_count")
        if answer is None:
            return NAN, 0
        count = answer.get("energy_accumulator", answer.get("power"))  # so named before 6.2.1
        return to_number(count) * to_number(answer["counter_resolution"], 1e-6), int(answer.get("timestamp", 0))

    def read_power(self, gpu: AmdGpu) -> tuple[float, float]:
        """Return current and average socket power (W)."""
        answer = self._call_library("power", gpu, "amdsmi_get_power_info") or {}
        names = ("current_socket_power", "average_socket_power")
        now_w, average_w = (to_number(answer.get(name)) or NAN for name in names)
        return now_w, average_w

    def read_state(self, gpu: AmdGpu) -> list[float]:
        """Return the columns of `STATE` up to the temperature (0..1, 0..1, B, Hz, Hz, degC)."""
        library = self._library
        load = self._call_library("load", gpu, "amdsmi_get_gpu_activity") or {}
        memory = self._call_library("memory", gpu, "amdsmi_get_gpu_memory_usage", library.AmdSmiMemoryType.VRAM)
        row = [to_number(load.get(name), 0.01) for name in ("gfx_activity", "umc_activity")] + [to_number(memory)]
        for kind in ("GFX", "MEM"):
            clock = self._call_library("clock", gpu, "amdsmi_get_clock_info", library.AmdSmiClkType[kind]) or {}
            row.append(to_number(clock.get("clk", clock.get("cur_clk")), 1e6))  # the second name before 6.2
        heat_c, now = NAN, library.AmdSmiTemperatureMetric.CURRENT
        for kind in ("HOTSPOT", "EDGE"):  # the edge where that is all there is
            if isnan(heat_c):
                sensor = library.AmdSmiTemperatureType[kind]
                heat_c = to_number(self._call_library("temperature", gpu, "amdsmi_get_temp_metric", sensor, now))
        return [*row, heat_c]

    def read_caps_w(self, gpu: AmdGpu) -> tuple[float, float, float, float]:
        """Return the cap that is set, the lowest, the highest, the default (W)."""
        answer = self._call_library("cap", gpu, "amdsmi_get_power_cap_info") or {}
        names = ("power_cap", "min_power_cap", "max_power_cap", "default_power_cap")
        now, lowest, highest, default = (_convert_cap_w(answer.get(name)) for name in names)
        return now, lowest, highest, default

    def read_pids(self, gpu: AmdGpu) -> tuple[int, ...] | None:
        """Return the processes on the GPU, None if the driver does not list them."""
        answer = self._call_library("processes", gpu, "amdsmi_get_gpu_process_list")
        return None if answer is None else tuple(sorted({int(process["pid"]) for process in answer}))

    def set_cap_w(self, gpu: AmdGpu, cap_w: float) -> None:
        """Set the power cap (W). Raises Refused (not supported, out of range), Denied, ReadFailed, DeviceLost."""
        what = f"a cap of {cap_w:.10g} W cannot be set on gpu:{gpu.index}"
        try:
            # It takes the unit in which it reports caps.
            shown = to_number(self._library.amdsmi_get_power_cap_info(gpu.handle).get("max_power_cap"))
            value = round(cap_w * 1e6) if shown > _LARGEST_W else round(cap_w)
            self._library.amdsmi_set_power_cap(gpu.handle, _SOCKET, value)
        except self._error as error:
            raise _explain_setting(error, what) from error

    def _describe_gpu(self, index: int, handle: Any) -> AmdGpu:
        found: dict[str, Any] = {}
        for name in ("amdsmi_get_gpu_asic_info", "amdsmi_get_power_cap_info", "amdsmi_get_gpu_device_uuid"):
            try:
                found[name] = getattr(self._library, name)(handle)
            except self._error:
                found[name] = None
        asic, cap, uuid = found.values()
        low, high = (_convert_cap_w((cap or {}).get(name)) for name in ("min_power_cap", "max_power_cap"))
        model = (asic or {}).get("market_name") or "AMD GPU"
        return AmdGpu(index, uuid or "", model, (low, high) if not isnan(low) and high > 0 else None, handle)

    def _call_library(self, value: str, gpu: AmdGpu, name: str, *arguments: Any) -> Any:
        """Return the answer, None if the device does not have this value."""
        try:
            return getattr(self._library, name)(gpu.handle, *arguments)
        except self._error as error:
            if _read_error(error)[0] in _ABSENT:
                return None
            raise _explain_reading(error, f"gpu:{gpu.index} gives no {value}") from error


def to_number(answer: Any, scale: float = 1.0) -> float:
    """Return a number in SI, NaN for `N/A` and for the library's marks of a missing value."""
    if isinstance(answer, bool) or not isinstance(answer, int | float) or answer in _NOT_THERE:
        return NAN
    return answer * scale


def _convert_cap_w(cap: Any) -> float:
    # Microwatts on bare metal, watts for the host of virtual machines: no cap is below 10 mW or above 10 kW.
    value = to_number(cap)
    return value / 1e6 if value > _LARGEST_W else value


def _load_library() -> Any:
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        what, advice, code = "AMD GPUs cannot be read", "pip install 'joulelab[amd]'", "unavailable.no-library"
        raise Unavailable(what, where="amdsmi", why="no amdsmi", next=advice, code=code)
    folder = Path(spec.origin).parent
    rocm = [os.environ[key] for key in ("ROCM_HOME", "ROCM_PATH") if key in os.environ] or ["/opt/rocm"]
    places = ["libamd_smi.so", str(folder / "libamd_smi.so"), *(f"{place}/lib/libamd_smi.so" for place in rocm)]
    # The binding prints to standard output and then fails in an odd way if its library is missing, so look first.
    if (folder / "amdsmi_wrapper.py").exists() and not any(map(_can_load, places)):
        what, why, code = "there is no AMD GPU to measure", "libamd_smi.so is not found", "unavailable.no-library"
        raise Unavailable(what, where="amdsmi", why=why, next=_INSTALL, code=code)
    try:
        import amdsmi
    except Exception as error:
        what, why, code = "AMD SMI does not load", repr(error), "unavailable.broken-library"
        raise Unavailable(what, where="amdsmi", why=why, next=_INSTALL, code=code) from error
    return amdsmi


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _read_error(error: Exception) -> tuple[int | None, str]:
    """Return the status and the words of an error of the library."""
    return getattr(error, "err_code", None), str(getattr(error, "err_info", None) or error).strip()


def _explain_opening(error: Exception) -> MeterError:
    status, why = _read_error(error)
    if status == _NO_PERMISSION:
        return Denied("AMD SMI may not be used", where="amdsmi", why=why, next=_JOIN_GROUPS, code="denied.library")
    what = "there is no AMD GPU to measure"
    return Unavailable(what, where="amdsmi", why=why, next=_INSTALL, code="unavailable.no-driver")


def _explain_reading(error: Exception, what: str) -> MeterError:
    status, why = _read_error(error)
    if status == _NO_PERMISSION:
        return Denied(what, where="amdsmi", why=why, next=_JOIN_GROUPS, code="denied.gpu")
    if status in _LOST:
        advice = "see dmesg for amdgpu; reset or reboot"
        return DeviceLost(what, where="amdsmi", why=why, next=advice, code="device-lost.gpu")
    return ReadFailed(what, where="amdsmi", why=why, next="it is tried again", code="read-failed.gpu")


def _explain_setting(error: Exception, what: str) -> JoulelabError:
    status, why = _read_error(error)
    if status in _ABSENT:
        why, advice = f"{why}: this GPU, its driver or its virtual machine does not take it", "amd-smi static --limit"
        return Refused(what, where="amdsmi", why=why, next=advice, code="refused.no-cap")
    if status in _RANGE:
        why, advice = f"{why}: out of range", "see the range: joulelab cap status"
        return Refused(what, where="amdsmi", why=why, next=advice, code="refused.out-of-range")
    if status == _NO_PERMISSION:
        user = os.geteuid()
        why += f": user {user} is not root" if user else ": although this is root: a container or a virtual machine"
        return Denied(what, where="amdsmi", why=why, next=GET_PERMISSION, code="denied.cap")
    return _explain_reading(error, what)


def count_nvidia_gpus(folder: Path = NVIDIA_GPUS) -> int:
    """Return how many NVIDIA GPUs the kernel driver lists: their scopes come first."""
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return 0


# ---- the meter


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open AMD SMI. Raises Unavailable, Denied, ConfigError."""
    check_keys("amdsmi", config, CONFIG)
    library = AmdSmi()
    try:
        return AmdMeter(library, config)
    except BaseException:
        library.close()
        raise


class Accumulator:
    """Judge an energy accumulator: a count is passed on only while it is known to move, and never backwards.

    A frozen accumulator (ROCm/amdsmi issue 38) would else read as 0 J, and one that falls while its own time stamp
    rises is another device's (issue 115).
    """

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self._moved_ns: int | None = None
        self._falls = 0

    def judge_count(self, count_j: float, stamp: int, now_ns: int) -> float:
        """Return the count (J), NaN if it cannot be trusted."""
        if isnan(count_j):
            return NAN
        if self._last is None:
            self._last = count_j, stamp
            return NAN
        if count_j < self._last[0] and stamp > self._last[1] and self._falls < 3:
            self._falls += 1
            return NAN
        self._falls = 0
        if count_j != self._last[0]:
            self._last = count_j, stamp
            self._moved_ns = now_ns
        if self._moved_ns is None or now_ns - self._moved_ns > _FROZEN_NS:
            return NAN
        return count_j


class AmdMeter(Readers):
    """Read every AMD GPU; rows in J, W, Hz, B, degC, shares of 1."""

    def __init__(self, library: AmdSmi, config: Mapping[str, Any]) -> None:
        """Make readers and streams for the wanted GPUs. Raises Unavailable, ConfigError."""
        super().__init__()
        self._library = library
        periods = seconds("amdsmi", config, "period_s", 0.1), seconds("amdsmi", config, "slow_period_s", 1.0)
        first = int(number("amdsmi", config, "first", count_nvidia_gpus(), above=-1))
        gpus = _list_gpus(library, "measure")
        for gpu in choose_devices("amdsmi", gpus, devices("amdsmi", config)):
            self._add_gpu(gpu, f"gpu:{first + gpu.index}", *periods)

    def close(self) -> None:
        """Release AMD SMI."""
        self._library.close()

    def _add_gpu(self, gpu: AmdGpu, scope: str, period_s: float, slow_s: float) -> None:
        accumulator = Accumulator()
        if not self._is_counting(gpu, accumulator):
            self._missing.append(Missing(scope, "its energy counter gives nothing", _FROZEN, "power is integrated"))
        limits = (0.0, gpu.cap_w[1]) if gpu.cap_w else None

        coarse = Accuracy("unknown", quantum=1.0, shared=f"amdsmi:{gpu.name}", reference=_UNKNOWN)
        fine = replace(coarse, quantum=15.3e-6)
        # AMD states no window.
        specs = (
            Spec("energy_j", "energy", "J", "counter", 0.001, limits=limits, accuracy=fine),
            Spec("power_instant_w", "power", "W", "power", 0.001, limits=limits, accuracy=coarse),
            Spec("power_average_w", "power", "W", "power", 0.001, limits=limits, accuracy=coarse),
        )
        power = Stream(f"{scope}.power", "power", scope, period_s, specs, device=gpu.uuid, model=gpu.name)
        state = Stream(f"{scope}.state", "state", scope, slow_s, STATE, device=gpu.uuid, model=gpu.name)
        self._put(power, lambda: (self._read_count(gpu, accumulator), *self._library.read_power(gpu)))
        self._put(state, lambda: self._read_state(gpu, scope))

    def _read_count(self, gpu: AmdGpu, accumulator: Accumulator) -> float:
        count_j, stamp = self._library.read_energy(gpu)
        return accumulator.judge_count(count_j, stamp, monotonic_ns())

    def _is_counting(self, gpu: AmdGpu, accumulator: Accumulator) -> bool:
        """Read the accumulator for up to 50 ms, until it is seen to move: it is updated every millisecond or so."""
        for _ in range(25):
            if not isnan(self._read_count(gpu, accumulator)):
                return True
            time.sleep(0.002)
        return False

    def _read_state(self, gpu: AmdGpu, scope: str) -> Sequence[float]:
        library = self._library
        row, cap_w, pids = library.read_state(gpu), library.read_caps_w(gpu)[0], library.read_pids(gpu)
        if pids is not None:
            self._report_change("process", scope, pids=list(pids))
        if not isnan(cap_w):
            self._report_change("cap", scope, requested_w=cap_w)
        return *row, cap_w, NAN if pids is None else len(pids)


def _list_gpus(library: AmdSmi, purpose: str) -> list[AmdGpu]:
    gpus = library.list_gpus()
    if not gpus:
        what, why, advice = f"there is no AMD GPU to {purpose}", "the driver lists none", "run amd-smi list"
        raise Unavailable(what, where="amdsmi", why=why, next=advice, code="unavailable.no-gpu")
    return gpus


# ---- the setter


def open_setters(environ: Mapping[str, str]) -> SetterFamily:
    """Open AMD SMI: one setter per GPU that has a cap. Raises Unavailable, Denied."""
    del environ  # the library finds its devices by itself
    library = AmdSmi()
    family = SetterFamily(on_close=library.close)
    try:
        first = count_nvidia_gpus()
        for gpu in _list_gpus(library, "cap"):
            scope = f"gpu:{first + gpu.index}"
            if not gpu.uuid:
                family.missing.append((scope, "amdsmi: it has no UUID, which its lock and its journal need"))
            elif not _has_cap(library, gpu):
                family.missing.append((scope, "amdsmi: it reports no power cap; this GPU or its driver has none"))
            else:
                family.setters.append(SocketCap(scope, gpu, library))
    except BaseException:
        family.close()
        raise
    return family


def _has_cap(library: AmdSmi, gpu: AmdGpu) -> bool:
    try:
        return not isnan(library.read_caps_w(gpu)[0])
    except JoulelabError:
        return True  # it may work later; if not, its first use reports the error


class SocketCap:
    """Limit the power of one AMD GPU; a setting is {"cap_w": W}."""

    kind: Literal["power"] = "power"

    def __init__(self, scope: str, gpu: AmdGpu, library: AmdSmi) -> None:
        self.device = gpu.uuid
        self.scope = scope
        self.model = gpu.name
        self._gpu = gpu
        self._library = library

    def limits(self) -> SettingLimits:
        """Return lowest, highest and default cap. Raises Denied, ReadFailed, DeviceLost."""
        _, lowest, highest, default = self._read_caps_w("range of caps", 2)
        lowest = max(_LOWEST_W, 0.0 if isnan(lowest) else lowest)
        return SettingLimits(lowest, highest, None if isnan(default) else default, "W")

    def get(self) -> Setting:
        """Return the cap. Raises Denied, ReadFailed, DeviceLost."""
        return {_CAP: self._read_caps_w("cap", 0)[0]}

    def enforced(self) -> float | None:
        """Return None: AMD SMI reports only the cap that was set."""
        return None

    def setting(self, value: float) -> Setting:
        """Return the setting for a cap (W). Raises Refused, Denied, ReadFailed, DeviceLost."""
        self.limits().check_value(value, self.scope)
        return {_CAP: value}

    def set(self, setting: Setting) -> None:
        """Set a cap. Raises Refused with the range, Denied, ReadFailed, DeviceLost."""
        self.limits().check_value(setting[_CAP], self.scope)
        self._library.set_cap_w(self._gpu, setting[_CAP])

    def default(self) -> Setting | None:
        """Return the cap after a reload of the driver. Raises Denied, ReadFailed, DeviceLost."""
        default_w = self.limits().default
        return None if default_w is None else {_CAP: default_w}

    def _read_caps_w(self, value: str, needed: int) -> tuple[float, float, float, float]:
        caps_w = self._library.read_caps_w(self._gpu)
        if isnan(caps_w[needed]):
            what, why = f"{self.scope} reports no {value}", "the library returns no value for this device"
            advice, code = "see amd-smi static --limit", "read-failed.no-cap"
            raise ReadFailed(what, where="amdsmi", why=why, next=advice, code=code)
        return caps_w
