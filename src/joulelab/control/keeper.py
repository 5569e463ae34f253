"""Keep the caps of one client: status, set, release; all devices of a set or none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from joulelab.control.frames import plain, refused
from joulelab.control.lease import Lease, finish, main_value, unit_of, value_text
from joulelab.control.state import InUse, by_hand, holder_text, utc_text
from joulelab.control.told import Released
from joulelab.core.errors import ConfigError, Denied, JoulelabError, Refused, StoreError
from joulelab.core.setting import WAYS, OutOfBounds
from joulelab.instruments import nearest
from joulelab.instruments.nvml.control import LOCK_CLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulelab.control.frames import Ask, WishFrame
    from joulelab.control.setters import Found
    from joulelab.control.state import Journal, State
    from joulelab.core.setting import Limits, Setter

# Raises Refused where a client may not set a device to a value (W or Hz).
Permit = Callable[["Setter", float, "Limits"], None]
# Some drivers take a moment to enforce a new cap (W).
SETTLE_S, ABOVE = 0.2, 1.0
EVEN_ROOT = (
    "it is refused even to root: a container without CAP_SYS_ADMIN or with a read-only /sys, or a virtual GPU? "
    "compare with nvidia-smi -pl; run it, or capd, on the host"
)
BUS = "has it fallen off the bus? nvidia-smi -q, Xid in dmesg; reset it (nvidia-smi -r) or reboot"
_KIND = {"W": "power", "share": "power", "Hz": "clocks"}


class Keeper:
    """Hold the leases of one client.

    `find` opens the setters when they are first needed, `permit` says what the client may; `who` names the client to
    others. `denied` is the advice where the keeper itself has no permission, unless its `user` is root (0).
    """

    def __init__(
        self,
        state: State,
        find: Callable[[], Found],
        who: Mapping[str, Any],
        *,
        permit: Permit | None = None,
        denied: str = WAYS,
        user: int | None = None,
    ) -> None:
        self.state = state
        self.leases: dict[str, Lease] = {}
        self._find = find
        self._who = dict(who)
        self._permit = permit
        self._denied = denied if (os.geteuid() if user is None else user) else EVEN_ROOT

    def answer(self, ask: Ask) -> dict[str, Any]:
        """Return the answer to a request; errors are answers too."""
        try:
            if ask.do == "status":
                return {"id": ask.id, "is": "status", **self.status()}
            if ask.do == "set":
                return {"id": ask.id, "is": "set", "caps": self.set(ask.caps, ask.who)}
            if ask.do == "release":
                return {"id": ask.id, "is": "released", "devices": [o.to_json() for o in self.release()]}
            return {"id": ask.id, "is": "released", "devices": [o.to_json() for o in self.restore(ask.devices)]}
        except Denied as error:
            advised = Denied(error.what, where=error.where, why=error.why, next=self._denied)
            return refused(ask.id, advised)
        except JoulelabError as error:
            return refused(ask.id, error, held=isinstance(error, InUse), final=isinstance(error, OutOfBounds))

    def status(self) -> dict[str, Any]:
        """Return every device with its range, what is set, and who holds it."""
        found = self._find()
        devices, missing = [], [list(one) for one in found.missing]
        for setter in found.setters:
            try:
                devices.append(self._status(setter))
            except JoulelabError as error:
                left = "; a cap was left behind on it" if setter.device in self.state.devices() else ""
                missing.append([setter.scope, f"{error}{left}"])
        known = {setter.device for setter in found.setters}
        missing += [self._gone(device) for device in self.state.devices() if device not in known]
        return {"devices": devices, "missing": missing}

    def set(self, wishes: Sequence[WishFrame], who: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Hold devices, or change those that are held; what is refused undoes the rest. Raises JoulelabError."""
        wanted = self._wanted(wishes)
        named = {**{key: plain(value) for key, value in who.items() if key in ("command", "run")}, **self._who}
        before = {
            device: self.leases[device].now
            for device in (setter.device for setter, _ in wanted)
            if device in self.leases
        }
        fresh: list[str] = []
        try:
            for setter, value in wanted:
                if setter.device not in self.leases:
                    lock_text = {**named, "since": utc_text()}
                    self.leases[setter.device] = Lease(setter, self.state, lock_text)
                    fresh.append(setter.device)
                lease = self.leases[setter.device]
                lease.set(lease.setter.setting(value))
            told = self._told([(self.leases[setter.device], value) for setter, value in wanted])
        except BaseException as error:
            problems = self._undo(fresh, before)
            if problems and isinstance(error, JoulelabError):
                error.why = "; ".join([*([error.why] if error.why else []), *problems])
            raise
        return told

    def release(self) -> list[Released]:
        """Put back everything, the last first, and let go of it. Nothing is raised."""
        return [self.leases.pop(device).restore() for device in reversed(list(self.leases))]

    def restore(self, devices: Sequence[str] | None = None) -> list[Released]:
        """Finish left-over journals (of some devices) that no keeper holds. Nothing is raised."""
        left = [d for d in self.state.devices() if devices is None or d in devices]
        if not left:
            return []
        setters = {setter.device: setter for setter in self._find().setters}
        outcomes = [self._restore(device, setters.get(device)) for device in left]
        return [outcome for outcome in outcomes if outcome is not None]

    def _restore(self, device: str, setter: Setter | None) -> Released | None:
        """Finish one journal; whatever is wrong with it is told, and keeps no other from being finished."""
        try:
            lock = self.state.lock(device, {**self._who, "since": utc_text()}, setter.scope if setter else device)
        except InUse:
            return None
        except JoulelabError as error:
            return _failed(device, str(error))
        try:
            journal = self.state.read(device)
            if journal is None:  # its keeper has just put it back
                return None
            return _absent(journal, self.state.path(device)) if setter is None else finish(setter, journal, self.state)
        except StoreError as error:
            return _failed(device, str(error))
        except Exception as error:  # noqa: BLE001 - see above
            return _failed(device, f"{device} is not put back: {error!r}; {by_hand(self.state.path(device))}")
        finally:
            lock.close()

    def _gone(self, device: str) -> list[str]:
        """Return what is known of a device that has a journal, and is not there."""
        try:
            holder, left = self.state.look(device)
            journal = left or self.state.read(device)
        except StoreError as error:
            return [device, str(error)]
        if journal is None:  # its keeper has just put it back
            return [device, "it was put back just now"]
        what = f"{_thing(journal)} is not there now, and a cap was left behind on it"
        if holder is not None:
            what = f"{_thing(journal)} is not there now; held by {holder_text(holder)}"
        return [journal.scope, f"{what}; {_return(journal)}"]

    def _undo(self, fresh: list[str], before: Mapping[str, Any]) -> list[str]:
        """Take a set back: let go of new devices, set held ones to what they were; return what went wrong."""
        problems = []
        for device in reversed(fresh):
            outcome = self.leases.pop(device).restore()
            if outcome.outcome in ("failed", "left"):
                problems.append(f"{outcome.scope}: {outcome.said}")
        for device, setting in before.items():
            try:
                self.leases[device].undo(setting)
            except JoulelabError as error:
                problems.append(f"{self.leases[device].setter.scope} is not back at what it was: {error}")
        return problems

    def _wanted(self, wishes: Sequence[WishFrame]) -> list[tuple[Setter, float]]:
        wanted: list[tuple[Setter, float]] = []
        for wish in wishes:
            setter = self._setter(wish)
            if any(setter.device == other.device for other, _ in wanted):
                raise ConfigError(f"{setter.scope} is named twice", where="caps", next="name each device once")
            limits = setter.limits()
            value = wish.value
            if wish.unit == "share":
                value = self._share(setter, limits, wish.value)
            limits.check(value, setter.scope)
            if self._permit is not None:
                self._permit(setter, value, limits)
            wanted.append((setter, value))
        return wanted

    def _share(self, setter: Setter, limits: Limits, share: float) -> float:
        if limits.default is None:
            why = "the device does not tell its default"
            raise Refused("it takes no share", where=setter.scope, why=why, next="give it in watts")
        return share * limits.default

    def _setter(self, wish: WishFrame) -> Setter:
        """Return the setter that a wish means. Raises ConfigError with the devices there are."""
        # A device that is held is found by its lease: it stays ours even if it is not listed any more.
        held = [lease.setter for lease in self.leases.values()]
        kind = _KIND[wish.unit]
        for setter in (*held, *self._find().setters):
            if setter.kind == kind and wish.device in (
                setter.scope,
                setter.device,
                setter.device.removesuffix(".clocks"),
            ):
                return setter
        raise self._none(wish.device, kind)

    def _none(self, device: str, kind: str) -> ConfigError:
        """Return why there is no such setter: the device takes no cap, or it is not there."""
        found = self._find()
        what = "cap" if kind == "power" else "lock of its clocks"
        others = [one for one in found.setters if device in (one.scope, one.device.removesuffix(".clocks"))]
        scope = others[0].scope if others else device
        reasons = [why for missing, why in found.missing if missing == scope]
        if others or reasons:
            then = LOCK_CLOCKS if any(one.kind == "clocks" for one in others) else "joulelab cap status"
            advice = None if any(LOCK_CLOCKS in why for why in reasons) else then
            return Refused(f"{scope} takes no {what}", where="caps", why="; ".join(reasons) or None, next=advice)
        names = [setter.scope for setter in found.setters if setter.kind == kind]
        text = plain(f"there is no {device!r} to {'cap' if kind == 'power' else 'lock the clocks of'}")
        if names:
            return ConfigError(text, where="caps", next=nearest(device, names))
        why = "; ".join(dict.fromkeys(why for _, why in (*found.missing, *found.absent)))
        return ConfigError(text, where="caps", why=why or None, next="joulelab cap status")

    def _told(self, held: Sequence[tuple[Lease, float]]) -> list[dict[str, Any]]:
        """Return what is set and in force, once that follows what was asked or a moment has passed."""
        until = time.monotonic() + SETTLE_S
        while True:
            enforced = [lease.setter.enforced() for lease, _ in held]
            pairs = zip(enforced, held, strict=True)
            settled = all(value is None or value <= asked + ABOVE for value, (_, asked) in pairs)
            if settled or time.monotonic() >= until:
                return [_held(*one, value) for one, value in zip(held, enforced, strict=True)]
            time.sleep(0.02)

    def _status(self, setter: Setter) -> dict[str, Any]:
        """Return what a device shows, who holds it, and what was left behind. Raises MeterError."""
        limits = setter.limits()
        told = {
            **_names(setter),
            "unit": limits.unit,
            "lowest": limits.lowest,
            "highest": limits.highest,
            "default": limits.default,
            "requested": main_value(setter.get()),
            "enforced": setter.enforced(),
        }
        try:
            holder, left = self.state.look(setter.device)
        except StoreError as error:
            return {**told, "holder": None, "leftover": {"problem": str(error)}}
        return {
            **told,
            "holder": None if holder is None else holder_text(holder),
            "leftover": None if left is None else _leftover(left),
        }


