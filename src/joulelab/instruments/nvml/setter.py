"""Set power caps of NVIDIA GPUs, and lock their clocks where a cap is refused (NVML).

Requested and enforced caps are read back from the device. NVML does not tell whether clocks are locked: what we locked
is kept in `<state>/clocks/<uuid>.json` of this boot, and is what `get` returns; a lock of somebody else is not seen.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.clock import boot_id
from joulelab.core.errors import Denied, JoulelabError, ReadFailed, Refused, Unavailable
from joulelab.core.setting import WAYS, Limits, Opened, Setting
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


def open_setters(environ: Mapping[str, str]) -> Opened:
    """Open NVML: a setter of power and one of clocks per GPU. Raises Unavailable, Denied."""
    nvml = Nvml()
    opened = Opened(on_close=nvml.close)
    try:
        _fill(opened, nvml, Path(environ.get("JOULELAB_STATE") or STATE) / "clocks")
    except BaseException:
        opened.close()
        raise
    return opened


def _fill(opened: Opened, nvml: Nvml, folder: Path) -> None:
    gpus, absent = nvml.gpus()
    if not gpus and not absent:
        why = "the driver lists none"
        raise Unavailable("there is no NVIDIA GPU to cap", where="nvml", why=why, next="run nvidia-smi")
    opened.missing += [(f"gpu:{gone.index}", str(gone.error)) for gone in absent]
    for gpu in gpus:
        _add(opened, nvml, gpu, folder)


def _add(opened: Opened, nvml: Nvml, gpu: Gpu, folder: Path) -> None:
    """Add the setters of one GPU; what it does not support is missing, what fails just now is not."""
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
            pass  # lost, or failing now: it says so when it is used, and may be back by then
        opened.setters.append(setter)
    why = f"a MIG instance has no cap of its own; cap its GPU: {scope}"
    opened.missing += [(f"{scope}/mig:{mig.index}", why) for mig in gpu.mig]


class PowerCap:
    """Limit the power of one GPU; a setting is {"cap_w": W}."""

    kind: Literal["power"] = "power"

    def __init__(self, gpu: Gpu, control: GpuControl) -> None:
        """Take a GPU and how it is controlled."""
        self.device = gpu.uuid
        self.scope = f"gpu:{gpu.index}"
        self.model = gpu.name
        self._control = control

    def limits(self) -> Limits:
        """Return lowest, highest and default cap. Raises Refused, Denied, ReadFailed, DeviceLost."""
        lowest, highest = self._control.range_w()
        return Limits(lowest, highest, self._control.default_w(), "W")

    def get(self) -> Setting:
        """Return the requested cap. Raises Refused, Denied, ReadFailed, DeviceLost."""
        return {_CAP: self._control.requested_w()}

    def enforced(self) -> float | None:
        """Return the cap in force (W), None where the driver does not tell. Raises Denied, ReadFailed, DeviceLost."""
        try:
            return self._control.enforced_w()
        except Refused:
            return None

    def setting(self, value: float) -> Setting:
        """Return the setting for a cap (W). Raises Refused, Denied, ReadFailed, DeviceLost."""
        self.limits().check(value, self.scope)
        return {_CAP: value}

    def set(self, setting: Setting) -> None:
        """Request a cap. Raises Refused with the range, Denied, ReadFailed, DeviceLost."""
        self.limits().check(setting[_CAP], self.scope)
        self._control.request_w(setting[_CAP])

    def default(self) -> Setting | None:
        """Return what a driver that was unloaded comes back with. Raises Refused, Denied, ReadFailed, DeviceLost."""
        return {_CAP: self._control.default_w()}


class LockedClocks:
    """Keep the SM clock of one GPU below a value; a setting is {"lowest_hz", "highest_hz"}, {} where not locked."""

    kind: Literal["clocks"] = "clocks"

    def __init__(self, gpu: Gpu, control: GpuControl, folder: Path) -> None:
        """Take a GPU, how it is controlled, and where the record of locks is kept."""
        self.device = f"{gpu.uuid}.clocks"
        self.scope = f"gpu:{gpu.index}"
        self.model = gpu.name
        self._control = control
        self._record = folder / f"{gpu.uuid}.json"

    def limits(self) -> Limits:
        """Return the clocks that can be locked; free, it goes to the highest. Raises as `PowerCap.limits`."""
        lowest, highest = self._control.clocks_hz()
        return Limits(lowest, highest, highest, "Hz")

    def get(self) -> Setting:
        """Return what we locked in this boot, {} for nothing. Raises Denied, ReadFailed."""
        try:
            told = decode_json(safe_files.read_regular(self._record, follow=False))
            if told["boot"] != boot_id():
                return {}  # a reboot unlocks
            return {_LOWEST: float(told[_LOWEST]), _HIGHEST: float(told[_HIGHEST])}
        except FileNotFoundError:
            return {}
        except PermissionError as error:
            why, what = f"{self._record}: {error.strerror}", "the record of locked clocks cannot be read"
            raise Denied(what, where="nvml", why=why, next=WAYS) from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            why, advice = repr(error), "unlock by hand: sudo nvidia-smi -rgc, and remove the file"
            raise ReadFailed(f"{self._record} is no record of ours", where="nvml", why=why, next=advice) from error

    def enforced(self) -> float | None:
        """Return None: the driver tells the clock, not its limit."""
        return None

    def setting(self, value: float) -> Setting:
        """Return the setting that keeps the clock at or below a value (Hz); it may idle. Raises as `PowerCap`."""
        limits = self.limits()
        limits.check(value, self.scope)
        return {_LOWEST: limits.lowest, _HIGHEST: value}

    def set(self, setting: Setting) -> None:
        """Lock, or unlock for {}. Raises Refused with the range, Denied, ReadFailed, DeviceLost."""
        if not setting:
            self._control.unlock_clocks()
            self._forget()
            return
        limits = self.limits()
        for key in (_LOWEST, _HIGHEST):
            limits.check(setting[key], self.scope)
        before = self.get()
        self._remember(setting)  # first: a lock without a record would never be taken back
        try:
            self._control.lock_clocks(setting[_LOWEST], setting[_HIGHEST])
        except JoulelabError:
            if before:
                self._remember(before)
            else:
                self._forget()
            raise

    def default(self) -> Setting | None:
        """Return {}: a driver that was unloaded, or a reboot, unlocks."""
        return {}

    def _remember(self, setting: Setting) -> None:
        """Write the record as a journal is: on the disk before the clocks are locked."""
        text = json.dumps({"boot": boot_id(), **setting}).encode()
        try:
            safe_files.make_folder(self._record.parent)
            safe_files.check_folder(self._record.parent, os.geteuid())
            safe_files.replace_file(self._record, text, sync=True, mode=0o644)
        except OSError as error:
            raise self._unwritten(error, "written") from error

    def _forget(self) -> None:
        try:
            self._record.unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritten(error, "removed") from error
        safe_files.sync_directory(self._record.parent)

    def _unwritten(self, error: OSError, done: str) -> Refused:
        is_untrusted = isinstance(error, safe_files.UntrustedPlace)
        then = error.next if is_untrusted else f"make {self._record.parent} writable, or {WAYS}"
        what, why = f"the record of locked clocks cannot be {done}", f"{self._record}: {error.strerror}"
        return Refused(what, where="nvml", why=why, next=then)
