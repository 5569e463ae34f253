"""Set power caps of AMD GPUs (AMD SMI).

Not tried on hardware: written after the sources of amdsmi 7.0.2 and tested against a stub with the same interface.
"""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import JoulelabError, ReadFailed, Unavailable
from joulelab.core.setting import SetterFamily, Setting, SettingLimits
from joulelab.instruments.amdsmi import count_nvidia
from joulelab.instruments.amdsmi.client import AmdGpu, AmdSmi

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

_CAP = "cap_w"
_NVIDIA = "/proc/driver/nvidia/gpus"  # their scopes come first, as for the meter
# A cap of 0 would reset the device to its default.
_LOWEST_W = 1.0


def open_setters(environ: Mapping[str, str]) -> SetterFamily:
    """Open AMD SMI: one setter per GPU that has a cap. Raises Unavailable, Denied."""
    del environ  # the library finds its devices by itself
    library = AmdSmi()
    opened = SetterFamily(on_close=library.close)
    try:
        _add_gpus(opened, library, count_nvidia(Path(_NVIDIA)))
    except BaseException:
        opened.close()
        raise
    return opened


def _add_gpus(opened: SetterFamily, library: AmdSmi, first: int) -> None:
    gpus = library.gpus()
    if not gpus:
        why, advice, code = "the driver lists none", "run amd-smi list", "unavailable.no-gpu"
        raise Unavailable("there is no AMD GPU to cap", where="amdsmi", why=why, next=advice, code=code)
    for gpu in gpus:
        scope = f"gpu:{first + gpu.index}"
        if not gpu.uuid:
            opened.missing.append((scope, "amdsmi: it has no UUID, which its lock and its journal need"))
        elif not _has_cap(library, gpu):
            opened.missing.append((scope, "amdsmi: it reports no power cap; this GPU or its driver has none"))
        else:
            opened.setters.append(SocketCap(scope, gpu, library))


def _has_cap(library: AmdSmi, gpu: AmdGpu) -> bool:
    try:
        return not isnan(library.caps_w(gpu)[0])
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
        _, lowest, highest, default = self._library.caps_w(self._gpu)
        if isnan(highest):
            raise self._explain_missing("range of caps")
        lowest = max(_LOWEST_W, 0.0 if isnan(lowest) else lowest)
        return SettingLimits(lowest, highest, None if isnan(default) else default, "W")

    def get(self) -> Setting:
        """Return the cap. Raises Denied, ReadFailed, DeviceLost."""
        cap_w = self._library.caps_w(self._gpu)[0]
        if isnan(cap_w):
            raise self._explain_missing("cap")
        return {_CAP: cap_w}

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

    def _explain_missing(self, value: str) -> ReadFailed:
        what, why = f"{self.scope} reports no {value}", "the library returns no value for this device"
        advice, code = "see amd-smi static --limit", "read-failed.no-cap"
        return ReadFailed(what, where="amdsmi", why=why, next=advice, code=code)
