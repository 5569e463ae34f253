"""Set caps from a program: what was found comes back however the program ends."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Self

from joulelab.control.frames import error_of
from joulelab.control.link import Link, connect
from joulelab.control.told import Device, Held, Released, Status, Wish
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError, MeterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Caps", "Device", "Held", "Released", "Status", "Wish", "restore"]
# A driver that has to wake up many GPUs takes its time.
ANSWER_S = 60.0
RELEASE_S = 20.0
# A device whose last keeper is just putting back is free in a moment.
HELD_S = 1.0
NEVER_NS = 1 << 62
AGAIN_FIRST_NS = NS // 4
AGAIN_LAST_NS = 60 * NS
HEALTHY_NS = 10 * NS


class Caps:
    """Hold caps for this process until `release`, `close`, or its end.

    Poll `fds` until `due_ns` and call `serve()`: a keeper that died is started again there. Nothing is started before
    the first use. May be used by several threads; in a process that was forked off it does nothing.
    """

    def __init__(self, environ: Mapping[str, str], *, who: Mapping[str, str] | None = None) -> None:
        self._environ = dict(environ)
        self._who = dict(who or {})
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._link: Link | None = None
        self._asked = 0
        self._held: dict[str, tuple[Held, Wish]] = {}  # by device
        self._ended: list[Released] = []  # what a keeper put back without being asked by us
        self._events: deque[dict[str, Any]] = deque()
        self._resuming = 0
        self._due_ns = NEVER_NS
        self._delay_ns = 0
        self._started_ns = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def fds(self) -> Sequence[int]:
        """Return what to poll; it changes when a keeper is started again."""
        link = self._link
        return () if link is None or self._pid != os.getpid() else link.fds

    @property
    def due_ns(self) -> int:
        """Return when `serve()` is needed even if nothing becomes readable (monotonic)."""
        return self._due_ns

    def status(self) -> Status:
        """Return every device, what is set and who holds it; needs no root, takes no lock. Raises JoulelabError."""
        with self._mutex:
            self._check_process()
            if self._link is None:  # reading is for everybody: capd is not needed for it
                self._open(direct=True)
                try:
                    return self._status()
                finally:
                    self._close_link()
            return self._status()

    def set(self, wishes: Sequence[Wish]) -> list[Held]:
        """Set caps, all of them or none; waits until they are set. Raises JoulelabError.

        Devices that are held and not named stay as they are.
        """
        with self._mutex:
            self._check_process()
            _check(wishes)
            until = time.monotonic() + HELD_S
            lost = False
            while True:
                answer = self._ask(self._set_frame(wishes), ANSWER_S)
                if answer is not None and answer["is"] == "set":
                    break
                if answer is None:
                    if lost:
                        raise JoulelabError("the keeper of caps died twice", where="caps", next="joulelab cap status")
                    lost = True
                elif not (answer["error"].get("held") and time.monotonic() < until):
                    raise error_of(answer["error"])
                else:
                    time.sleep(0.05)
            return self._remember(answer["caps"], wishes)

    def release(self) -> list[Released]:
        """Put back what was found and wait for it, bounded; what goes wrong is told, not raised."""
        with self._mutex:
            if self._pid != os.getpid():
                return []
            told, self._ended = self._ended, []
            held = [one for one, _ in self._held.values()]
            self._held = {}
            self._due_ns = NEVER_NS
            return told + (self._release(held) if held else [])

    def serve(self) -> list[dict[str, Any]]:
        """Hear what happened; start a keeper that died again, with the same caps. Return events.

        `keeper-died` {pid, why}, `keeper-started` {pid, caps}, `caps-released` {why, devices, problem}: a signal made
        the keeper put back, and it is not started again; `caps-problem` {problem}.
        """
        if self._pid != os.getpid() or not self._mutex.acquire(blocking=False):
            return []  # another thread is asking the keeper, and will hear the same; nobody waits for it here
        try:
            if self._link is not None:
                for frame in self._link.receive(0.0):
                    self._hear(frame)
                if self._link.broken:
                    self._bury(self._link)
            if monotonic_ns() >= self._due_ns:
                self._resume()
            events = list(self._events)
            self._events.clear()
            return events
        finally:
            self._mutex.release()

    def close(self) -> None:
        """Release, and let the keeper end; what was not put back is in the machine's log of caps. Twice is harmless."""
        if self._pid != os.getpid():
            if self._link is not None:
                self._link.abandon()
                self._link = None
            return
        with self._mutex:
            try:
                self.release()
            finally:
                self._close_link()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise JoulelabError("these caps belong to the process that made them", where="caps", why=f"pid {self._pid}")

    def _open(self, *, direct: bool = False) -> Link:
        if self._link is None:
            self._link = connect(self._environ, direct=direct)
            self._started_ns = monotonic_ns()
        return self._link

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _status(self) -> Status:
        answer = self._ask({"do": "status"}, ANSWER_S)
        if answer is None:
            raise JoulelabError("the keeper of caps died", where="caps")
        if answer["is"] == "refused":
            raise error_of(answer["error"])
        missing = [(str(scope), str(why)) for scope, why in answer["missing"]]
        return Status([Device.of(one) for one in answer["devices"]], missing)

    def _set_frame(self, wishes: Sequence[Wish]) -> dict[str, Any]:
        named = [wish.to_json() for wish in wishes]
        if self._link is None:  # a new keeper holds nothing yet
            asked = {(wish.device, wish.unit == "Hz") for wish in wishes}
            for held, wish in self._held.values():
                clocks = held.unit == "Hz"
                if not asked & {(held.scope, clocks), (held.device, clocks), (held.device[: -len(".clocks")], clocks)}:
                    named.append(wish.to_json())
        return {"do": "set", "caps": named, "who": self._who}

    def _remember(self, caps: Sequence[Mapping[str, Any]], wishes: Sequence[Wish]) -> list[Held]:
        held = [Held.of(one) for one in caps]
        for one, wish in zip(held, wishes, strict=False):
            self._held[one.device] = one, Wish(one.device, wish.value, wish.unit)
        self._due_ns = NEVER_NS
        return held[: len(wishes)]

    def _ask(self, frame: dict[str, Any], within_s: float) -> dict[str, Any] | None:
        """Ask the keeper, started if need be; None where it died. Raises JoulelabError where it does not answer."""
        link = self._open()
        self._asked += 1
        try:
            answer = link.ask({**frame, "id": self._asked}, within_s, self._hear)
        except JoulelabError:
            link.abandon()  # it notices, and puts back when it can
            self._link = None
            self._held.clear()
            raise
        if answer is None:
            self._bury(link)
        return answer

    def _release(self, held: Sequence[Held]) -> list[Released]:
        try:
            answer = None if self._link is None else self._ask({"do": "release"}, RELEASE_S)
            told, self._ended = self._ended, []  # a signal may have been first
            left = [one.device for one in held if one.device not in {other.device for other in told}]
            if answer is None and left:  # it died: another one finishes what it left
                answer = self._ask({"do": "restore", "devices": left}, RELEASE_S)
            told += _released(answer) if left else []
        except JoulelabError as error:
            return [_unsure(one, "failed", f"{one.scope} may still be capped: {error}") for one in held]
        known = {one.device for one in told}
        said = "another keeper has finished what was left: joulelab cap status"
        return told + [_unsure(one, "left", f"{one.scope}: {said}") for one in held if one.device not in known]

    def _bury(self, link: Link) -> None:
        """Note that the keeper died; it is due again at once, unless the last one died young."""
        how, name = link.close(), link.name
        self._link = None
        self._resuming = 0
        if not self._held:
            return
        self._events.append({"event": "keeper-died", "keeper": name, "why": how})
        if monotonic_ns() - self._started_ns > HEALTHY_NS:
            self._delay_ns = 0
        self._again()

    def _again(self) -> None:
        self._due_ns = monotonic_ns() + self._delay_ns
        self._delay_ns = min(AGAIN_LAST_NS, max(AGAIN_FIRST_NS, 2 * self._delay_ns))

    def _resume(self) -> None:
        """Ask a new keeper for what the last one held; the answer is heard later."""
        self._due_ns = NEVER_NS
        try:
            link = self._open()
        except JoulelabError as error:
            self._events.append({"event": "caps-problem", "problem": str(error)})
            self._again()
            return
        self._asked += 1
        self._resuming = self._asked
        wishes = [wish.to_json() for _, wish in self._held.values()]
        link.send({"id": self._resuming, "do": "set", "caps": wishes, "who": self._who})

    def _hear(self, frame: dict[str, Any]) -> None:
        """Take what nobody waits for: the end of a keeper that was told to, and the answer to a resumed set."""
        what = frame.get("is")
        if what == "ended":
            told = [Released.of(one) for one in frame["devices"]]
            self._ended += told
            self._held.clear()
            if told:
                problem = f"the caps are no longer held: {self._name()} got {frame['why']}"
                devices = [one.to_json() for one in told]
                event = {"event": "caps-released", "why": frame["why"], "devices": devices, "problem": problem}
                self._events.append(event)
        elif frame.get("id") == self._resuming and self._resuming:
            self._resuming = 0
            if what == "set":
                self._remember(frame["caps"], [wish for _, wish in self._held.values()])
                self._events.append({"event": "keeper-started", "keeper": self._name(), "caps": frame["caps"]})
            else:
                self._lose(frame["error"])

    def _name(self) -> str:
        return "the keeper" if self._link is None else self._link.name

    def _lose(self, told: Mapping[str, Any]) -> None:
        """Try again later where that may help; else the caps are gone, and that is told."""
        error = error_of(dict(told))
        self._events.append({"event": "caps-problem", "problem": f"the caps are not set again yet: {error}"})
        if told.get("held") or isinstance(error, MeterError):
            self._again()
        else:
            self._held.clear()


def restore(environ: Mapping[str, str]) -> list[Released]:
    """Finish all left-over journals whose device is free; return what became of each. Raises JoulelabError."""
    link = connect(environ)
    try:
        answer = link.ask({"id": 1, "do": "restore"}, ANSWER_S, lambda _: None)
    finally:
        link.close()
    return _released(answer)


def _released(answer: Mapping[str, Any] | None) -> list[Released]:
    if answer is None:
        raise JoulelabError("the keeper of caps died", where="caps", next="joulelab cap restore")
    if answer["is"] == "refused":
        raise error_of(answer["error"])
    return [Released.of(one) for one in answer["devices"]]


def _unsure(held: Held, outcome: Literal["left", "failed"], said: str) -> Released:
    return Released(held.scope, held.device, outcome, held.found, None, held.unit, said)


def _check(wishes: Sequence[Wish]) -> None:
    for wish in wishes:
        if not math.isfinite(wish.value):
            raise ConfigError(f"{wish.value} is no cap", where=wish.device, next="give a number")
