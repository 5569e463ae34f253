"""Set the power cap and the clocks of one NVIDIA GPU: watts and hertz in, joulelab's errors out.

`nvmlDeviceSetPowerManagementLimit_v2` of nvidia-ml-py never looks at its return code, so the first version is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from joulelab.core.errors import Denied, DeviceLost, JoulelabError, Refused
from joulelab.instruments.nvml import errors as codes

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulelab.instruments.nvml.client import Gpu, Nvml

LOCK_CLOCKS: Final = "lock its clocks instead: joulelab cap --clock MHZ"
_SM: Final = 1  # NVML_CLOCK_SM


class GpuControl:
    """Read and set the limits of one GPU; a device that was lost is looked up again at the next call."""

    def __init__(self, nvml: Nvml, gpu: Gpu, *, user: Callable[[], int] = os.geteuid) -> None:
        """Take an open NVML and one of its GPUs; `user` tells whose permission is missing."""
        self._nvml = nvml
        self._gpu = gpu
        self._handle: Any = gpu.handle
        self._user = user

    @property
    def scope(self) -> str:
        """Return `gpu:0`."""
        return f"gpu:{self._gpu.index}"

    def range_w(self) -> tuple[float, float]:
        """Return the lowest and the highest cap (W). Raises Refused, Denied, ReadFailed, DeviceLost."""
        lowest, highest = self._call("its caps cannot be read", "nvmlDeviceGetPowerManagementLimitConstraints")
        return lowest / 1000, highest / 1000

    def default_w(self) -> float:
        """Return the default cap (W). Raises Refused, Denied, ReadFailed, DeviceLost."""
        return float(self._call("its default cap cannot be read", "nvmlDeviceGetPowerManagementDefaultLimit")) / 1000

    def requested_w(self) -> float:
        """Return the cap that is requested (W). Raises Refused, Denied, ReadFailed, DeviceLost."""
        return float(self._call("its cap cannot be read", "nvmlDeviceGetPowerManagementLimit")) / 1000

    def enforced_w(self) -> float:
        """Return the cap in force (W), also where another one was set out of band. Raises as `requested_w`."""
        return float(self._call("its enforced cap cannot be read", "nvmlDeviceGetEnforcedPowerLimit")) / 1000

    def request_w(self, cap_w: float) -> None:
        """Request a cap (W). Raises Refused (not supported, out of range), Denied, ReadFailed, DeviceLost."""
        what = f"a cap of {cap_w:.10g} W cannot be set"
        self._call(what, "nvmlDeviceSetPowerManagementLimit", round(cap_w * 1000))

    def clocks_hz(self) -> tuple[float, float]:
        """Return the lowest and highest SM clock that can be locked (Hz). Raises as `requested_w`."""
        what = "its clocks cannot be read"
        highest = int(self._call(what, "nvmlDeviceGetMaxClockInfo", _SM))
        try:
            memory = self._call(what, "nvmlDeviceGetSupportedMemoryClocks")
            steps = self._call(what, "nvmlDeviceGetSupportedGraphicsClocks", max(memory)) if memory else []
        except Refused:
            steps = []  # consumer cards do not list them
        return min([highest, *steps] if steps else [_LOWEST_MHZ, highest]) * 1e6, highest * 1e6

    def lock_clocks(self, lowest_hz: float, highest_hz: float) -> None:
        """Keep the SM clock within two values (Hz). Raises Refused, Denied, ReadFailed, DeviceLost."""
        what = f"clocks cannot be locked to {highest_hz / 1e6:.10g} MHz"
        self._call(what, "nvmlDeviceSetGpuLockedClocks", round(lowest_hz / 1e6), round(highest_hz / 1e6), advice=None)

    def unlock_clocks(self) -> None:
        """Let the SM clock go free. Raises Refused, Denied, ReadFailed, DeviceLost."""
        self._call("clocks cannot be unlocked", "nvmlDeviceResetGpuLockedClocks", advice=None)

    def _call(self, what: str, name: str, *arguments: int, advice: str | None = LOCK_CLOCKS) -> Any:
        if self._handle is None:
            self._handle = self._nvml.handle(self._gpu.uuid)
        binding = self._nvml.binding
        try:
            return getattr(binding, name)(self._handle, *arguments)
        except binding.NVMLError as error:
            failed = self._failure(error.value, f"{what} on {self.scope}", advice, setting=bool(arguments))
            if isinstance(failed, DeviceLost):
                self._handle = None
            raise failed from error

    def _failure(self, code: int, what: str, advice: str | None, *, setting: bool) -> JoulelabError:
        text = self._nvml.text(code)
        if code in codes.ABSENT:
            why = f"{text}: this GPU or its driver does not take it"
            return Refused(what, where="nvml", why=why, next=advice or "set a power cap instead: joulelab cap WATTS")
        if code == codes.NO_PERMISSION:
            return self._denied(text, what)
        if code == codes.INVALID_ARGUMENT and setting:
            return Refused(what, where="nvml", why=f"{text}: out of range", next="joulelab cap status tells the range")
        return self._nvml.failed(code, what, "nvml")

    def _denied(self, text: str, what: str) -> Denied:
        user = self._user()
        if user:
            why = f"{text}: user {user} is not root, and only root may set caps and clocks"
            return Denied(what, where="nvml", why=why, next="run it as root, or ask for capd: sudo joulelab capd")
        why = f"{text}: the driver refuses it even to root; a container without CAP_SYS_ADMIN, or a virtual GPU?"
        then = "compare with nvidia-smi -pl; docker run --cap-add=SYS_ADMIN ..., or run capd on the host"
        return Denied(what, where="nvml", why=why, next=then)


_LOWEST_MHZ: Final = 210  # what every GPU since Kepler idles at, about
