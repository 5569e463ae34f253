"""Open NVIDIA's NVML and list its devices: the only place that imports pynvml. Watts, joules, hertz, bytes leave it."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import Denied, DeviceLost, MeterError, ReadFailed, Unavailable
from joulelab.instruments.sysfs import read_number

if TYPE_CHECKING:
    from collections.abc import Callable

GRACE_HOPPER = "GH200"
PCI = Path("/sys/bus/pci/devices")

# nvmlReturn_t
SUCCESS = 0
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
GPU_NOT_FOUND = 28
# A channel that this device or driver does not have, not a failed reading.
ABSENT = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND})
# A handle that NVML no longer takes is a device that is gone, as is one that waits for a reset.
_LOST = frozenset({INVALID_ARGUMENT, GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
_TWIN = "or try the simulated node: joulelab twin -- joulelab meters"
# Return code of the opening: code of the error, next step.
_NOT_OPENED = {
    LIBRARY_NOT_FOUND: ("unavailable.no-library", f"install the NVIDIA driver, {_TWIN}"),
    DRIVER_NOT_LOADED: ("unavailable.no-driver", f"load the driver (sudo modprobe nvidia), {_TWIN}"),
    LIB_RM_VERSION_MISMATCH: (
        "unavailable.driver-mismatch",
        "the driver was updated while loaded: reboot, or reload the kernel module",
    ),
}
_UNKNOWN_FAILURE = "unavailable.nvml", f"run nvidia-smi to see the driver's own message, {_TWIN}"


@dataclass(frozen=True, slots=True)
class Mig:
    """Identify one MIG instance of a GPU."""

    index: int
    uuid: str
    name: str
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """Identify one GPU; powers in W, None if the device reports none.

    A GPU of a superchip shares a module with a CPU (Grace); `node` is the NUMA node of that CPU, its socket.
    """

    index: int
    uuid: str
    name: str
    architecture: int | None = None
    capability: tuple[int, int] | None = None
    driver: str = ""
    limit_w: tuple[float, float] | None = None
    mig: tuple[Mig, ...] = ()
    superchip: bool = False
    node: int | None = None
    handle: Any = field(default=None, compare=False, repr=False)


class Nvml:
    """Hold one initialised NVML; `close` ends it, and twice is harmless."""

    def __init__(self) -> None:
        """Load and initialise the library. Raises Unavailable, Denied."""
        try:
            self.binding: Any = load_binding()  # with its structures and constants
        except ImportError as error:
            what, why, code = "NVIDIA GPUs cannot be read", str(error), "unavailable.no-binding"
            raise Unavailable(what, where="nvml", why=why, next="pip install nvidia-ml-py", code=code) from error
        try:
            self.binding.nvmlInit()
        except self.binding.NVMLError as error:
            raise explain_opening(error.value, str(error)) from error
        self._is_open = True
        self._driver: str = self._ask_fact(self.binding.nvmlSystemGetDriverVersion, "")

    def close(self) -> None:
        """End NVML for this holder; others in this process go on."""
        if self._is_open:
            self._is_open = False
            try:
                self.binding.nvmlShutdown()
            except self.binding.NVMLError:
                return  # a library that is gone cannot be ended

    def find_function(self, name: str) -> Callable[..., int] | None:
        """Return a function of the C library, None if this driver has none; private, so its types may be set."""
        try:
            found: Callable[..., int] = self.binding.nvmlLib[name]
        except AttributeError:
            return None
        return found

    def word_code(self, code: int) -> str:
        """Return NVML's own words for a return code."""
        return str(self.binding.NVMLError(code))

    def explain_code(self, code: int, what: str) -> MeterError:
        """Return joulelab's error for the return code of one call on one device."""
        return explain_reading(code, self.word_code(code), what)

    def find_handle(self, uuid: str) -> Any:
        """Return a fresh handle, for a device that came back. Raises DeviceLost, Denied."""
        try:
            return self.binding.nvmlDeviceGetHandleByUUID(uuid)
        except self.binding.NVMLError as error:
            # 'Not found' for a device that was there means that it is gone.
            code = error.value if error.value == NO_PERMISSION else GPU_NOT_FOUND
            raise explain_reading(code, str(error), f"GPU {uuid} did not come back") from error

    def list_gpus(self) -> tuple[list[Gpu], dict[int, MeterError]]:
        """Return every GPU of the node, and the errors of those that do not answer, by index. Raises Unavailable."""
        found: list[Gpu] = []
        failed: dict[int, MeterError] = {}
        try:
            count = self.binding.nvmlDeviceGetCount()
        except self.binding.NVMLError as error:
            raise explain_opening(error.value, str(error)) from error
        for index in range(count):
            try:
                found.append(self._describe_gpu(index))
            except self.binding.NVMLError as error:
                failed[index] = explain_reading(error.value, str(error), f"gpu:{index} gives no answer")
        return found, failed

    def _ask_fact(self, function: Callable[..., Any], default: Any, *arguments: Any) -> Any:
        """Call a function of pynvml for a fact that may be missing; return `default` unless the device is gone."""
        try:
            return function(*arguments)
        except self.binding.NVMLError as error:
            if error.value in (GPU_IS_LOST, GPU_NOT_FOUND):
                raise
            return default

    def _describe_gpu(self, index: int) -> Gpu:
        nvml, ask = self.binding, self._ask_fact
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        limits = ask(nvml.nvmlDeviceGetPowerManagementLimitConstraints, None, handle)
        capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, None, handle)
        name = nvml.nvmlDeviceGetName(handle)
        coherent = ask(nvml.nvmlDeviceGetC2cModeInfoV, None, handle)
        superchip = GRACE_HOPPER in name or bool(coherent and coherent.isC2cEnabled)
        has_mig = ask(nvml.nvmlDeviceGetMigMode, (0, 0), handle)[0] == 1
        return Gpu(
            index=index,
            uuid=nvml.nvmlDeviceGetUUID(handle),
            name=name,
            architecture=ask(nvml.nvmlDeviceGetArchitecture, None, handle),
            capability=(capability[0], capability[1]) if capability else None,
            driver=self._driver,
            limit_w=(limits[0] / 1000, limits[1] / 1000) if limits else None,
            mig=tuple(self._list_instances(handle)) if has_mig else (),
            superchip=superchip,
            node=self._find_node(handle) if superchip else None,
            handle=handle,
        )

    def _find_node(self, handle: Any) -> int | None:
        """Return the NUMA node of a GPU's PCI device, None if the kernel does not know it."""
        info = self._ask_fact(self.binding.nvmlDeviceGetPciInfo, None, handle)
        bus = info.busIdLegacy if info is not None else b""
        name = (bus.decode() if isinstance(bus, bytes) else bus).lower()
        node = read_number(PCI / name / "numa_node") if name else None
        return node if node is not None and node >= 0 else None

    def _list_instances(self, parent: Any) -> list[Mig]:
        nvml, ask = self.binding, self._ask_fact
        found = []
        for index in range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount, 0, parent)):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            except nvml.NVMLError:
                continue  # slots need not be filled in order
            uuid, name = ask(nvml.nvmlDeviceGetUUID, "", handle), ask(nvml.nvmlDeviceGetName, "", handle)
            numbers = (nvml.nvmlDeviceGetGpuInstanceId, nvml.nvmlDeviceGetComputeInstanceId)
            found.append(Mig(index, uuid, name, *(ask(function, None, handle) for function in numbers)))
        return found


