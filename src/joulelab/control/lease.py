"""Hold one device: lock it, finish a left-over journal, save the original setting, set, read back, restore."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from joulelab.control.protocol import CapOutcome
from joulelab.control.state import CapJournal, format_utc
from joulelab.core.errors import DeviceLost, JoulelabError, Refused
from joulelab.core.setting import is_same_setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.state import StateFolder
    from joulelab.core.setting import Setter, Setting

# A restore that fails may work a moment later; a device that is gone is not tried again.
RESTORE_TRIES = 3
RETRY_PAUSE_S = 0.1
CHECK_CAP = "ask for another value, or lock clocks instead: joulelab cap status"

Decision = Literal["as found", "restore", "leave"]


def decide_restore(
    now: Setting, *, found: Setting, ours: Sequence[Setting], default: Setting | None, same_boot: bool
) -> Decision:
    """Decide whether to restore a device: only if it still has our setting, or fell back to its default in this boot.

    A setting of several values may be half set or half restored: each value is then one of ours or the original.
    A setting of ours that differs from the original by less than the rounding of devices is ours.
    """
    if dict(now) == dict(found):
        return "as found"
    if _is_mixture(now, [found, *ours]):
        return "restore"
    if same_boot and default is not None and is_same_setting(now, default):
        return "restore"
    return "leave"


def _is_mixture(now: Setting, settings: Sequence[Setting]) -> bool:
    alike = [one for one in settings if one.keys() == now.keys()]
    if not now:
        return bool(alike)
    return all(any(is_same_setting({key: value}, {key: one[key]}) for one in alike) for key, value in now.items())


def get_main_value(setting: Setting | None) -> float | None:
    """Return the number that users call the cap (W or Hz), None if nothing is set."""
    if not setting:
        return None
    return next((setting[key] for key in ("cap_w", "long_term_w", "highest_hz") if key in setting), None)


def format_value(value: float | None, unit: str) -> str:
    """Format `170 W`, `1410 MHz`, `no cap` or `free clocks`."""
    if value is None:
        return "free clocks" if unit == "Hz" else "no cap"
    return f"{value:.6g} W" if unit == "W" else f"{value / 1e6:.6g} MHz"


def get_unit(kind: str) -> str:
    """Return the unit of a kind of setter."""
    return "Hz" if kind == "clocks" else "W"


def _format_setting(setting: Setting | None, kind: str) -> str:
    return format_value(get_main_value(setting), get_unit(kind))


def _explain_difference(shown: Setting, wanted: Setting, kind: str) -> str:
    shows, takes = (_format_setting(one, kind) for one in (shown, wanted))
    return f"it shows {shows} after it took {takes}" if shows != takes else f"it shows {dict(shown)}"


class _RestoreFailed(Refused):
    """Report a device that shows another setting than the one that was restored."""

    def __init__(self, shown: Setting, *, where: str, why: str) -> None:
        super().__init__("it is not restored", where=where, why=why, code="refused.not-restored")
        self.shown = dict(shown)


def finish_journal(setter: Setter, journal: CapJournal, state: StateFolder) -> CapOutcome:
    """Restore the original setting of a journal, unless another program changed it; needs the lock. Raises nothing.

    The journal is removed unless the restore failed.
    """
    tries = RESTORE_TRIES
    while True:
        tries -= 1
        try:
            outcome = _restore_setting(setter, journal)
            break
        except Exception as error:  # noqa: BLE001 - an unexpected error of one driver must not stop the other devices
            if isinstance(error, _RestoreFailed):  # we hold the lock: the device made this of our setting
                journal = replace(journal, set=[*journal.set, error.shown])
                with contextlib.suppress(Refused):
                    state.write_journal(journal)
            if not tries or isinstance(error, DeviceLost):
                found = _format_setting(journal.found, journal.kind)
                why = error if isinstance(error, JoulelabError) else repr(error)
                message = f"{journal.scope} is not back at {found}: {why}; try again: joulelab cap restore"
                return _make_outcome(journal, "failed", None, message)
        time.sleep(RETRY_PAUSE_S)
    try:
        state.remove_journal(journal.device)
    except OSError as error:
        path = state.get_journal_path(journal.device)
        message = f"{outcome.message}; its journal {path} cannot be removed ({error.strerror})"
        message += "; make its folder writable, then type: joulelab cap restore"
        return msgspec.structs.replace(outcome, message=message, keeps_journal=True)
    return outcome


def _restore_setting(setter: Setter, journal: CapJournal) -> CapOutcome:
    now, kind = setter.get(), journal.kind
    decision = decide_restore(
        now, found=journal.found, ours=journal.set, default=journal.default, same_boot=journal.is_from_this_boot
    )
    shows, found = (_format_setting(one, kind) for one in (now, journal.found))
    if decision == "as found":
        return _make_outcome(journal, "as found", now, f"{journal.scope}: {found}, as found")
    if decision == "leave":
        ours = _format_setting(journal.set[-1] if journal.set else None, kind)
        why = "another program changed it" if journal.is_from_this_boot else "the machine was restarted since"
        message = f"{journal.scope} stays at {shows}: {why} (original {found}, set by joulelab {ours})"
        return _make_outcome(journal, "left", now, message)
    setter.set(journal.found)
    now = setter.get()
    if not is_same_setting(now, journal.found):
        raise _RestoreFailed(now, where=journal.scope, why=_explain_difference(now, journal.found, kind))
    return _make_outcome(journal, "restored", now, f"{journal.scope}: back at {found}, as found (it was at {shows})")


def _make_outcome(journal: CapJournal, outcome: str, now: Setting | None, message: str) -> CapOutcome:
    found, unit = get_main_value(journal.found), get_unit(journal.kind)
    return CapOutcome(journal.scope, journal.device, outcome, found, get_main_value(now), unit, message)


class CapLease:
    """Hold one device from the lock to the restore; `found` is its original setting."""

    def __init__(self, setter: Setter, state: StateFolder, who: Mapping[str, Any]) -> None:
        """Lock the device and finish its left-over journal. Raises DeviceBusy, Refused, StoreError, MeterError."""
        self.setter = setter
        self.finished: CapOutcome | None = None
        self._state = state
        self._who = dict(who)
        self._confirmed: Setting | None = None  # our last setting that the device showed
        self._possible: list[Setting] = []  # settings that the device may have taken since
        self._lock = state.lock_device(setter.device, who, setter.scope)
        try:
            self._finish_leftover()
            self.found: Setting = dict(setter.get())
            self._default = setter.default()
        except BaseException:
            self._lock.close()
            raise

    def _finish_leftover(self) -> None:
        journal = self._state.read_journal(self.setter.device)
        if journal is None:
            return
        self.finished = finish_journal(self.setter, journal, self._state)
        if self.finished.outcome == "failed":
            what, why = "the cap of a killed keeper is not restored yet", self.finished.message
            advice, code = "joulelab cap status", "refused.leftover-cap"
            raise Refused(what, where=self.setter.scope, why=why, next=advice, code=code)

    @property
    def now(self) -> Setting:
        """Return our confirmed setting, or the original one."""
        return self.found if self._confirmed is None else self._confirmed

    def set(self, setting: Setting) -> None:
        """Write the journal, set, read back. Raises Refused, MeterError; the caller then restores."""
        self._check_still_ours()
        self._possible.append(dict(setting))
        self._state.write_journal(self._make_journal())
        self.setter.set(setting)
        shown = self.setter.get()
        if not is_same_setting(shown, setting):
            self._possible.append(dict(shown))  # we hold the lock: the device made this of our setting
            kind, scope, code = self.setter.kind, self.setter.scope, "refused.not-kept"
            what, why = f"it does not keep {_format_setting(setting, kind)}", _explain_difference(shown, setting, kind)
            raise Refused(what, where=scope, why=why, next=CHECK_CAP, code=code)
        self._confirmed, self._possible = dict(shown), []

    def undo(self, setting: Setting) -> None:
        """Return to an earlier setting after a change that failed on another device; raises as `set`."""
        if not is_same_setting(self.setter.get(), setting):
            self.set(setting)

    def restore(self) -> CapOutcome:
        """Restore the original setting, unless another program changed it; unlock the device. Raises nothing."""
        try:
            journal = self._make_journal()
            if not journal.set:
                return _make_outcome(journal, "as found", self.found, f"{self.setter.scope}: nothing was set")
            return finish_journal(self.setter, journal, self._state)
        finally:
            self._lock.close()

    def _check_still_ours(self) -> None:
        """Raise Refused if another program has changed the setting since."""
        now, ours = self.setter.get(), self._list_ours()
        if decide_restore(now, found=self.found, ours=ours, default=self._default, same_boot=True) == "leave":
            shows, wanted = (_format_setting(one, self.setter.kind) for one in (now, self.now))
            raise Refused(
                "another program changed it",
                where=self.setter.scope,
                why=f"it shows {shows}, joulelab had set {wanted}",
                next="find the other program that sets caps here, then start again",
                code="refused.changed-elsewhere",
            )

    def _list_ours(self) -> list[Setting]:
        return [*([] if self._confirmed is None else [self._confirmed]), *self._possible]

    def _make_journal(self) -> CapJournal:
        setter, utc = self.setter, format_utc()
        names = (setter.device, setter.scope, setter.kind)
        return CapJournal(*names, self.found, self._default, self._list_ours(), who=self._who, utc=utc)
