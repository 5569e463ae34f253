"""Hold the caps of one client: read the status, set all devices of a request or none, restore them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from joulelab.control.lease import CapLease, finish_journal, format_value, get_main_value, get_unit
from joulelab.control.pauses import refuse_pause
from joulelab.control.protocol import CapDevice, CapOutcome, HeldCap, clean_text, make_refusal
from joulelab.control.state import DeviceBusy, advise_manual_reset, format_holder, format_utc
from joulelab.core.errors import ConfigError, Denied, JoulelabError, Refused, StoreError
from joulelab.core.setting import GET_PERMISSION, OutOfBounds, is_same_setting
from joulelab.core.text import suggest_name
from joulelab.instruments.nvml.setter import LOCK_CLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.control.protocol import CapRequest, KeeperRequest
    from joulelab.control.setters import SetterInventory
    from joulelab.control.state import CapJournal, StateFolder
    from joulelab.core.setting import Setter, SettingLimits

# Raises Refused if a client may not set a device to a value (W or Hz).
PermissionCheck = Callable[["Setter", float, "SettingLimits"], None]
# Some drivers take a moment to enforce a new cap; it may be 1 W above the requested one.
ENFORCE_WAIT_S, ENFORCE_SLACK = 0.2, 1.0
ROOT_DENIED = (
    "it is refused even to root: a container without CAP_SYS_ADMIN or with a read-only /sys, or a virtual GPU? "
    "compare with nvidia-smi -pl; run it, or capd, on the host"
)
CHECK_BUS = "has it fallen off the bus? nvidia-smi -q, Xid in dmesg; reset it (nvidia-smi -r) or reboot"
_KIND_OF_UNIT = {"W": "power", "share": "power", "Hz": "clocks"}


class Keeper:
    """Hold the leases of one client.

    `open_setters` opens the setters when they are first needed; `who` names the client to others. `denied_advice` is
    printed if the keeper itself has no permission, unless it runs as root (`user` 0).
    """

    def __init__(
        self,
        state: StateFolder,
        open_setters: Callable[[], SetterInventory],
        who: Mapping[str, Any],
        *,
        check_permission: PermissionCheck | None = None,
        denied_advice: str = GET_PERMISSION,
        user: int | None = None,
    ) -> None:
        self.state = state
        self.leases: dict[str, CapLease] = {}
        self._open_setters = open_setters
        self._who = dict(who)
        self._check_permission = check_permission
        self._denied_advice = denied_advice if (os.geteuid() if user is None else user) else ROOT_DENIED

    def answer_request(self, request: KeeperRequest) -> dict[str, Any]:
        """Answer a request; errors of joulelab are answers too."""
        number = request.id
        try:
            if request.do == "status":
                return {"id": number, "is": "status", **self.read_status()}
            if request.do == "set":
                return {"id": number, "is": "set", "caps": self.set_caps(request.caps, request.who)}
            if request.do in ("pause", "resume"):
                raise refuse_pause()
            release = request.do == "release"
            outcomes = self.release_caps() if release else self.restore_leftovers(request.devices)
            return {"id": number, "is": "released", "devices": [o.to_json() for o in outcomes]}
        except Denied as error:
            advice = self._denied_advice
            error = Denied(error.what, where=error.where, why=error.why, next=advice, code=error.code)
            return make_refusal(number, error)
        except JoulelabError as error:
            held, final = isinstance(error, DeviceBusy), isinstance(error, OutOfBounds)
            return make_refusal(number, error, held=held, final=final)

    def read_status(self) -> dict[str, Any]:
        """Describe every device: range, cap, holder, left-over cap."""
        found = self._open_setters()
        devices, missing = [], [list(one) for one in found.missing]
        for setter in found.setters:
            try:
                devices.append(self._describe_device(setter).to_json())
            except JoulelabError as error:
                left = "; a cap was left behind on it" if setter.device in self.state.list_devices() else ""
                missing.append([setter.scope, f"{error}{left}"])
        known = {setter.device for setter in found.setters}
        missing += [self._describe_absence(device) for device in self.state.list_devices() if device not in known]
        return {"devices": devices, "missing": missing}

    def set_caps(self, requests: Sequence[CapRequest], who: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Cap devices, or change held caps; if one is refused, the others are undone. Raises JoulelabError."""
        wanted = self._resolve_requests(requests)
        named = {**{key: clean_text(value) for key, value in who.items() if key in ("command", "run")}, **self._who}
        before = {s.device: self.leases[s.device].now for s, _ in wanted if s.device in self.leases}
        fresh: list[str] = []
        try:
            for setter, value in wanted:
                if setter.device not in self.leases:
                    holder = {**named, "since": format_utc()}
                    self.leases[setter.device] = CapLease(setter, self.state, holder)
                    fresh.append(setter.device)
                lease = self.leases[setter.device]
                lease.set(lease.setter.setting(value))
            return self._describe_held([(self.leases[setter.device], value) for setter, value in wanted])
        except BaseException as error:
            problems = self._undo_changes(fresh, before)
            if problems and isinstance(error, JoulelabError):
                error.why = "; ".join([*([error.why] if error.why else []), *problems])
            raise

    def release_caps(self) -> list[CapOutcome]:
        """Restore and unlock every device, the last one first. Raises nothing."""
        return [self.leases.pop(device).restore() for device in reversed(list(self.leases))]

    def restore_leftovers(self, devices: Sequence[str] | None = None) -> list[CapOutcome]:
        """Finish the journals (of some devices) that no keeper holds. Raises nothing."""
        left = [d for d in self.state.list_devices() if devices is None or d in devices]
        if not left:
            return []
        setters = {setter.device: setter for setter in self._open_setters().setters}
        outcomes = [self._restore_leftover(device, setters.get(device)) for device in left]
        return [outcome for outcome in outcomes if outcome is not None]

    def _restore_leftover(self, device: str, setter: Setter | None) -> CapOutcome | None:
        """Finish one journal, None if another keeper holds it; an error does not stop the other devices."""
        state = self.state.find_notes(device)
        path = state.get_journal_path(device)
        try:
            holder = {**self._who, "since": format_utc()}
            lock = state.lock_device(device, holder, setter.scope if setter else device)
        except DeviceBusy:
            return None
        except JoulelabError as error:
            return _make_failure(device, str(error))
        try:
            journal = state.read_journal(device)
            if journal is None:  # its keeper has just finished it
                return None
            if setter is not None:
                return finish_journal(setter, journal, state)
            advice = f"{_advise_return(journal)}; remove {path} only if it is gone for good"
            message = f"{_name_device(journal)} is not there now; {advice}"
            found, unit = get_main_value(journal.found), get_unit(journal.kind)
            return CapOutcome(journal.scope, device, "failed", found, None, unit, message)
        except StoreError as error:
            return _make_failure(device, str(error))
        except Exception as error:  # noqa: BLE001 - see above
            return _make_failure(device, f"{device} is not restored: {error!r}; {advise_manual_reset(path)}")
        finally:
            lock.close()

    def _describe_absence(self, device: str) -> list[str]:
        """Return (scope, reason) of a device that has a journal but does not exist now."""
        try:
            holder, left = self.state.inspect_device(device)
            journal = left or self.state.find_notes(device).read_journal(device)
        except StoreError as error:
            return [device, str(error)]
        if journal is None:  # its keeper has just finished it
            return [device, "it was restored just now"]
        reason = "and a cap was left behind on it" if holder is None else f"held by {format_holder(holder)}"
        separator = ", " if holder is None else "; "
        text = f"{_name_device(journal)} is not there now{separator}{reason}; {_advise_return(journal)}"
        return [journal.scope, text]

    def _undo_changes(self, fresh: list[str], before: Mapping[str, Any]) -> list[str]:
        """Undo a request: restore newly held devices, set the others to their value before; return the problems."""
        problems = []
        for device in reversed(fresh):
            outcome = self.leases.pop(device).restore()
            if outcome.outcome in ("failed", "left"):
                problems.append(f"{outcome.scope}: {outcome.message}")
        for device, setting in before.items():
            try:
                self.leases[device].undo(setting)
            except JoulelabError as error:
                problems.append(f"{self.leases[device].setter.scope} is not back at its former cap: {error}")
        return problems

    def _resolve_requests(self, requests: Sequence[CapRequest]) -> list[tuple[Setter, float]]:
        """Return the setter and the value (W or Hz) of each request. Raises JoulelabError if a value is not allowed."""
        wanted: list[tuple[Setter, float]] = []
        for request in requests:
            setter = self._find_setter(request)
            if any(setter.device == other.device for other, _ in wanted):
                what, code = f"{setter.scope} is named twice", "config.duplicate-device"
                raise ConfigError(what, where="caps", next="name each device once", code=code)
            limits, value = setter.limits(), request.value
            if request.unit == "share":
                if limits.default is None:
                    what, why = "it takes no share", "the device reports no default cap"
                    advice, code = "give the cap in watts", "refused.no-default"
                    raise Refused(what, where=setter.scope, why=why, next=advice, code=code)
                value *= limits.default
            limits.check_value(value, setter.scope)
            if self._check_permission is not None:
                self._check_permission(setter, value, limits)
            wanted.append((setter, value))
        return wanted

    def _find_setter(self, request: CapRequest) -> Setter:
        """Return the setter of a request. Raises ConfigError with a list of the devices."""
        # A held device is found by its lease: it stays ours even if it is no longer listed.
        held = [lease.setter for lease in self.leases.values()]
        kind = _KIND_OF_UNIT[request.unit]
        for setter in (*held, *self._open_setters().setters):
            names = (setter.scope, setter.device, setter.device.removesuffix(".clocks"))
            if setter.kind == kind and request.device in names:
                return setter
        raise self._explain_no_setter(request.device, kind)

    def _explain_no_setter(self, device: str, kind: str) -> ConfigError:
        """Explain why there is no setter: the device cannot be capped, or does not exist."""
        found = self._open_setters()
        others = [one for one in found.setters if device in (one.scope, one.device.removesuffix(".clocks"))]
        scope = others[0].scope if others else device
        reasons = [why for missing, why in found.missing if missing == scope]
        if others or reasons:
            advice = LOCK_CLOCKS if any(one.kind == "clocks" for one in others) else "joulelab cap status"
            next_ = None if any(LOCK_CLOCKS in why for why in reasons) else advice
            what = f"{scope} takes no {'cap' if kind == 'power' else 'lock of its clocks'}"
            why, code = "; ".join(reasons) or None, "refused.not-supported"
            return Refused(what, where="caps", why=why, next=next_, code=code)
        names = [setter.scope for setter in found.setters if setter.kind == kind]
        what = clean_text(f"there is no {device!r} to {'cap' if kind == 'power' else 'lock the clocks of'}")
        code = "config.unknown-device"
        if names:
            return ConfigError(what, where="caps", next=suggest_name(device, names), code=code)
        why = "; ".join(dict.fromkeys(why for _, why in (*found.missing, *found.absent))) or None
        return ConfigError(what, where="caps", why=why, next="joulelab cap status", code=code)

    def _describe_held(self, held: Sequence[tuple[CapLease, float]]) -> list[dict[str, Any]]:
        """Describe the caps that were just set, after waiting a moment until they are enforced."""
        until = time.monotonic() + ENFORCE_WAIT_S
        while True:
            enforced = [lease.setter.enforced() for lease, _ in held]
            pairs = zip(enforced, held, strict=True)
            settled = all(value is None or value <= asked + ENFORCE_SLACK for value, (_, asked) in pairs)
            if settled or time.monotonic() >= until:
                break
            time.sleep(0.02)
        caps = []
        for (lease, asked), value in zip(held, enforced, strict=True):
            limits, found, now = lease.setter.limits(), get_main_value(lease.found), get_main_value(lease.now)
            names = _get_names(lease.setter)
            caps.append(HeldCap(*names, asked, now, value, found, limits.default, limits.unit).to_json())
        return caps

    def _describe_device(self, setter: Setter) -> CapDevice:
        """Describe a device: range, cap, holder, left-over cap. Raises MeterError."""
        limits, setting, enforced = setter.limits(), setter.get(), setter.enforced()
        requested = get_main_value(setting)
        holder, leftover = None, None
        try:
            who, journal = self.state.inspect_device(setter.device)
            holder = None if who is None else format_holder(who)
            if journal is not None:
                ours = [get_main_value(one) for one in journal.set]
                found = get_main_value(journal.found)
                leftover = {"found": found, "set": ours, "who": dict(journal.who), "utc": journal.utc}
                path = self.state.find_notes(setter.device).get_journal_path(setter.device)
                leftover |= {"is_restored": is_same_setting(setting, journal.found), "journal": str(path)}
        except StoreError as error:
            leftover = {"problem": str(error)}
        bounds = (limits.lowest, limits.highest, limits.default)
        return CapDevice(*_get_names(setter), limits.unit, *bounds, requested, enforced, holder, leftover)


def _make_failure(device: str, message: str) -> CapOutcome:
    return CapOutcome(device, device, "failed", None, None, "W", message)


def _name_device(journal: CapJournal) -> str:
    return f"{journal.scope} ({journal.device})"


def _advise_return(journal: CapJournal) -> str:
    found = format_value(get_main_value(journal.found), get_unit(journal.kind))
    bus = f"{CHECK_BUS}; " if journal.scope.startswith("gpu:") else ""
    return f"{bus}when it returns, joulelab cap restore sets it back to {found}"


def _get_names(setter: Setter) -> tuple[str, str, str, str]:
    return setter.scope, setter.device, setter.model, setter.kind
