"""Set power caps of NVIDIA GPUs, and lock their clocks where a cap is refused (NVML).

Requested and enforced caps are read back from the device. NVML does not report locked clocks: our own locks of this
boot are recorded in `<state>/clocks/<uuid>.json`, and `get` returns that record; those of other programs are not seen.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.clock import read_boot_id
from joulelab.core.errors import Denied, JoulelabError, ReadFailed, Refused, Unavailable
from joulelab.core.setting import GET_PERMISSION, SetterFamily, Setting, SettingLimits
from joulelab.instruments.nvml.client import Gpu, Nvml
from joulelab.instruments.nvml.control import GpuControl
from joulelab.store import safe_files
from joulelab.store.documents import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

STATE = "/var/lib/joulelab"
_CAP = "cap_w"
_LOWEST, _HIGHEST = "lowest_hz", "highest_hz"


def open_setters(environ: Mapping[str, str]) -> SetterFamily:
    """Open NVML: a setter of power and one of clocks per GPU. Raises Unavailable, Denied."""
    nvml = Nvml()
    opened = SetterFamily(on_close=nvml.close)
    try:
        _add_gpus(opened, nvml, Path(environ.get("JOULELAB_STATE") or STATE) / "clocks")
    except BaseException:
        opened.close()
        raise
    return opened


def _add_gpus(opened: SetterFamily, nvml: Nvml, folder: Path) -> None:
    gpus, absent = nvml.gpus()
    if not gpus and not absent:
        why, advice, code = "the driver lists none", "run nvidia-smi", "unavailable.no-gpu"
        raise Unavailable("there is no NVIDIA GPU to cap", where="nvml", why=why, next=advice, code=code)
    opened.missing += [(f"gpu:{gone.index}", str(gone.error)) for gone in absent]
    for gpu in gpus:
        _add_gpu(opened, nvml, gpu, folder)


def _add_gpu(opened: SetterFamily, nvml: Nvml, gpu: Gpu, folder: Path) -> None:
    """Add the setters of one GPU; one that is not supported is missing, one that fails at the moment is not."""
    scope = f"gpu:{gpu.index}"
    control = GpuControl(nvml, gpu)
    power, clocks = PowerCap(gpu, control), LockedClocks(gpu, control, folder)
    for setter in (power, clocks):
        try:
            setter.limits()
        except Refused as error:
            opened.missing.append((scope, str(error)))
            continue
        except JoulelabError:
            pass  # it may work later; if not, its first use reports the error
        opened.setters.append(setter)
    why = f"a MIG instance has no cap of its own; cap its GPU: {scope}"
    opened.missing += [(f"{scope}/mig:{mig.index}", why) for mig in gpu.mig]


class PowerCap:
    """Limit the power of one GPU; a setting is {"cap_w": W}."""

    kind: Literal["power"] = "power"

    def __init__(self, gpu: Gpu, control: GpuControl) -> None:
        self.device = gpu.uuid
        self.scope = f"gpu:{gpu.index}"
        self.model = gpu.name
        self._control = control

    def limits(self) -> SettingLimits:
        """Return lowest, highest and default cap. Raises Refused, Denied, ReadFailed, DeviceLost."""
        lowest, highest = self._control.range_w()
        return SettingLimits(lowest, highest, self._control.default_w(), "W")

    def get(self) -> Setting:
        """Return the requested cap. Raises Refused, Denied, ReadFailed, DeviceLost."""
        return {_CAP: self._control.requested_w()}

    def enforced(self) -> float | None:
        """Return the enforced cap (W), None if the driver does not report it. Raises Denied, ReadFailed, DeviceLost."""
        try:
            return self._control.enforced_w()
        except Refused:
            return None

    def setting(self, value: float) -> Setting:
        """Return the setting for a cap (W). Raises Refused, Denied, ReadFailed, DeviceLost."""
        self.limits().check_value(value, self.scope)
        return {_CAP: value}

    def set(self, setting: Setting) -> None:
        """Request a cap. Raises Refused with the range, Denied, ReadFailed, DeviceLost."""
        self.limits().check_value(setting[_CAP], self.scope)
        self._control.request_w(setting[_CAP])

    def default(self) -> Setting | None:
        """Return the cap after a reload of the driver. Raises Refused, Denied, ReadFailed, DeviceLost."""
        return {_CAP: self._control.default_w()}


class LockedClocks:
    """Limit the SM clock of one GPU; a setting is {"lowest_hz", "highest_hz"}, {} if not locked."""

    kind: Literal["clocks"] = "clocks"

    def __init__(self, gpu: Gpu, control: GpuControl, folder: Path) -> None:
        self.device = f"{gpu.uuid}.clocks"
        self.scope = f"gpu:{gpu.index}"
        self.model = gpu.name
        self._control = control
        self._record = folder / f"{gpu.uuid}.json"

    def limits(self) -> SettingLimits:
        """Return the range of clocks; the default is the highest. Raises as `PowerCap.limits`."""
        lowest, highest = self._control.clocks_hz()
        return SettingLimits(lowest, highest, highest, "Hz")

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
            self._control.unlock_clocks()
            self._remove_record()
            return
        limits = self.limits()
        for key in (_LOWEST, _HIGHEST):
            limits.check_value(setting[key], self.scope)
        before = self.get()
        self._write_record(setting)  # first: a lock without a record would never be undone
        try:
            self._control.lock_clocks(setting[_LOWEST], setting[_HIGHEST])
        except JoulelabError:
            if before:
                self._write_record(before)
            else:
                self._remove_record()
            raise

    def default(self) -> Setting | None:
        """Return {}: a reload of the driver, or a reboot, unlocks."""
        return {}

    def _write_record(self, setting: Setting) -> None:
        """Write the record to the disk, as safely as a journal."""
        text = json.dumps({"boot": read_boot_id(), **setting}).encode()
        try:
            safe_files.make_folder(self._record.parent)
            safe_files.check_folder(self._record.parent, os.geteuid())
            safe_files.replace_file(self._record, text, sync=True, mode=0o644)
        except OSError as error:
            raise self._explain_write_error(error, "write") from error

    def _remove_record(self) -> None:
        try:
            self._record.unlink(missing_ok=True)
        except OSError as error:
            raise self._explain_write_error(error, "remove") from error
        safe_files.sync_directory(self._record.parent)

    def _explain_write_error(self, error: OSError, action: str) -> Refused:
        writable = f"make {self._record.parent} writable, or {GET_PERMISSION}"
        advice = error.next if isinstance(error, safe_files.UntrustedPlace) else writable
        what, why = f"cannot {action} the record of locked clocks", f"{self._record}: {error.strerror}"
        return Refused(what, where="nvml", why=why, next=advice, code="refused.clock-record")