def load_binding() -> Any:
    """Import pynvml; ctypes.util, which it imports and never uses, is loaded only when it is called.

    That is 1.7 of the 20 MB of a recorder: ctypes.util loads subprocess, tempfile, shutil and their libraries.
    """
    name = "ctypes.util"
    if "pynvml" not in sys.modules and name not in sys.modules:
        stand_in = ModuleType(name)

        def find_library(library: str) -> str | None:
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
            return importlib.import_module(name).find_library(library)  # type: ignore[no-any-return]

        stand_in.find_library = find_library  # type: ignore[attr-defined]
        sys.modules[name] = stand_in
        try:
            return importlib.import_module("pynvml")
        finally:
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]
    return importlib.import_module("pynvml")


def explain_opening(code: int, text: str) -> MeterError:
    """Return the error for an NVML that cannot be opened."""
    if code == NO_PERMISSION:
        what, advice = "NVML may not be used", "give this user read access to /dev/nvidia*"
        return Denied(what, where="nvml", why=text, next=advice, code="denied.library")
    kind, advice = _NOT_OPENED.get(code, _UNKNOWN_FAILURE)
    return Unavailable("there is no NVIDIA GPU to measure", where="nvml", why=text, next=advice, code=kind)


def explain_reading(code: int, text: str, what: str) -> MeterError:
    """Return the error for one failed call on one device."""
    if code == NO_PERMISSION:
        advice = "ask for read access, or run as root: joulelab doctor nvml"
        return Denied(what, where="nvml", why=text, next=advice, code="denied.gpu")
    if code in _LOST:
        advice = "look for an Xid in dmesg; sudo nvidia-smi -r, or reboot"
        return DeviceLost(what, where="nvml", why=text, next=advice, code="device-lost.gpu")
    advice = "joulelab doctor nvml"
    return ReadFailed(what, where="nvml", why=text, next=advice, code="read-failed.gpu")
