"""Hold one device: lock it, finish what was left over, remember what was found, set, read back, put back."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from joulelab.control.state import Journal, utc_text
from joulelab.control.told import Released
from joulelab.core.errors import DeviceLost, JoulelabError, Refused
from joulelab.core.setting import same

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.control.state import State
    from joulelab.core.setting import Setter, Setting

# A restore that fails may work a moment later; a device that is gone is not asked again.
TRIES = 3
PAUSE_S = 0.1

Verdict = Literal["as found", "restore", "leave"]


def verdict(
    now: Setting, *, found: Setting, ours: Sequence[Setting], default: Setting | None, same_boot: bool
) -> Verdict:
    """Decide what to do with what a device shows: only what is still ours, or was forgotten by the device, is undone.

    A setting of several values may be half set, or half put back: each of its values is then ours or found. One of
    ours that is hardly different from what was found is ours.
    """
    if dict(now) == dict(found):
        return "as found"
    if _is_mixed(now, [found, *ours]):
        return "restore"
    if same_boot and default is not None and same(now, default):
        return "restore"
    return "leave"


def _is_mixed(now: Setting, settings: Sequence[Setting]) -> bool:
    alike = [one for one in settings if one.keys() == now.keys()]
    if not now:
        return bool(alike)
    return all(any(same({key: value}, {key: one[key]}) for one in alike) for key, value in now.items())


def main_value(setting: Setting | None) -> float | None:
    """Return the one number that people call the cap (W or Hz), None where nothing is set."""
    if not setting:
        return None
    return next((setting[key] for key in ("cap_w", "long_term_w", "highest_hz") if key in setting), None)


def value_text(value: float | None, unit: str) -> str:
    """Return `170 W`, `1410 MHz`, or that nothing is set."""
    if value is None:
        return "free clocks" if unit == "Hz" else "no cap"
    return f"{value:.6g} W" if unit == "W" else f"{value / 1e6:.6g} MHz"


def unit_of(kind: str) -> str:
    """Return the unit of a kind of setter."""
    return "Hz" if kind == "clocks" else "W"


class _NotBack(Refused):
    """Report a device that shows something else than what was put back."""

    def __init__(self, what: str, shown: Setting, *, where: str, why: str) -> None:
        super().__init__(what, where=where, why=why)
        self.shown = dict(shown)


def finish(setter: Setter, journal: Journal, state: State) -> Released:
    """Put back what a journal says was found, if it is still ours to do; the lock is held. Nothing is raised.

    The journal is removed unless that failed.
    """
    left = TRIES
    while True:
        left -= 1
        try:
            outcome = _finish(setter, journal)
            break
        except Exception as error:  # noqa: BLE001 - a driver's surprise keeps no other device from being put back
            if isinstance(error, _NotBack):  # under our lock, what it shows is what became of our setting
                journal = replace(journal, set=[*journal.set, error.shown])
                with contextlib.suppress(Refused):
                    state.write(journal)
            if not left or isinstance(error, DeviceLost):
                found = value_text(main_value(journal.found), unit_of(journal.kind))
                why = error if isinstance(error, JoulelabError) else repr(error)
                said = f"{journal.scope} is not back at {found}: {why}; the journal stays: joulelab cap restore"
                return _told(journal, "failed", None, said)
        time.sleep(PAUSE_S)
    try:
        state.remove(journal.device)
    except OSError as error:
        said = f"{outcome.said}; the journal could not be removed ({error.strerror})"
        return replace(outcome, said=said)
    return outcome


def _finish(setter: Setter, journal: Journal) -> Released:
    now = setter.get()
    what = verdict(now, found=journal.found, ours=journal.set, default=journal.default, same_boot=journal.same_boot)
    unit = unit_of(journal.kind)
    shows, found = value_text(main_value(now), unit), value_text(main_value(journal.found), unit)
    if what == "as found":
        return _told(journal, "as found", now, f"{journal.scope}: {found}, as found")
    if what == "leave":
        ours = value_text(main_value(journal.set[-1]) if journal.set else None, unit)
        why = "somebody else changed it" if journal.same_boot else "the machine was started again since"
        said = f"{journal.scope} stays at {shows}: {why} (found {found}, we had set {ours})"
        return _told(journal, "left", now, said)
    setter.set(journal.found)
    now = setter.get()
    if not same(now, journal.found):
        shown = value_text(main_value(now), unit)
        why = f"it shows {shown} after it took {found}" if shown != found else f"it shows {dict(now)}"
        raise _NotBack("it does not go back", now, where=journal.scope, why=why)
    return _told(journal, "restored", now, f"{journal.scope}: back at {found}, as found (it was at {shows})")


def _told(
    journal: Journal, outcome: Literal["restored", "as found", "left", "failed"], now: Setting | None, said: str
) -> Released:
    found = main_value(journal.found)
    return Released(journal.scope, journal.device, outcome, found, main_value(now), unit_of(journal.kind), said)


class Lease:
    """Hold one device from the lock to the restore; `found` is what was there before us."""

    def __init__(self, setter: Setter, state: State, who: Mapping[str, Any]) -> None:
        """Lock the device and finish what was left over. Raises InUse, Refused, StoreError, MeterError."""
        self.setter = setter
        self.finished: Released | None = None
        self._state = state
        self._who = dict(who)
        self._sure: Setting | None = None  # the last setting of ours that the device showed
        self._maybe: list[Setting] = []  # settings that it may have taken
        self._lock = state.lock(setter.device, who, setter.scope)
        try:
            self._finish_leftover()
            self.found: Setting = dict(setter.get())
            self._default = setter.default()
        except BaseException:
            self._lock.close()
            raise

    def _finish_leftover(self) -> None:
        journal = self._state.read(self.setter.device)
        if journal is None:
            return
        self.finished = finish(self.setter, journal, self._state)
        if self.finished.outcome == "failed":
            what = "a cap that was left over is not put back yet"
            raise Refused(what, where=self.setter.scope, why=self.finished.said, next="joulelab cap status")

    @property
    def now(self) -> Setting:
        """Return what the device is known to have been set to: ours, or what was found."""
        return self.found if self._sure is None else self._sure

    def set(self, setting: Setting) -> None:
        """Journal, set, read back. Raises Refused, MeterError; then put it back."""
        self._check_still_ours()
        self._maybe.append(dict(setting))
        self._state.write(self._journal())
        self.setter.set(setting)
        shown = self.setter.get()
        if not same(shown, setting):
            self._maybe.append(dict(shown))  # under our lock, it is what became of our setting
            unit = unit_of(self.setter.kind)
            shows, asked = (value_text(main_value(one), unit) for one in (shown, setting))
            why = f"it shows {shows} after it took {asked}" if shows != asked else f"it shows {dict(shown)}"
            raise Refused(f"it does not keep {asked}", where=self.setter.scope, why=why, next=_CHECK)
        self._sure, self._maybe = dict(shown), []

    def undo(self, setting: Setting) -> None:
        """Set what was there before a change that failed elsewhere; raises as `set`."""
        if not same(self.setter.get(), setting):
            self.set(setting)

    def restore(self) -> Released:
        """Put back what was found, as the rule says, and let go of the device. Nothing is raised."""
        try:
            if self._sure is None and not self._maybe:
                return _told(self._journal(), "as found", self.found, f"{self.setter.scope}: nothing was set")
            return finish(self.setter, self._journal(), self._state)
        finally:
            self._lock.close()

    def _check_still_ours(self) -> None:
        """Refuse to write over what somebody else has set since."""
        now = self.setter.get()
        known = [*([] if self._sure is None else [self._sure]), *self._maybe]
        if verdict(now, found=self.found, ours=known, default=self._default, same_boot=True) == "leave":
            unit = unit_of(self.setter.kind)
            shows, ours = (value_text(main_value(one), unit) for one in (now, self.now))
            raise Refused(
                "somebody else changed it",
                where=self.setter.scope,
                why=f"it shows {shows}, we had set {ours}",
                next="find out who else sets caps here, then start again",
            )

    def _journal(self) -> Journal:
        ours = [*([] if self._sure is None else [self._sure]), *self._maybe]
        setter = self.setter
        return Journal(
            setter.device, setter.scope, setter.kind, self.found, self._default, ours, who=self._who, utc=utc_text()
        )


_CHECK = "ask for another value, or lock clocks instead: joulelab cap status"
