"""Talk to AMD SMI: the only place that imports amdsmi. Watts, joules, hertz, bytes leave it; what is missing is NaN."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from joulelab.core.errors import Denied, DeviceLost, JoulelabError, MeterError, ReadFailed, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

NAN: Final = float("nan")
# What the library returns in place of a value that the device has not: all bits set, in several widths.
_NOT_THERE: Final = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
# amdsmi_status_t
_ABSENT: Final = frozenset({2, 3, 40, 55})  # not supported, not yet implemented, no data, setting unavailable
_NO_PERMISSION: Final = 10
_RANGE: Final = frozenset({1, 17})  # invalid parameters, input out of bounds
_LOST: Final = frozenset({31, 34, 52})  # device not found, driver not loaded, file not found
_LARGEST_W: Final = 1e4
_SOCKET: Final = 0  # the sensor of the whole socket
_ADVICE: Final = "install ROCm's amd-smi-lib and the amdgpu driver"


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """Identify one AMD GPU; `cap_w` is the range of its power cap, None where it does not say."""

    index: int
    uuid: str
    name: str
    cap_w: tuple[float, float] | None = None
    handle: Any = field(default=None, compare=False, repr=False)


def value(number: Any, scale: float = 1.0) -> float:
    """Return a number in SI, NaN for `N/A` and for what the library says in its place."""
    if isinstance(number, bool) or not isinstance(number, int | float) or number in _NOT_THERE:
        return NAN
    return number * scale


class AmdSmi:
    """Hold one initialised AMD SMI; `close` ends it, and twice is harmless."""

    def __init__(self) -> None:
        """Load and initialise the library. Raises Unavailable, Denied."""
        self._library = _load()
        self._error: type[Exception] = self._library.AmdSmiException
        try:
            self._library.amdsmi_init(self._library.AmdSmiInitFlags.INIT_AMD_GPUS)
        except self._error as error:
            raise _opening(error) from error
        self._open = True

    def close(self) -> None:
        """End the library."""
        if self._open:
            self._open = False
            try:
                self._library.amdsmi_shut_down()
            except self._error:
                return  # a library that is gone cannot be ended

    def gpus(self) -> list[AmdGpu]:
        """Return every GPU. Raises Unavailable, Denied."""
        try:
            handles = self._library.amdsmi_get_processor_handles()
        except self._error as error:
            raise _opening(error) from error
        return [self._gpu(index, handle) for index, handle in enumerate(handles)]

    def energy(self, gpu: AmdGpu) -> tuple[float, int]:
        """Return the energy accumulator (J) and the device's own time stamp of it (ns)."""
        answer = self._call("energy", gpu, self._library.amdsmi_get_energy_count)
        if answer is None:
            return NAN, 0
        count = answer.get("energy_accumulator", answer.get("power"))  # so named before 6.2.1
        return value(count) * value(answer["counter_resolution"], 1e-6), int(answer.get("timestamp", 0))

    def power(self, gpu: AmdGpu) -> tuple[float, float]:
        """Return current and average socket power (W); 0 W, which no powered GPU draws, is no reading."""
        answer = self._call("power", gpu, self._library.amdsmi_get_power_info) or {}
        now, average = value(answer.get("current_socket_power")), value(answer.get("average_socket_power"))
        return now or NAN, average or NAN

    def load(self, gpu: AmdGpu) -> tuple[float, float]:
        """Return how busy the GPU and its memory controller are (0..1)."""
        answer = self._call("load", gpu, self._library.amdsmi_get_gpu_activity) or {}
        return value(answer.get("gfx_activity"), 0.01), value(answer.get("umc_activity"), 0.01)

    def memory_b(self, gpu: AmdGpu) -> float:
        """Return the memory in use (B)."""
        kind = self._library.AmdSmiMemoryType.VRAM
        return value(self._call("memory", gpu, self._library.amdsmi_get_gpu_memory_usage, kind))

    def clock_hz(self, gpu: AmdGpu, kind: str) -> float:
        """Return a clock (Hz): GFX or MEM."""
        which = self._library.AmdSmiClkType[kind]
        answer = self._call("clock", gpu, self._library.amdsmi_get_clock_info, which) or {}
        return value(answer.get("clk", answer.get("cur_clk")), 1e6)  # the second before 6.2

    def temperature_c(self, gpu: AmdGpu) -> float:
        """Return the hottest spot's temperature (degC), the edge's where that is all there is."""
        now = self._library.AmdSmiTemperatureMetric.CURRENT
        for kind in ("HOTSPOT", "EDGE"):
            which = self._library.AmdSmiTemperatureType[kind]
            found = value(self._call("temperature", gpu, self._library.amdsmi_get_temp_metric, which, now))
            if not isnan(found):
                return found
        return NAN

    def cap_w(self, gpu: AmdGpu) -> float:
        """Return the power cap that is set (W)."""
        return _watts((self._call("cap", gpu, self._library.amdsmi_get_power_cap_info) or {}).get("power_cap"))

    def caps_w(self, gpu: AmdGpu) -> tuple[float, float, float, float]:
        """Return the cap that is set, the lowest, the highest, the default (W); NaN for what is not told."""
        answer = self._call("cap", gpu, self._library.amdsmi_get_power_cap_info) or {}
        names = ("power_cap", "min_power_cap", "max_power_cap", "default_power_cap")
        now, lowest, highest, default = (_watts(answer.get(name)) for name in names)
        return now, lowest, highest, default

    def set_cap_w(self, gpu: AmdGpu, cap_w: float) -> None:
        """Set the power cap (W). Raises Refused (not supported, out of range), Denied, ReadFailed, DeviceLost."""
        what = f"a cap of {cap_w:.10g} W cannot be set on gpu:{gpu.index}"
        try:
            # It takes the unit that it tells caps in, whichever that is.
            shown = value(self._library.amdsmi_get_power_cap_info(gpu.handle).get("max_power_cap"))
            number = round(cap_w * 1e6) if shown > _LARGEST_W else round(cap_w)
            self._library.amdsmi_set_power_cap(gpu.handle, _SOCKET, number)
        except self._error as error:
            raise _setting(getattr(error, "err_code", None), error, what) from error

    def pids(self, gpu: AmdGpu) -> tuple[int, ...] | None:
        """Return the processes on the GPU, None where that is not told."""
        answer = self._call("processes", gpu, self._library.amdsmi_get_gpu_process_list)
        return None if answer is None else tuple(sorted({int(process["pid"]) for process in answer}))

    def _gpu(self, index: int, handle: Any) -> AmdGpu:
        gpu = AmdGpu(index, "", "", handle=handle)
        name = (self._ask(gpu, self._library.amdsmi_get_gpu_asic_info) or {}).get("market_name") or "AMD GPU"
        cap = self._ask(gpu, self._library.amdsmi_get_power_cap_info) or {}
        low, high = _watts(cap.get("min_power_cap")), _watts(cap.get("max_power_cap"))
        uuid = self._ask(gpu, self._library.amdsmi_get_gpu_device_uuid) or ""
        return AmdGpu(index, uuid, name, (low, high) if not isnan(low) and high > 0 else None, handle)

    def _ask(self, gpu: AmdGpu, function: Callable[..., Any]) -> Any:
        try:
            return function(gpu.handle)
        except self._error:
            return None

    def _call(self, what: str, gpu: AmdGpu, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer, None where the device has none of it. Raises ReadFailed, Denied, DeviceLost."""
        try:
            return function(gpu.handle, *arguments)
        except self._error as error:
            code = getattr(error, "err_code", None)
            if code in _ABSENT:
                return None
            raise _reading(code, error, f"gpu:{gpu.index} gives no {what}") from error


def _watts(cap: Any) -> float:
    # Microwatts on bare metal, watts for the host of virtual machines: no cap is below 10 mW or above 10 kW.
    number = value(cap)
    return number / 1e6 if number > _LARGEST_W else number


def _load() -> Any:
    spec = importlib.util.find_spec("amdsmi")
    if spec is None or spec.origin is None:
        raise Unavailable(
            "AMD GPUs cannot be read", where="amdsmi", why="no amdsmi", next="pip install 'joulelab[amd]'"
        )
    folder = Path(spec.origin).parent
    # The binding prints to standard output and then fails in an odd way if its library is missing, so look first.
    if (folder / "amdsmi_wrapper.py").exists() and not _loadable(folder):
        why = "libamd_smi.so is not found"
        raise Unavailable("there is no AMD GPU to measure", where="amdsmi", why=why, next=_ADVICE)
    try:
        import amdsmi
    except Exception as error:
        raise Unavailable("AMD SMI does not load", where="amdsmi", why=repr(error), next=_ADVICE) from error
    return amdsmi


def _loadable(folder: Path) -> bool:
    rocm = [os.environ[key] for key in ("ROCM_HOME", "ROCM_PATH") if key in os.environ] or ["/opt/rocm"]
    places = ["libamd_smi.so", str(folder / "libamd_smi.so"), *(f"{place}/lib/libamd_smi.so" for place in rocm)]
    for place in places:
        try:
            ctypes.CDLL(place)
        except OSError:
            continue
        return True
    return False


def _opening(error: Exception) -> MeterError:
    if getattr(error, "err_code", None) == _NO_PERMISSION:
        advice = "sudo usermod -aG render,video $USER, and log in again"
        return Denied("AMD SMI may not be used", where="amdsmi", why=_text(error), next=advice)
    return Unavailable("there is no AMD GPU to measure", where="amdsmi", why=_text(error), next=_ADVICE)


def _reading(code: int | None, error: Exception, what: str) -> MeterError:
    if code == _NO_PERMISSION:
        return Denied(what, where="amdsmi", why=_text(error), next="sudo usermod -aG render,video $USER")
    if code in _LOST:
        return DeviceLost(what, where="amdsmi", why=_text(error), next="see dmesg for amdgpu; reset or reboot")
    return ReadFailed(what, where="amdsmi", why=_text(error), next="it is tried again")


def _setting(code: int | None, error: Exception, what: str) -> JoulelabError:
    if code in _ABSENT:
        why = f"{_text(error)}: this GPU, its driver or its virtual machine does not take it"
        return Refused(what, where="amdsmi", why=why, next="see what it takes: amd-smi static --limit")
    if code in _RANGE:
        advice = "joulelab cap status tells the range"
        return Refused(what, where="amdsmi", why=f"{_text(error)}: out of range", next=advice)
    if code == _NO_PERMISSION:
        user = os.geteuid()
        whose = f"user {user} is not root" if user else "although this is root: a container or a virtual machine"
        advice = "run it as root, or ask for capd: sudo joulelab capd"
        return Denied(what, where="amdsmi", why=f"{_text(error)}: {whose}", next=advice)
    return _reading(code, error, what)


def _text(error: Exception) -> str:
    return str(getattr(error, "err_info", None) or error).strip()
