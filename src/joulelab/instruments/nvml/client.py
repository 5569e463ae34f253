"""Open NVIDIA's NVML and list its devices: the only place that imports pynvml. Watts, joules, hertz, bytes leave it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import MeterError, Unavailable
from joulelab.instruments.nvml import errors as codes
from joulelab.instruments.sysfs import read_number

if TYPE_CHECKING:
    from collections.abc import Callable

GRACE_HOPPER = "GH200"
PCI = Path("/sys/bus/pci/devices")


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
    """Identify one GPU; powers in W, None where the device does not say.

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


@dataclass(frozen=True, slots=True)
class Absent:
    """Name a GPU that NVML counts but does not give."""

    index: int
    error: MeterError


class Nvml:
    """Hold one initialised NVML; `close` ends it, and twice is harmless."""

    def __init__(self) -> None:
        """Load and initialise the library. Raises Unavailable, Denied."""
        try:
            import pynvml
        except ImportError as error:
            raise Unavailable(
                "NVIDIA GPUs cannot be read", where="nvml", why=str(error), next="pip install nvidia-ml-py"
            ) from error
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise codes.opening(error.value, str(error)) from error
        self._open = True
        self.driver: str = self.ask(pynvml.nvmlSystemGetDriverVersion, "")

    @property
    def binding(self) -> Any:
        """Return pynvml, for its structures and constants."""
        return self._nvml

    def close(self) -> None:
        """End NVML for this holder; others in this process go on."""
        if self._open:
            self._open = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return  # a library that is gone cannot be ended

    def function(self, name: str) -> Callable[..., int] | None:
        """Return a function of the C library, None where this driver has none; private, so its types may be set."""
        try:
            found: Callable[..., int] = self._nvml.nvmlLib[name]
        except AttributeError:
            return None
        return found

    def ask(self, function: Callable[..., Any], default: Any, *arguments: Any) -> Any:
        """Call a function of pynvml for a fact that may be missing; return `default` unless the device is gone."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in (codes.GPU_IS_LOST, codes.GPU_NOT_FOUND):
                raise
            return default

    def text(self, code: int) -> str:
        """Return NVML's own words for a return code."""
        return str(self._nvml.NVMLError(code))

    def failed(self, code: int, what: str, where: str) -> MeterError:
        """Return joulelab's error for a return code."""
        return codes.reading(code, self.text(code), what, where)

    def handle(self, uuid: str) -> Any:
        """Return a fresh handle, for a device that came back. Raises DeviceLost, ReadFailed, Denied."""
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            # 'Not found' for a device that was there means that it is gone.
            code = error.value if error.value == codes.NO_PERMISSION else codes.GPU_NOT_FOUND
            raise codes.reading(code, str(error), f"GPU {uuid} did not come back", "nvml") from error

    def gpus(self) -> tuple[list[Gpu], list[Absent]]:
        """Return every GPU of the node, and those that answer with an error."""
        found: list[Gpu] = []
        absent: list[Absent] = []
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            raise codes.opening(error.value, str(error)) from error
        for index in range(count):
            try:
                found.append(self._gpu(index))
            except self._nvml.NVMLError as error:
                gone = codes.reading(error.value, str(error), f"gpu:{index} gives no answer", "nvml")
                absent.append(Absent(index, gone))
        return found, absent

    def _gpu(self, index: int) -> Gpu:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        limits = self.ask(nvml.nvmlDeviceGetPowerManagementLimitConstraints, None, handle)
        capability = self.ask(nvml.nvmlDeviceGetCudaComputeCapability, None, handle)
        architecture = self.ask(nvml.nvmlDeviceGetArchitecture, None, handle)
        enabled = self.ask(nvml.nvmlDeviceGetMigMode, (0, 0), handle)[0] == 1
        name = nvml.nvmlDeviceGetName(handle)
        coherent = self.ask(nvml.nvmlDeviceGetC2cModeInfoV, None, handle)
        superchip = GRACE_HOPPER in name or bool(coherent and coherent.isC2cEnabled)
        return Gpu(
            index=index,
            uuid=nvml.nvmlDeviceGetUUID(handle),
            name=name,
            architecture=architecture,
            capability=(capability[0], capability[1]) if capability else None,
            driver=self.driver,
            limit_w=(limits[0] / 1000, limits[1] / 1000) if limits else None,
            mig=tuple(self._instances(handle)) if enabled else (),
            superchip=superchip,
            node=self._find_node(handle) if superchip else None,
            handle=handle,
        )

    def _find_node(self, handle: Any) -> int | None:
        """Return the NUMA node of a GPU's PCI device, None where the kernel does not know it."""
        info = self.ask(self._nvml.nvmlDeviceGetPciInfo, None, handle)
        bus = info.busIdLegacy if info is not None else b""
        name = (bus.decode() if isinstance(bus, bytes) else bus).lower()
        node = read_number(PCI / name / "numa_node") if name else None
        return node if node is not None and node >= 0 else None

    def _instances(self, parent: Any) -> list[Mig]:
        nvml = self._nvml
        found = []
        for index in range(self.ask(nvml.nvmlDeviceGetMaxMigDeviceCount, 0, parent)):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
            except nvml.NVMLError:
                continue  # slots need not be filled in order
            found.append(
                Mig(
                    index,
                    self.ask(nvml.nvmlDeviceGetUUID, "", handle),
                    self.ask(nvml.nvmlDeviceGetName, "", handle),
                    self.ask(nvml.nvmlDeviceGetGpuInstanceId, None, handle),
                    self.ask(nvml.nvmlDeviceGetComputeInstanceId, None, handle),
                )
            )
        return found
