"""Set power caps of NVIDIA GPUs, and lock their clocks where a cap is refused (NVML).

Requested and enforced caps are read back from the device. NVML does not report locked clocks: our own locks of this
boot are recorded in `<state>/clocks/<uuid>.json`, and `get` returns that record; those of other programs are not seen.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from joulelab.core.clock import read_boot_id
from joulelab.core.errors import Denied, DeviceLost, JoulelabError, ReadFailed, Refused, Unavailable
from joulelab.core.setting import GET_PERMISSION, SetterFamily, Setting, SettingLimits
from joulelab.instruments.nvml import client
from joulelab.instruments.nvml.client import Gpu, Nvml
from joulelab.store import safe_files
from joulelab.store.documents import decode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Literal

STATE: Final = "/var/lib/joulelab"
LOCK_CLOCKS: Final = "lock its clocks instead: joulelab cap --clock MHZ"
SET_CAP: Final = "set a power cap instead: joulelab cap WATTS"
_CAP: Final = "cap_w"
_LOWEST, _HIGHEST = "lowest_hz", "highest_hz"
_SM: Final = 1  # NVML_CLOCK_SM
_IDLE_MHZ: Final = 210  # about the clock at which every GPU since Kepler idles


def open_setters(environ: Mapping[str, str]) -> SetterFamily:
    """Open NVML: a setter of power and one of clocks per GPU. Raises Unavailable, Denied."""
    nvml = Nvml()
    family = SetterFamily(on_close=nvml.close)
    try:
        _add_gpus(family, nvml, Path(environ.get("JOULELAB_STATE") or STATE) / "clocks")
    except BaseException:
        family.close()
        raise
    return family


def _add_gpus(family: SetterFamily, nvml: Nvml, folder: Path) -> None:
    gpus, failed = nvml.list_gpus()
    if not gpus and not failed:
        why, advice, code = "the driver lists none", "run nvidia-smi", "unavailable.no-gpu"
        raise Unavailable("there is no NVIDIA GPU to cap", where="nvml", why=why, next=advice, code=code)
    family.missing += [(f"gpu:{index}", str(error)) for index, error in failed.items()]
    for gpu in gpus:
        add_gpu(family, nvml, gpu, folder)


def add_gpu(family: SetterFamily, nvml: Nvml, gpu: Gpu, folder: Path) -> None:
    """Add the setters of one GPU; one that is not supported is missing, one that fails at the moment is not."""
    control = GpuControl(nvml, gpu)
    for setter in (PowerCap(control), LockedClocks(control, folder)):
        try:
            setter.limits()
        except Refused as error:
            family.missing.append((control.scope, str(error)))
            continue
        except JoulelabError:
            pass  # it may work later; if not, its first use reports the error
        family.setters.append(setter)
    why = f"a MIG instance has no cap of its own; cap its GPU: {control.scope}"
    family.missing += [(f"{control.scope}/mig:{mig.index}", why) for mig in gpu.mig]


class GpuControl:
    """Call functions of NVML on one GPU; a device that was lost is looked up again at the next call."""

    def __init__(self, nvml: Nvml, gpu: Gpu, *, user: Callable[[], int] = os.geteuid) -> None:
        """Take an open NVML and one of its GPUs; `user` returns whose permission is missing."""
        self.gpu = gpu
        self.scope = f"gpu:{gpu.index}"
        self._nvml = nvml
        self._handle: Any = gpu.handle
        self._user = user

    def call_function(self, what: str, name: str, *arguments: int, advice: str = LOCK_CLOCKS) -> Any:
        """Call `nvmlDevice<name>`; `advice` is for a GPU that does not support it.

        Raises Refused (not supported, out of range), Denied, ReadFailed, DeviceLost.
        """
        if self._handle is None:
            self._handle = self._nvml.find_handle(self.gpu.uuid)
        binding = self._nvml.binding
        try:
            return getattr(binding, f"nvmlDevice{name}")(self._handle, *arguments)
        except binding.NVMLError as error:
            failure = self._explain_code(error.value, f"{what} on {self.scope}", advice, is_setting=bool(arguments))
            if isinstance(failure, DeviceLost):
                self._handle = None
            raise failure from error

    def _explain_code(self, code: int, what: str, advice: str, *, is_setting: bool) -> JoulelabError:
        why = self._nvml.word_code(code)
        if code in client.ABSENT:
            why += ": this GPU or its driver does not take it"
            return Refused(what, where="nvml", why=why, next=advice, code="refused.not-supported")
        if code == client.INVALID_ARGUMENT and is_setting:
            why, advice = f"{why}: out of range", "see the range: joulelab cap status"
            return Refused(what, where="nvml", why=why, next=advice, code="refused.out-of-range")
        if code != client.NO_PERMISSION:
            return self._nvml.explain_code(code, what)
        user, then = self._user(), GET_PERMISSION
        if user:
            why += f": user {user} is not root, and only root may set caps and clocks"
        else:
            why += ": the driver refuses it even to root; a container without CAP_SYS_ADMIN, or a virtual GPU?"
            then = "compare with nvidia-smi -pl; docker run --cap-add=SYS_ADMIN ..., or run capd on the host"
        return Denied(what, where="nvml", why=why, next=then, code="denied.cap")


class PowerCap:
    """Limit the power of one GPU; a setting is {"cap_w": W}."""

    kind: Literal["power"] = "power"

    def __init__(self, control: GpuControl) -> None:
        self.device = control.gpu.uuid
        self.scope = control.scope
        self.model = control.gpu.name
        self._control = control

    def limits(self) -> SettingLimits:
        """Return lowest, highest and default cap. Raises Refused, Denied, ReadFailed, DeviceLost."""
        what, name = "its caps cannot be read", "GetPowerManagementLimitConstraints"
        lowest, highest = self._control.call_function(what, name)
        return SettingLimits(lowest / 1000, highest / 1000, self._read_w("default cap", "Default"), "W")

    def get(self) -> Setting:
        """Return the requested cap. Raises Refused, Denied, ReadFailed, DeviceLost."""
        return {_CAP: self._read_w("cap")}

    def enforced(self) -> float | None:
        """Return the enforced cap (W), also if it was set out of band; None if the driver does not report it.

        Raises Denied, ReadFailed, DeviceLost.
        """
        try:
            what = "its enforced cap cannot be read"
            return float(self._control.call_function(what, "GetEnforcedPowerLimit")) / 1000
        except Refused:
            return None

    def setting(self, value: float) -> Setting:
        """Return the setting for a cap (W). Raises Refused, Denied, ReadFailed, DeviceLost."""
        self.limits().check_value(value, self.scope)
        return {_CAP: value}

    def set(self, setting: Setting) -> None:
        """Request a cap. Raises Refused with the range, Denied, ReadFailed, DeviceLost."""
        cap_w = setting[_CAP]
        self.limits().check_value(cap_w, self.scope)
        # The second version of this function in nvidia-ml-py never looks at its return code.
        what, name = f"a cap of {cap_w:.10g} W cannot be set", "SetPowerManagementLimit"
        self._control.call_function(what, name, round(cap_w * 1000))

    def default(self) -> Setting | None:
        """Return the cap after a reload of the driver. Raises Refused, Denied, ReadFailed, DeviceLost."""
        return {_CAP: self._read_w("default cap", "Default")}

    def _read_w(self, value: str, kind: str = "") -> float:
        name = f"GetPowerManagement{kind}Limit"
        return float(self._control.call_function(f"its {value} cannot be read", name)) / 1000


class LockedClocks:
    """Limit the SM clock of one GPU; a setting is {"lowest_hz", "highest_hz"}, {} if not locked."""

    kind: Literal["clocks"] = "clocks"

    def __init__(self, control: GpuControl, folder: Path) -> None:
        self.device = f"{control.gpu.uuid}.clocks"
        self.scope = control.scope
        self.model = control.gpu.name
        self._control = control
        self._record = folder / f"{control.gpu.uuid}.json"

    def limits(self) -> SettingLimits:
        """Return the range of clocks; the default is the highest. Raises as `PowerCap.limits`."""
        what = "its clocks cannot be read"
        highest = int(self._control.call_function(what, "GetMaxClockInfo", _SM))
        try:
            memory = self._control.call_function(what, "GetSupportedMemoryClocks")
            steps = self._control.call_function(what, "GetSupportedGraphicsClocks", max(memory)) if memory else []
        except Refused:
            steps = []  # consumer cards do not list them
        lowest = min([highest, *(steps or [_IDLE_MHZ])])
        return SettingLimits(lowest * 1e6, highest * 1e6, highest * 1e6, "Hz")

    def get(self) -> Setting:
        """Return our lock of this boot, {} for none. Raises Denied, ReadFailed."""
        try:
            record = decode_json(safe_files.read_regular(self._record, follow=False))
            if record["boot"] != read_boot_id():
                return {}  # a reboot unlocks
            return {_LOWEST: float(record[_LOWEST]), _HIGHEST: float(record[_HIGHEST])}
        except FileNotFoundError:
            return {}
        except PermissionError as error:
            why, what = f"{self._record}: {error.strerror}", "cannot read the record of locked clocks"
            raise Denied(what, where="nvml", why=why, next=GET_PERMISSION, code="denied.clock-record") from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            what, advice = f"{self._record} is damaged", "unlock by hand: sudo nvidia-smi -rgc, and remove the file"
            why, code = repr(error), "read-failed.clock-record"
            raise ReadFailed(what, where="nvml", why=why, next=advice, code=code) from error

    def enforced(self) -> float | None:
        """Return None: the driver reports the clock, not its limit."""
        return None

    def setting(self, value: float) -> Setting:
        """Return the setting for a highest clock (Hz); lower ones stay possible. Raises as `PowerCap`."""
        limits = self.limits()
        limits.check_value(value, self.scope)
        return {_LOWEST: limits.lowest, _HIGHEST: value}

    def set(self, setting: Setting) -> None:
        """Lock, or unlock for {}. Raises Refused with the range, Denied, ReadFailed, DeviceLost."""
        if not setting:
            self._control.call_function("clocks cannot be unlocked", "ResetGpuLockedClocks", advice=SET_CAP)
            self._change_record({})
            return
        limits = self.limits()
        for key in (_LOWEST, _HIGHEST):
            limits.check_value(setting[key], self.scope)
        before = self.get()
        self._change_record(setting)  # first: a lock without a record would never be undone
        lowest, highest = (round(setting[key] / 1e6) for key in (_LOWEST, _HIGHEST))
        try:
            what = f"clocks cannot be locked to {highest} MHz"
            self._control.call_function(what, "SetGpuLockedClocks", lowest, highest, advice=SET_CAP)
        except JoulelabError:
            self._change_record(before)
            raise

    def default(self) -> Setting | None:
        """Return {}: a reload of the driver, or a reboot, unlocks."""
        return {}

    def _change_record(self, setting: Setting) -> None:
        """Write the record to the disk, as safely as a journal, or remove it for {}. Raises Refused."""
        try:
            if setting:
                content = json.dumps({"boot": read_boot_id(), **setting}).encode()
                safe_files.make_folder(self._record.parent)
                safe_files.check_folder(self._record.parent, os.geteuid())
                safe_files.replace_file(self._record, content, sync=True, mode=0o644)
                return
            self._record.unlink(missing_ok=True)
        except OSError as error:
            writable = f"make {self._record.parent} writable, or {GET_PERMISSION}"
            advice = error.next if isinstance(error, safe_files.UntrustedPlace) else writable
            what = f"cannot {'write' if setting else 'remove'} the record of locked clocks"
            why = f"{self._record}: {error.strerror}"
            raise Refused(what, where="nvml", why=why, next=advice, code="refused.clock-record") from error
        safe_files.sync_directory(self._record.parent)
