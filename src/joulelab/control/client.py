"""Set caps from a program: what was found comes back however the program ends."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Self

from joulelab.control.frames import error_of
from joulelab.control.link import CapdGone, Link, connect
from joulelab.control.told import Device, Held, Released, Status, Wish
from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError, JoulelabError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Caps", "Device", "Held", "Released", "Status", "Wish", "restore"]
# A driver that has to wake up many GPUs takes its time.
ANSWER_S = 60.0
RELEASE_S = 20.0
# A device whose last keeper is just putting back is free in a moment.
HELD_S = 1.0
# A capd that was killed is started again in a moment.
CAPD_S = 10.0
NEVER_NS = 1 << 62
AGAIN_FIRST_NS = NS // 4
AGAIN_LAST_NS = 60 * NS
AGAIN_CAPD_NS = 5 * NS  # to knock costs nothing
HEALTHY_NS = 10 * NS
MOST_PROBLEMS = 10  # told of one outage


class Caps:
    """Hold caps for this process until `release`, `close`, or its end.

    Poll `fds` until `due_ns` and call `serve()`: a keeper that died is started again there, and a capd waited for, as
    long as this lives. Nothing is started before the first use. May be used by several threads; in a process that was
    forked off it does nothing.
    """

    def __init__(self, environ: Mapping[str, str], *, who: Mapping[str, str] | None = None) -> None:
        self._environ = dict(environ)
        self._who = dict(who or {})
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._link: Link | None = None
        self._capd = False  # it was capd that held our caps: nobody else can
        self._holding = False  # the keeper of this link has our caps
        self._asked = 0
        self._held: dict[str, tuple[Held, Wish]] = {}  # by device
        self._ended: list[Released] = []  # what a keeper put back without being asked by us
        self._events: deque[dict[str, Any]] = deque()
        self._problems: set[str] = set()  # told since the caps were last set
        self._resuming = 0
        self._finishing = 0
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
        # One that another thread closes just now shows -1, which nobody can poll.
        return () if link is None or self._pid != os.getpid() else [fd for fd in link.fds if fd >= 0]

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
            self._link = connect(self._environ, direct=direct, capd=self._capd)
            self._capd = self._capd or self._link.pid is None
            self._started_ns = monotonic_ns()
        return self._link

    def _open_soon(self) -> Link:
        """Open, and wait a little for a capd that is just being started again. Raises JoulelabError."""
        until = time.monotonic() + CAPD_S
        while True:
            try:
                return self._open()
            except CapdGone:
                if time.monotonic() >= until:
                    raise
            time.sleep(0.05)

    def _close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
            self._holding = False

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
        if not self._holding:  # a new keeper has nothing yet
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
        self._holding = True
        self._problems.clear()
        self._due_ns = NEVER_NS
        return held[: len(wishes)]

    def _ask(self, frame: dict[str, Any], within_s: float) -> dict[str, Any] | None:
        """Ask the keeper, started if need be; None where it died. Raises JoulelabError where it does not answer."""
        link = self._open_soon()
        self._asked += 1
        try:
            answer = link.ask({**frame, "id": self._asked}, within_s, self._hear)
        except JoulelabError:
            link.abandon()  # it notices, and puts back when it can
            self._link = None
            self._holding = False
            if self._held:
                self._again()
            raise
        if answer is None:
            self._bury(link)
        return answer

    def _release(self, held: Sequence[Held]) -> list[Released]:
        try:
            answer = None if self._link is None else self._ask({"do": "release"}, RELEASE_S)
            told, self._ended = self._ended, []  # a signal may have been first
            told += _released(answer) if answer is not None else []
            left = [one.device for one in held if one.device not in {other.device for other in told}]
            if left:  # it died, or never had them: another one finishes what was left
                told += _released(self._ask({"do": "restore", "devices": left}, RELEASE_S))
        except JoulelabError as error:
            return [_unsure(one, "failed", f"{one.scope} may still be capped: {error}") for one in held]
        known = {one.device for one in told}
        said = "another keeper has finished what was left: joulelab cap status"
        return told + [_unsure(one, "left", f"{one.scope}: {said}") for one in held if one.device not in known]

    def _bury(self, link: Link) -> None:
        """Note that the keeper died; it is due again at once, unless the last one died young."""
        self._link = None  # before it is closed: another thread may just look what to poll
        how, name = link.close(), link.name
        known, self._holding = self._holding or self._resuming > 0, False
        self._resuming = self._finishing = 0
        if not self._held:
            return
        if known:  # else it was told already that it refused
            self._events.append({"event": "keeper-died", "keeper": name, "why": how})
        if monotonic_ns() - self._started_ns > HEALTHY_NS:
            self._delay_ns = 0
        if self._due_ns == NEVER_NS:
            self._again()

    def _again(self, most_ns: int = AGAIN_LAST_NS) -> None:
        self._due_ns = monotonic_ns() + min(most_ns, self._delay_ns)
        self._delay_ns = min(most_ns, max(AGAIN_FIRST_NS, 2 * self._delay_ns))

    def _resume(self) -> None:
        """Ask a new keeper for what the last one held; the answer is heard later."""
        self._due_ns = NEVER_NS
        try:
            link = self._open()
        except JoulelabError as error:
            self._tell_problem(f"the caps are not set again yet: {error}")
            self._again(AGAIN_CAPD_NS if isinstance(error, CapdGone) else AGAIN_LAST_NS)
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
        elif self._resuming and (frame.get("id") == self._resuming or (what == "refused" and not frame.get("id"))):
            self._resuming = 0
            if what == "set":
                self._remember(frame["caps"], [wish for _, wish in self._held.values()])
                self._events.append({"event": "keeper-started", "keeper": self._name(), "caps": frame["caps"]})
            else:
                self._lose(frame["error"])
        elif self._finishing and frame.get("id") == self._finishing and what == "released":
            self._finishing = 0
            self._ended += _released(frame)

    def _name(self) -> str:
        return "the keeper" if self._link is None else self._link.name

    def _lose(self, told: Mapping[str, Any]) -> None:
        """Try again later, unless that is no use: then what was left is put back, the caps are gone, and told so."""
        error = error_of(dict(told))
        if not told.get("final"):
            self._tell_problem(f"the caps are not set again yet: {error}")
            self._again()
            return
        self._tell_problem(f"the caps are gone, and will not be set again: {error}")
        devices, self._held = list(self._held), {}
        assert self._link is not None  # it told us
        self._asked += 1
        self._finishing = self._asked
        self._link.send({"id": self._finishing, "do": "restore", "devices": devices})

    def _tell_problem(self, text: str) -> None:
        """Tell a problem once for as long as it lasts."""
        if text not in self._problems and len(self._problems) < MOST_PROBLEMS:
            self._problems.add(text)
            self._events.append({"event": "caps-problem", "problem": text})


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