def _held(lease: Lease, asked: float, enforced: float | None) -> dict[str, Any]:
    limits = lease.setter.limits()
    return {
        **_names(lease.setter),
        "asked": asked,
        "requested": main_value(lease.now),
        "enforced": enforced,
        "found": main_value(lease.found),
        "default": limits.default,
        "unit": limits.unit,
    }


def _leftover(journal: Journal) -> dict[str, Any]:
    ours = [main_value(one) for one in journal.set]
    return {"found": main_value(journal.found), "set": ours, "who": dict(journal.who), "utc": journal.utc}


def _failed(device: str, said: str) -> Released:
    return Released(device, device, "failed", None, None, "W", said)


def _absent(journal: Journal, path: Path) -> Released:
    said = f"{_thing(journal)} is not there now; {_return(journal)}; remove {path} only if it is gone for good"
    found = main_value(journal.found)
    return Released(journal.scope, journal.device, "failed", found, None, unit_of(journal.kind), said)


def _thing(journal: Journal) -> str:
    return f"{journal.scope} ({journal.device})"


def _return(journal: Journal) -> str:
    found = value_text(main_value(journal.found), unit_of(journal.kind))
    bus = f"{BUS}; " if journal.scope.startswith("gpu:") else ""
    return f"{bus}when it returns, joulelab cap restore puts it back at {found}"


def _names(setter: Setter) -> dict[str, Any]:
    return {"scope": setter.scope, "device": setter.device, "model": setter.model, "kind": setter.kind}
